//! Walks over tokens: of macros, whose syntax nobody knows, and of files for comments and literals.

use proc_macro2::{Ident, TokenStream, TokenTree};

/// Calls a function with the tokens of a stream and of each group in it, one sequence at a time.
pub(crate) fn each_sequence(tokens: TokenStream, visit: &mut dyn FnMut(&[TokenTree])) {
    let sequence: Vec<TokenTree> = tokens.into_iter().collect();
    visit(&sequence);
    for token in sequence {
        if let TokenTree::Group(group) = token {
            each_sequence(group.stream(), visit);
        }
    }
}

pub(crate) fn is_punct(token: Option<&TokenTree>, wanted: char) -> bool {
    matches!(token, Some(TokenTree::Punct(punct)) if punct.as_char() == wanted)
}

fn ident(token: Option<&TokenTree>) -> Option<&Ident> {
    match token {
        Some(TokenTree::Ident(ident)) => Some(ident),
        _ => None,
    }
}

/// Finds what looks like paths: identifiers with `::` between them, and single ones. Returns each with its
/// line.
pub(crate) fn paths(tokens: TokenStream) -> Vec<(Vec<String>, usize)> {
    let mut found = Vec::new();
    each_sequence(tokens, &mut |sequence| {
        let mut at = 0;
        while at < sequence.len() {
            let Some(first) = ident(sequence.get(at)) else {
                at += 1;
                continue;
            };
            let mut path = vec![first.to_string()];
            at += 1;
            while is_punct(sequence.get(at), ':')
                && is_punct(sequence.get(at + 1), ':')
                && let Some(next) = ident(sequence.get(at + 2))
            {
                path.push(next.to_string());
                at += 3;
            }
            found.push((path, first.span().start().line));
        }
    });
    found
}

/// Finds definitions of types by their keyword. Names that a macro's argument gives (`struct $name`) are not
/// known.
pub(crate) fn type_definitions(tokens: TokenStream) -> Vec<(String, usize)> {
    let mut found = Vec::new();
    each_sequence(tokens, &mut |sequence| {
        for (at, token) in sequence.iter().enumerate() {
            if let (Some(keyword), Some(name)) = (ident(Some(token)), ident(sequence.get(at + 1)))
                && ["struct", "enum", "trait"].iter().any(|word| keyword == word)
            {
                found.push((name.to_string(), name.span().start().line));
            }
        }
    });
    found
}

/// Returns the text of a string literal as written, without quotes; [`None`] for other literals.
pub(crate) fn string_text(literal: &str) -> Option<&str> {
    let text = literal.trim_start_matches(['b', 'c', 'r', '#']).trim_end_matches('#');
    text.strip_prefix('"')?.strip_suffix('"')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_found_in_groups() {
        let tokens = "a(crate::b::c, [d]) :: e".parse().unwrap();
        let found: Vec<String> = paths(tokens).into_iter().map(|(path, _)| path.join("::")).collect();
        assert_eq!(found, ["a", "e", "crate::b::c", "d"]);
    }

    #[test]
    fn types_of_macros_are_found_by_keyword() {
        let tokens = "($name:ident) => { struct $name; pub enum Fixed {} }".parse().unwrap();
        assert_eq!(type_definitions(tokens), [("Fixed".to_owned(), 1)]);
    }

    #[test]
    fn quotes_of_literals_are_removed() {
        assert_eq!(string_text("\"a\""), Some("a"));
        assert_eq!(string_text("br##\"a\"##"), Some("a"));
        assert_eq!(string_text("12"), None);
        assert_eq!(string_text("'a'"), None);
    }
}

//! Documentation comments that ask instead of saying: paragraphs that begin with What, Whether, Where, Who or
//! How.
//!
//! All files of packages and fuzz targets count, also comments inside macros. Code blocks do not.

use proc_macro2::{TokenStream, TokenTree};

use crate::figure::{FigurePlace, MeasuredFigure};
use crate::files::RustFile;
use crate::repository::SourceRepository;
use crate::tokens::{each_sequence, is_punct};

const INTERROGATIVES: [&str; 5] = ["What", "Whether", "Where", "Who", "How"];

/// A line of a documentation comment.
struct CommentLine {
    line: usize,
    text: String,
}

pub(crate) fn measure(repository: &SourceRepository) -> Vec<MeasuredFigure> {
    let (mut sources, mut tests) = (Vec::new(), Vec::new());
    for file in &repository.files {
        for CommentLine { line, text } in interrogatives(file) {
            let found = FigurePlace { path: file.path.clone(), line, weight: 1.0, text };
            if file.is_test_line(line) { tests.push(found) } else { sources.push(found) }
        }
    }
    vec![
        MeasuredFigure::count("interrogative_comments", sources),
        MeasuredFigure::count("interrogative_comments_in_tests", tests),
    ]
}

/// Finds the first lines of paragraphs that begin with an interrogative.
fn interrogatives(file: &RustFile) -> Vec<CommentLine> {
    // The file was parsed before, so it has tokens.
    let tokens: TokenStream = file.text.parse().unwrap_or_default();
    let mut found = Vec::new();
    for comment in comments(tokens) {
        let (mut is_start, mut is_code) = (true, false);
        for line in comment {
            let text = line.text.trim();
            let is_fence = text.starts_with("```") || text.starts_with("~~~");
            is_code ^= is_fence;
            if is_start && !is_code && INTERROGATIVES.contains(&first_word(text)) {
                found.push(CommentLine { line: line.line, text: text.to_owned() });
            }
            is_start = text.is_empty() || is_fence;
        }
    }
    found.sort_by_key(|line| line.line);
    found
}

fn first_word(text: &str) -> &str {
    text.split(|c: char| !c.is_alphanumeric()).next().unwrap_or_default()
}

/// Finds all documentation comments: lines that follow one another, all of `///` or all of `//!`.
fn comments(tokens: TokenStream) -> Vec<Vec<CommentLine>> {
    let mut found = Vec::new();
    each_sequence(tokens, &mut |sequence| {
        let (mut at, mut lines, mut was_inner) = (0, Vec::new(), false);
        while at < sequence.len() {
            let is_inner = is_punct(sequence.get(at + 1), '!');
            let group = at + 1 + usize::from(is_inner);
            let text = match sequence.get(group) {
                Some(TokenTree::Group(group)) if is_punct(sequence.get(at), '#') => doc_text(group.stream()),
                _ => None,
            };
            if (text.is_none() || is_inner != was_inner) && !lines.is_empty() {
                found.push(std::mem::take(&mut lines));
            }
            match text {
                Some((text, line)) => {
                    let texts = text.lines().zip(line..);
                    lines.extend(texts.map(|(text, line)| CommentLine { line, text: text.to_owned() }));
                    if text.is_empty() {
                        lines.push(CommentLine { line, text });
                    }
                    (at, was_inner) = (group + 1, is_inner);
                }
                None => at += 1,
            }
        }
        if !lines.is_empty() {
            found.push(lines);
        }
    });
    found
}

/// Returns the text of `doc = "text"` and its line.
fn doc_text(tokens: TokenStream) -> Option<(String, usize)> {
    let tokens: Vec<TokenTree> = tokens.into_iter().collect();
    let [TokenTree::Ident(name), equals, TokenTree::Literal(literal)] = tokens.as_slice() else {
        return None;
    };
    if name != "doc" || !is_punct(Some(equals), '=') {
        return None;
    }
    let text: syn::LitStr = syn::parse2(TokenTree::Literal(literal.clone()).into()).ok()?;
    Some((text.value(), name.span().start().line))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::repository::sample;

    fn lines(text: &str) -> (Vec<usize>, Vec<usize>) {
        let figures = measure(&sample(&[("crates/a/src/lib.rs", text)]));
        let of = |figure: &MeasuredFigure| figure.findings.iter().map(|finding| finding.line).collect();
        (of(&figures[0]), of(&figures[1]))
    }

    #[test]
    fn each_paragraph_counts() {
        let text = "\
//! What it is.
//! Where is not at the start of a paragraph.
//!
//! Who uses it.

/// Offset of the header.
///
/// How it is found.
fn f() {}

/// However, this is fine.
// What a plain comment says is fine, too.
struct A {
    /// Whether it is set.
    set: bool,
}
";
        assert_eq!(lines(text), (vec![1, 4, 8, 14], vec![]));
    }

    #[test]
    fn code_blocks_do_not_count() {
        let text =
            "/// Example:\n/// ```text\n/// What\n///\n/// Who\n/// ```\n/// Where it ends.\nfn f() {}\n";
        assert_eq!(lines(text), (vec![7], vec![]));
    }

    #[test]
    fn comments_of_macros_and_blocks_count() {
        let text = "entities! {\n    /// What a function is.\n    Func \"fn\",\n}\n/** Where.\n\nHow. */\nfn f() {}\n";
        assert_eq!(lines(text), (vec![2, 5, 7], vec![]));
    }

    #[test]
    fn comments_of_tests_are_apart() {
        let text =
            "/// Fine.\nfn f() {}\n#[cfg(test)]\nmod tests {\n    /// What is tested.\n    fn t() {}\n}\n";
        assert_eq!(lines(text), (vec![], vec![5]));
    }
}

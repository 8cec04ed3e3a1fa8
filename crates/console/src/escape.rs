//! Escapes text for terminals, so that it can do no more than be read.
//!
//! Names of programs, maps, sections, types and interfaces, lines of configurations and messages of the
//! kernel's verifier may contain anything. In text for people, characters that control a terminal, or change
//! the order in which it shows others, are written as `\x1b` or `\u202e`; the latter also in JSON, whose
//! strings take them so.

use std::borrow::Cow;
use std::fmt::Write as _;

/// Escapes control characters. Line ends and tabs stay, and, if `colours`, the colours and weights that our
/// own renderers write.
pub(crate) fn escape(text: &str, colours: bool) -> Cow<'_, str> {
    if !text.chars().any(is_obeyed) {
        return Cow::Borrowed(text);
    }
    let mut out = String::with_capacity(text.len() + 16);
    let mut rest = text;
    while let Some(at) = rest.find(is_obeyed) {
        out.push_str(&rest[..at]);
        rest = &rest[at..];
        if let Some(length) = colour(rest).filter(|_| colours) {
            out.push_str(&rest[..length]);
            rest = &rest[length..];
            continue;
        }
        let mut chars = rest.chars();
        if let Some(c) = chars.next() {
            // Writing to a string does not fail.
            let _ = match u32::from(c) {
                n @ 0..=0x1f => write!(out, "\\x{n:02x}"),
                n => write!(out, "\\u{n:04x}"),
            };
        }
        rest = chars.as_str();
    }
    out.push_str(rest);
    Cow::Owned(out)
}

/// Returns true for characters that control a terminal: all controls but line ends and tabs, and those that
/// change the direction of writing or break lines.
fn is_obeyed(c: char) -> bool {
    let is_layout = matches!(c, '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
    c.is_control() && !matches!(c, '\n' | '\t') || is_layout
}

/// Length of a sequence that chooses a colour or a weight, and nothing that hides text.
fn colour(text: &str) -> Option<usize> {
    let body = text.strip_prefix("\x1b[")?;
    let end = body.find(|c: char| !c.is_ascii_digit() && c != ';')?;
    let visible = |code: &str| {
        matches!(code.parse(), Ok(0..=4 | 22..=24 | 30..=39 | 48 | 49 | 90..=97)) || code.is_empty()
    };
    let codes: Vec<&str> = body[..end].split(';').collect();
    // 38;5;N and 48;5;N choose one of many colours.
    let palette = matches!(codes.as_slice(), ["38" | "48", "5", n] if n.parse::<u8>().is_ok());
    (body[end..].starts_with('m') && (palette || codes.iter().all(|c| visible(c)))).then_some(2 + end + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_terminals_obey_is_escaped_and_the_rest_stays() {
        for (text, escaped) in [
            ("plain\ttext\n", "plain\ttext\n"),
            ("\x1b[2J", "\\x1b[2J"),
            ("\x1b]0;title\x07", "\\x1b]0;title\\x07"),
            ("a\rb\x08c\x7f", "a\\x0db\\x08c\\u007f"),
            ("\u{9b}31m", "\\u009b31m"),
            ("\u{202e}evil\u{2066}", "\\u202eevil\\u2066"),
            ("\u{e9}\u{4e2d}", "\u{e9}\u{4e2d}"),
            ("\x1b[31mred", "\\x1b[31mred"),
        ] {
            assert_eq!(escape(text, false), escaped);
        }
    }

    #[test]
    fn colours_pass_where_they_are_wanted_and_nothing_else_does() {
        for ours in ["\x1b[31m", "\x1b[1;31m", "\x1b[0m", "\x1b[m", "\x1b[38;5;200m", "\x1b[36;1;4m"] {
            assert_eq!(escape(&format!("a{ours}b"), true), format!("a{ours}b"));
        }
        for theirs in ["\x1b[8m", "\x1b[2J", "\x1b[31", "\x1b]0;x\x07", "\x1b[5m", "\x1b[1;8m"] {
            let shown = escape(theirs, true);
            assert!(!shown.contains('\x1b'), "{shown}");
        }
    }
}

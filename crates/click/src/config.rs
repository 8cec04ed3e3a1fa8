//! Configuration strings: variables, arguments, words, quotes. Source: click(5), "Configuration strings".

use std::rc::Rc;

use rustc_hash::FxHashMap;

use crate::ast::SpannedName;
use crate::error::{ConfigSpan, Error};
use crate::lex::{Lexer, step};

/// Values of variables, by name without dollar sign.
pub(crate) type ConfigVariables = FxHashMap<String, Rc<str>>;

/// A text of the configuration, with the place that errors name.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct SpannedText {
    /// The text.
    pub text: String,
    /// Its place: exact where no variable was in it.
    pub span: ConfigSpan,
}

/// Bytes that the variables of a configuration may still become.
pub(crate) struct ExpansionBudget(usize);

impl Default for ExpansionBudget {
    fn default() -> ExpansionBudget {
        ExpansionBudget(1 << 28)
    }
}

/// The text with variables replaced, and whether there were any. Unknown variables and text in single quotes
/// stay as they are.
pub(crate) fn substitute(
    name: &SpannedName,
    variables: &ConfigVariables,
    budget: &mut ExpansionBudget,
) -> Result<(String, bool), Error> {
    let (text, bytes) = (&name.text, name.text.as_bytes());
    let (mut out, mut at, mut done, mut changed) = (String::new(), 0, 0, false);
    // Quotes of the double kind do not hide variables.
    let mut double = false;
    while at < bytes.len() {
        match bytes[at] {
            b'$' => {
                let Some((variable, index, default, len)) = variable(&text[at..]) else {
                    at += 1;
                    continue;
                };
                let value = variables.get(variable).map(|value| &**value).or(default);
                let value = value.and_then(|value| match index {
                    Some(index) => nth_word(value, index, variables),
                    None => Some(value),
                });
                if let Some(value) = value {
                    budget.0 = budget
                        .0
                        .checked_sub(value.len())
                        .ok_or_else(|| Error::new(name.span, "variables become more text than 256 MiB"))?;
                    out.push_str(&text[done..at]);
                    out.push_str(value);
                    done = at + len;
                    changed = true;
                }
                at += len;
            }
            b'"' => {
                double = !double;
                at += 1;
            }
            b'\\' => at += 2,
            _ if double => at += 1,
            _ => at = step(bytes, at),
        }
    }
    out.push_str(text.get(done..).unwrap_or_default());
    Ok((out, changed))
}

/// The variable at the beginning of a text, the index of the word of its value that is meant, its default, and
/// how long all of it is.
fn variable(text: &str) -> Option<(&str, Option<&str>, Option<&str>, usize)> {
    let name_len = |t: &str| t.bytes().take_while(|b| b.is_ascii_alphanumeric() || *b == b'_').count();
    if let Some(inner) = text.strip_prefix("${") {
        let (inner, _) = inner.split_once('}')?;
        let (name, rest) = inner.split_at(name_len(inner));
        let (index, rest) = match rest.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
            Some((index, rest)) => (Some(index), rest),
            None => (None, rest),
        };
        return (!name.is_empty()).then_some((name, index, rest.strip_prefix('-'), inner.len() + 3));
    }
    let len = name_len(text.strip_prefix('$')?);
    (len > 0).then(|| (&text[1..=len], None, None, len + 1))
}

/// The word of a value with an index, which is a number or a variable: empty beyond the last word. `None` if
/// the index is neither.
fn nth_word<'v>(value: &'v str, index: &str, variables: &ConfigVariables) -> Option<&'v str> {
    let index = match index.strip_prefix('$') {
        Some(name) => variables.get(name)?,
        None => index,
    };
    let index: usize = index.trim().parse().ok()?;
    let words = pieces(value, |byte| byte.is_ascii_whitespace());
    let word = words.into_iter().filter(|(from, to)| from < to).nth(index);
    Some(word.and_then(|(from, to)| value.get(from..to)).unwrap_or_default())
}

/// The arguments between commas, trimmed, comments as blanks; a last one that is empty is none.
pub(crate) fn arguments(text: &str, span: ConfigSpan, exact: bool) -> Vec<SpannedText> {
    let place = |from: usize, to: usize| match exact {
        true => ConfigSpan { start: span.start + from, end: span.start + to },
        false => span,
    };
    let mut all: Vec<SpannedText> = pieces(text, |b| b == b',')
        .into_iter()
        .map(|(from, to)| {
            let (clean, lead) = without_comments(&text[from..to]);
            SpannedText { text: clean, span: place(from + lead, to) }
        })
        .collect();
    if all.last().is_some_and(|last| last.text.is_empty()) {
        all.pop();
    }
    all
}

/// Checks that arguments make a configuration string: parentheses and quotes in them end in them. Those that
/// were written between parentheses do, but values of variables may be pieces of what was written: commas
/// separate arguments inside of parentheses, too.
///
/// # Errors
/// If they do not, at this place.
pub(crate) fn balanced(arguments: &[SpannedText], span: ConfigSpan) -> Result<(), Error> {
    let texts: Vec<&str> = arguments.iter().map(|a| a.text.as_str()).collect();
    let text = texts.join(", ") + ")";
    match Lexer::new(&text).config() {
        Ok((inside, _)) if inside.len() + 1 == text.len() => Ok(()),
        _ => {
            let message = "with the values of its variables, this string has a parenthesis or a quote \
                           without its other half";
            let help = "a comma ends an argument, inside of parentheses as well: put what belongs \
                        together in double quotes";
            Err(Error::new(span, message).help(help))
        }
    }
}

/// The words of an argument, quotes kept.
pub fn words(text: &SpannedText) -> Vec<SpannedText> {
    let all = pieces(&text.text, |b| b.is_ascii_whitespace());
    let word = |(from, to): (usize, usize)| {
        let start = (text.span.start + from).min(text.span.end);
        let span = ConfigSpan { start, end: (text.span.start + to).clamp(start, text.span.end) };
        SpannedText { text: text.text[from..to].to_owned(), span }
    };
    all.into_iter().filter(|(from, to)| from < to).map(word).collect()
}

/// Ranges between separators that are outside of quotes and comments.
fn pieces(text: &str, separates: impl Fn(u8) -> bool) -> Vec<(usize, usize)> {
    let bytes = text.as_bytes();
    let (mut all, mut from, mut at) = (Vec::new(), 0, 0);
    while at < bytes.len() {
        if separates(bytes[at]) {
            all.push((from, at));
            from = at + 1;
        }
        at = step(bytes, at).min(bytes.len());
    }
    all.push((from, bytes.len()));
    all
}

/// A trimmed argument without its comments, and how many bytes lay before it.
fn without_comments(text: &str) -> (String, usize) {
    let bytes = text.as_bytes();
    let (mut out, mut at, mut done) = (String::new(), 0, 0);
    let mut lead = None;
    while at < bytes.len() {
        let is_directive = is_line_directive(text, at);
        let next = if is_directive { line_end(bytes, at) } else { step(bytes, at).min(bytes.len()) };
        let comment = bytes[at] == b'/' && next > at + 1;
        if comment || is_directive {
            out.push_str(&text[done..at]);
            out.push(' ');
            done = next;
        } else if !bytes[at].is_ascii_whitespace() && lead.is_none() {
            lead = Some(at);
        }
        at = next;
    }
    out.push_str(&text[done..]);
    (out.trim().to_owned(), lead.unwrap_or(0))
}

/// Returns true if a line begins here that a preprocessor has put in: `# NUMBER "FILE"`.
fn is_line_directive(text: &str, at: usize) -> bool {
    let begins = at == 0 || text.as_bytes().get(at - 1) == Some(&b'\n');
    let rest = text.get(at..).and_then(|rest| rest.strip_prefix('#')).map(str::trim_start);
    begins
        && rest.is_some_and(|rest| {
            rest.strip_prefix("line ").unwrap_or(rest).starts_with(|c: char| c.is_ascii_digit())
        })
}

/// Place of the end of a line.
fn line_end(bytes: &[u8], at: usize) -> usize {
    bytes[at..].iter().position(|byte| *byte == b'\n').map_or(bytes.len(), |end| at + end)
}

/// First of the characters that represent bytes of a file that is not UTF-8; the byte is added. They are at
/// the end of a plane for private use.
const RAW: u32 = 0x10_ff00;

/// The text of a file. Bytes that are not UTF-8 are kept in it, one by one: the values of arguments have them
/// as they were (`unquote`).
pub fn decoded(bytes: &[u8]) -> String {
    let mut out = String::with_capacity(bytes.len());
    for chunk in bytes.utf8_chunks() {
        out.push_str(chunk.valid());
        out.extend(chunk.invalid().iter().filter_map(|byte| char::from_u32(RAW + u32::from(*byte))));
    }
    out
}

/// Replaces the characters that represent bytes with these bytes.
fn encoded(bytes: Vec<u8>) -> Vec<u8> {
    // The first two bytes of all of these characters.
    const BEGIN: [u8; 2] = [0xf4, 0x8f];
    if !bytes.windows(2).any(|pair| pair == BEGIN) {
        return bytes;
    }
    let (mut out, mut rest) = (Vec::with_capacity(bytes.len()), &bytes[..]);
    while let Some((&first, others)) = rest.split_first() {
        match rest {
            [0xf4, 0x8f, high @ 0xbc..=0xbf, low @ 0x80..=0xbf, behind @ ..] => {
                out.push((high & 3) << 6 | low & 0x3f);
                rest = behind;
            }
            _ => {
                out.push(first);
                rest = others;
            }
        }
    }
    out
}

/// The value of a word or argument: without quotes, and with backslashes replaced.
pub fn unquote(text: &str) -> Vec<u8> {
    encoded(plain(text))
}

/// A text without its quotes.
fn plain(text: &str) -> Vec<u8> {
    let bytes = text.as_bytes();
    let (mut out, mut at) = (Vec::new(), 0);
    let mut double = false;
    while at < bytes.len() {
        match bytes[at] {
            b'"' => {
                double = !double;
                at += 1;
            }
            b'\'' if !double => {
                let end = step(bytes, at);
                out.extend_from_slice(bytes[at + 1..end].strip_suffix(b"'").unwrap_or(&bytes[at + 1..end]));
                at = end;
            }
            b'\\' if double || bytes.get(at + 1) == Some(&b'<') => at += escape(&bytes[at..], &mut out),
            byte => {
                out.push(byte);
                at += 1;
            }
        }
    }
    out
}

/// Reads an escape sequence, and says how long it is.
fn escape(bytes: &[u8], out: &mut Vec<u8>) -> usize {
    let Some(&kind) = bytes.get(1) else {
        out.push(b'\\');
        return 1;
    };
    let digits = |from: usize, most: usize, radix: u32| {
        let is = |b: &&u8| (**b as char).is_digit(radix);
        bytes[from..].iter().take(most).take_while(is).count()
    };
    let number = |from: usize, len: usize, radix| {
        bytes[from..from + len]
            .iter()
            .fold(0u32, |n, &b| (n * radix + (b as char).to_digit(radix).unwrap_or(0)) & 255)
    };
    match kind {
        b'<' => {
            let end = step(bytes, 0).min(bytes.len());
            let text = bytes[2..end].strip_suffix(b">").unwrap_or(&bytes[2..end]);
            let (mut nibbles, mut at) = (Vec::new(), 0);
            while at < text.len() {
                nibbles.extend((text[at] as char).to_digit(16).map(|digit| digit as u8));
                // Comments in the data are none of it.
                at = if text[at] == b'/' { step(text, at) } else { at + 1 };
            }
            out.extend(nibbles.chunks(2).map(|pair| pair.iter().fold(0, |n, d| n << 4 | d)));
            return end;
        }
        b'x' => {
            let len = digits(2, usize::MAX, 16);
            out.push(number(2, len, 16) as u8);
            return 2 + len;
        }
        b'0'..=b'7' => {
            let len = digits(1, 3, 8);
            out.push(number(1, len, 8) as u8);
            return 1 + len;
        }
        b'\r' if bytes.get(2) == Some(&b'\n') => return 3,
        b'\n' | b'\r' => {}
        b'a' => out.push(7),
        b'b' => out.push(8),
        b't' => out.push(9),
        b'n' => out.push(10),
        b'v' => out.push(11),
        b'f' => out.push(12),
        b'r' => out.push(13),
        other => out.push(other),
    }
    2
}

#[cfg(test)]
mod tests {
    use super::*;

    fn split(text: &str) -> Vec<String> {
        let span = ConfigSpan { start: 0, end: text.len() };
        arguments(text, span, true).into_iter().map(|a| a.text).collect()
    }

    #[test]
    fn commas_in_quotes_and_comments_do_not_separate() {
        assert_eq!(split(r#"a b, "c,d" 'e,f' /* g,h */ i, "#), ["a b", r#""c,d" 'e,f'   i"#]);
        assert_eq!(split("1 // two, three\n, 4"), ["1", "4"]);
        assert_eq!(split("a, , b"), ["a", "", "b"]);
        assert!(split("  ").is_empty());
    }

    #[test]
    fn bytes_that_are_no_text_stay_what_they_are() {
        let bytes = b"// Li\xe8ge\n \"\xff\xc3\xa9\x80\"";
        let text = decoded(bytes);
        let quoted = text.split_once('\n').map_or("", |(_, quoted)| quoted);
        assert_eq!(unquote(quoted), b" \xff\xc3\xa9\x80");
        assert_eq!(decoded("é".as_bytes()), "é");
    }

    #[test]
    fn quotes_join_and_escapes_are_replaced() {
        assert_eq!(unquote(r#"a"b"c"#), b"abc");
        assert_eq!(unquote(r#""\x41\102\n" '\n'"#), b"AB\n \\n");
        assert_eq!(unquote(r"\<48 45 4c 4C 4f>"), b"HELLO");
        assert_eq!(unquote("\"a\\\nb\""), b"ab");
        assert_eq!(unquote("\\<\n // add > feed\n 48 /* dead */ 49>"), b"HI");
    }

    #[test]
    fn variables_are_replaced_outside_of_single_quotes() {
        let values = [("a", "1"), ("words", "x  'y z' w"), ("n", "2")];
        let variables: ConfigVariables =
            values.map(|(name, value)| (name.to_owned(), value.into())).into_iter().collect();
        let on = |text: &str| {
            let name = SpannedName { text: text.into(), span: ConfigSpan::default() };
            substitute(&name, &variables, &mut ExpansionBudget::default()).expect("little text").0
        };
        assert_eq!(on("$a ${a}b $b"), "1 1b $b");
        assert_eq!(on("'$a' \"$a\" ${b-7}"), "'$a' \"1\" 7");
        assert_eq!(on("$ $"), "$ $");
        assert_eq!(
            on("${words[0]}|${words[1]}|${words[3]}|${words[$n]}|${words[x]}"),
            "x|'y z'||w|${words[x]}"
        );
    }
}

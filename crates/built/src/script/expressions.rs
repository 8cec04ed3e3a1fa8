//! Words of scripts: variables, handlers in parentheses, and functions of words.

mod format;

use std::cmp::Ordering;
use std::fs::File;
use std::io::Read as _;

use millstream_click::unquoted;

use format::sprintf;

/// Longest file that `cat` reads, in bytes.
const LONGEST: u64 = 1 << 20;

/// Contents of the parentheses at the start of a text.
pub(super) fn parenthesized(text: &str) -> Option<&str> {
    let mut depth = 0;
    for (at, byte) in text.bytes().enumerate() {
        match byte {
            b'(' => depth += 1,
            b')' if depth == 1 => return Some(&text[1..at]),
            b')' => depth -= 1,
            _ if depth == 0 => return None,
            _ => {}
        }
    }
    None
}

/// The name of the variable at the start of a text, and its length with braces.
pub(super) fn variable(text: &str) -> (&str, usize) {
    if let Some(inner) = text.strip_prefix('{')
        && let Some((name, _)) = inner.split_once('}')
    {
        return (name, name.len() + 2);
    }
    let one = text.starts_with(['?', '#', '$']);
    let length = text.bytes().take_while(|b| b.is_ascii_alphanumeric() || *b == b'_').count();
    let length = if one { 1 } else { length };
    (&text[..length], length)
}

/// The first word of a text, and the rest.
pub(super) fn first(text: &str) -> (&str, &str) {
    let text = text.trim();
    text.split_once(char::is_whitespace).unwrap_or((text, ""))
}

/// Words between blanks outside of quotes and of `\\<...>`; quotes are kept.
pub(super) fn split(text: &str) -> Vec<String> {
    let (mut words, mut word, mut is_open) = (Vec::new(), String::new(), false);
    let (mut quote, mut before) = (None, ' ');
    for character in text.chars() {
        match (quote, character) {
            (None, '"' | '\'') => (quote, is_open) = (Some(character), true),
            (None, '<') if before == '\\' => quote = Some('>'),
            (None, blank) if blank.is_whitespace() => {
                if std::mem::take(&mut is_open) {
                    words.push(std::mem::take(&mut word));
                }
                before = ' ';
                continue;
            }
            (None, _) => is_open = true,
            (Some(end), _) if end == character && (end != '"' || before != '\\') => quote = None,
            _ => {}
        }
        // An escaped backslash escapes nothing.
        before = if (before, character) == ('\\', '\\') { ' ' } else { character };
        word.push(character);
    }
    words.extend(is_open.then_some(word));
    words
}

/// Returns true if a condition holds.
pub(super) fn is_true(text: &str) -> bool {
    let text = text.trim();
    ["true", "yes", "1"].iter().any(|word| text.eq_ignore_ascii_case(word))
}

/// A number of a script.
#[derive(Clone, Copy, PartialEq, Debug)]
enum ScriptNumber {
    Whole(i128),
    Real(f64),
}

impl ScriptNumber {
    /// The number that a word is: decimal, hexadecimal with `0x` or octal with `0`, or with a fraction.
    fn parse(word: &str) -> Option<ScriptNumber> {
        let (negative, digits) = word.strip_prefix('-').map_or((false, word), |digits| (true, digits));
        let hexadecimal = digits.strip_prefix("0x").or_else(|| digits.strip_prefix("0X"));
        let octal = digits.strip_prefix('0').filter(|rest| !rest.is_empty());
        let radix = |digits: &str, radix| match digits.starts_with(['+', '-']) {
            true => None,
            false => u64::from_str_radix(digits, radix).ok(),
        };
        let whole = match (hexadecimal, octal) {
            (Some(digits), _) => radix(digits, 16),
            (None, Some(digits)) => radix(digits, 8),
            (None, None) => radix(digits, 10),
        };
        match whole {
            Some(whole) => Some(ScriptNumber::Whole(i128::from(whole) * if negative { -1 } else { 1 })),
            None => word.parse().ok().filter(|real: &f64| real.is_finite()).map(ScriptNumber::Real),
        }
    }

    fn real(self) -> f64 {
        match self {
            ScriptNumber::Whole(whole) => whole as f64,
            ScriptNumber::Real(real) => real,
        }
    }

    fn text(self) -> String {
        match self {
            ScriptNumber::Whole(whole) => whole.to_string(),
            ScriptNumber::Real(real) => real_text(real),
        }
    }

    /// Combines two numbers: as whole numbers if both are and the result is one.
    fn with(
        self,
        other: ScriptNumber,
        whole: fn(i128, i128) -> Option<i128>,
        real: fn(f64, f64) -> f64,
    ) -> Self {
        let combined = match (self, other) {
            (ScriptNumber::Whole(a), ScriptNumber::Whole(b)) => whole(a, b),
            _ => None,
        };
        combined.map_or_else(|| ScriptNumber::Real(real(self.real(), other.real())), ScriptNumber::Whole)
    }
}

/// A number with at most 12 significant digits, without zeros behind the point.
fn real_text(number: f64) -> String {
    if number == 0.0 || !number.is_finite() {
        return number.to_string();
    }
    let exponent = number.abs().log10().floor() as i32;
    if !(-5..12).contains(&exponent) {
        return format!("{number:e}");
    }
    let places = usize::try_from(11 - exponent).unwrap_or(0);
    let text = format!("{number:.places$}");
    match text.contains('.') {
        true => text.trim_end_matches('0').trim_end_matches('.').to_owned(),
        false => text,
    }
}

/// Order of two words: by value if both are numbers, else by bytes.
fn order(a: &str, b: &str) -> Ordering {
    match (ScriptNumber::parse(a), ScriptNumber::parse(b)) {
        (Some(ScriptNumber::Whole(a)), Some(ScriptNumber::Whole(b))) => a.cmp(&b),
        (Some(a), Some(b)) => a.real().total_cmp(&b.real()),
        _ => unquoted(a).cmp(&unquoted(b)),
    }
}

/// Reduces numbers from left to right; nothing if a word is not a number.
fn reduce(
    words: &[String],
    whole: fn(i128, i128) -> Option<i128>,
    real: fn(f64, f64) -> f64,
) -> Option<String> {
    let numbers: Option<Vec<ScriptNumber>> = words.iter().map(|word| ScriptNumber::parse(word)).collect();
    let all = numbers?.into_iter().reduce(|a, b| a.with(b, whole, real))?;
    Some(all.text())
}

/// Applies a function to the first number.
fn apply(words: &[String], whole: fn(i128) -> i128, real: fn(f64) -> f64) -> Option<String> {
    let number = match ScriptNumber::parse(words.first()?)? {
        ScriptNumber::Whole(number) => ScriptNumber::Whole(whole(number)),
        ScriptNumber::Real(number) => ScriptNumber::Real(real(number)),
    };
    Some(number.text())
}

/// A number with its bytes in the other order, of so many bits.
fn swapped(words: &[String], swap: fn(u32) -> u32) -> Option<String> {
    match ScriptNumber::parse(words.first()?)? {
        ScriptNumber::Whole(number) => Some(swap(number as u32).to_string()),
        ScriptNumber::Real(_) => None,
    }
}

/// Compares two words.
fn compare(words: &[String], holds: fn(Ordering) -> bool) -> Option<String> {
    match words {
        [a, b] => Some(holds(order(a, b)).to_string()),
        _ => None,
    }
}

/// Result of a script function of this name for the text behind it, or `None` if there is none; an error if
/// the text does not fit.
pub(super) fn compute(name: &str, text: &str) -> Option<Result<String, String>> {
    let words = &split(text)[..];
    let is = |word: &String| is_true(word);
    let numbers = |found: Option<String>| found.ok_or_else(|| format!("{name}: expected numbers"));
    Some(match name {
        "add" => numbers(reduce(words, i128::checked_add, |a, b| a + b)),
        "sub" => numbers(reduce(words, i128::checked_sub, |a, b| a - b)),
        "mul" => numbers(reduce(words, i128::checked_mul, |a, b| a * b)),
        "div" => numbers(reduce(words, exact_quotient, |a, b| a / b)),
        "idiv" => numbers(reduce(words, exact_quotient, |a, b| a / b).map(|all| whole_part(&all))),
        "mod" | "rem" => numbers(reduce(words, i128::checked_rem, |a, b| a % b)),
        "min" => numbers(reduce(words, |a, b| Some(a.min(b)), f64::min)),
        "max" => numbers(reduce(words, |a, b| Some(a.max(b)), f64::max)),
        "neg" => numbers(apply(words, |n| -n, |n| -n)),
        "abs" => numbers(apply(words, i128::abs, f64::abs)),
        "round" => numbers(apply(words, |n| n, f64::round)),
        "floor" => numbers(apply(words, |n| n, f64::floor)),
        "ceil" => numbers(apply(words, |n| n, f64::ceil)),
        "eq" => numbers(compare(words, Ordering::is_eq)),
        "ne" => numbers(compare(words, Ordering::is_ne)),
        "lt" => numbers(compare(words, Ordering::is_lt)),
        "gt" => numbers(compare(words, Ordering::is_gt)),
        "le" => numbers(compare(words, Ordering::is_le)),
        "ge" => numbers(compare(words, Ordering::is_ge)),
        "htonl" | "ntohl" => numbers(swapped(words, u32::to_be)),
        "htons" | "ntohs" => numbers(swapped(words, |number| u32::from((number as u16).to_be()))),
        "first" => Ok(words.first().cloned().unwrap_or_default()),
        "nand" => Ok((!words.iter().all(is)).to_string()),
        "nor" => Ok((!words.iter().any(is)).to_string()),
        "not" => Ok(words.first().is_none_or(|word| !is_true(word)).to_string()),
        "and" => Ok(words.iter().all(is).to_string()),
        "or" => Ok(words.iter().any(is).to_string()),
        "if" => {
            let chosen = if words.first().is_some_and(is) { 1 } else { 2 };
            Ok(words.get(chosen).cloned().unwrap_or_default())
        }
        "in" => {
            let first = words.first().map(|word| unquoted(word));
            let others = words.iter().skip(1).map(|word| unquoted(word));
            Ok(first.is_some_and(|first| others.into_iter().any(|other| other == first)).to_string())
        }
        "length" => Ok(text.len().to_string()),
        "unquote" => Ok(unquoted(text)),
        "sprintf" => sprintf(words),
        "cat" => file_text(text),
        "catq" => {
            file_text(text).map(|text| format!("\"{}\"", text.replace('\\', "\\\\").replace('"', "\\\"")))
        }
        _ => return None,
    })
}

/// The quotient of two whole numbers, if it is one.
fn exact_quotient(a: i128, b: i128) -> Option<i128> {
    a.checked_rem(b).filter(|rest| *rest == 0).and_then(|_| a.checked_div(b))
}

/// The whole part of a number.
fn whole_part(number: &str) -> String {
    number.parse().map_or(number.to_owned(), |number: f64| format!("{:.0}", number.trunc()))
}

/// Text of a file, at most [`LONGEST`] bytes.
fn file_text(name: &str) -> Result<String, String> {
    let name = unquoted(name.trim());
    let read = || {
        let mut bytes = Vec::new();
        File::open(&name)?.take(LONGEST + 1).read_to_end(&mut bytes)?;
        Ok(bytes)
    };
    let bytes = read().map_err(|e: std::io::Error| format!("{name}: {e}"))?;
    match bytes.len() as u64 > LONGEST {
        true => Err(format!("{name}: it is longer than {LONGEST} bytes")),
        false => Ok(String::from_utf8_lossy(&bytes).into_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::{compute, parenthesized, split, variable};

    #[test]
    fn words_are_computed() {
        let cases = [
            ("add", "10 5 2", "17"),
            ("sub", "10 5 2", "3"),
            ("div", "10 4", "2.5"),
            ("idiv", "10 4", "2"),
            ("mod", "10 4", "2"),
            ("mul", "0.5 3", "1.5"),
            ("min", "5 10 2", "2"),
            ("neg", "-5", "5"),
            ("abs", "-5", "5"),
            ("eq", "1.0 1", "true"),
            ("ne", "a b", "true"),
            ("lt", "1 2", "true"),
            ("ge", "1 2", "false"),
            ("not", "true", "false"),
            ("and", "true 0", "false"),
            ("or", "false 1", "true"),
            ("if", "true 5 -5", "5"),
            ("if", "false 5 -5", "-5"),
            ("in", "0 0 1000", "true"),
            ("in", "7 0 1000", "false"),
            ("floor", "2.7", "2"),
            ("round", "2.5", "3"),
            ("htons", "6", "1536"),
            ("ntohl", "1", "16777216"),
            ("first", "a b", "a"),
            ("div", "75 2.5 5", "6"),
            ("sub", "1.5 1", "0.5"),
            ("eq", "10 0xA", "true"),
            ("lt", "a b", "true"),
            ("in", "foo bar foo", "true"),
            ("length", "abc def", "7"),
            ("unquote", "\"a\"", "a"),
            ("mul", "-9223372036854775808 2", "-18446744073709551616"),
            ("nor", "false 0", "true"),
        ];
        for (name, words, expected) in cases {
            assert_eq!(compute(name, words), Some(Ok(expected.to_owned())), "{name} {words}");
        }
        assert_eq!(compute("count", ""), None);
        assert!(compute("add", "a 1").is_some_and(|result| result.is_err()));
    }

    #[test]
    fn quotes_keep_words_together() {
        assert_eq!(split("a \"b c\" 'd e'f \\<01 02> g"), ["a", "\"b c\"", "'d e'f", "\\<01 02>", "g"]);
        assert_eq!(split("\"\" \"a\\\" b\""), ["\"\"", "\"a\\\" b\""]);
    }

    #[test]
    fn names_end_where_they_end() {
        assert_eq!(parenthesized("(a (b c) d) e"), Some("a (b c) d"));
        assert_eq!([parenthesized("(a"), parenthesized("a)")], [None, None]);
        assert_eq!(
            [variable("ab_1-c"), variable("{x}y"), variable("?b"), variable("-")],
            [("ab_1", 4), ("x", 3), ("?", 1), ("", 0)]
        );
    }
}

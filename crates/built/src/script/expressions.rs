//! Words of scripts: variables, handlers in parentheses, and functions of words.

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
    let one = text.starts_with(['?', '#']);
    let length = text.bytes().take_while(|b| b.is_ascii_alphanumeric() || *b == b'_').count();
    let length = if one { 1 } else { length };
    (&text[..length], length)
}

/// The first word of a text, and the rest.
pub(super) fn first(text: &str) -> (&str, &str) {
    let text = text.trim();
    text.split_once(char::is_whitespace).unwrap_or((text, ""))
}

/// Words between blanks.
pub(super) fn split(text: &str) -> Vec<String> {
    text.split_whitespace().map(str::to_owned).collect()
}

/// Returns true if a condition holds.
pub(super) fn is_true(text: &str) -> bool {
    let text = text.trim();
    ["true", "yes", "1"].iter().any(|word| text.eq_ignore_ascii_case(word))
}

/// A number as text: integers without a point.
fn written(number: f64) -> String {
    match number.fract() == 0.0 && number.abs() < 1e15 {
        true => format!("{number:.0}"),
        false => format!("{number}"),
    }
}

/// Returns true if two words are equal, by value if both are numbers.
fn same(a: &str, b: &str) -> bool {
    match (a.parse::<f64>(), b.parse::<f64>()) {
        (Ok(a), Ok(b)) => a.total_cmp(&b).is_eq(),
        _ => a == b,
    }
}

/// Applies a function of one number.
fn fold_one(numbers: Option<&[f64]>, f: fn(f64) -> f64) -> String {
    numbers.and_then(<[f64]>::first).map_or_else(String::new, |number| written(f(*number)))
}

/// A 32-bit number with its bytes swapped.
fn swapped(words: &[String], swap: fn(u32) -> u32) -> String {
    let number = words.first().and_then(|word| word.parse().ok());
    number.map_or_else(String::new, |number| swap(number).to_string())
}

/// Result of a script function of this name, or `None` if there is none; empty if a word is not a number.
pub(super) fn compute(name: &str, words: &[String]) -> Option<String> {
    let numbers: Option<Vec<f64>> = words.iter().map(|word| word.parse().ok()).collect();
    let fold = |f: fn(f64, f64) -> f64| {
        let found = numbers.as_ref().and_then(|all| all.iter().copied().reduce(f));
        found.map_or_else(String::new, written)
    };
    let pair = |f: fn(f64, f64) -> bool| match numbers.as_deref() {
        Some([a, b]) => f(*a, *b).to_string(),
        _ => String::new(),
    };
    let equal = || words.len() == 2 && same(&words[0], &words[1]);
    Some(match name {
        "add" => fold(|a, b| a + b),
        "sub" => fold(|a, b| a - b),
        "mul" => fold(|a, b| a * b),
        "div" => fold(|a, b| a / b),
        "idiv" => fold(|a, b| (a / b).trunc()),
        "mod" | "rem" => fold(|a, b| a % b),
        "min" => fold(f64::min),
        "max" => fold(f64::max),
        "neg" => numbers.as_ref().and_then(|all| all.first()).map_or_else(String::new, |n| written(-n)),
        "abs" => numbers.as_ref().and_then(|all| all.first()).map_or_else(String::new, |n| written(n.abs())),
        "eq" => equal().to_string(),
        "ne" => (!equal()).to_string(),
        "lt" => pair(|a, b| a < b),
        "gt" => pair(|a, b| a > b),
        "le" => pair(|a, b| a <= b),
        "ge" => pair(|a, b| a >= b),
        "round" => fold_one(numbers.as_deref(), f64::round),
        "floor" => fold_one(numbers.as_deref(), f64::floor),
        "ceil" => fold_one(numbers.as_deref(), f64::ceil),
        "htonl" | "ntohl" => swapped(words, |number| number.swap_bytes()),
        "htons" | "ntohs" => swapped(words, |number| u32::from((number as u16).swap_bytes())),
        "first" => words.first().cloned().unwrap_or_default(),
        "nand" => (!words.iter().all(|word| is_true(word))).to_string(),
        "nor" => (!words.iter().any(|word| is_true(word))).to_string(),
        "not" => words.first().is_none_or(|word| !is_true(word)).to_string(),
        "and" => words.iter().all(|word| is_true(word)).to_string(),
        "or" => words.iter().any(|word| is_true(word)).to_string(),
        "if" => {
            let holds = words.first().is_some_and(|word| is_true(word));
            words.get(if holds { 1 } else { 2 }).cloned().unwrap_or_default()
        }
        "in" => words
            .split_first()
            .is_some_and(|(word, all)| all.iter().any(|other| same(word, other)))
            .to_string(),
        _ => return None,
    })
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
            ("add", "a 1", ""),
            ("floor", "2.7", "2"),
            ("round", "2.5", "3"),
            ("htons", "6", "1536"),
            ("ntohl", "1", "16777216"),
            ("first", "a b", "a"),
            ("nor", "false 0", "true"),
        ];
        for (name, words, expected) in cases {
            assert_eq!(compute(name, &split(words)).as_deref(), Some(expected), "{name} {words}");
        }
        assert_eq!(compute("count", &[]), None);
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

//! Values of conditions and arguments in STF.

use num_bigint::BigUint;

/// Reason why a value is not understood.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is no value")]
pub struct ValueError(pub String);

/// A value as it is written.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum StfValue {
    /// A number.
    Number(BigUint),
    /// Digits with `*`: the value, the mask, and the bits that the digits stand for.
    Masked(BigUint, BigUint, u32),
    /// `VALUE/LENGTH`
    Prefix(BigUint, u32),
    /// `VALUE&&&MASK`
    Ternary(BigUint, BigUint),
    /// `LOW..HIGH`
    Range(BigUint, BigUint),
}

impl StfValue {
    /// Reads a value.
    ///
    /// # Errors
    /// [`ValueError`] with the text.
    pub fn parse(text: &str) -> Result<StfValue, ValueError> {
        let error = || ValueError(text.to_owned());
        if let Some((value, mask)) = text.split_once("&&&") {
            return Ok(StfValue::Ternary(number(value).ok_or_else(error)?, number(mask).ok_or_else(error)?));
        }
        if let Some((low, high)) = text.split_once("..").or_else(|| text.split_once("->")) {
            return Ok(StfValue::Range(number(low).ok_or_else(error)?, number(high).ok_or_else(error)?));
        }
        if let Some((value, len)) = text.split_once('/') {
            let len = len.parse().map_err(|_| error())?;
            return Ok(StfValue::Prefix(number(value).ok_or_else(error)?, len));
        }
        match text.contains('*') {
            true => masked(text).ok_or_else(error),
            false => number(text).map(StfValue::Number).ok_or_else(error),
        }
    }
}

/// Digits and their base.
fn digits(text: &str) -> (&str, u32) {
    for (prefix, radix) in [("0x", 16), ("0X", 16), ("0b", 2), ("0B", 2), ("0o", 8)] {
        if let Some(rest) = text.strip_prefix(prefix) {
            return (rest, radix);
        }
    }
    (text, 10)
}

fn number(text: &str) -> Option<BigUint> {
    let (digits, radix) = digits(text.trim());
    let plain: String = digits.chars().filter(|c| *c != '_').collect();
    BigUint::parse_bytes(plain.as_bytes(), radix)
}

fn masked(text: &str) -> Option<StfValue> {
    let (digits, radix) = digits(text);
    let width = match radix {
        16 => 4,
        8 => 3,
        2 => 1,
        _ => return (text == "*").then_some(StfValue::Masked(BigUint::ZERO, BigUint::ZERO, 0)),
    };
    let (mut value, mut mask, mut bits) = (BigUint::ZERO, BigUint::ZERO, 0);
    for digit in digits.chars().filter(|c| *c != '_') {
        value <<= width;
        mask <<= width;
        bits += width;
        if digit != '*' {
            value += digit.to_digit(radix)?;
            mask += (1u32 << width) - 1;
        }
    }
    Some(StfValue::Masked(value, mask, bits))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_read_in_every_form() {
        let n = |value: u32| BigUint::from(value);
        for (text, expected) in [
            ("17", StfValue::Number(n(17))),
            ("0x1f", StfValue::Number(n(31))),
            ("0b101", StfValue::Number(n(5))),
            ("0x2*", StfValue::Masked(n(0x20), n(0xf0), 8)),
            ("0b1*0", StfValue::Masked(n(4), n(5), 3)),
            ("*", StfValue::Masked(n(0), n(0), 0)),
            ("0x0a000000/8", StfValue::Prefix(n(0x0a00_0000), 8)),
            ("5&&&0xf", StfValue::Ternary(n(5), n(15))),
            ("1..9", StfValue::Range(n(1), n(9))),
        ] {
            assert_eq!(StfValue::parse(text), Ok(expected), "{text}");
        }
        assert!(StfValue::parse("0xzz").is_err() && StfValue::parse("").is_err());
    }
}

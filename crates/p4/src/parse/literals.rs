//! Numbers: `8w0xFF`, `4s0b1_0`, `0o17`, `1_000`.

use num_bigint::BigInt;

use crate::expression::NumberLiteral;

/// Widest value, in bits; p4c's targets allow 2,048 at most.
pub(crate) const WIDEST_VALUE: u32 = 65_536;

/// Longest number, in characters, which bounds the time of conversion.
const LONGEST_NUMBER: usize = 20_000;

/// Reads a number as it is written, with its width if it has one.
///
/// # Errors
/// The reason why it is no number.
pub fn number(text: &str) -> Result<NumberLiteral, &'static str> {
    if text.len() > LONGEST_NUMBER {
        return Err("this number is too long");
    }
    let digits = text.bytes().take_while(u8::is_ascii_digit).count();
    match text.as_bytes().get(digits) {
        Some(sign @ (b'w' | b's')) => {
            let width: u32 = text[..digits].parse().map_err(|_| "this width is too large")?;
            if width > WIDEST_VALUE {
                return Err("this width is too large");
            }
            let value = magnitude(&text[digits + 1..])?;
            Ok(NumberLiteral { width: Some((width, *sign == b's')), value })
        }
        _ => Ok(NumberLiteral { width: None, value: magnitude(text)? }),
    }
}

fn magnitude(text: &str) -> Result<BigInt, &'static str> {
    let prefix = text.as_bytes().get(..2).unwrap_or_default().to_ascii_lowercase();
    let (radix, digits) = match &prefix[..] {
        b"0x" => (16, &text[2..]),
        b"0o" => (8, &text[2..]),
        b"0b" => (2, &text[2..]),
        b"0d" => (10, &text[2..]),
        _ => (10, text),
    };
    let digits = digits.replace('_', "");
    let all_digits = digits.chars().all(|c| c.is_digit(radix));
    match BigInt::parse_bytes(digits.as_bytes(), radix) {
        Some(value) if all_digits => Ok(value),
        _ => Err("this is not a number"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bases_widths_and_signs_are_read() {
        for (text, width, value) in [
            ("10", None, 10),
            ("8w0xFF", Some((8, false)), 255),
            ("4s0b1_0", Some((4, true)), 2),
            ("0o17", None, 15),
            ("0d1_000", None, 1000),
            ("007", None, 7),
        ] {
            assert_eq!(number(text), Ok(NumberLiteral { width, value: value.into() }), "{text}");
        }
        for text in ["8w", "0x", "12x", "0b2", "99999999999w1", "8w0w1", "8w-1"] {
            assert!(number(text).is_err(), "{text}");
        }
    }
}

//! Values from text, by their type: the reverse of [`Btf::value_text`] for settings.

use thiserror::Error;

use crate::{Btf, Enum, Int, TypeId, TypeKind};
use millstream_isa::ByteOrder;

/// Why a text is no value of a type. The message does not name the variable.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum ValueError {
    /// The text is no integer.
    #[error("`{0}` is not an integer: write it in decimal, or in hexadecimal after 0x")]
    NoInteger(String),
    /// The integer does not fit.
    #[error("{text} does not fit: it must be from {low} to {high}")]
    OutOfRange {
        /// The text.
        text: String,
        /// The lowest value of the type.
        low: i128,
        /// The highest value of the type.
        high: i128,
    },
    /// The text is no truth value.
    #[error("`{0}` is neither true nor false")]
    NoTruthValue(String),
    /// The enumeration has no such name.
    #[error("there is no enumerator `{name}`: there are {known}")]
    NoEnumerator {
        /// The name.
        name: String,
        /// All names, separated by commas.
        known: String,
    },
    /// The text is not the bytes of a value.
    #[error(
        "its {size} bytes are written as {digits} hexadecimal digits, in the order of memory; this is `{text}`"
    )]
    NoBytes {
        /// The text.
        text: String,
        /// Bytes of the type.
        size: u64,
        /// Digits that are needed.
        digits: u64,
    },
    /// No value of this type can be written as text.
    #[error("a value of this type cannot be set")]
    NoForm,
}

impl Btf {
    /// The bytes of a value: integers in decimal or hexadecimal, truth values as `true`, `false`, 1 or 0,
    /// enumerations by name or number, all else as hexadecimal bytes in the order of memory.
    ///
    /// # Errors
    /// [`ValueError`] if the text is no value of the type.
    pub fn parse_value(&self, ty: TypeId, text: &str) -> Result<Vec<u8>, ValueError> {
        let size = self.size_of(ty).map_err(|_| ValueError::NoForm)?;
        match self.resolved(ty).map_err(|_| ValueError::NoForm)?.kind {
            TypeKind::Int(int) if int.boolean && int.size == 1 => match text {
                "true" | "1" => Ok(vec![1]),
                "false" | "0" => Ok(vec![0]),
                _ => Err(ValueError::NoTruthValue(text.to_owned())),
            },
            TypeKind::Int(Int { size, signed, .. }) => integer_bytes(text, size, signed, self.order()),
            TypeKind::Enum(e) => self.enumerator(&e, text),
            TypeKind::Array(_) | TypeKind::Struct(_) | TypeKind::Union(_) => hex_bytes(text, size),
            _ => Err(ValueError::NoForm),
        }
    }

    fn enumerator(&self, e: &Enum, text: &str) -> Result<Vec<u8>, ValueError> {
        if let Some(v) = e.values.iter().find(|v| self.str(v.name) == text) {
            let size = Some(e.size).filter(|size| *size <= 8).ok_or(ValueError::NoForm)?;
            return Ok(number_bytes(v.value, size, self.order()));
        }
        let numeric = text.starts_with(|c: char| c.is_ascii_digit() || c == '-');
        if numeric {
            return integer_bytes(text, e.size, e.signed, self.order());
        }
        let known: Vec<&str> = e.values.iter().map(|v| self.str(v.name)).collect();
        Err(ValueError::NoEnumerator { name: text.to_owned(), known: known.join(", ") })
    }
}

/// The bytes of a value of a variable whose type is not known: of 1, 2, 4 or 8 bytes, an unsigned integer;
/// of another size, hexadecimal bytes in the order of memory.
///
/// # Errors
/// [`ValueError`] if the text is no such value.
pub fn parse_untyped(size: u32, text: &str, order: ByteOrder) -> Result<Vec<u8>, ValueError> {
    match size {
        1 | 2 | 4 | 8 => integer_bytes(text, size, false, order),
        _ => hex_bytes(text, size.into()),
    }
}

/// The bytes of an integer of `size` bytes, up to 8.
fn integer_bytes(text: &str, size: u32, signed: bool, order: ByteOrder) -> Result<Vec<u8>, ValueError> {
    if size == 0 || size > 8 {
        return hex_bytes(text, size.into());
    }
    let (negative, digits) = text.strip_prefix('-').map_or((false, text), |rest| (true, rest));
    let hex = digits.strip_prefix("0x").or_else(|| digits.strip_prefix("0X"));
    let plain = hex.unwrap_or(digits).starts_with(|c: char| c.is_ascii_hexdigit());
    let magnitude = match hex {
        Some(hex) => i128::from_str_radix(hex, 16),
        None => digits.parse::<i128>(),
    };
    let magnitude = magnitude.ok().filter(|_| plain).ok_or_else(|| ValueError::NoInteger(text.to_owned()))?;
    let value = if negative { -magnitude } else { magnitude };
    let bits = 8 * size;
    let (low, high) = match signed {
        true => (-(1i128 << (bits - 1)), (1i128 << (bits - 1)) - 1),
        false => (0, (1i128 << bits) - 1),
    };
    // The bits of a negative number, in hexadecimal, are fine as well.
    let highest = if hex.is_some() && !negative { (1i128 << bits) - 1 } else { high };
    if value < low || value > highest {
        return Err(ValueError::OutOfRange { text: text.to_owned(), low, high });
    }
    Ok(number_bytes(value as u64, size, order))
}

/// The bytes of a number of at most 8 bytes.
fn number_bytes(value: u64, size: u32, order: ByteOrder) -> Vec<u8> {
    let mut bytes = vec![0; size as usize];
    order.put(value, &mut bytes);
    bytes
}

fn hex_bytes(text: &str, size: u64) -> Result<Vec<u8>, ValueError> {
    let wrong = || ValueError::NoBytes { text: text.to_owned(), size, digits: size.saturating_mul(2) };
    let digits = text.strip_prefix("0x").unwrap_or(text);
    let digits: Vec<u8> = digits.bytes().filter(|b| *b != b':').collect();
    if digits.len() as u64 != size.saturating_mul(2) {
        return Err(wrong());
    }
    let digit = |b: u8| char::from(b).to_digit(16).map(|d| d as u8);
    let byte = |pair: &[u8]| Some(digit(*pair.first()?)? << 4 | digit(*pair.get(1)?)?);
    digits.chunks(2).map(byte).collect::<Option<Vec<u8>>>().ok_or_else(wrong)
}

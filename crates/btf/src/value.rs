//! Values as people read them, and values from text: addresses as addresses, integers in decimal, structures by
//! their fields.
//!
//! BTF does not say which numbers are in network order; the names `__be16`, `__be32`, `__be64` say it. Arrays
//! of bytes are addresses where they have an address's size: 4 (IPv4), 6 (of links) and 16 (IPv6).

use std::fmt::Write as _;
use std::net::{Ipv4Addr, Ipv6Addr};

use thiserror::Error;

use crate::{Btf, Composite, Enum, Int, TypeId, TypeKind};
use millstream_isa::ByteOrder;

/// Values nested deeper, or beyond this number of values, are shown as `...`: types may be hostile.
const MAX_DEPTH: usize = 8;
const MAX_VISITS: usize = 256;

impl Btf {
    /// A value of a type. Never fails: a value with no better form is shown in hexadecimal.
    pub fn value_text(&self, ty: TypeId, bytes: &[u8]) -> String {
        let mut out = String::new();
        let mut visits = MAX_VISITS;
        self.value(ty, bytes, MAX_DEPTH, &mut visits, &mut out);
        out
    }

    fn value(&self, id: TypeId, bytes: &[u8], depth: usize, visits: &mut usize, out: &mut String) {
        if depth == 0 || *visits == 0 {
            return out.push_str("...");
        }
        *visits -= 1;
        let whole = self.size_of(id).is_ok_and(|size| size == bytes.len() as u64);
        let Some(ty) = self.resolved(id).ok().filter(|_| whole) else { return push_hex(bytes, out) };
        if let Some(text) = self.big_endian(id, bytes) {
            return out.push_str(&text);
        }
        match ty.kind {
            TypeKind::Int(int) if int.boolean => out.push_str(if bytes == [0] { "false" } else { "true" }),
            TypeKind::Int(int) => integer(self.order(), bytes, int.signed, out),
            TypeKind::Enum(e) => {
                let number = unsigned(self.order(), bytes);
                let named = e.values.iter().find(|v| mask(v.value, bytes.len()) == number.unwrap_or(0));
                match named {
                    Some(v) => out.push_str(self.str(v.name)),
                    None => integer(self.order(), bytes, e.signed, out),
                }
            }
            TypeKind::Array(array) => match address(bytes).filter(|_| self.size_of(array.element) == Ok(1)) {
                Some(text) => out.push_str(&text),
                None => self.elements(array.element, bytes, depth, visits, out),
            },
            TypeKind::Struct(fields) => self.fields(&fields, bytes, depth, visits, out),
            // The member that is meant is not known.
            _ => push_hex(bytes, out),
        }
    }

    fn fields(&self, all: &Composite, bytes: &[u8], depth: usize, visits: &mut usize, out: &mut String) {
        out.push('{');
        let mut first = true;
        for member in &all.members {
            let (start, size) =
                (member.bit_offset as usize / 8, self.size_of(member.ty).unwrap_or(0) as usize);
            let Some(part) = bytes.get(start..start.saturating_add(size)) else { continue };
            let name = self.str(member.name);
            // Bytes that only fill a gap.
            if name.contains("pad") && part.iter().all(|b| *b == 0) {
                continue;
            }
            out.push_str(if std::mem::take(&mut first) { "" } else { ", " });
            if !name.is_empty() {
                let _ = write!(out, "{name} ");
            }
            match member.bit_size {
                0 => self.value(member.ty, part, depth - 1, visits, out),
                bits => {
                    let whole = unsigned(self.order(), part).unwrap_or(0);
                    let first = member.bit_offset % 8;
                    // Bits are counted from the first byte's highest one there.
                    let unused = (8 * part.len() as u32).saturating_sub(first + u32::from(bits));
                    let number = whole >> if self.order() == ByteOrder::Big { unused } else { first };
                    let _ = write!(out, "{}", number & (u64::MAX >> (64 - u32::from(bits).clamp(1, 64))));
                }
            }
        }
        out.push('}');
    }

    fn elements(&self, element: TypeId, bytes: &[u8], depth: usize, visits: &mut usize, out: &mut String) {
        let size = self.size_of(element).unwrap_or(0) as usize;
        if size <= 1 {
            return push_hex(bytes, out);
        }
        out.push('[');
        for (n, part) in bytes.chunks(size).enumerate() {
            out.push_str(if n == 0 { "" } else { ", " });
            self.value(element, part, depth - 1, visits, out);
            if *visits == 0 {
                break;
            }
        }
        out.push(']');
    }

    /// A number of the network's byte order, by the name of its type.
    fn big_endian(&self, id: TypeId, bytes: &[u8]) -> Option<String> {
        let mut at = id;
        for _ in 0..MAX_DEPTH {
            match (self.name(at), bytes) {
                ("__be16", &[a, b]) => return Some(u16::from_be_bytes([a, b]).to_string()),
                ("__be32", &[a, b, c, d]) => return Some(Ipv4Addr::new(a, b, c, d).to_string()),
                ("__be64", bytes) => return Some(u64::from_be_bytes(bytes.try_into().ok()?).to_string()),
                _ => {}
            }
            at = match self.ty(at).ok()?.kind {
                TypeKind::Typedef(to)
                | TypeKind::Const(to)
                | TypeKind::Volatile(to)
                | TypeKind::TypeTag { ty: to, .. } => to,
                _ => return None,
            };
        }
        None
    }
}

/// An address of this many bytes.
fn address(bytes: &[u8]) -> Option<String> {
    match *bytes {
        [a, b, c, d] => Some(Ipv4Addr::new(a, b, c, d).to_string()),
        [_, _, _, _, _, _] => Some(bytes.iter().map(|b| format!("{b:02x}")).collect::<Vec<_>>().join(":")),
        _ => <[u8; 16]>::try_from(bytes).ok().map(|bytes| Ipv6Addr::from(bytes).to_string()),
    }
}

fn integer(order: ByteOrder, bytes: &[u8], signed: bool, out: &mut String) {
    let Some(number) = unsigned(order, bytes) else { return push_hex(bytes, out) };
    let unused = 64 - 8 * bytes.len() as u32;
    let _ = match signed {
        true => write!(out, "{}", (number << unused) as i64 >> unused),
        false => write!(out, "{number}"),
    };
}

/// Up to 8 bytes as a number.
fn unsigned(order: ByteOrder, bytes: &[u8]) -> Option<u64> {
    (1..=8).contains(&bytes.len()).then(|| order.number(bytes))
}

fn mask(value: u64, bytes: usize) -> u64 {
    value & (u64::MAX >> (64 - 8 * bytes.clamp(1, 8)))
}

fn push_hex(bytes: &[u8], out: &mut String) {
    out.push_str("0x");
    out.push_str(&hex::encode(bytes));
}

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
    match hex::decode(digits) {
        Ok(bytes) if bytes.len() as u64 == size => Ok(bytes),
        _ => Err(wrong()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Array, BtfBuilder, Enumerator, Member};

    /// Types of a key as programs have them.
    struct Types {
        btf: Btf,
        key: TypeId,
        action: TypeId,
        short: TypeId,
        words: TypeId,
    }

    fn types() -> Types {
        let mut b = BtfBuilder::new();
        let (byte, word) = (b.int("unsigned char", 1, false), b.int("unsigned int", 4, false));
        let (half, short) = (b.int("unsigned short", 2, false), b.int("short", 2, true));
        let be32 = b.add("__be32", TypeKind::Typedef(word));
        let be16 = b.add("__be16", TypeKind::Typedef(half));
        let mac = b.add("", TypeKind::Array(Array { element: byte, index: word, len: 6 }));
        let words = b.add("", TypeKind::Array(Array { element: word, index: word, len: 2 }));
        let (allow, deny) = (b.string("ALLOW"), b.string("DENY"));
        let values = vec![Enumerator { name: allow, value: 0 }, Enumerator { name: deny, value: 7 }];
        let action = b.add("action", TypeKind::Enum(Enum { size: 4, signed: false, wide: false, values }));
        let fields =
            [("source", be32, 0), ("port", be16, 32), ("pad", half, 48), ("mac", mac, 64), ("n", short, 112)];
        let members = fields.map(|(name, ty, bit_offset)| {
            let name = b.string(name);
            Member { name, ty, bit_offset, bit_size: 0 }
        });
        let composite = Composite { size: 16, bit_fields: false, members: members.to_vec() };
        let key = b.add("key", TypeKind::Struct(composite));
        let btf = Btf::parse(&b.write().unwrap()).unwrap();
        Types { btf, key, action, short, words }
    }

    #[test]
    fn structures_are_shown_by_their_fields() {
        let t = types();
        let bytes = [10, 0, 0, 1, 0x1f, 0x90, 0, 0, 2, 0, 0, 0, 0, 0xff, 0xfe, 0xff];
        let text = "{source 10.0.0.1, port 8080, mac 02:00:00:00:00:ff, n -2}";
        assert_eq!(t.btf.value_text(t.key, &bytes), text);
        // Bytes where a gap was meant to be are no gap.
        let mut other = bytes;
        other[6] = 1;
        assert!(t.btf.value_text(t.key, &other).contains("pad 1"));
    }

    #[test]
    fn numbers_names_and_what_is_neither() {
        let t = types();
        assert_eq!(t.btf.value_text(t.action, &[7, 0, 0, 0]), "DENY");
        assert_eq!(t.btf.value_text(t.action, &[9, 0, 0, 0]), "9");
        assert_eq!(t.btf.value_text(t.short, &[0, 0x80]), "-32768");
        assert_eq!(t.btf.value_text(t.words, &[1, 0, 0, 0, 2, 0, 0, 0]), "[1, 2]");
        // Of another size than its type says, or of no type.
        assert_eq!(t.btf.value_text(t.short, &[1, 2, 3]), "0x010203");
        assert_eq!(t.btf.value_text(TypeId(999), &[1]), "0x01");
        assert_eq!(t.btf.value_text(t.key, &[]), "0x");
    }

    #[test]
    fn a_type_that_holds_itself_comes_to_an_end() {
        let mut b = BtfBuilder::new();
        let word = b.int("unsigned int", 4, false);
        let next = b.next_id();
        b.add("ring", TypeKind::Array(Array { element: next, index: word, len: 1 }));
        let btf = Btf::parse(&b.write().unwrap()).unwrap();
        assert!(btf.value_text(next, &[1, 2, 3, 4]).starts_with("0x"));
    }
}

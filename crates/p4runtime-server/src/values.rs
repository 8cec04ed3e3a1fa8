//! Numbers, addresses and conditions as people write them: in commands, and in runtime files.

use std::net::{Ipv4Addr, Ipv6Addr};

use millstream_p4runtime::proto::config::v1::{MatchField, match_field::Match, match_field::MatchType};
use millstream_p4runtime::proto::v1::{FieldMatch, field_match};
use num_bigint::BigUint;

/// Reads a number, a MAC address, an IP address or a truth value, and checks its width.
pub(crate) fn parse_value(text: &str, bits: u32, name: &str) -> Result<BigUint, String> {
    let number = parse_number(text).ok_or_else(|| format!("`{text}` is no value of `{name}`"))?;
    match bits > 0 && number.bits() > u64::from(bits) {
        true => Err(format!("`{text}` has more than the {bits} bits of `{name}`")),
        false => Ok(number),
    }
}

fn parse_number(text: &str) -> Option<BigUint> {
    let digits = |radix: u32, text: &str| BigUint::parse_bytes(text.as_bytes(), radix);
    if let Some(rest) = text.strip_prefix("0x").or_else(|| text.strip_prefix("0X")) {
        return digits(16, rest);
    }
    if let Some(rest) = text.strip_prefix("0b") {
        return digits(2, rest);
    }
    if text == "true" || text == "false" {
        return Some(BigUint::from(u8::from(text == "true")));
    }
    if text.contains(':') {
        let mac = || {
            let bytes: Option<Vec<u8>> =
                text.split(':').map(|byte| u8::from_str_radix(byte, 16).ok()).collect();
            bytes.filter(|bytes| bytes.len() == 6).map(|bytes| BigUint::from_bytes_be(&bytes))
        };
        let address = || Some(BigUint::from_bytes_be(&text.parse::<Ipv6Addr>().ok()?.octets()));
        return mac().or_else(address);
    }
    if text.contains('.') {
        return Some(BigUint::from_bytes_be(&text.parse::<Ipv4Addr>().ok()?.octets()));
    }
    digits(10, text)
}

/// All ones in a width.
fn ones(bits: u32) -> BigUint {
    (BigUint::from(1u8) << bits) - 1u8
}

/// Condition on a field.
pub(crate) enum FieldCondition {
    /// One value.
    Value(BigUint),
    /// A number and how many bits of it.
    Prefix(BigUint, u32),
    /// A number and a mask.
    Masked(BigUint, BigUint),
    /// Bounds, inclusive.
    Range(BigUint, BigUint),
}

/// Kind of a field's match.
pub(crate) fn match_type(field: &MatchField) -> MatchType {
    match &field.r#match {
        Some(Match::MatchType(number)) => MatchType::try_from(*number).unwrap_or(MatchType::Unspecified),
        _ => MatchType::Unspecified,
    }
}

/// Reads a condition of a command: `V`, `V/LEN`, `V&&&MASK`, `LOW->HIGH`.
pub(crate) fn parse_condition(text: &str, field: &MatchField) -> Result<FieldCondition, String> {
    let (bits, name) = (field.bitwidth.unsigned_abs(), field.name.as_str());
    let value = |text: &str| parse_value(text, bits, name);
    if let Some((low, high)) = text.split_once("->") {
        return Ok(FieldCondition::Range(value(low)?, value(high)?));
    }
    if let Some((number, mask)) = text.split_once("&&&") {
        return Ok(FieldCondition::Masked(value(number)?, value(mask)?));
    }
    if let Some((number, length)) = text.split_once('/') {
        let length = length.parse().map_err(|_| format!("`{length}` is no length of a prefix"))?;
        return Ok(FieldCondition::Prefix(value(number)?, length));
    }
    value(text).map(FieldCondition::Value)
}

/// Writes a condition in the form that the field's match kind has; one that any value fulfils is left out.
pub(crate) fn field_match(
    field: &MatchField,
    condition: FieldCondition,
) -> Result<Option<FieldMatch>, String> {
    use field_match::{Exact, FieldMatchType, Lpm, Optional, Range, Ternary};
    let bits = field.bitwidth.unsigned_abs();
    let wrong = || format!("`{}` cannot be matched this way", field.name);
    let bytes = |number: &BigUint| number.to_bytes_be();
    let prefix_mask = |length: u32| ones(length.min(bits)) << (bits - length.min(bits));
    let kind = match (match_type(field), condition) {
        (MatchType::Exact, FieldCondition::Value(value)) => {
            FieldMatchType::Exact(Exact { value: bytes(&value) })
        }
        (MatchType::Lpm, FieldCondition::Value(value)) => {
            FieldMatchType::Lpm(Lpm { value: bytes(&value), prefix_len: bits as i32 })
        }
        (MatchType::Lpm | MatchType::Ternary, FieldCondition::Prefix(_, 0)) => return Ok(None),
        (MatchType::Lpm, FieldCondition::Prefix(value, length)) if length <= bits => {
            let value = bytes(&(value & prefix_mask(length)));
            FieldMatchType::Lpm(Lpm { value, prefix_len: length as i32 })
        }
        (MatchType::Ternary | MatchType::Optional, FieldCondition::Masked(_, mask))
            if mask == BigUint::ZERO =>
        {
            return Ok(None);
        }
        (MatchType::Ternary, FieldCondition::Masked(value, mask)) => {
            FieldMatchType::Ternary(Ternary { value: bytes(&(value & &mask)), mask: bytes(&mask) })
        }
        (MatchType::Ternary, FieldCondition::Prefix(value, length)) if length <= bits => {
            let mask = prefix_mask(length);
            FieldMatchType::Ternary(Ternary { value: bytes(&(value & &mask)), mask: bytes(&mask) })
        }
        (MatchType::Ternary, FieldCondition::Value(value)) => {
            FieldMatchType::Ternary(Ternary { value: bytes(&value), mask: bytes(&ones(bits)) })
        }
        (MatchType::Optional, FieldCondition::Value(value)) => {
            FieldMatchType::Optional(Optional { value: bytes(&value) })
        }
        (MatchType::Optional, FieldCondition::Masked(value, mask)) if mask == ones(bits) => {
            FieldMatchType::Optional(Optional { value: bytes(&value) })
        }
        (MatchType::Range, FieldCondition::Value(value)) => {
            FieldMatchType::Range(Range { low: bytes(&value), high: bytes(&value) })
        }
        (MatchType::Range, FieldCondition::Range(low, high)) => {
            if low == BigUint::ZERO && high == ones(bits) {
                return Ok(None);
            }
            FieldMatchType::Range(Range { low: bytes(&low), high: bytes(&high) })
        }
        _ => return Err(wrong()),
    };
    Ok(Some(FieldMatch { field_id: field.id, field_match_type: Some(kind) }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_numbers_and_addresses() {
        for (text, value) in [
            ("10", 10u64),
            ("0x1f", 0x1f),
            ("0b101", 5),
            ("true", 1),
            ("10.0.0.1", 0x0a00_0001),
            ("08:00:00:00:01:11", 0x0800_0000_0111),
            ("::2", 2),
        ] {
            assert_eq!(parse_value(text, 128, "x"), Ok(BigUint::from(value)), "{text}");
        }
        for wrong in ["", "ten", "-1", "1.2.3", "0xg", "1:2"] {
            assert!(parse_value(wrong, 128, "x").is_err(), "{wrong}");
        }
        assert!(parse_value("256", 8, "x").is_err());
    }
}

//! Keys of entries. Source: P4Runtime specification 1.4, section 9.1.1.

use std::cmp::Ordering;

use crate::entities::bytestrings::{
    canonical_bytes, compare_numbers, has_low_zeros, is_all_ones, is_within_mask,
};
use crate::entities::error::EntityError;
use crate::entities::pipeline::{FieldKind, FieldList, FieldShape};
use crate::proto::v1::{FieldMatch, field_match};

/// Value of an element of a key, in canonical form.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum MatchValue {
    /// Any value: the field is left out.
    Any,
    /// One value.
    Exact(Vec<u8>),
    /// Values that begin with the first bits of a number: the number, and how many bits.
    Prefix(Vec<u8>, u32),
    /// Values that agree with a number in the bits of a mask: the number, and the mask.
    Masked(Vec<u8>, Vec<u8>),
    /// Values from a lowest to a highest.
    Range(Vec<u8>, Vec<u8>),
    /// One value of a field that may be left out.
    Optional(Vec<u8>),
}

/// Identity of an entry within its table: values of all fields, in the order of P4Info, and the priority.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct EntryKey {
    /// Values of the fields.
    pub values: Vec<MatchValue>,
    /// Priority; the highest wins.
    pub priority: i32,
}

/// Reads a value of a field: text stays as it is.
pub(crate) fn field_value(field: &FieldShape, bytes: &[u8]) -> Result<Vec<u8>, EntityError> {
    let Some(width) = field.width else { return Ok(bytes.to_vec()) };
    canonical_bytes(bytes, width).map_err(|error| EntityError {
        message: format!("`{}`: {}", field.name, error.message),
        kind: error.kind,
    })
}

/// Reads the fields of a key.
///
/// # Errors
/// If a field is unknown, given twice, of another match kind, not canonical, or missing though it is exact.
pub(crate) fn read_values(
    fields: &FieldList,
    matches: &[FieldMatch],
) -> Result<Vec<MatchValue>, EntityError> {
    let mut values = vec![MatchValue::Any; fields.len()];
    for given in matches {
        let Some(at) = fields.place(given.field_id) else {
            return Err(EntityError::invalid(format!("no field of the key has the id {}", given.field_id)));
        };
        let value = read_value(&fields[at], given)?;
        if std::mem::replace(&mut values[at], value) != MatchValue::Any {
            return Err(EntityError::invalid(format!("the field `{}` is given twice", fields[at].name)));
        }
    }
    for (field, value) in fields.iter().zip(&values) {
        if field.kind == FieldKind::Exact && *value == MatchValue::Any {
            return Err(EntityError::invalid(format!("the field `{}` is missing", field.name)));
        }
    }
    Ok(values)
}

fn read_value(field: &FieldShape, given: &FieldMatch) -> Result<MatchValue, EntityError> {
    use field_match::FieldMatchType::*;
    let wrong = |reason: &str| Err(EntityError::invalid(format!("the field `{}` {reason}", field.name)));
    let Some(kind) = &given.field_match_type else { return wrong("has no value") };
    match (field.kind, kind) {
        (FieldKind::Exact, Exact(exact)) => Ok(MatchValue::Exact(field_value(field, &exact.value)?)),
        (FieldKind::Optional, Optional(one)) => Ok(MatchValue::Optional(field_value(field, &one.value)?)),
        (FieldKind::Lpm, Lpm(lpm)) => {
            let value = field_value(field, &lpm.value)?;
            let Some(width) = field.width else { return wrong("is text, which has no prefixes") };
            let length = u32::try_from(lpm.prefix_len).ok().filter(|length| (1..=width).contains(length));
            let Some(length) = length else { return wrong("has a prefix that is empty or too long") };
            if !has_low_zeros(&value, width - length) {
                return wrong("has bits behind its prefix");
            }
            Ok(MatchValue::Prefix(value, length))
        }
        (FieldKind::Ternary, Ternary(ternary)) => {
            let value = field_value(field, &ternary.value)?;
            if field.width.is_none() {
                return wrong("is text, which has no masks");
            }
            let mask = field_value(field, &ternary.mask)?;
            if mask == [0] {
                return wrong("has a mask of zero; leave the field out");
            }
            if !is_within_mask(&value, &mask) {
                return wrong("has bits outside its mask");
            }
            Ok(MatchValue::Masked(value, mask))
        }
        (FieldKind::Range, Range(range)) => {
            let (low, high) = (field_value(field, &range.low)?, field_value(field, &range.high)?);
            let Some(width) = field.width else { return wrong("is text, which has no ranges") };
            if compare_numbers(&low, &high) == Ordering::Greater {
                return wrong("has a range that ends before it begins");
            }
            if low == [0] && is_all_ones(&high, width) {
                return wrong("has the range of all values; leave the field out");
            }
            Ok(MatchValue::Range(low, high))
        }
        (FieldKind::Other, _) => {
            let message = format!("the field `{}` has a match kind that is not supported", field.name);
            Err(EntityError::unimplemented(message))
        }
        _ => wrong("has another match kind"),
    }
}

/// Writes the fields of a key; those that match any value are left out.
pub(crate) fn write_values(fields: &[FieldShape], values: &[MatchValue]) -> Vec<FieldMatch> {
    use field_match::FieldMatchType;
    let write = |(field, value): (&FieldShape, &MatchValue)| {
        let value = match value.clone() {
            MatchValue::Any => return None,
            MatchValue::Exact(value) => FieldMatchType::Exact(field_match::Exact { value }),
            MatchValue::Prefix(value, length) => {
                FieldMatchType::Lpm(field_match::Lpm { value, prefix_len: length as i32 })
            }
            MatchValue::Masked(value, mask) => FieldMatchType::Ternary(field_match::Ternary { value, mask }),
            MatchValue::Range(low, high) => FieldMatchType::Range(field_match::Range { low, high }),
            MatchValue::Optional(value) => FieldMatchType::Optional(field_match::Optional { value }),
        };
        Some(FieldMatch { field_id: field.id, field_match_type: Some(value) })
    };
    fields.iter().zip(values).filter_map(write).collect()
}

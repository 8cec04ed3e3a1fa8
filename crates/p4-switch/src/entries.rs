//! Entries of tables as keys and values of maps.

use millstream_interp::maps::{ByteRange, PriorityEntry};
use millstream_p4_lower::{
    ActionChoice, ENTRY_GROUP, EntryMatch, EntrySpec, KeyMatch, KeySpec, ObjectKind, ObjectSpec, TableSpec,
    TableStorage,
};
use num_bigint::BigUint;

/// Reason why an entry is not accepted.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EntryError {
    /// The number of conditions is not that of the key's elements.
    #[error("the key of {table} has {wanted} elements, not {given}")]
    KeyCount {
        /// Name of the table.
        table: String,
        /// Elements of the key.
        wanted: usize,
        /// Conditions given.
        given: usize,
    },
    /// A condition does not suit the element's match kind.
    #[error("the key `{key}` cannot match this way")]
    MatchKind {
        /// Name of the element.
        key: String,
    },
    /// A value has more bits than the element or parameter.
    #[error("the value of `{name}` has more than {bits} bits")]
    Width {
        /// Name of the element or parameter.
        name: String,
        /// Its width.
        bits: u32,
    },
    /// The action is not one of the table's, or not allowed here.
    #[error("action {action} cannot be used here in {table}")]
    Action {
        /// Name of the table.
        table: String,
        /// Number of the action.
        action: usize,
    },
    /// The table has no groups, or none of this number.
    #[error("{table} has no such group")]
    NoSelector {
        /// Name of the table.
        table: String,
    },
    /// The object is no value set, or a member has another number of values.
    #[error("{object} is no value set of such members")]
    ValueSet {
        /// Name of the object.
        object: String,
    },
    /// The number of arguments is not that of the action's parameters.
    #[error("{action} takes {wanted} arguments, not {given}")]
    ArgumentCount {
        /// Name of the action.
        action: String,
        /// Parameters.
        wanted: usize,
        /// Arguments given.
        given: usize,
    },
}

impl EntryError {
    /// The object is no value set.
    pub(crate) fn no_value_set(object: &ObjectSpec) -> EntryError {
        EntryError::ValueSet { object: object.name.clone() }
    }
}

/// Key of a member of a value set: its scalars, each at its alignment.
///
/// # Errors
/// [`EntryError`] if the object is no value set, or the member does not fit it.
pub fn value_set_key(object: &ObjectSpec, member: &[BigUint]) -> Result<Vec<u8>, EntryError> {
    let ObjectKind::ValueSet { bits } = &object.kind else { return Err(EntryError::no_value_set(object)) };
    if bits.len() != member.len() {
        return Err(EntryError::no_value_set(object));
    }
    let mut bytes = Vec::new();
    for (bits, value) in bits.iter().zip(member) {
        check_width(value, &object.name, *bits)?;
        let size = match bits {
            0..=8 => 1,
            9..=16 => 2,
            17..=32 => 4,
            _ => 8 * bits.div_ceil(64) as usize,
        };
        bytes.resize(bytes.len().next_multiple_of(size.min(8)), 0);
        let from = bytes.len();
        bytes.resize(from + size, 0);
        put_host(&mut bytes[from..], value);
    }
    Ok(bytes)
}

/// Value of an entry whose action a group chooses.
///
/// # Errors
/// [`EntryError::NoSelector`] if the table has no selector, or the group is 0.
pub fn group_value(table: &TableSpec, group: u32) -> Result<Vec<u8>, EntryError> {
    if table.selector.is_none() || group == 0 {
        return Err(EntryError::NoSelector { table: table.name.clone() });
    }
    let mut bytes = vec![0; table.value_size as usize];
    let at = ENTRY_GROUP as usize;
    bytes[at..at + 4].copy_from_slice(&group.to_le_bytes());
    Ok(bytes)
}

/// All ones in a width.
fn ones(bits: u32) -> BigUint {
    (BigUint::from(1u8) << bits) - 1u8
}

fn check_width(value: &BigUint, name: &str, bits: u32) -> Result<(), EntryError> {
    match value.bits() > u64::from(bits) {
        true => Err(EntryError::Width { name: name.to_owned(), bits }),
        false => Ok(()),
    }
}

/// Writes a number in network order at the end of `bytes`.
fn put_network(bytes: &mut [u8], value: &BigUint) {
    let digits = value.to_bytes_be();
    let len = digits.len().min(bytes.len());
    let at = bytes.len() - len;
    bytes[at..].copy_from_slice(&digits[digits.len() - len..]);
}

/// Writes a number in host order at the start of `bytes`.
fn put_host(bytes: &mut [u8], value: &BigUint) {
    for (to, from) in bytes.iter_mut().zip(value.to_bytes_le()) {
        *to = from;
    }
}

/// Key of an entry in the table's map.
///
/// # Errors
/// [`EntryError`] if a condition does not suit the key.
pub fn entry_key(table: &TableSpec, entry: &EntrySpec) -> Result<Vec<u8>, EntryError> {
    if entry.matches.len() != table.keys.len() {
        let (wanted, given) = (table.keys.len(), entry.matches.len());
        return Err(EntryError::KeyCount { table: table.name.clone(), wanted, given });
    }
    match table.storage {
        TableStorage::Hash => hash_key(table, entry),
        TableStorage::Prefix => prefix_key(table, entry),
        TableStorage::Priority => priority_key(table, entry),
    }
}

fn part<'b>(bytes: &'b mut [u8], key: &KeySpec) -> &'b mut [u8] {
    let from = key.offset as usize;
    &mut bytes[from..from + key.size as usize]
}

fn hash_key(table: &TableSpec, entry: &EntrySpec) -> Result<Vec<u8>, EntryError> {
    let mut bytes = vec![0; table.key_size as usize];
    for (key, condition) in table.keys.iter().zip(&entry.matches) {
        put_host(part(&mut bytes, key), &exact(key, condition)?);
    }
    Ok(bytes)
}

/// Value of a condition that has to be one value.
fn exact(key: &KeySpec, condition: &EntryMatch) -> Result<BigUint, EntryError> {
    let value = match condition {
        EntryMatch::Exact(value) => value,
        EntryMatch::Ternary(value, mask) if *mask == ones(key.bits) => value,
        EntryMatch::Prefix(value, len) if *len == key.bits => value,
        EntryMatch::Range(low, high) if low == high => low,
        _ => return Err(EntryError::MatchKind { key: key.name.clone() }),
    };
    check_width(value, &key.name, key.bits)?;
    Ok(value.clone())
}

/// Value and length of a condition that has to be a prefix.
fn prefix(key: &KeySpec, condition: &EntryMatch) -> Result<(BigUint, u32), EntryError> {
    let (value, len) = match condition {
        EntryMatch::Exact(value) => (value.clone(), key.bits),
        EntryMatch::Any => (BigUint::ZERO, 0),
        EntryMatch::Prefix(value, len) if *len <= key.bits => (value.clone(), *len),
        EntryMatch::Ternary(value, mask) => {
            let len = mask.count_ones() as u32;
            if *mask != prefix_mask(key.bits, len) {
                return Err(EntryError::MatchKind { key: key.name.clone() });
            }
            (value.clone(), len)
        }
        _ => return Err(EntryError::MatchKind { key: key.name.clone() }),
    };
    check_width(&value, &key.name, key.bits)?;
    Ok((value & prefix_mask(key.bits, len), len))
}

fn prefix_mask(bits: u32, len: u32) -> BigUint {
    ones(len.min(bits)) << (bits - len.min(bits))
}

fn prefix_key(table: &TableSpec, entry: &EntrySpec) -> Result<Vec<u8>, EntryError> {
    let mut bytes = vec![0; table.key_size as usize];
    let mut length = 0;
    for (key, condition) in table.keys.iter().zip(&entry.matches) {
        match key.kind {
            KeyMatch::Prefix => {
                let (value, len) = prefix(key, condition)?;
                length += len;
                put_network(part(&mut bytes, key), &(value << (8 * key.size - key.bits)));
            }
            _ => {
                length += 8 * key.size;
                put_network(part(&mut bytes, key), &exact(key, condition)?);
            }
        }
    }
    bytes[..4].copy_from_slice(&length.to_le_bytes());
    Ok(bytes)
}

fn priority_key(table: &TableSpec, entry: &EntrySpec) -> Result<Vec<u8>, EntryError> {
    let size = table.key_size as usize;
    let (mut value, mut mask) = (vec![0; size], vec![0; size]);
    let mut ranges = Vec::new();
    for (key, condition) in table.keys.iter().zip(&entry.matches) {
        let whole = ones(key.bits);
        let (wanted, bits) = match (key.kind, condition) {
            (KeyMatch::Ternary, EntryMatch::Ternary(value, mask)) => (value.clone(), mask.clone()),
            (KeyMatch::Prefix, _) => {
                let (value, len) = prefix(key, condition)?;
                (value, prefix_mask(key.bits, len))
            }
            (_, EntryMatch::Any) => continue,
            (KeyMatch::Exact, _) => (exact(key, condition)?, whole),
            (KeyMatch::Range, EntryMatch::Range(low, high)) => {
                check_width(low, &key.name, key.bits)?;
                check_width(high, &key.name, key.bits)?;
                let network = |number: &BigUint| {
                    let mut bytes = vec![0; key.size as usize];
                    put_network(&mut bytes, number);
                    bytes
                };
                let (low, high) = (network(low), network(high));
                ranges.push(ByteRange { offset: key.offset as u16, low, high });
                continue;
            }
            (_, EntryMatch::Prefix(value, len)) if key.kind == KeyMatch::Ternary => {
                (value.clone(), prefix_mask(key.bits, *len))
            }
            _ => (exact(key, condition)?, whole),
        };
        check_width(&wanted, &key.name, key.bits)?;
        check_width(&bits, &key.name, key.bits)?;
        put_network(part(&mut value, key), &(wanted & &bits));
        put_network(part(&mut mask, key), &bits);
    }
    Ok(PriorityEntry { priority: entry.priority, value, mask, ranges }.encode())
}

/// Value of an entry in the table's map: the action and its arguments.
///
/// # Errors
/// [`EntryError`] if the action is not the table's, or the arguments do not suit it.
pub fn entry_value(
    table: &TableSpec,
    choice: &ActionChoice,
    is_default: bool,
) -> Result<Vec<u8>, EntryError> {
    let mut bytes = vec![0; table.value_size as usize];
    bytes[..4].copy_from_slice(&(choice.action as u32).to_le_bytes());
    let Some(action) = table.actions.get(choice.action) else {
        // A table without any action that fits runs none by default.
        let is_none = is_default && choice.action == table.actions.len();
        let error = EntryError::Action { table: table.name.clone(), action: choice.action };
        return if is_none { Ok(bytes) } else { Err(error) };
    };
    if (action.is_default_only && !is_default) || (action.is_table_only && is_default) {
        return Err(EntryError::Action { table: table.name.clone(), action: choice.action });
    }
    let (wanted, given) = (action.parameters.len(), choice.arguments.len());
    if wanted != given {
        return Err(EntryError::ArgumentCount { action: action.name.clone(), wanted, given });
    }
    for (parameter, argument) in action.parameters.iter().zip(&choice.arguments) {
        check_width(argument, &parameter.name, parameter.bits)?;
        put_host(&mut bytes[parameter.offset as usize..], argument);
    }
    Ok(bytes)
}

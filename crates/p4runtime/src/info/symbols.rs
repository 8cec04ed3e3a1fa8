//! Ids and aliases of objects. Source: P4Runtime specification 1.4, sections 6.3 and 6.1.2; p4c for the hash.

use std::collections::{BTreeMap, BTreeSet};

use rustc_hash::{FxHashMap, FxHashSet};

use crate::info::InfoError;

/// Kinds of objects; the number is the first byte of their ids.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
#[repr(u8)]
pub(crate) enum ObjectKind {
    Action = 0x01,
    Table = 0x02,
    ValueSet = 0x03,
    ControllerHeader = 0x04,
    ActionProfile = 0x11,
    Counter = 0x12,
    DirectCounter = 0x13,
    Meter = 0x14,
    DirectMeter = 0x15,
    Register = 0x16,
    Digest = 0x17,
}

/// Bits of an id below the first byte.
const NUMBER_BITS: u32 = 24;

/// Names, ids and aliases of all objects.
#[derive(Debug, Default)]
pub(crate) struct SymbolTable {
    ids: BTreeMap<ObjectKind, BTreeMap<String, Option<u32>>>,
    names: BTreeSet<String>,
    /// Number of names that end in a series of components.
    endings: FxHashMap<String, u32>,
}

impl SymbolTable {
    /// Adds an object; the id is that of its annotation.
    ///
    /// # Errors
    /// If the id has the first byte of another kind, or another object has it.
    pub(crate) fn add(&mut self, kind: ObjectKind, name: &str, id: Option<u32>) -> Result<(), InfoError> {
        let id = id.map(|id| full_id(kind, name, id)).transpose()?;
        let names = self.ids.entry(kind).or_default();
        if names.contains_key(name) {
            return Ok(());
        }
        if let Some(id) = id.filter(|id| names.values().any(|other| *other == Some(*id))) {
            return Err(InfoError::DuplicateId { name: name.into(), id });
        }
        names.insert(name.into(), id);
        if self.names.insert(name.into()) {
            for ending in endings(name) {
                *self.endings.entry(ending.into()).or_default() += 1;
            }
        }
        Ok(())
    }

    /// Gives ids to objects without one, in the order of their names; the next free one follows a collision.
    ///
    /// # Errors
    /// If a kind has no free id.
    pub(crate) fn assign(&mut self) -> Result<(), InfoError> {
        for (kind, names) in &mut self.ids {
            let mut taken: FxHashSet<u32> = names.values().flatten().copied().collect();
            for (name, id) in names.iter_mut().filter(|(_, id)| id.is_none()) {
                let free = free_id(*kind, name, &taken).ok_or(InfoError::NoFreeId { name: name.clone() })?;
                taken.insert(free);
                *id = Some(free);
            }
        }
        Ok(())
    }

    /// Returns the id of an object that was added; zero is no id.
    pub(crate) fn id(&self, kind: ObjectKind, name: &str) -> u32 {
        self.ids.get(&kind).and_then(|names| names.get(name)).copied().flatten().unwrap_or(0)
    }

    /// Returns the shortest series of last components that only this name has.
    pub(crate) fn alias(&self, name: &str) -> String {
        let is_unique = |ending: &&str| self.endings.get(*ending) == Some(&1);
        endings(name).find(is_unique).unwrap_or(name).into()
    }
}

/// Ends of a name that begin with a component, shortest first.
fn endings(name: &str) -> impl Iterator<Item = &str> {
    let dots = name.rmatch_indices('.').map(|(at, _)| &name[at + 1..]);
    dots.chain(std::iter::once(name))
}

fn prefix(kind: ObjectKind) -> u32 {
    (kind as u32) << NUMBER_BITS
}

fn full_id(kind: ObjectKind, name: &str, id: u32) -> Result<u32, InfoError> {
    let given = id >> NUMBER_BITS << NUMBER_BITS;
    if given != 0 && given != prefix(kind) {
        return Err(InfoError::WrongIdPrefix { name: name.into(), id });
    }
    Ok(id | prefix(kind))
}

fn free_id(kind: ObjectKind, name: &str, taken: &FxHashSet<u32>) -> Option<u32> {
    let first = name_hash(name);
    (0..1 << NUMBER_BITS)
        .map(|step| prefix(kind) | (first.wrapping_add(step) & ((1 << NUMBER_BITS) - 1)))
        .find(|id| !taken.contains(id))
}

/// Jenkins' one-at-a-time hash.
fn name_hash(name: &str) -> u32 {
    let mut hash: u32 = 0;
    for byte in name.bytes() {
        hash = hash.wrapping_add(u32::from(byte));
        hash = hash.wrapping_add(hash << 10);
        hash ^= hash >> 6;
    }
    hash = hash.wrapping_add(hash << 3);
    hash ^= hash >> 11;
    hash.wrapping_add(hash << 15)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_hash_is_that_of_its_author() {
        // Known values of the one-at-a-time hash.
        assert_eq!(name_hash("a"), 0xca2e_9442);
        assert_eq!(name_hash("The quick brown fox jumps over the lazy dog"), 0x519e_91f5);
    }

    #[test]
    fn ids_have_the_first_byte_of_their_kind() {
        let mut symbols = SymbolTable::default();
        symbols.add(ObjectKind::Action, "NoAction", None).unwrap();
        symbols.add(ObjectKind::Table, "ingress.t", Some(5)).unwrap();
        symbols.assign().unwrap();
        assert_eq!(symbols.id(ObjectKind::Action, "NoAction"), 21_257_015);
        assert_eq!(symbols.id(ObjectKind::Table, "ingress.t"), 0x0200_0005);
    }

    #[test]
    fn a_collision_takes_the_next_id() {
        let mut symbols = SymbolTable::default();
        let first = name_hash("x") & 0xff_ffff;
        symbols.add(ObjectKind::Meter, "given", Some(first)).unwrap();
        symbols.add(ObjectKind::Meter, "x", None).unwrap();
        symbols.assign().unwrap();
        assert_eq!(symbols.id(ObjectKind::Meter, "x"), 0x1400_0000 | (first + 1));
    }

    #[test]
    fn ids_of_another_kind_and_of_two_objects_are_refused() {
        let mut symbols = SymbolTable::default();
        assert!(symbols.add(ObjectKind::Table, "t", Some(0x0100_0001)).is_err());
        symbols.add(ObjectKind::Table, "u", Some(1)).unwrap();
        assert!(symbols.add(ObjectKind::Table, "v", Some(0x0200_0001)).is_err());
    }

    #[test]
    fn an_alias_is_the_shortest_end_of_its_own() {
        let mut symbols = SymbolTable::default();
        for name in ["a.b.c", "b.c", "a.d.c", "e"] {
            symbols.add(ObjectKind::Action, name, None).unwrap();
        }
        let aliases = ["a.b.c", "b.c", "a.d.c", "e"].map(|name| symbols.alias(name));
        assert_eq!(aliases, ["a.b.c", "b.c", "d.c", "e"]);
    }
}

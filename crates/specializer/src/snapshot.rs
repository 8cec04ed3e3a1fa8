//! Contents of maps as a plan reads them: the input of the policy.
//!
//! Invariant: everything that a reader returns for code is recorded by it, so that it can be compared with
//! the maps later.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Debug;

use millstream_ir::usage::AccessRange;
use millstream_ir::{KeyPiece, Map};

use crate::transform::{MapContents, ShadowTable};

/// Keys and values of a whole map.
pub type MapEntries = BTreeMap<Vec<u8>, Vec<u8>>;
/// Whole maps.
pub type EntriesByMap = BTreeMap<Map, MapEntries>;

/// A word of the keys of a map that has few values over all entries.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct FewValues {
    /// The word.
    pub piece: KeyPiece,
    /// Its values.
    pub values: BTreeSet<u64>,
}

impl FewValues {
    /// Returns true if a key has one of the values.
    pub fn has(&self, key: &[u8]) -> bool {
        word(key, self.piece).is_some_and(|word| self.values.contains(&word))
    }
}

/// Reads a word of a key, as code loads it; `None` if the key is shorter.
pub fn word(key: &[u8], piece: KeyPiece) -> Option<u64> {
    let start = usize::from(piece.offset);
    let part = key.get(start..start + piece.size.bytes() as usize)?;
    let mut word = [0; 8];
    word[..part.len()].copy_from_slice(part);
    Some(u64::from_le_bytes(word))
}

/// A snapshot of maps, which records what was read from it. Maps are the module's.
pub trait SnapshotReader: MapContents + Debug {
    /// Returns true if the contents of the map may be read.
    fn knows(&self, map: Map) -> bool;

    /// Returns true if the keys of the map may be read.
    fn knows_keys(&self, map: Map) -> bool;

    /// Returns true if nothing of a map may be in code, because it changes too often.
    fn is_churning(&self, map: Map) -> bool;

    /// The map of the object that has this id, and may be inside a map of maps.
    fn own(&self, outer: Map, id: u32) -> Option<Map>;

    /// Returns true if the contents of the inner maps of a map of maps may be read.
    fn knows_inside(&self, outer: Map, template: Map) -> bool;

    /// Reads all entries of an inner map, as one of a map of maps whose inner maps have a template; `maps`
    /// are these two, `named` is the inner map's id and its name in code. `None` if it is not to be known,
    /// has room for more than so many entries or bytes of them, or cannot be read.
    fn table_inside(&self, maps: (Map, Map), named: (u32, Map), most: (u32, u64)) -> Option<MapEntries>;

    /// Reads the value of a key that code compares before it searches the map's twin.
    fn before_twin(&self, map: Map, key: &[u8]) -> Option<Option<Vec<u8>>>;

    /// Counts the current entries of a map; `None` if it cannot be read. Nothing may depend on this number.
    fn count(&self, map: Map) -> Option<usize>;

    /// Reads all entries of a map, for code; `None` if it cannot be read, or is not to be.
    fn table(&self, map: Map) -> Option<MapEntries>;

    /// Makes the twin of a map of whose values programs read these bytes; `None` if it cannot be read, or has
    /// contents that no twin can have.
    fn twin(&self, map: Map, read: &[AccessRange]) -> Option<ShadowTable>;

    /// Finds the bytes that are equal in all values of a map, among those that programs read and do not
    /// write, as runs. `None` if it cannot be read, or is empty.
    fn equal(&self, map: Map, read: &[AccessRange]) -> Option<Vec<(u32, Vec<u8>)>>;

    /// Finds the words of a hash map's keys, among these pieces, that have few values. Nothing depends on
    /// them before somebody [relies](SnapshotReader::rely) on them.
    fn few(&self, map: Map, pieces: &[KeyPiece]) -> Option<Vec<FewValues>>;

    /// Finds the value of most entries of a small array, and the indices that have others, if they are few.
    /// Nothing depends on it.
    fn common(&self, map: Map) -> Option<(FewValues, Vec<u8>)>;

    /// Makes code depend on these values from now on.
    fn rely(&self, map: Map, few: FewValues);
}

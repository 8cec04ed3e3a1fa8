//! Hash tables of elements.

use millstream_ir::{Map, Size};

/// A hash table, with the pieces that its keys and values consist of, one behind the other.
#[derive(Clone, Copy, Debug)]
pub struct ElementHashTable {
    /// The map.
    pub map: Map,
    /// Pieces of a key.
    pub key: &'static [Size],
    /// Pieces of a value.
    pub value: &'static [Size],
}

//! What a loader writes into maps.

/// One entry of one map. Fields are in the machine's byte order and layout, as bpf(2) takes them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MapEntry {
    /// The map's name in the object.
    pub map: &'static str,
    /// The key, exactly as long as the map's keys.
    pub key: Vec<u8>,
    /// The value, exactly as long as the map's values (for per-CPU maps: as one CPU's value).
    pub value: Vec<u8>,
}

impl MapEntry {
    /// An entry of the map `map`.
    pub fn new(map: &'static str, key: impl Into<Vec<u8>>, value: impl Into<Vec<u8>>) -> Self {
        Self { map, key: key.into(), value: value.into() }
    }
}

//! Lookups of a program, the way in which each is answered, and the keys: for people who watch.

use serde::{Deserialize, Serialize};

/// A program's lookups, and the cost of the active variant.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct SessionDetails {
    /// In the order of the program, then those of the programs that its tail calls reach.
    pub lookups: Vec<LookupDetails>,
    /// Filled slots of its program arrays.
    #[serde(default)]
    pub chain: Vec<SlotDetails>,
    /// Slots of the original.
    pub original_slots: usize,
    /// Slots of the variant; missing if none is active.
    pub variant_slots: Option<usize>,
    /// Bytes of its shadow tables and caches.
    #[serde(rename = "shadow_table_bytes")]
    pub twin_bytes: u64,
}

/// A slot of a program array.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SlotDetails {
    /// Name of the array in the object.
    pub array: String,
    /// Its number.
    pub slot: u32,
    /// The program in it.
    pub program: String,
    /// Program that the active variant calls in its place.
    #[serde(rename = "target")]
    pub runs: SlotTarget,
}

impl std::fmt::Display for SlotDetails {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}[{}] {} ({})", self.array, self.slot, self.program, self.runs)
    }
}

/// Program that is called in the place of the one in a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SlotTarget {
    /// A variant of it.
    Variant,
    /// A variant of it, inlined where the slot is a constant.
    #[serde(rename = "inlined")]
    Joined,
    /// The program itself.
    Original,
    /// The program itself, which does not belong to the object.
    Foreign,
}

impl std::fmt::Display for SlotTarget {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            SlotTarget::Variant => "specialised",
            SlotTarget::Joined => "inlined",
            SlotTarget::Original => "original",
            SlotTarget::Foreign => "foreign",
        })
    }
}

/// A lookup.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LookupDetails {
    /// The program that makes it.
    #[serde(default)]
    pub program: String,
    /// Name of the map in the object.
    pub map: String,
    /// The map's type.
    pub map_type: String,
    /// The source line of the lookup, as `FILE:LINE`, if the object says it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub source: Option<String>,
    /// Way in which it is answered.
    pub how: LookupMethod,
    /// Lookups counted in the last look at the traffic.
    pub seen: u64,
    /// Share of them that code, a shadow table or a cache answers.
    pub answered: f64,
    /// The keys, hottest first.
    pub keys: Vec<KeyDetails>,
}

/// Ways to answer a lookup.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LookupMethod {
    /// By the map.
    Map,
    /// By code for so many hot keys, else by the map.
    #[serde(rename = "hot_keys")]
    Hot(usize),
    /// By code that holds the whole map.
    #[serde(rename = "inlined")]
    Code,
    /// By a shadow table.
    #[serde(rename = "shadow_table")]
    Twin,
    /// By a cache, else by the map.
    Cache,
    /// By a test of a word of the key if no entry has its value, else by the map.
    #[serde(rename = "key_test")]
    Test,
}

impl std::fmt::Display for LookupMethod {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            LookupMethod::Map => f.write_str("map"),
            LookupMethod::Hot(1) => f.write_str("1 hot key"),
            LookupMethod::Hot(n) => write!(f, "{n} hot keys"),
            LookupMethod::Code => f.write_str("inlined table"),
            LookupMethod::Twin => f.write_str("shadow table"),
            LookupMethod::Cache => f.write_str("cache"),
            LookupMethod::Test => f.write_str("key test"),
        }
    }
}

/// A key.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct KeyDetails {
    /// Formatted by its type, if the object says it.
    pub text: String,
    /// Share of the lookups.
    pub share: f64,
    /// True if code answers it.
    pub in_code: bool,
}

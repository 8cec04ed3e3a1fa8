//! Specializations of lookups: one file for each kind.
//!
//! A file has a struct, with what the plan says of one lookup, and its `LookupSpecialization`: the choice, from the
//! tables and the traffic; the check that it fits; the code; its predicted time and its name in reports. Here they
//! are registered: a module, a variant of [`LookupPlan`] with its arm in `LookupPlan::specialization`, and a place
//! in `PROPOSALS`. Nothing else has to be changed for a new kind.

mod cached_lookup;
mod empty_map;
mod fixed_length_lookup;
mod hot_entries;
mod shadow_lookup;
mod specialization;
mod walked_table;
mod whole_map;

use millstream_ir::Map;

use cached_lookup::CachedLookup;
use empty_map::EmptyMap;
pub use fixed_length_lookup::FixedLengthLookup;
pub use hot_entries::HotEntries;
pub use shadow_lookup::ShadowLookup;
use specialization::{LookupProposal, LookupSpecialization};
use walked_table::WalkedTable;
pub use whole_map::WholeMap;

/// An entry of a map: the result of a lookup of the key.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LookupEntry {
    /// The key. In [`LookupPlan::Whole`] of a longest-prefix map, the prefix as the map has it; elsewhere the
    /// key of a lookup.
    pub key: Vec<u8>,
    /// The value; `None` where a lookup of the key finds nothing (not for a prefix).
    pub value: Option<Vec<u8>>,
    /// Lookups of the key, in any unit.
    pub heat: u64,
}

/// Treatment of one lookup.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum LookupPlan {
    /// The lookup becomes code.
    Whole(WholeMap),
    /// Some keys are tried before the lookup.
    Hot(HotEntries),
    /// The map has a shadow table, a trie or rows.
    Twin(ShadowLookup),
    /// The map has a shadow table for prefixes of one length.
    OneLength(FixedLengthLookup),
    /// The map, which the program writes, has an [`EntryCache`](super::EntryCache) in the plan.
    Cached,
    /// The map is empty.
    Empty,
    /// The map, an array, is gone through by a loop: which of its entries matter is decided ahead of that.
    Walked,
}

/// The kinds that are chosen for a lookup by itself: the first that proposes something is taken.
pub(crate) const PROPOSALS: &[LookupProposal] = &[
    FixedLengthLookup::propose,
    ShadowLookup::propose,
    WalkedTable::propose,
    EmptyMap::propose,
    WholeMap::propose,
    HotEntries::propose,
];

impl LookupPlan {
    /// The kind of specialization, with its data.
    pub(crate) fn specialization(&self) -> &dyn LookupSpecialization {
        match self {
            LookupPlan::Whole(whole) => whole,
            LookupPlan::Hot(hot) => hot,
            LookupPlan::Twin(shadow) => shadow,
            LookupPlan::OneLength(fixed) => fixed,
            LookupPlan::Cached => &CachedLookup,
            LookupPlan::Empty => &EmptyMap,
            LookupPlan::Walked => &WalkedTable,
        }
    }

    /// The entries with which code compares keys.
    pub fn entries(&self) -> &[LookupEntry] {
        self.specialization().entries().unwrap_or_default()
    }

    /// The map that holds the shadow table which answers the lookup, if one does.
    pub fn shadow_map(&self) -> Option<Map> {
        self.specialization().shadow_map()
    }
}

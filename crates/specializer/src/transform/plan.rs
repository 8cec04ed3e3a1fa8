//! Input and output of transforms: sites, plans, contents of maps, reports.

use std::collections::BTreeSet;
use std::ops::Range;

use millstream_ir::{Func, KeyPiece, Map};

use super::cache_layout::EntryCache;
use super::lookup_plan::LookupPlan;
use super::site::SiteId;

/// Contents of maps, valid as long as the guard does not change.
///
/// Maps are the module's. Keys and values are bytes as bpf(2) has them.
pub trait MapContents {
    /// The value of a key. `None`: nothing is known, or it may change under the guard. `Some(None)`: there is
    /// no entry, and none comes without the guard changing. For a longest-prefix map the key is that of a
    /// lookup.
    fn lookup(&self, map: Map, key: &[u8]) -> Option<Option<Vec<u8>>>;

    /// Returns true if these bytes of each value of the map change only together with the guard.
    fn constant(&self, map: Map, bytes: Range<u32>) -> bool;
}

/// Nothing is known of any map.
#[derive(Clone, Copy, Debug, Default)]
pub struct UnknownContents;

impl MapContents for UnknownContents {
    fn lookup(&self, _: Map, _: &[u8]) -> Option<Option<Vec<u8>>> {
        None
    }

    fn constant(&self, _: Map, _: Range<u32>) -> bool {
        false
    }
}

/// A field that is equal in all entries of a map.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct FieldConstant {
    /// The map.
    pub map: Map,
    /// Offset of the field in values.
    pub offset: u32,
    /// Its bytes.
    pub bytes: Vec<u8>,
}

/// A map inside a map of maps that code may name.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct NamedInnerMap {
    /// The map of maps.
    pub outer: Map,
    /// The inner map's id in the kernel: what the map of maps has as its value.
    pub id: u32,
    /// The map that stands for it: no other does.
    pub place: Map,
}

/// Treatment of a lookup where the inner map that it is made in has a name.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct InnerSitePlan {
    /// The map that stands for the inner one.
    pub place: Map,
    /// The lookup and its treatment, by which no lookup is made in the inner map.
    pub plan: SitePlan,
}

/// A word of a lookup's key that takes few values in the whole table. For other values the result of the
/// lookup is known.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct KeyTest {
    /// The lookup, in a hash map or an array.
    pub site: SiteId,
    /// The lookup before which the word is tested: this one, or one on every path to it where the word is
    /// known already.
    pub at: SiteId,
    /// The word: a piece of its key.
    pub piece: KeyPiece,
    /// The values with which the lookup must be made.
    pub values: Vec<u64>,
    /// The result for all other values: nothing, or in an array this value.
    pub otherwise: Option<Vec<u8>>,
}

/// Treatment of one site.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SitePlan {
    /// The site.
    pub site: SiteId,
    /// Treatment of its lookup.
    pub lookup: LookupPlan,
}

/// The word whose change makes a variant stale.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct GuardCheck {
    /// An array map of one entry.
    pub map: Map,
    /// Offset of the 64-bit token in its value.
    pub offset: u32,
    /// The upper half of the token as long as the plan holds.
    pub generation: u32,
    /// Number of sides that twins have, a power of two: the lowest bits of the token select the side that a
    /// packet reads.
    pub sides: u32,
    /// Bits of the token on which nothing depends.
    pub unseen: u64,
    /// Offset of a 64-bit word in its value that gets the time of the first packet that finds it 0 and the
    /// guard right.
    pub first_packet: Option<u32>,
    /// Offset of a 64-bit word in its value that counts the packets that find the guard changed.
    pub missed: Option<u32>,
    /// A per-CPU array of 64-bit words, one for each site by its number: counts lookups whose key is not
    /// among the hot ones.
    pub misses: Option<Map>,
    /// The generation that handles packets in the place of this one when another may run.
    pub stand_in: Option<FallbackTailCall>,
}

/// A generation that gets packets by a tail call. If that fails, or if yet another generation may run, they
/// take the original.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FallbackTailCall {
    /// The program array that it is in.
    pub array: Map,
    /// Offset of a 64-bit word in the guard's value: its number in the upper half, its slot in the lower one.
    pub offset: u32,
}

/// A map whose changes do not stop the variant: where a twin would answer, lookups are made in the map itself
/// from then on. Everything else that the variant knows of the map stands behind the same test.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DeoptMap {
    /// The map.
    pub map: Map,
    /// The bit in the lower half of the token that is set once the map has changed.
    pub behind: u32,
}

/// Limits on the code that specialization may add.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CodeBudget {
    /// IR instructions in copies of what follows a lookup, in all.
    pub code: usize,
    /// IR instructions of comparisons, for one site.
    pub tests: usize,
}

impl Default for CodeBudget {
    fn default() -> Self {
        CodeBudget { code: 12_000, tests: 24_000 }
    }
}

/// A variant to be made.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SpecializationPlan {
    /// Checked before everything else; without one the variant must be withdrawn before its plan ceases to
    /// hold.
    pub guard: Option<GuardCheck>,
    /// The sites to specialise; others keep their lookups, unless their keys turn out constant.
    pub sites: Vec<SitePlan>,
    /// Fields that are equal in all entries.
    pub fields: Vec<FieldConstant>,
    /// Tests of words of keys before lookups.
    pub tests: Vec<KeyTest>,
    /// Maps inside maps of maps: a lookup that finds one of them is the map itself.
    pub inside: Vec<NamedInnerMap>,
    /// Plans for lookups in those maps.
    pub within: Vec<InnerSitePlan>,
    /// Caches of maps that the program writes.
    pub caches: Vec<EntryCache>,
    /// Maps whose twins the variant can do without.
    pub spared: Vec<DeoptMap>,
    /// Program arrays through whose places the specialised path makes its calls.
    pub chain: Vec<ProgArrayPair>,
    /// The number of the function's first site.
    pub first_site: u32,
    /// Limits.
    pub budget: CodeBudget,
}

impl SpecializationPlan {
    /// The map that stands for the inner map with this id in a map of maps.
    pub(super) fn inside(&self, outer: Map, value: &[u8]) -> Option<Map> {
        let id = u32::from_ne_bytes(value.try_into().ok()?);
        self.inside.iter().find(|i| i.outer == outer && i.id == id).map(|i| i.place)
    }

    /// Returns true if the plan leaves every lookup as it is.
    pub fn is_empty(&self) -> bool {
        self.sites.is_empty() && self.tests.is_empty()
    }
}

/// Changes made at a site.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct SiteReport {
    /// Entries that code compares with.
    pub entries: u32,
    /// Copies of what follows the lookup, each for one value.
    pub copies: u32,
    /// Entries whose values meet in one shared copy.
    pub merged: u32,
    /// Entries left to the real lookup for want of room.
    pub dropped: u32,
}

/// Changes made by a transform.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct TransformReport {
    /// By site, those specialised only.
    pub sites: Vec<(SiteId, SiteReport)>,
    /// Words of keys that are tested before lookups.
    pub tests: u32,
    /// Lookups that are not made because their results make no difference.
    pub needless: u32,
    /// Loops that became decisions.
    pub walks: u32,
    /// Lookups whose key turned out constant and whose result is known.
    pub folded_lookups: u32,
    /// Loads of values of maps that became constants.
    pub folded_loads: u32,
    /// Programs that were inlined where they were called.
    pub joined: Vec<InlinedTailCall>,
    /// Maps that were to be spared, but are not everywhere, for want of room.
    pub unspared: BTreeSet<Map>,
}

impl TransformReport {
    /// Adds the report of another program.
    pub fn add(&mut self, other: TransformReport) {
        self.sites.extend(other.sites);
        self.tests += other.tests;
        self.needless += other.needless;
        self.walks += other.walks;
        self.folded_lookups += other.folded_lookups;
        self.folded_loads += other.folded_loads;
        self.unspared.extend(other.unspared);
    }

    /// Returns true if the code after some lookup was copied for several values.
    pub fn has_copies(&self) -> bool {
        self.sites.iter().any(|(_, site)| site.copies > 1)
    }
}

/// A program array, and the array that holds the variants of its programs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ProgArrayPair {
    /// The array.
    pub array: Map,
    /// Its place.
    pub place: Map,
}

/// A slot of a place whose program is inlined where it is called.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct InlinedTailCall {
    /// The place.
    pub place: Map,
    /// The slot.
    pub slot: u32,
    /// The variant in it.
    pub callee: Func,
}

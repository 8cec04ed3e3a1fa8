//! Choice of specialisations: from profiles and tables to plans.
//!
//! Each kind of [`lookup_plan`](crate::transform::lookup_plan) decides if it is possible and pays for a lookup;
//! the first that proposes something is taken. A map gets a twin, unless it has so few entries that code finds
//! them faster. Other maps become code as a whole if that is faster (when there is time, or they are tiny), or
//! their hot keys do, as many as pay by the figures of `cost.rs`. Maps that change too often are in no code
//! ([`SnapshotReader::is_churning`]): they have twins, or are looked up. Maps that the program itself writes
//! get caches, for the lookups that traffic makes often. Maps found in maps of maps are named
//! (`map_in_map.rs`).

pub(crate) mod cost;
mod key_tests;
mod map_in_map;
mod site_inputs;

use std::collections::{BTreeMap, BTreeSet};

use millstream_ir::{Map, MapDecl};
use millstream_isa::MapType;
use rustc_hash::FxHashMap;

pub use key_tests::KeyTestCandidate;
pub(crate) use site_inputs::SiteInputs;

use crate::profile::SiteProfile;
use crate::snapshot::SnapshotReader;
use crate::transform::{
    CodeBudget, DeoptMap, FieldConstant, GuardCheck, LookupSite, ShadowTable, SiteId, SitePlan,
    SpecializationPlan, address_pieces,
};
use crate::variant::VariantCompiler;

/// Maps of at most so many entries become code as a whole, if time allows.
pub(crate) const WHOLE: usize = 4096;
/// Maps with room for at most so many entries always do, unless a twin is faster.
const TINY: u32 = 64;
/// Bytes of a map that is read for the fields that are equal in all its entries, at most.
const FIELDS: u64 = 16 << 20;
/// As [`FIELDS`], while packets wait.
const QUICK_FIELDS: u64 = 256 << 10;
/// Bytes of the values of a prefix map from which they are not taken for routes.
const WIDE: u32 = 64;

/// Returns true if lookups at this site can be specialised at all: its map is one of those that may be read.
pub fn eligible<S>(site: &LookupSite, sources: &FxHashMap<Map, S>) -> bool {
    site.is_comparable() && sources.contains_key(&site.map)
}

/// Returns true if lookups at this site can have a cache.
pub fn cacheable(site: &LookupSite, cached: &BTreeSet<Map>) -> bool {
    site.is_comparable() && cached.contains(&site.map)
}

/// Plan for a lookup.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum LookupStrategy {
    /// These keys are in code.
    Hot(Vec<Vec<u8>>),
    /// All entries are in code.
    Whole,
    /// A twin answers it, for all keys.
    Twin,
    /// A cache answers it, as long as nobody writes the entry.
    Cached,
}

impl LookupStrategy {
    /// The keys in code, if all others are looked up.
    pub fn hot_keys(&self) -> Option<&[Vec<u8>]> {
        match self {
            LookupStrategy::Hot(keys) => Some(keys),
            LookupStrategy::Whole | LookupStrategy::Twin | LookupStrategy::Cached => None,
        }
    }

    /// Returns true if the result for a key is in code.
    pub fn has_in_code(&self, key: &[u8]) -> bool {
        match self {
            LookupStrategy::Hot(keys) => keys.iter().any(|hot| hot == key),
            LookupStrategy::Whole => true,
            LookupStrategy::Twin | LookupStrategy::Cached => false,
        }
    }

    /// Returns true if all keys take about the same time, so that it does not matter which of them are looked up.
    pub fn is_even(&self) -> bool {
        match self {
            LookupStrategy::Twin | LookupStrategy::Cached => true,
            LookupStrategy::Hot(_) | LookupStrategy::Whole => false,
        }
    }
}

/// Plans of the lookups, by site.
pub type StrategyBySite = BTreeMap<SiteId, LookupStrategy>;

/// Time available for making a variant.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Tier {
    /// Packets wait in the original code: twins and hot keys only, within milliseconds.
    Quick,
    /// It is to follow every table without new code: no table is in code that somebody may write.
    Standby,
    /// Whole tables.
    Thorough,
}

/// A plan, and its requirements.
#[derive(Debug)]
pub struct PlanResult {
    /// The plan.
    pub plan: SpecializationPlan,
    /// Keys and tables that it puts into code.
    pub keys: StrategyBySite,
    /// Twins of maps, which must be in place before the plan is carried out.
    pub twins: BTreeMap<Map, ShadowTable>,
    /// Words of keys that may be tested before lookups.
    pub tried: Vec<KeyTestCandidate>,
    /// Sites that a trie would answer if their maps could have one, so that their traffic matters.
    pub untwinned: BTreeSet<SiteId>,
    /// True if more time would not change it.
    pub complete: bool,
}

/// Inputs of a plan.
#[derive(Clone, Copy, Debug)]
pub struct PlanInputs<'k> {
    /// The program.
    pub compiler: &'k VariantCompiler,
    /// Its traffic.
    pub profiles: &'k [SiteProfile],
    /// Its maps.
    pub observed: &'k dyn SnapshotReader,
    /// Sites whose lookups turned out to be of a form that twins cannot answer.
    pub unfit: &'k BTreeSet<SiteId>,
    /// Maps that the program writes, and that may have caches now.
    pub cached: &'k BTreeSet<Map>,
}

/// Makes a plan from the inputs. Sites of which nothing is known are left alone.
pub fn plan(known: &PlanInputs<'_>, mut guard: GuardCheck, tier: Tier) -> PlanResult {
    let mut plans = Vec::new();
    let (mut twins, mut untwinned) = (BTreeMap::new(), BTreeSet::new());
    let (mut tried, mut inside) = (Vec::new(), Vec::new());
    for profile in known.profiles {
        let Some(site) = known.compiler.sites().iter().find(|s| s.id == profile.site) else { continue };
        let tests = known.tests(site, profile);
        let passing = key_tests::passing(profile, &tests);
        tried.extend(tests);
        let mut of_site = SiteInputs::new((known, tier), site, &passing, (&mut twins, &mut inside));
        let lookup = of_site.propose();
        let large = known.compiler.declaration(site.map).max_entries > TINY;
        if large && may_have_shadow_table(known.compiler, site, known.unfit) && !twins.contains_key(&site.map)
        {
            untwinned.insert(site.id);
        }
        plans.extend(lookup.map(|lookup| SitePlan { site: site.id, lookup }));
    }
    let (within, is_left) = known.within(&inside, tier);
    let caches = known.caches(&mut plans, &inside, &within);
    let strategy = |plan: &SitePlan| (plan.site, plan.lookup.specialization().strategy());
    let keys: StrategyBySite = within.iter().map(|w| &w.plan).chain(&plans).map(strategy).collect();
    let mut complete = !is_left && keys.values().all(|put| put.hot_keys().is_none());
    if twins.is_empty() {
        guard.sides = 1;
    }
    if tier == Tier::Standby {
        guard.stand_in = None;
    }
    let spared = known.spared(&twins, &tried);
    let (fields, left) = known.fields(&keys, tier);
    complete &= !left;
    let plan = SpecializationPlan {
        guard: Some(guard),
        sites: plans,
        tests: known.chosen(&tried),
        inside,
        within,
        caches,
        spared: spared.into_iter().filter(|s| !fields.iter().any(|f| f.map == s.map)).collect(),
        fields,
        chain: Vec::new(),
        first_site: 0,
        budget: CodeBudget::default(),
    };
    PlanResult { plan, keys, twins, tried, untwinned, complete: complete || tier == Tier::Thorough }
}

impl PlanInputs<'_> {
    /// Maps with twins whose updates need not stop anything else.
    fn spared(&self, twins: &BTreeMap<Map, ShadowTable>, tried: &[KeyTestCandidate]) -> Vec<DeoptMap> {
        let slots = twins.keys().filter(|map| !tried.iter().any(|t| t.is_chosen && t.is_of(**map)));
        let spared =
            |map: &Map| Some(DeoptMap { map: *map, behind: self.compiler.slot(*map)?.behind() as u32 });
        slots.filter_map(spared).collect()
    }

    /// Finds fields that are equal in all entries of maps that are looked up and do not become code as a
    /// whole. Also returns true if there may be more, in maps too large for the time available. Routes come
    /// and go too fast for any, sets of rules do not.
    fn fields(&self, keys: &StrategyBySite, tier: Tier) -> (Vec<FieldConstant>, bool) {
        let (mut fields, mut left) = (Vec::new(), false);
        let is_trie =
            |site: &LookupSite| MapType(self.compiler.declaration(site.map).kind) == MapType::LPM_TRIE;
        let whole = |site: &LookupSite| match keys.get(&site.id) {
            Some(LookupStrategy::Whole) => true,
            Some(LookupStrategy::Twin) => {
                is_trie(site) && self.compiler.declaration(site.map).value_size < WIDE
            }
            _ => false,
        };
        let sites = self.compiler.sites().iter().filter(|s| self.observed.knows(s.map) && !whole(s));
        let maps: BTreeSet<Map> = sites.map(|s| s.map).collect();
        for map in maps.into_iter().filter(|map| self.compiler.declaration(*map).inner.is_none()) {
            let (decl, read) = (self.compiler.declaration(map), self.compiler.bytes_read(map));
            let bytes = u64::from(decl.max_entries) * u64::from(decl.key_size + decl.value_size);
            if read.is_empty() || bytes > FIELDS {
                continue;
            }
            if tier == Tier::Quick && bytes > QUICK_FIELDS {
                left = true;
                continue;
            }
            let runs = self.observed.equal(map, &read).unwrap_or_default();
            fields.extend(runs.into_iter().map(|(offset, bytes)| FieldConstant { map, offset, bytes }));
        }
        (fields, left)
    }
}

/// Returns true if a lookup finds the entry of a key, or none.
fn is_hash(decl: &MapDecl) -> bool {
    matches!(MapType(decl.kind), MapType::HASH | MapType::LRU_HASH)
}

/// Returns true if a twin may answer all keys of the lookup alike, so that traffic does not matter, as far as
/// that can be seen before one is made.
pub fn may_have_shadow_table(
    compiler: &VariantCompiler,
    site: &LookupSite,
    unfit: &BTreeSet<SiteId>,
) -> bool {
    let is_trie = MapType(compiler.declaration(site.map).kind) == MapType::LPM_TRIE
        && compiler.twin(site.map).is_some();
    is_trie && site.layout().is_some_and(|l| address_pieces(l).is_some()) && !unfit.contains(&site.id)
}

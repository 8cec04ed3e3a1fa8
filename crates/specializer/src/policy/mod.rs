//! Choice of specialisations: from profiles and tables to plans.
//!
//! A longest-prefix map gets a twin, whatever the traffic: it is faster than hot keys in front of the trie or
//! of the twin itself (a mispredicted comparison costs more than the twin's loads), and the code does not
//! depend on the contents of the map. A hash map that has a twin gets it as well, with as many hot keys
//! before it as pay, unless it has so few entries that code finds them faster. Other maps become code as a
//! whole if that is faster (when there is time, or they are tiny), or their hot keys do, as many as pay by
//! the figures of `cost.rs`. Maps that change too often are in no code ([`SnapshotReader::is_churning`]):
//! they have twins, or are looked up. Maps that the program itself writes get caches, for the lookups that
//! traffic makes often. Maps found in maps of maps are named (`map_in_map.rs`).

pub(crate) mod cost;
mod key_tests;
mod map_in_map;

use std::collections::{BTreeMap, BTreeSet, HashMap, btree_map};

use millstream_bpf::module;
use millstream_ir::{Map, MapDecl};
use millstream_isa::MapType;
use rustc_hash::FxHashMap;

pub use key_tests::KeyTestCandidate;

use crate::profile::SiteProfile;
use crate::snapshot::{MapEntries, SnapshotReader};
use crate::transform::{
    self, CodeBudget, DeoptMap, EntryCache, FieldConstant, GuardCheck, InnerSitePlan, LookupEntry,
    LookupPlan, LookupSite, NamedInnerMap, ShadowTable, SiteId, SitePlan, SpecializationPlan, address_pieces,
};
use crate::variant::VariantCompiler;

/// Maps of at most so many entries become code as a whole, if time allows.
const WHOLE: usize = 4096;
/// Maps with room for at most so many entries always do, unless a twin is faster.
const TINY: u32 = 64;
/// Bytes of a map that is read for the fields that are equal in all its entries, at most.
const FIELDS: u64 = 16 << 20;
/// As [`FIELDS`], while packets wait.
const QUICK_FIELDS: u64 = 256 << 10;
/// Bytes of the values of a prefix map from which they are not taken for routes.
const WIDE: u32 = 64;
/// Hot keys of a site at most.
const HOT: usize = 48;
/// A site gets a cache if it makes at least one in so many of the lookups of the busiest site.
const CACHED: u64 = 16;

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
    let (mut keys, mut twins, mut complete) = (StrategyBySite::new(), BTreeMap::new(), true);
    let (mut untwinned, mut tried, mut inside) = (BTreeSet::new(), Vec::new(), Vec::new());
    for profile in known.profiles {
        let Some(site) = known.compiler.sites().iter().find(|s| s.id == profile.site) else { continue };
        let tests = known.tests(site, profile);
        let passing = key_tests::passing(profile, &tests);
        tried.extend(tests);
        let lookup = known.lookup(site, &passing, tier, (&mut twins, &mut inside));
        let large = known.compiler.declaration(site.map).max_entries > TINY;
        if large && may_have_shadow_table(known.compiler, site, known.unfit) && !twins.contains_key(&site.map)
        {
            untwinned.insert(site.id);
        }
        let Some(lookup) = lookup else { continue };
        let put = match &lookup {
            LookupPlan::Twin { hot, .. } if hot.is_empty() => LookupStrategy::Twin,
            LookupPlan::OneLength { .. } => LookupStrategy::Twin,
            LookupPlan::Hot(entries) | LookupPlan::Twin { hot: entries, .. } => {
                LookupStrategy::Hot(entries.iter().map(|e| e.key.clone()).collect())
            }
            LookupPlan::Whole(_) | LookupPlan::Empty | LookupPlan::Walked => LookupStrategy::Whole,
            LookupPlan::Cached => LookupStrategy::Cached,
        };
        complete &= !matches!(put, LookupStrategy::Hot(_));
        keys.insert(site.id, put);
        plans.push(SitePlan { site: site.id, lookup });
    }
    let (within, is_left) = known.within(&inside, tier);
    complete &= !is_left;
    keys.extend(within.iter().map(|w| (w.plan.site, LookupStrategy::Whole)));
    let caches = known.caches(&mut plans, &inside, &within);
    keys.extend(
        plans.iter().filter(|p| p.lookup == LookupPlan::Cached).map(|p| (p.site, LookupStrategy::Cached)),
    );
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
    fn lookup(
        &self,
        site: &LookupSite,
        profile: &SiteProfile,
        tier: Tier,
        (twins, inside): (&mut BTreeMap<Map, ShadowTable>, &mut Vec<NamedInnerMap>),
    ) -> Option<LookupPlan> {
        if !self.observed.knows(site.map) {
            return None;
        }
        let decl = self.compiler.declaration(site.map);
        if decl.inner.is_some() {
            return self.outer(site, profile, tier, inside);
        }
        let kind = MapType(decl.kind);
        if !self.is_few(site.map, decl, tier)
            && let Some(lookup) = self.twin(site, profile, twins)
        {
            return Some(lookup);
        }
        // Without it nothing is gained, even if there is little time.
        if kind == MapType::ARRAY
            && decl.max_entries as usize <= WHOLE
            && !self.observed.is_churning(site.map)
            && self.compiler.is_walked(site)
        {
            return Some(LookupPlan::Walked);
        }
        let in_time = tier == Tier::Thorough || decl.max_entries <= TINY;
        // An array has as many entries as it has room for; others may have fewer.
        let may_pay = kind != MapType::ARRAY || decl.max_entries as usize <= WHOLE;
        if in_time
            && may_pay
            && let Some(table) = self.observed.table(site.map)
            && table.len() <= WHOLE
        {
            let lookup = whole(table, kind, profile);
            let pays = match &lookup {
                LookupPlan::Whole(all) => cost::whole(kind, all) < cost::lookup(kind, all.len()),
                _ => true,
            };
            if pays {
                return Some(lookup);
            }
        }
        let behind = cost::lookup(kind, decl.max_entries as usize);
        let entries = self.hot(profile, behind, |key| self.observed.lookup(site.map, key));
        (!entries.is_empty()).then_some(LookupPlan::Hot(entries))
    }

    /// Returns true if code finds an entry of a map faster than a twin would: mispredicted branches take
    /// longer than its loads. A map that may become large is left to a twin, which follows it, until it has
    /// not been written for a while.
    fn is_few(&self, map: Map, decl: &MapDecl, tier: Tier) -> bool {
        if self.observed.is_churning(map) {
            return false;
        }
        let (is_hash, is_tiny) = (is_hash(decl), decl.max_entries <= TINY);
        let count = || self.observed.count(map);
        match is_tiny {
            true => !is_hash || count().is_none_or(|n| cost::searched(n) <= cost::TWIN),
            false if tier == Tier::Thorough => {
                count().is_some_and(|n| n == 0 || is_hash && cost::searched(n) <= cost::TWIN)
            }
            false => false,
        }
    }

    /// Chooses as many of the hottest keys as pay in front of code that takes `behind`.
    fn hot(
        &self,
        profile: &SiteProfile,
        behind: f64,
        value: impl Fn(&[u8]) -> Option<Option<Vec<u8>>>,
    ) -> Vec<LookupEntry> {
        let shares: Vec<f64> = profile.shares().take(HOT).collect();
        let most = cost::worthwhile(&shares, behind);
        let entry = |(key, heat): &(Vec<u8>, u64)| {
            Some(LookupEntry { key: key.clone(), value: value(key)?, heat: *heat })
        };
        profile.keys.iter().take(most).filter_map(entry).collect()
    }

    /// Caches for the lookups that are made often in maps that may have them.
    fn caches(
        &self,
        plans: &mut Vec<SitePlan>,
        inside: &[NamedInnerMap],
        within: &[InnerSitePlan],
    ) -> Vec<EntryCache> {
        let often = self.profiles.iter().map(|p| p.total).max().unwrap_or(0) / CACHED;
        let busy = |site: &&LookupSite| {
            self.compiler.may_cache(site)
                && cacheable(site, self.cached)
                && self.profiles.iter().any(|p| p.site == site.id && p.total > often)
        };
        let caches = self.cached.iter().filter_map(|&map| {
            let is_known = |s: &&LookupSite| s.is_inner && self.is_known_within(s, (plans, inside, within));
            let sites = self.compiler.sites().iter().filter(|s| s.map == map).filter(busy);
            let sites: Vec<SiteId> = sites.filter(|s| !is_known(s)).map(|s| s.id).collect();
            let cache = (!sites.is_empty()).then(|| self.compiler.cache_for(map))??;
            plans.extend(sites.into_iter().map(|site| SitePlan { site, lookup: LookupPlan::Cached }));
            Some(cache)
        });
        caches.collect()
    }

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

    /// The twin of the site's map, if it has one.
    fn twin(
        &self,
        site: &LookupSite,
        profile: &SiteProfile,
        twins: &mut BTreeMap<Map, ShadowTable>,
    ) -> Option<LookupPlan> {
        let in_trie = may_have_shadow_table(self.compiler, site, self.unfit);
        let in_rows = || {
            is_hash(self.compiler.declaration(site.map))
                && !self.unfit.contains(&site.id)
                && site.is_comparable()
                && site.layout().is_some_and(transform::whole_words)
        };
        let in_one_length = || {
            MapType(self.compiler.declaration(site.map).kind) == MapType::LPM_TRIE
                && !self.unfit.contains(&site.id)
                && site.is_comparable()
                && site.layout().is_some_and(|l| transform::whole_words(l) && transform::has_length(l))
        };
        let place = self.compiler.twin(site.map).filter(|_| in_trie || in_rows() || in_one_length())?;
        let size = self.compiler.declaration(site.map).value_size;
        if in_trie && !self.observed.constant(site.map, 0..size) {
            return None;
        }
        let twin = match twins.entry(site.map) {
            btree_map::Entry::Vacant(vacant) => {
                vacant.insert(self.observed.twin(site.map, &self.compiler.bytes_read(site.map))?)
            }
            btree_map::Entry::Occupied(made) => made.into_mut(),
        };
        match twin {
            ShadowTable::OneLength(twin) => {
                return Some(LookupPlan::OneLength { map: module::map(place), length: twin.length() });
            }
            // Made for another lookup of the map.
            ShadowTable::Trie(_) if !in_trie => return None,
            ShadowTable::Trie(_) | ShadowTable::Rows(_) => {}
        }
        let value = |key: &[u8]| self.observed.before_twin(site.map, key);
        let hot = if in_trie { Vec::new() } else { self.hot(profile, cost::TWIN, value) };
        Some(LookupPlan::Twin { map: module::map(place), hot })
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

fn whole(table: MapEntries, kind: MapType, profile: &SiteProfile) -> LookupPlan {
    if table.is_empty() {
        return LookupPlan::Empty;
    }
    let heat = if kind == MapType::LPM_TRIE { prefix_heat(&table, profile) } else { exact_heat(profile) };
    let entries = table.into_iter().map(|(key, value)| {
        let heat = heat.get(&key).copied().unwrap_or(0);
        LookupEntry { key, value: Some(value), heat }
    });
    LookupPlan::Whole(entries.collect())
}

fn exact_heat(profile: &SiteProfile) -> HashMap<Vec<u8>, u64> {
    profile.keys.iter().cloned().collect()
}

/// Number of lookups for which each prefix of a table is the longest match.
fn prefix_heat(table: &MapEntries, profile: &SiteProfile) -> HashMap<Vec<u8>, u64> {
    let mut heat = HashMap::new();
    for (key, n) in &profile.keys {
        let Some((length, data)) = key.split_first_chunk::<4>() else { continue };
        let longest = u32::from_ne_bytes(*length).min(8 * data.len() as u32);
        let matching = (0..=longest).rev().map(|l| prefix(data, l)).find(|p| table.contains_key(p));
        if let Some(found) = matching {
            *heat.entry(found).or_default() += n;
        }
    }
    heat
}

/// Builds the key of the prefix with this many bits.
fn prefix(data: &[u8], bits: u32) -> Vec<u8> {
    let mut key = bits.to_ne_bytes().to_vec();
    key.extend(data.iter().enumerate().map(|(i, byte)| {
        let kept = bits.saturating_sub(8 * i as u32).min(8);
        if kept == 0 { 0 } else { byte & (0xff << (8 - kept)) as u8 }
    }));
    key
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(bits: u32, address: [u8; 4]) -> Vec<u8> {
        [&bits.to_ne_bytes()[..], &address].concat()
    }

    #[test]
    fn prefixes_keep_their_leading_bits() {
        assert_eq!(prefix(&[10, 255, 3, 4], 9), key(9, [10, 128, 0, 0]));
        assert_eq!(prefix(&[10, 255, 3, 4], 0), key(0, [0; 4]));
        assert_eq!(prefix(&[10, 255, 3, 4], 32), key(32, [10, 255, 3, 4]));
    }

    #[test]
    fn heat_goes_to_the_longest_match() {
        let table = [key(0, [0; 4]), key(8, [10, 0, 0, 0]), key(24, [10, 1, 2, 0])];
        let table = table.into_iter().map(|k| (k, vec![0])).collect();
        let keys = vec![
            (key(32, [10, 1, 2, 9]), 5),
            (key(32, [10, 1, 2, 8]), 4),
            (key(32, [10, 9, 9, 9]), 2),
            (key(32, [9, 9, 9, 9]), 1),
        ];
        let heat = prefix_heat(&table, &SiteProfile { site: SiteId(0), total: 12, keys });
        let of = |k| heat.get(&k).copied();
        assert_eq!(of(key(24, [10, 1, 2, 0])), Some(9));
        assert_eq!(of(key(8, [10, 0, 0, 0])), Some(2));
        assert_eq!(of(key(0, [0; 4])), Some(1));
    }
}

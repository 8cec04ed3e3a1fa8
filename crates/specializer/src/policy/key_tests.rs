//! Choice of the words of keys that are tested before lookups: those that have few values in the whole table,
//! while traffic often brings others. In small arrays, indices that have another value than all others, so
//! that lookups in other maps are spared.

use millstream_ir::Map;
use millstream_isa::MapType;

use super::{FIELDS, PlanInputs, TINY, WHOLE, cost};
use crate::profile::SiteProfile;
use crate::snapshot::FewValues;
use crate::transform::{KeyTest, LookupSite, SiteId};

/// A word of a lookup's key that has few values in the table.
#[derive(Clone, PartialEq, Debug)]
pub struct KeyTestCandidate {
    /// The lookup.
    pub site: SiteId,
    map: Map,
    few: FewValues,
    /// Result of the lookup if the key has none of the values.
    otherwise: Option<Vec<u8>>,
    /// The lookup before which it is tested.
    at: SiteId,
    /// Time that a lookup without any of the values is spared, with other lookups that are needless then, in
    /// nanoseconds.
    saved: f64,
    /// True if it is tested.
    pub is_chosen: bool,
}

impl KeyTestCandidate {
    /// Gain of the test with this traffic.
    fn gain(&self, profile: &SiteProfile) -> f64 {
        let has = |key: &[u8]| self.few.has(key);
        cost::key_test_gain(missed(profile, has), self.few.values.len(), self.saved)
    }

    /// Returns true if it belongs to a lookup in this map.
    pub(super) fn is_of(&self, map: Map) -> bool {
        self.map == map
    }

    /// Returns true if a key has one of the values.
    pub fn passes(&self, key: &[u8]) -> bool {
        self.few.has(key)
    }

    /// Returns true if this traffic asks for the opposite choice.
    pub fn has_turned(&self, profile: &SiteProfile) -> bool {
        let gain = self.gain(profile);
        if self.is_chosen { gain < 0.0 } else { cost::pays(gain) }
    }
}

/// Part of the lookups with known keys that are for none of the keys that `has` accepts.
fn missed(profile: &SiteProfile, has: impl Fn(&[u8]) -> bool) -> f64 {
    let all: u64 = profile.keys.iter().map(|(_, n)| n).sum();
    let passed: u64 = profile.keys.iter().filter(|(key, _)| has(key)).map(|(_, n)| n).sum();
    (all - passed) as f64 / all.max(1) as f64
}

/// The lookups that tests let pass.
pub(super) fn passing(profile: &SiteProfile, tests: &[KeyTestCandidate]) -> SiteProfile {
    let passes = |key: &[u8]| tests.iter().filter(|t| t.is_chosen).all(|t| t.few.has(key));
    let total = profile.total as f64 * (1.0 - missed(profile, passes));
    let keys = profile.keys.iter().filter(|(key, _)| passes(key)).cloned();
    SiteProfile { site: profile.site, total: total as u64, keys: keys.collect() }
}

impl PlanInputs<'_> {
    /// Finds the words of a lookup's key that have few values, and chooses those that pay.
    pub(super) fn tests(&self, site: &LookupSite, profile: &SiteProfile) -> Vec<KeyTestCandidate> {
        let few = if profile.keys.is_empty() { Vec::new() } else { self.few(site) };
        let saved = cost::spared(self.looked_up(site, profile));
        let tried = |(few, otherwise): (FewValues, Option<Vec<u8>>)| {
            let spared = self.compiler.spared_by(site, few.piece, otherwise.clone(), self.observed);
            let saved = saved + spared.iter().map(|id| self.looked_up_at(*id)).sum::<f64>();
            let at = spared.first().copied().unwrap_or(site.id);
            KeyTestCandidate { site: site.id, map: site.map, few, otherwise, at, saved, is_chosen: false }
        };
        let mut tried: Vec<KeyTestCandidate> = few.into_iter().map(tried).collect();
        loop {
            let left = passing(profile, &tried);
            let gains =
                tried.iter().enumerate().filter(|(_, t)| !t.is_chosen).map(|(n, t)| (n, t.gain(&left)));
            let best = gains.filter(|(_, gain)| cost::pays(*gain)).max_by(|a, b| a.1.total_cmp(&b.1));
            let Some((best, _)) = best else { return tried };
            tried[best].is_chosen = true;
        }
    }

    /// Finds words of the keys of a lookup that have few values, with the result for all others.
    fn few(&self, site: &LookupSite) -> Vec<(FewValues, Option<Vec<u8>>)> {
        let decl = self.compiler.declaration(site.map);
        let bytes = u64::from(decl.max_entries) * u64::from(decl.key_size + decl.value_size);
        let is_fit =
            site.is_comparable() && !site.is_inner && bytes <= FIELDS && self.observed.knows_keys(site.map);
        let Some(layout) = site.layout().filter(|_| is_fit) else { return Vec::new() };
        match MapType(decl.kind) {
            MapType::HASH => {
                let few = self.observed.few(site.map, layout).unwrap_or_default();
                few.into_iter().map(|few| (few, None)).collect()
            }
            MapType::ARRAY if decl.max_entries as usize <= WHOLE && self.compiler.in_range(site) => {
                let common = self.observed.common(site.map);
                common.map(|(few, value)| (few, Some(value))).into_iter().collect()
            }
            _ => Vec::new(),
        }
    }

    /// Cost of a lookup, by its number.
    fn looked_up_at(&self, id: SiteId) -> f64 {
        let site = self.compiler.sites().iter().find(|site| site.id == id);
        let profile = self.profiles.iter().find(|profile| profile.site == id);
        site.zip(profile).map_or(0.0, |(site, profile)| self.looked_up(site, profile))
    }

    /// Cost of a lookup, with as many hot keys in front as pay.
    fn looked_up(&self, site: &LookupSite, profile: &SiteProfile) -> f64 {
        let decl = self.compiler.declaration(site.map);
        let twinned = decl.max_entries > TINY
            && self.observed.knows(site.map)
            && self.compiler.twin(site.map).is_some();
        let behind = match twinned && !self.unfit.contains(&site.id) {
            true => cost::TWIN,
            false => cost::lookup(MapType(decl.kind), decl.max_entries as usize),
        };
        let shares: Vec<f64> = profile.shares().take(cost::HOT).collect();
        cost::compare_cost(&shares[..cost::worthwhile(&shares, behind)], behind)
    }

    /// The chosen tests; their conditions are recorded.
    pub(super) fn chosen(&self, tried: &[KeyTestCandidate]) -> Vec<KeyTest> {
        let test = |tried: &KeyTestCandidate| {
            match tried.otherwise {
                None => self.observed.rely(tried.map, tried.few.clone()),
                Some(_) => drop(self.observed.table(tried.map)),
            }
            let FewValues { piece, values } = tried.few.clone();
            let (site, at, otherwise) = (tried.site, tried.at, tried.otherwise.clone());
            KeyTest { site, at, piece, values: values.into_iter().collect(), otherwise }
        };
        tried.iter().filter(|t| t.is_chosen).map(test).collect()
    }
}

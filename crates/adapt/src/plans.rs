//! Plans to try: which tables become code, which keys are hot.
//!
//! Nothing here predicts what pays: native look-ups take a few nanoseconds, which comparisons easily exceed. The
//! judge measures each plan.

use std::collections::BTreeSet;

use millstream_ir::Map;
use millstream_isa::MapType;
use millstream_specializer::profile::SiteProfile;
use millstream_specializer::transform::lookup_plan::{HotEntries, LookupPlan, WholeMap};
use millstream_specializer::transform::{
    CodeBudget, FieldConstant, LookupEntry, LookupSite, MapContents, SiteId, SitePlan, SpecializationPlan,
};

use crate::program::AdaptableProgram;
use crate::snapshot::TableSnapshot;
use crate::status::TableAdvice;

/// Tables of at most so many entries become code as a whole.
const WHOLE: usize = 16;
/// Hot keys of a look-up in the small and in the large plan.
const FEW_KEYS: usize = 2;
const MANY_KEYS: usize = 16;
/// Share of a look-up's packets that its hot keys must have.
const LEAST_SHARE: f64 = 0.3;
/// Share of the packets of all hot keys from which on further keys are left out.
const ENOUGH: f64 = 0.9;
/// Limits on the code: LLVM's time is about proportional to it.
const BUDGET: CodeBudget = CodeBudget { code: 4_000, tests: 2_000 };

/// Keys of look-ups that a plan tries first.
pub(crate) type HotKeys = Vec<(SiteId, Vec<Vec<u8>>)>;

/// A plan to try.
#[derive(Clone, Debug)]
pub(crate) struct PlanCandidate {
    pub(crate) plan: SpecializationPlan,
    pub(crate) advice: Vec<TableAdvice>,
    pub(crate) hot: HotKeys,
    /// Tables whose contents the plan has.
    pub(crate) tables: BTreeSet<Map>,
}

/// The plans to try, the most thorough one first.
pub(crate) fn candidates(
    program: &AdaptableProgram,
    tables: &TableSnapshot<'_>,
    profiles: &[SiteProfile],
) -> Vec<PlanCandidate> {
    let mut all: Vec<PlanCandidate> = Vec::new();
    for (whole, keys) in [(WHOLE, MANY_KEYS), (WHOLE, FEW_KEYS), (WHOLE, 0), (0, 0)] {
        let planning = Planning { program, tables, profiles, whole, keys };
        let candidate = planning.candidate();
        if all.iter().all(|known| known.plan != candidate.plan) {
            all.push(candidate);
        }
    }
    all
}

/// Share of the look-ups that the hot keys of a plan answer, of those look-ups that have some.
pub(crate) fn hot_share(hot: &HotKeys, profiles: &[SiteProfile]) -> Option<f64> {
    let share = |(site, keys): &(SiteId, Vec<Vec<u8>>)| {
        let profile = profiles.iter().find(|profile| profile.site == *site && profile.total > 0)?;
        let held = |key: &Vec<u8>| profile.keys.iter().find(|(known, _)| known == key).map_or(0, |(_, n)| *n);
        Some(keys.iter().map(held).sum::<u64>() as f64 / profile.total as f64)
    };
    let shares: Vec<f64> = hot.iter().filter_map(share).collect();
    (!shares.is_empty()).then(|| shares.iter().sum::<f64>() / shares.len() as f64)
}

/// Inputs of one plan.
struct Planning<'a> {
    program: &'a AdaptableProgram,
    tables: &'a TableSnapshot<'a>,
    profiles: &'a [SiteProfile],
    /// Entries of tables that become code, at most.
    whole: usize,
    /// Hot keys of a look-up, at most.
    keys: usize,
}

impl Planning<'_> {
    fn candidate(&self) -> PlanCandidate {
        let (mut sites, mut advice, mut hot) = (Vec::new(), Vec::new(), HotKeys::new());
        let mut of_fields = BTreeSet::new();
        for site in self.program.sites() {
            let Some((lookup, treatment, entries)) = self.lookup(site) else {
                of_fields.insert(site.map);
                continue;
            };
            if let LookupPlan::Hot(keys) = &lookup {
                of_fields.insert(site.map);
                hot.push((site.id, keys.entries.iter().map(|entry| entry.key.clone()).collect()));
            }
            self.tables.depend_on(site.map);
            advice.push(self.advice(site.map, treatment, entries));
            sites.push(SitePlan { site: site.id, lookup });
        }
        let mut fields = Vec::new();
        for map in of_fields {
            let runs = self.tables.equal_fields(map);
            if !runs.is_empty() {
                self.tables.depend_on(map);
                advice.push(self.advice(map, "constant fields", runs.len()));
            }
            fields.extend(runs.into_iter().map(|(offset, bytes)| FieldConstant { map, offset, bytes }));
        }
        let plan = SpecializationPlan {
            guard: None,
            sites,
            fields,
            tests: Vec::new(),
            inside: Vec::new(),
            within: Vec::new(),
            caches: Vec::new(),
            spared: Vec::new(),
            chain: Vec::new(),
            first_site: 0,
            budget: BUDGET,
        };
        PlanCandidate { plan, advice, hot, tables: self.tables.take_used() }
    }

    fn advice(&self, map: Map, treatment: &'static str, entries: usize) -> TableAdvice {
        let table = self.program.tables().get(&map).map_or_else(String::new, |table| table.name.clone());
        TableAdvice { table, treatment, entries }
    }

    /// Treatment of a look-up, its name, and the number of entries in code.
    fn lookup(&self, site: &LookupSite) -> Option<(LookupPlan, &'static str, usize)> {
        let table = self.tables.table(site.map)?;
        if let Some(whole) = &table.whole {
            let table = self.program.tables().get(&site.map)?;
            let kind = table.kind;
            if whole.is_empty() {
                return Some((LookupPlan::Empty, "empty", 0));
            }
            // A look-up in an array takes less than a comparison, so only its values matter.
            let is_small = whole.len() <= self.whole && table.has_plain_keys();
            if is_small && (kind != MapType::ARRAY || whole.len() <= 2) {
                let heat = |key: &Vec<u8>| self.heat(site.id, key);
                let entries = whole.iter().map(|(key, value)| LookupEntry {
                    key: key.clone(),
                    value: Some(value.clone()),
                    heat: heat(key),
                });
                return Some((
                    LookupPlan::Whole(WholeMap { entries: entries.collect() }),
                    "code",
                    whole.len(),
                ));
            }
        }
        let entries = self.hot(site);
        let count = entries.len();
        (count > 0).then_some((LookupPlan::Hot(HotEntries { entries }), "hot keys", count))
    }

    fn profile(&self, site: SiteId) -> Option<&SiteProfile> {
        self.profiles.iter().find(|profile| profile.site == site)
    }

    fn heat(&self, site: SiteId, key: &[u8]) -> u64 {
        let keys = self.profile(site).map_or(&[][..], |profile| &profile.keys);
        keys.iter().find(|(known, _)| known == key).map_or(0, |(_, heat)| *heat)
    }

    /// The hottest keys of a look-up, if they have a good share of its packets.
    fn hot(&self, site: &LookupSite) -> Vec<LookupEntry> {
        let Some(profile) = self.profile(site.id).filter(|profile| profile.total > 0) else {
            return Vec::new();
        };
        let most: u64 = profile.keys.iter().take(self.keys).map(|(_, heat)| *heat).sum();
        if (most as f64) < LEAST_SHARE * profile.total as f64 {
            return Vec::new();
        }
        let (mut entries, mut covered) = (Vec::new(), 0);
        for (key, heat) in profile.keys.iter().take(self.keys) {
            if covered as f64 >= ENOUGH * most as f64 {
                break;
            }
            covered += heat;
            let Some(value) = self.tables.lookup(site.map, key) else { continue };
            entries.push(LookupEntry { key: key.clone(), value, heat: *heat });
        }
        entries
    }
}

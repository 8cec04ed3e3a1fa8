//! Maps of a session: those that variants may be specialised on, and those that may have caches.

use std::collections::BTreeSet;
use std::sync::Arc;

use millstream_ir::Map;
use millstream_kernel::KernelError;
use millstream_specializer::policy::{self, Tier};
use millstream_specializer::profile::SiteProfile;
use millstream_specializer::transform::{LookupSite, SiteId};
use millstream_specializer::variant::VariantCompiler;
use rustc_hash::FxHashMap;

use super::churn::ChurnTracker;
use super::loaded_programs::LoadedPrograms;
use crate::guard::Guard;
use crate::map_users::MapUsers;
use crate::snapshot::{Assumptions, SpecializableMap};
use crate::watched_inner_maps::WatchedInnerMaps;

/// Names of maps that others may write, with the reasons.
type LostMaps = Vec<(String, String)>;

/// The maps of a session.
#[derive(Debug)]
pub(super) struct SessionTables {
    pub(super) sources: Arc<FxHashMap<Map, SpecializableMap>>,
    /// Maps that the program writes, and that may have caches.
    pub(super) stateful: FxHashMap<Map, SpecializableMap>,
    /// The inner maps that may have caches, or be known, by the templates that stand for them.
    pub(super) nested: FxHashMap<Map, WatchedInnerMaps>,
    /// Names of the maps that the guard watches.
    pub(super) watched: Vec<String>,
    pub(super) refused: Vec<(String, String)>,
    /// Programs with the session's code that somebody else has loaded, and that may write maps that have
    /// caches.
    pub(super) copies: BTreeSet<u32>,
    /// Maps that change too often to be in code.
    pub(super) churn: ChurnTracker,
}

impl SessionTables {
    /// The lookups that could be specialised, or have a cache.
    pub(super) fn eligible<'s>(
        &'s self,
        programs: &'s LoadedPrograms<'_>,
    ) -> impl Iterator<Item = &'s LookupSite> + 's {
        let nested =
            |s: &LookupSite, is: &dyn Fn(&WatchedInnerMaps) -> bool| self.nested.get(&s.map).is_some_and(is);
        let may_have =
            move |s: &LookupSite| self.stateful.contains_key(&s.map) || nested(s, &|n| n.has_caches);
        let cached = move |s: &LookupSite| may_have(s) && s.is_comparable() && programs.compiler.may_cache(s);
        let known = move |s: &LookupSite| nested(s, &|n| n.is_known) && s.is_comparable();
        let may = move |s: &&LookupSite| policy::eligible(s, &self.sources) || cached(s) || known(s);
        programs.compiler.sites().iter().filter(move |s| programs.is_reached(s)).filter(may)
    }

    /// The maps that may have caches.
    pub(super) fn cached_now(&self, programs: &LoadedPrograms<'_>) -> BTreeSet<Map> {
        let inner = self.nested.iter().filter(|(_, nested)| nested.has_caches).map(|(template, _)| template);
        let all = self.stateful.keys().chain(inner);
        // A program that others call may be called in the form in which it does not count its writes.
        if programs.reached.contains(&programs.compiler.program()) {
            BTreeSet::new()
        } else {
            all.copied().collect()
        }
    }

    /// Maps of which nothing may be in code.
    pub(super) fn restless_in(&self, tier: Tier) -> BTreeSet<Map> {
        match tier {
            Tier::Standby => {
                let written = self.sources.iter().filter(|(_, s)| !s.is_constant).map(|(m, _)| *m);
                written.chain(self.nested.keys().copied()).collect()
            }
            Tier::Quick | Tier::Thorough => self.churn.maps(),
        }
    }

    /// Returns true if the keys of a lookup matter, and not only the words in them: if nothing is known of
    /// its map but absent keys, they do not.
    pub(super) fn has_hot_keys(&self, compiler: &VariantCompiler, id: SiteId) -> bool {
        let site = compiler.sites().iter().find(|site| site.id == id);
        site.and_then(|site| self.sources.get(&site.map)).is_none_or(SpecializableMap::is_known)
    }

    /// Maps in code that somebody may write.
    pub(super) fn at_risk(&self, record: &Assumptions) -> BTreeSet<Map> {
        // Inner maps are none of the sources.
        let may_change = |map: &Map| self.sources.get(map).is_none_or(|source| !source.is_constant);
        record.in_code().into_iter().filter(may_change).collect()
    }

    /// Profiles of the lookups that can be reached; an empty one for each that has none.
    pub(super) fn profiles_of_reached(
        &self,
        programs: &LoadedPrograms<'_>,
        profiles: &[SiteProfile],
    ) -> Vec<SiteProfile> {
        let known = |site: &LookupSite| profiles.iter().find(|p| p.site == site.id).cloned();
        let none = |site: &LookupSite| SiteProfile { site: site.id, total: 0, keys: Vec::new() };
        self.eligible(programs).map(|site| known(site).unwrap_or_else(|| none(site))).collect()
    }

    /// Gives up all caches.
    pub(super) fn give_up_caches(&mut self) {
        self.stateful.clear();
        self.nested.retain(|_, nested| nested.give_up_caches());
    }

    /// Keeps the caches that another compiler of the same object has as well.
    pub(super) fn keep_caches_of(&mut self, compiler: &VariantCompiler) {
        self.stateful.retain(|map, _| compiler.cache(*map).is_some());
        self.nested.retain(|template, nested| compiler.cache(*template).is_some() || nested.give_up_caches());
    }

    /// Returns true if others hold a map that the session relies on.
    pub(super) fn is_held_elsewhere(&self, programs: &LoadedPrograms<'_>) -> Result<bool, KernelError> {
        let (holders, ours) = (MapUsers::look()?, &programs.ours);
        let sources = self.sources.values().map(|s| s.foreign(&holders, ours));
        let uncounted = |s: &SpecializableMap| holders.uncounted(s.map.id(), ours);
        let written = self.stateful.values().map(|s| s.foreign(&holders, ours).or_else(|| uncounted(s)));
        let inside = self.nested.values().map(|n| n.foreign(&holders, ours));
        Ok(sources.chain(written).chain(inside).any(|why| why.is_some()))
    }

    /// Checks again who may write the maps, and gives up those that others may write. Returns these, with the
    /// reasons; `None` if another thread uses the maps.
    pub(super) fn review(
        &mut self,
        programs: &LoadedPrograms<'_>,
        guard: &mut Guard,
    ) -> Result<Option<LostMaps>, KernelError> {
        let mut lost = Vec::new();
        // Succeeds if no other thread has them.
        let Some(sources) = Arc::get_mut(&mut self.sources) else {
            return Ok(None);
        };
        let name = |template| programs.compiler.declaration(template).name.clone();
        self.nested.retain(|template, nested| match nested.look(guard) {
            Ok(()) => true,
            Err(why) => {
                lost.push((name(*template), why.to_string()));
                false
            }
        });
        let holders = MapUsers::look()?;
        self.nested.retain(|template, nested| match nested.foreign(&holders, &programs.ours) {
            Some(why) => {
                lost.push((name(*template), why.to_string()));
                false
            }
            None => true,
        });
        for (map, source) in &mut *sources {
            let template = programs.compiler.declaration(*map).inner;
            let nested = template.and_then(|template| self.nested.get(&template));
            source.knows_inside = nested.is_some_and(|nested| nested.is_known);
        }
        let uncounted = |source: &SpecializableMap| holders.uncounted(source.map.id(), &programs.ours);
        for (sources, has_caches) in [(sources, false), (&mut self.stateful, true)] {
            sources.retain(|_, source| {
                let foreign = source.foreign(&holders, &programs.ours);
                match foreign.or_else(|| if has_caches { uncounted(source) } else { None }) {
                    Some(why) => {
                        lost.push((source.map.info().name.clone(), why.to_string()));
                        false
                    }
                    None => true,
                }
            });
        }
        let written = self.stateful.values().flat_map(|s| holders.copies(s.map.id(), &programs.ours));
        let inside = self.nested.values().flat_map(|n| n.copies(&holders, &programs.ours));
        self.copies = written.chain(inside).collect();
        self.watched.retain(|name| !lost.iter().any(|(l, _)| l == name));
        self.refused.extend(lost.iter().cloned());
        Ok(Some(lost))
    }
}

//! Lookups in maps of maps: each finds a map, which code names as it names those of the object. Lookups in it
//! are then calls of their own kind, or the kernel's machine code for these, and no longer go through a table
//! of functions. If programs only read the inner maps, their contents become code, too.

use std::collections::BTreeSet;

use millstream_bpf::module;
use millstream_ir::Map;
use millstream_isa::MapType;

use super::{PlanInputs, QUICK_FIELDS, TINY, Tier, WHOLE};
use crate::profile::SiteProfile;
use crate::transform::lookup_plan::{LookupPlan, WholeMap};
use crate::transform::{InnerSitePlan, LookupSite, NamedInnerMap, SitePlan};
use crate::variant::object_map;

impl PlanInputs<'_> {
    /// Plans the lookups in the inner maps that have names: small ones become code as a whole, if programs do
    /// not write them, as far as there is room. Also returns true if there may be more, if there is time.
    pub(super) fn within(&self, inside: &[NamedInnerMap], tier: Tier) -> (Vec<InnerSitePlan>, bool) {
        let (mut plans, mut is_left) = (Vec::new(), false);
        for profile in self.profiles {
            let Some(site) = self.compiler.sites().iter().find(|s| s.id == profile.site) else { continue };
            if !site.is_inner || !site.is_comparable() {
                continue;
            }
            let (mut places, mut left) = (BTreeSet::new(), WHOLE);
            for named in self.looked_up_in(site, inside) {
                if !places.insert(named.place) {
                    continue;
                }
                let Some(lookup) = self.whole_inside(named, profile, tier, left) else {
                    is_left |= tier == Tier::Quick;
                    continue;
                };
                left -= lookup.entries().len();
                plans.push(InnerSitePlan { place: named.place, plan: SitePlan { site: site.id, lookup } });
            }
        }
        (plans, is_left)
    }

    /// Inner maps with names that may be known at a lookup.
    fn looked_up_in<'i>(
        &self,
        site: &LookupSite,
        inside: &'i [NamedInnerMap],
    ) -> impl Iterator<Item = &'i NamedInnerMap> {
        let (outers, _) = self.compiler.inner(site.map);
        let is_known = |i: &NamedInnerMap| {
            let template = self.compiler.declaration(i.outer).inner;
            template.is_some_and(|template| self.observed.knows_inside(i.outer, template))
        };
        let named = inside.iter().filter(|i| outers.contains(&object_map(i.outer)) && is_known(i));
        named.collect::<Vec<_>>().into_iter()
    }

    /// Returns true if everything that a lookup in inner maps may find is in code.
    pub(crate) fn is_known_within(
        &self,
        site: &LookupSite,
        plan: (&[SitePlan], &[NamedInnerMap], &[InnerSitePlan]),
    ) -> bool {
        let (sites, inside, within) = plan;
        let is_whole = |map: Map| {
            let of = |p: &&SitePlan| self.compiler.sites().iter().any(|s| s.id == p.site && s.map == map);
            sites.iter().filter(of).all(|p| p.lookup.specialization().answers_all())
        };
        let is_within = |i: &NamedInnerMap| {
            within.iter().any(|w| w.plan.site == site.id && w.place == i.place) && is_whole(i.outer)
        };
        let mut named = self.looked_up_in(site, inside).peekable();
        named.peek().is_some() && named.all(is_within)
    }

    /// Makes code of a whole inner map, if it has no more entries than `left`, and it pays.
    fn whole_inside(
        &self,
        named: &NamedInnerMap,
        profile: &SiteProfile,
        tier: Tier,
        left: usize,
    ) -> Option<LookupPlan> {
        // The object's own maps have an index of their own in the guard.
        if !self.compiler.is_own(object_map(named.place)) {
            return None;
        }
        let template = self.compiler.declaration(named.outer).inner?;
        let kind = MapType(self.compiler.declaration(template).kind);
        let room = if tier == Tier::Thorough { left as u32 } else { TINY.min(left as u32) };
        let most = (room, QUICK_FIELDS);
        let table = self.observed.table_inside((named.outer, template), (named.id, named.place), most)?;
        match table.is_empty() {
            true => Some(LookupPlan::Empty),
            false => WholeMap::of_table(table, kind, profile).map(LookupPlan::Whole),
        }
    }

    /// Makes a map stand for the one of this id, if there is one left that can.
    pub(super) fn name(&self, outer: Map, value: &[u8], inside: &mut Vec<NamedInnerMap>) -> bool {
        let Ok(id) = value.try_into().map(u32::from_ne_bytes) else { return false };
        if inside.iter().any(|i| i.outer == outer && i.id == id) {
            return true;
        }
        // A map has one name, whichever way it is found.
        let named = inside.iter().find(|i| i.id == id).map(|i| i.place);
        let own = || self.observed.own(outer, id);
        let free = || {
            let mut places = self.compiler.places(outer).iter().map(|place| module::map(*place));
            places.find(|place| !inside.iter().any(|i| i.place == *place))
        };
        let Some(place) = named.or_else(own).or_else(free) else { return false };
        inside.push(NamedInnerMap { outer, id, place });
        true
    }
}

//! Lookups in maps of maps: what they find is a map, which code names as it names those of the object. Lookups in it are calls of its
//! own kind then, or the machine code that the kernel has for these, and no longer go by a table of functions.

use millstream_bpf::module;
use millstream_ir::Map;
use millstream_kernel::MapType;

use super::{Known, TINY, Tier, WHOLE, cost, whole};
use crate::profile::SiteProfile;
use crate::transform::{Contents, Inside, Lookup, Site};

impl Known<'_> {
    /// What becomes of a lookup in a map of maps, and which maps are named for that.
    pub(super) fn outer(
        &self,
        site: &Site,
        profile: &SiteProfile,
        tier: Tier,
        inside: &mut Vec<Inside>,
    ) -> Option<Lookup> {
        let (outer, decl) = (site.map, self.compiler.declaration(site.map));
        let kind = MapType(decl.kind);
        let in_time = tier == Tier::Thorough || decl.max_entries <= TINY;
        if in_time
            && decl.max_entries as usize <= WHOLE
            && let Some(table) = self.observed.table(outer)
        {
            let lookup = whole(table, kind, profile);
            match &lookup {
                Lookup::Whole(all) if cost::whole(kind, all) < cost::lookup(kind, all.len()) => {
                    let named =
                        all.iter().flat_map(|entry| &entry.value).all(|id| self.name(outer, id, inside));
                    if named {
                        return Some(lookup);
                    }
                }
                Lookup::Whole(_) => {}
                _ => return Some(lookup),
            }
        }
        let behind = cost::lookup(kind, decl.max_entries as usize);
        let mut entries = self.hot(profile, behind, |key| self.observed.lookup(outer, key));
        entries.retain(|entry| entry.value.as_ref().is_none_or(|id| self.name(outer, id, inside)));
        (!entries.is_empty()).then_some(Lookup::Hot(entries))
    }

    /// Has a map stand for the one of this number, if there is one left that can.
    fn name(&self, outer: Map, value: &[u8], inside: &mut Vec<Inside>) -> bool {
        let Ok(id) = value.try_into().map(u32::from_ne_bytes) else { return false };
        if inside.iter().any(|i| i.outer == outer && i.id == id) {
            return true;
        }
        // One map has one name, whichever way it is found.
        let named = inside.iter().find(|i| i.id == id).map(|i| i.place);
        let own = || self.observed.own(outer, id);
        let free = || {
            let mut places = self.compiler.places(outer).iter().map(|place| module::map(*place));
            places.find(|place| !inside.iter().any(|i| i.place == *place))
        };
        let Some(place) = named.or_else(own).or_else(free) else { return false };
        inside.push(Inside { outer, id, place });
        true
    }
}

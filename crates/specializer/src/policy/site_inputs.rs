//! Inputs of the choice of a specialization for one lookup.

use std::collections::{BTreeMap, btree_map};

use millstream_bpf::module;
use millstream_ir::{Map, MapDecl};
use millstream_isa::MapType;

use super::{PlanInputs, TINY, Tier, WHOLE, cost, is_hash, may_have_shadow_table};
use crate::profile::SiteProfile;
use crate::snapshot::MapEntries;
use crate::transform::lookup_plan::{LookupPlan, PROPOSALS};
use crate::transform::{self, LookupSite, NamedInnerMap, ShadowTable};

/// A lookup that is to be specialized, with its traffic, and the contents of its map. What the kinds have in
/// common is read once.
pub(crate) struct SiteInputs<'k> {
    pub(crate) inputs: &'k PlanInputs<'k>,
    pub(crate) tier: Tier,
    pub(crate) site: &'k LookupSite,
    /// Traffic of the lookups that tests of key words let pass.
    pub(crate) profile: &'k SiteProfile,
    /// Shadow tables of the plan.
    shadow_tables: &'k mut BTreeMap<Map, ShadowTable>,
    /// Inner maps with names.
    inside: &'k mut Vec<NamedInnerMap>,
    /// The entries of the map, once they are read.
    table: Option<Option<MapEntries>>,
    /// The placeholder of the map's shadow table, once that is made.
    shadow_map: Option<Option<Map>>,
}

impl<'k> SiteInputs<'k> {
    pub(super) fn new(
        (inputs, tier): (&'k PlanInputs<'k>, Tier),
        site: &'k LookupSite,
        profile: &'k SiteProfile,
        (shadow_tables, inside): (&'k mut BTreeMap<Map, ShadowTable>, &'k mut Vec<NamedInnerMap>),
    ) -> Self {
        SiteInputs { inputs, tier, site, profile, shadow_tables, inside, table: None, shadow_map: None }
    }

    /// Chooses a specialization; `None` if the lookup stays as it is.
    pub(super) fn propose(&mut self) -> Option<LookupPlan> {
        let knows = self.inputs.observed.knows(self.site.map);
        PROPOSALS.iter().filter(|_| knows).find_map(|propose| propose(self))
    }

    /// The map.
    pub(crate) fn declaration(&self) -> &'k MapDecl {
        self.inputs.compiler.declaration(self.site.map)
    }

    /// The type of the map.
    pub(crate) fn kind(&self) -> MapType {
        MapType(self.declaration().kind)
    }

    /// Nanoseconds of a lookup in the map.
    pub(crate) fn lookup_cost(&self) -> f64 {
        cost::lookup(self.kind(), self.declaration().max_entries as usize)
    }

    /// Returns true if code can name the inner map that a value of a map of maps stands for, and names it. Any
    /// result of a lookup in another map is known as it is.
    pub(crate) fn can_name(&mut self, value: Option<&[u8]>) -> bool {
        let is_outer = self.declaration().inner.is_some();
        value.filter(|_| is_outer).is_none_or(|id| self.inputs.name(self.site.map, id, self.inside))
    }

    /// The entries of the map, if they may be in code, and there is time for it.
    pub(crate) fn table(&mut self) -> Option<&MapEntries> {
        if self.table.is_none() {
            self.table = Some(self.read_table());
        }
        self.table.as_ref()?.as_ref()
    }

    /// The same, for a kind that puts them into code.
    pub(crate) fn take_table(&mut self) -> Option<MapEntries> {
        self.table()?;
        self.table.take()?
    }

    fn read_table(&self) -> Option<MapEntries> {
        let (decl, kind) = (self.declaration(), self.kind());
        let in_time = self.tier == Tier::Thorough || decl.max_entries <= TINY;
        // An array has as many entries as it has room for; others may have fewer.
        let has_all = kind == MapType::ARRAY || decl.inner.is_some();
        let may_pay = !has_all || decl.max_entries as usize <= WHOLE;
        let table = (in_time && may_pay).then(|| self.inputs.observed.table(self.site.map))??;
        (table.len() <= WHOLE).then_some(table)
    }

    /// The shadow table of the map that answers this lookup, and the map that holds it, if it is faster than
    /// code.
    pub(crate) fn shadow_table(&mut self) -> Option<(Map, &ShadowTable)> {
        if self.shadow_map.is_none() {
            self.shadow_map = Some(self.make_shadow_table());
        }
        Some((self.shadow_map??, self.shadow_tables.get(&self.site.map)?))
    }

    fn make_shadow_table(&mut self) -> Option<Map> {
        let (PlanInputs { compiler, observed, unfit, .. }, map) = (self.inputs, self.site.map);
        let in_trie = may_have_shadow_table(compiler, self.site, unfit);
        let place = compiler.twin(map).filter(|_| in_trie || self.may_have_rows())?;
        if self.is_few() || in_trie && !observed.constant(map, 0..self.declaration().value_size) {
            return None;
        }
        let table = match self.shadow_tables.entry(map) {
            btree_map::Entry::Vacant(vacant) => vacant.insert(observed.twin(map, &compiler.bytes_read(map))?),
            btree_map::Entry::Occupied(made) => made.into_mut(),
        };
        // A trie may have been made for another lookup of the map.
        let fits = in_trie || !matches!(table, ShadowTable::Trie(_));
        fits.then_some(module::map(place))
    }

    /// Returns true if the key can be searched in rows: of a hash map, or of prefixes of one length.
    fn may_have_rows(&self) -> bool {
        let may_be_found = |layout| {
            let is_prefix = self.kind() == MapType::LPM_TRIE && transform::has_length(layout);
            transform::whole_words(layout) && (is_hash(self.declaration()) || is_prefix)
        };
        !self.inputs.unfit.contains(&self.site.id)
            && self.site.is_comparable()
            && self.site.layout().is_some_and(may_be_found)
    }

    /// Returns true if code finds an entry of the map faster than a shadow table would: mispredicted branches take
    /// longer than its loads. A map that may become large is left to a shadow table, which follows it, until it
    /// has not been written for a while.
    fn is_few(&self) -> bool {
        let (observed, map, decl) = (self.inputs.observed, self.site.map, self.declaration());
        if observed.is_churning(map) {
            return false;
        }
        let (is_hash, is_tiny) = (is_hash(decl), decl.max_entries <= TINY);
        let count = || observed.count(map);
        match is_tiny {
            true => !is_hash || count().is_none_or(|n| cost::searched(n) <= cost::TWIN),
            false if self.tier == Tier::Thorough => {
                count().is_some_and(|n| n == 0 || is_hash && cost::searched(n) <= cost::TWIN)
            }
            false => false,
        }
    }
}

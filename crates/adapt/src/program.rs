//! The program in the form that has look-ups to specialise, and the tables whose contents may be in code.

use std::collections::BTreeMap;
use std::ops::Range;

use millstream_interp::MapKind;
use millstream_ir::usage::{AccessRange, MapAccess, ModuleMapUsage};
use millstream_ir::{Func, Map, MapDecl, Module};
use millstream_isa::MapType;
use millstream_native::VariantBuilder;
use millstream_passes::{PassError, PassSession, TargetInfo};
use millstream_specializer::transform::{
    self, CallbackMode, LookupSite, MapContents, ProfileSketch, SiteId, SpecializationPlan, TransformError,
    TransformReport,
};

/// Slots of the sketch for each look-up.
pub(crate) const SLOTS: u32 = 64;
/// Look-ups that are profiled, at most.
const MOST_SITES: usize = 64;

/// Type of tables of masks and ranges with priorities. Their entries have names that are not keys of look-ups.
const PRIORITIES: u32 = MapKind::Priority as u32;

/// Reason why a form of the program cannot be made.
#[derive(Debug, thiserror::Error)]
pub(crate) enum FormError {
    #[error(transparent)]
    Pass(#[from] PassError),
    #[error(transparent)]
    Transform(#[from] TransformError),
}

/// A table that no program writes, or whose entries at least stay.
#[derive(Clone, Debug)]
pub(crate) struct StableTable {
    /// Its name.
    pub(crate) name: String,
    /// Its type.
    pub(crate) kind: MapType,
    /// Bytes of values that programs read and do not write.
    pub(crate) read: Vec<Range<u32>>,
    /// Bytes of values that programs write.
    written: Vec<AccessRange>,
}

impl StableTable {
    fn of(decl: &MapDecl, uses: &millstream_ir::usage::MapUse) -> Option<StableTable> {
        let kind = MapType(decl.kind);
        let fits =
            matches!(kind, MapType::ARRAY | MapType::HASH | MapType::LPM_TRIE) || decl.kind == PRIORITIES;
        let written = match uses.access(decl) {
            MapAccess::ReadOnly => Vec::new(),
            MapAccess::FieldsWritten(written) => written,
            MapAccess::Unused | MapAccess::Written => return None,
        };
        let read = uses.bytes_read().into_iter().map(|range| range.start..range.end).collect();
        fits.then(|| StableTable { name: decl.name.clone(), kind, read, written })
    }

    /// Returns true if a key of an entry is a key of look-ups, too.
    pub(crate) fn has_plain_keys(&self) -> bool {
        self.kind.0 != PRIORITIES
    }

    /// Returns true if programs do not write these bytes of values.
    pub(crate) fn is_constant(&self, bytes: &Range<u32>) -> bool {
        self.written.iter().all(|written| bytes.end <= written.start || written.end <= bytes.start)
    }
}

/// The program of an engine, prepared for specialization.
#[derive(Debug)]
pub(crate) struct AdaptableProgram {
    prepared: Module,
    entry: Func,
    sites: Vec<LookupSite>,
    tables: BTreeMap<Map, StableTable>,
}

fn session() -> PassSession {
    PassSession::new(TargetInfo::native())
}

impl AdaptableProgram {
    /// Prepares the program of an engine.
    pub(crate) fn new(builder: &VariantBuilder) -> Result<AdaptableProgram, FormError> {
        let (mut prepared, entry) = (builder.module().clone(), builder.entry());
        transform::prepare(&mut prepared, CallbackMode::Unfolded, &mut session())?;
        let usage = ModuleMapUsage::new(&prepared);
        // Others write shared memory, and lookups in inner maps do not say in which map they are made.
        let is_named = |name: &str| builder.external_maps().any(|external| external == name);
        let is_inner = |map: Map| prepared.maps.values().any(|outer| outer.inner == Some(map));
        let stable = |(map, decl): (Map, &MapDecl)| {
            let may = decl.inner.is_none() && !is_inner(map) && !is_named(&decl.name);
            Some((map, StableTable::of(decl, &usage.of_module(map)).filter(|_| may)?))
        };
        let tables: BTreeMap<Map, StableTable> = prepared.maps.iter().filter_map(stable).collect();
        let mut sites = transform::sites(&prepared, entry, 0);
        sites.retain(|site| !site.is_inner && site.is_comparable() && tables.contains_key(&site.map));
        sites.truncate(MOST_SITES);
        Ok(AdaptableProgram { prepared, entry, sites, tables })
    }

    /// Tables whose contents may be in code.
    pub(crate) fn tables(&self) -> &BTreeMap<Map, StableTable> {
        &self.tables
    }

    /// Look-ups in these tables.
    pub(crate) fn sites(&self) -> &[LookupSite] {
        &self.sites
    }

    /// Numbers of the maps that no program writes as a whole.
    pub(crate) fn followed(&self) -> Vec<usize> {
        self.tables.keys().map(|map| map.as_u32() as usize).collect()
    }

    /// Declaration of the map for a profile, which is the next one after those of the program.
    pub(crate) fn sketch_map(&self) -> MapDecl {
        let widest = self.sites.iter().map(|site| site.key_size).max().unwrap_or(0);
        MapDecl {
            name: "adapt.sketch".to_owned(),
            kind: MapType::ARRAY.0,
            key_size: 4,
            value_size: ProfileSketch::value_size(widest),
            max_entries: SLOTS * (self.sites.len() as u32).max(1),
            flags: 0,
            global: None,
            inner: None,
        }
    }

    /// Number of the map for a profile.
    pub(crate) fn sketch(&self) -> Map {
        Map::from_u32(self.prepared.maps.len() as u32)
    }

    /// The program with each look-up recorded in the map for a profile.
    pub(crate) fn instrumented(&self) -> Result<Module, FormError> {
        let mut module = self.prepared.clone();
        let map = module.maps.push(self.sketch_map());
        let wanted: Vec<SiteId> = self.sites.iter().map(|site| site.id).collect();
        let sketch = ProfileSketch { map, slots: SLOTS };
        transform::instrument(&mut module, self.entry, 0, &wanted, &sketch)?;
        transform::finish(&mut module, &mut session())?;
        Ok(module)
    }

    /// The program in the form of a plan.
    pub(crate) fn specialized(
        &self,
        plan: &SpecializationPlan,
        contents: &dyn MapContents,
    ) -> Result<(Module, TransformReport), FormError> {
        let mut module = self.prepared.clone();
        let report = transform::specialize(&mut module, self.entry, plan, contents)?;
        transform::finish(&mut module, &mut session())?;
        Ok((module, report))
    }
}

//! From an object to loadable variants of one of its programs.
//!
//! The object is given more maps (`auxiliary_maps`), then lifted and prepared once, or twice if there are
//! callbacks that can be loops. Each variant is a clone of that module, transformed, cleaned up, lowered and
//! put into a clone of the object. Everything else of the object stays as clang compiled it.

use std::collections::BTreeSet;
use std::hash::{BuildHasher, RandomState};
use std::time::{Duration, Instant};

use cranelift_entity::EntityRef;
use millstream_bpf::lift::LiftError;
use millstream_bpf::lower::{self, LowerError, LoweringStrategy};
use millstream_bpf::module::{self, LiftedModule, lift_object, new_function};
use millstream_ir as ir;
use millstream_isa::RawInsn;
use millstream_object::{self as obj, FuncId, LinkedProgram, MapId, Object, ObjectError};
use millstream_passes::{PassError, PassSession, widen_types};
use rustc_hash::FxHashMap;

use crate::auxiliary_maps::AuxiliaryMaps;
use crate::guard_state::{self, DeoptMask};
use crate::host::VariantHost;
use crate::stateful_maps::{self, StatefulMap};
use crate::transform::{
    self, CallbackMode, EntryCache, FallbackTailCall, InlinedTailCall, LookupSite, MapContents, PacketKind,
    ProfileSketch, ProgArrayPair, SampleBuffer, SampleMode, ShadowCapacity, SiteId, SpecializationPlan,
    SyncCounters, TransformError, TransformReport,
};

/// Slots of the sketch for each site.
const SLOTS: u32 = 256;
/// Lookups of a chain of programs, at most: later programs of the chain are left as they are.
const MOST_SITES: usize = 192;
/// Inner maps of one shape that are read, at most.
const MOST_INSIDE: u64 = 64;
/// Sides of each twin: the one that packets read, and those that can be written before a grace period has
/// passed.
pub const SIDES: u32 = 4;

/// Reason why a variant cannot be made.
#[derive(Debug, thiserror::Error)]
pub enum VariantError {
    /// The object has no such program, or several and none was named.
    #[error("{0}")]
    Program(String),
    /// The program is no valid bytecode.
    #[error(transparent)]
    Lift(#[from] LiftError),
    /// A pass has made the IR invalid.
    #[error(transparent)]
    Pass(#[from] PassError),
    /// The transform could not do what was planned.
    #[error(transparent)]
    Transform(#[from] TransformError),
    /// The result is not valid BPF.
    #[error(transparent)]
    Lower(#[from] LowerError),
    /// The result does not fit the object.
    #[error(transparent)]
    Object(#[from] ObjectError),
}

/// A variant that can be loaded.
#[derive(Debug)]
pub struct Variant {
    /// The object with this form of the program.
    pub object: Object,
    /// The program.
    pub linked: LinkedProgram,
    /// Programs that it reaches by tail calls, in the form that belongs to it.
    pub callees: Vec<(FuncId, LinkedProgram)>,
    /// Program arrays and slots of those of them that are inlined at the call in the program itself.
    pub joined: Vec<(ir::Map, u32, FuncId)>,
    /// Report of the transforms.
    pub report: TransformReport,
    /// Instructions of the program that lie in loops: the kernel follows these in every iteration.
    pub in_loops: usize,
    /// Time for making it.
    pub time: Duration,
}

/// Codes of `r0 = 0` and `exit`.
const MOV_IMMEDIATE: u8 = 0xb7;
const EXIT: u8 = 0x95;

/// Maps that are added to the program, or that code names in their place.
#[derive(Debug)]
pub struct VariantPlaceholders {
    /// Program arrays through which parts call, and the placeholders of those that hold variants.
    arrays: Vec<(ir::Map, MapId)>,
    guard: MapId,
    sketch: MapId,
    samples: SampleBuffer,
    misses: MapId,
    standby: MapId,
    /// Maps that can have twins, and their placeholders.
    twins: Vec<(ir::Map, MapId)>,
    /// Maps that can have caches, templates of inner ones among them, and the placeholders of these.
    caches: Vec<(ir::Map, MapId, StatefulMap)>,
    /// Maps of maps, and the placeholders of their inner maps.
    insides: Vec<(ir::Map, Vec<MapId>)>,
}

/// Makes variants of one program.
#[derive(Debug)]
pub struct VariantCompiler {
    object: Object,
    program: FuncId,
    described: obj::EntryProgram,
    prepared: LiftedModule,
    usage: ir::usage::ModuleMapUsage,
    /// The program, then those that its tail calls may reach, with the number of the first site of each.
    parts: Vec<(FuncId, u32)>,
    sites: Vec<LookupSite>,
    placeholders: VariantPlaceholders,
    /// Secret from which, with the keys, the slots of caches are computed.
    secret: u64,
    isa: u8,
    host: VariantHost,
    /// The same program with calls of the callbacks that are loops here.
    calling: Option<Box<VariantCompiler>>,
    /// False if no packets are to be passed to the standby variant.
    has_standby_slot: bool,
}

/// Inputs of a variant.
#[derive(Clone, Copy)]
pub struct VariantRequest<'w> {
    /// Its plan.
    pub plan: &'w SpecializationPlan,
    /// Contents of maps.
    pub contents: &'w dyn MapContents,
    /// Room in the twin of each map.
    pub rooms: &'w FxHashMap<ir::Map, ShadowCapacity>,
    /// Programs that it reaches by tail calls and that need variants that belong to it.
    pub callees: &'w [FuncId],
    /// Program arrays and slots that hold one of them each: calls through these are inlined.
    pub joins: &'w [(ir::Map, u32, FuncId)],
}

impl VariantCompiler {
    /// The source line of a lookup, as `FILE:LINE`, if the object says it.
    pub fn source_line(&self, site: &LookupSite) -> Option<String> {
        let body = self.prepared.module.funcs.get(site.func)?;
        let line = self.prepared.lines.get(body.insts[site.inst].loc as usize)?;
        let file = self.object.btf.as_ref()?.str(line.file).rsplit('/').next().unwrap_or_default();
        (line.line > 0).then(|| format!("{file}:{}", line.line))
    }

    /// Prepares a program, the one named or the only one, for a host.
    ///
    /// # Errors
    /// If there is no such program, or it cannot be lifted.
    pub fn new(
        object: &Object,
        program: Option<&str>,
        host: VariantHost,
    ) -> Result<VariantCompiler, VariantError> {
        let mut object = object.clone();
        let described = choose(&object, program)?.clone();
        // Nothing calls functions that were removed, so that any code will do.
        for function in object.functions.iter_mut().filter(|f| f.removed) {
            let slot = |code| RawInsn { code, dst: 0, src: 0, off: 0, imm: 0 };
            function.insns = vec![slot(MOV_IMMEDIATE), slot(EXIT)];
        }
        let added = AuxiliaryMaps::to(&mut object, host.possible_cpus);
        // All of them: a program that is not understood might write any map.
        let lifted = lift_object(&object)?;
        let unfolds = transform::unfolds(&lifted.module);
        let other = unfolds.then(|| {
            VariantCompiler::prepared(
                (&object, &described, &added),
                lifted.clone(),
                CallbackMode::Called,
                host,
            )
        });
        let mut it =
            VariantCompiler::prepared((&object, &described, &added), lifted, CallbackMode::Unfolded, host)?;
        let mut calling = other.transpose()?;
        let both = || std::iter::once(&it).chain(&calling);
        let sites = both().map(|c| c.sites.len() as u32).max().unwrap_or(0);
        let widest = both().flat_map(|c| &c.sites).map(|s| s.key_size).max().unwrap_or(0);
        if let Some(calling) = &mut calling {
            // Numbers of twins belong to the guard, and entries of caches are found by the secret, whichever
            // of the two makes the code.
            it.placeholders.twins.retain(|twin| calling.placeholders.twins.contains(twin));
            calling.placeholders.twins.clone_from(&it.placeholders.twins);
            calling.secret = it.secret;
            calling.make_room(sites, widest);
        }
        it.make_room(sites, widest);
        it.calling = calling.map(Box::new);
        Ok(it)
    }

    /// Prepares the program of a lifted object, without room for its sites in the maps that were added.
    fn prepared(
        (object, described, added): (&Object, &obj::EntryProgram, &AuxiliaryMaps),
        lifted: LiftedModule,
        callbacks: CallbackMode,
        host: VariantHost,
    ) -> Result<VariantCompiler, VariantError> {
        let (program, isa) = (described.func, obj::isa_version(object).max(3));
        let mut prepared = lifted;
        let target = host.target(isa);
        let knowledge = target.domain().knowledge;
        prepared.module.funcs.values_mut().for_each(|func| widen_types(func, knowledge));
        transform::prepare(&mut prepared.module, callbacks, &mut PassSession::new(target))?;
        // Usage of the prepared module: pointers that the compiler spilled would be taken for one another.
        let usage = ir::usage::ModuleMapUsage::new(&prepared.module);
        let (parts, sites) = parts(object, &prepared.module, described);
        let calls = |map| {
            let called = |f: &FuncId| transform::calls(&prepared.module, module::func(*f));
            parts.iter().any(|(f, _)| called(f).iter().any(|(array, _)| *array == map))
        };
        let arrays: Vec<_> = added.chains.iter().copied().filter(|(of, _)| calls(*of)).collect();
        let bodies = parts.iter().map(|(f, _)| &prepared.module.funcs[module::func(*f)]);
        let compared: BTreeSet<ir::Map> = bodies.flat_map(compared).collect();
        let twins = added.twins.iter().copied().filter(|(of, _)| !compared.contains(of)).collect();
        let known = |&(map, place): &(ir::Map, MapId)| {
            let of = prepared.module.maps[map].inner.unwrap_or(map);
            sites.iter().find(|site| site.map == of && site.func == module::func(program))?;
            let known = stateful_maps::stateful(&prepared.module, &usage, module::func(program), of)?;
            Some((of, place, known))
        };
        let caches = added.caches.iter().filter_map(known).collect();
        Ok(VariantCompiler {
            object: object.clone(),
            program,
            described: described.clone(),
            prepared,
            usage,
            parts,
            sites,
            placeholders: VariantPlaceholders {
                arrays,
                guard: added.guard,
                sketch: added.sketch,
                samples: added.samples,
                misses: added.misses,
                standby: added.standby,
                twins,
                caches,
                insides: added.insides.clone(),
            },
            // Drawn by the system's generator, as the seeds of the standard library's tables are.
            secret: RandomState::new().hash_one(0),
            isa,
            host,
            calling: None,
            has_standby_slot: true,
        })
    }

    /// Makes room for so many sites, of keys that are no wider, in the maps of the profile.
    fn make_room(&mut self, sites: u32, widest: u32) {
        let maps = [
            (self.placeholders.sketch, ProfileSketch::value_size(widest), SLOTS * sites.max(1)),
            (self.placeholders.misses, 8, sites.max(1)),
        ];
        for (map, size, entries) in maps {
            let spec = &mut self.object.maps[map.index()].spec;
            (spec.value_size, spec.max_entries) = (size, entries);
            let decl = &mut self.prepared.module.maps[module::map(map)];
            (decl.value_size, decl.max_entries) = (size, entries);
        }
    }

    /// The same program and the same maps, but with calls of the callbacks that are loops here; lookups have
    /// other numbers. `None` if there are no such callbacks.
    pub fn calling(&self) -> Option<&VariantCompiler> {
        self.calling.as_deref()
    }

    /// The object with the added maps.
    pub fn object(&self) -> &Object {
        &self.object
    }

    /// The program.
    pub fn program(&self) -> FuncId {
        self.program
    }

    /// The name of the map that the guard's state replaces.
    pub fn guard_name(&self) -> &str {
        &self.object.maps[self.placeholders.guard.index()].name
    }

    /// Returns true if a map is one of those that were added: they belong to one session only.
    pub fn is_own(&self, map: MapId) -> bool {
        // All added maps come after the maps that are looked up.
        map.index() >= self.placeholders.guard.index()
    }

    /// The map of the profile.
    pub fn sketch(&self) -> MapId {
        self.placeholders.sketch
    }

    /// The map of the guard's state.
    pub fn guard_map(&self) -> MapId {
        self.placeholders.guard
    }

    /// The map of the packets that are kept for the judge.
    pub fn samples(&self) -> MapId {
        MapId(self.placeholders.samples.map.index() as u32)
    }

    /// The map in which variants count lookups that none of their hot keys answers, by number of the site.
    pub fn misses(&self) -> MapId {
        self.placeholders.misses
    }

    /// The program array of the standby variant, if packets can be passed to it: if the program makes tail
    /// calls itself, one more would be one too many at the end of a long chain.
    pub fn standby(&self) -> Option<MapId> {
        let calls = !self.placeholders.arrays.is_empty()
            || transform::may_call_more(&self.prepared.module, module::func(self.program));
        let may_pass = self.has_standby_slot && !calls && self.packet_kind().is_some();
        may_pass.then_some(self.placeholders.standby)
    }

    /// Makes variants that pass no packets to the standby variant, which takes a tail call: since Linux 6.12,
    /// tail calls count as changes of the packet, which extensions of some programs may not make.
    #[must_use]
    pub fn without_standby_slot(mut self) -> VariantCompiler {
        self.has_standby_slot = false;
        self.calling = self.calling.map(|calling| Box::new(calling.without_standby_slot()));
        self
    }

    /// Kind of the program's input; `None` if it is no packet that could be kept.
    pub fn packet_kind(&self) -> Option<PacketKind> {
        match self.described().kind.program_type {
            obj::ProgramType::XDP => Some(PacketKind::Xdp),
            obj::ProgramType::SCHED_CLS => Some(PacketKind::Skb),
            _ => None,
        }
    }

    /// The program, as the object describes it.
    pub fn described(&self) -> &obj::EntryProgram {
        &self.described
    }

    /// Placeholder of the twin of a map, if it can have one.
    pub fn twin(&self, map: ir::Map) -> Option<MapId> {
        self.placeholders.twins.iter().find(|(of, _)| *of == map).map(|(_, twin)| *twin)
    }

    /// The guard's slot by which specialised code can do without this map alone, if it has a twin.
    pub fn slot(&self, map: ir::Map) -> Option<DeoptMask> {
        let number = (0..guard_state::SLOTS).zip(&self.placeholders.twins).find(|(_, (of, _))| *of == map)?.0;
        Some(DeoptMask::one(number))
    }

    /// Placeholder of the cache of a map, if it can have one.
    pub fn cache(&self, map: ir::Map) -> Option<MapId> {
        self.placeholders.caches.iter().find(|(of, _, _)| *of == map).map(|(_, place, _)| *place)
    }

    /// Maps that programs write and that can have caches, and templates of inner maps that can.
    pub fn cacheable(&self) -> impl Iterator<Item = ir::Map> {
        self.placeholders.caches.iter().map(|(of, _, _)| *of)
    }

    /// The map of maps whose inner maps a template stands for; `None` if it is no template.
    fn outer(&self, template: ir::Map) -> Option<MapId> {
        let outer = self.prepared.module.maps.iter().find(|(_, m)| m.inner == Some(template));
        outer.map(|(id, _)| object_map(id))
    }

    /// The maps of maps whose inner maps have a template's shape, and the maps of the object that have it
    /// themselves. Empty if it is no template.
    pub fn inner(&self, template: ir::Map) -> (Vec<MapId>, Vec<MapId>) {
        let (mut outers, mut others) = (Vec::new(), Vec::new());
        if self.outer(template).is_some() {
            for map in transform::of_shape(&self.prepared.module, template) {
                match self.outer(map) {
                    Some(outer) => outers.push(outer),
                    None if self.is_own(object_map(map)) => {}
                    None => others.push(object_map(map)),
                }
            }
        }
        (outers, others)
    }

    /// The type of the inner maps of a map of maps, and the access of all programs of the object to them.
    pub fn inside(&self, outer: MapId) -> Option<(millstream_isa::MapType, ir::usage::MapAccess)> {
        let module = &self.prepared.module;
        let template = module.maps[module::map(outer)].inner?;
        let mut uses = ir::usage::MapUse::default();
        transform::of_shape(module, template).for_each(|map| uses.absorb(&self.usage.of_module(map)));
        let decl = &module.maps[template];
        Some((millstream_isa::MapType(decl.kind), uses.access(decl)))
    }

    /// The templates of the inner maps that lookups are made in.
    pub fn templates(&self) -> BTreeSet<ir::Map> {
        self.sites.iter().filter(|s| s.is_inner).map(|s| s.map).collect()
    }

    /// Returns true if the contents of the inner maps of a template's shape can be known: no program writes
    /// them, and they are few.
    pub fn knows_inside(&self, template: ir::Map) -> bool {
        let (outers, _) = self.inner(template);
        let is_read = |outer: &MapId| {
            let kinds = (millstream_isa::MapType::ARRAY, millstream_isa::MapType::HASH);
            let Some((kind, access)) = self.inside(*outer) else { return false };
            (kind == kinds.0 || kind == kinds.1)
                && matches!(access, ir::usage::MapAccess::ReadOnly | ir::usage::MapAccess::Unused)
        };
        let room: u64 = outers.iter().map(|o| u64::from(self.object.maps[o.index()].spec.max_entries)).sum();
        !outers.is_empty() && outers.iter().all(is_read) && room <= MOST_INSIDE
    }

    /// Placeholders of the inner maps of a map of maps.
    pub fn places(&self, outer: ir::Map) -> &[MapId] {
        self.placeholders.insides.iter().find(|(of, _)| *of == outer).map_or(&[], |(_, places)| places)
    }

    /// The maps of the object itself that may be inside a map of maps.
    pub fn may_be_inside(&self, outer: ir::Map) -> Vec<ir::Map> {
        let Some(template) = self.declaration(outer).inner else { return Vec::new() };
        let all = transform::of_shape(&self.prepared.module, template);
        all.filter(|map| !self.is_own(object_map(*map))).collect()
    }

    /// Describes a cache of a map; `None` if it can have none.
    pub fn cache_for(&self, map: ir::Map) -> Option<EntryCache> {
        let (_, place, known) = self.placeholders.caches.iter().find(|(of, _, _)| *of == map)?;
        let decl = self.declaration(map);
        // The size of a template says nothing about the maps that are put inside.
        let entries = self.outer(map).is_none().then_some(decl.max_entries);
        let cpus = u32::try_from(self.host.cpu_numbers?).ok()?;
        Some(EntryCache {
            of: map,
            place: module::map(*place),
            shape: stateful_maps::shape((decl.key_size, decl.value_size), entries, cpus)?,
            writers: known.writers.clone(),
            callees: known.callees.clone(),
            read: known.read.clone(),
            secret: self.secret,
        })
    }

    /// Slots of the profile for each profiled site.
    pub fn slots(&self) -> u32 {
        SLOTS
    }

    /// Program arrays through which the program, or one that it reaches, makes tail calls, and the
    /// placeholders of those that hold variants.
    pub fn arrays(&self) -> &[(ir::Map, MapId)] {
        &self.placeholders.arrays
    }

    /// The programs that the arrays can lead to and that can have variants; the program itself is the first.
    pub fn parts(&self) -> impl Iterator<Item = FuncId> {
        self.parts.iter().map(|(func, _)| *func)
    }

    /// The program arrays through which a program makes tail calls, and the slots, if it says which.
    pub fn calls(&self, func: FuncId) -> Vec<(ir::Map, Option<u32>)> {
        transform::calls(&self.prepared.module, module::func(func))
    }

    /// Returns true if a program may make other tail calls than those.
    pub fn may_call_more(&self, func: FuncId) -> bool {
        transform::may_call_more(&self.prepared.module, module::func(func))
    }

    /// Returns true if a lookup may have a cache: programs that others call may be called in the form in
    /// which they count no writes.
    pub fn may_cache(&self, site: &LookupSite) -> bool {
        site.func == module::func(self.program)
    }

    /// The lookups of the program, and of those that it may reach by tail calls.
    pub fn sites(&self) -> &[LookupSite] {
        &self.sites
    }

    /// The maps that lookups or addresses of the program name, except our own.
    pub fn maps(&self) -> BTreeSet<ir::Map> {
        let bodies = self.parts().map(|func| &self.prepared.module.funcs[module::func(func)]);
        let named = bodies.flat_map(|func| {
            func.insts_in_order().filter_map(|(_, inst)| match func.insts[inst].op {
                ir::Op::MapValueAddr { map, .. } => Some(map),
                _ => None,
            })
        });
        let all = self.sites.iter().map(|s| s.map).chain(named);
        all.filter(|map| !self.is_own(object_map(*map))).collect()
    }

    /// The bytes of a map's values that programs of the object read.
    pub fn bytes_read(&self, map: ir::Map) -> Vec<ir::usage::AccessRange> {
        self.usage.of_module(map).bytes_read()
    }

    /// A map as the module declares it.
    pub fn declaration(&self, map: ir::Map) -> &ir::MapDecl {
        &self.prepared.module.maps[map]
    }

    /// A map as the object describes it; for a template, the inner maps.
    pub fn spec(&self, map: ir::Map) -> &obj::MapDefinition {
        let inner = self.outer(map).and_then(|id| self.object.maps[id.index()].inner.as_ref());
        inner.unwrap_or_else(|| &self.object.maps[object_map(map).index()].spec)
    }

    /// The lookups whose results do not matter if this one finds `finds`, as far as the word of its key is
    /// known ahead of them; in their order.
    pub fn spared_by(
        &self,
        site: &LookupSite,
        piece: ir::KeyPiece,
        finds: Option<Vec<u8>>,
        contents: &dyn MapContents,
    ) -> Vec<SiteId> {
        transform::dead_lookups_after(&self.prepared.module, &self.sites, (site, piece), finds, contents)
    }

    /// Instructions of the program itself that lie in loops.
    pub fn in_loops(&self) -> usize {
        in_loops(&self.prepared.module.funcs[module::func(self.program)])
    }

    /// Returns true if a lookup in an array never has an index outside the array.
    pub fn in_range(&self, site: &LookupSite) -> bool {
        transform::in_range(&self.prepared.module, site.func, site)
    }

    /// Returns true if the lookup is in a loop over consecutive indices.
    pub fn is_walked(&self, site: &LookupSite) -> bool {
        transform::is_table_loop_lookup(&self.prepared.module, site)
    }

    /// Access of all programs of the object to a map.
    pub fn access(&self, map: ir::Map) -> ir::usage::MapAccess {
        self.usage.of_module(map).access(self.declaration(map))
    }

    /// Returns true if programs of the object may add entries to a hash map.
    pub fn adds(&self, map: ir::Map) -> bool {
        stateful_maps::adds(&self.prepared.module, &self.usage, map)
    }

    /// Makes a variant that records the keys of these lookups, and keeps packets for the judge or counts
    /// them, with these programs that it reaches.
    ///
    /// # Errors
    /// [`VariantError`].
    pub fn instrumented(
        &self,
        sites: &[SiteId],
        keep: SampleMode,
        callees: &[FuncId],
    ) -> Result<Variant, VariantError> {
        let func = module::func(self.program);
        let sketch = ProfileSketch { map: module::map(self.placeholders.sketch), slots: SLOTS };
        let (kind, keep) = match self.packet_kind() {
            Some(kind) => (kind, keep),
            None => (self.placeholders.samples.kind, SampleMode::Count),
        };
        let guard = module::map(self.placeholders.guard);
        let alike = SyncCounters { map: guard, writes: guard_state::VERSION, found: guard_state::CHAINED };
        let chain = self.chain(callees);
        self.variant(&[], callees, |m| {
            for &(part, first) in self.chosen(callees) {
                let done = transform::instrument(m, module::func(part), first, sites, &sketch);
                done.or_else(|e| self.only_called(part, e))?;
                transform::redirect_tail_calls(m, module::func(part), &chain, &alike);
            }
            transform::keep_packets(m, func, &SampleBuffer { kind, ..self.placeholders.samples }, keep)?;
            Ok(TransformReport::default())
        })
    }

    /// Makes a variant that carries out a plan.
    ///
    /// # Errors
    /// [`VariantError`].
    pub fn specialised(&self, wanted: &VariantRequest<'_>) -> Result<Variant, VariantError> {
        let mut others: Vec<ir::Func> = wanted.plan.caches.iter().flat_map(EntryCache::callees).collect();
        others.sort_unstable();
        others.dedup();
        let chain = self.chain(wanted.callees);
        self.variant(&others, wanted.callees, |m| {
            for (&of, &room) in wanted.rooms {
                if let Some(twin) = self.twin(of) {
                    m.maps[module::map(twin)].value_size = SIDES * room.bytes();
                }
            }
            for cache in &wanted.plan.caches {
                // A size that does not fit is refused by the transform.
                m.maps[cache.place].value_size = u32::try_from(cache.shape.bytes()).unwrap_or(0);
            }
            let mut report = TransformReport::default();
            for &(part, first) in self.chosen(wanted.callees) {
                let mut plan = self.plan_of(wanted.plan, part, first);
                plan.chain.clone_from(&chain);
                let done = transform::specialize(m, module::func(part), &plan, wanted.contents);
                report.add(done.or_else(|e| self.only_called(part, e).map(|()| TransformReport::default()))?);
            }
            let joins: Vec<InlinedTailCall> =
                wanted.joins.iter().filter_map(|join| self.joined(join)).collect();
            // The program itself comes last: its callees are complete by then.
            let parts: Vec<FuncId> = self.chosen(wanted.callees).map(|(part, _)| *part).collect();
            for part in parts.into_iter().rev().filter(|_| !joins.is_empty()) {
                report.joined.extend(transform::inline_tail_calls(m, module::func(part), &joins));
            }
            report.joined.sort_unstable();
            report.joined.dedup();
            Ok(report)
        })
    }

    fn joined(&self, &(array, slot, callee): &(ir::Map, u32, FuncId)) -> Option<InlinedTailCall> {
        let (_, place) = self.placeholders.arrays.iter().find(|(of, _)| *of == array)?;
        Some(InlinedTailCall { place: module::map(*place), slot, callee: module::func(callee) })
    }

    /// Leaves programs that are called as they are if they cannot be changed.
    fn only_called<E: std::fmt::Display>(&self, part: FuncId, error: E) -> Result<(), E> {
        if part == self.program {
            return Err(error);
        }
        tracing::debug!("{} stays as it is: {error}", self.object.functions[part.index()].name);
        Ok(())
    }

    /// The part of a plan that is for one of the parts.
    fn plan_of(&self, plan: &SpecializationPlan, part: FuncId, first: u32) -> SpecializationPlan {
        let own = |site: SiteId| {
            let of = self.sites.iter().find(|s| s.id == site).map(|s| s.func);
            of.is_none_or(|func| func == module::func(part))
        };
        let mut plan = SpecializationPlan { first_site: first, ..plan.clone() };
        plan.sites.retain(|s| own(s.site));
        plan.within.retain(|w| own(w.plan.site));
        plan.tests.retain(|t| own(t.site));
        if part != self.program {
            plan.caches.clear();
            if let Some(guard) = &mut plan.guard {
                // A packet counts once.
                (guard.missed, guard.first_packet, guard.stand_in) = (None, None, None);
            }
        }
        plan
    }

    /// The program and these others, with the numbers of their first sites.
    fn chosen(&self, callees: &[FuncId]) -> impl Iterator<Item = &(FuncId, u32)> {
        self.parts.iter().filter(move |(part, _)| *part == self.program || callees.contains(part))
    }

    /// The arrays, if anything is called through their placeholders.
    fn chain(&self, callees: &[FuncId]) -> Vec<ProgArrayPair> {
        let all = self.placeholders.arrays.iter().filter(|_| !callees.is_empty());
        all.map(|&(array, place)| ProgArrayPair { array, place: module::map(place) }).collect()
    }

    /// The guard of a generation, for a plan; with `count`, packets that it turns away are counted. A
    /// generation that is not a standby passes those packets to the standby variant.
    pub fn guard(&self, generation: u32, count: bool) -> transform::GuardCheck {
        let stand_in = |array| FallbackTailCall { array: module::map(array), offset: guard_state::STANDBY };
        transform::GuardCheck {
            map: module::map(self.placeholders.guard),
            offset: guard_state::TOKEN,
            generation,
            sides: SIDES,
            unseen: guard_state::LOOK,
            first_packet: Some(guard_state::first_packet(generation)),
            missed: count.then_some(guard_state::MISSED),
            misses: Some(module::map(self.placeholders.misses)),
            stand_in: self.standby().map(stand_in),
        }
    }

    /// Makes a variant in which a transform has changed the program, these functions, and these programs that
    /// it reaches.
    fn variant(
        &self,
        others: &[ir::Func],
        callees: &[FuncId],
        transform: impl FnOnce(&mut ir::Module) -> Result<TransformReport, TransformError>,
    ) -> Result<Variant, VariantError> {
        let start = Instant::now();
        let mut lifted = self.prepared.clone();
        let report = transform(&mut lifted.module)?;
        transform::finish(&mut lifted.module, &mut PassSession::new(self.host.target(self.isa)))?;
        // All other functions stay as they are in the object.
        let in_loops = in_loops(&lifted.module.funcs[module::func(self.program)]);
        let mut object = self.object.clone();
        let mut replace = |func: ir::Func| -> Result<(), VariantError> {
            // One strategy: trying them all takes several times as long, and the original runs meanwhile.
            let body = &lifted.module.funcs[func];
            let code =
                lower::lower_with(body, LoweringStrategy::default()).or_else(|_| lower::lower(body))?;
            Ok(object.replace_function(FuncId(func.as_u32()), new_function(&lifted, &code))?)
        };
        others.iter().try_for_each(|func| replace(*func))?;
        for &(part, _) in self.chosen(callees) {
            replace(module::func(part)).or_else(|e| self.only_called(part, e))?;
        }
        let linked = object.link(self.program)?;
        let others = self.chosen(callees).filter(|(part, _)| *part != self.program);
        let callees = others.map(|(part, _)| Ok((*part, object.link(*part)?)));
        let callees = callees.collect::<Result<_, ObjectError>>()?;
        let array = |place| {
            self.placeholders.arrays.iter().find(|(_, p)| module::map(*p) == place).map(|(of, _)| *of)
        };
        let of = |j: &InlinedTailCall| Some((array(j.place)?, j.slot, FuncId(j.callee.as_u32())));
        let joined = report.joined.iter().filter_map(of).collect();
        Ok(Variant { object, linked, callees, joined, report, in_loops, time: start.elapsed() })
    }
}

/// Instructions that lie in loops.
fn in_loops(func: &ir::Function) -> usize {
    let cfg = ir::Cfg::new(func);
    let loops = ir::Loops::new(&cfg, &ir::DomTree::new(func, &cfg));
    let within = cfg.rpo.iter().filter(|block| loops.depth[**block] > 0);
    within.map(|block| func.blocks[*block].insts.len()).sum()
}

/// Returns true if the kernel lets programs of two kinds call each other.
pub fn is_alike(a: &obj::SectionKind, b: &obj::SectionKind) -> bool {
    (a.program_type, a.attach_type, a.load_flags()) == (b.program_type, b.attach_type, b.load_flags())
}

/// The program and those of its kind that tail calls may reach, with the numbers of their first sites, and
/// all sites.
fn parts(
    object: &Object,
    module: &ir::Module,
    described: &obj::EntryProgram,
) -> (Vec<(FuncId, u32)>, Vec<LookupSite>) {
    let mut parts = vec![(described.func, 0)];
    let mut sites = transform::sites(module, module::func(described.func), 0);
    let is_chained = !transform::calls(module, module::func(described.func)).is_empty();
    for other in object.programs.iter().filter(|p| is_chained && p.func != described.func) {
        let first = sites.len() as u32;
        let own = transform::sites(module, module::func(other.func), first);
        if is_alike(&other.kind, &described.kind) && sites.len() + own.len() <= MOST_SITES {
            parts.push((other.func, first));
            sites.extend(own);
        }
    }
    (parts, sites)
}

/// The program of this name, or the only one.
///
/// # Errors
/// If there is no such program, or several and none was named.
pub fn choose<'o>(object: &'o Object, name: Option<&str>) -> Result<&'o obj::EntryProgram, VariantError> {
    let names = || object.programs.iter().map(|p| p.name.as_str()).collect::<Vec<_>>().join(", ");
    match (name, object.programs.as_slice()) {
        (Some(name), programs) => {
            let found = programs.iter().find(|p| p.name == name);
            let missing = || format!("the object has no program {name:?}; it has: {}", names());
            found.ok_or_else(|| VariantError::Program(missing()))
        }
        (None, [only]) => Ok(only),
        (None, []) => Err(VariantError::Program("the object has no program".into())),
        (None, _) => Err(VariantError::Program(format!("the object has several programs: {}", names()))),
    }
}

/// The maps whose value addresses are compared with anything but null, or subtracted from one another: such
/// values may lie only where the map has them.
fn compared(func: &ir::Function) -> BTreeSet<ir::Map> {
    let of = |v: &ir::Value| match func.types[*v] {
        ir::Type::Ptr(ir::Prov::MapValue(map) | ir::Prov::MapValueOrNull(map)) => Some(map),
        _ => None,
    };
    let is_null = |v: &ir::Value| matches!(func.def_op(*v), Some(ir::Op::Const { value: 0 }));
    let mut found = BTreeSet::new();
    for (_, inst) in func.insts_in_order() {
        let data = &func.insts[inst];
        let compares = match &data.op {
            ir::Op::Branch { .. } | ir::Op::Cmp { .. } => !data.args.iter().any(is_null),
            // An address moved by a number is still one; the use of other results of arithmetic is unknown.
            ir::Op::Alu { op: ir::AluOp::Add, .. } => false,
            ir::Op::Alu { op: ir::AluOp::Sub, .. } => data.args.get(1).is_some_and(|v| of(v).is_some()),
            ir::Op::Alu { .. }
            | ir::Op::Neg { .. }
            | ir::Op::Zext {}
            | ir::Op::Sext { .. }
            | ir::Op::Swap { .. } => true,
            ir::Op::AddrSpaceCast { .. } | ir::Op::Select {} => false,
            ir::op_group!(constant) | ir::op_group!(access) | ir::op_group!(table) => false,
            ir::op_group!(call) | ir::op_group!(packet) => false,
            ir::Op::Jump {} | ir::Op::MayGoto {} | ir::Op::Return {} | ir::Op::Unreachable {} => false,
        };
        found.extend(data.args.iter().filter(|_| compares).filter_map(of));
    }
    found
}

/// The object's number of a map of the module.
pub fn object_map(map: ir::Map) -> MapId {
    MapId(map.index() as u32)
}

#[cfg(test)]
mod tests {
    use millstream_ir::text::parse_module;
    use millstream_isa::generation::KernelRange;

    use super::*;

    const HOST: VariantHost =
        VariantHost { kernels: KernelRange::ALL, possible_cpus: 1, cpu_numbers: Some(1) };

    /// It might write a map that is in the code of a variant.
    #[test]
    fn an_object_with_a_program_that_is_not_understood_is_refused() {
        let known = millstream_programs::ROUTER;
        let mut object = Object::parse(known.name, known.object).expect("our own");
        assert!(VariantCompiler::new(&object, Some(known.name), HOST).is_ok());
        let (mut function, mut program) = (object.functions[0].clone(), object.programs[0].clone());
        program.func = obj::FuncId(object.functions.len() as u32);
        program.name = "unknown".to_owned();
        function.name.clone_from(&program.name);
        // No version of the instruction set has this opcode.
        function.insns = vec![millstream_isa::RawInsn { code: 0xfd, dst: 0, src: 0, off: 0, imm: 0 }];
        function.relocs.clear();
        function.line_info.clear();
        object.functions.push(function);
        object.programs.push(program);
        assert!(matches!(VariantCompiler::new(&object, Some(known.name), HOST), Err(VariantError::Lift(_))));
    }

    /// The dispatcher's functions that components replace, in a fused chain.
    #[test]
    fn functions_that_were_removed_are_in_nobodys_way() {
        let known = millstream_programs::ROUTER;
        let mut object = Object::parse(known.name, known.object).expect("our own");
        let mut function = object.functions[0].clone();
        function.removed = true;
        (function.insns, function.relocs, function.line_info) = Default::default();
        object.functions.push(function);
        assert!(VariantCompiler::new(&object, Some(known.name), HOST).is_ok());
    }

    #[test]
    fn what_goes_round_is_counted() {
        let text = "fn0 \"f\" program(6) returns {
block0(v0: ptr(ctx)):
  v1: i64 = const.0
  v2: i64 = const.1
  v3: i64 = const.9
  jump block1(v1)
block1(v4: i64):
  v5: i64 = alu.add.w64 v4, v2
  br.ult.w64 v5, v3, block1(v5), block2
block2:
  return v1
}
";
        let module = parse_module(text).unwrap_or_else(|e| panic!("{e:?}"));
        let func = module.funcs.keys().next().expect("one");
        assert_eq!(in_loops(&module.funcs[func]), 2);
    }
}

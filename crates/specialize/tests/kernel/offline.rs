//! A data plane with its tables but without an interface: variants are made as a session makes them, and
//! judged.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::Ordering;

use millstream_ir::Map as IrMap;
use millstream_isa::asm::assemble;
use millstream_isa::{RawInsn, encode_all};
use millstream_kernel::{KernelProgram, TestRun, UpdateMode};
use millstream_lab::os;
use millstream_lab::subject::{InsnCounts, ProgramVersion};
use millstream_loader::{ObjectLoader, Session};
use millstream_object::{FuncId, LinkedProgram, MapId, Object, RawInput};
use millstream_programs::{self as programs, MapEntry};
use millstream_specialize::caches::EntryCaches;
use millstream_specialize::inner_maps::InnerMaps;
use millstream_specialize::replay::sample::{self, PacketSample};
use millstream_specialize::replay::{
    self, ContinueCheck, ReplayCase, ReplayError, ReplayResult, ReplayVerdict,
};
use millstream_specialize::shadow_tables::ShadowTables;
use millstream_specialize::snapshot::{MapSnapshot, SpecializableMap, sources};
use millstream_specialize::{profile, variant_compiler};
use millstream_specializer::guard_state::{TOKEN, token};
use millstream_specializer::policy::{self, PlanInputs, Tier};
use millstream_specializer::profile::SiteProfile;
use millstream_specializer::transform::{
    self, DeoptMap, EntryCache, LookupSite, SampleMode, SiteId, SpecializationPlan,
};
use millstream_specializer::variant::VariantCompiler;
use millstream_specializer::variant::VariantRequest;
use rustc_hash::FxHashMap;

/// Ports of test runs come in at the loopback, and devmaps must name an interface that is there.
pub(crate) const INGRESS: u32 = 1;
/// The generation of all variants.
const GENERATION: u32 = 1;

/// The compiler for one of our data planes.
pub(crate) fn compiler(program: &programs::DataPlaneProgram) -> VariantCompiler {
    let object = Object::parse(program.name, program.object).expect("our own object");
    variant_compiler(&object, Some(program.function)).expect("prepared")
}

/// A data plane in the kernel.
pub(crate) struct Offline<'c> {
    pub(crate) compiler: &'c VariantCompiler,
    pub(crate) session: Session<'c>,
    pub(crate) original: KernelProgram,
    pub(crate) sources: FxHashMap<IrMap, SpecializableMap>,
    /// Maps that may have caches.
    pub(crate) cached: BTreeSet<IrMap>,
    /// Lookups that get no twins.
    pub(crate) unfit: BTreeSet<SiteId>,
    /// Bits of the token: twins that are behind.
    pub(crate) behind: u32,
}

/// A variant that was made.
pub(crate) struct Made {
    pub(crate) linked: LinkedProgram,
    pub(crate) twins: ShadowTables,
    pub(crate) caches: Vec<EntryCache>,
    /// The maps inside maps of maps that it names.
    pub(crate) insides: InnerMaps,
    pub(crate) report: transform::TransformReport,
    /// Maps that it can do without.
    pub(crate) spared: Vec<DeoptMap>,
    /// Maps of which nothing is in the code, not even a twin beside it.
    pub(crate) loose: Vec<IrMap>,
}

impl<'c> Offline<'c> {
    /// Loads the program and writes the entries.
    pub(crate) fn new(compiler: &'c VariantCompiler, entries: &[MapEntry]) -> Self {
        Self::approximate(compiler, entries, &[])
    }

    /// The same, and lookups in these maps of least recent use need not count as use.
    pub(crate) fn approximate(compiler: &'c VariantCompiler, entries: &[MapEntry], names: &[&str]) -> Self {
        let object = compiler.object();
        let session = ObjectLoader::new(object).prepare().expect("maps");
        let linked = object.link(compiler.program()).expect("it links");
        let original = session.load(compiler.program(), &linked).expect("accepted");
        let (mut sources, _) = sources(compiler, &session, &names.iter().map(|n| (*n).to_owned()).collect());
        for (map, source) in &mut sources {
            // Nobody else is here.
            let template = compiler.declaration(*map).inner;
            source.knows_inside = template.is_some_and(|template| compiler.knows_inside(template));
        }
        let cached: BTreeSet<IrMap> = compiler.cacheable().collect();
        let (unfit, behind) = (BTreeSet::new(), 0);
        let it = Offline { compiler, session, original, sources, cached, unfit, behind };
        it.write(entries);
        it
    }

    /// Writes entries.
    pub(crate) fn write(&self, entries: &[MapEntry]) {
        for entry in entries {
            self.put(entry).unwrap_or_else(|e| panic!("{}: {e}", entry.map));
        }
    }

    /// Writes those entries that the kernel accepts; some may not suit the map.
    pub(crate) fn write_if_taken(&self, entries: &[MapEntry]) {
        entries.iter().for_each(|e| drop(self.put(e)));
    }

    fn put(&self, entry: &MapEntry) -> Result<(), millstream_kernel::KernelError> {
        let map = self.session.map_by_name(entry.map).unwrap_or_else(|| panic!("no map {}", entry.map));
        let mut value = entry.value.clone();
        if map.info().map_type.is_devmap() {
            value[..4].copy_from_slice(&INGRESS.to_ne_bytes());
        }
        map.update_all_cpus(&entry.key, &value, UpdateMode::Any)
    }

    /// Runs an instrumented variant on frames; gives the profile, and the packets that it kept.
    pub(crate) fn profile(&self, frames: &[Vec<u8>]) -> (Vec<SiteProfile>, Vec<PacketSample>) {
        let known = |s: &&LookupSite| s.is_inner && s.is_comparable() && self.compiler.knows_inside(s.map);
        let eligible = |s: &&LookupSite| {
            policy::eligible(s, &self.sources) || policy::cacheable(s, &self.cached) || known(s)
        };
        let sites: Vec<&LookupSite> = self.compiler.sites().iter().filter(eligible).collect();
        let ids: Vec<SiteId> = sites.iter().map(|s| s.id).collect();
        let variant = self.compiler.instrumented(&ids, SampleMode::Packets, &[]).expect("made");
        let program = self.session.load(self.compiler.program(), &variant.linked).expect("accepted");
        let (sketch, samples) = (self.map(self.compiler.sketch()), self.map(self.compiler.samples()));
        profile::clear(sketch).expect("cleared");
        sample::clear(samples).expect("cleared");
        for frame in frames {
            program.test_run(&TestRun::packet(frame)).expect("a test run");
        }
        let kind = self.compiler.packet_kind().expect("packets");
        (
            profile::read(sketch, &sites, self.compiler.slots()).expect("read"),
            sample::read(samples, kind).expect("read"),
        )
    }

    /// A variant on the plane's own maps, with these caches, whose guard lets it run.
    pub(crate) fn at_work(&mut self, made: &Made, caches: &EntryCaches) -> KernelProgram {
        for (of, map) in caches.maps() {
            let place = self.compiler.cache(of).expect("it can have a cache");
            self.session.replace_map(place, map.try_clone().expect("a descriptor"));
        }
        for (place, map) in made.insides.maps() {
            self.session.replace_map(place, map.try_clone().expect("a descriptor"));
        }
        self.let_run();
        self.session.load(self.compiler.program(), &made.linked).expect("accepted")
    }

    /// From now on the guard lets variants run.
    fn let_run(&self) {
        let state = self.map(self.compiler.guard_map()).mmap(true).expect("the guard's state");
        state.atomic_u64(TOKEN as usize).store(token(GENERATION, 0), Ordering::SeqCst);
    }

    /// Calls by which the original and a variant look up, write or delete elements of maps, for each of the
    /// frames, as our interpreter counts them.
    pub(crate) fn map_calls(&mut self, made: &Made, frames: &[Vec<u8>]) -> [f64; 2] {
        self.counted(made, frames).map(|counted| counted.map_calls.expect("all is modelled"))
    }

    /// Instructions that the original and a variant execute for each of the frames, counted like those.
    pub(crate) fn executed(&mut self, made: &Made, frames: &[Vec<u8>]) -> [f64; 2] {
        self.counted(made, frames).map(|counted| counted.executed.expect("all is modelled"))
    }

    fn counted(&mut self, made: &Made, frames: &[Vec<u8>]) -> [InsnCounts; 2] {
        for (of, map) in made.twins.maps() {
            let place = self.compiler.twin(of).expect("it can have a twin");
            self.session.replace_map(place, map.try_clone().expect("a descriptor"));
        }
        self.let_run();
        let func = self.compiler.program();
        let original = self.compiler.object().link(func).expect("it links");
        [&original, &made.linked].map(|linked| {
            let form = ProgramVersion { session: &self.session, func, linked };
            form.count(frames, INGRESS).expect("the maps can be read")
        })
    }

    fn map(&self, id: MapId) -> &millstream_kernel::KernelMap {
        self.session.map(id).expect("made")
    }

    /// The variant that a session would make; `None` if there is nothing to specialise. `change` may alter
    /// the plan.
    pub(crate) fn variant(
        &self,
        profiles: &[SiteProfile],
        tier: Tier,
        change: impl FnOnce(&mut SpecializationPlan),
    ) -> Option<Made> {
        let may_change = self.sources.iter().filter(|(_, source)| !source.is_constant).map(|(map, _)| *map);
        let restless: BTreeSet<IrMap> = may_change.filter(|_| tier == Tier::Standby).collect();
        let observed = MapSnapshot::without(&self.sources, restless.clone());
        let (unfit, cached) = (&self.unfit, &self.cached);
        let known = PlanInputs { compiler: self.compiler, profiles, observed: &observed, unfit, cached };
        let mut planned = policy::plan(&known, self.compiler.guard(GENERATION, false), tier);
        if planned.plan.is_empty() {
            return None;
        }
        change(&mut planned.plan);
        let twins = ShadowTables::new(std::mem::take(&mut planned.twins)).expect("twins");
        let rooms: FxHashMap<_, _> = twins.rooms().collect();
        let mut make = |room: usize| {
            planned.plan.budget.code = room.min(planned.plan.budget.code);
            let plan = &planned.plan;
            let wanted =
                VariantRequest { plan, contents: &observed, rooms: &rooms, callees: &[], joins: &[] };
            self.compiler.specialised(&wanted)
        };
        // A session makes fewer copies, too, where there are too many.
        let variant = make(usize::MAX).or_else(|_| make(0)).expect("made");
        let insides = InnerMaps::open(self.compiler, &planned.plan).expect("they are there");
        let SpecializationPlan { caches, mut spared, .. } = planned.plan;
        let (linked, report) = (variant.linked, variant.report);
        let known: BTreeSet<IrMap> = observed.into_record().behind_twins().collect();
        spared.retain(|s| known.contains(&s.map) && !report.unspared.contains(&s.map));
        let loose = restless.into_iter().filter(|map| !twins.maps().any(|(of, _)| of == *map)).collect();
        Some(Made { linked, twins, caches, insides, report, spared, loose })
    }

    /// A variant by a plan that needs nothing beside it.
    pub(crate) fn planned(&self, plan: &SpecializationPlan) -> Made {
        let (observed, rooms) = (MapSnapshot::new(&self.sources), FxHashMap::default());
        let wanted = VariantRequest { plan, contents: &observed, rooms: &rooms, callees: &[], joins: &[] };
        let made = self.compiler.specialised(&wanted).expect("made");
        Made { linked: made.linked, report: made.report, ..self.unchanged() }
    }

    /// The original, as if it were a variant.
    pub(crate) fn unchanged(&self) -> Made {
        let linked = self.compiler.object().link(self.compiler.program()).expect("it links");
        let twins = ShadowTables::new(BTreeMap::new()).expect("none");
        let (report, caches, insides, spared, loose) = Default::default();
        Made { linked, twins, caches, insides, report, spared, loose }
    }

    /// Holds a variant against the original.
    pub(crate) fn judge(&self, made: &Made, samples: &[PacketSample]) -> Result<ReplayResult, ReplayError> {
        self.case(made, samples, true, |case| replay::judge(case, &mut |_| ()))
    }

    /// Compares a variant with the original on this many packets; `valid` says if its guard lets it run.
    pub(crate) fn compare(
        &self,
        made: &Made,
        samples: &[PacketSample],
        valid: bool,
        packets: usize,
    ) -> Result<ReplayResult, ReplayError> {
        self.case(made, samples, valid, |case| replay::compare(case, packets))
    }

    /// A variant whose caches are told of all writers (`counts`) does the same as the original; one whose
    /// caches keep their copies, whoever writes, is found out. `sure` looks at the plan before it is spoilt.
    pub(crate) fn is_the_same_if(
        &self,
        counts: bool,
        profiles: &[SiteProfile],
        samples: &[PacketSample],
        sure: impl FnOnce(&SpecializationPlan),
    ) {
        let made = self.variant(profiles, Tier::Thorough, |plan| {
            sure(plan);
            if !counts {
                for cache in &mut plan.caches {
                    cache.writers.clear();
                    cache.callees.clear();
                }
            }
        });
        let judged = self.compare(&made.expect("a variant"), samples, true, samples.len()).expect("judged");
        assert_eq!(matches!(judged.finding, ReplayVerdict::Same(_)), counts, "{judged:?}");
        assert!(judged.varies.is_empty(), "the original does the same twice: {judged:?}");
    }

    fn case<R>(
        &self,
        made: &Made,
        samples: &[PacketSample],
        valid: bool,
        f: impl FnOnce(&ReplayCase<'_, '_>) -> R,
    ) -> R {
        let programs: [(FuncId, u32); 1] = [(self.compiler.program(), self.original.id().expect("loaded"))];
        let twins = made.twins.maps().filter_map(|(of, map)| Some((self.compiler.twin(of)?, map)));
        f(&ReplayCase {
            compiler: self.compiler,
            session: &self.session,
            programs: &programs,
            specialised: self.sources.keys().copied().collect(),
            candidate: &made.linked,
            callees: Vec::new(),
            arrays: Vec::new(),
            twins: twins.collect(),
            insides: made.insides.maps().collect(),
            caches: made.caches.clone(),
            token: match valid {
                true => token(GENERATION, made.twins.side()) | u64::from(self.behind),
                false => token(GENERATION + 1, 0),
            },
            samples,
            cpu: os::allowed_cpus().last().copied().unwrap_or(0),
            goes_on: ContinueCheck(&|| true),
        })
    }
}

/// An XDP program as text, whose one map has descriptor 3.
pub(crate) fn prepared(text: &str, maps: &str) -> VariantCompiler {
    let mut slots = encode_all(&assemble(text).expect("it assembles"));
    let at = slots.iter().position(|s| s.code == 0x18).expect("it names its map");
    (slots[at].src, slots[at].imm) = (1, 3);
    let insns: Vec<u8> = slots.into_iter().flat_map(RawInsn::to_bytes).collect();
    let files = RawInput { insns: &insns, maps: Some(maps.as_bytes()), desc: None };
    let object = Object::parse_raw("text.insns", files, Some("xdp")).expect("a program");
    variant_compiler(&object, None).expect("prepared")
}

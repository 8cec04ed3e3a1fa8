//! A data plane in the kernel with the maps that variants need, and the way from a plan to a loaded variant.

use std::collections::HashMap;
use std::ops::Range;

use millstream_bpf::lower::lower;
use millstream_bpf::module::{LiftedModule, func as func_of, lift_object, map as map_of, new_function};
use millstream_ir::usage::{MapAccess, ModuleMapUsage};
use millstream_ir::{Func, Map, MapDecl};
use millstream_isa::MapType;
use millstream_kernel::{KernelProgram, TestRun, UpdateMode, testing};
use millstream_loader::{ObjectLoader, Session};
use millstream_object::{MapDefinition, MapOrigin, Object};
use millstream_passes::TargetInfo;
use millstream_programs::MapEntry;
use millstream_specializer::guard_state::{LOOK, token};
use millstream_specializer::transform::lookup_plan::{HotEntries, LookupPlan, WholeMap};
use millstream_specializer::transform::{
    CallbackMode, CodeBudget, FallbackTailCall, GuardCheck, LookupEntry, LookupSite, MapContents,
    MultibitTrie, ProfileSketch, SiteId, SitePlan, SpecializationPlan, TransformReport, finish, instrument,
    prepare, sites, specialize,
};

/// Ports of test runs come in at the loopback, and devmaps must name an interface that is there.
pub(crate) const INGRESS: u32 = 1;
const SKETCH_SLOTS: u32 = 256;
const SITES: u32 = 16;
/// Bytes of the widest key that is recorded.
const WIDEST: u32 = 48;
/// Room in each side of the twin.
const GROUPS: u32 = 4096;
const SIDES: u32 = 2;

/// A loaded data plane.
pub(crate) struct Rig {
    pub(crate) object: &'static Object,
    pub(crate) session: Session<'static>,
    pub(crate) original: KernelProgram,
    pub(crate) prepared: LiftedModule,
    pub(crate) func: Func,
    usage: ModuleMapUsage,
}

fn runtime_map(name: &str, spec: MapDefinition) -> millstream_object::ObjectMap {
    millstream_object::ObjectMap {
        name: name.to_owned(),
        section: ".maps".to_owned(),
        origin: MapOrigin::Btf,
        spec,
        inner: None,
        initial: Vec::new(),
        data: None,
        variables: Vec::new(),
    }
}

fn spec(map_type: MapType, value_size: u32, max_entries: u32) -> MapDefinition {
    MapDefinition { map_type, key_size: 4, value_size, max_entries, ..MapDefinition::default() }
}

impl Rig {
    /// Loads the program and writes the entries; `None`, with the reason printed, where BPF is not permitted.
    pub(crate) fn new(
        data_plane: &millstream_programs::DataPlaneProgram,
        entries: &[MapEntry],
    ) -> Option<Self> {
        if !testing::require() {
            return None;
        }
        let mut object = Object::parse(data_plane.name, data_plane.object).expect("our own object");
        object.maps.push(runtime_map("ms_guard", spec(MapType::ARRAY, 16, 1)));
        object.maps.push(runtime_map(
            "ms_sketch",
            spec(MapType::PERCPU_ARRAY, ProfileSketch::value_size(WIDEST), SITES * SKETCH_SLOTS),
        ));
        object
            .maps
            .push(runtime_map("ms_twin", spec(MapType::ARRAY, SIDES * MultibitTrie::size(GROUPS, 4), 1)));
        object.maps.push(runtime_map("ms_standby", spec(MapType::PROG_ARRAY, 4, 1)));
        let object: &'static Object = Box::leak(Box::new(object));
        let session = ObjectLoader::new(object).prepare().expect("maps");
        let id = object.programs.iter().find(|p| p.name == data_plane.function).expect("its program").func;
        let original = session.load(id, &object.link(id).expect("it links")).expect("accepted");
        let mut prepared = lift_object(object).expect("it lifts");
        prepare(&mut prepared.module, CallbackMode::Unfolded, &mut passes()).expect("valid IR");
        let usage = ModuleMapUsage::new(&prepared.module);
        let rig = Rig { object, session, original, prepared, func: func_of(id), usage };
        rig.apply(entries);
        Some(rig)
    }

    /// Writes entries, those of one map at once.
    fn apply(&self, entries: &[MapEntry]) {
        let mut by_map: HashMap<&str, (Vec<u8>, Vec<u8>)> = HashMap::new();
        for entry in entries {
            let (keys, values) = by_map.entry(entry.map).or_default();
            keys.extend(&entry.key);
            let start = values.len();
            values.extend(&entry.value);
            if entry.map == "tx_ports" {
                values[start..start + 4].copy_from_slice(&INGRESS.to_ne_bytes());
            }
        }
        for (name, (keys, values)) in by_map {
            self.map(name).update_batch(&keys, &values).unwrap_or_else(|e| panic!("{name}: {e}"));
        }
    }

    /// The map of this name.
    pub(crate) fn map(&self, name: &str) -> &millstream_kernel::KernelMap {
        self.session.map_by_name(name).unwrap_or_else(|| panic!("no map {name}"))
    }

    /// The module's number of a map.
    pub(crate) fn map_id(&self, name: &str) -> Map {
        let at = self.object.maps.iter().position(|m| m.name == name);
        map_of(millstream_object::MapId(at.unwrap_or_else(|| panic!("no map {name}")) as u32))
    }

    /// The lookups of a map that can be compared, in order.
    pub(crate) fn sites_of(&self, map: &str) -> Vec<LookupSite> {
        let map = self.map_id(map);
        let mut all = sites(&self.prepared.module, self.func, 0);
        all.retain(|s| s.map == map && s.is_comparable());
        all
    }

    /// A plan for these sites and nothing else, whose guard is of generation 7.
    pub(crate) fn plan(&self, sites: Vec<SitePlan>) -> SpecializationPlan {
        SpecializationPlan {
            guard: Some(self.guard(7)),
            sites,
            fields: Vec::new(),
            tests: Vec::new(),
            inside: Vec::new(),
            within: Vec::new(),
            caches: Vec::new(),
            spared: Vec::new(),
            chain: Vec::new(),
            first_site: 0,
            budget: CodeBudget::default(),
        }
    }

    pub(crate) fn guard(&self, generation: u32) -> GuardCheck {
        let map = self.map_id("ms_guard");
        GuardCheck {
            map,
            offset: 0,
            generation,
            sides: 1,
            unseen: LOOK,
            first_packet: None,
            missed: None,
            misses: None,
            stand_in: None,
        }
    }

    /// A guard that leaves packets to the generation that stands by.
    pub(crate) fn leaving_guard(&self, generation: u32) -> GuardCheck {
        let stand_in = Some(FallbackTailCall { array: self.map_id("ms_standby"), offset: 8 });
        GuardCheck { stand_in, ..self.guard(generation) }
    }

    /// A guard for a twin with two sides.
    pub(crate) fn sided_guard(&self, generation: u32) -> GuardCheck {
        GuardCheck { sides: SIDES, ..self.guard(generation) }
    }

    /// Lets a generation run, on the first side of its twin.
    pub(crate) fn set_guard(&self, generation: u32) {
        self.set_token(token(generation, 0));
    }

    /// Sets the token, with no stand-by generation.
    pub(crate) fn set_token(&self, token: u64) {
        self.set_words(token, 0);
    }

    /// Sets the token, and the word that names the stand-by generation.
    pub(crate) fn set_words(&self, token: u64, standby: u64) {
        let words = [token, standby].map(u64::to_ne_bytes).concat();
        self.map("ms_guard").update(&[0; 4], &words, UpdateMode::Any).expect("the guard");
    }

    /// Writes one side of the twin of a map.
    pub(crate) fn fill_twin(&self, map: &str, side: u32) {
        let entries = self.snapshot(map);
        let twin = MultibitTrie::of(entries.iter().map(|(k, v)| (k.as_slice(), v.as_slice())), 4, &[])
            .expect("it has a twin");
        let place = self.map("ms_twin");
        let mut bytes = place.lookup(&[0; 4]).expect("readable").expect("an array");
        let start = (side * MultibitTrie::size(GROUPS, 4)) as usize;
        for (at, part) in twin.chunks().into_iter().map(|n| twin.chunk(n)) {
            bytes[start + at..start + at + part.len()].copy_from_slice(&part);
        }
        place.update(&[0; 4], &bytes, UpdateMode::Any).expect("written");
    }

    /// The variant of a plan, loaded.
    pub(crate) fn variant(&self, plan: &SpecializationPlan) -> (KernelProgram, TransformReport) {
        let mut lifted = self.prepared.clone();
        let report = specialize(&mut lifted.module, self.func, plan, self).expect("it specialises");
        (self.load(lifted), report)
    }

    /// The variant that records keys, loaded.
    pub(crate) fn instrumented(&self, wanted: &[SiteId]) -> KernelProgram {
        let mut lifted = self.prepared.clone();
        let sketch = ProfileSketch { map: self.map_id("ms_sketch"), slots: SKETCH_SLOTS };
        instrument(&mut lifted.module, self.func, 0, wanted, &sketch).expect("it instruments");
        self.load(lifted)
    }

    /// Keys of the n-th recorded site with their least counts, and all lookups that were counted.
    pub(crate) fn recorded(&self, number: u32, key_size: u32) -> (Vec<(Vec<u8>, u64)>, u64) {
        let (mut found, mut total) = (Vec::new(), 0);
        for slot in number * SKETCH_SLOTS..(number + 1) * SKETCH_SLOTS {
            let all = self.map("ms_sketch").lookup(&slot.to_ne_bytes()).expect("readable").expect("there");
            for cpu in all.chunks(ProfileSketch::value_size(WIDEST) as usize) {
                let (came, held) = ProfileSketch::read(cpu, key_size);
                total += came;
                found.extend(held);
            }
        }
        (found, total)
    }

    pub(crate) fn load(&self, mut lifted: LiftedModule) -> KernelProgram {
        finish(&mut lifted.module, &mut passes()).expect("valid IR");
        if std::env::var_os("MILLSTREAM_TEST_DUMP").is_some() {
            eprintln!("{}", lifted.module.funcs[self.func]);
        }
        let mut object = self.object.clone();
        for (id, body) in &lifted.module.funcs {
            let id = millstream_object::FuncId(id.as_u32());
            if !body.layout.is_empty() {
                let code = lower(body).expect("it lowers");
                object.replace_function(id, new_function(&lifted, &code)).expect("it fits");
            }
        }
        let id = millstream_object::FuncId(self.func.as_u32());
        let linked = object.link(id).expect("it links");
        self.session.load(id, &linked).unwrap_or_else(|e| panic!("rejected: {e:?}"))
    }

    /// Everything in a map of per-CPU values, or any other.
    pub(crate) fn snapshot(&self, map: &str) -> Vec<(Vec<u8>, Vec<u8>)> {
        let entries = self.map(map).entries().expect("readable");
        let mut all: Vec<(Vec<u8>, Vec<u8>)> =
            entries.iter().map(|(k, v)| (k.to_vec(), v.to_vec())).collect();
        all.sort();
        all
    }

    /// A map as code, all of whose entries have no heat.
    pub(crate) fn whole(&self, map: &str) -> LookupPlan {
        let all = self.snapshot(map).into_iter();
        let entries = all.map(|(key, value)| LookupEntry { key, value: Some(value), heat: 0 }).collect();
        LookupPlan::Whole(WholeMap { entries })
    }
}

fn passes() -> millstream_passes::PassSession {
    millstream_passes::PassSession::new(TargetInfo::bpf(3))
}

impl Rig {
    /// Returns true if only user space writes the map; here it does not while a variant is on.
    fn is_read_only(&self, map: Map) -> bool {
        let decl: &MapDecl = &self.prepared.module.maps[map];
        let known = matches!(MapType(decl.kind), MapType::HASH | MapType::ARRAY | MapType::LPM_TRIE)
            && !decl.name.starts_with("ms_");
        known && self.usage.of_module(map).access(decl) == MapAccess::ReadOnly
    }

    /// The lookups of read-only maps that can be compared.
    pub(crate) fn read_only_sites(&self) -> Vec<LookupSite> {
        let mut all = sites(&self.prepared.module, self.func, 0);
        all.retain(|s| s.is_comparable() && s.key_size <= WIDEST && self.is_read_only(s.map));
        all.truncate(SITES as usize);
        all
    }

    /// The hottest keys that an instrumented variant recorded for each of these sites.
    pub(crate) fn profiled(&self, wanted: &[LookupSite], frames: &[Vec<u8>], most: usize) -> Vec<SitePlan> {
        let program = self.instrumented(&wanted.iter().map(|s| s.id).collect::<Vec<_>>());
        frames.iter().for_each(|f| drop(run(&program, f)));
        let plan = |(n, site): (usize, &LookupSite)| {
            let mut seen: HashMap<Vec<u8>, u64> = HashMap::new();
            for (key, count) in self.recorded(n as u32, site.key_size).0 {
                *seen.entry(key).or_insert(0) += count;
            }
            SitePlan { site: site.id, lookup: hot(self, site, &seen, most) }
        };
        wanted.iter().enumerate().map(plan).collect()
    }
}

impl MapContents for Rig {
    fn lookup(&self, map: Map, key: &[u8]) -> Option<Option<Vec<u8>>> {
        let name = &self.prepared.module.maps[map].name;
        if !self.is_read_only(map) {
            return None;
        }
        self.map(name).lookup(key).ok()
    }

    fn constant(&self, map: Map, _: Range<u32>) -> bool {
        self.is_read_only(map)
    }
}

/// Verdict and frame after a program.
type Answer = (u32, Vec<u8>);

/// Runs a program on a frame.
pub(crate) fn run(program: &KernelProgram, frame: &[u8]) -> Answer {
    let out = program.test_run(&TestRun::packet(frame)).expect("a test run");
    (out.retval, out.data)
}

/// Number of packets for a comparison: `MILLSTREAM_TEST_PACKETS`, or 10,000.
pub(crate) fn packets() -> usize {
    std::env::var("MILLSTREAM_TEST_PACKETS").ok().and_then(|n| n.parse().ok()).unwrap_or(10_000)
}

/// Runs both programs on all frames and compares verdicts and frames; then the growth of the counters.
pub(crate) fn compare(rig: &Rig, variant: &KernelProgram, frames: &[Vec<u8>], counters: &[&str]) {
    compare_apart((rig, &rig.original), (rig, variant), frames, counters);
}

/// The same, each program with maps of its own.
pub(crate) fn compare_apart(
    original: (&Rig, &KernelProgram),
    variant: (&Rig, &KernelProgram),
    frames: &[Vec<u8>],
    counters: &[&str],
) {
    let grown = |(rig, program): (&Rig, &KernelProgram)| -> (Vec<Answer>, Vec<Vec<u64>>) {
        let before: Vec<Vec<u64>> = counters.iter().map(|m| words(rig, m)).collect();
        let results = frames.iter().map(|f| run(program, f)).collect();
        let after = counters.iter().map(|m| words(rig, m));
        let growth =
            after.zip(&before).map(|(a, b)| a.iter().zip(b).map(|(a, b)| a.wrapping_sub(*b)).collect());
        (results, growth.collect())
    };
    let (expected, expected_growth) = grown(original);
    let (found, growth) = grown(variant);
    for ((frame, expected), found) in frames.iter().zip(&expected).zip(&found) {
        assert_eq!(found, expected, "for {frame:02x?}");
    }
    assert_eq!(growth, expected_growth, "counters");
}

/// The 64-bit words of all values of a map, summed over CPUs.
fn words(rig: &Rig, map: &str) -> Vec<u64> {
    let stride = rig.map(map).info().value_size.next_multiple_of(8) as usize / 8;
    let mut all = Vec::new();
    for (_, value) in rig.snapshot(map) {
        let words: Vec<u64> =
            value.chunks_exact(8).map(|c| u64::from_ne_bytes(c.try_into().unwrap())).collect();
        for n in 0..stride.min(words.len()) {
            all.push(words.iter().skip(n).step_by(stride).fold(0u64, |sum, w| sum.wrapping_add(*w)));
        }
    }
    all
}

/// The keys that a site sees for these flows, by weight, with the map's values.
pub(crate) fn hot(rig: &Rig, site: &LookupSite, seen: &HashMap<Vec<u8>, u64>, most: usize) -> LookupPlan {
    let mut entries: Vec<LookupEntry> = seen
        .iter()
        .map(|(key, heat)| {
            let name = &rig.prepared.module.maps[site.map].name;
            LookupEntry { key: key.clone(), value: rig.map(name).lookup(key).expect("readable"), heat: *heat }
        })
        .collect();
    entries.sort_by(|a, b| b.heat.cmp(&a.heat).then_with(|| a.key.cmp(&b.key)));
    entries.truncate(most);
    LookupPlan::Hot(HotEntries { entries })
}

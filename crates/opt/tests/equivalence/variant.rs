//! The original, the round trip and the optimized program, loaded side by side.
//!
//! All look at one clock: every call of `bpf_ktime_get_coarse_ns` becomes a call of a function that reads a
//! map, so that ages and time stamps are equal in all maps and time passes when the test says. The call stays
//! one instruction, and its result a scalar that the verifier knows nothing of.

use std::collections::BTreeSet;
use std::os::fd::{AsFd, AsRawFd};

use millstream_isa::helpers::id;
use millstream_isa::{MapType, RawInsn};
use millstream_kernel::{
    AttachType, BatchEntries, KernelMap, KernelProgram, MapSpec, ProgramSpec, ProgramType, TestOutput,
    TestRun, UpdateMode,
};
use millstream_loader::{ObjectLoader, Session};
use millstream_object::{FuncId, LinkedProgram, MapId, Object};
use millstream_opt::{FunctionOutcome, OptimizeOptions, optimize};
use millstream_programs::MapEntry;

const CALL: u8 = 0x85;
const LD_IMM64: u8 = 0x18;
const PSEUDO_CALL: u8 = 1;
const PSEUDO_MAP_VALUE: u8 = 2;
/// The interface of test runs: devmap entries must name one that exists.
pub(crate) const INGRESS: u32 = 1;

/// The objects: as compiled, lifted and lowered without passes, optimized.
pub(crate) struct Objects {
    pub(crate) named: [(&'static str, Object); 3],
    pub(crate) function: &'static str,
}

impl Objects {
    pub(crate) fn new(program: &millstream_programs::DataPlaneProgram) -> Self {
        let original = Object::parse(program.name, program.object).expect("our own object");
        let round_trip = rewritten(&original, program.function, &{
            OptimizeOptions { fuel: Some(0), keep_longer: true, ..OptimizeOptions::default() }
        });
        // What all passes make, also where it is predicted to be slower.
        let all = OptimizeOptions { keep_longer: true, ..OptimizeOptions::default() };
        let optimized = rewritten(&original, program.function, &all);
        let named = [("original", original), ("round trip", round_trip), ("optimized", optimized)];
        Objects { named, function: program.function }
    }
}

/// The object with new instructions. To compare a program with itself would show nothing, so it must be
/// rewritten.
fn rewritten(object: &Object, function: &str, options: &OptimizeOptions) -> Object {
    let done = optimize(object, options).expect("optimized");
    let report = done.functions.iter().find(|f| f.name == function).expect("a report for each function");
    assert!(matches!(report.outcome, FunctionOutcome::Rewritten), "{function}: {:?}", report.outcome);
    done.object
}

/// A program linked, with the clock's function behind it if it asks for the time. Gives the place of the
/// clock's `ld_imm64`, too.
pub(crate) fn with_clock(object: &Object, function: &str) -> (LinkedProgram, Option<usize>) {
    let func = object.programs.iter().find(|p| p.name == function).expect("its program").func;
    let mut linked = object.link(func).expect("it links");
    let end = linked.insns.len();
    let mut asked = false;
    for (at, insn) in linked.insns.iter_mut().enumerate() {
        if insn.code == CALL && insn.src == 0 && insn.imm == id::KTIME_GET_COARSE_NS {
            (insn.src, insn.imm) = (PSEUDO_CALL, (end - at - 1) as i32);
            asked = true;
        }
    }
    if !asked {
        return (linked, None);
    }
    let raw = |code, dst, src| RawInsn { code, dst, src, off: 0, imm: 0 };
    linked.insns.extend([
        raw(LD_IMM64, 0, PSEUDO_MAP_VALUE),
        raw(0, 0, 0),
        raw(0x79, 0, 0), // r0 = *(u64 *)(r0 + 0)
        raw(0x95, 0, 0), // exit
    ]);
    (linked, Some(end))
}

/// Current time, for programs.
pub(crate) struct Clock(KernelMap);

impl Clock {
    pub(crate) fn new() -> Self {
        let spec = MapSpec {
            name: "clock",
            map_type: MapType::ARRAY,
            key_size: 4,
            value_size: 8,
            max_entries: 1,
            ..MapSpec::default()
        };
        Clock(KernelMap::create(&spec).expect("a map"))
    }

    pub(crate) fn set(&self, now: u64) {
        self.0.update(&[0; 4], &now.to_ne_bytes(), UpdateMode::Any).expect("the clock's only entry");
    }
}

/// One of the three in the kernel, with maps of its own.
pub(crate) struct Variant<'a> {
    pub(crate) name: &'static str,
    session: Session<'a>,
    program: KernelProgram,
}

impl<'a> Variant<'a> {
    pub(crate) fn load(name: &'static str, object: &'a Object, function: &str, clock: &Clock) -> Self {
        let session = ObjectLoader::new(object).prepare().expect("maps");
        let (func, slots) = final_slots(&session, function, clock);
        let program = session.load_raw(func, &slots).unwrap_or_else(|e| panic!("{name}: {e}"));
        Variant { name, session, program }
    }

    /// Writes entries, consecutive ones of one map at once.
    pub(crate) fn apply(&self, entries: &[MapEntry]) {
        for group in entries.chunk_by(|a, b| a.map == b.map) {
            let map = self.session.map_by_name(group[0].map).expect("the object's map");
            if map.info().map_type.is_percpu() || map.info().map_type.is_devmap() || group.len() == 1 {
                for entry in group {
                    let mut value = entry.value.clone();
                    if map.info().map_type.is_devmap() {
                        value[..4].copy_from_slice(&INGRESS.to_ne_bytes());
                    }
                    map.update_all_cpus(&entry.key, &value, UpdateMode::Any).expect("written");
                }
                continue;
            }
            let keys: Vec<u8> = group.iter().flat_map(|e| e.key.iter().copied()).collect();
            let values: Vec<u8> = group.iter().flat_map(|e| e.value.iter().copied()).collect();
            map.update_batch(&keys, &values).expect("written");
        }
    }

    /// Runs a frame: verdict, frame and context afterwards are in `out`.
    pub(crate) fn run(&self, frame: &[u8], out: &mut TestOutput) {
        self.program.test_run_into(&TestRun::packet(frame), out).expect("a test run");
    }

    /// All entries of all maps, in the order of the object's maps.
    pub(crate) fn contents(&self) -> Contents {
        let maps = &self.session.object().maps;
        let entries = |i| self.session.map(MapId(i as u32)).expect("made").entries().expect("readable");
        Contents { maps: maps.iter().enumerate().map(|(i, map)| (map.name.clone(), entries(i))).collect() }
    }
}

/// Entries of all maps of a variant at one time.
pub(crate) struct Contents {
    maps: Vec<(String, BatchEntries)>,
}

impl Contents {
    /// The entries of a map.
    pub(crate) fn map(&self, name: &str) -> Option<&BatchEntries> {
        self.maps.iter().find(|(n, _)| n == name).map(|(_, entries)| entries)
    }

    /// The first map whose contents differ from the other's, with an entry that does.
    pub(crate) fn difference(&self, other: &Self) -> Option<String> {
        self.maps.iter().zip(&other.maps).find_map(|((name, a), (_, b))| {
            if a == b {
                return None;
            }
            // Hash tables have an order of their own, which their seed decides.
            let [a, b] = [a, b].map(|entries| {
                let mut all: Vec<_> = entries.iter().collect();
                all.sort_unstable();
                all
            });
            let at = a.iter().zip(&b).find(|(a, b)| a != b);
            (a != b).then(|| format!("map {name:?}: {} and {} entries; {at:02x?}", a.len(), b.len()))
        })
    }
}

/// Program and instructions as the kernel gets them.
fn final_slots(session: &Session<'_>, function: &str, clock: &Clock) -> (FuncId, Vec<u64>) {
    let (linked, place) = with_clock(session.object(), function);
    let (mut slots, _) = session.slots(&linked).expect("relocated");
    if let Some(at) = place {
        // The descriptor is the upper half of the slot.
        slots[at] |= (clock.0.as_fd().as_raw_fd() as u64) << 32;
    }
    (linked.functions[0].1, slots)
}

/// The slots that the kernel's verifier walks: no packet can reach the others, for any contents of the maps.
pub(crate) fn walked(object: &Object, function: &str) -> BTreeSet<usize> {
    let session = ObjectLoader::new(object).prepare().expect("maps");
    let clock = Clock::new();
    let (_, slots) = final_slots(&session, function, &clock);
    let spec = ProgramSpec {
        program_type: ProgramType::XDP,
        expected_attach: AttachType::XDP,
        insns: &slots,
        license: &object.license,
        ..ProgramSpec::default()
    };
    let (_, log) = KernelProgram::load_with_full_log(&spec).expect("accepted");
    let walked = log.lines().filter_map(|line| line.split_once(": (")?.0.trim().parse().ok());
    walked.collect()
}

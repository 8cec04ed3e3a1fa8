//! Caches of inner maps of maps of maps: keys are looked up in the right map, and all its writers are seen.

use std::os::fd::AsFd;
use std::sync::Mutex;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use millstream_isa::MapType;
use millstream_kernel::{KernelMap, KernelProgram, MapSpec, TestRun, UpdateMode, query_xdp, testing};
use millstream_lab::{RigConfig, TestRig, TrafficSequence};
use millstream_object::Object;
use millstream_programs::router;
use millstream_programs::traffic::{FlowLocality, WeightedFlows};
use millstream_rng::Rng;
use millstream_specialize::caches::EntryCaches;
use millstream_specialize::guard::Guard;
use millstream_specialize::live::details::LookupMethod;
use millstream_specialize::map_users::{MapRejection, MapUsers, OwnPrograms};
use millstream_specialize::replay::sample::PacketSample;
use millstream_specialize::watched_inner_maps::WatchedInnerMaps;
use millstream_specialize::{DetachPolicy, LiveSession, SessionReport, SessionSettings, variant_compiler};
use millstream_specializer::policy::Tier;
use millstream_specializer::transform::LookupPlan;

use crate::fixtures;
use crate::offline::Offline;
use crate::routed::{End, alone, generation, settings};

/// The types of inner maps that have caches.
const TYPES: [(&str, MapType); 2] =
    [("-DTABLE=BPF_MAP_TYPE_HASH", MapType::HASH), ("-DTABLE=BPF_MAP_TYPE_LRU_HASH", MapType::LRU_HASH)];
/// Slots of the map of maps; the last one stays empty.
pub(crate) const SLOTS: u32 = 4;
/// Types of service: the packet's operation on the entry that it finds.
pub(crate) const READS: u8 = 0;
const WRITES: u8 = 1;
const DELETES: u8 = 2;

pub(crate) fn table(map_type: MapType) -> KernelMap {
    let spec = MapSpec {
        name: "table",
        map_type,
        key_size: if map_type == MapType::ARRAY { 4 } else { 16 },
        value_size: 8,
        max_entries: 512,
        ..MapSpec::default()
    };
    KernelMap::create(&spec).expect("an inner map")
}

/// Fills all slots but the last.
pub(crate) fn fill(outer: &KernelMap, map_type: MapType) -> Vec<KernelMap> {
    let put = |slot: u32| {
        let inner = table(map_type);
        outer.update_fd(&slot.to_ne_bytes(), inner.as_fd()).expect("an inner map more");
        inner
    };
    (0..SLOTS - 1).map(put).collect()
}

/// The n-th flow's frame, by the map of this slot.
pub(crate) fn frame(slot: u32, n: u32, does: u8) -> Vec<u8> {
    let mut frame = vec![0; 64];
    frame[0] = slot as u8;
    frame[15] = does;
    frame[26..30].copy_from_slice(&n.to_be_bytes());
    frame
}

pub(crate) fn key(n: u32) -> Vec<u8> {
    [&n.to_be_bytes()[..], &[0; 12]].concat()
}

pub(crate) fn value(verdict: u32, packets: u32) -> Vec<u8> {
    [verdict, packets].map(u32::to_ne_bytes).concat()
}

/// Verdict, and the count that the packet reports.
pub(crate) fn answer(program: &KernelProgram, frame: &[u8]) -> (u32, u8) {
    let out = program.test_run(&TestRun::packet(frame)).expect("a test run");
    (out.retval, out.data[0])
}

pub(crate) fn sampled(frames: Vec<Vec<u8>>) -> Vec<PacketSample> {
    frames.into_iter().map(|packet| PacketSample { packet, context: Vec::new() }).collect()
}

/// Few keys in all slots: found, written, deleted and inserted again.
pub(crate) fn mixed(count: usize) -> Vec<Vec<u8>> {
    let mut rng = Rng::new(1);
    let does = [READS, READS, READS, READS, WRITES, WRITES, DELETES];
    let one = |_| {
        let does = does[rng.below(does.len() as u64) as usize];
        frame(rng.below(SLOTS.into()) as u32, rng.below(40) as u32, does)
    };
    (0..count).map(one).collect()
}

#[test]
fn writers_of_inner_maps_are_counted() {
    for (flag, map_type) in TYPES {
        if !testing::require() {
            return;
        }
        let Some(object) = fixtures::read("inner", &[flag]) else { return };
        let compiler = variant_compiler(&object, None).expect("prepared");
        let plane = Offline::new(&compiler, &[]);
        let outer = plane.session.map_by_name("tables").expect("the map of maps");
        let tables = fill(outer, map_type);
        let frames = mixed(4_000);
        let (profiles, _) = plane.profile(&frames);
        let samples = sampled(frames);
        for counts in [true, false] {
            // Copies of the maps that are named are written.
            let before = tables[0].entries().expect("entries").len();
            plane.is_the_same_if(counts, &profiles, &samples, |plan| {
                assert_eq!((plan.caches.len(), plan.inside.len()), (1, 3), "{plan:?}");
            });
            assert_eq!(tables[0].entries().expect("entries").len(), before, "a replay wrote the live maps");
        }
    }
}

/// The same key in two maps, and in the one that is there where there is none inside.
#[test]
fn a_copy_is_of_the_map_that_was_asked() {
    let (flag, map_type) = TYPES[1];
    if !testing::require() {
        return;
    }
    let Some(object) = fixtures::read("inner", &[flag]) else { return };
    let compiler = variant_compiler(&object, None).expect("prepared");
    let mut plane = Offline::new(&compiler, &[]);
    let named = |plane: &Offline<'_>, name| {
        plane.session.map_by_name(name).expect("a map").try_clone().expect("a descriptor")
    };
    let (outer, spare) = (named(&plane, "tables"), named(&plane, "spare"));
    let mut tables = fill(&outer, map_type);
    let (profiles, _) = plane.profile(&mixed(1_000));
    tables.push(spare);
    for (slot, table) in (0..).zip(&tables) {
        table.update(&key(7), &value(1 + slot % 3, 10 + slot), UpdateMode::Any).expect("an entry");
    }
    // The code tests which map it is.
    let made = plane
        .variant(&profiles, Tier::Thorough, |plan| plan.sites.retain(|s| s.lookup == LookupPlan::Cached));
    let made = made.expect("a variant");
    let mut caches = EntryCaches::new(made.caches.iter().map(|c| (c.of, c.shape))).expect("memory");
    let program = plane.at_work(&made, &caches);
    caches.close();
    let ask = |slot| answer(&program, &frame(slot, 7, READS));
    for slot in [0, 0, 1, 2, 3, 3, 0, 1] {
        assert_eq!(ask(slot), (1 + slot % 3, 10 + slot as u8), "slot {slot}");
    }
    // These writes are not counted, so that copies can be told from maps.
    tables.iter().for_each(|table| {
        table.update(&key(7), &value(2, 99), UpdateMode::Any).expect("an entry");
    });
    assert_eq!(ask(1), (2, 11), "a copy answers: the map is not asked");
    assert_eq!(ask(2), (2, 99), "another map's copy: two have one");
    // Another map in a slot is another map, whatever the copies of the first.
    let other = table(map_type);
    other.update(&key(7), &value(3, 50), UpdateMode::Any).expect("an entry");
    assert_eq!(ask(0), (1, 10), "the other copy");
    outer.update_fd(&0u32.to_ne_bytes(), other.as_fd()).expect("another inner map");
    assert_eq!(ask(0), (3, 50));
    caches.forget();
    assert_eq!(ask(1), (2, 99), "no copy of before");
}

/// Inner maps of least recent use evict the same entries, with lookups answered by copies or not.
#[test]
fn recent_use_of_inner_maps_is_what_it_was() {
    let (flag, map_type) = TYPES[1];
    if !testing::require() {
        return;
    }
    let Some(object) = fixtures::read("inner", &[flag]) else { return };
    let compiler = variant_compiler(&object, None).expect("prepared");
    let plane = Offline::new(&compiler, &[]);
    let _tables = fill(plane.session.map_by_name("tables").expect("the map of maps"), map_type);
    let (profiles, _) = plane.profile(&mixed(1_000));
    let mut rng = Rng::new(5);
    // Some flows stay for ever; others come, twice each, and push out entries that are not used.
    let frames = (0..60_000u32).map(|n| match n % 3 {
        0 => frame(n % 2, 1_000_000 + n, READS),
        1 => frame((n - 1) % 2, 1_000_000 + n - 1, READS),
        _ => frame(rng.below(2) as u32, rng.below(60) as u32, READS),
    });
    let samples = sampled(frames.collect());
    for counts in [true, false] {
        plane.is_the_same_if(counts, &profiles, &samples, |_| ());
    }
}

#[test]
fn who_else_holds_a_map_inside_is_found() {
    if !testing::require() {
        return;
    }
    let map_type = MapType::HASH;
    let template = table(map_type);
    let spec = MapSpec {
        name: "outer",
        map_type: MapType::ARRAY_OF_MAPS,
        key_size: 4,
        value_size: 4,
        max_entries: SLOTS,
        inner: Some(&template),
        ..MapSpec::default()
    };
    let (outer, foreign) =
        (KernelMap::create(&spec).expect("a map of maps"), KernelMap::create(&spec).expect("another"));
    let Ok(mut guard) = Guard::attach() else { panic!("no guard") };
    let ours = OwnPrograms::new(guard.programs());
    let index = guard.reserve(16).expect("an index");
    let mut nested = WatchedInnerMaps::new(vec![outer.try_clone().expect("a descriptor")], Vec::new(), index);
    let tables = fill(&outer, map_type);
    let version = guard.version();
    nested.look(&mut guard).expect("watched");
    assert!(guard.version() > version, "what was begun before they were watched may hold");
    let who = |nested: &WatchedInnerMaps| nested.foreign(&MapUsers::look().expect("an answer"), &ours);
    assert_eq!(who(&nested), None);
    // A write by the map's own descriptor revokes.
    let version = guard.version();
    tables[2].update(&key(1), &value(1, 1), UpdateMode::Any).expect("an entry");
    assert!(guard.version() > version);
    // A write to a map that has been taken out does not, once that was seen.
    outer.delete(&2u32.to_ne_bytes()).expect("it was there");
    nested.look(&mut guard).expect("watched");
    let version = guard.version();
    tables[2].update(&key(1), &value(1, 2), UpdateMode::Any).expect("an entry");
    assert_eq!(guard.version(), version);
    foreign.update_fd(&[0; 4], tables[1].as_fd()).expect("in another map of maps, too");
    assert!(matches!(who(&nested), Some(MapRejection::Outer(id)) if id == foreign.id()));
}

/// A session whose program finds its tables in a map of maps.
pub(crate) struct Session<'s> {
    rig: &'s TestRig,
    pub(crate) outer: &'s KernelMap,
    pub(crate) tables: &'s [KernelMap],
    pub(crate) told: &'s Mutex<Vec<SessionReport>>,
}

impl Session<'_> {
    pub(crate) fn on_hook(&self) -> KernelProgram {
        let port = self.rig.test_port();
        let held = self.rig.namespace().enter(|| query_xdp(port)).expect("the namespace");
        let held = held.expect("an answer").expect("a program is there");
        KernelProgram::from_id(held.program_id).expect("a descriptor")
    }

    pub(crate) fn ask(&self, slot: u32) -> (u32, u8) {
        answer(&self.on_hook(), &frame(slot, 7, READS))
    }

    /// Puts another map into a slot, with this answer. Packets may find the old one until this has returned.
    pub(crate) fn exchange(&self, slot: u32, verdict: u32, packets: u32) -> KernelMap {
        let other = table(self.tables[0].info().map_type);
        other.update(&key(7), &value(verdict, packets), UpdateMode::Any).expect("an entry");
        self.outer.update_fd(&slot.to_ne_bytes(), other.as_fd()).expect("another inner map");
        other
    }
}

/// Runs a session of the program on a rig, with packets and inner maps of this type, and `act` beside it;
/// calls `look` at the end.
pub(crate) fn session(
    (object, map_type): (&Object, MapType),
    name: &str,
    set: impl FnOnce(&mut SessionSettings) + Send,
    act: impl FnOnce(&Session<'_>) + Send,
    look: impl FnOnce(&LiveSession<'_>) + Send,
) {
    let _alone = alone();
    let rig = TestRig::new(RigConfig::default()).expect("a rig");
    let flows = flows();
    rig.load_traffic(&TrafficSequence::new(&flows, &flows.sequence(1, 1 << 13))).expect("traffic");
    let compiler = variant_compiler(object, None).expect("prepared");
    let (told, stop) = (Mutex::new(Vec::<SessionReport>::new()), AtomicBool::new(false));
    rig.namespace()
        .enter(|| {
            let mut settings = settings(name, Duration::from_millis(200));
            set(&mut settings);
            let mut live = LiveSession::load(&compiler, settings).expect("loaded");
            let outer = live.map("tables").expect("the map of maps").try_clone().expect("a descriptor");
            let tables = fill(&outer, map_type);
            live.attach(&[rig.test_port()]).expect("attached");
            std::thread::scope(|scope| {
                scope.spawn(|| rig.generator_loop(&stop, Some(200_000.0)));
                let script = scope.spawn(|| {
                    let _end = End(&stop);
                    act(&Session { rig: &rig, outer: &outer, tables: &tables, told: &told });
                });
                live.run(&stop, &mut |r| told.lock().expect("no panic").push(r.clone())).expect("runs");
                script.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
            });
            look(&live);
            live.finish(DetachPolicy::Restored).expect("finished");
        })
        .expect("in the namespace");
}

/// A session, while packets flow and the control plane writes inner maps, and exchanges them: each answer
/// after a write is the new one.
#[test]
fn no_answer_from_an_inner_map_is_stale() {
    let (flag, map_type) = TYPES[1];
    if !testing::require() {
        return;
    }
    let Some(object) = fixtures::read("inner", &[flag]) else { return };
    session(
        (&object, map_type),
        "inner",
        |_| (),
        written,
        |live| {
            let details = live.details().expect("details");
            let cached = details.lookups.iter().filter(|l| l.how == LookupMethod::Cache);
            assert!(cached.clone().any(|l| l.map == "tables.inner"), "{:?}", details.lookups);
        },
    );
}

/// Traffic meanwhile: keys that nobody writes.
fn flows() -> WeightedFlows {
    let config = router::generate(10, &[1], 4, 1);
    let mut flows = router::flows(&config, 300, FlowLocality::NONE, 1);
    for (n, packet) in (0u32..).zip(&mut flows.packets) {
        *packet = frame(n % (SLOTS - 1), 1_000 + n, READS);
    }
    flows
}

fn written(it: &Session<'_>) {
    let start = Instant::now();
    while !it.told.lock().expect("no panic").iter().any(|r| generation(r).is_some()) {
        assert!(start.elapsed() < Duration::from_secs(60), "no generation: {:?}", it.told);
        std::thread::sleep(Duration::from_millis(5));
    }
    let mut tables: Vec<KernelMap> = it.tables.iter().map(|t| t.try_clone().expect("a descriptor")).collect();
    for n in 0..300u32 {
        let slot = n % (SLOTS - 1);
        let packets = n % 200;
        if n % 5 == 0 {
            tables[slot as usize] = it.exchange(slot, 3, packets);
            assert_eq!(it.ask(slot), (3, packets as u8), "stale: {n}");
        }
        let map = &tables[slot as usize];
        map.update(&key(7), &value(2, packets + 1), UpdateMode::Any).expect("an entry");
        assert_eq!(it.ask(slot), (2, packets as u8 + 1), "stale: {n}");
        std::thread::sleep(Duration::from_millis(u64::from(n % 9)));
        assert_eq!(it.ask(slot), (2, packets as u8 + 1), "{n}");
    }
}

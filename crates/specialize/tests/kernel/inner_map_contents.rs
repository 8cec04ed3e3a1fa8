//! Contents of inner maps of maps of maps, in code, if no program writes them.

use std::collections::BTreeSet;
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use millstream_isa::MapType;
use millstream_kernel::{KernelMap, UpdateMode, testing};
use millstream_object::Object;
use millstream_specialize::caches::EntryCaches;
use millstream_specialize::live::details::LookupMethod;
use millstream_specialize::live::step::SessionStep;
use millstream_specialize::replay::ReplayVerdict;
use millstream_specialize::report::CompileReason;
use millstream_specialize::{LiveSession, SessionReport, SessionSettings, variant_compiler};
use millstream_specializer::policy::Tier;
use millstream_specializer::transform::{LookupPlan, SpecializationPlan};

use crate::fixtures;
use crate::gate::{Gate, Opened, repeated};
use crate::inner::{self, READS, SLOTS, Session, answer, fill, frame, key, sampled, table, value};
use crate::map_in_map::{named, stale};
use crate::offline::Offline;

/// The program, with these maps inside maps of this type.
fn object(outer: &str, inner: MapType) -> Option<Object> {
    let outer = format!("-DOUTER=BPF_MAP_TYPE_{outer}");
    match inner {
        MapType::ARRAY => fixtures::read("within", &["-DTABLE=BPF_MAP_TYPE_ARRAY", "-DINDEX", &outer]),
        _ => fixtures::read("within", &["-DTABLE=BPF_MAP_TYPE_HASH", &outer]),
    }
}

/// A key of these maps, as the n-th flow's frame has it.
fn key_of(map: &KernelMap, n: u32) -> Vec<u8> {
    key(n)[..map.info().key_size as usize].to_vec()
}

/// In an array, the frame's bytes are an index.
fn number(kind: MapType, n: u32) -> u32 {
    if kind == MapType::ARRAY { n.swap_bytes() } else { n }
}

fn put(map: &KernelMap, n: u32, verdict: u32, packets: u32) {
    let n = number(map.info().map_type, n);
    map.update(&key_of(map, n), &value(verdict, packets), UpdateMode::Any).expect("an entry");
}

fn place(outer: &KernelMap, slot: u32, inner: &KernelMap) {
    outer.update_fd(&slot.to_ne_bytes(), inner.as_fd()).expect("an inner map");
}

/// Number of inner maps that are in code.
fn places(plan: &SpecializationPlan) -> usize {
    plan.within.iter().map(|within| within.place).collect::<BTreeSet<_>>().len()
}

#[test]
fn what_maps_inside_hold_is_in_code() {
    for kind in [MapType::HASH, MapType::ARRAY] {
        for outer in ["ARRAY_OF_MAPS", "HASH_OF_MAPS"] {
            if !testing::require() {
                return;
            }
            let Some(object) = object(outer, kind) else { return };
            let compiler = variant_compiler(&object, None).expect("prepared");
            let mut plane = Offline::new(&compiler, &[]);
            let (outer, others) = (named(&plane, "tables"), named(&plane, "others"));
            let tables = fill(&outer, kind);
            // The same map twice in one map of maps, and in another, which is consulted next.
            place(&outer, SLOTS - 1, &tables[0]);
            place(&others, 1, &tables[0]);
            (0..).zip(&tables).for_each(|(slot, table)| put(table, 7, 1 + slot % 3, 10 + slot));
            put(&tables[0], 9, 3, 30);
            // In an array, code is faster than the lookup only where one entry is hot.
            let second = if kind == MapType::ARRAY { 7 } else { 9 };
            let ns = [7, 7, 7, second, 600].map(|n| number(kind, n));
            // If one is hot, all contents of a map of maps become code.
            let slot = |at: usize| (at as u32 % 16).saturating_sub(12);
            let frames: Vec<Vec<u8>> =
                (0..1_000).map(|at| frame(slot(at), ns[at / 16 % ns.len()], READS)).collect();
            let (profiles, _) = plane.profile(&frames);
            let made = plane.variant(&profiles, Tier::Thorough, |plan| {
                assert_eq!(places(plan), 3, "{plan:?}");
                let is_cached = |lookup: &LookupPlan| *lookup == LookupPlan::Cached;
                assert!(!plan.sites.iter().any(|s| is_cached(&s.lookup)), "there is nothing to be cached");
            });
            let made = made.expect("a variant");
            let judged = plane.compare(&made, &sampled(frames), true, 1_000).expect("judged");
            assert!(matches!(judged.finding, ReplayVerdict::Same(_)), "{judged:?}");
            let program = plane.at_work(&made, &EntryCaches::default());
            let ask = |slot, n| answer(&program, &frame(slot, number(kind, n), READS));
            let all = [(0, (1, 10)), (1, (2, 11)), (2, (3, 12)), (3, (1, 10))];
            for (slot, answer) in all {
                assert_eq!(ask(slot, 7), answer, "slot {slot}");
            }
            if kind == MapType::HASH {
                assert_eq!(ask(1, 9), (3, 1), "the other map of maps");
            }
            assert_eq!([ask(1, 600), ask(0, 600)], [(0, 1), (2, 0)], "no such entry, and no such map");
            // Nobody revokes here, so that values in code can be told from those in the maps.
            tables.iter().for_each(|table| put(table, 7, 2, 99));
            if kind == MapType::HASH {
                tables.iter().for_each(|table| put(table, 600, 2, 99));
            }
            for (slot, answer) in all {
                assert_eq!(ask(slot, 7), answer, "slot {slot}: the map is not asked");
            }
            assert_eq!(ask(1, 600), (0, 1), "nor for what was not there");
            stale(&plane);
            all.iter().for_each(|(slot, _)| assert_eq!(ask(*slot, 7), (2, 99), "slot {slot}"));
        }
    }
}

/// Nothing is known of maps that programs write, and nothing is read of those that are large.
#[test]
fn maps_inside_that_are_written_or_large_are_looked_up() {
    if !testing::require() {
        return;
    }
    let Some(written) = fixtures::read("inner", &["-DTABLE=BPF_MAP_TYPE_HASH"]) else { return };
    let Some(mut large) = object("ARRAY_OF_MAPS", MapType::HASH) else { return };
    for map in &mut large.maps {
        map.inner.as_mut().expect("a map of maps").max_entries = 4;
    }
    for (object, is_large) in [(&written, false), (&large, true)] {
        let compiler = variant_compiler(object, None).expect("prepared");
        let plane = Offline::new(&compiler, &[]);
        let tables = fill(&named(&plane, "tables"), MapType::HASH);
        tables.iter().for_each(|table| put(table, 7, 2, 20));
        let frames: Vec<Vec<u8>> = (0..100).map(|at| frame(at % 3, 7, READS)).collect();
        let (profiles, _) = plane.profile(&frames);
        let within = |tier| {
            let mut found = None;
            plane.variant(&profiles, tier, |plan| found = Some(places(plan)));
            found.expect("a plan")
        };
        // While packets wait, a map is large if it has room for more than a few entries.
        assert_eq!(within(Tier::Quick), 0);
        assert_eq!(within(Tier::Thorough), if is_large { 3 } else { 0 });
    }
}

fn is_thorough(report: &SessionReport) -> bool {
    matches!(report, SessionReport::Specialised { reason: CompileReason::Quiet, .. })
}

/// Waits until the program on the hook has whole tables once more.
fn until_thorough(it: &Session<'_>) {
    let (start, before) = (Instant::now(), count(it));
    while count(it) == before {
        assert!(start.elapsed() < Duration::from_secs(60), "it does not come: {:?}", made(it));
        std::thread::sleep(Duration::from_millis(20));
    }
}

fn made(it: &Session<'_>) -> Vec<SessionReport> {
    let told = it.told.lock().expect("no panic");
    told.iter().filter(|report| !matches!(report, SessionReport::Status { .. })).cloned().collect()
}

fn count(it: &Session<'_>) -> usize {
    it.told.lock().expect("no panic").iter().filter(|report| is_thorough(report)).count()
}

/// Runs a session with an entry in each of its maps, and `act` beside it; calls `look` at the end.
fn session(
    name: &str,
    set: impl FnOnce(&mut SessionSettings) + Send,
    act: impl FnOnce(&Session<'_>) + Send,
    look: impl FnOnce(&LiveSession<'_>) + Send,
) {
    let Some(object) = object("ARRAY_OF_MAPS", MapType::HASH) else { return };
    inner::session((&object, MapType::HASH), name, set, act, look);
}

fn is_in_code(live: &LiveSession<'_>) {
    let details = live.details().expect("details");
    let inner = details.lookups.iter().find(|l| l.map == "tables.inner").expect("the lookup");
    assert!(matches!(inner.how, LookupMethod::Code), "{:?}", details.lookups);
}

#[test]
fn a_write_to_a_map_inside_is_seen_at_once() {
    if !testing::require() {
        return;
    }
    session(
        "within",
        |_| (),
        |it| {
            until_thorough(it);
            for (slot, table) in (0..).zip(it.tables) {
                assert_eq!(it.ask(slot).0, 2, "no such map");
                put(table, 7, 2, 20 + slot);
                assert_eq!(it.ask(slot), (2, 20 + slot as u8), "stale");
            }
            // A map that is exchanged, and one that was written while it was out.
            let other = it.exchange(0, 3, 50);
            assert_eq!(it.ask(0), (3, 50), "stale");
            put(&it.tables[0], 7, 2, 60);
            place(it.outer, 0, &it.tables[0]);
            assert_eq!(it.ask(0), (2, 60), "stale");
            put(&other, 7, 3, 51);
            place(it.outer, 1, &other);
            assert_eq!(it.ask(1), (3, 51), "stale");
            // A map that changes again and again is looked up.
            for n in 0..60u32 {
                put(&other, 7, 3, n);
                assert_eq!(it.ask(1), (3, n as u8), "stale: {n}");
                std::thread::sleep(Duration::from_millis(u64::from(7 * n % 40)));
                assert_eq!(it.ask(1), (3, n as u8), "stale: {n}");
            }
        },
        |_| (),
    );
}

#[test]
fn what_maps_inside_hold_comes_into_code() {
    if !testing::require() {
        return;
    }
    session("inside-code", |_| (), until_thorough, is_in_code);
}

/// Contents of the inner maps that were read are in code that nobody has approved yet, or nobody has put onto
/// the hook.
#[test]
fn a_map_inside_that_is_written_while_code_is_made_is_in_it() {
    let thorough = Tier::Thorough;
    for step in [
        SessionStep::Coded(thorough),
        SessionStep::Loaded(thorough),
        SessionStep::Made(thorough),
        SessionStep::Swapping,
    ] {
        if !testing::require() {
            return;
        }
        repeated(|| {
            let gate = Gate::at(SessionStep::Coded(thorough));
            session(
                "inside-made",
                |settings| settings.steps = gate.steps(),
                |it| {
                    let _opened = Opened(&gate);
                    gate.wait();
                    if step != SessionStep::Coded(thorough) {
                        gate.next(step);
                        gate.wait();
                    }
                    (0..).zip(it.tables).for_each(|(slot, table)| put(table, 7, 3, 50 + slot));
                    gate.open();
                    until_thorough(it);
                    for slot in 0..SLOTS - 1 {
                        assert_eq!(it.ask(slot), (3, 50 + slot as u8), "stale in code written at {step:?}");
                    }
                    put(&it.tables[2], 7, 2, 70);
                    assert_eq!(it.ask(2), (2, 70), "stale");
                },
                |_| (),
            );
        });
    }
}

/// Another holder of an inner map may write it, and no guard sees that.
#[test]
fn a_map_inside_that_another_map_of_maps_holds_is_in_no_code() {
    if !testing::require() {
        return;
    }
    session(
        "inside-held",
        |_| (),
        |it| {
            until_thorough(it);
            let template = table(MapType::HASH);
            let spec = millstream_kernel::MapSpec {
                name: "foreign",
                map_type: MapType::ARRAY_OF_MAPS,
                key_size: 4,
                value_size: 4,
                max_entries: 1,
                inner: Some(&template),
                ..Default::default()
            };
            let foreign = KernelMap::create(&spec).expect("another map of maps");
            place(&foreign, 0, &it.tables[1]);
            let is_given_up = |r: &SessionReport| match r {
                SessionReport::Withdrawn { reason, .. } => reason.contains("of maps holds it"),
                _ => false,
            };
            let start = Instant::now();
            while !it.told.lock().expect("no panic").iter().any(is_given_up) {
                assert!(start.elapsed() < Duration::from_secs(60), "nothing is given up: {:?}", it.told);
                std::thread::sleep(Duration::from_millis(20));
            }
            put(&it.tables[1], 7, 2, 20);
            assert_eq!(it.ask(1), (2, 20));
        },
        |live| {
            let details = live.details().expect("details");
            assert!(
                !details
                    .lookups
                    .iter()
                    .any(|l| l.map == "tables.inner" && matches!(l.how, LookupMethod::Code))
            );
        },
    );
}

//! Maps of maps in code: inner maps are named, until they are exchanged.

use std::collections::BTreeMap;
use std::os::fd::AsFd;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use millstream_isa::MapType;
use millstream_kernel::{KernelMap, UpdateMode, testing};
use millstream_object::Object;
use millstream_specialize::caches::EntryCaches;
use millstream_specialize::live::step::SessionStep;
use millstream_specialize::report::{GuardState, VariantVerdict};
use millstream_specialize::snapshot::MapSnapshot;
use millstream_specialize::{SessionReport, SessionSettings, variant_compiler};
use millstream_specializer::guard_state::TOKEN;
use millstream_specializer::policy::Tier;
use millstream_specializer::transform::{LookupPlan, SpecializationPlan};
use millstream_specializer::variant::VariantRequest;
use rustc_hash::FxHashMap;

use crate::fixtures;
use crate::gate::{Gate, Opened, repeated};
use crate::inner::{self, READS, SLOTS, Session, answer, fill, frame, key, mixed, table, value};
use crate::offline::{Made, Offline};

const TABLES: MapType = MapType::HASH;

/// The program, with tables in an array or in a hash map.
fn object(outer: &str) -> Option<Object> {
    fixtures::read("inner", &["-DTABLE=BPF_MAP_TYPE_HASH", &format!("-DOUTER=BPF_MAP_TYPE_{outer}")])
}

pub(crate) fn named(plane: &Offline<'_>, name: &str) -> KernelMap {
    plane.session.map_by_name(name).expect("a map").try_clone().expect("a descriptor")
}

/// No lookup has a cache.
fn without_caches(plan: &mut SpecializationPlan) {
    plan.sites.retain(|site| site.lookup != LookupPlan::Cached);
    plan.caches.clear();
}

pub(crate) fn stale(plane: &Offline<'_>) {
    let state = plane.session.map(plane.compiler.guard_map()).expect("the guard's state");
    state.mmap(true).expect("memory").atomic_u64(TOKEN as usize).store(0, Ordering::SeqCst);
}

#[test]
fn what_a_map_of_maps_holds_is_in_code() {
    for outer in ["ARRAY_OF_MAPS", "HASH_OF_MAPS"] {
        if !testing::require() {
            return;
        }
        let Some(object) = object(outer) else { return };
        let compiler = variant_compiler(&object, None).expect("prepared");
        let mut plane = Offline::new(&compiler, &[]);
        let (outer, spare) = (named(&plane, "tables"), named(&plane, "spare"));
        let mut tables = fill(&outer, TABLES);
        // One of the object's own is inside, too.
        outer.update_fd(&2u32.to_ne_bytes(), spare.as_fd()).expect("another inner map");
        tables[2] = spare.try_clone().expect("a descriptor");
        let (profiles, _) = plane.profile(&mixed(1_000));
        tables.push(spare);
        for (slot, table) in (0..).zip(&tables) {
            table.update(&key(7), &value(1 + slot % 3, 10 + slot), UpdateMode::Any).expect("an entry");
        }
        let made = plane.variant(&profiles, Tier::Thorough, |plan| {
            without_caches(plan);
            assert_eq!(plan.inside.len(), 3, "{plan:?}");
            is_refused_unless_named(&plane, plan);
        });
        let made: Made = made.expect("a variant");
        assert_eq!(made.insides.maps().count(), 2, "the object's own stands for itself");
        let program = plane.at_work(&made, &EntryCaches::default());
        let ask = |slot| answer(&program, &frame(slot, 7, READS));
        for (slot, from) in [(0, 0), (1, 1), (2, 3), (3, 3)] {
            assert_eq!(ask(slot), (1 + from % 3, 10 + from as u8), "slot {slot}");
        }
        tables[1].update(&key(7), &value(2, 99), UpdateMode::Any).expect("an entry");
        assert_eq!(ask(1), (2, 99), "it is the map, and no copy");
        // Nobody revokes here, so that values in code can be told from those in the map.
        let other = table(TABLES);
        other.update(&key(7), &value(3, 50), UpdateMode::Any).expect("an entry");
        outer.update_fd(&0u32.to_ne_bytes(), other.as_fd()).expect("another inner map");
        assert_eq!(ask(0), (1, 10), "the map of maps is not asked");
        stale(&plane);
        assert_eq!(ask(0), (3, 50));
    }
}

/// Code cannot do without a lookup that finds a map which nothing stands for.
fn is_refused_unless_named(plane: &Offline<'_>, plan: &SpecializationPlan) {
    let (observed, rooms) = (MapSnapshot::new(&plane.sources), FxHashMap::default());
    let nameless = SpecializationPlan { inside: plan.inside[1..].to_vec(), ..plan.clone() };
    let wanted =
        VariantRequest { plan: &nameless, contents: &observed, rooms: &rooms, callees: &[], joins: &[] };
    let why = plane.compiler.specialised(&wanted).expect_err("it has no name").to_string();
    assert!(why.contains("nothing stands for a map inside"), "{why}");
}

#[test]
fn in_an_empty_map_of_maps_nothing_is_looked_up() {
    if !testing::require() {
        return;
    }
    let Some(object) = object("HASH_OF_MAPS") else { return };
    let compiler = variant_compiler(&object, None).expect("prepared");
    let mut plane = Offline::new(&compiler, &[]);
    let (outer, spare) = (named(&plane, "tables"), named(&plane, "spare"));
    let (profiles, _) = plane.profile(&mixed(1_000));
    spare.update(&key(7), &value(2, 20), UpdateMode::Any).expect("an entry");
    let made = plane.variant(&profiles, Tier::Thorough, |plan| {
        without_caches(plan);
        assert!(plan.sites.iter().any(|site| site.lookup == LookupPlan::Empty), "{plan:?}");
    });
    let program = plane.at_work(&made.expect("a variant"), &EntryCaches::default());
    let tables = fill(&outer, TABLES);
    tables[0].update(&key(7), &value(3, 50), UpdateMode::Any).expect("an entry");
    let ask = |slot| answer(&program, &frame(slot, 7, READS));
    assert_eq!(ask(0), (2, 20));
    stale(&plane);
    assert_eq!(ask(0), (3, 50));
}

impl Session<'_> {
    /// Waits until the program on the hook is approved and names this map.
    fn until_named(&self, map: &KernelMap) {
        self.until(|named| named.contains(&map.id()));
    }

    /// Waits until the program on the hook is approved and the ids of the maps that it names satisfy
    /// `wanted`.
    fn until(&self, wanted: impl Fn(&[u32]) -> bool) {
        let start = Instant::now();
        let valid = |r: &SessionReport| matches!(r, SessionReport::Status { guard: GuardState::Valid, .. });
        loop {
            let before = self.told.lock().expect("no panic").len();
            let program = self.on_hook().info().expect("an answer");
            std::thread::sleep(Duration::from_millis(250));
            let told = self.told.lock().expect("no panic")[before..].to_vec();
            let is_valid = told.iter().any(valid) && told.iter().all(valid);
            let is_there = self.on_hook().info().expect("an answer").id == program.id;
            if is_valid && is_there && wanted(&program.map_ids) {
                return;
            }
            assert!(start.elapsed() < Duration::from_secs(60), "it does not come: {:?}", self.told);
        }
    }
}

/// Runs a session, and `act` beside it.
fn session(name: &str, set: impl FnOnce(&mut SessionSettings) + Send, act: impl FnOnce(&Session<'_>) + Send) {
    let Some(object) = object("ARRAY_OF_MAPS") else { return };
    inner::session((&object, TABLES), name, set, act, |_| ());
}

/// The judge fills maps of maps of its own; if the guard took that for a change, no variant would ever be
/// judged to its end.
#[test]
fn what_names_maps_inside_is_judged() {
    if !testing::require() {
        return;
    }
    session(
        "judged-outer",
        |settings| settings.measure = true,
        |it| {
            let start = Instant::now();
            let is_over = |r: &SessionReport| {
                matches!(
                    r,
                    SessionReport::Judged {
                        outcome: VariantVerdict::Faster
                            | VariantVerdict::Same
                            | VariantVerdict::Trial
                            | VariantVerdict::NotFaster,
                        ..
                    }
                )
            };
            while !it.told.lock().expect("no panic").iter().any(is_over) {
                assert!(start.elapsed() < Duration::from_secs(60), "nothing is judged: {:?}", it.told);
                std::thread::sleep(Duration::from_millis(50));
            }
        },
    );
}

#[test]
fn a_map_that_is_exchanged_is_found_at_once() {
    if !testing::require() {
        return;
    }
    session(
        "outer",
        |_| (),
        |it| {
            it.tables.iter().for_each(|table| it.until_named(table));
            let other = it.exchange(0, 3, 50);
            assert_eq!(it.ask(0), (3, 50), "stale");
            it.until_named(&other);
            assert_eq!(it.ask(0), (3, 50), "stale in new code");
            it.outer.delete(&0u32.to_ne_bytes()).expect("it was there");
            assert_eq!(it.ask(0), (0, 0), "stale: the spare table, where the flow is new");
            // A map that changes again and again is no longer in code, and answers are right all the same.
            let mut inside: Vec<KernelMap> =
                it.tables.iter().map(|t| t.try_clone().expect("a descriptor")).collect();
            for n in 0..40u32 {
                let slot = n % (SLOTS - 1);
                inside[slot as usize] = it.exchange(slot, 2, 60 + n);
                assert_eq!(it.ask(slot), (2, 60 + n as u8), "stale: {n}");
                std::thread::sleep(Duration::from_millis(u64::from(7 * n % 40)));
                assert_eq!(it.ask(slot), (2, 60 + n as u8), "stale: {n}");
            }
            it.until(|named| !inside.iter().any(|map| named.contains(&map.id())));
        },
    );
}

/// Contents of the map of maps that were read are in code that nobody has approved yet.
#[test]
fn a_map_that_is_exchanged_while_code_is_made_is_in_it() {
    let quick = Tier::Quick;
    for step in [SessionStep::Coded(quick), SessionStep::Loaded(quick), SessionStep::Made(quick)] {
        if !testing::require() {
            return;
        }
        repeated(|| {
            let gate = Gate::at(step);
            session(
                "exchanged",
                |settings| settings.steps = gate.steps(),
                |it| {
                    let _opened = Opened(&gate);
                    gate.wait();
                    let others: BTreeMap<u32, KernelMap> =
                        (0..2).map(|slot| (slot, it.exchange(slot, 3, 50 + slot))).collect();
                    gate.open();
                    for (slot, other) in &others {
                        it.until_named(other);
                        assert_eq!(it.ask(*slot), (3, 50 + *slot as u8), "stale in code made at {step:?}");
                    }
                    assert_eq!(it.exchange(0, 2, 70).info().map_type, TABLES);
                    assert_eq!(it.ask(0), (2, 70), "stale");
                },
            );
        });
    }
}

//! Programs that call each other by tail calls: each has its variant, and no program is called that the
//! user's array no longer holds.

use std::collections::BTreeMap;
use std::os::fd::AsFd;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use millstream_isa::MapType;
use millstream_kernel::{
    KernelMap, KernelProgram, Link, MapSpec, TestRun, UpdateMode, XdpMode, query_xdp, testing,
};
use millstream_lab::{RigConfig, TestRig, TrafficSequence};
use millstream_loader::ObjectLoader;
use millstream_object::{FuncId, Object};
use millstream_programs::router;
use millstream_programs::traffic::{FlowLocality, WeightedFlows};
use millstream_rng::Rng;
use millstream_specialize::live::details::SlotTarget;
use millstream_specialize::live::step::SessionStep;
use millstream_specialize::report::{CompileReason, VariantVerdict};
use millstream_specialize::{
    DetachPolicy, LiveSession, SessionReport, SessionSettings, profile, variant_compiler,
};
use millstream_specializer::guard_state::{TOKEN, token};
use millstream_specializer::policy::Tier;
use millstream_specializer::transform::{CodeBudget, LookupSite, SpecializationPlan, UnknownContents};
use millstream_specializer::variant::VariantCompiler;
use millstream_specializer::variant::VariantRequest;
use rustc_hash::FxHashMap;

use crate::fixtures;
use crate::gate::{Gate, Opened, repeated};
use crate::routed::{End, alone, generation, keep_fast, settings};

/// Slots of the array.
const CLASSIFY: u32 = 0;
const ROUTE: u32 = 1;
const DENY: u32 = 2;
const FREE: u32 = 3;
/// Marks that programs write into the first byte of a packet.
const BY_ROUTE: u8 = 2;
const BY_DETOUR: u8 = 4;
/// The map of the profile.
const SKETCH: &str = "ms.sketch";
const ABORTED: u32 = 0;
const PASS: u32 = 2;
const TX: u32 = 3;
/// Senders, services and networks that have entries.
const SENDERS: u32 = 40;
const SERVICES: u16 = 20;
const NETWORKS: u8 = 30;

fn object() -> Option<Object> {
    if testing::require() { fixtures::read("chain", &[]) } else { None }
}

fn compiler(object: &Object) -> VariantCompiler {
    variant_compiler(object, Some("parse")).expect("prepared")
}

fn func(object: &Object, name: &str) -> FuncId {
    object.programs.iter().find(|p| p.name == name).expect(name).func
}

fn frame(sender: u32, service: u16, network: u8) -> Vec<u8> {
    let mut frame = vec![0; 64];
    frame[12] = 8;
    frame[22] = 64;
    frame[23] = 17;
    frame[26..30].copy_from_slice(&sender.to_be_bytes());
    frame[30..34].copy_from_slice(&[10, network, 1, 1]);
    frame[36..38].copy_from_slice(&service.to_be_bytes());
    frame
}

/// Verdict and packet.
fn answer(program: &KernelProgram, frame: &[u8]) -> (u32, Vec<u8>) {
    let out = program.test_run(&TestRun::packet(frame)).expect("a test run");
    (out.retval, out.data)
}

/// Verdict, and the mark of the program that wrote the packet.
fn way(program: &KernelProgram, frame: &[u8]) -> (u32, u8) {
    let (verdict, data) = answer(program, frame);
    (verdict, data[0])
}

/// The maps of a program, as far as they still exist.
fn maps_of(program: &KernelProgram) -> Vec<KernelMap> {
    program
        .info()
        .expect("what it is")
        .map_ids
        .into_iter()
        .filter_map(|id| KernelMap::from_id(id).ok())
        .collect()
}

/// The n-th sender's entry says in which slot its packets go on.
fn set_sender(map: &KernelMap, n: u32, slot: u32) {
    map.update(&n.to_be_bytes(), &slot.to_ne_bytes(), UpdateMode::Any).expect("a sender");
}

fn set_service(map: &KernelMap, n: u16, allowed: u32) {
    let key = [&n.to_be_bytes()[..], &17u16.to_ne_bytes()].concat();
    let value = [allowed, 0].map(u32::to_ne_bytes).concat();
    map.update(&key, &value, UpdateMode::Any).expect("a service");
}

fn set_route(map: &KernelMap, network: u8, hop: u32) {
    let key = [&16u32.to_ne_bytes()[..], &[10, network, 0, 0]].concat();
    map.update(&key, &hop.to_ne_bytes(), UpdateMode::Any).expect("a route");
}

/// Nine of ten senders are classified, one goes on to its route at once.
fn fill(map: impl Fn(&str) -> KernelMap) {
    for n in 0..SENDERS {
        set_sender(&map("senders"), n, if n % 10 == 3 { ROUTE } else { CLASSIFY });
    }
    (0..SERVICES).for_each(|n| set_service(&map("services"), n, u32::from(n % 7 != 0)));
    (0..NETWORKS).for_each(|n| set_route(&map("routes"), n, u32::from(n) + 1));
}

/// Flows, some to keys that no table has.
fn flows(count: u32) -> WeightedFlows {
    let config = router::generate(10, &[1], 4, 1);
    let mut flows = router::flows(&config, count as usize, FlowLocality::HIGH, 1);
    let mut rng = Rng::new(3);
    for packet in &mut flows.packets {
        let mut below = |n| rng.below(n) as u32;
        let (sender, service) = (below(u64::from(SENDERS) + 2), below(u64::from(SERVICES) + 2) as u16);
        *packet = frame(sender, service, below(u64::from(NETWORKS) + 2) as u8);
    }
    flows
}

/// A rig with traffic for the chain.
fn rigged() -> (TestRig, WeightedFlows) {
    let rig = TestRig::new(RigConfig::default()).expect("a rig");
    let flows = flows(500);
    rig.load_traffic(&TrafficSequence::new(&flows, &flows.sequence(1, 1 << 13))).expect("traffic");
    (rig, flows)
}

fn empty_plan(compiler: &VariantCompiler) -> SpecializationPlan {
    SpecializationPlan {
        guard: Some(compiler.guard(1, false)),
        sites: Vec::new(),
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

/// Other programs in the place tell its calls from those through the array.
#[test]
fn calls_go_through_the_place_only_while_the_guard_lets_them() {
    let Some(object) = object() else { return };
    let compiler = compiler(&object);
    let loaded = ObjectLoader::new(compiler.object()).load().expect("loaded");
    let (programs, mut session) = (loaded.programs, loaded.session);
    let original = |name| &programs.iter().find(|(f, _)| *f == func(&object, name)).expect(name).1;
    fill(|name| session.map_by_name(name).expect(name).try_clone().expect("a descriptor"));
    let [(_, place)] = compiler.arrays() else { panic!("one array: {:?}", compiler.arrays()) };
    let spec = MapSpec {
        name: "place",
        map_type: MapType::PROG_ARRAY,
        key_size: 4,
        value_size: 4,
        ..MapSpec::default()
    };
    let array = KernelMap::create(&MapSpec { max_entries: 4, ..spec }).expect("an array");
    session.replace_map(*place, array.try_clone().expect("a descriptor"));
    let callees = [func(&object, "classify")];
    let plan = empty_plan(&compiler);
    let wanted = VariantRequest {
        plan: &plan,
        contents: &UnknownContents,
        rooms: &FxHashMap::default(),
        callees: &callees,
        joins: &[],
    };
    let variant = compiler.specialised(&wanted).expect("made");
    assert_eq!(variant.callees.len(), 1);
    let classify = session.load(callees[0], &variant.callees[0].1).expect("accepted");
    let first = session.load(compiler.program(), &variant.linked).expect("accepted");
    let put = |slot: u32, program: &KernelProgram| {
        array.update_fd(&slot.to_ne_bytes(), program.as_fd()).expect("put")
    };
    let state = session.map(compiler.guard_map()).expect("the guard's state").mmap(true).expect("mapped");
    let set = |generation| {
        state.atomic_u64(TOKEN as usize).store(token(generation, 0), Ordering::SeqCst);
    };
    let packet = frame(1, 1, 1);
    assert_eq!(way(original("parse"), &packet), (TX, BY_ROUTE));
    // The place is empty: only the call through the array is left.
    set(1);
    assert_eq!(way(&first, &packet), (TX, BY_ROUTE));
    put(CLASSIFY, &classify);
    put(ROUTE, original("detour"));
    assert_eq!(way(&first, &packet), (TX, BY_DETOUR), "by the callee's variant, through the place");
    put(CLASSIFY, original("deny"));
    assert_eq!(way(&first, &packet).0, ABORTED);
    assert_eq!(way(&first, &frame(3, 1, 1)), (TX, BY_DETOUR), "a slot that a table names");
    set(2);
    assert_eq!(way(&first, &packet), (TX, BY_ROUTE), "the guard has moved");
    // The callee tests its own guard.
    put(CLASSIFY, &classify);
    assert_eq!(way(&classify, &packet), (TX, BY_ROUTE));
    set(1);
    assert_eq!(way(&classify, &packet), (TX, BY_DETOUR));
    // As if a session were killed: nobody holds the place any more.
    session.replace_map(*place, KernelMap::create(&MapSpec { max_entries: 4, ..spec }).expect("an array"));
    drop(array);
    // The kernel empties the place when the last descriptor is closed; a process started by another test has
    // a copy of it for a moment.
    let emptied = (0..500).any(|_| {
        std::thread::sleep(Duration::from_millis(10));
        way(&first, &packet) == (TX, BY_ROUTE)
    });
    assert!(emptied, "the kernel has emptied the place");
}

/// A session on the rig, with traffic; `beside` runs beside it.
fn session<R: Send>(
    name: &str,
    set: impl FnOnce(&mut SessionSettings) + Send,
    beside: impl FnOnce(&Beside<'_>) -> R + Send,
    after: impl FnOnce(&mut LiveSession<'_>) + Send,
) -> Option<R> {
    let object = object()?;
    let _alone = alone();
    let (rig, flows) = rigged();
    let compiler = compiler(&object);
    let (told, stop) = (Mutex::new(Vec::<SessionReport>::new()), AtomicBool::new(false));
    let run = || {
        let mut wanted = settings(name, Duration::from_millis(200));
        set(&mut wanted);
        let mut live = LiveSession::load(&compiler, wanted).expect("loaded");
        let map = |live: &LiveSession<'_>, name: &str| {
            live.map(name).expect(name).try_clone().expect("a descriptor")
        };
        fill(|name| map(&live, name));
        let maps = ["stages", "senders", "services", "routes"].map(|name| (name, map(&live, name)));
        let loaded =
            compiler.object().programs.iter().filter_map(|p| Some((p.name.clone(), live.program(&p.name)?)));
        let programs = loaded.collect();
        live.attach(&[rig.test_port()]).expect("attached");
        let it = Beside { rig: &rig, maps: maps.into(), programs, told: &told };
        let result = std::thread::scope(|scope| {
            scope.spawn(|| rig.generator_loop(&stop, Some(100_000.0)));
            let script = scope.spawn(|| {
                let _end = End(&stop);
                beside(&it)
            });
            // Also after a panic, so that the test ends.
            let _end = End(&stop);
            live.run(&stop, &mut |r| told.lock().expect("no panic").push(r.clone())).expect("runs");
            script.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        });
        for frame in &flows.packets {
            assert_eq!(answer(live.current(), frame), answer(live.original(), frame), "{frame:02x?}");
        }
        after(&mut live);
        let told = told.lock().expect("no panic");
        let differs =
            |r: &SessionReport| matches!(r, SessionReport::Judged { outcome: VariantVerdict::Different, .. });
        assert!(!told.iter().any(differs), "{told:?}");
        live.finish(DetachPolicy::Restored).expect("finished");
        result
    };
    let result = rig.namespace().enter(run).expect("in the namespace");
    assert_eq!(rig.counts().expect("counts").lost(), 0, "packets were lost");
    Some(result)
}

struct Beside<'t> {
    rig: &'t TestRig,
    maps: BTreeMap<&'static str, KernelMap>,
    programs: BTreeMap<String, KernelProgram>,
    told: &'t Mutex<Vec<SessionReport>>,
}

impl Beside<'_> {
    fn until(&self, what: &str, wanted: impl Fn(&SessionReport) -> bool) {
        let start = Instant::now();
        while !self.told.lock().expect("no panic").iter().any(&wanted) {
            assert!(start.elapsed() < Duration::from_secs(60), "not told of {what}: {:?}", self.told);
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    fn made(&self) -> usize {
        self.told.lock().expect("no panic").iter().filter(|r| generation(r).is_some()).count()
    }

    /// The program on the hook. It may leave the hook, and be gone, before there is a descriptor.
    fn on_hook(&self) -> KernelProgram {
        let port = self.rig.test_port();
        loop {
            let held = self.rig.namespace().enter(|| query_xdp(port)).expect("the namespace");
            let id = held.expect("an answer").expect("a program is there").program_id;
            if let Ok(program) = KernelProgram::from_id(id) {
                return program;
            }
        }
    }

    /// Result of the program on the hook for a packet.
    fn ask(&self, frame: &[u8]) -> (u32, u8) {
        way(&self.on_hook(), frame)
    }

    /// Number of times that constant slots were joined.
    fn joined(&self) -> usize {
        let told = self.told.lock().expect("no panic");
        told.iter()
            .filter(|r| matches!(r, SessionReport::Specialised { reason: CompileReason::Quiet, .. }))
            .count()
    }

    fn until_joined(&self, times: usize) {
        let start = Instant::now();
        while self.joined() < times {
            assert!(start.elapsed() < Duration::from_secs(60), "not joined: {:?}", self.told);
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    fn put(&self, slot: u32, program: &str) {
        self.maps["stages"]
            .update_fd(&slot.to_ne_bytes(), self.programs[program].as_fd())
            .expect("a program");
    }

    fn clear(&self, slot: u32) {
        self.maps["stages"].delete(&slot.to_ne_bytes()).expect("a slot");
    }
}

#[test]
fn each_program_of_a_chain_has_its_variant() {
    session(
        "chain",
        |_| (),
        |it| it.until("a generation", |r| generation(r).is_some()),
        |live| {
            let details = live.details().expect("details");
            let runs =
                |slot| details.chain.iter().find(|s| s.slot == slot).map(|s| (s.program.as_str(), s.runs));
            assert_eq!(runs(CLASSIFY), Some(("classify", SlotTarget::Variant)), "{details:?}");
            assert_eq!(runs(ROUTE), Some(("route", SlotTarget::Variant)));
            assert_eq!(
                runs(DENY),
                Some(("deny", SlotTarget::Original)),
                "there is nothing to be specialised"
            );
            assert_eq!(runs(FREE), None);
            let SessionReport::Status { chain, .. } = live.status() else {
                panic!("it says how things stand")
            };
            assert_eq!(chain, details.chain);
            let of = |program: &str| details.lookups.iter().find(|l| l.program == program).expect("a lookup");
            assert!(of("parse").seen > 0 && of("classify").seen > 0, "callees are profiled: {details:?}");
            assert!(of("classify").answered > 0.5 && of("route").answered > 0.5, "{details:?}");
        },
    );
}

/// Changes of slots and of the tables of callees take effect as soon as the call that made them has returned.
#[test]
fn no_packet_takes_the_way_of_before() {
    session(
        "chained",
        |_| (),
        |it| {
            it.until("a generation", |r| generation(r).is_some());
            let packet = frame(1, 1, 1);
            for n in 0..200u32 {
                let apart = Duration::from_millis(u64::from(n * 7 % 11));
                it.put(ROUTE, "detour");
                assert_eq!(it.ask(&packet), (TX, BY_DETOUR), "stale: {n}");
                std::thread::sleep(apart);
                assert_eq!(it.ask(&packet), (TX, BY_DETOUR), "{n}");
                set_service(&it.maps["services"], 1, 0);
                assert_eq!(it.ask(&packet).0, 1, "a callee's table, stale: {n}");
                set_service(&it.maps["services"], 1, 1);
                it.clear(ROUTE);
                assert_eq!(it.ask(&packet).0, PASS, "stale: {n}");
                std::thread::sleep(apart);
                assert_eq!(it.ask(&packet).0, PASS, "{n}");
                it.put(ROUTE, "route");
                assert_eq!(it.ask(&packet), (TX, BY_ROUTE), "stale: {n}");
                set_sender(&it.maps["senders"], 1, DENY);
                assert_eq!(it.ask(&packet).0, ABORTED, "stale: {n}");
                set_sender(&it.maps["senders"], 1, CLASSIFY);
                set_route(&it.maps["routes"], 1, 1 + n % 5);
                assert_eq!(it.ask(&packet), (TX, BY_ROUTE), "stale: {n}");
            }
            assert!(it.made() > 1, "{:?}", it.told);
        },
        |_| (),
    );
}

/// Slots are written faster than a session can follow.
#[test]
fn a_flood_of_writes_to_slots_is_never_stale() {
    session(
        "flooded",
        |_| (),
        |it| {
            it.until("a generation", |r| generation(r).is_some());
            let packet = frame(1, 1, 1);
            for n in 0..2000 {
                let (program, mark) = [("detour", BY_DETOUR), ("route", BY_ROUTE)][n % 2];
                it.put(ROUTE, program);
                assert_eq!(it.ask(&packet), (TX, mark), "stale: {n}");
            }
            std::thread::sleep(Duration::from_millis(500));
            assert_eq!(it.ask(&packet), (TX, BY_ROUTE));
        },
        |_| (),
    );
}

/// They are also written while everything is made for the first time: the profiling variant, its callees, and
/// the variant after it.
#[test]
fn a_flood_from_the_start_is_never_stale() {
    for n in 0..4 {
        session(
            &format!("flooded-{n}"),
            |_| (),
            |it| {
                let packet = frame(1, 1, 1);
                let mut turn = 0;
                while it.made() == 0 && turn < 20_000 {
                    let (program, mark) = [("detour", BY_DETOUR), ("route", BY_ROUTE)][turn % 2];
                    it.put(ROUTE, program);
                    if turn % 32 == n {
                        // For as long as values read before the write could be taken for the current ones.
                        std::thread::sleep(Duration::from_millis(2));
                    }
                    assert_eq!(it.ask(&packet), (TX, mark), "stale: {turn}");
                    turn += 1;
                }
            },
            |_| (),
        );
    }
}

/// They are written at each step of making the first variant, and after the look that lets the profiling one
/// make its calls.
#[test]
fn slots_that_are_written_while_something_is_made_are_never_stale() {
    repeated(|| {
        let gate = Gate::at(SessionStep::Begun(Tier::Quick));
        session(
            "slots",
            |settings| settings.steps = gate.steps(),
            |it| {
                let _opened = Opened(&gate);
                let packet = frame(1, 1, 1);
                gate.wait();
                let steps = [
                    SessionStep::Coded(Tier::Quick),
                    SessionStep::Loaded(Tier::Quick),
                    SessionStep::Made(Tier::Quick),
                    SessionStep::Slots,
                    SessionStep::CaughtUp,
                    SessionStep::Approved,
                    SessionStep::Swapping,
                    SessionStep::Called,
                    SessionStep::Called,
                ];
                for (n, step) in steps.into_iter().enumerate() {
                    let (program, mark) = [("detour", BY_DETOUR), ("route", BY_ROUTE)][n % 2];
                    it.put(ROUTE, program);
                    assert_eq!(it.ask(&packet), (TX, mark), "stale before {step:?}");
                    gate.on_to(step);
                    assert_eq!(it.ask(&packet), (TX, mark), "stale at {step:?}");
                }
                it.put(ROUTE, "route");
                gate.open();
                for _ in 0..1_000 {
                    assert_eq!(it.ask(&packet), (TX, BY_ROUTE), "stale");
                }
            },
            |_| (),
        );
    });
}

/// The profiling variant calls the programs in the array, also when the array changes while the variant is on
/// the hook. It calls recording variants as long as nothing has changed.
#[test]
fn the_profiling_variant_calls_what_the_array_holds() {
    let Some(object) = object() else { return };
    let compiler = compiler(&object);
    let sites: Vec<&LookupSite> = compiler.sites().iter().collect();
    session(
        "profiled",
        |_| (),
        |it| it.until("a generation", |r| generation(r).is_some()),
        |live| {
            let packet = frame(1, 1, 1);
            let instrumented = live.instrumented().expect("there was a look at the traffic");
            let recorded = |mark| {
                let sketch = live.map(SKETCH).expect("the profile");
                let total = || {
                    let read = profile::read(sketch, &sites, compiler.slots()).expect("it is read");
                    read.iter().map(|site| site.total).sum::<u64>()
                };
                let before = total();
                assert_eq!(way(instrumented, &packet), (TX, mark));
                total() - before
            };
            // As if the array had just been found to hold the programs that it calls.
            live.guard().chain(live.guard().version());
            let by_all = recorded(BY_ROUTE);
            let stages = live.map("stages").expect("the array");
            let put = |program: &str| {
                let program = live.program(program).expect("it is loaded");
                stages.update_fd(&ROUTE.to_ne_bytes(), program.as_fd()).expect("another program");
            };
            put("detour");
            let by_the_first = recorded(BY_DETOUR);
            assert!(0 < by_the_first && by_the_first < by_all, "{by_the_first} {by_all}");
            put("route");
            assert_eq!(recorded(BY_ROUTE), by_the_first, "nobody has looked since");
        },
    );
}

/// A packet that was delayed in any program that was on the hook, while others replaced that program,
/// continues as the array says now. The test holds all maps meanwhile, so that the kernel does not empty
/// arrays by itself when the session closes them.
#[test]
fn a_packet_that_was_held_up_calls_what_the_array_holds_now() {
    let packet = frame(1, 1, 1);
    let all = Mutex::new(BTreeMap::<u32, (KernelProgram, Vec<KernelMap>)>::new());
    session(
        "held-up",
        |_| (),
        |it| {
            let gather = |until: &dyn Fn() -> bool| {
                let start = Instant::now();
                while !until() {
                    assert!(start.elapsed() < Duration::from_secs(60), "{:?}", it.told);
                    let program = it.on_hook();
                    let id = program.id().expect("an id");
                    all.lock().expect("no panic").entry(id).or_insert_with(|| {
                        let maps = maps_of(&program);
                        (program, maps)
                    });
                }
            };
            let others = |mark| {
                for (id, (program, _)) in &*all.lock().expect("no panic") {
                    assert_eq!(way(program, &packet), (TX, mark), "stale: {id}");
                }
            };
            gather(&|| it.made() > 0);
            for (program, mark) in [("detour", BY_DETOUR), ("route", BY_ROUTE), ("detour", BY_DETOUR)] {
                let made = it.made();
                it.put(ROUTE, program);
                others(mark);
                gather(&|| it.made() > made + 1);
                others(mark);
            }
        },
        |live| {
            let all = all.lock().expect("no panic");
            let records = |maps: &[KernelMap]| maps.iter().any(|map| map.info().name == SKETCH);
            let profiling = all.values().filter(|(_, maps)| records(maps)).count();
            assert!(profiling > 1, "one was replaced by another: {profiling} of {}", all.len());
            // As if the arrays of the last one had just been found to be what the user's are.
            live.guard().chain(live.guard().version());
            for (id, (program, _)) in &*all {
                assert_eq!(way(program, &packet), (TX, BY_DETOUR), "stale: {id}");
            }
        },
    );
}

/// A packet may take 33 tail calls. Calls that fail do not count.
#[test]
fn a_chain_ends_where_it_did() {
    session(
        "around",
        |_| (),
        |it| {
            let packet = frame(7, 1, 1);
            set_sender(&it.maps["senders"], 7, FREE);
            it.put(FREE, "around");
            let made = it.made();
            let start = Instant::now();
            while it.made() < made + 1 {
                assert!(start.elapsed() < Duration::from_secs(60), "{:?}", it.told);
                std::thread::sleep(Duration::from_millis(5));
            }
            std::thread::sleep(Duration::from_millis(300));
            let rounds = answer(&it.on_hook(), &packet).1[1];
            assert_eq!(rounds, answer(&it.programs["parse"], &packet).1[1]);
            assert_eq!(rounds, 33);
        },
        |live| {
            let details = live.details().expect("details");
            let around = details.chain.iter().find(|s| s.slot == FREE).expect("it is there");
            assert_eq!((around.program.as_str(), around.runs), ("around", SlotTarget::Variant));
        },
    );
}

/// Once the slots have been left alone for a while, the program in a constant slot is inlined where it is
/// called, until somebody writes the slot.
#[test]
fn constant_slots_are_joined_until_they_are_written() {
    session(
        "joined",
        |_| (),
        |it| {
            let packet = frame(1, 1, 1);
            it.until_joined(1);
            for (program, mark) in
                [("detour", BY_DETOUR), ("route", BY_ROUTE), ("detour", BY_DETOUR), ("route", BY_ROUTE)]
            {
                let before = it.joined();
                it.put(ROUTE, program);
                assert_eq!(it.ask(&packet), (TX, mark), "stale");
                it.until_joined(before + 1);
                assert_eq!(it.ask(&packet), (TX, mark));
                assert_eq!(it.ask(&frame(3, 1, 2)), (TX, mark));
            }
            // An empty slot is no longer joined, and falls through as it did.
            it.clear(ROUTE);
            assert_eq!(it.ask(&packet), (PASS, 2), "stale");
            std::thread::sleep(Duration::from_millis(50));
            assert_eq!(it.ask(&packet), (PASS, 2));
            let before = it.joined();
            it.put(ROUTE, "route");
            assert_eq!(it.ask(&packet), (TX, BY_ROUTE), "stale");
            it.until_joined(before + 1);
        },
        |live| {
            let details = live.details().expect("details");
            let runs = |slot| details.chain.iter().find(|s| s.slot == slot).map(|s| s.runs);
            assert_eq!(
                (runs(CLASSIFY), runs(ROUTE)),
                (Some(SlotTarget::Joined), Some(SlotTarget::Joined)),
                "{details:?}"
            );
        },
    );
}

/// The judge replays packets through all programs of a chain, on copies of the maps of all of them.
#[test]
fn chains_are_judged_as_a_whole() {
    session(
        "judged",
        |settings| settings.measure = true,
        |it| it.until("a judgement", |r| matches!(r, SessionReport::Judged { packets: 500.., .. })),
        |_| (),
    )
    .into_iter()
    .for_each(drop);
}

fn runs(live: &LiveSession<'_>, slot: u32) -> Option<(String, SlotTarget)> {
    let details = live.details().expect("details");
    details.chain.into_iter().find(|s| s.slot == slot).map(|s| (s.program, s.runs))
}

/// On a rig, with an array that somebody has changed, a session takes over from another.
#[test]
fn a_session_finds_what_slots_hold() {
    let Some(object) = object() else { return };
    let _alone = alone();
    let (rig, _) = rigged();
    let compiler = compiler(&object);
    let act = || {
        let wanted = settings("found", Duration::from_millis(200));
        let mut live = LiveSession::load(&compiler, wanted.clone()).expect("loaded");
        fill(|name| live.map(name).expect(name).try_clone().expect("a descriptor"));
        live.attach(&[rig.test_port()]).expect("attached");
        let detour = live.program("detour").expect("it is loaded");
        live.map("stages").expect("the array").update_fd(&ROUTE.to_ne_bytes(), detour.as_fd()).expect("put");
        drop(detour);
        live.finish(DetachPolicy::Original).expect("finished");
        let mut live = LiveSession::load(&compiler, wanted).expect("loaded");
        live.attach(&[rig.test_port()]).expect("attached");
        assert_eq!(way(live.current(), &frame(1, 1, 1)), (TX, BY_DETOUR), "it was there");
        keep_fast(&rig, &mut live, |r| generation(r).is_some());
        assert_eq!(way(live.current(), &frame(1, 1, 1)), (TX, BY_DETOUR));
        let (program, runs) = runs(&live, ROUTE).expect("it is there");
        assert_eq!((program.as_str(), runs), ("detour", SlotTarget::Variant));
        live.finish(DetachPolicy::Restored).expect("finished");
    };
    rig.namespace().enter(act).expect("in the namespace");
}

/// A chain loaded by another process, with maps of which some belong to the callees alone.
#[test]
fn chains_of_others_are_adopted_with_their_maps() {
    let Some(object) = object() else { return };
    let _alone = alone();
    let (rig, flows) = rigged();
    let compiler = compiler(&object);
    let act = || {
        let theirs = ObjectLoader::new(&object).load().expect("loaded");
        let map =
            |name: &str| theirs.session.map_by_name(name).expect(name).try_clone().expect("a descriptor");
        fill(map);
        map("stages")
            .update_fd(&ROUTE.to_ne_bytes(), theirs.program("detour").expect("detour").as_fd())
            .expect("put");
        let port = rig.test_port();
        let link =
            Link::attach_xdp(theirs.program("parse").expect("parse"), port, XdpMode::Any).expect("attached");
        let mut wanted = settings("adopted", Duration::from_millis(200));
        wanted.adopt = vec![port];
        let mut live = LiveSession::load(&compiler, wanted).expect("loaded");
        live.attach(&[port]).expect("attached");
        keep_fast(&rig, &mut live, |r| generation(r).is_some());
        for frame in &flows.packets {
            assert_eq!(answer(live.current(), frame), answer(theirs.program("parse").expect("parse"), frame));
        }
        let names = [CLASSIFY, ROUTE].map(|slot| runs(&live, slot).expect("it is there"));
        assert_eq!(
            names,
            [("classify".to_owned(), SlotTarget::Variant), ("detour".to_owned(), SlotTarget::Variant)]
        );
        // Their control plane goes on.
        set_service(&map("services"), 1, 0);
        assert_eq!(way(live.current(), &frame(1, 1, 1)).0, 1);
        map("stages")
            .update_fd(&CLASSIFY.to_ne_bytes(), theirs.program("deny").expect("deny").as_fd())
            .expect("put");
        assert_eq!(way(live.current(), &frame(1, 1, 1)).0, ABORTED);
        live.finish(DetachPolicy::Restored).expect("finished");
        let back = query_xdp(port).expect("an answer").expect("a program is there").program_id;
        assert_eq!(back, theirs.program("parse").expect("parse").id().expect("an id"));
        drop(link);
    };
    rig.namespace().enter(act).expect("in the namespace");
}

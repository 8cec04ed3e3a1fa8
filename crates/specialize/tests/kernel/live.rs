//! A router on the laboratory's rig, specialised while packets flow.

use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use millstream_kernel::{Map, UpdateMode, testing};
use millstream_lab::{Rig, RigConfig, Traffic};
use millstream_object::Object;
use millstream_programs::ROUTER;
use millstream_programs::router::{self, Config};
use millstream_programs::traffic::Locality;
use millstream_specialize::pins::remove_abandoned;
use millstream_specialize::report::GuardState;
use millstream_specialize::{Compiler, Leave, Live, Report, Settings};

/// What a test does beside a router that is being specialised.
struct Beside<'t> {
    rig: &'t Rig,
    config: &'t Config,
    routes: Map,
    told: &'t Mutex<Vec<Report>>,
}

impl Beside<'_> {
    /// Waits until something was told; the reports until then.
    fn until(&self, what: &str, wanted: impl Fn(&Report) -> bool) -> Vec<Report> {
        let start = Instant::now();
        loop {
            let told = self.told.lock().expect("no panic").clone();
            if told.iter().any(&wanted) {
                return told;
            }
            assert!(start.elapsed() < Duration::from_secs(60), "not told of {what}: {told:?}");
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    fn set_route(&self, route: usize, next_hop: u32) {
        let key = router::route_key(self.config.routes[route].prefix);
        self.routes.update(&key, &next_hop.to_ne_bytes(), UpdateMode::Any).expect("a route");
    }
}

/// Runs a router with traffic of high locality; gives what was told.
fn routed(name: &str, routes: usize, beside: impl FnOnce(&Beside<'_>) + Send) -> Vec<Report> {
    let rig = Rig::new(RigConfig::default()).expect("a rig");
    let port = rig.test_port();
    let config = router::generate(routes, &[port], 16, 1);
    let flows = router::flows(&config, 1_000, Locality::HIGH, 1);
    let sequence = flows.sequence(1, 1 << 14);
    rig.load_traffic(&Traffic::new(&flows, &sequence)).expect("traffic");
    let object = Object::parse(ROUTER.name, ROUTER.object).expect("our own object");
    let compiler = Compiler::new(&object, None).expect("prepared");
    let pins = Path::new("/sys/fs/bpf/millstream");
    remove_abandoned(pins, &format!("test_{name}_"));
    let mut settings = Settings::new(pins.join(format!("test_{name}_{}", std::process::id())));
    settings.interval = Duration::from_millis(200);
    // The kernel's clock around programs is one switch for the whole machine; other tests use it too.
    settings.measure = false;
    let (stop, told) = (AtomicBool::new(false), Mutex::new(Vec::new()));
    std::thread::scope(|scope| {
        let session = scope.spawn(|| {
            rig.namespace().enter(|| {
                let mut live = Live::load(&compiler, settings).expect("loaded");
                for entry in config.entries().expect("entries") {
                    let map = live.map(entry.map).expect(entry.map);
                    map.update(&entry.key, &entry.value, UpdateMode::Any).expect(entry.map);
                }
                let routes = live.map(router::ROUTES).expect("routes").try_clone().expect("a descriptor");
                live.attach(port).expect("attached");
                std::thread::scope(|scope| {
                    let done = &stop;
                    let (rig, config, told) = (&rig, &config, &told);
                    scope.spawn(move || rig.generator_loop(done, None));
                    scope.spawn(move || {
                        // Also after a panic, so that the test ends.
                        let _end = End(done);
                        beside(&Beside { rig, config, routes, told });
                    });
                    live.run(done, &mut |r| told.lock().expect("no panic").push(r.clone())).expect("runs");
                });
                live.finish(Leave::Restored).expect("finished")
            })
        });
        let last = session.join().expect("no panic").expect("in the namespace");
        assert!(matches!(last, Report::Stopped { .. }));
    });
    assert_eq!(rig.counts().expect("counts").lost(), 0, "packets were lost");
    told.into_inner().expect("no panic")
}

struct End<'s>(&'s AtomicBool);

impl Drop for End<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::SeqCst);
    }
}

fn generation(report: &Report) -> Option<u32> {
    match report {
        Report::Specialised { generation, .. } => Some(*generation),
        _ => None,
    }
}

#[test]
fn a_router_is_specialised_and_follows_its_table() {
    if !testing::require() {
        return;
    }
    let told = routed("follows", 200, |beside| {
        beside.until("a generation", |r| generation(r).is_some());
        beside.until("a valid guard", |r| matches!(r, Report::Status { guard: GuardState::Valid, .. }));
        // Every route takes another next hop: some of them are in code.
        for route in 0..beside.config.routes.len() {
            beside.set_route(route, (beside.config.routes[route].next_hop + 1) % 16);
        }
        beside.until("an answer to the writes", |r| {
            matches!(r, Report::Specialised { write_ns: Some(_), .. } | Report::Confirmed { .. })
        });
        assert!(beside.rig.counts().expect("counts").received > 0);
    });
    let generations: Vec<u32> = told.iter().filter_map(generation).collect();
    assert!(generations.is_sorted_by(|a, b| a < b), "{generations:?}");
}

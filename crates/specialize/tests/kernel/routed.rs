//! A router on the laboratory's rig, specialised while packets flow, and the actions of a test beside it.

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use millstream_kernel::{ArrayMapping, KernelMap, KernelProgram, TestRun, UpdateMode, query_xdp};
use millstream_lab::{FrameCounts, RigConfig, TestRig, TrafficSequence};
use millstream_object::Object;
use millstream_programs::router::{self, Route, RouterConfig};
use millstream_programs::traffic::{FlowLocality, WeightedFlows};
use millstream_programs::{Ipv4Prefix, ROUTER};
use millstream_specialize::live::step::StepCallback;
use millstream_specialize::pins::remove_abandoned;
use millstream_specialize::report::GuardState;
use millstream_specialize::{
    DetachPolicy, LiveSession, ProfileSettings, SessionReport, SessionSettings, variant_compiler,
};
use millstream_specializer::guard_state::{DeoptMask, LOOK, REVOKED, TOKEN};

/// Returns true if specialised code may run by this token, with no map behind.
pub(crate) const fn is_fresh(token: u64) -> bool {
    token & (REVOKED | DeoptMask::ALL.behind()) == 0
}

/// Next hops of the router.
pub(crate) const HOPS: u32 = 16;

/// Settings of such a router.
pub(crate) struct Wanted {
    /// Name of the pins.
    pub(crate) name: &'static str,
    pub(crate) routes: usize,
    /// These instead of generated ones, if there are any.
    pub(crate) prefixes: Vec<Ipv4Prefix>,
    pub(crate) flows: usize,
    /// From one look at the traffic to the next.
    pub(crate) interval: Duration,
    /// Number of times that the interval is doubled while nothing changes.
    pub(crate) calm: u32,
    /// Frames carry the time.
    pub(crate) stamps: bool,
    /// Frames a second; `None`: as many as possible.
    pub(crate) rate: Option<f64>,
    /// Percentage of frames that the router forwards; the others are not IPv4.
    pub(crate) forwarded: usize,
    /// True if longest-prefix maps get twins.
    pub(crate) twins: bool,
    /// True if variants that are not faster are taken back.
    pub(crate) measure: bool,
    /// Profiles that it begins with, and keeps.
    pub(crate) profile: ProfileSettings,
    /// Steps at which the session is held.
    pub(crate) steps: StepCallback,
}

impl Wanted {
    /// All frames are forwarded, at full rate; variants stay.
    pub(crate) fn new(name: &'static str, routes: usize) -> Self {
        Wanted {
            name,
            routes,
            prefixes: Vec::new(),
            flows: 1_000,
            interval: Duration::from_millis(200),
            calm: 0,
            stamps: false,
            rate: None,
            forwarded: 100,
            twins: true,
            // Other tests would be disturbed by the kernel's clock around programs.
            measure: false,
            profile: ProfileSettings::default(),
            steps: StepCallback::default(),
        }
    }

    fn config(&self, port: u32) -> RouterConfig {
        let mut config = router::generate(self.routes, &[port], HOPS as u8, 1);
        if !self.prefixes.is_empty() {
            let route = |(prefix, n): (&Ipv4Prefix, u32)| Route { prefix: *prefix, next_hop: n % HOPS };
            config.routes = self.prefixes.iter().zip(0..).map(route).collect();
        }
        config
    }

    /// Flows of high locality, and their order.
    fn traffic(&self, config: &RouterConfig) -> (WeightedFlows, Vec<u32>) {
        let mut flows = router::flows(config, self.flows, FlowLocality::HIGH, 1);
        let mut sequence = flows.sequence(1, 1 << 14);
        let mut other = flows.packets[0].clone();
        other[12..14].copy_from_slice(&[0x88, 0xcc]);
        flows.packets.push(other);
        flows.weights.push(0);
        for (n, frame) in sequence.iter_mut().enumerate() {
            if n % 100 >= self.forwarded {
                *frame = flows.packets.len() as u32 - 1;
            }
        }
        (flows, sequence)
    }

    fn settings(&self) -> SessionSettings {
        let mut settings = settings(self.name, self.interval);
        settings.pace.calm = self.calm;
        settings.twins = self.twins;
        settings.measure = self.measure;
        settings.profile = self.profile.clone();
        settings.steps = self.steps.clone();
        settings
    }
}

/// Settings of a session of this name that looks at its traffic at this interval, and keeps its variants:
/// other tests would be disturbed by the kernel's clock around programs.
pub(crate) fn settings(name: &str, interval: Duration) -> SessionSettings {
    let (pins, prefix) = (Path::new("/sys/fs/bpf/millstream"), format!("test_{name}_"));
    remove_abandoned(pins, &prefix);
    let mut settings = SessionSettings::new(pins.join(format!("{prefix}{}", std::process::id())));
    settings.pace.interval = interval;
    settings.pace.calm = 0;
    settings.pace.status = Duration::from_millis(200);
    settings.measure = false;
    settings.count = true;
    settings
}

/// Context of a test beside a router that is being specialised.
pub(crate) struct Beside<'t> {
    pub(crate) rig: &'t TestRig,
    pub(crate) config: &'t RouterConfig,
    pub(crate) flows: &'t WeightedFlows,
    pub(crate) routes: KernelMap,
    pub(crate) next_hops: KernelMap,
    token: ArrayMapping,
    told: &'t Mutex<Vec<SessionReport>>,
}

impl Beside<'_> {
    /// Waits for a report.
    pub(crate) fn until(&self, what: &str, wanted: impl Fn(&SessionReport) -> bool) {
        let start = Instant::now();
        while !self.told.lock().expect("no panic").iter().any(&wanted) {
            assert!(start.elapsed() < Duration::from_secs(120), "not told of {what}: {:?}", self.told);
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Waits until every observed write is answered.
    pub(crate) fn settled(&self) {
        let start = Instant::now();
        std::thread::sleep(Duration::from_millis(100));
        let before = self.told().len();
        let valid = |r: &SessionReport| matches!(r, SessionReport::Status { guard: GuardState::Valid, .. });
        while !self.told()[before..].iter().any(valid) {
            assert!(start.elapsed() < Duration::from_secs(60), "no valid guard again: {:?}", self.told);
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// The reports so far.
    pub(crate) fn told(&self) -> Vec<SessionReport> {
        self.told.lock().expect("no panic").clone()
    }

    /// The program on the interface now.
    pub(crate) fn on_hook(&self) -> KernelProgram {
        let port = self.rig.test_port();
        let held = self.rig.namespace().enter(|| query_xdp(port)).expect("the namespace");
        let held = held.expect("an answer").expect("a program is there");
        KernelProgram::from_id(held.program_id).expect("a descriptor")
    }

    pub(crate) fn set_route(&self, route: usize, next_hop: u32) {
        let key = router::route_key(self.config.routes[route].prefix);
        self.routes.update(&key, &next_hop.to_ne_bytes(), UpdateMode::Any).expect("a route");
    }

    pub(crate) fn remove_route(&self, route: usize) {
        let key = router::route_key(self.config.routes[route].prefix);
        self.routes.delete(&key).expect("a route");
    }

    /// Waits until specialised code may run, up to this time.
    pub(crate) fn until_approved(&self, most: Duration) {
        let start = Instant::now();
        while !self.approved() && start.elapsed() < most {
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// Returns true if a look has begun, and nothing was written since.
    pub(crate) fn is_looked_at(&self) -> bool {
        self.token.atomic_u64(TOKEN as usize).load(Ordering::SeqCst) & LOOK == LOOK
    }

    /// Returns true if specialised code may run now, with no twin behind.
    pub(crate) fn approved(&self) -> bool {
        is_fresh(self.token.atomic_u64(TOKEN as usize).load(Ordering::Relaxed))
    }
}

/// Result of a run.
pub(crate) struct Ran<R> {
    pub(crate) told: Vec<SessionReport>,
    pub(crate) counts: FrameCounts,
    pub(crate) result: R,
}

/// A router on a rig.
pub(crate) struct Routed<'r> {
    pub(crate) rig: &'r TestRig,
    pub(crate) config: &'r RouterConfig,
    pub(crate) flows: &'r WeightedFlows,
    pub(crate) rate: Option<f64>,
}

impl Routed<'_> {
    /// Sends, and keeps the router fast, until `stop`.
    pub(crate) fn run(
        &self,
        live: &mut LiveSession<'_>,
        stop: &AtomicBool,
        mut tell: impl FnMut(&SessionReport),
    ) {
        std::thread::scope(|scope| {
            scope.spawn(|| self.rig.generator_loop(stop, self.rate));
            // Also after a panic, so that the test ends.
            let _end = End(stop);
            live.run(stop, &mut tell).expect("runs");
        });
    }
}

/// Rigs send on the same CPU: two at once would be measured with each other's work.
pub(crate) fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Sends for a while, or until a report satisfies `wanted`.
pub(crate) fn keep_fast(rig: &TestRig, live: &mut LiveSession<'_>, wanted: impl Fn(&SessionReport) -> bool) {
    let (start, stop) = (Instant::now(), AtomicBool::new(false));
    std::thread::scope(|scope| {
        scope.spawn(|| rig.generator_loop(&stop, Some(100_000.0)));
        let _end = End(&stop);
        let tell = &mut |r: &SessionReport| {
            if wanted(r) || start.elapsed() > Duration::from_secs(60) {
                stop.store(true, Ordering::SeqCst);
            }
        };
        live.run(&stop, tell).expect("runs");
    });
    assert!(start.elapsed() < Duration::from_secs(60), "nothing came of it");
}

/// Puts a router with its tables onto a rig with its traffic, in the rig's namespace, for as long as `act`
/// takes. At the end, the program at work answers as the original does.
pub(crate) fn attached<P: Sync, R: Send>(
    wanted: &Wanted,
    ready: impl FnOnce(&TestRig) -> P,
    act: impl FnOnce(&Routed<'_>, &mut LiveSession<'_>, &P) -> R + Send,
) -> (R, FrameCounts) {
    let _alone = alone();
    let rig = TestRig::new(RigConfig { stamps: wanted.stamps, ..RigConfig::default() }).expect("a rig");
    let prepared = ready(&rig);
    let port = rig.test_port();
    let config = wanted.config(port);
    let (flows, sequence) = wanted.traffic(&config);
    rig.load_traffic(&TrafficSequence::new(&flows, &sequence)).expect("traffic");
    let object = Object::parse(ROUTER.name, ROUTER.object).expect("our own object");
    let compiler = variant_compiler(&object, None).expect("prepared");
    let result = rig
        .namespace()
        .enter(|| {
            let mut live = LiveSession::load(&compiler, wanted.settings()).expect("loaded");
            for entry in config.entries().expect("entries") {
                let map = live.map(entry.map).expect(entry.map);
                map.update(&entry.key, &entry.value, UpdateMode::Any).expect(entry.map);
            }
            live.attach(&[port]).expect("attached");
            let it = Routed { rig: &rig, config: &config, flows: &flows, rate: wanted.rate };
            let result = act(&it, &mut live, &prepared);
            same_answers(&live, &flows);
            let last = live.finish(DetachPolicy::Restored).expect("finished");
            assert!(matches!(last, SessionReport::Stopped { .. }));
            result
        })
        .expect("in the namespace");
    (result, rig.counts().expect("counts"))
}

/// Runs such a router with `beside` beside it; it ends when that ends. `ready` prepares the rig.
pub(crate) fn routed<P: Sync, R: Send>(
    wanted: &Wanted,
    ready: impl FnOnce(&TestRig) -> P,
    beside: impl FnOnce(&Beside<'_>, &P) -> R + Send,
) -> Ran<R> {
    let told = Mutex::new(Vec::new());
    let (result, counts) = attached(wanted, ready, |it, live, prepared| {
        let map = |name| live.map(name).expect(name).try_clone().expect("a descriptor");
        let beside_it = Beside {
            rig: it.rig,
            config: it.config,
            flows: it.flows,
            routes: map(router::ROUTES),
            next_hops: map(router::NEXT_HOPS),
            token: live.guard().state().mmap(true).expect("the guard's state"),
            told: &told,
        };
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let script = scope.spawn(|| {
                let _end = End(&stop);
                beside(&beside_it, prepared)
            });
            it.run(live, &stop, |r| told.lock().expect("no panic").push(r.clone()));
            script.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        })
    });
    Ran { told: told.into_inner().expect("no panic"), counts, result }
}

/// Asserts that the approved variant answers each flow's frame as the original does; returns true if there is
/// one.
pub(crate) fn same_answers(live: &LiveSession<'_>, flows: &WeightedFlows) -> bool {
    let Some(variant) = live.copy_of_variant().expect("it loads once more") else { return false };
    let original = live.copy_of_original().expect("it loads once more");
    for frame in &flows.packets {
        let answer = |program: &KernelProgram| {
            let out = program.test_run(&TestRun::packet(frame)).expect("a test run");
            (out.retval, out.data)
        };
        assert_eq!(answer(&variant), answer(&original), "for {frame:02x?}");
    }
    true
}

pub(crate) struct End<'s>(pub(crate) &'s AtomicBool);

impl Drop for End<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::SeqCst);
    }
}

/// The generation that a report tells of.
pub(crate) fn generation(report: &SessionReport) -> Option<u32> {
    match report {
        SessionReport::Specialised { generation, .. } => Some(*generation),
        _ => None,
    }
}

/// The last status report.
pub(crate) fn latest(told: &[SessionReport]) -> Option<&SessionReport> {
    told.iter().rev().find(|r| matches!(r, SessionReport::Status { .. }))
}

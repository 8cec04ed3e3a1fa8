//! Kills at any moment: packets are still forwarded by a correct program, and the next session takes over.
//!
//! A router has traffic, and one of its routes is changed all the time. Sessions are started and killed: at
//! random moments, and after each of the system calls by which they change something in the kernel. The far
//! end counts frames that were made after a change and still have the previous next hop. CI kills a few
//! times; `MILLSTREAM_KILLS` sets the number of kills, `MILLSTREAM_STEPS` the number of system calls after
//! which to kill, `MILLSTREAM_RESULTS` the place for the figures.

use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use millstream_kernel::{KernelMap, UpdateMode, query_xdp, testing};
use millstream_lab::rig::TEST_PORT;
use millstream_lab::{RigConfig, StalenessMonitor, TestRig, TrafficSequence};
use millstream_programs::router::{self, NextHop, RouterConfig, RouterModel};
use millstream_programs::traffic::{FlowLocality, WeightedFlows};

use crate::session::{Place, Session};
use crate::steps;

const HOPS: usize = 16;

/// Uniform random numbers; the seed is printed, so that a run can be repeated.
struct Dice(u64);

impl Dice {
    fn new() -> Dice {
        let seed = std::env::var("MILLSTREAM_SEED").ok().and_then(|s| s.parse().ok());
        let seed = seed.unwrap_or_else(|| u64::from(std::process::id()));
        eprintln!("MILLSTREAM_SEED={seed}");
        Dice(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    fn below(&mut self, most: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) % most
    }
}

/// A map that the session has pinned.
pub(crate) fn pinned(place: &Place, name: &str) -> KernelMap {
    KernelMap::from_pin(&place.pins.join("maps").join(name)).unwrap()
}

fn fill(place: &Place, config: &RouterConfig) {
    for entry in config.entries().unwrap() {
        pinned(place, entry.map).update(&entry.key, &entry.value, UpdateMode::Any).unwrap();
    }
}

/// Gives the hottest flow's route one next hop after the other, until `stop`.
fn change(
    routes: &KernelMap,
    config: &RouterConfig,
    flows: &WeightedFlows,
    far: &StalenessMonitor,
    stop: &AtomicBool,
    changes: &AtomicU64,
) {
    let hottest = flows.weights.iter().enumerate().max_by_key(|(_, w)| **w).unwrap().0;
    let frame = &flows.packets[hottest];
    let key = router::route_key(RouterModel::new(config).route_of(frame).unwrap());
    let destination: [u8; 4] = frame[30..34].try_into().unwrap();
    for n in 1.. {
        if stop.load(Ordering::Relaxed) {
            return;
        }
        let hop = n % HOPS;
        let NextHop::Forward { dst_mac, .. } = config.next_hops[hop] else { panic!("a next hop") };
        far.expect(destination, dst_mac);
        routes.update(&key, &(hop as u32).to_ne_bytes(), UpdateMode::Any).unwrap();
        far.resume_counting();
        changes.fetch_add(1, Ordering::Relaxed);
        // Sometimes long enough for a generation to settle, and be killed.
        std::thread::sleep(Duration::from_millis(if n % 16 == 0 { 150 } else { 15 }));
    }
}

/// Checks that frames come back between now and a moment later, and that changes are judged.
fn goes_on(far: &StalenessMonitor, n: u64) {
    let (before, end) = (far.counts(), Instant::now() + Duration::from_secs(5));
    loop {
        std::thread::sleep(Duration::from_millis(20));
        let now = far.counts();
        if now.all > before.all && now.fresh > before.fresh {
            return;
        }
        assert!(Instant::now() < end, "nothing is forwarded after kill {n}: {before:?}, {now:?}");
    }
}

/// Lets a session run for a random time, and kills it.
fn kill_somewhere(mut session: Session, dice: &mut Dice) {
    match dice.below(3) {
        // During its start and takeover.
        0 => std::thread::sleep(Duration::from_millis(dice.below(600))),
        // During its first profile of the traffic.
        1 => {
            session.wait_for("attached");
            std::thread::sleep(Duration::from_millis(dice.below(80)));
        }
        // While it answers changes.
        _ => {
            session.wait_for("specialised");
            std::thread::sleep(Duration::from_millis(dice.below(300)));
        }
    }
    session.kill();
}

#[test]
fn a_session_killed_at_any_moment_leaves_a_correct_program() {
    if !testing::require() {
        return;
    }
    let kills = asked("MILLSTREAM_KILLS").unwrap_or(8);
    let mut dice = Dice::new();
    under_attack("kill", kills, "kills.json", |_, mut command| {
        kill_somewhere(command.session(), &mut dice);
    });
}

#[test]
fn a_session_killed_after_any_step_leaves_a_correct_program() {
    if !testing::require() {
        return;
    }
    // All steps, or some of those that a session makes until it has answered changes for a while.
    let (steps, all) = (asked("MILLSTREAM_STEPS"), 300);
    let mut dice = Dice::new();
    let mut made = Vec::new();
    under_attack("steps", steps.unwrap_or(8), "kill-steps.json", |n, command| {
        let step = if steps.is_some() { n + 1 } else { 1 + (n * all + dice.below(all)) / 8 };
        made.push(command.killed_after(step));
    });
    assert!(made.iter().any(|call| call.starts_with("bpf")), "{made:?}");
}

/// A count from the environment, for more runs than CI does.
pub(crate) fn asked(variable: &str) -> Option<u64> {
    std::env::var(variable).ok().and_then(|k| k.parse().ok())
}

/// A session that may be started.
struct Startable<'s> {
    rig: &'s TestRig,
    place: &'s Place,
}

impl Startable<'_> {
    fn command(&self) -> Command {
        let mut command = self.place.run(TEST_PORT);
        command.args(["--interval", "100"]);
        command
    }

    fn session(&mut self) -> Session {
        Session::start(self.rig.namespace(), &mut self.command())
    }

    /// Starts it, and kills it after so many steps; returns the last one.
    fn killed_after(&self, step: u64) -> String {
        let mut command = self.command();
        command.arg("--json").stdout(Stdio::null());
        self.rig.namespace().enter(|| steps::killed_after(&mut command, step)).unwrap()
    }
}

/// Starts and kills sessions while packets flow and routes change; nothing is stale, and nothing is lost.
fn under_attack(name: &str, kills: u64, file: &str, mut attack: impl FnMut(u64, Startable<'_>)) {
    let place = Place::new(name);
    let rig = TestRig::new(RigConfig { stamps: true, ..RigConfig::default() }).unwrap();
    let far = StalenessMonitor::new(&rig).unwrap();
    let config = router::generate(200, &[rig.test_port()], HOPS as u8, 1);
    let flows = router::flows(&config, 1_000, FlowLocality::HIGH, 1);
    let sequence = flows.sequence(1, 1 << 14);
    rig.load_traffic(&TrafficSequence::new(&flows, &sequence)).unwrap();
    let startable = || Startable { rig: &rig, place: &place };
    let mut session = startable().session();
    session.wait_for("attached");
    fill(&place, &config);
    let routes = pinned(&place, router::ROUTES);
    session.kill();
    let (stop, changes) = (AtomicBool::new(false), AtomicU64::new(0));
    let session = std::thread::scope(|scope| {
        scope.spawn(|| rig.generator_loop(&stop, Some(100_000.0)).unwrap());
        scope.spawn(|| change(&routes, &config, &flows, &far, &stop, &changes));
        let _end = End(&stop);
        for n in 0..kills {
            attack(n, startable());
            goes_on(&far, n);
        }
        let mut session = startable().session();
        session.wait_for("specialised");
        goes_on(&far, kills);
        session
    });
    let (counted, counts) = (far.counts(), rig.counts().unwrap());
    let (updates, lost) = (changes.into_inner(), counts.lost());
    let figures = serde_json::json!({
        "kills": kills, "updates": updates, "sent": counts.sent, "lost": lost, "far_end": counted
    });
    keep(file, &figures);
    assert_eq!((counted.stale, counted.unstamped), (0, 0), "{counted:?}");
    assert_eq!(counts.lost(), 0, "{counts:?}");
    assert_eq!(counted.all, counts.sent, "frames that were not forwarded: {counts:?}");
    let (code, last) = session.interrupt();
    assert_eq!(code, Some(0), "{last}");
    let hook = rig.namespace().enter(|| query_xdp(rig.test_port())).unwrap().unwrap();
    assert_eq!((hook, place.pinned().len(), place.pins.exists()), (None, 0, false), "left over");
}

/// Stores figures, if requested.
pub(crate) fn keep(file: &str, figures: &serde_json::Value) {
    let text = serde_json::to_string_pretty(figures).unwrap();
    eprintln!("{file}: {text}");
    if let Ok(directory) = std::env::var("MILLSTREAM_RESULTS") {
        std::fs::write(Path::new(&directory).join(file), text + "\n").unwrap();
    }
}

/// Sets a flag on drop, however that comes, so that others end.
pub(crate) struct End<'s>(pub(crate) &'s AtomicBool);

impl Drop for End<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::SeqCst);
    }
}

#[test]
fn a_first_session_killed_while_it_attaches_leaves_nothing_half_done() {
    if !testing::require() {
        return;
    }
    let place = Place::new("first");
    let rig = TestRig::new(RigConfig::default()).unwrap();
    let hook = || rig.namespace().enter(|| query_xdp(rig.test_port())).unwrap().unwrap();
    let mut dice = Dice::new();
    for _ in 0..6 {
        let session = Session::start(rig.namespace(), &mut place.run(TEST_PORT));
        std::thread::sleep(Duration::from_millis(dice.below(500)));
        session.kill();
        let pinned = place.pinned();
        // The program on the hook is held by the pin, and the other way round.
        assert_eq!(hook().is_some(), pinned.contains(&format!("link_{TEST_PORT}")), "{pinned:?}");
        // Whatever was left, the next session starts, and leaves nothing.
        let mut next = Session::start(rig.namespace(), &mut place.run(TEST_PORT));
        next.wait_for("attached");
        assert!(hook().is_some());
        assert_eq!(next.interrupt().0, Some(0));
        assert_eq!((hook(), place.pins.exists()), (None, false));
    }
}

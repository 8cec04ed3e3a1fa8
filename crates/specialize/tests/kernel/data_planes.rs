//! Any of our data planes on the laboratory's rig, in a session.

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use millstream_kernel::UpdateMode;
use millstream_lab::workload::{BuiltinWorkload, Workload};
use millstream_lab::{RigConfig, TestRig, TrafficSequence};
use millstream_programs::traffic::FlowLocality;
use millstream_specialize::pins::remove_abandoned;
use millstream_specialize::{DetachPolicy, LiveSession, SessionReport, SessionSettings};

use crate::offline::compiler;
use crate::routed::alone;

/// A data plane, its tables and traffic.
pub(crate) struct Plane {
    pub(crate) name: &'static str,
    pub(crate) builtin: BuiltinWorkload,
    pub(crate) flows: usize,
    pub(crate) locality: FlowLocality,
    /// Seed of the order of the packets.
    pub(crate) seed: u64,
    pub(crate) rig: RigConfig,
}

/// Handles that a test gets.
pub(crate) struct Placed<'p> {
    pub(crate) rig: &'p TestRig,
    pub(crate) load: &'p Workload,
    /// Order of the packets.
    pub(crate) order: &'p [u32],
}

impl Plane {
    /// Puts it onto a rig of its own, for as long as `act` takes.
    pub(crate) fn placed<R: Send>(
        &self,
        settings: impl FnOnce(&mut SessionSettings) + Send,
        act: impl FnOnce(&Placed<'_>, &mut LiveSession<'_>) -> R + Send,
    ) -> R {
        let _alone = alone();
        let rig = TestRig::new(self.rig.clone()).expect("a rig");
        let port = rig.test_port();
        let load = self.builtin.workload([port, rig.second_port()], self.flows, self.locality);
        let load = load.expect("a workload");
        let sequence = load.flows.sequence(self.seed, 1 << 14);
        rig.load_traffic(&TrafficSequence::new(&load.flows, &sequence)).expect("traffic");
        let compiler = compiler(&self.builtin.program);
        let (pins, prefix) = (Path::new("/sys/fs/bpf/millstream"), format!("test_{}_", self.name));
        remove_abandoned(pins, &prefix);
        let mut with = SessionSettings::new(pins.join(format!("{prefix}{}", std::process::id())));
        settings(&mut with);
        rig.namespace()
            .enter(|| {
                let mut live = LiveSession::load(&compiler, with).expect("loaded");
                for entry in &load.entries {
                    let map = live.map(entry.map).expect(entry.map);
                    map.update_all_cpus(&entry.key, &entry.value, UpdateMode::Any).expect(entry.map);
                }
                live.attach(&[port]).expect("attached");
                let placed = Placed { rig: &rig, load: &load, order: &sequence };
                let result = act(&placed, &mut live);
                live.finish(DetachPolicy::Restored).expect("finished");
                result
            })
            .expect("in the namespace")
    }
}

impl Placed<'_> {
    /// The first packets of the traffic.
    pub(crate) fn sample(&self, count: usize) -> Vec<Vec<u8>> {
        let first = self.order.iter().take(count);
        first.map(|at| self.load.flows.packets[*at as usize].clone()).collect()
    }

    /// Nanoseconds a packet over this time, with a session that looks after the program or without.
    pub(crate) fn spent(
        &self,
        live: Option<&mut LiveSession<'_>>,
        time: Duration,
        tell: &mut dyn FnMut(&SessionReport),
    ) -> f64 {
        let before = self.rig.counts().expect("counts").received;
        self.send(live, time, tell, || ());
        let packets = self.rig.counts().expect("counts").received - before;
        time.as_secs_f64() * 1e9 / packets as f64
    }

    /// Sends for this time, with a session or without. `beside` runs meanwhile.
    pub(crate) fn send(
        &self,
        live: Option<&mut LiveSession<'_>>,
        time: Duration,
        tell: &mut dyn FnMut(&SessionReport),
        beside: impl FnOnce() + Send,
    ) {
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| self.rig.generator_loop(&stop, None));
            scope.spawn(|| {
                beside();
                std::thread::sleep(time);
                stop.store(true, Ordering::SeqCst);
            });
            match live {
                Some(live) => live.run(&stop, tell).expect("runs"),
                None => {
                    while !stop.load(Ordering::SeqCst) {
                        std::thread::sleep(Duration::from_millis(1));
                    }
                }
            }
        });
    }
}

/// Pairs of (without, with), each first in turn, so that what drifts favours none.
pub(crate) fn in_turn<T>(count: usize, mut one: impl FnMut(bool) -> T) -> Vec<(T, T)> {
    let pair = |n: usize| {
        if n.is_multiple_of(2) {
            return (one(false), one(true));
        }
        let with = one(true);
        (one(false), with)
    };
    (0..count).map(pair).collect()
}

/// Repeats a measurement until the machine is quiet enough for it, ten times at most. With one second, as in
/// CI, each makes one try.
pub(crate) fn patiently<T, E: std::fmt::Debug>(mut measure: impl FnMut() -> Result<T, E>) -> T {
    let mut found = measure();
    for _ in 0..9 {
        if found.is_ok() {
            break;
        }
        found = measure();
    }
    found.expect("measured")
}

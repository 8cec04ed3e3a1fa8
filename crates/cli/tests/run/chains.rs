//! Chains of tail calls, on XDP and on TC: the programs in an array are the ones called, even when the
//! session is killed.

use std::os::fd::AsFd;
use std::path::PathBuf;
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::{Duration, Instant};

use millstream_kernel::{
    KernelMap, KernelProgram, Namespace, PacketSocket, UpdateMode, interface_index, testing,
};

use crate::fixtures;
use crate::kill::{End, pinned};
use crate::messages::{DEV, namespace};
use crate::session::{Place, Session};

/// Slots of the array.
const CLASSIFY: u32 = 0;
const ROUTE: u32 = 1;
const DENY: u32 = 2;
/// First byte that `route` writes into a frame.
const BY_ROUTE: u8 = 2;
/// Offset of the number in a frame.
const NUMBER: usize = 40;
/// Time to wait for a frame that must not come. A frame that comes takes microseconds.
const MOMENT: Duration = Duration::from_millis(30);

/// Frames of one sender, for one service and one network.
fn frame(number: u32) -> Vec<u8> {
    let mut frame = vec![0; 64];
    frame[..6].fill(0xff);
    frame[12] = 8;
    frame[22] = 64;
    frame[23] = 17;
    frame[26..30].copy_from_slice(&1u32.to_be_bytes());
    frame[30..34].copy_from_slice(&[10, 1, 1, 1]);
    frame[36..38].copy_from_slice(&1u16.to_be_bytes());
    frame[NUMBER..NUMBER + 4].copy_from_slice(&number.to_be_bytes());
    frame
}

struct Chain {
    namespace: Namespace,
    place: Place,
    object: PathBuf,
    generic: bool,
    numbers: AtomicU32,
}

impl Chain {
    fn new(name: &str, flags: &[&str]) -> Option<Chain> {
        if !testing::require() {
            return None;
        }
        let (object, _) = fixtures::compile("chain", flags)?;
        let (namespace, _) = namespace();
        let generic = flags.is_empty();
        Some(Chain { namespace, place: Place::new(name), object, generic, numbers: AtomicU32::new(1) })
    }

    fn command(&self) -> Command {
        let mut command = self.place.run_object(&self.object, DEV);
        command.args(["--prog", "parse", "--interval", "100"]);
        if self.generic {
            // Frames then leave through an interface that has no program of its own.
            command.args(["--mode", "generic"]);
        }
        command
    }

    fn session(&self) -> Session {
        Session::start(&self.namespace, &mut self.command())
    }

    fn map(&self, name: &str) -> KernelMap {
        pinned(&self.place, name)
    }

    fn fill(&self) {
        let put = |map: &str, key: &[u8], value: &[u8]| {
            self.map(map).update(key, value, UpdateMode::Any).unwrap();
        };
        put("senders", &1u32.to_be_bytes(), &CLASSIFY.to_ne_bytes());
        put("services", &[0, 1, 17, 0], &[1u32, 0].map(u32::to_ne_bytes).concat());
        put("routes", &[&16u32.to_ne_bytes()[..], &[10, 1, 0, 0]].concat(), &7u32.to_ne_bytes());
    }

    fn wire(&self) -> PacketSocket {
        self.namespace.enter(|| PacketSocket::open(interface_index("run1").unwrap()).unwrap()).unwrap()
    }

    /// First byte of the answer to a frame that is sent now, and the number of frames that the socket had no
    /// room for.
    fn answer(&self, patience: Duration) -> (Option<u8>, u64) {
        let (wire, number) = (self.wire(), self.numbers.fetch_add(1, Ordering::Relaxed));
        wire.send(&frame(number)).unwrap();
        let start = Instant::now();
        while start.elapsed() < patience {
            match wire.receive().unwrap() {
                Some(got) if got.get(NUMBER..NUMBER + 4) == Some(&number.to_be_bytes()[..]) => {
                    return (Some(got[0]), 0);
                }
                Some(_) => {}
                None => std::thread::sleep(Duration::from_micros(200)),
            }
        }
        (None, wire.take_drop_count().unwrap())
    }

    /// Asks again only if the socket has lost frames, as on a busy machine.
    #[track_caller]
    fn is_routed(&self) {
        let mut answers = (0..5).map(|_| self.answer(Duration::from_secs(20)));
        let told = answers.find(|(first, lost)| first.is_some() || *lost == 0);
        assert_eq!(told, Some((Some(BY_ROUTE), 0)));
    }

    #[track_caller]
    fn is_stopped(&self) {
        assert_eq!(self.answer(MOMENT).0, None, "stale");
    }

    /// Writes slots and tables; each write takes effect when it has returned.
    fn write(&self, route: &KernelProgram, deny: &KernelProgram) {
        let stages = self.map("stages");
        let put = |program: &KernelProgram| stages.update_fd(&ROUTE.to_ne_bytes(), program.as_fd()).unwrap();
        let sent_to = |slot: u32| {
            self.map("senders").update(&1u32.to_be_bytes(), &slot.to_ne_bytes(), UpdateMode::Any).unwrap();
        };
        self.is_routed();
        put(deny);
        self.is_stopped();
        put(route);
        self.is_routed();
        stages.delete(&ROUTE.to_ne_bytes()).unwrap();
        self.is_stopped();
        put(route);
        self.is_routed();
        sent_to(DENY);
        self.is_stopped();
        sent_to(ROUTE);
        self.is_routed();
        sent_to(CLASSIFY);
        self.is_routed();
    }

    /// Sends frames of its own while `act` runs.
    fn under_load(&self, act: impl FnOnce()) {
        let (stop, wire) = (AtomicBool::new(false), self.wire());
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !stop.load(Ordering::Relaxed) {
                    for _ in 0..8 {
                        let _ = wire.send(&frame(0));
                    }
                    while wire.receive().unwrap().is_some() {}
                    std::thread::sleep(Duration::from_micros(500));
                }
            });
            let _end = End(&stop);
            act();
        });
    }
}

/// Sessions come and are killed; at any time, packets meet the present arrays and tables.
fn killed_again_and_again(name: &str, flags: &[&str]) {
    let Some(chain) = Chain::new(name, flags) else { return };
    let mut session = chain.session();
    session.wait_for("attached");
    chain.fill();
    let in_slot = |slot: u32| {
        let id = chain.map("stages").lookup(&slot.to_ne_bytes()).unwrap().unwrap();
        KernelProgram::from_id(u32::from_ne_bytes(id.try_into().unwrap())).unwrap()
    };
    let (route, deny) = (in_slot(ROUTE), in_slot(DENY));
    chain.under_load(|| {
        for _ in 0..3 {
            let made = session.wait_for("specialised");
            session.wait_for_words("\"program\":\"classify\",\"target\":\"variant\"");
            chain.write(&route, &deny);
            session.kill();
            chain.write(&route, &deny);
            session = chain.session();
            let line = session.wait_for("attached");
            assert!(line.contains("\"took_over\":true"), "{line} after {made}");
            chain.write(&route, &deny);
        }
        session.wait_for("specialised");
        chain.is_routed();
        let (code, last) = session.interrupt();
        assert_eq!(code, Some(0), "{last}");
    });
    assert_eq!(chain.place.pinned(), Vec::<String>::new());
}

#[test]
fn a_chain_on_xdp_outlives_its_sessions() {
    killed_again_and_again("chain_xdp", &[]);
}

#[test]
fn a_chain_on_tc_outlives_its_sessions() {
    killed_again_and_again("chain_tc", &["-DTC"]);
}

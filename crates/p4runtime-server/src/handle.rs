//! A switch that the packets' thread and controllers share.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use millstream_p4_switch::SentPacket;
use millstream_p4runtime::proto::v1::{
    DigestList, IdleTimeoutNotification, PacketIn, stream_message_response::Update,
};

use crate::controlled::{ControlledSwitch, SwitchSettings};
use crate::executor::ExecutorFactory;
use crate::moves::MovedPackets;
use crate::program::ControlProgram;
use crate::reconcile::{ReconcileReport, keep_state};
use crate::streams::ControllerStreams;

/// Time that the packets' thread leaves to a waiting controller.
const PAUSE: Duration = Duration::from_micros(20);

/// The switch, if it has a program, and what a controller prepared.
#[derive(Default)]
pub(crate) struct SwitchSlot {
    pub(crate) running: Option<ControlledSwitch>,
    pub(crate) saved: Option<Arc<ControlProgram>>,
    /// Number that a controller gave the program that runs, and that which is saved.
    pub(crate) cookie: Option<u64>,
    pub(crate) saved_cookie: Option<u64>,
}

struct SharedSwitch {
    slot: Mutex<SwitchSlot>,
    /// Controllers that wait for the switch.
    waiting: AtomicUsize,
    streams: Mutex<ControllerStreams>,
    sink: PacketSink,
    factory: ExecutorFactory,
    settings: SwitchSettings,
}

/// A shared switch.
#[derive(Clone)]
pub struct SwitchHandle {
    shared: Arc<SharedSwitch>,
}

/// Sends packets that leave because of a controller's packet.
pub type PacketSink = Arc<dyn Fn(&[SentPacket]) + Send + Sync>;

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Nanoseconds since 1970, for controllers.
fn timestamp() -> i64 {
    let time = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(time.as_nanos()).unwrap_or(i64::MAX)
}

impl SwitchHandle {
    /// A switch without a program.
    pub fn new(
        device: u64,
        factory: ExecutorFactory,
        settings: SwitchSettings,
        sink: PacketSink,
    ) -> SwitchHandle {
        let shared = SharedSwitch {
            slot: Mutex::default(),
            waiting: AtomicUsize::new(0),
            streams: Mutex::new(ControllerStreams::new(device)),
            sink,
            factory,
            settings,
        };
        SwitchHandle { shared: Arc::new(shared) }
    }

    /// Runs a program, in place of the one that runs.
    ///
    /// # Errors
    /// If there is no engine for it.
    pub fn load(&self, program: Arc<ControlProgram>) -> Result<(), String> {
        self.replace(program, None, false).map(|_| ())
    }

    /// Runs a program in place of the one that runs, between two packets. State of the same name and type is
    /// kept if that is wanted.
    pub(crate) fn replace(
        &self,
        program: Arc<ControlProgram>,
        cookie: Option<u64>,
        keeps_state: bool,
    ) -> Result<ReconcileReport, String> {
        let mut next = ControlledSwitch::new(program, &self.shared.factory, self.shared.settings)?;
        Ok(self.slot(|slot| {
            let mut report = ReconcileReport::default();
            if let Some(old) = slot.running.as_mut().filter(|_| keeps_state) {
                report = keep_state(old, &mut next);
            }
            (slot.running, slot.saved, slot.cookie) = (Some(next), None, cookie);
            report
        }))
    }

    /// Gives the switch to a controller, between two packets.
    pub(crate) fn slot<R>(&self, act: impl FnOnce(&mut SwitchSlot) -> R) -> R {
        self.shared.waiting.fetch_add(1, Ordering::SeqCst);
        let mut slot = locked(&self.shared.slot);
        self.shared.waiting.fetch_sub(1, Ordering::SeqCst);
        act(&mut slot)
    }

    /// Gives the running switch to a controller, between two packets; `None` if there is no program.
    pub fn control<R>(&self, act: impl FnOnce(&mut ControlledSwitch) -> R) -> Option<R> {
        self.slot(|slot| slot.running.as_mut().map(act))
    }

    pub(crate) fn streams<R>(&self, act: impl FnOnce(&mut ControllerStreams) -> R) -> R {
        act(&mut locked(&self.shared.streams))
    }

    /// Messages and packets that no controller took.
    pub fn lost_messages(&self) -> u64 {
        self.streams(|streams| streams.lost)
    }

    /// Gives the running switch to the packets' thread, which lets waiting controllers in first. Packets for
    /// controllers are sent to them; the rest is returned.
    pub fn move_packets<R>(&self, act: impl FnOnce(&mut ControlledSwitch) -> R) -> Option<R> {
        while self.shared.waiting.load(Ordering::SeqCst) > 0 {
            std::thread::sleep(PAUSE);
        }
        locked(&self.shared.slot).running.as_mut().map(act)
    }

    /// Sends packets to controllers.
    pub fn send_to_controllers(&self, packets: Vec<PacketIn>) {
        if packets.is_empty() {
            return;
        }
        self.streams(|streams| {
            packets.into_iter().for_each(|packet| streams.send_to_primaries(&Update::Packet(packet)));
        });
    }

    /// Sends what is due: lists of digests, and entries that are idle.
    pub fn send_due(&self) {
        let due = self.control(|switch| (switch.take_digests(), switch.take_idle_entries()));
        let Some((digests, idle)) = due.filter(|(digests, idle)| !digests.is_empty() || !idle.is_empty())
        else {
            return;
        };
        let timestamp = timestamp();
        self.streams(|streams| {
            for list in digests {
                streams.send_to_primaries(&Update::Digest(DigestList { timestamp, ..list }));
            }
            if !idle.is_empty() {
                let idle = IdleTimeoutNotification { table_entry: idle, timestamp };
                streams.send_to_primaries(&Update::IdleTimeoutNotification(idle));
            }
        });
    }

    /// Sends what a controller's packet caused.
    pub(crate) fn deliver(&self, moved: MovedPackets) {
        self.send_to_controllers(moved.for_controllers);
        (self.shared.sink)(&moved.sent);
    }
}

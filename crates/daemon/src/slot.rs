//! A program of the daemon, as other threads see it: status, history, and a channel for orders to its thread.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use millstream_kernel::interface_index;
use millstream_specialize::SessionReport;
use millstream_specialize::live::code_listing::CodeListing;
use millstream_specialize::live::details::SessionDetails;
use millstream_specialize::report::AttachedInterface;

use super::config::ProgramConfig;
use super::histograms::DurationHistograms;
use super::protocol::{
    AttachmentStatus, HistoryEvent, HistoryRecord, ObjectStatus, ProgramState, ProgramStatus,
};

/// Records kept per program.
const KEPT: usize = 1000;
/// Maximum number of pending orders.
const QUEUE: usize = 16;
/// Time limit for the answer to an order. Code that is being compiled is finished first.
const PATIENCE: Duration = Duration::from_secs(20);
/// Answer to a client whose result another one has taken.
const ASKED_AT_ONCE: &str = "another client asked at the same time; try again";

/// Order to a program's thread.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum WorkerCommand {
    Pause,
    RollBack,
    Resume,
    /// Inspect the program, and store the result in the slot.
    Look(ProgramAspect),
    /// Give the interfaces back.
    Stop,
    /// Give the interfaces back, and end.
    End,
}

/// Part of a program that is looked at.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum ProgramAspect {
    /// The way in which each lookup is answered.
    Lookups,
    /// Its instructions.
    Code,
}

/// Result of a look at a program.
#[derive(Debug)]
pub(super) enum ProgramView {
    Lookups(SessionDetails),
    Code(CodeListing),
}

/// An order, and the channel for its outcome.
#[derive(Debug)]
pub(super) struct PendingCommand {
    pub(super) order: WorkerCommand,
    answer: SyncSender<Result<(), String>>,
}

impl PendingCommand {
    /// Sends the outcome. The client may have gone.
    pub(super) fn complete(self, result: Result<(), String>) {
        let _ = self.answer.send(result);
    }
}

/// The orders of one program, in its thread.
#[derive(Debug)]
pub(super) struct CommandReceiver(Receiver<PendingCommand>);

impl CommandReceiver {
    /// The next order, if one comes in time.
    pub(super) fn next(&self, wait: Duration) -> Option<PendingCommand> {
        if wait.is_zero() {
            return self.0.try_recv().ok();
        }
        self.0.recv_timeout(wait).ok()
    }
}

/// A program.
#[derive(Debug)]
pub(super) struct ManagedProgram {
    pub(super) entry: ProgramConfig,
    pub(super) times: DurationHistograms,
    /// Set to end a session's loop, so that orders are handled.
    pub(super) interrupt: AtomicBool,
    orders: SyncSender<PendingCommand>,
    status: Mutex<ProgramStatus>,
    /// Result of the last look, until the client that asked takes it.
    view: Mutex<Option<ProgramView>>,
    history: Mutex<VecDeque<HistoryRecord>>,
    /// Takes each record, too, if it has room.
    records: Option<SyncSender<HistoryRecord>>,
}

impl ManagedProgram {
    /// A slot that has not started yet, and the receiver of its orders.
    pub(super) fn new(
        entry: ProgramConfig,
        records: Option<SyncSender<HistoryRecord>>,
    ) -> (ManagedProgram, CommandReceiver) {
        let (orders, receiver) = sync_channel(QUEUE);
        let status = ProgramStatus {
            name: entry.name.clone(),
            source: ObjectStatus { object: entry.object.display().to_string(), form: None },
            attachment: AttachmentStatus { missing: entry.interfaces.clone(), ..AttachmentStatus::default() },
            ..ProgramStatus::default()
        };
        let slot = ManagedProgram {
            entry,
            times: DurationHistograms::default(),
            interrupt: AtomicBool::new(false),
            orders,
            status: Mutex::new(status),
            view: Mutex::default(),
            history: Mutex::default(),
            records,
        };
        (slot, CommandReceiver(receiver))
    }

    /// Gives an order, and waits until it was carried out.
    pub(super) fn order(&self, order: WorkerCommand) -> Result<(), String> {
        let (answer, outcome) = sync_channel(1);
        self.orders
            .try_send(PendingCommand { order, answer })
            .map_err(|_| "it does not answer".to_owned())?;
        self.interrupt.store(true, Ordering::SeqCst);
        outcome.recv_timeout(PATIENCE).unwrap_or_else(|_| Err("it has not answered yet".to_owned()))
    }

    /// Implementation of each lookup at present.
    pub(super) fn details(&self) -> Result<SessionDetails, String> {
        match self.look(ProgramAspect::Lookups)? {
            ProgramView::Lookups(details) => Ok(details),
            ProgramView::Code(_) => Err(ASKED_AT_ONCE.to_owned()),
        }
    }

    /// Instructions at present.
    pub(super) fn code(&self) -> Result<CodeListing, String> {
        match self.look(ProgramAspect::Code)? {
            ProgramView::Code(code) => Ok(code),
            ProgramView::Lookups(_) => Err(ASKED_AT_ONCE.to_owned()),
        }
    }

    fn look(&self, aspect: ProgramAspect) -> Result<ProgramView, String> {
        self.order(WorkerCommand::Look(aspect))?;
        let mut view = self.view.lock().unwrap_or_else(PoisonError::into_inner);
        view.take().ok_or_else(|| ASKED_AT_ONCE.to_owned())
    }

    /// Stores the result of a look, for the client that gave the order.
    pub(super) fn store_view(&self, view: ProgramView) {
        *self.view.lock().unwrap_or_else(PoisonError::into_inner) = Some(view);
    }

    /// Stores which form of a bundle runs, if it is one.
    pub(super) fn store_form(&self, form: Option<String>) {
        self.state().source.form = form;
    }

    /// Status of the program.
    pub(super) fn status(&self) -> ProgramStatus {
        self.state().clone()
    }

    /// Recorded events, oldest first.
    pub(super) fn history(&self) -> Vec<HistoryRecord> {
        self.history.lock().unwrap_or_else(PoisonError::into_inner).iter().cloned().collect()
    }

    /// Notes that the program entered this state.
    pub(super) fn enter(&self, state: ProgramState) {
        self.enter_for(state, None, Vec::new());
    }

    /// Notes that the program entered this state for a reason, with advice.
    pub(super) fn enter_for(&self, state: ProgramState, reason: Option<String>, advice: Vec<String>) {
        let mut status = self.state();
        if status.state == state && status.reason == reason {
            return;
        }
        (status.state, status.reason, status.advice) = (state, reason.clone(), advice);
        status.counts.failures += u64::from(state == ProgramState::Failed);
        status.counts.rollbacks += u64::from(state == ProgramState::RolledBack);
        if matches!(state, ProgramState::Failed | ProgramState::Stopped) {
            (status.generation, status.guard, status.traffic.pps) = (0, None, 0.0);
            status.attachment.interfaces.clear();
            status.attachment.missing.clone_from(&self.entry.interfaces);
        }
        drop(status);
        let why = reason.as_ref().map_or(String::new(), |reason| format!(": {reason}"));
        let program = self.entry.name.as_str();
        match state {
            ProgramState::Failed => tracing::warn!(program, "{}{why}", state.name()),
            _ => tracing::info!(program, "{}{why}", state.name()),
        }
        self.record(HistoryEvent::State { state, reason });
    }

    /// Takes a report of the session.
    pub(super) fn record_report(&self, report: &SessionReport) {
        self.note(report);
        self.times.note(report);
        if !matches!(report, SessionReport::Status { .. }) {
            let program = self.entry.name.as_str();
            match report {
                // As frequent as writes of the control plane.
                SessionReport::Confirmed { .. } | SessionReport::Refreshed { .. } => {
                    tracing::debug!(program, "{}", crate::run::text(report));
                }
                _ => tracing::info!(program, "{}", crate::run::text(report)),
            }
            self.record(HistoryEvent::Report(report.clone()));
        }
    }

    /// Missing interfaces that exist now.
    pub(super) fn returned_interfaces(&self) -> Vec<u32> {
        let missing = self.state().attachment.missing.clone();
        missing.iter().filter_map(|name| interface_index(name).ok()).collect()
    }

    /// Configured interfaces that are not among these.
    fn missing(&self, interfaces: &[AttachedInterface]) -> Vec<String> {
        let missing = |name: &&String| !interfaces.iter().any(|i| i.interface == **name);
        self.entry.interfaces.iter().filter(missing).cloned().collect()
    }

    fn note(&self, report: &SessionReport) {
        let mut status = self.state();
        let status = &mut *status;
        match report {
            SessionReport::Attached { program, interfaces, watched, refused, .. } => {
                status.attachment.missing = self.missing(interfaces);
                status.attachment.interfaces.clone_from(interfaces);
                status.program = Some(program.clone());
                (status.maps.watched, status.maps.refused) = (watched.clone(), refused.clone());
            }
            SessionReport::Specialised { generation, .. } => {
                status.counts.installs += 1;
                status.generation = *generation;
            }
            SessionReport::Confirmed { .. } => status.counts.confirmations += 1,
            SessionReport::Refreshed { .. } => status.counts.refreshes += 1,
            SessionReport::Withdrawn { .. } => {
                status.counts.withdrawals += 1;
                status.generation = 0;
            }
            SessionReport::Moved { interfaces } => {
                status.attachment.missing = self.missing(interfaces);
                status.attachment.interfaces.clone_from(interfaces);
            }
            SessionReport::Dropped { .. } => status.counts.dropped += 1,
            SessionReport::Status {
                pps,
                packets,
                received,
                specialised,
                before_ns,
                now_ns,
                generation,
                guard,
                writes,
                swaps,
                chain,
            } => {
                (status.traffic.pps, status.traffic.packets, status.traffic.specialised) =
                    (*pps, *packets, *specialised);
                status.traffic.received.clone_from(received);
                (status.times.original_ns, status.times.current_ns) = (*before_ns, *now_ns);
                (status.generation, status.guard) = (*generation, Some(*guard));
                (status.writes, status.swaps) = (*writes, *swaps);
                status.chain.clone_from(chain);
            }
            SessionReport::Stopped { .. } => status.generation = 0,
            // Others are recorded in the history only.
            _ => {}
        }
    }

    fn record(&self, what: HistoryEvent) {
        static NUMBER: AtomicU64 = AtomicU64::new(1);
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let record = HistoryRecord {
            number: NUMBER.fetch_add(1, Ordering::Relaxed),
            time_ms: now.as_millis() as u64,
            program: self.entry.name.clone(),
            what,
        };
        if let Some(records) = &self.records {
            let _ = records.try_send(record.clone());
        }
        let mut history = self.history.lock().unwrap_or_else(PoisonError::into_inner);
        if history.len() == KEPT {
            history.pop_front();
        }
        history.push_back(record);
    }

    /// A session that panicked leaves the status as it was.
    fn state(&self) -> MutexGuard<'_, ProgramStatus> {
        self.status.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

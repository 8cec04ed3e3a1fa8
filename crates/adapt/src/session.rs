//! A session: the thread beside an engine, and its report.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{Builder, JoinHandle};
use std::time::{Duration, Instant};

use millstream_native::{CodeSlot, CompiledSchedule, CopiedContents, NativeEngine, VariantBuilder};

use crate::program::{AdaptableProgram, FormError};
use crate::replicas::{ReplicaError, Replicas};
use crate::schedules::ScheduleTrials;
use crate::settings::{AdaptMode, AdaptSettings};
use crate::status::{AdaptState, AdaptStatus};
use adapter::Adapter;

mod adapter;
mod round;
mod trials;

/// Entries of all tables, at most: the replicas have copies of them.
const MOST_ENTRIES: usize = 4 << 20;
/// Bytes of the thread's stack: passes and LLVM recurse.
const STACK: usize = 64 << 20;
/// Time for which the end of a session waits for a compilation.
const FAREWELL: Duration = Duration::from_secs(10);
/// Distance of the thread's priority from the usual one: beside a worker it gets a tenth of a processor.
const NICE: i32 = 10;

/// Reason why a program cannot be adapted.
#[derive(Debug, thiserror::Error)]
pub enum AdaptError {
    /// The engine was not compiled in this process, or not for more code.
    #[error("the program was not compiled for adaptation")]
    NotAdaptable,
    /// Its tables are too large to be copied.
    #[error("the tables have more than {most} entries, of which adaptation would need two copies")]
    TooLarge {
        /// Maximum number of entries.
        most: usize,
    },
    /// A pass of the preparation has failed.
    #[error("preparing the program: {0}")]
    Prepare(String),
    /// There is no thread.
    #[error("no thread for adaptation: {0}")]
    Thread(#[from] std::io::Error),
}

impl From<FormError> for AdaptError {
    fn from(error: FormError) -> AdaptError {
        AdaptError::Prepare(error.to_string())
    }
}

/// State that the thread shares with the session's owner.
#[derive(Debug, Default)]
struct SharedState {
    status: Mutex<AdaptStatus>,
    is_ended: Mutex<bool>,
    end: Condvar,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl SharedState {
    /// Waits, at most this long, for the session's end; returns true if it has come.
    fn wait(&self, time: Duration) -> bool {
        let is_ended = lock(&self.is_ended);
        let waited = self.end.wait_timeout_while(is_ended, time, |is_ended| !*is_ended);
        *waited.unwrap_or_else(PoisonError::into_inner).0
    }
}

/// Specialization of one engine's program, which begins with this value and ends with it.
#[derive(Debug)]
pub struct AdaptSession {
    slot: Arc<CodeSlot>,
    shared: Arc<SharedState>,
    thread: Option<JoinHandle<()>>,
}

impl AdaptSession {
    /// Begins, before the engine's first packet. Its tables may be filled already.
    ///
    /// # Errors
    /// [`AdaptError`]; the engine then runs as it would without.
    pub fn start(engine: &mut NativeEngine, settings: AdaptSettings) -> Result<AdaptSession, AdaptError> {
        let builder = Arc::clone(engine.variant_builder().ok_or(AdaptError::NotAdaptable)?);
        let program = AdaptableProgram::new(&builder)?;
        let contents =
            engine.copy_contents(MOST_ENTRIES).ok_or(AdaptError::TooLarge { most: MOST_ENTRIES })?;
        let slot = engine.open_code_slot(&program.followed()).ok_or(AdaptError::NotAdaptable)?;
        let shared = Arc::new(SharedState::default());
        *lock(&shared.status) = AdaptStatus {
            schema: 1,
            suggests: settings.mode == AdaptMode::Suggest,
            ..AdaptStatus::default()
        };
        let work = {
            let (slot, shared) = (Arc::clone(&slot), Arc::clone(&shared));
            let schedule = engine.schedule.clone();
            move || work((&builder, schedule), program, contents, slot, shared, settings)
        };
        let thread = Builder::new().name("adapt".to_owned()).stack_size(STACK).spawn(work)?;
        Ok(AdaptSession { slot, shared, thread: Some(thread) })
    }

    /// Report so far.
    pub fn status(&self) -> AdaptStatus {
        lock(&self.shared.status).clone()
    }

    /// Reader of the report for other threads.
    pub fn reader(&self) -> AdaptStatusReader {
        AdaptStatusReader(Arc::clone(&self.shared))
    }

    /// Withdraws specialised code, ends the thread, and returns the report.
    pub fn finish(mut self) -> AdaptStatus {
        let mut status = self.status();
        self.end();
        let limit = Instant::now() + FAREWELL;
        if let Some(thread) = self.thread.take() {
            // A compilation that never ends is left behind.
            while !thread.is_finished() && Instant::now() < limit {
                std::thread::sleep(Duration::from_millis(1));
            }
        }
        status.state = AdaptState::Ended;
        status
    }

    /// Withdraws code, and has the thread end, which may compile for a while.
    fn end(&self) {
        *lock(&self.shared.is_ended) = true;
        self.shared.end.notify_all();
        self.slot.withdraw();
    }
}

impl Drop for AdaptSession {
    fn drop(&mut self) {
        self.end();
    }
}

/// Reads the report of a session.
#[derive(Clone, Debug)]
pub struct AdaptStatusReader(Arc<SharedState>);

impl AdaptStatusReader {
    /// Report so far.
    pub fn status(&self) -> AdaptStatus {
        lock(&self.0.status).clone()
    }
}

/// Withdraws code and reports the end when the thread ends, however it does.
struct ThreadGuard {
    slot: Arc<CodeSlot>,
    shared: Arc<SharedState>,
}

impl Drop for ThreadGuard {
    fn drop(&mut self) {
        self.slot.withdraw();
        let mut status = lock(&self.shared.status);
        status.state = AdaptState::Ended;
        if std::thread::panicking() {
            status.failure = Some("the thread for adaptation has failed".to_owned());
        }
    }
}

/// The thread.
fn work(
    (builder, schedule): (&VariantBuilder, CompiledSchedule),
    program: AdaptableProgram,
    contents: CopiedContents,
    slot: Arc<CodeSlot>,
    shared: Arc<SharedState>,
    settings: AdaptSettings,
) {
    let _guard = ThreadGuard { slot: Arc::clone(&slot), shared: Arc::clone(&shared) };
    if settings.is_background
        && let Err(error) = rustix::process::nice(NICE)
    {
        tracing::debug!("adaptation runs at usual priority: {error}");
    }
    let replicas: Result<Replicas, ReplicaError> =
        Replicas::build(builder, &program, &contents, settings.packets);
    drop(contents);
    match replicas {
        Ok(replicas) => {
            let has_traversals = slot.builder().has_traversals();
            let trials = settings.tries_schedules.then(|| ScheduleTrials::new(&schedule, has_traversals));
            let mut adapter = Adapter::new(program, slot, settings, (replicas, trials));
            while !shared.wait(adapter.interval()) {
                adapter.step(&shared.status);
                if adapter.is_over() {
                    break;
                }
            }
        }
        Err(error) => lock(&shared.status).failure = Some(error.to_string()),
    }
}

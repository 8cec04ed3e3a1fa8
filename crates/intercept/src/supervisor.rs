//! Decides on each load.

use std::ffi::OsString;
use std::io;
use std::os::fd::AsFd;
use std::process::{Child, ExitStatus};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use millstream_kernel::{ForeignLoad, KernelProgram};
use signal_hook::consts::{SIGINT, SIGQUIT, SIGTERM};

use crate::launch::{LaunchedLoader, launch};
use crate::notification::{CallListener, CallNotification, ListenerEvent};
use crate::optimizer::TimedOptimizer;
use crate::process::{self, AskingProcess};
use crate::report::{LoadOutcome, LoadReport};
use crate::translation::{Doubt, TranslatedLoad};

/// Reason why a loader could not be run.
#[derive(Debug, thiserror::Error)]
pub enum InterceptError {
    /// It was not started: there is no such program, or the kernel does not take the filter.
    #[error("{program}: {source}")]
    Launch {
        /// The program.
        program: String,
        /// The reason.
        source: io::Error,
    },
    /// The kernel no longer asks.
    #[error("its system calls cannot be watched any more: {0}")]
    Listener(io::Error),
}

/// Options of interception.
#[derive(Clone, Copy, Debug)]
pub struct InterceptOptions {
    /// Longest time for the optimization of one program.
    pub time_limit: Duration,
    /// Use only programs that are proven to behave as before, within that time.
    pub prove: bool,
}

/// Longest log of the verifier that is kept, in bytes.
const MOST_LOG: u32 = 16 << 20;

/// Runs a loader to its end, and that of the processes that it has started; reports each program that they load.
///
/// # Errors
/// [`InterceptError`].
pub fn run_loader(
    command: &OsString,
    arguments: &[OsString],
    options: InterceptOptions,
    report: &mut dyn FnMut(&LoadReport),
) -> Result<ExitStatus, InterceptError> {
    let mut optimizer = TimedOptimizer::new(options.time_limit, options.prove);
    let started = launch(command, arguments).map_err(|source| {
        let program = command.to_string_lossy().into_owned();
        InterceptError::Launch { program, source }
    })?;
    let LaunchedLoader { mut child, listener } = started;
    let listener = CallListener(listener);
    let signals = ForwardedSignals::new();
    let mut running = Some(process::handle(child.id()).map_err(InterceptError::Listener)?);
    loop {
        match listener.wait(running.as_ref().map(AsFd::as_fd)).map_err(InterceptError::Listener)? {
            ListenerEvent::Asked(question) => report(&decide(&listener, &question, &mut optimizer)),
            ListenerEvent::Over => break,
            ListenerEvent::Nothing => {}
        }
        // Its end must be taken for the listener to see that nobody is left.
        if child.try_wait().map_err(InterceptError::Listener)?.is_some() {
            running = None;
        }
        if running.is_some() {
            signals.forward(&child);
        }
    }
    child.wait().map_err(InterceptError::Listener)
}

/// Signals for the loader. Those of the terminal reach it by themselves; SIGTERM is sent on.
struct ForwardedSignals {
    terminated: Arc<AtomicBool>,
}

impl ForwardedSignals {
    fn new() -> ForwardedSignals {
        let (ignored, terminated) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(false)));
        for (signal, flag) in [(SIGINT, &ignored), (SIGQUIT, &ignored), (SIGTERM, &terminated)] {
            // These signals can be caught.
            let _ = signal_hook::flag::register(signal, Arc::clone(flag));
        }
        ForwardedSignals { terminated }
    }

    fn forward(&self, child: &Child) {
        if self.terminated.swap(false, Ordering::Relaxed) {
            process::terminate(child.id());
        }
    }
}

/// Decides on a load, and answers.
fn decide(
    listener: &CallListener,
    question: &CallNotification,
    optimizer: &mut TimedOptimizer,
) -> LoadReport {
    let start = Instant::now();
    let mut report = LoadReport {
        process: question.pid,
        program: String::new(),
        program_type: String::new(),
        outcome: LoadOutcome::Kept { reason: String::new() },
        micros: 0,
    };
    report.outcome = match replace(listener, question, optimizer, start, &mut report) {
        Ok(outcome) => outcome,
        Err(reason) => {
            listener.go_on(question);
            LoadOutcome::Kept { reason }
        }
    };
    report.micros = u64::try_from(start.elapsed().as_micros()).unwrap_or(u64::MAX);
    report
}

/// Gives the loader the optimized program, if there is no doubt.
fn replace(
    listener: &CallListener,
    question: &CallNotification,
    optimizer: &mut TimedOptimizer,
    start: Instant,
    report: &mut LoadReport,
) -> Result<LoadOutcome, Doubt> {
    let asking = AskingProcess::open(question.pid).map_err(|e| format!("its process: {e}"))?;
    if !asking.has_our_credentials().map_err(|e| e.to_string())? {
        return Err("its process has other credentials or namespaces".into());
    }
    let [_, address, size, ..] = question.arguments;
    let size = size as u32 as usize;
    let load = TranslatedLoad::read(&asking, address, size)?;
    if !listener.is_waiting(question) {
        return Err("its process is gone".into());
    }
    report.program = load.load.name();
    report.program_type = load.load.program_type().to_string();
    let made = optimizer.optimize(load.object()?, start)?;
    let (original, code) = (load.original(), load.code(&made.object)?);
    if !code.differs(&original) || code.slots() > original.slots() {
        return Err("nothing to gain".into());
    }
    let (log, length) = accepted_log(&load)?;
    let optimized = load.load(&code, &mut []);
    let (program, _) = optimized.map_err(|errno| {
        format!("the kernel rejects the optimized program: {}", io::Error::from_raw_os_error(errno))
    })?;
    let program = KernelProgram::from_fd(program).map_err(|e| e.to_string())?;
    for map in load.unnamed_maps(&made.object) {
        program.bind_map(map).map_err(|e| format!("a map would not be the program's any more: {e}"))?;
    }
    hand_over_log(&asking, &load.load, (address, size), &log, length)?;
    listener.give(question, program.as_fd()).map_err(|e| format!("it cannot be given the program: {e}"))?;
    Ok(LoadOutcome::Optimized {
        slots_before: made.before.slots,
        slots_after: made.after.slots,
        millicycles_before: made.before.cycles,
        millicycles_after: made.after.cycles,
        proven: made.proven,
    })
}

/// Checks that the kernel accepts the program as it is; returns the verifier's log as the loader would get it, and
/// the length that the kernel says.
fn accepted_log(load: &TranslatedLoad) -> Result<(Vec<u8>, u32), Doubt> {
    let size = load.load.log().map_or(0, |(_, size)| size);
    if size > MOST_LOG {
        return Err("it wants a longer log of the verifier than is kept".into());
    }
    let mut log = vec![0; size as usize];
    let accepted = load.load(&load.original(), &mut log);
    let (_, length) = accepted.map_err(|errno| {
        format!("the kernel rejects the program as it is: {}", io::Error::from_raw_os_error(errno))
    })?;
    Ok((log, length))
}

/// Writes the log into the loader's buffer, and its length into the loader's attribute.
fn hand_over_log(
    process: &AskingProcess,
    load: &ForeignLoad,
    (attribute, size): (u64, usize),
    log: &[u8],
    length: u32,
) -> Result<(), Doubt> {
    let write = |at: u64, bytes: &[u8]| process.write(at, bytes).map_err(|e| format!("its log: {e}"));
    if let Some((buffer, _)) = load.log() {
        let end = log.iter().position(|byte| *byte == 0).map_or(log.len(), |end| end + 1);
        write(buffer, &log[..end])?;
    }
    match ForeignLoad::log_length_offset(size) {
        Some(offset) => write(attribute + offset as u64, &length.to_ne_bytes()),
        None => Ok(()),
    }
}

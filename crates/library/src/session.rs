//! Sessions: a thread that keeps a program specialized, and its reports behind a descriptor.

use std::collections::VecDeque;
use std::ffi::c_char;
use std::fs::File;
use std::io::{Read as _, Write as _};
use std::os::fd::{AsRawFd as _, FromRawFd as _, RawFd};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use millstream::Object;
use millstream::specialize::{DetachPolicy, LiveError, LiveSession, SessionSettings, variant_compiler};
use millstream_kernel::{KernelError, XdpMode, interface_index};
use millstream_specialize::adopt::{self, AdoptionScope};
use millstream_specialize::pins::{DEFAULT_PINS, default_pins};

use crate::boundary::{self, CallFailure, FailureCode, VersionedOptions, argument, of_panic};
use crate::objects::parse;

/// Options of a session: `struct millstream_session_options`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct SessionRequest {
    size: usize,
    program: *const c_char,
    pins: *const c_char,
    adopt: u32,
    egress: u32,
    generic: u32,
    milliseconds: u32,
}

// SAFETY: it is laid out as C has it, with the size first.
unsafe impl VersionedOptions for SessionRequest {}

/// Everything that a session starts from.
pub(crate) struct SessionPlan {
    object: Object,
    program: Option<String>,
    interfaces: Vec<u32>,
    settings: SessionSettings,
}

/// Makes the plan of a session.
///
/// # Safety
/// Texts of the options are null, or live for the call.
pub(crate) unsafe fn plan(
    bytes: &[u8],
    names: Vec<String>,
    options: Option<&SessionRequest>,
) -> Result<SessionPlan, CallFailure> {
    let object = parse(bytes)?;
    let index = |name: &String| interface_index(name).map_err(argument);
    let interfaces = names.iter().map(index).collect::<Result<Vec<_>, _>>()?;
    let default = || default_pins(Path::new(DEFAULT_PINS), &names.join("+"));
    let mut plan =
        SessionPlan { object, program: None, interfaces, settings: SessionSettings::new(default()) };
    let Some(options) = options else { return Ok(plan) };
    // SAFETY: the caller's promise.
    let (program, pins) = unsafe { (boundary::text(options.program)?, boundary::text(options.pins)?) };
    plan.program = program.map(str::to_owned);
    let settings = &mut plan.settings;
    if let Some(pins) = pins {
        settings.pins = PathBuf::from(pins);
    }
    settings.egress = options.egress != 0;
    if options.generic != 0 {
        settings.mode = XdpMode::Generic;
    }
    if options.milliseconds > 0 {
        settings.pace.interval = Duration::from_millis(options.milliseconds.max(10).into());
    }
    settings.which = match options.adopt {
        0 | 1 => AdoptionScope::Same,
        2 => AdoptionScope::Any,
        other => return Err(argument(format!("there is no kind of adoption {other}"))),
    };
    if options.adopt != 0 {
        settings.adopt.clone_from(&plan.interfaces);
    }
    Ok(plan)
}

/// The most reports that are kept for a caller who does not take them; then the oldest go.
const MOST_REPORTS: usize = 1024;

/// Reports that nobody has taken, and the descriptor that is readable while there is something to take.
#[derive(Debug)]
struct ReportQueue {
    reports: VecDeque<String>,
    /// The end of the session, once it has ended by itself.
    end: Option<CallFailure>,
    wake: File,
}

impl ReportQueue {
    fn new() -> Result<ReportQueue, CallFailure> {
        // SAFETY: no memory is passed.
        let fd = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) };
        if fd < 0 {
            let error = std::io::Error::last_os_error();
            return Err(CallFailure::new(FailureCode::Unsupported, format!("eventfd: {error}")));
        }
        // SAFETY: the kernel has just made it for us.
        let wake = unsafe { File::from_raw_fd(fd) };
        Ok(ReportQueue { reports: VecDeque::new(), end: None, wake })
    }

    fn push(&mut self, report: String) {
        if self.reports.len() == MOST_REPORTS {
            self.reports.pop_front();
        }
        self.reports.push_back(report);
        self.signal();
    }

    fn finish(&mut self, end: CallFailure) {
        self.end = Some(end);
        self.signal();
    }

    fn signal(&mut self) {
        // It cannot be full: it is emptied with the queue.
        let _ = self.wake.write_all(&1u64.to_ne_bytes());
    }

    fn take(&mut self) -> Result<String, CallFailure> {
        let report = self.reports.pop_front();
        if self.reports.is_empty() && self.end.is_none() {
            let _ = self.wake.read(&mut [0; 8]);
        }
        let none = || CallFailure::new(FailureCode::No, "no report is there");
        report.ok_or_else(|| self.end.clone().unwrap_or_else(none))
    }
}

/// State that a session's thread shares with the handle.
#[derive(Debug)]
struct SharedSession {
    queue: Mutex<ReportQueue>,
    stop: AtomicBool,
    keep: AtomicBool,
}

impl SharedSession {
    fn with_queue<T>(&self, act: impl FnOnce(&mut ReportQueue) -> T) -> T {
        act(&mut self.queue.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// A session: `struct millstream_session`.
#[derive(Debug)]
pub struct SessionHandle {
    shared: Arc<SharedSession>,
    descriptor: RawFd,
    thread: JoinHandle<Result<(), CallFailure>>,
}

impl SessionHandle {
    /// Starts a session; returns when the program is attached.
    pub(crate) fn start(plan: SessionPlan) -> Result<SessionHandle, CallFailure> {
        let queue = ReportQueue::new()?;
        let descriptor = queue.wake.as_raw_fd();
        let (stop, keep) = (AtomicBool::new(false), AtomicBool::new(false));
        let shared = Arc::new(SharedSession { queue: Mutex::new(queue), stop, keep });
        let (attached, is_attached) = std::sync::mpsc::channel();
        let of_thread = Arc::clone(&shared);
        let work = move || {
            let run = || specialize(plan, &of_thread, &mut || attached.send(()).unwrap_or_default());
            let end = catch_unwind(AssertUnwindSafe(run)).unwrap_or_else(|panic| Err(of_panic(&*panic)));
            let ended = CallFailure::new(FailureCode::No, "the session was stopped");
            of_thread.with_queue(|queue| queue.finish(end.clone().err().unwrap_or(ended)));
            end
        };
        let builder = std::thread::Builder::new().name("millstream".into());
        let thread = builder
            .stack_size(millstream_threads::STACK)
            .spawn(work)
            .map_err(|e| CallFailure::new(FailureCode::Unsupported, format!("no thread to be had: {e}")))?;
        let handle = SessionHandle { shared, descriptor, thread };
        match is_attached.recv() {
            Ok(()) => Ok(handle),
            // The thread has ended before the program was attached.
            Err(_) => Err(handle.join().err().unwrap_or_else(|| argument("the session has ended at once"))),
        }
    }

    /// The descriptor to poll.
    pub(crate) fn descriptor(&self) -> RawFd {
        self.descriptor
    }

    /// The next report, as a line of JSON.
    pub(crate) fn next(&self) -> Result<String, CallFailure> {
        self.shared.with_queue(ReportQueue::take)
    }

    /// Ends the session.
    pub(crate) fn stop(self, keep: bool) -> Result<(), CallFailure> {
        self.shared.keep.store(keep, Ordering::Relaxed);
        self.shared.stop.store(true, Ordering::Release);
        self.join()
    }

    fn join(self) -> Result<(), CallFailure> {
        self.thread.join().unwrap_or_else(|panic| Err(of_panic(&*panic)))
    }
}

/// The session, from the object to the end.
fn specialize(
    plan: SessionPlan,
    shared: &SharedSession,
    attached: &mut dyn FnMut(),
) -> Result<(), CallFailure> {
    let SessionPlan { mut object, program, interfaces, settings } = plan;
    let program = program.as_deref();
    if !settings.adopt.is_empty() {
        adopt::fit(&mut object, program, &interfaces, settings.egress, &settings.pins).map_err(failure)?;
    }
    let compiler = variant_compiler(&object, program).map_err(argument)?;
    let mut live = LiveSession::load(&compiler, settings).map_err(failure)?;
    let tell = |report: &millstream::specialize::SessionReport| {
        shared.with_queue(|queue| queue.push(report.json()));
    };
    tell(&live.attach(&interfaces).map_err(failure)?);
    attached();
    live.run(&shared.stop, &mut |report| tell(report)).map_err(failure)?;
    let leave = match shared.keep.load(Ordering::Relaxed) {
        true => DetachPolicy::Original,
        false => DetachPolicy::Restored,
    };
    tell(&live.finish(leave).map_err(failure)?);
    Ok(())
}

/// The failure that an error of a session is.
fn failure(error: LiveError) -> CallFailure {
    let refused = |kernel: &KernelError| matches!(kernel.errno(), Some(libc::EPERM | libc::EOPNOTSUPP));
    let code = match &error {
        LiveError::Kernel(kernel) if refused(kernel) => FailureCode::Unsupported,
        LiveError::Guard(_) | LiveError::Uncounted(_) => FailureCode::Unsupported,
        _ => FailureCode::Input,
    };
    CallFailure::new(code, error)
}

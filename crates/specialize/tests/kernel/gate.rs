//! Holds a session at a step until other events have happened; and a writer inside bpf(2), before the kernel
//! applies its write.
//!
//! A session begins again, perhaps without the step that a test waits for, when another process loads a program
//! at the wrong moment: it may write any table. [`repeated`] repeats a test to which that happens.
#![allow(unsafe_code)]

use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

use millstream_specialize::live::step::{SessionStep, StepCallback};

/// Timeout for a step.
const LONGEST: Duration = Duration::from_secs(30);

/// Runs of a test whose session does not reach a step.
const RUNS: usize = 4;

/// Payload of a panic: a session did not reach a step in time.
struct NotReached;

/// Runs a test until its session reaches all steps that the test waits for, four times at most. Any other
/// failure ends it at once.
pub(crate) fn repeated(test: impl Fn()) {
    for _ in 1..RUNS {
        match std::panic::catch_unwind(std::panic::AssertUnwindSafe(&test)) {
            Ok(()) => return,
            Err(panic) if panic.is::<NotReached>() => {}
            Err(panic) => std::panic::resume_unwind(panic),
        }
    }
    test();
}

/// Ends this run of a test, which may be repeated.
fn not_reached(step: Option<SessionStep>) -> ! {
    eprintln!("no session reached {step:?} in {LONGEST:?}");
    std::panic::panic_any(NotReached)
}

#[derive(Default)]
struct State {
    wanted: Option<SessionStep>,
    /// True if a session is held.
    held: bool,
    /// Number of times that a held session was released.
    turn: u64,
    /// Steps reached so far, and how often.
    seen: Vec<(SessionStep, usize)>,
}

/// Holds a session at a given step.
#[derive(Default)]
pub(crate) struct Gate(Arc<(Mutex<State>, Condvar)>);

impl Gate {
    /// Will hold the first session that reaches this step.
    pub(crate) fn at(step: SessionStep) -> Gate {
        let gate = Gate::default();
        gate.0.0.lock().expect("no panic").wanted = Some(step);
        gate
    }

    /// The callback for a session's steps.
    pub(crate) fn steps(&self) -> StepCallback {
        let shared = Arc::clone(&self.0);
        StepCallback::new(move |step| {
            let (state, changed) = &*shared;
            let mut state = state.lock().expect("no panic");
            match state.seen.iter_mut().find(|(seen, _)| *seen == step) {
                Some((_, times)) => *times += 1,
                None => state.seen.push((step, 1)),
            }
            changed.notify_all();
            if state.wanted == Some(step) && !state.held {
                state.held = true;
                changed.notify_all();
                let turn = state.turn;
                drop(changed.wait_while(state, |state| state.turn == turn).expect("no panic"));
            }
        })
    }

    /// Waits until somebody is held.
    pub(crate) fn wait(&self) {
        let (state, changed) = &*self.0;
        let state = state.lock().expect("no panic");
        let (state, _) = changed.wait_timeout_while(state, LONGEST, |state| !state.held).expect("no panic");
        let (held, wanted) = (state.held, state.wanted);
        drop(state);
        if !held {
            not_reached(wanted);
        }
    }

    /// Releases the session that is held; will hold the next one that reaches this step.
    pub(crate) fn next(&self, step: SessionStep) {
        self.turn(Some(step));
    }

    /// Runs `act`, and waits until a session has reached the step after that.
    pub(crate) fn until_seen(&self, step: SessionStep, act: impl FnOnce()) {
        let times = |state: &State| state.seen.iter().find(|(seen, _)| *seen == step).map_or(0, |(_, n)| *n);
        let (state, changed) = &*self.0;
        let before = times(&state.lock().expect("no panic"));
        act();
        let state = state.lock().expect("no panic");
        let (state, _) =
            changed.wait_timeout_while(state, LONGEST, |state| times(state) == before).expect("no panic");
        let is_seen = times(&state) > before;
        drop(state);
        if !is_seen {
            not_reached(Some(step));
        }
    }

    /// Releases the session that is held, and waits until one is held at this step.
    pub(crate) fn on_to(&self, step: SessionStep) {
        self.turn(Some(step));
        self.wait();
    }

    /// Releases the session that is held, and holds none any more.
    pub(crate) fn open(&self) {
        self.turn(None);
    }

    fn turn(&self, wanted: Option<SessionStep>) {
        let (state, changed) = &*self.0;
        let mut state = state.lock().expect("no panic");
        (state.wanted, state.held, state.turn) = (wanted, false, state.turn + 1);
        changed.notify_all();
    }
}

/// Opens a gate at the end, also after a panic: sessions end then.
pub(crate) struct Opened<'g>(pub(crate) &'g Gate);

impl Drop for Opened<'_> {
    fn drop(&mut self) {
        self.0.open();
    }
}

const UFFDIO_API: libc::c_ulong = 0xc018_aa3f;
const UFFDIO_REGISTER: libc::c_ulong = 0xc020_aa00;
const UFFDIO_COPY: libc::c_ulong = 0xc028_aa03;
const PAGE: usize = 4096;

/// A page that is not present yet: readers wait, in the kernel too, until it gets its contents.
pub(crate) struct Absent {
    handler: OwnedFd,
    page: *mut libc::c_void,
}

// SAFETY: the page belongs to it until it is dropped; no method reads or writes the page but by the kernel.
unsafe impl Sync for Absent {}

impl Absent {
    pub(crate) fn new() -> Absent {
        // SAFETY: gives a descriptor, or an error.
        let handler = unsafe { libc::syscall(libc::SYS_userfaultfd, libc::O_CLOEXEC) };
        assert!(handler >= 0, "{}", std::io::Error::last_os_error());
        // SAFETY: the kernel has just made it, for us.
        let handler = unsafe { OwnedFd::from_raw_fd(handler as i32) };
        // SAFETY: a fresh private page.
        let page = unsafe {
            let protection = libc::PROT_READ | libc::PROT_WRITE;
            libc::mmap(std::ptr::null_mut(), PAGE, protection, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS, -1, 0)
        };
        assert_ne!(page, libc::MAP_FAILED);
        let absent = Absent { handler, page };
        absent.ask(UFFDIO_API, &mut [0xaa, 0, 0]);
        absent.ask(UFFDIO_REGISTER, &mut [page as u64, PAGE as u64, 1, 0]);
        absent
    }

    /// Address of the page.
    pub(crate) fn address(&self) -> u64 {
        self.page as u64
    }

    /// Fills the page: readers continue.
    pub(crate) fn fill(&self, bytes: &[u8]) {
        let mut contents = [0u64; PAGE / 8];
        for (word, part) in contents.iter_mut().zip(bytes.chunks(8)) {
            let mut padded = [0; 8];
            padded[..part.len()].copy_from_slice(part);
            *word = u64::from_ne_bytes(padded);
        }
        self.ask(UFFDIO_COPY, &mut [self.page as u64, contents.as_ptr() as u64, PAGE as u64, 0, 0]);
    }

    fn ask(&self, request: libc::c_ulong, argument: &mut [u64]) {
        // SAFETY: the argument is as large as the request says, and what it points to outlives the call.
        let done = unsafe { libc::ioctl(self.handler.as_raw_fd(), request, argument.as_mut_ptr()) };
        assert_eq!(done, 0, "{}", std::io::Error::last_os_error());
    }
}

impl Drop for Absent {
    fn drop(&mut self) {
        // SAFETY: the page is ours.
        unsafe { libc::munmap(self.page, PAGE) };
    }
}

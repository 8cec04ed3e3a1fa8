//! The guard: every control-plane write to a watched map revokes specialised code before the kernel applies
//! it.
//!
//! Its programs (`programs/guard/guard.bpf.c`) run at entry to and return from bpf(2), or, where the kernel does
//! not permit that, of every system call ([`GuardHook`]). Their state is one memory-mapped value. Specialised
//! code reads its [`TOKEN`]: if that is not of its own generation, the original code runs. A write replaces the
//! token by one of no generation.
//!
//! # One map alone
//!
//! A map whose contents are in specialised code only behind the code's own check of a bit of the token
//! ([`DeoptMask`]) does not stop all of it: a write sets that bit, *behind*, and the code looks this map up
//! itself, until a look at the map has cleared the bit again. The set of these maps is a property of the
//! generation, so the daemon records it with the generation's number, the map's *mark*.
//!
//! # What closes which race
//!
//! *Snapshot.* A [`GuardSnapshot`] is begun by setting, in the token, all bits that say *unwritten*, one for
//! each slot and one for everything else, and then finding no writer inside ([`Guard::begin`]); it approves a
//! generation by exchanging the token ([`Guard::approve`]), whatever else is in it, as long as these bits are
//! still set. Writers count themselves in before they clear the bit, or replace the token, and out when they
//! return. So a writer that did that before the bits were set has either returned (its write is in the
//! tables) or is seen inside; one that does it later is seen by the exchange, or undoes it. A map whose own
//! bit was cleared comes out of the exchange behind, if the new generation can do without it; if not, the
//! exchange fails. Only the daemon sets these bits, and only the latest look counts.
//!
//! *The mark is read, then another generation is approved, then the bit is set.* The new generation may have
//! tables in code that the old one looked up. The writer exchanges the token it saw for the new one, and only
//! if its generation is the mark's; otherwise it replaces it. The mark, one word, has both.
//!
//! *The token is of no generation when the map is written.* Then the mark alone decides that only the map's
//! bits change: an approval that comes later finds the map written, and knows the maps that the generation
//! can do without. So writes to routes do not keep a revoked generation from coming back.
//!
//! *A packet reads the token, then the map is written.* The bits that it has read hold for all of it: it sees
//! one state of the maps that are not behind, that of the moment at which it read the token. A map that was
//! behind it looks up later, and may find newer contents; so it reads the token again after that, and
//! continues in the original's code if anything in it has changed (`transform::partial_deopt`). No table is
//! seen as it was before a write that another, looked at earlier, shows.
//!
//! *Contents of a map that stays behind, as read by the daemon,* are not lost: the keys written are
//! remembered until an approval that finds the map unwritten (`live::write_response`).
//!
//! *Writers that were inside when the guard was attached* revoke when they return: before their caller goes
//! on. At bpf(2) itself a return runs no hook if its entry did not: there the guard waits, before it works, until
//! every thread has been outside of bpf(2). If one stays, or the kernel could miss calls, it takes the other hook
//! (`bpf_callers`).
//!
//! *Unresolved calls* (attribute not readable, descriptor free) count for all maps, and so do those that may
//! write through others: a SYSCALL program run, a map of maps changed. If another thread exchanges the
//! descriptor between the hook and the kernel's look-up, the return finds another map than the entry and
//! revokes. Not seen: a descriptor or attribute that is exchanged and put back within one call, which takes a
//! process that wants to deceive and has the right to write the map anyway.
//!
//! *Somebody new may write.* That is counted before the call that brings him is applied, and checked after it
//! has returned: a look waits for the call first ([`Guard::strangers`], `live::write_response`).
//!
//! *Keys.* The event of a write to one element has its key; the return reads the key once more, and if it is
//! another now, any may have been written. So a reader that keeps up with a map reads only the keys that were
//! written.
//!
//! *A kernel without atomic exchanges* (before 5.12) runs the plain programs of the guard: a write revokes
//! all, whatever the marks say, by a store that no exchange of ours can undo ([`Guard::approve`] compares the
//! whole token). Commands of a newer kernel whose effects are unknown count as writes to all maps and as
//! somebody new.
//!
//! *Death of the daemon.* The links are pinned before the first variant runs ([`Guard::pin`]), so the guard
//! goes on revoking: specialised code runs until the first write, then the original code, for ever.
//!
//! Invariant: a generation is approved only by the snapshot from which it was made, or that was found equal
//! to it.

use std::os::fd::AsFd;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use millstream_kernel::{ArrayMapping, KernelMap, Link, LoadError, RingBuffer, UpdateMode, probe};
use millstream_lab::os::monotonic_ns;
use millstream_loader::{ObjectLoader, ProgramError};
use millstream_object::Object;
use millstream_programs::GUARD;
use millstream_specializer::guard_state::{
    ALL_UNWRITTEN, CHAINED, DeoptMask, FIRST_MAP, KEY_SIZES, LATE, LOOK, MAPS, MARKS, MISSED, REVOKED,
    SESSION_PROCESS, SESSION_START, SESSION_THREAD, STANDBY, STRANGERS, STRAYS, TOKEN, UNSENT, VERSION,
    first_packet,
};

use crate::bpf_callers;

/// Attempts to find no writer before the thread sleeps instead of yielding.
const SHORTLY: u32 = 20;
/// Time for which a writer of a map that can be spared is waited for.
const SHORT: Duration = Duration::from_micros(200);
/// Time for which a record of the ring can be under way: the kernel's side of it takes less than a
/// microsecond, but its processor may be taken away.
const LONGEST_RECORD: Duration = Duration::from_secs(1);
/// Names of the pins of attachments at returns and entries; of bpf(2) of 32-bit callers, too.
const EXIT: &str = "guard_exit";
const ENTER: &str = "guard_enter";
const EXIT_32: &str = "guard_exit32";
const ENTER_32: &str = "guard_enter32";
/// The program that finds threads inside bpf(2).
const THREADS: &str = "guard_threads";
/// The names of all pins of a guard.
pub(crate) const PINS: [&str; 4] = [ENTER, ENTER_32, EXIT, EXIT_32];
/// Variable that chooses the guard's attach point, for tests: `calls` or `system-calls`.
pub const HOOK_VARIABLE: &str = "MILLSTREAM_GUARD";
/// Time within which threads must have been seen outside of bpf(2).
const PATIENCE: Duration = Duration::from_millis(300);
/// The name of maps of maps that a session fills for itself (`GUARD_SHADOW`).
pub(crate) const SHADOW: &str = "ms.shadow";
/// Maps that can be watched in all.
const INNER: u32 = 1024;
/// The largest key that events contain.
const KEY: u32 = 32;

/// Reason why the guard could not be loaded, or no longer works.
#[derive(Debug, thiserror::Error)]
pub enum GuardError {
    /// The kernel refused something.
    #[error("guard: {0}")]
    Kernel(#[from] millstream_kernel::KernelError),
    /// The guard's object was not accepted.
    #[error("guard: {0}")]
    Load(#[from] millstream_loader::Error),
    /// One of its programs was not accepted.
    #[error("guard: {0}")]
    Program(#[from] ProgramError),
    /// The object does not match this build.
    #[error("guard: the object lacks {0}")]
    Lacks(&'static str),
    /// There are more maps than the guard can watch.
    #[error("guard: it can watch {} maps, and {INNER} with the inner ones", MAPS - 1)]
    TooMany,
    /// A thread may have been inside bpf(2) all the time, so that a guard there would not see what it writes.
    #[error("guard: a thread may be inside bpf(2) since before it was attached")]
    Inside,
    /// Threads may be preempted inside the guard, which then misses calls of others.
    #[error(
        "guard: this kernel preempts threads inside of itself, or does not say that it does not, so that a guard at \
         bpf(2) would miss calls"
    )]
    Preemptible,
    /// The name of an attach point is not known.
    #[error("guard: {HOOK_VARIABLE}={0}: there are calls, system-calls")]
    NoHook(String),
    /// A file of /proc cannot be read, or has an unexpected form.
    #[error("guard: reading {path}: {source}")]
    Read {
        /// The file.
        path: &'static str,
        /// The error.
        source: std::io::Error,
    },
}

impl GuardError {
    /// Returns true if the kernel refuses it to this process, so that its abilities stay unknown.
    pub fn is_forbidden(&self) -> bool {
        let of_program = |error: &ProgramError| match error {
            ProgramError::Load(LoadError::Refused(e)) => e.errno(),
            _ => None,
        };
        let errno = match self {
            GuardError::Kernel(e) | GuardError::Load(millstream_loader::Error::Kernel(e)) => e.errno(),
            GuardError::Load(millstream_loader::Error::Program { source, .. }) => of_program(source),
            GuardError::Program(e) => of_program(e),
            _ => None,
        };
        matches!(errno, Some(libc::EPERM | libc::EACCES))
    }
}

/// An event of a watched map, sent before the kernel applies it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct GuardEvent {
    /// Nanoseconds of the monotonic clock.
    pub time: u64,
    /// The version after it.
    pub version: u64,
    /// Its kind.
    pub kind: EventKind,
    /// For a write, the only key that it may change; `None` if it may change any.
    pub key: Option<Vec<u8>>,
}

/// Kinds of events.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum EventKind {
    /// A write to the map of this index.
    Write(u32),
    /// A call that may write any map.
    Any,
    /// As `Any`, and somebody new may be able to write once it has returned: check the holders again then.
    Foreign,
}

impl GuardEvent {
    fn parse(bytes: &[u8]) -> Option<GuardEvent> {
        let word = |at: usize| Some(u64::from_ne_bytes(bytes.get(at..at + 8)?.try_into().ok()?));
        let half = |at: usize| Some(u32::from_ne_bytes(bytes.get(at..at + 4)?.try_into().ok()?));
        let kind = match half(20)? {
            0 => EventKind::Write(half(16)?),
            1 => EventKind::Any,
            _ => EventKind::Foreign,
        };
        let key = match half(24)? as usize {
            0 => None,
            size => Some(bytes.get(32..32 + size)?.to_vec()),
        };
        Some(GuardEvent { time: word(0)?, version: word(8)?, kind, key })
    }
}

/// Counts of calls that were noticed late: each was bumped, after the write and before its caller went on.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, serde::Serialize)]
pub struct LateCallStats {
    /// Calls that were inside when the guard was attached.
    pub strays: u64,
    /// Calls whose target changed between entry and return.
    pub late: u64,
    /// Events that did not fit the ring.
    pub unsent: u64,
}

/// The guard in the kernel. Dropped, it is detached, unless its links are pinned.
#[derive(Debug)]
pub struct Guard {
    state: KernelMap,
    memory: Arc<ArrayMapping>,
    watched: KernelMap,
    watched_count: u32,
    events: RingBuffer,
    programs: Vec<u32>,
    hook: GuardHook,
    /// Attachments by the names of their pins, returns before entries.
    links: Vec<(&'static str, Link)>,
    /// Looks that were begun.
    looks: AtomicU64,
    /// Events that were taken from the ring.
    heard: u64,
    /// Bumps that were our own.
    revoked: AtomicU64,
}

/// Attach point of a guard's programs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum GuardHook {
    /// The entry and the return of bpf(2): other system calls cost nothing.
    Calls,
    /// The entry and the return of every system call.
    SystemCalls,
}

impl GuardHook {
    /// Programs at the returns and the entries, by the names of their pins.
    fn programs(self, atomic: bool) -> &'static [(&'static str, &'static str)] {
        match (self, atomic) {
            (GuardHook::SystemCalls, true) => &[(EXIT, "guard_exit"), (ENTER, "guard_enter")],
            (GuardHook::SystemCalls, false) => &[(EXIT, "guard_exit_plain"), (ENTER, "guard_enter_plain")],
            (GuardHook::Calls, true) => &[
                (EXIT, "guard_return"),
                (EXIT_32, "guard_return32"),
                (ENTER, "guard_call"),
                (ENTER_32, "guard_call32"),
            ],
            (GuardHook::Calls, false) => &[
                (EXIT, "guard_return_plain"),
                (EXIT_32, "guard_return32_plain"),
                (ENTER, "guard_call_plain"),
                (ENTER_32, "guard_call32_plain"),
            ],
        }
    }
}

impl std::fmt::Display for GuardHook {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            GuardHook::Calls => "at bpf(2) (fentry)",
            GuardHook::SystemCalls => "at every system call (tracepoints)",
        })
    }
}

impl std::str::FromStr for GuardHook {
    type Err = GuardError;

    fn from_str(text: &str) -> Result<GuardHook, GuardError> {
        match text {
            "calls" => Ok(GuardHook::Calls),
            "system-calls" => Ok(GuardHook::SystemCalls),
            _ => Err(GuardError::NoHook(text.to_owned())),
        }
    }
}

impl Guard {
    /// Loads the guard and attaches it: at bpf(2) if the kernel permits that, else at every system call; where
    /// [`HOOK_VARIABLE`] says, if it is set. It watches nothing yet.
    ///
    /// # Errors
    /// Errors of the kernel: BPF or tracing not permitted, no BTF.
    pub fn attach() -> Result<Guard, GuardError> {
        let atomic = probe::fetching_atomics().is_yes();
        if let Ok(name) = std::env::var(HOOK_VARIABLE) {
            return Guard::attach_at(name.parse()?, atomic);
        }
        match Guard::attach_at(GuardHook::Calls, atomic) {
            Ok(guard) => Ok(guard),
            Err(why) => {
                tracing::debug!("the guard is attached to every system call: {why}");
                Guard::attach_at(GuardHook::SystemCalls, atomic)
            }
        }
    }

    /// Attaches the guard at this attach point: by the programs for kernels with atomic exchanges, or by those for
    /// kernels without, with which each write revokes all.
    ///
    /// # Errors
    /// As for [`Guard::attach`], and [`GuardError::Inside`] at bpf(2) if a thread may be inside and stays there.
    pub fn attach_at(hook: GuardHook, atomic: bool) -> Result<Guard, GuardError> {
        if hook == GuardHook::Calls && bpf_callers::may_preempt() {
            return Err(GuardError::Preemptible);
        }
        let object = Object::parse(GUARD.name, GUARD.object).map_err(millstream_loader::Error::from)?;
        let unreadable = |path| move |source| GuardError::Read { path, source };
        let mut wanted = hook.programs(atomic).to_vec();
        if hook == GuardHook::Calls
            && !bpf_callers::has_32_bit_calls().map_err(unreadable("/proc/kallsyms"))?
        {
            wanted.retain(|(pin, _)| !matches!(*pin, EXIT_32 | ENTER_32));
        }
        let mut loader = ObjectLoader::new(&object);
        for (_, program) in &wanted {
            loader = loader.only(program)?;
        }
        if hook == GuardHook::Calls {
            loader = loader.only(THREADS)?;
        }
        let loaded = loader.load()?;
        let map = |name: &'static str| {
            let found = loaded.session.map_by_name(name).ok_or(GuardError::Lacks(name))?;
            Ok::<_, GuardError>(found.try_clone()?)
        };
        let program = |name: &'static str| loaded.program(name).ok_or(GuardError::Lacks(name));
        let state = map("guard")?;
        let memory = Arc::new(state.mmap(true)?);
        memory.atomic_u64(TOKEN as usize).store(REVOKED, Ordering::SeqCst);
        memory.atomic_u64(STANDBY as usize).store(REVOKED, Ordering::SeqCst);
        // The returns first: a call that is counted in must be counted out.
        let (mut links, mut programs) = (Vec::new(), Vec::new());
        for (pin, name) in wanted {
            let program = program(name)?;
            programs.push(program.id()?);
            links.push((pin, Link::attach_tracing(program)?));
        }
        if hook == GuardHook::Calls {
            let threads = Link::attach_iterator(program(THREADS)?)?;
            let all = bpf_callers::all_are_seen().map_err(unreadable("/proc/self/ns/pid"))?;
            if !all || !bpf_callers::have_left(&threads, PATIENCE)? {
                return Err(GuardError::Inside);
            }
        }
        let guard = Guard {
            hook,
            links,
            memory,
            watched: map("watched")?,
            watched_count: 0,
            events: map("events")?.ring_buffer()?,
            programs,
            state,
            looks: AtomicU64::new(0),
            heard: 0,
            revoked: AtomicU64::new(0),
        };
        guard.belong_to_this_thread()?;
        Ok(guard)
    }

    /// From now on, programs that the calling thread loads are the session's own, and all others are foreign,
    /// those of other threads of this process too: they may have sessions with the same maps.
    ///
    /// # Errors
    /// If /proc does not identify the thread.
    pub fn belong_to_this_thread(&self) -> Result<(), GuardError> {
        self.owner().is_this_thread()
    }

    /// Handle by which another thread can become the one that loads the session's programs.
    pub(crate) fn owner(&self) -> OwnerThread {
        OwnerThread(Arc::clone(&self.memory))
    }

    /// Its attach point.
    pub fn hook(&self) -> GuardHook {
        self.hook
    }

    /// The map whose value specialised code reads.
    pub fn state(&self) -> &KernelMap {
        &self.state
    }

    /// Ids of the guard's own programs.
    pub fn programs(&self) -> &[u32] {
        &self.programs
    }

    /// Watches a map from now on; returns its index.
    ///
    /// # Errors
    /// If there are too many, or the kernel refuses.
    pub fn watch(&mut self, map: &KernelMap) -> Result<u32, GuardError> {
        let index = self.reserve(map.info().key_size)?;
        self.watch_as(map.id(), index)?;
        Ok(index)
    }

    /// Reserves an index for maps with keys of this size.
    ///
    /// # Errors
    /// If there are too many.
    pub fn reserve(&mut self, key_size: u32) -> Result<u32, GuardError> {
        let index = self.watched_count + 1;
        if index >= MAPS {
            return Err(GuardError::TooMany);
        }
        let told = if key_size <= KEY { key_size } else { 0 };
        self.memory.atomic_u32(KEY_SIZES + 4 * index as usize).store(told, Ordering::SeqCst);
        self.watched_count = index;
        Ok(index)
    }

    /// Watches a map by its id from now on, under an index that others may have as well. A map that is
    /// watched keeps its index.
    ///
    /// # Errors
    /// If there are too many, or the kernel refuses.
    pub fn watch_as(&mut self, id: u32, index: u32) -> Result<(), GuardError> {
        match self.watched.update(&id.to_ne_bytes(), &index.to_ne_bytes(), UpdateMode::NoExist) {
            Err(e) if e.errno() == Some(libc::EEXIST) => {}
            Err(e) if e.errno() == Some(libc::E2BIG) => return Err(GuardError::TooMany),
            done => done?,
        }
        // Writers that entered before this are unwatched: no earlier snapshot may be approved afterwards.
        self.revoke();
        Ok(())
    }

    /// Stops watching a map of this index.
    ///
    /// # Errors
    /// Errors of the kernel.
    pub fn forget(&mut self, id: u32, index: u32) -> Result<(), GuardError> {
        if self.watched.lookup(&id.to_ne_bytes())? == Some(index.to_ne_bytes().to_vec()) {
            self.watched.delete(&id.to_ne_bytes())?;
        }
        Ok(())
    }

    /// Waits for an event, or the end of the time.
    ///
    /// # Errors
    /// Errors of the kernel.
    pub fn wait(&self, timeout: Duration) -> Result<bool, GuardError> {
        Ok(self.events.wait(timeout)?)
    }

    /// Returns the events since the last call: all those whose calls have returned by now, except lost ones.
    ///
    /// The ring returns records in the order in which they were begun, and none behind one that is still
    /// being written: a finished write may wait behind one that goes on, of a map that no look waits for. So
    /// there must be as many as there were bumps.
    pub fn events(&mut self) -> Vec<GuardEvent> {
        let told = self.version().saturating_sub(self.revoked.load(Ordering::SeqCst));
        let (start, mut events) = (Instant::now(), Vec::new());
        loop {
            let heard = &mut self.heard;
            self.events.drain(|bytes| {
                *heard += 1;
                events.extend(GuardEvent::parse(bytes));
            });
            let missing = told.saturating_sub(self.heard + self.noticed().unsent);
            if missing == 0 {
                return events;
            }
            if start.elapsed() > LONGEST_RECORD {
                // Taken for lost: it may have been of any map.
                self.heard += missing;
                let (time, version) = (monotonic_ns(), self.version());
                events.push(GuardEvent { time, version, kind: EventKind::Any, key: None });
                return events;
            }
            std::thread::yield_now();
        }
    }

    /// Number of times that somebody new may have come who writes watched maps. Those whose events were lost
    /// count, too.
    pub fn strangers(&self) -> u64 {
        self.memory.atomic_u64(STRANGERS).load(Ordering::SeqCst)
    }

    /// Number of writes so far.
    pub fn version(&self) -> u64 {
        self.memory.atomic_u64(VERSION as usize).load(Ordering::SeqCst)
    }

    /// Notes that program arrays match their placeholders, as of this number of writes. That is true until
    /// the next write if the number was taken before a [look](Guard::begin), and the arrays were read after
    /// it had begun: a writer that counts itself in earlier has returned by then.
    pub fn chain(&self, version: u64) {
        self.memory.atomic_u64(CHAINED as usize).store(version, Ordering::SeqCst);
    }

    /// Stops all specialised code at once.
    pub fn revoke(&self) {
        let version = self.memory.atomic_u64(VERSION as usize).fetch_add(1, Ordering::SeqCst) + 1;
        self.revoked.fetch_add(1, Ordering::SeqCst);
        self.token().store(REVOKED | (version << 32 & (REVOKED - 1)), Ordering::SeqCst);
    }

    /// The token by which specialised code may run now, with the bits of maps that are behind.
    pub fn approved(&self) -> Option<u64> {
        let token = self.token().load(Ordering::SeqCst) & !LOOK;
        (token & REVOKED == 0).then_some(token)
    }

    /// Counts of calls that were noticed late.
    pub fn noticed(&self) -> LateCallStats {
        let get = |at| self.memory.atomic_u64(at).load(Ordering::Relaxed);
        LateCallStats { strays: get(STRAYS), late: get(LATE), unsent: get(UNSENT) }
    }

    /// Waits until no writer is inside, and begins a snapshot; `None` if one stays inside for longer than
    /// `patience`. For the maps of `spared`, by index and slot, writers are waited for only shortly: those
    /// with one inside will be behind.
    pub fn begin(&self, patience: Duration, spared: &[(u32, DeoptMask)]) -> Option<GuardSnapshot> {
        let start = Instant::now();
        let number = self.looks.fetch_add(1, Ordering::SeqCst) + 1;
        let mut tries = 0u32;
        loop {
            self.token().fetch_or(LOOK, Ordering::SeqCst);
            let mut busy = DeoptMask::NONE;
            let is_late = tries > SHORTLY || start.elapsed() > SHORT;
            let quiet = (0..=self.watched_count).all(|map| {
                let is_quiet = self.quiet(map);
                let spared = spared.iter().find(|(index, _)| *index == map && is_late);
                if let (false, Some((_, slot))) = (is_quiet, spared) {
                    busy = busy.and(*slot);
                }
                is_quiet || spared.is_some()
            });
            if quiet {
                return Some(GuardSnapshot { number, busy });
            }
            if start.elapsed() > patience {
                return None;
            }
            // A single write takes microseconds, a batch or the load of a program milliseconds.
            if tries > SHORTLY {
                std::thread::sleep(Duration::from_micros(50));
            } else {
                std::thread::yield_now();
            }
            tries += 1;
        }
    }

    /// Returns true if nothing has changed since the look began: the contents that were read are current.
    pub fn holds(&self, snapshot: &GuardSnapshot) -> bool {
        // A writer that came after the beginning has cleared a bit before it wrote.
        self.is_latest(snapshot)
            && snapshot.busy.is_empty()
            && self.token().load(Ordering::SeqCst) & LOOK == LOOK
    }

    fn is_latest(&self, snapshot: &GuardSnapshot) -> bool {
        self.looks.load(Ordering::SeqCst) == snapshot.number
    }

    /// Lets a generation run that was made from the contents that were read, until the next write; a
    /// generation that was approved before stops. Fails, and changes nothing, if the look no longer holds.
    ///
    /// Maps that the generation can do without may have been written meanwhile: these are behind then.
    /// Returns all maps that are behind, among them those of `behind`.
    pub fn approve(
        &self,
        snapshot: GuardSnapshot,
        token: u64,
        spared: DeoptMask,
        behind: DeoptMask,
    ) -> Option<DeoptMask> {
        if !self.is_latest(&snapshot) {
            return None;
        }
        let behind = behind.and(snapshot.busy);
        loop {
            let now = self.token().load(Ordering::SeqCst);
            let written = DeoptMask::written(now);
            let behind = behind.and(written);
            if now & ALL_UNWRITTEN == 0 || !spared.has(behind) {
                return None;
            }
            let new = token | behind.behind();
            if self.token().compare_exchange(now, new, Ordering::SeqCst, Ordering::SeqCst).is_ok() {
                return Some(behind);
            }
        }
    }

    /// From now on writes to these maps, by index and slot, stop no code of this generation; writes to others
    /// stop all.
    pub fn mark(&self, generation: u32, spared: &[(u32, DeoptMask)]) {
        for index in 0..=self.watched_count {
            let slot = spared.iter().find(|(i, _)| *i == index).map(|(_, slot)| *slot);
            let mark = slot.map_or(0, |s| u64::from(generation) << 32 | s.behind() | s.unwritten());
            self.memory.atomic_u64(MARKS + 8 * index as usize).store(mark, Ordering::SeqCst);
        }
    }

    fn quiet(&self, map: u32) -> bool {
        let at = FIRST_MAP + 16 * map as usize;
        // In this order: if the older reading of the finished ones equals the newer one of the started ones,
        // then nobody was inside at the time of the first.
        let finished = self.memory.atomic_u64(at + 8).load(Ordering::SeqCst);
        let started = self.memory.atomic_u64(at).load(Ordering::SeqCst);
        finished == started
    }

    /// Sets the generation in slot 0 of the session's standby programs: it gets packets for which it may run,
    /// and the one on the hook may not.
    pub(crate) fn set_fallback(&self, generation: Option<u32>) {
        let word = generation.map_or(REVOKED, |number| u64::from(number) << 32);
        self.memory.atomic_u64(STANDBY as usize).store(word, Ordering::SeqCst);
    }

    /// Time of a generation's first packet, by the monotonic clock.
    pub fn first_packet(&self, generation: u32) -> Option<u64> {
        let time = self.memory.atomic_u64(first_packet(generation) as usize).load(Ordering::SeqCst);
        (time != 0).then_some(time)
    }

    /// Clears the value that an earlier generation left in the place of this one.
    pub fn clear_first_packet(&self, generation: u32) {
        self.memory.atomic_u64(first_packet(generation) as usize).store(0, Ordering::SeqCst);
    }

    /// Packets that variants turned away to the original code, of those that count them.
    pub fn missed(&self) -> u64 {
        self.memory.atomic_u64(MISSED as usize).load(Ordering::Relaxed)
    }

    /// Calls counted in and out of a watched map (0: of any map), for diagnosis and tests.
    pub fn writes(&self, map: u32) -> (u64, u64) {
        let at = FIRST_MAP + 16 * (map % MAPS) as usize;
        let get = |at| self.memory.atomic_u64(at).load(Ordering::SeqCst);
        (get(at), get(at + 8))
    }

    /// Pins the guard's links below `directory`, so that it outlives this process.
    ///
    /// # Errors
    /// Errors of the kernel.
    pub fn pin(&self, directory: &Path) -> Result<(), GuardError> {
        for (pin, link) in &self.links {
            link.pin(&directory.join(pin))?;
        }
        Ok(())
    }

    fn token(&self) -> &AtomicU64 {
        self.memory.atomic_u64(TOKEN as usize)
    }
}

/// The thread whose programs are the session's own: one at a time.
#[derive(Debug)]
pub(crate) struct OwnerThread(Arc<ArrayMapping>);

impl OwnerThread {
    /// From now on the calling thread loads the session's programs, as for [`Guard::belong_to_this_thread`].
    ///
    /// # Errors
    /// If /proc does not identify the thread.
    pub(crate) fn is_this_thread(&self) -> Result<(), GuardError> {
        let (thread, start) = this_thread()?;
        self.0.atomic_u64(SESSION_PROCESS).store(std::process::id().into(), Ordering::SeqCst);
        self.0.atomic_u64(SESSION_START).store(start, Ordering::SeqCst);
        self.0.atomic_u64(SESSION_THREAD).store(thread, Ordering::SeqCst);
        Ok(())
    }
}

/// A look at the watched maps while nobody wrote them.
#[derive(Debug)]
pub struct GuardSnapshot {
    /// Number of the look.
    number: u64,
    /// Maps that were being written all the same.
    busy: DeoptMask,
}

impl GuardSnapshot {
    /// Maps that were being written when it began, of those that were to be waited for only shortly. Contents
    /// read from them mean nothing.
    pub fn busy(&self) -> DeoptMask {
        self.busy
    }
}

/// The calling thread's number, and its start time, because numbers come back.
fn this_thread() -> Result<(u64, u64), GuardError> {
    const STAT: &str = "/proc/thread-self/stat";
    let read = |source| GuardError::Read { path: STAT, source };
    let text = std::fs::read_to_string(STAT).map_err(read)?;
    // The name may hold anything, so count from its closing bracket: field 22 is the start time in ticks of
    // 10 ms.
    let after_name = text.rsplit_once(')').map_or("", |(_, rest)| rest);
    let start = after_name.split_whitespace().nth(19).and_then(|f| f.parse().ok());
    let thread = text.split_whitespace().next().and_then(|f| f.parse().ok());
    thread.zip(start).ok_or_else(|| read(std::io::Error::other("no number or no start time")))
}

impl AsFd for Guard {
    fn as_fd(&self) -> std::os::fd::BorrowedFd<'_> {
        self.state.as_fd()
    }
}

//! The guard: every control-plane write to a watched map revokes specialised code before the kernel applies it.
//!
//! Its programs (`programs/guard/guard.bpf.c`) run at entry to and return from every system call. Their state is one
//! memory-mapped value. Specialised code reads its [`TOKEN`]: where that is not its own generation, the original code
//! runs. A write replaces the token by a number that never comes again.
//!
//! # What closes which race
//!
//! *Snapshot.* A [`Snapshot`] is begun by reading the token and then finding no writer inside ([`Guard::begin`]); it
//! approves a generation by exchanging that very token ([`Guard::approve`]). Writers count themselves in before
//! they replace the token, and out when they return. So whoever replaced it before it was read has either returned
//! (its write is in the tables) or is seen inside; whoever replaces it later makes the exchange fail, or undoes it.
//!
//! *Writers that were inside when the guard was attached* revoke when they return: before their caller goes on.
//!
//! *Unresolved calls* (attribute not readable, descriptor free, a SYSCALL program run, a map of maps changed) count
//! for all maps. If another thread exchanges the descriptor between the hook and the kernel's look-up, the return
//! finds another map than the entry and revokes. Not seen: a descriptor or attribute that is exchanged and put back
//! within one call, which takes a process that wants to deceive and has the right to write the map anyway.
//!
//! *Keys.* A write to one element tells which; the return reads the key once more, and if it is another now, any may have
//! been written. So whoever keeps up with a map reads no more of it than was written.
//!
//! *Death of the daemon.* The links are pinned before the first variant runs ([`Guard::pin`]), so the guard goes on
//! revoking: what was specialised runs until the first write, then the original code, for ever.
//!
//! Invariant: a generation is approved only by the snapshot that it was made from, or that was found equal to it.

use std::os::fd::AsFd;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use millstream_kernel::{Link, Map, Mapping, RingBuffer, UpdateMode};
use millstream_loader::{Loader, ProgramError};
use millstream_object::Object;
use millstream_programs::GUARD;

/// Offset of the token in the guard's value.
pub const TOKEN: u32 = 0;
/// Maps that can be watched, inner maps apart.
pub const MAPS: u32 = 64;
/// Maps that can be watched in all.
const INNER: u32 = 1024;
const FIRST_PACKET: u32 = 8;
const RECENT: u32 = 4;
const VERSION: usize = 40;
const STRAYS: usize = 48;
const LATE: usize = 56;
const UNSENT: usize = 64;
const SESSION_THREAD: usize = 72;
const SESSION_START: usize = 80;
/// Offset of the count of packets that found another generation approved than their own, where variants count them.
pub const MISSED: u32 = 88;
const FIRST_MAP: usize = 128;
const KEY_SIZES: usize = FIRST_MAP + 16 * MAPS as usize;
/// The largest key that is told.
const KEY: u32 = 32;
const REVOKED: u64 = 1 << 62;

/// Offset of the time of a generation's first packet, which the generation itself writes.
pub const fn first_packet(generation: u32) -> u32 {
    FIRST_PACKET + 8 * (generation % RECENT)
}

/// Bytes of the state.
pub const STATE_SIZE: u32 = KEY_SIZES as u32 + 4 * MAPS;

/// Why the guard is not there, or no longer.
#[derive(Debug, thiserror::Error)]
pub enum GuardError {
    /// The kernel refused something.
    #[error("guard: {0}")]
    Kernel(#[from] millstream_kernel::Error),
    /// The guard's object was not accepted.
    #[error("guard: {0}")]
    Load(#[from] millstream_loader::Error),
    /// One of its programs was not accepted.
    #[error("guard: {0}")]
    Program(#[from] ProgramError),
    /// The object is not what this build was made for.
    #[error("guard: the object lacks {0}")]
    Lacks(&'static str),
    /// There are more maps than the guard can watch.
    #[error("guard: it can watch {} maps, and {INNER} with the inner ones", MAPS - 1)]
    TooMany,
    /// A file of /proc was not as it should be.
    #[error("guard: reading {path}: {source}")]
    Read {
        /// The file.
        path: &'static str,
        /// What went wrong.
        source: std::io::Error,
    },
}

/// What happened to a watched map, told before the kernel does it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Event {
    /// Nanoseconds of the monotonic clock.
    pub time: u64,
    /// The version after it.
    pub version: u64,
    /// What it is.
    pub kind: EventKind,
    /// Of a write, the only key that it may change; `None` if it may change any.
    pub key: Option<Vec<u8>>,
}

/// Kinds of events.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum EventKind {
    /// A write to the map of this index.
    Write(u32),
    /// A call that may write any map.
    Any,
    /// Somebody new may be able to write: look at the holders again.
    Foreign,
}

impl Event {
    fn parse(bytes: &[u8]) -> Option<Event> {
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
        Some(Event { time: word(0)?, version: word(8)?, kind, key })
    }
}

/// Counts of what was noticed late: each was bumped, after the write and before its caller went on.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, serde::Serialize)]
pub struct Noticed {
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
    state: Map,
    memory: Mapping,
    watched: Map,
    watched_count: u32,
    events: RingBuffer,
    programs: Vec<u32>,
    enter: Link,
    exit: Link,
}

impl Guard {
    /// Loads the guard and attaches it. It watches nothing yet.
    ///
    /// # Errors
    /// What the kernel refuses: BPF or tracing not permitted, no BTF.
    pub fn attach() -> Result<Guard, GuardError> {
        let object = Object::parse(GUARD.name, GUARD.object).map_err(millstream_loader::Error::from)?;
        let loaded = Loader::new(&object).load()?;
        let map = |name: &'static str| {
            let found = loaded.session.map_by_name(name).ok_or(GuardError::Lacks(name))?;
            Ok::<_, GuardError>(found.try_clone()?)
        };
        let program = |name: &'static str| loaded.program(name).ok_or(GuardError::Lacks(name));
        let state = map("guard")?;
        let memory = state.mmap(true)?;
        memory.atomic_u64(TOKEN as usize).store(REVOKED, Ordering::SeqCst);
        let (enter, exit) = (program("guard_enter")?, program("guard_exit")?);
        // The exit side first: who is counted in must be counted out.
        let exit_link = Link::attach_tracing(exit)?;
        let enter_link = Link::attach_tracing(enter)?;
        let guard = Guard {
            memory,
            watched: map("watched")?,
            watched_count: 0,
            events: map("events")?.ring_buffer()?,
            programs: vec![enter.id()?, exit.id()?],
            state,
            enter: enter_link,
            exit: exit_link,
        };
        guard.belong_to_this_thread()?;
        Ok(guard)
    }

    /// From now on, programs that the calling thread loads are the session's own, and those of all others foreign, of other
    /// threads of this process too: they may have sessions with the same maps.
    ///
    /// # Errors
    /// If /proc does not say who we are.
    pub fn belong_to_this_thread(&self) -> Result<(), GuardError> {
        let (thread, start) = this_thread()?;
        self.memory.atomic_u64(SESSION_START).store(start, Ordering::SeqCst);
        self.memory.atomic_u64(SESSION_THREAD).store(thread, Ordering::SeqCst);
        Ok(())
    }

    /// The map whose value specialised code reads.
    pub fn state(&self) -> &Map {
        &self.state
    }

    /// Ids of the guard's own programs.
    pub fn programs(&self) -> &[u32] {
        &self.programs
    }

    /// Watches a map from now on; gives its index.
    ///
    /// # Errors
    /// If there are too many, or the kernel refuses.
    pub fn watch(&mut self, map: &Map) -> Result<u32, GuardError> {
        let index = self.reserve(map.info().key_size)?;
        self.watch_as(map.id(), index)?;
        Ok(index)
    }

    /// An index for maps with keys of this size.
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

    /// Watches a map by its id from now on, under an index that others may have as well. One that is watched stays what it is.
    ///
    /// # Errors
    /// If there are too many, or the kernel refuses.
    pub fn watch_as(&mut self, id: u32, index: u32) -> Result<(), GuardError> {
        match self.watched.update(&id.to_ne_bytes(), &index.to_ne_bytes(), UpdateMode::NoExist) {
            Err(e) if e.errno() == Some(libc::EEXIST) => {}
            Err(e) if e.errno() == Some(libc::E2BIG) => return Err(GuardError::TooMany),
            done => done?,
        }
        // Whoever entered before this wrote unwatched: no snapshot of before may be approved after.
        self.revoke();
        Ok(())
    }

    /// Watches a map of this index no more.
    ///
    /// # Errors
    /// What the kernel refuses.
    pub fn forget(&mut self, id: u32, index: u32) -> Result<(), GuardError> {
        if self.watched.lookup(&id.to_ne_bytes())? == Some(index.to_ne_bytes().to_vec()) {
            self.watched.delete(&id.to_ne_bytes())?;
        }
        Ok(())
    }

    /// Waits for the first of: an event, the end of the time.
    ///
    /// # Errors
    /// What the kernel refuses.
    pub fn wait(&self, timeout: Duration) -> Result<bool, GuardError> {
        Ok(self.events.wait(timeout)?)
    }

    /// The events since the last call.
    pub fn events(&mut self) -> Vec<Event> {
        let mut events = Vec::new();
        self.events.drain(|bytes| events.extend(Event::parse(bytes)));
        events
    }

    /// How often the token was replaced by writers, so far.
    pub fn version(&self) -> u64 {
        self.memory.atomic_u64(VERSION).load(Ordering::SeqCst)
    }

    /// Stops all specialised code at once.
    pub fn revoke(&self) {
        let version = self.memory.atomic_u64(VERSION).fetch_add(1, Ordering::SeqCst) + 1;
        self.token().store(version | REVOKED, Ordering::SeqCst);
    }

    /// The generation that may run now.
    pub fn approved(&self) -> Option<u32> {
        u32::try_from(self.token().load(Ordering::SeqCst)).ok()
    }

    /// What was noticed late.
    pub fn noticed(&self) -> Noticed {
        let get = |at| self.memory.atomic_u64(at).load(Ordering::Relaxed);
        Noticed { strays: get(STRAYS), late: get(LATE), unsent: get(UNSENT) }
    }

    /// Waits until no writer is inside, and begins a snapshot; `None` if one stays inside for longer than `patience`.
    pub fn begin(&self, patience: Duration) -> Option<Snapshot> {
        let start = Instant::now();
        let mut tries = 0u32;
        loop {
            let token = self.token().load(Ordering::SeqCst);
            if (0..=self.watched_count).all(|map| self.quiet(map)) {
                return Some(Snapshot { token });
            }
            if start.elapsed() > patience {
                return None;
            }
            // A single write takes microseconds, a batch or the load of a program milliseconds.
            if tries > 20 {
                std::thread::sleep(Duration::from_micros(50));
            } else {
                std::thread::yield_now();
            }
            tries += 1;
        }
    }

    /// Whether nothing has changed since the look began: what was read is the state of now.
    pub fn holds(&self, snapshot: &Snapshot) -> bool {
        // A writer that came after the beginning has replaced the token before it wrote.
        self.token().load(Ordering::SeqCst) == snapshot.token
    }

    /// Lets a generation run that was made from what was read, until the next write; whatever was approved before
    /// stops. Fails, and changes nothing, if the look no longer holds.
    pub fn approve(&self, snapshot: Snapshot, generation: u32) -> bool {
        let (token, new) = (snapshot.token, u64::from(generation));
        self.token().compare_exchange(token, new, Ordering::SeqCst, Ordering::SeqCst).is_ok()
    }

    fn quiet(&self, map: u32) -> bool {
        let at = FIRST_MAP + 16 * map as usize;
        // In this order: if the older reading of the finished ones equals the newer one of the started ones, then
        // nobody was inside at the time of the first.
        let finished = self.memory.atomic_u64(at + 8).load(Ordering::SeqCst);
        let started = self.memory.atomic_u64(at).load(Ordering::SeqCst);
        finished == started
    }

    /// When a generation's first packet came, by the monotonic clock.
    pub fn first_packet(&self, generation: u32) -> Option<u64> {
        let time = self.memory.atomic_u64(first_packet(generation) as usize).load(Ordering::SeqCst);
        (time != 0).then_some(time)
    }

    /// Forgets what an earlier generation left in the place of this one.
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
    /// What the kernel refuses.
    pub fn pin(&self, directory: &Path) -> Result<(), GuardError> {
        self.exit.pin(&directory.join("guard_exit"))?;
        self.enter.pin(&directory.join("guard_enter"))?;
        Ok(())
    }

    fn token(&self) -> &AtomicU64 {
        self.memory.atomic_u64(TOKEN as usize)
    }
}

/// A look at the watched maps while nobody wrote them.
#[derive(Debug)]
pub struct Snapshot {
    token: u64,
}

/// The calling thread's number, and when it started, since numbers come back.
fn this_thread() -> Result<(u64, u64), GuardError> {
    const STAT: &str = "/proc/thread-self/stat";
    let read = |source| GuardError::Read { path: STAT, source };
    let text = std::fs::read_to_string(STAT).map_err(read)?;
    // The name may hold anything, so count from its closing bracket: field 22 is the start time in ticks of 10 ms.
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

//! Report of a crash in a program's code: the place in the program and the packet, on standard error before
//! the process ends.
//!
//! A thread that runs batches registers this ([`run_attributed`]); the handler of fatal signals looks there.
//! It finds the place by the address of the code, or, in functions of the runtime, by the nearest return
//! address on the stack that is in the program's code. On request the packet is kept as a capture file.
//!
//! Invariant: the handler calls nothing that allocates or locks: only a write, an open and an exit. A crash
//! outside of programs has the same effect as without this module.
#![allow(unsafe_code)]

use std::cell::Cell;
use std::ffi::{CString, c_void};
use std::fmt::Write as _;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::ptr::{null, null_mut};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::emit::DebugLocation;
use crate::image::LineTable;
use millstream_native_runtime::packet::{DescriptorField, PacketDescriptor};
use millstream_native_runtime::worker::Worker;

/// Signals that a program can cause; a panic in a function of the runtime ends in SIGABRT.
const SIGNALS: [(libc::c_int, &str); 5] = [
    (libc::SIGSEGV, "SIGSEGV"),
    (libc::SIGBUS, "SIGBUS"),
    (libc::SIGFPE, "SIGFPE"),
    (libc::SIGILL, "SIGILL"),
    (libc::SIGABRT, "SIGABRT"),
];
/// Bytes of the handler's stack: room for all registers, and for the handler itself.
const STACK: usize = 128 << 10;
/// Words of the stack that are searched for a return address.
const SEARCHED: usize = 512;
/// Bytes of a packet that are printed, and bytes per line.
const SHOWN: usize = 512;
const IN_LINE: usize = 16;
/// Longest line, in bytes.
const LONGEST_LINE: usize = 512;

/// Location of a program's code, and its source places.
#[derive(Debug)]
pub(crate) struct CodeDebugInfo {
    /// The address of its first byte.
    pub(crate) start: u64,
    /// Line table.
    pub(crate) lines: LineTable,
    /// Names of places, by number.
    pub(crate) names: Vec<String>,
}

impl CodeDebugInfo {
    fn holds(&self, address: u64) -> bool {
        address >= self.start && address - self.start < self.lines.size
    }

    fn place(&self, address: u64) -> Option<DebugLocation> {
        self.holds(address)
            .then(|| self.lines.line(address - self.start))
            .flatten()
            .and_then(DebugLocation::of_line)
    }
}

/// Work in progress of a thread.
pub(crate) struct RunningBatch<'r> {
    pub(crate) code: Option<&'r CodeDebugInfo>,
    pub(crate) worker: *const Worker,
    /// Descriptors of the packets.
    pub(crate) packets: *const u32,
    pub(crate) count: usize,
}

thread_local! {
    /// Current [`RunningBatch`] of this thread; null if none.
    static RUNNING: Cell<*const c_void> = const { Cell::new(null()) };
}

/// Runs code, so that the handler attributes a crash to it.
pub(crate) fn run_attributed(what: &RunningBatch<'_>, run: impl FnOnce()) {
    RUNNING.set(std::ptr::from_ref(what).cast());
    run();
    RUNNING.set(null());
}

/// Actions after a crash.
struct CrashActions {
    exit: libc::c_int,
    /// Path of the file for the packet.
    file: Option<CString>,
    before: [libc::sigaction; SIGNALS.len()],
}

// SAFETY: actions hold addresses of functions, which belong to no thread.
unsafe impl Send for CrashActions {}
// SAFETY: as above; nobody changes them.
unsafe impl Sync for CrashActions {}

static WANTED: OnceLock<CrashActions> = OnceLock::new();
/// True if some thread has crashed already.
static CRASHED: AtomicBool = AtomicBool::new(false);

/// Installs the handler: a crash in a program is reported on standard error and ends the process with this
/// exit code. The current packet is kept in `folder`, as `millstream-crash-PID.pcap`.
///
/// # Errors
/// If the system does not permit it.
pub fn report_crashes(exit: u8, folder: Option<&Path>) -> io::Result<()> {
    let file = folder.map(|folder| folder.join(format!("millstream-crash-{}.pcap", std::process::id())));
    let file = file.map(|file| CString::new(file.as_os_str().as_bytes())).transpose()?;
    std::mem::forget(AltSignalStack::new()?);
    // SAFETY: an all-zero sigaction is one, to be overwritten.
    let mut before: [libc::sigaction; SIGNALS.len()] = unsafe { std::mem::zeroed() };
    for ((signal, _), old) in SIGNALS.iter().zip(&mut before) {
        // SAFETY: reads an action into a live place.
        unsafe { libc::sigaction(*signal, null(), old) };
    }
    if WANTED.set(CrashActions { exit: exit.into(), file, before }).is_err() {
        return Ok(());
    }
    for (signal, _) in SIGNALS {
        // SAFETY: an all-zero sigaction is valid; the handler does what handlers may do, by the module's
        // invariant.
        let done = unsafe {
            let mut action: libc::sigaction = std::mem::zeroed();
            action.sa_sigaction = handle as extern "C" fn(_, _, _) as usize;
            action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
            libc::sigaction(signal, &action, null_mut())
        };
        if done != 0 {
            return Err(io::Error::last_os_error());
        }
    }
    Ok(())
}

/// A stack for the handler, for the thread that creates it: a crash may be a stack overflow.
pub struct AltSignalStack {
    base: *mut c_void,
    before: libc::stack_t,
}

impl AltSignalStack {
    /// Installs one for this thread.
    ///
    /// # Errors
    /// If there is no memory for it, or the kernel refuses it.
    pub fn new() -> io::Result<AltSignalStack> {
        let (access, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
        // SAFETY: a new mapping, which becomes the thread's; what was there before is kept.
        unsafe {
            let base = libc::mmap(null_mut(), STACK, access, flags, -1, 0);
            if base == libc::MAP_FAILED {
                return Err(io::Error::last_os_error());
            }
            let stack = libc::stack_t { ss_sp: base, ss_flags: 0, ss_size: STACK };
            let mut before = std::mem::zeroed();
            if libc::sigaltstack(&stack, &mut before) != 0 {
                let error = io::Error::last_os_error();
                libc::munmap(base, STACK);
                return Err(error);
            }
            Ok(AltSignalStack { base, before })
        }
    }
}

impl Drop for AltSignalStack {
    fn drop(&mut self) {
        // SAFETY: the thread that made it has its old one again before the mapping goes.
        unsafe {
            libc::sigaltstack(&self.before, null_mut());
            libc::munmap(self.base, STACK);
        }
    }
}

extern "C" fn handle(signal: libc::c_int, info: *mut libc::siginfo_t, context: *mut c_void) {
    let Some(wanted) = WANTED.get() else { return };
    // SAFETY: the pointer is valid during the call that it describes, which is interrupted here.
    let Some(running) = (unsafe { RUNNING.get().cast::<RunningBatch<'_>>().as_ref() }) else {
        return by_the_way(wanted, signal);
    };
    if CRASHED.swap(true, Ordering::Relaxed) {
        loop {
            // SAFETY: waits; the thread that crashed first ends the process.
            unsafe { libc::pause() };
        }
    }
    // SAFETY: a handler gets both from the system.
    let (fault, registers) = unsafe { ((*info).si_addr() as u64, registers(context)) };
    let name = SIGNALS.iter().find(|(number, _)| *number == signal).map_or("a signal", |(_, name)| name);
    let mut line = MessageBuffer::new();
    let _ = write!(line, "millstream: {name}");
    if signal == libc::SIGSEGV || signal == libc::SIGBUS {
        let _ = write!(line, " at address {fault:#x}");
    }
    say_where(&mut line, running, registers);
    line.end();
    // SAFETY: the worker is that of the call that is going on; its packet is checked by `bytes`.
    unsafe { say_packet(running, wanted) };
    // SAFETY: ends the process without anything else.
    unsafe { libc::_exit(wanted.exit) };
}

/// Handles a crash outside of programs: restores the previous actions, so that they take effect when the
/// instruction is executed again.
fn by_the_way(wanted: &CrashActions, signal: libc::c_int) {
    for ((number, _), old) in SIGNALS.iter().zip(&wanted.before) {
        if *number == signal {
            // SAFETY: puts back an action that the system gave.
            unsafe { libc::sigaction(signal, old, null_mut()) };
        }
    }
    if signal == libc::SIGABRT {
        // SAFETY: raises the signal for this thread, which it takes when the handler returns.
        unsafe { libc::raise(signal) };
    }
}

/// Addresses of the current instruction and of the top of the stack.
///
/// # Safety
/// `context` is what a handler got.
#[cfg(target_arch = "x86_64")]
unsafe fn registers(context: *mut c_void) -> Option<(u64, u64)> {
    // SAFETY: by the caller.
    let registers = unsafe { &(*context.cast::<libc::ucontext_t>()).uc_mcontext.gregs };
    Some((registers[libc::REG_RIP as usize] as u64, registers[libc::REG_RSP as usize] as u64))
}

/// # Safety
/// None is needed.
#[cfg(not(target_arch = "x86_64"))]
unsafe fn registers(_: *mut c_void) -> Option<(u64, u64)> {
    None
}

fn say_where(line: &mut MessageBuffer, running: &RunningBatch<'_>, registers: Option<(u64, u64)>) {
    let (Some(code), Some((at, stack))) = (running.code, registers) else {
        let _ = write!(line, ", in the program");
        return;
    };
    if code.holds(at) {
        let _ = write!(line, ", in ");
        return say_place(line, code, code.place(at));
    }
    // SAFETY: the stack in use at the signal; it is far larger than the searched part, since `running` is
    // further up.
    let top = (std::ptr::from_ref(running) as u64).saturating_sub(stack) / 8;
    let words = (top as usize).min(SEARCHED);
    let returns = (0..words).find_map(|word| {
        // SAFETY: between the stack's end at the signal and a variable that lives on the same stack.
        let word = unsafe { (stack as *const u64).add(word).read_volatile() };
        // A return address is that of the instruction after the call.
        code.place(word.wrapping_sub(1))
    });
    let _ = write!(line, ", in the runtime, called by ");
    say_place(line, code, returns);
}

fn say_place(line: &mut MessageBuffer, code: &CodeDebugInfo, place: Option<DebugLocation>) {
    match place.and_then(|place| Some((place, code.names.get(place.number as usize)?))) {
        Some((place, name)) => {
            let _ = write!(line, "{name}");
            if place.ahead {
                let _ = write!(line, ", while it fetched for packets ahead");
            }
        }
        None => {
            let _ = write!(line, "the program");
        }
    }
}

/// Prints the current packet, and keeps it.
///
/// # Safety
/// What runs is still there.
unsafe fn say_packet(running: &RunningBatch<'_>, wanted: &CrashActions) {
    // SAFETY: by the caller.
    let (first, layout) = unsafe { ((*running.worker).current, (*running.worker).layout) };
    if first.is_null() {
        return;
    }
    // SAFETY: by the caller; the batch is laid out for the program that runs.
    let (words, buffer) =
        unsafe { (std::slice::from_raw_parts_mut(first, layout.words()), (*running.worker).buffer) };
    let packet = PacketDescriptor { layout, words, buffer };
    let mut line = MessageBuffer::new();
    let _ = write!(line, "millstream: ");
    let place = (first as usize).wrapping_sub(running.packets as usize) / layout.stride();
    let _ = match place < running.count {
        true => write!(line, "packet {} of {} in its batch", place + 1, running.count),
        false => write!(
            line,
            "a copy of packet {} of {} in its batch",
            packet.get(DescriptorField::Origin) + 1,
            running.count
        ),
    };
    // SAFETY: by the caller.
    let all = unsafe { (*running.worker).ingress };
    let ingress = if all == 0 { packet.get(DescriptorField::Ingress) } else { all };
    if ingress != 0 {
        let _ = write!(line, ", received from {ingress}");
    }
    let (from, end) = packet.bounds();
    let length = end.wrapping_sub(from) as usize;
    if length > buffer as usize {
        let _ = write!(line, ", whose bounds are lost");
        return line.end();
    }
    // SAFETY: descriptors have their bytes in a buffer of the batch; by the check above no more than that are
    // read.
    let bytes = unsafe { std::slice::from_raw_parts(from as usize as *const u8, length) };
    let _ = write!(line, ", {length} bytes");
    if let Some(file) = &wanted.file {
        let kept = keep(file, bytes);
        // A path may be too long for a line, so it is cut.
        let _ = write!(line, ", {} ", if kept { "kept in" } else { "not kept, since there can be no" });
        line.text(file.to_bytes());
    }
    line.end();
    for (at, part) in bytes[..length.min(SHOWN)].chunks(IN_LINE).enumerate() {
        let mut line = MessageBuffer::new();
        let _ = write!(line, "  {:04x} ", at * IN_LINE);
        for byte in part {
            let _ = write!(line, " {byte:02x}");
        }
        line.end();
    }
    if length > SHOWN {
        let mut line = MessageBuffer::new();
        let _ = write!(line, "  and {} more", length - SHOWN);
        line.end();
    }
}

/// Writes a capture file with one packet; returns true on success.
fn keep(file: &CString, packet: &[u8]) -> bool {
    const ETHERNET: u32 = 1;
    const SNAP: u32 = 1 << 18;
    let length = packet.len() as u32;
    let header = [0xa1b2_c3d4, 2 | 4 << 16, 0, 0, SNAP, ETHERNET, 0, 0, length, length];
    let mut bytes = [0; 4 * 10];
    for (to, word) in bytes.chunks_exact_mut(4).zip(header) {
        to.copy_from_slice(&word.to_le_bytes());
    }
    let flags = libc::O_WRONLY | libc::O_CREAT | libc::O_TRUNC | libc::O_CLOEXEC | libc::O_NOFOLLOW;
    // SAFETY: a live string that ends in zero.
    let to = unsafe { libc::open(file.as_ptr(), flags, 0o600) };
    to >= 0 && put(to, &bytes) && put(to, packet)
}

/// Writes all bytes; returns true on success.
fn put(to: libc::c_int, mut bytes: &[u8]) -> bool {
    while !bytes.is_empty() {
        // SAFETY: reads live bytes.
        let done = unsafe { libc::write(to, bytes.as_ptr().cast(), bytes.len()) };
        match usize::try_from(done) {
            Ok(done) if done > 0 => bytes = &bytes[done..],
            _ => return false,
        }
    }
    true
}

/// A line of text, truncated if there is no room.
struct MessageBuffer {
    bytes: [u8; LONGEST_LINE],
    len: usize,
}

impl MessageBuffer {
    fn new() -> MessageBuffer {
        MessageBuffer { bytes: [0; LONGEST_LINE], len: 0 }
    }

    fn text(&mut self, text: &[u8]) {
        // One byte is for the newline.
        let room = (LONGEST_LINE - 1 - self.len).min(text.len());
        self.bytes[self.len..self.len + room].copy_from_slice(&text[..room]);
        self.len += room;
    }

    /// Prints it.
    fn end(mut self) {
        self.bytes[self.len] = b'\n';
        put(libc::STDERR_FILENO, &self.bytes[..=self.len]);
    }
}

impl std::fmt::Write for MessageBuffer {
    fn write_str(&mut self, text: &str) -> std::fmt::Result {
        self.text(text.as_bytes());
        Ok(())
    }
}

//! Clocks, CPU affinity, interruption and names of namespaces, which the standard library lacks.
#![allow(unsafe_code)]

use std::ffi::CString;
use std::io;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::error::{Error, Result};

/// Nanoseconds of `CLOCK_MONOTONIC_RAW`: no adjustment by NTP bends the length of a run.
pub fn now_ns() -> u64 {
    clock(libc::CLOCK_MONOTONIC_RAW)
}

/// Nanoseconds of `CLOCK_MONOTONIC`, which is what `bpf_ktime_get_ns` reads.
pub fn monotonic_ns() -> u64 {
    clock(libc::CLOCK_MONOTONIC)
}

/// Nanoseconds that processors have worked for this process, in all its threads.
pub fn processor_ns() -> u64 {
    clock(libc::CLOCK_PROCESS_CPUTIME_ID)
}

fn clock(id: libc::clockid_t) -> u64 {
    let mut t = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: writes one timespec, which is live and exclusive; the clocks exist on every Linux that has BPF.
    unsafe { libc::clock_gettime(id, &mut t) };
    t.tv_sec as u64 * 1_000_000_000 + t.tv_nsec as u64
}

/// Ties the calling thread to one CPU.
///
/// # Errors
/// `EINVAL` if the CPU is not there or not allowed.
pub fn pin_to_cpu(cpu: usize) -> io::Result<()> {
    affinity(0, cpu)
}

/// Does something while the calling thread is tied to one CPU; after that it may run where it could before.
///
/// # Errors
/// As for [`pin_to_cpu`]; nothing is done then.
pub fn on_cpu<R>(cpu: usize, f: impl FnOnce() -> R) -> io::Result<R> {
    // SAFETY: as in `affinity`.
    let mut before: libc::cpu_set_t = unsafe { std::mem::zeroed() };
    // SAFETY: writes one set of the size said.
    check(unsafe { libc::sched_getaffinity(0, size_of_val(&before), &mut before) })?;
    affinity(0, cpu)?;
    let result = f();
    // SAFETY: reads one set of the size said.
    check(unsafe { libc::sched_setaffinity(0, size_of_val(&before), &before) })?;
    Ok(result)
}

fn affinity(thread: libc::pid_t, cpu: usize) -> io::Result<()> {
    // SAFETY: a cpu_set_t is an array of words, for which zero is a value.
    let mut set: libc::cpu_set_t = unsafe { std::mem::zeroed() };
    if cpu >= 8 * size_of::<libc::cpu_set_t>() {
        return Err(io::Error::from_raw_os_error(libc::EINVAL));
    }
    // SAFETY: `cpu` is inside the set by the check above.
    unsafe { libc::CPU_SET(cpu, &mut set) };
    // SAFETY: reads one set of the size said; thread 0 is the calling one.
    check(unsafe { libc::sched_setaffinity(thread, size_of_val(&set), &set) })
}

/// The calling thread, for [`raise_priority`].
pub(crate) const THIS_THREAD: u32 = 0;

/// Puts a thread before all others of its class (nice -20), so that other work of this machine seldom falls
/// into a timed run. Without the privilege it stays where it is.
pub(crate) fn raise_priority(thread: u32) {
    // SAFETY: no memory is passed; on Linux, "process" 0 is the calling thread.
    if unsafe { libc::setpriority(libc::PRIO_PROCESS, thread, -20) } < 0 {
        tracing::debug!("timing at usual priority: {}", io::Error::last_os_error());
    }
}

/// Prepares the calling thread to send frames that the same CPU receives, and to be timed at it.
///
/// The receiver works in softirqs at the end of each batch. Linux before 6.5 leaves them to ksoftirqd once
/// that has been woken, as happens where a round of softirqs takes more than two milliseconds, and a sender
/// that goes on fills its ring meanwhile. There it gives way to all other threads, so that ksoftirqd takes
/// the CPU at the end of the batch. Elsewhere it goes before all others.
pub(crate) fn raise_sender_priority() {
    if softirqs_wait(&release()) { give_way() } else { raise_priority(THIS_THREAD) }
}

/// As [`raise_sender_priority`], for a sender that is not timed: leaves it its priority where that loses no
/// frames.
pub(crate) fn prepare_sender() {
    if softirqs_wait(&release()) {
        give_way();
    }
}

/// Returns true if the receiver may still have frames in its queue when a send returns, because softirqs wait
/// ([`raise_sender_priority`]).
pub(crate) fn may_be_in_flight() -> bool {
    softirqs_wait(&release())
}

fn release() -> String {
    std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default()
}

/// Returns true if a kernel of this release leaves softirqs to ksoftirqd while that is runnable.
fn softirqs_wait(release: &str) -> bool {
    let mut parts = release.split(['.', '-']).map_while(|part| part.trim().parse::<u32>().ok());
    parts.next().zip(parts.next()).is_some_and(|version| version < (6, 5))
}

/// Has the calling thread run when no other wants its CPU (`SCHED_IDLE`).
fn give_way() {
    let parameters = libc::sched_param { sched_priority: 0 };
    // SAFETY: reads one live structure; thread 0 is the calling one.
    if unsafe { libc::sched_setscheduler(0, libc::SCHED_IDLE, &parameters) } < 0 {
        tracing::debug!("sending at usual priority: {}", io::Error::last_os_error());
    }
}

/// The CPUs that the calling thread may run on.
pub fn allowed_cpus() -> Vec<usize> {
    // SAFETY: as in `affinity`.
    let mut set: libc::cpu_set_t = unsafe { std::mem::zeroed() };
    // SAFETY: writes one set of the size said.
    if unsafe { libc::sched_getaffinity(0, size_of_val(&set), &mut set) } < 0 {
        return Vec::new();
    }
    // SAFETY: every index is inside the set.
    (0..8 * size_of_val(&set)).filter(|&c| unsafe { libc::CPU_ISSET(c, &set) }).collect()
}

/// Refuses a CPU that the calling thread may not run on.
///
/// # Errors
/// If it is none of [`allowed_cpus`].
pub(crate) fn allowed(cpu: usize) -> Result<()> {
    let cpus = allowed_cpus();
    match cpus.contains(&cpu) {
        true => Ok(()),
        false => Err(Error::Unusable(format!("CPU {cpu} may not be used; there are: {cpus:?}"))),
    }
}

static INTERRUPTED: AtomicBool = AtomicBool::new(false);

extern "C" fn interrupt(_signal: libc::c_int) {
    INTERRUPTED.store(true, Ordering::Relaxed);
}

/// From now on, SIGINT and SIGTERM end the program in order: [`interrupted`] becomes true, and whoever is at
/// work stops and cleans up. A second SIGINT kills.
pub fn catch_interrupts() {
    for signal in [libc::SIGINT, libc::SIGTERM] {
        // SAFETY: an all-zero sigaction is valid; the handler only stores to an atomic, which is allowed in a
        // signal handler. SA_RESETHAND gives the second signal its usual effect.
        unsafe {
            let mut action: libc::sigaction = std::mem::zeroed();
            action.sa_sigaction = interrupt as extern "C" fn(libc::c_int) as usize;
            action.sa_flags = libc::SA_RESETHAND;
            libc::sigaction(signal, &action, std::ptr::null_mut());
        }
    }
}

static HANGUP: AtomicBool = AtomicBool::new(false);

extern "C" fn hang_up(_signal: libc::c_int) {
    HANGUP.store(true, Ordering::Relaxed);
}

/// From now on, SIGHUP is told of by [`take_hangup`], and does nothing else.
pub fn catch_hangups() {
    // SAFETY: as in `catch_interrupts`; without SA_RESETHAND, since it may come any number of times.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = hang_up as extern "C" fn(libc::c_int) as usize;
        action.sa_flags = libc::SA_RESTART;
        libc::sigaction(libc::SIGHUP, &action, std::ptr::null_mut());
    }
}

/// Returns true if SIGHUP has come since the last call.
pub fn take_hangup() -> bool {
    HANGUP.swap(false, Ordering::Relaxed)
}

/// Ends this process, as is usual for filters, when it writes to a pipe that has no reader any more
/// (`| head`). For commands that have nothing to put in order at their end.
pub fn restore_default_sigpipe() {
    // SAFETY: the default action of a signal, installed before any thread is started.
    unsafe { libc::signal(libc::SIGPIPE, libc::SIG_DFL) };
}

/// Returns true if the user asked to stop.
pub fn interrupted() -> bool {
    INTERRUPTED.load(Ordering::Relaxed)
}

/// Signals that wait until they are asked for: [`SignalSet::next`].
#[derive(Clone, Copy)]
pub struct SignalSet(libc::sigset_t);

impl SignalSet {
    /// From now on these come by [`SignalSet::next`] only, if this is called before any thread is begun.
    /// Programs that are started inherit that: [`SignalSet::unblock_all`].
    ///
    /// # Errors
    /// If there is no such signal.
    pub fn block(signals: &[i32]) -> io::Result<SignalSet> {
        // SAFETY: an all-zero set is one, which is written by the calls.
        let mut set: libc::sigset_t = unsafe { std::mem::zeroed() };
        for signal in signals {
            // SAFETY: changes one live set.
            check(unsafe { libc::sigaddset(&mut set, *signal) })?;
        }
        // SAFETY: reads one live set.
        match unsafe { libc::pthread_sigmask(libc::SIG_BLOCK, &set, std::ptr::null_mut()) } {
            0 => Ok(SignalSet(set)),
            errno => Err(io::Error::from_raw_os_error(errno)),
        }
    }

    /// From now on signals have their effect, even if they were blocked when this process was started.
    pub fn unblock_all() {
        // SAFETY: an all-zero set is the empty one, which is read.
        unsafe {
            let none: libc::sigset_t = std::mem::zeroed();
            libc::pthread_sigmask(libc::SIG_SETMASK, &none, std::ptr::null_mut());
        }
    }

    /// The next one that comes, or none for so long.
    pub fn next(&self, at_most: Duration) -> Option<i32> {
        let time = libc::timespec {
            tv_sec: i64::try_from(at_most.as_secs()).unwrap_or(i64::MAX),
            tv_nsec: i64::from(at_most.subsec_nanos()),
        };
        // SAFETY: reads a live set and a live time; no more than the number of the signal is asked for.
        let signal = unsafe { libc::sigtimedwait(&self.0, std::ptr::null_mut(), &time) };
        (signal > 0).then_some(signal)
    }
}

/// Flag that [`interrupted`] reads, for loops that take one.
pub fn interruption() -> &'static AtomicBool {
    &INTERRUPTED
}

/// Ties another thread to one CPU.
pub(crate) fn pin_thread(pid: u32, cpu: usize) -> io::Result<()> {
    affinity(pid as libc::pid_t, cpu)
}

/// Runs `f` where /sys shows the network namespace of the calling thread. The thread gets a mount namespace
/// of its own for that, so it should be one that ends soon.
pub(crate) fn with_sysfs<R>(f: impl FnOnce() -> io::Result<R>) -> io::Result<R> {
    // SAFETY: changes the mount namespace (and with it the sharing of the working directory) of this thread
    // only.
    check(unsafe { libc::unshare(libc::CLONE_NEWNS) })?;
    let flags = libc::MS_REC | libc::MS_PRIVATE;
    // SAFETY: live strings that end in zero; null stands for "none", which the kernel allows here. Mounts
    // made private first stay in the namespace that goes with the thread.
    check(unsafe {
        libc::mount(std::ptr::null(), c"/".as_ptr(), std::ptr::null(), flags, std::ptr::null())
    })?;
    // SAFETY: as above.
    check(unsafe {
        libc::mount(c"sysfs".as_ptr(), c"/sys".as_ptr(), c"sysfs".as_ptr(), 0, std::ptr::null())
    })?;
    f()
}

/// Gives the namespace `from` (a file of /proc) a name, by mounting it over the empty file `onto`.
pub(crate) fn bind_mount(from: &Path, onto: &Path) -> io::Result<()> {
    let (from, onto) = (c_path(from)?, c_path(onto)?);
    // SAFETY: two live strings that end in zero; a bind mount reads nothing else.
    check(unsafe {
        libc::mount(from.as_ptr(), onto.as_ptr(), std::ptr::null(), libc::MS_BIND, std::ptr::null())
    })
}

/// Takes a mount away.
pub(crate) fn unmount(path: &Path) -> io::Result<()> {
    let path = c_path(path)?;
    // SAFETY: a live string that ends in zero.
    check(unsafe { libc::umount2(path.as_ptr(), libc::MNT_DETACH) })
}

fn c_path(path: &Path) -> io::Result<CString> {
    use std::os::unix::ffi::OsStrExt;
    CString::new(path.as_os_str().as_bytes()).map_err(io::Error::other)
}

fn check(result: libc::c_int) -> io::Result<()> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::softirqs_wait;

    #[test]
    fn kernels_whose_softirqs_wait_are_told_by_their_release() {
        for waits in ["5.10.0-46-cloud-amd64", "6.1.0-56-amd64", "6.4.16"] {
            assert!(softirqs_wait(waits), "{waits}");
        }
        for goes_on in ["6.5.0", "6.12.117+deb12-cloud-amd64", "6.18.44-x", "7.2.13", "10.0", "", "unknown"] {
            assert!(!softirqs_wait(goes_on), "{goes_on}");
        }
    }
}

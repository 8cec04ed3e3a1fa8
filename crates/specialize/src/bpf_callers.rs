//! Conditions under which a guard at the functions of bpf(2) sees every call.
//!
//! *Calls from before.* A hook at the return of a function does not run for calls that had entered it before.
//! Such a call could write a map unseen. So the guard works only once every thread of the machine has been seen
//! outside of bpf(2): what it calls after that runs the hook at the entry.
//!
//! *Preemption.* The kernel does not run such a program while a thread is inside the same program on the same
//! processor (`__bpf_prog_enter_recur` of `kernel/bpf/trampoline.c`). If a thread is preempted there, calls of
//! others on that processor are missed. So the kernel must not preempt threads inside of itself.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::time::{Duration, Instant};

use millstream_kernel::{KernelError, Link};

/// Inode of the first process namespace, which sees all threads (`PROC_PID_INIT_INO`).
const FIRST_NAMESPACE: u64 = 0xefff_fffc;

/// Returns true if this process sees the threads of the whole machine.
pub(crate) fn all_are_seen() -> io::Result<bool> {
    Ok(fs::metadata("/proc/self/ns/pid")?.ino() == FIRST_NAMESPACE)
}

/// Waits until every thread has been outside of bpf(2) at some time since the call of this. The iterator gives
/// the threads that may be inside. Returns false if one was not outside within `patience`.
pub(crate) fn have_left(threads: &Link, patience: Duration) -> Result<bool, KernelError> {
    let start = Instant::now();
    let mut left = possible(threads)?;
    loop {
        if left.is_empty() {
            return Ok(true);
        }
        if start.elapsed() > patience {
            return Ok(false);
        }
        std::thread::sleep(Duration::from_millis(1));
        let now = possible(threads)?;
        left.retain(|thread| now.contains(thread));
    }
}

/// Numbers of threads that may be inside bpf(2). The one that reads the iterator is not.
fn possible(threads: &Link) -> Result<BTreeSet<u32>, KernelError> {
    let bytes = threads.iterate()?;
    let (numbers, _) = bytes.as_chunks::<4>();
    Ok(numbers.iter().map(|number| u32::from_ne_bytes(*number)).collect())
}

/// Returns true if the kernel may preempt a thread while it runs code of the kernel, or does not say.
pub(crate) fn may_preempt() -> bool {
    let build = fs::read_to_string("/proc/sys/kernel/version").unwrap_or_default();
    let mode = fs::read_to_string("/sys/kernel/debug/sched/preempt").unwrap_or_default();
    is_preemptible(&build, &mode)
}

/// By the words of the kernel's build, and the list of modes with the current one in brackets.
fn is_preemptible(build: &str, mode: &str) -> bool {
    let model = build.split_whitespace().find(|word| word.starts_with("PREEMPT"));
    match model {
        None => build.is_empty(),
        Some("PREEMPT_DYNAMIC") => !mode.contains("(none)") && !mode.contains("(voluntary)"),
        Some(_) => true,
    }
}

/// Returns true if the kernel has a bpf(2) for 32-bit callers.
pub(crate) fn has_32_bit_calls() -> io::Result<bool> {
    let symbols = fs::read_to_string("/proc/kallsyms")?;
    Ok(symbols.lines().any(|line| line.ends_with(" __ia32_sys_bpf")))
}

#[cfg(test)]
mod tests {
    use super::is_preemptible;

    #[test]
    fn a_kernel_is_preemptible_unless_it_says_that_it_is_not() {
        let fixed = "#1 SMP Debian 5.10.244-1 (2025-09-29)";
        let dynamic = "#1 SMP PREEMPT_DYNAMIC Debian 6.1.158-1 (2025-11-09)";
        assert!(!is_preemptible(fixed, ""));
        assert!(!is_preemptible(dynamic, "none (voluntary) full\n"));
        assert!(!is_preemptible(dynamic, "(none) voluntary full\n"));
        assert!(is_preemptible(dynamic, "none voluntary full (lazy)\n"));
        assert!(is_preemptible(dynamic, ""));
        assert!(is_preemptible("#1 SMP PREEMPT_RT Debian", "none (voluntary)"));
        assert!(is_preemptible("#1 SMP PREEMPT Debian", ""));
        assert!(is_preemptible("", ""));
    }
}

//! A process that is killed after so many system calls that change something in the kernel: traced, so that
//! it is between this call and the next, with all its threads.
#![allow(unsafe_code)]

use std::os::unix::process::CommandExt;
use std::process::Command;

/// Commands of bpf(2) that change nothing: queries of elements, ids, descriptions, and test runs.
const LOOKS: [u64; 13] = [1, 4, 10, 11, 12, 13, 14, 15, 16, 19, 20, 23, 24];

/// A system call that changes something: bpf(2), netlink, pins, grace periods.
fn step(number: u64, arguments: [u64; 6]) -> Option<String> {
    Some(match number as i64 {
        libc::SYS_bpf if LOOKS.contains(&arguments[0]) => return None,
        libc::SYS_bpf => format!("bpf({})", arguments[0]),
        libc::SYS_sendto => "sendto".to_owned(),
        libc::SYS_membarrier => "membarrier".to_owned(),
        libc::SYS_unlink | libc::SYS_unlinkat | libc::SYS_rmdir | libc::SYS_mkdir | libc::SYS_mkdirat => {
            "a file".to_owned()
        }
        _ => return None,
    })
}

/// `struct ptrace_syscall_info` at the entry to a call.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct CallInfo {
    op: u8,
    arch: u32,
    instruction: u64,
    stack: u64,
    number: u64,
    arguments: [u64; 6],
}

const ENTRY: u8 = 1;
const EXIT: u8 = 2;

fn trace(request: libc::c_uint, thread: i32, address: usize, data: usize) -> i64 {
    // SAFETY: where a request writes, `data` is the address of a value that outlives the call and is
    // `address` bytes long.
    unsafe { libc::ptrace(request, thread, address, data) }
}

/// Waits for any thread that this thread traces: returns its id and status; `None` if there is none any more.
fn wait() -> Option<(i32, i32)> {
    let mut status = 0;
    // SAFETY: writes the status. Children of other threads are left to these.
    let thread = unsafe { libc::waitpid(-1, &mut status, libc::__WALL | libc::__WNOTHREAD) };
    (thread > 0).then_some((thread, status))
}

/// Starts a command and kills it after step number `count`; returns that step.
///
/// # Panics
/// If it ends before.
#[allow(clippy::zombie_processes)] // `wait` takes it, since it is traced
pub(crate) fn killed_after(command: &mut Command, count: u64) -> String {
    let traced = || match trace(libc::PTRACE_TRACEME, 0, 0, 0) {
        0 => Ok(()),
        _ => Err(std::io::Error::last_os_error()),
    };
    // SAFETY: between fork and exec it makes one system call.
    unsafe { command.pre_exec(traced) };
    let child = command.spawn().unwrap();
    let process = child.id() as i32;
    let (mut made, mut last, mut begun) = (0, None, std::collections::BTreeMap::new());
    while let Some((thread, status)) = wait() {
        assert!(thread != process || libc::WIFSTOPPED(status), "it ended after {made} steps: {status:#x}");
        if !libc::WIFSTOPPED(status) {
            continue;
        }
        let mut signal = libc::WSTOPSIG(status);
        if signal == libc::SIGTRAP | 0x80 {
            signal = 0;
            let mut info = CallInfo::default();
            let at = std::ptr::from_mut(&mut info) as usize;
            trace(libc::PTRACE_GET_SYSCALL_INFO, thread, size_of::<CallInfo>(), at);
            match info.op {
                ENTRY => drop(begun.insert(thread, step(info.number, info.arguments))),
                EXIT => {
                    if let Some(step) = begun.remove(&thread).flatten() {
                        (made, last) = (made + 1, Some(step));
                    }
                }
                _ => {}
            }
            if made == count {
                // SAFETY: a process that was started here and not waited for.
                unsafe { libc::kill(process, libc::SIGKILL) };
                while wait().is_some() {}
                return last.unwrap_or_default();
            }
        } else if signal == libc::SIGTRAP || signal == libc::SIGSTOP {
            // The start of the program, of a thread, or the event that reports it.
            signal = 0;
            let options = libc::PTRACE_O_TRACESYSGOOD | libc::PTRACE_O_TRACECLONE | libc::PTRACE_O_EXITKILL;
            trace(libc::PTRACE_SETOPTIONS, thread, 0, options as usize);
        }
        trace(libc::PTRACE_SYSCALL, thread, 0, signal as usize);
    }
    panic!("it was gone after {made} steps");
}

//! Grace periods: when no CPU is any longer inside a program that it was in.
#![allow(unsafe_code)]

use crate::error::{KernelError, Result};
use crate::sys::last_errno;

/// `MEMBARRIER_CMD_GLOBAL` of `linux/membarrier.h`: the kernel answers it by `synchronize_rcu()`.
const GLOBAL: libc::c_int = 1;

/// Waits until every program that runs now, on any CPU, has returned: some milliseconds. Programs run inside
/// RCU read-side sections, packet programs with bottom halves off as well.
///
/// # Errors
/// `EINVAL` or `ENOSYS` where the kernel does not offer it, such as with CPUs that have no tick
/// (`nohz_full`).
pub fn grace_period() -> Result<()> {
    // SAFETY: takes three integers and touches no memory of ours.
    let done = unsafe { libc::syscall(libc::SYS_membarrier, GLOBAL, 0, 0) };
    if done == 0 {
        Ok(())
    } else {
        Err(KernelError::call("membarrier", "waiting for a grace period", last_errno()))
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn a_grace_period_ends() {
        if let Err(e) = super::grace_period() {
            assert!(matches!(e.errno(), Some(libc::EINVAL | libc::ENOSYS)), "{e}");
        }
    }
}

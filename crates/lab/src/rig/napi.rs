//! Polling of an interface in a kernel thread.

use std::fs;

use crate::error::{Error, Result};
use crate::os;
use crate::rig::TEST_PORT;

/// A thread that polls, on a CPU of its own.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct NapiThread {
    /// The CPU.
    pub cpu: usize,
    /// The thread.
    pub thread: u32,
}

impl NapiThread {
    /// Nanoseconds that the thread was ready to run since it began, and other work of the machine ran
    /// instead. 0 where the kernel does not say.
    pub fn run_delay(&self) -> u64 {
        let stat = fs::read_to_string(format!("/proc/{}/schedstat", self.thread)).unwrap_or_default();
        stat.split_whitespace().nth(1).and_then(|ns| ns.parse().ok()).unwrap_or(0)
    }
}

/// Makes a device of the calling thread's network namespace poll in threads.
pub(crate) fn set_threaded(device: &str) -> Result<()> {
    let path = format!("/sys/class/net/{device}/threaded");
    os::with_sysfs(|| fs::write(&path, "1")).map_err(|e| Error::io(format!("writing {path}"), e))
}

/// The threads that poll test ports, of all rigs.
pub(crate) fn threads() -> Result<Vec<u32>> {
    let prefix = format!("napi/{TEST_PORT}-");
    let entries = fs::read_dir("/proc").map_err(|e| Error::io("reading /proc", e))?;
    let polls = |pid: &u32| {
        // A thread may end between the listing and the look.
        fs::read_to_string(format!("/proc/{pid}/comm")).is_ok_and(|name| name.starts_with(&prefix))
    };
    let pids = entries.flatten().filter_map(|e| e.file_name().to_str()?.parse().ok());
    Ok(pids.filter(polls).collect())
}

//! The process that asks: its memory, its descriptors, its credentials.
#![allow(unsafe_code)]

use std::fs;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};

/// Lines of `/proc/PID/status` that must be the same for a call to be made in a process's place.
const CREDENTIALS: [&str; 4] = ["Uid:", "Gid:", "Groups:", "CapEff:"];
/// Namespaces that must be the same.
const NAMESPACES: [&str; 3] = ["user", "net", "mnt"];

/// A process with a thread that waits for an answer.
pub(crate) struct AskingProcess {
    thread: u32,
    handle: OwnedFd,
}

impl AskingProcess {
    /// Opens the process of a thread.
    ///
    /// # Errors
    /// If it is gone, or is not to be looked at.
    pub(crate) fn open(thread: u32) -> io::Result<AskingProcess> {
        let status = fs::read_to_string(format!("/proc/{thread}/status"))?;
        let group = line(&status, "Tgid:").and_then(|id| id.trim().parse().ok());
        let group = group.ok_or_else(|| io::Error::other("the process has no id"))?;
        Ok(AskingProcess { thread, handle: handle(group)? })
    }

    /// Returns true if a call in its place has the rights that its own has: the same user, capabilities and
    /// namespaces.
    pub(crate) fn has_our_credentials(&self) -> io::Result<bool> {
        let theirs = fs::read_to_string(format!("/proc/{}/status", self.thread))?;
        let ours = fs::read_to_string("/proc/thread-self/status")?;
        let namespace = |of: &str, name: &str| fs::read_link(format!("/proc/{of}/ns/{name}"));
        for name in NAMESPACES {
            if namespace(&self.thread.to_string(), name)? != namespace("thread-self", name)? {
                return Ok(false);
            }
        }
        Ok(CREDENTIALS.iter().all(|name| line(&theirs, name) == line(&ours, name)))
    }

    /// Reads its memory.
    ///
    /// # Errors
    /// If there is less, or it is not to be read.
    pub(crate) fn read(&self, address: u64, length: usize) -> io::Result<Vec<u8>> {
        let mut bytes = vec![0; length];
        let here = libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: length };
        let there = libc::iovec { iov_base: address as *mut libc::c_void, iov_len: length };
        // SAFETY: the local part is live and so long; the kernel checks the other.
        let read = unsafe { libc::process_vm_readv(self.thread as libc::pid_t, &here, 1, &there, 1, 0) };
        all(read, length).map(|()| bytes)
    }

    /// Writes its memory.
    ///
    /// # Errors
    /// If there is less, or it is not to be written.
    pub(crate) fn write(&self, address: u64, bytes: &[u8]) -> io::Result<()> {
        let here = libc::iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() };
        let there = libc::iovec { iov_base: address as *mut libc::c_void, iov_len: bytes.len() };
        // SAFETY: the kernel only reads the local part, which is live; it checks the other.
        let written = unsafe { libc::process_vm_writev(self.thread as libc::pid_t, &here, 1, &there, 1, 0) };
        all(written, bytes.len())
    }

    /// A copy of one of its descriptors.
    ///
    /// # Errors
    /// If it has none of this number.
    pub(crate) fn descriptor(&self, fd: RawFd) -> io::Result<OwnedFd> {
        // SAFETY: no memory is passed.
        new_descriptor(unsafe { libc::syscall(libc::SYS_pidfd_getfd, self.handle.as_raw_fd(), fd, 0) })
    }
}

fn line<'s>(status: &'s str, name: &str) -> Option<&'s str> {
    status.lines().find_map(|line| line.strip_prefix(name))
}

fn new_descriptor(fd: libc::c_long) -> io::Result<OwnedFd> {
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the kernel has just made it for us.
    Ok(unsafe { OwnedFd::from_raw_fd(fd as RawFd) })
}

fn all(done: isize, wanted: usize) -> io::Result<()> {
    match usize::try_from(done) {
        Err(_) => Err(io::Error::last_os_error()),
        Ok(done) if done == wanted => Ok(()),
        Ok(_) => Err(io::ErrorKind::UnexpectedEof.into()),
    }
}

/// A descriptor of a process, which is readable once the process has ended.
///
/// # Errors
/// If there is no such process.
pub(crate) fn handle(process: u32) -> io::Result<OwnedFd> {
    // SAFETY: no memory is passed.
    new_descriptor(unsafe { libc::syscall(libc::SYS_pidfd_open, process, 0) })
}

/// Asks a child that was not waited for to end.
pub(crate) fn terminate(child: u32) {
    // SAFETY: no memory is passed.
    unsafe { libc::kill(child as libc::pid_t, libc::SIGTERM) };
}

//! Private network namespaces, which vanish with their last descriptor, so that there is never anything to
//! clean up.
#![allow(unsafe_code)]

use std::fs::File;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::path::Path;

use crate::error::{KernelError, Result};
use crate::sys::last_errno;

/// A network namespace, held by a descriptor.
///
/// A namespace belongs to a thread; [`Namespace::enter`] therefore runs its closure in a thread of its own,
/// and the caller's stays where it is.
#[derive(Debug)]
pub struct Namespace {
    file: File,
}

impl Namespace {
    /// Makes an empty namespace: a loopback that is down, and nothing else.
    ///
    /// # Errors
    /// `EPERM` without CAP_SYS_ADMIN.
    pub fn new() -> Result<Self> {
        in_thread(|| {
            // SAFETY: changes the namespace of this thread only, which was made for it and ends with it.
            if unsafe { libc::unshare(libc::CLONE_NEWNET) } < 0 {
                return Err(KernelError::call("unshare", "making a network namespace", last_errno()));
            }
            Self::open(Path::new("/proc/thread-self/ns/net"))
        })?
    }

    /// Opens the namespace of the calling thread.
    ///
    /// # Errors
    /// If /proc is not mounted.
    pub fn current() -> Result<Self> {
        Self::open(Path::new("/proc/thread-self/ns/net"))
    }

    /// Opens a namespace by its file, such as `/run/netns/NAME`.
    ///
    /// # Errors
    /// If the file cannot be opened. A file that is not a network namespace shows only when it is entered.
    pub fn open(path: &Path) -> Result<Self> {
        let file = File::open(path)
            .map_err(|source| KernelError::Read { path: path.to_string_lossy().into_owned(), source })?;
        Ok(Namespace { file })
    }

    /// Runs `f` in a thread inside the namespace and gives its result.
    ///
    /// # Errors
    /// If the namespace cannot be entered. A panic of `f` goes on in the caller.
    pub fn enter<R: Send>(&self, f: impl FnOnce() -> R + Send) -> Result<R> {
        in_thread(|| {
            // SAFETY: changes the namespace of this thread only, which was made for it and ends with it.
            if unsafe { libc::setns(self.file.as_raw_fd(), libc::CLONE_NEWNET) } < 0 {
                return Err(KernelError::call("setns", "entering a network namespace", last_errno()));
            }
            Ok(f())
        })?
    }
}

impl AsFd for Namespace {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

fn in_thread<R: Send>(f: impl FnOnce() -> R + Send) -> Result<R> {
    let joined = std::thread::scope(|scope| scope.spawn(f).join());
    // A panic of the closure is the caller's: tests rely on seeing it.
    Ok(joined.unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
}

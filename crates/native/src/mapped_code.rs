//! Memory for code that was compiled ahead of time.
//!
//! Invariant: it is executable or writable, never both.
#![allow(unsafe_code)]

use std::io;
use std::ptr::null_mut;

/// Code that was compiled ahead of time, in memory that is executable and not writable. Dropping it frees the
/// memory.
pub(crate) struct MappedCode {
    base: *mut libc::c_void,
    len: usize,
}

impl MappedCode {
    /// Copies position-independent code into executable memory.
    ///
    /// # Errors
    /// If the system has no memory, or forbids new code.
    pub(crate) fn new(code: &[u8]) -> io::Result<MappedCode> {
        let len = code.len().max(1);
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        // SAFETY: a new anonymous mapping touches no memory that exists.
        let base = unsafe { libc::mmap(null_mut(), len, libc::PROT_READ | libc::PROT_WRITE, flags, -1, 0) };
        if base == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let loaded = MappedCode { base, len };
        // SAFETY: the mapping is ours, new, and as long as the code.
        let done = unsafe {
            std::ptr::copy_nonoverlapping(code.as_ptr(), base.cast::<u8>(), code.len());
            libc::mprotect(base, len, libc::PROT_READ | libc::PROT_EXEC)
        };
        if done == 0 { Ok(loaded) } else { Err(io::Error::last_os_error()) }
    }

    pub(crate) fn address(&self) -> usize {
        self.base as usize
    }
}

impl Drop for MappedCode {
    fn drop(&mut self) {
        // SAFETY: our own mapping, of that length; the program that ran it is gone, since it holds this.
        unsafe { libc::munmap(self.base, self.len) };
    }
}

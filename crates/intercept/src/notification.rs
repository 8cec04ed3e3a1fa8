//! Questions of the kernel about system calls, and answers: seccomp_unotify(2).
#![allow(unsafe_code)]

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};

/// `struct seccomp_notif`, with `struct seccomp_data` in it.
#[repr(C)]
#[derive(Clone, Copy, Default, Debug)]
pub(crate) struct CallNotification {
    /// Number of the question.
    pub(crate) id: u64,
    /// The thread that calls.
    pub(crate) pid: u32,
    flags: u32,
    number: i32,
    architecture: u32,
    instruction: u64,
    /// Arguments of the call.
    pub(crate) arguments: [u64; 6],
}

/// `struct seccomp_notif_resp`.
#[repr(C)]
struct CallAnswer {
    id: u64,
    value: i64,
    error: i32,
    flags: u32,
}

/// `struct seccomp_notif_addfd`.
#[repr(C)]
struct DescriptorAnswer {
    id: u64,
    flags: u32,
    source: u32,
    new: u32,
    new_flags: u32,
}

const RECEIVE: libc::c_ulong = 0xc050_2100;
const SEND: libc::c_ulong = 0xc018_2101;
const IS_VALID: libc::c_ulong = 0x4008_2102;
const ADD_DESCRIPTOR: libc::c_ulong = 0x4018_2103;
/// `SECCOMP_USER_NOTIF_FLAG_CONTINUE`: the kernel makes the call.
const CONTINUE: u32 = 1;
/// `SECCOMP_ADDFD_FLAG_SEND`: the new descriptor is the call's result (Linux 5.14).
const AS_RESULT: u32 = 2;

/// The descriptor by which the kernel asks.
pub(crate) struct CallListener(pub(crate) OwnedFd);

/// Result of waiting for a question.
pub(crate) enum ListenerEvent {
    /// There is one.
    Asked(CallNotification),
    /// No process is left under the filter.
    Over,
    /// A signal came, or the child has ended.
    Nothing,
}

impl CallListener {
    /// Waits for a question, or for the end of a child, if its descriptor is given.
    pub(crate) fn wait(&self, child: Option<BorrowedFd<'_>>) -> io::Result<ListenerEvent> {
        // The kernel ignores negative descriptors.
        let fds = [self.0.as_raw_fd(), child.map_or(-1, |child| child.as_raw_fd())];
        let mut wanted = fds.map(|fd| libc::pollfd { fd, events: libc::POLLIN, revents: 0 });
        // SAFETY: two live structures.
        let ready = unsafe { libc::poll(wanted.as_mut_ptr(), 2, -1) };
        match wanted.map(|of| of.revents) {
            _ if ready < 0 => not_interrupted(io::Error::last_os_error()).map(|()| ListenerEvent::Nothing),
            [asked, _] if asked & libc::POLLIN != 0 => self.receive(),
            [0, _] => Ok(ListenerEvent::Nothing),
            _ => Ok(ListenerEvent::Over),
        }
    }

    fn receive(&self) -> io::Result<ListenerEvent> {
        let mut question = CallNotification::default();
        match self.control(RECEIVE, &mut question) {
            Ok(()) => Ok(ListenerEvent::Asked(question)),
            // The process was killed between.
            Err(error) if error.raw_os_error() == Some(libc::ENOENT) => Ok(ListenerEvent::Nothing),
            Err(error) => not_interrupted(error).map(|()| ListenerEvent::Nothing),
        }
    }

    /// Returns true if the call still waits: then what was read of its process was the process's.
    pub(crate) fn is_waiting(&self, question: &CallNotification) -> bool {
        self.control(IS_VALID, &mut question.id.clone()).is_ok()
    }

    /// Has the kernel make the call.
    pub(crate) fn go_on(&self, question: &CallNotification) {
        let mut answer = CallAnswer { id: question.id, value: 0, error: 0, flags: CONTINUE };
        // A process that was killed needs no answer.
        let _ = self.control(SEND, &mut answer);
    }

    /// Gives the process a copy of a descriptor, as the call's result.
    ///
    /// # Errors
    /// If the process has no room for it, or is gone, or the kernel is older than Linux 5.14.
    pub(crate) fn give(&self, question: &CallNotification, fd: BorrowedFd<'_>) -> io::Result<()> {
        let source = fd.as_raw_fd() as u32;
        let new_flags = libc::O_CLOEXEC as u32;
        self.control(
            ADD_DESCRIPTOR,
            &mut DescriptorAnswer { id: question.id, flags: AS_RESULT, source, new: 0, new_flags },
        )
    }

    fn control<T>(&self, request: libc::c_ulong, argument: &mut T) -> io::Result<()> {
        // SAFETY: each request is called with the structure that the kernel reads and writes for it.
        let result = unsafe { libc::ioctl(self.0.as_raw_fd(), request, std::ptr::from_mut(argument)) };
        if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
    }
}

fn not_interrupted(error: io::Error) -> io::Result<()> {
    if error.kind() == io::ErrorKind::Interrupted { Ok(()) } else { Err(error) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_have_the_sizes_of_their_structures() {
        let size = |request: libc::c_ulong| (request >> 16 & 0x3fff) as usize;
        assert_eq!(size(RECEIVE), size_of::<CallNotification>());
        assert_eq!(size(SEND), size_of::<CallAnswer>());
        assert_eq!(size(IS_VALID), size_of::<u64>());
        assert_eq!(size(ADD_DESCRIPTOR), size_of::<DescriptorAnswer>());
    }
}

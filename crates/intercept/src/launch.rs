//! Starting the loader under the filter, and receiving the descriptor by which the kernel asks.
#![allow(unsafe_code)]

use std::ffi::OsString;
use std::io;
use std::mem::size_of;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::net::UnixDatagram;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command};

use millstream_kernel::PROGRAM_LOAD;

/// `AUDIT_ARCH_*` of this machine's own system calls; calls of others go on unasked.
#[cfg(target_arch = "x86_64")]
const ARCHITECTURE: u32 = 0xc000_003e;
#[cfg(target_arch = "aarch64")]
const ARCHITECTURE: u32 = 0xc000_00b7;

// Offsets in `struct seccomp_data`: number of the call, architecture, low half of the first argument.
const NUMBER: u32 = 0;
const ARCH: u32 = 4;
const COMMAND: u32 = 16;

const fn load(offset: u32) -> libc::sock_filter {
    libc::sock_filter { code: (libc::BPF_LD | libc::BPF_W | libc::BPF_ABS) as u16, jt: 0, jf: 0, k: offset }
}

/// Goes on if equal, else over so many instructions.
const fn unless(value: u32, over: u8) -> libc::sock_filter {
    libc::sock_filter {
        code: (libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K) as u16,
        jt: 0,
        jf: over,
        k: value,
    }
}

const fn answer(action: u32) -> libc::sock_filter {
    libc::sock_filter { code: (libc::BPF_RET | libc::BPF_K) as u16, jt: 0, jf: 0, k: action }
}

/// Asks at bpf(PROG_LOAD), and lets everything else go on.
const FILTER: [libc::sock_filter; 8] = [
    load(ARCH),
    unless(ARCHITECTURE, 5),
    load(NUMBER),
    unless(libc::SYS_bpf as u32, 3),
    load(COMMAND),
    unless(PROGRAM_LOAD, 1),
    answer(libc::SECCOMP_RET_USER_NOTIF),
    answer(libc::SECCOMP_RET_ALLOW),
];

/// `SECCOMP_FILTER_FLAG_WAIT_KILLABLE_RECV` (Linux 5.19): a call under decision is not interrupted by signals that
/// do not kill. Without it, Go's runtime, which sends itself signals, would begin loads again and again.
const WAIT_KILLABLE: libc::c_ulong = 1 << 5;

/// A loader that runs, and the descriptor by which the kernel asks about its calls.
pub(crate) struct LaunchedLoader {
    pub(crate) child: Child,
    pub(crate) listener: OwnedFd,
}

/// Starts a command under the filter.
///
/// # Errors
/// If there is no such program, or the kernel does not take the filter.
pub(crate) fn launch(program: &OsString, arguments: &[OsString]) -> io::Result<LaunchedLoader> {
    let (here, there) = UnixDatagram::pair()?;
    let mut command = Command::new(program);
    command.args(arguments);
    let to = there.as_raw_fd();
    // SAFETY: between fork and exec, only system calls are made, and nothing is allocated.
    unsafe { command.pre_exec(move || send_descriptor(to, install_filter()?)) };
    let child = command.spawn()?;
    Ok(LaunchedLoader { child, listener: receive_descriptor(here.as_raw_fd())? })
}

/// Puts this process under the filter; returns the descriptor by which the kernel asks.
fn install_filter() -> io::Result<RawFd> {
    let filter = libc::sock_fprog { len: FILTER.len() as u16, filter: FILTER.as_ptr().cast_mut() };
    let install = |flags: libc::c_ulong| {
        // SAFETY: the filter is live, and the kernel only reads it.
        let fd = unsafe {
            libc::syscall(
                libc::SYS_seccomp,
                libc::SECCOMP_SET_MODE_FILTER,
                flags,
                std::ptr::from_ref(&filter),
            )
        };
        if fd < 0 { Err(io::Error::last_os_error()) } else { Ok(fd as RawFd) }
    };
    match install(libc::SECCOMP_FILTER_FLAG_NEW_LISTENER | WAIT_KILLABLE) {
        Err(error) if error.raw_os_error() == Some(libc::EINVAL) => {
            install(libc::SECCOMP_FILTER_FLAG_NEW_LISTENER)
        }
        installed => installed,
    }
}

/// Room for the header of a control message and one descriptor.
#[repr(C, align(8))]
struct ControlBuffer([u8; 32]);

/// A message of one byte with room for a descriptor; calls `act` with it.
fn with_message<T>(act: impl FnOnce(&mut libc::msghdr) -> T) -> T {
    let (mut byte, mut control) = ([0u8; 1], ControlBuffer([0; 32]));
    let mut part = libc::iovec { iov_base: byte.as_mut_ptr().cast(), iov_len: 1 };
    // SAFETY: integers and pointers, for which zero is a value.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    (message.msg_iov, message.msg_iovlen) = (&mut part, 1);
    message.msg_control = control.0.as_mut_ptr().cast();
    // SAFETY: arithmetic only.
    message.msg_controllen = unsafe { libc::CMSG_SPACE(size_of::<RawFd>() as u32) } as _;
    act(&mut message)
}

fn send_descriptor(socket: RawFd, fd: RawFd) -> io::Result<()> {
    with_message(|message| {
        // SAFETY: the control buffer has room for one header and descriptor.
        unsafe {
            let header = libc::CMSG_FIRSTHDR(message);
            ((*header).cmsg_level, (*header).cmsg_type) = (libc::SOL_SOCKET, libc::SCM_RIGHTS);
            (*header).cmsg_len = libc::CMSG_LEN(size_of::<RawFd>() as u32) as _;
            libc::CMSG_DATA(header).cast::<RawFd>().write_unaligned(fd);
        }
        // SAFETY: the message is live.
        let sent = unsafe { libc::sendmsg(socket, message, 0) };
        if sent < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
    })
}

fn receive_descriptor(socket: RawFd) -> io::Result<OwnedFd> {
    with_message(|message| {
        // SAFETY: the message is live, and its buffers are as long as it says.
        let received = unsafe { libc::recvmsg(socket, message, libc::MSG_DONTWAIT | libc::MSG_CMSG_CLOEXEC) };
        if received < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the kernel has filled in the control buffer, or said that it is empty.
        unsafe {
            let header = libc::CMSG_FIRSTHDR(message);
            if header.is_null() || (*header).cmsg_type != libc::SCM_RIGHTS {
                return Err(io::Error::other("the loader did not send the descriptor of its filter"));
            }
            Ok(OwnedFd::from_raw_fd(libc::CMSG_DATA(header).cast::<RawFd>().read_unaligned()))
        }
    })
}

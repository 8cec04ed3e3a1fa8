//! TAP interfaces: frames that the host sends into one are received here, and frames sent here are received
//! by the host. TUN interfaces are the same without Ethernet: IP packets.
//!
//! Source: `Documentation/networking/tuntap.rst` and `drivers/net/tun.c` of Linux 6.18.
#![allow(unsafe_code)]

use std::fs::{File, OpenOptions};
use std::io::{ErrorKind, Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;
use std::time::Duration;

use crate::error::{KernelError, Result};
use crate::iface::{interface_index, set_up};
use crate::packet::poll_for;
use crate::sys::last_errno;

/// A TAP or TUN interface. It lives as long as this value, unless it has been made persistent.
#[derive(Debug)]
pub struct Tap {
    file: File,
    ifindex: u32,
}

impl Tap {
    /// Makes an interface of this name in the calling thread's namespace, or takes the persistent one that is
    /// there, and sets it up.
    ///
    /// # Errors
    /// `EPERM` without CAP_NET_ADMIN, `EBUSY` if another process has it, `EINVAL` if it is none.
    pub fn open(name: &str) -> Result<Tap> {
        Tap::of_kind(name, "TAP", libc::IFF_TAP)
    }

    /// Opens an interface as by [`Tap::open`], with `count` queues: the kernel gives each the packets of its
    /// flows.
    ///
    /// # Errors
    /// As there, and `EINVAL` for a persistent one that has one queue only.
    pub fn open_queues(name: &str, count: u32) -> Result<Vec<Tap>> {
        (0..count).map(|_| Tap::of_kind(name, "TAP", libc::IFF_TAP | libc::IFF_MULTI_QUEUE)).collect()
    }

    /// The same with IP packets in place of frames: a TUN interface.
    ///
    /// # Errors
    /// As for [`Tap::open`].
    pub fn open_tun(name: &str) -> Result<Tap> {
        Tap::of_kind(name, "TUN", libc::IFF_TUN)
    }

    /// As [`Tap::open_queues`], of a TUN interface.
    ///
    /// # Errors
    /// As there.
    pub fn open_tun_queues(name: &str, count: u32) -> Result<Vec<Tap>> {
        (0..count).map(|_| Tap::of_kind(name, "TUN", libc::IFF_TUN | libc::IFF_MULTI_QUEUE)).collect()
    }

    fn of_kind(name: &str, kind: &str, flag: libc::c_int) -> Result<Tap> {
        let doing = || format!("opening the {kind} interface {name:?}");
        let failed =
            |e: std::io::Error| KernelError::call("open", doing(), e.raw_os_error().unwrap_or(libc::EIO));
        let mut options = OpenOptions::new();
        let file = options
            .read(true)
            .write(true)
            .custom_flags(libc::O_NONBLOCK)
            .open("/dev/net/tun")
            .map_err(failed)?;
        // SAFETY: an all-zero request is a value.
        let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
        if name.is_empty() || name.len() >= request.ifr_name.len() {
            return Err(KernelError::argument(doing(), "no interface has a name of this length"));
        }
        for (to, from) in request.ifr_name.iter_mut().zip(name.bytes()) {
            *to = from as libc::c_char;
        }
        request.ifr_ifru.ifru_flags = (flag | libc::IFF_NO_PI) as libc::c_short;
        // SAFETY: reads and writes one request, which is live.
        if unsafe { libc::ioctl(file.as_raw_fd(), libc::TUNSETIFF, &mut request) } < 0 {
            return Err(KernelError::call("ioctl(TUNSETIFF)", doing(), last_errno()));
        }
        let ifindex = interface_index(name)?;
        set_up(ifindex)?;
        Ok(Tap { file, ifindex })
    }

    /// The interface.
    pub fn ifindex(&self) -> u32 {
        self.ifindex
    }

    /// Puts the next frame, or packet, of the host's into `frame`, and returns its length; `None` if there is
    /// none now.
    ///
    /// # Errors
    /// If the interface has gone.
    pub fn receive(&self, frame: &mut [u8]) -> Result<Option<usize>> {
        match (&self.file).read(frame) {
            Ok(length) => Ok(Some(length)),
            Err(e) if matches!(e.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => Ok(None),
            Err(e) => {
                let errno = e.raw_os_error().unwrap_or(libc::EIO);
                Err(KernelError::call("read", format!("receiving at interface {}", self.ifindex), errno))
            }
        }
    }

    /// Hands a frame to the host.
    ///
    /// # Errors
    /// The kernel's error, such as `EIO` where the interface is down.
    pub fn send(&self, frame: &[u8]) -> Result<()> {
        let errno = match (&self.file).write(frame) {
            Ok(length) if length == frame.len() => return Ok(()),
            Ok(_) => libc::EMSGSIZE,
            Err(e) => e.raw_os_error().unwrap_or(libc::EIO),
        };
        Err(KernelError::call("write", format!("sending at interface {}", self.ifindex), errno))
    }

    /// Waits until there is a frame, or so long, or a signal comes.
    ///
    /// # Errors
    /// What poll(2) refuses.
    pub fn wait(&self, at_most: Duration) -> Result<()> {
        poll_for(&[self.file.as_raw_fd()], at_most)
    }
}

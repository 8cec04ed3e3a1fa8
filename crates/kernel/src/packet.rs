//! Packet sockets: frames of an interface, as they come to the stack and go out of it.
//!
//! For control planes: frames that an XDP program passes on are received here, and frames that it cannot send
//! (one to several ports) are sent here. The kernel takes a VLAN tag out of a frame before a socket sees it;
//! it is put back.
//!
//! Sources: packet(7) and `include/uapi/linux/if_packet.h` of Linux 6.18.
#![allow(unsafe_code)]

use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::time::Duration;

use crate::error::{KernelError, Result};
use crate::sys::last_errno;

/// `PACKET_IGNORE_OUTGOING`.
const IGNORE_OUTGOING: libc::c_int = 23;
/// `PACKET_FANOUT`, and the bits above the group's number: `PACKET_FANOUT_HASH`, with
/// `PACKET_FANOUT_FLAG_IGNORE_OUTGOING`, and of the first socket `PACKET_FANOUT_FLAG_UNIQUEID`.
const FANOUT: libc::c_int = 18;
const BY_FLOW: u32 = 0x4000 << 16;
const NEW_GROUP: u32 = 0x2000 << 16;
/// `TP_STATUS_VLAN_VALID`.
const VLAN_VALID: u32 = 1 << 4;
/// `TP_STATUS_VLAN_TPID_VALID`.
const TPID_VALID: u32 = 1 << 6;
const ETHERTYPE_VLAN: u16 = 0x8100;
/// Both addresses, behind which a tag stands.
const ADDRESSES: usize = 12;
/// Room for frames that are not taken yet, in bytes: those of a few hundred milliseconds on a busy machine.
const ROOM: libc::c_int = 16 << 20;
/// Room for the longest frame that is received. None is cut, for no link has longer ones.
pub const LONGEST: usize = 1 << 16;

/// A raw socket on one interface.
#[derive(Debug)]
pub struct PacketSocket {
    fd: OwnedFd,
    ifindex: u32,
}

impl PacketSocket {
    /// Opens a socket for all frames that come in at an interface of the calling thread's namespace, whoever
    /// they are for.
    ///
    /// # Errors
    /// `EPERM` without CAP_NET_RAW, `ENODEV` without the interface.
    pub fn open(ifindex: u32) -> Result<Self> {
        let protocol = (libc::ETH_P_ALL as u16).to_be();
        let kind = libc::SOCK_RAW | libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC;
        // SAFETY: passes numbers only. Protocol 0 at first, so that nothing comes in before the socket is
        // bound.
        let fd = unsafe { libc::socket(libc::AF_PACKET, kind, 0) };
        if fd < 0 {
            return Err(KernelError::call("socket(AF_PACKET)", doing("opening", ifindex), last_errno()));
        }
        // SAFETY: the descriptor was just made and has no other owner.
        let socket = PacketSocket { fd: unsafe { OwnedFd::from_raw_fd(fd) }, ifindex };
        socket.make_room();
        socket.set(IGNORE_OUTGOING, &1i32)?;
        socket.set(libc::PACKET_AUXDATA, &1i32)?;
        let everyone = libc::packet_mreq {
            mr_ifindex: ifindex as i32,
            mr_type: libc::PACKET_MR_PROMISC as u16,
            mr_alen: 0,
            mr_address: [0; 8],
        };
        socket.set(libc::PACKET_ADD_MEMBERSHIP, &everyone)?;
        // SAFETY: an all-zero sockaddr_ll is a value.
        let mut address: libc::sockaddr_ll = unsafe { std::mem::zeroed() };
        address.sll_family = libc::AF_PACKET as u16;
        address.sll_protocol = protocol;
        address.sll_ifindex = ifindex as i32;
        // SAFETY: reads one address of the size said.
        let bound = unsafe {
            libc::bind(fd, std::ptr::from_ref(&address).cast(), size_of_val(&address) as libc::socklen_t)
        };
        if bound < 0 {
            return Err(KernelError::call("bind(AF_PACKET)", doing("listening at", ifindex), last_errno()));
        }
        Ok(socket)
    }

    /// Opens `count` sockets as by [`PacketSocket::open`]. Each gets the frames of its flows: all of a
    /// connection, in both directions, come by the same one.
    ///
    /// # Errors
    /// As there, and `EINVAL` where the kernel does not spread frames that way.
    pub fn open_by_flow(ifindex: u32, count: u32) -> Result<Vec<Self>> {
        let sockets = (0..count).map(|_| PacketSocket::open(ifindex)).collect::<Result<Vec<_>>>()?;
        let Some((first, others)) = sockets.split_first() else { return Ok(sockets) };
        first.set(FANOUT, &(BY_FLOW | NEW_GROUP))?;
        let group = first.get::<u32>(FANOUT)? & 0xffff;
        others.iter().try_for_each(|socket| socket.set(FANOUT, &(BY_FLOW | group)))?;
        // Earlier frames have come to several of them.
        let mut frame = vec![0; LONGEST];
        for socket in &sockets {
            while socket.receive_into(&mut frame)?.is_some() {}
            socket.take_drop_count()?;
        }
        Ok(sockets)
    }

    /// Gives the socket [`ROOM`], or without CAP_NET_ADMIN as much as `net.core.rmem_max` allows (socket(7)).
    fn make_room(&self) {
        for option in [libc::SO_RCVBUFFORCE, libc::SO_RCVBUF] {
            let (value, len) = (std::ptr::from_ref(&ROOM).cast(), size_of_val(&ROOM) as libc::socklen_t);
            // SAFETY: reads one number of the size said.
            if unsafe { libc::setsockopt(self.fd.as_raw_fd(), libc::SOL_SOCKET, option, value, len) } == 0 {
                return;
            }
        }
    }

    /// `T` is what packet(7) has for the option.
    fn set<T>(&self, option: libc::c_int, value: &T) -> Result<()> {
        let len = size_of::<T>() as libc::socklen_t;
        let value = std::ptr::from_ref(value).cast();
        // SAFETY: reads one value of the size said.
        let set = unsafe { libc::setsockopt(self.fd.as_raw_fd(), libc::SOL_PACKET, option, value, len) };
        match set {
            0 => Ok(()),
            _ => Err(KernelError::call(
                "setsockopt(SOL_PACKET)",
                doing("preparing a socket at", self.ifindex),
                last_errno(),
            )),
        }
    }

    /// The interface.
    pub fn ifindex(&self) -> u32 {
        self.ifindex
    }

    /// The next frame that has come in, with its VLAN tag; `None` if there is none now.
    ///
    /// # Errors
    /// The kernel's error for the interface, such as `ENETDOWN`.
    pub fn receive(&self) -> Result<Option<Vec<u8>>> {
        let mut frame = vec![0u8; LONGEST];
        let length = self.receive_into(&mut frame)?;
        Ok(length.map(|length| {
            frame.truncate(length);
            frame
        }))
    }

    /// As [`PacketSocket::receive`], into `frame`, and says how long it is.
    ///
    /// # Errors
    /// As there.
    pub fn receive_into(&self, frame: &mut [u8]) -> Result<Option<usize>> {
        let mut control = [0u64; 8];
        let mut part = libc::iovec { iov_base: frame.as_mut_ptr().cast(), iov_len: frame.len() };
        // SAFETY: an all-zero msghdr is a value.
        let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
        message.msg_iov = &mut part;
        message.msg_iovlen = 1;
        message.msg_control = control.as_mut_ptr().cast();
        message.msg_controllen = size_of_val(&control);
        // SAFETY: frame and control buffer are live, exclusive and as long as said.
        let len = unsafe { libc::recvmsg(self.fd.as_raw_fd(), &mut message, 0) };
        if len < 0 {
            return match last_errno() {
                libc::EAGAIN | libc::EINTR => Ok(None),
                errno => Err(KernelError::call("recvmsg", doing("receiving at", self.ifindex), errno)),
            };
        }
        let len = len as usize;
        let Some(tag) = tag(&message).filter(|tag| len >= ADDRESSES && len + tag.len() <= frame.len()) else {
            return Ok(Some(len));
        };
        frame.copy_within(ADDRESSES..len, ADDRESSES + tag.len());
        frame[ADDRESSES..ADDRESSES + tag.len()].copy_from_slice(&tag);
        Ok(Some(len + tag.len()))
    }

    /// Frames that came in since the last call, and found no room in the socket.
    ///
    /// # Errors
    /// What getsockopt(2) refuses.
    pub fn take_drop_count(&self) -> Result<u64> {
        self.get::<libc::tpacket_stats>(libc::PACKET_STATISTICS).map(|found| found.tp_drops.into())
    }

    /// `T` is what packet(7) has for the option, made of integers.
    fn get<T>(&self, option: libc::c_int) -> Result<T> {
        // SAFETY: integers may be zero.
        let mut found: T = unsafe { std::mem::zeroed() };
        let mut length = size_of::<T>() as libc::socklen_t;
        let to = std::ptr::from_mut(&mut found).cast();
        // SAFETY: writes no more than one value of the size said.
        match unsafe { libc::getsockopt(self.fd.as_raw_fd(), libc::SOL_PACKET, option, to, &mut length) } {
            0 => Ok(found),
            _ => Err(KernelError::call(
                "getsockopt(SOL_PACKET)",
                doing("asking about", self.ifindex),
                last_errno(),
            )),
        }
    }

    /// Sends a frame out of the interface.
    ///
    /// # Errors
    /// The kernel's error, such as `ENETDOWN`, `EMSGSIZE` or, with a full queue, `ENOBUFS`.
    pub fn send(&self, frame: &[u8]) -> Result<()> {
        // SAFETY: reads the frame, which is live.
        let sent = unsafe { libc::send(self.fd.as_raw_fd(), frame.as_ptr().cast(), frame.len(), 0) };
        match sent {
            0.. => Ok(()),
            _ => Err(KernelError::call("send", doing("sending at", self.ifindex), last_errno())),
        }
    }

    /// Waits until one of these has a frame, or so long, or a signal comes.
    ///
    /// # Errors
    /// What poll(2) refuses.
    pub fn wait(sockets: &[PacketSocket], at_most: Duration) -> Result<()> {
        let all: Vec<RawFd> = sockets.iter().map(|socket| socket.fd.as_raw_fd()).collect();
        poll_for(&all, at_most)
    }
}

/// Waits until one of these can be read, or so long, or a signal comes.
pub(crate) fn poll_for(all: &[RawFd], at_most: Duration) -> Result<()> {
    let mut polled: Vec<libc::pollfd> =
        all.iter().map(|fd| libc::pollfd { fd: *fd, events: libc::POLLIN, revents: 0 }).collect();
    let timeout = i32::try_from(at_most.as_millis()).unwrap_or(i32::MAX);
    // SAFETY: writes to as many elements as said.
    let ready = unsafe { libc::poll(polled.as_mut_ptr(), polled.len() as libc::nfds_t, timeout) };
    match ready {
        0.. => Ok(()),
        _ if last_errno() == libc::EINTR => Ok(()),
        _ => Err(KernelError::call("poll", "waiting for frames".to_owned(), last_errno())),
    }
}

fn doing(verb: &str, ifindex: u32) -> String {
    format!("{verb} interface {ifindex}")
}

/// The tag that the kernel took out of the frame, as it stood there.
fn tag(message: &libc::msghdr) -> Option<[u8; 4]> {
    // SAFETY: the kernel has filled the control buffer and its length, and it is still live.
    let header = unsafe { libc::CMSG_FIRSTHDR(message).as_ref() }?;
    let room = size_of::<libc::tpacket_auxdata>();
    // SAFETY: computes a length.
    let needed = unsafe { libc::CMSG_LEN(room as u32) } as usize;
    if (header.cmsg_level, header.cmsg_type) != (libc::SOL_PACKET, libc::PACKET_AUXDATA)
        || header.cmsg_len < needed
    {
        return None;
    }
    // SAFETY: the message is as long as checked above, and any bytes are a value.
    let auxiliary = unsafe { libc::CMSG_DATA(header).cast::<libc::tpacket_auxdata>().read_unaligned() };
    if auxiliary.tp_status & VLAN_VALID == 0 {
        return None;
    }
    let kind = if auxiliary.tp_status & TPID_VALID != 0 { auxiliary.tp_vlan_tpid } else { ETHERTYPE_VLAN };
    let [a, b] = kind.to_be_bytes();
    let [c, d] = auxiliary.tp_vlan_tci.to_be_bytes();
    Some([a, b, c, d])
}

//! As much rtnetlink as XDP, filters, veth pairs and names of interfaces need: one request, its answers, its
//! acknowledgement.
//!
//! Sources: `include/uapi/linux/{netlink,rtnetlink,if_link}.h` of Linux 6.18.
#![allow(unsafe_code)]

use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

use crate::error::{Errno, KernelError, Result};
use crate::sys::last_errno;

const NLMSG_ERROR: u16 = 2;
const NLMSG_DONE: u16 = 3;
const NLM_F_CAPPED: u16 = 0x100;
const NLM_F_ACK_TLVS: u16 = 0x200;
const NLMSGERR_ATTR_MSG: u16 = 1;
const HEADER: usize = 16;
/// `struct ifinfomsg`.
const IFINFO: usize = 16;
const NESTED: u16 = 0x8000;

/// A request: header, `ifinfomsg` or `tcmsg`, attributes.
pub(crate) struct NetlinkRequest {
    bytes: Vec<u8>,
}

impl NetlinkRequest {
    /// A request about interface `ifindex` (0 for none) with device flags `set` out of `mask`.
    pub(crate) fn link(kind: u16, flags: u16, ifindex: u32, set: u32, mask: u32) -> Self {
        Self::new(kind, flags, &[0, ifindex, set, mask])
    }

    /// A request about traffic control: the words of `struct tcmsg` behind its family.
    pub(crate) fn tc(kind: u16, flags: u16, [ifindex, handle, parent, info]: [u32; 4]) -> Self {
        Self::new(kind, flags, &[0, ifindex, handle, parent, info])
    }

    /// A request for all objects of a kind in IPv4, whose own header has `header` bytes.
    pub(crate) fn ipv4(kind: u16, header: usize) -> Self {
        let mut words = vec![0; header / 4];
        words[0] = u32::from_ne_bytes([libc::AF_INET as u8, 0, 0, 0]);
        Self::new(kind, libc::NLM_F_DUMP as u16, &words)
    }

    /// A request that begins with these words.
    fn new(kind: u16, flags: u16, words: &[u32]) -> Self {
        let mut bytes = vec![0u8; HEADER];
        bytes[4..6].copy_from_slice(&kind.to_ne_bytes());
        let flags = flags | (libc::NLM_F_REQUEST | libc::NLM_F_ACK) as u16;
        bytes[6..8].copy_from_slice(&flags.to_ne_bytes());
        bytes.extend(words.iter().flat_map(|word| word.to_ne_bytes()));
        NetlinkRequest { bytes }
    }

    /// Appends an attribute.
    pub(crate) fn attribute(&mut self, kind: u16, payload: &[u8]) {
        self.bytes.extend((4 + payload.len() as u16).to_ne_bytes());
        self.bytes.extend(kind.to_ne_bytes());
        self.bytes.extend(payload);
        self.pad();
    }

    /// Appends a string attribute, with its zero byte.
    pub(crate) fn text(&mut self, kind: u16, text: &str) {
        let mut payload = text.as_bytes().to_vec();
        payload.push(0);
        self.attribute(kind, &payload);
    }

    /// Appends an attribute that holds what `fill` appends, which may start with raw bytes.
    pub(crate) fn nest(&mut self, kind: u16, raw: &[u8], fill: impl FnOnce(&mut Self)) {
        let start = self.bytes.len();
        self.bytes.extend([0; 4]);
        self.bytes.extend(raw);
        fill(self);
        let len = (self.bytes.len() - start) as u16;
        self.bytes[start..start + 2].copy_from_slice(&len.to_ne_bytes());
        self.bytes[start + 2..start + 4].copy_from_slice(&(kind | NESTED).to_ne_bytes());
        self.pad();
    }

    fn pad(&mut self) {
        self.bytes.resize(self.bytes.len().next_multiple_of(4), 0);
    }

    /// Sends the request and gives the payloads (from `ifinfomsg` on) of the answers.
    pub(crate) fn send(mut self, doing: &str) -> Result<Vec<Vec<u8>>> {
        let socket = open(doing)?;
        let len = self.bytes.len() as u32;
        self.bytes[0..4].copy_from_slice(&len.to_ne_bytes());
        // SAFETY: the buffer is live and as long as said.
        let sent = unsafe { libc::send(socket.as_raw_fd(), self.bytes.as_ptr().cast(), self.bytes.len(), 0) };
        if sent < 0 {
            return Err(KernelError::call("rtnetlink(send)", doing, last_errno()));
        }
        receive(&socket, doing)
    }
}

fn open(doing: &str) -> Result<OwnedFd> {
    let fail = || KernelError::call("rtnetlink(socket)", doing, last_errno());
    // SAFETY: no memory is passed.
    let fd =
        unsafe { libc::socket(libc::AF_NETLINK, libc::SOCK_RAW | libc::SOCK_CLOEXEC, libc::NETLINK_ROUTE) };
    if fd < 0 {
        return Err(fail());
    }
    // SAFETY: just made, and ours alone.
    let socket = unsafe { OwnedFd::from_raw_fd(fd) };
    let one: libc::c_int = 1;
    // SAFETY: `one` is live and of the size said. A kernel without this option only loses the text of errors.
    unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            libc::SOL_NETLINK,
            libc::NETLINK_EXT_ACK,
            std::ptr::from_ref(&one).cast(),
            size_of_val(&one) as u32,
        )
    };
    Ok(socket)
}

fn receive(socket: &OwnedFd, doing: &str) -> Result<Vec<Vec<u8>>> {
    let mut answers = Vec::new();
    let mut buffer = vec![0u8; 64 << 10];
    loop {
        // SAFETY: the buffer is live, exclusive and as long as said.
        let n = unsafe { libc::recv(socket.as_raw_fd(), buffer.as_mut_ptr().cast(), buffer.len(), 0) };
        if n < 0 {
            match last_errno() {
                libc::EINTR => continue,
                errno => return Err(KernelError::call("rtnetlink(recv)", doing, errno)),
            }
        }
        let mut rest = &buffer[..n as usize];
        while let Some((kind, flags, payload, tail)) = message(rest) {
            match kind {
                NLMSG_ERROR => return acknowledged(flags, payload, doing).map(|()| answers),
                NLMSG_DONE => return Ok(answers),
                _ => answers.push(payload.to_vec()),
            }
            rest = tail;
        }
    }
}

/// Splits the first message off: type, flags, payload, rest.
fn message(bytes: &[u8]) -> Option<(u16, u16, &[u8], &[u8])> {
    let len = u32_at(bytes, 0)? as usize;
    let payload = bytes.get(HEADER..len)?;
    let rest = bytes.get(len.next_multiple_of(4)..).unwrap_or_default();
    Some((u16_at(bytes, 4)?, u16_at(bytes, 6)?, payload, rest))
}

fn acknowledged(flags: u16, payload: &[u8], doing: &str) -> Result<()> {
    let errno = u32_at(payload, 0).map_or(libc::EPROTO, |e| (e as i32).wrapping_neg());
    if errno == 0 {
        return Ok(());
    }
    let echoed = if flags & NLM_F_CAPPED != 0 { HEADER } else { u32_at(payload, 4).unwrap_or(0) as usize };
    let mut detail = String::new();
    if flags & NLM_F_ACK_TLVS != 0 {
        let tlvs = payload.get(4 + echoed.next_multiple_of(4)..).unwrap_or_default();
        for (kind, text) in attributes(tlvs) {
            if kind == NLMSGERR_ATTR_MSG {
                detail = String::from_utf8_lossy(text).trim_end_matches('\0').to_owned();
            }
        }
    }
    Err(KernelError::Call { call: "rtnetlink", doing: doing.to_owned(), errno: Errno(errno), detail })
}

/// Interface index and device flags of an answer on the link family.
pub(crate) fn link_answer(payload: &[u8]) -> Option<(u32, u32)> {
    Some((u32_at(payload, 4)?, u32_at(payload, 8)?))
}

/// The attributes of an answer on the link family.
pub(crate) fn link_attributes(payload: &[u8]) -> impl Iterator<Item = (u16, &[u8])> {
    attributes(payload.get(IFINFO..).unwrap_or_default())
}

/// Walks attributes: type (without the nesting bit) and payload. Stops at the first malformed one.
pub(crate) fn attributes(mut bytes: &[u8]) -> impl Iterator<Item = (u16, &[u8])> {
    std::iter::from_fn(move || {
        let len = u16_at(bytes, 0)? as usize;
        let kind = u16_at(bytes, 2)? & !NESTED;
        let payload = bytes.get(4..len)?;
        bytes = bytes.get(len.next_multiple_of(4)..).unwrap_or_default();
        Some((kind, payload))
    })
}

/// The 32-bit word at `at`, if the bytes reach so far.
pub(crate) fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    bytes.get(at..at + 4)?.try_into().ok().map(u32::from_ne_bytes)
}

fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    bytes.get(at..at + 2)?.try_into().ok().map(u16::from_ne_bytes)
}

/// The index of an interface of this thread's namespace; 0 if there is none of that name.
pub(crate) fn name_to_index(name: &std::ffi::CStr) -> u32 {
    // SAFETY: a live, zero-terminated string.
    unsafe { libc::if_nametoindex(name.as_ptr()) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        addresses, create_veth, gateways, interface, interface_index, interfaces, set_up, set_up_pair,
        testing,
    };

    #[test]
    fn malformed_answers_end_the_walk() {
        assert_eq!(attributes(&[]).count(), 0);
        assert_eq!(attributes(&[3, 0, 1, 0]).count(), 0, "shorter than its own header");
        assert_eq!(attributes(&[200, 0, 1, 0, 5]).count(), 0, "longer than the message");
        assert_eq!(attributes(&[5, 0, 1, 128, 7]).collect::<Vec<_>>(), [(1, &[7u8][..])]);
        assert!(message(&[16, 0, 0, 0]).is_none());
    }

    #[test]
    fn addresses_and_gateways_are_those_of_a_namespace() {
        if !testing::require() {
            return;
        }
        let seen = || -> Result<()> {
            let lo = interface_index("lo")?;
            set_up(lo)?;
            let (a, b) = create_veth("msk0", "msk1", 1)?;
            set_up_pair((a, b))?;
            let family = u32::from_ne_bytes([libc::AF_INET as u8, 24, 0, 0]);
            let create = libc::NLM_F_CREATE as u16;
            let mut address = NetlinkRequest::new(libc::RTM_NEWADDR, create, &[family, a]);
            address.attribute(libc::IFA_LOCAL, &[192, 0, 2, 2]);
            address.attribute(libc::IFA_ADDRESS, &[192, 0, 2, 2]);
            address.send("adding an address")?;
            let found = addresses()?;
            // The kernel itself gives the loopback its address.
            assert_eq!(found, [(lo, [127, 0, 0, 1].into(), 8), (a, [192, 0, 2, 2].into(), 24)]);
            assert_eq!(gateways()?, [], "the network's own route has none");
            for (last, priority) in [(254u8, 20u32), (253, 10)] {
                let family = u32::from_ne_bytes([libc::AF_INET as u8, 0, 0, 0]);
                let kind = [libc::RT_TABLE_MAIN, libc::RTPROT_STATIC, 0, libc::RTN_UNICAST];
                let mut route =
                    NetlinkRequest::new(libc::RTM_NEWROUTE, create, &[family, u32::from_ne_bytes(kind), 0]);
                route.attribute(libc::RTA_OIF, &a.to_ne_bytes());
                route.attribute(libc::RTA_GATEWAY, &[192, 0, 2, last]);
                route.attribute(libc::RTA_PRIORITY, &priority.to_ne_bytes());
                route.send("adding a route")?;
            }
            assert_eq!(gateways()?, [253, 254].map(|last| (a, [192, 0, 2, last].into())));
            let all = interfaces()?;
            let of = |index| all.iter().find(|interface| interface.index == index).expect("is there");
            assert_eq!((of(lo).name.as_str(), of(lo).ethernet), ("lo", false));
            assert_eq!((of(b).name.as_str(), of(b).ethernet, of(b).address.len()), ("msk1", true, 6));
            assert_eq!(*of(a), interface(a)?);
            Ok(())
        };
        crate::Namespace::new().unwrap().enter(seen).unwrap().unwrap();
    }
}

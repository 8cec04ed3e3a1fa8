//! Frames for tests and traffic: described by fields, built with right lengths and checksums.
//!
//! Lengths are those that a program sees, without the frame check sequence.

use std::net::Ipv4Addr;

use millstream_rng::Rng;

/// A link-layer address.
pub type MacAddress = [u8; 6];

/// EtherType of IPv4.
pub const ETHERTYPE_IPV4: u16 = 0x0800;
/// EtherType of IPv6.
pub const ETHERTYPE_IPV6: u16 = 0x86dd;
/// EtherType of an 802.1Q tag.
pub const ETHERTYPE_VLAN: u16 = 0x8100;
/// IP protocol number of ICMP.
pub const ICMP: u8 = 1;
/// IP protocol number of TCP.
pub const TCP: u8 = 6;
/// IP protocol number of UDP.
pub const UDP: u8 = 17;
/// Frames are padded to this many bytes unless said otherwise.
pub const DEFAULT_LENGTH: usize = 64;

/// Payload of the IPv4 header.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TransportHeader {
    /// A UDP datagram.
    Udp {
        /// Source port.
        src: u16,
        /// Destination port.
        dst: u16,
    },
    /// A TCP segment without options.
    Tcp {
        /// Source port.
        src: u16,
        /// Destination port.
        dst: u16,
        /// The flags byte: FIN 1, SYN 2, RST 4, ACK 16.
        flags: u8,
    },
    /// An ICMP echo request or reply.
    Echo {
        /// True for the reply.
        reply: bool,
        /// The identifier.
        id: u16,
    },
    /// Anything: its bytes are taken as they are.
    Raw {
        /// IP protocol number.
        protocol: u8,
        /// Header and payload of the transport.
        bytes: Vec<u8>,
    },
}

/// An Ethernet frame with an IPv4 packet; [`Default`] gives a plain UDP datagram of 64 bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EthernetFrame {
    /// Destination of the frame.
    pub dst_mac: MacAddress,
    /// Source of the frame.
    pub src_mac: MacAddress,
    /// Tag control information of an 802.1Q tag, if there is one.
    pub vlan: Option<u16>,
    /// Source address.
    pub src: Ipv4Addr,
    /// Destination address.
    pub dst: Ipv4Addr,
    /// Time to live.
    pub ttl: u8,
    /// Identification.
    pub id: u16,
    /// Flags and fragment offset, as in the header (0x4000: don't fragment; 0x2000: more fragments).
    pub fragment: u16,
    /// Options, a multiple of four bytes, at most 40.
    pub options: Vec<u8>,
    /// The transport.
    pub transport: TransportHeader,
    /// Bytes of the frame; the payload is what fills it. A frame that needs more gets more.
    pub length: usize,
}

impl Default for EthernetFrame {
    fn default() -> Self {
        Self {
            dst_mac: [2, 0, 0, 0, 0, 1],
            src_mac: [2, 0, 0, 0, 0, 2],
            vlan: None,
            src: Ipv4Addr::new(198, 18, 0, 1),
            dst: Ipv4Addr::new(198, 19, 0, 1),
            ttl: 64,
            id: 0,
            fragment: 0x4000,
            options: Vec::new(),
            transport: TransportHeader::Udp { src: 1024, dst: 9 },
            length: DEFAULT_LENGTH,
        }
    }
}

impl EthernetFrame {
    /// The bytes on the wire.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut frame = Vec::with_capacity(self.length);
        frame.extend(self.dst_mac);
        frame.extend(self.src_mac);
        if let Some(tci) = self.vlan {
            frame.extend(ETHERTYPE_VLAN.to_be_bytes());
            frame.extend(tci.to_be_bytes());
        }
        frame.extend(ETHERTYPE_IPV4.to_be_bytes());
        let header = 20 + self.options.len();
        let transport = self.transport_bytes(self.length.saturating_sub(frame.len() + header));
        frame.extend(self.ip_header(header + transport.len()));
        frame.extend(transport);
        frame
    }

    fn ip_header(&self, total: usize) -> Vec<u8> {
        let words = (20 + self.options.len()) / 4;
        let mut ip = vec![0x40 | words as u8, 0];
        ip.extend((total as u16).to_be_bytes());
        ip.extend(self.id.to_be_bytes());
        ip.extend(self.fragment.to_be_bytes());
        ip.extend([self.ttl, self.transport.protocol(), 0, 0]);
        ip.extend(self.src.octets());
        ip.extend(self.dst.octets());
        ip.extend(&self.options);
        let sum = checksum(&ip, 0);
        ip[10..12].copy_from_slice(&sum.to_be_bytes());
        ip
    }

    /// Header and payload, at least `room` bytes where the transport has a payload of its own choice.
    fn transport_bytes(&self, room: usize) -> Vec<u8> {
        let (mut bytes, checksum_at, pseudo) = match &self.transport {
            TransportHeader::Raw { bytes, .. } => return bytes.clone(),
            TransportHeader::Udp { src, dst } => {
                let length = room.max(8) as u16;
                (words(&[*src, *dst, length, 0]), 6, true)
            }
            TransportHeader::Tcp { src, dst, flags } => {
                let offset_and_flags = 0x5000 | u16::from(*flags);
                (words(&[*src, *dst, 0, 1, 0, 1, offset_and_flags, 0xffff, 0, 0]), 16, true)
            }
            TransportHeader::Echo { reply, id } => {
                (words(&[if *reply { 0 } else { 0x0800 }, 0, *id, 1]), 2, false)
            }
        };
        bytes.resize(bytes.len().max(room), 0);
        let start = if pseudo { self.pseudo_header_sum(bytes.len()) } else { 0 };
        let mut sum = checksum(&bytes, start);
        if sum == 0 && self.transport.protocol() == UDP {
            sum = 0xffff; // RFC 768: zero on the wire says that there is no checksum
        }
        bytes[checksum_at..checksum_at + 2].copy_from_slice(&sum.to_be_bytes());
        bytes
    }

    fn pseudo_header_sum(&self, length: usize) -> u32 {
        let [a, b] = [self.src, self.dst].map(u32::from);
        [a >> 16, a & 0xffff, b >> 16, b & 0xffff, u32::from(self.transport.protocol()), length as u32]
            .iter()
            .sum()
    }
}

impl TransportHeader {
    /// The IP protocol number.
    pub fn protocol(&self) -> u8 {
        match self {
            Self::Udp { .. } => UDP,
            Self::Tcp { .. } => TCP,
            Self::Echo { .. } => ICMP,
            Self::Raw { protocol, .. } => *protocol,
        }
    }
}

fn words(words: &[u16]) -> Vec<u8> {
    words.iter().flat_map(|w| w.to_be_bytes()).collect()
}

/// The Internet checksum (RFC 1071) of the bytes, given the sum of the words before them.
pub fn checksum(bytes: &[u8], start: u32) -> u16 {
    let mut sum = u64::from(start);
    for pair in bytes.chunks(2) {
        sum += u64::from(u16::from_be_bytes([pair[0], pair.get(1).copied().unwrap_or(0)]));
    }
    while sum > 0xffff {
        sum = (sum >> 16) + (sum & 0xffff);
    }
    !(sum as u16)
}

/// Header fields that a classifier looks at.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct FiveTuple {
    /// Source address.
    pub src: Ipv4Addr,
    /// Destination address.
    pub dst: Ipv4Addr,
    /// Source port (0 where the protocol has none).
    pub src_port: u16,
    /// Destination port (0 where the protocol has none).
    pub dst_port: u16,
    /// IP protocol number.
    pub protocol: u8,
}

impl FiveTuple {
    /// A frame of this flow: TCP with ACK, UDP, an echo request with the source port as identifier, or
    /// padding.
    pub fn frame(&self) -> EthernetFrame {
        let transport = match self.protocol {
            TCP => TransportHeader::Tcp { src: self.src_port, dst: self.dst_port, flags: 0x10 },
            UDP => TransportHeader::Udp { src: self.src_port, dst: self.dst_port },
            ICMP => TransportHeader::Echo { reply: false, id: self.src_port },
            protocol => TransportHeader::Raw { protocol, bytes: vec![0; DEFAULT_LENGTH - 34] },
        };
        EthernetFrame { src: self.src, dst: self.dst, transport, ..EthernetFrame::default() }
    }
}

/// One frame in this many of [`partly_broken`] is broken.
const BROKEN: u64 = 4;
/// Bytes of the headers of Ethernet and IPv4.
const HEADERS: u64 = 34;

/// Frames between random addresses, some of them with a wrong bit in the headers of Ethernet or IPv4.
pub fn partly_broken(rng: &mut Rng, count: usize) -> Vec<Vec<u8>> {
    let frame = |_| {
        let mut address = || (rng.below(0xe000_0000) as u32).into();
        let (src, dst) = (address(), address());
        let mut frame = EthernetFrame { src, dst, ..EthernetFrame::default() }.to_bytes();
        if rng.below(BROKEN) == 0 {
            let at = rng.below(HEADERS) as usize;
            frame[at] ^= 1 << rng.below(8);
        }
        frame
    };
    (0..count).map(frame).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The worked example of the Internet checksum that every text has: 45 00 00 73 ... gives b861.
    #[test]
    fn header_checksum_of_the_textbook() {
        let header = [
            0x45, 0x00, 0x00, 0x73, 0x00, 0x00, 0x40, 0x00, 0x40, 0x11, 0, 0, 0xc0, 0xa8, 0x00, 0x01, 0xc0,
            0xa8, 0x00, 0xc7,
        ];
        assert_eq!(checksum(&header, 0), 0xb861);
    }

    #[test]
    fn frames_have_the_length_asked_and_sum_to_zero() {
        for transport in [
            TransportHeader::Udp { src: 7, dst: 9 },
            TransportHeader::Tcp { src: 7, dst: 9, flags: 2 },
            TransportHeader::Echo { reply: false, id: 7 },
        ] {
            let frame = EthernetFrame { transport, ..EthernetFrame::default() };
            let bytes = frame.to_bytes();
            assert_eq!(bytes.len(), 64);
            assert_eq!(checksum(&bytes[14..34], 0), 0, "{frame:?}: header");
            let pseudo = if frame.transport.protocol() == ICMP { 0 } else { frame.pseudo_header_sum(30) };
            assert_eq!(checksum(&bytes[34..], pseudo), 0, "{frame:?}: transport");
        }
    }

    #[test]
    fn a_tag_and_options_take_their_room_from_the_payload() {
        let frame = EthernetFrame { vlan: Some(10), options: vec![1, 1, 1, 0], ..EthernetFrame::default() };
        let bytes = frame.to_bytes();
        assert_eq!(bytes.len(), 64);
        assert_eq!(bytes[12..16], [0x81, 0, 0, 10]);
        assert_eq!(bytes[18], 0x46);
        assert_eq!(u16::from_be_bytes([bytes[20], bytes[21]]), 46);
    }
}

//! Places of the fields of a frame that name a flow.

use std::ops::Range;

/// Bytes of an Ethernet header without tags.
const ETHERNET: usize = 14;
/// Ethernet types of VLAN tags.
const TAGS: [u16; 3] = [0x8100, 0x88a8, 0x9100];
/// Tags that are skipped, at most.
const MOST_TAGS: usize = 2;
const IPV4: u16 = 0x0800;
const IPV6: u16 = 0x86dd;
const ARP: u16 = 0x0806;
/// Bytes of an IPv6 header.
const IPV6_HEADER: usize = 40;
pub(crate) const TCP: u8 = 6;
pub(crate) const UDP: u8 = 17;
/// More fragments, and the offset of a fragment.
const FRAGMENT: u16 = 0x3fff;

/// Kind of a network header.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum NetworkKind {
    Ipv4,
    Ipv6,
    Arp,
    Other,
}

/// Places in a frame; all of them are within it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct FramePlaces {
    pub(crate) kind: NetworkKind,
    /// Start of the network header: the end of the frame's header for other kinds.
    pub(crate) network: usize,
    /// Source and destination address.
    pub(crate) addresses: Option<[Range<usize>; 2]>,
    /// Number of the transport protocol.
    pub(crate) protocol: u8,
    /// Start of the transport header, if there is one that is whole or begins here.
    pub(crate) transport: Option<usize>,
    /// True for TCP and UDP whose ports are there.
    pub(crate) has_ports: bool,
    /// End of the network packet by its own length, at most that of the frame.
    pub(crate) end: usize,
}

pub(crate) fn word(frame: &[u8], at: usize) -> Option<u16> {
    frame.get(at..)?.first_chunk().map(|bytes| u16::from_be_bytes(*bytes))
}

impl FramePlaces {
    /// Finds the places; `None` for what is no Ethernet frame.
    pub(crate) fn find(frame: &[u8]) -> Option<FramePlaces> {
        let (mut at, mut kind) = (ETHERNET, word(frame, ETHERNET - 2)?);
        for _ in 0..MOST_TAGS {
            if TAGS.contains(&kind)
                && let Some(inner) = word(frame, at + 2)
            {
                (at, kind) = (at + 4, inner);
            }
        }
        let found = match kind {
            IPV4 => FramePlaces::ipv4(frame, at),
            IPV6 => FramePlaces::ipv6(frame, at),
            ARP => FramePlaces::arp(frame, at),
            _ => None,
        };
        Some(found.unwrap_or(FramePlaces {
            kind: NetworkKind::Other,
            network: at,
            addresses: None,
            protocol: 0,
            transport: None,
            has_ports: false,
            end: frame.len(),
        }))
    }

    fn ipv4(frame: &[u8], at: usize) -> Option<FramePlaces> {
        let header = frame.get(at..at + 20)?;
        let length = usize::from(header[0] & 0xf) * 4;
        let total = usize::from(word(header, 2)?);
        if header[0] >> 4 != 4 || length < 20 || total < length || at + length > frame.len() {
            return None;
        }
        let is_first = word(header, 6)? & FRAGMENT == 0;
        let transport = is_first.then_some(at + length);
        let end = (at + total).min(frame.len());
        let addresses = Some([at + 12..at + 16, at + 16..at + 20]);
        Some(FramePlaces::of_transport(NetworkKind::Ipv4, at, addresses, (header[9], transport, end)))
    }

    fn ipv6(frame: &[u8], at: usize) -> Option<FramePlaces> {
        let header = frame.get(at..at + IPV6_HEADER)?;
        if header[0] >> 4 != 6 {
            return None;
        }
        let end = (at + IPV6_HEADER + usize::from(word(header, 4)?)).min(frame.len());
        let addresses = Some([at + 8..at + 24, at + 24..at + 40]);
        let transport = (header[6], Some(at + IPV6_HEADER), end);
        Some(FramePlaces::of_transport(NetworkKind::Ipv6, at, addresses, transport))
    }

    /// ARP for IPv4 over Ethernet.
    fn arp(frame: &[u8], at: usize) -> Option<FramePlaces> {
        let header = frame.get(at..at + 28)?;
        (header[..6] == [0, 1, 8, 0, 6, 4]).then(|| FramePlaces {
            kind: NetworkKind::Arp,
            network: at,
            addresses: Some([at + 14..at + 18, at + 24..at + 28]),
            protocol: 0,
            transport: None,
            has_ports: false,
            end: at + 28,
        })
    }

    fn of_transport(
        kind: NetworkKind,
        network: usize,
        addresses: Option<[Range<usize>; 2]>,
        (protocol, transport, end): (u8, Option<usize>, usize),
    ) -> FramePlaces {
        let room = transport.map_or(0, |at| end.saturating_sub(at));
        let has_ports = matches!(protocol, TCP | UDP) && room >= 8;
        FramePlaces { kind, network, addresses, protocol, transport, has_ports, end }
    }
}

//! Frames of IPv6, ICMP and encapsulation, as the model and the generator write them.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use crate::packet::{ETHERTYPE_IPV4, ETHERTYPE_IPV6, EthernetFrame, MacAddress, TCP, UDP, checksum};

/// IP protocol number of ICMPv6.
pub(super) const ICMPV6: u8 = 58;

/// An IPv4 header without options, "don't fragment" set.
pub(super) fn ipv4_header(tos: u8, length: usize, protocol: u8, src: Ipv4Addr, dst: Ipv4Addr) -> Vec<u8> {
    let mut header = vec![0x45, tos];
    header.extend((length as u16).to_be_bytes());
    header.extend([0, 0, 0x40, 0, 64, protocol, 0, 0]);
    header.extend(src.octets());
    header.extend(dst.octets());
    let sum = checksum(&header, 0);
    header[10..12].copy_from_slice(&sum.to_be_bytes());
    header
}

/// An IPv6 header; `length` is the length of its payload.
pub(super) fn ipv6_header(tos: u8, length: usize, next: u8, src: Ipv6Addr, dst: Ipv6Addr) -> Vec<u8> {
    let mut header = (0x6000_0000 | u32::from(tos) << 20).to_be_bytes().to_vec();
    header.extend((length as u16).to_be_bytes());
    header.extend([next, 64]);
    header.extend(src.octets());
    header.extend(dst.octets());
    header
}

/// An Ethernet header.
pub(super) fn eth(dst: MacAddress, src: MacAddress, ipv6: bool) -> Vec<u8> {
    let ether_type = if ipv6 { ETHERTYPE_IPV6 } else { ETHERTYPE_IPV4 };
    [&dst[..], &src, &ether_type.to_be_bytes()].concat()
}

/// The sum of the pseudo-header of IPv6.
fn pseudo6(src: Ipv6Addr, dst: Ipv6Addr, length: usize, next: u8) -> u32 {
    let words: u32 = src.segments().iter().chain(&dst.segments()).map(|&word| u32::from(word)).sum();
    words + length as u32 + u32::from(next)
}

/// A TCP or UDP header with its payload, for IPv6; ports are source and destination.
pub(super) fn transport6(
    protocol: u8,
    src: Ipv6Addr,
    dst: Ipv6Addr,
    ports: [u16; 2],
    flags: u8,
    payload: &[u8],
) -> Vec<u8> {
    let mut bytes = ports.map(u16::to_be_bytes).concat();
    if protocol == TCP {
        bytes.extend([0, 0, 0, 1, 0, 0, 0, 1, 0x50, flags, 0xff, 0xff, 0, 0, 0, 0]);
    } else {
        bytes.extend((8 + payload.len() as u16).to_be_bytes());
        bytes.extend([0, 0]);
    }
    bytes.extend(payload);
    let at = if protocol == TCP { 16 } else { 6 };
    let sum = checksum(&bytes, pseudo6(src, dst, bytes.len(), protocol)).max(u16::from(protocol == UDP));
    bytes[at..at + 2].copy_from_slice(&sum.to_be_bytes());
    bytes
}

/// A frame with an IPv6 packet, between the hosts that [`EthernetFrame::default`] has.
pub(super) fn ipv6_frame(src: Ipv6Addr, dst: Ipv6Addr, next: u8, payload: &[u8]) -> Vec<u8> {
    let hosts = EthernetFrame::default();
    let mut frame = eth(hosts.dst_mac, hosts.src_mac, true);
    frame.extend(ipv6_header(0, payload.len(), next, src, dst));
    frame.extend(payload);
    frame
}

/// Puts a payload into a frame with IPv4 without options and UDP, and drops the checksum, which IPv4 allows.
pub(super) fn fill_udp4(frame: &mut [u8], payload: &[u8]) {
    frame[42..42 + payload.len()].copy_from_slice(payload);
    frame[40..42].fill(0);
}

/// An ICMP or ICMPv6 message, checksum included; `rest` is the header's second word.
pub(super) fn icmp(hosts: (IpAddr, IpAddr), [kind, code]: [u8; 2], rest: u32, body: &[u8]) -> Vec<u8> {
    let mut message = vec![kind, code, 0, 0];
    message.extend(rest.to_be_bytes());
    message.extend(body);
    let start = match hosts {
        (IpAddr::V6(src), IpAddr::V6(dst)) => pseudo6(src, dst, message.len(), ICMPV6),
        _ => 0,
    };
    let sum = checksum(&message, start);
    message[2..4].copy_from_slice(&sum.to_be_bytes());
    message
}

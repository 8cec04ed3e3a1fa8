//! Model of the router: the result that it must give for a frame, written from RFC 791, 1071 and 1812 without
//! a look at the C.
//!
//! Tests and the laboratory hold the data plane's output against it.

use std::collections::HashMap;
use std::net::Ipv4Addr;

use super::{NextHop, RouterConfig, RouterEvent};
use crate::Ipv4Prefix;
use crate::packet::{ETHERTYPE_IPV4, checksum};

/// Result for a frame.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RouterOutcome {
    /// It leaves by a port, rewritten.
    Forward {
        /// The egress interface.
        port: u32,
        /// The frame that leaves.
        frame: Vec<u8>,
    },
    /// The kernel's stack gets it as it came.
    Stack(RouterEvent),
    /// It is dropped.
    Drop(RouterEvent),
}

/// The configuration, indexed for lookups.
#[derive(Clone, Debug)]
pub struct RouterModel {
    next_hops: Vec<NextHop>,
    routes: HashMap<Ipv4Prefix, u32>,
    /// Lengths in use, longest first.
    lengths: Vec<u8>,
}

impl RouterModel {
    /// A model of the router with this configuration.
    pub fn new(config: &RouterConfig) -> Self {
        let routes: HashMap<Ipv4Prefix, u32> = config.routes.iter().map(|r| (r.prefix, r.next_hop)).collect();
        let mut lengths: Vec<u8> = routes.keys().map(|p| p.length()).collect();
        lengths.sort_unstable_by(|a, b| b.cmp(a));
        lengths.dedup();
        Self { next_hops: config.next_hops.clone(), routes, lengths }
    }

    /// The longest prefix that covers the address.
    fn longest_match(&self, address: Ipv4Addr) -> Option<Ipv4Prefix> {
        self.lengths
            .iter()
            .map(|&len| Ipv4Prefix::new(address, len))
            .find(|prefix| self.routes.contains_key(prefix))
    }

    /// The route of a frame's destination address.
    pub fn route_of(&self, frame: &[u8]) -> Option<Ipv4Prefix> {
        let dst: [u8; 4] = frame.get(30..34)?.try_into().ok()?;
        self.longest_match(dst.into())
    }

    /// Returns the result for the frame at a port of the router.
    pub fn process(&self, frame: &[u8]) -> RouterOutcome {
        match check(frame) {
            Err(outcome) => outcome,
            Ok(()) => self.forward(frame),
        }
    }

    fn forward(&self, frame: &[u8]) -> RouterOutcome {
        let route = self.route_of(frame).and_then(|prefix| self.routes.get(&prefix));
        let hop = route.and_then(|&id| self.next_hops.get(id as usize));
        let (dst_mac, src_mac, port, mtu) = match hop {
            None => return RouterOutcome::Stack(RouterEvent::NoRoute),
            Some(NextHop::Stack) => return RouterOutcome::Stack(RouterEvent::Local),
            Some(NextHop::Drop) => return RouterOutcome::Drop(RouterEvent::Blackhole),
            Some(&NextHop::Forward { dst_mac, src_mac, port, mtu }) => (dst_mac, src_mac, port, mtu),
        };
        if total_length(frame) > usize::from(mtu) {
            return RouterOutcome::Stack(RouterEvent::TooBig);
        }
        let mut frame = frame.to_vec();
        frame[..6].copy_from_slice(&dst_mac);
        frame[6..12].copy_from_slice(&src_mac);
        frame[22] -= 1;
        frame[24..26].fill(0);
        let sum = checksum(&frame[14..34], 0);
        frame[24..26].copy_from_slice(&sum.to_be_bytes());
        RouterOutcome::Forward { port, frame }
    }
}

fn total_length(frame: &[u8]) -> usize {
    usize::from(u16::from_be_bytes([frame[16], frame[17]]))
}

/// RFC 1812, sections 5.2.2 and 5.3: may this frame be routed at all?
fn check(frame: &[u8]) -> Result<(), RouterOutcome> {
    use RouterOutcome::{Drop, Stack};
    if frame.len() < 34 || frame[12..14] != ETHERTYPE_IPV4.to_be_bytes() {
        return Err(Stack(RouterEvent::NotIpv4));
    }
    if frame[0] & 1 == 1 {
        return Err(Stack(RouterEvent::NotUnicast));
    }
    let (version, header) = (frame[14] >> 4, usize::from(frame[14] & 15) * 4);
    if version != 4 || header < 20 {
        return Err(Drop(RouterEvent::BadHeader));
    }
    if header > 20 {
        return Err(Stack(RouterEvent::Options));
    }
    if !(header..=frame.len() - 14).contains(&total_length(frame)) {
        return Err(Drop(RouterEvent::BadLength));
    }
    if checksum(&frame[14..34], 0) != 0 {
        return Err(Drop(RouterEvent::BadChecksum));
    }
    let [src, dst]: [Ipv4Addr; 2] =
        [26, 30].map(|at| Ipv4Addr::new(frame[at], frame[at + 1], frame[at + 2], frame[at + 3]));
    if is_martian(src) || src.is_multicast() || src.is_broadcast() {
        return Err(Drop(RouterEvent::Martian));
    }
    if dst.is_multicast() || dst.is_broadcast() {
        return Err(Stack(RouterEvent::NotUnicast));
    }
    if is_martian(dst) {
        return Err(Drop(RouterEvent::Martian));
    }
    if frame[22] <= 1 {
        return Err(Stack(RouterEvent::Ttl));
    }
    Ok(())
}

/// RFC 1812, 5.3.7: "this network", loopback, and the former class E.
fn is_martian(address: Ipv4Addr) -> bool {
    address.octets()[0] == 0 || address.is_loopback() || address.octets()[0] >= 240
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::packet::EthernetFrame;
    use crate::router::Route;

    #[test]
    fn the_longest_prefix_wins() {
        let hop = |port| NextHop::Forward { dst_mac: [4; 6], src_mac: [2; 6], port, mtu: 1500 };
        let route = |prefix: &str, next_hop| Route { prefix: prefix.parse().unwrap(), next_hop };
        let model = RouterModel::new(&RouterConfig {
            next_hops: vec![hop(1), hop(2), hop(3)],
            routes: vec![route("198.0.0.0/8", 0), route("198.19.0.0/16", 1), route("198.19.1.0/24", 2)],
        });
        let frame = EthernetFrame::default();
        let expected = EthernetFrame { dst_mac: [4; 6], src_mac: [2; 6], ttl: 63, ..frame.clone() };
        assert_eq!(
            model.process(&frame.to_bytes()),
            RouterOutcome::Forward { port: 2, frame: expected.to_bytes() }
        );
    }
}

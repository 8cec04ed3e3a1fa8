//! Flows of packets.

use crate::headers::{FramePlaces, NetworkKind};

/// Name of a packet's flow: addresses, protocol and ports; Ethernet addresses and the type for other packets.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct FlowKey(Box<[u8]>);

impl FlowKey {
    /// The flow of a frame.
    pub fn of(frame: &[u8]) -> FlowKey {
        let Some(places) = FramePlaces::find(frame) else { return FlowKey(frame.into()) };
        let mut key = Vec::with_capacity(38);
        match (&places.addresses, places.kind) {
            (Some(addresses), NetworkKind::Ipv4 | NetworkKind::Ipv6) => {
                addresses.iter().for_each(|range| key.extend_from_slice(&frame[range.clone()]));
                key.push(places.protocol);
                if let Some(at) = places.transport.filter(|_| places.has_ports) {
                    key.extend_from_slice(&frame[at..at + 4]);
                }
            }
            _ => key.extend_from_slice(&frame[..places.network.min(frame.len())]),
        }
        FlowKey(key.into())
    }
}

//! Switches of real size, and traffic through them.

use std::collections::HashSet;

use millstream_rng::Rng;

use super::{BridgePort, FdbDestination, FdbEntry, StpState, SwitchConfig, VlanMode};
use crate::packet::{EthernetFrame, FiveTuple, MacAddress, UDP};
use crate::traffic::{FlowLocality, WeightedFlows};

/// VLAN configuration of the ports of a generated switch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum VlanLayout {
    /// One VLAN, no tags.
    Access,
    /// All VLANs with tags on all ports: nothing is pushed or popped.
    Trunk,
    /// The first port is a trunk, the others have one VLAN each, in turn: tags are popped and pushed.
    Uplink,
}

/// A switch with these ports, all forwarding, and `stations` stations on them; `vlans` is at least one VLAN.
///
/// The same arguments give the same switch.
pub fn generate(
    stations: usize,
    ports: &[u32],
    vlans: &[u16],
    layout: VlanLayout,
    seed: u64,
) -> SwitchConfig {
    let ports: Vec<BridgePort> = ports
        .iter()
        .enumerate()
        .map(|(i, &port)| BridgePort { port, state: StpState::Forwarding, mode: mode(i, vlans, layout) })
        .collect();
    let mut rng = Rng::new(seed);
    let mut seen = HashSet::new();
    let mut all = Vec::with_capacity(stations);
    while all.len() < stations && !ports.is_empty() && !vlans.is_empty() {
        let port = &ports[all.len() % ports.len()];
        let of_port = port.vlans();
        let vlan = of_port[rng.below(of_port.len() as u64) as usize];
        let mac = random_mac(&mut rng);
        if seen.insert((mac, vlan)) {
            all.push(FdbEntry {
                mac,
                vlan,
                place: FdbDestination::Port(port.port),
                is_static: false,
                seen: 0,
            });
        }
    }
    SwitchConfig { ports, stations: all }
}

fn mode(index: usize, vlans: &[u16], layout: VlanLayout) -> VlanMode {
    let trunk = VlanMode::Trunk { native: None, vlans: vlans.to_vec() };
    match (layout, vlans) {
        (_, []) | (VlanLayout::Trunk, _) => trunk,
        (VlanLayout::Uplink, _) if index == 0 => trunk,
        (VlanLayout::Access, [first, ..]) => VlanMode::Access(*first),
        (VlanLayout::Uplink, _) => VlanMode::Access(vlans[(index - 1) % vlans.len()]),
    }
}

/// Vendors' addresses: a few prefixes of three bytes, anything behind them.
fn random_mac(rng: &mut Rng) -> MacAddress {
    const VENDORS: [[u8; 3]; 4] =
        [[0x00, 0x1b, 0x21], [0x3c, 0xfd, 0xfe], [0x52, 0x54, 0x00], [0x00, 0x50, 0x56]];
    let [a, b, c] = VENDORS[rng.below(4) as usize];
    let [_, x, y, z] = rng.next_u32().to_be_bytes();
    [a, b, c, x, y, z]
}

/// `count` flows from stations at the interface `ingress` to stations of their VLANs at others, 64 bytes
/// each.
///
/// Destinations are drawn evenly from the table. A switch without such a pair has no flows.
pub fn flows(
    config: &SwitchConfig,
    ingress: u32,
    count: usize,
    locality: FlowLocality,
    seed: u64,
) -> WeightedFlows {
    let mut rng = Rng::new(seed);
    let (here, there): (Vec<&FdbEntry>, Vec<&FdbEntry>) =
        config.stations.iter().partition(|s| s.place == FdbDestination::Port(ingress));
    let native = config.ports.iter().find(|p| p.port == ingress).and_then(BridgePort::native);
    let pairs_exist = here.iter().any(|a| there.iter().any(|b| a.vlan == b.vlan));
    let mut packets = Vec::with_capacity(count);
    while pairs_exist && packets.len() < count {
        let from = here[rng.below(here.len() as u64) as usize];
        let to = there[rng.below(there.len() as u64) as usize];
        if from.vlan != to.vlan {
            continue;
        }
        let flow = FiveTuple {
            src: (0x0a00_0000 | rng.next_u32() >> 8).into(),
            dst: (0x0a00_0000 | rng.next_u32() >> 8).into(),
            src_port: 1024 + rng.below(64_512) as u16,
            dst_port: 443,
            protocol: UDP,
        };
        let vlan = (native != Some(from.vlan)).then_some(from.vlan);
        packets.push(EthernetFrame { dst_mac: to.mac, src_mac: from.mac, vlan, ..flow.frame() }.to_bytes());
    }
    WeightedFlows::new(packets, locality, rng.next_u64())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::switch::{SwitchModel, SwitchOutcome};

    #[test]
    fn every_generated_flow_is_forwarded_to_another_port() {
        for layout in [VlanLayout::Access, VlanLayout::Trunk, VlanLayout::Uplink] {
            let config = generate(4096, &[3, 4, 5], &[10, 20], layout, 1);
            assert_eq!(config.stations.len(), 4096);
            assert!(config.entries().is_ok());
            let mut model = SwitchModel::new(&config);
            let flows = flows(&config, 3, 1000, FlowLocality::HIGH, 2);
            assert_eq!(flows.packets.len(), 1000);
            for frame in &flows.packets {
                assert_eq!(frame.len(), 64);
                let outcome = model.process(3, frame);
                assert!(
                    matches!(outcome, SwitchOutcome::Forward { port: 4 | 5, .. }),
                    "{layout:?}: {outcome:?}"
                );
            }
        }
    }

    #[test]
    fn a_switch_with_one_port_has_no_flows() {
        let config = generate(10, &[3], &[1], VlanLayout::Access, 1);
        assert!(flows(&config, 3, 10, FlowLocality::NONE, 1).packets.is_empty());
    }
}

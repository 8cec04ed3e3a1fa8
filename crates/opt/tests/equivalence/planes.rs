//! Random states of the five data planes, frames that concern them, and what their operators do meanwhile.

use millstream_programs::balancer::{self, BalancerReal};
use millstream_programs::firewall::{self, AcceptTarget, FragmentHandling, RuleAction, RuleSetKind};
use millstream_programs::nat::{self, ConnectionTimeouts, NatSide};
use millstream_programs::packet::{EthernetFrame, TransportHeader};
use millstream_programs::router::{self, NextHop, Route};
use millstream_programs::switch::{self, BridgePort, FdbDestination, FdbEntry, VlanLayout, VlanMode};
use millstream_programs::traffic::FlowLocality;
use millstream_programs::{Ipv4Prefix, MapEntry};
use millstream_rng::Rng;

use crate::variant::INGRESS;

/// Initial contents of the maps, and the inputs that follow.
pub(crate) struct State {
    pub(crate) entries: Vec<MapEntry>,
    /// Frames of the tables' flows.
    pub(crate) frames: Vec<Vec<u8>>,
    /// Control-plane writes; now and then one is made.
    pub(crate) writes: Vec<Vec<MapEntry>>,
}

impl State {
    /// A frame of one of the flows, or now and then of none.
    pub(crate) fn frame(&self, rng: &mut Rng) -> Vec<u8> {
        match self.frames.as_slice() {
            [] => stranger(rng),
            frames if rng.below(50) > 0 => frames[rng.below(frames.len() as u64) as usize].clone(),
            _ => stranger(rng),
        }
    }
}

fn pick<T: Copy>(choices: &[T], rng: &mut Rng) -> T {
    choices[rng.below(choices.len() as u64) as usize]
}

pub(crate) fn router(rng: &mut Rng) -> State {
    let ports = [INGRESS, 2, 3];
    let mut config = router::generate(200 + rng.below(2000) as usize, &ports, 4, rng.next_u64());
    let hops = config.next_hops.len() as u32;
    let mtu = pick(&[68, 576, 1500], rng);
    let narrow = NextHop::Forward { dst_mac: [2; 6], src_mac: [4; 6], port: 2, mtu };
    // The last one is a port that no devmap entry is written for.
    let nowhere = NextHop::Forward { dst_mac: [2; 6], src_mac: [4; 6], port: 9, mtu: 1500 };
    config.next_hops.extend([NextHop::Stack, NextHop::Drop, narrow, nowhere]);
    for route in &mut config.routes {
        if rng.below(3) == 0 {
            route.next_hop = hops + rng.below(4) as u32;
        }
    }
    let frames = router::flows(&config, 500, FlowLocality::NONE, rng.next_u64()).packets;
    let mut entries = config.entries().expect("fits");
    entries.retain(|e| e.map != router::TX_PORTS || e.key != 9u32.to_ne_bytes());
    let writes = (0..16)
        .map(|_| {
            let Route { prefix, .. } = config.routes[rng.below(config.routes.len() as u64) as usize];
            vec![Route { prefix, next_hop: rng.below(u64::from(hops) + 4) as u32 }.entry()]
        })
        .collect();
    State { entries, frames, writes }
}

pub(crate) fn switch(rng: &mut Rng) -> State {
    let layout = pick(&[VlanLayout::Access, VlanLayout::Trunk, VlanLayout::Uplink], rng);
    let mut config = switch::generate(300, &[INGRESS, 2, 3], &[10, 20], layout, rng.next_u64());
    let frames = switch::flows(&config, INGRESS, 500, FlowLocality::NONE, rng.next_u64()).packets;
    for station in config.stations.iter_mut() {
        station.is_static = rng.below(8) == 0;
        station.seen = rng.below(2_000_000_000_000);
    }
    let writes = (0..16).map(|_| vec![port(rng)]).collect();
    State { entries: config.entries().expect("fits"), frames, writes }
}

/// One of the switch's ports in another state or mode.
fn port(rng: &mut Rng) -> MapEntry {
    use switch::StpState::{Blocking, Disabled, Forwarding, Learning};
    let state = pick(&[Forwarding, Forwarding, Forwarding, Learning, Blocking, Disabled], rng);
    let trunk = |native| VlanMode::Trunk { native, vlans: vec![10, 20] };
    let mode = match rng.below(4) {
        0 => VlanMode::Access(10),
        1 => trunk(Some(10)),
        2 => trunk(None),
        _ => VlanMode::Access(20),
    };
    let port = 1 + rng.below(3) as u32;
    MapEntry::new(switch::PORTS, port.to_ne_bytes(), BridgePort { port, state, mode }.encode())
}

/// A station that is the switch's own, which no generator makes.
pub(crate) fn own_station(mac: [u8; 6], vlan: u16) -> MapEntry {
    FdbEntry { mac, vlan, place: FdbDestination::Local, is_static: true, seen: 0 }.entry()
}

pub(crate) fn nat(rng: &mut Rng) -> State {
    let mut config = nat::generate(INGRESS, 2, 1 + rng.below(3) as u8, rng.next_u64());
    config.timeouts = pick(
        &[
            ConnectionTimeouts::default(),
            ConnectionTimeouts { udp: 1, icmp: 1, tcp_transitory: 1, tcp_established: 1 },
        ],
        rng,
    );
    let not_translated = "10.0.0.0/12".parse::<Ipv4Prefix>().expect("a prefix");
    config.rules.push(nat::NatRule { sources: not_translated, first: 0, count: 0 });
    let mix = nat::ProtocolMix { tcp: 40, udp: 40 };
    let traffic = nat::traffic(&config, 300, mix, FlowLocality::NONE, rng.next_u64());
    if rng.below(2) == 0 {
        // So few ports that they run out.
        config.externals.truncate(1);
        (config.rules[0].count, config.externals[0].port_max) = (1, 1024 + rng.below(32) as u16);
    }
    let mut entries = config.entries().expect("fits");
    if rng.below(2) == 0 {
        let seen = rng.below(2_000_000_000_000);
        entries.extend(traffic.mappings.iter().take(100).flat_map(|m| m.entries(seen)));
    }
    let rivals = (0..300).map(|_| rival(rng)).collect();
    let frames = [traffic.outbound.packets, traffic.inbound.packets, rivals].concat();
    let side = |side: u32| vec![MapEntry::new(nat::PORTS, INGRESS.to_ne_bytes(), side.to_ne_bytes())];
    let [inside, outside] = [NatSide::Inside, NatSide::Outside].map(|s| side(s as u32));
    let writes = vec![inside.clone(), outside.clone(), inside, outside, side(0)];
    State { entries, frames, writes }
}

/// A frame from any host inside to one of two servers: ports are per server, so these compete for them.
fn rival(rng: &mut Rng) -> Vec<u8> {
    let src = rng.next_u32() as u16;
    let transport = match rng.below(3) {
        0 => TransportHeader::Udp { src, dst: 53 },
        1 => TransportHeader::Tcp { src, dst: 443, flags: pick(&[2, 0x10, 0x11, 4], rng) },
        _ => TransportHeader::Echo { reply: false, id: src },
    };
    let host = 0x0a10_0000 | rng.below(1 << 12) as u32;
    let server = [198, 51, 100, 1 + rng.below(2) as u8];
    EthernetFrame { src: host.into(), dst: server.into(), transport, ..EthernetFrame::default() }.to_bytes()
}

pub(crate) fn firewall(rng: &mut Rng) -> State {
    let flavour = pick(&[RuleSetKind::AccessList, RuleSetKind::Firewall], rng);
    let rules = pick(&[1, 30, 450], rng);
    let actions = [RuleAction::Drop, RuleAction::Accept, RuleAction::Reject];
    let mut config = firewall::generate(flavour, rules, rng.next_u64());
    config.forward = match rng.below(3) {
        0 => AcceptTarget::Stack,
        1 => AcceptTarget::Hairpin,
        _ => AcceptTarget::Ports(if rng.below(2) == 0 { vec![(INGRESS, 2)] } else { vec![(2, 3)] }),
    };
    config.fragments =
        pick(&[FragmentHandling::Drop, FragmentHandling::Accept, FragmentHandling::Classify], rng);
    (config.default, config.non_ipv4) = (pick(&actions, rng), pick(&actions, rng));
    let frames = firewall::flows(&config, 500, FlowLocality::NONE, rng.next_u64(), |_| true).packets;
    State { entries: config.entries().expect("fits"), frames, writes: Vec::new() }
}

pub(crate) fn balancer(rng: &mut Rng) -> State {
    let mix = pick(
        &[
            balancer::ServiceMix::Web,
            balancer::ServiceMix::Mixed,
            balancer::ServiceMix::Mixed,
            balancer::ServiceMix::Mixed,
        ],
        rng,
    );
    let mut config = balancer::generate(mix, 8, 6, rng.next_u64());
    config.services[0].port = 0;
    config.services[1].client_affinity = true;
    config.services[4].stateless = true;
    config.services[5].port = 0;
    config.services[5].client_affinity = true;
    config.fragments_to_stack = rng.below(2) == 0;
    config.icmp_limit = pick(&[0, 5, u32::MAX], rng);
    config.new_flow_limit = pick(&[0, 10, 1000], rng);
    config.max_length = pick(&[1400, 1500], rng);
    for real in config.reals.iter_mut().step_by(5) {
        real.up = false;
    }
    let frames = balancer::flows(&config, 500, FlowLocality::NONE, rng.next_u64()).packets;
    let writes = (0..16)
        .map(|_| {
            let at = rng.below(config.reals.len() as u64) as usize;
            let real = BalancerReal { up: rng.below(2) == 0, ..config.reals[at] };
            vec![MapEntry::new(balancer::REALS, (at as u32 + 1).to_ne_bytes(), real.encode())]
        })
        .collect();
    let mut entries = config.entries().expect("fits");
    for entry in entries.iter_mut().filter(|e| e.map == balancer::RINGS) {
        if rng.below(64) == 0 {
            // No such real.
            entry.value = 5000u32.to_ne_bytes().to_vec();
        }
    }
    State { entries, frames, writes }
}

/// A frame of no flow at all.
pub(crate) fn stranger(rng: &mut Rng) -> Vec<u8> {
    let mut frame =
        EthernetFrame { src: rng.next_u32().into(), dst: rng.next_u32().into(), ..EthernetFrame::default() }
            .to_bytes();
    if rng.below(4) == 0 {
        frame.iter_mut().for_each(|byte| *byte = rng.next_u32() as u8);
    }
    frame
}

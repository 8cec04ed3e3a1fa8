//! Tables of the same content for both: in our layout by our control tools, in the peer's by what its maps
//! are.

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr};

use millstream_isa::MapType;
use millstream_kernel::MapSpec;
use millstream_lab::rig::SECOND_PORT;
use millstream_programs::firewall::{self, FirewallRule, PortRange, RuleAction};
use millstream_programs::nat;
use millstream_programs::traffic::{FlowLocality, WeightedFlows};
use millstream_programs::{BALANCER, DataPlaneProgram, FIREWALL, Ipv4Prefix, MapEntry, NAT, ROUTER, SWITCH};
use millstream_programs::{balancer, router, switch};

type PeerWorkloadError = Box<dyn std::error::Error>;

const FLOWS: usize = 10_000;
const SEED: u64 = 42;

/// A public program, and how it is fed.
pub(crate) struct PeerProgram {
    /// Name of the comparison.
    pub(crate) id: &'static str,
    /// Our program of its kind.
    pub(crate) plane: DataPlaneProgram,
    pub(crate) name: &'static str,
    /// Tables and traffic for the port that packets come in by, and another.
    pub(crate) workload: fn([u32; 2], FlowLocality) -> Result<PeerWorkload, PeerWorkloadError>,
    /// Maps whose size the peer leaves to its loader.
    pub(crate) sizes: &'static [(&'static str, u32)],
    /// A map of maps, and what its elements are.
    pub(crate) inner: Option<(&'static str, MapSpec<'static>)>,
}

/// The same tables twice, and the traffic.
pub(crate) struct PeerWorkload {
    pub(crate) ours: Vec<MapEntry>,
    pub(crate) theirs: Vec<MapEntry>,
    /// Tables of the kernel that the peer asks: lines for `ip -batch`.
    pub(crate) kernel: Vec<String>,
    pub(crate) flows: WeightedFlows,
    pub(crate) description: String,
}

const LRU: u32 = 1 << 18;

/// With no more than tables in its maps, or the kernel's.
const fn plain(
    id: &'static str,
    plane: DataPlaneProgram,
    name: &'static str,
    workload: fn([u32; 2], FlowLocality) -> Result<PeerWorkload, PeerWorkloadError>,
) -> PeerProgram {
    PeerProgram { id, plane, name, workload, sizes: &[], inner: None }
}

pub(crate) static PEERS: [PeerProgram; 6] = [
    plain("router", ROUTER, "xdp_router_ipv4", router),
    plain("router-fib", ROUTER, "xdp_fwd_fib_full", router_by_kernel),
    plain("switch", SWITCH, "pcn-bridge", switch),
    plain("firewall", FIREWALL, "xdp_acl", firewall),
    plain("nat", NAT, "pcn-nat", nat),
    PeerProgram {
        id: "balancer",
        plane: BALANCER,
        name: "katran",
        workload: balancer,
        sizes: &[("fallback_cache", LRU)],
        inner: Some((
            "lru_mapping",
            MapSpec {
                name: "lru",
                map_type: MapType::LRU_HASH,
                key_size: 40,
                value_size: 16,
                max_entries: LRU,
                flags: 0,
                inner: None,
                numa_node: None,
                extra: 0,
                btf: None,
            },
        )),
    },
];

fn word(value: u32) -> Vec<u8> {
    value.to_ne_bytes().to_vec()
}

fn concat(parts: &[&[u8]]) -> Vec<u8> {
    parts.concat()
}

const ROUTES: usize = 2_592;

/// The address of a next hop, for those who have their routes by gateways.
fn gateway(hop: u32) -> [u8; 4] {
    [10, 0, 0, hop as u8 + 1]
}

/// The peer asks the kernel's routes and neighbours, which are then what our maps hold.
fn router_by_kernel(ports: [u32; 2], locality: FlowLocality) -> Result<PeerWorkload, PeerWorkloadError> {
    let config = router::generate(ROUTES, &ports[1..], 8, SEED);
    let flows = router::flows(&config, FLOWS, locality, SEED + 1);
    let address = |hop| Ipv4Addr::from(gateway(hop));
    // Without any local address the kernel has no table of them, and takes no gateway for a neighbour.
    let mut kernel = vec!["address add 127.0.0.1/8 dev lo".to_owned()];
    let link = |mac: [u8; 6]| mac.map(|byte| format!("{byte:02x}")).join(":");
    for (i, hop) in (0u32..).zip(&config.next_hops) {
        let router::NextHop::Forward { dst_mac, src_mac, .. } = *hop else { continue };
        if i == 0 {
            kernel.push(format!("link set dev {SECOND_PORT} address {}", link(src_mac)));
        }
        let (neighbour, mac) = (address(i), link(dst_mac));
        kernel.push(format!("neigh replace {neighbour} lladdr {mac} dev {SECOND_PORT} nud permanent"));
    }
    for route in &config.routes {
        let (prefix, via) = (route.prefix, address(route.next_hop));
        kernel.push(format!("route add {prefix} via {via} dev {SECOND_PORT} onlink"));
    }
    let theirs = vec![MapEntry::new("xdp_tx_ports", word(ports[1]), word(ports[1]))];
    let description = format!("{ROUTES} routes, the peer's in the kernel");
    Ok(PeerWorkload { ours: config.entries()?, theirs, kernel, flows, description })
}

/// Out of the other port, for both redirect by a devmap. The peer's routes hold a gateway, whose address a
/// second table turns into a MAC.
fn router(ports: [u32; 2], locality: FlowLocality) -> Result<PeerWorkload, PeerWorkloadError> {
    let config = router::generate(ROUTES, &ports[1..], 8, SEED);
    let flows = router::flows(&config, FLOWS, locality, SEED + 1);
    let mut theirs = vec![MapEntry::new("tx_port", word(ports[1]), word(ports[1]))];
    for (i, hop) in (0u32..).zip(&config.next_hops) {
        let router::NextHop::Forward { dst_mac, .. } = hop else { continue };
        theirs.push(MapEntry::new("arp_table", gateway(i), concat(&[dst_mac, &[0; 2]])));
    }
    for route in &config.routes {
        let router::NextHop::Forward { src_mac, port, .. } = config.next_hops[route.next_hop as usize] else {
            return Err("a route to nowhere".into());
        };
        let (prefix, metric) = (route.prefix.address().octets(), word(1));
        let value = concat(&[
            &prefix,
            &[0; 4],
            &src_mac,
            &[0; 2],
            &word(port),
            &metric,
            &gateway(route.next_hop),
            &[0; 4],
        ]);
        theirs.push(MapEntry::new("lpm_map", router::route_key(route.prefix), value));
    }
    let description = format!("{ROUTES} routes");
    Ok(PeerWorkload { ours: config.entries()?, theirs, kernel: Vec::new(), flows, description })
}

/// Trunks of two VLANs. The peer has a table of which VLANs a port takes, and in what spanning-tree state.
fn switch(ports: [u32; 2], locality: FlowLocality) -> Result<PeerWorkload, PeerWorkloadError> {
    const STATIONS: usize = 1_024;
    const VLANS: [u16; 2] = [10, 20];
    const FORWARDING: u16 = 8;
    let config = switch::generate(STATIONS, &ports, &VLANS, switch::VlanLayout::Trunk, SEED);
    let flows = switch::flows(&config, ports[0], FLOWS, locality, SEED + 1);
    let mut theirs = Vec::new();
    for port in ports {
        theirs.push(MapEntry::new("tx", word(port), word(port)));
        theirs.push(MapEntry::new("ports", word(port), [1, 0, 0, 0, 0, 0]));
        for vlan in VLANS {
            let key = concat(&[&word(port), &vlan.to_ne_bytes()]);
            theirs.push(MapEntry::new("port_vlan", key, [vlan, FORWARDING].map(u16::to_ne_bytes).concat()));
        }
    }
    for station in &config.stations {
        let switch::FdbDestination::Port(port) = station.place else { continue };
        let key = concat(&[&station.vlan.to_ne_bytes(), &station.mac, &[0; 2]]);
        theirs.push(MapEntry::new("fwdtable", key, [0, port, 1].map(u32::to_ne_bytes).concat()));
    }
    Ok(PeerWorkload {
        ours: config.entries()?,
        theirs,
        kernel: Vec::new(),
        flows,
        description: format!("{STATIONS} stations, 2 VLANs"),
    })
}

/// Packets go out where they came in, for the peer knows no other way. ICMP is left out, which it keeps
/// apart.
fn nat(ports: [u32; 2], locality: FlowLocality) -> Result<PeerWorkload, PeerWorkloadError> {
    const CONNECTIONS: usize = 10_000;
    const SOURCE: u8 = 1;
    let mut config = nat::generate(ports[0], ports[1], 16, SEED);
    config.externals.iter_mut().for_each(|e| e.port = ports[0]);
    let traffic =
        nat::traffic(&config, CONNECTIONS, nat::ProtocolMix { tcp: 70, udp: 30 }, locality, SEED + 1);
    let mut ours = config.entries()?;
    ours.extend(traffic.entries(millstream_lab::os::monotonic_ns()));
    let mut theirs = Vec::new();
    for mapping in &traffic.mappings {
        let [(out, to), (back, from)] = mapping.directions(0);
        for (map, flow, c) in [("egress_session_table", out, to), ("ingress_session_table", back, from)] {
            let value = concat(&[&c.address.octets(), &c.port.to_be_bytes(), &[SOURCE]]);
            theirs.push(MapEntry::new(map, &flow.encode()[..13], value));
        }
    }
    let description = format!("{CONNECTIONS} connections, outbound");
    Ok(PeerWorkload { ours, theirs, kernel: Vec::new(), flows: traffic.outbound, description })
}

/// The peer has one bit for each rule in each entry of each field's table, and a table of rules by word and
/// bit.
fn firewall(_: [u32; 2], locality: FlowLocality) -> Result<PeerWorkload, PeerWorkloadError> {
    const RULES: usize = 1_000;
    let mut config = firewall::generate(firewall::RuleSetKind::AccessList, RULES, SEED);
    config.forward = firewall::AcceptTarget::Hairpin;
    let flows = firewall::flows(&config, FLOWS, locality, SEED + 1, |_| true);
    let any: Ipv4Prefix = "0.0.0.0/0".parse()?;
    let mut rules = config.rules.clone();
    let (src_ports, dst_ports) = (PortRange::ANY, PortRange::ANY);
    rules.push(FirewallRule {
        src: any,
        dst: any,
        src_ports,
        dst_ports,
        protocol: None,
        action: config.default,
    });

    let mut theirs = Vec::new();
    addresses(&mut theirs, "src_v4", &rules, |r| r.src);
    addresses(&mut theirs, "dst_v4", &rules, |r| r.dst);
    transport_ports(&mut theirs, "sport_v4", &rules, |r| r.src_ports);
    transport_ports(&mut theirs, "dport_v4", &rules, |r| r.dst_ports);
    for protocol in [1u8, 6, 17] {
        let set = bits(&rules, |r| r.protocol.is_none_or(|p| p == protocol));
        theirs.push(MapEntry::new("proto_v4", word(protocol.into()), set));
    }
    for (i, rule) in (0u64..).zip(&rules) {
        // The verdict for XDP; rejecting is the stack's.
        let action: u64 = match rule.action {
            RuleAction::Accept => 3,
            RuleAction::Drop => 1,
            RuleAction::Reject => 2,
        };
        let key = [1 << (i % 64), i / 64].map(u64::to_ne_bytes).concat();
        theirs.push(MapEntry::new("rule_action_v4", key, [action, 0].map(u64::to_ne_bytes).concat()));
    }
    Ok(PeerWorkload {
        ours: config.entries()?,
        theirs,
        kernel: Vec::new(),
        flows,
        description: format!("{RULES} rules, access list"),
    })
}

/// A bit for each rule, as many as the peer's longest list.
fn bits(rules: &[FirewallRule], applies: impl Fn(&FirewallRule) -> bool) -> Vec<u8> {
    const WORDS: usize = 160;
    let mut words = vec![0u64; WORDS];
    for (i, _) in rules.iter().enumerate().filter(|(_, r)| applies(r)) {
        words[i / 64] |= 1 << (i % 64);
    }
    words.iter().flat_map(|w| w.to_ne_bytes()).collect()
}

fn addresses(
    out: &mut Vec<MapEntry>,
    map: &'static str,
    rules: &[FirewallRule],
    field: fn(&FirewallRule) -> Ipv4Prefix,
) {
    let distinct: BTreeSet<Ipv4Prefix> = rules.iter().map(field).collect();
    for prefix in distinct {
        let key = concat(&[&word(prefix.length().into()), &prefix.address().octets()]);
        let covers =
            |r: &FirewallRule| field(r).length() <= prefix.length() && field(r).contains(prefix.address());
        out.push(MapEntry::new(map, key, bits(rules, covers)));
    }
}

fn transport_ports(
    out: &mut Vec<MapEntry>,
    map: &'static str,
    rules: &[FirewallRule],
    field: fn(&FirewallRule) -> PortRange,
) {
    let bounds = rules.iter().flat_map(|r| [u32::from(field(r).first), u32::from(field(r).last) + 1]);
    let starts: BTreeSet<u32> = bounds.collect();
    let mut set = Vec::new();
    for port in 0..=u16::MAX {
        if port == 0 || starts.contains(&port.into()) {
            set = bits(rules, |r| field(r).contains(port));
        }
        out.push(MapEntry::new(map, port.to_be_bytes(), set.clone()));
    }
}

/// The peer's rings lie in one array, one behind the other.
fn balancer(_: [u32; 2], locality: FlowLocality) -> Result<PeerWorkload, PeerWorkloadError> {
    const SERVICES: usize = 10;
    const REALS: usize = 100;
    let config = balancer::generate(balancer::ServiceMix::Web, SERVICES, REALS, SEED);
    let flows = balancer::flows(&config, FLOWS, locality, SEED + 1);
    let address = |a: IpAddr| {
        let mut octets = match a {
            IpAddr::V4(a) => a.octets().to_vec(),
            IpAddr::V6(a) => a.octets().to_vec(),
        };
        octets.resize(16, 0);
        octets
    };
    let mut theirs = vec![MapEntry::new("ctl_array", word(0), concat(&[&config.gateway, &[0; 2]]))];
    for (i, real) in (1u32..).zip(&config.reals) {
        let flags = [u8::from(real.address.is_ipv6()), 0, 0, 0];
        theirs.push(MapEntry::new("reals", word(i), concat(&[&address(real.address), &flags])));
    }
    for (id, service) in (0u32..).zip(&config.services) {
        let key = concat(&[&address(service.address), &service.port.to_be_bytes(), &[service.protocol, 0]]);
        theirs.push(MapEntry::new("vip_map", key, [0, id].map(u32::to_ne_bytes).concat()));
        let ring = balancer::ring(&config.reals, &service.reals);
        for (place, real) in (id * balancer::RING_SIZE..).zip(ring) {
            theirs.push(MapEntry::new("ch_rings", word(place), word(real)));
        }
    }
    let description = format!("{SERVICES} services, {REALS} reals");
    Ok(PeerWorkload { ours: config.entries()?, theirs, kernel: Vec::new(), flows, description })
}

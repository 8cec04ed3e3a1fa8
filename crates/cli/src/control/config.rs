//! An operator's configuration (docs/control.md), translated to map entries.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use miette::{IntoDiagnostic, Result, WrapErr, miette};
use millstream_kernel::{interface, interface_index};
use millstream_programs::packet::MacAddress;
use millstream_programs::{Ipv4Prefix, MapEntry, balancer, firewall, nat, router, switch};
use serde::Deserialize;
use serde::de::DeserializeOwned;

use super::DataPlane;

/// A configuration as map entries.
#[derive(Debug)]
pub(super) struct DataPlaneTables {
    /// The interfaces on which the program runs.
    pub(super) devices: Vec<String>,
    /// Contents of the maps.
    pub(super) entries: Vec<MapEntry>,
}

/// Reads a configuration of a data plane. Interfaces are looked up in this network namespace.
pub(super) fn read(plane: DataPlane, text: &str) -> Result<DataPlaneTables> {
    match plane {
        DataPlane::Router => parse::<RouterSpec>(text)?.tables(),
        DataPlane::Switch => parse::<SwitchSpec>(text)?.tables(),
        DataPlane::Firewall => parse::<FirewallSpec>(text)?.tables(),
        DataPlane::Nat => parse::<NatSpec>(text)?.tables(),
        DataPlane::Balancer => parse::<LoadBalancerSpec>(text)?.tables(),
    }
}

fn parse<T: DeserializeOwned>(text: &str) -> Result<T> {
    serde_json::from_str(text).into_diagnostic()
}

fn device(name: &str) -> Result<u32> {
    interface_index(name).into_diagnostic()
}

/// The interface's own address.
fn address_of(ifindex: u32) -> Result<MacAddress> {
    let interface = interface(ifindex).into_diagnostic()?;
    let address = interface.address.as_slice().try_into();
    address.map_err(|_| miette!("{} has no Ethernet address; say one with \"from\"", interface.name))
}

/// A link-layer address as text: six pairs of hexadecimal digits with colons.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(try_from = "String")]
struct MacText(MacAddress);

impl TryFrom<String> for MacText {
    type Error = String;

    fn try_from(text: String) -> std::result::Result<Self, String> {
        let octets: Option<Vec<u8>> = text
            .split(':')
            .map(|pair| u8::from_str_radix(pair, 16).ok().filter(|_| pair.len() == 2))
            .collect();
        let mac = octets.and_then(|o| MacAddress::try_from(o).ok());
        mac.map(MacText).ok_or_else(|| format!("{text:?} is not an address such as 02:00:00:00:00:01"))
    }
}

fn prefix(text: &str) -> Result<Ipv4Prefix> {
    text.parse().into_diagnostic()
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct RouterSpec {
    ports: Vec<String>,
    next_hops: BTreeMap<String, NextHopSpec>,
    routes: BTreeMap<String, String>,
}

#[derive(Debug, Deserialize)]
#[serde(untagged)]
enum NextHopSpec {
    Named(NextHopAction),
    Forward(ForwardingSpec),
}

#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(rename_all = "snake_case")]
enum NextHopAction {
    Stack,
    Drop,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct ForwardingSpec {
    via: MacText,
    dev: String,
    from: Option<MacText>,
    mtu: Option<u16>,
}

impl ForwardingSpec {
    fn next_hop(&self) -> Result<router::NextHop> {
        let port = device(&self.dev)?;
        let src_mac = self.from.map_or_else(|| address_of(port), |mac| Ok(mac.0))?;
        Ok(router::NextHop::Forward { dst_mac: self.via.0, src_mac, port, mtu: self.mtu.unwrap_or(1500) })
    }
}

impl RouterSpec {
    fn tables(self) -> Result<DataPlaneTables> {
        let mut config = router::RouterConfig::default();
        let mut names = Vec::new();
        for (name, hop) in &self.next_hops {
            names.push(name.as_str());
            config.next_hops.push(match hop {
                NextHopSpec::Named(NextHopAction::Stack) => router::NextHop::Stack,
                NextHopSpec::Named(NextHopAction::Drop) => router::NextHop::Drop,
                NextHopSpec::Forward(forward) => {
                    forward.next_hop().wrap_err_with(|| format!("next hop {name:?}"))?
                }
            });
        }
        for (to, hop) in &self.routes {
            let at = names.iter().position(|n| n == hop);
            let at =
                at.ok_or_else(|| miette!("the route to {to} names next hop {hop:?}, which is not there"))?;
            config.routes.push(router::Route { prefix: prefix(to)?, next_hop: at as u32 });
        }
        Ok(DataPlaneTables { devices: self.ports, entries: config.entries().into_diagnostic()? })
    }
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct SwitchSpec {
    ports: BTreeMap<String, SwitchPort>,
    #[serde(default)]
    stations: Vec<StationSpec>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct SwitchPort {
    access: Option<u16>,
    trunk: Option<Vec<u16>>,
    native: Option<u16>,
    #[serde(default)]
    state: PortState,
}

#[derive(Clone, Copy, Debug, Default, Deserialize)]
#[serde(rename_all = "snake_case")]
enum PortState {
    Blocking,
    Learning,
    #[default]
    Forwarding,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct StationSpec {
    mac: MacText,
    vlan: u16,
    /// `None` for this machine.
    dev: Option<String>,
}

impl SwitchPort {
    fn port(&self, name: &str) -> Result<switch::BridgePort> {
        let mode = match (self.access, &self.trunk, self.native) {
            (Some(vlan), None, None) => switch::VlanMode::Access(vlan),
            (None, Some(vlans), native) => {
                let mut vlans = vlans.clone();
                vlans.extend(native.filter(|n| !vlans.contains(n)));
                switch::VlanMode::Trunk { native, vlans }
            }
            _ => {
                return Err(miette!(
                    "port {name:?} needs either \"access\", or \"trunk\" and perhaps \"native\""
                ));
            }
        };
        let state = match self.state {
            PortState::Blocking => switch::StpState::Blocking,
            PortState::Learning => switch::StpState::Learning,
            PortState::Forwarding => switch::StpState::Forwarding,
        };
        Ok(switch::BridgePort { port: device(name)?, state, mode })
    }
}

impl SwitchSpec {
    fn tables(self) -> Result<DataPlaneTables> {
        let mut config = switch::SwitchConfig::default();
        for (name, port) in &self.ports {
            config.ports.push(port.port(name)?);
        }
        for station in &self.stations {
            let place = match &station.dev {
                Some(dev) => switch::FdbDestination::Port(device(dev)?),
                None => switch::FdbDestination::Local,
            };
            let StationSpec { mac, vlan, .. } = station;
            config.stations.push(switch::FdbEntry {
                mac: mac.0,
                vlan: *vlan,
                place,
                is_static: true,
                seen: 0,
            });
        }
        Ok(DataPlaneTables {
            devices: self.ports.into_keys().collect(),
            entries: config.entries().into_diagnostic()?,
        })
    }
}

#[derive(Clone, Copy, Debug, Default, Deserialize)]
#[serde(rename_all = "snake_case")]
enum FirewallVerdict {
    #[default]
    Drop,
    Accept,
    Reject,
}

impl From<FirewallVerdict> for firewall::RuleAction {
    fn from(action: FirewallVerdict) -> Self {
        match action {
            FirewallVerdict::Drop => firewall::RuleAction::Drop,
            FirewallVerdict::Accept => firewall::RuleAction::Accept,
            FirewallVerdict::Reject => firewall::RuleAction::Reject,
        }
    }
}

#[derive(Clone, Copy, Debug, Default, Deserialize)]
#[serde(rename_all = "snake_case")]
enum FragmentPolicy {
    #[default]
    Drop,
    Accept,
    Classify,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct FirewallSpec {
    ports: Vec<String>,
    rules: Vec<String>,
    #[serde(default)]
    default: FirewallVerdict,
    /// Pairs of ports: packets from the first leave by the second. `None`: to the network stack.
    forward: Option<BTreeMap<String, String>>,
    #[serde(default)]
    fragments: FragmentPolicy,
    #[serde(default)]
    non_ipv4: FirewallVerdict,
}

impl FirewallSpec {
    fn tables(self) -> Result<DataPlaneTables> {
        let mut config =
            firewall::FirewallConfig { default: self.default.into(), ..firewall::FirewallConfig::default() };
        config.non_ipv4 = self.non_ipv4.into();
        config.fragments = match self.fragments {
            FragmentPolicy::Drop => firewall::FragmentHandling::Drop,
            FragmentPolicy::Accept => firewall::FragmentHandling::Accept,
            FragmentPolicy::Classify => firewall::FragmentHandling::Classify,
        };
        if let Some(pairs) = &self.forward {
            let pairs = pairs.iter().map(|(from, to)| Ok((device(from)?, device(to)?)));
            config.forward = firewall::AcceptTarget::Ports(pairs.collect::<Result<_>>()?);
        }
        config.read_rules(&self.rules.join("\n")).into_diagnostic().wrap_err("rules, counted from 1")?;
        Ok(DataPlaneTables { devices: self.ports, entries: config.entries().into_diagnostic()? })
    }
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct NatSpec {
    inside: Vec<String>,
    outside: Vec<String>,
    externals: Vec<ExternalAddress>,
    rules: BTreeMap<String, AddressRange>,
    #[serde(default)]
    exempt: Vec<String>,
    #[serde(default)]
    timeouts: NatTimeouts,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct ExternalAddress {
    address: Ipv4Addr,
    ports: Option<[u16; 2]>,
    via: MacText,
    dev: String,
    from: Option<MacText>,
}

/// A range of external addresses.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct AddressRange {
    first: u32,
    count: u32,
}

/// In seconds.
#[derive(Clone, Copy, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct NatTimeouts {
    tcp_established: Option<u32>,
    tcp_transitory: Option<u32>,
    udp: Option<u32>,
    icmp: Option<u32>,
}

impl NatSpec {
    fn tables(self) -> Result<DataPlaneTables> {
        let mut config = nat::NatConfig { secret: secret()?, ..nat::NatConfig::default() };
        for (names, side) in [(&self.inside, nat::NatSide::Inside), (&self.outside, nat::NatSide::Outside)] {
            for name in names {
                config.ports.push((device(name)?, side));
            }
        }
        for e in &self.externals {
            let port = device(&e.dev)?;
            let [port_min, port_max] = e.ports.unwrap_or([1024, 65535]);
            let src_mac = e.from.map_or_else(|| address_of(port), |mac| Ok(mac.0))?;
            let (address, dst_mac) = (e.address, e.via.0);
            config.externals.push(nat::NatExternalAddress {
                address,
                port_min,
                port_max,
                port,
                dst_mac,
                src_mac,
            });
        }
        for (sources, run) in &self.rules {
            config.rules.push(nat::NatRule { sources: prefix(sources)?, first: run.first, count: run.count });
        }
        config.exempt = self.exempt.iter().map(|text| prefix(text)).collect::<Result<_>>()?;
        let limit = |given: Option<u32>, usual: u64| given.map_or(usual, |s| u64::from(s) * 1_000_000_000);
        let (t, usual) = (&self.timeouts, nat::ConnectionTimeouts::default());
        config.timeouts = nat::ConnectionTimeouts {
            tcp_established: limit(t.tcp_established, usual.tcp_established),
            tcp_transitory: limit(t.tcp_transitory, usual.tcp_transitory),
            udp: limit(t.udp, usual.udp),
            icmp: limit(t.icmp, usual.icmp),
        };
        let devices = self.inside.into_iter().chain(self.outside).collect();
        Ok(DataPlaneTables { devices, entries: config.entries().into_diagnostic()? })
    }
}

/// From the system's entropy: the choice of ports shall be unpredictable (RFC 6056).
fn secret() -> Result<u64> {
    use std::io::Read as _;
    let mut bytes = [0; 8];
    let mut source = std::fs::File::open("/dev/urandom").into_diagnostic().wrap_err("/dev/urandom")?;
    source.read_exact(&mut bytes).into_diagnostic().wrap_err("/dev/urandom")?;
    Ok(u64::from_ne_bytes(bytes))
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct LoadBalancerSpec {
    ports: Vec<String>,
    gateway: MacText,
    reals: Vec<RealServer>,
    services: Vec<VirtualService>,
    #[serde(default)]
    quic_servers: Vec<QuicServer>,
    /// Octets of a server's id for each configuration.
    #[serde(default)]
    quic_id_length: [u8; 8],
    gue_port: Option<u16>,
    source4: Option<Ipv4Addr>,
    source6: Option<Ipv6Addr>,
    max_length: Option<u32>,
    udp_idle: Option<u32>,
    #[serde(default)]
    fragments_to_stack: bool,
    new_flow_limit: Option<u32>,
    icmp_limit: Option<u32>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct RealServer {
    address: IpAddr,
    #[serde(default)]
    gue: bool,
    #[serde(default = "yes")]
    up: bool,
}

fn yes() -> bool {
    true
}

#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(rename_all = "snake_case")]
enum TransportProtocol {
    Tcp,
    Udp,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct VirtualService {
    address: IpAddr,
    #[serde(default)]
    port: u16,
    protocol: TransportProtocol,
    #[serde(default)]
    client_affinity: bool,
    #[serde(default)]
    stateless: bool,
    #[serde(default)]
    quic: bool,
    /// Indices in the list of reals, each with its weight.
    reals: Vec<(u32, u32)>,
}

#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct QuicServer {
    config: u8,
    id: u32,
    real: u32,
}

impl LoadBalancerSpec {
    fn tables(self) -> Result<DataPlaneTables> {
        let usual = balancer::BalancerConfig::default();
        let service = |s: &VirtualService| balancer::BalancerService {
            address: s.address,
            port: s.port,
            protocol: match s.protocol {
                TransportProtocol::Tcp => 6,
                TransportProtocol::Udp => 17,
            },
            client_affinity: s.client_affinity,
            stateless: s.stateless,
            quic: s.quic,
            reals: s.reals.clone(),
        };
        let real = |r: &RealServer| balancer::BalancerReal { address: r.address, gue: r.gue, up: r.up };
        let quic = |q: &QuicServer| balancer::QuicServer { config: q.config, id: q.id, real: q.real };
        let config = balancer::BalancerConfig {
            services: self.services.iter().map(service).collect(),
            reals: self.reals.iter().map(real).collect(),
            quic_servers: self.quic_servers.iter().map(quic).collect(),
            quic_id_length: self.quic_id_length,
            gateway: self.gateway.0,
            gue_port: self.gue_port.unwrap_or(usual.gue_port),
            source4: self.source4.unwrap_or(usual.source4),
            source6: self.source6.unwrap_or(usual.source6),
            max_length: self.max_length.unwrap_or(usual.max_length),
            udp_idle_ns: self.udp_idle.map_or(usual.udp_idle_ns, |s| u64::from(s) * 1_000_000_000),
            fragments_to_stack: self.fragments_to_stack,
            new_flow_limit: self.new_flow_limit.unwrap_or(usual.new_flow_limit),
            icmp_limit: self.icmp_limit.unwrap_or(usual.icmp_limit),
            ..usual
        };
        Ok(DataPlaneTables { devices: self.ports, entries: config.entries().into_diagnostic()? })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_as_text() {
        assert_eq!(MacText::try_from("02:00:00:00:00:0a".to_owned()).unwrap().0, [2, 0, 0, 0, 0, 10]);
        for bad in ["", "02:00:00:00:00", "02:00:00:00:00:0g", "2:0:0:0:0:1", "02:00:00:00:00:00:00"] {
            assert!(MacText::try_from(bad.to_owned()).is_err(), "{bad}");
        }
    }

    #[test]
    fn errors_name_what_is_wrong() {
        let error = |plane, text: &str| format!("{:?}", read(plane, text).unwrap_err());
        let hop = r#"{"ports": [], "next_hops": {}, "routes": {"10.0.0.0/8": "gone"}}"#;
        assert!(error(DataPlane::Router, hop).contains("gone"));
        let typo = r#"{"ports": [], "next_hops": {}, "routes": {}, "rout": {}}"#;
        assert!(error(DataPlane::Router, typo).contains("rout"));
        let both = r#"{"ports": {"lo": {"access": 1, "trunk": [2]}}}"#;
        assert!(error(DataPlane::Switch, both).contains("access"));
        let rule = r#"{"ports": [], "rules": ["accept tcp 10.0.0.0/8 any 0.0.0.0/0 80", "allow"]}"#;
        assert!(error(DataPlane::Firewall, rule).contains("line 2"));
        let missing = r#"{"ports": ["no-such-interface"], "next_hops":
            {"a": {"via": "02:00:00:00:00:01", "dev": "no-such-interface"}}, "routes": {}}"#;
        assert!(error(DataPlane::Router, missing).contains("no-such-interface"));
    }

    #[test]
    fn a_router_and_its_entries() {
        let text = r#"{"ports": ["lo"], "next_hops": {"here": "stack", "hole": "drop",
            "out": {"via": "02:00:00:00:00:01", "dev": "lo", "from": "02:00:00:00:00:02"}},
            "routes": {"10.0.0.0/8": "out", "192.0.2.0/24": "hole"}}"#;
        let tables = read(DataPlane::Router, text).unwrap();
        assert_eq!(tables.devices, ["lo"]);
        let maps: Vec<&str> = tables.entries.iter().map(|e| e.map).collect();
        assert_eq!(maps, ["tx_ports", "next_hops", "next_hops", "next_hops", "routes", "routes"]);
        assert_eq!(tables.entries[4].value, 2u32.to_ne_bytes(), "next hops are in the order of their names");
    }
}

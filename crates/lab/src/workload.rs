//! Tables and traffic for a program under test: our own generators', a pcap's, or a plain datagram.

use millstream_programs::packet::EthernetFrame;
use millstream_programs::traffic::{FlowLocality, WeightedFlows};
use millstream_programs::{self as programs, MapEntry, balancer, firewall, nat, router, switch};

use crate::error::{Error, Result};

/// Of all that is random here; printed with every result.
const SEED: u64 = 42;
/// VLANs of a generated switch.
const VLANS: [u16; 4] = [10, 20, 30, 40];
/// Services of a generated balancer.
const SERVICES: usize = 10;

/// Tables and packets for the runs of a program.
#[derive(Clone, Debug)]
pub struct Workload {
    /// For its maps.
    pub entries: Vec<MapEntry>,
    /// Its packets.
    pub flows: WeightedFlows,
    /// In words, with seeds and hashes.
    pub description: String,
}

/// Generated tables, as `builtin:NAME[:SIZE]`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct BuiltinWorkload {
    /// Whose tables.
    pub program: programs::DataPlaneProgram,
    /// Routes, stations, rules, connections, or reals of each of ten services.
    pub size: usize,
    /// Prefixes, one a line, that a router has routes for, in place of generated ones.
    pub prefixes: Option<&'static str>,
}

impl std::str::FromStr for BuiltinWorkload {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        // The usual size, and the largest for which the maps have room.
        let known = [
            (programs::ROUTER, 2_592, router::MAX_ROUTES),
            (programs::SWITCH, 1_024, switch::MAX_STATIONS),
            (programs::FIREWALL, 1_000, firewall::MAX_RULES),
            // A connection has an entry for each direction.
            (programs::NAT, 10_000, nat::MAX_CONNECTION_ENTRIES / 2),
            (programs::BALANCER, 100, balancer::MAX_REALS / SERVICES),
        ];
        let unusable = || {
            let names: Vec<&str> = known.iter().map(|(p, ..)| p.name).collect();
            Error::Unusable(format!(
                "{text:?} is not builtin:NAME[:SIZE] with a NAME of {}",
                names.join(", ")
            ))
        };
        let mut parts = text.strip_prefix("builtin:").ok_or_else(unusable)?.split(':');
        let name = parts.next().ok_or_else(unusable)?;
        let (program, usual, most) = known.into_iter().find(|(p, ..)| p.name == name).ok_or_else(unusable)?;
        let size = match parts.next() {
            None => usual,
            Some(size) => size.parse().map_err(|_| unusable())?,
        };
        if size > most {
            return Err(Error::Unusable(format!(
                "{text:?}: the maps of {name} have room for a size of {most}"
            )));
        }
        match parts.next() {
            None => Ok(BuiltinWorkload::generated(program, size)),
            Some(_) => Err(unusable()),
        }
    }
}

impl BuiltinWorkload {
    /// Tables of a program that are drawn at random.
    pub const fn generated(program: programs::DataPlaneProgram, size: usize) -> BuiltinWorkload {
        BuiltinWorkload { program, size, prefixes: None }
    }

    /// The tables for two ports, and `flows` flows that come in at the first. Where the program can send
    /// out of the port that a packet came in by, all that it forwards goes there.
    ///
    /// # Errors
    /// A size that the program's maps cannot hold.
    pub fn workload(&self, ports: [u32; 2], flows: usize, locality: FlowLocality) -> Result<Workload> {
        self.workload_at(ports, flows, locality, crate::os::monotonic_ns())
    }

    /// The same, whose connections had their last packet at this time (`CLOCK_MONOTONIC`, nanoseconds).
    ///
    /// # Errors
    /// As there.
    pub fn workload_at(
        &self,
        ports: [u32; 2],
        flows: usize,
        locality: FlowLocality,
        now: u64,
    ) -> Result<Workload> {
        let bad = |e: &dyn std::fmt::Display| Error::Unusable(format!("{}: {e}", self.program.name));
        let size = self.size;
        // Not part of the table's name: connections, since they hold the time.
        let mut more = Vec::new();
        let (mut entries, flows) = match self.program.name {
            "router" => {
                let config = match self.prefixes {
                    Some(text) => {
                        router::RouterConfig::from_prefixes(text, &router::next_hops(&ports[..1], 8))
                    }
                    None => Ok(router::generate(size, &ports[..1], 8, SEED)),
                };
                let config = config.map_err(|e| bad(&e))?;
                let flows = router::flows(&config, flows, locality, SEED + 1);
                (config.entries().map_err(|e| bad(&e))?, flows)
            }
            "switch" => {
                let config = switch::generate(size, &ports, &VLANS, switch::VlanLayout::Trunk, SEED);
                let flows = switch::flows(&config, ports[0], flows, locality, SEED + 1);
                (config.entries().map_err(|e| bad(&e))?, flows)
            }
            "firewall" => {
                let mut config = firewall::generate(firewall::RuleSetKind::AccessList, size, SEED);
                config.forward = firewall::AcceptTarget::Hairpin;
                let flows = firewall::flows(&config, flows, locality, SEED + 1, |_| true);
                (config.entries().map_err(|e| bad(&e))?, flows)
            }
            "nat" => {
                let config = nat::generate(ports[0], ports[1], 16, SEED);
                let traffic = nat::traffic(&config, size, nat::ProtocolMix::default(), locality, SEED + 1);
                more = traffic.entries(now);
                (config.entries().map_err(|e| bad(&e))?, traffic.outbound)
            }
            _ => {
                let config = balancer::generate(balancer::ServiceMix::Web, SERVICES, size, SEED);
                let flows = balancer::flows(&config, flows, locality, SEED + 1);
                (config.entries().map_err(|e| bad(&e))?, flows)
            }
        };
        if flows.packets.is_empty() {
            return Err(bad(&"tables of this size forward nothing"));
        }
        let (name, tables) = (self.program.name, programs::table::hash(&entries));
        entries.extend(more);
        let description = format!(
            "{name}:{size}, seed {SEED}, {} map entries, hash {tables:016x}, {} flows, hash {:016x}",
            entries.len(),
            flows.packets.len(),
            flows.hash()
        );
        Ok(Workload { entries, flows, description })
    }
}

/// Packets as they are, each as often as any other; without any, one UDP datagram of 64 bytes.
pub fn plain(packets: Vec<Vec<u8>>, from: &str) -> Workload {
    let (packets, from) = match packets.is_empty() {
        true => (vec![EthernetFrame::default().to_bytes()], "one UDP datagram"),
        false => (packets, from),
    };
    let flows = WeightedFlows::new(packets, FlowLocality::NONE, SEED);
    let description = format!("{from}, {} frames, hash {:016x}", flows.packets.len(), flows.hash());
    Workload { entries: Vec::new(), flows, description }
}

/// A locality by its name: `high`, `low`, `none` or `zipf:EXPONENT`.
///
/// # Errors
/// Any other text.
pub fn locality(text: &str) -> Result<FlowLocality> {
    let zipf = |exponent: &str| exponent.parse().ok().filter(|e: &f64| e.is_finite() && *e >= 0.0);
    match (text, text.strip_prefix("zipf:").map(zipf)) {
        ("high", _) => Ok(FlowLocality::HIGH),
        ("low", _) => Ok(FlowLocality::LOW),
        ("none", _) => Ok(FlowLocality::NONE),
        (_, Some(Some(exponent))) => Ok(FlowLocality::Zipf { exponent }),
        _ => Err(Error::Unusable(format!("{text:?} is not high, low, none or zipf:EXPONENT"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_tables_and_localities() {
        let router: BuiltinWorkload = "builtin:router:100".parse().unwrap();
        assert_eq!((router.program.name, router.size), ("router", 100));
        assert_eq!("builtin:nat".parse::<BuiltinWorkload>().unwrap().size, 10_000);
        for bad in ["router", "builtin:", "builtin:x", "builtin:router:x", "builtin:router:1:2"] {
            assert!(bad.parse::<BuiltinWorkload>().is_err(), "{bad}");
        }
        for name in ["router", "switch", "firewall", "nat", "balancer"] {
            let builtin = |size: u64| format!("builtin:{name}:{size}").parse::<BuiltinWorkload>();
            for size in [u64::MAX, u64::MAX / 2, 1 << 32, 1 << 21] {
                let refused = builtin(size).unwrap_err().to_string();
                assert!(refused.contains("room for a size of"), "{refused}");
            }
        }
        assert_eq!(locality("zipf:1.5").unwrap(), FlowLocality::Zipf { exponent: 1.5 });
        assert!(["zipf:", "zipf:nan", "zipf:-1", "middle"].iter().all(|t| locality(t).is_err()));
    }

    #[test]
    fn all_builtin_tables_have_flows_on_the_first_port() {
        for name in ["router:50", "switch:50", "firewall:50", "nat:50", "balancer:5"] {
            let builtin: BuiltinWorkload = format!("builtin:{name}").parse().unwrap();
            let load = builtin.workload([5, 7], 20, FlowLocality::NONE).unwrap();
            assert!(!load.flows.packets.is_empty() && !load.entries.is_empty(), "{name}");
        }
    }
}

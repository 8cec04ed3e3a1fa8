//! Contents of a data plane's tables, and its counters.

use std::collections::BTreeMap;

use millstream_isa::MapType;
use millstream_kernel::KernelMap;
use millstream_programs::router::PortCounters;
use millstream_programs::{balancer, firewall, nat, router, switch};
use serde::Serialize;

use super::DataPlane;
use super::pin_directory::{ControlError, PinDirectory, device_name};

/// Maximum number of rules, services or reals that are shown individually: those with the most packets.
const MOST: usize = 32;

#[derive(Serialize)]
struct ControlReport {
    schema: u32,
    plane: &'static str,
    /// Entries by table; of arrays, those that are not zero.
    tables: BTreeMap<&'static str, usize>,
    ports: Vec<PortRow>,
    /// Counters by name; zero counters are left out.
    counts: BTreeMap<String, u64>,
    /// Packets and bytes by rule, service or real: those with the most packets.
    busiest: Vec<BusiestEntry>,
}

#[derive(Serialize)]
struct PortRow {
    interface: String,
    rx_packets: u64,
    rx_bytes: u64,
    tx_packets: u64,
    tx_bytes: u64,
}

#[derive(Serialize)]
struct BusiestEntry {
    kind: &'static str,
    index: u32,
    packets: u64,
    bytes: u64,
}

/// Prints the report.
pub(super) fn show(plane: DataPlane, place: &PinDirectory, json: bool) -> Result<(), ControlError> {
    let report = report(plane, place)?;
    if json {
        let text =
            serde_json::to_string_pretty(&report).map_err(|e| ControlError::Unusable(e.to_string()))?;
        outln!("{text}");
    } else {
        out!("{}", text(&report));
    }
    Ok(())
}

/// Maps of a data plane.
struct DataPlaneMaps {
    tables: &'static [&'static str],
    /// A map of [`PortCounters`] by interface.
    ports: Option<&'static str>,
    /// A map of counts by event, and the events' names.
    events: Option<(&'static str, Vec<String>)>,
    /// Maps of packets and bytes, and the meaning of their indices.
    busy: &'static [(&'static str, &'static str)],
}

fn layout(plane: DataPlane) -> DataPlaneMaps {
    fn names<T: std::fmt::Debug>(all: &[T]) -> Vec<String> {
        all.iter().map(|e| snake(&format!("{e:?}"))).collect()
    }
    match plane {
        DataPlane::Router => DataPlaneMaps {
            tables: &[router::ROUTES, router::NEXT_HOPS],
            ports: Some(router::COUNTERS),
            events: Some((router::REASONS, names(&router::RouterEvent::ALL))),
            busy: &[],
        },
        DataPlane::Switch => DataPlaneMaps {
            tables: &[switch::PORTS, switch::STATIONS],
            ports: Some(switch::COUNTERS),
            events: Some((switch::EVENTS, names(&switch::SwitchEvent::ALL))),
            busy: &[(switch::VLAN_COUNTERS, "vlan")],
        },
        DataPlane::Nat => DataPlaneMaps {
            tables: &[nat::PORTS, nat::RULES, nat::EXEMPT, nat::EXTERNALS, nat::CONNECTIONS],
            ports: Some(nat::COUNTERS),
            events: Some((nat::EVENTS, names(&nat::NatEvent::ALL))),
            busy: &[],
        },
        DataPlane::Firewall => DataPlaneMaps {
            tables: &[firewall::SRC_PREFIXES, firewall::DST_PREFIXES],
            ports: None,
            events: None,
            busy: &[(firewall::COUNTERS, "rule")],
        },
        DataPlane::Balancer => DataPlaneMaps {
            tables: &[
                balancer::VIPS4,
                balancer::VIPS6,
                balancer::REALS,
                balancer::QUIC_SERVERS,
                balancer::FLOWS4,
                balancer::FLOWS6,
            ],
            ports: None,
            events: Some((balancer::REASONS, names(&balancer::BalancerEvent::ALL))),
            busy: &[(balancer::VIP_COUNTERS, "service"), (balancer::REAL_COUNTERS, "real")],
        },
    }
}

/// `NoRoute` as `no_route`.
fn snake(name: &str) -> String {
    let mut out = String::new();
    for (i, c) in name.char_indices() {
        if i > 0 && c.is_ascii_uppercase() {
            out.push('_');
        }
        out.push(c.to_ascii_lowercase());
    }
    out
}

fn report(plane: DataPlane, place: &PinDirectory) -> Result<ControlReport, ControlError> {
    let layout = layout(plane);
    let mut report = ControlReport {
        schema: 2,
        plane: plane.program().name,
        tables: BTreeMap::new(),
        ports: Vec::new(),
        counts: BTreeMap::new(),
        busiest: Vec::new(),
    };
    for name in layout.tables {
        report.tables.insert(name, count(&place.map(name)?)?);
    }
    if let Some(name) = layout.ports {
        report.ports = ports(&place.map(name)?)?;
    }
    if let Some((name, names)) = &layout.events {
        for (key, sums) in sums(&place.map(name)?)? {
            let event = names.get(key as usize).cloned().unwrap_or_else(|| key.to_string());
            report.counts.insert(event, sums.first().copied().unwrap_or(0));
        }
    }
    for (name, kind) in layout.busy {
        report.busiest.extend(busiest(&place.map(name)?, kind)?);
    }
    if plane == DataPlane::Firewall {
        report.counts = firewall_counts(&place.map(firewall::STATS)?)?;
    }
    Ok(report)
}

fn count(map: &KernelMap) -> Result<usize, ControlError> {
    let entries = map.entries()?;
    Ok(match map.info().map_type {
        MapType::ARRAY => entries.iter().filter(|(_, v)| v.iter().any(|b| *b != 0)).count(),
        _ => entries.len(),
    })
}

/// The non-zero elements of a per-CPU map of counts, summed over CPUs.
pub(super) fn sums(map: &KernelMap) -> Result<Vec<(u32, Vec<u64>)>, ControlError> {
    let words = map.info().value_size as usize / 8;
    let mut out = Vec::new();
    for (key, value) in map.entries()?.iter() {
        let Some(key) = key.first_chunk() else { continue };
        let mut sums = vec![0u64; words];
        let numbers = value.chunks_exact(8).filter_map(|w| w.try_into().ok()).map(u64::from_ne_bytes);
        for (i, n) in numbers.enumerate() {
            sums[i % words] += n;
        }
        if sums.iter().any(|n| *n != 0) {
            out.push((u32::from_ne_bytes(*key), sums));
        }
    }
    Ok(out)
}

fn ports(map: &KernelMap) -> Result<Vec<PortRow>, ControlError> {
    let row = |(port, sums): (u32, Vec<u64>)| {
        let bytes: Vec<u8> = sums.iter().flat_map(|n| n.to_ne_bytes()).collect();
        let c = PortCounters::decode(&bytes)?;
        Some(PortRow {
            interface: device_name(port),
            rx_packets: c.rx_packets,
            rx_bytes: c.rx_bytes,
            tx_packets: c.tx_packets,
            tx_bytes: c.tx_bytes,
        })
    };
    Ok(sums(map)?.into_iter().filter_map(row).collect())
}

fn busiest(map: &KernelMap, kind: &'static str) -> Result<Vec<BusiestEntry>, ControlError> {
    let busy = |(index, sums): (u32, Vec<u64>)| {
        Some(BusiestEntry { kind, index, packets: *sums.first()?, bytes: *sums.get(1)? })
    };
    let mut rows: Vec<BusiestEntry> = sums(map)?.into_iter().filter_map(busy).collect();
    rows.sort_by_key(|b| std::cmp::Reverse(b.packets));
    rows.truncate(MOST);
    Ok(rows)
}

fn firewall_counts(map: &KernelMap) -> Result<BTreeMap<String, u64>, ControlError> {
    let sums = sums(map)?.pop().map(|(_, sums)| sums).unwrap_or_default();
    let bytes: Vec<u8> = sums.iter().flat_map(|n| n.to_ne_bytes()).collect();
    let s = firewall::FirewallStats::decode(&bytes).unwrap_or_default();
    let named = [
        ("received", s.received),
        ("accepted", s.accepted),
        ("dropped", s.dropped),
        ("rejected", s.rejected),
        ("malformed", s.malformed),
        ("fragments", s.fragments),
        ("not_ipv4", s.not_ipv4),
    ];
    Ok(named.into_iter().filter(|(_, n)| *n != 0).map(|(name, n)| (name.to_owned(), n)).collect())
}

fn text(report: &ControlReport) -> String {
    use std::fmt::Write as _;
    let mut out = format!("{}\n", report.plane);
    for (name, n) in &report.tables {
        let _ = writeln!(out, "  {name:20} {n:>12} entries");
    }
    for p in &report.ports {
        let _ = writeln!(
            out,
            "  {:20} {:>12} packets in, {} bytes; {} packets out, {} bytes",
            p.interface, p.rx_packets, p.rx_bytes, p.tx_packets, p.tx_bytes
        );
    }
    for (name, n) in &report.counts {
        let _ = writeln!(out, "  {name:20} {n:>12}");
    }
    for b in &report.busiest {
        let _ = writeln!(
            out,
            "  {:20} {:>12} packets, {} bytes",
            format!("{} {}", b.kind, b.index),
            b.packets,
            b.bytes
        );
    }
    out
}

#[cfg(test)]
mod tests {
    use super::snake;

    #[test]
    fn names_of_events() {
        assert_eq!(
            (snake("NoRoute"), snake("NotIpv4"), snake("Ttl")),
            ("no_route".into(), "not_ipv4".into(), "ttl".into())
        );
    }
}

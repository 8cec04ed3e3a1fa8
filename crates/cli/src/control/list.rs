//! Tables of a data plane, entry by entry, in an operator's terms.

use std::fmt::Write as _;

use millstream_lab::os;
use millstream_programs::packet::{ICMP, MacAddress, TCP, UDP};
use millstream_programs::{balancer, firewall, nat, router, switch};
use serde_json::{Map as Object, Value, json};

use super::DataPlane;
use super::pin_directory::{ControlError, PinDirectory, device_name};
use super::show::sums;

/// A table of text; a cell that is a number is one in JSON, too.
struct EntryListing {
    columns: &'static [&'static str],
    rows: Vec<Vec<String>>,
}

/// Prints the listing.
pub(super) fn list(plane: DataPlane, place: &PinDirectory, json: bool) -> Result<(), ControlError> {
    let mut listing = match plane {
        DataPlane::Router => routes(place)?,
        DataPlane::Switch => stations(place)?,
        DataPlane::Firewall => rules(place)?,
        DataPlane::Nat => translations(place)?,
        DataPlane::Balancer => connections(place)?,
    };
    // Routes and rules have an order of their own.
    if !matches!(plane, DataPlane::Router | DataPlane::Firewall) {
        listing.rows.sort();
    }
    if json {
        let text = serde_json::to_string_pretty(&document(plane, &listing));
        outln!("{}", text.map_err(|e| ControlError::Unusable(e.to_string()))?);
    } else {
        out!("{}", text(&listing));
    }
    Ok(())
}

fn document(plane: DataPlane, listing: &EntryListing) -> Value {
    let object = |row: &Vec<String>| -> Object<String, Value> {
        let columns = listing.columns.iter().map(ToString::to_string);
        let value = |cell: &String| cell.parse().map_or_else(|_| json!(cell), |n: u64| json!(n));
        columns.zip(row.iter().map(value)).collect()
    };
    let entries: Vec<_> = listing.rows.iter().map(object).collect();
    json!({ "schema": 1, "plane": plane.program().name, "entries": entries })
}

/// Formats columns as wide as their widest cell.
fn text(listing: &EntryListing) -> String {
    let header: Vec<String> = listing.columns.iter().map(ToString::to_string).collect();
    let width = |column: usize| {
        let cells = listing.rows.iter().chain([&header]).filter_map(|row| row.get(column));
        cells.map(String::len).max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..header.len()).map(width).collect();
    let mut out = String::new();
    for row in std::iter::once(&header).chain(&listing.rows) {
        let mut line = String::new();
        for (cell, width) in row.iter().zip(&widths) {
            let _ = write!(line, "{cell:width$}  ");
        }
        let _ = writeln!(out, "{}", line.trim_end());
    }
    out
}

fn mac_text(mac: MacAddress) -> String {
    mac.map(|octet| format!("{octet:02x}")).join(":")
}

fn protocol_text(protocol: u8) -> String {
    match protocol {
        ICMP => "icmp".to_owned(),
        TCP => "tcp".to_owned(),
        UDP => "udp".to_owned(),
        other => other.to_string(),
    }
}

/// Age in seconds.
fn ago(seen: u64) -> String {
    (os::monotonic_ns().saturating_sub(seen) / 1_000_000_000).to_string()
}

fn routes(place: &PinDirectory) -> Result<EntryListing, ControlError> {
    let hops = place.map(router::NEXT_HOPS)?.entries()?;
    let hops: Vec<Option<router::NextHop>> = hops.iter().map(|(_, v)| router::NextHop::decode(v)).collect();
    let row = |route: router::Route| {
        let [via, dev, mtu] = match hops.get(route.next_hop as usize).copied().flatten() {
            Some(router::NextHop::Forward { dst_mac, port, mtu, .. }) => {
                [mac_text(dst_mac), device_name(port), mtu.to_string()]
            }
            Some(router::NextHop::Drop) => ["drop".to_owned(), String::new(), String::new()],
            Some(router::NextHop::Stack) | None => ["stack".to_owned(), String::new(), String::new()],
        };
        vec![route.prefix.to_string(), via, dev, mtu]
    };
    let entries = place.map(router::ROUTES)?.entries()?;
    let mut routes: Vec<router::Route> =
        entries.iter().filter_map(|(k, v)| router::Route::decode(k, v)).collect();
    routes.sort_unstable_by_key(|r| (r.prefix.address(), r.prefix.length()));
    let rows = routes.into_iter().map(row).collect();
    Ok(EntryListing { columns: &["route", "via", "dev", "mtu"], rows })
}

fn stations(place: &PinDirectory) -> Result<EntryListing, ControlError> {
    let row = |s: switch::FdbEntry| {
        let dev = match s.place {
            switch::FdbDestination::Port(port) => device_name(port),
            switch::FdbDestination::Local => "here".to_owned(),
        };
        let seen = if s.is_static { String::new() } else { ago(s.seen) };
        let kind = if s.is_static { "static" } else { "learned" };
        vec![mac_text(s.mac), s.vlan.to_string(), dev, kind.to_owned(), seen]
    };
    let entries = place.map(switch::STATIONS)?.entries()?;
    let rows = entries.iter().filter_map(|(k, v)| switch::FdbEntry::decode(k, v)).map(row).collect();
    Ok(EntryListing { columns: &["mac", "vlan", "dev", "kind", "seconds_ago"], rows })
}

/// The rules that matched, by their place in the configuration.
fn rules(place: &PinDirectory) -> Result<EntryListing, ControlError> {
    let actions = place.map(firewall::RULES)?.entries()?;
    let mut rows = Vec::new();
    for (index, sums) in sums(&place.map(firewall::COUNTERS)?)? {
        let action = actions.iter().nth(index as usize).and_then(|(_, v)| v.first().copied());
        let action = match action {
            Some(1) => "accept",
            Some(2) => "reject",
            _ => "drop",
        };
        let rule =
            if index as usize == firewall::MAX_RULES { "default".to_owned() } else { index.to_string() };
        let count = |i: usize| sums.get(i).copied().unwrap_or(0).to_string();
        rows.push(vec![rule, action.to_owned(), count(0), count(1)]);
    }
    Ok(EntryListing { columns: &["rule", "action", "packets", "bytes"], rows })
}

/// Each connection once, as its inside host sees it.
fn translations(place: &PinDirectory) -> Result<EntryListing, ControlError> {
    let row = |(flow, c): (nat::NatFlow, nat::NatTranslation)| {
        let t = flow.tuple;
        vec![
            protocol_text(t.protocol),
            format!("{}:{}", t.src, t.src_port),
            format!("{}:{}", c.address, c.port),
            format!("{}:{}", t.dst, t.dst_port),
            ago(c.seen),
        ]
    };
    let entries = place.map(nat::CONNECTIONS)?.entries()?;
    let outbound = entries
        .iter()
        .filter_map(|(k, v)| Some((nat::NatFlow::decode(k)?, nat::NatTranslation::decode(v)?)))
        .filter(|(flow, _)| flow.direction == nat::FlowDirection::Outbound);
    let rows = outbound.map(row).collect();
    Ok(EntryListing { columns: &["protocol", "inside", "external", "remote", "seconds_ago"], rows })
}

fn connections(place: &PinDirectory) -> Result<EntryListing, ControlError> {
    let reals = place.map(balancer::REALS)?.entries()?;
    let mut rows = Vec::new();
    for name in [balancer::FLOWS4, balancer::FLOWS6] {
        let entries = place.map(name)?.entries()?;
        for c in entries.iter().filter_map(|(k, v)| balancer::BalancerConnection::decode(k, v)) {
            let real = reals.iter().nth(c.real as usize).and_then(|(_, v)| balancer::BalancerReal::decode(v));
            rows.push(vec![
                protocol_text(c.protocol),
                std::net::SocketAddr::from(c.client).to_string(),
                std::net::SocketAddr::from(c.service).to_string(),
                real.map_or_else(String::new, |r| r.address.to_string()),
            ]);
        }
    }
    Ok(EntryListing { columns: &["protocol", "client", "service", "real"], rows })
}

#[cfg(test)]
mod tests {
    use super::{EntryListing, text};

    #[test]
    fn columns_are_as_wide_as_their_widest_cell() {
        let cell = |s: &str| s.to_owned();
        let rows = vec![vec![cell("10.0.0.0/8"), cell("drop")], vec![cell("0.0.0.0/0"), cell("")]];
        let listing = EntryListing { columns: &["route", "via"], rows };
        assert_eq!(text(&listing), "route       via\n10.0.0.0/8  drop\n0.0.0.0/0\n");
    }
}

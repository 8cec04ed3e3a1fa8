//! Conditions for packets whose trace is of interest.

use std::net::Ipv4Addr;
use std::str::FromStr;

use num_bigint::BigUint;

use crate::trace::TraceEvent;

/// A condition: `port=N`, `table=NAME`, `dropped`, or `FIELD=VALUE` with the end of a field's name.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum TraceCondition {
    /// The packet came in at this port.
    Port(u64),
    /// It, or a copy, was dropped.
    Dropped,
    /// It passed this table.
    Table(String),
    /// A field of a valid header had this value at the end of a function.
    Field(String, BigUint),
}

/// Returns true if a name is `end`, or ends with it behind a dot.
fn is_named(name: &str, end: &str) -> bool {
    name.strip_suffix(end).is_some_and(|rest| rest.is_empty() || rest.ends_with('.'))
}

/// A number: decimal, `0x`, an IPv4 address or an Ethernet address.
fn number(text: &str) -> Option<BigUint> {
    if let Ok(address) = text.parse::<Ipv4Addr>() {
        return Some(address.to_bits().into());
    }
    if let Some(digits) = text.strip_prefix("0x") {
        return BigUint::parse_bytes(digits.as_bytes(), 16);
    }
    match text.split(':').collect::<Vec<_>>() {
        bytes if bytes.len() == 6 && bytes.iter().all(|byte| byte.len() == 2) => {
            BigUint::parse_bytes(bytes.concat().as_bytes(), 16)
        }
        _ => BigUint::parse_bytes(text.as_bytes(), 10),
    }
}

impl FromStr for TraceCondition {
    type Err = String;

    fn from_str(text: &str) -> Result<TraceCondition, String> {
        match text.split_once('=') {
            None if text == "dropped" => Ok(TraceCondition::Dropped),
            Some(("port", port)) => {
                port.parse().map(TraceCondition::Port).map_err(|_| format!("`{port}` is no port"))
            }
            Some(("table", name)) if !name.is_empty() => Ok(TraceCondition::Table(name.to_owned())),
            Some((field, value)) if !field.is_empty() => number(value)
                .map(|value| TraceCondition::Field(field.to_owned(), value))
                .ok_or_else(|| format!("`{value}` is no number, IPv4 address or Ethernet address")),
            _ => Err("a condition is port=N, table=NAME, dropped, or FIELD=VALUE".to_owned()),
        }
    }
}

impl TraceCondition {
    /// Returns true if a packet with these events meets the condition.
    pub fn is_met(&self, events: &[TraceEvent]) -> bool {
        events.iter().any(|event| match (self, event) {
            (TraceCondition::Port(wanted), TraceEvent::Arrived { port, .. }) => port == wanted,
            (TraceCondition::Dropped, TraceEvent::Dropped { .. }) => true,
            (TraceCondition::Table(wanted), TraceEvent::Table { name, .. }) => is_named(name, wanted),
            (TraceCondition::Field(wanted, value), TraceEvent::Stage { fields, .. }) => {
                fields.iter().any(|(name, own)| is_named(name, wanted) && own == value)
            }
            _ => false,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn conditions_are_about_ports_tables_drops_and_fields() {
        let fields = vec![("headers.ipv4.source".to_owned(), BigUint::from(0x0a00_0001u32))];
        let events = [
            TraceEvent::Arrived { port: 3, bytes: 60 },
            TraceEvent::Stage { name: "parser".into(), headers: vec!["headers.ipv4".into()], fields },
            TraceEvent::Dropped { reason: "none".into(), line: None },
        ];
        let met = |text: &str| text.parse::<TraceCondition>().unwrap().is_met(&events);
        assert!(met("port=3") && met("dropped") && met("ipv4.source=10.0.0.1") && met("source=0xa000001"));
        assert!(!met("port=4") && !met("table=routes") && !met("ource=10.0.0.1") && !met("source=1"));
        let address: TraceCondition = "source=02:00:00:00:00:0a".parse().unwrap();
        assert_eq!(address, TraceCondition::Field("source".into(), BigUint::from(0x0200_0000_000au64)));
        for wrong in ["", "port", "port=x", "=1", "source=", "table="] {
            assert!(wrong.parse::<TraceCondition>().is_err(), "{wrong}");
        }
    }
}

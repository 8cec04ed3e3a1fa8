//! Count sketches: about how many packets or bytes each flow had, in memory that does not grow with the
//! flows.
//!
//! A sketch has rows of counters. A flow shares one counter in each row, chosen by a hash for that row, with
//! other flows: a row's value is the flow's count and theirs. With plain counters the smallest is the
//! estimate (count-min: Cormode and Muthukrishnan, 2005): never too small, and too large by more than epsilon
//! of all that was counted with probability delta at most, from `e / epsilon` counters in each of
//! `ln(1 / delta)` rows. With counters that a second hash adds to or subtracts from, it is the median (count
//! sketch: Charikar, Chen and Farach-Colton, 2002): wrong on either side, by epsilon of the Euclidean norm of
//! all counts, from `3 / epsilon^2` counters.
//!
//! Sketches of two workers are added up counter by counter.
//!
//! `elements::sketch` writes the same hashes and estimates as code: both must change together.

use std::net::Ipv4Addr;

use serde::{Deserialize, Serialize};

/// Odd multipliers of Appleby's finalizer (MurmurHash3), which mix all bits of a word into all others.
pub const MIX: [u64; 2] = [0xff51_afd7_ed55_8ccd, 0xc4ce_b9fe_1a85_ec53];
/// Rows at most.
pub const MOST_ROWS: u32 = 15;

/// Key of a flow: addresses as they lie in the packet, source first; then ports as they lie there, or zero,
/// and the protocol above them.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct FlowKey {
    /// Both addresses.
    pub addresses: u64,
    /// Both ports, and the protocol.
    pub rest: u64,
}

/// Protocols by name.
const PROTOCOLS: [(&str, u64); 3] = [("icmp", 1), ("tcp", 6), ("udp", 17)];

impl FlowKey {
    /// A flow from a text: addresses with their ports behind them, and the protocol, as in
    /// `10.0.0.1 1234 10.0.0.2 80 tcp`; the ports may be left out.
    pub fn parse(text: &str) -> Option<FlowKey> {
        let words: Vec<&str> = text.split_whitespace().collect();
        let (source, from, destination, to, protocol) = match words[..] {
            [source, from, destination, to, protocol] => (source, from, destination, to, protocol),
            [source, destination, protocol] => (source, "0", destination, "0", protocol),
            _ => return None,
        };
        let addresses = [source, destination].map(|a| a.parse::<Ipv4Addr>().ok().map(|a| a.octets()));
        let ports = [from, to].map(|p| p.parse::<u16>().ok().map(u16::to_be_bytes));
        let named = PROTOCOLS.iter().find(|(name, _)| *name == protocol).map(|(_, number)| *number);
        let protocol = named.or_else(|| protocol.parse::<u8>().ok().map(u64::from))?;
        let addresses = u64::from_le_bytes([addresses[0]?, addresses[1]?].concat().try_into().ok()?);
        let ports = u32::from_le_bytes([ports[0]?, ports[1]?].concat().try_into().ok()?);
        Some(FlowKey { addresses, rest: u64::from(ports) | protocol << 32 })
    }

    /// The hash that all others are made of.
    pub fn digest(self) -> u64 {
        let first = self.addresses.wrapping_mul(MIX[0]);
        let mut mixed = first ^ first >> 32 ^ self.rest;
        for by in MIX {
            mixed = (mixed ^ mixed >> 33).wrapping_mul(by);
        }
        mixed ^ mixed >> 33
    }
}

impl std::fmt::Display for FlowKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let [a, b, c, d, e, g, h, i] = self.addresses.to_le_bytes();
        let [s1, s2, d1, d2, protocol, ..] = self.rest.to_le_bytes();
        let named = PROTOCOLS.iter().find(|(_, number)| *number == u64::from(protocol));
        write!(
            f,
            "{} {} {} {} ",
            Ipv4Addr::new(a, b, c, d),
            u16::from_be_bytes([s1, s2]),
            Ipv4Addr::new(e, g, h, i),
            u16::from_be_bytes([d1, d2])
        )?;
        match named {
            Some((name, _)) => f.write_str(name),
            None => write!(f, "{protocol}"),
        }
    }
}

/// Parameters of a sketch, and the maps that hold it: arrays, of which each worker has its own.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct FlowSketch {
    /// Name of the map with the counters, row by row, 64 bits each.
    pub counters: String,
    /// Name of the map with flows that may be among the largest, by their hashes: flow and estimate.
    pub candidates: String,
    /// Rows of counters.
    pub rows: u32,
    /// Of the number of counters in a row, the logarithm.
    pub bits: u32,
    /// True if counters are subtracted from, too.
    pub signed: bool,
    /// Flows that are shown, at most.
    pub shown: u32,
}

/// Odd multiplier of a row's hash (multiply-shift: Dietzfelbinger and others, 1997).
pub fn multiplier(row: u32) -> u64 {
    FlowKey { addresses: u64::from(row) + 1, rest: 0 }.digest() | 1
}

impl FlowSketch {
    /// Indexes of a flow's counters, each with true if it is subtracted from.
    fn places(&self, flow: FlowKey) -> impl Iterator<Item = (u32, bool)> + '_ {
        let digest = flow.digest();
        (0..self.rows).map(move |row| {
            let hash = digest.wrapping_mul(multiplier(row));
            let place = (row << self.bits) + (hash >> (64 - self.bits)) as u32;
            (place, self.signed && hash >> (63 - self.bits) & 1 == 1)
        })
    }

    /// Estimate of a flow's count, by the values of counters.
    pub fn estimate(&self, flow: FlowKey, mut counter: impl FnMut(u32) -> i64) -> i64 {
        let count = |(place, minus)| {
            let count = counter(place);
            if minus { count.wrapping_neg() } else { count }
        };
        let mut counts: Vec<i64> = self.places(flow).map(count).collect();
        counts.sort_unstable();
        counts[if self.signed { counts.len() / 2 } else { 0 }]
    }

    /// The largest of these candidates, each flow once, by their estimates, which are positive.
    pub fn largest(
        &self,
        candidates: impl IntoIterator<Item = FlowKey>,
        mut counter: impl FnMut(u32) -> i64,
    ) -> Vec<(i64, FlowKey)> {
        let mut flows: Vec<FlowKey> = candidates.into_iter().collect();
        flows.sort_unstable();
        flows.dedup();
        let mut all: Vec<(i64, FlowKey)> =
            flows.into_iter().map(|flow| (self.estimate(flow, &mut counter), flow)).collect();
        all.retain(|(estimate, _)| *estimate > 0);
        all.sort_unstable_by_key(|(estimate, flow)| (std::cmp::Reverse(*estimate), *flow));
        all.truncate(self.shown as usize);
        all
    }
}

#[cfg(test)]
mod tests {
    use super::FlowKey;

    #[test]
    fn flows_are_read_as_they_are_written() {
        for text in
            ["10.0.0.1 1234 192.168.0.2 80 tcp", "1.2.3.4 5 6.7.8.9 65535 udp", "1.2.3.4 0 6.7.8.9 0 47"]
        {
            assert_eq!(FlowKey::parse(text).expect("a flow").to_string(), text);
        }
        assert_eq!(FlowKey::parse("1.2.3.4 6.7.8.9 icmp"), FlowKey::parse("1.2.3.4 0 6.7.8.9 0 1"));
        for wrong in
            ["", "1.2.3.4", "1.2.3.4 5 6.7.8.9 65536 udp", "1.2.3 5 6.7.8.9 1 udp", "1.2.3.4 6.7.8.9 x"]
        {
            assert_eq!(FlowKey::parse(wrong), None, "{wrong}");
        }
    }
}

//! Traces of any length from windows of packets.

use std::ops::Range;

use millstream_rng::Rng;
use rustc_hash::FxHashMap;
use serde::Serialize;

use crate::checksum::{put, transport_place, updated};
use crate::flow::FlowKey;
use crate::headers::{FramePlaces, NetworkKind, word};

/// Packets that came one behind the other.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct SampledWindow {
    /// Their bytes.
    pub frames: Vec<Vec<u8>>,
}

/// Facts of the traffic that samples tell.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct TraceEstimate {
    /// Windows with packets.
    pub windows: u64,
    /// Packets of all windows.
    pub packets: u64,
    /// Flows of these.
    pub flows: u64,
    /// Flows that are in more than one window.
    pub recurring: u64,
    /// Number of flows of the whole traffic, at least (Chao2; Chao, 1987).
    pub estimated_flows: f64,
}

/// Bits of a clone's number: those of the source port that it changes.
const CLONE_BITS: u32 = 14;
/// Odd factor that spreads the numbers of clones over these bits.
const SPREAD: u32 = 0x2545_f491;

/// Makes traces of samples.
#[derive(Clone, Debug)]
pub struct TraceBuilder {
    windows: Vec<SampledWindow>,
    /// Number of the flow of each packet, by window.
    flows: Vec<Vec<u32>>,
    /// True for flows in more than one window.
    recurs: Vec<bool>,
    estimate: TraceEstimate,
}

impl TraceBuilder {
    /// A builder for these samples.
    pub fn new(mut windows: Vec<SampledWindow>) -> TraceBuilder {
        windows.retain(|window| !window.frames.is_empty());
        let mut known: FxHashMap<FlowKey, u32> = FxHashMap::default();
        // Numbers of windows, and the last one, of each flow.
        let mut seen: Vec<(u32, usize)> = Vec::new();
        let mut flows = Vec::with_capacity(windows.len());
        for (number, window) in windows.iter().enumerate() {
            let of_window = window.frames.iter().map(|frame| {
                let next = known.len() as u32;
                let flow = *known.entry(FlowKey::of(frame)).or_insert(next);
                match seen.get_mut(flow as usize) {
                    None => seen.push((1, number)),
                    Some((count, last)) if *last != number => (*count, *last) = (*count + 1, number),
                    Some(_) => {}
                }
                flow
            });
            flows.push(of_window.collect());
        }
        let packets = windows.iter().map(|window| window.frames.len() as u64).sum();
        let estimate = estimate(&seen, windows.len(), packets);
        let recurs = seen.iter().map(|(count, _)| *count > 1).collect();
        TraceBuilder { windows, flows, recurs, estimate }
    }

    /// Facts of the traffic.
    pub fn estimate(&self) -> &TraceEstimate {
        &self.estimate
    }

    /// Flows of the whole traffic for each flow that was seen in one window only, at least 1.
    fn clones(&self) -> u64 {
        let single = (self.estimate.flows - self.estimate.recurring).max(1);
        let hidden = self.estimate.estimated_flows - self.estimate.recurring as f64;
        ((hidden / single as f64).round() as u64).clamp(1, 1 << CLONE_BITS)
    }

    /// A trace of so many packets; it is empty if there are no samples. The first pass over the windows has the
    /// packets as they came. Later ones are in random order, and their flows of one window are others: the last 14
    /// bits of the source port differ. Packets without ports get another source: the last 8 bits of the IPv4 address,
    /// or the last 14 of the IPv6 or Ethernet address differ. So packets have the routes, rules and services that they
    /// had, as long as these do not look at those bits.
    pub fn build(&self, packets: usize, seed: u64) -> Vec<Vec<u8>> {
        let mut rng = Rng::new(seed);
        let mut order: Vec<usize> = (0..self.windows.len()).collect();
        let clones = self.clones();
        let mut trace = Vec::with_capacity(packets.min(1 << 24));
        let mut is_first = true;
        while trace.len() < packets && !order.is_empty() {
            for &at in &order {
                let mut chosen: FxHashMap<u32, u32> = FxHashMap::default();
                for (frame, flow) in self.windows[at].frames.iter().zip(&self.flows[at]) {
                    if trace.len() == packets {
                        return trace;
                    }
                    let mut frame = frame.clone();
                    if !is_first && !self.recurs[*flow as usize] {
                        let number = *chosen.entry(*flow).or_insert_with(|| rng.below(clones) as u32);
                        rename(&mut frame, number);
                    }
                    trace.push(frame);
                }
            }
            is_first = false;
            for at in (1..order.len()).rev() {
                order.swap(at, rng.below(at as u64 + 1) as usize);
            }
        }
        trace
    }
}

/// Estimates the number of flows from the numbers of windows in which flows are.
fn estimate(seen: &[(u32, usize)], windows: usize, packets: u64) -> TraceEstimate {
    let of = |times: u32| seen.iter().filter(|(count, _)| *count == times).count() as f64;
    let (once, twice) = (of(1), of(2));
    let hidden = once * (once - 1.0).max(0.0) / (2.0 * (twice + 1.0));
    let share = windows.saturating_sub(1) as f64 / windows.max(1) as f64;
    TraceEstimate {
        windows: windows as u64,
        packets,
        flows: seen.len() as u64,
        recurring: seen.iter().filter(|(count, _)| *count > 1).count() as u64,
        estimated_flows: seen.len() as f64 + share * hidden,
    }
}

/// Changes the last bits of a range of bytes of a frame, by exclusive or.
fn change(frame: &mut [u8], range: &Range<usize>, bits: u32) {
    let bytes = bits.to_be_bytes();
    for (byte, change) in frame[range.clone()].iter_mut().rev().zip(bytes.iter().rev()) {
        *byte ^= change;
    }
}

/// Makes a packet one of another flow. Different numbers give different flows if the packet has ports, and 0 the same.
fn rename(frame: &mut [u8], number: u32) {
    let spread = number.wrapping_mul(SPREAD) & ((1 << CLONE_BITS) - 1);
    let Some(places) = FramePlaces::find(frame) else { return };
    let (range, bits) = match (places.transport.filter(|_| places.has_ports), &places.addresses, places.kind)
    {
        (Some(at), ..) => (at..at + 2, spread),
        (None, Some([from, _]), NetworkKind::Ipv4) => (from.clone(), spread & 0xff),
        (None, Some([from, _]), NetworkKind::Ipv6) => (from.clone(), spread),
        _ if frame.len() >= 12 => (6..12, spread),
        _ => return,
    };
    let old = frame[range.clone()].to_vec();
    change(frame, &range, bits);
    let new = &frame[range.clone()].to_vec();
    let is_address = places.kind == NetworkKind::Ipv4 && range.start == places.network + 12;
    if is_address && let Some(sum) = word(frame, places.network + 10) {
        put(frame, places.network + 10, updated(sum, &old, new));
    }
    if let Some(at) = transport_place(frame, &places)
        && let Some(sum) = word(frame, at)
    {
        put(frame, at, updated(sum, &old, new));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A UDP packet of IPv4 with this source port; its checksums are zero.
    fn udp(to: [u8; 4], port: u16) -> Vec<u8> {
        let mut frame = vec![0; 60];
        frame[12..14].copy_from_slice(&[8, 0]);
        frame[14] = 0x45;
        frame[17] = 46;
        frame[23] = 17;
        frame[26..30].copy_from_slice(&[10, 0, 0, 1]);
        frame[30..34].copy_from_slice(&to);
        frame[34..36].copy_from_slice(&port.to_be_bytes());
        frame
    }

    #[test]
    fn renamed_packets_have_other_flows_of_the_same_networks() {
        let frame = udp([192, 0, 2, 7], 40_000);
        let mut flows = std::collections::BTreeSet::new();
        for number in 0..1000 {
            let mut renamed = frame.clone();
            rename(&mut renamed, number);
            assert_eq!(renamed[26..34], frame[26..34]);
            assert!(flows.insert(FlowKey::of(&renamed)), "{number}");
            assert_eq!(renamed == frame, number == 0);
        }
    }

    #[test]
    fn the_first_pass_is_the_sample_and_the_next_ones_have_new_flows() {
        let window = |from: u16| SampledWindow {
            frames: (from..from + 50)
                .map(|port| udp([192, 0, 2, 1], port))
                .chain([udp([1, 1, 1, 1], 1)])
                .collect(),
        };
        let builder = TraceBuilder::new(vec![window(1000), window(2000), SampledWindow::default()]);
        let estimate = builder.estimate();
        assert_eq!(
            (estimate.windows, estimate.packets, estimate.flows, estimate.recurring),
            (2, 102, 101, 1)
        );
        assert!(estimate.estimated_flows > 1000.0);
        let trace = builder.build(10_000, 1);
        assert_eq!(trace.len(), 10_000);
        assert_eq!(trace[..51], window(1000).frames);
        let flows: std::collections::BTreeSet<FlowKey> =
            trace.iter().map(|frame| FlowKey::of(frame)).collect();
        let share = flows.len() as f64 / estimate.estimated_flows;
        assert!((0.9..1.1).contains(&share), "{}", flows.len());
        let stays = trace.iter().filter(|frame| frame[30..34] == [1, 1, 1, 1]).count();
        assert_eq!(stays, 10_000 / 51);
        assert!(TraceBuilder::new(Vec::new()).build(10, 1).is_empty());
    }
}

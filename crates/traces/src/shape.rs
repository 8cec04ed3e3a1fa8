//! Properties of packets in their order: flows, volumes, run lengths and reuse distances.

use rustc_hash::FxHashMap;
use serde::Serialize;

use crate::flow::FlowKey;

/// Classes of reuse distances: class n has distances from 2^(n-1) to 2^n - 1, class 0 that of none.
const CLASSES: usize = 25;

/// Properties of packets in their order that caches see.
#[derive(Clone, PartialEq, Debug, Default, Serialize)]
pub struct TrafficShape {
    /// Number of packets.
    pub packets: u64,
    /// Number of flows.
    pub flows: u64,
    /// Mean number of packets of one flow that come one behind the other.
    pub run_length: f64,
    /// Shares of the packets of the hottest 1 %, 10 % and 50 % of the flows.
    pub hot_shares: [f64; 3],
    /// Shares of the packets by reuse distance, the number of other flows since the flow's last packet: class 0 is
    /// none, class n has 2^(n-1) to 2^n - 1. The rest are first packets of their flows.
    pub reuse: Vec<f64>,
}

/// Shares of flows whose volumes are measured.
const HOT: [f64; 3] = [0.01, 0.1, 0.5];

impl TrafficShape {
    /// Measures frames in their order.
    pub fn of<'f>(frames: impl IntoIterator<Item = &'f [u8]>) -> TrafficShape {
        let mut flows: FxHashMap<FlowKey, u32> = FxHashMap::default();
        let order: Vec<u32> = frames
            .into_iter()
            .map(|frame| {
                let next = flows.len() as u32;
                *flows.entry(FlowKey::of(frame)).or_insert(next)
            })
            .collect();
        let packets = order.len();
        let of_all = |count: f64| count / packets.max(1) as f64;
        let runs = order.windows(2).filter(|pair| pair[0] != pair[1]).count() + packets.min(1);
        let mut volumes = vec![0u64; flows.len()];
        order.iter().for_each(|flow| volumes[*flow as usize] += 1);
        volumes.sort_unstable_by(|a, b| b.cmp(a));
        let hot = |share: f64| {
            let count = (share * volumes.len() as f64).ceil() as usize;
            of_all(volumes.iter().take(count).sum::<u64>() as f64)
        };
        let reuse = reuse_distances(&order, flows.len());
        TrafficShape {
            packets: packets as u64,
            flows: flows.len() as u64,
            run_length: packets as f64 / runs.max(1) as f64,
            hot_shares: HOT.map(hot),
            reuse: reuse.into_iter().map(|count| of_all(count as f64)).collect(),
        }
    }

    /// Share of the packets that find their flow among the last `flows` ones, as in a cache of that many entries that
    /// replaces the oldest one; in steps of powers of two.
    pub fn hit_share(&self, flows: u64) -> f64 {
        let classes = u64::BITS - flows.leading_zeros();
        self.reuse.iter().take(classes as usize).sum()
    }
}

/// Numbers of packets by class of reuse distance.
fn reuse_distances(order: &[u32], flows: usize) -> [u64; CLASSES] {
    let mut counts = [0; CLASSES];
    let mut last: Vec<Option<usize>> = vec![None; flows];
    // Marks of the last packet of each flow, in a tree of sums.
    let mut marks = SumTree(vec![0; order.len() + 1]);
    for (now, flow) in order.iter().enumerate() {
        let before = last[*flow as usize].replace(now);
        if let Some(before) = before {
            let distance = marks.below(now) - marks.below(before + 1);
            let class = (u64::BITS - u64::from(distance).leading_zeros()) as usize;
            counts[class.min(CLASSES - 1)] += 1;
            marks.add(before, u32::MAX);
        }
        marks.add(now, 1);
    }
    counts
}

/// Sums of numbers in front of places (Fenwick, 1994).
struct SumTree(Vec<u32>);

impl SumTree {
    /// Adds to the number at a place, modulo 2^32.
    fn add(&mut self, at: usize, number: u32) {
        let mut at = at + 1;
        while at < self.0.len() {
            self.0[at] = self.0[at].wrapping_add(number);
            at += at & at.wrapping_neg();
        }
    }

    /// Sum of the numbers in front of a place.
    fn below(&self, mut at: usize) -> u32 {
        let mut sum = 0u32;
        while at > 0 {
            sum = sum.wrapping_add(self.0[at]);
            at &= at - 1;
        }
        sum
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(flow: u8) -> Vec<u8> {
        let mut frame = vec![0; 60];
        frame[5] = flow;
        frame
    }

    #[test]
    fn runs_volumes_and_reuse_are_counted() {
        let frames: Vec<Vec<u8>> = [1, 1, 2, 3, 1, 2].map(frame).into();
        let shape = TrafficShape::of(frames.iter().map(|frame| &frame[..]));
        assert_eq!((shape.packets, shape.flows), (6, 3));
        assert!((shape.run_length - 6.0 / 5.0).abs() < 1e-9);
        // 1 behind 1; 1 behind 2 and 3; 2 behind 3 and 1.
        let expected = [1.0 / 6.0, 0.0, 2.0 / 6.0];
        assert!(shape.reuse.iter().zip(expected).all(|(a, b)| (a - b).abs() < 1e-9), "{:?}", shape.reuse);
        assert!((shape.hot_shares[0] - 0.5).abs() < 1e-9);
        assert!((shape.hit_share(2) - 1.0 / 6.0).abs() < 1e-9 && (shape.hit_share(4) - 0.5).abs() < 1e-9);
        assert_eq!(TrafficShape::of([]).packets, 0);
    }

    #[test]
    fn distances_are_those_of_a_list_that_is_searched() {
        let mut rng = millstream_rng::Rng::new(7);
        let order: Vec<u32> = (0..2000).map(|_| (rng.below(50) * rng.below(50) / 50) as u32).collect();
        let mut slow = [0; CLASSES];
        let mut recent: Vec<u32> = Vec::new();
        for flow in &order {
            if let Some(at) = recent.iter().position(|known| known == flow) {
                slow[(usize::BITS - at.leading_zeros()) as usize] += 1;
                recent.remove(at);
            }
            recent.insert(0, *flow);
        }
        assert_eq!(reuse_distances(&order, 50), slow);
    }
}

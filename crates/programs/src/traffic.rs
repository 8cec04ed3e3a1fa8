//! Traffic of stated locality over the flows of a table.
//!
//! A set of flows is a list of frames with a weight each. Weights follow ClassBench's trace generator (Taylor
//! and Turner, INFOCOM 2005, section IV): a header is copied as often as a Pareto variate says, `ceil(beta /
//! U^(1/alpha))`; beta 0 means once each. Packets are then drawn by weight, each independently of the one
//! before it: unlike ClassBench, which writes the copies of a header one after the other, so the locality
//! here is that of popularity alone, without bursts.

use millstream_rng::Rng;

use crate::fnv::{FNV_OFFSET, fnv1a};

/// Distribution of packets over flows.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum FlowLocality {
    /// ClassBench's Pareto rule.
    Pareto {
        /// The shape; 1 in published work.
        alpha: f64,
        /// The scale; 1 is high locality, 0.0001 low, 0 none.
        beta: f64,
    },
    /// The flow of rank r has a weight of 1 / r^exponent; ranks are dealt to flows at random.
    Zipf {
        /// The exponent; around 1 on real links.
        exponent: f64,
    },
}

impl FlowLocality {
    /// The high locality of published work.
    pub const HIGH: Self = Self::Pareto { alpha: 1.0, beta: 1.0 };
    /// The low locality of published work.
    pub const LOW: Self = Self::Pareto { alpha: 1.0, beta: 0.0001 };
    /// Every flow alike.
    pub const NONE: Self = Self::Pareto { alpha: 1.0, beta: 0.0 };

    /// Weights for `count` flows.
    fn weights(self, count: usize, rng: &mut Rng) -> Vec<u64> {
        match self {
            Self::Pareto { alpha, beta } => (0..count).map(|_| pareto(alpha, beta, rng)).collect(),
            Self::Zipf { exponent } => {
                // Whole numbers, so that the set's hash depends on no rounding; rank 1 has 2^32.
                let scale = (1u64 << 32) as f64;
                let mut weights: Vec<u64> =
                    (1..=count).map(|rank| ((scale / (rank as f64).powf(exponent)) as u64).max(1)).collect();
                shuffle(&mut weights, rng);
                weights
            }
        }
    }
}

/// Number of copies that ClassBench makes of a header. Bounded, since one variate in 2^53 would be the whole
/// trace.
fn pareto(alpha: f64, beta: f64, rng: &mut Rng) -> u64 {
    if beta == 0.0 {
        return 1;
    }
    let copies = (beta / rng.unit().powf(1.0 / alpha)).ceil();
    copies.clamp(1.0, (1u64 << 40) as f64) as u64
}

/// Fisher and Yates.
pub(crate) fn shuffle<T>(items: &mut [T], rng: &mut Rng) {
    for i in (1..items.len()).rev() {
        items.swap(i, rng.below(i as u64 + 1) as usize);
    }
}

/// Frames, and how often each is to be seen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WeightedFlows {
    /// One frame per flow.
    pub packets: Vec<Vec<u8>>,
    /// Its share, relative to the sum of all.
    pub weights: Vec<u64>,
}

impl WeightedFlows {
    /// The flows with weights drawn by the rule; the same seed gives the same weights.
    pub fn new(packets: Vec<Vec<u8>>, locality: FlowLocality, seed: u64) -> Self {
        let weights = locality.weights(packets.len(), &mut Rng::new(seed));
        Self { packets, weights }
    }

    /// The same frames with other weights: the hot flows have changed.
    pub fn reweighted(&self, locality: FlowLocality, seed: u64) -> Self {
        Self::new(self.packets.clone(), locality, seed)
    }

    /// `n` indices into `packets`, drawn by weight.
    pub fn sequence(&self, seed: u64, n: usize) -> Vec<u32> {
        let mut rng = Rng::new(seed);
        let mut total = 0;
        let sums: Vec<u64> = self
            .weights
            .iter()
            .map(|&w| {
                total += w;
                total
            })
            .collect();
        if total == 0 {
            return Vec::new();
        }
        (0..n)
            .map(|_| {
                let at = rng.below(total);
                sums.partition_point(|&sum| sum <= at) as u32
            })
            .collect()
    }

    /// The share of packets that the `k` heaviest flows have.
    pub fn share_of_heaviest(&self, k: usize) -> f64 {
        let mut weights = self.weights.clone();
        weights.sort_unstable_by(|a, b| b.cmp(a));
        let sum = |w: &[u64]| w.iter().map(|&w| w as f64).sum::<f64>();
        sum(&weights[..k.min(weights.len())]) / sum(&weights)
    }

    /// FNV-1a over lengths, frames and weights: the name of this set in a report.
    pub fn hash(&self) -> u64 {
        self.packets.iter().zip(&self.weights).fold(FNV_OFFSET, |h, (packet, weight)| {
            let h = fnv1a(h, &(packet.len() as u64).to_le_bytes());
            fnv1a(fnv1a(h, packet), &weight.to_le_bytes())
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn flows(count: usize, locality: FlowLocality) -> WeightedFlows {
        WeightedFlows::new((0..count).map(|i| (i as u32).to_le_bytes().to_vec()).collect(), locality, 7)
    }

    #[test]
    fn localities_differ_as_their_names_say() {
        let high = flows(10_000, FlowLocality::HIGH).share_of_heaviest(100);
        let low = flows(10_000, FlowLocality::LOW).share_of_heaviest(100);
        let none = flows(10_000, FlowLocality::NONE).share_of_heaviest(100);
        let zipf = flows(10_000, FlowLocality::Zipf { exponent: 1.0 }).share_of_heaviest(100);
        assert!(high > 0.4, "high: {high}");
        assert!(low < 0.05, "low: {low}");
        assert_eq!(none, 0.01);
        assert!((zipf - 0.53).abs() < 0.01, "harmonic(100) / harmonic(10000) is 0.53, not {zipf}");
    }

    #[test]
    fn sequences_follow_the_weights() {
        let flows = WeightedFlows { packets: vec![vec![0]; 3], weights: vec![1, 0, 3] };
        let drawn = flows.sequence(3, 40_000);
        let count = |f| drawn.iter().filter(|&&x| x == f).count();
        assert_eq!(count(1), 0);
        assert!((9_500..10_500).contains(&count(0)), "{}", count(0));
        assert_eq!(drawn, flows.sequence(3, 40_000), "the seed says it all");
        assert_ne!(drawn, flows.sequence(4, 40_000));
    }

    #[test]
    fn the_hash_sees_frames_and_weights() {
        let a = flows(10, FlowLocality::NONE);
        let mut b = a.clone();
        b.weights[9] += 1;
        let mut c = a.clone();
        c.packets[0][0] ^= 1;
        assert_ne!(a.hash(), b.hash());
        assert_ne!(a.hash(), c.hash());
    }
}

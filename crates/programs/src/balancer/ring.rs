//! Consistent hashing by permutations (Eisenbud et al., Maglev, NSDI 2016, section 3.4).
//!
//! Every real has its own order of preference over all entries of the ring, and reals take turns to claim the
//! next free entry that they prefer. A ring is thus shared almost exactly by weight, and when a real goes,
//! few entries change hands but its own.

use std::net::IpAddr;

use millstream_rng::Rng;

use super::{BalancerReal, RING_SIZE};
use crate::fnv::{FNV_OFFSET, fnv1a};

/// A real's order of preference: `start + n * step`, modulo the prime size of the ring.
struct MaglevPermutation {
    next: u32,
    step: u32,
    /// The real's index in the maps.
    index: u32,
    weight: u32,
    /// Turns saved up, in units of the largest weight.
    credit: u32,
}

/// The ring of a service with these reals: for each entry an index into [`super::REALS`], or 0 everywhere if
/// no real has a weight.
pub fn ring(reals: &[BalancerReal], members: &[(u32, u32)]) -> Vec<u32> {
    let mut ring = vec![0; RING_SIZE as usize];
    let mut preferences: Vec<MaglevPermutation> = members
        .iter()
        .filter(|&&(_, weight)| weight > 0)
        .filter_map(|&(index, weight)| {
            Some(preference(reals.get(index as usize)?.address, index + 1, weight))
        })
        .collect();
    let Some(heaviest) = preferences.iter().map(|p| p.weight).max() else { return ring };
    let mut free = RING_SIZE;
    loop {
        for preference in &mut preferences {
            preference.credit += preference.weight;
            if preference.credit < heaviest {
                continue;
            }
            preference.credit -= heaviest;
            preference.claim(&mut ring);
            free -= 1;
            if free == 0 {
                return ring;
            }
        }
    }
}

impl MaglevPermutation {
    /// Takes the next entry that is free; there must be one.
    fn claim(&mut self, ring: &mut [u32]) {
        while ring[self.next as usize] != 0 {
            self.advance();
        }
        ring[self.next as usize] = self.index;
        self.advance();
    }

    fn advance(&mut self) {
        self.next = (self.next + self.step) % RING_SIZE;
    }
}

/// The preference follows from the address alone, so that all balancers build the same ring.
fn preference(address: IpAddr, index: u32, weight: u32) -> MaglevPermutation {
    let hash = match address {
        IpAddr::V4(address) => fnv1a(FNV_OFFSET, &address.octets()),
        IpAddr::V6(address) => fnv1a(FNV_OFFSET, &address.octets()),
    };
    let mut rng = Rng::new(hash);
    let next = rng.below(RING_SIZE.into()) as u32;
    let step = 1 + rng.below(u64::from(RING_SIZE) - 1) as u32;
    MaglevPermutation { next, step, index, weight, credit: 0 }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;

    fn reals(count: u32) -> Vec<BalancerReal> {
        (0..count)
            .map(|n| BalancerReal { address: Ipv4Addr::from(0x0a00_0001 + n).into(), gue: false, up: true })
            .collect()
    }

    fn share(ring: &[u32], index: u32) -> usize {
        ring.iter().filter(|&&entry| entry == index + 1).count()
    }

    #[test]
    fn equal_weights_share_the_ring_to_within_one_entry() {
        let members: Vec<(u32, u32)> = (0..100).map(|n| (n, 1)).collect();
        let ring = ring(&reals(100), &members);
        assert!((0..100).all(|n| [655, 656].contains(&share(&ring, n))));
    }

    #[test]
    fn weights_count() {
        let ring = ring(&reals(3), &[(0, 1), (1, 3), (2, 0)]);
        assert!((16_383..=16_386).contains(&share(&ring, 0)), "{}", share(&ring, 0));
        assert_eq!(share(&ring, 0) + share(&ring, 1), RING_SIZE as usize);
    }

    #[test]
    fn few_entries_change_hands_when_a_real_goes() {
        let all: Vec<(u32, u32)> = (0..100).map(|n| (n, 1)).collect();
        let before = ring(&reals(100), &all);
        let after = ring(&reals(100), &all[1..]);
        let moved = before.iter().zip(&after).filter(|&(&b, &a)| b != 1 && a != b).count();
        // The paper's Figure 12 has about 2 % for rings 100 times as large as the number of reals.
        assert!(moved < 65_537 / 50, "{moved} entries of other reals moved");
    }

    #[test]
    fn without_reals_the_ring_is_empty() {
        assert!(ring(&reals(1), &[(0, 0), (7, 1)]).iter().all(|&entry| entry == 0));
    }
}

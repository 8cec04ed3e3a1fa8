//! A small deterministic generator of random numbers.
//!
//! Tables and traffic are named by their seeds in reports, so the numbers must be the same on every machine
//! and in every release; that is why this is not a dependency. The algorithm is xoshiro256++ (Blackman and
//! Vigna, 2018), seeded by splitmix64.
//!
//! Architecture Invariant: a seed gives the same numbers on every machine and in every release; no I/O.

/// The generator.
#[derive(Clone, Debug)]
pub struct Rng {
    state: [u64; 4],
}

impl Rng {
    /// The generator of this seed.
    pub fn new(seed: u64) -> Self {
        let mut z = seed;
        let state = std::array::from_fn(|_| {
            z = z.wrapping_add(0x9e37_79b9_7f4a_7c15);
            mix(z)
        });
        Self { state }
    }

    /// 64 random bits.
    pub fn next_u64(&mut self) -> u64 {
        let [a, b, c, d] = self.state;
        let result = a.wrapping_add(d).rotate_left(23).wrapping_add(a);
        let t = b << 17;
        let (c, d) = (c ^ a, d ^ b);
        self.state = [a ^ d, b ^ c, c ^ t, d.rotate_left(45)];
        result
    }

    /// 32 random bits.
    pub fn next_u32(&mut self) -> u32 {
        (self.next_u64() >> 32) as u32
    }

    /// A number below `bound`, which is not zero (Lemire's multiplication; the bias is below `bound` / 2^64).
    pub fn below(&mut self, bound: u64) -> u64 {
        ((u128::from(self.next_u64()) * u128::from(bound)) >> 64) as u64
    }

    /// A number above 0 and at most 1: its logarithm is finite, and it can be divided by.
    pub fn unit(&mut self) -> f64 {
        ((self.next_u64() >> 11) + 1) as f64 / (1u64 << 53) as f64
    }

    /// One of the choices, with probability proportional to its weight; `None` if there is none.
    pub fn weighted<'a, T>(&mut self, choices: &'a [(T, u32)]) -> Option<&'a T> {
        let total: u64 = choices.iter().map(|&(_, w)| u64::from(w)).sum();
        let mut at = self.below(total);
        choices
            .iter()
            .find(|&&(_, w)| match at.checked_sub(u64::from(w)) {
                Some(rest) => {
                    at = rest;
                    false
                }
                None => true,
            })
            .map(|(choice, _)| choice)
    }
}

/// The finalizer of splitmix64.
fn mix(mut z: u64) -> u64 {
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn first_number_of_xoshiro256_plus_plus() {
        let mut rng = Rng { state: [1, 2, 3, 4] };
        let first: Vec<u64> = (0..3).map(|_| rng.next_u64()).collect();
        assert_eq!(first, [41943041, 58720359, 3588806011781223], "the authors' own C code gives these");
    }

    #[test]
    fn weighted_never_gives_weight_zero() {
        let mut rng = Rng::new(1);
        let choices = [('a', 0), ('b', 3), ('c', 0), ('d', 1)];
        let mut seen = [0; 2];
        for _ in 0..4000 {
            match rng.weighted(&choices) {
                Some('b') => seen[0] += 1,
                Some('d') => seen[1] += 1,
                other => panic!("{other:?} has no weight"),
            }
        }
        assert!((2800..3200).contains(&seen[0]), "{seen:?} is not 3 to 1");
    }
}

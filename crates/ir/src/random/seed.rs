//! Random numbers from a seed, so that failures repeat.

/// A small deterministic generator (xorshift64*).
#[derive(Clone, Debug)]
pub struct SeededRng(u64);

impl SeededRng {
    /// A generator that gives the same numbers for the same seed.
    pub fn new(seed: u64) -> SeededRng {
        SeededRng(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    /// Any word.
    pub fn word(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    /// A number below `n`.
    pub fn below(&mut self, n: u64) -> u64 {
        (self.word() >> 11) % n
    }

    /// A word with a bias to corners: small ones, powers of two and their neighbours, extended narrow ones.
    pub fn boundary_biased_word(&mut self) -> u64 {
        let k = self.below(64);
        match self.below(8) {
            0 => self.below(70),
            1 => 1 << k,
            2 => (1 << k) - 1,
            3 => (1u64 << k).wrapping_neg(),
            4 => self.word() & 0xffff,
            5 => self.word() & 0xffff_ffff,
            6 => self.word() as i32 as i64 as u64,
            _ => self.word(),
        }
    }

    /// This many bytes: choices for [`super::module`].
    pub fn bytes(&mut self, count: usize) -> Vec<u8> {
        (0..count).map(|_| (self.word() >> 40) as u8).collect()
    }
}

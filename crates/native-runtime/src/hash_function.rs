//! The hash function of tables. `emit::hash` has it as LLVM's IR: both must change together.

/// Odd, with about as many ones as zeros: the golden ratio's fraction.
pub const MULTIPLIER: u64 = 0x9e37_79b9_7f4a_7c15;

/// A key as the 64-bit words that are hashed and compared: little-endian, the last one padded with zeros.
pub(crate) fn words(key: &[u8]) -> impl Iterator<Item = u64> + '_ {
    key.chunks(8).map(|chunk| {
        let mut word = [0; 8];
        word[..chunk.len()].copy_from_slice(chunk);
        u64::from_le_bytes(word)
    })
}

/// The hash of a key: one folded multiplication per word.
pub fn hash(seed: u64, key: &[u8]) -> u32 {
    let mixed = words(key).fold(seed, |state, word| {
        let product = u128::from(state ^ word) * u128::from(MULTIPLIER);
        product as u64 ^ (product >> 64) as u64
    });
    (mixed ^ mixed >> 32) as u32
}

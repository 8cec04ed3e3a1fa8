//! Fowler, Noll and Vo's hash, variant 1a, of 64 bits.

/// The FNV-1a hash of bytes, continued from `state`; start from [`FNV_OFFSET`].
pub(crate) fn fnv1a(state: u64, bytes: &[u8]) -> u64 {
    bytes.iter().fold(state, |h, &b| (h ^ u64::from(b)).wrapping_mul(0x100_0000_01b3))
}

/// Initial state of FNV-1a.
pub(crate) const FNV_OFFSET: u64 = 0xcbf2_9ce4_8422_2325;

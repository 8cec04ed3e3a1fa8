//! What tests of elements have in common.

/// A number of the state of all elements.
pub(crate) fn number(state: &[u8], at: u32) -> u64 {
    u64::from_le_bytes(state[at as usize..][..8].try_into().expect("eight bytes"))
}

/// The sum of 16-bit words: 0xffff where the checksum in them is right.
pub(crate) fn sum(bytes: &[u8]) -> u32 {
    let mut sum: u32 =
        bytes.chunks(2).map(|w| u32::from(w[0]) << 8 | u32::from(*w.get(1).unwrap_or(&0))).sum();
    while sum >> 16 != 0 {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    sum
}

//! The Internet checksum as `bpf_csum_diff` computes it on x86-64: 64 bits at a time, so that the result is
//! the kernel's also for the two representations of zero.
//!
//! Source: `arch/x86/lib/csum-partial_64.c`, `net/core/filter.c`.

/// One's complement sum of 64 bits.
fn add64(a: u64, b: u64) -> u64 {
    let (sum, carry) = a.overflowing_add(b);
    sum + u64::from(carry)
}

/// One's complement sum of 32 bits.
fn add32(a: u32, b: u32) -> u32 {
    let (sum, carry) = a.overflowing_add(b);
    sum + u32::from(carry)
}

/// One's complement sum of bytes on top of `seed`.
fn partial(bytes: &[u8], seed: u32) -> u32 {
    let (words, rest) = bytes.as_chunks::<8>();
    let sum = words.iter().fold(u64::from(seed), |sum, word| add64(sum, u64::from_le_bytes(*word)));
    let mut last = [0; 8];
    last[..rest.len()].copy_from_slice(rest);
    let sum = add64(sum, u64::from_le_bytes(last));
    add32((sum >> 32) as u32, sum as u32)
}

/// Folds a 32-bit sum to 16 bits.
fn fold(sum: u32) -> u16 {
    (sum.wrapping_add(sum.rotate_right(16)) >> 16) as u16
}

/// `bpf_csum_diff`, whose result is folded to 16 bits since 6.13.
pub(super) fn diff(from: &[u8], to: &[u8], seed: u32) -> u16 {
    fold(match (from.is_empty(), to.is_empty()) {
        (true, true) => seed,
        (true, false) => partial(to, seed),
        (false, true) => !partial(from, !seed),
        (false, false) => add32(partial(to, seed), !partial(from, 0)),
    })
}

#[cfg(test)]
mod tests {
    use super::diff;

    #[test]
    fn replacing_a_word_changes_the_sum_by_the_difference() {
        let before = [1u8, 2, 3, 4, 0xfe, 0xff, 7, 8, 9, 10, 11, 12];
        let mut after = before;
        after[4..8].copy_from_slice(&[0xaa, 0xbb, 0xcc, 0xdd]);
        let by_difference = diff(&before[4..8], &after[4..8], u32::from(diff(&[], &before, 0)));
        assert_eq!(by_difference, diff(&[], &after, 0));
        assert_eq!(diff(&[], &[0x12, 0x34, 0x56, 0x78], 0), 0x3412 + 0x7856);
        assert_eq!((diff(&before, &before, 0), diff(&[], &[], 7)), (0xffff, 7));
    }
}

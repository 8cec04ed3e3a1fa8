//! The Internet checksum, as `bpf_csum_diff` and the replace helpers compute it.

use millstream_isa::ByteOrder;

/// One's complement sum of 32 bits.
fn add(a: u32, b: u32) -> u32 {
    let (sum, carry) = a.overflowing_add(b);
    sum + u32::from(carry)
}

/// One's complement sum of bytes as 16-bit words of the machine, on top of `seed`.
fn partial(bytes: &[u8], seed: u32, order: ByteOrder) -> u32 {
    let mut sum = seed;
    for pair in bytes.chunks(2) {
        let word = order.number(&[pair[0], pair.get(1).copied().unwrap_or(0)]);
        sum = add(sum, word as u32);
    }
    sum
}

/// Folds a 32-bit sum to 16 bits.
fn fold(sum: u32) -> u16 {
    (sum.wrapping_add(sum.rotate_right(16)) >> 16) as u16
}

/// `bpf_csum_diff`, whose result is folded to 16 bits since 6.13.
pub(super) fn diff(from: &[u8], to: &[u8], seed: u32, order: ByteOrder) -> u16 {
    let partial = |bytes: &[u8], seed: u32| partial(bytes, seed, order);
    fold(match (from.is_empty(), to.is_empty()) {
        (true, true) => seed,
        (true, false) => partial(to, seed),
        (false, true) => !partial(from, !seed),
        (false, false) => add(partial(to, seed), !partial(from, 0)),
    })
}

/// The checksum field after the words it covers changed by `diff` (a one's complement difference).
pub(super) fn replace_by_diff(field: u16, diff: u32) -> u16 {
    !fold(add(diff, u32::from(!field)))
}

/// The checksum field after a 16-bit word it covers changed.
pub(super) fn replace2(field: u16, from: u16, to: u16) -> u16 {
    replace_by_diff(field, add(u32::from(!from), u32::from(to)))
}

/// The checksum field after a 32-bit word it covers changed.
pub(super) fn replace4(field: u16, from: u32, to: u32) -> u16 {
    replace_by_diff(field, add(!from, to))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A header's checksum computed afresh.
    fn checksum(bytes: &[u8]) -> u16 {
        !fold(partial(bytes, 0, ByteOrder::Little))
    }

    #[test]
    fn a_replaced_word_gives_the_checksum_computed_afresh() {
        let mut header = [0x45u8, 0, 0, 84, 0, 0, 0x40, 0, 64, 1, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2];
        let before = checksum(&header);
        let word = |h: &[u8; 20], at: usize| u16::from_le_bytes([h[at], h[at + 1]]);
        let (ttl, address) = (word(&header, 8), [10u8, 0, 0, 2]);
        header[8] = 63;
        let after_ttl = replace2(before, ttl, word(&header, 8));
        assert_eq!(after_ttl, checksum(&header));
        header[16..].copy_from_slice(&[192, 168, 7, 9]);
        let new = [192u8, 168, 7, 9];
        let by_word = replace4(after_ttl, u32::from_le_bytes(address), u32::from_le_bytes(new));
        assert_eq!(by_word, checksum(&header));
        assert_eq!(
            replace_by_diff(after_ttl, u32::from(diff(&address, &new, 0, ByteOrder::Little))),
            checksum(&header)
        );
    }

    #[test]
    fn adding_alone_is_the_plain_sum() {
        assert_eq!(diff(&[], &[0x12, 0x34, 0x56, 0x78], 0, ByteOrder::Little), 0x3412 + 0x7856);
        assert_eq!(diff(&[], &[0x12, 0x34, 0x56, 0x78], 0, ByteOrder::Big), 0x1234 + 0x5678);
        assert_eq!(diff(&[], &[], 7, ByteOrder::Little), 7);
        let data = [1, 2, 3, 4, 0xff, 0xff, 0, 9];
        assert_eq!(diff(&data, &data, 0, ByteOrder::Little), 0xffff);
    }
}

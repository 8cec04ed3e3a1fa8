//! Digests of payloads. Source: RFC 1321; ToIPSummaryDump(n), `payload_md5`.

/// Bits that each round rotates by, four in turn.
const SHIFTS: [[u32; 4]; 4] = [[7, 12, 17, 22], [5, 9, 14, 20], [4, 11, 16, 23], [6, 10, 15, 21]];
const BEGINNING: [u32; 4] = [0x6745_2301, 0xefcd_ab89, 0x98ba_dcfe, 0x1032_5476];
/// Bytes of a block, and of the length at the end of the last one.
const BLOCK: usize = 64;
const LENGTH: usize = 8;
/// Letters for six bits each.
const LETTERS: &[u8; 64] = b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_@";

/// The MD5 digest of bytes.
pub(super) fn digest(bytes: &[u8]) -> [u8; 16] {
    let mut padded = bytes.to_vec();
    padded.push(0x80);
    while padded.len() % BLOCK != BLOCK - LENGTH {
        padded.push(0);
    }
    padded.extend((bytes.len() as u64 * 8).to_le_bytes());
    let state = padded.chunks_exact(BLOCK).fold(BEGINNING, block);
    let mut all = [0; 16];
    for (place, word) in all.chunks_exact_mut(4).zip(state) {
        place.copy_from_slice(&word.to_le_bytes());
    }
    all
}

/// The state after a block.
fn block(state: [u32; 4], block: &[u8]) -> [u32; 4] {
    let words: Vec<u32> = block.as_chunks::<4>().0.iter().map(|bytes| u32::from_le_bytes(*bytes)).collect();
    let [mut a, mut b, mut c, mut d] = state;
    for step in 0..BLOCK {
        let (round, at) = (step / 16, step % 16);
        let (mixed, word) = match round {
            0 => (b & c | !b & d, at),
            1 => (d & b | !d & c, (5 * at + 1) % 16),
            2 => (b ^ c ^ d, (3 * at + 5) % 16),
            _ => (c ^ (b | !d), 7 * at % 16),
        };
        // The constants are the first 32 bits of the fractions of sines.
        let constant = ((step as f64 + 1.0).sin().abs() * (1u64 << 32) as f64) as u32;
        let sum = a.wrapping_add(mixed).wrapping_add(constant).wrapping_add(words[word]);
        (a, d, c) = (d, c, b);
        b = b.wrapping_add(sum.rotate_left(SHIFTS[round][step % 4]));
    }
    [state[0].wrapping_add(a), state[1].wrapping_add(b), state[2].wrapping_add(c), state[3].wrapping_add(d)]
}

/// A digest in hexadecimal.
pub(super) fn hex_text(bytes: &[u8]) -> String {
    hex::encode(digest(bytes))
}

/// A digest as 22 letters of six bits each, lowest bits first.
pub(super) fn letters_text(bytes: &[u8]) -> String {
    let number = u128::from_le_bytes(digest(bytes));
    (0..22).map(|at| char::from(LETTERS[(number >> (6 * at) & 63) as usize])).collect()
}

#[cfg(test)]
mod tests {
    use super::{hex_text, letters_text};

    #[test]
    fn digests_are_those_of_the_rfc_and_of_ipsumdump() {
        for (text, hex) in [
            ("", "d41d8cd98f00b204e9800998ecf8427e"),
            ("abc", "900150983cd24fb0d6963f7d28e17f72"),
            (
                "12345678901234567890123456789012345678901234567890123456789012345678901234567890",
                "57edf4a22be3c955ac49da2e2107b67a",
            ),
        ] {
            assert_eq!(hex_text(text.as_bytes()), hex, "{text}");
        }
        assert_eq!(letters_text(b""), "u3bJz@iaYsq6aMaMSJVq_b");
    }
}

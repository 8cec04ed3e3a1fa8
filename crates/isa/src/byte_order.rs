//! Byte order of the machine that a program runs on.

use std::fmt;

/// Order of a number's bytes in memory.
///
/// Registers have no byte order: it matters where memory is read or written in pieces of another size, and
/// where bytes become numbers.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum ByteOrder {
    /// The lowest byte comes first, as on x86-64 (`-target bpfel`).
    #[default]
    Little,
    /// The highest byte comes first, as on s390x (`-target bpfeb`).
    Big,
}

impl ByteOrder {
    /// The order of the machine that this code runs on.
    pub const HOST: ByteOrder = if cfg!(target_endian = "big") { ByteOrder::Big } else { ByteOrder::Little };

    /// The number that up to 8 bytes hold, zero-extended.
    pub fn number(self, bytes: &[u8]) -> u64 {
        let with = |number: u64, byte: &u8| number << 8 | u64::from(*byte);
        match self {
            ByteOrder::Little => bytes.iter().rev().fold(0, with),
            ByteOrder::Big => bytes.iter().fold(0, with),
        }
    }

    /// Writes the low bytes of a number into up to 8 bytes.
    pub fn put(self, number: u64, bytes: &mut [u8]) {
        let size = bytes.len() as u32;
        for (at, byte) in (0..).zip(bytes) {
            *byte = (number >> self.shift(size, at, 1)) as u8;
        }
    }

    /// The bytes of a 16-bit number.
    pub const fn bytes_of_u16(self, number: u16) -> [u8; 2] {
        match self {
            ByteOrder::Little => number.to_le_bytes(),
            ByteOrder::Big => number.to_be_bytes(),
        }
    }

    /// The bytes of a 32-bit number.
    pub const fn bytes_of_u32(self, number: u32) -> [u8; 4] {
        match self {
            ByteOrder::Little => number.to_le_bytes(),
            ByteOrder::Big => number.to_be_bytes(),
        }
    }

    /// The bytes of a 64-bit number.
    pub const fn bytes_of_u64(self, number: u64) -> [u8; 8] {
        match self {
            ByteOrder::Little => number.to_le_bytes(),
            ByteOrder::Big => number.to_be_bytes(),
        }
    }

    /// The lowest bit, in a number of `whole` bytes, of the `part` bytes that start `at` bytes into it.
    pub const fn shift(self, whole: u32, at: u32, part: u32) -> u32 {
        match self {
            ByteOrder::Little => 8 * at,
            ByteOrder::Big => 8 * (whole - at - part),
        }
    }
}

impl fmt::Display for ByteOrder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            ByteOrder::Little => "little-endian",
            ByteOrder::Big => "big-endian",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::ByteOrder::{Big, Little};

    #[test]
    fn a_part_of_a_number_is_where_its_bytes_are() {
        let number = 0x0102_0304_0506_0708;
        for order in [Little, Big] {
            let bytes = order.bytes_of_u64(number);
            assert_eq!(order.number(&bytes), number);
            for (at, part) in [(0, 4), (2, 2), (7, 1), (0, 8)] {
                let piece = order.number(&bytes[at..at + part]);
                let mask = u64::MAX >> (64 - 8 * part);
                assert_eq!(number >> order.shift(8, at as u32, part as u32) & mask, piece, "{order:?} {at}");
                let mut again = [0; 8];
                order.put(piece, &mut again[..part]);
                assert_eq!(again[..part], bytes[at..at + part]);
            }
            assert_eq!(order.number(&order.bytes_of_u16(0x0102)), 0x0102);
            assert_eq!(order.number(&order.bytes_of_u32(0x0102_0304)), 0x0102_0304);
        }
        assert_eq!(Big.bytes_of_u32(1), [0, 0, 0, 1]);
    }
}

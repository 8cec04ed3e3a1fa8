//! Byte order of sections: both sections consist of 32-bit words, but for the first four bytes and strings.
//!
//! Sections are read and made in little-endian order; those of big-endian objects are exchanged before and
//! after that.

use millstream_isa::ByteOrder;
use std::ops::Range;

/// First word of the header after magic number, version and flags.
const FIRST_WORD: usize = 4;
/// Fields of a header with types and strings, and of one with a layout section, end here.
const HEADER: usize = 24;
const HEADER_WITH_LAYOUT: usize = 32;

/// Byte order of a section by its magic number, which the readers check.
pub(crate) fn of_section(data: &[u8]) -> ByteOrder {
    if data.starts_with(&[0xeb, 0x9f]) { ByteOrder::Big } else { ByteOrder::Little }
}

/// Exchanges the byte order of `.BTF`, which is `from` before that.
pub(crate) fn exchange_types(data: &mut [u8], from: ByteOrder) {
    let word = |at: usize| data.get(at..at + 4).map_or(0, |word| from.number(word) as usize);
    let header = word(FIRST_WORD).min(data.len());
    let part = |at: usize| {
        let start = header.saturating_add(word(at));
        start..start.saturating_add(word(at + 4)).min(data.len())
    };
    let (types, layout) = (part(8), part(HEADER));
    let has_layout = header >= HEADER_WITH_LAYOUT;
    exchange::<2>(data, 0..2);
    exchange::<4>(data, FIRST_WORD..if has_layout { HEADER_WITH_LAYOUT } else { HEADER });
    exchange::<4>(data, types);
    if has_layout {
        // Two bytes and a 16-bit number each.
        for entry in layout.step_by(4) {
            exchange::<2>(data, entry + 2..entry + 4);
        }
    }
}

/// Exchanges the byte order of `.BTF.ext`.
pub(crate) fn exchange_records(data: &mut [u8]) {
    exchange::<2>(data, 0..2);
    exchange::<4>(data, FIRST_WORD..data.len());
}

/// Exchanges all whole numbers of a range; a range outside of the data has none.
fn exchange<const SIZE: usize>(data: &mut [u8], range: Range<usize>) {
    for number in data.get_mut(range).unwrap_or_default().chunks_exact_mut(SIZE) {
        number.reverse();
    }
}

//! A twin of a longest-prefix map whose prefixes all have one length. A lookup is then one for an equal key,
//! with the bits beyond that length cleared.
//!
//! Its [`PerfectHashTable`] hold the keys as the map has them. A prefix of another length makes it useless at
//! once.

use std::collections::BTreeSet;

use millstream_ir::{AluOp, Block, KeyLayout, Op, Size, Type, Value, Width};
use smallvec::SmallVec;

use super::eval::AbstractValue;
use super::partial_eval::PartialEvaluator;
use super::perfect_hash::{PerfectHashLayout, PerfectHashTable, RowLayout};

/// Bytes of the length in a key.
const LENGTH: usize = 4;

/// A twin of a longest-prefix map with prefixes of one length.
#[derive(Clone, Debug)]
pub struct FixedLengthPrefixes {
    length: u32,
    rows: PerfectHashTable,
}

/// The bits of a byte that a prefix of this length keeps, the byte being so many bits from the first.
fn kept(length: u32, from: u32) -> u8 {
    match length.saturating_sub(from) {
        0 => 0,
        bits => u8::MAX << 8u32.saturating_sub(bits),
    }
}

/// The length of a prefix, and its key without the bits behind; `None` if no map has such a key.
fn prefix(key: &[u8]) -> Option<(u32, Vec<u8>)> {
    let (length, data) = key.split_first_chunk::<LENGTH>()?;
    let length = u32::from_ne_bytes(*length);
    let masked = (0..).step_by(8).zip(data).map(|(from, byte)| byte & kept(length, from));
    let key = key[..LENGTH].iter().copied().chain(masked).collect();
    (length as usize <= 8 * data.len()).then_some((length, key))
}

impl FixedLengthPrefixes {
    /// The twin of these prefixes, if they have one length and take no more than `most` bytes.
    pub fn of<'e, I: Iterator<Item = (&'e [u8], &'e [u8])>>(
        row: RowLayout,
        entries: impl Fn() -> I,
        count: usize,
        most: u64,
    ) -> Option<FixedLengthPrefixes> {
        let (length, _) = prefix(entries().next()?.0)?;
        let same = |(key, _): (&[u8], _)| prefix(key).is_some_and(|(l, _)| l == length);
        if row.key > PerfectHashTable::WIDEST.0
            || row.value > PerfectHashTable::WIDEST.1
            || !entries().all(same)
        {
            return None;
        }
        let mut it = FixedLengthPrefixes { length, rows: PerfectHashTable::of(row, [], count, most)? };
        for (key, value) in entries() {
            it.set(key, Some(value))?;
        }
        it.rows.take_changed();
        Some(it)
    }

    /// The length.
    pub fn length(&self) -> u32 {
        self.length
    }

    /// Sets the value of a prefix, or removes the prefix. `None` if it has another length or there is no
    /// room: this twin is useless from then on.
    pub fn set(&mut self, key: &[u8], value: Option<&[u8]>) -> Option<()> {
        match prefix(key) {
            Some((length, key)) if length == self.length => self.rows.set(&key, value),
            // A prefix of another length is not in the map.
            _ => value.is_none().then_some(()),
        }
    }

    /// Shape of the rows.
    pub fn shape(&self) -> PerfectHashLayout {
        self.rows.shape()
    }

    /// Number of chunks.
    pub fn chunks(&self) -> u32 {
        self.rows.chunks()
    }

    /// Offset of a chunk in memory, and its bytes.
    pub fn chunk(&self, number: u32) -> (usize, Vec<u8>) {
        self.rows.chunk(number)
    }

    /// The chunks that have changed since the last call.
    pub fn take_changed(&mut self) -> BTreeSet<u32> {
        self.rows.take_changed()
    }
}

/// Returns true if the length is a word of its own among these pieces of a key.
pub(crate) fn has_length(layout: &KeyLayout) -> bool {
    layout.first().is_some_and(|p| p.offset == 0 && p.size == Size::W)
}

/// The pieces of the key of the prefix of this length of an address. `None` if the lookup is not for all
/// bits of the address.
pub(super) fn shortened(
    evaluator: &mut PartialEvaluator<'_>,
    layout: &KeyLayout,
    args: &[AbstractValue],
    (key_size, length): (u32, u32),
    out: Block,
) -> Option<SmallVec<[AbstractValue; 4]>> {
    let bits = 8 * i64::from(key_size.checked_sub(LENGTH as u32)?);
    let known = args.iter().all(|a| matches!(a, AbstractValue::Val(_) | AbstractValue::Const(_)));
    if !has_length(layout) || args.first() != Some(&AbstractValue::Const(bits)) || !known {
        return None;
    }
    let mut short = SmallVec::from_slice(&[AbstractValue::Const(length.into())]);
    for (piece, abs) in layout.iter().zip(args).skip(1) {
        let first = 8 * (u32::from(piece.offset) - LENGTH as u32);
        let bytes = (0..piece.size.bytes()).map(|n| u64::from(kept(length, first + 8 * n)) << (8 * n));
        let mask = bytes.fold(0, |mask, byte| mask | byte);
        let all = u64::MAX >> (64 - piece.size.bits());
        short.push(match *abs {
            _ if mask == 0 => AbstractValue::Const(0),
            AbstractValue::Const(word) => AbstractValue::Const(word & mask as i64),
            AbstractValue::Val(word) if mask != all => {
                AbstractValue::Val(kept_bits(evaluator, word, mask, piece.size, out))
            }
            other => other,
        });
    }
    Some(short)
}

fn kept_bits(evaluator: &mut PartialEvaluator<'_>, word: Value, mask: u64, size: Size, out: Block) -> Value {
    let mask = evaluator.value(out, Op::Const { value: mask as i64 }, &[], Type::I64);
    let op = Op::Alu { op: AluOp::And, width: Width::W64 };
    evaluator.value(out, op, &[word, mask], Type::int(size.bits()))
}

#[cfg(test)]
mod tests {
    use super::*;

    const ROW: RowLayout = RowLayout { key: 8, value: 4 };

    fn key(length: u32, address: [u8; 4]) -> Vec<u8> {
        [&length.to_ne_bytes()[..], &address].concat()
    }

    #[test]
    fn prefixes_of_several_lengths_have_no_such_twin() {
        let all = [key(24, [10, 1, 2, 0]), key(24, [10, 1, 3, 9])];
        let entries = || all.iter().map(|k| (k.as_slice(), &[1u8, 0, 0, 0][..]));
        let mut twin = FixedLengthPrefixes::of(ROW, entries, 2, 1 << 20).unwrap();
        assert_eq!(twin.length(), 24);
        // The same prefix, however it is written.
        assert!(twin.set(&key(24, [10, 1, 3, 77]), None).is_some() && !twin.take_changed().is_empty());
        assert!(twin.set(&key(24, [10, 1, 3, 0]), None).is_some() && twin.take_changed().is_empty());
        assert!(twin.set(&key(25, [10, 1, 3, 0]), None).is_some(), "what is not there is not taken away");
        assert!(twin.set(&key(25, [10, 1, 3, 0]), Some(&[0; 4])).is_none());
        let mixed = [&all[..], &[key(0, [0; 4])]].concat();
        let entries = || mixed.iter().map(|k| (k.as_slice(), &[1u8, 0, 0, 0][..]));
        assert!(FixedLengthPrefixes::of(ROW, entries, 3, 1 << 20).is_none());
    }

    #[test]
    fn a_prefix_keeps_its_leading_bits() {
        assert_eq!([0, 8, 16, 24].map(|from| kept(20, from)), [0xff, 0xff, 0xf0, 0]);
        assert_eq!(prefix(&key(20, [1, 2, 0xff, 4])), Some((20, key(20, [1, 2, 0xf0, 0]))));
        assert_eq!(prefix(&key(33, [0; 4])), None);
    }
}

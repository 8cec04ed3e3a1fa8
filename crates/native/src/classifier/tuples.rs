//! Tuple space search (Srinivasan, Suri and Varghese, SIGCOMM 1999): rules with the same masks are one hash
//! table, whose key is the words under these masks.
//!
//! If several tables contain the key, the first rule counts. Tables are searched in the order of their first
//! rules, and the search ends when all remaining rules come behind the one found. An interval becomes
//! prefixes, each a row of its own.
//!
//! A value is one word: the rule's position in the upper half, the result of the match in the lower one, so
//! that the smaller word is the one that counts; all ones stand for no match.

use cranelift_entity::{EntityRef, PrimaryMap};
use millstream_interp::MapKind;
use millstream_ir::{
    AluOp, Block, BlockCall, Cond, FuncCursor, Function, KeyLayout, KeyPiece, Map, MapDecl, MemFlags, Op,
    Prov, Size, Type, Value, Width,
};
use millstream_match_tables::{TableRule, TableTest};
use rustc_hash::FxHashMap;

use crate::image::{InitialMapEntry, InitialMapValue};

/// `BPF_F_RDONLY_PROG`: programs only read the values.
const READ_ONLY: u32 = 1 << 7;

/// Rules with the same masks.
struct RuleTuple {
    masks: Vec<u64>,
    /// The word of the first rule.
    first: u64,
    /// Words by the key's words under the masks.
    rows: FxHashMap<Vec<u64>, u64>,
    map: Option<Map>,
}

/// All rules of a table, in order of their first rules.
pub(super) struct TupleSpace {
    tuples: Vec<RuleTuple>,
    widths: Vec<u64>,
    /// The word of a rule that matches everything, or all ones.
    otherwise: u64,
}

/// Bytes that hold a word.
fn size(width: u64) -> Size {
    match width.count_ones() {
        ..=8 => Size::B,
        9..=16 => Size::H,
        17..=32 => Size::W,
        _ => Size::Dw,
    }
}

/// Values and masks equivalent to a test; prefixes if it is an interval.
fn alternatives(test: TableTest, width: u64) -> Vec<(u64, u64)> {
    match test {
        TableTest::Any => vec![(0, 0)],
        TableTest::Masked(value, mask) => vec![(value, mask)],
        TableTest::Interval(mut from, to) => {
            let mut all = Vec::new();
            loop {
                // The largest block that begins here and does not exceed the interval.
                let mut free = if from == 0 { width } else { (1 << from.trailing_zeros()) - 1 };
                while free > to - from {
                    free >>= 1;
                }
                all.push((from, width & !free));
                let last = from + free;
                if last == to {
                    return all;
                }
                from = last + 1;
            }
        }
    }
}

impl TupleSpace {
    /// Tuples of rules over words of these widths; `None` if there would be more tuples or rows than the
    /// limits.
    pub(super) fn of(
        rules: &[TableRule],
        widths: &[u64],
        most_tuples: usize,
        most_rows: usize,
    ) -> Option<TupleSpace> {
        let mut found: FxHashMap<Vec<u64>, RuleTuple> = FxHashMap::default();
        let (mut count, mut otherwise) = (0, u64::MAX);
        for (place, rule) in rules.iter().enumerate() {
            let word = (place as u64) << 32 | u64::from(rule.result as u32);
            let mut rows = vec![(Vec::new(), Vec::new())];
            for (&test, &width) in rule.tests.iter().zip(widths) {
                let all = alternatives(test, width);
                count += rows.len() * (all.len() - 1);
                if count > most_rows {
                    return None;
                }
                let with = |(values, masks): &(Vec<u64>, Vec<u64>), (value, mask): &(u64, u64)| {
                    ([values.as_slice(), &[*value]].concat(), [masks.as_slice(), &[*mask]].concat())
                };
                rows = rows.iter().flat_map(|row| all.iter().map(move |more| with(row, more))).collect();
            }
            count += 1;
            for (values, masks) in rows {
                if masks.iter().all(|mask| *mask == 0) {
                    otherwise = word;
                    break;
                }
                let new =
                    || RuleTuple { masks: masks.clone(), first: word, rows: FxHashMap::default(), map: None };
                let tuple = found.entry(masks.clone()).or_insert_with(new);
                tuple.rows.entry(values).or_insert(word);
            }
            // Nothing comes behind a rule that matches everything.
            if otherwise != u64::MAX {
                break;
            }
            if found.len() > most_tuples {
                return None;
            }
        }
        let mut tuples: Vec<RuleTuple> = found.into_values().collect();
        tuples.sort_unstable_by(|a, b| (a.first, &a.masks).cmp(&(b.first, &b.masks)));
        Some(TupleSpace { tuples, widths: widths.to_vec(), otherwise })
    }

    /// Number of hash tables.
    pub(super) fn len(&self) -> usize {
        self.tuples.len()
    }

    /// Declares the maps, unless they exist.
    pub(super) fn declare(
        &mut self,
        name: &str,
        maps: &mut PrimaryMap<Map, MapDecl>,
        initial: &mut Vec<InitialMapEntry>,
    ) {
        for (at, tuple) in self.tuples.iter_mut().enumerate().filter(|(_, tuple)| tuple.map.is_none()) {
            let pieces = layout(&tuple.masks, &self.widths);
            let map = maps.push(MapDecl {
                name: format!("{name}.tuple{at}"),
                kind: MapKind::Hash as u32,
                key_size: pieces.iter().map(|piece| piece.size.bytes()).sum(),
                value_size: 8,
                max_entries: tuple.rows.len() as u32,
                flags: READ_ONLY,
                global: None,
                inner: None,
            });
            tuple.map = Some(map);
            let mut rows: Vec<(&Vec<u64>, &u64)> = tuple.rows.iter().collect();
            rows.sort_unstable();
            initial.extend(rows.into_iter().map(|(values, word)| {
                let used =
                    values.iter().zip(&tuple.masks).zip(&self.widths).filter(|((_, mask), _)| **mask != 0);
                let bytes = |((value, _), width): ((&u64, &u64), &u64)| {
                    value.to_le_bytes()[..size(*width).bytes() as usize].to_vec()
                };
                let key = used.flat_map(bytes).collect();
                InitialMapEntry {
                    map: map.index(),
                    key,
                    value: InitialMapValue::Bytes(word.to_le_bytes().to_vec()),
                }
            }));
        }
    }

    /// Replaces the match at a position: index in the layout, position in the block.
    pub(super) fn search(&self, func: &mut Function, (b, at): (usize, usize)) {
        let start = func.layout[b];
        let data = func.insts[func.blocks[start].insts[at]].clone();
        let join = func.split_block_at(start, at);
        let mut order = Vec::new();
        let mut block = |func: &mut Function| {
            let block = func.blocks.push(Default::default());
            order.push(block);
            block
        };
        let done = func.blocks.push(Default::default());
        let counts = func.add_param(done, Type::I64);
        let mut here = start;
        let mut best = func.at_end(start).iconst(self.otherwise as i64);
        for (at, tuple) in self.tuples.iter().enumerate() {
            let Some(map) = tuple.map else { continue };
            if at > 0 {
                let first = func.at_end(here).iconst(tuple.first as i64);
                let on = block(func);
                branch(
                    func,
                    here,
                    (Cond::Lt, best, first),
                    BlockCall::with(done, [best]),
                    BlockCall::new(on),
                );
                here = on;
            }
            let mut cursor = func.at_end(here);
            let key = self.key(&mut cursor, &data.args, tuple);
            let look = Op::MapLookup { map, key: layout(&tuple.masks, &self.widths) };
            let found = cursor.value(look, key, Type::Ptr(Prov::MapValueOrNull(map)));
            let null = cursor.iconst(0);
            let (there, next) = (block(func), block(func));
            let least = func.add_param(next, Type::I64);
            branch(func, here, (Cond::Ne, found, null), BlockCall::new(there), BlockCall::with(next, [best]));
            let mut cursor = func.at_end(there);
            let load = Op::Load { size: Size::Dw, sext: false, offset: 0, flags: MemFlags::default() };
            let word = cursor.value(load, [found], Type::I64);
            let compare = Op::Cmp { cond: Cond::Lt, width: Width::W64 };
            let before = cursor.value(compare, [word, best], Type::I1);
            let word = cursor.value(Op::Select {}, [before, word, best], Type::I64);
            cursor.effect(Op::Jump {}, [], [BlockCall::with(next, [word])]);
            (here, best) = (next, least);
        }
        func.at_end(here).effect(Op::Jump {}, [], [BlockCall::with(done, [best])]);
        let mut cursor = func.at_end(done);
        let result = cursor.value(Op::Sext { bits: 32, width: Width::W64 }, [counts], Type::I64);
        cursor.effect(Op::Jump {}, [], [BlockCall::with(join, [result])]);
        order.extend([done, join]);
        for &new in [start].iter().chain(&order) {
            for at in 0..func.blocks[new].insts.len() {
                let inst = func.blocks[new].insts[at];
                if func.insts[inst].loc == u32::MAX {
                    func.insts[inst].loc = data.loc;
                }
            }
        }
        func.layout.splice(b + 1..b + 1, order);
    }

    /// The words of a tuple's key.
    fn key(&self, cursor: &mut FuncCursor<'_>, words: &[Value], tuple: &RuleTuple) -> Vec<Value> {
        let used = words.iter().zip(&tuple.masks).zip(&self.widths).filter(|((_, mask), _)| **mask != 0);
        let masked = |((&word, &mask), &width): ((&Value, &u64), &u64)| {
            // A piece of the key has no bits above its bytes.
            if mask == width && width.count_ones() == size(width).bits() {
                return word;
            }
            let mask = cursor.iconst(mask as i64);
            cursor.value(Op::Alu { op: AluOp::And, width: Width::W64 }, [word, mask], Type::I64)
        };
        used.map(masked).collect()
    }
}

/// Layout of a key: the words whose masks are not empty.
fn layout(masks: &[u64], widths: &[u64]) -> KeyLayout {
    let mut offset = 0;
    let piece = |(_, &width): (&u64, &u64)| {
        let piece = KeyPiece { offset, size: size(width) };
        offset += size(width).bytes() as u16;
        piece
    };
    masks.iter().zip(widths).filter(|(mask, _)| **mask != 0).map(piece).collect()
}

/// Ends a block with a branch.
fn branch(
    func: &mut Function,
    block: Block,
    (cond, a, b): (Cond, Value, Value),
    yes: BlockCall,
    no: BlockCall,
) {
    func.at_end(block).effect(Op::Branch { cond, width: Width::W64 }, [a, b], [yes, no]);
}

#[cfg(test)]
mod tests {
    use super::alternatives;
    use millstream_match_tables::TableTest;

    #[test]
    fn an_interval_is_the_sum_of_its_prefixes() {
        for (from, to) in [(0, 255), (0, 0), (1, 254), (16, 31), (3, 200), (255, 255)] {
            let all = alternatives(TableTest::Interval(from, to), 255);
            for value in 0..=255 {
                let met = all.iter().filter(|(v, mask)| value & mask == *v).count();
                assert_eq!(
                    met,
                    usize::from(from <= value && value <= to),
                    "{value} in {from}..{to}: {all:?}"
                );
            }
        }
        assert_eq!(alternatives(TableTest::Interval(0, u64::MAX), u64::MAX), [(0, 0)]);
    }
}

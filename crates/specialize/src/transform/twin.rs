//! A twin of a longest-prefix map of 4-byte keys and small values: a multibit trie of 16, 8 and 8 bits in one array.
//!
//! The twin is the value of an array map of one entry, so that programs address it directly. It holds 16-bit cells:
//! 65,536 by the first two bytes of the key, then groups of 256 by the third or fourth byte. A cell is a value, says
//! that there is none, or names a group. A lookup is one to three loads, whatever the number of prefixes (compare
//! Gupta, Lin and McKeown, "Routing Lookups in Hardware at Memory Access Speeds", INFOCOM 1998).
//!
//! Invariant: a twin is written before the variant that reads it is installed, and never changed while one runs.

use millstream_ir::{AluOp, Block, BlockCall, Cond, MapDecl, Op, Prov, Size, Type, Value, Width};

use super::copy::Copier;
use super::plan::Entry;

/// Cells of the first level, indexed by the first two bytes as a little-endian number.
const FIRST: usize = 1 << 16;
/// Bytes of the first level.
const FIRST_BYTES: u32 = 2 * FIRST as u32;
/// Cells of a group.
const GROUP: usize = 256;
/// Bytes of a group.
const GROUP_BYTES: u32 = 2 * GROUP as u32;
/// Marks a cell that names a group.
const IS_GROUP: u16 = 0x8000;
/// The cell of keys without a prefix.
const ABSENT: u16 = 0x7fff;

/// A twin's contents, and how large its map must be.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Twin {
    /// The value of the map's one entry, exactly as long as values of the map must be.
    pub bytes: Vec<u8>,
}

impl Twin {
    /// The twin of these prefixes. `None` if keys are not of 4 bytes, values not of 4 bytes and small, or the groups
    /// too many.
    pub fn of(entries: &[Entry]) -> Option<Twin> {
        let mut prefixes = Vec::with_capacity(entries.len());
        for entry in entries {
            let (length, address) = entry.key.split_at_checked(4)?;
            let length = u32::from_ne_bytes(length.try_into().ok()?);
            let address = u32::from_be_bytes(address.try_into().ok()?);
            let value = u32::from_ne_bytes(entry.value.as_deref()?.try_into().ok()?);
            if length > 32 || value >= u32::from(ABSENT) {
                return None;
            }
            prefixes.push((length, address, value as u16));
        }
        prefixes.sort_by_key(|p| p.0);
        let mut cells = Cells { cells: vec![ABSENT; FIRST], groups: 0 };
        for (length, address, value) in prefixes {
            cells.insert(length, address, value)?;
        }
        let room = (cells.groups as usize).next_power_of_two();
        cells.cells.resize(FIRST + room * GROUP, ABSENT);
        Some(Twin { bytes: cells.cells.iter().flat_map(|c| c.to_le_bytes()).collect() })
    }

    /// Bytes of a map's value that has room for so many groups, a power of two.
    pub const fn value_size(groups: u32) -> u32 {
        FIRST_BYTES + groups * GROUP_BYTES
    }

    /// The contents for a map with larger values; `None` if its values are smaller or of no twin's size.
    pub fn for_map(mut self, decl: &MapDecl) -> Option<Vec<u8>> {
        Twin::room(decl)?;
        let size = decl.value_size as usize;
        if size < self.bytes.len() {
            return None;
        }
        self.bytes.resize(size, 0);
        Some(self.bytes)
    }

    /// Groups for which values of the map have room, if it can hold a twin at all.
    pub(super) fn room(decl: &MapDecl) -> Option<u32> {
        let groups = decl.value_size.checked_sub(FIRST_BYTES)? / GROUP_BYTES;
        let fits = decl.kind == super::copy::ARRAY && decl.max_entries == 1;
        let exact = FIRST_BYTES + groups * GROUP_BYTES == decl.value_size;
        (fits && exact && groups.is_power_of_two() && groups <= u32::from(IS_GROUP)).then_some(groups)
    }
}

struct Cells {
    cells: Vec<u16>,
    groups: u16,
}

impl Cells {
    /// Adds a prefix no shorter than those before it.
    fn insert(&mut self, length: u32, address: u32, value: u16) -> Option<()> {
        let [a, b, c, d] = address.to_be_bytes().map(usize::from);
        let count = |bits: u32| 1usize << (bits - length.min(bits));
        if length <= 16 {
            let first = a << 8 | b;
            let first = first & !(count(16) - 1);
            for n in first..first + count(16) {
                self.cells[(n >> 8) | (n & 255) << 8] = value;
            }
            return Some(());
        }
        let group = self.group(a | b << 8)?;
        if length <= 24 {
            self.fill(group, c, count(24), value);
            return Some(());
        }
        let group = self.group(group + c)?;
        self.fill(group, d, count(32), value);
        Some(())
    }

    fn fill(&mut self, group: usize, at: usize, count: usize, value: u16) {
        let at = at & !(count - 1);
        self.cells[group + at..group + at + count].fill(value);
    }

    /// Where the group that a cell names starts; made of what the cell says if it names none.
    fn group(&mut self, cell: usize) -> Option<usize> {
        let now = self.cells[cell];
        if now & IS_GROUP != 0 {
            return Some(FIRST + usize::from(now & !IS_GROUP) * GROUP);
        }
        if self.groups >= IS_GROUP {
            return None;
        }
        let start = self.cells.len();
        self.cells.resize(start + GROUP, now);
        self.cells[cell] = IS_GROUP | self.groups;
        self.groups += 1;
        Some(start)
    }
}

impl Copier<'_> {
    /// Looks the word up in a twin; goes on in `found` with the value as its parameter, or in `absent`. Ends the block.
    pub(super) fn twin(
        &mut self,
        map: millstream_ir::Map,
        groups: u32,
        word: Value,
        from: Block,
        found: Block,
        absent: Block,
    ) {
        let cell = self.new_block();
        let last = self.out.add_param(cell, Type::I16);
        let first = self.masked(word, 0xffff, from);
        let first = self.alu(AluOp::Lsh, first, 1, from);
        let mut at = from;
        let mut value = self.cell(map, 0, first, at);
        for shift in [15, 23] {
            let group = self.new_block();
            let marked = i64::from(IS_GROUP);
            let targets = [BlockCall::new(group), BlockCall::with(cell, [value])];
            self.branch(Cond::Set, value, marked, targets, at);
            let index = self.masked(value, i64::from(groups) - 1, group);
            let start = self.alu(AluOp::Lsh, index, i64::from(GROUP_BYTES.trailing_zeros()), group);
            let byte = self.alu(AluOp::Rsh, word, shift, group);
            let byte = self.masked(byte, 0x1fe, group);
            let offset = self.value(group, alu(AluOp::Add), &[start, byte], Type::I64);
            value = self.cell(map, FIRST_BYTES, offset, group);
            at = group;
        }
        self.emit(at, Op::Jump {}, &[], &[BlockCall::with(cell, [value])], Type::Any);
        let targets = [BlockCall::new(absent), BlockCall::with(found, [last])];
        self.branch(Cond::Eq, last, i64::from(ABSENT), targets, cell);
    }

    fn cell(&mut self, map: millstream_ir::Map, offset: u32, by: Value, out: Block) -> Value {
        let ty = Type::Ptr(Prov::MapValue(map));
        let base = self.value(out, Op::MapValueAddr { map, offset }, &[], ty);
        let address = self.value(out, alu(AluOp::Add), &[base, by], ty);
        let load = Op::Load { size: Size::H, sext: false, offset: 0, flags: Default::default() };
        self.value(out, load, &[address], Type::I16)
    }

    fn masked(&mut self, value: Value, mask: i64, out: Block) -> Value {
        self.alu(AluOp::And, value, mask, out)
    }

    fn alu(&mut self, op: AluOp, value: Value, by: i64, out: Block) -> Value {
        let by = self.value(out, Op::Const { value: by }, &[], Type::I64);
        let op = Op::Alu { op, width: if op == AluOp::Lsh { Width::W64 } else { Width::W32 } };
        self.value(out, op, &[value, by], Type::I32)
    }

    fn branch(&mut self, cond: Cond, value: Value, against: i64, targets: [BlockCall; 2], out: Block) {
        let against = self.value(out, Op::Const { value: against }, &[], Type::I64);
        let op = Op::Branch { cond, width: Width::W32 };
        self.emit(out, op, &[value, against], &targets, Type::Any);
    }
}

const fn alu(op: AluOp) -> Op {
    Op::Alu { op, width: Width::W64 }
}

/// What a twin says of an address: for tests, the lookup that variants do in code.
#[cfg(test)]
fn lookup(twin: &Twin, address: u32) -> Option<u16> {
    let cell = |n: usize| u16::from_le_bytes([twin.bytes[2 * n], twin.bytes[2 * n + 1]]);
    let [a, b, c, d] = address.to_be_bytes().map(usize::from);
    let mut value = cell(a | b << 8);
    for byte in [c, d] {
        if value & IS_GROUP != 0 {
            value = cell(FIRST + usize::from(value & !IS_GROUP) * GROUP + byte);
        }
    }
    (value != ABSENT).then_some(value)
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustc_hash::FxHashMap;

    fn entry(length: u32, address: [u8; 4], value: u32) -> Entry {
        let key = [&length.to_ne_bytes()[..], &address].concat();
        Entry { key, value: Some(value.to_ne_bytes().to_vec()), heat: 0 }
    }

    #[test]
    fn lookups_find_the_longest_prefix() {
        let table = [
            entry(8, [10, 0, 0, 0], 1),
            entry(32, [10, 1, 2, 3], 2),
            entry(24, [10, 1, 2, 0], 3),
            entry(16, [10, 1, 0, 0], 4),
            entry(28, [10, 1, 2, 16], 5),
            entry(20, [10, 1, 16, 0], 6),
            entry(1, [128, 0, 0, 0], 7),
        ];
        let twin = Twin::of(&table).unwrap();
        let expect: [([u8; 4], Option<u16>); 10] = [
            ([9, 255, 255, 255], None),
            ([10, 0, 0, 0], Some(1)),
            ([10, 1, 0, 0], Some(4)),
            ([10, 1, 2, 3], Some(2)),
            ([10, 1, 2, 4], Some(3)),
            ([10, 1, 2, 31], Some(5)),
            ([10, 1, 2, 32], Some(3)),
            ([10, 1, 31, 1], Some(6)),
            ([10, 1, 32, 1], Some(4)),
            ([255; 4], Some(7)),
        ];
        for (address, value) in expect {
            assert_eq!(lookup(&twin, u32::from_be_bytes(address)), value, "{address:?}");
        }
    }

    #[test]
    fn random_tables_agree_with_a_search_for_the_longest() {
        let mut state = 1u64;
        let mut random = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 32) as u32
        };
        let mask = |length: u32| u32::MAX.checked_shl(32 - length).unwrap_or(0);
        let mut by_prefix: FxHashMap<(u32, u32), u32> = FxHashMap::default();
        for _ in 0..500 {
            let length = 1 + random() % 32;
            by_prefix.insert((length, random() & 0x0303_0303 & mask(length)), random() % 1000);
        }
        let table: Vec<Entry> = by_prefix.iter().map(|((l, a), v)| entry(*l, a.to_be_bytes(), *v)).collect();
        let twin = Twin::of(&table).unwrap();
        for _ in 0..20_000 {
            let address = random() & 0x0303_0303;
            let longest = (1..=32u32).rev().find_map(|l| by_prefix.get(&(l, address & mask(l))));
            assert_eq!(lookup(&twin, address).map(u32::from), longest.copied(), "{address:#x}");
        }
    }

    #[test]
    fn values_that_do_not_fit_a_cell_have_no_twin() {
        assert_eq!(Twin::of(&[entry(8, [10, 0, 0, 0], 0x7fff)]), None);
    }
}

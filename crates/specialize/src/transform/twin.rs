//! A twin of a longest-prefix map of 4-byte keys and small values: a multibit trie of 16, 8 and 8 bits in one array.
//!
//! The twin lies in the value of an array map of one entry, so that programs address it directly. It holds 16-bit
//! cells: 65,536 by the first two bytes of the key, then groups of 256 by the third or fourth byte. A cell is a value,
//! says that there is none, or names a group. A lookup is one to three loads, whatever the number of prefixes (compare
//! Gupta, Lin and McKeown, "Routing Lookups in Hardware at Memory Access Speeds", INFOCOM 1998).
//!
//! There may be several twins in the value, its sides: the version that a packet finds in the guard says which one it
//! reads. So a variant follows its map without other code: the side that no packet reads is written, then the guard is
//! given that side's version.
//!
//! Invariant: a side is written only while its version is not in the guard, and no packet is under way that found it
//! there.

use millstream_ir::{AluOp, Block, BlockCall, Cond, MapDecl, Op, Prov, Size, Type, Value, Width};

use super::copy::Copier;

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

/// What a twin holds.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Twin {
    cells: Vec<u16>,
}

impl Twin {
    /// More groups no twin has.
    pub const MOST_GROUPS: u32 = IS_GROUP as u32;

    /// The twin of these prefixes, given as keys and values of their map. `None` if keys are not of 4 bytes, values
    /// not of 4 bytes and small, or the groups too many.
    pub fn of<'e>(entries: impl IntoIterator<Item = (&'e [u8], &'e [u8])>) -> Option<Twin> {
        let mut prefixes = Vec::new();
        for (key, value) in entries {
            let (length, address) = key.split_at_checked(4)?;
            let length = u32::from_ne_bytes(length.try_into().ok()?);
            let address = u32::from_be_bytes(address.try_into().ok()?);
            let value = u32::from_ne_bytes(value.try_into().ok()?);
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
        Some(Twin { cells: cells.cells })
    }

    /// Groups in it.
    pub fn groups(&self) -> u32 {
        ((self.cells.len() - FIRST) / GROUP) as u32
    }

    /// Bytes of a twin that has room for so many groups, a power of two.
    pub const fn size(groups: u32) -> u32 {
        FIRST_BYTES + groups * GROUP_BYTES
    }

    /// The whole of it, as it lies in memory.
    pub fn bytes(&self) -> Vec<u8> {
        self.cells.iter().flat_map(|c| c.to_ne_bytes()).collect()
    }

    /// What must be written, and where, to make it of `before`, of which nothing is known if it is `None`.
    pub fn changes(&self, before: Option<&Twin>, mut write: impl FnMut(usize, &[u8])) {
        let old = before.map_or(&[][..], |t| &t.cells);
        for (n, new) in self.cells.chunks(GROUP).enumerate() {
            let at = n * GROUP;
            if old.get(at..at + new.len()) != Some(new) {
                let bytes: Vec<u8> = new.iter().flat_map(|c| c.to_ne_bytes()).collect();
                write(2 * at, &bytes);
            }
        }
    }

    /// Groups for which each of so many sides of the map's value has room, if it can hold twins at all.
    pub(super) fn room(decl: &MapDecl, sides: u32) -> Option<u32> {
        let side = decl.value_size.checked_div(sides)?;
        let groups = side.checked_sub(FIRST_BYTES)? / GROUP_BYTES;
        let fits = decl.kind == super::copy::ARRAY && decl.max_entries == 1;
        let exact = Twin::size(groups).checked_mul(sides) == Some(decl.value_size);
        (fits && exact && groups.is_power_of_two() && groups <= Twin::MOST_GROUPS).then_some(groups)
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

/// A twin as the code sees it.
#[derive(Clone, Copy)]
pub(super) struct InMap {
    pub(super) map: millstream_ir::Map,
    /// Groups for which there is room.
    pub(super) groups: u32,
    /// The whole address.
    pub(super) word: Value,
}

impl Copier<'_> {
    /// Looks the word up in a twin; goes on in `found` with the value as its parameter, or in `absent`. Ends the block.
    pub(super) fn twin(&mut self, twin: InMap, from: Block, found: Block, absent: Block) {
        let InMap { map, groups, word } = twin;
        let side = self.side_of_twin(groups, from);
        let cell = self.new_block();
        let last = self.out.add_param(cell, Type::I16);
        let first = self.masked(word, 0xffff, from);
        let first = self.alu(AluOp::Lsh, first, 1, from);
        let mut at = from;
        let mut value = self.cell(map, 0, [Some(first), side], at);
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
            value = self.cell(map, FIRST_BYTES, [Some(offset), side], group);
            at = group;
        }
        self.emit(at, Op::Jump {}, &[], &[BlockCall::with(cell, [value])], Type::Any);
        let targets = [BlockCall::new(absent), BlockCall::with(found, [last])];
        self.branch(Cond::Eq, last, i64::from(ABSENT), targets, cell);
    }

    /// Where the side begins that the packet reads; `None` if there is but one.
    fn side_of_twin(&mut self, groups: u32, out: Block) -> Option<Value> {
        let side = self.side?;
        let sides = self.plan.guard.map_or(1, |g| g.sides);
        // The guard's comparison has bounded it already; the verifier may have forgotten since.
        let side = self.masked(side, i64::from(sides) - 1, out);
        let size = self.value(out, Op::Const { value: Twin::size(groups).into() }, &[], Type::I64);
        Some(self.value(out, alu(AluOp::Mul), &[side, size], Type::I64))
    }

    fn cell(&mut self, map: millstream_ir::Map, offset: u32, by: [Option<Value>; 2], out: Block) -> Value {
        let ty = Type::Ptr(Prov::MapValue(map));
        let mut address = self.value(out, Op::MapValueAddr { map, offset }, &[], ty);
        for by in by.into_iter().flatten() {
            address = self.value(out, alu(AluOp::Add), &[address, by], ty);
        }
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
    let cell = |n: usize| twin.cells[n];
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

    type Entry = (Vec<u8>, Vec<u8>);

    fn entry(length: u32, address: [u8; 4], value: u32) -> Entry {
        ([&length.to_ne_bytes()[..], &address].concat(), value.to_ne_bytes().to_vec())
    }

    fn twin_of(table: &[Entry]) -> Option<Twin> {
        Twin::of(table.iter().map(|(k, v)| (k.as_slice(), v.as_slice())))
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
        let twin = twin_of(&table).unwrap();
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
        let twin = twin_of(&table).unwrap();
        for _ in 0..20_000 {
            let address = random() & 0x0303_0303;
            let longest = (1..=32u32).rev().find_map(|l| by_prefix.get(&(l, address & mask(l))));
            assert_eq!(lookup(&twin, address).map(u32::from), longest.copied(), "{address:#x}");
        }
    }

    #[test]
    fn changes_turn_one_twin_into_another() {
        let mut table =
            vec![entry(8, [10, 0, 0, 0], 1), entry(24, [10, 1, 2, 0], 3), entry(25, [10, 1, 2, 0], 4)];
        let before = twin_of(&table).unwrap();
        table[1] = entry(24, [10, 1, 2, 0], 5);
        table.push(entry(0, [0; 4], 6));
        let after = twin_of(&table).unwrap();
        let mut memory = before.bytes();
        let mut written = 0;
        after.changes(Some(&before), |at, bytes| {
            memory[at..at + bytes.len()].copy_from_slice(bytes);
            written += bytes.len();
        });
        assert_eq!(memory, after.bytes());
        table.pop();
        let mut less = 0;
        twin_of(&table).unwrap().changes(Some(&before), |_, bytes| less += bytes.len());
        assert!(
            less > 0 && less <= 3 * 2 * GROUP && less < written,
            "{less} bytes for one route, {written} for all"
        );
    }

    #[test]
    fn values_that_do_not_fit_a_cell_have_no_twin() {
        assert_eq!(twin_of(&[entry(8, [10, 0, 0, 0], 0x7fff)]), None);
    }
}

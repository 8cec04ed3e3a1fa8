//! Twins of maps, in memory that programs address, and lookups in them as code. A [`ShadowTable`] lies in the
//! value of an array map of one entry.
//!
//! There may be several twins in the value, its sides: the version in the guard selects the one that a packet
//! reads. So a variant follows its map without new code: a side that no packet reads is written, then the
//! guard gets that side's version.
//!
//! Invariant: a side is written only while its version is not in the guard, and no packet is under way that
//! found it there.

use std::collections::BTreeSet;

use millstream_ir::usage::AccessRange;
use millstream_ir::{AluOp, Block, BlockCall, Cond, MapDecl, Op, Prov, Size, Type, Value, Width};
use millstream_isa::MapType;

use super::fixed_length_prefixes::FixedLengthPrefixes;
use super::partial_eval::PartialEvaluator;
use super::perfect_hash::{MULTIPLIER, PLACER, PerfectHashLayout, PerfectHashTable, RowLayout, factor};
use super::trie::{ABSENT, FIRST_BYTES, GROUP_BYTES, IS_GROUP, MultibitTrie};
use super::value_pool::{MOST_BYTES, SMALL, places, stride, values_bytes};

/// Data structures that answer lookups in the place of a map.
#[derive(Clone, Debug)]
pub enum ShadowTable {
    /// Of a longest-prefix map.
    Trie(MultibitTrie),
    /// Of a hash map.
    Rows(PerfectHashTable),
    /// Of a longest-prefix map with prefixes of one length only.
    OneLength(FixedLengthPrefixes),
}

/// Capacity of each side.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ShadowCapacity {
    /// A trie.
    Trie {
        /// Its groups, a power of two.
        groups: u32,
        /// Bytes of each value of the map.
        value_size: u32,
    },
    /// Rows.
    Rows(PerfectHashLayout),
    /// Rows of prefixes of this length.
    OneLength(PerfectHashLayout, u32),
}

/// The least room for a trie, in groups.
const LEAST: u32 = 16;

impl ShadowCapacity {
    /// Bytes of a side.
    pub fn bytes(self) -> u32 {
        match self {
            ShadowCapacity::Trie { groups, value_size } => MultibitTrie::size(groups, value_size),
            // Larger ones are not made.
            ShadowCapacity::Rows(shape) | ShadowCapacity::OneLength(shape, _) => {
                u32::try_from(shape.bytes()).unwrap_or(u32::MAX)
            }
        }
    }

    /// Capacity of each of the sides, if the map `twin` can hold twins of `map` at all. `length` is that of
    /// all prefixes, if there is only one.
    pub(super) fn of(
        map: &MapDecl,
        twin: &MapDecl,
        sides: u32,
        length: Option<u32>,
    ) -> Option<ShadowCapacity> {
        let side = twin.value_size.checked_div(sides)?;
        let row = RowLayout { key: map.key_size, value: map.value_size };
        let room = if let Some(length) = length {
            let shape = PerfectHashLayout::of_bytes(row, side).filter(|_| map.kind == MapType::LPM_TRIE.0);
            shape.map(|shape| ShadowCapacity::OneLength(shape, length))
        } else if map.kind == MapType::LPM_TRIE.0 {
            let value_size = map.value_size;
            let groups = side.checked_sub(MultibitTrie::size(0, value_size))? / GROUP_BYTES;
            let room = ShadowCapacity::Trie { groups, value_size };
            (groups.is_power_of_two() && groups <= MultibitTrie::MOST_GROUPS).then_some(room)
        } else {
            PerfectHashLayout::of_bytes(row, side).map(ShadowCapacity::Rows)
        };
        let fits = twin.kind == MapType::ARRAY.0 && twin.max_entries == 1;
        room.filter(|r| fits && r.bytes().checked_mul(sides) == Some(twin.value_size))
    }
}

/// Nanoseconds of a load from memory of this many bytes, accessed at random.
fn load_ns(bytes: u64) -> f64 {
    [(48 << 10, 1.2), (2 << 20, 4.0), (32 << 20, 15.0)]
        .into_iter()
        .find(|(most, _)| bytes <= *most)
        .map_or(80.0, |(_, ns)| ns)
}
/// Nanoseconds of hashing a key and of comparing it.
const HASHED: f64 = 4.0;

impl ShadowTable {
    /// The twin of a longest-prefix map with the faster lookups; `None` if it can have none. `read` are the
    /// bytes of values that programs read, `most` is the limit for rows, in bytes.
    pub fn of_prefixes<'e, I: Iterator<Item = (&'e [u8], &'e [u8])>>(
        row: RowLayout,
        entries: impl Fn() -> I,
        count: usize,
        read: &[AccessRange],
        most: u64,
    ) -> Option<ShadowTable> {
        let is_address = row.key == MultibitTrie::KEY && row.value <= MOST_BYTES;
        let trie = is_address.then(|| MultibitTrie::of(entries(), row.value, read)).flatten();
        let one = FixedLengthPrefixes::of(row, entries, count, most);
        let one_is_faster = match (&trie, &one) {
            (Some(trie), Some(one)) => {
                let (levels, shape) = (trie.levels(one.length()), one.shape());
                let rows = HASHED + load_ns(shape.rows_at().into()) + load_ns(shape.bytes());
                rows < f64::from(levels) * load_ns(trie.held_bytes())
            }
            (trie, _) => trie.is_none(),
        };
        if one_is_faster { one.map(ShadowTable::OneLength) } else { trie.map(ShadowTable::Trie) }
    }

    /// Room for it, and for its growth.
    pub fn room(&self) -> ShadowCapacity {
        match self {
            ShadowTable::Trie(trie) => {
                let groups = (trie.groups() + trie.groups() / 4).max(LEAST);
                let groups = groups.next_power_of_two().min(MultibitTrie::MOST_GROUPS);
                ShadowCapacity::Trie { groups, value_size: trie.value_size() }
            }
            ShadowTable::Rows(rows) => ShadowCapacity::Rows(rows.shape()),
            ShadowTable::OneLength(twin) => ShadowCapacity::OneLength(twin.shape(), twin.length()),
        }
    }

    /// Returns true if it fits there in its present state.
    pub fn fits(&self, room: ShadowCapacity) -> bool {
        match (self, room) {
            (ShadowTable::Trie(trie), ShadowCapacity::Trie { groups, .. }) => trie.groups() <= groups,
            (ShadowTable::Rows(rows), ShadowCapacity::Rows(shape)) => rows.shape() == shape,
            (ShadowTable::OneLength(twin), ShadowCapacity::OneLength(shape, length)) => {
                twin.shape() == shape && twin.length() == length
            }
            _ => false,
        }
    }

    /// Sets the value of a key, or removes the key. `None` if no twin can represent the map then: this one is
    /// useless from then on.
    pub fn set(&mut self, key: &[u8], value: Option<&[u8]>) -> Option<()> {
        match self {
            ShadowTable::Trie(trie) => trie.set(key, value),
            ShadowTable::Rows(rows) => rows.set(key, value),
            ShadowTable::OneLength(twin) => twin.set(key, value),
        }
    }

    /// Its chunks.
    pub fn chunks(&self) -> BTreeSet<u32> {
        match self {
            ShadowTable::Trie(trie) => trie.chunks(),
            ShadowTable::Rows(rows) => (0..rows.chunks()).collect(),
            ShadowTable::OneLength(twin) => (0..twin.chunks()).collect(),
        }
    }

    /// Offset of a chunk in memory, and its bytes.
    pub fn chunk(&self, number: u32) -> (usize, Vec<u8>) {
        match self {
            ShadowTable::Trie(trie) => trie.chunk(number),
            ShadowTable::Rows(rows) => rows.chunk(number),
            ShadowTable::OneLength(twin) => twin.chunk(number),
        }
    }

    /// The chunks that have changed since the last call.
    pub fn take_changed(&mut self) -> BTreeSet<u32> {
        match self {
            ShadowTable::Trie(trie) => trie.take_changed(),
            ShadowTable::Rows(rows) => rows.take_changed(),
            ShadowTable::OneLength(twin) => twin.take_changed(),
        }
    }
}

/// A trie, as code sees it.
#[derive(Clone, Copy)]
pub(super) struct TrieAccess {
    pub(super) map: millstream_ir::Map,
    /// Groups for which there is room.
    pub(super) groups: u32,
    /// The whole address.
    pub(super) word: Value,
    /// Bytes of a value of the map that it is a twin of.
    pub(super) value_size: u32,
}

impl TrieAccess {
    /// Returns true if its cells are numbers of values that lie in it, and not the values.
    pub(super) fn has_values(&self) -> bool {
        self.value_size != SMALL
    }

    fn room(&self) -> ShadowCapacity {
        ShadowCapacity::Trie { groups: self.groups, value_size: self.value_size }
    }
}

impl PartialEvaluator<'_> {
    /// Looks a key's words up in rows; continues in `found` or in `absent`, and returns the row. Ends the
    /// block `from`.
    pub(super) fn rows(
        &mut self,
        map: millstream_ir::Map,
        shape: PerfectHashLayout,
        words: &[Value],
        [from, found, absent]: [Block; 3],
    ) -> Value {
        let side = self.side_of_twin(ShadowCapacity::Rows(shape), from);
        let sum = self.sum(words, factor, from);
        let high = self.by(AluOp::Rsh, sum, 32, from);
        let folded = self.both(AluOp::Xor, sum, high, from);
        let hash = self.by(AluOp::Mul, folded, MULTIPLIER, from);
        let bucket = self.by(AluOp::Rsh, hash, u64::from(64 - shape.bucket_bits()), from);
        let seed = self.by(AluOp::Lsh, bucket, 1, from);
        let seed = self.cell(map, 0, [side, Some(seed)], from);
        let seed = self.masked(seed, 0xffff, from);
        let placed = self.both(AluOp::Xor, hash, seed, from);
        let placed = self.by(AluOp::Mul, placed, PLACER, from);
        let number = self.by(AluOp::Rsh, placed, u64::from(64 - shape.row_bits()), from);
        let offset = self.by(AluOp::Mul, number, shape.row.bytes().into(), from);
        let rows_at = self.constant(shape.rows_at().into(), from);
        let row = self.address_in(map, 0, [side, Some(offset), Some(rows_at)], from);
        let mark = self.value(from, Op::Const { value: 1 }, &[], Type::I64);
        let ways = [found, absent].map(BlockCall::new);
        self.compare_row((row, 0), (mark, Default::default()), words, from, ways);
        row
    }

    /// Looks the word up in a trie; continues in `found` with the contents of the cell as its parameter, or
    /// in `absent`. Ends the block.
    pub(super) fn trie(&mut self, twin: TrieAccess, from: Block, found: Block, absent: Block) {
        let TrieAccess { map, groups, word, value_size } = twin;
        let cells = values_bytes(value_size);
        let side = self.side_of_twin(twin.room(), from);
        let cell = self.new_block();
        let last = self.out.add_param(cell, Type::I16);
        let first = self.masked(word, 0xffff, from);
        let first = self.alu(AluOp::Lsh, first, 1, from);
        let mut at = from;
        let mut value = self.cell(map, cells, [Some(first), side], at);
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
            value = self.cell(map, cells + FIRST_BYTES, [Some(offset), side], group);
            at = group;
        }
        self.emit(at, Op::Jump {}, &[], &[BlockCall::with(cell, [value])], Type::Any);
        let targets = [BlockCall::new(absent), BlockCall::with(found, [last])];
        self.branch(Cond::Eq, last, i64::from(ABSENT), targets, cell);
    }

    /// The address of the value that a cell of a trie names.
    pub(super) fn value_in_trie(
        &mut self,
        trie: TrieAccess,
        of: millstream_ir::Map,
        cell: Value,
        out: Block,
    ) -> Value {
        let side = self.side_of_twin(trie.room(), out);
        // Cells hold no other numbers, but the verifier cannot know that.
        let number = self.masked(cell, i64::from(places(trie.value_size)) - 1, out);
        let offset = self.by(AluOp::Mul, number, stride(trie.value_size).into(), out);
        let address = self.address_in(trie.map, 0, [Some(offset), side], out);
        // From here on it stands for a value of the map.
        self.out.types[address] = Type::Ptr(Prov::MapValue(of));
        address
    }

    /// Offset of the side that the packet reads; `None` if there is only one.
    fn side_of_twin(&mut self, room: ShadowCapacity, out: Block) -> Option<Value> {
        let sides = self.plans.plan.guard.map_or(1, |g| g.sides);
        let token = self.token.filter(|_| sides > 1)?;
        let side = self.masked(token, i64::from(sides) - 1, out);
        let size = self.value(out, Op::Const { value: room.bytes().into() }, &[], Type::I64);
        Some(self.value(out, alu(AluOp::Mul), &[side, size], Type::I64))
    }

    fn cell(&mut self, map: millstream_ir::Map, offset: u32, by: [Option<Value>; 2], out: Block) -> Value {
        let address = self.address_in(map, offset, by, out);
        let load = Op::Load { size: Size::H, sext: false, offset: 0, flags: Default::default() };
        self.value(out, load, &[address], Type::I16)
    }

    fn address_in(
        &mut self,
        map: millstream_ir::Map,
        offset: u32,
        by: impl IntoIterator<Item = Option<Value>>,
        out: Block,
    ) -> Value {
        let ty = Type::Ptr(Prov::MapValue(map));
        let mut address = self.value(out, Op::MapValueAddr { map, offset }, &[], ty);
        for by in by.into_iter().flatten() {
            address = self.value(out, alu(AluOp::Add), &[address, by], ty);
        }
        address
    }

    fn masked(&mut self, value: Value, mask: i64, out: Block) -> Value {
        self.alu(AluOp::And, value, mask, out)
    }

    fn alu(&mut self, op: AluOp, value: Value, by: i64, out: Block) -> Value {
        let by = self.value(out, Op::Const { value: by }, &[], Type::I64);
        let op = Op::Alu { op, width: if op == AluOp::Lsh { Width::W64 } else { Width::W32 } };
        self.value(out, op, &[value, by], Type::I32)
    }

    pub(super) fn branch(
        &mut self,
        cond: Cond,
        value: Value,
        against: i64,
        targets: [BlockCall; 2],
        out: Block,
    ) {
        let against = self.value(out, Op::Const { value: against }, &[], Type::I64);
        let op = Op::Branch { cond, width: Width::W32 };
        self.emit(out, op, &[value, against], &targets, Type::Any);
    }
}

const fn alu(op: AluOp) -> Op {
    Op::Alu { op, width: Width::W64 }
}

//! The profiling variant: records the key of a lookup before it is made.
//!
//! Each site has a power of two of slots in a per-CPU array. A key goes to the slot of its hash, which keeps
//! [`ProfileSketch::WAYS`] keys by Space-Saving (Metwally, Agrawal and El Abbadi, ICDT 2005): a key that is
//! there counts up; another takes the place of the one with the lowest count, and its count goes on from
//! there, that count being noted as what it may err by. A key with more than one in so many of a slot's
//! lookups is therefore there, whole and true, and count less error is at most its real one; `total` is
//! exact.
//!
//! Invariant: behaviour does not change; the sketch's map is the only memory written.

use millstream_ir::{
    AluOp, Block, BlockCall, Cond, Func, FuncCursor, Function, Inst, KeyLayout, KeyPiece, Map, MemFlags,
    Module, Op, Prov, Size, Type, Value, Width,
};

use super::error::TransformError;
use super::site::{KeyForm, SiteId, sites};

/// Destination of the profile. Slots `n * slots .. (n + 1) * slots` belong to the n-th requested site.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ProfileSketch {
    /// A per-CPU array whose values are at least [`ProfileSketch::value_size`] bytes.
    pub map: Map,
    /// Slots a site, a power of two.
    pub slots: u32,
}

impl ProfileSketch {
    /// Keys a slot.
    pub const WAYS: u32 = 4;
    /// Offset of the 64-bit number of lookups that came to the slot.
    pub const TOTAL: u32 = 0;
    /// Offset of the first way in a slot.
    const FIRST: u32 = 8;
    /// Offset of the 64-bit count in a way; 0: it is empty.
    const COUNT: u32 = 0;
    /// Offset of the maximum error of the count.
    const ERROR: u32 = 8;
    /// Offset of the key.
    const KEY: u32 = 16;

    /// Bytes of a slot for keys of this size.
    pub const fn value_size(key_size: u32) -> u32 {
        Self::FIRST + Self::WAYS * Self::way(key_size)
    }

    /// Bytes of a way.
    const fn way(key_size: u32) -> u32 {
        Self::KEY + key_size.next_multiple_of(8)
    }

    /// Reads a slot: number of its lookups, and keys with a lower bound of the number of lookups of each.
    pub fn read(slot: &[u8], key_size: u32) -> (u64, Vec<(Vec<u8>, u64)>) {
        let word = |bytes: &[u8], at: u32| {
            let word = bytes.get(at as usize..at as usize + 8).and_then(|b| b.try_into().ok());
            word.map_or(0, u64::from_ne_bytes)
        };
        let ways = slot.get(Self::FIRST as usize..).unwrap_or_default();
        let ways = ways.chunks_exact(Self::way(key_size) as usize).take(Self::WAYS as usize);
        let held = ways.filter(|way| word(way, Self::COUNT) > 0).map(|way| {
            let key = way[Self::KEY as usize..][..key_size as usize].to_vec();
            (key, word(way, Self::COUNT).saturating_sub(word(way, Self::ERROR)))
        });
        (word(slot, Self::TOTAL), held.collect())
    }
}

/// Odd, with well-mixed bits: the golden ratio in 64 bits.
const MULTIPLIER: i64 = 0x9e37_79b9_7f4a_7c15_u64 as i64;

/// Makes those lookups of `wanted` that are in the function record their keys; its sites are numbered from
/// `first` on.
///
/// # Errors
/// If a key is not comparable, or the sketch's map is too small. Nothing has changed then.
pub fn instrument(
    module: &mut Module,
    func: Func,
    first: u32,
    wanted: &[SiteId],
    sketch: &ProfileSketch,
) -> Result<(), TransformError> {
    let all = sites(module, func, first);
    let mut chosen = Vec::with_capacity(wanted.len());
    for (number, &id) in (0..).zip(wanted) {
        let Some(site) = all.iter().find(|s| s.id == id) else { continue };
        let layout = site.layout().filter(|_| site.is_comparable());
        let layout = layout.ok_or(TransformError::NotComparable(id))?.clone();
        check_map(module, sketch, site.key_size, wanted.len() as u32)?;
        chosen.push((number, site.inst, matches!(site.key, KeyForm::Stack(_)), layout));
    }
    for (number, inst, in_memory, layout) in chosen {
        record(&mut module.funcs[func], inst, in_memory, &layout, sketch, number);
    }
    Ok(())
}

fn check_map(
    module: &Module,
    sketch: &ProfileSketch,
    key_size: u32,
    sites: u32,
) -> Result<(), TransformError> {
    let unfit = |what| Err(TransformError::UnfitMap { map: sketch.map, what });
    let Some(decl) = module.maps.get(sketch.map) else { return unfit("it does not exist") };
    if decl.value_size < ProfileSketch::value_size(key_size) || decl.key_size != 4 {
        return unfit("its values are too small for a slot");
    }
    if !sketch.slots.is_power_of_two() || sketch.slots.checked_mul(sites).is_none_or(|n| n > decl.max_entries)
    {
        return unfit("it has too few entries");
    }
    Ok(())
}

fn record(
    func: &mut Function,
    lookup: Inst,
    in_memory: bool,
    layout: &KeyLayout,
    sketch: &ProfileSketch,
    number: u32,
) {
    let Some((block, at)) = position(func, lookup) else { return };
    let mut key = func.insts[lookup].args.clone();
    let rest = split_block(func, block, at);
    let [slot, miss] = std::array::from_fn(|_| insert_block(func, rest));
    let mut cursor = func.at_end(block);
    if in_memory {
        let pointer = key[1];
        key = layout.iter().map(|p| load(&mut cursor, pointer, u32::from(p.offset), p.size)).collect();
    }
    let index = slot_index(&mut cursor, &key, layout, sketch, number);
    let pieces: KeyLayout = [KeyPiece { offset: 0, size: Size::W }].into_iter().collect();
    let op = Op::MapLookup { map: sketch.map, key: pieces };
    let address = cursor.value(op, [index], Type::Ptr(Prov::MapValueOrNull(sketch.map)));
    let zero = cursor.iconst(0);
    cursor.effect(branch(Cond::Eq, Size::Dw), [address, zero], [BlockCall::new(rest), BlockCall::new(slot)]);
    add(&mut func.at_end(slot), address, ProfileSketch::TOTAL, 1);
    let size: u32 = layout.iter().map(|p| p.size.bytes()).sum();
    let ways: Vec<u32> =
        (0..ProfileSketch::WAYS).map(|n| ProfileSketch::FIRST + n * ProfileSketch::way(size)).collect();
    let mut here = slot;
    for (n, &way) in ways.iter().enumerate() {
        let same = insert_block(func, rest);
        let other = if n + 1 == ways.len() { miss } else { insert_block(func, miss) };
        compare(func, here, (address, way), &key, layout, same, other);
        add(&mut func.at_end(same), address, way + ProfileSketch::COUNT, 1);
        func.at_end(same).effect(Op::Jump {}, [], [BlockCall::new(rest)]);
        here = other;
    }
    let takes: Vec<Block> = ways.iter().map(|_| insert_block(func, rest)).collect();
    let mut cursor = func.at_end(miss);
    let counts: Vec<Value> =
        ways.iter().map(|way| load(&mut cursor, address, way + ProfileSketch::COUNT, Size::Dw)).collect();
    least(func, miss, &counts, 0, 1, &takes);
    for ((&take, &way), &count) in takes.iter().zip(&ways).zip(&counts) {
        let mut cursor = func.at_end(take);
        for (piece, &value) in layout.iter().zip(&key) {
            store(
                &mut cursor,
                address,
                way + ProfileSketch::KEY + u32::from(piece.offset),
                piece.size,
                value,
            );
        }
        store(&mut cursor, address, way + ProfileSketch::ERROR, Size::Dw, count);
        add(&mut cursor, address, way + ProfileSketch::COUNT, 1);
        cursor.effect(Op::Jump {}, [], [BlockCall::new(rest)]);
    }
}

/// Goes to the block of the least count, of equals the first: `best` is the least of those before `next`.
fn least(func: &mut Function, block: Block, counts: &[Value], best: usize, next: usize, takes: &[Block]) {
    let Some(&count) = counts.get(next) else {
        func.at_end(block).effect(Op::Jump {}, [], [BlockCall::new(takes[best])]);
        return;
    };
    let [lower, not] = std::array::from_fn(|_| insert_block(func, takes[0]));
    let targets = [BlockCall::new(lower), BlockCall::new(not)];
    func.at_end(block).effect(branch(Cond::Lt, Size::Dw), [count, counts[best]], targets);
    least(func, lower, counts, next, next + 1, takes);
    least(func, not, counts, best, next + 1, takes);
}

/// The slot of a key, as the high bits of a product.
fn slot_index(
    at: &mut FuncCursor<'_>,
    key: &[Value],
    layout: &KeyLayout,
    sketch: &ProfileSketch,
    number: u32,
) -> Value {
    let alu = |op| Op::Alu { op, width: Width::W64 };
    let multiplier = at.iconst(MULTIPLIER);
    let mut hash = at.iconst(0);
    for (piece, &value) in layout.iter().zip(key) {
        let low = low_bits(at, value, piece.size);
        let mixed = at.value(alu(AluOp::Xor), [hash, low], Type::I64);
        hash = at.value(alu(AluOp::Mul), [mixed, multiplier], Type::I64);
    }
    let bits = sketch.slots.trailing_zeros();
    let base = at.iconst(i64::from(number) * i64::from(sketch.slots));
    if bits == 0 {
        return base;
    }
    let shift = at.iconst(i64::from(64 - bits));
    let slot = at.value(alu(AluOp::Rsh), [hash, shift], Type::I64);
    at.value(alu(AluOp::Add), [slot, base], Type::I64)
}

/// The bits of a value that a store of this size would write.
fn low_bits(at: &mut FuncCursor<'_>, value: Value, size: Size) -> Value {
    if size == Size::Dw || at.func.types[value].int_bits().is_some_and(|b| b <= size.bits()) {
        return value;
    }
    if size == Size::W {
        return at.value(Op::Zext {}, [value], Type::I32);
    }
    let mask = at.iconst((1 << size.bits()) - 1);
    at.value(Op::Alu { op: AluOp::And, width: Width::W32 }, [value, mask], Type::int(size.bits()))
}

/// Goes to `same` if the way of the slot holds the key, else to `other`. An empty way may match a key of
/// zeros, which is then counted there.
fn compare(
    func: &mut Function,
    mut block: Block,
    (address, way): (Value, u32),
    key: &[Value],
    layout: &KeyLayout,
    same: Block,
    other: Block,
) {
    for (i, (piece, &value)) in layout.iter().zip(key).enumerate() {
        let next = if i + 1 == layout.len() { same } else { insert_block(func, same) };
        let mut cursor = func.at_end(block);
        let mine = low_bits(&mut cursor, value, piece.size);
        let held = load(&mut cursor, address, way + ProfileSketch::KEY + u32::from(piece.offset), piece.size);
        let targets = [BlockCall::new(other), BlockCall::new(next)];
        cursor.effect(branch(Cond::Ne, piece.size), [held, mine], targets);
        block = next;
    }
}

pub(super) fn branch(cond: Cond, size: Size) -> Op {
    Op::Branch { cond, width: if size == Size::Dw { Width::W64 } else { Width::W32 } }
}

pub(super) fn load(at: &mut FuncCursor<'_>, base: Value, offset: u32, size: Size) -> Value {
    let op = Op::Load { size, sext: false, offset: offset as i32, flags: MemFlags::default() };
    at.value(op, [base], Type::int(size.bits()))
}

pub(super) fn store(at: &mut FuncCursor<'_>, base: Value, offset: u32, size: Size, value: Value) {
    at.effect(Op::Store { size, offset: offset as i32, flags: MemFlags::default() }, [base, value], []);
}

pub(super) fn add(at: &mut FuncCursor<'_>, base: Value, offset: u32, by: i64) {
    let old = load(at, base, offset, Size::Dw);
    let by = at.iconst(by);
    let new = at.value(Op::Alu { op: AluOp::Add, width: Width::W64 }, [old, by], Type::I64);
    store(at, base, offset, Size::Dw, new);
}

fn position(func: &Function, inst: Inst) -> Option<(Block, usize)> {
    func.layout.iter().find_map(|&b| Some((b, func.blocks[b].insts.iter().position(|&i| i == inst)?)))
}

/// Moves the instructions from `at` on to a new block behind this one, and leaves this one without
/// terminator.
pub(super) fn split_block(func: &mut Function, block: Block, at: usize) -> Block {
    let rest = func.add_block();
    let tail = func.blocks[block].insts.split_off(at);
    func.blocks[rest].insts = tail;
    func.layout.pop();
    let here = func.layout.iter().position(|&b| b == block).map_or(func.layout.len(), |p| p + 1);
    func.layout.insert(here, rest);
    rest
}

/// A new block in front of another.
pub(super) fn insert_block(func: &mut Function, before: Block) -> Block {
    let block = func.add_block();
    func.layout.pop();
    let here = func.layout.iter().position(|&b| b == before).unwrap_or(func.layout.len());
    func.layout.insert(here, block);
    block
}

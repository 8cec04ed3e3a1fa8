//! The profiling variant: writes down, before a lookup, which key it is about to look up.
//!
//! Each site has a power of two of slots in a per-CPU array. A key goes to the slot of its hash, where it takes part
//! in a majority vote (Boyer and Moore; Misra and Gries with one counter): the slot's own key counts up, another key
//! counts down and takes the slot at zero. A key that has most of a slot's packets therefore ends up in it, whole and
//! true, with a count that is at most its real one; `total` is exact.
//!
//! Invariant: behaviour does not change; the sketch's map is the only memory written.

use millstream_ir::{
    AluOp, Block, BlockCall, Cond, Cursor, Func, Function, Inst, Layout, Map, MemFlags, Module, Op, Piece,
    Prov, Size, Type, Value, Width,
};

use super::error::TransformError;
use super::site::{Key, SiteId, sites};

/// Where the profile goes. Slots `n * slots .. (n + 1) * slots` belong to the n-th site asked for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Sketch {
    /// A per-CPU array whose values are at least [`Sketch::value_size`] bytes.
    pub map: Map,
    /// Slots a site, a power of two.
    pub slots: u32,
}

impl Sketch {
    /// Offset of the vote's 64-bit count in a slot.
    pub const COUNT: u32 = 0;
    /// Offset of the 64-bit number of lookups that came to the slot.
    pub const TOTAL: u32 = 8;
    /// Offset of the key.
    pub const KEY: u32 = 16;

    /// Bytes of a slot for keys of this size.
    pub const fn value_size(key_size: u32) -> u32 {
        Self::KEY + key_size.next_multiple_of(8)
    }
}

/// Odd, with well-mixed bits: the golden ratio in 64 bits.
const MULTIPLIER: i64 = 0x9e37_79b9_7f4a_7c15_u64 as i64;

/// Makes the lookups of `wanted` write down their keys.
///
/// # Errors
/// If a site does not exist or its key is not comparable, or the sketch's map is too small. Nothing has changed then.
pub fn instrument(
    module: &mut Module,
    func: Func,
    wanted: &[SiteId],
    sketch: &Sketch,
) -> Result<(), TransformError> {
    let all = sites(module, func);
    let mut chosen = Vec::with_capacity(wanted.len());
    for &id in wanted {
        let site = all.iter().find(|s| s.id == id).ok_or(TransformError::NoSuchSite(id))?;
        let layout = site.layout().filter(|_| site.is_comparable());
        let layout = layout.ok_or(TransformError::NotComparable(id))?.clone();
        check_map(module, sketch, site.key_size, wanted.len() as u32)?;
        chosen.push((site.inst, matches!(site.key, Key::Stack(_)), layout));
    }
    for (number, (inst, in_memory, layout)) in chosen.into_iter().enumerate() {
        record(&mut module.funcs[func], inst, in_memory, &layout, sketch, number as u32);
    }
    Ok(())
}

fn check_map(module: &Module, sketch: &Sketch, key_size: u32, sites: u32) -> Result<(), TransformError> {
    let unfit = |what| Err(TransformError::UnfitMap { map: sketch.map, what });
    let Some(decl) = module.maps.get(sketch.map) else { return unfit("it does not exist") };
    if decl.value_size < Sketch::value_size(key_size) || decl.key_size != 4 {
        return unfit("its values are too small for a slot");
    }
    if !sketch.slots.is_power_of_two() || sketch.slots.checked_mul(sites).is_none_or(|n| n > decl.max_entries)
    {
        return unfit("it has too few entries");
    }
    Ok(())
}

fn record(func: &mut Function, lookup: Inst, in_memory: bool, layout: &Layout, sketch: &Sketch, number: u32) {
    let Some((block, at)) = position(func, lookup) else { return };
    let mut key = func.insts[lookup].args.clone();
    let rest = split_block(func, block, at);
    let [slot, same, other, take, lose] = std::array::from_fn(|_| insert_block(func, rest));
    let mut cursor = func.at_end(block);
    if in_memory {
        let pointer = key[1];
        key = layout.iter().map(|p| load(&mut cursor, pointer, u32::from(p.offset), p.size)).collect();
    }
    let index = slot_index(&mut cursor, &key, layout, sketch, number);
    let pieces: Layout = [Piece { offset: 0, size: Size::W }].into_iter().collect();
    let op = Op::MapLookup { map: sketch.map, key: pieces };
    let address = cursor.value(op, [index], Type::Ptr(Prov::MapValueOrNull(sketch.map)));
    let zero = cursor.iconst(0);
    cursor.effect(branch(Cond::Eq, Size::Dw), [address, zero], [BlockCall::new(rest), BlockCall::new(slot)]);
    add(&mut func.at_end(slot), address, Sketch::TOTAL, 1);
    compare(func, slot, address, &key, layout, same, other);
    add(&mut func.at_end(same), address, Sketch::COUNT, 1);
    func.at_end(same).effect(Op::Jump {}, [], [BlockCall::new(rest)]);
    let mut cursor = func.at_end(other);
    let count = load(&mut cursor, address, Sketch::COUNT, Size::Dw);
    let zero = cursor.iconst(0);
    cursor.effect(branch(Cond::Eq, Size::Dw), [count, zero], [BlockCall::new(take), BlockCall::new(lose)]);
    let mut cursor = func.at_end(take);
    for (piece, &value) in layout.iter().zip(&key) {
        store(&mut cursor, address, Sketch::KEY + u32::from(piece.offset), piece.size, value);
    }
    let one = cursor.iconst(1);
    store(&mut cursor, address, Sketch::COUNT, Size::Dw, one);
    cursor.effect(Op::Jump {}, [], [BlockCall::new(rest)]);
    add(&mut func.at_end(lose), address, Sketch::COUNT, -1);
    func.at_end(lose).effect(Op::Jump {}, [], [BlockCall::new(rest)]);
}

/// The slot of a key, as the high bits of a product.
fn slot_index(at: &mut Cursor<'_>, key: &[Value], layout: &Layout, sketch: &Sketch, number: u32) -> Value {
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

/// What a store of this size would write.
fn low_bits(at: &mut Cursor<'_>, value: Value, size: Size) -> Value {
    if size == Size::Dw || at.func.types[value].int_bits().is_some_and(|b| b <= size.bits()) {
        return value;
    }
    if size == Size::W {
        return at.value(Op::Zext {}, [value], Type::I32);
    }
    let mask = at.iconst((1 << size.bits()) - 1);
    at.value(Op::Alu { op: AluOp::And, width: Width::W32 }, [value, mask], Type::int(size.bits()))
}

/// Goes to `same` if the slot holds the key, else to `other`.
fn compare(
    func: &mut Function,
    mut block: Block,
    address: Value,
    key: &[Value],
    layout: &Layout,
    same: Block,
    other: Block,
) {
    for (i, (piece, &value)) in layout.iter().zip(key).enumerate() {
        let next = if i + 1 == layout.len() { same } else { insert_block(func, same) };
        let mut cursor = func.at_end(block);
        let mine = low_bits(&mut cursor, value, piece.size);
        let held = load(&mut cursor, address, Sketch::KEY + u32::from(piece.offset), piece.size);
        let targets = [BlockCall::new(other), BlockCall::new(next)];
        cursor.effect(branch(Cond::Ne, piece.size), [held, mine], targets);
        block = next;
    }
}

pub(super) fn branch(cond: Cond, size: Size) -> Op {
    Op::Branch { cond, width: if size == Size::Dw { Width::W64 } else { Width::W32 } }
}

pub(super) fn load(at: &mut Cursor<'_>, base: Value, offset: u32, size: Size) -> Value {
    let op = Op::Load { size, sext: false, offset: offset as i32, flags: MemFlags::default() };
    at.value(op, [base], Type::int(size.bits()))
}

pub(super) fn store(at: &mut Cursor<'_>, base: Value, offset: u32, size: Size, value: Value) {
    at.effect(Op::Store { size, offset: offset as i32, flags: MemFlags::default() }, [base, value], []);
}

pub(super) fn add(at: &mut Cursor<'_>, base: Value, offset: u32, by: i64) {
    let old = load(at, base, offset, Size::Dw);
    let by = at.iconst(by);
    let new = at.value(Op::Alu { op: AluOp::Add, width: Width::W64 }, [old, by], Type::I64);
    store(at, base, offset, Size::Dw, new);
}

fn position(func: &Function, inst: Inst) -> Option<(Block, usize)> {
    func.layout.iter().find_map(|&b| Some((b, func.blocks[b].insts.iter().position(|&i| i == inst)?)))
}

/// Moves the instructions from `at` on to a new block behind this one, and leaves this one without terminator.
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

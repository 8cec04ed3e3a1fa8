//! The code of a cache: one look-up of the fields, and one test for each result.

use millstream_ir::{
    AluOp, Block, BlockCall, Cond, Func, FuncCursor, Function, Inst, KeyLayout, KeyPiece, Map, MemFlags,
    Module, Op, Prov, Size, Type, Value, Width,
};

use super::groups::{FieldWord, TraversalGroup, words};
use super::{FIELDS, RESULTS, TraversalMaps};

/// Result that is not known yet: neither an address nor a number of a match table.
const UNKNOWN: i64 = i64::MIN;
/// Lowest bit of the number of the code in a stamp; the number of writes is below.
const CODE_SHIFT: u32 = 40;
/// Odd numbers by which the words of a key are multiplied for its hash.
const FACTORS: [u64; super::MOST_WORDS] = [
    0x9e37_79b9_7f4a_7c15,
    0xbf58_476d_1ce4_e5b9,
    0x94d0_49bb_1331_11eb,
    0xd6e8_feb8_6659_fd93,
    0xff51_afd7_ed55_8ccd,
    0xc4ce_b9fe_1a85_ec53,
];

/// Properties of the code of caches.
pub(crate) struct CacheCode<'t> {
    /// Maps of the caches.
    pub(crate) maps: &'t TraversalMaps,
    /// Flows of each cache, a power of two.
    pub(crate) flows: u32,
    /// Number of the code, which tells its entries from those of other code for the same maps.
    pub(crate) number: u64,
}

/// Puts caches in front of groups of look-ups.
pub(crate) fn insert(module: &mut Module, entry: Func, groups: &[TraversalGroup], code: &CacheCode<'_>) {
    let func = &mut module.funcs[entry];
    for (group, &entries) in groups.iter().zip(&code.maps.entries) {
        let slot = probe(func, group, entries, code);
        for (&lookup, at) in group.lookups.iter().zip(0..) {
            keep(func, lookup, slot, RESULTS + 8 * at);
        }
    }
}

/// Block and position of an instruction.
fn place(func: &Function, wanted: Inst) -> Option<(Block, usize)> {
    let within =
        |block: Block| Some((block, func.blocks[block].insts.iter().position(|inst| *inst == wanted)?));
    func.layout.iter().find_map(|block| within(*block))
}

fn store(size: Size, offset: i32) -> Op {
    Op::Store { size, offset, flags: MemFlags::default() }
}

fn load(size: Size, offset: i32) -> Op {
    Op::Load { size, sext: false, offset, flags: MemFlags::default() }
}

fn jump_if_equal(at: &mut FuncCursor<'_>, (a, b): (Value, Value), yes: BlockCall, no: BlockCall) {
    at.effect(Op::Branch { cond: Cond::Eq, width: Width::W64 }, [a, b], [yes, no]);
}

/// Two words as one.
fn both(at: &mut FuncCursor<'_>, op: AluOp, a: Value, b: Value) -> Value {
    at.value(Op::Alu { op, width: Width::W64 }, [a, b], Type::I64)
}

fn by(at: &mut FuncCursor<'_>, op: AluOp, value: Value, number: u64) -> Value {
    let number = at.iconst(number as i64);
    both(at, op, value, number)
}

/// Looks up an entry whose number is a value.
fn entry_at(at: &mut FuncCursor<'_>, map: Map, number: Value) -> Value {
    let key = KeyLayout::from_elem(KeyPiece { offset: 0, size: Size::W }, 1);
    at.value(Op::MapLookup { map, key }, [number], Type::Ptr(Prov::MapValueOrNull(map)))
}

/// The address of the value that a look-up in an array has found; goes on in a new block.
fn found(func: &mut Function, (block, loc): (Block, u32), map: Map, number: Value) -> (Block, Value) {
    let (behind, never) = (func.add_block(), func.add_block());
    let value = func.add_param(behind, Type::Ptr(Prov::MapValue(map)));
    let mut at = func.at_end(block);
    at.loc = loc;
    let entry = entry_at(&mut at, map, number);
    let none = at.iconst(0);
    jump_if_equal(&mut at, (entry, none), BlockCall::new(never), BlockCall::with(behind, [entry]));
    func.at_end(never).effect(Op::Unreachable {}, [], []);
    (behind, value)
}

/// The look-up of the fields, in front of the first look-up of a group. Returns the address of the entry, which has
/// the fields of this packet then.
fn probe(func: &mut Function, group: &TraversalGroup, entries: Map, code: &CacheCode<'_>) -> Value {
    let head = group.lookups[0];
    let loc = func.insts[head].loc;
    let Some((block, position)) = place(func, head) else {
        unreachable!("look-ups of a group are in blocks")
    };
    let own = Type::Ptr(Prov::MapValue(entries));
    let slot = func.at(block, position).value(Op::Undef {}, [], own);
    let behind = func.split_block_at(block, position);
    func.layout.push(behind);

    let mut at = func.at_end(block);
    at.loc = loc;
    let first = at.iconst(0);
    let (block, stamps) = found(func, (block, loc), code.maps.stamp, first);
    let mut at = func.at_end(block);
    at.loc = loc;
    let writes = at.value(load(Size::Dw, 0), [stamps], Type::I64);
    // Never 0, as in an entry that is not used yet.
    let stamp = by(&mut at, AluOp::Add, writes, (code.number << CODE_SHIFT) + 1);
    let key: Vec<Value> = words(&group.fields).iter().map(|word| key_word(&mut at, word)).collect();
    let mut hash = at.iconst(0);
    for (&word, factor) in key.iter().zip(FACTORS) {
        let part = by(&mut at, AluOp::Mul, word, factor);
        hash = both(&mut at, AluOp::Xor, hash, part);
    }
    // A word that differs in its high bits only must not lose them.
    let high = by(&mut at, AluOp::Rsh, hash, 32);
    let hash = both(&mut at, AluOp::Xor, hash, high);
    let hash = by(&mut at, AluOp::Mul, hash, FACTORS[0]);
    let number = match code.flows.trailing_zeros() {
        0 => at.iconst(0),
        bits => by(&mut at, AluOp::Rsh, hash, u64::from(64 - bits)),
    };
    let (block, entry) = found(func, (block, loc), entries, number);
    let fill = func.add_block();
    let mut at = func.at_end(block);
    at.loc = loc;
    let held = at.value(load(Size::Dw, 0), [entry], Type::I64);
    let mut differs = both(&mut at, AluOp::Xor, held, stamp);
    for (&word, offset) in key.iter().zip((FIELDS..).step_by(8)) {
        let held = at.value(load(Size::Dw, offset), [entry], Type::I64);
        let other = both(&mut at, AluOp::Xor, held, word);
        differs = both(&mut at, AluOp::Or, differs, other);
    }
    let none = at.iconst(0);
    let go_on = || BlockCall::with(behind, [entry]);
    jump_if_equal(&mut at, (differs, none), go_on(), BlockCall::new(fill));

    let mut at = func.at_end(fill);
    at.loc = loc;
    at.effect(store(Size::Dw, 0), [entry, stamp], []);
    for (&word, offset) in key.iter().zip((FIELDS..).step_by(8)) {
        at.effect(store(Size::Dw, offset), [entry, word], []);
    }
    let unknown = at.iconst(UNKNOWN);
    for (_, offset) in group.lookups.iter().zip((RESULTS..).step_by(8)) {
        at.effect(store(Size::Dw, offset), [entry, unknown], []);
    }
    at.effect(Op::Jump {}, [], [go_on()]);
    slot
}

/// A word of a key.
fn key_word(at: &mut FuncCursor<'_>, fields: &[(FieldWord, u32)]) -> Value {
    let mut word = None;
    for &(FieldWord { value, bits }, shift) in fields {
        let is_narrow = at.func.types[value].int_bits().is_some_and(|wide| wide <= bits);
        let low = match is_narrow || bits >= 64 {
            true => value,
            false => by(at, AluOp::And, value, u64::MAX >> (64 - bits)),
        };
        let moved = by(at, AluOp::Lsh, low, u64::from(shift));
        word = Some(word.map_or(moved, |word| both(at, AluOp::Or, word, moved)));
    }
    word.unwrap_or_else(|| at.iconst(0))
}

/// Takes the result of a look-up from an entry, or makes the look-up and keeps its result there.
fn keep(func: &mut Function, lookup: Inst, slot: Value, offset: i32) {
    let Some((block, position)) = place(func, lookup) else { return };
    let Some(result) = func.result(lookup) else { return };
    let data = func.insts[lookup].clone();
    let ty = func.types[result];
    let behind = func.split_block_at(block, position);
    func.layout.push(behind);
    let (hit, miss) = (func.add_block(), func.add_block());

    let mut at = func.at_end(block);
    at.loc = data.loc;
    let held = at.value(load(Size::Dw, offset), [slot], Type::I64);
    let unknown = at.iconst(UNKNOWN);
    jump_if_equal(&mut at, (held, unknown), BlockCall::new(miss), BlockCall::new(hit));

    let mut at = func.at_end(hit);
    at.loc = data.loc;
    let size = match ty.int_bits() {
        Some(1..=8) => Size::B,
        Some(9..=16) => Size::H,
        Some(17..=32) => Size::W,
        _ => Size::Dw,
    };
    let kept = at.value(load(size, offset), [slot], if ty == Type::I1 { Type::I8 } else { ty });
    at.effect(Op::Jump {}, [], [BlockCall::with(behind, [kept])]);

    let mut at = func.at_end(miss);
    at.loc = data.loc;
    let made = at.value(data.op, data.args, ty);
    at.effect(store(Size::Dw, offset), [slot, made], []);
    at.effect(Op::Jump {}, [], [BlockCall::with(behind, [made])]);
}

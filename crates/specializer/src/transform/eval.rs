//! Abstract values during copying, and the operations on them.

use millstream_ir::{AluOp, Block, Inst, Map, Op, Size, Value, Width};
use millstream_isa::semantics::eval;
use rustc_hash::FxHashMap;

use cranelift_entity::entity_impl;

/// A value of the source, as known at one place of the copy.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum AbstractValue {
    /// Not defined on any path here.
    None,
    /// Held by this value of the copy.
    Val(Value),
    /// A constant; 0 for a null pointer.
    Const(i64),
    /// This many bytes into the value that a lookup found.
    Ptr(LookupValueId, i64),
    /// At this constant offset plus that of a value of the copy.
    In(LookupValueId, i64, Value),
}

/// A value of a map that a lookup found.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct LookupValueId(u32);
entity_impl!(LookupValueId, "known");

/// A group of keys whose values share a copy.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct MergeId(u32);
entity_impl!(MergeId, "merge");

/// Ways to get the address of a map's value.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum ValueAddress {
    /// Not without another lookup: asking for it makes the site one that keeps its lookup.
    None,
    /// In this value of the copy.
    Held(Value),
    /// By its map, which has one entry.
    Direct,
    /// It is this map, found in a map of maps.
    Inside(Map),
    /// By going back to this block, where it is looked up, if nothing that others see has happened since the
    /// other.
    Back {
        /// The block of the lookup.
        block: Block,
        /// The block in which the value is only a copy.
        since: Block,
    },
}

/// Contents of a map's value.
#[derive(Clone, Debug)]
pub(super) enum ValueBytes {
    /// Not known; the pointer may be null.
    Unknown,
    /// Not known, but the pointer is not null.
    There,
    /// As they lie in the slot of a cache, or the row of a twin, that begins here.
    Copy(Value),
    /// A 4-byte number, held by this value of the copy.
    Held(Value),
    /// These bytes.
    One(Vec<u8>),
    /// One of several, depending on the path that led here.
    Merged(MergeId, Vec<Vec<u8>>),
}

/// A value of a map that a lookup found.
#[derive(Clone, Debug)]
pub(super) struct LookupValue {
    pub(super) map: Map,
    /// The lookup in the source; for global data, the instruction that names it.
    pub(super) origin: Inst,
    pub(super) bytes: ValueBytes,
    pub(super) address: ValueAddress,
}

/// A field of merged values that is a parameter of their common copy.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) struct MergedField {
    pub(super) known: LookupValueId,
    pub(super) offset: u32,
    pub(super) size: Size,
    pub(super) sext: bool,
}

/// The parameters of merged copies.
#[derive(Default)]
pub(super) struct MergedFields {
    pub(super) by_field: FxHashMap<MergedField, Value>,
    pub(super) of_value: FxHashMap<Value, MergedField>,
}

/// Reads `size` bytes at `offset` of `bytes`, as a load would.
pub(super) fn read(bytes: &[u8], offset: u32, size: Size, sext: bool) -> Option<i64> {
    let start = offset as usize;
    let part = bytes.get(start..start.checked_add(size.bytes() as usize)?)?;
    let mut word = [0; 8];
    word[..part.len()].copy_from_slice(part);
    let value = u64::from_le_bytes(word);
    Some(if sext { eval::movsx(Width::W64, size.bits(), value) as i64 } else { value as i64 })
}

/// The result of arithmetic on known operands; `None` if it must be computed.
pub(super) fn arithmetic(op: &Op, args: &[AbstractValue]) -> Option<AbstractValue> {
    if let Op::Alu { op: alu @ (AluOp::Add | AluOp::Sub), width: Width::W64 } = op
        && let Some(sum) = moved(*alu, args)
    {
        return Some(sum);
    }
    if let (Op::Select {}, &[AbstractValue::Const(truth), yes, no]) = (op, args) {
        return Some(if truth != 0 { yes } else { no });
    }
    if let Some(value) = absorbed(op, args) {
        return Some(AbstractValue::Const(value));
    }
    let constants: Option<Vec<u64>> =
        args.iter().map(|a| if let AbstractValue::Const(c) = a { Some(*c as u64) } else { None }).collect();
    Some(AbstractValue::Const(constant(op, &constants?)? as i64))
}

/// The result of an operation that does not depend on its other operand.
fn absorbed(op: &Op, args: &[AbstractValue]) -> Option<i64> {
    let Op::Alu { op, width } = op else { return None };
    let all = if *width == Width::W64 { u64::MAX } else { u64::from(u32::MAX) };
    let has =
        |wanted: u64| args.iter().any(|a| matches!(a, AbstractValue::Const(c) if *c as u64 & all == wanted));
    match op {
        AluOp::And | AluOp::Mul if has(0) => Some(0),
        AluOp::Or if has(all) => Some(all as i64),
        _ => None,
    }
}

/// A pointer plus or minus a constant.
fn moved(op: AluOp, args: &[AbstractValue]) -> Option<AbstractValue> {
    match (op, args) {
        (
            AluOp::Add,
            &[AbstractValue::Ptr(p, at), AbstractValue::Const(by)]
            | &[AbstractValue::Const(by), AbstractValue::Ptr(p, at)],
        ) => Some(AbstractValue::Ptr(p, at.checked_add(by)?)),
        (AluOp::Sub, &[AbstractValue::Ptr(p, at), AbstractValue::Const(by)]) => {
            Some(AbstractValue::Ptr(p, at.checked_sub(by)?))
        }
        _ => None,
    }
}

pub(super) fn constant(op: &Op, args: &[u64]) -> Option<u64> {
    Some(match (op, args) {
        (Op::Const { value }, _) => *value as u64,
        (Op::Alu { op, width }, &[a, b]) => eval::alu(*op, *width, a, b),
        (Op::Neg { width }, &[a]) => eval::neg(*width, a),
        (Op::Zext {}, &[a]) => eval::mov(Width::W32, a),
        (Op::Sext { bits, width }, &[a]) => eval::movsx(*width, u32::from(*bits), a),
        (Op::Swap { kind, bits }, &[a]) => eval::swap(*kind, u32::from(*bits), a),
        (Op::Cmp { cond, width }, &[a, b]) => u64::from(eval::cond(*cond, *width, a, b)),
        _ => return None,
    })
}

/// Results of lookups, as implied by the path that led here.
pub(super) type AssumedResults = FxHashMap<Inst, Option<Vec<u8>>>;

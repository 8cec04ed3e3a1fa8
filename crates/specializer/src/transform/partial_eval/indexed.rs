//! Loads at unknown places of a known value: a word of a bitmap, an element of an array within a value. Only
//! the packet determines the index.
//!
//! If the elements that an index can select form a few runs of equal ones, a comparison or two select between
//! constants. Then the address of the value is not needed any more, and the lookup need not be made.
//!
//! Invariant: every element that the index can select lies in the value and is known; otherwise the load is
//! made.

use millstream_ir::{AluOp, BlockCall, Op, Size, Type, Value, Width};
use rustc_hash::FxHashMap;

use super::{BlockContinuation, CopyPosition, PartialEvaluator};
use crate::transform::decision_tree::{self, DecisionInterval};
use crate::transform::eval::{AbstractValue, ValueBytes, read};

/// Elements that are looked at, at most.
const ELEMENTS: u64 = 4_096;
/// Runs of equal elements: as many are told apart in the time that a lookup takes.
const RUNS: usize = 3;

/// A distance in bytes that is computed from an index.
struct ScaledIndex {
    value: Value,
    width: Width,
    /// The highest index.
    last: u64,
    /// Size of an element, in units of the index.
    step: u64,
    /// Bits by which the index is shifted to give bytes.
    shift: u32,
}

/// A known value's address plus an unknown offset, if it may pay not to compute it yet.
pub(super) fn further(
    evaluator: &PartialEvaluator<'_>,
    op: &Op,
    args: &[AbstractValue],
) -> Option<AbstractValue> {
    let &Op::Alu { op: AluOp::Add, width: Width::W64 } = op else { return None };
    match *args {
        [AbstractValue::Ptr(id, at), AbstractValue::Val(by)]
        | [AbstractValue::Val(by), AbstractValue::Ptr(id, at)] => {
            let one = matches!(evaluator.lookups.known[id].bytes, ValueBytes::One(_));
            let looked_up = evaluator.addresses.addressed.contains(&evaluator.lookups.known[id].origin);
            (one && !looked_up && index(evaluator, by).is_some()).then_some(AbstractValue::In(id, at, by))
        }
        [AbstractValue::In(id, at, by), AbstractValue::Const(more)]
        | [AbstractValue::Const(more), AbstractValue::In(id, at, by)] => {
            Some(AbstractValue::In(id, at.checked_add(more)?, by))
        }
        _ => None,
    }
}

/// The result of a load at an indexed place of a known value, and the flow after it.
pub(super) fn indexed(
    evaluator: &mut PartialEvaluator<'_>,
    base: AbstractValue,
    load: &Op,
    at: CopyPosition,
) -> Option<(AbstractValue, BlockContinuation)> {
    let (AbstractValue::In(id, begin, by), &Op::Load { size, sext, offset, .. }) = (base, load) else {
        return None;
    };
    let index = index(evaluator, by)?;
    let ValueBytes::One(bytes) = &evaluator.lookups.known[id].bytes else { return None };
    let first = begin.checked_add(i64::from(offset))?;
    let element = |n: u64| {
        let start = first.checked_add(i64::try_from(n << index.shift).ok()?)?;
        let start = u32::try_from(start).ok()?;
        let end = start.checked_add(size.bytes())?;
        let known = evaluator.plans.contents.constant(evaluator.lookups.known[id].map, start..end);
        known.then(|| read(bytes, start, size, sext))?
    };
    let mut runs: Vec<(u64, i64)> = Vec::new();
    for n in (0..=index.last).step_by(usize::try_from(index.step).ok()?) {
        let value = element(n)?;
        if runs.last().is_none_or(|(_, last)| *last != value) {
            runs.push((n, value));
        }
        if runs.len() > RUNS {
            return None;
        }
    }
    evaluator.report.folded_loads += 1;
    if let [(_, only)] = runs[..] {
        return Some((AbstractValue::Const(only), BlockContinuation::On(at.out)));
    }
    let on = evaluator.new_block();
    let result = evaluator.out.add_param(on, Type::I64);
    let mut leaves = FxHashMap::default();
    let mut all = Vec::new();
    for (start, value) in runs {
        let leaf = *leaves.entry(value).or_insert_with(|| {
            let leaf = evaluator.new_block();
            let constant = evaluator.constant(value, leaf);
            evaluator.emit(leaf, Op::Jump {}, &[], &[BlockCall::with(on, [constant])], Type::Any);
            leaf
        });
        all.push(DecisionInterval { start, heat: 0, target: leaf });
    }
    let size = if index.width == Width::W64 { Size::Dw } else { Size::W };
    decision_tree::intervals(evaluator, (index.value, size), &all, at.out);
    Some((AbstractValue::Val(result), BlockContinuation::On(on)))
}

/// The index that an offset is computed from, if it is masked: then its range is known.
fn index(evaluator: &PartialEvaluator<'_>, by: Value) -> Option<ScaledIndex> {
    let constant = |value: Value| evaluator.out.as_const(value).and_then(|c| u64::try_from(c).ok());
    let operands = |value: Value, wanted: AluOp| {
        let inst = &evaluator.out.insts[evaluator.out.def_inst(value)?];
        let Op::Alu { op, width } = inst.op else { return None };
        (op == wanted).then_some((inst.args[0], constant(inst.args[1])?, width))
    };
    let (value, shift) = match operands(by, AluOp::Lsh) {
        Some((value, shift, Width::W64)) => (value, u32::try_from(shift).ok()?),
        Some(_) => return None,
        None => (by, 0),
    };
    let (_, mask, width) = operands(value, AluOp::And)?;
    let step = 1 << mask.trailing_zeros().min(63);
    let elements = mask / step + 1;
    let fits = mask != 0 && elements.is_power_of_two() && elements <= ELEMENTS && mask <= 0xffff;
    (fits && shift <= 16).then_some(ScaledIndex { value, width, last: mask, step, shift })
}

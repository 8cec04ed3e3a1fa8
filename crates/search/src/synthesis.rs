//! Counterexample-guided synthesis: sketches whose operations, operands and constants a solver finds.
//!
//! A solver is asked for a completion that agrees with the window on a few of its tests. The completion is
//! checked like every candidate; the test that it fails, or the counterexample of its proof, is the next
//! example, until the solver finds no completion, or a candidate is proven. So constants are found that are
//! not in the window and do not follow from two of its own: masks, shift counts, the combined value of
//! several stores.
//!
//! Sketches are for straight windows that compute one register, or store constants.

use std::collections::BTreeSet;
use std::time::Instant;

use millstream_isa::absint::Scalar;
use millstream_isa::{AluOp, Insn, Operand, Pseudo, Reg, Size, Width};
use millstream_prove::window::{
    AddressSpace, EntryFact, InitialValues, InsnSketch, SketchCompletion, SketchLine, WindowStep,
};

use crate::candidate::{CandidateChecker, CandidateResult};
use crate::facts::RegisterKind;
use crate::pool::{CandidatePool, MemorySlot, free, shift};
use crate::rules::{imm, with_imm};
use crate::verifier_rules::{named, written};
use crate::window::InsnWindow;

/// Tests that are examples from the beginning.
const FIRST: usize = 3;
/// Most questions about one sketch.
const MOST_QUESTIONS: usize = 12;
/// Most lines of a sketch.
const MOST_LINES: usize = 3;
/// Most registers and places in memory that a sketch may read: with these a line has fewer than 64
/// alternatives.
const MOST_SOURCES: usize = 3;
const MOST_LOADS: usize = 8;

/// Looks for a better sequence with the solver's help.
pub(crate) fn synthesize(t: &mut CandidateChecker<'_>, pool: &CandidatePool, deadline: Instant) {
    let sketches = sketches(t.window, pool);
    if sketches.is_empty() || !t.begin_synthesis() {
        return;
    }
    let tests = t.suite.tests.iter().take(FIRST);
    let Some(mut examples) = tests.map(|(test, _)| test.valuation(t.window)).collect() else { return };
    for sketch in sketches {
        // If the solver cannot decide a sketch, it cannot decide longer ones.
        match complete(t, &sketch, &mut examples, deadline) {
            Ok(CandidateResult::Best) => return,
            Ok(_) => {}
            Err(why) => return tracing::trace!("no sketch: {why}"),
        }
    }
}

/// Completes a sketch, with one more example after each wrong completion.
fn complete(
    t: &mut CandidateChecker<'_>,
    sketch: &InsnSketch,
    examples: &mut Vec<InitialValues>,
    deadline: Instant,
) -> Result<CandidateResult, String> {
    for _ in 0..MOST_QUESTIONS {
        if Instant::now() >= deadline {
            return Err("no time left".into());
        }
        let Some(steps) = t.complete(sketch, examples)?.and_then(|c| filled(sketch, &c)) else { break };
        if t.consider(&steps) == CandidateResult::Best {
            return Ok(CandidateResult::Best);
        }
        // A refuted completion has added the test that it fails; one that fails no test was refused for
        // another reason.
        let failed = t.suite.failed(t.window, &steps, &mut t.machine);
        let Some(next) = failed.and_then(|n| t.suite.tests[n].0.valuation(t.window)) else { break };
        examples.push(next);
    }
    Ok(CandidateResult::Wrong)
}

/// The instructions of a completed sketch, with constants in place of the registers that stood for them.
fn filled(sketch: &InsnSketch, done: &SketchCompletion) -> Option<Vec<WindowStep>> {
    let constant = |o: Operand| {
        let Operand::Reg(r) = o else { return None };
        let at = sketch.constants.iter().position(|c| c.0 == r)?;
        done.constants.get(at).copied()
    };
    let fill = |insn: &Insn| {
        let (src, most) = match *insn {
            Insn::Alu { op, src, width, .. } if shift(op) => (src, u64::from(width.bits()) - 1),
            Insn::Alu { src, .. } | Insn::Mov { src, .. } | Insn::Store { src, .. } => (src, u64::MAX),
            _ => return Some(*insn),
        };
        let Some(value) = constant(src) else { return Some(*insn) };
        match (with_imm(*insn, value & most), *insn) {
            (None, Insn::Mov { dst, .. }) => {
                Some(Insn::LoadImm64 { dst, pseudo: Pseudo::None, imm: value, off: 0 })
            }
            (with, _) => with,
        }
    };
    done.lines.iter().map(|insn| fill(insn).map(WindowStep::Do)).collect()
}

/// The sketches for a window, the shortest first.
fn sketches(window: &InsnWindow, pool: &CandidatePool) -> Vec<InsnSketch> {
    let insns: Vec<Insn> = window.steps.iter().filter_map(free).collect();
    let constants = insns.iter().filter(|i| imm(i).is_some()).count();
    // A window with fewer than two constants has none that could become one.
    if insns.len() < window.steps.len() || constants < 2 || !window.place.entry.spills.is_empty() {
        return Vec::new();
    }
    let results: Vec<Reg> = insns
        .iter()
        .filter_map(|i| written(*i))
        .collect::<BTreeSet<Reg>>()
        .into_iter()
        .filter(|r| window.place.end.regs[r.index()] != 0)
        .collect();
    let stores = window.accesses.iter().any(|a| a.3);
    match (results.as_slice(), stores) {
        ([result], false) => computing(window, pool, *result, &insns),
        ([], true) => storing(window, pool, &insns),
        _ => Vec::new(),
    }
}

/// Registers that are neither in the window nor in `others`: they stand for constants.
fn spare(insns: &[Insn], others: &[Reg]) -> impl Iterator<Item = Reg> {
    let mut taken: BTreeSet<Reg> = others.iter().copied().collect();
    taken.extend(insns.iter().flat_map(|i| named(*i).into_iter().chain(written(*i))));
    (0..10).rev().filter_map(Reg::new).filter(move |r| !taken.contains(r))
}

/// Sketches that compute a register: they start with an available value and apply operations to it.
fn computing(window: &InsnWindow, pool: &CandidatePool, result: Reg, insns: &[Insn]) -> Vec<InsnSketch> {
    let mentioned: BTreeSet<Reg> = insns.iter().flat_map(|i| named(*i)).collect();
    let number = |r: &Reg| matches!(window.place.entry.regs[r.index()], EntryFact::Number(..));
    let sources: Vec<Reg> = mentioned.iter().copied().filter(number).take(MOST_SOURCES).collect();
    let loads = pool.loads.iter().filter(|s| mentioned.contains(&s.base));
    let loads: Vec<MemorySlot> = loads.copied().take(MOST_LOADS).collect();
    let homes: Vec<Reg> = spare(insns, &[]).take(MOST_LINES).collect();
    // All lines but the last compute `on_the_way`.
    let sketch = |count: usize, on_the_way: Reg| -> Option<InsnSketch> {
        let mut sketch = InsnSketch::default();
        for n in 0..count {
            let (home, last) = (*homes.get(n)?, n + 1 == count);
            let dst = if last { result } else { on_the_way };
            let mut of = Vec::new();
            if n == 0 {
                of.extend(begins(dst, &sources, &loads));
            }
            if n > 0 && dst == on_the_way || sources.contains(&dst) {
                of.extend(operations(dst, home, &sources, insns, pool));
            }
            if n > 0 && dst != on_the_way {
                of.extend(onto(dst, on_the_way));
            }
            sketch.constants.push((home, short()));
            sketch.lines.push(SketchLine::OneOf(dst, of));
        }
        Some(sketch)
    };
    let most = MOST_LINES.min(insns.len() - 1);
    let mut out: Vec<InsnSketch> = (1..=most).filter_map(|count| sketch(count, result)).collect();
    let other = insns.iter().filter_map(|i| written(*i)).find(|r| *r != result);
    if let Some(other) = other.filter(|_| most == MOST_LINES && sources.contains(&result)) {
        out.extend(sketch(most, other));
    }
    out
}

/// Instructions that may begin a sketch.
fn begins(dst: Reg, sources: &[Reg], loads: &[MemorySlot]) -> Vec<Insn> {
    let moves = sources
        .iter()
        .filter(|r| **r != dst)
        .flat_map(|r| [Width::W64, Width::W32].map(|width| Insn::Mov { width, dst, src: Operand::Reg(*r) }));
    let loads = loads.iter().map(|s| Insn::Load { size: s.size, sext: false, dst, src: s.base, off: s.off });
    moves.chain(loads).collect()
}

/// Operations on a register: with a constant, with itself or others, unary ones; those of the window, and
/// those that may replace them.
fn operations(dst: Reg, constant: Reg, sources: &[Reg], insns: &[Insn], pool: &CandidatePool) -> Vec<Insn> {
    let does = |of: &[AluOp]| insns.iter().any(|i| matches!(i, Insn::Alu { op, .. } if of.contains(op)));
    let moves_bits = does(&[AluOp::And, AluOp::Lsh, AluOp::Rsh, AluOp::Arsh]) || !pool.swaps.is_empty();
    let mut ops = vec![AluOp::And];
    ops.extend([AluOp::Lsh, AluOp::Rsh].into_iter().filter(|_| moves_bits || does(&[AluOp::Mul])));
    ops.extend([AluOp::Add].into_iter().filter(|_| does(&[AluOp::Add, AluOp::Sub])));
    let rare = [AluOp::Mul, AluOp::Or, AluOp::Xor, AluOp::Arsh];
    ops.extend(rare.into_iter().filter(|op| does(&[*op])));
    let wide = |w: Width| move |i: &Insn| matches!(i, Insn::Alu { width, .. } if *width == w);
    let mut out = Vec::new();
    for width in [Width::W64, Width::W32].into_iter().filter(|w| insns.iter().any(wide(*w))) {
        out.push(Insn::Mov { width, dst, src: Operand::Reg(constant) });
        out.extend(ops.iter().map(|op| Insn::Alu { width, op: *op, dst, src: Operand::Reg(constant) }));
    }
    if insns.iter().any(|i| matches!(i, Insn::Alu { src: Operand::Reg(_), .. })) {
        let others = sources.iter().copied().filter(|r| *r != dst).chain([dst]);
        out.extend(others.flat_map(|r| onto(dst, r)));
    }
    out.extend(pool.swaps.iter().map(|&(kind, bits)| Insn::Swap { kind, bits, dst }));
    out
}

/// Operations that combine one register into another.
fn onto(dst: Reg, src: Reg) -> impl Iterator<Item = Insn> {
    let ops = [AluOp::Add, AluOp::Sub, AluOp::And, AluOp::Or, AluOp::Xor];
    ops.into_iter().map(move |op| Insn::Alu { width: Width::W64, op, dst, src: Operand::Reg(src) })
}

/// Sketches that store constants to all bytes that a window stores to: in as few stores as possible, and a
/// single one of eight bytes through a register.
fn storing(window: &InsnWindow, pool: &CandidatePool, insns: &[Insn]) -> Vec<InsnSketch> {
    let slots = cover(window, pool);
    if slots.is_empty() || slots.len() > MOST_LINES || slots.len() >= insns.len() {
        return Vec::new();
    }
    let homes: Vec<Reg> = spare(insns, &pool.targets).take(slots.len()).collect();
    if homes.len() < slots.len() {
        return Vec::new();
    }
    let store = |s: &MemorySlot, r: Reg| {
        SketchLine::Only(Insn::Store { size: s.size, dst: s.base, off: s.off, src: Operand::Reg(r) })
    };
    let direct = InsnSketch {
        lines: slots.iter().zip(&homes).map(|(s, home)| store(s, *home)).collect(),
        constants: slots.iter().zip(&homes).map(|(s, home)| (*home, storable(s.size))).collect(),
    };
    let mut out = vec![direct];
    let scratch = pool.targets.iter().find(|r| window.live(r.index()) == 0);
    if let ([slot], Some(&dst)) = (slots.as_slice(), scratch)
        && slot.size == Size::Dw
    {
        let load = Insn::Mov { width: Width::W64, dst, src: Operand::Reg(homes[0]) };
        out.push(InsnSketch {
            lines: vec![SketchLine::Only(load), store(slot, dst)],
            constants: vec![(homes[0], Scalar::UNKNOWN)],
        });
    }
    out
}

/// Constants that a store of this size may have.
fn storable(size: Size) -> Scalar {
    match size {
        Size::B | Size::H => Scalar::of_width(size.bits()),
        Size::W | Size::Dw => short(),
    }
}

/// Constants that fit into instructions.
fn short() -> Scalar {
    Scalar::signed_range(i64::from(i32::MIN), i64::from(i32::MAX))
}

/// Stores to all bytes that a window writes, each as large as possible; none if that is impossible.
fn cover(window: &InsnWindow, pool: &CandidatePool) -> Vec<MemorySlot> {
    let mut out = Vec::new();
    for (space, id, bytes, _) in window.accesses.iter().filter(|a| a.3) {
        let here = |s: &&MemorySlot| {
            let fact = window.state.get(s.base);
            let at = if let RegisterKind::Address(own, at) = fact.kind {
                (own == *space).then_some(at)
            } else {
                None
            };
            at.filter(|_| fact.id == *id || *space == AddressSpace::Stack)
        };
        let mut left = bytes.clone();
        while let Some(&first) = left.iter().next() {
            let fits = |s: &&MemorySlot| {
                here(s).is_some_and(|at| at + i64::from(s.off) == first)
                    && (first..first + i64::from(s.size.bytes())).all(|b| left.contains(&b))
            };
            let Some(slot) = pool.stores.iter().filter(fits).max_by_key(|s| s.size.bytes()) else {
                return Vec::new();
            };
            (first..first + i64::from(slot.size.bytes())).for_each(|b| {
                left.remove(&b);
            });
            out.push(*slot);
        }
    }
    out
}

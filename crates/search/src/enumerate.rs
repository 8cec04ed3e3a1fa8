//! Enumeration: the neighbourhood of a window, and all short sequences.
//!
//! [`search_neighbourhood`] deletes one or two instructions and changes one other in every way, repeatedly
//! while that finds something: windows of any length, exits included. [`enumerate_short`] builds sequences of
//! up to three instructions from the left, on all tests at once; two that leave the same state on all tests
//! count as one, and the last instruction is chosen by the remaining differences.

use std::hash::{Hash, Hasher};
use std::time::Instant;

use millstream_isa::{AluOp, Cond, Insn, Operand, Reg, Size, Width};
use millstream_prove::window::WindowStep;
use rustc_hash::{FxHashSet, FxHasher};

use crate::candidate::{CandidateChecker, CandidateResult};
use crate::machine::WindowMachine;
use crate::pool::{CandidatePool, free, shift};
use crate::verifier_rules::written;

/// Most instructions for which sequences of three are enumerated.
const MOST_FOR_THREE: usize = 420;
/// Most sequences of two that are extended by a third.
const MOST_PAIRS: usize = 60_000;

/// Deletes and changes instructions while that makes the window better.
pub(crate) fn search_neighbourhood(t: &mut CandidateChecker<'_>, pool: &CandidatePool, deadline: Instant) {
    let mut now = t.window.steps.clone();
    for _ in 0..8 {
        if Instant::now() >= deadline || !round(t, pool, &now, deadline) {
            return;
        }
        if let Some((_, best)) = &t.best {
            now.clone_from(best);
        }
    }
}

/// One round; returns true if it found something.
fn round(t: &mut CandidateChecker<'_>, pool: &CandidatePool, now: &[WindowStep], deadline: Instant) -> bool {
    let places: Vec<usize> = (0..now.len()).filter(|&n| free(&now[n]).is_some()).collect();
    let mut without: Vec<Vec<WindowStep>> = Vec::new();
    for (n, &i) in places.iter().enumerate() {
        without.push(left_out(now, &[i]));
        without.extend(places[n + 1..].iter().map(|&j| left_out(now, &[i, j])));
    }
    let found =
        |t: &mut CandidateChecker<'_>, steps: &[WindowStep]| t.consider(steps) == CandidateResult::Best;
    if without.iter().rev().any(|steps| found(t, steps)) {
        return true;
    }
    let changed = |steps: &[WindowStep], n: usize| -> Vec<WindowStep> { changes(steps[n], pool) };
    without.push(now.to_vec());
    for steps in without.iter().rev() {
        if Instant::now() >= deadline {
            return false;
        }
        for n in 0..steps.len() {
            let mut candidate = steps.clone();
            for step in changed(steps, n) {
                candidate[n] = step;
                if found(t, &candidate) {
                    return true;
                }
            }
            if n + 1 < steps.len() && free(&steps[n]).is_some() && free(&steps[n + 1]).is_some() {
                candidate[n] = steps[n + 1];
                candidate[n + 1] = steps[n];
                if found(t, &candidate) {
                    return true;
                }
            }
        }
    }
    false
}

fn left_out(steps: &[WindowStep], out: &[usize]) -> Vec<WindowStep> {
    steps.iter().enumerate().filter(|(n, _)| !out.contains(n)).map(|(_, s)| *s).collect()
}

/// Small changes of one instruction: its operands, its width, its operation, its size.
pub(crate) fn changes(step: WindowStep, pool: &CandidatePool) -> Vec<WindowStep> {
    let mut out = Vec::new();
    let sources = || pool.sources.iter().map(|r| Operand::Reg(*r));
    let any = || sources().chain(pool.constants.iter().map(|k| Operand::Imm(*k)));
    match step {
        WindowStep::Exit(n, Insn::Branch { width, cond, dst, src, off }) => {
            let mut push = |width, cond, dst, src| {
                out.push(WindowStep::Exit(n, Insn::Branch { width, cond, dst, src, off }))
            };
            pool.sources.iter().for_each(|&r| push(width, cond, r, src));
            if matches!(src, Operand::Reg(_)) {
                any().for_each(|o| push(width, cond, dst, o));
            }
            // The estimate of how often registers are equal or in order depends on the width of the
            // comparison: the width stays.
            if let Operand::Imm(k) = src {
                let widths = [Width::W64, Width::W32].into_iter().filter(|w| *w == width || pool.narrow);
                widths.for_each(|width| bounds(cond, k, |cond, k| push(width, cond, dst, Operand::Imm(k))));
            }
        }
        WindowStep::Do(insn) => changed(insn, pool, any, &mut |i| out.push(WindowStep::Do(i))),
        _ => {}
    }
    out.retain(|s| *s != step);
    out
}

/// Equivalent forms of a comparison with a constant.
fn bounds(cond: Cond, k: i32, mut push: impl FnMut(Cond, i32)) {
    push(cond, k);
    let (other, by) = match cond {
        Cond::Gt => (Cond::Ge, 1),
        Cond::Le => (Cond::Lt, 1),
        Cond::Ge => (Cond::Gt, -1),
        Cond::Lt => (Cond::Le, -1),
        _ => return,
    };
    push(other, k.wrapping_add(by));
}

fn changed<I: Iterator<Item = Operand>>(
    insn: Insn,
    pool: &CandidatePool,
    any: impl Fn() -> I,
    push: &mut dyn FnMut(Insn),
) {
    match insn {
        Insn::Alu { width, op, dst, src } => {
            changed_alu((width, op, dst, src), pool, &any, push);
            pool.targets.iter().for_each(|&dst| push(Insn::Alu { width, op, dst, src }));
            any().for_each(|src| push(Insn::Mov { width: Width::W64, dst, src }));
            any().for_each(|src| push(Insn::Mov { width: Width::W32, dst, src }));
        }
        Insn::Mov { dst, src, .. } => {
            for width in [Width::W64, Width::W32] {
                any().for_each(|src| push(Insn::Mov { width, dst, src }));
                pool.targets.iter().for_each(|&dst| push(Insn::Mov { width, dst, src }));
            }
            let load = |s: &crate::pool::MemorySlot| Insn::Load {
                size: s.size,
                sext: false,
                dst,
                src: s.base,
                off: s.off,
            };
            pool.loads.iter().map(load).for_each(push);
        }
        Insn::Load { size, dst, src, off, .. } => {
            for s in &pool.loads {
                push(Insn::Load { size: s.size, sext: false, dst, src: s.base, off: s.off });
            }
            if pool.extensions {
                push(Insn::Load { size, sext: true, dst, src, off });
            }
            pool.targets.iter().for_each(|&dst| push(Insn::Load { size, sext: false, dst, src, off }));
        }
        Insn::Store { src, .. } => {
            for s in &pool.stores {
                push(Insn::Store { size: s.size, dst: s.base, off: s.off, src });
            }
            let Insn::Store { size, dst, off, .. } = insn else { return };
            any().for_each(|src| push(Insn::Store { size, dst, off, src }));
            if matches!(size, Size::W | Size::Dw) {
                let here = pool.sums.iter().filter(|s| (s.base, s.off, s.size) == (dst, off, size));
                here.for_each(|s| pool.sources.iter().for_each(|r| push(pool.sum(*s, *r))));
            }
        }
        Insn::Swap { dst, .. } => {
            pool.swaps.iter().for_each(|&(kind, bits)| push(Insn::Swap { kind, bits, dst }));
        }
        _ => {}
    }
}

/// The operation with another width, operand or kind.
fn changed_alu<I: Iterator<Item = Operand>>(
    (width, op, dst, src): (Width, AluOp, Reg, Operand),
    pool: &CandidatePool,
    any: &impl Fn() -> I,
    push: &mut dyn FnMut(Insn),
) {
    for w in [Width::W64, Width::W32] {
        push(Insn::Alu { width: w, op, dst, src });
        if shift(op) {
            let fit = pool.counts.iter().filter(|k| **k < w.bits() as i32);
            fit.for_each(|k| push(Insn::Alu { width: w, op, dst, src: Operand::Imm(*k) }));
        } else {
            any().for_each(|src| push(Insn::Alu { width: w, op, dst, src }));
        }
    }
    for &op in &pool.binary {
        if !shift(op) || matches!(src, Operand::Imm(k) if (0..width.bits() as i32).contains(&k)) {
            push(Insn::Alu { width, op, dst, src });
        }
    }
}

/// A partial sequence, and the machines of all tests after it.
struct PartialSequence {
    steps: Vec<WindowStep>,
    machines: Vec<WindowMachine>,
    /// The registers with wrong values, and true if memory is wrong.
    wrong: u16,
    memory: bool,
}

/// Enumerates all sequences of at most `most` instructions, for windows without exits.
pub(crate) fn enumerate_short(
    t: &mut CandidateChecker<'_>,
    pool: &CandidatePool,
    most: usize,
    deadline: Instant,
) {
    if !t.window.place.exits.is_empty() || t.window.steps.iter().any(|s| free(s).is_none()) {
        return;
    }
    if t.consider(&[]) == CandidateResult::Best {
        return;
    }
    let insns = pool.instructions(&pool.targets);
    let mut level = vec![begin(t)];
    let mut seen: FxHashSet<u64> = level.iter().map(print).collect();
    for depth in 1..=most {
        let left = most - depth;
        let mut next = Vec::new();
        if depth > 2 && insns.len() > MOST_FOR_THREE {
            return;
        }
        for b in &level {
            if Instant::now() >= deadline {
                return;
            }
            if b.wrong.count_ones() as usize + usize::from(b.memory) > left + 1 {
                continue;
            }
            for &insn in &insns {
                // The last one has to correct all differences.
                if left == 0 && !mends(insn, b) {
                    continue;
                }
                if let Some(new) = extend(t, b, insn, left) {
                    let right = new.wrong == 0 && !new.memory;
                    if right && t.consider(&new.steps) == CandidateResult::Best {
                        return;
                    }
                    if left > 0 && next.len() < MOST_PAIRS && seen.insert(print(&new)) {
                        next.push(new);
                    }
                }
            }
        }
        level = next;
    }
}

fn mends(insn: Insn, b: &PartialSequence) -> bool {
    match written(insn) {
        Some(r) => b.wrong == 1 << r.index() && !b.memory,
        None => b.wrong == 0 && b.memory,
    }
}

fn begin(t: &CandidateChecker<'_>) -> PartialSequence {
    let machines = t.suite.tests.iter().take(8).map(|(test, _)| {
        let mut m = WindowMachine::default();
        m.start(test);
        m
    });
    let mut begun =
        PartialSequence { steps: Vec::new(), machines: machines.collect(), wrong: 0, memory: false };
    look(t, &mut begun);
    begun
}

/// Updates the differences after the steps so far.
fn look(t: &CandidateChecker<'_>, b: &mut PartialSequence) {
    let live = &t.window.place.end;
    (b.wrong, b.memory) = (0, false);
    for (m, (_, want)) in b.machines.iter().zip(&t.suite.tests) {
        let (regs, memory) = m.wrong(live, &want[want.len() - 1]);
        b.wrong |= regs;
        b.memory |= memory;
    }
}

fn extend(t: &CandidateChecker<'_>, b: &PartialSequence, insn: Insn, left: usize) -> Option<PartialSequence> {
    // Undefined registers are not read.
    let undefined = |r: &Reg| {
        t.window.place.entry.regs[r.index()] == millstream_prove::window::EntryFact::Nothing
            && !b.steps.iter().any(|s| matches!(s, WindowStep::Do(i) if written(*i) == Some(*r)))
    };
    if crate::verifier_rules::named(insn).iter().any(undefined) {
        return None;
    }
    let step = WindowStep::Do(insn);
    let mut new = PartialSequence { steps: Vec::new(), machines: Vec::new(), wrong: 0, memory: false };
    let live = &t.window.place.end;
    for (m, (_, want)) in b.machines.iter().zip(&t.suite.tests) {
        let mut m = m.clone();
        m.step(&step);
        let (regs, memory) = m.wrong(live, &want[want.len() - 1]);
        new.wrong |= regs;
        new.memory |= memory;
        if new.wrong.count_ones() as usize + usize::from(new.memory) > left {
            return None;
        }
        new.machines.push(m);
    }
    new.steps.clone_from(&b.steps);
    new.steps.push(step);
    Some(new)
}

/// Fingerprint of the states that a sequence leaves on all tests.
fn print(b: &PartialSequence) -> u64 {
    let mut h = FxHasher::default();
    for m in &b.machines {
        m.print(&mut h);
    }
    let defined: u16 =
        b.steps.iter().filter_map(|s| free(s).and_then(written)).fold(0, |d, r| d | 1 << r.index());
    defined.hash(&mut h);
    h.finish()
}

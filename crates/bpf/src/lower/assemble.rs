//! Blocks in their order to bytecode: jumps, relocations, source lines.

use millstream_ir::{Cond, Function, Width};
use millstream_isa::{Insn, Operand, Reg};

use super::code::{Code, Src, Term};
use super::{LowerError, Lowered};

/// What ends a block in its place: instructions with the block they jump to.
#[derive(Clone, Copy, Debug)]
pub(super) enum Ending {
    Exit,
    Goto(usize),
    If { cond: Cond, width: Width, dst: Reg, src: Src, to: usize },
    May(usize),
}

#[inline]
pub(super) fn endings(term: Term, next: Option<usize>, far: bool) -> [Option<Ending>; 3] {
    let goto = |t: usize| (Some(t) != next).then_some(Ending::Goto(t));
    match term {
        Term::Return => [Some(Ending::Exit), None, None],
        Term::Jump(t) => [goto(t), None, None],
        Term::MayGoto { taken, fall } => [Some(Ending::May(taken)), goto(fall), None],
        Term::Branch { cond, width, dst, src, taken, fall } => {
            let branch = |cond, to| Some(Ending::If { cond, width, dst, src, to });
            match (cond.negated(), far) {
                // Over a long jump: the near side is the one that is skipped to.
                (_, true) => [branch(cond, taken), Some(Ending::Goto(fall)), Some(Ending::Goto(taken))],
                (Some(not), false) if Some(taken) == next => [branch(not, fall), None, None],
                _ => [branch(cond, taken), goto(fall), None],
            }
        }
    }
}

fn ending_slots(term: Term, next: Option<usize>, far: bool) -> i64 {
    endings(term, next, far).iter().flatten().count() as i64
}

/// Where each block starts, in slots, and whose branch is so far that it must go over a long jump.
fn places(blocks: &[Code], order: &[usize]) -> (Vec<i64>, Vec<bool>) {
    let body_slots: Vec<i64> =
        blocks.iter().map(|b| b.body.iter().map(|e| e.insn.slots() as i64).sum()).collect();
    let mut far = vec![false; blocks.len()];
    let mut start = vec![0i64; blocks.len()];
    loop {
        let mut at = 0;
        for (i, &b) in order.iter().enumerate() {
            start[b] = at;
            at += body_slots[b] + ending_slots(blocks[b].term, order.get(i + 1).copied(), far[b]);
        }
        let mut changed = false;
        for (i, &b) in order.iter().enumerate() {
            let Term::Branch { taken, fall, .. } = blocks[b].term else { continue };
            let from = start[b] + body_slots[b] + 1;
            let next = order.get(i + 1).copied();
            let reach = |t: usize| i16::try_from(start[t] - from).is_ok();
            let near = if Some(taken) == next { reach(fall) } else { reach(taken) };
            if !far[b] && !near {
                far[b] = true;
                changed = true;
            }
        }
        if !changed {
            return (start, far);
        }
    }
}

/// The bytecode of blocks in a given order.
pub(super) fn assemble(func: &Function, blocks: &[Code], order: &[usize]) -> Result<Lowered, LowerError> {
    let (start, far) = places(blocks, order);
    let mut out = Lowered::default();
    let mut at = 0u32;
    let mut line = Lines { first: blocks.iter().find_map(first_loc), last: u32::MAX };
    for (i, &b) in order.iter().enumerate() {
        for e in &blocks[b].body {
            line.note(&mut out, at, e.loc);
            out.syms.extend(e.sym.map(|s| (at, s)));
            out.cores.extend(e.core.map(|c| (at, c)));
            out.insns.push(e.insn);
            at += e.insn.slots() as u32;
        }
        let ends = endings(blocks[b].term, order.get(i + 1).copied(), far[b]);
        for (n, end) in ends.iter().flatten().enumerate() {
            line.note(&mut out, at, blocks[b].loc);
            let off = |t: usize| start[t] - i64::from(at) - 1;
            let skip = far[b] && n == 0;
            out.insns.push(jump(*end, &off, skip, func)?);
            at += 1;
        }
    }
    Ok(out)
}

fn jump(end: Ending, off: &dyn Fn(usize) -> i64, skip: bool, func: &Function) -> Result<Insn, LowerError> {
    let too_far = || LowerError::TooFar { function: func.name.clone() };
    let short = |to: usize| i16::try_from(off(to)).map_err(|_| too_far());
    Ok(match end {
        Ending::Exit => Insn::Exit,
        Ending::Goto(t) => {
            let off = i32::try_from(off(t)).map_err(|_| too_far())?;
            Insn::Jump { off, long: i16::try_from(off).is_err() }
        }
        Ending::May(t) => Insn::MayGoto { off: short(t)? },
        Ending::If { cond, width, dst, src, to } => {
            let src = match src {
                Src::Reg(r) => Operand::Reg(r),
                Src::Imm(i) => Operand::Imm(i),
            };
            let off = if skip { 1 } else { short(to)? };
            Insn::Branch { width, cond, dst, src, off }
        }
    })
}

fn first_loc(code: &Code) -> Option<u32> {
    code.body.iter().map(|e| e.loc).chain([code.loc]).find(|&l| l != u32::MAX)
}

/// Source lines: a record wherever the line changes, and at the first instruction.
struct Lines {
    first: Option<u32>,
    last: u32,
}

impl Lines {
    fn note(&mut self, out: &mut Lowered, at: u32, loc: u32) {
        let loc = if loc == u32::MAX { self.first.take().unwrap_or(self.last) } else { loc };
        self.first = None;
        if loc != self.last {
            out.lines.push((at, loc));
            self.last = loc;
        }
    }
}

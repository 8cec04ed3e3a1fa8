//! Windows: their places, the facts before them and the live values after them.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use millstream_isa::absint::Scalar;
use millstream_isa::{Insn, Pseudo, Reg};
use millstream_prove::window::{AddressSpace, EntryFact, LiveOut, WindowContext, WindowEntry, WindowStep};

use crate::code::{CodeLine, FunctionCode};
use crate::facts::{AbstractState, FRAME, FunctionContext, RegisterKind, StackCell};
use crate::liveness::LiveValues;
use crate::transfer;

/// A function with the analyses that a search needs.
pub(crate) struct FunctionAnalysis<'a> {
    pub(crate) code: &'a FunctionCode,
    pub(crate) world: &'a Arc<FunctionContext>,
    pub(crate) facts: &'a [Option<AbstractState>],
    pub(crate) looked: &'a [Vec<LiveValues>],
}

/// Location of a window: lines of a chain of blocks, each with the one before as its only predecessor.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) struct WindowSpan {
    pub(crate) block: usize,
    pub(crate) line: usize,
    pub(crate) count: usize,
    /// True if the window must have exactly that many lines; otherwise it ends where it must.
    pub(crate) exact: bool,
}

/// A window.
#[derive(Clone, Debug)]
pub(crate) struct InsnWindow {
    pub(crate) span: WindowSpan,
    pub(crate) lines: Vec<CodeLine>,
    pub(crate) steps: Vec<WindowStep>,
    pub(crate) place: WindowContext,
    pub(crate) state: AbstractState,
    /// Bytes that it reads and writes.
    pub(crate) accesses: Vec<WindowAccess>,
    /// Bytes of the stack that it writes.
    pub(crate) writes: BTreeSet<i16>,
    pub(crate) world: Arc<FunctionContext>,
}

/// The lines from a place on, along the chain, with the block of each.
pub(crate) fn chain(code: &FunctionCode, block: usize, line: usize, most: usize) -> Vec<(usize, usize)> {
    let mut out = Vec::new();
    let (mut b, mut i) = (block, line);
    while out.len() < most {
        if i < code.blocks[b].lines.len() {
            out.push((b, i));
            i += 1;
            continue;
        }
        let next = b + 1;
        let goes_on = next < code.blocks.len()
            && code.blocks[b].falls_through()
            && code.blocks[next].before.len() == 1
            // A branch to the next block counts as two edges.
            && code.blocks[b].lines.last().is_none_or(|l| l.target != Some(next));
        if !goes_on {
            break;
        }
        (b, i) = (next, 0);
    }
    out
}

/// Returns true if a line may be in a window: `s` is the state before it.
fn admitted(line: &CodeLine, s: &AbstractState) -> bool {
    let address = |r: Reg| matches!(s.get(r).kind, RegisterKind::Address(..));
    let on_stack = |r: Reg| matches!(s.get(r).kind, RegisterKind::Address(AddressSpace::Stack, _));
    if line.core.is_some() {
        return false;
    }
    match line.insn {
        Insn::Alu { .. } | Insn::Mov { .. } | Insn::MovSx { .. } | Insn::Neg { .. } | Insn::Swap { .. } => {
            true
        }
        Insn::LoadImm64 { .. } => true,
        Insn::Load { src, .. } => address(src),
        Insn::Store { dst, .. } => address(dst),
        // Atomic operations on the stack matter only to the verifier.
        Insn::Atomic { fetch: false, dst, .. } => address(dst) && !on_stack(dst),
        Insn::Branch { .. } => true,
        _ => false,
    }
}

/// The window at a place, if there is one. If the block has become shorter since, so that the place lies
/// behind its end, the window begins further along the chain, and its own span says so.
pub(crate) fn cut(f: &FunctionAnalysis<'_>, span: WindowSpan) -> Option<InsnWindow> {
    let mut places = chain(f.code, span.block, span.line, span.count);
    let &(block, line) = places.first()?;
    let first = state_at(f, block, line)?;
    let admitted = admitted_lines(f, &places, &first);
    if span.exact && admitted < span.count {
        return None;
    }
    places.truncate(admitted);
    let span = WindowSpan { block, line, count: admitted, exact: true };
    let &(last, at) = places.last()?;
    let (mut lines, mut steps, mut exits) = (Vec::new(), Vec::new(), Vec::new());
    let mut opaque = 0;
    for &(b, i) in &places {
        let line = f.code.blocks[b].lines[i];
        let step = match line.insn {
            Insn::Branch { .. } => {
                exits.push(f.looked[line.target?].first()?.live());
                WindowStep::Exit(exits.len() as u32 - 1, line.insn)
            }
            Insn::LoadImm64 { pseudo, .. } if line.reloc.is_some() || pseudo != Pseudo::None => {
                opaque += 1;
                WindowStep::Opaque(opaque - 1, line.insn)
            }
            insn => WindowStep::Do(insn),
        };
        lines.push(line);
        steps.push(step);
    }
    // After a branch that ends the window only the fall-through successor follows.
    let behind = match steps.last() {
        Some(WindowStep::Exit(..)) => f.looked.get(last + 1)?.first()?,
        _ => f.looked[last].get(at + 1)?,
    };
    let mut end = behind.live();
    let accesses = accesses(&first, &lines, f.world);
    let (touched, writes) = (on_stack(&accesses, false), on_stack(&accesses, true));
    for live in exits.iter_mut().chain([&mut end]) {
        live.stack.retain(|at| touched.contains(at));
        live.regs[10] = 0;
    }
    let entry = entry(&first, &touched);
    let place = WindowContext { entry, exits, end };
    Some(InsnWindow { span, lines, steps, place, state: first, accesses, writes, world: f.world.clone() })
}

/// The state before a line.
fn state_at(f: &FunctionAnalysis<'_>, block: usize, line: usize) -> Option<AbstractState> {
    let mut state = f.facts[block].clone()?;
    let b = &f.code.blocks[block];
    for (i, l) in b.lines.iter().enumerate().take(line) {
        transfer::step(&mut state, l, f.world, b.first + i as u32);
    }
    Some(state)
}

/// Number of lines from the first on that may be in a window.
fn admitted_lines(f: &FunctionAnalysis<'_>, places: &[(usize, usize)], first: &AbstractState) -> usize {
    let mut state = first.clone();
    let mut count = 0;
    for (n, &(b, i)) in places.iter().enumerate() {
        if i == 0 && n > 0 {
            let Some(s) = &f.facts[b] else { break };
            state.clone_from(s);
        }
        let line = &f.code.blocks[b].lines[i];
        if !admitted(line, &state) {
            break;
        }
        transfer::step(&mut state, line, f.world, f.code.blocks[b].first + i as u32);
        count = n + 1;
    }
    count
}

/// First name for values that a window itself computes.
const MADE: u32 = 0x2000_0000;

/// The bytes that lines read or write, and those that they write, by space and base.
fn accesses(first: &AbstractState, lines: &[CodeLine], world: &FunctionContext) -> Vec<WindowAccess> {
    let mut out: BTreeMap<(AddressSpace, u32, bool), BTreeSet<i64>> = BTreeMap::new();
    let mut s = first.clone();
    for (n, line) in lines.iter().enumerate() {
        let access = match line.insn {
            Insn::Load { size, src, off, .. } => Some((src, off, size, false)),
            Insn::Store { size, dst, off, .. } | Insn::Atomic { size, dst, off, .. } => {
                Some((dst, off, size, true))
            }
            _ => None,
        };
        if let Some((base, off, size, write)) = access
            && let RegisterKind::Address(space, at) = s.get(base).kind
        {
            let id = if space == AddressSpace::Stack { 0 } else { s.get(base).id };
            let at = at + i64::from(off);
            let bytes = at..at + i64::from(size.bytes());
            out.entry((space, id, false)).or_default().extend(bytes.clone());
            if write {
                out.entry((space, id, true)).or_default().extend(bytes);
            }
        }
        match &line.insn {
            Insn::Branch { .. } => {
                let _ = transfer::branch(&mut s, &line.insn, false);
            }
            _ => transfer::step(&mut s, line, world, MADE + n as u32),
        }
    }
    out.into_iter().map(|((space, id, write), bytes)| (space, id, bytes, write)).collect()
}

/// The bytes of the stack among these: those read or written, or only those written.
fn on_stack(accesses: &[WindowAccess], written: bool) -> BTreeSet<i16> {
    let stack = accesses.iter().filter(|t| t.0 == AddressSpace::Stack && t.3 == written);
    stack.flat_map(|t| &t.2).filter_map(|at| i16::try_from(*at).ok()).collect()
}

fn known(kind: RegisterKind, id: u32) -> EntryFact {
    match kind {
        RegisterKind::Uninit => EntryFact::Nothing,
        RegisterKind::Number(s) => EntryFact::Number(s, id),
        RegisterKind::Address(space, at) => EntryFact::Address(space, id, at),
        RegisterKind::Frame | RegisterKind::Maybe(_) | RegisterKind::Map(_) | RegisterKind::Other => {
            EntryFact::Value(id)
        }
    }
}

/// Facts at the beginning of a window. Ids are renumbered in order of register, so that the same window
/// elsewhere looks the same; names of numbers with different ranges (which the kernel may know of one copy
/// only) stay distinct.
fn entry(s: &AbstractState, touched: &BTreeSet<i16>) -> WindowEntry {
    let mut names: BTreeMap<u32, (u32, Option<Scalar>)> = BTreeMap::new();
    let mut name = |kind: RegisterKind, id: u32| {
        let range = if let RegisterKind::Number(x) = kind { Some(x) } else { None };
        let next = names.len() as u32;
        let known = *names.entry(id).or_insert((next, range));
        if known.1 == range {
            known.0
        } else {
            // Another name: the two are then not known to be equal.
            let fresh = names.len() as u32;
            names.entry(id ^ 0x5555_0000 ^ fresh << 4).or_insert((fresh, range)).0
        }
    };
    let mut regs = [EntryFact::Nothing; 11];
    for (n, fact) in s.regs.iter().enumerate() {
        regs[n] = known(fact.kind, name(fact.kind, fact.id));
    }
    let byte = |at: i16| match s.stack.get((i32::from(at) + FRAME as i32) as usize) {
        Some(StackCell::Byte(b)) => Some((at, *b)),
        _ => None,
    };
    let bytes = touched.iter().filter_map(|at| byte(*at)).collect();
    let mut spills = BTreeMap::new();
    for (&at, fact) in &s.spills {
        let near = (at..at + 8).all(|b| touched.contains(&b));
        if near && !matches!(fact.kind, RegisterKind::Number(_)) {
            spills.insert(at, known(fact.kind, name(fact.kind, fact.id)));
        }
    }
    WindowEntry { regs, bytes, spills }
}

impl InsnWindow {
    /// All live values, exit by exit, the end last.
    pub(crate) fn live_outs(&self) -> impl Iterator<Item = &LiveOut> {
        self.place.exits.iter().chain([&self.place.end])
    }

    /// The bits of a register that are live at any exit or at the end.
    pub(crate) fn live(&self, r: usize) -> u64 {
        self.live_outs().fold(0, |all, l| all | l.regs[r])
    }

    /// Returns true if it ends with a branch: nothing may follow that.
    pub(crate) fn closed(&self) -> bool {
        matches!(self.steps.last(), Some(WindowStep::Exit(..)))
    }

    /// The instructions.
    pub(crate) fn insns(&self) -> Vec<Insn> {
        insns(&self.steps)
    }
}

/// The instructions of steps.
pub(crate) fn insns(steps: &[WindowStep]) -> Vec<Insn> {
    steps
        .iter()
        .map(|s| match s {
            WindowStep::Do(i) | WindowStep::Exit(_, i) | WindowStep::Opaque(_, i) => *i,
        })
        .collect()
}

/// Bytes of one space and base that a window accesses: space, base, offsets; true if it writes them.
pub(crate) type WindowAccess = (AddressSpace, u32, BTreeSet<i64>, bool);

//! Liveness of the bytes of a function's frame.
//!
//! Registers and spilled registers are tracked as long as they hold the frame's address plus a constant. If
//! such a pointer is used in any other way, nothing is known: all of the frame may be read anywhere.
//!
//! Architecture Invariant: only the set of forgotten bytes depends on this analysis. A byte that was
//! forgotten and is read after all is arbitrary.

use std::collections::BTreeMap;

use millstream_isa::helpers::{Helper, HelperEffects};
use millstream_isa::{AluOp, Callee, Insn, Operand, Reg, Size, Width};
use rustc_hash::FxHashMap;

use crate::program::ProofProgram;
use crate::sizes::STACK_SIZE;

/// Successors of each slot, and true if it is a jump.
pub(crate) type SlotSuccessors = FxHashMap<usize, (Vec<usize>, bool)>;

/// Bit set of the bytes of a frame, the lowest first.
type FrameBytes = [u64; STACK_SIZE as usize / 64];

/// Liveness of the frame of one function.
#[derive(Debug)]
pub(crate) struct FrameLiveness {
    /// Live bytes at each slot: those that are read before they are written.
    live: FxHashMap<usize, FrameBytes>,
}

/// Abstract value of a register.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum AbstractPointer {
    /// Nothing that points into this frame.
    Other,
    /// The upper end of the frame plus a number.
    At(i64),
    /// Some address in the frame, on some of the paths.
    Somewhere,
}

/// Facts at one slot: registers, and pointers into the frame that are spilled, by offset. Other spilled
/// values point elsewhere.
#[derive(Clone, PartialEq, Debug)]
struct StackFacts {
    regs: [AbstractPointer; 11],
    spilled: BTreeMap<i64, AbstractPointer>,
}

/// A use of a pointer that is not tracked.
struct EscapedPointer;

impl FrameLiveness {
    /// Analyses the function at `entry`; [`None`] if all of it may be read anywhere.
    pub(crate) fn new(p: &ProofProgram, entry: usize, edges: &SlotSuccessors) -> Option<FrameLiveness> {
        let uses = uses(p, entry, edges).ok()?;
        let mut slots: Vec<usize> = edges.keys().copied().collect();
        slots.sort_unstable_by(|a, b| b.cmp(a));
        let mut live: FxHashMap<usize, FrameBytes> = FxHashMap::default();
        loop {
            let mut changed = false;
            for slot in &slots {
                let mut before = FrameBytes::default();
                for target in &edges[slot].0 {
                    if let Some(after) = live.get(target) {
                        before.iter_mut().zip(after).for_each(|(b, a)| *b |= a);
                    }
                }
                if let Some((reads, writes)) = uses.get(slot) {
                    for (b, (r, w)) in before.iter_mut().zip(reads.iter().zip(writes)) {
                        *b = *b & !w | r;
                    }
                }
                changed |= live.insert(*slot, before) != Some(before);
            }
            if !changed {
                return Some(FrameLiveness { live });
            }
        }
    }

    /// Returns true if a byte, counted from the upper end, is read before it is written, from a slot on.
    pub(crate) fn is_live(&self, slot: usize, at: i64) -> bool {
        let Ok(n) = usize::try_from(at + STACK_SIZE) else { return true };
        let live = self.live.get(&slot);
        live.is_none_or(|bytes| bytes.get(n / 64).is_none_or(|word| word >> (n % 64) & 1 != 0))
    }
}

/// Bytes that each slot reads and those that it writes.
fn uses(
    p: &ProofProgram,
    entry: usize,
    edges: &SlotSuccessors,
) -> Result<FxHashMap<usize, (FrameBytes, FrameBytes)>, EscapedPointer> {
    let mut regs = [AbstractPointer::Other; 11];
    regs[10] = AbstractPointer::At(0);
    let mut known = FxHashMap::from_iter([(entry, StackFacts { regs, spilled: BTreeMap::new() })]);
    let mut walk = LivenessWalk { uses: FxHashMap::default() };
    let mut todo = vec![entry];
    while let Some(slot) = todo.pop() {
        let mut state = known[&slot].clone();
        walk.step(p, slot, &mut state)?;
        for target in &edges[&slot].0 {
            let joined = known.get(target).map_or_else(|| state.clone(), |before| before.join(&state));
            if known.get(target) != Some(&joined) {
                known.insert(*target, joined);
                todo.push(*target);
            }
        }
    }
    Ok(walk.uses)
}

impl StackFacts {
    fn join(&self, other: &StackFacts) -> StackFacts {
        let mut out = self.clone();
        for (a, b) in out.regs.iter_mut().zip(other.regs) {
            if *a != b {
                *a = AbstractPointer::Somewhere;
            }
        }
        for (at, holds) in &mut out.spilled {
            if other.spilled.get(at) != Some(holds) {
                *holds = AbstractPointer::Somewhere;
            }
        }
        for at in other.spilled.keys() {
            out.spilled.entry(*at).or_insert(AbstractPointer::Somewhere);
        }
        out
    }

    fn get(&self, r: Reg) -> AbstractPointer {
        self.regs[r.index()]
    }

    fn set(&mut self, r: Reg, holds: AbstractPointer) {
        self.regs[r.index()] = holds;
    }

    /// Range of an access, if it is in the frame. `moves` is given if a relocation sets the offset: the size
    /// of the object in bytes, if that is known.
    fn access(
        &self,
        base: Reg,
        off: i16,
        size: Size,
        moves: Option<Option<u64>>,
    ) -> Result<Option<(i64, i64)>, EscapedPointer> {
        match (self.get(base), moves) {
            (AbstractPointer::Other, _) => Ok(None),
            (AbstractPointer::At(k), None) => {
                let at = k + i64::from(off);
                Ok(Some((at, at + i64::from(size.bytes()))))
            }
            (AbstractPointer::At(k), Some(Some(object))) if object < STACK_SIZE as u64 => {
                Ok(Some((k, k + object as i64)))
            }
            _ => Err(EscapedPointer),
        }
    }

    /// Fails if an operation uses a pointer into the frame as a number.
    fn number(&self, r: Reg) -> Result<(), EscapedPointer> {
        if self.get(r) == AbstractPointer::Other { Ok(()) } else { Err(EscapedPointer) }
    }
}

/// A walk over all slots under way.
struct LivenessWalk {
    /// Bytes that each slot reads and those that it writes.
    uses: FxHashMap<usize, (FrameBytes, FrameBytes)>,
}

impl LivenessWalk {
    fn step(&mut self, p: &ProofProgram, slot: usize, s: &mut StackFacts) -> Result<(), EscapedPointer> {
        let insn = p.insn(slot).map_err(|_| EscapedPointer)?;
        // A relocation may change the displacement, within an object.
        let moves = p.core.get(&slot).map(|core| core.object);
        match insn {
            Insn::Mov { width: Width::W64, dst, src: Operand::Reg(src) } => s.set(dst, s.get(src)),
            Insn::Alu {
                width: Width::W64,
                op: op @ (AluOp::Add | AluOp::Sub),
                dst,
                src: Operand::Imm(imm),
            } => {
                if let AbstractPointer::At(k) = s.get(dst)
                    && moves.is_none()
                {
                    let by = i64::from(if op == AluOp::Add { imm } else { imm.wrapping_neg() });
                    s.set(dst, AbstractPointer::At(k + by));
                } else {
                    s.number(dst)?;
                }
            }
            Insn::Alu { dst, src, .. } => {
                s.number(dst)?;
                if let Operand::Reg(src) = src {
                    s.number(src)?;
                }
            }
            Insn::Mov { dst, src, .. } => {
                if let Operand::Reg(src) = src {
                    s.number(src)?;
                }
                s.set(dst, AbstractPointer::Other);
            }
            Insn::MovSx { dst, src, .. } | Insn::AddrSpaceCast { dst, src, .. } => {
                s.number(src)?;
                s.set(dst, AbstractPointer::Other);
            }
            Insn::Neg { dst, .. } | Insn::Swap { dst, .. } => s.number(dst)?,
            Insn::LoadImm64 { dst, .. } => s.set(dst, AbstractPointer::Other),
            Insn::Load { size, dst, src, off, .. } | Insn::LoadAcquire { size, dst, src, off } => {
                let range = s.access(src, off, size, moves)?;
                s.set(dst, self.load(slot, s, range)?);
            }
            Insn::Store { size, dst, off, src } => {
                let holds = if let Operand::Reg(src) = src { s.get(src) } else { AbstractPointer::Other };
                let range = s.access(dst, off, size, moves)?;
                self.store(slot, s, range, holds, moves.is_some())?;
            }
            Insn::StoreRelease { size, dst, src, off } => {
                let (range, holds) = (s.access(dst, off, size, moves)?, s.get(src));
                self.store(slot, s, range, holds, moves.is_some())?;
            }
            Insn::Atomic { size, dst, src, off, .. } => {
                s.number(src)?;
                let range = s.access(dst, off, size, moves)?;
                self.load(slot, s, range)?;
                s.set(src, AbstractPointer::Other);
                s.set(Reg::R0, AbstractPointer::Other);
            }
            Insn::Call(callee) => self.call(slot, s, callee)?,
            Insn::LegacyLoad { .. } => s.regs[..6].fill(AbstractPointer::Other),
            Insn::Branch { .. } | Insn::Jump { .. } | Insn::MayGoto { .. } | Insn::Exit => {}
        }
        Ok(())
    }

    fn load(
        &mut self,
        slot: usize,
        s: &StackFacts,
        range: Option<(i64, i64)>,
    ) -> Result<AbstractPointer, EscapedPointer> {
        let Some((at, end)) = range else { return Ok(AbstractPointer::Other) };
        self.note(slot, Some((at, end)), None);
        match s.spilled.get(&at) {
            Some(holds) if end - at == 8 => Ok(*holds),
            _ if s.spilled.range(at - 7..end).next().is_some() => Err(EscapedPointer),
            _ => Ok(AbstractPointer::Other),
        }
    }

    /// `moves` means that only some of the bytes may be written.
    fn store(
        &mut self,
        slot: usize,
        s: &mut StackFacts,
        range: Option<(i64, i64)>,
        holds: AbstractPointer,
        moves: bool,
    ) -> Result<(), EscapedPointer> {
        let Some((at, end)) = range else {
            return if holds == AbstractPointer::Other { Ok(()) } else { Err(EscapedPointer) };
        };
        let whole = end - at == 8 && !moves;
        self.note(slot, None, range.filter(|_| !moves));
        if whole {
            s.spilled.remove(&at);
        }
        if s.spilled.range(at - 7..end).next().is_some() || holds != AbstractPointer::Other && !whole {
            return Err(EscapedPointer);
        }
        if holds != AbstractPointer::Other {
            s.spilled.insert(at, holds);
        }
        Ok(())
    }

    /// A helper reads at most the bytes above the pointers that it is given.
    fn call(&mut self, slot: usize, s: &mut StackFacts, callee: Callee) -> Result<(), EscapedPointer> {
        let helper = match callee {
            Callee::Helper(id) => Helper::get(id).filter(|h| !h.effects.intersects(HelperEffects::CALLBACK)),
            _ => None,
        };
        let count = helper.map_or(5, |h| h.args.len());
        let mut lowest = None;
        for holds in &s.regs[1..=count] {
            match holds {
                AbstractPointer::Other => {}
                AbstractPointer::At(k) if helper.is_some() => {
                    lowest = Some(lowest.map_or(*k, |l: i64| l.min(*k)))
                }
                _ => return Err(EscapedPointer),
            }
        }
        self.note(slot, lowest.map(|k| (k, 0)), None);
        s.regs[..6].fill(AbstractPointer::Other);
        Ok(())
    }

    fn note(&mut self, slot: usize, reads: Option<(i64, i64)>, writes: Option<(i64, i64)>) {
        let bytes = |range: Option<(i64, i64)>| {
            let mut out = FrameBytes::default();
            for at in range.map_or(0..0, |(from, to)| from.max(-STACK_SIZE)..to.min(0)) {
                let n = (at + STACK_SIZE) as usize;
                out[n / 64] |= 1 << (n % 64);
            }
            out
        };
        self.uses.insert(slot, (bytes(reads), bytes(writes)));
    }
}

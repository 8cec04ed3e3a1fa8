//! Building blocks for candidates of a window: registers, constants, operations, places in memory.

use std::collections::BTreeSet;

use millstream_isa::{AluOp, AtomicOp, Insn, Operand, Reg, Size, SwapKind, Width};
use millstream_prove::window::{EntryFact, WindowStep};

use crate::facts::{CONTEXT, RegisterKind};
use crate::verifier_rules::written;
use crate::window::InsnWindow;
use millstream_prove::window::AddressSpace;

/// Most constants.
const MOST_CONSTANTS: usize = 28;
/// Registers that the window does not mention and that may hold intermediate values.
const SPARE: usize = 2;

/// An access to memory, relative to the value of an entry register.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) struct MemorySlot {
    pub(crate) base: Reg,
    pub(crate) off: i16,
    pub(crate) size: Size,
}

/// The building blocks.
#[derive(Clone, Debug)]
pub(crate) struct CandidatePool {
    /// Registers that may be written.
    pub(crate) targets: Vec<Reg>,
    /// Registers that may be read at the beginning, or after they were written.
    pub(crate) sources: Vec<Reg>,
    pub(crate) constants: Vec<i32>,
    pub(crate) counts: Vec<i32>,
    pub(crate) binary: Vec<AluOp>,
    pub(crate) swaps: Vec<(SwapKind, u8)>,
    pub(crate) loads: Vec<MemorySlot>,
    pub(crate) stores: Vec<MemorySlot>,
    /// Places for atomic additions.
    pub(crate) sums: Vec<MemorySlot>,
    pub(crate) extensions: bool,
    /// True if halves of registers may be compared.
    pub(crate) narrow: bool,
}

fn register(n: usize) -> Option<Reg> {
    Reg::new(n as u8)
}

impl CandidatePool {
    pub(crate) fn new(window: &InsnWindow, isa: u8) -> CandidatePool {
        let insns = window.insns();
        let writes: BTreeSet<Reg> = insns.iter().filter_map(|i| written(*i)).collect();
        let mut targets: Vec<Reg> = writes.iter().copied().collect();
        let spare =
            (0..6).filter_map(register).filter(|r| !writes.contains(r) && window.live(r.index()) == 0);
        targets.extend(spare.take(SPARE));
        let readable = |r: &Reg| window.place.entry.regs[r.index()] != EntryFact::Nothing;
        let mentioned: BTreeSet<Reg> = insns.iter().flat_map(|i| crate::verifier_rules::named(*i)).collect();
        let mut sources: BTreeSet<Reg> = targets.iter().copied().collect();
        sources.extend(mentioned.into_iter().chain((0..10).filter_map(register).filter(readable)));
        let (constants, counts) = constants(window, &insns);
        let (loads, stores) = accesses(window);
        let sums = stores.iter().filter(|s| matches!(s.size, Size::W | Size::Dw)).copied();
        CandidatePool {
            targets,
            sources: sources.into_iter().collect(),
            constants,
            counts,
            binary: binary(&insns),
            swaps: swaps(&insns),
            sums: sums.filter(|s| loads.contains(s)).filter(|s| outside(window, s.base)).collect(),
            loads,
            stores,
            extensions: isa >= 4,
            narrow: isa >= 3,
        }
    }

    /// All instructions from these parts that write `targets` or memory.
    pub(crate) fn instructions(&self, targets: &[Reg]) -> Vec<Insn> {
        let mut out = Vec::new();
        for &dst in targets {
            self.writes(dst, &mut out);
        }
        for s in &self.stores {
            let place = |src| Insn::Store { size: s.size, dst: s.base, off: s.off, src };
            out.extend(self.sources.iter().map(|r| place(Operand::Reg(*r))));
            out.extend(self.constants.iter().filter(|k| fits(**k, s.size)).map(|k| place(Operand::Imm(*k))));
        }
        for s in &self.sums {
            out.extend(self.sources.iter().map(|r| self.sum(*s, *r)));
        }
        out
    }

    pub(crate) fn sum(&self, s: MemorySlot, src: Reg) -> Insn {
        Insn::Atomic { op: AtomicOp::Add, fetch: false, size: s.size, dst: s.base, src, off: s.off }
    }

    /// All instructions that write a register.
    fn writes(&self, dst: Reg, out: &mut Vec<Insn>) {
        for width in [Width::W64, Width::W32] {
            out.extend(self.sources.iter().map(|r| Insn::Mov { width, dst, src: Operand::Reg(*r) }));
            for &op in &self.binary {
                let shift = shift(op);
                let constants = if shift { &self.counts } else { &self.constants };
                let fit = constants.iter().filter(|k| !shift || **k < width.bits() as i32);
                out.extend(fit.map(|k| Insn::Alu { width, op, dst, src: Operand::Imm(*k) }));
                if !shift {
                    let regs = self.sources.iter().map(|r| Operand::Reg(*r));
                    out.extend(regs.map(|src| Insn::Alu { width, op, dst, src }));
                }
            }
        }
        out.extend(self.constants.iter().map(|k| {
            let width = if *k < 0 { Width::W64 } else { Width::W32 };
            Insn::Mov { width, dst, src: Operand::Imm(*k) }
        }));
        out.extend(self.swaps.iter().map(|&(kind, bits)| Insn::Swap { kind, bits, dst }));
        out.extend(self.loads.iter().map(|s| Insn::Load {
            size: s.size,
            sext: false,
            dst,
            src: s.base,
            off: s.off,
        }));
        if self.extensions {
            for bits in [8, 16, 32] {
                let wide = |src: &Reg| Insn::MovSx { width: Width::W64, bits, dst, src: *src };
                out.extend(self.sources.iter().map(wide));
            }
        }
    }
}

/// Returns true if a constant has the same meaning when it is stored with this size.
fn fits(k: i32, size: Size) -> bool {
    match size {
        Size::B => (-128..256).contains(&k),
        Size::H => (-32768..65536).contains(&k),
        _ => true,
    }
}

fn outside(window: &InsnWindow, base: Reg) -> bool {
    !matches!(window.state.get(base).kind, RegisterKind::Address(AddressSpace::Stack | CONTEXT, _))
}

fn binary(insns: &[Insn]) -> Vec<AluOp> {
    let mut out =
        vec![AluOp::Add, AluOp::Sub, AluOp::And, AluOp::Or, AluOp::Xor, AluOp::Lsh, AluOp::Rsh, AluOp::Arsh];
    for insn in insns {
        if let Insn::Alu { op, .. } = insn
            && !out.contains(op)
        {
            out.push(*op);
        }
    }
    out
}

fn swaps(insns: &[Insn]) -> Vec<(SwapKind, u8)> {
    let mut out = Vec::new();
    for insn in insns {
        if let Insn::Swap { kind, .. } = insn {
            out.extend([16, 32, 64].map(|bits| (*kind, bits)));
        }
    }
    out.sort_unstable_by_key(|s| s.1);
    out.dedup();
    out
}

/// Constants of the window and constants derived from them; possible shift counts are separate.
fn constants(window: &InsnWindow, insns: &[Insn]) -> (Vec<i32>, Vec<i32>) {
    let mut own: Vec<i64> = Vec::new();
    for insn in insns {
        match insn {
            Insn::Alu { src: Operand::Imm(k), .. }
            | Insn::Mov { src: Operand::Imm(k), .. }
            | Insn::Store { src: Operand::Imm(k), .. }
            | Insn::Branch { src: Operand::Imm(k), .. } => own.push(i64::from(*k)),
            Insn::LoadImm64 { imm, .. } => own.push(*imm as i64),
            _ => {}
        }
    }
    for known in &window.place.entry.regs {
        if let EntryFact::Number(s, _) = known {
            own.extend(s.as_constant().map(|k| k as i64));
        }
    }
    own.sort_unstable();
    own.dedup();
    own.truncate(10);
    let mut all: Vec<i64> = own.clone();
    all.extend([0, 1, -1]);
    for (n, a) in own.iter().enumerate() {
        all.extend([a.wrapping_neg(), !a]);
        if (1..64).contains(a) {
            all.extend([(1i64 << a).wrapping_sub(1), 1i64 << a, 64 - a, 32 - a]);
        }
        for b in &own[n..] {
            all.extend([a.wrapping_add(*b), a & b, a | b, a ^ b]);
            if (1..48).contains(b) {
                all.extend([a.wrapping_shl(*b as u32), a.wrapping_shr(*b as u32)]);
            }
        }
    }
    let mut constants: Vec<i32> = Vec::new();
    for k in all {
        if let Ok(k) = i32::try_from(k).or_else(|_| u32::try_from(k).map(|k| k as i32))
            && !constants.contains(&k)
            && constants.len() < MOST_CONSTANTS
        {
            constants.push(k);
        }
    }
    let mut counts: Vec<i32> = constants.iter().copied().filter(|k| (1..64).contains(k)).collect();
    counts.extend([8, 16, 24, 32, 48, 56].into_iter().filter(|k| !constants.contains(k)));
    (constants, counts)
}

/// Loads and stores of the bytes that the window loads and stores, by entry registers.
fn accesses(window: &InsnWindow) -> (Vec<MemorySlot>, Vec<MemorySlot>) {
    let (mut loads, mut stores) = (BTreeSet::new(), BTreeSet::new());
    for &(space, id, ref bytes, written) in &window.accesses {
        let bases = (0..11).filter_map(register).filter_map(|r| {
            let fact = window.state.get(r);
            match fact.kind {
                RegisterKind::Address(s, at) if s == space && (fact.id == id || s == AddressSpace::Stack) => {
                    Some((r, at))
                }
                _ => None,
            }
        });
        let bases: Vec<(Reg, i64)> = bases.collect();
        for (base, at) in bases {
            for &start in bytes {
                for size in Size::ALL {
                    let n = i64::from(size.bytes());
                    let whole = (start..start + n).all(|b| bytes.contains(&b));
                    let aligned = space != AddressSpace::Stack || start % n == 0;
                    let Ok(off) = i16::try_from(start - at) else { continue };
                    if whole && aligned {
                        let slot = MemorySlot { base, off, size };
                        if written {
                            stores.insert(slot)
                        } else {
                            loads.insert(slot)
                        };
                    }
                }
            }
        }
    }
    (loads.into_iter().collect(), stores.into_iter().collect())
}

/// Returns true if the second operand is a count of bits.
pub(crate) fn shift(op: AluOp) -> bool {
    matches!(op, AluOp::Lsh | AluOp::Rsh | AluOp::Arsh)
}

/// The instruction of a step, if it may be changed.
pub(crate) fn free(step: &WindowStep) -> Option<Insn> {
    if let WindowStep::Do(insn) = step { Some(*insn) } else { None }
}

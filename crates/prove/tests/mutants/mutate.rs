//! Changes one instruction of a program in a way that usually changes what it does.

use millstream_isa::{AluOp, Cond, Insn, Operand, Raw, Reg, Size, Width, decode};
use millstream_object::{FuncId, Object};

/// A small generator of random numbers (xorshift64*).
pub(crate) struct Rng(u64);

impl Rng {
    pub(crate) fn new(seed: u64) -> Rng {
        Rng(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    pub(crate) fn below(&mut self, n: usize) -> usize {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 33) as usize % n.max(1)
    }
}

/// The object with one instruction of a program, or of what it calls, changed, and what was done; [`None`] if the
/// change comes to nothing.
pub(crate) fn mutant(object: &Object, func: FuncId, rng: &mut Rng) -> Option<(Object, String)> {
    let functions = object.link(func).ok()?.functions;
    let at = functions[rng.below(functions.len())].1.0 as usize;
    let slots = &object.functions[at].insns;
    let mut insns = Vec::new();
    let mut slot = 0;
    while slot < slots.len() {
        let insn = decode(slots, slot).ok()?;
        insns.push((slot, insn));
        slot += insn.slots();
    }
    let chosen = rng.below(insns.len());
    let (slot, insn) = insns[chosen];
    let mut out = object.clone();
    let next = insns.get(chosen + 1).filter(|_| rng.below(12) == 0);
    if let Some((_, next)) = next
        && next.slots() == insn.slots()
        && !jumps(insn)
        && !jumps(*next)
        && relocated(object, at, slot) == relocated(object, at, slot + insn.slots())
    {
        let all = &mut out.functions[at].insns;
        (0..insn.slots()).for_each(|i| all.swap(slot + i, slot + insn.slots() + i));
        return changed(object, out, at, format!("{slot}: swapped with the next"));
    }
    if rng.below(12) == 0 && !matches!(insn, Insn::Exit) && !relocated(object, at, slot) {
        for i in 0..insn.slots() {
            out.functions[at].insns[slot + i] = nothing();
        }
        return changed(object, out, at, format!("{slot}: {insn:?} dropped"));
    }
    let new = altered(insn, rng)?;
    let mut raw = Vec::new();
    new.encode(&mut raw);
    if raw.len() != insn.slots() {
        return None;
    }
    out.functions[at].insns[slot..slot + raw.len()].copy_from_slice(&raw);
    changed(object, out, at, format!("{slot}: {insn:?} became {new:?}"))
}

fn changed(object: &Object, out: Object, at: usize, what: String) -> Option<(Object, String)> {
    let differs = object.functions[at].insns != out.functions[at].insns;
    let valid = out.functions[at].insns.len() == object.functions[at].insns.len();
    (differs && valid).then_some((out, format!("{} {what}", object.functions[at].name)))
}

fn relocated(object: &Object, at: usize, slot: usize) -> bool {
    let function = &object.functions[at];
    function.relocs.iter().any(|r| r.insn as usize == slot)
        || function.core_relos.iter().any(|c| c.insn as usize == slot)
}

/// `goto +0`
fn nothing() -> Raw {
    Raw { code: 0x05, dst: 0, src: 0, off: 0, imm: 0 }
}

fn jumps(insn: Insn) -> bool {
    matches!(insn, Insn::Jump { .. } | Insn::Branch { .. } | Insn::Exit | Insn::MayGoto { .. })
}

fn altered(insn: Insn, rng: &mut Rng) -> Option<Insn> {
    Some(match insn {
        Insn::Alu { width, op, dst, src } => match rng.below(4) {
            0 => Insn::Alu { width, op: alu(rng), dst, src },
            1 => Insn::Alu { width, op, dst, src: operand(src, rng) },
            2 => Insn::Alu { width, op, dst: register(rng), src },
            _ => Insn::Alu { width: other(width), op, dst, src },
        },
        Insn::Mov { width, dst, src } => match rng.below(3) {
            0 => Insn::Mov { width, dst, src: operand(src, rng) },
            1 => Insn::Mov { width, dst: register(rng), src },
            _ => Insn::Mov { width: other(width), dst, src },
        },
        Insn::Load { size, sext, dst, src, off } => match rng.below(3) {
            0 => Insn::Load { size: sized(rng), sext: false, dst, src, off },
            1 => Insn::Load { size, sext, dst, src, off: moved(off, rng) },
            _ => Insn::Load { size, sext, dst: register(rng), src, off },
        },
        Insn::Store { size, dst, off, src } => match rng.below(3) {
            0 => Insn::Store { size: sized(rng), dst, off, src },
            1 => Insn::Store { size, dst, off: moved(off, rng), src },
            _ => Insn::Store { size, dst, off, src: operand(src, rng) },
        },
        Insn::Branch { width, cond, dst, src, off } => match rng.below(4) {
            0 => Insn::Branch { width, cond: condition(rng), dst, src, off },
            1 => Insn::Branch { width, cond, dst, src: operand(src, rng), off },
            2 => Insn::Branch { width, cond, dst, src, off: off.checked_add([-1, 1][rng.below(2)])? },
            _ => Insn::Branch { width: other(width), cond, dst, src, off },
        },
        Insn::Jump { long, off } => Insn::Jump { long, off: off.checked_add([-1, 1][rng.below(2)])? },
        Insn::Swap { kind, bits, dst } => {
            let bits = if rng.below(2) == 0 { bits } else { [16, 32, 64][rng.below(3)] };
            Insn::Swap { kind, bits, dst: if rng.below(2) == 0 { dst } else { register(rng) } }
        }
        Insn::Atomic { op, fetch, size, dst, off, .. } => {
            let off = if rng.below(2) == 0 { moved(off, rng) } else { off };
            Insn::Atomic { op, fetch, size, dst, src: register(rng), off }
        }
        _ => return None,
    })
}

fn alu(rng: &mut Rng) -> AluOp {
    use AluOp::{Add, And, Arsh, Div, Lsh, Mod, Mul, Or, Rsh, Sub, Xor};
    [Add, Sub, Mul, Div, Or, And, Lsh, Rsh, Mod, Xor, Arsh][rng.below(11)]
}

fn condition(rng: &mut Rng) -> Cond {
    use Cond::{Eq, Ge, Gt, Le, Lt, Ne, Set, Sge, Sgt, Sle, Slt};
    [Eq, Gt, Ge, Set, Ne, Sgt, Sge, Lt, Le, Slt, Sle][rng.below(11)]
}

fn other(width: Width) -> Width {
    if width == Width::W32 { Width::W64 } else { Width::W32 }
}

fn sized(rng: &mut Rng) -> Size {
    [Size::B, Size::H, Size::W, Size::Dw][rng.below(4)]
}

fn moved(off: i16, rng: &mut Rng) -> i16 {
    off.wrapping_add([-8, -4, -2, -1, 1, 2, 4, 8][rng.below(8)])
}

fn register(rng: &mut Rng) -> Reg {
    Reg::new(rng.below(10) as u8).expect("a register")
}

fn operand(src: Operand, rng: &mut Rng) -> Operand {
    match src {
        Operand::Reg(_) => Operand::Reg(register(rng)),
        Operand::Imm(imm) => Operand::Imm(match rng.below(4) {
            0 => imm.wrapping_add(1),
            1 => imm.wrapping_sub(1),
            2 => imm ^ 1 << rng.below(32),
            _ => 0,
        }),
    }
}

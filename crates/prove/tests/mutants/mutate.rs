//! Changes a program in one place, in a way that usually changes its behaviour.

use millstream_isa::{
    AluOp, AtomicOp, Cond, Insn, Operand, Pseudo, RawInsn, Reg, Size, SwapKind, Width, decode_all,
};
use millstream_object::{FuncId, MapId, Object, RelocKind};

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

/// Kind of change to a program.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) enum Class {
    /// Another register or immediate is read or written.
    Operand,
    /// Another operation, condition or byte order.
    Opcode,
    /// Another immediate.
    Constant,
    /// Another width of an operation, a load or a store.
    Width,
    /// Another displacement.
    Offset,
    /// A branch to a neighbour of its target.
    Target,
    /// The two successors of a branch are swapped.
    Branches,
    /// An instruction is dropped.
    Dropped,
    /// A store is dropped.
    DroppedStore,
    /// Two instructions are swapped.
    Order,
    /// A call gets another argument.
    Argument,
    /// Another map of the same shape.
    Map,
}

/// All of them.
pub(crate) const CLASSES: [Class; 12] = [
    Class::Operand,
    Class::Opcode,
    Class::Constant,
    Class::Width,
    Class::Offset,
    Class::Target,
    Class::Branches,
    Class::Dropped,
    Class::DroppedStore,
    Class::Order,
    Class::Argument,
    Class::Map,
];

/// A function of the object, decoded: slots and instructions.
struct Code<'a> {
    object: &'a Object,
    function: usize,
    insns: Vec<(usize, Insn)>,
}

/// The object with one change of this class to a program, or to a function that it calls, and a description
/// of the change; [`None`] if there is no such change.
pub(crate) fn mutant(object: &Object, func: FuncId, class: Class, rng: &mut Rng) -> Option<(Object, String)> {
    let functions = object.link(func).ok()?.functions;
    let function = functions[rng.below(functions.len())].1.0 as usize;
    let insns = decode_all(&object.functions[function].insns).ok()?;
    let code = Code { object, function, insns };
    match class {
        Class::Order => code.reordered(rng),
        Class::Dropped => code.dropped(rng, |i| !matches!(i, Insn::Exit | Insn::Store { .. })),
        Class::DroppedStore => code.dropped(rng, |i| matches!(i, Insn::Store { .. } | Insn::Atomic { .. })),
        Class::Argument => code.argument(rng),
        Class::Map => code.map(rng),
        _ => {
            let (slot, insn) = code.any(rng, |_| true)?;
            let new = match class {
                Class::Operand => operands(insn, rng),
                Class::Opcode => opcode(insn, rng),
                Class::Constant => constant(insn, rng),
                Class::Width => width(insn, rng),
                Class::Offset => offset(insn, rng),
                Class::Target => target(insn, rng),
                _ => opposite(insn),
            }?;
            code.replaced(slot, insn, new)
        }
    }
}

impl Code<'_> {
    fn any(&self, rng: &mut Rng, suits: impl Fn(&Insn) -> bool) -> Option<(usize, Insn)> {
        let all: Vec<&(usize, Insn)> = self.insns.iter().filter(|(_, i)| suits(i)).collect();
        (!all.is_empty()).then(|| *all[rng.below(all.len())])
    }

    fn replaced(&self, slot: usize, insn: Insn, new: Insn) -> Option<(Object, String)> {
        let mut raw = Vec::new();
        new.encode(&mut raw);
        if raw.len() != insn.slots() {
            return None;
        }
        let mut out = self.object.clone();
        out.functions[self.function].insns[slot..slot + raw.len()].copy_from_slice(&raw);
        self.changed(out, format!("{slot}: {insn:?} became {new:?}"))
    }

    fn reordered(&self, rng: &mut Rng) -> Option<(Object, String)> {
        let at = rng.below(self.insns.len().checked_sub(1)?);
        let ((slot, one), (_, other)) = (self.insns[at], self.insns[at + 1]);
        let n = one.slots();
        let alike = self.relocated(slot) == self.relocated(slot + n);
        if other.slots() != n || jumps(one) || jumps(other) || !alike || self.relocated(slot) {
            return None;
        }
        let mut out = self.object.clone();
        (0..n).for_each(|i| out.functions[self.function].insns.swap(slot + i, slot + n + i));
        self.changed(out, format!("{slot}: {one:?} swapped with the next"))
    }

    fn dropped(&self, rng: &mut Rng, suits: impl Fn(&Insn) -> bool) -> Option<(Object, String)> {
        let (slot, insn) = self.any(rng, suits)?;
        if self.relocated(slot) {
            return None;
        }
        let mut out = self.object.clone();
        for i in 0..insn.slots() {
            out.functions[self.function].insns[slot + i] = nothing();
        }
        self.changed(out, format!("{slot}: {insn:?} dropped"))
    }

    /// Changes the last value put into a register that a call reads.
    fn argument(&self, rng: &mut Rng) -> Option<(Object, String)> {
        let calls: Vec<usize> =
            (0..self.insns.len()).filter(|i| matches!(self.insns[*i].1, Insn::Call(_))).collect();
        let call = *calls.get(rng.below(calls.len()))?;
        let before = self.insns[..call].iter().rev().take_while(|(_, i)| !jumps(*i));
        let sets = |i: &Insn| match *i {
            Insn::Mov { dst, .. } | Insn::Alu { dst, .. } => (1..6).contains(&dst.index()),
            _ => false,
        };
        let setting: Vec<(usize, Insn)> = before
            .take_while(|(_, i)| !matches!(i, Insn::Call(_)))
            .filter(|(_, i)| sets(i))
            .copied()
            .collect();
        let (slot, insn) = *setting.get(rng.below(setting.len()))?;
        let new = match insn {
            Insn::Mov { width, dst, src } => Insn::Mov { width, dst, src: operand(src, rng) },
            Insn::Alu { width, op, dst, src } => Insn::Alu { width, op, dst, src: operand(src, rng) },
            _ => return None,
        };
        self.replaced(slot, insn, new)
    }

    /// Takes another map whose keys and values have the same sizes.
    fn map(&self, rng: &mut Rng) -> Option<(Object, String)> {
        let relocs = &self.object.functions[self.function].relocs;
        let maps: Vec<usize> =
            (0..relocs.len()).filter(|r| matches!(relocs[*r].kind, RelocKind::Map(_))).collect();
        let at = *maps.get(rng.below(maps.len()))?;
        let RelocKind::Map(old) = relocs[at].kind else { return None };
        let shape = |id: MapId| {
            let s = &self.object.maps[id.index()].spec;
            (s.map_type, s.key_size, s.value_size)
        };
        let ids = (0..self.object.maps.len() as u32).map(MapId);
        let others: Vec<MapId> = ids.filter(|id| *id != old && shape(*id) == shape(old)).collect();
        let new = *others.get(rng.below(others.len()))?;
        let mut out = self.object.clone();
        out.functions[self.function].relocs[at].kind = RelocKind::Map(new);
        let name = |id: MapId| &self.object.maps[id.index()].name;
        let what = format!("{}: map {:?} became {:?}", relocs[at].insn, name(old), name(new));
        Some((out, format!("{} {what}", self.object.functions[self.function].name)))
    }

    fn changed(&self, out: Object, what: String) -> Option<(Object, String)> {
        let (before, after) = (&self.object.functions[self.function], &out.functions[self.function]);
        let is = before.insns != after.insns && before.insns.len() == after.insns.len();
        let what = format!("{} {what}", before.name);
        is.then_some((out, what))
    }

    fn relocated(&self, slot: usize) -> bool {
        let function = &self.object.functions[self.function];
        function.relocs.iter().any(|r| r.insn as usize == slot)
            || function.core_relos.iter().any(|c| c.insn as usize == slot)
    }
}

/// `goto +0`
fn nothing() -> RawInsn {
    RawInsn { code: 0x05, dst: 0, src: 0, off: 0, imm: 0 }
}

fn jumps(insn: Insn) -> bool {
    matches!(insn, Insn::Jump { .. } | Insn::Branch { .. } | Insn::Exit | Insn::MayGoto { .. })
}

fn operands(insn: Insn, rng: &mut Rng) -> Option<Insn> {
    let first = rng.below(2) == 0;
    Some(match insn {
        Insn::Alu { width, op, src, .. } if first => Insn::Alu { width, op, dst: register(rng), src },
        Insn::Alu { width, op, dst, src } => Insn::Alu { width, op, dst, src: operand(src, rng) },
        Insn::Mov { width, src, .. } if first => Insn::Mov { width, dst: register(rng), src },
        Insn::Mov { width, dst, src } => Insn::Mov { width, dst, src: operand(src, rng) },
        Insn::MovSx { width, bits, dst, .. } => Insn::MovSx { width, bits, dst, src: register(rng) },
        Insn::Neg { width, .. } => Insn::Neg { width, dst: register(rng) },
        Insn::Swap { kind, bits, .. } => Insn::Swap { kind, bits, dst: register(rng) },
        Insn::Load { size, sext, src, off, .. } => Insn::Load { size, sext, dst: register(rng), src, off },
        Insn::Store { size, dst, off, src } => Insn::Store { size, dst, off, src: operand(src, rng) },
        Insn::Branch { width, cond, dst, src, off } if first => {
            Insn::Branch { width, cond, dst, src: operand(src, rng), off }
        }
        Insn::Branch { width, cond, src, off, .. } => {
            Insn::Branch { width, cond, dst: register(rng), src, off }
        }
        Insn::Atomic { op, fetch, size, dst, off, .. } => {
            Insn::Atomic { op, fetch, size, dst, src: register(rng), off }
        }
        _ => return None,
    })
}

fn opcode(insn: Insn, rng: &mut Rng) -> Option<Insn> {
    Some(match insn {
        Insn::Alu { width, dst, src, .. } => Insn::Alu { width, op: alu(rng), dst, src },
        Insn::Mov { width, dst, src } => Insn::Alu { width, op: alu(rng), dst, src },
        Insn::Branch { width, dst, src, off, .. } => {
            Insn::Branch { width, cond: condition(rng), dst, src, off }
        }
        Insn::Swap { bits, dst, .. } => {
            let kind = [SwapKind::ToBe, SwapKind::ToLe, SwapKind::Swap][rng.below(3)];
            Insn::Swap { kind, bits, dst }
        }
        Insn::Atomic { fetch, size, dst, src, off, .. } => {
            let op = [AtomicOp::Add, AtomicOp::Or, AtomicOp::And, AtomicOp::Xor][rng.below(4)];
            Insn::Atomic { op, fetch, size, dst, src, off }
        }
        _ => return None,
    })
}

fn constant(insn: Insn, rng: &mut Rng) -> Option<Insn> {
    let imm = |imm: i32, rng: &mut Rng| operand(Operand::Imm(imm), rng);
    Some(match insn {
        Insn::Alu { width, op, dst, src: Operand::Imm(i) } => Insn::Alu { width, op, dst, src: imm(i, rng) },
        Insn::Mov { width, dst, src: Operand::Imm(i) } => Insn::Mov { width, dst, src: imm(i, rng) },
        Insn::Store { size, dst, off, src: Operand::Imm(i) } => {
            Insn::Store { size, dst, off, src: imm(i, rng) }
        }
        Insn::Branch { width, cond, dst, src: Operand::Imm(i), off } => {
            Insn::Branch { width, cond, dst, src: imm(i, rng), off }
        }
        Insn::LoadImm64 { dst, pseudo: Pseudo::None, imm, off } if imm != 0 => {
            Insn::LoadImm64 { dst, pseudo: Pseudo::None, imm: imm ^ 1 << rng.below(64), off }
        }
        _ => return None,
    })
}

fn width(insn: Insn, rng: &mut Rng) -> Option<Insn> {
    Some(match insn {
        Insn::Alu { width, op, dst, src } => Insn::Alu { width: other(width), op, dst, src },
        Insn::Mov { width, dst, src } => Insn::Mov { width: other(width), dst, src },
        Insn::MovSx { width, dst, src, .. } => Insn::MovSx { width, bits: [8, 16][rng.below(2)], dst, src },
        Insn::Neg { width, dst } => Insn::Neg { width: other(width), dst },
        Insn::Branch { width, cond, dst, src, off } => {
            Insn::Branch { width: other(width), cond, dst, src, off }
        }
        Insn::Load { sext: false, dst, src, off, .. } => {
            Insn::Load { size: sized(rng), sext: false, dst, src, off }
        }
        Insn::Store { dst, off, src, .. } => Insn::Store { size: sized(rng), dst, off, src },
        Insn::Swap { kind, dst, .. } => Insn::Swap { kind, bits: [16, 32, 64][rng.below(3)], dst },
        Insn::Atomic { op, fetch, size, dst, src, off } => {
            let size = if size == Size::W { Size::Dw } else { Size::W };
            Insn::Atomic { op, fetch, size, dst, src, off }
        }
        _ => return None,
    })
}

fn offset(insn: Insn, rng: &mut Rng) -> Option<Insn> {
    Some(match insn {
        Insn::Load { size, sext, dst, src, off } => Insn::Load { size, sext, dst, src, off: moved(off, rng) },
        Insn::Store { size, dst, off, src } => Insn::Store { size, dst, off: moved(off, rng), src },
        Insn::Atomic { op, fetch, size, dst, src, off } => {
            Insn::Atomic { op, fetch, size, dst, src, off: moved(off, rng) }
        }
        _ => return None,
    })
}

fn target(insn: Insn, rng: &mut Rng) -> Option<Insn> {
    let by = [-1i16, 1][rng.below(2)];
    Some(match insn {
        Insn::Branch { width, cond, dst, src, off } => {
            Insn::Branch { width, cond, dst, src, off: off.checked_add(by)? }
        }
        Insn::Jump { long, off } => Insn::Jump { long, off: off.checked_add(by.into())? },
        _ => return None,
    })
}

fn opposite(insn: Insn) -> Option<Insn> {
    use Cond::{Eq, Ge, Gt, Le, Lt, Ne, Sge, Sgt, Sle, Slt};
    let Insn::Branch { width, cond, dst, src, off } = insn else { return None };
    let cond = match cond {
        Eq => Ne,
        Ne => Eq,
        Gt => Le,
        Le => Gt,
        Ge => Lt,
        Lt => Ge,
        Sgt => Sle,
        Sle => Sgt,
        Sge => Slt,
        Slt => Sge,
        Cond::Set => return None,
    };
    Some(Insn::Branch { width, cond, dst, src, off })
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

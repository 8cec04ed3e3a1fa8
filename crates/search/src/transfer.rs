//! Transfer functions of instructions on facts.

use millstream_isa::absint::{AbstractDomain, Scalar};
use millstream_isa::helpers::{ArgKind, Helper, HelperEffects, RetKind, id as helper_id};
use millstream_isa::semantics;
use millstream_isa::{AluOp, AtomicOp, Callee, Cond, Insn, Operand, Pseudo, Reg, Size, Width};
use millstream_object::RelocKind;
use millstream_prove::window::AddressSpace;

use crate::code::{CodeLine, FunctionCode};
use crate::facts::{
    AbstractState, CONTEXT, ContextType, FRAME, FunctionContext, PACKET, RegisterFact, RegisterKind,
    StackCell, values_of,
};

/// The state after an instruction; `id` is a name for its result.
pub(crate) fn step(s: &mut AbstractState, line: &CodeLine, world: &FunctionContext, id: u32) {
    let number = |x: Scalar| RegisterFact { kind: RegisterKind::Number(x), id };
    match line.insn {
        Insn::Alu { width, op, dst, src } => {
            let (a, b) = (s.get(dst), operand(s, src));
            s.regs[dst.index()] = alu(width, op, a, b, id);
        }
        Insn::Mov { width: Width::W64, dst, src: Operand::Reg(src) } => s.regs[dst.index()] = s.get(src),
        Insn::Mov { width, dst, src } => {
            let known = numeric(operand(s, src));
            s.regs[dst.index()] = number(semantics::mov(&mut AbstractDomain::default(), width, &known));
        }
        Insn::MovSx { width, bits, dst, src } => {
            let known = numeric(s.get(src));
            s.regs[dst.index()] =
                number(semantics::movsx(&mut AbstractDomain::default(), width, u32::from(bits), &known));
        }
        Insn::AddrSpaceCast { dst, .. } => {
            s.regs[dst.index()] = RegisterFact { kind: RegisterKind::Other, id }
        }
        Insn::Neg { width, dst } => {
            let known = numeric(s.get(dst));
            s.regs[dst.index()] = number(semantics::neg(&mut AbstractDomain::default(), width, &known));
        }
        Insn::Swap { kind, bits, dst } => {
            let known = numeric(s.get(dst));
            s.regs[dst.index()] =
                number(semantics::swap(&mut AbstractDomain::default(), kind, u32::from(bits), &known));
        }
        Insn::LoadImm64 { dst, pseudo, imm, .. } => s.regs[dst.index()] = symbol(line, pseudo, imm, id),
        Insn::Load { size, sext, dst, src, off } => {
            let fact = if line.core.is_some() {
                RegisterFact { kind: wide(size), id }
            } else {
                load(s, world, size, sext, src, off, id)
            };
            s.regs[dst.index()] = fact;
        }
        Insn::LoadAcquire { size, dst, .. } => s.regs[dst.index()] = RegisterFact { kind: wide(size), id },
        Insn::Store { size, dst, off, src } => {
            let value = operand(s, src);
            store(s, s.get(dst).kind, off, size, value);
        }
        Insn::Atomic { op, fetch, size, dst, src, off } => {
            forget(s, s.get(dst).kind, off, size);
            if op == AtomicOp::CmpXchg {
                s.regs[0] = RegisterFact { kind: wide(size), id };
            } else if fetch {
                s.regs[src.index()] = RegisterFact { kind: wide(size), id };
            }
        }
        Insn::StoreRelease { size, dst, off, .. } => forget(s, s.get(dst).kind, off, size),
        Insn::LegacyLoad { .. } => {
            scratch(s);
            s.regs[0] = number(Scalar::of_width(32));
        }
        Insn::Call(callee) => call(s, callee, world, id),
        Insn::Jump { .. } | Insn::Branch { .. } | Insn::MayGoto { .. } | Insn::Exit => {}
    }
}

pub(crate) fn operand(s: &AbstractState, o: Operand) -> RegisterFact {
    match o {
        Operand::Reg(r) => s.get(r),
        Operand::Imm(i) => {
            RegisterFact { kind: RegisterKind::Number(Scalar::constant(i as i64 as u64)), id: u32::MAX }
        }
    }
}

fn numeric(f: RegisterFact) -> Scalar {
    if let RegisterKind::Number(x) = f.kind { x } else { Scalar::UNKNOWN }
}

/// Kind of a value loaded from unknown memory: 8 bytes may be a pointer.
fn wide(size: Size) -> RegisterKind {
    if size == Size::Dw { RegisterKind::Other } else { RegisterKind::Number(Scalar::of_width(size.bits())) }
}

/// The result of an operation on values that may be addresses.
pub(crate) fn alu(width: Width, op: AluOp, a: RegisterFact, b: RegisterFact, id: u32) -> RegisterFact {
    let sum = width == Width::W64 && matches!(op, AluOp::Add | AluOp::Sub);
    let kind = match (a.kind, b.kind) {
        (RegisterKind::Number(x), RegisterKind::Number(y)) => {
            RegisterKind::Number(semantics::alu(&mut AbstractDomain::default(), op, width, &x, &y))
        }
        (RegisterKind::Address(space, at), RegisterKind::Number(k)) if sum => {
            return moved(space, at, op, k, a.id, id);
        }
        (RegisterKind::Number(k), RegisterKind::Address(space, at)) if sum && op == AluOp::Add => {
            return moved(space, at, op, k, b.id, id);
        }
        (RegisterKind::Frame, RegisterKind::Number(_)) | (RegisterKind::Number(_), RegisterKind::Frame) => {
            RegisterKind::Frame
        }
        (RegisterKind::Address(x, _), RegisterKind::Address(y, _)) if x == y && op == AluOp::Sub && sum => {
            RegisterKind::Number(Scalar::UNKNOWN)
        }
        // An end of the packet minus its beginning, or the like.
        _ if op == AluOp::Sub && sum => RegisterKind::Other,
        _ => RegisterKind::Other,
    };
    RegisterFact { kind, id }
}

/// An address that was moved.
fn moved(space: AddressSpace, at: i64, op: AluOp, by: Scalar, base: u32, id: u32) -> RegisterFact {
    match by.as_constant().map(|k| if op == AluOp::Add { k as i64 } else { (k as i64).wrapping_neg() }) {
        Some(k) if k.unsigned_abs() < 1 << 29 => {
            RegisterFact { kind: RegisterKind::Address(space, at.wrapping_add(k)), id: base }
        }
        _ if space == AddressSpace::Stack => RegisterFact { kind: RegisterKind::Frame, id },
        _ => RegisterFact { kind: RegisterKind::Address(space, 0), id },
    }
}

fn symbol(line: &CodeLine, pseudo: Pseudo, imm: u64, id: u32) -> RegisterFact {
    let kind = match line.reloc {
        Some(RelocKind::Map(m)) => RegisterKind::Map(m.0),
        Some(RelocKind::MapValue { map, offset }) => {
            let kind = RegisterKind::Address(values_of(map.0), i64::from(offset));
            return RegisterFact { kind, id: 1 << 30 | map.0 };
        }
        Some(_) => RegisterKind::Other,
        None if line.core.is_some() => RegisterKind::Number(Scalar::UNKNOWN),
        None if pseudo == Pseudo::None => RegisterKind::Number(Scalar::constant(imm)),
        None => RegisterKind::Other,
    };
    RegisterFact { kind, id }
}

fn load(
    s: &AbstractState,
    world: &FunctionContext,
    size: Size,
    sext: bool,
    src: Reg,
    off: i16,
    id: u32,
) -> RegisterFact {
    let base = s.get(src);
    let at = |offset: i64| offset + i64::from(off);
    let plain = if sext {
        RegisterKind::Number(extended(size))
    } else {
        RegisterKind::Number(Scalar::of_width(size.bits()))
    };
    let kind = match base.kind {
        RegisterKind::Address(AddressSpace::Stack, offset) => {
            return stack_load(s, at(offset), size, sext, plain, id);
        }
        RegisterKind::Address(CONTEXT, offset) => field(world.context, at(offset), size, plain),
        RegisterKind::Address(..) => plain,
        _ if sext || size != Size::Dw => plain,
        _ => RegisterKind::Other,
    };
    RegisterFact { kind, id }
}

fn extended(size: Size) -> Scalar {
    let half = 1i64 << (size.bits() - 1);
    if size == Size::Dw { Scalar::UNKNOWN } else { Scalar::signed_range(-half, half - 1) }
}

/// A field of the context.
fn field(context: ContextType, at: i64, size: Size, plain: RegisterKind) -> RegisterKind {
    let (data, end, meta) = match context {
        ContextType::Xdp => (0, 4, 8),
        ContextType::Skb => (76, 80, 140),
        ContextType::Other => (-1, -1, -1),
    };
    match size {
        Size::Dw => RegisterKind::Other,
        Size::W if at == data || at == meta => RegisterKind::Address(PACKET, 0),
        Size::W if at == end => RegisterKind::Other,
        _ => plain,
    }
}

fn stack_load(
    s: &AbstractState,
    at: i64,
    size: Size,
    sext: bool,
    plain: RegisterKind,
    id: u32,
) -> RegisterFact {
    if !(-(FRAME as i64)..=-i64::from(size.bytes())).contains(&at) {
        return RegisterFact { kind: plain, id };
    }
    if size == Size::Dw
        && let Some(fact) = s.spills.get(&(at as i16))
    {
        return *fact;
    }
    let first = (at + FRAME as i64) as usize;
    let mut value = 0u64;
    for i in (0..size.bytes() as usize).rev() {
        let StackCell::Byte(byte) = s.stack[first + i] else { return RegisterFact { kind: plain, id } };
        value = value << 8 | u64::from(byte);
    }
    if sext {
        let spare = 64 - size.bits();
        value = ((value << spare) as i64 >> spare) as u64;
    }
    RegisterFact { kind: RegisterKind::Number(Scalar::constant(value)), id }
}

/// The offset in the frame of an access: [`Err`] if it may be any.
pub(crate) fn in_frame(base: RegisterKind, off: i16) -> Result<Option<i64>, ()> {
    match base {
        RegisterKind::Address(AddressSpace::Stack, at) => Ok(Some(at + i64::from(off))),
        RegisterKind::Frame | RegisterKind::Other => Err(()),
        _ => Ok(None),
    }
}

fn store(s: &mut AbstractState, base: RegisterKind, off: i16, size: Size, value: RegisterFact) {
    let Ok(Some(at)) = in_frame(base, off) else {
        return forget(s, base, off, size);
    };
    forget(s, base, off, size);
    if !(-(FRAME as i64)..=-i64::from(size.bytes())).contains(&at) {
        return;
    }
    let first = (at + FRAME as i64) as usize;
    if let RegisterKind::Number(x) = value.kind
        && let Some(v) = x.as_constant()
    {
        for i in 0..size.bytes() as usize {
            s.stack[first + i] = StackCell::Byte((v >> (8 * i)) as u8);
        }
    }
    if size == Size::Dw && at % 8 == 0 {
        s.spills.insert(at as i16, value);
    }
}

/// Forgets the contents of memory after a store.
fn forget(s: &mut AbstractState, base: RegisterKind, off: i16, size: Size) {
    match in_frame(base, off) {
        Ok(None) => {}
        Ok(Some(at)) => {
            let (from, to) = (at, at + i64::from(size.bytes()));
            s.spills.retain(|&x, _| i64::from(x) + 8 <= from || to <= i64::from(x));
            for x in from.max(-(FRAME as i64))..to.min(0) {
                s.stack[(x + FRAME as i64) as usize] = StackCell::Unknown;
            }
        }
        Err(()) => forget_all(s),
    }
}

fn forget_all(s: &mut AbstractState) {
    s.spills.clear();
    for cell in &mut s.stack {
        if matches!(cell, StackCell::Byte(_)) {
            *cell = StackCell::Unknown;
        }
    }
}

/// `r1` to `r5` after a call.
fn scratch(s: &mut AbstractState) {
    for n in 0..6 {
        s.regs[n].kind = RegisterKind::Uninit;
    }
}

fn call(s: &mut AbstractState, callee: Callee, world: &FunctionContext, id: u32) {
    let map = s.regs[1].kind;
    let helper = if let Callee::Helper(n) = callee { Helper::get(n) } else { None };
    let writes = helper.is_none_or(|h| h.writes_memory() || h.effects.contains(HelperEffects::CALLBACK));
    if writes {
        forget_all(s);
    }
    scratch(s);
    let kind = match helper.map(|h| h.ret) {
        Some(RetKind::Int) => RegisterKind::Number(Scalar::UNKNOWN),
        Some(RetKind::Void) => RegisterKind::Uninit,
        Some(RetKind::MapValueOrNull) => match map {
            RegisterKind::Map(m) if callee == Callee::Helper(helper_id::MAP_LOOKUP_ELEM) => {
                match world.found.contains(&id) {
                    true => RegisterKind::Address(values_of(m), 0),
                    false => RegisterKind::Maybe(values_of(m)),
                }
            }
            _ => RegisterKind::Other,
        },
        _ => RegisterKind::Other,
    };
    s.regs[0] = RegisterFact { kind, id };
    if helper.is_none_or(|h| h.may_change_packet()) {
        let moved = |f: &mut RegisterFact| {
            if matches!(f.kind, RegisterKind::Address(PACKET, _)) {
                f.kind = RegisterKind::Uninit;
            }
        };
        s.regs.iter_mut().for_each(moved);
        s.spills.retain(|_, f| !matches!(f.kind, RegisterKind::Address(PACKET, _)));
    }
}

/// The state on the edge from one block to another; [`None`] if the edge cannot be taken.
pub(crate) fn along(s: &AbstractState, code: &FunctionCode, from: usize, to: usize) -> Option<AbstractState> {
    let mut s = s.clone();
    if let Some(CodeLine { insn, target: Some(goal), .. }) = code.blocks[from].lines.last()
        && matches!(insn, Insn::Branch { .. })
        && (*goal == to) != (from + 1 == to)
    {
        branch(&mut s, insn, *goal == to)?;
    }
    Some(s)
}

/// Facts learnt from a branch that is taken, or not.
pub(crate) fn branch(s: &mut AbstractState, insn: &Insn, taken: bool) -> Option<()> {
    let Insn::Branch { width, cond, dst, src, .. } = *insn else { return Some(()) };
    let (a, b) = (s.get(dst), operand(s, src));
    match (a.kind, b.kind) {
        (RegisterKind::Number(x), RegisterKind::Number(y)) => {
            let (x, y) = AbstractDomain::default().refine(cond, width, taken, &x, &y)?;
            learn(s, a.id, RegisterKind::Number(x), RegisterKind::Number(Scalar::UNKNOWN));
            s.regs[dst.index()].kind = RegisterKind::Number(x);
            if let Operand::Reg(r) = src {
                learn(s, b.id, RegisterKind::Number(y), RegisterKind::Number(Scalar::UNKNOWN));
                s.regs[r.index()].kind = RegisterKind::Number(y);
            }
        }
        (RegisterKind::Maybe(space), RegisterKind::Number(zero))
            if zero.as_constant() == Some(0) && matches!(cond, Cond::Eq | Cond::Ne) =>
        {
            let null = (cond == Cond::Eq) == taken;
            let kind = if null {
                RegisterKind::Number(Scalar::constant(0))
            } else {
                RegisterKind::Address(space, 0)
            };
            learn(s, a.id, kind, RegisterKind::Maybe(space));
        }
        _ => {}
    }
    Some(())
}

/// Sets the kind of all registers and spills that hold the value of this id.
fn learn(s: &mut AbstractState, id: u32, kind: RegisterKind, was: RegisterKind) {
    let same = |x: RegisterKind| std::mem::discriminant(&x) == std::mem::discriminant(&was);
    for f in s.regs.iter_mut().chain(s.spills.values_mut()) {
        if f.id == id && same(f.kind) {
            f.kind = kind;
        }
    }
}

/// The bytes of the stack that a call may read: [`None`] for all.
pub(crate) fn read_by_call(
    s: &AbstractState,
    callee: Callee,
    world: &FunctionContext,
) -> Option<Vec<(i64, i64)>> {
    let Callee::Helper(n) = callee else { return None };
    let helper = Helper::get(n)?;
    if helper.effects.contains(HelperEffects::CALLBACK) || helper.effects.contains(HelperEffects::TAIL_CALL) {
        return None;
    }
    let sizes = match s.regs[1].kind {
        RegisterKind::Map(m) => world.maps.get(m as usize).map(|m| (m.key, m.value)),
        _ => None,
    };
    let mut out = Vec::new();
    for (i, arg) in helper.args.iter().enumerate() {
        let at = match s.regs[i + 1].kind {
            RegisterKind::Address(AddressSpace::Stack, at) => at,
            RegisterKind::Frame | RegisterKind::Other => return None,
            _ => continue,
        };
        // Nobody reads memory that is only written; but if the call fails it keeps its contents.
        let size = match arg {
            ArgKind::MapKey => sizes.map(|s| i64::from(s.0)),
            ArgKind::MapValue | ArgKind::MapValueOrNull | ArgKind::MapValueOut => {
                sizes.map(|s| i64::from(s.1))
            }
            ArgKind::Mem { .. } => match s.regs[i + 2].kind {
                RegisterKind::Number(n) => i64::try_from(n.unsigned().1).ok().filter(|n| *n <= FRAME as i64),
                _ => None,
            },
            ArgKind::Fixed { bytes, .. } => Some(i64::from(*bytes)),
            _ => None,
        };
        out.push((at, at + size?));
    }
    Some(out)
}

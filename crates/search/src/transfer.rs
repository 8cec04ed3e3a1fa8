//! Transfer functions of instructions on facts.

use millstream_isa::absint::{Abstract, Scalar};
use millstream_isa::helpers::{ArgKind, Effects, Helper, RetKind};
use millstream_isa::semantics;
use millstream_isa::{AluOp, AtomicOp, Callee, Cond, Insn, Operand, Pseudo, Reg, Size, Width};
use millstream_object::RelocKind;
use millstream_prove::window::Space;

use crate::code::{Code, Line};
use crate::facts::{CONTEXT, Cell, Context, FRAME, Fact, Kind, PACKET, State, World, values_of};

/// The state after an instruction; `id` is a name for its result.
pub(crate) fn step(s: &mut State, line: &Line, world: &World, id: u32) {
    let number = |x: Scalar| Fact { kind: Kind::Number(x), id };
    match line.insn {
        Insn::Alu { width, op, dst, src } => {
            let (a, b) = (s.get(dst), operand(s, src));
            s.regs[dst.index()] = alu(width, op, a, b, id);
        }
        Insn::Mov { width: Width::W64, dst, src: Operand::Reg(src) } => s.regs[dst.index()] = s.get(src),
        Insn::Mov { width, dst, src } => {
            let known = numeric(operand(s, src));
            s.regs[dst.index()] = number(semantics::mov(&mut Abstract::default(), width, &known));
        }
        Insn::MovSx { width, bits, dst, src } => {
            let known = numeric(s.get(src));
            s.regs[dst.index()] =
                number(semantics::movsx(&mut Abstract::default(), width, u32::from(bits), &known));
        }
        Insn::AddrSpaceCast { dst, .. } => s.regs[dst.index()] = Fact { kind: Kind::Other, id },
        Insn::Neg { width, dst } => {
            let known = numeric(s.get(dst));
            s.regs[dst.index()] = number(semantics::neg(&mut Abstract::default(), width, &known));
        }
        Insn::Swap { kind, bits, dst } => {
            let known = numeric(s.get(dst));
            s.regs[dst.index()] =
                number(semantics::swap(&mut Abstract::default(), kind, u32::from(bits), &known));
        }
        Insn::LoadImm64 { dst, pseudo, imm, .. } => s.regs[dst.index()] = symbol(line, pseudo, imm, id),
        Insn::Load { size, sext, dst, src, off } => {
            let fact = if line.core.is_some() {
                Fact { kind: wide(size), id }
            } else {
                load(s, world, size, sext, src, off, id)
            };
            s.regs[dst.index()] = fact;
        }
        Insn::LoadAcquire { size, dst, .. } => s.regs[dst.index()] = Fact { kind: wide(size), id },
        Insn::Store { size, dst, off, src } => {
            let value = operand(s, src);
            store(s, s.get(dst).kind, off, size, value);
        }
        Insn::Atomic { op, fetch, size, dst, src, off } => {
            forget(s, s.get(dst).kind, off, size);
            if op == AtomicOp::CmpXchg {
                s.regs[0] = Fact { kind: wide(size), id };
            } else if fetch {
                s.regs[src.index()] = Fact { kind: wide(size), id };
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

pub(crate) fn operand(s: &State, o: Operand) -> Fact {
    match o {
        Operand::Reg(r) => s.get(r),
        Operand::Imm(i) => Fact { kind: Kind::Number(Scalar::constant(i as i64 as u64)), id: u32::MAX },
    }
}

fn numeric(f: Fact) -> Scalar {
    if let Kind::Number(x) = f.kind { x } else { Scalar::UNKNOWN }
}

/// Kind of a value loaded from unknown memory: 8 bytes may be a pointer.
fn wide(size: Size) -> Kind {
    if size == Size::Dw { Kind::Other } else { Kind::Number(Scalar::of_width(size.bits())) }
}

/// The result of an operation on values that may be addresses.
pub(crate) fn alu(width: Width, op: AluOp, a: Fact, b: Fact, id: u32) -> Fact {
    let sum = width == Width::W64 && matches!(op, AluOp::Add | AluOp::Sub);
    let kind = match (a.kind, b.kind) {
        (Kind::Number(x), Kind::Number(y)) => {
            Kind::Number(semantics::alu(&mut Abstract::default(), op, width, &x, &y))
        }
        (Kind::Address(space, at), Kind::Number(k)) if sum => return moved(space, at, op, k, a.id, id),
        (Kind::Number(k), Kind::Address(space, at)) if sum && op == AluOp::Add => {
            return moved(space, at, op, k, b.id, id);
        }
        (Kind::Frame, Kind::Number(_)) | (Kind::Number(_), Kind::Frame) => Kind::Frame,
        (Kind::Address(x, _), Kind::Address(y, _)) if x == y && op == AluOp::Sub && sum => {
            Kind::Number(Scalar::UNKNOWN)
        }
        // An end of the packet minus its beginning, or the like.
        _ if op == AluOp::Sub && sum => Kind::Other,
        _ => Kind::Other,
    };
    Fact { kind, id }
}

/// An address that was moved.
fn moved(space: Space, at: i64, op: AluOp, by: Scalar, base: u32, id: u32) -> Fact {
    match by.as_constant().map(|k| if op == AluOp::Add { k as i64 } else { (k as i64).wrapping_neg() }) {
        Some(k) if k.unsigned_abs() < 1 << 29 => {
            Fact { kind: Kind::Address(space, at.wrapping_add(k)), id: base }
        }
        _ if space == Space::Stack => Fact { kind: Kind::Frame, id },
        _ => Fact { kind: Kind::Address(space, 0), id },
    }
}

fn symbol(line: &Line, pseudo: Pseudo, imm: u64, id: u32) -> Fact {
    let kind = match line.reloc {
        Some(RelocKind::Map(m)) => Kind::Map(m.0),
        Some(RelocKind::MapValue { map, offset }) => {
            let kind = Kind::Address(values_of(map.0), i64::from(offset));
            return Fact { kind, id: 1 << 30 | map.0 };
        }
        Some(_) => Kind::Other,
        None if line.core.is_some() => Kind::Number(Scalar::UNKNOWN),
        None if pseudo == Pseudo::None => Kind::Number(Scalar::constant(imm)),
        None => Kind::Other,
    };
    Fact { kind, id }
}

fn load(s: &State, world: &World, size: Size, sext: bool, src: Reg, off: i16, id: u32) -> Fact {
    let base = s.get(src);
    let at = |offset: i64| offset + i64::from(off);
    let plain = if sext { Kind::Number(extended(size)) } else { Kind::Number(Scalar::of_width(size.bits())) };
    let kind = match base.kind {
        Kind::Address(Space::Stack, offset) => return stack_load(s, at(offset), size, sext, plain, id),
        Kind::Address(CONTEXT, offset) => field(world.context, at(offset), size, plain),
        Kind::Address(..) => plain,
        _ if sext || size != Size::Dw => plain,
        _ => Kind::Other,
    };
    Fact { kind, id }
}

fn extended(size: Size) -> Scalar {
    let half = 1i64 << (size.bits() - 1);
    if size == Size::Dw { Scalar::UNKNOWN } else { Scalar::signed_range(-half, half - 1) }
}

/// A field of the context.
fn field(context: Context, at: i64, size: Size, plain: Kind) -> Kind {
    let (data, end, meta) = match context {
        Context::Xdp => (0, 4, 8),
        Context::Skb => (76, 80, 140),
        Context::Other => (-1, -1, -1),
    };
    match size {
        Size::Dw => Kind::Other,
        Size::W if at == data || at == meta => Kind::Address(PACKET, 0),
        Size::W if at == end => Kind::Other,
        _ => plain,
    }
}

fn stack_load(s: &State, at: i64, size: Size, sext: bool, plain: Kind, id: u32) -> Fact {
    if !(-(FRAME as i64)..=-i64::from(size.bytes())).contains(&at) {
        return Fact { kind: plain, id };
    }
    if size == Size::Dw
        && let Some(fact) = s.spills.get(&(at as i16))
    {
        return *fact;
    }
    let first = (at + FRAME as i64) as usize;
    let mut value = 0u64;
    for i in (0..size.bytes() as usize).rev() {
        let Cell::Byte(byte) = s.stack[first + i] else { return Fact { kind: plain, id } };
        value = value << 8 | u64::from(byte);
    }
    if sext {
        let spare = 64 - size.bits();
        value = ((value << spare) as i64 >> spare) as u64;
    }
    Fact { kind: Kind::Number(Scalar::constant(value)), id }
}

/// The offset in the frame of an access: [`Err`] if it may be any.
pub(crate) fn in_frame(base: Kind, off: i16) -> Result<Option<i64>, ()> {
    match base {
        Kind::Address(Space::Stack, at) => Ok(Some(at + i64::from(off))),
        Kind::Frame | Kind::Other => Err(()),
        _ => Ok(None),
    }
}

fn store(s: &mut State, base: Kind, off: i16, size: Size, value: Fact) {
    let Ok(Some(at)) = in_frame(base, off) else {
        return forget(s, base, off, size);
    };
    forget(s, base, off, size);
    if !(-(FRAME as i64)..=-i64::from(size.bytes())).contains(&at) {
        return;
    }
    let first = (at + FRAME as i64) as usize;
    if let Kind::Number(x) = value.kind
        && let Some(v) = x.as_constant()
    {
        for i in 0..size.bytes() as usize {
            s.stack[first + i] = Cell::Byte((v >> (8 * i)) as u8);
        }
    }
    if size == Size::Dw && at % 8 == 0 {
        s.spills.insert(at as i16, value);
    }
}

/// Forgets the contents of memory after a store.
fn forget(s: &mut State, base: Kind, off: i16, size: Size) {
    match in_frame(base, off) {
        Ok(None) => {}
        Ok(Some(at)) => {
            let (from, to) = (at, at + i64::from(size.bytes()));
            s.spills.retain(|&x, _| i64::from(x) + 8 <= from || to <= i64::from(x));
            for x in from.max(-(FRAME as i64))..to.min(0) {
                s.stack[(x + FRAME as i64) as usize] = Cell::Unknown;
            }
        }
        Err(()) => forget_all(s),
    }
}

fn forget_all(s: &mut State) {
    s.spills.clear();
    for cell in &mut s.stack {
        if matches!(cell, Cell::Byte(_)) {
            *cell = Cell::Unknown;
        }
    }
}

/// `r1` to `r5` after a call.
fn scratch(s: &mut State) {
    for n in 0..6 {
        s.regs[n].kind = Kind::Uninit;
    }
}

fn call(s: &mut State, callee: Callee, world: &World, id: u32) {
    let map = s.regs[1].kind;
    let helper = if let Callee::Helper(n) = callee { Helper::get(n) } else { None };
    let writes = helper.is_none_or(|h| h.writes_memory() || h.effects.contains(Effects::CALLBACK));
    if writes {
        forget_all(s);
    }
    scratch(s);
    let kind = match helper.map(|h| h.ret) {
        Some(RetKind::Int) => Kind::Number(Scalar::UNKNOWN),
        Some(RetKind::Void) => Kind::Uninit,
        Some(RetKind::MapValueOrNull) => match map {
            Kind::Map(m) if callee == Callee::Helper(1) => match world.found.contains(&id) {
                true => Kind::Address(values_of(m), 0),
                false => Kind::Maybe(values_of(m)),
            },
            _ => Kind::Other,
        },
        _ => Kind::Other,
    };
    s.regs[0] = Fact { kind, id };
    if helper.is_none_or(|h| h.may_change_packet()) {
        let moved = |f: &mut Fact| {
            if matches!(f.kind, Kind::Address(PACKET, _)) {
                f.kind = Kind::Uninit;
            }
        };
        s.regs.iter_mut().for_each(moved);
        s.spills.retain(|_, f| !matches!(f.kind, Kind::Address(PACKET, _)));
    }
}

/// The state of a caller after a function of its own program has returned.
pub(crate) fn returned(s: &mut State, result: Fact) {
    forget_all(s);
    scratch(s);
    let own = !matches!(result.kind, Kind::Address(Space::Stack, _) | Kind::Frame);
    s.regs[0] = if own { result } else { Fact { kind: Kind::Other, ..result } };
}

/// The state on the edge from one block to another; [`None`] if the edge cannot be taken.
pub(crate) fn along(s: &State, code: &Code, from: usize, to: usize) -> Option<State> {
    let mut s = s.clone();
    if let Some(Line { insn, target: Some(goal), .. }) = code.blocks[from].lines.last()
        && matches!(insn, Insn::Branch { .. })
        && (*goal == to) != (from + 1 == to)
    {
        branch(&mut s, insn, *goal == to)?;
    }
    Some(s)
}

/// Facts learnt from a branch that is taken, or not.
pub(crate) fn branch(s: &mut State, insn: &Insn, taken: bool) -> Option<()> {
    let Insn::Branch { width, cond, dst, src, .. } = *insn else { return Some(()) };
    let (a, b) = (s.get(dst), operand(s, src));
    match (a.kind, b.kind) {
        (Kind::Number(x), Kind::Number(y)) => {
            let (x, y) = Abstract::default().refine(cond, width, taken, &x, &y)?;
            learn(s, a.id, Kind::Number(x), Kind::Number(Scalar::UNKNOWN));
            s.regs[dst.index()].kind = Kind::Number(x);
            if let Operand::Reg(r) = src {
                learn(s, b.id, Kind::Number(y), Kind::Number(Scalar::UNKNOWN));
                s.regs[r.index()].kind = Kind::Number(y);
            }
        }
        (Kind::Maybe(space), Kind::Number(zero))
            if zero.as_constant() == Some(0) && matches!(cond, Cond::Eq | Cond::Ne) =>
        {
            let null = (cond == Cond::Eq) == taken;
            let kind = if null { Kind::Number(Scalar::constant(0)) } else { Kind::Address(space, 0) };
            learn(s, a.id, kind, Kind::Maybe(space));
        }
        _ => {}
    }
    Some(())
}

/// Sets the kind of all registers and spills that hold the value of this id.
fn learn(s: &mut State, id: u32, kind: Kind, was: Kind) {
    let same = |x: Kind| std::mem::discriminant(&x) == std::mem::discriminant(&was);
    for f in s.regs.iter_mut().chain(s.spills.values_mut()) {
        if f.id == id && same(f.kind) {
            f.kind = kind;
        }
    }
}

/// The bytes of the stack that a call may read: [`None`] for all.
pub(crate) fn read_by_call(s: &State, callee: Callee, world: &World) -> Option<Vec<(i64, i64)>> {
    let Callee::Helper(n) = callee else { return None };
    let helper = Helper::get(n)?;
    if helper.effects.contains(Effects::CALLBACK) || helper.effects.contains(Effects::TAIL_CALL) {
        return None;
    }
    let sizes = match s.regs[1].kind {
        Kind::Map(m) => world.maps.get(m as usize).map(|m| (m.key, m.value)),
        _ => None,
    };
    let mut out = Vec::new();
    for (i, arg) in helper.args.iter().enumerate() {
        let at = match s.regs[i + 1].kind {
            Kind::Address(Space::Stack, at) => at,
            Kind::Frame | Kind::Other => return None,
            _ => continue,
        };
        // Nobody reads memory that is only written; but if the call fails it keeps its contents.
        let size = match arg {
            ArgKind::MapKey => sizes.map(|s| i64::from(s.0)),
            ArgKind::MapValue | ArgKind::MapValueOrNull | ArgKind::MapValueOut => {
                sizes.map(|s| i64::from(s.1))
            }
            ArgKind::Mem { .. } => match s.regs[i + 2].kind {
                Kind::Number(n) => i64::try_from(n.unsigned().1).ok().filter(|n| *n <= FRAME as i64),
                _ => None,
            },
            ArgKind::Fixed { bytes, .. } => Some(i64::from(*bytes)),
            _ => None,
        };
        out.push((at, at + size?));
    }
    Some(out)
}

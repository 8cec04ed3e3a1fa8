//! Effects of instructions on a path's state.

use millstream_isa::absint::Scalar;
use millstream_isa::semantics;
use millstream_isa::{AluOp, AtomicOp, Insn, MapType, Operand, Pseudo, Reg, Size, Width};
use millstream_object::{MapId, MapOrigin, Object, ProgramType, RelocKind};

use super::code::{SCRATCH, WalkLine};
use super::frame::{FRAME, StackByte, VerifierFrame, signed_load, slot_of, slots_of};
use super::register::{PointerTarget, RegisterValue, VerifierPointer, VerifierRegister};
use super::rules::WalkRules;

/// Facts about the program that steps need.
pub(super) struct ProgramFacts<'a> {
    pub(super) object: &'a Object,
    pub(super) kind: ProgramType,
    /// The context's fields may be pointers to objects of the kernel.
    pub(super) typed_context: bool,
    pub(super) rules: WalkRules,
}

impl ProgramFacts<'_> {
    /// Returns true if addresses in the map are numbers to the verifier.
    fn is_arena(&self, map: MapId) -> bool {
        self.object.maps.get(map.index()).is_some_and(|m| m.spec.map_type == MapType::ARENA)
    }
}

/// Effects of an instruction beyond the state, for the precision of numbers.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct StepEffect {
    /// Frame and slot that were read or written.
    pub(super) slot: Option<(u8, u8)>,
    /// Registers whose exact numbers the verifier used.
    pub(super) precise: u16,
    /// Frame and slot of a spilled number that it used.
    pub(super) precise_slot: Option<(u8, u8)>,
    /// Frames and their slots that were read, one bit each.
    pub(super) reads: [(u8, u64); 5],
    /// Frame and slot that was overwritten.
    pub(super) overwritten: Option<(u8, u8)>,
}

/// Names for values.
#[derive(Default)]
pub(super) struct NameSource(pub(super) u32);

impl NameSource {
    pub(super) fn next(&mut self) -> u32 {
        self.0 += 1;
        self.0
    }
}

pub(super) fn operand(frame: &VerifierFrame, o: Operand) -> VerifierRegister {
    match o {
        Operand::Reg(r) => frame.get(r),
        Operand::Imm(k) => VerifierRegister::number(Scalar::constant(k as i64 as u64)),
    }
}

/// Executes an instruction that neither jumps nor calls.
pub(super) fn step(
    facts: &ProgramFacts<'_>,
    frames: &mut [VerifierFrame],
    line: &WalkLine,
    names: &mut NameSource,
) -> StepEffect {
    let Some((frame, _)) = frames.split_last_mut() else { return StepEffect::default() };
    let mut domain = facts.rules.domain;
    let mut effect = StepEffect::default();
    match line.insn {
        Insn::Alu { width, op, dst, src } => {
            effect.precise = alu(&facts.rules, frame, (width, op, dst, src), names)
        }
        Insn::Mov { width: Width::W64, dst, src: Operand::Reg(src) } => {
            let value = named(frame, src, names);
            frame.set(dst, value);
        }
        Insn::Mov { width, dst, src } => {
            let from = match src {
                Operand::Reg(r)
                    if facts.rules.names_numbers
                        && frame.get(r).is_number()
                        && frame.get(r).scalar().fits_u32() =>
                {
                    named(frame, r, names)
                }
                _ => VerifierRegister { id: 0, delta: 0, ..operand(frame, src) },
            };
            let value = semantics::mov(&mut domain, width, &from.scalar());
            let (id, delta) = (from.id, from.delta);
            frame.set(dst, VerifierRegister { id, delta, ..VerifierRegister::number(value) });
        }
        Insn::MovSx { width, bits, dst, src } => {
            let value = semantics::movsx(&mut domain, width, bits.into(), &frame.get(src).scalar());
            frame.set(dst, VerifierRegister::number(value));
        }
        Insn::AddrSpaceCast { dst, .. } => frame.set(dst, object_pointer(false, 0)),
        Insn::Neg { width, dst } => {
            let value = domain.neg(width, &frame.get(dst).scalar());
            frame.set(dst, VerifierRegister::number(value));
        }
        Insn::Swap { kind, bits, dst } => {
            let value = domain.swap(kind, bits.into(), &frame.get(dst).scalar());
            frame.set(dst, VerifierRegister::number(value));
        }
        Insn::LoadImm64 { dst, pseudo, imm, .. } => frame.set(dst, symbol(facts, line, pseudo, imm)),
        Insn::Load { size, sext, dst, src, off } => {
            effect.reads[0] = slots_read(frames, src, off, size.bytes().into());
            effect.slot = load(facts, frames, line, (size, sext, dst, src, off))
        }
        Insn::LoadAcquire { size, dst, .. } => {
            frame.set(dst, VerifierRegister::number(Scalar::of_width(size.bits())))
        }
        Insn::Store { size, dst, off, src } => {
            effect = store(&facts.rules, frames, size, (dst, off), src, names)
        }
        Insn::StoreRelease { size, dst, off, .. } => scribble(frames, dst, off, size),
        Insn::Atomic { op, fetch, size, dst, src, off } => {
            effect.reads[0] = slots_read(frames, dst, off, size.bytes().into());
            scribble(frames, dst, off, size);
            let Some(frame) = frames.last_mut() else { return effect };
            let old = VerifierRegister::number(Scalar::of_width(size.bits()));
            if op == AtomicOp::CmpXchg {
                frame.set(Reg::R0, old);
            } else if fetch {
                frame.set(src, old);
            }
        }
        Insn::LegacyLoad { .. } => {
            SCRATCH.iter().for_each(|r| frame.set(*r, VerifierRegister::UNINIT));
            frame.set(Reg::R0, VerifierRegister::number(Scalar::of_width(32)));
        }
        Insn::Call(_) | Insn::Jump { .. } | Insn::Branch { .. } | Insn::MayGoto { .. } | Insn::Exit => {}
    }
    effect
}

/// A register's value; a number that is not known exactly gets a name, which copies share
/// (`assign_scalar_id_before_mov`).
fn named(frame: &mut VerifierFrame, r: Reg, names: &mut NameSource) -> VerifierRegister {
    let mut value = frame.get(r);
    if value.is_number() {
        if value.delta != 0 {
            (value.id, value.delta) = (0, 0);
        }
        if value.id == 0 && value.scalar().as_constant().is_none() {
            value.id = names.next();
        }
        frame.set(r, value);
    }
    value
}

pub(super) fn object_pointer(nullable: bool, id: u32) -> VerifierRegister {
    VerifierRegister::pointer(VerifierPointer { nullable, ..VerifierPointer::to(PointerTarget::Object) }, id)
}

/// Arithmetic; returns the registers whose exact numbers count.
fn alu(
    rules: &WalkRules,
    frame: &mut VerifierFrame,
    (width, op, dst, src): (Width, AluOp, Reg, Operand),
    names: &mut NameSource,
) -> u16 {
    let mut domain = rules.domain;
    let (a, b) = (frame.get(dst), operand(frame, src));
    let sum = width == Width::W64 && matches!(op, AluOp::Add | AluOp::Sub);
    let (result, precise) = match (a.value, b.value) {
        (RegisterValue::Pointer(p), RegisterValue::Number(k)) if sum => {
            let bit = if let Operand::Reg(r) = src { 1 << r.index() } else { 0 };
            (moved(rules, (p, a.id), op, k, names), bit)
        }
        (RegisterValue::Number(k), RegisterValue::Pointer(p)) if sum && op == AluOp::Add => {
            (moved(rules, (p, b.id), op, k, names), 1 << dst.index())
        }
        (RegisterValue::Number(x), RegisterValue::Number(y)) => {
            let value = semantics::alu(&mut domain, op, width, &x, &y);
            let linked = rules.names_numbers && op == AluOp::Add && (width == Width::W64 || x.fits_u32());
            (if linked { linked_sum(a, value, y) } else { VerifierRegister::number(value) }, 0)
        }
        _ => (VerifierRegister::number(Scalar::UNKNOWN), 0),
    };
    frame.set(dst, result);
    precise
}

/// The sum of a number and a constant stays linked to the number.
fn linked_sum(a: VerifierRegister, value: Scalar, by: Scalar) -> VerifierRegister {
    let delta = by.as_constant().and_then(|k| i32::try_from(k as i64).ok());
    match delta {
        Some(k) if a.id != 0 && a.delta == 0 => {
            VerifierRegister { id: a.id, delta: k, ..VerifierRegister::number(value) }
        }
        _ => VerifierRegister::number(value),
    }
}

fn moved(
    rules: &WalkRules,
    (p, id): (VerifierPointer, u32),
    op: AluOp,
    by: Scalar,
    names: &mut NameSource,
) -> VerifierRegister {
    let mut domain = rules.domain;
    let none = Scalar::constant(0);
    let by = if op == AluOp::Sub { semantics::alu(&mut domain, op, Width::W64, &none, &by) } else { by };
    match by.as_constant() {
        Some(k) => VerifierRegister::pointer(VerifierPointer { off: p.off.wrapping_add(k as i64), ..p }, id),
        None => {
            let variable = semantics::alu(&mut domain, AluOp::Add, Width::W64, &p.variable, &by);
            let packet = p.target == PointerTarget::Packet;
            let moved = VerifierPointer { variable, range: if packet { 0 } else { p.range }, ..p };
            VerifierRegister::pointer(moved, if packet { names.next() } else { id })
        }
    }
}

fn symbol(facts: &ProgramFacts<'_>, line: &WalkLine, pseudo: Pseudo, imm: u64) -> VerifierRegister {
    let pointer = |target| VerifierRegister::pointer(VerifierPointer::to(target), 0);
    match line.reloc {
        Some(RelocKind::Map(m)) => pointer(PointerTarget::Map(m.0)),
        Some(RelocKind::MapValue { map, .. }) if facts.is_arena(map) => {
            VerifierRegister::number(Scalar::UNKNOWN)
        }
        Some(RelocKind::MapValue { map, offset }) => {
            let at =
                VerifierPointer { off: offset.into(), ..VerifierPointer::to(PointerTarget::MapValue(map.0)) };
            VerifierRegister::pointer(at, 0)
        }
        Some(RelocKind::FuncAddr(f)) => pointer(PointerTarget::Function(f.0)),
        Some(_) => object_pointer(false, 0),
        None if pseudo == Pseudo::None => VerifierRegister::number(Scalar::constant(imm)),
        None => object_pointer(false, 0),
    }
}

/// The frame and the offset of an access to a stack: no offset if it may be any.
pub(super) fn in_stack(base: VerifierRegister, off: i16) -> Option<(usize, Option<i64>)> {
    let p = base.as_pointer()?;
    let PointerTarget::Stack(frame) = p.target else { return None };
    Some((frame.into(), p.fixed().map(|at| at + i64::from(off))))
}

pub(super) fn slot_bits(frame: usize, at: i64) -> Option<(u8, u8)> {
    slot_of(at).map(|slot| (frame as u8, slot as u8))
}

fn load(
    facts: &ProgramFacts<'_>,
    frames: &mut [VerifierFrame],
    line: &WalkLine,
    (size, sext, dst, src, off): (Size, bool, Reg, Reg, i16),
) -> Option<(u8, u8)> {
    let plain =
        VerifierRegister::number(if sext { signed_load(size) } else { Scalar::of_width(size.bits()) });
    let base = frames.last()?.get(src);
    let (mut value, mut slot) = (plain, None);
    if let Some((at, offset)) = in_stack(base, off) {
        if let (Some(offset), Some(frame)) = (offset, frames.get(at)) {
            let (loaded, spilled) = frame.load(&facts.rules, offset, size, sext);
            value = loaded;
            slot = slot_bits(at, offset).filter(|_| spilled);
        }
    } else if let Some(p) = base.as_pointer().filter(|p| !line.open || p.target == PointerTarget::Context) {
        let at = p.fixed().map(|at| at + i64::from(off));
        value = match p.target {
            PointerTarget::Context => field(facts, at.unwrap_or(-1), size).unwrap_or(plain),
            PointerTarget::MapValue(map) => {
                at.and_then(|at| constant(facts.object, map, at, size, sext)).unwrap_or(plain)
            }
            PointerTarget::Object if size == Size::Dw && facts.typed_context => object_pointer(false, 0),
            _ => plain,
        };
    } else if line.open && size == Size::Dw && facts.typed_context {
        value = object_pointer(false, 0);
    }
    frames.last_mut()?.set(dst, value);
    slot
}

/// The contents of a map of constants.
fn constant(object: &Object, map: u32, at: i64, size: Size, sext: bool) -> Option<VerifierRegister> {
    let map = object.maps.get(map as usize).filter(|m| m.origin == MapOrigin::Rodata)?;
    let from = usize::try_from(at).ok()?;
    let bytes = map.data.as_ref()?.get(from..from + size.bytes() as usize)?;
    let value = object.byte_order().number(bytes);
    let spare = 64 - size.bits();
    let value = if sext { ((value << spare) as i64 >> spare) as u64 } else { value };
    Some(VerifierRegister::number(Scalar::constant(value)))
}

/// A field of the context that is a pointer.
fn field(facts: &ProgramFacts<'_>, at: i64, size: Size) -> Option<VerifierRegister> {
    use ProgramType as P;
    let (data, end, meta) = match facts.kind {
        P::XDP => (0, 4, 8),
        P::UNSPEC
        | P::SCHED_CLS
        | P::SCHED_ACT
        | P::CGROUP_SKB
        | P::SK_SKB
        | P::LWT_IN
        | P::LWT_OUT
        | P::LWT_XMIT
        | P::LWT_SEG6LOCAL
        | P::FLOW_DISSECTOR => (76, 80, 140),
        _ if facts.typed_context && size == Size::Dw => return Some(object_pointer(false, 0)),
        _ => return None,
    };
    let target = match size {
        Size::W if at == data => PointerTarget::Packet,
        Size::W if at == meta => PointerTarget::Packet,
        Size::W if at == end => PointerTarget::PacketEnd,
        _ => return None,
    };
    Some(VerifierRegister::pointer(VerifierPointer::to(target), 0))
}

fn store(
    rules: &WalkRules,
    frames: &mut [VerifierFrame],
    size: Size,
    (dst, off): (Reg, i16),
    src: Operand,
    names: &mut NameSource,
) -> StepEffect {
    let mut effect = StepEffect::default();
    let Some(own) = frames.last_mut() else { return effect };
    let base = own.get(dst);
    let Some((at, offset)) = in_stack(base, off) else { return effect };
    let value = match src {
        Operand::Reg(r)
            if rules.names_numbers && own.get(r).scalar().unsigned().1 <= u64::MAX >> (64 - size.bits()) =>
        {
            named(own, r, names)
        }
        _ => operand(own, src),
    };
    match (offset, frames.get_mut(at)) {
        (Some(offset), Some(frame)) => {
            effect.overwritten = slot_bits(at, offset).filter(|_| size == Size::Dw);
            if frame.store(rules, offset, size, (value, src)) {
                effect.slot = slot_bits(at, offset);
                // A slot at another base is not followed backwards.
                if let Operand::Reg(r) = src
                    && !rules.follows_needs
                    && value.is_number()
                    && dst != Reg::R10
                {
                    effect.precise = 1 << r.index();
                }
            } else if let Operand::Reg(r) = src
                && value.is_number()
                && value.scalar().as_constant() == Some(0)
            {
                // The bytes are zero only if the register is.
                effect.precise = 1 << r.index();
            }
        }
        (None, Some(frame)) => {
            if let Some(p) = base.as_pointer() {
                let (from, bytes) = window(&p, off, size.bytes().into());
                frame.fill(from, bytes, StackByte::Misc);
            }
        }
        (_, None) => {}
    }
    effect
}

/// Memory that was written with unknown contents.
fn scribble(frames: &mut [VerifierFrame], dst: Reg, off: i16, size: Size) {
    let Some(base) = frames.last().map(|f| f.get(dst)) else { return };
    let Some((at, offset)) = in_stack(base, off) else { return };
    if let (Some(frame), Some(offset)) = (frames.get_mut(at), offset) {
        frame.fill(offset, size.bytes().into(), StackByte::Misc);
    }
}

/// Slots behind an address that are read: the first of an access at a constant offset, all that it may touch
/// otherwise.
fn slots_read(frames: &[VerifierFrame], base: Reg, off: i16, bytes: i64) -> (u8, u64) {
    let Some(base) = frames.last().map(|f| f.get(base)) else { return (0, 0) };
    match (in_stack(base, off), base.as_pointer()) {
        (Some((frame, Some(at))), _) => (frame as u8, slots_of(at, 1)),
        (Some((frame, None)), Some(p)) => {
            let (from, bytes) = window(&p, off, bytes);
            (frame as u8, slots_of(from, bytes))
        }
        _ => (0, 0),
    }
}

/// First byte of the frame that an access at a variable offset may touch, and the number of such bytes.
fn window(p: &VerifierPointer, off: i16, bytes: i64) -> (i64, i64) {
    let (low, high) = p.variable.signed();
    let base = p.off.saturating_add(off.into());
    let from = base.saturating_add(low).max(-FRAME);
    let to = base.saturating_add(high).saturating_add(bytes).min(0);
    (from, to.saturating_sub(from))
}

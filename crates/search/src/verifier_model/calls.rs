//! Effects of calls on a path's state.

use millstream_isa::absint::Scalar;
use millstream_isa::helpers::{ArgKind, Helper, RetKind, id as helper_id};
use millstream_isa::{Callee, MapType, Reg, Size};
use millstream_object::Object;

use super::code::{SCRATCH, WalkLine, helper_of};
use super::frame::{FRAME, StackByte, VerifierFrame, slots_of};
use super::register::{PointerTarget, RegisterValue, VerifierPointer, VerifierRegister};
use super::step::{NameSource, ProgramFacts, StepEffect, in_stack, object_pointer, slot_bits};

/// A call of a helper, of a function of the kernel, or of a global function.
pub(super) fn call(
    facts: &ProgramFacts<'_>,
    frames: &mut [VerifierFrame],
    line: &WalkLine,
    callee: Callee,
    names: &mut NameSource,
) -> StepEffect {
    let helper = helper_of(line.insn);
    let mut effect = StepEffect::default();
    let Some(args) = frames.last().map(|f| f.regs) else { return effect };
    let map = match args[1].as_pointer().map(|p| p.target) {
        Some(PointerTarget::Map(m)) => Some(m),
        _ => None,
    };
    let inner_of = match args[1].as_pointer().map(|p| p.target) {
        Some(PointerTarget::InnerMap(m)) => Some(m),
        _ => None,
    };
    effect.reads = slots_read_by_call(facts, frames, helper, map);
    for (n, arg) in helper.map_or(&[][..], |h| h.args).iter().enumerate() {
        if matches!(arg, ArgKind::Size | ArgKind::SizeOrZero | ArgKind::AllocSize) {
            effect.precise |= 1 << (n + 1);
        }
        if arg.writes_memory() {
            let bytes = match arg {
                ArgKind::Fixed { bytes, .. } => i64::from(*bytes),
                ArgKind::MapValueOut => value_size(facts.object, map),
                ArgKind::Dynptr | ArgKind::DynptrOut => 16,
                _ => args.get(n + 2).map_or(0, |size| size.scalar().unsigned().1.min(FRAME as u64) as i64),
            };
            write_behind(frames, args[n + 1], bytes);
        }
    }
    if callee == Callee::Helper(helper_id::TAIL_CALL) {
        effect.precise |= 1 << 3;
    }
    let element = map
        .filter(|_| facts.rules.finds_constant_keys && callee == Callee::Helper(helper_id::MAP_LOOKUP_ELEM))
        .and_then(|m| constant_element(facts, frames, m, args[2]));
    effect.precise_slot = element.flatten();
    let Some((frame, callers)) = frames.split_last_mut() else { return effect };
    SCRATCH.iter().for_each(|r| frame.set(*r, VerifierRegister::UNINIT));
    let sized =
        helper.and_then(|h| h.args.iter().position(|a| matches!(a, ArgKind::Size | ArgKind::SizeOrZero)));
    let most = sized.and_then(|n| args.get(n + 1)).map_or(i64::MAX, |size| size.scalar().signed().1);
    let mut value = result(facts, helper, (map, inner_of), most, names);
    if let (Some(_), RegisterValue::Pointer(p)) = (element, &mut value.value) {
        (p.nullable, value.id) = (false, 0);
    }
    frame.set(Reg::R0, value);
    if helper.is_some_and(Helper::may_change_packet) {
        callers.iter_mut().chain([frame]).for_each(void_packet_pointers);
    }
    effect
}

/// The element of an array whose index is a constant on the stack is there: the slot that holds the index as
/// a spilled number, if it is one (`get_constant_map_key`).
fn constant_element(
    facts: &ProgramFacts<'_>,
    frames: &[VerifierFrame],
    map: u32,
    key: VerifierRegister,
) -> Option<Option<(u8, u8)>> {
    let spec = &facts.object.maps.get(map as usize)?.spec;
    if !matches!(spec.map_type, MapType::ARRAY | MapType::PERCPU_ARRAY) || spec.key_size != 4 {
        return None;
    }
    let (at, offset) = in_stack(key, 0)?;
    let (value, spilled) = frames.get(at)?.load(&facts.rules, offset?, Size::W, false);
    let index = value.scalar().as_constant().filter(|_| value.is_number())?;
    let whole = frames.get(at)?.holds(offset?, Size::W);
    (index < u64::from(spec.max_entries) && spilled == whole)
        .then(|| slot_bits(at, offset.unwrap_or_default()).filter(|_| spilled))
}

/// Slots that a call reads through its arguments.
fn slots_read_by_call(
    facts: &ProgramFacts<'_>,
    frames: &[VerifierFrame],
    helper: Option<&Helper>,
    map: Option<u32>,
) -> [(u8, u64); 5] {
    let spec = map.and_then(|m| facts.object.maps.get(m as usize)).map(|m| &m.spec);
    let Some(args) = frames.last().map(|f| f.regs) else { return Default::default() };
    std::array::from_fn(|n| {
        let Some((frame, at)) = in_stack(args[n + 1], 0) else { return (0, 0) };
        let at = at.unwrap_or(-FRAME);
        let bytes = match helper.map(|h| h.args.get(n)) {
            // It is not known how much another function reads.
            None => -at,
            Some(Some(ArgKind::MapKey)) => spec.map_or(-at, |s| s.key_size.into()),
            Some(Some(ArgKind::MapValue | ArgKind::MapValueOrNull)) => {
                spec.map_or(-at, |s| s.value_size.into())
            }
            Some(Some(ArgKind::Fixed { bytes, read: true, .. })) => i64::from(*bytes),
            Some(Some(ArgKind::Mem { read: true, .. })) => {
                args.get(n + 2).map_or(-at, |size| size.scalar().unsigned().1.min(FRAME as u64) as i64)
            }
            Some(Some(kind)) if kind.reads_memory() => -at,
            _ => 0,
        };
        (frame as u8, slots_of(at, bytes))
    })
}

fn value_size(object: &Object, map: Option<u32>) -> i64 {
    map.and_then(|m| object.maps.get(m as usize)).map_or(0, |m| i64::from(m.spec.value_size))
}

fn write_behind(frames: &mut [VerifierFrame], argument: VerifierRegister, bytes: i64) {
    let Some((at, offset)) = in_stack(argument, 0) else { return };
    if let (Some(frame), Some(offset)) = (frames.get_mut(at), offset) {
        frame.fill(offset, bytes, StackByte::Misc);
    }
}

fn void_packet_pointers(frame: &mut VerifierFrame) {
    let packet = |p: VerifierPointer| matches!(p.target, PointerTarget::Packet | PointerTarget::PacketEnd);
    frame.change(|v| v.as_pointer().is_some_and(packet), |v| *v = VerifierRegister::number(Scalar::UNKNOWN));
}

fn result(
    facts: &ProgramFacts<'_>,
    helper: Option<&Helper>,
    (map, inner_of): (Option<u32>, Option<u32>),
    most: i64,
    names: &mut NameSource,
) -> VerifierRegister {
    let Some(helper) = helper else {
        return VerifierRegister::number(Scalar::UNKNOWN);
    };
    match helper.ret {
        RetKind::Int => VerifierRegister::number(bounded(helper, most)),
        RetKind::Void => VerifierRegister::UNINIT,
        RetKind::MapValueOrNull | RetKind::MapValue => {
            let inner = map.and_then(|m| facts.object.maps.get(m as usize));
            let kind = inner.map(|m| m.spec.map_type);
            let of_maps = matches!(kind, Some(MapType::ARRAY_OF_MAPS | MapType::HASH_OF_MAPS));
            let target = match (map, inner_of) {
                (Some(m), _) if of_maps => PointerTarget::InnerMap(m),
                (Some(m), _) | (None, Some(m)) => PointerTarget::MapValue(m),
                (None, None) => PointerTarget::Object,
            };
            let nullable = helper.ret.nullable();
            VerifierRegister::pointer(
                VerifierPointer { nullable, ..VerifierPointer::to(target) },
                names.next(),
            )
        }
        kind => object_pointer(kind.nullable(), names.next()),
    }
}

/// Results of helpers whose bounds the verifier knows (`do_refine_retval_range`).
fn bounded(helper: &Helper, most: i64) -> Scalar {
    match helper.name {
        "get_smp_processor_id" => Scalar::range(0, 8191),
        "get_stack"
        | "get_task_stack"
        | "probe_read_str"
        | "probe_read_kernel_str"
        | "probe_read_user_str" => Scalar::signed_range(-4095, most.max(0)),
        _ => Scalar::UNKNOWN,
    }
}

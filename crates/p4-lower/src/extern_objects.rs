//! Objects that externs have in common: elements of arrays, registers, meters, hashes and events.

use millstream_ir::{AluOp, Cond, Op, Prov, Size, Type, Value, Width};
use millstream_p4::expression::ExpressionTree;
use millstream_p4::{ConstantValue, SourceSpan};

use crate::arguments::{GivenArguments, argument};
use crate::emitter::Address;
use crate::error::{Lowered, refuse};
use crate::lowerer::Lowerer;
use crate::meters::{self, metered_units};
use crate::pipeline::ObjectKind;
use crate::types::RuntimeType;
use crate::values::{Operand, Place, Scalar, Target};
use crate::writer::{Padding, byte_string};

const WORD: RuntimeType = RuntimeType::Bits(32, false);

/// `bpf_ringbuf_output`
const RING_OUTPUT_HELPER: i32 = 130;

pub(crate) fn is_member<'p>(l: &mut Lowerer<'p>, expression: &'p ExpressionTree, name: &str) -> bool {
    matches!(l.known(expression), Some(ConstantValue::Member(_, member)) if &*member == name)
}

/// Address of an element of an object's array, or null.
pub(crate) fn object_element<'p>(
    l: &mut Lowerer<'p>,
    number: usize,
    index: &'p ExpressionTree,
    span: SourceSpan,
) -> Lowered<Value> {
    let index = l.scalar(index, Some(&WORD))?;
    let Some(map) = l.pipeline.objects[number].map else {
        return refuse(span, "this object has no elements");
    };
    let e = &mut l.emitter;
    // An index above 32 bits is beyond every array.
    let mut low = index.words[0];
    let high = e.alu_with(AluOp::Rsh, low, 32);
    let none = e.constant(u64::from(u32::MAX));
    low = e.select(high, none, low);
    for word in &index.words[1..] {
        low = e.select(*word, none, low);
    }
    Ok(l.array_element(map, Some(low)))
}

fn register_place(l: &mut Lowerer<'_>, number: usize, element: Value, span: SourceSpan) -> Lowered<Place> {
    match l.objects.register_types.get(&number) {
        Some(value_type) => Ok(Place::new(Address::pointer(element), value_type.clone())),
        None => refuse(span, "this is no register"),
    }
}

/// Writes a register; an index outside of it does nothing.
pub(crate) fn write_register<'p>(
    l: &mut Lowerer<'p>,
    number: usize,
    arguments: &GivenArguments<'p>,
    span: SourceSpan,
) -> Lowered<()> {
    let found = object_element(l, number, argument(arguments, 0, span)?, span)?;
    let place = register_place(l, number, found, span)?;
    let value = l.memory(argument(arguments, 1, span)?, Some(&place.value_type))?;
    let behind = l.emitter.split(found);
    l.assign_place(&value, &place)?;
    l.emitter.jump(behind);
    l.emitter.enter(behind);
    Ok(())
}

/// A copy of the value at an index of a register; zero outside of it.
pub(crate) fn register_value<'p>(
    l: &mut Lowerer<'p>,
    number: usize,
    index: &'p ExpressionTree,
    span: SourceSpan,
) -> Lowered<Place> {
    let found = object_element(l, number, index, span)?;
    let place = register_place(l, number, found, span)?;
    let local = l.emitter.variable(place.value_type.clone());
    let behind = l.emitter.split(found);
    l.assign_place(&place, &local)?;
    l.emitter.jump(behind);
    l.emitter.enter(behind);
    Ok(local)
}

/// Color of the packet by a meter of an array, with a color and units that may be given; green outside of
/// it.
pub(crate) fn metered<'p>(
    l: &mut Lowerer<'p>,
    number: usize,
    index: &'p ExpressionTree,
    (color, units): (Option<Value>, Option<Value>),
    span: SourceSpan,
) -> Lowered<Value> {
    let ObjectKind::Meter { counts_bytes } = l.pipeline.objects[number].kind else {
        return refuse(span, "this is no meter");
    };
    let found = object_element(l, number, index, span)?;
    let units = units.unwrap_or_else(|| metered_units(l, counts_bytes));
    let local = l.emitter.variable(WORD);
    let behind = l.emitter.split(found);
    let color = meters::run_meter(&mut l.emitter, Address::pointer(found), units, color);
    l.emitter.store(local.address, Size::W, color);
    l.emitter.jump(behind);
    l.emitter.enter(behind);
    Ok(l.emitter.load_scalar(&local).words[0])
}

/// Writes the value of an `out` argument.
pub(crate) fn give<'p>(l: &mut Lowerer<'p>, expression: &'p ExpressionTree, value: &Operand) -> Lowered<()> {
    let Some(target) = l.target_of(expression)? else {
        return refuse(expression.span, "this cannot be written");
    };
    let scalar = match (value, &target) {
        (Operand::Scalar(scalar), _) => scalar.clone(),
        (Operand::Memory(from), Target::Memory(to)) if !to.value_type.is_scalar() => {
            return l.assign_place(from, to);
        }
        (Operand::Memory(from), _) if from.value_type.is_scalar() => l.emitter.load_scalar(from),
        _ => return refuse(expression.span, "this has no value"),
    };
    let scalar = l.converted(scalar, &target.value_type());
    l.write_scalar(&target, &scalar);
    Ok(())
}

/// Name of a known hash algorithm of v1model or PSA, as in v1model.
pub(crate) fn algorithm_name<'p>(
    l: &mut Lowerer<'p>,
    expression: &'p ExpressionTree,
) -> Lowered<&'static str> {
    let Some(ConstantValue::Member(_, name)) = l.known(expression) else {
        let message = "the hash algorithm has to be known when the program is compiled";
        return refuse(expression.span, message);
    };
    Ok(match &*name {
        "identity" | "IDENTITY" => "identity",
        "crc32" | "CRC32" | "TARGET_DEFAULT" => "crc32",
        "crc32_custom" | "CRC32_CUSTOM" => "crc32_custom",
        "crc16" | "CRC16" => "crc16",
        "crc16_custom" | "CRC16_CUSTOM" => "crc16_custom",
        "csum16" | "ONES_COMPLEMENT16" => "csum16",
        "xor16" => "xor16",
        "lookup3" => "lookup3",
        "random" => "random",
        other => {
            return refuse(expression.span, format!("the hash algorithm `{other}` is not supported"));
        }
    })
}

pub(crate) fn hash_within(l: &mut Lowerer<'_>, base: &Scalar, hash: &Scalar, most: &Scalar) -> Scalar {
    let e = &mut l.emitter;
    let op = Op::Alu { op: AluOp::Mod, width: Width::W64 };
    let rest = e.value(op, &[hash.words[0], most.words[0]], Type::I64);
    let is_empty = e.compare_with(Cond::Eq, most.words[0], 0);
    let zero = e.constant(0);
    let rest = e.select(is_empty, zero, rest);
    let value = e.alu(AluOp::Add, base.words[0], rest);
    Scalar::bits(vec![value], 64)
}

/// Writes a record to the ring buffer of events.
pub(crate) fn send_event(
    l: &mut Lowerer<'_>,
    kind: u32,
    number: u64,
    data: &Operand,
    span: SourceSpan,
) -> Lowered<()> {
    let map = l.events();
    let header = l.number((number << 32) | u64::from(kind), 64);
    let (start, length) = byte_string(l, data, Padding::Front, span)?;
    let bits = match data {
        Operand::Scalar(scalar) => scalar.width(),
        Operand::Memory(place) => place.value_type.packed_bits(),
        _ => 0,
    };
    let e = &mut l.emitter;
    let slot = e.slot(8 + bits.div_ceil(8).next_multiple_of(8));
    let record = Address::slot(slot);
    e.store(record, Size::Dw, header.words[0]);
    e.copy_bytes(start, record.plus(8), length);
    let pointer = e.pointer(record);
    let ring = e.value(Op::MapAddr { map }, &[], Type::Ptr(Prov::Map(map)));
    let total = e.alu_with(AluOp::Add, length, 8);
    let flags = e.constant(0);
    e.helper(RING_OUTPUT_HELPER, &[ring, pointer, total, flags]);
    Ok(())
}

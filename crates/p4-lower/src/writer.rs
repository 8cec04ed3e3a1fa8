//! Byte strings that are made of values: deparsed headers, inputs of hashes and checksums, digests.

use millstream_ir::{AluOp, Cond, Size, Value};
use millstream_p4::SourceSpan;

use crate::arguments::{GivenArguments, argument};
use crate::emitter::Address;
use crate::error::{Lowered, refuse};
use crate::lowerer::Lowerer;
use crate::packets::flattened;
use crate::types::{PREFIX, RuntimeType};
use crate::values::{Operand, Place, Scalar};

/// A byte string that is being written.
pub(crate) struct ByteString {
    /// Place of the next byte.
    at: Address,
    /// Bytes in front of `at`, as far as they are known.
    fixed: u32,
    /// Bytes of varbits.
    variable: Option<Value>,
    /// Bits that do not fill a byte yet.
    pending: Vec<Value>,
    bits: u32,
}

impl ByteString {
    pub(crate) fn new(at: Address) -> ByteString {
        ByteString { at, fixed: 0, variable: None, pending: Vec::new(), bits: 0 }
    }
}

/// Appends a scalar.
fn append_scalar(l: &mut Lowerer<'_>, string: &mut ByteString, value: &Scalar) {
    let width = value.width();
    if width == 0 {
        return;
    }
    string.pending = match string.bits {
        0 => value.words.clone(),
        bits => l.emitter.joined((&string.pending, bits), (&value.words, width)),
    };
    string.bits += width;
    if string.bits.is_multiple_of(8) {
        flush(l, string);
    }
}

fn flush(l: &mut Lowerer<'_>, string: &mut ByteString) {
    let bytes = string.bits / 8;
    l.emitter.store_packed(string.at, bytes, &string.pending);
    string.at = string.at.plus(bytes);
    string.fixed += bytes;
    (string.pending, string.bits) = (Vec::new(), 0);
}

/// Appends an object. The fields of an invalid header are zeros.
pub(crate) fn append(
    l: &mut Lowerer<'_>,
    string: &mut ByteString,
    place: &Place,
    span: SourceSpan,
) -> Lowered<()> {
    for part in flattened(place) {
        match &part.value_type {
            RuntimeType::Varbit(_) => append_variable(l, string, &part, span)?,
            RuntimeType::Header(_) => {
                for field in part.fields() {
                    append(l, string, &field, span)?;
                }
            }
            other if other.is_scalar() => {
                let value = l.emitter.load_scalar(&part);
                append_scalar(l, string, &value);
            }
            _ => return refuse(span, "a value of this type cannot be made a byte string"),
        }
    }
    Ok(())
}

/// Appends the value of an expression.
pub(crate) fn append_operand(
    l: &mut Lowerer<'_>,
    string: &mut ByteString,
    operand: &Operand,
    span: SourceSpan,
) -> Lowered<()> {
    match operand {
        Operand::Scalar(scalar) => {
            append_scalar(l, string, scalar);
            Ok(())
        }
        Operand::Memory(place) => append(l, string, place, span),
        _ => refuse(span, "this has no value"),
    }
}

fn append_variable(
    l: &mut Lowerer<'_>,
    string: &mut ByteString,
    place: &Place,
    span: SourceSpan,
) -> Lowered<()> {
    if string.bits != 0 {
        return refuse(span, "a value of variable size has to begin at a whole byte");
    }
    let bits = l.emitter.load(place.address, Size::W);
    let bytes = l.emitter.alu_with(AluOp::Rsh, bits, 3);
    l.emitter.copy_bytes(place.address.plus(PREFIX), string.at, bytes);
    string.at = l.emitter.moved(string.at, bytes);
    string.variable = Some(match string.variable {
        Some(before) => l.emitter.alu(AluOp::Add, before, bytes),
        None => bytes,
    });
    Ok(())
}

/// Bytes of the string.
pub(crate) fn length_of(l: &mut Lowerer<'_>, string: &ByteString) -> Value {
    let fixed = l.emitter.constant(u64::from(string.fixed));
    match string.variable {
        Some(variable) => l.emitter.alu(AluOp::Add, fixed, variable),
        None => fixed,
    }
}

/// Side of a value at which zeros make its bytes whole.
#[derive(Clone, Copy)]
pub(crate) enum Padding {
    /// The bytes are the value as a number.
    Front,
    /// The bytes are what the reference switch hashes.
    Behind,
}

/// Makes a byte string of a value: its address and length.
pub(crate) fn byte_string(
    l: &mut Lowerer<'_>,
    operand: &Operand,
    padding: Padding,
    span: SourceSpan,
) -> Lowered<(Address, Value)> {
    let bits = match operand {
        Operand::Scalar(scalar) => scalar.width(),
        Operand::Memory(place) => place.value_type.packed_bits(),
        _ => 0,
    };
    let slot = l.emitter.slot(bits.div_ceil(8).next_multiple_of(8) + 8);
    let start = Address::slot(slot);
    let mut string = ByteString::new(start);
    let missing = bits.next_multiple_of(8) - bits;
    let zeros = (missing != 0).then(|| l.number(0, missing));
    if let (Some(zeros), Padding::Front) = (&zeros, padding) {
        append_scalar(l, &mut string, zeros);
    }
    append_operand(l, &mut string, operand, span)?;
    if let (Some(zeros), Padding::Behind) = (&zeros, padding) {
        append_scalar(l, &mut string, zeros);
    }
    let length = length_of(l, &string);
    Ok((start, length))
}

/// `emit` of a packet.
pub(crate) fn emit_call<'p>(
    l: &mut Lowerer<'p>,
    arguments: &GivenArguments<'p>,
    span: SourceSpan,
) -> Lowered<Operand> {
    let expression = argument(arguments, 0, span)?;
    let operand = l.operand(expression, None)?;
    match operand {
        Operand::Memory(place) => emit(l, &place, span)?,
        Operand::Scalar(scalar) => {
            let place = l.emitter.variable(scalar.value_type.clone());
            l.emitter.store_scalar(&place, &scalar);
            emit_packed(l, &place, span)?;
        }
        _ => return refuse(span, "this cannot be emitted"),
    }
    Ok(Operand::Nothing)
}

fn emit(l: &mut Lowerer<'_>, place: &Place, span: SourceSpan) -> Lowered<()> {
    l.check_size(span)?;
    match &place.value_type {
        RuntimeType::Header(_) => {
            let valid = l.emitter.validity(place);
            let behind = l.emitter.split(valid);
            emit_packed(l, place, span)?;
            l.emitter.jump(behind);
            l.emitter.enter(behind);
            Ok(())
        }
        RuntimeType::Stack(..) => place.elements().iter().try_for_each(|part| emit(l, part, span)),
        RuntimeType::Struct(_) | RuntimeType::Union(_) => {
            place.fields().iter().try_for_each(|part| emit(l, part, span))
        }
        _ => emit_packed(l, place, span),
    }
}

/// Notes that the output up to here is written, unless a uBPF program has cut the packet in front of it.
fn keep_emitted(l: &mut Lowerer<'_>, total: Value, span: SourceSpan) -> Lowered<()> {
    let Some(kept) = l.stage.output.as_ref().and_then(|output| output.kept.clone()) else { return Ok(()) };
    let (cuts, length) = (l.engine_field("truncates", span)?, l.engine_field("truncated_length", span)?);
    let (cuts, length) = (l.emitter.load_scalar(&cuts), l.emitter.load_scalar(&length));
    let e = &mut l.emitter;
    let whole = e.compare_with(Cond::Eq, cuts.words[0], 0);
    let inside = e.compare(Cond::Le, total, length.words[0]);
    let fits = e.either(whole, inside);
    let old = e.load_scalar(&kept);
    let new = e.select(fits, total, old.words[0]);
    e.store_scalar(&kept, &Scalar::bits(vec![new], 32));
    Ok(())
}

/// Appends a header's fields to the output.
fn emit_packed(l: &mut Lowerer<'_>, place: &Place, span: SourceSpan) -> Lowered<()> {
    let Some(output) = l.stage.output.clone() else {
        return refuse(span, "`emit` is only supported in a deparser");
    };
    let bits = place.value_type.packed_bits();
    let used = l.emitter.load_scalar(&output.length);
    let most = l.emitter.constant(u64::from(bits.div_ceil(8)));
    let end = l.emitter.alu(AluOp::Add, used.words[0], most);
    let fits = l.emitter.compare_with(Cond::Le, end, u64::from(output.capacity));
    let full = l.emitter.split(fits);
    let good = l.emitter.block;
    l.emitter.enter(full);
    l.emitter.jump(output.overflow);
    l.emitter.enter(good);
    let at = l.emitter.moved(output.bytes.address, used.words[0]);
    let mut string = ByteString::new(at);
    append(l, &mut string, place, span)?;
    if string.bits != 0 {
        return refuse(span, format!("a header of {bits} bits cannot be emitted: bytes have to be whole"));
    }
    let length = length_of(l, &string);
    let total = l.emitter.alu(AluOp::Add, used.words[0], length);
    l.emitter.store_scalar(&output.length, &Scalar::bits(vec![total], 32));
    keep_emitted(l, total, span)
}

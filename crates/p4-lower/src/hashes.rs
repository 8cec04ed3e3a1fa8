//! Hash algorithms, as functions of the module: `(address, length, state)` to a state.
//!
//! CRC-16 is that of ARC (polynomial 0x8005, reflected, initial value 0), CRC-32 that of ISO 3309. `csum16`
//! is the Internet checksum (RFC 1071), `xor16` the exclusive or of 16-bit words. The `custom` variants use
//! the standard polynomials. `identity` is the first 8 bytes as a number, `random` a random number.

use millstream_ir::{AluOp, Func, Function, Size, Value};
use millstream_p4::SourceSpan;

use crate::emitter::{Address, Emitter};
use crate::error::{Lowered, refuse};
use crate::lookup3::lookup3;
use crate::lowerer::Lowerer;
use crate::routines::{crc, words16};
use crate::values::{Operand, Scalar};
use crate::writer::{Padding, byte_string};

/// `bpf_get_prandom_u32`
pub(crate) const RANDOM_HELPER: i32 = 7;

const CRC16_POLYNOMIAL: u64 = 0xa001;
const CRC32_POLYNOMIAL: u64 = 0xedb8_8320;

/// Function of the module with this name, made at first use.
fn routine(l: &mut Lowerer<'_>, name: &'static str, make: impl FnOnce() -> Function) -> Func {
    if let Some(func) = l.routines.get(name) {
        return *func;
    }
    let func = l.module.funcs.push(make());
    l.routines.insert(name, func);
    func
}

/// Bytes of a value that are hashed: those of the reference switch of an architecture, which differ where the fields
/// are no whole bytes together.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum HashedBytes {
    /// The fields one behind the other, and zeros behind the last.
    Packed,
    /// The same, and the payload behind the headers.
    PackedAndPayload,
    /// The fields as one number, with zeros in front.
    Number,
}

/// Hash of a value. The result has 64 bits.
pub(crate) fn hash_of(
    l: &mut Lowerer<'_>,
    algorithm: &str,
    operand: &Operand,
    bytes: HashedBytes,
    span: SourceSpan,
) -> Lowered<Scalar> {
    if algorithm == "random" {
        return Ok(random_word(l));
    }
    let padding = if bytes == HashedBytes::Number { Padding::Front } else { Padding::Behind };
    let (start, length) = byte_string(l, operand, padding, span)?;
    let mut parts = vec![(l.emitter.pointer(start), length)];
    if bytes == HashedBytes::PackedAndPayload {
        parts.push(payload(l, span)?);
    }
    let word = match algorithm {
        "crc32" | "crc32_custom" => {
            let func = routine(l, "p4.crc32", || crc("p4.crc32", CRC32_POLYNOMIAL));
            let state = chained(l, func, &parts, 0xffff_ffff);
            l.emitter.alu_with(AluOp::Xor, state, 0xffff_ffff)
        }
        "crc16" | "crc16_custom" => {
            let func = routine(l, "p4.crc16", || crc("p4.crc16", CRC16_POLYNOMIAL));
            chained(l, func, &parts, 0)
        }
        "csum16" => {
            let func = routine(l, "p4.sum16", || words16("p4.sum16", AluOp::Add));
            let sum = joined_words(l, func, &parts, AluOp::Add);
            let sum = folded_sum(&mut l.emitter, sum);
            l.emitter.alu_with(AluOp::Xor, sum, 0xffff)
        }
        "xor16" => {
            let func = routine(l, "p4.xor16", || words16("p4.xor16", AluOp::Xor));
            joined_words(l, func, &parts, AluOp::Xor)
        }
        "lookup3" if bytes == HashedBytes::PackedAndPayload => {
            return refuse(span, "`lookup3` of the payload is not supported");
        }
        "lookup3" => {
            let func = routine(l, "p4.lookup3", || lookup3("p4.lookup3"));
            chained(l, func, &parts[..1], 0)
        }
        "identity" => return identity(l, operand, start, span),
        other => return refuse(span, format!("the hash algorithm `{other}` is not supported")),
    };
    Ok(Scalar::bits(vec![word], 64))
}

/// Sum of the 16-bit words of a value, folded to 16 bits.
pub(crate) fn folded_words(l: &mut Lowerer<'_>, operand: &Operand, span: SourceSpan) -> Lowered<Value> {
    let (start, length) = byte_string(l, operand, Padding::Front, span)?;
    let start = l.emitter.pointer(start);
    let func = routine(l, "p4.sum16", || words16("p4.sum16", AluOp::Add));
    let sum = joined_words(l, func, &[(start, length)], AluOp::Add);
    Ok(folded_sum(&mut l.emitter, sum))
}

pub(crate) fn random_word(l: &mut Lowerer<'_>) -> Scalar {
    let high = l.emitter.helper(RANDOM_HELPER, &[]);
    let low = l.emitter.helper(RANDOM_HELPER, &[]);
    let low = l.emitter.and(low, u64::from(u32::MAX));
    let high = l.emitter.alu_with(AluOp::Lsh, high, 32);
    let word = l.emitter.alu(AluOp::Or, high, low);
    Scalar::bits(vec![word], 64)
}

fn identity(l: &mut Lowerer<'_>, operand: &Operand, start: Address, span: SourceSpan) -> Lowered<Scalar> {
    let bits = match operand {
        Operand::Scalar(scalar) => scalar.width(),
        Operand::Memory(place) => place.value_type.packed_bits(),
        _ => return refuse(span, "this has no value"),
    };
    let words = l.emitter.load_packed(start, bits.div_ceil(8).min(8));
    Ok(Scalar::bits(vec![words[0]], 64))
}

/// `base + data % most` for results of more than 64 bits; `most` has to be a known power of two.
pub(crate) fn wide_identity(
    l: &mut Lowerer<'_>,
    operand: &Operand,
    base: &Scalar,
    most: &Scalar,
    span: SourceSpan,
) -> Lowered<Scalar> {
    let bits = match operand {
        Operand::Scalar(scalar) => scalar.width(),
        Operand::Memory(place) => place.value_type.packed_bits(),
        _ => return refuse(span, "this has no value"),
    };
    let known: Option<Vec<u64>> = most.words.iter().map(|word| l.emitter.known(*word)).collect();
    let ones = known.as_ref().map(|words| words.iter().map(|word| word.count_ones()).sum::<u32>());
    let top = known.iter().flatten().position(|word| *word != 0);
    let (Some(words), Some(1), Some(top)) = (&known, ones, top) else {
        return refuse(span, "a hash of more than 64 bits needs a power of two that is known as its bound");
    };
    let kept = 64 * top as u32 + words[top].trailing_zeros();
    let (start, _) = byte_string(l, operand, Padding::Front, span)?;
    let e = &mut l.emitter;
    let data = e.load_packed(start, bits.div_ceil(8));
    let rest = e.bits_from(&data, 0, kept.min(bits));
    let width = kept.max(base.width()) + 1;
    let rest = e.resized(&rest, kept.min(bits), width, false);
    let base = e.resized(&base.words, base.width(), width, false);
    let words = e.add_words(&base, &rest, width);
    Ok(Scalar::bits(words, width))
}

/// Bytes behind what the parser read.
fn payload(l: &mut Lowerer<'_>, span: SourceSpan) -> Lowered<(Value, Value)> {
    let packet = l.packet(span)?;
    let cursor = l.emitter.load_scalar(&packet.cursor);
    let start = l.emitter.offset_pointer(packet.data, cursor.words[0]);
    let length = l.emitter.alu(AluOp::Sub, packet.end, start);
    Ok((start, length))
}

fn chained(l: &mut Lowerer<'_>, func: Func, parts: &[(Value, Value)], initial: u64) -> Value {
    let mut state = l.emitter.constant(initial);
    for (start, length) in parts {
        state = l.emitter.call(func, &[*start, *length, state]);
    }
    state
}

/// Joins words of parts; behind an odd number of bytes the words are swapped.
fn joined_words(l: &mut Lowerer<'_>, func: Func, parts: &[(Value, Value)], op: AluOp) -> Value {
    let zero = l.emitter.constant(0);
    let mut result: Option<Value> = None;
    let mut length: Option<Value> = None;
    for (start, bytes) in parts {
        let mut words = l.emitter.call(func, &[*start, *bytes, zero]);
        if let Some(before) = length {
            let e = &mut l.emitter;
            if op == AluOp::Add {
                words = folded_sum(e, words);
            }
            let swapped = e.swapped(words, Size::H);
            let odd = e.and(before, 1);
            words = e.select(odd, swapped, words);
        }
        result = Some(result.map_or(words, |before| l.emitter.alu(op, before, words)));
        length = Some(length.map_or(*bytes, |before| l.emitter.alu(AluOp::Add, before, *bytes)));
    }
    result.unwrap_or(zero)
}

/// Folds a sum of 16-bit words into 16 bits.
pub(crate) fn folded_sum(emitter: &mut Emitter, mut sum: Value) -> Value {
    for _ in 0..4 {
        let high = emitter.alu_with(AluOp::Rsh, sum, 16);
        let low = emitter.and(sum, 0xffff);
        sum = emitter.alu(AluOp::Add, high, low);
    }
    sum
}

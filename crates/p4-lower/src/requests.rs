//! Functions of v1model that ask the engine for copies of a packet, and those of checksums.

use millstream_ir::Size;
use millstream_p4::SourceSpan;
use millstream_p4::expression::{ExpressionKind, ExpressionTree};

use crate::arguments::{GivenArguments, argument};
use crate::error::{Lowered, refuse};
use crate::extern_objects;
use crate::hashes::{HashedBytes, hash_of};
use crate::lowerer::Lowerer;
use crate::pipeline::FieldList;
use crate::portable::call_function;
use crate::types::RuntimeType;
use crate::values::{Operand, Scalar, Target};

/// Numbers of field lists without one in the program; the program's have 8 bits.
const FIRST_DATA_LIST: u64 = 1 << 16;
const WORD: RuntimeType = RuntimeType::Bits(32, false);

/// Calls a function that asks for copies of the packet, or that computes a checksum.
pub(crate) fn packet_operation<'p>(
    l: &mut Lowerer<'p>,
    name: &str,
    arguments: &GivenArguments<'p>,
    span: SourceSpan,
) -> Lowered<Operand> {
    let at = |index| argument(arguments, index, span);
    match name {
        "clone" | "clone3" | "clone_preserving_field_list" => {
            let kind =
                if extern_objects::is_member(l, at(0)?, "I2E") { "clone_ingress" } else { "clone_egress" };
            let session = l.scalar(at(1)?, Some(&WORD))?;
            let list = match name {
                "clone_preserving_field_list" => u64::from(l.known_size(at(2)?)?) + 1,
                "clone3" => data_list(l, at(2)?)?,
                _ => 0,
            };
            l.set_engine(&format!("{kind}_session"), session, span)?;
            request(l, kind, list, span)?;
        }
        "resubmit_preserving_field_list" | "recirculate_preserving_field_list" => {
            let list = u64::from(l.known_size(at(0)?)?) + 1;
            let kind = if name.starts_with("resubmit") { "resubmit" } else { "recirculate" };
            request(l, kind, list, span)?;
        }
        "resubmit" | "recirculate" => {
            let list = data_list(l, at(0)?)?;
            request(l, name, list, span)?;
        }
        "verify_checksum" | "verify_checksum_with_payload" => {
            verify_checksum(l, arguments, name.ends_with("payload"), span)?;
        }
        "update_checksum" | "update_checksum_with_payload" => {
            let condition = l.scalar(at(0)?, None)?;
            let behind = l.emitter.split(condition.words[0]);
            let sum = checksum(l, arguments, name.ends_with("payload"), span)?;
            extern_objects::give(l, at(2)?, &Operand::Scalar(sum))?;
            l.emitter.jump(behind);
            l.emitter.enter(behind);
        }
        _ => return call_function(l, name, arguments, span),
    }
    Ok(Operand::Nothing)
}

/// A field list of the metadata that an expression names: its number plus 1, or 0 if there is none.
fn data_list<'p>(l: &mut Lowerer<'p>, data: &'p ExpressionTree) -> Lowered<u64> {
    let parts: &'p [ExpressionTree] = match &data.kind {
        ExpressionKind::List(parts) => parts,
        _ => std::slice::from_ref(data),
    };
    let state = l.stage.engine.as_ref().map(|engine| engine.address.base);
    let mut ranges = Vec::new();
    for part in parts {
        match l.target_of(part)? {
            Some(Target::Memory(place)) if Some(place.address.base) == state => {
                ranges.push((place.address.offset as u32, place.value_type.size()));
            }
            _ => return refuse(part.span, "only metadata of the packet can be kept here"),
        }
    }
    if ranges.is_empty() {
        return Ok(0);
    }
    let number = FIRST_DATA_LIST + l.pipeline.field_lists.len() as u64;
    l.pipeline.field_lists.push(FieldList { number, ranges });
    Ok(number + 1)
}

/// Asks the engine for a copy of the packet, with the number of a field list plus 1, or 0.
fn request(l: &mut Lowerer<'_>, kind: &str, list: u64, span: SourceSpan) -> Lowered<()> {
    let one = l.number(1, 32);
    l.set_engine(kind, one, span)?;
    let list = l.number(list, 32);
    l.set_engine(&format!("{kind}_list"), list, span)
}

fn checksum<'p>(
    l: &mut Lowerer<'p>,
    arguments: &GivenArguments<'p>,
    with_payload: bool,
    span: SourceSpan,
) -> Lowered<Scalar> {
    let data = l.operand(argument(arguments, 1, span)?, None)?;
    let algorithm = extern_objects::algorithm_name(l, argument(arguments, 3, span)?)?;
    let bytes = if with_payload { HashedBytes::PackedAndPayload } else { HashedBytes::Packed };
    hash_of(l, algorithm, &data, bytes, span)
}

fn verify_checksum<'p>(
    l: &mut Lowerer<'p>,
    arguments: &GivenArguments<'p>,
    with_payload: bool,
    span: SourceSpan,
) -> Lowered<()> {
    let condition = l.scalar(argument(arguments, 0, span)?, None)?;
    let behind = l.emitter.split(condition.words[0]);
    let sum = checksum(l, arguments, with_payload, span)?;
    let stated = l.scalar(argument(arguments, 2, span)?, None)?;
    let sum = l.converted(sum, &stated.value_type);
    let equal = l.emitter.equal_words(&sum.words, &stated.words);
    let differs = l.emitter.not(equal);
    let flag = l.stage.standard.as_ref().and_then(|standard| standard.field("checksum_error"));
    let Some(flag) = flag else { return refuse(span, "there is no field for a wrong checksum") };
    let old = l.emitter.load_scalar(&flag);
    let new = l.emitter.either(old.words[0], differs);
    l.emitter.store(flag.address, Size::B, new);
    l.emitter.jump(behind);
    l.emitter.enter(behind);
    Ok(())
}

//! Externs of the core library and of v1model.

use std::rc::Rc;

use millstream_ir::{AluOp, Op, Type, Width};
use millstream_isa::helpers::id;
use millstream_p4::{ConstantValue, SourceSpan, Symbol};

use crate::arguments::{GivenArguments, argument};
use crate::emitter::Address;
use crate::error::{Lowered, refuse};
use crate::hashes::{HashedBytes, hash_of, random_word, wide_identity};
use crate::keys::scalar_widths;
use crate::lowerer::Lowerer;
use crate::meters::METER_SIZE;
use crate::pipeline::{DROP_PORT, EVENT_DIGEST, EVENT_MESSAGE, MarkKind, MessageSpec, ObjectKind};
use crate::portable::{call_method, make_extern, output_action};
use crate::requests::packet_operation;
use crate::scope::Instance;
use crate::types::RuntimeType;
use crate::values::{Operand, Scalar};
use crate::{extern_objects, parser_errors};

/// `DROP` among the actions of a uBPF program.
const UBPF_DROP: u64 = 1;
/// A block of AES.
const BLOCK: RuntimeType = RuntimeType::Bits(8 * BLOCK_BYTES, false);
const BLOCK_BYTES: u32 = 16;
const WORD: RuntimeType = RuntimeType::Bits(32, false);

/// Makes an instance of an extern.
pub(crate) fn extern_instance<'p>(
    l: &mut Lowerer<'p>,
    kind: &Symbol,
    types: Vec<RuntimeType>,
    arguments: &GivenArguments<'p>,
    path: String,
    span: SourceSpan,
) -> Lowered<Rc<Instance<'p>>> {
    let number = match &**kind {
        "counter" => {
            let size = l.known_size(argument(arguments, 0, span)?)?;
            let map = l.add_array(&path, 16, size, span)?;
            l.add_object(path, ObjectKind::Counter, Some(map), size)
        }
        "direct_counter" => l.add_object(path, ObjectKind::Counter, None, 0),
        "meter" => {
            let size = l.known_size(argument(arguments, 0, span)?)?;
            let counts_bytes = extern_objects::is_member(l, argument(arguments, 1, span)?, "bytes");
            let map = l.add_array(&path, METER_SIZE, size, span)?;
            l.add_object(path, ObjectKind::Meter { counts_bytes }, Some(map), size)
        }
        "direct_meter" | "DirectMeter" => {
            let kind = argument(arguments, 0, span)?;
            let counts_bytes =
                extern_objects::is_member(l, kind, "bytes") || extern_objects::is_member(l, kind, "BYTES");
            let number = l.add_object(path, ObjectKind::Meter { counts_bytes }, None, 0);
            let color = l.emitter.variable(WORD);
            l.objects.colors.insert(number, color);
            number
        }
        "action_selector" | "ActionSelector" => {
            let algorithm = extern_objects::algorithm_name(l, argument(arguments, 0, span)?)?.to_owned();
            let size = l.known_size(argument(arguments, 1, span)?)?.max(1);
            l.add_object(path, ObjectKind::ActionSelector { algorithm }, None, size)
        }
        "register" => {
            let Some(value_type) = types.first().filter(|t| t.size() > 0) else {
                return refuse(span, "a register of this type is not supported");
            };
            let size = l.known_size(argument(arguments, 0, span)?)?;
            let bytes = value_type.size().next_multiple_of(8);
            let map = l.add_array(&path, bytes, size, span)?;
            let initial = Default::default();
            let kind = ObjectKind::Register { bits: value_type.width(), initial };
            let number = l.add_object(path, kind, Some(map), size);
            l.objects.register_types.insert(number, value_type.clone());
            number
        }
        "action_profile" | "ActionProfile" => {
            let size = l.known_size(argument(arguments, 0, span)?)?;
            l.add_object(path, ObjectKind::ActionProfile, None, size)
        }
        "Checksum16" => 0,
        _ => make_extern(l, kind, &types, arguments, path, span)?,
    };
    Ok(Rc::new(Instance::Extern(kind.clone(), number)))
}

pub(crate) fn extern_method<'p>(
    l: &mut Lowerer<'p>,
    kind: &str,
    number: usize,
    method: &str,
    arguments: &GivenArguments<'p>,
    span: SourceSpan,
) -> Lowered<Operand> {
    match (kind, method) {
        ("counter", "count") => {
            let found = extern_objects::object_element(l, number, argument(arguments, 0, span)?, span)?;
            let bytes = l.packet_bytes();
            let behind = l.emitter.split(found);
            l.count(found, 0, bytes);
            l.emitter.jump(behind);
            l.emitter.enter(behind);
        }
        // The entry that was hit is counted by the lookup itself.
        ("direct_counter", "count") => {}
        ("meter", "execute_meter") => execute_meter(l, number, arguments, span)?,
        ("direct_meter", "read") => {
            let Some(color) = l.objects.colors.get(&number).cloned() else {
                return refuse(span, "this meter belongs to no table");
            };
            extern_objects::give(l, argument(arguments, 0, span)?, &Operand::Memory(color))?;
        }
        ("register", "read") => read_register(l, number, arguments, span)?,
        ("register", "write") => extern_objects::write_register(l, number, arguments, span)?,
        ("Checksum16", "get") => {
            let data = l.operand(argument(arguments, 0, span)?, None)?;
            let sum = hash_of(l, "csum16", &data, HashedBytes::Packed, span)?;
            return Ok(Operand::Scalar(l.converted(sum, &RuntimeType::Bits(16, false))));
        }
        _ => return call_method(l, (kind, number), method, arguments, span),
    }
    Ok(Operand::Nothing)
}

fn read_register<'p>(
    l: &mut Lowerer<'p>,
    number: usize,
    arguments: &GivenArguments<'p>,
    span: SourceSpan,
) -> Lowered<()> {
    let local = extern_objects::register_value(l, number, argument(arguments, 1, span)?, span)?;
    extern_objects::give(l, argument(arguments, 0, span)?, &Operand::Memory(local))
}

fn execute_meter<'p>(
    l: &mut Lowerer<'p>,
    number: usize,
    arguments: &GivenArguments<'p>,
    span: SourceSpan,
) -> Lowered<()> {
    let color = extern_objects::metered(l, number, argument(arguments, 0, span)?, (None, None), span)?;
    let color = Operand::Scalar(Scalar::bits(vec![color], 32));
    extern_objects::give(l, argument(arguments, 1, span)?, &color)
}

/// Calls an extern function.
pub(crate) fn extern_function<'p>(
    l: &mut Lowerer<'p>,
    name: &str,
    arguments: &GivenArguments<'p>,
    span: SourceSpan,
) -> Lowered<Operand> {
    let at = |index| argument(arguments, index, span);
    match name {
        "verify" => {
            let truth = l.scalar(at(0)?, None)?;
            let good = l.emitter.new_block();
            let failed = l.emitter.new_block();
            l.emitter.branch_if(truth.words[0], good, failed);
            l.emitter.enter(failed);
            l.mark(MarkKind::ParserError("verify".to_owned()), span);
            let code = l.scalar(at(1)?, None)?;
            parser_errors::stop_parser(l, code.words[0], span)?;
            l.emitter.enter(good);
        }
        "static_assert" => return Ok(Operand::Scalar(Scalar::truth(l.emitter.truth(true)))),
        "mark_to_drop" => {
            l.mark(MarkKind::Drop, span);
            let Some(standard) = l.stage.standard.clone() else {
                return refuse(span, "`mark_to_drop` is not supported here");
            };
            if standard.field("output_action").is_some() {
                output_action(l, UBPF_DROP, span)?;
            }
            let standard = match arguments.is_empty() {
                true => standard,
                false => l.memory(at(0)?, None)?,
            };
            for (field, value) in [("egress_spec", DROP_PORT), ("mcast_grp", 0)] {
                if let Some(place) = standard.field(field) {
                    let value = l.number(value, place.value_type.width().unwrap_or(0));
                    l.emitter.store_scalar(&place, &value);
                }
            }
        }
        "assert" | "assume" => {
            let truth = l.scalar(at(0)?, None)?;
            let failed = l.emitter.not(truth.words[0]);
            let behind = l.emitter.split(failed);
            let one = l.number(1, 32);
            l.set_engine("assertion_failed", one, span)?;
            l.emitter.jump(behind);
            l.emitter.enter(behind);
        }
        "truncate" => {
            let length = l.scalar(at(0)?, Some(&WORD))?;
            let one = l.number(1, 32);
            l.set_engine("truncates", one, span)?;
            l.set_engine("truncated_length", length, span)?;
        }
        "aes_128_ctr" => encrypt(l, arguments, span)?,
        "random" => random(l, arguments, span)?,
        "hash" => hash(l, arguments, span)?,
        "log_msg" => log_message(l, arguments, span)?,
        "digest" => {
            let data = l.operand(at(1)?, None)?;
            let bits = fields_of(&data);
            let name = format!("digest.{}", l.pipeline.objects.len());
            let number = l.add_object(name, ObjectKind::Digest { bits }, None, 0);
            extern_objects::send_event(l, EVENT_DIGEST, number as u64, &data, span)?;
        }
        _ => return packet_operation(l, name, arguments, span),
    }
    Ok(Operand::Nothing)
}

/// Encrypts the packet behind what the parser extracted.
fn encrypt<'p>(l: &mut Lowerer<'p>, arguments: &GivenArguments<'p>, span: SourceSpan) -> Lowered<()> {
    if !l.options.has_ciphers {
        return refuse(span, "`aes_128_ctr` is not supported in the kernel");
    }
    let packet = l.packet(span)?;
    let mut blocks = Vec::new();
    for index in 0..2 {
        let block = l.scalar(argument(arguments, index, span)?, Some(&BLOCK))?;
        let place = Address::slot(l.emitter.slot(BLOCK_BYTES));
        l.emitter.store_packed(place, BLOCK_BYTES, &block.words);
        blocks.push(l.emitter.pointer(place));
    }
    let cursor = l.emitter.load_scalar(&packet.cursor);
    let e = &mut l.emitter;
    let payload = e.offset_pointer(packet.data, cursor.words[0]);
    let length = e.alu(AluOp::Sub, packet.end, payload);
    let call = Op::Helper { id: id::AES_128_CTR };
    e.value(call, &[payload, length, blocks[0], blocks[1]], Type::I64);
    Ok(())
}

fn random<'p>(l: &mut Lowerer<'p>, arguments: &GivenArguments<'p>, span: SourceSpan) -> Lowered<()> {
    let result = l.type_of(argument(arguments, 0, span)?)?;
    if result.width().is_none_or(|width| width > 64) {
        return refuse(span, "random numbers of more than 64 bits are not supported");
    }
    let low = l.scalar(argument(arguments, 1, span)?, Some(&result))?;
    let high = l.scalar(argument(arguments, 2, span)?, Some(&result))?;
    let word = random_word(l);
    let e = &mut l.emitter;
    let span_of = e.alu(AluOp::Sub, high.words[0], low.words[0]);
    let count = e.alu_with(AluOp::Add, span_of, 1);
    let rest = e.value(Op::Alu { op: AluOp::Mod, width: Width::W64 }, &[word.words[0], count], Type::I64);
    let value = e.alu(AluOp::Add, low.words[0], rest);
    extern_objects::give(l, argument(arguments, 0, span)?, &Operand::Scalar(Scalar::bits(vec![value], 64)))
}

/// `base + hash % max`; a `max` of 0 gives the base.
fn hash<'p>(l: &mut Lowerer<'p>, arguments: &GivenArguments<'p>, span: SourceSpan) -> Lowered<()> {
    let algorithm = extern_objects::algorithm_name(l, argument(arguments, 1, span)?)?;
    if arguments.len() == 3 {
        // The uBPF model has neither base nor bound.
        let data = l.operand(argument(arguments, 2, span)?, None)?;
        let value = hash_of(l, algorithm, &data, HashedBytes::Number, span)?;
        return extern_objects::give(l, argument(arguments, 0, span)?, &Operand::Scalar(value));
    }
    let wide = RuntimeType::Bits(64, false);
    let base = l.scalar(argument(arguments, 2, span)?, Some(&wide))?;
    let data = l.operand(argument(arguments, 3, span)?, None)?;
    let most = l.scalar(argument(arguments, 4, span)?, Some(&wide))?;
    let target = l.type_of(argument(arguments, 0, span)?)?;
    if algorithm == "identity" && target.width().is_some_and(|width| width > 64) {
        let value = wide_identity(l, &data, &base, &most, span)?;
        return extern_objects::give(l, argument(arguments, 0, span)?, &Operand::Scalar(value));
    }
    let (base, most) = (l.converted(base, &wide), l.converted(most, &wide));
    let hash = hash_of(l, algorithm, &data, HashedBytes::Packed, span)?;
    let value = extern_objects::hash_within(l, &base, &hash, &most);
    extern_objects::give(l, argument(arguments, 0, span)?, &Operand::Scalar(value))
}

fn log_message<'p>(l: &mut Lowerer<'p>, arguments: &GivenArguments<'p>, span: SourceSpan) -> Lowered<()> {
    let text = match l.known(argument(arguments, 0, span)?) {
        Some(ConstantValue::Text(text)) => text.to_string(),
        _ => return refuse(span, "the message has to be known when the program is compiled"),
    };
    let data = match arguments.get(1).copied().flatten() {
        Some(value) => l.operand(value, None)?,
        None => Operand::Scalar(Scalar::bits(l.emitter.zero_words(0), 0)),
    };
    let bits = fields_of(&data);
    let number = l.pipeline.messages.len() as u64;
    l.pipeline.messages.push(MessageSpec { text, bits });
    extern_objects::send_event(l, EVENT_MESSAGE, number, &data, span)
}

/// Widths of the fields of a digest.
fn fields_of(operand: &Operand) -> Vec<u32> {
    let mut widths = Vec::new();
    match operand {
        Operand::Scalar(scalar) => widths.push(scalar.width()),
        Operand::Memory(place) => {
            scalar_widths(&place.value_type, &mut widths);
        }
        _ => {}
    }
    widths
}

//! Externs of PSA and of the eBPF, uBPF and XDP models.

use millstream_ir::{AluOp, Cond, Op, Type, Value, Width};
use millstream_p4::expression::ExpressionTree;
use millstream_p4::{SourceSpan, Symbol};

use crate::arguments::{GivenArguments, argument};
use crate::constants::reduced;
use crate::error::{Lowered, refuse};
use crate::extern_objects;
use crate::hashes::{self, HashedBytes, folded_words, hash_of, random_word};
use crate::lowerer::Lowerer;
use crate::meters::METER_SIZE;
use crate::pipeline::{EVENT_DIGEST, ObjectKind};
use crate::types::RuntimeType;
use crate::values::{Operand, Scalar};

const WORD: RuntimeType = RuntimeType::Bits(32, false);
const SHORT: RuntimeType = RuntimeType::Bits(16, false);

/// Colors of PSA by color of a meter here: green, yellow, red.
const PSA_COLORS: [u64; 3] = [1, 2, 0];
/// Port for recirculation in PSA.
const RECIRCULATION_PORT: u64 = 0xffff_fffa;

/// Makes an instance; gives its number.
pub(crate) fn make_extern<'p>(
    l: &mut Lowerer<'p>,
    kind: &Symbol,
    types: &[RuntimeType],
    arguments: &GivenArguments<'p>,
    path: String,
    span: SourceSpan,
) -> Lowered<usize> {
    Ok(match &**kind {
        "Counter" | "CounterArray" => {
            let size = l.known_size(argument(arguments, 0, span)?)?;
            let map = l.add_array(&path, 16, size, span)?;
            l.add_object(path, ObjectKind::Counter, Some(map), size)
        }
        "DirectCounter" => l.add_object(path, ObjectKind::Counter, None, 0),
        "Meter" => {
            let size = l.known_size(argument(arguments, 0, span)?)?;
            let counts_bytes = extern_objects::is_member(l, argument(arguments, 1, span)?, "BYTES");
            let map = l.add_array(&path, METER_SIZE, size, span)?;
            l.add_object(path, ObjectKind::Meter { counts_bytes }, Some(map), size)
        }
        "Register" => {
            let Some(value_type) = types.first().filter(|t| t.size() > 0).cloned() else {
                return refuse(span, "a register of this type is not supported");
            };
            let initial = match (arguments.get(1).copied().flatten(), value_type.width()) {
                (Some(value), Some(width)) => reduced(&l.known_number(value)?, width),
                (Some(value), None) => return refuse(value.span, "this initial value is not supported"),
                _ => Default::default(),
            };
            let size = l.known_size(argument(arguments, 0, span)?)?;
            let bytes = value_type.size().next_multiple_of(8);
            let map = l.add_array(&path, bytes, size, span)?;
            let kind = ObjectKind::Register { bits: value_type.width(), initial };
            let number = l.add_object(path, kind, Some(map), size);
            l.objects.register_types.insert(number, value_type);
            number
        }
        "Hash" => {
            let name = extern_objects::algorithm_name(l, argument(arguments, 0, span)?)?;
            l.objects.extern_notes.push((name, types.first().cloned().unwrap_or(WORD)));
            l.objects.extern_notes.len() - 1
        }
        "Random" => {
            let value_type = types.first().cloned().unwrap_or(WORD);
            let low = l.known_number(argument(arguments, 0, span)?)?;
            let high = l.known_number(argument(arguments, 1, span)?)?;
            l.objects.random_ranges.push((reduced(&low, 64), reduced(&high, 64), value_type));
            l.objects.random_ranges.len() - 1
        }
        "InternetChecksum" => {
            let sum = l.emitter.variable(SHORT);
            l.objects.sums.push(Some(sum));
            l.objects.sums.len() - 1
        }
        "Digest" => {
            let mut bits = Vec::new();
            if let Some(value_type) = types.first() {
                crate::keys::scalar_widths(value_type, &mut bits);
            }
            l.add_object(path, ObjectKind::Digest { bits }, None, 0)
        }
        other => return refuse(span, format!("the extern `{other}` is not supported")),
    })
}

/// Calls a method.
pub(crate) fn call_method<'p>(
    l: &mut Lowerer<'p>,
    (kind, number): (&str, usize),
    method: &str,
    arguments: &GivenArguments<'p>,
    span: SourceSpan,
) -> Lowered<Operand> {
    match (kind, method) {
        ("Counter", "count") => {
            let bytes = l.packet_bytes();
            count_element(l, number, arguments, bytes, span)?;
        }
        ("CounterArray", "increment") => {
            let one = l.emitter.constant(1);
            add_to_element(l, number, arguments, one, span)?;
        }
        ("CounterArray", "add") => {
            let value = l.scalar(argument(arguments, 1, span)?, Some(&WORD))?;
            add_to_element(l, number, arguments, value.words[0], span)?;
        }
        ("DirectCounter", "count") => {}
        ("DirectMeter", "execute") if arguments.is_empty() => {
            let Some(color) = l.objects.colors.get(&number).cloned() else {
                return refuse(span, "this meter belongs to no table");
            };
            let color = l.emitter.load_scalar(&color);
            return Ok(portable_color(l, color.words[0]));
        }
        ("Meter", "execute") => {
            let color = arguments.get(1).copied().flatten();
            return execute_meter(l, number, arguments, (color, None), span);
        }
        ("Meter", "dpdk_execute") => {
            let color = if arguments.len() > 2 { arguments[1] } else { None };
            let length = arguments.last().copied().flatten();
            return execute_meter(l, number, arguments, (color, length), span);
        }
        ("Register", "read") => {
            let place = extern_objects::register_value(l, number, argument(arguments, 0, span)?, span)?;
            return Ok(match place.value_type.is_scalar() {
                true => Operand::Scalar(l.emitter.load_scalar(&place)),
                false => Operand::Memory(place),
            });
        }
        ("Register", "write") => extern_objects::write_register(l, number, arguments, span)?,
        ("Hash", "get_hash") => return get_hash(l, number, arguments, span),
        ("Random", "read") => return Ok(random_in_range(l, number)),
        ("InternetChecksum", _) => return checksum_method(l, number, method, arguments, span),
        ("Digest", "pack") => {
            let data = l.operand(argument(arguments, 0, span)?, None)?;
            extern_objects::send_event(l, EVENT_DIGEST, number as u64, &data, span)?;
        }
        _ => return refuse(span, format!("`{kind}.{method}` is not supported")),
    }
    Ok(Operand::Nothing)
}

fn count_element<'p>(
    l: &mut Lowerer<'p>,
    number: usize,
    arguments: &GivenArguments<'p>,
    bytes: Value,
    span: SourceSpan,
) -> Lowered<()> {
    let found = extern_objects::object_element(l, number, argument(arguments, 0, span)?, span)?;
    let behind = l.emitter.split(found);
    l.count(found, 0, bytes);
    l.emitter.jump(behind);
    l.emitter.enter(behind);
    Ok(())
}

fn add_to_element<'p>(
    l: &mut Lowerer<'p>,
    number: usize,
    arguments: &GivenArguments<'p>,
    value: Value,
    span: SourceSpan,
) -> Lowered<()> {
    let found = extern_objects::object_element(l, number, argument(arguments, 0, span)?, span)?;
    let behind = l.emitter.split(found);
    let op = Op::Atomic { op: millstream_ir::AtomicOp::Add, size: millstream_ir::Size::Dw, offset: 0 };
    l.emitter.effect(op, &[found, value]);
    l.emitter.jump(behind);
    l.emitter.enter(behind);
    Ok(())
}

/// Runs a meter, with a color and a length of the packet that may be given.
fn execute_meter<'p>(
    l: &mut Lowerer<'p>,
    number: usize,
    arguments: &GivenArguments<'p>,
    (color, length): (Option<&'p ExpressionTree>, Option<&'p ExpressionTree>),
    span: SourceSpan,
) -> Lowered<Operand> {
    let given = match color {
        Some(color) => {
            let color = l.scalar(color, None)?;
            let shifted = l.emitter.alu_with(AluOp::Add, color.words[0], 2);
            let three = l.emitter.constant(3);
            let op = Op::Alu { op: AluOp::Mod, width: Width::W64 };
            Some(l.emitter.value(op, &[shifted, three], Type::I64))
        }
        None => None,
    };
    let units = match length {
        Some(length) => Some(l.scalar(length, Some(&WORD))?.words[0]),
        None => None,
    };
    let color = extern_objects::metered(l, number, argument(arguments, 0, span)?, (given, units), span)?;
    Ok(portable_color(l, color))
}

/// Color of PSA for a color of a meter here.
fn portable_color(l: &mut Lowerer<'_>, color: Value) -> Operand {
    let e = &mut l.emitter;
    let [green, yellow, red] = PSA_COLORS.map(|color| e.constant(color));
    let is_red = e.compare_with(Cond::Eq, color, 2);
    let is_yellow = e.compare_with(Cond::Eq, color, 1);
    let better = e.select(is_yellow, yellow, green);
    let word = e.select(is_red, red, better);
    Operand::Scalar(Scalar { words: vec![word], value_type: RuntimeType::Enumeration(None) })
}

fn get_hash<'p>(
    l: &mut Lowerer<'p>,
    number: usize,
    arguments: &GivenArguments<'p>,
    span: SourceSpan,
) -> Lowered<Operand> {
    let (algorithm, result) = l.objects.extern_notes[number].clone();
    let wide = RuntimeType::Bits(64, false);
    let value = match arguments.len() {
        1 => {
            let data = l.operand(argument(arguments, 0, span)?, None)?;
            hash_of(l, algorithm, &data, HashedBytes::Number, span)?
        }
        _ => {
            let base = l.scalar(argument(arguments, 0, span)?, Some(&wide))?;
            let data = l.operand(argument(arguments, 1, span)?, None)?;
            let most = l.scalar(argument(arguments, 2, span)?, Some(&wide))?;
            let (base, most) = (l.converted(base, &wide), l.converted(most, &wide));
            let hash = hash_of(l, algorithm, &data, HashedBytes::Number, span)?;
            extern_objects::hash_within(l, &base, &hash, &most)
        }
    };
    Ok(Operand::Scalar(l.converted(value, &result)))
}

fn random_in_range(l: &mut Lowerer<'_>, number: usize) -> Operand {
    let (low, high, value_type) = l.objects.random_ranges[number].clone();
    let digit = |value: &num_bigint::BigUint| value.iter_u64_digits().next().unwrap_or(0);
    let (low, high) = (digit(&low), digit(&high));
    let word = random_word(l);
    let e = &mut l.emitter;
    let count = e.constant(high.wrapping_sub(low).wrapping_add(1));
    let op = Op::Alu { op: AluOp::Mod, width: Width::W64 };
    let rest = e.value(op, &[word.words[0], count], Type::I64);
    let value = e.alu_with(AluOp::Add, rest, low);
    Operand::Scalar(l.converted(Scalar::bits(vec![value], 64), &value_type))
}

/// Methods of an incremental Internet checksum (RFC 1624): its state is the sum, not complemented.
fn checksum_method<'p>(
    l: &mut Lowerer<'p>,
    number: usize,
    method: &str,
    arguments: &GivenArguments<'p>,
    span: SourceSpan,
) -> Lowered<Operand> {
    let Some(sum) = l.objects.sums[number].clone() else {
        return refuse(span, "a checksum that parts of the pipeline share is not supported");
    };
    match method {
        "clear" => l.emitter.clear(&sum),
        "add" | "subtract" => {
            let data = l.operand(argument(arguments, 0, span)?, None)?;
            let mut words = folded_words(l, &data, span)?;
            if method == "subtract" {
                words = l.emitter.alu_with(AluOp::Xor, words, 0xffff);
            }
            let old = l.emitter.load_scalar(&sum);
            let total = l.emitter.alu(AluOp::Add, old.words[0], words);
            let total = hashes::folded_sum(&mut l.emitter, total);
            l.emitter.store_scalar(&sum, &Scalar::bits(vec![total], 16));
        }
        "get" => {
            let value = l.emitter.load_scalar(&sum);
            let word = l.emitter.alu_with(AluOp::Xor, value.words[0], 0xffff);
            return Ok(Operand::Scalar(Scalar::bits(vec![word], 16)));
        }
        "get_state" => return Ok(Operand::Scalar(l.emitter.load_scalar(&sum))),
        "set_state" => {
            let value = l.scalar(argument(arguments, 0, span)?, Some(&SHORT))?;
            l.emitter.store_scalar(&sum, &value);
        }
        _ => return refuse(span, format!("`InternetChecksum.{method}` is not supported")),
    }
    Ok(Operand::Nothing)
}

/// Calls a function of these architectures.
pub(crate) fn call_function<'p>(
    l: &mut Lowerer<'p>,
    name: &str,
    arguments: &GivenArguments<'p>,
    span: SourceSpan,
) -> Lowered<Operand> {
    let truth = match name {
        "psa_clone_i2e" | "psa_clone_e2e" => flag(l, arguments, "clone", span)?,
        "psa_normal" | "psa_resubmit" => {
            let dropped = flag(l, arguments, "drop", span)?;
            let again = flag(l, arguments, "resubmit", span)?;
            let kept = l.emitter.not(dropped);
            let wanted = if name == "psa_resubmit" { again } else { l.emitter.not(again) };
            l.emitter.both(kept, wanted)
        }
        "psa_recirculate" => {
            let dropped = flag(l, arguments, "drop", span)?;
            let port = l.memory(argument(arguments, 1, span)?, None)?;
            let Some(port) = port.field("egress_port") else { return refuse(span, "no egress port") };
            let port = l.emitter.load_scalar(&port);
            let is_that = l.emitter.compare_with(Cond::Eq, port.words[0], RECIRCULATION_PORT);
            let kept = l.emitter.not(dropped);
            l.emitter.both(kept, is_that)
        }
        "mark_to_pass" => {
            output_action(l, 2, span)?;
            return Ok(Operand::Nothing);
        }
        "ubpf_time_get_ns" => {
            let now = l.emitter.helper(crate::meters::TIME_HELPER, &[]);
            let words = l.emitter.masked(vec![now], 48);
            return Ok(Operand::Scalar(Scalar::bits(words, 48)));
        }
        "BPF_KTIME_GET_NS" => {
            let now = l.emitter.helper(crate::meters::TIME_HELPER, &[]);
            let words = l.emitter.masked(vec![now], 32);
            return Ok(Operand::Scalar(Scalar::bits(words, 32)));
        }
        "csum_replace2" | "csum_replace4" => return replaced_sum(l, arguments, span),
        "ebpf_ipv4_checksum" => return header_sum(l, arguments, span),
        _ => return refuse(span, format!("the function `{name}` is not supported")),
    };
    Ok(Operand::Scalar(Scalar::truth(truth)))
}

/// Sets the action of a uBPF program.
pub(crate) fn output_action(l: &mut Lowerer<'_>, action: u64, span: SourceSpan) -> Lowered<()> {
    let place = l.stage.standard.as_ref().and_then(|standard| standard.field("output_action"));
    let Some(place) = place else { return refuse(span, "this is not supported here") };
    let word = l.emitter.constant(action);
    l.emitter.store_scalar(&place, &Scalar { words: vec![word], value_type: place.value_type.clone() });
    Ok(())
}

fn flag<'p>(
    l: &mut Lowerer<'p>,
    arguments: &GivenArguments<'p>,
    name: &str,
    span: SourceSpan,
) -> Lowered<Value> {
    let place = l.memory(argument(arguments, 0, span)?, None)?;
    let Some(field) = place.field(name) else { return refuse(span, format!("no field `{name}`")) };
    let value = l.emitter.load_scalar(&field);
    Ok(l.emitter.as_truth(value.words[0]))
}

/// `~(~sum + ~old + new)`, in ones' complement (RFC 1624, equation 3).
fn replaced_sum<'p>(
    l: &mut Lowerer<'p>,
    arguments: &GivenArguments<'p>,
    span: SourceSpan,
) -> Lowered<Operand> {
    let sum = l.scalar(argument(arguments, 0, span)?, Some(&SHORT))?;
    let mut total = l.emitter.alu_with(AluOp::Xor, sum.words[0], 0xffff);
    for (index, is_old) in [(1, true), (2, false)] {
        let value = l.operand(argument(arguments, index, span)?, None)?;
        let words = folded_words(l, &value, span)?;
        let words = if is_old { l.emitter.alu_with(AluOp::Xor, words, 0xffff) } else { words };
        total = l.emitter.alu(AluOp::Add, total, words);
    }
    let total = hashes::folded_sum(&mut l.emitter, total);
    let word = l.emitter.alu_with(AluOp::Xor, total, 0xffff);
    Ok(Operand::Scalar(Scalar::bits(vec![word], 16)))
}

/// Checksum of an IPv4 header without options, by its fields without the checksum.
fn header_sum<'p>(l: &mut Lowerer<'p>, arguments: &GivenArguments<'p>, span: SourceSpan) -> Lowered<Operand> {
    let mut fields = Vec::new();
    for index in 0..arguments.len() {
        fields.push(l.scalar(argument(arguments, index, span)?, Some(&WORD))?);
    }
    let whole = RuntimeType::tuple(fields.iter().map(|field| field.value_type.clone()));
    let place = l.emitter.variable(whole);
    for (field, to) in fields.iter().zip(place.fields()) {
        l.emitter.store_scalar(&to, field);
    }
    let sum = hash_of(l, "csum16", &Operand::Memory(place), HashedBytes::Packed, span)?;
    Ok(Operand::Scalar(l.converted(sum, &SHORT)))
}

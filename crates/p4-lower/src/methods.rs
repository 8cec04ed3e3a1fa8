//! Calls of methods: of headers, stacks, tables, packets, parsers, controls and externs.

use millstream_ir::{AluOp, Cond, Size};
use millstream_p4::ast::DeclarationKind;
use millstream_p4::expression::{CallArgument, ExpressionKind, ExpressionTree, TypeSyntax};
use millstream_p4::{SourceName, SourceSpan};

use crate::arguments::{GivenArguments, argument, ordered};
use crate::error::{Lowered, refuse};
use crate::lowerer::{Lowerer, externs};
use crate::scope::{Binding, Instance};
use crate::types::RuntimeType;
use crate::values::{Operand, Place, Scalar};
use crate::writer::emit_call;
use crate::{instances, packets, tables};

pub(crate) fn method_call<'p>(
    l: &mut Lowerer<'p>,
    base: &'p ExpressionTree,
    member: &'p SourceName,
    types: &'p [TypeSyntax],
    arguments: &'p [CallArgument],
    span: SourceSpan,
) -> Lowered<Operand> {
    if let ExpressionKind::Name(name) = &base.kind
        && !name.is_global
        && let Some((Binding::Table(declaration), found)) = l.scope.find(&name.name.text)
    {
        return tables::apply_table(l, declaration, found, arguments, span);
    }
    if let Some(instance) = instances::find_instance(l, base) {
        return match &*instance {
            Instance::PacketIn => {
                let values = method_arguments(l, "packet_in", &member.text, arguments, span)?;
                packets::packet_method(l, &member.text, types, &values, span)
            }
            Instance::PacketOut => {
                let values = method_arguments(l, "packet_out", &member.text, arguments, span)?;
                emit_call(l, &values, span)
            }
            Instance::Block(block) => l.apply_block(block, arguments, span),
            Instance::Extern(kind, number) => {
                let values = method_arguments(l, kind, &member.text, arguments, span)?;
                externs::extern_method(l, kind, *number, &member.text, &values, span)
            }
            Instance::ValueSet(_) => refuse(span, "a value set has no methods"),
        };
    }
    let place = l.memory(base, None)?;
    if &*member.text == "setValid" {
        packets::forget_siblings(l, base, &place)?;
    }
    let values: Vec<_> = arguments.iter().map(|argument| argument.value.as_ref()).collect();
    value_method(l, &place, &member.text, &values, span)
}

/// Arguments of a method of an extern in the order of its parameters.
fn method_arguments<'p>(
    l: &Lowerer<'p>,
    kind: &str,
    method: &str,
    arguments: &'p [CallArgument],
    span: SourceSpan,
) -> Lowered<Vec<Option<&'p ExpressionTree>>> {
    let Some(DeclarationKind::Extern(declared)) = l.global(kind).map(|declaration| &declaration.kind) else {
        return refuse(span, format!("`{kind}` is no extern"));
    };
    let methods = declared.methods.iter().filter(|declared| &*declared.name.text == method);
    let found = methods.filter_map(|declared| ordered(&declared.signature.parameters, arguments)).next();
    match found {
        Some(values) => Ok(values),
        None => refuse(span, format!("the arguments do not match `{kind}.{method}`")),
    }
}

fn value_method<'p>(
    l: &mut Lowerer<'p>,
    place: &Place,
    member: &str,
    arguments: &GivenArguments<'p>,
    span: SourceSpan,
) -> Lowered<Operand> {
    match (member, &place.value_type) {
        ("isValid", _) => {
            let valid = l.emitter.validity(place);
            return Ok(Operand::Scalar(Scalar::truth(valid)));
        }
        ("setValid", RuntimeType::Header(_)) => l.emitter.store_constant(place.address, Size::B, 1),
        // Programs read fields behind it: on the reference switch they keep their values.
        ("setInvalid", RuntimeType::Header(_)) => l.emitter.store_constant(place.address, Size::B, 0),
        ("setInvalid", _) => l.emitter.clear(place),
        ("push_front", RuntimeType::Stack(..)) => {
            let count = l.known_size(argument(arguments, 0, span)?)?;
            move_stack(l, place, count, true);
        }
        ("pop_front", RuntimeType::Stack(..)) => {
            let count = l.known_size(argument(arguments, 0, span)?)?;
            move_stack(l, place, count, false);
        }
        ("minSizeInBits" | "maxSizeInBits" | "minSizeInBytes" | "maxSizeInBytes", value_type) => {
            let bits = value_type.packed_bits();
            let size = if member.ends_with("Bits") { bits } else { bits.div_ceil(8) };
            return Ok(Operand::Scalar(l.number(u64::from(size), 32)));
        }
        _ => return refuse(span, format!("the method `{member}` is not supported here")),
    }
    Ok(Operand::Nothing)
}

/// Moves the elements of a stack to higher or lower indexes; elements that get no value become invalid.
fn move_stack(l: &mut Lowerer<'_>, stack: &Place, count: u32, is_push: bool) {
    let elements = stack.elements();
    let total = elements.len();
    let by = (count as usize).min(total);
    let e = &mut l.emitter;
    if is_push {
        for at in (by..total).rev() {
            e.copy(&elements[at - by], &elements[at]);
        }
        elements[..by].iter().for_each(|element| e.clear(element));
    } else {
        for at in by..total {
            e.copy(&elements[at], &elements[at - by]);
        }
        elements[total - by..].iter().for_each(|element| e.clear(element));
    }
    let next = e.load(stack.address, Size::W);
    let moved = match is_push {
        true => {
            let sum = e.alu_with(AluOp::Add, next, by as u64);
            let is_over = e.compare_with(Cond::Gt, sum, total as u64);
            let most = e.constant(total as u64);
            e.select(is_over, most, sum)
        }
        false => {
            let is_under = e.compare_with(Cond::Lt, next, by as u64);
            let difference = e.alu_with(AluOp::Sub, next, by as u64);
            let zero = e.constant(0);
            e.select(is_under, zero, difference)
        }
    };
    e.store(stack.address, Size::W, moved);
}

//! Expressions: values, places, aggregates.

use millstream_ir::{AluOp, Cond, Size};
use millstream_p4::expression::{ExpressionKind, ExpressionTree, QualifiedName};
use millstream_p4::{ConstantValue, SourceName, SourceSpan};

use crate::error::{Lowered, refuse};
use crate::lowerer::Lowerer;
use crate::scope::Binding;
use crate::types::{PREFIX, RuntimeType, element_size};
use crate::values::{Operand, Place, Scalar, Target};
use crate::{operators, parser_errors};

/// Lowers an expression whose value is a scalar. A number without a width takes the type of `hint`.
pub(crate) fn scalar<'p>(
    l: &mut Lowerer<'p>,
    expression: &'p ExpressionTree,
    hint: Option<&RuntimeType>,
) -> Lowered<Scalar> {
    l.check_size(expression.span)?;
    let own = l.type_of(expression)?;
    let target = match (&own, hint) {
        (RuntimeType::Integer | RuntimeType::Other, Some(hint)) if hint.is_scalar() => hint.clone(),
        (RuntimeType::Integer, _) => RuntimeType::Bits(64, false),
        _ => own,
    };
    if let Some(value) = l.source.program.facts.constant(expression.id).cloned()
        && let Some(scalar) = l.constant_scalar(&value, &target)
    {
        return Ok(scalar);
    }
    match &expression.kind {
        ExpressionKind::Number(number) => {
            let value = ConstantValue::Number(number.value.clone());
            match l.constant_scalar(&value, &target) {
                Some(scalar) => Ok(scalar),
                None => refuse(expression.span, "this number has no type at run time"),
            }
        }
        ExpressionKind::Default => {
            Ok(Scalar { words: l.emitter.zero_words(target.width().unwrap_or(0)), value_type: target })
        }
        ExpressionKind::Unary(operator, value) => operators::unary(l, *operator, value, &target),
        ExpressionKind::Binary(operator, left, right) => {
            operators::binary(l, *operator, (left, right), &target, expression.span)
        }
        ExpressionKind::Ternary(parts) => operators::ternary(l, parts, &target),
        ExpressionKind::Cast(_, value) => {
            let value = scalar(l, value, Some(&target))?;
            Ok(l.converted(value, &target))
        }
        ExpressionKind::Slice(_) | ExpressionKind::WidthSlice(_) => slice(l, expression),
        _ => scalar_of_operand(l, expression, &target),
    }
}

fn scalar_of_operand<'p>(
    l: &mut Lowerer<'p>,
    expression: &'p ExpressionTree,
    target: &RuntimeType,
) -> Lowered<Scalar> {
    let operand = match &expression.kind {
        ExpressionKind::Call(function, types, arguments) => {
            l.call(function, types, arguments, expression.span, Some(target))?
        }
        ExpressionKind::Member(base, member) => match member_of_call(l, base, member)? {
            Some(scalar) => Operand::Scalar(scalar),
            None => operand_in_memory(l, expression, target)?,
        },
        _ => operand_in_memory(l, expression, target)?,
    };
    match operand {
        Operand::Scalar(scalar) => Ok(scalar),
        _ => refuse(expression.span, "this expression has no scalar value"),
    }
}

fn operand_in_memory<'p>(
    l: &mut Lowerer<'p>,
    expression: &'p ExpressionTree,
    target: &RuntimeType,
) -> Lowered<Operand> {
    if let Some(place) = target_of(l, expression)? {
        return Ok(l.read_target(&place));
    }
    if let ExpressionKind::Name(name) = &expression.kind
        && let Some((value, scope)) = constant_of(l, name)
    {
        let lowered = l.deeper(expression.span, |l| l.in_scope(scope, |l| scalar(l, value, Some(target))));
        return lowered.map(Operand::Scalar);
    }
    refuse(expression.span, "this expression is not supported")
}

/// Members that are no fields: parts of the result of a table, and sizes of stacks.
fn member_of_call<'p>(
    l: &mut Lowerer<'p>,
    base: &'p ExpressionTree,
    member: &'p SourceName,
) -> Lowered<Option<Scalar>> {
    if let ExpressionKind::Call(function, types, arguments) = &base.kind
        && matches!(&*member.text, "hit" | "miss")
        && let Operand::Applied { hit, .. } = l.call(function, types, arguments, base.span, None)?
    {
        let value = if &*member.text == "hit" { hit } else { l.emitter.not(hit) };
        return Ok(Some(Scalar::truth(value)));
    }
    let RuntimeType::Stack(_, count) = l.type_of(base)? else { return Ok(None) };
    match &*member.text {
        "size" => Ok(Some(l.number(u64::from(count), 32))),
        "lastIndex" => {
            let stack = memory(l, base, None)?;
            let next = l.emitter.load(stack.address, Size::W);
            let last = l.emitter.alu_with(AluOp::Sub, next, 1);
            Ok(Some(Scalar::bits(l.emitter.masked(vec![last], 32), 32)))
        }
        _ => Ok(None),
    }
}

/// A constant, or a constructor's parameter: its expression, and the scope of that.
pub(crate) fn constant_of<'p>(
    l: &Lowerer<'p>,
    name: &QualifiedName,
) -> Option<(&'p ExpressionTree, std::rc::Rc<crate::scope::Scope<'p>>)> {
    if !name.is_global
        && let Some((Binding::Constant(value, _, scope), found)) = l.scope.find(&name.name.text)
    {
        return Some((value, scope.unwrap_or(found)));
    }
    match &l.global(&name.name.text)?.kind {
        millstream_p4::ast::DeclarationKind::Constant(_, value) => Some((value, l.root.clone())),
        _ => None,
    }
}

/// Lowers an expression of any type.
pub(crate) fn operand<'p>(
    l: &mut Lowerer<'p>,
    expression: &'p ExpressionTree,
    hint: Option<&RuntimeType>,
) -> Lowered<Operand> {
    let own = l.type_of(expression)?;
    let is_list = matches!(
        expression.kind,
        ExpressionKind::List(_)
            | ExpressionKind::Record(..)
            | ExpressionKind::Default
            | ExpressionKind::Invalid
            | ExpressionKind::KeysetTuple(_)
    );
    let value_type = match (&own, hint) {
        (RuntimeType::Integer | RuntimeType::Other, Some(hint)) => hint.clone(),
        (_, Some(hint)) if is_list => hint.clone(),
        _ => own,
    };
    if value_type.is_scalar() || value_type == RuntimeType::Integer {
        return scalar(l, expression, Some(&value_type)).map(Operand::Scalar);
    }
    if let ExpressionKind::Call(function, types, arguments) = &expression.kind {
        return l.call(function, types, arguments, expression.span, Some(&value_type));
    }
    if !is_list && let Some(Target::Memory(place)) = target_of(l, expression)? {
        return Ok(Operand::Memory(place));
    }
    if value_type.size() == 0 {
        return refuse(expression.span, "a value of this type is not supported here");
    }
    let place = l.emitter.variable(value_type);
    lower_into(l, expression, &place)?;
    Ok(Operand::Memory(place))
}

/// Lowers an expression to an object in memory.
pub(crate) fn memory<'p>(
    l: &mut Lowerer<'p>,
    expression: &'p ExpressionTree,
    hint: Option<&RuntimeType>,
) -> Lowered<Place> {
    match operand(l, expression, hint)? {
        Operand::Memory(place) => Ok(place),
        Operand::Scalar(scalar) => {
            let place = l.emitter.variable(scalar.value_type.clone());
            l.emitter.store_scalar(&place, &scalar);
            Ok(place)
        }
        _ => refuse(expression.span, "this expression has no value"),
    }
}

/// Lowers an expression into an object that it does not read.
pub(crate) fn lower_into<'p>(
    l: &mut Lowerer<'p>,
    expression: &'p ExpressionTree,
    place: &Place,
) -> Lowered<()> {
    if place.value_type.is_scalar() {
        let value = scalar(l, expression, Some(&place.value_type))?;
        let value = l.converted(value, &place.value_type);
        l.emitter.store_scalar(place, &value);
        return Ok(());
    }
    match &expression.kind {
        ExpressionKind::List(items) | ExpressionKind::KeysetTuple(items) => list_into(l, items, place),
        ExpressionKind::Record(fields, _) => record_into(l, fields, place),
        ExpressionKind::Invalid | ExpressionKind::Default => {
            l.emitter.clear(place);
            Ok(())
        }
        ExpressionKind::Cast(_, value) => lower_into(l, value, place),
        ExpressionKind::Ternary(parts) => {
            let condition = scalar(l, &parts[0], None)?;
            let (otherwise, behind) = (l.emitter.split(condition.words[0]), l.emitter.new_block());
            lower_into(l, &parts[1], place)?;
            l.emitter.jump(behind);
            l.emitter.enter(otherwise);
            lower_into(l, &parts[2], place)?;
            l.emitter.jump(behind);
            l.emitter.enter(behind);
            Ok(())
        }
        _ => {
            let from = memory(l, expression, Some(&place.value_type))?;
            l.assign_place(&from, place)
        }
    }
}

fn list_into<'p>(l: &mut Lowerer<'p>, items: &'p [ExpressionTree], place: &Place) -> Lowered<()> {
    l.emitter.clear(place);
    if let RuntimeType::Header(_) = place.value_type {
        l.emitter.store_constant(place.address, Size::B, 1);
    }
    let parts = match place.value_type {
        RuntimeType::Stack(..) => place.elements(),
        _ => place.fields(),
    };
    for (item, part) in items.iter().zip(&parts) {
        lower_into(l, item, part)?;
    }
    if let RuntimeType::Stack(..) = place.value_type {
        l.emitter.store_constant(place.address, Size::W, 0);
    }
    Ok(())
}

fn record_into<'p>(
    l: &mut Lowerer<'p>,
    fields: &'p [(SourceName, ExpressionTree)],
    place: &Place,
) -> Lowered<()> {
    l.emitter.clear(place);
    if let RuntimeType::Header(_) = place.value_type {
        l.emitter.store_constant(place.address, Size::B, 1);
    }
    for (name, value) in fields {
        match place.field(&name.text) {
            Some(field) => lower_into(l, value, &field)?,
            None => return refuse(name.span, format!("there is no field `{}`", name.text)),
        }
    }
    Ok(())
}

/// Finds the object that an expression names; constants have none.
pub(crate) fn target_of<'p>(l: &mut Lowerer<'p>, expression: &'p ExpressionTree) -> Lowered<Option<Target>> {
    match &expression.kind {
        ExpressionKind::Name(name) => named_target(l, name),
        ExpressionKind::Member(base, member) => member_target(l, base, member),
        ExpressionKind::Index(base, index) => index_target(l, base, index),
        ExpressionKind::Slice(parts) => {
            let (high, low) = (l.known_size(&parts[1])?, l.known_size(&parts[2])?);
            let width = high.saturating_sub(low) + 1;
            Ok(target_of(l, &parts[0])?.and_then(|target| bits_of(target, low, width)))
        }
        ExpressionKind::WidthSlice(parts) => {
            let width = l.known_size(&parts[2])?;
            let Some(base) = target_of(l, &parts[0])? else { return Ok(None) };
            if let Ok(low) = l.known_size(&parts[1]) {
                return Ok(bits_of(base, low, width));
            }
            let low = scalar(l, &parts[1], Some(&RuntimeType::Bits(32, false)))?;
            match base {
                Target::Memory(place) => Ok(Some(Target::BitsAt(place, low.words[0], width))),
                _ => refuse(expression.span, "a range with an unknown position within a range"),
            }
        }
        _ => Ok(None),
    }
}

fn named_target<'p>(l: &mut Lowerer<'p>, name: &'p QualifiedName) -> Lowered<Option<Target>> {
    let found = match name.is_global {
        true => None,
        false => l.scope.find(&name.name.text),
    };
    if let Some((Binding::Variable(place), _)) = found {
        return Ok(Some(Target::Memory(place)));
    }
    let Some((value, scope)) = constant_of(l, name) else { return Ok(None) };
    let value_type = constant_type(l, name)?;
    if value_type.size() == 0 || value_type.is_scalar() {
        return Ok(None);
    }
    let place = l.emitter.variable(value_type);
    l.deeper(name.name.span, |l| l.in_scope(scope, |l| lower_into(l, value, &place)))?;
    Ok(Some(Target::Memory(place)))
}

fn constant_type<'p>(l: &mut Lowerer<'p>, name: &'p QualifiedName) -> Lowered<RuntimeType> {
    if let Some((Binding::Constant(_, value_type, _), _)) = l.scope.find(&name.name.text) {
        return Ok(value_type);
    }
    match l.global(&name.name.text).map(|declaration| &declaration.kind) {
        Some(millstream_p4::ast::DeclarationKind::Constant(syntax, _)) => {
            let root = l.root.clone();
            l.in_scope(root, |l| l.type_of_syntax(syntax))
        }
        _ => Ok(RuntimeType::Other),
    }
}

fn member_target<'p>(
    l: &mut Lowerer<'p>,
    base: &'p ExpressionTree,
    member: &'p SourceName,
) -> Lowered<Option<Target>> {
    let base_type = l.type_of(base)?;
    if let RuntimeType::Stack(..) = base_type {
        return match &*member.text {
            "next" | "last" => {
                let stack = memory(l, base, None)?;
                stack_end(l, &stack, &member.text, member.span).map(|p| Some(Target::Memory(p)))
            }
            _ => Ok(None),
        };
    }
    if base_type.record().is_none() {
        return Ok(None);
    }
    let place = memory(l, base, None)?;
    match place.field(&member.text) {
        Some(field) => Ok(Some(Target::Memory(field))),
        None => refuse(member.span, format!("there is no field `{}`", member.text)),
    }
}

fn index_target<'p>(
    l: &mut Lowerer<'p>,
    base: &'p ExpressionTree,
    index: &'p ExpressionTree,
) -> Lowered<Option<Target>> {
    let place = memory(l, base, None)?;
    let known = l.known(index).is_some().then(|| l.known_size(index)).transpose()?;
    let (element, count) = match &place.value_type {
        RuntimeType::Stack(element, count) => (element.clone(), *count),
        _ => {
            let field = known.and_then(|known| place.field_at(known as usize));
            return match field {
                Some(field) => Ok(Some(Target::Memory(field))),
                None => refuse(index.span, "there is no element of this index"),
            };
        }
    };
    if let Some(known) = known
        && let Some(place) = place.element(known)
    {
        return Ok(Some(Target::Memory(place)));
    }
    let hint = RuntimeType::Bits(32, false);
    let index = scalar(l, index, Some(&hint))?;
    let e = &mut l.emitter;
    let mut position = index.words[0];
    for word in &index.words[1..] {
        let is_far = e.compare_with(Cond::Ne, *word, 0);
        let beyond = e.constant(u64::from(count));
        position = e.select(is_far, beyond, position);
    }
    let inside = e.compare_with(Cond::Lt, position, u64::from(count));
    let spare = e.constant(u64::from(count));
    let position = e.select(inside, position, spare);
    let outside = e.not(inside);
    let spare_place =
        Place::new(place.address.plus(PREFIX + count * element_size(&element)), (*element).clone());
    e.when(outside, |e| e.clear(&spare_place));
    let address = l.element_address(&place, position, &element);
    Ok(Some(Target::Memory(Place::new(address, (*element).clone()))))
}

fn slice<'p>(l: &mut Lowerer<'p>, expression: &'p ExpressionTree) -> Lowered<Scalar> {
    if let Some(target) = target_of(l, expression)? {
        return match l.read_target(&target) {
            Operand::Scalar(scalar) => Ok(scalar),
            _ => refuse(expression.span, "a range of bits of this value is not supported"),
        };
    }
    let (base, low, width) = match &expression.kind {
        ExpressionKind::Slice(parts) => {
            let (high, low) = (l.known_size(&parts[1])?, l.known_size(&parts[2])?);
            (scalar(l, &parts[0], None)?, l.number(u64::from(low), 32), high.saturating_sub(low) + 1)
        }
        ExpressionKind::WidthSlice(parts) => {
            let width = l.known_size(&parts[2])?;
            let base = scalar(l, &parts[0], None)?;
            (base, scalar(l, &parts[1], Some(&RuntimeType::Bits(32, false)))?, width)
        }
        _ => return refuse(expression.span, "this is no range of bits"),
    };
    let e = &mut l.emitter;
    let words = match e.known(low.words[0]) {
        Some(low) => e.bits_from(&base.words, low as u32, width),
        None => {
            let shifted = e.shifted_by(&base.words, &low.words, (base.width(), false), false);
            e.bits_from(&shifted, 0, width)
        }
    };
    Ok(Scalar::bits(words, width))
}

/// Bits of a target that is a scalar.
fn bits_of(target: Target, low: u32, width: u32) -> Option<Target> {
    Some(match target {
        Target::Memory(place) if place.value_type.is_scalar() => Target::Bits(place, low, width),
        Target::Bits(place, outer, _) => Target::Bits(place, outer + low, width),
        _ => return None,
    })
}

/// `next` or `last` of a stack; outside of it the parser stops with an error.
pub(crate) fn stack_end(
    l: &mut Lowerer<'_>,
    stack: &Place,
    member: &str,
    span: SourceSpan,
) -> Lowered<Place> {
    let RuntimeType::Stack(element, count) = &stack.value_type else {
        return refuse(span, "this is no stack");
    };
    let next = l.emitter.load(stack.address, Size::W);
    let e = &mut l.emitter;
    let (index, is_inside) = match member {
        "next" => (next, e.compare_with(Cond::Lt, next, u64::from(*count))),
        _ => {
            let last = e.alu_with(AluOp::Sub, next, 1);
            (last, e.compare_with(Cond::Lt, last, u64::from(*count)))
        }
    };
    parser_errors::require(l, is_inside, "StackOutOfBounds", span)?;
    let address = l.element_address(stack, index, element);
    Ok(Place::new(address, (**element).clone()))
}

//! Statements.

use millstream_ir::Block;
use millstream_p4::SourceSpan;
use millstream_p4::ast::{
    BlockSyntax, ConditionalSyntax, DeclarationKind, DeclarationTree, ForInSyntax, ForLoopSyntax,
    StatementKind, StatementTree, SwitchCase,
};
use millstream_p4::expression::{BinaryOperator, ExpressionKind, ExpressionTree};

use crate::error::{Lowered, refuse};
use crate::lowerer::{Lowerer, calls, table_specs};
use crate::scope::Binding;
use crate::types::RuntimeType;
use crate::values::{Operand, Place, Scalar, Target};
use crate::{instances, operators, packets};

pub(crate) fn lower_block<'p>(l: &mut Lowerer<'p>, block: &'p BlockSyntax) -> Lowered<()> {
    l.nested(|l| statements(l, &block.statements))
}

pub(crate) fn statements<'p>(l: &mut Lowerer<'p>, statements: &'p [StatementTree]) -> Lowered<()> {
    statements.iter().try_for_each(|statement| lower_statement(l, statement))
}

pub(crate) fn lower_statement<'p>(l: &mut Lowerer<'p>, statement: &'p StatementTree) -> Lowered<()> {
    l.check_size(statement.span)?;
    l.mark_line(statement.span);
    match &statement.kind {
        StatementKind::Empty => {}
        StatementKind::Assignment(left, operator, right) => {
            assignment(l, left, *operator, right, statement.span)?;
        }
        StatementKind::Call(call) => {
            if let ExpressionKind::Call(function, types, arguments) = &call.kind {
                l.call(function, types, arguments, call.span, None)?;
            }
        }
        StatementKind::DirectApplication(syntax, arguments) => {
            calls::direct_application(l, syntax, arguments, statement.span)?;
        }
        StatementKind::Conditional(parts) => conditional(l, parts)?,
        StatementKind::Block(block) => lower_block(l, block)?,
        StatementKind::Switch(value, cases) => switch(l, value, cases)?,
        StatementKind::Return(value) => return_statement(l, value.as_ref())?,
        StatementKind::Exit => {
            l.flow.uses_exit = true;
            l.emitter.leave_to(l.flow.exits);
        }
        StatementKind::Break | StatementKind::Continue => {
            let Some((end, next)) = l.flow.loops.last().copied() else {
                return refuse(statement.span, "there is no loop here");
            };
            let is_break = matches!(statement.kind, StatementKind::Break);
            l.emitter.leave_to(if is_break { end } else { next });
        }
        StatementKind::ForLoop(parts) => l.nested(|l| for_loop(l, parts))?,
        StatementKind::ForInLoop(parts) => l.nested(|l| for_in_loop(l, parts))?,
        StatementKind::Declaration(declaration) => declare(l, declaration)?,
    }
    Ok(())
}

fn return_statement<'p>(l: &mut Lowerer<'p>, value: Option<&'p ExpressionTree>) -> Lowered<()> {
    if let (Some(value), Some(result)) = (value, l.flow.result.clone()) {
        l.lower_into(value, &result)?;
    }
    l.emitter.leave_to(l.flow.returns);
    Ok(())
}

fn assignment<'p>(
    l: &mut Lowerer<'p>,
    left: &'p ExpressionTree,
    operator: Option<BinaryOperator>,
    right: &'p ExpressionTree,
    span: SourceSpan,
) -> Lowered<()> {
    let Some(target) = l.target_of(left)? else {
        return refuse(left.span, "this cannot be assigned");
    };
    if let Target::Memory(place) = &target
        && let RuntimeType::Header(_) = place.value_type
    {
        assign_aggregate(l, place, right)?;
        return keep_one_member(l, left, place);
    }
    if let Some(operator) = operator {
        return compound(l, &target, operator, right, span);
    }
    match &target {
        Target::Memory(place) if !place.value_type.is_scalar() => assign_aggregate(l, place, right),
        _ => {
            let value_type = target.value_type();
            let value = l.scalar(right, Some(&value_type))?;
            let value = l.converted(value, &value_type);
            l.write_scalar(&target, &value);
            Ok(())
        }
    }
}

fn assign_aggregate<'p>(l: &mut Lowerer<'p>, place: &Place, right: &'p ExpressionTree) -> Lowered<()> {
    let is_built = matches!(
        right.kind,
        ExpressionKind::List(_)
            | ExpressionKind::Record(..)
            | ExpressionKind::Ternary(_)
            | ExpressionKind::Cast(..)
    );
    match is_built {
        true => {
            let made = l.emitter.variable(place.value_type.clone());
            l.lower_into(right, &made)?;
            l.emitter.copy(&made, place);
            Ok(())
        }
        false => l.lower_into(right, place),
    }
}

/// A valid header that is assigned to a member of a union makes the other members invalid.
fn keep_one_member<'p>(l: &mut Lowerer<'p>, left: &'p ExpressionTree, place: &Place) -> Lowered<()> {
    let ExpressionKind::Member(base, _) = &left.kind else { return Ok(()) };
    let RuntimeType::Union(_) = l.type_of(base)? else { return Ok(()) };
    let valid = l.emitter.validity(place);
    let behind = l.emitter.split(valid);
    packets::forget_siblings(l, left, place)?;
    l.emitter.jump(behind);
    l.emitter.enter(behind);
    Ok(())
}

fn compound<'p>(
    l: &mut Lowerer<'p>,
    target: &Target,
    operator: BinaryOperator,
    right: &'p ExpressionTree,
    span: SourceSpan,
) -> Lowered<()> {
    let value_type = target.value_type();
    let is_shift = matches!(operator, BinaryOperator::ShiftLeft | BinaryOperator::ShiftRight);
    let hint = if is_shift { RuntimeType::Bits(32, false) } else { value_type.clone() };
    let value = l.scalar(right, Some(&hint))?;
    let Operand::Scalar(old) = l.read_target(target) else {
        return refuse(span, "this operator needs a number");
    };
    let new = match is_shift {
        true => operators::shifted(l, operator == BinaryOperator::ShiftLeft, old, &value),
        false => operators::computed(l, operator, &old, &value, span)?,
    };
    l.write_scalar(target, &new);
    Ok(())
}

fn conditional<'p>(l: &mut Lowerer<'p>, parts: &'p ConditionalSyntax) -> Lowered<()> {
    let condition = l.scalar(&parts.condition, None)?;
    let otherwise = l.emitter.split(condition.words[0]);
    let behind = l.emitter.new_block();
    l.nested(|l| lower_statement(l, &parts.then))?;
    l.emitter.jump(behind);
    l.emitter.enter(otherwise);
    if let Some(statement) = &parts.otherwise {
        l.nested(|l| lower_statement(l, statement))?;
    }
    l.emitter.jump(behind);
    l.emitter.enter(behind);
    Ok(())
}

fn switch<'p>(l: &mut Lowerer<'p>, value: &'p ExpressionTree, cases: &'p [SwitchCase]) -> Lowered<()> {
    if let ExpressionKind::Member(base, member) = &value.kind
        && &*member.text == "action_run"
        && let ExpressionKind::Call(function, types, arguments) = &base.kind
    {
        let applied = l.call(function, types, arguments, base.span, None)?;
        let Operand::Applied { table, action, .. } = applied else {
            return refuse(value.span, "this is no table");
        };
        return switch_on(l, cases, |l, label| {
            let number = table_specs::action_number(l, table, label)?;
            let number = l.emitter.constant(number);
            Ok(l.emitter.compare(millstream_ir::Cond::Eq, action, number))
        });
    }
    let own = l.type_of(value)?;
    let hint = match own {
        RuntimeType::Integer => {
            let typed = cases.iter().filter_map(|case| case.label.as_ref());
            let types = typed.map(|label| l.type_of(label)).collect::<Lowered<Vec<_>>>()?;
            types.into_iter().find(RuntimeType::is_scalar)
        }
        other => Some(other),
    };
    let value = l.scalar(value, hint.as_ref())?;
    switch_on(l, cases, |l, label| {
        let label = l.scalar(label, Some(&value.value_type))?;
        Ok(l.emitter.equal_words(&value.words, &label.words))
    })
}

/// Tests labels in their order; a case without a body goes on with the next body.
fn switch_on<'p>(
    l: &mut Lowerer<'p>,
    cases: &'p [SwitchCase],
    mut test: impl FnMut(&mut Lowerer<'p>, &'p ExpressionTree) -> Lowered<millstream_ir::Value>,
) -> Lowered<()> {
    let behind = l.emitter.new_block();
    let bodies: Vec<Option<Block>> =
        cases.iter().map(|case| case.body.is_some().then(|| l.emitter.new_block())).collect();
    let body_of = |at: usize| bodies[at..].iter().flatten().next().copied().unwrap_or(behind);
    let mut default = behind;
    for (at, case) in cases.iter().enumerate() {
        match &case.label {
            Some(label) if !matches!(label.kind, ExpressionKind::Anything) => {
                let truth = test(l, label)?;
                let next = l.emitter.new_block();
                l.emitter.branch_if(truth, body_of(at), next);
                l.emitter.enter(next);
            }
            _ => default = body_of(at),
        }
    }
    l.emitter.jump(default);
    for (case, block) in cases.iter().zip(&bodies) {
        if let (Some(body), Some(block)) = (&case.body, block) {
            l.emitter.enter(*block);
            lower_block(l, body)?;
            l.emitter.jump(behind);
        }
    }
    l.emitter.enter(behind);
    Ok(())
}

fn for_loop<'p>(l: &mut Lowerer<'p>, parts: &'p ForLoopSyntax) -> Lowered<()> {
    statements(l, &parts.start)?;
    let head = l.emitter.new_block();
    l.emitter.jump(head);
    l.emitter.enter(head);
    let condition = l.scalar(&parts.condition, None)?;
    let behind = l.emitter.split(condition.words[0]);
    let update = l.emitter.new_block();
    loop_body(l, &parts.body, behind, update)?;
    l.emitter.jump(update);
    l.emitter.enter(update);
    statements(l, &parts.update)?;
    l.emitter.jump(head);
    l.emitter.enter(behind);
    Ok(())
}

fn loop_body<'p>(l: &mut Lowerer<'p>, body: &'p StatementTree, end: Block, next: Block) -> Lowered<()> {
    l.flow.loops.push((end, next));
    let result = l.nested(|l| lower_statement(l, body));
    l.flow.loops.pop();
    result
}

fn for_in_loop<'p>(l: &mut Lowerer<'p>, parts: &'p ForInSyntax) -> Lowered<()> {
    let target = match (&parts.declared_type, &parts.variable.kind) {
        (Some(syntax), ExpressionKind::Name(name)) => {
            let value_type = l.type_of_syntax(syntax)?;
            let place = l.emitter.variable(value_type);
            l.scope.bind(name.name.text.clone(), Binding::Variable(place.clone()));
            Target::Memory(place)
        }
        _ => match l.target_of(&parts.variable)? {
            Some(target) => target,
            None => return refuse(parts.variable.span, "this cannot be assigned"),
        },
    };
    match &parts.collection.kind {
        ExpressionKind::Binary(BinaryOperator::Range, low, high) => {
            range_loop(l, &target, (low, high), &parts.body)
        }
        _ => element_loop(l, &target, &parts.collection, &parts.body),
    }
}

fn range_loop<'p>(
    l: &mut Lowerer<'p>,
    target: &Target,
    (low, high): (&'p ExpressionTree, &'p ExpressionTree),
    body: &'p StatementTree,
) -> Lowered<()> {
    let value_type = target.value_type();
    let (low, high) = (l.scalar(low, Some(&value_type))?, l.scalar(high, Some(&value_type))?);
    let (low, high) = (l.converted(low, &value_type), l.converted(high, &value_type));
    let counter = l.emitter.variable(value_type.clone());
    l.emitter.store_scalar(&counter, &low);
    let (width, is_signed) = (low.width(), value_type.is_signed());
    let is_empty = l.emitter.less_words(&high.words, &low.words, width, is_signed);
    let (head, end, next) = (l.emitter.new_block(), l.emitter.new_block(), l.emitter.new_block());
    l.emitter.branch_if(is_empty, end, head);
    l.emitter.enter(head);
    let now = l.emitter.load_scalar(&counter);
    l.write_scalar(target, &now);
    loop_body(l, body, end, next)?;
    l.emitter.jump(next);
    l.emitter.enter(next);
    let now = l.emitter.load_scalar(&counter);
    let is_last = l.emitter.equal_words(&now.words, &high.words);
    let more = l.emitter.new_block();
    l.emitter.branch_if(is_last, end, more);
    l.emitter.enter(more);
    let one = l.number(1, width);
    let words = l.emitter.add_words(&now.words, &one.words, width);
    l.emitter.store_scalar(&counter, &Scalar { words, value_type });
    l.emitter.jump(head);
    l.emitter.enter(end);
    Ok(())
}

/// A loop over a list or stack: the body once for each element.
fn element_loop<'p>(
    l: &mut Lowerer<'p>,
    target: &Target,
    collection: &'p ExpressionTree,
    body: &'p StatementTree,
) -> Lowered<()> {
    let end = l.emitter.new_block();
    let items: Vec<Place> = match &collection.kind {
        ExpressionKind::List(items) => {
            let value_type = target.value_type();
            items.iter().map(|item| l.memory(item, Some(&value_type))).collect::<Lowered<_>>()?
        }
        _ => {
            let place = l.memory(collection, None)?;
            match place.value_type {
                RuntimeType::Stack(..) => {
                    let copy = l.emitter.variable(place.value_type.clone());
                    l.emitter.copy(&place, &copy);
                    copy.elements()
                }
                _ => place.fields(),
            }
        }
    };
    for item in items {
        match target {
            Target::Memory(place) => l.assign_place(&item, place)?,
            _ => {
                let value = l.emitter.load_scalar(&item);
                l.write_scalar(target, &value);
            }
        }
        let next = l.emitter.new_block();
        loop_body(l, body, end, next)?;
        l.emitter.jump(next);
        l.emitter.enter(next);
    }
    l.emitter.jump(end);
    l.emitter.enter(end);
    Ok(())
}

/// Declares a variable, constant, instance, action or table.
pub(crate) fn declare<'p>(l: &mut Lowerer<'p>, declaration: &'p DeclarationTree) -> Lowered<()> {
    let name = declaration.name.text.clone();
    let binding = match &declaration.kind {
        DeclarationKind::Constant(syntax, value) => Binding::Constant(value, l.type_of_syntax(syntax)?, None),
        DeclarationKind::Variable(syntax, value) => {
            let value_type = l.type_of_syntax(syntax)?;
            if value_type.size() == 0 {
                return refuse(declaration.span, "a variable of this type is not supported");
            }
            let place = l.emitter.variable(value_type);
            if let Some(value) = value {
                l.lower_into(value, &place)?;
            }
            Binding::Variable(place)
        }
        DeclarationKind::Instance(_) | DeclarationKind::ValueSet(..) => {
            Binding::Instance(instances::local_object(l, declaration)?)
        }
        DeclarationKind::Action(..) => Binding::Action(declaration),
        DeclarationKind::Table(_) => Binding::Table(declaration),
        DeclarationKind::Function(function) => Binding::Method(function),
        _ => return refuse(declaration.span, "this declaration is not supported here"),
    };
    l.scope.bind(name, binding);
    Ok(())
}

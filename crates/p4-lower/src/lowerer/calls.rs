//! Calls: functions, actions, parsers and controls are inlined; arguments are copied in and out.

use std::rc::Rc;

use millstream_p4::SourceSpan;
use millstream_p4::ast::{
    BlockSyntax, DeclarationKind, DeclarationTree, FunctionSyntax, ParameterDirection, ParameterSyntax,
};
use millstream_p4::expression::{
    CallArgument, ExpressionKind, ExpressionTree, QualifiedName, TypeSyntax, TypeSyntaxKind,
};

use crate::arguments::{matched, ordered};
use crate::error::{Lowered, refuse};
use crate::lowerer::{Flow, Lowerer, externs};
use crate::methods::method_call;
use crate::scope::{Binding, BlockInstance, Instance, Scope};
use crate::types::RuntimeType;
use crate::values::{Operand, Place, Target};
use crate::{instances, parsers, type_names};

/// Copies to make behind a call: from a local object to the argument.
pub(crate) type CopyOuts = Vec<(Place, Target)>;

/// A parameter with its type, the object that its argument names, and the argument.
type BoundArgument<'p> = (&'p ParameterSyntax, RuntimeType, Option<Target>, Option<&'p ExpressionTree>);

/// Lowers a call.
pub(crate) fn call<'p>(
    l: &mut Lowerer<'p>,
    function: &'p ExpressionTree,
    types: &'p [TypeSyntax],
    arguments: &'p [CallArgument],
    span: SourceSpan,
    hint: Option<&RuntimeType>,
) -> Lowered<Operand> {
    match &function.kind {
        ExpressionKind::Name(name) => named_call(l, name, types, arguments, span, hint),
        ExpressionKind::Member(base, member) => method_call(l, base, member, types, arguments, span),
        _ => refuse(span, "this call is not supported"),
    }
}

fn named_call<'p>(
    l: &mut Lowerer<'p>,
    name: &'p QualifiedName,
    types: &'p [TypeSyntax],
    arguments: &'p [CallArgument],
    span: SourceSpan,
    hint: Option<&RuntimeType>,
) -> Lowered<Operand> {
    let text = &name.name.text;
    if !name.is_global
        && let Some((binding, found)) = l.scope.find(text)
    {
        return match binding {
            Binding::Action(declaration) => action_call(l, declaration, found, arguments, span),
            Binding::Method(function) => function_call(l, function, types, arguments, span, hint),
            _ => refuse(span, format!("`{text}` cannot be called")),
        };
    }
    let mut declarations = l.source.globals.get(text).cloned().unwrap_or_default();
    // A function may be the code of an extern with the same signature.
    declarations.sort_by_key(|declaration| !matches!(declaration.kind, DeclarationKind::Function(_)));
    for declaration in declarations {
        match &declaration.kind {
            DeclarationKind::Function(function)
                if matched(&function.signature.parameters, arguments).is_some() =>
            {
                return function_call(l, function, types, arguments, span, hint);
            }
            DeclarationKind::Action(..) => {
                let root = l.root.clone();
                return action_call(l, declaration, root, arguments, span);
            }
            DeclarationKind::ExternFunction(signature) => {
                if let Some(values) = ordered(&signature.parameters, arguments) {
                    return externs::extern_function(l, text, &values, span);
                }
            }
            _ => {}
        }
    }
    refuse(span, format!("`{text}` cannot be called"))
}

pub(crate) fn action_call<'p>(
    l: &mut Lowerer<'p>,
    declaration: &'p DeclarationTree,
    found: Rc<Scope<'p>>,
    arguments: &'p [CallArgument],
    span: SourceSpan,
) -> Lowered<Operand> {
    let DeclarationKind::Action(parameters, body) = &declaration.kind else {
        return refuse(span, "this is no action");
    };
    let scope = Scope::new(Some(found));
    let copies = bind_parameters(l, parameters, arguments, &scope, false, span)?;
    inlined(l, scope, copies, None, span, |l| l.block(body))
}

fn function_call<'p>(
    l: &mut Lowerer<'p>,
    function: &'p FunctionSyntax,
    types: &'p [TypeSyntax],
    arguments: &'p [CallArgument],
    span: SourceSpan,
    hint: Option<&RuntimeType>,
) -> Lowered<Operand> {
    let scope = Scope::new(Some(l.root.clone()));
    let signature = &function.signature;
    for (name, syntax) in signature.type_parameters.iter().zip(types) {
        if !matches!(syntax.kind, TypeSyntaxKind::Anything) {
            let value = l.type_of_syntax(syntax)?;
            scope.bind_type(name.text.clone(), value);
        }
    }
    l.infer_types(&signature.type_parameters, &signature.parameters, arguments, &scope)?;
    if let (Some(result), Some(hint)) = (&signature.result, hint) {
        type_names::infer(result, hint, &signature.type_parameters, &scope);
    }
    let copies = bind_parameters(l, &signature.parameters, arguments, &scope, true, span)?;
    let result = match &signature.result {
        Some(syntax) => l.in_scope(scope.clone(), |l| l.type_of_syntax(syntax))?,
        None => RuntimeType::Void,
    };
    let result = (result.size() > 0).then(|| l.emitter.variable(result));
    inlined(l, scope, copies, result, span, |l| l.block(&function.body))
}

/// Binds parameters: by reference where no other argument can overlap, else by copies.
pub(crate) fn bind_parameters<'p>(
    l: &mut Lowerer<'p>,
    parameters: &'p [ParameterSyntax],
    arguments: &'p [CallArgument],
    scope: &Rc<Scope<'p>>,
    by_reference: bool,
    span: SourceSpan,
) -> Lowered<CopyOuts> {
    let Some(places) = matched(parameters, arguments) else {
        return refuse(span, "the arguments do not match the parameters");
    };
    let mut bound: Vec<BoundArgument<'p>> = Vec::new();
    // Arguments are evaluated, and copied out, in the order in which they are written.
    let mut order: Vec<usize> = (0..parameters.len()).collect();
    order.sort_by_key(|at| {
        let given = places[*at].map(std::ptr::from_ref);
        arguments.iter().position(|argument| given == Some(std::ptr::from_ref(argument)))
    });
    for (parameter, argument) in order.into_iter().map(|at| (&parameters[at], places[at])) {
        let declared = l.in_scope(scope.clone(), |l| l.type_of_syntax(&parameter.declared_type))?;
        let value = argument.map_or(parameter.default.as_ref(), |argument| argument.value.as_ref());
        let value_scope = if argument.is_some() { l.scope.clone() } else { l.root.clone() };
        if let RuntimeType::Object(..) = declared {
            let Some(value) = value else { continue };
            let instance = instances::instance_of(l, value)?;
            scope.bind(parameter.name.text.clone(), Binding::Instance(instance));
            continue;
        }
        if declared.size() == 0 {
            if let Some(value) = value {
                let binding = Binding::Constant(value, declared, Some(value_scope));
                scope.bind(parameter.name.text.clone(), binding);
            }
            continue;
        }
        let is_written = matches!(parameter.direction, ParameterDirection::Out | ParameterDirection::InOut);
        let target = match value {
            Some(value) if is_written || by_reference => l.target_of(value)?,
            _ => None,
        };
        let target = match value {
            Some(value) if argument.is_none() => {
                let made = l.emitter.variable(declared.clone());
                l.in_scope(value_scope, |l| l.lower_into(value, &made))?;
                Some(Target::Memory(made))
            }
            _ => target,
        };
        bound.push((parameter, declared, target, value));
    }
    let mut copies = Vec::new();
    for at in 0..bound.len() {
        bind_argument(l, &bound, at, by_reference, scope, &mut copies)?;
    }
    Ok(copies)
}

/// Binds a parameter to its argument's place, or to a copy.
fn bind_argument<'p>(
    l: &mut Lowerer<'p>,
    bound: &[BoundArgument<'p>],
    at: usize,
    by_reference: bool,
    scope: &Scope<'p>,
    copies: &mut CopyOuts,
) -> Lowered<()> {
    let is_reference = by_reference && is_apart(bound, at);
    let (parameter, declared, target, value) = &bound[at];
    let place = match target {
        Some(Target::Memory(place)) if is_reference => {
            if parameter.direction == ParameterDirection::Out {
                l.emitter.clear(place);
            }
            place.clone()
        }
        _ => {
            let local = l.emitter.variable(declared.clone());
            copy_in(l, parameter, target.as_ref(), *value, &local)?;
            if matches!(parameter.direction, ParameterDirection::Out | ParameterDirection::InOut) {
                copies.push((local.clone(), target.clone().unwrap_or(Target::Ignored)));
            }
            local
        }
    };
    scope.bind(parameter.name.text.clone(), Binding::Variable(place));
    Ok(())
}

fn copy_in<'p>(
    l: &mut Lowerer<'p>,
    parameter: &ParameterSyntax,
    target: Option<&Target>,
    value: Option<&'p ExpressionTree>,
    local: &Place,
) -> Lowered<()> {
    let Some(value) = value else { return Ok(()) };
    match (parameter.direction, target) {
        (ParameterDirection::Out, _) => Ok(()),
        (_, Some(target)) => match l.read_target(target) {
            Operand::Scalar(scalar) => {
                let scalar = l.converted(scalar, &local.value_type);
                l.emitter.store_scalar(local, &scalar);
                Ok(())
            }
            Operand::Memory(place) => l.assign_place(&place, local),
            _ => Ok(()),
        },
        _ => l.lower_into(value, local),
    }
}

/// Lowers a body in place of a call.
pub(crate) fn inlined<'p>(
    l: &mut Lowerer<'p>,
    scope: Rc<Scope<'p>>,
    copies: CopyOuts,
    result: Option<Place>,
    span: SourceSpan,
    body: impl FnOnce(&mut Lowerer<'p>) -> Lowered<()>,
) -> Lowered<Operand> {
    let returns = l.emitter.new_block();
    let outer_exit = l.flow.exits;
    let exits = if copies.is_empty() { outer_exit } else { l.emitter.new_block() };
    let flow = Flow { returns, result: result.clone(), exits, uses_exit: false, loops: Vec::new() };
    let outer = std::mem::replace(&mut l.flow, flow);
    let lowered = l.called(span, |l| l.in_scope(scope, body));
    let uses_exit = l.flow.uses_exit;
    l.flow = outer;
    l.flow.uses_exit |= uses_exit;
    lowered?;
    l.emitter.jump(returns);
    if exits != outer_exit {
        l.emitter.enter(exits);
        if uses_exit {
            copy_out(l, &copies)?;
        }
        l.emitter.jump(outer_exit);
    }
    l.emitter.enter(returns);
    copy_out(l, &copies)?;
    Ok(match result {
        Some(place) if place.value_type.is_scalar() => Operand::Scalar(l.emitter.load_scalar(&place)),
        Some(place) => Operand::Memory(place),
        None => Operand::Nothing,
    })
}

fn copy_out(l: &mut Lowerer<'_>, copies: &CopyOuts) -> Lowered<()> {
    for (local, target) in copies {
        match target {
            Target::Memory(place) if !local.value_type.is_scalar() => l.assign_place(local, place)?,
            Target::Ignored => {}
            _ => {
                let value = l.emitter.load_scalar(local);
                let value = l.converted(value, &target.value_type());
                l.write_scalar(target, &value);
            }
        }
    }
    Ok(())
}

/// Applies a parser or control.
pub(crate) fn apply_block<'p>(
    l: &mut Lowerer<'p>,
    block: &Rc<BlockInstance<'p>>,
    arguments: &'p [CallArgument],
    span: SourceSpan,
) -> Lowered<Operand> {
    let scope = Scope::of_owner(Some(block.arguments.clone()), Some(block.clone()));
    let parameters: &'p [ParameterSyntax] = match &block.declaration.kind {
        DeclarationKind::Control(control) => &control.parameters,
        DeclarationKind::Parser(parser) => &parser.parameters,
        _ => return refuse(span, "this cannot be applied"),
    };
    let copies = bind_parameters(l, parameters, arguments, &scope, true, span)?;
    inlined(l, scope, copies, None, span, |l| block_body(l, block.declaration))
}

/// Lowers the body of a parser or control, whose parameters are bound.
pub(crate) fn block_body<'p>(l: &mut Lowerer<'p>, declaration: &'p DeclarationTree) -> Lowered<()> {
    match &declaration.kind {
        DeclarationKind::Control(control) => {
            let Some(body) = &control.body else { return refuse(declaration.span, "no body") };
            body.locals.iter().try_for_each(|local| l.declare(local))?;
            apply_statements(l, &body.apply)
        }
        DeclarationKind::Parser(parser) => {
            let Some(body) = &parser.body else { return refuse(declaration.span, "no body") };
            body.locals.iter().try_for_each(|local| l.declare(local))?;
            parsers::parser_states(l, &body.states, declaration.span)
        }
        _ => refuse(declaration.span, "this has no body"),
    }
}

fn apply_statements<'p>(l: &mut Lowerer<'p>, apply: &'p BlockSyntax) -> Lowered<()> {
    l.nested(|l| l.statements(&apply.statements))
}

pub(crate) fn direct_application<'p>(
    l: &mut Lowerer<'p>,
    syntax: &'p TypeSyntax,
    arguments: &'p [CallArgument],
    span: SourceSpan,
) -> Lowered<()> {
    let instance = instances::direct_object(l, syntax, span)?;
    match &*instance {
        Instance::Block(block) => apply_block(l, block, arguments, span).map(|_| ()),
        _ => refuse(span, "this cannot be applied"),
    }
}

/// Tells if an argument can be passed by reference: no other one can overlap.
fn is_apart(bound: &[BoundArgument<'_>], at: usize) -> bool {
    let (_, declared, Some(Target::Memory(place)), _) = &bound[at] else { return false };
    let others = bound.iter().enumerate().filter(|(index, _)| *index != at);
    place.value_type == *declared
        && others.filter_map(|(_, (_, _, target, _))| target.as_ref()).all(|other| match other {
            Target::Memory(other) | Target::Bits(other, ..) | Target::BitsAt(other, ..) => {
                place.is_disjoint(other)
            }
            Target::Ignored => true,
        })
}

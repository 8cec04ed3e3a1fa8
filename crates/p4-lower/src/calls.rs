//! Calls: functions, actions, parsers and controls are inlined; arguments are copied in and out.

use std::rc::Rc;

use millstream_p4::ast::{
    BlockSyntax, DeclarationKind, DeclarationTree, FunctionSyntax, ParameterDirection, ParameterSyntax,
};
use millstream_p4::expression::{
    CallArgument, ExpressionKind, ExpressionTree, QualifiedName, TypeSyntax, TypeSyntaxKind,
};
use millstream_p4::{SourceName, SourceSpan};

use crate::arguments::{matched, ordered};
use crate::error::{Lowered, refuse};
use crate::lowerer::{Flow, Lowerer};
use crate::methods::method_call;
use crate::scope::{Binding, BlockInstance, Instance, Scope};
use crate::types::RuntimeType;
use crate::values::{Operand, Place, Target};

/// Copies to make behind a call: from a local object to the argument.
pub(crate) type CopyOuts = Vec<(Place, Target)>;

/// A parameter with its type, the object that its argument names, and the argument.
type BoundArgument<'p> = (&'p ParameterSyntax, RuntimeType, Option<Target>, Option<&'p ExpressionTree>);

impl<'p> Lowerer<'p> {
    /// Lowers a call.
    pub(crate) fn call(
        &mut self,
        function: &'p ExpressionTree,
        types: &'p [TypeSyntax],
        arguments: &'p [CallArgument],
        span: SourceSpan,
        hint: Option<&RuntimeType>,
    ) -> Lowered<Operand> {
        match &function.kind {
            ExpressionKind::Name(name) => self.named_call(name, types, arguments, span, hint),
            ExpressionKind::Member(base, member) => method_call(self, base, member, types, arguments, span),
            _ => refuse(span, "this call is not supported"),
        }
    }

    fn named_call(
        &mut self,
        name: &'p QualifiedName,
        types: &'p [TypeSyntax],
        arguments: &'p [CallArgument],
        span: SourceSpan,
        hint: Option<&RuntimeType>,
    ) -> Lowered<Operand> {
        let text = &name.name.text;
        if !name.is_global
            && let Some((binding, found)) = self.scope.find(text)
        {
            return match binding {
                Binding::Action(declaration) => self.action_call(declaration, found, arguments, span),
                Binding::Method(function) => self.function_call(function, types, arguments, span, hint),
                _ => refuse(span, format!("`{text}` cannot be called")),
            };
        }
        let mut declarations = self.globals.get(text).cloned().unwrap_or_default();
        // A function may be the code of an extern with the same signature.
        declarations.sort_by_key(|declaration| !matches!(declaration.kind, DeclarationKind::Function(_)));
        for declaration in declarations {
            match &declaration.kind {
                DeclarationKind::Function(function)
                    if matched(&function.signature.parameters, arguments).is_some() =>
                {
                    return self.function_call(function, types, arguments, span, hint);
                }
                DeclarationKind::Action(..) => {
                    let root = self.root.clone();
                    return self.action_call(declaration, root, arguments, span);
                }
                DeclarationKind::ExternFunction(signature) => {
                    if let Some(values) = ordered(&signature.parameters, arguments) {
                        return self.extern_function(text, &values, span);
                    }
                }
                _ => {}
            }
        }
        refuse(span, format!("`{text}` cannot be called"))
    }

    pub(crate) fn action_call(
        &mut self,
        declaration: &'p DeclarationTree,
        found: Rc<Scope<'p>>,
        arguments: &'p [CallArgument],
        span: SourceSpan,
    ) -> Lowered<Operand> {
        let DeclarationKind::Action(parameters, body) = &declaration.kind else {
            return refuse(span, "this is no action");
        };
        let scope = Scope::new(Some(found));
        let copies = self.bind_parameters(parameters, arguments, &scope, false, span)?;
        self.inlined(scope, copies, None, span, |l| l.block(body))
    }

    fn function_call(
        &mut self,
        function: &'p FunctionSyntax,
        types: &'p [TypeSyntax],
        arguments: &'p [CallArgument],
        span: SourceSpan,
        hint: Option<&RuntimeType>,
    ) -> Lowered<Operand> {
        let scope = Scope::new(Some(self.root.clone()));
        let signature = &function.signature;
        for (name, syntax) in signature.type_parameters.iter().zip(types) {
            if !matches!(syntax.kind, TypeSyntaxKind::Anything) {
                let value = self.type_of_syntax(syntax)?;
                scope.bind_type(name.text.clone(), value);
            }
        }
        self.infer_types(&signature.type_parameters, &signature.parameters, arguments, &scope)?;
        if let (Some(result), Some(hint)) = (&signature.result, hint) {
            infer(result, hint, &signature.type_parameters, &scope);
        }
        let copies = self.bind_parameters(&signature.parameters, arguments, &scope, true, span)?;
        let result = match &signature.result {
            Some(syntax) => self.in_scope(scope.clone(), |l| l.type_of_syntax(syntax))?,
            None => RuntimeType::Void,
        };
        let result = (result.size() > 0).then(|| self.emitter.variable(result));
        self.inlined(scope, copies, result, span, |l| l.block(&function.body))
    }

    /// Finds type arguments from the types of arguments.
    pub(crate) fn infer_types(
        &mut self,
        names: &[SourceName],
        parameters: &'p [ParameterSyntax],
        arguments: &'p [CallArgument],
        scope: &Scope<'p>,
    ) -> Lowered<()> {
        if names.is_empty() {
            return Ok(());
        }
        let places = matched(parameters, arguments).unwrap_or_default();
        let mut later = Vec::new();
        for (parameter, argument) in parameters.iter().zip(places) {
            let Some(value) = argument.and_then(|argument| argument.value.as_ref()) else { continue };
            match self.type_of(value)? {
                RuntimeType::Integer => later.push(parameter),
                actual => infer(&parameter.declared_type, &actual, names, scope),
            }
        }
        for parameter in later {
            infer(&parameter.declared_type, &RuntimeType::Bits(32, false), names, scope);
        }
        Ok(())
    }

    /// Binds parameters: by reference where no other argument can overlap, else by copies.
    pub(crate) fn bind_parameters(
        &mut self,
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
            let declared = self.in_scope(scope.clone(), |l| l.type_of_syntax(&parameter.declared_type))?;
            let value = argument.map_or(parameter.default.as_ref(), |argument| argument.value.as_ref());
            let value_scope = if argument.is_some() { self.scope.clone() } else { self.root.clone() };
            if let RuntimeType::Object(..) = declared {
                let Some(value) = value else { continue };
                let instance = self.instance_of(value)?;
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
            let is_written =
                matches!(parameter.direction, ParameterDirection::Out | ParameterDirection::InOut);
            let target = match value {
                Some(value) if is_written || by_reference => self.target_of(value)?,
                _ => None,
            };
            let target = match value {
                Some(value) if argument.is_none() => {
                    let made = self.emitter.variable(declared.clone());
                    self.in_scope(value_scope, |l| l.lower_into(value, &made))?;
                    Some(Target::Memory(made))
                }
                _ => target,
            };
            bound.push((parameter, declared, target, value));
        }
        let mut copies = Vec::new();
        for at in 0..bound.len() {
            self.bind_argument(&bound, at, by_reference, scope, &mut copies)?;
        }
        Ok(copies)
    }

    /// Binds a parameter to its argument's place, or to a copy.
    fn bind_argument(
        &mut self,
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
                    self.emitter.clear(place);
                }
                place.clone()
            }
            _ => {
                let local = self.emitter.variable(declared.clone());
                self.copy_in(parameter, target.as_ref(), *value, &local)?;
                if matches!(parameter.direction, ParameterDirection::Out | ParameterDirection::InOut) {
                    copies.push((local.clone(), target.clone().unwrap_or(Target::Ignored)));
                }
                local
            }
        };
        scope.bind(parameter.name.text.clone(), Binding::Variable(place));
        Ok(())
    }

    fn copy_in(
        &mut self,
        parameter: &ParameterSyntax,
        target: Option<&Target>,
        value: Option<&'p ExpressionTree>,
        local: &Place,
    ) -> Lowered<()> {
        let Some(value) = value else { return Ok(()) };
        match (parameter.direction, target) {
            (ParameterDirection::Out, _) => Ok(()),
            (_, Some(target)) => match self.read_target(target) {
                Operand::Scalar(scalar) => {
                    let scalar = self.converted(scalar, &local.value_type);
                    self.emitter.store_scalar(local, &scalar);
                    Ok(())
                }
                Operand::Memory(place) => self.assign_place(&place, local),
                _ => Ok(()),
            },
            _ => self.lower_into(value, local),
        }
    }

    /// Lowers a body in place of a call.
    pub(crate) fn inlined(
        &mut self,
        scope: Rc<Scope<'p>>,
        copies: CopyOuts,
        result: Option<Place>,
        span: SourceSpan,
        body: impl FnOnce(&mut Self) -> Lowered<()>,
    ) -> Lowered<Operand> {
        let returns = self.emitter.new_block();
        let outer_exit = self.flow.exits;
        let exits = if copies.is_empty() { outer_exit } else { self.emitter.new_block() };
        let flow = Flow { returns, result: result.clone(), exits, uses_exit: false, loops: Vec::new() };
        let outer = std::mem::replace(&mut self.flow, flow);
        let lowered = self.called(span, |l| l.in_scope(scope, body));
        let uses_exit = self.flow.uses_exit;
        self.flow = outer;
        self.flow.uses_exit |= uses_exit;
        lowered?;
        self.emitter.jump(returns);
        if exits != outer_exit {
            self.emitter.enter(exits);
            if uses_exit {
                self.copy_out(&copies)?;
            }
            self.emitter.jump(outer_exit);
        }
        self.emitter.enter(returns);
        self.copy_out(&copies)?;
        Ok(match result {
            Some(place) if place.value_type.is_scalar() => Operand::Scalar(self.emitter.load_scalar(&place)),
            Some(place) => Operand::Memory(place),
            None => Operand::Nothing,
        })
    }

    fn copy_out(&mut self, copies: &CopyOuts) -> Lowered<()> {
        for (local, target) in copies {
            match target {
                Target::Memory(place) if !local.value_type.is_scalar() => self.assign_place(local, place)?,
                Target::Ignored => {}
                _ => {
                    let value = self.emitter.load_scalar(local);
                    let value = self.converted(value, &crate::statements::target_type(target));
                    self.write_scalar(target, &value);
                }
            }
        }
        Ok(())
    }

    /// Applies a parser or control.
    pub(crate) fn apply_block(
        &mut self,
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
        let copies = self.bind_parameters(parameters, arguments, &scope, true, span)?;
        self.inlined(scope, copies, None, span, |l| l.block_body(block.declaration))
    }

    /// Lowers the body of a parser or control, whose parameters are bound.
    pub(crate) fn block_body(&mut self, declaration: &'p DeclarationTree) -> Lowered<()> {
        match &declaration.kind {
            DeclarationKind::Control(control) => {
                let Some(body) = &control.body else { return refuse(declaration.span, "no body") };
                body.locals.iter().try_for_each(|local| self.declare(local))?;
                self.apply_statements(&body.apply)
            }
            DeclarationKind::Parser(parser) => {
                let Some(body) = &parser.body else { return refuse(declaration.span, "no body") };
                body.locals.iter().try_for_each(|local| self.declare(local))?;
                self.parser_states(&body.states, declaration.span)
            }
            _ => refuse(declaration.span, "this has no body"),
        }
    }

    fn apply_statements(&mut self, apply: &'p BlockSyntax) -> Lowered<()> {
        self.nested(|l| l.statements(&apply.statements))
    }

    pub(crate) fn direct_application(
        &mut self,
        syntax: &'p TypeSyntax,
        arguments: &'p [CallArgument],
        span: SourceSpan,
    ) -> Lowered<()> {
        let instance = self.direct_object(syntax, span)?;
        match &*instance {
            Instance::Block(block) => self.apply_block(block, arguments, span).map(|_| ()),
            _ => refuse(span, "this cannot be applied"),
        }
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

/// Binds type parameters by the shape of a type.
fn infer<'p>(syntax: &TypeSyntax, actual: &RuntimeType, names: &[SourceName], scope: &Scope<'p>) {
    match (&syntax.kind, actual) {
        (TypeSyntaxKind::Named(name), _) if names.iter().any(|n| n.text == name.name.text) => {
            let is_known = !matches!(actual, RuntimeType::Integer | RuntimeType::Other);
            if is_known && scope.find_type(&name.name.text).is_none() {
                scope.bind_type(name.name.text.clone(), actual.clone());
            }
        }
        (TypeSyntaxKind::Stack(element, _), RuntimeType::Stack(inner, _)) => {
            infer(element, inner, names, scope);
        }
        (TypeSyntaxKind::Tuple(elements), RuntimeType::Struct(record)) => {
            for (element, field) in elements.iter().zip(&record.fields) {
                infer(element, &field.field_type, names, scope);
            }
        }
        _ => {}
    }
}

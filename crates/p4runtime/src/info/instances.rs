//! Instances of parsers and controls: values of constructor parameters, code that is reached, and instances
//! within.

use millstream_p4::ConstantValue;
use millstream_p4::ast::{DeclarationKind, DeclarationTree, InstanceSyntax, ParameterSyntax};
use millstream_p4::expression::{ExpressionKind, ExpressionTree, TypeSyntax};
use num_bigint::BigInt;
use rustc_hash::{FxHashMap, FxHashSet};

use crate::info::InfoError;
use crate::info::data_types::TypeArguments;
use crate::info::elaborate::ProgramElaboration;
use crate::info::evaluate::NamedConstants;
use crate::info::liveness::{LivePart, LivenessWalk, visit_arguments, visit_expressions};
use crate::info::program::{constructor_parameters, type_name};
use crate::info::scope::{BlockCode, BlockScope, ConstructorCall, PlacedDeclaration, ScopeId, joined};
use crate::info::table_syntax::{action_references, ordered_arguments, table_expressions, type_arguments};

/// Most instances of parsers and controls.
const MOST_INSTANCES: usize = 1 << 14;

impl<'p> ProgramElaboration<'_, 'p> {
    /// Makes an instance of a parser or control, with those within it.
    pub(crate) fn scope(&mut self, call: &ConstructorCall<'_, 'p>) -> Result<Option<ScopeId>, InfoError> {
        if self.arena.len() >= MOST_INSTANCES {
            return Err(InfoError::TooLarge { limit: MOST_INSTANCES });
        }
        let (locals, code, types) = match &call.declaration.kind {
            DeclarationKind::Control(control) => match &control.body {
                Some(body) => (&body.locals, BlockCode::Control(&body.apply), &control.type_parameters),
                None => return Ok(None),
            },
            DeclarationKind::Parser(parser) => match &parser.body {
                Some(body) => (&body.locals, BlockCode::Parser(&body.states), &parser.type_parameters),
                None => return Ok(None),
            },
            _ => return Ok(None),
        };
        let mut type_arguments = TypeArguments::default();
        let empty = TypeArguments::default();
        let outer = call.caller.map_or(&empty, |caller| &self.arena.get(caller).type_arguments);
        for (name, argument) in types.iter().zip(call.type_arguments) {
            type_arguments.insert(name.text.to_string(), self.index.data_type(argument, outer));
        }
        let (constants, objects) = self.constructor_values(call);
        let mut scope = BlockScope {
            prefix: call.prefix.into(),
            locals: locals.iter().collect(),
            names: locals.iter().map(|local| (&*local.name.text, local)).collect(),
            code,
            constants,
            objects,
            type_arguments,
            live: Vec::new(),
            used: FxHashSet::default(),
            table_actions: FxHashSet::default(),
            called_actions: FxHashSet::default(),
            children: FxHashMap::default(),
            direct: Vec::new(),
        };
        self.collect_live(&mut scope);
        let id = self.arena.add(scope);
        self.reach(id)?;
        Ok(Some(id))
    }

    /// Values and objects that a constructor's parameters have.
    fn constructor_values(
        &self,
        call: &ConstructorCall<'_, 'p>,
    ) -> (NamedConstants<'p>, FxHashMap<&'p str, PlacedDeclaration<'p>>) {
        let mut constants = NamedConstants::default();
        let mut objects = FxHashMap::default();
        let parameters = constructor_parameters(call.declaration).unwrap_or_default();
        let none = NamedConstants::default();
        let outer = call.caller.map_or(&none, |caller| &self.arena.get(caller).constants);
        for (parameter, value) in parameters.iter().zip(ordered_arguments(parameters, call.arguments)) {
            let Some(value) = value else { continue };
            let name = &*parameter.name.text;
            if let ExpressionKind::Name(given) = &value.kind
                && let Some(object) = self.arena.find(self.index, call.caller, given)
                && matches!(object.declaration.kind, DeclarationKind::Instance(_))
            {
                objects.insert(name, object);
            } else if let Some(constant) = self.index.evaluate(value, outer) {
                constants.insert(name, self.parameter_constant(parameter, constant));
            }
        }
        (constants, objects)
    }

    /// Value of an argument as a parameter's type has it.
    fn parameter_constant(&self, parameter: &ParameterSyntax, constant: ConstantValue) -> ConstantValue {
        let data_type = self.index.data_type(&parameter.declared_type, &TypeArguments::default());
        match (constant, self.index.width(&data_type)) {
            (ConstantValue::Number(value), Some(width)) if value < BigInt::ZERO => {
                ConstantValue::Number(value + (BigInt::from(1) << width))
            }
            (constant, _) => constant,
        }
    }

    fn collect_live(&self, scope: &mut BlockScope<'p>) {
        let mut walk = LivenessWalk::new(self.index, &scope.constants);
        for local in &scope.locals {
            match &local.kind {
                DeclarationKind::Variable(..) => walk.declaration(local),
                DeclarationKind::Instance(instance) => methods(instance, &mut walk),
                _ => {}
            }
        }
        match scope.code {
            BlockCode::Control(apply) => walk.body(apply),
            BlockCode::Parser(states) => walk.states(states),
        }
        let parts = walk.parts;
        for part in &parts {
            if let LivePart::Instance(declaration) = part {
                scope.names.insert(&declaration.name.text, declaration);
                scope.locals.push(declaration);
            }
        }
        scope.live = parts;
    }

    /// Marks what the code of an instance reaches, and makes the instances within it.
    fn reach(&mut self, id: ScopeId) -> Result<(), InfoError> {
        let parts = self.arena.get(id).live.clone();
        let mut reached = ReachedNames::default();
        for part in parts {
            match part {
                LivePart::Expression(expression) => reached.expression(expression, true),
                LivePart::Application(target, arguments) => {
                    visit_arguments(arguments, &mut |expression| reached.single(expression, true));
                    self.direct_child(id, target)?;
                }
                LivePart::Instance(_) => {}
            }
        }
        while let Some((name, is_called)) = reached.names.pop() {
            let scope = self.arena.get_mut(id);
            let Some(declaration) = scope.names.get(name).copied() else { continue };
            let is_action = matches!(declaration.kind, DeclarationKind::Action(..));
            if is_action && is_called {
                scope.called_actions.insert(name);
            }
            if scope.used.insert(name) {
                self.reach_local(id, declaration, &mut reached)?;
            }
        }
        Ok(())
    }

    fn reach_local(
        &mut self,
        id: ScopeId,
        declaration: &'p DeclarationTree,
        reached: &mut ReachedNames<'p>,
    ) -> Result<(), InfoError> {
        match &declaration.kind {
            DeclarationKind::Action(_, body) => {
                let names = &self.arena.get(id).constants;
                let mut walk = LivenessWalk::new(self.index, names);
                walk.body(body);
                for part in walk.parts {
                    if let LivePart::Expression(expression) = part {
                        reached.expression(expression, false);
                    }
                }
            }
            DeclarationKind::Table(properties) => {
                for reference in action_references(properties) {
                    self.arena.get_mut(id).table_actions.insert(&reference.name.name.text);
                    reached.names.push((&reference.name.name.text, false));
                }
                for expression in table_expressions(properties) {
                    reached.expression(expression, false);
                }
            }
            DeclarationKind::Instance(instance) => {
                visit_arguments(&instance.arguments, &mut |part| reached.single(part, false));
                self.child(id, declaration, instance)?;
            }
            _ => {}
        }
        Ok(())
    }

    fn child(
        &mut self,
        id: ScopeId,
        declaration: &'p DeclarationTree,
        instance: &'p InstanceSyntax,
    ) -> Result<(), InfoError> {
        let Some(target) = self.index.constructed(&instance.object_type, &instance.arguments) else {
            return Ok(());
        };
        let placed = PlacedDeclaration { scope: Some(id), declaration };
        let prefix = self.arena.plane_name(placed);
        let call = ConstructorCall {
            declaration: target,
            type_arguments: type_arguments(&instance.object_type),
            arguments: &instance.arguments,
            caller: Some(id),
            prefix: &prefix,
        };
        if let Some(child) = self.scope(&call)? {
            self.arena.get_mut(id).children.insert(&declaration.name.text, child);
        }
        Ok(())
    }

    /// Makes the instance that a statement applies by the name of its type.
    fn direct_child(&mut self, id: ScopeId, target: &'p TypeSyntax) -> Result<(), InfoError> {
        let Some(declaration) = self.index.constructed(target, &[]) else { return Ok(()) };
        let name = type_name(target).unwrap_or_default();
        let prefix = joined(&self.arena.get(id).prefix, name);
        let call = ConstructorCall {
            declaration,
            type_arguments: type_arguments(target),
            arguments: &[],
            caller: Some(id),
            prefix: &prefix,
        };
        if let Some(child) = self.scope(&call)? {
            self.arena.get_mut(id).direct.push((target, child));
        }
        Ok(())
    }
}

/// Names that code refers to, and if a statement of the block calls them.
#[derive(Default)]
struct ReachedNames<'p> {
    names: Vec<(&'p str, bool)>,
}

impl<'p> ReachedNames<'p> {
    fn expression(&mut self, expression: &'p ExpressionTree, is_body: bool) {
        visit_expressions(expression, &mut |part| self.single(part, is_body));
    }

    fn single(&mut self, expression: &'p ExpressionTree, is_body: bool) {
        match &expression.kind {
            ExpressionKind::Call(function, ..) => {
                if let ExpressionKind::Name(name) = &function.kind {
                    self.names.push((&name.name.text, is_body));
                }
            }
            ExpressionKind::Name(name) => self.names.push((&name.name.text, false)),
            _ => {}
        }
    }
}

/// Walks through the methods that an instance implements.
fn methods<'p>(instance: &'p InstanceSyntax, walk: &mut LivenessWalk<'_, 'p>) {
    for part in instance.initializer.as_deref().unwrap_or_default() {
        if let DeclarationKind::Function(function) = &part.kind {
            walk.body(&function.body);
        }
    }
}

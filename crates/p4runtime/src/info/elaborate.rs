//! Instances that the package `main` is made of, and what packets can reach in them.
//!
//! Parsers and controls within others are instances of their own here, and join the outer one when its parts are
//! listed: [`ProgramElaboration::parts`] has the order of a program whose inner controls were inlined.

use std::collections::VecDeque;

use millstream_p4::ConstantValue;
use millstream_p4::ast::{DeclarationKind, DeclarationTree, InstanceSyntax, ParameterSyntax};
use millstream_p4::expression::{CallArgument, ExpressionKind, ExpressionTree, TypeSyntax, TypeSyntaxKind};
use rustc_hash::{FxHashMap, FxHashSet};

use crate::info::InfoError;
use crate::info::data_types::TypeArguments;
use crate::info::evaluate::NamedConstants;
use crate::info::liveness::{LivePart, LivenessWalk, visit_arguments, visit_expressions};
use crate::info::program::{ProgramIndex, constructor_parameters, type_name};
use crate::info::scope::{BlockCode, BlockScope, PlacedDeclaration, ScopeArena, ScopeId, joined};
use crate::info::tables::{action_references, table_expressions};

/// Most instances of parsers and controls.
const MOST_INSTANCES: usize = 1 << 14;

/// A block of the program that controllers may see.
#[derive(Clone, Copy, Debug)]
pub(crate) enum ProgramBlock<'p> {
    Parser(ScopeId),
    Control(ScopeId),
    Extern(PlacedDeclaration<'p>),
    Table(PlacedDeclaration<'p>),
    ValueSet(PlacedDeclaration<'p>),
}

/// A declaration of a block, with inner blocks inlined.
#[derive(Clone, Copy, Debug)]
pub(crate) enum BlockPart<'p> {
    Action(PlacedDeclaration<'p>),
    Extern(PlacedDeclaration<'p>),
    Table(PlacedDeclaration<'p>),
    ValueSet(PlacedDeclaration<'p>),
}

/// Blocks of a program.
pub(crate) struct ProgramElaboration<'w, 'p> {
    pub(crate) index: &'w ProgramIndex<'p>,
    pub(crate) arena: ScopeArena<'p>,
    /// Blocks, outer ones first.
    pub(crate) blocks: Vec<ProgramBlock<'p>>,
    seen: FxHashSet<*const DeclarationTree>,
    waiting: VecDeque<WaitingBlock<'p>>,
}

/// A block whose parts are not listed yet.
enum WaitingBlock<'p> {
    Package(&'p [ParameterSyntax], &'p [CallArgument]),
    Block(ProgramBlock<'p>),
}

/// A constructor with its arguments.
struct ConstructorCall<'a, 'p> {
    declaration: &'p DeclarationTree,
    type_arguments: &'p [TypeSyntax],
    arguments: &'p [CallArgument],
    /// Instance in which the call is.
    caller: Option<ScopeId>,
    prefix: &'a str,
}

impl<'w, 'p> ProgramElaboration<'w, 'p> {
    /// Elaborates a program; without `main`, it has only the externs of the outermost level.
    pub(crate) fn new(index: &'w ProgramIndex<'p>) -> Result<Self, InfoError> {
        let mut elaboration = ProgramElaboration {
            index,
            arena: ScopeArena::default(),
            blocks: Vec::new(),
            seen: FxHashSet::default(),
            waiting: VecDeque::new(),
        };
        let used = elaboration.used_instances();
        for declaration in &index.program.declarations {
            if let DeclarationKind::Instance(instance) = &declaration.kind {
                let target = index.constructed(&instance.object_type, &instance.arguments);
                let is_extern = target.is_some_and(|t| matches!(t.kind, DeclarationKind::Extern(_)));
                if is_extern || used.contains(&*declaration.name.text) {
                    elaboration.instance(declaration)?;
                }
            }
        }
        while let Some(block) = elaboration.waiting.pop_front() {
            elaboration.expand(block)?;
        }
        Ok(elaboration)
    }

    /// Names of instances of the outermost level that `main` uses.
    fn used_instances(&self) -> FxHashSet<&'p str> {
        let mut used = FxHashSet::default();
        let mut waiting = vec!["main"];
        while let Some(name) = waiting.pop() {
            let Some(DeclarationKind::Instance(instance)) = self.index.find(name).map(|d| &d.kind) else {
                continue;
            };
            if used.insert(name) {
                visit_arguments(&instance.arguments, &mut |expression| {
                    if let ExpressionKind::Name(name) = &expression.kind {
                        waiting.push(&name.name.text);
                    }
                });
            }
        }
        used
    }

    fn instance(&mut self, declaration: &'p DeclarationTree) -> Result<(), InfoError> {
        let DeclarationKind::Instance(instance) = &declaration.kind else { return Ok(()) };
        if !self.seen.insert(declaration) {
            return Ok(());
        }
        let target = self.index.constructed(&instance.object_type, &instance.arguments);
        let Some(target) = target else { return Ok(()) };
        if let DeclarationKind::Extern(_) = target.kind {
            let placed = PlacedDeclaration { scope: None, declaration };
            self.waiting.push_back(WaitingBlock::Block(ProgramBlock::Extern(placed)));
            return Ok(());
        }
        self.constructor(target, type_arguments(&instance.object_type), &instance.arguments)
    }

    fn constructor(
        &mut self,
        target: &'p DeclarationTree,
        type_arguments: &'p [TypeSyntax],
        arguments: &'p [CallArgument],
    ) -> Result<(), InfoError> {
        let is_parser = match &target.kind {
            DeclarationKind::Package(_, parameters) => {
                self.waiting.push_back(WaitingBlock::Package(parameters, arguments));
                return Ok(());
            }
            DeclarationKind::Parser(_) => true,
            DeclarationKind::Control(_) => false,
            _ => return Ok(()),
        };
        let call = ConstructorCall {
            declaration: target,
            type_arguments,
            arguments,
            caller: None,
            prefix: &target.name.text,
        };
        if let Some(scope) = self.scope(&call)? {
            let block = if is_parser { ProgramBlock::Parser(scope) } else { ProgramBlock::Control(scope) };
            self.waiting.push_back(WaitingBlock::Block(block));
        }
        Ok(())
    }

    fn expand(&mut self, block: WaitingBlock<'p>) -> Result<(), InfoError> {
        let block = match block {
            WaitingBlock::Package(parameters, arguments) => {
                for value in ordered_arguments(parameters, arguments).into_iter().flatten() {
                    self.package_argument(value)?;
                }
                return Ok(());
            }
            WaitingBlock::Block(block) => block,
        };
        self.blocks.push(block);
        let (ProgramBlock::Parser(scope) | ProgramBlock::Control(scope)) = block else { return Ok(()) };
        for part in self.parts(scope) {
            let child = match part {
                BlockPart::Action(_) => continue,
                BlockPart::Extern(placed) => ProgramBlock::Extern(placed),
                BlockPart::Table(placed) => ProgramBlock::Table(placed),
                BlockPart::ValueSet(placed) => ProgramBlock::ValueSet(placed),
            };
            self.waiting.push_back(WaitingBlock::Block(child));
        }
        Ok(())
    }

    fn package_argument(&mut self, value: &'p ExpressionTree) -> Result<(), InfoError> {
        let target = match &value.kind {
            ExpressionKind::Name(name) => match self.index.find(&name.name.text) {
                Some(declaration) => return self.instance(declaration),
                None => None,
            },
            ExpressionKind::Construct(target, arguments) => self
                .index
                .constructed(target, arguments)
                .map(|declaration| (declaration, type_arguments(target), &arguments[..])),
            ExpressionKind::Call(function, types, arguments) => match &function.kind {
                ExpressionKind::Name(name) => {
                    self.index.find(&name.name.text).map(|d| (d, &types[..], &arguments[..]))
                }
                _ => None,
            },
            _ => None,
        };
        target
            .map_or(Ok(()), |(declaration, types, arguments)| self.constructor(declaration, types, arguments))
    }
}

impl<'p> ProgramElaboration<'_, 'p> {
    /// Makes an instance of a parser or control, with those within it.
    fn scope(&mut self, call: &ConstructorCall<'_, 'p>) -> Result<Option<ScopeId>, InfoError> {
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
            (ConstantValue::Number(value), Some(width)) if value < num_bigint::BigInt::ZERO => {
                ConstantValue::Number(value + (num_bigint::BigInt::from(1) << width))
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

    /// Lists the declarations of an instance that are reached, with those of the instances within it in their place.
    pub(crate) fn parts(&self, scope: ScopeId) -> Vec<BlockPart<'p>> {
        let mut parts = Vec::new();
        self.add_parts(scope, &mut parts);
        parts
    }

    fn add_parts(&self, id: ScopeId, parts: &mut Vec<BlockPart<'p>>) {
        let scope = self.arena.get(id);
        for declaration in scope.locals.iter().copied() {
            let name = &*declaration.name.text;
            let placed = PlacedDeclaration { scope: Some(id), declaration };
            let is_used = scope.used.contains(name);
            match &declaration.kind {
                DeclarationKind::Action(..) if is_run(scope, name) => parts.push(BlockPart::Action(placed)),
                DeclarationKind::Table(_) if is_used => parts.push(BlockPart::Table(placed)),
                DeclarationKind::ValueSet(..) if is_used => parts.push(BlockPart::ValueSet(placed)),
                DeclarationKind::Instance(instance) => match scope.children.get(name) {
                    Some(child) => self.add_parts(*child, parts),
                    None if self.is_extern(instance) => parts.push(BlockPart::Extern(placed)),
                    None => {}
                },
                _ => {}
            }
        }
        for (_, child) in &scope.direct {
            self.add_parts(*child, parts);
        }
    }

    fn is_extern(&self, instance: &InstanceSyntax) -> bool {
        let name = type_name(&instance.object_type);
        name.and_then(|name| self.index.find(name))
            .is_some_and(|target| matches!(target.kind, DeclarationKind::Extern(_)))
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

/// Tells if a table that is applied or a statement of the block runs an action.
fn is_run(scope: &BlockScope<'_>, name: &str) -> bool {
    scope.used.contains(name) && scope.table_actions.contains(name) || scope.called_actions.contains(name)
}

fn type_arguments(target: &TypeSyntax) -> &[TypeSyntax] {
    match &target.kind {
        TypeSyntaxKind::Specialized(_, arguments) => arguments,
        _ => &[],
    }
}

/// Values of parameters, in their order: arguments by name or position, or default values.
pub(crate) fn ordered_arguments<'p>(
    parameters: &'p [ParameterSyntax],
    arguments: &'p [CallArgument],
) -> Vec<Option<&'p ExpressionTree>> {
    let named: FxHashMap<&str, &CallArgument> =
        arguments.iter().filter_map(|a| Some((&*a.name.as_ref()?.text, a))).collect();
    let value = |(at, parameter): (usize, &'p ParameterSyntax)| {
        let argument = match named.get(&*parameter.name.text) {
            Some(argument) => Some(*argument),
            None => arguments.get(at).filter(|argument| argument.name.is_none()),
        };
        argument.and_then(|argument| argument.value.as_ref()).or(parameter.default.as_ref())
    };
    parameters.iter().enumerate().map(value).collect()
}

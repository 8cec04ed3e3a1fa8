//! Instances that the package `main` is made of, and what packets can reach in them.
//!
//! Parsers and controls within others are instances of their own here, and join the outer one when its parts
//! are listed: [`ProgramElaboration::parts`] has the order of a program whose inner controls were inlined.

use std::collections::VecDeque;

use millstream_p4::ast::{DeclarationKind, DeclarationTree, InstanceSyntax, ParameterSyntax};
use millstream_p4::expression::{CallArgument, ExpressionKind, ExpressionTree, TypeSyntax};
use rustc_hash::FxHashSet;

use crate::info::InfoError;
use crate::info::liveness::visit_arguments;
use crate::info::program::{ProgramIndex, type_name};
use crate::info::scope::{BlockScope, ConstructorCall, PlacedDeclaration, ScopeArena, ScopeId};
use crate::info::table_syntax::{ordered_arguments, type_arguments};

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
    /// Lists the declarations of an instance that are reached, with those of the instances within it in their
    /// place.
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

/// Tells if a table that is applied or a statement of the block runs an action.
fn is_run(scope: &BlockScope<'_>, name: &str) -> bool {
    scope.used.contains(name) && scope.table_actions.contains(name) || scope.called_actions.contains(name)
}

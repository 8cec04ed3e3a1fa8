//! Actions and digests. Source: P4Runtime specification 1.4, sections 6.4.2 and 6.4.9.

use millstream_p4::ast::{DeclarationKind, ParameterSyntax, TableProperty};
use millstream_p4::expression::{ExpressionKind, ExpressionTree, TypeSyntax};
use millstream_p4::{CompiledProgram, NominalKind};
use rustc_hash::FxHashSet;

use crate::info::InfoError;
use crate::info::annotations::{self, field_ids};
use crate::info::builder::InfoBuilder;
use crate::info::data_types::DataType;
use crate::info::elaborate::{BlockPart, ProgramElaboration};
use crate::info::liveness::{LivePart, LivenessWalk, visit_expressions};
use crate::info::scope::{PlacedDeclaration, ScopeId};
use crate::info::symbols::ObjectKind;
use crate::info::table_syntax::{action_references, default_action, entry_parameters};
use crate::info::type_specs::named;
use crate::proto::config::v1::{Action, Digest, action};

/// An action of a block.
pub(crate) struct BlockAction<'p> {
    pub(crate) placed: PlacedDeclaration<'p>,
    /// A table runs it; the arguments of others are known.
    pub(crate) has_parameters: bool,
}

/// A call of v1model's `digest`: type and data.
#[derive(Clone, Copy)]
pub(crate) struct DigestCall<'p> {
    type_argument: Option<&'p TypeSyntax>,
    data: &'p ExpressionTree,
    scope: ScopeId,
}

/// Calls of extern functions in a block.
pub(crate) struct ExternCalls<'p> {
    pub(crate) digests: Vec<DigestCall<'p>>,
    /// There is a call of an extern function.
    pub(crate) has_extern_call: bool,
}

impl<'p> ProgramElaboration<'_, 'p> {
    /// Lists the actions of a block: those of the outermost level by their first use, then its own.
    pub(crate) fn actions(&self, scope: ScopeId) -> Vec<BlockAction<'p>> {
        let parts = self.parts(scope);
        let mut actions = Vec::new();
        let mut seen = FxHashSet::default();
        for part in &parts {
            if let BlockPart::Table(table) = part {
                self.add_table_actions(*table, &mut seen, &mut actions);
            }
        }
        self.add_called_actions(scope, &mut seen, &mut actions);
        for part in parts {
            if let BlockPart::Action(placed) = part
                && let Some(id) = placed.scope
            {
                let name = &*placed.declaration.name.text;
                let has_parameters = self.arena.get(id).table_actions.contains(name);
                actions.push(BlockAction { placed, has_parameters });
            }
        }
        actions
    }

    fn add_table_actions(
        &self,
        table: PlacedDeclaration<'p>,
        seen: &mut FxHashSet<*const millstream_p4::ast::DeclarationTree>,
        actions: &mut Vec<BlockAction<'p>>,
    ) {
        let DeclarationKind::Table(properties) = &table.declaration.kind else { return };
        let references = action_references(properties);
        let found = references.iter().filter_map(|r| self.arena.find_action(self.index, table.scope, r.name));
        for placed in found.chain(self.implied_no_action(table.scope, properties)) {
            if placed.scope.is_none() && seen.insert(placed.declaration) {
                actions.push(BlockAction { placed, has_parameters: true });
            }
        }
    }

    /// The default action of a table that names none.
    pub(crate) fn implied_no_action(
        &self,
        scope: Option<ScopeId>,
        properties: &[TableProperty],
    ) -> Option<PlacedDeclaration<'p>> {
        if default_action(properties).is_some() {
            return None;
        }
        let names = scope.map(|scope| &self.arena.get(scope).names);
        let local = names.and_then(|names| names.get("NoAction").copied());
        match local {
            Some(declaration) => Some(PlacedDeclaration { scope, declaration }),
            None => {
                self.index.find("NoAction").map(|declaration| PlacedDeclaration { scope: None, declaration })
            }
        }
    }

    fn add_called_actions(
        &self,
        id: ScopeId,
        seen: &mut FxHashSet<*const millstream_p4::ast::DeclarationTree>,
        actions: &mut Vec<BlockAction<'p>>,
    ) {
        for part in &self.arena.get(id).live {
            match part {
                LivePart::Expression(expression) => visit_expressions(expression, &mut |part| {
                    let ExpressionKind::Call(function, ..) = &part.kind else { return };
                    match &function.kind {
                        ExpressionKind::Name(name) => {
                            let found = self.arena.find_action(self.index, Some(id), name);
                            if let Some(placed) = found.filter(|placed| placed.scope.is_none())
                                && seen.insert(placed.declaration)
                            {
                                actions.push(BlockAction { placed, has_parameters: false });
                            }
                        }
                        ExpressionKind::Member(base, _) => {
                            if let Some(child) = self.applied(id, base) {
                                self.add_called_actions(child, seen, actions);
                            }
                        }
                        _ => {}
                    }
                }),
                LivePart::Application(target, _) => {
                    if let Some(child) = self.directly_applied(id, target) {
                        self.add_called_actions(child, seen, actions);
                    }
                }
                LivePart::Instance(_) => {}
            }
        }
    }

    /// Instance that `BASE.apply(...)` applies.
    fn applied(&self, id: ScopeId, base: &ExpressionTree) -> Option<ScopeId> {
        let ExpressionKind::Name(name) = &base.kind else { return None };
        let placed = self.arena.find(self.index, Some(id), name)?;
        self.arena.get(placed.scope?).children.get(&*placed.declaration.name.text).copied()
    }

    fn directly_applied(&self, id: ScopeId, target: &TypeSyntax) -> Option<ScopeId> {
        let direct = &self.arena.get(id).direct;
        direct.iter().find(|(syntax, _)| std::ptr::eq(*syntax, target)).map(|(_, child)| *child)
    }

    /// Lists the calls of `digest` that a block reaches: those in its actions, then those in its statements.
    pub(crate) fn digest_calls(&self, scope: ScopeId) -> ExternCalls<'p> {
        let mut walk = DigestWalk {
            elaboration: self,
            seen: FxHashSet::default(),
            calls: ExternCalls { digests: Vec::new(), has_extern_call: false },
        };
        for action in self.actions(scope) {
            walk.code_of(action.placed, action.placed.scope.unwrap_or(scope));
        }
        walk.block(scope);
        walk.calls
    }
}

/// Collector of the calls of `digest`, in functions and actions that are called, too.
struct DigestWalk<'w, 'p> {
    elaboration: &'w ProgramElaboration<'w, 'p>,
    seen: FxHashSet<*const millstream_p4::ast::DeclarationTree>,
    calls: ExternCalls<'p>,
}

impl<'p> DigestWalk<'_, 'p> {
    fn block(&mut self, id: ScopeId) {
        let elaboration = self.elaboration;
        for part in &elaboration.arena.get(id).live {
            self.part(*part, id);
        }
    }

    fn part(&mut self, part: LivePart<'p>, id: ScopeId) {
        match part {
            LivePart::Expression(expression) => {
                let mut found = Vec::new();
                visit_expressions(expression, &mut |part| {
                    if let ExpressionKind::Call(..) = part.kind {
                        found.push(part);
                    }
                });
                found.into_iter().for_each(|call| self.call(call, id));
            }
            LivePart::Application(target, _) => {
                if let Some(child) = self.elaboration.directly_applied(id, target) {
                    self.block(child);
                }
            }
            LivePart::Instance(_) => {}
        }
    }

    fn call(&mut self, call: &'p ExpressionTree, id: ScopeId) {
        let ExpressionKind::Call(function, types, arguments) = &call.kind else { return };
        match &function.kind {
            ExpressionKind::Name(name) => {
                let found = self.elaboration.arena.find(self.elaboration.index, Some(id), name);
                let Some(placed) = found else { return };
                let is_extern = matches!(placed.declaration.kind, DeclarationKind::ExternFunction(_));
                self.calls.has_extern_call |= is_extern && &*name.name.text != "static_assert";
                if is_extern && &*name.name.text == "digest" {
                    let data = arguments.get(1).and_then(|argument| argument.value.as_ref());
                    let call = |data| DigestCall { type_argument: types.first(), data, scope: id };
                    self.calls.digests.extend(data.map(call));
                } else {
                    self.code_of(placed, placed.scope.unwrap_or(id));
                }
            }
            ExpressionKind::Member(base, _) => {
                if let Some(child) = self.elaboration.applied(id, base) {
                    self.block(child);
                }
            }
            _ => {}
        }
    }

    fn code_of(&mut self, placed: PlacedDeclaration<'p>, id: ScopeId) {
        let body = match &placed.declaration.kind {
            DeclarationKind::Action(_, body) => body,
            DeclarationKind::Function(function) => &function.body,
            _ => return,
        };
        if !self.seen.insert(placed.declaration) {
            return;
        }
        let names = &self.elaboration.arena.get(id).constants;
        let mut walk = LivenessWalk::new(self.elaboration.index, names);
        walk.body(body);
        walk.parts.into_iter().for_each(|part| self.part(part, id));
    }
}

/// Describes an action, once for each name.
pub(crate) fn action<'p>(
    builder: &mut InfoBuilder<'_, 'p>,
    block_action: &BlockAction<'p>,
) -> Result<(), InfoError> {
    let declaration = block_action.placed.declaration;
    let DeclarationKind::Action(parameters, _) = &declaration.kind else { return Ok(()) };
    let name = builder.elaboration.arena.plane_name(block_action.placed);
    let id = builder.symbols.id(ObjectKind::Action, &name);
    if crate::info::annotations::is_hidden(&declaration.annotations) || !builder.described.insert(id) {
        return Ok(());
    }
    let preamble = builder.preamble(ObjectKind::Action, &name, &declaration.annotations, &[])?;
    let scope = block_action.placed.scope;
    let parameters: Vec<&ParameterSyntax> =
        entry_parameters(parameters).filter(|_| block_action.has_parameters).collect();
    let params = action_parameters(builder, &parameters, scope)?;
    builder.info.actions.push(Action { preamble: Some(preamble), params });
    Ok(())
}

fn action_parameters(
    builder: &mut InfoBuilder<'_, '_>,
    parameters: &[&ParameterSyntax],
    scope: Option<ScopeId>,
) -> Result<Vec<action::Param>, InfoError> {
    let index = builder.elaboration.index;
    let given =
        parameters.iter().map(|p| Ok((&*p.name.text, annotations::id_annotation(index, &p.annotations)?)));
    let ids = field_ids(&given.collect::<Result<Vec<_>, InfoError>>()?)?;
    let mut list = Vec::new();
    for (parameter, id) in parameters.iter().zip(ids) {
        let lists = annotations::annotation_lists(index, &parameter.annotations, &[])?;
        let data_type = builder.written_type(&parameter.declared_type, scope);
        let span = parameter.declared_type.span;
        let is_enumeration = is_plain_enumeration(index.program, &data_type);
        let width = builder.types.plane_width(&data_type);
        if width.is_none() && !is_enumeration {
            return Err(index.unsupported(span, "an action's parameter of this type"));
        }
        builder.types.info();
        builder.types.describe(&data_type, span)?;
        let type_name = match &data_type {
            DataType::Nominal(id, _) if is_enumeration => Some(named(&builder.types.type_name(*id, &[]))),
            _ => builder.types.new_type_name(&data_type),
        };
        let name = crate::info::annotations::name_annotation(&parameter.annotations);
        list.push(action::Param {
            id,
            name: name.unwrap_or_else(|| parameter.name.text.to_string()),
            annotations: lists.annotations,
            annotation_locations: Vec::new(),
            bitwidth: width.unwrap_or(0) as i32,
            doc: annotations::documentation(index, &parameter.annotations)?,
            type_name,
            structured_annotations: lists.structured,
        });
    }
    Ok(list)
}

/// Describes what a call of `digest` sends.
pub(crate) fn digest_call<'p>(
    builder: &mut InfoBuilder<'_, 'p>,
    call: DigestCall<'p>,
) -> Result<(), InfoError> {
    let (data_type, name) = digest_type(builder, call);
    let type_spec = Some(builder.types.describe(&data_type, call.data.span)?);
    let id = builder.symbols.id(ObjectKind::Digest, &name);
    if builder.described.insert(id) {
        let preamble = Some(builder.preamble(ObjectKind::Digest, &name, &[], &[])?);
        builder.info.digests.push(Digest { preamble, type_spec });
    }
    Ok(())
}

/// Type and name of a digest: that of its type, or a number if the type has no name.
pub(crate) fn digest_type<'p>(builder: &mut InfoBuilder<'_, 'p>, call: DigestCall<'p>) -> (DataType, String) {
    let index = builder.elaboration.index;
    let arguments = &builder.elaboration.arena.get(call.scope).type_arguments;
    let data_type = match call.type_argument {
        Some(syntax) => index.data_type(syntax, arguments),
        None => match index.program.facts.type_id(call.data.id) {
            Some(id) => index.found_type(id, arguments),
            None => DataType::Unknown,
        },
    };
    let name = match &data_type {
        DataType::Nominal(id, arguments) => builder.types.type_name(*id, arguments),
        _ => {
            let next = builder.unnamed_digests.len();
            let number = *builder.unnamed_digests.entry(call.data.id.0).or_insert(next);
            format!("digest_{number}")
        }
    };
    (data_type, name)
}

fn is_plain_enumeration(program: &CompiledProgram, data_type: &DataType) -> bool {
    match data_type {
        DataType::Nominal(id, _) => {
            matches!(program.types.nominal(*id).kind, NominalKind::Enumeration(None, _))
        }
        _ => false,
    }
}

//! Declarations of values, types and functions.

use crate::ast::{
    AggregateSyntax, DeclarationKind, DeclarationTree, FunctionSignature, FunctionSyntax, ParameterDirection,
    ParameterSyntax,
};
use crate::check::scope::{ActionEntity, FunctionEntity, NamedEntity, NamedValue};
use crate::check::type_names::container;
use crate::check::types::{
    FunctionType, INTEGER, NominalId, NominalKind, NominalType, ParameterType, TEXT, TypeId, UNKNOWN, VOID,
    ValueType,
};
use crate::check::{CheckedPart, TypeChecker};
use crate::expression::{ExpressionTree, TypeSyntax};
use crate::source::SourceName;

impl TypeChecker<'_> {
    pub(crate) fn declaration(&mut self, declaration: &DeclarationTree) {
        let name = &declaration.name;
        self.annotations(&declaration.annotations);
        if let Some(taken) = self.plane_names.add(declaration, self.part != CheckedPart::TopLevel) {
            self.error(
                name.span,
                format!("another declaration has the name `{taken}` for the control plane"),
            );
        }
        match &declaration.kind {
            DeclarationKind::Constant(declared, value) => self.constant(name, declared, value),
            DeclarationKind::Variable(declared, value) => self.variable(name, declared, value.as_ref()),
            DeclarationKind::Instance(instance) => self.instance(name, instance, declaration.span),
            DeclarationKind::Function(function) => self.function(name, function),
            DeclarationKind::ExternFunction(signature) => {
                if let Some(signature) = self.signature(name, signature, CheckedPart::TopLevel) {
                    self.declare_function(name, signature, true);
                }
            }
            DeclarationKind::Extern(syntax) => self.extern_type(name, syntax),
            DeclarationKind::Action(parameters, body) => self.action(name, parameters, body),
            DeclarationKind::Table(properties) => self.table(name, properties),
            DeclarationKind::ValueSet(element, size) => self.value_set(name, element, size),
            DeclarationKind::Parser(parser) => self.parser(name, parser),
            DeclarationKind::Control(control) => self.control(name, control),
            DeclarationKind::Package(types, parameters) => self.package(name, types, parameters),
            DeclarationKind::Aggregate(aggregate) => self.aggregate(name, aggregate),
            DeclarationKind::Enumeration(underlying, members) => {
                self.enumeration(name, underlying.as_ref(), members);
            }
            DeclarationKind::Errors(members) => self.member_names(members, true),
            DeclarationKind::MatchKinds(members) => self.member_names(members, false),
            DeclarationKind::TypeAlias(target) => {
                let type_id = self.type_of(target);
                self.declare(name, NamedEntity::Alias(type_id));
            }
            DeclarationKind::NewType(target) => self.new_type(name, target),
        }
    }

    fn constant(&mut self, name: &SourceName, declared: &TypeSyntax, value: &ExpressionTree) {
        let type_id = self.type_of(declared);
        let value_of = self.expression_as(value, type_id);
        if !value_of.is_known {
            self.error(value.span, "the value of a constant has to be known when the program is compiled");
        }
        if !self.is_data(type_id) || type_id == VOID {
            self.error(declared.span, "a constant cannot have this type");
        }
        let constant = value_of.constant;
        let value = NamedValue { type_id, is_writable: false, is_known: true, constant };
        self.declare_value(name, value);
    }

    /// Hides outer declarations of a name while its own is read.
    pub(crate) fn reserve(&mut self, name: &SourceName) {
        if self.scopes.find_innermost(&name.text).is_none() {
            self.scopes.insert(name.text.clone(), NamedEntity::Undeclared, name.span);
        }
    }

    fn variable(&mut self, name: &SourceName, declared: &TypeSyntax, value: Option<&ExpressionTree>) {
        let type_id = self.type_of(declared);
        if !self.is_runtime_data(type_id) {
            let text = self.types.name(type_id);
            self.error(declared.span, format!("a variable cannot have the type `{text}`"));
        }
        if let Some(value) = value {
            self.expression_as(value, type_id);
        }
        self.declare_value(name, variable(type_id));
    }

    /// Gives type parameters a meaning in the innermost scope.
    pub(crate) fn declare_type_parameters(&mut self, names: &[SourceName]) -> Vec<TypeId> {
        let declare = |name: &SourceName| {
            let type_id = self.types.parameter(name.text.clone());
            self.declare(name, NamedEntity::Alias(type_id));
            type_id
        };
        names.iter().map(declare).collect()
    }

    /// Finds the meaning of the signature of a function.
    pub(crate) fn signature(
        &mut self,
        name: &SourceName,
        signature: &FunctionSignature,
        part: CheckedPart,
    ) -> Option<FunctionType> {
        self.scoped(|c| {
            let type_parameters = c.declare_type_parameters(&signature.type_parameters);
            let result = signature.result.as_ref().map_or(VOID, |result| c.type_of(result));
            let parameters = c.parameters(&signature.parameters, part);
            let is_object = !c.is_data(result) && part != CheckedPart::TopLevel;
            let is_static = result == INTEGER || result == TEXT;
            if is_object || is_static && matches!(part, CheckedPart::Function | CheckedPart::Method) {
                c.error(name.span, "a function cannot give this type");
            }
            let (name, span) = (name.text.clone(), name.span);
            Some(FunctionType { name, span, type_parameters, parameters, result })
        })
    }

    /// Finds the meaning of parameters, without declaring them.
    pub(crate) fn parameters(&mut self, list: &[ParameterSyntax], part: CheckedPart) -> Vec<ParameterType> {
        self.distinct("the parameter", list.iter().map(|parameter| &parameter.name));
        list.iter().map(|parameter| self.parameter(parameter, part)).collect()
    }

    fn parameter(&mut self, syntax: &ParameterSyntax, part: CheckedPart) -> ParameterType {
        self.annotations(&syntax.annotations);
        let outer = std::mem::replace(&mut self.allows_anything, true);
        let type_id = self.type_of(&syntax.declared_type);
        self.allows_anything = outer;
        let is_annotated = syntax.annotations.iter().any(|a| &*a.name.text == "optional");
        if is_annotated && matches!(part, CheckedPart::Function | CheckedPart::Action) {
            self.error(syntax.name.span, "only parameters of externs, packages and types can be optional");
        }
        let span = syntax.declared_type.span;
        let mut default_type = None;
        if let Some(default) = &syntax.default {
            default_type = Some(self.default_value(syntax, default, type_id));
            if is_annotated {
                self.error(syntax.name.span, "an optional parameter cannot have a default value");
            }
        }
        let has_direction = syntax.direction != ParameterDirection::Directionless;
        if (has_direction && !self.is_runtime_data(type_id)) || type_id == VOID {
            let name = self.types.name(type_id);
            self.error(span, format!("a parameter cannot have the type `{name}` here"));
        }
        let is_block = self.block(type_id).is_some_and(|(block, _)| block.constructor.is_some());
        if is_block || part == CheckedPart::Control && self.block(type_id).is_some() {
            self.error(
                span,
                "a parser or control cannot be passed here; only constructors take types of them",
            );
        }
        if part == CheckedPart::Action && !has_direction && !self.is_runtime_data(type_id) {
            self.error(
                span,
                "the parameters of actions have values when packets run, which this type has not",
            );
        }
        ParameterType {
            name: syntax.name.text.clone(),
            direction: syntax.direction,
            type_id,
            default_type,
            is_optional: is_annotated || syntax.default.is_some(),
        }
    }

    fn default_value(
        &mut self,
        syntax: &ParameterSyntax,
        default: &ExpressionTree,
        type_id: TypeId,
    ) -> TypeId {
        if matches!(syntax.direction, ParameterDirection::Out | ParameterDirection::InOut) {
            self.error(default.span, "a parameter that is written cannot have a default value");
        }
        let expected = self.opened(type_id);
        let value = self.expression_as(default, expected);
        if !value.is_known {
            self.error(default.span, "a default value has to be known when the program is compiled");
        }
        self.facts.type_id(default.id).unwrap_or(UNKNOWN)
    }

    /// Replaces the type parameters of a type by types that are inferred.
    fn opened(&mut self, type_id: TypeId) -> TypeId {
        let ValueType::Nominal(_, arguments) = self.types.kind(type_id).clone() else { return type_id };
        let parameters =
            arguments.into_iter().filter(|a| matches!(self.types.kind(*a), ValueType::Parameter(..)));
        let parameters: Vec<TypeId> = parameters.collect();
        let inferred: Vec<TypeId> = parameters.iter().map(|_| self.types.infer()).collect();
        self.types.substitute(type_id, &crate::check::coercion::substitution(&parameters, &inferred))
    }

    /// Declares parameters as variables of the innermost scope.
    pub(crate) fn declare_parameters(
        &mut self,
        syntax: &[ParameterSyntax],
        types: &[ParameterType],
        part: CheckedPart,
    ) {
        for (syntax, parameter) in syntax.iter().zip(types) {
            let direction = parameter.direction;
            let is_written = matches!(direction, ParameterDirection::Out | ParameterDirection::InOut);
            let is_known = direction == ParameterDirection::Directionless && part != CheckedPart::Action;
            let value =
                NamedValue { type_id: parameter.type_id, is_writable: is_written, is_known, constant: None };
            self.declare_value(&syntax.name, value);
        }
    }

    fn function(&mut self, name: &SourceName, function: &FunctionSyntax) {
        let Some(signature) = self.signature(name, &function.signature, CheckedPart::Function) else {
            return;
        };
        self.within(CheckedPart::Function, |c| c.function_body(&signature, function));
        self.declare_function(name, signature, false);
    }

    pub(crate) fn function_body(&mut self, signature: &FunctionType, function: &FunctionSyntax) {
        let outer = std::mem::replace(&mut self.result, signature.result);
        let loops = std::mem::take(&mut self.loops);
        self.scoped(|c| {
            for (name, type_id) in function.signature.type_parameters.iter().zip(&signature.type_parameters) {
                c.scopes.insert(name.text.clone(), NamedEntity::Alias(*type_id), name.span);
            }
            c.declare_parameters(&function.signature.parameters, &signature.parameters, c.part);
            let always_returns = c.scoped(|c| c.block_statements(&function.body));
            if !always_returns && signature.result != VOID && signature.result != UNKNOWN {
                c.error(signature.span, format!("`{}` does not return a value on all paths", signature.name));
            }
        });
        self.result = outer;
        self.loops = loops;
    }

    fn declare_function(&mut self, name: &SourceName, signature: FunctionType, is_extern: bool) {
        let index = self.functions.len();
        let existing = match self.scopes.find_innermost(&name.text) {
            Some((NamedEntity::Functions(list), _)) => Some(list.clone()),
            _ => None,
        };
        let Some(mut list) = existing else {
            self.functions.push(FunctionEntity { signature, is_extern });
            return self.declare(name, NamedEntity::Functions(vec![index]));
        };
        let same = list.iter().position(|f| is_same_call(&self.functions[*f].signature, &signature));
        match same.filter(|_| !is_extern) {
            // The function is the code of the extern.
            Some(at) if self.is_definition(list[at], &signature) => _ = list.remove(at),
            Some(_) => self.error(
                name.span,
                format!("a function `{}` with these parameters is declared already", name.text),
            ),
            None => {}
        }
        self.functions.push(FunctionEntity { signature, is_extern });
        list.push(index);
        self.scopes.insert(name.text.clone(), NamedEntity::Functions(list), name.span);
    }

    /// Tells if a function has the whole signature of an extern that was declared.
    fn is_definition(&self, declared: usize, signature: &FunctionType) -> bool {
        let FunctionEntity { signature: declared, is_extern } = &self.functions[declared];
        let same = |a: TypeId, b: TypeId| self.types.shallow(a) == self.types.shallow(b);
        let mut parameters = declared.parameters.iter().zip(&signature.parameters);
        *is_extern
            && same(declared.result, signature.result)
            && parameters.all(|(a, b)| a.direction == b.direction && same(a.type_id, b.type_id))
    }

    fn action(&mut self, name: &SourceName, syntax: &[ParameterSyntax], body: &crate::ast::BlockSyntax) {
        let parameters = self.parameters(syntax, CheckedPart::Action);
        let has_direction = |p: &ParameterType| p.direction != ParameterDirection::Directionless;
        let first = parameters.iter().position(|p| !has_direction(p)).unwrap_or(parameters.len());
        if parameters[first..].iter().any(has_direction) {
            self.error(name.span, "parameters without a direction have to be behind those with one");
        }
        let outer = std::mem::replace(&mut self.result, VOID);
        self.within(CheckedPart::Action, |c| {
            c.scoped(|c| {
                c.declare_parameters(syntax, &parameters, CheckedPart::Action);
                c.scoped(|c| c.block_statements(body));
            });
        });
        self.result = outer;
        self.actions.push(ActionEntity { parameters });
        self.declare(name, NamedEntity::Action(self.actions.len() - 1));
    }

    fn aggregate(&mut self, name: &SourceName, syntax: &AggregateSyntax) {
        self.distinct("the field", syntax.fields.iter().map(|field| &field.name));
        let (type_parameters, fields) = self.scoped(|c| {
            let type_parameters = c.declare_type_parameters(&syntax.type_parameters);
            let fields: Vec<_> = syntax
                .fields
                .iter()
                .map(|field| {
                    c.annotations(&field.annotations);
                    let type_id = c.type_of(&field.declared_type);
                    if !c.may_contain(container(syntax.kind), type_id) {
                        let text = c.types.name(type_id);
                        let message = format!("a field of type `{text}` is not allowed in `{}`", name.text);
                        c.error(field.declared_type.span, message);
                    }
                    (field.name.text.clone(), type_id)
                })
                .collect();
            (type_parameters, fields)
        });
        let kind = NominalKind::Aggregate(syntax.kind, fields);
        self.declare_nominal(name, type_parameters, kind);
    }

    pub(crate) fn declare_nominal(
        &mut self,
        name: &SourceName,
        type_parameters: Vec<TypeId>,
        kind: NominalKind,
    ) -> NominalId {
        let (text, span) = (name.text.clone(), name.span);
        let nominal = self.types.add_nominal(NominalType { name: text, span, type_parameters, kind });
        let existing = match self.scopes.find_innermost(&name.text) {
            Some((NamedEntity::Nominal(first), _)) => Some(*first),
            _ => None,
        };
        match existing.filter(|first| self.is_overloaded(*first, nominal)) {
            Some(first) => self.overloads.entry(first).or_default().push(nominal),
            None => self.declare(name, NamedEntity::Nominal(nominal)),
        }
        nominal
    }

    /// Tells if two types may have one name, since their constructors have different parameters.
    fn is_overloaded(&self, first: NominalId, second: NominalId) -> bool {
        let names = |nominal: NominalId| -> Option<Vec<&crate::source::Symbol>> {
            let parameters = match &self.types.nominal(nominal).kind {
                NominalKind::Block(block) => block.constructor.as_ref()?,
                NominalKind::Package(parameters) => parameters,
                _ => return None,
            };
            Some(parameters.iter().map(|parameter| &parameter.name).collect())
        };
        match (names(first), names(second)) {
            (Some(first), Some(second)) => first != second,
            _ => false,
        }
    }

    fn new_type(&mut self, name: &SourceName, target: &TypeSyntax) {
        let inner = self.type_of(target);
        let is_allowed = match self.types.kind(inner) {
            ValueType::Bits(_) | ValueType::SignedBits(_) | ValueType::Bool | ValueType::Unknown => true,
            ValueType::VariableBits(_) | ValueType::ErrorCode => true,
            ValueType::Nominal(nominal, _) => {
                matches!(
                    self.types.nominal(*nominal).kind,
                    NominalKind::NewType(_) | NominalKind::Enumeration(..)
                )
            }
            _ => false,
        };
        if !is_allowed {
            let text = self.types.name(inner);
            self.error(target.span, format!("`type` cannot make a new type of `{text}`"));
        }
        self.declare_nominal(name, Vec::new(), NominalKind::NewType(inner));
    }

    fn member_names(&mut self, members: &[SourceName], is_error: bool) {
        for member in members {
            let set = if is_error { &mut self.errors } else { &mut self.match_kinds };
            if !set.insert(member.text.clone()) {
                self.error(member.span, format!("`{}` is declared twice", member.text));
            }
        }
    }
}

/// A variable that can be written.
pub(crate) fn variable(type_id: TypeId) -> NamedValue {
    NamedValue { type_id, is_writable: true, is_known: false, constant: None }
}

/// Tells if two functions cannot be told apart by a call.
fn is_same_call(left: &FunctionType, right: &FunctionType) -> bool {
    left.parameters.len() == right.parameters.len()
        && left.parameters.iter().zip(&right.parameters).all(|(a, b)| a.name == b.name)
}

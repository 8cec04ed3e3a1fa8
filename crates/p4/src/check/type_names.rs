//! Types as they are written, and rules on types within types. Source: P4_16 1.2.5, section 7.

use crate::ast::AggregateKind;
use crate::check::TypeChecker;
use crate::check::coercion::substitution;
use crate::check::scope::NamedEntity;
use crate::check::types::{
    BOOL, ERROR_CODE, INTEGER, MATCH_KIND, NominalId, NominalKind, TEXT, TypeId, UNKNOWN, VOID, ValueType,
};
use crate::expression::{ExpressionTree, QualifiedName, TypeSyntax, TypeSyntaxKind};
use crate::parse::WIDEST_VALUE;
use crate::source::SourceSpan;

/// Most elements of a stack.
const LARGEST_STACK: u32 = 1 << 24;

impl TypeChecker<'_> {
    /// Finds the meaning of a type that has to be complete, and checks that it is allowed.
    pub(crate) fn type_of(&mut self, syntax: &TypeSyntax) -> TypeId {
        let id = self.type_within(syntax);
        self.check_valid(id, syntax.span);
        id
    }

    /// Finds the meaning of a type; `_` is inferred.
    pub(crate) fn type_or_anything(&mut self, syntax: &TypeSyntax) -> TypeId {
        match syntax.kind {
            TypeSyntaxKind::Anything if self.allows_anything => self.types.infer(),
            _ => self.type_of(syntax),
        }
    }

    fn type_within(&mut self, syntax: &TypeSyntax) -> TypeId {
        match &syntax.kind {
            TypeSyntaxKind::Bool => BOOL,
            TypeSyntaxKind::ErrorCode => ERROR_CODE,
            TypeSyntaxKind::MatchKind => MATCH_KIND,
            TypeSyntaxKind::Text => TEXT,
            TypeSyntaxKind::Void => VOID,
            TypeSyntaxKind::Integer => INTEGER,
            TypeSyntaxKind::Bits(None) => self.types.add(ValueType::Bits(1)),
            TypeSyntaxKind::Bits(Some(width)) => self.sized(width, ValueType::Bits, 0),
            TypeSyntaxKind::SignedBits(width) => self.sized(width, ValueType::SignedBits, 1),
            TypeSyntaxKind::VariableBits(width) => self.sized(width, ValueType::VariableBits, 0),
            TypeSyntaxKind::Named(name) => self.named_type(name, syntax.span),
            TypeSyntaxKind::Specialized(name, arguments) => self.specialized(name, arguments, syntax.span),
            TypeSyntaxKind::Stack(element, size) => self.stack(element, size),
            TypeSyntaxKind::Tuple(elements) => {
                let elements = elements.iter().map(|e| self.part_type(e)).collect();
                self.types.add(ValueType::Tuple(elements))
            }
            TypeSyntaxKind::List(element) => {
                let element = self.part_type(element);
                self.types.add(ValueType::List(element))
            }
            TypeSyntaxKind::Anything => {
                self.error(syntax.span, "`_` is only allowed as an argument of a generic call");
                UNKNOWN
            }
        }
    }

    /// Finds the meaning of a type within a generic one.
    fn part_type(&mut self, syntax: &TypeSyntax) -> TypeId {
        match syntax.kind {
            TypeSyntaxKind::Anything => self.type_within(syntax),
            _ => self.type_of(syntax),
        }
    }

    fn sized(&mut self, width: &ExpressionTree, make: fn(u32) -> ValueType, least: u32) -> TypeId {
        match self.known_size(width, "the width", least, WIDEST_VALUE) {
            Some(width) => self.types.add(make(width)),
            None => UNKNOWN,
        }
    }

    /// Evaluates a size, which has to be known and within limits.
    pub(crate) fn known_size(
        &mut self,
        size: &ExpressionTree,
        what: &str,
        least: u32,
        most: u32,
    ) -> Option<u32> {
        let value = self.expression(size);
        if value.type_id == UNKNOWN {
            return None;
        }
        let number_type = self.operand_type(value.type_id);
        if number_type != INTEGER && !self.is_number(number_type) {
            self.error(size.span, format!("{what} has to be a number"));
            return None;
        }
        let constant = value.constant.and_then(|constant| self.cast_constant(&constant, number_type));
        let Some(number) = constant.as_ref().and_then(|c| c.number()) else {
            self.error(size.span, format!("{what} has to be known when the program is compiled"));
            return None;
        };
        match u32::try_from(number) {
            Ok(number) if (least..=most).contains(&number) => Some(number),
            _ => {
                self.error(size.span, format!("{what} has to be from {least} to {most}, and is {number}"));
                None
            }
        }
    }

    fn stack(&mut self, element: &TypeSyntax, size: &ExpressionTree) -> TypeId {
        let element = self.type_of(element);
        match self.known_size(size, "the size of a stack", 0, LARGEST_STACK) {
            Some(size) => self.types.add(ValueType::Stack(element, size)),
            None => UNKNOWN,
        }
    }

    fn named_type(&mut self, name: &QualifiedName, span: SourceSpan) -> TypeId {
        match self.scopes.find(&name.name.text, name.is_global).cloned() {
            Some(NamedEntity::Alias(id)) => id,
            Some(NamedEntity::Nominal(nominal)) => {
                let parameters = self.types.nominal(nominal).type_parameters.len();
                if parameters > 0 {
                    self.error(span, format!("`{}` takes {parameters} type arguments", name.name.text));
                    return UNKNOWN;
                }
                self.types.add(ValueType::Nominal(nominal, Vec::new()))
            }
            Some(_) => {
                self.error(span, format!("`{}` is no type", name.name.text));
                UNKNOWN
            }
            None => {
                self.undeclared("the type", &name.name);
                UNKNOWN
            }
        }
    }

    fn specialized(&mut self, name: &QualifiedName, arguments: &[TypeSyntax], span: SourceSpan) -> TypeId {
        let arguments: Vec<TypeId> = arguments.iter().map(|a| self.type_or_anything(a)).collect();
        match self.scopes.find(&name.name.text, name.is_global).cloned() {
            Some(NamedEntity::Nominal(nominal)) => self.applied(nominal, arguments, span),
            Some(_) => {
                self.error(span, format!("`{}` takes no type arguments", name.name.text));
                UNKNOWN
            }
            None => {
                self.undeclared("the type", &name.name);
                UNKNOWN
            }
        }
    }

    /// Makes a type of a declared one and type arguments.
    pub(crate) fn applied(&mut self, nominal: NominalId, arguments: Vec<TypeId>, span: SourceSpan) -> TypeId {
        let declared = self.types.nominal(nominal);
        let (expected, name) = (declared.type_parameters.len(), declared.name.clone());
        if expected != arguments.len() {
            let count = arguments.len();
            self.error(span, format!("`{name}` takes {expected} type arguments, not {count}"));
            return UNKNOWN;
        }
        self.types.add(ValueType::Nominal(nominal, arguments))
    }

    /// Finds the type of an instance that is made; type arguments that are missing are inferred.
    pub(crate) fn constructed_type(&mut self, syntax: &TypeSyntax) -> TypeId {
        if let TypeSyntaxKind::Named(name) = &syntax.kind
            && let Some(NamedEntity::Nominal(nominal)) = self.scopes.find(&name.name.text, name.is_global)
        {
            let nominal = *nominal;
            let count = self.types.nominal(nominal).type_parameters.len();
            let arguments = (0..count).map(|_| self.types.infer()).collect();
            return self.types.add(ValueType::Nominal(nominal, arguments));
        }
        if let TypeSyntaxKind::Stack(element, size) = &syntax.kind {
            let element = self.constructed_type(element);
            let size = self.known_size(size, "the number of instances", 0, LARGEST_STACK);
            return size.map_or(UNKNOWN, |size| self.types.add(ValueType::Stack(element, size)));
        }
        let outer = std::mem::replace(&mut self.allows_anything, true);
        let type_id = self.type_of(syntax);
        self.allows_anything = outer;
        type_id
    }

    /// Tells if values of a type can be compared with sets.
    pub(crate) fn is_matched(&self, id: TypeId) -> bool {
        let id = self.types.shallow(id);
        match self.types.kind(id) {
            ValueType::Bits(_) | ValueType::SignedBits(_) | ValueType::Bool | ValueType::ErrorCode => true,
            ValueType::Unknown | ValueType::Parameter(..) => true,
            ValueType::Nominal(nominal, _) => match self.types.nominal(*nominal).kind {
                NominalKind::Enumeration(..) => true,
                NominalKind::NewType(inner) => self.is_matched(inner),
                _ => false,
            },
            _ => false,
        }
    }
}

/// A type that has others within it.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum ContainerKind {
    Header,
    HeaderUnion,
    Struct,
    Tuple,
    List,
    Stack,
}

impl TypeChecker<'_> {
    /// Checks that a type is allowed, its parts included.
    pub(crate) fn check_valid(&mut self, id: TypeId, span: SourceSpan) {
        if !self.is_valid(id) {
            let name = self.types.name(id);
            self.error(span, format!("the type `{name}` has parts that are not allowed in it"));
        }
    }

    pub(crate) fn is_valid(&mut self, id: TypeId) -> bool {
        let id = self.types.resolve(id);
        if let Some(valid) = self.valid.get(&id) {
            return *valid;
        }
        // A type that contains itself is found by its other parts.
        self.valid.insert(id, true);
        let valid = self.has_valid_parts(id);
        self.valid.insert(id, valid);
        valid
    }

    fn has_valid_parts(&mut self, id: TypeId) -> bool {
        use ValueType::*;
        match self.types.kind(id).clone() {
            Tuple(elements) => elements.iter().all(|e| self.may_contain(ContainerKind::Tuple, *e)),
            List(element) => self.may_contain(ContainerKind::List, element),
            Stack(element, _) => self.may_contain(ContainerKind::Stack, element),
            Nominal(nominal, arguments) if !arguments.is_empty() => {
                if arguments.iter().any(|argument| self.is_opaque_extern(nominal, *argument)) {
                    return false;
                }
                let declared = self.types.nominal(nominal).clone();
                let map = substitution(&declared.type_parameters, &arguments);
                let parts: Vec<(Option<ContainerKind>, TypeId)> = match declared.kind {
                    NominalKind::Aggregate(kind, fields) => {
                        fields.iter().map(|(_, id)| (Some(container(kind)), *id)).collect()
                    }
                    NominalKind::Extern(methods) => {
                        let signatures = methods.iter().map(|method| &method.signature);
                        signatures.flat_map(|s| &s.parameters).map(|p| (None, p.type_id)).collect()
                    }
                    NominalKind::Package(parameters) => {
                        parameters.iter().map(|p| (None, p.type_id)).collect()
                    }
                    _ => Vec::new(),
                };
                parts.into_iter().all(|(container, part)| {
                    let part = self.types.substitute(part, &map);
                    match container {
                        Some(container) => self.may_contain(container, part),
                        None => self.is_valid(part),
                    }
                })
            }
            _ => true,
        }
    }

    /// Tells if a type argument of an extern is one itself.
    fn is_opaque_extern(&self, nominal: NominalId, argument: TypeId) -> bool {
        let is_extern = |id: NominalId| matches!(self.types.nominal(id).kind, NominalKind::Extern(_));
        let is_block = |id: NominalId| matches!(self.types.nominal(id).kind, NominalKind::Block(_));
        match self.types.kind(self.types.shallow(argument)) {
            ValueType::Nominal(inner, _) => is_extern(nominal) && (is_extern(*inner) || is_block(*inner)),
            _ => false,
        }
    }

    /// Tells if a type may be a part of another.
    pub(crate) fn may_contain(&mut self, container: ContainerKind, part: TypeId) -> bool {
        self.is_valid(part) && self.is_allowed_part(container, part)
    }

    fn is_allowed_part(&mut self, container: ContainerKind, part: TypeId) -> bool {
        use ValueType::*;
        let part = self.types.shallow(part);
        let kind = self.types.kind(part).clone();
        if matches!(kind, Parameter(..) | Unknown | Inferred(_)) {
            return true;
        }
        match container {
            ContainerKind::HeaderUnion => self.is_header(part),
            ContainerKind::Stack => !matches!(kind, Void | Integer | Text | MatchKind | Set(_) | Action),
            ContainerKind::Header => self.is_header_field(part, true),
            ContainerKind::Struct => {
                !matches!(kind, Void | Integer | Text | MatchKind | Set(_) | Action) && self.is_data(part)
            }
            ContainerKind::Tuple | ContainerKind::List => {
                !matches!(kind, Void | Set(_) | Action) && self.is_data(part)
            }
        }
    }

    fn is_header(&mut self, id: TypeId) -> bool {
        matches!(self.fields(id), Some((AggregateKind::Header, _)))
    }

    fn is_header_field(&mut self, id: TypeId, may_vary: bool) -> bool {
        use ValueType::*;
        let id = self.types.shallow(id);
        match self.types.kind(id).clone() {
            Bits(_) | SignedBits(_) | Bool | Parameter(..) | Unknown => true,
            VariableBits(_) => may_vary,
            Stack(element, _) => self.is_header_field(element, false),
            Nominal(nominal, _) => match self.types.nominal(nominal).kind.clone() {
                NominalKind::Enumeration(underlying, _) => underlying.is_some(),
                NominalKind::NewType(inner) => self.is_header_field(inner, false),
                NominalKind::Aggregate(AggregateKind::Struct, _) => {
                    let fields = self.fields(id).map(|(_, fields)| fields).unwrap_or_default();
                    fields.iter().all(|(_, field)| self.is_header_field(*field, false))
                }
                _ => false,
            },
            _ => false,
        }
    }

    /// Tells data from objects.
    pub(crate) fn is_data(&self, id: TypeId) -> bool {
        match self.types.kind(self.types.shallow(id)) {
            ValueType::Nominal(nominal, _) => !matches!(
                self.types.nominal(*nominal).kind,
                NominalKind::Extern(_) | NominalKind::Block(_) | NominalKind::Package(_)
            ),
            ValueType::Table(_) | ValueType::Action => false,
            _ => true,
        }
    }

    /// Tells if values of a type exist when packets run.
    pub(crate) fn is_runtime_data(&self, id: TypeId) -> bool {
        use ValueType::*;
        let kind = self.types.kind(self.types.shallow(id));
        !matches!(kind, Integer | Text | MatchKind | Void | List(_) | Set(_)) && self.is_data(id)
    }
}

pub(crate) fn container(kind: AggregateKind) -> ContainerKind {
    match kind {
        AggregateKind::Struct => ContainerKind::Struct,
        AggregateKind::Header => ContainerKind::Header,
        AggregateKind::HeaderUnion => ContainerKind::HeaderUnion,
    }
}

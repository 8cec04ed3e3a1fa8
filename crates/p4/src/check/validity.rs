//! Rules on types within types. Source: P4_16 1.2.5, section 7.2.8.

use crate::ast::AggregateKind;
use crate::check::TypeChecker;
use crate::check::coercion::substitution;
use crate::check::types::{NominalId, NominalKind, TypeId, ValueType};
use crate::source::SourceSpan;

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

//! Types as they are written.

use crate::check::TypeChecker;
use crate::check::scope::NamedEntity;
use crate::check::types::{
    BOOL, ERROR_CODE, INTEGER, MATCH_KIND, NominalId, TEXT, TypeId, UNKNOWN, VOID, ValueType,
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
}

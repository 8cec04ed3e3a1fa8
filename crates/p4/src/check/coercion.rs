//! Unification of types, implicit and explicit casts. Source: P4_16 1.2.5, sections 8.11 and 8.20.

use crate::ast::AggregateKind;
use ValueType::Inferred;
use rustc_hash::{FxHashMap, FxHashSet};

use crate::check::constants::{ConstantValue, wrapped};
use crate::check::types::{BOOL, BlockType, INTEGER, NominalKind, ParameterType, TypeId, UNKNOWN, ValueType};
use crate::check::{TypeChecker, TypedValue};
use crate::expression::{ExpressionTree, TypeSyntax};
use crate::source::{SourceSpan, Symbol};

/// Pairs of types that are being unified, or were.
type SeenPairs = FxHashSet<(TypeId, TypeId)>;

impl TypeChecker<'_> {
    /// Makes two types equal, if inferred types allow it.
    pub(crate) fn unify(&mut self, left: TypeId, right: TypeId) -> bool {
        self.unify_seen(left, right, &mut SeenPairs::default())
    }

    fn unify_seen(&mut self, left: TypeId, right: TypeId, seen: &mut SeenPairs) -> bool {
        let (left, right) = (self.types.shallow(left), self.types.shallow(right));
        if left == right || left == UNKNOWN || right == UNKNOWN || !seen.insert((left, right)) {
            return true;
        }
        use ValueType::*;
        match (self.types.kind(left).clone(), self.types.kind(right).clone()) {
            (Inferred(variable), _) => self.bind(variable, right),
            (_, Inferred(variable)) => self.bind(variable, left),
            (Nominal(a, left), Nominal(b, right)) if a == b => self.unify_all(&left, &right, seen),
            (Nominal(..), Nominal(..)) => self.unify_blocks(left, right, seen),
            (Tuple(left), Tuple(right)) => self.unify_all(&left, &right, seen),
            (Stack(a, m), Stack(b, n)) => m == n && self.unify_seen(a, b, seen),
            (List(a), List(b)) | (Set(a), Set(b)) => self.unify_seen(a, b, seen),
            (ListExpression(left), ListExpression(right)) => self.unify_all(&left, &right, seen),
            _ => false,
        }
    }

    fn unify_all(&mut self, left: &[TypeId], right: &[TypeId], seen: &mut SeenPairs) -> bool {
        left.len() == right.len() && left.iter().zip(right).all(|(a, b)| self.unify_seen(*a, *b, seen))
    }

    /// Gives an inferred type its meaning, unless the type contains itself.
    fn bind(&mut self, variable: u32, type_id: TypeId) -> bool {
        let resolved = self.types.resolve(type_id);
        if self.mentions(resolved, variable, &mut FxHashSet::default()) {
            return false;
        }
        self.types.inferred[variable as usize] = Some(resolved);
        true
    }

    fn mentions(&self, id: TypeId, variable: u32, seen: &mut FxHashSet<TypeId>) -> bool {
        if !seen.insert(id) {
            return false;
        }
        use ValueType::*;
        match self.types.kind(id) {
            Inferred(other) => *other == variable,
            Nominal(_, list) | Tuple(list) | ListExpression(list) => {
                list.iter().any(|id| self.mentions(*id, variable, seen))
            }
            RecordExpression(fields, _) => fields.iter().any(|(_, id)| self.mentions(*id, variable, seen)),
            Stack(element, _) | List(element) | Set(element) => self.mentions(*element, variable, seen),
            _ => false,
        }
    }

    /// Parsers and controls are of a type if their parameters are.
    fn unify_blocks(&mut self, left: TypeId, right: TypeId, seen: &mut SeenPairs) -> bool {
        let (Some((left, _)), Some((right, _))) = (self.block(left), self.block(right)) else { return false };
        left.is_parser == right.is_parser
            && (left.constructor.is_none() || right.constructor.is_none())
            && (left.parameters.iter().skip(right.parameters.len())).all(|parameter| parameter.is_optional)
            && (right.parameters.iter().skip(left.parameters.len())).all(|parameter| parameter.is_optional)
            && left
                .parameters
                .iter()
                .zip(&right.parameters)
                .all(|(a, b)| a.direction == b.direction && self.unify_seen(a.type_id, b.type_id, seen))
    }

    /// Returns a parser or control with its type arguments in place, and its name.
    pub(crate) fn block(&mut self, id: TypeId) -> Option<(BlockType, Symbol)> {
        let id = self.types.shallow(id);
        let ValueType::Nominal(nominal, arguments) = self.types.kind(id).clone() else { return None };
        let declared = self.types.nominal(nominal).clone();
        let NominalKind::Block(mut block) = declared.kind else { return None };
        let map = substitution(&declared.type_parameters, &arguments);
        block.parameters = self.substituted(&block.parameters, &map);
        block.constructor = block.constructor.map(|list| self.substituted(&list, &map));
        Some((block, declared.name))
    }

    pub(crate) fn substituted(
        &mut self,
        parameters: &[ParameterType],
        map: &FxHashMap<TypeId, TypeId>,
    ) -> Vec<ParameterType> {
        let replace = |p: &ParameterType| {
            let type_id = self.types.substitute(p.type_id, map);
            let default_type = p.default_type.map(|default| self.types.substitute(default, map));
            ParameterType { type_id, default_type, ..p.clone() }
        };
        parameters.iter().map(replace).collect()
    }

    /// Returns the fields of a struct, header or header union, with type arguments in place.
    pub(crate) fn fields(&mut self, id: TypeId) -> Option<(AggregateKind, Vec<(Symbol, TypeId)>)> {
        let id = self.types.shallow(id);
        let ValueType::Nominal(nominal, arguments) = self.types.kind(id).clone() else { return None };
        let declared = self.types.nominal(nominal).clone();
        let NominalKind::Aggregate(kind, fields) = declared.kind else { return None };
        let map = substitution(&declared.type_parameters, &arguments);
        let fields = fields.into_iter().map(|(name, id)| (name, self.types.substitute(id, &map)));
        Some((kind, fields.collect()))
    }

    /// Finds a field of a struct, header or header union: its index and type.
    pub(crate) fn field_type(&mut self, id: TypeId, name: &str) -> Option<(usize, TypeId)> {
        let ValueType::Nominal(nominal, arguments) = self.types.kind(self.types.shallow(id)) else {
            return None;
        };
        let declared = self.types.nominal(*nominal);
        let NominalKind::Aggregate(_, fields) = &declared.kind else { return None };
        let index = fields.iter().position(|(field, _)| &**field == name)?;
        let map = substitution(&declared.type_parameters, arguments);
        let field_type = fields[index].1;
        Some((index, self.types.substitute(field_type, &map)))
    }

    /// Type of the values of an enumeration, if it has one.
    pub(crate) fn underlying(&self, id: TypeId) -> Option<TypeId> {
        let ValueType::Nominal(nominal, _) = self.types.kind(self.types.shallow(id)) else { return None };
        match &self.types.nominal(*nominal).kind {
            NominalKind::Enumeration(underlying, _) => *underlying,
            _ => None,
        }
    }

    pub(crate) fn is_number(&self, id: TypeId) -> bool {
        use ValueType::*;
        matches!(self.types.kind(self.types.shallow(id)), Bits(_) | SignedBits(_) | Unknown)
    }

    /// Tells if a value may be used where a type is expected, and infers types on the way.
    pub(crate) fn coerces(&mut self, from: TypeId, to: TypeId) -> bool {
        let source = self.types.shallow(from);
        let target = self.types.shallow(to);
        if source == target || source == UNKNOWN || target == UNKNOWN {
            return true;
        }
        use ValueType::*;
        match (self.types.kind(source).clone(), self.types.kind(target).clone()) {
            (Integer, Bits(_) | SignedBits(_)) => true,
            (Bits(_) | SignedBits(_), Integer) => {
                self.rebind(to, source);
                true
            }
            (Integer, Nominal(nominal, _)) => match self.types.nominal(nominal).kind {
                NominalKind::NewType(inner) => self.coerces(source, inner),
                _ => false,
            },
            (DefaultValue, Inferred(_)) => false,
            (DefaultValue, _) => !matches!(self.types.kind(target), Set(_) | Void | List(_)),
            (InvalidHeader, Nominal(..)) => {
                self.fields(target).is_some_and(|(kind, _)| kind != AggregateKind::Struct)
            }
            (ListExpression(elements), Inferred(_)) => {
                let tuple = self.types.add(Tuple(elements));
                self.unify(tuple, target)
            }
            (ListExpression(elements), _) => self.coerce_list(&elements, target),
            (RecordExpression(..), Inferred(_)) => false,
            (RecordExpression(fields, rest), Nominal(..)) => self.coerce_record(&fields, rest, target),
            (_, Inferred(_)) => self.unify(source, target),
            (Nominal(..), Bits(_) | SignedBits(_)) => {
                self.underlying(source).is_some_and(|under| self.unify(under, target))
            }
            _ => self.unify(source, target),
        }
    }

    /// Replaces an inferred `int` by a type with a width.
    fn rebind(&mut self, to: TypeId, width: TypeId) {
        let mut at = to;
        while let Inferred(variable) = *self.types.kind(at) {
            match self.types.inferred[variable as usize] {
                Some(next) if next == INTEGER => {
                    self.types.inferred[variable as usize] = Some(width);
                    return;
                }
                Some(next) => at = next,
                None => return,
            }
        }
    }

    fn coerce_list(&mut self, elements: &[TypeId], target: TypeId) -> bool {
        use ValueType::*;
        let has_rest = elements.last().is_some_and(|last| matches!(self.types.kind(*last), DefaultValue));
        let elements = if has_rest { &elements[..elements.len() - 1] } else { elements };
        let expected: Vec<TypeId> = match self.types.kind(target).clone() {
            Tuple(list) => list,
            List(element) => vec![element; elements.len()],
            Stack(element, size) => vec![element; (size as usize).min(elements.len() + 1)],
            Nominal(..) => match self.fields(target) {
                Some((kind, fields)) if kind != AggregateKind::HeaderUnion => {
                    fields.into_iter().map(|(_, id)| id).collect()
                }
                _ => return false,
            },
            _ => return false,
        };
        let is_long_enough =
            if has_rest { elements.len() < expected.len() } else { elements.len() == expected.len() };
        is_long_enough && elements.iter().zip(&expected).all(|(from, to)| self.coerces(*from, *to))
    }

    fn coerce_record(&mut self, given: &[(Symbol, TypeId)], has_rest: bool, target: TypeId) -> bool {
        let Some((kind, fields)) = self.fields(target) else { return false };
        let is_complete = given.len() == fields.len() && !has_rest || has_rest && given.len() <= fields.len();
        kind != AggregateKind::HeaderUnion
            && is_complete
            && given.iter().all(|(name, from)| {
                fields.iter().find(|(field, _)| field == name).is_some_and(|(_, to)| self.coerces(*from, *to))
            })
    }

    /// Checks that a value may be used where a type is expected.
    pub(crate) fn expect_type(&mut self, value: &TypedValue, expected: TypeId, span: SourceSpan) -> bool {
        let fits = self.coerces(value.type_id, expected);
        if !fits {
            let (from, to) = (self.types.name(value.type_id), self.types.name(expected));
            self.error(span, format!("expected a value of type `{to}`, found `{from}`"));
        }
        fits
    }

    pub(crate) fn expect_boolean(&mut self, value: &TypedValue, span: SourceSpan) {
        self.expect_type(value, BOOL, span);
    }
}

/// Map from type parameters to arguments.
pub(crate) fn substitution(parameters: &[TypeId], arguments: &[TypeId]) -> FxHashMap<TypeId, TypeId> {
    parameters.iter().copied().zip(arguments.iter().copied()).collect()
}

impl TypeChecker<'_> {
    pub(crate) fn cast(&mut self, target: &TypeSyntax, value: &ExpressionTree) -> TypedValue {
        let to = self.type_of(target);
        let source = self.expression(value);
        if to == UNKNOWN || source.type_id == UNKNOWN {
            return TypedValue { type_id: to, ..TypedValue::unknown() };
        }
        if !self.casts(&source, to) {
            let (from, to) = (self.types.name(source.type_id), self.types.name(to));
            self.error(
                target.span.to(value.span),
                format!("a value of type `{from}` cannot be cast to `{to}`"),
            );
        }
        let constant = source.constant.as_ref().and_then(|constant| self.cast_constant(constant, to));
        TypedValue { type_id: to, is_writable: false, is_known: source.is_known, constant }
    }

    fn casts(&mut self, value: &TypedValue, to: TypeId) -> bool {
        use ValueType::*;
        let from = self.types.shallow(value.type_id);
        let is_small = |c: &ConstantValue| {
            c.number().is_some_and(|n| n.bits() <= 1 && n.sign() != num_bigint::Sign::Minus)
        };
        match (self.types.kind(from).clone(), self.types.kind(to).clone()) {
            (Void | Set(_) | Action | Table(_), _) | (_, Void | Text) => false,
            (Bits(_), Bits(_)) | (SignedBits(_), SignedBits(_)) => true,
            (Bits(a), SignedBits(b)) | (SignedBits(a), Bits(b)) => a == b,
            (Bits(1), Bool) | (Bool, Bits(1)) => true,
            (Integer, Bool) => value.constant.as_ref().is_none_or(is_small),
            (Bits(_) | SignedBits(_), Integer) => true,
            _ if self.coerces(from, to) => true,
            (_, Nominal(..)) => match self.wrapped_type(to) {
                Some(inner) if self.underlying(to).is_some() => self.casts(value, inner),
                Some(inner) => self.coerces(from, inner),
                None => false,
            },
            (Nominal(..), _) => match self.wrapped_type(from) {
                Some(inner) => self.casts(&TypedValue { type_id: inner, ..value.clone() }, to),
                None => false,
            },
            _ => false,
        }
    }

    /// Type within a `type` or an enumeration with values.
    fn wrapped_type(&self, id: TypeId) -> Option<TypeId> {
        let ValueType::Nominal(nominal, _) = self.types.kind(id) else { return None };
        match &self.types.nominal(*nominal).kind {
            NominalKind::NewType(inner) => Some(*inner),
            NominalKind::Enumeration(underlying, _) => *underlying,
            _ => None,
        }
    }

    /// Converts a known value to a type.
    pub(crate) fn cast_constant(&mut self, constant: &ConstantValue, to: TypeId) -> Option<ConstantValue> {
        let to = self.types.shallow(to);
        let format = self.format(to);
        Some(match constant {
            ConstantValue::Number(value) if to == BOOL => ConstantValue::Boolean(value.bits() > 0),
            ConstantValue::Number(value) => ConstantValue::Number(wrapped(value.clone(), format)),
            ConstantValue::Boolean(value) if to != BOOL => ConstantValue::Number(u8::from(*value).into()),
            ConstantValue::Member(nominal, name) if format.is_some() || to == INTEGER => {
                let NominalKind::Enumeration(_, members) = &self.types.nominal(*nominal).kind else {
                    return None;
                };
                let value = members.iter().find(|(member, _)| member == name)?.1.clone()?;
                ConstantValue::Number(wrapped(value.number()?.clone(), format))
            }
            other => other.clone(),
        })
    }

    /// Width and sign of the numbers of a type.
    pub(crate) fn format(&self, id: TypeId) -> crate::check::constants::NumberFormat {
        match self.types.kind(self.types.shallow(id)) {
            ValueType::Bits(width) => Some((*width, false)),
            ValueType::SignedBits(width) => Some((*width, true)),
            ValueType::Nominal(..) => self.format(self.wrapped_type(self.types.shallow(id))?),
            _ => None,
        }
    }
}

//! Sets of values of `select` and of entries of tables. Source: P4_16 1.2.5, section 8.15.

use crate::check::TypeChecker;
use crate::check::types::{TypeId, UNKNOWN, ValueType};
use crate::expression::{ExpressionKind, ExpressionTree};

/// Most values that a value set's type has.
const MOST_FIELDS: usize = 1024;

impl TypeChecker<'_> {
    /// Checks a set against the types of the values that it is compared with.
    pub(crate) fn keyset(&mut self, keyset: &ExpressionTree, types: &[TypeId], needs_known: bool) {
        match (&keyset.kind, types) {
            (ExpressionKind::Anything, _) => {}
            (ExpressionKind::KeysetTuple(elements), _) => {
                if elements.len() != types.len() {
                    let message = format!("this set has {} parts for {} values", elements.len(), types.len());
                    self.error(keyset.span, message);
                    return;
                }
                for (element, expected) in elements.iter().zip(types) {
                    self.simple_keyset(element, *expected, needs_known);
                }
            }
            (_, [expected]) => self.simple_keyset(keyset, *expected, needs_known),
            _ => {
                let tuple = self.types.add(ValueType::Tuple(types.to_vec()));
                self.simple_keyset(keyset, tuple, needs_known);
            }
        }
    }

    fn simple_keyset(&mut self, keyset: &ExpressionTree, expected: TypeId, needs_known: bool) {
        if matches!(keyset.kind, ExpressionKind::Anything) {
            return;
        }
        let value = self.expression(keyset);
        if value.type_id == UNKNOWN || expected == UNKNOWN {
            return;
        }
        let (element, is_set) = match self.types.kind(self.types.shallow(value.type_id)) {
            ValueType::Set(element) => (*element, true),
            _ => (value.type_id, false),
        };
        let element = self.only_element(element, expected);
        let is_default = matches!(keyset.kind, ExpressionKind::Default | ExpressionKind::Record(..));
        let fits = !is_default && self.is_comparable(element, expected, is_set);
        if !fits {
            let (from, to) = (self.types.name(value.type_id), self.types.name(expected));
            self.error(keyset.span, format!("values of type `{to}` cannot be in a set of type `{from}`"));
        }
        let is_list = matches!(keyset.kind, ExpressionKind::List(_));
        if needs_known && !is_list && !value.is_known {
            self.error(keyset.span, "the keys of an entry have to be known when the program is compiled");
        }
    }

    /// Type of the element of a list that has only one, where no list is expected.
    fn only_element(&self, element: TypeId, expected: TypeId) -> TypeId {
        match (self.types.kind(self.types.shallow(element)), self.types.kind(self.types.shallow(expected))) {
            (ValueType::ListExpression(list), ValueType::Bits(_) | ValueType::SignedBits(_))
                if list.len() == 1 =>
            {
                list[0]
            }
            _ => element,
        }
    }

    fn is_comparable(&mut self, element: TypeId, expected: TypeId, is_set: bool) -> bool {
        if self.coerces(element, expected) {
            return true;
        }
        let values = self.operand_type(expected);
        is_set && (self.coerces(element, values) || self.has_compared_fields(element, expected))
    }

    /// Tells if a value set's type is a struct whose fields are the values that are compared.
    fn has_compared_fields(&mut self, element: TypeId, expected: TypeId) -> bool {
        let mut types = Vec::new();
        self.flatten(element, &mut types);
        let expected = match self.types.kind(self.types.shallow(expected)).clone() {
            ValueType::Tuple(expected) => expected,
            _ => vec![expected],
        };
        types.len() == expected.len() && types.iter().zip(&expected).all(|(a, b)| self.unify(*a, *b))
    }

    /// Collects the types of fields, those of structs within structs included.
    fn flatten(&mut self, id: TypeId, types: &mut Vec<TypeId>) {
        match self.fields(id) {
            Some((_, fields)) if types.len() < MOST_FIELDS => {
                for (_, field) in fields {
                    self.flatten(field, types);
                }
            }
            _ => types.push(id),
        }
    }
}

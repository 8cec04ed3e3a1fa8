//! Sets of values of `select` and of entries of tables. Source: P4_16 1.2.5, section 8.15.

use crate::check::TypeChecker;
use crate::check::types::{TypeId, UNKNOWN, ValueType};
use crate::expression::{ExpressionKind, ExpressionTree};

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
        let is_default = matches!(keyset.kind, ExpressionKind::Default);
        let fits = !is_default
            && (self.coerces(element, expected) || is_set && self.is_single_field(element, expected));
        if !fits {
            let (from, to) = (self.types.name(value.type_id), self.types.name(expected));
            self.error(keyset.span, format!("values of type `{to}` cannot be in a set of type `{from}`"));
        }
        if needs_known && !value.is_known {
            self.error(keyset.span, "the keys of an entry have to be known when the program is compiled");
        }
    }

    /// Tells if a value set's type is a struct with the types that are compared.
    fn is_single_field(&mut self, element: TypeId, expected: TypeId) -> bool {
        let Some((_, fields)) = self.fields(element) else { return false };
        let types: Vec<TypeId> = fields.into_iter().map(|(_, id)| id).collect();
        match self.types.kind(self.types.shallow(expected)).clone() {
            ValueType::Tuple(expected) => {
                types.len() == expected.len() && types.iter().zip(&expected).all(|(a, b)| self.unify(*a, *b))
            }
            _ => types.len() == 1 && self.unify(types[0], expected),
        }
    }
}

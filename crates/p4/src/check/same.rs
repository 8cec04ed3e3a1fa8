//! Equality of expressions as they are written.

use crate::expression::{CallArgument, ExpressionKind, ExpressionTree};
use crate::source::SourceName;

/// Tells if arguments are written the same.
pub(crate) fn same_argument(left: &CallArgument, right: &CallArgument) -> bool {
    match (&left.value, &right.value) {
        (Some(left), Some(right)) => same_expression(left, right),
        (None, None) => true,
        _ => false,
    }
}

/// Tells if two expressions are written the same, with the kinds that arguments of actions usually have.
pub(crate) fn same_expression(left: &ExpressionTree, right: &ExpressionTree) -> bool {
    use ExpressionKind::*;
    match (&left.kind, &right.kind) {
        (Number(a), Number(b)) => a == b,
        (Boolean(a), Boolean(b)) => a == b,
        (Text(a), Text(b)) => a == b,
        (Name(a), Name(b)) => a.name.text == b.name.text && a.is_global == b.is_global,
        (Member(a, x), Member(b, y)) => x.text == y.text && same_expression(a, b),
        (Index(a, i), Index(b, j)) => same_expression(a, b) && same_expression(i, j),
        (Slice(a), Slice(b)) | (WidthSlice(a), WidthSlice(b)) | (Ternary(a), Ternary(b)) => {
            a.iter().zip(b.iter()).all(|(a, b)| same_expression(a, b))
        }
        (Unary(o, a), Unary(p, b)) => o == p && same_expression(a, b),
        (Binary(o, a, c), Binary(p, b, d)) => o == p && same_expression(a, b) && same_expression(c, d),
        (Cast(_, a), Cast(_, b)) => same_expression(a, b),
        (TypeMember(_, x), TypeMember(_, y)) => x.text == y.text,
        (List(a), List(b)) => a.len() == b.len() && a.iter().zip(b).all(|(a, b)| same_expression(a, b)),
        (Record(a, x), Record(b, y)) => {
            x == y && a.len() == b.len() && a.iter().all(|field| has_field(b, field))
        }
        (Call(f, _, a), Call(g, _, b)) => {
            same_expression(f, g) && a.len() == b.len() && a.iter().zip(b).all(|(a, b)| same_argument(a, b))
        }
        _ => false,
    }
}

/// Tells if a record has a field with this name and value.
fn has_field(record: &[(SourceName, ExpressionTree)], (name, value): &(SourceName, ExpressionTree)) -> bool {
    let same = record.iter().find(|(other, _)| other.text == name.text);
    same.is_some_and(|(_, other)| same_expression(value, other))
}

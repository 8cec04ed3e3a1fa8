//! Elements of keys: their names, places and order.

use millstream_p4::ast::{AnnotationBody, TableEntry, TableProperty, TablePropertyValue};
use millstream_p4::expression::{ExpressionKind, ExpressionTree};
use millstream_p4::{TokenKind, number_literal};

use crate::pipeline::{KeyMatch, KeySpec, TableStorage};
use crate::types::RuntimeType;

/// Value of a property.
pub(crate) fn property<'p>(properties: &'p [TableProperty], name: &str) -> Option<&'p TablePropertyValue> {
    properties.iter().find(|property| &*property.name.text == name).map(|property| &property.value)
}

/// Text of the expression of a key.
pub(crate) fn key_text(expression: &ExpressionTree) -> String {
    match &expression.kind {
        ExpressionKind::Name(name) => name.name.text.to_string(),
        ExpressionKind::Member(base, member) => format!("{}.{}", key_text(base), member.text),
        ExpressionKind::Index(base, index) => format!("{}[{}]", key_text(base), key_text(index)),
        ExpressionKind::Number(number) => number.value.to_string(),
        ExpressionKind::Call(function, ..) => match &function.kind {
            ExpressionKind::Member(base, member) if &*member.text == "isValid" => {
                format!("{}.$valid$", key_text(base))
            }
            _ => key_text(function),
        },
        ExpressionKind::Slice(parts) => {
            format!("{}[{}:{}]", key_text(&parts[0]), key_text(&parts[1]), key_text(&parts[2]))
        }
        ExpressionKind::Binary(operator, left, right) => {
            format!("{} {} {}", key_text(left), operator.text(), key_text(right))
        }
        ExpressionKind::Cast(_, value) | ExpressionKind::Unary(_, value) => key_text(value),
        _ => String::new(),
    }
}

/// The number of `@priority(NUMBER)`: the smallest one wins. Entries without one have their position, from 1.
pub(crate) fn annotated_priority(entry: &TableEntry) -> Option<u32> {
    let annotation = entry.annotations.iter().find(|a| &*a.name.text == "priority")?;
    let AnnotationBody::Unstructured(tokens) = &annotation.body else { return None };
    match &tokens.first()?.kind {
        TokenKind::Number(text) => u32::try_from(number_literal(text).ok()?.value).ok(),
        _ => None,
    }
}

/// Elements of the key that choose a member of a group.
pub(crate) fn selectors(properties: &[TableProperty]) -> Vec<&ExpressionTree> {
    match property(properties, "key") {
        Some(TablePropertyValue::Keys(keys)) => {
            let chosen = keys.iter().filter(|key| &*key.match_kind.text == "selector");
            chosen.map(|key| &key.expression).collect()
        }
        _ => Vec::new(),
    }
}

/// Widths of the scalars of a type in order; false if it has others.
pub(crate) fn scalar_widths(value_type: &RuntimeType, widths: &mut Vec<u32>) -> bool {
    match (value_type.width(), value_type) {
        (Some(width), _) => {
            widths.push(width);
            true
        }
        (None, RuntimeType::Struct(record)) => {
            record.fields.iter().all(|field| scalar_widths(&field.field_type, widths))
        }
        _ => false,
    }
}

/// Places the elements of a key, and gives its size.
pub(crate) fn lay_out(keys: &mut [KeySpec], storage: TableStorage) -> u32 {
    let mut at = if storage == TableStorage::Prefix { 4 } else { 0 };
    let mut place = |key: &mut KeySpec| {
        let plain = RuntimeType::Bits(key.bits, false);
        key.size = match storage {
            TableStorage::Hash => plain.size(),
            _ => key.bits.div_ceil(8).max(1),
        };
        if storage == TableStorage::Hash {
            at = u32::next_multiple_of(at, plain.align());
        }
        key.offset = at;
        at += key.size;
    };
    match storage {
        TableStorage::Prefix => {
            keys.iter_mut().filter(|key| key.kind != KeyMatch::Prefix).for_each(&mut place);
            keys.iter_mut().filter(|key| key.kind == KeyMatch::Prefix).for_each(&mut place);
        }
        _ => keys.iter_mut().for_each(&mut place),
    }
    at
}

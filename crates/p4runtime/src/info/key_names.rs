//! Names of keys that have no annotation, made from their expressions. Source: P4_16 1.2.5, section 20.3.2.

use millstream_p4::ast::AggregateKind;
use millstream_p4::expression::{BinaryOperator, ExpressionKind, ExpressionTree};
use millstream_p4::{ConstantValue, NominalKind, TypeId, ValueType};

use crate::info::annotations::name_annotation;
use crate::info::program::ProgramIndex;
use millstream_p4::ast::DeclarationKind;

/// Part of a key's name that stands for the validity of a header.
const VALIDITY: &str = "$valid$";

/// Name of a key; computed keys have none.
pub(crate) fn key_name(index: &ProgramIndex<'_>, key: &ExpressionTree) -> Option<String> {
    match &key.kind {
        ExpressionKind::Name(name) => match index.program.facts.constant(key.id) {
            Some(ConstantValue::Number(value)) => Some(value.to_string()),
            _ if name.is_global => Some(format!(".{}", name.name.text)),
            _ => Some(name.name.text.to_string()),
        },
        ExpressionKind::This => Some("this".into()),
        ExpressionKind::Boolean(value) => Some(value.to_string()),
        ExpressionKind::Number(_) => number_name(index, key),
        ExpressionKind::Member(base, member) => {
            let name = member_name(index, base, &member.text);
            match name.strip_prefix('.') {
                Some(absolute) => Some(absolute.into()),
                None => Some(format!("{}.{name}", key_name(index, base)?)),
            }
        }
        ExpressionKind::Index(base, at) => {
            Some(format!("{}[{}]", key_name(index, base)?, key_name(index, at)?))
        }
        ExpressionKind::Slice(parts) => {
            let [base, high, low] = [0, 1, 2].map(|part| key_name(index, &parts[part]));
            Some(format!("{}[{}:{}]", base?, high?, low?))
        }
        ExpressionKind::WidthSlice(parts) => {
            let [base, low, width] = [0, 1, 2].map(|part| key_name(index, &parts[part]));
            Some(format!("{}[{}+:{}]", base?, low?, width?))
        }
        ExpressionKind::Binary(BinaryOperator::BitAnd, left, right) => {
            Some(format!("{} & {}", key_name(index, left)?, key_name(index, right)?))
        }
        ExpressionKind::Call(function, _, arguments) if arguments.is_empty() => {
            key_name(index, function).filter(|name| name.ends_with(VALIDITY))
        }
        _ => None,
    }
}

/// A number in the base in which it is written.
fn number_name(index: &ProgramIndex<'_>, key: &ExpressionTree) -> Option<String> {
    let Some(ConstantValue::Number(value)) = index.program.facts.constant(key.id) else { return None };
    let written = &index.program.sources.file(key.span.file).text.get(key.span.range())?;
    let digits = written.split_once(['w', 's']).map_or(*written, |(_, digits)| digits);
    Some(match digits.get(..2) {
        Some("0x" | "0X") => format!("{value:#x}"),
        Some("0b" | "0B") => format!("{value:#b}"),
        Some("0o" | "0O") => format!("{value:#o}"),
        _ => value.to_string(),
    })
}

/// Name of a member: that of the field's annotation, or the sign of validity.
fn member_name(index: &ProgramIndex<'_>, base: &ExpressionTree, member: &str) -> String {
    let found = index.program.facts.type_id(base.id).and_then(|id| aggregate(index, id, member));
    match found {
        Some((AggregateKind::Header | AggregateKind::HeaderUnion, None)) if member == "isValid" => {
            VALIDITY.into()
        }
        Some((_, Some(name))) => name,
        _ => member.into(),
    }
}

/// Kind of a type with fields, and the name for the control plane of one of them.
fn aggregate(index: &ProgramIndex<'_>, id: TypeId, member: &str) -> Option<(AggregateKind, Option<String>)> {
    let ValueType::Nominal(nominal, _) = index.program.types.kind(id) else { return None };
    let NominalKind::Aggregate(kind, _) = index.program.types.nominal(*nominal).kind else { return None };
    let DeclarationKind::Aggregate(syntax) = &index.nominal_declaration(*nominal)?.kind else {
        return None;
    };
    let field = syntax.fields.iter().find(|field| &*field.name.text == member);
    let name = field.map(|field| name_annotation(&field.annotations).unwrap_or_else(|| member.to_owned()));
    Some((kind, name))
}

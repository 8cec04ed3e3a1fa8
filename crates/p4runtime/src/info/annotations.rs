//! Annotations as P4Info has them. Source: P4Runtime specification 1.4, sections 6.1.2 and 6.2.

use millstream_p4::ast::{AnnotationBody, AnnotationTree};
use millstream_p4::expression::ExpressionTree;
use millstream_p4::{ConstantValue, SourceToken, TokenKind, number_literal};

use crate::info::InfoError;
use crate::info::program::ProgramIndex;
use crate::proto::config::v1::{
    Documentation, Expression, ExpressionList, KeyValuePair, KeyValuePairList, StructuredAnnotation,
    expression, structured_annotation,
};

/// Annotations that have fields of their own.
const DESCRIBED: [&str; 4] = ["name", "id", "brief", "description"];

/// Annotations of an object: those without structure as text, the others by their values.
#[derive(Debug, Default)]
pub(crate) struct AnnotationLists {
    pub(crate) annotations: Vec<String>,
    pub(crate) structured: Vec<StructuredAnnotation>,
}

/// Finds an annotation.
pub(crate) fn find_annotation<'p>(
    annotations: &'p [AnnotationTree],
    name: &str,
) -> Option<&'p AnnotationTree> {
    annotations.iter().find(|annotation| &*annotation.name.text == name)
}

/// Name for the control plane that `@name` gives.
pub(crate) fn name_annotation(annotations: &[AnnotationTree]) -> Option<String> {
    text(find_annotation(annotations, "name")?)
}

/// Tells if controllers do not see an object.
pub(crate) fn is_hidden(annotations: &[AnnotationTree]) -> bool {
    find_annotation(annotations, "hidden").is_some()
}

/// The string within parentheses, or several that `++` joins.
pub(crate) fn text(annotation: &AnnotationTree) -> Option<String> {
    let AnnotationBody::Unstructured(tokens) = &annotation.body else { return None };
    let part = |tokens: &[SourceToken]| match tokens {
        [SourceToken { kind: TokenKind::Text(text), .. }] => Some(text.to_string()),
        _ => None,
    };
    tokens.split(|token| token.word_or_mark() == "++").map(part).collect()
}

/// The number within parentheses.
pub(crate) fn number(annotation: &AnnotationTree) -> Option<u32> {
    match &annotation.body {
        AnnotationBody::Unstructured(tokens) => match &tokens[..] {
            [SourceToken { kind: TokenKind::Number(digits), .. }] => parse_number(digits),
            _ => None,
        },
        _ => None,
    }
}

/// Value of a number as it is written, its width left out.
pub(crate) fn parse_number(digits: &str) -> Option<u32> {
    u32::try_from(number_literal(digits).ok()?.value).ok()
}

/// The id that `@id` gives.
///
/// # Errors
/// If the annotation has no number.
pub(crate) fn id_annotation(
    index: &ProgramIndex<'_>,
    annotations: &[AnnotationTree],
) -> Result<Option<u32>, InfoError> {
    let Some(annotation) = find_annotation(annotations, "id") else { return Ok(None) };
    match number(annotation) {
        Some(id) => Ok(Some(id)),
        None => Err(broken_annotation(index, annotation, "a number of 32 bits")),
    }
}

pub(crate) fn broken_annotation(
    index: &ProgramIndex<'_>,
    annotation: &AnnotationTree,
    expected: &'static str,
) -> InfoError {
    let name = annotation.name.text.to_string();
    InfoError::Annotation { place: index.place(annotation.name.span), name, expected }
}

/// Describes annotations. Of those without structure, some have fields of their own or are left out.
///
/// # Errors
/// If a structured annotation has a value that is no string, boolean or number of 64 bits.
pub(crate) fn annotation_lists(
    index: &ProgramIndex<'_>,
    annotations: &[AnnotationTree],
    left_out: &[&str],
) -> Result<AnnotationLists, InfoError> {
    let mut lists = AnnotationLists::default();
    for annotation in annotations {
        let name = &*annotation.name.text;
        match &annotation.body {
            AnnotationBody::Unstructured(tokens) => {
                if !DESCRIBED.contains(&name) && !left_out.contains(&name) {
                    lists.annotations.push(printed(name, tokens));
                }
            }
            AnnotationBody::Expressions(values) => {
                let expressions = values.iter().map(|value| annotation_value(index, annotation, value));
                let list = ExpressionList { expressions: expressions.collect::<Result<_, _>>()? };
                let body = structured_annotation::Body::ExpressionList(list);
                lists.structured.push(structured(name, (!values.is_empty()).then_some(body)));
            }
            AnnotationBody::Pairs(pairs) => {
                let pair = |(key, value): &(millstream_p4::SourceName, ExpressionTree)| {
                    let value = Some(annotation_value(index, annotation, value)?);
                    Ok(KeyValuePair { key: key.text.to_string(), value })
                };
                let kv_pairs = pairs.iter().map(pair).collect::<Result<_, InfoError>>()?;
                let body = structured_annotation::Body::KvPairList(KeyValuePairList { kv_pairs });
                lists.structured.push(structured(name, Some(body)));
            }
        }
    }
    Ok(lists)
}

fn annotation_value(
    index: &ProgramIndex<'_>,
    annotation: &AnnotationTree,
    value: &ExpressionTree,
) -> Result<Expression, InfoError> {
    let value = match index.program.facts.constant(value.id) {
        Some(ConstantValue::Boolean(value)) => Some(expression::Value::BoolValue(*value)),
        Some(ConstantValue::Text(text)) => Some(expression::Value::StringValue(text.to_string())),
        Some(ConstantValue::Number(number)) => i64::try_from(number).ok().map(expression::Value::Int64Value),
        _ => None,
    };
    match value {
        Some(value) => Ok(Expression { value: Some(value) }),
        None => Err(broken_annotation(index, annotation, "strings, booleans and numbers of 64 bits")),
    }
}

/// Text of `@brief` and `@description`.
///
/// # Errors
/// If one of them has no string.
pub(crate) fn documentation(
    index: &ProgramIndex<'_>,
    annotations: &[AnnotationTree],
) -> Result<Option<Documentation>, InfoError> {
    let written = |name: &str| match find_annotation(annotations, name) {
        None => Ok(None),
        Some(annotation) => match text(annotation) {
            Some(text) => Ok(Some(text)),
            None => Err(broken_annotation(index, annotation, "a string")),
        },
    };
    let (brief, description) = (written("brief")?, written("description")?);
    Ok((brief.is_some() || description.is_some()).then(|| Documentation {
        brief: brief.unwrap_or_default(),
        description: description.unwrap_or_default(),
    }))
}

fn structured(name: &str, body: Option<structured_annotation::Body>) -> StructuredAnnotation {
    StructuredAnnotation { name: name.into(), source_location: None, body }
}

/// Text of an annotation, its tokens with blanks between them.
fn printed(name: &str, tokens: &[SourceToken]) -> String {
    let token = |token: &SourceToken| match &token.kind {
        TokenKind::Text(text) => format!("\"{text}\""),
        TokenKind::Word(text) | TokenKind::Number(text) => text.to_string(),
        TokenKind::Mark(mark) => (*mark).to_owned(),
        TokenKind::Stray(_) | TokenKind::End => String::new(),
    };
    match tokens {
        [] => format!("@{name}"),
        _ => format!("@{name}({})", tokens.iter().map(token).collect::<Vec<_>>().join(" ")),
    }
}

/// Ids of fields: those of annotations, and the lowest free ones from the position of the field on.
///
/// # Errors
/// If two fields have the same id, or one has zero.
pub(crate) fn field_ids(fields: &[(&str, Option<u32>)]) -> Result<Vec<u32>, InfoError> {
    let mut taken = rustc_hash::FxHashSet::default();
    for (name, id) in fields {
        if let Some(id) = id.filter(|id| *id == 0 || !taken.insert(*id)) {
            return Err(InfoError::DuplicateId { name: (*name).into(), id });
        }
    }
    let mut next: u32 = 1;
    let allocate = |(_, id): &(&str, Option<u32>)| match id {
        Some(id) => {
            next = next.saturating_add(1);
            *id
        }
        None => {
            while !taken.insert(next) {
                next = next.saturating_add(1);
            }
            next
        }
    };
    Ok(fields.iter().map(allocate).collect())
}

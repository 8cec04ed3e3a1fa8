//! Arguments of calls.

use millstream_p4::SourceSpan;
use millstream_p4::ast::ParameterSyntax;
use millstream_p4::expression::{CallArgument, ExpressionTree};

use crate::error::{Lowered, refuse};

/// Argument of each parameter; `None` if they do not match.
pub(crate) fn matched<'a>(
    parameters: &[ParameterSyntax],
    arguments: &'a [CallArgument],
) -> Option<Vec<Option<&'a CallArgument>>> {
    let mut places = vec![None; parameters.len()];
    for (index, argument) in arguments.iter().enumerate() {
        let at = match &argument.name {
            Some(name) => parameters.iter().position(|parameter| parameter.name.text == name.text)?,
            None => index,
        };
        if places.get_mut(at)?.replace(argument).is_some() {
            return None;
        }
    }
    let is_optional = |parameter: &ParameterSyntax| {
        parameter.default.is_some() || parameter.annotations.iter().any(|a| &*a.name.text == "optional")
    };
    let is_complete = places.iter().zip(parameters).all(|(place, p)| place.is_some() || is_optional(p));
    is_complete.then_some(places)
}

/// Values of arguments in the order of the parameters; one that is left out is none.
pub(crate) type GivenArguments<'p> = [Option<&'p ExpressionTree>];

/// Values of arguments in the order of a signature's parameters; `None` if they do not match.
pub(crate) fn ordered<'p>(
    parameters: &[ParameterSyntax],
    arguments: &'p [CallArgument],
) -> Option<Vec<Option<&'p ExpressionTree>>> {
    let places = matched(parameters, arguments)?;
    let mut values: Vec<_> = places.into_iter().map(|place| place.and_then(|a| a.value.as_ref())).collect();
    values.truncate(arguments.len().max(values.iter().rposition(Option::is_some).map_or(0, |last| last + 1)));
    Some(values)
}

/// Value of an argument by position.
pub(crate) fn argument<'p>(
    arguments: &GivenArguments<'p>,
    index: usize,
    span: SourceSpan,
) -> Lowered<&'p ExpressionTree> {
    match arguments.get(index).copied().flatten() {
        Some(value) => Ok(value),
        None => refuse(span, "an argument is missing"),
    }
}

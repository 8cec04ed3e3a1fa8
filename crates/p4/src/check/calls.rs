//! Calls of functions and actions: matching of arguments with parameters, directions, inference of type
//! arguments. Source: P4_16 1.2.5, sections 6.8 and 8.20.

use crate::ast::ParameterDirection;
use rustc_hash::FxHashMap;

use crate::check::coercion::substitution;
use crate::check::scope::NamedEntity;
use crate::check::types::{
    DEFAULT_VALUE, FunctionType, INTEGER, MATCH_KIND, ParameterType, TypeId, UNKNOWN, VOID, ValueType,
};
use crate::check::{CheckedPart, TypeChecker, TypedValue};
use crate::expression::{CallArgument, ExpressionTree, QualifiedName, TypeSyntax};
use crate::source::{SourceName, SourceSpan};

/// Thing that is called.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum CalleeKind {
    Function,
    Action,
    /// `apply` of a parser or control.
    Block,
    Constructor,
}

/// A call: type arguments, arguments, place.
#[derive(Clone, Copy)]
pub(crate) struct CallSite<'a> {
    pub(crate) types: &'a [TypeSyntax],
    pub(crate) arguments: &'a [CallArgument],
    pub(crate) span: SourceSpan,
}

/// Argument of each parameter, if they match in number and names.
pub(crate) fn matched<'a>(
    parameters: &[ParameterType],
    arguments: &'a [CallArgument],
) -> Option<Vec<Option<&'a CallArgument>>> {
    let mut places: Vec<Option<&CallArgument>> = vec![None; parameters.len()];
    let named = arguments.iter().filter(|argument| argument.name.is_some()).count();
    if named != 0 && named != arguments.len() {
        return None;
    }
    for (index, argument) in arguments.iter().enumerate() {
        let at = match &argument.name {
            Some(name) => parameters.iter().position(|parameter| parameter.name == name.text)?,
            None => index,
        };
        if places.get_mut(at)?.replace(argument).is_some() {
            return None;
        }
    }
    let is_complete =
        places.iter().zip(parameters).all(|(place, parameter)| place.is_some() || parameter.is_optional);
    is_complete.then_some(places)
}

/// Checks arguments, and gives the parameters' types with inferred types in them.
pub(crate) fn check_arguments(
    checker: &mut TypeChecker<'_>,
    kind: CalleeKind,
    parameters: &[ParameterType],
    arguments: &[CallArgument],
    span: SourceSpan,
) -> bool {
    let Some(places) = matched(parameters, arguments) else {
        for argument in arguments.iter().filter_map(|argument| argument.value.as_ref()) {
            checker.expression(argument);
        }
        let names: Vec<String> = parameters.iter().map(|parameter| format!("`{}`", parameter.name)).collect();
        let message = match names.is_empty() {
            true => "this call takes no arguments".to_owned(),
            false => format!("the arguments do not match the parameters {}", names.join(", ")),
        };
        checker.error(span, message);
        return false;
    };
    let mut later = Vec::new();
    let mut is_right = true;
    for (parameter, argument) in parameters.iter().zip(places) {
        let Some(argument) = argument else {
            is_right &= parameter.default_type.is_none_or(|given| checker.coerces(given, parameter.type_id));
            continue;
        };
        let Some(expression) = &argument.value else {
            is_right &= omitted(checker, kind, parameter, argument.span);
            continue;
        };
        let value = checker.expression(expression);
        if value.type_id == INTEGER || value.type_id == DEFAULT_VALUE {
            later.push((parameter, value, expression));
        } else {
            is_right &= check_argument(checker, kind, parameter, &value, expression.span);
        }
    }
    for (parameter, value, expression) in later {
        is_right &= check_argument(checker, kind, parameter, &value, expression.span);
    }
    is_right
}

/// Checks an argument `_`: the result of an `out` parameter that nobody reads.
fn omitted(
    checker: &mut TypeChecker<'_>,
    kind: CalleeKind,
    parameter: &ParameterType,
    span: SourceSpan,
) -> bool {
    let is_allowed = parameter.direction == ParameterDirection::Out
        || (kind == CalleeKind::Constructor && checker.block(parameter.type_id).is_none());
    if !is_allowed {
        checker.error(span, format!("the parameter `{}` needs a value", parameter.name));
    }
    is_allowed
}

fn check_argument(
    checker: &mut TypeChecker<'_>,
    kind: CalleeKind,
    parameter: &ParameterType,
    value: &TypedValue,
    span: SourceSpan,
) -> bool {
    if matches!(parameter.direction, ParameterDirection::Out | ParameterDirection::InOut) {
        if !value.is_writable {
            checker.error(span, format!("the parameter `{}` is written, and this cannot be", parameter.name));
            return false;
        }
        return expect_same(checker, value, parameter.type_id, span);
    }
    let is_static = kind == CalleeKind::Constructor
        || parameter.type_id != INTEGER && !checker.is_runtime_data(parameter.type_id);
    let needs_known =
        parameter.direction == ParameterDirection::Directionless && kind != CalleeKind::Action && is_static;
    if needs_known && !value.is_known {
        let message = format!(
            "the parameter `{}` needs a value that is known when the program is compiled",
            parameter.name
        );
        checker.error(span, message);
        return false;
    }
    checker.expect_type(value, parameter.type_id, span)
}

fn expect_same(
    checker: &mut TypeChecker<'_>,
    value: &TypedValue,
    expected: TypeId,
    span: SourceSpan,
) -> bool {
    let expected_now = checker.types.shallow(expected);
    let is_rebound = expected_now == INTEGER && checker.coerces(value.type_id, expected);
    let is_same = is_rebound || checker.unify(value.type_id, expected);
    if !is_same {
        let (from, to) = (checker.types.name(value.type_id), checker.types.name(expected));
        checker.error(span, format!("expected a variable of type `{to}`, found `{from}`"));
    }
    is_same
}

/// Checks a call of a function or method, and gives its result.
pub(crate) fn check_call(
    checker: &mut TypeChecker<'_>,
    signature: &FunctionType,
    owner: &FxHashMap<TypeId, TypeId>,
    call: CallSite<'_>,
) -> TypedValue {
    let Some(arguments) = call_types(checker, signature, call) else { return TypedValue::unknown() };
    let mut map = owner.clone();
    map.extend(substitution(&signature.type_parameters, &arguments));
    let parameters = checker.substituted(&signature.parameters, &map);
    let result = checker.types.substitute(signature.result, &map);
    if !check_arguments(checker, CalleeKind::Function, &parameters, call.arguments, call.span) {
        return TypedValue::computed(UNKNOWN);
    }
    check_inferred(checker, signature, &arguments, call.span);
    check_run_time_parameters(checker, &parameters, call.span);
    let result = checker.types.resolve(result);
    checker.check_valid(result, call.span);
    TypedValue::computed(result)
}

/// Type arguments of a call, given or to be inferred.
fn call_types(
    checker: &mut TypeChecker<'_>,
    signature: &FunctionType,
    call: CallSite<'_>,
) -> Option<Vec<TypeId>> {
    let count = signature.type_parameters.len();
    if call.types.is_empty() {
        return Some((0..count).map(|_| checker.types.infer()).collect());
    }
    if call.types.len() != count {
        let message = format!("`{}` takes {count} type arguments, not {}", signature.name, call.types.len());
        checker.error(call.span, message);
        return None;
    }
    let outer = std::mem::replace(&mut checker.allows_anything, true);
    let types = call.types.iter().map(|syntax| checker.type_or_anything(syntax)).collect();
    checker.allows_anything = outer;
    Some(types)
}

fn check_inferred(
    checker: &mut TypeChecker<'_>,
    signature: &FunctionType,
    arguments: &[TypeId],
    span: SourceSpan,
) {
    let may_be_missing = signature.parameters.iter().any(|parameter| parameter.is_optional);
    for (parameter, argument) in signature.type_parameters.iter().zip(arguments) {
        let argument = checker.types.shallow(*argument);
        if may_be_missing && matches!(checker.types.kind(argument), ValueType::Inferred(_)) {
            continue;
        }
        if matches!(checker.types.kind(argument), ValueType::Inferred(_)) {
            let name = checker.types.name(*parameter);
            checker.error(
                span,
                format!("the type argument `{name}` of `{}` cannot be inferred", signature.name),
            );
            continue;
        }
        checker.check_valid(argument, span);
        let has_direction =
            |p: &ParameterType| p.type_id == *parameter && p.direction != ParameterDirection::Directionless;
        let is_object = !checker.is_data(argument) && signature.parameters.iter().any(has_direction);
        let gives_integer = argument == INTEGER && signature.result == *parameter;
        if is_object || gives_integer || matches!(checker.types.kind(argument), ValueType::Void) {
            let name = checker.types.name(argument);
            checker.error(span, format!("`{name}` cannot be a type argument of `{}`", signature.name));
        }
    }
}

/// Checks that parameters with a direction have values when packets run.
pub(crate) fn check_run_time_parameters(
    checker: &mut TypeChecker<'_>,
    parameters: &[ParameterType],
    span: SourceSpan,
) {
    for parameter in parameters.iter().filter(|p| p.direction != ParameterDirection::Directionless) {
        let type_id = checker.types.resolve(parameter.type_id);
        checker.check_valid(type_id, span);
        if !checker.is_runtime_data(type_id) && type_id != MATCH_KIND {
            let name = checker.types.name(type_id);
            let message = format!("the parameter `{}` cannot have a value of type `{name}`", parameter.name);
            checker.error(span, message);
        }
    }
}

pub(super) fn named_call(
    checker: &mut TypeChecker<'_>,
    name: &QualifiedName,
    call: CallSite<'_>,
) -> TypedValue {
    match checker.scopes.find(&name.name.text, name.is_global).cloned() {
        Some(NamedEntity::Functions(list)) => function_call(checker, &name.name, &list, call),
        Some(NamedEntity::Action(action)) => action_call(checker, action, call),
        Some(_) => {
            checker.error(name.name.span, format!("`{}` is no function", name.name.text));
            TypedValue::unknown()
        }
        None => {
            checker.undeclared("the function", &name.name);
            for argument in call.arguments.iter().filter_map(|a| a.value.as_ref()) {
                checker.expression(argument);
            }
            TypedValue::unknown()
        }
    }
}

fn function_call(
    checker: &mut TypeChecker<'_>,
    name: &SourceName,
    list: &[usize],
    call: CallSite<'_>,
) -> TypedValue {
    let fitting: Vec<usize> = list
        .iter()
        .copied()
        .filter(|f| matched(&checker.functions[*f].signature.parameters, call.arguments).is_some())
        .collect();
    let chosen = match (&fitting[..], list) {
        ([one], _) | ([], [one]) => *one,
        ([], _) => {
            checker.error(name.span, format!("no function `{}` takes these arguments", name.text));
            return TypedValue::unknown();
        }
        _ => {
            checker.error(name.span, format!("several functions `{}` take these arguments", name.text));
            return TypedValue::unknown();
        }
    };
    let function = checker.functions[chosen].clone();
    let value = check_call(checker, &function.signature, &FxHashMap::default(), call);
    if function.is_extern && &*name.text == "verify" && checker.part != CheckedPart::ParserState {
        checker.error(call.span, "`verify` is only allowed in parsers");
    }
    let is_static = function.is_extern && &*name.text == "static_assert";
    if is_static {
        check_static_assertion(checker, call);
    }
    let mut arguments = call.arguments.iter().filter_map(|argument| argument.value.as_ref());
    let is_pure = function.is_extern && !call.arguments.is_empty();
    let is_known =
        is_static || is_pure && arguments.clone().all(|argument| checker.facts.is_known(argument.id));
    let takes_object = |argument: &ExpressionTree| {
        checker.facts.type_id(argument.id).is_some_and(|type_id| !checker.is_data(type_id))
    };
    if !function.is_extern && !function.signature.type_parameters.is_empty() && arguments.any(takes_object) {
        checker.error(call.span, "a generic function cannot take objects");
    }
    TypedValue { is_known, ..value }
}

/// Reports a `static_assert` whose condition does not hold.
fn check_static_assertion(checker: &mut TypeChecker<'_>, call: CallSite<'_>) {
    use crate::check::constants::ConstantValue;
    let value = |n: usize| call.arguments.get(n).and_then(|argument| argument.value.as_ref());
    let condition = value(0).and_then(|condition| checker.facts.constant(condition.id));
    if condition != Some(&ConstantValue::Boolean(false)) {
        return;
    }
    let message = match value(1).and_then(|text| checker.facts.constant(text.id)) {
        Some(ConstantValue::Text(text)) => format!("static_assert fails: {text}"),
        _ => "static_assert fails".to_owned(),
    };
    checker.error(call.span, message);
}

fn action_call(checker: &mut TypeChecker<'_>, action: usize, call: CallSite<'_>) -> TypedValue {
    if !matches!(checker.part, CheckedPart::ControlApply | CheckedPart::Action) {
        checker.error(call.span, "an action can only be called in a control and in actions");
    }
    if !call.types.is_empty() {
        checker.error(call.span, "actions take no type arguments");
    }
    let parameters = checker.actions[action].parameters.clone();
    check_arguments(checker, CalleeKind::Action, &parameters, call.arguments, call.span);
    TypedValue::computed(VOID)
}

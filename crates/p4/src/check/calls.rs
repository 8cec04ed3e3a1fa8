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
use crate::expression::{CallArgument, ExpressionKind, ExpressionTree, QualifiedName, TypeSyntax};
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

impl TypeChecker<'_> {
    /// Checks arguments, and gives the parameters' types with inferred types in them.
    pub(crate) fn check_arguments(
        &mut self,
        kind: CalleeKind,
        parameters: &[ParameterType],
        arguments: &[CallArgument],
        span: SourceSpan,
    ) -> bool {
        let Some(places) = matched(parameters, arguments) else {
            for argument in arguments.iter().filter_map(|argument| argument.value.as_ref()) {
                self.expression(argument);
            }
            let names: Vec<String> =
                parameters.iter().map(|parameter| format!("`{}`", parameter.name)).collect();
            let message = match names.is_empty() {
                true => "this call takes no arguments".to_owned(),
                false => format!("the arguments do not match the parameters {}", names.join(", ")),
            };
            self.error(span, message);
            return false;
        };
        let mut later = Vec::new();
        let mut is_right = true;
        for (parameter, argument) in parameters.iter().zip(places) {
            let Some(argument) = argument else {
                is_right &= parameter.default_type.is_none_or(|given| self.coerces(given, parameter.type_id));
                continue;
            };
            let Some(expression) = &argument.value else {
                is_right &= self.omitted(kind, parameter, argument.span);
                continue;
            };
            let value = self.expression(expression);
            if value.type_id == INTEGER || value.type_id == DEFAULT_VALUE {
                later.push((parameter, value, expression));
            } else {
                is_right &= self.check_argument(kind, parameter, &value, expression.span);
            }
        }
        for (parameter, value, expression) in later {
            is_right &= self.check_argument(kind, parameter, &value, expression.span);
        }
        is_right
    }

    /// Checks an argument `_`: the result of an `out` parameter that nobody reads.
    fn omitted(&mut self, kind: CalleeKind, parameter: &ParameterType, span: SourceSpan) -> bool {
        let is_allowed = parameter.direction == ParameterDirection::Out
            || (kind == CalleeKind::Constructor && self.block(parameter.type_id).is_none());
        if !is_allowed {
            self.error(span, format!("the parameter `{}` needs a value", parameter.name));
        }
        is_allowed
    }

    fn check_argument(
        &mut self,
        kind: CalleeKind,
        parameter: &ParameterType,
        value: &TypedValue,
        span: SourceSpan,
    ) -> bool {
        if matches!(parameter.direction, ParameterDirection::Out | ParameterDirection::InOut) {
            if !value.is_writable {
                self.error(
                    span,
                    format!("the parameter `{}` is written, and this cannot be", parameter.name),
                );
                return false;
            }
            return self.expect_same(value, parameter.type_id, span);
        }
        let is_static = kind == CalleeKind::Constructor
            || parameter.type_id != INTEGER && !self.is_runtime_data(parameter.type_id);
        let needs_known = parameter.direction == ParameterDirection::Directionless
            && kind != CalleeKind::Action
            && is_static;
        if needs_known && !value.is_known {
            let message = format!(
                "the parameter `{}` needs a value that is known when the program is compiled",
                parameter.name
            );
            self.error(span, message);
            return false;
        }
        self.expect_type(value, parameter.type_id, span)
    }

    fn expect_same(&mut self, value: &TypedValue, expected: TypeId, span: SourceSpan) -> bool {
        let expected_now = self.types.shallow(expected);
        let is_rebound = expected_now == INTEGER && self.coerces(value.type_id, expected);
        let is_same = is_rebound || self.unify(value.type_id, expected);
        if !is_same {
            let (from, to) = (self.types.name(value.type_id), self.types.name(expected));
            self.error(span, format!("expected a variable of type `{to}`, found `{from}`"));
        }
        is_same
    }

    /// Checks a call of a function or method, and gives its result.
    pub(crate) fn check_call(
        &mut self,
        signature: &FunctionType,
        owner: &FxHashMap<TypeId, TypeId>,
        call: CallSite<'_>,
    ) -> TypedValue {
        let Some(arguments) = self.call_types(signature, call) else { return TypedValue::unknown() };
        let mut map = owner.clone();
        map.extend(substitution(&signature.type_parameters, &arguments));
        let parameters = self.substituted(&signature.parameters, &map);
        let result = self.types.substitute(signature.result, &map);
        if !self.check_arguments(CalleeKind::Function, &parameters, call.arguments, call.span) {
            return TypedValue::computed(UNKNOWN);
        }
        self.check_inferred(signature, &arguments, call.span);
        self.check_run_time_parameters(&parameters, call.span);
        let result = self.types.resolve(result);
        self.check_valid(result, call.span);
        TypedValue::computed(result)
    }

    /// Type arguments of a call, given or to be inferred.
    fn call_types(&mut self, signature: &FunctionType, call: CallSite<'_>) -> Option<Vec<TypeId>> {
        let count = signature.type_parameters.len();
        if call.types.is_empty() {
            return Some((0..count).map(|_| self.types.infer()).collect());
        }
        if call.types.len() != count {
            let message =
                format!("`{}` takes {count} type arguments, not {}", signature.name, call.types.len());
            self.error(call.span, message);
            return None;
        }
        let outer = std::mem::replace(&mut self.allows_anything, true);
        let types = call.types.iter().map(|syntax| self.type_or_anything(syntax)).collect();
        self.allows_anything = outer;
        Some(types)
    }

    fn check_inferred(&mut self, signature: &FunctionType, arguments: &[TypeId], span: SourceSpan) {
        let may_be_missing = signature.parameters.iter().any(|parameter| parameter.is_optional);
        for (parameter, argument) in signature.type_parameters.iter().zip(arguments) {
            let argument = self.types.shallow(*argument);
            if may_be_missing && matches!(self.types.kind(argument), ValueType::Inferred(_)) {
                continue;
            }
            if matches!(self.types.kind(argument), ValueType::Inferred(_)) {
                let name = self.types.name(*parameter);
                self.error(
                    span,
                    format!("the type argument `{name}` of `{}` cannot be inferred", signature.name),
                );
                continue;
            }
            self.check_valid(argument, span);
            let has_direction = |p: &ParameterType| {
                p.type_id == *parameter && p.direction != ParameterDirection::Directionless
            };
            let is_object = !self.is_data(argument) && signature.parameters.iter().any(has_direction);
            let gives_integer = argument == INTEGER && signature.result == *parameter;
            if is_object || gives_integer || matches!(self.types.kind(argument), ValueType::Void) {
                let name = self.types.name(argument);
                self.error(span, format!("`{name}` cannot be a type argument of `{}`", signature.name));
            }
        }
    }

    /// Checks that parameters with a direction have values when packets run.
    pub(crate) fn check_run_time_parameters(&mut self, parameters: &[ParameterType], span: SourceSpan) {
        for parameter in parameters.iter().filter(|p| p.direction != ParameterDirection::Directionless) {
            let type_id = self.types.resolve(parameter.type_id);
            self.check_valid(type_id, span);
            if !self.is_runtime_data(type_id) && type_id != MATCH_KIND {
                let name = self.types.name(type_id);
                let message =
                    format!("the parameter `{}` cannot have a value of type `{name}`", parameter.name);
                self.error(span, message);
            }
        }
    }
}

impl TypeChecker<'_> {
    pub(crate) fn call(
        &mut self,
        function: &ExpressionTree,
        types: &[TypeSyntax],
        arguments: &[CallArgument],
        span: SourceSpan,
    ) -> TypedValue {
        let call = CallSite { types, arguments, span };
        match &function.kind {
            ExpressionKind::Name(name) => self.named_call(name, call),
            ExpressionKind::Member(base, member) => self.method_call(base, member, call),
            ExpressionKind::TypeMember(target, member) => self.type_call(target, member, call),
            _ => {
                self.error(function.span, "this cannot be called");
                TypedValue::unknown()
            }
        }
    }

    fn named_call(&mut self, name: &QualifiedName, call: CallSite<'_>) -> TypedValue {
        match self.scopes.find(&name.name.text, name.is_global).cloned() {
            Some(NamedEntity::Functions(list)) => self.function_call(&name.name, &list, call),
            Some(NamedEntity::Action(action)) => self.action_call(action, call),
            Some(_) => {
                self.error(name.name.span, format!("`{}` is no function", name.name.text));
                TypedValue::unknown()
            }
            None => {
                self.undeclared("the function", &name.name);
                for argument in call.arguments.iter().filter_map(|a| a.value.as_ref()) {
                    self.expression(argument);
                }
                TypedValue::unknown()
            }
        }
    }

    fn function_call(&mut self, name: &SourceName, list: &[usize], call: CallSite<'_>) -> TypedValue {
        let fitting: Vec<usize> = list
            .iter()
            .copied()
            .filter(|f| matched(&self.functions[*f].signature.parameters, call.arguments).is_some())
            .collect();
        let chosen = match (&fitting[..], list) {
            ([one], _) | ([], [one]) => *one,
            ([], _) => {
                self.error(name.span, format!("no function `{}` takes these arguments", name.text));
                return TypedValue::unknown();
            }
            _ => {
                self.error(name.span, format!("several functions `{}` take these arguments", name.text));
                return TypedValue::unknown();
            }
        };
        let function = self.functions[chosen].clone();
        let value = self.check_call(&function.signature, &FxHashMap::default(), call);
        if function.is_extern && &*name.text == "verify" && self.part != CheckedPart::ParserState {
            self.error(call.span, "`verify` is only allowed in parsers");
        }
        let is_static = function.is_extern && &*name.text == "static_assert";
        if is_static {
            self.check_static_assertion(call);
        }
        let mut arguments = call.arguments.iter().filter_map(|argument| argument.value.as_ref());
        let is_pure = function.is_extern && !call.arguments.is_empty();
        let is_known =
            is_static || is_pure && arguments.clone().all(|argument| self.facts.is_known(argument.id));
        let takes_object = |argument: &ExpressionTree| {
            self.facts.type_id(argument.id).is_some_and(|type_id| !self.is_data(type_id))
        };
        if !function.is_extern
            && !function.signature.type_parameters.is_empty()
            && arguments.any(takes_object)
        {
            self.error(call.span, "a generic function cannot take objects");
        }
        TypedValue { is_known, ..value }
    }

    /// Reports a `static_assert` whose condition does not hold.
    fn check_static_assertion(&mut self, call: CallSite<'_>) {
        use crate::check::constants::ConstantValue;
        let value = |n: usize| call.arguments.get(n).and_then(|argument| argument.value.as_ref());
        let condition = value(0).and_then(|condition| self.facts.constant(condition.id));
        if condition != Some(&ConstantValue::Boolean(false)) {
            return;
        }
        let message = match value(1).and_then(|text| self.facts.constant(text.id)) {
            Some(ConstantValue::Text(text)) => format!("static_assert fails: {text}"),
            _ => "static_assert fails".to_owned(),
        };
        self.error(call.span, message);
    }

    fn action_call(&mut self, action: usize, call: CallSite<'_>) -> TypedValue {
        if !matches!(self.part, CheckedPart::ControlApply | CheckedPart::Action) {
            self.error(call.span, "an action can only be called in a control and in actions");
        }
        if !call.types.is_empty() {
            self.error(call.span, "actions take no type arguments");
        }
        let parameters = self.actions[action].parameters.clone();
        self.check_arguments(CalleeKind::Action, &parameters, call.arguments, call.span);
        TypedValue::computed(VOID)
    }

    fn type_call(&mut self, target: &TypeSyntax, member: &SourceName, call: CallSite<'_>) -> TypedValue {
        let type_id = self.type_of(target);
        if let Some(value) = self.size_call(type_id, member, call) {
            return value;
        }
        self.no_member(type_id, member, &[])
    }
}

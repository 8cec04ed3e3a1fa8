//! Calls of functions, actions and sizes of types.

use rustc_hash::FxHashMap;

use crate::ast::SourceName;
use crate::check::arguments::{CallSite, CalleeKind, matched};
use crate::check::scope::NamedEntity;
use crate::check::types::VOID;
use crate::check::{CheckedPart, TypeChecker, TypedValue};
use crate::expression::{CallArgument, ExpressionKind, ExpressionTree, QualifiedName, TypeSyntax};
use crate::source::SourceSpan;

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

//! Instances of externs, parsers, controls and packages. Source: P4_16 1.2.5, sections 11.3 and 12.

use crate::ast::{DeclarationKind, DeclarationTree, InstanceSyntax, SourceName};
use crate::check::arguments::{CalleeKind, matched};
use crate::check::coercion::substitution;
use crate::check::scope::NamedValue;
use crate::check::types::{
    FunctionType, MethodType, NominalId, NominalKind, NominalType, ParameterType, TypeId, UNKNOWN, ValueType,
};
use crate::check::{CheckedPart, TypeChecker, TypedValue};
use crate::diagnostic::SourceDiagnostic;
use crate::expression::{CallArgument, TypeSyntax};
use crate::source::SourceSpan;

impl TypeChecker<'_> {
    /// Checks a constructor within an expression.
    pub(crate) fn construct_value(
        &mut self,
        target: &TypeSyntax,
        arguments: &[CallArgument],
        span: SourceSpan,
    ) -> TypedValue {
        if matches!(self.part, CheckedPart::Action | CheckedPart::Function | CheckedPart::ParserState) {
            self.error(span, "no instance can be made here");
        }
        let type_id = self.construct(target, arguments, span);
        let methods = self.methods_of(type_id).unwrap_or_default();
        if let Some(method) = methods.iter().find(|method| method.is_abstract && !method.is_optional) {
            let message = format!("the abstract method `{}` is not implemented", method.signature.name);
            self.error(span, message);
        }
        TypedValue::known(type_id, None)
    }

    /// Checks a call of a constructor, and gives the type of the instance.
    pub(crate) fn construct(
        &mut self,
        target: &TypeSyntax,
        arguments: &[CallArgument],
        span: SourceSpan,
    ) -> TypeId {
        let type_id = self.constructed_type(target);
        if let ValueType::Stack(element, _) = *self.types.kind(type_id) {
            self.construct_type(element, arguments, span);
            return self.types.resolve(type_id);
        }
        self.construct_type(type_id, arguments, span)
    }

    fn construct_type(&mut self, type_id: TypeId, arguments: &[CallArgument], span: SourceSpan) -> TypeId {
        if type_id == UNKNOWN {
            for argument in arguments.iter().filter_map(|a| a.value.as_ref()) {
                self.expression(argument);
            }
            return UNKNOWN;
        }
        let ValueType::Nominal(nominal, type_arguments) = self.types.kind(type_id).clone() else {
            return self.no_constructor(type_id, span);
        };
        let nominal = self.overload(nominal, arguments);
        if let Some(has_instance) = self.absolute_blocks.get_mut(&nominal)
            && std::mem::replace(has_instance, true)
        {
            self.error(span, "the tables of two instances have the same names for the control plane");
        }
        let type_id = self.types.add(ValueType::Nominal(nominal, type_arguments.clone()));
        let declared = self.types.nominal(nominal).clone();
        let Some(parameters) = self.constructor(&declared, arguments, span) else {
            return self.no_constructor(type_id, span);
        };
        let map = substitution(&declared.type_parameters, &type_arguments);
        let parameters = self.substituted(&parameters, &map);
        let is_right = self.check_arguments(CalleeKind::Constructor, &parameters, arguments, span);
        let is_open = match declared.kind {
            NominalKind::Block(_) => true,
            NominalKind::Package(_) => parameters.iter().all(|parameter| parameter.default_type.is_none()),
            _ => false,
        };
        for argument in &type_arguments {
            let known = self.types.shallow(*argument);
            if is_right && !is_open && matches!(self.types.kind(known), ValueType::Inferred(_)) {
                self.error(span, format!("the type arguments of `{}` cannot be inferred", declared.name));
            }
        }
        let resolved = self.types.resolve(type_id);
        self.check_valid(resolved, span);
        resolved
    }

    /// Chooses among parsers, controls and packages of the same name, by the parameters of their constructors.
    fn overload(&self, first: NominalId, arguments: &[CallArgument]) -> NominalId {
        let others = self.overloads.get(&first).into_iter().flatten();
        let fits = |nominal: &&NominalId| {
            let parameters = match &self.types.nominal(**nominal).kind {
                NominalKind::Block(block) => block.constructor.as_deref(),
                NominalKind::Package(parameters) => Some(&parameters[..]),
                _ => None,
            };
            parameters.is_some_and(|parameters| matched(parameters, arguments).is_some())
        };
        std::iter::once(&first).chain(others).find(fits).copied().unwrap_or(first)
    }

    fn no_constructor(&mut self, type_id: TypeId, span: SourceSpan) -> TypeId {
        let name = self.types.name(type_id);
        self.error(span, format!("`{name}` has no constructor for these arguments"));
        UNKNOWN
    }

    /// Parameters of the constructor that fits.
    fn constructor(
        &mut self,
        declared: &NominalType,
        arguments: &[CallArgument],
        span: SourceSpan,
    ) -> Option<Vec<ParameterType>> {
        match &declared.kind {
            NominalKind::Block(block) => block.constructor.clone(),
            NominalKind::Package(parameters) => Some(parameters.clone()),
            NominalKind::Extern(methods) => {
                let constructors: Vec<&MethodType> = methods.iter().filter(|m| m.is_constructor).collect();
                let fits = |m: &&&MethodType| matched(&m.signature.parameters, arguments).is_some();
                let fitting: Vec<&&MethodType> = constructors.iter().filter(fits).collect();
                match (&fitting[..], &constructors[..]) {
                    ([], [one]) => Some(one.signature.parameters.clone()),
                    ([], _) => None,
                    ([one], _) => Some(one.signature.parameters.clone()),
                    ([one, ..], _) => {
                        self.error(span, "several constructors take these arguments");
                        Some(one.signature.parameters.clone())
                    }
                }
            }
            _ => None,
        }
    }

    pub(crate) fn instance(&mut self, name: &SourceName, instance: &InstanceSyntax, span: SourceSpan) {
        let type_id = self.construct(&instance.object_type, &instance.arguments, span);
        self.check_place(type_id, name.span);
        self.initializer(type_id, instance, name);
        let value = NamedValue { type_id, is_writable: false, is_known: true, constant: None };
        self.declare_value(name, value);
    }

    /// Checks that an instance of a type may be made in this part.
    fn check_place(&mut self, type_id: TypeId, span: SourceSpan) {
        let ValueType::Nominal(nominal, _) = self.types.kind(type_id).clone() else { return };
        let is_allowed = match &self.types.nominal(nominal).kind {
            NominalKind::Package(_) => self.part == CheckedPart::TopLevel,
            NominalKind::Block(block) if block.is_parser => {
                matches!(self.part, CheckedPart::Parser | CheckedPart::ParserState)
            }
            NominalKind::Block(_) => {
                matches!(self.part, CheckedPart::Control | CheckedPart::ControlApply)
            }
            _ => !matches!(self.part, CheckedPart::Action | CheckedPart::Function | CheckedPart::Method),
        };
        if !is_allowed {
            let name = self.types.name(type_id);
            self.error(span, format!("no instance of `{name}` can be made here"));
        }
    }

    /// Checks that the abstract methods of an instance are implemented.
    fn initializer(&mut self, type_id: TypeId, instance: &InstanceSyntax, name: &SourceName) {
        let methods = self.methods_of(type_id);
        let Some(methods) = methods else {
            if instance.initializer.is_some() && type_id != UNKNOWN {
                self.error(name.span, "only instances of externs can have methods");
            }
            return;
        };
        let mut missing: Vec<(FunctionType, bool)> =
            methods.iter().filter(|m| m.is_abstract).map(|m| (m.signature.clone(), m.is_optional)).collect();
        self.scoped(|c| {
            for part in instance.initializer.as_deref().unwrap_or_default() {
                c.object_part(part, type_id, &mut missing);
            }
        });
        for (method, _) in missing.into_iter().filter(|(_, is_optional)| !is_optional) {
            let message = format!("`{}` does not implement the abstract method `{}`", name.text, method.name);
            self.sink.push(SourceDiagnostic::error(name.span, message));
        }
    }

    /// Methods of an extern with type arguments in place.
    fn methods_of(&mut self, type_id: TypeId) -> Option<Vec<MethodType>> {
        let ValueType::Nominal(nominal, arguments) = self.types.kind(type_id).clone() else { return None };
        let declared = self.types.nominal(nominal).clone();
        let NominalKind::Extern(mut methods) = declared.kind else { return None };
        let map = substitution(&declared.type_parameters, &arguments);
        for method in &mut methods {
            method.signature.parameters = self.substituted(&method.signature.parameters, &map);
            method.signature.result = self.types.substitute(method.signature.result, &map);
            if method.is_abstract && !arguments.is_empty() {
                let parameters = method.signature.parameters.clone();
                self.check_run_time_parameters(&parameters, method.signature.span);
            }
        }
        Some(methods)
    }

    fn object_part(
        &mut self,
        part: &DeclarationTree,
        owner: TypeId,
        missing: &mut Vec<(FunctionType, bool)>,
    ) {
        let DeclarationKind::Function(function) = &part.kind else {
            self.declaration(part);
            return;
        };
        let Some(signature) = self.signature(&part.name, &function.signature, CheckedPart::Method) else {
            return;
        };
        let same =
            missing.iter().position(|(m, _)| m.name == signature.name && is_implementation(&signature, m));
        match same {
            Some(index) => {
                let (expected, _) = missing.remove(index);
                self.check_implementation(&signature, &expected);
            }
            None => {
                let names: Vec<String> = missing.iter().map(|(m, _)| m.name.to_string()).collect();
                self.no_member(owner, &part.name, &names);
            }
        }
        let outer = self.this_type.replace(owner);
        self.within(CheckedPart::Method, |c| c.function_body(&signature, function));
        self.this_type = outer;
    }

    fn check_implementation(&mut self, given: &FunctionType, expected: &FunctionType) {
        let pairs = given.parameters.iter().zip(&expected.parameters);
        let is_same = self.unify(given.result, expected.result)
            && given.type_parameters.len() == expected.type_parameters.len()
            && pairs.into_iter().all(|(a, b)| a.direction == b.direction && self.unify(a.type_id, b.type_id));
        if !is_same {
            let message = format!("`{}` differs from the abstract method that it implements", given.name);
            self.error(given.span, message);
        }
    }

    /// Type of an instance that is applied without a name: `TYPE.apply(...)`.
    pub(crate) fn direct_instance(&mut self, target: &TypeSyntax) -> TypeId {
        let type_id = self.construct(target, &[], target.span);
        self.check_place(type_id, target.span);
        type_id
    }
}

/// Tells if a method has the parameters of an abstract one, optional ones left out or not.
fn is_implementation(given: &FunctionType, expected: &FunctionType) -> bool {
    given.parameters.len() <= expected.parameters.len()
        && expected.parameters.iter().skip(given.parameters.len()).all(|parameter| parameter.is_optional)
}

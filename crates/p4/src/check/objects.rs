//! Externs, packages, controls and enumerations, and instances of them. Source: P4_16 1.2.5, sections 7.2,
//! 11.3 and 12.

use crate::ast::{
    ControlSyntax, DeclarationKind, DeclarationTree, ExternSyntax, InstanceSyntax, MethodSyntax,
    ParameterDirection, ParameterSyntax,
};
use crate::check::calls::{CalleeKind, matched};
use crate::check::coercion::substitution;
use crate::check::constants::ConstantValue;
use crate::check::declarations::variable;
use crate::check::scope::{NamedEntity, NamedValue};
use crate::check::types::{
    BlockType, FunctionType, MethodType, NominalId, NominalKind, NominalType, ParameterType, TypeId, UNKNOWN,
    ValueType,
};
use crate::check::{CheckedPart, TypeChecker, TypedValue, calls, declarations, members};
use crate::diagnostic::SourceDiagnostic;
use crate::expression::{CallArgument, ExpressionTree, TypeSyntax};
use crate::source::{SourceName, SourceSpan};

pub(crate) fn extern_type(checker: &mut TypeChecker<'_>, name: &SourceName, syntax: &ExternSyntax) {
    let kind = NominalKind::Extern(Vec::new());
    let nominal = checker.types.add_nominal(NominalType {
        name: name.text.clone(),
        span: name.span,
        type_parameters: Vec::new(),
        kind,
    });
    checker.scoped(|c| {
        let type_parameters = declarations::declare_type_parameters(c, &syntax.type_parameters);
        c.types.nominals[nominal.0 as usize].type_parameters = type_parameters;
        for method in &syntax.methods {
            check_method(c, nominal, name, method);
        }
    });
    checker.declare(name, NamedEntity::Nominal(nominal));
}

fn check_method(
    checker: &mut TypeChecker<'_>,
    nominal: NominalId,
    owner: &SourceName,
    syntax: &MethodSyntax,
) {
    let is_constructor = syntax.signature.result.is_none();
    if is_constructor && syntax.name.text != owner.text || !is_constructor && syntax.name.text == owner.text {
        let message = format!("only the constructor is named `{}`, and it has no result", owner.text);
        checker.error(syntax.name.span, message);
        return;
    }
    if is_constructor && syntax.is_abstract {
        checker.error(syntax.name.span, "a constructor cannot be abstract");
    }
    let Some(signature) =
        declarations::signature(checker, &syntax.name, &syntax.signature, CheckedPart::Method)
    else {
        return;
    };
    if is_constructor {
        check_directionless(checker, &syntax.signature.parameters);
        let takes_block = |p: &crate::check::types::ParameterType| is_block(checker, p.type_id);
        if signature.parameters.iter().any(takes_block) {
            checker.error(syntax.name.span, "the constructor of an extern cannot take parsers or controls");
        }
    }
    let is_optional = syntax.annotations.iter().any(|annotation| &*annotation.name.text == "optional");
    let method = MethodType { is_abstract: syntax.is_abstract, is_optional, is_constructor, signature };
    let NominalKind::Extern(methods) = &mut checker.types.nominals[nominal.0 as usize].kind else { return };
    let is_same = |m: &MethodType| {
        m.signature.name == method.signature.name
            && m.signature.parameters.len() == method.signature.parameters.len()
            && m.signature.parameters.iter().zip(&method.signature.parameters).all(|(a, b)| a.name == b.name)
    };
    let is_known = methods.iter().any(is_same);
    methods.push(method);
    if is_known {
        let message = format!("a method `{}` with these parameters is declared already", syntax.name.text);
        checker.error(syntax.name.span, message);
    }
}

fn is_block(checker: &TypeChecker<'_>, type_id: TypeId) -> bool {
    match checker.types.kind(type_id) {
        ValueType::Nominal(nominal, _) => {
            matches!(checker.types.nominal(*nominal).kind, NominalKind::Block(_))
        }
        _ => false,
    }
}

/// Checks that parameters of a constructor or package have no direction.
pub(crate) fn check_directionless(checker: &mut TypeChecker<'_>, parameters: &[ParameterSyntax]) {
    for parameter in parameters.iter().filter(|p| p.direction != ParameterDirection::Directionless) {
        checker.error(parameter.name.span, "the parameters of constructors have no direction");
    }
}

pub(crate) fn package(
    checker: &mut TypeChecker<'_>,
    name: &SourceName,
    types: &[SourceName],
    parameters: &[ParameterSyntax],
) {
    let (type_parameters, list) = checker.scoped(|c| {
        let type_parameters = declarations::declare_type_parameters(c, types);
        check_directionless(c, parameters);
        (type_parameters, declarations::parameters(c, parameters, CheckedPart::TopLevel))
    });
    declarations::declare_nominal(checker, name, type_parameters, NominalKind::Package(list));
}

/// Declares type parameters, parameters and parameters of the constructor; gives their types.
pub(crate) fn block_parameters(
    checker: &mut TypeChecker<'_>,
    types: &[SourceName],
    parameters: &[ParameterSyntax],
    constructor: Option<&[ParameterSyntax]>,
    is_parser: bool,
) -> (Vec<TypeId>, BlockType) {
    let type_parameters = declarations::declare_type_parameters(checker, types);
    let list = declarations::parameters(checker, parameters, CheckedPart::Control);
    let constructor_list = constructor.map(|constructor| {
        check_directionless(checker, constructor);
        let is_optional = |p: &&ParameterSyntax| p.annotations.iter().any(|a| &*a.name.text == "optional");
        if let Some(parameter) = constructor.iter().find(is_optional) {
            checker.error(parameter.name.span, "a parameter that a body reads cannot be optional");
        }
        declarations::parameters(checker, constructor, CheckedPart::TopLevel)
    });
    declarations::declare_parameters(checker, parameters, &list, CheckedPart::Control);
    if let (Some(constructor), Some(types)) = (constructor, &constructor_list) {
        declarations::declare_parameters(checker, constructor, types, CheckedPart::Control);
    }
    (type_parameters, BlockType { is_parser, parameters: list, constructor: constructor_list })
}

pub(crate) fn control(checker: &mut TypeChecker<'_>, name: &SourceName, syntax: &ControlSyntax) {
    let constructor = syntax.body.as_ref().map(|body| &body.constructor[..]);
    let (type_parameters, block) = checker.scoped(|c| {
        let block = block_parameters(c, &syntax.type_parameters, &syntax.parameters, constructor, false);
        if let Some(body) = &syntax.body {
            c.within(CheckedPart::Control, |c| {
                c.scoped(|c| {
                    for local in &body.locals {
                        c.declaration(local);
                    }
                    c.within(CheckedPart::ControlApply, |c| c.scoped(|c| c.block_statements(&body.apply)));
                });
            });
        }
        block
    });
    let nominal = declarations::declare_nominal(checker, name, type_parameters, NominalKind::Block(block));
    checker.plane_names.end_control(nominal);
}

pub(crate) fn enumeration(
    checker: &mut TypeChecker<'_>,
    name: &SourceName,
    underlying: Option<&TypeSyntax>,
    members: &[(SourceName, Option<ExpressionTree>)],
) {
    checker.distinct("the member", members.iter().map(|(member, _)| member));
    let underlying_type = underlying.map(|syntax| {
        let type_id = checker.type_of(syntax);
        if !checker.is_number(type_id) && !wraps_number(checker, type_id) {
            checker
                .error(syntax.span, "the values of an enumeration have to be of a type `bit<W>` or `int<W>`");
        }
        type_id
    });
    let mut values: Vec<(crate::source::Symbol, Option<ConstantValue>)> = Vec::new();
    checker.scopes.push();
    for (member, value) in members {
        let constant = value.as_ref().and_then(|value| member_value(checker, value, underlying_type));
        if constant.is_some() && values.iter().any(|(_, other)| *other == constant) {
            let message = format!("`{}` has the value of another member", member.text);
            checker.sink.push(SourceDiagnostic::warning(member.span, message));
        }
        if let Some(type_id) = underlying_type {
            let value = NamedValue {
                is_writable: false,
                is_known: true,
                constant: constant.clone(),
                ..variable(type_id)
            };
            checker.scopes.insert(member.text.clone(), NamedEntity::Value(value), member.span);
        }
        values.push((member.text.clone(), constant));
    }
    checker.scopes.pop();
    declarations::declare_nominal(
        checker,
        name,
        Vec::new(),
        NominalKind::Enumeration(underlying_type, values),
    );
}

fn wraps_number(checker: &TypeChecker<'_>, type_id: TypeId) -> bool {
    let ValueType::Nominal(nominal, _) = checker.types.kind(type_id) else { return false };
    match checker.types.nominal(*nominal).kind {
        NominalKind::NewType(inner) => checker.is_number(inner),
        _ => false,
    }
}

fn member_value(
    checker: &mut TypeChecker<'_>,
    value: &ExpressionTree,
    underlying: Option<TypeId>,
) -> Option<ConstantValue> {
    let checked = checker.expression_as(value, underlying?);
    let written = checker.facts.constant(value.id).and_then(|constant| constant.number()).cloned();
    if written.is_some_and(|number| {
        !crate::check::constants::fits(&number, checker.format(underlying.unwrap_or(UNKNOWN)))
    }) {
        checker.error(value.span, "this number does not fit the type of the enumeration");
    }
    if !checked.is_known {
        checker.error(value.span, "the value of a member has to be known when the program is compiled");
    }
    checked.constant
}

/// Checks a constructor within an expression.
pub(crate) fn construct_value(
    checker: &mut TypeChecker<'_>,
    target: &TypeSyntax,
    arguments: &[CallArgument],
    span: SourceSpan,
) -> TypedValue {
    if matches!(checker.part, CheckedPart::Action | CheckedPart::Function | CheckedPart::ParserState) {
        checker.error(span, "no instance can be made here");
    }
    let type_id = construct(checker, target, arguments, span);
    let methods = methods_of(checker, type_id).unwrap_or_default();
    if let Some(method) = methods.iter().find(|method| method.is_abstract && !method.is_optional) {
        let message = format!("the abstract method `{}` is not implemented", method.signature.name);
        checker.error(span, message);
    }
    TypedValue::known(type_id, None)
}

/// Checks a call of a constructor, and gives the type of the instance.
pub(crate) fn construct(
    checker: &mut TypeChecker<'_>,
    target: &TypeSyntax,
    arguments: &[CallArgument],
    span: SourceSpan,
) -> TypeId {
    let type_id = checker.constructed_type(target);
    if let ValueType::Stack(element, _) = *checker.types.kind(type_id) {
        construct_type(checker, element, arguments, span);
        return checker.types.resolve(type_id);
    }
    construct_type(checker, type_id, arguments, span)
}

fn construct_type(
    checker: &mut TypeChecker<'_>,
    type_id: TypeId,
    arguments: &[CallArgument],
    span: SourceSpan,
) -> TypeId {
    if type_id == UNKNOWN {
        for argument in arguments.iter().filter_map(|a| a.value.as_ref()) {
            checker.expression(argument);
        }
        return UNKNOWN;
    }
    let ValueType::Nominal(nominal, type_arguments) = checker.types.kind(type_id).clone() else {
        return no_constructor(checker, type_id, span);
    };
    let nominal = overload(checker, nominal, arguments);
    if checker.plane_names.add_instance(nominal) {
        checker.error(span, "the tables of two instances have the same names for the control plane");
    }
    let type_id = checker.types.add(ValueType::Nominal(nominal, type_arguments.clone()));
    let declared = checker.types.nominal(nominal).clone();
    let Some(parameters) = constructor(checker, &declared, arguments, span) else {
        return no_constructor(checker, type_id, span);
    };
    let map = substitution(&declared.type_parameters, &type_arguments);
    let parameters = checker.substituted(&parameters, &map);
    let is_right = calls::check_arguments(checker, CalleeKind::Constructor, &parameters, arguments, span);
    let is_open = match declared.kind {
        NominalKind::Block(_) => true,
        NominalKind::Package(_) => parameters.iter().all(|parameter| parameter.default_type.is_none()),
        _ => false,
    };
    for argument in &type_arguments {
        let known = checker.types.shallow(*argument);
        if is_right && !is_open && matches!(checker.types.kind(known), ValueType::Inferred(_)) {
            checker.error(span, format!("the type arguments of `{}` cannot be inferred", declared.name));
        }
    }
    let resolved = checker.types.resolve(type_id);
    checker.check_valid(resolved, span);
    resolved
}

/// Chooses among parsers, controls and packages of the same name, by the parameters of their
/// constructors.
fn overload(checker: &TypeChecker<'_>, first: NominalId, arguments: &[CallArgument]) -> NominalId {
    let others = checker.overloads.get(&first).into_iter().flatten();
    let fits = |nominal: &&NominalId| {
        let parameters = match &checker.types.nominal(**nominal).kind {
            NominalKind::Block(block) => block.constructor.as_deref(),
            NominalKind::Package(parameters) => Some(&parameters[..]),
            _ => None,
        };
        parameters.is_some_and(|parameters| matched(parameters, arguments).is_some())
    };
    std::iter::once(&first).chain(others).find(fits).copied().unwrap_or(first)
}

fn no_constructor(checker: &mut TypeChecker<'_>, type_id: TypeId, span: SourceSpan) -> TypeId {
    let name = checker.types.name(type_id);
    checker.error(span, format!("`{name}` has no constructor for these arguments"));
    UNKNOWN
}

/// Parameters of the constructor that fits.
fn constructor(
    checker: &mut TypeChecker<'_>,
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
                    checker.error(span, "several constructors take these arguments");
                    Some(one.signature.parameters.clone())
                }
            }
        }
        _ => None,
    }
}

pub(crate) fn instance(
    checker: &mut TypeChecker<'_>,
    name: &SourceName,
    instance: &InstanceSyntax,
    span: SourceSpan,
) {
    let type_id = construct(checker, &instance.object_type, &instance.arguments, span);
    check_place(checker, type_id, name.span);
    initializer(checker, type_id, instance, name);
    let value = NamedValue { type_id, is_writable: false, is_known: true, constant: None };
    checker.declare_value(name, value);
}

/// Checks that an instance of a type may be made in this part.
fn check_place(checker: &mut TypeChecker<'_>, type_id: TypeId, span: SourceSpan) {
    let ValueType::Nominal(nominal, _) = checker.types.kind(type_id).clone() else { return };
    let is_allowed = match &checker.types.nominal(nominal).kind {
        NominalKind::Package(_) => checker.part == CheckedPart::TopLevel,
        NominalKind::Block(block) if block.is_parser => {
            matches!(checker.part, CheckedPart::Parser | CheckedPart::ParserState)
        }
        NominalKind::Block(_) => {
            matches!(checker.part, CheckedPart::Control | CheckedPart::ControlApply)
        }
        _ => !matches!(checker.part, CheckedPart::Action | CheckedPart::Function | CheckedPart::Method),
    };
    if !is_allowed {
        let name = checker.types.name(type_id);
        checker.error(span, format!("no instance of `{name}` can be made here"));
    }
}

/// Checks that the abstract methods of an instance are implemented.
fn initializer(checker: &mut TypeChecker<'_>, type_id: TypeId, instance: &InstanceSyntax, name: &SourceName) {
    let methods = methods_of(checker, type_id);
    let Some(methods) = methods else {
        if instance.initializer.is_some() && type_id != UNKNOWN {
            checker.error(name.span, "only instances of externs can have methods");
        }
        return;
    };
    let mut missing: Vec<(FunctionType, bool)> =
        methods.iter().filter(|m| m.is_abstract).map(|m| (m.signature.clone(), m.is_optional)).collect();
    checker.scoped(|c| {
        for part in instance.initializer.as_deref().unwrap_or_default() {
            object_part(c, part, type_id, &mut missing);
        }
    });
    for (method, _) in missing.into_iter().filter(|(_, is_optional)| !is_optional) {
        let message = format!("`{}` does not implement the abstract method `{}`", name.text, method.name);
        checker.sink.push(SourceDiagnostic::error(name.span, message));
    }
}

/// Methods of an extern with type arguments in place.
fn methods_of(checker: &mut TypeChecker<'_>, type_id: TypeId) -> Option<Vec<MethodType>> {
    let ValueType::Nominal(nominal, arguments) = checker.types.kind(type_id).clone() else { return None };
    let declared = checker.types.nominal(nominal).clone();
    let NominalKind::Extern(mut methods) = declared.kind else { return None };
    let map = substitution(&declared.type_parameters, &arguments);
    for method in &mut methods {
        method.signature.parameters = checker.substituted(&method.signature.parameters, &map);
        method.signature.result = checker.types.substitute(method.signature.result, &map);
        if method.is_abstract && !arguments.is_empty() {
            let parameters = method.signature.parameters.clone();
            calls::check_run_time_parameters(checker, &parameters, method.signature.span);
        }
    }
    Some(methods)
}

fn object_part(
    checker: &mut TypeChecker<'_>,
    part: &DeclarationTree,
    owner: TypeId,
    missing: &mut Vec<(FunctionType, bool)>,
) {
    let DeclarationKind::Function(function) = &part.kind else {
        checker.declaration(part);
        return;
    };
    let Some(signature) =
        declarations::signature(checker, &part.name, &function.signature, CheckedPart::Method)
    else {
        return;
    };
    let same = missing.iter().position(|(m, _)| m.name == signature.name && is_implementation(&signature, m));
    match same {
        Some(index) => {
            let (expected, _) = missing.remove(index);
            check_implementation(checker, &signature, &expected);
        }
        None => {
            let names: Vec<String> = missing.iter().map(|(m, _)| m.name.to_string()).collect();
            members::no_member(checker, owner, &part.name, &names);
        }
    }
    let outer = checker.this_type.replace(owner);
    checker.within(CheckedPart::Method, |c| declarations::function_body(c, &signature, function));
    checker.this_type = outer;
}

fn check_implementation(checker: &mut TypeChecker<'_>, given: &FunctionType, expected: &FunctionType) {
    let pairs = given.parameters.iter().zip(&expected.parameters);
    let is_same = checker.unify(given.result, expected.result)
        && given.type_parameters.len() == expected.type_parameters.len()
        && pairs.into_iter().all(|(a, b)| a.direction == b.direction && checker.unify(a.type_id, b.type_id));
    if !is_same {
        let message = format!("`{}` differs from the abstract method that it implements", given.name);
        checker.error(given.span, message);
    }
}

/// Type of an instance that is applied without a name: `TYPE.apply(...)`.
pub(crate) fn direct_instance(checker: &mut TypeChecker<'_>, target: &TypeSyntax) -> TypeId {
    let type_id = construct(checker, target, &[], target.span);
    check_place(checker, type_id, target.span);
    type_id
}

/// Tells if a method has the parameters of an abstract one, optional ones left out or not.
fn is_implementation(given: &FunctionType, expected: &FunctionType) -> bool {
    given.parameters.len() <= expected.parameters.len()
        && expected.parameters.iter().skip(given.parameters.len()).all(|parameter| parameter.is_optional)
}

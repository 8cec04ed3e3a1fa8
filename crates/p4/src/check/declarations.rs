//! Declarations of values, types and functions.

use crate::ast::{AggregateSyntax, FunctionSignature, FunctionSyntax, ParameterDirection, ParameterSyntax};
use crate::check::scope::{ActionEntity, FunctionEntity, NamedEntity, NamedValue};
use crate::check::type_names::container;
use crate::check::types::{
    FunctionType, INTEGER, NominalId, NominalKind, NominalType, ParameterType, TEXT, TypeId, UNKNOWN, VOID,
    ValueType,
};
use crate::check::{CheckedBody, CheckedPart, TypeChecker};
use crate::expression::{ExpressionTree, TypeSyntax};
use crate::source::SourceName;

pub(super) fn constant(
    checker: &mut TypeChecker<'_>,
    name: &SourceName,
    declared: &TypeSyntax,
    value: &ExpressionTree,
) {
    let type_id = checker.type_of(declared);
    let value_of = checker.expression_as(value, type_id);
    if !value_of.is_known {
        checker.error(value.span, "the value of a constant has to be known when the program is compiled");
    }
    if !checker.is_data(type_id) || type_id == VOID {
        checker.error(declared.span, "a constant cannot have this type");
    }
    let constant = value_of.constant;
    let value = NamedValue { type_id, is_writable: false, is_known: true, constant };
    checker.declare_value(name, value);
}

/// Hides outer declarations of a name while its own is read.
pub(crate) fn reserve(checker: &mut TypeChecker<'_>, name: &SourceName) {
    if checker.scopes.find_innermost(&name.text).is_none() {
        checker.scopes.insert(name.text.clone(), NamedEntity::Undeclared, name.span);
    }
}

pub(super) fn declare_variable(
    checker: &mut TypeChecker<'_>,
    name: &SourceName,
    declared: &TypeSyntax,
    value: Option<&ExpressionTree>,
) {
    let type_id = checker.type_of(declared);
    if !checker.is_runtime_data(type_id) {
        let text = checker.types.name(type_id);
        checker.error(declared.span, format!("a variable cannot have the type `{text}`"));
    }
    if let Some(value) = value {
        checker.expression_as(value, type_id);
    }
    checker.declare_value(name, variable(type_id));
}

/// Gives type parameters a meaning in the innermost scope.
pub(crate) fn declare_type_parameters(checker: &mut TypeChecker<'_>, names: &[SourceName]) -> Vec<TypeId> {
    let declare = |name: &SourceName| {
        let type_id = checker.types.parameter(name.text.clone());
        checker.declare(name, NamedEntity::Alias(type_id));
        type_id
    };
    names.iter().map(declare).collect()
}

/// Finds the meaning of the signature of a function.
pub(crate) fn signature(
    checker: &mut TypeChecker<'_>,
    name: &SourceName,
    signature: &FunctionSignature,
    part: CheckedPart,
) -> Option<FunctionType> {
    checker.scoped(|c| {
        let type_parameters = declare_type_parameters(c, &signature.type_parameters);
        let result = signature.result.as_ref().map_or(VOID, |result| c.type_of(result));
        let parameters = parameters(c, &signature.parameters, part);
        let is_object = !c.is_data(result) && part != CheckedPart::TopLevel;
        let is_static = result == INTEGER || result == TEXT;
        if is_object || is_static && matches!(part, CheckedPart::Function | CheckedPart::Method) {
            c.error(name.span, "a function cannot give this type");
        }
        let (name, span) = (name.text.clone(), name.span);
        Some(FunctionType { name, span, type_parameters, parameters, result })
    })
}

/// Finds the meaning of parameters, without declaring them.
pub(crate) fn parameters(
    checker: &mut TypeChecker<'_>,
    list: &[ParameterSyntax],
    part: CheckedPart,
) -> Vec<ParameterType> {
    checker.distinct("the parameter", list.iter().map(|parameter| &parameter.name));
    list.iter().map(|parameter| check_parameter(checker, parameter, part)).collect()
}

fn check_parameter(
    checker: &mut TypeChecker<'_>,
    syntax: &ParameterSyntax,
    part: CheckedPart,
) -> ParameterType {
    checker.annotations(&syntax.annotations);
    let outer = std::mem::replace(&mut checker.allows_anything, true);
    let type_id = checker.type_of(&syntax.declared_type);
    checker.allows_anything = outer;
    let is_annotated = syntax.annotations.iter().any(|a| &*a.name.text == "optional");
    if is_annotated && matches!(part, CheckedPart::Function | CheckedPart::Action) {
        checker.error(syntax.name.span, "only parameters of externs, packages and types can be optional");
    }
    let span = syntax.declared_type.span;
    let mut default_type = None;
    if let Some(default) = &syntax.default {
        default_type = Some(default_value(checker, syntax, default, type_id));
        if is_annotated {
            checker.error(syntax.name.span, "an optional parameter cannot have a default value");
        }
    }
    let has_direction = syntax.direction != ParameterDirection::Directionless;
    if (has_direction && !checker.is_runtime_data(type_id)) || type_id == VOID {
        let name = checker.types.name(type_id);
        checker.error(span, format!("a parameter cannot have the type `{name}` here"));
    }
    let is_block = checker.block(type_id).is_some_and(|(block, _)| block.constructor.is_some());
    if is_block || part == CheckedPart::Control && checker.block(type_id).is_some() {
        checker
            .error(span, "a parser or control cannot be passed here; only constructors take types of them");
    }
    if part == CheckedPart::Action && !has_direction && !checker.is_runtime_data(type_id) {
        checker
            .error(span, "the parameters of actions have values when packets run, which this type has not");
    }
    ParameterType {
        name: syntax.name.text.clone(),
        direction: syntax.direction,
        type_id,
        default_type,
        is_optional: is_annotated || syntax.default.is_some(),
    }
}

fn default_value(
    checker: &mut TypeChecker<'_>,
    syntax: &ParameterSyntax,
    default: &ExpressionTree,
    type_id: TypeId,
) -> TypeId {
    if matches!(syntax.direction, ParameterDirection::Out | ParameterDirection::InOut) {
        checker.error(default.span, "a parameter that is written cannot have a default value");
    }
    let expected = opened(checker, type_id);
    let value = checker.expression_as(default, expected);
    if !value.is_known {
        checker.error(default.span, "a default value has to be known when the program is compiled");
    }
    checker.facts.type_id(default.id).unwrap_or(UNKNOWN)
}

/// Replaces the type parameters of a type by types that are inferred.
fn opened(checker: &mut TypeChecker<'_>, type_id: TypeId) -> TypeId {
    let ValueType::Nominal(_, arguments) = checker.types.kind(type_id).clone() else { return type_id };
    let parameters =
        arguments.into_iter().filter(|a| matches!(checker.types.kind(*a), ValueType::Parameter(..)));
    let parameters: Vec<TypeId> = parameters.collect();
    let inferred: Vec<TypeId> = parameters.iter().map(|_| checker.types.infer()).collect();
    checker.types.substitute(type_id, &crate::check::coercion::substitution(&parameters, &inferred))
}

/// Declares parameters as variables of the innermost scope.
pub(crate) fn declare_parameters(
    checker: &mut TypeChecker<'_>,
    syntax: &[ParameterSyntax],
    types: &[ParameterType],
    part: CheckedPart,
) {
    for (syntax, parameter) in syntax.iter().zip(types) {
        let direction = parameter.direction;
        let is_written = matches!(direction, ParameterDirection::Out | ParameterDirection::InOut);
        let is_known = direction == ParameterDirection::Directionless && part != CheckedPart::Action;
        let value =
            NamedValue { type_id: parameter.type_id, is_writable: is_written, is_known, constant: None };
        checker.declare_value(&syntax.name, value);
    }
}

pub(super) fn function(checker: &mut TypeChecker<'_>, name: &SourceName, function: &FunctionSyntax) {
    let Some(signature) = signature(checker, name, &function.signature, CheckedPart::Function) else {
        return;
    };
    checker.within(CheckedPart::Function, |c| function_body(c, &signature, function));
    declare_function(checker, name, signature, false);
}

pub(crate) fn function_body(
    checker: &mut TypeChecker<'_>,
    signature: &FunctionType,
    function: &FunctionSyntax,
) {
    let outer = std::mem::replace(&mut checker.body, CheckedBody::new(signature.result));
    checker.scoped(|c| {
        for (name, type_id) in function.signature.type_parameters.iter().zip(&signature.type_parameters) {
            c.scopes.insert(name.text.clone(), NamedEntity::Alias(*type_id), name.span);
        }
        declare_parameters(c, &function.signature.parameters, &signature.parameters, c.part);
        let always_returns = c.scoped(|c| c.block_statements(&function.body));
        if !always_returns && signature.result != VOID && signature.result != UNKNOWN {
            c.error(signature.span, format!("`{}` does not return a value on all paths", signature.name));
        }
    });
    checker.body = outer;
}

pub(super) fn declare_function(
    checker: &mut TypeChecker<'_>,
    name: &SourceName,
    signature: FunctionType,
    is_extern: bool,
) {
    let index = checker.functions.len();
    let existing = match checker.scopes.find_innermost(&name.text) {
        Some((NamedEntity::Functions(list), _)) => Some(list.clone()),
        _ => None,
    };
    let Some(mut list) = existing else {
        checker.functions.push(FunctionEntity { signature, is_extern });
        return checker.declare(name, NamedEntity::Functions(vec![index]));
    };
    let same = list.iter().position(|f| is_same_call(&checker.functions[*f].signature, &signature));
    match same.filter(|_| !is_extern) {
        // The function is the code of the extern.
        Some(at) if is_definition(checker, list[at], &signature) => _ = list.remove(at),
        Some(_) => checker.error(
            name.span,
            format!("a function `{}` with these parameters is declared already", name.text),
        ),
        None => {}
    }
    checker.functions.push(FunctionEntity { signature, is_extern });
    list.push(index);
    checker.scopes.insert(name.text.clone(), NamedEntity::Functions(list), name.span);
}

/// Tells if a function has the whole signature of an extern that was declared.
fn is_definition(checker: &TypeChecker<'_>, declared: usize, signature: &FunctionType) -> bool {
    let FunctionEntity { signature: declared, is_extern } = &checker.functions[declared];
    let same = |a: TypeId, b: TypeId| checker.types.shallow(a) == checker.types.shallow(b);
    let mut parameters = declared.parameters.iter().zip(&signature.parameters);
    *is_extern
        && same(declared.result, signature.result)
        && parameters.all(|(a, b)| a.direction == b.direction && same(a.type_id, b.type_id))
}

pub(super) fn action(
    checker: &mut TypeChecker<'_>,
    name: &SourceName,
    syntax: &[ParameterSyntax],
    body: &crate::ast::BlockSyntax,
) {
    let parameters = parameters(checker, syntax, CheckedPart::Action);
    let has_direction = |p: &ParameterType| p.direction != ParameterDirection::Directionless;
    let first = parameters.iter().position(|p| !has_direction(p)).unwrap_or(parameters.len());
    if parameters[first..].iter().any(has_direction) {
        checker.error(name.span, "parameters without a direction have to be behind those with one");
    }
    let outer = std::mem::replace(&mut checker.body.result, VOID);
    checker.within(CheckedPart::Action, |c| {
        c.scoped(|c| {
            declare_parameters(c, syntax, &parameters, CheckedPart::Action);
            c.scoped(|c| c.block_statements(body));
        });
    });
    checker.body.result = outer;
    checker.actions.push(ActionEntity { parameters });
    checker.declare(name, NamedEntity::Action(checker.actions.len() - 1));
}

pub(super) fn aggregate(checker: &mut TypeChecker<'_>, name: &SourceName, syntax: &AggregateSyntax) {
    checker.distinct("the field", syntax.fields.iter().map(|field| &field.name));
    let (type_parameters, fields) = checker.scoped(|c| {
        let type_parameters = declare_type_parameters(c, &syntax.type_parameters);
        let fields: Vec<_> = syntax
            .fields
            .iter()
            .map(|field| {
                c.annotations(&field.annotations);
                let type_id = c.type_of(&field.declared_type);
                if !c.may_contain(container(syntax.kind), type_id) {
                    let text = c.types.name(type_id);
                    let message = format!("a field of type `{text}` is not allowed in `{}`", name.text);
                    c.error(field.declared_type.span, message);
                }
                (field.name.text.clone(), type_id)
            })
            .collect();
        (type_parameters, fields)
    });
    let kind = NominalKind::Aggregate(syntax.kind, fields);
    declare_nominal(checker, name, type_parameters, kind);
}

pub(crate) fn declare_nominal(
    checker: &mut TypeChecker<'_>,
    name: &SourceName,
    type_parameters: Vec<TypeId>,
    kind: NominalKind,
) -> NominalId {
    let (text, span) = (name.text.clone(), name.span);
    let nominal = checker.types.add_nominal(NominalType { name: text, span, type_parameters, kind });
    let existing = match checker.scopes.find_innermost(&name.text) {
        Some((NamedEntity::Nominal(first), _)) => Some(*first),
        _ => None,
    };
    match existing.filter(|first| is_overloaded(checker, *first, nominal)) {
        Some(first) => checker.overloads.entry(first).or_default().push(nominal),
        None => checker.declare(name, NamedEntity::Nominal(nominal)),
    }
    nominal
}

/// Tells if two types may have one name, since their constructors have different parameters.
fn is_overloaded(checker: &TypeChecker<'_>, first: NominalId, second: NominalId) -> bool {
    let names = |nominal: NominalId| -> Option<Vec<&crate::source::Symbol>> {
        let parameters = match &checker.types.nominal(nominal).kind {
            NominalKind::Block(block) => block.constructor.as_ref()?,
            NominalKind::Package(parameters) => parameters,
            _ => return None,
        };
        Some(parameters.iter().map(|parameter| &parameter.name).collect())
    };
    match (names(first), names(second)) {
        (Some(first), Some(second)) => first != second,
        _ => false,
    }
}

pub(super) fn new_type(checker: &mut TypeChecker<'_>, name: &SourceName, target: &TypeSyntax) {
    let inner = checker.type_of(target);
    let is_allowed = match checker.types.kind(inner) {
        ValueType::Bits(_) | ValueType::SignedBits(_) | ValueType::Bool | ValueType::Unknown => true,
        ValueType::VariableBits(_) | ValueType::ErrorCode => true,
        ValueType::Nominal(nominal, _) => {
            matches!(
                checker.types.nominal(*nominal).kind,
                NominalKind::NewType(_) | NominalKind::Enumeration(..)
            )
        }
        _ => false,
    };
    if !is_allowed {
        let text = checker.types.name(inner);
        checker.error(target.span, format!("`type` cannot make a new type of `{text}`"));
    }
    declare_nominal(checker, name, Vec::new(), NominalKind::NewType(inner));
}

pub(super) fn member_names(checker: &mut TypeChecker<'_>, members: &[SourceName], is_error: bool) {
    for member in members {
        let set = if is_error { &mut checker.errors } else { &mut checker.match_kinds };
        if !set.insert(member.text.clone()) {
            checker.error(member.span, format!("`{}` is declared twice", member.text));
        }
    }
}

/// A variable that can be written.
pub(crate) fn variable(type_id: TypeId) -> NamedValue {
    NamedValue { type_id, is_writable: true, is_known: false, constant: None }
}

/// Tells if two functions cannot be told apart by a call.
fn is_same_call(left: &FunctionType, right: &FunctionType) -> bool {
    left.parameters.len() == right.parameters.len()
        && left.parameters.iter().zip(&right.parameters).all(|(a, b)| a.name == b.name)
}

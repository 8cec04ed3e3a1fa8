//! Declarations of the outermost level, and those that may be anywhere.

use crate::ast::{
    AggregateKind, AggregateSyntax, AnnotationTree, DeclarationKind, DeclarationTree, FieldSyntax,
    FunctionSignature, FunctionSyntax, InstanceSyntax, ParameterDirection, ParameterSyntax,
};
use crate::diagnostic::SourceDiagnostic;
use crate::expression::{QualifiedName, TypeSyntax, TypeSyntaxKind};
use crate::parse::{Parsed, SyntaxParser, expressions, types};
use crate::source::{SourceName, SourceSpan};

pub(super) fn constant(
    parser: &mut SyntaxParser<'_>,
    annotations: Vec<AnnotationTree>,
) -> Parsed<DeclarationTree> {
    let start = parser.span();
    parser.advance();
    let declared_type = types::type_syntax(parser)?;
    let name = parser.name()?;
    parser.expect("=")?;
    let value = parser.expression()?;
    parser.expect(";")?;
    Ok(parser.declaration(annotations, name, DeclarationKind::Constant(declared_type, value), start))
}

pub(super) fn function_or_instance(
    parser: &mut SyntaxParser<'_>,
    annotations: Vec<AnnotationTree>,
) -> Parsed<DeclarationTree> {
    let start = parser.span();
    let result = types::type_syntax(parser)?;
    let declaration = match parser.is("(") {
        true => instance(parser, annotations, result, start)?,
        false => {
            let name = parser.name()?;
            if !parser.is("(") && !parser.is("<") {
                let message = "a variable is not allowed outside of parsers and controls";
                return parser.fail(SourceDiagnostic::error(name.span, message));
            }
            parser.declare(&name, false);
            function_behind(parser, annotations, result, name, start)?
        }
    };
    parser.declare(&declaration.name, false);
    Ok(declaration)
}

/// Reads what follows the name of a function.
fn function_behind(
    parser: &mut SyntaxParser<'_>,
    annotations: Vec<AnnotationTree>,
    result: TypeSyntax,
    name: SourceName,
    start: SourceSpan,
) -> Parsed<DeclarationTree> {
    let function = parser.scoped(|p| {
        let signature = signature(p, Some(result))?;
        Ok(FunctionSyntax { signature, body: p.block(Vec::new())? })
    })?;
    Ok(parser.declaration(annotations, name, DeclarationKind::Function(function), start))
}

/// Reads type parameters and parameters.
pub(super) fn signature(
    parser: &mut SyntaxParser<'_>,
    result: Option<TypeSyntax>,
) -> Parsed<FunctionSignature> {
    let type_parameters = types::type_parameters(parser)?;
    let parameters = parameters(parser)?;
    Ok(FunctionSignature { result, type_parameters, parameters })
}

/// Reads the arguments, the name and the initializer of an instance, whose type was read.
pub(super) fn instance(
    parser: &mut SyntaxParser<'_>,
    annotations: Vec<AnnotationTree>,
    object_type: TypeSyntax,
    start: SourceSpan,
) -> Parsed<DeclarationTree> {
    let arguments = expressions::arguments(parser)?;
    let name = parser.name()?;
    let object_type = types::dimensions(parser, object_type)?;
    let initializer = if parser.take("=") { Some(parser.scoped(|p| p.braced(object_part))?) } else { None };
    parser.expect(";")?;
    let instance = InstanceSyntax { object_type, arguments, initializer };
    Ok(parser.declaration(annotations, name, DeclarationKind::Instance(instance), start))
}

/// Reads a function or an instance of an initializer.
fn object_part(parser: &mut SyntaxParser<'_>) -> Parsed<DeclarationTree> {
    let annotations = parser.annotations()?;
    function_or_instance(parser, annotations)
}

pub(super) fn variable_or_instance(
    parser: &mut SyntaxParser<'_>,
    annotations: Vec<AnnotationTree>,
) -> Parsed<DeclarationTree> {
    let start = parser.span();
    let declared_type = types::type_syntax(parser)?;
    if parser.is("(") {
        return instance(parser, annotations, declared_type, start);
    }
    let variable = variable_behind(parser, annotations, declared_type, start)?;
    parser.expect(";")?;
    Ok(variable)
}

/// Reads what follows the type of a variable, without the semicolon.
pub(super) fn variable_behind(
    parser: &mut SyntaxParser<'_>,
    annotations: Vec<AnnotationTree>,
    declared_type: TypeSyntax,
    start: SourceSpan,
) -> Parsed<DeclarationTree> {
    let name = parser.name()?;
    let declared_type = types::dimensions(parser, declared_type)?;
    let value = if parser.take("=") { Some(parser.expression()?) } else { None };
    Ok(parser.declaration(annotations, name, DeclarationKind::Variable(declared_type, value), start))
}

pub(super) fn parameters(parser: &mut SyntaxParser<'_>) -> Parsed<Vec<ParameterSyntax>> {
    parser.expect("(")?;
    parser.list(")", parameter)
}

fn parameter(parser: &mut SyntaxParser<'_>) -> Parsed<ParameterSyntax> {
    let annotations = parser.annotations()?;
    let direction = match parser.token().word_or_mark() {
        "in" => ParameterDirection::In,
        "out" => ParameterDirection::Out,
        "inout" => ParameterDirection::InOut,
        _ => ParameterDirection::Directionless,
    };
    if direction != ParameterDirection::Directionless {
        parser.advance();
    }
    let declared_type = types::type_syntax(parser)?;
    let name = parser.name()?;
    parser.declare(&name, false);
    let default = if parser.take("=") { Some(parser.expression()?) } else { None };
    Ok(ParameterSyntax { annotations, direction, declared_type, name, default })
}

pub(super) fn action(
    parser: &mut SyntaxParser<'_>,
    annotations: Vec<AnnotationTree>,
) -> Parsed<DeclarationTree> {
    let start = parser.span();
    parser.advance();
    let name = parser.name()?;
    parser.declare(&name, false);
    let (parameters, body) = parser.scoped(|p| Ok((parameters(p)?, p.block(Vec::new())?)))?;
    Ok(parser.declaration(annotations, name, DeclarationKind::Action(parameters, body), start))
}

pub(super) fn package(
    parser: &mut SyntaxParser<'_>,
    annotations: Vec<AnnotationTree>,
) -> Parsed<DeclarationTree> {
    let start = parser.span();
    parser.advance();
    let name = parser.name()?;
    parser.declare(&name, true);
    let (types, parameters) = parser.scoped(|p| Ok((types::type_parameters(p)?, parameters(p)?)))?;
    parser.expect(";")?;
    Ok(parser.declaration(annotations, name, DeclarationKind::Package(types, parameters), start))
}

pub(super) fn aggregate(
    parser: &mut SyntaxParser<'_>,
    annotations: Vec<AnnotationTree>,
    kind: AggregateKind,
) -> Parsed<DeclarationTree> {
    let start = parser.span();
    parser.advance();
    let name = parser.name()?;
    parser.declare(&name, true);
    let (type_parameters, fields) = parser.scoped(|p| Ok((types::type_parameters(p)?, p.braced(field)?)))?;
    let aggregate = AggregateSyntax { kind, type_parameters, fields };
    Ok(parser.declaration(annotations, name, DeclarationKind::Aggregate(aggregate), start))
}

fn field(parser: &mut SyntaxParser<'_>) -> Parsed<FieldSyntax> {
    let annotations = parser.annotations()?;
    let declared_type = types::type_syntax(parser)?;
    let name = parser.name()?;
    let declared_type = types::dimensions(parser, declared_type)?;
    parser.expect(";")?;
    Ok(FieldSyntax { annotations, declared_type, name })
}

pub(super) fn enumeration(
    parser: &mut SyntaxParser<'_>,
    annotations: Vec<AnnotationTree>,
) -> Parsed<DeclarationTree> {
    let start = parser.span();
    parser.advance();
    let underlying = if parser.is_name_at(0) && parser.is_ahead(1, "{") {
        None
    } else {
        Some(types::type_syntax(parser)?)
    };
    let name = parser.name()?;
    parser.declare(&name, true);
    parser.expect("{")?;
    let is_serializable = underlying.is_some();
    let members = parser.list("}", |p| {
        p.annotations()?;
        let member = p.name()?;
        if is_serializable && !p.is("=") {
            return p.unexpected("`=` and the value of the member");
        }
        let value = if is_serializable && p.take("=") { Some(p.expression()?) } else { None };
        Ok((member, value))
    })?;
    if members.is_empty() {
        parser.sink.error(name.span, "an enumeration needs a member");
    }
    Ok(parser.declaration(annotations, name, DeclarationKind::Enumeration(underlying, members), start))
}

pub(super) fn member_names(
    parser: &mut SyntaxParser<'_>,
    annotations: Vec<AnnotationTree>,
) -> Parsed<DeclarationTree> {
    let start = parser.span();
    let is_error = parser.is("error");
    let name = SourceName { text: parser.token().word_or_mark().into(), span: start };
    parser.advance();
    parser.advance();
    let members = parser.list("}", |p| {
        p.annotations()?;
        p.name()
    })?;
    let kind = if is_error { DeclarationKind::Errors(members) } else { DeclarationKind::MatchKinds(members) };
    if let DeclarationKind::MatchKinds(members) = &kind {
        for member in members {
            parser.declare(member, false);
        }
    }
    Ok(parser.declaration(annotations, name, kind, start))
}

/// Reads the declaration of a type that gets a second name.
fn nested_type(parser: &mut SyntaxParser<'_>) -> Parsed<TypeSyntax> {
    let declaration = match parser.token().word_or_mark() {
        "struct" => aggregate(parser, Vec::new(), AggregateKind::Struct)?,
        "header" => aggregate(parser, Vec::new(), AggregateKind::Header)?,
        "enum" => enumeration(parser, Vec::new())?,
        _ => aggregate(parser, Vec::new(), AggregateKind::HeaderUnion)?,
    };
    let name = declaration.name.clone();
    let span = name.span;
    parser.nested_declarations.push(declaration);
    Ok(TypeSyntax { kind: TypeSyntaxKind::Named(QualifiedName { is_global: false, name }), span })
}

pub(super) fn type_alias(
    parser: &mut SyntaxParser<'_>,
    annotations: Vec<AnnotationTree>,
) -> Parsed<DeclarationTree> {
    let start = parser.span();
    let is_new = parser.is("type");
    parser.advance();
    let target = match parser.token().word_or_mark() {
        "struct" | "header" | "header_union" | "enum" if !is_new => nested_type(parser)?,
        _ => types::type_syntax(parser)?,
    };
    if matches!(target.kind, TypeSyntaxKind::Void) {
        parser.sink.error(target.span, "`void` has no values, and cannot get a name");
    }
    let name = parser.name()?;
    parser.declare(&name, true);
    parser.expect(";")?;
    let kind = if is_new { DeclarationKind::NewType(target) } else { DeclarationKind::TypeAlias(target) };
    Ok(parser.declaration(annotations, name, kind, start))
}

//! Declarations of the outermost level, and those that may be anywhere.

use crate::ast::{
    AggregateKind, AggregateSyntax, AnnotationTree, DeclarationKind, DeclarationTree, FieldSyntax,
    FunctionSignature, FunctionSyntax, InstanceSyntax, ParameterDirection, ParameterSyntax,
};
use crate::diagnostic::SourceDiagnostic;
use crate::expression::{QualifiedName, TypeSyntax, TypeSyntaxKind};
use crate::parse::{Parsed, SyntaxFailure, SyntaxParser};
use crate::source::{SourceName, SourceSpan};

impl SyntaxParser<'_> {
    pub(super) fn program(&mut self) -> Vec<DeclarationTree> {
        let mut declarations = Vec::new();
        while !self.is_end() {
            if self.take(";") {
                continue;
            }
            self.scopes.truncate(1);
            match self.top_declaration() {
                Ok(declaration) => {
                    declarations.append(&mut self.nested_declarations);
                    declarations.push(declaration);
                }
                Err(SyntaxFailure) => {
                    self.recover();
                    self.take("}");
                }
            }
        }
        declarations
    }

    fn top_declaration(&mut self) -> Parsed<DeclarationTree> {
        let annotations = self.annotations()?;
        let word = self.token().word_or_mark().to_owned();
        match word.as_str() {
            "const" => {
                let constant = self.constant(annotations)?;
                self.declare(&constant.name, false);
                Ok(constant)
            }
            "extern" => self.external(annotations),
            "action" => self.action(annotations),
            "parser" => self.parser(annotations),
            "control" => self.control(annotations),
            "package" => self.package(annotations),
            "struct" => self.aggregate(annotations, AggregateKind::Struct),
            "header" => self.aggregate(annotations, AggregateKind::Header),
            "header_union" => self.aggregate(annotations, AggregateKind::HeaderUnion),
            "enum" => self.enumeration(annotations),
            "error" if self.is_ahead(1, "{") => self.member_names(annotations),
            "match_kind" if self.is_ahead(1, "{") => self.member_names(annotations),
            "typedef" => self.type_alias(annotations),
            "type" if !self.is_ahead(1, "(") => self.type_alias(annotations),
            _ => self.function_or_instance(annotations),
        }
    }

    /// Makes a declaration whose parts were read.
    pub(super) fn declaration(
        &self,
        annotations: Vec<AnnotationTree>,
        name: SourceName,
        kind: DeclarationKind,
        start: SourceSpan,
    ) -> DeclarationTree {
        DeclarationTree { annotations, name, kind, span: start.to(self.last_span()) }
    }

    pub(super) fn constant(&mut self, annotations: Vec<AnnotationTree>) -> Parsed<DeclarationTree> {
        let start = self.span();
        self.advance();
        let declared_type = self.type_syntax()?;
        let name = self.name()?;
        self.expect("=")?;
        let value = self.expression()?;
        self.expect(";")?;
        Ok(self.declaration(annotations, name, DeclarationKind::Constant(declared_type, value), start))
    }

    fn function_or_instance(&mut self, annotations: Vec<AnnotationTree>) -> Parsed<DeclarationTree> {
        let start = self.span();
        let result = self.type_syntax()?;
        let declaration = match self.is("(") {
            true => self.instance(annotations, result, start)?,
            false => {
                let name = self.name()?;
                if !self.is("(") && !self.is("<") {
                    let message = "a variable is not allowed outside of parsers and controls";
                    return self.fail(SourceDiagnostic::error(name.span, message));
                }
                self.declare(&name, false);
                self.function_behind(annotations, result, name, start)?
            }
        };
        self.declare(&declaration.name, false);
        Ok(declaration)
    }

    /// Reads what follows the name of a function.
    fn function_behind(
        &mut self,
        annotations: Vec<AnnotationTree>,
        result: TypeSyntax,
        name: SourceName,
        start: SourceSpan,
    ) -> Parsed<DeclarationTree> {
        let function = self.scoped(|p| {
            let signature = p.signature(Some(result))?;
            Ok(FunctionSyntax { signature, body: p.block(Vec::new())? })
        })?;
        Ok(self.declaration(annotations, name, DeclarationKind::Function(function), start))
    }

    /// Reads type parameters and parameters.
    pub(super) fn signature(&mut self, result: Option<TypeSyntax>) -> Parsed<FunctionSignature> {
        let type_parameters = self.type_parameters()?;
        let parameters = self.parameters()?;
        Ok(FunctionSignature { result, type_parameters, parameters })
    }

    /// Reads the arguments, the name and the initializer of an instance, whose type was read.
    pub(super) fn instance(
        &mut self,
        annotations: Vec<AnnotationTree>,
        object_type: TypeSyntax,
        start: SourceSpan,
    ) -> Parsed<DeclarationTree> {
        let arguments = self.arguments()?;
        let name = self.name()?;
        let object_type = self.dimensions(object_type)?;
        let initializer =
            if self.take("=") { Some(self.scoped(|p| p.braced(Self::object_part))?) } else { None };
        self.expect(";")?;
        let instance = InstanceSyntax { object_type, arguments, initializer };
        Ok(self.declaration(annotations, name, DeclarationKind::Instance(instance), start))
    }

    /// Reads a function or an instance of an initializer.
    fn object_part(&mut self) -> Parsed<DeclarationTree> {
        let annotations = self.annotations()?;
        self.function_or_instance(annotations)
    }

    pub(super) fn variable_or_instance(
        &mut self,
        annotations: Vec<AnnotationTree>,
    ) -> Parsed<DeclarationTree> {
        let start = self.span();
        let declared_type = self.type_syntax()?;
        if self.is("(") {
            return self.instance(annotations, declared_type, start);
        }
        let variable = self.variable_behind(annotations, declared_type, start)?;
        self.expect(";")?;
        Ok(variable)
    }

    /// Reads what follows the type of a variable, without the semicolon.
    pub(super) fn variable_behind(
        &mut self,
        annotations: Vec<AnnotationTree>,
        declared_type: TypeSyntax,
        start: SourceSpan,
    ) -> Parsed<DeclarationTree> {
        let name = self.name()?;
        let declared_type = self.dimensions(declared_type)?;
        let value = if self.take("=") { Some(self.expression()?) } else { None };
        Ok(self.declaration(annotations, name, DeclarationKind::Variable(declared_type, value), start))
    }

    pub(super) fn parameters(&mut self) -> Parsed<Vec<ParameterSyntax>> {
        self.expect("(")?;
        self.list(")", Self::parameter)
    }

    fn parameter(&mut self) -> Parsed<ParameterSyntax> {
        let annotations = self.annotations()?;
        let direction = match self.token().word_or_mark() {
            "in" => ParameterDirection::In,
            "out" => ParameterDirection::Out,
            "inout" => ParameterDirection::InOut,
            _ => ParameterDirection::Directionless,
        };
        if direction != ParameterDirection::Directionless {
            self.advance();
        }
        let declared_type = self.type_syntax()?;
        let name = self.name()?;
        self.declare(&name, false);
        let default = if self.take("=") { Some(self.expression()?) } else { None };
        Ok(ParameterSyntax { annotations, direction, declared_type, name, default })
    }

    pub(super) fn action(&mut self, annotations: Vec<AnnotationTree>) -> Parsed<DeclarationTree> {
        let start = self.span();
        self.advance();
        let name = self.name()?;
        self.declare(&name, false);
        let (parameters, body) = self.scoped(|p| Ok((p.parameters()?, p.block(Vec::new())?)))?;
        Ok(self.declaration(annotations, name, DeclarationKind::Action(parameters, body), start))
    }

    fn package(&mut self, annotations: Vec<AnnotationTree>) -> Parsed<DeclarationTree> {
        let start = self.span();
        self.advance();
        let name = self.name()?;
        self.declare(&name, true);
        let (types, parameters) = self.scoped(|p| Ok((p.type_parameters()?, p.parameters()?)))?;
        self.expect(";")?;
        Ok(self.declaration(annotations, name, DeclarationKind::Package(types, parameters), start))
    }

    fn aggregate(
        &mut self,
        annotations: Vec<AnnotationTree>,
        kind: AggregateKind,
    ) -> Parsed<DeclarationTree> {
        let start = self.span();
        self.advance();
        let name = self.name()?;
        self.declare(&name, true);
        let (type_parameters, fields) =
            self.scoped(|p| Ok((p.type_parameters()?, p.braced(Self::field)?)))?;
        let aggregate = AggregateSyntax { kind, type_parameters, fields };
        Ok(self.declaration(annotations, name, DeclarationKind::Aggregate(aggregate), start))
    }

    fn field(&mut self) -> Parsed<FieldSyntax> {
        let annotations = self.annotations()?;
        let declared_type = self.type_syntax()?;
        let name = self.name()?;
        let declared_type = self.dimensions(declared_type)?;
        self.expect(";")?;
        Ok(FieldSyntax { annotations, declared_type, name })
    }

    fn enumeration(&mut self, annotations: Vec<AnnotationTree>) -> Parsed<DeclarationTree> {
        let start = self.span();
        self.advance();
        let underlying =
            if self.is_name_at(0) && self.is_ahead(1, "{") { None } else { Some(self.type_syntax()?) };
        let name = self.name()?;
        self.declare(&name, true);
        self.expect("{")?;
        let is_serializable = underlying.is_some();
        let members = self.list("}", |p| {
            p.annotations()?;
            let member = p.name()?;
            if is_serializable && !p.is("=") {
                return p.unexpected("`=` and the value of the member");
            }
            let value = if is_serializable && p.take("=") { Some(p.expression()?) } else { None };
            Ok((member, value))
        })?;
        if members.is_empty() {
            self.sink.error(name.span, "an enumeration needs a member");
        }
        Ok(self.declaration(annotations, name, DeclarationKind::Enumeration(underlying, members), start))
    }

    fn member_names(&mut self, annotations: Vec<AnnotationTree>) -> Parsed<DeclarationTree> {
        let start = self.span();
        let is_error = self.is("error");
        let name = SourceName { text: self.token().word_or_mark().into(), span: start };
        self.advance();
        self.advance();
        let members = self.list("}", |p| {
            p.annotations()?;
            p.name()
        })?;
        let kind =
            if is_error { DeclarationKind::Errors(members) } else { DeclarationKind::MatchKinds(members) };
        if let DeclarationKind::MatchKinds(members) = &kind {
            for member in members {
                self.declare(member, false);
            }
        }
        Ok(self.declaration(annotations, name, kind, start))
    }

    /// Reads the declaration of a type that gets a second name.
    fn nested_type(&mut self) -> Parsed<TypeSyntax> {
        let declaration = match self.token().word_or_mark() {
            "struct" => self.aggregate(Vec::new(), AggregateKind::Struct)?,
            "header" => self.aggregate(Vec::new(), AggregateKind::Header)?,
            "enum" => self.enumeration(Vec::new())?,
            _ => self.aggregate(Vec::new(), AggregateKind::HeaderUnion)?,
        };
        let name = declaration.name.clone();
        let span = name.span;
        self.nested_declarations.push(declaration);
        Ok(TypeSyntax { kind: TypeSyntaxKind::Named(QualifiedName { is_global: false, name }), span })
    }

    fn type_alias(&mut self, annotations: Vec<AnnotationTree>) -> Parsed<DeclarationTree> {
        let start = self.span();
        let is_new = self.is("type");
        self.advance();
        let target = match self.token().word_or_mark() {
            "struct" | "header" | "header_union" | "enum" if !is_new => self.nested_type()?,
            _ => self.type_syntax()?,
        };
        if matches!(target.kind, TypeSyntaxKind::Void) {
            self.sink.error(target.span, "`void` has no values, and cannot get a name");
        }
        let name = self.name()?;
        self.declare(&name, true);
        self.expect(";")?;
        let kind = if is_new { DeclarationKind::NewType(target) } else { DeclarationKind::TypeAlias(target) };
        Ok(self.declaration(annotations, name, kind, start))
    }
}

//! Types of declarations and expressions as types at run time, with type arguments in place.

use std::rc::Rc;

use millstream_p4::ast::{AggregateKind, DeclarationKind, DeclarationTree, ParameterSyntax};
use millstream_p4::expression::{CallArgument, ExpressionTree, QualifiedName, TypeSyntax, TypeSyntaxKind};
use millstream_p4::{NominalId, NominalKind, SourceName, SourceSpan, Symbol, TypeId, ValueType};

use crate::arguments::matched;
use crate::error::{LowerError, Lowered, refuse};
use crate::lowerer::Lowerer;
use crate::scope::Scope;
use crate::types::{LARGEST_OBJECT, RecordType, RuntimeType};

impl<'p> Lowerer<'p> {
    /// Type of an expression.
    pub(crate) fn type_of(&mut self, expression: &ExpressionTree) -> Lowered<RuntimeType> {
        match self.source.program.facts.type_id(expression.id) {
            Some(id) => self.runtime_type(id, expression.span),
            None => refuse(expression.span, "the type of this expression is not known"),
        }
    }

    /// Converts a type of the checker.
    pub(crate) fn runtime_type(&mut self, id: TypeId, span: SourceSpan) -> Lowered<RuntimeType> {
        let mut is_generic = false;
        self.convert_type(id, span, &mut is_generic)
    }

    fn convert_type(&mut self, id: TypeId, span: SourceSpan, is_generic: &mut bool) -> Lowered<RuntimeType> {
        if let Some(known) = self.known_types.get(&id) {
            return Ok(known.clone());
        }
        let mut depends = false;
        let converted = self.deeper(span, |l| l.convert_kind(id, span, &mut depends))?;
        if converted.size() > LARGEST_OBJECT {
            return refuse(span, format!("objects of more than {LARGEST_OBJECT} bytes are not supported"));
        }
        match depends {
            true => *is_generic = true,
            false => {
                self.known_types.insert(id, converted.clone());
            }
        }
        Ok(converted)
    }

    fn convert_kind(&mut self, id: TypeId, span: SourceSpan, is_generic: &mut bool) -> Lowered<RuntimeType> {
        let types = &self.source.program.types;
        Ok(match types.kind(types.shallow(id)).clone() {
            ValueType::Void => RuntimeType::Void,
            ValueType::Bool => RuntimeType::Bool,
            ValueType::Text => RuntimeType::Text,
            ValueType::Integer => RuntimeType::Integer,
            ValueType::ErrorCode => RuntimeType::Enumeration(None),
            ValueType::Bits(width) => RuntimeType::Bits(width, false),
            ValueType::SignedBits(width) => RuntimeType::Bits(width, true),
            ValueType::VariableBits(width) => RuntimeType::Varbit(width),
            ValueType::Stack(element, count) => {
                let element = self.convert_type(element, span, is_generic)?;
                RuntimeType::Stack(Rc::new(element), count)
            }
            ValueType::Tuple(list) | ValueType::ListExpression(list) => {
                let list = self.convert_all(&list, span, is_generic)?;
                RuntimeType::tuple(list)
            }
            ValueType::RecordExpression(fields, _) => {
                let mut list = Vec::new();
                for (name, id) in fields {
                    list.push((name, self.convert_type(id, span, is_generic)?));
                }
                RuntimeType::Struct(Rc::new(RecordType::new(None, 0, list)))
            }
            ValueType::Set(element) => self.convert_type(element, span, is_generic)?,
            ValueType::Nominal(nominal, arguments) => {
                let arguments = self.convert_all(&arguments, span, is_generic)?;
                self.nominal_type(nominal, arguments, span)?
            }
            ValueType::Parameter(_, name) => {
                *is_generic = true;
                let message = format!("the type argument of `{name}` is not known");
                self.scope.find_type(&name).ok_or(LowerError { span, message })?
            }
            ValueType::Inferred(_) => {
                *is_generic = true;
                RuntimeType::Other
            }
            _ => RuntimeType::Other,
        })
    }

    fn convert_all(
        &mut self,
        list: &[TypeId],
        span: SourceSpan,
        is_generic: &mut bool,
    ) -> Lowered<Vec<RuntimeType>> {
        list.iter().map(|id| self.convert_type(*id, span, is_generic)).collect()
    }

    /// A declared type with type arguments.
    pub(crate) fn nominal_type(
        &mut self,
        id: NominalId,
        arguments: Vec<RuntimeType>,
        span: SourceSpan,
    ) -> Lowered<RuntimeType> {
        let program = self.source.program;
        let declared = program.types.nominal(id);
        match &declared.kind {
            NominalKind::Aggregate(kind, fields) => {
                let scope = Scope::new(None);
                for (parameter, argument) in declared.type_parameters.iter().zip(&arguments) {
                    if let ValueType::Parameter(_, name) = program.types.kind(*parameter) {
                        scope.bind_type(name.clone(), argument.clone());
                    }
                }
                let fields = self.in_scope(scope, |l| {
                    fields
                        .iter()
                        .map(|(name, id)| Ok((name.clone(), l.runtime_type(*id, span)?)))
                        .collect::<Lowered<Vec<_>>>()
                })?;
                let start = u32::from(*kind == AggregateKind::Header);
                let record = Rc::new(RecordType::new(Some(id), start, fields));
                Ok(match kind {
                    AggregateKind::Struct => RuntimeType::Struct(record),
                    AggregateKind::Header => RuntimeType::Header(record),
                    AggregateKind::HeaderUnion => RuntimeType::Union(record),
                })
            }
            NominalKind::Enumeration(Some(underlying), _) | NominalKind::NewType(underlying) => {
                self.deeper(span, |l| l.runtime_type(*underlying, span))
            }
            NominalKind::Enumeration(None, _) => Ok(RuntimeType::Enumeration(Some(id))),
            _ => Ok(RuntimeType::Object(id, arguments)),
        }
    }

    /// Type that is written in the program.
    pub(crate) fn type_of_syntax(&mut self, syntax: &'p TypeSyntax) -> Lowered<RuntimeType> {
        Ok(match &syntax.kind {
            TypeSyntaxKind::Bool => RuntimeType::Bool,
            TypeSyntaxKind::ErrorCode => RuntimeType::Enumeration(None),
            TypeSyntaxKind::Text => RuntimeType::Text,
            TypeSyntaxKind::Void => RuntimeType::Void,
            TypeSyntaxKind::Integer => RuntimeType::Integer,
            TypeSyntaxKind::Bits(None) => RuntimeType::Bits(1, false),
            TypeSyntaxKind::Bits(Some(width)) => RuntimeType::Bits(self.size_of(width)?, false),
            TypeSyntaxKind::SignedBits(width) => RuntimeType::Bits(self.size_of(width)?, true),
            TypeSyntaxKind::VariableBits(width) => RuntimeType::Varbit(self.size_of(width)?),
            TypeSyntaxKind::Named(name) => self.named_type(name, Vec::new())?,
            TypeSyntaxKind::Specialized(name, arguments) => {
                let arguments =
                    arguments.iter().map(|a| self.type_of_syntax(a)).collect::<Lowered<Vec<_>>>()?;
                self.named_type(name, arguments)?
            }
            TypeSyntaxKind::Stack(element, size) => {
                let element = self.type_of_syntax(element)?;
                let stack = RuntimeType::Stack(Rc::new(element), self.size_of(size)?);
                if stack.size() > LARGEST_OBJECT {
                    let message = format!("objects of more than {LARGEST_OBJECT} bytes are not supported");
                    return refuse(syntax.span, message);
                }
                stack
            }
            TypeSyntaxKind::Tuple(elements) => {
                let elements =
                    elements.iter().map(|e| self.type_of_syntax(e)).collect::<Lowered<Vec<_>>>()?;
                RuntimeType::tuple(elements)
            }
            TypeSyntaxKind::MatchKind | TypeSyntaxKind::List(_) | TypeSyntaxKind::Anything => {
                RuntimeType::Other
            }
        })
    }

    fn size_of(&mut self, size: &'p ExpressionTree) -> Lowered<u32> {
        let value = self.known_number(size)?;
        u32::try_from(value)
            .map_err(|_| LowerError { span: size.span, message: "this size is out of range".into() })
    }

    fn named_type(&mut self, name: &'p QualifiedName, arguments: Vec<RuntimeType>) -> Lowered<RuntimeType> {
        let text = &name.name.text;
        if let Some(found) = self.scope.find_type(text).filter(|_| !name.is_global) {
            return Ok(found);
        }
        let Some(declaration) = self.global(text) else {
            return refuse(name.name.span, format!("the type `{text}` is not known"));
        };
        match &declaration.kind {
            DeclarationKind::TypeAlias(syntax) | DeclarationKind::NewType(syntax) => {
                let root = self.root.clone();
                self.deeper(name.name.span, |l| l.in_scope(root, |l| l.type_of_syntax(syntax)))
            }
            _ => {
                let id = self.nominal_of(declaration)?;
                self.nominal_type(id, arguments, name.name.span)
            }
        }
    }

    /// The checker's number of a declared type.
    pub(crate) fn nominal_of(&self, declaration: &DeclarationTree) -> Lowered<NominalId> {
        let is_same = |(_, nominal): &(usize, &millstream_p4::NominalType)| {
            nominal.name == declaration.name.text && nominal.span == declaration.name.span
        };
        let found = self.source.program.types.nominals.iter().enumerate().find(is_same);
        let message = format!("`{}` is no type", declaration.name.text);
        found
            .map(|(index, _)| NominalId(index as u32))
            .ok_or(LowerError { span: declaration.name.span, message })
    }

    /// Index of a member of an enumeration without values.
    pub(crate) fn member_index(&self, id: NominalId, member: &Symbol) -> Option<u64> {
        match &self.source.program.types.nominal(id).kind {
            NominalKind::Enumeration(_, members) => {
                members.iter().position(|(name, _)| name == member).map(|index| index as u64)
            }
            _ => None,
        }
    }

    /// Finds type arguments from the types of arguments.
    pub(crate) fn infer_types(
        &mut self,
        names: &[SourceName],
        parameters: &'p [ParameterSyntax],
        arguments: &'p [CallArgument],
        scope: &Scope<'p>,
    ) -> Lowered<()> {
        if names.is_empty() {
            return Ok(());
        }
        let places = matched(parameters, arguments).unwrap_or_default();
        let mut later = Vec::new();
        for (parameter, argument) in parameters.iter().zip(places) {
            let Some(value) = argument.and_then(|argument| argument.value.as_ref()) else { continue };
            match self.type_of(value)? {
                RuntimeType::Integer => later.push(parameter),
                actual => infer(&parameter.declared_type, &actual, names, scope),
            }
        }
        for parameter in later {
            infer(&parameter.declared_type, &RuntimeType::Bits(32, false), names, scope);
        }
        Ok(())
    }
}

/// Binds type parameters by the shape of a type.
pub(crate) fn infer<'p>(syntax: &TypeSyntax, actual: &RuntimeType, names: &[SourceName], scope: &Scope<'p>) {
    match (&syntax.kind, actual) {
        (TypeSyntaxKind::Named(name), _) if names.iter().any(|n| n.text == name.name.text) => {
            let is_known = !matches!(actual, RuntimeType::Integer | RuntimeType::Other);
            if is_known && scope.find_type(&name.name.text).is_none() {
                scope.bind_type(name.name.text.clone(), actual.clone());
            }
        }
        (TypeSyntaxKind::Stack(element, _), RuntimeType::Stack(inner, _)) => {
            infer(element, inner, names, scope);
        }
        (TypeSyntaxKind::Tuple(elements), RuntimeType::Struct(record)) => {
            for (element, field) in elements.iter().zip(&record.fields) {
                infer(element, &field.field_type, names, scope);
            }
        }
        _ => {}
    }
}

//! Externs, packages, controls and enumerations.

use crate::ast::{
    ControlSyntax, ExternSyntax, MethodSyntax, ParameterDirection, ParameterSyntax, SourceName,
};
use crate::check::constants::ConstantValue;
use crate::check::declarations::variable;
use crate::check::scope::{NamedEntity, NamedValue};
use crate::check::types::{
    BlockType, MethodType, NominalId, NominalKind, NominalType, TypeId, UNKNOWN, ValueType,
};
use crate::check::{CheckedPart, TypeChecker};
use crate::diagnostic::SourceDiagnostic;
use crate::expression::{ExpressionTree, TypeSyntax};

impl TypeChecker<'_> {
    pub(crate) fn extern_type(&mut self, name: &SourceName, syntax: &ExternSyntax) {
        let kind = NominalKind::Extern(Vec::new());
        let nominal = self.types.add_nominal(NominalType {
            name: name.text.clone(),
            span: name.span,
            type_parameters: Vec::new(),
            kind,
        });
        self.scoped(|c| {
            let type_parameters = c.declare_type_parameters(&syntax.type_parameters);
            c.types.nominals[nominal.0 as usize].type_parameters = type_parameters;
            for method in &syntax.methods {
                c.method(nominal, name, method);
            }
        });
        self.declare(name, NamedEntity::Nominal(nominal));
    }

    fn method(&mut self, nominal: NominalId, owner: &SourceName, syntax: &MethodSyntax) {
        let is_constructor = syntax.signature.result.is_none();
        if is_constructor && syntax.name.text != owner.text
            || !is_constructor && syntax.name.text == owner.text
        {
            let message = format!("only the constructor is named `{}`, and it has no result", owner.text);
            self.error(syntax.name.span, message);
            return;
        }
        if is_constructor && syntax.is_abstract {
            self.error(syntax.name.span, "a constructor cannot be abstract");
        }
        let Some(signature) = self.signature(&syntax.name, &syntax.signature, CheckedPart::Method) else {
            return;
        };
        if is_constructor {
            self.check_directionless(&syntax.signature.parameters);
            let takes_block = |p: &crate::check::types::ParameterType| self.is_block(p.type_id);
            if signature.parameters.iter().any(takes_block) {
                self.error(syntax.name.span, "the constructor of an extern cannot take parsers or controls");
            }
        }
        let is_optional = syntax.annotations.iter().any(|annotation| &*annotation.name.text == "optional");
        let method = MethodType { is_abstract: syntax.is_abstract, is_optional, is_constructor, signature };
        let NominalKind::Extern(methods) = &mut self.types.nominals[nominal.0 as usize].kind else { return };
        let is_same = |m: &MethodType| {
            m.signature.name == method.signature.name
                && m.signature.parameters.len() == method.signature.parameters.len()
                && m.signature
                    .parameters
                    .iter()
                    .zip(&method.signature.parameters)
                    .all(|(a, b)| a.name == b.name)
        };
        let is_known = methods.iter().any(is_same);
        methods.push(method);
        if is_known {
            let message =
                format!("a method `{}` with these parameters is declared already", syntax.name.text);
            self.error(syntax.name.span, message);
        }
    }

    fn is_block(&self, type_id: TypeId) -> bool {
        match self.types.kind(type_id) {
            ValueType::Nominal(nominal, _) => {
                matches!(self.types.nominal(*nominal).kind, NominalKind::Block(_))
            }
            _ => false,
        }
    }

    /// Checks that parameters of a constructor or package have no direction.
    pub(crate) fn check_directionless(&mut self, parameters: &[ParameterSyntax]) {
        for parameter in parameters.iter().filter(|p| p.direction != ParameterDirection::Directionless) {
            self.error(parameter.name.span, "the parameters of constructors have no direction");
        }
    }

    pub(crate) fn package(
        &mut self,
        name: &SourceName,
        types: &[SourceName],
        parameters: &[ParameterSyntax],
    ) {
        let (type_parameters, list) = self.scoped(|c| {
            let type_parameters = c.declare_type_parameters(types);
            c.check_directionless(parameters);
            (type_parameters, c.parameters(parameters, CheckedPart::TopLevel))
        });
        self.declare_nominal(name, type_parameters, NominalKind::Package(list));
    }

    /// Declares type parameters, parameters and parameters of the constructor; gives their types.
    pub(crate) fn block_parameters(
        &mut self,
        types: &[SourceName],
        parameters: &[ParameterSyntax],
        constructor: Option<&[ParameterSyntax]>,
        is_parser: bool,
    ) -> (Vec<TypeId>, BlockType) {
        let type_parameters = self.declare_type_parameters(types);
        let list = self.parameters(parameters, CheckedPart::Control);
        let constructor_list = constructor.map(|constructor| {
            self.check_directionless(constructor);
            self.parameters(constructor, CheckedPart::TopLevel)
        });
        self.declare_parameters(parameters, &list, CheckedPart::Control);
        if let (Some(constructor), Some(types)) = (constructor, &constructor_list) {
            self.declare_parameters(constructor, types, CheckedPart::Control);
        }
        (type_parameters, BlockType { is_parser, parameters: list, constructor: constructor_list })
    }

    pub(crate) fn control(&mut self, name: &SourceName, syntax: &ControlSyntax) {
        let constructor = syntax.body.as_ref().map(|body| &body.constructor[..]);
        let (type_parameters, block) = self.scoped(|c| {
            let block = c.block_parameters(&syntax.type_parameters, &syntax.parameters, constructor, false);
            if let Some(body) = &syntax.body {
                c.within(CheckedPart::Control, |c| {
                    c.scoped(|c| {
                        for local in &body.locals {
                            c.declaration(local);
                        }
                        c.within(CheckedPart::ControlApply, |c| {
                            c.scoped(|c| c.block_statements(&body.apply))
                        });
                    });
                });
            }
            block
        });
        let nominal = self.declare_nominal(name, type_parameters, NominalKind::Block(block));
        if std::mem::take(&mut self.has_absolute_table) {
            self.absolute_blocks.insert(nominal, false);
        }
    }

    pub(crate) fn enumeration(
        &mut self,
        name: &SourceName,
        underlying: Option<&TypeSyntax>,
        members: &[(SourceName, Option<ExpressionTree>)],
    ) {
        self.distinct("the member", members.iter().map(|(member, _)| member));
        let underlying_type = underlying.map(|syntax| {
            let type_id = self.type_of(syntax);
            if !self.is_number(type_id) && !self.wraps_number(type_id) {
                self.error(
                    syntax.span,
                    "the values of an enumeration have to be of a type `bit<W>` or `int<W>`",
                );
            }
            type_id
        });
        let mut values: Vec<(crate::source::Symbol, Option<ConstantValue>)> = Vec::new();
        self.scopes.push();
        for (member, value) in members {
            let constant = value.as_ref().and_then(|value| self.member_value(value, underlying_type));
            if constant.is_some() && values.iter().any(|(_, other)| *other == constant) {
                let message = format!("`{}` has the value of another member", member.text);
                self.sink.push(SourceDiagnostic::warning(member.span, message));
            }
            if let Some(type_id) = underlying_type {
                let value = NamedValue {
                    is_writable: false,
                    is_known: true,
                    constant: constant.clone(),
                    ..variable(type_id)
                };
                self.scopes.insert(member.text.clone(), NamedEntity::Value(value), member.span);
            }
            values.push((member.text.clone(), constant));
        }
        self.scopes.pop();
        self.declare_nominal(name, Vec::new(), NominalKind::Enumeration(underlying_type, values));
    }

    fn wraps_number(&self, type_id: TypeId) -> bool {
        let ValueType::Nominal(nominal, _) = self.types.kind(type_id) else { return false };
        match self.types.nominal(*nominal).kind {
            NominalKind::NewType(inner) => self.is_number(inner),
            _ => false,
        }
    }

    fn member_value(&mut self, value: &ExpressionTree, underlying: Option<TypeId>) -> Option<ConstantValue> {
        let checked = self.expression_as(value, underlying?);
        let written = self.facts.constant(value.id).and_then(|constant| constant.number()).cloned();
        if written.is_some_and(|number| {
            !crate::check::constants::fits(&number, self.format(underlying.unwrap_or(UNKNOWN)))
        }) {
            self.error(value.span, "this number does not fit the type of the enumeration");
        }
        if !checked.is_known {
            self.error(value.span, "the value of a member has to be known when the program is compiled");
        }
        checked.constant
    }
}

//! Expressions of all kinds, and the values of annotations (P4_16 1.2.5, sections 8 and 20).

use crate::ast::{AnnotationBody, AnnotationTree};
use rustc_hash::FxHashMap;

use crate::check::constants::{ConstantValue, fits, wrapped};
use crate::check::scope::NamedEntity;
use crate::check::types::{
    ACTION, BOOL, DEFAULT_VALUE, INTEGER, INVALID_HEADER, MATCH_KIND, TEXT, TypeId, UNKNOWN, ValueType,
};
use crate::check::{TypeChecker, TypedValue};
use crate::diagnostic::SourceDiagnostic;
use crate::expression::{ExpressionKind, ExpressionTree, NumberLiteral, QualifiedName, UnaryOperator};
use crate::lex::{SourceToken, TokenKind};
use crate::source::{SourceName, SourceSpan};

impl TypeChecker<'_> {
    /// Checks an expression and keeps its type and value.
    pub(crate) fn expression(&mut self, expression: &ExpressionTree) -> TypedValue {
        let value = self.expression_kind(expression);
        self.record(expression, &value);
        value
    }

    /// Checks an expression whose value is used as one of a type.
    pub(crate) fn expression_as(&mut self, expression: &ExpressionTree, expected: TypeId) -> TypedValue {
        let value = self.expression(expression);
        if !self.expect_type(&value, expected, expression.span) {
            return TypedValue { type_id: expected, ..TypedValue::unknown() };
        }
        let constant = value.constant.as_ref().and_then(|constant| self.cast_constant(constant, expected));
        if value.type_id == INTEGER {
            self.warn_if_cut(value.constant.as_ref(), expected, expression.span);
        }
        TypedValue { type_id: expected, constant, ..value }
    }

    /// Warns about a number that does not fit the type that it is used as.
    fn warn_if_cut(&mut self, constant: Option<&ConstantValue>, expected: TypeId, span: SourceSpan) {
        let format = self.format(expected);
        let is_cut = constant.and_then(|c| c.number()).is_some_and(|number| !fits(number, format));
        if is_cut {
            let name = self.types.name(expected);
            self.sink.push(SourceDiagnostic::warning(
                span,
                format!("this number does not fit `{name}`, and is cut"),
            ));
        }
    }

    fn expression_kind(&mut self, expression: &ExpressionTree) -> TypedValue {
        let span = expression.span;
        match &expression.kind {
            ExpressionKind::Number(literal) => self.number(literal, span),
            ExpressionKind::Boolean(value) => TypedValue::known(BOOL, Some(ConstantValue::Boolean(*value))),
            ExpressionKind::Text(text) => TypedValue::known(TEXT, Some(ConstantValue::Text(text.clone()))),
            ExpressionKind::Name(name) => self.name_value(name),
            ExpressionKind::This => self.this_value(span),
            ExpressionKind::Default => TypedValue::known(DEFAULT_VALUE, None),
            ExpressionKind::Invalid => TypedValue::known(INVALID_HEADER, None),
            ExpressionKind::Anything | ExpressionKind::KeysetTuple(_) => {
                self.error(span, "a set of values is only allowed in `select` and in entries of tables");
                TypedValue::unknown()
            }
            ExpressionKind::Unary(operator, operand) => self.unary(*operator, operand, span),
            ExpressionKind::Binary(operator, left, right) => self.binary(*operator, left, right, span),
            ExpressionKind::Ternary(parts) => self.ternary(parts, span),
            ExpressionKind::Cast(target, value) => self.cast(target, value),
            ExpressionKind::Member(base, member) => self.member(base, member),
            ExpressionKind::TypeMember(target, member) => self.type_member(target, member),
            ExpressionKind::Index(base, index) => self.index(base, index),
            ExpressionKind::Slice(parts) => self.slice(parts, span),
            ExpressionKind::WidthSlice(parts) => self.width_slice(parts, span),
            ExpressionKind::List(elements) => self.list_value(elements),
            ExpressionKind::Record(fields, has_rest) => self.record_value(fields, *has_rest),
            ExpressionKind::Call(function, types, arguments) => self.call(function, types, arguments, span),
            ExpressionKind::Construct(target, arguments) => self.construct_value(target, arguments, span),
        }
    }

    fn number(&mut self, literal: &NumberLiteral, span: SourceSpan) -> TypedValue {
        let type_id = match literal.width {
            None => INTEGER,
            Some((0, true)) => {
                self.error(span, "a signed number needs at least one bit");
                UNKNOWN
            }
            Some((width, true)) => self.types.add(ValueType::SignedBits(width)),
            Some((width, false)) => self.types.add(ValueType::Bits(width)),
        };
        if !fits(&literal.value, literal.width) {
            let message = "this number does not fit its width, and is cut";
            self.sink.push(SourceDiagnostic::warning(span, message));
        }
        let value = wrapped(literal.value.clone(), literal.width);
        TypedValue::known(type_id, Some(ConstantValue::Number(value)))
    }

    fn this_value(&mut self, span: SourceSpan) -> TypedValue {
        match self.this_type {
            Some(type_id) => TypedValue::known(type_id, None),
            None => {
                self.error(span, "`this` is only allowed in methods that implement abstract ones");
                TypedValue::unknown()
            }
        }
    }

    pub(crate) fn name_value(&mut self, name: &QualifiedName) -> TypedValue {
        let text = &name.name.text;
        match self.scopes.find(text, name.is_global).cloned() {
            Some(NamedEntity::Value(value)) => TypedValue {
                type_id: value.type_id,
                is_writable: value.is_writable,
                is_known: value.is_known,
                constant: value.constant,
            },
            Some(NamedEntity::Action(_)) => TypedValue::known(ACTION, None),
            Some(NamedEntity::Undeclared) => {
                self.error(name.name.span, format!("`{text}` is used in its own declaration"));
                TypedValue::unknown()
            }
            Some(NamedEntity::Functions(_)) => {
                self.error(
                    name.name.span,
                    format!("`{text}` is a function, and has no value without a call"),
                );
                TypedValue::unknown()
            }
            Some(NamedEntity::Nominal(_) | NamedEntity::Alias(_)) => {
                self.error(name.name.span, format!("`{text}` is a type, and no value"));
                TypedValue::unknown()
            }
            None if self.match_kinds.contains(text) => TypedValue::known(MATCH_KIND, None),
            None => {
                self.undeclared("the name", &name.name);
                TypedValue::unknown()
            }
        }
    }

    fn unary(&mut self, operator: UnaryOperator, operand: &ExpressionTree, span: SourceSpan) -> TypedValue {
        let value = self.expression(operand);
        if value.type_id == UNKNOWN {
            return value;
        }
        let type_id = self.operand_type(value.type_id);
        let is_allowed = match operator {
            UnaryOperator::Not => type_id == BOOL,
            UnaryOperator::Complement => self.is_number(type_id),
            UnaryOperator::Minus | UnaryOperator::Plus => type_id == INTEGER || self.is_number(type_id),
        };
        if !is_allowed {
            let name = self.types.name(value.type_id);
            self.error(span, format!("this operator takes no value of type `{name}`"));
            return TypedValue::unknown();
        }
        let format = self.format(type_id);
        let constant = value.constant.as_ref().map(|constant| match (operator, constant) {
            (UnaryOperator::Not, ConstantValue::Boolean(b)) => ConstantValue::Boolean(!b),
            (UnaryOperator::Minus, ConstantValue::Number(n)) => ConstantValue::Number(wrapped(-n, format)),
            (UnaryOperator::Complement, ConstantValue::Number(n)) => {
                ConstantValue::Number(wrapped(!n.clone(), format))
            }
            (_, other) => other.clone(),
        });
        TypedValue { type_id, is_writable: false, is_known: value.is_known, constant }
    }

    fn ternary(&mut self, parts: &[ExpressionTree; 3], span: SourceSpan) -> TypedValue {
        let [condition, then, otherwise] = parts;
        let condition_value = self.expression(condition);
        self.expect_boolean(&condition_value, condition.span);
        let (left, right) = (self.expression(then), self.expression(otherwise));
        let type_id = if self.coerces(left.type_id, right.type_id) {
            right.type_id
        } else if self.coerces(right.type_id, left.type_id) {
            left.type_id
        } else {
            let (left, right) = (self.types.name(left.type_id), self.types.name(right.type_id));
            self.error(span, format!("the branches have different types: `{left}` and `{right}`"));
            return TypedValue::unknown();
        };
        let is_known = condition_value.is_known && left.is_known && right.is_known;
        let constant = match condition_value.constant {
            Some(ConstantValue::Boolean(true)) => left.constant,
            Some(ConstantValue::Boolean(false)) => right.constant,
            _ => None,
        };
        let constant = constant.and_then(|constant| self.cast_constant(&constant, type_id));
        TypedValue { type_id, is_writable: false, is_known, constant }
    }
}

impl TypeChecker<'_> {
    pub(crate) fn list_value(&mut self, elements: &[ExpressionTree]) -> TypedValue {
        let values: Vec<TypedValue> = elements.iter().map(|e| self.data_expression(e)).collect();
        let type_id = self.types.add(ValueType::ListExpression(values.iter().map(|v| v.type_id).collect()));
        let is_known = values.iter().all(|value| value.is_known);
        let constants: Option<Vec<ConstantValue>> = values.into_iter().map(|value| value.constant).collect();
        TypedValue { type_id, is_writable: false, is_known, constant: constants.map(ConstantValue::List) }
    }

    pub(crate) fn record_value(
        &mut self,
        fields: &[(SourceName, ExpressionTree)],
        has_rest: bool,
    ) -> TypedValue {
        self.distinct("the field", fields.iter().map(|(name, _)| name));
        let values: Vec<TypedValue> = fields.iter().map(|(_, value)| self.data_expression(value)).collect();
        let types = fields.iter().zip(&values).map(|((name, _), value)| (name.text.clone(), value.type_id));
        let type_id = self.types.add(ValueType::RecordExpression(types.collect(), has_rest));
        TypedValue {
            type_id,
            is_writable: false,
            is_known: values.iter().all(|v| v.is_known),
            constant: None,
        }
    }

    /// Checks an expression that has to have a value.
    fn data_expression(&mut self, expression: &ExpressionTree) -> TypedValue {
        let value = self.expression(expression);
        let kind = self.types.kind(self.types.shallow(value.type_id));
        if matches!(kind, ValueType::Void | ValueType::Set(_) | ValueType::Action | ValueType::Table(_)) {
            self.error(expression.span, "this has no value");
            return TypedValue::unknown();
        }
        value
    }
}

impl TypeChecker<'_> {
    pub(crate) fn annotations(&mut self, annotations: &[AnnotationTree]) {
        let mut structured: FxHashMap<&str, bool> = FxHashMap::default();
        for annotation in annotations {
            let is_structured = !matches!(annotation.body, AnnotationBody::Unstructured(_));
            let name = &annotation.name;
            let earlier = structured.insert(&name.text, is_structured);
            if earlier.is_some_and(|earlier| earlier || is_structured) {
                self.error(name.span, format!("the structured annotation `@{}` occurs twice", name.text));
            }
            self.annotation(annotation);
        }
    }

    fn annotation(&mut self, annotation: &AnnotationTree) {
        match &annotation.body {
            AnnotationBody::Unstructured(tokens) => self.defined_annotation(annotation, tokens),
            AnnotationBody::Expressions(list) => list.iter().for_each(|value| self.annotation_value(value)),
            AnnotationBody::Pairs(pairs) => {
                self.distinct("the key", pairs.iter().map(|(name, _)| name));
                pairs.iter().for_each(|(_, value)| self.annotation_value(value));
            }
        }
    }

    fn defined_annotation(&mut self, annotation: &AnnotationTree, tokens: &[SourceToken]) {
        let name = &annotation.name;
        let is_right = match &*name.text {
            "name" | "deprecated" => is_string(tokens),
            "match" => matches!(tokens, [one] if matches!(one.kind, TokenKind::Word(_))),
            "pkginfo" => !tokens.is_empty(),
            _ => true,
        };
        if !is_right {
            let expected = match &*name.text {
                "match" => "a match kind in parentheses",
                "pkginfo" => "keys and values in brackets",
                _ => "a string in parentheses",
            };
            self.error(name.span, format!("`@{}` takes {expected}", name.text));
        }
    }

    fn annotation_value(&mut self, expression: &ExpressionTree) {
        let value = self.expression(expression);
        if !matches!(value.type_id, BOOL | INTEGER | TEXT | UNKNOWN) && self.format(value.type_id).is_none() {
            self.error(expression.span, "values of annotations are numbers, booleans and strings");
        }
        if !value.is_known {
            self.error(
                expression.span,
                "the values of annotations have to be known when the program is compiled",
            );
        }
    }
}

/// Tells if tokens are strings with `++` between them.
fn is_string(tokens: &[SourceToken]) -> bool {
    let is_text = |(n, token): (usize, &SourceToken)| match n % 2 {
        0 => matches!(token.kind, TokenKind::Text(_)),
        _ => token.kind == TokenKind::Mark("++"),
    };
    tokens.len() % 2 == 1 && tokens.iter().enumerate().all(is_text)
}

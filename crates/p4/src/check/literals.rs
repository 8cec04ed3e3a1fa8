//! Lists and records.

use crate::ast::SourceName;
use crate::check::constants::ConstantValue;
use crate::check::types::ValueType;
use crate::check::{TypeChecker, TypedValue};
use crate::expression::ExpressionTree;

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

//! Members of values and of types.

use crate::ast::{AggregateKind, SourceName};
use crate::check::constants::ConstantValue;
use crate::check::types::{BOOL, ERROR_CODE, NominalKind, TypeId, UNKNOWN, ValueType};
use crate::check::{CheckedPart, TypeChecker, TypedValue};
use crate::diagnostic::SourceDiagnostic;
use crate::expression::{ExpressionTree, TypeSyntax, TypeSyntaxKind};

impl TypeChecker<'_> {
    pub(crate) fn member(&mut self, base: &ExpressionTree, member: &SourceName) -> TypedValue {
        let value = self.expression(base);
        let type_id = self.types.shallow(value.type_id);
        match self.types.kind(type_id).clone() {
            ValueType::Unknown => TypedValue::unknown(),
            ValueType::Stack(element, _) => self.stack_member(&value, element, member),
            ValueType::TableResult(table) => self.result_member(table, member),
            ValueType::RecordExpression(fields, _) => {
                match fields.iter().find(|(name, _)| *name == member.text) {
                    Some((_, field)) => TypedValue { type_id: *field, constant: None, ..value },
                    None => self.no_member(type_id, member, &[]),
                }
            }
            _ => self.field(&value, type_id, member),
        }
    }

    fn field(&mut self, value: &TypedValue, type_id: TypeId, member: &SourceName) -> TypedValue {
        let fields = self.fields(type_id).map(|(_, fields)| fields).unwrap_or_default();
        let Some(index) = fields.iter().position(|(name, _)| *name == member.text) else {
            let names: Vec<String> = fields.iter().map(|(name, _)| name.to_string()).collect();
            return self.no_member(type_id, member, &names);
        };
        let constant = match &value.constant {
            Some(ConstantValue::List(list)) => list.get(index).cloned(),
            _ => None,
        };
        let constant = constant.and_then(|constant| self.cast_constant(&constant, fields[index].1));
        TypedValue { type_id: fields[index].1, constant, ..value.clone() }
    }

    pub(crate) fn no_member(&mut self, type_id: TypeId, member: &SourceName, names: &[String]) -> TypedValue {
        if type_id != UNKNOWN {
            let name = self.types.name(type_id);
            let message = format!("`{name}` has no member `{}`", member.text);
            let names = names.iter().map(String::as_str);
            self.sink.push(SourceDiagnostic::error(member.span, message).nearest(&member.text, names));
        }
        TypedValue::unknown()
    }

    fn stack_member(&mut self, value: &TypedValue, element: TypeId, member: &SourceName) -> TypedValue {
        let index = self.types.add(ValueType::Bits(32));
        let is_header = self.fields(element).is_some_and(|(kind, _)| kind != AggregateKind::Struct);
        match &*member.text {
            "size" => TypedValue::known(index, self.stack_size(value.type_id)),
            "next" | "last" | "lastIndex" if !is_header => self.no_member(value.type_id, member, &[]),
            "next" | "last" | "lastIndex" => {
                if self.part != CheckedPart::ParserState {
                    let message = format!("`{}` is only allowed in parsers", member.text);
                    self.error(member.span, message);
                }
                match &*member.text {
                    "lastIndex" => TypedValue::computed(index),
                    _ => TypedValue { type_id: element, is_known: false, constant: None, ..value.clone() },
                }
            }
            _ => {
                let names = ["size", "next", "last", "lastIndex"].map(str::to_owned);
                self.no_member(value.type_id, member, &names)
            }
        }
    }

    fn stack_size(&self, type_id: TypeId) -> Option<ConstantValue> {
        match self.types.kind(self.types.shallow(type_id)) {
            ValueType::Stack(_, size) => Some(ConstantValue::Number((*size).into())),
            _ => None,
        }
    }

    fn result_member(&mut self, table: u32, member: &SourceName) -> TypedValue {
        match &*member.text {
            "hit" | "miss" => TypedValue::computed(BOOL),
            "action_run" => TypedValue::computed(self.types.add(ValueType::TableAction(table))),
            _ => {
                let names = ["hit", "miss", "action_run"].map(str::to_owned);
                let type_id = self.types.add(ValueType::TableResult(table));
                self.no_member(type_id, member, &names)
            }
        }
    }

    pub(crate) fn type_member(&mut self, target: &TypeSyntax, member: &SourceName) -> TypedValue {
        if matches!(target.kind, TypeSyntaxKind::ErrorCode) {
            return self.error_member(member);
        }
        let type_id = self.type_of(target);
        let ValueType::Nominal(nominal, _) = self.types.kind(type_id).clone() else {
            return self.no_member(type_id, member, &[]);
        };
        let NominalKind::Enumeration(_, members) = self.types.nominal(nominal).kind.clone() else {
            return self.no_member(type_id, member, &[]);
        };
        if members.iter().any(|(name, _)| *name == member.text) {
            return TypedValue::known(type_id, Some(ConstantValue::Member(nominal, member.text.clone())));
        }
        let names: Vec<String> = members.iter().map(|(name, _)| name.to_string()).collect();
        self.no_member(type_id, member, &names)
    }

    fn error_member(&mut self, member: &SourceName) -> TypedValue {
        if self.errors.contains(&member.text) {
            return TypedValue::known(ERROR_CODE, Some(ConstantValue::ErrorCode(member.text.clone())));
        }
        let names: Vec<String> = self.errors.iter().map(|name| name.to_string()).collect();
        self.no_member(ERROR_CODE, member, &names)
    }
}

//! `switch`, on the action that a table ran and on values. Source: P4_16 1.2.5, section 11.7.

use crate::check::constants::ConstantValue;
use crate::check::types::{TypeId, ValueType};
use crate::check::{CheckedPart, TypeChecker};
use crate::diagnostic::SourceDiagnostic;
use crate::expression::{ExpressionKind, ExpressionTree};
use crate::source::{SourceSpan, Symbol};
use crate::statement::SwitchCase;

impl TypeChecker<'_> {
    /// Checks a `switch`; tells if all its cases return or exit.
    pub(crate) fn switch(&mut self, value: &ExpressionTree, cases: &[SwitchCase], span: SourceSpan) -> bool {
        if self.part == CheckedPart::ParserState {
            self.error(span, "`switch` is not allowed in parsers");
        }
        let switched = self.expression(value);
        let table = match self.types.kind(self.types.shallow(switched.type_id)) {
            ValueType::TableAction(table) => Some(*table),
            _ => None,
        };
        if table.is_none() && !self.is_matched(switched.type_id) {
            let name = self.types.name(switched.type_id);
            self.error(value.span, format!("a value of type `{name}` cannot be switched on"));
        }
        self.check_default(cases);
        let mut actions = Vec::new();
        let mut values = Vec::new();
        for case in cases {
            match (&case.label, table) {
                (None, _) => {}
                (Some(label), Some(table)) => self.action_label(label, table, &mut actions),
                (Some(label), None) => self.value_label(label, switched.type_id, &mut values),
            }
        }
        self.case_bodies(cases)
    }

    /// Checks the statements of all cases; tells if all of them return or exit.
    fn case_bodies(&mut self, cases: &[SwitchCase]) -> bool {
        let mut all_end = cases.iter().any(|case| case.label.is_none());
        for body in cases.iter().filter_map(|case| case.body.as_ref()) {
            all_end &= self.scoped(|c| c.block_statements(body));
        }
        if let Some(last) = cases.last().filter(|case| case.body.is_none()) {
            let message = "the last case has no statements";
            self.sink.push(SourceDiagnostic::warning(last.span, message));
            return false;
        }
        all_end
    }

    fn check_default(&mut self, cases: &[SwitchCase]) {
        let defaults: Vec<&SwitchCase> = cases.iter().filter(|case| case.label.is_none()).collect();
        if let [_, second, ..] = defaults[..] {
            self.error(second.span, "`default` occurs twice");
        }
        if let Some(position) = cases.iter().position(|case| case.label.is_none())
            && position + 1 < cases.len()
        {
            self.error(cases[position].span, "`default` has to be the last case");
        }
    }

    fn action_label(&mut self, label: &ExpressionTree, table: u32, seen: &mut Vec<Symbol>) {
        let ExpressionKind::Name(name) = &label.kind else {
            self.error(label.span, "an action of the table is expected");
            return;
        };
        let text = &name.name.text;
        let known: Vec<Symbol> = self.tables[table as usize].actions.iter().map(|a| a.name.clone()).collect();
        if !known.contains(text) {
            let message = format!("`{text}` is no action of the table");
            let names = known.iter().map(|name| &**name);
            self.sink.push(SourceDiagnostic::error(label.span, message).nearest(text, names));
        }
        if seen.contains(text) {
            self.error(label.span, format!("the case `{text}` occurs twice"));
        }
        seen.push(text.clone());
    }

    fn value_label(&mut self, label: &ExpressionTree, type_id: TypeId, seen: &mut Vec<ConstantValue>) {
        let value = self.expression_as(label, type_id);
        if !value.is_known {
            self.error(label.span, "a case has to be known when the program is compiled");
        }
        if let Some(constant) = value.constant {
            if seen.contains(&constant) {
                self.error(label.span, "this case occurs twice");
            }
            seen.push(constant);
        }
    }
}

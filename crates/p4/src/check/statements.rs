//! Statements. Source: P4_16 1.2.5, section 12.

use crate::ast::{
    BlockSyntax, ConditionalSyntax, DeclarationKind, ForInSyntax, ForLoopSyntax, StatementKind,
    StatementTree, SwitchCase,
};
use crate::check::calls::CallSite;
use crate::check::constants::ConstantValue;
use crate::check::declarations::variable;
use crate::check::types::{INTEGER, TypeId, UNKNOWN, VOID, ValueType};
use crate::check::{CheckedPart, TypeChecker, TypedValue};
use crate::diagnostic::SourceDiagnostic;
use crate::expression::{BinaryOperator, CallArgument, ExpressionKind, ExpressionTree, TypeSyntax};
use crate::source::{SourceName, SourceSpan, Symbol};

impl TypeChecker<'_> {
    /// Checks statements in the current scope; tells if they always return or exit.
    pub(crate) fn block_statements(&mut self, block: &BlockSyntax) -> bool {
        let mut ends = false;
        for statement in &block.statements {
            ends |= self.statement(statement);
        }
        ends
    }

    /// Checks a statement; tells if it always returns or exits.
    pub(crate) fn statement(&mut self, statement: &StatementTree) -> bool {
        let span = statement.span;
        match &statement.kind {
            StatementKind::Empty => {}
            StatementKind::Assignment(left, operator, right) => self.assignment(left, *operator, right),
            StatementKind::Call(call) => {
                self.expression(call);
            }
            StatementKind::DirectApplication(target, arguments) => {
                self.direct_application(target, arguments, span);
            }
            StatementKind::Conditional(conditional) => return self.conditional(conditional),
            StatementKind::Block(block) => return self.scoped(|c| c.block_statements(block)),
            StatementKind::Switch(value, cases) => return self.switch(value, cases, span),
            StatementKind::Return(value) => {
                self.return_statement(value.as_ref(), span);
                return true;
            }
            StatementKind::Exit => {
                if !matches!(self.part, CheckedPart::ControlApply | CheckedPart::Action) {
                    self.error(span, "`exit` is only allowed in controls and actions");
                }
                return true;
            }
            StatementKind::Break | StatementKind::Continue => {
                if self.loops == 0 {
                    self.error(span, "`break` and `continue` are only allowed in loops");
                }
            }
            StatementKind::ForLoop(syntax) => self.scoped(|c| c.for_loop(syntax)),
            StatementKind::ForInLoop(syntax) => self.scoped(|c| c.for_in_loop(syntax)),
            StatementKind::Declaration(declaration) => {
                let is_instance = matches!(declaration.kind, DeclarationKind::Instance(_));
                if is_instance && self.part == CheckedPart::ParserState {
                    self.error(span, "no instance can be made in a state");
                }
                self.declaration(declaration);
            }
        }
        false
    }

    fn assignment(
        &mut self,
        left: &ExpressionTree,
        operator: Option<BinaryOperator>,
        right: &ExpressionTree,
    ) {
        let target = self.expression(left);
        if target.type_id == UNKNOWN {
            self.expression(right);
            return;
        }
        if !target.is_writable {
            self.error(left.span, "this cannot be written");
        }
        if !self.is_runtime_data(target.type_id) {
            let name = self.types.name(target.type_id);
            self.error(left.span, format!("a value of type `{name}` cannot be assigned"));
        }
        match operator {
            None => {
                self.expression_as(right, target.type_id);
            }
            Some(operator) => {
                let value = self.expression(right);
                let span = left.span.to(right.span);
                let result = self.binary_values(operator, &target, &value, span);
                self.expect_type(&result, target.type_id, span);
            }
        }
    }

    fn direct_application(&mut self, target: &TypeSyntax, arguments: &[CallArgument], span: SourceSpan) {
        let type_id = self.direct_instance(target);
        if type_id == UNKNOWN {
            return;
        }
        let apply = SourceName { text: "apply".into(), span };
        self.block_call(type_id, &apply, CallSite { types: &[], arguments, span });
    }

    fn conditional(&mut self, conditional: &ConditionalSyntax) -> bool {
        let condition = self.expression(&conditional.condition);
        self.expect_boolean(&condition, conditional.condition.span);
        let then = self.scoped(|c| c.statement(&conditional.then));
        let otherwise = match &conditional.otherwise {
            Some(otherwise) => self.scoped(|c| c.statement(otherwise)),
            None => false,
        };
        then && otherwise
    }

    fn return_statement(&mut self, value: Option<&ExpressionTree>, span: SourceSpan) {
        match (self.part, value) {
            (CheckedPart::Function | CheckedPart::Method, Some(value)) if self.result != VOID => {
                self.expression_as(value, self.result);
            }
            (CheckedPart::Function | CheckedPart::Method, None) if self.result != VOID => {
                let name = self.types.name(self.result);
                self.error(span, format!("a value of type `{name}` has to be returned"));
            }
            (CheckedPart::ParserState, _) => self.error(span, "`return` is not allowed in parsers"),
            (_, Some(value)) => {
                self.expression(value);
                self.error(span, "no value can be returned here");
            }
            (_, None) => {}
        }
    }

    fn for_loop(&mut self, syntax: &ForLoopSyntax) {
        for statement in &syntax.start {
            self.statement(statement);
        }
        let condition = self.expression(&syntax.condition);
        self.expect_boolean(&condition, syntax.condition.span);
        for statement in &syntax.update {
            self.statement(statement);
        }
        self.loop_body(&syntax.body);
    }

    fn loop_body(&mut self, body: &StatementTree) {
        self.loops += 1;
        self.scoped(|c| c.statement(body));
        self.loops -= 1;
    }

    fn for_in_loop(&mut self, syntax: &ForInSyntax) {
        let collection = self.expression(&syntax.collection);
        let declared = syntax.declared_type.as_ref().map(|declared| self.type_of(declared));
        let target = match (declared, &syntax.variable.kind) {
            (Some(type_id), ExpressionKind::Name(name)) => {
                self.declare_value(&name.name, variable(type_id));
                let value = TypedValue { is_writable: true, ..TypedValue::computed(type_id) };
                self.record(&syntax.variable, &value);
                value
            }
            _ => self.expression(&syntax.variable),
        };
        if !target.is_writable {
            self.error(syntax.variable.span, "the variable of the loop cannot be written");
        }
        self.check_elements(&collection, (target.type_id, declared.is_some()), syntax.collection.span);
        self.loop_body(&syntax.body);
    }

    /// Checks that the elements of a collection fit the variable of a loop.
    fn check_elements(
        &mut self,
        collection: &TypedValue,
        (variable, is_declared): (TypeId, bool),
        span: SourceSpan,
    ) {
        let elements = match self.types.kind(self.types.shallow(collection.type_id)).clone() {
            ValueType::Set(element) | ValueType::Stack(element, _) | ValueType::List(element) => {
                vec![element]
            }
            ValueType::ListExpression(elements) => elements,
            ValueType::Unknown => return,
            _ => {
                let name = self.types.name(collection.type_id);
                self.error(span, format!("a value of type `{name}` has no elements to loop over"));
                return;
            }
        };
        let is_range = matches!(self.types.kind(self.types.shallow(collection.type_id)), ValueType::Set(_));
        for element in elements {
            let is_unsized_range = element == INTEGER && is_range && !is_declared;
            if is_unsized_range || !self.coerces(element, variable) {
                let (from, to) = (self.types.name(element), self.types.name(variable));
                self.error(
                    span,
                    format!("the elements are of type `{from}`, and the variable of type `{to}`"),
                );
                return;
            }
        }
    }
}

impl TypeChecker<'_> {
    /// Checks a `switch`; tells if all its cases return or exit.
    pub(crate) fn switch(&mut self, value: &ExpressionTree, cases: &[SwitchCase], span: SourceSpan) -> bool {
        match self.part {
            CheckedPart::ParserState => self.error(span, "`switch` is not allowed in parsers"),
            // Specification, section 14.1: a semantic check rejects what the grammar permits.
            CheckedPart::Action => self.error(span, "`switch` is not allowed in actions"),
            _ => {}
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

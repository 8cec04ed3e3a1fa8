//! Code that packets can reach: constant conditions and `return` cut branches off.
//!
//! As in p4c, `exit` does so only in bodies that have a `return`, so that the same actions are described.

use millstream_p4::ConstantValue;
use millstream_p4::ast::{
    BlockSyntax, DeclarationKind, DeclarationTree, ParserState, StateTransition, StatementKind, StatementTree,
};
use millstream_p4::expression::{BinaryOperator, CallArgument, ExpressionKind, ExpressionTree, TypeSyntax};
use rustc_hash::FxHashMap;

use crate::info::evaluate::NamedConstants;
use crate::info::program::ProgramIndex;

/// A piece of code that packets can reach.
#[derive(Clone, Copy, Debug)]
pub(crate) enum LivePart<'p> {
    Expression(&'p ExpressionTree),
    /// `TYPE.apply(...)`
    Application(&'p TypeSyntax, &'p [CallArgument]),
    /// An instance that a statement declares.
    Instance(&'p DeclarationTree),
}

/// Collector of the code that packets can reach.
pub(crate) struct LivenessWalk<'w, 'p> {
    pub(crate) index: &'w ProgramIndex<'p>,
    pub(crate) names: &'w NamedConstants<'p>,
    pub(crate) parts: Vec<LivePart<'p>>,
    /// The body has a `return`: it and `exit` cut off what follows.
    has_return: bool,
}

impl<'w, 'p> LivenessWalk<'w, 'p> {
    pub(crate) fn new(index: &'w ProgramIndex<'p>, names: &'w NamedConstants<'p>) -> Self {
        LivenessWalk { index, names, parts: Vec::new(), has_return: false }
    }

    /// Walks through the body of an action, function or control.
    pub(crate) fn body(&mut self, body: &'p BlockSyntax) {
        self.has_return = body.statements.iter().any(has_return);
        self.block(body);
    }

    /// Walks through statements; tells if packets do not get behind them.
    fn block(&mut self, block: &'p BlockSyntax) -> bool {
        block.statements.iter().any(|statement| self.statement(statement))
    }

    /// Adds an expression; of a choice with a constant condition only what is chosen.
    fn expression(&mut self, expression: &'p ExpressionTree) {
        let known = |part: &ExpressionTree| match self.index.evaluate(part, self.names) {
            Some(ConstantValue::Boolean(value)) => Some(value),
            _ => None,
        };
        match &expression.kind {
            ExpressionKind::Ternary(parts) => match known(&parts[0]) {
                Some(true) => self.expression(&parts[1]),
                Some(false) => self.expression(&parts[2]),
                None => self.parts.push(LivePart::Expression(expression)),
            },
            ExpressionKind::Binary(BinaryOperator::And, left, _) if known(left) == Some(false) => {}
            ExpressionKind::Binary(BinaryOperator::Or, left, _) if known(left) == Some(true) => {}
            _ => self.parts.push(LivePart::Expression(expression)),
        }
    }

    fn statement(&mut self, statement: &'p StatementTree) -> bool {
        match &statement.kind {
            StatementKind::Assignment(left, _, right) => {
                self.expression(left);
                self.expression(right);
            }
            StatementKind::Call(call) => self.expression(call),
            StatementKind::DirectApplication(target, arguments) => {
                self.parts.push(LivePart::Application(target, arguments));
            }
            StatementKind::Conditional(parts) => {
                return self.conditional(&parts.condition, &parts.then, parts.otherwise.as_ref());
            }
            StatementKind::Block(block) => return self.block(block),
            StatementKind::Switch(value, cases) => {
                self.expression(value);
                for case in cases {
                    self.parts.extend(case.label.as_ref().map(LivePart::Expression));
                    case.body.iter().for_each(|body| _ = self.block(body));
                }
            }
            StatementKind::Return(value) => {
                value.as_ref().into_iter().for_each(|value| self.expression(value));
                return true;
            }
            StatementKind::Exit => return self.has_return,
            StatementKind::ForLoop(parts) => {
                parts.start.iter().for_each(|start| _ = self.statement(start));
                self.expression(&parts.condition);
                self.statement(&parts.body);
                parts.update.iter().for_each(|update| _ = self.statement(update));
            }
            StatementKind::ForInLoop(parts) => {
                self.expression(&parts.collection);
                self.statement(&parts.body);
            }
            StatementKind::Declaration(declaration) => self.declaration(declaration),
            StatementKind::Break | StatementKind::Continue | StatementKind::Empty => {}
        }
        false
    }

    /// Walks through the value of a variable, and through the methods of an instance.
    pub(crate) fn declaration(&mut self, declaration: &'p DeclarationTree) {
        match &declaration.kind {
            DeclarationKind::Variable(_, Some(value)) => self.expression(value),
            DeclarationKind::Instance(_) => self.parts.push(LivePart::Instance(declaration)),
            _ => {}
        }
    }

    fn conditional(
        &mut self,
        condition: &'p ExpressionTree,
        then: &'p StatementTree,
        otherwise: Option<&'p StatementTree>,
    ) -> bool {
        match self.index.evaluate(condition, self.names) {
            Some(ConstantValue::Boolean(true)) => return self.statement(then),
            Some(ConstantValue::Boolean(false)) => {
                return otherwise.is_some_and(|otherwise| self.statement(otherwise));
            }
            _ => {}
        }
        self.expression(condition);
        let then_ends = self.statement(then);
        let otherwise_ends = otherwise.is_some_and(|otherwise| self.statement(otherwise));
        then_ends && otherwise_ends
    }

    /// Walks through the states that can be reached.
    pub(crate) fn states(&mut self, states: &'p [ParserState]) {
        let mut unseen: FxHashMap<&str, &ParserState> =
            states.iter().map(|state| (&*state.name.text, state)).collect();
        let mut waiting = vec!["start"];
        while let Some(name) = waiting.pop() {
            let Some(state) = unseen.remove(name) else { continue };
            if state.statements.iter().any(|statement| self.statement(statement)) {
                continue;
            }
            match &state.transition {
                Some(StateTransition::Direct(next)) => waiting.push(&next.text),
                Some(StateTransition::Select(keys, cases, _)) => {
                    self.parts.extend(keys.iter().map(LivePart::Expression));
                    self.parts.extend(cases.iter().map(|case| LivePart::Expression(&case.keyset)));
                    waiting.extend(cases.iter().map(|case| &*case.state.text));
                }
                None => {}
            }
        }
    }
}

/// Tells if there is a `return` in a statement.
fn has_return(statement: &StatementTree) -> bool {
    let any = |block: &BlockSyntax| block.statements.iter().any(has_return);
    match &statement.kind {
        StatementKind::Return(_) => true,
        StatementKind::Conditional(parts) => {
            has_return(&parts.then) || parts.otherwise.as_ref().is_some_and(has_return)
        }
        StatementKind::Block(block) => any(block),
        StatementKind::Switch(_, cases) => cases.iter().filter_map(|case| case.body.as_ref()).any(any),
        StatementKind::ForLoop(parts) => has_return(&parts.body),
        StatementKind::ForInLoop(parts) => has_return(&parts.body),
        _ => false,
    }
}

/// Visits an expression and those within it, the outer one first.
pub(crate) fn visit_expressions<'p>(
    expression: &'p ExpressionTree,
    visit: &mut dyn FnMut(&'p ExpressionTree),
) {
    visit(expression);
    let all = |list: &'p [ExpressionTree], visit: &mut dyn FnMut(&'p ExpressionTree)| {
        list.iter().for_each(|part| visit_expressions(part, visit));
    };
    match &expression.kind {
        ExpressionKind::Unary(_, part) | ExpressionKind::Cast(_, part) | ExpressionKind::Member(part, _) => {
            visit_expressions(part, visit);
        }
        ExpressionKind::Binary(_, left, right) | ExpressionKind::Index(left, right) => {
            visit_expressions(left, visit);
            visit_expressions(right, visit);
        }
        ExpressionKind::Ternary(parts) | ExpressionKind::Slice(parts) | ExpressionKind::WidthSlice(parts) => {
            all(&parts[..], visit)
        }
        ExpressionKind::List(list) | ExpressionKind::KeysetTuple(list) => all(list, visit),
        ExpressionKind::Record(fields, _) => {
            fields.iter().for_each(|(_, value)| visit_expressions(value, visit));
        }
        ExpressionKind::Call(function, _, arguments) => {
            visit_expressions(function, visit);
            visit_arguments(arguments, visit);
        }
        ExpressionKind::Construct(_, arguments) => visit_arguments(arguments, visit),
        _ => {}
    }
}

/// Visits the values of arguments, and those within them.
pub(crate) fn visit_arguments<'p>(arguments: &'p [CallArgument], visit: &mut dyn FnMut(&'p ExpressionTree)) {
    for value in arguments.iter().filter_map(|argument| argument.value.as_ref()) {
        visit_expressions(value, visit);
    }
}

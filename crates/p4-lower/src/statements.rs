//! Statements.

use millstream_ir::Block;
use millstream_p4::SourceSpan;
use millstream_p4::ast::{
    BlockSyntax, ConditionalSyntax, DeclarationKind, DeclarationTree, ForInSyntax, ForLoopSyntax,
    StatementKind, StatementTree, SwitchCase,
};
use millstream_p4::expression::{BinaryOperator, ExpressionKind, ExpressionTree};

use crate::error::{Lowered, refuse};
use crate::lowerer::Lowerer;
use crate::scope::Binding;
use crate::types::RuntimeType;
use crate::values::{Operand, Place, Scalar, Target};

impl<'p> Lowerer<'p> {
    pub(crate) fn block(&mut self, block: &'p BlockSyntax) -> Lowered<()> {
        self.nested(|l| l.statements(&block.statements))
    }

    pub(crate) fn statements(&mut self, statements: &'p [StatementTree]) -> Lowered<()> {
        statements.iter().try_for_each(|statement| self.statement(statement))
    }

    pub(crate) fn statement(&mut self, statement: &'p StatementTree) -> Lowered<()> {
        self.check_size(statement.span)?;
        self.mark_line(statement.span);
        match &statement.kind {
            StatementKind::Empty => {}
            StatementKind::Assignment(left, operator, right) => {
                self.assignment(left, *operator, right, statement.span)?;
            }
            StatementKind::Call(call) => {
                if let ExpressionKind::Call(function, types, arguments) = &call.kind {
                    self.call(function, types, arguments, call.span, None)?;
                }
            }
            StatementKind::DirectApplication(syntax, arguments) => {
                self.direct_application(syntax, arguments, statement.span)?;
            }
            StatementKind::Conditional(parts) => self.conditional(parts)?,
            StatementKind::Block(block) => self.block(block)?,
            StatementKind::Switch(value, cases) => self.switch(value, cases)?,
            StatementKind::Return(value) => self.return_statement(value.as_ref())?,
            StatementKind::Exit => {
                self.flow.uses_exit = true;
                self.emitter.leave_to(self.flow.exits);
            }
            StatementKind::Break | StatementKind::Continue => {
                let Some((end, next)) = self.flow.loops.last().copied() else {
                    return refuse(statement.span, "there is no loop here");
                };
                let is_break = matches!(statement.kind, StatementKind::Break);
                self.emitter.leave_to(if is_break { end } else { next });
            }
            StatementKind::ForLoop(parts) => self.nested(|l| l.for_loop(parts))?,
            StatementKind::ForInLoop(parts) => self.nested(|l| l.for_in_loop(parts))?,
            StatementKind::Declaration(declaration) => self.declare(declaration)?,
        }
        Ok(())
    }

    fn return_statement(&mut self, value: Option<&'p ExpressionTree>) -> Lowered<()> {
        if let (Some(value), Some(result)) = (value, self.flow.result.clone()) {
            self.lower_into(value, &result)?;
        }
        self.emitter.leave_to(self.flow.returns);
        Ok(())
    }

    fn assignment(
        &mut self,
        left: &'p ExpressionTree,
        operator: Option<BinaryOperator>,
        right: &'p ExpressionTree,
        span: SourceSpan,
    ) -> Lowered<()> {
        let Some(target) = self.target_of(left)? else {
            return refuse(left.span, "this cannot be assigned");
        };
        if let Target::Memory(place) = &target
            && let RuntimeType::Header(_) = place.value_type
        {
            self.assign_aggregate(place, right)?;
            return self.keep_one_member(left, place);
        }
        if let Some(operator) = operator {
            return self.compound(&target, operator, right, span);
        }
        match &target {
            Target::Memory(place) if !place.value_type.is_scalar() => self.assign_aggregate(place, right),
            _ => {
                let value_type = target_type(&target);
                let value = self.scalar(right, Some(&value_type))?;
                let value = self.converted(value, &value_type);
                self.write_scalar(&target, &value);
                Ok(())
            }
        }
    }

    fn assign_aggregate(&mut self, place: &Place, right: &'p ExpressionTree) -> Lowered<()> {
        let is_built = matches!(
            right.kind,
            ExpressionKind::List(_)
                | ExpressionKind::Record(..)
                | ExpressionKind::Ternary(_)
                | ExpressionKind::Cast(..)
        );
        match is_built {
            true => {
                let made = self.emitter.variable(place.value_type.clone());
                self.lower_into(right, &made)?;
                self.emitter.copy(&made, place);
                Ok(())
            }
            false => self.lower_into(right, place),
        }
    }

    /// A valid header that is assigned to a member of a union makes the other members invalid.
    fn keep_one_member(&mut self, left: &'p ExpressionTree, place: &Place) -> Lowered<()> {
        let ExpressionKind::Member(base, _) = &left.kind else { return Ok(()) };
        let RuntimeType::Union(_) = self.type_of(base)? else { return Ok(()) };
        let valid = self.emitter.validity(place);
        let behind = self.emitter.split(valid);
        self.forget_siblings(left, place)?;
        self.emitter.jump(behind);
        self.emitter.enter(behind);
        Ok(())
    }

    fn compound(
        &mut self,
        target: &Target,
        operator: BinaryOperator,
        right: &'p ExpressionTree,
        span: SourceSpan,
    ) -> Lowered<()> {
        let value_type = target_type(target);
        let is_shift = matches!(operator, BinaryOperator::ShiftLeft | BinaryOperator::ShiftRight);
        let hint = if is_shift { RuntimeType::Bits(32, false) } else { value_type.clone() };
        let value = self.scalar(right, Some(&hint))?;
        let Operand::Scalar(old) = self.read_target(target) else {
            return refuse(span, "this operator needs a number");
        };
        let new = match is_shift {
            true => self.shifted(operator == BinaryOperator::ShiftLeft, old, &value),
            false => self.computed(operator, &old, &value, span)?,
        };
        self.write_scalar(target, &new);
        Ok(())
    }

    fn conditional(&mut self, parts: &'p ConditionalSyntax) -> Lowered<()> {
        let condition = self.scalar(&parts.condition, None)?;
        let otherwise = self.emitter.split(condition.words[0]);
        let behind = self.emitter.new_block();
        self.nested(|l| l.statement(&parts.then))?;
        self.emitter.jump(behind);
        self.emitter.enter(otherwise);
        if let Some(statement) = &parts.otherwise {
            self.nested(|l| l.statement(statement))?;
        }
        self.emitter.jump(behind);
        self.emitter.enter(behind);
        Ok(())
    }

    fn switch(&mut self, value: &'p ExpressionTree, cases: &'p [SwitchCase]) -> Lowered<()> {
        if let ExpressionKind::Member(base, member) = &value.kind
            && &*member.text == "action_run"
            && let ExpressionKind::Call(function, types, arguments) = &base.kind
        {
            let applied = self.call(function, types, arguments, base.span, None)?;
            let Operand::Applied { table, action, .. } = applied else {
                return refuse(value.span, "this is no table");
            };
            return self.switch_on(cases, |l, label| {
                let number = l.action_number(table, label)?;
                let number = l.emitter.constant(number);
                Ok(l.emitter.compare(millstream_ir::Cond::Eq, action, number))
            });
        }
        let own = self.type_of(value)?;
        let hint = match own {
            RuntimeType::Integer => {
                let typed = cases.iter().filter_map(|case| case.label.as_ref());
                let types = typed.map(|label| self.type_of(label)).collect::<Lowered<Vec<_>>>()?;
                types.into_iter().find(RuntimeType::is_scalar)
            }
            other => Some(other),
        };
        let value = self.scalar(value, hint.as_ref())?;
        self.switch_on(cases, |l, label| {
            let label = l.scalar(label, Some(&value.value_type))?;
            Ok(l.emitter.equal_words(&value.words, &label.words))
        })
    }

    /// Tests labels in their order; a case without a body goes on with the next body.
    fn switch_on(
        &mut self,
        cases: &'p [SwitchCase],
        mut test: impl FnMut(&mut Self, &'p ExpressionTree) -> Lowered<millstream_ir::Value>,
    ) -> Lowered<()> {
        let behind = self.emitter.new_block();
        let bodies: Vec<Option<Block>> =
            cases.iter().map(|case| case.body.is_some().then(|| self.emitter.new_block())).collect();
        let body_of = |at: usize| bodies[at..].iter().flatten().next().copied().unwrap_or(behind);
        let mut default = behind;
        for (at, case) in cases.iter().enumerate() {
            match &case.label {
                Some(label) if !matches!(label.kind, ExpressionKind::Anything) => {
                    let truth = test(self, label)?;
                    let next = self.emitter.new_block();
                    self.emitter.branch_if(truth, body_of(at), next);
                    self.emitter.enter(next);
                }
                _ => default = body_of(at),
            }
        }
        self.emitter.jump(default);
        for (case, block) in cases.iter().zip(&bodies) {
            if let (Some(body), Some(block)) = (&case.body, block) {
                self.emitter.enter(*block);
                self.block(body)?;
                self.emitter.jump(behind);
            }
        }
        self.emitter.enter(behind);
        Ok(())
    }

    fn for_loop(&mut self, parts: &'p ForLoopSyntax) -> Lowered<()> {
        self.statements(&parts.start)?;
        let head = self.emitter.new_block();
        self.emitter.jump(head);
        self.emitter.enter(head);
        let condition = self.scalar(&parts.condition, None)?;
        let behind = self.emitter.split(condition.words[0]);
        let update = self.emitter.new_block();
        self.loop_body(&parts.body, behind, update)?;
        self.emitter.jump(update);
        self.emitter.enter(update);
        self.statements(&parts.update)?;
        self.emitter.jump(head);
        self.emitter.enter(behind);
        Ok(())
    }

    fn loop_body(&mut self, body: &'p StatementTree, end: Block, next: Block) -> Lowered<()> {
        self.flow.loops.push((end, next));
        let result = self.nested(|l| l.statement(body));
        self.flow.loops.pop();
        result
    }

    fn for_in_loop(&mut self, parts: &'p ForInSyntax) -> Lowered<()> {
        let target = match (&parts.declared_type, &parts.variable.kind) {
            (Some(syntax), ExpressionKind::Name(name)) => {
                let value_type = self.type_of_syntax(syntax)?;
                let place = self.emitter.variable(value_type);
                self.scope.bind(name.name.text.clone(), Binding::Variable(place.clone()));
                Target::Memory(place)
            }
            _ => match self.target_of(&parts.variable)? {
                Some(target) => target,
                None => return refuse(parts.variable.span, "this cannot be assigned"),
            },
        };
        match &parts.collection.kind {
            ExpressionKind::Binary(BinaryOperator::Range, low, high) => {
                self.range_loop(&target, (low, high), &parts.body)
            }
            _ => self.element_loop(&target, &parts.collection, &parts.body),
        }
    }

    fn range_loop(
        &mut self,
        target: &Target,
        (low, high): (&'p ExpressionTree, &'p ExpressionTree),
        body: &'p StatementTree,
    ) -> Lowered<()> {
        let value_type = target_type(target);
        let (low, high) = (self.scalar(low, Some(&value_type))?, self.scalar(high, Some(&value_type))?);
        let (low, high) = (self.converted(low, &value_type), self.converted(high, &value_type));
        let counter = self.emitter.variable(value_type.clone());
        self.emitter.store_scalar(&counter, &low);
        let (width, is_signed) = (low.width(), value_type.is_signed());
        let is_empty = self.emitter.less_words(&high.words, &low.words, width, is_signed);
        let (head, end, next) =
            (self.emitter.new_block(), self.emitter.new_block(), self.emitter.new_block());
        self.emitter.branch_if(is_empty, end, head);
        self.emitter.enter(head);
        let now = self.emitter.load_scalar(&counter);
        self.write_scalar(target, &now);
        self.loop_body(body, end, next)?;
        self.emitter.jump(next);
        self.emitter.enter(next);
        let now = self.emitter.load_scalar(&counter);
        let is_last = self.emitter.equal_words(&now.words, &high.words);
        let more = self.emitter.new_block();
        self.emitter.branch_if(is_last, end, more);
        self.emitter.enter(more);
        let one = self.number(1, width);
        let words = self.emitter.add_words(&now.words, &one.words, width);
        self.emitter.store_scalar(&counter, &Scalar { words, value_type });
        self.emitter.jump(head);
        self.emitter.enter(end);
        Ok(())
    }

    /// A loop over a list or stack: the body once for each element.
    fn element_loop(
        &mut self,
        target: &Target,
        collection: &'p ExpressionTree,
        body: &'p StatementTree,
    ) -> Lowered<()> {
        let end = self.emitter.new_block();
        let items: Vec<Place> = match &collection.kind {
            ExpressionKind::List(items) => {
                let value_type = target_type(target);
                items.iter().map(|item| self.memory(item, Some(&value_type))).collect::<Lowered<_>>()?
            }
            _ => {
                let place = self.memory(collection, None)?;
                match place.value_type {
                    RuntimeType::Stack(..) => {
                        let copy = self.emitter.variable(place.value_type.clone());
                        self.emitter.copy(&place, &copy);
                        copy.elements()
                    }
                    _ => place.fields(),
                }
            }
        };
        for item in items {
            match target {
                Target::Memory(place) => self.assign_place(&item, place)?,
                _ => {
                    let value = self.emitter.load_scalar(&item);
                    self.write_scalar(target, &value);
                }
            }
            let next = self.emitter.new_block();
            self.loop_body(body, end, next)?;
            self.emitter.jump(next);
            self.emitter.enter(next);
        }
        self.emitter.jump(end);
        self.emitter.enter(end);
        Ok(())
    }

    /// Declares a variable, constant, instance, action or table.
    pub(crate) fn declare(&mut self, declaration: &'p DeclarationTree) -> Lowered<()> {
        let name = declaration.name.text.clone();
        let binding = match &declaration.kind {
            DeclarationKind::Constant(syntax, value) => {
                Binding::Constant(value, self.type_of_syntax(syntax)?, None)
            }
            DeclarationKind::Variable(syntax, value) => {
                let value_type = self.type_of_syntax(syntax)?;
                if value_type.size() == 0 {
                    return refuse(declaration.span, "a variable of this type is not supported");
                }
                let place = self.emitter.variable(value_type);
                if let Some(value) = value {
                    self.lower_into(value, &place)?;
                }
                Binding::Variable(place)
            }
            DeclarationKind::Instance(_) | DeclarationKind::ValueSet(..) => {
                Binding::Instance(self.local_object(declaration)?)
            }
            DeclarationKind::Action(..) => Binding::Action(declaration),
            DeclarationKind::Table(_) => Binding::Table(declaration),
            DeclarationKind::Function(function) => Binding::Method(function),
            _ => return refuse(declaration.span, "this declaration is not supported here"),
        };
        self.scope.bind(name, binding);
        Ok(())
    }
}

/// Type of a target that is a scalar.
pub(crate) fn target_type(target: &Target) -> RuntimeType {
    match target {
        Target::Memory(place) => place.value_type.clone(),
        Target::Bits(_, _, width) | Target::BitsAt(_, _, width) => RuntimeType::Bits(*width, false),
        Target::Ignored => RuntimeType::Other,
    }
}

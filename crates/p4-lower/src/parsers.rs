//! Parsers: states become blocks, transitions jumps, `select` a chain of tests.
//!
//! A parser whose states form a loop counts the states that it enters, and stops with the error
//! `ParserTimeout` behind [`MOST_STEPS`] of them, or as many as the engine wants.

use millstream_ir::{AluOp, Cond, Value};
use millstream_p4::ast::{ParserState, SelectCase, StateTransition};
use millstream_p4::expression::{BinaryOperator, ExpressionKind, ExpressionTree};
use millstream_p4::{SourceSpan, Symbol};
use rustc_hash::{FxHashMap, FxHashSet};

use crate::error::{Lowered, refuse};
use crate::lowerer::{Lowerer, ParserFlow};
use crate::pipeline::MarkKind;
use crate::scope::Instance;
use crate::types::RuntimeType;
use crate::values::{Operand, Place, Scalar};

/// Most states that a parser with loops enters for a packet, unless the engine wants less.
pub const MOST_STEPS: u64 = 4096;

impl<'p> Lowerer<'p> {
    /// Lowers the states of a parser; the code goes on behind `accept`.
    pub(crate) fn parser_states(&mut self, states: &'p [ParserState], span: SourceSpan) -> Lowered<()> {
        let accept = self.emitter.new_block();
        let reject = match &self.parser {
            Some(outer) => outer.reject,
            None => return refuse(span, "a parser cannot be applied here"),
        };
        let blocks: FxHashMap<Symbol, _> =
            states.iter().map(|state| (state.name.text.clone(), self.emitter.new_block())).collect();
        let steps = has_loop(states).then(|| self.emitter.variable(RuntimeType::Bits(32, false)));
        let Some(start) = blocks.get("start").copied() else {
            return refuse(span, "the parser has no state `start`");
        };
        self.emitter.jump(start);
        let flow = ParserFlow { states: blocks.clone(), accept, reject, steps };
        let outer = self.parser.replace(flow);
        for state in states {
            self.emitter.enter(blocks[&state.name.text]);
            self.mark(MarkKind::ParserState(state.name.text.to_string()), state.name.span);
            self.count_step(span)?;
            self.nested(|l| {
                l.statements(&state.statements)?;
                l.transition(state)
            })?;
        }
        self.parser = outer;
        self.emitter.enter(accept);
        Ok(())
    }

    fn count_step(&mut self, span: SourceSpan) -> Lowered<()> {
        let Some(steps) = self.parser.as_ref().and_then(|parser| parser.steps.clone()) else { return Ok(()) };
        let count = self.emitter.load_scalar(&steps);
        let next = self.emitter.alu_with(AluOp::Add, count.words[0], 1);
        self.emitter.store_scalar(&steps, &Scalar::bits(vec![next], 32));
        let is_inside = self.emitter.compare_with(Cond::Le, next, self.options.most_steps);
        self.require(is_inside, "ParserTimeout", span)
    }

    fn transition(&mut self, state: &'p ParserState) -> Lowered<()> {
        match &state.transition {
            None => self.go_to("reject", state.name.span),
            Some(StateTransition::Direct(name)) => self.go_to(&name.text, name.span),
            Some(StateTransition::Select(keys, cases, span)) => self.select_transition(keys, cases, *span),
        }
    }

    fn state_block(&self, name: &str, span: SourceSpan) -> Lowered<millstream_ir::Block> {
        let found = self.parser.as_ref().and_then(|parser| match name {
            "accept" => Some(parser.accept),
            "reject" => Some(parser.reject),
            _ => parser.states.get(name).copied(),
        });
        match found {
            Some(block) => Ok(block),
            None => refuse(span, format!("there is no state `{name}`")),
        }
    }

    fn go_to(&mut self, name: &str, span: SourceSpan) -> Lowered<()> {
        let block = self.state_block(name, span)?;
        self.emitter.jump(block);
        Ok(())
    }

    fn select_transition(
        &mut self,
        keys: &'p [ExpressionTree],
        cases: &'p [SelectCase],
        span: SourceSpan,
    ) -> Lowered<()> {
        let mut values = Vec::new();
        for (at, key) in keys.iter().enumerate() {
            let hint = self.key_hint(key, cases, at)?;
            match self.operand(key, hint.as_ref())? {
                Operand::Scalar(scalar) => values.push(scalar),
                Operand::Memory(place) => values.extend(self.scalars_of(&place, key.span)?),
                _ => return refuse(key.span, "this key is not supported"),
            }
        }
        for case in cases {
            let block = self.state_block(&case.state.text, case.state.span)?;
            let truth = self.keyset(&case.keyset, &values)?;
            let next = self.emitter.new_block();
            self.emitter.branch_if(truth, block, next);
            self.emitter.enter(next);
        }
        self.fail_parser("NoMatch", span)
    }

    /// Type of a key that is a number without a width: that of a case.
    fn key_hint(
        &mut self,
        key: &'p ExpressionTree,
        cases: &'p [SelectCase],
        at: usize,
    ) -> Lowered<Option<RuntimeType>> {
        if self.type_of(key)? != RuntimeType::Integer {
            return Ok(None);
        }
        for case in cases {
            let part = match &case.keyset.kind {
                ExpressionKind::KeysetTuple(parts) => parts.get(at),
                _ => Some(&case.keyset),
            };
            if let Some(part) = part {
                let own = self.type_of(part)?;
                if own.is_scalar() {
                    return Ok(Some(own));
                }
            }
        }
        Ok(None)
    }

    /// Scalars of an aggregate in order.
    pub(crate) fn scalars_of(&mut self, place: &Place, span: SourceSpan) -> Lowered<Vec<Scalar>> {
        if place.value_type.is_scalar() {
            return Ok(vec![self.emitter.load_scalar(place)]);
        }
        let parts = match &place.value_type {
            RuntimeType::Stack(..) => place.elements(),
            RuntimeType::Struct(_) | RuntimeType::Header(_) => place.fields(),
            _ => return refuse(span, "a value of this type is not supported here"),
        };
        let mut scalars = Vec::new();
        for part in parts {
            scalars.extend(self.scalars_of(&part, span)?);
        }
        Ok(scalars)
    }

    /// Tests if values are in a set.
    pub(crate) fn keyset(&mut self, set: &'p ExpressionTree, values: &[Scalar]) -> Lowered<Value> {
        let parts: &'p [ExpressionTree] = match &set.kind {
            ExpressionKind::KeysetTuple(parts) => parts,
            ExpressionKind::List(parts) if values.len() == parts.len() => parts,
            ExpressionKind::Anything | ExpressionKind::Default => return Ok(self.emitter.truth(true)),
            _ => std::slice::from_ref(set),
        };
        if parts.len() == 1 {
            if let Some(instance) = self.find_instance(&parts[0])
                && let Instance::ValueSet(number) = &*instance
            {
                return self.value_set_has(*number, values, set.span);
            }
            if values.len() > 1 {
                return self.equal_to_aggregate(&parts[0], values);
            }
        }
        if parts.len() != values.len() {
            return refuse(set.span, "this set has another number of values than the key");
        }
        let mut result = self.emitter.truth(true);
        for (part, value) in parts.iter().zip(values) {
            let truth = self.set_has(part, value)?;
            result = self.emitter.both(result, truth);
        }
        Ok(result)
    }

    fn equal_to_aggregate(&mut self, set: &'p ExpressionTree, values: &[Scalar]) -> Lowered<Value> {
        let place = self.memory(set, None)?;
        let parts = self.scalars_of(&place, set.span)?;
        let mut result = self.emitter.truth(parts.len() == values.len());
        for (part, value) in parts.iter().zip(values) {
            let equal = self.emitter.equal_words(&part.words, &value.words);
            result = self.emitter.both(result, equal);
        }
        Ok(result)
    }

    /// Tests if a scalar is in a set.
    fn set_has(&mut self, set: &'p ExpressionTree, value: &Scalar) -> Lowered<Value> {
        let hint = Some(&value.value_type);
        match &set.kind {
            ExpressionKind::Anything | ExpressionKind::Default => Ok(self.emitter.truth(true)),
            ExpressionKind::Binary(BinaryOperator::Mask, wanted, mask) => {
                let (wanted, mask) = (self.scalar(wanted, hint)?, self.scalar(mask, hint)?);
                let e = &mut self.emitter;
                let left = e.bitwise(AluOp::And, &value.words, &mask.words);
                let right = e.bitwise(AluOp::And, &wanted.words, &mask.words);
                Ok(e.equal_words(&left, &right))
            }
            ExpressionKind::Binary(BinaryOperator::Range, low, high) => {
                let (low, high) = (self.scalar(low, hint)?, self.scalar(high, hint)?);
                let (width, is_signed) = (value.width(), value.value_type.is_signed());
                let e = &mut self.emitter;
                let below = e.less_words(&value.words, &low.words, width, is_signed);
                let above = e.less_words(&high.words, &value.words, width, is_signed);
                let outside = e.either(below, above);
                Ok(e.not(outside))
            }
            _ => {
                let instance = self.find_instance(set);
                if let Some(Instance::ValueSet(number)) = instance.as_deref() {
                    return self.value_set_has(*number, std::slice::from_ref(value), set.span);
                }
                let wanted = self.scalar(set, hint)?;
                Ok(self.emitter.equal_words(&value.words, &wanted.words))
            }
        }
    }

    /// Stops the parser with an error unless a condition holds.
    pub(crate) fn require(&mut self, truth: Value, error: &str, span: SourceSpan) -> Lowered<()> {
        let failed = self.emitter.split(truth);
        let good = self.emitter.block;
        self.emitter.enter(failed);
        self.fail_parser(error, span)?;
        self.emitter.enter(good);
        Ok(())
    }

    /// Ends the block: the parser stops with an error.
    fn fail_parser(&mut self, error: &str, span: SourceSpan) -> Lowered<()> {
        self.mark(MarkKind::ParserError(error.to_owned()), span);
        let code = self.errors.get(error).copied().unwrap_or_default();
        let code = self.emitter.constant(code);
        self.stop_parser(code, span)
    }

    /// Ends the block: the parser stops with an error that is a value.
    pub(crate) fn stop_parser(&mut self, code: Value, span: SourceSpan) -> Lowered<()> {
        let packet = self.packet(span)?;
        let Some(parser) = &self.parser else {
            return refuse(span, "this is only supported in a parser");
        };
        let reject = parser.reject;
        let value = Scalar { words: vec![code], value_type: packet.error.value_type.clone() };
        self.emitter.store_scalar(&packet.error, &value);
        self.emitter.jump(reject);
        Ok(())
    }
}

/// Tells if a state can be reached from itself.
fn has_loop(states: &[ParserState]) -> bool {
    let targets = |state: &ParserState| -> Vec<Symbol> {
        match &state.transition {
            Some(StateTransition::Direct(name)) => vec![name.text.clone()],
            Some(StateTransition::Select(_, cases, _)) => {
                cases.iter().map(|case| case.state.text.clone()).collect()
            }
            None => Vec::new(),
        }
    };
    let index: FxHashMap<Symbol, usize> =
        states.iter().enumerate().map(|(at, state)| (state.name.text.clone(), at)).collect();
    let next: Vec<Vec<usize>> = states
        .iter()
        .map(|state| targets(state).iter().filter_map(|name| index.get(name).copied()).collect())
        .collect();
    // States without a predecessor are removed until none is left, or only loops are.
    let mut before = vec![0usize; states.len()];
    next.iter().flatten().for_each(|target| before[*target] += 1);
    let mut ready: Vec<usize> = (0..states.len()).filter(|at| before[*at] == 0).collect();
    let mut removed = FxHashSet::default();
    while let Some(at) = ready.pop() {
        removed.insert(at);
        for target in &next[at] {
            before[*target] -= 1;
            if before[*target] == 0 {
                ready.push(*target);
            }
        }
    }
    removed.len() < states.len()
}

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
use crate::{instances, parser_errors, tables};

/// Most states that a parser with loops enters for a packet, unless the engine wants less.
pub const MOST_STEPS: u64 = 4096;

/// Lowers the states of a parser; the code goes on behind `accept`.
pub(crate) fn parser_states<'p>(
    l: &mut Lowerer<'p>,
    states: &'p [ParserState],
    span: SourceSpan,
) -> Lowered<()> {
    let accept = l.emitter.new_block();
    let reject = match &l.stage.parser {
        Some(outer) => outer.reject,
        None => return refuse(span, "a parser cannot be applied here"),
    };
    let blocks: FxHashMap<Symbol, _> =
        states.iter().map(|state| (state.name.text.clone(), l.emitter.new_block())).collect();
    let steps = has_loop(states).then(|| l.emitter.variable(RuntimeType::Bits(32, false)));
    let Some(start) = blocks.get("start").copied() else {
        return refuse(span, "the parser has no state `start`");
    };
    l.emitter.jump(start);
    let flow = ParserFlow { states: blocks.clone(), accept, reject, steps };
    let outer = l.stage.parser.replace(flow);
    for state in states {
        l.emitter.enter(blocks[&state.name.text]);
        l.mark(MarkKind::ParserState(state.name.text.to_string()), state.name.span);
        count_step(l, span)?;
        l.nested(|l| {
            l.statements(&state.statements)?;
            transition(l, state)
        })?;
    }
    l.stage.parser = outer;
    l.emitter.enter(accept);
    Ok(())
}

fn count_step(l: &mut Lowerer<'_>, span: SourceSpan) -> Lowered<()> {
    let Some(steps) = l.stage.parser.as_ref().and_then(|parser| parser.steps.clone()) else { return Ok(()) };
    let count = l.emitter.load_scalar(&steps);
    let next = l.emitter.alu_with(AluOp::Add, count.words[0], 1);
    l.emitter.store_scalar(&steps, &Scalar::bits(vec![next], 32));
    let is_inside = l.emitter.compare_with(Cond::Le, next, l.options.most_steps);
    parser_errors::require(l, is_inside, "ParserTimeout", span)
}

fn transition<'p>(l: &mut Lowerer<'p>, state: &'p ParserState) -> Lowered<()> {
    match &state.transition {
        None => go_to(l, "reject", state.name.span),
        Some(StateTransition::Direct(name)) => go_to(l, &name.text, name.span),
        Some(StateTransition::Select(keys, cases, span)) => select_transition(l, keys, cases, *span),
    }
}

fn state_block(l: &Lowerer<'_>, name: &str, span: SourceSpan) -> Lowered<millstream_ir::Block> {
    let found = l.stage.parser.as_ref().and_then(|parser| match name {
        "accept" => Some(parser.accept),
        "reject" => Some(parser.reject),
        _ => parser.states.get(name).copied(),
    });
    match found {
        Some(block) => Ok(block),
        None => refuse(span, format!("there is no state `{name}`")),
    }
}

fn go_to(l: &mut Lowerer<'_>, name: &str, span: SourceSpan) -> Lowered<()> {
    let block = state_block(l, name, span)?;
    l.emitter.jump(block);
    Ok(())
}

fn select_transition<'p>(
    l: &mut Lowerer<'p>,
    keys: &'p [ExpressionTree],
    cases: &'p [SelectCase],
    span: SourceSpan,
) -> Lowered<()> {
    let mut values = Vec::new();
    for (at, key) in keys.iter().enumerate() {
        let hint = key_hint(l, key, cases, at)?;
        match l.operand(key, hint.as_ref())? {
            Operand::Scalar(scalar) => values.push(scalar),
            Operand::Memory(place) => values.extend(scalars_of(l, &place, key.span)?),
            _ => return refuse(key.span, "this key is not supported"),
        }
    }
    for case in cases {
        let block = state_block(l, &case.state.text, case.state.span)?;
        let truth = keyset(l, &case.keyset, &values)?;
        let next = l.emitter.new_block();
        l.emitter.branch_if(truth, block, next);
        l.emitter.enter(next);
    }
    parser_errors::fail_parser(l, "NoMatch", span)
}

/// Type of a key that is a number without a width: that of a case.
fn key_hint<'p>(
    l: &mut Lowerer<'p>,
    key: &'p ExpressionTree,
    cases: &'p [SelectCase],
    at: usize,
) -> Lowered<Option<RuntimeType>> {
    if l.type_of(key)? != RuntimeType::Integer {
        return Ok(None);
    }
    for case in cases {
        let part = match &case.keyset.kind {
            ExpressionKind::KeysetTuple(parts) => parts.get(at),
            _ => Some(&case.keyset),
        };
        if let Some(part) = part {
            let own = l.type_of(part)?;
            if own.is_scalar() {
                return Ok(Some(own));
            }
        }
    }
    Ok(None)
}

/// Scalars of an aggregate in order.
pub(crate) fn scalars_of(l: &mut Lowerer<'_>, place: &Place, span: SourceSpan) -> Lowered<Vec<Scalar>> {
    if place.value_type.is_scalar() {
        return Ok(vec![l.emitter.load_scalar(place)]);
    }
    let parts = match &place.value_type {
        RuntimeType::Stack(..) => place.elements(),
        RuntimeType::Struct(_) | RuntimeType::Header(_) => place.fields(),
        _ => return refuse(span, "a value of this type is not supported here"),
    };
    let mut scalars = Vec::new();
    for part in parts {
        scalars.extend(scalars_of(l, &part, span)?);
    }
    Ok(scalars)
}

/// Tests if values are in a set.
pub(crate) fn keyset<'p>(l: &mut Lowerer<'p>, set: &'p ExpressionTree, values: &[Scalar]) -> Lowered<Value> {
    let parts: &'p [ExpressionTree] = match &set.kind {
        ExpressionKind::KeysetTuple(parts) => parts,
        ExpressionKind::List(parts) if values.len() == parts.len() => parts,
        ExpressionKind::Anything | ExpressionKind::Default => return Ok(l.emitter.truth(true)),
        _ => std::slice::from_ref(set),
    };
    if parts.len() == 1 {
        if let Some(instance) = instances::find_instance(l, &parts[0])
            && let Instance::ValueSet(number) = &*instance
        {
            return tables::value_set_has(l, *number, values, set.span);
        }
        if values.len() > 1 {
            return equal_to_aggregate(l, &parts[0], values);
        }
    }
    if parts.len() != values.len() {
        return refuse(set.span, "this set has another number of values than the key");
    }
    let mut result = l.emitter.truth(true);
    for (part, value) in parts.iter().zip(values) {
        let truth = set_has(l, part, value)?;
        result = l.emitter.both(result, truth);
    }
    Ok(result)
}

fn equal_to_aggregate<'p>(l: &mut Lowerer<'p>, set: &'p ExpressionTree, values: &[Scalar]) -> Lowered<Value> {
    let place = l.memory(set, None)?;
    let parts = scalars_of(l, &place, set.span)?;
    let mut result = l.emitter.truth(parts.len() == values.len());
    for (part, value) in parts.iter().zip(values) {
        let equal = l.emitter.equal_words(&part.words, &value.words);
        result = l.emitter.both(result, equal);
    }
    Ok(result)
}

/// Tests if a scalar is in a set.
fn set_has<'p>(l: &mut Lowerer<'p>, set: &'p ExpressionTree, value: &Scalar) -> Lowered<Value> {
    let hint = Some(&value.value_type);
    match &set.kind {
        ExpressionKind::Anything | ExpressionKind::Default => Ok(l.emitter.truth(true)),
        ExpressionKind::Binary(BinaryOperator::Mask, wanted, mask) => {
            let (wanted, mask) = (l.scalar(wanted, hint)?, l.scalar(mask, hint)?);
            let e = &mut l.emitter;
            let left = e.bitwise(AluOp::And, &value.words, &mask.words);
            let right = e.bitwise(AluOp::And, &wanted.words, &mask.words);
            Ok(e.equal_words(&left, &right))
        }
        ExpressionKind::Binary(BinaryOperator::Range, low, high) => {
            let (low, high) = (l.scalar(low, hint)?, l.scalar(high, hint)?);
            let (width, is_signed) = (value.width(), value.value_type.is_signed());
            let e = &mut l.emitter;
            let below = e.less_words(&value.words, &low.words, width, is_signed);
            let above = e.less_words(&high.words, &value.words, width, is_signed);
            let outside = e.either(below, above);
            Ok(e.not(outside))
        }
        _ => {
            let instance = instances::find_instance(l, set);
            if let Some(Instance::ValueSet(number)) = instance.as_deref() {
                return tables::value_set_has(l, *number, std::slice::from_ref(value), set.span);
            }
            let wanted = l.scalar(set, hint)?;
            Ok(l.emitter.equal_words(&value.words, &wanted.words))
        }
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

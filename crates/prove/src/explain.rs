//! Logs the differences of two programs: the first calls that only one of them makes mostly show where a
//! proof gets stuck.

use std::collections::BTreeMap;

use rustc_hash::FxHashSet;

use crate::solver::SolverModel;
use crate::state::SymbolicState;
use crate::term::{Sort, TermId, TermNode, TermPool};

/// Depth to which terms are written out.
const DEPTH: u32 = 5;
/// Calls shown of each side.
const MOST: usize = 4;

/// Logs the first calls that only one of two ends depends on.
pub(crate) fn log(terms: &TermPool, a: &SymbolicState, b: &SymbolicState) {
    if !tracing::enabled!(tracing::Level::DEBUG) {
        return;
    }
    let cone = |s: &SymbolicState| -> FxHashSet<TermId> {
        let roots: Vec<TermId> = s.memory.values().chain(s.chains.values()).copied().collect();
        crate::sweep::cone(terms, &roots).into_iter().collect()
    };
    let (x, y) = (cone(a), cone(b));
    for (name, ours, theirs) in [("first", &x, &y), ("second", &y, &x)] {
        let call = |t: &TermId| terms.sort(*t) == Sort::Token && matches!(terms.node(*t), TermNode::App(..));
        let mut only: Vec<TermId> = ours.difference(theirs).copied().filter(call).collect();
        only.sort_unstable();
        for t in only.iter().take(MOST) {
            tracing::debug!("only the {name}: {}", shown(terms, *t, DEPTH));
        }
    }
}

/// Logs the observable that a solver has made differ, and the values.
pub(crate) fn log_model(terms: &TermPool, name: &str, model: &SolverModel) {
    if !tracing::enabled!(tracing::Level::TRACE) {
        return;
    }
    let mut values: Vec<(&TermId, &u64)> = model.iter().collect();
    values.sort_unstable();
    for (t, value) in values {
        tracing::trace!("{name} differs: {value:#x} = t{} = {:.800}", t.index(), shown(terms, *t, DEPTH));
    }
}

/// Logs the number of terms of each kind.
pub(crate) fn log_census(terms: &TermPool) {
    if !tracing::enabled!(tracing::Level::DEBUG) {
        return;
    }
    let mut census: BTreeMap<String, usize> = BTreeMap::new();
    for n in 0..terms.len() as u32 {
        let (node, sort) = (terms.node(TermId::at(n)), terms.sort(TermId::at(n)));
        let text = format!("{node:?}");
        let kind = text.split(['(', ' ']).next().unwrap_or_default();
        *census.entry(format!("{kind} {sort:?}")).or_default() += 1;
    }
    tracing::debug!("{} terms: {census:?}", terms.len());
}

/// A term as text, to a depth.
pub(crate) fn shown(terms: &TermPool, t: TermId, depth: u32) -> String {
    if depth == 0 {
        return format!("t{}", t.index());
    }
    let s = |t: &TermId| shown(terms, *t, depth - 1);
    let all = |list: &[TermId]| list.iter().map(s).collect::<Vec<_>>().join(", ");
    match terms.node(t) {
        TermNode::Truth(b) => b.to_string(),
        TermNode::Const(v) => format!("{v:#x}"),
        TermNode::App(f, args) if args.is_empty() => terms.name(*f).to_owned(),
        TermNode::App(f, args) => format!("{}({})", terms.name(*f), all(args)),
        TermNode::Prim(op, a, b) => format!("{op:?}({}, {})", s(a), s(b)),
        TermNode::Sum(list, k) => {
            let parts: Vec<String> = list.iter().map(|(t, c)| format!("{c:#x}*{}", s(t))).collect();
            format!("({} + {k:#x})", parts.join(" + "))
        }
        TermNode::Concat(list) => format!("[{}]", all(list)),
        TermNode::Extract(a, hi, lo) => format!("{}[{hi}:{lo}]", s(a)),
        TermNode::SignExtend(a) => format!("sx({})", s(a)),
        TermNode::Compare(p, a, b) => format!("{p:?}({}, {})", s(a), s(b)),
        TermNode::Ite(c, a, b) => format!("({} ? {} : {})", s(c), s(a), s(b)),
        TermNode::Select(m, o, f) => format!("{}<{}, {}>", s(m), s(o), s(f)),
        TermNode::Store(m, o, f, b) => format!("{}<{}, {} := {}>", s(m), s(o), s(f), s(b)),
    }
}

//! Logs the differences of two programs: the first calls that only one of them makes mostly show where a
//! proof gets stuck.

use std::collections::BTreeMap;

use rustc_hash::FxHashSet;

use crate::solver::Model;
use crate::state::State;
use crate::term::{Node, Sort, T, Terms};

/// Depth to which terms are written out.
const DEPTH: u32 = 5;
/// Calls shown of each side.
const MOST: usize = 4;

/// Logs the first calls that only one of two ends depends on.
pub(crate) fn log(terms: &Terms, a: &State, b: &State) {
    if !tracing::enabled!(tracing::Level::DEBUG) {
        return;
    }
    let cone = |s: &State| -> FxHashSet<T> {
        let roots: Vec<T> = s.memory.values().chain(s.chains.values()).copied().collect();
        crate::sweep::cone(terms, &roots).into_iter().collect()
    };
    let (x, y) = (cone(a), cone(b));
    for (name, ours, theirs) in [("first", &x, &y), ("second", &y, &x)] {
        let call = |t: &T| terms.sort(*t) == Sort::Token && matches!(terms.node(*t), Node::App(..));
        let mut only: Vec<T> = ours.difference(theirs).copied().filter(call).collect();
        only.sort_unstable();
        for t in only.iter().take(MOST) {
            tracing::debug!("only the {name}: {}", shown(terms, *t, DEPTH));
        }
    }
}

/// Logs the observable that a solver has made differ, and the values.
pub(crate) fn log_model(terms: &Terms, name: &str, model: &Model) {
    if !tracing::enabled!(tracing::Level::TRACE) {
        return;
    }
    let mut values: Vec<(&T, &u64)> = model.iter().collect();
    values.sort_unstable();
    for (t, value) in values {
        tracing::trace!("{name} differs: {value:#x} = t{} = {:.800}", t.index(), shown(terms, *t, DEPTH));
    }
}

/// Logs the number of terms of each kind.
pub(crate) fn log_census(terms: &Terms) {
    if !tracing::enabled!(tracing::Level::DEBUG) {
        return;
    }
    let mut census: BTreeMap<String, usize> = BTreeMap::new();
    for n in 0..terms.len() as u32 {
        let (node, sort) = (terms.node(T::at(n)), terms.sort(T::at(n)));
        let text = format!("{node:?}");
        let kind = text.split(['(', ' ']).next().unwrap_or_default();
        *census.entry(format!("{kind} {sort:?}")).or_default() += 1;
    }
    tracing::debug!("{} terms: {census:?}", terms.len());
}

/// A term as text, to a depth.
pub(crate) fn shown(terms: &Terms, t: T, depth: u32) -> String {
    if depth == 0 {
        return format!("t{}", t.index());
    }
    let s = |t: &T| shown(terms, *t, depth - 1);
    let all = |list: &[T]| list.iter().map(s).collect::<Vec<_>>().join(", ");
    match terms.node(t) {
        Node::Truth(b) => b.to_string(),
        Node::Const(v) => format!("{v:#x}"),
        Node::App(f, args) if args.is_empty() => terms.name(*f).to_owned(),
        Node::App(f, args) => format!("{}({})", terms.name(*f), all(args)),
        Node::Prim(op, a, b) => format!("{op:?}({}, {})", s(a), s(b)),
        Node::Sum(list, k) => {
            let parts: Vec<String> = list.iter().map(|(t, c)| format!("{c:#x}*{}", s(t))).collect();
            format!("({} + {k:#x})", parts.join(" + "))
        }
        Node::Concat(list) => format!("[{}]", all(list)),
        Node::Extract(a, hi, lo) => format!("{}[{hi}:{lo}]", s(a)),
        Node::SignExtend(a) => format!("sx({})", s(a)),
        Node::Compare(p, a, b) => format!("{p:?}({}, {})", s(a), s(b)),
        Node::Ite(c, a, b) => format!("({} ? {} : {})", s(c), s(a), s(b)),
        Node::Select(m, o, f) => format!("{}<{}, {}>", s(m), s(o), s(f)),
        Node::Store(m, o, f, b) => format!("{}<{}, {} := {}>", s(m), s(o), s(f), s(b)),
    }
}

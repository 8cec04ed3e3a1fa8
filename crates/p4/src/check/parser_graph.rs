//! Ends of parsers: states from which no transition leads to `accept` or `reject`.

use crate::ast::{ParserState, StateTransition};
use rustc_hash::{FxHashMap, FxHashSet};

/// Finds the first state that is reached from the start and never ends.
pub(crate) fn endless_state(states: &[ParserState]) -> Option<&ParserState> {
    let reached = closure("start", &successors(states));
    let ending = closure("accept", &predecessors(states));
    states.iter().find(|state| {
        let name = &*state.name.text;
        reached.contains(name) && !ending.contains(name)
    })
}

/// States that follow each other.
type StateEdges<'s> = FxHashMap<&'s str, Vec<&'s str>>;

fn edges(states: &[ParserState]) -> impl Iterator<Item = (&str, &str)> {
    states.iter().flat_map(|state| {
        let targets: Vec<&str> = match &state.transition {
            None => vec!["reject"],
            Some(StateTransition::Direct(target)) => vec![&*target.text],
            // A value that no case has goes to `reject`.
            Some(StateTransition::Select(_, cases, _)) => {
                cases.iter().map(|case| &*case.state.text).chain(["reject"]).collect()
            }
        };
        targets.into_iter().map(|target| (&*state.name.text, target))
    })
}

fn successors(states: &[ParserState]) -> StateEdges<'_> {
    let mut map = StateEdges::default();
    for (from, to) in edges(states) {
        map.entry(from).or_default().push(to);
    }
    map
}

/// Turned edges; `reject` counts as `accept`.
fn predecessors(states: &[ParserState]) -> StateEdges<'_> {
    let mut map = StateEdges::default();
    for (from, to) in edges(states) {
        map.entry(if to == "reject" { "accept" } else { to }).or_default().push(from);
    }
    map
}

fn closure<'s>(from: &'s str, edges: &StateEdges<'s>) -> FxHashSet<&'s str> {
    let mut seen = FxHashSet::default();
    let mut pending = vec![from];
    while let Some(state) = pending.pop() {
        if seen.insert(state) {
            pending.extend(edges.get(state).into_iter().flatten());
        }
    }
    seen
}

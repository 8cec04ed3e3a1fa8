//! Moments of a run: the waiting states and the one that has ended. Two runs are compared at moments of each.

use std::rc::Rc;

use crate::exec::{PendingStates, StateLocation, SymbolicExecutor};
use crate::state::{SymbolicByte, SymbolicState, where_put};
use crate::term::TermPool;
use crate::uninitialized::ProofContext;
use crate::value::SymbolicValues;

/// All states of a run at one time.
#[derive(Clone)]
pub(crate) struct ExecutionFrontier {
    pub(crate) waiting: PendingStates,
    /// The join of the states in which the program has ended.
    pub(crate) ended: Option<SymbolicState>,
}

impl ExecutionFrontier {
    /// All its states, the waiting ones first.
    pub(crate) fn states(&self) -> impl Iterator<Item = &SymbolicState> {
        self.waiting.values().chain(&self.ended)
    }

    pub(crate) fn is_over(&self) -> bool {
        self.waiting.is_empty()
    }
}

impl SymbolicExecutor<'_, '_> {
    /// A state that waits at a place, or has ended, without dead registers and stack bytes, and with all
    /// others simplified under its condition.
    pub(crate) fn simplified_state(
        &mut self,
        key: Option<&StateLocation>,
        state: &SymbolicState,
    ) -> SymbolicState {
        let mut state = state.clone();
        if let Some(key) = key {
            self.forget_dead(key, &mut state);
        }
        self.under_path(&mut state);
        state
    }

    /// Forgets the registers and the bytes of the stack that are dead at a place.
    pub(crate) fn forget_dead(&mut self, key: &StateLocation, state: &mut SymbolicState) {
        let undefined = self.w.values.undefined();
        // Nothing is known here of functions that wait for an inner run.
        let outer = state.frames.len().saturating_sub(key.len());
        for (depth, place) in (outer..).zip(key) {
            let Ok(flow) = self.side.flow(place.entry) else { continue };
            // A function that waits goes on after its call.
            let waits = depth + 1 < outer + key.len();
            let slot = place.slot + usize::from(waits);
            if let Some(frame) = state.frames.get_mut(depth)
                && frame.keys().any(|at| !flow.is_byte_live(slot, *at))
            {
                Rc::make_mut(frame).retain(|at, _| flow.is_byte_live(slot, *at));
            }
            match state.saved.get_mut(depth) {
                Some(saved) => {
                    for (n, v) in saved.iter_mut().enumerate() {
                        if !flow.is_live(place.slot + 1, n + 6) {
                            *v = undefined;
                        }
                    }
                }
                None => {
                    for (n, v) in state.regs.iter_mut().enumerate() {
                        if !flow.is_live(place.slot, n) {
                            *v = undefined;
                        }
                    }
                }
            }
        }
    }

    /// Simplifies all parts of a state under its condition.
    fn under_path(&mut self, state: &mut SymbolicState) {
        let path = state.path;
        let ProofContext { terms, values, .. } = &mut *self.w;
        for v in state.regs.iter_mut().chain(state.saved.iter_mut().flatten()) {
            *v = values.on_path(terms, path, *v);
        }
        for frame in &mut state.frames {
            let cell = |c: &SymbolicByte, terms: &mut TermPool, values: &mut SymbolicValues| match *c {
                SymbolicByte::Byte(t) => Some(SymbolicByte::Byte(terms.under(t, path))),
                SymbolicByte::Part(v, i) => Some(SymbolicByte::Part(values.on_path(terms, path, v), i)),
                SymbolicByte::Half(defined, t) => {
                    let (defined, t) = (terms.under(defined, path), terms.under(t, path));
                    where_put(terms, defined, t)
                }
            };
            let cells = frame.iter().filter_map(|(at, c)| Some((*at, cell(c, terms, values)?)));
            *frame = Rc::new(cells.collect());
        }
        for t in state.memory.values_mut().chain(state.chains.values_mut()) {
            *t = terms.under(*t, path);
        }
        state.length = terms.under(state.length, path);
        state.metadata = terms.under(state.metadata, path);
    }
}

//! State carried over from one configuration to the next: numbers that have the same name in both.

use crate::handlers::HandlerAccess;
use crate::program::{ClickProgram, DropCounter};

/// The number at a place of a state.
fn number(state: &[u8], at: u32) -> u64 {
    let bytes = state.get(at as usize..).and_then(|rest| rest.first_chunk());
    bytes.map_or(0, |bytes| u64::from_le_bytes(*bytes))
}

impl ClickProgram {
    /// Numbers of the state by name: handlers, drops by reason, numbers shared by elements, failed copies.
    fn numbers(&self) -> Vec<(&str, &str, &str, u32)> {
        let handlers = self.handlers.iter().filter_map(|h| match h.access {
            HandlerAccess::Number(at) => Some(("handler", h.element.as_str(), &*h.name, at)),
            _ => None,
        });
        let drops = self.drops.iter().map(|d| ("drop", d.element.as_str(), &*d.reason, d.offset));
        let common = self.common.iter().map(|(name, at)| ("common", "", name.as_str(), *at));
        handlers.chain(drops).chain(common).chain([("uncloned", "", "", self.uncloned)]).collect()
    }

    /// Fills a new state with the values of the same names in another configuration's state. Gives drops that
    /// were counted there and have no place here.
    pub fn import_state(
        &self,
        state: &mut [u8],
        before: &ClickProgram,
        was: &[u8],
    ) -> Vec<(DropCounter, u64)> {
        let old = before.numbers();
        for (kind, element, name, at) in self.numbers() {
            let known = old.iter().find(|(k, e, n, _)| (*k, *e, *n) == (kind, element, name));
            if let Some((.., from)) = known
                && let Some(place) = state.get_mut(at as usize..at as usize + 8)
            {
                place.copy_from_slice(&number(was, *from).to_le_bytes());
            }
        }
        let here = |drop: &DropCounter| {
            self.drops.iter().any(|d| (&d.element, &d.reason) == (&drop.element, &drop.reason))
        };
        let gone = before.drops.iter().filter(|drop| !here(drop));
        gone.map(|drop| (drop.clone(), number(was, drop.offset))).filter(|(_, count)| *count > 0).collect()
    }
}

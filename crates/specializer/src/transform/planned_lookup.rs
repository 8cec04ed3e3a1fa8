//! A lookup with a plan, at the place where it is copied.

use millstream_ir::{Block, Inst, KeyLayout, Map, Value};

use super::abstract_key::AbstractKey;
use super::eval::AbstractValue;
use super::partial_eval::{CopyPosition, PartialEvaluator};
use super::site::SiteId;

/// A lookup with a plan: its key is known in pieces.
#[derive(Clone, Copy)]
pub(crate) struct PlannedLookup<'l> {
    pub(super) site: SiteId,
    pub(super) inst: Inst,
    /// The map; the map that stands for an inner one, if that has a name.
    pub(super) map: Map,
    pub(super) key: &'l AbstractKey,
    pub(super) layout: &'l KeyLayout,
    /// Values of the pieces.
    pub(super) args: &'l [AbstractValue],
    pub(super) at: CopyPosition,
}

impl PlannedLookup<'_> {
    /// The same lookup, made in another block of the copy.
    pub(super) fn in_block(self, out: Block) -> Self {
        PlannedLookup { at: CopyPosition { out, ..self.at }, ..self }
    }

    /// The position behind the lookup, in a block of the copy.
    pub(super) fn behind(&self, out: Block) -> CopyPosition {
        CopyPosition { next: self.at.next + 1, out, ..self.at }
    }

    /// Makes the lookup in a block of the copy.
    pub(super) fn emit(&self, evaluator: &mut PartialEvaluator<'_>, out: Block) -> Value {
        evaluator.residual_lookup(self.inst, self.map, self.key, out)
    }

    /// Returns true if the address of the entry is needed, so that no copy of it will do.
    pub(super) fn needs_address(&self, evaluator: &PartialEvaluator<'_>) -> bool {
        evaluator.addresses.addressed.contains(&self.inst)
    }
}

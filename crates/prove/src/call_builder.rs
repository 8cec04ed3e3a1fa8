//! Calls that are being put together: what they depend on, and what they leave changed.

use crate::term::{Sort, TermId};
use crate::value::{MemorySpace, ValueId};

/// Memory that a call leaves changed.
pub(crate) enum CallOutput {
    /// These bytes at this address.
    Bytes(ValueId, u64),
    /// As many of these bytes as the size says.
    Upto(ValueId, u64, TermId),
    /// Any of these bytes at this address.
    Some(ValueId, u64),
    /// Any bytes of this space.
    Space(MemorySpace),
    /// Any bytes of this map's values, and the set of its entries.
    Map(MemorySpace),
}

/// A call being put together.
#[derive(Default)]
pub(crate) struct CallBuilder {
    /// All terms that it depends on.
    pub(crate) inputs: Vec<TermId>,
    pub(crate) outs: Vec<CallOutput>,
    /// The map that it accesses.
    pub(crate) map: Option<MapHandle>,
    /// True if it always writes all of its write-only memory.
    pub(crate) fills: bool,
    /// Name of the helper or function.
    pub(crate) name: String,
}

/// A map, or an inner map.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum MapHandle {
    Map(u32),
    Inner(u32, TermId),
}

impl MapHandle {
    pub(crate) fn space(self) -> MemorySpace {
        match self {
            MapHandle::Map(map) => MemorySpace::Map(map),
            MapHandle::Inner(map, _) => MemorySpace::Inner(map),
        }
    }
}

/// Suffix of names of functions, so that each function has one signature.
pub(crate) fn signature(sort: Sort) -> String {
    match sort {
        Sort::Bool => "b".to_owned(),
        Sort::Bits(n) => format!("{n}."),
        Sort::Memory => "m".to_owned(),
        Sort::Token => "t".to_owned(),
    }
}

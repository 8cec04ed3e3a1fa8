//! Passes over memory: the stack as values, redundant and dead accesses, wider accesses, keys of maps.
//!
//! Architecture Invariant: loads and stores marked volatile or subject to CO-RE stay as they are; the context
//! is accessed at the sizes of the input; no access reaches a byte that the input did not access on the same
//! path.

mod access_widening;
mod address;
mod alias;
mod atomics;
mod bounds;
mod dse;
mod footprint;
mod forward;
mod keys;
mod lower_keys;
mod memory_ssa;
mod merge_loads;
mod merge_stores;
mod nullness;
mod packet_cursors;
mod promote;
mod spills;
mod split;
pub(crate) mod ssa;
mod types;

pub(crate) use types::refine_types;

use crate::manager::Pass;

/// The passes of this module.
pub(crate) const PASSES: &[Pass] = &[
    Pass::Module(&spills::PromoteSpills),
    Pass::Module(&split::SplitStack),
    Pass::Func(&promote::Mem2Reg),
    Pass::Func(&types::RefineTypes),
    Pass::Func(&packet_cursors::PacketCursors),
    Pass::Func(&forward::StoreForwarding),
    Pass::Func(&nullness::ArrayLookups),
    Pass::Func(&atomics::AtomicAdds),
    Pass::Func(&dse::Dse),
    Pass::Func(&merge_loads::MergeLoads),
    Pass::Func(&merge_stores::MergeStores),
    Pass::Func(&keys::PromoteKeys),
    Pass::Func(&lower_keys::LowerKeys),
];

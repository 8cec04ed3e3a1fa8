//! Passes over the control-flow graph.

mod checks;
mod hoist;
mod if_convert;
mod jump_threading;
mod merge;
mod simplify_cfg;

use crate::manager::Pass;

/// The passes of this module.
pub(crate) const PASSES: &[Pass] = &[
    Pass::Func(&checks::PacketChecks),
    Pass::Func(&simplify_cfg::SimplifyCfg),
    Pass::Func(&jump_threading::JumpThreading),
    Pass::Func(&merge::MergeBlocks),
    Pass::Func(&if_convert::IfConvert),
    Pass::Func(&hoist::HoistAddresses),
];

//! Passes over the control-flow graph.

mod checks;
mod if_convert;
mod hoist;
mod merge;
mod simplify_cfg;
mod jump_threading;

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

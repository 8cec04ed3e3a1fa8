//! Passes over the control-flow graph.

mod checks;
mod convert;
mod hoist;
mod merge;
mod simplify_cfg;
mod thread;

use crate::manager::Pass;

/// The passes of this module.
pub(crate) const PASSES: &[Pass] = &[
    Pass::Func(&checks::PacketChecks),
    Pass::Func(&simplify_cfg::SimplifyCfg),
    Pass::Func(&thread::JumpThreading),
    Pass::Func(&merge::MergeBlocks),
    Pass::Func(&convert::IfConvert),
    Pass::Func(&hoist::Hoist),
];

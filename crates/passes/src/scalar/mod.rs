//! Passes over values: constants, redundancy, dead code.

mod dce;
pub(crate) mod facts;
mod gvn;
mod params;
mod sccp;

pub(crate) use dce::remove_unreachable;
pub(crate) use sccp::propagated_facts;

use crate::manager::Pass;

/// The passes of this module.
pub(crate) const PASSES: &[Pass] = &[
    Pass::Func(&dce::Dce),
    Pass::Func(&gvn::Gvn),
    Pass::Func(&params::RedundantParams),
    Pass::Func(&sccp::Sccp),
];

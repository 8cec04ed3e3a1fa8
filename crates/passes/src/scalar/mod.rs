//! Passes over values: constants, redundancy, dead code.

mod dce;

use crate::manager::Pass;

/// The passes of this module.
pub(crate) const PASSES: &[Pass] = &[Pass::Func(&dce::Dce)];

//! Passes across functions: inlining, removal of functions that nothing refers to.

mod dead;
mod inline;

use crate::manager::Pass;

pub use inline::{fits_last, splice_last};

/// The passes of this module.
pub(crate) const PASSES: &[Pass] = &[
    Pass::Module(&inline::Inline),
    Pass::Module(&inline::InlineLookups),
    Pass::Module(&dead::DeadFunctions),
];

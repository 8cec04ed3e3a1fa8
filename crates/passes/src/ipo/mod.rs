//! Passes across functions: inlining, removal of functions that nothing refers to.

mod dead_functions;
mod inline;

use crate::manager::Pass;

pub use inline::{can_splice_last, inline_calls, splice_last};

/// The passes of this module.
pub(crate) const PASSES: &[Pass] = &[
    Pass::Module(&inline::InlineCalls),
    Pass::Module(&inline::InlineLookups),
    Pass::Module(&dead_functions::DeadFunctions),
];

//! Macros as they are kept.

use crate::lex::SourceToken;
use crate::source::Symbol;

/// A macro.
#[derive(Clone)]
pub(crate) struct MacroDefinition {
    /// Names of the parameters of a function-like macro.
    pub(crate) parameters: Option<Vec<Symbol>>,
    pub(crate) body: Vec<SourceToken>,
}

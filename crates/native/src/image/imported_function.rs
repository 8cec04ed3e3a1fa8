//! Calls to functions outside of the code of an image.

use serde::{Deserialize, Serialize};

/// A call to a function outside of the code.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ImportedFunction {
    pub(super) symbol: String,
    /// Offset of the slot for its address.
    pub(super) at: u64,
}

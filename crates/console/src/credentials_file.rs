//! Files with a user and a password.

use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use miette::{IntoDiagnostic as _, Result, WrapErr as _, miette};

use crate::bounded_read;

/// User and password, as `USER:PASSWORD`, of a file that only its owner may read.
///
/// # Errors
/// If others may read the file, it cannot be read, or it holds something else.
pub fn read(path: &Path) -> Result<String> {
    let named = || format!("cannot read {}", path.display());
    let about = std::fs::metadata(path).into_diagnostic().wrap_err_with(named)?;
    if about.mode() & 0o077 != 0 {
        return Err(miette!("{}: others may read it: chmod 0600 it", path.display()));
    }
    let text = bounded_read::text(path).into_diagnostic().wrap_err_with(named)?;
    let text = text.trim();
    if text.contains(':') {
        Ok(text.to_owned())
    } else {
        Err(miette!("{}: it is not USER:PASSWORD", path.display()))
    }
}

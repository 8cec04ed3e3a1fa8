//! The object of a program: an object file, or the form of a bundle for this machine.

use std::path::Path;

use miette::{IntoDiagnostic, Result, WrapErr};
use millstream_bundle::{Bundle, BundlePolicy, is_bundle};
use millstream_isa::generation::VerifierGeneration;
use millstream_object::Object;

use crate::input;

/// An object, and the form that it is if it came from a bundle.
pub(crate) struct ProgramObject {
    pub(crate) object: Object,
    pub(crate) form: Option<String>,
}

/// Reads an object, or takes the form of a bundle for the running kernel.
pub(crate) fn read(path: &Path, policy: &BundlePolicy) -> Result<ProgramObject> {
    if !is_bundle(path) {
        return Ok(ProgramObject { object: input::read(path)?, form: None });
    }
    let named = || format!("in {}", path.display());
    let bundle = Bundle::read(path).into_diagnostic().wrap_err_with(named)?;
    let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    let chosen = policy.choose(&bundle, VerifierGeneration::of_release(&release));
    let chosen = chosen.into_diagnostic().wrap_err_with(named)?;
    Ok(ProgramObject { object: chosen.object, form: Some(chosen.description) })
}

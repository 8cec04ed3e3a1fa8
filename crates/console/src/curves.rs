//! Curves of this machine, as `millstream lab calibrate --curves` has measured them: for the performance model.

use std::path::{Path, PathBuf};

use miette::{IntoDiagnostic as _, Result, WrapErr as _, miette};
use millstream_lab::environment;
use millstream_prove::ProofCache;
use millstream_tune::MachineCurves;

use crate::bounded_read;

/// File with the curves that were measured last.
pub fn curves_file() -> Option<PathBuf> {
    ProofCache::default_directory().map(|folder| folder.join("curves"))
}

/// Curves of this machine: those of a file, or those that were measured last, if any.
///
/// # Errors
/// If a file that was named cannot be read, or is damaged.
pub fn known_curves(named: Option<&Path>) -> Result<Option<MachineCurves>> {
    let (path, machine) = (named.map(Path::to_owned).or_else(curves_file), environment::machine_line());
    let Some(path) = path.filter(|path| named.is_some() || path.exists()) else { return Ok(None) };
    let at = || path.display().to_string();
    let bytes = bounded_read::bytes(&path).into_diagnostic().wrap_err_with(at)?;
    let text = String::from_utf8_lossy(&bytes);
    let curves = match text.parse::<MachineCurves>() {
        Ok(curves) => curves,
        // Those in the cache are from an older version, or damaged: as if there were none.
        Err(error) if named.is_none() => {
            errln!("warning: {}, {error}: `millstream lab calibrate --curves` measures them again", at());
            return Ok(None);
        }
        Err(error) => return Err(miette!("{}, {error}", at())),
    };
    if curves.machine != machine {
        errln!("warning: {}: the curves are those of another machine ({})", at(), curves.machine);
        return Ok(named.is_some().then_some(curves));
    }
    Ok(Some(curves))
}

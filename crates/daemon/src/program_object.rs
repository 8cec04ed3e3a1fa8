//! The object of a program: an object file, or the form of a bundle for this machine.

use std::path::Path;

use miette::{IntoDiagnostic, Result, WrapErr, miette};
use millstream_bundle::{Bundle, BundlePolicy, PartRole, is_bundle};
use millstream_isa::generation::VerifierGeneration;
use millstream_object::Object;
use millstream_specialize::ProfileSettings;
use millstream_specializer::saved_profile::SavedProfile;

use crate::{bounded_read, input};

/// An object, and the form that it is if it came from a bundle, with the bundle's profile of its lookups.
pub(crate) struct ProgramObject {
    pub(crate) object: Object,
    pub(crate) form: Option<String>,
    pub(crate) profile: Option<SavedProfile>,
}

/// Reads an object, or takes the form of a bundle for the running kernel.
pub(crate) fn read(path: &Path, policy: &BundlePolicy) -> Result<ProgramObject> {
    if !is_bundle(path) {
        return Ok(ProgramObject { object: input::read(path)?, form: None, profile: None });
    }
    let named = || format!("in {}", path.display());
    let bundle = Bundle::read(path).into_diagnostic().wrap_err_with(named)?;
    let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    let chosen = policy.choose(&bundle, VerifierGeneration::of_release(&release));
    let chosen = chosen.into_diagnostic().wrap_err_with(named)?;
    let profile = bundled_profile(&bundle).wrap_err_with(named)?;
    Ok(ProgramObject { object: chosen.object, form: Some(chosen.description), profile })
}

fn bundled_profile(bundle: &Bundle) -> Result<Option<SavedProfile>> {
    let Some(part) = bundle.parts().iter().find(|part| part.role == PartRole::Profile) else {
        return Ok(None);
    };
    let text = std::str::from_utf8(bundle.data(part)).into_diagnostic()?;
    SavedProfile::parse(text).into_diagnostic().map(Some).wrap_err_with(|| format!("part {:?}", part.name))
}

/// The profile that a session begins with: that of its file, if there is one, else that of the bundle.
pub(crate) fn profile_settings(
    file: Option<&Path>,
    bundled: Option<SavedProfile>,
) -> Result<ProfileSettings> {
    let Some(path) = file else { return Ok(ProfileSettings { start: bundled, file: None }) };
    let start = if path.exists() { Some(saved_profile(path)?) } else { bundled };
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
    if let Some(folder) = folder.filter(|folder| !folder.is_dir()) {
        return Err(miette!("{}: there is no folder {}", path.display(), folder.display()));
    }
    Ok(ProfileSettings { start, file: Some(path.to_owned()) })
}

fn saved_profile(path: &Path) -> Result<SavedProfile> {
    let text =
        bounded_read::text(path).into_diagnostic().wrap_err_with(|| format!("in {}", path.display()))?;
    SavedProfile::parse(&text).map_err(|e| {
        miette!(help = "name another file: a session would replace this one", "{}: {e}", path.display())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const PROFILE: &str = r#"{"schema":1,"program":"p","learnt_at_s":7,"packets":9,"lookups":[]}"#;

    #[test]
    fn a_file_comes_before_a_bundle_and_is_never_replaced_if_it_is_no_profile() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("profile");
        let bundled = || SavedProfile::parse(&PROFILE.replace("7", "3")).ok();
        let start =
            |file| profile_settings(file, bundled()).map(|settings| settings.start.map(|p| p.learnt_at));
        assert_eq!(start(None).expect("settings"), Some(3));
        assert_eq!(start(Some(&path)).expect("settings"), Some(3));
        std::fs::write(&path, PROFILE).expect("it is written");
        assert_eq!(start(Some(&path)).expect("settings"), Some(7));
        std::fs::write(&path, "my diary").expect("it is written");
        assert!(start(Some(&path)).is_err());
        assert!(start(Some(&folder.path().join("none/profile"))).is_err());
    }
}

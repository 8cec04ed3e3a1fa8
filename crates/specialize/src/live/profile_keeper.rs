//! The profile that a session began with, until traffic has shown how well it fits, and the one that it leaves.

use std::io::{self, Write};
use std::path::Path;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use millstream_specializer::profile::SiteProfile;
use millstream_specializer::saved_profile::{self, SavedProfile};
use tempfile::NamedTempFile;

use super::settings::ProfileSettings;

/// Shortest time from one writing of the file to the next.
const INTERVAL: Duration = Duration::from_secs(60);

/// Profiles of other sessions, and for them.
#[derive(Debug, Default)]
pub(super) struct ProfileKeeper {
    /// Profile for which the first variant was made.
    expected: Option<Vec<SiteProfile>>,
    /// The last one, if it was not written yet.
    unwritten: Option<SavedProfile>,
    written_at: Option<Instant>,
}

impl ProfileKeeper {
    /// Notes the profile for which the first variant is made.
    pub(super) fn expect(&mut self, profiles: Vec<SiteProfile>) {
        self.expected = Some(profiles);
    }

    /// Share of the lookups seen now whose keys were expected, the first time that there are any.
    pub(super) fn fit(&mut self, now: &[SiteProfile]) -> Option<f64> {
        let share = saved_profile::fit(self.expected.as_ref()?, now)?;
        self.expected = None;
        Some(share)
    }

    /// Takes a newer profile; returns it if it is time to write the file.
    pub(super) fn take_if_due(&mut self, saved: SavedProfile) -> Option<SavedProfile> {
        if self.written_at.is_some_and(|at| at.elapsed() < INTERVAL) {
            self.unwritten = Some(saved);
            return None;
        }
        (self.unwritten, self.written_at) = (None, Some(Instant::now()));
        Some(saved)
    }

    /// Writes the last profile, if that was not done yet.
    pub(super) fn save_rest(self, settings: &ProfileSettings) {
        if let (Some(saved), Some(file)) = (self.unwritten, &settings.file) {
            save(&saved, file);
        }
    }
}

/// Seconds since 1970.
pub(super) fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs()
}

/// Writes a profile. The session goes on without the file.
pub(super) fn save(profile: &SavedProfile, file: &Path) {
    if let Err(e) = write(profile, file) {
        tracing::warn!("writing the profile to {}: {e}", file.display());
    }
}

/// Writes the file, which then is there whole, or as it was. Only its owner may read it: keys may be addresses of
/// people.
fn write(profile: &SavedProfile, path: &Path) -> io::Result<()> {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
    let mut file = NamedTempFile::new_in(folder.unwrap_or(Path::new(".")))?;
    file.write_all(profile.text().as_bytes())?;
    file.persist(path).map_err(|failed| failed.error)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_profile_is_written_at_once_then_once_a_minute_and_at_the_end() {
        let text = |packets| {
            format!(r#"{{"schema":1,"program":"p","learnt_at_s":7,"packets":{packets},"lookups":[]}}"#)
        };
        let profile = |packets| SavedProfile::parse(&text(packets)).expect("a profile");
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("profile");
        let settings = ProfileSettings { start: None, file: Some(path.clone()) };
        let mut keeper = ProfileKeeper::default();
        assert_eq!(keeper.take_if_due(profile(1)), Some(profile(1)));
        assert_eq!(keeper.take_if_due(profile(2)), None);
        assert_eq!(keeper.take_if_due(profile(3)), None);
        keeper.save_rest(&settings);
        let text = std::fs::read_to_string(&path).expect("it is there");
        assert_eq!(SavedProfile::parse(&text).expect("a profile"), profile(3));
        assert!(write(&profile(4), &folder.path().join("none/profile")).is_err());
        assert_eq!(std::fs::read_dir(folder.path()).expect("a folder").count(), 1, "nothing is left over");
    }
}

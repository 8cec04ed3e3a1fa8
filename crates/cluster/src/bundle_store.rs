//! Bundles on a node: those that are installed, where the daemon's configuration names them, and those that a return
//! needs.
//!
//! `PROGRAM.tar` is installed; `PROGRAM.reference` says where it came from. `PROGRAM.initial` is the bundle that was
//! there before. `pulled/DIGEST.tar` are bundles that were pulled, so that a return needs no registry.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::{fs, io};

use millstream_bundle::{BundleError, RegistryAccess, RegistryReference};

use crate::resource::{BundleTarget, NodeSpec};

/// Reasons why bundles cannot be installed.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// The name of a program or a reference has no permitted form.
    #[error("{0:?} is no program or no reference by digest")]
    Name(String),
    /// The registry does not give the bundle.
    #[error("{reference}: {source}")]
    Bundle {
        /// Place of the bundle.
        reference: String,
        /// The reason.
        source: Box<BundleError>,
    },
    /// A file cannot be read or written.
    #[error("{path}: {source}")]
    File {
        /// The file.
        path: PathBuf,
        /// The reason.
        source: io::Error,
    },
    /// There was no bundle before the first that was installed.
    #[error("{0} had no bundle before: name one in the node's `spec.bundles`")]
    NoInitial(String),
}

/// A folder of bundles.
#[derive(Clone, Debug)]
pub struct BundleStore {
    folder: PathBuf,
    registry: RegistryAccess,
}

impl BundleStore {
    /// A store in a folder that only its owner may write to. The folder is made for the first bundle.
    pub fn new(folder: &Path, registry: RegistryAccess) -> BundleStore {
        BundleStore { folder: folder.to_owned(), registry }
    }

    /// Bundles that are installed, by program.
    ///
    /// # Errors
    /// If the folder cannot be read.
    pub fn installed(&self) -> Result<Vec<BundleTarget>, StoreError> {
        let failed = |source| StoreError::File { path: self.folder.clone(), source };
        let mut targets = Vec::new();
        let entries = match fs::read_dir(&self.folder) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(targets),
            entries => entries.map_err(failed)?,
        };
        for entry in entries {
            let path = entry.map_err(failed)?.path();
            let is_reference = path.extension().is_some_and(|ending| ending == "reference");
            let Some(program) = path.file_stem().and_then(|stem| stem.to_str()).filter(|_| is_reference)
            else {
                continue;
            };
            let program = program.to_owned();
            let reference = fs::read_to_string(&path).map_err(|source| StoreError::File { path, source })?;
            targets.push(BundleTarget { program, reference });
        }
        targets.sort_by(|a, b| a.program.cmp(&b.program));
        Ok(targets)
    }

    /// Installs the bundles of a node, and puts earlier ones back where it names none; returns true if something
    /// changed.
    ///
    /// # Errors
    /// If a bundle cannot be had. Those before it are installed.
    pub fn install(&self, spec: &NodeSpec) -> Result<bool, StoreError> {
        let installed = self.installed()?;
        // All are pulled before one is installed.
        let new: Vec<&BundleTarget> =
            spec.bundles.iter().filter(|target| !installed.contains(target)).collect();
        let pulled = new.iter().map(|target| self.pulled(target)).collect::<Result<Vec<_>, _>>()?;
        for (target, pulled) in new.iter().zip(&pulled) {
            self.keep_initial(&target.program)?;
            self.replace(&target.program, pulled)?;
            self.write_reference(target)?;
        }
        let is_named = |program: &str| spec.bundles.iter().any(|target| target.program == program);
        let leftover: Vec<_> = installed.iter().filter(|target| !is_named(&target.program)).collect();
        for target in &leftover {
            self.restore_initial(&target.program)?;
        }
        self.prune(spec);
        Ok(!new.is_empty() || !leftover.is_empty())
    }

    fn path(&self, program: &str, ending: &str) -> PathBuf {
        self.folder.join(format!("{program}.{ending}"))
    }

    /// The file of a bundle, which is pulled if it is not there.
    fn pulled(&self, target: &BundleTarget) -> Result<PathBuf, StoreError> {
        if !is_program(&target.program) {
            return Err(StoreError::Name(target.program.clone()));
        }
        let wrong = || StoreError::Name(target.reference.clone());
        let path = self.pulled_path(target).ok_or_else(wrong)?;
        if path.exists() {
            return Ok(path);
        }
        let folder = self.folder.join("pulled");
        fs::create_dir_all(&folder).map_err(|source| StoreError::File { path: folder, source })?;
        let reference: RegistryReference = target.reference.parse().map_err(|_| wrong())?;
        let failed =
            |source| StoreError::Bundle { reference: target.reference.clone(), source: Box::new(source) };
        self.registry.pull(&reference).map_err(failed)?.write(&path).map_err(failed)?;
        Ok(path)
    }

    fn pulled_path(&self, target: &BundleTarget) -> Option<PathBuf> {
        let (_, digest) = target.reference.rsplit_once("@sha256:")?;
        let is_digest = digest.len() == 64 && digest.bytes().all(|byte| byte.is_ascii_hexdigit());
        is_digest.then(|| self.folder.join("pulled").join(format!("{digest}.tar")))
    }

    /// Keeps the bundle that is there before the first is installed.
    fn keep_initial(&self, program: &str) -> Result<(), StoreError> {
        let (current, initial) = (self.path(program, "tar"), self.path(program, "initial"));
        // With an initial bundle the last installation was cut off: the current one may be the new one.
        if self.path(program, "reference").exists() || initial.exists() || !current.exists() {
            return Ok(());
        }
        copy(&current, &initial)
    }

    fn restore_initial(&self, program: &str) -> Result<(), StoreError> {
        let initial = self.path(program, "initial");
        if !initial.exists() {
            return Err(StoreError::NoInitial(program.to_owned()));
        }
        self.replace(program, &initial)?;
        for path in [self.path(program, "reference"), initial] {
            fs::remove_file(&path).map_err(|source| StoreError::File { path, source })?;
        }
        Ok(())
    }

    fn replace(&self, program: &str, by: &Path) -> Result<(), StoreError> {
        copy(by, &self.path(program, "tar"))
    }

    fn write_reference(&self, target: &BundleTarget) -> Result<(), StoreError> {
        let path = self.path(&target.program, "reference");
        fs::write(&path, &target.reference).map_err(|source| StoreError::File { path, source })
    }

    /// Removes pulled bundles that neither the node's state nor a return to the one before needs.
    fn prune(&self, spec: &NodeSpec) {
        let before = spec.rollout.iter().flat_map(|mark| &mark.previous.bundles);
        let needed: BTreeSet<PathBuf> =
            spec.bundles.iter().chain(before).filter_map(|target| self.pulled_path(target)).collect();
        let Ok(entries) = fs::read_dir(self.folder.join("pulled")) else { return };
        for path in entries.flatten().map(|entry| entry.path()).filter(|path| !needed.contains(path)) {
            if let Err(error) = fs::remove_file(&path) {
                tracing::warn!("{}: {error}", path.display());
            }
        }
    }
}

/// Copies a file; the target is replaced as a whole, and its time is that of the copy.
fn copy(from: &Path, to: &Path) -> Result<(), StoreError> {
    let failed = |source| StoreError::File { path: to.to_owned(), source };
    let partial = to.with_extension("partial");
    fs::copy(from, &partial).map_err(failed)?;
    fs::rename(&partial, to).map_err(failed)
}

/// Returns true for a name that is one file's.
fn is_program(name: &str) -> bool {
    let is_plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    let is_inner = |byte: u8| is_plain(byte) || b"._-".contains(&byte);
    let ends = name.bytes().next().zip(name.bytes().last());
    name.len() <= 63 && name.bytes().all(is_inner) && ends.is_some_and(|(a, b)| is_plain(a) && is_plain(b))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn store(folder: &Path) -> BundleStore {
        let registry = RegistryAccess { time: Duration::from_secs(1), plain_http: true, credentials: None };
        BundleStore::new(folder, registry)
    }

    fn target(digit: &str) -> BundleTarget {
        BundleTarget {
            program: "router".into(),
            reference: format!("127.0.0.1:1/r@sha256:{}", digit.repeat(64)),
        }
    }

    fn spec(targets: &[BundleTarget]) -> NodeSpec {
        NodeSpec { bundles: targets.to_vec(), ..NodeSpec::default() }
    }

    #[test]
    fn a_return_needs_no_registry_and_ends_with_the_first_bundle() {
        let folder = tempfile::tempdir().unwrap();
        let store = store(folder.path());
        fs::create_dir(folder.path().join("pulled")).unwrap();
        let read = || fs::read_to_string(folder.path().join("router.tar")).unwrap();
        fs::write(folder.path().join("router.tar"), "initial").unwrap();
        assert!(!store.install(&NodeSpec::default()).unwrap());
        fs::write(store.pulled_path(&target("1")).unwrap(), "1").unwrap();
        assert!(store.install(&spec(&[target("1")])).unwrap());
        assert_eq!((read().as_str(), store.installed().unwrap()), ("1", vec![target("1")]));
        assert!(!store.install(&spec(&[target("1")])).unwrap());
        // The second bundle, in a rollout: the first stays at hand.
        fs::write(store.pulled_path(&target("2")).unwrap(), "2").unwrap();
        let previous = spec(&[target("1")]).target();
        let mark = crate::resource::RolloutMark { name: "r".into(), previous };
        let changed = NodeSpec { rollout: Some(mark), ..spec(&[target("2")]) };
        assert!(store.install(&changed).unwrap());
        assert_eq!(read(), "2");
        assert!(store.install(&spec(&[target("1")])).unwrap());
        assert_eq!(read(), "1");
        assert!(!store.pulled_path(&target("2")).unwrap().exists());
        assert!(store.install(&NodeSpec::default()).unwrap());
        assert_eq!((read().as_str(), store.installed().unwrap()), ("initial", Vec::new()));
        // An installation that was cut off behind the exchange of the bundle.
        fs::write(folder.path().join("router.initial"), "initial").unwrap();
        fs::write(folder.path().join("router.tar"), "1").unwrap();
        fs::write(store.pulled_path(&target("1")).unwrap(), "1").unwrap();
        assert!(store.install(&spec(&[target("1")])).unwrap());
        assert!(store.install(&NodeSpec::default()).unwrap());
        assert_eq!(read(), "initial");
    }

    #[test]
    fn a_bundle_that_cannot_be_had_changes_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let store = store(folder.path());
        fs::write(folder.path().join("router.tar"), "initial").unwrap();
        assert!(matches!(store.install(&spec(&[target("1")])), Err(StoreError::Bundle { .. })));
        let outside = BundleTarget { program: "../router".into(), ..target("1") };
        assert!(matches!(store.install(&spec(&[outside])), Err(StoreError::Name(_))));
        assert_eq!(fs::read_to_string(folder.path().join("router.tar")).unwrap(), "initial");
        assert!(store.installed().unwrap().is_empty());
    }
}

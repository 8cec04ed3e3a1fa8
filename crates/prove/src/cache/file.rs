//! Answers in a file: one per line, appended.
//!
//! Several processes may append at once, for a line is written with one call. A truncated or changed line is
//! ignored.
//!
//! Invariants: an answer counts as the user's own only if it has the tag of the user's key and nobody else
//! may write to the file or its folder. The file is opened without following links, and is never a device or
//! a pipe.

use std::io::{self, Read as _, Seek as _, SeekFrom, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::Path;

use rustc_hash::{FxHashMap, FxHashSet};
use rustix::fs::OFlags;

use super::key::is_private;
use super::record::{CacheRecord, RecordError, RecordSigner, SigningKeys};
use super::{CacheHit, QueryDigest, StoreKey, TrustLevel};

/// Name of the file.
const NAME: &str = "proofs.txt";
/// Largest file, in bytes: beyond it the older half is dropped, and no more is read.
const LARGEST: u64 = 64 << 20;

/// The file, open for adding.
pub(super) struct CacheFile {
    file: std::fs::File,
    key: Option<StoreKey>,
    /// The user's own answers that were in the file when it was opened.
    had: FxHashSet<QueryDigest>,
    failed: bool,
}

/// File and content of a folder.
pub(super) struct LoadedCache {
    pub(super) file: CacheFile,
    pub(super) known: FxHashMap<QueryDigest, CacheHit>,
    /// Lines that are damaged.
    pub(super) damaged: u64,
}

impl CacheFile {
    /// Opens the file of a folder; creates both if need be.
    pub(super) fn open(directory: &Path, keys: &SigningKeys) -> io::Result<LoadedCache> {
        std::fs::DirBuilder::new().recursive(true).mode(0o700).create(directory)?;
        let path = directory.join(NAME);
        let flags = (OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC).bits() as i32;
        let open = || {
            let mut options = std::fs::OpenOptions::new();
            options.read(true).append(true).create(true).mode(0o600).custom_flags(flags).open(&path)
        };
        let mut file = open()?;
        let about = file.metadata()?;
        if !about.is_file() || about.nlink() != 1 {
            return Err(io::Error::other(format!("{} is no file of its own", path.display())));
        }
        let private = is_private(&about) && is_private(&std::fs::metadata(directory)?);
        if !private {
            let shown = directory.display();
            tracing::warn!(
                "others may write to {shown}: answers there prove nothing; chmod 0700 it if it is yours"
            );
        }
        let (bytes, cut) = newest(&mut file, about.len())?;
        let (mut known, mut had) = (FxHashMap::default(), FxHashSet::default());
        let (mut damaged, mut foreign) = (0, 0);
        for line in bytes.split(|b| *b == b'\n').filter(|l| !l.is_empty()) {
            let line = std::str::from_utf8(line).map_err(|_| RecordError::Damaged);
            let line = match line.and_then(|line| CacheRecord::parse(line, keys)) {
                Ok(line) => line,
                Err(error) => {
                    *(if error == RecordError::Damaged { &mut damaged } else { &mut foreign }) += 1;
                    continue;
                }
            };
            let standing = match line.signer {
                RecordSigner::User if private => TrustLevel::Own,
                RecordSigner::Team if keys.trust => TrustLevel::Trusted,
                _ => TrustLevel::Hint,
            };
            if standing == TrustLevel::Own {
                had.insert(line.key);
            } else if had.contains(&line.key) {
                continue;
            }
            known.insert(line.key, CacheHit { entry: line.entry, standing });
        }
        let shown = path.display();
        if damaged > 0 {
            tracing::warn!("{shown}: {damaged} damaged lines are ignored");
        }
        if foreign > 0 {
            tracing::debug!("{shown}: {foreign} lines were made by another version, and are ignored");
        }
        if cut {
            replace(directory, &path, &bytes)?;
            file = open()?;
        }
        if bytes.last().is_some_and(|b| *b != b'\n') {
            // A truncated line must not swallow the next one.
            file.write_all(b"\n")?;
        }
        let key = keys.user.clone();
        Ok(LoadedCache { file: CacheFile { file, key, had, failed: false }, known, damaged })
    }

    /// Returns true if this answer was the user's own and in the file when it was opened.
    pub(super) fn had(&self, key: &QueryDigest) -> bool {
        self.had.contains(key)
    }

    /// Appends an answer of this process.
    pub(super) fn append(&mut self, key: &QueryDigest, entry: &super::CachedAnswer) {
        let Some(line) = CacheRecord::text(key, entry, self.key.as_ref()) else { return };
        let written = self.file.write_all(format!("{line}\n").as_bytes());
        if let Err(e) = written
            && !std::mem::replace(&mut self.failed, true)
        {
            tracing::warn!("proofs are not kept: {e}");
        }
    }
}

/// The newest whole lines of a file, as many as may be kept; also returns true if there are more.
fn newest(file: &mut std::fs::File, length: u64) -> io::Result<(Vec<u8>, bool)> {
    let cut = length > LARGEST;
    let mut bytes = Vec::new();
    if cut {
        file.seek(SeekFrom::Start(length - LARGEST / 2))?;
    }
    file.take(LARGEST).read_to_end(&mut bytes)?;
    if cut {
        let start = bytes.iter().position(|b| *b == b'\n').map_or(bytes.len(), |n| n + 1);
        bytes.drain(..start);
    }
    Ok((bytes, cut))
}

/// Writes the file anew. What another process adds meanwhile may be lost.
fn replace(directory: &Path, path: &Path, bytes: &[u8]) -> io::Result<()> {
    let mut new = tempfile::NamedTempFile::new_in(directory)?;
    new.write_all(bytes)?;
    new.persist(path)?;
    Ok(())
}

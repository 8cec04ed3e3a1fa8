//! Answers in a file: one a line, added at the end.
//!
//! Several processes may add at once, for a line is written with one call. A line that was cut off or changed is ignored.

use std::io::Write as _;
use std::path::Path;

use rustc_hash::{FxHashMap, FxHashSet};

use super::{Entry, Key, parsed};

/// Name of the file.
const NAME: &str = "proofs.txt";
/// Largest file, in bytes: beyond it the older half is dropped.
const LARGEST: u64 = 64 << 20;

/// The file, open for adding.
pub(super) struct File {
    file: std::fs::File,
    /// What was there at the beginning.
    had: FxHashSet<Key>,
    failed: bool,
}

impl File {
    /// Gives also what it holds, and how many lines are damaged.
    pub(super) fn open(directory: &Path) -> std::io::Result<(File, FxHashMap<Key, Entry>, u64)> {
        std::fs::create_dir_all(directory)?;
        let path = directory.join(NAME);
        let bytes = match std::fs::read(&path) {
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => Vec::new(),
            other => other?,
        };
        let (mut known, mut damaged) = (FxHashMap::default(), 0);
        for line in bytes.split(|b| *b == b'\n').filter(|l| !l.is_empty()) {
            match std::str::from_utf8(line).ok().and_then(parsed) {
                Some((key, entry)) => {
                    known.insert(key, entry);
                }
                None => damaged += 1,
            }
        }
        if damaged > 0 {
            let shown = path.display();
            tracing::warn!("{shown}: {damaged} damaged lines are ignored");
        }
        if bytes.len() as u64 > LARGEST {
            halve(directory, &path, &bytes)?;
        }
        let mut file = std::fs::OpenOptions::new().create(true).append(true).open(&path)?;
        if bytes.last().is_some_and(|b| *b != b'\n') {
            // What was cut off must not take the next line with it.
            file.write_all(b"\n")?;
        }
        let had = known.keys().copied().collect();
        Ok((File { file, had, failed: false }, known, damaged))
    }

    /// Whether this answer was in the file when it was opened.
    pub(super) fn had(&self, key: &Key) -> bool {
        self.had.contains(key)
    }

    /// Adds a line.
    pub(super) fn append(&mut self, line: &str) {
        let written = self.file.write_all(format!("{line}\n").as_bytes());
        if let Err(e) = written
            && !std::mem::replace(&mut self.failed, true)
        {
            tracing::warn!("proofs are not kept: {e}");
        }
    }
}

/// Drops the older half. What another process adds meanwhile may be lost.
fn halve(directory: &Path, path: &Path, bytes: &[u8]) -> std::io::Result<()> {
    let middle = bytes.len() / 2;
    let start = bytes[middle..].iter().position(|b| *b == b'\n').map_or(bytes.len(), |n| middle + n + 1);
    let mut new = tempfile::NamedTempFile::new_in(directory)?;
    new.write_all(&bytes[start..])?;
    new.persist(path)?;
    Ok(())
}

//! Leftovers of a killed laboratory, and the way to find them again.
//!
//! A rig's namespace has a name below `/run/netns`, so that `ip netns exec` finds it; the name is the only
//! thing that outlives the process, and it keeps the namespace with its interfaces alive. It says whose it
//! is, by process id and start time, so that a name whose process is gone can be told from one in use, also
//! when the process id was given to another process since. Programs, maps and links die with the process.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

use crate::error::{Error, Result};
use crate::os;

const DIRECTORY: &str = "/run/netns";
const PREFIX: &str = "millstream-lab-";

/// The name of a namespace, which goes when this is dropped.
#[derive(Debug)]
pub(crate) struct NamespaceName {
    path: PathBuf,
}

impl NamespaceName {
    /// Names the namespace of the calling thread.
    pub(crate) fn new() -> Result<Self> {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let me = std::process::id();
        let started = started(me).ok_or_else(|| Error::Unusable("/proc/self/stat cannot be read".into()))?;
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let path = Path::new(DIRECTORY).join(format!("{PREFIX}{me}-{started}-{number}"));
        fs::create_dir_all(DIRECTORY).map_err(|e| Error::io(format!("making {DIRECTORY}"), e))?;
        let naming = |e| Error::io(format!("naming the namespace {}", path.display()), e);
        fs::File::create_new(&path).map_err(naming)?;
        // From here on, dropping removes the file.
        let name = NamespaceName { path: path.clone() };
        os::bind_mount(Path::new("/proc/thread-self/ns/net"), &path).map_err(naming)?;
        Ok(name)
    }

    /// Path of the file.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for NamespaceName {
    fn drop(&mut self) {
        if let Err(e) = remove(&self.path) {
            tracing::warn!("{}: {e}", self.path.display());
        }
    }
}

fn remove(path: &Path) -> io::Result<()> {
    // Not mounted, if naming was interrupted half-way: then there is only the file.
    let _ = os::unmount(path);
    fs::remove_file(path)
}

/// The names whose process is gone.
///
/// # Errors
/// If the directory of names exists and cannot be read.
pub fn find() -> Result<Vec<PathBuf>> {
    let entries = match fs::read_dir(DIRECTORY) {
        Ok(entries) => entries,
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(e) => return Err(Error::io(format!("reading {DIRECTORY}"), e)),
    };
    let mut found: Vec<PathBuf> =
        entries.flatten().map(|e| e.path()).filter(|p| owner(p).is_some_and(|o| !o.is_alive())).collect();
    found.sort();
    Ok(found)
}

/// Removes the leftovers that [`find`] finds, and returns their paths. Interfaces go with their namespace. A
/// leftover that another process removes at the same time counts as removed.
///
/// # Errors
/// If one cannot be removed.
pub fn clean() -> Result<Vec<PathBuf>> {
    let found = find()?;
    for path in &found {
        match remove(path) {
            Err(e) if e.kind() != io::ErrorKind::NotFound => {
                return Err(Error::io(format!("removing {}", path.display()), e));
            }
            _ => {}
        }
    }
    Ok(found)
}

struct NamespaceOwner {
    pid: u32,
    started: u64,
}

impl NamespaceOwner {
    fn is_alive(&self) -> bool {
        started(self.pid) == Some(self.started)
    }
}

fn owner(path: &Path) -> Option<NamespaceOwner> {
    let mut parts = path.file_name()?.to_str()?.strip_prefix(PREFIX)?.split('-');
    let (pid, started) = (parts.next()?.parse().ok()?, parts.next()?.parse().ok()?);
    Some(NamespaceOwner { pid, started })
}

/// When a process started, in clock ticks since boot (proc(5), field 22 of `stat`).
fn started(pid: u32) -> Option<u64> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The command's name may hold anything, blanks and parentheses too; the last parenthesis ends it.
    let (_, rest) = stat.rsplit_once(')')?;
    rest.split_whitespace().nth(19)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_tells_its_process() {
        let me = std::process::id();
        let mine = started(me).unwrap();
        let name = |pid, start| PathBuf::from(format!("{DIRECTORY}/{PREFIX}{pid}-{start}-0"));
        assert!(owner(&name(me, mine)).unwrap().is_alive());
        assert!(!owner(&name(me, mine + 1)).unwrap().is_alive(), "the process id was given away again");
        assert!(owner(Path::new("/run/netns/somebody-elses")).is_none());
        assert!(owner(Path::new("/run/netns/millstream-lab-x-1-0")).is_none());
    }
}

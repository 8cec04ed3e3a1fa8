//! What outlives this process: links and maps pinned in a directory of a BPF file system.
//!
//! `link` is the program's attachment, `guard_enter` and `guard_exit` the guard's, `maps/NAME` the object's maps. If a
//! session is killed, packets go on through `link`, and the guard goes on revoking. The next session with the same
//! directory takes over the link and the maps, and only then removes the old guard.

use std::io;
use std::path::{Path, PathBuf};

use millstream_kernel::{Error, Link, Map};

const LINK: &str = "link";
const GUARD: [&str; 2] = ["guard_enter", "guard_exit"];
const MAPS: &str = "maps";

/// A directory of pins.
#[derive(Clone, Debug)]
pub struct Pins {
    directory: PathBuf,
}

/// Why the directory cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum PinError {
    /// It cannot be made, or removed.
    #[error("{path}: {source}")]
    Directory {
        /// The directory.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// Something cannot be pinned or opened there.
    #[error(transparent)]
    Kernel(#[from] Error),
}

impl Pins {
    /// A directory below a BPF file system; it is made when something is put there.
    pub fn new(directory: impl Into<PathBuf>) -> Self {
        Pins { directory: directory.into() }
    }

    /// The directory.
    pub fn directory(&self) -> &Path {
        &self.directory
    }

    /// Makes the directory.
    ///
    /// # Errors
    /// If it cannot be made, such as for want of a BPF file system.
    pub fn make(&self) -> Result<(), PinError> {
        let path = self.directory.join(MAPS);
        std::fs::create_dir_all(&path).map_err(|source| PinError::Directory { path, source })
    }

    /// The attachment that an earlier session left.
    pub fn link(&self) -> Option<Link> {
        Link::from_pin(&self.directory.join(LINK)).ok()
    }

    /// Pins the attachment.
    ///
    /// # Errors
    /// What the kernel refuses.
    pub fn pin_link(&self, link: &Link) -> Result<(), PinError> {
        Ok(link.pin(&self.directory.join(LINK))?)
    }

    /// A map that an earlier session left.
    pub fn map(&self, name: &str) -> Option<Map> {
        Map::from_pin(&self.map_path(name)).ok()
    }

    /// Pins a map, unless it is there already.
    ///
    /// # Errors
    /// What the kernel refuses.
    pub fn pin_map(&self, name: &str, map: &Map) -> Result<(), PinError> {
        let path = self.map_path(name);
        if path.exists() { Ok(()) } else { Ok(map.pin(&path)?) }
    }

    /// A BPF file system takes no full stop in names.
    fn map_path(&self, name: &str) -> PathBuf {
        self.directory.join(MAPS).join(name.replace('.', "_"))
    }

    /// Unpins the guard of an earlier session, which detaches it.
    pub fn remove_guard(&self) {
        for name in GUARD {
            // Most often there is none.
            let _ = std::fs::remove_file(self.directory.join(name));
        }
    }

    /// Unpins everything.
    pub fn remove(&self) {
        // Remove what is attached before what guards it.
        let _ = std::fs::remove_file(self.directory.join(LINK));
        self.remove_guard();
        for entry in std::fs::read_dir(self.directory.join(MAPS)).into_iter().flatten().flatten() {
            let _ = std::fs::remove_file(entry.path());
        }
        let _ = std::fs::remove_dir(self.directory.join(MAPS));
        let _ = std::fs::remove_dir(&self.directory);
    }
}

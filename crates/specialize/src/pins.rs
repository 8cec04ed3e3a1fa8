//! State that outlives this process: links and maps pinned in a directory of a BPF file system.
//!
//! `link_IFACE` is the program's attachment to an interface, `guard_enter`, `guard_exit` and those ending in
//! `32` are the guard's, `maps/NAME` the object's maps, `before_IFACE` (for TC programs
//! `before_IFACE+ingress`, `+egress`) the program whose place was taken and is to be given back. Before Linux
//! 6.6 a TC program is attached by a filter, which cannot be pinned: `filter_IFACE+ingress` (`+egress`) is the
//! program by which the filter is found, `clsact_IFACE+ingress` says that its queueing discipline is ours, too.
//! If a session is killed, packets go on, and the guard goes on revoking. The next session with the same
//! directory takes over the pins that it finds: `attachment`.
//!
//! Invariants: one session at a time has a directory (`PinDirLock`). The claim is a lock of the kernel's, so
//! that it ends with its process however that ends; others can neither take it nor hold it, since only its
//! owner may open the directory. Nothing is opened or removed in a directory that somebody else can change
//! ([`check_pin_dir`]).

use std::fs::{File, TryLockError};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use millstream_kernel::{
    KernelError, KernelMap, KernelProgram, Link, PinDirError, check_pin, check_pin_dir, create_pin_dir,
};

use crate::guard;

const LINK: &str = "link_";
const BEFORE: &str = "before_";
const FILTER: &str = "filter_";
const CLSACT: &str = "clsact_";
const MAPS: &str = "maps";

/// Default parent of directories of pins.
pub const DEFAULT_PINS: &str = "/sys/fs/bpf/millstream";

/// The default directory below a parent: one for each interface, or set of interfaces, of each network namespace.
#[must_use]
pub fn default_pins(parent: &Path, name: &str) -> PathBuf {
    let namespace = std::fs::metadata("/proc/thread-self/ns/net").map_or(0, |m| m.ino());
    parent.join(format!("{}_{namespace}", name.replace('.', "_")))
}

/// A directory of pins.
#[derive(Clone, Debug)]
pub struct PinDir {
    directory: PathBuf,
}

/// Reason why the directory cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum PinError {
    /// It cannot be made, or opened.
    #[error("{path}: {source}")]
    Directory {
        /// The directory.
        path: PathBuf,
        /// The reason.
        source: io::Error,
    },
    /// Nothing can be pinned there, or others could change the pins.
    #[error(transparent)]
    Place(#[from] PinDirError),
    /// Another session has it.
    #[error("{path}: another session is at work there")]
    Busy {
        /// The directory.
        path: PathBuf,
    },
    /// A pin of an earlier session belongs to another interface.
    #[error("{path} is pinned for interface {ifindex}")]
    Elsewhere {
        /// The pin.
        path: PathBuf,
        /// The other interface's index.
        ifindex: u32,
    },
    /// Something cannot be pinned or opened there.
    #[error(transparent)]
    Kernel(#[from] KernelError),
}

/// A directory of pins, ours until this is dropped. An empty directory is then removed.
#[derive(Debug)]
pub(crate) struct PinDirLock {
    pins: PinDir,
    _lock: File,
}

impl Drop for PinDirLock {
    fn drop(&mut self) {
        self.pins.remove_directories();
    }
}

impl PinDir {
    /// Names a directory below a BPF file system; it is made when something is put there.
    pub fn new(directory: impl Into<PathBuf>) -> Self {
        PinDir { directory: directory.into() }
    }

    /// The directory.
    pub fn directory(&self) -> &Path {
        &self.directory
    }

    /// Makes the directory, and takes it for this session.
    ///
    /// # Errors
    /// If it is not on a BPF file system, cannot be made, or another session has it.
    pub(crate) fn claim(&self) -> Result<PinDirLock, PinError> {
        let failed = |source| PinError::Directory { path: self.directory.clone(), source };
        loop {
            match create_pin_dir(&self.directory).and_then(|()| create_pin_dir(&self.directory.join(MAPS))) {
                // Another session has just left, and removed the directory.
                Err(PinDirError::Io { source, .. }) if source.kind() == io::ErrorKind::NotFound => continue,
                made => made?,
            }
            let lock = File::open(&self.directory).map_err(failed)?;
            match lock.try_lock() {
                Ok(()) => {}
                Err(TryLockError::WouldBlock) => return Err(PinError::Busy { path: self.directory.clone() }),
                Err(TryLockError::Error(source)) => return Err(failed(source)),
            }
            // The session before may have removed the directory between our opening and our locking it.
            let ours = lock.metadata().map_err(failed)?.ino();
            if std::fs::metadata(&self.directory).is_ok_and(|there| there.ino() == ours) {
                return Ok(PinDirLock { pins: self.clone(), _lock: lock });
            }
        }
    }

    /// Returns true if nobody else can change the pins; pins that could be changed are not looked at.
    fn are_ours(&self) -> bool {
        let maps = self.directory.join(MAPS);
        let checked = check_pin_dir(&self.directory).and_then(|()| match maps.symlink_metadata() {
            Ok(_) => check_pin_dir(&maps),
            Err(_) => Ok(()),
        });
        match checked {
            Err(PinDirError::Io { source, .. }) if source.kind() == io::ErrorKind::NotFound => false,
            Err(error) => {
                tracing::warn!("{error}: what is pinned there is left alone");
                false
            }
            Ok(()) => true,
        }
    }

    /// The attachments that an earlier session left, and the paths of their pins.
    pub fn links(&self) -> Vec<(PathBuf, Link)> {
        let found = self.entries(LINK).into_iter();
        found.filter_map(|path| Link::from_pin(&path).ok().map(|link| (path, link))).collect()
    }

    /// Pins the attachment to an interface.
    ///
    /// # Errors
    /// Errors of the kernel.
    pub fn pin_link(&self, interface: &str, link: &Link) -> Result<(), PinError> {
        Ok(link.pin(&self.path(LINK, interface))?)
    }

    /// Unpins the attachment to an interface, which detaches it unless somebody holds it.
    pub(crate) fn remove_link(&self, interface: &str) {
        remove(&self.path(LINK, interface));
    }

    /// Unpins a link that [`PinDir::links`] found.
    pub(crate) fn remove_pin(&self, path: &Path) {
        remove(path);
    }

    /// The program whose place on an interface an earlier session took.
    pub(crate) fn before(&self, interface: &str) -> Option<KernelProgram> {
        let path = self.path(BEFORE, interface);
        if !self.are_ours() || check_pin(&path).is_err() {
            return None;
        }
        KernelProgram::from_pin(&path).ok()
    }

    /// The program whose place on an interface an earlier session took, if the program there now is that
    /// session's.
    pub(crate) fn replaced_program(
        &self,
        interface: &str,
        present: &KernelProgram,
    ) -> Result<Option<KernelProgram>, KernelError> {
        let ours = self.holds_map_of(present)?;
        Ok(self.before(interface).filter(|_| ours))
    }

    /// Returns true if one of the pinned maps belongs to a program.
    pub(crate) fn holds_map_of(&self, program: &KernelProgram) -> Result<bool, KernelError> {
        let held = program.info()?.map_ids;
        Ok(self.maps().iter().any(|m| held.contains(&m.id())))
    }

    /// Keeps the program whose place on an interface is taken.
    pub(crate) fn pin_before(&self, interface: &str, program: &KernelProgram) -> Result<(), PinError> {
        self.remove_before(interface);
        Ok(program.pin(&self.path(BEFORE, interface))?)
    }

    /// Forgets the program whose place was taken.
    pub(crate) fn remove_before(&self, interface: &str) {
        remove(&self.path(BEFORE, interface));
    }

    /// The program that an earlier session attached by a filter of its own.
    pub(crate) fn filter(&self, label: &str) -> Option<KernelProgram> {
        let path = self.path(FILTER, label);
        if !self.are_ours() || check_pin(&path).is_err() {
            return None;
        }
        KernelProgram::from_pin(&path).ok()
    }

    /// Keeps the program that is attached by a filter, and records if the queueing discipline was added for
    /// it.
    pub(crate) fn pin_filter(
        &self,
        label: &str,
        program: &KernelProgram,
        own_clsact: bool,
    ) -> Result<(), PinError> {
        self.remove_filter(label);
        if own_clsact {
            program.pin(&self.path(CLSACT, label))?;
        }
        Ok(program.pin(&self.path(FILTER, label))?)
    }

    /// Returns true if the queueing discipline of a filter was added for it.
    pub(crate) fn owns_clsact(&self, label: &str) -> bool {
        self.are_ours() && check_pin(&self.path(CLSACT, label)).is_ok()
    }

    /// Forgets a filter of our own.
    pub(crate) fn remove_filter(&self, label: &str) {
        remove(&self.path(FILTER, label));
        remove(&self.path(CLSACT, label));
    }

    /// A pin of an interface.
    fn path(&self, kind: &str, interface: &str) -> PathBuf {
        self.directory.join(format!("{kind}{}", file_name(interface)))
    }

    /// Pins in the directory whose names begin with `kind`.
    fn entries(&self, kind: &str) -> Vec<PathBuf> {
        if !self.are_ours() {
            return Vec::new();
        }
        let all = std::fs::read_dir(&self.directory).into_iter().flatten().flatten();
        all.filter(|e| e.file_name().to_string_lossy().starts_with(kind))
            .map(|e| e.path())
            .filter(|path| check_pin(path).is_ok())
            .collect()
    }

    /// The pins of maps.
    fn map_pins(&self) -> Vec<PathBuf> {
        if !self.are_ours() {
            return Vec::new();
        }
        let entries = std::fs::read_dir(self.directory.join(MAPS)).into_iter().flatten().flatten();
        entries.map(|e| e.path()).filter(|path| check_pin(path).is_ok()).collect()
    }

    /// A map that an earlier session left.
    ///
    /// # Errors
    /// If the pin is no map, or may not be opened.
    pub fn map(&self, name: &str) -> Result<Option<KernelMap>, PinError> {
        let path = self.map_path(name);
        if !path.exists() {
            return Ok(None);
        }
        check_pin_dir(&self.directory.join(MAPS))?;
        check_pin(&path)?;
        Ok(Some(KernelMap::from_pin(&path)?))
    }

    /// All maps that an earlier session left.
    pub(crate) fn maps(&self) -> Vec<KernelMap> {
        self.map_pins().iter().filter_map(|path| KernelMap::from_pin(path).ok()).collect()
    }

    /// Pins a map, unless it is there already; returns true if it is pinned for the first time.
    ///
    /// # Errors
    /// Errors of the kernel.
    pub fn pin_map(&self, name: &str, map: &KernelMap) -> Result<bool, PinError> {
        let path = self.map_path(name);
        if path.exists() {
            return Ok(false);
        }
        map.pin(&path)?;
        Ok(true)
    }

    /// Unpins a map.
    pub(crate) fn remove_map(&self, name: &str) {
        remove(&self.map_path(name));
    }

    fn map_path(&self, name: &str) -> PathBuf {
        self.directory.join(MAPS).join(file_name(name))
    }

    /// Unpins the guard of an earlier session, which detaches it.
    pub fn remove_guard(&self) {
        for name in guard::PINS {
            remove(&self.directory.join(name));
        }
    }

    /// Unpins everything: the attachments before their guard. Nothing is unpinned if others could put links
    /// in the way.
    pub fn remove(&self) {
        if !self.are_ours() {
            return;
        }
        for kind in [LINK, BEFORE, FILTER, CLSACT] {
            self.entries(kind).iter().for_each(|path| remove(path));
        }
        self.remove_guard();
        self.map_pins().iter().for_each(|path| remove(path));
        self.remove_directories();
    }

    /// Removes the directories if they are empty.
    fn remove_directories(&self) {
        let _ = std::fs::remove_dir(self.directory.join(MAPS));
        let _ = std::fs::remove_dir(&self.directory);
    }
}

/// Removes the pins of sessions that were killed, below `parent`: the directories called `prefix` and the
/// number of a process that no longer exists. For sessions on interfaces of their own, to which nobody comes
/// back.
pub fn remove_abandoned(parent: &Path, prefix: &str) {
    for entry in std::fs::read_dir(parent).into_iter().flatten().flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        if let Some(process) = name.strip_prefix(prefix)
            && !Path::new("/proc").join(process).exists()
        {
            PinDir::new(entry.path()).remove();
        }
    }
}

/// Name of a pin: a BPF file system takes no full stop in names.
fn file_name(name: &str) -> String {
    name.replace('.', "_")
}

/// Unpins `path`. Most often there is no pin, and a failure is not reported.
fn remove(path: &Path) {
    let _ = std::fs::remove_file(path);
}

//! Places for pins that no other user can change.
//!
//! Pins decide which code runs: a user who can write to a directory of pins can take the guard of specialised
//! code away, put another map in the place of one, or another program in the place of the original. A BPF
//! file system is mounted with mode 1777 unless told otherwise, so that every user may make directories in
//! it. Therefore each directory from the mount down must belong to this user or to root, and be writable for
//! its owner alone; only those above the directory of pins may be written by others if they are sticky, so
//! that no other user can rename or remove their entries. Directories are made with mode 0700. Then nothing
//! on the way can be exchanged between the check and the use.

use std::fs::{DirBuilder, Metadata, Permissions};
use std::io;
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

use crate::probe::on_bpf_filesystem;

/// Permission bits that let others than the owner write.
const WRITABLE: u32 = 0o022;
/// Permission bit of directories in which only owners may rename and remove.
const STICKY: u32 = 0o1000;
/// Mode of directories of pins.
const MODE: u32 = 0o700;

/// Reason why pins at a place cannot be relied on.
#[derive(Debug, thiserror::Error)]
pub enum PinDirError {
    /// It cannot be made, or looked at.
    #[error("{path}: {source}")]
    Io {
        /// The directory or pin.
        path: PathBuf,
        /// The system's reason.
        source: io::Error,
    },
    /// Nothing can be pinned there.
    #[error("{path} is not on a BPF file system, so nothing can be pinned there")]
    NotBpf {
        /// The directory.
        path: PathBuf,
    },
    /// It belongs to another user, who can change the pins.
    #[error("{path} belongs to user {owner}, who could remove or replace what is pinned there")]
    Foreign {
        /// The directory or pin.
        path: PathBuf,
        /// Its owner.
        owner: u32,
    },
    /// Others may change the pins.
    #[error("{path} has mode {mode:04o}: others could remove or replace what is pinned there")]
    Writable {
        /// The directory or pin.
        path: PathBuf,
        /// Its mode.
        mode: u32,
    },
    /// It is a link, or not a directory where one must be.
    #[error("{path} is a link or not of the right kind, so it is not what was pinned")]
    Kind {
        /// The path.
        path: PathBuf,
    },
}

impl PinDirError {
    /// Advice on what to do about it.
    pub fn hint(&self) -> String {
        match self {
            PinDirError::Io { .. } => "run as root".to_owned(),
            PinDirError::NotBpf { .. } => MOUNT.to_owned(),
            PinDirError::Foreign { path, .. } | PinDirError::Kind { path } => format!(
                "look at who made it, remove it (`rm -r {}`), and keep others out: `chmod 0700` of the mount, or \
                 `mount -t bpf -o mode=0700 bpf /sys/fs/bpf`",
                path.display()
            ),
            PinDirError::Writable { path, .. } => format!("`chmod 0700 {}`", path.display()),
        }
    }

    /// The error number of the system call that failed, if one did.
    pub fn errno(&self) -> Option<i32> {
        match self {
            PinDirError::Io { source, .. } => source.raw_os_error(),
            _ => None,
        }
    }
}

/// Command that mounts a BPF file system for root alone.
pub const MOUNT: &str = "mount -t bpf -o mode=0700 bpf /sys/fs/bpf";

type Result<T> = std::result::Result<T, PinDirError>;

/// Checks that only this user can change the pins in a directory.
///
/// # Errors
/// [`PinDirError`], for the first directory from the mount down that is not as it must be, or that
/// is not there.
pub fn check_pin_dir(directory: &Path) -> Result<()> {
    for part in parts(directory)? {
        check_directory(&part, part == directory)?;
    }
    Ok(())
}

/// Makes a directory for pins, and those above it that are not there, each for this user alone. One that is
/// there and this user's is closed to others.
///
/// # Errors
/// [`PinDirError`], if one that is there is not as it must be, or one cannot be made.
pub fn create_pin_dir(directory: &Path) -> Result<()> {
    let there = directory.ancestors().find(|a| a.symlink_metadata().is_ok()).unwrap_or(Path::new("/"));
    if !is_bpf(there)? {
        return Err(PinDirError::NotBpf { path: directory.to_owned() });
    }
    let missing: Vec<&Path> = directory.ancestors().take_while(|a| *a != there).collect();
    for path in missing.into_iter().rev() {
        check_place_above(path)?;
        match DirBuilder::new().mode(MODE).create(path) {
            // Made by another session of ours, or by a stranger: the check tells.
            Err(e) if e.kind() == io::ErrorKind::AlreadyExists => {}
            made => made.map_err(|source| PinDirError::Io { path: path.to_owned(), source })?,
        }
    }
    let about = about(directory)?;
    if about.is_dir() && about.uid() == user() && about.mode() & 0o777 & !MODE != 0 {
        let closed = std::fs::set_permissions(directory, Permissions::from_mode(MODE));
        closed.map_err(|source| PinDirError::Io { path: directory.to_owned(), source })?;
    }
    check_pin_dir(directory)
}

/// Checks that a pin is this user's, or root's, and no link.
///
/// # Errors
/// [`PinDirError`].
pub fn check_pin(path: &Path) -> Result<()> {
    let about = about(path)?;
    if !about.is_file() {
        return Err(PinDirError::Kind { path: path.to_owned() });
    }
    check_owner(path, &about, false)
}

/// Checks the directories above one that is about to be made.
fn check_place_above(path: &Path) -> Result<()> {
    let Some(parent) = path.parent() else { return Ok(()) };
    for part in parts(parent)? {
        check_directory(&part, false)?;
    }
    Ok(())
}

/// Directories from the mount of a BPF file system down to this one.
fn parts(directory: &Path) -> Result<Vec<PathBuf>> {
    let mut parts = Vec::new();
    for part in directory.ancestors() {
        let part = if part.as_os_str().is_empty() { Path::new(".") } else { part };
        if !is_bpf(part)? {
            break;
        }
        parts.push(part.to_owned());
    }
    if parts.is_empty() {
        return Err(PinDirError::NotBpf { path: directory.to_owned() });
    }
    parts.reverse();
    Ok(parts)
}

fn is_bpf(path: &Path) -> Result<bool> {
    on_bpf_filesystem(path).map_err(|e| {
        let source = e.errno().map_or_else(|| io::Error::other(e.to_string()), io::Error::from_raw_os_error);
        PinDirError::Io { path: path.to_owned(), source }
    })
}

/// `last` is the directory of pins itself, which only its owner may write to.
fn check_directory(path: &Path, last: bool) -> Result<()> {
    let about = about(path)?;
    if !about.is_dir() {
        return Err(PinDirError::Kind { path: path.to_owned() });
    }
    check_owner(path, &about, !last)
}

fn check_owner(path: &Path, about: &Metadata, sticky: bool) -> Result<()> {
    if ![user(), 0].contains(&about.uid()) {
        return Err(PinDirError::Foreign { path: path.to_owned(), owner: about.uid() });
    }
    let mode = about.mode() & 0o7777;
    if mode & WRITABLE != 0 && !(sticky && mode & STICKY != 0) {
        return Err(PinDirError::Writable { path: path.to_owned(), mode });
    }
    Ok(())
}

fn about(path: &Path) -> Result<Metadata> {
    path.symlink_metadata().map_err(|source| PinDirError::Io { path: path.to_owned(), source })
}

fn user() -> u32 {
    rustix::process::geteuid().as_raw()
}

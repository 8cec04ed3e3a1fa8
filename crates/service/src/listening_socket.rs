//! A Unix socket that only its owner may open.

use std::fs::{DirBuilder, File, OpenOptions, Permissions};
use std::io;
use std::os::unix::fs::{
    DirBuilderExt as _, FileTypeExt as _, MetadataExt as _, OpenOptionsExt as _, PermissionsExt as _,
};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};

use rustix::fs::{Mode, OFlags};
use rustix::process::geteuid;

/// Reasons why there is no socket.
#[derive(Debug, thiserror::Error)]
pub enum SocketError {
    /// Another process uses it.
    #[error("{path}: another daemon listens there")]
    Busy {
        /// The socket.
        path: PathBuf,
    },
    /// Others could replace the socket, or hold its lock.
    #[error("{path} is not safe: {why}")]
    Exposed {
        /// The folder or the lock.
        path: PathBuf,
        /// The reason.
        why: String,
    },
    /// A file that is not a socket is there.
    #[error("{path} is there, and is no socket")]
    Other {
        /// The file.
        path: PathBuf,
    },
    /// The socket cannot be created.
    #[error("{path}: {source}")]
    Io {
        /// The socket, or its folder or lock.
        path: PathBuf,
        /// Error of the system call.
        source: io::Error,
    },
}

/// A Unix socket; removed when this is dropped.
#[derive(Debug)]
pub struct ListeningSocket {
    path: PathBuf,
    /// The socket itself.
    pub listener: UnixListener,
    /// Held so that of two daemons that start at once only one wins. The file is never removed: another
    /// process could create and lock a new one while a third still holds the old one.
    _lock: File,
}

impl ListeningSocket {
    /// Binds a path; removes the socket that a killed daemon has left there.
    pub fn bind(path: &Path) -> Result<ListeningSocket, SocketError> {
        let failed = |source| SocketError::Io { path: path.to_owned(), source };
        if let Some(parent) = path.parent().filter(|p| !p.as_os_str().is_empty() && !p.exists()) {
            DirBuilder::new().recursive(true).mode(0o755).create(parent).map_err(failed)?;
        }
        own_folder(path)?;
        let lock = lock(&path.with_extension("lock"))?;
        if lock.try_lock().is_err() {
            return Err(SocketError::Busy { path: path.to_owned() });
        }
        // A client may connect as soon as it sees the file, but bind(2) shows it before listen(2): it gets
        // its name when it listens. The lock, which is named after the same stem, keeps other daemons from
        // the first name, too.
        let unheard = path.with_extension("new");
        for name in [path, &unheard] {
            if std::fs::symlink_metadata(name).is_ok_and(|there| !there.file_type().is_socket()) {
                return Err(SocketError::Other { path: name.to_owned() });
            }
        }
        // Its creator had the lock, and was killed before the file had its name.
        match std::fs::remove_file(&unheard) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(failed(error)),
            _ => {}
        }
        let before = rustix::process::umask(Mode::from_raw_mode(0o177));
        let listener = UnixListener::bind(&unheard);
        rustix::process::umask(before);
        let listener = listener.map_err(failed)?;
        // Replaces the file that a killed daemon has left.
        if let Err(error) = std::fs::rename(&unheard, path) {
            let _ = std::fs::remove_file(&unheard);
            return Err(failed(error));
        }
        Ok(ListeningSocket { path: path.to_owned(), listener, _lock: lock })
    }
}

impl Drop for ListeningSocket {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.path);
    }
}

/// Checks that only this user, or root, can rename and remove files in a socket's folder.
fn own_folder(path: &Path) -> Result<(), SocketError> {
    let folder = path.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let about =
        std::fs::metadata(folder).map_err(|source| SocketError::Io { path: folder.to_owned(), source })?;
    let why = if ![geteuid().as_raw(), 0].contains(&about.uid()) {
        format!("it belongs to user {}", about.uid())
    } else if about.mode() & 0o022 != 0 && about.mode() & 0o1000 == 0 {
        format!("others may write to it (mode {:04o})", about.mode() & 0o7777)
    } else {
        return Ok(());
    };
    Err(SocketError::Exposed { path: folder.to_owned(), why })
}

/// Opens a file for locking; creates it if needed. It belongs to this user and nobody else may open it, so
/// that nobody else can hold the lock. Its contents, or the target of a link, are not touched.
fn lock(path: &Path) -> Result<File, SocketError> {
    let failed = |source| SocketError::Io { path: path.to_owned(), source };
    let exposed = |why: String| SocketError::Exposed { path: path.to_owned(), why };
    let flags = (OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC).bits() as i32;
    let mut options = OpenOptions::new();
    options.write(true).create(true).truncate(false).mode(0o600).custom_flags(flags);
    let file = options.open(path).map_err(|source| match source.raw_os_error() {
        Some(libc::ELOOP) => exposed("it is a link".into()),
        // The kernel's error for other users' files where everybody may write (fs.protected_regular).
        Some(libc::EACCES) if path.exists() => exposed("it belongs to another user".into()),
        _ => failed(source),
    })?;
    let about = file.metadata().map_err(failed)?;
    if !about.is_file() || about.nlink() != 1 {
        return Err(exposed("it is no file of its own".into()));
    }
    if about.uid() != geteuid().as_raw() {
        return Err(exposed(format!("it belongs to user {}", about.uid())));
    }
    // Created by a version that let others read it, and so lock it.
    file.set_permissions(Permissions::from_mode(0o600)).map_err(failed)?;
    Ok(file)
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixStream;

    use super::*;

    fn folder(name: &str) -> PathBuf {
        let folder = std::env::temp_dir().join(format!("millstream-socket-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&folder).expect("a folder");
        folder
    }

    #[test]
    fn who_sees_the_file_can_connect() {
        let folder = folder("seen");
        for round in 0..500 {
            let path = folder.join(format!("{round}.sock"));
            let client = std::thread::spawn({
                let path = path.clone();
                move || loop {
                    match UnixStream::connect(&path) {
                        Err(error) if error.kind() == io::ErrorKind::NotFound => std::hint::spin_loop(),
                        other => return other.map(drop),
                    }
                }
            });
            let socket = ListeningSocket::bind(&path).expect("bound");
            client.join().expect("the client ends").expect("connected");
            drop(socket);
        }
        std::fs::remove_dir_all(&folder).expect("removed");
    }

    #[test]
    fn what_killed_daemons_left_is_replaced_and_what_is_no_socket_stays() {
        let folder = folder("left");
        let (path, unheard) = (folder.join("daemon.sock"), folder.join("daemon.new"));
        drop(UnixListener::bind(&path).expect("bound"));
        drop(UnixListener::bind(&unheard).expect("bound"));
        let socket = ListeningSocket::bind(&path).expect("bound in place of them");
        UnixStream::connect(&path).expect("connected");
        assert!(!unheard.exists());
        assert_eq!(std::fs::metadata(&path).expect("it is there").permissions().mode() & 0o777, 0o600);
        assert!(matches!(ListeningSocket::bind(&path), Err(SocketError::Busy { .. })));
        drop(socket);
        assert!(!path.exists());
        for name in [&path, &unheard] {
            std::fs::write(name, "mine").expect("written");
            let error = ListeningSocket::bind(&path).expect_err("no socket");
            assert!(matches!(&error, SocketError::Other { path } if path == name), "{error}");
            assert_eq!(std::fs::read_to_string(name).expect("it stays"), "mine");
            std::fs::remove_file(name).expect("removed");
        }
        std::fs::remove_dir_all(&folder).expect("removed");
    }

    fn mode(path: &Path, mode: u32) {
        std::fs::set_permissions(path, Permissions::from_mode(mode)).expect("changed");
    }

    #[test]
    fn a_lock_follows_no_link_truncates_nothing_and_only_its_owner_can_open_it() {
        let folder = folder("lock");
        let (path, file, aim) = (folder.join("d.sock"), folder.join("d.lock"), folder.join("aim"));
        std::fs::write(&aim, "precious").expect("written");
        std::os::unix::fs::symlink(&aim, &file).expect("a link");
        assert!(matches!(ListeningSocket::bind(&path), Err(SocketError::Exposed { .. })), "a symbolic link");
        std::fs::remove_file(&file).expect("removed");
        std::fs::hard_link(&aim, &file).expect("a link");
        assert!(matches!(ListeningSocket::bind(&path), Err(SocketError::Exposed { .. })), "a hard link");
        std::fs::remove_file(&file).expect("removed");
        assert_eq!(std::fs::read_to_string(&aim).expect("it stays"), "precious");
        // The file's contents stay, and it is closed to others.
        std::fs::write(&file, "text").expect("written");
        mode(&file, 0o666);
        let socket = ListeningSocket::bind(&path).expect("bound");
        assert_eq!(std::fs::metadata(&file).expect("there").permissions().mode() & 0o7777, 0o600);
        assert_eq!(std::fs::read_to_string(&file).expect("it stays"), "text");
        drop(socket);
        std::fs::remove_dir_all(&folder).expect("removed");
    }

    #[test]
    fn a_place_that_a_stranger_can_change_or_lock_is_refused() {
        let folder = folder("stranger");
        let (path, file) = (folder.join("d.sock"), folder.join("d.lock"));
        mode(&folder, 0o777);
        assert!(matches!(ListeningSocket::bind(&path), Err(SocketError::Exposed { .. })), "others may write");
        mode(&folder, 0o1777);
        drop(ListeningSocket::bind(&path).expect("bound where nobody removes what is others'"));
        let chown = |path: &Path, user| std::os::unix::fs::chown(path, Some(user), None).is_ok();
        if chown(&folder, 54_321) {
            assert!(
                matches!(ListeningSocket::bind(&path), Err(SocketError::Exposed { .. })),
                "a stranger's folder"
            );
            assert!(chown(&folder, 0) && chown(&file, 54_321));
            assert!(
                matches!(ListeningSocket::bind(&path), Err(SocketError::Exposed { .. })),
                "a stranger's lock"
            );
        }
        std::fs::remove_dir_all(&folder).expect("removed");
    }
}

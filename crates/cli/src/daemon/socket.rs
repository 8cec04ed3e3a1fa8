//! The daemon's socket: a Unix socket that only its owner may open.

use std::fs::{DirBuilder, File};
use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::unix::fs::{DirBuilderExt, FileTypeExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use rustix::fs::Mode;

use super::Daemon;
use super::protocol::{Answer, LONGEST, Question, Reply, SCHEMA};

/// How long a client may be silent.
const PATIENCE: Duration = Duration::from_secs(60);
/// Clients at a time.
const CLIENTS: usize = 32;

/// Why there is no socket.
#[derive(Debug, thiserror::Error)]
pub(crate) enum SocketError {
    /// Another daemon has it.
    #[error("{path}: another daemon is at work there")]
    Busy { path: PathBuf },
    /// Something that is no socket is there.
    #[error("{path} is there, and is no socket")]
    Other { path: PathBuf },
    /// It cannot be made.
    #[error("{path}: {source}")]
    Io { path: PathBuf, source: io::Error },
}

/// The socket, which is ours until this is dropped. It goes with it.
#[derive(Debug)]
pub(crate) struct Socket {
    path: PathBuf,
    pub(crate) listener: UnixListener,
    /// Locked, so that of two daemons that start at once one is the first. The file stays: who removed it could have
    /// it made anew and locked by another while a third still has the old one.
    _lock: File,
}

impl Socket {
    /// Takes a path; what a daemon that was killed has left there is removed.
    pub(crate) fn bind(path: &Path) -> Result<Socket, SocketError> {
        let failed = |source| SocketError::Io { path: path.to_owned(), source };
        if let Some(parent) = path.parent().filter(|p| !p.as_os_str().is_empty() && !p.exists()) {
            DirBuilder::new().recursive(true).mode(0o755).create(parent).map_err(failed)?;
        }
        let lock = File::create(path.with_extension("lock")).map_err(failed)?;
        if lock.try_lock().is_err() {
            return Err(SocketError::Busy { path: path.to_owned() });
        }
        // A client may connect as soon as it sees the file, but bind(2) shows it before listen(2): it gets its name
        // when it listens. The lock, which is named after the same stem, keeps other daemons from the first name, too.
        let unheard = path.with_extension("new");
        for name in [path, &unheard] {
            if std::fs::symlink_metadata(name).is_ok_and(|there| !there.file_type().is_socket()) {
                return Err(SocketError::Other { path: name.to_owned() });
            }
        }
        // Whoever made it had the lock, and was killed before it had its name.
        match std::fs::remove_file(&unheard) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(failed(error)),
            _ => {}
        }
        let before = rustix::process::umask(Mode::from_raw_mode(0o177));
        let listener = UnixListener::bind(&unheard);
        rustix::process::umask(before);
        let listener = listener.map_err(failed)?;
        // Takes the place of what a daemon that was killed has left.
        if let Err(error) = std::fs::rename(&unheard, path) {
            let _ = std::fs::remove_file(&unheard);
            return Err(failed(error));
        }
        Ok(Socket { path: path.to_owned(), listener, _lock: lock })
    }
}

impl Drop for Socket {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.path);
    }
}

/// Answers questions, for as long as the process lives.
pub(super) fn serve(listener: &UnixListener, daemon: &Arc<Daemon>) {
    static OPEN: AtomicUsize = AtomicUsize::new(0);
    for stream in listener.incoming() {
        let Ok(stream) = stream else { continue };
        if OPEN.load(Ordering::SeqCst) >= CLIENTS {
            let refused = Answer::Refused {
                message: "too many are connected".into(),
                help: Some("try again in a moment".into()),
            };
            let _ = say(&stream, refused);
            continue;
        }
        OPEN.fetch_add(1, Ordering::SeqCst);
        let daemon = Arc::clone(daemon);
        std::thread::spawn(move || {
            if let Err(error) = converse(&stream, &daemon) {
                tracing::debug!("socket: {error}");
            }
            OPEN.fetch_sub(1, Ordering::SeqCst);
        });
    }
}

fn converse(stream: &UnixStream, daemon: &Arc<Daemon>) -> io::Result<()> {
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    let mut reader = BufReader::new(stream);
    loop {
        let mut line = Vec::new();
        (&mut reader).take(LONGEST).read_until(b'\n', &mut line)?;
        if line.is_empty() {
            return Ok(());
        }
        let whole = line.ends_with(b"\n");
        let answer = if whole || (line.len() as u64) < LONGEST {
            understood(&line).map_or_else(|refused| refused, |question| daemon.answer(question.command))
        } else {
            refused("the question is too long".into())
        };
        let said = say(stream, answer);
        daemon.answered();
        said?;
        if !whole {
            return Ok(());
        }
    }
}

fn understood(line: &[u8]) -> Result<Question, Answer> {
    let question: Question =
        serde_json::from_slice(line).map_err(|e| refused(format!("the question is not understood: {e}")))?;
    if question.schema == SCHEMA {
        return Ok(question);
    }
    Err(refused(format!("the question is of schema {}; this daemon speaks {SCHEMA}", question.schema)))
}

fn refused(message: String) -> Answer {
    let help = "one JSON object a line: {\"schema\":1,\"command\":\"status\"}; docs/daemon.md has the others";
    Answer::Refused { message, help: Some(help.to_owned()) }
}

fn say(mut stream: &UnixStream, answer: Answer) -> io::Result<()> {
    let mut line = serde_json::to_vec(&Reply { schema: SCHEMA, answer })?;
    line.push(b'\n');
    stream.write_all(&line)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

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
            let socket = Socket::bind(&path).expect("bound");
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
        let socket = Socket::bind(&path).expect("bound in place of them");
        UnixStream::connect(&path).expect("connected");
        assert!(!unheard.exists());
        assert_eq!(std::fs::metadata(&path).expect("it is there").permissions().mode() & 0o777, 0o600);
        assert!(matches!(Socket::bind(&path), Err(SocketError::Busy { .. })));
        drop(socket);
        assert!(!path.exists());
        for name in [&path, &unheard] {
            std::fs::write(name, "mine").expect("written");
            let error = Socket::bind(&path).expect_err("no socket");
            assert!(matches!(&error, SocketError::Other { path } if path == name), "{error}");
            assert_eq!(std::fs::read_to_string(name).expect("it stays"), "mine");
            std::fs::remove_file(name).expect("removed");
        }
        std::fs::remove_dir_all(&folder).expect("removed");
    }
}

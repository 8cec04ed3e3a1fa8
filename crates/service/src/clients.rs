//! Clients of a Unix or TCP socket: several at once, each with a thread, and a deadline for each request.
//!
//! A client may be silent between two requests for as long as it likes, as a person who types is. From the
//! first byte of a request to its last, and again while it is answered, it has `DEADLINE`, however slowly
//! bytes come. If all places are taken, the client that has been silent longest is disconnected for the new
//! one; if all are busy, the new one is refused.

use std::io::{self, Read as _, Write};
use std::net::TcpListener;
use std::os::fd::OwnedFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Maximum number of clients.
const CLIENTS: usize = 32;
/// Time limit for a request, and for the client to read an answer.
const DEADLINE: Duration = Duration::from_secs(10);
/// Bytes per read.
const CHUNK: usize = 16 << 10;

/// A line of a client.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum ClientLine {
    /// Includes its line end, unless the client closed the connection.
    Whole(Vec<u8>),
    /// Longer than allowed. Nothing more can be read from this client.
    TooLong,
}

/// A connected client.
#[derive(Debug)]
pub struct ClientConnection {
    stream: UnixStream,
    /// Bytes read that are not a full line yet.
    buffer: Vec<u8>,
    /// Deadline of the request that is being read.
    until: Option<Instant>,
    place: Arc<ClientState>,
}

/// The shared part of a client's state.
#[derive(Debug)]
struct ClientState {
    stream: UnixStream,
    /// Time of its last activity; [`None`] while a request is read or answered.
    silent_since: Mutex<Option<Instant>>,
}

impl ClientState {
    fn silent_since(&self) -> Option<Instant> {
        *self.silent_since.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn set(&self, silent_since: Option<Instant>) {
        *self.silent_since.lock().unwrap_or_else(PoisonError::into_inner) = silent_since;
    }
}

/// Serves clients of a Unix socket, for as long as the process lives. `refusal` is sent to those for whom
/// there is no place.
pub fn serve(
    listener: &UnixListener,
    refusal: &[u8],
    talk: impl Fn(&mut ClientConnection) -> io::Result<()> + Send + Sync + 'static,
) {
    serve_streams(listener.incoming(), refusal, talk);
}

/// As [`serve`], for clients of a TCP socket.
pub fn serve_tcp(
    listener: &TcpListener,
    refusal: &[u8],
    talk: impl Fn(&mut ClientConnection) -> io::Result<()> + Send + Sync + 'static,
) {
    // Streams of both kinds of sockets are used by the same system calls.
    let streams = listener.incoming().map(|stream| Ok(UnixStream::from(OwnedFd::from(stream?))));
    serve_streams(streams, refusal, talk);
}

fn serve_streams(
    streams: impl Iterator<Item = io::Result<UnixStream>>,
    refusal: &[u8],
    talk: impl Fn(&mut ClientConnection) -> io::Result<()> + Send + Sync + 'static,
) {
    let talk = Arc::new(talk);
    let places: Arc<Mutex<Vec<Arc<ClientState>>>> = Arc::default();
    for stream in streams {
        let stream = match stream {
            Ok(stream) => stream,
            Err(error) => {
                // For example, too many open files; that may pass.
                tracing::debug!("socket: {error}");
                std::thread::sleep(Duration::from_millis(50));
                continue;
            }
        };
        if let Err(error) = admit(stream, &places, &talk, refusal) {
            tracing::debug!("socket: {error}");
        }
    }
}

fn admit(
    mut stream: UnixStream,
    places: &Arc<Mutex<Vec<Arc<ClientState>>>>,
    talk: &Arc<impl Fn(&mut ClientConnection) -> io::Result<()> + Send + Sync + 'static>,
    refusal: &[u8],
) -> io::Result<()> {
    {
        let mut taken = places.lock().unwrap_or_else(PoisonError::into_inner);
        if taken.len() >= CLIENTS {
            let silent = taken.iter().enumerate().filter_map(|(at, p)| Some((p.silent_since()?, at)));
            let Some((_, at)) = silent.min() else {
                stream.set_write_timeout(Some(Duration::from_millis(10)))?;
                return stream.write_all(refusal);
            };
            // Its thread sees the end of the stream.
            let _ = taken.swap_remove(at).stream.shutdown(std::net::Shutdown::Both);
        }
    }
    let place =
        Arc::new(ClientState { stream: stream.try_clone()?, silent_since: Mutex::new(Some(Instant::now())) });
    let mut client = ClientConnection { stream, buffer: Vec::new(), until: None, place: Arc::clone(&place) };
    places.lock().unwrap_or_else(PoisonError::into_inner).push(Arc::clone(&place));
    // Frees its place however the thread ends.
    let leave = ClientGuard { place, places: Arc::clone(places) };
    let talk = Arc::clone(talk);
    std::thread::Builder::new().spawn(move || {
        let _leave = leave;
        if let Err(error) = talk(&mut client) {
            tracing::debug!("socket: {error}");
        }
    })?;
    Ok(())
}

struct ClientGuard {
    place: Arc<ClientState>,
    places: Arc<Mutex<Vec<Arc<ClientState>>>>,
}

impl Drop for ClientGuard {
    fn drop(&mut self) {
        let mut places = self.places.lock().unwrap_or_else(PoisonError::into_inner);
        places.retain(|p| !Arc::ptr_eq(p, &self.place));
    }
}

impl ClientConnection {
    /// The next line, of at most so many bytes; [`None`] if there is none.
    pub fn read_line(&mut self, longest: u64) -> io::Result<Option<ClientLine>> {
        let longest = usize::try_from(longest).unwrap_or(usize::MAX);
        self.until = (!self.buffer.is_empty()).then(|| Instant::now() + DEADLINE);
        let mut looked = 0;
        loop {
            if let Some(end) = self.buffer[looked..].iter().position(|b| *b == b'\n') {
                let end = looked + end + 1;
                return Ok(Some(if end > longest { ClientLine::TooLong } else { self.taken(end) }));
            }
            looked = self.buffer.len();
            if looked >= longest {
                return Ok(Some(ClientLine::TooLong));
            }
            if self.fill()? == 0 {
                let left = self.buffer.len();
                return Ok((left > 0).then(|| self.taken(left)));
            }
        }
    }

    /// So many bytes after a line, by its deadline.
    pub fn read_exactly(&mut self, length: usize) -> io::Result<Vec<u8>> {
        while self.buffer.len() < length {
            if self.fill()? == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
        }
        Ok(self.buffer.drain(..length).collect())
    }

    fn taken(&mut self, end: usize) -> ClientLine {
        ClientLine::Whole(self.buffer.drain(..end).collect())
    }

    /// Reads available bytes. Waits for the first byte of a request without a limit, for more until the
    /// deadline.
    fn fill(&mut self) -> io::Result<usize> {
        if self.until.is_none() {
            self.place.set(Some(Instant::now()));
        }
        self.stream.set_read_timeout(self.until.map(remaining).transpose()?)?;
        let mut chunk = [0; CHUNK];
        let n = match self.stream.read(&mut chunk) {
            Err(e) if e.kind() == io::ErrorKind::Interrupted => return self.fill(),
            other => other.map_err(late)?,
        };
        self.place.set(None);
        self.until.get_or_insert_with(|| Instant::now() + DEADLINE);
        self.buffer.extend_from_slice(&chunk[..n]);
        Ok(n)
    }
}

impl Write for ClientConnection {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.write_all(bytes).map(|()| bytes.len())
    }

    /// The deadline covers all of the bytes.
    fn write_all(&mut self, mut bytes: &[u8]) -> io::Result<()> {
        let until = Instant::now() + DEADLINE;
        while !bytes.is_empty() {
            self.stream.set_write_timeout(Some(remaining(until)?))?;
            match self.stream.write(bytes) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(n) => bytes = &bytes[n..],
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => return Err(late(e)),
            }
        }
        Ok(())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.stream.flush()
    }
}

/// Time left until a moment; an error if it is over.
fn remaining(until: Instant) -> io::Result<Duration> {
    let left = until.saturating_duration_since(Instant::now());
    if left.is_zero() { Err(io::ErrorKind::TimedOut.into()) } else { Ok(left) }
}

/// A system call that timed out reports that it would block.
fn late(error: io::Error) -> io::Error {
    if error.kind() == io::ErrorKind::WouldBlock { io::ErrorKind::TimedOut.into() } else { error }
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead as _, BufReader};
    use std::path::PathBuf;

    use super::*;

    /// A server that echoes lines of at most `LONGEST` bytes.
    struct Echo(PathBuf);

    const LONGEST: u64 = 1000;

    impl Echo {
        fn new(name: &str) -> Echo {
            let path = std::env::temp_dir().join(format!("millstream-clients-{name}-{}", std::process::id()));
            let _ = std::fs::remove_file(&path);
            let listener = UnixListener::bind(&path).expect("bound");
            std::thread::spawn(move || {
                serve(&listener, b"full\n", |client| {
                    while let Some(line) = client.read_line(LONGEST)? {
                        match line {
                            ClientLine::Whole(line) if line == b"three\n" => {
                                let bytes = client.read_exactly(3)?;
                                client.write_all(&bytes)?;
                            }
                            ClientLine::Whole(line) => client.write_all(&line)?,
                            ClientLine::TooLong => return client.write_all(b"too long\n"),
                        }
                    }
                    Ok(())
                });
            });
            Echo(path)
        }

        fn connect(&self) -> BufReader<UnixStream> {
            let stream = UnixStream::connect(&self.0).expect("connected");
            stream.set_read_timeout(Some(Duration::from_secs(60))).expect("set");
            BufReader::new(stream)
        }
    }

    impl Drop for Echo {
        fn drop(&mut self) {
            let _ = std::fs::remove_file(&self.0);
        }
    }

    /// Sends a text; returns the line that comes back, or nothing at the end.
    fn asked(client: &mut BufReader<UnixStream>, text: &str) -> String {
        let mut line = String::new();
        if client.get_mut().write_all(text.as_bytes()).is_ok() {
            let _ = client.read_line(&mut line);
        }
        line
    }

    #[test]
    fn lines_come_in_any_pieces_and_long_ones_end_the_talk() {
        let echo = Echo::new("pieces");
        let mut client = echo.connect();
        assert_eq!(asked(&mut client, "one\ntw"), "one\n");
        assert_eq!(asked(&mut client, "o\nthree\nab"), "two\n");
        assert_eq!(asked(&mut client, "c\nlast\n"), "abc\n");
        let rest: Vec<String> = client.by_ref().lines().take(1).map_while(Result::ok).collect();
        assert_eq!(rest, ["last"]);
        for end in ["", "\n"] {
            assert_eq!(asked(&mut echo.connect(), &("x".repeat(2000) + end)), "too long\n");
        }
    }

    #[test]
    fn a_client_that_trickles_is_sent_away_and_delays_nobody() {
        let echo = Echo::new("trickle");
        let slow = echo.connect();
        let mut writer = slow.get_ref().try_clone().expect("cloned");
        std::thread::spawn(move || {
            while writer.write_all(b"x").is_ok() {
                std::thread::sleep(Duration::from_millis(300));
            }
        });
        assert_eq!(asked(&mut echo.connect(), "fast\n"), "fast\n");
        // The connection is closed without an answer.
        assert_eq!(slow.lines().map_while(Result::ok).count(), 0);
        assert_eq!(asked(&mut echo.connect(), "after\n"), "after\n");
    }

    #[test]
    fn silent_clients_make_room_for_those_that_ask() {
        let echo = Echo::new("silent");
        let mut clients: Vec<_> = (0..3 * CLIENTS)
            .map(|n| {
                let mut client = echo.connect();
                assert_eq!(asked(&mut client, &format!("{n}\n")), format!("{n}\n"));
                client
            })
            .collect();
        assert_eq!(asked(&mut clients[0], "0\n"), "", "the first was sent away");
        let last = clients.len() - 1;
        assert_eq!(asked(&mut clients[last], "last\n"), "last\n");
    }
}

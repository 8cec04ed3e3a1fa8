//! A client of Redis that can set and get.
//!
//! The crate `redis` parses addresses, writes commands and parses replies; `rustls` encrypts. The stream
//! below them is our own: one deadline holds for a whole exchange, from the look-up of the host to the last
//! byte of the reply, however slowly bytes come in, and one limit for all bytes read.
//!
//! Invariant: nobody waits for a server longer than [`PATIENCE`] at a time, or [`SLOW_TOTAL`] in all; after
//! the first failure it is not asked again.

use std::fmt;
use std::io::{self, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpStream, ToSocketAddrs as _};
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

use redis::{Cmd, ConnectionAddr, ConnectionInfo, IntoConnectionInfo as _, Parser, Value, cmd};
use rustls::pki_types::ServerName;
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};

use super::{QueryDigest, RedisError};

/// Time limit of a whole exchange.
const PATIENCE: Duration = Duration::from_millis(1000);
/// Duration above which an exchange counts as slow.
const SLOW: Duration = Duration::from_millis(100);
/// Time limit of all slow exchanges together.
const SLOW_TOTAL: Duration = Duration::from_millis(2000);
/// Longest reply that is read, in bytes.
const LONGEST: usize = 4 << 20;
/// Bytes of an exchange besides the reply: the handshake, and the overhead of encryption.
const AROUND: usize = 1 << 20;

/// A server.
pub(super) struct RedisClient {
    place: ConnectionInfo,
    /// [`None`] before the first question.
    connection: Option<RedisConnection>,
    slow: Duration,
    away: bool,
}

impl RedisClient {
    /// # Errors
    /// If this is not the address of one.
    pub(super) fn new(url: &str) -> Result<RedisClient, RedisError> {
        let wrong = || RedisError(without_secret(url));
        let scheme = url.starts_with("redis://") || url.starts_with("rediss://");
        // Whatever follows these would be ignored.
        if !scheme || url.contains(['?', '#']) || url.contains(char::is_whitespace) {
            return Err(wrong());
        }
        let place = url.into_connection_info().map_err(|_| wrong())?;
        let settings = place.redis_settings();
        let secret = settings.username().is_none() || settings.password().is_some();
        let network = matches!(place.addr(), ConnectionAddr::Tcp(..) | ConnectionAddr::TcpTls { .. });
        if !secret || !network || settings.db() < 0 {
            return Err(wrong());
        }
        Ok(RedisClient { place, connection: None, slow: Duration::ZERO, away: false })
    }

    /// Returns true if nobody on the way can read or change the traffic: it uses TLS, or the server is on
    /// this machine.
    pub(super) fn is_private(&self) -> bool {
        match self.place.addr() {
            ConnectionAddr::TcpTls { .. } => true,
            ConnectionAddr::Tcp(host, _) => {
                host == "localhost" || host.parse().is_ok_and(|ip: IpAddr| ip.is_loopback())
            }
            _ => false,
        }
    }

    /// The answer to a question.
    pub(super) fn get(&mut self, key: &QueryDigest) -> Option<String> {
        self.command(cmd("GET").arg(name(key))).flatten()
    }

    /// Remembers an answer.
    pub(super) fn set(&mut self, key: &QueryDigest, line: &str) {
        self.command(cmd("SET").arg(name(key)).arg(line));
    }

    fn command(&mut self, command: &Cmd) -> Option<Option<String>> {
        if self.away {
            return None;
        }
        let start = Instant::now();
        let mut answer = self.exchange(command);
        let took = start.elapsed();
        if took > SLOW {
            self.slow += took;
        }
        if answer.is_ok() && self.slow > SLOW_TOTAL {
            answer = Err(io::Error::new(io::ErrorKind::TimedOut, "it is too slow"));
        }
        if let Err(e) = &answer {
            self.away = true;
            self.connection = None;
            tracing::warn!("the Redis server {}: {e}; going on without it", self.place.addr());
        }
        answer.ok()
    }

    /// Sends a command; returns the string in the reply, if there is one. The whole exchange has one
    /// deadline.
    fn exchange(&mut self, command: &Cmd) -> io::Result<Option<String>> {
        let until = Instant::now() + PATIENCE;
        if self.connection.is_none() {
            self.connection = Some(RedisConnection::open(&self.place, until)?);
        }
        let connection = self.connection.as_mut().ok_or_else(|| io::Error::other("no connection"))?;
        let answer = connection.exchange(command, until);
        if answer.is_err() {
            self.connection = None;
        }
        answer
    }
}

/// An open connection.
struct RedisConnection {
    link: RedisStream,
    parser: Parser,
}

impl RedisConnection {
    fn open(place: &ConnectionInfo, until: Instant) -> io::Result<RedisConnection> {
        let (host, port, encrypted) = match place.addr() {
            ConnectionAddr::Tcp(host, port) => (host, *port, false),
            ConnectionAddr::TcpTls { host, port, .. } => (host, *port, true),
            other => return Err(io::Error::other(format!("{other} is no place in a network"))),
        };
        let stream = connected(host, port, until)?;
        stream.set_nodelay(true)?;
        let timed = DeadlineStream { stream, until, left: LONGEST + AROUND };
        let link = if encrypted {
            RedisStream::Tls(Box::new(encrypt(host, timed)?))
        } else {
            RedisStream::Plain(timed)
        };
        let mut connection = RedisConnection { link, parser: Parser::new() };
        let settings = place.redis_settings();
        if let Some(password) = settings.password() {
            let mut auth = cmd("AUTH");
            settings.username().into_iter().chain([password]).for_each(|word| {
                auth.arg(word);
            });
            connection.exchange(&auth, until)?;
        }
        if settings.db() != 0 {
            connection.exchange(cmd("SELECT").arg(settings.db()), until)?;
        }
        Ok(connection)
    }

    fn exchange(&mut self, command: &Cmd, until: Instant) -> io::Result<Option<String>> {
        let timed = self.link.timed();
        (timed.until, timed.left) = (until, LONGEST + AROUND);
        self.link.write_all(&command.get_packed_command())?;
        self.link.flush()?;
        match self.parser.parse_value(&mut self.link).map_err(|e| io::Error::other(e.to_string()))? {
            Value::BulkString(bytes) if bytes.len() > LONGEST => {
                Err(io::Error::other(format!("an answer of {} bytes", bytes.len())))
            }
            // Bytes that are no text are damaged, and are found to be.
            Value::BulkString(bytes) => Ok(Some(String::from_utf8_lossy(&bytes).into_owned())),
            Value::Nil | Value::Okay | Value::Int(_) | Value::SimpleString(_) => Ok(None),
            Value::ServerError(e) => Err(io::Error::other(format!("it said {:?}", e.to_string()))),
            other => Err(io::Error::other(format!("it said {:.200}", format!("{other:?}")))),
        }
    }
}

/// A stream with a deadline for all operations, and a limit for all bytes read.
struct DeadlineStream {
    stream: TcpStream,
    until: Instant,
    /// Bytes that may still be read.
    left: usize,
}

impl DeadlineStream {
    fn remaining(&self) -> io::Result<Duration> {
        remaining(self.until)
    }
}

impl Read for DeadlineStream {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if self.left == 0 {
            return Err(io::Error::other("the answer is too long"));
        }
        self.stream.set_read_timeout(Some(self.remaining()?))?;
        let most = buffer.len().min(self.left);
        let n = self.stream.read(&mut buffer[..most]).map_err(late)?;
        self.left -= n;
        Ok(n)
    }
}

impl Write for DeadlineStream {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.stream.set_write_timeout(Some(self.remaining()?))?;
        self.stream.write(bytes).map_err(late)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.stream.flush()
    }
}

/// Time until a deadline, which must not have passed.
fn remaining(until: Instant) -> io::Result<Duration> {
    let left = until.saturating_duration_since(Instant::now());
    if left.is_zero() { Err(io::ErrorKind::TimedOut.into()) } else { Ok(left) }
}

/// A system call that timed out reports that it would block.
fn late(error: io::Error) -> io::Error {
    if error.kind() == io::ErrorKind::WouldBlock { io::ErrorKind::TimedOut.into() } else { error }
}

/// Stream of a connection.
enum RedisStream {
    Plain(DeadlineStream),
    Tls(Box<StreamOwned<ClientConnection, DeadlineStream>>),
}

impl RedisStream {
    fn timed(&mut self) -> &mut DeadlineStream {
        match self {
            RedisStream::Plain(timed) => timed,
            RedisStream::Tls(tls) => &mut tls.sock,
        }
    }
}

impl Read for RedisStream {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match self {
            RedisStream::Plain(timed) => timed.read(buffer),
            RedisStream::Tls(tls) => tls.read(buffer),
        }
    }
}

impl Write for RedisStream {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            RedisStream::Plain(timed) => timed.write(bytes),
            RedisStream::Tls(tls) => tls.write(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        match self {
            RedisStream::Plain(timed) => timed.flush(),
            RedisStream::Tls(tls) => tls.flush(),
        }
    }
}

/// Connects to the first of a host's addresses that accepts.
fn connected(host: &str, port: u16, until: Instant) -> io::Result<TcpStream> {
    let mut last = io::Error::other("it has no address");
    for address in resolved(host, port, until)? {
        match TcpStream::connect_timeout(&address, remaining(until)?) {
            Ok(stream) => return Ok(stream),
            Err(e) => last = e,
        }
    }
    Err(last)
}

/// Addresses of a host. The resolver has no deadline, so it runs in a thread that nobody waits for.
fn resolved(host: &str, port: u16, until: Instant) -> io::Result<Vec<SocketAddr>> {
    let (tell, told) = mpsc::channel();
    let host = host.to_owned();
    std::thread::Builder::new().spawn(move || {
        let found = (host.as_str(), port).to_socket_addrs().map(Iterator::collect);
        // The receiver may be gone.
        let _ = tell.send(found);
    })?;
    told.recv_timeout(remaining(until)?).map_err(|_| io::Error::from(io::ErrorKind::TimedOut))?
}

/// Encrypts a stream to a host, whose certificate must be valid by the system's roots (or those of
/// `SSL_CERT_FILE`).
fn encrypt(host: &str, timed: DeadlineStream) -> io::Result<StreamOwned<ClientConnection, DeadlineStream>> {
    let mut roots = RootCertStore::empty();
    roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(io::Error::other)?
        .with_root_certificates(roots)
        .with_no_client_auth();
    let name = ServerName::try_from(host.to_owned()).map_err(io::Error::other)?;
    let session = ClientConnection::new(Arc::new(config), name).map_err(io::Error::other)?;
    Ok(StreamOwned::new(session, timed))
}

/// A text that a team keeps on a Redis server under a name:
/// `redis://[[USER]:PASSWORD@]HOST[:PORT][/DATABASE]#NAME`.
pub struct RedisValue {
    redis: RedisClient,
    name: String,
}

impl RedisValue {
    /// # Errors
    /// If this is not the address of one.
    pub fn new(url: &str) -> Result<RedisValue, RedisError> {
        let wrong = || RedisError(without_secret(url));
        let (server, name) = url.split_once('#').ok_or_else(wrong)?;
        let name = Some(name).filter(|n| !n.is_empty()).ok_or_else(wrong)?;
        Ok(RedisValue { redis: RedisClient::new(server)?, name: format!("millstream:rules:{name}") })
    }

    /// The text, if there is one of that name.
    ///
    /// # Errors
    /// If the server is away or refuses.
    pub fn read(&mut self) -> io::Result<Option<String>> {
        self.redis.exchange(cmd("GET").arg(&self.name))
    }

    /// Replaces the text of that name.
    ///
    /// # Errors
    /// If the server is away or refuses.
    pub fn write(&mut self, text: &str) -> io::Result<()> {
        if text.len() > LONGEST {
            return Err(io::Error::other(format!("{} bytes are more than fit", text.len())));
        }
        self.redis.exchange(cmd("SET").arg(&self.name).arg(text)).map(|_| ())
    }
}

impl fmt::Display for RedisValue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} on the Redis server {}", self.name, self.redis.place.addr())
    }
}

fn name(key: &QueryDigest) -> String {
    format!("millstream:proof:{key}")
}

/// An address as it may be shown: without the part between `//` and `@`.
fn without_secret(url: &str) -> String {
    match (url.find("//"), url.rfind('@')) {
        (Some(start), Some(end)) if start + 2 <= end => format!("{}...{}", &url[..start + 2], &url[end..]),
        (None, Some(end)) => format!("...{}", &url[end..]),
        _ => url.to_owned(),
    }
}

//! A client of Redis that can set and get, in its protocol RESP.
//!
//! Invariant: nobody waits for a server longer than [`PATIENCE`]; after the first failure it is not asked again.

use std::fmt;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{TcpStream, ToSocketAddrs as _};
use std::time::Duration;

use super::{Key, RedisError};

/// How long a server may take for anything.
const PATIENCE: Duration = Duration::from_millis(1000);
/// Longest answer that is read, in bytes.
const LONGEST: usize = 4 << 20;

/// A server.
pub(super) struct Redis {
    address: String,
    user: Option<String>,
    password: Option<String>,
    database: u32,
    /// [`None`] before the first question.
    connection: Option<BufReader<TcpStream>>,
    away: bool,
}

impl Redis {
    /// # Errors
    /// If this is no address of one.
    pub(super) fn new(url: &str) -> Result<Redis, RedisError> {
        let wrong = || RedisError(url.to_owned());
        let rest = url.strip_prefix("redis://").ok_or_else(wrong)?;
        let (rest, database) = match rest.split_once('/') {
            Some((rest, "")) => (rest, 0),
            Some((rest, number)) => (rest, number.parse().map_err(|_| wrong())?),
            None => (rest, 0),
        };
        let (secret, host) = rest.rsplit_once('@').map_or((None, rest), |(s, h)| (Some(s), h));
        let (user, password) = match secret.map(|s| s.split_once(':')) {
            None => (None, None),
            Some(Some((user, password))) => {
                ((!user.is_empty()).then(|| user.to_owned()), Some(password.to_owned()))
            }
            Some(None) => return Err(wrong()),
        };
        let named = host.rsplit_once(':').filter(|(_, p)| p.parse::<u16>().is_ok());
        let address = if named.is_some() { host.to_owned() } else { format!("{host}:6379") };
        if address.starts_with(':') || host.chars().any(char::is_whitespace) {
            return Err(wrong());
        }
        Ok(Redis { address, user, password, database, connection: None, away: false })
    }

    /// The answer to a question.
    pub(super) fn get(&mut self, key: &Key) -> Option<String> {
        self.command(&["GET", &name(key)]).flatten()
    }

    /// Remembers an answer.
    pub(super) fn set(&mut self, key: &Key, line: &str) {
        self.command(&["SET", &name(key), line]);
    }

    fn command(&mut self, words: &[&str]) -> Option<Option<String>> {
        if self.away {
            return None;
        }
        let answer = self.connected().and_then(|c| exchange(c, words));
        if let Err(e) = &answer {
            self.away = true;
            self.connection = None;
            tracing::warn!("the Redis server {}: {e}; going on without it", self.address);
        }
        answer.ok()
    }

    fn connected(&mut self) -> std::io::Result<&mut BufReader<TcpStream>> {
        if self.connection.is_none() {
            let mut last = std::io::Error::other("it has no address");
            let mut found = None;
            for address in self.address.to_socket_addrs()? {
                match TcpStream::connect_timeout(&address, PATIENCE) {
                    Ok(stream) => {
                        found = Some(stream);
                        break;
                    }
                    Err(e) => last = e,
                }
            }
            let stream = found.ok_or(last)?;
            stream.set_read_timeout(Some(PATIENCE))?;
            stream.set_write_timeout(Some(PATIENCE))?;
            stream.set_nodelay(true)?;
            let mut connection = BufReader::new(stream);
            match (&self.user, &self.password) {
                (Some(user), Some(password)) => {
                    exchange(&mut connection, &["AUTH", user, password])?;
                }
                (None, Some(password)) => {
                    exchange(&mut connection, &["AUTH", password])?;
                }
                _ => {}
            }
            if self.database != 0 {
                exchange(&mut connection, &["SELECT", &self.database.to_string()])?;
            }
            self.connection = Some(connection);
        }
        self.connection.as_mut().ok_or_else(|| std::io::Error::other("no connection"))
    }
}

/// A text that a team keeps on a Redis server under a name: `redis://[[USER]:PASSWORD@]HOST[:PORT][/DATABASE]#NAME`.
pub struct Shared {
    redis: Redis,
    name: String,
}

impl Shared {
    /// # Errors
    /// If this is no address of one.
    pub fn new(url: &str) -> Result<Shared, RedisError> {
        let (server, name) = url.split_once('#').ok_or_else(|| RedisError(url.to_owned()))?;
        let name = Some(name).filter(|n| !n.is_empty()).ok_or_else(|| RedisError(url.to_owned()))?;
        Ok(Shared { redis: Redis::new(server)?, name: format!("millstream:rules:{name}") })
    }

    /// The text, if there is one of that name.
    ///
    /// # Errors
    /// If the server is away or refuses.
    pub fn read(&mut self) -> std::io::Result<Option<String>> {
        exchange(self.redis.connected()?, &["GET", &self.name])
    }

    /// Puts a text in the place of the one of that name.
    ///
    /// # Errors
    /// If the server is away or refuses.
    pub fn write(&mut self, text: &str) -> std::io::Result<()> {
        if text.len() > LONGEST {
            return Err(std::io::Error::other(format!("{} bytes are more than fit", text.len())));
        }
        exchange(self.redis.connected()?, &["SET", &self.name, text]).map(|_| ())
    }
}

impl fmt::Display for Shared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} on the Redis server {}", self.name, self.redis.address)
    }
}

fn name(key: &Key) -> String {
    format!("millstream:proof:{key}")
}

/// Sends a command; gives the string that comes back, if one does.
fn exchange(connection: &mut BufReader<TcpStream>, words: &[&str]) -> std::io::Result<Option<String>> {
    let mut text = format!("*{}\r\n", words.len());
    for word in words {
        text.push_str(&format!("${}\r\n{word}\r\n", word.len()));
    }
    connection.get_mut().write_all(text.as_bytes())?;
    let mut line = String::new();
    connection.by_ref().take(1 << 10).read_line(&mut line)?;
    let strange = || std::io::Error::other(format!("it said {:?}", line.trim_end()));
    let rest = line.trim_end();
    match rest.split_at_checked(1) {
        Some(("+" | ":", _)) => Ok(None),
        Some(("$", "-1")) => Ok(None),
        Some(("$", length)) => {
            let length: usize = length.parse().ok().filter(|n| *n <= LONGEST).ok_or_else(strange)?;
            let mut bytes = vec![0; length + 2];
            connection.read_exact(&mut bytes)?;
            bytes.truncate(length);
            // What is no text is damaged, and so found to be.
            Ok(Some(String::from_utf8_lossy(&bytes).into_owned()))
        }
        _ => Err(strange()),
    }
}

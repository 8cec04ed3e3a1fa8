//! What solvers have answered: in memory, in a file, and, for a team, on a Redis server.
//!
//! An answer is found by its question's canonical form (a SHA-256, [`Key`]): the question itself up to names, and nothing
//! but the question, so that whoever asks it again may take the answer, whatever program it came of. Each answer
//! says which solver gave it.
//!
//! Invariants: what is read from outside this process counts only with its checksum, and only as what it was written for (the
//! checksum is over the key as well). A checksum is no signature: whoever can write to the file or the server can make proofs.
//! That something outside is missing, full, damaged or away costs time, never an answer.

mod file;
mod redis;

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use rustc_hash::FxHashMap;
use sha2::{Digest as _, Sha256};

use file::File;
use redis::Redis;
pub use redis::Shared;

/// Answers that one process remembers; then it begins anew.
const MOST: usize = 1 << 20;
/// What took less than this is asked again faster than it is fetched.
const WORTH_KEEPING: Duration = Duration::from_millis(2);
/// Most values in an answer.
const MOST_VALUES: usize = 1 << 16;

/// The canonical form of a question.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Key(pub [u8; 32]);

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.0.iter().map(|b| format!("{b:02x}")).collect::<String>())
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl std::str::FromStr for Key {
    type Err = ();

    fn from_str(s: &str) -> Result<Key, ()> {
        let mut out = [0; 32];
        if s.len() != 64 || !s.is_ascii() {
            return Err(());
        }
        for (at, byte) in out.iter_mut().enumerate() {
            *byte = u8::from_str_radix(&s[2 * at..2 * at + 2], 16).map_err(|_| ())?;
        }
        Ok(Key(out))
    }
}

/// What was said of a claim.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Said {
    /// It always holds.
    Valid,
    /// It can fail, where terms, by their places in the canonical form, have these values.
    Refuted(Vec<(u32, u64)>),
}

/// An answer.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Entry {
    /// The answer.
    pub said: Said,
    /// Who gave it: name and version.
    pub solver: String,
    /// How long it took.
    pub time: Duration,
}

/// What the cache was asked, and where it found the answers.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct CacheStats {
    /// Look-ups.
    pub asked: u64,
    /// Found: answered before by this process.
    pub memory: u64,
    /// Found in the file.
    pub file: u64,
    /// Found on the server.
    pub redis: u64,
    /// Entries of the file or the server that were damaged.
    pub damaged: u64,
}

/// Answers, shared by its clones.
#[derive(Clone)]
pub struct Cache(Arc<Mutex<Inner>>);

struct Inner {
    known: FxHashMap<Key, Entry>,
    file: Option<File>,
    redis: Option<Redis>,
    stats: CacheStats,
}

impl fmt::Debug for Cache {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Cache").field("stats", &self.stats()).finish_non_exhaustive()
    }
}

impl Cache {
    /// For this process only.
    pub fn in_memory() -> Cache {
        let inner =
            Inner { known: FxHashMap::default(), file: None, redis: None, stats: CacheStats::default() };
        Cache(Arc::new(Mutex::new(inner)))
    }

    /// Beside memory a file in this directory, which is made if need be. Several processes may use it at once.
    ///
    /// # Errors
    /// If it can be neither read nor made.
    pub fn in_directory(directory: &Path) -> std::io::Result<Cache> {
        let cache = Cache::in_memory();
        let (file, known, damaged) = File::open(directory)?;
        {
            let mut inner = cache.lock();
            inner.file = Some(file);
            inner.known = known;
            inner.stats.damaged = damaged;
        }
        Ok(cache)
    }

    /// Where a user's cache is: `$XDG_CACHE_HOME/millstream`, or `~/.cache/millstream`.
    pub fn default_directory() -> Option<PathBuf> {
        let named = |n: &str| std::env::var_os(n).filter(|v| !v.is_empty()).map(PathBuf::from);
        let base = named("XDG_CACHE_HOME").or_else(|| Some(named("HOME")?.join(".cache")))?;
        Some(base.join("millstream"))
    }

    /// Also on a Redis server, `redis://[[USER]:PASSWORD@]HOST[:PORT][/DATABASE]`. One that is away is done without, which
    /// is said once.
    ///
    /// # Errors
    /// If it is no such address.
    pub fn on_redis(self, url: &str) -> Result<Cache, RedisError> {
        self.lock().redis = Some(Redis::new(url)?);
        Ok(self)
    }

    /// The answer to a question, if there is one.
    pub fn get(&self, key: &Key) -> Option<Entry> {
        let mut inner = self.lock();
        inner.stats.asked += 1;
        if let Some(entry) = inner.known.get(key).cloned() {
            let from_file = inner.file.as_mut().is_some_and(|f| f.had(key));
            *if from_file { &mut inner.stats.file } else { &mut inner.stats.memory } += 1;
            return Some(entry);
        }
        let text = inner.redis.as_mut()?.get(key)?;
        let Some((_, entry)) = parsed(&text).filter(|(k, _)| k == key) else {
            tracing::warn!("the answer to {key} on the Redis server is damaged; it is ignored");
            inner.stats.damaged += 1;
            return None;
        };
        inner.stats.redis += 1;
        inner.remember(*key, entry.clone());
        Some(entry)
    }

    /// Remembers an answer.
    pub fn put(&self, key: Key, entry: Entry) {
        let mut inner = self.lock();
        if entry.time >= WORTH_KEEPING
            && let Some(line) = line(&key, &entry)
        {
            if let Some(file) = &mut inner.file {
                file.append(&line);
            }
            if let Some(redis) = &mut inner.redis {
                redis.set(&key, &line);
            }
        }
        inner.remember(key, entry);
    }

    /// What it was asked so far.
    pub fn stats(&self) -> CacheStats {
        self.lock().stats
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        // Whoever panicked left it whole: there is one insertion at a time.
        self.0.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }
}

impl Inner {
    fn remember(&mut self, key: Key, entry: Entry) {
        if self.known.len() >= MOST {
            self.known.clear();
        }
        self.known.insert(key, entry);
    }
}

/// Why an address is not a Redis server's.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{0:?} is no address of a Redis server: redis://[[USER]:PASSWORD@]HOST[:PORT][/DATABASE]")]
pub struct RedisError(pub(crate) String);

/// An answer as a line of text, with its checksum in front: version, key, answer, milliseconds, values, solver.
fn line(key: &Key, entry: &Entry) -> Option<String> {
    let (word, values) = match &entry.said {
        Said::Valid => ("valid", "-".to_owned()),
        Said::Refuted(values) if values.len() <= MOST_VALUES => {
            let shown: Vec<String> = values.iter().map(|(at, v)| format!("{at:x}={v:x}")).collect();
            ("refuted", if shown.is_empty() { "-".to_owned() } else { shown.join(",") })
        }
        Said::Refuted(_) => return None,
    };
    let solver = entry.solver.replace(|c: char| c.is_control(), " ");
    let rest = format!("1 {key} {word} {} {values} {solver}", entry.time.as_millis());
    Some(format!("{} {rest}", checksum(&rest)))
}

/// A line's key and answer, if it is what was written.
fn parsed(line: &str) -> Option<(Key, Entry)> {
    let (sum, rest) = line.trim_end_matches('\n').split_once(' ')?;
    if sum != checksum(rest) {
        return None;
    }
    let mut words = rest.splitn(6, ' ');
    if words.next()? != "1" {
        return None;
    }
    let key: Key = words.next()?.parse().ok()?;
    let word = words.next()?;
    let time = Duration::from_millis(words.next()?.parse().ok()?);
    let values = words.next()?;
    let solver = words.next()?.to_owned();
    let value = |v: &str| {
        let (at, value) = v.split_once('=')?;
        Some((u32::from_str_radix(at, 16).ok()?, u64::from_str_radix(value, 16).ok()?))
    };
    let said = match (word, values) {
        ("valid", "-") => Said::Valid,
        ("refuted", "-") => Said::Refuted(Vec::new()),
        ("refuted", list) => Said::Refuted(list.split(',').map(value).collect::<Option<_>>()?),
        _ => return None,
    };
    Some((key, Entry { said, solver, time }))
}

/// Half a SHA-256.
fn checksum(text: &str) -> String {
    let sum = Sha256::digest(text.as_bytes());
    sum.iter().take(16).map(|b| format!("{b:02x}")).collect()
}

#[cfg(test)]
mod tests;

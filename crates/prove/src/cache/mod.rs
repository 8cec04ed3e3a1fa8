//! Cache of solver answers: in memory, in a file, and, for a team, on a Redis server.
//!
//! An answer is found by the canonical form of its question (a SHA-256, [`QueryDigest`]): the question itself
//! up to names, and nothing but the question, so that anybody who asks it again may use the answer, whatever
//! program it comes from. Each answer names the solver that gave it.
//!
//! Invariants: an answer from outside this process replaces a question only if its author is known: this
//! user, by a key of the user's own and a file that nobody else may write, or a team, by its key, if that is
//! trusted. It counts only for the question for which it was written: the tag covers the question, too. Any
//! other answer is a hint, which only changes the order in which solvers are asked. An outside store that is
//! missing, full, damaged or away costs time, never correctness.

mod file;
mod key;
mod record;
mod redis;

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use rustc_hash::FxHashMap;

use file::{CacheFile, LoadedCache};
pub use key::{StoreKey, StoreKeyError};
use record::{CacheRecord, RecordError, RecordSigner, SigningKeys};
use redis::RedisClient;
pub use redis::RedisValue;

/// Most answers that one process remembers; beyond that it starts afresh.
const MOST: usize = 1 << 20;
/// Least solving time of an answer that is stored outside this process: cheaper ones are solved again faster
/// than fetched.
const WORTH_KEEPING: Duration = Duration::from_millis(2);

/// The canonical form of a question.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct QueryDigest(pub [u8; 32]);

impl fmt::Display for QueryDigest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&hex::encode(self.0))
    }
}

impl fmt::Debug for QueryDigest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl std::str::FromStr for QueryDigest {
    type Err = ();

    fn from_str(s: &str) -> Result<QueryDigest, ()> {
        let mut out = [0; 32];
        hex::decode_to_slice(s, &mut out).map_err(|_| ())?;
        Ok(QueryDigest(out))
    }
}

/// Result of a claim.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum CachedVerdict {
    /// It always holds.
    Valid,
    /// It can fail: for these values of terms, which are given by their places in the canonical form.
    Refuted(Vec<(u32, u64)>),
}

/// An answer.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct CachedAnswer {
    /// The answer.
    pub said: CachedVerdict,
    /// Solver that gave it: name and version.
    pub solver: String,
    /// Time that it took.
    pub time: Duration,
}

/// Trust in an answer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum TrustLevel {
    /// This process, or another one of this user's, asked a solver.
    Own,
    /// Somebody with the team's key asked a solver, and the team's store is trusted.
    Trusted,
    /// An answer by an unknown author: it orders the work and proves nothing.
    Hint,
}

/// An answer that was found.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct CacheHit {
    /// The answer.
    pub entry: CachedAnswer,
    /// Trust in it.
    pub standing: TrustLevel,
}

/// Look-ups of the cache, and the places of the answers found.
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
    /// Of those found, answers of others that were believed since their store is trusted.
    pub trusted: u64,
    /// Answers of others that are only hints: solvers are asked all the same.
    pub hints: u64,
    /// Entries of the file or the server that were damaged.
    pub damaged: u64,
}

/// Answers, shared by its clones.
#[derive(Clone)]
pub struct ProofCache(Arc<Mutex<CacheState>>);

struct CacheState {
    known: FxHashMap<QueryDigest, CacheHit>,
    keys: SigningKeys,
    file: Option<CacheFile>,
    redis: Option<RedisClient>,
    stats: CacheStats,
}

impl fmt::Debug for ProofCache {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Cache").field("stats", &self.stats()).finish_non_exhaustive()
    }
}

impl ProofCache {
    /// For this process only.
    pub fn in_memory() -> ProofCache {
        let inner = CacheState {
            known: FxHashMap::default(),
            keys: SigningKeys::default(),
            file: None,
            redis: None,
            stats: CacheStats::default(),
        };
        ProofCache(Arc::new(Mutex::new(inner)))
    }

    /// Adds a team's key, with which answers on the server are signed. If `trust`, answers signed with it by
    /// others replace proofs. Must be called before stores are added.
    #[must_use]
    pub fn signed_by_team(self, key: StoreKey, trust: bool) -> ProofCache {
        let mut inner = self.lock();
        (inner.keys.team, inner.keys.trust) = (Some(key), trust);
        drop(inner);
        self
    }

    /// Adds a file in this directory, which is created if need be. Several processes may use it at once.
    /// Answers signed with this key, in a file that nobody else could write, count as the user's own.
    ///
    /// # Errors
    /// If it can be neither read nor made.
    pub fn in_directory(self, directory: &Path, key: Option<StoreKey>) -> std::io::Result<ProofCache> {
        let mut inner = self.lock();
        inner.keys.user = key;
        let LoadedCache { file, known, damaged } = CacheFile::open(directory, &inner.keys)?;
        inner.file = Some(file);
        inner.known = known;
        inner.stats.damaged = damaged;
        drop(inner);
        Ok(self)
    }

    /// Directory of a user's cache: `$XDG_CACHE_HOME/millstream`, or `~/.cache/millstream`.
    pub fn default_directory() -> Option<PathBuf> {
        let named = |n: &str| std::env::var_os(n).filter(|v| !v.is_empty()).map(PathBuf::from);
        let base = named("XDG_CACHE_HOME").or_else(|| Some(named("HOME")?.join(".cache")))?;
        Some(base.join("millstream"))
    }

    /// Adds a Redis server, `redis://[[USER]:PASSWORD@]HOST[:PORT][/DATABASE]`, or `rediss://` for TLS. If
    /// the server is away, the cache works without it and reports this once.
    ///
    /// # Errors
    /// If it is no such address.
    pub fn on_redis(self, url: &str) -> Result<ProofCache, RedisError> {
        self.lock().redis = Some(RedisClient::new(url)?);
        Ok(self)
    }

    /// Returns true if nobody on the way to a server can read or change the traffic: it uses TLS, or the
    /// server is on this machine.
    ///
    /// # Errors
    /// If it is no address of a Redis server.
    pub fn is_private_address(url: &str) -> Result<bool, RedisError> {
        Ok(RedisClient::new(url)?.is_private())
    }

    /// The answer to a question, if there is one, and the trust in it.
    pub fn get(&self, key: &QueryDigest) -> Option<CacheHit> {
        let mut inner = self.lock();
        inner.stats.asked += 1;
        let known = inner.known.get(key).cloned();
        if let Some(found) =
            known.as_ref().filter(|f| f.standing != TrustLevel::Hint || inner.redis.is_none())
        {
            let from_file = inner.file.as_ref().is_some_and(|f| f.had(key));
            inner.count(found.standing, if from_file { |s| &mut s.file } else { |s| &mut s.memory });
            return known;
        }
        let text = inner.redis.as_mut().and_then(|r| r.get(key));
        let read = text.map(|text| match CacheRecord::parse(&text, &inner.keys) {
            Ok(line) if line.key != *key => Err(RecordError::Damaged),
            other => other,
        });
        let Some(Ok(line)) = read else {
            if read == Some(Err(RecordError::Damaged)) {
                tracing::warn!("the answer to {key} on the Redis server is damaged; it is ignored");
                inner.stats.damaged += 1;
            }
            inner.stats.hints += u64::from(known.is_some());
            return known;
        };
        let trusted = line.signer == RecordSigner::Team && inner.keys.trust;
        let standing = if trusted { TrustLevel::Trusted } else { TrustLevel::Hint };
        let found = CacheHit { entry: line.entry, standing };
        inner.count(standing, |s| &mut s.redis);
        if trusted {
            inner.remember(*key, found.clone());
        }
        Some(found)
    }

    /// Remembers an answer that a solver gave to this process.
    pub fn put(&self, key: QueryDigest, entry: CachedAnswer) {
        let mut inner = self.lock();
        if entry.time >= WORTH_KEEPING {
            if let Some(file) = &mut inner.file {
                file.append(&key, &entry);
            }
            let line = CacheRecord::text(&key, &entry, inner.keys.team.as_ref());
            if let (Some(redis), Some(line)) = (&mut inner.redis, line) {
                redis.set(&key, &line);
            }
        }
        inner.remember(key, CacheHit { entry, standing: TrustLevel::Own });
    }

    /// Statistics of all look-ups so far.
    pub fn stats(&self) -> CacheStats {
        self.lock().stats
    }

    fn lock(&self) -> MutexGuard<'_, CacheState> {
        // Insertions are single operations, so a panic elsewhere leaves the cache consistent.
        self.0.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }
}

impl CacheState {
    /// Counts an answer that was found: as a hint, or for the store that had it.
    fn count(&mut self, standing: TrustLevel, place: fn(&mut CacheStats) -> &mut u64) {
        if standing == TrustLevel::Hint {
            self.stats.hints += 1;
            return;
        }
        *place(&mut self.stats) += 1;
        self.stats.trusted += u64::from(standing == TrustLevel::Trusted);
    }

    fn remember(&mut self, key: QueryDigest, found: CacheHit) {
        if self.known.len() >= MOST {
            self.known.clear();
        }
        self.known.insert(key, found);
    }
}

/// Reason why an address is not a Redis server's.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{0:?} is no address of a Redis server: redis[s]://[[USER]:PASSWORD@]HOST[:PORT][/DATABASE]")]
pub struct RedisError(pub(crate) String);

#[cfg(test)]
mod tests;

//! Versions of tables, and the writes of control programs to them.
//!
//! Specialised code holds contents of tables. It may run as long as nobody has written a table that it
//! assumes. Tables are written between batches only, so that one number says it for all of them: the epoch,
//! which a worker reads when its batch begins.
//!
//! Invariant: a write has changed the epoch before it returns, if installed code assumes its table. Whoever
//! installs code first marks its tables as assumed, reads the epoch, and then compares their versions; a write
//! first changes the version, and then looks for the mark. So at least one of them sees the other.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use rustc_hash::FxHashMap;

/// Keys of one table whose writes are kept until somebody takes them, at most.
const MOST_KEYS: usize = 1 << 18;

/// Writes to a table since they were last taken.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TableWrites {
    /// The last value of each written key; `None` for a removed entry.
    pub keys: FxHashMap<Vec<u8>, Option<Vec<u8>>>,
    /// True if there were more keys than are kept: the contents are unknown from then on.
    pub is_lost: bool,
}

/// Tables of an engine.
#[derive(Debug)]
pub struct TableWatch {
    tables: Box<[WatchedTable]>,
    epoch: AtomicU64,
    journal: Mutex<FxHashMap<usize, TableWrites>>,
}

#[derive(Debug, Default)]
struct WatchedTable {
    version: AtomicU64,
    /// True if installed code holds contents of it.
    is_assumed: AtomicBool,
}

impl TableWatch {
    /// Watches so many tables.
    pub fn new(tables: usize) -> TableWatch {
        TableWatch {
            tables: (0..tables).map(|_| WatchedTable::default()).collect(),
            epoch: AtomicU64::new(0),
            journal: Mutex::default(),
        }
    }

    /// The number that changes with each write to an assumed table.
    pub fn epoch(&self) -> u64 {
        self.epoch.load(Ordering::SeqCst)
    }

    /// Takes the writes since the last call, and the versions of all tables behind them.
    pub fn take_writes(&self) -> (FxHashMap<usize, TableWrites>, Vec<u64>) {
        let mut journal = self.journal.lock().unwrap_or_else(PoisonError::into_inner);
        let versions = self.tables.iter().map(|table| table.version.load(Ordering::SeqCst)).collect();
        (std::mem::take(&mut journal), versions)
    }

    /// Assumes contents of these tables, which have been read at these versions. Returns the epoch for which
    /// they hold; the first table that has changed meanwhile if there is one.
    pub fn assume(&self, tables: &[(usize, u64)]) -> Result<u64, usize> {
        self.release();
        let watched = |at: &usize| self.tables.get(*at).ok_or(*at);
        for (at, _) in tables {
            watched(at)?.is_assumed.store(true, Ordering::SeqCst);
        }
        let epoch = self.epoch();
        for (at, version) in tables {
            if watched(at)?.version.load(Ordering::SeqCst) != *version {
                self.release();
                return Err(*at);
            }
        }
        Ok(epoch)
    }

    /// Assumes nothing more.
    pub fn release(&self) {
        self.tables.iter().for_each(|table| table.is_assumed.store(false, Ordering::SeqCst));
    }

    /// Records a write.
    fn record(&self, at: usize, key: &[u8], value: Option<&[u8]>) {
        let Some(table) = self.tables.get(at) else { return };
        let mut journal = self.journal.lock().unwrap_or_else(PoisonError::into_inner);
        let writes = journal.entry(at).or_default();
        if writes.keys.len() >= MOST_KEYS && !writes.keys.contains_key(key) {
            writes.is_lost = true;
        }
        match writes.is_lost {
            true => writes.keys = FxHashMap::default(),
            false => drop(writes.keys.insert(key.to_vec(), value.map(<[u8]>::to_vec))),
        }
        table.version.fetch_add(1, Ordering::SeqCst);
        if table.is_assumed.load(Ordering::SeqCst) {
            self.epoch.fetch_add(1, Ordering::SeqCst);
        }
    }
}

/// A table's place in the watch of its engine.
#[derive(Clone, Debug)]
pub struct WatchHandle {
    /// The watch.
    pub watch: Arc<TableWatch>,
    /// Number of the table in it.
    pub at: usize,
}

impl WatchHandle {
    /// Records that an entry has a new value, or is gone.
    pub(crate) fn record(&self, key: &[u8], value: Option<&[u8]>) {
        self.watch.record(self.at, key, value);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_writes_to_assumed_tables_change_the_epoch() {
        let watch = Arc::new(TableWatch::new(2));
        let [first, second] = [0, 1].map(|at| WatchHandle { watch: Arc::clone(&watch), at });
        let epoch = watch.assume(&[(0, 0)]);
        assert_eq!(epoch, Ok(0));
        second.record(b"k", Some(b"v"));
        assert_eq!(watch.epoch(), 0);
        first.record(b"k", None);
        assert_eq!(watch.epoch(), 1);
        watch.release();
        first.record(b"k", None);
        assert_eq!(watch.epoch(), 1);
    }

    #[test]
    fn contents_that_were_read_before_a_write_are_not_assumed() {
        let watch = Arc::new(TableWatch::new(1));
        let table = WatchHandle { watch: Arc::clone(&watch), at: 0 };
        table.record(b"k", Some(b"1"));
        table.record(b"k", Some(b"2"));
        assert_eq!(watch.assume(&[(0, 0)]), Err(0));
        let (writes, versions) = watch.take_writes();
        assert_eq!(writes[&0].keys[&b"k".to_vec()], Some(b"2".to_vec()));
        assert_eq!(versions, [2]);
        assert!(watch.assume(&[(0, 2)]).is_ok());
        assert_eq!(watch.assume(&[(7, 0)]), Err(7));
    }

    #[test]
    fn more_keys_than_are_kept_make_the_contents_unknown() {
        let watch = Arc::new(TableWatch::new(1));
        let table = WatchHandle { watch: Arc::clone(&watch), at: 0 };
        (0..=MOST_KEYS as u32).for_each(|key| table.record(&key.to_ne_bytes(), None));
        let (writes, _) = watch.take_writes();
        assert!(writes[&0].is_lost && writes[&0].keys.is_empty());
    }
}

//! Caches of maps that the data plane writes, in memory that programs share with the daemon
//! ([`millstream_specializer::transform::EntryCache`]).
//!
//! Variants count the writers of such a map; a copy is valid as long as nobody has come in since it was made.
//! Writers that do not count themselves are counted here, for the whole map: the control plane, and programs
//! that are no variants.
//!
//! Invariant: from before another program comes onto a hook until a grace period after it has left, somebody
//! is counted in; before a variant may run again after the control plane wrote, somebody has come and gone.

use std::collections::BTreeMap;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use millstream_ir::Map;
use millstream_kernel::{ArrayMapping, KernelError, KernelMap, grace_period, shared_memory};
use millstream_specializer::transform::CacheLayout;

/// The caches of a generation.
#[derive(Debug, Default)]
pub struct EntryCaches {
    held: BTreeMap<Map, (KernelMap, ArrayMapping)>,
    /// True if somebody is counted in.
    open: bool,
    /// Time since which copies are made.
    since: Option<Instant>,
}

/// Time until most of the keys that are looked up again and again have a copy.
const WARM: Duration = Duration::from_millis(20);

impl EntryCaches {
    /// Empty caches of these shapes, with somebody counted in.
    ///
    /// # Errors
    /// Errors of the kernel, such as lack of memory.
    pub fn new(shapes: impl IntoIterator<Item = (Map, CacheLayout)>) -> Result<EntryCaches, KernelError> {
        let memory = |shape: CacheLayout| shared_memory("ms.cache", shape.bytes() as usize);
        let held = shapes.into_iter().map(|(of, shape)| Ok((of, memory(shape)?)));
        let mut caches =
            EntryCaches { held: held.collect::<Result<_, KernelError>>()?, open: false, since: None };
        caches.open();
        Ok(caches)
    }

    /// Returns true if there are none.
    pub fn is_empty(&self) -> bool {
        self.held.is_empty()
    }

    /// The maps of the caches, by the maps that they cache.
    pub fn maps(&self) -> impl Iterator<Item = (Map, &KernelMap)> {
        self.held.iter().map(|(of, (map, _))| (*of, map))
    }

    /// Notes that somebody may write now who does not count himself.
    pub fn open(&mut self) {
        if !std::mem::replace(&mut self.open, true) {
            self.count(CacheLayout::STARTED);
        }
    }

    /// Notes that nobody comes any more who does not count himself: after a grace period, copies are made
    /// again. Without grace periods, they are not.
    pub fn settle(&mut self) {
        if self.is_open() && grace_period().is_ok() {
            self.close();
        }
    }

    /// Returns true if a grace period must pass before copies are made again.
    pub fn is_open(&self) -> bool {
        !self.held.is_empty() && self.open
    }

    /// Notes that nobody is left who does not count himself.
    pub fn close(&mut self) {
        if std::mem::take(&mut self.open) {
            self.count(CacheLayout::FINISHED);
            self.since = Some(Instant::now());
        }
    }

    /// Notes that somebody has written, and is gone.
    pub fn forget(&mut self) {
        self.count(CacheLayout::STARTED);
        self.count(CacheLayout::FINISHED);
        self.since = Some(Instant::now());
    }

    /// Time until they are as useful as they can be.
    pub fn cold(&self) -> Duration {
        let since = self.since.filter(|_| !self.held.is_empty());
        since.map_or(Duration::ZERO, |since| WARM.saturating_sub(since.elapsed()))
    }

    fn count(&self, at: usize) {
        for (_, memory) in self.held.values() {
            memory.atomic_u64(at).fetch_add(1, Ordering::SeqCst);
        }
    }
}

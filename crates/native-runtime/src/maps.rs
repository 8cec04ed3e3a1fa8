//! Maps with the kernel's semantics and error numbers, at addresses that native code can use.
//!
//! Differences from the kernel, all within its guarantees: LRU tables evict only when full, and bloom filters
//! have no false positives. Rings are read between batches, so that they are full only if one batch fills
//! them.
//!
//! Source: `kernel/bpf/{arraymap,hashtab,lpm_trie,queue_stack_maps,ringbuf,devmap,cpumap}.c`.

use std::collections::VecDeque;
use std::io;
use std::sync::Arc;

use millstream_interp::{MapConfig, MapKind};
use rustc_hash::FxHashSet;

use super::hash::{HashLayout, HashTable, HashTableParams};
use super::index::HashTemplate;
use super::lpm::{self, LpmLayout, LpmTable, LpmTemplate};
use super::priority::PriorityTable;
use super::region::{AddressAllocator, ExternalMemory, MemoryRegion};
use super::table_watch::WatchHandle;
use super::values::{ValueStorage, spare};
use super::worker_epochs::WorkerEpochs;

pub(crate) const ENOENT: i64 = -(libc::ENOENT as i64);
pub(crate) const E2BIG: i64 = -(libc::E2BIG as i64);
pub(crate) const EEXIST: i64 = -(libc::EEXIST as i64);
/// `-EINVAL`, as helpers return it.
pub const EINVAL: i64 = -(libc::EINVAL as i64);
pub(crate) const ENOSPC: i64 = -(libc::ENOSPC as i64);
pub(crate) const EOPNOTSUPP: i64 = -(libc::EOPNOTSUPP as i64);
/// Prefix of the names of maps that belong to caches of traversals.
pub const TRAVERSAL_PREFIX: &str = "traversal.";
const NOEXIST: u64 = 1;
const EXIST: u64 = 2;
/// `BPF_F_RDONLY_PROG`: programs do not write values.
const RDONLY_PROG: u32 = 1 << 7;

/// A map.
#[derive(Debug)]
pub struct NativeMap {
    name: String,
    spec: MapConfig,
    workers: u32,
    body: MapStorage,
    lent: bool,
    /// Set if somebody follows its contents. Programs do not write it then.
    watch: Option<WatchHandle>,
    /// Set if writes are counted, because results of look-ups are kept. Programs do not write it then.
    counted: Option<Arc<WorkerEpochs>>,
}

#[derive(Debug)]
enum MapStorage {
    /// Slot and key are the same number. `present` if entries may be absent.
    Array {
        values: ValueStorage,
        present: Option<MemoryRegion>,
    },
    Hash(HashTable),
    Lpm(Box<LpmTable>),
    Priority(Box<PriorityTable>),
    Queue {
        items: VecDeque<Vec<u8>>,
        lifo: bool,
    },
    Bloom(FxHashSet<Vec<u8>>),
    /// No contents: event rings. `used` is the number of bytes taken since the last batch.
    Ring {
        used: u64,
    },
}

/// Look-up without a call.
#[derive(Clone, Copy, Debug)]
pub enum InlineLookup {
    /// By index.
    Array {
        /// Address of the values.
        base: u64,
        /// Distance of two values, in bytes.
        stride: u64,
        /// Number of entries.
        entries: u32,
    },
    /// By the search of [`super::hash`].
    Hash(HashLayout),
    /// By the walk of [`super::lpm`].
    Lpm(LpmLayout),
}

/// `bpf_redirect_map` without a call: an array of interfaces, and for each a byte that is set if it is
/// present.
#[derive(Clone, Copy, Debug)]
pub struct RedirectTargets {
    /// Address of the values.
    pub base: u64,
    /// Distance of two values, in bytes.
    pub stride: u64,
    /// Number of entries.
    pub entries: u32,
    /// Address of the bytes that are set for entries that are present.
    pub present: u64,
}

fn index(key: &[u8]) -> Option<u32> {
    key.first_chunk().map(|key| u32::from_ne_bytes(*key))
}

impl NativeMap {
    /// An empty map, with a copy of per-CPU values for each of `workers`. `seed` is that of its hash, whose
    /// index has `template`; `trie` is the algorithm of a trie, `place` the location of its memory.
    ///
    /// # Errors
    /// If the system has no memory.
    pub fn new(
        name: &str,
        spec: MapConfig,
        workers: u32,
        (seed, template, trie): (u64, HashTemplate, LpmTemplate),
        place: &mut AddressAllocator,
    ) -> io::Result<NativeMap> {
        use MapKind as K;
        let copies = if spec.kind.is_percpu() { workers } else { 1 };
        let (key, value, entries) = (spec.key_size, spec.value_size, spec.max_entries);
        // Values of maps of maps and of programs are addresses here.
        let value = if is_of_addresses(spec.kind) { 8 } else { value };
        let array = |present: bool, place: &mut AddressAllocator| -> io::Result<MapStorage> {
            let present = if present { Some(MemoryRegion::new(entries as usize, place)?) } else { None };
            Ok(MapStorage::Array { values: ValueStorage::new(0, value, copies, entries, 0, place)?, present })
        };
        let spare = spare(workers);
        let hash = |lru, place: &mut AddressAllocator| {
            HashTable::new(key, value, copies, entries, HashTableParams { lru, seed, template, spare }, place)
        };
        let body = match spec.kind {
            K::Array | K::PercpuArray => array(false, place)?,
            K::ProgArray | K::ArrayOfMaps | K::Devmap | K::Cpumap | K::Xskmap => array(true, place)?,
            K::Hash | K::PercpuHash | K::HashOfMaps | K::DevmapHash => MapStorage::Hash(hash(false, place)?),
            K::LruHash | K::LruPercpuHash => MapStorage::Hash(hash(true, place)?),
            K::LpmTrie => {
                let share = spec.flags & RDONLY_PROG != 0;
                let making = lpm::LpmTableParams { template: trie, seed, share, spare };
                MapStorage::Lpm(Box::new(LpmTable::new(key, value, entries, making, place)?))
            }
            K::Queue => MapStorage::Queue { items: VecDeque::new(), lifo: false },
            K::Stack => MapStorage::Queue { items: VecDeque::new(), lifo: true },
            K::BloomFilter => MapStorage::Bloom(FxHashSet::default()),
            K::PerfEventArray | K::Ringbuf => MapStorage::Ring { used: 0 },
            K::Priority => {
                MapStorage::Priority(Box::new(PriorityTable::new(key, value, entries, spare, place)?))
            }
        };
        Ok(NativeMap { name: name.to_owned(), spec, workers, body, lent: false, watch: None, counted: None })
    }

    /// An array whose values are in shared memory; `None` if it is not an array, or the memory is too short.
    pub fn over(name: &str, spec: MapConfig, workers: u32, lent: &ExternalMemory) -> Option<NativeMap> {
        let values = (spec.kind == MapKind::Array)
            .then(|| ValueStorage::over(spec.value_size, spec.max_entries, lent))
            .flatten()?;
        let body = MapStorage::Array { values, present: None };
        Some(NativeMap { name: name.to_owned(), spec, workers, body, lent: true, watch: None, counted: None })
    }

    /// Returns true if all of its entries exist from the start.
    pub fn is_array(&self) -> bool {
        matches!(self.body, MapStorage::Array { present: None, .. })
    }

    /// Returns true if its values are in shared memory.
    pub fn is_external(&self) -> bool {
        self.lent
    }

    /// Prepares it for several workers.
    pub fn share(&mut self, epochs: &Arc<WorkerEpochs>) {
        if let Some(values) = self.values_mut() {
            values.share(epochs);
        }
    }

    /// Distance between the values of two workers; 0 if they share one.
    pub fn own(&self) -> u64 {
        self.values().map_or(0, ValueStorage::own)
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Its declaration.
    pub fn spec(&self) -> MapConfig {
        self.spec
    }

    /// Returns true if its values are maps or programs, which only the object can set, or results of look-ups.
    pub fn holds_addresses(&self) -> bool {
        is_of_addresses(self.spec.kind) || self.is_of_traversals()
    }

    /// Returns true if it belongs to a cache of traversals.
    fn is_of_traversals(&self) -> bool {
        self.name.starts_with(TRAVERSAL_PREFIX)
    }

    /// Returns true if it could hold the contents of another one.
    pub fn is_alike(&self, other: &NativeMap) -> bool {
        let shape = |m: &NativeMap| (m.spec.kind, m.spec.key_size, m.spec.value_size, m.workers);
        shape(self) == shape(other)
    }

    /// Returns true if programs may write its values.
    pub fn is_written(&self) -> bool {
        self.spec.flags & RDONLY_PROG == 0
    }

    /// Overwrites a value in place, in a map without copies for workers; `false` if the key is missing.
    pub fn write(&mut self, key: &[u8], value: &[u8]) -> bool {
        let Some(slot) = self.find(key, false) else { return false };
        self.count_write();
        let fits = value.len() == self.value_size();
        if let Some(values) = self.values_mut().filter(|_| fits) {
            values.set(slot, value, None);
        }
        self.record_write(fits, key, Some(value));
        fits
    }

    /// Bytes of a value of one worker.
    pub fn value_size(&self) -> usize {
        if is_of_addresses(self.spec.kind) { 8 } else { self.spec.value_size as usize }
    }

    /// Look-up without a call; for maps whose entries are all present, or found by hash.
    pub fn inline(&self) -> Option<InlineLookup> {
        match &self.body {
            MapStorage::Array { values, present: None } => {
                let (base, stride) = (values.base(), values.stride() as u64);
                Some(InlineLookup::Array { base, stride, entries: self.spec.max_entries })
            }
            MapStorage::Hash(hash) if !is_of_addresses(self.spec.kind) => {
                Some(InlineLookup::Hash(hash.layout()))
            }
            MapStorage::Lpm(lpm) if self.spec.key_size > 4 => Some(InlineLookup::Lpm(lpm.layout())),
            _ => None,
        }
    }

    /// Redirect without a call.
    pub fn targets(&self) -> Option<RedirectTargets> {
        match &self.body {
            MapStorage::Array { values, present: Some(present) } if self.spec.kind.is_redirect_target() => {
                Some(RedirectTargets {
                    base: values.base(),
                    stride: values.stride() as u64,
                    entries: self.spec.max_entries,
                    present: present.address(),
                })
            }
            _ => None,
        }
    }

    /// Bytes that look-ups search in when the map is full, if code can fetch them ahead.
    pub fn lookup_bytes(&self) -> Option<u64> {
        match &self.body {
            _ if self.is_of_traversals() => None,
            MapStorage::Hash(hash) if self.spec.key_size > 0 && self.inline().is_some() => Some(hash.bytes()),
            MapStorage::Lpm(lpm) if self.inline().is_some() => lpm.bytes(),
            MapStorage::Array { values, present: None } => {
                Some(values.stride() as u64 * u64::from(self.spec.max_entries))
            }
            _ => None,
        }
    }

    /// Returns true if a look-up by a program leaves no trace.
    pub fn lookup_only_reads(&self) -> bool {
        !matches!(self.spec.kind, MapKind::LruHash | MapKind::LruPercpuHash)
    }

    /// The slot of a key. `touch` for look-ups of programs: it marks an entry of an LRU map as used, and
    /// matches a prefix; a control program names the prefix itself.
    fn find(&mut self, key: &[u8], touch: bool) -> Option<u32> {
        match &mut self.body {
            MapStorage::Array { present, .. } => {
                let at = index(key).filter(|at| *at < self.spec.max_entries)?;
                let here = present.as_ref().is_none_or(|p| p.bytes().get(at as usize) == Some(&1));
                here.then_some(at)
            }
            MapStorage::Hash(hash) => hash.find(key, touch),
            MapStorage::Lpm(lpm) if touch => lpm.longest(key),
            MapStorage::Lpm(lpm) => lpm.exact(key),
            MapStorage::Priority(table) if touch => table.best(key),
            MapStorage::Priority(table) => table.named(key),
            _ => None,
        }
    }

    fn values(&self) -> Option<&ValueStorage> {
        match &self.body {
            MapStorage::Array { values, .. } => Some(values),
            MapStorage::Hash(hash) => Some(&hash.values),
            MapStorage::Lpm(lpm) => Some(&lpm.values),
            MapStorage::Priority(table) => Some(&table.values),
            _ => None,
        }
    }

    fn values_mut(&mut self) -> Option<&mut ValueStorage> {
        match &mut self.body {
            MapStorage::Array { values, .. } => Some(values),
            MapStorage::Hash(hash) => Some(&mut hash.values),
            MapStorage::Lpm(lpm) => Some(&mut lpm.values),
            MapStorage::Priority(table) => Some(&mut table.values),
            _ => None,
        }
    }

    /// A program's look-up: the address of the worker's value.
    pub(crate) fn lookup(&mut self, key: &[u8], worker: u32) -> Option<u64> {
        if worker >= self.workers {
            return None;
        }
        let slot = self.find(key, true)?;
        self.values().map(|values| values.address(slot, worker))
    }

    /// Address of the first value, where global data lies.
    pub fn first_value(&self) -> Option<u64> {
        self.values().map(|values| values.address(0, 0))
    }

    /// A control program's look-up: the value; for per-CPU maps those of all workers, each padded to eight
    /// bytes.
    pub fn get(&mut self, key: &[u8]) -> Option<Vec<u8>> {
        let slot = self.find(key, false)?;
        let copies = if self.spec.kind.is_percpu() { self.workers } else { 1 };
        let values = self.values()?;
        let mut out = Vec::new();
        for worker in 0..copies {
            out.extend_from_slice(values.get(slot, worker));
            if copies > 1 {
                out.resize(out.len().next_multiple_of(8), 0);
            }
        }
        Some(out)
    }

    /// Sets the value of each worker to the result of [`NativeMap::get`] of a map of the same shape.
    pub fn put_copies(&mut self, key: &[u8], copies: &[u8]) {
        let size = self.value_size();
        for (copy, worker) in copies.chunks(size.next_multiple_of(8).max(1)).zip(0..) {
            self.update(key, &copy[..size.min(copy.len())], 0, Some(worker));
        }
    }

    /// Sets a value, of one worker or of all, with the flags of `bpf_map_update_elem`; returns 0 or the
    /// kernel's error.
    pub fn update(&mut self, key: &[u8], value: &[u8], flags: u64, worker: Option<u32>) -> i64 {
        let fits = match &self.body {
            MapStorage::Priority(table) => table.accepts(key),
            _ => key.len() == self.spec.key_size as usize,
        };
        if flags > EXIST || !fits || value.len() != self.value_size() {
            return EINVAL;
        }
        self.count_write();
        let done = match self.find(key, false) {
            Some(_) if flags == NOEXIST => EEXIST,
            Some(slot) => self.replace(key, slot, value, worker),
            None => self.insert(key, value, flags, worker),
        };
        self.record_write(done == 0, key, Some(value));
        done
    }

    /// Has each write recorded from now on.
    pub fn follow(&mut self, watch: WatchHandle) {
        self.watch = Some(watch);
    }

    /// Has each write counted from now on.
    pub fn count_writes(&mut self, epochs: &Arc<WorkerEpochs>) {
        self.counted = Some(Arc::clone(epochs));
    }

    /// Counts a write: in front of it, so that nobody who finds a slot in use again has an older number; and behind
    /// it, so that nobody who has an older result has the number of now.
    fn count_write(&self) {
        self.counted.iter().for_each(|epochs| epochs.count_table_write());
    }

    fn record_write(&self, is_done: bool, key: &[u8], value: Option<&[u8]>) {
        self.count_write();
        if let Some(watch) = self.watch.as_ref().filter(|_| is_done) {
            watch.record(key, value);
        }
    }

    /// The value that a program's look-up of a key finds: in a trie that of the longest prefix.
    pub fn look_up(&mut self, key: &[u8]) -> Option<Vec<u8>> {
        let slot = self.find(key, true)?;
        self.values().map(|values| values.get(slot, 0).to_vec())
    }

    fn replace(&mut self, key: &[u8], slot: u32, value: &[u8], worker: Option<u32>) -> i64 {
        let in_place = self.spec.kind.is_percpu();
        let slot = match &mut self.body {
            MapStorage::Hash(hash) if !in_place => hash.renew(key),
            MapStorage::Lpm(lpm) => lpm.renew(key, value),
            MapStorage::Priority(table) => table.renew(key),
            _ => Some(slot),
        };
        self.put(slot, value, worker)
    }

    fn put(&mut self, slot: Option<u32>, value: &[u8], worker: Option<u32>) -> i64 {
        match (slot, self.values_mut()) {
            (Some(slot), Some(values)) => {
                values.set(slot, value, worker);
                0
            }
            _ => E2BIG,
        }
    }

    fn insert(&mut self, key: &[u8], value: &[u8], flags: u64, worker: Option<u32>) -> i64 {
        let slot = match &mut self.body {
            MapStorage::Array { present, .. } => {
                let Some(at) = index(key).filter(|at| *at < self.spec.max_entries) else { return E2BIG };
                if flags == EXIST {
                    return ENOENT;
                }
                if let Some(flag) = present.as_mut().and_then(|p| p.bytes_mut().get_mut(at as usize)) {
                    *flag = 1;
                }
                Some(at)
            }
            _ if flags == EXIST => return ENOENT,
            MapStorage::Hash(hash) => hash.insert(key),
            MapStorage::Lpm(lpm) => match (lpm.accepts(key), lpm.is_full()) {
                (false, _) => return EINVAL,
                (_, true) => return ENOSPC,
                _ => lpm.insert(key, value),
            },
            MapStorage::Priority(table) if table.is_full() => return ENOSPC,
            MapStorage::Priority(table) => table.insert(key),
            _ => return EINVAL,
        };
        self.put(slot, value, worker)
    }

    /// Removes an entry; returns 0 or the kernel's error.
    pub fn delete(&mut self, key: &[u8]) -> i64 {
        let found = |found| if found { 0 } else { ENOENT };
        self.count_write();
        let done = match &mut self.body {
            MapStorage::Array { present: Some(present), .. } => {
                let at = index(key).filter(|at| *at < self.spec.max_entries);
                let flag = at.and_then(|at| present.bytes_mut().get_mut(at as usize));
                flag.map_or(EINVAL, |flag| found(std::mem::take(flag) == 1))
            }
            MapStorage::Array { present: None, .. } => EINVAL,
            MapStorage::Hash(hash) => found(hash.remove(key)),
            MapStorage::Lpm(lpm) if !lpm.accepts(key) => EINVAL,
            MapStorage::Lpm(lpm) => found(lpm.remove(key)),
            MapStorage::Priority(table) => found(table.remove(key)),
            _ => EOPNOTSUPP,
        };
        self.record_write(done == 0, key, None);
        done
    }

    /// All keys, unordered.
    pub fn keys(&self) -> Vec<Vec<u8>> {
        match &self.body {
            MapStorage::Array { present, .. } => (0..self.spec.max_entries)
                .filter(|at| present.as_ref().is_none_or(|p| p.bytes().get(*at as usize) == Some(&1)))
                .map(|at| at.to_ne_bytes().to_vec())
                .collect(),
            MapStorage::Hash(hash) => hash.keys(),
            MapStorage::Lpm(lpm) => lpm.keys(),
            MapStorage::Priority(table) => table.names(),
            _ => Vec::new(),
        }
    }

    /// Number of entries; for queues, of items.
    pub fn len(&self) -> usize {
        match &self.body {
            MapStorage::Array { present: None, .. } => self.spec.max_entries as usize,
            MapStorage::Array { present: Some(present), .. } => {
                present.bytes().iter().filter(|p| **p == 1).count()
            }
            MapStorage::Hash(hash) => hash.len() as usize,
            MapStorage::Lpm(lpm) => lpm.len() as usize,
            MapStorage::Priority(table) => table.len(),
            MapStorage::Queue { items, .. } => items.len(),
            MapStorage::Bloom(set) => set.len(),
            MapStorage::Ring { .. } => 0,
        }
    }

    /// Returns true if it has no entry.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// `bpf_map_push_elem`; returns 0 or the kernel's error.
    pub(crate) fn push(&mut self, value: &[u8], flags: u64) -> i64 {
        match &mut self.body {
            MapStorage::Queue { .. } if flags & !EXIST != 0 => EINVAL,
            MapStorage::Queue { items, .. } => {
                if items.len() >= self.spec.max_entries as usize {
                    if flags != EXIST {
                        return E2BIG;
                    }
                    items.pop_front();
                }
                items.push_back(value.to_vec());
                0
            }
            MapStorage::Bloom(set) if flags == 0 => {
                set.insert(value.to_vec());
                0
            }
            MapStorage::Bloom(_) => EINVAL,
            _ => EOPNOTSUPP,
        }
    }

    /// `bpf_map_pop_elem` and `bpf_map_peek_elem`: fills `out` and returns 0, or the kernel's error. For a
    /// bloom filter, tests whether it contains `out`.
    pub(crate) fn pop(&mut self, out: &mut [u8], remove: bool) -> i64 {
        let (items, lifo) = match &mut self.body {
            MapStorage::Bloom(set) => return if set.contains(&*out) { 0 } else { ENOENT },
            MapStorage::Queue { items, lifo } => (items, *lifo),
            _ => return EOPNOTSUPP,
        };
        let item = match (lifo, remove) {
            (true, true) => items.pop_back(),
            (true, false) => items.back().cloned(),
            (false, true) => items.pop_front(),
            (false, false) => items.front().cloned(),
        };
        match item {
            Some(value) => {
                out.copy_from_slice(&value);
                0
            }
            None => {
                out.fill(0);
                ENOENT
            }
        }
    }

    /// Returns true if it is read between batches, which makes room in it.
    pub(crate) fn is_ring(&self) -> bool {
        matches!(self.body, MapStorage::Ring { .. })
    }

    /// Makes a change while no program runs, so that replaced values may be reused at once; returns its result.
    pub fn change(&mut self, change: impl FnOnce(&mut NativeMap) -> i64) -> i64 {
        let result = change(self);
        self.quiesce();
        result
    }

    /// Ends a batch: rings are empty, and a single worker holds no address of a value.
    pub fn quiesce(&mut self) {
        if let MapStorage::Ring { used } = &mut self.body {
            *used = 0;
        }
        if let Some(values) = self.values_mut() {
            values.quiesce();
        }
    }

    /// Reserves room for a record of a ring buffer; `false` if it is full until the next batch.
    pub(crate) fn reserve(&mut self, len: u64) -> bool {
        const RECORD_HEADER: u64 = 8;
        let MapStorage::Ring { used } = &mut self.body else { return false };
        let after = used.saturating_add(len.saturating_add(RECORD_HEADER).next_multiple_of(8));
        let fits = after <= u64::from(self.spec.max_entries);
        if fits {
            *used = after;
        }
        fits
    }
}

/// Returns true if values are addresses of maps or programs, whatever bpf(2) takes for them.
pub(crate) fn is_of_addresses(kind: MapKind) -> bool {
    kind.is_map_of_maps() || kind == MapKind::ProgArray
}

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

use millstream_interp::{MapKind, MapSpec};
use rustc_hash::FxHashSet;

use super::hash::{Hash, HashLayout, Making};
use super::index::Template;
use super::lpm::{self, Lpm, LpmLayout, Trie};
use super::region::{Lent, Place, Region};
use super::sharing::Epochs;
use super::values::{Values, spare};

pub(crate) const ENOENT: i64 = -(libc::ENOENT as i64);
pub(crate) const E2BIG: i64 = -(libc::E2BIG as i64);
pub(crate) const EEXIST: i64 = -(libc::EEXIST as i64);
pub(crate) const EINVAL: i64 = -(libc::EINVAL as i64);
pub(crate) const ENOSPC: i64 = -(libc::ENOSPC as i64);
pub(crate) const EOPNOTSUPP: i64 = -(libc::EOPNOTSUPP as i64);
const NOEXIST: u64 = 1;
const EXIST: u64 = 2;
/// `BPF_F_RDONLY_PROG`: programs do not write values.
const RDONLY_PROG: u32 = 1 << 7;

/// A map.
#[derive(Debug)]
pub struct Map {
    name: String,
    spec: MapSpec,
    workers: u32,
    body: Body,
    lent: bool,
}

#[derive(Debug)]
enum Body {
    /// Slot and key are the same number. `present` if entries may be absent.
    Array {
        values: Values,
        present: Option<Region>,
    },
    Hash(Hash),
    Lpm(Box<Lpm>),
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
pub(crate) enum Inline {
    /// By index: address of the values, and their distance.
    Array { base: u64, stride: u64, entries: u32 },
    /// By the search of [`super::hash`].
    Hash(HashLayout),
    /// By the walk of [`super::lpm`].
    Lpm(LpmLayout),
}

/// `bpf_redirect_map` without a call: an array of interfaces, and for each a byte that is set if it is
/// present.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Targets {
    pub(crate) base: u64,
    pub(crate) stride: u64,
    pub(crate) entries: u32,
    pub(crate) present: u64,
}

fn index(key: &[u8]) -> Option<u32> {
    key.first_chunk().map(|key| u32::from_ne_bytes(*key))
}

impl Map {
    /// An empty map, with a copy of per-CPU values for each of `workers`. `seed` is that of its hash, whose
    /// index has `template`; `trie` is the algorithm of a trie, `place` the location of its memory.
    ///
    /// # Errors
    /// If the system has no memory.
    pub(crate) fn new(
        name: &str,
        spec: MapSpec,
        workers: u32,
        (seed, template, trie): (u64, Template, Trie),
        place: &mut Place,
    ) -> io::Result<Map> {
        use MapKind as K;
        let copies = if spec.kind.is_percpu() { workers } else { 1 };
        let (key, value, entries) = (spec.key_size, spec.value_size, spec.max_entries);
        // Values of maps of maps and of programs are addresses here.
        let value = if is_of_addresses(spec.kind) { 8 } else { value };
        let array = |present: bool, place: &mut Place| -> io::Result<Body> {
            let present = if present { Some(Region::new(entries as usize, place)?) } else { None };
            Ok(Body::Array { values: Values::new(0, value, copies, entries, 0, place)?, present })
        };
        let spare = spare(workers);
        let hash = |lru, place: &mut Place| {
            Hash::new(key, value, copies, entries, Making { lru, seed, template, spare }, place)
        };
        let body = match spec.kind {
            K::Array | K::PercpuArray => array(false, place)?,
            K::ProgArray | K::ArrayOfMaps | K::Devmap | K::Cpumap | K::Xskmap => array(true, place)?,
            K::Hash | K::PercpuHash | K::HashOfMaps | K::DevmapHash => Body::Hash(hash(false, place)?),
            K::LruHash | K::LruPercpuHash => Body::Hash(hash(true, place)?),
            K::LpmTrie => {
                let share = spec.flags & RDONLY_PROG != 0;
                let making = lpm::Making { template: trie, seed, share, spare };
                Body::Lpm(Box::new(Lpm::new(key, value, entries, making, place)?))
            }
            K::Queue => Body::Queue { items: VecDeque::new(), lifo: false },
            K::Stack => Body::Queue { items: VecDeque::new(), lifo: true },
            K::BloomFilter => Body::Bloom(FxHashSet::default()),
            K::PerfEventArray | K::Ringbuf => Body::Ring { used: 0 },
            K::Priority => {
                let reason = format!("map {name}: native code has no maps with priorities");
                return Err(io::Error::new(io::ErrorKind::Unsupported, reason));
            }
        };
        Ok(Map { name: name.to_owned(), spec, workers, body, lent: false })
    }

    /// An array whose values are in shared memory; `None` if it is not an array, or the memory is too short.
    pub(crate) fn over(name: &str, spec: MapSpec, workers: u32, lent: &Lent) -> Option<Map> {
        let values = (spec.kind == MapKind::Array)
            .then(|| Values::over(spec.value_size, spec.max_entries, lent))
            .flatten()?;
        let body = Body::Array { values, present: None };
        Some(Map { name: name.to_owned(), spec, workers, body, lent: true })
    }

    /// Returns true if its values are in shared memory.
    pub fn is_lent(&self) -> bool {
        self.lent
    }

    /// Prepares it for several workers.
    pub(crate) fn share(&mut self, epochs: &Arc<Epochs>) {
        if let Some(values) = self.values_mut() {
            values.share(epochs);
        }
    }

    /// Distance between the values of two workers; 0 if they share one.
    pub(crate) fn own(&self) -> u64 {
        self.values().map_or(0, Values::own)
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Its declaration.
    pub fn spec(&self) -> MapSpec {
        self.spec
    }

    /// Returns true if its values are maps or programs, which only the object can set.
    pub fn holds_addresses(&self) -> bool {
        is_of_addresses(self.spec.kind)
    }

    /// Returns true if it could hold the contents of another one.
    pub(crate) fn is_alike(&self, other: &Map) -> bool {
        let shape = |m: &Map| (m.spec.kind, m.spec.key_size, m.spec.value_size, m.workers);
        shape(self) == shape(other)
    }

    /// Returns true if programs may write its values.
    pub(crate) fn is_written(&self) -> bool {
        self.spec.flags & RDONLY_PROG == 0
    }

    /// Overwrites a value in place, in a map without copies for workers; `false` if the key is missing.
    pub fn write(&mut self, key: &[u8], value: &[u8]) -> bool {
        let Some(slot) = self.find(key, false) else { return false };
        let fits = value.len() == self.value_size();
        if let Some(values) = self.values_mut().filter(|_| fits) {
            values.set(slot, value, None);
        }
        fits
    }

    /// Bytes of a value of one worker.
    pub(crate) fn value_size(&self) -> usize {
        if is_of_addresses(self.spec.kind) { 8 } else { self.spec.value_size as usize }
    }

    /// Look-up without a call; for maps whose entries are all present, or found by hash.
    pub(crate) fn inline(&self) -> Option<Inline> {
        match &self.body {
            Body::Array { values, present: None } => {
                let (base, stride) = (values.base(), values.stride() as u64);
                Some(Inline::Array { base, stride, entries: self.spec.max_entries })
            }
            Body::Hash(hash) if !is_of_addresses(self.spec.kind) => Some(Inline::Hash(hash.layout())),
            Body::Lpm(lpm) if self.spec.key_size > 4 => Some(Inline::Lpm(lpm.layout())),
            _ => None,
        }
    }

    /// Redirect without a call.
    pub(crate) fn targets(&self) -> Option<Targets> {
        match &self.body {
            Body::Array { values, present: Some(present) } if self.spec.kind.is_redirect_target() => {
                Some(Targets {
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
    pub(crate) fn lookup_bytes(&self) -> Option<u64> {
        match &self.body {
            Body::Hash(hash) if self.spec.key_size > 0 && self.inline().is_some() => Some(hash.bytes()),
            Body::Lpm(lpm) if self.inline().is_some() => lpm.bytes(),
            Body::Array { values, present: None } => {
                Some(values.stride() as u64 * u64::from(self.spec.max_entries))
            }
            _ => None,
        }
    }

    /// Returns true if a look-up by a program leaves no trace.
    pub(crate) fn lookup_only_reads(&self) -> bool {
        !matches!(self.spec.kind, MapKind::LruHash | MapKind::LruPercpuHash)
    }

    /// The slot of a key. `touch` for look-ups of programs: it marks an entry of an LRU map as used, and
    /// matches a prefix; a control program names the prefix itself.
    fn find(&mut self, key: &[u8], touch: bool) -> Option<u32> {
        match &mut self.body {
            Body::Array { present, .. } => {
                let at = index(key).filter(|at| *at < self.spec.max_entries)?;
                let here = present.as_ref().is_none_or(|p| p.bytes().get(at as usize) == Some(&1));
                here.then_some(at)
            }
            Body::Hash(hash) => hash.find(key, touch),
            Body::Lpm(lpm) if touch => lpm.longest(key),
            Body::Lpm(lpm) => lpm.exact(key),
            _ => None,
        }
    }

    fn values(&self) -> Option<&Values> {
        match &self.body {
            Body::Array { values, .. } => Some(values),
            Body::Hash(hash) => Some(&hash.values),
            Body::Lpm(lpm) => Some(&lpm.values),
            _ => None,
        }
    }

    fn values_mut(&mut self) -> Option<&mut Values> {
        match &mut self.body {
            Body::Array { values, .. } => Some(values),
            Body::Hash(hash) => Some(&mut hash.values),
            Body::Lpm(lpm) => Some(&mut lpm.values),
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
    pub(crate) fn first_value(&self) -> Option<u64> {
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

    /// Sets the value of each worker to the result of [`Map::get`] of a map of the same shape.
    pub(crate) fn put_copies(&mut self, key: &[u8], copies: &[u8]) {
        let size = self.value_size();
        for (copy, worker) in copies.chunks(size.next_multiple_of(8).max(1)).zip(0..) {
            self.update(key, &copy[..size.min(copy.len())], 0, Some(worker));
        }
    }

    /// Sets a value, of one worker or of all, with the flags of `bpf_map_update_elem`; returns 0 or the
    /// kernel's error.
    pub fn update(&mut self, key: &[u8], value: &[u8], flags: u64, worker: Option<u32>) -> i64 {
        if flags > EXIST || key.len() != self.spec.key_size as usize || value.len() != self.value_size() {
            return EINVAL;
        }
        match self.find(key, false) {
            Some(_) if flags == NOEXIST => EEXIST,
            Some(slot) => self.replace(key, slot, value, worker),
            None => self.insert(key, value, flags, worker),
        }
    }

    fn replace(&mut self, key: &[u8], slot: u32, value: &[u8], worker: Option<u32>) -> i64 {
        let in_place = self.spec.kind.is_percpu();
        let slot = match &mut self.body {
            Body::Hash(hash) if !in_place => hash.renew(key),
            Body::Lpm(lpm) => lpm.renew(key, value),
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
            Body::Array { present, .. } => {
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
            Body::Hash(hash) => hash.insert(key),
            Body::Lpm(lpm) => match (lpm.accepts(key), lpm.is_full()) {
                (false, _) => return EINVAL,
                (_, true) => return ENOSPC,
                _ => lpm.insert(key, value),
            },
            _ => return EINVAL,
        };
        self.put(slot, value, worker)
    }

    /// Removes an entry; returns 0 or the kernel's error.
    pub fn delete(&mut self, key: &[u8]) -> i64 {
        let found = |found| if found { 0 } else { ENOENT };
        match &mut self.body {
            Body::Array { present: Some(present), .. } => {
                let at = index(key).filter(|at| *at < self.spec.max_entries);
                let flag = at.and_then(|at| present.bytes_mut().get_mut(at as usize));
                flag.map_or(EINVAL, |flag| found(std::mem::take(flag) == 1))
            }
            Body::Array { present: None, .. } => EINVAL,
            Body::Hash(hash) => found(hash.remove(key)),
            Body::Lpm(lpm) if !lpm.accepts(key) => EINVAL,
            Body::Lpm(lpm) => found(lpm.remove(key)),
            _ => EOPNOTSUPP,
        }
    }

    /// All keys, unordered.
    pub fn keys(&self) -> Vec<Vec<u8>> {
        match &self.body {
            Body::Array { present, .. } => (0..self.spec.max_entries)
                .filter(|at| present.as_ref().is_none_or(|p| p.bytes().get(*at as usize) == Some(&1)))
                .map(|at| at.to_ne_bytes().to_vec())
                .collect(),
            Body::Hash(hash) => hash.keys(),
            Body::Lpm(lpm) => lpm.keys(),
            _ => Vec::new(),
        }
    }

    /// Number of entries; for queues, of items.
    pub fn len(&self) -> usize {
        match &self.body {
            Body::Array { present: None, .. } => self.spec.max_entries as usize,
            Body::Array { present: Some(present), .. } => present.bytes().iter().filter(|p| **p == 1).count(),
            Body::Hash(hash) => hash.len() as usize,
            Body::Lpm(lpm) => lpm.len() as usize,
            Body::Queue { items, .. } => items.len(),
            Body::Bloom(set) => set.len(),
            Body::Ring { .. } => 0,
        }
    }

    /// Returns true if it has no entry.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// `bpf_map_push_elem`; returns 0 or the kernel's error.
    pub(crate) fn push(&mut self, value: &[u8], flags: u64) -> i64 {
        match &mut self.body {
            Body::Queue { .. } if flags & !EXIST != 0 => EINVAL,
            Body::Queue { items, .. } => {
                if items.len() >= self.spec.max_entries as usize {
                    if flags != EXIST {
                        return E2BIG;
                    }
                    items.pop_front();
                }
                items.push_back(value.to_vec());
                0
            }
            Body::Bloom(set) if flags == 0 => {
                set.insert(value.to_vec());
                0
            }
            Body::Bloom(_) => EINVAL,
            _ => EOPNOTSUPP,
        }
    }

    /// `bpf_map_pop_elem` and `bpf_map_peek_elem`: fills `out` and returns 0, or the kernel's error. For a
    /// bloom filter, tests whether it contains `out`.
    pub(crate) fn pop(&mut self, out: &mut [u8], remove: bool) -> i64 {
        let (items, lifo) = match &mut self.body {
            Body::Bloom(set) => return if set.contains(&*out) { 0 } else { ENOENT },
            Body::Queue { items, lifo } => (items, *lifo),
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
        matches!(self.body, Body::Ring { .. })
    }

    /// Ends a batch: rings are empty, and a single worker holds no address of a value.
    pub(crate) fn quiesce(&mut self) {
        if let Body::Ring { used } = &mut self.body {
            *used = 0;
        }
        if let Some(values) = self.values_mut() {
            values.quiesce();
        }
    }

    /// Reserves room for a record of a ring buffer; `false` if it is full until the next batch.
    pub(crate) fn reserve(&mut self, len: u64) -> bool {
        const RECORD_HEADER: u64 = 8;
        let Body::Ring { used } = &mut self.body else { return false };
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

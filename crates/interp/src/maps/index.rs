//! From keys to slots, per family of map types.

use std::collections::{BTreeMap, VecDeque};

use millstream_isa::ByteOrder;
use rustc_hash::{FxHashMap, FxHashSet};

use super::priority::PriorityIndex;
use super::{MapConfig, MapKind};
use crate::errno::{EINVAL, ENOENT, EOPNOTSUPP};

#[derive(Clone, Debug)]
pub(super) enum MapIndex {
    /// Slot and key are the same number. `present` where entries may be absent.
    Array { len: u32, present: Option<Vec<bool>>, order: ByteOrder },
    /// Any key.
    Hash(HashMapIndex),
    /// Prefixes.
    Lpm(LpmTrieIndex),
    /// Masks and ranges with priorities.
    Priority(PriorityIndex),
    /// No keys: queue or stack.
    Queue { items: VecDeque<Vec<u8>>, lifo: bool },
    /// No keys: a set of values.
    Bloom(FxHashSet<Vec<u8>>),
    /// No contents at all: event rings.
    Ring,
}

/// The 32-bit number that a key starts with: the index of an array, the length of a prefix.
pub(super) fn key_number(key: &[u8], order: ByteOrder) -> Option<u32> {
    key.first_chunk::<4>().map(|key| order.number(key) as u32)
}

impl MapIndex {
    pub(super) fn new(spec: &MapConfig, order: ByteOrder) -> MapIndex {
        let len = spec.max_entries;
        match spec.kind {
            MapKind::Array | MapKind::PercpuArray => MapIndex::Array { len, present: None, order },
            MapKind::ProgArray
            | MapKind::ArrayOfMaps
            | MapKind::Devmap
            | MapKind::Cpumap
            | MapKind::Xskmap => MapIndex::Array { len, present: Some(vec![false; len as usize]), order },
            MapKind::Hash | MapKind::PercpuHash | MapKind::HashOfMaps | MapKind::DevmapHash => {
                MapIndex::Hash(HashMapIndex::default())
            }
            MapKind::LruHash | MapKind::LruPercpuHash => {
                MapIndex::Hash(HashMapIndex { lru: Some(LruList::default()), ..HashMapIndex::default() })
            }
            MapKind::LpmTrie => MapIndex::Lpm(LpmTrieIndex::new(spec.key_size, order)),
            MapKind::Priority => MapIndex::Priority(PriorityIndex::new(spec.key_size)),
            MapKind::Queue => MapIndex::Queue { items: VecDeque::new(), lifo: false },
            MapKind::Stack => MapIndex::Queue { items: VecDeque::new(), lifo: true },
            MapKind::BloomFilter => MapIndex::Bloom(FxHashSet::default()),
            MapKind::PerfEventArray | MapKind::Ringbuf => MapIndex::Ring,
        }
    }

    /// The slot of a key. `touch` where a program looks: it makes an entry of an LRU map recent, and matches
    /// a prefix; a control program names the prefix itself.
    pub(super) fn find(&mut self, key: &[u8], touch: bool) -> Option<u32> {
        match self {
            MapIndex::Array { len, present, order } => {
                let at = key_number(key, *order).filter(|at| at < len)?;
                let here = present.as_ref().is_none_or(|p| p.get(at as usize) == Some(&true));
                here.then_some(at)
            }
            MapIndex::Hash(hash) => hash.find(key, touch),
            MapIndex::Lpm(lpm) if touch => lpm.longest(key),
            MapIndex::Lpm(lpm) => lpm.exact(key),
            MapIndex::Priority(list) if touch => list.best(key),
            MapIndex::Priority(list) => list.named(key),
            _ => None,
        }
    }

    pub(super) fn len(&self) -> usize {
        match self {
            MapIndex::Hash(hash) => hash.slots.len(),
            MapIndex::Lpm(lpm) => lpm.slots.len(),
            MapIndex::Priority(list) => list.len(),
            _ => 0,
        }
    }

    pub(super) fn put(&mut self, key: &[u8], slot: u32) {
        match self {
            MapIndex::Hash(hash) => hash.put(key, slot),
            MapIndex::Lpm(lpm) => lpm.put(key, slot),
            MapIndex::Priority(list) => list.put(key, slot),
            _ => {}
        }
    }

    /// Points an existing key to another slot.
    pub(super) fn redirect(&mut self, key: &[u8], slot: u32) {
        match self {
            MapIndex::Hash(hash) => {
                if let Some(entry) = hash.slots.get_mut(key) {
                    entry.slot = slot;
                }
            }
            MapIndex::Lpm(lpm) => {
                if let Some(entry) = lpm.slots.get_mut(&lpm.canonical(key)) {
                    *entry = slot;
                }
            }
            MapIndex::Priority(list) => list.redirect(key, slot),
            _ => {}
        }
    }

    /// Makes an entry recent.
    pub(super) fn touch(&mut self, key: &[u8]) {
        if let MapIndex::Hash(hash) = self {
            hash.find(key, true);
        }
    }

    /// Removes a key and gives its slot, or the kernel's error.
    pub(super) fn remove(&mut self, key: &[u8]) -> Result<u32, i64> {
        match self {
            MapIndex::Array { present: Some(present), order, .. } => {
                let at = key_number(key, *order).ok_or(EINVAL)?;
                let flag = present.get_mut(at as usize).ok_or(EINVAL)?;
                if std::mem::take(flag) { Ok(at) } else { Err(ENOENT) }
            }
            MapIndex::Array { present: None, .. } => Err(EINVAL),
            MapIndex::Hash(hash) => hash.remove(key).ok_or(ENOENT),
            MapIndex::Lpm(lpm) => lpm.remove(key),
            MapIndex::Priority(list) => list.remove(key).ok_or(ENOENT),
            _ => Err(EOPNOTSUPP),
        }
    }

    /// All keys: arrays by number, others by slot, the order in which they were put.
    pub(super) fn keys(&self) -> Vec<Vec<u8>> {
        match self {
            MapIndex::Array { len, present, order } => (0..*len)
                .filter(|at| present.as_ref().is_none_or(|p| p.get(*at as usize) == Some(&true)))
                .map(|at| order.bytes_of_u32(at).to_vec())
                .collect(),
            MapIndex::Hash(hash) => by_slot(hash.slots.iter().map(|(key, entry)| (entry.slot, key))),
            MapIndex::Lpm(lpm) => by_slot(lpm.slots.iter().map(|(key, slot)| (*slot, key))),
            MapIndex::Priority(list) => list.names(),
            _ => Vec::new(),
        }
    }
}

fn by_slot<'a>(keys: impl Iterator<Item = (u32, &'a Box<[u8]>)>) -> Vec<Vec<u8>> {
    let mut keys: Vec<_> = keys.collect();
    keys.sort();
    keys.into_iter().map(|(_, key)| key.to_vec()).collect()
}

#[derive(Clone, Copy, Debug)]
pub(super) struct HashEntry {
    slot: u32,
    /// Time of last use, by the LRU's clock.
    used: u64,
}

/// A hash table, perhaps one that evicts.
#[derive(Clone, Debug, Default)]
pub(super) struct HashMapIndex {
    slots: FxHashMap<Box<[u8]>, HashEntry>,
    lru: Option<LruList>,
}

#[derive(Clone, Debug, Default)]
struct LruList {
    clock: u64,
    /// Keys by time of last use.
    order: BTreeMap<u64, Box<[u8]>>,
}

impl HashMapIndex {
    fn find(&mut self, key: &[u8], touch: bool) -> Option<u32> {
        let entry = self.slots.get_mut(key)?;
        if let (Some(lru), true) = (&mut self.lru, touch) {
            lru.clock += 1;
            if let Some(key) = lru.order.remove(&entry.used) {
                lru.order.insert(lru.clock, key);
            }
            entry.used = lru.clock;
        }
        Some(entry.slot)
    }

    fn put(&mut self, key: &[u8], slot: u32) {
        let mut used = 0;
        if let Some(lru) = &mut self.lru {
            lru.clock += 1;
            used = lru.clock;
            lru.order.insert(used, key.into());
        }
        self.slots.insert(key.into(), HashEntry { slot, used });
    }

    fn remove(&mut self, key: &[u8]) -> Option<u32> {
        let entry = self.slots.remove(key)?;
        if let Some(lru) = &mut self.lru {
            lru.order.remove(&entry.used);
        }
        Some(entry.slot)
    }

    /// Removes the least recently used entry and gives its slot; `None` if the map does not evict.
    pub(super) fn evict(&mut self) -> Option<u32> {
        let (_, key) = self.lru.as_mut()?.order.pop_first()?;
        self.slots.remove(&key).map(|entry| entry.slot)
    }
}

/// Prefixes: keys are a 32-bit length in bits and the data.
#[derive(Clone, Debug)]
pub(super) struct LpmTrieIndex {
    order: ByteOrder,
    bits: u32,
    /// Canonical keys: bits beyond the prefix are zero.
    slots: FxHashMap<Box<[u8]>, u32>,
    /// Number of prefixes of each length.
    lengths: BTreeMap<u32, u32>,
}

impl LpmTrieIndex {
    fn new(key_size: u32, order: ByteOrder) -> LpmTrieIndex {
        LpmTrieIndex {
            order,
            bits: key_size.saturating_sub(4) * 8,
            slots: FxHashMap::default(),
            lengths: BTreeMap::new(),
        }
    }

    fn length(&self, key: &[u8]) -> u32 {
        key_number(key, self.order).unwrap_or(u32::MAX)
    }

    /// Returns true if the prefix length is possible.
    pub(super) fn accepts(&self, key: &[u8]) -> bool {
        self.length(key) <= self.bits
    }

    /// The key cut to `bits` bits of prefix.
    fn cut(&self, key: &[u8], bits: u32) -> Box<[u8]> {
        let mut out = key.to_vec();
        for (i, byte) in out.iter_mut().enumerate().skip(4) {
            let before = (i as u32 - 4) * 8;
            let keep = bits.saturating_sub(before).min(8);
            *byte &= !(0xffu32 >> keep) as u8;
        }
        if let Some(length) = out.first_chunk_mut() {
            *length = self.order.bytes_of_u32(bits);
        }
        out.into()
    }

    fn canonical(&self, key: &[u8]) -> Box<[u8]> {
        self.cut(key, self.length(key))
    }

    fn exact(&self, key: &[u8]) -> Option<u32> {
        self.slots.get(&self.canonical(key)).copied()
    }

    fn longest(&self, key: &[u8]) -> Option<u32> {
        let most = self.length(key);
        if most > self.bits {
            return None;
        }
        let lengths = self.lengths.range(..=most).rev();
        lengths.map(|(bits, _)| self.slots.get(&self.cut(key, *bits))).find_map(|slot| slot.copied())
    }

    fn put(&mut self, key: &[u8], slot: u32) {
        self.slots.insert(self.canonical(key), slot);
        let length = self.length(key);
        *self.lengths.entry(length).or_default() += 1;
    }

    fn remove(&mut self, key: &[u8]) -> Result<u32, i64> {
        if !self.accepts(key) {
            return Err(EINVAL);
        }
        let slot = self.slots.remove(&self.canonical(key)).ok_or(ENOENT)?;
        let length = self.length(key);
        if let Some(count) = self.lengths.get_mut(&length) {
            *count -= 1;
            if *count == 0 {
                self.lengths.remove(&length);
            }
        }
        Ok(slot)
    }
}

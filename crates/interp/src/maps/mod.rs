//! Maps, with the kernel's semantics and error numbers.
//!
//! A program sees a value at the address of its slot: slots lie a power of two apart, with a gap after each
//! value, so that an access beyond a value is noticed. Replacing the value of a hash or trie entry takes a
//! new slot, as in the kernel: whoever holds the old address keeps the old bytes until [`MapSet::quiesce`].
//!
//! Departures from the kernel, all of them within what it promises: LRU maps evict exactly the least recently
//! used entry, and only when full; bloom filters have no false positives.
//!
//! Source: `kernel/bpf/{arraymap,hashtab,lpm_trie,queue_stack_maps,ringbuf,devmap,cpumap}.c`.

mod index;
mod priority;
mod slab;

use millstream_isa::{ByteOrder, MapType};

use crate::Fault;
use crate::errno::{E2BIG, EEXIST, EINVAL, ENOENT, ENOSPC, EOPNOTSUPP};
use index::MapIndex;
use slab::Slab;

/// Maps that the address layout has room for.
pub(crate) const MAX_MAPS: usize = 0x1_0000;

pub use priority::{ByteRange, PriorityEntry, PriorityIndex};

/// Insert or replace.
pub const BPF_ANY: u64 = 0;
/// Insert only.
pub const BPF_NOEXIST: u64 = 1;
/// Replace only.
pub const BPF_EXIST: u64 = 2;
/// Hold the value's spin lock meanwhile.
const BPF_F_LOCK: u64 = 4;
/// Creation flag: programs may not write.
const BPF_F_RDONLY_PROG: u32 = 1 << 7;

/// A map of a machine.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct MapId(pub u32);

/// An entry of a map: key and value.
pub type MapKeyValue = (Vec<u8>, Vec<u8>);

/// Contents of a map: the result of [`MapSet::contents`].
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum MapContents {
    /// An array, all of whose values exist.
    Values {
        /// The values end to end; each copy of a per-CPU value is padded to a multiple of 8 bytes.
        bytes: Vec<u8>,
        /// Bytes from one value to the next.
        size: usize,
        /// Byte order of keys.
        order: ByteOrder,
    },
    /// Another map: its entries by ascending key.
    Entries(Vec<MapKeyValue>),
}

impl MapContents {
    /// The first entry that the other contents lack, and the first of theirs that these lack. The contents are of maps
    /// of the same configuration.
    pub fn difference(&self, other: &Self) -> [Option<MapKeyValue>; 2] {
        match (self, other) {
            (MapContents::Values { bytes: a, size, order }, MapContents::Values { bytes: b, .. }) => {
                let at = a.iter().zip(b).position(|(x, y)| x != y).map(|at| at / (*size).max(1));
                let entry = |bytes: &[u8]| {
                    let at = at?;
                    let value = bytes.chunks(*size).nth(at)?.to_vec();
                    Some((order.bytes_of_u32(at as u32).to_vec(), value))
                };
                [entry(a), entry(b)]
            }
            (MapContents::Entries(a), MapContents::Entries(b)) => {
                let lacks = |a: &[MapKeyValue], b: &[MapKeyValue]| {
                    a.iter().find(|entry| b.binary_search(entry).is_err()).cloned()
                };
                [lacks(a, b), lacks(b, a)]
            }
            _ => [None, None],
        }
    }
}

/// Types of maps, with the numbers of `enum bpf_map_type`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(u32)]
pub enum MapKind {
    /// Hash table.
    Hash = MapType::HASH.0,
    /// Array.
    Array = MapType::ARRAY.0,
    /// Programs to tail-call.
    ProgArray = MapType::PROG_ARRAY.0,
    /// Perf event rings.
    PerfEventArray = MapType::PERF_EVENT_ARRAY.0,
    /// Hash table with a copy of each value per CPU.
    PercpuHash = MapType::PERCPU_HASH.0,
    /// Array with a copy of each value per CPU.
    PercpuArray = MapType::PERCPU_ARRAY.0,
    /// Hash table that evicts.
    LruHash = MapType::LRU_HASH.0,
    /// Hash table with a copy per CPU that evicts.
    LruPercpuHash = MapType::LRU_PERCPU_HASH.0,
    /// Longest prefix match.
    LpmTrie = MapType::LPM_TRIE.0,
    /// Array of maps.
    ArrayOfMaps = MapType::ARRAY_OF_MAPS.0,
    /// Hash table of maps.
    HashOfMaps = MapType::HASH_OF_MAPS.0,
    /// Interfaces to redirect to.
    Devmap = MapType::DEVMAP.0,
    /// CPUs to redirect to.
    Cpumap = MapType::CPUMAP.0,
    /// AF_XDP sockets to redirect to.
    Xskmap = MapType::XSKMAP.0,
    /// First in, first out.
    Queue = MapType::QUEUE.0,
    /// Last in, first out.
    Stack = MapType::STACK.0,
    /// Interfaces to redirect to, by any number.
    DevmapHash = MapType::DEVMAP_HASH.0,
    /// Ring buffer.
    Ringbuf = MapType::RINGBUF.0,
    /// Bloom filter.
    BloomFilter = MapType::BLOOM_FILTER.0,
    /// Masks and ranges with priorities ([`PriorityEntry`]); the kernel has no such type.
    Priority = 0x1000,
}

impl MapKind {
    /// The type of this number; `None` for those that are not modelled.
    pub fn from_number(number: u32) -> Option<MapKind> {
        use MapKind::*;
        [
            Hash,
            Array,
            ProgArray,
            PerfEventArray,
            PercpuHash,
            PercpuArray,
            LruHash,
            LruPercpuHash,
            LpmTrie,
            ArrayOfMaps,
            HashOfMaps,
            Devmap,
            Cpumap,
            Xskmap,
            Queue,
            Stack,
            DevmapHash,
            Ringbuf,
            BloomFilter,
            Priority,
        ]
        .into_iter()
        .find(|kind| *kind as u32 == number)
    }

    /// Each CPU has its own copy of a value.
    pub const fn is_percpu(self) -> bool {
        MapType(self as u32).is_percpu()
    }

    /// Values are maps.
    pub const fn is_map_of_maps(self) -> bool {
        MapType(self as u32).is_map_of_maps()
    }

    /// `bpf_redirect_map` takes it.
    pub const fn is_redirect_target(self) -> bool {
        matches!(self, MapKind::Devmap | MapKind::DevmapHash | MapKind::Cpumap | MapKind::Xskmap)
    }
}

/// A map's declaration.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct MapConfig {
    /// Type.
    pub kind: MapKind,
    /// Bytes of a key.
    pub key_size: u32,
    /// Bytes of a value.
    pub value_size: u32,
    /// Entries at most; bytes for ring buffers.
    pub max_entries: u32,
    /// Creation flags.
    pub flags: u32,
}

/// One map with its contents.
#[derive(Clone, Debug)]
struct MapInstance {
    spec: MapConfig,
    index: MapIndex,
    values: Slab,
}

/// All maps of a machine.
#[derive(Clone, Debug, Default)]
pub struct MapSet {
    maps: Vec<MapInstance>,
    /// Byte order of numbers in keys and values.
    pub(crate) order: ByteOrder,
    /// Keys that programs looked up and did not find, in order, while this is there.
    pub missed: Option<Vec<(MapId, Vec<u8>)>>,
    /// Lookups of programs, in order, while this is there.
    pub lookups: Option<Vec<MapLookup>>,
}

/// A lookup of a program.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct MapLookup {
    /// Map.
    pub map: MapId,
    /// Key.
    pub key: Vec<u8>,
    /// Value that was found.
    pub value: Option<Vec<u8>>,
}

impl MapSet {
    /// Adds an empty map with `cpus` copies of per-CPU values.
    ///
    /// # Errors
    /// [`Fault::MapKind`] when there are more maps than a machine has room for.
    pub fn add(&mut self, spec: MapConfig, cpus: u32) -> Result<MapId, Fault> {
        if self.maps.len() >= MAX_MAPS {
            return Err(Fault::MapKind(spec.kind as u32));
        }
        let copies = if spec.kind.is_percpu() { cpus.max(1) } else { 1 };
        let mut values = Slab::new(spec.value_size, copies);
        let index = MapIndex::new(&spec, self.order);
        if matches!(index, MapIndex::Array { .. }) {
            values.grow(spec.max_entries);
        }
        self.maps.push(MapInstance { spec, index, values });
        Ok(MapId(self.maps.len() as u32 - 1))
    }

    /// The declaration of a map.
    pub fn spec(&self, map: MapId) -> Option<MapConfig> {
        self.maps.get(map.0 as usize).map(|state| state.spec)
    }

    /// Number of maps.
    pub fn len(&self) -> usize {
        self.maps.len()
    }

    /// Returns true if there are no maps.
    pub fn is_empty(&self) -> bool {
        self.maps.is_empty()
    }

    /// Lets slots of deleted and replaced entries be used again: no program holds an address any more.
    pub fn quiesce(&mut self) {
        for map in &mut self.maps {
            map.values.quiesce();
        }
    }

    fn state(&mut self, map: MapId) -> Option<&mut MapInstance> {
        self.maps.get_mut(map.0 as usize)
    }

    /// The bytes at an offset among a map's values, as addresses have it.
    pub(crate) fn value_at(&mut self, map: MapId, offset: u64, len: usize, write: bool) -> Option<&mut [u8]> {
        let state = self.state(map)?;
        if write && state.spec.flags & BPF_F_RDONLY_PROG != 0 {
            return None;
        }
        state.values.at(offset, len)
    }

    /// `bpf_map_lookup_elem`: the offset of the value for addresses, on this CPU.
    pub(crate) fn lookup(&mut self, map: MapId, key: &[u8], cpu: u32) -> Option<u64> {
        let state = self.maps.get_mut(map.0 as usize)?;
        let slot = state.index.find(key, true);
        let offset = slot.and_then(|slot| state.values.offset(slot, cpu));
        if let Some(lookups) = &mut self.lookups {
            let size = state.spec.value_size as usize;
            let value = offset.and_then(|offset| Some(state.values.at(offset, size)?.to_vec()));
            lookups.push(MapLookup { map, key: key.to_vec(), value });
        }
        if let (None, Some(missed)) = (slot, &mut self.missed) {
            missed.push((map, key.to_vec()));
        }
        offset
    }

    /// The inner map at a key of a map of maps.
    pub(crate) fn inner(&mut self, map: MapId, key: &[u8]) -> Option<MapId> {
        let value = self.get(map, key)?;
        let id = index::key_number(&value, self.order)?;
        self.spec(MapId(id)).map(|_| MapId(id))
    }

    /// `bpf_map_update_elem`: 0 or a negative error number. `cpu` is `None` to set all copies of a per-CPU
    /// value.
    pub(crate) fn update(
        &mut self,
        map: MapId,
        key: &[u8],
        value: &[u8],
        flags: u64,
        cpu: Option<u32>,
    ) -> i64 {
        let Some(state) = self.state(map) else { return EINVAL };
        state.update(key, value, flags & !BPF_F_LOCK, cpu)
    }

    /// `bpf_map_delete_elem`: 0 or a negative error number.
    pub fn delete(&mut self, map: MapId, key: &[u8]) -> i64 {
        let Some(state) = self.state(map) else { return EINVAL };
        match state.index.remove(key) {
            Ok(slot) => {
                state.values.retire(slot);
                0
            }
            Err(errno) => errno,
        }
    }

    /// The value that a control program reads at a key; for a per-CPU map all its copies in turn, each padded
    /// to 8 bytes.
    pub fn get(&mut self, map: MapId, key: &[u8]) -> Option<Vec<u8>> {
        let state = self.state(map)?;
        let slot = state.index.find(key, false)?;
        Some(state.values.copies(slot))
    }

    /// Writes at a key as a control program does: one value (for all CPUs), or all copies as [`MapSet::get`]
    /// returns them.
    ///
    /// # Errors
    /// The kernel's negative error number.
    pub fn set(&mut self, map: MapId, key: &[u8], value: &[u8], flags: u64) -> Result<(), i64> {
        let state = self.state(map).ok_or(EINVAL)?;
        let is_whole = match state.spec.kind {
            MapKind::Priority => true,
            _ => key.len() == state.spec.key_size as usize,
        };
        if !is_whole {
            return Err(EINVAL);
        }
        if state.values.is_all_copies(value) {
            let one = &value[..state.spec.value_size as usize];
            match state.update(key, one, flags, None) {
                0 => state.index.find(key, false).map_or(Err(ENOENT), |slot| {
                    state.values.set_copies(slot, value);
                    Ok(())
                }),
                errno => Err(errno),
            }
        } else if value.len() == state.spec.value_size as usize {
            match state.update(key, value, flags, None) {
                0 => Ok(()),
                errno => Err(errno),
            }
        } else {
            Err(EINVAL)
        }
    }

    /// All entries as [`MapSet::get`] gives them, by ascending key.
    pub fn entries(&mut self, map: MapId) -> Vec<MapKeyValue> {
        let keys = self.keys(map);
        let mut out: Vec<_> =
            keys.into_iter().filter_map(|key| self.get(map, &key).map(|value| (key, value))).collect();
        out.sort();
        out
    }

    /// Contents of a map, to compare with those of another machine's map of the same configuration.
    pub fn contents(&mut self, map: MapId) -> MapContents {
        match self.state(map) {
            Some(MapInstance { index: MapIndex::Array { present: None, order, .. }, values, .. }) => {
                let (bytes, size) = (values.bytes().to_vec(), values.slot_size());
                MapContents::Values { bytes, size, order: *order }
            }
            _ => MapContents::Entries(self.entries(map)),
        }
    }

    /// All keys, in the order in which a program walks them.
    pub fn keys(&mut self, map: MapId) -> Vec<Vec<u8>> {
        self.state(map).map_or_else(Vec::new, |state| state.index.keys())
    }

    /// `bpf_map_push_elem`.
    pub fn push(&mut self, map: MapId, value: &[u8], flags: u64) -> i64 {
        let Some(state) = self.state(map) else { return EINVAL };
        let full = state.spec.max_entries as usize;
        match &mut state.index {
            MapIndex::Queue { items, .. } => {
                if flags & BPF_NOEXIST != 0 || flags > BPF_EXIST {
                    return EINVAL;
                }
                if items.len() == full {
                    if flags & BPF_EXIST == 0 {
                        return E2BIG;
                    }
                    items.pop_front();
                }
                items.push_back(value.to_vec());
                0
            }
            MapIndex::Bloom(set) if flags == BPF_ANY => {
                set.insert(value.to_vec());
                0
            }
            MapIndex::Bloom(_) => EINVAL,
            _ => EOPNOTSUPP,
        }
    }

    /// `bpf_map_pop_elem` and `bpf_map_peek_elem`: the next value of a queue or stack.
    pub fn pop(&mut self, map: MapId, remove: bool) -> Option<Vec<u8>> {
        let MapIndex::Queue { items, lifo } = &mut self.state(map)?.index else { return None };
        match (*lifo, remove) {
            (true, true) => items.pop_back(),
            (true, false) => items.back().cloned(),
            (false, true) => items.pop_front(),
            (false, false) => items.front().cloned(),
        }
    }

    /// Returns true if a bloom filter has a value.
    pub(crate) fn bloom_has(&mut self, map: MapId, value: &[u8]) -> bool {
        matches!(self.state(map).map(|state| &state.index), Some(MapIndex::Bloom(set)) if set.contains(value))
    }
}

impl MapInstance {
    fn update(&mut self, key: &[u8], value: &[u8], flags: u64, cpu: Option<u32>) -> i64 {
        if flags > BPF_EXIST {
            return EINVAL;
        }
        match self.index.find(key, false) {
            Some(_) if flags == BPF_NOEXIST => EEXIST,
            Some(slot) => self.replace(key, slot, value, cpu),
            None => self.insert(key, value, flags, cpu),
        }
    }

    fn replace(&mut self, key: &[u8], slot: u32, value: &[u8], cpu: Option<u32>) -> i64 {
        let in_place = matches!(self.index, MapIndex::Array { .. }) || self.spec.kind.is_percpu();
        if in_place {
            self.values.set(slot, value, cpu);
        } else {
            let new = self.values.take();
            self.values.set(new, value, cpu);
            self.index.redirect(key, new);
            self.values.retire(slot);
        }
        self.index.touch(key);
        0
    }

    fn insert(&mut self, key: &[u8], value: &[u8], flags: u64, cpu: Option<u32>) -> i64 {
        let full = self.index.len() >= self.spec.max_entries as usize;
        match &mut self.index {
            MapIndex::Array { present, order, .. } => {
                let Some(at) = index::key_number(key, *order).filter(|at| *at < self.spec.max_entries) else {
                    return E2BIG;
                };
                if flags == BPF_EXIST {
                    return ENOENT;
                }
                if let Some(flag) = present.as_mut().and_then(|p| p.get_mut(at as usize)) {
                    *flag = true;
                }
                self.values.set(at, value, cpu);
                0
            }
            _ if flags == BPF_EXIST => ENOENT,
            MapIndex::Hash(hash) => {
                if full {
                    match hash.evict() {
                        Some(slot) => self.values.free_immediately(slot),
                        None => return E2BIG,
                    }
                }
                self.put_new(key, value, cpu)
            }
            MapIndex::Lpm(lpm) => {
                if !lpm.accepts(key) {
                    return EINVAL;
                }
                if full { ENOSPC } else { self.put_new(key, value, cpu) }
            }
            MapIndex::Priority(list) => {
                if !list.accepts(key) {
                    return EINVAL;
                }
                if full { ENOSPC } else { self.put_new(key, value, cpu) }
            }
            _ => EINVAL,
        }
    }

    fn put_new(&mut self, key: &[u8], value: &[u8], cpu: Option<u32>) -> i64 {
        let slot = self.values.take();
        self.values.clear(slot);
        self.values.set(slot, value, cpu);
        self.index.put(key, slot);
        0
    }
}

#[cfg(test)]
mod tests;

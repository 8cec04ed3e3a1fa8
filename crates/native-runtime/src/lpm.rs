//! Longest prefix match: a multi-bit trie over a table of the exact prefixes.
//!
//! Nodes cover 8 bits; the root covers 24 in tables of many prefixes (DIR-24-8, Gupta, Lin and McKeown,
//! 1998), else 16, if keys have that many. A prefix is spread over all places of the node in which it ends
//! (controlled prefix expansion, Srinivasan and Varghese, 1999) and over the nodes below, except where a
//! longer one is: so a look-up takes the single answer where its walk ends. A place is a 32-bit word: slot
//! plus one, or number of the node below with the top bit set. The length of the place's prefix is stored
//! beside it, for updates only.
//!
//! [`LpmTemplate::Packed`] has a second copy of the nodes below the root for look-ups, with one word for each
//! run of equal places ([`packed`]): for long addresses, whose nodes have few prefixes each. The places
//! themselves are then used by updates only.
//!
//! [`LpmTemplate::Lengths`] has no trie: look-ups try one length after the other in a hash table
//! ([`lengths`]). That is for prefixes of few lengths, and for tables that change all the time, since a
//! change costs the same however short the prefix is.
//!
//! [`LpmTemplate::List`] has none either: all prefixes are compared, the longest first ([`list`]). That is
//! for a few prefixes, several of which are compared at once.
//!
//! The table of exact prefixes is authoritative: the trie follows it, and look-ups for fewer bits than a key
//! has, which the trie cannot answer, use it. `emit::lpm` has the walk through the trie as LLVM's IR: both
//! must change together.
//!
//! If programs only read values, prefixes with equal values share one slot: the few next hops of many routes
//! stay in the cache.

pub mod lengths;
pub mod list;
pub mod packed;
pub mod template_choice;

use std::collections::BTreeMap;
use std::io;
use std::ops::Range;

use rustc_hash::FxHashMap;
use serde::{Deserialize, Serialize};

use super::region::{AddressAllocator, MemoryRegion};
use super::values::ValueStorage;
use lengths::{ByLength, ByLengthLayout};
use list::{ListLayout, PrefixList};
use packed::{MOST_NODES, PackedNodes};

/// A trie with its values.
#[derive(Debug)]
pub(crate) struct LpmTable {
    bits: u32,
    /// Bits that the root covers.
    root: u32,
    /// Prefixes, with all bits behind them zero, and their slots.
    exact: FxHashMap<Box<[u8]>, u32>,
    /// Number of prefixes of each length.
    lengths: BTreeMap<u32, u32>,
    nodes: MemoryRegion,
    /// Length plus one of the prefix at each place.
    depths: MemoryRegion,
    /// Places in use, and places in all.
    used: usize,
    room: usize,
    /// Packed nodes, if look-ups use them, and the numbers of the nodes that must be packed again.
    packed: Option<PackedNodes>,
    touched: Vec<usize>,
    /// Set if look-ups go by lengths instead of through the trie, which is empty then.
    by_length: Option<ByLength>,
    /// Set if look-ups go through all prefixes instead.
    list: Option<PrefixList>,
    /// Slots of values, if they are shared.
    shared: Option<SharedValueSlots>,
    pub(crate) values: ValueStorage,
    max_entries: u32,
}

/// Algorithm of look-ups in a trie.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub enum LpmTemplate {
    /// Nodes with a word for each place.
    #[default]
    Multibit,
    /// Nodes with a word for each run of equal places.
    Packed,
    /// No trie: a search in a hash table for each length.
    Lengths,
    /// No trie: prefix by prefix, several at once.
    List,
}

/// Parameters of a trie.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LpmTableParams {
    pub(crate) template: LpmTemplate,
    /// Seed of the hash table's hash.
    pub(crate) seed: u64,
    /// True if programs do not write values: equal ones share one slot.
    pub(crate) share: bool,
    /// Slots in addition to those of the entries.
    pub(crate) spare: u32,
}

/// Slots of values, and the number of prefixes that use each.
type SharedValueSlots = FxHashMap<Box<[u8]>, (u32, u32)>;

/// Maximum number of places of a trie: addresses, of which only those in use cost memory.
const MOST_PLACES: usize = 1 << 31;
/// A table for at least this many prefixes has a root of 24 bits: 64 MiB.
const MANY: u32 = 1 << 16;
/// Flag of a place with a node below.
pub const NODE: u32 = 1 << 31;

/// Addresses and parameters of a trie.
#[derive(Clone, Copy, Debug)]
pub struct LpmLayout {
    /// The trie's places.
    pub nodes: u64,
    /// Bits of an address; a multiple of 8.
    pub bits: u32,
    /// Bits that the root covers.
    pub root: u32,
    /// Number of places in all.
    pub places: u64,
    /// Address of the packed nodes, if look-ups use them.
    pub packed: Option<u64>,
    /// Number of the last packed node that there is room for.
    pub packed_nodes: u64,
    /// Set if look-ups go by lengths instead.
    pub by_length: Option<ByLengthLayout>,
    /// Set if they go through all prefixes instead.
    pub list: Option<ListLayout>,
    /// Address of the values.
    pub values: u64,
    /// Distance of two values, in bytes.
    pub stride: u64,
}

/// Bits that the root covers, for addresses of this many bits and for this many prefixes.
fn root_bits(bits: u32, entries: u32) -> u32 {
    match bits {
        24.. if entries >= MANY => 24,
        16.. => 16,
        _ => 8,
    }
}

/// Prefix length of a key, its first word.
fn length(key: &[u8]) -> u32 {
    key.first_chunk().map_or(u32::MAX, |word| u32::from_ne_bytes(*word))
}

/// `width` bits of an address behind the first `from`; both are multiples of 8.
fn part(data: &[u8], from: u32, width: u32) -> usize {
    let byte = |at: u32| usize::from(data.get(at as usize).copied().unwrap_or(0));
    (from / 8..(from + width) / 8).fold(0, |index, at| index << 8 | byte(at))
}

impl LpmTable {
    /// An empty trie.
    pub(crate) fn new(
        key_size: u32,
        value_size: u32,
        max_entries: u32,
        LpmTableParams { template, seed, share, spare }: LpmTableParams,
        place: &mut AddressAllocator,
    ) -> io::Result<LpmTable> {
        let bits = key_size.saturating_sub(4) * 8;
        let root = root_bits(bits, max_entries);
        // A prefix adds at most one node per level.
        let levels = (bits / 8).saturating_sub(1) as usize;
        let most = match template {
            LpmTemplate::Multibit => usize::MAX,
            LpmTemplate::Packed => MOST_NODES,
            LpmTemplate::Lengths | LpmTemplate::List => 0,
        };
        let below = (max_entries as usize).saturating_mul(levels).min(most);
        let room = below.saturating_mul(256).saturating_add(1 << root).min(MOST_PLACES);
        let nodes = MemoryRegion::new(4 * room, place)?;
        let packed = (template == LpmTemplate::Packed).then(|| PackedNodes::new(below, place)).transpose()?;
        let by_length = (template == LpmTemplate::Lengths)
            .then(|| ByLength::new(key_size, max_entries, seed, place))
            .transpose()?;
        let list = (template == LpmTemplate::List)
            .then(|| PrefixList::new(key_size, max_entries, place))
            .transpose()?;
        if root == 24 && by_length.is_none() && list.is_none() {
            nodes.prefer_large_pages(4 * room);
            packed.iter().for_each(PackedNodes::prefer_large_pages);
        }
        Ok(LpmTable {
            bits,
            root,
            exact: FxHashMap::default(),
            lengths: BTreeMap::new(),
            nodes,
            depths: MemoryRegion::new(2 * room, place)?,
            used: 1 << root,
            room,
            packed,
            touched: Vec::new(),
            by_length,
            list,
            shared: share.then(SharedValueSlots::default),
            values: ValueStorage::new(0, value_size, 1, max_entries, spare, place)?,
            max_entries,
        })
    }

    /// Layout for the walk in native code.
    pub(crate) fn layout(&self) -> LpmLayout {
        LpmLayout {
            nodes: self.nodes.address(),
            bits: self.bits,
            root: self.root,
            places: self.room as u64,
            packed: self.packed.as_ref().map(PackedNodes::address),
            packed_nodes: ((self.room - (1 << self.root)) >> 8) as u64,
            by_length: self.by_length.as_ref().map(ByLength::layout),
            list: self.list.as_ref().map(PrefixList::layout),
            values: self.values.base(),
            stride: self.values.stride() as u64,
        }
    }

    /// Bytes of the root, over which addresses are spread, for a trie that is fetched ahead.
    pub(crate) fn bytes(&self) -> Option<u64> {
        self.walks().then_some(4 << self.root)
    }

    /// Returns true if look-ups go through the trie.
    fn walks(&self) -> bool {
        self.by_length.is_none() && self.list.is_none()
    }

    pub(crate) fn len(&self) -> u32 {
        self.exact.len() as u32
    }

    /// Returns true if the prefix length is valid.
    pub(crate) fn accepts(&self, key: &[u8]) -> bool {
        length(key) <= self.bits
    }

    pub(crate) fn is_full(&self) -> bool {
        self.len() >= self.max_entries
    }

    /// The key truncated to `bits` bits of prefix.
    fn cut(key: &[u8], bits: u32) -> Box<[u8]> {
        let mut out = key.to_vec();
        for (i, byte) in out.iter_mut().enumerate().skip(4) {
            let keep = bits.saturating_sub((i as u32 - 4) * 8).min(8);
            *byte &= !(0xffu32 >> keep) as u8;
        }
        if let Some(word) = out.first_chunk_mut() {
            *word = bits.to_ne_bytes();
        }
        out.into()
    }

    /// The slot of a prefix.
    pub(crate) fn exact(&self, key: &[u8]) -> Option<u32> {
        self.exact.get(&LpmTable::cut(key, length(key))).copied()
    }

    /// Length and slot of the longest prefix of the key that is shorter than `bits`.
    fn shorter(&self, key: &[u8], bits: u32) -> Option<(u32, u32)> {
        let lengths = self.lengths.range(..bits).rev();
        lengths.filter_map(|(&bits, _)| Some((bits, *self.exact.get(&LpmTable::cut(key, bits))?))).next()
    }

    /// The slot of the longest matching prefix.
    pub(crate) fn longest(&self, key: &[u8]) -> Option<u32> {
        let most = length(key);
        if most != self.bits {
            return if most < self.bits { self.shorter(key, most + 1).map(|(_, slot)| slot) } else { None };
        }
        if !self.walks() {
            return self.shorter(key, most + 1).map(|(_, slot)| slot);
        }
        let data = &key[4..];
        let mut covered = self.root;
        let mut place = self.nodes.half(part(data, 0, self.root));
        while place & NODE != 0 {
            place = self.nodes.half(base(place) + part(data, covered, 8));
            covered += 8;
        }
        place.checked_sub(1)
    }

    /// Inserts a missing prefix, and returns its slot; `None` if there is no room.
    pub(crate) fn insert(&mut self, key: &[u8], value: &[u8]) -> Option<u32> {
        let bits = length(key);
        let places = self.places(key, bits)?;
        let slot = self.slot_for(value)?;
        if !self.set_exact(key, slot) {
            self.release(slot);
            return None;
        }
        let count = self.lengths.entry(bits).or_default();
        *count += 1;
        if *count == 1 {
            self.list_lengths();
        }
        self.spread(places, bits, slot);
        Some(slot)
    }

    /// Sets the slot of a prefix in all tables of exact prefixes; `false` if there is no room.
    fn set_exact(&mut self, key: &[u8], slot: u32) -> bool {
        let prefix = LpmTable::cut(key, length(key));
        let room = self.by_length.as_mut().is_none_or(|table| table.set(&prefix, slot))
            && self.list.as_mut().is_none_or(|list| list.set(&prefix, slot));
        if room {
            self.exact.insert(prefix, slot);
        }
        room
    }

    /// Updates the list of lengths in use.
    fn list_lengths(&mut self) {
        let ones = vec![0xff; 4 + self.bits as usize / 8];
        if let Some(table) = &mut self.by_length {
            table.set_lengths(self.lengths.keys().rev().copied(), |bits| LpmTable::cut(&ones, bits));
        }
    }

    /// Gives a prefix a slot for another value, and releases the old one.
    pub(crate) fn renew(&mut self, key: &[u8], value: &[u8]) -> Option<u32> {
        let old = self.exact(key)?;
        let bits = length(key);
        let places = self.places(key, bits)?;
        let new = self.slot_for(value)?;
        // There is room: it was there.
        self.set_exact(key, new);
        self.spread(places, bits, new);
        self.release(old);
        Some(new)
    }

    /// Removes a prefix.
    pub(crate) fn remove(&mut self, key: &[u8]) -> bool {
        let bits = length(key);
        let prefix = LpmTable::cut(key, bits);
        let Some(slot) = self.exact.remove(&prefix) else { return false };
        if let Some(table) = &mut self.by_length {
            table.remove(&prefix);
        }
        if let Some(list) = &mut self.list {
            list.remove(&prefix);
        }
        if let Some(count) = self.lengths.get_mut(&bits) {
            *count -= 1;
            if *count == 0 {
                self.lengths.remove(&bits);
                self.list_lengths();
            }
        }
        self.release(slot);
        let Some(places) = self.places(key, bits) else { return true };
        let (word, depth) =
            self.shorter(key, bits).map_or((0, 0), |(bits, slot)| (slot + 1, bits as u16 + 1));
        self.set(places, |there| there == bits as u16 + 1, word, depth);
        true
    }

    /// A slot for a value; `None` if there is none.
    fn slot_for(&mut self, value: &[u8]) -> Option<u32> {
        if let Some((slot, count)) = self.shared.as_mut().and_then(|shared| shared.get_mut(value)) {
            *count += 1;
            return Some(*slot);
        }
        let slot = self.values.take()?;
        self.values.clear(slot);
        if let Some(shared) = &mut self.shared {
            shared.insert(value.into(), (slot, 1));
        }
        Some(slot)
    }

    /// Releases the slot of a prefix.
    fn release(&mut self, slot: u32) {
        if let Some(shared) = &mut self.shared {
            let value = self.values.get(slot, 0);
            if let Some((_, count)) = shared.get_mut(value) {
                *count -= 1;
                if *count > 0 {
                    return;
                }
            }
            shared.remove(value);
        }
        self.values.retire(slot);
    }

    /// Stores a slot in all places of its prefix that have no longer one.
    fn spread(&mut self, places: Range<usize>, bits: u32, slot: u32) {
        let depth = bits as u16 + 1;
        self.set(places, |there| there <= depth, slot + 1, depth);
    }

    /// Sets places, and those of nodes below them, whose depth is wanted.
    fn set(&mut self, places: Range<usize>, wanted: impl Fn(u16) -> bool, word: u32, depth: u16) {
        let mut open = vec![places];
        while let Some(places) = open.pop() {
            for at in places {
                let there = self.nodes.half(at);
                if there & NODE != 0 {
                    open.push(base(there)..base(there) + 256);
                } else if wanted(self.depths.quarter(at)) {
                    self.nodes.set_half(at, word);
                    self.depths.set_quarter(at, depth);
                    self.touch(at);
                }
            }
        }
        self.pack();
    }

    /// Records that a place was changed.
    fn touch(&mut self, at: usize) {
        let node = at >> 8;
        if self.packed.is_some() && at >= 1 << self.root && self.touched.last() != Some(&node) {
            self.touched.push(node);
        }
    }

    /// Packs the changed nodes again.
    fn pack(&mut self) {
        let Some(packed) = &mut self.packed else { return };
        self.touched.sort_unstable();
        self.touched.dedup();
        for node in self.touched.drain(..) {
            let places = (node << 8..(node + 1) << 8).map(|place| self.nodes.half(place));
            packed.set(node + 1 - (1 << self.root >> 8), places);
        }
    }

    /// The places of a prefix in the node where it ends, which is created if missing; empty without a trie;
    /// `None` if there is no room for a node.
    fn places(&mut self, key: &[u8], bits: u32) -> Option<Range<usize>> {
        if !self.walks() {
            return Some(0..0);
        }
        let data = &key[4..];
        let (mut node, mut covered, mut width) = (0, 0, self.root);
        while bits > covered + width {
            node = self.below(node + part(data, covered, width))?;
            covered += width;
            width = 8;
        }
        let free = covered + width - bits;
        let start = node + (part(data, covered, width) >> free << free);
        Some(start..start + (1 << free))
    }

    /// The node below a place. A new one has the place's prefix everywhere.
    fn below(&mut self, at: usize) -> Option<usize> {
        let there = self.nodes.half(at);
        if there & NODE != 0 {
            return Some(base(there));
        }
        if self.used + 256 > self.room {
            return None;
        }
        let (new, depth) = (self.used, self.depths.quarter(at));
        self.used += 256;
        for place in new..new + 256 {
            self.nodes.set_half(place, there);
            self.depths.set_quarter(place, depth);
        }
        self.nodes.set_half(at, NODE | (new >> 8) as u32);
        self.touch(new);
        self.touch(at);
        Some(new)
    }

    /// All prefixes.
    pub(crate) fn keys(&self) -> Vec<Vec<u8>> {
        self.exact.keys().map(|key| key.to_vec()).collect()
    }
}

/// The first place of the node that a place names.
fn base(place: u32) -> usize {
    ((place & !NODE) as usize) << 8
}

//! Caches of maps that the program writes: their layout in memory, and the description of each.

use millstream_ir::usage::AccessRange;
use millstream_ir::{Func, Inst, KeyLayout, Map, MapDecl, Module, Op};
use millstream_isa::MapType;
use rustc_hash::FxHashSet;

use super::perfect_hash::{MULTIPLIER, RowLayout, key_words};

/// Number of buckets of writer counts; keys are assigned to them by hash.
pub(super) const BUCKETS: u32 = 1 << BUCKET_BITS;
pub(super) const BUCKET_BITS: u32 = 10;
pub(super) const STARTED: u32 = 0;
pub(super) const FINISHED: u32 = 8;
pub(super) const STARTED_BUCKETS: u32 = 64;
pub(super) const FINISHED_BUCKETS: u32 = STARTED_BUCKETS + 8 * BUCKETS;
pub(super) const SLOTS: u32 = FINISHED_BUCKETS + 8 * BUCKETS;

/// Layout of a cache in memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CacheLayout {
    /// Bytes of keys.
    pub key: u32,
    /// Bytes of values.
    pub value: u32,
    /// Slots of a CPU: a power of two, [`CacheLayout::LEAST_SLOTS`] at least.
    pub slots: u32,
    /// CPUs that have slots: a power of two, above the highest number of a CPU.
    pub cpus: u32,
    /// True if slots hold the address of the map beside the key, because it is one of many inner maps.
    pub is_inner: bool,
}

impl CacheLayout {
    /// The fewest slots.
    pub const LEAST_SLOTS: u32 = BUCKETS;
    /// Offset of the count of writers of the whole map that have come in; the count of those that have gone
    /// follows.
    pub const STARTED: usize = STARTED as usize;
    /// Offset of the count of writers of the whole map that have gone.
    pub const FINISHED: usize = FINISHED as usize;

    /// A slot. The address of an inner map lies behind the key.
    pub(super) fn slot(&self) -> RowLayout {
        let key = self.key.next_multiple_of(8);
        RowLayout { key: if self.is_inner { key + 8 } else { key }, value: self.value }
    }

    /// Offset of the address of the inner map, relative to a slot's address.
    pub(super) fn map_at(&self) -> u32 {
        SLOTS + 8 + self.key.next_multiple_of(8)
    }

    /// Offset of the value, relative to a slot's address.
    pub(super) fn value_at(&self) -> u32 {
        SLOTS + self.slot().value_at()
    }

    /// Bytes of the slots of one CPU.
    pub(super) fn own(&self) -> u64 {
        u64::from(self.slots) * u64::from(self.slot().bytes())
    }

    /// Bytes of the whole cache.
    pub fn bytes(&self) -> u64 {
        u64::from(SLOTS) + u64::from(self.cpus) * self.own()
    }

    /// Bits of a slot's number.
    pub(super) fn slot_bits(&self) -> u32 {
        self.slots.trailing_zeros()
    }

    /// Returns true if the map that is to hold the cache suits this layout.
    pub(super) fn fits(&self, decl: &MapDecl) -> bool {
        let powers =
            self.slots.is_power_of_two() && self.slots >= Self::LEAST_SLOTS && self.cpus.is_power_of_two();
        let one = decl.kind == MapType::ARRAY.0 && decl.max_entries == 1;
        powers && one && u64::from(decl.value_size) == self.bytes()
    }
}

/// A cache of a map that the program writes.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct EntryCache {
    /// The map, or the template of inner maps.
    pub of: Map,
    /// An array of one entry, for the cache.
    pub place: Map,
    /// Layout of the cache.
    pub shape: CacheLayout,
    /// The instructions of the function by which the map is written.
    pub writers: Vec<Inst>,
    /// The same of functions that it calls. Nobody else writes the map without counting.
    pub callees: Vec<(Func, Vec<Inst>)>,
    /// Bytes of values that the function reads.
    pub read: Vec<AccessRange>,
    /// Seed of the hash of keys, unknown to senders of packets. All users of `place` have the same one.
    pub secret: u64,
}

impl EntryCache {
    /// Returns true if the declarations of the maps agree with the cache.
    pub(super) fn fits(&self, maps: &cranelift_entity::PrimaryMap<Map, MapDecl>) -> bool {
        let of = maps
            .get(self.of)
            .is_some_and(|d| (d.key_size, d.value_size) == (self.shape.key, self.shape.value));
        of && maps.get(self.place).is_some_and(|d| self.shape.fits(d))
    }

    /// The number of a key's slot.
    pub fn slot(&self, key: &[u8]) -> u32 {
        let sum = key_words(key).zip(0..).map(|(word, n)| word.wrapping_mul(self.factor(n)));
        (sum.fold(0, u64::wrapping_add) >> (64 - self.shape.slot_bits())) as u32
    }

    /// The odd factor of the n-th word of a key, uniformly distributed.
    pub(super) fn factor(&self, n: u32) -> u64 {
        // SplitMix64 (Steele, Lea and Flood, OOPSLA 2014): independent of one another for whom the seed is
        // not known.
        let step = self.secret.wrapping_add(u64::from(n + 1).wrapping_mul(MULTIPLIER));
        let step = (step ^ step >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let step = (step ^ step >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        (step ^ step >> 31) | 1
    }

    /// The other functions that write the map.
    pub fn callees(&self) -> impl Iterator<Item = Func> {
        self.callees.iter().map(|(func, _)| *func)
    }

    /// Returns true if a call of a function may write the map.
    pub(super) fn may_write(&self, module: &Module, func: Func) -> bool {
        let (mut seen, mut work) = (FxHashSet::default(), vec![func]);
        while let Some(func) = work.pop() {
            if self.callees().any(|writer| writer == func) {
                return true;
            }
            let body = &module.funcs[func];
            let called = body.insts_in_order().filter_map(|(_, inst)| match body.insts[inst].op {
                Op::Call { func } | Op::FuncAddr { func } => Some(func),
                _ => None,
            });
            work.extend(called.filter(|f| seen.insert(*f)));
        }
        false
    }

    pub(super) fn reads(&self, start: u32, end: u32) -> bool {
        self.read.iter().any(|r| r.start <= start && end <= r.end)
    }
}

/// Returns true if each piece lies within one aligned 64-bit word.
pub fn whole_words(layout: &KeyLayout) -> bool {
    layout.iter().all(|p| u32::from(p.offset) % 8 + p.size.bytes() <= 8)
}

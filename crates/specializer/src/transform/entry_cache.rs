//! Copies of entries of maps that the data plane writes itself: connection tables, learning tables.
//!
//! An [`EntryCache`] lies in the value of an array map of one entry. Each CPU has its own slots, shared by
//! all lookups in the map (but a copy that a packet holds is not overwritten while the packet may read it). A
//! slot holds a key, those bytes of its value that the program reads, and a *stamp*. A lookup whose key and
//! stamp match continues with the copy: no helper is called. A key has two neighbouring slots, so keys that
//! want the same slot evict each other only if there are three of them. Code that then needs the entry itself
//! (to write to it, to pass its address on) gives the copy up: it goes back to the lookup, which it can do as
//! long as nothing visible to others has happened since.
//!
//! # What a stamp says
//!
//! Every writer of the map in the program, also in its copy of the original and in functions that it calls,
//! counts itself in before it writes and out afterwards. A store through a pointer that a lookup gave counts
//! at the bucket of that key, everything else for the whole map. The stamp is the sum of both counts of
//! writers that came in, which only grow: as long as it is the same, nobody has written since. A slot is
//! filled from the map only if no writer was inside before the lookup and none has come in by the time
//! everything is copied. A packet that finds the sum unchanged could as well have looked its key up at that
//! moment.
//!
//! *Writers that do not count*: the control plane revokes the variant before it writes, and counts the whole
//! map before the variant may run again. Before programs that do not count are attached to the hook, and
//! until they have certainly left it, one writer is counted in (the session's `caches`).
//!
//! *Recent use.* A lookup in a map of least recent use marks its entry. Marks go when an entry is inserted,
//! which counts for the whole map: an entry whose stamp is right has its mark still, and to skip the lookup
//! changes nothing.
//!
//! *Inner maps.* A slot for a lookup in a map that was found in a map of maps also holds the address of that
//! inner map, and matches no other. All inner maps of a shape, and the maps of the object that have it, share
//! the counts: a write of a key in one of them counts for that key in all. An address means the same map
//! until the contents of the outer map change; that revokes the variant, and all copies are forgotten
//! (the session's `watched_inner_maps`).
//!
//! *Hashing.* Senders of packets cannot aim at slots: each session draws anew the factors by which it hashes
//! keys. Programs that share a cache's memory must share the factors, too, or a writer would count in another
//! bucket than readers look at.
//!
//! Absent keys are not cached. Slots of a CPU are written by packets of that CPU only, which do not interrupt
//! each other: packet programs run with bottom halves off.

use std::collections::BTreeSet;

use cranelift_entity::EntityRef;
use millstream_ir::{
    AluOp, AtomicOp, Block, BlockCall, Cond, Function, Inst, KeyLayout, Map, MemFlags, Module, Op, Prov,
    Size, Type, Value, Width,
};
use millstream_isa::helpers::id;
use rustc_hash::FxHashSet;
use smallvec::SmallVec;

use super::abstract_key::AbstractKey;
use super::cache_layout::{
    BUCKET_BITS, EntryCache, FINISHED, FINISHED_BUCKETS, SLOTS, STARTED, STARTED_BUCKETS, whole_words,
};
use super::decision_tree;
use super::eval::{AbstractValue, LookupValue, LookupValueId, ValueAddress, ValueBytes};
use super::partial_eval::{AbstractEnv, BlockContinuation, CopyPosition, PartialEvaluator, pieces_of};
use super::perfect_hash::RowLayout;
use super::plan::SiteReport;
use super::planned_lookup::PlannedLookup;
use super::volatile::volatile;

/// Helpers without side effects: lookups, clocks, the number of the CPU.
const TRACELESS: &[i32] = &[
    id::MAP_LOOKUP_ELEM,
    id::KTIME_GET_NS,
    id::GET_SMP_PROCESSOR_ID,
    id::KTIME_GET_BOOT_NS,
    id::KTIME_GET_COARSE_NS,
];

/// Places of a key's slot and counts.
struct CacheProbe<'p> {
    cache: &'p EntryCache,
    words: Vec<Value>,
    /// The address of the map, if it is an inner one.
    object: Option<Value>,
    /// The first choice of slot for the key.
    first: CacheSlot,
    /// Numbers of the slots whose copies the packet holds.
    held: Vec<Value>,
    /// First slot of the CPU, minus the offset at which slots begin.
    own: Value,
    /// Offset of the bucket among the buckets.
    bucket: Value,
}

/// A slot of a cache.
#[derive(Clone, Copy)]
struct CacheSlot {
    /// Its address, minus the offset at which slots begin: loads and stores add that at no cost.
    at: Value,
    /// Its number among those of the CPU.
    number: Value,
}

impl<'a> PartialEvaluator<'a> {
    /// A lookup in a cache, and in the map if the cache does not have the key. `None`, with nothing emitted,
    /// if the key is not known in suitable pieces or the lookup is in a loop.
    pub(super) fn cached(
        &mut self,
        lookup: &PlannedLookup<'_>,
        env: &mut AbstractEnv,
    ) -> Option<BlockContinuation> {
        let &PlannedLookup { site, inst, map, key, layout, args, at } = lookup;
        let plan = self.plans.plan;
        let cache = plan.caches.iter().find(|c| c.of == map)?;
        if lookup.needs_address(self) || self.in_loop(at.block) || !whole_words(layout) {
            return None;
        }
        let words = self.key_words(layout, args, cache.shape.key, at.out)?;
        let object = key.object.map(|object| self.materialize(object, at.out));
        let held = self.slots_held(map, at, env);
        let spot = self.spot(cache, (words, object), held, at.out);
        let [hit, second, miss, back, by_map, absent] = std::array::from_fn(|_| self.new_block());
        let slot = self.slot_param(cache, hit);
        self.caching.slots.insert(slot.at, slot.number);
        let ty = self
            .original
            .src
            .result(inst)
            .map_or(Type::Ptr(Prov::MapValueOrNull(map)), |v| self.original.src.types[v]);
        let entry = self.out.add_param(by_map, ty);
        self.caching.backs.insert(back, hit);
        let stamp = self.counted(cache, STARTED_BUCKETS, STARTED, spot.bucket, at.out);
        self.try_slot(&spot, (spot.first, stamp), [at.out, hit, second]);
        let neighbour = self.by(AluOp::Xor, spot.first.number, 1, second);
        let neighbour = self.slot(cache, spot.own, neighbour, second);
        // Read once more: it is not kept for what happens rarely.
        let stamp = self.counted(cache, STARTED_BUCKETS, STARTED, spot.bucket, second);
        self.try_slot(&spot, (neighbour, stamp), [second, hit, miss]);
        let counted = self.count_miss(site, miss);
        self.fill(inst, map, key, (&spot, neighbour), [counted, hit, by_map, absent]);
        let found = lookup.emit(self, back);
        self.if_absent(found, [BlockCall::new(absent), BlockCall::with(by_map, [found])], back);
        self.caching.buckets.insert(entry, (map, spot.bucket));
        self.note(site, SiteReport::default());
        // Paths without a copy are rare: their code need only be correct.
        let plain = std::mem::replace(&mut self.mode.plain, true);
        let there =
            LookupValue { map, origin: inst, bytes: ValueBytes::There, address: ValueAddress::Held(entry) };
        let there = AbstractValue::Ptr(self.lookups.known.push(there), 0);
        for (out, found) in [(by_map, there), (absent, AbstractValue::Const(0))] {
            let mut without = env.clone();
            self.define(inst, found, &mut without);
            self.region(lookup.behind(out), without);
        }
        self.mode.plain = plain;
        let address = ValueAddress::Back { block: back, since: hit };
        let known = self.lookups.known.push(LookupValue {
            map,
            origin: inst,
            bytes: ValueBytes::Copy(slot.at),
            address,
        });
        self.define(inst, AbstractValue::Ptr(known, 0), env);
        Some(BlockContinuation::On(hit))
    }

    /// Numbers of the slots whose copies of values of a map may still be read.
    fn slots_held(&self, map: Map, at: CopyPosition, env: &AbstractEnv) -> Vec<Value> {
        let before =
            self.original.cfg.rpo.iter().filter(|block| self.original.dom.dominates(**block, at.block));
        let defined = before.flat_map(|&block| {
            let data = &self.original.src.blocks[block];
            let done = if block == at.block { at.next } else { data.insts.len() };
            let results = data.insts[..done].iter().filter_map(|inst| self.original.src.result(*inst));
            data.params.iter().copied().chain(results)
        });
        let copied = defined.filter_map(|value| match env[value.index()] {
            AbstractValue::Ptr(id, _) if self.lookups.known[id].map == map => {
                match self.lookups.known[id].bytes {
                    ValueBytes::Copy(slot) => self.caching.slots.get(&slot).copied(),
                    _ => None,
                }
            }
            _ => None,
        });
        copied.collect::<BTreeSet<_>>().into_iter().collect()
    }

    /// Returns true if control may come back to a block of the source.
    fn in_loop(&self, block: Block) -> bool {
        let (mut seen, mut work) = (FxHashSet::default(), vec![block]);
        while let Some(at) = work.pop() {
            for &pred in &self.original.cfg.preds[at] {
                if pred == block {
                    return true;
                }
                if seen.insert(pred) {
                    work.push(pred);
                }
            }
        }
        false
    }

    /// The key as 64-bit words as they would lie in memory, zeros behind it.
    pub(super) fn key_words(
        &mut self,
        layout: &KeyLayout,
        args: &[AbstractValue],
        size: u32,
        out: Block,
    ) -> Option<Vec<Value>> {
        let count = size.div_ceil(8) as usize;
        let (mut constants, mut parts) = (vec![0u64; count], vec![None; count]);
        for (piece, abs) in layout.iter().zip(args) {
            let (word, shift) = (usize::from(piece.offset) / 8, 8 * (u32::from(piece.offset) % 8));
            match abs {
                AbstractValue::Const(c) => {
                    constants[word] |= (*c as u64 & (u64::MAX >> (64 - piece.size.bits()))) << shift
                }
                AbstractValue::Val(v) => {
                    let wide = self.widened(*v, piece.size, out);
                    let moved = self.by(AluOp::Lsh, wide, u64::from(shift), out);
                    parts[word] = Some(match parts[word] {
                        Some(part) => self.both(AluOp::Or, part, moved, out),
                        None => moved,
                    });
                }
                AbstractValue::None | AbstractValue::Ptr(..) | AbstractValue::In(..) => return None,
            }
        }
        let word = |(constant, part): (u64, Option<Value>)| match part {
            Some(part) => self.by(AluOp::Or, part, constant, out),
            None => self.value(out, Op::Const { value: constant as i64 }, &[], Type::I64),
        };
        Some(constants.into_iter().zip(parts).map(word).collect())
    }

    /// Zero-extends a value of this size.
    fn widened(&mut self, value: Value, size: Size, out: Block) -> Value {
        match size {
            Size::Dw => value,
            Size::W => self.value(out, Op::Zext {}, &[value], Type::I32),
            _ => decision_tree::words(self, &[(value, size)], out)[0].0,
        }
    }

    pub(super) fn both(&mut self, op: AluOp, a: Value, b: Value, out: Block) -> Value {
        self.value(out, Op::Alu { op, width: Width::W64 }, &[a, b], Type::I64)
    }

    pub(super) fn by(&mut self, op: AluOp, value: Value, by: u64, out: Block) -> Value {
        if by == 0 {
            return value;
        }
        let by = self.value(out, Op::Const { value: by as i64 }, &[], Type::I64);
        self.both(op, value, by, out)
    }

    /// A slot as parameters of a block.
    fn slot_param(&mut self, cache: &EntryCache, block: Block) -> CacheSlot {
        let at = self.out.add_param(block, Type::Ptr(Prov::MapValue(cache.place)));
        CacheSlot { at, number: self.out.add_param(block, Type::I64) }
    }

    /// The slot of a number.
    fn slot(&mut self, cache: &EntryCache, own: Value, number: Value, out: Block) -> CacheSlot {
        let offset = self.by(AluOp::Mul, number, cache.shape.slot().bytes().into(), out);
        CacheSlot { at: self.moved(own, offset, cache, out), number }
    }

    /// Goes on in `hit` with the slot if its copy is valid for this stamp, else in `miss`. Ends the block
    /// `from`.
    fn try_slot(
        &mut self,
        spot: &CacheProbe<'_>,
        (slot, stamp): (CacheSlot, Value),
        [from, hit, miss]: [Block; 3],
    ) {
        let (hit, miss) = (BlockCall::with(hit, [slot.at, slot.number]), BlockCall::new(miss));
        let of_key = match spot.object {
            None => hit,
            // Of another map it is of no use.
            Some(object) => {
                let of_key = self.new_block();
                let held = self.word(slot.at, spot.cache.shape.map_at(), MemFlags::default(), of_key);
                self.unless_equal(held, object, [miss.clone(), hit], of_key);
                BlockCall::new(of_key)
            }
        };
        self.compare_row((slot.at, SLOTS), (stamp, volatile()), &spot.words, from, [of_key, miss]);
    }

    fn spot<'p>(
        &mut self,
        cache: &'p EntryCache,
        (words, object): (Vec<Value>, Option<Value>),
        held: Vec<Value>,
        out: Block,
    ) -> CacheProbe<'p> {
        let shape = cache.shape;
        // Below 2^29, as all offsets into values are; the kernel refuses a map that is larger.
        let mut own = self.place(cache, 0, out);
        // First of all: values that are live across a call are not in most registers.
        if shape.cpus > 1 {
            let cpu = self.value(out, Op::Helper { id: id::GET_SMP_PROCESSOR_ID }, &[], Type::I64);
            let cpu = self.by(AluOp::And, cpu, u64::from(shape.cpus - 1), out);
            let before = self.by(AluOp::Mul, cpu, shape.own(), out);
            own = self.moved(own, before, cache, out);
        }
        let hash = self.sum(&words, |n| cache.factor(n), out);
        let bucket = self.by(AluOp::Rsh, hash, u64::from(64 - BUCKET_BITS), out);
        let bucket = self.by(AluOp::Lsh, bucket, 3, out);
        let number = self.by(AluOp::Rsh, hash, u64::from(64 - shape.slot_bits()), out);
        let first = self.slot(cache, own, number, out);
        CacheProbe { cache, words, object, first, held, own, bucket }
    }

    /// The sum of the words, each times its factor: no word has to wait for another.
    pub(super) fn sum(&mut self, words: &[Value], factor: impl Fn(u32) -> u64, out: Block) -> Value {
        let mut sum: Option<Value> = None;
        for (n, &word) in (0..).zip(words) {
            let part = match factor(n) {
                1 => word,
                by => self.by(AluOp::Mul, word, by, out),
            };
            sum = Some(sum.map_or(part, |sum| self.both(AluOp::Add, sum, part, out)));
        }
        sum.unwrap_or_else(|| self.value(out, Op::Const { value: 0 }, &[], Type::I64))
    }

    fn place(&mut self, cache: &EntryCache, offset: u32, out: Block) -> Value {
        let op = Op::MapValueAddr { map: cache.place, offset };
        self.value(out, op, &[], Type::Ptr(Prov::MapValue(cache.place)))
    }

    fn moved(&mut self, address: Value, by: Value, cache: &EntryCache, out: Block) -> Value {
        let op = Op::Alu { op: AluOp::Add, width: Width::W64 };
        self.value(out, op, &[address, by], Type::Ptr(Prov::MapValue(cache.place)))
    }

    /// The sum of a count of the key's bucket and that of the map.
    fn counted(&mut self, cache: &EntryCache, buckets: u32, whole: u32, bucket: Value, out: Block) -> Value {
        let all = self.place(cache, 0, out);
        let of_key = self.moved(all, bucket, cache, out);
        let counts = [(of_key, buckets), (all, whole)];
        let [a, b] = counts.map(|(address, at)| self.word(address, at, volatile(), out));
        self.both(AluOp::Add, a, b, out)
    }

    fn word(&mut self, address: Value, offset: u32, flags: MemFlags, out: Block) -> Value {
        let op = Op::Load { size: Size::Dw, sext: false, offset: offset as i32, flags };
        self.value(out, op, &[address], Type::I64)
    }

    /// Writes to a slot. That is done again where a copy is given up, and nobody sees it.
    fn put(&mut self, slot: Value, (offset, size): (u32, Size), value: Value, flags: MemFlags, out: Block) {
        let op = Op::Store { size, offset: offset as i32, flags };
        let inst = self.emit(out, op, &[slot, value], &[], Type::Any);
        self.caching.traceless.insert(inst);
    }

    fn unless_equal(&mut self, a: Value, b: Value, targets: [BlockCall; 2], out: Block) {
        let op = Op::Branch { cond: Cond::Ne, width: Width::W64 };
        self.emit(out, op, &[a, b], &targets, Type::Any);
    }

    pub(super) fn if_absent(&mut self, entry: Value, targets: [BlockCall; 2], out: Block) {
        let zero = self.value(out, Op::Const { value: 0 }, &[], Type::I64);
        let op = Op::Branch { cond: Cond::Eq, width: Width::W64 };
        self.emit(out, op, &[entry, zero], &targets, Type::Any);
    }

    /// Branches to `hit` if the row at this offset from an address has this first word and these words of a
    /// key. Ends the block.
    pub(super) fn compare_row(
        &mut self,
        (row, at): (Value, u32),
        (first, flags): (Value, MemFlags),
        words: &[Value],
        out: Block,
        [hit, miss]: [BlockCall; 2],
    ) {
        let held = self.word(row, at, flags, out);
        let mut differs = self.both(AluOp::Xor, held, first, out);
        for (n, &word) in (1..).zip(words) {
            let held = self.word(row, at + 8 * n, MemFlags::default(), out);
            let differs_here = self.both(AluOp::Xor, held, word, out);
            differs = self.both(AluOp::Or, differs, differs_here, out);
        }
        let zero = self.value(out, Op::Const { value: 0 }, &[], Type::I64);
        self.unless_equal(differs, zero, [miss, hit], out);
    }

    /// Looks up in the map, and copies the entry if no writer is active meanwhile. Goes to `hit` with the new
    /// copy, else to `by_map` with the entry, or to `absent`. The new copy replaces an invalid one if
    /// possible: the neighbour slot is overwritten only if the first slot holds a valid copy and the key
    /// belongs there, too.
    fn fill(
        &mut self,
        inst: Inst,
        map: Map,
        key: &AbstractKey,
        (spot, neighbour): (&CacheProbe<'_>, CacheSlot),
        [miss, hit, by_map, absent]: [Block; 4],
    ) {
        let CacheProbe { cache, first, bucket, .. } = *spot;
        // In this order: if the older count of writers gone equals the newer count of writers come, nobody
        // was inside.
        let gone = self.counted(cache, FINISHED_BUCKETS, FINISHED, bucket, miss);
        let came = self.counted(cache, STARTED_BUCKETS, STARTED, bucket, miss);
        let entry = self.residual_lookup(inst, map, key, miss);
        let [there, chosen, fill, done] = std::array::from_fn(|_| self.new_block());
        let leave = BlockCall::with(by_map, [entry]);
        self.if_absent(entry, [BlockCall::new(absent), BlockCall::new(there)], miss);
        let held = self.word(first.at, SLOTS, volatile(), there);
        let choices = [first, neighbour].map(|s| BlockCall::with(chosen, [s.at, s.number]));
        self.unless_equal(held, came, choices, there);
        let CacheSlot { at: slot, number } = self.slot_param(cache, chosen);
        let mut free = chosen;
        for &held in &spot.held {
            let next = self.new_block();
            self.unless_equal(held, number, [BlockCall::new(next), leave.clone()], free);
            free = next;
        }
        self.unless_equal(gone, came, [leave.clone(), BlockCall::new(fill)], free);
        // No sum is 0: the first writer counts itself in before any copy is made.
        let none = self.value(fill, Op::Const { value: 0 }, &[], Type::I64);
        self.put(slot, (SLOTS, Size::Dw), none, volatile(), fill);
        for (n, &word) in (1..).zip(&spot.words) {
            self.put(slot, (SLOTS + 8 * n, Size::Dw), word, MemFlags::default(), fill);
        }
        if let Some(object) = spot.object {
            self.put(slot, (cache.shape.map_at(), Size::Dw), object, MemFlags::default(), fill);
        }
        for range in &cache.read {
            for piece in pieces_of(range.end - range.start) {
                let at = range.start + u32::from(piece.offset);
                let (size, flags) = (piece.size, MemFlags::default());
                let op = Op::Load { size, sext: false, offset: at as i32, flags };
                let held = self.value(fill, op, &[entry], Type::int(size.bits()));
                self.put(slot, (cache.shape.value_at() + at, size), held, flags, fill);
            }
        }
        let still = self.counted(cache, STARTED_BUCKETS, STARTED, bucket, fill);
        self.unless_equal(still, came, [leave, BlockCall::new(done)], fill);
        self.put(slot, (SLOTS, Size::Dw), came, volatile(), done);
        self.emit(done, Op::Jump {}, &[], &[BlockCall::with(hit, [slot, number])], Type::Any);
    }

    /// The result of a load from a copied value.
    pub(super) fn copied(
        &mut self,
        base: AbstractValue,
        load: &Op,
        ty: Type,
        out: Block,
    ) -> Option<AbstractValue> {
        let (AbstractValue::Ptr(id, by), &Op::Load { size, sext, offset, flags }) = (base, load) else {
            return None;
        };
        let (ValueBytes::Copy(slot), None) = (&self.lookups.known[id].bytes, flags.core) else { return None };
        let (slot, map) = (*slot, self.lookups.known[id].map);
        let at = u32::try_from(by.checked_add(i64::from(offset))?).ok()?;
        let end = at.checked_add(size.bytes())?;
        let decl = &self.original.module.maps[map];
        let (is_held, value_at) = match self.plans.plan.caches.iter().find(|c| c.of == map) {
            Some(cache) => (cache.reads(at, end), cache.shape.value_at()),
            None => {
                let row = RowLayout { key: decl.key_size, value: decl.value_size };
                (self.plans.contents.constant(map, at..end), row.value_at())
            }
        };
        // Stores by the packet itself since the lookup may have reached the entry, but not the copy. Back
        // edges are seen when they are made.
        if let ValueAddress::Back { since, .. } = self.lookups.known[id].address
            && (self.in_loop(self.source) || self.is_on_a_way(since, out, |inst| self.writes(inst, map)))
        {
            return None;
        }
        if !is_held || end > decl.value_size {
            return None;
        }
        let offset = (value_at + at) as i32;
        Some(AbstractValue::Val(self.value(out, Op::Load { size, sext, offset, flags }, &[slot], ty)))
    }

    /// Goes back to the lookup, if an argument is a copy whose entry is needed, and nothing has happened
    /// since.
    pub(super) fn go_back(&mut self, args: &[AbstractValue], at: CopyPosition) -> bool {
        let back = |id: LookupValueId| match self.lookups.known[id].address {
            ValueAddress::Back { block, since } => Some((block, since)),
            _ => None,
        };
        let wanted =
            args.iter().find_map(|a| if let AbstractValue::Ptr(id, _) = a { back(*id) } else { None });
        let Some((block, since)) = wanted else { return false };
        if self.in_loop(at.block) || !self.untouched(since, at.out) {
            return false;
        }
        self.emit(at.out, Op::Jump {}, &[], &[BlockCall::new(block)], Type::Any);
        true
    }

    /// Returns true if an instruction of the copy writes this map, which has a cache.
    fn writes(&self, inst: Inst, map: Map) -> bool {
        match self.out.insts[inst].op {
            Op::Call { func } => {
                self.plans.plan.caches.iter().any(|c| c.of == map && c.may_write(self.original.module, func))
            }
            _ => self.caching.counted.get(&inst) == Some(&map),
        }
    }

    /// Returns true if no instruction on any path from one block of the copy to the end of another is visible
    /// to others.
    fn untouched(&self, since: Block, until: Block) -> bool {
        !self.is_on_a_way(since, until, |inst| !self.leaves_no_trace(inst))
    }

    /// Returns true if such an instruction is on some path from one block of the copy to the end of another,
    /// or if the paths are not known.
    fn is_on_a_way(&self, since: Block, until: Block, such: impl Fn(Inst) -> bool) -> bool {
        let (mut seen, mut work) = (FxHashSet::default(), vec![until]);
        while let Some(at) = work.pop() {
            if !seen.insert(at) {
                continue;
            }
            if self.out.blocks[at].insts.iter().any(|&i| such(i)) {
                return true;
            }
            if at == since {
                continue;
            }
            // A path that goes back there comes from a copied value, and nothing has happened since; it may
            // be copied later.
            let before = self.caching.backs.get(&at);
            if self.preds[at].is_empty() && before.is_none() {
                return true;
            }
            work.extend(self.preds[at].iter().chain(before));
        }
        false
    }

    fn leaves_no_trace(&self, inst: Inst) -> bool {
        match &self.out.insts[inst].op {
            Op::MapLookup { .. } => true,
            Op::Helper { id } => TRACELESS.contains(id),
            op => !op.effects().writes || self.caching.traceless.contains(&inst),
        }
    }

    /// Counters for the writes of this instruction to maps with caches: a key's bucket if it is known, else
    /// the whole map.
    pub(super) fn counts(
        &self,
        inst: Inst,
        args: &[AbstractValue],
    ) -> SmallVec<[(&'a EntryCache, Option<Value>); 1]> {
        let plan = self.plans.plan;
        let written = plan.caches.iter().filter(|c| c.writers.contains(&inst));
        let op = &self.original.src.insts[inst].op;
        let is_store = op.is_access() && !matches!(op, Op::Load { .. } | Op::LoadAcquire { .. });
        let base = match args.first() {
            Some(AbstractValue::Val(address)) if is_store => Some(self.base(*address)),
            Some(AbstractValue::Ptr(id, _)) if is_store => match self.lookups.known[*id].address {
                ValueAddress::Held(entry) => Some(entry),
                _ => None,
            },
            _ => None,
        };
        let bucket = base.and_then(|b| self.caching.buckets.get(&b));
        written.map(|c| (c, bucket.filter(|(map, _)| *map == c.of).map(|(_, bucket)| *bucket))).collect()
    }

    /// The base address that constants were added to.
    fn base(&self, mut address: Value) -> Value {
        while let Some(inst) = self.out.def_inst(address)
            && let data = &self.out.insts[inst]
            && data.op == (Op::Alu { op: AluOp::Add, width: Width::W64 })
        {
            address = data.args[0];
        }
        address
    }

    /// Counts a writer in, or out.
    pub(super) fn count_writer(
        &mut self,
        cache: &EntryCache,
        bucket: Option<Value>,
        comes: bool,
        out: Block,
    ) {
        let (buckets, whole) = if comes { (STARTED_BUCKETS, STARTED) } else { (FINISHED_BUCKETS, FINISHED) };
        let all = self.place(cache, 0, out);
        let (address, at) = match bucket {
            Some(bucket) => (self.moved(all, bucket, cache, out), buckets),
            None => (all, whole),
        };
        let one = self.value(out, Op::Const { value: 1 }, &[], Type::I64);
        let inst = self.emit(out, count(at), &[address, one], &[], Type::I64);
        self.caching.counted.insert(inst, cache.of);
    }
}

/// With a result, so that it is ordered with all else.
const fn count(at: u32) -> Op {
    Op::AtomicFetch { op: AtomicOp::Add, size: Size::Dw, offset: at as i32 }
}

/// Counts the writers in other functions than the one that has the lookups, for the whole map.
pub(super) fn count_callees(module: &mut Module, cache: &EntryCache) {
    for (func, writers) in &cache.callees {
        let body = &mut module.funcs[*func];
        let blocks: Vec<Block> = body.layout.clone();
        for block in blocks {
            let insts = std::mem::take(&mut body.blocks[block].insts);
            for inst in insts {
                let writes = writers.contains(&inst);
                if writes {
                    count_one(body, block, cache, STARTED);
                }
                body.blocks[block].insts.push(inst);
                if writes {
                    count_one(body, block, cache, FINISHED);
                }
            }
        }
    }
}

fn count_one(body: &mut Function, block: Block, cache: &EntryCache, at: u32) {
    let address = Op::MapValueAddr { map: cache.place, offset: 0 };
    let ty = Type::Ptr(Prov::MapValue(cache.place));
    let mut last: SmallVec<[Value; 2]> = SmallVec::new();
    for (op, ty) in [(address, ty), (Op::Const { value: 1 }, Type::I64)] {
        let inst = body.make_inst(op, [], [], ty);
        body.blocks[block].insts.push(inst);
        last.extend(body.result(inst));
    }
    let count = body.make_inst(count(at), last, [], Type::I64);
    body.blocks[block].insts.push(count);
}

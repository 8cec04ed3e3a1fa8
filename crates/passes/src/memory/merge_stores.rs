//! `merge-stores`: adjacent narrow stores become one wide store.
//!
//! Three kinds of stored values are understood: constants, the parts of one word (in either byte order), and
//! adjacent narrow loads, which become one wide load (a copy).
//!
//! Invariant: the wide store stands where the last narrow one stood, in the same block, writes exactly their
//! bytes, and nothing that a narrow store passes on its way there may read or write its bytes. A constant key
//! of a map keeps its own store, since the verifier reads the key's value from it.

use cranelift_entity::SecondaryMap;
use millstream_ir::{AluOp, Block, Function, Inst, Op, Prov, Size, Slot, SwapKind, Type, Value, Width};
use millstream_isa::ByteOrder;
use millstream_isa::helpers::{ArgKind, Helper};

use super::access_widening::{is_aligned, is_plain_memory, is_scratch, may_touch, may_write};
use super::address::AddressRoot;
use super::alias::{AliasClasses, MemoryAccess};
use super::footprint::helper_span;
use crate::manager::{FuncPass, PassContext};

const NAME: &str = "merge-stores";
/// Greatest distance between stores, in instructions.
const WINDOW: usize = 96;

/// The pass.
pub(crate) struct MergeStores;

impl FuncPass for MergeStores {
    fn name(&self) -> &'static str {
        NAME
    }

    fn describe(&self) -> &'static str {
        "merge adjacent narrow stores, and the loads that feed them, into wide ones"
    }

    fn run(&self, func: &mut Function, cx: &mut PassContext<'_>) -> bool {
        let classes = AliasClasses::new(func, &cx.info);
        let order = cx.target().byte_order;
        let mut pass =
            StoreMerger { order, keys: keys(func, &classes, cx), uses: func.use_counts(), classes };
        let mut changed = false;
        for i in 0..func.layout.len() {
            let block = func.layout[i];
            while pass.block(func, block, cx) {
                changed = true;
            }
        }
        changed
    }
}

/// Byte ranges of stack objects that helpers read as keys.
fn keys(
    func: &Function,
    classes: &AliasClasses,
    cx: &PassContext<'_>,
) -> SecondaryMap<Slot, Vec<(i64, i64)>> {
    let mut keys: SecondaryMap<Slot, Vec<(i64, i64)>> = SecondaryMap::new();
    for (_, inst) in func.insts_in_order() {
        let Op::Helper { id } = func.insts[inst].op else { continue };
        let row = Helper::get(id).map_or(&[][..], |h| h.args);
        for (index, (&arg, kind)) in func.insts[inst].args.iter().zip(row).enumerate() {
            let addr = classes.addresses.of(arg);
            if let (ArgKind::MapKey, Some(slot)) = (kind, addr.slot()) {
                let span = helper_span(cx.info.maps, func, inst, id, index);
                keys[slot].push((addr.offset, addr.offset.saturating_add(span.hi)));
            }
        }
    }
    keys
}

/// A store in a block.
#[derive(Clone, Copy)]
struct StoreCandidate {
    /// Position in the block.
    at: usize,
    inst: Inst,
    access: MemoryAccess,
    value: Value,
}

/// Value that the merged store writes.
enum MergedValue {
    Constant(i64),
    Word { value: Value, reversed: bool },
    Copy { loads: Vec<(usize, Inst)>, lowest: Inst },
}

struct StoreMerger {
    order: ByteOrder,
    classes: AliasClasses,
    keys: SecondaryMap<Slot, Vec<(i64, i64)>>,
    uses: SecondaryMap<Value, u32>,
}

impl StoreMerger {
    /// Merges one group of stores of the block; `false` when there is none left.
    fn block(&mut self, func: &mut Function, block: Block, cx: &mut PassContext<'_>) -> bool {
        let parts = self.parts(func, block, cx);
        let mut start = 0;
        while start < parts.len() {
            let root = parts[start].access.addr.root;
            let mut end = start;
            while end < parts.len() && parts[end].access.addr.root == root {
                end += 1;
            }
            if self.merge_one(func, block, &parts[start..end], cx) {
                return true;
            }
            start = end;
        }
        false
    }

    /// Narrow stores of plain memory, by root, offset and position.
    fn parts(&self, func: &Function, block: Block, cx: &PassContext<'_>) -> Vec<StoreCandidate> {
        let mut parts = Vec::new();
        for (at, &inst) in func.blocks[block].insts.iter().enumerate() {
            let data = &func.insts[inst];
            if !matches!(data.op, Op::Store { .. }) {
                continue;
            }
            let Some(access) = self.classes.plain_access(func, inst) else { continue };
            let plain = is_plain_memory(func, &self.classes, data.args[0], cx) || is_scratch(func, &access);
            if access.size != Size::Dw && plain {
                parts.push(StoreCandidate { at, inst, access, value: data.args[1] });
            }
        }
        let key = |p: &StoreCandidate| {
            let (kind, number) = match p.access.addr.root {
                AddressRoot::Slot(s) => (0, s.as_u32()),
                AddressRoot::Global(m) => (1, m.as_u32()),
                AddressRoot::Value(v) => (2, v.as_u32()),
            };
            (kind, number, p.access.addr.offset, p.at)
        };
        parts.sort_by_key(key);
        parts
    }

    fn merge_one(
        &mut self,
        func: &mut Function,
        block: Block,
        parts: &[StoreCandidate],
        cx: &mut PassContext<'_>,
    ) -> bool {
        for first in 0..parts.len() {
            for size in [Size::Dw, Size::W, Size::H] {
                let Some(group) = tile(&parts[first..], size) else { continue };
                let access = MemoryAccess { size, ..group[0].access };
                if !self.is_allowed(func, &access, cx) || !self.is_undisturbed(func, block, &group) {
                    continue;
                }
                let Some(merged) = self.merged(func, block, &group, &access, cx) else { continue };
                if cx.fuel(NAME) {
                    self.apply(func, block, &group, &access, merged);
                    return true;
                }
            }
        }
        false
    }

    fn is_allowed(&self, func: &Function, access: &MemoryAccess, cx: &PassContext<'_>) -> bool {
        let in_context =
            matches!(access.addr.root, AddressRoot::Value(v) if func.types[v] == Type::Ptr(Prov::Ctx));
        if in_context && !is_scratch(func, access) {
            return false;
        }
        let (lo, hi) = (access.addr.offset, access.addr.offset + i64::from(access.size.bytes()));
        let parts_a_key = access.addr.slot().is_some_and(|slot| {
            self.keys[slot].iter().any(|&(from, to)| lo < to && from < hi && !(from <= lo && hi <= to))
        });
        !parts_a_key && is_aligned(func, access, access.size.bytes(), cx)
    }

    /// Returns true if each store may move down to the last one: nothing on its way reads or writes its
    /// bytes.
    fn is_undisturbed(&self, func: &Function, block: Block, group: &[StoreCandidate]) -> bool {
        let (first, last) = range(group.iter().map(|p| p.at));
        let insts = &func.blocks[block].insts;
        let mine = |inst: Inst| group.iter().any(|p| p.inst == inst);
        let moves = |part: &StoreCandidate| {
            insts[part.at..last].iter().all(|&i| mine(i) || !may_touch(func, &self.classes, i, &part.access))
        };
        last - first <= WINDOW && group.iter().all(moves)
    }

    fn merged(
        &self,
        func: &Function,
        block: Block,
        group: &[StoreCandidate],
        access: &MemoryAccess,
        cx: &PassContext<'_>,
    ) -> Option<MergedValue> {
        constant(func, group, access, self.order)
            .or_else(|| word(func, group, access, self.order))
            .or_else(|| self.copy(func, block, group, access, cx))
    }

    /// Recognises a copy: each store's value is a load of the same size, at the same distance.
    fn copy(
        &self,
        func: &Function,
        block: Block,
        group: &[StoreCandidate],
        access: &MemoryAccess,
        cx: &PassContext<'_>,
    ) -> Option<MergedValue> {
        let lowest = func.def_inst(group[0].value)?;
        let from = self.classes.plain_access(func, lowest)?;
        let mut loads = Vec::new();
        for part in group {
            let load = func.def_inst(part.value)?;
            let Op::Load { sext: false, size, .. } = func.insts[load].op else { return None };
            let source = self.classes.plain_access(func, load)?;
            let distance = part.access.addr.offset - access.addr.offset;
            let same = source.addr == from.addr.plus(distance) && size == part.access.size;
            // A load that is needed besides stays, and nothing is gained.
            (same && self.uses[part.value] == 1).then_some(())?;
            let at = func.blocks[block].insts.iter().position(|&i| i == load)?;
            loads.push((at, load));
        }
        let source = MemoryAccess { size: access.size, ..from };
        let plain = is_plain_memory(func, &self.classes, func.insts[lowest].args[0], cx);
        let (first, last) = range(loads.iter().map(|l| l.0));
        let insts = &func.blocks[block].insts;
        // Each load moves down to the last one.
        let moves = |&(at, load): &(usize, Inst)| {
            let own = self.classes.plain_access(func, load);
            own.is_some_and(|own| insts[at..last].iter().all(|&i| !may_write(func, &self.classes, i, &own)))
        };
        let quiet = last - first <= WINDOW && loads.iter().all(moves);
        (plain && quiet && is_aligned(func, &source, source.size.bytes(), cx))
            .then_some(MergedValue::Copy { loads, lowest })
    }

    fn apply(
        &mut self,
        func: &mut Function,
        block: Block,
        group: &[StoreCandidate],
        access: &MemoryAccess,
        merged: MergedValue,
    ) {
        let lowest = func.insts[group[0].inst].clone();
        let Op::Store { offset, flags, .. } = lowest.op else { return };
        let (_, last) = range(group.iter().map(|p| p.at));
        let mut loads = Vec::new();
        // The wide load goes before the place of the store and moves it.
        let mut place = last + 1;
        let mut stored = None;
        if let MergedValue::Copy { loads: narrow, lowest } = &merged {
            let value = self.wide_load(func, block, narrow, *lowest, access.size);
            loads.extend(narrow.iter().map(|l| l.1));
            stored = Some(value);
            place += 1;
        }
        let mut at = func.at(block, place);
        at.loc = lowest.loc;
        let value = match (merged, stored) {
            (_, Some(value)) | (MergedValue::Word { value, reversed: false }, _) => value,
            (MergedValue::Word { value, .. }, _) => {
                let bits = access.size.bits();
                at.value(Op::Swap { kind: SwapKind::ToBe, bits: bits as u8 }, [value], Type::int(bits))
            }
            (MergedValue::Constant(value), _) => at.iconst(value),
            (MergedValue::Copy { .. }, None) => return,
        };
        at.effect(Op::Store { size: access.size, offset, flags }, [lowest.args[0], value], []);
        let gone = |inst: &Inst| group.iter().any(|p| p.inst == *inst) || loads.contains(inst);
        func.blocks[block].insts.retain(|i| !gone(i));
    }

    fn wide_load(
        &mut self,
        func: &mut Function,
        block: Block,
        narrow: &[(usize, Inst)],
        lowest: Inst,
        size: Size,
    ) -> Value {
        let (_, last) = range(narrow.iter().map(|l| l.0));
        let data = func.insts[lowest].clone();
        let Op::Load { offset, flags, .. } = data.op else { unreachable!("a copy is made of loads") };
        let mut at = func.at(block, last + 1);
        at.loc = data.loc;
        let ty = if size == Size::Dw { Type::Any } else { Type::int(size.bits()) };
        let value = at.value(Op::Load { size, sext: false, offset, flags }, [data.args[0]], ty);
        self.uses[value] = 1;
        value
    }
}

fn range(positions: impl Iterator<Item = usize> + Clone) -> (usize, usize) {
    (positions.clone().min().unwrap_or(0), positions.max().unwrap_or(0))
}

/// The stores, from the first of `parts` on, that together write `size` bytes, each byte once.
fn tile(parts: &[StoreCandidate], size: Size) -> Option<Vec<StoreCandidate>> {
    let start = parts[0].access.addr.offset;
    let end = start + i64::from(size.bytes());
    let mut group: Vec<StoreCandidate> = Vec::new();
    let mut next = start;
    for part in parts {
        let offset = part.access.addr.offset;
        if offset >= end {
            break;
        }
        if offset != next {
            return None;
        }
        next += i64::from(part.access.size.bytes());
        group.push(*part);
    }
    (next == end && group.len() > 1).then_some(group)
}

fn constant(
    func: &Function,
    group: &[StoreCandidate],
    access: &MemoryAccess,
    order: ByteOrder,
) -> Option<MergedValue> {
    let mut bits = 0u64;
    for part in group {
        let value = func.as_const(part.value)? as u64;
        let shift = lowest_bit(part, access, order);
        bits |= (value & (u64::MAX >> (64 - part.access.size.bits()))) << shift;
    }
    // A store of an immediate sign-extends 32 bits; a wider constant would need two slots.
    let value = match access.size {
        Size::Dw => bits as i64,
        size => ((bits << (64 - size.bits())) as i64) >> (64 - size.bits()),
    };
    (value == i64::from(value as i32)).then_some(MergedValue::Constant(value))
}

/// The lowest bit of the word that a part of it is.
fn lowest_bit(part: &StoreCandidate, word: &MemoryAccess, order: ByteOrder) -> u32 {
    let at = (part.access.addr.offset - word.addr.offset) as u32;
    order.shift(word.size.bytes(), at, part.access.size.bytes())
}

/// Recognises the parts of one word: in memory order, or reversed where all parts are bytes.
fn word(
    func: &Function,
    group: &[StoreCandidate],
    access: &MemoryAccess,
    order: ByteOrder,
) -> Option<MergedValue> {
    let whole = access.size.bits();
    let bits = |p: &StoreCandidate| p.access.size.bits();
    let distance = |p: &StoreCandidate| lowest_bit(p, access, order);
    let (first, last) = (group.first()?, group.last()?);
    let (lowest, highest) = if order == ByteOrder::Little { (first, last) } else { (last, first) };
    let base = source(func, lowest.value, bits(lowest));
    if group.iter().all(|p| is_part(func, p.value, base, distance(p), bits(p), whole)) {
        return Some(MergedValue::Word { value: base, reversed: false });
    }
    let base = source(func, highest.value, bits(highest));
    let bytes = group.iter().all(|p| p.access.size == Size::B);
    let reversed =
        bytes && group.iter().all(|p| is_part(func, p.value, base, whole - 8 - distance(p), 8, whole));
    reversed.then_some(MergedValue::Word { value: base, reversed: true })
}

/// The value without masks that keep its low `bits`.
fn source(func: &Function, value: Value, bits: u32) -> Value {
    let Some(inst) = func.def_inst(value) else { return value };
    let data = &func.insts[inst];
    let keeps = match data.op {
        Op::Alu { op: AluOp::And, .. } => {
            let low = u64::MAX >> (64 - bits);
            bits <= 32 && func.as_const(data.args[1]).is_some_and(|m| m as u64 & low == low)
        }
        Op::Zext {} => bits <= 32,
        _ => false,
    };
    if keeps { data.args[0] } else { value }
}

/// Returns true if the low `bits` of `value` are those of `base` from bit `shift` on.
fn is_part(func: &Function, value: Value, base: Value, shift: u32, bits: u32, whole: u32) -> bool {
    let value = source(func, value, bits);
    if shift == 0 {
        return value == base;
    }
    let Some(inst) = func.def_inst(value) else { return false };
    let data = &func.insts[inst];
    match data.op {
        Op::Alu { op: AluOp::Rsh | AluOp::Arsh, width } => {
            let wide = width == Width::W64 || whole <= 32;
            let from = data.args[0];
            let same = from == base || source(func, from, whole) == base;
            wide && same && func.as_const(data.args[1]) == Some(i64::from(shift))
        }
        _ => false,
    }
}

//! `mem2reg`: turns stack objects, or pieces of them, into values.
//!
//! A piece is a range of bytes that loads and stores with known offsets access, and nothing else does. It is
//! promoted if all of them agree on the range; constants may be stored over several pieces at once, and
//! narrower loads may take the low or the high part of a stored word.
//!
//! Invariant: a variable's value is zero-extended from its piece's width, as a load would give it.

use cranelift_entity::SecondaryMap;
use cranelift_entity::packed_option::PackedOption;
use millstream_ir::{AluOp, Block, Cfg, DomTree, Function, Inst, Op, Size, Slot, Type, Value, Width};
use millstream_isa::ByteOrder;
use rustc_hash::FxHashMap;

use super::address::ResolvedAddresses;
use super::ssa::{self, SsaVariable};
use super::types::refine_types;
use crate::manager::{FuncPass, PassContext};

const NAME: &str = "mem2reg";

/// The pass.
pub(crate) struct Mem2Reg;

impl FuncPass for Mem2Reg {
    fn name(&self) -> &'static str {
        NAME
    }

    fn describe(&self) -> &'static str {
        "promote stack memory that only loads and stores access to values"
    }

    fn run(&self, func: &mut Function, cx: &mut PassContext<'_>) -> bool {
        let cfg = Cfg::new(func);
        if func.slots.values().all(|s| s.size == 0) || !cfg.preds[func.entry()].is_empty() {
            return false;
        }
        let mut pieces = SlotSlices::find(func);
        pieces.list.retain(|_| cx.fuel(NAME));
        if pieces.list.is_empty() {
            return false;
        }
        let dom = DomTree::new(func, &cfg);
        SlotPromotion::new(func, pieces, cx.target().byte_order).run(func, &cfg, &dom);
        refine_types(func, &cfg);
        true
    }
}

/// A load or store of a known range of a slot.
#[derive(Clone, Copy)]
struct SlotAccess {
    slot: Slot,
    lo: i64,
    size: Size,
    /// The stored constant, where it is one.
    constant: Option<i64>,
    is_store: bool,
}

impl SlotAccess {
    fn hi(&self) -> i64 {
        self.lo + i64::from(self.size.bytes())
    }
}

/// A range of bytes that becomes a variable.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct SlotSlice {
    pub(super) slot: Slot,
    pub(super) lo: i64,
    pub(super) size: Size,
}

impl SlotSlice {
    pub(super) fn hi(&self) -> i64 {
        self.lo + i64::from(self.size.bytes())
    }
}

pub(super) struct SlotSlices {
    list: Vec<SlotSlice>,
    accesses: FxHashMap<Inst, SlotAccess>,
}

impl SlotSlices {
    /// These pieces, if every plain access with a known address accesses each of them as a whole or not at
    /// all.
    pub(super) fn of(func: &Function, list: Vec<SlotSlice>) -> SlotSlices {
        let addresses = ResolvedAddresses::new(func);
        let mut accesses = FxHashMap::default();
        for (_, inst) in func.insts_in_order() {
            if let Some((addr, size)) = addresses.accessed(func, inst)
                && let Some(slot) = addr.slot()
                && list.contains(&SlotSlice { slot, lo: addr.offset, size })
            {
                let is_store = matches!(func.insts[inst].op, Op::Store { .. });
                accesses.insert(inst, SlotAccess { slot, lo: addr.offset, size, constant: None, is_store });
            }
        }
        SlotSlices { list, accesses }
    }

    fn find(func: &Function) -> SlotSlices {
        let addresses = ResolvedAddresses::new(func);
        let accesses = accesses(func, &addresses);
        let mut by_slot: SecondaryMap<Slot, Vec<SlotAccess>> = SecondaryMap::new();
        for (_, inst) in func.insts_in_order() {
            if let Some(access) = accesses.get(&inst) {
                by_slot[access.slot].push(*access);
            }
        }
        let mut list = Vec::new();
        for slot in func.slots.keys() {
            list.extend(pieces_of(&by_slot[slot]));
        }
        SlotSlices { list, accesses }
    }
}

/// Plain accesses of slots whose address goes nowhere else.
fn accesses(func: &Function, addresses: &ResolvedAddresses) -> FxHashMap<Inst, SlotAccess> {
    let mut found = FxHashMap::default();
    let mut escapes: SecondaryMap<Slot, bool> = SecondaryMap::new();
    for (_, inst) in func.insts_in_order() {
        let data = &func.insts[inst];
        let plain = match data.op {
            Op::Load { flags, .. } | Op::Store { flags, .. } => !flags.volatile && flags.core.is_none(),
            _ => false,
        };
        if let (true, Some((addr, size))) = (plain, addresses.accessed(func, inst))
            && let Some(slot) = addr.slot()
        {
            let is_store = matches!(data.op, Op::Store { .. });
            let constant = data.args.get(1).and_then(|&v| func.as_const(v));
            found.insert(inst, SlotAccess { slot, lo: addr.offset, size, constant, is_store });
        }
        let result_is_address = data.result.expand().is_some_and(|r| addresses.of(r).slot().is_some());
        let skip = usize::from(found.contains_key(&inst));
        let mut index = 0;
        func.for_each_use(inst, |value| {
            index += 1;
            if index > skip
                && !result_is_address
                && let Some(slot) = addresses.of(value).slot()
            {
                escapes[slot] = true;
            }
        });
    }
    found.retain(|_, access| !escapes[access.slot]);
    found
}

/// The pieces of one slot that can be promoted.
fn pieces_of(accesses: &[SlotAccess]) -> Vec<SlotSlice> {
    let mut sorted: Vec<&SlotAccess> = accesses.iter().filter(|a| a.constant.is_none()).collect();
    sorted.sort_unstable_by_key(|a| (a.lo, std::cmp::Reverse(a.hi())));
    let mut pieces = Vec::new();
    let mut rest = &sorted[..];
    while let Some(first) = rest.first() {
        let mut hi = first.hi();
        let mut count = 1;
        while count < rest.len() && rest[count].lo < hi {
            hi = hi.max(rest[count].hi());
            count += 1;
        }
        let (group, after) = rest.split_at(count);
        rest = after;
        if let Some(piece) = agreed(group, hi) {
            pieces.push(piece);
        }
    }
    // A constant may cover whole pieces, not parts of them.
    let constants: Vec<&SlotAccess> = accesses.iter().filter(|a| a.constant.is_some()).collect();
    pieces.retain(|p| {
        constants.iter().all(|c| {
            let apart = c.hi() <= p.lo || p.hi() <= c.lo;
            apart || (c.lo <= p.lo && p.hi() <= c.hi())
        })
    });
    pieces
}

/// The piece that a group of overlapping accesses agrees on.
fn agreed(group: &[&SlotAccess], hi: i64) -> Option<SlotSlice> {
    let whole = group[0];
    if whole.hi() != hi {
        return None;
    }
    let fits = |a: &&SlotAccess| {
        let same = a.lo == whole.lo && a.size == whole.size;
        // One end is a mask, the other end a shift: no more than the load was.
        let part = a.lo == whole.lo || a.hi() == hi;
        same || (!a.is_store && part)
    };
    group.iter().all(fits).then_some(SlotSlice { slot: whole.slot, lo: whole.lo, size: whole.size })
}

pub(super) struct SlotPromotion {
    order: ByteOrder,
    pieces: Vec<SlotSlice>,
    by_slot: SecondaryMap<Slot, Vec<u32>>,
    accesses: FxHashMap<Inst, SlotAccess>,
    subst: SecondaryMap<Value, PackedOption<Value>>,
}

impl SlotPromotion {
    pub(super) fn new(func: &Function, pieces: SlotSlices, order: ByteOrder) -> SlotPromotion {
        let mut by_slot: SecondaryMap<Slot, Vec<u32>> = SecondaryMap::with_capacity(func.slots.len());
        for (i, piece) in pieces.list.iter().enumerate() {
            by_slot[piece.slot].push(i as u32);
        }
        let SlotSlices { list: pieces, accesses } = pieces;
        SlotPromotion { order, pieces, by_slot, accesses, subst: SecondaryMap::new() }
    }

    /// Numbers of the variables that an access overlaps.
    fn touched(&self, access: &SlotAccess) -> impl Iterator<Item = u32> + '_ {
        let (slot, lo, hi) = (access.slot, access.lo, access.hi());
        self.by_slot[slot].iter().copied().filter(move |&v| {
            let piece = &self.pieces[v as usize];
            piece.lo < hi && lo < piece.hi()
        })
    }

    pub(super) fn run(mut self, func: &mut Function, cfg: &Cfg, dom: &DomTree) {
        let variables = self.variables(func, cfg);
        let joins = ssa::place(func, cfg, dom, &variables);
        let mut out: SecondaryMap<Block, Vec<Option<Value>>> = SecondaryMap::new();
        for &block in &cfg.rpo {
            let mut now = match dom.idom(block) {
                Some(up) => out[up].clone(),
                None => vec![None; self.pieces.len()],
            };
            for &(variable, param) in &joins[block] {
                now[variable as usize] = Some(param);
            }
            self.rename(func, block, &mut now);
            out[block] = now;
        }
        ssa::add_phi_args(func, cfg, &joins, &out);
        func.substitute(&self.subst);
    }

    fn variables(&self, func: &Function, cfg: &Cfg) -> Vec<SsaVariable> {
        let mut variables = vec![SsaVariable::default(); self.pieces.len()];
        for &block in &cfg.rpo {
            for &inst in &func.blocks[block].insts {
                let Some(access) = self.accesses.get(&inst) else { continue };
                for v in self.touched(access) {
                    let variable = &mut variables[v as usize];
                    let written = variable.defs.last() == Some(&block);
                    if access.is_store && !written {
                        variable.defs.push(block);
                    } else if !access.is_store && !written && variable.exposed.last() != Some(&block) {
                        variable.exposed.push(block);
                    }
                }
            }
        }
        variables
    }

    fn rename(&mut self, func: &mut Function, block: Block, now: &mut [Option<Value>]) {
        let insts = std::mem::take(&mut func.blocks[block].insts);
        for inst in insts {
            let Some(access) = self.accesses.get(&inst).copied() else {
                func.blocks[block].insts.push(inst);
                continue;
            };
            let touched: Vec<u32> = self.touched(&access).collect();
            if access.is_store {
                self.store(func, block, inst, &access, &touched, now);
            } else if let [variable] = touched[..] {
                self.load(func, block, inst, &access, variable, now);
            } else {
                func.blocks[block].insts.push(inst);
            }
        }
    }

    fn store(
        &self,
        func: &mut Function,
        block: Block,
        inst: Inst,
        access: &SlotAccess,
        touched: &[u32],
        now: &mut [Option<Value>],
    ) {
        for &v in touched {
            let piece = self.pieces[v as usize];
            let value = match access.constant {
                Some(c) if access.size != piece.size => {
                    let at = (piece.lo - access.lo) as u32;
                    let part = c as u64 >> self.order.shift(access.size.bytes(), at, piece.size.bytes());
                    constant(func, block, inst, (part & mask(piece.size)) as i64)
                }
                _ => self.narrow(func, block, inst, piece.size),
            };
            now[v as usize] = Some(value);
        }
        // Bytes of no piece are either never read, or a part of a group that stays in memory.
        if !self.covers(access, touched) {
            func.blocks[block].insts.push(inst);
        }
    }

    /// Returns true if a store may go: no load from the bytes that stay in memory reads it.
    fn covers(&self, access: &SlotAccess, touched: &[u32]) -> bool {
        let mine: i64 = touched.iter().map(|&v| i64::from(self.pieces[v as usize].size.bytes())).sum();
        mine == i64::from(access.size.bytes())
    }

    /// The stored value as a load of the piece would give it.
    fn narrow(&self, func: &mut Function, block: Block, inst: Inst, size: Size) -> Value {
        let value = func.insts[inst].args[1];
        if size == Size::Dw || func.types[value].int_bits().is_some_and(|b| b <= size.bits()) {
            return value;
        }
        if let Some(c) = func.as_const(value) {
            return constant(func, block, inst, (c as u64 & mask(size)) as i64);
        }
        low_part(func, block, inst, value, size)
    }

    fn load(
        &mut self,
        func: &mut Function,
        block: Block,
        inst: Inst,
        access: &SlotAccess,
        variable: u32,
        now: &[Option<Value>],
    ) {
        let Op::Load { sext, size, .. } = func.insts[inst].op else { return };
        let Some(result) = func.result(inst) else { return };
        let piece = self.pieces[variable as usize];
        let whole = match now[variable as usize] {
            Some(value) => value,
            None => push(func, block, inst, Op::Undef {}, &[], Type::Any),
        };
        let mut value = whole;
        if size != piece.size {
            let at = (access.lo - piece.lo) as u32;
            let shift = self.order.shift(piece.size.bytes(), at, size.bytes());
            if shift > 0 {
                let by = constant(func, block, inst, shift.into());
                let op = Op::Alu { op: AluOp::Rsh, width: Width::W64 };
                value = push(func, block, inst, op, &[whole, by], Type::int(size.bits()));
            } else {
                value = low_part(func, block, inst, whole, size);
            }
        }
        if sext && size != Size::Dw {
            let op = Op::Sext { bits: size.bits() as u8, width: Width::W64 };
            value = push(func, block, inst, op, &[value], Type::I64);
        }
        self.subst[result] = value.into();
    }
}

/// The bits of a piece.
fn mask(size: Size) -> u64 {
    u64::MAX >> (64 - size.bits())
}

/// The low part of a word, zero-extended.
fn low_part(func: &mut Function, block: Block, inst: Inst, value: Value, size: Size) -> Value {
    let ty = Type::int(size.bits());
    if size == Size::W {
        return push(func, block, inst, Op::Zext {}, &[value], ty);
    }
    let mask = constant(func, block, inst, mask(size) as i64);
    push(func, block, inst, Op::Alu { op: AluOp::And, width: Width::W32 }, &[value, mask], ty)
}

fn constant(func: &mut Function, block: Block, near: Inst, value: i64) -> Value {
    push(func, block, near, Op::Const { value }, &[], Type::I64)
}

/// Appends an instruction to the block under reconstruction, with the source line of `near`.
fn push(func: &mut Function, block: Block, near: Inst, op: Op, args: &[Value], ty: Type) -> Value {
    let inst = func.make_inst(op, args.iter().copied(), [], ty);
    func.insts[inst].loc = func.insts[near].loc;
    func.blocks[block].insts.push(inst);
    func.insts[inst].result.expand().expect("the operation has a result")
}

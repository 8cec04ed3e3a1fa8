//! `promote-keys`: lookups, updates and deletes whose key (and value) was built on the stack become
//! operations that take key and value as values.
//!
//! A piece of a key is what one store wrote, or one part of a wider constant. Its value at the call is found
//! by SSA construction over the stores, so that keys which differ by path get a block parameter.
//!
//! Invariant: only objects that nothing but plain stores at known offsets writes are considered; the stores
//! stay, and go as dead stores if nothing else reads them.

use cranelift_entity::SecondaryMap;
use millstream_ir::{
    Block, Cfg, DomTree, Function, Inst, KeyLayout, KeyPiece, Map, Op, Size, Slot, Type, Value,
};
use millstream_isa::ByteOrder;
use millstream_isa::helpers::{Helper, id};
use rustc_hash::FxHashMap;

use super::alias::{AliasClasses, MemoryAccess, StackPointee};
use super::ssa::{self, SsaVariable};
use crate::manager::{FuncPass, PassContext};

const NAME: &str = "promote-keys";

/// The pass.
pub(crate) struct PromoteKeys;

impl FuncPass for PromoteKeys {
    fn name(&self) -> &'static str {
        NAME
    }

    fn describe(&self) -> &'static str {
        "give map operations their keys as values where these were built on the stack"
    }

    fn run(&self, func: &mut Function, cx: &mut PassContext<'_>) -> bool {
        let cfg = Cfg::new(func);
        if !cfg.preds[func.entry()].is_empty() {
            return false;
        }
        let classes = AliasClasses::new(func, &cx.info);
        let stores = KeyStores::find(func, &classes);
        let mut variables = Vec::new();
        let mut calls = FxHashMap::default();
        for &block in &cfg.rpo {
            for &inst in &func.blocks[block].insts {
                let Some(call) = PromotedCall::of(func, &classes, &stores, inst, &mut variables, cx) else {
                    continue;
                };
                if cx.fuel(NAME) {
                    calls.insert(inst, call);
                }
            }
        }
        if calls.is_empty() {
            return false;
        }
        let dom = DomTree::new(func, &cfg);
        KeyPromotion { order: cx.target().byte_order, stores, variables, calls }.run(func, &cfg, &dom);
        true
    }
}

/// Plain stores into objects that nothing else writes.
struct KeyStores {
    at: FxHashMap<Inst, MemoryAccess>,
    by_slot: SecondaryMap<Slot, Vec<(MemoryAccess, Option<i64>)>>,
    foreign: SecondaryMap<Slot, bool>,
}

impl KeyStores {
    fn find(func: &Function, classes: &AliasClasses) -> KeyStores {
        let mut found = KeyStores {
            at: FxHashMap::default(),
            by_slot: SecondaryMap::new(),
            foreign: SecondaryMap::new(),
        };
        for slot in func.slots.keys() {
            found.foreign[slot] = classes.is_escaped(slot);
        }
        for (_, inst) in func.insts_in_order() {
            let data = &func.insts[inst];
            match data.op {
                Op::Store { .. } => match classes.plain_access(func, inst) {
                    Some(access) if access.addr.slot().is_some() => {
                        let slot = access.addr.slot().unwrap_or(Slot::from_u32(0));
                        found.at.insert(inst, access);
                        found.by_slot[slot].push((access, func.as_const(data.args[1])));
                    }
                    _ => found.writes(func, classes, data.args[0]),
                },
                Op::Load { .. } => {}
                Op::Helper { id } => {
                    let row = Helper::get(id).map_or(&[][..], |h| h.args);
                    for (i, &arg) in data.args.iter().enumerate() {
                        if row.get(i).is_none_or(|k| k.writes_memory()) {
                            found.writes(func, classes, arg);
                        }
                    }
                }
                ref op if op.effects().writes => {
                    data.args.iter().for_each(|&a| found.writes(func, classes, a));
                }
                _ => {}
            }
        }
        found
    }

    /// Something that is no plain store writes through this address.
    fn writes(&mut self, func: &Function, classes: &AliasClasses, address: Value) {
        match classes.pointee(address) {
            StackPointee::Elsewhere => {}
            StackPointee::One(slot) => self.foreign[slot] = true,
            StackPointee::Any => func.slots.keys().for_each(|s| self.foreign[s] = true),
        }
    }

    /// The pieces that make the bytes `[lo, lo + bytes)` of an object, ascending.
    fn pieces(&self, slot: Slot, lo: i64, bytes: u32) -> Option<Vec<(i64, Size)>> {
        let hi = lo + i64::from(bytes);
        let end = |a: &MemoryAccess| a.addr.offset + i64::from(a.size.bytes());
        let mine = || self.by_slot[slot].iter().filter(|(a, _)| a.addr.offset < hi && lo < end(a));
        let mut pieces: Vec<(i64, Size)> = Vec::new();
        for (access, _) in mine().filter(|(_, constant)| constant.is_none()) {
            if access.addr.offset < lo || end(access) > hi {
                return None;
            }
            pieces.push((access.addr.offset, access.size));
        }
        pieces.sort_unstable();
        pieces.dedup();
        if pieces.windows(2).any(|w| w[0].0 + i64::from(w[0].1.bytes()) > w[1].0) {
            return None;
        }
        self.constant_pieces(slot, lo, hi, &mut pieces);
        pieces.sort_unstable();
        // A constant must write a piece as a whole or not at all.
        let whole = mine().all(|(a, _)| {
            pieces.iter().all(|&(at, size)| {
                let to = at + i64::from(size.bytes());
                let apart = end(a) <= at || to <= a.addr.offset;
                apart || (a.addr.offset <= at && to <= end(a))
            })
        });
        whole.then_some(pieces)
    }

    /// Adds pieces for bytes that only constants write, as wide as they are written and aligned.
    fn constant_pieces(&self, slot: Slot, lo: i64, hi: i64, pieces: &mut Vec<(i64, Size)>) {
        let taken = pieces.clone();
        let is_taken = |at: i64| taken.iter().any(|&(p, s)| p <= at && at < p + i64::from(s.bytes()));
        // Which constants write a byte: bytes of one piece must agree.
        let writers = |at: i64| -> Vec<usize> {
            let stores = self.by_slot[slot].iter().enumerate();
            stores
                .filter(|(_, (a, _))| a.addr.offset <= at && at < a.addr.offset + i64::from(a.size.bytes()))
                .map(|(i, _)| i)
                .collect()
        };
        let mut at = lo;
        while at < hi {
            let here = writers(at);
            if is_taken(at) || here.is_empty() {
                at += 1;
                continue;
            }
            let fits = |size: Size| {
                let to = at + i64::from(size.bytes());
                let same = (at..to).all(|b| !is_taken(b) && writers(b) == here);
                to <= hi && (at - lo) % i64::from(size.bytes()) == 0 && same
            };
            let size = Size::ALL.into_iter().rev().find(|&s| fits(s)).unwrap_or(Size::B);
            pieces.push((at, size));
            at += i64::from(size.bytes());
        }
    }
}

/// A piece of an object as a variable.
#[derive(Clone, Copy, PartialEq, Eq)]
struct KeyVariable {
    slot: Slot,
    lo: i64,
    size: Size,
}

/// A call to be rewritten.
struct PromotedCall {
    op: Op,
    /// Variables of key and value pieces, in order.
    pieces: Vec<u32>,
    flags: Option<Value>,
}

impl PromotedCall {
    fn of(
        func: &Function,
        classes: &AliasClasses,
        stores: &KeyStores,
        inst: Inst,
        variables: &mut Vec<KeyVariable>,
        cx: &PassContext<'_>,
    ) -> Option<PromotedCall> {
        let data = &func.insts[inst];
        let Op::Helper { id: id @ (id::MAP_LOOKUP_ELEM | id::MAP_UPDATE_ELEM | id::MAP_DELETE_ELEM) } =
            data.op
        else {
            return None;
        };
        let Some(Op::MapAddr { map }) = func.def_op(*data.args.first()?) else { return None };
        let decl = cx.info.maps.get(*map)?;
        let layout = |arg: usize, bytes: u32| {
            let addr = classes.addresses.of(*data.args.get(arg)?);
            let slot = addr.slot().filter(|&s| !stores.foreign[s])?;
            let pieces = stores.pieces(slot, addr.offset, bytes)?;
            let layout = pieces
                .iter()
                .map(|&(at, size)| Some(KeyPiece { offset: u16::try_from(at - addr.offset).ok()?, size }));
            Some((slot, layout.collect::<Option<KeyLayout>>()?, pieces))
        };
        let key = layout(1, decl.key_size)?;
        let value = if id == id::MAP_UPDATE_ELEM { Some(layout(2, decl.value_size)?) } else { None };
        let flags = if id == id::MAP_UPDATE_ELEM { Some(*data.args.get(3)?) } else { None };
        let op = operation(id, *map, &key.1, value.as_ref().map(|v| &v.1));
        let mut pieces = Vec::new();
        for (slot, _, list) in [Some(key), value].into_iter().flatten() {
            pieces
                .extend(list.into_iter().map(|(lo, size)| number(variables, KeyVariable { slot, lo, size })));
        }
        Some(PromotedCall { op, pieces, flags })
    }
}

fn operation(id: i32, map: Map, key: &KeyLayout, value: Option<&KeyLayout>) -> Op {
    let key = key.clone();
    match (id, value) {
        (id::MAP_UPDATE_ELEM, Some(value)) => Op::MapUpdate { map, key, value: value.clone() },
        (id::MAP_DELETE_ELEM, _) => Op::MapDelete { map, key },
        _ => Op::MapLookup { map, key },
    }
}

fn number(variables: &mut Vec<KeyVariable>, var: KeyVariable) -> u32 {
    let found = variables.iter().position(|v| *v == var);
    found.unwrap_or_else(|| {
        variables.push(var);
        variables.len() - 1
    }) as u32
}

struct KeyPromotion {
    order: ByteOrder,
    stores: KeyStores,
    variables: Vec<KeyVariable>,
    calls: FxHashMap<Inst, PromotedCall>,
}

impl KeyPromotion {
    fn run(self, func: &mut Function, cfg: &Cfg, dom: &DomTree) {
        let joins = ssa::place(func, cfg, dom, &self.places(func, cfg));
        let mut out: SecondaryMap<Block, Vec<Option<Value>>> = SecondaryMap::new();
        for &block in &cfg.rpo {
            let mut now = match dom.idom(block) {
                Some(up) => out[up].clone(),
                None => vec![None; self.variables.len()],
            };
            for &(variable, param) in &joins[block] {
                now[variable as usize] = Some(param);
            }
            self.block(func, block, &mut now);
            out[block] = now;
        }
        ssa::add_phi_args(func, cfg, &joins, &out);
    }

    fn places(&self, func: &Function, cfg: &Cfg) -> Vec<SsaVariable> {
        let mut places = vec![SsaVariable::default(); self.variables.len()];
        for &block in &cfg.rpo {
            for &inst in &func.blocks[block].insts {
                if let Some(access) = self.stores.at.get(&inst) {
                    for v in self.written(access) {
                        if places[v].defs.last() != Some(&block) {
                            places[v].defs.push(block);
                        }
                    }
                }
                for &v in self.calls.get(&inst).map_or(&[][..], |c| &c.pieces) {
                    let place = &mut places[v as usize];
                    if place.defs.last() != Some(&block) && place.exposed.last() != Some(&block) {
                        place.exposed.push(block);
                    }
                }
            }
        }
        places
    }

    /// Variables that a store writes.
    fn written(&self, access: &MemoryAccess) -> impl Iterator<Item = usize> + '_ {
        let (slot, lo) = (access.addr.slot(), access.addr.offset);
        let hi = lo + i64::from(access.size.bytes());
        let inside = move |v: &KeyVariable| {
            Some(v.slot) == slot && lo <= v.lo && v.lo + i64::from(v.size.bytes()) <= hi
        };
        self.variables.iter().enumerate().filter(move |(_, v)| inside(v)).map(|(i, _)| i)
    }

    fn block(&self, func: &mut Function, block: Block, now: &mut [Option<Value>]) {
        let insts = std::mem::take(&mut func.blocks[block].insts);
        for inst in insts {
            if let Some(access) = self.stores.at.get(&inst) {
                for v in self.written(access) {
                    now[v] = Some(self.part(func, block, inst, access, &self.variables[v]));
                }
            }
            if let Some(call) = self.calls.get(&inst) {
                let mut args: Vec<Value> = Vec::with_capacity(call.pieces.len() + 1);
                for &v in &call.pieces {
                    let value = now[v as usize];
                    args.push(value.unwrap_or_else(|| append(func, block, inst, Op::Undef {}, Type::Any)));
                }
                args.extend(call.flags);
                let data = &mut func.insts[inst];
                data.op = call.op.clone();
                data.args = args.into_iter().collect();
            }
            func.blocks[block].insts.push(inst);
        }
    }

    /// The value that a store writes to a variable.
    fn part(
        &self,
        func: &mut Function,
        block: Block,
        inst: Inst,
        access: &MemoryAccess,
        var: &KeyVariable,
    ) -> Value {
        let value = func.insts[inst].args[1];
        match func.as_const(value) {
            Some(c) if access.size != var.size => {
                let at = (var.lo - access.addr.offset) as u32;
                let part = c as u64 >> self.order.shift(access.size.bytes(), at, var.size.bytes());
                let part = part & (u64::MAX >> (64 - var.size.bits()));
                append(func, block, inst, Op::Const { value: part as i64 }, Type::I64)
            }
            _ => value,
        }
    }
}

/// Appends an operation without arguments to the block under reconstruction.
fn append(func: &mut Function, block: Block, near: Inst, op: Op, ty: Type) -> Value {
    let inst = func.make_inst(op, [], [], ty);
    func.insts[inst].loc = func.insts[near].loc;
    func.blocks[block].insts.push(inst);
    func.insts[inst].result.expand().expect("the operation has a result")
}

//! Tail calls: from a variant into variants of the programs that it calls.
//!
//! Beside each program array there is one of the session's own, its place, which holds variants. A variant calls through the
//! place first, and through the array itself where that fails: an empty slot, a place that the kernel has emptied because the session
//! that held it is gone, a slot behind the end. So the place is never needed for a packet to be handled as the original would.
//!
//! What the place holds is what the array held when the variant was made. A specialised variant calls through it on its specialised path
//! only, behind the guard; a variant that profiles has no guard, and asks whether anything was written since the two were found
//! alike ([`follow`]).

use std::collections::BTreeSet;

use millstream_ir::{Block, BlockCall, Cond, Func, Function, Inst, Map, Module, Op, Prov, Size, Type, Value};

use millstream_passes::{fits_last, splice_last};

use super::copy::Copier;
use super::eval::Abs;
use super::instrument::{branch, insert_block, split_block};
use super::specialize::volatile_load;

/// `bpf_tail_call`.
pub(super) const TAIL_CALL: i32 = 12;

/// A program array, and the one that holds variants of what it holds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Chained {
    /// The array.
    pub array: Map,
    /// Its place.
    pub place: Map,
}

/// Where it is said whether an array and its place are still alike.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Alike {
    /// An array map of one entry.
    pub map: Map,
    /// Offset of the number of writes, a 64-bit word that goes up before a write is made.
    pub writes: u32,
    /// Offset of that number when they were found alike.
    pub found: u32,
}

/// The program arrays through which a function makes tail calls, each once with each slot that it names; without a slot if it may be any.
pub fn calls(module: &Module, func: Func) -> Vec<(Map, Option<u32>)> {
    let body = &module.funcs[func];
    let called = body.insts_in_order().filter_map(|(_, inst)| Some((array(body, inst)?, slot(body, inst))));
    let mut found: Vec<(Map, Option<u32>)> = called.collect();
    found.sort_unstable();
    found.dedup();
    found
}

/// Whether a function may make tail calls of which [`calls`] says nothing: through an array that is one of several, or in functions that
/// it calls.
pub fn may_call_more(module: &Module, func: Func) -> bool {
    let is_call = |body: &Function, inst: Inst| matches!(body.insts[inst].op, Op::Helper { id: TAIL_CALL });
    let (mut seen, mut work) = (BTreeSet::new(), vec![func]);
    while let Some(next) = work.pop() {
        let body = &module.funcs[next];
        for (_, inst) in body.insts_in_order() {
            match body.insts[inst].op {
                Op::Call { func } | Op::FuncAddr { func } if seen.insert(func) => work.push(func),
                _ if is_call(body, inst) && (next != func || array(body, inst).is_none()) => return true,
                _ => {}
            }
        }
    }
    false
}

/// The array through which an instruction makes a tail call, if it is one through one array.
pub(super) fn array(body: &Function, inst: Inst) -> Option<Map> {
    let data = &body.insts[inst];
    let Op::Helper { id: TAIL_CALL } = data.op else { return None };
    match body.def_op(*data.args.get(1)?) {
        Some(Op::MapAddr { map }) => Some(*map),
        _ => None,
    }
}

/// Has a function make its tail calls through the places first, as long as these are what the arrays are.
pub fn follow(module: &mut Module, func: Func, chain: &[Chained], alike: &Alike) {
    let body = &mut module.funcs[func];
    let calls: Vec<(Block, Inst, Map)> = body
        .insts_in_order()
        .filter_map(|(block, inst)| {
            let array = array(body, inst)?;
            Some((block, inst, chain.iter().find(|c| c.array == array)?.place))
        })
        .collect();
    // From the end: what is split off takes the calls behind it along.
    for (block, inst, place) in calls.into_iter().rev() {
        let Some(at) = body.blocks[block].insts.iter().position(|i| *i == inst) else { continue };
        let data = &body.insts[inst];
        let (Some(&ctx), Some(&index)) = (data.args.first(), data.args.get(2)) else { continue };
        let rest = split_block(body, block, at);
        let call = insert_block(body, rest);
        let mut cursor = body.at_end(block);
        let ty = Type::Ptr(Prov::MapValue(alike.map));
        let [writes, found] = [alike.writes, alike.found].map(|offset| {
            let address = cursor.value(Op::MapValueAddr { map: alike.map, offset }, [], ty);
            cursor.value(volatile_load(0), [address], Type::I64)
        });
        let targets = [BlockCall::new(rest), BlockCall::new(call)];
        cursor.effect(branch(Cond::Ne, Size::Dw), [writes, found], targets);
        let mut cursor = body.at_end(call);
        let array = cursor.value(Op::MapAddr { map: place }, [], Type::Ptr(Prov::Map(place)));
        cursor.value(Op::Helper { id: TAIL_CALL }, [ctx, array, index], Type::Any);
        cursor.effect(Op::Jump {}, [], [BlockCall::new(rest)]);
    }
}

/// A slot of a place whose program is put where it is called.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Joined {
    /// The place.
    pub place: Map,
    /// The slot.
    pub slot: u32,
    /// The variant in it.
    pub callee: Func,
}

/// Slots that are asked for, at most, where a call does not say which.
const CASES: usize = 4;
/// Instructions of a function from which on no more programs are put into it.
const MOST: usize = 16_000;

/// Puts variants where a function calls them through places, and what these call, too; gives those that it has put. Where a slot is no constant and there
/// are few that it may be, it is asked which it is.
///
/// The call through the place cannot fail where the slot is filled and the chain of calls is short; so what is called may as well follow at once.
/// It begins by asking its guard, as always. Whoever asks for this answers for it that no chain of calls comes back to where it was: then
/// none can be as long as the kernel allows, and nobody can tell that one is shorter.
pub fn join(module: &mut Module, func: Func, joins: &[Joined]) -> Vec<Joined> {
    let mut done = Vec::new();
    ask(module, func, joins);
    // The layout shows what calls are left.
    while let Some((block, at, joined)) = next_join(module, func, joins) {
        let body = module.funcs[joined.callee].clone();
        let into = &mut module.funcs[func];
        let call = into.blocks[block].insts[at];
        let Some(&ctx) = into.insts[call].args.first() else { break };
        splice_last(into, block, at, &[ctx], &body);
        done.push(joined);
    }
    done.sort_unstable();
    done.dedup();
    done
}

/// The slot that a tail call names, if it is a constant. The kernel looks at 32 bits of it.
fn slot(body: &Function, inst: Inst) -> Option<u32> {
    Some(body.as_const(*body.insts[inst].args.get(2)?)? as u32)
}

/// Asks, where a slot is no constant, whether it is one of a few that could be joined.
fn ask(module: &mut Module, func: Func, joins: &[Joined]) {
    let body = &module.funcs[func];
    let fits = |j: &&Joined| j.callee != func && fits_last(&module.funcs[j.callee]);
    let joins: Vec<Joined> = joins.iter().filter(fits).copied().collect();
    let calls: Vec<(Block, Inst, Map)> = body
        .insts_in_order()
        .filter(|(_, inst)| slot(body, *inst).is_none())
        .filter_map(|(block, inst)| Some((block, inst, array(body, inst)?)))
        .collect();
    let body = &mut module.funcs[func];
    for (block, inst, place) in calls.into_iter().rev() {
        let cases: Vec<u32> = joins.iter().filter(|j| j.place == place).map(|j| j.slot).collect();
        let at = body.blocks[block].insts.iter().position(|i| *i == inst);
        let (Some(at), true) = (at, (1..=CASES).contains(&cases.len())) else { continue };
        let &[ctx, _, index] = &body.insts[inst].args[..] else { continue };
        let rest = split_block(body, block, at);
        let mut here = block;
        for (n, &slot) in cases.iter().enumerate() {
            let case = insert_block(body, rest);
            let next = if n + 1 == cases.len() { rest } else { insert_block(body, rest) };
            let mut cursor = body.at_end(here);
            let number = cursor.iconst(slot.into());
            let targets = [BlockCall::new(case), BlockCall::new(next)];
            cursor.effect(branch(Cond::Eq, Size::W), [index, number], targets);
            let mut cursor = body.at_end(case);
            let array = cursor.value(Op::MapAddr { map: place }, [], Type::Ptr(Prov::Map(place)));
            let number = cursor.iconst(slot.into());
            cursor.value(Op::Helper { id: TAIL_CALL }, [ctx, array, number], Type::Any);
            cursor.effect(Op::Jump {}, [], [BlockCall::new(rest)]);
            here = next;
        }
    }
}

/// The first call in a function that can be replaced: its block, where it is there, and what it calls.
fn next_join(module: &Module, func: Func, joins: &[Joined]) -> Option<(Block, usize, Joined)> {
    let body = &module.funcs[func];
    if body.insts.len() > MOST {
        return None;
    }
    body.layout.iter().find_map(|&block| {
        let insts = body.blocks[block].insts.iter().enumerate();
        insts.into_iter().find_map(|(at, &inst)| {
            let place = array(body, inst)?;
            let slot = slot(body, inst)?;
            let is_it = |j: &&Joined| j.place == place && j.slot == slot && j.callee != func;
            let joined = joins.iter().find(is_it)?;
            fits_last(&module.funcs[joined.callee]).then_some((block, at, *joined))
        })
    })
}

impl Copier<'_> {
    /// Goes on in a variant of what an instruction calls, if that is known and it is a tail call.
    pub(super) fn call_on(&mut self, inst: Inst, args: &[Abs], out: Block) {
        // Where tables may have changed, the original's way is gone.
        if !self.active || self.late {
            return;
        }
        let Some(array) = array(self.src, inst) else { return };
        let Some(chained) = self.plan.chain.iter().find(|c| c.array == array) else { return };
        let &[ctx, _, index, ..] = args else { return };
        let place = chained.place;
        let ctx = self.materialize(ctx, out);
        let index = self.materialize(index, out);
        let array = self.value(out, Op::MapAddr { map: place }, &[], Type::Ptr(Prov::Map(place)));
        let call: [Value; 3] = [ctx, array, index];
        self.value(out, Op::Helper { id: TAIL_CALL }, &call, Type::Any);
    }
}

//! Tail calls: from a variant into variants of the programs that it calls.
//!
//! Beside each program array there is one that belongs to the session, its place, which holds variants. A
//! variant calls through the place first, and through the array itself if that fails: the slot is empty or
//! out of bounds, or the kernel has emptied the place because its session is gone. So packets are handled as
//! the original would even without the place.
//!
//! The place reflects the array's contents at the time when the variant was made. A specialised variant calls
//! through it on its specialised path only, behind the guard. A profiling variant has no guard; it checks
//! that nothing was written since the two were found equal ([`redirect_tail_calls`]).

use std::collections::BTreeSet;

use millstream_ir::{Block, BlockCall, Cond, Func, Function, Inst, Map, Module, Op, Prov, Size, Type};
use millstream_isa::helpers::id;

use millstream_passes::{can_splice_last, splice_last};

use super::instrument::{branch, insert_block, split_block};
use super::plan::{InlinedTailCall, ProgArrayPair};
use super::volatile::volatile_load;

/// Location of the counters that tell if an array and its place still agree.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SyncCounters {
    /// An array map of one entry.
    pub map: Map,
    /// Offset of the number of writes, a 64-bit word that is incremented before each write.
    pub writes: u32,
    /// Offset of the value that this number had when array and place were found to agree.
    pub found: u32,
}

/// The program arrays through which a function makes tail calls, each once with each slot that it names;
/// `None` if the slot is not a constant.
pub fn calls(module: &Module, func: Func) -> Vec<(Map, Option<u32>)> {
    let body = &module.funcs[func];
    let called = body.insts_in_order().filter_map(|(_, inst)| Some((array(body, inst)?, slot(body, inst))));
    let mut found: Vec<(Map, Option<u32>)> = called.collect();
    found.sort_unstable();
    found.dedup();
    found
}

/// Returns true if a function may make tail calls that [`calls`] does not list: through an unknown array, or
/// in functions that it calls.
pub fn may_call_more(module: &Module, func: Func) -> bool {
    let is_call =
        |body: &Function, inst: Inst| matches!(body.insts[inst].op, Op::Helper { id: id::TAIL_CALL });
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

/// The array through which an instruction makes a tail call, if it is a tail call through a known array.
pub(super) fn array(body: &Function, inst: Inst) -> Option<Map> {
    let data = &body.insts[inst];
    let Op::Helper { id: id::TAIL_CALL } = data.op else { return None };
    match body.def_op(*data.args.get(1)?) {
        Some(Op::MapAddr { map }) => Some(*map),
        _ => None,
    }
}

/// Makes a function call through the places first, as long as they agree with the arrays.
pub fn redirect_tail_calls(module: &mut Module, func: Func, chain: &[ProgArrayPair], alike: &SyncCounters) {
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
        cursor.value(Op::Helper { id: id::TAIL_CALL }, [ctx, array, index], Type::Any);
        cursor.effect(Op::Jump {}, [], [BlockCall::new(rest)]);
    }
}

/// Slots that are tested for, at most, where a call does not name one.
const CASES: usize = 4;
/// Size of a function, in instructions, from which no more programs are inlined into it.
const MOST: usize = 16_000;

/// Inlines variants into a function that calls them through places, and recursively the variants that these
/// call; returns those that it has inlined. If a slot is not a constant but only a few are possible, code
/// tests which one it is.
///
/// The call through the place cannot fail if the slot is filled and the chain of calls is short, so the
/// callee may as well follow at once. It begins by testing its guard, as always. The caller of this function
/// guarantees that no chain of calls comes back to a program: then no chain reaches the kernel's limit, and
/// nobody can tell that one is shorter.
pub fn inline_tail_calls(module: &mut Module, func: Func, joins: &[InlinedTailCall]) -> Vec<InlinedTailCall> {
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

/// Inserts tests, where a slot is not a constant, for the few slots that could be joined.
fn ask(module: &mut Module, func: Func, joins: &[InlinedTailCall]) {
    let body = &module.funcs[func];
    let fits = |j: &&InlinedTailCall| j.callee != func && can_splice_last(&module.funcs[j.callee]);
    let joins: Vec<InlinedTailCall> = joins.iter().filter(fits).copied().collect();
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
            cursor.value(Op::Helper { id: id::TAIL_CALL }, [ctx, array, number], Type::Any);
            cursor.effect(Op::Jump {}, [], [BlockCall::new(rest)]);
            here = next;
        }
    }
}

/// The first call in a function that can be replaced: its block, where it is there, and what it calls.
fn next_join(
    module: &Module,
    func: Func,
    joins: &[InlinedTailCall],
) -> Option<(Block, usize, InlinedTailCall)> {
    let body = &module.funcs[func];
    if body.insts.len() > MOST {
        return None;
    }
    body.layout.iter().find_map(|&block| {
        let insts = body.blocks[block].insts.iter().enumerate();
        insts.into_iter().find_map(|(at, &inst)| {
            let place = array(body, inst)?;
            let slot = slot(body, inst)?;
            let is_it = |j: &&InlinedTailCall| j.place == place && j.slot == slot && j.callee != func;
            let joined = joins.iter().find(is_it)?;
            can_splice_last(&module.funcs[joined.callee]).then_some((block, at, *joined))
        })
    })
}

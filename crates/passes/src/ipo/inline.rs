//! `inline`: puts the bodies of static functions in the place of their calls.
//!
//! A function is inlined if it is tiny, or if it has one call and no other reference. Not inlined are
//! functions with a tail call (after which the new program returns to the caller), with legacy packet loads
//! or `may_goto` (whose exits and budgets belong to the frame), callbacks, and global functions, whose
//! arguments and results the kernel's verifier deliberately forgets.
//!
//! Invariant: no chain of calls comes to need more stack than the 512 bytes of the kernel, by an estimate
//! that counts room for spills.

use cranelift_entity::SecondaryMap;
use millstream_ir::{
    Block, BlockCall, Cfg, Func, Function, Inst, InstData, Module, Op, Slot, Type, Value, ValueDef,
};
use millstream_isa::helpers::id;
use smallvec::SmallVec;

use crate::manager::{ModulePass, PassSession};
use crate::memory::refine_types;

const NAME: &str = "inline";
/// Instructions, constants apart, up to which a body is no longer than the call that it replaces.
const TINY: usize = 6;
/// Instructions up to which the only call of a function is replaced by it.
const ONCE: usize = 400;
/// Calls of a function that looks something up, at most, and its instructions, up to which they are replaced
/// by it.
const LOOKUPS: (usize, usize) = (2, 100);
const STACK: u32 = 512;
/// Estimated bytes of spills in a frame.
const SPILLS: u32 = 64;

/// The pass.
pub(crate) struct InlineCalls;

impl ModulePass for InlineCalls {
    fn name(&self) -> &'static str {
        NAME
    }

    fn describe(&self) -> &'static str {
        "replace calls of small or single-caller static functions by their bodies"
    }

    fn run(&self, module: &mut Module, session: &mut PassSession) -> bool {
        inline(module, session, NAME, is_small)
    }
}

/// Inlining for optimizations that tell lookups by the place of the call: functions that make a lookup and
/// are called a few times are inlined, too, though the code grows by it.
pub(crate) struct InlineLookups;

impl ModulePass for InlineLookups {
    fn name(&self) -> &'static str {
        "inline-lookups"
    }

    fn describe(&self) -> &'static str {
        "replace the few calls of static functions that look something up by their bodies"
    }

    fn run(&self, module: &mut Module, session: &mut PassSession) -> bool {
        inline(module, session, self.name(), looks_up)
    }
}

/// Puts the functions that are worth it in the place of their calls.
fn inline(
    module: &mut Module,
    session: &mut PassSession,
    name: &'static str,
    is_worth: fn(&Function, usize) -> bool,
) -> bool {
    let mut changed = false;
    for caller in bottom_up(module) {
        while let Some((block, at, callee)) = candidate(module, caller, is_worth) {
            if !session.fuel(name) {
                break;
            }
            let body = module.funcs[callee].clone();
            splice(&mut module.funcs[caller], block, at, &body);
            changed = true;
        }
        if changed && !module.funcs[caller].layout.is_empty() {
            let cfg = Cfg::new(&module.funcs[caller]);
            refine_types(&mut module.funcs[caller], &cfg);
        }
    }
    changed
}

/// Functions with callees before callers.
fn bottom_up(module: &Module) -> Vec<Func> {
    let mut order = Vec::new();
    let mut seen: SecondaryMap<Func, bool> = SecondaryMap::new();
    for root in module.funcs.keys() {
        let mut stack = vec![(root, 0)];
        while let Some((func, next)) = stack.pop() {
            if next == 0 && std::mem::replace(&mut seen[func], true) {
                continue;
            }
            match callees(module, func).get(next) {
                Some(&callee) => {
                    stack.push((func, next + 1));
                    stack.push((callee, 0));
                }
                None => order.push(func),
            }
        }
    }
    order
}

fn callees(module: &Module, func: Func) -> Vec<Func> {
    let func = &module.funcs[func];
    let calls = func.insts_in_order().filter_map(|(_, i)| match func.insts[i].op {
        Op::Call { func } => Some(func),
        _ => None,
    });
    calls.collect()
}

/// The first call in the function that is worth replacing.
fn candidate(
    module: &Module,
    caller: Func,
    is_worth: fn(&Function, usize) -> bool,
) -> Option<(Block, usize, Func)> {
    let func = &module.funcs[caller];
    for &block in &func.layout {
        for (at, &inst) in func.blocks[block].insts.iter().enumerate() {
            let Op::Call { func: callee } = func.insts[inst].op else { continue };
            let may = callee != caller && is_possible(module, callee) && stack_fits(module, caller, callee);
            if may && is_worth(&module.funcs[callee], references(module, callee).0) {
                return Some((block, at, callee));
            }
        }
    }
    None
}

fn is_possible(module: &Module, callee: Func) -> bool {
    let func = &module.funcs[callee];
    func.linkage.is_local()
        && !func.layout.is_empty()
        && func.slots.values().all(|s| s.fixed.is_none() || s.size == 0)
        && func.insts_in_order().all(|(_, i)| is_movable(&func.insts[i].op))
        && references(module, callee).1 == 0
}

/// Instructions, constants apart.
fn size(func: &Function) -> usize {
    func.insts_in_order().filter(|&(_, i)| !matches!(func.insts[i].op, Op::Const { .. })).count()
}

fn is_small(func: &Function, calls: usize) -> bool {
    let size = size(func);
    size <= TINY || (calls == 1 && size <= ONCE)
}

fn looks_up(func: &Function, calls: usize) -> bool {
    let lookup = |op: &Op| matches!(op, Op::MapLookup { .. } | Op::Helper { id: id::MAP_LOOKUP_ELEM });
    calls <= LOOKUPS.0
        && size(func) <= LOOKUPS.1
        && func.insts_in_order().any(|(_, inst)| lookup(&func.insts[inst].op))
}

fn is_movable(op: &Op) -> bool {
    !matches!(op, Op::Helper { id: id::TAIL_CALL } | Op::LegacyLoad { .. } | Op::MayGoto {})
}

/// Calls of a function, and other references to it.
fn references(module: &Module, to: Func) -> (usize, usize) {
    let (mut calls, mut addresses) = (0, 0);
    for func in module.funcs.values() {
        for (_, inst) in func.insts_in_order() {
            match func.insts[inst].op {
                Op::Call { func } if func == to => calls += 1,
                Op::FuncAddr { func } if func == to => addresses += 1,
                _ => {}
            }
        }
    }
    (calls, addresses)
}

fn frame(func: &Function) -> u32 {
    let objects: u32 = func.slots.values().map(|s| s.size.next_multiple_of(8)).sum();
    (objects + SPILLS).next_multiple_of(16)
}

/// Returns true if all chains of calls through the caller still fit once it holds the callee's objects.
fn stack_fits(module: &Module, caller: Func, callee: Func) -> bool {
    let objects: u32 = module.funcs[callee].slots.values().map(|s| s.size.next_multiple_of(8)).sum();
    if objects == 0 {
        return true;
    }
    let grown = frame(&module.funcs[caller]) + objects;
    above(module, caller, 0) + grown.next_multiple_of(16) + below(module, caller, 0) <= STACK
}

const DEEPEST: u32 = 8;

/// Stack that callers of a function take at most.
fn above(module: &Module, func: Func, depth: u32) -> u32 {
    if depth > DEEPEST {
        return STACK;
    }
    let callers = module.funcs.keys().filter(|&c| callees(module, c).contains(&func));
    callers.map(|c| frame(&module.funcs[c]) + above(module, c, depth + 1)).max().unwrap_or(0)
}

/// Stack that callees of a function take at most.
fn below(module: &Module, func: Func, depth: u32) -> u32 {
    if depth > DEEPEST {
        return STACK;
    }
    let callees = callees(module, func);
    callees.into_iter().map(|c| frame(&module.funcs[c]) + below(module, c, depth + 1)).max().unwrap_or(0)
}

/// Entities of the callee in the caller.
struct CalleeCloner {
    blocks: SecondaryMap<Block, Option<Block>>,
    values: SecondaryMap<Value, Option<Value>>,
    slots: SecondaryMap<Slot, Option<Slot>>,
    /// Block in which the caller goes on; none if it returns the callee's result.
    after: Option<Block>,
    /// True if the caller uses the result.
    result: bool,
}

/// Replaces the call at position `at` of a block by the body of its callee.
fn splice(func: &mut Function, block: Block, at: usize, body: &Function) {
    let call = func.blocks[block].insts[at];
    let data = func.insts[call].clone();
    let position = func.layout.iter().position(|&b| b == block).unwrap_or(0);
    // What follows the call goes to a block of its own; the result becomes its parameter.
    let after = func.add_block();
    func.layout.pop();
    let rest = func.blocks[block].insts.split_off(at + 1);
    func.blocks[block].insts.pop();
    func.blocks[after].insts = rest;
    if let Some(result) = data.result.expand() {
        func.defs[result] = ValueDef::Param(after, 0);
        func.blocks[after].params.push(result);
    }
    let mut copier = CalleeCloner {
        blocks: SecondaryMap::new(),
        values: SecondaryMap::new(),
        slots: SecondaryMap::new(),
        after: Some(after),
        result: data.result.is_some(),
    };
    let entry = copier.copy(func, body);
    let mut end = func.at_end(block);
    end.loc = data.loc;
    end.effect(Op::Jump {}, [], [BlockCall::with(entry, data.args.iter().copied())]);
    let copied = body.layout.iter().filter_map(|&b| copier.blocks[b]).chain([after]);
    let copied: Vec<Block> = copied.collect();
    func.layout.splice(position + 1..position + 1, copied);
}

/// Replaces the calls of a function in another one by this body. Like [`splice_last`], it is for a body without a
/// frame of fixed places ([`can_splice_last`]).
pub fn inline_calls(func: &mut Function, callee: Func, body: &Function) {
    let is_call = |func: &Function, inst: Inst| func.insts[inst].op == Op::Call { func: callee };
    loop {
        let found = func.layout.iter().find_map(|&block| {
            let at = func.blocks[block].insts.iter().position(|&inst| is_call(func, inst))?;
            Some((block, at))
        });
        let Some((block, at)) = found else { break };
        splice(func, block, at, body);
    }
    let cfg = Cfg::new(func);
    refine_types(func, &cfg);
}

/// Replaces the instructions from position `at` of a block on by the body of another function, with these
/// arguments: this function then returns the other's result. Only a function without a frame of fixed places
/// may be put there ([`can_splice_last`]).
pub fn splice_last(func: &mut Function, block: Block, at: usize, args: &[Value], body: &Function) {
    let loc = func.blocks[block].insts.get(at).map(|inst| func.insts[*inst].loc);
    func.blocks[block].insts.truncate(at);
    let mut copier = CalleeCloner {
        blocks: SecondaryMap::new(),
        values: SecondaryMap::new(),
        slots: SecondaryMap::new(),
        after: None,
        result: false,
    };
    let entry = copier.copy(func, body);
    let mut end = func.at_end(block);
    end.loc = loc.unwrap_or(end.loc);
    end.effect(Op::Jump {}, [], [BlockCall::with(entry, args.iter().copied())]);
    let position = func.layout.iter().position(|&b| b == block).unwrap_or(0);
    let copied: Vec<Block> = body.layout.iter().filter_map(|&b| copier.blocks[b]).collect();
    func.layout.splice(position + 1..position + 1, copied);
    // What followed is reached by nobody any more.
    let cfg = Cfg::new(func);
    func.layout.retain(|b| cfg.rpo.contains(b));
    let cfg = Cfg::new(func);
    refine_types(func, &cfg);
}

/// Returns true if a function can be put into another by [`splice_last`].
pub fn can_splice_last(func: &Function) -> bool {
    !func.layout.is_empty() && func.slots.values().all(|s| s.fixed.is_none() || s.size == 0)
}

impl CalleeCloner {
    /// Copies all blocks; gives the copy of the entry.
    fn copy(&mut self, func: &mut Function, body: &Function) -> Block {
        for (slot, data) in &body.slots {
            self.slots[slot] = Some(func.slots.push(data.clone()));
        }
        for &old in &body.layout {
            let new = func.add_block();
            func.layout.pop();
            self.blocks[old] = Some(new);
            for &param in &body.blocks[old].params {
                self.values[param] = Some(func.add_param(new, body.types[param]));
            }
        }
        // Results first: an instruction may use a value that stands in a later block of the layout.
        let mut copies: Vec<(Block, Inst, Inst)> = Vec::new();
        for &old in &body.layout {
            let Some(new) = self.blocks[old] else { continue };
            for &inst in &body.blocks[old].insts {
                let copy = self.reserve(func, body, inst);
                func.blocks[new].insts.push(copy);
                copies.push((new, inst, copy));
            }
        }
        for (block, inst, copy) in copies {
            self.fill(func, block, &body.insts[inst], copy);
        }
        self.blocks[body.entry()].expect("the entry is in the layout")
    }

    fn reserve(&mut self, func: &mut Function, body: &Function, inst: Inst) -> Inst {
        let data = &body.insts[inst];
        let ty = data.result.expand().map_or(Type::Any, |r| body.types[r]);
        let copy = func.make_inst(data.op.clone(), [], [], ty);
        func.insts[copy].loc = data.loc;
        match (data.result.expand(), func.insts[copy].result.expand()) {
            (Some(old), new) => self.values[old] = new,
            (None, _) => func.insts[copy].result = None.into(),
        }
        copy
    }

    fn value(&self, value: Value) -> Value {
        self.values[value].expect("values of a valid function are defined in its blocks")
    }

    fn fill(&self, func: &mut Function, block: Block, data: &InstData, copy: Inst) {
        let args: SmallVec<[Value; 3]> = data.args.iter().map(|&v| self.value(v)).collect();
        if let (Op::Return {}, Some(after)) = (&data.op, self.after) {
            let target = self.leave(func, block, after, args.first().copied());
            let jump = &mut func.insts[copy];
            jump.op = Op::Jump {};
            jump.targets.push(target);
            return;
        }
        let targets = data.targets.iter().map(|t| {
            let block = self.blocks[t.block].expect("targets of a valid function are in its layout");
            BlockCall::with(block, t.args.iter().map(|&v| self.value(v)))
        });
        let targets: SmallVec<[BlockCall; 2]> = targets.collect();
        let new = &mut func.insts[copy];
        new.args = args;
        new.targets = targets;
        if let Op::StackAddr { slot, .. } = &mut new.op {
            *slot = self.slots[*slot].expect("all slots were copied");
        }
    }

    /// The way back to the caller, with the result where it is used.
    fn leave(&self, func: &mut Function, block: Block, after: Block, value: Option<Value>) -> BlockCall {
        if !self.result {
            return BlockCall::new(after);
        }
        let value = match value {
            Some(value) => value,
            None => {
                let end = func.blocks[block].insts.len() - 1;
                func.at(block, end).value(Op::Undef {}, [], Type::Any)
            }
        };
        BlockCall::with(after, [value])
    }
}

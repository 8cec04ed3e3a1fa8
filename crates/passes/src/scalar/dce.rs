//! Dead code: instructions whose result nobody uses, parameters that feed only themselves, atomics whose
//! fetched value is dropped, and blocks that nothing reaches.
//!
//! Liveness is optimistic: a value is dead unless an effect needs it, so cycles of parameters through a loop
//! die together. Calls go only if [`crate::call_effects`] says that they leave no trace.

use cranelift_entity::SecondaryMap;
use millstream_ir::{AtomicOp, Block, Cfg, Function, Inst, Op, Value, ValueDef};

use crate::manager::{FuncPass, PassContext};
use crate::rewrite::keep_params;

const NAME: &str = "dce";

/// Removes dead code.
pub(crate) struct Dce;

impl FuncPass for Dce {
    fn name(&self) -> &'static str {
        NAME
    }

    fn describe(&self) -> &'static str {
        "remove instructions, parameters and blocks without effect"
    }

    fn required(&self) -> bool {
        true
    }

    fn run(&self, func: &mut Function, cx: &mut PassContext<'_>) -> bool {
        let mut changed = remove_unreachable(func);
        let mut live = Liveness::compute(func, cx);
        if live.ask_fuel(func, cx) {
            keep_params(func, |v| live.value[v]);
            remove_insts(func, &live);
            changed = true;
        }
        changed | drop_unused_fetches(func, cx)
    }
}

/// Removes unreachable blocks from the layout: the verifier rejects them, so this takes no fuel.
pub(crate) fn remove_unreachable(func: &mut Function) -> bool {
    let cfg = Cfg::new(func);
    if cfg.rpo.len() == func.layout.len() {
        return false;
    }
    func.layout.retain(|&b| cfg.is_reachable(b));
    true
}

/// Values and instructions that some effect needs.
struct Liveness {
    value: SecondaryMap<Value, bool>,
    inst: SecondaryMap<Inst, bool>,
    work: Vec<Value>,
    branches: SecondaryMap<Block, Vec<Inst>>,
}

impl Liveness {
    fn compute(func: &Function, cx: &PassContext<'_>) -> Liveness {
        let branches = branches_to(func);
        let mut live =
            Liveness { value: SecondaryMap::new(), inst: SecondaryMap::new(), work: Vec::new(), branches };
        for (_, inst) in func.insts_in_order() {
            if is_root(func, inst, cx) {
                live.keep(func, inst);
            }
        }
        for &param in &func.blocks[func.entry()].params {
            live.mark(param);
        }
        live.propagate(func);
        live
    }

    fn propagate(&mut self, func: &Function) {
        while let Some(value) = self.work.pop() {
            match func.defs[value] {
                ValueDef::Inst(inst) => self.keep(func, inst),
                ValueDef::Param(block, index) => self.keep_arguments(func, block, index),
            }
        }
    }

    /// Asks for each dead thing; one that is refused lives on, and with it all that it needs. `true` if any
    /// is left to remove.
    fn ask_fuel(&mut self, func: &Function, cx: &mut PassContext<'_>) -> bool {
        let mut any = false;
        for &block in &func.layout {
            for &param in &func.blocks[block].params {
                if !self.value[param] && !cx.fuel(NAME) {
                    self.mark(param);
                    self.propagate(func);
                }
                any |= !self.value[param];
            }
            for &inst in &func.blocks[block].insts {
                if !self.inst[inst] && !cx.fuel(NAME) {
                    self.keep(func, inst);
                    self.propagate(func);
                }
                any |= !self.inst[inst];
            }
        }
        any
    }

    fn mark(&mut self, value: Value) {
        if !self.value[value] {
            self.value[value] = true;
            self.work.push(value);
        }
    }

    /// Marks an instruction and its operands; arguments of branches live only through their parameters.
    fn keep(&mut self, func: &Function, inst: Inst) {
        if !self.inst[inst] {
            self.inst[inst] = true;
            func.insts[inst].args.iter().for_each(|&v| self.mark(v));
        }
    }

    fn keep_arguments(&mut self, func: &Function, block: Block, index: u16) {
        for i in 0..self.branches[block].len() {
            let term = self.branches[block][i];
            for target in func.insts[term].targets.iter().filter(|t| t.block == block) {
                self.mark(target.args[usize::from(index)]);
            }
        }
    }
}

fn is_root(func: &Function, inst: Inst, cx: &PassContext<'_>) -> bool {
    match &func.insts[inst].op {
        Op::Load { flags, .. } if flags.volatile => true,
        _ => !cx.effects(func, inst).is_removable() || func.insts[inst].op.is_terminator(),
    }
}

/// The terminators that branch to each block, each once.
fn branches_to(func: &Function) -> SecondaryMap<Block, Vec<Inst>> {
    let mut terms: SecondaryMap<Block, Vec<Inst>> = SecondaryMap::new();
    for &block in &func.layout {
        let Some(term) = func.terminator(block) else { continue };
        for target in &func.insts[term].targets {
            if terms[target.block].last() != Some(&term) {
                terms[target.block].push(term);
            }
        }
    }
    terms
}

fn remove_insts(func: &mut Function, live: &Liveness) {
    for &block in &func.layout {
        func.blocks[block].insts.retain(|&inst| live.inst[inst]);
    }
}

/// Turns an atomic whose fetched value is dropped into the cheaper form without fetch.
fn drop_unused_fetches(func: &mut Function, cx: &mut PassContext<'_>) -> bool {
    let uses = func.use_counts();
    let insts: Vec<Inst> = func.insts_in_order().map(|(_, inst)| inst).collect();
    let mut changed = false;
    for inst in insts {
        let Op::AtomicFetch { op, size, offset } = func.insts[inst].op else { continue };
        let unused = func.result(inst).is_some_and(|v| uses[v] == 0);
        let has_plain_form = !matches!(op, AtomicOp::Xchg | AtomicOp::CmpXchg);
        if unused && has_plain_form && cx.fuel(NAME) {
            func.insts[inst].op = Op::Atomic { op, size, offset };
            func.insts[inst].result = None.into();
            changed = true;
        }
    }
    changed
}

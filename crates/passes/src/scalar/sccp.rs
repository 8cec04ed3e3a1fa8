//! Sparse conditional propagation of constants, known bits and ranges.
//!
//! First the classical algorithm (Wegman and Zadeck, "Constant Propagation with Conditional Branches", TOPLAS 1991)
//! over the verifier's domain gives each value its facts, wherever it is used. Then a walk down the dominator tree
//! adds what branches taught on the way, and rewrites: decided branches, constant results, masks and extensions that
//! change nothing.
//!
//! The domain is the verifier's, and so is what a branch teaches: only about the very values it compares. A check
//! therefore goes only where the verifier knows its outcome, on the same value, from checks that stay.

use cranelift_entity::SecondaryMap;
use millstream_ir::{AluOp, Block, BlockCall, Cfg, DomTree, Function, Inst, Op, Type, Value, Width};
use millstream_isa::absint::Scalar;

use super::dce::remove_unreachable;
use super::facts::{Side, decide, of_type, on_side, transfer};
use crate::manager::{Ctx, FuncPass};
use crate::rewrite::{Subst, make_jump};

const NAME: &str = "sccp";

/// A parameter whose facts have changed this often is widened.
const PATIENCE: u32 = 4;

/// Sparse conditional constant propagation.
pub(crate) struct Sccp;

impl FuncPass for Sccp {
    fn name(&self) -> &'static str {
        NAME
    }

    fn describe(&self) -> &'static str {
        "propagate constants, known bits and ranges through branches"
    }

    fn run(&self, func: &mut Function, cx: &mut Ctx<'_>) -> bool {
        let facts = Propagation::run(func);
        let mut walk = Walk { facts, cx, subst: Subst::default(), undo: Vec::new(), changed: false };
        walk.function(func);
        let Walk { subst, changed, .. } = walk;
        let changed = subst.apply(func) | changed;
        changed && {
            remove_unreachable(func);
            true
        }
    }
}

/// The facts of the sparse algorithm.
struct Propagation {
    // `None`: no path that defines it has been found yet.
    fact: SecondaryMap<Value, Option<Scalar>>,
    reached: SecondaryMap<Block, bool>,
    // Which sides of a block's terminator can be taken.
    taken: SecondaryMap<Block, [bool; 2]>,
    changes: SecondaryMap<Value, u32>,
    users: SecondaryMap<Value, Vec<(Block, Inst)>>,
    blocks: Vec<Block>,
    values: Vec<Value>,
}

impl Propagation {
    fn run(func: &Function) -> Propagation {
        let mut users: SecondaryMap<Value, Vec<(Block, Inst)>> = SecondaryMap::with_capacity(func.defs.len());
        for (block, inst) in func.insts_in_order() {
            func.for_each_use(inst, |v| {
                if users[v].last() != Some(&(block, inst)) {
                    users[v].push((block, inst));
                }
            });
        }
        let mut state = Propagation {
            fact: SecondaryMap::with_capacity(func.defs.len()),
            reached: SecondaryMap::new(),
            taken: SecondaryMap::new(),
            changes: SecondaryMap::new(),
            users,
            blocks: Vec::new(),
            values: Vec::new(),
        };
        for &param in &func.blocks[func.entry()].params {
            state.fact[param] = Some(Scalar::UNKNOWN);
        }
        state.reach(func.entry());
        state.solve(func);
        state
    }

    fn solve(&mut self, func: &Function) {
        loop {
            if let Some(block) = self.blocks.pop() {
                for &inst in &func.blocks[block].insts {
                    self.visit(func, block, inst);
                }
            } else if let Some(value) = self.values.pop() {
                for i in 0..self.users[value].len() {
                    let (block, inst) = self.users[value][i];
                    if self.reached[block] {
                        self.visit(func, block, inst);
                    }
                }
            } else {
                return;
            }
        }
    }

    fn reach(&mut self, block: Block) {
        if !std::mem::replace(&mut self.reached[block], true) {
            self.blocks.push(block);
        }
    }

    fn known(&self, value: Value) -> Scalar {
        self.fact[value].unwrap_or(Scalar::UNKNOWN)
    }

    fn visit(&mut self, func: &Function, block: Block, inst: Inst) {
        // Operands that no path has defined yet are waited for.
        if func.insts[inst].args.iter().any(|&v| self.fact[v].is_none()) {
            return;
        }
        if func.insts[inst].op.is_terminator() {
            return self.terminator(func, block, inst);
        }
        if let Some(result) = func.result(inst) {
            let new = transfer(func, inst, |v| self.known(v));
            self.learn(result, new);
        }
    }

    /// Joins new facts to those known; they only ever grow weaker.
    fn learn(&mut self, value: Value, new: Scalar) {
        let joined = match self.fact[value] {
            None => new,
            Some(old) => {
                let joined = old.join(&new);
                if joined == old {
                    return;
                }
                self.changes[value] += 1;
                if self.changes[value] > PATIENCE { old.widen(&joined) } else { joined }
            }
        };
        self.fact[value] = Some(joined);
        self.values.push(value);
    }

    fn terminator(&mut self, func: &Function, block: Block, term: Inst) {
        let decided = decide(func, term, |v| self.known(v));
        for side in 0..func.insts[term].targets.len() {
            if decided.is_some_and(|truth| truth != (side == 0)) {
                continue;
            }
            let refined = match on_side(func, term, side, |v| self.known(v)) {
                Side::Never => continue,
                Side::Same => None,
                Side::Known(facts) => Some(facts),
            };
            self.taken[block][side] = true;
            let target = &func.insts[term].targets[side];
            for (&param, &arg) in func.blocks[target.block].params.iter().zip(&target.args) {
                let better = refined.and_then(|facts| facts.into_iter().find(|f| f.0 == arg).map(|f| f.1));
                if let Some(fact) = better.or(self.fact[arg]) {
                    let by_type = of_type(func.types[param]);
                    self.learn(param, fact.intersect(&by_type).unwrap_or(by_type));
                }
            }
            self.reach(target.block);
        }
    }
}

/// The walk down the dominator tree.
struct Walk<'a, 'm> {
    facts: Propagation,
    cx: &'a mut Ctx<'m>,
    subst: Subst,
    // Facts to be restored when a subtree is left.
    undo: Vec<(Value, Option<Scalar>)>,
    changed: bool,
}

enum Visit {
    Enter(Block),
    Leave(usize),
}

impl Walk<'_, '_> {
    fn function(&mut self, func: &mut Function) {
        let cfg = Cfg::new(func);
        let dom = DomTree::new(func, &cfg);
        let mut work = vec![Visit::Enter(func.entry())];
        while let Some(visit) = work.pop() {
            match visit {
                Visit::Leave(mark) => {
                    for (value, fact) in self.undo.drain(mark..).rev() {
                        self.facts.fact[value] = fact;
                    }
                }
                Visit::Enter(block) => {
                    work.push(Visit::Leave(self.undo.len()));
                    if self.facts.reached[block] && self.enter(func, &cfg, block) {
                        self.block(func, block);
                        work.extend(dom.children(block).iter().rev().map(|&b| Visit::Enter(b)));
                    }
                }
            }
        }
    }

    fn set(&mut self, value: Value, fact: Scalar) {
        let old = self.facts.fact[value];
        if old != Some(fact) {
            self.undo.push((value, old));
            self.facts.fact[value] = Some(fact);
        }
    }

    /// Learns from the branch that leads here; `false` if it never does.
    fn enter(&mut self, func: &Function, cfg: &Cfg, block: Block) -> bool {
        let [pred] = cfg.preds[block][..] else { return true };
        let Some(term) = func.terminator(pred) else { return true };
        let Some(side) = func.insts[term].targets.iter().position(|t| t.block == block) else { return true };
        match on_side(func, term, side, |v| self.facts.known(v)) {
            Side::Never => return false,
            Side::Same => {}
            Side::Known(facts) => {
                for (value, fact) in facts {
                    self.set(value, fact);
                }
            }
        }
        true
    }

    fn block(&mut self, func: &mut Function, block: Block) {
        for i in 0..func.blocks[block].params.len() {
            let param = func.blocks[block].params[i];
            narrow_type(func, param, &self.facts.known(param));
        }
        for i in 0..func.blocks[block].insts.len() {
            let inst = func.blocks[block].insts[i];
            if let Some(result) = func.result(inst) {
                let here = transfer(func, inst, |v| self.facts.known(v));
                let fact = here.intersect(&self.facts.known(result)).unwrap_or(here);
                self.set(result, fact);
                narrow_type(func, result, &fact);
                self.rewrite(func, inst, result, &fact);
            } else if func.insts[inst].op.is_terminator() {
                self.branch(func, block, inst);
            }
        }
    }

    fn rewrite(&mut self, func: &mut Function, inst: Inst, result: Value, fact: &Scalar) {
        let data = &func.insts[inst];
        let arithmetic = !data.args.is_empty() && data.op.effects().is_pure() && func.types[result].is_int();
        if !arithmetic {
            return;
        }
        if let Some(value) = fact.as_constant() {
            if self.cx.fuel(NAME) {
                let data = &mut func.insts[inst];
                data.op = Op::Const { value: value as i64 };
                data.args.clear();
                self.changed = true;
            }
        } else if let Some(same) = self.unchanged(func, inst) {
            let types = (func.types[same], func.types[result]);
            let stands = types.0.is_int() && (types.1 != Type::I1 || types.0 == Type::I1);
            if stands && self.cx.fuel(NAME) {
                self.subst.insert(result, same);
            }
        }
    }

    /// The operand that the operation gives back as it is.
    fn unchanged(&self, func: &Function, inst: Inst) -> Option<Value> {
        let data = &func.insts[inst];
        let first = *data.args.first()?;
        let x = self.facts.known(first);
        let fits = |width: Width| width == Width::W64 || x.fits_u32();
        let constant = data.args.get(1).and_then(|&v| self.facts.known(v).as_constant());
        let top = x.unsigned().1;
        let same = match (&data.op, constant) {
            (Op::Zext {}, _) => x.fits_u32(),
            (Op::Sext { bits, .. }, _) => top < 1 << (bits - 1),
            (Op::Alu { op: AluOp::And, width }, Some(mask)) => {
                let possible = x.bits().value() | x.bits().mask();
                fits(*width) && possible & !mask == 0
            }
            (Op::Alu { op: AluOp::Mod, width: Width::W32 }, Some(n)) => top < n & 0xffff_ffff,
            (Op::Alu { op: AluOp::Mod, width: Width::W64 }, Some(n)) => top < n,
            _ => false,
        };
        same.then_some(first)
    }

    fn branch(&mut self, func: &mut Function, block: Block, term: Inst) {
        let known = |v: Value| self.facts.known(v);
        let side = match (decide(func, term, known), self.facts.taken[block]) {
            _ if func.insts[term].targets.len() != 2 || !matches!(func.insts[term].op, Op::Branch { .. }) => {
                return;
            }
            (Some(truth), _) => usize::from(!truth),
            (None, [true, false]) => 0,
            (None, [false, true]) => 1,
            _ => return,
        };
        if self.cx.fuel(NAME) {
            let target: BlockCall = func.insts[term].targets[side].clone();
            make_jump(func, term, target);
            self.changed = true;
        }
    }
}

/// States what is known of an integer in its type. Truth values are left to comparisons; a choice stays as wide as
/// what it chooses from.
fn narrow_type(func: &mut Function, value: Value, fact: &Scalar) {
    let Some(bits) = func.types[value].int_bits() else { return };
    if matches!(func.def_op(value), Some(Op::Select {})) {
        return;
    }
    let needed = (64 - fact.unsigned().1.leading_zeros()).max(8);
    if needed < bits {
        func.types[value] = Type::int(needed);
    }
}

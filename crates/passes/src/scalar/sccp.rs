//! Sparse conditional propagation of constants, known bits and ranges.
//!
//! First the classical algorithm (Wegman and Zadeck, "Constant Propagation with Conditional Branches", TOPLAS
//! 1991) over the verifier's domain gives each value its facts, wherever it is used. Then a walk in reverse
//! postorder adds the facts that branches establish on the way, and rewrites: decided branches, constant
//! results, masks and extensions that change nothing. A fact learnt in a block holds in all that it
//! dominates, and a fact that every edge into a block establishes holds there too: the verifier comes by each
//! of the paths.
//!
//! The domain is the verifier's, and so are the facts that a branch establishes: only about the very values
//! it compares. A check therefore goes only where the verifier knows its outcome, on the same value, from
//! checks that stay.

use cranelift_entity::SecondaryMap;
use millstream_ir::{AluOp, Block, BlockCall, Cfg, DomTree, Function, Inst, Op, Type, Value, Width};
use millstream_isa::absint::{AbstractDomain, Scalar};
use smallvec::SmallVec;

use super::dce::remove_unreachable;
use super::facts::{EdgeFacts, decide, of_type, on_side, transfer};
use crate::manager::{FuncPass, PassContext};
use crate::rewrite::{ValueSubst, make_jump};

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

    fn run(&self, func: &mut Function, cx: &mut PassContext<'_>) -> bool {
        let cfg = Cfg::new(func);
        let domain = cx.target().domain();
        let mut walk = SccpRewriter {
            facts: SparsePropagation::run(domain, func),
            domain,
            dom: DomTree::new(func, &cfg),
            learned: SecondaryMap::new(),
            lessons: SecondaryMap::new(),
            never: SecondaryMap::new(),
            here: func.entry(),
            cx,
            subst: ValueSubst::default(),
            changed: false,
        };
        walk.function(func, &cfg);
        let SccpRewriter { subst, changed, .. } = walk;
        let changed = subst.apply(func) | changed;
        changed && {
            remove_unreachable(func);
            true
        }
    }
}

/// Facts about each value that hold wherever it is used; `None` if no path defines it.
pub(crate) fn propagated_facts(
    domain: AbstractDomain,
    func: &Function,
) -> SecondaryMap<Value, Option<Scalar>> {
    SparsePropagation::run(domain, func).fact
}

/// The facts of the sparse algorithm.
struct SparsePropagation {
    domain: AbstractDomain,
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

impl SparsePropagation {
    fn run(domain: AbstractDomain, func: &Function) -> SparsePropagation {
        let mut users: SecondaryMap<Value, Vec<(Block, Inst)>> = SecondaryMap::with_capacity(func.defs.len());
        for (block, inst) in func.insts_in_order() {
            func.for_each_use(inst, |v| {
                if users[v].last() != Some(&(block, inst)) {
                    users[v].push((block, inst));
                }
            });
        }
        let mut state = SparsePropagation {
            domain,
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
            let new = transfer(self.domain, func, inst, |v| self.known(v));
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
        let decided = decide(self.domain, func, term, |v| self.known(v));
        for side in 0..func.insts[term].targets.len() {
            if decided.is_some_and(|truth| truth != (side == 0)) {
                continue;
            }
            let refined = match on_side(self.domain, func, term, side, |v| self.known(v)) {
                EdgeFacts::Never => continue,
                EdgeFacts::Same => None,
                EdgeFacts::Known(facts) => Some(facts),
            };
            self.taken[block][side] = true;
            let target = &func.insts[term].targets[side];
            for (&param, &arg) in func.blocks[target.block].params.iter().zip(&target.args) {
                let better = refined.and_then(|facts| facts.into_iter().find(|f| f.0 == arg).map(|f| f.1));
                if let Some(fact) = better.or(self.fact[arg]) {
                    self.learn(param, of_type(self.domain, fact, func.types[param]));
                }
            }
            self.reach(target.block);
        }
    }
}

/// Up to how many dominators above an edge lessons are looked for, to be joined with those of the other
/// edges.
const CHAIN: usize = 32;

/// The walk over the blocks.
struct SccpRewriter<'a, 'm> {
    domain: AbstractDomain,
    facts: SparsePropagation,
    dom: DomTree,
    // Facts about a value from a block on, the blocks in reverse postorder.
    learned: SecondaryMap<Value, Vec<(Block, Scalar)>>,
    // The values about which a block adds facts.
    lessons: SecondaryMap<Block, Vec<Value>>,
    // Blocks to which no edge is taken.
    never: SecondaryMap<Block, bool>,
    here: Block,
    cx: &'a mut PassContext<'m>,
    subst: ValueSubst,
    changed: bool,
}

/// An edge that may be taken.
struct ExecutableEdge {
    from: Block,
    args: SmallVec<[Value; 4]>,
    taught: Option<[(Value, Scalar); 2]>,
}

impl SccpRewriter<'_, '_> {
    fn function(&mut self, func: &mut Function, cfg: &Cfg) {
        for &block in &cfg.rpo {
            self.here = block;
            if self.facts.reached[block] && self.enter(func, cfg, block) {
                self.block(func, block);
            } else {
                self.never[block] = true;
            }
        }
    }

    /// Facts about a value in a block.
    fn known_at(&self, value: Value, block: Block) -> Scalar {
        let lessons = self.learned[value].iter().rev();
        let last = lessons.into_iter().find(|(at, _)| self.dom.dominates(*at, block));
        last.map_or_else(|| self.facts.known(value), |l| l.1)
    }

    fn known(&self, value: Value) -> Scalar {
        self.known_at(value, self.here)
    }

    fn learn(&mut self, value: Value, fact: Scalar) {
        if fact != self.known(value) {
            self.learned[value].push((self.here, fact));
            self.lessons[self.here].push(value);
        }
    }

    /// Learns from the edges that lead here; `false` if none ever does.
    fn enter(&mut self, func: &Function, cfg: &Cfg, block: Block) -> bool {
        let earlier = |p: &Block| cfg.rpo_index[*p] < cfg.rpo_index[block];
        if block == func.entry() {
            return true;
        }
        let edges = self.edges(func, cfg, block);
        match &edges[..] {
            [] => return false,
            // What comes around a loop is not known yet.
            _ if !cfg.preds[block].iter().all(earlier) => return true,
            [edge] => {
                for (value, fact) in edge.taught.into_iter().flatten() {
                    self.learn(value, fact);
                }
            }
            [first, ..] => {
                for value in self.lessons_above(first, block) {
                    if let Some(fact) = self.joined(&edges, |_| value) {
                        self.learn(value, fact);
                    }
                }
            }
        }
        for (i, &param) in func.blocks[block].params.iter().enumerate() {
            if let Some(fact) = self.joined(&edges, |e| e.args[i]) {
                let old = self.facts.known(param);
                self.facts.fact[param] = Some(self.domain.intersect(&old, &fact).unwrap_or(old));
            }
        }
        true
    }

    /// The edges from earlier blocks that may be taken.
    fn edges(&self, func: &Function, cfg: &Cfg, block: Block) -> Vec<ExecutableEdge> {
        let mut froms: SmallVec<[Block; 4]> = SmallVec::new();
        for &p in &cfg.preds[block] {
            if !froms.contains(&p) && cfg.rpo_index[p] < cfg.rpo_index[block] && !self.never[p] {
                froms.push(p);
            }
        }
        let mut edges = Vec::new();
        for from in froms {
            let Some(term) = func.terminator(from) else { continue };
            let data = &func.insts[term];
            for (side, target) in data.targets.iter().enumerate().filter(|(_, t)| t.block == block) {
                // A branch that was decided is a jump by now.
                if matches!(data.op, Op::Branch { .. }) && !self.facts.taken[from][side] {
                    continue;
                }
                let taught = match on_side(self.domain, func, term, side, |v| self.known_at(v, from)) {
                    EdgeFacts::Never => continue,
                    EdgeFacts::Same => None,
                    EdgeFacts::Known(facts) => Some(facts),
                };
                edges.push(ExecutableEdge { from, args: SmallVec::from_slice(&target.args), taught });
            }
        }
        edges
    }

    /// Values about which facts were learnt on the way to an edge, below the dominator of its target.
    fn lessons_above(&self, edge: &ExecutableEdge, to: Block) -> Vec<Value> {
        let mut values: Vec<Value> = edge.taught.into_iter().flatten().map(|t| t.0).collect();
        let mut at = Some(edge.from);
        for _ in 0..CHAIN {
            let Some(block) = at.filter(|&b| !self.dom.dominates(b, to)) else { break };
            values.extend_from_slice(&self.lessons[block]);
            at = self.dom.idom(block);
        }
        values.sort_unstable();
        values.dedup();
        values
    }

    /// The union of the facts on all edges about the value that comes along each.
    fn joined(&self, edges: &[ExecutableEdge], value: impl Fn(&ExecutableEdge) -> Value) -> Option<Scalar> {
        let on = |edge: &ExecutableEdge| {
            let value = value(edge);
            let taught = edge.taught.into_iter().flatten().find(|t| t.0 == value);
            taught.map_or_else(|| self.known_at(value, edge.from), |t| t.1)
        };
        edges.iter().map(on).reduce(|a, b| a.join(&b))
    }

    fn block(&mut self, func: &mut Function, block: Block) {
        for i in 0..func.blocks[block].params.len() {
            let param = func.blocks[block].params[i];
            narrow_type(func, param, &self.known(param));
        }
        for i in 0..func.blocks[block].insts.len() {
            let inst = func.blocks[block].insts[i];
            if let Some(result) = func.result(inst) {
                let here = transfer(self.domain, func, inst, |v| self.known(v));
                let fact = self.domain.intersect(&here, &self.known(result)).unwrap_or(here);
                self.facts.fact[result] = Some(fact);
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
        let x = self.known(first);
        let fits = |width: Width| width == Width::W64 || x.fits_u32();
        let constant = data.args.get(1).and_then(|&v| self.known(v).as_constant());
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
        let known = |v: Value| self.known(v);
        let side = match (decide(self.domain, func, term, known), self.facts.taken[block]) {
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

/// Narrows the type of an integer to the known facts. Truth values are left to comparisons; a choice stays as
/// wide as its operands.
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

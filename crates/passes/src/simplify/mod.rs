//! Algebraic simplification: constant folding, one form for equal things, and the rules under `rules/`.
//!
//! Blocks are visited in reverse postorder, so that operands are simple before their users. A rewrite changes
//! the instruction in place (its value keeps its number and its users) or replaces its value by one that
//! exists.

mod address;
mod divide;
mod facts;
mod func;
mod index;
mod matcher;
mod parse;
mod profitability;
mod rule;
mod set;
mod store;

use cranelift_entity::SecondaryMap;
use millstream_ir::{AluOp, Block, Cfg, Function, Inst, Op, Prov, Type, Value, Width};
use millstream_isa::absint::AbstractDomain;
use smallvec::SmallVec;

use crate::fold::eval_op;
use crate::manager::{FuncPass, Pass, PassContext};
use crate::rewrite::{ValueSubst, fits, make_jump, negated, swapped};
use crate::widths::verifier_knows_width;
use facts::VerifierFacts;
use matcher::{MatchContext, RuleBindings};

pub use func::Func;
pub use millstream_text_store::StoreError;
pub use parse::{parse, parse_rule};
pub use rule::{
    CondPat, ConstExpr, NAMES, PatternOp, RewriteRule, RuleCondition, RulePattern, RuleReplacement, WidthPat,
};
pub use set::RuleSet;
pub use store::{RuleOrigin, RuleStore, StoredRule};

const NAME: &str = "simplify";

/// Rewrites of one instruction in one visit: rules shrink or order, so this is never reached in practice.
const MOST_STEPS: usize = 16;

/// The passes of this module.
pub(crate) const PASSES: &[Pass] = &[Pass::Func(&Simplify), Pass::Func(&divide::DivideByConst)];

/// Algebraic simplification.
pub(crate) struct Simplify;

impl FuncPass for Simplify {
    fn name(&self) -> &'static str {
        NAME
    }

    fn describe(&self) -> &'static str {
        "fold constants and apply the algebraic rules"
    }

    fn run(&self, func: &mut Function, cx: &mut PassContext<'_>) -> bool {
        let uses = func.use_counts();
        let order = Cfg::new(func).rpo;
        let rules = cx.session.rules.clone().unwrap_or_else(RuleSet::shipped);
        let verifiers =
            cx.target().kernels.knowledge().map(|k| VerifierFacts::new(AbstractDomain::new(k))).collect();
        let mut state = InstSimplifier {
            func,
            cx,
            rules: &rules,
            subst: ValueSubst::default(),
            uses,
            facts: verifiers,
            out: Vec::new(),
            changed: false,
        };
        for block in order {
            state.block(block);
        }
        let InstSimplifier { func, subst, changed, .. } = state;
        subst.apply(func) | changed
    }
}

/// Outcome of one step on an instruction.
#[derive(PartialEq, Eq)]
enum SimplifyOutcome {
    Done,
    Again,
    Gone,
}

struct InstSimplifier<'a, 'm> {
    func: &'a mut Function,
    cx: &'a mut PassContext<'m>,
    rules: &'a RuleSet,
    subst: ValueSubst,
    uses: SecondaryMap<Value, u32>,
    // Facts of each verifier that will see the code, the one that knows least first.
    facts: SmallVec<[VerifierFacts; 3]>,
    // The instructions of the block at hand, as far as they are final.
    out: Vec<Inst>,
    changed: bool,
}

impl InstSimplifier<'_, '_> {
    fn block(&mut self, block: Block) {
        let insts = std::mem::take(&mut self.func.blocks[block].insts);
        for inst in insts {
            if self.visit(inst) {
                self.out.push(inst);
            }
        }
        self.func.blocks[block].insts = std::mem::take(&mut self.out);
    }

    /// Simplifies an instruction; `false` if it is no longer needed.
    fn visit(&mut self, inst: Inst) -> bool {
        for i in 0..self.func.insts[inst].args.len() {
            let arg = self.func.insts[inst].args[i];
            self.func.insts[inst].args[i] = self.subst.resolve(arg);
        }
        for _ in 0..MOST_STEPS {
            match self.step(inst) {
                SimplifyOutcome::Done => return true,
                SimplifyOutcome::Gone => {
                    self.changed = true;
                    return false;
                }
                SimplifyOutcome::Again => self.changed = true,
            }
        }
        true
    }

    fn step(&mut self, inst: Inst) -> SimplifyOutcome {
        if self.fold(inst) || self.normalize(inst) || self.fold_address(inst) {
            return SimplifyOutcome::Again;
        }
        for entry in self.rules.index.candidates(self.func, &self.subst, inst) {
            let rule = &self.rules.rules()[usize::from(entry.rule)];
            let Some(env) = self.view().apply(rule, entry, inst) else { continue };
            // The rules that are shipped were looked through for the domain of the newest verifiers.
            let suits = match rule.learnt {
                true => self.is_profitable(inst, rule, &env),
                false => {
                    !self.cx.target().targets_older_verifiers()
                        || self.preserves_verifier_facts(inst, rule, &env)
                }
            };
            if !suits {
                continue;
            }
            match self.rewrite(inst, &rule.build, &env, entry.opposite) {
                SimplifyOutcome::Done => {}
                step => {
                    self.cx.session.count(usize::from(entry.rule));
                    return step;
                }
            }
        }
        SimplifyOutcome::Done
    }

    fn view(&mut self) -> MatchContext<'_> {
        MatchContext {
            func: self.func,
            subst: &self.subst,
            uses: &self.uses,
            target: &self.cx.session.target,
            facts: &mut self.facts[0],
        }
    }

    /// Folds an operation on constants.
    fn fold(&mut self, inst: Inst) -> bool {
        let data = &self.func.insts[inst];
        if matches!(data.op, Op::Const { .. }) || data.op.is_terminator() {
            return false;
        }
        let consts: Option<SmallVec<[u64; 3]>> =
            data.args.iter().map(|&v| self.func.as_const(v).map(|c| c as u64)).collect();
        let value = consts.filter(|c| !c.is_empty()).and_then(|consts| eval_op(&data.op, &consts));
        match value {
            Some(value) if self.cx.fuel(NAME) => {
                self.become_const(inst, value);
                true
            }
            _ => false,
        }
    }

    /// Constants to the right, those of 32-bit operations sign-extended: one form for all.
    fn normalize(&mut self, inst: Inst) -> bool {
        let data = &self.func.insts[inst];
        let &[a, b] = &data.args[..] else { return false };
        let (width, mirrored) = match data.op {
            Op::Alu { op, width } => {
                let commutes = matches!(op, AluOp::Add | AluOp::Mul | AluOp::And | AluOp::Or | AluOp::Xor);
                (width, commutes.then_some(Op::Alu { op, width }))
            }
            Op::Cmp { cond, width } => (width, Some(Op::Cmp { cond: swapped(cond), width })),
            Op::Branch { cond, width } => (width, Some(Op::Branch { cond: swapped(cond), width })),
            _ => return false,
        };
        let (left, right) = (self.func.as_const(a), self.func.as_const(b));
        if let (Some(_), None, Some(op)) = (left, right, mirrored) {
            if !self.cx.fuel(NAME) {
                return false;
            }
            let data = &mut self.func.insts[inst];
            data.op = op;
            data.args.swap(0, 1);
            return true;
        }
        match right {
            Some(c) if width == Width::W32 && c != i64::from(c as i32) && self.cx.fuel(NAME) => {
                let low = self.constant(inst, i64::from(c as i32));
                self.set_args(inst, &[a, low]);
                true
            }
            _ => false,
        }
    }

    fn rewrite(
        &mut self,
        inst: Inst,
        build: &RuleReplacement,
        env: &RuleBindings,
        opposite: bool,
    ) -> SimplifyOutcome {
        match build {
            // The opposite of a value that happens to be a truth value is no operation.
            RuleReplacement::Value(_) if opposite => SimplifyOutcome::Done,
            RuleReplacement::Const(expr) if opposite => self.decide(inst, env.eval(expr) == 0),
            RuleReplacement::Value(i) => self.rewrite_to_value(inst, env.values[*i]),
            RuleReplacement::Const(expr) => {
                if self.func.result(inst).is_none() || !self.cx.fuel(NAME) {
                    return SimplifyOutcome::Done;
                }
                let value = env.eval(expr);
                self.become_const(inst, value);
                SimplifyOutcome::Again
            }
            RuleReplacement::Truth(truth) => self.decide(inst, *truth != opposite),
            RuleReplacement::Node(head, args) => self.rewrite_to_node(inst, *head, args, env, opposite),
            RuleReplacement::Not(inner) => match &**inner {
                RuleReplacement::Node(head, args) => self.rewrite_to_node(inst, *head, args, env, !opposite),
                _ => SimplifyOutcome::Done,
            },
        }
    }

    fn rewrite_to_value(&mut self, inst: Inst, to: Option<Value>) -> SimplifyOutcome {
        let (Some(from), Some(to)) = (self.func.result(inst), to) else { return SimplifyOutcome::Done };
        if !fits(self.func.types[to], self.func.types[from]) || !self.cx.fuel(NAME) {
            return SimplifyOutcome::Done;
        }
        self.set_args(inst, &[]);
        self.uses[to] += self.uses[from];
        self.subst.insert(from, to);
        SimplifyOutcome::Gone
    }

    /// Puts a known truth value in place of a comparison.
    fn decide(&mut self, inst: Inst, truth: bool) -> SimplifyOutcome {
        if !self.cx.fuel(NAME) {
            return SimplifyOutcome::Done;
        }
        if self.func.result(inst).is_some() {
            self.become_const(inst, u64::from(truth));
        } else {
            let target = self.func.insts[inst].targets[usize::from(!truth)].clone();
            self.set_args(inst, &[]);
            make_jump(self.func, inst, target);
        }
        SimplifyOutcome::Again
    }

    fn rewrite_to_node(
        &mut self,
        inst: Inst,
        head: PatternOp,
        args: &[RuleReplacement],
        env: &RuleBindings,
        not: bool,
    ) -> SimplifyOutcome {
        let Some((op, exchange)) = self.root_op(inst, head, env, not) else { return SimplifyOutcome::Done };
        if !self.affordable(head, args, env) || !self.cx.fuel(NAME) {
            return SimplifyOutcome::Done;
        }
        let args: SmallVec<[Value; 3]> = args.iter().map(|a| self.build(inst, head, a, env)).collect();
        self.set_args(inst, &args);
        let inferred = self.infer(&op, &args);
        let data = &mut self.func.insts[inst];
        data.op = op;
        if exchange {
            data.targets.swap(0, 1);
        }
        if let Some(result) = self.func.result(inst) {
            self.func.types[result] = narrower(self.func.types[result], inferred);
            self.facts.iter_mut().for_each(|facts| facts.forget(result));
        }
        SimplifyOutcome::Again
    }

    /// The operation that replaces the one at `inst`, and whether a branch must exchange its sides.
    fn root_op(&self, inst: Inst, head: PatternOp, env: &RuleBindings, not: bool) -> Option<(Op, bool)> {
        let PatternOp::Cmp(cond, width) = head else {
            let has_result = self.func.result(inst).is_some();
            return (has_result && !not).then(|| (op_of(head, env), false));
        };
        let (cond, width) = (env.cond(cond), env.width(width));
        let opposite = if not { negated(cond) } else { Some(cond) };
        if self.func.result(inst).is_some() {
            return opposite.map(|cond| (Op::Cmp { cond, width }, false));
        }
        Some((Op::Branch { cond: opposite.unwrap_or(cond), width }, opposite.is_none()))
    }

    /// Returns true if each constant among the operands is an immediate.
    fn affordable(&self, head: PatternOp, args: &[RuleReplacement], env: &RuleBindings) -> bool {
        let width = env.width(head.width());
        args.iter().all(|arg| match arg {
            RuleReplacement::Const(expr) => {
                width == Width::W32 || self.cx.target().const_cost(env.eval(expr) as i64) == 0
            }
            RuleReplacement::Node(head, args) => self.affordable(*head, args, env),
            _ => true,
        })
    }

    fn build(&mut self, at: Inst, parent: PatternOp, build: &RuleReplacement, env: &RuleBindings) -> Value {
        match build {
            RuleReplacement::Value(i) => env.values[*i].expect("the parser checks that names are bound"),
            RuleReplacement::Const(expr) => {
                let value = env.eval(expr) as i64;
                let narrow = env.width(parent.width()) == Width::W32;
                self.constant(at, if narrow { i64::from(value as i32) } else { value })
            }
            RuleReplacement::Truth(truth) => self.constant(at, i64::from(*truth)),
            RuleReplacement::Not(inner) => self.build(at, parent, inner, env),
            RuleReplacement::Node(head, args) => {
                let args: SmallVec<[Value; 3]> = args.iter().map(|a| self.build(at, *head, a, env)).collect();
                let op = op_of(*head, env);
                let ty = self.infer(&op, &args);
                self.insert(at, op, &args, ty)
            }
        }
    }

    /// Makes an instruction just before `at`.
    fn insert(&mut self, at: Inst, op: Op, args: &[Value], ty: Type) -> Value {
        let inst = self.func.make_inst(op, args.iter().copied(), [], ty);
        self.func.insts[inst].loc = self.func.insts[at].loc;
        args.iter().for_each(|&v| self.uses[v] += 1);
        self.out.push(inst);
        self.func.result(inst).expect("rules build operations with results")
    }

    fn constant(&mut self, at: Inst, value: i64) -> Value {
        self.insert(at, Op::Const { value }, &[], Type::I64)
    }

    fn become_const(&mut self, inst: Inst, value: u64) {
        self.set_args(inst, &[]);
        self.func.insts[inst].op = Op::Const { value: value as i64 };
        if let Some(result) = self.func.result(inst) {
            let ty = self.func.types[result];
            let holds = ty.int_bits().is_some_and(|bits| bits == 64 || value >> bits == 0);
            self.func.types[result] = if holds { ty } else { Type::I64 };
        }
    }

    fn set_args(&mut self, inst: Inst, args: &[Value]) {
        for &arg in &self.func.insts[inst].args {
            self.uses[arg] = self.uses[arg].saturating_sub(1);
        }
        args.iter().for_each(|&v| self.uses[v] += 1);
        self.func.insts[inst].args = SmallVec::from_slice(args);
    }

    /// The type of an operation's result, from the operation alone.
    fn infer(&self, op: &Op, args: &[Value]) -> Type {
        let constant = args.get(1).and_then(|&v| self.func.as_const(v)).map(|c| c as u64);
        match (op, constant) {
            _ if !verifier_knows_width(self.cx.target().domain().knowledge, op, constant.is_some()) => {
                Type::I64
            }
            (Op::Alu { op: AluOp::And, .. }, Some(c)) if c >> 32 == 0 => {
                Type::int(c.checked_ilog2().map_or(1, |n| n + 1))
            }
            (Op::Alu { width: Width::W32, .. } | Op::Neg { width: Width::W32 } | Op::Zext {}, _) => Type::I32,
            (Op::Alu { op: AluOp::Rsh, .. }, Some(k)) if k < 64 => Type::int(64 - k as u32),
            (Op::Sext { width: Width::W32, .. }, _) => Type::I32,
            (Op::Swap { bits, .. }, _) => Type::int(u32::from(*bits)),
            (Op::Cmp { .. }, _) => Type::I1,
            (Op::Alu { op: AluOp::Add | AluOp::Sub, .. }, Some(_)) => match self.func.types[args[0]] {
                ty if ty.is_int() => Type::I64,
                ty => ty,
            },
            _ => Type::I64,
        }
    }
}

fn op_of(head: PatternOp, env: &RuleBindings) -> Op {
    head.op(|w| env.width(w), |c| env.cond(c))
}

/// The more telling of two types that hold the same value.
fn narrower(old: Type, new: Type) -> Type {
    match (old.int_bits(), new.int_bits()) {
        (Some(a), Some(b)) if b < a => new,
        (None, Some(b)) if b < 64 && old == Type::Any => new,
        _ => old,
    }
}

/// Returns true if a pointer of this provenance keeps its meaning when constants are added in other places.
fn is_plain_pointer(ty: Type) -> bool {
    matches!(ty, Type::Ptr(p) if !matches!(p, Prov::MapValueOrNull(_) | Prov::PacketEnd | Prov::Map(_) | Prov::Func))
}

#[cfg(test)]
mod tests;

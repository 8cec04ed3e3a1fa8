//! Algebraic simplification: constant folding, one form for equal things, and the rules under `rules/`.
//!
//! Blocks are visited in reverse postorder, so that operands are simple before their users. A rewrite changes the
//! instruction in place (its value keeps its number and its users) or replaces its value by one that exists.

mod address;
mod divide;
mod facts;
mod func;
mod index;
mod matcher;
mod parse;
mod rule;
mod set;
mod store;
mod worth;

use cranelift_entity::SecondaryMap;
use millstream_ir::{AluOp, Block, Cfg, Function, Inst, Op, Prov, Type, Value, Width};
use millstream_isa::absint::Abstract;
use smallvec::SmallVec;

use crate::fold::eval_op;
use crate::manager::{Ctx, FuncPass, Pass};
use crate::rewrite::{Subst, fits, make_jump, negated, swapped};
use crate::widths::knows_width;
use facts::Facts;
use matcher::{Bindings, View};

pub use func::Func;
pub use millstream_bpf::store::StoreError;
pub use parse::{parse, parse_rule};
pub use rule::{Build, CondPat, Expr, Head, NAMES, Pattern, Rule, Test, WidthPat};
pub use set::RuleSet;
pub use store::{Entry, Origin, Store};

const NAME: &str = "simplify";

/// Rewrites of one instruction in one visit: rules shrink or order, so this is never reached in practice.
const MOST_STEPS: usize = 16;

/// The passes of this module.
pub(crate) const PASSES: &[Pass] = &[Pass::Func(&Simplify), Pass::Func(&divide::Divide)];

/// Algebraic simplification.
pub(crate) struct Simplify;

impl FuncPass for Simplify {
    fn name(&self) -> &'static str {
        NAME
    }

    fn describe(&self) -> &'static str {
        "fold constants and apply the algebraic rules"
    }

    fn run(&self, func: &mut Function, cx: &mut Ctx<'_>) -> bool {
        let uses = func.use_counts();
        let order = Cfg::new(func).rpo;
        let rules = cx.session.rules.clone().unwrap_or_else(RuleSet::shipped);
        let verifiers = cx.target().kernels.knowledge().map(|k| Facts::new(Abstract::new(k))).collect();
        let mut state = Simplifier {
            func,
            cx,
            rules: &rules,
            subst: Subst::default(),
            uses,
            facts: verifiers,
            out: Vec::new(),
            changed: false,
        };
        for block in order {
            state.block(block);
        }
        let Simplifier { func, subst, changed, .. } = state;
        subst.apply(func) | changed
    }
}

/// Outcome of one step on an instruction.
#[derive(PartialEq, Eq)]
enum Step {
    Done,
    Again,
    Gone,
}

struct Simplifier<'a, 'm> {
    func: &'a mut Function,
    cx: &'a mut Ctx<'m>,
    rules: &'a RuleSet,
    subst: Subst,
    uses: SecondaryMap<Value, u32>,
    // Facts of each verifier that will see the code, the one that knows least first.
    facts: SmallVec<[Facts; 3]>,
    // The instructions of the block at hand, as far as they are final.
    out: Vec<Inst>,
    changed: bool,
}

impl Simplifier<'_, '_> {
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
                Step::Done => return true,
                Step::Gone => {
                    self.changed = true;
                    return false;
                }
                Step::Again => self.changed = true,
            }
        }
        true
    }

    fn step(&mut self, inst: Inst) -> Step {
        if self.fold(inst) || self.normalize(inst) || self.fold_address(inst) {
            return Step::Again;
        }
        for entry in self.rules.index.candidates(self.func, &self.subst, inst) {
            let rule = &self.rules.rules()[usize::from(entry.rule)];
            let Some(env) = self.view().apply(rule, entry, inst) else { continue };
            // The rules that are shipped were looked through for the domain of the newest verifiers.
            let suits = match rule.learnt {
                true => self.worthwhile(inst, rule, &env),
                false => !self.cx.target().faces_older_verifiers() || self.hides_nothing(inst, rule, &env),
            };
            if !suits {
                continue;
            }
            match self.rewrite(inst, &rule.build, &env, entry.opposite) {
                Step::Done => {}
                step => {
                    self.cx.session.count(usize::from(entry.rule));
                    return step;
                }
            }
        }
        Step::Done
    }

    fn view(&mut self) -> View<'_> {
        View {
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

    fn rewrite(&mut self, inst: Inst, build: &Build, env: &Bindings, opposite: bool) -> Step {
        match build {
            // The opposite of a value that happens to be a truth value is no operation.
            Build::Value(_) if opposite => Step::Done,
            Build::Const(expr) if opposite => self.decide(inst, env.eval(expr) == 0),
            Build::Value(i) => self.rewrite_to_value(inst, env.values[*i]),
            Build::Const(expr) => {
                if self.func.result(inst).is_none() || !self.cx.fuel(NAME) {
                    return Step::Done;
                }
                let value = env.eval(expr);
                self.become_const(inst, value);
                Step::Again
            }
            Build::Truth(truth) => self.decide(inst, *truth != opposite),
            Build::Node(head, args) => self.rewrite_to_node(inst, *head, args, env, opposite),
            Build::Not(inner) => match &**inner {
                Build::Node(head, args) => self.rewrite_to_node(inst, *head, args, env, !opposite),
                _ => Step::Done,
            },
        }
    }

    fn rewrite_to_value(&mut self, inst: Inst, to: Option<Value>) -> Step {
        let (Some(from), Some(to)) = (self.func.result(inst), to) else { return Step::Done };
        if !fits(self.func.types[to], self.func.types[from]) || !self.cx.fuel(NAME) {
            return Step::Done;
        }
        self.set_args(inst, &[]);
        self.uses[to] += self.uses[from];
        self.subst.insert(from, to);
        Step::Gone
    }

    /// Puts a known truth value in place of a comparison.
    fn decide(&mut self, inst: Inst, truth: bool) -> Step {
        if !self.cx.fuel(NAME) {
            return Step::Done;
        }
        if self.func.result(inst).is_some() {
            self.become_const(inst, u64::from(truth));
        } else {
            let target = self.func.insts[inst].targets[usize::from(!truth)].clone();
            self.set_args(inst, &[]);
            make_jump(self.func, inst, target);
        }
        Step::Again
    }

    fn rewrite_to_node(&mut self, inst: Inst, head: Head, args: &[Build], env: &Bindings, not: bool) -> Step {
        let Some((op, exchange)) = self.root_op(inst, head, env, not) else { return Step::Done };
        if !self.affordable(head, args, env) || !self.cx.fuel(NAME) {
            return Step::Done;
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
        Step::Again
    }

    /// The operation that replaces the one at `inst`, and whether a branch must exchange its sides.
    fn root_op(&self, inst: Inst, head: Head, env: &Bindings, not: bool) -> Option<(Op, bool)> {
        let Head::Cmp(cond, width) = head else {
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
    fn affordable(&self, head: Head, args: &[Build], env: &Bindings) -> bool {
        let width = env.width(head.width());
        args.iter().all(|arg| match arg {
            Build::Const(expr) => {
                width == Width::W32 || self.cx.target().const_cost(env.eval(expr) as i64) == 0
            }
            Build::Node(head, args) => self.affordable(*head, args, env),
            _ => true,
        })
    }

    fn build(&mut self, at: Inst, parent: Head, build: &Build, env: &Bindings) -> Value {
        match build {
            Build::Value(i) => env.values[*i].expect("the parser checks that names are bound"),
            Build::Const(expr) => {
                let value = env.eval(expr) as i64;
                let narrow = env.width(parent.width()) == Width::W32;
                self.constant(at, if narrow { i64::from(value as i32) } else { value })
            }
            Build::Truth(truth) => self.constant(at, i64::from(*truth)),
            Build::Not(inner) => self.build(at, parent, inner, env),
            Build::Node(head, args) => {
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
            _ if !knows_width(self.cx.target().domain().knowledge, op, constant.is_some()) => Type::I64,
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

fn op_of(head: Head, env: &Bindings) -> Op {
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

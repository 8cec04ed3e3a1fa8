//! Finds the places where a rule applies, and its bindings there.

use cranelift_entity::SecondaryMap;
use millstream_ir::{Cond, Function, Inst, Op, Type, Value, Width};
use millstream_isa::absint::Scalar;
use millstream_isa::semantics::ConcreteDomain;

use super::facts::VerifierFacts;
use super::index::RuleIndexEntry;
use super::rule::{CondPat, ConstExpr, NAMES, PatternOp, RewriteRule, RuleCondition, RulePattern, WidthPat};
use crate::rewrite::ValueSubst;
use crate::target::TargetInfo;

/// Values, constants, widths and conditions bound to the names of a rule.
#[derive(Clone, Copy, Default)]
pub(crate) struct RuleBindings {
    pub(crate) values: [Option<Value>; NAMES],
    pub(crate) consts: [Option<u64>; NAMES],
    pub(crate) widths: [Option<Width>; 2],
    pub(crate) cond: Option<Cond>,
    /// Cost of the instructions that go when the rule is applied: those that it matches and nobody else uses.
    pub(crate) freed: u32,
}

impl RuleBindings {
    /// The width that a pattern stands for; a rule binds all widths that it uses.
    pub(crate) fn width(&self, pat: WidthPat) -> Width {
        match pat {
            WidthPat::Fixed(width) => width,
            WidthPat::Var(i) => self.widths[i].unwrap_or(Width::W64),
        }
    }

    /// The condition that a pattern stands for.
    pub(crate) fn cond(&self, pat: CondPat) -> Cond {
        match pat {
            CondPat::Fixed(cond) => cond,
            CondPat::Bound => self.cond.unwrap_or(Cond::Eq),
        }
    }

    /// The value of an expression.
    pub(crate) fn eval(&self, expr: &ConstExpr) -> u64 {
        match expr {
            ConstExpr::Const(i) => self.consts[*i].unwrap_or(0),
            ConstExpr::Number(n) => *n as u64,
            ConstExpr::Apply(func, args) => {
                let args: smallvec::SmallVec<[u64; 4]> = args.iter().map(|a| self.eval(a)).collect();
                func.apply(&mut ConcreteDomain, &args)
            }
            ConstExpr::Bits(i) => u64::from(self.width(WidthPat::Var(*i)).bits()),
        }
    }

    fn bind_width(&mut self, pat: WidthPat, width: Width) -> bool {
        match pat {
            WidthPat::Fixed(fixed) => fixed == width,
            WidthPat::Var(i) => *self.widths[i].get_or_insert(width) == width,
        }
    }

    fn bind_cond(&mut self, pat: CondPat, cond: Cond) -> bool {
        match pat {
            CondPat::Fixed(fixed) => fixed == cond,
            CondPat::Bound => *self.cond.get_or_insert(cond) == cond,
        }
    }

    fn bind_head(&mut self, head: PatternOp, op: &Op) -> bool {
        match (head, op) {
            (PatternOp::Alu(op, w), Op::Alu { op: found, width }) => {
                op == *found && self.bind_width(w, *width)
            }
            (PatternOp::Neg(w), Op::Neg { width }) => self.bind_width(w, *width),
            (PatternOp::Zext, Op::Zext {}) | (PatternOp::Select, Op::Select {}) => true,
            (PatternOp::Sext(n, w), Op::Sext { bits, width }) => n == *bits && self.bind_width(w, *width),
            (PatternOp::Swap(k, n), Op::Swap { kind, bits }) => k == *kind && n == *bits,
            (PatternOp::Cmp(c, w), Op::Cmp { cond, width } | Op::Branch { cond, width }) => {
                self.bind_cond(c, *cond) && self.bind_width(w, *width)
            }
            _ => false,
        }
    }
}

/// The low half of a constant where it is an operand of a 32-bit operation.
pub(crate) fn at_width(value: u64, width: Width) -> u64 {
    match width {
        Width::W32 => value & 0xffff_ffff,
        Width::W64 => value,
    }
}

/// The function as a rule sees it.
pub(crate) struct MatchContext<'a> {
    pub(crate) func: &'a Function,
    pub(crate) subst: &'a ValueSubst,
    pub(crate) uses: &'a SecondaryMap<Value, u32>,
    pub(crate) target: &'a TargetInfo,
    pub(crate) facts: &'a mut VerifierFacts,
}

impl MatchContext<'_> {
    /// Bindings of the rule at `inst`, if it applies there, read as the entry says.
    pub(crate) fn apply(
        &mut self,
        rule: &RewriteRule,
        entry: RuleIndexEntry,
        inst: Inst,
    ) -> Option<RuleBindings> {
        let RulePattern::Node { head, args, .. } = &rule.pattern else { return None };
        let data = &self.func.insts[inst];
        let mut env = RuleBindings::default();
        let same = match (head, &data.op) {
            (PatternOp::Cmp(CondPat::Fixed(_), w), Op::Cmp { width, .. } | Op::Branch { width, .. }) => {
                // The index has seen to the condition.
                env.bind_width(*w, *width)
            }
            (head, op) => env.bind_head(*head, op),
        };
        if !same {
            return None;
        }
        env.freed = self.target.op_cost(&data.op);
        let width = env.width(head.width());
        let env = match &data.args[..] {
            &[a, b] if entry.exchanged => self.args(args, &[b, a], width, true, env),
            operands => self.args(args, operands, width, true, env),
        }?;
        rule.tests.iter().all(|test| self.test(test, &env)).then_some(env)
    }

    /// Matches an operation; `free` says whether all that use it go.
    fn node(
        &self,
        head: PatternOp,
        args: &[RulePattern],
        inst: Inst,
        free: bool,
        mut env: RuleBindings,
    ) -> Option<RuleBindings> {
        let data = &self.func.insts[inst];
        if !env.bind_head(head, &data.op) {
            return None;
        }
        let width = env.width(head.width());
        if free {
            env.freed += self.target.op_cost(&data.op);
        }
        let operands = &data.args[..];
        let forward = self.args(args, operands, width, free, env);
        match operands {
            &[a, b] if forward.is_none() && head.commutes() => self.args(args, &[b, a], width, free, env),
            _ => forward,
        }
    }

    fn args(
        &self,
        patterns: &[RulePattern],
        operands: &[Value],
        width: Width,
        free: bool,
        env: RuleBindings,
    ) -> Option<RuleBindings> {
        let mut pairs = patterns.iter().zip(operands);
        pairs.try_fold(env, |env, (pattern, &value)| self.value(pattern, value, width, free, env))
    }

    fn value(
        &self,
        pattern: &RulePattern,
        value: Value,
        width: Width,
        free: bool,
        mut env: RuleBindings,
    ) -> Option<RuleBindings> {
        let value = self.subst.resolve(value);
        match pattern {
            RulePattern::Value(i) => (*env.values[*i].get_or_insert(value) == value).then_some(env),
            RulePattern::Const(i) => {
                let found = at_width(self.func.as_const(value)? as u64, width);
                (*env.consts[*i].get_or_insert(found) == found).then_some(env)
            }
            RulePattern::Number(n) => {
                let found = at_width(self.func.as_const(value)? as u64, width);
                (found == at_width(*n as u64, width)).then_some(env)
            }
            RulePattern::Node { head, once, args } => {
                if *once && self.uses[value] > 1 {
                    return None;
                }
                let free = free && self.uses[value] <= 1;
                self.node(*head, args, self.func.def_inst(value)?, free, env)
            }
        }
    }

    fn test(&mut self, test: &RuleCondition, env: &RuleBindings) -> bool {
        let ty = |i: usize| env.values[i].map_or(Type::Any, |v| self.func.types[v]);
        match test {
            RuleCondition::Bits(i, bits) => ty(*i).int_bits().is_some_and(|n| u64::from(n) <= env.eval(bits)),
            RuleCondition::Int(i) => ty(*i).is_int(),
            RuleCondition::Zeros(i, mask) => {
                self.fact(*i, env).is_some_and(|s| s.bits().max() & env.eval(mask) == 0)
            }
            RuleCondition::Ones(i, mask) => {
                let mask = env.eval(mask);
                self.fact(*i, env).is_some_and(|s| s.bits().value() & mask == mask)
            }
            RuleCondition::AtMost(i, most) => {
                self.fact(*i, env).is_some_and(|s| s.unsigned().1 <= env.eval(most))
            }
            RuleCondition::AtLeast(i, least) => {
                self.fact(*i, env).is_some_and(|s| s.unsigned().0 >= env.eval(least))
            }
            RuleCondition::Disjoint(i, k) => match (self.fact(*i, env), self.fact(*k, env)) {
                (Some(a), Some(b)) => a.bits().max() & b.bits().max() == 0,
                _ => false,
            },
            RuleCondition::NoWrap(i, k) => match (self.fact(*i, env), self.fact(*k, env)) {
                (Some(a), Some(b)) => a.unsigned().1.checked_add(b.unsigned().1).is_some(),
                _ => false,
            },
            RuleCondition::Holds(expr) => env.eval(expr) != 0,
            RuleCondition::V4 => self.target.has_v4(),
            RuleCondition::Jmp32 => self.target.has_jmp32(),
        }
    }

    /// Facts about a bound integer.
    fn fact(&mut self, i: usize, env: &RuleBindings) -> Option<Scalar> {
        let value = env.values[i]?;
        self.func.types[value].is_int().then(|| self.facts.of(self.func, self.subst, value))
    }
}

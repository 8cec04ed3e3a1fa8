//! Finds the places where a rule applies, and its bindings there.

use cranelift_entity::SecondaryMap;
use millstream_ir::{Cond, Function, Inst, Op, Type, Value, Width};
use millstream_isa::absint::Scalar;
use millstream_isa::semantics::Concrete;

use super::facts::Facts;
use super::index::Entry;
use super::rule::{CondPat, Expr, Head, NAMES, Pattern, Rule, Test, WidthPat};
use crate::rewrite::Subst;
use crate::target::Target;

/// Values, constants, widths and conditions bound to the names of a rule.
#[derive(Clone, Copy, Default)]
pub(crate) struct Bindings {
    pub(crate) values: [Option<Value>; NAMES],
    pub(crate) consts: [Option<u64>; NAMES],
    pub(crate) widths: [Option<Width>; 2],
    pub(crate) cond: Option<Cond>,
    /// Cost of the instructions that go when the rule is applied: those that it matches and nobody else uses.
    pub(crate) freed: u32,
}

impl Bindings {
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
    pub(crate) fn eval(&self, expr: &Expr) -> u64 {
        match expr {
            Expr::Const(i) => self.consts[*i].unwrap_or(0),
            Expr::Number(n) => *n as u64,
            Expr::Apply(func, args) => {
                let args: smallvec::SmallVec<[u64; 4]> = args.iter().map(|a| self.eval(a)).collect();
                func.apply(&mut Concrete, &args)
            }
            Expr::Bits(i) => u64::from(self.width(WidthPat::Var(*i)).bits()),
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

    fn bind_head(&mut self, head: Head, op: &Op) -> bool {
        match (head, op) {
            (Head::Alu(op, w), Op::Alu { op: found, width }) => op == *found && self.bind_width(w, *width),
            (Head::Neg(w), Op::Neg { width }) => self.bind_width(w, *width),
            (Head::Zext, Op::Zext {}) | (Head::Select, Op::Select {}) => true,
            (Head::Sext(n, w), Op::Sext { bits, width }) => n == *bits && self.bind_width(w, *width),
            (Head::Swap(k, n), Op::Swap { kind, bits }) => k == *kind && n == *bits,
            (Head::Cmp(c, w), Op::Cmp { cond, width } | Op::Branch { cond, width }) => {
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
pub(crate) struct View<'a> {
    pub(crate) func: &'a Function,
    pub(crate) subst: &'a Subst,
    pub(crate) uses: &'a SecondaryMap<Value, u32>,
    pub(crate) target: &'a Target,
    pub(crate) facts: &'a mut Facts,
}

impl View<'_> {
    /// Bindings of the rule at `inst`, if it applies there, read as the entry says.
    pub(crate) fn apply(&mut self, rule: &Rule, entry: Entry, inst: Inst) -> Option<Bindings> {
        let Pattern::Node { head, args, .. } = &rule.pattern else { return None };
        let data = &self.func.insts[inst];
        let mut env = Bindings::default();
        let same = match (head, &data.op) {
            (Head::Cmp(CondPat::Fixed(_), w), Op::Cmp { width, .. } | Op::Branch { width, .. }) => {
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
        head: Head,
        args: &[Pattern],
        inst: Inst,
        free: bool,
        mut env: Bindings,
    ) -> Option<Bindings> {
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
        patterns: &[Pattern],
        operands: &[Value],
        width: Width,
        free: bool,
        env: Bindings,
    ) -> Option<Bindings> {
        let mut pairs = patterns.iter().zip(operands);
        pairs.try_fold(env, |env, (pattern, &value)| self.value(pattern, value, width, free, env))
    }

    fn value(
        &self,
        pattern: &Pattern,
        value: Value,
        width: Width,
        free: bool,
        mut env: Bindings,
    ) -> Option<Bindings> {
        let value = self.subst.resolve(value);
        match pattern {
            Pattern::Value(i) => (*env.values[*i].get_or_insert(value) == value).then_some(env),
            Pattern::Const(i) => {
                let found = at_width(self.func.as_const(value)? as u64, width);
                (*env.consts[*i].get_or_insert(found) == found).then_some(env)
            }
            Pattern::Number(n) => {
                let found = at_width(self.func.as_const(value)? as u64, width);
                (found == at_width(*n as u64, width)).then_some(env)
            }
            Pattern::Node { head, once, args } => {
                if *once && self.uses[value] > 1 {
                    return None;
                }
                let free = free && self.uses[value] <= 1;
                self.node(*head, args, self.func.def_inst(value)?, free, env)
            }
        }
    }

    fn test(&mut self, test: &Test, env: &Bindings) -> bool {
        let ty = |i: usize| env.values[i].map_or(Type::Any, |v| self.func.types[v]);
        match test {
            Test::Bits(i, bits) => ty(*i).int_bits().is_some_and(|n| u64::from(n) <= env.eval(bits)),
            Test::Int(i) => ty(*i).is_int(),
            Test::Zeros(i, mask) => self.fact(*i, env).is_some_and(|s| s.bits().max() & env.eval(mask) == 0),
            Test::Ones(i, mask) => {
                let mask = env.eval(mask);
                self.fact(*i, env).is_some_and(|s| s.bits().value() & mask == mask)
            }
            Test::AtMost(i, most) => self.fact(*i, env).is_some_and(|s| s.unsigned().1 <= env.eval(most)),
            Test::AtLeast(i, least) => self.fact(*i, env).is_some_and(|s| s.unsigned().0 >= env.eval(least)),
            Test::Disjoint(i, k) => match (self.fact(*i, env), self.fact(*k, env)) {
                (Some(a), Some(b)) => a.bits().max() & b.bits().max() == 0,
                _ => false,
            },
            Test::NoWrap(i, k) => match (self.fact(*i, env), self.fact(*k, env)) {
                (Some(a), Some(b)) => a.unsigned().1.checked_add(b.unsigned().1).is_some(),
                _ => false,
            },
            Test::Holds(expr) => env.eval(expr) != 0,
            Test::V4 => self.target.has_v4(),
            Test::Jmp32 => self.target.has_jmp32(),
        }
    }

    /// Facts about a bound integer.
    fn fact(&mut self, i: usize, env: &Bindings) -> Option<Scalar> {
        let value = env.values[i]?;
        self.func.types[value].is_int().then(|| self.facts.of(self.func, self.subst, value))
    }
}

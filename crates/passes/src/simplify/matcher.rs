//! Finds where a rule applies, and what it binds.

use cranelift_entity::SecondaryMap;
use millstream_ir::{Cond, Function, Inst, Op, Type, Value, Width};

use super::rule::{CondPat, Expr, Head, Pattern, Rule, Test, WidthPat};
use crate::rewrite::Subst;
use crate::target::Target;

/// Most values, and most constants, that a rule binds.
const NAMES: usize = 4;

/// What the names of a rule stand for.
#[derive(Clone, Copy, Default)]
pub(crate) struct Bindings {
    pub(crate) values: [Option<Value>; NAMES],
    pub(crate) consts: [Option<u64>; NAMES],
    pub(crate) widths: [Option<Width>; 2],
    pub(crate) cond: Option<Cond>,
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
                func.apply(&args)
            }
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
}

impl View<'_> {
    /// What the rule binds at `inst`, if it applies there.
    pub(crate) fn apply(&self, rule: &Rule, inst: Inst) -> Option<Bindings> {
        let Pattern::Node { head, args, .. } = &rule.pattern else { return None };
        let env = self.node(*head, args, inst, Bindings::default())?;
        rule.tests.iter().all(|test| self.test(test, &env)).then_some(env)
    }

    fn node(&self, head: Head, args: &[Pattern], inst: Inst, mut env: Bindings) -> Option<Bindings> {
        let data = &self.func.insts[inst];
        let same = match (head, &data.op) {
            (Head::Alu(op, w), Op::Alu { op: found, width }) => op == *found && env.bind_width(w, *width),
            (Head::Neg(w), Op::Neg { width }) => env.bind_width(w, *width),
            (Head::Zext, Op::Zext {}) | (Head::Select, Op::Select {}) => true,
            (Head::Sext(n, w), Op::Sext { bits, width }) => n == *bits && env.bind_width(w, *width),
            (Head::Swap(k, n), Op::Swap { kind, bits }) => k == *kind && n == *bits,
            (Head::Cmp(c, w), Op::Cmp { cond, width } | Op::Branch { cond, width }) => {
                env.bind_cond(c, *cond) && env.bind_width(w, *width)
            }
            _ => false,
        };
        if !same {
            return None;
        }
        let width = env.width(head.width());
        let operands = &data.args[..];
        let forward = self.args(args, operands, width, env);
        match operands {
            &[a, b] if forward.is_none() && head.commutes() => self.args(args, &[b, a], width, env),
            _ => forward,
        }
    }

    fn args(
        &self,
        patterns: &[Pattern],
        operands: &[Value],
        width: Width,
        env: Bindings,
    ) -> Option<Bindings> {
        let mut pairs = patterns.iter().zip(operands);
        pairs.try_fold(env, |env, (pattern, &value)| self.value(pattern, value, width, env))
    }

    fn value(&self, pattern: &Pattern, value: Value, width: Width, mut env: Bindings) -> Option<Bindings> {
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
                self.node(*head, args, self.func.def_inst(value)?, env)
            }
        }
    }

    fn test(&self, test: &Test, env: &Bindings) -> bool {
        let ty = |i: usize| env.values[i].map_or(Type::Any, |v| self.func.types[v]);
        match test {
            Test::Bits(i, bits) => ty(*i).int_bits().is_some_and(|n| u64::from(n) <= env.eval(bits)),
            Test::Int(i) => ty(*i).is_int(),
            Test::Holds(expr) => env.eval(expr) != 0,
            Test::V4 => self.target.has_v4(),
            Test::Jmp32 => self.target.has_jmp32(),
        }
    }
}

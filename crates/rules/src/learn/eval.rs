//! Both sides of a rule on plain integers, by the one description of semantics.

use millstream_ir::{Cond, Width};
use millstream_isa::semantics::{Concrete, eval};
use millstream_passes::rules::{Build, CondPat, Expr, Head, NAMES, Pattern, Test, WidthPat};

/// Values, constants and the width that `.w` stands for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Env {
    pub(crate) values: [u64; NAMES],
    pub(crate) consts: [u64; NAMES],
    pub(crate) width: Width,
}

impl Env {
    /// The same with other values.
    pub(crate) fn with(mut self, values: &[u64; NAMES]) -> Env {
        self.values = *values;
        self
    }

    pub(crate) fn width(&self, pat: WidthPat) -> Width {
        match pat {
            WidthPat::Fixed(width) => width,
            WidthPat::Var(_) => self.width,
        }
    }

    pub(crate) fn expr(&self, expr: &Expr) -> u64 {
        match expr {
            Expr::Const(i) => self.consts[*i],
            Expr::Number(n) => *n as u64,
            Expr::Bits(_) => u64::from(self.width.bits()),
            Expr::Apply(func, args) => match args.as_slice() {
                [a] => func.apply(&mut Concrete, &[self.expr(a)]),
                [a, b] => func.apply(&mut Concrete, &[self.expr(a), self.expr(b)]),
                _ => 0,
            },
        }
    }

    pub(crate) fn pattern(&self, pattern: &Pattern) -> u64 {
        match pattern {
            Pattern::Value(i) => self.values[*i],
            Pattern::Const(i) => self.consts[*i],
            Pattern::Number(n) => *n as u64,
            Pattern::Node { head, args, .. } => {
                let mut words = [0; 3];
                for (word, arg) in words.iter_mut().zip(args) {
                    *word = self.pattern(arg);
                }
                self.node(*head, words)
            }
        }
    }

    pub(crate) fn build(&self, build: &Build) -> u64 {
        match build {
            Build::Value(i) => self.values[*i],
            Build::Const(expr) => self.expr(expr),
            Build::Truth(truth) => u64::from(*truth),
            Build::Not(inner) => 1 - self.build(inner),
            Build::Node(head, args) => {
                let mut words = [0; 3];
                for (word, arg) in words.iter_mut().zip(args) {
                    *word = self.build(arg);
                }
                self.node(*head, words)
            }
        }
    }

    fn node(&self, head: Head, [a, b, c]: [u64; 3]) -> u64 {
        match head {
            Head::Alu(op, w) => eval::alu(op, self.width(w), a, b),
            Head::Neg(w) => eval::neg(self.width(w), a),
            Head::Zext => eval::mov(Width::W32, a),
            Head::Sext(bits, w) => eval::movsx(self.width(w), u32::from(bits), a),
            Head::Swap(kind, bits) => eval::swap(kind, u32::from(bits), a),
            Head::Cmp(CondPat::Fixed(cond), w) => u64::from(eval::cond(cond, self.width(w), a, b)),
            Head::Cmp(CondPat::Bound, w) => u64::from(eval::cond(Cond::Eq, self.width(w), a, b)),
            Head::Select => {
                if a != 0 {
                    b
                } else {
                    c
                }
            }
        }
    }

    /// Returns true if a test holds here; tests of the target always do.
    pub(crate) fn test(&self, test: &Test) -> bool {
        let v = &self.values;
        match test {
            Test::Int(_) | Test::V4 | Test::Jmp32 => true,
            Test::Bits(i, n) => {
                let n = self.expr(n);
                n >= 64 || v[*i] >> n == 0
            }
            Test::Zeros(i, m) => v[*i] & self.expr(m) == 0,
            Test::Ones(i, m) => v[*i] & self.expr(m) == self.expr(m),
            Test::AtMost(i, m) => v[*i] <= self.expr(m),
            Test::AtLeast(i, m) => v[*i] >= self.expr(m),
            Test::Disjoint(i, k) => v[*i] & v[*k] == 0,
            Test::NoWrap(i, k) => v[*i].checked_add(v[*k]).is_some(),
            Test::Holds(expr) => self.expr(expr) != 0,
        }
    }

    /// Changes values so that they pass a test of them.
    pub(crate) fn obey(&mut self, test: &Test) {
        match test {
            Test::Bits(i, n) => {
                let n = self.expr(n);
                self.values[*i] &= if n >= 64 { u64::MAX } else { (1 << n) - 1 };
            }
            Test::Zeros(i, m) => self.values[*i] &= !self.expr(m),
            Test::Ones(i, m) => self.values[*i] |= self.expr(m),
            Test::AtMost(i, m) => {
                let most = self.expr(m);
                self.values[*i] = most.checked_add(1).map_or(self.values[*i], |n| self.values[*i] % n);
            }
            Test::AtLeast(i, m) => self.values[*i] = self.values[*i].max(self.expr(m)),
            Test::Disjoint(i, k) => self.values[*k] &= !self.values[*i],
            _ => {}
        }
    }
}

//! Both sides of a rule on plain integers, by the one description of semantics.

use millstream_ir::{Cond, Width};
use millstream_isa::semantics::{ConcreteDomain, eval};
use millstream_passes::rules::{
    CondPat, ConstExpr, NAMES, PatternOp, RuleCondition, RulePattern, RuleReplacement, WidthPat,
};

/// Values, constants and the width that `.w` stands for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct RuleEnv {
    pub(crate) values: [u64; NAMES],
    pub(crate) consts: [u64; NAMES],
    pub(crate) width: Width,
}

impl RuleEnv {
    /// The same with other values.
    pub(crate) fn with(mut self, values: &[u64; NAMES]) -> RuleEnv {
        self.values = *values;
        self
    }

    pub(crate) fn width(&self, pat: WidthPat) -> Width {
        match pat {
            WidthPat::Fixed(width) => width,
            WidthPat::Var(_) => self.width,
        }
    }

    pub(crate) fn expr(&self, expr: &ConstExpr) -> u64 {
        match expr {
            ConstExpr::Const(i) => self.consts[*i],
            ConstExpr::Number(n) => *n as u64,
            ConstExpr::Bits(_) => u64::from(self.width.bits()),
            ConstExpr::Apply(func, args) => match args.as_slice() {
                [a] => func.apply(&mut ConcreteDomain, &[self.expr(a)]),
                [a, b] => func.apply(&mut ConcreteDomain, &[self.expr(a), self.expr(b)]),
                _ => 0,
            },
        }
    }

    pub(crate) fn pattern(&self, pattern: &RulePattern) -> u64 {
        match pattern {
            RulePattern::Value(i) => self.values[*i],
            RulePattern::Const(i) => self.consts[*i],
            RulePattern::Number(n) => *n as u64,
            RulePattern::Node { head, args, .. } => {
                let mut words = [0; 3];
                for (word, arg) in words.iter_mut().zip(args) {
                    *word = self.pattern(arg);
                }
                self.node(*head, words)
            }
        }
    }

    pub(crate) fn build(&self, build: &RuleReplacement) -> u64 {
        match build {
            RuleReplacement::Value(i) => self.values[*i],
            RuleReplacement::Const(expr) => self.expr(expr),
            RuleReplacement::Truth(truth) => u64::from(*truth),
            RuleReplacement::Not(inner) => 1 - self.build(inner),
            RuleReplacement::Node(head, args) => {
                let mut words = [0; 3];
                for (word, arg) in words.iter_mut().zip(args) {
                    *word = self.build(arg);
                }
                self.node(*head, words)
            }
        }
    }

    fn node(&self, head: PatternOp, [a, b, c]: [u64; 3]) -> u64 {
        match head {
            PatternOp::Alu(op, w) => eval::alu(op, self.width(w), a, b),
            PatternOp::Neg(w) => eval::neg(self.width(w), a),
            PatternOp::Zext => eval::mov(Width::W32, a),
            PatternOp::Sext(bits, w) => eval::movsx(self.width(w), u32::from(bits), a),
            PatternOp::Swap(kind, bits) => eval::swap(kind, u32::from(bits), a),
            PatternOp::Cmp(CondPat::Fixed(cond), w) => u64::from(eval::cond(cond, self.width(w), a, b)),
            PatternOp::Cmp(CondPat::Bound, w) => u64::from(eval::cond(Cond::Eq, self.width(w), a, b)),
            PatternOp::Select => {
                if a != 0 {
                    b
                } else {
                    c
                }
            }
        }
    }

    /// Returns true if a test holds here; tests of the target always do.
    pub(crate) fn test(&self, test: &RuleCondition) -> bool {
        let v = &self.values;
        match test {
            RuleCondition::Int(_) | RuleCondition::V4 | RuleCondition::Jmp32 => true,
            RuleCondition::Bits(i, n) => {
                let n = self.expr(n);
                n >= 64 || v[*i] >> n == 0
            }
            RuleCondition::Zeros(i, m) => v[*i] & self.expr(m) == 0,
            RuleCondition::Ones(i, m) => v[*i] & self.expr(m) == self.expr(m),
            RuleCondition::AtMost(i, m) => v[*i] <= self.expr(m),
            RuleCondition::AtLeast(i, m) => v[*i] >= self.expr(m),
            RuleCondition::Disjoint(i, k) => v[*i] & v[*k] == 0,
            RuleCondition::NoWrap(i, k) => v[*i].checked_add(v[*k]).is_some(),
            RuleCondition::Holds(expr) => self.expr(expr) != 0,
        }
    }

    /// Changes values so that they pass a test of them.
    pub(crate) fn satisfy(&mut self, test: &RuleCondition) {
        match test {
            RuleCondition::Bits(i, n) => {
                let n = self.expr(n);
                self.values[*i] &= if n >= 64 { u64::MAX } else { (1 << n) - 1 };
            }
            RuleCondition::Zeros(i, m) => self.values[*i] &= !self.expr(m),
            RuleCondition::Ones(i, m) => self.values[*i] |= self.expr(m),
            RuleCondition::AtMost(i, m) => {
                let most = self.expr(m);
                self.values[*i] = most.checked_add(1).map_or(self.values[*i], |n| self.values[*i] % n);
            }
            RuleCondition::AtLeast(i, m) => self.values[*i] = self.values[*i].max(self.expr(m)),
            RuleCondition::Disjoint(i, k) => self.values[*k] &= !self.values[*i],
            _ => {}
        }
    }
}

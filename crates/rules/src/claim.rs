//! A rule as a claim: both sides compute the same, whatever the values, and whatever the constants that pass
//! its tests.
//!
//! A rule that names widths or conditions is one claim for each of them. Constants are variables here, tests
//! are assumptions, and the functions of constants are those that are computed when a rule is applied
//! ([`Func::apply`](millstream_passes::rules::Func::apply)), at terms.

use millstream_ir::{Cond, Width};
use millstream_isa::semantics::{self, Domain, Pred, Prim};
use millstream_passes::rules::{
    CondPat, ConstExpr, Func, NAMES, PatternOp, RewriteRule, RuleCondition, RulePattern, RuleReplacement,
    WidthPat,
};
use millstream_prove::{BitVecTerm, BoolTerm, SmtQuery};

/// Names of values in a question.
const VALUES: [&str; NAMES] = ["x", "y", "z", "u"];
/// Names of constants in a question.
const CONSTS: [&str; NAMES] = ["a", "b", "c", "d"];

/// Widths and condition that a rule is read at.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RuleInstance {
    /// The widths that `.w` and `.v` stand for.
    pub widths: [Width; 2],
    /// The condition that `?c` stands for.
    pub cond: Cond,
}

impl RuleInstance {
    /// All instances of a rule; a width or condition that it does not name has only one value.
    pub fn all(rule: &RewriteRule) -> Vec<RuleInstance> {
        let mut named = RuleNames::default();
        named.pattern(&rule.pattern);
        let both = [Width::W64, Width::W32];
        let widths = |named: bool| if named { &both[..] } else { &both[..1] };
        let conds = if named.cond { &Cond::ALL[..] } else { &[Cond::Eq][..] };
        let mut out = Vec::new();
        for &w in widths(named.widths[0]) {
            for &v in widths(named.widths[1]) {
                out.extend(conds.iter().map(|&cond| RuleInstance { widths: [w, v], cond }));
            }
        }
        out
    }

    fn width(self, pat: WidthPat) -> Width {
        match pat {
            WidthPat::Fixed(width) => width,
            WidthPat::Var(i) => self.widths[i],
        }
    }
}

impl std::fmt::Display for RuleInstance {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let [w, v] = self.widths.map(Width::bits);
        write!(f, "w{w}-v{v}-{:?}", self.cond)
    }
}

/// Names that a rule uses.
#[derive(Default)]
struct RuleNames {
    widths: [bool; 2],
    cond: bool,
    values: usize,
    consts: usize,
}

impl RuleNames {
    fn pattern(&mut self, pattern: &RulePattern) {
        match pattern {
            RulePattern::Value(i) => self.values = self.values.max(i + 1),
            RulePattern::Const(i) => self.consts = self.consts.max(i + 1),
            RulePattern::Number(_) => {}
            RulePattern::Node { head, args, .. } => {
                match head {
                    PatternOp::Alu(_, w)
                    | PatternOp::Neg(w)
                    | PatternOp::Sext(_, w)
                    | PatternOp::Cmp(_, w) => self.width(*w),
                    PatternOp::Zext | PatternOp::Swap(..) | PatternOp::Select => {}
                }
                self.cond |= matches!(head, PatternOp::Cmp(CondPat::Bound, _));
                args.iter().for_each(|arg| self.pattern(arg));
            }
        }
    }

    fn width(&mut self, pat: WidthPat) {
        if let WidthPat::Var(i) = pat {
            self.widths[i] = true;
        }
    }
}

/// Constants that are given, by number.
pub type FixedConstants = [Option<u64>; NAMES];

/// Puts the claim of a rule at an instance into a query that has begun anew. It holds for all values if the
/// rule is right, where some constants are given for these.
pub fn claim(q: &mut SmtQuery, rule: &RewriteRule, at: RuleInstance, given: &FixedConstants) -> BoolTerm {
    let mut sides = sides(q, rule, at, given);
    let (left, right) = (sides.pattern(&rule.pattern), sides.build(&rule.build));
    q.equal(left, right)
}

/// Puts the claim into a query that no values and constants pass the tests of a rule.
pub fn unsatisfiable_tests(
    q: &mut SmtQuery,
    rule: &RewriteRule,
    at: RuleInstance,
    given: &FixedConstants,
) -> BoolTerm {
    sides(q, rule, at, given);
    let zero = q.constant(64, 0);
    q.compare(Pred::Ult, 64, &zero, &zero)
}

/// Variables and assumptions of a rule.
fn sides<'q>(
    q: &'q mut SmtQuery,
    rule: &RewriteRule,
    at: RuleInstance,
    given: &FixedConstants,
) -> RuleTermBuilder<'q> {
    let mut named = RuleNames::default();
    named.pattern(&rule.pattern);
    let values = VALUES[..named.values].iter().map(|name| q.variable(name, 64)).collect();
    let constant = |(name, given): (&&str, &Option<u64>)| match given {
        Some(value) => q.constant(64, *value),
        None => q.variable(name, 64),
    };
    let consts = CONSTS[..named.consts].iter().zip(given).map(constant).collect();
    let mut sides = RuleTermBuilder { q, at, values, consts };
    sides.types(&rule.pattern, WidthPat::Fixed(Width::W64));
    for test in &rule.tests {
        sides.test(test);
    }
    sides
}

struct RuleTermBuilder<'q> {
    q: &'q mut SmtQuery,
    at: RuleInstance,
    values: Vec<BitVecTerm>,
    consts: Vec<BitVecTerm>,
}

impl RuleTermBuilder<'_> {
    /// Assumptions that follow from the place of a value or constant: a choice is made by 0 or 1, and a
    /// constant operand of a 32-bit operation is seen as its low half.
    fn types(&mut self, pattern: &RulePattern, width: WidthPat) {
        match pattern {
            RulePattern::Const(i) if self.at.width(width) == Width::W32 => {
                self.at_most(self.consts[*i], u64::from(u32::MAX));
            }
            RulePattern::Node { head, args, .. } => {
                if let (PatternOp::Select, Some(RulePattern::Value(i))) = (head, args.first()) {
                    self.at_most(self.values[*i], 1);
                }
                args.iter().for_each(|arg| self.types(arg, head.width()));
            }
            _ => {}
        }
    }

    fn at_most(&mut self, word: BitVecTerm, most: u64) {
        let most = self.q.constant(64, most);
        let holds = self.q.compare(Pred::Ule, 64, &word, &most);
        self.q.assume(holds);
    }

    fn test(&mut self, test: &RuleCondition) {
        let holds = match test {
            RuleCondition::Int(_) | RuleCondition::V4 | RuleCondition::Jmp32 => return,
            RuleCondition::Bits(i, bits) => {
                let bits = self.expr(bits);
                let most = Func::Low.apply(self.q, &[bits]);
                self.q.compare(Pred::Ule, 64, &self.values[*i], &most)
            }
            RuleCondition::Zeros(i, mask) => {
                let (mask, zero) = (self.expr(mask), self.q.constant(64, 0));
                self.masked(self.values[*i], mask, zero)
            }
            RuleCondition::Ones(i, mask) => {
                let mask = self.expr(mask);
                self.masked(self.values[*i], mask, mask)
            }
            RuleCondition::Disjoint(i, k) => {
                let zero = self.q.constant(64, 0);
                self.masked(self.values[*i], self.values[*k], zero)
            }
            RuleCondition::AtMost(i, most) => {
                let most = self.expr(most);
                self.q.compare(Pred::Ule, 64, &self.values[*i], &most)
            }
            RuleCondition::AtLeast(i, least) => {
                let least = self.expr(least);
                self.q.compare(Pred::Ule, 64, &least, &self.values[*i])
            }
            RuleCondition::NoWrap(i, k) => {
                let sum = self.q.prim(Prim::Add, 64, &self.values[*i], &self.values[*k]);
                self.q.compare(Pred::Ule, 64, &self.values[*i], &sum)
            }
            RuleCondition::Holds(expr) => {
                let (value, zero) = (self.expr(expr), self.q.constant(64, 0));
                let fails = self.q.equal(value, zero);
                self.q.not(&fails)
            }
        };
        self.q.assume(holds);
    }

    fn masked(&mut self, word: BitVecTerm, mask: BitVecTerm, result: BitVecTerm) -> BoolTerm {
        let masked = self.q.prim(Prim::And, 64, &word, &mask);
        self.q.equal(masked, result)
    }

    fn expr(&mut self, expr: &ConstExpr) -> BitVecTerm {
        match expr {
            ConstExpr::Const(i) => self.consts[*i],
            ConstExpr::Number(n) => self.q.constant(64, *n as u64),
            ConstExpr::Bits(i) => self.q.constant(64, u64::from(self.at.widths[*i].bits())),
            ConstExpr::Apply(func, args) => {
                let args: Vec<BitVecTerm> = args.iter().map(|arg| self.expr(arg)).collect();
                func.apply(self.q, &args)
            }
        }
    }

    fn pattern(&mut self, pattern: &RulePattern) -> BitVecTerm {
        match pattern {
            RulePattern::Value(i) => self.values[*i],
            RulePattern::Const(i) => self.consts[*i],
            RulePattern::Number(n) => self.q.constant(64, *n as u64),
            RulePattern::Node { head, args, .. } => {
                let args: Vec<BitVecTerm> = args.iter().map(|arg| self.pattern(arg)).collect();
                self.node(*head, &args)
            }
        }
    }

    fn build(&mut self, build: &RuleReplacement) -> BitVecTerm {
        match build {
            RuleReplacement::Value(i) => self.values[*i],
            RuleReplacement::Const(expr) => self.expr(expr),
            RuleReplacement::Truth(truth) => self.q.constant(64, u64::from(*truth)),
            RuleReplacement::Not(inner) => {
                let (inner, one) = (self.build(inner), self.q.constant(64, 1));
                self.q.prim(Prim::Xor, 64, &inner, &one)
            }
            RuleReplacement::Node(head, args) => {
                let args: Vec<BitVecTerm> = args.iter().map(|arg| self.build(arg)).collect();
                self.node(*head, &args)
            }
        }
    }

    /// Result of an operation, by the one description of semantics.
    fn node(&mut self, head: PatternOp, args: &[BitVecTerm]) -> BitVecTerm {
        let width = |pat| self.at.width(pat);
        match (head, args) {
            (PatternOp::Alu(op, w), [a, b]) => semantics::alu(self.q, op, width(w), a, b),
            (PatternOp::Neg(w), [a]) => semantics::neg(self.q, width(w), a),
            (PatternOp::Zext, [a]) => semantics::mov(self.q, Width::W32, a),
            (PatternOp::Sext(bits, w), [a]) => semantics::movsx(self.q, width(w), u32::from(bits), a),
            (PatternOp::Swap(kind, bits), [a]) => semantics::swap(self.q, kind, u32::from(bits), a),
            (PatternOp::Cmp(cond, w), [a, b]) => {
                let cond = match cond {
                    CondPat::Fixed(cond) => cond,
                    CondPat::Bound => self.at.cond,
                };
                let holds = semantics::cond(self.q, cond, width(w), a, b);
                let (one, zero) = (self.q.constant(64, 1), self.q.constant(64, 0));
                self.q.select(64, &holds, &one, &zero)
            }
            (PatternOp::Select, [t, a, b]) => {
                let zero = self.q.constant(64, 0);
                let no = self.q.equal(*t, zero);
                self.q.select(64, &no, b, a)
            }
            // The parser counts operands.
            _ => self.q.constant(64, 0),
        }
    }
}

//! The rule language: terms over IR operations, read from text.
//!
//! One rule a line, `;` starts a comment:
//!
//! ```text
//! (lshr.64 !(shl.64 x #k) #k) => (and.64 x {low (sub 64 k)})   if (ge k 33) (lt k 64)
//! ```
//!
//! On the left `x` binds a value, `#k` a constant, a number stands for itself, `!` in front of a term demands
//! that it has no other use; `.64` and `.32` are widths, `.w` and `.v` bind one, `?c` binds a condition. On
//! the right `{...}` is a constant computed at compile time, `(not ...)` the opposite condition, `true` and
//! `false` known ones. In a computed constant `w` and `v` are the numbers of bits of the widths bound. After
//! `if` stand tests of constants, of facts about values, and of the target.
//!
//! A rule whose root is a comparison also stands for the rules that follow from it: the same with the
//! operands of the root exchanged, and the opposite comparison with the opposite result.

use std::fmt;

use millstream_ir::{AluOp, Attr, Cond, Op, SwapKind, Width};

use super::func::Func;

/// Most values, and most constants, that a rule binds.
pub const NAMES: usize = 4;

/// A width that is given or bound.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum WidthPat {
    /// This one.
    Fixed(Width),
    /// The first or second that is bound.
    Var(usize),
}

/// A condition that is given or bound.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum CondPat {
    /// This one.
    Fixed(Cond),
    /// Any, the same wherever it stands.
    Bound,
}

/// The operation at a node.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum PatternOp {
    /// Two-operand arithmetic.
    Alu(AluOp, WidthPat),
    /// Negation.
    Neg(WidthPat),
    /// The low half, zero-extended.
    Zext,
    /// Sign extension of so many low bits.
    Sext(u8, WidthPat),
    /// A change of byte order of so many low bits.
    Swap(SwapKind, u8),
    /// A comparison.
    Cmp(CondPat, WidthPat),
    /// The second operand where the first is true, else the third.
    Select,
}

impl PatternOp {
    /// The width at which constants among its operands are read.
    pub fn width(self) -> WidthPat {
        match self {
            PatternOp::Alu(_, w) | PatternOp::Neg(w) | PatternOp::Cmp(_, w) => w,
            _ => WidthPat::Fixed(Width::W64),
        }
    }

    /// Number of operands.
    pub fn arity(self) -> usize {
        match self {
            PatternOp::Alu(..) | PatternOp::Cmp(..) => 2,
            PatternOp::Neg(_) | PatternOp::Zext | PatternOp::Sext(..) | PatternOp::Swap(..) => 1,
            PatternOp::Select => 3,
        }
    }

    /// Returns true if its two operands may be exchanged.
    pub fn commutes(self) -> bool {
        match self {
            PatternOp::Alu(op, _) => {
                matches!(op, AluOp::Add | AluOp::Mul | AluOp::And | AluOp::Or | AluOp::Xor)
            }
            PatternOp::Cmp(CondPat::Fixed(cond), _) => matches!(cond, Cond::Eq | Cond::Ne | Cond::Set),
            _ => false,
        }
    }

    /// The operation, by what its width and its condition stand for.
    pub fn op(self, width: impl Fn(WidthPat) -> Width, cond: impl Fn(CondPat) -> Cond) -> Op {
        match self {
            PatternOp::Alu(op, w) => Op::Alu { op, width: width(w) },
            PatternOp::Neg(w) => Op::Neg { width: width(w) },
            PatternOp::Zext => Op::Zext {},
            PatternOp::Sext(bits, w) => Op::Sext { bits, width: width(w) },
            PatternOp::Swap(kind, bits) => Op::Swap { kind, bits },
            PatternOp::Cmp(c, w) => Op::Cmp { cond: cond(c), width: width(w) },
            PatternOp::Select => Op::Select {},
        }
    }

    /// The widths that it names.
    pub(super) fn widths(self) -> Option<WidthPat> {
        match self {
            PatternOp::Alu(_, w) | PatternOp::Neg(w) | PatternOp::Cmp(_, w) | PatternOp::Sext(_, w) => {
                Some(w)
            }
            _ => None,
        }
    }
}

/// Pattern that a rule matches.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum RulePattern {
    /// The value of this number.
    Value(usize),
    /// The constant of this number.
    Const(usize),
    /// This constant.
    Number(i64),
    /// An operation.
    Node {
        /// Which.
        head: PatternOp,
        /// True if nobody else may use it.
        once: bool,
        /// Its operands.
        args: Vec<RulePattern>,
    },
}

/// A constant computed from bound ones.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum ConstExpr {
    /// The constant of this number.
    Const(usize),
    /// This constant.
    Number(i64),
    /// The number of bits of the width of this number.
    Bits(usize),
    /// A function of others.
    Apply(Func, Vec<ConstExpr>),
}

/// Replacement that a rule builds.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum RuleReplacement {
    /// The value of this number.
    Value(usize),
    /// A constant.
    Const(ConstExpr),
    /// An operation.
    Node(PatternOp, Vec<RuleReplacement>),
    /// The opposite of a comparison.
    Not(Box<RuleReplacement>),
    /// A known truth value.
    Truth(bool),
}

/// Further condition of a rule.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum RuleCondition {
    /// The value's type is an integer of at most so many bits.
    Bits(usize, ConstExpr),
    /// The value's type is an integer.
    Int(usize),
    /// These bits of the integer are known to be zero.
    Zeros(usize, ConstExpr),
    /// These bits of the integer are known to be one.
    Ones(usize, ConstExpr),
    /// The integer is known to be at most this, unsigned.
    AtMost(usize, ConstExpr),
    /// The integer is known to be at least this, unsigned.
    AtLeast(usize, ConstExpr),
    /// Two integers are known to have no bit in common.
    Disjoint(usize, usize),
    /// The sum of two integers is known not to wrap at 64 bits.
    NoWrap(usize, usize),
    /// The expression is not zero.
    Holds(ConstExpr),
    /// The target has `movsx` and unconditional byte swap.
    V4,
    /// The target has 32-bit compare-and-branch.
    Jmp32,
}

/// One rewrite. Names of values and constants are `x`, `y`, `z`, `u` and `a`, `b`, `c`, `d` when it is
/// printed.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct RewriteRule {
    /// Source of the rule, for messages.
    pub name: String,
    /// Pattern that it matches: a [`RulePattern::Node`].
    pub pattern: RulePattern,
    /// Replacement for the matched term.
    pub build: RuleReplacement,
    /// When.
    pub tests: Vec<RuleCondition>,
    /// True if it is one of a store, and so applied only where the instructions that go cost more than those
    /// that come, and the verifier knows as much of the new value as it did of the old one.
    pub learnt: bool,
}

/// Names of values when a rule is printed.
const VALUES: [&str; NAMES] = ["x", "y", "z", "u"];
/// Names of constants when a rule is printed.
const CONSTS: [&str; NAMES] = ["a", "b", "c", "d"];

impl RuleCondition {
    /// The value whose bits or size it speaks of, for tests of one value.
    pub fn of_value(&self) -> Option<usize> {
        match self {
            RuleCondition::Bits(i, _)
            | RuleCondition::Zeros(i, _)
            | RuleCondition::Ones(i, _)
            | RuleCondition::AtMost(i, _)
            | RuleCondition::AtLeast(i, _) => Some(*i),
            _ => None,
        }
    }
}

impl fmt::Display for WidthPat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            WidthPat::Fixed(Width::W64) => "64",
            WidthPat::Fixed(Width::W32) => "32",
            WidthPat::Var(0) => "w",
            WidthPat::Var(_) => "v",
        })
    }
}

impl fmt::Display for PatternOp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            PatternOp::Alu(op, w) => write!(f, "{}.{w}", op.print()),
            PatternOp::Neg(w) => write!(f, "neg.{w}"),
            PatternOp::Zext => f.write_str("zext"),
            PatternOp::Sext(bits, w) => write!(f, "sext{bits}.{w}"),
            PatternOp::Swap(SwapKind::ToBe, bits) => write!(f, "be{bits}"),
            PatternOp::Swap(SwapKind::ToLe, bits) => write!(f, "le{bits}"),
            PatternOp::Swap(SwapKind::Swap, bits) => write!(f, "bswap{bits}"),
            PatternOp::Cmp(CondPat::Fixed(cond), w) => write!(f, "{}.{w}", cond.print()),
            PatternOp::Cmp(CondPat::Bound, w) => write!(f, "?c.{w}"),
            PatternOp::Select => f.write_str("select"),
        }
    }
}

/// A number as rules have it: hexadecimal where that is more telling.
fn number(f: &mut fmt::Formatter<'_>, n: i64) -> fmt::Result {
    if (-64..=255).contains(&n) { write!(f, "{n}") } else { write!(f, "{n:#x}") }
}

impl fmt::Display for ConstExpr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ConstExpr::Const(i) => f.write_str(CONSTS[*i]),
            ConstExpr::Number(n) => number(f, *n),
            ConstExpr::Bits(i) => f.write_str(if *i == 0 { "w" } else { "v" }),
            ConstExpr::Apply(func, args) => {
                write!(f, "({}", func.name())?;
                args.iter().try_for_each(|a| write!(f, " {a}"))?;
                f.write_str(")")
            }
        }
    }
}

impl fmt::Display for RulePattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            RulePattern::Value(i) => f.write_str(VALUES[*i]),
            RulePattern::Const(i) => write!(f, "#{}", CONSTS[*i]),
            RulePattern::Number(n) => number(f, *n),
            RulePattern::Node { head, once, args } => {
                write!(f, "{}({head}", if *once { "!" } else { "" })?;
                args.iter().try_for_each(|a| write!(f, " {a}"))?;
                f.write_str(")")
            }
        }
    }
}

impl fmt::Display for RuleReplacement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            RuleReplacement::Value(i) => f.write_str(VALUES[*i]),
            RuleReplacement::Const(ConstExpr::Number(n)) => number(f, *n),
            RuleReplacement::Const(ConstExpr::Apply(func, args)) => {
                write!(f, "{{{}", func.name())?;
                args.iter().try_for_each(|a| write!(f, " {a}"))?;
                f.write_str("}")
            }
            RuleReplacement::Const(atom) => write!(f, "{{{atom}}}"),
            RuleReplacement::Node(head, args) => {
                write!(f, "({head}")?;
                args.iter().try_for_each(|a| write!(f, " {a}"))?;
                f.write_str(")")
            }
            RuleReplacement::Not(inner) => write!(f, "(not {inner})"),
            RuleReplacement::Truth(truth) => write!(f, "{truth}"),
        }
    }
}

impl fmt::Display for RuleCondition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            RuleCondition::Bits(x, e) => write!(f, "(bits {} {e})", VALUES[*x]),
            RuleCondition::Int(x) => write!(f, "(int {})", VALUES[*x]),
            RuleCondition::Zeros(x, e) => write!(f, "(zeros {} {e})", VALUES[*x]),
            RuleCondition::Ones(x, e) => write!(f, "(ones {} {e})", VALUES[*x]),
            RuleCondition::AtMost(x, e) => write!(f, "(atmost {} {e})", VALUES[*x]),
            RuleCondition::AtLeast(x, e) => write!(f, "(atleast {} {e})", VALUES[*x]),
            RuleCondition::Disjoint(x, y) => write!(f, "(disjoint {} {})", VALUES[*x], VALUES[*y]),
            RuleCondition::NoWrap(x, y) => write!(f, "(nowrap {} {})", VALUES[*x], VALUES[*y]),
            RuleCondition::Holds(e @ ConstExpr::Apply(..)) => write!(f, "{e}"),
            RuleCondition::Holds(atom) => write!(f, "({atom})"),
            RuleCondition::V4 => f.write_str("(v4)"),
            RuleCondition::Jmp32 => f.write_str("(jmp32)"),
        }
    }
}

impl fmt::Display for RewriteRule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} => {}", self.pattern, self.build)?;
        for (i, test) in self.tests.iter().enumerate() {
            write!(f, "{} {test}", if i == 0 { "   if" } else { "" })?;
        }
        Ok(())
    }
}

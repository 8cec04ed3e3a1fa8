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
pub enum Head {
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

impl Head {
    /// The width at which constants among its operands are read.
    pub fn width(self) -> WidthPat {
        match self {
            Head::Alu(_, w) | Head::Neg(w) | Head::Cmp(_, w) => w,
            _ => WidthPat::Fixed(Width::W64),
        }
    }

    /// Number of operands.
    pub fn arity(self) -> usize {
        match self {
            Head::Alu(..) | Head::Cmp(..) => 2,
            Head::Neg(_) | Head::Zext | Head::Sext(..) | Head::Swap(..) => 1,
            Head::Select => 3,
        }
    }

    /// Returns true if its two operands may be exchanged.
    pub fn commutes(self) -> bool {
        match self {
            Head::Alu(op, _) => {
                matches!(op, AluOp::Add | AluOp::Mul | AluOp::And | AluOp::Or | AluOp::Xor)
            }
            Head::Cmp(CondPat::Fixed(cond), _) => matches!(cond, Cond::Eq | Cond::Ne | Cond::Set),
            _ => false,
        }
    }

    /// The operation, by what its width and its condition stand for.
    pub fn op(self, width: impl Fn(WidthPat) -> Width, cond: impl Fn(CondPat) -> Cond) -> Op {
        match self {
            Head::Alu(op, w) => Op::Alu { op, width: width(w) },
            Head::Neg(w) => Op::Neg { width: width(w) },
            Head::Zext => Op::Zext {},
            Head::Sext(bits, w) => Op::Sext { bits, width: width(w) },
            Head::Swap(kind, bits) => Op::Swap { kind, bits },
            Head::Cmp(c, w) => Op::Cmp { cond: cond(c), width: width(w) },
            Head::Select => Op::Select {},
        }
    }

    /// The widths that it names.
    pub(super) fn widths(self) -> Option<WidthPat> {
        match self {
            Head::Alu(_, w) | Head::Neg(w) | Head::Cmp(_, w) | Head::Sext(_, w) => Some(w),
            _ => None,
        }
    }
}

/// Pattern that a rule matches.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum Pattern {
    /// The value of this number.
    Value(usize),
    /// The constant of this number.
    Const(usize),
    /// This constant.
    Number(i64),
    /// An operation.
    Node {
        /// Which.
        head: Head,
        /// True if nobody else may use it.
        once: bool,
        /// Its operands.
        args: Vec<Pattern>,
    },
}

/// A constant computed from bound ones.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Expr {
    /// The constant of this number.
    Const(usize),
    /// This constant.
    Number(i64),
    /// The number of bits of the width of this number.
    Bits(usize),
    /// A function of others.
    Apply(Func, Vec<Expr>),
}

/// Replacement that a rule builds.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum Build {
    /// The value of this number.
    Value(usize),
    /// A constant.
    Const(Expr),
    /// An operation.
    Node(Head, Vec<Build>),
    /// The opposite of a comparison.
    Not(Box<Build>),
    /// A known truth value.
    Truth(bool),
}

/// Further condition of a rule.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum Test {
    /// The value's type is an integer of at most so many bits.
    Bits(usize, Expr),
    /// The value's type is an integer.
    Int(usize),
    /// These bits of the integer are known to be zero.
    Zeros(usize, Expr),
    /// These bits of the integer are known to be one.
    Ones(usize, Expr),
    /// The integer is known to be at most this, unsigned.
    AtMost(usize, Expr),
    /// The integer is known to be at least this, unsigned.
    AtLeast(usize, Expr),
    /// Two integers are known to have no bit in common.
    Disjoint(usize, usize),
    /// The sum of two integers is known not to wrap at 64 bits.
    NoWrap(usize, usize),
    /// The expression is not zero.
    Holds(Expr),
    /// The target has `movsx` and unconditional byte swap.
    V4,
    /// The target has 32-bit compare-and-branch.
    Jmp32,
}

/// One rewrite. Names of values and constants are `x`, `y`, `z`, `u` and `a`, `b`, `c`, `d` when it is printed.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Rule {
    /// Source of the rule, for messages.
    pub name: String,
    /// Pattern that it matches: a [`Pattern::Node`].
    pub pattern: Pattern,
    /// Replacement for the matched term.
    pub build: Build,
    /// When.
    pub tests: Vec<Test>,
    /// True if it is one of a store, and so applied only where the instructions that go cost more than those
    /// that come, and the verifier knows as much of the new value as it did of the old one.
    pub learnt: bool,
}

/// Names of values when a rule is printed.
const VALUES: [&str; NAMES] = ["x", "y", "z", "u"];
/// Names of constants when a rule is printed.
const CONSTS: [&str; NAMES] = ["a", "b", "c", "d"];

impl Test {
    /// The value whose bits or size it speaks of, for tests of one value.
    pub fn of_value(&self) -> Option<usize> {
        match self {
            Test::Bits(i, _)
            | Test::Zeros(i, _)
            | Test::Ones(i, _)
            | Test::AtMost(i, _)
            | Test::AtLeast(i, _) => Some(*i),
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

impl fmt::Display for Head {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Head::Alu(op, w) => write!(f, "{}.{w}", op.print()),
            Head::Neg(w) => write!(f, "neg.{w}"),
            Head::Zext => f.write_str("zext"),
            Head::Sext(bits, w) => write!(f, "sext{bits}.{w}"),
            Head::Swap(SwapKind::ToBe, bits) => write!(f, "be{bits}"),
            Head::Swap(SwapKind::ToLe, bits) => write!(f, "le{bits}"),
            Head::Swap(SwapKind::Swap, bits) => write!(f, "bswap{bits}"),
            Head::Cmp(CondPat::Fixed(cond), w) => write!(f, "{}.{w}", cond.print()),
            Head::Cmp(CondPat::Bound, w) => write!(f, "?c.{w}"),
            Head::Select => f.write_str("select"),
        }
    }
}

/// A number as rules have it: hexadecimal where that is more telling.
fn number(f: &mut fmt::Formatter<'_>, n: i64) -> fmt::Result {
    if (-64..=255).contains(&n) { write!(f, "{n}") } else { write!(f, "{n:#x}") }
}

impl fmt::Display for Expr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Expr::Const(i) => f.write_str(CONSTS[*i]),
            Expr::Number(n) => number(f, *n),
            Expr::Bits(i) => f.write_str(if *i == 0 { "w" } else { "v" }),
            Expr::Apply(func, args) => {
                write!(f, "({}", func.name())?;
                args.iter().try_for_each(|a| write!(f, " {a}"))?;
                f.write_str(")")
            }
        }
    }
}

impl fmt::Display for Pattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Pattern::Value(i) => f.write_str(VALUES[*i]),
            Pattern::Const(i) => write!(f, "#{}", CONSTS[*i]),
            Pattern::Number(n) => number(f, *n),
            Pattern::Node { head, once, args } => {
                write!(f, "{}({head}", if *once { "!" } else { "" })?;
                args.iter().try_for_each(|a| write!(f, " {a}"))?;
                f.write_str(")")
            }
        }
    }
}

impl fmt::Display for Build {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Build::Value(i) => f.write_str(VALUES[*i]),
            Build::Const(Expr::Number(n)) => number(f, *n),
            Build::Const(Expr::Apply(func, args)) => {
                write!(f, "{{{}", func.name())?;
                args.iter().try_for_each(|a| write!(f, " {a}"))?;
                f.write_str("}")
            }
            Build::Const(atom) => write!(f, "{{{atom}}}"),
            Build::Node(head, args) => {
                write!(f, "({head}")?;
                args.iter().try_for_each(|a| write!(f, " {a}"))?;
                f.write_str(")")
            }
            Build::Not(inner) => write!(f, "(not {inner})"),
            Build::Truth(truth) => write!(f, "{truth}"),
        }
    }
}

impl fmt::Display for Test {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Test::Bits(x, e) => write!(f, "(bits {} {e})", VALUES[*x]),
            Test::Int(x) => write!(f, "(int {})", VALUES[*x]),
            Test::Zeros(x, e) => write!(f, "(zeros {} {e})", VALUES[*x]),
            Test::Ones(x, e) => write!(f, "(ones {} {e})", VALUES[*x]),
            Test::AtMost(x, e) => write!(f, "(atmost {} {e})", VALUES[*x]),
            Test::AtLeast(x, e) => write!(f, "(atleast {} {e})", VALUES[*x]),
            Test::Disjoint(x, y) => write!(f, "(disjoint {} {})", VALUES[*x], VALUES[*y]),
            Test::NoWrap(x, y) => write!(f, "(nowrap {} {})", VALUES[*x], VALUES[*y]),
            Test::Holds(e @ Expr::Apply(..)) => write!(f, "{e}"),
            Test::Holds(atom) => write!(f, "({atom})"),
            Test::V4 => f.write_str("(v4)"),
            Test::Jmp32 => f.write_str("(jmp32)"),
        }
    }
}

impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} => {}", self.pattern, self.build)?;
        for (i, test) in self.tests.iter().enumerate() {
            write!(f, "{} {test}", if i == 0 { "   if" } else { "" })?;
        }
        Ok(())
    }
}

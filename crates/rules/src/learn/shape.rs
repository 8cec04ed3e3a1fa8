//! Left sides: all of a kind, one after the other, small ones first.

use millstream_ir::{AluOp, Cond, SwapKind, Width};
use millstream_passes::rules::{CondPat, Expr, Func, Head, Pattern, Test, WidthPat};

/// A left side, and the facts about its values.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(crate) struct Shape {
    pub(crate) pattern: Pattern,
    pub(crate) tests: Vec<Test>,
}

impl Shape {
    /// Number of constants.
    pub(crate) fn consts(&self) -> usize {
        let (mut values, mut consts) = ([false; 4], [false; 4]);
        names(&self.pattern, &mut values, &mut consts);
        consts.iter().filter(|c| **c).count()
    }
}

/// Left sides that are looked at one after the other; the rules found for the former are known to the latter.
pub(crate) type Group = Vec<Shape>;

/// Which operation stands at a place of a sketch: one of arithmetic, or one with a single operand.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Op {
    Alu(AluOp),
    One(One),
    Cmp(Cond),
    Select,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum One {
    Neg,
    Not,
    Zext,
    Sext(u8),
    Be(u8),
}

/// A term without widths.
#[derive(Clone, Debug)]
enum Sketch {
    Value(usize),
    Const(usize),
    Number(i64),
    Node(Op, Vec<Sketch>),
}

/// All operations that are looked at.
pub(super) const ALU: [AluOp; 9] = [
    AluOp::Add,
    AluOp::Sub,
    AluOp::Mul,
    AluOp::And,
    AluOp::Or,
    AluOp::Xor,
    AluOp::Lsh,
    AluOp::Rsh,
    AluOp::Arsh,
];
/// Those that take two unknown values mostly.
const PLAIN: [AluOp; 6] = [AluOp::Add, AluOp::Sub, AluOp::And, AluOp::Or, AluOp::Xor, AluOp::Mul];
const ONES: [One; 8] =
    [One::Neg, One::Not, One::Zext, One::Sext(8), One::Sext(16), One::Sext(32), One::Be(16), One::Be(32)];
/// The others are these, exchanged or the opposite.
const CONDS: [Cond; 6] = [Cond::Eq, Cond::Set, Cond::Lt, Cond::Gt, Cond::Slt, Cond::Sgt];

fn x() -> Sketch {
    Sketch::Value(0)
}
fn y() -> Sketch {
    Sketch::Value(1)
}
fn z() -> Sketch {
    Sketch::Value(2)
}
fn a() -> Sketch {
    Sketch::Const(0)
}
fn b() -> Sketch {
    Sketch::Const(1)
}
fn c() -> Sketch {
    Sketch::Const(2)
}
fn alu(op: AluOp, left: Sketch, right: Sketch) -> Sketch {
    Sketch::Node(Op::Alu(op), vec![left, right])
}
fn one(op: One, arg: Sketch) -> Sketch {
    Sketch::Node(Op::One(op), vec![arg])
}
fn cmp(cond: Cond, left: Sketch, right: Sketch) -> Sketch {
    Sketch::Node(Op::Cmp(cond), vec![left, right])
}
fn select(t: Sketch, yes: Sketch, no: Sketch) -> Sketch {
    Sketch::Node(Op::Select, vec![t, yes, no])
}

/// Every left side of at most `depth` operations that is enumerated, by group.
pub(crate) fn all(depth: usize) -> Vec<Group> {
    let mut sketches = Vec::new();
    singles(&mut sketches);
    if depth > 1 {
        pairs(&mut sketches);
        comparisons(&mut sketches);
        choices(&mut sketches);
    }
    if depth > 2 {
        twins(&mut sketches);
        chains(&mut sketches);
        compared_pairs(&mut sketches);
    }
    sketches.into_iter().map(|s| group(&s)).collect()
}

/// One operation, of whose operands something is known.
fn singles(out: &mut Vec<Sketch>) {
    for op in ALU {
        out.push(alu(op, x(), a()));
        out.push(alu(op, x(), y()));
        out.push(alu(op, a(), x()));
    }
    out.extend(ONES.map(|op| one(op, x())));
    for cond in CONDS {
        out.push(cmp(cond, x(), a()));
        out.push(cmp(cond, x(), y()));
    }
}

/// Two operations, the root being arithmetic.
fn pairs(out: &mut Vec<Sketch>) {
    for p in ONES {
        out.extend(ONES.map(|q| one(p, one(q, x()))));
        for op in ALU {
            out.push(one(p, alu(op, x(), a())));
            out.push(alu(op, one(p, x()), a()));
            out.push(alu(op, a(), one(p, x())));
            out.push(one(p, alu(op, x(), y())));
            out.push(alu(op, one(p, x()), y()));
            out.push(alu(op, y(), one(p, x())));
            out.push(alu(op, x(), one(p, x())));
            out.push(alu(op, one(p, x()), x()));
        }
    }
    for p in ALU {
        for q in ALU {
            out.push(alu(p, alu(q, x(), a()), b()));
            out.push(alu(p, alu(q, a(), x()), b()));
            out.push(alu(p, b(), alu(q, x(), a())));
            out.push(alu(p, b(), alu(q, a(), x())));
            for leaf in [x(), y()] {
                out.push(alu(p, alu(q, x(), y()), leaf.clone()));
                out.push(alu(p, leaf, alu(q, x(), y())));
            }
            out.push(alu(p, alu(q, x(), a()), x()));
            out.push(alu(p, x(), alu(q, x(), a())));
        }
    }
}

/// A comparison of one operation.
fn comparisons(out: &mut Vec<Sketch>) {
    for cond in CONDS {
        for op in ALU {
            out.push(cmp(cond, alu(op, x(), a()), b()));
            out.push(cmp(cond, alu(op, a(), x()), b()));
            out.push(cmp(cond, alu(op, x(), a()), x()));
            out.push(cmp(cond, alu(op, x(), y()), x()));
            out.push(cmp(cond, alu(op, x(), y()), y()));
        }
        for p in ONES {
            out.push(cmp(cond, one(p, x()), a()));
            out.push(cmp(cond, one(p, x()), x()));
            out.push(cmp(cond, one(p, x()), y()));
        }
    }
}

/// Choices.
fn choices(out: &mut Vec<Sketch>) {
    let t = || Sketch::Value(0);
    out.push(select(t(), a(), b()));
    out.push(select(t(), Sketch::Number(1), Sketch::Number(0)));
    out.push(select(t(), Sketch::Number(0), Sketch::Number(1)));
    out.push(select(t(), y(), t()));
    out.push(select(t(), t(), y()));
    for op in ALU {
        out.push(alu(op, select(t(), a(), b()), c()));
        out.push(alu(op, c(), select(t(), a(), b())));
        out.push(select(t(), alu(op, y(), a()), y()));
        out.push(select(t(), y(), alu(op, y(), a())));
        out.push(select(t(), alu(op, y(), a()), alu(op, y(), b())));
        out.push(select(t(), alu(op, y(), z()), alu(op, y(), Sketch::Value(3))));
        out.push(select(t(), alu(op, y(), a()), alu(op, z(), a())));
        out.push(select(t(), alu(op, y(), z()), y()));
    }
    for p in ONES {
        out.push(one(p, select(t(), a(), b())));
        out.push(select(t(), one(p, y()), one(p, z())));
        out.push(select(t(), one(p, y()), y()));
    }
    for cond in CONDS {
        out.push(cmp(cond, select(t(), a(), b()), c()));
        out.push(cmp(cond, select(t(), y(), z()), y()));
        out.push(cmp(cond, select(t(), y(), a()), b()));
        out.push(select(cmp(cond, y(), z()), y(), z()));
        out.push(select(cmp(cond, y(), a()), b(), c()));
        out.push(select(cmp(cond, y(), a()), y(), b()));
        out.push(select(cmp(cond, y(), a()), b(), y()));
    }
}

/// An operation on two of the same operands, or with one in common.
fn twins(out: &mut Vec<Sketch>) {
    for p in ALU {
        for q in ALU {
            for r in PLAIN {
                out.push(alu(p, alu(q, x(), y()), alu(r, x(), y())));
            }
            out.push(alu(p, alu(q, x(), y()), alu(q, x(), z())));
            out.push(alu(p, alu(q, x(), y()), alu(q, z(), y())));
            out.push(alu(p, alu(q, x(), a()), alu(q, y(), a())));
            for r in ALU {
                out.push(alu(p, alu(q, x(), a()), alu(r, x(), b())));
            }
        }
        for u in ONES {
            out.push(alu(p, one(u, x()), one(u, y())));
            for q in PLAIN {
                out.push(alu(p, alu(q, x(), y()), one(u, x())));
                out.push(alu(p, one(u, x()), alu(q, x(), y())));
                out.push(alu(p, alu(q, one(u, x()), y()), x()));
                out.push(alu(p, alu(q, one(u, x()), y()), y()));
            }
        }
    }
}

/// Three operations one after the other, with constants.
fn chains(out: &mut Vec<Sketch>) {
    let inner = [AluOp::Add, AluOp::And, AluOp::Or, AluOp::Xor, AluOp::Lsh, AluOp::Rsh, AluOp::Arsh];
    for p in inner {
        for q in inner {
            for r in inner {
                out.push(alu(p, alu(q, alu(r, x(), a()), b()), c()));
            }
            out.push(alu(p, alu(q, alu(p, x(), a()), y()), b()));
            out.push(alu(p, alu(q, y(), alu(p, x(), a())), b()));
            for u in ONES {
                out.push(alu(p, one(u, alu(q, x(), a())), b()));
                out.push(alu(p, alu(q, one(u, x()), a()), b()));
                out.push(one(u, alu(p, alu(q, x(), a()), b())));
            }
        }
        for u in ONES {
            out.push(one(u, alu(p, one(u, x()), a())));
            for v in [One::Zext, One::Neg, One::Not] {
                out.push(one(u, alu(p, one(v, x()), a())));
            }
        }
    }
}

/// Comparisons of two operations, and of chains.
fn compared_pairs(out: &mut Vec<Sketch>) {
    let shift = [AluOp::Lsh, AluOp::Rsh, AluOp::Arsh, AluOp::And, AluOp::Or, AluOp::Add, AluOp::Xor];
    for cond in CONDS {
        for op in ALU {
            out.push(cmp(cond, alu(op, x(), a()), alu(op, y(), a())));
            out.push(cmp(cond, alu(op, x(), y()), alu(op, x(), z())));
            out.push(cmp(cond, alu(op, x(), y()), alu(op, z(), y())));
            out.push(cmp(cond, alu(op, x(), a()), alu(op, x(), b())));
            for r in PLAIN {
                out.push(cmp(cond, alu(op, x(), y()), alu(r, x(), y())));
            }
        }
        for u in ONES {
            out.push(cmp(cond, one(u, x()), one(u, y())));
        }
        for p in shift {
            for q in shift {
                out.push(cmp(cond, alu(p, alu(q, x(), a()), b()), c()));
            }
            for u in ONES {
                out.push(cmp(cond, one(u, alu(p, x(), a())), b()));
                out.push(cmp(cond, alu(p, one(u, x()), a()), b()));
            }
        }
    }
}

/// A sketch at all widths, and with all that may be known.
fn group(sketch: &Sketch) -> Group {
    let mut out = Vec::new();
    for widths in widths(sketch) {
        let mut next = 0;
        let pattern = at(sketch, widths, &mut next);
        for tests in knowledge(&pattern) {
            let shape = Shape { pattern: pattern.clone(), tests };
            if !out.contains(&shape) {
                out.push(shape);
            }
        }
    }
    out
}

/// Widths of the operations from the root down, the last for all that follow.
fn widths(sketch: &Sketch) -> Vec<[WidthPat; 2]> {
    let (w64, w32) = (WidthPat::Fixed(Width::W64), WidthPat::Fixed(Width::W32));
    let var = WidthPat::Var(0);
    let mut out = vec![[var, var], [w64, w64], [w32, w32]];
    if operations(sketch) == 2 && !extends(sketch) {
        out.extend([[w64, w32], [w32, w64]]);
    }
    out
}

/// Returns true if it negates or extends: that is done at one width only in practice.
fn extends(sketch: &Sketch) -> bool {
    match sketch {
        Sketch::Node(op, args) => {
            matches!(op, Op::One(One::Neg | One::Not | One::Sext(_))) || args.iter().any(extends)
        }
        _ => false,
    }
}

fn operations(sketch: &Sketch) -> usize {
    match sketch {
        Sketch::Node(_, args) => 1 + args.iter().map(operations).sum::<usize>(),
        _ => 0,
    }
}

fn at(sketch: &Sketch, widths: [WidthPat; 2], next: &mut usize) -> Pattern {
    match sketch {
        Sketch::Value(i) => Pattern::Value(*i),
        Sketch::Const(i) => Pattern::Const(*i),
        Sketch::Number(n) => Pattern::Number(*n),
        Sketch::Node(op, args) => {
            let w = widths[(*next).min(1)];
            *next += 1;
            let mut args: Vec<Pattern> = args.iter().map(|arg| at(arg, widths, next)).collect();
            let head = match op {
                Op::Alu(op) => Head::Alu(*op, w),
                Op::Cmp(cond) => Head::Cmp(CondPat::Fixed(*cond), w),
                Op::Select => Head::Select,
                Op::One(One::Neg) => Head::Neg(w),
                Op::One(One::Zext) => Head::Zext,
                Op::One(One::Sext(bits)) => Head::Sext(*bits, w),
                Op::One(One::Be(bits)) => Head::Swap(SwapKind::ToBe, *bits),
                Op::One(One::Not) => {
                    args.push(Pattern::Number(-1));
                    Head::Alu(AluOp::Xor, w)
                }
            };
            Pattern::Node { head, once: false, args }
        }
    }
}

/// Sets of facts that may be known about the values of a pattern: the empty set first.
fn knowledge(pattern: &Pattern) -> Vec<Vec<Test>> {
    let mut out = vec![Vec::new()];
    let Pattern::Node { head, args, .. } = pattern else { return out };
    let (mut values, mut consts) = ([false; 4], [false; 4]);
    names(pattern, &mut values, &mut consts);
    let truths = super::sample::truths(pattern);
    let small = args.iter().all(|arg| matches!(arg, Pattern::Value(_) | Pattern::Const(_)));
    let compares = matches!(head, Head::Cmp(..));
    let apply = |func, n, k| Expr::Apply(func, vec![Expr::Number(n), Expr::Const(k)]);
    if nodes(pattern) > 2 {
        let i = usize::from(truths[0]);
        out.extend([32, 16, 8].map(|n| vec![Test::Bits(i, Expr::Number(n))]));
        if values[1] && i == 0 {
            out.push(vec![Test::Disjoint(0, 1)]);
        }
        return out;
    }
    for i in (0..2).filter(|&i| values[i] && !truths[i]) {
        out.extend([32, 16, 8, 1].map(|n| vec![Test::Bits(i, Expr::Number(n))]));
        out.extend(signs(pattern).into_iter().map(|sign| vec![Test::Zeros(i, Expr::Number(sign))]));
        for k in (0..2).filter(|&k| consts[k]) {
            let not = Expr::Apply(Func::Not, vec![Expr::Const(k)]);
            out.push(vec![Test::Zeros(i, Expr::Const(k))]);
            out.push(vec![Test::Zeros(i, not)]);
            out.push(vec![Test::Zeros(i, apply(Func::Shl, -1, k))]);
            out.push(vec![Test::Zeros(i, Expr::Apply(Func::Low, vec![Expr::Const(k)]))]);
            if small || compares {
                out.push(vec![Test::Ones(i, Expr::Const(k))]);
                out.push(vec![Test::AtMost(i, Expr::Const(k))]);
                out.push(vec![Test::AtLeast(i, Expr::Const(k))]);
            }
        }
    }
    if values[1] && !truths[0] && !truths[1] {
        out.push(vec![Test::Disjoint(0, 1)]);
        out.extend([32, 16, 8].map(|n| (0..2).map(|i| Test::Bits(i, Expr::Number(n))).collect()));
    }
    out
}

fn nodes(pattern: &Pattern) -> usize {
    match pattern {
        Pattern::Node { args, .. } => 1 + args.iter().map(nodes).sum::<usize>(),
        _ => 0,
    }
}

/// Sign bits that the operations of a pattern look at.
fn signs(pattern: &Pattern) -> Vec<i64> {
    let Pattern::Node { head, args, .. } = pattern else { return Vec::new() };
    let mut out: Vec<i64> = args.iter().flat_map(signs).collect();
    match head {
        Head::Sext(bits, _) => out.push(1 << (bits - 1)),
        Head::Alu(AluOp::Arsh, w)
        | Head::Cmp(CondPat::Fixed(Cond::Slt | Cond::Sgt | Cond::Sle | Cond::Sge), w) => match w {
            WidthPat::Fixed(Width::W32) => out.push(1 << 31),
            WidthPat::Fixed(Width::W64) => out.push(i64::MIN),
            WidthPat::Var(_) => {}
        },
        _ => {}
    }
    out.sort_unstable();
    out.dedup();
    out
}

/// Which values and constants a pattern names.
pub(crate) fn names(pattern: &Pattern, values: &mut [bool; 4], consts: &mut [bool; 4]) {
    match pattern {
        Pattern::Value(i) => values[*i] = true,
        Pattern::Const(i) => consts[*i] = true,
        Pattern::Number(_) => {}
        Pattern::Node { args, .. } => args.iter().for_each(|arg| names(arg, values, consts)),
    }
}

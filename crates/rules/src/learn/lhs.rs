//! Left sides: all of a kind, one after the other, small ones first.

use millstream_ir::{AluOp, Cond, SwapKind, Width};
use millstream_passes::rules::{
    CondPat, ConstExpr, Func, NAMES, PatternOp, RuleCondition, RulePattern, WidthPat,
};

/// A left side, and the facts about its values.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(crate) struct LeftHandSide {
    pub(crate) pattern: RulePattern,
    pub(crate) tests: Vec<RuleCondition>,
}

impl LeftHandSide {
    /// Number of constants.
    pub(crate) fn consts(&self) -> usize {
        let (mut values, mut consts) = ([false; 4], [false; 4]);
        names(&self.pattern, &mut values, &mut consts);
        consts.iter().filter(|c| **c).count()
    }
}

/// Left sides that are looked at one after the other; the rules found for the former are known to the latter.
pub(crate) type LhsGroup = Vec<LeftHandSide>;

/// Which operation stands at a place of a sketch: one of arithmetic, or one with a single operand.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum SketchOp {
    Alu(AluOp),
    One(UnaryOp),
    Cmp(Cond),
    Select,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum UnaryOp {
    Neg,
    Not,
    Zext,
    Sext(u8),
    Be(u8),
}

/// A term without widths.
#[derive(Clone, Debug)]
enum LhsSketch {
    Value(usize),
    Const(usize),
    Number(i64),
    Node(SketchOp, Vec<LhsSketch>),
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
const ONES: [UnaryOp; 8] = [
    UnaryOp::Neg,
    UnaryOp::Not,
    UnaryOp::Zext,
    UnaryOp::Sext(8),
    UnaryOp::Sext(16),
    UnaryOp::Sext(32),
    UnaryOp::Be(16),
    UnaryOp::Be(32),
];
/// The others are these, exchanged or the opposite.
const CONDS: [Cond; 6] = [Cond::Eq, Cond::Set, Cond::Lt, Cond::Gt, Cond::Slt, Cond::Sgt];

fn x() -> LhsSketch {
    LhsSketch::Value(0)
}
fn y() -> LhsSketch {
    LhsSketch::Value(1)
}
fn z() -> LhsSketch {
    LhsSketch::Value(2)
}
fn a() -> LhsSketch {
    LhsSketch::Const(0)
}
fn b() -> LhsSketch {
    LhsSketch::Const(1)
}
fn c() -> LhsSketch {
    LhsSketch::Const(2)
}
fn alu(op: AluOp, left: LhsSketch, right: LhsSketch) -> LhsSketch {
    LhsSketch::Node(SketchOp::Alu(op), vec![left, right])
}
fn one(op: UnaryOp, arg: LhsSketch) -> LhsSketch {
    LhsSketch::Node(SketchOp::One(op), vec![arg])
}
fn cmp(cond: Cond, left: LhsSketch, right: LhsSketch) -> LhsSketch {
    LhsSketch::Node(SketchOp::Cmp(cond), vec![left, right])
}
fn select(t: LhsSketch, yes: LhsSketch, no: LhsSketch) -> LhsSketch {
    LhsSketch::Node(SketchOp::Select, vec![t, yes, no])
}

/// Every left side of at most `depth` operations that is enumerated, by group.
pub(crate) fn all(depth: usize) -> Vec<LhsGroup> {
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
fn singles(out: &mut Vec<LhsSketch>) {
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
fn pairs(out: &mut Vec<LhsSketch>) {
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
fn comparisons(out: &mut Vec<LhsSketch>) {
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
fn choices(out: &mut Vec<LhsSketch>) {
    let t = || LhsSketch::Value(0);
    out.push(select(t(), a(), b()));
    out.push(select(t(), LhsSketch::Number(1), LhsSketch::Number(0)));
    out.push(select(t(), LhsSketch::Number(0), LhsSketch::Number(1)));
    out.push(select(t(), y(), t()));
    out.push(select(t(), t(), y()));
    for op in ALU {
        out.push(alu(op, select(t(), a(), b()), c()));
        out.push(alu(op, c(), select(t(), a(), b())));
        out.push(select(t(), alu(op, y(), a()), y()));
        out.push(select(t(), y(), alu(op, y(), a())));
        out.push(select(t(), alu(op, y(), a()), alu(op, y(), b())));
        out.push(select(t(), alu(op, y(), z()), alu(op, y(), LhsSketch::Value(3))));
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
fn twins(out: &mut Vec<LhsSketch>) {
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
fn chains(out: &mut Vec<LhsSketch>) {
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
            for v in [UnaryOp::Zext, UnaryOp::Neg, UnaryOp::Not] {
                out.push(one(u, alu(p, one(v, x()), a())));
            }
        }
    }
}

/// Comparisons of two operations, and of chains.
fn compared_pairs(out: &mut Vec<LhsSketch>) {
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
fn group(sketch: &LhsSketch) -> LhsGroup {
    let mut out = Vec::new();
    for widths in widths(sketch) {
        let mut next = 0;
        let pattern = at(sketch, widths, &mut next);
        for tests in knowledge(&pattern) {
            let shape = LeftHandSide { pattern: pattern.clone(), tests };
            if !out.contains(&shape) {
                out.push(shape);
            }
        }
    }
    out
}

/// Widths of the operations from the root down, the last for all that follow.
fn widths(sketch: &LhsSketch) -> Vec<[WidthPat; 2]> {
    let (w64, w32) = (WidthPat::Fixed(Width::W64), WidthPat::Fixed(Width::W32));
    let var = WidthPat::Var(0);
    let mut out = vec![[var, var], [w64, w64], [w32, w32]];
    if operations(sketch) == 2 && !extends(sketch) {
        out.extend([[w64, w32], [w32, w64]]);
    }
    out
}

/// Returns true if it negates or extends: that is done at one width only in practice.
fn extends(sketch: &LhsSketch) -> bool {
    match sketch {
        LhsSketch::Node(op, args) => {
            matches!(op, SketchOp::One(UnaryOp::Neg | UnaryOp::Not | UnaryOp::Sext(_)))
                || args.iter().any(extends)
        }
        _ => false,
    }
}

fn operations(sketch: &LhsSketch) -> usize {
    match sketch {
        LhsSketch::Node(_, args) => 1 + args.iter().map(operations).sum::<usize>(),
        _ => 0,
    }
}

fn at(sketch: &LhsSketch, widths: [WidthPat; 2], next: &mut usize) -> RulePattern {
    match sketch {
        LhsSketch::Value(i) => RulePattern::Value(*i),
        LhsSketch::Const(i) => RulePattern::Const(*i),
        LhsSketch::Number(n) => RulePattern::Number(*n),
        LhsSketch::Node(op, args) => {
            let w = widths[(*next).min(1)];
            *next += 1;
            let mut args: Vec<RulePattern> = args.iter().map(|arg| at(arg, widths, next)).collect();
            let head = match op {
                SketchOp::Alu(op) => PatternOp::Alu(*op, w),
                SketchOp::Cmp(cond) => PatternOp::Cmp(CondPat::Fixed(*cond), w),
                SketchOp::Select => PatternOp::Select,
                SketchOp::One(UnaryOp::Neg) => PatternOp::Neg(w),
                SketchOp::One(UnaryOp::Zext) => PatternOp::Zext,
                SketchOp::One(UnaryOp::Sext(bits)) => PatternOp::Sext(*bits, w),
                SketchOp::One(UnaryOp::Be(bits)) => PatternOp::Swap(SwapKind::ToBe, *bits),
                SketchOp::One(UnaryOp::Not) => {
                    args.push(RulePattern::Number(-1));
                    PatternOp::Alu(AluOp::Xor, w)
                }
            };
            RulePattern::Node { head, once: false, args }
        }
    }
}

/// Sets of facts that may be known about the values of a pattern: the empty set first.
fn knowledge(pattern: &RulePattern) -> Vec<Vec<RuleCondition>> {
    let mut out = vec![Vec::new()];
    let RulePattern::Node { head, args, .. } = pattern else { return out };
    let (mut values, mut consts) = ([false; 4], [false; 4]);
    names(pattern, &mut values, &mut consts);
    let truths = truths(pattern);
    let small = args.iter().all(|arg| matches!(arg, RulePattern::Value(_) | RulePattern::Const(_)));
    let compares = matches!(head, PatternOp::Cmp(..));
    let apply = |func, n, k| ConstExpr::Apply(func, vec![ConstExpr::Number(n), ConstExpr::Const(k)]);
    if nodes(pattern) > 2 {
        let i = usize::from(truths[0]);
        out.extend([32, 16, 8].map(|n| vec![RuleCondition::Bits(i, ConstExpr::Number(n))]));
        if values[1] && i == 0 {
            out.push(vec![RuleCondition::Disjoint(0, 1)]);
        }
        return out;
    }
    for i in (0..2).filter(|&i| values[i] && !truths[i]) {
        out.extend([32, 16, 8, 1].map(|n| vec![RuleCondition::Bits(i, ConstExpr::Number(n))]));
        out.extend(
            signs(pattern).into_iter().map(|sign| vec![RuleCondition::Zeros(i, ConstExpr::Number(sign))]),
        );
        for k in (0..2).filter(|&k| consts[k]) {
            let not = ConstExpr::Apply(Func::Not, vec![ConstExpr::Const(k)]);
            out.push(vec![RuleCondition::Zeros(i, ConstExpr::Const(k))]);
            out.push(vec![RuleCondition::Zeros(i, not)]);
            out.push(vec![RuleCondition::Zeros(i, apply(Func::Shl, -1, k))]);
            out.push(vec![RuleCondition::Zeros(i, ConstExpr::Apply(Func::Low, vec![ConstExpr::Const(k)]))]);
            if small || compares {
                out.push(vec![RuleCondition::Ones(i, ConstExpr::Const(k))]);
                out.push(vec![RuleCondition::AtMost(i, ConstExpr::Const(k))]);
                out.push(vec![RuleCondition::AtLeast(i, ConstExpr::Const(k))]);
            }
        }
    }
    if values[1] && !truths[0] && !truths[1] {
        out.push(vec![RuleCondition::Disjoint(0, 1)]);
        out.extend(
            [32, 16, 8].map(|n| (0..2).map(|i| RuleCondition::Bits(i, ConstExpr::Number(n))).collect()),
        );
    }
    out
}

fn nodes(pattern: &RulePattern) -> usize {
    match pattern {
        RulePattern::Node { args, .. } => 1 + args.iter().map(nodes).sum::<usize>(),
        _ => 0,
    }
}

/// Sign bits that the operations of a pattern look at.
fn signs(pattern: &RulePattern) -> Vec<i64> {
    let RulePattern::Node { head, args, .. } = pattern else { return Vec::new() };
    let mut out: Vec<i64> = args.iter().flat_map(signs).collect();
    match head {
        PatternOp::Sext(bits, _) => out.push(1 << (bits - 1)),
        PatternOp::Alu(AluOp::Arsh, w)
        | PatternOp::Cmp(CondPat::Fixed(Cond::Slt | Cond::Sgt | Cond::Sle | Cond::Sge), w) => match w {
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
pub(crate) fn names(pattern: &RulePattern, values: &mut [bool; 4], consts: &mut [bool; 4]) {
    match pattern {
        RulePattern::Value(i) => values[*i] = true,
        RulePattern::Const(i) => consts[*i] = true,
        RulePattern::Number(_) => {}
        RulePattern::Node { args, .. } => args.iter().for_each(|arg| names(arg, values, consts)),
    }
}

/// Marks the values that are 0 or 1 because a choice is made by them.
pub(crate) fn truths(pattern: &RulePattern) -> [bool; NAMES] {
    let mut out = [false; NAMES];
    choosers(pattern, &mut out);
    out
}

fn choosers(pattern: &RulePattern, out: &mut [bool; NAMES]) {
    if let RulePattern::Node { head, args, .. } = pattern {
        if let (PatternOp::Select, Some(RulePattern::Value(i))) = (head, args.first()) {
            out[*i] = true;
        }
        args.iter().for_each(|arg| choosers(arg, out));
    }
}

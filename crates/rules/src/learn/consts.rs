//! Functions of constants and conditions on them, told apart by their values on the samples.

use millstream_passes::rules::{ConstExpr, Func, RuleCondition};
use rustc_hash::FxHashSet;

use super::sample::{ConstantRole, RuleSample};

/// A set of samples.
pub(crate) type SampleSet = Vec<u64>;

/// The set of the samples for which something holds.
pub(crate) fn set(samples: &[RuleSample], holds: impl Fn(&RuleSample) -> bool) -> SampleSet {
    let mut out = vec![0; samples.len().div_ceil(64)];
    for (i, s) in samples.iter().enumerate() {
        out[i / 64] |= u64::from(holds(s)) << (i % 64);
    }
    out
}

/// Number of samples in both sets.
pub(crate) fn common(a: &SampleSet, b: &SampleSet) -> u32 {
    a.iter().zip(b).map(|(a, b)| (a & b).count_ones()).sum()
}

/// Returns true if `a` is a subset of `b`.
pub(crate) fn within(a: &SampleSet, b: &SampleSet) -> bool {
    a.iter().zip(b).all(|(a, b)| a & !b == 0)
}

/// Intersection of two sets.
pub(crate) fn both(a: &SampleSet, b: &SampleSet) -> SampleSet {
    a.iter().zip(b).map(|(a, b)| a & b).collect()
}

/// An expression with its value on each sample.
#[derive(Clone, Debug)]
pub(crate) struct SampledExpr {
    pub(crate) expr: ConstExpr,
    pub(crate) values: Vec<u64>,
}

fn apply1(func: Func, a: &ConstExpr) -> ConstExpr {
    ConstExpr::Apply(func, vec![a.clone()])
}

fn apply2(func: Func, a: &ConstExpr, b: &ConstExpr) -> ConstExpr {
    ConstExpr::Apply(func, vec![a.clone(), b.clone()])
}

struct ExprPool<'s> {
    samples: &'s [RuleSample],
    seen: FxHashSet<Vec<u64>>,
    out: Vec<SampledExpr>,
}

impl ExprPool<'_> {
    /// Adds it if no simpler one gives the same on all samples.
    fn add(&mut self, expr: ConstExpr) {
        let values: Vec<u64> = self.samples.iter().map(|s| s.env.expr(&expr)).collect();
        if self.seen.insert(values.clone()) {
            self.out.push(SampledExpr { expr, values });
        }
    }
}

/// Functions of the constants that are there, the simple ones first. `named` says whether the shape leaves
/// its width open.
pub(crate) fn functions(
    samples: &[RuleSample],
    roles: &[ConstantRole; 4],
    named: bool,
    most: usize,
) -> Vec<SampledExpr> {
    let mut pool = ExprPool { samples, seen: FxHashSet::default(), out: Vec::new() };
    let atoms: Vec<ConstExpr> =
        (0..4).filter(|&i| roles[i] != ConstantRole::Absent).map(ConstExpr::Const).collect();
    atoms.iter().for_each(|a| pool.add(a.clone()));
    for n in [0, 1, -1] {
        pool.add(ConstExpr::Number(n));
    }
    let width = if named { ConstExpr::Bits(0) } else { ConstExpr::Number(64) };
    let mut ones = Vec::new();
    for a in &atoms {
        for func in [Func::Neg, Func::Not, Func::Low, Func::Log2, Func::Zext, Func::Sext32] {
            ones.push(apply1(func, a));
        }
        ones.push(apply2(Func::Sub, &width, a));
        if !named {
            ones.push(apply2(Func::Sub, &ConstExpr::Number(32), a));
            ones.push(apply2(Func::Sub, a, &ConstExpr::Number(32)));
        }
        for func in [Func::Add, Func::Sub] {
            ones.push(apply2(func, a, &ConstExpr::Number(1)));
        }
        for n in [1, -1] {
            ones.push(apply2(Func::Shl, &ConstExpr::Number(n), a));
        }
        ones.push(apply2(Func::Shr, &ConstExpr::Number(-1), a));
        ones.push(apply2(Func::Shr, &ConstExpr::Number(0xffff_ffff), a));
        for func in [Func::Swap16, Func::Swap32, Func::Sext8, Func::Sext16] {
            ones.push(apply1(func, a));
        }
        let rest = apply2(Func::Sub, &width, a);
        ones.push(apply1(Func::Low, &rest));
        ones.push(apply1(Func::Not, &apply1(Func::Low, a)));
        ones.push(apply1(Func::Log2, &apply1(Func::Neg, a)));
    }
    ones.iter().for_each(|e| pool.add(e.clone()));
    let firsts: Vec<ConstExpr> = atoms.iter().chain(&ones).cloned().collect();
    let funcs = [Func::Add, Func::Sub, Func::And, Func::Or, Func::Xor, Func::Shl, Func::Shr, Func::Mul];
    for func in funcs {
        for a in &atoms {
            for b in &atoms {
                if a != b {
                    pool.add(apply2(func, a, b));
                }
            }
        }
    }
    for func in funcs {
        for a in &atoms {
            for b in &firsts {
                if pool.out.len() < most && a != b {
                    pool.add(apply2(func, b, a));
                    pool.add(apply2(func, a, b));
                }
            }
        }
    }
    thirds(&mut pool, &atoms, most);
    pool.out.truncate(most);
    pool.out
}

/// Masks moved by a shift and cut by another mask, sums of three.
fn thirds(pool: &mut ExprPool<'_>, atoms: &[ConstExpr], most: usize) {
    for a in atoms {
        for b in atoms {
            for c in atoms {
                if a == b || pool.out.len() >= most {
                    continue;
                }
                for outer in [Func::And, Func::Or, Func::Xor, Func::Add] {
                    for inner in [Func::Shl, Func::Shr, Func::And, Func::Or, Func::Add] {
                        pool.add(apply2(outer, &apply2(inner, a, b), c));
                    }
                }
            }
        }
    }
}

/// A condition with the samples for which it holds.
#[derive(Clone, Debug)]
pub(crate) struct SampledCondition {
    pub(crate) tests: Vec<RuleCondition>,
    pub(crate) holds: SampleSet,
}

/// Numbers that constants are compared with: what fits, and signs.
const LIMITS: [i64; 8] = [0, -1, 0x7f, 0xff, 0x7fff, 0xffff, 0x7fff_ffff, 0xffff_ffff];

/// Conditions on constants, simple ones first; the first is none at all.
pub(crate) fn conditions(
    samples: &[RuleSample],
    roles: &[ConstantRole; 4],
    named: bool,
) -> Vec<SampledCondition> {
    let mut seen = FxHashSet::default();
    let mut out = Vec::new();
    let mut add = |tests: Vec<RuleCondition>, holds: SampleSet| {
        if holds.iter().any(|w| *w != 0) && seen.insert(holds.clone()) {
            out.push(SampledCondition { tests, holds });
        }
    };
    add(Vec::new(), set(samples, |_| true));
    let terms = terms(samples, roles, named);
    for f in terms.iter().filter(|f| !matches!(f.expr, ConstExpr::Number(_))) {
        let pow2 = apply1(Func::Pow2, &f.expr);
        let holds = set(samples, |s| s.env.expr(&pow2) != 0);
        add(vec![RuleCondition::Holds(pow2)], holds);
    }
    for func in [Func::Eq, Func::Lt, Func::Le, Func::Ne, Func::Slt, Func::Sle] {
        for f in &terms {
            for g in &terms {
                if comparable(func, &f.expr, &g.expr) {
                    let mut holds = vec![0; samples.len().div_ceil(64)];
                    for (n, (a, b)) in f.values.iter().zip(&g.values).enumerate() {
                        holds[n / 64] |= u64::from(compare(func, *a, *b)) << (n % 64);
                    }
                    add(vec![RuleCondition::Holds(apply2(func, &f.expr, &g.expr))], holds);
                }
            }
        }
    }
    out
}

/// Returns true if a condition is one that a person would write.
fn comparable(func: Func, f: &ConstExpr, g: &ConstExpr) -> bool {
    let number = |e: &ConstExpr| match e {
        ConstExpr::Number(n) => Some(*n),
        _ => None,
    };
    let atom = |e: &ConstExpr| matches!(e, ConstExpr::Const(_));
    match (func, number(f), number(g)) {
        (_, Some(_), Some(_)) => false,
        // Equal to a number: that would be an instance, unless it says that bits are missing.
        (Func::Eq | Func::Ne, None, Some(n)) => {
            n == 0 && (func == Func::Ne || !atom(f)) || n == -1 && !atom(f)
        }
        (Func::Eq | Func::Ne, Some(_), None) => false,
        (Func::Slt | Func::Sle, _, _) => (atom(f) || number(f).is_some()) && (atom(g) || number(g).is_some()),
        (_, None, None) => atom(f) || atom(g),
        _ => true,
    }
}

fn compare(func: Func, a: u64, b: u64) -> bool {
    match func {
        Func::Eq => a == b,
        Func::Ne => a != b,
        Func::Lt => a < b,
        Func::Le => a <= b,
        Func::Slt => (a as i64) < b as i64,
        _ => a as i64 <= b as i64,
    }
}

/// Terms that conditions compare.
fn terms(samples: &[RuleSample], roles: &[ConstantRole; 4], named: bool) -> Vec<SampledExpr> {
    let mut pool = ExprPool { samples, seen: FxHashSet::default(), out: Vec::new() };
    let there = |i: &usize| roles[*i] != ConstantRole::Absent;
    let count =
        |e: &ConstExpr| matches!(e, ConstExpr::Const(i) if matches!(roles[*i], ConstantRole::Count(_)));
    let atoms: Vec<ConstExpr> = (0..4).filter(there).map(ConstExpr::Const).collect();
    atoms.iter().for_each(|a| pool.add(a.clone()));
    LIMITS.iter().for_each(|n| pool.add(ConstExpr::Number(*n)));
    let width = if named { ConstExpr::Bits(0) } else { ConstExpr::Number(64) };
    pool.add(width.clone());
    pool.add(ConstExpr::Number(32));
    let mut masks = Vec::new();
    for a in &atoms {
        if count(a) {
            masks.push(apply1(Func::Low, a));
            masks.push(apply2(Func::Shl, &ConstExpr::Number(-1), a));
            masks.push(apply1(Func::Low, &apply2(Func::Sub, &width, a)));
            pool.add(apply2(Func::Sub, &width, a));
        } else {
            masks.push(apply1(Func::Not, a));
            pool.add(apply1(Func::Neg, a));
            pool.add(apply2(Func::Add, a, &ConstExpr::Number(1)));
            pool.add(apply1(Func::Imm, a));
        }
    }
    masks.iter().for_each(|m| pool.add(m.clone()));
    for a in &atoms {
        for b in atoms.iter().chain(&masks) {
            let (p, q) = (count(a), count(b));
            if a == b {
                continue;
            }
            let funcs: &[Func] = match (p, q) {
                (true, true) => &[Func::Add, Func::Sub],
                (false, true) => &[Func::Shl, Func::Shr],
                (false, false) => &[Func::And, Func::Or, Func::Add, Func::Sub],
                (true, false) => &[],
            };
            for func in funcs {
                pool.add(apply2(*func, a, b));
            }
        }
    }
    pool.out
}

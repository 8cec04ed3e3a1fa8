//! Right sides with a constant left open, cheap ones first.

use millstream_ir::{AluOp, Cond, SwapKind, Width};
use millstream_passes::rules::{
    CondPat, ConstExpr, NAMES, PatternOp, RulePattern, RuleReplacement, WidthPat,
};

use super::instance::build_cost;
use super::lhs::{ALU, names, truths};
use super::sample::uses_width;

/// The constant that is left open.
pub(crate) const HOLE: usize = NAMES - 1;

/// A right side, whether it has a constant left open, and its cost.
#[derive(Clone, Debug)]
pub(crate) struct RhsSkeleton {
    pub(crate) build: RuleReplacement,
    pub(crate) open: bool,
    pub(crate) cost: u32,
}

/// Right sides for a left one that cost less than `below`.
pub(crate) fn skeletons(pattern: &RulePattern, below: u32) -> Vec<RhsSkeleton> {
    let (mut values, mut consts) = ([false; NAMES], [false; NAMES]);
    names(pattern, &mut values, &mut consts);
    let RulePattern::Node { head: root, .. } = pattern else { return Vec::new() };
    let maker = SkeletonGenerator {
        leaves: (0..NAMES).filter(|&i| values[i]).map(RuleReplacement::Value).collect(),
        truths: truths(pattern),
        consts: consts.contains(&true),
        atoms: (0..HOLE)
            .filter(|&i| consts[i])
            .map(|i| RuleReplacement::Const(ConstExpr::Const(i)))
            .collect(),
        widths: widths(pattern, *root),
        root: *root,
    };
    let mut out = maker.all(below);
    out.retain(|s| s.cost < below);
    out.sort_by_key(|s| s.cost);
    out
}

/// The widths that a right side may have, that of the root first.
fn widths(pattern: &RulePattern, root: PatternOp) -> Vec<WidthPat> {
    let (w64, w32) = (WidthPat::Fixed(Width::W64), WidthPat::Fixed(Width::W32));
    match (uses_width(pattern), root.width()) {
        (true, _) => vec![WidthPat::Var(0)],
        (false, WidthPat::Fixed(Width::W32)) => vec![w32, w64],
        (false, _) => vec![w64, w32],
    }
}

#[derive(Clone)]
struct SkeletonGenerator {
    leaves: Vec<RuleReplacement>,
    truths: [bool; NAMES],
    consts: bool,
    atoms: Vec<RuleReplacement>,
    widths: Vec<WidthPat>,
    root: PatternOp,
}

fn hole() -> RuleReplacement {
    RuleReplacement::Const(ConstExpr::Const(HOLE))
}

fn is_open(build: &RuleReplacement) -> bool {
    match build {
        RuleReplacement::Const(expr) => *expr == ConstExpr::Const(HOLE),
        RuleReplacement::Node(_, args) => args.iter().any(is_open),
        _ => false,
    }
}

impl SkeletonGenerator {
    fn all(&self, below: u32) -> Vec<RhsSkeleton> {
        let builds = match self.root {
            PatternOp::Cmp(..) => self.truth(below),
            _ => self.words(below),
        };
        let skeleton =
            |build: RuleReplacement| RhsSkeleton { open: is_open(&build), cost: build_cost(&build), build };
        builds.into_iter().map(skeleton).collect()
    }

    fn truth(&self, below: u32) -> Vec<RuleReplacement> {
        let mut out = vec![RuleReplacement::Truth(true), RuleReplacement::Truth(false)];
        out.extend((0..NAMES).filter(|&i| self.truths[i]).map(RuleReplacement::Value));
        let ends = self.ends();
        for &w in &self.widths {
            for cond in Cond::ALL {
                let head = PatternOp::Cmp(CondPat::Fixed(cond), w);
                for x in &self.leaves {
                    out.extend(ends.iter().map(|e| RuleReplacement::Node(head, vec![x.clone(), e.clone()])));
                }
                if below > 5 {
                    for inner in self.ones() {
                        out.extend(
                            ends.iter().map(|e| RuleReplacement::Node(head, vec![inner.clone(), e.clone()])),
                        );
                    }
                }
            }
        }
        out
    }

    fn words(&self, below: u32) -> Vec<RuleReplacement> {
        let mut out = self.leaves.clone();
        out.push(hole());
        let ones = self.ones();
        out.extend(self.selects());
        if below > 2 {
            // At the width of the root only.
            let narrow = SkeletonGenerator { widths: self.widths[..1].to_vec(), ..self.clone() };
            out.extend(narrow.twos(&narrow.ones()));
        }
        out.extend(ones);
        out
    }

    /// Leaves, and a constant if there may be one.
    fn ends(&self) -> Vec<RuleReplacement> {
        let mut out = self.leaves.clone();
        out.push(hole());
        out
    }

    /// One operation.
    fn ones(&self) -> Vec<RuleReplacement> {
        let mut out = Vec::new();
        for x in &self.leaves {
            out.extend(self.unary(x));
            for end in self.ends() {
                out.extend(self.binary(x, &end));
            }
            for &w in &self.widths {
                out.push(RuleReplacement::Node(PatternOp::Alu(AluOp::Sub, w), vec![hole(), x.clone()]));
            }
        }
        out
    }

    fn unary(&self, x: &RuleReplacement) -> Vec<RuleReplacement> {
        let mut heads =
            vec![PatternOp::Zext, PatternOp::Swap(SwapKind::ToBe, 16), PatternOp::Swap(SwapKind::ToBe, 32)];
        for &w in &self.widths {
            heads.push(PatternOp::Neg(w));
            heads.extend([8, 16, 32].map(|bits| PatternOp::Sext(bits, w)));
        }
        heads.into_iter().map(|head| RuleReplacement::Node(head, vec![x.clone()])).collect()
    }

    fn binary(&self, x: &RuleReplacement, y: &RuleReplacement) -> Vec<RuleReplacement> {
        let mut out = Vec::new();
        for &w in &self.widths {
            for op in ALU {
                let same = x == y && !matches!(op, AluOp::Add);
                let ordered = matches!(op, AluOp::Add | AluOp::Mul | AluOp::And | AluOp::Or | AluOp::Xor);
                let twice = ordered
                    && matches!((x, y), (RuleReplacement::Value(i), RuleReplacement::Value(k)) if k < i);
                // x - c is x + -c.
                let less = op == AluOp::Sub && matches!(y, RuleReplacement::Const(_));
                if !(same || twice || less) {
                    out.push(RuleReplacement::Node(PatternOp::Alu(op, w), vec![x.clone(), y.clone()]));
                }
            }
        }
        out
    }

    /// Two operations.
    fn twos(&self, ones: &[RuleReplacement]) -> Vec<RuleReplacement> {
        let mut out = Vec::new();
        for inner in ones {
            out.extend(self.unary(inner));
            let mut ends = self.leaves.clone();
            ends.extend(if is_open(inner) { self.atoms.clone() } else { vec![hole()] });
            for end in &ends {
                out.extend(self.binary(inner, end));
                if let RuleReplacement::Value(_) = end {
                    for &w in &self.widths {
                        for op in [AluOp::Sub, AluOp::Lsh, AluOp::Rsh, AluOp::Arsh] {
                            out.push(RuleReplacement::Node(
                                PatternOp::Alu(op, w),
                                vec![end.clone(), inner.clone()],
                            ));
                        }
                    }
                }
            }
        }
        out
    }

    /// A choice of leaves, itself or under one operation.
    fn selects(&self) -> Vec<RuleReplacement> {
        let mut out = Vec::new();
        let truth = (0..NAMES).find(|&i| self.truths[i]);
        let Some(t) = truth else { return out };
        let rest: Vec<&RuleReplacement> =
            self.leaves.iter().filter(|l| **l != RuleReplacement::Value(t)).collect();
        for yes in &rest {
            for no in &rest {
                if yes == no {
                    continue;
                }
                let args = vec![RuleReplacement::Value(t), (*yes).clone(), (*no).clone()];
                let chosen = RuleReplacement::Node(PatternOp::Select, args);
                out.extend(self.unary(&chosen));
                let mut ends = self.leaves.clone();
                ends.extend(self.atoms.clone());
                for end in &ends {
                    out.extend(self.binary(&chosen, end));
                    for &w in &self.widths {
                        for op in [AluOp::Sub, AluOp::Lsh, AluOp::Rsh, AluOp::Arsh] {
                            out.push(RuleReplacement::Node(
                                PatternOp::Alu(op, w),
                                vec![end.clone(), chosen.clone()],
                            ));
                        }
                    }
                }
                out.push(chosen);
            }
        }
        if self.consts {
            out.push(RuleReplacement::Node(
                PatternOp::Select,
                vec![RuleReplacement::Value(t), hole(), hole()],
            ));
        }
        out
    }
}

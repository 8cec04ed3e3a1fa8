//! Right sides with a constant left open, cheap ones first.

use millstream_ir::{AluOp, Cond, SwapKind, Width};
use millstream_passes::rules::{Build, CondPat, Expr, Head, NAMES, Pattern, WidthPat};

use super::instance::build_cost;
use super::sample::{truths, uses_width};
use super::shape::{ALU, names};

/// The constant that is left open.
pub(crate) const HOLE: usize = NAMES - 1;

/// A right side, whether it has a constant left open, and its cost.
#[derive(Clone, Debug)]
pub(crate) struct Skeleton {
    pub(crate) build: Build,
    pub(crate) open: bool,
    pub(crate) cost: u32,
}

/// Right sides for a left one that cost less than `below`.
pub(crate) fn skeletons(pattern: &Pattern, below: u32) -> Vec<Skeleton> {
    let (mut values, mut consts) = ([false; NAMES], [false; NAMES]);
    names(pattern, &mut values, &mut consts);
    let Pattern::Node { head: root, .. } = pattern else { return Vec::new() };
    let maker = Maker {
        leaves: (0..NAMES).filter(|&i| values[i]).map(Build::Value).collect(),
        truths: truths(pattern),
        consts: consts.contains(&true),
        atoms: (0..HOLE).filter(|&i| consts[i]).map(|i| Build::Const(Expr::Const(i))).collect(),
        widths: widths(pattern, *root),
        root: *root,
    };
    let mut out = maker.all(below);
    out.retain(|s| s.cost < below);
    out.sort_by_key(|s| s.cost);
    out
}

/// The widths that a right side may have, that of the root first.
fn widths(pattern: &Pattern, root: Head) -> Vec<WidthPat> {
    let (w64, w32) = (WidthPat::Fixed(Width::W64), WidthPat::Fixed(Width::W32));
    match (uses_width(pattern), root.width()) {
        (true, _) => vec![WidthPat::Var(0)],
        (false, WidthPat::Fixed(Width::W32)) => vec![w32, w64],
        (false, _) => vec![w64, w32],
    }
}

#[derive(Clone)]
struct Maker {
    leaves: Vec<Build>,
    truths: [bool; NAMES],
    consts: bool,
    atoms: Vec<Build>,
    widths: Vec<WidthPat>,
    root: Head,
}

fn hole() -> Build {
    Build::Const(Expr::Const(HOLE))
}

fn is_open(build: &Build) -> bool {
    match build {
        Build::Const(expr) => *expr == Expr::Const(HOLE),
        Build::Node(_, args) => args.iter().any(is_open),
        _ => false,
    }
}

impl Maker {
    fn all(&self, below: u32) -> Vec<Skeleton> {
        let builds = match self.root {
            Head::Cmp(..) => self.truth(below),
            _ => self.words(below),
        };
        let skeleton = |build: Build| Skeleton { open: is_open(&build), cost: build_cost(&build), build };
        builds.into_iter().map(skeleton).collect()
    }

    fn truth(&self, below: u32) -> Vec<Build> {
        let mut out = vec![Build::Truth(true), Build::Truth(false)];
        out.extend((0..NAMES).filter(|&i| self.truths[i]).map(Build::Value));
        let ends = self.ends();
        for &w in &self.widths {
            for cond in Cond::ALL {
                let head = Head::Cmp(CondPat::Fixed(cond), w);
                for x in &self.leaves {
                    out.extend(ends.iter().map(|e| Build::Node(head, vec![x.clone(), e.clone()])));
                }
                if below > 5 {
                    for inner in self.ones() {
                        out.extend(ends.iter().map(|e| Build::Node(head, vec![inner.clone(), e.clone()])));
                    }
                }
            }
        }
        out
    }

    fn words(&self, below: u32) -> Vec<Build> {
        let mut out = self.leaves.clone();
        out.push(hole());
        let ones = self.ones();
        out.extend(self.selects());
        if below > 2 {
            // At the width of the root only.
            let narrow = Maker { widths: self.widths[..1].to_vec(), ..self.clone() };
            out.extend(narrow.twos(&narrow.ones()));
        }
        out.extend(ones);
        out
    }

    /// Leaves, and a constant if there may be one.
    fn ends(&self) -> Vec<Build> {
        let mut out = self.leaves.clone();
        out.push(hole());
        out
    }

    /// One operation.
    fn ones(&self) -> Vec<Build> {
        let mut out = Vec::new();
        for x in &self.leaves {
            out.extend(self.unary(x));
            for end in self.ends() {
                out.extend(self.binary(x, &end));
            }
            for &w in &self.widths {
                out.push(Build::Node(Head::Alu(AluOp::Sub, w), vec![hole(), x.clone()]));
            }
        }
        out
    }

    fn unary(&self, x: &Build) -> Vec<Build> {
        let mut heads = vec![Head::Zext, Head::Swap(SwapKind::ToBe, 16), Head::Swap(SwapKind::ToBe, 32)];
        for &w in &self.widths {
            heads.push(Head::Neg(w));
            heads.extend([8, 16, 32].map(|bits| Head::Sext(bits, w)));
        }
        heads.into_iter().map(|head| Build::Node(head, vec![x.clone()])).collect()
    }

    fn binary(&self, x: &Build, y: &Build) -> Vec<Build> {
        let mut out = Vec::new();
        for &w in &self.widths {
            for op in ALU {
                let same = x == y && !matches!(op, AluOp::Add);
                let ordered = matches!(op, AluOp::Add | AluOp::Mul | AluOp::And | AluOp::Or | AluOp::Xor);
                let twice = ordered && matches!((x, y), (Build::Value(i), Build::Value(k)) if k < i);
                // x - c is x + -c.
                let less = op == AluOp::Sub && matches!(y, Build::Const(_));
                if !(same || twice || less) {
                    out.push(Build::Node(Head::Alu(op, w), vec![x.clone(), y.clone()]));
                }
            }
        }
        out
    }

    /// Two operations.
    fn twos(&self, ones: &[Build]) -> Vec<Build> {
        let mut out = Vec::new();
        for inner in ones {
            out.extend(self.unary(inner));
            let mut ends = self.leaves.clone();
            ends.extend(if is_open(inner) { self.atoms.clone() } else { vec![hole()] });
            for end in &ends {
                out.extend(self.binary(inner, end));
                if let Build::Value(_) = end {
                    for &w in &self.widths {
                        for op in [AluOp::Sub, AluOp::Lsh, AluOp::Rsh, AluOp::Arsh] {
                            out.push(Build::Node(Head::Alu(op, w), vec![end.clone(), inner.clone()]));
                        }
                    }
                }
            }
        }
        out
    }

    /// A choice of leaves, itself or under one operation.
    fn selects(&self) -> Vec<Build> {
        let mut out = Vec::new();
        let truth = (0..NAMES).find(|&i| self.truths[i]);
        let Some(t) = truth else { return out };
        let rest: Vec<&Build> = self.leaves.iter().filter(|l| **l != Build::Value(t)).collect();
        for yes in &rest {
            for no in &rest {
                if yes == no {
                    continue;
                }
                let args = vec![Build::Value(t), (*yes).clone(), (*no).clone()];
                let chosen = Build::Node(Head::Select, args);
                out.extend(self.unary(&chosen));
                let mut ends = self.leaves.clone();
                ends.extend(self.atoms.clone());
                for end in &ends {
                    out.extend(self.binary(&chosen, end));
                    for &w in &self.widths {
                        for op in [AluOp::Sub, AluOp::Lsh, AluOp::Rsh, AluOp::Arsh] {
                            out.push(Build::Node(Head::Alu(op, w), vec![end.clone(), chosen.clone()]));
                        }
                    }
                }
                out.push(chosen);
            }
        }
        if self.consts {
            out.push(Build::Node(Head::Select, vec![Build::Value(t), hole(), hole()]));
        }
        out
    }
}

//! Terms as SMT-LIB 2, and values as solvers write them.

use std::fmt::Write as _;

use millstream_isa::semantics::{Pred, Prim};
use rustc_hash::FxHashSet;

use crate::solver::SolverModel;
use crate::term::{Sort, TermId, TermNode, TermPool, TermSymbol};

/// Definitions sent to a solver.
#[derive(Debug, Default)]
pub(super) struct SmtDefinitions {
    terms: FxHashSet<TermId>,
    functions: FxHashSet<String>,
}

/// Version of the translation in this file: changed along with it, so that no cached answer is used for a
/// question that would be translated differently now.
pub(super) const TRANSLATION: &str = "millstream 1\n";

/// Declarations sent to a solver first. Memories and tokens are numbers: there are fewer terms of each sort
/// than numbers, so that a claim that fails for some memories fails for numbers, too. Reads of stores are
/// resolved before, so that both are uninterpreted functions to the solver.
pub(super) const PRELUDE: &str = "(define-sort Token () (_ BitVec 24))
(define-sort Memory () (_ BitVec 24))
(declare-fun select_ (Memory (_ BitVec 64) (_ BitVec 64)) (_ BitVec 8))
(declare-fun store_ (Memory (_ BitVec 64) (_ BitVec 64) (_ BitVec 8)) Memory)
";

/// Writes the definitions of all subterms of a claim that are not yet defined.
pub(super) fn define(terms: &TermPool, claim: TermId, defined: &mut SmtDefinitions, out: &mut String) {
    for t in order(terms, claim, &defined.terms) {
        defined.terms.insert(t);
        if let TermNode::App(f, args) = terms.node(t) {
            let signature: String = args.iter().map(|a| format!("{} ", sort(terms.sort(*a)))).collect();
            let name = function(terms, *f, t);
            if defined.functions.insert(name.clone()) {
                let _ = writeln!(out, "(declare-fun {name} ({signature}) {})", sort(terms.sort(t)));
            }
        }
        let _ = writeln!(out, "(define-fun {} () {} {})", name(t), sort(terms.sort(t)), body(terms, t));
    }
}

/// All subterms of a term, each after its parts.
pub(super) fn order(terms: &TermPool, root: TermId, known: &FxHashSet<TermId>) -> Vec<TermId> {
    let mut out = Vec::new();
    let mut seen: FxHashSet<TermId> = FxHashSet::default();
    let mut stack = vec![(root, false)];
    while let Some((t, done)) = stack.pop() {
        if done {
            out.push(t);
        } else if !known.contains(&t) && seen.insert(t) {
            stack.push((t, true));
            stack.extend(terms.parts_of(t).into_iter().map(|p| (p, false)));
        }
    }
    out
}

pub(super) fn name(t: TermId) -> String {
    format!("t{}", t.index())
}

/// Name of a function, with the sort of its result, because one name may stand for several functions.
fn function(terms: &TermPool, f: TermSymbol, t: TermId) -> String {
    let clean: String = terms.name(f).chars().map(|c| if c == '|' || c == '\\' { '_' } else { c }).collect();
    format!("|{clean} #{} {}|", f.index(), tag(terms.sort(t)))
}

fn tag(sort: Sort) -> String {
    match sort {
        Sort::Bool => "b".into(),
        Sort::Bits(n) => n.to_string(),
        Sort::Memory => "m".into(),
        Sort::Token => "t".into(),
    }
}

fn sort(sort: Sort) -> String {
    match sort {
        Sort::Bool => "Bool".into(),
        Sort::Bits(n) => format!("(_ BitVec {n})"),
        Sort::Memory => "Memory".into(),
        Sort::Token => "Token".into(),
    }
}

/// The values of terms in the reply of a solver.
pub(super) fn values(text: &str) -> SolverModel {
    let word = |c: char| c.is_whitespace() || "()".contains(c);
    let words: Vec<&str> = text.split(word).filter(|w| !w.is_empty()).collect();
    let term = |w: &str| w.strip_prefix('t').and_then(|n| n.parse().ok()).map(TermId::at);
    words.windows(2).filter_map(|pair| Some((term(pair[0])?, number(pair[1])?))).collect()
}

/// A value in the notation of solvers.
fn number(word: &str) -> Option<u64> {
    match word {
        "true" => Some(1),
        "false" => Some(0),
        _ => {
            let digits = |radix| word.get(2..).and_then(|d| u64::from_str_radix(d, radix).ok());
            if word.starts_with("#x") {
                digits(16)
            } else if word.starts_with("#b") {
                digits(2)
            } else {
                None
            }
        }
    }
}

fn literal(bits: u32, value: u64) -> String {
    format!("(_ bv{value} {bits})")
}

fn list(op: &str, args: &[TermId]) -> String {
    let args: String = args.iter().map(|a| format!(" {}", name(*a))).collect();
    format!("({op}{args})")
}

fn body(terms: &TermPool, t: TermId) -> String {
    let bits = terms.bits(t);
    match terms.node(t) {
        TermNode::Truth(b) => b.to_string(),
        TermNode::Const(v) => literal(bits, *v),
        TermNode::App(f, args) if args.is_empty() => function(terms, *f, t),
        TermNode::App(f, args) => list(&function(terms, *f, t), args),
        TermNode::Prim(op, a, b) => list(prim(*op), &[*a, *b]),
        TermNode::Sum(parts, k) => {
            let parts: String = parts
                .iter()
                .map(|(t, c)| match c {
                    1 => format!(" {}", name(*t)),
                    c => format!(" (bvmul {} {})", name(*t), literal(bits, *c)),
                })
                .collect();
            format!("(bvadd{parts} {})", literal(bits, *k))
        }
        TermNode::Concat(parts) => list("concat", parts),
        TermNode::Extract(a, hi, lo) => format!("((_ extract {hi} {lo}) {})", name(*a)),
        TermNode::SignExtend(a) => format!("((_ sign_extend {}) {})", bits - terms.bits(*a), name(*a)),
        TermNode::Compare(p, a, b) => list(predicate(*p), &[*a, *b]),
        TermNode::Ite(c, a, b) => list("ite", &[*c, *a, *b]),
        TermNode::Select(m, o, f) => list("select_", &[*m, *o, *f]),
        TermNode::Store(m, o, f, b) => list("store_", &[*m, *o, *f, *b]),
    }
}

pub(super) fn prim(op: Prim) -> &'static str {
    match op {
        Prim::Add => "bvadd",
        Prim::Sub => "bvsub",
        Prim::Mul => "bvmul",
        Prim::UDiv => "bvudiv",
        Prim::URem => "bvurem",
        Prim::SDiv => "bvsdiv",
        Prim::SRem => "bvsrem",
        Prim::And => "bvand",
        Prim::Or => "bvor",
        Prim::Xor => "bvxor",
        Prim::Shl => "bvshl",
        Prim::LShr => "bvlshr",
        Prim::AShr => "bvashr",
    }
}

pub(super) fn predicate(p: Pred) -> &'static str {
    match p {
        Pred::Eq => "=",
        Pred::Ult => "bvult",
        Pred::Ule => "bvule",
        Pred::Slt => "bvslt",
        Pred::Sle => "bvsle",
    }
}

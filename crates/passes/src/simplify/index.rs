//! Index of the rules that can apply at an instruction: sets of rules by the operation at the root and those
//! that define its first two operands.
//!
//! For each operation at the root there is one list of entries, in the order of the rules, and for each kind
//! of operand the set of the entries that accept it there, as a bit vector. The matcher tries the
//! intersection of two of them: a handful of rules, however many there are.

use millstream_ir::{Cond, Function, Inst, Op, Value};

use super::rule::{CondPat, PatternOp, RewriteRule, RulePattern};
use crate::rewrite::{ValueSubst, negated, swapped};

/// Kinds of operands: operations by name, constants, and everything else.
const NEG: usize = 13;
const ZEXT: usize = 14;
const SEXT: usize = 15;
const SWAP: usize = 18;
const SELECT: usize = 21;
const CMP: usize = 22;
const CONST: usize = 33;
const OTHER: usize = 34;
const KINDS: usize = 35;

/// The kind of an operation; those below [`CONST`] can be at the root of a rule.
fn kind(op: &Op) -> usize {
    match op {
        Op::Alu { op, .. } => *op as usize,
        Op::Neg { .. } => NEG,
        Op::Zext {} => ZEXT,
        Op::Sext { bits, .. } => SEXT + by_bytes(*bits, 1),
        Op::Swap { bits, .. } => SWAP + by_bytes(*bits, 2),
        Op::Select {} => SELECT,
        Op::Cmp { cond, .. } | Op::Branch { cond, .. } => CMP + *cond as usize,
        Op::Const { .. } => CONST,
        _ => OTHER,
    }
}

/// 0, 1, 2 for so many bytes at least, twice, four times as many.
fn by_bytes(bits: u8, least: u8) -> usize {
    ((bits / 8 / least).max(1).ilog2() as usize).min(2)
}

/// The kinds of an operation in a rule.
fn heads(head: PatternOp) -> std::ops::Range<usize> {
    let at = match head {
        PatternOp::Alu(op, _) => op as usize,
        PatternOp::Neg(_) => NEG,
        PatternOp::Zext => ZEXT,
        PatternOp::Sext(bits, _) => SEXT + by_bytes(bits, 1),
        PatternOp::Swap(_, bits) => SWAP + by_bytes(bits, 2),
        PatternOp::Select => SELECT,
        PatternOp::Cmp(CondPat::Fixed(cond), _) => CMP + cond as usize,
        PatternOp::Cmp(CondPat::Bound, _) => return CMP..CONST,
    };
    at..at + 1
}

/// The kinds of values that a pattern can match.
fn kinds(pattern: Option<&RulePattern>) -> std::ops::Range<usize> {
    match pattern {
        Some(RulePattern::Value(_)) | None => 0..KINDS,
        Some(RulePattern::Const(_) | RulePattern::Number(_)) => CONST..OTHER,
        Some(RulePattern::Node { head, .. }) => heads(*head),
    }
}

/// A rule, and how its root is read.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct RuleIndexEntry {
    /// The rule, by position.
    pub(crate) rule: u16,
    /// With the operands of the root exchanged.
    pub(crate) exchanged: bool,
    /// The root is the opposite comparison, and so is the result.
    pub(crate) opposite: bool,
}

/// The entries of one operation at the root.
#[derive(Clone, Debug, Default)]
struct RuleBucket {
    entries: Vec<RuleIndexEntry>,
    /// By position of the operand and its kind, the entries that accept it.
    accept: [Vec<Vec<u64>>; 2],
}

/// Rules, by the instructions that they match.
#[derive(Clone, Debug)]
pub(crate) struct RuleIndex {
    buckets: Vec<RuleBucket>,
}

impl RuleIndex {
    /// The index of these rules.
    pub(crate) fn new(rules: &[RewriteRule]) -> RuleIndex {
        let mut buckets = vec![RuleBucket::default(); CONST];
        for (at, rule) in rules.iter().enumerate() {
            let RulePattern::Node { head, args, .. } = &rule.pattern else { continue };
            for (root, exchanged, opposite) in readings(*head, args) {
                buckets[root].add(RuleIndexEntry { rule: at as u16, exchanged, opposite }, args);
            }
        }
        RuleIndex { buckets }
    }

    /// The entries that can apply at an instruction, in order.
    pub(crate) fn candidates<'i>(
        &'i self,
        func: &Function,
        subst: &ValueSubst,
        inst: Inst,
    ) -> impl Iterator<Item = RuleIndexEntry> + use<'i> {
        let data = &func.insts[inst];
        let root = kind(&data.op);
        let kind_of = |value: Option<&Value>| {
            let def = value.and_then(|&v| func.def_op(subst.resolve(v)));
            def.map_or(OTHER, kind)
        };
        let kinds = [kind_of(data.args.first()), kind_of(data.args.get(1))];
        let bucket = if root < CONST { self.buckets.get(root) } else { None };
        bucket.into_iter().flat_map(move |bucket| bucket.both(kinds))
    }
}

impl RuleBucket {
    fn add(&mut self, entry: RuleIndexEntry, args: &[RulePattern]) {
        let at = self.entries.len();
        self.entries.push(entry);
        let order = if entry.exchanged { [1, 0] } else { [0, 1] };
        for (position, sets) in self.accept.iter_mut().enumerate() {
            if at.is_multiple_of(64) {
                sets.resize_with(KINDS, Vec::new);
                sets.iter_mut().for_each(|set| set.push(0));
            }
            for kind in kinds(args.get(order[position])) {
                sets[kind][at / 64] |= 1 << (at % 64);
            }
        }
    }

    fn both(&self, kinds: [usize; 2]) -> impl Iterator<Item = RuleIndexEntry> + '_ {
        let [a, b] = [0, 1].map(|i| self.accept[i].get(kinds[i]).map_or(&[][..], Vec::as_slice));
        a.iter().zip(b).enumerate().flat_map(move |(word, (a, b))| {
            let mut left = a & b;
            std::iter::from_fn(move || {
                let bit = (left != 0).then(|| left.trailing_zeros() as usize)?;
                left &= left - 1;
                Some(self.entries[word * 64 + bit])
            })
        })
    }
}

/// The ways to read a root: its kind, with operands exchanged or not, as itself or its opposite.
fn readings(head: PatternOp, args: &[RulePattern]) -> Vec<(usize, bool, bool)> {
    let plain = |head: PatternOp| heads(head).map(|root| (root, false, false));
    let PatternOp::Cmp(CondPat::Fixed(cond), _) = head else {
        let mut out: Vec<_> = plain(head).collect();
        if head.commutes() && differ(args) {
            out.extend(heads(head).map(|root| (root, true, false)));
        }
        return out;
    };
    let at = |cond: Cond| CMP + cond as usize;
    let mut out = vec![(at(cond), false, false)];
    if differ(args) || swapped(cond) != cond {
        out.push((at(swapped(cond)), true, false));
    }
    let opposites: Vec<_> = out
        .iter()
        .filter_map(|&(root, exchanged, _)| {
            let cond = Cond::ALL.iter().copied().find(|c| at(*c) == root)?;
            Some((at(negated(cond)?), exchanged, true))
        })
        .collect();
    out.extend(opposites);
    out
}

/// Returns true if exchanged operands can make a difference.
fn differ(args: &[RulePattern]) -> bool {
    !matches!(args, [RulePattern::Value(_), RulePattern::Value(_)])
}

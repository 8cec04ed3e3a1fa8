//! Turns a replacement into a rule: the common parts of both sides are removed, names replace registers and
//! constants, and only those facts and live values are kept that the proof needs. Each step is proven; one
//! that is not proven is not made.

use std::collections::BTreeMap;

use millstream_isa::absint::Scalar;
use millstream_isa::{AluOp, Reg};
use millstream_prove::window::{
    AddressSpace, EntryFact, WindowContext, WindowProver, WindowStep, WindowVerdict,
};

use super::{
    CONSTANT, ConstOperand, LONGEST, PeepholeRule, RuleConstant, RuleInsn, imm, insn_of, registers, with_imm,
    with_insn,
};
use crate::verifier_rules::named;

/// A replacement in its place, and variants with more and more of the instructions that both sides share at
/// their ends removed.
#[derive(Clone, Debug, Default)]
pub struct RuleCandidate {
    pub(crate) variants: Vec<(WindowContext, Vec<WindowStep>, Vec<WindowStep>)>,
}

/// Ranges that are tried for constants and numbers, the widest first.
fn ranges(of: u64, constant: bool) -> Vec<Scalar> {
    let mut out = Vec::new();
    if !constant {
        out.push(Scalar::UNKNOWN);
    } else if i32::try_from(of as i64).is_ok() {
        out.push(Scalar::signed_range(i64::from(i32::MIN), i64::from(i32::MAX)));
    } else {
        out.push(Scalar::UNKNOWN);
    }
    let widths = [63, 48, 32, 31, 16, 15, 8, 7, 6, 5, 4, 1].map(|n| Scalar::range(0, u64::MAX >> (64 - n)));
    out.extend(widths);
    out.retain(|s| s.contains(of));
    out
}

impl RuleCandidate {
    /// The rule behind it, if one can be proven.
    pub fn rule(&self, origin: &str, prover: &mut WindowProver) -> Option<PeepholeRule> {
        let short = self.variants.iter().rev().filter(|v| v.1.len() <= LONGEST);
        let mut rule = short.filter_map(|v| named_rule(v, origin)).find(|rule| holds(rule, prover))?;
        widen(&mut rule, prover);
        constants(&mut rule, prover);
        look_more(&mut rule, prover);
        Some(rule)
    }
}

fn holds(rule: &PeepholeRule, prover: &mut WindowProver) -> bool {
    rule.prove(prover) == WindowVerdict::Equal
}

/// The replacement as a rule, with registers named in the order in which they appear.
fn named_rule(
    (place, left, right): &(WindowContext, Vec<WindowStep>, Vec<WindowStep>),
    origin: &str,
) -> Option<PeepholeRule> {
    if left.is_empty() || left.iter().chain(right).any(|s| matches!(s, WindowStep::Opaque(..))) {
        return None;
    }
    let mut order: Vec<Reg> = Vec::new();
    for r in left.iter().chain(right).flat_map(registers) {
        if r != Reg::R10 && !order.contains(&r) {
            order.push(r);
        }
    }
    let name = |r: Reg| order.iter().position(|o| *o == r).and_then(|n| Reg::new(n as u8)).unwrap_or(r);
    let side = |steps: &[WindowStep]| {
        let item = |s: &WindowStep| {
            let mut insn = insn_of(s);
            insn.rename(name);
            if let millstream_isa::Insn::Branch { off, .. } = &mut insn {
                *off = 0;
            }
            RuleInsn { step: with_insn(*s, insn), imm: None }
        };
        steps.iter().map(item).collect::<Vec<RuleInsn>>()
    };
    let mut regs = [EntryFact::Nothing; 11];
    regs[10] = EntryFact::Address(AddressSpace::Stack, 0, 0);
    let (mut spaces, mut ids) = (BTreeMap::new(), BTreeMap::new());
    for (n, r) in order.iter().enumerate() {
        regs[n] = renumbered(place.entry.regs[r.index()], &mut spaces, &mut ids);
    }
    let look = |l: &millstream_prove::window::LiveOut| {
        let mut out = [0; 11];
        order.iter().enumerate().for_each(|(n, r)| out[n] = l.regs[r.index()]);
        out
    };
    let looks = place.exits.iter().chain([&place.end]).map(look).collect();
    let (left, right) = (side(left), side(right));
    Some(PeepholeRule {
        name: String::new(),
        left,
        right,
        consts: Vec::new(),
        regs,
        looks,
        origin: origin.to_owned(),
        fires: 0,
    })
}

fn renumbered(known: EntryFact, spaces: &mut BTreeMap<u32, u32>, ids: &mut BTreeMap<u32, u32>) -> EntryFact {
    let mut id = |n: u32| {
        let next = ids.len() as u32;
        *ids.entry(n).or_insert(next)
    };
    match known {
        EntryFact::Nothing => EntryFact::Nothing,
        EntryFact::Number(s, n) => {
            let (min, max) = s.unsigned();
            EntryFact::Number(Scalar::range(min, max), id(n))
        }
        EntryFact::Value(n) => EntryFact::Value(id(n)),
        EntryFact::Address(AddressSpace::Stack, _, at) => EntryFact::Address(AddressSpace::Stack, 0, at),
        EntryFact::Address(AddressSpace::Other(s), n, at) => {
            let next = spaces.len() as u32;
            EntryFact::Address(AddressSpace::Other(*spaces.entry(s).or_insert(next)), id(n), at)
        }
    }
}

/// Weakens the facts about registers.
fn widen(rule: &mut PeepholeRule, prover: &mut WindowProver) {
    for n in 0..10 {
        let EntryFact::Number(s, _) = rule.regs[n] else { continue };
        let read = rule
            .left
            .iter()
            .chain(&rule.right)
            .any(|i| named(insn_of(&i.step)).iter().any(|r| r.index() == n));
        let fresh = 100 + n as u32;
        let mut tries: Vec<EntryFact> = Vec::new();
        if !read {
            tries.push(EntryFact::Nothing);
        }
        let max = s.unsigned().1;
        let wide = ranges(max, false).into_iter().filter(|r| r.join(&s) == *r);
        tries.extend(wide.map(|r| EntryFact::Number(r, fresh)));
        for known in tries {
            let old = std::mem::replace(&mut rule.regs[n], known);
            if holds(rule, prover) {
                break;
            }
            rule.regs[n] = old;
        }
    }
}

/// Replaces constants by names, as many as possible.
fn constants(rule: &mut PeepholeRule, prover: &mut WindowProver) {
    let mut values: Vec<u64> = rule.left.iter().filter_map(|i| imm(&insn_of(&i.step))).collect();
    let registers = rule.regs.iter().filter_map(|k| match k {
        EntryFact::Number(s, _) => s.as_constant(),
        _ => None,
    });
    values.extend(registers);
    values.sort_unstable();
    values.dedup();
    values.truncate(4);
    // All at once if one follows from another, else one by one.
    let mut tries = vec![values.clone()];
    if values.len() > 1 {
        tries.extend(values.iter().map(|v| vec![*v]));
    }
    for some in tries {
        let open: Vec<u64> = some.into_iter().filter(|v| !named_already(rule, *v)).collect();
        if open.is_empty() || rule.consts.len() + open.len() > 4 {
            continue;
        }
        let found = forms(rule, &open).into_iter().find(|form| holds(form, prover));
        if let Some(form) = found {
            *rule = form;
        }
    }
}

fn named_already(rule: &PeepholeRule, value: u64) -> bool {
    !rule.left.iter().any(|i| i.imm.is_none() && imm(&insn_of(&i.step)) == Some(value))
        && !rule.regs.iter().any(
            |k| matches!(k, EntryFact::Number(s, id) if *id < CONSTANT && s.as_constant() == Some(value)),
        )
}

/// The rule with these constants named, in all ways: by range, and by the constants on the right that can be
/// computed from them.
fn forms(rule: &PeepholeRule, values: &[u64]) -> Vec<PeepholeRule> {
    let first = rule.consts.len();
    let mut base = rule.clone();
    for item in base.left.iter_mut().chain(&mut base.right).filter(|i| i.imm.is_none()) {
        let value = imm(&insn_of(&item.step));
        let of = values.iter().position(|v| Some(*v) == value);
        if let Some(n) = of {
            *item = open(item, RuleConstant { of: first + n, then: None });
        }
    }
    for known in &mut base.regs {
        if let EntryFact::Number(s, id) = known
            && let Some(n) = s.as_constant().and_then(|v| values.iter().position(|w| *w == v))
        {
            (*s, *id) = (Scalar::UNKNOWN, CONSTANT + (first + n) as u32);
        }
    }
    let mut sides = vec![base.right.clone()];
    for (at, item) in base.right.iter().enumerate().filter(|(_, i)| i.imm.is_none()) {
        let Some(value) = imm(&insn_of(&item.step)) else { continue };
        let exprs = following(values, first, value);
        let with = |expr: &RuleConstant| {
            let mut side = base.right.clone();
            side[at] = open(item, *expr);
            side
        };
        sides.extend(exprs.iter().map(with));
    }
    let classes: Vec<Vec<Scalar>> = values.iter().map(|v| ranges(*v, true)).collect();
    let deepest = classes.iter().map(Vec::len).max().unwrap_or(0);
    let mut out = Vec::new();
    for depth in 0..deepest {
        for side in &sides {
            let mut form = PeepholeRule { right: side.clone(), ..base.clone() };
            form.consts.extend(classes.iter().filter_map(|c| c.get(depth.min(c.len() - 1)).copied()));
            out.push(form);
        }
    }
    out
}

/// An instruction whose constant is replaced by one of the rule's.
fn open(item: &RuleInsn, expr: RuleConstant) -> RuleInsn {
    let insn = insn_of(&item.step);
    RuleInsn { step: with_insn(item.step, with_imm(insn, 0).unwrap_or(insn)), imm: Some(expr) }
}

/// Expressions with a given value, over constants and small numbers.
fn following(values: &[u64], first: usize, wanted: u64) -> Vec<RuleConstant> {
    let ops = [AluOp::Add, AluOp::Sub, AluOp::And, AluOp::Or, AluOp::Xor, AluOp::Lsh, AluOp::Rsh, AluOp::Mul];
    let mut args: Vec<ConstOperand> = (0..values.len()).map(|n| ConstOperand::Const(first + n)).collect();
    args.extend([-1, 1, 2, 8, 16, 24, 32, 48, 56].map(ConstOperand::Literal));
    let mut consts = vec![None; first];
    consts.extend(values.iter().map(|v| Some(*v)));
    let mut out = Vec::new();
    for of in first..first + values.len() {
        for op in ops {
            let exprs = args.iter().map(|arg| RuleConstant { of, then: Some((op, *arg)) });
            out.extend(exprs.filter(|e| e.value(&consts) == Some(wanted)));
        }
    }
    out
}

/// Makes more bits of registers live.
fn look_more(rule: &mut PeepholeRule, prover: &mut WindowProver) {
    let steps = rule.left.iter().chain(&rule.right).flat_map(|i| registers(&i.step));
    let steps: Vec<usize> = steps.map(Reg::index).collect();
    for at in 0..rule.looks.len() {
        for n in 0..10 {
            if !steps.contains(&n) {
                continue;
            }
            for bits in [u64::MAX, 0xffff_ffff] {
                let old = rule.looks[at][n];
                if old | bits != bits || old == bits {
                    continue;
                }
                rule.looks[at][n] = bits;
                if holds(rule, prover) {
                    break;
                }
                rule.looks[at][n] = old;
            }
        }
    }
}

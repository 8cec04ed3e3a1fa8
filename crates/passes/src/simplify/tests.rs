//! Every rule is tried on many operands: both sides must compute the same, and the right side must not cost
//! more.

use millstream_ir::random::SeededRng;
use millstream_ir::{AluOp, Cond, Op, Width};

use super::matcher::{RuleBindings, at_width};
use super::rule::{NAMES, PatternOp, RewriteRule, RuleCondition, RulePattern, RuleReplacement, WidthPat};
use super::{RuleSet, op_of};
use crate::fold::eval_op;
use crate::rewrite::negated;

struct Sample {
    env: RuleBindings,
    words: [u64; NAMES],
}

fn sample(rule: &RewriteRule, random: &mut SeededRng) -> Sample {
    let mut width = || if random.below(2) == 0 { Width::W32 } else { Width::W64 };
    let mut env = RuleBindings { widths: [Some(width()), Some(width())], ..RuleBindings::default() };
    env.cond = Some(Cond::ALL[random.below(11) as usize]);
    for slot in &mut env.consts {
        *slot = Some(random.boundary_biased_word());
    }
    bind_consts(&rule.pattern, WidthPat::Fixed(Width::W64), &mut env);
    let mut words = [0; NAMES].map(|_| random.boundary_biased_word());
    // Values that a rule compares by identity are drawn equal; types bound the rest.
    for test in &rule.tests {
        if let RuleCondition::Bits(i, bits) = test {
            let bits = env.eval(bits);
            words[*i] &= if bits >= 64 { u64::MAX } else { (1 << bits) - 1 };
        }
    }
    Sample { env, words }
}

/// A constant is seen at the width of the operation that it is an operand of.
fn bind_consts(pattern: &RulePattern, width: WidthPat, env: &mut RuleBindings) {
    match pattern {
        RulePattern::Const(i) => {
            let width = env.width(width);
            env.consts[*i] = env.consts[*i].map(|c| at_width(c, width));
        }
        RulePattern::Node { head, args, .. } => args.iter().for_each(|a| bind_consts(a, head.width(), env)),
        _ => {}
    }
}

fn holds(rule: &RewriteRule, env: &RuleBindings) -> bool {
    rule.tests.iter().all(|test| match test {
        RuleCondition::Holds(expr) => env.eval(expr) != 0,
        _ => true,
    })
}

fn eval_pattern(pattern: &RulePattern, s: &Sample) -> u64 {
    match pattern {
        RulePattern::Value(i) => s.words[*i],
        RulePattern::Const(i) => s.env.consts[*i].expect("every constant is drawn"),
        RulePattern::Number(n) => *n as u64,
        RulePattern::Node { head, args, .. } => {
            let args: Vec<u64> = args.iter().map(|a| eval_pattern(a, s)).collect();
            eval_op(&op_of(*head, &s.env), &args).expect("rules are over arithmetic")
        }
    }
}

fn eval_build(build: &RuleReplacement, s: &Sample) -> u64 {
    match build {
        RuleReplacement::Value(i) => s.words[*i],
        RuleReplacement::Const(expr) => s.env.eval(expr),
        RuleReplacement::Truth(truth) => u64::from(*truth),
        RuleReplacement::Not(inner) => 1 - eval_build(inner, s),
        RuleReplacement::Node(head, args) => {
            let args: Vec<u64> = args.iter().map(|a| eval_build(a, s)).collect();
            eval_op(&op_of(*head, &s.env), &args).expect("rules are over arithmetic")
        }
    }
}

/// A truth value on the left of a rule is 0 or 1, as `select` demands.
fn normalize_truths(pattern: &RulePattern, s: &mut Sample) {
    if let RulePattern::Node { head, args, .. } = pattern {
        if let (PatternOp::Select, Some(RulePattern::Value(i))) = (head, args.first()) {
            s.words[*i] &= 1;
        }
        args.iter().for_each(|a| normalize_truths(a, s));
    }
}

#[test]
fn both_sides_of_every_rule_compute_the_same() {
    let mut random = SeededRng::new(1);
    let mut wrong = Vec::new();
    for rule in RuleSet::written() {
        let mut tried = 0;
        for _ in 0..60_000 {
            let mut s = sample(&rule, &mut random);
            if !holds(&rule, &s.env) {
                continue;
            }
            normalize_truths(&rule.pattern, &mut s);
            let (left, right) = (eval_pattern(&rule.pattern, &s), eval_build(&rule.build, &s));
            if left != right {
                wrong.push(format!(
                    "{}: {left:x} and {right:x} of values {:x?}, constants {:x?}, widths {:?}, condition {:?}",
                    rule.name, s.words, s.env.consts, s.env.widths, s.env.cond
                ));
                break;
            }
            tried += 1;
            if tried == 400 {
                break;
            }
        }
        if tried < 5 && wrong.last().is_none_or(|w| !w.starts_with(&rule.name)) {
            wrong.push(format!("{}: its tests hold for {tried} of the samples", rule.name));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

fn op_cost(op: &Op) -> u32 {
    match op {
        Op::Alu { op: AluOp::Mul, .. } => 3,
        Op::Alu { op: AluOp::Div | AluOp::SDiv | AluOp::Mod | AluOp::SMod, .. } => 25,
        _ => 1,
    }
}

/// Cost of what goes when the rule fires: its root and all that has no other use.
fn freed(pattern: &RulePattern, env: &RuleBindings, root: bool) -> u32 {
    match pattern {
        RulePattern::Node { head, once, args } => {
            let own = if root || *once { op_cost(&op_of(*head, env)) } else { 0 };
            own + args.iter().map(|a| freed(a, env, false)).sum::<u32>()
        }
        _ => 0,
    }
}

fn built(build: &RuleReplacement, env: &RuleBindings) -> u32 {
    match build {
        RuleReplacement::Node(head, args) => {
            op_cost(&op_of(*head, env)) + args.iter().map(|a| built(a, env)).sum::<u32>()
        }
        RuleReplacement::Not(inner) => built(inner, env),
        _ => 0,
    }
}

#[test]
fn no_rule_makes_code_dearer() {
    let env = RuleBindings::default();
    let mut dearer = Vec::new();
    for rule in RuleSet::written() {
        let (before, after) = (freed(&rule.pattern, &env, true), built(&rule.build, &env));
        if after > before {
            dearer.push(format!("{}: {after} units for {before}", rule.name));
        }
    }
    assert!(dearer.is_empty(), "{}", dearer.join("\n"));
}

#[test]
fn opposite_conditions_are_opposite() {
    let mut random = SeededRng::new(7);
    for cond in Cond::ALL {
        let Some(not) = negated(cond) else { continue };
        for _ in 0..200 {
            let (a, b, width) = (random.boundary_biased_word(), random.boundary_biased_word(), Width::W64);
            let values = [cond, not].map(|cond| eval_op(&Op::Cmp { cond, width }, &[a, b]));
            assert_eq!(values[0].map(|v| 1 - v), values[1], "{cond:?} {a:x} {b:x}");
        }
    }
}

//! Every rule is tried on many operands: both sides must compute the same, and the right side must not cost more.

use millstream_ir::random::Random;
use millstream_ir::{AluOp, Cond, Op, Width};

use super::matcher::{Bindings, at_width};
use super::rule::{Build, Head, NAMES, Pattern, Rule, Test, WidthPat};
use super::{RuleSet, op_of};
use crate::fold::eval_op;
use crate::rewrite::negated;

struct Sample {
    env: Bindings,
    words: [u64; NAMES],
}

fn sample(rule: &Rule, random: &mut Random) -> Sample {
    let mut width = || if random.below(2) == 0 { Width::W32 } else { Width::W64 };
    let mut env = Bindings { widths: [Some(width()), Some(width())], ..Bindings::default() };
    env.cond = Some(Cond::ALL[random.below(11) as usize]);
    for slot in &mut env.consts {
        *slot = Some(random.corner());
    }
    bind_consts(&rule.pattern, WidthPat::Fixed(Width::W64), &mut env);
    let mut words = [0; NAMES].map(|_| random.corner());
    // Values that a rule compares by identity are drawn equal; types bound the rest.
    for test in &rule.tests {
        if let Test::Bits(i, bits) = test {
            let bits = env.eval(bits);
            words[*i] &= if bits >= 64 { u64::MAX } else { (1 << bits) - 1 };
        }
    }
    Sample { env, words }
}

/// A constant is seen at the width of the operation that it is an operand of.
fn bind_consts(pattern: &Pattern, width: WidthPat, env: &mut Bindings) {
    match pattern {
        Pattern::Const(i) => {
            let width = env.width(width);
            env.consts[*i] = env.consts[*i].map(|c| at_width(c, width));
        }
        Pattern::Node { head, args, .. } => args.iter().for_each(|a| bind_consts(a, head.width(), env)),
        _ => {}
    }
}

fn holds(rule: &Rule, env: &Bindings) -> bool {
    rule.tests.iter().all(|test| match test {
        Test::Holds(expr) => env.eval(expr) != 0,
        _ => true,
    })
}

fn eval_pattern(pattern: &Pattern, s: &Sample) -> u64 {
    match pattern {
        Pattern::Value(i) => s.words[*i],
        Pattern::Const(i) => s.env.consts[*i].expect("every constant is drawn"),
        Pattern::Number(n) => *n as u64,
        Pattern::Node { head, args, .. } => {
            let args: Vec<u64> = args.iter().map(|a| eval_pattern(a, s)).collect();
            eval_op(&op_of(*head, &s.env), &args).expect("rules are over arithmetic")
        }
    }
}

fn eval_build(build: &Build, s: &Sample) -> u64 {
    match build {
        Build::Value(i) => s.words[*i],
        Build::Const(expr) => s.env.eval(expr),
        Build::Truth(truth) => u64::from(*truth),
        Build::Not(inner) => 1 - eval_build(inner, s),
        Build::Node(head, args) => {
            let args: Vec<u64> = args.iter().map(|a| eval_build(a, s)).collect();
            eval_op(&op_of(*head, &s.env), &args).expect("rules are over arithmetic")
        }
    }
}

/// A truth value on the left of a rule is 0 or 1, as `select` demands.
fn normalize_truths(pattern: &Pattern, s: &mut Sample) {
    if let Pattern::Node { head, args, .. } = pattern {
        if let (Head::Select, Some(Pattern::Value(i))) = (head, args.first()) {
            s.words[*i] &= 1;
        }
        args.iter().for_each(|a| normalize_truths(a, s));
    }
}

#[test]
fn both_sides_of_every_rule_compute_the_same() {
    let mut random = Random::new(1);
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
fn freed(pattern: &Pattern, env: &Bindings, root: bool) -> u32 {
    match pattern {
        Pattern::Node { head, once, args } => {
            let own = if root || *once { op_cost(&op_of(*head, env)) } else { 0 };
            own + args.iter().map(|a| freed(a, env, false)).sum::<u32>()
        }
        _ => 0,
    }
}

fn built(build: &Build, env: &Bindings) -> u32 {
    match build {
        Build::Node(head, args) => {
            op_cost(&op_of(*head, env)) + args.iter().map(|a| built(a, env)).sum::<u32>()
        }
        Build::Not(inner) => built(inner, env),
        _ => 0,
    }
}

#[test]
fn no_rule_makes_code_dearer() {
    let env = Bindings::default();
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
    let mut random = Random::new(7);
    for cond in Cond::ALL {
        let Some(not) = negated(cond) else { continue };
        for _ in 0..200 {
            let (a, b, width) = (random.corner(), random.corner(), Width::W64);
            let values = [cond, not].map(|cond| eval_op(&Op::Cmp { cond, width }, &[a, b]));
            assert_eq!(values[0].map(|v| 1 - v), values[1], "{cond:?} {a:x} {b:x}");
        }
    }
}

//! Finds right sides for a left one: constants by their values on samples, conditions by the samples where it
//! holds, and then a proof.

use millstream_ir::Width;
use millstream_ir::random::SeededRng;
use millstream_passes::rules::{
    ConstExpr, NAMES, PatternOp, RewriteRule, RuleCondition, RulePattern, RuleReplacement, WidthPat,
    parse_rule,
};
use millstream_prove::SolverError;

use super::consts::{
    SampleSet, SampledCondition, SampledExpr, both, common, conditions, functions, set, within,
};
use super::eval::RuleEnv;
use super::instance::{RuleSimplifier, affordable, pattern_cost};
use super::lhs::{LeftHandSide, truths};
use super::sample::{ConstantRole, RuleSample, roles, sample, samples, uses_width};
use super::skeleton::{HOLE, RhsSkeleton, skeletons};
use crate::check::{RuleProver, RuleVerdict};

/// Rules for one left side.
const MOST_RULES: usize = 4;
/// Right sides that are tried.
const MOST_TRIES: usize = 16;
/// Rounds in which a counterexample becomes a sample.
const ROUNDS: usize = 5;
/// Samples that a rule must help on, where there are constants.
const LEAST: u32 = 3;
/// Samples on which a right side is looked at first.
const FIRST: usize = 10;

/// A right side with the samples where it is right.
struct RhsCandidate {
    build: RuleReplacement,
    cost: u32,
    valid: SampleSet,
}

/// The search at one left side.
pub(crate) struct RuleSynthesizer<'a> {
    pub(crate) shape: &'a LeftHandSide,
    pub(crate) random: SeededRng,
    pub(crate) prover: &'a mut RuleProver,
}

impl RuleSynthesizer<'_> {
    /// New rules for this left side: none that those in `known` make of it already.
    pub(crate) fn run(&mut self, known: &RuleSimplifier) -> Result<Vec<RewriteRule>, SolverError> {
        let mut samples = samples(self.shape, &mut self.random);
        let now: Vec<u32> = samples.iter().map(|s| self.now(known, s)).collect();
        let most = now.iter().copied().max().unwrap_or(0);
        if most == 0 {
            return Ok(Vec::new());
        }
        let roles = roles(&self.shape.pattern);
        let whole =
            pattern_cost(&self.shape.pattern, &RuleEnv { values: [0; 4], consts: [0; 4], width: Width::W64 });
        let wide = if whole <= 2 { 160 } else { 60 };
        let functions = functions(&samples, &roles, uses_width(&self.shape.pattern), wide);
        let mut candidates = self.candidates(&samples, &now, &functions, most.min(whole));
        candidates.sort_by_key(|c| {
            (c.cost, std::cmp::Reverse(c.valid.iter().map(|w| w.count_ones()).sum::<u32>()))
        });
        let mut found: Vec<RewriteRule> = Vec::new();
        if candidates.is_empty() {
            return Ok(found);
        }
        let mut covered: SampleSet = vec![0; samples.len().div_ceil(64)];
        let mut conditions = conditions(&samples, &roles, uses_width(&self.shape.pattern));
        for candidate in candidates.into_iter().take(MOST_TRIES) {
            let useful = self.useful(&samples, &now, &candidate, &covered);
            let Some((rule, holds)) = self.prove(&candidate, &useful, &mut samples, &mut conditions)? else {
                continue;
            };
            for (c, h) in covered.iter_mut().zip(&holds) {
                *c |= h;
            }
            found.push(rule);
            if found.len() == MOST_RULES {
                break;
            }
        }
        Ok(found)
    }

    /// Cost of a sample after the existing rules.
    fn now(&self, known: &RuleSimplifier, s: &RuleSample) -> u32 {
        let before = pattern_cost(&self.shape.pattern, &s.env);
        let after = known.run(&self.shape.pattern, &self.shape.tests, &s.env);
        after.map_or(0, |a| a.cost).min(before)
    }

    fn candidates(
        &mut self,
        samples: &[RuleSample],
        now: &[u32],
        functions: &[SampledExpr],
        below: u32,
    ) -> Vec<RhsCandidate> {
        let least = if samples.len() > 2 { LEAST } else { 1 };
        let first: Vec<usize> =
            (0..FIRST.min(samples.len())).map(|_| self.random.below(samples.len() as u64) as usize).collect();
        let mut out: Vec<RhsCandidate> = Vec::new();
        for skeleton in skeletons(&self.shape.pattern, below) {
            if !first.iter().any(|&i| now[i] > skeleton.cost) && first.len() < samples.len() {
                continue;
            }
            for (build, valid) in fits(&skeleton, samples, functions, &first) {
                let helps = set_of(samples.len(), |i| now[i] > skeleton.cost);
                let new = !out.iter().any(|c| c.cost <= skeleton.cost && within(&valid, &c.valid));
                if common(&valid, &helps) >= least && new {
                    out.push(RhsCandidate { build, cost: skeleton.cost, valid });
                }
            }
        }
        out
    }

    /// Samples on which a right side is better than the existing result, and can be used.
    fn useful(
        &self,
        samples: &[RuleSample],
        now: &[u32],
        c: &RhsCandidate,
        covered: &SampleSet,
    ) -> SampleSet {
        set_of(samples.len(), |i| {
            let bit = |s: &SampleSet| s.get(i / 64).is_some_and(|w| w >> (i % 64) & 1 == 1);
            let better = now.get(i).is_some_and(|now| *now > c.cost);
            let root = matches!(c.build, RuleReplacement::Const(_));
            better && !bit(covered) && (root || affordable(&c.build, &samples[i].env, Width::W64))
        })
    }

    /// The weakest condition under which a right side is right, and the rule with it if it is proven.
    fn prove(
        &mut self,
        c: &RhsCandidate,
        useful: &SampleSet,
        samples: &mut Vec<RuleSample>,
        conditions: &mut [SampledCondition],
    ) -> Result<Option<(RewriteRule, SampleSet)>, SolverError> {
        let least = if samples.len() > 2 { LEAST } else { 1 };
        for _ in 0..ROUNDS {
            let valid = set(samples, |s| agrees(&c.build, s));
            let Some(condition) = weakest(conditions, &valid, useful, least) else { return Ok(None) };
            let Some(rule) = self.rule(&c.build, &condition.tests) else { return Ok(None) };
            match self.prover.check(&rule)?.outcome {
                RuleVerdict::Proven { .. } => {
                    let rule = self.weaken(rule)?;
                    let rule = match widened(&rule) {
                        Some(wide) if self.prover.check(&wide)?.outcome.is_proven() => wide,
                        _ => rule,
                    };
                    return Ok(Some((rule, condition.holds)));
                }
                RuleVerdict::Undecided(_) => return Ok(None),
                RuleVerdict::Refuted { at, values } => {
                    let value = |name: &str| values.iter().find(|(n, _)| n == name).map_or(0, |(_, v)| *v);
                    // The rule has been read anew: its names are in the order in which they stand.
                    let order = OccurrenceOrder::of(&self.shape.pattern);
                    let mut env = RuleEnv { values: [0; NAMES], consts: [0; NAMES], width: at.widths[0] };
                    for (i, name) in ["x", "y", "z", "u"].iter().enumerate() {
                        if let Some(k) = order.values.get(i) {
                            env.values[*k] = value(name);
                        }
                    }
                    for (i, name) in ["a", "b", "c", "d"].iter().enumerate() {
                        if let Some(k) = order.consts.get(i) {
                            env.consts[*k] = value(name);
                        }
                    }
                    let mut new = sample(self.shape, env, &mut self.random);
                    new.left.push(env.pattern(&self.shape.pattern));
                    new.values.push(env.values);
                    samples.push(new);
                    extend(conditions, samples);
                }
            }
        }
        Ok(None)
    }

    fn rule(&self, build: &RuleReplacement, condition: &[RuleCondition]) -> Option<RewriteRule> {
        let mut tests = Vec::new();
        let truths = truths(&self.shape.pattern);
        let order = OccurrenceOrder::of(&self.shape.pattern);
        for &i in &order.values {
            let known = |t: &RuleCondition| {
                t.of_value() == Some(i) || matches!(t, RuleCondition::Disjoint(k, l) if *k == i || *l == i)
            };
            if !truths[i] && !self.shape.tests.iter().any(known) {
                tests.push(RuleCondition::Int(i));
            }
        }
        tests.extend(self.shape.tests.iter().cloned());
        for (i, role) in roles(&self.shape.pattern).into_iter().enumerate() {
            if let ConstantRole::Count(width) = role {
                let width = match width {
                    WidthPat::Fixed(width) => ConstExpr::Number(i64::from(width.bits())),
                    WidthPat::Var(i) => ConstExpr::Bits(i),
                };
                let args = vec![ConstExpr::Const(i), width];
                tests.push(RuleCondition::Holds(ConstExpr::Apply(millstream_passes::rules::Func::Lt, args)));
            }
        }
        tests.extend(condition.iter().cloned());
        tests.extend(target_tests(&self.shape.pattern, build));
        let rule = RewriteRule {
            name: String::new(),
            pattern: self.shape.pattern.clone(),
            build: build.clone(),
            tests,
            learnt: true,
        };
        // Read anew, so that names stand in the order in which they appear.
        let rule = parse_rule(&rule.to_string()).ok()?;
        Some(RewriteRule { learnt: true, ..rule })
    }

    /// The rule without the tests that it does not need.
    fn weaken(&mut self, mut rule: RewriteRule) -> Result<RewriteRule, SolverError> {
        let mut at = 0;
        while at < rule.tests.len() {
            if matches!(rule.tests[at], RuleCondition::Int(_) | RuleCondition::V4 | RuleCondition::Jmp32) {
                at += 1;
                continue;
            }
            let mut without = rule.clone();
            // The value that it tests stays an integer.
            let integers = match without.tests.remove(at) {
                RuleCondition::Disjoint(i, k) => vec![k, i],
                other => other.of_value().into_iter().collect(),
            };
            without.tests.splice(at..at, integers.into_iter().map(RuleCondition::Int));
            if self.prover.check(&without)?.outcome.is_proven() {
                rule = without;
            } else {
                at += 1;
            }
        }
        Ok(rule)
    }
}

/// The rule at both widths, if it has one only.
fn widened(rule: &RewriteRule) -> Option<RewriteRule> {
    let text = rule.to_string();
    let (one, bits) = match (text.contains(".64"), text.contains(".32"), text.contains(".w")) {
        (true, false, false) => (".64", "64"),
        (false, true, false) => (".32", "32"),
        _ => return None,
    };
    let words: Vec<&str> = text.split(' ').collect();
    let wide = |word: &&str| match word.trim_end_matches([')', '}']) {
        plain if plain == bits => word.replace(bits, "w"),
        _ => word.replace(one, ".w"),
    };
    let text = words.iter().map(wide).collect::<Vec<_>>().join(" ");
    let wide = parse_rule(&text).ok()?;
    Some(RewriteRule { learnt: true, ..wide })
}

/// Values and constants of a pattern in the order in which they stand.
struct OccurrenceOrder {
    values: Vec<usize>,
    consts: Vec<usize>,
}

impl OccurrenceOrder {
    fn of(pattern: &RulePattern) -> OccurrenceOrder {
        let mut order = OccurrenceOrder { values: Vec::new(), consts: Vec::new() };
        order.look(pattern);
        order
    }

    fn look(&mut self, pattern: &RulePattern) {
        match pattern {
            RulePattern::Value(i) if !self.values.contains(i) => self.values.push(*i),
            RulePattern::Const(i) if !self.consts.contains(i) => self.consts.push(*i),
            RulePattern::Node { args, .. } => args.iter().for_each(|arg| self.look(arg)),
            _ => {}
        }
    }
}

/// Features that a target must have for the right side but not for the left one.
fn target_tests(pattern: &RulePattern, build: &RuleReplacement) -> Vec<RuleCondition> {
    let (mut left, mut right) = ((false, false), (false, false));
    needs_left(pattern, &mut left);
    needs_right(build, &mut right);
    let mut out = Vec::new();
    if right.0 && !left.0 {
        out.push(RuleCondition::V4);
    }
    if right.1 && !left.1 {
        out.push(RuleCondition::Jmp32);
    }
    out
}

fn needs(head: PatternOp, out: &mut (bool, bool)) {
    match head {
        PatternOp::Sext(..) => out.0 = true,
        PatternOp::Cmp(_, WidthPat::Fixed(Width::W32)) => out.1 = true,
        _ => {}
    }
}

fn needs_left(pattern: &RulePattern, out: &mut (bool, bool)) {
    if let RulePattern::Node { head, args, .. } = pattern {
        needs(*head, out);
        args.iter().for_each(|arg| needs_left(arg, out));
    }
}

fn needs_right(build: &RuleReplacement, out: &mut (bool, bool)) {
    if let RuleReplacement::Node(head, args) = build {
        needs(*head, out);
        args.iter().for_each(|arg| needs_right(arg, out));
    }
}

fn set_of(count: usize, holds: impl Fn(usize) -> bool) -> SampleSet {
    let mut out = vec![0; count.div_ceil(64)];
    for i in 0..count {
        out[i / 64] |= u64::from(holds(i)) << (i % 64);
    }
    out
}

/// Returns true if a right side without anything open is right on a sample.
fn agrees(build: &RuleReplacement, s: &RuleSample) -> bool {
    s.values.iter().zip(&s.left).all(|(v, left)| s.env.with(v).build(build) == *left)
}

/// Solutions for the open constants of a right side, with the samples where it is right then.
fn fits(
    skeleton: &RhsSkeleton,
    samples: &[RuleSample],
    functions: &[SampledExpr],
    first: &[usize],
) -> Vec<(RuleReplacement, SampleSet)> {
    if let RuleReplacement::Node(PatternOp::Select, args) = &skeleton.build
        && let [
            RuleReplacement::Value(t),
            RuleReplacement::Const(ConstExpr::Const(HOLE)),
            RuleReplacement::Const(ConstExpr::Const(HOLE)),
        ] = args[..]
    {
        return chosen(t, samples, functions);
    }
    if !skeleton.open {
        let valid = set(samples, |s| agrees(&skeleton.build, s));
        return vec![(skeleton.build.clone(), valid)];
    }
    let right = |s: &RuleSample, value: u64| {
        let mut env = s.env;
        env.consts[HOLE] = value;
        s.values.iter().zip(&s.left).all(|(v, left)| env.with(v).build(&skeleton.build) == *left)
    };
    let any = first.iter().any(|&i| functions.iter().any(|f| right(&samples[i], f.values[i])));
    if !any {
        return Vec::new();
    }
    let mut out: Vec<(RuleReplacement, SampleSet)> = Vec::new();
    for f in functions {
        let valid = set_of(samples.len(), |i| right(&samples[i], f.values[i]));
        let some = valid.iter().any(|w| *w != 0);
        if some && !out.iter().any(|(_, v)| within(&valid, v)) {
            out.push((filled(&skeleton.build, &f.expr), valid));
        }
    }
    out
}

/// A choice of two constants: each is looked for where it is chosen.
fn chosen(t: usize, samples: &[RuleSample], functions: &[SampledExpr]) -> Vec<(RuleReplacement, SampleSet)> {
    let arm = |truth: u64| {
        let mut out: Vec<(ConstExpr, SampleSet)> = Vec::new();
        for f in functions {
            let right = |i: usize| {
                let s = &samples[i];
                let mut pairs = s.values.iter().zip(&s.left);
                pairs.all(|(v, left)| v[t] != truth || *left == f.values[i])
            };
            let valid = set_of(samples.len(), right);
            if valid.iter().any(|w| *w != 0) && !out.iter().any(|(_, v)| within(&valid, v)) {
                out.push((f.expr.clone(), valid));
            }
        }
        out.sort_by_key(|(_, v)| std::cmp::Reverse(v.iter().map(|w| w.count_ones()).sum::<u32>()));
        out.truncate(3);
        out
    };
    let (yes, no) = (arm(1), arm(0));
    let mut out = Vec::new();
    for (e, v) in &yes {
        for (f, w) in &no {
            let args = vec![
                RuleReplacement::Value(t),
                RuleReplacement::Const(e.clone()),
                RuleReplacement::Const(f.clone()),
            ];
            out.push((RuleReplacement::Node(PatternOp::Select, args), both(v, w)));
        }
    }
    out
}

fn filled(build: &RuleReplacement, expr: &ConstExpr) -> RuleReplacement {
    match build {
        RuleReplacement::Const(e) if *e == ConstExpr::Const(HOLE) => RuleReplacement::Const(expr.clone()),
        RuleReplacement::Node(head, args) => {
            RuleReplacement::Node(*head, args.iter().map(|a| filled(a, expr)).collect())
        }
        other => other.clone(),
    }
}

/// The condition, or two of them, that holds most often where it helps, and nowhere where the right side is
/// wrong.
fn weakest(
    conditions: &[SampledCondition],
    valid: &SampleSet,
    useful: &SampleSet,
    least: u32,
) -> Option<SampledCondition> {
    let good = |holds: &SampleSet| within(holds, valid);
    let mut best: Option<(u32, SampledCondition)> = None;
    let whole = common(valid, useful);
    for c in conditions.iter().filter(|c| good(&c.holds)) {
        let helps = common(&c.holds, useful);
        if helps >= least && best.as_ref().is_none_or(|(n, _)| helps > *n) {
            best = Some((helps, c.clone()));
        }
    }
    if best.as_ref().is_none_or(|(n, _)| 10 * n < 7 * whole) {
        let worth: Vec<&SampledCondition> =
            conditions.iter().filter(|c| common(&c.holds, useful) >= least && !good(&c.holds)).collect();
        for (i, a) in worth.iter().enumerate() {
            for b in &worth[i + 1..] {
                let holds = both(&a.holds, &b.holds);
                let helps = common(&holds, useful);
                // Two conditions must be worth their length.
                if helps >= least && best.as_ref().is_none_or(|(n, _)| 2 * helps > 3 * n) && good(&holds) {
                    let tests = a.tests.iter().chain(&b.tests).cloned().collect();
                    best = Some((helps, SampledCondition { tests, holds }));
                }
            }
        }
    }
    best.map(|(_, c)| c)
}

/// Says for conditions whether they hold for samples that are new.
fn extend(conditions: &mut [SampledCondition], samples: &[RuleSample]) {
    for c in conditions.iter_mut() {
        c.holds = set(samples, |s| c.tests.iter().all(|t| s.env.test(t)));
    }
}

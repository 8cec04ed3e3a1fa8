//! Of many right rules those that are worth having: none that the others together already do, each doing
//! something.

use millstream_ir::random::SeededRng;
use millstream_passes::rules::{RewriteRule, RuleCondition, RulePattern, RuleReplacement, StoredRule};

use super::eval::RuleEnv;
use super::instance::{RuleSimplifier, affordable, build_cost};
use super::lhs::LeftHandSide;
use super::sample::samples;
use millstream_ir::Width;

/// Instances that a rule is looked at by.
const INSTANCES: usize = 14;

/// Choices of constants that pass the tests of a rule, and that it can be applied with.
fn instances(rule: &RewriteRule, seed: u64) -> Vec<RuleEnv> {
    let known = |t: &&RuleCondition| {
        !matches!(
            t,
            RuleCondition::Int(_) | RuleCondition::Holds(_) | RuleCondition::V4 | RuleCondition::Jmp32
        )
    };
    let shape = LeftHandSide {
        pattern: rule.pattern.clone(),
        tests: rule.tests.iter().filter(known).cloned().collect(),
    };
    let mut random = SeededRng::new(seed);
    let mut out = Vec::new();
    for _ in 0..4 {
        for s in samples(&shape, &mut random) {
            let passes = rule.tests.iter().all(|t| !matches!(t, RuleCondition::Holds(_)) || s.env.test(t));
            let root = matches!(rule.build, RuleReplacement::Const(_));
            if passes && (root || affordable(&rule.build, &s.env, Width::W64)) && !out.contains(&s.env) {
                out.push(s.env);
            }
        }
        if out.len() >= INSTANCES {
            break;
        }
    }
    // Spread over all that there are.
    let step = (out.len() / INSTANCES).max(1);
    out.into_iter().step_by(step).take(INSTANCES).collect()
}

/// Returns true if these rules already make every instance as cheap as the rule does.
fn is_done(rule: &RewriteRule, instances: &[RuleEnv], by: &RuleSimplifier) -> bool {
    let cost = build_cost(&rule.build);
    instances.iter().all(|env| by.run(&rule.pattern, &rule.tests, env).is_none_or(|now| now.cost <= cost))
}

/// Returns true if the last of these rules, which is the one in question, is ever applied and leaves less
/// than there was.
fn helps(rule: &RewriteRule, instances: &[RuleEnv], with: &RuleSimplifier, without: &RuleSimplifier) -> bool {
    instances.iter().any(|env| {
        let run = |by: &RuleSimplifier| by.run(&rule.pattern, &rule.tests, env);
        match (run(with), run(without)) {
            (Some(with), Some(without)) => with.last > 0 && with.cost < without.cost,
            _ => false,
        }
    })
}

/// Size of a left side.
fn size(pattern: &RulePattern) -> usize {
    match pattern {
        RulePattern::Node { args, .. } => 1 + args.iter().map(size).sum::<usize>(),
        _ => 1,
    }
}

/// Keeps the rules whose work the written rules and those kept before do not do. Small left sides and few
/// conditions come first, so that general rules make special ones superfluous.
pub fn reduce(
    written: &[RewriteRule],
    mut entries: Vec<StoredRule>,
    mut tell: impl FnMut(usize, usize),
) -> Vec<StoredRule> {
    entries.sort_by_cached_key(|e| {
        (size(&e.rule.pattern), e.rule.tests.len(), e.rule.to_string().len(), e.rule.to_string())
    });
    entries.dedup_by(|a, b| a.rule.to_string() == b.rule.to_string());
    let mut kept: Vec<StoredRule> = Vec::new();
    let mut now = simplifier(written, &kept);
    let whole = entries.len();
    for (at, entry) in entries.into_iter().enumerate() {
        tell(at, whole);
        let instances = instances(&entry.rule, 7);
        if instances.is_empty() || is_done(&entry.rule, &instances, &now) {
            continue;
        }
        kept.push(entry);
        let with = simplifier(written, &kept);
        if helps(&kept[kept.len() - 1].rule, &instances, &with, &now) {
            now = with;
        } else {
            kept.pop();
        }
    }
    without_superfluous(written, kept)
}

fn simplifier(written: &[RewriteRule], kept: &[StoredRule]) -> RuleSimplifier {
    RuleSimplifier::new(written.iter().cloned().chain(kept.iter().map(|e| e.rule.clone())).collect())
}

/// Drops earlier rules that later ones make superfluous.
fn without_superfluous(written: &[RewriteRule], mut kept: Vec<StoredRule>) -> Vec<StoredRule> {
    let mut at = 0;
    while at < kept.len() {
        let entry = kept.remove(at);
        let instances = instances(&entry.rule, 11);
        if !instances.is_empty() && !is_done(&entry.rule, &instances, &simplifier(written, &kept)) {
            kept.insert(at, entry);
            at += 1;
        }
    }
    kept
}

/// Returns true if other rules do all that a rule does.
pub fn is_superfluous(rule: &RewriteRule, written: &[RewriteRule], others: &[RewriteRule]) -> bool {
    let instances = instances(rule, 11);
    instances.is_empty() || is_done(rule, &instances, &RuleSimplifier::new([written, others].concat()))
}

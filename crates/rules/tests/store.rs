//! The store that is shipped: each rule proven, each of use, none made superfluous by the others.

use millstream_passes::rules::{RewriteRule, RuleOrigin, RuleSet, parse_rule};
use millstream_prove::{ProofLimits, Solver};
use millstream_rules::learn::is_superfluous;
use millstream_rules::{RuleVerdict, admit, check_all, unproven_entry};

#[test]
fn every_rule_of_the_store_is_proven() {
    let rules = RuleSet::shipped_store().rules();
    let solver = Solver::new("z3");
    let checked = check_all(&rules, Some(&solver), &ProofLimits::default(), 2, |_, _| {}).unwrap();
    let failed = rules.iter().zip(&checked).filter(|(_, c)| !c.outcome.is_proven());
    let failed: Vec<String> = failed.map(|(r, c)| format!("{}: {r}: {}", r.name, c.outcome)).collect();
    assert!(failed.is_empty(), "{}", failed.join("\n"));
}

#[test]
fn no_rule_of_a_sample_does_only_what_the_others_do() {
    let rules = RuleSet::shipped_store().rules();
    let written = RuleSet::written();
    for at in (0..rules.len()).step_by(29) {
        let mut others = rules.clone();
        let rule = others.remove(at);
        assert!(!is_superfluous(&rule, &written, &others), "{}: {rule}", rule.name);
    }
}

#[test]
fn a_rule_that_another_contains_is_superfluous() {
    let rule = |text: &str| RewriteRule { learnt: true, ..parse_rule(text).unwrap() };
    let general = rule("(sub.w (or.w x y) (and.w x y)) => (xor.w x y)   if (int x) (int y)");
    let special = rule("(sub.64 (or.64 x y) (and.64 x y)) => (xor.64 x y)   if (bits x 32) (int y)");
    let written = RuleSet::written();
    assert!(is_superfluous(&special, &written, std::slice::from_ref(&general)));
    assert!(!is_superfluous(&general, &written, std::slice::from_ref(&special)));
    let known = rule("(xor.64 x x) => 0   if (int x)");
    assert!(is_superfluous(&known, &written, &[]));
}

#[test]
fn what_cannot_be_proven_is_not_admitted() {
    let entries = [
        "(add.64 x y) => (or.64 x y)   if (int x) (int y)",
        "(add.64 x y) => (or.64 x y)   if (disjoint x y)",
    ]
    .map(|text| unproven_entry(parse_rule(text).unwrap(), RuleOrigin::Enumerated));
    let solver = Solver::new("z3");
    let admitted = admit(entries.to_vec(), Some(&solver), &ProofLimits::default(), 1, || {}).unwrap();
    assert_eq!(admitted.entries.len(), 1);
    assert!(admitted.entries[0].rule.to_string().contains("disjoint"));
    assert!(matches!(admitted.refused[..], [(_, RuleVerdict::Refuted { .. })]));
}
#[test]
fn the_store_has_at_least_500_rules_and_none_twice() {
    let rules = RuleSet::shipped_store().rules();
    assert!(rules.len() >= 500, "{} rules", rules.len());
    let mut texts: Vec<String> = rules.iter().map(ToString::to_string).collect();
    texts.sort();
    texts.dedup();
    assert_eq!(texts.len(), rules.len());
}

//! Every rule that was written by hand is right; wrong ones are refuted.

use millstream_passes::rules::{RuleSet, parse_rule};
use millstream_prove::{ProofLimits, Solver};
use millstream_rules::{RuleProver, RuleVerdict, check_all};

#[test]
fn every_rule_written_by_hand_is_proven() {
    let rules = RuleSet::written();
    let solver = Solver::new("z3");
    let checked = check_all(&rules, Some(&solver), &ProofLimits::default(), 2, |_, _| {}).unwrap();
    assert_eq!(checked.len(), rules.len());
    let failed = rules.iter().zip(&checked).filter(|(_, c)| !c.outcome.is_proven());
    let failed: Vec<String> = failed.map(|(r, c)| format!("{}: {r}: {}", r.name, c.outcome)).collect();
    assert!(failed.is_empty(), "{}", failed.join("\n"));
}

#[test]
fn wrong_rules_are_refuted_with_values_that_show_it() {
    let solver = Solver::new("z3");
    let mut prover = RuleProver::new(Some(&solver), &ProofLimits::default());
    for text in [
        // At 32 bits the high half goes.
        "(or.w x 0) => x",
        "(lshr.64 (shl.64 x #a) #a) => x",
        "(udiv.64 x #c) => (lshr.64 x {log2 c})   if (ne c 0)",
        "(and.64 x #c) => x   if (bits x 8) (eq (and c 0x7f) 0x7f)",
        "(ult.64 (add.64 x #a) #b) => (ult.64 x {sub b a})   if (lt a b)",
        "(?c.64 (zext x) (zext y)) => (?c.64 x y)",
    ] {
        let rule = parse_rule(text).unwrap();
        let outcome = prover.check(&rule).unwrap().outcome;
        assert!(matches!(outcome, RuleVerdict::Refuted { .. }), "{text}: {outcome}");
    }
    let right =
        parse_rule("(lshr.64 (shl.64 x #a) #a) => x   if (lt a 64) (zeros x (not (shr -1 a)))").unwrap();
    assert!(prover.check(&right).unwrap().outcome.is_proven());
}

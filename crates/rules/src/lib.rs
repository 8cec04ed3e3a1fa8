//! Rewrite rules as things to be proven, kept and found.
//!
//! `passes` reads and applies rules and trusts them. This crate makes them worth that trust: every rule,
//! written by hand or learnt, is a claim over all values and all constants that pass its tests ([`claim()`]),
//! and [`check_all`] proves it.
//!
//! Architecture Invariant: no rule of a store is handed to `passes` whose proof was not made or found again
//! here.

mod admission;
mod check;
mod claim;
pub mod learn;

pub use admission::{AdmittedRules, admit, application_counts, rule_set, unproven_entry};
pub use check::{CheckedRule, RuleProver, RuleVerdict, check_all, questions};
pub use claim::{FixedConstants, RuleInstance, claim, unsatisfiable_tests};

//! Rewrite rules as things to be proven, kept and found.
//!
//! `passes` reads and applies rules and trusts them. This crate makes them worth that trust: every rule,
//! written by hand or learnt, is a claim over all values and all constants that pass its tests ([`claim()`]),
//! and [`check_all`] proves it.
//!
//! Architecture Invariant: no rule of a store is handed to `passes` whose proof was not made or found again here.

mod check;
mod claim;
mod admission;
pub mod learn;

pub use check::{CheckedRule, RuleVerdict, RuleProver, check_all, questions};
pub use claim::{FixedConstants, RuleInstance, unsatisfiable_tests, claim};
pub use admission::{AdmittedRules, admit, application_counts, unproven_entry, rule_set};

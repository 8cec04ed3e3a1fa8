//! Static optimization passes over the IR.
//!
//! [`PassPipeline`] runs passes by name over a module; [`PassSession`] carries their shared state: the
//! [`TargetInfo`]'s rules, the [`Fuel`] that lets a driver stop after any rewrite, timing and dumps. A pass
//! implements [`FuncPass`] or [`ModulePass`] and is listed in [`registry`]. How to add one:
//! `docs/how-to-add-a-pass.md`.
//!
//! Architecture Invariant: a pass asks for fuel before each single rewrite and leaves valid IR whatever the
//! answer, so that every prefix of the rewrites is a correct program.
//!
//! Architecture Invariant: with [`TargetInfo::keep_verifier_facts`] no pass removes a check because the
//! compiler knows more than the kernel's verifier would, recomputes a pointer that was checked, or splits a
//! guarded value.

mod control;
mod effects;
mod fold;
mod fuel;
mod ipo;
mod manager;
mod memory;
mod pipeline;
mod rewrite;
mod scalar;
mod simplify;
mod tables;
mod target;
mod widths;

pub use effects::{EffectSummaries, ModuleInfo, call_effects};
pub use fuel::{Fuel, RewriteRecord};
pub use ipo::{can_splice_last, inline_calls, splice_last};
pub use manager::{DumpHook, FuncPass, ModulePass, Pass, PassContext, PassError, PassSession, PassStat};
pub use pipeline::{PassPipeline, find, registry};
pub use target::{OpCosts, TargetInfo};
pub use widths::widen_types;

/// The rule language: rules, their parser and printer, and sets of rules.
pub mod rules {
    pub use crate::simplify::{
        CondPat, ConstExpr, Func, NAMES, PatternOp, RewriteRule, RuleCondition, RuleOrigin, RulePattern,
        RuleReplacement, RuleSet, RuleStore, StoreError, StoredRule, WidthPat, parse, parse_rule,
    };
}

//! Variants of programs, as transforms of the IR: instrumented ones and specialised ones.
//!
//! A module is lifted, then [`prepare`]d: functions inlined, keys of lookups made values. The lookups of a
//! prepared function are its [`sites`], which have the same numbers each time. A variant is made of a clone
//! of the prepared module: [`instrument()`] writes down which keys are looked up, [`specialize()`] puts what
//! is known of the maps into the code. [`finish`] then cleans up and gives lookups their form for lowering.
//!
//! Architecture Invariant: nothing here calls the kernel. What maps hold comes through [`MapContents`], and
//! holds as long as the [`GuardCheck`] does.

mod abstract_key;
mod bpf_loop_inlining;
mod cache_layout;
mod compared_lookup;
mod copied_lookup;
mod dead_lookup_elimination;
mod decision_tree;
mod entry_cache;
mod error;
mod eval;
mod fixed_length_prefixes;
mod instrument;
mod key_tests;
pub mod lookup_plan;
mod lpm;
mod matcher;
mod partial_deopt;
mod partial_eval;
mod perfect_hash;
mod plan;
mod planned_lookup;
mod sampler;
mod shadow_access;
mod shadow_table;
mod site;
mod specialize;
mod stack_key;
mod symbolic_bits;
mod table_loop_analysis;
mod tail_calls;
mod trie;
mod unroll;
mod value_pool;
mod volatile;

use millstream_ir::Module;
use millstream_passes::{PassError, PassPipeline, PassSession};

pub use bpf_loop_inlining::{CallbackMode, unfolds};
pub use cache_layout::{CacheLayout, EntryCache, whole_words};
pub use error::TransformError;
pub use fixed_length_prefixes::FixedLengthPrefixes;
pub(crate) use fixed_length_prefixes::has_length;
pub use instrument::{ProfileSketch, instrument};
pub use key_tests::{dead_lookups_after, in_range};
pub use lookup_plan::{LookupEntry, LookupPlan};
pub(crate) use matcher::address_pieces;
pub use perfect_hash::{PerfectHashTable, RowLayout};
pub use plan::{
    CodeBudget, DeoptMap, FallbackTailCall, FieldConstant, GuardCheck, InlinedTailCall, InnerSitePlan,
    KeyTest, MapContents, NamedInnerMap, ProgArrayPair, SitePlan, SiteReport, SpecializationPlan,
    TransformReport, UnknownContents,
};
pub use sampler::{PacketKind, SampleBuffer, SampleMode, keep_packets};
pub use shadow_table::{ShadowCapacity, ShadowTable};
pub use site::{KeyForm, LookupSite, SiteId, sites};
pub(crate) use site::{is_template, of_shape};
pub use specialize::specialize;
pub use table_loop_analysis::is_table_loop_lookup;
pub use tail_calls::{SyncCounters, calls, inline_tail_calls, may_call_more, redirect_tail_calls};
pub use trie::MultibitTrie;
pub use value_pool::MOST_BYTES as TRIE_VALUE;

/// Passes before the sites of a function are known. Twice: after the first round, stores that have become the
/// last ones of their words may have kept other words of the same bytes in memory. Functions that look
/// something up can be inlined once their stacks are split; then objects whose address was taken for those
/// calls are split, too.
const PREPARE: [&[&str]; 6] = [
    // The counters of unrolled loops are constants now.
    &["params", "simplify", "simplify-cfg"],
    &["promote-spills", "split-stack"],
    VALUES,
    &["inline-lookups", "simplify-cfg", "params", "split-stack"],
    VALUES,
    &["simplify-cfg", "params", "dce"],
];

/// Words of the stack and keys in memory become values.
const VALUES: &[&str] = &["mem2reg", "params", "simplify", "gvn", "forward", "promote-keys", "dse"];

/// After a variant is made, before the keys of what lookups remain go to the stack.
const CLEAN: &[&str] = &[
    "simplify-cfg",
    "params",
    "simplify",
    "gvn",
    "forward",
    "dse",
    "merge-loads",
    "merge-stores",
    "simplify",
    "simplify-cfg",
    "params",
    "gvn",
    "divide",
    "simplify",
    "dce",
    "lower-keys",
    "simplify-cfg",
    "dce",
];

/// Brings a lifted module into the form that has sites.
///
/// # Errors
/// If a pass has made the IR invalid (checked in debug builds only).
pub fn prepare(
    module: &mut Module,
    callbacks: CallbackMode,
    session: &mut PassSession,
) -> Result<(), PassError> {
    if callbacks == CallbackMode::Unfolded {
        bpf_loop_inlining::unfold(module);
    }
    PassPipeline::of(["inline", "simplify-cfg"])?.run(module, session)?;
    unroll::unroll(module);
    PassPipeline::of(PREPARE.concat())?.run(module, session).map(drop)
}

/// Cleans up after a transform and leaves nothing that cannot be lowered.
///
/// # Errors
/// As for [`prepare`].
pub fn finish(module: &mut Module, session: &mut PassSession) -> Result<(), PassError> {
    PassPipeline::of(CLEAN.iter().copied())?.run(module, session).map(drop)
}

#[cfg(test)]
mod tests {
    use millstream_ir::Op;
    use millstream_ir::text::parse_module;
    use millstream_passes::TargetInfo;

    use super::*;

    /// Compilers give a word of the stack to a number for a while, and then to a pointer.
    #[test]
    fn words_of_the_stack_with_several_lives_become_values() {
        let text = "fn0 \"f\" static {
  ss0 size=8 align=8
block0(v0: any):
  v1: ptr(stack) = stack_addr.ss0.0
  v2: i64 = helper.5
  store.w.0.plain v1, v0
  v3: i32 = load.w.u.0.plain v1
  store.dw.0.plain v1, v2
  v4: i64 = helper.5
  v5: any = load.dw.u.0.plain v1
  v6: any = alu.add.w64 v5, v3
  return v6
}
";
        let mut module = parse_module(text).unwrap_or_else(|e| panic!("{e:?}"));
        prepare(&mut module, CallbackMode::Unfolded, &mut PassSession::new(TargetInfo::bpf(3))).unwrap();
        let body = module.funcs.values().next().unwrap();
        let on_stack = |op: &Op| matches!(op, Op::StackAddr { .. });
        assert!(body.insts_in_order().all(|(_, inst)| !on_stack(&body.insts[inst].op)), "{body:?}");
    }
}

//! Variants of programs, as transforms of the IR: instrumented ones and specialised ones.
//!
//! A module is lifted, then [`prepare`]d: functions inlined, keys of lookups made values. The lookups of a prepared
//! function are its [`sites`], which have the same numbers each time. A variant is made of a clone of the prepared
//! module: [`instrument()`] writes down which keys are looked up, [`specialize()`] puts what is known of the maps into
//! the code. [`finish`] then cleans up and gives lookups their form for lowering.
//!
//! Architecture Invariant: nothing here calls the kernel. What maps hold comes through [`Contents`], and holds as
//! long as the [`Guard`] does.

mod before;
mod bits;
mod cache;
mod chain;
mod copy;
mod decide;
mod error;
mod eval;
mod indexed;
mod instrument;
mod lpm;
mod matcher;
mod needless;
mod one_length;
mod plan;
mod rounds;
mod rows;
mod sampler;
mod sieve;
mod site;
mod spare;
mod specialize;
mod split;
mod stack_key;
mod trie;
mod twin;
mod unroll;
mod values;
mod walk;

use millstream_ir::Module;
use millstream_passes::{PassError, Pipeline, Session};

pub use before::{in_range, spared_by};
pub use cache::{Cache, CacheShape, whole_words};
pub use chain::{Alike, Chained, Joined, calls, follow, join, may_call_more};
pub use error::TransformError;
pub use instrument::{Sketch, instrument};
pub(crate) use matcher::address_pieces;
pub use one_length::OneLength;
pub(crate) use one_length::has_length;
pub use plan::{
    Budget, Contents, Entry, FieldConstant, Guard, Inside, InsidePlan, KeyTest, Lookup, Plan, Report,
    SitePlan, SiteReport, Spared, StandIn, Unknown,
};
pub use rounds::{Callbacks, unfolds};
pub use rows::{Row, Rows};
pub use sampler::{Keep, PacketKind, Samples, keep_packets};
pub use site::{Key, Site, SiteId, sites};
pub(crate) use site::{is_template, of_shape};
pub use specialize::specialize;
pub use trie::Trie;
pub use twin::{Room, Twin};
pub use values::MOST_BYTES as TRIE_VALUE;
pub use walk::is_walked;

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
pub fn prepare(module: &mut Module, callbacks: Callbacks, session: &mut Session) -> Result<(), PassError> {
    if callbacks == Callbacks::Unfolded {
        rounds::unfold(module);
    }
    Pipeline::of(["inline", "simplify-cfg"])?.run(module, session)?;
    unroll::unroll(module);
    Pipeline::of(PREPARE.concat())?.run(module, session).map(drop)
}

/// Cleans up after a transform and leaves nothing that cannot be lowered.
///
/// # Errors
/// As for [`prepare`].
pub fn finish(module: &mut Module, session: &mut Session) -> Result<(), PassError> {
    Pipeline::of(CLEAN.iter().copied())?.run(module, session).map(drop)
}

#[cfg(test)]
mod tests {
    use millstream_ir::Op;
    use millstream_ir::text::parse_module;
    use millstream_passes::Target;

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
        prepare(&mut module, Callbacks::Unfolded, &mut Session::new(Target::bpf(3))).unwrap();
        let body = module.funcs.values().next().unwrap();
        let on_stack = |op: &Op| matches!(op, Op::StackAddr { .. });
        assert!(body.insts_in_order().all(|(_, inst)| !on_stack(&body.insts[inst].op)), "{body:?}");
    }
}

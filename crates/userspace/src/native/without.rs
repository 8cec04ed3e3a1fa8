//! `--without`: optimisations that are left out, to see what each is worth. Programs behave the same without
//! them.

use millstream_click::Ablations;
use millstream_native::{LayoutPolicy, NativeOptions, PrefetchPolicy, TraversalCaching};

/// LLVM passes that are always needed.
const NO_LLVM_PASSES: &str = "always-inline";

/// An optimisation that can be left out.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum DisabledOptimization {
    /// Of configurations: connections are jumps.
    StaticGraph,
    /// Of configurations: arguments are constants of the code.
    Constants,
    /// Of configurations: annotations are values, and in memory only where a packet waits and somebody looks
    /// later.
    Annotations,
    /// All passes on the IR.
    Passes,
    LlvmPasses,
    Prefetch,
    Ahead,
    /// Look-ups in tables as code.
    Lookups,
    /// Descriptors with only the fields that are read.
    Descriptors,
    /// Caches of traversals, of a schedule or of `--adapt`.
    Traversals,
    /// One pass on the IR.
    Pass(String),
}

/// Their names.
const NAMES: [(&str, DisabledOptimization); 10] = [
    ("static-graph", DisabledOptimization::StaticGraph),
    ("constants", DisabledOptimization::Constants),
    ("annotations", DisabledOptimization::Annotations),
    ("passes", DisabledOptimization::Passes),
    ("llvm-passes", DisabledOptimization::LlvmPasses),
    ("header-prefetch", DisabledOptimization::Prefetch),
    ("table-prefetch", DisabledOptimization::Ahead),
    ("lookups", DisabledOptimization::Lookups),
    ("descriptors", DisabledOptimization::Descriptors),
    ("traversals", DisabledOptimization::Traversals),
];

/// Old names, which are accepted for one release, and new ones.
const RENAMED: [(&str, &str); 2] = [("prefetch", "header-prefetch"), ("ahead", "table-prefetch")];

/// Reads a name.
pub(super) fn without(text: &str) -> Result<DisabledOptimization, String> {
    if let Some((old, new)) = RENAMED.iter().find(|(old, _)| *old == text) {
        errln!("{}", crate::renamed::warning(&format!("--without {old}"), &format!("--without {new}")));
        return without(new);
    }
    if let Some((_, known)) = NAMES.iter().find(|(name, _)| *name == text) {
        return Ok(known.clone());
    }
    match millstream_passes::find(text) {
        Some(pass) if pass.required() => Err(format!("without `{text}` there is no code")),
        Some(_) => Ok(DisabledOptimization::Pass(text.to_owned())),
        None => {
            let names = NAMES.map(|(name, _)| name).join(", ");
            Err(format!("`{text}` is none of {names}, and no pass of `millstream opt --list-passes`"))
        }
    }
}

/// Options without these optimizations.
pub(super) fn options(left_out: &[DisabledOptimization], mut options: NativeOptions) -> NativeOptions {
    for without in left_out {
        match without {
            DisabledOptimization::Passes => options.passes = false,
            DisabledOptimization::LlvmPasses => options.llvm_passes = NO_LLVM_PASSES.to_owned(),
            DisabledOptimization::Prefetch => options.schedule.headers = 0,
            DisabledOptimization::Ahead => options.schedule.fetch = PrefetchPolicy::Nothing,
            DisabledOptimization::Lookups => options.lookups.inline = false,
            DisabledOptimization::Descriptors => options.descriptors = LayoutPolicy::Whole,
            DisabledOptimization::Traversals => {
                options.schedule.traversals = TraversalCaching::Off;
                options.lookups.traversals = false;
            }
            DisabledOptimization::Pass(name) => options.left_out.push(name.clone()),
            DisabledOptimization::StaticGraph
            | DisabledOptimization::Constants
            | DisabledOptimization::Annotations => {}
        }
    }
    options
}

/// Optimizations that a configuration leaves out.
pub(super) fn general(left_out: &[DisabledOptimization]) -> Ablations {
    let has = |wanted| left_out.contains(&wanted);
    Ablations {
        graph: has(DisabledOptimization::StaticGraph),
        arguments: has(DisabledOptimization::Constants),
        annotations: has(DisabledOptimization::Annotations),
        stages: false,
        time: false,
    }
}

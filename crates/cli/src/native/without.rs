//! `--without`: optimisations that are left out, to see what each is worth. Programs behave the same without
//! them.

use millstream_click::General;
use millstream_native::{Descriptors, Fetch, Options};

/// LLVM passes that are always needed.
const NO_LLVM_PASSES: &str = "always-inline";

/// An optimisation that can be left out.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Without {
    /// Of configurations: connections are jumps.
    StaticGraph,
    /// Of configurations: arguments are constants of the code.
    Constants,
    /// Of configurations: annotations are values, and in memory only where a packet waits and somebody looks later.
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
    /// One pass on the IR.
    Pass(String),
}

/// Their names.
const NAMES: [(&str, Without); 9] = [
    ("static-graph", Without::StaticGraph),
    ("constants", Without::Constants),
    ("annotations", Without::Annotations),
    ("passes", Without::Passes),
    ("llvm-passes", Without::LlvmPasses),
    ("prefetch", Without::Prefetch),
    ("ahead", Without::Ahead),
    ("lookups", Without::Lookups),
    ("descriptors", Without::Descriptors),
];

/// Reads a name.
pub(super) fn without(text: &str) -> Result<Without, String> {
    if let Some((_, known)) = NAMES.iter().find(|(name, _)| *name == text) {
        return Ok(known.clone());
    }
    match millstream_passes::find(text) {
        Some(pass) if pass.required() => Err(format!("without `{text}` there is no code")),
        Some(_) => Ok(Without::Pass(text.to_owned())),
        None => {
            let names = NAMES.map(|(name, _)| name).join(", ");
            Err(format!("`{text}` is none of {names}, and no pass of `millstream opt --list-passes`"))
        }
    }
}

/// Options without these optimizations.
pub(super) fn options(left_out: &[Without], mut options: Options) -> Options {
    for without in left_out {
        match without {
            Without::Passes => options.passes = false,
            Without::LlvmPasses => options.llvm_passes = NO_LLVM_PASSES.to_owned(),
            Without::Prefetch => options.schedule.headers = 0,
            Without::Ahead => options.schedule.fetch = Fetch::Nothing,
            Without::Lookups => options.inline_lookups = false,
            Without::Descriptors => options.descriptors = Descriptors::Whole,
            Without::Pass(name) => options.left_out.push(name.clone()),
            Without::StaticGraph | Without::Constants | Without::Annotations => {}
        }
    }
    options
}

/// Optimizations that a configuration leaves out.
pub(super) fn general(left_out: &[Without]) -> General {
    let has = |wanted| left_out.contains(&wanted);
    General {
        graph: has(Without::StaticGraph),
        arguments: has(Without::Constants),
        annotations: has(Without::Annotations),
        stages: false,
        time: false,
    }
}

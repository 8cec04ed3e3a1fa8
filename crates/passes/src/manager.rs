//! Passes and their inputs.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use millstream_ir::verify::VerifyError;
use millstream_ir::{Effects, Function, Inst, Module};
use rustc_hash::FxHashMap;

use crate::effects::{ModuleInfo, call_effects};
use crate::fuel::Fuel;
use crate::simplify::RuleSet;
use crate::target::TargetInfo;

/// A pass over one function.
pub trait FuncPass: Sync {
    /// Name, as on the command line: lower case with dashes.
    fn name(&self) -> &'static str;
    /// One line for users.
    fn describe(&self) -> &'static str;
    /// Returns true if the result would be wrong, not only worse, without it.
    fn required(&self) -> bool {
        false
    }
    /// Rewrites the function; `true` if anything changed. Asks [`PassContext::fuel`] before each rewrite.
    fn run(&self, func: &mut Function, cx: &mut PassContext<'_>) -> bool;
}

/// A pass over a whole module.
pub trait ModulePass: Sync {
    /// Name, as on the command line: lower case with dashes.
    fn name(&self) -> &'static str;
    /// One line for users.
    fn describe(&self) -> &'static str;
    /// Returns true if the result would be wrong, not only worse, without it.
    fn required(&self) -> bool {
        false
    }
    /// Rewrites the module; `true` if anything changed. Asks [`PassSession::fuel`] before each rewrite.
    fn run(&self, module: &mut Module, session: &mut PassSession) -> bool;
}

/// A pass of either kind.
#[derive(Clone, Copy)]
pub enum Pass {
    /// Runs on each function.
    Func(&'static dyn FuncPass),
    /// Runs on the module.
    Module(&'static dyn ModulePass),
}

impl Pass {
    /// Name.
    pub fn name(self) -> &'static str {
        match self {
            Pass::Func(p) => p.name(),
            Pass::Module(p) => p.name(),
        }
    }

    /// One line for users.
    pub fn describe(self) -> &'static str {
        match self {
            Pass::Func(p) => p.describe(),
            Pass::Module(p) => p.describe(),
        }
    }

    /// Returns true if it cannot be disabled.
    pub fn required(self) -> bool {
        match self {
            Pass::Func(p) => p.required(),
            Pass::Module(p) => p.required(),
        }
    }
}

impl std::fmt::Debug for Pass {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}

/// Inputs of a function pass.
pub struct PassContext<'m> {
    /// The module around the function.
    pub info: ModuleInfo<'m>,
    /// The session.
    pub session: &'m mut PassSession,
}

impl PassContext<'_> {
    /// The target's rules.
    pub fn target(&self) -> &TargetInfo {
        &self.session.target
    }

    /// Asks for one rewrite by this pass. On `false` the place stays as it is.
    pub fn fuel(&mut self, pass: &'static str) -> bool {
        self.session.fuel(pass)
    }

    /// Effects of an instruction; those of a call are narrowed by its callee.
    pub fn effects(&self, func: &Function, inst: Inst) -> Effects {
        call_effects(func, inst, &self.info)
    }
}

/// Statistics of a pass in a session.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct PassStat {
    /// Times run, a function each.
    pub runs: u32,
    /// Rewrites granted.
    pub rewrites: u64,
    /// Time spent.
    pub time: Duration,
}

/// Called with the name of a pass and the function that it has just changed.
pub type DumpHook = Box<dyn FnMut(&'static str, &Function)>;

/// Settings and records of a run of passes.
pub struct PassSession {
    /// The target's rules.
    pub target: TargetInfo,
    /// Permission to rewrite.
    pub fuel: Fuel,
    /// Passes that are left out unless required.
    pub disabled: BTreeSet<String>,
    /// Called after each pass that changed a function.
    pub dump_after: Option<DumpHook>,
    /// Runs the IR verifier after each pass; on in debug builds.
    pub verify: bool,
    /// The rules of the pass `simplify`; those that are shipped if not said.
    pub rules: Option<Arc<RuleSet>>,
    pub(crate) fired: FxHashMap<usize, u64>,
    pub(crate) stats: FxHashMap<&'static str, PassStat>,
}

impl PassSession {
    /// A session with unlimited fuel and every pass enabled.
    pub fn new(target: TargetInfo) -> PassSession {
        PassSession {
            target,
            fuel: Fuel::unlimited(),
            disabled: BTreeSet::new(),
            dump_after: None,
            verify: cfg!(debug_assertions),
            rules: None,
            fired: FxHashMap::default(),
            stats: FxHashMap::default(),
        }
    }

    /// Asks for one rewrite by this pass.
    pub fn fuel(&mut self, pass: &'static str) -> bool {
        let yes = self.fuel.ask(pass);
        self.stats.entry(pass).or_default().rewrites += u64::from(yes);
        yes
    }

    /// Records that a rule was applied.
    pub(crate) fn count(&mut self, rule: usize) {
        *self.fired.entry(rule).or_default() += 1;
    }

    /// Number of times each rule was applied, by its position in the set.
    pub fn fired(&self) -> impl Iterator<Item = (usize, u64)> + '_ {
        self.fired.iter().map(|(&rule, &times)| (rule, times))
    }

    /// Runs, rewrites and time by pass, by name.
    pub fn stats(&self) -> Vec<(&'static str, PassStat)> {
        let mut all: Vec<_> = self.stats.iter().map(|(&name, &stat)| (name, stat)).collect();
        all.sort_unstable_by_key(|(name, _)| *name);
        all
    }
}

/// Why a pipeline cannot be built or has failed.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum PassError {
    /// No pass of this name.
    #[error("there is no pass `{0}`")]
    Unknown(String),
    /// A pass has left invalid IR behind.
    #[error("pass `{pass}` has made the IR invalid: {}", listed(errors))]
    Invalid {
        /// The pass.
        pass: &'static str,
        /// Errors that the IR verifier found.
        errors: Vec<VerifyError>,
    },
}

fn listed(errors: &[VerifyError]) -> String {
    errors.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ")
}

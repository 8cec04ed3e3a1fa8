//! The optimizer driver: an object in, a better object out.
//!
//! [`optimize`] lifts all functions, runs the pipeline, lowers each function and puts it back where that made
//! it no longer. It needs no kernel. [`check()`] asks the kernel: it loads every program before and after,
//! and where a result is rejected finds the rewrite to blame by bisection over fuel, drops that rewrite and
//! tries again; the original is kept if all else fails.
//!
//! Architecture Invariant: nothing is written to the object that is not either the original or accepted
//! wherever the original was, once [`check()`] has passed; for a [`KernelFeatures`], accepted by that kernel.

mod candidate_selector;
mod check;
mod compile;
mod contract;
mod costs;
mod dispatcher;
mod fused;
mod host;
mod instruction_set;
mod kernels;
mod prove;
mod prune;
mod regression;
mod repair;
mod report;
mod rule_mining;
mod settings;
mod superopt;
mod trace;
mod verification_goal;
mod verifier_effort;

use std::collections::{BTreeMap, BTreeSet};

use millstream_bpf::lift::LiftError;
use millstream_bpf::lower::BlockOrder;
use millstream_bpf::module::{LiftedModule, lift_supported};
use millstream_isa::generation::KernelRange;
use millstream_object::{LineInfo, Object, ObjectError, isa_version};
use millstream_passes::rules::RuleSet;
use millstream_passes::{Fuel, PassError, TargetInfo, widen_types};
use millstream_threads::both;

use compile::{FunctionSelection, compile_object};
use regression::RegressionRepair;
use verification_goal::{EffortJudge, lower_effort};
use verifier_effort::EffortEstimates;

pub use millstream_bpf::cost::OptimizationGoal;

pub use check::{CheckedObject, check, check_each};
pub use costs::{CostSummary, ProgramCosts, costs};
pub use dispatcher::{ChainMember, DispatcherError, configure_dispatcher, dispatcher_slot, run_settings};
pub use fused::optimize_chain;
pub use host::{KernelFeatures, running_kernels};
pub use instruction_set::{InstructionSet, UnknownInstructionSet, smallest_instruction_set};
pub use kernels::oldest_kernel;
pub use millstream_search::{
    PeepholeRule as WindowRule, PeepholeRuleSet as WindowRules, RuleCandidate, SearchAblation, SearchEngine,
    SearchStats, WindowReplacement,
};
pub use prove::{ProofReport, StepReport, ValidationResult, validate, validate_passes};
pub use prune::{PruneReport, prune};
pub use repair::{RepairChange, RepairCost, RepairOutcome, RepairReport, repair};
pub use report::{FunctionOutcome, FunctionReport, KernelMetrics, KernelVerdict, PassReport, ProgramReport};
pub use rule_mining::mine_rules;
pub use settings::{LoadSetting, SettingError, SettledVariable, apply_settings};
pub use superopt::{
    AlternativeObject, EquivalenceEvidence, KernelAcceptance, SuperOptions, SuperReport,
    SuperoptimizedObject, superoptimize,
};
pub use trace::{InsnOrigin, TracedObject, mark, trace, unmark};

/// Why an object cannot be optimized at all. What concerns one function only is in its report instead.
#[derive(Debug, thiserror::Error)]
pub enum OptError {
    /// A function is no valid bytecode.
    #[error(transparent)]
    Lift(#[from] LiftError),
    /// A pass is unknown, or made the IR invalid.
    #[error(transparent)]
    Pass(#[from] PassError),
    /// The object does not take its new functions.
    #[error(transparent)]
    Object(#[from] ObjectError),
    /// A chain cannot be one program.
    #[error(transparent)]
    Fuse(#[from] millstream_object::FuseError),
    /// The superoptimizer's windows are of little-endian memory.
    #[error("the superoptimizer does not know big-endian machines: optimize for them without it")]
    BigEndian,
    /// The kernel could not be asked.
    #[error(transparent)]
    Loader(#[from] millstream_loader::Error),
    /// The kernel does not let this process ask.
    #[error(transparent)]
    Forbidden(millstream_kernel::KernelError),
}

impl OptError {
    /// The kernel's refusal, if the error is one.
    pub fn kernel_error(&self) -> Option<&millstream_kernel::KernelError> {
        match self {
            OptError::Forbidden(e) | OptError::Loader(millstream_loader::Error::Kernel(e)) => Some(e),
            _ => None,
        }
    }
}

/// Options of an optimization.
#[derive(Clone, Default)]
pub struct OptimizeOptions {
    /// The passes by name; the default pipeline if empty.
    pub passes: Vec<String>,
    /// Instruction set version that may be used, 1 to 4; if 0, the version of the object, or of the given
    /// host or kernels.
    pub isa: u8,
    /// The kernel that the programs are for, with maps of the sizes that the object says. Without one, they
    /// are for all kernels that take the original, and for loaders that change sizes.
    pub host: Option<KernelFeatures>,
    /// The kernels whose verifiers must accept the programs; if not given, the host's if there is one, else
    /// all from the oldest that can load the object ([`oldest_kernel`]).
    pub kernels: Option<KernelRange>,
    /// Goal that code is made for.
    pub goal: OptimizationGoal,
    /// At most this many rewrites.
    pub fuel: Option<u64>,
    /// Inlining; tried both ways if not given.
    pub inline: Option<bool>,
    /// Runs the IR verifier around every pass.
    pub verify_ir: bool,
    /// Takes the lowered form of a function even where it is longer than the original.
    pub keep_longer: bool,
    /// Rewrites not to do, by number.
    pub skip: BTreeSet<u64>,
    /// Functions to leave as they are.
    pub leave: BTreeSet<u32>,
    /// Functions that are made in a given way instead of the shortest.
    pub ways: BTreeMap<u32, LoweringChoice>,
    /// The rules of the pass `simplify`; those that are shipped if not said.
    pub rules: Option<std::sync::Arc<RuleSet>>,
    /// Prints the IR of a function after each pass of this name (`all` for every pass).
    pub dump_after: Option<String>,
    /// Keeps which passes touched which source lines, in place of dumps.
    pub record: bool,
}

/// A way to make a function.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct LoweringChoice {
    /// Number of the form: 0 for the whole pipeline, 1 for passes that only shorten, 2 for none.
    pub form: usize,
    /// Order of its blocks.
    pub order: BlockOrder,
}

impl OptimizeOptions {
    /// Target of the code of an object.
    fn target(&self, object: &Object) -> TargetInfo {
        let own = isa_version(object);
        let named = self.kernels.map_or(own, |kernels| own.max(kernels.oldest().isa()));
        let isa = if self.isa == 0 { named } else { self.isa };
        let target = match self.host {
            Some(host) if self.isa == 0 => host.target(isa),
            Some(host) => TargetInfo { isa, ..host.target(isa) },
            None => TargetInfo::bpf(isa),
        };
        let since = || KernelRange::since(oldest_kernel(object));
        let kernels = self.kernels.or(self.host.map(|host| host.kernels)).unwrap_or_else(since);
        let slots_first = self.goal == OptimizationGoal::Size;
        TargetInfo { slots_first, byte_order: object.byte_order(), ..target.on(kernels) }
    }

    /// Returns true if nobody asked for one way of compilation.
    fn searches_forms(&self) -> bool {
        self.fuel.is_none() && !self.keep_longer && self.passes.is_empty()
    }

    /// The functions of an object as IR, with types that say no more than the verifiers know that will see
    /// the code.
    fn lift(&self, object: &Object) -> LiftedModule {
        let mut lifted = lift_supported(object);
        let knowledge = self.target(object).domain().knowledge;
        lifted.module.funcs.values_mut().for_each(|func| widen_types(func, knowledge));
        lifted
    }

    /// The same with at most this many rewrites, and inlining as it was decided before.
    fn limited(&self, fuel: u64, inline: impl Into<Option<bool>>) -> OptimizeOptions {
        OptimizeOptions {
            fuel: Some(fuel),
            inline: inline.into(),
            verify_ir: false,
            dump_after: None,
            ..self.clone()
        }
    }
}

/// An optimized object, with a report of the changes.
#[derive(Debug)]
pub struct OptimizationResult {
    /// The object with new instructions.
    pub object: Object,
    /// One a function, in the object's order.
    pub functions: Vec<FunctionReport>,
    /// Reports of the passes.
    pub passes: Vec<PassReport>,
    /// Rewrites that passes asked for.
    pub rewrites: u64,
    /// True if functions were inlined.
    pub inline: bool,
    /// The passes that touched each source line, if [`OptimizeOptions::record`] was set.
    pub touched: Vec<(LineInfo, BTreeSet<&'static str>)>,
    /// Which pass asked for rewrite N, for blame.
    pub fuel: Fuel,
}

/// Optimizes an object, without asking the kernel.
///
/// The default pipeline is tried without and with inlining, and the shorter object is taken. A function that
/// spills addresses of its stack is made without and with their promotion. One that the pipeline leaves
/// longer than it was is lowered again after fewer passes, and the shortest form is taken. But for
/// [`OptimizationGoal::Size`], a program that would take more predicted cycles than it did is made in another
/// way, at worst left as it was. One that might take the verifier longer is left as it was.
///
/// # Errors
/// [`OptError`]; the input is unchanged then.
pub fn optimize(object: &Object, options: &OptimizeOptions) -> Result<OptimizationResult, OptError> {
    optimize_marked(object, None, options)
}

/// The same of an object with marks in place of source lines, and the same object with its own.
fn optimize_marked(
    object: &Object,
    lines: Option<&Object>,
    options: &OptimizeOptions,
) -> Result<OptimizationResult, OptError> {
    let mut estimates = EffortEstimates::new(object, options);
    let untouched = estimates.as_mut().map(EffortEstimates::hopeless_functions).unwrap_or_default();
    let mut made = shortest_of(object, options, &untouched)?;
    RegressionRepair { object, lines, options }.repair_regressions(&mut made, &mut |_, _| true)?;
    if options.goal == OptimizationGoal::Verify && options.searches_forms() {
        lower_effort(object, options, &EffortJudge::Model, &mut made, &mut || {})?;
    }
    if let Some(estimates) = &mut estimates {
        estimates.revert_costly_programs(&mut made);
    }
    Ok(made)
}

/// Optimizes an object as [`optimize`] does, without regard to predicted cycles.
fn shortest(object: &Object, options: &OptimizeOptions) -> Result<OptimizationResult, OptError> {
    shortest_of(object, options, &BTreeSet::new())
}

/// The same, without some functions, which stay as they were.
fn shortest_of(
    object: &Object,
    options: &OptimizeOptions,
    untouched: &BTreeSet<u32>,
) -> Result<OptimizationResult, OptError> {
    if options.rules.is_none() {
        // Reading the rules takes longer than all that happens before they are needed.
        static EARLY: std::sync::Once = std::sync::Once::new();
        EARLY.call_once(|| drop(std::thread::spawn(RuleSet::shipped)));
    }
    let mut lifted = options.lift(object);
    let others = lifted.module.funcs.iter_mut().filter(|(id, _)| untouched.contains(&id.as_u32()));
    others.for_each(|(_, f)| f.layout.clear());
    let selected = FunctionSelection::Without(untouched);
    let calls = lifted.module.funcs.values().any(|f| f.linkage.is_local());
    let inline = match options.inline {
        Some(inline) => inline,
        None if !calls || !options.passes.is_empty() => false,
        None => {
            let one = |inline| compile_object(object, &lifted, options, inline, &selected);
            // Neither needs the other, and both take about as long; dumps come in order.
            let (with, without) = match options.dump_after {
                Some(_) => {
                    let without = one(false);
                    (one(true), without)
                }
                None => both(|| one(true), || one(false)),
            };
            let (without, with) = (without?, with?);
            return Ok(if with.is_whole() && with.slots() <= without.slots() { with } else { without });
        }
    };
    compile_object(object, &lifted, options, inline, &selected)
}

impl OptimizationResult {
    /// Slots of all functions together.
    fn slots(&self) -> usize {
        self.functions.iter().map(|f| f.after).sum()
    }

    /// Returns true if no function was kept as it was while functions that it calls were removed.
    fn is_whole(&self) -> bool {
        let kept = |o: &FunctionOutcome| {
            !matches!(o, FunctionOutcome::Rewritten | FunctionOutcome::Removed | FunctionOutcome::NothingToDo)
        };
        let removed = self.functions.iter().any(|f| f.outcome == FunctionOutcome::Removed);
        !(removed && self.functions.iter().any(|f| kept(&f.outcome)))
    }
}

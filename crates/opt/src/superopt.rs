//! `-O super`: the best static form by the goal, then a search over its bytecode, proven as a whole.
//!
//! Each program is made in the ways that the static compiler has, for the instruction set that the kernel at
//! hand takes. The search begins with the best form that is proven to do what the original does, and to which
//! the goal has no objection; at worst with the original itself. The search replaces windows, each proven;
//! after each round the kernel is asked, and replacements that it refuses are taken back. In the end original
//! and result are proven equivalent as a whole, or, where that cannot be decided, by composition: the static
//! form was proven, and so was every window.
//!
//! Invariant: every returned program was proven in one of these ways and, where the kernel can be asked,
//! accepted by it.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use millstream_bpf::cost::CodeCost;
use millstream_isa::ByteOrder;
use millstream_loader::{ObjectLoader, Session};
use millstream_object::{FuncId, NewFunction, Object, isa_version};
use millstream_prove::{ProofLimits, ProofVerdict as Proof, Solver, prove};
use millstream_search::{
    PeepholeRuleSet, RuleCandidate, SearchAblation, SearchBudget, SearchStats, Superoptimizer,
    WindowReplacement,
};
use serde::Serialize;

use crate::candidate_selector::functions;
use crate::check::measure;
use crate::costs::{CostSummary, cost_beside};
use crate::{KernelFeatures, KernelMetrics, OptError, OptimizationResult, OptimizeOptions, check, optimize};

/// Options of a superoptimization.
#[derive(Clone, Default)]
pub struct SuperOptions {
    /// Options of the static compiler; its goal is also the goal of the search.
    pub options: OptimizeOptions,
    /// Time of the search of one program; by its size if not said.
    pub budget: Option<Duration>,
    /// Rounds of the search, at most; as many as there is time for if not said.
    pub rounds: Option<usize>,
    /// Threads.
    pub jobs: usize,
    /// Seed of the random choices.
    pub seed: u64,
    /// Solver for equalities that are not evident by form.
    pub solver: Option<Solver>,
    /// Parts that are left out, to measure their worth.
    pub without: Vec<SearchAblation>,
    /// Rules of windows that are tried first.
    pub rules: Arc<PeepholeRuleSet>,
    /// True if results are kept as lessons, from which rules are learnt.
    pub learn: bool,
    /// Number of other forms that are kept beside the result: the best by prediction that the search has come
    /// by.
    pub others: usize,
    /// Limits of the proof of a whole program.
    pub limits: ProofLimits,
    /// Set from elsewhere when it is enough: the best proven so far is returned.
    pub stop: Option<&'static AtomicBool>,
}

/// Evidence that a program behaves as before.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum EquivalenceEvidence {
    /// It has the instructions that it had.
    Unchanged,
    /// Original and result were proven equivalent as a whole.
    Whole,
    /// The static form was proven as a whole, and each window that was replaced in it; for the result as a
    /// whole it is not known, for this reason.
    Composed(String),
    /// No static form could be proven, for this reason; each window that was replaced in the original was.
    Windows(String),
    /// No static form could be proven, for this reason, and no window was replaced: the original is kept.
    Original(String),
    /// The proof of the result was refuted, which is a bug of ours: the static form is kept.
    Refuted(String),
}

/// Answer of the kernel on the result.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum KernelAcceptance {
    /// It takes it.
    Accepted,
    /// It does not take the original either: why.
    NotLoadable(String),
    /// It cannot be asked: why.
    NotAsked(String),
}

/// Outcome for a program.
#[derive(Clone, Debug, Serialize)]
pub struct SuperReport {
    /// Name.
    pub name: String,
    /// Section.
    pub section: String,
    /// The original.
    pub before: CostSummary,
    /// The static form that the search began with.
    pub fixed: CostSummary,
    /// The result.
    pub after: CostSummary,
    /// Answer of the kernel.
    pub kernel: KernelAcceptance,
    /// Evidence that it is right.
    pub proof: EquivalenceEvidence,
    /// Seconds that all of it took.
    pub seconds: f64,
    /// Seconds of these in the search.
    pub search_seconds: f64,
    /// The replacements, in order, over all functions of the program that were searched with it.
    pub found: Vec<WindowReplacement>,
    /// Statistics of the search.
    pub search: SearchStats,
}

/// An object after superoptimization.
#[derive(Debug)]
pub struct SuperoptimizedObject {
    /// The object.
    pub object: Object,
    /// The static form that it began with.
    pub fixed: OptimizationResult,
    /// Other forms, the best by prediction first: proven as the result is, and accepted by the kernel.
    pub others: Vec<AlternativeObject>,
    /// One a program.
    pub programs: Vec<SuperReport>,
    /// Results as [`RuleCandidate`]s, if they were wanted.
    pub lessons: Vec<RuleCandidate>,
    /// Answers of a trusted store that the proofs rest on and that were not proven here.
    pub trusted: u64,
}

/// A form that may be returned in place of the result: the result without the last replacements in one
/// function.
#[derive(Debug)]
pub struct AlternativeObject {
    /// The object.
    pub object: Object,
    /// Evidence that each program behaves as before, in the order of the programs.
    pub proofs: Vec<EquivalenceEvidence>,
}

/// Superoptimizes all programs of an object.
///
/// # Errors
/// [`OptError`] if the static compiler fails.
pub fn superoptimize(object: &Object, options: &SuperOptions) -> Result<SuperoptimizedObject, OptError> {
    if object.byte_order() == ByteOrder::Big {
        return Err(OptError::BigEndian);
    }
    let kernel = ObjectLoader::new(object).guess_types().and_then(|loader| loader.prepare());
    let kernel = kernel.map_err(|e| e.to_string());
    let mut left: Vec<(u32, String)> = Vec::new();
    let (fixed, proofs) = loop {
        let mut tried = options.options.clone();
        tried.leave.extend(left.iter().map(|l| l.0));
        if options.without.contains(&SearchAblation::Static) {
            tried.leave.extend(object.programs.iter().flat_map(|p| functions(object, p.func)));
        }
        if !tried.leave.is_empty() {
            // The remaining functions call functions that inlining would take away.
            tried.inline = Some(false);
        }
        let fixed = best_form(object, &tried, kernel.is_ok())?;
        let proofs = prove_all(object, &fixed.object, options);
        let open: Vec<(FuncId, String)> =
            proofs.iter().zip(&object.programs).filter_map(|(p, q)| Some((q.func, p.why()?))).collect();
        let before = left.len();
        for (func, why) in open {
            for f in functions(object, func) {
                if !left.iter().any(|l| l.0 == f) {
                    left.push((f, why.clone()));
                }
            }
        }
        if left.len() == before {
            break (fixed, proofs);
        }
    };
    let mut run = SuperoptDriver {
        original: object,
        options,
        session: kernel.as_ref(),
        now: fixed.object.clone(),
        fixed: &fixed.object,
        search: Superoptimizer::new(search_options(object, kernel.is_ok(), options)),
        searched: Vec::new(),
        earlier: Vec::new(),
    };
    let mut programs = Vec::new();
    for (n, proof) in proofs.into_iter().enumerate() {
        let why = left.iter().find(|l| l.0 == object.programs[n].func.0).map(|l| l.1.clone());
        programs.push(run.program(n, proof, why));
    }
    let others = run.others(&programs);
    let lessons = run.search.take_rule_candidates();
    let object = run.now;
    let trusted = options.solver.as_ref().map_or(0, |s| s.cache().stats().trusted);
    Ok(SuperoptimizedObject { object, fixed, others, programs, lessons, trusted })
}

/// Options of the search of an object.
pub(crate) fn search_options(
    object: &Object,
    kernel: bool,
    s: &SuperOptions,
) -> millstream_search::SearchOptions {
    let isa = match s.options.isa {
        0 if kernel && s.options.host.unwrap_or_else(KernelFeatures::probe).isa_v4 => 4,
        0 => isa_version(object),
        isa => isa,
    };
    millstream_search::SearchOptions {
        goal: s.options.goal,
        isa,
        jobs: s.jobs,
        seed: s.seed,
        solver: s.solver.clone(),
        without: s.without.clone(),
        rules: Arc::clone(&s.rules),
        learn: s.learn,
        keep: s.others,
    }
}

/// The best of the static forms: for any kernel that took the original and for the kernel at hand.
fn best_form(
    object: &Object,
    options: &OptimizeOptions,
    kernel: bool,
) -> Result<OptimizationResult, OptError> {
    let make = |host: Option<KernelFeatures>| -> Result<OptimizationResult, OptError> {
        let options = OptimizeOptions { host, ..options.clone() };
        if kernel { Ok(check(object, options)?.optimized) } else { optimize(object, &options) }
    };
    let any = make(None)?;
    if !kernel {
        return Ok(any);
    }
    let here = make(Some(options.host.unwrap_or_else(KernelFeatures::probe)))?;
    let costs = [&here, &any].map(|form| total(object, &form.object));
    let better = options.goal.compare(costs[0], costs[1], total(object, object)).is_lt();
    Ok(if better { here } else { any })
}

/// A function as it is, to be put elsewhere.
fn contents(object: &Object, f: u32) -> NewFunction {
    let f = &object.functions[f as usize];
    NewFunction {
        insns: f.insns.clone(),
        relocs: f.relocs.clone(),
        line_info: f.line_info.clone(),
        core_relos: f.core_relos.clone(),
    }
}

/// The cost of all programs of an object that was made of another.
fn total(original: &Object, object: &Object) -> CodeCost {
    object.programs.iter().fold(CodeCost::default(), |sum, p| sum.plus(cost_beside(original, object, p.func)))
}

/// Answer of the prover on a static form.
#[derive(Clone, PartialEq, Eq, Debug)]
enum StaticFormProof {
    Unchanged,
    Equivalent,
    Open(String),
}

impl StaticFormProof {
    /// Why the form may not be used.
    fn why(&self) -> Option<String> {
        if let StaticFormProof::Open(why) = self { Some(why.clone()) } else { None }
    }
}

fn prove_all(object: &Object, fixed: &Object, options: &SuperOptions) -> Vec<StaticFormProof> {
    object.programs.iter().map(|p| prove_one((object, p.func), (fixed, p.func), options)).collect()
}

fn prove_one(a: (&Object, FuncId), b: (&Object, FuncId), options: &SuperOptions) -> StaticFormProof {
    let slots = |(o, f): (&Object, FuncId)| o.link(f).ok().map(|l| (l.insns, l.relocs));
    if slots(a) == slots(b) {
        return StaticFormProof::Unchanged;
    }
    match prove(a, b, options.solver.as_ref(), &options.limits).verdict {
        Proof::Equivalent => StaticFormProof::Equivalent,
        Proof::Unknown { reason } => StaticFormProof::Open(reason),
        Proof::Differs(found) => StaticFormProof::Open(format!("refuted: {found}")),
    }
}

/// An object on its way.
struct SuperoptDriver<'a> {
    original: &'a Object,
    fixed: &'a Object,
    now: Object,
    options: &'a SuperOptions,
    session: Result<&'a Session<'a>, &'a String>,
    search: Superoptimizer,
    /// Functions that the search has been over.
    searched: Vec<u32>,
    /// Contents of functions before their last replacements.
    earlier: Vec<(u32, NewFunction)>,
}

impl SuperoptDriver<'_> {
    /// Searches one program, and proves and measures the result.
    fn program(&mut self, n: usize, fixed: StaticFormProof, left: Option<String>) -> SuperReport {
        let start = Instant::now();
        let p = &self.original.programs[n];
        let before = self.measured(self.original, p.func);
        let kernel = match (&self.session, &before) {
            (Err(why), _) => KernelAcceptance::NotAsked((*why).clone()),
            (Ok(_), Err(why)) => KernelAcceptance::NotLoadable(why.clone()),
            (Ok(_), Ok(_)) => KernelAcceptance::Accepted,
        };
        let mut report = SuperReport {
            name: p.name.clone(),
            section: p.section.clone(),
            before: self.costs(self.original, p.func, before.ok()),
            fixed: self.costs(self.fixed, p.func, self.measured(self.fixed, p.func).ok()),
            after: CostSummary::default(),
            kernel,
            proof: EquivalenceEvidence::Unchanged,
            seconds: 0.0,
            search_seconds: 0.0,
            found: Vec::new(),
            search: SearchStats::default(),
        };
        if !matches!(report.kernel, KernelAcceptance::NotLoadable(_)) {
            self.search(p.func, &mut report);
        }
        report.search_seconds = start.elapsed().as_secs_f64();
        report.proof = self.certainty(p.func, fixed, left, report.found.is_empty());
        report.after = self.costs(&self.now, p.func, self.measured(&self.now, p.func).ok());
        report.seconds = start.elapsed().as_secs_f64();
        report
    }

    /// Searches the functions of a program that were not yet.
    fn search(&mut self, func: FuncId, report: &mut SuperReport) {
        let mut todo = functions(&self.now, func);
        let size = |f: &u32| self.now.functions[*f as usize].insns.len();
        let all: usize = todo.iter().map(size).sum();
        todo.retain(|f| !self.searched.contains(f));
        for f in todo {
            let share = size_of(&self.now, f) as f64 / all.max(1) as f64;
            let whole = self.options.budget.unwrap_or_else(|| usual_budget(all));
            let mut budget = SearchBudget::of(whole.mul_f64(share));
            budget.stop = self.options.stop;
            budget.rounds = self.options.rounds.unwrap_or(budget.rounds);
            self.searched.push(f);
            let object = self.now.clone();
            let users: Vec<FuncId> = object
                .programs
                .iter()
                .map(|p| p.func)
                .filter(|p| functions(&object, *p).contains(&f))
                .filter(|p| self.measured(&object, *p).is_ok())
                .collect();
            let session = self.session;
            let mut accepts = |new: &NewFunction| accepted(session, &object, FuncId(f), new, &users);
            let improved = self.search.improve(&object, FuncId(f), &budget, &mut accepts);
            let Some(improved) = improved else { continue };
            report.search.add(&improved.tally);
            if !improved.found.is_empty() && self.now.replace_function(FuncId(f), improved.function).is_ok() {
                report.found.extend(improved.found);
                self.earlier.extend(improved.earlier.into_iter().map(|function| (f, function)));
            }
        }
    }

    /// The best forms beside the result, each with all that the result has been through.
    fn others(&self, programs: &[SuperReport]) -> Vec<AlternativeObject> {
        let mut forms = Vec::new();
        for (f, function) in &self.earlier {
            let mut object = self.now.clone();
            if object.replace_function(FuncId(*f), function.clone()).is_ok() {
                forms.push((total(self.original, &object), *f, object));
            }
        }
        let (goal, base) = (self.options.options.goal, total(self.original, self.original));
        forms.sort_by(|a, b| goal.compare(a.0, b.0, base));
        let known = forms.into_iter().filter_map(|(_, f, object)| {
            let proofs = self.known(&object, f, programs)?;
            Some(AlternativeObject { object, proofs })
        });
        known.take(self.options.others).collect()
    }

    /// Evidence that the programs of a form that differs from the result in one function are right; nothing
    /// if one is not, or the kernel refuses it.
    fn known(&self, object: &Object, f: u32, programs: &[SuperReport]) -> Option<Vec<EquivalenceEvidence>> {
        let one = |(p, result): (&millstream_object::EntryProgram, &SuperReport)| {
            if !functions(object, p.func).contains(&f) {
                return Some(result.proof.clone());
            }
            if matches!(result.kernel, KernelAcceptance::Accepted) && self.measured(object, p.func).is_err() {
                return None;
            }
            match (prove_one((self.original, p.func), (object, p.func), self.options), &result.proof) {
                (StaticFormProof::Open(why), _) if why.starts_with("refuted") => {
                    tracing::error!("a form of {} that was put together of proven windows is {why}", p.name);
                    None
                }
                (_, EquivalenceEvidence::Refuted(_)) => None,
                (StaticFormProof::Open(why), EquivalenceEvidence::Windows(_)) => {
                    Some(EquivalenceEvidence::Windows(why))
                }
                (StaticFormProof::Open(why), _) => Some(EquivalenceEvidence::Composed(why)),
                (StaticFormProof::Unchanged | StaticFormProof::Equivalent, _) => {
                    Some(EquivalenceEvidence::Whole)
                }
            }
        };
        self.original.programs.iter().zip(programs).map(one).collect()
    }

    /// Evidence that the result is right; a refuted result is put back.
    fn certainty(
        &mut self,
        func: FuncId,
        fixed: StaticFormProof,
        left: Option<String>,
        same: bool,
    ) -> EquivalenceEvidence {
        if same {
            return match (fixed, left) {
                (StaticFormProof::Unchanged, None) => EquivalenceEvidence::Unchanged,
                (_, Some(why)) => EquivalenceEvidence::Original(why),
                _ => EquivalenceEvidence::Whole,
            };
        }
        match (prove_one((self.original, func), (&self.now, func), self.options), left) {
            (StaticFormProof::Open(why), _) if why.starts_with("refuted") => {
                for f in functions(&self.now, func) {
                    let old = contents(self.fixed, f);
                    if let Err(e) = self.now.replace_function(FuncId(f), old) {
                        tracing::error!("a function cannot be put back: {e}");
                    }
                }
                EquivalenceEvidence::Refuted(why)
            }
            (StaticFormProof::Open(_), Some(why)) => EquivalenceEvidence::Windows(why),
            (StaticFormProof::Open(why), None) => EquivalenceEvidence::Composed(why),
            _ => EquivalenceEvidence::Whole,
        }
    }

    fn measured(&self, object: &Object, func: FuncId) -> Result<KernelMetrics, String> {
        self.session.map_err(Clone::clone).and_then(|s| measure(s, object, func))
    }

    fn costs(&self, object: &Object, func: FuncId, measure: Option<KernelMetrics>) -> CostSummary {
        let cost = cost_beside(self.original, object, func);
        let jited = measure.map_or(cost.jited, |m| m.jited);
        CostSummary { slots: cost.slots, jited, cycles: cost.cycles }
    }
}

/// Time in which the search usually finds most of its results, for a program of `slots` slots: 4 to 60
/// seconds.
fn usual_budget(slots: usize) -> Duration {
    Duration::from_millis((40 * slots as u64).clamp(4_000, 60_000))
}

fn size_of(object: &Object, f: u32) -> usize {
    object.functions[f as usize].insns.len()
}

/// Returns true if the kernel takes all programs that use a function with its new contents.
fn accepted(
    session: Result<&Session<'_>, &String>,
    object: &Object,
    func: FuncId,
    new: &NewFunction,
    users: &[FuncId],
) -> bool {
    let mut object = object.clone();
    if object.replace_function(func, new.clone()).is_err() {
        return false;
    }
    let Ok(session) = session else { return true };
    users
        .iter()
        .all(|p| measure(session, &object, *p).inspect_err(|why| tracing::debug!("refused: {why}")).is_ok())
}

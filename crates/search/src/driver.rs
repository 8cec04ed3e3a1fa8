//! The search over a function: the choice of windows, the effort for each, and the replacements in the
//! function.
//!
//! Rounds of growing effort go over all windows. Windows are worked on in batches, by several threads.
//! Replacements are made in order, and only if the function as a whole becomes better by the goal. After each
//! round the caller is asked if it accepts the function (the kernel is not this crate's business). A refused
//! version is rolled back; bisection finds the replacement to blame, which is not made again.

use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::{Arc, Mutex, mpsc};
use std::time::{Duration, Instant};

use millstream_bpf::cost::{self, BlockFrequencies, CodeCost, CostModel};
use millstream_object::{FuncId, NewFunction, Object, RelocKind};
use millstream_prove::window::{WindowProver, WindowStep};
use millstream_threads::STACK;
use rustc_hash::FxHashSet;
use serde::Serialize;

use crate::ablation::{SearchAblation, SearchEngine};
use crate::code::FunctionCode;
use crate::engines::{EngineWork, LEVELS, RULES, TaskOutcome, WindowEffort, WindowTask, effort, work};
use crate::facts::{self, AbstractState, FunctionContext};
use crate::liveness::{self, LiveValues};
use crate::machine::mix;
use crate::options::{MOST_ROUNDS, SearchBudget, SearchOptions};
use crate::rules::RuleCandidate;
use crate::splice::{replaced, rule_candidate};
use crate::store::{CanonicalWindow, RegisterRenaming, ResultStore, WindowResult};
use crate::window::{FunctionAnalysis, InsnWindow, WindowSpan, chain, cut};

/// Windows that are worked on at a time: the results of one are not known to the others.
const BATCH: usize = 24;
/// Time limit of one question to the solver.
const QUESTION: Duration = Duration::from_millis(250);

/// A replacement that was made.
#[derive(Clone, Debug, Serialize)]
pub struct WindowReplacement {
    /// Engine that found it.
    pub engine: SearchEngine,
    /// The slot of its first instruction, in the function at that time.
    pub slot: u32,
    /// The instructions before, as assembly.
    pub before: Vec<String>,
    /// The instructions after.
    pub after: Vec<String>,
    /// True if the solver had to be asked; otherwise both came out as the same terms.
    pub solver: bool,
    /// The rule that it is an instance of.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rule: Option<String>,
}

/// Statistics of a search.
#[derive(Clone, Debug, Default, Serialize)]
pub struct SearchStats {
    /// Windows worked on, by engine.
    pub windows: BTreeMap<SearchEngine, u64>,
    /// Candidates run on tests.
    pub candidates: u64,
    /// Candidates that passed tests and rules, and were passed on to the prover.
    pub passed: u64,
    /// Of these, refuted by the solver.
    pub refuted: u64,
    /// Of these, not decided.
    pub undecided: u64,
    /// Proven by form.
    pub by_form: u64,
    /// Questions to the solver.
    pub asked: u64,
    /// Look-ups of windows in the store.
    pub lookups: u64,
    /// Of these, known.
    pub hits: u64,
    /// Replacements that the caller refused.
    pub refused: u64,
    /// Rounds that were finished.
    pub rounds: u64,
}

impl SearchStats {
    fn numbers(&mut self) -> [&mut u64; 10] {
        let SearchStats {
            windows: _,
            candidates,
            passed,
            refuted,
            undecided,
            by_form,
            asked,
            lookups,
            hits,
            refused,
            rounds,
        } = self;
        [candidates, passed, refuted, undecided, by_form, asked, lookups, hits, refused, rounds]
    }

    /// Adds another tally.
    pub fn add(&mut self, other: &SearchStats) {
        for (engine, n) in &other.windows {
            *self.windows.entry(*engine).or_default() += n;
        }
        for (mine, theirs) in self.numbers().into_iter().zip(other.clone().numbers()) {
            *mine += *theirs;
        }
    }
}

/// A function after the search.
#[derive(Clone, Debug)]
pub struct ImprovedFunction {
    /// Its contents.
    pub function: NewFunction,
    /// Versions from before its last replacements, the best first: predicted to be no better, but accepted,
    /// too. The function from before the first one is not among them.
    pub earlier: Vec<NewFunction>,
    /// The replacements, in order.
    pub found: Vec<WindowReplacement>,
    /// Its cost before.
    pub before: CodeCost,
    /// Its cost after.
    pub after: CodeCost,
    /// Statistics.
    pub tally: SearchStats,
}

/// A search, which remembers its results from one function to the next.
#[derive(Debug)]
pub struct Superoptimizer {
    options: SearchOptions,
    store: ResultStore,
    lessons: Vec<RuleCandidate>,
}

impl Superoptimizer {
    /// A new search.
    pub fn new(options: SearchOptions) -> Superoptimizer {
        Superoptimizer { options, store: ResultStore::default(), lessons: Vec::new() }
    }

    /// Lessons since the last call, if they were wanted.
    pub fn take_rule_candidates(&mut self) -> Vec<RuleCandidate> {
        std::mem::take(&mut self.lessons)
    }

    /// Searches a function of an object; [`None`] if it cannot be read. `accepts` is asked about each version
    /// of the function that would be returned.
    pub fn improve(
        &mut self,
        object: &Object,
        func: FuncId,
        budget: &SearchBudget,
        accepts: &mut dyn FnMut(&NewFunction) -> bool,
    ) -> Option<ImprovedFunction> {
        let code = FunctionCode::new(object.functions.get(func.index())?)?;
        self.improve_code(code, FunctionContext::new(object, func), budget, accepts)
    }

    /// The same for code on its own.
    pub(crate) fn improve_code(
        &mut self,
        code: FunctionCode,
        world: FunctionContext,
        budget: &SearchBudget,
        accepts: &mut dyn FnMut(&NewFunction) -> bool,
    ) -> Option<ImprovedFunction> {
        let cost = cost_of(&code, &world);
        let (asked, hits) = (self.store.asked, self.store.hits);
        let hunt = FunctionSearch {
            options: &self.options,
            store: &mut self.store,
            world: &world,
            history: vec![(code, cost)],
            found: Vec::new(),
            forms: Vec::new(),
            banned: FxHashSet::default(),
            tally: SearchStats::default(),
            accepted: 0,
            analyzed: None,
            lessons: &mut self.lessons,
        };
        let mut hunt = hunt.run(budget, accepts);
        hunt.tally.lookups = hunt.store.asked - asked;
        hunt.tally.hits = hunt.store.hits - hits;
        let (code, after) = hunt.history.last()?;
        let (function, after) = (code.function(), *after);
        let earlier = hunt.history.iter().skip(1).rev().skip(1).map(|(code, _)| code.function());
        let earlier = earlier.filter(|f| accepts(f)).take(hunt.options.keep).collect();
        Some(ImprovedFunction {
            function,
            earlier,
            found: hunt.found,
            before: cost,
            after,
            tally: hunt.tally,
        })
    }
}

/// The cost of a function, as reported in the end.
fn cost_of(code: &FunctionCode, world: &FunctionContext) -> CodeCost {
    let (insns, relocs) = code.linearize();
    let map = |&(slot, kind): &(u32, RelocKind)| match kind {
        RelocKind::Map(id) => Some((slot, world.maps.get(id.index())?.kind)),
        _ => None,
    };
    let maps: Vec<_> = relocs.iter().filter_map(map).collect();
    let symbols: Vec<u32> = relocs.iter().map(|r| r.0).collect();
    cost::CostInput { insns: &insns, symbols: &symbols, maps: &maps }
        .cost(CostModel::current(), &BlockFrequencies::Static)
}

/// State of the search over a function.
struct FunctionSearch<'a> {
    options: &'a SearchOptions,
    store: &'a mut ResultStore,
    world: &'a FunctionContext,
    /// The function after each replacement, the original first.
    history: Vec<(FunctionCode, CodeCost)>,
    found: Vec<WindowReplacement>,
    /// The window of each replacement.
    forms: Vec<CanonicalWindow>,
    /// Windows that are not tried again.
    banned: FxHashSet<CanonicalWindow>,
    tally: SearchStats,
    /// Replacements that the caller has accepted.
    accepted: usize,
    /// Analysis of a version, with the version.
    analyzed: Option<((usize, u64), Rc<AnalyzedFunction>)>,
    lessons: &'a mut Vec<RuleCandidate>,
}

/// A version of a function with its analysis.
struct AnalyzedFunction {
    code: FunctionCode,
    world: Arc<FunctionContext>,
    facts: Vec<Option<AbstractState>>,
    looked: Vec<Vec<LiveValues>>,
}

impl AnalyzedFunction {
    fn new(code: FunctionCode, world: &FunctionContext) -> AnalyzedFunction {
        let mut world = world.clone();
        let facts = facts::analyze(&code, &mut world);
        let looked = liveness::analyze(&code, &facts, &world);
        AnalyzedFunction { code, world: Arc::new(world), facts, looked }
    }

    fn analysis(&self) -> FunctionAnalysis<'_> {
        FunctionAnalysis { code: &self.code, world: &self.world, facts: &self.facts, looked: &self.looked }
    }
}

/// Origin of a replacement: the engine, and the rule.
type ReplacementOrigin = (SearchEngine, Option<usize>);

/// A question to the workers, with its number in the batch.
type NumberedTask = (usize, WindowTask);

impl<'a> FunctionSearch<'a> {
    fn run(
        mut self,
        budget: &SearchBudget,
        accepts: &mut dyn FnMut(&NewFunction) -> bool,
    ) -> FunctionSearch<'a> {
        let options = self.options;
        let (ask, questions) = mpsc::channel::<NumberedTask>();
        let (answer, answers) = mpsc::channel::<(usize, WindowTask, TaskOutcome)>();
        let questions = Mutex::new(questions);
        let mut workers = 0;
        std::thread::scope(|scope| {
            for _ in 0..options.jobs.max(1) {
                let (answer, questions) = (answer.clone(), &questions);
                let (solver, until) = (options.solver.clone(), budget.until);
                let worker = move || {
                    let mut prover = WindowProver::new(solver, QUESTION);
                    loop {
                        let next = questions.lock().ok().and_then(|q| q.recv().ok());
                        let Some((n, task)) = next else { return };
                        let outcome = work(&task, options, &mut prover, until);
                        if answer.send((n, task, outcome)).is_err() {
                            return;
                        }
                    }
                };
                let thread = std::thread::Builder::new().stack_size(STACK);
                workers += usize::from(thread.spawn_scoped(scope, worker).is_ok());
            }
            // Without workers nothing is asked.
            if workers > 0 {
                self.rounds(budget, accepts, &ask, &answers);
            }
            drop(ask);
        });
        self
    }

    fn rounds(
        &mut self,
        budget: &SearchBudget,
        accepts: &mut dyn FnMut(&NewFunction) -> bool,
        ask: &mpsc::Sender<NumberedTask>,
        answers: &mpsc::Receiver<(usize, WindowTask, TaskOutcome)>,
    ) {
        let mut prover = WindowProver::new(None, QUESTION);
        let mut round = 0;
        while round < budget.rounds.min(MOST_ROUNDS) && !budget.is_over() {
            let before = (self.history.len(), self.tally.refused);
            if round == 0 && !self.options.is_ablated(SearchAblation::Engine(SearchEngine::Rules)) {
                self.round(RULES, budget, ask, answers, &mut prover);
            }
            self.round(effort(round), budget, ask, answers, &mut prover);
            self.settle(accepts);
            self.tally.rounds += 1;
            // A replacement may make cheap ones possible, and a refusal may have taken back good ones, too.
            let found = self.history.len() > before.0 || self.tally.refused > before.1;
            round = if found && round < LEVELS.len() - 1 { 0 } else { round + 1 };
        }
        self.settle(accepts);
    }

    /// Goes over all windows once.
    fn round(
        &mut self,
        effort: WindowEffort,
        budget: &SearchBudget,
        ask: &mpsc::Sender<NumberedTask>,
        answers: &mpsc::Receiver<(usize, WindowTask, TaskOutcome)>,
        prover: &mut WindowProver,
    ) {
        let mut spans = spans(self.code(), effort).into_iter().peekable();
        while spans.peek().is_some() && !budget.is_over() {
            let mut tasks: Vec<(CanonicalWindow, RegisterRenaming)> = Vec::new();
            let known = self.known();
            let analysis = known.analysis();
            let mut batch: FxHashSet<CanonicalWindow> = FxHashSet::default();
            while tasks.len() < BATCH
                && let Some(span) = spans.next()
            {
                let by_rules = matches!(effort.work, EngineWork::Rules);
                if by_rules && !self.may_match(&known.code, span) {
                    continue;
                }
                let Some(window) = cut(&analysis, span) else { continue };
                let rules = if by_rules { self.options.rules.of(&window) } else { Vec::new() };
                if by_rules && rules.is_empty() {
                    continue;
                }
                let (form, naming) = RegisterRenaming::of(&window);
                if self.banned.contains(&form) || batch.contains(&form) {
                    continue;
                }
                let stored = self.store.get(&form, effort.level);
                let hint = match stored
                    .filter(|_| !self.options.is_ablated(SearchAblation::Engine(SearchEngine::Store)))
                {
                    Some(WindowResult { better: None, .. }) => continue,
                    Some(WindowResult { better: Some(steps), .. }) => {
                        Some(steps.iter().map(|s| naming.rename(*s, false)).collect())
                    }
                    None => None,
                };
                let seed = mix(
                    self.options.seed,
                    tasks.len() as u64 ^ (span.line as u64) << 20 ^ (span.block as u64) << 40,
                );
                batch.insert(form.clone());
                if ask.send((tasks.len(), WindowTask { window, effort, seed, hint, rules })).is_err() {
                    return;
                }
                tasks.push((form, naming));
            }
            self.collect(&tasks, answers, effort, budget, prover);
        }
    }

    /// Returns true if some rule may match these lines.
    fn may_match(&self, code: &FunctionCode, span: WindowSpan) -> bool {
        let places = chain(code, span.block, span.line, span.count);
        self.options.rules.may_match(places.into_iter().map(|(b, i)| code.blocks[b].lines[i].insn))
    }

    /// Waits for a batch, and makes the replacements found.
    fn collect(
        &mut self,
        tasks: &[(CanonicalWindow, RegisterRenaming)],
        answers: &mpsc::Receiver<(usize, WindowTask, TaskOutcome)>,
        effort: WindowEffort,
        budget: &SearchBudget,
        prover: &mut WindowProver,
    ) {
        let mut all: Vec<(usize, WindowTask, TaskOutcome)> = answers.iter().take(tasks.len()).collect();
        all.sort_unstable_by_key(|a| a.0);
        let version = self.history.len();
        for (n, task, outcome) in all {
            let (form, naming) = &tasks[n];
            self.count(&task, &outcome);
            let Some((steps, engine)) = outcome.better else {
                if !budget.is_over() && task.hint.is_none() {
                    self.store.put(form.clone(), WindowResult { better: None, effort: effort.level });
                }
                if task.hint.is_some() {
                    self.banned.insert(form.clone());
                }
                continue;
            };
            let named = steps.iter().map(|s| naming.rename(*s, true)).collect();
            self.store.put(form.clone(), WindowResult { better: Some(named), effort: effort.level });
            let engine =
                if task.hint.is_some() { SearchEngine::Store } else { engine.unwrap_or(SearchEngine::Chain) };
            let how = (engine, outcome.rule);
            if self.history.len() == version {
                self.put_in(&task.window, &steps, how, form, outcome.asked > 0);
            } else {
                self.again(&task, steps, how, form, prover);
            }
        }
    }

    fn count(&mut self, task: &WindowTask, o: &TaskOutcome) {
        let engine = if task.hint.is_some() { SearchEngine::Store } else { task.effort.work.engine() };
        *self.tally.windows.entry(engine).or_default() += 1;
        self.tally.candidates += o.counts.candidates;
        self.tally.passed += o.counts.passed;
        self.tally.refuted += o.counts.refuted;
        self.tally.undecided += o.counts.unknown;
        self.tally.by_form += o.by_form;
        self.tally.asked += o.asked;
    }

    /// Makes a replacement that was found before the function changed, if it still holds.
    fn again(
        &mut self,
        task: &WindowTask,
        steps: Vec<WindowStep>,
        how: ReplacementOrigin,
        form: &CanonicalWindow,
        prover: &mut WindowProver,
    ) {
        let known = self.known();
        let Some(window) = cut(&known.analysis(), task.window.span).filter(|w| w.steps == task.window.steps)
        else {
            return;
        };
        let task =
            WindowTask { window, effort: task.effort, seed: task.seed, hint: Some(steps), rules: Vec::new() };
        let outcome = work(&task, self.options, prover, Instant::now() + QUESTION);
        if let Some((steps, _)) = outcome.better {
            self.put_in(&task.window, &steps, how, form, false);
        }
    }

    /// Analysis of the current version.
    fn known(&mut self) -> Rc<AnalyzedFunction> {
        let version = (self.history.len(), self.tally.refused);
        match &self.analyzed {
            Some((v, known)) if *v == version => known.clone(),
            _ => {
                let known = Rc::new(AnalyzedFunction::new(self.code().clone(), self.world));
                self.analyzed = Some((version, known.clone()));
                known
            }
        }
    }

    /// Current version of the function.
    fn code(&self) -> &FunctionCode {
        &self.history[self.history.len() - 1].0
    }

    /// Makes a replacement, if it makes the function better.
    fn put_in(
        &mut self,
        window: &InsnWindow,
        steps: &[WindowStep],
        (engine, rule): ReplacementOrigin,
        form: &CanonicalWindow,
        solver: bool,
    ) {
        let now = self.history[self.history.len() - 1].1;
        let code = replaced(self.code(), window, steps);
        let cost = cost_of(&code, self.world);
        if !self.options.goal.improves(cost, now) {
            self.banned.insert(form.clone());
            return;
        }
        let WindowSpan { block, line, .. } = window.span;
        self.found.push(WindowReplacement {
            engine,
            slot: self.code().slot(block, line),
            before: self.code().text(&chain(self.code(), block, line, window.steps.len())),
            after: code.text(&chain(&code, block, line, steps.len())),
            solver,
            rule: rule.and_then(|n| self.options.rules.rules().get(n)).map(ToString::to_string),
        });
        if self.options.learn && rule.is_none() {
            let known = self.known();
            self.lessons.push(rule_candidate(&known.analysis(), window, steps));
        }
        self.history.push((code, cost));
        self.forms.push(form.clone());
    }

    /// Asks the caller about the replacements since the last call, and rolls back those that it refuses.
    fn settle(&mut self, accepts: &mut dyn FnMut(&NewFunction) -> bool) {
        while self.accepted + 1 < self.history.len() {
            if accepts(&self.code().function()) {
                self.accepted = self.history.len() - 1;
                return;
            }
            let (mut good, mut bad) = (self.accepted, self.history.len() - 1);
            while good + 1 < bad {
                let middle = good + (bad - good) / 2;
                if accepts(&self.history[middle].0.function()) { good = middle } else { bad = middle }
            }
            self.banned.insert(self.forms[bad - 1].clone());
            self.tally.refused += 1;
            self.history.truncate(good + 1);
            self.found.truncate(good);
            self.forms.truncate(good);
            self.accepted = good;
        }
    }
}

/// The windows of a round.
fn spans(code: &FunctionCode, effort: WindowEffort) -> Vec<WindowSpan> {
    let mut out = Vec::new();
    let (least, most) = effort.sizes;
    for (block, b) in code.blocks.iter().enumerate() {
        for line in (0..b.lines.len()).step_by(effort.stride) {
            let here = chain(code, block, line, most).len();
            if least < most {
                let sizes = (least..=here.min(most)).rev();
                out.extend(sizes.map(|count| WindowSpan { block, line, count, exact: true }));
            } else if here > 2 {
                out.push(WindowSpan { block, line, count: here, exact: false });
            }
        }
    }
    out
}

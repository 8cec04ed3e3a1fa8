//! Engines that are run on one window, depending on the effort allowed.

use std::time::{Duration, Instant};

use millstream_prove::window::{WindowProver, WindowStep};

use crate::ablation::{SearchAblation, SearchEngine};
use crate::candidate::{CandidateChecker, CandidateCounts, CandidateResult};
use crate::enumerate;
use crate::machine::mix;
use crate::mcmc;
use crate::options::SearchOptions;
use crate::pool::CandidatePool;
use crate::rules::LONGEST;
use crate::synthesis;
use crate::window::InsnWindow;

/// Effort for a window.
#[derive(Clone, Copy, Debug)]
pub(crate) struct WindowEffort {
    /// Level, for the store: a search that failed at one level is not repeated at a lower one.
    pub(crate) level: u8,
    /// Sizes of windows.
    pub(crate) sizes: (usize, usize),
    /// Lines from the start of one window to the start of the next.
    pub(crate) stride: usize,
    /// Engine to run, with its limits.
    pub(crate) work: EngineWork,
}

/// Work on a window.
#[derive(Clone, Copy, Debug)]
pub(crate) enum EngineWork {
    /// Rules.
    Rules,
    /// Its neighbourhood.
    Shrink,
    /// All sequences of up to so many instructions.
    Short(usize),
    /// Sketches.
    Sketches,
    /// So many proposals of each of two chains, a fresh pair each time.
    Chains(u64, u64),
}

impl EngineWork {
    /// The engine that does it.
    pub(crate) fn engine(self) -> SearchEngine {
        match self {
            EngineWork::Rules => SearchEngine::Rules,
            EngineWork::Shrink => SearchEngine::Neighbourhood,
            EngineWork::Short(_) => SearchEngine::Enumeration,
            EngineWork::Sketches => SearchEngine::Cegis,
            EngineWork::Chains(..) => SearchEngine::Chain,
        }
    }
}

/// Longest time for one window.
const PATIENCE: Duration = Duration::from_millis(1500);

/// Pass over all windows before each first level.
pub(crate) const RULES: WindowEffort =
    WindowEffort { level: 0, sizes: (1, LONGEST), stride: 1, work: EngineWork::Rules };

/// The first levels; after these, chains get longer and longer.
pub(crate) const LEVELS: [WindowEffort; 8] = [
    WindowEffort { level: 1, sizes: (1, 5), stride: 1, work: EngineWork::Shrink },
    WindowEffort { level: 2, sizes: (12, 12), stride: 3, work: EngineWork::Shrink },
    WindowEffort { level: 3, sizes: (2, 4), stride: 1, work: EngineWork::Short(2) },
    WindowEffort { level: 4, sizes: (8, 8), stride: 2, work: EngineWork::Chains(10_000, 0) },
    WindowEffort { level: 5, sizes: (14, 14), stride: 3, work: EngineWork::Chains(20_000, 1) },
    WindowEffort { level: 6, sizes: (4, 6), stride: 1, work: EngineWork::Short(3) },
    WindowEffort { level: 7, sizes: (2, 5), stride: 1, work: EngineWork::Sketches },
    WindowEffort { level: 8, sizes: (10, 10), stride: 2, work: EngineWork::Chains(60_000, 2) },
];

/// The effort of a round of the search.
pub(crate) fn effort(round: usize) -> WindowEffort {
    LEVELS.get(round).copied().unwrap_or_else(|| {
        let n = (round - LEVELS.len()) as u64;
        let size = [6, 12, 16][n as usize % 3];
        WindowEffort {
            level: (round + 1).min(200) as u8,
            sizes: (size, size),
            stride: 2,
            work: EngineWork::Chains(100_000 << n.min(6), 3 + n),
        }
    })
}

/// A window to work on.
pub(crate) struct WindowTask {
    pub(crate) window: InsnWindow,
    pub(crate) effort: WindowEffort,
    pub(crate) seed: u64,
    /// A better sequence found elsewhere.
    pub(crate) hint: Option<Vec<WindowStep>>,
    /// Right sides of matching rules, with the rules' numbers.
    pub(crate) rules: Vec<(usize, Vec<WindowStep>)>,
}

/// Result of the work on a window.
#[derive(Default)]
pub(crate) struct TaskOutcome {
    pub(crate) better: Option<(Vec<WindowStep>, Option<SearchEngine>)>,
    /// The rule that was applied.
    pub(crate) rule: Option<usize>,
    pub(crate) counts: CandidateCounts,
    pub(crate) by_form: u64,
    pub(crate) asked: u64,
}

/// Works on a window.
pub(crate) fn work(
    task: &WindowTask,
    options: &SearchOptions,
    prover: &mut WindowProver,
    until: Instant,
) -> TaskOutcome {
    let (by_form, asked) = (prover.by_form, prover.asked);
    let mut out = TaskOutcome::default();
    if let Some(mut t) = CandidateChecker::new(&task.window, options.goal, prover, task.seed) {
        let engine = attempt(&mut t, task, options, until.min(Instant::now() + PATIENCE), &mut out.rule);
        out.counts = t.counts;
        out.better = t.best.take().map(|(_, steps)| (steps, engine));
    }
    (out.by_form, out.asked) = (prover.by_form - by_form, prover.asked - asked);
    out
}

fn attempt(
    t: &mut CandidateChecker<'_>,
    task: &WindowTask,
    options: &SearchOptions,
    deadline: Instant,
    rule: &mut Option<usize>,
) -> Option<SearchEngine> {
    if let Some(hint) = &task.hint {
        return (t.consider(hint) == CandidateResult::Best).then_some(SearchEngine::Store);
    }
    let engine = task.effort.work.engine();
    if options.is_ablated(SearchAblation::Engine(engine)) {
        return None;
    }
    if matches!(task.effort.work, EngineWork::Rules) {
        for (n, steps) in &task.rules {
            if t.consider(steps) == CandidateResult::Best {
                *rule = Some(*n);
            }
        }
        return Some(engine);
    }
    let pool = CandidatePool::new(&task.window, options.isa);
    match task.effort.work {
        EngineWork::Rules => {}
        EngineWork::Shrink => {
            enumerate::search_neighbourhood(t, &pool, deadline);
        }
        EngineWork::Short(most) => {
            // A result that is no shorter is not worth the effort.
            enumerate::enumerate_short(
                t,
                &pool,
                most.min(task.window.steps.len().saturating_sub(1)),
                deadline,
            );
        }
        EngineWork::Sketches => {
            synthesis::synthesize(t, &pool, deadline);
            polish(t, &pool, options, deadline);
        }
        EngineWork::Chains(proposals, turn) => {
            let all = pool.instructions(&pool.targets);
            for n in 0..2 {
                let number = (turn * 2 + n) as usize % mcmc::SETTINGS.len();
                let seed = mix(task.seed, turn * 2 + n);
                let setting = mcmc::SETTINGS[number].without(options);
                mcmc::run(t, &pool, &all, setting, seed, proposals, deadline);
            }
            polish(t, &pool, options, deadline);
        }
    }
    Some(engine)
}

/// Improves the best candidate by small changes.
fn polish(t: &mut CandidateChecker<'_>, pool: &CandidatePool, options: &SearchOptions, deadline: Instant) {
    if t.best.is_some() && !options.is_ablated(SearchAblation::Engine(SearchEngine::Neighbourhood)) {
        enumerate::search_neighbourhood(t, pool, deadline);
    }
}

//! Engines that are run on one window, depending on the effort allowed.

use std::time::{Duration, Instant};

use millstream_prove::window::{Step, Windows};
use serde::Serialize;

use crate::chain;
use crate::driver::Options;
use crate::enumerate;
use crate::machine::mix;
use crate::part::Part;
use crate::pool::Pool;
use crate::rules::LONGEST;
use crate::synthesis;
use crate::trial::{Counts, Fate, Trial};
use crate::window::Window;

/// Engine that finds replacements.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Engine {
    /// A rule of windows.
    Rules,
    /// The store: the same window was improved before.
    Store,
    /// The neighbourhood of the window.
    Neighbourhood,
    /// All short sequences.
    Enumeration,
    /// Sketches that a solver completes.
    Cegis,
    /// Metropolis-Hastings.
    Chain,
}

impl Engine {
    /// All of them.
    pub const ALL: [Engine; 6] = [
        Engine::Rules,
        Engine::Store,
        Engine::Neighbourhood,
        Engine::Enumeration,
        Engine::Cegis,
        Engine::Chain,
    ];
}

/// Effort for a window.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Effort {
    /// Level, for the store: a search that failed at one level is not repeated at a lower one.
    pub(crate) level: u8,
    /// Sizes of windows.
    pub(crate) sizes: (usize, usize),
    /// Lines from the start of one window to the start of the next.
    pub(crate) stride: usize,
    /// Engine to run, with its limits.
    pub(crate) work: Work,
}

/// Work on a window.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Work {
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

impl Work {
    /// The engine that does it.
    pub(crate) fn engine(self) -> Engine {
        match self {
            Work::Rules => Engine::Rules,
            Work::Shrink => Engine::Neighbourhood,
            Work::Short(_) => Engine::Enumeration,
            Work::Sketches => Engine::Cegis,
            Work::Chains(..) => Engine::Chain,
        }
    }
}

/// Longest time for one window.
const PATIENCE: Duration = Duration::from_millis(1500);

/// Pass over all windows before each first level.
pub(crate) const RULES: Effort = Effort { level: 0, sizes: (1, LONGEST), stride: 1, work: Work::Rules };

/// The first levels; after these, chains get longer and longer.
pub(crate) const LEVELS: [Effort; 8] = [
    Effort { level: 1, sizes: (1, 5), stride: 1, work: Work::Shrink },
    Effort { level: 2, sizes: (12, 12), stride: 3, work: Work::Shrink },
    Effort { level: 3, sizes: (2, 4), stride: 1, work: Work::Short(2) },
    Effort { level: 4, sizes: (8, 8), stride: 2, work: Work::Chains(10_000, 0) },
    Effort { level: 5, sizes: (14, 14), stride: 3, work: Work::Chains(20_000, 1) },
    Effort { level: 6, sizes: (4, 6), stride: 1, work: Work::Short(3) },
    Effort { level: 7, sizes: (2, 5), stride: 1, work: Work::Sketches },
    Effort { level: 8, sizes: (10, 10), stride: 2, work: Work::Chains(60_000, 2) },
];

/// The effort of a round of the search.
pub(crate) fn effort(round: usize) -> Effort {
    LEVELS.get(round).copied().unwrap_or_else(|| {
        let n = (round - LEVELS.len()) as u64;
        let size = [6, 12, 16][n as usize % 3];
        Effort {
            level: (round + 1).min(200) as u8,
            sizes: (size, size),
            stride: 2,
            work: Work::Chains(100_000 << n.min(6), 3 + n),
        }
    })
}

/// A window to work on.
pub(crate) struct Task {
    pub(crate) window: Window,
    pub(crate) effort: Effort,
    pub(crate) seed: u64,
    /// A better sequence found elsewhere.
    pub(crate) hint: Option<Vec<Step>>,
    /// Right sides of matching rules, with the rules' numbers.
    pub(crate) rules: Vec<(usize, Vec<Step>)>,
}

/// Result of the work on a window.
#[derive(Default)]
pub(crate) struct Outcome {
    pub(crate) better: Option<(Vec<Step>, Option<Engine>)>,
    /// The rule that was applied.
    pub(crate) rule: Option<usize>,
    pub(crate) counts: Counts,
    pub(crate) by_form: u64,
    pub(crate) asked: u64,
}

/// Works on a window.
pub(crate) fn work(task: &Task, options: &Options, prover: &mut Windows, until: Instant) -> Outcome {
    let (by_form, asked) = (prover.by_form, prover.asked);
    let mut out = Outcome::default();
    if let Some(mut t) = Trial::new(&task.window, options.goal, prover, task.seed) {
        let engine = attempt(&mut t, task, options, until.min(Instant::now() + PATIENCE), &mut out.rule);
        out.counts = t.counts;
        out.better = t.best.take().map(|(_, steps)| (steps, engine));
    }
    (out.by_form, out.asked) = (prover.by_form - by_form, prover.asked - asked);
    out
}

fn attempt(
    t: &mut Trial<'_>,
    task: &Task,
    options: &Options,
    deadline: Instant,
    rule: &mut Option<usize>,
) -> Option<Engine> {
    if let Some(hint) = &task.hint {
        return (t.consider(hint) == Fate::Best).then_some(Engine::Store);
    }
    let engine = task.effort.work.engine();
    if options.leaves_out(Part::Engine(engine)) {
        return None;
    }
    if matches!(task.effort.work, Work::Rules) {
        for (n, steps) in &task.rules {
            if t.consider(steps) == Fate::Best {
                *rule = Some(*n);
            }
        }
        return Some(engine);
    }
    let pool = Pool::new(&task.window, options.isa);
    match task.effort.work {
        Work::Rules => {}
        Work::Shrink => {
            enumerate::shrink(t, &pool, deadline);
        }
        Work::Short(most) => {
            // A result that is no shorter is not worth the effort.
            enumerate::short(t, &pool, most.min(task.window.steps.len().saturating_sub(1)), deadline);
        }
        Work::Sketches => {
            synthesis::synthesize(t, &pool, deadline);
            polish(t, &pool, options, deadline);
        }
        Work::Chains(proposals, turn) => {
            let all = pool.instructions(&pool.targets);
            for n in 0..2 {
                let number = (turn * 2 + n) as usize % chain::SETTINGS.len();
                let seed = mix(task.seed, turn * 2 + n);
                let setting = chain::SETTINGS[number].without(options);
                chain::run(t, &pool, &all, setting, seed, proposals, deadline);
            }
            polish(t, &pool, options, deadline);
        }
    }
    Some(engine)
}

/// Improves the best candidate by small changes.
fn polish(t: &mut Trial<'_>, pool: &Pool, options: &Options, deadline: Instant) {
    if t.best.is_some() && !options.leaves_out(Part::Engine(Engine::Neighbourhood)) {
        enumerate::shrink(t, pool, deadline);
    }
}

//! Metropolis-Hastings over candidates of one window, with the proposal rules and error costs of K2 (section
//! 3, tables 8 and 10), for windows that are too long to enumerate.

use std::time::Instant;

use millstream_bpf::cost::{OptimizationGoal, window_cycles};
use millstream_isa::{Insn, Operand, Reg, Size};
use millstream_prove::window::WindowStep;

use crate::ablation::SearchAblation;
use crate::candidate::{CandidateChecker, CandidateResult};
use crate::enumerate::changes;
use crate::machine::{DistanceMetric, SearchRng, WindowMachine};
use crate::options::SearchOptions;
use crate::pool::CandidatePool;
use crate::window::insns;

/// Parameters of a chain: weights of errors and of the cost, and the probabilities of the six proposal rules.
#[derive(Clone, Copy, Debug)]
pub(crate) struct McmcParams {
    measure: DistanceMetric,
    /// True if the number of passed tests counts, beside errors.
    by_tests: bool,
    error: f64,
    cost: f64,
    /// Replace an instruction, replace an operand, delete an instruction, memory exchange 1 and 2, replace
    /// two in a row.
    rules: [f64; 6],
}

/// K2's five best settings (its table 8).
pub(crate) const SETTINGS: [McmcParams; 5] = [
    McmcParams {
        measure: DistanceMetric::Distance,
        by_tests: false,
        error: 0.5,
        cost: 5.0,
        rules: [0.2, 0.4, 0.15, 0.2, 0.0, 0.05],
    },
    McmcParams {
        measure: DistanceMetric::Bits,
        by_tests: false,
        error: 0.5,
        cost: 5.0,
        rules: [0.17, 0.33, 0.15, 0.17, 0.0, 0.18],
    },
    McmcParams {
        measure: DistanceMetric::Bits,
        by_tests: false,
        error: 0.5,
        cost: 5.0,
        rules: [0.2, 0.4, 0.15, 0.2, 0.0, 0.05],
    },
    McmcParams {
        measure: DistanceMetric::Distance,
        by_tests: false,
        error: 0.5,
        cost: 5.0,
        rules: [0.17, 0.33, 0.15, 0.0, 0.17, 0.18],
    },
    McmcParams {
        measure: DistanceMetric::Distance,
        by_tests: true,
        error: 0.5,
        cost: 1.5,
        rules: [0.17, 0.33, 0.15, 0.0, 0.17, 0.18],
    },
];

impl McmcParams {
    /// The setting without the rules that are switched off.
    pub(crate) fn without(mut self, options: &SearchOptions) -> McmcParams {
        for (n, p) in self.rules.iter_mut().enumerate() {
            if options.is_ablated(SearchAblation::Rule(n)) {
                *p = 0.0;
            }
        }
        self
    }
}

/// Cost of a candidate that passes the tests but is refused or not proven.
const REFUSED: f64 = 40.0;

/// A chain: a candidate and its cost. `None` stands in place of a deleted instruction.
struct McmcChain<'a, 'b, 'w> {
    t: &'a mut CandidateChecker<'w>,
    pool: &'a CandidatePool,
    all: &'b [Insn],
    setting: McmcParams,
    random: SearchRng,
    machine: WindowMachine,
    now: Vec<Option<WindowStep>>,
    cost: f64,
}

/// Runs one chain for so many proposals.
pub(crate) fn run(
    t: &mut CandidateChecker<'_>,
    pool: &CandidatePool,
    all: &[Insn],
    setting: McmcParams,
    seed: u64,
    proposals: u64,
    deadline: Instant,
) {
    if all.is_empty() {
        return;
    }
    let start = t.best.as_ref().map_or_else(|| t.window.steps.clone(), |b| b.1.clone());
    let now: Vec<Option<WindowStep>> = start.into_iter().map(Some).collect();
    let mut chain = McmcChain {
        t,
        pool,
        all,
        setting,
        random: SearchRng::new(seed),
        machine: WindowMachine::default(),
        now,
        cost: 0.0,
    };
    chain.cost = chain.performance(&chain.steps(&chain.now));
    for n in 0..proposals {
        if n % 256 == 0 && Instant::now() >= deadline {
            return;
        }
        chain.propose();
    }
}

impl McmcChain<'_, '_, '_> {
    fn steps(&self, now: &[Option<WindowStep>]) -> Vec<WindowStep> {
        now.iter().flatten().copied().collect()
    }

    /// The cost beside errors, in slots, relative to the window.
    fn performance(&self, steps: &[WindowStep]) -> f64 {
        let slots = steps.len() as f64;
        match self.t.goal {
            OptimizationGoal::Size => self.setting.cost * slots,
            OptimizationGoal::Balanced | OptimizationGoal::Verify => self.setting.cost * slots,
            OptimizationGoal::Latency => self.setting.cost * window_cycles(&insns(steps)) as f64 / 500.0,
        }
    }

    fn propose(&mut self) {
        let Some(next) = self.proposal() else { return };
        self.t.counts.candidates += 1;
        let steps = self.steps(&next);
        let performance = self.performance(&steps);
        // The highest cost that would be accepted, so that hopeless candidates are not run on all tests.
        let limit = self.cost - self.random.unit().max(1e-12).ln();
        let most = ((limit - performance) / self.setting.error).max(0.0);
        let most = if most > 1e9 { u64::MAX } else { most as u64 };
        let (error, wrong) =
            self.t.suite.error(self.t.window, &steps, &mut self.machine, self.setting.measure, most);
        let mut cost = performance + self.setting.error * error as f64;
        if self.setting.by_tests && wrong > 0 {
            cost += (self.t.suite.tests.len() as u64 - wrong) as f64 * 0.1;
        }
        if cost > limit {
            return;
        }
        if error == 0 && self.t.judge(&steps) == CandidateResult::Wrong {
            cost += REFUSED;
            if cost > limit {
                return;
            }
        }
        (self.now, self.cost) = (next, cost);
    }

    /// A candidate made by one of the six rules.
    fn proposal(&mut self) -> Option<Vec<Option<WindowStep>>> {
        let mut next = self.now.clone();
        let at = self.random.below(next.len());
        let mut dice = self.random.unit() * self.setting.rules.iter().sum::<f64>();
        let rule = self.setting.rules.iter().position(|p| {
            dice -= p;
            dice < 0.0
        });
        let free = |s: &Option<WindowStep>| matches!(s, None | Some(WindowStep::Do(_)));
        match rule? {
            0 if free(&next[at]) => next[at] = Some(self.any()),
            1 => next[at] = Some(self.operand(next[at]?)?),
            2 if free(&next[at]) => next[at] = None,
            3 => next[at] = Some(WindowStep::Do(self.exchange(next[at]?, true)?)),
            4 => next[at] = Some(WindowStep::Do(self.exchange(next[at]?, false)?)),
            5 => {
                for slot in next.iter_mut().skip(at).take(2).filter(|s| free(s)) {
                    *slot = Some(self.any());
                }
            }
            _ => return None,
        }
        (next != self.now).then_some(next)
    }

    fn any(&mut self) -> WindowStep {
        WindowStep::Do(self.all[self.random.below(self.all.len())])
    }

    fn operand(&mut self, step: WindowStep) -> Option<WindowStep> {
        let list = changes(step, self.pool);
        (!list.is_empty()).then(|| list[self.random.below(list.len())])
    }

    fn source(&mut self) -> Reg {
        self.pool.sources[self.random.below(self.pool.sources.len())]
    }

    /// Another width for an access, and with `operand` another operand, at the same address.
    fn exchange(&mut self, step: WindowStep, operand: bool) -> Option<Insn> {
        let WindowStep::Do(insn) = step else { return None };
        let width = Size::ALL[self.random.below(4)];
        Some(match insn {
            Insn::Load { sext, mut dst, src, off, .. } => {
                if operand && !self.pool.targets.is_empty() {
                    dst = self.pool.targets[self.random.below(self.pool.targets.len())];
                }
                Insn::Load { size: width, sext: sext && width != Size::Dw, dst, src, off }
            }
            Insn::Store { dst, off, mut src, .. } => {
                if operand {
                    let constants = self.pool.constants.len();
                    let n = self.random.below(self.pool.sources.len() + constants);
                    src = if n < constants {
                        Operand::Imm(self.pool.constants[n])
                    } else {
                        Operand::Reg(self.source())
                    };
                }
                Insn::Store { size: width, dst, off, src }
            }
            _ => return None,
        })
    }
}

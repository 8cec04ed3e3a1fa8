//! Checks of a candidate: tests, then the verifier's rules, then its cost, then the proof.

use millstream_bpf::cost::{Cost, Goal, window_cycles};
use millstream_bpf::jit::jited_bytes;
use millstream_isa::Insn;
use millstream_prove::window::{Completion, Judgement, Sketch, Step, Valuation, Windows};

use crate::machine::{Machine, Random, Suite, Test};
use crate::valid::Rules;
use crate::window::{Window, insns};

/// Initial tests of a window.
const TESTS: usize = 16;
/// Most questions to the solver about one window.
const QUESTIONS: usize = 6;

/// Numbers of candidates, by result.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Counts {
    pub(crate) candidates: u64,
    pub(crate) passed: u64,
    pub(crate) refuted: u64,
    pub(crate) unknown: u64,
}

/// Result for a candidate.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Fate {
    /// Wrong, not allowed, or not proven.
    Wrong,
    /// Correct on all tests, and no better than the best so far.
    NoBetter,
    /// Proven, and the best so far.
    Best,
}

/// A window on trial.
pub(crate) struct Trial<'a> {
    pub(crate) window: &'a Window,
    pub(crate) rules: Rules<'a>,
    pub(crate) suite: Suite,
    pub(crate) machine: Machine,
    pub(crate) random: Random,
    pub(crate) goal: Goal,
    pub(crate) base: Cost,
    pub(crate) best: Option<(Cost, Vec<Step>)>,
    pub(crate) counts: Counts,
    prover: &'a mut Windows,
    questions: usize,
}

/// The cost of straight-line code on its own.
pub(crate) fn cost(steps: &[Step]) -> Cost {
    let insns = insns(steps);
    let mut symbols = Vec::new();
    let mut slot = 0;
    for step in steps {
        if matches!(step, Step::Opaque(..)) {
            symbols.push(slot);
        }
        slot += insns_slots(step);
    }
    Cost { slots: slot, jited: jited_bytes(&insns, &symbols), cycles: window_cycles(&insns) }
}

fn insns_slots(step: &Step) -> u32 {
    match step {
        Step::Opaque(..) | Step::Do(Insn::LoadImm64 { .. }) => 2,
        _ => 1,
    }
}

impl<'a> Trial<'a> {
    pub(crate) fn new(
        window: &'a Window,
        goal: Goal,
        prover: &'a mut Windows,
        seed: u64,
    ) -> Option<Trial<'a>> {
        let rules = Rules::new(window)?;
        // If the rules refuse the window itself, they do not model it.
        if !rules.allow(&window.steps) {
            return None;
        }
        let mut random = Random::new(seed);
        let suite = Suite::new(window, TESTS, &mut random);
        let base = cost(&window.steps);
        Some(Trial {
            window,
            rules,
            suite,
            machine: Machine::default(),
            random,
            goal,
            base,
            best: None,
            counts: Counts::default(),
            prover,
            questions: 0,
        })
    }

    /// The cost to beat.
    pub(crate) fn to_beat(&self) -> Cost {
        self.best.as_ref().map_or(self.base, |b| b.0)
    }

    /// Returns true if there is a solver to complete sketches, which then forgets other windows.
    pub(crate) fn begin_synthesis(&mut self) -> bool {
        self.prover.begin_synthesis()
    }

    /// A sketch completed so that it agrees with the window on examples; an error if the solver cannot
    /// decide.
    pub(crate) fn complete(
        &mut self,
        sketch: &Sketch,
        examples: &[Valuation],
    ) -> Result<Option<Completion>, String> {
        self.prover.complete(&self.window.place, &self.window.steps, sketch, examples)
    }

    /// Checks a candidate.
    pub(crate) fn consider(&mut self, steps: &[Step]) -> Fate {
        self.counts.candidates += 1;
        if !self.suite.passes(self.window, steps, &mut self.machine) {
            return Fate::Wrong;
        }
        self.judge(steps)
    }

    /// Checks a candidate that has passed the tests.
    pub(crate) fn judge(&mut self, steps: &[Step]) -> Fate {
        let cost = cost(steps);
        if !self.goal.improves(cost, self.to_beat()) {
            return Fate::NoBetter;
        }
        if !self.rules.allow(steps) {
            return Fate::Wrong;
        }
        self.counts.passed += 1;
        if self.questions >= QUESTIONS {
            return Fate::Wrong;
        }
        let asked = self.prover.asked;
        let judgement = self.prover.judge(&self.window.place, &self.window.steps, steps);
        self.questions += usize::from(self.prover.asked != asked);
        match judgement {
            Judgement::Equal => {
                self.best = Some((cost, steps.to_vec()));
                Fate::Best
            }
            Judgement::Differs(found) => {
                self.counts.refuted += 1;
                let test = Test::refuting(self.window, &found, &mut self.random);
                self.suite.add(self.window, test);
                Fate::Wrong
            }
            Judgement::Unknown(why) => {
                self.counts.unknown += 1;
                tracing::trace!("not known: {why}");
                Fate::Wrong
            }
        }
    }
}

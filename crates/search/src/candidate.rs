//! Checks of a candidate: tests, then the verifier's rules, then its cost, then the proof.

use millstream_bpf::cost::{CodeCost, OptimizationGoal, window_cycles};
use millstream_bpf::jit::jited_bytes;
use millstream_isa::Insn;
use millstream_prove::window::{
    InitialValues, InsnSketch, SketchCompletion, WindowProver, WindowStep, WindowVerdict,
};

use crate::machine::{SearchRng, TestSuite, WindowMachine, WindowTest};
use crate::verifier_rules::AllowedAccesses;
use crate::window::{InsnWindow, insns};

/// Initial tests of a window.
const TESTS: usize = 16;
/// Most questions to the solver about one window.
const QUESTIONS: usize = 6;

/// Numbers of candidates, by result.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct CandidateCounts {
    pub(crate) candidates: u64,
    pub(crate) passed: u64,
    pub(crate) refuted: u64,
    pub(crate) unknown: u64,
}

/// Result for a candidate.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum CandidateResult {
    /// Wrong, not allowed, or not proven.
    Wrong,
    /// Correct on all tests, and no better than the best so far.
    NoBetter,
    /// Proven, and the best so far.
    Best,
}

/// A window on trial.
pub(crate) struct CandidateChecker<'a> {
    pub(crate) window: &'a InsnWindow,
    pub(crate) rules: AllowedAccesses<'a>,
    pub(crate) suite: TestSuite,
    pub(crate) machine: WindowMachine,
    pub(crate) random: SearchRng,
    pub(crate) goal: OptimizationGoal,
    pub(crate) base: CodeCost,
    pub(crate) best: Option<(CodeCost, Vec<WindowStep>)>,
    pub(crate) counts: CandidateCounts,
    prover: &'a mut WindowProver,
    questions: usize,
}

/// The cost of straight-line code on its own.
pub(crate) fn cost(steps: &[WindowStep]) -> CodeCost {
    let insns = insns(steps);
    let mut symbols = Vec::new();
    let mut slot = 0;
    for step in steps {
        if matches!(step, WindowStep::Opaque(..)) {
            symbols.push(slot);
        }
        slot += insns_slots(step);
    }
    CodeCost { slots: slot, jited: jited_bytes(&insns, &symbols), cycles: window_cycles(&insns) }
}

fn insns_slots(step: &WindowStep) -> u32 {
    match step {
        WindowStep::Opaque(..) | WindowStep::Do(Insn::LoadImm64 { .. }) => 2,
        _ => 1,
    }
}

impl<'a> CandidateChecker<'a> {
    pub(crate) fn new(
        window: &'a InsnWindow,
        goal: OptimizationGoal,
        prover: &'a mut WindowProver,
        seed: u64,
    ) -> Option<CandidateChecker<'a>> {
        let rules = AllowedAccesses::new(window)?;
        // If the rules refuse the window itself, they do not model it.
        if !rules.allow(&window.steps) {
            return None;
        }
        let mut random = SearchRng::new(seed);
        let suite = TestSuite::new(window, TESTS, &mut random);
        let base = cost(&window.steps);
        Some(CandidateChecker {
            window,
            rules,
            suite,
            machine: WindowMachine::default(),
            random,
            goal,
            base,
            best: None,
            counts: CandidateCounts::default(),
            prover,
            questions: 0,
        })
    }

    /// The cost to beat.
    pub(crate) fn to_beat(&self) -> CodeCost {
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
        sketch: &InsnSketch,
        examples: &[InitialValues],
    ) -> Result<Option<SketchCompletion>, String> {
        self.prover.complete(&self.window.place, &self.window.steps, sketch, examples)
    }

    /// Checks a candidate.
    pub(crate) fn consider(&mut self, steps: &[WindowStep]) -> CandidateResult {
        self.counts.candidates += 1;
        if !self.suite.passes(self.window, steps, &mut self.machine) {
            return CandidateResult::Wrong;
        }
        self.judge(steps)
    }

    /// Checks a candidate that has passed the tests.
    pub(crate) fn judge(&mut self, steps: &[WindowStep]) -> CandidateResult {
        let cost = cost(steps);
        if !self.goal.improves(cost, self.to_beat()) {
            return CandidateResult::NoBetter;
        }
        if !self.rules.allow(steps) {
            return CandidateResult::Wrong;
        }
        self.counts.passed += 1;
        if self.questions >= QUESTIONS {
            return CandidateResult::Wrong;
        }
        let asked = self.prover.asked;
        let judgement = self.prover.judge(&self.window.place, &self.window.steps, steps);
        self.questions += usize::from(self.prover.asked != asked);
        match judgement {
            WindowVerdict::Equal => {
                self.best = Some((cost, steps.to_vec()));
                CandidateResult::Best
            }
            WindowVerdict::Differs(found) => {
                self.counts.refuted += 1;
                let test = WindowTest::refuting(self.window, &found, &mut self.random);
                self.suite.add(self.window, test);
                CandidateResult::Wrong
            }
            WindowVerdict::Unknown(why) => {
                self.counts.unknown += 1;
                tracing::trace!("not known: {why}");
                CandidateResult::Wrong
            }
        }
    }
}

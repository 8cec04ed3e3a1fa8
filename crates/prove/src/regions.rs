//! Holds two programs together region by region.
//!
//! Both run until they have made a number of terms. At every moment of a run some states wait. If the waiting
//! states of the two runs have the same conditions, both runs are cut there (`cut.rs`). The states that have
//! ended in both until then must be the same, and from there both go on. A pair that ends within the first
//! region is compared as a whole.
//!
//! Architecture Invariant: composition is complete. All states at the beginning of a region end in it or wait
//! at its end, in both programs under the same conditions.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Instant;

use crate::cut::Cut;
use crate::exec::{ComparedProgram, PendingStates, SymbolicExecutor, TERMS};
use crate::frontier::ExecutionFrontier;
use crate::program::ProofProgram;
use crate::state::SymbolicState;
use crate::term::{TermId, TermPool};
use crate::uninitialized::ProofContext;
use crate::{ProofError, ProofLimits};

/// Most moments of a run that are compared with those of the other: the last ones.
const MOST_MOMENTS: usize = 300;
/// Most conditions that only one of the two has, at a cut.
const MOST_APART: usize = 12;
/// States of both programs at the end of a region.
pub(crate) struct RegionEnds<'a> {
    /// Join of the states in which each has ended; none if nothing ended.
    pub(crate) states: [Option<&'a SymbolicState>; 2],
    /// The region's number, from 0.
    pub(crate) region: usize,
}

/// Length of a region.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RegionBudget {
    /// Terms of the first region, and at most.
    pub(crate) first: usize,
    pub(crate) most: usize,
}

/// A part of a run: its moments, and true if nothing waits in the last.
struct RunRegion {
    moments: Vec<ExecutionFrontier>,
    complete: bool,
}

/// Runs both programs; calls `settle` with the ends of each region.
pub(crate) fn run<E: From<ProofError>>(
    world: &mut ProofContext,
    programs: &[ProofProgram; 2],
    limits: &ProofLimits,
    stride: RegionBudget,
    deadline: Instant,
    mut settle: impl FnMut(&mut ProofContext, RegionEnds) -> Result<(), E>,
) -> Result<(), E> {
    let sides = [ComparedProgram::new(&programs[0], 'A'), ComparedProgram::new(&programs[1], 'B')];
    let mut runner = RegionRunner { world, sides, limits, deadline };
    let mut fronts = [runner.begin(0)?, runner.begin(1)?];
    for region in 0.. {
        let (stretches, at) = runner.region(&fronts, stride)?;
        let moments = [0, 1].map(|side| &stretches[side].moments[at[side]]);
        runner.covers(&fronts, moments)?;
        let states = moments.map(|m| m.ended.as_ref());
        let last = moments.iter().all(|m| m.is_over());
        // A state that has ended in one and is about to end in the other is compared when it has ended in
        // both.
        let settled = last || states[0].map(|s| s.path) == states[1].map(|s| s.path);
        if settled {
            settle(runner.world, RegionEnds { states, region })?;
        }
        if last {
            return Ok(());
        }
        let (states, terms) = (moments[0].waiting.len(), runner.world.terms.len());
        tracing::debug!("region {region}: {states} states go on, {terms} terms");
        fronts = runner.cut(moments, settled, region)?;
    }
    Ok(())
}

struct RegionRunner<'a> {
    world: &'a mut ProofContext,
    sides: [ComparedProgram<'a>; 2],
    limits: &'a ProofLimits,
    deadline: Instant,
}

impl<'a> RegionRunner<'a> {
    fn exec(&mut self, side: usize) -> SymbolicExecutor<'_, 'a> {
        SymbolicExecutor::new(self.world, &mut self.sides[side], self.limits, self.deadline)
    }

    fn begin(&mut self, side: usize) -> Result<ExecutionFrontier, ProofError> {
        Ok(ExecutionFrontier { waiting: self.exec(side).begin()?, ended: None })
    }

    /// Runs both from their waiting states; returns the runs and the moment of each at which to cut.
    fn region(
        &mut self,
        fronts: &[ExecutionFrontier; 2],
        stride: RegionBudget,
    ) -> Result<([RunRegion; 2], [usize; 2]), ProofError> {
        let mut room = stride.first;
        loop {
            let one = self.stretch(0, &fronts[0], room)?;
            let two = self.stretch(1, &fronts[1], room)?;
            let stretches = [one, two];
            if stretches.iter().all(|s| s.complete) {
                let at = [0, 1].map(|side| stretches[side].moments.len() - 1);
                return Ok((stretches, at));
            }
            if let Some(at) = self.meeting(&stretches) {
                return Ok((stretches, at));
            }
            self.log_parting(&stretches);
            if room >= stride.most {
                return Err(ProofError::new(TERMS));
            }
            room = (room.max(1) * 4).min(stride.most);
        }
    }

    /// Runs one program until it has made so many terms, or has ended.
    fn stretch(
        &mut self,
        side: usize,
        front: &ExecutionFrontier,
        room: usize,
    ) -> Result<RunRegion, ProofError> {
        self.world.terms.allow(room);
        let mut exec = self.exec(side);
        let ExecutionFrontier { mut waiting, ended } = front.clone();
        exec.has_ended(ended);
        let mut moments = vec![front.clone()];
        let failed = loop {
            match exec.advance(&mut waiting) {
                Ok(true) => {}
                Ok(false) => break None,
                Err(why) => break Some(why),
            }
            if exec.w.terms.is_full() {
                break None;
            }
            moments.push(ExecutionFrontier { waiting: waiting.clone(), ended: exec.ended().cloned() });
        };
        let full = exec.w.terms.is_full();
        match failed {
            Some(why) if !full => Err(why),
            _ => Ok(RunRegion { complete: !full && waiting.is_empty(), moments }),
        }
    }

    /// Checks that all states at the beginning of a region end in it or wait at its end, in both.
    fn covers(
        &mut self,
        fronts: &[ExecutionFrontier; 2],
        moments: [&ExecutionFrontier; 2],
    ) -> Result<(), ProofError> {
        self.world.terms.allow(self.limits.terms);
        for side in [0, 1] {
            let before: Vec<TermId> = fronts[side].states().map(|s| s.path).collect();
            let after: Vec<TermId> = moments[side].states().map(|s| s.path).collect();
            let (before, after) = (self.world.terms.or(&before), self.world.terms.or(&after));
            if before != after || self.world.terms.is_full() {
                return Err(ProofError::new("some paths of the program do not end"));
            }
        }
        Ok(())
    }

    /// The last moments of two runs with about the same conditions of waiting states.
    fn meeting(&mut self, stretches: &[RunRegion; 2]) -> Option<[usize; 2]> {
        let conditions = |s: &RunRegion| -> Vec<(usize, BTreeSet<TermId>)> {
            let moments = s.moments.iter().enumerate().skip(1);
            let moments = moments.skip(s.moments.len().saturating_sub(MOST_MOMENTS));
            moments.map(|(at, m)| (at, m.states().map(|s| s.path).collect())).collect()
        };
        let (ours, theirs) = (conditions(&stretches[0]), conditions(&stretches[1]));
        let mut pairs = Vec::new();
        for (a, x) in &ours {
            for (b, y) in &theirs {
                let apart = x.symmetric_difference(y).take(MOST_APART + 1).count();
                if apart <= MOST_APART {
                    pairs.push(((a + b) as i64 - 8 * apart as i64, [*a, *b]));
                }
            }
        }
        pairs.into_iter().max().map(|(_, at)| at)
    }

    /// Logs where the two part: the first conditions of either that the other never has.
    fn log_parting(&self, stretches: &[RunRegion; 2]) {
        if !tracing::enabled!(tracing::Level::DEBUG) {
            return;
        }
        let conditions = stretches.each_ref().map(|s| {
            let states = s.moments.iter().flat_map(|m| m.waiting.iter());
            states
                .map(|(key, state)| (state.path, key.last().map(|p| p.slot)))
                .collect::<BTreeMap<TermId, _>>()
        });
        for (side, ours) in conditions.iter().enumerate() {
            let theirs = &conditions[1 - side];
            for (path, slot) in ours.iter().filter(|(path, _)| !theirs.contains_key(path)).take(2) {
                let text = crate::explain::shown(&self.world.terms, *path, 7);
                tracing::debug!("only side {side}, slot {slot:?}: {text:.1500}");
            }
        }
    }

    /// Cuts both at their waiting states; keeps the states that have ended unless they are settled.
    fn cut(
        &mut self,
        moments: [&ExecutionFrontier; 2],
        settled: bool,
        number: usize,
    ) -> Result<[ExecutionFrontier; 2], ProofError> {
        let clean = [0, 1].map(|side| {
            let waiting = moments[side].waiting.iter().map(|(key, state)| (Some(key), state));
            let ended = moments[side].ended.iter().filter(|_| !settled).map(|state| (None, state));
            let states =
                waiting.chain(ended).map(|(key, state)| self.exec(side).simplified_state(key, state));
            states.collect::<Vec<SymbolicState>>()
        });
        let paths = clean.each_ref().map(|states| states.iter().map(|s| s.path).collect::<Vec<TermId>>());
        let groups = groups(&mut self.world.terms, &paths);
        let ProofContext { terms, values, .. } = &mut *self.world;
        let mut cut = Cut::new(terms, values, [&clean[0], &clean[1]], number, self.limits.terms);
        let conditions = cut.conditions(&paths, &groups);
        let out = [0, 1].map(|side| {
            let images = clean[side].iter().zip(&conditions[side]);
            let mut images = images.map(|(state, path)| cut.state(state, *path));
            // Those that wait come first.
            let keys = moments[side].waiting.keys();
            let waiting = keys.cloned().zip(images.by_ref()).collect::<PendingStates>();
            ExecutionFrontier { waiting, ended: images.next() }
        });
        let (new, made) = (cut.new, cut.values);
        // Terms made beyond the limit mean nothing.
        if new.is_full() || self.world.terms.is_full() {
            return Err(ProofError::new(TERMS));
        }
        (self.world.terms, self.world.values) = (new, made);
        self.world.terms.until(self.deadline);
        Ok(out)
    }
}

/// Groups of conditions of both sides with the same union, by index: equal ones, one that is the union of
/// others, and all the rest.
fn groups(terms: &mut TermPool, paths: &[Vec<TermId>; 2]) -> Vec<[Vec<usize>; 2]> {
    let mut left = paths.each_ref().map(|list| (0..list.len()).collect::<Vec<usize>>());
    let mut out = Vec::new();
    for a in left[0].clone() {
        if let Some(b) = left[1].iter().copied().find(|b| paths[1][*b] == paths[0][a]) {
            out.push([vec![a], vec![b]]);
        }
    }
    for [a, b] in &out {
        left[0].retain(|n| *n != a[0]);
        left[1].retain(|n| *n != b[0]);
    }
    for side in [0, 1] {
        for whole in left[side].clone() {
            let within = |terms: &mut TermPool, n: &usize| {
                let either = terms.or(&[paths[1 - side][*n], paths[side][whole]]);
                either == paths[side][whole]
            };
            let parts: Vec<usize> = left[1 - side].iter().copied().filter(|n| within(terms, n)).collect();
            let all: Vec<TermId> = parts.iter().map(|n| paths[1 - side][*n]).collect();
            if terms.or(&all) == paths[side][whole] {
                left[side].retain(|n| *n != whole);
                left[1 - side].retain(|n| !parts.contains(n));
                let mut group = [parts.clone(), parts];
                group[side] = vec![whole];
                out.push(group);
            }
        }
    }
    if !left[0].is_empty() || !left[1].is_empty() {
        out.push(left);
    }
    out
}

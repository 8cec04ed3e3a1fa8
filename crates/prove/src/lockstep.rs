//! Holds two programs together step by step.
//!
//! A *point* is a place in each of the two programs that they reach under one condition. From a point both
//! run until they have branched under the same conditions; each branch leads to a further point, with a state
//! of each program. The states that arrive at one point are joined (`join.rs`), and large terms that are
//! alike in both become variables (`cut.rs`). So a proof takes as many steps as there are places, however
//! many paths lead through them, and a loop takes a few: a point that is reached again by an instance of its
//! earlier state is done.
//!
//! Architecture Invariant: every way out of a point is an instance of a pair of states from which both were
//! run, or the end of both, where they are compared. So the other program ends in the same state as the
//! first, if both end, which the kernel's verifier ensures.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Instant;

use rustc_hash::FxHashMap;

use crate::cut::Cut;
use crate::exec::{ComparedProgram, PendingStates, StateLocation, SymbolicExecutor, TERMS};
use crate::frontier::ExecutionFrontier;
use crate::join::{PathRelation, StatePair, join};
use crate::program::ProofProgram;
use crate::state::{SymbolicByte, SymbolicState};
use crate::term::{TermId, TermPool};
use crate::uninitialized::ProofContext;
use crate::value::{ValueId, ValueKind};
use crate::{ProofError, ProofLimits};

/// Most moments of a run that are compared with those of the other.
const MOST_MOMENTS: usize = 160;
/// Most terms that are made from one point to the next.
const MOST_TERMS: usize = 60_000;
/// Most times that a point may be reached by a state that is no instance of its earlier one.
const MOST_ROUNDS: usize = 12;
/// Most times that a counting loop may reach a point before its rounds are joined, if they are followed one
/// by one.
const MOST_COUNTED: usize = 64;

/// Location of a program: a place, or its end, which comes last.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
enum RunLocation {
    Place(StateLocation),
    End,
}

/// Location of both programs.
type LocationPair = [RunLocation; 2];

impl ExecutionFrontier {
    /// The conditions under which its states are reached.
    fn conditions(&self) -> BTreeSet<TermId> {
        self.states().map(|s| s.path).collect()
    }

    /// All its states, with their locations.
    fn places(self) -> Vec<(RunLocation, SymbolicState)> {
        let waiting = self.waiting.into_iter().map(|(key, state)| (RunLocation::Place(key), state));
        waiting.chain(self.ended.map(|state| (RunLocation::End, state))).collect()
    }

    /// The only place where anything waits, if nothing has ended.
    fn only(&self) -> Option<&StateLocation> {
        let one = self.ended.is_none() && self.waiting.len() == 1;
        one.then(|| self.waiting.keys().next()).flatten()
    }
}

/// Amount of information kept on each way.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum JoinPrecision {
    /// Terms that both programs share: mostly enough, and the least work.
    Alike,
    /// Also a few constants, as a choice between them, and the rounds of loops that count, one by one: those
    /// in which some constant differs from that of the round before.
    Constants,
}

/// Runs both programs; calls `settle` with the two states in which both have ended, and the number of points
/// before.
pub(crate) fn run<E: From<ProofError>>(
    world: &mut ProofContext,
    programs: &[ProofProgram; 2],
    limits: &ProofLimits,
    keep: JoinPrecision,
    deadline: Instant,
    mut settle: impl FnMut(&mut ProofContext, [&SymbolicState; 2], usize) -> Result<(), E>,
) -> Result<(), E> {
    let sides = [ComparedProgram::new(&programs[0], 'A'), ComparedProgram::new(&programs[1], 'B')];
    let mut walk = LockstepWalk {
        world,
        sides,
        limits,
        keep,
        deadline,
        waiting: BTreeMap::new(),
        seen: FxHashMap::default(),
        rounds: FxHashMap::default(),
        count: 0,
    };
    walk.begin()?;
    let mut points = 0;
    while let Some((point, pair)) = walk.next()? {
        for (to, states) in walk.step(&point, pair)? {
            if to == [RunLocation::End, RunLocation::End] {
                settle(walk.world, [&states[0], &states[1]], points)?;
            } else {
                walk.arrive(to, states)?;
            }
        }
        points += 1;
    }
    tracing::debug!("{points} points");
    Ok(())
}

struct LockstepWalk<'a> {
    world: &'a mut ProofContext,
    sides: [ComparedProgram<'a>; 2],
    limits: &'a ProofLimits,
    keep: JoinPrecision,
    deadline: Instant,
    /// Points from which both still have to be run.
    waiting: BTreeMap<LocationPair, StatePair>,
    /// Pairs from which both were run, at points that may be reached again.
    seen: FxHashMap<LocationPair, StatePair>,
    rounds: FxHashMap<LocationPair, usize>,
    /// Cuts and joins so far, to name their variables.
    count: usize,
}

impl<'a> LockstepWalk<'a> {
    fn exec(&mut self, side: usize) -> SymbolicExecutor<'_, 'a> {
        SymbolicExecutor::new(self.world, &mut self.sides[side], self.limits, self.deadline)
    }

    fn begin(&mut self) -> Result<(), ProofError> {
        let mut first = Vec::new();
        for side in [0, 1] {
            first.extend(self.exec(side).begin()?.pop_first());
        }
        let [(one, a), (two, b)] = <[(StateLocation, SymbolicState); 2]>::try_from(first)
            .map_err(|_| ProofError::new("a program that does not begin"))?;
        let (terms, values) = (std::mem::take(&mut self.world.terms), std::mem::take(&mut self.world.values));
        let pair = StatePair { terms, values, states: [a, b] };
        self.waiting.insert([RunLocation::Place(one), RunLocation::Place(two)], pair);
        Ok(())
    }

    /// Next point to run from: the first, but the head of a loop only after all points in the loop, so that
    /// it is reached once per round.
    fn next(&mut self) -> Result<Option<(LocationPair, StatePair)>, ProofError> {
        let points: Vec<LocationPair> = self.waiting.keys().cloned().collect();
        let mut next = points.first();
        for point in &points {
            if !self.has_more_inside(point, &points)? {
                next = Some(point);
                break;
            }
        }
        Ok(next.and_then(|point| self.waiting.remove_entry(point)))
    }

    /// Returns true if a point is the head of a loop in the first program, and some of the points lie further
    /// in that loop.
    fn has_more_inside(&mut self, point: &LocationPair, points: &[LocationPair]) -> Result<bool, ProofError> {
        let RunLocation::Place(key) = &point[0] else { return Ok(false) };
        let Some((head, calls)) = key.split_last() else { return Ok(false) };
        let flow = self.sides[0].flow(head.entry)?;
        Ok(points.iter().any(|other| match &other[0] {
            RunLocation::Place(key) => key.split_last().is_some_and(|(place, others)| {
                calls == others && head.entry == place.entry && flow.is_within(head.order, place.order)
            }),
            RunLocation::End => false,
        }))
    }

    /// Runs both from a point to the next ones.
    fn step(
        &mut self,
        point: &LocationPair,
        pair: StatePair,
    ) -> Result<Vec<(LocationPair, [SymbolicState; 2])>, ProofError> {
        if Instant::now() >= self.deadline {
            return Err(ProofError::new("the time was over before all places were"));
        }
        tracing::trace!("on from slots {} and {}", slot(&point[0]), slot(&point[1]));
        let StatePair { terms, values, states } = pair;
        if self.comes_again(point)? {
            let copy = StatePair { terms: terms.clone(), values: values.clone(), states: states.clone() };
            self.seen.insert(point.clone(), copy);
        }
        (self.world.terms, self.world.values) = (terms, values);
        self.world.terms.until(self.deadline);
        self.world.terms.allow(MOST_TERMS);
        // A cut or a join may have lost ranges that the conditions still imply.
        let states = states.map(|mut state| {
            state.ranges.assume_literals(&mut self.world.terms, state.path);
            state
        });
        let path = states[0].path;
        let sides = self.meet(point, states)?;
        self.world.terms.allow(MOST_TERMS);
        for side in &sides {
            let paths: Vec<TermId> = side.iter().map(|(_, s)| s.path).collect();
            if self.world.terms.or(&paths) != path {
                return Err(ProofError::new("some paths of the program do not end"));
            }
        }
        let mut out = Vec::new();
        for (at, a) in &sides[0] {
            for (place, b) in &sides[1] {
                let path = self.world.terms.and(&[a.path, b.path]);
                let ranges = a.ranges.meet(&b.ranges);
                let possible = ranges.settle(&mut self.world.terms, path);
                if self.world.terms.known(possible) != Some(false) {
                    let facts: BTreeSet<TermId> = a.facts.union(&b.facts).copied().collect();
                    let one = |s: &SymbolicState| {
                        let (facts, ranges) = (facts.clone(), ranges.clone());
                        SymbolicState { path, facts, ranges, ..s.clone() }
                    };
                    let states = [one(a), one(b)];
                    out.push(([at.clone(), place.clone()], states));
                }
            }
        }
        self.full(&[&self.world.terms])?;
        Ok(out)
    }

    /// Returns true if a point lies in a loop of one of the two.
    fn comes_again(&mut self, point: &LocationPair) -> Result<bool, ProofError> {
        for (side, at) in point.iter().enumerate() {
            let RunLocation::Place(key) = at else { continue };
            for place in key {
                if self.sides[side].flow(place.entry)?.is_in_loop(place.order) {
                    return Ok(true);
                }
            }
        }
        Ok(false)
    }

    /// Runs both until they have states under the same conditions, more than one if they branch at all.
    fn meet(
        &mut self,
        point: &LocationPair,
        states: [SymbolicState; 2],
    ) -> Result<[Vec<(RunLocation, SymbolicState)>; 2], ProofError> {
        let [a, b] = states;
        let mut moments = [vec![start(&point[0], a)], vec![start(&point[1], b)]];
        let mut known: [FxHashMap<BTreeSet<TermId>, usize>; 2] = Default::default();
        // Moments at which both may be cut though they have not branched.
        let mut headers = None;
        loop {
            let over = [0, 1].map(|side| moments[side].last().is_none_or(ExecutionFrontier::is_over));
            if over == [true, true] {
                let at = [0, 1].map(|side| moments[side].len() - 1);
                return Ok(taken(moments, at));
            }
            let side = usize::from(over[0] || !over[1] && moments[1].len() < moments[0].len());
            let failed = self.advance(side, &mut moments[side]);
            if self.world.terms.is_full() || moments[side].len() > MOST_MOMENTS || failed.is_err() {
                return match (headers, failed) {
                    (Some(at), _) => Ok(taken(moments, at)),
                    (None, Err(why)) if !self.world.terms.is_full() => Err(why),
                    _ => Err(self.lost(point, &moments)),
                };
            }
            let last = moments[side].len() - 1;
            let conditions = moments[side][last].conditions();
            if conditions.len() > 1 {
                // A program that has ended waits for the other.
                if over[1 - side] && moments[1 - side].len() == 1 {
                    let mut at = [last; 2];
                    at[1 - side] = 0;
                    return Ok(taken(moments, at));
                }
                if let Some(other) = known[1 - side].get(&conditions) {
                    let mut at = [last; 2];
                    at[1 - side] = *other;
                    return Ok(taken(moments, at));
                }
                known[side].entry(conditions).or_insert(last);
            } else if let Some(at) = self.header(&moments, side)? {
                if at.1 || self.keep == JoinPrecision::Constants {
                    return Ok(taken(moments, at.0));
                }
                headers = headers.or(Some(at.0));
            }
        }
    }

    /// Moments at which both wait at the head of a loop, the last one of this side; also returns true if both
    /// were there before.
    fn header(
        &mut self,
        moments: &[Vec<ExecutionFrontier>; 2],
        side: usize,
    ) -> Result<Option<([usize; 2], bool)>, ProofError> {
        let last = moments[side].len() - 1;
        let Some(key) = moments[side][last].only() else { return Ok(None) };
        let Some(place) = key.last() else { return Ok(None) };
        if !self.sides[side].flow(place.entry)?.is_header(place.order) {
            return Ok(None);
        }
        let before = moments[side][..last].iter().any(|m| m.only() == Some(key));
        for (n, other) in moments[1 - side].iter().enumerate().skip(1) {
            let Some(there) = other.only() else { continue };
            let Some(place) = there.last() else { continue };
            if self.sides[1 - side].flow(place.entry)?.is_header(place.order) {
                let again = moments[1 - side][..n].iter().any(|m| m.only() == Some(there));
                let mut at = [last; 2];
                at[1 - side] = n;
                return Ok(Some((at, before && again)));
            }
        }
        Ok(None)
    }

    /// Advances one program by a block.
    fn advance(&mut self, side: usize, moments: &mut Vec<ExecutionFrontier>) -> Result<(), ProofError> {
        let Some(last) = moments.last() else { return Ok(()) };
        let (mut waiting, ended) = (last.waiting.clone(), last.ended.clone());
        let mut exec = self.exec(side);
        exec.has_ended(ended);
        exec.advance_by_block(&mut waiting)?;
        let ended = exec.ended().cloned();
        moments.push(ExecutionFrontier { waiting, ended });
        Ok(())
    }

    /// Reason why the two do not meet.
    fn lost(&mut self, point: &LocationPair, moments: &[Vec<ExecutionFrontier>; 2]) -> ProofError {
        let last =
            moments.each_ref().map(|list| list.iter().rev().take(1).flat_map(ExecutionFrontier::states));
        let [ours, theirs] = last;
        for (a, b) in ours.zip(theirs) {
            self.world.match_states(a, b);
        }
        if tracing::enabled!(tracing::Level::DEBUG) {
            self.world.terms.allow(MOST_TERMS);
            for (side, list) in moments.iter().enumerate() {
                for (key, state) in list.iter().skip(1).take(6).flat_map(|m| &m.waiting) {
                    let text = crate::explain::shown(&self.world.terms, state.path, 14);
                    tracing::debug!("side {side}, slot {:?}: {text:.3000}", key.last().map(|p| p.slot));
                }
            }
        }
        ProofError::new(format!("the two part after slots {} and {}", slot(&point[0]), slot(&point[1])))
    }

    /// Handles the arrival of both at a point, with terms of the world.
    fn arrive(&mut self, to: LocationPair, states: [SymbolicState; 2]) -> Result<(), ProofError> {
        let mut pair = self.cut(&to, states)?;
        tracing::trace!("set {} comes to slots {} and {}", self.count, slot(&to[0]), slot(&to[1]));
        self.count += 1;
        let number = self.count;
        if let Some(mut before) = self.waiting.remove(&to) {
            let ways =
                if self.keep == JoinPrecision::Constants { PathRelation::Kept } else { PathRelation::Meet };
            let joined = join(&mut before, &mut pair, &self.world.unwritten, number, MOST_TERMS, ways);
            self.world.unwritten.count_matches(joined.met);
            let joined = joined.pair;
            self.full(&[&before.terms, &pair.terms, &joined.terms])?;
            self.waiting.insert(to, joined);
            return Ok(());
        }
        if let Some(before) = self.seen.get_mut(&to) {
            let rounds = self.rounds.entry(to.clone()).or_insert(0);
            // Each round starts from its own first state, so that all facts known there stay known.
            if self.keep == JoinPrecision::Constants && *rounds < MOST_COUNTED && counts(before, &pair) {
                *rounds += 1;
                self.waiting.insert(to, pair);
                return Ok(());
            }
            let unwritten = &mut self.world.unwritten;
            let joined = join(before, &mut pair, unwritten, number, MOST_TERMS, PathRelation::Again);
            unwritten.count_matches(joined.met);
            if before.terms.is_full() || pair.terms.is_full() || joined.pair.terms.is_full() {
                return Err(ProofError::new(TERMS));
            }
            if joined.instance {
                return Ok(());
            }
            pair = joined.pair;
            *rounds += 1;
            if *rounds > MOST_ROUNDS + if self.keep == JoinPrecision::Constants { MOST_COUNTED } else { 0 } {
                return Err(ProofError::new("what holds in a loop was not found"));
            }
        }
        self.waiting.insert(to, pair);
        Ok(())
    }

    fn full(&self, terms: &[&TermPool]) -> Result<(), ProofError> {
        match terms.iter().any(|t| t.is_full()) {
            true => Err(ProofError::new(TERMS)),
            false => Ok(()),
        }
    }

    /// Gives two states terms of their own: without dead values, and with large shared terms as variables.
    fn cut(&mut self, to: &LocationPair, states: [SymbolicState; 2]) -> Result<StatePair, ProofError> {
        let clean = [0, 1].map(|side| {
            let key = match &to[side] {
                RunLocation::Place(key) => Some(key),
                RunLocation::End => None,
            };
            self.exec(side).simplified_state(key, &states[side])
        });
        let path = clean[0].path;
        self.world.match_states(&clean[0], &clean[1]);
        self.count += 1;
        let ProofContext { terms, values, .. } = &mut *self.world;
        let [a, b] = &clean;
        let sides = [std::slice::from_ref(a), std::slice::from_ref(b)];
        let known = a.ranges.values(terms, path);
        let mut cut = Cut::new(terms, values, sides, self.count, MOST_TERMS);
        cut.put_in(known);
        let [ours, _] = cut.conditions(&[vec![path], vec![path]], &[[vec![0], vec![0]]]);
        let facts = cut.facts(&a.facts);
        let path = facts.iter().fold(ours[0], |all, f| cut.new.and(&[all, *f]));
        let facts: BTreeSet<TermId> = facts.into_iter().filter(|f| cut.new.is_choice(*f)).collect();
        let states = [a, b].map(|s| SymbolicState { facts: facts.clone(), ..cut.state(s, path) });
        let (terms, values) = (cut.new, cut.values);
        self.full(&[&terms, &self.world.terms])?;
        Ok(StatePair { terms, values, states })
    }
}

fn slot(at: &RunLocation) -> String {
    match at {
        RunLocation::Place(key) => key.last().map_or(0, |p| p.slot).to_string(),
        RunLocation::End => "the end".to_owned(),
    }
}

/// Returns true if a counting loop came round: in each program, some constant differs from the one before.
fn counts(before: &StatePair, now: &StatePair) -> bool {
    [0, 1].into_iter().all(|side| {
        let (was, is) = (constants(before, side), constants(now, side));
        was.iter().any(|(place, k)| is.get(place).is_some_and(|l| l != k))
    })
}

/// The constants in registers and on the stack, including offsets of pointers, by location.
fn constants(pair: &StatePair, side: usize) -> FxHashMap<(usize, i64), u64> {
    let state = &pair.states[side];
    let value = |v: ValueId| match pair.values.kind(v) {
        ValueKind::Number(t) | ValueKind::Pointer(_, t) => pair.terms.value(t),
        ValueKind::Undefined | ValueKind::Choice(..) => None,
    };
    let mut out = FxHashMap::default();
    for (n, v) in state.regs.iter().enumerate() {
        out.extend(value(*v).map(|k| ((0, n as i64), k)));
    }
    for (n, frame) in state.frames.iter().enumerate() {
        for (at, cell) in frame.iter() {
            let k = match cell {
                SymbolicByte::Byte(t) => pair.terms.value(*t),
                SymbolicByte::Part(v, _) => value(*v),
                SymbolicByte::Half(..) => None,
            };
            out.extend(k.map(|k| ((n + 1, *at), k)));
        }
    }
    out
}

/// The moment at which a run begins.
fn start(at: &RunLocation, state: SymbolicState) -> ExecutionFrontier {
    match at {
        RunLocation::Place(key) => {
            ExecutionFrontier { waiting: PendingStates::from([(key.clone(), state)]), ended: None }
        }
        RunLocation::End => ExecutionFrontier { waiting: PendingStates::new(), ended: Some(state) },
    }
}

/// The states of one moment of each run.
fn taken(moments: [Vec<ExecutionFrontier>; 2], at: [usize; 2]) -> [Vec<(RunLocation, SymbolicState)>; 2] {
    let [a, b] = moments;
    let one = |list: Vec<ExecutionFrontier>, n: usize| {
        list.into_iter().nth(n).map(ExecutionFrontier::places).unwrap_or_default()
    };
    [one(a, at[0]), one(b, at[1])]
}

//! Decides if two programs are equivalent.

use std::time::{Duration, Instant};

use millstream_isa::ByteOrder;
use millstream_object::{FuncId, Object};

use crate::counterexample::{Counterexample, CounterexampleSearch};
use crate::lockstep::JoinPrecision;
use crate::program::{MapSignature, ProofProgram, UnifiedMaps, pair};
use crate::regions::{self, RegionBudget, RegionEnds};
use crate::replay::ReplayInput;
use crate::solver::{Solver, SolverAnswer, SolverSession, SolverUsage};
use crate::state::{EventChain, SymbolicState};
use crate::sweep::{SatSweeper, cone};
use crate::term::{NormalizationRules, TermId, TermPool, congruence};
use crate::uninitialized::{ProofContext, UninitializedStack};
use crate::value::{MemorySpace, SymbolicValues};
use crate::{ProofAblation, ProofCache, ProofError, ProofLimits, explain, lockstep, model};

/// Outcome of a proof.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum ProofVerdict {
    /// The two do the same, whatever the packet, the maps and the answers of helpers.
    Equivalent,
    /// They were run and behaved differently.
    Differs(Box<Counterexample>),
    /// Not decided, with the reason.
    Unknown {
        /// The reason.
        reason: String,
    },
}

/// A verdict and its costs.
#[derive(Clone, Debug)]
pub struct ProofResult {
    /// The verdict.
    pub verdict: ProofVerdict,
    /// Slots of the two, with all functions that they call.
    pub slots: [usize; 2],
    /// True if both are the same instructions, about the same maps: there is nothing to prove.
    pub identical: bool,
    /// Observables that are the same term in both.
    pub same: usize,
    /// Questions to the solver.
    pub asked: usize,
    /// Terms that it found equal to others.
    pub merged: usize,
    /// Distinct terms.
    pub terms: usize,
    /// Regions in which the two were compared, one after the other.
    pub regions: usize,
    /// Solvers that answered.
    pub answers: SolverUsage,
    /// Total time.
    pub time: Duration,
}

/// Bytes of stack: terms are nested as deep as programs are long. Untouched pages take no memory.
const STACK: usize = 1 << 30;

/// Proves that a program of one object does the same as a program of another.
pub fn prove(
    a: (&Object, FuncId),
    b: (&Object, FuncId),
    solver: Option<&Solver>,
    limits: &ProofLimits,
) -> ProofResult {
    std::thread::scope(|scope| {
        let thread = std::thread::Builder::new().stack_size(STACK);
        match thread.spawn_scoped(scope, || proven(a, b, solver, limits)).map(|work| work.join()) {
            Ok(Ok(proof)) => proof,
            Ok(Err(panic)) => std::panic::resume_unwind(panic),
            Err(e) => {
                let reason = format!("no thread to prove it in: {e}");
                ProofResult { verdict: ProofVerdict::Unknown { reason }, ..ProofResult::nothing() }
            }
        }
    })
}

fn proven(
    a: (&Object, FuncId),
    b: (&Object, FuncId),
    solver: Option<&Solver>,
    limits: &ProofLimits,
) -> ProofResult {
    let start = Instant::now();
    let mut proof = ProofResult::nothing();
    match pair(a, b) {
        Ok((mut maps, programs)) => {
            for map in &mut maps.0 {
                map.is_scratch = limits.scratch.contains(&map.name);
            }
            proof.hold(&programs);
            if !proof.identical {
                proof.verdict = decide(maps, &programs, solver, limits, &mut proof);
            }
        }
        Err(why) => proof.verdict = ProofVerdict::Unknown { reason: why.to_string() },
    }
    if let ProofVerdict::Differs(found) = &mut proof.verdict {
        found.locate([a, b]);
    }
    proof.time = start.elapsed();
    proof
}

/// Measures two programs and checks if they are identical, but proves nothing: if they are not, the verdict
/// is unknown.
pub fn compare_instructions(a: (&Object, FuncId), b: (&Object, FuncId)) -> ProofResult {
    let mut proof = ProofResult::nothing();
    let why = pair(a, b).map(|(_, programs)| proof.hold(&programs));
    if !proof.identical {
        let reason = why.err().map_or("not asked for".to_owned(), |why| why.to_string());
        proof.verdict = ProofVerdict::Unknown { reason };
    }
    proof
}

impl ProofResult {
    /// A proof of nothing so far.
    fn nothing() -> ProofResult {
        ProofResult {
            verdict: ProofVerdict::Equivalent,
            slots: [0; 2],
            identical: false,
            same: 0,
            asked: 0,
            merged: 0,
            terms: 0,
            regions: 0,
            answers: SolverUsage::default(),
            time: Duration::ZERO,
        }
    }

    fn hold(&mut self, programs: &[ProofProgram; 2]) {
        self.slots = [0, 1].map(|side| programs[side].insns.len());
        self.identical = programs[0] == programs[1];
    }
}

/// Runs two programs on up to `tries` made-up packets and tables, and returns the first on which they differ.
/// Proves nothing if there is none.
pub fn differ(a: (&Object, FuncId), b: (&Object, FuncId), tries: usize, seed: u64) -> Option<Counterexample> {
    let (maps, [first, second]) = pair(a, b).ok()?;
    let search = CounterexampleSearch { tries, seed, time: Duration::from_secs(60) };
    search.random_search(&maps.0, [&first, &second]).ok().flatten()
}

/// Runs on made-up packets before the solver is asked: most differences show at once.
const FIRST_TRIES: usize = 48;

/// Reason why a decision ends early.
enum EarlyVerdict {
    Differs(Box<Counterexample>),
    Unknown(ProofError),
    /// The solver sees a difference.
    Refuted(Box<RefutedObservable>),
}

impl From<ProofError> for EarlyVerdict {
    fn from(why: ProofError) -> EarlyVerdict {
        EarlyVerdict::Unknown(why)
    }
}

/// A pair under examination.
struct EquivalenceCheck<'a> {
    programs: &'a [ProofProgram; 2],
    solver: Option<&'a Solver>,
    limits: &'a ProofLimits,
    deadline: Instant,
    proof: &'a mut ProofResult,
    /// True if the two were run on made-up packets.
    tried: bool,
    /// Attempts to hold them together so far.
    attempts: u32,
}

/// A way to hold two programs together.
#[derive(Clone, Copy, PartialEq, Eq)]
enum ProofStrategy {
    /// As a whole, or region by region. The first region may have the `n`-th part of all terms allowed.
    Regions(usize),
    /// Step by step.
    Steps(JoinPrecision),
}

impl ProofStrategy {
    fn is_used(self, limits: &ProofLimits) -> bool {
        let regions = limits.uses(ProofAblation::Regions);
        match self {
            ProofStrategy::Regions(1) => true,
            ProofStrategy::Regions(FIRST) => regions && limits.uses(ProofAblation::Whole),
            ProofStrategy::Regions(_) => regions,
            ProofStrategy::Steps(_) => regions && limits.uses(ProofAblation::Steps),
        }
    }

    fn forms(self, limits: &ProofLimits, order: ByteOrder) -> NormalizationRules {
        let steps = matches!(self, ProofStrategy::Steps(_));
        NormalizationRules {
            normal: limits.uses(ProofAblation::NormalForm),
            choices: limits.uses(ProofAblation::Choices),
            offsets: limits.uses(ProofAblation::Offsets),
            aliases: !steps,
            zeros: steps,
            order,
        }
    }
}

/// Divisor of the limit of terms, for the first region.
const FIRST: usize = 8;

/// Most retries of one way, each with other bytes of the two stacks taken to be the same, if some are read
/// before they are written.
const GUESSES: u32 = 3;

/// Ways in the order in which they are tried, and the end of each, in percent of the time. Steps and small
/// regions forget more; large regions may become too large.
const WAYS: [(ProofStrategy, u32); 6] = [
    (ProofStrategy::Regions(FIRST), 30),
    (ProofStrategy::Steps(JoinPrecision::Alike), 60),
    (ProofStrategy::Steps(JoinPrecision::Constants), 90),
    (ProofStrategy::Regions(400), 93),
    (ProofStrategy::Regions(64), 96),
    (ProofStrategy::Regions(1), 100),
];

fn decide(
    maps: UnifiedMaps,
    programs: &[ProofProgram; 2],
    solver: Option<&Solver>,
    limits: &ProofLimits,
    proof: &mut ProofResult,
) -> ProofVerdict {
    let start = Instant::now();
    let mut maps = maps.0;
    let mut unwritten = UninitializedStack::default();
    let mut decision =
        EquivalenceCheck { programs, solver, limits, deadline: start, proof, tried: false, attempts: 0 };
    // The reason why the first way failed is the most useful one.
    let mut why = None;
    let (mut large, mut looked) = (false, false);
    for (way, share) in WAYS {
        let is_needed = match way {
            ProofStrategy::Steps(_) | ProofStrategy::Regions(FIRST) => true,
            ProofStrategy::Regions(1) => large || !looked,
            ProofStrategy::Regions(_) => large,
        };
        if !way.is_used(limits) || !is_needed {
            continue;
        }
        let until = start + limits.time * share / 100;
        unwritten.followed = unwritten.missed && matches!(way, ProofStrategy::Regions(part) if part != FIRST);
        let mut guesses = 0;
        let end = loop {
            // If they may have to be followed, some time is left for that.
            let left = until.saturating_duration_since(Instant::now());
            let spared = if unwritten.missed && !unwritten.followed { left / 2 } else { Duration::ZERO };
            decision.deadline = until - spared;
            let terms = TermPool::of(limits.terms, way.forms(limits, programs[0].order));
            let mut world = ProofContext { terms, values: SymbolicValues::default(), maps, unwritten };
            world.terms.until(decision.deadline);
            let (cuts, end) = decision.attempt(&mut world, way);
            // Without a cut, or room for one, only more time can help.
            let is_large = cuts > 0 || world.terms.len() > limits.terms / FIRST;
            large |= is_large;
            ProofContext { maps, unwritten, .. } = world;
            let goes_on = match end {
                Ok(()) | Err(EarlyVerdict::Differs(_)) => false,
                // A program that is too large as a whole is no smaller with them.
                Err(_) if !unwritten.followed => {
                    unwritten.followed =
                        unwritten.missed && !(is_large && way == ProofStrategy::Regions(FIRST));
                    unwritten.followed
                }
                Err(_) => {
                    guesses += 1;
                    guesses <= GUESSES && unwritten.update_correspondence()
                }
            };
            if !goes_on {
                break end;
            }
        };
        let said = match end {
            Ok(()) => return ProofVerdict::Equivalent,
            Err(EarlyVerdict::Differs(found)) => return ProofVerdict::Differs(found),
            Err(EarlyVerdict::Unknown(said)) => said.to_string(),
            // A difference that no run shows may not exist: another way may prove so.
            Err(EarlyVerdict::Refuted(refuted)) => match decision.look_again(&maps, *refuted) {
                ProofVerdict::Unknown { reason } => {
                    looked = true;
                    reason
                }
                verdict => return verdict,
            },
        };
        why.get_or_insert(said);
    }
    let why = why.unwrap_or_else(|| "nothing was tried".to_owned());
    if looked {
        ProofVerdict::Unknown { reason: why }
    } else {
        decision.look(&maps, ReplayInput::default(), why)
    }
}

impl EquivalenceCheck<'_> {
    /// Runs both on terms; returns the number of cuts and the outcome.
    fn attempt(&mut self, world: &mut ProofContext, way: ProofStrategy) -> (usize, Result<(), EarlyVerdict>) {
        let (programs, limits, deadline) = (self.programs, self.limits, self.deadline);
        let mut cuts = 0;
        self.attempts += 1;
        self.proof.same = 0;
        let end = match way {
            ProofStrategy::Regions(part) => {
                let stride = RegionBudget { first: limits.terms / part, most: limits.terms };
                regions::run(world, programs, limits, stride, deadline, |world, ends| {
                    cuts = ends.region;
                    self.settle(world, &ends)
                })
            }
            ProofStrategy::Steps(keep) => {
                lockstep::run(world, programs, limits, keep, deadline, |world, states, region| {
                    self.settle(world, &RegionEnds { states: states.map(Some), region })
                })
            }
        };
        self.proof.terms = self.proof.terms.max(world.terms.len());
        if let Err(EarlyVerdict::Unknown(why)) = &end {
            tracing::debug!("attempt {}: {why}", self.attempts);
        }
        explain::log_census(&world.terms);
        (cuts, end)
    }

    /// Compares the ends of a region.
    fn settle(&mut self, world: &mut ProofContext, ends: &RegionEnds) -> Result<(), EarlyVerdict> {
        self.proof.terms = self.proof.terms.max(world.terms.len());
        self.proof.regions = ends.region + 1;
        let (one, two) = match ends.states {
            [None, None] => return Ok(()),
            [Some(one), Some(two)] => (one, two),
            _ => return Err(ProofError::new("one of the two ends where the other does not").into()),
        };
        world.terms.allow(self.limits.terms);
        world.match_states(one, two);
        let goals = goals(world, one, two)?;
        full(&world.terms)?;
        let all = goals.len();
        let open: Vec<(String, TermId)> =
            goals.into_iter().filter(|(_, g)| world.terms.known(*g) != Some(true)).collect();
        self.proof.same += all - open.len();
        if open.is_empty() {
            return Ok(());
        }
        // The two may be the same only under the condition assumed here.
        let elsewhere = world.terms.not(one.path);
        let open: Vec<(String, TermId)> =
            open.into_iter().map(|(name, goal)| (name, world.terms.or(&[elsewhere, goal]))).collect();
        for (name, goal) in &open {
            tracing::debug!("{name}: {}", explain::shown(&world.terms, *goal, 6));
        }
        explain::log(&world.terms, one, two);
        self.first_look(&world.maps)?;
        match ask(world, self.solver, open, self.limits, self.deadline, self.proof)? {
            None => Ok(()),
            // The facts forgotten at a cut may be the reason.
            Some(refuted) if ends.region > 0 => {
                Err(ProofError::new(format!("{}: not the same, region by region", refuted.name)).into())
            }
            Some(refuted) => Err(EarlyVerdict::Refuted(Box::new(refuted))),
        }
    }

    /// Runs the two on made-up packets: most differences show at once.
    fn first_look(&mut self, maps: &[MapSignature]) -> Result<(), EarlyVerdict> {
        if std::mem::replace(&mut self.tried, true) {
            return Ok(());
        }
        let tries = self.limits.tries.min(FIRST_TRIES);
        let found = self.search(tries, 1).random_search(maps, [&self.programs[0], &self.programs[1]]);
        match found {
            Ok(Some(found)) => Err(EarlyVerdict::Differs(Box::new(found))),
            _ => Ok(()),
        }
    }

    fn search(&self, tries: usize, seed: u64) -> CounterexampleSearch {
        CounterexampleSearch { tries, seed, time: self.limits.time / 4 }
    }

    /// Runs the two on a solver's model of their difference.
    fn look_again(&mut self, maps: &[MapSignature], refuted: RefutedObservable) -> ProofVerdict {
        let why = format!("{}: the solver sees a difference that no run of the two has shown", refuted.name);
        self.look(maps, refuted.scene, why)
    }

    /// Runs the two on a scene and on made-up ones, after the proof failed for this reason.
    fn look(&mut self, maps: &[MapSignature], scene: ReplayInput, why: String) -> ProofVerdict {
        let programs = [&self.programs[0], &self.programs[1]];
        match self.search(self.limits.tries, 2).from(scene, maps, programs) {
            Ok(Some(counterexample)) => ProofVerdict::Differs(Box::new(counterexample)),
            Ok(None) => ProofVerdict::Unknown { reason: why },
            Err(unable) => ProofVerdict::Unknown { reason: format!("{why}; they cannot be run: {unable}") },
        }
    }
}

/// An observable that the solver can make differ, with a scene.
struct RefutedObservable {
    name: String,
    /// The packet and the tables for which it differs.
    scene: ReplayInput,
}

/// Fails if the limit of terms is reached.
fn full(terms: &TermPool) -> Result<(), ProofError> {
    if terms.is_full() { Err(ProofError::new("more terms than the limit")) } else { Ok(()) }
}

/// Asks the solver for the observables that are not the same term.
fn ask(
    world: &mut ProofContext,
    solver: Option<&Solver>,
    open: Vec<(String, TermId)>,
    limits: &ProofLimits,
    deadline: Instant,
    proof: &mut ProofResult,
) -> Result<Option<RefutedObservable>, ProofError> {
    let solver = solver.ok_or_else(|| ProofError::new(format!("{}: no solver at hand", open[0].0)))?;
    // A cache without answers of other proofs.
    let fresh =
        (!limits.uses(ProofAblation::Cache)).then(|| solver.clone().with_cache(ProofCache::in_memory()));
    let mut session =
        fresh.as_ref().unwrap_or(solver).start(limits).map_err(|e| ProofError::new(e.to_string()))?;
    let found = put(world, &mut session, open, limits.uses(ProofAblation::Sweep), deadline, proof);
    proof.answers.add(&session.answers());
    found
}

/// Asks for each of them, after equal terms were merged.
fn put(
    world: &mut ProofContext,
    session: &mut SolverSession,
    open: Vec<(String, TermId)>,
    sweeps: bool,
    deadline: Instant,
    proof: &mut ProofResult,
) -> Result<Option<RefutedObservable>, ProofError> {
    let left = |deadline: Instant| deadline.saturating_duration_since(Instant::now());
    let claims: Vec<TermId> = open.iter().map(|(_, c)| *c).collect();
    let claims = if sweeps {
        let (all, each) = (left(deadline) / 2, left(deadline) / 20);
        let mut sweep = SatSweeper::new(&mut world.terms, session, all, each);
        let claims = sweep.run(&claims);
        proof.asked += sweep.asked;
        proof.merged += sweep.merged;
        claims
    } else {
        claims
    };
    full(&world.terms)?;
    let mut undecided = None;
    for ((name, before), claim) in open.into_iter().zip(claims) {
        if world.terms.known(claim) == Some(true) {
            continue;
        }
        proof.asked += 1;
        // The claim before equal terms were merged mentions more of the inputs that the programs read.
        let cone = cone(&world.terms, &[claim, before]);
        let wanted = model::wanted(&world.terms, &cone);
        match session.valid(&world.terms, claim, &wanted, left(deadline)) {
            Ok(SolverAnswer::Valid) => {}
            Ok(SolverAnswer::Refuted(model)) => {
                explain::log_model(&world.terms, &name, &model);
                let scene = model::scene(&mut world.terms, &cone, &model, &world.maps);
                return Ok(Some(RefutedObservable { name, scene }));
            }
            Ok(SolverAnswer::Unknown(why)) => undecided = undecided.or(Some(format!("{name}: {why}"))),
            Err(e) => undecided = undecided.or(Some(format!("{name}: {e}"))),
        }
    }
    undecided.map_or(Ok(None), |why| Err(ProofError::new(why)))
}

/// Equations to prove, by name: the conditions under which the two end must be the same, and under these all
/// observables.
fn goals(
    w: &mut ProofContext,
    a: &SymbolicState,
    b: &SymbolicState,
) -> Result<Vec<(String, TermId)>, ProofError> {
    let ends = w.terms.equal(a.path, b.path);
    let mut out = vec![("where they end".to_owned(), ends)];
    let result = |w: &mut ProofContext, s: &SymbolicState| {
        let t = w.values.numeric(&mut w.terms, s.regs[0]);
        t.map(|t| w.terms.extract(t, 31, 0)).ok_or_else(|| ProofError::new("a result that is not defined"))
    };
    let (x, y) = (result(w, a)?, result(w, b)?);
    let terms = &mut w.terms;
    let mut same = |terms: &mut TermPool, name: String, x: TermId, y: TermId| {
        let (x, y) = (terms.under(x, a.path), terms.under(y, a.path));
        let goal = congruence::congruent(terms, x, y);
        out.push((name, terms.under(goal, a.path)));
    };
    same(terms, "result".to_owned(), x, y);
    same(terms, "packet length".to_owned(), a.length, b.length);
    same(terms, "metadata length".to_owned(), a.metadata, b.metadata);
    for (name, chain) in [("calls", EventChain::Effects), ("atomic operations", EventChain::Atomics)] {
        let (x, y) = (a.chain(terms, chain), b.chain(terms, chain));
        same(terms, name.to_owned(), x, y);
    }
    let mut spaces: Vec<MemorySpace> = a.memory.keys().chain(b.memory.keys()).copied().collect();
    spaces.sort_unstable();
    spaces.dedup();
    for space in spaces {
        let name = match space {
            MemorySpace::Mixed => "memory".to_owned(),
            MemorySpace::Packet => "packet".to_owned(),
            MemorySpace::Context => "context".to_owned(),
            MemorySpace::Map(m) if w.maps[m as usize].is_scratch => continue,
            MemorySpace::Map(m) => format!("values of map {:?}", w.maps[m as usize].name),
            MemorySpace::Inner(m) => format!("values of inner maps of {:?}", w.maps[m as usize].name),
            // Nobody reads a record that was not submitted, and a submission is a call.
            MemorySpace::Allocated | MemorySpace::Kernel => continue,
        };
        let terms = &mut w.terms;
        let (x, y) = (a.memory(terms, space), b.memory(terms, space));
        same(terms, name, x, y);
    }
    Ok(out)
}

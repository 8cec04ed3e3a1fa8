//! Whether two programs are equivalent.

use std::time::{Duration, Instant};

use millstream_object::{FuncId, Object};

use crate::counterexample::{Counterexample, Search};
use crate::exec::{Exec, World};
use crate::program::{Context, Maps, Program};
use crate::solver::{Answer, Answers, Model, Session, Solver};
use crate::state::{Chain, State};
use crate::sweep::{Sweep, cone};
use crate::term::{T, Terms};
use crate::value::{Space, Values};
use crate::{Limits, Unknown, explain, model};

/// What came out.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Verdict {
    /// The two do the same, whatever the packet, the maps and the answers of helpers.
    Equivalent,
    /// They were run, and did not do the same.
    Differs(Box<Counterexample>),
    /// Not decided, and why.
    Unknown {
        /// Why.
        reason: String,
    },
}

/// A verdict and what it took.
#[derive(Clone, Debug)]
pub struct Proof {
    /// The verdict.
    pub verdict: Verdict,
    /// Observables that are the same term in both.
    pub same: usize,
    /// Questions to the solver.
    pub asked: usize,
    /// Terms that it found equal to others.
    pub merged: usize,
    /// Distinct terms.
    pub terms: usize,
    /// Who answered.
    pub answers: Answers,
    /// All the time it took.
    pub time: Duration,
}

/// Proves that a program of one object does the same as a program of another.
pub fn prove(a: (&Object, FuncId), b: (&Object, FuncId), solver: Option<&Solver>, limits: &Limits) -> Proof {
    let start = Instant::now();
    let mut proof = Proof {
        verdict: Verdict::Equivalent,
        same: 0,
        asked: 0,
        merged: 0,
        terms: 0,
        answers: Answers::default(),
        time: Duration::ZERO,
    };
    proof.verdict = match pair(a, b) {
        Ok((maps, programs)) => decide(maps, &programs, solver, limits, &mut proof),
        Err(why) => Verdict::Unknown { reason: why.to_string() },
    };
    if let Verdict::Differs(found) = &mut proof.verdict {
        found.locate([a, b]);
    }
    proof.time = start.elapsed();
    proof
}

/// Runs two programs on up to `tries` made-up packets and tables, and gives the first on which they differ. Proves
/// nothing if there is none.
pub fn differ(a: (&Object, FuncId), b: (&Object, FuncId), tries: usize, seed: u64) -> Option<Counterexample> {
    let (maps, [first, second]) = pair(a, b).ok()?;
    let search = Search { tries, seed, time: Duration::from_secs(60) };
    search.made_up(&maps.0, [&first, &second]).ok().flatten()
}

/// Links the two.
pub(crate) fn pair(a: (&Object, FuncId), b: (&Object, FuncId)) -> Result<(Maps, [Program; 2]), Unknown> {
    let kind = |o: &Object, f| o.programs.iter().find(|p| p.func == f).map(|p| p.kind.program_type);
    if kind(a.0, a.1) != kind(b.0, b.1) {
        return Err(Unknown::new("the two programs are of different types"));
    }
    let mut maps = Maps::default();
    let mut first = Program::new(a.0, a.1, &mut maps, 'A')?;
    let mut second = Program::new(b.0, b.1, &mut maps, 'B')?;
    match (first.context, second.context) {
        (x, y) if x == y => {}
        // Of one that has nothing of the packet left it cannot be told.
        (x, Context::Other) => second.context = x,
        (Context::Other, y) => first.context = y,
        _ => return Err(Unknown::new("the two programs are of different types")),
    }
    Ok((maps, [first, second]))
}

/// Runs on made-up packets before the solver is asked: most differences are easily seen.
const FIRST_TRIES: usize = 48;

fn decide(
    maps: Maps,
    programs: &[Program; 2],
    solver: Option<&Solver>,
    limits: &Limits,
    proof: &mut Proof,
) -> Verdict {
    let deadline = Instant::now() + limits.time;
    let mut world = World { terms: Terms::new(limits.terms), values: Values::default(), maps: maps.0 };
    let open = compare(&mut world, programs, limits, deadline, proof);
    explain::log_census(&world.terms);
    if matches!(&open, Ok(open) if open.is_empty()) {
        return Verdict::Equivalent;
    }
    let pair = [&programs[0], &programs[1]];
    let search = |tries, seed| Search { tries, seed, time: limits.time / 4 };
    let first = search(limits.tries.min(FIRST_TRIES), 1).made_up(&world.maps, pair);
    if let Ok(Some(counterexample)) = first {
        return Verdict::Differs(Box::new(counterexample));
    }
    let end = open.and_then(|open| ask(&mut world, solver, open, limits, deadline, proof));
    let (why, found) = match end {
        Ok(None) => return Verdict::Equivalent,
        Ok(Some(refuted)) => {
            let scene = model::scene(&mut world.terms, &refuted.cone, &refuted.model, &world.maps);
            let why =
                format!("{}: the solver sees a difference that no run of the two has shown", refuted.name);
            (why, search(limits.tries, 2).from(scene, &world.maps, pair))
        }
        Err(why) => (why.to_string(), search(limits.tries, 2).made_up(&world.maps, pair)),
    };
    match found {
        Ok(Some(counterexample)) => Verdict::Differs(Box::new(counterexample)),
        Ok(None) => Verdict::Unknown { reason: why },
        Err(unable) => Verdict::Unknown { reason: format!("{why}; they cannot be run: {unable}") },
    }
}

/// An observable that the solver can make differ, and how.
struct Refuted {
    name: String,
    cone: Vec<T>,
    model: Model,
}

/// Runs both on terms; gives the observables that are not the same term, by name.
fn compare(
    world: &mut World,
    [first, second]: &[Program; 2],
    limits: &Limits,
    deadline: Instant,
    proof: &mut Proof,
) -> Result<Vec<(String, T)>, Unknown> {
    let one = Exec::run(world, first, limits, deadline, 'A');
    proof.terms = world.terms.len();
    let (one, two) = (one?, Exec::run(world, second, limits, deadline, 'B'));
    proof.terms = world.terms.len();
    let two = two?;
    let goals = goals(world, &one, &two)?;
    full(&world.terms)?;
    let all = goals.len();
    let open: Vec<(String, T)> =
        goals.into_iter().filter(|(_, g)| world.terms.known(*g) != Some(true)).collect();
    proof.same = all - open.len();
    for (name, goal) in &open {
        tracing::debug!("{name}: {}", explain::shown(&world.terms, *goal, 6));
    }
    if !open.is_empty() {
        explain::log(&world.terms, &one, &two);
    }
    Ok(open)
}

/// What is not worth looking at any more.
fn full(terms: &Terms) -> Result<(), Unknown> {
    if terms.is_full() { Err(Unknown::new("more terms than the limit")) } else { Ok(()) }
}

/// Puts what is not the same term to the solver.
fn ask(
    world: &mut World,
    solver: Option<&Solver>,
    open: Vec<(String, T)>,
    limits: &Limits,
    deadline: Instant,
    proof: &mut Proof,
) -> Result<Option<Refuted>, Unknown> {
    let solver = solver.ok_or_else(|| Unknown::new(format!("{}: no solver at hand", open[0].0)))?;
    let mut session = solver.start(limits).map_err(|e| Unknown::new(e.to_string()))?;
    let found = put(world, &mut session, open, deadline, proof);
    proof.answers = session.answers();
    found
}

/// Puts each of them, after what is equal was merged.
fn put(
    world: &mut World,
    session: &mut Session,
    open: Vec<(String, T)>,
    deadline: Instant,
    proof: &mut Proof,
) -> Result<Option<Refuted>, Unknown> {
    let left = |deadline: Instant| deadline.saturating_duration_since(Instant::now());
    let claims: Vec<T> = open.iter().map(|(_, c)| *c).collect();
    let mut sweep = Sweep::new(&mut world.terms, session, left(deadline) / 2, left(deadline) / 20);
    let claims = sweep.run(&claims);
    (proof.asked, proof.merged) = (sweep.asked, sweep.merged);
    full(&world.terms)?;
    proof.terms = world.terms.len();
    let mut undecided = None;
    for ((name, before), claim) in open.into_iter().zip(claims) {
        if world.terms.known(claim) == Some(true) {
            continue;
        }
        proof.asked += 1;
        // What the claim was before equal terms were merged has more of what the programs looked at.
        let cone = cone(&world.terms, &[claim, before]);
        let wanted = model::wanted(&world.terms, &cone);
        match session.valid(&world.terms, claim, &wanted, left(deadline)) {
            Ok(Answer::Valid) => {}
            Ok(Answer::Refuted(model)) => {
                return Ok(Some(Refuted { name, cone, model }));
            }
            Ok(Answer::Unknown(why)) => undecided = undecided.or(Some(format!("{name}: {why}"))),
            Err(e) => undecided = undecided.or(Some(format!("{name}: {e}"))),
        }
    }
    undecided.map_or(Ok(None), |why| Err(Unknown::new(why)))
}

/// What must be equal, by name.
fn goals(w: &mut World, a: &State, b: &State) -> Result<Vec<(String, T)>, Unknown> {
    let mut out = Vec::new();
    let result = |w: &mut World, s: &State| {
        let t = w.values.numeric(&mut w.terms, s.regs[0]);
        t.map(|t| w.terms.extract(t, 31, 0)).ok_or_else(|| Unknown::new("a result that is not defined"))
    };
    let (x, y) = (result(w, a)?, result(w, b)?);
    let terms = &mut w.terms;
    out.push(("result".to_owned(), terms.equal(x, y)));
    out.push(("packet length".to_owned(), terms.equal(a.length, b.length)));
    out.push(("metadata length".to_owned(), terms.equal(a.metadata, b.metadata)));
    for (name, chain) in [("calls", Chain::Effects), ("atomic operations", Chain::Atomics)] {
        let (x, y) = (a.chain(terms, chain), b.chain(terms, chain));
        out.push((name.to_owned(), terms.congruent(x, y)));
    }
    let mut spaces: Vec<Space> = a.memory.keys().chain(b.memory.keys()).copied().collect();
    spaces.sort_unstable();
    spaces.dedup();
    for space in spaces {
        let name = match space {
            Space::Packet => "packet".to_owned(),
            Space::Context => "context".to_owned(),
            Space::Map(m) => format!("values of map {:?}", w.maps[m as usize].name),
            Space::Inner(m) => format!("values of inner maps of {:?}", w.maps[m as usize].name),
            // Nobody reads a record that was not submitted, and a submission is a call.
            Space::Allocated | Space::Kernel => continue,
        };
        let terms = &mut w.terms;
        let (x, y) = (a.memory(terms, space), b.memory(terms, space));
        out.push((name, terms.congruent(x, y)));
    }
    Ok(out)
}

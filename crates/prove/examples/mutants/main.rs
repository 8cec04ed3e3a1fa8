//! Judges many mutants of real programs, in two steps, for the second needs no kernel, but time and
//! processors:
//!
//!     mutants list COUNT OBJECT... >LIST          # so many of each program, that the kernel accepts
//!     mutants judge LIST SECONDS MINUTES OBJECT...    # what the prover says of them, in SECONDS each, as JSON
//!
//! After MINUTES no new mutant is begun; mutants are taken in random order. Programs are those that the
//! kernel accepts and the prover models. The exit code of `judge` is 1 if a mutant was proven equivalent
//! although a packet tells it apart, or if a counterexample does not reproduce its difference.

#[path = "../../tests/mutants/judge.rs"]
mod judge;
#[path = "../../tests/mutants/mutate.rs"]
mod mutate;

use std::collections::HashSet;
use std::process::ExitCode;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use judge::{Change, Plan, Tally, judge};
use millstream_loader::{ObjectLoader, Session};
use millstream_object::{FuncId, Object};
use millstream_prove::{ProofLimits, ProofVerdict, Solver, prove};

/// Packets tried on a mutant that is said to be equivalent.
const TRIES: usize = 4000;
/// Mutants between two progress reports.
const EVERY: usize = 250;
/// Slots below which a program has too few mutants.
const SHORTEST: usize = 8;
/// Changes tried for one mutant.
const ATTEMPTS: u64 = 240;
/// Mutants in a row that fail before the search for more is given up.
const IN_VAIN: usize = 40;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let done = match arguments.iter().map(String::as_str).collect::<Vec<_>>().as_slice() {
        ["list", count, objects @ ..] if !objects.is_empty() => {
            count.parse().ok().map(|count| list(count, &read(objects)))
        }
        ["judge", list, seconds, minutes, objects @ ..] if !objects.is_empty() => {
            let limits = seconds.parse().ok().zip(minutes.parse().ok());
            limits.map(|(seconds, minutes)| judge_all(list, seconds, minutes, &read(objects)))
        }
        _ => None,
    };
    done.unwrap_or_else(|| {
        eprintln!("usage: mutants list COUNT OBJECT...\n       mutants judge LIST SECONDS MINUTES OBJECT...");
        ExitCode::from(2)
    })
}

fn read(files: &[&str]) -> Vec<Object> {
    let parsed = |file: &&str| match std::fs::read(file).map(|data| Object::parse(file, &data)) {
        Ok(Ok(object)) => Some(object),
        Ok(Err(e)) => {
            eprintln!("{file}: {e}");
            None
        }
        Err(e) => {
            eprintln!("{file}: {e}");
            None
        }
    };
    files.iter().filter_map(parsed).collect()
}

/// A program, its object's number, and the object in the kernel.
struct CorpusProgram<'a> {
    number: usize,
    object: &'a Object,
    func: FuncId,
    session: &'a Session<'a>,
}

/// Writes mutants that the kernel accepts: the object's number, the function's, the class and the seed.
fn list(count: usize, objects: &[Object]) -> ExitCode {
    let (mut programs, mut left_out, mut made, mut rejected) = (0, 0, 0, 0);
    for (number, object) in objects.iter().enumerate() {
        // The maps of one object at a time.
        let session = ObjectLoader::new(object).guess_types().and_then(ObjectLoader::prepare);
        let Ok(session) = session else {
            left_out += object.programs.len();
            continue;
        };
        for p in &object.programs {
            let subject = CorpusProgram { number, object, func: p.func, session: &session };
            let long = object.functions[p.func.index()].insns.len() >= SHORTEST;
            if !long || !accepted(&subject, object) || !is_modelled(object, p.func) {
                left_out += 1;
                continue;
            }
            programs += 1;
            let (kept, refused) = mutants(&subject, count);
            (made, rejected) = (made + kept, rejected + refused);
        }
    }
    eprintln!("{programs} programs, {left_out} left out; {made} mutants, {rejected} rejected by the kernel");
    ExitCode::SUCCESS
}

/// Makes `count` mutants of a program; also returns the number of mutants that the kernel has rejected.
fn mutants(subject: &CorpusProgram<'_>, count: usize) -> (usize, usize) {
    let (mut made, mut rejected, mut in_vain) = (0, 0, 0);
    let mut seen = HashSet::new();
    for number in 0.. {
        if made >= count || in_vain >= IN_VAIN {
            break;
        }
        in_vain += 1;
        for attempt in 0..ATTEMPTS {
            let change = Change::new(number, attempt);
            let Some((changed, what)) = change.made(subject.object, subject.func) else { continue };
            if !seen.insert(what) {
                continue;
            }
            if accepted(subject, &changed) {
                println!("{} {} {} {}", subject.number, subject.func.index(), change.class, change.seed);
                (made, in_vain) = (made + 1, 0);
                break;
            }
            rejected += 1;
        }
    }
    (made, rejected)
}

/// Returns true if the kernel accepts this form of a program.
fn accepted(subject: &CorpusProgram<'_>, object: &Object) -> bool {
    object.link(subject.func).is_ok_and(|linked| subject.session.load(subject.func, &linked).is_ok())
}

/// Returns true if a program is modelled, so that its mutants can be judged: it is proven equivalent to
/// itself.
fn is_modelled(object: &Object, func: FuncId) -> bool {
    let limits = ProofLimits { time: Duration::from_secs(1), terms: 200_000, ..ProofLimits::default() };
    prove((object, func), (object, func), None, &limits).verdict == ProofVerdict::Equivalent
}

/// Judges all of a list, with as many threads as there are processors.
fn judge_all(list: &str, seconds: u64, minutes: u64, objects: &[Object]) -> ExitCode {
    let start = Instant::now();
    let text = match std::fs::read_to_string(list) {
        Ok(text) => text,
        Err(e) => {
            eprintln!("{list}: {e}");
            return ExitCode::from(2);
        }
    };
    let mut mutants: Vec<[u64; 4]> = text.lines().filter_map(numbers).collect();
    mutants.sort_unstable_by_key(|[.., seed]| *seed);
    let end = start + Duration::from_secs(60 * minutes);
    let solver = Solver::discover();
    let limits = ProofLimits { time: Duration::from_secs(seconds), terms: 300_000, ..ProofLimits::default() };
    let plan = Plan { solver: solver.as_ref(), limits, tries: TRIES };
    let (next, all) = (AtomicUsize::new(0), Mutex::new(Tally::default()));
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                while Instant::now() < end
                    && let Some([object, func, class, seed]) =
                        mutants.get(next.fetch_add(1, Ordering::Relaxed))
                {
                    let Some(object) = objects.get(*object as usize) else { continue };
                    let change = Change { class: *class as usize, seed: *seed };
                    let tally = judge(object, FuncId(*func as u32), change, &plan);
                    for wrong in &tally.wrong {
                        eprintln!("WRONG: {}: {wrong}", object.name);
                    }
                    let mut all = all.lock().expect("nobody panicked");
                    all.add(tally);
                    if all.made.is_multiple_of(EVERY) {
                        let (made, s) = (all.made, start.elapsed().as_secs());
                        eprintln!("{made} in {s} s: {} wrong", all.wrong.len());
                    }
                }
            });
        }
    });
    let all = all.into_inner().expect("nobody panicked");
    let programs: HashSet<[u64; 2]> = mutants.iter().take(all.made).map(|m| [m[0], m[1]]).collect();
    let versions = solver.and_then(|s| s.version().ok()).unwrap_or_default();
    report(&all, programs.len(), seconds, &versions, start);
    if all.wrong.is_empty() && all.not_replayed.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn numbers(line: &str) -> Option<[u64; 4]> {
    let words: Option<Vec<u64>> = line.split(' ').map(|w| w.parse().ok()).collect();
    words?.try_into().ok()
}

fn report(all: &Tally, programs: usize, seconds: u64, versions: &str, start: Instant) {
    let class = |(class, [made, refuted, equivalent, undecided]): (&String, &[usize; 4])| {
        let counts = serde_json::json!({
            "made": made, "refuted": refuted, "equivalent": equivalent, "undecided": undecided,
        });
        (class.clone(), counts)
    };
    let classes: serde_json::Map<String, serde_json::Value> = all.classes.iter().map(class).collect();
    let figures = serde_json::json!({
        "schema": 1,
        "command": "bench/run.sh mutants",
        "solvers": versions,
        "programs": programs,
        "mutants": all.made,
        "refuted": all.by_run + all.by_solver,
        "refuted_by_a_run": all.by_run,
        "refuted_by_a_solver": all.by_solver,
        "counterexamples_that_do_not_replay": all.not_replayed.len(),
        "proven_equivalent": all.equivalent,
        "packets_each_of_these_was_tried_on": TRIES,
        "wrongly_proven": all.wrong.len(),
        "undecided": all.undecided.values().sum::<usize>(),
        "undecided_because": all.undecided,
        "classes": classes,
        "seconds_each_at_most": seconds,
        "cpu_seconds": all.seconds,
        "seconds": start.elapsed().as_secs_f64(),
    });
    println!("{figures:#}");
}

//! Real programs, changed in one place at random. A change that is proven to be none must be none: no packet and no
//! table, of many that are made up, may tell the two apart.
//!
//! `MILLSTREAM_MUTANTS=N` makes N of each program; `MILLSTREAM_MUTANT_OBJECTS=FILE,FILE` takes programs from these
//! objects in place of ours.

#[path = "../../../object/tests/objects/common.rs"]
mod common;
mod mutate;

use std::time::Duration;

use millstream_object::{FuncId, Object};
use millstream_programs as programs;
use millstream_prove::{Limits, Solver, Verdict, differ, prove};
use mutate::{Rng, mutant};

/// Packets that a mutant said to be equivalent is tried on.
const TRIES: usize = 300;

#[derive(Default, Debug)]
struct Tally {
    made: usize,
    equivalent: usize,
    differ: usize,
    unknown: usize,
}

fn setting(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|v| !v.is_empty())
}

/// The solver, if it is there: without one only equal terms are proven.
fn solver() -> Option<Solver> {
    let solver = Solver::new("z3");
    match solver.version() {
        Ok(_) => Some(solver),
        Err(e) => {
            assert!(std::env::var("CI").is_err(), "{e}");
            eprintln!("skipped: the part that needs a solver: {e}");
            None
        }
    }
}

fn try_mutants(object: &Object, func: FuncId, count: usize, seed: u64) -> Tally {
    let solver = solver();
    let seconds = setting("MILLSTREAM_MUTANTS").map_or(1, |_| 4);
    let limits = Limits { time: Duration::from_secs(seconds), terms: 300_000, ..Limits::default() };
    let (mut rng, mut tally) = (Rng::new(seed), Tally::default());
    while tally.made < count {
        let Some((changed, what)) = mutant(object, func, &mut rng) else { continue };
        tally.made += 1;
        match prove((object, func), (&changed, func), solver.as_ref(), &limits).verdict {
            Verdict::Equivalent => {
                tally.equivalent += 1;
                let found = differ((object, func), (&changed, func), TRIES, tally.made as u64);
                assert!(found.is_none(), "{what}: proven equivalent, but\n{}", found.expect("it is there"));
            }
            Verdict::Differs(_) => tally.differ += 1,
            Verdict::Unknown { reason } => {
                tally.unknown += 1;
                if setting("MILLSTREAM_MUTANTS").is_some() {
                    println!("unknown: {what}: {reason}");
                }
            }
        }
    }
    tally
}

fn count(default: usize) -> usize {
    setting("MILLSTREAM_MUTANTS").and_then(|n| n.parse().ok()).unwrap_or(default)
}

#[test]
fn mutants_of_a_small_program() {
    let Some(object) = common::read("gate", &[]) else { return };
    let tally = try_mutants(&object, object.programs[0].func, count(80), 1);
    println!("{tally:?}");
    // How many depends on how fast the machine is; none at all would mean that nothing was tried.
    assert!(tally.differ > 0 && tally.equivalent > 0, "{tally:?}");
}

#[test]
fn mutants_of_data_planes() {
    if let Some(files) = setting("MILLSTREAM_MUTANT_OBJECTS") {
        for file in files.split(',') {
            let data = std::fs::read(file).expect("an object file");
            let object = Object::parse(file, &data).expect("an object");
            for (at, p) in object.programs.iter().enumerate() {
                let tally = try_mutants(&object, p.func, count(40), at as u64);
                println!("{file} {}: {tally:?}", p.name);
            }
        }
        return;
    }
    for (program, default) in [(programs::ROUTER, 8), (programs::SWITCH, 3)] {
        let object = Object::parse(program.name, program.object).expect("a data plane");
        let func = object.programs.iter().find(|p| p.name == program.function).expect("its program").func;
        let tally = try_mutants(&object, func, count(default), 7);
        println!("{}: {tally:?}", program.name);
    }
}

//! Real programs, changed in one place at random. A change that is proven to be none must be none: no packet and no
//! table, of many that are made up, may tell the two apart.
//!
//! `MILLSTREAM_MUTANTS=N` makes N of each program; `MILLSTREAM_MUTANT_OBJECTS=FILE,FILE` takes programs from these
//! objects in place of ours.

mod mutate;

use std::path::{Path, PathBuf};
use std::process::Command;
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
    let limits = Limits { time: Duration::from_secs(1), terms: 200_000, ..Limits::default() };
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

/// Compiles a fixture; [`None`], with the reason printed, where there is no clang and this is not CI.
fn fixture(name: &str) -> Option<Object> {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("tests/fixtures/{name}.bpf.c"));
    let out = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("{name}-{}.bpf.o", std::process::id()));
    let clang = std::env::var("MILLSTREAM_CLANG").unwrap_or_else(|_| "clang-19".to_owned());
    let machine = format!("-I/usr/include/{}-linux-gnu", std::env::consts::ARCH);
    let made = Command::new(&clang)
        .args(["-O2", "-g", "-target", "bpf", "-mcpu=v3", "-Wall", &machine, "-c"])
        .arg(&source)
        .arg("-o")
        .arg(&out)
        .output();
    match made {
        Ok(o) if o.status.success() => {
            let data = std::fs::read(&out).expect("what clang wrote");
            Some(Object::parse(name, &data).expect("a fixture can be read"))
        }
        Ok(o) => panic!("{name}: {}", String::from_utf8_lossy(&o.stderr)),
        Err(e) => {
            assert!(std::env::var("CI").is_err(), "{clang}: {e}");
            eprintln!("skipped: {clang} cannot be run: {e}");
            None
        }
    }
}

#[test]
fn mutants_of_a_small_program() {
    let Some(object) = fixture("gate") else { return };
    let tally = try_mutants(&object, object.programs[0].func, count(120), 1);
    println!("{tally:?}");
    // Most changes of a program matter, and of these most show.
    assert!(2 * tally.differ > tally.made, "{tally:?}");
    assert!(tally.equivalent > 0, "{tally:?}");
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
    for (program, default) in [(programs::ROUTER, 16), (programs::SWITCH, 6)] {
        let object = Object::parse(program.name, program.object).expect("a data plane");
        let func = object.programs.iter().find(|p| p.name == program.function).expect("its program").func;
        let tally = try_mutants(&object, func, count(default), 7);
        println!("{}: {tally:?}", program.name);
    }
}

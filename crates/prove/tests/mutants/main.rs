//! Real programs, changed in one place at random. A change that is proven to have no effect must have none:
//! no packet and no table, of many that are made up, may tell the two apart; and every counterexample must
//! reproduce the difference.
//!
//! These are the few that always run; `examples/mutants` makes as many as are wanted, of those that the
//! kernel accepts (`bench/run.sh mutants`).

#[path = "../../../object/tests/objects/common.rs"]
mod common;
mod judge;
mod mutate;

use std::time::Duration;

use judge::{Change, Plan, Tally, judge};
use millstream_object::{FuncId, Object};
use millstream_programs as programs;
use millstream_prove::{ProofAblation, ProofLimits, Solver};

/// The solvers, if they are installed: without one only equal terms are proven.
fn solver() -> Option<Solver> {
    let solver = Solver::discover();
    if solver.is_none() {
        assert!(std::env::var("CI").is_err(), "no solver");
        eprintln!("skipped: the part that needs a solver");
    }
    solver
}

fn try_mutants(object: &Object, func: FuncId, count: u64, without: &[ProofAblation]) -> Tally {
    let solver = solver();
    let without = without.to_vec();
    let limits =
        ProofLimits { time: Duration::from_secs(1), terms: 300_000, without, ..ProofLimits::default() };
    let plan = Plan { solver: solver.as_ref(), limits, tries: 300 };
    let mut tally = Tally::default();
    for number in 0..count {
        let change = (0..2000).map(|attempt| Change::new(number, attempt));
        let change =
            change.into_iter().find(|c| c.made(object, func).is_some()).expect("something to change");
        tally.add(judge(object, func, change, &plan));
    }
    assert_eq!(tally.wrong, Vec::<String>::new());
    assert_eq!(tally.not_replayed, Vec::<String>::new());
    tally
}

#[test]
fn mutants_of_a_small_program() {
    let Some(object) = common::read("gate", &[]) else { return };
    let tally = try_mutants(&object, object.programs[0].func, 120, &[]);
    println!("{tally:?}");
    assert_eq!(tally.made, 120);
    // Their number depends on the speed of the machine; none at all would mean that nothing was tried.
    assert!(tally.by_run > 0 && tally.equivalent > 0, "{tally:?}");
}

#[test]
fn mutants_step_by_step() {
    let Some(object) = common::read("gate", &[]) else { return };
    let tally = try_mutants(&object, object.programs[0].func, 60, &[ProofAblation::Whole]);
    assert!(tally.by_run > 0 && tally.equivalent > 0, "{tally:?}");
    let object = Object::parse("router", programs::ROUTER.object).expect("a data plane");
    let func =
        object.programs.iter().find(|p| p.name == programs::ROUTER.function).expect("its program").func;
    try_mutants(&object, func, 6, &[ProofAblation::Whole]);
}

#[test]
fn mutants_of_data_planes() {
    for (program, count) in [(programs::ROUTER, 12), (programs::SWITCH, 4)] {
        let object = Object::parse(program.name, program.object).expect("a data plane");
        let func = object.programs.iter().find(|p| p.name == program.function).expect("its program").func;
        let tally = try_mutants(&object, func, count, &[]);
        println!("{}: {tally:?}", program.name);
    }
}

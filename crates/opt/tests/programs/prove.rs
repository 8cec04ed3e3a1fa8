//! Translation validation of the optimized forms of our data planes and of the fixtures.

use std::time::Duration;

use millstream_object::Object;
use millstream_opt::{OptimizeOptions, ProofReport, ValidationResult, optimize, validate, validate_passes};
use millstream_programs as programs;
use millstream_prove::ProofLimits;

use crate::solver::solver;

/// Fixtures that libbpf loads.
const FIXTURES: [&str; 7] = ["maps", "calls", "core", "externs", "kernel", "sizes", "gate"];

/// Few terms: what takes more is decided in a long run, not here.
fn limits() -> ProofLimits {
    ProofLimits { time: Duration::from_secs(20), terms: 300_000, ..ProofLimits::default() }
}

fn proven(object: &Object) -> Vec<ProofReport> {
    let options = OptimizeOptions::default();
    let optimized = optimize(object, &options).expect("optimized");
    let reports = validate(object, &optimized, &options, solver().as_ref(), &limits()).expect("validated");
    for r in &reports {
        println!("{}: {:?}, {:.0} ms", r.name, r.verdict, r.milliseconds);
        assert!(!matches!(r.verdict, ValidationResult::Refuted { .. }), "{}: {:?}", r.name, r.verdict);
    }
    reports
}

fn plane(program: &programs::DataPlaneProgram) -> Object {
    Object::parse(program.name, program.object).expect("a data plane")
}

#[test]
fn the_router_is_proven() {
    for r in proven(&plane(&programs::ROUTER)) {
        assert!(matches!(r.verdict, ValidationResult::Equivalent), "{}: {:?}", r.name, r.verdict);
    }
}

#[test]
fn larger_planes_are_not_refuted() {
    for program in [programs::SWITCH, programs::NAT, programs::FIREWALL, programs::BALANCER] {
        proven(&plane(&program));
    }
}

#[test]
fn fixtures_are_proven() {
    let (mut all, mut unknown) = (0, 0);
    for name in FIXTURES {
        let Some(object) = crate::objects::read(name, &[]) else { return };
        let reports = proven(&object);
        all += reports.len();
        unknown += reports.iter().filter(|r| matches!(r.verdict, ValidationResult::Unknown(_))).count();
    }
    println!("{all} programs, {unknown} not known");
    assert!(4 * unknown < all, "{unknown} of {all} are not known");
}

/// Changes of each pass to an object in one go: numbers of these steps that are proven, and that are not
/// known.
fn steps(object: &Object) -> (usize, usize) {
    let options = OptimizeOptions::default();
    let optimized = optimize(object, &options).expect("optimized");
    let limits = ProofLimits { time: Duration::from_secs(5), ..limits() };
    let differs = |_: &Object, _: &Object| ();
    let steps =
        validate_passes(object, &optimized, &options, solver().as_ref(), &limits, differs).expect("ran");
    for s in &steps {
        assert!(
            !matches!(s.verdict, ValidationResult::Refuted { .. }),
            "{}, {}: {:?}",
            s.pass,
            s.program,
            s.verdict
        );
    }
    let unknown = steps.iter().filter(|s| matches!(s.verdict, ValidationResult::Unknown(_))).count();
    (steps.len() - unknown, unknown)
}

#[test]
fn each_pass_is_proven_by_itself() {
    let (mut proven, mut unknown) = steps(&plane(&programs::ROUTER));
    for name in ["calls", "gate", "core"] {
        let Some(object) = crate::objects::read(name, &[]) else { return };
        let (more, left) = steps(&object);
        (proven, unknown) = (proven + more, unknown + left);
    }
    println!("{proven} steps proven, {unknown} not known");
    assert!(proven > 0 && 4 * unknown <= proven, "{proven} steps proven, {unknown} not known");
}

#[test]
fn a_wrong_result_is_refuted() {
    let object = plane(&programs::ROUTER);
    let options = OptimizeOptions::default();
    let mut optimized = optimize(&object, &options).expect("optimized");
    let at = object.programs[0].func.0 as usize;
    // The verdict of some way out is another.
    let insns = &mut optimized.object.functions[at].insns;
    let mov = insns.iter_mut().find(|i| matches!(i.code, 0xb4 | 0xb7) && i.dst == 0);
    mov.expect("a way out with a constant verdict").imm ^= 1;
    let reports = validate(&object, &optimized, &options, solver().as_ref(), &limits()).expect("validated");
    assert!(matches!(&reports[0].verdict, ValidationResult::Refuted { .. }), "{:?}", reports[0].verdict);
}

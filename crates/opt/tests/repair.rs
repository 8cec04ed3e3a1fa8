//! Repair of rejected programs: those that are labelled safe are accepted and proven afterwards, and no unsafe
//! one is.

use std::time::Duration;

use millstream_isa::asm::assemble;
use millstream_isa::{RawInsn, encode_all};
use millstream_kernel::testing;
use millstream_object::{Object, RawInput};
use millstream_opt::{OptimizationGoal, OptimizeOptions, RepairOutcome, RepairReport, check, repair};
use millstream_prove::{ProofLimits, Solver};

#[path = "common/solver.rs"]
mod solver;

use solver::solver;

const CASES: &str = include_str!("repair/cases.txt");

/// A program with its label.
struct LabelledProgram<'a> {
    name: &'a str,
    safe: bool,
    text: String,
}

fn cases() -> Vec<LabelledProgram<'static>> {
    let case = |part: &'static str| {
        let (head, text) = part.split_once('\n').expect("a program");
        let (name, rest) = head.split_once(": ").expect("a label");
        LabelledProgram { name, safe: rest.starts_with("safe: "), text: text.to_owned() }
    };
    CASES.split("\n== ").skip(1).map(case).collect()
}

fn object(text: &str) -> Object {
    let insns = encode_all(&assemble(text).expect("it assembles"));
    let insns: Vec<u8> = insns.into_iter().flat_map(RawInsn::to_bytes).collect();
    let files = RawInput { insns: &insns, ..RawInput::default() };
    Object::parse_raw("case_xdp.insns", files, None).expect("a program")
}

fn repaired(case: &LabelledProgram<'_>, solver: &Solver) -> RepairReport {
    let limits = ProofLimits { time: Duration::from_secs(10), ..ProofLimits::default() };
    let (_, mut reports) = repair(&object(&case.text), Some(solver), &limits).expect("the kernel answers");
    reports.remove(0)
}

#[test]
fn safe_programs_are_repaired_and_unsafe_ones_are_not() {
    if !testing::require() {
        return;
    }
    let Some(solver) = solver() else { return };
    let (mut rejected, mut done) = (0, 0);
    for case in cases() {
        let report = repaired(&case, &solver);
        println!("{}: {:?} {:?}", case.name, report.outcome, report.checks);
        if report.reason.is_some() && case.safe {
            rejected += 1;
            done += usize::from(report.outcome == RepairOutcome::Repaired);
        }
        assert!(case.safe || report.outcome != RepairOutcome::Repaired, "{}: {report:?}", case.name);
        assert!(case.safe || report.reason.is_some(), "{}: the kernel accepts it", case.name);
    }
    assert!(rejected > 0 && 4 * done >= 3 * rejected, "{done} of {rejected} are repaired");
}

#[test]
fn the_goal_verify_takes_the_verifier_no_longer_than_before() {
    if !testing::require() {
        return;
    }
    // A diamond that leaves two numbers, and a long tail that needs the number exactly.
    let step = "r6 += 0\n".repeat(40);
    let diamonds: String = (0..6)
        .map(|n| {
            format!("call get_prandom_u32\n if r0 > 5 goto other{n}\n r6 ^= {}\n other{n}:\n {step}", 1 << n)
        })
        .collect();
    let text = format!(
        "r6 = 0\n {diamonds} r6 &= 63\n r1 = r10\n r1 += -64\n r1 += r6\n r2 = 1\n *(u8 *)(r1 +0) = r2\n r0 = 2\n exit"
    );
    let options = OptimizeOptions { goal: OptimizationGoal::Verify, ..OptimizeOptions::default() };
    let checked = check(&object(&text), options).expect("the kernel answers");
    let report = &checked.programs[0];
    let (before, after) = (report.before.expect("accepted"), report.after.expect("accepted"));
    println!("{} -> {}", before.verified, after.verified);
    assert!(5 * after.verified < 2 * before.verified, "{} -> {}", before.verified, after.verified);
}

//! Repair of rejected programs: those that are labelled safe are accepted and proven afterwards, and no unsafe
//! one is.

use std::time::Duration;

use millstream_isa::asm::assemble;
use millstream_isa::{Cond, RawInsn, Reg, encode_all};
use millstream_kernel::testing;
use millstream_object::{FuncId, Object, RawInput};
use millstream_opt::{OptimizationGoal, OptimizeOptions, RepairOutcome, RepairReport, check, repair};
use millstream_prove::{ProofLimits, ProofVerdict, Solver, prove};
use millstream_search::{GuardExit, RangeCheckSite, RepairEdit};

use crate::solver::solver;

const CASES: [&str; 6] = [
    include_str!("repair/cases.txt"),
    include_str!("repair/numbers.txt"),
    include_str!("repair/packets.txt"),
    include_str!("repair/pointers.txt"),
    include_str!("repair/control.txt"),
    include_str!("repair/unsafe.txt"),
];
const MAPS: &[u8] = b"elements { type = 2, key_size = 4, value_size = 48, max_entries = 4, fd = 1 }
entries { type = 1, key_size = 4, value_size = 16, max_entries = 64, fd = 2 }
";

/// A program with its label.
struct LabelledProgram {
    name: String,
    safe: bool,
    section: Option<String>,
    text: String,
}

impl LabelledProgram {
    fn parse(part: &str) -> LabelledProgram {
        let (head, lines) = part.split_once('\n').expect("a program");
        let (name, rest) = head.split_once(": ").expect("a label");
        assert!(rest.starts_with("safe: ") || rest.starts_with("unsafe: "), "{head}");
        let (mut section, mut text, mut repeated) = (None, String::new(), None);
        for line in lines.lines() {
            match line
                .strip_prefix("@ ")
                .map(|directive| directive.split_once(' ').unwrap_or((directive, "")))
            {
                Some(("section", name)) => section = Some(name.to_owned()),
                Some(("repeat", count)) => repeated = Some((count.parse().expect("a count"), text.len())),
                Some(("end", _)) => {
                    let (count, from): (usize, usize) = repeated.take().expect("a repetition");
                    let body = text.split_off(from);
                    text.extend((0..count).map(|n| body.replace('%', &n.to_string())));
                }
                Some((other, _)) => panic!("{other}"),
                None => text.extend([line, "\n"]),
            }
        }
        LabelledProgram { name: name.to_owned(), safe: rest.starts_with("safe: "), section, text }
    }

    fn all() -> impl Iterator<Item = LabelledProgram> {
        CASES.iter().flat_map(|file| file.split("\n== ").skip(1)).map(LabelledProgram::parse)
    }

    fn object(&self) -> Object {
        object(&self.text, self.section.as_deref())
    }
}

fn object(text: &str, section: Option<&str>) -> Object {
    let insns = encode_all(&assemble(text).expect("it assembles"));
    let insns: Vec<u8> = insns.into_iter().flat_map(RawInsn::to_bytes).collect();
    let files = RawInput { insns: &insns, maps: Some(MAPS), ..RawInput::default() };
    Object::parse_raw("case_xdp.insns", files, section).expect("a program")
}

fn repaired(case: &LabelledProgram, solver: &Solver) -> RepairReport {
    let limits = ProofLimits { time: Duration::from_secs(4), ..ProofLimits::default() };
    let (_, mut reports) = repair(&case.object(), Some(solver), &limits).expect("the kernel answers");
    reports.remove(0)
}

/// Tries every third labelled program; with `MILLSTREAM_REPAIR=all`, all.
#[test]
fn safe_programs_are_repaired_and_unsafe_ones_are_not() {
    if !testing::require() {
        return;
    }
    let Some(solver) = solver() else { return };
    let (mut rejected, mut done, mut unsafe_done) = ([0, 0], 0, Vec::new());
    let step = if std::env::var("MILLSTREAM_REPAIR").is_ok_and(|which| which == "all") { 1 } else { 3 };
    for case in LabelledProgram::all().step_by(step) {
        let report = repaired(&case, &solver);
        let label = if case.safe { "safe" } else { "unsafe" };
        println!("{}: {label}: {report}", case.name);
        let is_repaired = report.outcome == RepairOutcome::Repaired;
        rejected[usize::from(case.safe)] += usize::from(report.reason.is_some());
        done += usize::from(case.safe && is_repaired);
        unsafe_done.extend((!case.safe && is_repaired).then_some(case.name));
    }
    let [unsafe_rejected, safe_rejected] = rejected;
    println!(
        "{done} of {safe_rejected} safe programs are repaired, {} of {unsafe_rejected} unsafe",
        unsafe_done.len()
    );
    assert_eq!(unsafe_done, Vec::<String>::new());
    let enough = [safe_rejected, unsafe_rejected, done].map(|number| number * step);
    assert!(enough[0] >= 60 && enough[1] >= 20 && enough[2] >= 50, "{done} of {safe_rejected}");
}

#[test]
fn edits_of_the_form_change_no_run() {
    let split = |line, part| RepairEdit::SplitAccess { func: 0, line, part };
    let cases = [
        ("call get_prandom_u32\n *(u64 *)(r10 -12) = r0\n r0 = *(u64 *)(r10 -12)\n exit", split(1, 4)),
        ("call get_prandom_u32\n *(u64 *)(r10 -12) = r0\n r0 = *(u64 *)(r10 -12)\n exit", split(2, 2)),
        (
            "r1 = r10\n r1 += -24\n r2 = -9\n *(u32 *)(r1 +2) = r2\n r1 = *(s32 *)(r1 +2)\n r0 = r1\n exit",
            split(4, 1),
        ),
        ("r1 += 8\n r0 = *(u32 *)(r1 +8)\n exit", RepairEdit::MoveBack { func: 0, line: 1, by: 8 }),
        ("r0 = 2\n exit\n r0 = 3\n exit", RepairEdit::DropUnreachable { func: 0 }),
        (
            "call get_prandom_u32\n r6 = r0\n if r6 > 5 goto on\n r6 = 1\n on:\n r0 = r6\n r0 += 1\n exit",
            RepairEdit::Duplicate { func: 0, line: 4 },
        ),
    ];
    for (text, edit) in cases {
        let before = object(text, None);
        let after = edit.apply(&before, GuardExit::Leave).expect("the edit fits");
        assert_ne!(before.functions[0].insns, after.functions[0].insns, "{edit:?}");
        let proof = prove((&before, FuncId(0)), (&after, FuncId(0)), None, &ProofLimits::default());
        assert_eq!(proof.verdict, ProofVerdict::Equivalent, "{edit:?}");
    }
}

#[test]
fn a_guard_that_may_fail_differs_from_itself_with_another_marker() {
    let text = "call get_prandom_u32\n r0 &= 7\n r6 = r0\n r0 = 2\n exit";
    let verdict = |value| {
        let before = object(text, None);
        let site = RangeCheckSite { func: 0, line: 3, register: Reg::R6 };
        let edit = RepairEdit::Guard { site, cond: Cond::Gt, value };
        let marked =
            [1, 2].map(|marker| edit.apply(&before, GuardExit::Marker(marker)).expect("the edit fits"));
        prove((&marked[0], FuncId(0)), (&marked[1], FuncId(0)), None, &ProofLimits::default()).verdict
    };
    assert_eq!(verdict(7), ProofVerdict::Equivalent);
    assert!(matches!(verdict(6), ProofVerdict::Differs(_)));
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
    let checked = check(&object(&text, None), options).expect("the kernel answers");
    let report = &checked.programs[0];
    let (before, after) = (report.before.expect("accepted"), report.after.expect("accepted"));
    println!("{} -> {}", before.verified, after.verified);
    assert!(5 * after.verified < 2 * before.verified, "{} -> {}", before.verified, after.verified);
}

/// The model judges such a program, and its walk would not end either.
#[test]
fn the_goal_verify_ends_for_programs_that_no_verifier_finishes() {
    if !testing::require() {
        return;
    }
    let text = "r6 = 1\n again:\n r6 += 1\n if r6 != 0 goto again\n r0 = 0\n exit";
    let options = OptimizeOptions { goal: OptimizationGoal::Verify, ..OptimizeOptions::default() };
    let checked = check(&object(text, None), options).expect("the kernel answers");
    assert!(checked.programs.iter().all(|program| program.before.is_none()), "the kernel rejects it");
}

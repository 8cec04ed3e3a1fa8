//! Counterexamples of two programs that only one packet in four thousand million tells apart: a small scene,
//! found by a solver, that reproduces the difference, and the source lines that made it.

#[path = "../../object/tests/objects/common.rs"]
mod common;
mod written;

use std::time::Duration;

use millstream_object::{Object, ProgramType};
use millstream_prove::{Counterexample, Limits, Origin, Solver, Verdict, prove};
use written::object;

/// Counterexample of the two programs of a name.
fn difference(a: &Object, b: &Object, name: &str) -> Option<Counterexample> {
    let Some(solver) = Solver::found() else {
        assert!(std::env::var("CI").is_err(), "no solver");
        eprintln!("skipped: no solver");
        return None;
    };
    let find = |o: &Object| o.programs.iter().find(|p| p.name == name).expect("the program").func;
    let (f, g) = (find(a), find(b));
    let limits = Limits { time: Duration::from_secs(60), ..Limits::default() };
    let proof = prove((a, f), (b, g), Some(&solver), &limits);
    let Verdict::Differs(found) = proof.verdict else { panic!("{name}: {:?}", proof.verdict) };
    assert_eq!(found.origin, Origin::Solver, "{name}");
    assert!(proof.answers.asked > 0 && !proof.answers.solvers.is_empty(), "{:?}", proof.answers);
    assert!(found.shows((a, f), (b, g)), "{name}: {found}");
    assert!(!found.shows((a, f), (a, f)) && !found.shows((b, g), (b, g)), "{name}");
    // It contains nothing that does not matter.
    assert_eq!((found.packet.len(), found.context.len()), (34, 0), "{name}: {found}");
    let key = u32::from_le_bytes(found.packet[26..30].try_into().expect("four bytes"));
    assert_eq!(key.wrapping_mul(0x9e37_79b1), 0x1234_5677, "{name}");
    Some(*found)
}

/// The text of the lines that made the two differences.
fn lines(found: &Counterexample) -> [String; 2] {
    found
        .places
        .clone()
        .map(|p| p.and_then(|p| p.line).map_or_else(String::new, |l| l.text.trim().to_owned()))
}

fn both() -> Option<(Object, Object)> {
    Some((common::read("twins", &[])?, common::read("twins", &["-DTWIN"])?))
}

#[test]
fn a_map_value_is_traced_to_its_store() {
    let Some((a, b)) = both() else { return };
    let Some(found) = difference(&a, &b, "counted") else { return };
    assert_eq!(found.observable, "map \"seen\"");
    assert_eq!(found.entries.len(), 1);
    for line in lines(&found) {
        assert!(line.starts_with("*value +="), "{line:?}");
    }
    let shown = found.to_string();
    assert!(shown.contains("twins.bpf.c:") && shown.contains("in the second by instruction"), "{shown}");
}

#[test]
fn a_result_is_traced_to_what_chose_it() {
    let Some((a, b)) = both() else { return };
    let Some(found) = difference(&a, &b, "answered") else { return };
    assert_eq!(
        (found.observable.as_str(), found.first.as_str(), found.second.as_str()),
        ("result", "0", "3")
    );
    assert!(lines(&found)[0].contains("ODD"), "{:?}", lines(&found));
}

#[test]
fn a_byte_of_the_packet_is_traced_to_its_store_and_not_to_later_ones() {
    let Some((a, b)) = both() else { return };
    let Some(found) = difference(&a, &b, "written") else { return };
    assert_eq!(found.observable, "packet, byte 33");
    // The second does not change the byte, which is zero already.
    assert!(lines(&found)[0].starts_with("data[33]"), "{:?}", lines(&found));
}

#[test]
fn a_packet_that_the_kernel_takes_is_preferred_to_a_short_one() {
    // The second tells a packet that is too short and one of another protocol apart, unlike the first
    // program.
    let given = |drop: u32| {
        let text = format!(
            "r2 = *(u32 *)(r1 + 0)\nr3 = *(u32 *)(r1 + 4)\nr0 = {drop}\nr4 = r2\nr4 += 14\nif r4 > r3 goto out\n\
             r5 = *(u8 *)(r2 + 12)\nif r5 != 8 goto out\nr0 = 2\nout:\nexit"
        );
        object(ProgramType::XDP, &text)
    };
    let ((a, f), (b, g)) = (given(0), given(1));
    let Verdict::Differs(found) = prove((&a, f), (&b, g), None, &Limits::default()).verdict else {
        panic!("not found");
    };
    assert_eq!(found.packet.len(), 14, "{found}");
    assert!(found.shows((&a, f), (&b, g)), "{found}");
}

#[test]
fn tracing_programs_differ_by_what_the_kernel_holds() {
    // Reads of the current task, of an argument of a kernel function, and of the process that runs the
    // program.
    let task = |at: u32, test: &str| {
        format!(
            "call get_current_task\nr6 = r0\nr1 = r10\nr1 += -8\nr2 = 4\nr3 = r6\nr3 += {at}\ncall probe_read_kernel\n\
             r1 = *(u32 *)(r10 - 8)\nr0 = 1\nif r1 {test} goto out\nr0 = 2\nout:\nexit"
        )
    };
    let given = |at: u32| {
        format!(
            "r3 = *(u64 *)(r1 + 112)\nr3 += {at}\nr1 = r10\nr1 += -8\nr2 = 8\ncall probe_read_kernel\n\
             r0 = *(u64 *)(r10 - 8)\nexit"
        )
    };
    let who = |shift: u32| format!("call get_current_pid_tgid\nr0 >>= {shift}\nexit");
    let by = |user: u32, result: u32| {
        format!(
            "call get_current_uid_gid\nw1 = w0\nr0 = 7\nif r1 != {user} goto out\nr0 = {result}\nout:\nexit"
        )
    };
    let pairs = [
        (task(16, "== 0"), task(24, "== 0")),
        (task(16, "== 0"), task(16, "< 7")),
        (given(8), given(12)),
        (who(32), who(33)),
        (by(0x1234_5678, 1), by(0x1234_5678, 2)),
    ];
    for (one, other) in pairs {
        let ((a, f), (b, g)) = (object(ProgramType::KPROBE, &one), object(ProgramType::KPROBE, &other));
        let Verdict::Differs(found) = prove((&a, f), (&b, g), None, &Limits::default()).verdict else {
            panic!("not found:\n{one}\n{other}");
        };
        assert!(found.shows((&a, f), (&b, g)), "{found}");
        assert!(!found.shows((&a, f), (&a, f)), "{found}");
    }
}

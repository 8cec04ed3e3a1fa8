//! Solvers that work, and solvers that misbehave: scripts that pass the examination first.

use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use millstream_isa::AluOp;
use millstream_isa::Width;
use millstream_isa::semantics;

use super::{Solver, SolverAnswer, SolverError};
use crate::ProofLimits;
use crate::cache::ProofCache;
use crate::term::{Sort, TermId, TermPool};

/// A script that reads and writes lines as z3 does, answers the examination, and then runs `then` at each
/// `check-sat`.
fn fake(name: &str, then: &str) -> PathBuf {
    script(
        name,
        &format!(
            r#"#!/bin/sh
[ "$1" = --version ] && {{ echo "Z3 version 9.9.9"; exit; }}
n=2
while read -r line; do
    case $line in
    *get-info*name*) n=0; echo '(:name "Z3")' ;;
    *get-info*version*) echo '(:version "9.9.9")' ;;
    *check-sat*)
        n=$((n + 1))
        case $n in
        1) echo sat ;;
        2) echo unsat ;;
        *) {then} ;;
        esac
        ;;
    *'(x)'*) echo '((x #x05))' ;;
    *echo*) echo end ;;
    esac
done
"#
        ),
    )
}

fn script(name: &str, text: &str) -> PathBuf {
    let directory = std::env::temp_dir().join(format!("millstream-solver-{}", std::process::id()));
    std::fs::create_dir_all(&directory).expect("a directory");
    let path = directory.join(name);
    std::fs::write(&path, text).expect("a script");
    std::fs::set_permissions(&path, PermissionsExt::from_mode(0o755)).expect("executable");
    path
}

/// A real solver, if it is installed.
fn real(name: &str) -> Option<Solver> {
    let mut solver = Solver::new(name);
    if solver.drop_missing().is_empty() {
        return Some(solver);
    }
    assert!(std::env::var("CI").is_err(), "no {name}");
    eprintln!("skipped: no {name}");
    None
}

/// Two claims over `x`: that twice its value is even, and that it is not 77.
fn claims(terms: &mut TermPool) -> (TermId, TermId, TermId) {
    let x = terms.var("x", Sort::Bits(64));
    let square = semantics::alu(terms, AluOp::Mul, Width::W64, &x, &x);
    let four = terms.constant(64, 3);
    let low = semantics::alu(terms, AluOp::And, Width::W64, &square, &four);
    let (two, k) = (terms.constant(64, 2), terms.constant(64, 77));
    let even = terms.equal(low, two);
    let holds = terms.not(even);
    let is = terms.equal(x, k);
    (holds, terms.not(is), x)
}

fn ask(solver: &Solver, which: usize, time: Duration) -> Result<SolverAnswer, SolverError> {
    let mut terms = TermPool::new(1000);
    let (holds, fails, x) = claims(&mut terms);
    let mut session = solver.start(&ProofLimits::default()).expect("a session");
    let claim = if which == 0 { holds } else { fails };
    let answer = session.valid(&terms, claim, &[x], time);
    if let Ok(SolverAnswer::Refuted(model)) = &answer {
        assert_eq!(model.get(&x), Some(&77));
    }
    answer
}

const SOON: Duration = Duration::from_secs(20);

#[track_caller]
fn reason(answer: Result<SolverAnswer, SolverError>) -> String {
    match answer {
        Ok(SolverAnswer::Unknown(why)) => why,
        Ok(other) => panic!("{other:?}"),
        Err(e) => e.to_string(),
    }
}

#[test]
fn each_solver_answers() {
    for name in ["z3", "cvc5"] {
        let Some(solver) = real(name) else { continue };
        assert_eq!(ask(&solver, 0, SOON).expect("an answer"), SolverAnswer::Valid, "{name}");
        assert!(matches!(ask(&solver, 1, SOON), Ok(SolverAnswer::Refuted(_))), "{name}");
    }
}

#[test]
fn a_session_asks_again_and_again() {
    for name in ["z3", "cvc5"] {
        let Some(solver) = real(name) else { continue };
        let mut terms = TermPool::new(1000);
        let (holds, fails, x) = claims(&mut terms);
        let mut session = solver.start(&ProofLimits::default()).expect("a session");
        for _ in 0..3 {
            // Without the cache.
            session.cache = ProofCache::in_memory();
            assert_eq!(session.valid(&terms, holds, &[], SOON).expect("an answer"), SolverAnswer::Valid);
            assert!(matches!(session.valid(&terms, fails, &[x], SOON), Ok(SolverAnswer::Refuted(_))));
        }
        let answers = session.answers();
        assert_eq!((answers.asked, answers.solvers.len()), (6, 1));
        assert_eq!((answers.solvers[0].valid, answers.solvers[0].refuted), (3, 3));
        assert!(answers.solvers[0].name.starts_with(name), "{answers:?}");
    }
}

#[test]
fn one_that_hangs_is_overtaken_and_ended() {
    let Some(_) = real("z3") else { return };
    let hangs = fake("hangs", "sleep 100");
    let solver = Solver::of([hangs.clone(), "z3".into()]);
    let start = Instant::now();
    assert_eq!(ask(&solver, 0, SOON).expect("an answer"), SolverAnswer::Valid);
    assert!(start.elapsed() < SOON / 2);
    let start = Instant::now();
    let why = reason(ask(&Solver::new(hangs), 0, Duration::from_millis(300)));
    assert!(why.contains("time"), "{why}");
    assert!(start.elapsed() < Duration::from_secs(8));
}

#[test]
fn one_that_ends_in_the_middle_is_replaced() {
    let Some(_) = real("z3") else { return };
    for (name, then) in [("exits", "exit 7"), ("crashes", "kill -SEGV $$"), ("garbage", "echo '%&/ (((('")] {
        let path = fake(name, then);
        let both = Solver::of([path.clone(), "z3".into()]);
        assert_eq!(ask(&both, 0, SOON).expect("an answer"), SolverAnswer::Valid, "{name}");
        assert!(matches!(ask(&both, 1, SOON), Ok(SolverAnswer::Refuted(_))), "{name}");
        let why = reason(ask(&Solver::new(path), 0, SOON));
        assert!(why.contains("code 7") || why.contains("signal 11") || why.contains("%&/"), "{why}");
    }
}

#[test]
fn one_that_fails_again_and_again_is_asked_no_more() {
    let solver = Solver::new(fake("always-exits", "exit 7"));
    let mut terms = TermPool::new(1000);
    let (holds, _, _) = claims(&mut terms);
    let mut session = solver.start(&ProofLimits::default()).expect("a session");
    for _ in 0..6 {
        reason(session.valid(&terms, holds, &[], SOON));
    }
    assert_eq!(session.answers().solvers[0].asked, 3);
}

#[test]
fn endless_output_does_not_fill_memory() {
    let solver = Solver::new(fake("endless", "yes"));
    let why = reason(ask(&solver, 0, SOON));
    assert!(why.contains("\"y\""), "{why}");
    let solver = Solver::new(fake("endless-line", "tr '\\\\0' x </dev/zero"));
    reason(ask(&solver, 0, Duration::from_millis(500)));
}

#[test]
fn one_that_takes_too_much_memory_is_stopped() {
    // `tail` keeps a line without an end.
    let solver = Solver::new(fake("hungry", "tail -n 1 /dev/zero; exit 9"));
    let mut terms = TermPool::new(1000);
    let (holds, _, _) = claims(&mut terms);
    let limits = ProofLimits { memory: 64, ..ProofLimits::default() };
    let mut session = solver.start(&limits).expect("a session");
    let why = reason(session.valid(&terms, holds, &[], SOON));
    assert!(why.contains("code 9"), "{why}");
    // The real one reports it itself.
    let Some(_) = real("z3") else { return };
    let z3 = Solver::new("z3");
    let mut session = z3.start(&ProofLimits { memory: 1, ..ProofLimits::default() }).expect("a session");
    reason(session.valid(&terms, holds, &[], SOON));
}

#[test]
fn one_that_always_says_the_same_is_found_out() {
    for answer in ["sat", "unsat", "unknown"] {
        let text = format!(
            r#"#!/bin/sh
[ "$1" = --version ] && {{ echo "Z3 version 9.9.9"; exit; }}
while read -r line; do
    case $line in
    *get-info*name*) echo '(:name "Z3")' ;;
    *get-info*version*) echo '(:version "9.9.9")' ;;
    *check-sat*) echo {answer} ;;
    *'(x)'*) echo '((x #x05))' ;;
    *echo*) echo end ;;
    esac
done
"#
        );
        let solver = Solver::new(script(&format!("always-{answer}"), &text));
        let why = reason(ask(&solver, 1, SOON));
        assert!(why.contains("no solver to rely on"), "{why}");
    }
}

#[test]
fn one_that_lies_about_its_version_is_not_used() {
    let path = fake("liar", "echo unsat");
    let text =
        std::fs::read_to_string(&path).expect("the script").replace("Z3 version 9.9.9", "Z3 version 5.4.0");
    let solver = Solver::new(script("liar", &text));
    let why = reason(ask(&solver, 1, SOON));
    assert!(why.contains("5.4.0") && why.contains("9.9.9"), "{why}");
}

#[test]
fn one_that_is_no_solver_or_not_there_is_said() {
    let cat = reason(ask(&Solver::new("cat"), 1, SOON));
    assert!(cat.contains("solver"), "{cat}");
    let none = Solver::new("/nonexistent/z3");
    assert!(matches!(ask(&none, 1, SOON), Err(SolverError::Process { .. })));
    assert!(none.version().is_err());
    let mut some = Solver::of(["/nonexistent/z3".into(), "cat".into()]);
    assert_eq!(some.drop_missing(), [PathBuf::from("/nonexistent/z3")]);
    assert!(!some.is_empty());
}

#[test]
fn contradictions_are_kept_and_are_no_answer() {
    let Some(_) = real("z3") else { return };
    let keep = std::env::temp_dir().join(format!("millstream-kept-{}", std::process::id()));
    // It says that a claim holds although it does not.
    let wrong = fake("wrong", "echo unsat");
    let solver = Solver::of([wrong, "z3".into()]).agreeing(true).with_disagreement_dir(&keep);
    let why = reason(ask(&solver, 1, SOON));
    assert!(why.contains("z3 9.9.9 says that it holds, z3 ") || why.contains("says that it does"), "{why}");
    let file = why.split(" is kept in ").nth(1).expect("a file");
    let text = std::fs::read_to_string(file).expect("the question");
    assert!(text.contains("(check-sat)") && text.contains("bvmul") || text.contains("#"), "{text}");
    // The question can be asked again by hand.
    let out = std::process::Command::new("z3").arg(file).output().expect("z3");
    assert_eq!(String::from_utf8_lossy(&out.stdout).trim(), "sat");
    std::fs::remove_dir_all(&keep).expect("gone");
    // None of it is cached.
    assert_eq!(solver.cache().stats().memory, 0);
    reason(ask(&solver, 1, SOON));
    assert_eq!(solver.cache().stats().memory, 0);
    let _ = std::fs::remove_dir_all(&keep);
}

#[test]
fn what_was_answered_is_not_asked_again_under_other_names() {
    let Some(solver) = real("z3") else { return };
    assert_eq!(ask(&solver, 0, SOON).expect("an answer"), SolverAnswer::Valid);
    assert!(matches!(ask(&solver, 1, SOON), Ok(SolverAnswer::Refuted(_))));
    // Other names, other terms before: the same questions.
    let mut terms = TermPool::new(1000);
    terms.var("something else", Sort::Bits(8));
    let y = terms.var("y", Sort::Bits(64));
    let k = terms.constant(64, 77);
    let is = terms.equal(y, k);
    let claim = terms.not(is);
    let mut session = solver.start(&ProofLimits::default()).expect("a session");
    let Ok(SolverAnswer::Refuted(model)) = session.valid(&terms, claim, &[y], SOON) else {
        panic!("no answer")
    };
    assert_eq!(model.get(&y), Some(&77));
    let answers = session.answers();
    assert_eq!((answers.cached.len(), answers.solvers.len()), (1, 0), "{answers:?}");
    assert!(answers.cached[0].0.starts_with("z3 "), "{answers:?}");
    // Another width or constant is another question.
    let k = terms.constant(64, 78);
    let is = terms.equal(y, k);
    let claim = terms.not(is);
    assert!(matches!(session.valid(&terms, claim, &[y], SOON), Ok(SolverAnswer::Refuted(m)) if m[&y] == 78));
}

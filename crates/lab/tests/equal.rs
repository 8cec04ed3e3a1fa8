//! Equality on random packets: a program equals itself, also one that writes down the time, and its mutants are told
//! apart from it.

use millstream_isa::{AluOp, Insn, Operand, Reg, decode_all};
use millstream_kernel::testing;
use millstream_lab::equal::{Observable, Outcome, Plan, Replayed, Scene, equal, replay};
use millstream_lab::os;
use millstream_object::Object;
use millstream_programs::{NAT, Program, ROUTER};

const PLAN: Plan = Plan { packets: 1500, seed: 5 };

/// Returns true if BPF is permitted, and then pins the test to one CPU: maps with a value a CPU are compared.
fn ready() -> bool {
    let permitted = testing::require();
    if let Some(cpu) = os::allowed_cpus().last().filter(|_| permitted) {
        os::pin_to_cpu(*cpu).expect("an allowed one");
    }
    permitted
}

fn object(program: &Program) -> Object {
    Object::parse(program.name, program.object).expect("our own object")
}

#[test]
fn a_program_equals_itself_and_most_of_its_code_is_reached() {
    if !ready() {
        return;
    }
    let router = object(&ROUTER);
    let answer = equal(&router, &router.clone(), ROUTER.function, &PLAN).expect("it runs");
    assert!(matches!(answer.outcome, Outcome::Equal), "{answer:?}");
    assert_eq!(answer.packets, PLAN.packets);
    let [reached, all] = answer.reached.expect("the interpreter models it");
    assert!(reached * 3 > all * 2 && reached <= all, "{reached} of {all}");
}

#[test]
fn times_in_its_table_are_no_difference() {
    if !ready() {
        return;
    }
    let nat = object(&NAT);
    let answer = equal(&nat, &nat.clone(), NAT.function, &PLAN).expect("it runs");
    assert!(matches!(answer.outcome, Outcome::Equal), "{answer:?}");
}

/// The differences found between a program and its mutants, each with one constant changed, and the number of
/// mutants.
fn told_apart(original: &Object, name: &str, mutable: impl Fn(&Insn) -> bool) -> (Vec<Observable>, usize) {
    let func = original.programs[0].func;
    let insns = decode_all(&original.functions[func.index()].insns).expect("it decodes");
    let slots: Vec<usize> = insns.iter().filter(|(_, insn)| mutable(insn)).map(|(slot, _)| *slot).collect();
    let mut found = Vec::new();
    for slot in &slots {
        let mut mutant = original.clone();
        mutant.functions[func.index()].insns[*slot].imm ^= 1;
        match equal(original, &mutant, name, &PLAN).expect("it runs").outcome {
            Outcome::Different(difference) => found.push(difference.observable),
            Outcome::Equal => {}
            Outcome::NotTried { reason } => panic!("{reason}"),
        }
    }
    (found, slots.len())
}

/// Mutants that are equivalent are among them (a bound that is a multiple of four anyway), but few.
#[test]
fn mutants_are_told_apart() {
    if !ready() {
        return;
    }
    let router = object(&ROUTER);
    let compares = |i: &Insn| matches!(i, Insn::Branch { src: Operand::Imm(imm), .. } if *imm != 0);
    let (found, tried) = told_apart(&router, ROUTER.function, compares);
    assert!(found.len() * 2 > tried, "{} of {tried}", found.len());
    assert!(found.iter().any(|o| matches!(o, Observable::ReturnValue { .. })), "{found:?}");
    let adds = |i: &Insn| match i {
        Insn::Alu { op: AluOp::Add, src: Operand::Imm(_), dst, .. } => *dst != Reg::R2 && *dst != Reg::R3,
        _ => false,
    };
    let (found, _) = told_apart(&router, ROUTER.function, adds);
    let seen = |o: &Observable| matches!(o, Observable::Packet(_) | Observable::Map { .. });
    assert!(found.iter().any(seen), "{found:?}");
}

#[test]
fn a_missing_program_is_an_error() {
    if !ready() {
        return;
    }
    let router = object(&ROUTER);
    assert!(equal(&router, &object(&NAT), ROUTER.function, &PLAN).is_err());
}

#[test]
fn a_scene_shows_in_the_kernel_what_it_shows() {
    if !ready() {
        return;
    }
    let router = object(&ROUTER);
    let run = |other: &Object, packet: usize| {
        let scene = Scene { packet: vec![0; packet], context: vec![(12, 1)], entries: Vec::new() };
        replay(&router, other, ROUTER.function, &scene).expect("it runs")
    };
    assert_eq!(run(&router, 64), Replayed::Same { unset: vec![12] });
    assert!(matches!(run(&router, 10), Replayed::NotTried { .. }));
    // Every result that is a constant is another one.
    let mut mutant = router.clone();
    for function in &mut mutant.functions {
        for (slot, insn) in decode_all(&function.insns).expect("it decodes") {
            if matches!(insn, Insn::Mov { dst: Reg::R0, src: Operand::Imm(_), .. }) {
                function.insns[slot].imm ^= 1;
            }
        }
    }
    let found = run(&mutant, 64);
    assert!(matches!(found, Replayed::Different(Observable::ReturnValue { .. })), "{found:?}");
}

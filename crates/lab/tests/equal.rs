//! Equality on random packets: a program equals itself, also one that writes down the time, and its mutants
//! are told apart from it.

use millstream_isa::asm::assemble;
use millstream_isa::{AluOp, Insn, Operand, RawInsn, Reg, decode_all, encode_all};
use millstream_kernel::testing;
use millstream_lab::differential::{
    DifferentialOutcome, DifferentialPlan, KernelReplay, ObservedDifference, TestRunInput, compare_objects,
    replay,
};
use millstream_lab::os;
use millstream_object::{Object, RawInput};
use millstream_programs::{DataPlaneProgram, NAT, ROUTER};

const PLAN: DifferentialPlan = DifferentialPlan { packets: 1500, seed: 5 };

/// Returns true if BPF is permitted, and then pins the test to one CPU: maps with a value a CPU are compared.
fn ready() -> bool {
    let permitted = testing::require();
    if let Some(cpu) = os::allowed_cpus().last().filter(|_| permitted) {
        os::pin_to_cpu(*cpu).expect("an allowed one");
    }
    permitted
}

fn object(program: &DataPlaneProgram) -> Object {
    Object::parse(program.name, program.object).expect("our own object")
}

#[test]
fn a_program_equals_itself_and_most_of_its_code_is_reached() {
    if !ready() {
        return;
    }
    let router = object(&ROUTER);
    let answer = compare_objects(&router, &router.clone(), ROUTER.function, &PLAN).expect("it runs");
    assert!(matches!(answer.outcome, DifferentialOutcome::Equal), "{answer:?}");
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
    let answer = compare_objects(&nat, &nat.clone(), NAT.function, &PLAN).expect("it runs");
    assert!(matches!(answer.outcome, DifferentialOutcome::Equal), "{answer:?}");
}

/// A raw XDP program.
fn raw(text: &str) -> Object {
    let insns = encode_all(&assemble(text).expect("it assembles"));
    let insns: Vec<u8> = insns.into_iter().flat_map(RawInsn::to_bytes).collect();
    let files = RawInput { insns: &insns, ..RawInput::default() };
    Object::parse_raw("raw_xdp.insns", files, None).expect("a program")
}

/// The results of random numbers are often alike twice by chance; bytes of the stack that nobody wrote always are.
#[test]
fn what_no_instruction_decides_is_no_difference() {
    if !ready() {
        return;
    }
    let compared = |first: &str, second: &str| {
        let [first, second] = [raw(first), raw(second)];
        let name = first.programs[0].name.clone();
        compare_objects(&first, &second, &name, &PLAN).expect("it runs")
    };
    let varies = |first: &str, second: &str| {
        let answer = compared(first, second);
        assert!(matches!(answer.outcome, DifferentialOutcome::Equal), "{answer:?}");
        assert!(answer.varies.contains("return value"), "{answer:?}");
    };
    let random = "call get_prandom_u32\n r0 &= 3\n exit";
    varies(random, "call get_prandom_u32\n r0 &= 3\n r0 ^= 1\n exit");
    assert!(matches!(compared("r0 = 1\n exit", "r0 = 2\n exit").outcome, DifferentialOutcome::Different(_)));
    let unwritten = "r0 = *(u32 *)(r10 -8)\n exit";
    if compared(unwritten, unwritten).packets > 0 {
        varies(unwritten, "r0 = 0\n exit");
    }
}

/// The differences found between a program and its mutants, each with one constant changed, and the number of
/// mutants.
fn told_apart(
    original: &Object,
    name: &str,
    mutable: impl Fn(&Insn) -> bool,
) -> (Vec<ObservedDifference>, usize) {
    let func = original.programs[0].func;
    let insns = decode_all(&original.functions[func.index()].insns).expect("it decodes");
    let slots: Vec<usize> = insns.iter().filter(|(_, insn)| mutable(insn)).map(|(slot, _)| *slot).collect();
    let mut found = Vec::new();
    for slot in &slots {
        let mut mutant = original.clone();
        mutant.functions[func.index()].insns[*slot].imm ^= 1;
        match compare_objects(original, &mutant, name, &PLAN).expect("it runs").outcome {
            DifferentialOutcome::Different(difference) => found.push(difference.observable),
            DifferentialOutcome::Equal => {}
            DifferentialOutcome::NotTried { reason } => panic!("{reason}"),
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
    assert!(found.iter().any(|o| matches!(o, ObservedDifference::ReturnValue { .. })), "{found:?}");
    let adds = |i: &Insn| match i {
        Insn::Alu { op: AluOp::Add, src: Operand::Imm(_), dst, .. } => *dst != Reg::R2 && *dst != Reg::R3,
        _ => false,
    };
    let (found, _) = told_apart(&router, ROUTER.function, adds);
    let seen =
        |o: &ObservedDifference| matches!(o, ObservedDifference::Packet(_) | ObservedDifference::Map { .. });
    assert!(found.iter().any(seen), "{found:?}");
}

#[test]
fn a_missing_program_is_an_error() {
    if !ready() {
        return;
    }
    let router = object(&ROUTER);
    assert!(compare_objects(&router, &object(&NAT), ROUTER.function, &PLAN).is_err());
}

#[test]
fn a_scene_shows_in_the_kernel_what_it_shows() {
    if !ready() {
        return;
    }
    let router = object(&ROUTER);
    let run = |other: &Object, packet: usize| {
        let scene = TestRunInput { packet: vec![0; packet], context: vec![(12, 1)], entries: Vec::new() };
        replay(&router, other, ROUTER.function, &scene).expect("it runs")
    };
    assert_eq!(run(&router, 64), KernelReplay::Same { unset: vec![12] });
    assert!(matches!(run(&router, 10), KernelReplay::NotTried { .. }));
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
    assert!(matches!(found, KernelReplay::Different(ObservedDifference::ReturnValue { .. })), "{found:?}");
}

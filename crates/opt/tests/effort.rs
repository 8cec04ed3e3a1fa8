//! Without a kernel to ask, no program gets a form whose verification might take longer.

use millstream_isa::asm::assemble;
use millstream_isa::{RawInsn, encode_all};
use millstream_object::{Object, RawInput};
use millstream_opt::{FunctionOutcome, OptimizeOptions, optimize};

fn made(text: &str) -> (Object, Object, FunctionOutcome) {
    let insns = encode_all(&assemble(text).expect("it assembles"));
    let insns: Vec<u8> = insns.into_iter().flat_map(RawInsn::to_bytes).collect();
    let files = RawInput { insns: &insns, ..RawInput::default() };
    let original = Object::parse_raw("rounds_xdp.insns", files, None).expect("a program");
    let made = optimize(&original, &OptimizeOptions::default()).expect("optimized");
    (original, made.object, made.functions[0].outcome.clone())
}

/// A loop with a needless instruction in each round, that ends when its counter is the limit.
fn rounds(start: &str, limit: u32) -> String {
    format!(
        "
        {start}
        r6 = r0
    again:
        r6 += 1
        r6 += 1
        if r6 != {limit} goto again
        r0 = 2
        exit
    "
    )
}

#[test]
fn loops_that_are_followed_to_their_end_are_optimized() {
    let (original, made, outcome) = made(&rounds("r0 = 0", 1_000));
    assert_eq!(outcome, FunctionOutcome::Rewritten);
    assert!(made.functions[0].insns.len() < original.functions[0].insns.len());
}

#[test]
fn a_program_whose_verification_is_not_understood_stays_as_it_was() {
    let (original, made, outcome) = made(&rounds("call get_prandom_u32", 1_000));
    assert_eq!(outcome, FunctionOutcome::Costlier);
    assert_eq!(made.functions[0].insns, original.functions[0].insns);
}

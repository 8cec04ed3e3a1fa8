//! Without a kernel to ask, no program gets a form whose verification might take longer.

use millstream_isa::asm::assemble;
use millstream_isa::generation::VerifierGeneration;
use millstream_isa::{RawInsn, encode_all};
use millstream_kernel::{KernelProgram, ProgramSpec, ProgramType, testing};
use millstream_object::{FuncId, Object, RawInput};
use millstream_opt::{FunctionOutcome, OptimizationGoal, OptimizeOptions, optimize};
use millstream_search::verification_effort;

fn object(text: &str) -> Object {
    let insns = encode_all(&assemble(text).unwrap_or_else(|e| panic!("{e}\n{text}")));
    let insns: Vec<u8> = insns.into_iter().flat_map(RawInsn::to_bytes).collect();
    let files = RawInput { insns: &insns, ..RawInput::default() };
    Object::parse_raw("rounds_xdp.insns", files, None).expect("a program")
}

fn made(text: &str) -> (Object, Object, FunctionOutcome) {
    let original = object(text);
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

#[test]
fn a_large_program_whose_verification_is_not_understood_is_not_compiled() {
    let start = format!("call get_prandom_u32\n{}", "r0 += 1\n".repeat(2_000));
    let original = object(&rounds(&start, 1_000));
    let made = optimize(&original, &OptimizeOptions::default()).expect("optimized");
    assert_eq!(made.functions[0].outcome, FunctionOutcome::Costlier);
    assert_eq!(made.object.functions[0].insns, original.functions[0].insns);
    assert_eq!(made.rewrites, 0);
}

/// Additions that cannot be left out or joined: each uses what a call returned.
fn long_code(slots: usize) -> String {
    let one = "call get_prandom_u32\n r6 ^= r0\n";
    format!("r6 = 0\n {}", one.repeat(slots / 2))
}

#[test]
fn a_large_program_that_gains_next_to_nothing_stays_as_it_was() {
    let needless = "r6 += 1\n r6 += 1\n";
    let end = "r0 = r6\n exit\n";
    let (original, made, outcome) = made(&format!("{} {needless} {end}", long_code(3_000)));
    assert_eq!(outcome, FunctionOutcome::SmallGain);
    assert_eq!(made.functions[0].insns, original.functions[0].insns);

    let (original, made, outcome) = self::made(&format!("{} {needless} {end}", long_code(300)));
    assert_eq!(outcome, FunctionOutcome::Rewritten);
    assert!(made.functions[0].insns.len() < original.functions[0].insns.len());

    let size = OptimizeOptions { goal: OptimizationGoal::Size, ..OptimizeOptions::default() };
    let original = object(&format!("{} {needless} {end}", long_code(3_000)));
    let made = optimize(&original, &size).expect("optimized");
    assert_eq!(made.functions[0].outcome, FunctionOutcome::Rewritten);

    let gain = needless.repeat(100);
    let (original, made, outcome) = self::made(&format!("{} {gain} {end}", long_code(3_000)));
    assert_eq!(outcome, FunctionOutcome::Rewritten);
    assert!(made.functions[0].insns.len() < original.functions[0].insns.len());
}

/// Instructions that this kernel's verifier walks.
fn verified(text: &str) -> u64 {
    let insns = assemble(text).expect("it assembles");
    let code: Vec<u64> = encode_all(&insns).iter().map(|raw| u64::from_le_bytes(raw.to_bytes())).collect();
    let program_type = ProgramType::XDP;
    let spec =
        ProgramSpec { name: "walked", program_type, insns: &code, license: "GPL", ..ProgramSpec::default() };
    let program = KernelProgram::load(&spec).unwrap_or_else(|e| panic!("{e}\n{text}"));
    program.info().expect("the kernel tells of its programs").verified_insns.into()
}

fn kernel_version() -> Option<(u32, u32)> {
    let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").ok()?;
    let mut parts = release.split(['.', '-']).map_while(|part| part.trim().parse::<u32>().ok());
    parts.next().zip(parts.next())
}

/// So many choices between two ways, each of which changes something.
fn choices(number: usize, change: impl Fn(usize) -> String) -> String {
    let one = |n: usize| {
        let nothing = "r8 += 0\n".repeat(8);
        format!("call get_prandom_u32\n if r0 > 5 goto way{n}\n {}\n way{n}:\n {nothing}", change(n))
    };
    (0..number).map(one).collect()
}

/// The model beside the verifier, where each of its rules decides how far a path is followed.
#[test]
fn the_model_counts_what_the_kernel_verifies() {
    if !testing::require() {
        return;
    }
    if kernel_version() != Some((6, 18)) {
        println!("skipped: the model is that of Linux 6.18");
        return;
    }
    let number = choices(6, |n| format!("r6 += {}", 1 << n));
    let address = "r6 &= 7\n r1 = r10\n r1 += -8\n r1 += r6\n r2 = 0\n *(u8 *)(r1 +0) = r2";
    let bytes = choices(5, |n| format!("r7 = 0\n *(u8 *)(r10 -{}) = r7", 3 + n));
    let spills = choices(5, |n| format!("*(u64 *)(r10 -{}) = r6", 8 * (n + 1)));
    let halves = choices(4, |_| "r7 = 0\n *(u64 *)(r10 -16) = r7\n *(u32 *)(r10 -12) = r7".to_owned());
    let upper =
        "call get_prandom_u32\n if r0 > 5 goto upper\n r7 = 0\n *(u32 *)(r10 -12) = r7\n upper:\n r8 += 0";
    let again = choices(4, |n| format!("r9 = {n}"));
    let copies = choices(5, |n| format!("r7 = r6\n r7 += {n}\n if r7 > 9 goto end\n r9 += r6"));
    let masks = choices(5, |n| format!("if r6 & {} goto end", 1 << n | 64));
    let imprecise_copy = "call get_prandom_u32\n r6 = r0\n r7 = r0\n call get_prandom_u32\n if r0 > 5 goto copied
        call get_prandom_u32\n r7 = r0\n copied:\n r8 += 0\n r8 += 0\n r8 += 0\n r8 += 0\n r8 += 0\n r8 += 0\n r8 += 0
        r7 &= 7\n r1 = r10\n r1 += -8\n r1 += r7\n r2 = 0\n *(u8 *)(r1 +0) = r2\n r8 += r6";
    let texts = [
        format!("r6 = 0\n {number}"),
        format!("r6 = 0\n {number} {address}"),
        format!("*(u64 *)(r10 -8) = 1\n {bytes} r1 = *(u64 *)(r10 -8)"),
        format!("call get_prandom_u32\n r6 = r0\n {spills} r6 = 0"),
        format!("*(u64 *)(r10 -16) = 1\n {halves} r1 = *(u64 *)(r10 -16)"),
        format!("{upper}\n r7 = 1\n *(u32 *)(r10 -16) = r7\n {again} r1 = *(u32 *)(r10 -16)"),
        format!("call get_prandom_u32\n r6 = r0\n r9 = 0\n {copies}"),
        format!("r6 = 0\n {masks}"),
        imprecise_copy.to_owned(),
        "r6 = 0\n again:\n r6 += 1\n call get_prandom_u32\n if r6 < 50 goto again".to_owned(),
    ];
    for text in texts {
        let text = format!("r8 = 0\n {text}\n end:\n r0 = 2\n exit\n");
        let effort = verification_effort(&object(&text), FuncId(0), VerifierGeneration::V6_18, 1_000_000);
        assert!(effort.certain, "{text}");
        assert_eq!(effort.instructions, verified(&text), "{text}");
    }
}

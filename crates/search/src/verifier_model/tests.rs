//! Tests of the model on small programs.

use millstream_isa::asm::assemble;
use millstream_isa::{RawInsn, encode_all};
use millstream_object::{Extern, ExternId, ExternKind, RawInput, Reloc, RelocKind};

use super::*;

fn object(text: &str) -> Object {
    let insns = encode_all(&assemble(text).expect("it assembles"));
    let insns: Vec<u8> = insns.into_iter().flat_map(RawInsn::to_bytes).collect();
    let files = RawInput { insns: &insns, ..RawInput::default() };
    Object::parse_raw("walk_xdp.insns", files, None).expect("a program")
}

fn effort(text: &str) -> VerificationEffort {
    effort_on(VerifierGeneration::V6_18, text)
}

fn effort_on(generation: VerifierGeneration, text: &str) -> VerificationEffort {
    verification_effort(&object(text), FuncId(0), generation, 10_000)
}

/// The effort of a loop over an iterator, each round of which has so many instructions.
fn effort_of_iteration(round: usize) -> VerificationEffort {
    let text = "again:\n call get_prandom_u32\n if r0 == 0 goto done\n".to_owned();
    let text = text + &"r6 = 0\n".repeat(round) + "goto again\n done:\n r0 = 0\n exit";
    let mut object = object(&text);
    object.externs.push(Extern {
        name: "bpf_iter_num_next".to_owned(),
        kind: ExternKind::Unknown,
        weak: false,
    });
    object.functions[0].relocs.push(Reloc { insn: 0, kind: RelocKind::Extern(ExternId(0)) });
    verification_effort(&object, FuncId(0), VerifierGeneration::V6_18, 10_000)
}

#[test]
fn long_walks_over_iterators_are_uncertain() {
    assert!(effort_of_iteration(20).certain);
    let long = effort_of_iteration(1_200);
    assert!(!long.certain);
    assert_eq!(long.instructions, 1_001, "the walk goes on, but its result is not certain any more");
}

#[test]
fn each_side_of_an_open_branch_is_walked() {
    let text = "call get_prandom_u32\n if r0 > 5 goto high\n r0 = 1\n exit\n high:\n r0 = 2\n exit";
    assert_eq!(effort(text), VerificationEffort { instructions: 6, certain: true });
    let decided = "r0 = 7\n if r0 > 5 goto high\n r0 = 1\n exit\n high:\n r0 = 2\n exit";
    assert_eq!(effort(decided), VerificationEffort { instructions: 4, certain: true });
}

/// The verifier rejects such a program; each round leaves a path behind.
#[test]
fn walks_end_where_too_many_paths_wait() {
    let text =
        "r6 = 0\n again:\n call get_prandom_u32\n r6 += 1\n if r0 > 7 goto out\n if r6 > 100000 goto out
        goto again\n out:\n r0 = 0\n exit";
    let effort = verification_effort(&object(text), FuncId(0), VerifierGeneration::V6_18, 1_000_000);
    assert!(!effort.certain);
    assert!(effort.instructions < 60_000, "{effort:?}");
}

#[test]
fn loops_are_walked_round_by_round() {
    let text = "r1 = 0\n again:\n r1 += 1\n if r1 < 100 goto again\n r0 = 0\n exit";
    assert_eq!(effort(text), VerificationEffort { instructions: 203, certain: true });
    let endless = "call get_prandom_u32\n r6 = r0\n again:\n r6 += 1\n if r6 != 7 goto again\n r0 = 0\n exit";
    assert!(!effort(endless).certain);
}

/// Diamonds whose results nobody needs exactly are walked once; if an address depends on them, each way
/// counts.
#[test]
fn ways_that_differ_in_nothing_that_matters_are_walked_once() {
    let diamond = |n: usize| {
        format!(
            "call get_prandom_u32\n if r0 > 5 goto other{n}\n r6 += {}\n other{n}:\n r6 += 0\n r6 += 0\n r6 += 0\n \
             r6 += 0\n r6 += 0\n r6 += 0\n",
            1 << n
        )
    };
    let all: String = (0..8).map(diamond).collect();
    let without = effort(&format!("r6 = 0\n {all} r0 = 0\n exit"));
    let with = effort(&format!(
        "r6 = 0\n {all} r6 &= 7\n r1 = r10\n r1 += -8\n r1 += r6\n r2 = 0\n *(u8 *)(r1 +0) = r2\n r0 = 0\n exit"
    ));
    assert!(without.certain && with.certain);
    assert!(without.instructions < 300, "{without:?}");
    assert!(with.instructions > 3 * without.instructions, "{with:?} {without:?}");
}

/// So many choices between two instructions, each with so many that do nothing.
fn choices(number: usize, change: impl Fn(usize) -> [String; 2]) -> String {
    let one = |n: usize| {
        let [first, second] = change(n);
        let nothing = "r9 = 0\n".repeat(8);
        format!(
            "call get_prandom_u32\n if r0 > 5 goto a{n}\n {first}\n goto b{n}\n a{n}:\n {second}\n b{n}:\n {nothing}"
        )
    };
    (0..number).map(one).collect()
}

/// Older verifiers tell zero bytes from bytes of which nothing is known, so that each combination is walked
/// unless the bytes that may be anything come first.
#[test]
fn the_order_of_zeros_and_unknown_bytes_counts_on_older_kernels() {
    let text = |order: [usize; 2]| {
        let store = |n: usize| {
            let sides = [0, 1].map(|side| format!("*(u64 *)(r10 -{}) = r{}", 8 * (n + 1), 6 + side));
            order.map(|side| sides[side].clone())
        };
        let reads: String = (0..6).map(|n| format!("r1 = *(u64 *)(r10 -{})\n", 8 * (n + 1))).collect();
        let all = choices(6, store);
        format!("call get_prandom_u32\n r6 = r0\n r7 = 0\n {all} {reads} r0 = 0\n exit")
    };
    let of = |generation, order| {
        let effort = effort_on(generation, &text(order));
        assert!(effort.certain);
        effort.instructions
    };
    let (unknown, zero) = ([0, 1], [1, 0]);
    let new = VerifierGeneration::V6_18;
    assert!(of(new, zero) < 300 && of(new, unknown) < 300);
    for old in [VerifierGeneration::V5_10, VerifierGeneration::V6_1] {
        assert!(of(old, unknown) < 300);
        assert!(of(old, zero) > 5 * of(old, unknown));
    }
}

/// Newer verifiers find which numbers an address behind a call depends on; to older ones all that are known
/// before the call count.
#[test]
fn numbers_before_a_call_count_on_older_kernels() {
    let all = choices(6, |n| [format!("r6 ^= {}", 1 << n), "r8 = 0".to_owned()]);
    let address = "call pc+7\n r1 = r10\n r1 += -8\n r1 += r7\n *(u8 *)(r1 +0) = 1\n r0 = 0\n exit\n";
    let text = format!("r6 = 0\n r7 = 1\n {all} {address} r0 = 0\n r9 = r0\n exit");
    let of = |generation| effort_on(generation, &text);
    let (old, new) = (of(VerifierGeneration::V6_1), of(VerifierGeneration::V6_18));
    assert!(new.certain && old.certain, "{new:?} {old:?}");
    assert!(old.instructions > 5 * new.instructions, "{new:?} {old:?}");
}

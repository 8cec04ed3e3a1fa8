//! Each generation of the verifier gets programs that it accepts: bounds that it does not find by itself stay
//! in the code.

use millstream_isa::asm::assemble;
use millstream_isa::generation::{KernelRange, VerifierGeneration};
use millstream_isa::{AluOp, Insn, Operand, RawInsn, decode_all, encode_all};
use millstream_object::{Object, RawInput};
use millstream_opt::{OptimizeOptions, oldest_kernel, optimize};

const MAPS: &str = "values { type = 2, key_size = 4, value_size = 256, max_entries = 1, fd = 0 }\n";

/// A program by its assembly; its name ends with its section.
fn object(name: &str, text: &str) -> Object {
    let insns = encode_all(&assemble(text).unwrap_or_else(|e| panic!("{name}: {e}")));
    let insns: Vec<u8> = insns.into_iter().flat_map(RawInsn::to_bytes).collect();
    let files = RawInput { insns: &insns, maps: Some(MAPS.as_bytes()), ..RawInput::default() };
    Object::parse_raw(name, files, None).unwrap_or_else(|e| panic!("{name}: {e}"))
}

/// Reads the byte of a map value at the offset that a body makes, in `r1`, of bytes of a packet of 64 at
/// `r2`.
fn indexing(body: &str) -> Object {
    let text = format!(
        "
        r7 = r1
        r1 = 0
        *(u32 *)(r10 -4) = r1
        r2 = r10
        r2 += -4
        r1 = map[fd:0]
        call map_lookup_elem
        r6 = r0
        r0 = 2
        if r6 == 0 goto end
        r2 = *(u32 *)(r7 +0)
        r3 = *(u32 *)(r7 +4)
        r4 = r2
        r4 += 64
        if r4 > r3 goto end
        r1 = *(u8 *)(r2 +0)
        r5 = *(u8 *)(r2 +1)
        {body}
        r6 += r1
        r0 = *(u8 *)(r6 +0)
    end:
        exit
    "
    );
    object("indexing_xdp.insns", &text)
}

fn insns(object: &Object, kernels: Option<KernelRange>) -> Vec<Insn> {
    // Whatever the form costs.
    let options = OptimizeOptions { kernels, keep_longer: true, ..OptimizeOptions::default() };
    let made = optimize(object, &options).expect("optimized").object;
    let decoded = decode_all(&made.functions[0].insns).expect("valid code");
    decoded.into_iter().map(|(_, insn)| insn).collect()
}

/// Returns true if a bound is still written in the code, as a mask or as a check.
fn has_bound(insns: &[Insn], bound: i32) -> bool {
    insns.iter().any(|insn| match insn {
        Insn::Alu { op: AluOp::And, src, .. } | Insn::Branch { src, .. } => *src == Operand::Imm(bound),
        _ => false,
    })
}

#[test]
fn bounds_stay_for_verifiers_that_do_not_find_them() {
    use VerifierGeneration as G;
    // The first generation that needs the bound no more.
    let cases: [(&str, &str, i32, G); 8] = [
        ("be16", "r1 = *(u16 *)(r2 +4)\n r1 = be16 r1\n r1 &= 65535\n if r1 > 200 goto end", 65535, G::V6_18),
        ("be16 of a byte", "r1 <<= 8\n r1 = be16 r1\n r1 &= 255", 255, G::V6_18),
        ("or", "r1 &= 240\n r5 &= 15\n r1 |= r5\n r1 &= 255", 255, G::V6_12),
        ("xor", "r1 &= 240\n r5 &= 15\n r1 ^= r5\n r1 &= 255", 255, G::V6_12),
        ("product", "r1 &= 15\n r5 &= 15\n r1 *= r5\n r1 &= 255", 255, G::V6_12),
        ("not zero", "if r1 == 0 goto end\n r1 += -1\n if r1 > 254 goto end", 254, G::V6_12),
        (
            "two registers",
            "r5 >>= 1\n r1 = *(u32 *)(r2 +8)\n if r1 > r5 goto end\n if r1 > 127 goto end",
            127,
            G::V6_12,
        ),
        ("or with a constant", "r1 &= 15\n r1 |= 64\n r1 &= 127", 127, G::V5_10),
    ];
    let mut faults = Vec::new();
    for (name, body, bound, since) in cases {
        let original = indexing(body);
        for generation in VerifierGeneration::ALL {
            let made = insns(&original, Some(KernelRange::only(generation)));
            if has_bound(&made, bound) != (generation < since) {
                faults.push(format!("{name} for {generation}"));
            }
        }
        if has_bound(&insns(&original, None), bound) != (since > VerifierGeneration::OLDEST) {
            faults.push(format!("{name} for all"));
        }
    }
    assert!(faults.is_empty(), "{faults:?}");
}

#[test]
fn constants_go_into_the_context_from_registers_before_linux_6_4() {
    let text = "
        r2 = 5
        *(u32 *)(r1 +8) = r2
        r2 = 1
        *(u32 *)(r1 +60) = r2
        r0 = 0
        exit
    ";
    let original = object("mark_tc.insns", text);
    let immediates = |kernels| {
        let is_immediate = |i: &Insn| matches!(i, Insn::Store { src: Operand::Imm(_), .. });
        insns(&original, kernels).iter().filter(|i| is_immediate(i)).count()
    };
    for generation in VerifierGeneration::ALL {
        let allowed = generation.stores_context_immediates();
        assert_eq!(
            immediates(Some(KernelRange::only(generation))),
            if allowed { 2 } else { 0 },
            "{generation}"
        );
    }
    assert_eq!(immediates(None), 0, "every kernel takes the original");
}

#[test]
fn what_an_object_uses_says_which_kernels_load_it() {
    let oldest = |text: &str| oldest_kernel(&object("uses_tc.insns", text));
    assert_eq!(oldest("r0 = 0\n exit"), VerifierGeneration::V5_10);
    assert_eq!(oldest("call ktime_get_coarse_ns\n r0 = 0\n exit"), VerifierGeneration::V6_1);
    assert_eq!(oldest("r0 = (s8)r1\n exit"), VerifierGeneration::V6_12);
    assert_eq!(oldest("*(u32 *)(r1 +8) = 5\n r0 = 0\n exit"), VerifierGeneration::V6_12);
    assert_eq!(oldest("r6 = r1\n r1 = r10\n *(u32 *)(r1 -8) = 5\n r0 = 0\n exit"), VerifierGeneration::V5_10);
}

//! The estimate of the kernel's machine code against the kernel: exact to the byte for code that the verifier
//! does not change, except for a constant overhead of every program.

use millstream_bpf::jit::jited_bytes;
use millstream_isa::asm::assemble;
use millstream_isa::encode_all;
use millstream_kernel::{KernelProgram, ProgramSpec, ProgramType, testing};

/// Values that the verifier does not know, in registers with and without a prefix; all saved registers are in
/// use.
const START: &str = "
    call get_prandom_u32
    r6 = r0
    call get_prandom_u32
    r7 = r0
    call get_prandom_u32
    r8 = r0
    r9 = r0
    *(u64 *)(r10 -8) = r9
    *(u64 *)(r10 -200) = r9
    r1 = r6
    r5 = r7
";

/// Measured instructions, each set in a program of its own.
const SETS: [&str; 11] = [
    "",
    "r6 += r7
     r1 += r6
     w1 += w6
     w8 -= w1
     r5 &= r6
     w6 |= w7
     r6 ^= r1
     r6 *= r8
     w1 *= w6",
    "r6 += 1
     r7 += 1000
     w1 += 1
     w5 += 1000
     r8 -= 127
     r8 &= 128
     w9 |= 5
     w6 ^= -1
     r6 &= -16
     r6 *= 3
     w1 *= 1000",
    "r6 <<= 1
     r6 <<= 7
     w1 >>= 1
     w5 >>= 9
     r8 s>>= 33
     w9 s>>= 1",
    "r6 = 0
     r7 = 0
     w5 = 0
     r1 = 1
     r1 = -1
     r5 = 70000
     w7 = -1
     r6 = r7
     w6 = w1
     w6 = w7",
    "r6 = 0 ll
     r7 = 0x12345678 ll
     r8 = 0xffffffff ll
     r1 = 0xffffffff80000000 ll
     r1 = 0x123456789abcdef0 ll",
    "r6 = -r6
     w7 = -w7
     w1 = -w1
     r6 = be16 r6
     r7 = be16 r7
     r6 = be32 r6
     r7 = be32 r7
     r6 = be64 r6
     r6 = le16 r6
     r7 = le32 r7
     r6 = le64 r6",
    "r6 = *(u8 *)(r10 -8)
     r7 = *(u16 *)(r10 -8)
     r1 = *(u32 *)(r10 -8)
     r5 = *(u32 *)(r10 -200)
     r6 = *(u64 *)(r10 -200)
     r7 = *(u64 *)(r10 -8)",
    "*(u8 *)(r10 -8) = r6
     *(u16 *)(r10 -8) = r7
     *(u32 *)(r10 -8) = r1
     *(u32 *)(r10 -200) = r5
     *(u64 *)(r10 -200) = r6
     *(u8 *)(r10 -16) = 1
     *(u16 *)(r10 -16) = 1
     *(u32 *)(r10 -16) = 0
     *(u64 *)(r10 -16) = -1
     *(u64 *)(r10 -208) = 0",
    "if r6 == 0 goto end
     if r7 == 0 goto end
     if w1 == 0 goto end
     if r6 > 1000 goto end
     if r7 s< 100 goto end
     if w6 & 4 goto end
     if r6 == r7 goto end
     if w1 != w6 goto end
     if r6 & r1 goto end",
    "lock *(u64 *)(r10 -8) += r6
     lock *(u32 *)(r10 -200) += r1
     r6 = atomic64_fetch_add((u64 *)(r10 -8), r6)
     r6 = atomic64_xchg((u64 *)(r10 -8), r6)",
];

/// Bytes of machine code, as estimated and in the kernel.
fn lengths(text: &str) -> (u32, u32) {
    let insns = assemble(text).unwrap_or_else(|e| panic!("{e}\n{text}"));
    let code: Vec<u64> = encode_all(&insns).iter().map(|raw| u64::from_le_bytes(raw.to_bytes())).collect();
    let spec = ProgramSpec {
        name: "jited",
        program_type: ProgramType::XDP,
        insns: &code,
        license: "GPL",
        ..ProgramSpec::default()
    };
    let program = KernelProgram::load(&spec).unwrap_or_else(|e| panic!("{e}\n{text}"));
    (jited_bytes(&insns, &[]), program.info().expect("the kernel tells of its programs").jited_len)
}

#[test]
fn the_estimate_is_right_to_the_byte() {
    if !testing::require() {
        return;
    }
    let rest = "\nend:\n r0 = 2\n exit\n";
    let (estimate, jited) = lengths(&format!("{START}{rest}"));
    let frame = jited - estimate;
    for set in SETS {
        let (estimate, jited) = lengths(&format!("{START}{set}{rest}"));
        assert_eq!(estimate + frame, jited, "{set}");
    }
    // Jumps around the reach of a byte, forth.
    for between in 25..50 {
        let far = "r6 += r7\n".repeat(between);
        let (estimate, jited) = lengths(&format!("{START} if r6 == 0 goto end\n {far}{rest}"));
        assert_eq!(estimate + frame, jited, "over {between} instructions");
    }
}

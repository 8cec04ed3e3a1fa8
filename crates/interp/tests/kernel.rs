//! One instruction, one meaning: each arithmetic, branching, memory and atomic instruction on random
//! operands, in the kernel and here.
//!
//! A program holds one group of instructions. It reads two operands from the packet, applies each instruction
//! to them, and writes the results into the packet, which is then compared byte for byte. `MILLSTREAM_CASES`
//! sets the number of pairs of operands for each program.

use millstream_interp::bytecode::{BytecodeInterpreter, DecodedProgram};
use millstream_interp::{ContextKind, MachineState};
use millstream_isa::asm::assemble;
use millstream_isa::encode_all;
use millstream_kernel::{ProgramSpec, ProgramType, TestRun, testing};
use snippets::{RESULTS, ROOM, Random, SEED, program, snippets};

mod snippets;

/// Pairs of operands for each program, unless the environment says otherwise.
const CASES: usize = 3000;
fn compare(group: &[String], random: &mut Random, cases: usize) {
    let insns = assemble(&program(group)).expect("our own text");
    let slots: Vec<u64> = encode_all(&insns).iter().map(|slot| u64::from_le_bytes(slot.to_bytes())).collect();
    let spec = ProgramSpec {
        name: "one_meaning",
        program_type: ProgramType::XDP,
        insns: &slots,
        license: "GPL",
        ..ProgramSpec::default()
    };
    let loaded =
        millstream_kernel::KernelProgram::load(&spec).unwrap_or_else(|e| panic!("{e}\n{}", program(group)));
    let ours = [DecodedProgram::from_insns(&insns)];
    let mut machine = MachineState::new(ContextKind::Xdp);
    for _ in 0..cases {
        let (a, b) = (random.operand(), random.operand());
        let mut packet: Vec<u8> = a.to_le_bytes().into_iter().chain(b.to_le_bytes()).collect();
        packet.resize(RESULTS + 8 * group.len(), 0xa5);
        machine.reset(&packet);
        let here = BytecodeInterpreter::new(&ours).run_context(&mut machine, 0).expect("runs");
        let there = loaded.test_run(&TestRun::packet(&packet)).expect("runs in the kernel");
        assert_eq!(here, u64::from(there.retval));
        let result = |bytes: &[u8], n: usize| {
            bytes
                .get(RESULTS + 8 * n..)
                .and_then(|rest| rest.first_chunk())
                .map(|word| u64::from_le_bytes(*word))
        };
        for (n, snippet) in group.iter().enumerate() {
            let (here, there) = (result(machine.packet.bytes(), n), result(&there.data, n));
            assert_eq!(here, there, "{snippet}\nof r6 = {a:#x}, r7 = {b:#x}: here, in the kernel");
        }
    }
}

#[test]
fn instructions_mean_here_what_they_mean_in_the_kernel() {
    if !testing::require() {
        return;
    }
    let cases = std::env::var("MILLSTREAM_CASES").ok().and_then(|n| n.parse().ok()).unwrap_or(CASES);
    let mut random = Random(SEED);
    let all = snippets(&mut random);
    assert!(all.len() > 300, "{} instructions", all.len());
    for group in all.chunks(ROOM / 8) {
        compare(group, &mut random, cases);
    }
}

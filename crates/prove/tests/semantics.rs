//! Compares the prover's meaning of instructions with the kernel: the term form of each one, evaluated on
//! random operands.
//!
//! The programs are those used to compare the interpreter with the kernel; here they go through the prover's
//! executor, and the resulting terms for the packet are evaluated. `MILLSTREAM_CASES` sets the number of
//! pairs of operands for each instruction; with `MILLSTREAM_RESULTS` the figures are kept in that directory.

#[path = "../../interp/tests/snippets/mod.rs"]
mod snippets;

use std::time::Instant;

use millstream_isa::asm::assemble;
use millstream_isa::encode_all;
use millstream_kernel::{KernelProgram, ProgramSpec, ProgramType, TestOutput, TestRun, testing};
use millstream_prove::{ProofLimits, SymbolicProgram};
use snippets::{RESULTS, ROOM, Random, SEED, program, snippets};

/// Pairs of operands for each instruction, unless the environment says otherwise.
const CASES: usize = 2000;
/// Pairs that are evaluated at once.
const LANES: usize = 128;

/// Compares a group of instructions with the kernel; returns the number of results compared.
fn compare(group: &[String], random: &mut Random, cases: usize) -> usize {
    let insns = assemble(&program(group)).expect("our own text");
    let slots: Vec<u64> = encode_all(&insns).iter().map(|slot| u64::from_le_bytes(slot.to_bytes())).collect();
    let spec = ProgramSpec {
        name: "term_form",
        program_type: ProgramType::XDP,
        insns: &slots,
        license: "GPL",
        ..ProgramSpec::default()
    };
    let loaded = KernelProgram::load(&spec).unwrap_or_else(|e| panic!("{e}\n{}", program(group)));
    let length = RESULTS + 8 * group.len();
    let terms =
        SymbolicProgram::on_packets(&insns, length, &ProofLimits::default()).expect("they are modelled");
    let word = |bytes: &[u8], n: usize| {
        let at = RESULTS + 8 * n;
        u64::from_le_bytes(bytes[at..at + 8].try_into().expect("8 bytes"))
    };
    let mut out = TestOutput::default();
    let mut done = 0;
    while done < cases {
        let lanes = LANES.min(cases - done);
        done += lanes;
        let packets: Vec<Vec<u8>> = (0..lanes)
            .map(|_| {
                let (a, b) = (random.operand(), random.operand());
                let mut packet: Vec<u8> = a.to_le_bytes().into_iter().chain(b.to_le_bytes()).collect();
                packet.resize(length, 0xa5);
                packet
            })
            .collect();
        let inputs: Vec<&[u8]> = packets.iter().map(Vec::as_slice).collect();
        let said = terms.run(&inputs).expect("all is given");
        for (packet, said) in packets.iter().zip(said) {
            loaded.test_run_into(&TestRun::packet(packet), &mut out).expect("runs in the kernel");
            assert_eq!(said.result as u32, out.retval);
            if said.bytes == out.data {
                continue;
            }
            for (n, snippet) in group.iter().enumerate() {
                let (a, b) = (&packet[..8], &packet[8..16]);
                let (terms, kernel) = (word(&said.bytes, n), word(&out.data, n));
                assert_eq!(terms, kernel, "{snippet}\nof r6 = {a:x?}, r7 = {b:x?}: as terms, in the kernel");
            }
            panic!("operands were changed: {:x?}", &out.data[..RESULTS]);
        }
    }
    cases * group.len()
}

#[test]
fn terms_mean_what_the_kernel_does() {
    if !testing::require() {
        return;
    }
    let cases = std::env::var("MILLSTREAM_CASES").ok().and_then(|n| n.parse().ok()).unwrap_or(CASES);
    let mut random = Random(SEED ^ 0xabcd);
    let all = snippets(&mut random);
    assert!(all.len() > 300, "{} instructions", all.len());
    let start = Instant::now();
    let seeds: Vec<u64> = all.chunks(ROOM / 8).map(|_| random.operand() | 1).collect();
    let compared: usize = std::thread::scope(|scope| {
        let one = |(group, seed)| scope.spawn(move || compare(group, &mut Random(seed), cases));
        let running: Vec<_> = all.chunks(ROOM / 8).zip(seeds).map(one).collect();
        running.into_iter().map(|t| t.join().expect("no difference")).sum()
    });
    assert_eq!(compared, cases * all.len());
    if let Ok(directory) = std::env::var("MILLSTREAM_RESULTS") {
        let figures = serde_json::json!({
            "schema": 1,
            "kernel": std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default().trim(),
            "command": "bench/run.sh semantics",
            "instructions": all.len(),
            "operand_pairs_each": cases,
            "compared": compared,
            "different": 0,
            "seed": SEED,
            "seconds": start.elapsed().as_secs_f64(),
        });
        let file = std::path::Path::new(&directory).join("semantics.json");
        std::fs::write(file, format!("{figures:#}\n")).expect("a file");
    }
}

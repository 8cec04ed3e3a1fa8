//! Random programs, interpreted and natively.
//!
//! `MILLSTREAM_CASES=N MILLSTREAM_SEED=S MILLSTREAM_PACKETS=P` runs N programs from seed S on, with P packets
//! each.

use std::path::Path;

use crate::common::{lowered, native_comparison};
use crate::generator::ProgramGenerator;

fn number(variable: &str, usual: u64) -> u64 {
    std::env::var(variable).ok().and_then(|text| text.parse().ok()).unwrap_or(usual)
}

#[test]
fn random_programs_have_the_same_results_in_the_interpreter_and_natively() {
    let (cases, first) = (number("MILLSTREAM_CASES", 8), number("MILLSTREAM_SEED", 1));
    let packets = number("MILLSTREAM_PACKETS", 60) as usize;
    let (mut sent, mut left, mut differences) = (0, 0, Vec::new());
    for seed in first..first + cases {
        let text = ProgramGenerator::program(seed, true);
        let program = lowered(Path::new("test.p4"), Some(text.clone()));
        let program = program.unwrap_or_else(|error| panic!("seed {seed}: {error}\n{text}"));
        match native_comparison(&program, Vec::new()).and_then(|mut both| both.run(packets)) {
            Ok(result) => (sent, left) = (sent + result.packets, left + result.answers),
            Err(difference) => differences.push(format!("seed {seed}: {difference}")),
        }
    }
    println!("programs: {cases}, packets: {sent}, packets that left: {left}");
    assert!(left as u64 > cases, "too little was compared");
    assert!(differences.is_empty(), "{} differ:\n{}", differences.len(), differences.join("\n"));
}

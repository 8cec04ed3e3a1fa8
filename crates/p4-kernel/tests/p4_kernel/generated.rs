//! Random programs, interpreted and in the kernel.
//!
//! `MILLSTREAM_CASES=N MILLSTREAM_SEED=S MILLSTREAM_PACKETS=P` runs N programs from seed S on, with P packets
//! each.

use millstream_kernel::testing;
use millstream_p4_kernel::{KernelExecutor, KernelHook, build_program, lower_options};
use millstream_p4_lower::LowerOptions;

use crate::common::lowered;
use crate::comparison::{Comparison, EngineLimits};
use crate::generator::ProgramGenerator;

fn number(variable: &str, usual: u64) -> u64 {
    std::env::var(variable).ok().and_then(|text| text.parse().ok()).unwrap_or(usual)
}

/// The kernel has no packets of less than a header, and makes prefixes of ranges.
fn limits(hook: KernelHook) -> EngineLimits {
    let least_sent = if hook == KernelHook::Xdp { 14 } else { 0 };
    EngineLimits { least: 64, least_sent, has_less_room: true }
}

/// Reasons for which a program may be refused.
const REFUSALS: [&str; 3] = ["is not supported in the kernel", "too large", "The sequence of"];

#[test]
fn random_programs_have_the_same_results_in_the_interpreter_and_in_the_kernel() {
    if !testing::require() {
        return;
    }
    let (cases, first) = (number("MILLSTREAM_CASES", 6), number("MILLSTREAM_SEED", 1));
    let packets = number("MILLSTREAM_PACKETS", 60) as usize;
    let (mut sent, mut left, mut refused, mut differences) = (0, 0, 0, Vec::new());
    for seed in first..first + cases {
        let text = ProgramGenerator::program(seed, false);
        let options = LowerOptions { most_steps: lower_options().most_steps, ..LowerOptions::default() };
        let program = lowered("test.p4", &text, options);
        let kernel = lowered("test.p4", &text, lower_options());
        let hook = if seed % 2 == 0 { KernelHook::Xdp } else { KernelHook::Tc };
        let loaded = build_program(&kernel, "test", hook).map_err(|error| error.to_string());
        let loaded = loaded.and_then(|object| {
            KernelExecutor::load(object, &kernel.pipeline).map_err(|error| error.to_string())
        });
        let executor = match loaded {
            Ok(executor) => executor,
            Err(reason) if REFUSALS.iter().any(|known| reason.contains(known)) => {
                refused += 1;
                continue;
            }
            Err(reason) => {
                differences.push(format!("seed {seed}: {reason}"));
                continue;
            }
        };
        let compared = Comparison::new(&program, (&kernel, executor), Vec::new(), limits(hook));
        let run = |mut both: Comparison<KernelExecutor>| Ok([both.run(packets)?, both.run_batches(1)?]);
        match compared.and_then(run) {
            Ok(results) => {
                sent += results.iter().map(|result| result.packets).sum::<usize>();
                left += results.iter().map(|result| result.answers).sum::<usize>();
            }
            Err(difference) => differences.push(format!("seed {seed}: {difference}")),
        }
    }
    println!("programs: {cases}, refused: {refused}, packets: {sent}, packets that left: {left}");
    assert!(differences.is_empty(), "{} differ:\n{}", differences.len(), differences.join("\n"));
    assert!(refused < cases && left > 0, "too little was compared");
}

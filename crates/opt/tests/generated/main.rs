//! Random programs of realistic shape through default `optimize`, with the kernel as judge: it accepts each
//! result whose original it accepted, and every run gives the same result, packet, context and maps.
//!
//! Programs have functions that are given addresses in their callers' frames, large frames, tail calls,
//! callbacks, map lookups, packet accesses, loops, spills. `MILLSTREAM_GENERATED=100000` tries that many
//! programs, `MILLSTREAM_SEED=N` begins with another one, `MILLSTREAM_MINUTES=M` ends after M minutes; see
//! `fuzz/README.md`.

mod body;
mod code;
mod judge;
mod left;
mod program;
mod state;
mod template;

use std::time::{Duration, Instant};

use millstream_kernel::testing;
use millstream_loader::ObjectLoader;

use judge::{Verdict, judge};
use program::generate;
use template::Template;

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|v| v.parse().unwrap_or_else(|_| panic!("{name} is no number: {v}")))
}

#[test]
fn what_the_kernel_takes_it_takes_again_and_it_does_the_same() {
    if !testing::require() {
        return;
    }
    let cpu = millstream_lab::os::allowed_cpus()[0];
    millstream_lab::os::on_cpu(cpu, try_all).expect("the thread stays on one CPU");
}

fn try_all() {
    let template = Template::new();
    let session = ObjectLoader::new(&template.object).prepare().expect("the template can be prepared");
    let (count, first) =
        (number("MILLSTREAM_GENERATED").unwrap_or(300), number("MILLSTREAM_SEED").unwrap_or(1));
    let end = number("MILLSTREAM_MINUTES").map(|m| Instant::now() + Duration::from_secs(60 * m));
    let (mut tried, mut refused, mut faults) = (0u64, 0u64, Vec::new());
    for seed in first..first.saturating_add(count) {
        if end.is_some_and(|end| Instant::now() > end) {
            break;
        }
        let verdict = judge(&session, template.maps, &generate(&template, seed), seed);
        tried += 1;
        match verdict {
            Verdict::Refused(why) => {
                refused += 1;
                if std::env::var_os("MILLSTREAM_REFUSED").is_some() {
                    eprintln!("seed {seed}: {}", why.lines().last().unwrap_or_default());
                }
            }
            verdict if verdict.is_fault() => {
                eprintln!("seed {seed}: {verdict:?}");
                faults.push(seed);
            }
            _ => {}
        }
        if tried.is_multiple_of(10_000) {
            eprintln!("{tried} programs: {refused} refused as generated, {} faults", faults.len());
        }
    }
    eprintln!("{tried} programs: {refused} refused as generated, {} faults", faults.len());
    assert!(2 * refused < tried, "the generator has lost touch with the verifier");
    assert!(faults.is_empty(), "seeds {faults:?}");
}

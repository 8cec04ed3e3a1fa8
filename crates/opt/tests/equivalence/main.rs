//! The five data planes behave as before, after lifting and lowering alone and after all passes: the kernel
//! runs original and results on the same frames, with maps of their own that hold the same, and verdicts,
//! frames and all contents of maps must be equal. So must the results of native code in userspace.
//!
//! `MILLSTREAM_PACKETS` is the number of frames for each data plane (20,000 by default), `MILLSTREAM_RESULTS`
//! a directory for the figures. Not seen: which of several existing ports a frame is redirected to, for a
//! test run only says that it is; the counters per port tell.

mod byte_orders;
mod coverage;
mod frames;
mod interpreted;
mod native;
mod planes;
mod variant;

use millstream_kernel::{TestOutput, testing};
use millstream_programs::{BALANCER, DataPlaneProgram, FIREWALL, NAT, ROUTER, SWITCH};
use millstream_rng::Rng;

use coverage::Coverage;
use frames::Seen;
use native::Native;
use planes::State;
use variant::{Clock, Objects, Variant};

/// Frames in a run of the usual length; the interpreter runs about as many, for coverage.
const COVERED: usize = 20_000;
/// States of the maps in a run.
const MOST_STATES: usize = 40;
/// The least share of blocks that they must reach.
const REACHED: f64 = 0.9;

fn packets() -> usize {
    let given = std::env::var("MILLSTREAM_PACKETS").ok();
    given.map_or(COVERED, |n| n.parse().expect("MILLSTREAM_PACKETS is a number"))
}

/// Keeps the figures of a run without a difference, where that is asked for.
fn keep(program: &DataPlaneProgram, packets: usize, [reached, blocks]: [usize; 2]) {
    let Ok(directory) = std::env::var("MILLSTREAM_RESULTS") else { return };
    let figures = serde_json::json!({
        "schema": 1,
        "program": program.name,
        "packets": packets,
        "blocks_reached": reached,
        "blocks": blocks,
        "differences": 0,
    });
    let path = std::path::Path::new(&directory).join(format!("equivalence-{}.json", program.name));
    std::fs::write(path, format!("{figures:#}\n")).expect("the results' directory");
}

/// Runs frames on all variants, over several states of the maps.
fn check(program: &DataPlaneProgram, per_state: usize, state: fn(&mut Rng) -> State) {
    if !testing::require() {
        return;
    }
    // Counters and limits are per CPU: all runs must be on one.
    let cpus = millstream_lab::os::allowed_cpus();
    millstream_lab::os::pin_to_cpu(cpus[0]).expect("pinned");
    let objects = Objects::new(program);
    let mut coverage = Coverage::new(&objects.named[0].1, objects.function);
    let mut rng = Rng::new(0x5eed);
    let (total, mut done) = (packets(), 0);
    // Long runs have longer states: to fill the maps anew takes its time, too.
    let per_state = per_state.max(total / MOST_STATES);
    while done < total {
        let count = per_state.min(total - done);
        // Of a long run's states, the interpreter sees the beginnings.
        let covered = (COVERED * count).div_ceil(total).max(1);
        epoch(&objects, state(&mut rng), count, &mut rng, covered, &mut coverage);
        done += count;
    }
    let (reached, all, missed) = coverage.reached();
    println!("{}: {done} frames, {reached} of {all} blocks reached; not: {missed:?}", program.name);
    let share = reached as f64 / all as f64;
    keep(program, done, [reached, all]);
    assert!(total < COVERED || share >= REACHED, "{}: only {share:.3} of the blocks reached", program.name);
}

/// One state of the maps, and what happens from there.
fn epoch(
    objects: &Objects,
    state: State,
    count: usize,
    rng: &mut Rng,
    covered: usize,
    coverage: &mut Coverage<'_>,
) {
    let clock = Clock::new();
    let variants: Vec<Variant<'_>> = objects
        .named
        .iter()
        .map(|(name, object)| Variant::load(name, object, objects.function, &clock))
        .collect();
    let mut machine = coverage.machine(&state.entries);
    variants.iter().for_each(|v| v.apply(&state.entries));
    let original = &objects.named[0].1;
    let mut native = Native::load(original, objects.function, millstream_lab::os::allowed_cpus()[0]);
    native.apply(&state.entries);
    let mut now = 1_000_000_000_000;
    let mut seen = Seen::default();
    let mut outputs: [TestOutput; 3] = Default::default();
    for at in 0..count {
        if rng.below(16) == 0 {
            now +=
                [1_000, 1_000_000, 1_000_000_000, 100_000_000_000, 8_000_000_000_000][rng.below(5) as usize];
            clock.set(now);
            coverage.set_clock(&mut machine, now);
            native.set_clock(now);
        }
        if rng.below(64) == 0 && !state.writes.is_empty() {
            let write = &state.writes[rng.below(state.writes.len() as u64) as usize];
            variants.iter().for_each(|v| v.apply(write));
            coverage.apply(&mut machine, write);
            native.apply(write);
        }
        let frame = frames::disturbed(&state.frame(rng), &seen, rng);
        run(&variants, &frame, &mut outputs);
        if at < covered {
            agrees("the interpreter", &coverage.run(&mut machine, &frame), &outputs[0], &frame);
        }
        agrees("native code", &native.run(&frame), &outputs[0], &frame);
        // XDP_TX and XDP_REDIRECT.
        if outputs[0].retval >= 3 {
            seen.sent.clone_from(&outputs[0].data);
        }
        seen.last = frame;
    }
    let contents = variants[0].contents();
    for variant in &variants[1..] {
        let difference = contents.difference(&variant.contents());
        assert_eq!(difference, None, "{}", variant.name);
    }
    assert_eq!(native.difference(&contents), None, "native code");
    coverage.collect(machine);
}

/// Checks that another implementation did the same with a frame as the kernel.
fn agrees(who: &str, (verdict, after): &(u32, Vec<u8>), kernel: &TestOutput, frame: &[u8]) {
    assert!(
        (*verdict, after) == (kernel.retval, &kernel.data),
        "{who} says {verdict} and {after:02x?}, the kernel {kernel:02x?} for {frame:02x?}"
    );
}

/// Runs one frame on each and compares the outputs.
fn run(variants: &[Variant<'_>], frame: &[u8], outputs: &mut [TestOutput; 3]) {
    for (variant, out) in variants.iter().zip(outputs.iter_mut()) {
        variant.run(frame, out);
    }
    let [original, others @ ..] = &*outputs;
    for (variant, other) in variants[1..].iter().zip(others) {
        assert!(
            (original.retval, &original.data) == (other.retval, &other.data),
            "{}: {other:02x?}, original: {original:02x?}, for {frame:02x?}",
            variant.name
        );
    }
}

#[test]
fn router() {
    check(&ROUTER, 4_000, planes::router);
}

#[test]
fn switch() {
    check(&SWITCH, 2_000, |rng| {
        let mut state = planes::switch(rng);
        state.entries.push(planes::own_station([2, 0, 0, 0, 0, 0x77], 10));
        state
    });
}

#[test]
fn nat() {
    check(&NAT, 2_000, planes::nat);
}

#[test]
fn firewall() {
    check(&FIREWALL, 1_000, planes::firewall);
}

#[test]
fn balancer() {
    check(&BALANCER, 2_500, planes::balancer);
}

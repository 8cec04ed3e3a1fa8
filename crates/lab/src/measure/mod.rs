//! Measuring by short runs of many copies, at random, so that what disturbs one disturbs all.
//!
//! The place of a program's machine code moves a program of 20 ns by 1 ns, and a neighbour on the same
//! physical core doubles its time for a while. So each generation loads several copies of every side and of
//! an empty program, in random order, and times them in random order by short runs; the time of a copy is a
//! low percentile of its runs, the time of a side the mean over its copies. Only ratios inside a generation
//! count.
//!
//! All copies are entered by a tail call from one trampoline ([`TimingHarness`]), which alone is attached.
//! The measured times include it; the empty program tells its share.

mod live;
mod test_run;
mod trampoline;

use std::os::fd::AsFd;

use millstream_kernel::{KernelMap, KernelProgram};
use millstream_rng::Rng;
use serde::Serialize;

pub use live::LiveHarness;
pub(crate) use test_run::retry_interrupted;
pub use test_run::{TestRunHarness, TestRunResults, check_packets};
pub(crate) use trampoline::REDIRECT;
pub use trampoline::{LoadAttributes, MAX_COPIES, RESTORED, empty};

use crate::error::{Error, Result};
use crate::os;

/// Runs a copy needs in a generation; with fewer the generation is dropped.
const LEAST_RUNS: usize = 5;
/// Runs that are drawn, on an average, for each run that the copy with the fewest of them gets.
const DRAWN: f64 = 3.0;
/// A run is disturbed if it takes this much longer than its copy's floor.
const DISTURBED: f64 = 1.15;

/// One of the programs that are measured beside one another.
pub struct MeasuredSide<'a> {
    /// Its name in reports.
    pub name: String,
    /// Loads one more copy of it.
    pub load: Box<dyn FnMut() -> Result<KernelProgram> + 'a>,
}

impl<'a> MeasuredSide<'a> {
    /// A side.
    pub fn new(name: impl Into<String>, load: impl FnMut() -> Result<KernelProgram> + 'a) -> Self {
        MeasuredSide { name: name.into(), load: Box::new(load) }
    }
}

/// Duration and resolution of a measurement. Fixed before the run.
#[derive(Clone, Copy, PartialEq, Debug, Serialize)]
pub struct MeasurementPlan {
    /// Length of all, in seconds.
    pub seconds: f64,
    /// Copies of each side.
    pub copies: usize,
    /// Length of a generation's timed part, in seconds.
    pub generation: f64,
    /// Which quantile of its runs is a copy's time.
    pub quantile: f64,
    /// Seed of all random choices.
    pub seed: u64,
}

impl MeasurementPlan {
    /// For test runs: 8 copies, generations of 0.3 s, 5th percentile.
    pub fn test_run(seconds: f64) -> Self {
        MeasurementPlan { seconds, copies: 8, generation: 0.3, quantile: 0.05, seed: seed() }
    }

    /// For the live rig, whose runs are longer and so fewer: 4 copies, generations of 0.5 s, 10th percentile.
    pub fn live(seconds: f64) -> Self {
        MeasurementPlan { seconds, copies: 4, generation: 0.5, quantile: 0.1, seed: seed() }
    }
}

/// A seed from the clock; it is printed, so that a run can be repeated.
fn seed() -> u64 {
    os::now_ns() ^ u64::from(std::process::id()) << 32
}

/// Result of a measurement.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct MeasurementResult {
    /// Per generation, the time of each side in the order given, in nanoseconds per packet.
    pub generations: Vec<Vec<f64>>,
    /// Generations in which frames were lost.
    pub dropped: usize,
    /// Frames lost in these.
    pub lost: u64,
    /// Timed runs.
    pub runs: usize,
    /// Those that took 15 % longer than their copy's floor.
    pub disturbed: usize,
}

impl MeasurementResult {
    /// Median over generations of a side's time.
    pub fn median(&self, side: usize) -> f64 {
        crate::stats::quantile(&mut self.side_times(side), 0.5)
    }

    /// A side's time in each generation.
    pub fn side_times(&self, side: usize) -> Vec<f64> {
        self.generations.iter().map(|g| g[side]).collect()
    }

    /// Pairs of times of two sides.
    pub fn pairs(&self, a: usize, b: usize) -> Vec<(f64, f64)> {
        self.generations.iter().map(|g| (g[a], g[b])).collect()
    }

    /// The share of disturbed runs.
    pub fn disturbed_share(&self) -> f64 {
        self.disturbed as f64 / self.runs.max(1) as f64
    }
}

/// Times one copy after the other, in the right namespace and on the right CPU.
pub trait CopyTimer {
    /// Makes the trampoline call this copy.
    fn select(&mut self, slot: usize);
    /// Runs it on this many packets and gives nanoseconds per packet.
    ///
    /// # Errors
    /// If the kernel refuses the run.
    fn run(&mut self, packets: u32) -> Result<f64>;
    /// Packets in a timed run of the selected copy.
    ///
    /// # Errors
    /// If the copy is not reached.
    fn calibrate(&mut self) -> Result<u32>;
    /// Packets before each timed run, so that the copy's code and branches are warm.
    fn warm(&self) -> u32;
    /// Packets of the shortest run whose time means something.
    fn least(&self) -> u32;
}

/// Work inside a [`TimingHarness`].
pub type HarnessWork<'w> = &'w mut (dyn FnMut(&mut dyn CopyTimer) -> Result<()> + Send);

/// A trampoline in place, and how to be where it can be timed.
pub trait TimingHarness {
    /// Begins a generation: a trampoline newly loaded.
    ///
    /// # Errors
    /// If the kernel refuses an operation.
    fn renew(&mut self) -> Result<()>;
    /// The program array from which the trampoline calls.
    fn table(&self) -> &KernelMap;
    /// Does some work with the timer.
    ///
    /// # Errors
    /// Those of the work.
    fn time(&self, work: HarnessWork<'_>) -> Result<()>;
}

/// Measures the sides against one another.
///
/// # Errors
/// If a side cannot be loaded or called, or no generation is complete.
pub fn measure(
    harness: &mut dyn TimingHarness,
    sides: &mut [MeasuredSide<'_>],
    plan: &MeasurementPlan,
) -> Result<MeasurementResult> {
    measure_until(harness, sides, plan, 1, &mut |_| true)
}

/// Measures the sides against one another for the plan's length, and again that long until `decided` says
/// that the result tells enough, at most `most` times in all. All generations count, so that a disturbed
/// stretch is averaged with the others. With `most` looks at an interval, a false verdict is at most that
/// many times as likely.
///
/// # Errors
/// As for [`measure`].
pub fn measure_until(
    harness: &mut dyn TimingHarness,
    sides: &mut [MeasuredSide<'_>],
    plan: &MeasurementPlan,
    most: u32,
    decided: &mut dyn FnMut(&MeasurementResult) -> bool,
) -> Result<MeasurementResult> {
    if sides.len() * plan.copies > MAX_COPIES || plan.copies == 0 {
        let (n, copies) = (sides.len(), plan.copies);
        return Err(Error::Unusable(format!(
            "{copies} copies of {n} programs; {MAX_COPIES} in all are possible"
        )));
    }
    let mut rng = Rng::new(plan.seed);
    let mut out = MeasurementResult::default();
    for _ in 0..most.max(1) {
        let end = os::now_ns() + (plan.seconds * 1e9) as u64;
        while os::now_ns() < end && !os::interrupted() {
            generation(harness, sides, plan, (1, &|| true), &mut rng, &mut out)?;
        }
        if os::interrupted() || (!out.generations.is_empty() && decided(&out)) {
            break;
        }
    }
    complete(out)
}

/// Measures the sides against one another without loading anything anew: the windows, of a generation's
/// length each, take the place of generations. For cases in which loading takes long and an answer is wanted
/// soon. The place of a copy in memory has the same effect in all windows, so that only differences above
/// some nanosecond count. `goes_on` is asked before each.
///
/// # Errors
/// As for [`measure`]; if it is not to go on.
pub fn measure_windows(
    harness: &mut dyn TimingHarness,
    sides: &mut [MeasuredSide<'_>],
    plan: &MeasurementPlan,
    windows: usize,
    goes_on: &(dyn Fn() -> bool + Sync),
) -> Result<MeasurementResult> {
    let mut out = MeasurementResult::default();
    generation(harness, sides, plan, (windows, goes_on), &mut Rng::new(plan.seed), &mut out)?;
    complete(out)
}

fn complete(out: MeasurementResult) -> Result<MeasurementResult> {
    match (out.generations.is_empty(), out.lost) {
        (false, _) => Ok(out),
        (true, 0) => Err(Error::NoAnswer("interrupted before every program had run often enough".to_owned())),
        (true, lost) => Err(Error::NoAnswer(format!(
            "{lost} frames were lost on one CPU, where none may be, in each of {} generations: \
             is something else using that CPU?",
            out.dropped
        ))),
    }
}

/// Loads copies, times them for `windows` windows, and takes them away.
fn generation(
    harness: &mut dyn TimingHarness,
    sides: &mut [MeasuredSide<'_>],
    plan: &MeasurementPlan,
    (windows, goes_on): (usize, &(dyn Fn() -> bool + Sync)),
    rng: &mut Rng,
    out: &mut MeasurementResult,
) -> Result<()> {
    harness.renew()?;
    let n = sides.len();
    let held = load_copies(harness.table(), sides, plan.copies, rng)?;
    let length = (plan.generation * 1e9) as u64;
    let complete = (out.generations.len(), out.runs, out.disturbed);
    let timed = harness.time(&mut |timer| {
        let packets = lengths(timer, n, plan.copies, length)?;
        for _ in 0..windows {
            if !goes_on() {
                return Err(Error::Unusable("it was interrupted".to_owned()));
            }
            let mut times = vec![Vec::new(); n * plan.copies];
            window(timer, &packets, &mut times, length, goes_on, rng)?;
            account(&mut times, n, plan, out);
        }
        Ok(())
    });
    match timed {
        // With a frame lost, runs of different sides have not done the same work.
        Err(Error::Lost(lost)) => {
            out.generations.truncate(complete.0);
            (out.runs, out.disturbed) = (complete.1, complete.2);
            out.dropped += 1;
            out.lost += lost;
        }
        timed => timed?,
    }
    for slot in 0..held.len() as u32 {
        harness.table().delete(&slot.to_ne_bytes())?;
    }
    Ok(())
}

/// The packets of each side's runs: as many as the harness takes, or fewer on a machine that is too slow for
/// every copy to get its runs in a generation of this length.
fn lengths(timer: &mut dyn CopyTimer, sides: usize, copies: usize, length: u64) -> Result<Vec<u32>> {
    let (mut packets, mut all) = (Vec::with_capacity(sides), 0.0);
    for side in 0..sides {
        timer.select(side);
        let wanted = timer.calibrate()?;
        all += timer.run(wanted)? * f64::from(wanted.saturating_add(timer.warm()));
        packets.push(wanted);
    }
    Ok(shortened(packets, all * (copies * LEAST_RUNS) as f64 * DRAWN, length, timer.least()))
}

/// Runs shortened by the ratio of their total time to the length of a generation, but to no less than `least`
/// packets.
fn shortened(packets: Vec<u32>, taken: f64, length: u64, least: u32) -> Vec<u32> {
    let share = (length as f64 / taken).min(1.0);
    packets.into_iter().map(|n| ((f64::from(n) * share) as u32).max(least.min(n))).collect()
}

/// Times copies at random for so long, `packets` a run of each side; then those that have too few runs, until
/// none has.
fn window(
    timer: &mut dyn CopyTimer,
    packets: &[u32],
    times: &mut [Vec<f64>],
    length: u64,
    goes_on: &(dyn Fn() -> bool + Sync),
    rng: &mut Rng,
) -> Result<()> {
    let start = os::now_ns();
    let all: Vec<usize> = (0..times.len()).collect();
    loop {
        let late = os::now_ns() - start >= length;
        let short = || all.iter().copied().filter(|copy| times[*copy].len() < LEAST_RUNS).collect();
        let candidates = if late { short() } else { all.clone() };
        if candidates.is_empty() || (late && (os::interrupted() || !goes_on())) {
            return Ok(());
        }
        let copy = candidates[rng.below(candidates.len() as u64) as usize];
        timer.select(copy);
        if timer.warm() > 0 {
            timer.run(timer.warm())?;
        }
        times[copy].push(timer.run(packets[copy % packets.len()])?);
    }
}

/// Loads the copies in random order: where code lands then favours no side. Copy `c` of side `s` is in slot
/// `c * n + s`.
fn load_copies(
    table: &KernelMap,
    sides: &mut [MeasuredSide<'_>],
    copies: usize,
    rng: &mut Rng,
) -> Result<Vec<KernelProgram>> {
    let n = sides.len();
    let mut order: Vec<usize> = (0..n * copies).collect();
    for i in (1..order.len()).rev() {
        order.swap(i, rng.below(i as u64 + 1) as usize);
    }
    let mut held = Vec::with_capacity(order.len());
    for slot in order {
        let side = &mut sides[slot % n];
        let program = (side.load)()?;
        table.update_fd(&(slot as u32).to_ne_bytes(), program.as_fd()).map_err(|e| {
            Error::Unusable(format!("{} cannot be tail-called beside the others: {e}", side.name))
        })?;
        held.push(program);
    }
    Ok(held)
}

fn account(times: &mut [Vec<f64>], sides: usize, plan: &MeasurementPlan, out: &mut MeasurementResult) {
    let mut means = vec![0.0; sides];
    let least = times.iter().map(Vec::len).min().unwrap_or(0);
    for (copy, runs) in times.iter_mut().enumerate() {
        let floor = crate::stats::quantile(runs, plan.quantile);
        means[copy % sides] += floor / plan.copies as f64;
        out.runs += runs.len();
        out.disturbed += runs.iter().filter(|t| **t > DISTURBED * floor).count();
    }
    // Fewer only where it was interrupted.
    if least >= LEAST_RUNS {
        out.generations.push(means);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Takes so long for a packet, by the clock, and does nothing.
    struct Slow {
        ns: u64,
        longest: u32,
    }

    impl CopyTimer for Slow {
        fn select(&mut self, _slot: usize) {}
        fn run(&mut self, packets: u32) -> Result<f64> {
            self.longest = self.longest.max(packets);
            let end = os::now_ns() + self.ns * u64::from(packets);
            while os::now_ns() < end {
                std::hint::spin_loop();
            }
            Ok(self.ns as f64)
        }
        fn calibrate(&mut self) -> Result<u32> {
            Ok(1000)
        }
        fn warm(&self) -> u32 {
            0
        }
        fn least(&self) -> u32 {
            10
        }
    }

    #[test]
    fn runs_are_as_short_as_a_generation_needs_them_to_be_and_no_shorter() {
        assert_eq!(shortened(vec![1000, 500], 1e6, 2_000_000, 10), [1000, 500]);
        assert_eq!(shortened(vec![1000, 500], 1e6, 100_000, 10), [100, 50]);
        assert_eq!(shortened(vec![1000, 500, 5], 1e9, 1000, 10), [10, 10, 5]);
    }

    #[test]
    fn a_slow_machine_completes_its_generation() {
        let mut slow = Slow { ns: 2000, longest: 0 };
        // Runs of 1,000 packets would take 2 ms each, and 2 sides of 2 copies 120 ms in all.
        let packets = lengths(&mut slow, 2, 2, 1_000_000).unwrap();
        assert!(packets.iter().all(|n| *n < 1000), "{packets:?}");
        let mut times = vec![Vec::new(); 4];
        window(&mut slow, &packets, &mut times, 1000, &|| true, &mut Rng::new(1)).unwrap();
        assert!(times.iter().all(|runs| runs.len() >= LEAST_RUNS), "{times:?}");
    }

    #[test]
    fn who_is_not_to_go_on_does_not_wait_for_enough_runs() {
        let mut times = vec![Vec::new(); 4];
        let mut slow = Slow { ns: 1000, longest: 0 };
        window(&mut slow, &[100], &mut times, 0, &|| false, &mut Rng::new(1)).unwrap();
        assert!(times.iter().all(Vec::is_empty));
    }
}

//! Table 3, and what it lacks: the delay from a write of the control plane until running code has it, while
//! packets come: in a twin, in a stand-by variant, in newly made code. Also the delay until constants are in
//! code again after a stand-by variant has come.
//!
//! Writes come at random, some after a quiet period long enough for something to be made, and every so often
//! the running variant is taken back and made anew: so many of them come while variants are made, loaded and
//! judged. These are reported separately.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use millstream_kernel::{UpdateMode, testing};
use millstream_lab::workload::BuiltinWorkload;
use millstream_lab::{RigConfig, os};
use millstream_programs::table::MapEntry;
use millstream_programs::traffic::FlowLocality;
use millstream_rng::Rng;
use millstream_specialize::SessionReport;
use millstream_specialize::report::{CompileReason, VariantVerdict};
use serde::Serialize;

use super::{plane, planes, settling};
use crate::bars::{asked, keep};

/// Number of times to wait for a standby variant, and the time of each.
const PATIENCE: u32 = 3;
const STANDBY: Duration = Duration::from_secs(3);
/// Writes between two times at which the running variant is taken back.
const ROUND: u64 = 24;
/// Milliseconds from one write to the next, for most. One in four comes after a longer pause, in which work
/// that waits for a quiet moment begins.
const PAUSES: (u64, u64) = (60, 700);

/// Microseconds from the moment before a write, for each write with this answer.
#[derive(Debug, Default, Serialize)]
struct Responses {
    program: &'static str,
    size: usize,
    writes: u64,
    /// To the first packet through a stand-by variant: tables are twins in it, or looked up.
    stood_in_us: Vec<u64>,
    /// To the first packet through newly made code of a known shape.
    specialised_us: Vec<u64>,
    /// To the approval of code that the write does not concern.
    confirmed_us: Vec<u64>,
    /// To the moment from which twins answer again, and to the first packet that finds the new value.
    in_step_us: Vec<u64>,
    refreshed_us: Vec<u64>,
    /// Milliseconds that new shapes took: made, loaded, compared with the original and installed, or put
    /// aside.
    new_shapes_ms: Vec<u64>,
    standby_ms: Vec<u64>,
    /// Milliseconds from the arrival of a stand-by variant until constants were in code again.
    constants_ms: Vec<u64>,
    /// To the answer, for writes that came while a variant was made, loaded or judged: the write concerns no
    /// code, twins are in step, or the first packet takes the stand-by variant.
    while_making_us: Vec<u64>,
    /// Count, median, 99th percentile and worst of those lists.
    tails: BTreeMap<&'static str, [u64; 4]>,
}

/// State that is updated as reports come.
#[derive(Debug, Default)]
struct Watch {
    /// Duration of judging, by generation.
    judged: BTreeMap<u32, u64>,
    /// Time since which a stand-by variant is at work.
    stood_in: Option<Instant>,
    /// Periods in which something was made, by the monotonic clock; and the answers: the write, and
    /// microseconds.
    made: Vec<Range<u64>>,
    answered: Vec<(u64, u64)>,
}

impl Watch {
    /// Something has just been made, which took this many microseconds.
    fn was_made(&mut self, us: u64) {
        let now = os::monotonic_ns();
        self.made.push(now.saturating_sub(us * 1_000)..now);
    }

    /// Microseconds to the answers to writes that came while something was made.
    fn while_making(&self) -> Vec<u64> {
        let came = |write: &u64| self.made.iter().any(|made| made.contains(write));
        self.answered.iter().filter(|(write, _)| came(write)).map(|(_, us)| *us).collect()
    }
}

/// Count, median, 99th percentile and worst.
fn tail(times: &[u64]) -> [u64; 4] {
    let mut sorted = times.to_vec();
    sorted.sort_unstable();
    let at = |share: f64| sorted.get((sorted.len() as f64 * share) as usize).copied();
    let worst = sorted.last().copied().unwrap_or(0);
    [sorted.len() as u64, at(0.5).unwrap_or(worst), at(0.99).unwrap_or(worst), worst]
}

impl Responses {
    fn take(&mut self, report: &SessionReport, watch: &mut Watch) {
        match *report {
            // A refused variant is not installed.
            SessionReport::Judged {
                generation,
                ms,
                outcome:
                    VariantVerdict::Faster
                    | VariantVerdict::Same
                    | VariantVerdict::Trial
                    | VariantVerdict::Unjudged,
                ..
            } => drop(watch.judged.insert(generation, ms)),
            SessionReport::Judged { ms, .. } => watch.was_made(1_000 * ms),
            SessionReport::StandsBy { generation, compile_us, load_us, .. } => {
                let judged = watch.judged.remove(&generation).unwrap_or(0);
                self.standby_ms.push(judged + (compile_us + load_us) / 1_000);
                watch.was_made(1_000 * judged + compile_us + load_us);
            }
            SessionReport::Specialised { latency_us, write_ns, compile_us: 0, load_us: 0, .. } => {
                self.stood_in_us.extend(latency_us);
                watch.answered.extend(write_ns.zip(latency_us));
                watch.stood_in = Some(Instant::now());
            }
            SessionReport::Specialised {
                generation,
                reason,
                latency_us,
                compile_us,
                load_us,
                swap_us,
                ..
            } => {
                let judged = watch.judged.remove(&generation);
                watch.was_made(1_000 * judged.unwrap_or(0) + compile_us + load_us + swap_us);
                match judged {
                    None => self.specialised_us.extend(latency_us),
                    Some(ms) => self.new_shapes_ms.push(ms + (compile_us + load_us + swap_us) / 1_000),
                }
                if let Some(since) = watch.stood_in.take().filter(|_| reason == CompileReason::Quiet) {
                    self.constants_ms.push(since.elapsed().as_millis() as u64);
                }
            }
            SessionReport::Confirmed { latency_us, write_ns, .. } => {
                self.confirmed_us.push(latency_us);
                watch.answered.push((write_ns, latency_us));
            }
            SessionReport::Refreshed { in_step_us, latency_us, write_ns, .. } => {
                self.in_step_us.extend(in_step_us);
                watch.answered.extend(write_ns.zip(in_step_us));
                self.refreshed_us.extend(latency_us);
            }
            _ => {}
        }
    }

    fn sum_up(&mut self, watch: &Watch) {
        self.while_making_us = watch.while_making();
        self.tails = [
            ("stood_in_us", &self.stood_in_us),
            ("specialised_us", &self.specialised_us),
            ("confirmed_us", &self.confirmed_us),
            ("in_step_us", &self.in_step_us),
            ("refreshed_us", &self.refreshed_us),
            ("while_making_us", &self.while_making_us),
        ]
        .map(|(name, times)| (name, tail(times)))
        .into();
    }
}

#[test]
fn how_soon_writes_are_in_what_runs() {
    if !testing::require() {
        return;
    }
    let (planes, _) = planes();
    let mut all = Vec::new();
    for builtin in planes {
        all.push(responses(builtin, asked("MILLSTREAM_WRITES", 4)));
        keep("specialize-responses.json", &all);
    }
    let answered = |r: &Responses| {
        [&r.stood_in_us, &r.specialised_us, &r.confirmed_us, &r.in_step_us]
            .map(Vec::len)
            .iter()
            .sum::<usize>()
    };
    assert!(all.iter().any(|r| answered(r) > 0), "{all:?}");
}

fn responses(builtin: BuiltinWorkload, writes: u64) -> Responses {
    plane(builtin, FlowLocality::HIGH, RigConfig::default()).placed(
        |settings| settings.pace.interval = Duration::from_millis(500),
        |placed, live| {
            let (program, size) = (builtin.program.name, builtin.size);
            let mut found = Responses { program, size, writes, ..Responses::default() };
            let mut watch = Watch::default();
            // Until it has found its form, and something stands by if there is anything to stand by for.
            placed.send(Some(live), 2 * settling(), &mut |r| found.take(r, &mut watch), || ());
            for _ in 0..PATIENCE {
                if found.standby_ms.is_empty() {
                    placed.send(Some(live), STANDBY, &mut |r| found.take(r, &mut watch), || ());
                }
            }
            placed.send(Some(live), settling(), &mut |r| found.take(r, &mut watch), || ());
            let mut tables: BTreeMap<&str, Vec<&MapEntry>> = BTreeMap::new();
            for entry in &placed.load.entries {
                tables.entry(entry.map).or_default().push(entry);
            }
            // One entry with the value of another, and then its own again.
            let tables: Vec<_> = tables
                .into_iter()
                .filter(|(_, entries)| entries.iter().any(|e| e.value != entries[0].value))
                .map(|(map, entries)| (live.map(map).expect(map).try_clone().expect("a descriptor"), entries))
                .collect();
            let rng = Mutex::new(Rng::new(7));
            let write = |count: u64| {
                let mut rng = rng.lock().expect("one at a time");
                for n in 0..count / 2 {
                    let (map, entries) = &tables[n as usize % tables.len()];
                    let any = |rng: &mut Rng| entries[rng.below(entries.len() as u64) as usize];
                    let entry = any(&mut rng);
                    let other = std::iter::repeat_with(|| any(&mut rng)).find(|e| e.value != entry.value);
                    for value in [&other.expect("there are others").value, &entry.value] {
                        let pause = rng.below(PAUSES.0) + if rng.below(4) == 0 { PAUSES.1 } else { 0 };
                        std::thread::sleep(Duration::from_millis(pause));
                        map.update_all_cpus(&entry.key, value, UpdateMode::Any).expect("written");
                    }
                }
            };
            let mut left = writes;
            while left > 1 {
                let count = left.min(ROUND);
                left -= count;
                live.roll_back("to be made anew", &mut |r| found.take(r, &mut watch)).expect("taken back");
                placed.send(Some(live), settling(), &mut |r| found.take(r, &mut watch), || write(count));
            }
            found.sum_up(&watch);
            found
        },
    )
}

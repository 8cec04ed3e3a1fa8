//! Table 3, and what it lacks: how soon a write of the control plane is in what runs, while packets come: in a twin, in a variant that
//! stood by, in code that is made anew. And how soon constants are in code again after one that stood by has come.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use millstream_kernel::{UpdateMode, testing};
use millstream_lab::RigConfig;
use millstream_lab::workload::Builtin;
use millstream_programs::rng::Rng;
use millstream_programs::table::MapEntry;
use millstream_programs::traffic::Locality;
use millstream_specialize::Report;
use millstream_specialize::report::{Outcome, Reason};
use serde::Serialize;

use super::{SETTLE, plane, planes};
use crate::bars::{asked, keep};

/// How often it is waited until something stands by.
const PATIENCE: u32 = 3;
/// From one write to the next.
const PAUSE: Duration = Duration::from_millis(500);

/// Microseconds from the moment before a write, for each that had this answer.
#[derive(Debug, Default, Serialize)]
struct Responses {
    program: &'static str,
    size: usize,
    writes: u64,
    /// To the first packet through a variant that had stood by: tables are twins in it, or looked up.
    stood_in_us: Vec<u64>,
    /// To the first packet through code that was made anew, of a shape that was known.
    specialised_us: Vec<u64>,
    /// To the approval of code that the write does not concern.
    confirmed_us: Vec<u64>,
    /// To the moment from which twins answer again, and to the first packet that finds what was written.
    in_step_us: Vec<u64>,
    refreshed_us: Vec<u64>,
    /// Milliseconds that shapes took that were new: made, loaded, held against the original and installed, or put aside.
    new_shapes_ms: Vec<u64>,
    standby_ms: Vec<u64>,
    /// Milliseconds from when a variant that stood by came to when constants were in code again.
    constants_ms: Vec<u64>,
}

/// What goes on while reports come.
#[derive(Debug, Default)]
struct Watch {
    /// How long judging took, by generation.
    judged: BTreeMap<u32, u64>,
    /// Since when a variant is at work that stood by.
    stood_in: Option<Instant>,
}

impl Responses {
    fn take(&mut self, report: &Report, watch: &mut Watch) {
        match *report {
            // What was refused is not installed.
            Report::Judged {
                generation,
                ms,
                outcome: Outcome::Faster | Outcome::Same | Outcome::Unjudged,
                ..
            } => drop(watch.judged.insert(generation, ms)),
            Report::StandsBy { generation, compile_us, load_us, .. } => {
                let judged = watch.judged.remove(&generation).unwrap_or(0);
                self.standby_ms.push(judged + (compile_us + load_us) / 1_000);
            }
            Report::Specialised { latency_us, compile_us: 0, load_us: 0, .. } => {
                self.stood_in_us.extend(latency_us);
                watch.stood_in = Some(Instant::now());
            }
            Report::Specialised { generation, reason, latency_us, compile_us, load_us, swap_us, .. } => {
                match watch.judged.remove(&generation) {
                    None => self.specialised_us.extend(latency_us),
                    Some(ms) => self.new_shapes_ms.push(ms + (compile_us + load_us + swap_us) / 1_000),
                }
                if let Some(since) = watch.stood_in.take().filter(|_| reason == Reason::Quiet) {
                    self.constants_ms.push(since.elapsed().as_millis() as u64);
                }
            }
            Report::Confirmed { latency_us, .. } => self.confirmed_us.push(latency_us),
            Report::Refreshed { in_step_us, latency_us, .. } => {
                self.in_step_us.extend(in_step_us);
                self.refreshed_us.extend(latency_us);
            }
            _ => {}
        }
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

fn responses(builtin: Builtin, writes: u64) -> Responses {
    plane(builtin, Locality::HIGH, RigConfig::default()).placed(
        |settings| settings.interval = Duration::from_millis(500),
        |placed, live| {
            let (program, size) = (builtin.program.name, builtin.size);
            let mut found = Responses { program, size, writes, ..Responses::default() };
            let mut watch = Watch::default();
            // Until it has found its form, and something stands by if there is anything to stand by for.
            placed.send(Some(live), 2 * SETTLE, &mut |r| found.take(r, &mut watch), || ());
            for _ in 0..PATIENCE {
                if found.standby_ms.is_empty() {
                    placed.send(Some(live), SETTLE, &mut |r| found.take(r, &mut watch), || ());
                }
            }
            placed.send(Some(live), SETTLE, &mut |r| found.take(r, &mut watch), || ());
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
            let write = || {
                let mut rng = Rng::new(7);
                for n in 0..writes / 2 {
                    let (map, entries) = &tables[n as usize % tables.len()];
                    let any = |rng: &mut Rng| entries[rng.below(entries.len() as u64) as usize];
                    let entry = any(&mut rng);
                    let other = std::iter::repeat_with(|| any(&mut rng)).find(|e| e.value != entry.value);
                    for value in [&other.expect("there are others").value, &entry.value] {
                        map.update_all_cpus(&entry.key, value, UpdateMode::Any).expect("written");
                        std::thread::sleep(PAUSE);
                    }
                }
            };
            placed.send(Some(live), SETTLE, &mut |r| found.take(r, &mut watch), write);
            found
        },
    )
}

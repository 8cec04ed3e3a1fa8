//! An off-test: specialized code, the originals, specialized code again, each for the same time. Load that drifts by
//! the same amount in each part cancels out.

use std::time::Duration;

use crate::resource::{LoadReport, NodeMode, OffTestReport};

/// Counters of a node at a moment.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct LoadSample {
    /// Packets of all programs.
    pub packets: u64,
    /// Time of all processors in software interrupts, in seconds.
    pub softirq_seconds: f64,
}

/// A running off-test.
#[derive(Clone, PartialEq, Debug)]
pub struct OffTest {
    generation: i64,
    length: Duration,
    /// Parts that have ended.
    parts: Vec<LoadReport>,
    /// Begin of the current part; none until the code of this part is attached.
    begin: Option<(Duration, LoadSample)>,
}

impl OffTest {
    /// An off-test for this generation of a node, with parts of this length.
    pub fn new(generation: i64, length: Duration) -> OffTest {
        OffTest { generation, length, parts: Vec::new(), begin: None }
    }

    /// Generation of the node that asked for it.
    pub fn generation(&self) -> i64 {
        self.generation
    }

    /// Code that is to be attached now.
    pub fn mode(&self) -> NodeMode {
        if self.parts.len() == 1 { NodeMode::Originals } else { NodeMode::Specialised }
    }

    /// Takes the counters at a moment at which the code of [`OffTest::mode`] is attached; returns the result at the
    /// end.
    pub fn step(&mut self, now: Duration, sample: LoadSample) -> Option<OffTestReport> {
        let (since, first) = *self.begin.get_or_insert((now, sample));
        let time = now.saturating_sub(since);
        if time < self.length {
            return None;
        }
        self.parts.push(LoadReport {
            seconds: time.as_secs_f64(),
            packets: sample.packets.saturating_sub(first.packets),
            softirq_seconds: (sample.softirq_seconds - first.softirq_seconds).max(0.0),
        });
        self.begin = None;
        let [before, off, after] = self.parts.as_slice() else { return None };
        let specialised = LoadReport {
            seconds: before.seconds + after.seconds,
            packets: before.packets + after.packets,
            softirq_seconds: before.softirq_seconds + after.softirq_seconds,
        };
        let times = specialised.packet_ns().zip(off.packet_ns()).filter(|(_, originals)| *originals > 0.0);
        let worth = times.map(|(specialised, originals)| 1.0 - specialised / originals);
        Some(OffTestReport { generation: self.generation, specialised, originals: off.clone(), worth })
    }
}

/// Time of all processors in software interrupts, in seconds, of the text of `/proc/stat` (`proc(5)`).
pub fn softirq_seconds(stat: &str) -> Option<f64> {
    let line = stat.lines().find(|line| line.starts_with("cpu "))?;
    let ticks: u64 = line.split_whitespace().nth(7)?.parse().ok()?;
    // A tick is 10 ms for user space, whatever the kernel's own.
    Some(ticks as f64 / 100.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_worth_is_the_time_per_packet_that_is_saved() {
        let mut test = OffTest::new(4, Duration::from_secs(10));
        // 100 ns per packet specialised, 200 ns with the originals; 1 s between two parts belongs to none.
        let mut sample = LoadSample { packets: 1000, softirq_seconds: 50.0 };
        let mut result = None;
        for (part, ns) in [100.0, 200.0, 100.0].into_iter().enumerate() {
            assert_eq!(test.mode() == NodeMode::Originals, part == 1);
            let start = Duration::from_secs(100 + 11 * part as u64);
            assert_eq!(test.step(start, sample), None);
            assert_eq!(test.step(start + Duration::from_secs(9), sample), None);
            sample.packets += 1_000_000;
            sample.softirq_seconds += 1_000_000.0 * ns / 1e9;
            result = test.step(start + Duration::from_secs(10), sample);
            assert_eq!(result.is_some(), part == 2);
        }
        let result = result.unwrap();
        assert_eq!(
            (result.generation, result.originals.packets, result.specialised.packets),
            (4, 1_000_000, 2_000_000)
        );
        assert!((result.worth.unwrap() - 0.5).abs() < 1e-6, "{result:?}");
    }

    #[test]
    fn without_packets_there_is_no_worth() {
        let mut test = OffTest::new(1, Duration::from_secs(1));
        let mut result = None;
        for second in 0..6 {
            result = test.step(Duration::from_secs(second), LoadSample::default());
        }
        assert_eq!(result.unwrap().worth, None);
    }

    #[test]
    fn time_in_software_interrupts() {
        let stat = "cpu  10 0 20 30 0 0 1234 0 0 0\ncpu0 10 0 20 30 0 0 1234 0 0 0\n";
        assert_eq!(softirq_seconds(stat), Some(12.34));
        assert_eq!(softirq_seconds("intr 1\n"), None);
        assert!(softirq_seconds(&std::fs::read_to_string("/proc/stat").unwrap()).is_some());
    }
}

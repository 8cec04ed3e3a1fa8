//! Nanoseconds a packet of an active program, by the kernel's own clock around it.
//!
//! The kernel measures programs only while somebody asks it to, at some 45 ns per packet, so it is asked for
//! milliseconds only, and by a descriptor, which ends with the process. Its result includes the reading of
//! its clock; the result for an empty program is deducted.

use std::time::{Duration, Instant};

use millstream_kernel::{KernelProgram, ProgramSpec, ProgramType, TestRun, run_time_statistics};

/// Fewer packets give no result.
const ENOUGH: u64 = 64;
/// The shortest window.
const WINDOW: Duration = Duration::from_millis(1);
/// Multiple of the usual time for which rare packets are waited for, at most.
const LONGEST: u32 = 20;

/// Measures programs.
#[derive(Clone, Copy, Debug, Default)]
pub struct ProgramTimer {
    /// Time reported for an empty program, in nanoseconds.
    overhead: f64,
}

impl ProgramTimer {
    /// Measures the cost of the clock itself. Zero if it cannot be measured.
    pub fn calibrate() -> ProgramTimer {
        let measure = || {
            let spec = ProgramSpec {
                name: "ms_empty",
                program_type: ProgramType::XDP,
                insns: &[0x0000_0002_0000_00b7, 0x95],
                license: "GPL",
                ..ProgramSpec::default()
            };
            let program = KernelProgram::load(&spec).ok()?;
            let _on = run_time_statistics().ok()?;
            let run = TestRun { repeat: 1000, data_room: 64, ..TestRun::packet(&[0; 64]) };
            let one = || {
                let before = program.info().ok()?;
                program.test_run(&run).ok()?;
                let after = program.info().ok()?;
                Some(
                    (after.run_time_ns - before.run_time_ns) as f64
                        / (after.run_count - before.run_count) as f64,
                )
            };
            (0..5).filter_map(|_| one()).reduce(f64::min)
        };
        ProgramTimer { overhead: measure().unwrap_or(0.0) }
    }

    /// Measures the nanoseconds per packet of an attached program, without the clock: the least of some short
    /// windows within `time`, or of fewer and longer ones if packets are rare. `None` if hardly any packet
    /// came, or `wait`, which lets time pass, says that it is not to go on.
    ///
    /// # Errors
    /// Errors of `wait`.
    pub fn measure<E>(
        &self,
        program: &KernelProgram,
        time: Duration,
        mut wait: impl FnMut(Duration) -> Result<bool, E>,
    ) -> Result<Option<f64>, E> {
        let Ok(_on) = run_time_statistics() else { return Ok(None) };
        let start = Instant::now();
        let mut best: Option<f64> = None;
        let Ok(mut before) = program.info() else { return Ok(None) };
        loop {
            if !wait(WINDOW.min(time))? {
                return Ok(None);
            }
            let Ok(after) = program.info() else { return Ok(None) };
            let packets = after.run_count - before.run_count;
            if packets >= ENOUGH {
                let ns = (after.run_time_ns - before.run_time_ns) as f64 / packets as f64;
                best = Some(best.map_or(ns, |b| b.min(ns)));
                before = after;
            }
            let elapsed = start.elapsed();
            if elapsed >= time * LONGEST || (elapsed >= time && best.is_some()) {
                return Ok(best.map(|ns| (ns - self.overhead).max(0.0)));
            }
        }
    }
}

//! Curves of a machine, measured once: service rates of memory and of I/O, as in the model of APSys'17
//! (section 3.5), and their text form.

use std::collections::BTreeSet;
use std::fmt;
use std::str::FromStr;

use serde::Serialize;

/// Kind of I/O.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum IoKind {
    /// Few packets from memory, which are in the caches; sent packets are counted.
    Memory,
    /// More packets from memory than caches hold.
    Trace,
    /// Packets from a capture file, and into another one.
    Capture,
}

impl IoKind {
    /// All kinds.
    pub const ALL: [IoKind; 3] = [IoKind::Memory, IoKind::Trace, IoKind::Capture];

    /// Its name.
    pub const fn name(self) -> &'static str {
        match self {
            IoKind::Memory => "memory",
            IoKind::Trace => "trace",
            IoKind::Capture => "capture",
        }
    }
}

/// Time of a cache line from memory.
#[derive(Clone, Copy, PartialEq, Debug, Serialize)]
pub struct MemoryCurvePoint {
    /// Bytes of the table.
    pub bytes: u64,
    /// Independent lines that are asked for together.
    pub sub_batch: u32,
    /// Nanoseconds per line.
    pub ns: f64,
}

/// Time of a packet's way in and out, without a program.
#[derive(Clone, Copy, PartialEq, Debug, Serialize)]
pub struct IoCurvePoint {
    /// Kind of I/O.
    pub kind: IoKind,
    /// Bytes of a packet.
    pub bytes: u32,
    /// Packets at once.
    pub batch: u32,
    /// Nanoseconds per packet.
    pub ns: f64,
}

/// Curves of a machine.
#[derive(Clone, PartialEq, Debug, Default, Serialize)]
pub struct MachineCurves {
    /// The machine, in one line, as in plans.
    pub machine: String,
    /// Nanoseconds of an addition that waits for the one before: the processor's cycle.
    pub cycle_ns: f64,
    /// f_mem(m, b), in time per line; a whole grid.
    pub memory: Vec<MemoryCurvePoint>,
    /// f_io(d, B), in time per packet; a whole grid for each kind.
    pub io: Vec<IoCurvePoint>,
}

/// Reason why a text does not hold curves.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("line {line}: {message}")]
pub struct CurveError {
    /// Number of the line, from 1.
    pub line: usize,
    /// Description of the error.
    pub message: String,
}

/// First line.
const TITLE: &str = "millstream curves 2";
/// Last line, without which the text was cut.
const END: &str = "end";

impl MachineCurves {
    /// f_mem(m, b): nanoseconds per line from a table of this size, with so many lines in flight.
    pub fn memory_ns(&self, bytes: u64, sub_batch: u32) -> f64 {
        let points = self.memory.iter().map(|p| (p.bytes as f64, f64::from(p.sub_batch), p.ns));
        interpolate(&points.collect::<Vec<_>>(), bytes as f64, f64::from(sub_batch))
    }

    /// f_io(d, B): nanoseconds per packet of so many bytes, so many at once.
    pub fn io_ns(&self, kind: IoKind, bytes: u32, batch: u32) -> f64 {
        let of_kind = self.io.iter().filter(|p| p.kind == kind);
        let points = of_kind.map(|p| (f64::from(p.bytes), f64::from(p.batch), p.ns));
        interpolate(&points.collect::<Vec<_>>(), f64::from(bytes), f64::from(batch))
    }

    /// Nanoseconds per line from the innermost cache, with so many lines in flight; they count as processing.
    pub fn nearest_ns(&self, sub_batch: u32) -> f64 {
        let smallest = self.memory.iter().map(|p| p.bytes).min().unwrap_or(0);
        self.memory_ns(smallest, sub_batch)
    }

    /// Nanoseconds per line from a table of this size beyond those of the innermost cache.
    pub fn far_ns(&self, bytes: u64, sub_batch: u32) -> f64 {
        (self.memory_ns(bytes, sub_batch) - self.nearest_ns(sub_batch)).max(0.0)
    }
}

/// Interpolates linearly in the logarithms of both coordinates of a grid, at its edge beyond it; 0 of nothing.
fn interpolate(points: &[(f64, f64, f64)], x: f64, y: f64) -> f64 {
    let rows: BTreeSet<u64> = points.iter().map(|p| p.1 as u64).collect();
    let along_x = |row: u64| {
        let mut line: Vec<(f64, f64)> =
            points.iter().filter(|p| p.1 as u64 == row).map(|p| (p.0, p.2)).collect();
        line.sort_by(|a, b| a.0.total_cmp(&b.0));
        along(&line, x)
    };
    let column: Vec<(f64, f64)> = rows.into_iter().map(|row| (row as f64, along_x(row))).collect();
    along(&column, y)
}

fn along(line: &[(f64, f64)], x: f64) -> f64 {
    let (Some(first), Some(last)) = (line.first(), line.last()) else { return 0.0 };
    if x <= first.0 {
        return first.1;
    }
    let between = line.windows(2).find_map(|pair| match pair {
        [(x0, y0), (x1, y1)] if x <= *x1 => {
            let share = (x.ln() - x0.max(1e-9).ln()) / (x1.ln() - x0.max(1e-9).ln());
            Some(y0 + (y1 - y0) * share)
        }
        _ => None,
    });
    between.unwrap_or(last.1)
}

impl fmt::Display for MachineCurves {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{TITLE}")?;
        writeln!(f, "machine: {}", self.machine.replace(char::is_control, " ").trim())?;
        writeln!(f, "cycle: {}", self.cycle_ns)?;
        writeln!(f, "# memory: bytes of a table, lines in flight, ns per line")?;
        for MemoryCurvePoint { bytes, sub_batch, ns } in &self.memory {
            writeln!(f, "memory: {bytes} {sub_batch} {ns}")?;
        }
        writeln!(f, "# io: kind, bytes of a packet, packets at once, ns per packet")?;
        for IoCurvePoint { kind, bytes, batch, ns } in &self.io {
            writeln!(f, "io: {} {bytes} {batch} {ns}", kind.name())?;
        }
        writeln!(f, "{END}")
    }
}

impl FromStr for MachineCurves {
    type Err = CurveError;

    fn from_str(text: &str) -> Result<MachineCurves, CurveError> {
        let mut curves = MachineCurves::default();
        let mut last = 1;
        for (line, number) in text.lines().zip(1..) {
            last = number;
            let at = |message: String| CurveError { line: number, message };
            match line.trim() {
                TITLE if number == 1 => {}
                _ if number == 1 => return Err(at(format!("it does not begin with `{TITLE}`"))),
                END => return curves.complete().ok_or_else(|| at("there are points missing".to_owned())),
                "" => {}
                line if line.starts_with('#') => {}
                line => curves.read(line).ok_or_else(|| at(format!("`{line}` is no line of curves")))?,
            }
        }
        Err(CurveError { line: last, message: format!("it ends without `{END}`: it was cut") })
    }
}

impl MachineCurves {
    fn read(&mut self, line: &str) -> Option<()> {
        let (key, value) = line.split_once(':')?;
        let words: Vec<&str> = value.split_whitespace().collect();
        let time = |text: &str| text.parse::<f64>().ok().filter(|ns| ns.is_finite() && *ns > 0.0);
        match (key, &words[..]) {
            ("machine", _) => value.trim().clone_into(&mut self.machine),
            ("cycle", [ns]) => self.cycle_ns = time(ns)?,
            ("memory", [bytes, sub_batch, ns]) => {
                let (bytes, sub_batch) = (bytes.parse().ok()?, sub_batch.parse().ok()?);
                self.memory.push(MemoryCurvePoint { bytes, sub_batch, ns: time(ns)? });
            }
            ("io", [kind, bytes, batch, ns]) => {
                let kind = IoKind::ALL.into_iter().find(|known| known.name() == *kind)?;
                let (bytes, batch) = (bytes.parse().ok()?, batch.parse().ok()?);
                self.io.push(IoCurvePoint { kind, bytes, batch, ns: time(ns)? });
            }
            _ => return None,
        }
        Some(())
    }

    /// The curves, if each of them is a whole grid.
    fn complete(self) -> Option<MachineCurves> {
        let memory: Vec<(u64, u64)> = self.memory.iter().map(|p| (p.bytes, u64::from(p.sub_batch))).collect();
        let io = IoKind::ALL.map(|kind| {
            let of_kind = self.io.iter().filter(|p| p.kind == kind);
            of_kind.map(|p| (u64::from(p.bytes), u64::from(p.batch))).collect::<Vec<_>>()
        });
        let whole = is_grid(&memory) && io.iter().all(|points| is_grid(points));
        (whole && self.cycle_ns > 0.0).then_some(self)
    }
}

/// True if there is a point for each pair of coordinates, once.
fn is_grid(points: &[(u64, u64)]) -> bool {
    let all: BTreeSet<_> = points.iter().collect();
    let (xs, ys): (BTreeSet<u64>, BTreeSet<u64>) = points.iter().copied().unzip();
    !points.is_empty() && all.len() == points.len() && all.len() == xs.len() * ys.len()
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// Curves of a machine with caches of 32 KiB and 1 MiB, that fetches up to 8 lines at once.
    pub(crate) fn sample() -> MachineCurves {
        let level = |bytes: u64| match bytes {
            ..=32_768 => 1.5,
            32_769..=1_048_576 => 6.0,
            _ => 90.0,
        };
        let mut curves =
            MachineCurves { machine: "a machine".to_owned(), cycle_ns: 0.4, ..MachineCurves::default() };
        for bytes in [1 << 14, 1 << 15, 1 << 20, 1 << 24, 1 << 28] {
            for sub_batch in [1, 2, 4, 8, 32] {
                let ns = level(bytes) / f64::from(sub_batch.min(8));
                curves.memory.push(MemoryCurvePoint { bytes, sub_batch, ns: ns.max(0.8) });
            }
        }
        for kind in IoKind::ALL {
            for bytes in [64, 1472] {
                for batch in [1, 8, 64, 256] {
                    let ns = 10.0 + f64::from(bytes) / 64.0 + 40.0 / f64::from(batch);
                    curves.io.push(IoCurvePoint { kind, bytes, batch, ns });
                }
            }
        }
        curves
    }

    #[test]
    fn curves_are_read_as_they_were_written() {
        assert_eq!(sample().to_string().parse(), Ok(sample()));
    }

    #[test]
    fn damaged_curves_are_errors_with_lines() {
        let text = sample().to_string();
        for (from, to, line, said) in [
            ("millstream curves 2", "curves", 1, "does not begin"),
            ("cycle: 0.4", "cycle: -1", 3, "no line of curves"),
            ("memory: 16384 1 1.5\n", "", 54, "points missing"),
            ("end\n", "", 54, "it was cut"),
        ] {
            let error = text.replacen(from, to, 1).parse::<MachineCurves>().unwrap_err();
            assert!(error.line == line && error.message.contains(said), "{from}: {error}");
        }
    }

    #[test]
    fn points_between_are_interpolated_and_points_beyond_are_at_the_edge() {
        let curves = sample();
        assert_eq!(curves.memory_ns(1 << 15, 1), 1.5);
        assert_eq!((curves.memory_ns(1, 1), curves.memory_ns(1 << 40, 1)), (1.5, 90.0));
        let between = curves.memory_ns(1 << 22, 1);
        assert!(between > 6.0 && between < 90.0, "{between}");
        let io = curves.io_ns(IoKind::Memory, 64, 16);
        assert!(io < curves.io_ns(IoKind::Memory, 64, 8) && io > curves.io_ns(IoKind::Memory, 64, 64));
    }
}

//! `millstream lab calibrate --curves`: the curves of the performance model, f_mem(m, b) and f_io(d, B).

use std::fs::File;
use std::hint::black_box;
use std::io;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use miette::{IntoDiagnostic, Result, WrapErr, miette};
use millstream_console::curves::curves_file;
use millstream_lab::{environment, os};
use millstream_native::Schedule;
use millstream_native_io::pcap::{PcapHeader, PcapWriter};
use millstream_native_runtime::region::{AddressAllocator, MemoryRegion};
use millstream_tune::{IoCurvePoint, IoKind, MachineCurves, MemoryCurvePoint};

use super::demand;
use crate::bench_user::subject::{
    BenchmarkRunner, BenchmarkTarget, CompileOutcome, CompileRequest, LINE, SubjectArgs,
};
use crate::bench_user::traffic::TrafficPattern;
use crate::capture::CaptureFile;
use crate::click::random_frames;
use crate::exit::Exit;
use crate::native::CodegenArgs;
use crate::progress::Progress;
use crate::workload_args::{interrupted, is_length};

/// Sizes of tables, in bytes, powers of two: from the innermost cache to memory.
const SIZES: [u64; 8] = [1 << 14, 1 << 16, 1 << 18, 1 << 20, 1 << 22, 1 << 24, 1 << 26, 1 << 28];
/// Lines in flight.
const SUB_BATCHES: [u32; 7] = [1, 2, 4, 8, 16, 32, 64];
/// Bytes of packets, and packets at once.
const PACKETS: [u32; 3] = [64, 512, 1472];
const BATCHES: [u32; 6] = [1, 4, 16, 64, 128, 256];
/// Runs of one point; the shortest counts.
const RUNS: u32 = 5;
/// Bytes of packets of which caches hold few.
const TRACE: u32 = 64 << 20;
/// Packets of a capture file.
const CAPTURED: u32 = 20_000;

/// Measurement of the performance model's curves.
#[derive(Clone, Copy, Debug)]
pub struct CurveRequest<'r> {
    /// Duration in seconds.
    pub seconds: f64,
    /// CPU to measure on.
    pub cpu: Option<usize>,
    /// Output file.
    pub output: Option<&'r Path>,
}

/// Measures the curves for about so many seconds, and writes them.
pub fn run(request: CurveRequest<'_>) -> Result<ExitCode> {
    let CurveRequest { seconds, cpu, output } = request;
    if !is_length(seconds) {
        return Err(miette!("seconds must be more than zero, and no more than a day"));
    }
    os::catch_interrupts();
    let path = output.map(Path::to_owned).or_else(curves_file).ok_or_else(|| {
        miette!("there is no cache (neither XDG_CACHE_HOME nor HOME is set): name a file with --output")
    })?;
    if let Some(cpu) = cpu.or_else(|| os::allowed_cpus().first().copied()) {
        os::pin_to_cpu(cpu).into_diagnostic().wrap_err_with(|| format!("processor {cpu}"))?;
    }
    let measured = {
        let _bar = Progress::timed("measuring", Duration::from_secs_f64(seconds));
        measure(seconds)?
    };
    let curves = match measured {
        Ok(curves) => curves,
        Err(Exit::Unknown) => return Ok(interrupted().into()),
        Err(exit) => return Ok(exit.into()),
    };
    if let Some(folder) = path.parent() {
        std::fs::create_dir_all(folder).into_diagnostic().wrap_err_with(|| folder.display().to_string())?;
    }
    let at = || path.display().to_string();
    std::fs::write(&path, curves.to_string()).into_diagnostic().wrap_err_with(at)?;
    outln!(
        "{}: {} points of memory, {} of I/O; a line takes {:.1} ns from {} KiB, {:.1} ns from {} MiB",
        path.display(),
        curves.memory.len(),
        curves.io.len(),
        curves.nearest_ns(1),
        SIZES[0] >> 10,
        curves.memory_ns(SIZES[SIZES.len() - 1], 1),
        SIZES[SIZES.len() - 1] >> 20
    );
    Ok(Exit::Done.into())
}

/// The curves, or the exit code if they cannot be measured.
fn measure(seconds: f64) -> Result<Result<MachineCurves, Exit>> {
    let mut curves = MachineCurves {
        machine: environment::machine_line(),
        cycle_ns: cycle_ns(),
        ..MachineCurves::default()
    };
    let points = (SIZES.len() * SUB_BATCHES.len()) as f64;
    let each = Duration::from_secs_f64(seconds * 0.5 / points / f64::from(RUNS));
    for bytes in SIZES {
        let table = table(bytes as usize).into_diagnostic()?;
        for sub_batch in SUB_BATCHES {
            if os::interrupted() {
                return Ok(Err(Exit::Unknown));
            }
            let runs = (0..RUNS).map(|_| memory_ns(table.bytes(), sub_batch, each));
            curves.memory.push(MemoryCurvePoint { bytes, sub_batch, ns: runs.fold(f64::INFINITY, f64::min) });
        }
    }
    let folder = tempfile::tempdir().into_diagnostic()?;
    let traffics =
        PACKETS.map(|bytes| (bytes, random_packets(bytes, 1024), random_packets(bytes, TRACE / bytes)));
    for batch in BATCHES {
        let Some(mut bare) = BareProgram::compile(folder.path(), batch)? else {
            return Ok(Err(Exit::NotPermitted));
        };
        for (bytes, few, many) in &traffics {
            if os::interrupted() {
                return Ok(Err(Exit::Unknown));
            }
            for kind in IoKind::ALL {
                let ns = match kind {
                    IoKind::Memory => demand::time(&mut bare.runner, few, batch)?,
                    IoKind::Trace => demand::time(&mut bare.runner, many, batch)?,
                    IoKind::Capture => bare.capture_ns(few)?,
                };
                curves.io.push(IoCurvePoint { kind, bytes: *bytes, batch, ns });
            }
        }
    }
    Ok(Ok(curves))
}

/// So many packets of so many bytes.
fn random_packets(bytes: u32, count: u32) -> TrafficPattern {
    let frames = random_frames(1, count as usize);
    let order = (0..count).collect();
    TrafficPattern { frames, order, description: String::new() }.lengthened(bytes as usize)
}

/// Nanoseconds of an addition that waits for the one before.
fn cycle_ns() -> f64 {
    const STEPS: u32 = 1 << 20;
    let run = || {
        let (begun, mut value) = (Instant::now(), black_box(1u64));
        for step in 0..u64::from(STEPS) {
            // The addition and the rotation cannot become one.
            value = value.wrapping_add(step).rotate_left(7);
        }
        black_box(value);
        begun.elapsed().as_nanos() as f64 / f64::from(2 * STEPS)
    };
    (0..RUNS).map(|_| run()).fold(f64::INFINITY, f64::min).max(0.01)
}

/// A table in memory like that of programs: in large pages, and written. Before they are written, all pages are one
/// page of zeros, which stays in a cache.
fn table(bytes: usize) -> io::Result<MemoryRegion> {
    let mut table = MemoryRegion::new(bytes, &mut AddressAllocator::Anywhere)?;
    table.prefer_large_pages(bytes);
    table.bytes_mut().iter_mut().step_by(LINE as usize).for_each(|byte| *byte = black_box(0));
    Ok(table)
}

/// Nanoseconds per line: groups of so many independent lines at random places, each group after the one
/// before. The table's length is a power of two: a division would take longer than a near line.
fn memory_ns(table: &[u8], sub_batch: u32, length: Duration) -> f64 {
    const ROUND: u32 = 256;
    let mask = (table.len() as u64 / LINE).max(1) - 1;
    let (begun, mut groups, mut state) = (Instant::now(), 0u64, 1u64);
    while groups == 0 || begun.elapsed() < length {
        for _ in 0..ROUND {
            let mut sum = 0u64;
            for _ in 0..sub_batch {
                state = state.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
                let place = (((state >> 33) & mask) * LINE) as usize;
                sum = sum.wrapping_add(u64::from(table.get(place).copied().unwrap_or(0)));
            }
            // The table holds zeros, which the processor does not know: the next group waits.
            state = state.wrapping_add(sum);
        }
        groups += u64::from(ROUND);
    }
    black_box(state);
    let ns = begun.elapsed().as_nanos() as f64 / (groups * u64::from(sub_batch)) as f64;
    ns.max(0.01)
}

/// A configuration that does nothing but forward, compiled for a batch.
struct BareProgram {
    runner: Box<BenchmarkRunner>,
    batch: u32,
    folder: PathBuf,
}

impl BareProgram {
    /// Compiles it; `None`, with a message to the user, without LLVM.
    fn compile(folder: &Path, batch: u32) -> Result<Option<BareProgram>> {
        let conf = folder.join("bare.click");
        std::fs::write(&conf, "FromDevice(in) -> ToDPDKDevice(out);\n").into_diagnostic()?;
        let schedule = Schedule { batch, ..Schedule::default() };
        let tuning = CodegenArgs::of_schedule(schedule);
        let subject = SubjectArgs::of_configuration(&conf);
        let target = BenchmarkTarget::read(&subject, &tuning, os::monotonic_ns())?;
        Ok(match target.runner(&subject, CompileRequest::of(&tuning))? {
            CompileOutcome::Ready(runner) => Some(BareProgram { runner, batch, folder: folder.to_owned() }),
            CompileOutcome::NoLlvm(why) => {
                errln!("{why}");
                None
            }
        })
    }

    /// Nanoseconds per packet from one capture file into another.
    fn capture_ns(&mut self, traffic: &TrafficPattern) -> Result<f64> {
        let (from, to) = (self.folder.join("in.pcap"), self.folder.join("out.pcap"));
        let file = io::BufWriter::new(File::create(&from).into_diagnostic()?);
        let mut writer = PcapWriter::new(file, PcapHeader::default()).into_diagnostic()?;
        for at in 0..CAPTURED {
            let frame = &traffic.frames[at as usize % traffic.frames.len()];
            writer.write(frame, 0, 0).into_diagnostic()?;
        }
        writer.finish().into_diagnostic()?;
        let capture = CaptureFile::of_ethernet(&from.display().to_string())?;
        let mut least = f64::INFINITY;
        for _ in 0..RUNS {
            let out = File::create(&to).into_diagnostic()?;
            let (took, packets) = self.runner.run_capture(&capture, out, self.batch as usize)?;
            least = least.min(took.as_nanos() as f64 / packets.max(1) as f64);
        }
        Ok(least.max(0.01))
    }
}

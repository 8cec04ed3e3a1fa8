//! `millstream sample`: a trace of what a running program receives. docs/tuning.md.

pub(crate) mod answer;
mod source;

use std::fs::File;
use std::hash::{BuildHasher as _, RandomState};
use std::io::BufWriter;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use miette::{IntoDiagnostic, Result, WrapErr};
use millstream_console::duration_args::{milliseconds, seconds};
use millstream_lab::os;
use millstream_native_io::pcap::{PcapHeader, PcapWriter};
use millstream_traces::{
    AnonymizerKey, PacketAnonymizer, SampledWindow, TraceBuilder, TraceEstimate, TrafficShape,
};
use serde::Serialize;

use crate::exit::Exit;

/// Nanoseconds between the packets of a trace.
const BETWEEN: u64 = 1_000;
/// Usual values of the flags.
const WINDOWS: u32 = 128;
const INTERVAL: u64 = 50;
const PATIENCE: u64 = 10;
const PACKETS: u32 = 262_144;
const SEED: u64 = 1;

/// Flags of `millstream sample`.
#[derive(Debug, clap::Args)]
pub struct SampleArgs {
    /// Socket of the program: that of `millstream native --control`, or a control socket of `millstream click`
    #[arg(long, value_name = "PATH")]
    socket: PathBuf,
    /// Write the trace to this file, in pcap format
    #[arg(short, long, value_name = "FILE")]
    output: PathBuf,
    /// Windows of consecutive packets to sample, of up to 256 packets each
    #[arg(long, value_name = "N", default_value_t = WINDOWS, value_parser = clap::value_parser!(u32).range(1..=65_536))]
    windows: u32,
    /// Milliseconds between two windows
    #[arg(long, value_name = "MS", default_value_t = INTERVAL, value_parser = milliseconds())]
    interval: u64,
    /// Seconds after which it gives up if no packet comes
    #[arg(long, value_name = "SECONDS", default_value_t = PATIENCE, value_parser = seconds())]
    patience: u64,
    /// Packets of the trace
    #[arg(
        long,
        value_name = "N",
        default_value_t = PACKETS,
        value_parser = clap::value_parser!(u32).range(1..=16_777_216)
    )]
    packets: u32,
    /// Exchange addresses, keeping common prefixes, and clear what packets carry, so that the trace can be given to
    /// others. Tables with real addresses do not fit such a trace
    #[arg(long)]
    anonymize: bool,
    /// Seed of the trace's random numbers
    #[arg(long, value_name = "N", default_value_t = SEED)]
    seed: u64,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Report of the command.
#[derive(Debug, Serialize)]
struct SampleReport {
    schema: u32,
    /// Facts of the traffic that the samples tell.
    estimate: TraceEstimate,
    /// Mean run length of the samples.
    sampled_run_length: f64,
    trace: TrafficShape,
    anonymized: bool,
}

impl SampleReport {
    fn text(&self) -> String {
        let TraceEstimate { windows, packets, flows, recurring, estimated_flows } = &self.estimate;
        let TrafficShape { packets: made, flows: of_trace, run_length, hot_shares, .. } = &self.trace;
        format!(
            "{packets} packets in {windows} windows, {flows} flows, of which {recurring} recur\n\
             flows of the traffic: about {estimated_flows:.0} or more\n\
             trace: {made} packets, {of_trace} flows, {run_length:.2} packets a run (samples: {:.2})\n\
             the hottest 1 % of its flows have {:.1} % of its packets\n",
            self.sampled_run_length,
            100.0 * hot_shares[0]
        )
    }
}

/// Samples a program by the usual flags, and writes the trace to a file; `false` if no packet comes.
///
/// # Errors
/// If no program answers, or the file cannot be written.
pub fn write_usual_trace(socket: &Path, output: &Path) -> Result<bool> {
    let usual = SampleArgs::usual(socket, output);
    let windows = usual.collect()?;
    let frames = TraceBuilder::new(windows).build(usual.packets as usize, usual.seed);
    if !frames.is_empty() {
        write(output, &frames)?;
    }
    Ok(!frames.is_empty())
}

impl SampleArgs {
    fn usual(socket: &Path, output: &Path) -> SampleArgs {
        SampleArgs {
            socket: socket.to_owned(),
            output: output.to_owned(),
            windows: WINDOWS,
            interval: INTERVAL,
            patience: PATIENCE,
            packets: PACKETS,
            anonymize: false,
            seed: SEED,
            json: false,
        }
    }

    fn collect(&self) -> Result<Vec<SampledWindow>> {
        let (interval, patience) = (Duration::from_millis(self.interval), Duration::from_secs(self.patience));
        source::collect(&self.socket, self.windows as usize, interval, patience)
    }
}

/// Samples, and writes the trace.
///
/// # Errors
/// If no program answers, or the file cannot be written.
pub fn run(args: &SampleArgs) -> Result<ExitCode> {
    os::catch_interrupts();
    let windows = args.collect()?;
    if windows.is_empty() {
        errln!("no packets came in {} seconds: there is no trace", args.patience);
        return Ok(Exit::Unknown.into());
    }
    let lengths = windows.iter().map(|window| TrafficShape::of(window.frames.iter().map(|frame| &frame[..])));
    let (runs, packets) = lengths.fold((0.0, 0.0), |(runs, packets), shape| {
        let of_window = shape.packets as f64;
        (runs + of_window / shape.run_length.max(1.0), packets + of_window)
    });
    let builder = TraceBuilder::new(windows);
    let mut frames = builder.build(args.packets as usize, args.seed);
    if args.anonymize {
        let mut anonymizer = PacketAnonymizer::new(&key());
        frames.iter_mut().for_each(|frame| anonymizer.anonymize(frame));
    }
    write(&args.output, &frames)?;
    let report = SampleReport {
        schema: 1,
        estimate: builder.estimate().clone(),
        sampled_run_length: packets / runs.max(1.0),
        trace: TrafficShape::of(frames.iter().map(|frame| &frame[..])),
        anonymized: args.anonymize,
    };
    match args.json {
        true => outln!("{}", serde_json::to_string(&report).into_diagnostic()?),
        false => out!("{}", report.text()),
    }
    Ok(Exit::Done.into())
}

/// A new secret, which nobody keeps. (The system's random numbers are the key of each hash.)
fn key() -> AnonymizerKey {
    let mut key = [0; 32];
    for (number, bytes) in key.chunks_mut(8).enumerate() {
        bytes.copy_from_slice(&RandomState::new().hash_one(number).to_ne_bytes());
    }
    AnonymizerKey(key)
}

fn write(path: &Path, frames: &[Vec<u8>]) -> Result<()> {
    let written = File::create(path).and_then(|file| {
        let mut writer = PcapWriter::new(BufWriter::new(file), PcapHeader::default())?;
        for (at, frame) in frames.iter().enumerate() {
            writer.write(frame, at as u64 * BETWEEN, 0)?;
        }
        writer.finish()
    });
    written.into_diagnostic().wrap_err_with(|| format!("cannot write {}", path.display()))
}

//! Graphs: several sources, several outputs, copies.
//!
//! Sources take turns, a batch each, until all are at their end.
//!
//! Invariant: received + copies = sent + dropped, where the graph counts what it drops itself.

use std::io;
use std::time::{Duration, Instant};

use super::meter::Meter;
use crate::engine::Engine;
use crate::runtime::packet::Batch;

/// Copies for each packet of a batch, on average, before copying fails.
const COPIES: usize = 16;

/// Packets that a source has.
#[derive(Clone, Copy, Debug)]
pub struct Feed<'f> {
    /// The frames, over and over.
    pub frames: &'f [Vec<u8>],
    /// Packets in all.
    pub count: u64,
}

/// A packet that is sent.
#[derive(Clone, Copy, Debug)]
pub struct Departure<'p> {
    /// Its bytes.
    pub bytes: &'p [u8],
    /// By which output, from 0.
    pub output: usize,
    /// By which source it came, or that which it was copied from.
    pub source: usize,
    /// Which packet of that source it was.
    pub number: u64,
}

/// What a run found.
#[derive(Clone, Debug, Default)]
pub struct GraphRan {
    /// Taken from each source.
    pub received: Vec<u64>,
    /// Of those, too long for a buffer.
    pub unfit: u64,
    /// Copies made.
    pub copies: u64,
    /// Sent by each output.
    pub sent: Vec<u64>,
    /// From beginning to end, copying in and out included.
    pub total: Duration,
    /// In the program, batches in full.
    pub busy: Duration,
    /// Nanoseconds a packet in the program, one entry a window of [`super::WINDOW`] batches.
    pub windows: Vec<f64>,
}

/// Runs all packets of all sources through a graph with this many outputs, in batches of `size`.
///
/// # Errors
/// If what takes the packets fails, or there is no memory for a batch.
pub fn run_graph(
    engine: &mut Engine,
    feeds: &[Feed<'_>],
    outputs: usize,
    size: usize,
    take: impl FnMut(Departure<'_>) -> io::Result<()>,
) -> io::Result<GraphRan> {
    run_graph_while(engine, feeds, outputs, size, take, |_| true)
}

/// As [`run_graph`], for as long as `goes_on` says, which is asked after every batch. No packet is under way then: it may put another engine
/// in the place of this one.
///
/// # Errors
/// As there.
pub fn run_graph_while(
    engine: &mut Engine,
    feeds: &[Feed<'_>],
    outputs: usize,
    size: usize,
    mut take: impl FnMut(Departure<'_>) -> io::Result<()>,
    mut goes_on: impl FnMut(&mut Engine) -> bool,
) -> io::Result<GraphRan> {
    let mut batch = Batch::with_copies(size, size * COPIES)?;
    let mut ran = GraphRan { received: vec![0; feeds.len()], sent: vec![0; outputs], ..GraphRan::default() };
    let (mut meter, mut numbers) = (Meter::default(), Vec::with_capacity(size));
    let start = Instant::now();
    'run: loop {
        let mut any = false;
        for (source, feed) in feeds.iter().enumerate() {
            fill(&mut batch, feed, source, &mut ran, &mut numbers);
            any |= !numbers.is_empty();
            let packets = batch.len();
            meter.measure(packets, (&mut ran.busy, &mut ran.windows), || engine.run_graph(&mut batch));
            ran.copies += batch.copies() as u64;
            for (bytes, output, at) in batch.sent() {
                let (output, number) = (output as usize, numbers.get(at).copied().unwrap_or(0));
                if let Some(count) = ran.sent.get_mut(output) {
                    *count += 1;
                }
                take(Departure { bytes, output, source, number })?;
            }
            if !goes_on(engine) {
                break 'run;
            }
        }
        if !any {
            break;
        }
    }
    ran.total = start.elapsed();
    Ok(ran)
}

/// Takes a batch from a source; `numbers` are those of the packets in it.
fn fill(batch: &mut Batch, feed: &Feed<'_>, source: usize, ran: &mut GraphRan, numbers: &mut Vec<u64>) {
    batch.clear();
    numbers.clear();
    if feed.frames.is_empty() {
        return;
    }
    let mut at = (ran.received[source] % feed.frames.len() as u64) as usize;
    while batch.len() < batch.capacity() && ran.received[source] < feed.count {
        if batch.push_open(&feed.frames[at], source as u32 + 1) {
            numbers.push(ran.received[source]);
        } else {
            ran.unfit += 1;
        }
        ran.received[source] += 1;
        at = if at + 1 == feed.frames.len() { 0 } else { at + 1 };
    }
}

impl GraphRan {
    /// Nanoseconds a packet in the program that this share of the windows are below.
    pub fn percentile(&self, share: f64) -> Option<f64> {
        super::percentile(&self.windows, share)
    }
}

//! Where packets come from and go to, and the account of what became of each.
//!
//! A source is packets in memory, replayed in an order, once or as often as asked: the working set is that of the frames
//! and of one batch, however long it runs. What a program sends goes to a [`Sink`].
//!
//! Invariant: every packet that is received is sent or dropped for one reason: [`Account::adds_up`].

pub mod pcap;

use std::io;
use std::time::{Duration, Instant};

use crate::engine::Engine;
use crate::runtime::packet::Batch;
use crate::runtime::worker::Event;

/// Why a packet was not sent.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Reason {
    /// `XDP_ABORTED`: the program met an error.
    Aborted,
    /// `XDP_DROP`.
    Drop,
    /// `XDP_PASS`: for the host's network stack, which is not here.
    Pass,
    /// `XDP_REDIRECT` without a target.
    NoTarget,
    /// No verdict that there is.
    NoVerdict,
    /// Too short or too long for a buffer: the program has not seen it.
    Size,
}

impl Reason {
    /// All, in order.
    pub const ALL: [Reason; 6] =
        [Reason::Aborted, Reason::Drop, Reason::Pass, Reason::NoTarget, Reason::NoVerdict, Reason::Size];

    /// A word for reports.
    pub const fn name(self) -> &'static str {
        match self {
            Reason::Aborted => "aborted",
            Reason::Drop => "drop",
            Reason::Pass => "pass",
            Reason::NoTarget => "no_target",
            Reason::NoVerdict => "no_verdict",
            Reason::Size => "size",
        }
    }
}

/// What became of the packets.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Account {
    /// Taken from the source.
    pub received: u64,
    /// Sent back out of the port on which they came.
    pub transmitted: u64,
    /// Sent to another interface.
    pub redirected: u64,
    /// Not sent, by [`Reason`].
    pub dropped: [u64; Reason::ALL.len()],
}

impl Account {
    /// Sent, either way.
    pub fn sent(&self) -> u64 {
        self.transmitted + self.redirected
    }

    /// Not sent, for whatever reason.
    pub fn all_dropped(&self) -> u64 {
        self.dropped.iter().sum()
    }

    /// Whether received = sent + dropped.
    pub fn adds_up(&self) -> bool {
        self.received == self.sent() + self.all_dropped()
    }

    fn dropped(&mut self, reason: Reason) {
        self.dropped[reason as usize] += 1;
    }
}

/// Packets in memory, and the order in which they come.
#[derive(Clone, Copy, Debug)]
pub struct Replay<'f> {
    /// The frames.
    pub frames: &'f [Vec<u8>],
    /// Indices of frames, over and over.
    pub order: &'f [u32],
    /// Packets in all.
    pub count: u64,
}

/// What takes the packets that are sent.
pub trait Sink {
    /// Takes a packet. `origin` is its number in the source's order, `port` the interface that it leaves by.
    ///
    /// # Errors
    /// If it cannot be written.
    fn send(&mut self, packet: &[u8], origin: u64, port: u32) -> io::Result<()>;

    /// Takes what a program put into a ring or trace. By default it is counted only.
    ///
    /// # Errors
    /// If it cannot be written.
    fn event(&mut self, event: &Event) -> io::Result<()> {
        let _ = event;
        Ok(())
    }
}

/// Counts only.
#[derive(Clone, Copy, Debug, Default)]
pub struct Nowhere;

impl Sink for Nowhere {
    fn send(&mut self, _: &[u8], _: u64, _: u32) -> io::Result<()> {
        Ok(())
    }
}

/// How packets are run.
#[derive(Clone, Copy, Debug)]
pub struct Plan {
    /// Packets that the program gets at once.
    pub batch: usize,
    /// The interface that they come in by.
    pub ingress: u32,
}

/// What a run found.
#[derive(Clone, Debug, Default)]
pub struct Ran {
    /// What became of the packets.
    pub account: Account,
    /// Records that the program put into rings and traces.
    pub events: u64,
    /// From beginning to end, copying in and out included.
    pub total: Duration,
    /// In the program, batches in full.
    pub busy: Duration,
    /// Nanoseconds a packet in the program, one entry a window of [`WINDOW`] batches.
    pub windows: Vec<f64>,
}

/// Batches whose times are taken together.
pub const WINDOW: u32 = 16;

impl Ran {
    /// Nanoseconds a packet in the program that this share of the windows are below.
    pub fn percentile(&self, share: f64) -> Option<f64> {
        let mut sorted = self.windows.clone();
        sorted.sort_unstable_by(f64::total_cmp);
        let at = (share * sorted.len() as f64) as usize;
        sorted.get(at.min(sorted.len().checked_sub(1)?)).copied()
    }
}

/// Runs all packets of a source through the program.
///
/// # Errors
/// If the sink fails, or there is no memory for a batch.
pub fn run(engine: &mut Engine, source: &Replay<'_>, sink: &mut dyn Sink, plan: Plan) -> io::Result<Ran> {
    let mut batch = Batch::new(plan.batch)?;
    let mut origins = Vec::with_capacity(plan.batch);
    let (mut ran, mut window) = (Ran::default(), (Duration::ZERO, 0u64, 0u32));
    let start = Instant::now();
    let mut order = source.order.iter().cycle();
    while ran.account.received < source.count && !source.order.is_empty() {
        batch.clear();
        origins.clear();
        while batch.len() < batch.capacity() && ran.account.received < source.count {
            let Some(frame) = order.next().and_then(|&at| source.frames.get(at as usize)) else { break };
            if batch.push(frame, plan.ingress) {
                origins.push(ran.account.received);
            } else {
                ran.account.dropped(Reason::Size);
            }
            ran.account.received += 1;
        }
        let before = Instant::now();
        engine.run(&mut batch);
        let took = before.elapsed();
        ran.busy += took;
        window = (window.0 + took, window.1 + batch.len() as u64, window.2 + 1);
        if window.2 == WINDOW {
            if window.1 > 0 {
                ran.windows.push(window.0.as_nanos() as f64 / window.1 as f64);
            }
            window = (Duration::ZERO, 0, 0);
        }
        settle(&batch, &origins, plan, sink, &mut ran.account)?;
        for event in engine.take_events() {
            ran.events += 1;
            sink.event(&event)?;
        }
    }
    ran.total = start.elapsed();
    Ok(ran)
}

/// Sends or drops each packet of a batch that was run.
fn settle(
    batch: &Batch,
    origins: &[u64],
    plan: Plan,
    sink: &mut dyn Sink,
    account: &mut Account,
) -> io::Result<()> {
    for (at, &origin) in origins.iter().enumerate() {
        let reason = match batch.verdict(at) {
            0 => Reason::Aborted,
            1 => Reason::Drop,
            2 => Reason::Pass,
            3 => {
                account.transmitted += 1;
                sink.send(batch.bytes(at), origin, plan.ingress)?;
                continue;
            }
            4 if batch.target(at) != 0 => {
                account.redirected += 1;
                sink.send(batch.bytes(at), origin, batch.target(at))?;
                continue;
            }
            4 => Reason::NoTarget,
            _ => Reason::NoVerdict,
        };
        account.dropped(reason);
    }
    Ok(())
}

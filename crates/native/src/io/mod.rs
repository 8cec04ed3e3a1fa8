//! Where packets come from and go to, and the account of what became of each.
//!
//! A source is packets in memory, replayed in an order, once or as often as asked: the working set is that of the frames
//! and of one batch, however long it runs. What a program sends goes to a [`Sink`]. Interfaces are [`live`].
//!
//! Invariant: every packet that is received is sent or dropped for one reason: [`Account::adds_up`].

pub mod graph;
pub mod live;
mod meter;
pub mod pcap;

use std::io;
use std::time::{Duration, Instant};

use crate::engine::Engine;
use crate::runtime::packet::Batch;
use crate::runtime::worker::Event;
use meter::Meter;

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
    /// The interface that it was to leave by takes no more.
    NoRoom,
}

impl Reason {
    /// All, in order.
    pub const ALL: [Reason; 7] = [
        Reason::Aborted,
        Reason::Drop,
        Reason::Pass,
        Reason::NoTarget,
        Reason::NoVerdict,
        Reason::Size,
        Reason::NoRoom,
    ];

    /// A word for reports.
    pub const fn name(self) -> &'static str {
        match self {
            Reason::Aborted => "aborted",
            Reason::Drop => "drop",
            Reason::Pass => "pass",
            Reason::NoTarget => "no_target",
            Reason::NoVerdict => "no_verdict",
            Reason::Size => "size",
            Reason::NoRoom => "no_room",
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
        percentile(&self.windows, share)
    }
}

fn percentile(windows: &[f64], share: f64) -> Option<f64> {
    let mut sorted = windows.to_vec();
    sorted.sort_unstable_by(f64::total_cmp);
    let at = (share * sorted.len() as f64) as usize;
    sorted.get(at.min(sorted.len().checked_sub(1)?)).copied()
}

/// Runs all packets of a source through the program.
///
/// # Errors
/// If the sink fails, or there is no memory for a batch.
pub fn run(engine: &mut Engine, source: &Replay<'_>, sink: &mut dyn Sink, plan: Plan) -> io::Result<Ran> {
    let mut batch = Batch::new(plan.batch)?;
    let mut origins = Vec::with_capacity(plan.batch);
    let (mut ran, mut meter) = (Ran::default(), Meter::default());
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
        meter.run(engine, &mut batch, &mut ran);
        settle(&batch, &origins, plan, sink, &mut ran.account)?;
        for event in engine.take_events() {
            ran.events += 1;
            sink.event(&event)?;
        }
    }
    ran.total = start.elapsed();
    Ok(ran)
}

/// What becomes of a packet, as the program said.
enum Fate {
    /// Out of the port on which it came.
    Back,
    /// Out of another interface.
    To(u32),
    /// Not sent.
    Dropped(Reason),
}

fn fate(batch: &Batch, at: usize) -> Fate {
    Fate::Dropped(match batch.verdict(at) {
        0 => Reason::Aborted,
        1 => Reason::Drop,
        2 => Reason::Pass,
        3 => return Fate::Back,
        4 if batch.target(at) != 0 => return Fate::To(batch.target(at)),
        4 => Reason::NoTarget,
        _ => Reason::NoVerdict,
    })
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
        let port = match fate(batch, at) {
            Fate::Back => {
                account.transmitted += 1;
                plan.ingress
            }
            Fate::To(port) => {
                account.redirected += 1;
                port
            }
            Fate::Dropped(reason) => {
                account.dropped(reason);
                continue;
            }
        };
        sink.send(batch.bytes(at), origin, port)?;
    }
    Ok(())
}

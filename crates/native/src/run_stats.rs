//! Accounts of the packets' fates, and results of runs.
//!
//! Invariant: every received packet is sent, or dropped for one reason: [`PacketAccounting::adds_up`].

use std::time::Duration;

/// Number of batches in a window.
pub const WINDOW: u32 = 16;

/// Reason why a packet was not sent.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum DropReason {
    /// `XDP_ABORTED`: the program met an error.
    Aborted,
    /// `XDP_DROP`.
    Drop,
    /// `XDP_PASS`: for the host's network stack, which is not available here.
    Pass,
    /// `XDP_REDIRECT` without a target.
    NoTarget,
    /// Unknown verdict.
    NoVerdict,
    /// Too short or too long for a buffer: the program has not seen it.
    Size,
    /// The outgoing interface has no room.
    NoRoom,
}

impl DropReason {
    /// All, in order.
    pub const ALL: [DropReason; 7] = [
        DropReason::Aborted,
        DropReason::Drop,
        DropReason::Pass,
        DropReason::NoTarget,
        DropReason::NoVerdict,
        DropReason::Size,
        DropReason::NoRoom,
    ];

    /// Name for reports.
    pub const fn name(self) -> &'static str {
        match self {
            DropReason::Aborted => "aborted",
            DropReason::Drop => "drop",
            DropReason::Pass => "pass",
            DropReason::NoTarget => "no_target",
            DropReason::NoVerdict => "no_verdict",
            DropReason::Size => "size",
            DropReason::NoRoom => "no_room",
        }
    }
}

/// Account of the packets' fates.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct PacketAccounting {
    /// Taken from the source.
    pub received: u64,
    /// Sent back out of the port on which they came.
    pub transmitted: u64,
    /// Sent to another interface.
    pub redirected: u64,
    /// Not sent, by [`DropReason`].
    pub dropped: [u64; DropReason::ALL.len()],
}

impl PacketAccounting {
    /// Packets sent, either way.
    pub fn sent(&self) -> u64 {
        self.transmitted + self.redirected
    }

    /// Packets dropped, for any reason.
    pub fn all_dropped(&self) -> u64 {
        self.dropped.iter().sum()
    }

    /// Returns true if received = sent + dropped.
    pub fn adds_up(&self) -> bool {
        self.received == self.sent() + self.all_dropped()
    }

    /// Counts a packet that was not sent.
    pub fn dropped(&mut self, reason: DropReason) {
        self.dropped[reason as usize] += 1;
    }

    /// Sum with the account of other packets.
    pub(crate) fn and(mut self, other: PacketAccounting) -> PacketAccounting {
        self.received += other.received;
        self.transmitted += other.transmitted;
        self.redirected += other.redirected;
        self.dropped.iter_mut().zip(other.dropped).for_each(|(count, more)| *count += more);
        self
    }
}

/// Result of a run.
#[derive(Clone, Debug, Default)]
pub struct RunStats {
    /// Account of the packets.
    pub account: PacketAccounting,
    /// Records that the program put into rings and traces.
    pub events: u64,
    /// Total time, including copying in and out.
    pub total: Duration,
    /// Time in the program, of all workers, for whole batches.
    pub busy: Duration,
    /// Nanoseconds per packet in the program, one entry per window of [`WINDOW`] batches.
    pub windows: Vec<f64>,
}

impl RunStats {
    /// Percentile of the windows, in nanoseconds per packet in the program.
    pub fn percentile(&self, share: f64) -> Option<f64> {
        percentile(&self.windows, share)
    }

    /// Sum with the result of another worker.
    pub fn and(mut self, other: RunStats) -> RunStats {
        self.account = self.account.and(other.account);
        self.events += other.events;
        self.busy += other.busy;
        self.windows.extend(other.windows);
        self
    }
}

/// Result of a run.
#[derive(Clone, Debug, Default)]
pub struct GraphRunStats {
    /// Taken from each source.
    pub received: Vec<u64>,
    /// Received packets too long for a buffer.
    pub unfit: u64,
    /// Packets to be sent that the device did not take.
    pub no_room: u64,
    /// Copies made.
    pub copies: u64,
    /// Sent by each output.
    pub sent: Vec<u64>,
    /// Packets that still wait for their time.
    pub held: u64,
    /// Records that the program put into rings and traces.
    pub events: u64,
    /// Total time, including copying in and out.
    pub total: Duration,
    /// Time in the program, of all workers, for whole batches.
    pub busy: Duration,
    /// Nanoseconds per packet in the program, one entry per window of [`WINDOW`] batches.
    pub windows: Vec<f64>,
}

impl GraphRunStats {
    /// The result of a run that ended before any packet of this many sources reached any of this many
    /// outputs.
    pub fn none(sources: usize, outputs: usize) -> GraphRunStats {
        GraphRunStats { received: vec![0; sources], sent: vec![0; outputs], ..GraphRunStats::default() }
    }

    /// Percentile of the windows, in nanoseconds per packet in the program.
    pub fn percentile(&self, share: f64) -> Option<f64> {
        percentile(&self.windows, share)
    }

    /// Account of the packets as far as it is known here, without those that the graph dropped itself.
    pub(crate) fn account(&self) -> PacketAccounting {
        let mut account = PacketAccounting {
            received: self.received.iter().sum(),
            redirected: self.sent.iter().sum(),
            ..PacketAccounting::default()
        };
        account.dropped[DropReason::Size as usize] = self.unfit;
        account.dropped[DropReason::NoRoom as usize] = self.no_room;
        account
    }

    /// Sum with the result of another worker.
    pub fn and(mut self, other: GraphRunStats) -> GraphRunStats {
        let add = |to: &mut [u64], from: &[u64]| to.iter_mut().zip(from).for_each(|(to, from)| *to += from);
        add(&mut self.received, &other.received);
        add(&mut self.sent, &other.sent);
        self.unfit += other.unfit;
        self.no_room += other.no_room;
        self.copies += other.copies;
        self.held += other.held;
        self.events += other.events;
        self.busy += other.busy;
        self.windows.extend(other.windows);
        self
    }
}

pub(crate) fn percentile(windows: &[f64], share: f64) -> Option<f64> {
    let mut sorted = windows.to_vec();
    sorted.sort_unstable_by(f64::total_cmp);
    let at = (share * sorted.len() as f64) as usize;
    sorted.get(at.min(sorted.len().checked_sub(1)?)).copied()
}

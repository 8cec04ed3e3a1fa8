//! Places where packets wait for their time, and the elements they wait for.
//!
//! Elements of time pull: from queues, through schedulers and any elements between them. So packets wait at
//! the end of queues, or, without a queue, in front of the element itself: that is a lane. The program ends
//! the way of a packet there, at a separate output behind all others; whoever runs it keeps the packet, and
//! lets it come in again when it is due. Elements between a queue and the element see packets when they
//! leave.
//!
//! `queue_search` finds them.

use rustc_hash::FxHashMap;
use serde::{Deserialize, Serialize};

use crate::handlers::SettingValue;

/// A number that elements of time go by.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum TimingParameter {
    /// Always this.
    Fixed(i64),
    /// 64 bits of the settings, at this byte.
    Setting(u32),
    /// 1 while 64 bits of the settings, at this byte, are this number, and 0 otherwise.
    Equals(u32, i64),
}

impl From<SettingValue> for TimingParameter {
    fn from(setting: SettingValue) -> TimingParameter {
        match setting {
            SettingValue::Fixed(value) => TimingParameter::Fixed(value),
            SettingValue::Live(at) => TimingParameter::Setting(at),
        }
    }
}

/// When packets go. Times are nanoseconds.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum ShapingPolicy {
    /// So many packets, or bytes, a second, by a token bucket.
    Rate {
        /// Tokens a second.
        rate: TimingParameter,
        /// Size of the bucket: so many tokens, or those of a time.
        burst: TokenBucketSize,
        /// True if a token is a byte.
        bytes: bool,
    },
    /// So long behind their arrival.
    Delay(u64),
    /// As over a line.
    Link {
        /// Latency of the line.
        latency: u64,
        /// Bytes a second.
        bandwidth: u64,
    },
    /// As soon as they are there, until so many have gone.
    Upto {
        /// Number of packets since `base`; unlimited if negative.
        limit: TimingParameter,
        /// Number of packets that had gone before the count began again.
        base: TimingParameter,
        /// 0 if none goes.
        active: TimingParameter,
    },
    /// So many at once, at multiples of a time.
    Every {
        /// The time.
        interval: u64,
        /// Packets at a time.
        burst: u64,
    },
    /// Round after round, copies of all that arrived first.
    Replay(ReplayNumbers),
}

/// Numbers of an element that keeps packets and sends copies of them round after round.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct ReplayNumbers {
    /// Rounds that are left, negative for any number: 64 bits of the settings, at this byte.
    pub rounds: u32,
    /// 0 if nothing is taken or sent, likewise.
    pub active: u32,
    /// 1 if the packets are to be dropped and others taken, likewise.
    pub reset: u32,
    /// Maximum number of packets to take.
    pub limit: u64,
    /// Speed in percent of the packets' own; 0 is as fast as possible.
    pub percent: u64,
    /// Nanoseconds after which no round begins; 0 for any time.
    pub most_time: u64,
    /// 0 once all packets are taken: 64 bits of the state, at this byte.
    pub loading: u32,
    /// Number of ends of the last round, likewise.
    pub ended: u32,
    /// Packets dropped before any copy was sent, likewise.
    pub dropped: u32,
}

/// When a source sends that makes its packets up.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct SourceTiming {
    /// Its place in [`crate::ClickProgram::sources`].
    pub source: usize,
    /// The times.
    pub beat: SourceSchedule,
}

/// Times between packets.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum SourceSchedule {
    /// So many packets per second at first, which its gate may change; 0 is never.
    Rate(u64),
    /// One after each of so many nanoseconds.
    Every(u64),
}

/// Size of a token bucket.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum TokenBucketSize {
    /// The tokens of so many nanoseconds.
    Nanoseconds(u64),
    /// So many tokens.
    Tokens(u64),
}

/// Place where packets wait in order.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct ElementQueue {
    /// The queue, or the element that they wait for.
    pub element: String,
    /// Properties that only queues have.
    pub queue: Option<QueueProperties>,
    /// The lane whose first packets its packets become, if it holds none itself.
    pub front_of: Option<usize>,
    /// Number in the code of the place where its packets go on.
    pub number: u32,
    /// Position of that number in the data that is kept of a packet.
    pub numbered: ByteRange,
    /// The annotations that are kept, by number, and where they are.
    pub notes: Vec<(usize, ByteRange)>,
}

/// Bytes of the data that is kept of a packet that waits.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct ByteRange {
    /// Offset of the first.
    pub at: u32,
    /// Number of bytes.
    pub bytes: u32,
}

/// A queue. The packets that it holds, the most there were, and those that were dropped since it was full,
/// are numbers of the state, which whoever keeps the packets writes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct QueueProperties {
    /// Maximum number of packets.
    pub capacity: TimingParameter,
    /// True if a full one drops its first packet.
    pub front: bool,
    /// True if sources that look at it wait while it is full.
    pub notifies: bool,
    /// True if packets may be put in front of its first one.
    pub mixed: bool,
    /// Offset in the state.
    pub length: u32,
    /// Offset in the state.
    pub highest: u32,
    /// Offset in the state.
    pub dropped: u32,
}

/// Order of turns among lanes, which are numbers.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum PullScheduler {
    /// A lane.
    Lane(usize),
    /// One after the other.
    RoundRobin(Vec<PullScheduler>),
    /// The first that has anything.
    First(Vec<PullScheduler>),
    /// As often as each has tickets.
    Strides(Vec<(u64, PullScheduler)>),
}

/// An element that packets wait for.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct QueueServer {
    /// Its name.
    pub element: String,
    /// When they go.
    pub pace: ShapingPolicy,
    /// Which goes.
    pub turns: PullScheduler,
    /// The lane that they go to, which another one pulls from.
    pub feeds: Option<usize>,
    /// Sources that it pulls from without a queue between, as indices of [`crate::ClickProgram::sources`]; only
    /// if it sends packets round after round.
    pub sources: Vec<usize>,
}

/// The input, not part of the graph, at which packets go on that have waited for a script.
pub const RESUMED: u32 = u32::MAX - 1;

/// A source that sends nothing while all queues are full that its packets go to.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct SourceHold {
    /// Its place in [`crate::ClickProgram::sources`].
    pub source: usize,
    /// The lanes.
    pub lanes: Vec<usize>,
}

/// Places where packets of a program wait.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct QueueingNetwork {
    /// In the order of their outputs.
    pub lanes: Vec<ElementQueue>,
    /// Elements that they wait for.
    pub servers: Vec<QueueServer>,
    /// Sources that send at times of their own.
    pub senders: Vec<SourceTiming>,
    /// Sources that are pulled by turns; a lane of [`PullScheduler`] is an index of
    /// [`crate::ClickProgram::sources`] here.
    pub pulls: Vec<PullScheduler>,
    /// Sources that wait for queues.
    pub holds: Vec<SourceHold>,
    /// Bytes that are kept of a packet.
    pub kept: u32,
    /// True if elements that hold no packets use the clock.
    pub clocked: bool,
}

impl QueueingNetwork {
    /// Returns true if the run must have a clock.
    pub fn is_timed(&self) -> bool {
        self.clocked || !self.servers.is_empty() || !self.senders.is_empty() || !self.pulls.is_empty()
    }
}

/// Declarations of elements, by their numbers.
#[derive(Debug, Default)]
pub(crate) struct QueueingDeclarations {
    pub(crate) queues: FxHashMap<usize, QueueProperties>,
    pub(crate) paces: FxHashMap<usize, ShapingPolicy>,
    /// Of schedulers with tickets.
    pub(crate) tickets: FxHashMap<usize, Vec<u64>>,
    pub(crate) senders: Vec<SourceTiming>,
    /// Elements that pull from one input, which a setting says; and the place of one packet in front of inputs
    /// without a queue: a source that is pulled makes its next packet when this one is taken.
    pub(crate) switches: FxHashMap<usize, (SettingValue, QueueProperties)>,
    /// Elements whose packets wait at their input [`RESUMED`].
    pub(crate) detours: Vec<usize>,
    pub(crate) clocked: bool,
    /// True if runs have a clock.
    pub(crate) timed: bool,
}

impl PullScheduler {
    /// All lanes.
    pub(crate) fn lanes(&self) -> Vec<usize> {
        match self {
            PullScheduler::Lane(lane) => vec![*lane],
            PullScheduler::RoundRobin(all) | PullScheduler::First(all) => {
                all.iter().flat_map(PullScheduler::lanes).collect()
            }
            PullScheduler::Strides(all) => all.iter().flat_map(|(_, turns)| turns.lanes()).collect(),
        }
    }

    /// Returns true if a lane of the others is among these.
    pub(crate) fn has(&self, others: &PullScheduler) -> bool {
        let own = self.lanes();
        others.lanes().iter().any(|lane| own.contains(lane))
    }
}

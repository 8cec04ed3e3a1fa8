//! Messages between the tuner and a candidate's process: JSON, one a line.

use serde::{Deserialize, Serialize};

use crate::bench_user::outputs::OutputDigest;
use crate::model::demand::{HotPacket, TableFacts};

/// Request of the tuner.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub(super) enum CandidateRequest {
    /// Compile by this plan's text. Comes first.
    Compile(String),
    /// Run so many packets, and hash what is sent.
    Check(u64),
    /// Time packets: runs of about so many microseconds.
    Time {
        /// Microseconds of a run.
        micros: u64,
        /// Runs.
        runs: u32,
    },
    /// Take so many packets per second for so many milliseconds.
    Pace {
        /// Packets per second.
        rate: f64,
        /// Milliseconds.
        millis: u64,
    },
    /// Measure the demand of a packet.
    Demand,
}

/// Table whose template can be chosen.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(super) struct TemplateFacts {
    /// The table.
    pub(super) table: String,
    /// The template that it has.
    pub(super) template: String,
}

/// Answer of a candidate.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub(super) enum CandidateReply {
    /// It was compiled.
    Ready {
        /// Milliseconds of compilation.
        compiled_ms: f64,
        /// Tables with templates.
        templates: Vec<TemplateFacts>,
        /// Tables whose look-ups can be fetched for.
        fetchable: Vec<String>,
        /// True if results of look-ups can be kept.
        has_traversals: bool,
        /// Description of the traffic.
        traffic: String,
    },
    /// It cannot be made.
    Failed(String),
    /// There is no LLVM.
    NoLlvm(String),
    /// Digest of the sent packets.
    Digest(OutputDigest),
    /// Nanoseconds per packet, and the share of runs that were disturbed.
    Timed {
        /// Nanoseconds per packet.
        ns: f64,
        /// Share of runs that took much longer than the shortest.
        disturbed: f64,
    },
    /// Latency that 99 % of the packets do not exceed, in nanoseconds; `None` if no packet came.
    Paced(Option<u64>),
    /// Demand of a packet.
    Demand {
        /// Time of a packet whose lines are in the caches.
        hot: HotPacket,
        /// Tables that it looks up in.
        tables: Vec<TableFacts>,
    },
}

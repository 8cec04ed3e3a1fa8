//! What a live session tells: one JSON line each, or text.

use serde::{Deserialize, Serialize};

use crate::live::details::SlotDetails;
use crate::place::Held;

/// The version of the JSON lines.
pub const SCHEMA: u32 = 2;

/// Something that happened, or how things stand. Times are nanoseconds of the monotonic clock, durations
/// microseconds.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub enum Report {
    /// The object is loaded and attached.
    Attached {
        /// The program.
        program: String,
        /// Where.
        interfaces: Vec<Attachment>,
        /// Whether an earlier session's place was taken over.
        took_over: bool,
        /// Maps that may be specialised on.
        watched: Vec<String>,
        /// Maps that may not, and why.
        refused: Vec<(String, String)>,
    },
    /// An interface of several has gone, or has come back.
    Moved {
        /// Where the program is now.
        interfaces: Vec<Attachment>,
    },
    /// A new generation runs.
    Specialised {
        /// Its number.
        generation: u32,
        /// Why it was made.
        reason: Reason,
        /// When the write was begun that it answers.
        #[serde(skip_serializing_if = "Option::is_none")]
        write_ns: Option<u64>,
        /// From that write to the first packet through this generation.
        #[serde(skip_serializing_if = "Option::is_none")]
        latency_us: Option<u64>,
        /// Reading the maps and making the code; 0 if it had stood by.
        compile_us: u64,
        /// Loading: verification and compilation by the kernel; 0 if it had stood by.
        load_us: u64,
        /// The swap, until no packet was left in the program before.
        swap_us: u64,
        /// Entries that are compared with in code.
        entries: u32,
        /// Slots of the program.
        slots: usize,
        /// Nanoseconds a packet.
        #[serde(skip_serializing_if = "Option::is_none")]
        ns: Option<f64>,
    },
    /// A generation was made that has no table in code which somebody may write, and can take the place of the one that runs when such a table
    /// changes. If it does, that is told as [`Report::Specialised`], for the reason of a write.
    StandsBy {
        /// Its number.
        generation: u32,
        /// Reading the maps and making the code.
        compile_us: u64,
        /// Loading: verification and compilation by the kernel.
        load_us: u64,
        /// Slots of the program.
        slots: usize,
    },
    /// A write changed nothing that the running generation was made of: it goes on.
    Confirmed {
        /// Its number.
        generation: u32,
        /// When the write was begun.
        write_ns: u64,
        /// From the write to the approval.
        latency_us: u64,
    },
    /// A write changed maps that the running generation has twins of: these were brought up to date, its code goes on.
    Refreshed {
        /// Its number.
        generation: u32,
        /// When the write was begun that it answers.
        #[serde(skip_serializing_if = "Option::is_none")]
        write_ns: Option<u64>,
        /// From that write to the moment from which the twins answer again.
        #[serde(skip_serializing_if = "Option::is_none")]
        in_step_us: Option<u64>,
        /// From that write to the first packet that finds what was written.
        #[serde(skip_serializing_if = "Option::is_none")]
        latency_us: Option<u64>,
        /// Reading the maps.
        read_us: u64,
        /// Making and writing the twins.
        write_us: u64,
        /// Bytes written.
        bytes: u64,
    },
    /// The running generation was taken back; the original runs.
    Withdrawn {
        /// Its number.
        generation: u32,
        /// Why.
        reason: String,
    },
    /// A variant of a new shape was held against the original on packets that were just seen, before it was installed.
    Judged {
        /// The generation that it would be.
        generation: u32,
        /// What came of it.
        outcome: Outcome,
        /// Packets that were replayed.
        packets: usize,
        /// Its time over the original's, where that was measured, and the 99 % interval.
        #[serde(skip_serializing_if = "Option::is_none")]
        ratio: Option<(f64, [f64; 2])>,
        /// Nanoseconds a packet that it gains, as measured.
        #[serde(skip_serializing_if = "Option::is_none")]
        gained_ns: Option<f64>,
        /// And as was predicted from what lookups take in the maps as they are: the difference is the model's error.
        #[serde(skip_serializing_if = "Option::is_none")]
        predicted_ns: Option<f64>,
        /// How long it took.
        ms: u64,
        /// Why it was not judged, or in what it differs.
        #[serde(skip_serializing_if = "Option::is_none")]
        reason: Option<String>,
        /// Of one that differs: where all is written down.
        #[serde(skip_serializing_if = "Option::is_none")]
        file: Option<String>,
    },
    /// Fewer lookups than before are for the hot keys in code: the traffic has changed, and is looked at again.
    Shifted {
        /// The generation that runs.
        generation: u32,
        /// Lookups a packet that hot keys did not answer, as it was.
        usual: f64,
        /// And as it is now.
        now: f64,
    },
    /// A variant was not made, or not taken.
    Dropped {
        /// Why.
        reason: String,
    },
    /// How things stand.
    Status {
        /// Packets a second at the interface.
        pps: f64,
        /// Packets at the interfaces since the program was attached.
        packets: u64,
        /// The same of each interface, by its name.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        received: Vec<(String, u64)>,
        /// Of these, those that specialised code took, where they are counted.
        #[serde(skip_serializing_if = "Option::is_none")]
        specialised: Option<u64>,
        /// Nanoseconds a packet of the original.
        #[serde(skip_serializing_if = "Option::is_none")]
        before_ns: Option<f64>,
        /// Nanoseconds a packet of what runs.
        #[serde(skip_serializing_if = "Option::is_none")]
        now_ns: Option<f64>,
        /// The generation that runs; 0: the original.
        generation: u32,
        /// Whether the guard lets it run.
        guard: GuardState,
        /// Writes that the guard has seen.
        writes: u64,
        /// How often a program took another's place on the hook.
        swaps: u64,
        /// What is in the slots of the object's program arrays.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        chain: Vec<SlotDetails>,
    },
    /// The end.
    Stopped {
        /// What is attached now.
        left: String,
    },
}

/// What the judge says of a variant.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    /// It does the same, and takes less time.
    Faster,
    /// It does the same; live traffic will tell whether it takes less time.
    Same,
    /// It does the same, and takes more time on replayed packets, which do not show what its copies of entries save: it is
    /// taken back unless live traffic shows it to be faster.
    Trial,
    /// It does the same, and takes no less time.
    NotFaster,
    /// It does something else. No variant of its shape is tried again.
    Different,
    /// It cannot be replayed; live traffic will tell.
    Unjudged,
}

/// An interface that the program is on.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Attachment {
    /// Its index.
    pub ifindex: u32,
    /// Its name.
    pub interface: String,
    /// Of an XDP program: where in the receive path it runs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mode: Option<String>,
}

impl From<Held> for Attachment {
    fn from(held: Held) -> Attachment {
        Attachment {
            ifindex: held.ifindex,
            interface: held.interface,
            mode: held.mode.map(|m| m.to_string()),
        }
    }
}

/// Why a generation was made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Reason {
    /// The first look at the traffic.
    Start,
    /// The traffic's hot keys have changed.
    Traffic,
    /// The control plane has changed what the code was made of.
    Write,
    /// No write came for a while: whole tables are worth their time.
    Quiet,
}

/// Whether specialised code may run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum GuardState {
    /// It runs.
    Valid,
    /// It runs, but looks some maps up themselves: their twins are behind.
    Behind,
    /// A write was seen; the original runs.
    Revoked,
    /// There is no specialised code.
    Off,
}

impl std::fmt::Display for GuardState {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            GuardState::Valid => "valid",
            GuardState::Behind => "behind",
            GuardState::Revoked => "revoked",
            GuardState::Off => "off",
        })
    }
}

impl Report {
    /// One JSON line with the schema's number.
    pub fn json(&self) -> String {
        #[derive(Serialize)]
        struct Line<'r> {
            schema: u32,
            #[serde(flatten)]
            report: &'r Report,
        }
        serde_json::to_string(&Line { schema: SCHEMA, report: self }).unwrap_or_default()
    }
}

//! Reports of a live session: one JSON line each, or text.

use serde::{Deserialize, Serialize};

use crate::attachment::HookInfo;
use crate::chain::ChainProgram;
use crate::live::details::SlotDetails;

/// The version of the JSON lines.
pub const SCHEMA: u32 = 3;

/// An event, or the state of the session. Times are nanoseconds of the monotonic clock, durations
/// microseconds.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub enum SessionReport {
    /// The object is loaded and attached.
    Attached {
        /// The program.
        program: String,
        /// Its interfaces.
        interfaces: Vec<AttachedInterface>,
        /// True if an earlier session's place was taken over.
        took_over: bool,
        /// Maps that may be specialised on.
        watched: Vec<String>,
        /// Maps that may not, with the reasons.
        refused: Vec<(String, String)>,
    },
    /// A chain was made one program, which is to run in its place.
    Fused {
        /// The dispatcher.
        dispatcher: ChainProgram,
        /// The programs that it calls, in this order.
        components: Vec<ChainProgram>,
    },
    /// The dispatcher of a chain runs in place of the program that was made of it.
    Unfused {
        /// Reason.
        reason: String,
    },
    /// An interface of several has gone, or has come back.
    #[serde(rename = "interfaces_changed")]
    Moved {
        /// Interfaces that have the program now.
        interfaces: Vec<AttachedInterface>,
    },
    /// The session begins with a profile that another one has learnt.
    ProfileLoaded {
        /// The program that was observed.
        program: String,
        /// Seconds since then.
        age_s: u64,
        /// Lookups of this program that may be specialised.
        lookups: usize,
        /// Number of these that the profile has.
        known: usize,
    },
    /// The first traffic was compared with the profile that the session began with.
    ProfileFit {
        /// Share of its lookups whose keys are in the profile, from 0 to 1.
        share: f64,
    },
    /// A new generation runs.
    Specialised {
        /// Its number.
        generation: u32,
        /// Reason for making it.
        reason: CompileReason,
        /// Time at which the write that it answers began.
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
    /// A generation was made that has no table in code which somebody may write, and can take the place of
    /// the running one when such a table changes. If it does, that is reported as
    /// [`SessionReport::Specialised`], for the reason of a write.
    #[serde(rename = "standby_ready")]
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
    /// A write changed nothing that the running generation was made from: it goes on.
    Confirmed {
        /// Its number.
        generation: u32,
        /// Time at which the write began.
        write_ns: u64,
        /// From the write to the approval.
        latency_us: u64,
    },
    /// A write changed maps that the running generation has shadow tables of. These were updated; its code
    /// still runs.
    Refreshed {
        /// Its number.
        generation: u32,
        /// Time at which the write that it answers began.
        #[serde(skip_serializing_if = "Option::is_none")]
        write_ns: Option<u64>,
        /// From that write until the shadow tables are up to date.
        #[serde(rename = "shadow_tables_us", skip_serializing_if = "Option::is_none")]
        in_step_us: Option<u64>,
        /// From that write to the first packet that finds the new contents.
        #[serde(skip_serializing_if = "Option::is_none")]
        latency_us: Option<u64>,
        /// Reading the maps.
        read_us: u64,
        /// Making and writing the shadow tables.
        write_us: u64,
        /// Bytes written.
        bytes: u64,
    },
    /// The running generation was taken back; the original runs.
    Withdrawn {
        /// Its number.
        generation: u32,
        /// Reason.
        reason: String,
    },
    /// A variant of a new shape was compared with the original on packets that were just seen, before it was
    /// installed.
    #[serde(rename = "evaluated")]
    Judged {
        /// Generation that it would be.
        generation: u32,
        /// Result.
        outcome: VariantVerdict,
        /// Packets that were replayed.
        packets: usize,
        /// Its time over the original's, if that was measured, and the 99 % interval.
        #[serde(skip_serializing_if = "Option::is_none")]
        ratio: Option<(f64, [f64; 2])>,
        /// Measured gain, in nanoseconds per packet.
        #[serde(rename = "gain_ns", skip_serializing_if = "Option::is_none")]
        gained_ns: Option<f64>,
        /// Predicted gain, from the cost of lookups in the maps as they are: the difference is the model's
        /// error.
        #[serde(rename = "predicted_gain_ns", skip_serializing_if = "Option::is_none")]
        predicted_ns: Option<f64>,
        /// Duration, in milliseconds.
        ms: u64,
        /// Reason why it was not judged, or the difference.
        #[serde(skip_serializing_if = "Option::is_none")]
        reason: Option<String>,
        /// For one that differs: path of the file with the details.
        #[serde(skip_serializing_if = "Option::is_none")]
        file: Option<String>,
    },
    /// Fewer lookups than before are for the hot keys in code: the traffic has changed, and is looked at
    /// again.
    #[serde(rename = "traffic_changed")]
    Shifted {
        /// The generation that runs.
        generation: u32,
        /// Usual lookups per packet that hot keys did not answer.
        #[serde(rename = "usual_misses")]
        usual: f64,
        /// Current lookups per packet that hot keys do not answer.
        #[serde(rename = "current_misses")]
        now: f64,
    },
    /// A variant was not made, or not accepted.
    Dropped {
        /// Reason.
        reason: String,
    },
    /// State of the session.
    Status {
        /// Packets a second at the interface.
        pps: f64,
        /// Packets at the interfaces since the program was attached.
        packets: u64,
        /// As `packets`, for each interface, by its name.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        received: Vec<(String, u64)>,
        /// Those of these packets that specialised code took, if they are counted.
        #[serde(skip_serializing_if = "Option::is_none")]
        specialised: Option<u64>,
        /// Nanoseconds a packet of the original.
        #[serde(rename = "original_ns", skip_serializing_if = "Option::is_none")]
        before_ns: Option<f64>,
        /// Nanoseconds a packet of the running program.
        #[serde(rename = "current_ns", skip_serializing_if = "Option::is_none")]
        now_ns: Option<f64>,
        /// The generation that runs; 0: the original.
        generation: u32,
        /// State of the guard.
        guard: GuardState,
        /// Writes that the guard has seen.
        writes: u64,
        /// Number of times that a program replaced another on the hook.
        swaps: u64,
        /// Filled slots of the object's program arrays.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        chain: Vec<SlotDetails>,
    },
    /// The end.
    Stopped {
        /// Program that is attached now.
        #[serde(rename = "attached_program")]
        left: String,
    },
}

/// Results of judging a variant.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum VariantVerdict {
    /// It does the same, and takes less time.
    Faster,
    /// It does the same; live traffic will tell whether it takes less time.
    Same,
    /// It does the same, and takes more time on replayed packets, which do not show the time that its copies
    /// of entries save: it is taken back unless live traffic shows it to be faster.
    Trial,
    /// It does the same, and takes no less time.
    NotFaster,
    /// It does something else. No variant of its shape is tried again.
    Different,
    /// It cannot be replayed; live traffic will tell.
    #[serde(rename = "not_evaluated")]
    Unjudged,
}

/// An interface that the program is on.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AttachedInterface {
    /// Its index.
    pub ifindex: u32,
    /// Its name.
    pub interface: String,
    /// For an XDP program: place in the receive path where it runs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mode: Option<String>,
}

impl From<HookInfo> for AttachedInterface {
    fn from(held: HookInfo) -> AttachedInterface {
        AttachedInterface {
            ifindex: held.ifindex,
            interface: held.interface,
            mode: held.mode.map(|m| m.to_string()),
        }
    }
}

/// Reasons for making a generation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CompileReason {
    /// The first look at the traffic.
    Start,
    /// A profile that another session has learnt.
    Profile,
    /// The traffic's hot keys have changed.
    Traffic,
    /// The control plane has changed contents from which the code was made.
    Write,
    /// No write came for a while: whole tables are worth their time.
    Quiet,
}

/// States of the guard.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum GuardState {
    /// It runs.
    Valid,
    /// It runs, but looks up some maps itself: their shadow tables are not up to date.
    #[serde(rename = "partial")]
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
            GuardState::Behind => "partial",
            GuardState::Revoked => "revoked",
            GuardState::Off => "off",
        })
    }
}

impl SessionReport {
    /// One JSON line with the schema's number.
    pub fn json(&self) -> String {
        #[derive(Serialize)]
        struct ReportLine<'r> {
            schema: u32,
            #[serde(flatten)]
            report: &'r SessionReport,
        }
        serde_json::to_string(&ReportLine { schema: SCHEMA, report: self }).unwrap_or_default()
    }
}

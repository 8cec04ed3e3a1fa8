//! Messages between the daemon and its clients: one JSON object per line, each with the schema's number.
//!
//! A connection may ask any number of times; each question gets one line. `docs/daemon.md` has the fields.

use millstream_specialize::SessionReport;
use millstream_specialize::live::code_listing::CodeListing;
use millstream_specialize::live::details::{SessionDetails, SlotDetails};
use millstream_specialize::report::{AttachedInterface, GuardState};
use serde::{Deserialize, Serialize};

/// Version of both sides' messages. A question of another version is refused.
pub const SCHEMA: u32 = 2;
/// Maximum length of a question, in bytes.
pub const LONGEST: u64 = 64 << 10;

/// A question.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Question {
    /// Version of the messages.
    pub schema: u32,
    /// The command.
    #[serde(flatten)]
    pub command: DaemonCommand,
}

/// Command of a question. Where a program may be named, `None` means all.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(tag = "command", rename_all = "snake_case")]
pub enum DaemonCommand {
    /// Status of the daemon and its programs.
    Status,
    /// Implementation of each lookup of a program, and its hot keys.
    Details {
        /// The program.
        program: String,
    },
    /// Instructions of a program and of its specialized form, by source line.
    Code {
        /// The program.
        program: String,
    },
    /// The last so many records, oldest first.
    History {
        /// The program.
        program: Option<String>,
        /// Number of records, at most.
        last: Option<usize>,
    },
    /// Make no new code; specialised code runs until the first write that changes it.
    Pause {
        /// The program.
        program: Option<String>,
    },
    /// Put the original back at once, and make no new code.
    Rollback {
        /// The program.
        program: Option<String>,
    },
    /// Go on after a pause, a rollback or a stop; try again at once after a failure.
    Resume {
        /// The program.
        program: Option<String>,
    },
    /// Give a program's interfaces back; without a name, everything, and end.
    Stop {
        /// The program.
        program: Option<String>,
    },
    /// Read the configuration again.
    Reload,
}

/// An answer.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct DaemonReply {
    /// Version of the messages.
    pub schema: u32,
    /// The answer.
    #[serde(flatten)]
    pub answer: ReplyBody,
}

/// Content of an answer.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(tag = "answer", rename_all = "snake_case")]
pub enum ReplyBody {
    /// Status of the daemon and its programs.
    Status(DaemonStatus),
    /// Details of a program.
    Details {
        /// The details.
        details: SessionDetails,
    },
    /// Code of a program.
    Code {
        /// The code.
        code: CodeListing,
    },
    /// Records, oldest first.
    History {
        /// The records.
        records: Vec<HistoryRecord>,
    },
    /// The command succeeded, for these programs.
    Done {
        /// The programs.
        programs: Vec<String>,
    },
    /// The command was refused.
    Refused {
        /// The reason.
        message: String,
        /// Advice.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        help: Option<String>,
    },
}

/// Status of the daemon.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
pub struct DaemonStatus {
    /// Version of Millstream.
    pub version: String,
    /// Number of its process.
    pub pid: u32,
    /// Seconds since it started.
    pub uptime_s: f64,
    /// Seconds of processor time, of user and system.
    pub cpu_s: f64,
    /// Resident memory.
    pub rss_bytes: u64,
    /// Its programs.
    pub programs: Vec<ProgramStatus>,
}

/// State of a program's session.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ProgramState {
    /// It is being loaded and attached.
    #[default]
    Starting,
    /// Running, specialised as needed.
    Running,
    /// No new code is made.
    Paused,
    /// The original runs, and no new code is made.
    RolledBack,
    /// Its interface is missing; it goes on when that appears.
    Waiting,
    /// It failed; it is tried again.
    Failed,
    /// Its interfaces were given back.
    Stopped,
}

impl ProgramState {
    /// Name of the state, for people.
    pub fn name(self) -> &'static str {
        match self {
            ProgramState::Starting => "starting",
            ProgramState::Running => "running",
            ProgramState::Paused => "paused",
            ProgramState::RolledBack => "rolled back",
            ProgramState::Waiting => "waiting",
            ProgramState::Failed => "failed",
            ProgramState::Stopped => "stopped",
        }
    }
}

/// Object of a program.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
pub struct ObjectStatus {
    /// Path of the object, or of the bundle.
    pub object: String,
    /// Form of a bundle that runs, and the reason for it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub form: Option<String>,
}

/// Interfaces of a program.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
pub struct AttachmentStatus {
    /// The interfaces that it is attached to.
    pub interfaces: Vec<AttachedInterface>,
    /// Configured interfaces that it is not attached to.
    pub missing: Vec<String>,
}

/// Maps of a program, by the use that code may make of them.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
pub struct MapUseStatus {
    /// Maps that code may be specialised on.
    pub watched: Vec<String>,
    /// Maps that code may not be specialised on, with reasons.
    pub refused: Vec<(String, String)>,
}

/// Packets of a program.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
pub struct TrafficStatus {
    /// Packets per second.
    pub pps: f64,
    /// Packets since the session began.
    pub packets: u64,
    /// The same by interface.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub received: Vec<(String, u64)>,
    /// Packets handled by specialised code, where they are counted.
    pub specialised: Option<u64>,
}

/// Times per packet of a program.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
pub struct PacketTimes {
    /// Time per packet of the original.
    pub original_ns: Option<f64>,
    /// Time per packet of the running code.
    pub current_ns: Option<f64>,
}

/// Status of a program. Field names end with the unit of times.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
pub struct ProgramStatus {
    /// Name in the configuration.
    pub name: String,
    /// Its object.
    #[serde(flatten)]
    pub source: ObjectStatus,
    /// State of its session.
    pub state: ProgramState,
    /// Reason why it waits or has failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// Advice to the user.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub advice: Vec<String>,
    /// The program, once it was loaded.
    pub program: Option<String>,
    /// Its interfaces.
    #[serde(flatten)]
    pub attachment: AttachmentStatus,
    /// Its maps.
    #[serde(flatten)]
    pub maps: MapUseStatus,
    /// Generation of the running code; 0: the original.
    pub generation: u32,
    /// State of its guard.
    pub guard: Option<GuardState>,
    /// Its packets.
    #[serde(flatten)]
    pub traffic: TrafficStatus,
    /// Its times per packet.
    #[serde(flatten)]
    pub times: PacketTimes,
    /// Writes to maps that the guard has seen.
    pub writes: u64,
    /// Exchanges of the running code.
    pub swaps: u64,
    /// Contents of the slots of its program arrays.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub chain: Vec<SlotDetails>,
    /// Counts of events.
    pub counts: EventCounts,
}

/// Counts of events, over all sessions of the program.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct EventCounts {
    /// Generations installed.
    pub installs: u64,
    /// Generations withdrawn.
    pub withdrawals: u64,
    /// Writes that needed no new code.
    pub confirmations: u64,
    /// Writes that needed only new shadow tables.
    #[serde(rename = "shadow_table_updates")]
    pub refreshes: u64,
    /// Generations that were not made or not used.
    #[serde(rename = "dropped_generations")]
    pub dropped: u64,
    /// Rollbacks on request.
    pub rollbacks: u64,
    /// Sessions that failed.
    pub failures: u64,
}

/// An event.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct HistoryRecord {
    /// Sequence number over all programs.
    pub number: u64,
    /// Milliseconds since 1970.
    pub time_ms: u64,
    /// The program.
    pub program: String,
    /// The event.
    #[serde(flatten)]
    pub what: HistoryEvent,
}

/// Kind of event.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum HistoryEvent {
    /// A report of the session.
    Report(SessionReport),
    /// The program entered this state.
    State {
        /// The state.
        state: ProgramState,
        /// Reason for it.
        reason: Option<String>,
    },
}

/// A line of `millstream history --json`, with the schema's number: `docs/daemon.md` has the fields.
#[derive(Debug, Serialize)]
pub struct HistoryLine<'r> {
    schema: u32,
    #[serde(flatten)]
    record: &'r HistoryRecord,
}

impl HistoryLine<'_> {
    /// The line of a record.
    pub fn of(record: &HistoryRecord) -> HistoryLine<'_> {
        HistoryLine { schema: SCHEMA, record }
    }

    /// Its text, without the end of the line.
    pub fn json(&self) -> String {
        serde_json::to_string(self).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_read_as_they_were_written() {
        let question =
            Question { schema: SCHEMA, command: DaemonCommand::Pause { program: Some("a".into()) } };
        let line = serde_json::to_string(&question).unwrap();
        assert_eq!(line, r#"{"schema":2,"command":"pause","program":"a"}"#);
        assert_eq!(serde_json::from_str::<Question>(&line).unwrap(), question);
        let what = HistoryEvent::Report(SessionReport::Withdrawn { generation: 3, reason: "r".into() });
        let records = vec![HistoryRecord { number: 1, time_ms: 2, program: "p".into(), what }];
        let reply = DaemonReply { schema: SCHEMA, answer: ReplyBody::History { records } };
        let line = serde_json::to_string(&reply).unwrap();
        assert_eq!(serde_json::from_str::<DaemonReply>(&line).unwrap(), reply, "{line}");
        let status = DaemonStatus { programs: vec![ProgramStatus::default()], ..DaemonStatus::default() };
        let reply = DaemonReply { schema: SCHEMA, answer: ReplyBody::Status(status) };
        let line = serde_json::to_string(&reply).unwrap();
        assert_eq!(serde_json::from_str::<DaemonReply>(&line).unwrap(), reply, "{line}");
    }

    /// One record of each kind.
    fn records() -> Vec<HistoryRecord> {
        use millstream_specialize::report::{CompileReason, VariantVerdict};
        let attachment =
            AttachedInterface { ifindex: 2, interface: "eth0".into(), mode: Some("native".into()) };
        let reports = [
            SessionReport::Attached {
                program: "router".into(),
                interfaces: vec![attachment.clone()],
                took_over: false,
                watched: vec!["routes".into()],
                refused: vec![("stats".into(), "it is written".into())],
            },
            SessionReport::Moved { interfaces: vec![attachment] },
            SessionReport::Specialised {
                generation: 1,
                reason: CompileReason::Start,
                write_ns: Some(1),
                latency_us: Some(2),
                compile_us: 3,
                load_us: 4,
                swap_us: 5,
                entries: 6,
                slots: 7,
                ns: Some(8.5),
            },
            SessionReport::StandsBy { generation: 2, compile_us: 3, load_us: 4, slots: 5 },
            SessionReport::Confirmed { generation: 1, write_ns: 2, latency_us: 3 },
            SessionReport::Refreshed {
                generation: 1,
                write_ns: Some(2),
                in_step_us: Some(3),
                latency_us: Some(4),
                read_us: 5,
                write_us: 6,
                bytes: 7,
            },
            SessionReport::Withdrawn { generation: 1, reason: "slower".into() },
            SessionReport::Judged {
                generation: 1,
                outcome: VariantVerdict::Faster,
                packets: 512,
                ratio: Some((0.5, [0.4, 0.6])),
                gained_ns: Some(10.0),
                predicted_ns: Some(11.0),
                ms: 12,
                reason: Some("why".into()),
                file: Some("file".into()),
            },
            SessionReport::Shifted { generation: 1, usual: 0.1, now: 0.5 },
            SessionReport::Dropped { reason: "nothing to specialise on".into() },
            SessionReport::Stopped { left: "nothing".into() },
        ];
        let states = [HistoryEvent::State { state: ProgramState::Failed, reason: Some("why".into()) }];
        let all = reports.into_iter().map(HistoryEvent::Report).chain(states);
        all.zip(1..)
            .map(|(what, number)| HistoryRecord { number, time_ms: 2, program: "p".into(), what })
            .collect()
    }

    #[test]
    fn lines_of_a_history_have_a_schema_and_fields_that_are_documented() {
        let page = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/daemon.md");
        let page = std::fs::read_to_string(page).unwrap();
        let part = page.split("## The history as JSON").nth(1).and_then(|rest| rest.split("\n## ").next());
        let part = part.expect("the page has a part on it");
        for record in records() {
            let line: serde_json::Value = serde_json::from_str(&HistoryLine::of(&record).json()).unwrap();
            assert_eq!((&line["schema"], &line["number"]), (&SCHEMA.into(), &record.number.into()));
            let row = match (&line["report"]["event"], &line["state"]) {
                (serde_json::Value::String(event), _) => format!("| `{event}` |"),
                _ => "| `state` |".to_owned(),
            };
            let row =
                part.lines().find(|line| line.starts_with(&row)).unwrap_or_else(|| panic!("no row {row}"));
            let of = if line["report"].is_object() { &line["report"] } else { &line["state"] };
            for name in of.as_object().unwrap().keys().filter(|name| *name != "event") {
                assert!(row.contains(&format!("`{name}`")), "{name} is not in {row}");
            }
            for name in line.as_object().unwrap().keys() {
                assert!(part.contains(&format!("`{name}`")), "{name} is not documented");
            }
        }
    }
}

//! Messages between the daemon and its clients: one JSON object per line, each with the schema's number.
//!
//! A connection may ask any number of times; each question gets one line. `docs/daemon.md` has the fields.

use millstream_specialize::SessionReport;
use millstream_specialize::live::details::{SessionDetails, SlotDetails};
use millstream_specialize::report::{AttachedInterface, GuardState};
use serde::{Deserialize, Serialize};

/// Version of both sides' messages. A question of another version is refused.
pub(crate) const SCHEMA: u32 = 2;
/// Maximum length of a question, in bytes.
pub(crate) const LONGEST: u64 = 64 << 10;

/// A question.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub(crate) struct Question {
    pub(crate) schema: u32,
    #[serde(flatten)]
    pub(crate) command: DaemonCommand,
}

/// Command of a question. Where a program may be named, `None` means all.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(tag = "command", rename_all = "snake_case")]
pub(crate) enum DaemonCommand {
    /// Status of the daemon and its programs.
    Status,
    /// Implementation of each lookup of a program, and its hot keys.
    Details { program: String },
    /// The last so many records, oldest first.
    History { program: Option<String>, last: Option<usize> },
    /// Make no new code; specialised code runs until the first write that changes it.
    Pause { program: Option<String> },
    /// Put the original back at once, and make no new code.
    Rollback { program: Option<String> },
    /// Go on after a pause, a rollback or a stop; try again at once after a failure.
    Resume { program: Option<String> },
    /// Give a program's interfaces back; without a name, everything, and end.
    Stop { program: Option<String> },
    /// Read the configuration again.
    Reload,
}

/// An answer.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub(crate) struct DaemonReply {
    pub(crate) schema: u32,
    #[serde(flatten)]
    pub(crate) answer: ReplyBody,
}

/// Content of an answer.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(tag = "answer", rename_all = "snake_case")]
pub(crate) enum ReplyBody {
    Status(DaemonStatus),
    Details {
        details: SessionDetails,
    },
    History {
        records: Vec<HistoryRecord>,
    },
    /// The command succeeded, for these programs.
    Done {
        programs: Vec<String>,
    },
    /// The command was refused.
    Refused {
        message: String,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        help: Option<String>,
    },
}

/// Status of the daemon.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
pub(crate) struct DaemonStatus {
    pub(crate) version: String,
    pub(crate) pid: u32,
    pub(crate) uptime_s: f64,
    /// Seconds of processor time, of user and system.
    pub(crate) cpu_s: f64,
    /// Resident memory.
    pub(crate) rss_bytes: u64,
    pub(crate) programs: Vec<ProgramStatus>,
}

/// State of a program's session.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum ProgramState {
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
    pub(crate) fn name(self) -> &'static str {
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

/// Status of a program. Field names end with the unit of times.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
pub(crate) struct ProgramStatus {
    pub(crate) name: String,
    pub(crate) object: String,
    pub(crate) state: ProgramState,
    /// Reason why it waits or has failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) reason: Option<String>,
    /// Advice to the user.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) advice: Vec<String>,
    /// The program, once it was loaded.
    pub(crate) program: Option<String>,
    /// The interfaces that it is attached to.
    pub(crate) interfaces: Vec<AttachedInterface>,
    /// Configured interfaces that it is not attached to.
    pub(crate) missing: Vec<String>,
    /// Maps that code may be specialised on.
    pub(crate) watched: Vec<String>,
    /// Maps that code may not be specialised on, with reasons.
    pub(crate) refused: Vec<(String, String)>,
    /// Generation of the running code; 0: the original.
    pub(crate) generation: u32,
    pub(crate) guard: Option<GuardState>,
    pub(crate) pps: f64,
    pub(crate) packets: u64,
    /// The same by interface.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) received: Vec<(String, u64)>,
    /// Packets handled by specialised code, where they are counted.
    pub(crate) specialised: Option<u64>,
    pub(crate) original_ns: Option<f64>,
    pub(crate) current_ns: Option<f64>,
    pub(crate) writes: u64,
    pub(crate) swaps: u64,
    /// Contents of the slots of its program arrays.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) chain: Vec<SlotDetails>,
    pub(crate) counts: EventCounts,
}

/// Counts of events, over all sessions of the program.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub(crate) struct EventCounts {
    /// Generations installed.
    pub(crate) installs: u64,
    /// Generations withdrawn.
    pub(crate) withdrawals: u64,
    /// Writes that needed no new code.
    pub(crate) confirmations: u64,
    /// Writes that needed only new shadow tables.
    #[serde(rename = "shadow_table_updates")]
    pub(crate) refreshes: u64,
    /// Generations that were not made or not used.
    #[serde(rename = "dropped_generations")]
    pub(crate) dropped: u64,
    /// Rollbacks on request.
    pub(crate) rollbacks: u64,
    /// Sessions that failed.
    pub(crate) failures: u64,
}

/// An event.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub(crate) struct HistoryRecord {
    /// Sequence number over all programs.
    pub(crate) number: u64,
    /// Milliseconds since 1970.
    pub(crate) time_ms: u64,
    pub(crate) program: String,
    #[serde(flatten)]
    pub(crate) what: HistoryEvent,
}

/// Kind of event.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum HistoryEvent {
    /// A report of the session.
    Report(SessionReport),
    /// The program entered this state.
    State { state: ProgramState, reason: Option<String> },
}

/// A line of `millstream history --json`, with the schema's number: `docs/daemon.md` has the fields.
#[derive(Debug, Serialize)]
pub(crate) struct HistoryLine<'r> {
    schema: u32,
    #[serde(flatten)]
    record: &'r HistoryRecord,
}

impl HistoryLine<'_> {
    /// The line of a record.
    pub(crate) fn of(record: &HistoryRecord) -> HistoryLine<'_> {
        HistoryLine { schema: SCHEMA, record }
    }

    /// Its text, without the end of the line.
    pub(crate) fn json(&self) -> String {
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

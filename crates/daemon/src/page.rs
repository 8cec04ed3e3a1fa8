//! The page of `millstream daemon --web`: programs, lookups and generations, live.
//!
//! It shows the status, details and history that the control socket gives, and changes nothing.

use std::net::TcpListener;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use millstream_service::page::{PageEvent, PageFile, PageSource, PageToken, serve};
use millstream_specialize::live::details::SessionDetails;
use serde::Serialize;

use crate::Daemon;
use crate::protocol::{DaemonCommand, HistoryRecord, ProgramState, ReplyBody, SCHEMA};

const FILES: &[PageFile] = &[
    PageFile { path: "/", kind: "text/html; charset=utf-8", text: include_str!("page/index.html") },
    PageFile { path: "/page.css", kind: "text/css; charset=utf-8", text: include_str!("page/page.css") },
    PageFile { path: "/page.js", kind: "text/javascript; charset=utf-8", text: include_str!("page/page.js") },
];

/// Records that a new viewer gets.
const RECORDS: usize = 300;
/// Interval between two looks at lookups and keys.
const DETAILS_INTERVAL: Duration = Duration::from_secs(3);

/// An event's data: an answer of the control socket, with the version of its schema.
#[derive(Serialize)]
struct PageData<'d, T> {
    schema: u32,
    #[serde(flatten)]
    data: &'d T,
}

/// Details of a program.
#[derive(Serialize)]
struct ProgramDetails {
    program: String,
    details: SessionDetails,
}

#[derive(Serialize)]
struct NewRecords {
    records: Vec<HistoryRecord>,
}

/// State between two calls for changes.
#[derive(Debug, Default)]
struct Shown {
    /// Number of the last record that viewers have.
    last: u64,
    /// Time of the last look at the lookups.
    looked: Option<Instant>,
    /// True while a thread looks at them: a program that compiles answers afterwards.
    is_looking: bool,
    /// Lookups that viewers do not have.
    details: Vec<PageEvent>,
}

/// Data of a daemon.
#[derive(Clone, Debug)]
struct DaemonPage {
    daemon: Arc<Daemon>,
    shown: Arc<Mutex<Shown>>,
}

/// Serves the page, in a thread that ends with the process.
pub(crate) fn start(listener: TcpListener, token: PageToken, daemon: Arc<Daemon>) {
    let source = Arc::new(DaemonPage { daemon, shown: Arc::default() });
    std::thread::spawn(move || {
        if let Err(error) = serve(listener, FILES, token, source) {
            tracing::warn!("page: {error}");
        }
    });
}

fn event<T: Serialize>(name: &'static str, data: &T) -> PageEvent {
    let data = serde_json::to_string(&PageData { schema: SCHEMA, data }).unwrap_or_default();
    PageEvent { name, data }
}

impl DaemonPage {
    fn status(&self) -> PageEvent {
        event("status", &self.daemon.status())
    }

    /// Lookups of the programs whose sessions run, and the ways in which they are answered.
    fn details(&self) -> Vec<PageEvent> {
        let status = self.daemon.status();
        let live = |state| matches!(state, ProgramState::Running | ProgramState::Paused);
        let programs = status.programs.into_iter().filter(|program| live(program.state));
        let details = programs.filter_map(|program| {
            match self.daemon.answer(DaemonCommand::Details { program: program.name.clone() }) {
                ReplyBody::Details { details } => {
                    Some(event("details", &ProgramDetails { program: program.name, details }))
                }
                _ => None,
            }
        });
        details.collect()
    }

    /// Records after one of this number.
    fn records(&self, after: u64) -> Vec<HistoryRecord> {
        match self.daemon.answer(DaemonCommand::History { program: None, last: Some(RECORDS) }) {
            ReplyBody::History { mut records } => {
                records.retain(|record| record.number > after);
                records
            }
            _ => Vec::new(),
        }
    }
}

impl DaemonPage {
    fn shown(&self) -> MutexGuard<'_, Shown> {
        self.shown.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Looks at the lookups in a thread of its own, if it is time.
    fn look(&self) {
        let mut shown = self.shown();
        if shown.is_looking || shown.looked.is_some_and(|at| at.elapsed() < DETAILS_INTERVAL) {
            return;
        }
        (shown.is_looking, shown.looked) = (true, Some(Instant::now()));
        drop(shown);
        let page = self.clone();
        std::thread::spawn(move || {
            let details = page.details();
            let mut shown = page.shown();
            (shown.is_looking, shown.details) = (false, details);
        });
    }
}

impl PageSource for DaemonPage {
    fn all(&self) -> Vec<PageEvent> {
        // The lookups come with the next changes.
        self.shown().looked = None;
        vec![self.status(), event("history", &NewRecords { records: self.records(0) })]
    }

    fn changes(&self) -> Vec<PageEvent> {
        self.look();
        let mut events = vec![self.status()];
        let last = {
            let mut shown = self.shown();
            events.append(&mut shown.details);
            shown.last
        };
        let records = self.records(last);
        if let Some(newest) = records.iter().map(|record| record.number).max() {
            self.shown().last = newest;
            events.push(event("history", &NewRecords { records }));
        }
        events
    }

    fn document(&self, path: &str, value: &str) -> Option<String> {
        let command = match path {
            "code" => DaemonCommand::Code { program: value.to_owned() },
            _ => return None,
        };
        let data = self.daemon.answer(command);
        serde_json::to_string(&PageData { schema: SCHEMA, data: &data }).ok()
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::ConfigSources;

    /// The page has its parts from its own server only, within the limits for its size.
    #[test]
    fn the_page_is_small_and_has_no_outside_resource() {
        let bytes: usize = FILES.iter().map(|file| file.text.len()).sum();
        assert!(bytes < 200_000, "{bytes} bytes");
        for file in FILES {
            let outside = ["http://", "https://", "//cdn", "@import", "url("];
            let found: Vec<_> = outside
                .iter()
                .filter(|text| file.text.replace("http://www.w3.org/2000/svg", "").contains(**text))
                .collect();
            assert!(found.is_empty(), "{}: {found:?}", file.path);
        }
        let version = format!("const SCHEMA = {SCHEMA};");
        assert!(FILES[2].text.contains(&version), "the script is for another schema");
        // Scripts and styles are files: the server's policy forbids others.
        assert!(!FILES[0].text.contains("style=") && !FILES[0].text.contains("onclick"));
    }

    /// Elements that the script names are in the page.
    #[test]
    fn the_script_finds_its_elements() {
        let names = FILES[2].text.split("at(\"").skip(1).filter_map(|rest| rest.split('"').next());
        let missing: Vec<_> = names.filter(|id| !FILES[0].text.contains(&format!("id=\"{id}\""))).collect();
        assert!(missing.is_empty(), "{missing:?}");
    }

    #[test]
    fn a_daemon_without_programs_has_a_status_and_no_records() {
        let sources = ConfigSources { file: Some(Path::new("none").to_owned()), flags: Vec::new() };
        let page = DaemonPage { daemon: Arc::new(Daemon::new(sources, None)), shown: Arc::default() };
        let names = |events: Vec<PageEvent>| events.into_iter().map(|event| event.name).collect::<Vec<_>>();
        assert_eq!(names(page.all()), ["status", "history"]);
        let changes = page.changes();
        assert!(changes[0].data.starts_with("{\"schema\":2,\"version\":"), "{}", changes[0].data);
        assert_eq!(names(changes), ["status"]);
    }
}

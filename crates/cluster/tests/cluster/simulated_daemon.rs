//! A daemon that runs no program: it speaks the daemon's protocol over its socket, and has the state and the times of
//! one program, which depend on the bundle that is installed.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use millstream_bundle::Bundle;
use millstream_daemon::protocol::{
    DaemonCommand, DaemonReply, DaemonStatus, ObjectStatus, PacketTimes, ProgramState, ProgramStatus,
    Question, ReplyBody, SCHEMA, TrafficStatus,
};

/// Effect of the new bundle on a node.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum NewBundle {
    Faster,
    Slower,
    Fails,
}

/// The daemon of a node.
pub(crate) struct SimulatedDaemon {
    bundles: PathBuf,
    state: Mutex<DaemonState>,
}

struct DaemonState {
    /// Version of the bundle that runs: 1 or 2.
    version: u8,
    is_rolled_back: bool,
    new_bundle: NewBundle,
    packets: u64,
    /// Largest version that ever ran.
    newest: u8,
}

impl SimulatedDaemon {
    /// Starts a daemon with a socket in this folder, and bundles in `bundles` below it.
    pub(crate) fn start(folder: &Path, new_bundle: NewBundle) -> Arc<SimulatedDaemon> {
        let bundles = folder.join("bundles");
        let version = version(&bundles.join("router.tar"));
        let state = DaemonState { version, is_rolled_back: false, new_bundle, packets: 0, newest: version };
        let daemon = Arc::new(SimulatedDaemon { bundles, state: Mutex::new(state) });
        let listener = UnixListener::bind(folder.join("daemon.sock")).unwrap();
        let serving = Arc::clone(&daemon);
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                serving.converse(&stream);
            }
        });
        daemon
    }

    /// Changes the effect of the new bundle.
    pub(crate) fn set_new_bundle(&self, new_bundle: NewBundle) {
        self.state.lock().unwrap().new_bundle = new_bundle;
    }

    /// Version of the bundle that runs, and whether the original does.
    pub(crate) fn runs(&self) -> (u8, bool) {
        let state = self.state.lock().unwrap();
        (state.version, state.is_rolled_back)
    }

    /// Largest version that has run since the last call.
    pub(crate) fn take_newest(&self) -> u8 {
        let mut state = self.state.lock().unwrap();
        let version = state.version;
        std::mem::replace(&mut state.newest, version)
    }

    fn converse(&self, stream: &UnixStream) {
        let mut reader = BufReader::new(stream);
        let mut line = String::new();
        while reader.read_line(&mut line).is_ok_and(|read| read > 0) {
            let question: Question = serde_json::from_str(&line).unwrap();
            let reply = DaemonReply { schema: SCHEMA, answer: self.answer(&question.command) };
            let mut out: &UnixStream = stream;
            let _ = writeln!(out, "{}", serde_json::to_string(&reply).unwrap());
            line.clear();
        }
    }

    fn answer(&self, command: &DaemonCommand) -> ReplyBody {
        let mut state = self.state.lock().unwrap();
        match command {
            DaemonCommand::Status => {
                state.packets += 1000;
                let programs = vec![state.program()];
                return ReplyBody::Status(DaemonStatus { programs, ..DaemonStatus::default() });
            }
            DaemonCommand::Reload => {
                state.version = version(&self.bundles.join("router.tar"));
                state.newest = state.newest.max(state.version);
                state.is_rolled_back = false;
            }
            DaemonCommand::Rollback { .. } => state.is_rolled_back = true,
            DaemonCommand::Resume { .. } => state.is_rolled_back = false,
            _ => return ReplyBody::Refused { message: "not simulated".into(), help: None },
        }
        ReplyBody::Done { programs: vec!["router".into()] }
    }
}

impl DaemonState {
    fn program(&self) -> ProgramStatus {
        let is_new = self.version == 2;
        let fails = is_new && self.new_bundle == NewBundle::Fails;
        let is_slower = is_new && self.new_bundle == NewBundle::Slower;
        let current_ns = if self.is_rolled_back || is_slower { 100.0 } else { 80.0 };
        ProgramStatus {
            name: "router".into(),
            source: ObjectStatus { object: "router.tar".into(), form: Some("optimized, proven here".into()) },
            state: match (fails, self.is_rolled_back) {
                (true, _) => ProgramState::Failed,
                (false, true) => ProgramState::RolledBack,
                (false, false) => ProgramState::Running,
            },
            reason: fails.then(|| "the verifier rejects it".into()),
            generation: u32::from(!self.is_rolled_back),
            traffic: TrafficStatus { pps: 1000.0, packets: self.packets, ..TrafficStatus::default() },
            times: PacketTimes { original_ns: Some(100.0), current_ns: Some(current_ns) },
            ..ProgramStatus::default()
        }
    }
}

/// Version of the bundle in a file: the last byte of its object.
fn version(path: &Path) -> u8 {
    let bundle = Bundle::read(path).unwrap();
    let original = bundle.original().unwrap();
    bundle.data(original).last().unwrap() - b'0'
}

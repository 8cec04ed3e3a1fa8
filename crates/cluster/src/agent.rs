//! The agent of a node: brings the daemon to the state that the node's resource wants, and reports the actual state.
//!
//! It compares and corrects, again and again, so a daemon that was restarted is brought back too. Without the API
//! server it keeps the last state that it knows; it never guesses one.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::mpsc::{Receiver, RecvTimeoutError, sync_channel};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use millstream_daemon::client::{DaemonConnection, utc_text};
use millstream_daemon::protocol::{DaemonCommand, DaemonStatus, ProgramState, ProgramStatus, ReplyBody};

use crate::api::{ApiClient, ApiError, NodeChange};
use crate::bundle_store::{BundleStore, StoreError};
use crate::off_test::{LoadSample, OffTest, softirq_seconds};
use crate::resource::{
    BundleTarget, NodeHealth, NodeMode, NodeResource, NodeSpec, NodeStatus, OffTestReport, ProgramReport,
};
use crate::watcher::{WatchNews, follow};

/// Time between two looks at the daemon.
const LOOK: Duration = Duration::from_secs(1);
/// Time after which a bundle that could not be had is tried again.
const BUNDLE_RETRY: Duration = Duration::from_secs(10);
/// News of the API server that wait at most.
const NEWS: usize = 16;

/// Settings of an agent.
#[derive(Clone, Debug)]
pub struct AgentSettings {
    /// Name of the node, and of its resource.
    pub node: String,
    /// Socket of the daemon.
    pub socket: PathBuf,
    /// Longest time between two reports.
    pub report: Duration,
    /// Bundles of a node that has no resource yet.
    pub bundles: Vec<BundleTarget>,
}

/// An agent.
#[derive(Debug)]
pub struct NodeAgent {
    settings: AgentSettings,
    client: ApiClient,
    store: BundleStore,
    /// Begin of the agent's clock.
    start: Instant,
    /// The node's resource, once it is known.
    wanted: Option<NodeResource>,
    bundles: BundleProgress,
    off_test: Option<OffTest>,
    off_test_result: Option<OffTestReport>,
    /// The last report that was written, and its moment.
    written: Option<(NodeStatus, Instant)>,
}

/// Progress with the bundles of a node.
#[derive(Debug, Default)]
struct BundleProgress {
    /// True if the daemon has not read its configuration since bundles changed.
    needs_reload: bool,
    /// Error of the last attempt, with the generation that it was for and its moment.
    failed: Option<(String, i64, Instant)>,
}

impl NodeAgent {
    /// An agent.
    pub fn new(settings: AgentSettings, client: ApiClient, store: BundleStore) -> NodeAgent {
        NodeAgent {
            settings,
            client,
            store,
            start: Instant::now(),
            wanted: None,
            bundles: BundleProgress::default(),
            off_test: None,
            off_test_result: None,
            written: None,
        }
    }

    /// Installs the bundles that the resource names, once, before a daemon starts. Makes the resource if there is none.
    ///
    /// # Errors
    /// If the API server does not answer, or a bundle cannot be had.
    pub fn prepare(&self) -> Result<(), PrepareError> {
        let node = match self.client.get(&self.settings.node) {
            Err(ApiError::NotFound(_)) => self.client.create(&self.first_resource())?,
            node => node?,
        };
        self.store.install(&node.spec)?;
        Ok(())
    }

    /// Works until `end` is set.
    pub fn run(mut self, end: &Arc<AtomicBool>) {
        let (sender, news) = sync_channel(NEWS);
        let (client, name, until) = (self.client.clone(), self.settings.node.clone(), Arc::clone(end));
        std::thread::spawn(move || follow(&client, Some(&name), &sender, &until));
        while !end.load(std::sync::atomic::Ordering::Relaxed) {
            if !self.take_news(&news) {
                return;
            }
            self.reconcile();
        }
    }

    /// Waits for news, at most until the next look; returns false if there will be none.
    fn take_news(&mut self, news: &Receiver<WatchNews>) -> bool {
        let mut next = news.recv_timeout(LOOK);
        loop {
            match next {
                Ok(WatchNews::Listed(list)) => match list.nodes.into_iter().next() {
                    Some(node) => self.want(node),
                    None => self.create(),
                },
                Ok(WatchNews::Changed(NodeChange::Changed(node))) => self.want(*node),
                // The state stays until somebody wants another one.
                Ok(WatchNews::Changed(NodeChange::Removed(_))) => self.create(),
                Ok(WatchNews::Lost(error)) => tracing::warn!("the API server: {error}"),
                Err(RecvTimeoutError::Timeout) => return true,
                Err(RecvTimeoutError::Disconnected) => return false,
            }
            next = news.try_recv().map_err(|_| RecvTimeoutError::Timeout);
        }
    }

    fn want(&mut self, node: NodeResource) {
        if node.metadata.name == self.settings.node {
            self.wanted = Some(node);
        }
    }

    /// Makes the node's resource.
    fn create(&mut self) {
        match self.client.create(&self.first_resource()) {
            Ok(node) => self.want(node),
            Err(error) => tracing::warn!("the node's resource cannot be made: {error}"),
        }
    }

    /// A resource for the state that the node has, or begins with.
    fn first_resource(&self) -> NodeResource {
        let spec = match (&self.wanted, self.store.installed().unwrap_or_default()) {
            (Some(node), _) => NodeSpec { rollout: None, ..node.spec.clone() },
            (None, installed) if installed.is_empty() => {
                NodeSpec { bundles: self.settings.bundles.clone(), ..NodeSpec::default() }
            }
            (None, installed) => NodeSpec { bundles: installed, ..NodeSpec::default() },
        };
        NodeResource::new(&self.settings.node, spec)
    }

    /// Compares the actual state with the wanted one, corrects it, and reports.
    fn reconcile(&mut self) {
        let Some(wanted) = self.wanted.clone() else { return };
        let mut problems = Vec::new();
        if let Err(problem) = self.install_bundles(&wanted) {
            problems.push(problem);
        }
        let mode = self.due_mode(&wanted);
        let daemon = self.bring_to(mode, &mut problems);
        if let Some(daemon) = &daemon {
            self.step_off_test(mode, daemon);
        }
        let status = self.report(&wanted, mode, daemon.as_ref(), &problems);
        self.write(status);
    }

    fn install_bundles(&mut self, wanted: &NodeResource) -> Result<(), String> {
        let generation = wanted.metadata.generation;
        if let Some((error, of, at)) = &self.bundles.failed
            && *of == generation
            && at.elapsed() < BUNDLE_RETRY
        {
            return Err(error.clone());
        }
        self.bundles.failed = None;
        match self.store.install(&wanted.spec) {
            Ok(changed) => self.bundles.needs_reload |= changed,
            Err(error) => {
                let error = error.to_string();
                self.bundles.failed = Some((error.clone(), generation, Instant::now()));
                return Err(error);
            }
        }
        if self.bundles.needs_reload {
            self.ask(DaemonCommand::Reload)?;
            self.bundles.needs_reload = false;
        }
        Ok(())
    }

    /// Code that is to be attached now. Begins an off-test that was asked for.
    fn due_mode(&mut self, wanted: &NodeResource) -> NodeMode {
        let generation = wanted.metadata.generation;
        let asked = wanted.spec.off_test.filter(|_| wanted.spec.mode == NodeMode::OffTest);
        let Some(asked) = asked else {
            self.off_test = None;
            // Without a length there is no test.
            return if wanted.spec.mode == NodeMode::Originals {
                NodeMode::Originals
            } else {
                NodeMode::Specialised
            };
        };
        let reported = wanted.status.as_ref().and_then(|status| status.off_test.clone());
        self.off_test_result = self.off_test_result.take().or(reported);
        if self.off_test_result.as_ref().is_some_and(|result| result.generation == generation) {
            return NodeMode::Specialised;
        }
        if self.off_test.as_ref().is_none_or(|test| test.generation() != generation) {
            let length = Duration::from_secs(u64::from(asked.seconds.max(1)));
            self.off_test = Some(OffTest::new(generation, length));
        }
        self.off_test.as_ref().map_or(NodeMode::Specialised, OffTest::mode)
    }

    /// Gives the daemon the orders that the mode demands; returns its status afterwards, if it answers.
    fn bring_to(&self, mode: NodeMode, problems: &mut Vec<String>) -> Option<DaemonStatus> {
        let status = self.status().map_err(|problem| problems.push(problem)).ok()?;
        let orders = orders(mode, &status.programs);
        if orders.is_empty() {
            return Some(status);
        }
        problems.extend(orders.into_iter().filter_map(|order| self.ask(order).err()));
        self.status().map_err(|problem| problems.push(problem)).ok()
    }

    fn step_off_test(&mut self, mode: NodeMode, daemon: &DaemonStatus) {
        let Some(test) = &mut self.off_test else { return };
        if daemon.programs.iter().any(|program| !has_mode(program, mode)) {
            return;
        }
        let stat = std::fs::read_to_string("/proc/stat").unwrap_or_default();
        let packets = daemon.programs.iter().map(|program| program.traffic.packets).sum();
        let sample = LoadSample { packets, softirq_seconds: softirq_seconds(&stat).unwrap_or_default() };
        if let Some(result) = test.step(self.start.elapsed(), sample) {
            self.off_test_result = Some(result);
            self.off_test = None;
        }
    }

    fn report(
        &self,
        wanted: &NodeResource,
        mode: NodeMode,
        daemon: Option<&DaemonStatus>,
        problems: &[String],
    ) -> NodeStatus {
        let programs = daemon.map_or(&[][..], |daemon| daemon.programs.as_slice());
        let (health, message) = health(mode, programs, problems);
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let has_originals =
            !programs.is_empty() && programs.iter().all(|program| program.state == ProgramState::RolledBack);
        NodeStatus {
            observed_generation: wanted.metadata.generation,
            reported_at: utc_text(now.as_millis() as u64).replace(' ', "T"),
            health,
            message,
            mode: match (&self.off_test, has_originals) {
                (Some(_), _) => NodeMode::OffTest,
                (None, true) => NodeMode::Originals,
                (None, false) => NodeMode::Specialised,
            },
            bundles: self.store.installed().unwrap_or_default(),
            programs: programs.iter().map(program_report).collect(),
            off_test: self.off_test_result.clone(),
        }
    }

    /// Writes a report, if it says something new or the last one is old.
    fn write(&mut self, status: NodeStatus) {
        if let Some((last, at)) = &self.written
            && at.elapsed() < self.settings.report
            && says_the_same(last, &status)
        {
            return;
        }
        match self.client.write_status(&self.settings.node, &status) {
            Ok(_) => self.written = Some((status, Instant::now())),
            Err(error) => tracing::warn!("the report cannot be written: {error}"),
        }
    }

    fn status(&self) -> Result<DaemonStatus, String> {
        match self.ask(DaemonCommand::Status)? {
            ReplyBody::Status(status) => Ok(status),
            _ => Err("the daemon gives another answer than its status".to_owned()),
        }
    }

    fn ask(&self, command: DaemonCommand) -> Result<ReplyBody, String> {
        let asked = DaemonConnection::open(&self.settings.socket).and_then(|mut daemon| daemon.ask(command));
        match asked {
            Ok((_, ReplyBody::Refused { message, .. })) => Err(message),
            Ok((_, reply)) => Ok(reply),
            Err(error) => Err(error.to_string()),
        }
    }
}

/// Reasons why bundles cannot be installed before the daemon starts.
#[derive(Debug, thiserror::Error)]
pub enum PrepareError {
    /// The API server.
    #[error(transparent)]
    Api(#[from] ApiError),
    /// The store of bundles.
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// Orders that bring programs to a mode. Paused programs are a person's affair.
fn orders(mode: NodeMode, programs: &[ProgramStatus]) -> Vec<DaemonCommand> {
    let order = |program: &ProgramStatus| {
        let name = Some(program.name.clone());
        match (mode, program.state) {
            (NodeMode::Originals, ProgramState::Running | ProgramState::Paused) => {
                Some(DaemonCommand::Rollback { program: name })
            }
            (NodeMode::Specialised | NodeMode::OffTest, ProgramState::RolledBack) => {
                Some(DaemonCommand::Resume { program: name })
            }
            _ => None,
        }
    };
    programs.iter().filter_map(order).collect()
}

/// Returns true if a program has the code that a mode demands.
fn has_mode(program: &ProgramStatus, mode: NodeMode) -> bool {
    match mode {
        NodeMode::Originals => program.state == ProgramState::RolledBack,
        NodeMode::Specialised | NodeMode::OffTest => {
            matches!(program.state, ProgramState::Running | ProgramState::Paused)
        }
    }
}

fn health(mode: NodeMode, programs: &[ProgramStatus], problems: &[String]) -> (NodeHealth, Option<String>) {
    if let Some(problem) = problems.first() {
        return (NodeHealth::Failing, Some(problem.clone()));
    }
    let describe = |program: &ProgramStatus| {
        let reason = program.reason.as_ref().map_or(String::new(), |reason| format!(": {reason}"));
        Some(format!("{} is {}{reason}", program.name, program.state.name()))
    };
    if let Some(program) = programs.iter().find(|program| program.state == ProgramState::Failed) {
        return (NodeHealth::Failing, describe(program));
    }
    match programs.iter().find(|program| !has_mode(program, mode)) {
        Some(program) => (NodeHealth::Progressing, describe(program)),
        None => (NodeHealth::Healthy, None),
    }
}

fn program_report(program: &ProgramStatus) -> ProgramReport {
    let (original_ns, current_ns) = (program.times.original_ns, program.times.current_ns);
    let times = original_ns.zip(current_ns).filter(|(original, _)| *original > 0.0);
    ProgramReport {
        name: program.name.clone(),
        state: program.state.name().to_owned(),
        reason: program.reason.clone(),
        installed: program.generation > 0,
        generation: program.generation,
        verification: program.source.form.clone(),
        original_ns,
        current_ns,
        gain: times.map(|(original, current)| 1.0 - current / original),
        packets_per_second: program.traffic.pps,
        failures: program.counts.failures,
    }
}

/// Returns true if two reports differ in times, rates and generations of code only.
fn says_the_same(one: &NodeStatus, other: &NodeStatus) -> bool {
    let plain = |status: &NodeStatus| {
        let mut status = NodeStatus { reported_at: String::new(), ..status.clone() };
        for program in &mut status.programs {
            *program = ProgramReport {
                name: std::mem::take(&mut program.name),
                state: std::mem::take(&mut program.state),
                reason: program.reason.take(),
                verification: program.verification.take(),
                failures: program.failures,
                ..ProgramReport::default()
            };
        }
        status
    };
    plain(one) == plain(other)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn program(state: ProgramState) -> ProgramStatus {
        ProgramStatus { name: "router".into(), state, ..ProgramStatus::default() }
    }

    #[test]
    fn orders_for_each_mode_and_state() {
        let names = |mode, state| -> Vec<String> {
            let orders = orders(mode, &[program(state)]);
            orders.iter().map(|order| serde_json::to_value(order).unwrap()["command"].to_string()).collect()
        };
        for state in [ProgramState::Running, ProgramState::Paused] {
            assert_eq!(names(NodeMode::Originals, state), ["\"rollback\""]);
            assert!(names(NodeMode::Specialised, state).is_empty());
        }
        assert_eq!(names(NodeMode::Specialised, ProgramState::RolledBack), ["\"resume\""]);
        for state in
            [ProgramState::Failed, ProgramState::Waiting, ProgramState::Starting, ProgramState::Stopped]
        {
            assert!(names(NodeMode::Originals, state).is_empty());
        }
    }

    #[test]
    fn health_of_a_node() {
        let health_in = |mode, state| health(mode, &[program(state)], &[]).0;
        assert_eq!(health_in(NodeMode::Specialised, ProgramState::Running), NodeHealth::Healthy);
        assert_eq!(health_in(NodeMode::Originals, ProgramState::Running), NodeHealth::Progressing);
        assert_eq!(health_in(NodeMode::Specialised, ProgramState::Waiting), NodeHealth::Progressing);
        assert_eq!(health_in(NodeMode::Specialised, ProgramState::Failed), NodeHealth::Failing);
        assert_eq!(health(NodeMode::Specialised, &[], &["it is gone".to_owned()]).0, NodeHealth::Failing);
    }

    #[test]
    fn new_times_are_not_news_and_a_failure_is() {
        let status = |ns, failures| {
            let times =
                millstream_daemon::protocol::PacketTimes { original_ns: Some(100.0), current_ns: Some(ns) };
            let mut program = ProgramStatus { times, ..program(ProgramState::Running) };
            program.counts.failures = failures;
            NodeStatus { programs: vec![program_report(&program)], ..NodeStatus::default() }
        };
        assert_eq!(status(80.0, 0).programs[0].gain, Some(1.0 - 0.8));
        assert!(says_the_same(&status(80.0, 0), &status(90.0, 0)));
        assert!(!says_the_same(&status(80.0, 0), &status(80.0, 1)));
    }
}

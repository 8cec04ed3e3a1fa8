//! Drives a rollout: news of the API server become events, commands become changes of nodes.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, sync_channel};
use std::time::{Duration, Instant};

use crate::api::{ApiClient, ApiError, NodeChange};
use crate::resource::{BundleTarget, NodeHealth, NodeMode, NodeResource, NodeSpec, NodeTarget, RolloutMark};
use crate::rollout::{Rollout, RolloutCommand, RolloutEvent, RolloutPhase, RolloutTimes, StageSize};
use crate::verdict::{HealthGate, NodeBaseline};
use crate::watcher::{WatchNews, follow};

/// Time between two ticks.
const TICK: Duration = Duration::from_millis(200);
/// News of the API server that wait at most.
const NEWS: usize = 256;

/// Request for a rollout.
#[derive(Clone, PartialEq, Debug)]
pub struct RolloutRequest {
    /// Name, which marks the nodes that it has changed.
    pub name: String,
    /// The nodes; none: all.
    pub nodes: Vec<String>,
    /// New bundles. Other programs keep theirs.
    pub bundles: Vec<BundleTarget>,
    /// New mode, if it is to change.
    pub mode: Option<NodeMode>,
    /// Sizes of the stages.
    pub stages: Vec<StageSize>,
    /// Conditions for the nodes.
    pub gate: HealthGate,
    /// Times.
    pub times: RolloutTimes,
    /// True if nodes that are not healthy at the beginning are left out. Else there is no rollout.
    pub skip_unhealthy: bool,
}

impl RolloutRequest {
    /// State that a node is to have.
    fn target(&self, previous: &NodeSpec) -> NodeTarget {
        let is_replaced = |program: &str| self.bundles.iter().any(|target| target.program == program);
        let kept = previous.bundles.iter().filter(|target| !is_replaced(&target.program));
        let bundles = kept.chain(&self.bundles).cloned().collect();
        NodeTarget { bundles, mode: self.mode.unwrap_or(previous.mode) }
    }
}

/// Reasons why a rollout does not begin.
#[derive(Debug, thiserror::Error)]
pub enum RolloutError {
    /// The API server.
    #[error(transparent)]
    Api(#[from] ApiError),
    /// There is no node.
    #[error("there is no node: is an agent running?")]
    Empty,
    /// Nodes are not healthy.
    #[error("not healthy before the rollout: {0}")]
    Unhealthy(String),
    /// Another rollout is unfinished.
    #[error("rollout {0} is unfinished")]
    Unfinished(String),
}

/// Progress of a rollout, for people.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum RolloutNotice {
    /// A stage has begun: its number from 1, and the nodes that it changes in all.
    Stage(usize, usize),
    /// A node has got its new state.
    Changed(String),
    /// Changed nodes are returned.
    Returning(String),
    /// A node has got its earlier state, and need not have confirmed it.
    Returned(String),
    /// The API server does not answer.
    ServerLost(String),
    /// The API server answers again.
    ServerFound,
}

/// A rollout with its nodes.
struct RolloutDriver<'c> {
    client: &'c ApiClient,
    request: &'c RolloutRequest,
    rollout: Rollout,
    nodes: BTreeMap<String, ManagedNode>,
    /// Commands that the API server has not accepted yet.
    commands: VecDeque<RolloutCommand>,
    start: Instant,
    is_lost: bool,
    tell: &'c mut dyn FnMut(&RolloutNotice),
}

/// A node of a rollout.
#[derive(Debug)]
struct ManagedNode {
    resource: NodeResource,
    /// State before the rollout.
    previous: NodeSpec,
    baseline: NodeBaseline,
    /// Generation that the last accepted command made.
    accepted: Option<i64>,
}

/// Carries a rollout out, and returns its last phase.
///
/// # Errors
/// If it does not begin. Nothing was changed then.
pub fn roll_out(
    client: &ApiClient,
    request: &RolloutRequest,
    interrupt: &AtomicBool,
    tell: &mut dyn FnMut(&RolloutNotice),
) -> Result<RolloutPhase, RolloutError> {
    let nodes = chosen_nodes(client, request)?;
    let order = nodes.iter().map(|node| node.metadata.name.clone()).collect();
    let rollout = Rollout::new(order, &request.stages, request.times);
    let managed = |resource: NodeResource| {
        let baseline = resource.status.as_ref().map(NodeBaseline::of).unwrap_or_default();
        let name = resource.metadata.name.clone();
        (name, ManagedNode { previous: resource.spec.clone(), resource, baseline, accepted: None })
    };
    let nodes = nodes.into_iter().map(managed).collect();
    let (sender, news) = sync_channel(NEWS);
    let end = Arc::new(AtomicBool::new(false));
    let (following, until) = (client.clone(), Arc::clone(&end));
    std::thread::spawn(move || follow(&following, None, &sender, &until));
    let (commands, start) = (VecDeque::new(), Instant::now());
    let mut driver = RolloutDriver { client, request, rollout, nodes, commands, start, is_lost: false, tell };
    let phase = driver.run(&news, interrupt);
    end.store(true, Ordering::Relaxed);
    Ok(phase)
}

/// The nodes of a rollout, by name. Those that have the new state already are among them.
fn chosen_nodes(client: &ApiClient, request: &RolloutRequest) -> Result<Vec<NodeResource>, RolloutError> {
    let mut nodes = client.list(None)?.nodes;
    let is_there = |name: &&String| nodes.iter().any(|node| node.metadata.name == **name);
    if let Some(missing) = request.nodes.iter().find(|name| !is_there(name)) {
        return Err(ApiError::NotFound(missing.clone()).into());
    }
    nodes.retain(|node| request.nodes.is_empty() || request.nodes.contains(&node.metadata.name));
    if let Some(mark) = nodes.iter().find_map(|node| node.spec.rollout.as_ref()) {
        return Err(RolloutError::Unfinished(mark.name.clone()));
    }
    nodes.sort_by(|a, b| a.metadata.name.cmp(&b.metadata.name));
    let (healthy, unhealthy): (Vec<_>, Vec<_>) = nodes.into_iter().partition(is_healthy);
    if !unhealthy.is_empty() && !request.skip_unhealthy {
        let names: Vec<&str> = unhealthy.iter().map(|node| node.metadata.name.as_str()).collect();
        return Err(RolloutError::Unhealthy(names.join(", ")));
    }
    if healthy.is_empty() { Err(RolloutError::Empty) } else { Ok(healthy) }
}

fn is_healthy(node: &NodeResource) -> bool {
    let is_current = |observed: i64| observed >= node.metadata.generation;
    let is_tested = node.spec.mode == NodeMode::OffTest;
    !is_tested
        && node.status.as_ref().is_some_and(|status| {
            status.health == NodeHealth::Healthy && is_current(status.observed_generation)
        })
}

impl RolloutDriver<'_> {
    fn run(&mut self, news: &Receiver<WatchNews>, interrupt: &AtomicBool) -> RolloutPhase {
        let mut was_interrupted = false;
        self.tell_phase();
        self.take(&RolloutEvent::Tick);
        while !self.rollout.has_ended() {
            match news.recv_timeout(TICK) {
                Ok(news) => self.take_news(news),
                Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => {}
            }
            if interrupt.load(Ordering::Relaxed) && !std::mem::replace(&mut was_interrupted, true) {
                self.take(&RolloutEvent::Interrupted);
            }
            self.take(&RolloutEvent::Tick);
            self.give_commands();
        }
        self.rollout.phase().clone()
    }

    fn take_news(&mut self, news: WatchNews) {
        match news {
            WatchNews::Listed(list) => {
                self.found();
                let gone: Vec<String> = self
                    .nodes
                    .keys()
                    .filter(|name| !list.nodes.iter().any(|node| node.metadata.name == **name))
                    .cloned()
                    .collect();
                gone.into_iter().for_each(|node| self.remove(node));
                list.nodes.into_iter().for_each(|node| self.take_node(node));
            }
            WatchNews::Changed(NodeChange::Changed(node)) => {
                self.found();
                self.take_node(*node);
            }
            WatchNews::Changed(NodeChange::Removed(node)) => {
                self.remove(node.metadata.name);
            }
            WatchNews::Lost(error) => self.lose(&error),
        }
    }

    fn remove(&mut self, node: String) {
        if self.nodes.remove(&node).is_some() {
            self.take(&RolloutEvent::Removed { node });
        }
    }

    fn take_node(&mut self, resource: NodeResource) {
        let name = resource.metadata.name.clone();
        let Some(node) = self.nodes.get_mut(&name) else { return };
        let is_new_report = node.resource.status != resource.status;
        node.resource = resource;
        let generation = node.resource.metadata.generation;
        if node.accepted.is_some_and(|accepted| generation > accepted) && self.rollout.is_rolling() {
            return self.take(&RolloutEvent::Taken { node: name });
        }
        if !is_new_report {
            return;
        }
        let observed = node.resource.status.as_ref().map_or(0, |status| status.observed_generation);
        let verdict = self.request.gate.judge(&node.resource, &node.baseline);
        self.take(&RolloutEvent::Report { node: name, observed, verdict });
    }

    fn lose(&mut self, error: &ApiError) {
        if !std::mem::replace(&mut self.is_lost, true) {
            (self.tell)(&RolloutNotice::ServerLost(error.to_string()));
        }
        self.take(&RolloutEvent::ServerLost);
    }

    fn found(&mut self) {
        if std::mem::replace(&mut self.is_lost, false) {
            (self.tell)(&RolloutNotice::ServerFound);
            self.take(&RolloutEvent::ServerFound);
        }
    }

    /// Gives an event to the state machine, and keeps the commands.
    fn take(&mut self, event: &RolloutEvent) {
        let before = self.rollout.phase().clone();
        let commands = self.rollout.step(self.start.elapsed(), event);
        self.commands.extend(commands);
        if *self.rollout.phase() != before {
            self.tell_phase();
        }
    }

    fn tell_phase(&mut self) {
        match self.rollout.phase() {
            RolloutPhase::Stage(stage) => {
                let size = self.rollout.stage_sizes().get(*stage).copied().unwrap_or_default();
                (self.tell)(&RolloutNotice::Stage(stage + 1, size));
            }
            RolloutPhase::Returning { reason } => (self.tell)(&RolloutNotice::Returning(reason.clone())),
            RolloutPhase::Committing | RolloutPhase::Done | RolloutPhase::Returned { .. } => {}
        }
    }

    /// Gives the commands that wait to the API server. A command that it does not get is given again.
    fn give_commands(&mut self) {
        while !self.is_lost
            && let Some(command) = self.commands.pop_front()
        {
            match self.give(&command) {
                Ok(Some(generation)) => {
                    if let Some(node) = self.nodes.get_mut(command.node()) {
                        node.accepted = Some(generation);
                    }
                    self.take(&RolloutEvent::Accepted { command, generation });
                }
                Ok(None) => self.take(&RolloutEvent::Taken { node: command.node().to_owned() }),
                Err(error) if error.is_transient() => {
                    self.commands.push_front(command);
                    self.lose(&error);
                }
                Err(error) => {
                    tracing::warn!("{}: {error}", command.node());
                    self.take(&RolloutEvent::Taken { node: command.node().to_owned() });
                }
            }
        }
    }

    /// Changes a node by a command; returns its new generation, or none if the node is somebody else's.
    fn give(&mut self, command: &RolloutCommand) -> Result<Option<i64>, ApiError> {
        let name = command.node();
        // The node as it is: a change before this one may have been accepted though its answer was lost.
        let current = match self.client.get(name) {
            Err(ApiError::NotFound(_)) => return Ok(None),
            current => current?,
        };
        let Some(node) = self.nodes.get(name) else { return Ok(None) };
        let target = self.request.target(&node.previous);
        let mark = RolloutMark { name: self.request.name.clone(), previous: node.previous.target() };
        let changed = NodeSpec::with_target(target.clone(), Some(mark));
        let is_untouched = current.spec == node.previous;
        let is_changed = current.spec == changed;
        let wanted = match command {
            RolloutCommand::Change(_) if is_untouched || is_changed => changed,
            RolloutCommand::Return(_) if is_untouched || is_changed => node.previous.clone(),
            RolloutCommand::Commit(_) => {
                let is_final = current.spec.target() == target && current.spec.rollout.is_none();
                if !is_changed && !is_final {
                    return Ok(None);
                }
                NodeSpec::with_target(target, None)
            }
            RolloutCommand::Change(_) | RolloutCommand::Return(_) => return Ok(None),
        };
        let generation = if current.spec == wanted {
            current.metadata.generation
        } else {
            match self.client.change_spec(name, current.metadata.generation, &wanted) {
                Ok(node) => node.metadata.generation,
                Err(ApiError::Conflict(_) | ApiError::NotFound(_)) => return Ok(None),
                Err(error) => return Err(error),
            }
        };
        match command {
            RolloutCommand::Change(_) => (self.tell)(&RolloutNotice::Changed(name.to_owned())),
            RolloutCommand::Return(_) => (self.tell)(&RolloutNotice::Returned(name.to_owned())),
            RolloutCommand::Commit(_) => {}
        }
        Ok(Some(generation))
    }
}

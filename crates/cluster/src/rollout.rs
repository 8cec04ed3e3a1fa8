//! A staged rollout as a state machine: events in, commands out, no I/O and no clock.
//!
//! Invariants, which property tests check:
//!
//! - never more nodes are changed than the stage permits;
//! - one node that fails or stays slower, a node that somebody else changes, or a deadline returns all changed nodes;
//! - while the API server is away nothing is commanded, and no deadline runs.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use crate::verdict::NodeVerdict;

/// Successive reports of slowness that count as one failure.
const SLOW_REPORTS: u32 = 2;

/// Size of a stage: nodes that are changed by its end.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum StageSize {
    /// So many nodes.
    Nodes(usize),
    /// A part of all nodes, from above 0 to 100 percent.
    Percent(f64),
}

impl StageSize {
    /// Number of nodes, at least 1 and at most all.
    pub fn of(self, nodes: usize) -> usize {
        let size = match self {
            StageSize::Nodes(size) => size,
            StageSize::Percent(percent) => (nodes as f64 * percent / 100.0).ceil() as usize,
        };
        size.clamp(1.min(nodes), nodes)
    }
}

impl std::str::FromStr for StageSize {
    type Err = String;

    fn from_str(text: &str) -> Result<StageSize, String> {
        let wrong = || format!("`{text}` is no stage: write a number of nodes, or a percentage such as 10%");
        match text.strip_suffix('%') {
            Some(percent) => {
                let percent = percent.parse().ok().filter(|percent| *percent > 0.0 && *percent <= 100.0);
                percent.map(StageSize::Percent).ok_or_else(wrong)
            }
            None => text.parse().ok().filter(|size| *size > 0).map(StageSize::Nodes).ok_or_else(wrong),
        }
    }
}

/// Times of a rollout.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RolloutTimes {
    /// Time for which all nodes of a stage must be good before the next stage.
    pub soak: Duration,
    /// Time in which a changed node must become good.
    pub deadline: Duration,
    /// Longest time between two reports of a changed node.
    pub silence: Duration,
    /// Time in which the nodes must have returned.
    pub give_up: Duration,
}

/// Event of a rollout.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum RolloutEvent {
    /// Time has passed.
    Tick,
    /// A node has reported.
    Report {
        /// The node.
        node: String,
        /// Generation that the report is about.
        observed: i64,
        /// Judgement of the report.
        verdict: NodeVerdict,
    },
    /// The API server has accepted a command, which made this generation of the node.
    Accepted {
        /// The command.
        command: RolloutCommand,
        /// Its generation.
        generation: i64,
    },
    /// Somebody else has changed the node: it is not this rollout's any more.
    Taken {
        /// The node.
        node: String,
    },
    /// The node was removed from the cluster.
    Removed {
        /// The node.
        node: String,
    },
    /// The API server does not answer.
    ServerLost,
    /// The API server answers again.
    ServerFound,
    /// A person wants the nodes back.
    Interrupted,
}

/// Command of a rollout.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum RolloutCommand {
    /// Give the node its new state.
    Change(String),
    /// Give the node its earlier state.
    Return(String),
    /// The new state is for good.
    Commit(String),
}

impl RolloutCommand {
    /// The node that it is for.
    pub fn node(&self) -> &str {
        match self {
            RolloutCommand::Change(node) | RolloutCommand::Return(node) | RolloutCommand::Commit(node) => {
                node
            }
        }
    }
}

/// Phase of a rollout.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum RolloutPhase {
    /// Nodes of this stage, counted from 0, are changed and watched.
    Stage(usize),
    /// All nodes are good: their new state is made final.
    Committing,
    /// Changed nodes are returned.
    Returning {
        /// Reason for it.
        reason: String,
    },
    /// All nodes have their new state.
    Done,
    /// The changed nodes have their earlier state.
    Returned {
        /// Reason for it.
        reason: String,
        /// Nodes that have not confirmed it in time.
        unconfirmed: Vec<String>,
    },
}

/// State of a node.
#[derive(Clone, PartialEq, Eq, Debug)]
enum NodeProgress {
    /// It has its earlier state.
    Untouched,
    /// The command has been given to change it.
    Changing,
    /// It has its new state, and is watched.
    Watched(WatchedNode),
    /// The command has been given to return it; the generation is known once it was accepted.
    Returning(Option<i64>),
    /// It has its earlier state again.
    Back,
    /// The command has been given to make its new state final.
    Committing,
    /// Its new state is final.
    Final,
    /// It is somebody else's.
    Foreign,
}

/// A node that is watched.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct WatchedNode {
    generation: i64,
    /// Moment at which it was changed or stopped being good.
    pending_since: Option<Duration>,
    /// Moment of its last report.
    last_report: Duration,
    slow_reports: u32,
}

/// A rollout.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Rollout {
    nodes: BTreeMap<String, NodeProgress>,
    /// The nodes in the order of their change.
    order: Vec<String>,
    /// Nodes that are changed at most, by stage.
    stages: Vec<usize>,
    times: RolloutTimes,
    phase: RolloutPhase,
    /// Moment since which all nodes of the stage are good, or since which nodes are returned.
    since: Option<Duration>,
    /// Moment at which the API server was lost.
    lost: Option<Duration>,
}

impl Rollout {
    /// A rollout over these nodes, in this order. The last stage is all of them.
    pub fn new(order: Vec<String>, stages: &[StageSize], times: RolloutTimes) -> Rollout {
        let mut sizes: Vec<usize> = stages.iter().map(|stage| stage.of(order.len())).collect();
        sizes.push(order.len());
        // A stage that is not larger than the one before has nothing to do.
        let mut largest = 0;
        sizes.retain(|size| {
            let is_larger = *size > largest;
            largest = largest.max(*size);
            is_larger
        });
        Rollout {
            nodes: order.iter().map(|node| (node.clone(), NodeProgress::Untouched)).collect(),
            order,
            stages: sizes,
            times,
            phase: RolloutPhase::Stage(0),
            since: None,
            lost: None,
        }
    }

    /// The phase.
    pub fn phase(&self) -> &RolloutPhase {
        &self.phase
    }

    /// Number of nodes that are changed by the end of each stage.
    pub fn stage_sizes(&self) -> &[usize] {
        &self.stages
    }

    /// True if the rollout has ended.
    pub fn has_ended(&self) -> bool {
        matches!(self.phase, RolloutPhase::Done | RolloutPhase::Returned { .. })
    }

    /// True while stages go on.
    pub fn is_rolling(&self) -> bool {
        matches!(self.phase, RolloutPhase::Stage(_))
    }

    /// Nodes that have the new state, or are about to get it.
    pub fn changed(&self) -> BTreeSet<&str> {
        let is_changed = |progress: &NodeProgress| {
            use NodeProgress::{Changing, Committing, Final, Watched};
            matches!(progress, Changing | Watched(_) | Committing | Final)
        };
        self.nodes
            .iter()
            .filter(|(_, progress)| is_changed(progress))
            .map(|(node, _)| node.as_str())
            .collect()
    }

    /// Takes an event at a moment of a monotonic clock; returns the commands that follow.
    pub fn step(&mut self, now: Duration, event: &RolloutEvent) -> Vec<RolloutCommand> {
        match event {
            RolloutEvent::Tick | RolloutEvent::Interrupted => {}
            RolloutEvent::Report { node, observed, verdict } => {
                self.take_report(now, node, *observed, verdict)
            }
            RolloutEvent::Accepted { command, generation } => self.take_acceptance(now, command, *generation),
            RolloutEvent::Taken { node } => {
                self.give_away(node);
                self.fail(format!("{node} was changed by somebody else"));
            }
            RolloutEvent::Removed { node } => {
                // Clusters shrink: a node that was not changed is not missed.
                if self.give_away(node) {
                    self.fail(format!("{node} was removed"));
                }
            }
            RolloutEvent::ServerLost => self.lost = self.lost.or(Some(now)),
            RolloutEvent::ServerFound => self.resume_clocks(now),
        }
        if *event == RolloutEvent::Interrupted {
            self.fail("interrupted".to_owned());
        }
        if self.lost.is_some() { Vec::new() } else { self.advance(now) }
    }

    fn take_report(&mut self, now: Duration, node: &str, observed: i64, verdict: &NodeVerdict) {
        let Some(progress) = self.nodes.get_mut(node) else { return };
        match progress {
            NodeProgress::Watched(watched) if observed >= watched.generation => {
                watched.last_report = now;
                watched.slow_reports = match verdict {
                    NodeVerdict::Slower(_) => watched.slow_reports + 1,
                    _ => 0,
                };
                let is_slower = watched.slow_reports >= SLOW_REPORTS;
                watched.pending_since = match verdict {
                    NodeVerdict::Good => None,
                    _ => watched.pending_since.or(Some(now)),
                };
                match verdict {
                    NodeVerdict::Failing(reason) => self.fail(format!("{node} fails: {reason}")),
                    NodeVerdict::Slower(reason) if is_slower => {
                        self.fail(format!("{node} is slower: {reason}"))
                    }
                    _ => {}
                }
            }
            NodeProgress::Returning(Some(generation)) if observed >= *generation => {
                *progress = NodeProgress::Back;
            }
            _ => {}
        }
    }

    fn take_acceptance(&mut self, now: Duration, command: &RolloutCommand, generation: i64) {
        let Some(progress) = self.nodes.get_mut(command.node()) else { return };
        match (command, &mut *progress) {
            (RolloutCommand::Change(_), NodeProgress::Changing) => {
                let pending_since = Some(now);
                *progress = NodeProgress::Watched(WatchedNode {
                    generation,
                    pending_since,
                    last_report: now,
                    slow_reports: 0,
                });
            }
            (RolloutCommand::Return(_), NodeProgress::Returning(accepted)) => *accepted = Some(generation),
            (RolloutCommand::Commit(_), NodeProgress::Committing) => *progress = NodeProgress::Final,
            // The command has been overtaken by another one.
            _ => {}
        }
    }

    /// Gives a node up; returns true if it was changed and not returned.
    fn give_away(&mut self, node: &str) -> bool {
        let was_changed = self.changed().contains(node);
        if let Some(progress) = self.nodes.get_mut(node) {
            *progress = NodeProgress::Foreign;
        }
        was_changed
    }

    /// Moves all moments by the time without the API server.
    fn resume_clocks(&mut self, now: Duration) {
        let Some(lost) = self.lost.take() else { return };
        let away = now.saturating_sub(lost);
        let moments = self.nodes.values_mut().filter_map(|progress| match progress {
            NodeProgress::Watched(watched) => Some(watched),
            _ => None,
        });
        for watched in moments {
            watched.last_report += away;
            watched.pending_since = watched.pending_since.map(|moment| moment + away);
        }
        self.since = self.since.map(|moment| moment + away);
    }

    /// Begins the return, if nodes are at stake.
    fn fail(&mut self, reason: String) {
        if self.is_rolling() {
            self.phase = RolloutPhase::Returning { reason };
            self.since = None;
        }
    }

    /// Gives the commands that the state demands.
    fn advance(&mut self, now: Duration) -> Vec<RolloutCommand> {
        if let Some(reason) = self.overdue(now) {
            self.fail(reason);
        }
        match self.phase.clone() {
            RolloutPhase::Stage(stage) => self.advance_stage(now, stage),
            RolloutPhase::Committing => {
                if self.nodes.values().all(|progress| *progress != NodeProgress::Committing) {
                    self.phase = RolloutPhase::Done;
                }
                Vec::new()
            }
            RolloutPhase::Returning { reason } => self.advance_return(now, reason),
            RolloutPhase::Done | RolloutPhase::Returned { .. } => Vec::new(),
        }
    }

    /// Reason why a watched node has had enough time.
    fn overdue(&self, now: Duration) -> Option<String> {
        let seconds = |time: Duration| time.as_secs_f64();
        self.nodes.iter().find_map(|(node, progress)| {
            let NodeProgress::Watched(watched) = progress else { return None };
            let (deadline, silence) = (self.times.deadline, self.times.silence);
            if watched.pending_since.is_some_and(|since| now.saturating_sub(since) > deadline) {
                return Some(format!("{node} is not ready after {} s", seconds(deadline)));
            }
            let is_silent = now.saturating_sub(watched.last_report) > silence;
            is_silent.then(|| format!("{node} has not reported for {} s", seconds(silence)))
        })
    }

    fn advance_stage(&mut self, now: Duration, stage: usize) -> Vec<RolloutCommand> {
        let size = self.stages.get(stage).copied().unwrap_or(self.order.len());
        let mut commands = Vec::new();
        let mut is_good = true;
        for node in self.order.iter().take(size) {
            let Some(progress) = self.nodes.get_mut(node) else { continue };
            if *progress == NodeProgress::Untouched {
                *progress = NodeProgress::Changing;
                commands.push(RolloutCommand::Change(node.clone()));
            }
            is_good &= match progress {
                NodeProgress::Watched(watched) => watched.pending_since.is_none(),
                NodeProgress::Foreign => true,
                _ => false,
            };
        }
        if !is_good {
            self.since = None;
            return commands;
        }
        let since = *self.since.get_or_insert(now);
        if now.saturating_sub(since) < self.times.soak {
            return commands;
        }
        self.since = None;
        if stage + 1 < self.stages.len() {
            self.phase = RolloutPhase::Stage(stage + 1);
            return self.advance_stage(now, stage + 1);
        }
        self.phase = RolloutPhase::Committing;
        for (node, progress) in &mut self.nodes {
            if matches!(progress, NodeProgress::Watched(_)) {
                *progress = NodeProgress::Committing;
                commands.push(RolloutCommand::Commit(node.clone()));
            }
        }
        commands
    }

    fn advance_return(&mut self, now: Duration, reason: String) -> Vec<RolloutCommand> {
        let since = *self.since.get_or_insert(now);
        let mut commands = Vec::new();
        for (node, progress) in &mut self.nodes {
            if matches!(progress, NodeProgress::Changing | NodeProgress::Watched(_)) {
                *progress = NodeProgress::Returning(None);
                commands.push(RolloutCommand::Return(node.clone()));
            }
        }
        let is_open = |progress: &NodeProgress| matches!(progress, NodeProgress::Returning(_));
        let open = self.nodes.iter().filter(|(_, progress)| is_open(progress));
        let unconfirmed: Vec<String> = open.map(|(node, _)| node.clone()).collect();
        if unconfirmed.is_empty() || now.saturating_sub(since) > self.times.give_up {
            self.phase = RolloutPhase::Returned { reason, unconfirmed };
        }
        commands
    }
}

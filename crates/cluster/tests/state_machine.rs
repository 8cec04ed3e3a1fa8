//! Properties of the state machine of rollouts, over random sequences of events.

use std::collections::BTreeMap;
use std::time::Duration;

use millstream_cluster::rollout::{
    Rollout, RolloutCommand, RolloutEvent, RolloutPhase, RolloutTimes, StageSize,
};
use millstream_cluster::verdict::NodeVerdict;
use proptest::prelude::*;

const TIMES: RolloutTimes = RolloutTimes {
    soak: Duration::from_secs(10),
    deadline: Duration::from_secs(60),
    silence: Duration::from_secs(40),
    give_up: Duration::from_secs(60),
};

fn name(node: usize) -> String {
    format!("node-{node:02}")
}

fn rollout(nodes: usize, stages: &[StageSize]) -> Rollout {
    Rollout::new((0..nodes).map(name).collect(), stages, TIMES)
}

/// An API server and nodes that obey: the generation of each node, and its state.
#[derive(Debug, Default)]
struct ModelCluster {
    generations: BTreeMap<String, i64>,
    /// Nodes that have the new state.
    changed: BTreeMap<String, bool>,
    pending: Vec<RolloutCommand>,
}

impl ModelCluster {
    fn receive(&mut self, commands: Vec<RolloutCommand>) {
        self.pending.extend(commands);
    }

    /// Accepts the oldest command.
    fn accept(&mut self) -> Option<RolloutEvent> {
        if self.pending.is_empty() {
            return None;
        }
        let command = self.pending.remove(0);
        let node = command.node().to_owned();
        let generation = self.generations.entry(node.clone()).or_insert(1);
        *generation += 1;
        let generation = *generation;
        self.changed.insert(node, !matches!(command, RolloutCommand::Return(_)));
        Some(RolloutEvent::Accepted { command, generation })
    }

    fn report(&self, node: usize, verdict: NodeVerdict) -> RolloutEvent {
        let node = name(node);
        let observed = self.generations.get(&node).copied().unwrap_or(1);
        RolloutEvent::Report { node, observed, verdict }
    }

    fn changed(&self) -> usize {
        self.changed.values().filter(|is_changed| **is_changed).count()
    }
}

/// Step of a random run.
#[derive(Clone, Debug)]
enum RunStep {
    Wait(u64),
    Accept,
    Report(usize, NodeVerdict),
    Taken(usize),
    Removed(usize),
    Lost,
    Found,
    Interrupted,
}

fn verdicts() -> impl Strategy<Value = NodeVerdict> {
    prop_oneof![
        8 => Just(NodeVerdict::Good),
        2 => Just(NodeVerdict::Pending),
        1 => Just(NodeVerdict::Slower("slower".into())),
        1 => Just(NodeVerdict::Failing("fails".into())),
    ]
}

fn steps(nodes: usize) -> impl Strategy<Value = Vec<RunStep>> {
    let step = prop_oneof![
        20 => Just(RunStep::Accept),
        20 => (0..nodes, verdicts()).prop_map(|(node, verdict)| RunStep::Report(node, verdict)),
        8 => (0_u64..15).prop_map(RunStep::Wait),
        1 => (0..nodes).prop_map(RunStep::Taken),
        1 => (0..nodes).prop_map(RunStep::Removed),
        1 => Just(RunStep::Lost),
        2 => Just(RunStep::Found),
        1 => Just(RunStep::Interrupted),
    ];
    proptest::collection::vec(step, 0..200)
}

fn stages() -> impl Strategy<Value = Vec<StageSize>> {
    let size =
        prop_oneof![(1_usize..20).prop_map(StageSize::Nodes), (1.0_f64..100.0).prop_map(StageSize::Percent),];
    proptest::collection::vec(size, 0..5)
}

/// Lets the cluster obey until the rollout has ended: all nodes are good.
fn settle(rollout: &mut Rollout, cluster: &mut ModelCluster, nodes: usize, mut now: Duration) {
    cluster.receive(rollout.step(now, &RolloutEvent::ServerFound));
    for _ in 0..1000 {
        while let Some(event) = cluster.accept() {
            cluster.receive(rollout.step(now, &event));
        }
        for node in 0..nodes {
            let event = cluster.report(node, NodeVerdict::Good);
            cluster.receive(rollout.step(now, &event));
        }
        now += Duration::from_secs(1);
        cluster.receive(rollout.step(now, &RolloutEvent::Tick));
        if rollout.has_ended() && cluster.pending.is_empty() {
            return;
        }
    }
    panic!("it does not end: {rollout:?}");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn invariants_of_any_run(nodes in 1_usize..30, stages in stages(), steps in steps(30)) {
        let mut rollout = rollout(nodes, &stages);
        let (mut cluster, mut now, mut is_lost) = (ModelCluster::default(), Duration::ZERO, false);
        let sizes = rollout.stage_sizes().to_vec();
        prop_assert!(sizes.is_sorted() && sizes.last() == Some(&nodes));
        cluster.receive(rollout.step(now, &RolloutEvent::Tick));
        let mut has_failed = false;
        for step in steps {
            let event = match step {
                RunStep::Wait(seconds) => {
                    now += Duration::from_secs(seconds);
                    RolloutEvent::Tick
                }
                // Without the API server there are neither answers nor reports.
                RunStep::Accept | RunStep::Report(..) | RunStep::Taken(_) | RunStep::Removed(_) if is_lost => continue,
                RunStep::Accept => match cluster.accept() {
                    Some(event) => event,
                    None => continue,
                },
                RunStep::Report(node, verdict) => cluster.report(node % nodes, verdict),
                RunStep::Taken(node) => RolloutEvent::Taken { node: name(node % nodes) },
                RunStep::Removed(node) => RolloutEvent::Removed { node: name(node % nodes) },
                RunStep::Lost => RolloutEvent::ServerLost,
                RunStep::Found => RolloutEvent::ServerFound,
                RunStep::Interrupted => RolloutEvent::Interrupted,
            };
            is_lost = match event {
                RolloutEvent::ServerLost => true,
                RolloutEvent::ServerFound => false,
                _ => is_lost,
            };
            if let RolloutEvent::Taken { node } | RolloutEvent::Removed { node } = &event {
                cluster.changed.remove(node);
                cluster.pending.retain(|command| command.node() != node);
            }
            let before = rollout.phase().clone();
            let commands = rollout.step(now, &event);
            // Without the API server nothing is commanded.
            prop_assert!(!is_lost || commands.is_empty(), "{commands:?}");
            if is_lost && event == RolloutEvent::Tick {
                prop_assert_eq!(&before, rollout.phase());
            }
            // Never more nodes than the stage permits.
            let limit = match (&before, rollout.phase()) {
                (_, RolloutPhase::Stage(stage)) | (RolloutPhase::Stage(stage), _) => sizes[*stage],
                _ => nodes,
            };
            prop_assert!(rollout.changed().len() <= limit, "{} of {limit}", rollout.changed().len());
            // Once a rollout fails, it changes no further node.
            let returns = matches!(rollout.phase(), RolloutPhase::Returning { .. } | RolloutPhase::Returned { .. });
            has_failed |= returns;
            if has_failed {
                prop_assert!(returns);
                prop_assert!(commands.iter().all(|command| matches!(command, RolloutCommand::Return(_))));
            }
            let fails = matches!(&event, RolloutEvent::Report { verdict: NodeVerdict::Failing(_), .. });
            if let (true, RolloutEvent::Report { node, .. }, RolloutPhase::Stage(_)) = (fails, &event, &before)
                && cluster.changed.get(node) == Some(&true)
            {
                prop_assert!(has_failed, "{node} fails and the rollout goes on");
            }
            cluster.receive(commands);
            prop_assert!(cluster.changed() <= limit);
        }
        // From anywhere, all nodes end in the new state, or all in the earlier one.
        settle(&mut rollout, &mut cluster, nodes, now);
        match rollout.phase() {
            RolloutPhase::Done => prop_assert!(cluster.changed.values().all(|is_changed| *is_changed)),
            RolloutPhase::Returned { .. } => prop_assert_eq!(cluster.changed(), 0),
            phase => prop_assert!(false, "{phase:?}"),
        }
    }
}

#[test]
fn a_rollout_without_faults_goes_through_its_stages() {
    let stages = ["1", "10%", "50%", "100%"].map(|stage| stage.parse().unwrap());
    let mut rollout = rollout(50, &stages);
    assert_eq!(rollout.stage_sizes(), [1, 5, 25, 50]);
    let mut cluster = ModelCluster::default();
    cluster.receive(rollout.step(Duration::ZERO, &RolloutEvent::Tick));
    assert_eq!(cluster.pending, [RolloutCommand::Change(name(0))]);
    settle(&mut rollout, &mut cluster, 50, Duration::ZERO);
    assert_eq!((rollout.phase(), cluster.changed()), (&RolloutPhase::Done, 50));
}

/// A rollout of one node, which has been changed.
fn changed() -> (Rollout, ModelCluster) {
    let (mut rollout, mut cluster) = (rollout(1, &[]), ModelCluster::default());
    cluster.receive(rollout.step(Duration::ZERO, &RolloutEvent::Tick));
    let accepted = cluster.accept().unwrap();
    assert!(rollout.step(Duration::ZERO, &accepted).is_empty());
    (rollout, cluster)
}

fn returning(rollout: &Rollout) -> Option<&str> {
    match rollout.phase() {
        RolloutPhase::Returning { reason } => Some(reason),
        _ => None,
    }
}

#[test]
fn deadlines_return_nodes_and_do_not_run_without_the_server() {
    let seconds = Duration::from_secs;
    let (mut late, cluster) = changed();
    let report = cluster.report(0, NodeVerdict::Pending);
    assert!(late.step(seconds(30), &report).is_empty());
    assert!(late.step(seconds(60), &RolloutEvent::Tick).is_empty());
    assert_eq!(late.step(seconds(61), &RolloutEvent::Tick), [RolloutCommand::Return(name(0))]);
    assert_eq!(returning(&late), Some("node-00 is not ready after 60 s"));

    let (mut silent, cluster) = changed();
    assert!(silent.step(seconds(1), &cluster.report(0, NodeVerdict::Pending)).is_empty());
    assert!(silent.step(seconds(2), &RolloutEvent::ServerLost).is_empty());
    assert!(silent.step(seconds(1002), &RolloutEvent::ServerFound).is_empty());
    assert!(silent.step(seconds(1041), &RolloutEvent::Tick).is_empty());
    assert_eq!(silent.step(seconds(1042), &RolloutEvent::Tick), [RolloutCommand::Return(name(0))]);
    assert_eq!(returning(&silent), Some("node-00 has not reported for 40 s"));
}

#[test]
fn one_slow_report_is_noise_and_two_are_not() {
    let (mut rollout, cluster) = changed();
    let slow = cluster.report(0, NodeVerdict::Slower("router".into()));
    for event in [&slow, &cluster.report(0, NodeVerdict::Good), &slow] {
        rollout.step(Duration::ZERO, event);
        assert_eq!(returning(&rollout), None);
    }
    assert_eq!(rollout.step(Duration::ZERO, &slow), [RolloutCommand::Return(name(0))]);
}

#[test]
fn a_report_from_before_the_change_says_nothing() {
    let (mut rollout, _) = changed();
    let old =
        RolloutEvent::Report { node: name(0), observed: 1, verdict: NodeVerdict::Failing("old".into()) };
    assert!(rollout.step(Duration::ZERO, &old).is_empty());
    assert_eq!(returning(&rollout), None);
}

#[test]
fn a_node_that_was_not_changed_may_be_removed() {
    let mut rollout = rollout(2, &[StageSize::Nodes(1)]);
    let mut cluster = ModelCluster::default();
    cluster.receive(rollout.step(Duration::ZERO, &RolloutEvent::Tick));
    rollout.step(Duration::ZERO, &RolloutEvent::Removed { node: name(1) });
    settle(&mut rollout, &mut cluster, 2, Duration::ZERO);
    assert_eq!(rollout.phase(), &RolloutPhase::Done);
}

#[test]
fn stages_are_numbers_and_percentages() {
    let of = |text: &str, nodes| text.parse::<StageSize>().map(|stage| stage.of(nodes));
    assert_eq!(of("10%", 55), Ok(6));
    assert_eq!(of("1%", 3), Ok(1));
    assert_eq!(of("9", 3), Ok(3));
    for wrong in ["0", "0%", "101%", "-1", "x", "NaN%"] {
        assert!(of(wrong, 3).is_err(), "{wrong}");
    }
}

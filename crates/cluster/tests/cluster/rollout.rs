//! A staged rollout over 50 simulated nodes.

use std::time::Duration;

use millstream_cluster::controller::{RolloutError, RolloutNotice, roll_out};
use millstream_cluster::orders::{NodeOrder, give_order};
use millstream_cluster::resource::{NodeMode, NodeResource};
use millstream_cluster::rollout::RolloutPhase;

use crate::fleet::Fleet;
use crate::simulated_daemon::NewBundle;

/// Nodes that have run the second bundle since the last call.
fn touched(fleet: &Fleet) -> Vec<&str> {
    let has_run = fleet.nodes.iter().filter(|(_, daemon)| daemon.take_newest() == 2);
    has_run.map(|(name, _)| name.as_str()).collect()
}

#[test]
fn a_rollout_over_fifty_nodes_stops_at_the_first_that_is_slower_or_fails() {
    let fleet = Fleet::start("node", 50);
    let all_return = |node: &NodeResource| {
        let status = node.status.as_ref();
        node.spec.rollout.is_none()
            && node.spec.bundles == [fleet.bundles[0].clone()]
            && status.is_some_and(|status| status.bundles == node.spec.bundles)
    };
    let (slow, failing) = (&fleet.nodes["node-03"], &fleet.nodes["node-20"]);
    slow.set_new_bundle(NewBundle::Slower);
    failing.set_new_bundle(NewBundle::Fails);

    // The second stage has five nodes: the slower one is among them, the one that fails is not.
    let (phase, _) = fleet.roll_out(&fleet.request("first"));
    let RolloutPhase::Returned { reason, unconfirmed } = phase else { panic!("{phase:?}") };
    assert_eq!(reason, "node-03 is slower: router: 100.0 ns per packet, 80.0 ns before");
    // Those that are not confirmed in 60 s are named.
    assert!(unconfirmed.is_empty(), "{unconfirmed:?}");
    assert_eq!(fleet.versions(), [50, 0]);
    assert_eq!(touched(&fleet), ["node-00", "node-01", "node-02", "node-03", "node-04"]);
    fleet.wait_for("all nodes report the first bundle", all_return);

    // The third stage has 25 nodes, with the one that fails.
    slow.set_new_bundle(NewBundle::Faster);
    let (phase, notices) = fleet.roll_out(&fleet.request("second"));
    let RolloutPhase::Returned { reason, unconfirmed } = phase else { panic!("{phase:?}") };
    assert_eq!(reason, "node-20 fails: router is failed: the verifier rejects it");
    assert!(unconfirmed.is_empty(), "{unconfirmed:?}");
    assert_eq!(fleet.versions(), [50, 0]);
    assert!(touched(&fleet).len() <= 25);
    let stages: Vec<_> =
        notices.iter().filter(|notice| matches!(notice, RolloutNotice::Stage(..))).cloned().collect();
    assert_eq!(stages, [RolloutNotice::Stage(1, 1), RolloutNotice::Stage(2, 5), RolloutNotice::Stage(3, 25)]);
    fleet.wait_for("all nodes report the first bundle", all_return);

    // Without a fault all nodes get it, and no mark is left.
    failing.set_new_bundle(NewBundle::Faster);
    let (phase, _) = fleet.roll_out(&fleet.request("third"));
    assert_eq!(phase, RolloutPhase::Done);
    assert_eq!(fleet.versions(), [0, 50]);
    assert!(fleet.list().iter().all(|node| node.spec.rollout.is_none()));
    for order in [NodeMode::Originals, NodeMode::Specialised] {
        let outcomes =
            give_order(&fleet.client, &fleet.names(), NodeOrder::Mode(order), Duration::from_secs(60))
                .unwrap();
        assert!(outcomes.iter().all(|outcome| outcome.confirmed), "{outcomes:?}");
        let is_off = order == NodeMode::Originals;
        assert!(fleet.nodes.values().all(|daemon| daemon.runs() == (2, is_off)));
    }
}

#[test]
fn an_off_test_reports_the_load_of_both_and_specializes_again() {
    let fleet = Fleet::start("test", 2);
    let order = NodeOrder::OffTest { seconds: 1 };
    let names = ["test-00".to_owned()];
    let outcomes = give_order(&fleet.client, &names, order, Duration::from_secs(60)).unwrap();
    let result = outcomes[0].off_test.as_ref().expect("a result");
    assert!(result.originals.packets > 0 && result.specialised.packets > 0, "{result:?}");
    fleet.wait_for("both nodes are specialised", |node| {
        let status = node.status.as_ref();
        node.spec.mode == NodeMode::Specialised
            && status.is_some_and(|status| status.mode == NodeMode::Specialised)
    });
    assert!(fleet.nodes.values().all(|daemon| daemon.runs() == (1, false)));
}

#[test]
fn an_unfinished_rollout_is_returned_before_another_begins() {
    let fleet = Fleet::start("left", 3);
    let mut request = fleet.request("left");
    request.times.soak = Duration::from_secs(3600);
    // The controller dies in the first stage.
    let (client, dying) = (fleet.client.clone(), request.clone());
    std::thread::spawn(move || roll_out(&client, &dying, &false.into(), &mut |_| {}));
    fleet.wait_for("the first node has the second bundle", |node| {
        node.metadata.name != "left-00"
            || node.status.as_ref().is_some_and(|status| status.bundles == [fleet.bundles[1].clone()])
    });
    let again = roll_out(&fleet.client, &fleet.request("again"), &false.into(), &mut |_| {});
    assert!(matches!(again, Err(RolloutError::Unfinished(name)) if name == "left"));
    let order = NodeOrder::EndRollout { keep: false };
    let outcomes = give_order(&fleet.client, &fleet.names(), order, Duration::from_secs(60)).unwrap();
    assert_eq!(outcomes.len(), 1);
    assert!(outcomes[0].confirmed, "{outcomes:?}");
    assert_eq!(fleet.versions(), [3, 0]);
}

#[test]
fn without_the_api_server_nothing_changes_and_a_fault_is_answered_afterwards() {
    let fleet = Fleet::start("away", 4);
    // A real server has no switch for faults.
    let Some(server) = fleet.server.clone() else { return };
    let mut request = fleet.request("away");
    request.times.soak = Duration::from_secs(5);
    let (sender, notices) = std::sync::mpsc::channel();
    let (client, running) = (fleet.client.clone(), request.clone());
    let rollout = std::thread::spawn(move || {
        roll_out(&client, &running, &false.into(), &mut |notice| sender.send(notice.clone()).unwrap())
            .unwrap()
    });
    let changed =
        |notice: &RolloutNotice| matches!(notice, RolloutNotice::Changed(node) if node == "away-00");
    assert!(notices.iter().any(|notice| changed(&notice)));
    fleet.wait_for("the first node has the second bundle", |node| {
        let status = node.status.as_ref();
        node.metadata.name != "away-00" || status.is_some_and(|status| status.bundles == node.spec.bundles)
    });
    let changes = server.spec_changes();
    server.set_away(true);
    assert!(notices.iter().any(|notice| matches!(notice, RolloutNotice::ServerLost(_))));
    fleet.nodes["away-00"].set_new_bundle(NewBundle::Fails);
    assert_eq!(fleet.versions(), [3, 1]);
    server.set_away(false);
    assert!(notices.iter().any(|notice| notice == RolloutNotice::ServerFound));
    assert!(server.spec_changes() - changes <= 1, "only a return");
    let phase = rollout.join().unwrap();
    let RolloutPhase::Returned { reason, unconfirmed } = phase else { panic!("{phase:?}") };
    assert_eq!(reason, "away-00 fails: router is failed: the verifier rejects it");
    assert!(unconfirmed.is_empty(), "{unconfirmed:?}");
    assert_eq!((fleet.versions(), touched(&fleet)), ([4, 0], vec!["away-00"]));
}

#[test]
fn a_rollout_survives_broken_watches_and_versions_that_are_too_old() {
    let fleet = Fleet::start("break", 6);
    let Some(server) = fleet.server.clone() else { return };
    let ended = std::sync::atomic::AtomicBool::new(false);
    let phase = std::thread::scope(|scope| {
        scope.spawn(|| {
            while !ended.load(std::sync::atomic::Ordering::Relaxed) {
                server.break_watches();
                std::thread::sleep(Duration::from_millis(700));
            }
        });
        let (phase, _) = fleet.roll_out(&fleet.request("break"));
        ended.store(true, std::sync::atomic::Ordering::Relaxed);
        phase
    });
    assert_eq!(phase, RolloutPhase::Done);
    assert_eq!(fleet.versions(), [0, 6]);
}

#[test]
fn a_node_that_somebody_else_changes_ends_the_rollout_and_is_left_alone() {
    let fleet = Fleet::start("taken", 4);
    let mut request = fleet.request("taken");
    request.times.soak = Duration::from_secs(3600);
    request.stages.clear();
    let (client, running) = (fleet.client.clone(), request.clone());
    let rollout =
        std::thread::spawn(move || roll_out(&client, &running, &false.into(), &mut |_| {}).unwrap());
    fleet.wait_for("all nodes are changed", |node| node.spec.rollout.is_some());
    let order = NodeOrder::Mode(NodeMode::Originals);
    let outcomes =
        give_order(&fleet.client, &["taken-02".to_owned()], order, Duration::from_secs(60)).unwrap();
    assert!(outcomes[0].confirmed, "{outcomes:?}");
    let phase = rollout.join().unwrap();
    let RolloutPhase::Returned { reason, .. } = phase else { panic!("{phase:?}") };
    assert_eq!(reason, "taken-02 was changed by somebody else");
    for (name, daemon) in &fleet.nodes {
        let is_taken = name == "taken-02";
        assert_eq!(daemon.runs(), if is_taken { (2, true) } else { (1, false) }, "{name}");
    }
}

#[test]
fn a_node_without_a_resource_makes_one_and_a_removed_one_comes_back() {
    let fleet = Fleet::start("made", 1);
    let Some(server) = fleet.server.clone() else { return };
    server.remove("made-00");
    fleet.wait_for("the agent has made it again", |node| {
        node.spec.bundles == [fleet.bundles[0].clone()] && node.status.is_some()
    });
}

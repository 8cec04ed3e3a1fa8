//! Answers of the API server as the client sees them. `exchanges.txt` was recorded from `kube-apiserver` 1.35 with
//! etcd 3.6 (`BLESS=1`, and `MILLSTREAM_TEST_API_SERVER` as in `fleet.rs`). The small server of these tests must
//! answer as it does.

use std::fmt::Debug;

use millstream_cluster::api::{ApiAccess, ApiClient, ApiError, NodeChange};
use millstream_cluster::resource::{BundleTarget, NodeMode, NodeResource, NodeSpec, NodeStatus, OffTestSpec};

use crate::api_server::ApiServer;
use crate::fleet::real_server;

const NAME: &str = "exchange-1";

/// An error, without addresses and the server's words.
fn error_text(error: &ApiError) -> String {
    match error {
        ApiError::Refused { status, .. } => format!("refused with status {status}"),
        ApiError::Unreachable { .. } => "unreachable".into(),
        ApiError::Conflict(_) => "conflict".into(),
        ApiError::NotFound(_) => "not found".into(),
        error => error.to_string(),
    }
}

/// A node, without what differs between two servers.
fn node_text(node: &NodeResource) -> String {
    let status = node.status.as_ref().map(|status| status.observed_generation);
    format!(
        "generation {}, {:?}, {:?}, reported {status:?}",
        node.metadata.generation, node.spec.mode, node.spec.off_test
    )
}

fn outcome(name: &str, result: &Result<NodeResource, ApiError>) -> String {
    let text = result.as_ref().map_or_else(error_text, node_text);
    format!("{name}: {text}\n")
}

/// The exchanges, one a line.
fn exchanges(client: &ApiClient) -> String {
    let mut text = String::new();
    let mut tell = |name: &str, result: &Result<NodeResource, ApiError>| text += &outcome(name, result);
    let spec = |mode| NodeSpec { mode, ..NodeSpec::default() };
    let tested = NodeSpec { off_test: Some(OffTestSpec { seconds: 5 }), ..spec(NodeMode::OffTest) };
    let status = NodeStatus {
        observed_generation: 1,
        reported_at: "2026-01-01T00:00:00.000Z".into(),
        ..NodeStatus::default()
    };
    tell("get a node that is not there", &client.get(NAME));
    tell("change a node that is not there", &client.change_spec(NAME, 1, &tested));
    let before = client.list(None).unwrap().version;
    tell("create", &client.create(&NodeResource::new(NAME, spec(NodeMode::Specialised))));
    tell("create again", &client.create(&NodeResource::new(NAME, spec(NodeMode::Originals))));
    tell("report", &client.write_status(NAME, &status));
    tell("change", &client.change_spec(NAME, 1, &tested));
    tell("change what was changed", &client.change_spec(NAME, 1, &spec(NodeMode::Originals)));
    tell("change nothing", &client.change_spec(NAME, 2, &tested));
    tell("change without an off-test", &client.change_spec(NAME, 2, &spec(NodeMode::Originals)));
    let later = NodeStatus { observed_generation: 3, ..status };
    let unnamed = BundleTarget { program: "router".into(), reference: "registry/router:1".into() };
    let refused = NodeSpec { bundles: vec![unnamed], ..NodeSpec::default() };
    tell("change to a bundle without a digest", &client.change_spec(NAME, 3, &refused));
    tell("report again", &client.write_status(NAME, &later));
    tell("get", &client.get(NAME));
    let list = client.list(Some(NAME)).unwrap();
    text += &format!("list by name: {} nodes\n", list.nodes.len());
    let mut watch = client.watch(Some(NAME), &before).unwrap();
    for _ in 0..5 {
        match watch.next() {
            Ok(Some(NodeChange::Changed(node))) => text += &format!("watch: {}\n", node_text(&node)),
            other => text += &debug_line("watch", &other),
        }
    }
    let old = client.watch(None, "1").unwrap().next();
    text + &format!("watch from an old version: {}\n", old.err().as_ref().map_or("none".into(), error_text))
}

fn debug_line(name: &str, value: &impl Debug) -> String {
    format!("{name}: {value:?}\n")
}

#[test]
fn the_small_server_answers_as_the_recorded_one() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/cluster/exchanges.txt");
    let current = match real_server() {
        Some(client) => exchanges(&client),
        None => {
            let (server, address) = ApiServer::start();
            server.begin_at(100);
            let access = ApiAccess { server: format!("http://{address}"), ..ApiAccess::default() };
            exchanges(&ApiClient::new(access).unwrap())
        }
    };
    if std::env::var_os("BLESS").is_some() && real_server().is_some() {
        std::fs::write(path, &current).unwrap();
    }
    assert_eq!(current, std::fs::read_to_string(path).unwrap());
}

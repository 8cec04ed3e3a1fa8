//! A cluster of simulated nodes: the agents are the real ones, their daemons are simulated.
//!
//! The API server is a small one of these tests, or a real one that `MILLSTREAM_TEST_API_SERVER` names, with the files
//! of its token and of its authority's certificate in `..._TOKEN` and `..._CA`.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use millstream_bundle::{Bundle, PartRole, RegistryAccess};
use millstream_cluster::agent::{AgentSettings, NodeAgent};
use millstream_cluster::api::{ApiAccess, ApiClient};
use millstream_cluster::bundle_store::BundleStore;
use millstream_cluster::controller::{RolloutNotice, RolloutRequest, roll_out};
use millstream_cluster::resource::{BundleTarget, NodeHealth, NodeResource, NodeSpec};
use millstream_cluster::rollout::{RolloutPhase, RolloutTimes, StageSize};
use millstream_cluster::verdict::HealthGate;
use tempfile::TempDir;

use super::api_server::ApiServer;
use super::registry;
use super::simulated_daemon::{NewBundle, SimulatedDaemon};

/// A cluster.
pub(crate) struct Fleet {
    pub(crate) client: ApiClient,
    /// The server, unless it is a real one.
    pub(crate) server: Option<Arc<ApiServer>>,
    pub(crate) nodes: BTreeMap<String, Arc<SimulatedDaemon>>,
    pub(crate) bundles: [BundleTarget; 2],
    end: Arc<AtomicBool>,
    _folder: TempDir,
}

impl Drop for Fleet {
    fn drop(&mut self) {
        self.end.store(true, Ordering::Relaxed);
    }
}

/// A client of the real server, if one is named.
pub(crate) fn real_server() -> Option<ApiClient> {
    let variable = |name: &str| std::env::var(format!("MILLSTREAM_TEST_API_SERVER{name}")).ok();
    let access = ApiAccess {
        server: variable("")?,
        token: variable("_TOKEN").map(PathBuf::from),
        authority: variable("_CA").map(PathBuf::from),
    };
    Some(ApiClient::new(access).unwrap())
}

impl Fleet {
    /// Nodes of which each has the first bundle; all are healthy when this returns.
    pub(crate) fn start(prefix: &str, count: usize) -> Fleet {
        let (client, server) = match real_server() {
            Some(client) => (client, None),
            None => {
                let (server, address) = ApiServer::start();
                let access = ApiAccess { server: format!("http://{address}"), ..ApiAccess::default() };
                (ApiClient::new(access).unwrap(), Some(server))
            }
        };
        let access = RegistryAccess { time: Duration::from_secs(20), plain_http: true, credentials: None };
        let registry = registry::start();
        let contents: [(Bundle, BundleTarget); 2] = ["1", "2"].map(|version| {
            let parts = [(PartRole::Original, "router.o".to_owned(), version.as_bytes().to_vec())];
            let bundle = Bundle::new("test", parts).unwrap();
            let place = format!("{registry}/team/router");
            let digest = access.push(&bundle, &format!("{place}:{version}").parse().unwrap()).unwrap();
            // By digest, too.
            access.push(&bundle, &format!("{place}@{digest}").parse().unwrap()).unwrap();
            let reference = format!("{place}@{digest}");
            (bundle, BundleTarget { program: "router".into(), reference })
        });
        let folder = tempfile::tempdir().unwrap();
        let end = Arc::new(AtomicBool::new(false));
        let mut nodes = BTreeMap::new();
        for number in 0..count {
            let name = format!("{prefix}-{number:02}");
            let home = folder.path().join(&name);
            std::fs::create_dir_all(home.join("bundles")).unwrap();
            contents[0].0.write(&home.join("bundles/router.tar")).unwrap();
            let daemon = SimulatedDaemon::start(&home, NewBundle::Faster);
            let spec = NodeSpec { bundles: vec![contents[0].1.clone()], ..NodeSpec::default() };
            client.create(&NodeResource::new(&name, spec)).unwrap();
            let settings = AgentSettings {
                node: name.clone(),
                socket: home.join("daemon.sock"),
                report: Duration::from_millis(500),
                bundles: Vec::new(),
            };
            let store = BundleStore::new(&home.join("bundles"), access.clone());
            let agent = NodeAgent::new(settings, client.clone(), store);
            let until = Arc::clone(&end);
            std::thread::spawn(move || agent.run(&until));
            nodes.insert(name, daemon);
        }
        let bundles = contents.map(|(_, target)| target);
        let fleet = Fleet { client, server, nodes, bundles, end, _folder: folder };
        fleet.wait_for("all nodes are healthy", |node| {
            let status = node.status.as_ref();
            status.is_some_and(|status| {
                status.health == NodeHealth::Healthy && status.bundles == node.spec.bundles
            })
        });
        fleet
    }

    /// The nodes of this cluster.
    pub(crate) fn list(&self) -> Vec<NodeResource> {
        let mut nodes = self.client.list(None).unwrap().nodes;
        nodes.retain(|node| self.nodes.contains_key(&node.metadata.name));
        nodes
    }

    /// Names of the nodes.
    pub(crate) fn names(&self) -> Vec<String> {
        self.nodes.keys().cloned().collect()
    }

    /// Waits until all nodes meet a condition.
    pub(crate) fn wait_for(&self, condition: &str, is_met: impl Fn(&NodeResource) -> bool) {
        let start = Instant::now();
        loop {
            let nodes = self.list();
            if nodes.len() == self.nodes.len() && nodes.iter().all(&is_met) {
                return;
            }
            let late = nodes.iter().find(|node| !is_met(node));
            assert!(start.elapsed() < Duration::from_secs(120), "not met: {condition}: {late:?}");
            std::thread::sleep(Duration::from_millis(100));
        }
    }

    /// A rollout of the second bundle.
    pub(crate) fn request(&self, name: &str) -> RolloutRequest {
        let seconds = Duration::from_secs;
        RolloutRequest {
            name: name.into(),
            nodes: self.names(),
            bundles: vec![self.bundles[1].clone()],
            mode: None,
            stages: vec![
                StageSize::Nodes(1),
                StageSize::Percent(10.0),
                StageSize::Percent(50.0),
                StageSize::Percent(100.0),
            ],
            gate: HealthGate { max_slowdown: 0.05, min_gain: 0.0 },
            times: RolloutTimes {
                soak: Duration::from_millis(500),
                deadline: seconds(60),
                silence: seconds(30),
                give_up: seconds(60),
            },
            skip_unhealthy: false,
        }
    }

    /// Carries a rollout out; returns its end and what it told.
    pub(crate) fn roll_out(&self, request: &RolloutRequest) -> (RolloutPhase, Vec<RolloutNotice>) {
        let mut notices = Vec::new();
        let mut tell = |notice: &RolloutNotice| notices.push(notice.clone());
        let phase = roll_out(&self.client, request, &AtomicBool::new(false), &mut tell).unwrap();
        (phase, notices)
    }

    /// Number of nodes that run each version.
    pub(crate) fn versions(&self) -> [usize; 2] {
        [1, 2].map(|version| self.nodes.values().filter(|daemon| daemon.runs().0 == version).count())
    }
}

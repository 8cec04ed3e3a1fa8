//! The custom resource of a node: the state that is wanted (`spec`) apart from the actual one (`status`).
//!
//! An agent on the node reads `spec` and writes `status`; people and rollouts write `spec`. The definition in
//! `dist/kubernetes` is generated from these types by [`crate::definition`].

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Group of the resource.
pub const GROUP: &str = "millstream.dev";
/// Version of the resource.
pub const VERSION: &str = "v1alpha1";
/// Kind of the resource.
pub const KIND: &str = "MillstreamNode";
/// Plural of the resource, as in paths.
pub const PLURAL: &str = "millstreamnodes";

/// A node: its resource has the name of the node.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct NodeResource {
    /// Group and version.
    #[serde(default)]
    pub api_version: String,
    /// Kind.
    #[serde(default)]
    pub kind: String,
    /// Metadata, as far as they matter here.
    pub metadata: ResourceMetadata,
    /// The wanted state.
    #[serde(default)]
    pub spec: NodeSpec,
    /// The actual state, once the agent has reported.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub status: Option<NodeStatus>,
}

impl NodeResource {
    /// A resource that does not exist yet.
    pub fn new(name: &str, spec: NodeSpec) -> NodeResource {
        NodeResource {
            api_version: format!("{GROUP}/{VERSION}"),
            kind: KIND.to_owned(),
            metadata: ResourceMetadata { name: name.to_owned(), ..ResourceMetadata::default() },
            spec,
            status: None,
        }
    }
}

/// Metadata of a resource.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ResourceMetadata {
    /// Name.
    #[serde(default)]
    pub name: String,
    /// Version of the whole resource, opaque.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub resource_version: String,
    /// Number of changes of `spec`.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub generation: i64,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde calls it with a reference")]
fn is_zero(number: &i64) -> bool {
    *number == 0
}

/// State that a node is to have.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct NodeSpec {
    /// Bundles that programs of the daemon run. Programs that are not named keep the object of the daemon's
    /// configuration.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub bundles: Vec<BundleTarget>,
    /// Code that is attached.
    #[serde(default)]
    pub mode: NodeMode,
    /// Test that the mode OffTest runs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub off_test: Option<OffTestSpec>,
    /// Unfinished rollout that has changed this node.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rollout: Option<RolloutMark>,
}

impl NodeSpec {
    /// The part that a rollout changes.
    pub fn target(&self) -> NodeTarget {
        NodeTarget { bundles: self.bundles.clone(), mode: self.mode }
    }

    /// The state with another target, marked by a rollout or not.
    #[must_use]
    pub fn with_target(target: NodeTarget, rollout: Option<RolloutMark>) -> NodeSpec {
        NodeSpec { bundles: target.bundles, mode: target.mode, off_test: None, rollout }
    }
}

/// Bundle of a program.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, JsonSchema)]
pub struct BundleTarget {
    /// Stem of the file that the daemon's configuration names: `router` for `router.tar`.
    #[schemars(regex(pattern = r"^[a-z0-9]([a-z0-9._-]{0,61}[a-z0-9])?$"))]
    pub program: String,
    /// Place in a registry, by digest, so that all nodes run the same bytes.
    #[schemars(regex(pattern = r"^[^@]+@sha256:[0-9a-f]{64}$"))]
    pub reference: String,
}

/// Code that is attached.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize, JsonSchema)]
pub enum NodeMode {
    /// Specialized code, where the daemon finds it faster.
    #[default]
    Specialised,
    /// The original programs.
    Originals,
    /// Specialized code, then the originals, then specialized code again, to compare them.
    OffTest,
}

/// Settings of an off-test.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize, JsonSchema)]
pub struct OffTestSpec {
    /// Length of each of the three parts, in seconds.
    #[schemars(range(min = 1, max = 3600))]
    pub seconds: u32,
}

/// Mark of an unfinished rollout.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, JsonSchema)]
pub struct RolloutMark {
    /// Name of the rollout.
    pub name: String,
    /// State before the rollout.
    pub previous: NodeTarget,
}

/// Part of the wanted state that a rollout changes.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize, JsonSchema)]
pub struct NodeTarget {
    /// Bundles of programs.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub bundles: Vec<BundleTarget>,
    /// Code that is attached.
    #[serde(default)]
    pub mode: NodeMode,
}

/// State that a node has.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct NodeStatus {
    /// Generation of `spec` to which the agent has brought the node, or tried to.
    #[serde(default)]
    pub observed_generation: i64,
    /// Time of the report, in UTC.
    #[schemars(extend("format" = "date-time"))]
    pub reported_at: String,
    /// Health of the node.
    pub health: NodeHealth,
    /// Reason for the health, if it is not Healthy.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
    /// Code that is attached.
    #[serde(default)]
    pub mode: NodeMode,
    /// Bundles that are installed.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub bundles: Vec<BundleTarget>,
    /// Programs of the daemon.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub programs: Vec<ProgramReport>,
    /// Result of the last off-test.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub off_test: Option<OffTestReport>,
}

/// Health of a node.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize, JsonSchema)]
pub enum NodeHealth {
    /// The wanted state is reached, and all programs run.
    Healthy,
    /// The node is on its way to the wanted state.
    #[default]
    Progressing,
    /// A program has failed, a bundle cannot be installed, or the daemon does not answer.
    Failing,
}

/// State of a program.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ProgramReport {
    /// Name in the daemon's configuration.
    pub name: String,
    /// State of its session, as in `millstream status`.
    pub state: String,
    /// Reason for the state.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// True if specialized code is attached.
    pub installed: bool,
    /// Generation of the attached code; 0: the original.
    #[serde(default)]
    pub generation: u32,
    /// Form of its bundle that runs, and how it was verified.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub verification: Option<String>,
    /// Time per packet of the original, in nanoseconds, when last measured.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub original_ns: Option<f64>,
    /// Time per packet of the attached code, in nanoseconds, when last measured.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub current_ns: Option<f64>,
    /// Fraction of the time per packet that the attached code saves.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gain: Option<f64>,
    /// Packets per second.
    #[serde(default)]
    pub packets_per_second: f64,
    /// Sessions that failed.
    #[serde(default)]
    pub failures: u64,
}

/// Result of an off-test.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct OffTestReport {
    /// Generation of `spec` that asked for it.
    pub generation: i64,
    /// Load with specialized code, before and after the originals ran.
    pub specialised: LoadReport,
    /// Load with the originals.
    pub originals: LoadReport,
    /// Fraction of the receive path's time per packet that specialization saves; absent without packets.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub worth: Option<f64>,
}

/// Load of a node over a time.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct LoadReport {
    /// Length, in seconds.
    pub seconds: f64,
    /// Packets of all programs.
    pub packets: u64,
    /// Time of all processors in software interrupts, in seconds: the receive path, with drivers and stack.
    pub softirq_seconds: f64,
}

impl LoadReport {
    /// Time of the receive path per packet, in nanoseconds.
    pub fn packet_ns(&self) -> Option<f64> {
        (self.packets > 0).then(|| 1e9 * self.softirq_seconds / self.packets as f64)
    }
}

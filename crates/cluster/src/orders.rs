//! Orders to nodes at once: another mode, an off-test, the end of a rollout.

use std::time::{Duration, Instant};

use crate::api::{ApiClient, ApiError};
use crate::resource::{NodeHealth, NodeMode, NodeResource, NodeSpec, OffTestReport, OffTestSpec};

/// Time between two looks at the nodes.
const LOOK: Duration = Duration::from_secs(1);
/// Attempts to change a node that others change at the same time.
const ATTEMPTS: usize = 5;

/// Order to a node.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum NodeOrder {
    /// Another mode. It ends an off-test.
    Mode(NodeMode),
    /// An off-test, and the earlier mode afterwards.
    OffTest {
        /// Length of each part.
        seconds: u32,
    },
    /// The end of an unfinished rollout.
    EndRollout {
        /// True if the new state stays; else the earlier one comes back.
        keep: bool,
    },
}

/// Outcome of an order for a node.
#[derive(Clone, PartialEq, Debug)]
pub struct OrderOutcome {
    /// The node.
    pub node: String,
    /// True if the node has reported the state in time.
    pub confirmed: bool,
    /// Reason why it has not.
    pub reason: Option<String>,
    /// Result of an off-test.
    pub off_test: Option<OffTestReport>,
}

/// Node of an order.
struct OrderedNode {
    name: String,
    /// Generation that it must confirm; 0 if it was not changed.
    generation: i64,
    outcome: Option<OrderOutcome>,
}

/// Gives an order to these nodes, or to all that it concerns, and waits until they have confirmed it.
///
/// # Errors
/// If the API server does not answer at first, or refuses.
pub fn give_order(
    client: &ApiClient,
    names: &[String],
    order: NodeOrder,
    time: Duration,
) -> Result<Vec<OrderOutcome>, ApiError> {
    let end = Instant::now() + time;
    let mut nodes = client.list(None)?.nodes;
    nodes.retain(|node| names.is_empty() || names.contains(&node.metadata.name));
    if let Some(missing) = names.iter().find(|name| !nodes.iter().any(|node| node.metadata.name == **name)) {
        return Err(ApiError::NotFound(missing.clone()));
    }
    let mut ordered = Vec::new();
    for node in nodes {
        let name = node.metadata.name.clone();
        if let Some(generation) = change(client, node, order)? {
            ordered.push(OrderedNode { name, generation, outcome: None });
        } else if matches!(order, NodeOrder::OffTest { .. }) {
            let reason = Some("it is not to run specialized code".to_owned());
            let outcome = OrderOutcome { node: name.clone(), confirmed: false, reason, off_test: None };
            ordered.push(OrderedNode { name, generation: 0, outcome: Some(outcome) });
        }
    }
    while ordered.iter().any(|node| node.outcome.is_none()) && Instant::now() < end {
        std::thread::sleep(LOOK);
        match client.list(None) {
            Ok(list) => confirm(&mut ordered, &list.nodes, order),
            Err(error) if error.is_transient() => tracing::warn!("{error}"),
            Err(error) => return Err(error),
        }
    }
    if matches!(order, NodeOrder::OffTest { .. }) {
        for node in ordered.iter().filter(|node| node.generation > 0) {
            let current = client.get(&node.name)?;
            // Somebody may have ended it with another order.
            if current.spec.mode == NodeMode::OffTest {
                change(client, current, NodeOrder::Mode(NodeMode::Specialised))?;
            }
        }
    }
    let late = |name: String| OrderOutcome {
        node: name,
        confirmed: false,
        reason: Some(format!("no confirmation after {} s", time.as_secs_f64())),
        off_test: None,
    };
    Ok(ordered.into_iter().map(|node| node.outcome.unwrap_or_else(|| late(node.name))).collect())
}

/// Changes a node; returns the generation that it must confirm, or none if the order does not concern it.
fn change(client: &ApiClient, mut node: NodeResource, order: NodeOrder) -> Result<Option<i64>, ApiError> {
    let name = node.metadata.name.clone();
    for _ in 0..ATTEMPTS {
        let Some(wanted) = wanted(&node.spec, order) else { return Ok(None) };
        if wanted == node.spec {
            return Ok(Some(node.metadata.generation));
        }
        match client.change_spec(&name, node.metadata.generation, &wanted) {
            Ok(node) => return Ok(Some(node.metadata.generation)),
            Err(ApiError::Conflict(_)) => node = client.get(&name)?,
            Err(error) => return Err(error),
        }
    }
    Err(ApiError::Conflict(name))
}

/// State that an order demands, if it concerns a node in this state.
fn wanted(spec: &NodeSpec, order: NodeOrder) -> Option<NodeSpec> {
    match order {
        NodeOrder::Mode(mode) => Some(NodeSpec { mode, off_test: None, ..spec.clone() }),
        NodeOrder::OffTest { seconds } => {
            let off_test = Some(OffTestSpec { seconds });
            // Originals are an order of a person: there is nothing to compare with.
            let is_specialised = spec.mode == NodeMode::Specialised;
            is_specialised.then(|| NodeSpec { mode: NodeMode::OffTest, off_test, ..spec.clone() })
        }
        NodeOrder::EndRollout { keep } => {
            let mark = spec.rollout.clone()?;
            let target = if keep { spec.target() } else { mark.previous };
            Some(NodeSpec::with_target(target, None))
        }
    }
}

fn confirm(ordered: &mut [OrderedNode], nodes: &[NodeResource], order: NodeOrder) {
    for node in ordered.iter_mut().filter(|node| node.outcome.is_none()) {
        let current = nodes.iter().find(|current| current.metadata.name == node.name);
        let status = current.and_then(|current| current.status.as_ref());
        let Some(status) = status.filter(|status| status.observed_generation >= node.generation) else {
            continue;
        };
        let off_test = status.off_test.clone().filter(|result| result.generation == node.generation);
        let confirmed = match order {
            NodeOrder::Mode(_) | NodeOrder::EndRollout { .. } => status.health == NodeHealth::Healthy,
            NodeOrder::OffTest { .. } => off_test.is_some(),
        };
        if confirmed || status.health == NodeHealth::Failing {
            let reason = status.message.clone().filter(|_| !confirmed);
            node.outcome = Some(OrderOutcome { node: node.name.clone(), confirmed, reason, off_test });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::resource::{BundleTarget, NodeTarget, RolloutMark};

    #[test]
    fn orders_change_what_they_say() {
        let bundle = |digit: &str| BundleTarget { program: "router".into(), reference: digit.into() };
        let previous = NodeTarget { bundles: vec![bundle("1")], mode: NodeMode::Originals };
        let rollout = Some(RolloutMark { name: "r".into(), previous: previous.clone() });
        let spec = NodeSpec { bundles: vec![bundle("2")], rollout, ..NodeSpec::default() };
        let off = wanted(&spec, NodeOrder::Mode(NodeMode::Originals)).unwrap();
        assert_eq!((off.mode, &off.bundles), (NodeMode::Originals, &spec.bundles));
        assert_eq!(wanted(&off, NodeOrder::OffTest { seconds: 1 }), None);
        let test = wanted(&spec, NodeOrder::OffTest { seconds: 1 }).unwrap();
        assert_eq!(wanted(&test, NodeOrder::Mode(NodeMode::Specialised)), Some(spec.clone()));
        let back = wanted(&spec, NodeOrder::EndRollout { keep: false }).unwrap();
        assert_eq!((back.target(), &back.rollout), (previous, &None));
        let kept = wanted(&spec, NodeOrder::EndRollout { keep: true }).unwrap();
        assert_eq!((kept.target(), &kept.rollout), (spec.target(), &None));
        assert_eq!(wanted(&kept, NodeOrder::EndRollout { keep: false }), None);
    }
}

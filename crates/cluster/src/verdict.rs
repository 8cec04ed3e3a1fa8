//! Judgement of a node that a rollout has changed: a pure function of its report, its report before, and the gate.

use std::collections::BTreeMap;

use crate::resource::{NodeHealth, NodeResource, NodeStatus, ProgramReport};

/// Conditions that a changed node must meet.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct HealthGate {
    /// Largest increase of a program's time per packet, as a fraction of the time before the rollout.
    pub max_slowdown: f64,
    /// Smallest gain of a program with specialized code, as a fraction of the original's time per packet.
    pub min_gain: f64,
}

/// Judgement of a node.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum NodeVerdict {
    /// The node has not reached the wanted state yet.
    Pending,
    /// The node meets the gate.
    Good,
    /// The node is slower than the gate permits. Times are noisy: one report proves nothing.
    Slower(String),
    /// The node fails.
    Failing(String),
}

/// Programs of a node before a rollout, by name.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct NodeBaseline(BTreeMap<String, ProgramReport>);

impl NodeBaseline {
    /// The programs of a report.
    pub fn of(status: &NodeStatus) -> NodeBaseline {
        NodeBaseline(status.programs.iter().map(|program| (program.name.clone(), program.clone())).collect())
    }
}

impl HealthGate {
    /// Judges a node by its last report.
    pub fn judge(&self, node: &NodeResource, before: &NodeBaseline) -> NodeVerdict {
        let Some(status) = &node.status else { return NodeVerdict::Pending };
        if status.observed_generation < node.metadata.generation {
            return NodeVerdict::Pending;
        }
        if status.health == NodeHealth::Failing {
            return NodeVerdict::Failing(status.message.clone().unwrap_or_else(|| "it fails".to_owned()));
        }
        for program in &status.programs {
            let failures = before.0.get(&program.name).map_or(0, |program| program.failures);
            // The count begins anew with another bundle.
            if program.failures > failures {
                let reason = program.reason.clone().unwrap_or_else(|| "a session failed".to_owned());
                return NodeVerdict::Failing(format!("{}: {reason}", program.name));
            }
        }
        if let Some(reason) = status.programs.iter().find_map(|program| self.slowness(program, before)) {
            return NodeVerdict::Slower(reason);
        }
        // A program that was measured before is measured again, as soon as packets come.
        let is_unmeasured = |program: &ProgramReport| {
            let earlier = before.0.get(&program.name).and_then(|program| program.current_ns);
            earlier.is_some() && program.current_ns.is_none() && program.packets_per_second > 0.0
        };
        match status.health {
            NodeHealth::Healthy if !status.programs.iter().any(is_unmeasured) => NodeVerdict::Good,
            _ => NodeVerdict::Pending,
        }
    }

    /// Reason why a program is slower than permitted.
    fn slowness(&self, program: &ProgramReport, before: &NodeBaseline) -> Option<String> {
        let name = &program.name;
        let earlier = before.0.get(name).and_then(|program| program.current_ns).filter(|ns| *ns > 0.0);
        if let (Some(earlier), Some(now)) = (earlier, program.current_ns)
            && now > earlier * (1.0 + self.max_slowdown)
        {
            return Some(format!("{name}: {now:.1} ns per packet, {earlier:.1} ns before"));
        }
        let gain = program.gain.filter(|gain| program.installed && *gain < self.min_gain)?;
        Some(format!("{name}: gain {:.1} %, less than {:.1} %", 100.0 * gain, 100.0 * self.min_gain))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::resource::NodeSpec;

    const GATE: HealthGate = HealthGate { max_slowdown: 0.05, min_gain: 0.0 };

    fn program(current_ns: f64, failures: u64) -> ProgramReport {
        ProgramReport {
            name: "router".into(),
            state: "running".into(),
            installed: true,
            original_ns: Some(100.0),
            current_ns: Some(current_ns),
            gain: Some(1.0 - current_ns / 100.0),
            failures,
            ..ProgramReport::default()
        }
    }

    fn node(health: NodeHealth, program: ProgramReport) -> NodeResource {
        let mut node = NodeResource::new("a", NodeSpec::default());
        node.metadata.generation = 2;
        let status = NodeStatus { observed_generation: 2, health, ..NodeStatus::default() };
        node.status = Some(NodeStatus { programs: vec![program], ..status });
        node
    }

    #[test]
    fn each_condition_of_the_gate() {
        let status = NodeStatus { programs: vec![program(80.0, 1)], ..NodeStatus::default() };
        let before = NodeBaseline::of(&status);
        let judge = |health, program| GATE.judge(&node(health, program), &before);
        assert_eq!(judge(NodeHealth::Healthy, program(84.0, 1)), NodeVerdict::Good);
        assert_eq!(judge(NodeHealth::Progressing, program(84.0, 1)), NodeVerdict::Pending);
        assert!(matches!(judge(NodeHealth::Healthy, program(84.1, 1)), NodeVerdict::Slower(_)));
        assert!(matches!(judge(NodeHealth::Healthy, program(80.0, 2)), NodeVerdict::Failing(_)));
        assert!(matches!(judge(NodeHealth::Failing, program(80.0, 1)), NodeVerdict::Failing(_)));
        let unmeasured = ProgramReport { current_ns: None, gain: None, ..program(80.0, 1) };
        assert_eq!(judge(NodeHealth::Healthy, unmeasured.clone()), NodeVerdict::Good);
        let unmeasured = ProgramReport { packets_per_second: 1.0, ..unmeasured };
        assert_eq!(judge(NodeHealth::Healthy, unmeasured), NodeVerdict::Pending);
        let lossy = HealthGate { min_gain: 0.3, ..GATE };
        let verdict = lossy.judge(&node(NodeHealth::Healthy, program(80.0, 1)), &before);
        assert_eq!(verdict, NodeVerdict::Slower("router: gain 20.0 %, less than 30.0 %".into()));
    }

    #[test]
    fn an_old_report_says_nothing() {
        let mut old = node(NodeHealth::Failing, program(500.0, 9));
        old.metadata.generation = 3;
        assert_eq!(GATE.judge(&old, &NodeBaseline::default()), NodeVerdict::Pending);
        old.status = None;
        assert_eq!(GATE.judge(&old, &NodeBaseline::default()), NodeVerdict::Pending);
    }
}

//! `-O super` on our own data planes: accepted by the kernel, proven, no worse, and the same on made-up
//! packets.

use std::time::Duration;

use millstream_kernel::testing;
use millstream_object::Object;
use millstream_opt::{
    EquivalenceEvidence, KernelAcceptance, OptimizationGoal, OptimizeOptions, SuperOptions, superoptimize,
};
use millstream_programs::{BALANCER, DataPlaneProgram, FIREWALL, NAT, ROUTER};
use millstream_prove::{ProofLimits, differ};

fn options(goal: OptimizationGoal, budget: Duration) -> SuperOptions {
    SuperOptions {
        options: OptimizeOptions { goal, ..OptimizeOptions::default() },
        budget: Some(budget),
        jobs: 2,
        seed: 1,
        limits: ProofLimits { time: Duration::from_secs(10), ..ProofLimits::default() },
        ..SuperOptions::default()
    }
}

fn searched(program: DataPlaneProgram, goal: OptimizationGoal) {
    let object = Object::parse(program.name, program.object).unwrap();
    let done = superoptimize(&object, &options(goal, Duration::from_secs(2))).unwrap();
    for (p, report) in object.programs.iter().zip(&done.programs) {
        let name = format!("{} {}", program.name, report.name);
        assert_eq!(report.kernel, KernelAcceptance::Accepted, "{name}");
        assert!(!matches!(report.proof, EquivalenceEvidence::Refuted(_)), "{name}: {:?}", report.proof);
        assert!(report.after.slots <= report.before.slots, "{name}: {report:?}");
        if goal == OptimizationGoal::Balanced {
            assert!(report.after.cycles <= report.fixed.cycles, "{name}: {report:?}");
            assert!(report.after.cycles <= report.before.cycles, "{name}: {report:?}");
        }
        let found = differ((&object, p.func), (&done.object, p.func), 300, 5);
        assert!(found.is_none(), "{name}: {}", found.unwrap());
    }
    // The written object can be read again.
    let bytes = done.object.write().unwrap();
    Object::parse(program.name, &bytes).unwrap();
}

#[test]
fn data_planes_stay_what_they_are_and_become_no_worse() {
    if !testing::require() {
        return;
    }
    searched(ROUTER, OptimizationGoal::Balanced);
    searched(FIREWALL, OptimizationGoal::Size);
    searched(NAT, OptimizationGoal::Latency);
    searched(BALANCER, OptimizationGoal::Balanced);
}

#[test]
fn without_time_there_is_the_static_form() {
    let object = Object::parse(ROUTER.name, ROUTER.object).unwrap();
    let done = superoptimize(&object, &options(OptimizationGoal::Size, Duration::ZERO)).unwrap();
    for report in &done.programs {
        assert!(report.found.is_empty() && report.after.slots == report.fixed.slots, "{report:?}");
    }
}

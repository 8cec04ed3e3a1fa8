//! Measuring, comparing and verifying on the real kernel, with our own router and its tables.

use std::sync::Mutex;

use millstream_kernel::{Namespace, testing};
use millstream_lab::compare::{TimingMode, compare_live, compare_test_runs};
use millstream_lab::measure::MeasurementPlan;
use millstream_lab::subject::ProgramUnderTest;
use millstream_lab::verify::{answers, verify};
use millstream_lab::workload::{BuiltinWorkload, Workload};
use millstream_lab::{RigConfig, TestRig, TrafficSequence};
use millstream_object::Object;
use millstream_programs::ROUTER;
use millstream_programs::traffic::FlowLocality;

static ALONE: Mutex<()> = Mutex::new(());

fn alone() -> std::sync::MutexGuard<'static, ()> {
    ALONE.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

fn router() -> Object {
    Object::parse("router.bpf.o", ROUTER.object).unwrap()
}

fn tables(ports: [u32; 2]) -> Workload {
    "builtin:router:100".parse::<BuiltinWorkload>().unwrap().workload(ports, 50, FlowLocality::NONE).unwrap()
}

/// Short: the machinery is tested here, not the machine.
fn plan(plan: MeasurementPlan) -> MeasurementPlan {
    MeasurementPlan { copies: 2, generation: 0.05, seed: 1, ..plan }
}

#[test]
fn test_runs_measure_the_router_above_the_empty_program() {
    let _alone = alone();
    if !testing::require() {
        return;
    }
    let object = router();
    let a = ProgramUnderTest::prepare("a", &object, None, None).unwrap();
    let b = ProgramUnderTest::prepare("b", &object, None, Some(&a)).unwrap();
    let load = tables([1, 1]);
    a.apply(&load.entries, &Namespace::current().unwrap()).unwrap();
    let map = |s: &ProgramUnderTest<'_>| s.session().map_by_name("routes").unwrap().id();
    assert_eq!(map(&a), map(&b), "one table for both");

    let packets: Vec<_> = load.flows.packets[..8].to_vec();
    let report = compare_test_runs(&[a, b], &packets, 0, plan(MeasurementPlan::test_run(1.0))).unwrap();
    assert_eq!((report.mode, report.empty_verdict, report.packets), (TimingMode::TestRun, 3, 8));
    let [a, b] = &report.sides[..] else { panic!("{report:?}") };
    assert!(a.ns > report.empty_ns && b.ns > report.empty_ns, "{report:?}");
    assert_eq!((a.jited_bytes, a.executed_instructions), (b.jited_bytes, b.executed_instructions));
    assert!(a.executed_instructions.is_some_and(|n| (40.0..400.0).contains(&n)), "{report:?}");
    assert_eq!(b.answers_differ, Some(0));
    assert!(report.runs > 100);
}

#[test]
fn the_rig_measures_verifies_and_times_the_router() {
    let _alone = alone();
    if !testing::require() {
        return;
    }
    let rig = TestRig::new(RigConfig { stamps: true, ..RigConfig::default() }).unwrap();
    let object = router();
    let subject = ProgramUnderTest::prepare("router", &object, None, None).unwrap();
    let load = tables([rig.test_port(), rig.second_port()]);
    subject.apply(&load.entries, rig.namespace()).unwrap();
    let sequence = load.flows.sequence(1, 1_000);
    let traffic = TrafficSequence::new(&load.flows, &sequence);
    rig.load_traffic(&traffic).unwrap();

    let program = subject.load().unwrap();
    let expected = answers(&rig, &program, &load.flows.packets).unwrap();
    assert!(expected.iter().all(|(verdict, _)| *verdict == 3), "one port: all is transmitted");
    let good = verify(&rig, &traffic, &expected, 2_000).unwrap();
    assert!(good.is_good() && good.returned == 2_000, "{good:?}");

    let mut wrong = expected.clone();
    wrong[sequence[0] as usize].1[0] ^= 1;
    let bad = verify(&rig, &traffic, &wrong, 2_000).unwrap();
    assert!(bad.missing > 0 && bad.missing == bad.unexpected, "{bad:?}");

    let latencies = rig.latencies(10_000).unwrap();
    assert_eq!(latencies.frames, 10_000);
    assert!(0 < latencies.p50 && latencies.p50 <= latencies.p99, "{latencies:?}");

    let report = compare_live(
        &[subject],
        &rig,
        &load.flows.packets,
        3,
        MeasurementPlan { generation: 0.4, ..plan(MeasurementPlan::live(1.0)) },
    )
    .unwrap();
    assert!(report.sides[0].ns > report.empty_ns, "{report:?}");
    assert_eq!(rig.counts().unwrap().lost(), 0);
}

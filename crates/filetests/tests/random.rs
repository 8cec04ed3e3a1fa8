//! Lowering and passes keep the meaning of random functions: each pass alone, the default ones in their
//! order, and any prefix of their rewrites. `PROPTEST_CASES=N` tries more of them.

use millstream_filetests::{check_passes, check_random};
use millstream_isa::ByteOrder;
use millstream_passes::{Fuel, Pass, PassPipeline, TargetInfo, registry};
use proptest::prelude::*;

/// Bytes that determine a function.
fn choices() -> impl Strategy<Value = Vec<u8>> {
    proptest::collection::vec(any::<u8>(), 0..400)
}

fn arg() -> impl Strategy<Value = u64> {
    prop_oneof![any::<u64>(), 0u64..8, any::<i32>().prop_map(|n| i64::from(n) as u64)]
}

fn target() -> impl Strategy<Value = TargetInfo> {
    let small = |isa| TargetInfo { slots_first: true, ..TargetInfo::bpf(isa) };
    let big = |isa| TargetInfo { byte_order: ByteOrder::Big, ..TargetInfo::bpf(isa) };
    prop_oneof![
        (1u8..=4).prop_map(TargetInfo::bpf),
        (1u8..=4).prop_map(small),
        (1u8..=4).prop_map(big),
        Just(TargetInfo::native())
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn every_way_of_running_a_function_agrees(choices in choices(), a in arg(), b in arg(), target in target()) {
        check_random(&choices, [a, b], &target).map_err(TestCaseError::fail)?;
    }

    #[test]
    fn every_pass_keeps_the_meaning(choices in choices(), a in arg(), b in arg(), target in target()) {
        for name in registry().map(Pass::name) {
            let done = check_passes(&choices, [a, b], &[name], &Fuel::unlimited(), &target);
            done.map_err(TestCaseError::fail)?;
        }
    }

    #[test]
    fn any_order_of_passes_keeps_the_meaning(
        choices in choices(), a in arg(), b in arg(), target in target(),
        order in proptest::collection::vec(any::<prop::sample::Index>(), 2..10),
    ) {
        let all: Vec<&str> = registry().map(Pass::name).collect();
        let names: Vec<&str> = order.iter().map(|i| *i.get(&all)).collect();
        let done = check_passes(&choices, [a, b], &names, &Fuel::unlimited(), &target);
        done.map_err(TestCaseError::fail)?;
    }

    #[test]
    fn any_prefix_of_the_rewrites_keeps_the_meaning(
        choices in choices(), a in arg(), b in arg(), target in target(), step in 1u64..40, skip in any::<bool>(),
    ) {
        let pipeline = PassPipeline::default_o2();
        let names: Vec<&str> = pipeline.passes().iter().map(|p| p.name()).collect();
        let fuel = if skip { Fuel::unlimited().skip(step) } else { Fuel::limited(step) };
        check_passes(&choices, [a, b], &names, &fuel, &target).map_err(TestCaseError::fail)?;
    }
}

//! Lowering and the default passes keep the meaning of random functions. `PROPTEST_CASES=N` tries more of them.

use millstream_filetests::check_random;
use millstream_passes::Target;
use proptest::prelude::*;

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn every_way_of_running_a_function_agrees(
        choices in proptest::collection::vec(any::<u8>(), 0..400),
        a in prop_oneof![any::<u64>(), 0u64..8],
        b in prop_oneof![any::<u64>(), 0u64..8],
        isa in 1u8..=4,
        native in any::<bool>(),
    ) {
        let target = if native { Target::native() } else { Target::bpf(isa) };
        check_random(&choices, [a, b], &target).map_err(TestCaseError::fail)?;
    }
}

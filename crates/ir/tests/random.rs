//! Random functions are valid, and their text reads back to the same function.

use millstream_ir::random;
use millstream_ir::text::parse_module;
use millstream_ir::verify::{unreachable_blocks, verify_module};
use proptest::prelude::*;

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn random_functions_are_valid_and_round_trip(choices in proptest::collection::vec(any::<u8>(), 0..600)) {
        let module = random::module(&choices);
        prop_assert_eq!(verify_module(&module), []);
        prop_assert!(unreachable_blocks(module.funcs.values().next().unwrap()).is_empty());
        let text = module.to_string();
        let read = parse_module(&text).unwrap();
        prop_assert_eq!(verify_module(&read), []);
        prop_assert_eq!(read.to_string(), text);
    }

    #[test]
    fn malformed_text_is_an_error_and_no_panic(
        choices in proptest::collection::vec(any::<u8>(), 0..80),
        at in any::<prop::sample::Index>(),
        with in "[ -~]{0,3}",
    ) {
        let mut text = random::module(&choices).to_string();
        let at = at.index(text.len());
        text.replace_range(at..(at + 1).min(text.len()), &with);
        if let Ok(module) = parse_module(&text) {
            verify_module(&module);
        }
    }
}

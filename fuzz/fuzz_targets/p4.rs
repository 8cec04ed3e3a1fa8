//! P4 programs: whatever text is read is checked, nothing panics, and what is wrong has a place in a file.

#![no_main]

#[path = "../../crates/p4/tests/common/mod.rs"]
mod front;

use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &str| {
    front::through(text, None);
});

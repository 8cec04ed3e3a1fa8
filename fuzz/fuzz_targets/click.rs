//! Configurations of Click: whatever text is read is taken apart, compiled to the IR if it makes sense, and
//! what comes out is valid; what is wrong has a place in the text.

#![no_main]

#[path = "../../crates/click-elements/tests/elements/front.rs"]
mod front;

use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &str| front::through(text));

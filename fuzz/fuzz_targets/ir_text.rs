//! The IR's text: what can be read is printed and read again as the same, and the IR verifier has an opinion
//! on it.

#![no_main]

use libfuzzer_sys::fuzz_target;
use millstream_ir::text::{PrintOptions, parse_module, print_module};
use millstream_ir::verify::verify_module;

fuzz_target!(|text: &str| {
    let Ok(module) = parse_module(text) else { return };
    let _ = verify_module(&module);
    let printed = print_module(&module, PrintOptions::default());
    let again = parse_module(&printed).expect("what is printed can be read");
    assert_eq!(print_module(&again, PrintOptions::default()), printed);
});

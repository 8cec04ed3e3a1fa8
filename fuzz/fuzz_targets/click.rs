//! Configurations of Click: whatever text is read is taken apart, compiled to the IR if it makes sense, and what comes out is valid.

#![no_main]

use libfuzzer_sys::fuzz_target;
use millstream_click::{compile, flatten, parse};
use millstream_ir::verify::verify_module;

fuzz_target!(|text: &str| {
    let Ok(statements) = parse(text) else { return };
    let Ok(graph) = flatten(&statements, &[]) else { return };
    let Ok(program) = compile(&graph) else { return };
    assert_eq!(verify_module(&program.module), []);
    assert!(parse(&graph.to_string()).is_ok(), "what is taken apart is a configuration");
});

//! Any text at all through the front end. The fuzz target `click` is this, too.

use millstream_click::{Error, flatten, parse};
use millstream_click_elements::compile;
use millstream_ir::verify::verify_module;

/// Reads a text as a configuration, and takes it apart and compiles it if it is one. The result is valid, and
/// errors have positions.
///
/// # Panics
/// If not.
pub(crate) fn through(text: &str) {
    let located = |errors: &[Error]| {
        assert!(!errors.is_empty(), "a failure without an error");
        for e in errors {
            assert!(e.span.start <= e.span.end && e.span.end <= text.len(), "no place in the text: {e:?}");
            assert!(!e.message.is_empty());
        }
    };
    let graph = match parse(text).and_then(|statements| flatten(&statements, &[])) {
        Ok(graph) => graph,
        Err(e) => return located(&[e]),
    };
    assert!(parse(&graph.to_string()).is_ok(), "what is taken apart is a configuration");
    match compile(&graph) {
        Ok(program) => assert_eq!(verify_module(&program.code.module), []),
        Err(errors) => located(&errors),
    }
}

//! Objects as clang makes them: read, damaged, written back.

mod byte_orders;
mod common;
mod hostile;
mod jump_tables;
mod kept;
mod read;
mod write;

/// The fixtures that libbpf loads.
const LIBBPF: [&str; 6] = ["maps", "calls", "core", "externs", "kernel", "sizes"];
/// Those of other loaders, too.
const ALL: [&str; 9] =
    ["maps", "calls", "core", "externs", "kernel", "sizes", "legacy", "iproute2", "sections"];

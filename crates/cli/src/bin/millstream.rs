//! The `millstream` executable: the library of this crate, with an allocator.

use std::process::ExitCode;

/// The static compiler makes many small allocations: it takes a quarter longer with the system's allocator.
/// Without huge pages (a feature of the crate): the kernel clears two megabytes for each, of which a short
/// run uses little.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    millstream_cli::main()
}

//! The `millstream` executable: the library of this crate, with an allocator.

use std::process::ExitCode;

/// The static compiler makes many small things: with the system's allocator it takes a quarter longer. Without huge pages (a
/// feature of the crate), since the kernel clears two megabytes for each, of which a short run uses little.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    millstream::main()
}

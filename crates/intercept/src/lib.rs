//! Runs a loader, and optimizes the BPF programs that it loads.
//!
//! The loader and its children run under a filter of seccomp that stops them at bpf(PROG_LOAD), whether they are
//! linked statically or not, and asks this process. The answer is a descriptor of the optimized program, or that
//! the kernel is to go on with the call as if nobody had asked.
//!
//! | module | does |
//! |---|---|
//! | `launch` | starts the loader under the filter |
//! | `notification` | receives questions, and answers them |
//! | `process` | memory, descriptors and credentials of the process that asks |
//! | `translation` | the load as an object, and the object as instructions |
//! | `optimizer` | optimizes within the time that a load may take |
//! | `supervisor` | decides on each load, and reports it |
//!
//! Invariant: the loader gets an optimized program only if the kernel has accepted the loader's own program with
//! the same attributes a moment before, and the optimized one too. In every other case, the kernel makes the
//! loader's own call: it returns what it would have returned, its log is what it would have been.
//!
//! Invariant: a process whose credentials or namespaces are not this process's makes its own calls.

mod launch;
mod notification;
mod optimizer;
mod process;
mod report;
mod supervisor;
mod translation;

pub use report::{LoadOutcome, LoadReport};
pub use supervisor::{InterceptError, InterceptOptions, run_loader};

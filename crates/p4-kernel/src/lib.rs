//! P4_16 programs as kernel objects.
//!
//! [`build_program`] turns a program that was lowered with [`lower_options`] into a [`KernelObject`]: an ELF
//! object with one XDP or TC program, BTF-defined maps and BTF. [`KernelExecutor`] loads it and runs packets
//! through it with test runs.
//!
//! The functions of the pipeline become static subprograms that take the packet's state, its
//! first byte and its end. State, the deparser's output and all variables that do not fit the stack are one
//! value of a per-CPU array (`memory`). Accesses get the bounds that the verifier wants (`bounds`), match
//! tables become helper calls (`lookups`, `tuple_search`), and the entry program (`entry`) does what
//! the architecture's traffic manager does.
//!
//! Architecture Invariant: what a kernel program cannot do is refused with the construct's name and place.

mod bounds;
mod build;
mod elf_file;
mod entry;
mod error;
mod executor;
mod frames;
mod hook;
mod lookups;
mod loop_effort;
mod map_types;
mod memory;
mod refusals;
mod tuple_search;
mod tuple_table;
mod writer;

pub use build::{KernelObject, build_program, build_without, lower_options};
pub use error::KernelBuildError;
pub use executor::{KernelExecutor, KernelExecutorError};
pub use hook::KernelHook;

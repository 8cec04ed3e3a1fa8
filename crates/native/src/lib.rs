//! Native code: XDP programs as machine code in this process, packets in batches.
//!
//! [`Engine`] takes an object, lifts it to the IR, runs the passes for native targets, writes LLVM's IR
//! (`emit`), has LLVM 19 compile it ([`llvm`]) and runs it on [`Batch`]es of packets, with maps and helpers
//! of its own (`runtime`) that have the kernel's semantics. [`io`] feeds it.
//!
//! Architecture Invariant: nothing here calls the kernel's BPF. LLVM is reached in `llvm` alone, and loaded
//! when the first engine is made.
//!
//! Architecture Invariant: the code trusts the program as the kernel does *after* its verifier: no access is
//! checked. An object that the verifier has not seen runs like a plug-in of the process.

mod ahead;
mod classes;
mod classifier;
mod crash;
mod emit;
mod engine;
mod fields;
mod image;
pub mod io;
pub mod llvm;
mod program;
mod runtime;
mod schedule;
mod templates;

pub use classifier::Classifier;
pub use crash::report_crashes;
pub use engine::{Engine, Error, Linkable, Options, Texts, Timings};
pub use fields::Fields;
pub use image::table::{Linked, Table};
pub use image::{Cpu, Image, Shape as MapShape, Unlinkable, Unloadable};
pub use runtime::index::Template;
pub use runtime::lpm::Trie;
pub use runtime::lpm::fitting::Prefixes;
pub use runtime::maps::Map;
pub use runtime::packet::{AllSent, Arrival, Batch, Descriptors, Field, LONGEST, LONGEST_OPEN, Layout};
pub use runtime::region::Lent;
pub use runtime::worker::{Clock, Event, Listener, TakeRecord};
pub use schedule::{Classes, Fetch, Fetched, InForce, Pattern, Schedule};
pub use templates::Chosen;

//! Interpreters for packet programs over memory, packets, maps and helpers.
//!
//! A [`MachineState`] is what a program runs on: packet, context, stack frames, [`MapSet`] and an
//! [`ExecutionEnv`] (time, randomness, events). Helpers are methods of the machine, so that every interpreter
//! shares them. [`bytecode`] runs programs of BPF instructions, [`ir`] functions of the IR; ALU, comparisons
//! and atomics are [`millstream_isa::semantics`] at plain integers.
//!
//! Everything is deterministic: addresses, time, randomness and CPU number are part of the machine's state.
//!
//! Architecture Invariant: no interpreter touches the kernel. Memory of the host is never addressed: every
//! address is looked up in the machine, and an access outside of its object is a [`Fault`].

pub mod bytecode;
mod env;
mod errno;
mod error;
mod helpers;
pub mod ir;
mod machine;
mod made_up_memory;
pub mod maps;
mod packet;

pub use env::{EnvHooks, ExecutionEnv, NoHooks, RedirectTarget, SideEffect};
pub use error::{ExecutionError, Fault};
pub use helpers::cipher::encrypt_aes_128_ctr;
pub use helpers::{CallbackCaller, HelperOutcome};
pub use machine::{MachineState, MemoryLocation, STACK_SIZE};
pub use made_up_memory::KERNEL_MEMORY;
pub use maps::{MapConfig, MapContents, MapId, MapKeyValue, MapKind, MapLookup, MapSet};
pub use packet::{ContextKind, PacketBuffer};

//! The packet IR: static single assignment with block parameters.
//!
//! A [`Module`] holds maps, match tables, external symbols and [`Function`]s. A function is a list of blocks;
//! a block has parameters and instructions, the last of which is a terminator. An instruction is an [`Op`]
//! (declared once, in `op.rs`), argument values, branch targets and at most one result.
//!
//! Integers: every value of an integer type narrower than 64 bits is held **zero-extended** to 64 bits. Using
//! it where a wider integer is expected is therefore free, and an operation of width 32 reads the low half of
//! each operand and zero-extends its result, as in BPF. No conversion instructions litter the text.
//!
//! Pointers carry their provenance in their type ([`Prov`]): context, packet, packet end, stack, value of a
//! map, and so on. [`Type::Any`] is a 64-bit word of which nothing is known.
//!
//! Architecture Invariant: the IR does not know where the code will run. What the kernel's verifier must see
//! lives in the BPF back end, batching and prefetch in the native one. No I/O, no kernel, no solver here.

mod cfg;
pub mod context;
mod entities;
mod func;
mod module;
mod op;
pub mod random;
pub mod text;
mod types;
pub mod usage;
pub mod verify;

pub use cfg::{Cfg, DomTree, Loops};
pub use entities::*;
pub use func::{BlockCall, BlockData, FuncCursor, Function, InstData, Linkage, SlotData, ValueDef};
pub use module::*;
pub use op::*;
pub use types::*;

pub use millstream_isa::{AluOp, AtomicOp, Cond, LegacyMode, Size, SwapKind, Width};

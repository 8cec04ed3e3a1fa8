//! BTF and BTF.ext: reading, writing and CO-RE relocation.
//!
//! [`Btf`] holds one `.BTF` section (or `/sys/kernel/btf/vmlinux`): checked once when read, its types decoded
//! on demand, its names indexed on first use. [`BtfBuilder`] makes or edits one. [`BtfExt`] is `.BTF.ext`:
//! function and line records and CO-RE relocations, a list per section. [`core`] resolves CO-RE relocations
//! with libbpf's matching rules.
//!
//! A type of an unknown kind is skipped by the layout section, which BTF of newer kernels has, and written
//! back as it was.
//!
//! Sources: `Documentation/bpf/btf.rst` and `include/uapi/linux/btf.h` of Linux 6.18, and of 7.2 for the
//! layout section; libbpf's `relo_core.h` for the meaning of CO-RE relocations.
//!
//! Architecture Invariant: input is hostile until read. [`Btf::parse`] bounds every record and every
//! reference, so queries never go outside it; queries that follow references are bounded in depth, so a cycle
//! is an error and not a hang. Memory is at most a small multiple of the input.
//!
//! Not supported: split BTF (a kernel module's, whose ids continue vmlinux's); it is refused by
//! [`BtfError::SplitBtf`].

mod build;
mod byte_order;
mod display;
mod error;
mod ext;
mod parse;
mod query;
mod types;
mod value;

pub mod core;

pub use build::{AppendedBtf, BtfBuilder};
pub use error::BtfError;
pub use ext::{BtfExt, CoreKind, CoreRelo, FuncInfo, LineInfo, SectionRecords, StrangeCore};
pub use parse::Btf;
pub use query::{StructField, essential_name};
pub use types::*;
pub use value::{ValueError, parse_untyped};

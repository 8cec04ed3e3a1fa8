//! The BPF instruction set, versions 1 to 4, as Linux 6.18 knows it.
//!
//! [`Insn`] is one decoded instruction; [`decode()`] and [`encode`](Insn::encode) translate between it and
//! the 8-byte slots of the kernel's `struct bpf_insn`. A slot is [`RawInsn`]. Jump targets are relative,
//! counted in slots from the slot after the instruction, exactly as encoded.
//!
//! Source: `Documentation/bpf/standardization/instruction-set.rst`, `include/uapi/linux/bpf.h` and
//! `kernel/bpf/verifier.c` of Linux 6.18.
//!
//! Architecture Invariant: this crate does no I/O and knows no kernel, no ELF and no IR.

pub mod absint;
pub mod asm;
mod byte_order;
mod codes;
mod decode;
pub mod disasm;
mod encode;
pub mod generation;
pub mod helpers;
mod insn;
mod map_type;
mod raw;
pub mod semantics;

pub use byte_order::ByteOrder;
pub use decode::{decode, decode_all};
pub use encode::encode_all;
pub use insn::*;
pub use map_type::MapType;
pub use raw::{DecodeError, RawInsn};

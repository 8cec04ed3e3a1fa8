//! Libbpf-style ELF objects, and K2's raw programs: reading, linking and writing back.
//!
//! [`Object::parse`] reads an ELF64 BPF object, new or of years ago, into plain descriptions:
//! functions with symbolic relocations, programs, maps, externs. [`Object::link`] gives one program as the
//! kernel wants it: its function and all it calls in one vector. [`Object::replace_function`] and
//! [`Object::write`] give the same object with other instructions. [`Object::parse_raw`] and
//! [`Object::write_raw`] do so for programs in the raw form of K2, which are files of instructions and text
//! beside them.
//!
//! # Contents of an instruction with a relocation
//!
//! Instructions in [`ObjectFunction::insns`] are normalised: one that has a [`Reloc`] has its pseudo source
//! register set as the kernel expects it, and zero where a number will come.
//!
//! | relocation | instruction | `src` | immediate |
//! |---|---|---|---|
//! | [`RelocKind::Map`] | `ld_imm64` | 1 (`BPF_PSEUDO_MAP_FD`) | 0 |
//! | [`RelocKind::MapValue`] | `ld_imm64` | 2 (`BPF_PSEUDO_MAP_VALUE`) | low half 0, high half the offset |
//! | [`RelocKind::Call`] | `call` | 1 (`BPF_PSEUDO_CALL`) | 0 |
//! | [`RelocKind::FuncAddr`] | `ld_imm64` | 4 (`BPF_PSEUDO_FUNC`) | 0 |
//! | [`RelocKind::Extern`] of a function | `call` | 2 (`BPF_PSEUDO_KFUNC_CALL`) | 0 |
//! | [`RelocKind::Extern`] of a kernel variable | `ld_imm64` | 3 (`BPF_PSEUDO_BTF_ID`) or 0 if untyped | 0 |
//! | [`RelocKind::Extern`] of a setting | `ld_imm64` | 2 (`BPF_PSEUDO_MAP_VALUE`) | 0, then the offset in `.kconfig` |
//!
//! [`NewFunction`] is read by its relocations alone: the contents of the instruction in those places do not
//! matter.
//!
//! # Byte order
//!
//! An object is of the byte order of its machine ([`Object::byte_order`]), and so are the bytes of global data
//! and what programs do in memory. Instructions are read into [`RawInsn`](millstream_isa::RawInsn)s that mean
//! the same for registers whatever the order ([`RawInsn::from_bytes_in`](millstream_isa::RawInsn::from_bytes_in)).
//!
//! # Written sections
//!
//! [`Object::write`] keeps every section but these: sections of instructions and their relocations are
//! rebuilt, `.BTF.ext` is made anew, and what would be wrong is dropped: DWARF (`.debug_*`, `.eh_frame`),
//! labels among the symbols, and LLVM's table of address-significant symbols. `.BTF` stays as it is, byte for
//! byte.
//!
//! # Contents that are not understood
//!
//! A function with unknown references is [kept](ObjectFunction::kept): it is neither changed nor removed, and
//! written as it was read, except for references to instructions that move. If the types or records of an
//! object cannot be read, all of it is [frozen](Object::frozen). [`Object::opaque_parts`] lists these parts
//! and the reasons.
//!
//! Architecture Invariant: this crate describes; it neither opens files nor calls the kernel. Input is
//! hostile until read: memory is bounded by a small multiple of the input's size.

mod codes;
mod edit;
mod elf;
mod error;
mod fuse;
mod fused_file;
mod ids;
mod image;
mod isa_version;
mod kinds;
mod link;
mod listing;
mod loaded;
mod model;
mod raw_form;
mod read;
mod section;
mod write;

pub use error::{ElfPart, ObjectError};
pub use fuse::{ChainComponent, FuseError, FusedProgram, fuse};
pub use ids::{ExternId, FuncId, MapId, RelocKind};
pub use isa_version::isa_version;
pub use kinds::{AttachType, ProgramType};
pub use listing::instruction_texts;
pub use loaded::LoadableProgram;
pub use model::*;
pub use raw_form::{RawFiles, RawInput};
pub use section::SectionKind;

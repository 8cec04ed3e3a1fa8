//! Libbpf-style ELF objects, and K2's raw programs: reading, linking and writing back.
//!
//! [`Object::parse`] reads an ELF64 little-endian BPF object, new or of years ago, into plain descriptions:
//! functions with symbolic relocations, programs, maps, externs. [`Object::link`] gives one program as the kernel
//! wants it: its function and all it calls in one vector. [`Object::replace_function`] and [`Object::write`] give
//! the same object with other instructions. [`Object::parse_raw`] and [`Object::write_raw`] do so for programs in the raw
//! form of K2, which are files of instructions and text beside them.
//!
//! # What an instruction with a relocation holds
//!
//! Instructions in [`Function::insns`] are normalised: one that has a [`Reloc`] has its pseudo source register set
//! as the kernel expects it, and zero where a number will come.
//!
//! | relocation | instruction | `src` | immediate |
//! |---|---|---|---|
//! | [`RelocKind::Map`] | `ld_imm64` | 1 (`BPF_PSEUDO_MAP_FD`) | 0 |
//! | [`RelocKind::MapValue`] | `ld_imm64` | 2 (`BPF_PSEUDO_MAP_VALUE`) | low half 0, high half the offset |
//! | [`RelocKind::Call`] | `call` | 1 (`BPF_PSEUDO_CALL`) | 0 |
//! | [`RelocKind::FuncAddr`] | `ld_imm64` | 4 (`BPF_PSEUDO_FUNC`) | 0 |
//! | [`RelocKind::Extern`] of a function | `call` | 2 (`BPF_PSEUDO_KFUNC_CALL`) | 0 |
//! | [`RelocKind::Extern`] of a kernel variable | `ld_imm64` | 3 (`BPF_PSEUDO_BTF_ID`) or 0 if untyped | 0 |
//! | [`RelocKind::Extern`] of a setting | `ld_imm64` | 2 (`BPF_PSEUDO_MAP_VALUE`) | low half 0, high half its offset in `.kconfig` |
//!
//! [`NewFunction`] is read by its relocations alone: what the instruction holds in those places does not matter.
//!
//! # What is written
//!
//! [`Object::write`] keeps every section but these: sections of instructions and their relocations are rebuilt,
//! `.BTF.ext` is made anew, and what would be wrong is dropped: DWARF (`.debug_*`, `.eh_frame`), labels among the
//! symbols, and LLVM's table of address-significant symbols. `.BTF` stays as it is, byte for byte.
//!
//! # What is not understood
//!
//! A function that refers to what is not known is [kept](Function::kept): it is neither changed nor removed, and written as it
//! was read, but for references to instructions that move. Where the types or records of an object cannot be read, all of it is
//! [frozen](Object::frozen). [`Object::left_alone`] says what and why.
//!
//! Architecture Invariant: this crate describes; it neither opens files nor calls the kernel. Input is hostile until
//! read: memory is bounded by a small multiple of the input's size.

mod edit;
mod elf;
mod error;
mod image;
mod kinds;
mod link;
mod model;
mod raw_form;
mod read;
mod section;
mod write;

pub use error::{ElfPart, ObjectError};
pub use kinds::{AttachType, MapType, ProgramType};
pub use model::*;
pub use raw_form::{RawFiles, RawInput};
pub use section::SectionKind;

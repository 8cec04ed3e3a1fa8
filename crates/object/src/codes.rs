//! Codes of instructions that refer to objects, and types of ELF relocations.

pub(crate) const LD_IMM64: u8 = 0x18;
pub(crate) const CALL: u8 = 0x85;
pub(crate) const PSEUDO_MAP_FD: u8 = 1;
pub(crate) const PSEUDO_MAP_VALUE: u8 = 2;
pub(crate) const PSEUDO_BTF_ID: u8 = 3;
pub(crate) const PSEUDO_FUNC: u8 = 4;
pub(crate) const PSEUDO_CALL: u8 = 1;
pub(crate) const PSEUDO_KFUNC_CALL: u8 = 2;

/// `R_BPF_64_64`: the 64-bit constant of `ld_imm64`.
pub(crate) const R_64_64: u32 = 1;
/// `R_BPF_64_32`: the immediate of a call.
pub(crate) const R_64_32: u32 = 10;

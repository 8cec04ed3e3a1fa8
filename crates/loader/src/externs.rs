//! Filling in values that are known at load only: maps, kernel functions and variables, settings.

use std::os::fd::{AsFd, AsRawFd};

use millstream_btf::KindTag;
use millstream_isa::RawInsn;
use millstream_kernel::KernelMap;
use millstream_object::{Extern, ExternId, ExternKind, MapId, MapOrigin, Object, Reloc, RelocKind};

use crate::error::ProgramError;
use crate::kernel_types::{self, KernelTypes};

const LD_IMM64: u8 = 0x18;
const CALL: u8 = 0x85;
const PSEUDO_MAP_FD: u8 = 1;
const PSEUDO_MAP_VALUE: u8 = 2;
const PSEUDO_BTF_ID: u8 = 3;
const PSEUDO_KFUNC_CALL: u8 = 2;
/// Target of a call of a weak kernel function that is missing: like libbpf, a helper that does not exist, so
/// that the verifier rejects the call if it can be reached.
const MISSING_KFUNC: i32 = 2_002_000_000;

/// Applies one relocation to a linked program.
pub(crate) fn apply(
    object: &Object,
    maps: &[Option<KernelMap>],
    insns: &mut [RawInsn],
    reloc: &Reloc,
) -> Result<(), ProgramError> {
    match reloc.kind {
        RelocKind::Map(id) => {
            let fd = descriptor(object, maps, id)?;
            load64(insns, reloc.insn, PSEUDO_MAP_FD, fd, 0)
        }
        RelocKind::MapValue { map, offset } => {
            let fd = descriptor(object, maps, map)?;
            load64(insns, reloc.insn, PSEUDO_MAP_VALUE, fd, offset as i32)
        }
        RelocKind::Extern(id) => external(object, maps, insns, reloc.insn, id),
        RelocKind::Call(_) | RelocKind::FuncAddr(_) => {
            Err(bad(reloc.insn, "a relocation to a function is left, which linking should have resolved"))
        }
    }
}

fn bad(insn: u32, reason: impl Into<String>) -> ProgramError {
    ProgramError::Relocation { insn, reason: reason.into() }
}

fn descriptor(object: &Object, maps: &[Option<KernelMap>], id: MapId) -> Result<i32, ProgramError> {
    match maps.get(id.index()) {
        Some(Some(map)) => Ok(map.as_fd().as_raw_fd()),
        _ => {
            let map = object.maps.get(id.index());
            let name = map.map_or("?", |m| m.name.as_str());
            let why = match map.map(|m| m.origin) {
                Some(MapOrigin::Extern) => "which another object defines: link the two first",
                _ => "which only libbpf can make",
            };
            Err(ProgramError::Unsupported(format!("it uses map {name:?}, {why}")))
        }
    }
}

/// Writes the two halves and the kind of a 64-bit constant.
fn load64(insns: &mut [RawInsn], at: u32, src: u8, low: i32, high: i32) -> Result<(), ProgramError> {
    match insns.get_mut(at as usize..).and_then(<[RawInsn]>::first_chunk_mut::<2>) {
        Some([first, second]) if first.code == LD_IMM64 && second.code == 0 => {
            (first.src, first.imm, second.imm) = (src, low, high);
            Ok(())
        }
        _ => Err(bad(at, "a relocation of a 64-bit constant, but the instruction is none")),
    }
}

fn external(
    object: &Object,
    maps: &[Option<KernelMap>],
    insns: &mut [RawInsn],
    at: u32,
    id: ExternId,
) -> Result<(), ProgramError> {
    let ext = object.externs.get(id.0 as usize).ok_or_else(|| bad(at, "it names no extern of the object"))?;
    match ext.kind {
        ExternKind::Kconfig { map, offset, .. } => {
            let fd = descriptor(object, maps, map)?;
            load64(insns, at, PSEUDO_MAP_VALUE, fd, offset as i32)
        }
        ExternKind::Kfunc { .. } => function(ext, insns, at),
        ExternKind::Ksym { type_id: Some(_) } => {
            let found = kernel_id(ext, KindTag::Var, "kernel variable")?;
            typed(found, insns, at)
        }
        ExternKind::Ksym { type_id: None } => {
            let address = kernel_types::symbol(&ext.name)?;
            if address.is_none() && !ext.weak {
                return Err(missing(ext, "kernel symbol"));
            }
            let address = address.unwrap_or(0);
            load64(insns, at, 0, address as i32, (address >> 32) as i32)
        }
        ExternKind::Unknown => Err(missing(ext, "extern")),
    }
}

fn missing(ext: &Extern, what: &'static str) -> ProgramError {
    let note = match ext.kind {
        ExternKind::Unknown => " (the object does not say what it is)",
        ExternKind::Kfunc { .. } => " in its own BTF (functions of modules are not supported)",
        _ => "",
    };
    ProgramError::Missing { what, name: ext.name.clone(), note }
}

/// Finds the BTF id in vmlinux; `None` for a weak extern that it does not have. Flavours (`___x`) count as
/// their function, as for libbpf.
fn kernel_id(ext: &Extern, tag: KindTag, what: &'static str) -> Result<Option<u32>, ProgramError> {
    let types = KernelTypes::running()?;
    let found = types.btf().find(tag, millstream_btf::essential_name(&ext.name)).map(|t| t.0);
    if found.is_none() && !ext.weak {
        return Err(missing(ext, what));
    }
    Ok(found)
}

fn typed(found: Option<u32>, insns: &mut [RawInsn], at: u32) -> Result<(), ProgramError> {
    match found {
        Some(id) => load64(insns, at, PSEUDO_BTF_ID, id as i32, 0),
        None => load64(insns, at, 0, 0, 0),
    }
}

/// Resolves a call of a kernel function, or its address (taken to see if it exists).
fn function(ext: &Extern, insns: &mut [RawInsn], at: u32) -> Result<(), ProgramError> {
    let found = kernel_id(ext, KindTag::Func, "kernel function")?;
    let insn = insns.get_mut(at as usize).ok_or_else(|| bad(at, "it lies outside the program"))?;
    match (insn.code, found) {
        (CALL, Some(id)) => (insn.src, insn.imm, insn.off) = (PSEUDO_KFUNC_CALL, id as i32, 0),
        (CALL, None) => (insn.src, insn.imm, insn.off) = (0, MISSING_KFUNC, 0),
        _ => return typed(found, insns, at),
    }
    Ok(())
}

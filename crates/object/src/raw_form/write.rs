//! Writing a program in the raw form: one that was raw with its own text, another with text made for it.

use super::{RawMap, defaults};
use crate::codes::LD_IMM64;
use crate::error::ObjectError;
use crate::ids::RelocKind;
use crate::image::RawSourceFiles;
use crate::kinds::ProgramType;
use crate::model::{LinkedProgram, Object, ObjectMap};
use millstream_isa::ByteOrder;
use std::fmt::Write as _;

/// The files of a raw program, as they are to be written.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct RawFiles {
    /// Contents of `X.insns`.
    pub insns: Vec<u8>,
    /// Contents of `X.maps`.
    pub maps: Option<Vec<u8>>,
    /// Contents of `X.desc`.
    pub desc: Option<Vec<u8>>,
}

/// The object's program in the raw form.
///
/// # Errors
/// [`ObjectError::Unwritable`] if it has several programs, or one with references that the raw form
/// cannot express: global variables, kernel functions, maps that are made with flags of their own.
pub(super) fn write_raw(object: &Object) -> Result<RawFiles, ObjectError> {
    let [program] = object.programs.as_slice() else {
        let what = format!("the raw form holds one program, and it has {}", object.programs.len());
        return Err(ObjectError::Unwritable(what));
    };
    if object.byte_order() == ByteOrder::Big {
        return Err(ObjectError::Unwritable("the raw form is for little-endian machines".into()));
    }
    let linked = object.link(program.func)?;
    let Some(RawSourceFiles { maps, desc, fds }) = object.image.raw.as_deref() else {
        let (maps, fds) = raw_maps(object, &linked)?;
        let insns = instructions(linked, |map| fds.get(map).copied().flatten())?;
        let desc = description(program.kind.program_type).into_bytes();
        return Ok(RawFiles { insns, maps: Some(text(&maps)?.into_bytes()), desc: Some(desc) });
    };
    let insns = instructions(linked, |map| fds.get(map).copied())?;
    Ok(RawFiles { insns, maps: maps.clone(), desc: desc.clone() })
}

/// The maps that the form can express, and the number of each map if it is one of them. All maps that the
/// program uses must be.
fn raw_maps(object: &Object, linked: &LinkedProgram) -> Result<(Vec<RawMap>, Vec<Option<i32>>), ObjectError> {
    let (mut raw, mut fds) = (Vec::new(), vec![None; object.maps.len()]);
    let mut from = Vec::new();
    for (n, map) in object.maps.iter().enumerate().filter(|(_, m)| !m.origin.is_global()) {
        fds[n] = Some(raw.len() as i32);
        from.push(n);
        raw.push(RawMap {
            name: map.name.clone(),
            map_type: map.spec.map_type.0,
            key_size: map.spec.key_size,
            value_size: map.spec.value_size,
            max_entries: map.spec.max_entries,
            fd: raw.len() as i32,
        });
    }
    for r in &linked.relocs {
        let RelocKind::Map(used) = r.kind else { continue };
        let map = &object.maps[used.index()];
        let said = from.iter().position(|n| *n == used.index()).is_some_and(|at| {
            let inner = defaults::inner(&raw, at).map(|i| &object.maps[from[i]]);
            is_default(map, inner)
        });
        if !said {
            let what = format!("the raw form cannot say how map {} is made", map.name);
            return Err(ObjectError::Unwritable(what));
        }
    }
    Ok((raw, fds))
}

/// Returns true if reading its line gives the same map again.
fn is_default(map: &ObjectMap, inner: Option<&ObjectMap>) -> bool {
    let sizes =
        |s: &crate::model::MapDefinition| (s.map_type, s.key_size, s.value_size, s.max_entries, s.flags);
    let same_inner = match (&map.inner, inner) {
        (None, _) => true,
        (Some(spec), Some(inner)) => sizes(spec) == sizes(&inner.spec),
        (Some(_), None) => false,
    };
    map.spec.flags == defaults::flags(map.spec.map_type.0) && map.spec.map_extra == 0 && same_inner
}

fn instructions(linked: LinkedProgram, fd: impl Fn(usize) -> Option<i32>) -> Result<Vec<u8>, ObjectError> {
    let LinkedProgram { mut insns, relocs, .. } = linked;
    for r in &relocs {
        let number = if let RelocKind::Map(map) = r.kind { fd(map.index()) } else { None };
        let Some((number, insn)) = number.zip(insns.get_mut(r.insn as usize).filter(|i| i.code == LD_IMM64))
        else {
            let what = format!("the raw form cannot say what instruction {} refers to", r.insn);
            return Err(ObjectError::Unwritable(what));
        };
        insn.imm = number;
    }
    Ok(insns.into_iter().flat_map(|i| i.to_bytes()).collect())
}

fn text(maps: &[RawMap]) -> Result<String, ObjectError> {
    let mut out = String::new();
    for m in maps {
        if m.name.contains(['{', '\n', '\r']) || m.name.trim() != m.name || m.name.is_empty() {
            return Err(ObjectError::Unwritable(format!("the raw form has no map named {:?}", m.name)));
        }
        let _ = writeln!(
            out,
            "{} {{ type = {}, key_size = {}, value_size = {}, max_entries = {}, fd = {} }}",
            m.name, m.map_type, m.key_size, m.value_size, m.max_entries, m.fd
        );
    }
    Ok(out)
}

fn description(program_type: ProgramType) -> String {
    let input = match program_type {
        ProgramType::XDP => 2,
        ProgramType::SCHED_CLS | ProgramType::SCHED_ACT => 3,
        _ => 1,
    };
    format!("{{ pgm_input_type = {input}, }}\n")
}

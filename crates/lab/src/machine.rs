//! A machine of the interpreter with the maps that a program has in the kernel.

use std::os::fd::{AsFd, AsRawFd};

use millstream_interp::{ContextKind, MachineState, MapConfig, MapId, MapKind, bytecode};
use millstream_isa::{Pseudo, RawInsn};
use millstream_kernel as kernel;
use millstream_loader::Session;
use millstream_object as object;

use crate::error::Result;

/// Bytes of a map that are still copied.
const MOST_BYTES: u64 = 256 << 20;

/// A machine, and what of the object is in it.
pub(crate) struct InterpreterModel {
    pub(crate) machine: MachineState,
    pub(crate) program: bytecode::DecodedProgram,
    /// The object's maps, in its order.
    pub(crate) maps: Vec<Option<MapId>>,
}

/// The machine, with the contents that the maps have now; the program is given by its final slots. `None` if
/// a map is of a kind that the interpreter does not model, or too large.
///
/// # Errors
/// If the maps cannot be read.
pub(crate) fn model(
    session: &Session<'_>,
    slots: &[u64],
    kind: ContextKind,
) -> Result<Option<InterpreterModel>> {
    let mut machine = MachineState::new(kind);
    let (mut by_fd, mut maps) = (Vec::new(), Vec::new());
    for at in 0..session.object().maps.len() {
        maps.push(None);
        let Some(map) = session.map(object::MapId(at as u32)) else { continue };
        let info = map.info();
        let Some(kind) = MapKind::from_number(info.map_type.0) else { return Ok(None) };
        let bytes = u64::from(info.max_entries) * u64::from(info.key_size + info.value_size);
        if kind.is_map_of_maps() || (matches!(kind, MapKind::Array) && bytes > MOST_BYTES) {
            return Ok(None);
        }
        let (key_size, value_size) = (info.key_size, info.value_size);
        let spec = MapConfig { kind, key_size, value_size, max_entries: info.max_entries, flags: info.flags };
        let cpus = kernel::possible_cpus()? as u32;
        let Ok(id) = machine.maps.add(spec, cpus) else { return Ok(None) };
        by_fd.push((map.as_fd().as_raw_fd() as u32, id));
        maps[at] = Some(id);
        let unreadable =
            info.map_type.holds_descriptors() || matches!(kind, MapKind::Ringbuf | MapKind::Xskmap);
        if unreadable || info.key_size == 0 {
            continue;
        }
        for (key, value) in map.entries()?.iter() {
            if machine.maps.set(id, key, value, 0).is_err() {
                return Ok(None);
            }
        }
    }
    let raw: Vec<RawInsn> = slots.iter().map(|s| RawInsn::from_bytes(s.to_ne_bytes())).collect();
    let Ok(mut program) = bytecode::DecodedProgram::new(&raw) else { return Ok(None) };
    program.link(|_, pseudo, imm| {
        let (_, id) = by_fd.iter().find(|(fd, _)| *fd == imm as u32)?;
        match pseudo {
            Pseudo::MapFd => Some(MachineState::map_address(*id)),
            Pseudo::MapValue => Some(MachineState::value_address_of(*id, (imm >> 32) as u32)),
            _ => None,
        }
    });
    Ok(Some(InterpreterModel { machine, program, maps }))
}

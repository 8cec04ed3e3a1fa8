//! Programs that somebody else has attached: which of the object's maps theirs are, and whether theirs is the object's
//! program at all.
//!
//! The kernel has rewritten the instructions of what it runs, so a program that is adopted is made from its object. That it is
//! the same one is seen by its tag, the kernel's hash of the instructions as they were loaded, without the descriptors of
//! maps. Then its maps are, in order, those that the object's instructions name; where the tag says nothing
//! they are found by their names.
//!
//! A loader may have made maps larger or smaller than the object says. The code of variants rests on how many entries a
//! map has, so the object is told before it is compiled ([`fit`]).

use std::path::Path;

use millstream_kernel::{Map, Program, interface, query_xdp};
use millstream_object::{FuncId, LinkedProgram, MapId, Object, RelocKind};

use crate::live::LiveError;
use crate::pins::Pins;
use crate::variant::choose;

/// Which programs may be adopted.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Adopt {
    /// The object's own.
    #[default]
    Same,
    /// Any: its place is taken by the object's program, with what maps it has of the same name.
    Any,
}

/// The program on an interface, and its maps.
pub(crate) struct Present {
    pub(crate) program: Program,
    maps: Vec<Map>,
}

impl Present {
    /// What is on an interface; what was there before a session of ours, if that was killed.
    pub(crate) fn on(ifindex: u32, pins: &Pins) -> Result<Present, LiveError> {
        let there = query_xdp(ifindex)?.ok_or(LiveError::NothingToAdopt)?;
        let there = Program::from_id(there.program_id)?;
        let program = pins.gave_way(&interface(ifindex)?.name, &there)?.unwrap_or(there);
        let ids = program.info()?.map_ids;
        Ok(Present { maps: ids.into_iter().map(Map::from_id).collect::<Result<_, _>>()?, program })
    }

    /// The map that is this one of the object.
    pub(crate) fn map(&self, object: &Object, order: &[MapId], id: MapId) -> Option<&Map> {
        let by_order = || self.maps.get(order.iter().position(|o| *o == id)?);
        let in_order = order.len() <= self.maps.len()
            && order.iter().zip(&self.maps).all(|(id, map)| is_like(map, object, *id));
        match in_order {
            true => by_order().or_else(|| self.by_name(object, id)),
            false => self.by_name(object, id),
        }
    }

    fn by_name(&self, object: &Object, id: MapId) -> Option<&Map> {
        self.maps.iter().find(|m| is_called(m, &object.maps[id.index()].name))
    }
}

/// The maps that a program's instructions name, in the order in which the kernel meets them.
pub(crate) fn order(program: &LinkedProgram) -> Vec<MapId> {
    let mut relocs: Vec<_> = program.relocs.iter().collect();
    relocs.sort_unstable_by_key(|r| r.insn);
    let mut order = Vec::new();
    for reloc in relocs {
        if let RelocKind::Map(map) | RelocKind::MapValue { map, .. } = reloc.kind
            && !order.contains(&map)
        {
            order.push(map);
        }
    }
    order
}

/// Gives the object's maps the numbers of entries that those of the programs on these interfaces have.
///
/// # Errors
/// If nothing is on an interface, or the object has no such program.
pub fn fit(
    object: &mut Object,
    program: Option<&str>,
    interfaces: &[u32],
    pins: &Path,
) -> Result<(), LiveError> {
    if interfaces.is_empty() {
        return Ok(());
    }
    let func = choose(object, program).map_err(|e| LiveError::Unsuited(e.to_string()))?.func;
    let order = order_of(object, func)?;
    for ifindex in interfaces {
        let present = Present::on(*ifindex, &Pins::new(pins))?;
        for id in (0..object.maps.len() as u32).map(MapId) {
            if let Some(map) = present.map(object, &order, id) {
                object.maps[id.index()].spec.max_entries = map.info().max_entries;
            }
        }
    }
    Ok(())
}

/// [`order`], of a program of the object.
pub(crate) fn order_of(object: &Object, func: FuncId) -> Result<Vec<MapId>, LiveError> {
    Ok(order(&object.link(func).map_err(millstream_loader::Error::from)?))
}

/// Refuses a program that is not the object's.
pub(crate) fn same(original: &Program, present: &Present, ifindex: u32) -> Result<(), LiveError> {
    let (ours, theirs) = (original.info()?, present.program.info()?);
    if ours.tag == theirs.tag {
        return Ok(());
    }
    let interface = interface(ifindex)?.name;
    Err(LiveError::Other { interface, name: theirs.name, id: theirs.id })
}

/// Whether a map could be one of the object's.
fn is_like(map: &Map, object: &Object, id: MapId) -> bool {
    let (there, spec) = (map.info(), &object.maps[id.index()].spec);
    (there.map_type.0, there.key_size, there.value_size) == (spec.map_type.0, spec.key_size, spec.value_size)
}

/// Whether a loader would have given a map of the kernel this name of the object: cut short, and before the names of
/// sections the object's own.
fn is_called(map: &Map, name: &str) -> bool {
    let there = map.info().name.as_str();
    there == name.get(..15).unwrap_or(name) || (name.starts_with('.') && there.ends_with(name))
}

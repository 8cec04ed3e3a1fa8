//! Programs that somebody else has attached: the correspondence of their maps with the object's, and the
//! check that such a program is the object's at all.
//!
//! The kernel has rewritten the instructions of a loaded program, so a program that is adopted is made from
//! its object. It is recognised by its tag, the kernel's hash of the instructions as they were loaded,
//! without the descriptors of maps. Then its maps are, in order, those that the object's instructions name;
//! if the tag does not match they are found by their names.
//!
//! A loader may have made maps larger or smaller than the object says. The code of variants depends on the
//! number of entries of a map, so the object is told before it is compiled ([`fit`]).

use std::path::Path;

use millstream_isa::MapType;
use millstream_kernel::{AttachType, Hook, KernelMap, KernelProgram, ProgramType, interface};
use millstream_object::{self as obj, FuncId, LinkedProgram, MapId, Object, RelocKind};
use millstream_specializer::variant::choose;

use crate::live::LiveError;
use crate::pins::PinDir;

/// Programs that may be adopted.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum AdoptionScope {
    /// The object's own.
    #[default]
    Same,
    /// Any: the object's program takes its place, with those of its maps that have the same names.
    Any,
}

/// Hooks of an interface.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum HookKind {
    Xdp,
    Tc(AttachType),
}

impl HookKind {
    /// All there are.
    pub(crate) const ALL: [HookKind; 3] =
        [HookKind::Xdp, HookKind::Tc(AttachType::TCX_INGRESS), HookKind::Tc(AttachType::TCX_EGRESS)];

    /// The hook for a program of a type.
    pub(crate) fn of(kind: ProgramType, egress: bool) -> HookKind {
        match (kind, egress) {
            (ProgramType::SCHED_CLS, true) => HookKind::Tc(AttachType::TCX_EGRESS),
            (ProgramType::SCHED_CLS, false) => HookKind::Tc(AttachType::TCX_INGRESS),
            _ => HookKind::Xdp,
        }
    }

    /// Name of the pin of the program whose place on an interface was taken.
    pub(crate) fn label(self, interface: &str) -> String {
        match self {
            HookKind::Xdp => interface.to_owned(),
            HookKind::Tc(AttachType::TCX_EGRESS) => format!("{interface}+egress"),
            HookKind::Tc(_) => format!("{interface}+ingress"),
        }
    }

    /// Finds the program there that would be adopted, and its hook. TC has room for many: it is the one that
    /// an earlier session has put there, else the one of this name, else the only one.
    ///
    /// # Errors
    /// [`LiveError::Several`].
    pub(crate) fn find(
        self,
        ifindex: u32,
        name: &str,
        pins: &PinDir,
    ) -> Result<Option<(Hook, KernelProgram)>, LiveError> {
        let HookKind::Tc(attach) = self else { return Ok(Hook::adopt_xdp(ifindex)?) };
        let interface = interface(ifindex)?.name;
        let before = pins.before(&self.label(&interface)).map(|p| p.id()).transpose()?;
        let mut found = Vec::new();
        for (hook, program) in Hook::adopt_tc(ifindex, attach)? {
            let is_left = match before {
                Some(id) => id == program.id()? || pins.holds_map_of(&program)?,
                None => false,
            };
            let is_named = program.name() == cut(name);
            found.push(((is_left, is_named), hook, program));
        }
        let best = found.iter().map(|(rank, ..)| *rank).max();
        let mut likely: Vec<_> = found.into_iter().filter(|(rank, ..)| Some(*rank) == best).collect();
        if likely.len() > 1 {
            let names = likely.iter().map(|(_, _, p)| p.name().to_owned()).collect();
            return Err(LiveError::Several { interface, names });
        }
        Ok(likely.pop().map(|(_, hook, program)| (hook, program)))
    }
}

/// The program on an interface, and its maps.
pub(crate) struct AttachedProgram {
    pub(crate) program: KernelProgram,
    maps: Vec<KernelMap>,
}

impl AttachedProgram {
    /// Finds the program on an interface; the one before a session of ours, if that was killed.
    pub(crate) fn on(
        ifindex: u32,
        side: HookKind,
        name: &str,
        pins: &PinDir,
    ) -> Result<AttachedProgram, LiveError> {
        let (_, there) = side.find(ifindex, name, pins)?.ok_or(LiveError::NothingToAdopt)?;
        let program = pins.replaced_program(&side.label(&interface(ifindex)?.name), &there)?.unwrap_or(there);
        Ok(AttachedProgram::new(program)?)
    }

    /// Opens the maps of a program.
    pub(crate) fn new(program: KernelProgram) -> Result<AttachedProgram, millstream_kernel::KernelError> {
        let ids = program.info()?.map_ids;
        let mut maps = ids.into_iter().map(KernelMap::from_id).collect::<Result<Vec<_>, _>>()?;
        add_called(&mut maps)?;
        Ok(AttachedProgram { maps, program })
    }

    /// The map that corresponds to this one of the object.
    pub(crate) fn map(&self, object: &Object, order: &[MapId], id: MapId) -> Option<&KernelMap> {
        let by_order = || self.maps.get(order.iter().position(|o| *o == id)?);
        let in_order = order.len() <= self.maps.len()
            && order.iter().zip(&self.maps).all(|(id, map)| is_like(map, object, *id));
        match in_order {
            true => by_order().or_else(|| self.by_name(object, id)),
            false => self.by_name(object, id),
        }
    }

    fn by_name(&self, object: &Object, id: MapId) -> Option<&KernelMap> {
        self.maps.iter().find(|m| is_called(m, &object.maps[id.index()].name))
    }
}

/// Adds the maps of programs that tail calls may reach: those in program arrays among the maps, and in those
/// that they have.
fn add_called(maps: &mut Vec<KernelMap>) -> Result<(), millstream_kernel::KernelError> {
    let mut next = 0;
    while let Some(map) = maps.get(next) {
        next += 1;
        if map.info().map_type != MapType::PROG_ARRAY {
            continue;
        }
        // Values read as the ids of the programs.
        let held = map.entries()?;
        for id in held.iter().filter_map(|(_, id)| Some(u32::from_ne_bytes(id.try_into().ok()?))) {
            // A program that has left the slot meanwhile is not called.
            let Ok(called) = KernelProgram::from_id(id).and_then(|p| p.info()) else { continue };
            for id in called.map_ids {
                if !maps.iter().any(|m| m.id() == id) {
                    maps.push(KernelMap::from_id(id)?);
                }
            }
        }
    }
    Ok(())
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

/// The hook for a program of an object.
pub(crate) fn side_of(program: &obj::EntryProgram, egress: bool) -> HookKind {
    let is_tc = program.kind.program_type == obj::ProgramType::SCHED_CLS;
    HookKind::of(if is_tc { ProgramType::SCHED_CLS } else { ProgramType::XDP }, egress)
}

/// Gives the object's maps the numbers of entries of the maps of the programs on these interfaces (for TC
/// programs: at egress if `egress`).
///
/// # Errors
/// If there is no program on an interface, or the object has no such program.
pub fn fit(
    object: &mut Object,
    program: Option<&str>,
    interfaces: &[u32],
    egress: bool,
    pins: &Path,
) -> Result<(), LiveError> {
    if interfaces.is_empty() {
        return Ok(());
    }
    let chosen = choose(object, program).map_err(|e| LiveError::Unsuited(e.to_string()))?;
    let (func, name, side) = (chosen.func, chosen.name.clone(), side_of(chosen, egress));
    let order = order_of(object, func)?;
    for ifindex in interfaces {
        let present = AttachedProgram::on(*ifindex, side, &name, &PinDir::new(pins))?;
        for id in (0..object.maps.len() as u32).map(MapId) {
            if let Some(map) = present.map(object, &order, id) {
                object.maps[id.index()].spec.max_entries = map.info().max_entries;
            }
        }
    }
    Ok(())
}

/// As [`order`], for a program of the object.
pub(crate) fn order_of(object: &Object, func: FuncId) -> Result<Vec<MapId>, millstream_loader::Error> {
    Ok(order(&object.link(func)?))
}

/// Refuses a program that is not the object's.
pub(crate) fn same(
    original: &KernelProgram,
    present: &AttachedProgram,
    ifindex: u32,
) -> Result<(), LiveError> {
    let (ours, theirs) = (original.info()?, present.program.info()?);
    if ours.tag == theirs.tag {
        return Ok(());
    }
    let interface = interface(ifindex)?.name;
    Err(LiveError::Other { interface, name: theirs.name, id: theirs.id })
}

/// Returns true if a map could be one of the object's.
fn is_like(map: &KernelMap, object: &Object, id: MapId) -> bool {
    let (there, spec) = (map.info(), &object.maps[id.index()].spec);
    (there.map_type, there.key_size, there.value_size) == (spec.map_type, spec.key_size, spec.value_size)
}

/// Returns true if a loader would have given a map of the kernel this name of the object: cut short, and with
/// the object's own name before the names of sections.
fn is_called(map: &KernelMap, name: &str) -> bool {
    let there = map.info().name.as_str();
    there == cut(name) || (name.starts_with('.') && there.ends_with(name))
}

/// Cuts a name to the length that the kernel keeps.
pub(crate) fn cut(name: &str) -> &str {
    name.get(..15).unwrap_or(name)
}

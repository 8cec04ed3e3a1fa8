//! Maps that exist before the object is loaded: those that an earlier session left, and those of an adopted
//! program.

use std::collections::BTreeSet;

use millstream_kernel::KernelMap;
use millstream_object::{MapId, MapOrigin, Object};
use millstream_specializer::variant::VariantCompiler;

use crate::adopt::{self, AttachedProgram};
use crate::live::{LiveError, SessionSettings};
use crate::pins::PinDir;

/// Maps that exist already, and the names of those that are to outlive the session.
pub(crate) struct InheritedMaps {
    pub(crate) maps: Vec<(String, KernelMap)>,
    /// Names of those that are to outlive the session.
    pub(crate) keep: BTreeSet<String>,
    /// The programs that are adopted, by interface.
    pub(crate) adopted: Vec<(u32, AttachedProgram)>,
}

impl InheritedMaps {
    /// Finds the maps that an earlier session left, then those of the program that is adopted: its constants
    /// too, because its loader has set them.
    pub(crate) fn find(
        compiler: &VariantCompiler,
        pins: &PinDir,
        settings: &SessionSettings,
    ) -> Result<InheritedMaps, LiveError> {
        let described = compiler.described();
        let side = adopt::side_of(described, settings.egress);
        let present = |i: &u32| Ok((*i, AttachedProgram::on(*i, side, &described.name, pins)?));
        let adopted = settings.adopt.iter().map(present);
        let adopted = adopted.collect::<Result<Vec<_>, LiveError>>()?;
        let mut lent = InheritedMaps { maps: Vec::new(), keep: BTreeSet::new(), adopted: Vec::new() };
        let object = compiler.object();
        let order = adopt::order_of(object, compiler.program())?;
        let ids = (0..object.maps.len() as u32).map(MapId).filter(|id| !compiler.is_own(*id));
        for id in ids {
            let map = &object.maps[id.index()];
            let of_chain = settings.chain.as_ref().and_then(|chain| chain.maps.get(&map.name));
            let pinned = if settings.chain.is_none() { pins.map(&map.name)? } else { None };
            let found = match pinned {
                Some(pinned) => Some(pinned),
                None if of_chain.is_some() => of_chain.copied().map(KernelMap::from_id).transpose()?,
                None => shared(&adopted, object, &order, id)?.map(KernelMap::try_clone).transpose()?,
            };
            if let Some(found) = &found {
                of_size(found, &map.name, map.spec.max_entries)?;
            }
            // A chain's maps are kept by its programs, which stay loaded.
            if settings.chain.is_none() && (found.is_some() || outlives(map.origin)) {
                lent.keep.insert(map.name.clone());
            }
            lent.maps.extend(found.map(|m| (map.name.clone(), m)));
        }
        lent.adopted = adopted;
        Ok(lent)
    }
}

/// The map that all adopted programs have for this one of the object; none if no program has one.
fn shared<'m>(
    adopted: &'m [(u32, AttachedProgram)],
    object: &Object,
    order: &[MapId],
    id: MapId,
) -> Result<Option<&'m KernelMap>, LiveError> {
    let mut found = adopted.iter().map(|(_, present)| present.map(object, order, id));
    let Some(first) = found.next() else { return Ok(None) };
    let same = |other: Option<&KernelMap>| other.map(KernelMap::id) == first.map(KernelMap::id);
    if found.all(same) { Ok(first) } else { Err(LiveError::Apart(object.maps[id.index()].name.clone())) }
}

/// Refuses a map that has another number of entries than that for which the code is made.
fn of_size(found: &KernelMap, name: &str, entries: u32) -> Result<(), LiveError> {
    let there = found.info().max_entries;
    // Zero is for the loader to decide.
    if entries == 0 || entries == there {
        return Ok(());
    }
    let difference = format!("it has room for {there} entries there, for {entries} in the object");
    Err(millstream_loader::Error::Layout { name: name.to_owned(), difference }.into())
}

/// Returns true if a map outlives the session: constants come with every load of the object; everything else
/// is state.
fn outlives(origin: MapOrigin) -> bool {
    matches!(
        origin,
        MapOrigin::Btf | MapOrigin::Legacy | MapOrigin::Iproute2 | MapOrigin::Data | MapOrigin::Bss
    )
}

//! Maps that exist before the object is loaded: those that an earlier session left, and those of an adopted program.

use std::collections::BTreeSet;

use millstream_kernel::{Map, Program, query_xdp};
use millstream_object::{MapId, MapOrigin};

use crate::live::LiveError;
use crate::pins::Pins;
use crate::variant::Compiler;

/// Maps that exist already, and which maps are to outlive the session.
pub(crate) struct Lent {
    pub(crate) maps: Vec<(String, Map)>,
    /// Names of those that are to outlive the session.
    pub(crate) keep: BTreeSet<String>,
}

impl Lent {
    /// The maps that an earlier session left, then those of the program that is adopted: its constants too, for
    /// its loader has set them.
    pub(crate) fn find(compiler: &Compiler, pins: &Pins, adopt: &[u32]) -> Result<Lent, LiveError> {
        let adopted = adopt.iter().map(|i| present_maps(*i)).collect::<Result<Vec<_>, _>>()?;
        let mut lent = Lent { maps: Vec::new(), keep: BTreeSet::new() };
        let object = compiler.object();
        let theirs = object.maps.iter().enumerate().filter(|(id, _)| !compiler.is_own(MapId(*id as u32)));
        for (_, map) in theirs {
            let found = match pins.map(&map.name)? {
                Some(pinned) => Some(pinned),
                None => shared(&adopted, &map.name)?.map(Map::try_clone).transpose()?,
            };
            if found.is_some() || outlives(map.origin) {
                lent.keep.insert(map.name.clone());
            }
            lent.maps.extend(found.map(|m| (map.name.clone(), m)));
        }
        Ok(lent)
    }
}

/// The map of this name that all adopted programs have, or none has.
fn shared<'m>(adopted: &'m [Vec<Map>], name: &str) -> Result<Option<&'m Map>, LiveError> {
    let mut found = adopted.iter().map(|maps| maps.iter().find(|m| is_called(m, name)));
    let Some(first) = found.next() else { return Ok(None) };
    let same = |other: Option<&Map>| other.map(Map::id) == first.map(Map::id);
    if found.all(same) { Ok(first) } else { Err(LiveError::Apart(name.to_owned())) }
}

/// The maps of the program that is on an interface.
fn present_maps(ifindex: u32) -> Result<Vec<Map>, LiveError> {
    let present = query_xdp(ifindex)?.ok_or(LiveError::NothingToAdopt)?;
    let ids = Program::from_id(present.program_id)?.info()?.map_ids;
    Ok(ids.into_iter().map(Map::from_id).collect::<Result<_, _>>()?)
}

/// Whether a loader would have given a map of the kernel this name of the object: cut short, and before the names of
/// sections the object's own.
fn is_called(map: &Map, name: &str) -> bool {
    let there = map.info().name.as_str();
    there == name.get(..15).unwrap_or(name) || (name.starts_with('.') && there.ends_with(name))
}

/// Constants come with every load of the object; everything else is state.
fn outlives(origin: MapOrigin) -> bool {
    matches!(
        origin,
        MapOrigin::Btf | MapOrigin::Legacy | MapOrigin::Iproute2 | MapOrigin::Data | MapOrigin::Bss
    )
}

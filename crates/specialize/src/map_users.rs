//! Holders that may write a map: the programs that hold it, the maps that hold it, iterators, mappings of
//! user space.
//!
//! A program that is not ours may write any map that it holds; its code is unknown, unless it is the very
//! code of one of ours with the same maps: that of an adopted program, or of an earlier session. Such a copy
//! does not count its writes in the session's caches, so if it is on a hook, too, there are none
//! ([`MapUsers::uncounted`]). A map of maps that holds a watched map counts in the same way: any program and
//! process may reach it there. The guard says when somebody new may have come.

use std::collections::BTreeSet;

use millstream_isa::MapType;
use millstream_kernel::{
    KernelMap, KernelProgram, Link, LinkDetail, link_ids, map_flags, map_ids, program_ids,
};

use crate::hook_search::is_attached;

/// Reason why a map may not be specialised on.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum MapRejection {
    /// User space can map its values into memory and write them without a system call.
    Mappable,
    /// A map of this type holds descriptors, evicts by itself, or has no values to look up.
    Kind(MapType),
    /// Another program holds it.
    Program {
        /// Its id.
        id: u32,
        /// Its name.
        name: String,
    },
    /// A copy of the session's program is on another hook, and writes it.
    Copy {
        /// Its id.
        id: u32,
        /// Its name.
        name: String,
    },
    /// A map of maps holds it.
    Outer(u32),
    /// An iterator walks it, and may write its entries.
    Iterator(u32),
}

impl std::fmt::Display for MapRejection {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            MapRejection::Mappable => f.write_str("user space can map it into memory"),
            MapRejection::Kind(kind) => write!(f, "it is of type {kind}"),
            MapRejection::Program { id, name } => write!(f, "program {name:?} (id {id}) holds it too"),
            MapRejection::Copy { id, name } => {
                write!(f, "program {name:?} (id {id}) writes it, too, and is still attached elsewhere")
            }
            MapRejection::Iterator(id) => write!(f, "link {id} walks it"),
            MapRejection::Outer(id) => write!(f, "map {id} of maps holds it"),
        }
    }
}

/// Returns true if nobody can write the map any more, neither user space nor programs: constants, which need
/// no guard.
pub fn is_constant(map: &KernelMap) -> bool {
    map.info().flags & map_flags::RDONLY_PROG != 0 && map.is_frozen().unwrap_or(false)
}

/// Reports if the map itself forbids it, whoever holds it. With `recency`, the order in which an LRU map
/// evicts entries may change.
pub fn by_kind(map: &KernelMap, recency: bool) -> Option<MapRejection> {
    let info = map.info();
    if info.flags & map_flags::MMAPABLE != 0 && !is_constant(map) {
        return Some(MapRejection::Mappable);
    }
    match info.map_type {
        MapType::HASH | MapType::ARRAY | MapType::LPM_TRIE => None,
        // No program can write it.
        kind if kind.is_map_of_maps() => None,
        // A lookup that is skipped makes its entry look unused.
        MapType::LRU_HASH if recency => None,
        // Entries of devmaps go with their devices, without a write that a guard could see; the others hold
        // descriptors, or have a value for each CPU.
        other => Some(MapRejection::Kind(other)),
    }
}

/// The programs whose code is known.
#[derive(Clone, Debug, Default)]
pub struct OwnPrograms {
    ids: BTreeSet<u32>,
    /// Hash of the code, and the maps in their order, of each of the object's programs.
    originals: Vec<([u8; 8], Vec<u32>)>,
}

impl OwnPrograms {
    /// Creates the set with these ids.
    pub fn new(ids: &[u32]) -> OwnPrograms {
        OwnPrograms { ids: ids.iter().copied().collect(), originals: Vec::new() }
    }

    /// Adds a program.
    ///
    /// # Errors
    /// If the kernel does not answer.
    pub fn insert(&mut self, program: &KernelProgram) -> Result<(), millstream_kernel::KernelError> {
        self.ids.extend(program.ids()?);
        Ok(())
    }

    /// Adds a program by its id.
    pub fn insert_id(&mut self, id: u32) {
        self.ids.insert(id);
    }

    /// Adds one of the object's own programs, whoever loads it.
    ///
    /// # Errors
    /// If the kernel does not answer.
    pub fn insert_original(&mut self, program: &KernelProgram) -> Result<(), millstream_kernel::KernelError> {
        let info = program.info()?;
        self.insert(program)?;
        self.originals.push((info.tag, info.map_ids));
        Ok(())
    }

    /// Adds a program that somebody else has loaded, and whose code is that of one of the object's programs: by
    /// the hash of its code, and its maps.
    pub fn insert_copied(&mut self, tag: [u8; 8], maps: Vec<u32>) {
        self.originals.push((tag, maps));
    }

    /// Returns true if a program is known. Loaders tie the maps of constants to programs that do not use
    /// them, after those that they use.
    fn includes(&self, program: &MapUser) -> bool {
        self.ids.contains(&program.id) || self.has_copy(program)
    }

    fn has_copy(&self, program: &MapUser) -> bool {
        let same = |(tag, maps): &([u8; 8], Vec<u32>)| *tag == program.tag && program.maps.starts_with(maps);
        self.originals.iter().any(same)
    }
}

/// A program that holds maps.
#[derive(Clone, Debug)]
struct MapUser {
    id: u32,
    name: String,
    tag: [u8; 8],
    maps: Vec<u32>,
}

/// All holders of maps in the kernel, as of one look.
#[derive(Clone, Debug, Default)]
pub struct MapUsers {
    programs: Vec<MapUser>,
    /// Maps of maps: id, and the maps inside.
    outer: Vec<(u32, Vec<u32>)>,
    /// Iterators: link and map.
    iterators: Vec<(u32, u32)>,
}

impl MapUsers {
    /// Asks the kernel.
    ///
    /// # Errors
    /// Errors of the kernel. Holders that vanish meanwhile hold nothing any more.
    pub fn look() -> Result<MapUsers, millstream_kernel::KernelError> {
        let mut found = MapUsers::default();
        for id in program_ids()? {
            if let Ok(info) = KernelProgram::from_id(id).and_then(|p| p.info())
                && !info.map_ids.is_empty()
            {
                found.programs.push(MapUser { id, name: info.name, tag: info.tag, maps: info.map_ids });
            }
        }
        for id in map_ids()? {
            let Ok(map) = KernelMap::from_id(id) else { continue };
            if map.info().map_type.is_map_of_maps() {
                // Values read as the ids of the inner maps.
                let inner = map.entries()?;
                let inner = inner.iter().filter_map(|(_, v)| Some(u32::from_ne_bytes(v.try_into().ok()?)));
                found.outer.push((id, inner.collect()));
            }
        }
        for id in link_ids()? {
            let Ok(info) = Link::from_id(id).and_then(|l| l.info()) else { continue };
            if let LinkDetail::Iter { map_id: map @ 1.. } = info.detail {
                found.iterators.push((id, map));
            }
        }
        Ok(found)
    }

    /// The first reason why `map` may be written by others than the programs in `ours`.
    pub fn foreign(&self, map: u32, ours: &OwnPrograms) -> Option<MapRejection> {
        self.foreign_but(map, ours, &[])
    }

    /// As [`MapUsers::foreign`], for a map that these maps of maps may hold.
    pub fn foreign_but(&self, map: u32, ours: &OwnPrograms, outer: &[u32]) -> Option<MapRejection> {
        let stranger = self.programs.iter().find(|p| p.maps.contains(&map) && !ours.includes(p));
        if let Some(MapUser { id, name, .. }) = stranger {
            return Some(MapRejection::Program { id: *id, name: name.clone() });
        }
        let walker = self
            .iterators
            .iter()
            .find(|(_, walked)| *walked == map)
            .map(|(id, _)| MapRejection::Iterator(*id));
        let holding = self.outer.iter().find(|(id, inner)| inner.contains(&map) && !outer.contains(id));
        walker.or_else(|| holding.map(|(id, _)| MapRejection::Outer(*id)))
    }

    /// Copies of the session's programs that hold `map`: the very same code, loaded by somebody else. They
    /// may be on hooks that the session does not have.
    pub fn copies(&self, map: u32, ours: &OwnPrograms) -> Vec<u32> {
        self.copies_of(map, ours).map(|program| program.id).collect()
    }

    /// The reason why others may write `map` without being counted in its caches, if `foreign` does not
    /// report one: a copy is on a hook.
    pub fn uncounted(&self, map: u32, ours: &OwnPrograms) -> Option<MapRejection> {
        // A copy that cannot be looked for is taken for one on a hook.
        let is_there = |program: &&MapUser| is_attached(&BTreeSet::from([program.id])).unwrap_or(true);
        let MapUser { id, name, .. } = self.copies_of(map, ours).find(is_there)?;
        Some(MapRejection::Copy { id: *id, name: name.clone() })
    }

    fn copies_of(&self, map: u32, ours: &OwnPrograms) -> impl Iterator<Item = &MapUser> {
        let is_copy =
            move |p: &&MapUser| p.maps.contains(&map) && !ours.ids.contains(&p.id) && ours.has_copy(p);
        self.programs.iter().filter(is_copy)
    }
}

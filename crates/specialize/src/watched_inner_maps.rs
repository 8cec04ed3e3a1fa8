//! Inner maps that have a cache, or whose contents are known: the set of them, and the check that nobody else
//! writes them.
//!
//! The inner map that a packet finds in a map of maps depends on the packet, so slots of a cache hold the
//! map's address beside the key ([`millstream_specializer::transform::EntryCache`]). The writers of the maps
//! are found as for any other map, for each that is inside.
//!
//! The contents of the inner maps that code has names for ([`crate::inner_maps`]) are in code, if no program
//! writes them. A write to one of them is reported by its key, for all of one shape together: that key is
//! read again in each.
//!
//! # When the maps inside change
//!
//! The guard revokes before a map of maps changes, and reports that somebody new may write. Before anything
//! is approved again, the inner maps are looked up and watched ([`WatchedInnerMaps::look`], by way of
//! `live::write_response`), and the caches are emptied. So a slot that holds an address was filled while
//! the map that has the address now was inside: a packet that reads it began after that approval, and the
//! kernel frees no map that a packet under way may have found. Nor are the contents known of a map that has
//! just come: a change of a map of maps counts as a write to every map.
//!
//! Invariant: while a variant may run, each inner map is watched, and only our programs hold it or the maps
//! that it is in.

use std::collections::BTreeSet;

use millstream_kernel::{KernelError, KernelMap};

use crate::guard::{Guard, GuardError};
use crate::map_users::{MapRejection, MapUsers, OwnPrograms};

/// The inner maps in which a program may look up.
#[derive(Debug)]
pub struct WatchedInnerMaps {
    /// Maps of maps.
    outer: Vec<KernelMap>,
    /// Maps of the object that lookups may be made in as well, or that may be put inside.
    others: Vec<KernelMap>,
    /// Ids of all of them that are watched.
    watched: BTreeSet<u32>,
    /// Index by which the guard knows them.
    pub index: u32,
    /// True if they may have a cache.
    pub has_caches: bool,
    /// True if their contents may be in code.
    pub is_known: bool,
}

impl WatchedInnerMaps {
    /// Creates the set, of which nothing is watched yet. The guard is to know the maps by this index.
    pub fn new(outer: Vec<KernelMap>, others: Vec<KernelMap>, index: u32) -> WatchedInnerMaps {
        WatchedInnerMaps {
            outer,
            others,
            watched: BTreeSet::new(),
            index,
            has_caches: false,
            is_known: false,
        }
    }

    /// Gives up their caches; returns true if they are needed all the same.
    pub fn give_up_caches(&mut self) -> bool {
        self.has_caches = false;
        self.is_known
    }

    /// The ids of the current inner maps, and of those of the object.
    fn present(&self) -> Result<BTreeSet<u32>, KernelError> {
        let mut found: BTreeSet<u32> = self.others.iter().map(KernelMap::id).collect();
        for outer in &self.outer {
            let inside = outer.entries()?;
            // Values read as the ids of the inner maps.
            found.extend(inside.iter().filter_map(|(_, id)| Some(u32::from_ne_bytes(id.try_into().ok()?))));
        }
        Ok(found)
    }

    /// Makes the guard watch the current inner maps, and no others.
    ///
    /// # Errors
    /// If they cannot be read, or are more than the guard can watch.
    pub fn look(&mut self, guard: &mut Guard) -> Result<(), GuardError> {
        let now = self.present()?;
        for &id in self.watched.difference(&now) {
            guard.forget(id, self.index)?;
        }
        self.watched.retain(|id| now.contains(id));
        for &id in &now {
            if self.watched.insert(id) {
                guard.watch_as(id, self.index)?;
            }
        }
        Ok(())
    }

    /// Reason why others may write one of them, if they may.
    pub fn foreign(&self, holders: &MapUsers, ours: &OwnPrograms) -> Option<MapRejection> {
        let outer: Vec<u32> = self.outer.iter().map(KernelMap::id).collect();
        let holds = outer.iter().find_map(|id| holders.foreign(*id, ours));
        let foreign = |id: &u32| holders.foreign_but(*id, ours, &outer);
        let uncounted = |id: &u32| holders.uncounted(*id, ours);
        holds
            .or_else(|| self.watched.iter().find_map(foreign))
            .or_else(|| self.all(&outer).filter(|_| self.has_caches).find_map(|id| uncounted(&id)))
    }

    /// Programs with the code of ours that may write them.
    pub fn copies(&self, holders: &MapUsers, ours: &OwnPrograms) -> Vec<u32> {
        let outer: Vec<u32> = self.outer.iter().map(KernelMap::id).collect();
        self.all(&outer).flat_map(|id| holders.copies(id, ours)).collect()
    }

    /// Maps of maps and their inner maps.
    fn all<'n>(&'n self, outer: &'n [u32]) -> impl Iterator<Item = u32> + 'n {
        outer.iter().chain(&self.watched).copied()
    }
}

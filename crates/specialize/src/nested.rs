//! Inner maps that have a cache, or are known by heart: which there are, and whether somebody else may write them.
//!
//! Which map a packet finds in a map of maps is its own business, so slots of a cache hold the map's address beside the key
//! ([`crate::transform::Cache`]). Who writes the maps is the same question as of any other map, for each that is inside.
//!
//! What the maps hold that code has names for ([`crate::inside`]) is in code, where no program writes them. A write to one of them is told by its
//! key, for all of one shape together: that key is read again in each.
//!
//! # When the maps inside change
//!
//! The guard revokes before a map of maps changes, and tells that somebody new may write. Before anything is approved again, the
//! maps inside are looked up and watched ([`Nested::look`], by way of `live::Live::begin`), and the caches are emptied. So
//! a slot that holds an address was filled while the map that has the address now was inside: a packet that reads it began after that approval, and
//! the kernel lets no map go that a packet under way may have found. Nor is anything known of what a map holds that has come just now: a change of
//! what is inside counts as a write to every map.
//!
//! Invariant: while a variant may run, each map inside is watched, and our programs alone hold it or the maps that it is in.

use std::collections::BTreeSet;

use millstream_kernel::{Error, Map};

use crate::guard::{Guard, GuardError};
use crate::holders::{Holders, Ours, Unsafe};

/// The maps in which a program may look up what it found in maps of maps.
#[derive(Debug)]
pub struct Nested {
    /// Maps of maps.
    outer: Vec<Map>,
    /// Maps of the object that lookups may be made in as well, or that may be put inside.
    others: Vec<Map>,
    /// All of them that are watched, by their ids.
    watched: BTreeSet<u32>,
    /// By which the guard knows them.
    pub index: u32,
    /// Whether they may have a cache.
    pub has_caches: bool,
    /// Whether what they hold may be in code.
    pub is_known: bool,
}

impl Nested {
    /// Nothing is watched yet. The guard is to know them by this index.
    pub fn new(outer: Vec<Map>, others: Vec<Map>, index: u32) -> Nested {
        Nested { outer, others, watched: BTreeSet::new(), index, has_caches: false, is_known: false }
    }

    /// They may have no cache; whether they are wanted all the same.
    pub fn give_up_caches(&mut self) -> bool {
        self.has_caches = false;
        self.is_known
    }

    /// The ids of the maps that are inside now, and of those of the object.
    fn present(&self) -> Result<BTreeSet<u32>, Error> {
        let mut found: BTreeSet<u32> = self.others.iter().map(Map::id).collect();
        for outer in &self.outer {
            let inside = outer.entries()?;
            // Values read as the ids of the inner maps.
            found.extend(inside.iter().filter_map(|(_, id)| Some(u32::from_ne_bytes(id.try_into().ok()?))));
        }
        Ok(found)
    }

    /// Has the guard watch the maps that are inside now, and no others.
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

    /// Why others may write one of them, if they may.
    pub fn foreign(&self, holders: &Holders, ours: &Ours) -> Option<Unsafe> {
        let outer: Vec<u32> = self.outer.iter().map(Map::id).collect();
        let holds = outer.iter().find_map(|id| holders.foreign(*id, ours));
        let foreign = |id: &u32| holders.foreign_but(*id, ours, &outer);
        let uncounted = |id: &u32| holders.uncounted(*id, ours);
        holds
            .or_else(|| self.watched.iter().find_map(foreign))
            .or_else(|| self.all(&outer).filter(|_| self.has_caches).find_map(|id| uncounted(&id)))
    }

    /// Programs with the code of ours that may write them.
    pub fn copies(&self, holders: &Holders, ours: &Ours) -> Vec<u32> {
        let outer: Vec<u32> = self.outer.iter().map(Map::id).collect();
        self.all(&outer).flat_map(|id| holders.copies(id, ours)).collect()
    }

    /// Maps of maps and those inside.
    fn all<'n>(&'n self, outer: &'n [u32]) -> impl Iterator<Item = u32> + 'n {
        outer.iter().chain(&self.watched).copied()
    }
}

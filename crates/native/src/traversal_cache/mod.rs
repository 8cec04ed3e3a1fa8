//! Caches of traversals: flows whose look-ups in several tables are decided by a few fields get one look-up in
//! place of all, as in Open vSwitch's flow caches (Pfaff et al., NSDI'15).
//!
//! [`groups`] finds look-ups that the same fields decide ([`groups::TraversalGroup`]), and [`insert()`] puts a
//! look-up of these fields in front of the first one. An entry has the fields, all of which are compared, and the
//! *results* of the look-ups: addresses of values, and numbers of match tables. A look-up whose result is in the
//! entry is left out; otherwise it is made, and its result kept. Everything else is the program's own code, in its
//! own order: counters, checksums and changes of the packet are exact, since nothing of them is cached.
//!
//! Each worker has its own entries, in maps of the module that no program names ([`declare`]).
//!
//! Invariant: an entry is used only if its *stamp* is that of now. A stamp is the number of writes to tables, which
//! a worker reads when its batch begins (`engine::run`), and the number of the code that made the entry. Tables are
//! written between batches only, so no batch behind a write sees a result from before it.

mod groups;
mod insert;

use millstream_ir::{Map, MapDecl, Module};
use millstream_isa::MapType;
use millstream_native_runtime::maps::TRAVERSAL_PREFIX;

pub(crate) use groups::{LookupStability, stability, traversals};
pub(crate) use insert::{CacheCode, insert};

/// Groups of look-ups of a program, at most.
pub(crate) const MOST_GROUPS: usize = 4;
/// Words of fields in an entry, at most.
const MOST_WORDS: usize = 6;
/// Results in an entry, at most.
const MOST_RESULTS: usize = 8;
/// Places in an entry: the stamp, then the fields, then the results.
const FIELDS: i32 = 8;
const RESULTS: i32 = FIELDS + 8 * MOST_WORDS as i32;
/// Bytes of an entry: two cache lines.
const ENTRY: u32 = 128;

/// Name of the map with the number of writes.
pub(crate) const STAMP: &str = "traversal.stamp";

/// Maps of the caches in a module.
#[derive(Clone, Debug)]
pub(crate) struct TraversalMaps {
    /// Number of writes to tables, for each worker.
    pub(crate) stamp: Map,
    /// Entries of each group.
    pub(crate) entries: Vec<Map>,
}

impl TraversalMaps {
    /// The maps of a module that has them.
    pub(crate) fn of(module: &Module) -> Option<TraversalMaps> {
        let named = |name: &str| module.maps.iter().find(|(_, decl)| decl.name == name).map(|(map, _)| map);
        let stamp = named(STAMP)?;
        let entries = (0..MOST_GROUPS).map_while(|group| named(&entries_name(group))).collect();
        Some(TraversalMaps { stamp, entries })
    }
}

fn entries_name(group: usize) -> String {
    format!("{TRAVERSAL_PREFIX}{group}")
}

/// Adds maps for caches of this many flows, a power of two, to a module that has none.
pub(crate) fn declare(module: &mut Module, flows: u32) {
    if TraversalMaps::of(module).is_some() {
        return;
    }
    let decl = |name, value_size, max_entries| MapDecl {
        name,
        kind: MapType::PERCPU_ARRAY.0,
        key_size: 4,
        value_size,
        max_entries,
        flags: 0,
        global: None,
        inner: None,
    };
    module.maps.push(decl(STAMP.to_owned(), 8, 1));
    for group in 0..MOST_GROUPS {
        module.maps.push(decl(entries_name(group), ENTRY, flows));
    }
}

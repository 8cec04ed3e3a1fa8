//! Numbers by which commands refer to entries and nodes.

use std::collections::BTreeMap;

use millstream_p4runtime::entities::EntryKey;

/// Handles of entries of a table.
#[derive(Default, Debug)]
struct TableHandles {
    keys: BTreeMap<u64, EntryKey>,
    next: u64,
}

/// A node of a multicast group, or of none yet.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct CommandNode {
    /// `egress_rid` of its replicas.
    pub(crate) replica: u32,
    /// Ports.
    pub(crate) ports: Vec<u32>,
    /// Group.
    pub(crate) group: Option<u32>,
}

/// Handles of entries and nodes. Entries of other controllers get one when they are listed.
#[derive(Default, Debug)]
pub(crate) struct CommandHandles {
    tables: BTreeMap<u32, TableHandles>,
    /// Nodes, by handle.
    pub(crate) nodes: BTreeMap<u64, CommandNode>,
    /// Handle of the next node.
    pub(crate) next_node: u64,
}

impl CommandHandles {
    /// Gives an entry a new handle.
    pub(crate) fn add(&mut self, table: u32, key: EntryKey) -> u64 {
        let handles = self.tables.entry(table).or_default();
        let handle = handles.next;
        handles.next += 1;
        handles.keys.insert(handle, key);
        handle
    }

    /// Key of a handle.
    pub(crate) fn key(&self, table: u32, handle: u64) -> Result<EntryKey, String> {
        let found = self.tables.get(&table).and_then(|handles| handles.keys.get(&handle));
        found.cloned().ok_or_else(|| format!("no entry has the handle {handle}"))
    }

    /// Forgets a handle.
    pub(crate) fn remove(&mut self, table: u32, handle: u64) {
        if let Some(handles) = self.tables.get_mut(&table) {
            handles.keys.remove(&handle);
        }
    }

    /// Handles of these entries of a table, in order. Handles of others are forgotten.
    pub(crate) fn list(&mut self, table: u32, keys: Vec<EntryKey>) -> Vec<(u64, EntryKey)> {
        let handles = self.tables.entry(table).or_default();
        let mut old: rustc_hash::FxHashMap<EntryKey, u64> =
            std::mem::take(&mut handles.keys).into_iter().map(|(handle, key)| (key, handle)).collect();
        for key in keys {
            let handle = old.remove(&key).unwrap_or_else(|| {
                handles.next += 1;
                handles.next - 1
            });
            handles.keys.insert(handle, key);
        }
        handles.keys.iter().map(|(handle, key)| (*handle, key.clone())).collect()
    }
}

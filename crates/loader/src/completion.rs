//! Properties that an object leaves to its loader: sizes and numbers of entries that the kernel wants and the
//! object lacks.
//!
//! The first are the values of libbpf and cilium/ebpf: the sizes that a type of map prescribes, even if the
//! object states a type of its events instead; ring buffers in whole pages. The last is this crate's: an
//! object whose loader sets the number of entries at run time says zero. Each choice is noted in words.

use millstream_isa::MapType;
use millstream_kernel::possible_cpus;
use millstream_object::MapDefinition;

use crate::error::Error;

/// Entries of a map other than an array, if neither the object nor the caller says.
const DEFAULT_ENTRIES: u32 = 1024;
/// `PERF_MAX_STACK_DEPTH` addresses: the depth to which the kernel records a stack unless its administrator
/// says otherwise.
const STACK_TRACE_SIZE: u32 = 127 * 8;
const PAGE: u32 = 4096;

/// A map's complete description, and notes on the values that were filled in.
pub(crate) struct CompletedMap {
    pub(crate) spec: MapDefinition,
    pub(crate) notes: Vec<String>,
}

/// Completes a description.
pub(crate) fn complete(spec: &MapDefinition, default_entries: Option<u32>) -> Result<CompletedMap, Error> {
    let mut c = CompletedMap { spec: spec.clone(), notes: Vec::new() };
    c.sizes();
    c.entries(default_entries)?;
    Ok(c)
}

impl CompletedMap {
    fn sizes(&mut self) {
        let MapDefinition { key_size, value_size, .. } = self.spec;
        let (key, value) = match self.spec.map_type {
            MapType::PERF_EVENT_ARRAY => (4, 4),
            MapType::RINGBUF | MapType::USER_RINGBUF => (0, 0),
            MapType::STACK_TRACE if value_size == 0 => (or(key_size, 4), STACK_TRACE_SIZE),
            MapType::ARRAY_OF_MAPS | MapType::PROG_ARRAY | MapType::CGROUP_ARRAY => {
                (or(key_size, 4), or(value_size, 4))
            }
            MapType::HASH_OF_MAPS => (key_size, or(value_size, 4)),
            _ => return,
        };
        if (key, value) == (key_size, value_size) {
            return;
        }
        self.notes.push(format!("key and value of {key} and {value} bytes, as its type wants"));
        (self.spec.key_size, self.spec.value_size) = (key, value);
        (self.spec.key_type, self.spec.value_type) = (None, None);
    }

    fn entries(&mut self, default: Option<u32>) -> Result<(), Error> {
        let given = self.spec.max_entries;
        let entries = match self.spec.map_type {
            MapType::RINGBUF | MapType::USER_RINGBUF => {
                let n = if given == 0 { default.unwrap_or(PAGE) } else { given };
                n.checked_next_power_of_two().unwrap_or(n).max(PAGE)
            }
            MapType::PERF_EVENT_ARRAY | MapType::CPUMAP if given == 0 => possible_cpus()? as u32,
            _ if given != 0 || !wants_entries(self.spec.map_type) => given,
            MapType::ARRAY => default.map_or_else(|| possible_cpus().map(|n| n as u32), Ok)?,
            _ => default.unwrap_or(DEFAULT_ENTRIES),
        };
        if given == 0 && entries != 0 {
            self.notes.push(format!("{entries} entries, for the object leaves their number to its loader"));
        }
        self.spec.max_entries = entries;
        Ok(())
    }
}

fn or(size: u32, default: u32) -> u32 {
    if size == 0 { default } else { size }
}

/// Returns true if the kernel refuses such a map without a number of entries. Storage that belongs to other
/// objects has none.
fn wants_entries(map_type: MapType) -> bool {
    !matches!(
        map_type,
        MapType::CGROUP_STORAGE
            | MapType::PERCPU_CGROUP_STORAGE
            | MapType::SK_STORAGE
            | MapType::INODE_STORAGE
            | MapType::TASK_STORAGE
            | MapType::CGRP_STORAGE
            | MapType::STRUCT_OPS
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn map(map_type: MapType, key_size: u32, value_size: u32, max_entries: u32) -> MapDefinition {
        MapDefinition { map_type, key_size, value_size, max_entries, ..MapDefinition::default() }
    }

    fn completed(spec: &MapDefinition) -> (u32, u32, u32) {
        let c = complete(spec, Some(7)).unwrap();
        (c.spec.key_size, c.spec.value_size, c.spec.max_entries)
    }

    #[test]
    fn a_complete_description_stays_and_is_not_remarked_upon() {
        let spec = map(MapType::HASH, 4, 8, 100);
        let c = complete(&spec, Some(7)).unwrap();
        assert_eq!((c.spec, c.notes.len()), (spec, 0));
    }

    #[test]
    fn types_of_events_are_no_sizes() {
        assert_eq!(completed(&map(MapType::PERF_EVENT_ARRAY, 0, 84, 2)), (4, 4, 2));
        assert_eq!(completed(&map(MapType::RINGBUF, 0, 28, 5000)), (0, 0, 8192));
    }

    #[test]
    fn entries_are_put_in_where_the_kernel_wants_them() {
        assert_eq!(completed(&map(MapType::STACK_TRACE, 4, 0, 0)), (4, 1016, 7));
        assert_eq!(completed(&map(MapType::ARRAY, 4, 8, 0)), (4, 8, 7));
        assert_eq!(completed(&map(MapType::SK_STORAGE, 4, 8, 0)), (4, 8, 0));
        assert_eq!(completed(&map(MapType::HASH_OF_MAPS, 16, 0, 3)), (16, 4, 3));
    }
}

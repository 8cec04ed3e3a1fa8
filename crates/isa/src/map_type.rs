//! Types of maps: the kernel's numbers with their names.
//!
//! A type is a number and not an enumeration, so that objects and maps of newer kernels stay usable.
//!
//! Source: `enum bpf_map_type` of `include/uapi/linux/bpf.h` of Linux 6.18.

use std::fmt;

/// `enum bpf_map_type`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct MapType(pub u32);

macro_rules! map_types {
    ($($constant:ident = $value:literal $name:literal,)*) => {
        impl MapType {
            $(#[doc = concat!("`", $name, "`")] pub const $constant: MapType = MapType($value);)*

            /// The kernel's name in lower case, if it is known here.
            pub const fn name(self) -> Option<&'static str> {
                match self.0 {
                    $($value => Some($name),)*
                    _ => None,
                }
            }
        }
    };
}

map_types! {
    UNSPEC = 0 "unspec",
    HASH = 1 "hash",
    ARRAY = 2 "array",
    PROG_ARRAY = 3 "prog_array",
    PERF_EVENT_ARRAY = 4 "perf_event_array",
    PERCPU_HASH = 5 "percpu_hash",
    PERCPU_ARRAY = 6 "percpu_array",
    STACK_TRACE = 7 "stack_trace",
    CGROUP_ARRAY = 8 "cgroup_array",
    LRU_HASH = 9 "lru_hash",
    LRU_PERCPU_HASH = 10 "lru_percpu_hash",
    LPM_TRIE = 11 "lpm_trie",
    ARRAY_OF_MAPS = 12 "array_of_maps",
    HASH_OF_MAPS = 13 "hash_of_maps",
    DEVMAP = 14 "devmap",
    SOCKMAP = 15 "sockmap",
    CPUMAP = 16 "cpumap",
    XSKMAP = 17 "xskmap",
    SOCKHASH = 18 "sockhash",
    CGROUP_STORAGE = 19 "cgroup_storage",
    REUSEPORT_SOCKARRAY = 20 "reuseport_sockarray",
    PERCPU_CGROUP_STORAGE = 21 "percpu_cgroup_storage",
    QUEUE = 22 "queue",
    STACK = 23 "stack",
    SK_STORAGE = 24 "sk_storage",
    DEVMAP_HASH = 25 "devmap_hash",
    STRUCT_OPS = 26 "struct_ops",
    RINGBUF = 27 "ringbuf",
    INODE_STORAGE = 28 "inode_storage",
    TASK_STORAGE = 29 "task_storage",
    BLOOM_FILTER = 30 "bloom_filter",
    USER_RINGBUF = 31 "user_ringbuf",
    CGRP_STORAGE = 32 "cgrp_storage",
    ARENA = 33 "arena",
    INSN_ARRAY = 34 "insn_array",
}

impl MapType {
    /// Returns true if a value is kept once per possible CPU, so that user space reads and writes all of them
    /// at once.
    pub const fn is_percpu(self) -> bool {
        matches!(
            self,
            Self::PERCPU_HASH | Self::PERCPU_ARRAY | Self::LRU_PERCPU_HASH | Self::PERCPU_CGROUP_STORAGE
        )
    }

    /// Returns true if the keys are the numbers below the number of entries, all of which are present.
    pub const fn is_array(self) -> bool {
        matches!(self, Self::ARRAY | Self::PERCPU_ARRAY)
    }

    /// Returns true if the values are network interfaces to redirect to.
    pub const fn is_devmap(self) -> bool {
        matches!(self, Self::DEVMAP | Self::DEVMAP_HASH)
    }

    /// Returns true if the values are maps.
    pub const fn is_map_of_maps(self) -> bool {
        matches!(self, Self::ARRAY_OF_MAPS | Self::HASH_OF_MAPS)
    }

    /// Returns true if user space writes a file descriptor (4 bytes) and reads back an id.
    pub const fn holds_descriptors(self) -> bool {
        self.is_map_of_maps()
            || matches!(self, Self::PROG_ARRAY | Self::PERF_EVENT_ARRAY | Self::CGROUP_ARRAY)
    }
}

impl fmt::Display for MapType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.name() {
            Some(name) => f.write_str(name),
            None => write!(f, "map type {}", self.0),
        }
    }
}

impl fmt::Debug for MapType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.name() {
            Some(name) => write!(f, "MapType({name})"),
            None => write!(f, "MapType({})", self.0),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::MapType;

    #[test]
    fn a_type_has_the_name_of_its_constant_and_an_unknown_one_its_number() {
        assert_eq!(MapType::LRU_PERCPU_HASH.to_string(), "lru_percpu_hash");
        assert_eq!(format!("{:?}", MapType(25)), "MapType(devmap_hash)");
        assert_eq!(MapType(99).to_string(), "map type 99");
    }

    #[test]
    fn types_are_numbered_without_gaps() {
        assert!((0..=34).all(|n| MapType(n).name().is_some()));
        assert_eq!(MapType(35).name(), None);
    }
}

//! Tests against the running kernel.

mod acl;
mod attacks;
mod bars;
mod bitvector;
mod caches;
mod callbacks;
mod chain;
mod data_planes;
mod fallback_variant;
mod fixed_length_prefixes;
mod gate;
mod guard;
mod inner;
mod inner_map_contents;
mod key_tests;
mod linear;
mod live;
mod map_in_map;
mod offline;
mod paper;
mod partial_deopt;
mod perfect_hash;
mod races;
mod recency;
mod refresh;
mod replay;
mod routed;
mod shadow;
mod shadow_tables;
mod slower;
mod snapshot;
mod sparse;
mod steps;
mod values;
mod warm;
mod writers;

#[path = "../../../object/tests/objects/common.rs"]
mod fixtures;

//! Tests against the running kernel.

mod acl;
mod attacks;
mod bars;
mod key_tests;
mod bitvector;
mod caches;
mod callbacks;
mod chain;
mod snapshot;
mod gate;
mod guard;
mod inner;
mod replay;
mod fixed_length_prefixes;
mod linear;
mod live;
mod offline;
mod map_in_map;
mod paper;
mod data_planes;
mod races;
mod recency;
mod refresh;
mod routed;
mod perfect_hash;
mod shadow;
mod slower;
mod partial_deopt;
mod sparse;
mod fallback_variant;
mod steps;
mod shadow_tables;
mod values;
mod inner_map_contents;
mod writers;

#[path = "../../../object/tests/objects/common.rs"]
mod fixtures;

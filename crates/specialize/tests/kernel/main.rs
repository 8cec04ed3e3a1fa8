//! Tests against the running kernel.

mod acl;
mod attacks;
mod bars;
mod before;
mod bitvector;
mod caches;
mod callbacks;
mod chain;
mod contents;
mod gate;
mod guard;
mod inner;
mod judge;
mod lengths;
mod linear;
mod live;
mod offline;
mod outer;
mod paper;
mod planes;
mod races;
mod recency;
mod refresh;
mod routed;
mod rows;
mod shadow;
mod slower;
mod spared;
mod sparse;
mod standby;
mod steps;
mod twins;
mod values;
mod within;
mod writers;

#[path = "../../../object/tests/objects/common.rs"]
mod fixtures;

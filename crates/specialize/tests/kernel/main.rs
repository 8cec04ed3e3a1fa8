//! Tests against the running kernel.

mod bars;
mod contents;
mod guard;
mod judge;
mod live;
mod offline;
mod planes;
mod races;
mod refresh;
mod routed;
mod shadow;
mod slower;
mod twins;

//! Tests against the running kernel.

mod bars;
mod guard;
mod live;
mod races;
mod routed;
mod twins;

//! Tests against the running kernel.

mod guard;
mod live;
mod races;

//! Tests against the running kernel.

mod guard;
mod races;

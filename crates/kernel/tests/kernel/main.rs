//! This crate against the real kernel.

mod common;
mod maps;
mod pinned;
mod programs;

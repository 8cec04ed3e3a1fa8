//! This crate against the real kernel.

mod common;
mod maps;
mod programs;

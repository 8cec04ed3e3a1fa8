//! Passes over memory and tables on random programs.

mod memory;
mod rng;
mod tables;

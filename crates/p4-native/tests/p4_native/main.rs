//! Programs as native code, beside the interpreter.

mod batches;
mod common;
mod comparison;
mod corpus;
mod generated;
mod generator;
mod programs;

//! Programs as native code, beside the interpreter.

mod adapted;
mod batches;
mod common;
mod comparison;
mod corpus;
mod generated;
mod generator;
mod programs;

//! Programs in the kernel, beside the interpreter.

mod common;
#[path = "../../../p4-native/tests/p4_native/comparison.rs"]
mod comparison;
mod generated;
#[path = "../../../p4-native/tests/p4_native/generator.rs"]
mod generator;
mod objects;
mod random_packets;
mod stf;

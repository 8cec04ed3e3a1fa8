//! Programs in the kernel, beside the interpreter.

mod common;
mod objects;
mod random_packets;
mod stf;

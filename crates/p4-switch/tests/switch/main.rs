//! Programs on a switch, by the interpreter.

mod arithmetic;
mod common;
mod entries;
mod hostile;
mod passes;
mod programs;
mod refused;

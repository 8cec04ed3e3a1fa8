//! Machine code that runs batches.
//!
//! Invariant: the code was made by `emit` for the maps of the engine that holds it, and is called with the worker of that
//! engine and descriptors of packets whose buffers are alive. What it does with memory beyond that is the program's:
//! a program that the kernel's verifier would refuse may do anything.
#![allow(unsafe_code)]

use crate::llvm::{Code, Compiler, Error, ObjectFile};
use crate::runtime::packet::Packet;
use crate::runtime::worker::Worker;

type RunBatch = extern "C" fn(*mut Worker, *mut Packet, u64);

/// A program in place.
pub(crate) struct Program {
    run: RunBatch,
    /// Addresses of the programs that were asked for.
    pub(crate) programs: Vec<u64>,
    // Keeps the code in place.
    _code: Code,
}

impl Program {
    /// Puts a compiled object in place; `batch` and `programs` are symbols of it.
    pub(crate) fn link(
        compiler: &Compiler,
        object: &ObjectFile,
        batch: &str,
        programs: &[String],
    ) -> Result<Program, Error> {
        let names: Vec<&str> = std::iter::once(batch).chain(programs.iter().map(String::as_str)).collect();
        let (code, addresses) = compiler.link(object, &names)?;
        // SAFETY: the symbol is a function of this type (`emit::batch`), and lives as long as `code`.
        let run = unsafe { std::mem::transmute::<usize, RunBatch>(addresses[0]) };
        let programs = addresses[1..].iter().map(|&a| a as u64).collect();
        Ok(Program { run, programs, _code: code })
    }

    /// Runs the program on each packet.
    pub(crate) fn run(&self, worker: &mut Worker, packets: &mut [Packet]) {
        (self.run)(worker, packets.as_mut_ptr(), packets.len() as u64);
    }
}

//! Machine code that runs batches.
//!
//! Invariant: the code was made by `emit` for the maps of the engine that holds it, and is called with the worker of that
//! engine and descriptors of packets whose buffers are alive. What it does with memory beyond that is the program's:
//! a program that the kernel's verifier would refuse may do anything.
#![allow(unsafe_code)]

use std::time::Instant;

use crate::ahead::Judge;
use crate::llvm::{Code, Compiler, Error, ObjectFile};
use crate::runtime::packet::Packet;
use crate::runtime::worker::Worker;

type RunBatch = extern "C" fn(*mut Worker, *mut Packet, u64);

/// A program in place.
pub(crate) struct Program {
    run: RunBatch,
    /// The loop that fetches ahead, and who decides between the two.
    ahead: Option<(RunBatch, Judge)>,
    /// Addresses of the programs that were asked for.
    pub(crate) programs: Vec<u64>,
    // Keeps the code in place.
    _code: Code,
}

impl Program {
    /// Puts a compiled object in place; `batches` and `programs` are symbols of it: the loop over a batch, one that fetches ahead
    /// if there is one.
    pub(crate) fn link(
        compiler: &Compiler,
        object: &ObjectFile,
        batches: &[&str],
        programs: &[String],
    ) -> Result<Program, Error> {
        let names: Vec<&str> = batches.iter().copied().chain(programs.iter().map(String::as_str)).collect();
        let (code, addresses) = compiler.link(object, &names)?;
        let (loops, programs) = addresses.split_at(batches.len());
        // SAFETY: the symbols are functions of this type (`emit::batch`), and live as long as `code`.
        let function = |at: &usize| unsafe { std::mem::transmute::<usize, RunBatch>(*at) };
        let programs = programs.iter().map(|&a| a as u64).collect();
        let ahead = loops.get(1).map(|at| (function(at), Judge::default()));
        Ok(Program { run: function(&loops[0]), ahead, programs, _code: code })
    }

    /// Runs the program on each packet.
    pub(crate) fn run(&mut self, worker: &mut Worker, packets: &mut [Packet]) {
        let (first, count) = (packets.as_mut_ptr(), packets.len());
        let Some((ahead, judge)) = &mut self.ahead else { return (self.run)(worker, first, count as u64) };
        let (tries, chosen) = (judge.tries(), judge.choose());
        let run = if chosen { *ahead } else { self.run };
        if !tries {
            return run(worker, first, count as u64);
        }
        let start = Instant::now();
        run(worker, first, count as u64);
        judge.note(chosen, start.elapsed(), count);
    }
}

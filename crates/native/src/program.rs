//! Machine code that runs batches.
//!
//! Invariant: the code was made by `emit` for the maps of the engine that holds it, and is called with the
//! worker of that engine and descriptors of packets whose buffers are alive. Its other memory accesses are
//! the program's responsibility: a program that the kernel's verifier would reject may do anything.
#![allow(unsafe_code)]

use std::ops::Range;
use std::time::Instant;

use crate::crash::{self, CodeDebugInfo, RunningBatch};
use crate::llvm;
use crate::mapped_code::MappedCode;
use crate::prefetch::PrefetchTuner;
use millstream_native_runtime::worker::Worker;

type RunBatch = extern "C" fn(*mut Worker, *mut u32, u64);

/// Owner of the code's memory.
pub(crate) enum CodeOwner {
    /// LLVM's linker, which put it there. (Only held.)
    Linked { _code: llvm::JitCode },
    /// A mapping of our own.
    Mapped { _code: MappedCode },
    /// It is part of this process.
    Own,
}

/// A program in memory.
pub(crate) struct NativeProgram {
    run: RunBatch,
    /// The loop that fetches ahead.
    ahead: Option<RunBatch>,
    /// Addresses of the requested programs.
    pub(crate) programs: Vec<u64>,
    /// Source places of its code, if known.
    code: Option<CodeDebugInfo>,
    _kept: CodeOwner,
}

impl NativeProgram {
    /// A program whose first `loops` addresses are those of the loop over a batch, and of one that fetches
    /// ahead if there is one; the others are those of programs.
    pub(crate) fn new(addresses: &[usize], loops: usize, kept: CodeOwner) -> NativeProgram {
        let (loops, programs) = addresses.split_at(loops);
        // SAFETY: the symbols are functions of this type (`emit::batch`), and live as long as `kept`.
        let function = |at: &usize| unsafe { std::mem::transmute::<usize, RunBatch>(*at) };
        let programs = programs.iter().map(|&a| a as u64).collect();
        let ahead = loops.get(1).map(function);
        NativeProgram { run: function(&loops[0]), ahead, programs, code: None, _kept: kept }
    }

    /// Adds the source places of its code.
    pub(crate) fn with_debug_info(self, code: CodeDebugInfo) -> NativeProgram {
        NativeProgram { code: Some(code), ..self }
    }

    /// Address of the first loop.
    #[cfg(test)]
    pub(crate) fn address(&self) -> usize {
        self.run as usize
    }

    /// Runs the program on each packet, given by their descriptors, by the loop that the worker found to be
    /// the faster one.
    pub(crate) fn run(&self, worker: &mut Worker, judge: &mut PrefetchTuner, packets: &mut [u32]) {
        let (first, count) = (packets.as_mut_ptr(), packets.len() / worker.layout.words());
        let worker = std::ptr::from_mut(worker);
        let running = RunningBatch { code: self.code.as_ref(), worker, packets: first, count };
        let by = |run: RunBatch| crash::run_attributed(&running, || run(worker, first, count as u64));
        let Some(ahead) = self.ahead else { return by(self.run) };
        let (tries, chosen) = (judge.tries(), judge.choose());
        let run = if chosen { ahead } else { self.run };
        if !tries {
            return by(run);
        }
        let start = Instant::now();
        by(run);
        judge.note(chosen, start.elapsed(), count);
    }
}

type RunStage = extern "C" fn(*mut Worker, *mut u8, *mut u8, *mut u8) -> u64;

/// Functions of a pipeline in memory.
pub(crate) struct StageCode {
    functions: Vec<RunStage>,
    _kept: CodeOwner,
}

impl StageCode {
    /// Functions at these addresses.
    pub(crate) fn new(addresses: &[usize], kept: CodeOwner) -> StageCode {
        // SAFETY: the symbols are functions of this type (`emit`), and live as long as `kept`.
        let function = |at: &usize| unsafe { std::mem::transmute::<usize, RunStage>(*at) };
        StageCode { functions: addresses.iter().map(function).collect(), _kept: kept }
    }

    /// Runs a function on the packet that begins at `start` of the buffer; gives its result, and the place of
    /// the packet afterwards, which may be behind the buffer's end. `None` if there is no such function, or
    /// the packet begins in front of the buffer.
    pub(crate) fn run(
        &self,
        at: usize,
        worker: &mut Worker,
        state: &mut [u8],
        buffer: &mut [u8],
        start: usize,
    ) -> Option<(u64, Range<usize>)> {
        let function = self.functions.get(at)?;
        let Range { start: first, end } = buffer.as_mut_ptr_range();
        let data = first.wrapping_add(start);
        worker.bounds = [data as u64, end as u64];
        let result = function(worker, state.as_mut_ptr(), data, end);
        let [from, to] = worker.bounds.map(|address| (address as usize).checked_sub(first as usize));
        Some((result, from?..to?))
    }
}

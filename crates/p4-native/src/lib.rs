//! P4_16 programs as native code.
//!
//! [`NativeExecutor`] compiles the functions of a lowered program with the native back end, and runs them for
//! a [`millstream_p4_switch::Switch`] with the same maps that the interpreter has. [`BatchedExecutor`] runs whole
//! batches of packets, with the schedules of the native back end, where a program allows it.
//!
//! Architecture Invariant: no `unsafe` and nothing of P4's language: the functions are those of the program's
//! description.

mod batch;
mod refusal;
mod unicast;
mod workload;

use millstream_ir::{Func, Map};
use millstream_native::{
    CompileTimings, NativeError, NativeOptions, ProgramEvent, StageEngine, StageError, StageMemory,
};
use millstream_p4_lower::LoweredProgram;
use millstream_p4_switch::{ExecutorError, SwitchExecutor, UnicastOutcome};

pub use batch::{BatchError, BatchProgram, BatchedExecutor};
pub use refusal::BatchRefusal;
pub use workload::{EntrySource, P4Workload, WorkloadError, parse_prefix};

/// Seed of random numbers: that of the interpreter, so that both executions of a program are alike.
pub const SEED: u64 = 0x9e37_79b9_7f4a_7c15;

/// Native code as an engine.
pub struct NativeExecutor {
    engine: StageEngine,
    /// The function for packets that go to one port, if the program has one.
    unicast: Option<Func>,
}

impl NativeExecutor {
    /// Compiles a program; its maps are empty.
    ///
    /// # Errors
    /// [`NativeError`] without LLVM's library, or without memory for the maps.
    pub fn new(program: &LoweredProgram) -> Result<NativeExecutor, NativeError> {
        let pipeline = &program.pipeline;
        let mut module = program.module.clone();
        let unicast = unicast::add_unicast(&mut module, pipeline);
        let functions: Vec<Func> = pipeline.stages.iter().map(|stage| stage.func).chain(unicast).collect();
        let memory =
            StageMemory { state: pipeline.state.size as usize, headroom: pipeline.headroom as usize };
        let options = NativeOptions { seed: SEED, ..NativeOptions::default() };
        let mut engine = StageEngine::new(module, &functions, memory, &options)?;
        engine.set_time(0);
        Ok(NativeExecutor { engine, unicast })
    }

    /// Times of compilation.
    pub fn timings(&self) -> CompileTimings {
        self.engine.timings
    }
}

fn fault(error: StageError) -> ExecutorError {
    ExecutorError::Fault(error.to_string())
}

fn checked(result: i64) -> Result<(), ExecutorError> {
    match result {
        0 => Ok(()),
        error => Err(ExecutorError::Map(error)),
    }
}

impl SwitchExecutor for NativeExecutor {
    fn run(&mut self, func: Func, state: &mut Vec<u8>, packet: &mut Vec<u8>) -> Result<(), ExecutorError> {
        self.engine.run(func, state, packet).map_err(fault)?;
        Ok(())
    }

    fn run_unicast(
        &mut self,
        state: &mut [u8],
        packet: &[u8],
        output: &mut Vec<u8>,
    ) -> Result<UnicastOutcome, ExecutorError> {
        let Some(func) = self.unicast else { return Ok(UnicastOutcome::Unsupported) };
        let (result, bytes) = self.engine.run_on(func, state, packet).map_err(fault)?;
        let (outcome, length) = unicast::outcome(result);
        if outcome != UnicastOutcome::Dropped {
            output.extend_from_slice(&bytes[..bytes.len().min(length)]);
        }
        Ok(outcome)
    }

    fn get(&mut self, map: Map, key: &[u8]) -> Option<Vec<u8>> {
        self.engine.get(map, key)
    }

    fn set(&mut self, map: Map, key: &[u8], value: &[u8]) -> Result<(), ExecutorError> {
        checked(self.engine.set(map, key, value))
    }

    fn delete(&mut self, map: Map, key: &[u8]) -> Result<(), ExecutorError> {
        checked(self.engine.delete(map, key))
    }

    fn keys(&mut self, map: Map) -> Vec<Vec<u8>> {
        self.engine.keys(map)
    }

    fn set_time(&mut self, nanoseconds: u64) {
        self.engine.set_time(nanoseconds);
    }

    fn take_records(&mut self) -> Vec<Vec<u8>> {
        let data = |event| match event {
            ProgramEvent::Record { data, .. } => Some(data),
            ProgramEvent::Trace(_) => None,
        };
        self.engine.take_events().into_iter().filter_map(data).collect()
    }
}

//! P4 programs as programs of batches: all packets of a batch go through one function, and the lines of their
//! look-ups are fetched ahead by a schedule, as for XDP programs and Click configurations.
//!
//! Such a program answers each packet by itself: it is dropped, or leaves by one port. A program that may clone,
//! resubmit, replicate, recirculate or truncate packets needs a switch behind its functions
//! ([`crate::NativeExecutor`]).

use std::io;

use millstream_ir::{Func, Map, Module};
use millstream_native::{ClockSource, NativeEngine, NativeError, NativeOptions, PacketBatch, ProgramEvent};
use millstream_p4_lower::{LoweredProgram, StateField};
use millstream_p4_switch::{ExecutorError, SwitchExecutor, UnicastOutcome};

use crate::refusal::{BatchRefusal, MOST_HEADROOM};
use crate::unicast::{FIRST_INTERFACE, add_batch_program};

/// `XDP_REDIRECT`.
const XDP_REDIRECT: u32 = 4;

/// Failure to make an executor of batches.
#[derive(Debug, thiserror::Error)]
pub enum BatchError {
    /// The program cannot run batches.
    #[error("this program cannot run in batches: {0}")]
    Refused(#[from] BatchRefusal),
    /// There is no code.
    #[error(transparent)]
    Native(#[from] NativeError),
    /// There is no memory for packets.
    #[error("no memory for packets: {0}")]
    Memory(#[from] io::Error),
}

/// A program of batches: a module, and the function that takes a packet's descriptor. The numbers of maps are those
/// of the lowered program. Ports are interfaces from 1: port 0 is interface 1.
#[derive(Clone, Debug)]
pub struct BatchProgram {
    /// Functions and maps.
    pub module: Module,
    /// The program.
    pub entry: Func,
}

impl BatchProgram {
    /// The program of batches of a lowered program.
    ///
    /// # Errors
    /// [`BatchRefusal`] if a packet may need the switch.
    pub fn new(program: &LoweredProgram) -> Result<BatchProgram, BatchRefusal> {
        let pipeline = &program.pipeline;
        if pipeline.headroom > MOST_HEADROOM {
            return Err(BatchRefusal::Headroom { bytes: pipeline.headroom });
        }
        let mut module = program.module.clone();
        let entry = add_batch_program(&mut module, pipeline)?;
        Ok(BatchProgram { module, entry })
    }
}

/// Native code that runs batches, as an engine of a switch.
pub struct BatchedExecutor {
    engine: NativeEngine,
    batch: PacketBatch,
    /// The port in a packet's state.
    ingress_port: Option<StateField>,
}

impl BatchedExecutor {
    /// Compiles a program; its maps are empty.
    ///
    /// # Errors
    /// [`BatchError`].
    pub fn new(program: &LoweredProgram, options: &NativeOptions) -> Result<BatchedExecutor, BatchError> {
        let BatchProgram { module, entry } = BatchProgram::new(program)?;
        BatchedExecutor::of_engine(NativeEngine::of_module(module, entry, options)?, program)
    }

    /// An executor with the code of the program's [`BatchProgram`].
    ///
    /// # Errors
    /// [`BatchError::Memory`] if there is no memory for packets.
    pub fn of_engine(
        mut engine: NativeEngine,
        program: &LoweredProgram,
    ) -> Result<BatchedExecutor, BatchError> {
        engine.set_clock(ClockSource::Fixed(0));
        let batch = PacketBatch::new(engine.batch().max(1) as usize)?;
        let ingress_port = program.pipeline.state.field("standard_metadata.ingress_port").cloned();
        Ok(BatchedExecutor { engine, batch, ingress_port })
    }

    /// Gives the engine back, with the system's clock.
    pub fn into_engine(mut self) -> NativeEngine {
        self.engine.set_clock(ClockSource::System);
        self.engine
    }

    /// The engine.
    pub fn engine(&mut self) -> &mut NativeEngine {
        &mut self.engine
    }

    /// Makes room for long packets, of which there may be fewer in a batch.
    fn make_room(&mut self, packets: &[(u64, &[u8])]) -> Result<(), ExecutorError> {
        let longest = packets.iter().map(|(_, packet)| packet.len()).max().unwrap_or(0);
        self.batch.clear();
        let grown = self.batch.grow(longest);
        grown.map_err(|error| ExecutorError::Fault(format!("no memory for long packets: {error}")))
    }

    /// Runs packets, at most as many as the batch has room for.
    fn run_packets(&mut self, packets: &[(u64, &[u8])]) -> Result<(), ExecutorError> {
        self.batch.clear();
        self.batch.expect(self.engine.layout());
        for (port, packet) in packets {
            let interface = port.saturating_add(FIRST_INTERFACE);
            if !self.batch.push_open(packet, u32::try_from(interface).unwrap_or(u32::MAX)) {
                return Err(ExecutorError::Fault(format!("a packet of {} bytes is too long", packet.len())));
            }
        }
        self.engine.run(&mut self.batch);
        Ok(())
    }

    /// Port by which a packet of the batch leaves; `None` if it was dropped.
    fn port(&self, at: usize) -> Option<u64> {
        let target = u64::from(self.batch.target(at));
        (self.batch.verdict(at) == XDP_REDIRECT).then_some(target.saturating_sub(FIRST_INTERFACE))
    }
}

impl SwitchExecutor for BatchedExecutor {
    fn run(&mut self, func: Func, _: &mut Vec<u8>, _: &mut Vec<u8>) -> Result<(), ExecutorError> {
        Err(ExecutorError::Fault(format!("the code of batches has no function {func}")))
    }

    fn run_unicast(
        &mut self,
        state: &mut [u8],
        packet: &[u8],
        output: &mut Vec<u8>,
    ) -> Result<UnicastOutcome, ExecutorError> {
        let field = self.ingress_port.as_ref().map_or(0, |field| field.offset as usize);
        let port = state.get(field..).and_then(|bytes| bytes.first_chunk().copied()).unwrap_or([0; 2]);
        let packets = [(u64::from(u16::from_le_bytes(port)), packet)];
        self.make_room(&packets)?;
        self.run_packets(&packets)?;
        let Some(port) = self.port(0) else { return Ok(UnicastOutcome::Dropped) };
        output.extend_from_slice(self.batch.bytes(0));
        Ok(UnicastOutcome::Sent(port))
    }

    fn batch_size(&self) -> Option<usize> {
        Some(self.batch.capacity().max(1))
    }

    fn run_batch(
        &mut self,
        packets: &[(u64, &[u8])],
        sent: &mut dyn FnMut(usize, u64, &[u8]),
    ) -> Option<Result<(), ExecutorError>> {
        if let Err(error) = self.make_room(packets) {
            return Some(Err(error));
        }
        let most = self.batch.capacity().max(1);
        for (number, part) in packets.chunks(most).enumerate() {
            if let Err(error) = self.run_packets(part) {
                return Some(Err(error));
            }
            for at in 0..part.len() {
                if let Some(port) = self.port(at) {
                    sent(number * most + at, port, self.batch.bytes(at));
                }
            }
        }
        Some(Ok(()))
    }

    fn get(&mut self, map: Map, key: &[u8]) -> Option<Vec<u8>> {
        self.engine.map_at(map)?.get(key)
    }

    fn set(&mut self, map: Map, key: &[u8], value: &[u8]) -> Result<(), ExecutorError> {
        let found = self.engine.map_at(map).ok_or(ExecutorError::NoMap(map))?;
        crate::checked(found.change(|found| found.update(key, value, 0, None)))
    }

    fn delete(&mut self, map: Map, key: &[u8]) -> Result<(), ExecutorError> {
        let found = self.engine.map_at(map).ok_or(ExecutorError::NoMap(map))?;
        crate::checked(found.change(|found| found.delete(key)))
    }

    fn keys(&mut self, map: Map) -> Vec<Vec<u8>> {
        self.engine.map_at(map).map_or_else(Vec::new, |map| map.keys())
    }

    fn set_time(&mut self, nanoseconds: u64) {
        self.engine.set_clock(ClockSource::Fixed(nanoseconds));
    }

    fn take_records(&mut self) -> Vec<Vec<u8>> {
        let data = |event| match event {
            ProgramEvent::Record { data, .. } => Some(data),
            ProgramEvent::Trace(_) => None,
        };
        self.engine.take_events().into_iter().filter_map(data).collect()
    }
}

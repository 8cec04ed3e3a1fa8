//! Execution of a program's functions, and its maps: what a switch asks of an engine.

use std::sync::Arc;

use millstream_interp::ir::IrInterpreter;
use millstream_interp::{ContextKind, MachineState, MapId, MapLookup, SideEffect};
use millstream_ir::{Func, Map};
use millstream_p4_lower::LoweredProgram;
use rustc_hash::FxHashMap;

use crate::switch::SentPacket;

/// Failure of an engine.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ExecutorError {
    /// The code did something that it must not do.
    #[error("{0}")]
    Fault(String),
    /// The map does not exist in the engine.
    #[error("there is no map {0}")]
    NoMap(Map),
    /// A map refused an operation, with the kernel's error number.
    #[error("the map refuses: error {0}")]
    Map(i64),
}

/// End of a packet's way by [`SwitchExecutor::run_unicast`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum UnicastOutcome {
    /// The engine has no such function; nothing was done.
    Unsupported,
    /// Parser and ingress are done, and what follows is not egress for one port.
    BehindIngress,
    /// Egress for this port is done, and the packet is to be cloned or recirculated.
    BehindEgress(u64),
    /// The packet was dropped.
    Dropped,
    /// The packet leaves by this port.
    Sent(u64),
}

/// An engine that runs the functions of a lowered program.
pub trait SwitchExecutor {
    /// Runs a function on a packet and its state; both are changed in place.
    ///
    /// # Errors
    /// [`ExecutorError::Fault`].
    fn run(&mut self, func: Func, state: &mut Vec<u8>, packet: &mut Vec<u8>) -> Result<(), ExecutorError>;

    /// Runs parser, ingress and egress of v1model at once on a packet that has just come from a port, as long
    /// as the packet goes to one port. The packet as it is then is put into `output`, unless it was dropped. The
    /// state is changed only if the switch has to go on with the packet.
    ///
    /// # Errors
    /// [`ExecutorError::Fault`].
    fn run_unicast(
        &mut self,
        _state: &mut [u8],
        _packet: &[u8],
        _output: &mut Vec<u8>,
    ) -> Result<UnicastOutcome, ExecutorError> {
        Ok(UnicastOutcome::Unsupported)
    }

    /// Reads a value of a map.
    fn get(&mut self, map: Map, key: &[u8]) -> Option<Vec<u8>>;

    /// Inserts or replaces a value.
    ///
    /// # Errors
    /// [`ExecutorError::Map`] if the map is full or the key malformed.
    fn set(&mut self, map: Map, key: &[u8], value: &[u8]) -> Result<(), ExecutorError>;

    /// Removes a value.
    ///
    /// # Errors
    /// [`ExecutorError::Map`] if there is none.
    fn delete(&mut self, map: Map, key: &[u8]) -> Result<(), ExecutorError>;

    /// All keys of a map.
    fn keys(&mut self, map: Map) -> Vec<Vec<u8>>;

    /// Sets the clock, in nanoseconds.
    fn set_time(&mut self, nanoseconds: u64);

    /// Takes the records that the program has written to rings since the last call.
    fn take_records(&mut self) -> Vec<Vec<u8>>;

    /// Takes a packet from a port through the whole program, if the engine has the traffic manager in it, and
    /// gives the packets that leave. Other engines give `None`.
    ///
    /// # Errors
    /// [`ExecutorError::Fault`].
    fn forward(&mut self, _port: u64, _packet: &[u8]) -> Option<Result<Vec<SentPacket>, ExecutorError>> {
        None
    }

    /// Packets that [`SwitchExecutor::run_batch`] runs at once, if the engine has code for that.
    fn batch_size(&self) -> Option<usize> {
        None
    }

    /// Runs packets, each with the port from which it has just come, through parser, ingress and egress of v1model
    /// in batches, if the engine has code for that, and gives each packet that leaves: its position, its port and
    /// its bytes. Other engines give `None`.
    ///
    /// # Errors
    /// [`ExecutorError::Fault`].
    fn run_batch(
        &mut self,
        _packets: &[(u64, &[u8])],
        _sent: &mut dyn FnMut(usize, u64, &[u8]),
    ) -> Option<Result<(), ExecutorError>> {
        None
    }

    /// Records lookups of tables from now on, or no longer. An engine without such records gives none.
    fn record_lookups(&mut self, records: bool) {
        let _ = records;
    }

    /// Takes the lookups that were recorded since the last call.
    fn take_lookups(&mut self) -> Vec<ExecutorLookup> {
        Vec::new()
    }
}

/// A lookup that a program made.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ExecutorLookup {
    /// Map.
    pub map: Map,
    /// Key.
    pub key: Vec<u8>,
    /// Value that was found.
    pub value: Option<Vec<u8>>,
}

impl<E: SwitchExecutor + ?Sized> SwitchExecutor for Box<E> {
    fn run(&mut self, func: Func, state: &mut Vec<u8>, packet: &mut Vec<u8>) -> Result<(), ExecutorError> {
        (**self).run(func, state, packet)
    }

    fn run_unicast(
        &mut self,
        state: &mut [u8],
        packet: &[u8],
        output: &mut Vec<u8>,
    ) -> Result<UnicastOutcome, ExecutorError> {
        (**self).run_unicast(state, packet, output)
    }

    fn batch_size(&self) -> Option<usize> {
        (**self).batch_size()
    }

    fn run_batch(
        &mut self,
        packets: &[(u64, &[u8])],
        sent: &mut dyn FnMut(usize, u64, &[u8]),
    ) -> Option<Result<(), ExecutorError>> {
        (**self).run_batch(packets, sent)
    }

    fn get(&mut self, map: Map, key: &[u8]) -> Option<Vec<u8>> {
        (**self).get(map, key)
    }

    fn set(&mut self, map: Map, key: &[u8], value: &[u8]) -> Result<(), ExecutorError> {
        (**self).set(map, key, value)
    }

    fn delete(&mut self, map: Map, key: &[u8]) -> Result<(), ExecutorError> {
        (**self).delete(map, key)
    }

    fn keys(&mut self, map: Map) -> Vec<Vec<u8>> {
        (**self).keys(map)
    }

    fn set_time(&mut self, nanoseconds: u64) {
        (**self).set_time(nanoseconds);
    }

    fn take_records(&mut self) -> Vec<Vec<u8>> {
        (**self).take_records()
    }

    fn record_lookups(&mut self, records: bool) {
        (**self).record_lookups(records);
    }

    fn take_lookups(&mut self) -> Vec<ExecutorLookup> {
        (**self).take_lookups()
    }

    fn forward(&mut self, port: u64, packet: &[u8]) -> Option<Result<Vec<SentPacket>, ExecutorError>> {
        (**self).forward(port, packet)
    }
}

/// The interpreter of the IR as an engine.
pub struct InterpreterExecutor {
    program: Arc<LoweredProgram>,
    machine: MachineState,
    maps: FxHashMap<Map, MapId>,
    records: Vec<Vec<u8>>,
}

/// Instructions that a packet may take in one function.
const FUEL: u64 = 5_000_000;

impl InterpreterExecutor {
    /// An engine with empty maps.
    pub fn new(program: Arc<LoweredProgram>) -> InterpreterExecutor {
        let mut machine = MachineState::new(ContextKind::Raw);
        machine.fuel = FUEL;
        // The clock stands still until it is set, as in other engines.
        machine.env.tick = 0;
        machine.packet.reserve_headroom(program.pipeline.headroom as usize);
        let interpreter = IrInterpreter::new(&program.module, &mut machine);
        let maps = program.module.maps.keys().filter_map(|map| Some((map, interpreter.map(map)?))).collect();
        InterpreterExecutor { program, machine, maps, records: Vec::new() }
    }

    fn map(&self, map: Map) -> Result<MapId, ExecutorError> {
        self.maps.get(&map).copied().ok_or(ExecutorError::NoMap(map))
    }
}

impl SwitchExecutor for InterpreterExecutor {
    fn run(&mut self, func: Func, state: &mut Vec<u8>, packet: &mut Vec<u8>) -> Result<(), ExecutorError> {
        let interpreter = IrInterpreter::with_maps(&self.program.module, self.maps.clone());
        self.machine.reset(packet);
        std::mem::swap(self.machine.context_mut(), state);
        let start = self.machine.packet_address();
        let arguments = [self.machine.context_address(), start, start + packet.len() as u64];
        let result = interpreter.run(&mut self.machine, func, &arguments);
        std::mem::swap(self.machine.context_mut(), state);
        packet.clear();
        packet.extend_from_slice(self.machine.packet.bytes());
        for event in std::mem::take(&mut self.machine.env.events) {
            if let SideEffect::Ringbuf { data, .. } = event {
                self.records.push(data);
            }
        }
        result.map(|_| ()).map_err(|error| ExecutorError::Fault(error.to_string()))
    }

    fn get(&mut self, map: Map, key: &[u8]) -> Option<Vec<u8>> {
        let map = self.map(map).ok()?;
        self.machine.maps.get(map, key)
    }

    fn set(&mut self, map: Map, key: &[u8], value: &[u8]) -> Result<(), ExecutorError> {
        let map = self.map(map)?;
        self.machine.maps.set(map, key, value, 0).map_err(ExecutorError::Map)
    }

    fn delete(&mut self, map: Map, key: &[u8]) -> Result<(), ExecutorError> {
        let map = self.map(map)?;
        match self.machine.maps.delete(map, key) {
            0 => Ok(()),
            error => Err(ExecutorError::Map(error)),
        }
    }

    fn keys(&mut self, map: Map) -> Vec<Vec<u8>> {
        self.map(map).map_or_else(|_| Vec::new(), |map| self.machine.maps.keys(map))
    }

    fn set_time(&mut self, nanoseconds: u64) {
        self.machine.env.time = nanoseconds;
    }

    fn take_records(&mut self) -> Vec<Vec<u8>> {
        std::mem::take(&mut self.records)
    }

    fn record_lookups(&mut self, records: bool) {
        self.machine.maps.lookups = records.then(Vec::new);
    }

    fn take_lookups(&mut self) -> Vec<ExecutorLookup> {
        let Some(lookups) = self.machine.maps.lookups.as_mut().map(std::mem::take) else { return Vec::new() };
        let named = |lookup: MapLookup| {
            let map = self.maps.iter().find(|(_, id)| **id == lookup.map).map(|(map, _)| *map)?;
            Some(ExecutorLookup { map, key: lookup.key, value: lookup.value })
        };
        lookups.into_iter().filter_map(named).collect()
    }
}

//! The kernel as an engine of a switch: packets go through the loaded program by test runs.
//!
//! The whole program runs, with its traffic manager. The kernel has no frame that is shorter than its link
//! layer header, before or after a program. So frames that are shorter than those of Ethernet go through the
//! code of the TC program as a program of type `lwt_xmit`, whose packets begin behind that header.

use std::collections::BTreeMap;

use millstream_ir::{Func, Map};
use millstream_kernel::{
    AttachType, KernelError, KernelMap, KernelProgram, ProgramType, RingBuffer, TestRun, UpdateMode,
};
use millstream_loader::{Error as LoadError, ObjectLoader};
use millstream_object::{Object, ObjectError};
use millstream_p4_lower::Pipeline;
use millstream_p4_switch::{ExecutorError, SentPacket, SwitchExecutor};
use rustc_hash::FxHashMap;

use crate::build::KernelObject;
use crate::error::ENOENT;
use crate::hook::KernelHook;
use crate::memory::{DECIDED_NO_FRAME, DECIDED_PORT, RECORD_DECIDED, RECORD_PORT};
use crate::tuple_table::TupleTable;

/// Bytes of a link layer header: the shortest frame (`ETH_HLEN`).
const LINK_HEADER: usize = 14;
/// Shortest frame of Ethernet, without its checksum (`ETH_ZLEN`).
const ETHERNET_FRAME: usize = 60;
/// Ports that have a device: of test runs, all have the same.
const TEST_PORTS: u32 = 512;
/// Indexes of the interface of test runs: loopback, and none.
const TEST_INTERFACES: [u32; 2] = [0, 1];
/// Bytes by which a packet may grow.
const GROWTH: usize = 1024;

/// Reason why the kernel does not run a program.
#[derive(Debug, thiserror::Error)]
pub enum KernelExecutorError {
    /// The object cannot be read.
    #[error(transparent)]
    Object(#[from] ObjectError),
    /// The object cannot be loaded: the verifier rejects the program, or bpf(2) is not permitted.
    #[error(transparent)]
    Load(#[from] Box<LoadError>),
    /// A map cannot be used.
    #[error(transparent)]
    Kernel(#[from] KernelError),
    /// The object lacks its program or a map.
    #[error("the object has no `{0}`")]
    Missing(String),
}

impl KernelExecutorError {
    /// Returns true if the process may not use bpf(2).
    pub fn is_not_permitted(&self) -> bool {
        let error = match self {
            KernelExecutorError::Kernel(error) => error,
            KernelExecutorError::Load(error) => match &**error {
                LoadError::Kernel(error) => error,
                _ => return false,
            },
            _ => return false,
        };
        error.errno() == Some(EPERM)
    }
}

/// A program in the kernel.
pub struct KernelExecutor {
    object: KernelObject,
    program: KernelProgram,
    /// The same code for frames without a link layer header.
    headless: Option<KernelProgram>,
    maps: FxHashMap<Map, KernelMap>,
    tables: BTreeMap<Map, TupleTable>,
    events: Option<RingBuffer>,
    lacked_frame: bool,
}

impl KernelExecutor {
    /// Loads an object.
    ///
    /// # Errors
    /// [`KernelExecutorError`].
    pub fn load(object: KernelObject, pipeline: &Pipeline) -> Result<KernelExecutor, KernelExecutorError> {
        let parsed = Object::parse("p4.o", &object.bytes)?;
        let loaded = ObjectLoader::new(&parsed).load().map_err(Box::new)?;
        let mut maps = FxHashMap::default();
        for (map, name) in &object.names {
            let found = loaded.session.map_by_name(name);
            let found = found.ok_or_else(|| KernelExecutorError::Missing(name.clone()))?;
            maps.insert(*map, found.try_clone()?);
        }
        let headless = match object.hook {
            KernelHook::Xdp => None,
            KernelHook::Tc => Some(load_headless(&parsed, &object, &maps)?),
        };
        let program = loaded.programs.into_iter().next().map(|(_, program)| program);
        let program = program.ok_or_else(|| KernelExecutorError::Missing(object.program.clone()))?;
        let events = match pipeline.events.and_then(|map| maps.get(&map)) {
            Some(map) => Some(map.ring_buffer()?),
            None => None,
        };
        let tables = object.tuples.iter().map(|(map, tuple)| {
            (*map, TupleTable::new(*tuple, pipeline.tables.iter().find(|table| table.map == *map)))
        });
        let tables = tables.collect();
        let executor =
            KernelExecutor { program, headless, maps, tables, events, object, lacked_frame: false };
        executor.add_devices()?;
        Ok(executor)
    }

    fn add_devices(&self) -> Result<(), KernelError> {
        let Some(devices) = self.maps.get(&self.object.devices) else { return Ok(()) };
        for port in 0..TEST_PORTS {
            devices.update(&port.to_le_bytes(), &1u32.to_le_bytes(), UpdateMode::Any)?;
        }
        Ok(())
    }

    /// Returns true if a packet was dropped because the kernel makes no frame of its new length: XDP has none
    /// of less than 14 bytes, and limits growth.
    pub fn has_lacked_frame(&self) -> bool {
        self.lacked_frame
    }

    fn map(&self, map: Map) -> Result<&KernelMap, ExecutorError> {
        self.maps.get(&map).ok_or(ExecutorError::NoMap(map))
    }

    /// Runs a packet, and gives what leaves.
    fn run_packet(&mut self, port: u64, packet: &[u8]) -> Result<Vec<SentPacket>, ExecutorError> {
        let fault = |error: KernelError| ExecutorError::Fault(error.to_string());
        let port =
            u32::try_from(port).map_err(|_| ExecutorError::Fault(format!("there is no port {port}")))?;
        let ports = self.map(self.object.ports)?;
        for index in TEST_INTERFACES {
            ports.update(&index.to_le_bytes(), &port.to_le_bytes(), UpdateMode::Any).map_err(fault)?;
        }
        let memory = self.map(self.object.memory.map)?;
        let empty = vec![0; memory.info().value_size as usize];
        memory.update_all_cpus(&[0; 4], &empty, UpdateMode::Any).map_err(fault)?;
        let (program, header) = match &self.headless {
            Some(headless) if packet.len() < ETHERNET_FRAME => (headless, LINK_HEADER),
            _ if packet.len() >= LINK_HEADER => (&self.program, 0),
            _ => {
                let message = format!("a frame of {} bytes: XDP takes {LINK_HEADER} at least", packet.len());
                return Err(ExecutorError::Fault(message));
            }
        };
        let mut data = vec![0; header];
        data.extend_from_slice(packet);
        let run = TestRun { data: &data, data_room: data.len() + GROWTH, ..TestRun::default() };
        let output = program.test_run(&run).map_err(fault)?;
        let data = output.data.get(header..).unwrap_or_default().to_vec();
        let sends: &[u32] = match self.object.hook {
            KernelHook::Xdp => &[2, 3, 4],
            KernelHook::Tc => &[0, 7],
        };
        match (self.decision()?, sends.contains(&output.retval)) {
            (Some((DECIDED_PORT, port)), true) => Ok(vec![SentPacket { port: u64::from(port), data }]),
            (Some((DECIDED_PORT, port)), false) => {
                Err(ExecutorError::Fault(format!("there is no device for port {port}")))
            }
            (Some((decision, _)), _) => {
                self.lacked_frame |= decision == DECIDED_NO_FRAME;
                Ok(Vec::new())
            }
            (None, _) => Ok(Vec::new()),
        }
    }

    /// Decision about the last packet, with its port.
    fn decision(&self) -> Result<Option<(u32, u32)>, ExecutorError> {
        let memory = self.map(self.object.memory.map)?;
        let values = memory.lookup(&[0; 4]).map_err(|error| ExecutorError::Fault(error.to_string()))?;
        let values = values.unwrap_or_default();
        let word = |bytes: &[u8], offset: u32| {
            let from = (self.object.memory.record + offset) as usize;
            let word = bytes.get(from..from + 4)?.first_chunk()?;
            Some(u32::from_le_bytes(*word))
        };
        let size = (memory.info().value_size as usize).next_multiple_of(8);
        let mut decisions =
            values.chunks(size).filter_map(|value| word(value, RECORD_DECIDED).zip(word(value, RECORD_PORT)));
        Ok(decisions.find(|(decision, _)| *decision != 0))
    }
}

/// Loads the code for frames without a link layer header, with the same maps.
fn load_headless(
    parsed: &Object,
    object: &KernelObject,
    maps: &FxHashMap<Map, KernelMap>,
) -> Result<KernelProgram, KernelExecutorError> {
    let mut loader = ObjectLoader::new(parsed);
    for (map, name) in &object.names {
        if let Some(map) = maps.get(map) {
            loader = loader.reuse_map(name, map.try_clone()?).map_err(Box::new)?;
        }
    }
    let name = parsed.programs.first().map_or("", |program| program.name.as_str());
    let loader = loader.program_type(name, ProgramType::LWT_XMIT, AttachType(0)).map_err(Box::new)?;
    let loaded = loader.load().map_err(Box::new)?;
    let program = loaded.programs.into_iter().next().map(|(_, program)| program);
    program.ok_or_else(|| KernelExecutorError::Missing(object.program.clone()))
}

/// Result of an operation of a map.
fn done<T>(result: Result<T, KernelError>) -> Result<T, ExecutorError> {
    result.map_err(|error| match error.errno() {
        Some(number) => ExecutorError::Map(-i64::from(number)),
        None => ExecutorError::Fault(error.to_string()),
    })
}

impl SwitchExecutor for KernelExecutor {
    fn run(&mut self, _: Func, _: &mut Vec<u8>, _: &mut Vec<u8>) -> Result<(), ExecutorError> {
        Err(ExecutorError::Fault("the kernel runs whole programs".to_owned()))
    }

    fn get(&mut self, map: Map, key: &[u8]) -> Option<Vec<u8>> {
        match self.tables.get(&map) {
            Some(table) => {
                let Some(name) = table.kernel_key(key) else { return table.value(key) };
                let mut value = self.maps.get(&table.maps().entries)?.lookup(&name).ok()??;
                value.truncate(table.maps().priority as usize);
                Some(value)
            }
            None => self.maps.get(&map)?.lookup(key).ok()?,
        }
    }

    fn set(&mut self, map: Map, key: &[u8], value: &[u8]) -> Result<(), ExecutorError> {
        match self.tables.get_mut(&map) {
            Some(table) => table.set(&self.maps, key, value),
            None => done(self.map(map)?.update(key, value, UpdateMode::Any)),
        }
    }

    fn delete(&mut self, map: Map, key: &[u8]) -> Result<(), ExecutorError> {
        let removed = match self.tables.get_mut(&map) {
            Some(table) => return table.delete(&self.maps, key),
            None => done(self.map(map)?.delete(key))?,
        };
        if removed { Ok(()) } else { Err(ExecutorError::Map(-i64::from(ENOENT))) }
    }

    fn keys(&mut self, map: Map) -> Vec<Vec<u8>> {
        if let Some(table) = self.tables.get(&map) {
            return table.keys();
        }
        let Some(map) = self.maps.get(&map) else { return Vec::new() };
        let mut keys: Vec<Vec<u8>> = Vec::new();
        while let Ok(Some(key)) = map.next_key(keys.last().map(Vec::as_slice)) {
            keys.push(key);
        }
        keys
    }

    /// The kernel has its own clock.
    fn set_time(&mut self, _: u64) {}

    fn take_records(&mut self) -> Vec<Vec<u8>> {
        let mut records = Vec::new();
        if let Some(events) = &mut self.events {
            events.drain(|record| records.push(record.to_vec()));
        }
        records
    }

    fn forward(&mut self, port: u64, packet: &[u8]) -> Option<Result<Vec<SentPacket>, ExecutorError>> {
        Some(self.run_packet(port, packet))
    }
}

/// Operation not permitted.
const EPERM: i32 = 1;

//! Functions of a pipeline as native code: they are called one by one, with a packet and its state.
//!
//! The state is memory of the caller. Between two functions the caller may change the packet and the state,
//! and decides which function runs next. There is one worker.

use millstream_ir::{Func, Map, Module};

use super::code::{CompiledCode, make_code};
use super::generate::EntryPoints;
use super::{CompileTimings, EngineMaps, NativeError, NativeOptions};
use crate::program::StageCode;
use millstream_native_runtime::helpers;
use millstream_native_runtime::maps::{EINVAL, NativeMap};
use millstream_native_runtime::region::{AddressAllocator, FixedAddressBox};
use millstream_native_runtime::sharing::SeqlockMap;
use millstream_native_runtime::worker::{ClockSource, ProgramEvent, Worker};

/// Failure of a function of a pipeline.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StageError {
    /// The pipeline does not have the function.
    #[error("the pipeline has no function {0}")]
    Missing(Func),
    /// The state is shorter than the functions assume.
    #[error("the state of a packet has {given} bytes, not {wanted}")]
    ShortState {
        /// Bytes that were given.
        given: usize,
        /// Bytes that the functions access.
        wanted: usize,
    },
    /// The function moved the packet's ends out of its buffer.
    #[error("the packet was moved out of its buffer")]
    Bounds,
}

/// Sizes of what functions of a pipeline access.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct StageMemory {
    /// Bytes of a packet's state.
    pub state: usize,
    /// Bytes in front of a packet that functions may extend it to.
    pub headroom: usize,
}

/// Functions of a pipeline, with their maps.
pub struct StageEngine {
    functions: Vec<Func>,
    code: StageCode,
    maps: EngineMaps,
    /// Numbers of the maps that are rings.
    rings: Vec<usize>,
    worker: Box<Worker>,
    memory: StageMemory,
    buffer: Vec<u8>,
    /// Times of compilation.
    pub timings: CompileTimings,
}

impl StageEngine {
    /// Compiles functions that take the state of a packet, its first byte and its end.
    ///
    /// # Errors
    /// [`NativeError`] if something is missing or unsupported.
    pub fn new(
        module: Module,
        functions: &[Func],
        memory: StageMemory,
        options: &NativeOptions,
    ) -> Result<StageEngine, NativeError> {
        let options = &NativeOptions { workers: 1, ..options.clone() };
        let entries = EntryPoints::Stages(functions);
        let made = make_code(module, entries, options, &mut AddressAllocator::Anywhere, None)?;
        let CompiledCode { maps, layout, generated, .. } = made;
        let (addresses, owner) = generated.link()?;
        let code = StageCode::new(&addresses, owner);
        let timings = generated.timings;
        let worker = Box::new(Worker::new(0, options.seed, layout));
        let functions = functions.to_vec();
        let is_ring =
            |map: &Option<FixedAddressBox<SeqlockMap>>| map.as_ref().is_some_and(|map| map.is_ring());
        let rings = maps.iter().enumerate().filter(|(_, map)| is_ring(map)).map(|(at, _)| at).collect();
        Ok(StageEngine { functions, code, maps, rings, worker, memory, buffer: Vec::new(), timings })
    }

    /// Runs a function on a packet and its state; both are changed in place. Returns its result.
    ///
    /// # Errors
    /// [`StageError`]; the packet is then as before.
    pub fn run(&mut self, func: Func, state: &mut [u8], packet: &mut Vec<u8>) -> Result<u64, StageError> {
        let (result, bytes) = self.run_on(func, state, packet)?;
        packet.clear();
        packet.extend_from_slice(bytes);
        Ok(result)
    }

    /// Runs a function on a packet and its state, which is changed in place. Returns its result, and the packet as
    /// the function left it.
    ///
    /// # Errors
    /// [`StageError`].
    pub fn run_on(
        &mut self,
        func: Func,
        state: &mut [u8],
        packet: &[u8],
    ) -> Result<(u64, &[u8]), StageError> {
        let at = self.functions.iter().position(|known| *known == func);
        let at = at.ok_or(StageError::Missing(func))?;
        let StageMemory { state: wanted, headroom } = self.memory;
        if state.len() < wanted {
            return Err(StageError::ShortState { given: state.len(), wanted });
        }
        // A function writes what it extends a packet by, so that the room in front needs no zeros.
        self.buffer.resize(headroom, 0);
        self.buffer.extend_from_slice(packet);
        let moved = self.code.run(at, &mut self.worker, state, &mut self.buffer, headroom);
        self.worker.stream.records.clear();
        for ring in &self.rings {
            if let Some(Some(map)) = self.maps.get_mut(*ring) {
                map.get_mut().quiesce();
            }
        }
        let (result, range) = moved.ok_or(StageError::Bounds)?;
        Ok((result, self.buffer.get(range).ok_or(StageError::Bounds)?))
    }

    fn map(&mut self, map: Map) -> Option<&mut NativeMap> {
        let map: Option<&mut FixedAddressBox<SeqlockMap>> =
            self.maps.get_mut(map.as_u32() as usize).and_then(Option::as_mut);
        map.map(|map| map.get_mut())
    }

    /// A value of a map.
    pub fn get(&mut self, map: Map, key: &[u8]) -> Option<Vec<u8>> {
        self.map(map)?.get(key)
    }

    /// Inserts or replaces a value; returns 0 or the kernel's error number.
    pub fn set(&mut self, map: Map, key: &[u8], value: &[u8]) -> i64 {
        self.changed(map, |map| map.update(key, value, 0, None))
    }

    /// Removes a value; returns 0 or the kernel's error number.
    pub fn delete(&mut self, map: Map, key: &[u8]) -> i64 {
        self.changed(map, |map| map.delete(key))
    }

    /// Changes a map while no function runs, so that replaced values may be reused at once.
    fn changed(&mut self, map: Map, change: impl FnOnce(&mut NativeMap) -> i64) -> i64 {
        self.map(map).map_or(EINVAL, |map| map.change(change))
    }

    /// All keys of a map.
    pub fn keys(&mut self, map: Map) -> Vec<Vec<u8>> {
        self.map(map).map_or_else(Vec::new, |map| map.keys())
    }

    /// Sets the clock that functions read, in nanoseconds.
    pub fn set_time(&mut self, nanoseconds: u64) {
        self.worker.clock = ClockSource::Fixed(nanoseconds);
        helpers::tick(&mut self.worker);
    }

    /// Takes the records that functions have put into rings since the last call.
    pub fn take_events(&mut self) -> Vec<ProgramEvent> {
        std::mem::take(&mut self.worker.stream.events)
    }
}

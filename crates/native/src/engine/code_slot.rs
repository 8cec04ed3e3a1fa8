//! Specialised code beside an engine's program: installed and withdrawn while workers run.
//!
//! The specializer has a [`CodeSlot`] of the engine and no other access to it. A worker looks at the slot
//! when its batch begins, so that a swap needs no halt: the worker's next batch runs the new code, and packets in
//! flight are not affected. Code that a worker may still run is kept.
//!
//! Now and then a worker runs two batches by the engine's own program, and times the second one, and one of the
//! specialised code's in the same way. From these times follows whether the code still pays.
//!
//! Invariant: specialised code is not run once the epoch of its tables has changed (`runtime::table_watch`).

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rustc_hash::FxHashMap;

use super::packet_sampler::PacketSampler;
use super::variant::{InstallError, VariantBuilder, VariantCode};
use super::{NativeEngine, WorkerState};
use crate::prefetch::PrefetchTuner;
use crate::program::NativeProgram;
use millstream_native_runtime::packet::PacketBatch;
use millstream_native_runtime::table_watch::{TableWatch, TableWrites, WatchHandle};

/// Batches of specialised code, of which one is timed, and one batch of the program is.
const TRIAL_PERIOD: u32 = 256;
/// Batches of fewer packets are too noisy to be timed.
const LEAST_TIMED: usize = 8;
/// Times of each code that are kept.
const MOST_TIMES: usize = 256;

/// Times of batches, in picoseconds per packet: of the program, and of the specialised code beside it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TrialTimes {
    /// Of the engine's own program.
    pub program: Vec<u32>,
    /// Of the specialised code.
    pub variant: Vec<u32>,
}

/// Place for specialised code of one engine.
#[derive(Debug)]
pub struct CodeSlot {
    watch: Arc<TableWatch>,
    builder: Arc<VariantBuilder>,
    /// Grows whenever code is installed or withdrawn.
    generation: AtomicU64,
    installed: Mutex<Option<InstalledCode>>,
    retired: Mutex<Vec<Arc<VariantCode>>>,
    sampler: PacketSampler,
    times: Mutex<[VecDeque<u32>; 2]>,
}

/// Code, and the epoch for which it may run.
#[derive(Clone, Debug)]
struct InstalledCode {
    code: Arc<VariantCode>,
    epoch: u64,
}

/// State of a worker for specialised code.
#[derive(Debug, Default)]
pub(crate) struct WorkerCode {
    generation: u64,
    current: Option<InstalledCode>,
    tuner: PrefetchTuner,
    turn: u32,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl CodeSlot {
    /// Compiler of code for this slot.
    pub fn builder(&self) -> &Arc<VariantBuilder> {
        &self.builder
    }

    /// Takes the writes to watched tables since the last call, by number of the map, and the versions of all maps
    /// behind them.
    pub fn take_writes(&self) -> (FxHashMap<usize, TableWrites>, Vec<u64>) {
        self.watch.take_writes()
    }

    /// Has workers run this code from their next batch on, as long as nobody writes these tables, whose contents
    /// were read at these versions. It takes the place of code that was installed before.
    ///
    /// # Errors
    /// If a table has been written since, or the code is another engine's; then no code is installed.
    pub fn install(&self, code: Arc<VariantCode>, tables: &[(usize, u64)]) -> Result<(), InstallError> {
        self.withdraw();
        if !code.is_of(&self.builder) {
            return Err(InstallError::Foreign);
        }
        let mut installed = lock(&self.installed);
        let epoch = self.watch.assume(tables).map_err(InstallError::Stale)?;
        *installed = Some(InstalledCode { code, epoch });
        self.generation.fetch_add(1, Ordering::Release);
        Ok(())
    }

    /// Has workers run the engine's own program from their next batch on.
    pub fn withdraw(&self) {
        let mut installed = lock(&self.installed);
        self.watch.release();
        if let Some(InstalledCode { code, .. }) = installed.take() {
            lock(&self.retired).push(code);
            self.generation.fetch_add(1, Ordering::Release);
        }
        drop(installed);
        *lock(&self.times) = Default::default();
        // Unloading takes longer than a batch: it is not left to workers.
        lock(&self.retired).retain(|code| Arc::strong_count(code) > 1);
    }

    /// Returns true if code is installed and may run.
    pub fn is_specialized(&self) -> bool {
        lock(&self.installed).as_ref().is_some_and(|installed| installed.epoch == self.watch.epoch())
    }

    /// Returns true if code was installed, and has ended because a table was written.
    pub fn is_stale(&self) -> bool {
        lock(&self.installed).as_ref().is_some_and(|installed| installed.epoch != self.watch.epoch())
    }

    /// Copies of packets for the specializer.
    pub fn sampler(&self) -> &PacketSampler {
        &self.sampler
    }

    /// Times of the code that is installed, and of the program meanwhile: the latest ones.
    pub fn trial_times(&self) -> TrialTimes {
        let [program, variant] = &*lock(&self.times);
        TrialTimes { program: program.iter().copied().collect(), variant: variant.iter().copied().collect() }
    }

    /// Runs a batch of this many packets: by specialised code if there is some that may run, otherwise by the
    /// program. Code with a schedule of its own gets as many packets at once as that says.
    pub(super) fn run(
        &self,
        program: &NativeProgram,
        lane: &mut WorkerState,
        packets: usize,
        mut run: impl FnMut(&NativeProgram, &mut WorkerState, Option<u32>),
    ) {
        let mut own = std::mem::take(&mut lane.code);
        own.follow(self);
        match own.current.as_ref().filter(|current| current.epoch == self.watch.epoch()) {
            None => run(program, lane, None),
            Some(current) => {
                let VariantCode { program: variant, batch, .. } = &*current.code;
                let turn = own.turn;
                own.turn = (turn + 1) % TRIAL_PERIOD;
                // The first batch of two brings the code into the caches.
                match turn {
                    0 => run(program, lane, None),
                    1 => self.timed(0, packets, || run(program, lane, None)),
                    _ => {
                        std::mem::swap(&mut lane.judge, &mut own.tuner);
                        match turn {
                            3 => self.timed(1, packets, || run(variant, lane, *batch)),
                            _ => run(variant, lane, *batch),
                        }
                        std::mem::swap(&mut lane.judge, &mut own.tuner);
                    }
                }
            }
        }
        lane.code = own;
    }

    /// Runs a batch and keeps its time.
    fn timed(&self, which: usize, packets: usize, run: impl FnOnce()) {
        let start = Instant::now();
        run();
        let took = start.elapsed();
        let Ok(mut times) = self.times.try_lock() else { return };
        if packets >= LEAST_TIMED {
            times[which].push_back(picoseconds(took, packets));
            if times[which].len() > MOST_TIMES {
                times[which].pop_front();
            }
        }
    }
}

fn picoseconds(took: Duration, packets: usize) -> u32 {
    u32::try_from(took.as_nanos() as u64 * 1000 / packets as u64).unwrap_or(u32::MAX)
}

impl WorkerCode {
    /// Takes the code that is installed now.
    fn follow(&mut self, slot: &CodeSlot) {
        let generation = slot.generation.load(Ordering::Acquire);
        if self.generation != generation {
            let current = lock(&slot.installed).clone();
            *self = WorkerCode { generation, current, ..WorkerCode::default() };
        }
    }
}

/// Contents of maps, as [`NativeEngine::copy_contents`] returns them: by number of the map, keys and values of
/// the first worker.
pub type CopiedContents = Vec<(usize, Vec<(Vec<u8>, Vec<u8>)>)>;

impl NativeEngine {
    /// Prepares the engine for specialised code; the maps of these numbers are followed, which no program may
    /// write. `None` if it was not compiled for that.
    pub fn open_code_slot(&mut self, followed: &[usize]) -> Option<Arc<CodeSlot>> {
        let builder = Arc::clone(self.variants.as_ref().filter(|builder| builder.is_for_installation())?);
        let watch = Arc::new(TableWatch::new(self.maps.len()));
        for (at, map) in self.maps.iter_mut().enumerate() {
            if let Some(map) = map.as_mut().filter(|_| followed.contains(&at)) {
                map.get_mut().follow(WatchHandle { watch: Arc::clone(&watch), at });
            }
        }
        let slot = Arc::new(CodeSlot {
            watch,
            builder,
            generation: AtomicU64::new(0),
            installed: Mutex::default(),
            retired: Mutex::default(),
            sampler: PacketSampler::default(),
            times: Mutex::default(),
        });
        self.slot = Some(Arc::clone(&slot));
        Some(slot)
    }

    /// Copies the contents of all maps that have keys and hold no addresses, of arrays without values that are zero;
    /// `None` if there are more entries than `most`.
    pub fn copy_contents(&mut self, most: usize) -> Option<CopiedContents> {
        let mut left = most;
        let mut all = Vec::new();
        for (at, map) in self.maps.iter_mut().enumerate() {
            let Some(map) = map.as_mut().map(|map| map.get_mut()).filter(|map| !map.holds_addresses()) else {
                continue;
            };
            let (size, keys, is_array) = (map.value_size(), map.keys(), map.is_array());
            let mut entries = Vec::new();
            for key in keys {
                let Some(mut value) = map.get(&key) else { continue };
                value.truncate(size);
                if !is_array || value.iter().any(|byte| *byte != 0) {
                    left = left.checked_sub(1)?;
                    entries.push((key, value));
                }
            }
            all.push((at, entries));
        }
        Some(all)
    }

    /// Sets entries of a map, by its number; `None` removes one.
    pub fn apply_entries<'e>(
        &mut self,
        map: usize,
        entries: impl IntoIterator<Item = (&'e [u8], Option<&'e [u8]>)>,
    ) {
        let Some(map) = self.maps.get_mut(map).and_then(Option::as_mut).map(|map| map.get_mut()) else {
            return;
        };
        for (key, value) in entries {
            match value {
                Some(value) => map.update(key, value, 0, None),
                None => map.delete(key),
            };
        }
        map.quiesce();
    }

    /// Runs code that was compiled for this engine's maps once, as [`NativeEngine::run`] runs its program, or as
    /// [`NativeEngine::run_graph`] does.
    ///
    /// # Errors
    /// If the code is another engine's.
    pub fn run_variant(
        &mut self,
        code: &VariantCode,
        batch: &mut PacketBatch,
        is_graph: bool,
    ) -> Result<(), InstallError> {
        let is_own = self.variants.as_ref().is_some_and(|own| code.is_of(own));
        if !is_own || code.layout != self.layout {
            return Err(InstallError::Foreign);
        }
        let (maps, epochs, lane) = (&self.maps, &self.epochs, &mut self.lane);
        match is_graph {
            true => super::run_graph((&code.program, None), maps, epochs, lane, batch),
            false => super::run((&code.program, None), maps, epochs, lane, batch),
        }
        Ok(())
    }
}

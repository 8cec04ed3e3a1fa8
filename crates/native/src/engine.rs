//! An XDP object as native code: maps, code, a worker; in this process, or ahead of time for another
//! ([`crate::image`]).

use std::sync::Arc;
use std::time::{Duration, Instant};

use millstream_bpf::module::lift_program;
use millstream_ir::{Func, Map, Module};
use millstream_object::Object;

use crate::classifier::ClassifierTemplate;
use crate::emit::{BATCH, ProgramExport};
use crate::error::NativeError;
use crate::image::table::LinkedCode;
use crate::image::{
    self, CodegenCpu, ImageLoadError, ImageMapSpec, InitialMapEntry, InitialMapValue, NativeImage,
};
use crate::prefetch::PrefetchTuner;
use crate::program::{CodeOwner, NativeProgram};
use crate::run_stats::{GraphRunStats, RunStats};
use crate::templates::TableTemplate;
use crate::traversal_cache;
use crate::worker_stats::{LatencySampler, WorkerStats};
use millstream_native_runtime::helpers;
use millstream_native_runtime::index::HashTemplate;
use millstream_native_runtime::lpm::LpmTemplate;
use millstream_native_runtime::lpm::template_choice::PrefixStats;
use millstream_native_runtime::maps::{InlineLookup, NativeMap};
use millstream_native_runtime::packet::{DescriptorLayout, LayoutPolicy, PacketBatch};
use millstream_native_runtime::region::{AREAS, AddressAllocator, ExternalMemory, FixedAddressBox};
use millstream_native_runtime::sharing::SeqlockMap;
use millstream_native_runtime::worker::{ClockSource, ProgramEvent, RecordListener, Worker};
use millstream_native_runtime::worker_epochs::WorkerEpochs;
use millstream_plan::{CompiledSchedule, Schedule};

mod code;
mod code_slot;
mod generate;
mod packet_sampler;
mod stages;
mod threads;
mod variant;

pub use code_slot::{CodeSlot, CopiedContents, TrialTimes};
pub use generate::VariantSupport;
pub use packet_sampler::{PacketSampler, SampledPacket};
pub use stages::{StageEngine, StageError, StageMemory};
pub use variant::{InstallError, VariantBuilder, VariantCode, VariantOptions};

use code::{CompiledCode, choose, layout, make_code, make_maps, places, reached_order};
use code_slot::WorkerCode;
use generate::{EntryPoints, GeneratedCode};

/// LLVM's default passes: those that still pay after ours, in half of the time that `default<O2>` takes.
const PASSES: &str = "always-inline,inline,globaldce,function(sroa,early-cse<memssa>,simplifycfg,\
    instcombine<no-verify-fixpoint>,jump-threading,simplifycfg,gvn,instcombine<no-verify-fixpoint>,\
    loop-mssa(licm),dse,simplifycfg)";

/// Facts about a program that its code does not say.
#[derive(Clone, Debug, Default)]
pub struct ProgramFacts {
    /// Prefixes that tries will hold, by name, if known.
    pub prefixes: Vec<(String, PrefixStats)>,
    /// Maximum number of copies that a packet of a graph becomes, for which room is reserved; 0 if unknown.
    pub copies: u32,
    /// Names of the source places in instructions' line records, for crash reports; those of objects are
    /// known without this.
    pub places: Vec<String>,
}

/// Code of look-ups.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LookupCode {
    /// They are inlined if possible; otherwise they are calls.
    pub inline: bool,
    /// Variants may have caches of traversals, for which there is memory from the start.
    pub traversals: bool,
}

/// Options of compilation.
#[derive(Clone, Debug)]
pub struct NativeOptions {
    /// Passes on the IR before LLVM sees it.
    pub passes: bool,
    /// Names of passes to skip.
    pub left_out: Vec<String>,
    /// Code of look-ups.
    pub lookups: LookupCode,
    /// LLVM's passes, as `opt -passes=` takes them.
    pub llvm_passes: String,
    /// Order of packets and stages, and fetching ahead.
    pub schedule: Schedule,
    /// Keeps the text of LLVM's IR, before and after its passes.
    pub keep_text: bool,
    /// Pinned templates of hash tables, by name.
    pub tables: Vec<(String, HashTemplate)>,
    /// Pinned templates of tries, by name.
    pub tries: Vec<(String, LpmTemplate)>,
    /// Pinned templates of classifiers (match tables), by name.
    pub classifiers: Vec<(String, ClassifierTemplate)>,
    /// Facts about the program that its code does not say.
    pub facts: ProgramFacts,
    /// Arrays, by name, whose values are in shared memory. They do not get their initial contents.
    pub lent: Vec<(String, ExternalMemory)>,
    /// Layout of packets' descriptors.
    pub descriptors: LayoutPolicy,
    /// Number of workers that run the code at once, each on packets of its own.
    pub workers: u32,
    /// Seed of hash functions and `bpf_get_prandom_u32`.
    pub seed: u64,
    /// Target processor.
    pub cpu: CodegenCpu,
    /// More code for the same maps, for which what it needs is kept.
    pub variants: VariantSupport,
}

impl NativeOptions {
    /// The same for a program with these source places.
    fn with_places(&self, places: Vec<String>) -> NativeOptions {
        let mut options = self.clone();
        options.facts.places = places;
        options
    }
}

impl Default for NativeOptions {
    fn default() -> NativeOptions {
        NativeOptions {
            passes: true,
            left_out: Vec::new(),
            lookups: LookupCode { inline: true, traversals: true },
            llvm_passes: PASSES.into(),
            schedule: Schedule::default(),
            keep_text: false,
            tables: Vec::new(),
            tries: Vec::new(),
            classifiers: Vec::new(),
            facts: ProgramFacts::default(),
            lent: Vec::new(),
            descriptors: LayoutPolicy::default(),
            workers: 1,
            seed: 1,
            cpu: CodegenCpu::default(),
            variants: VariantSupport::None,
        }
    }
}

/// Options of code that others link.
#[derive(Clone, Copy)]
pub struct ExportOptions<'l> {
    /// The public symbol.
    pub symbol: &'l str,
    /// Makes the description that is stored with the code.
    pub describe: &'l dyn Fn(&NativeImage) -> Vec<u8>,
}

impl ExportOptions<'_> {
    /// Area of its maps: programs of different names are likely to be loaded together.
    fn area(&self) -> u8 {
        let hash =
            self.symbol.bytes().fold(0u32, |hash, byte| hash.wrapping_mul(31).wrapping_add(u32::from(byte)));
        // The first one is for executables.
        1 + (hash % u32::from(AREAS - 1)) as u8
    }
}

/// Times of compilation.
#[derive(Clone, Copy, Debug, Default)]
pub struct CompileTimings {
    /// Bytecode to IR.
    pub lift: Duration,
    /// Passes on the IR.
    pub passes: Duration,
    /// IR to LLVM's IR.
    pub emit: Duration,
    /// LLVM, to machine code, without the time to load the library.
    pub llvm: Duration,
    /// Linking into the process.
    pub link: Duration,
    /// Bytes of the object file with the machine code.
    pub bytes: usize,
}

/// Text of LLVM's IR.
#[derive(Clone, Debug, Default)]
pub struct LlvmIrText {
    /// Input of LLVM's passes.
    pub before: String,
    /// Output of LLVM's passes.
    pub after: String,
}

/// A program with its maps, ready to run.
pub struct NativeEngine {
    program: NativeProgram,
    maps: EngineMaps,
    epochs: Arc<WorkerEpochs>,
    /// State of the first worker.
    lane: WorkerState,
    board: Arc<WorkerStats>,
    seed: u64,
    layout: DescriptorLayout,
    listener: Option<RecordListener>,
    variants: Option<Arc<VariantBuilder>>,
    slot: Option<Arc<CodeSlot>>,
    sampler: Arc<PacketSampler>,
    /// Times of its compilation.
    pub timings: CompileTimings,
    /// Templates of its hash tables, tries and classifiers.
    pub templates: Vec<TableTemplate>,
    /// Order of packets and stages.
    pub schedule: CompiledSchedule,
    /// LLVM's IR, if asked for.
    pub texts: Option<LlvmIrText>,
}

/// State of one worker.
pub struct WorkerState {
    pub(crate) worker: Box<Worker>,
    /// Chooses between the loops over a batch.
    pub(crate) judge: PrefetchTuner,
    /// Board on which it publishes its numbers.
    board: Arc<WorkerStats>,
    sampler: LatencySampler,
    /// Specialised code that it runs.
    code: WorkerCode,
    /// Number of writes to tables that its caches of traversals have seen.
    table_writes: u64,
}

impl WorkerState {
    fn new(number: u32, seed: u64, layout: DescriptorLayout, board: &Arc<WorkerStats>) -> WorkerState {
        let seed = seed.wrapping_add(u64::from(number));
        let (worker, judge) = (Box::new(Worker::new(number, seed, layout)), PrefetchTuner::default());
        let (sampler, code) = (LatencySampler::default(), WorkerCode::default());
        WorkerState { worker, judge, board: Arc::clone(board), sampler, code, table_writes: 0 }
    }

    /// Publishes the worker's numbers so far.
    pub fn publish_worker_stats(&self, ran: &RunStats) {
        self.board.publish(self.worker.number, &ran.account, ran.busy);
    }

    /// The same for a graph's packets.
    pub fn publish_worker_graph_stats(&self, ran: &GraphRunStats) {
        self.board.publish(self.worker.number, &ran.account(), ran.busy);
    }

    /// The current time, if the latency of this batch is sampled.
    pub fn stamp(&mut self) -> Option<Instant> {
        self.sampler.next().then(Instant::now)
    }

    /// Records that all packets of a batch that began at `stamp` are done.
    pub fn done(&self, stamp: Option<Instant>, packets: u64) {
        if let Some(begun) = stamp {
            self.board.record_latency(self.worker.number, packets, begun.elapsed());
        }
    }

    /// Takes the records that programs have put into rings since the last call.
    pub fn take_events(&mut self) -> Vec<ProgramEvent> {
        std::mem::take(&mut self.worker.stream.events)
    }
}

/// Maps by number; `None` for those of unsupported types.
type EngineMaps = Vec<Option<FixedAddressBox<SeqlockMap>>>;

impl NativeEngine {
    /// Compiles an XDP program of an object, by name or the only one, with the programs that tail calls can
    /// reach.
    ///
    /// # Errors
    /// [`NativeError`] if something is missing or unsupported.
    pub fn of_object(
        object: &Object,
        program: Option<&str>,
        options: &NativeOptions,
    ) -> Result<NativeEngine, NativeError> {
        let start = Instant::now();
        let entry = choose(object, program)?;
        let lifted = lift_program(object, entry)?;
        let lift = start.elapsed();
        let options = &options.with_places(places(object, &lifted));
        let mut engine = NativeEngine::of_module(lifted.module, entry, options)?;
        engine.timings.lift = lift;
        let initial = image::initial(object, &reached_order(object));
        engine.fill(&initial)?;
        if let Some(variants) = engine.variants.as_mut().and_then(Arc::get_mut) {
            variants.add_initial(&initial);
        }
        Ok(engine)
    }

    /// As [`NativeEngine::of_object`], ahead of time: for [`NativeEngine::of_image`] in another process.
    ///
    /// # Errors
    /// As there, and if the code cannot be linked.
    pub fn build_object(
        object: &Object,
        program: Option<&str>,
        options: &NativeOptions,
    ) -> Result<NativeImage, NativeError> {
        let entry = choose(object, program)?;
        let lifted = lift_program(object, entry)?;
        let options = &options.with_places(places(object, &lifted));
        let mut image = NativeEngine::build_module(lifted.module, entry, options)?;
        image.initial.extend(image::initial(object, &reached_order(object)));
        Ok(image)
    }

    /// Compiles a function of a module that takes a context and returns a verdict.
    ///
    /// # Errors
    /// As for [`NativeEngine::of_object`].
    pub fn of_module(
        module: Module,
        entry: Func,
        options: &NativeOptions,
    ) -> Result<NativeEngine, NativeError> {
        let entries = EntryPoints::Batch(entry);
        let made = make_code(module, entries, options, &mut AddressAllocator::Anywhere, None)?;
        let CompiledCode { maps, epochs, initial, layout, templates, mut generated, variants, .. } = made;
        let program = generated.link_program()?;
        let mut engine = NativeEngine::new(program, maps, epochs, options.seed, layout);
        engine.fill(&initial)?;
        let variants = variants.map(|source| VariantBuilder::new(source, entry, options.clone()));
        let GeneratedCode { timings, texts, schedule, .. } = generated;
        Ok(NativeEngine { timings, texts, templates, schedule, variants: variants.map(Arc::new), ..engine })
    }

    /// Layout of packets' descriptors, as [`NativeEngine::layout`], without compiling the program.
    ///
    /// # Errors
    /// If a pass fails, or there is no memory for a map.
    pub fn layout_of_module(
        module: Module,
        entry: Func,
        options: &NativeOptions,
    ) -> Result<DescriptorLayout, NativeError> {
        layout(module, entry, options)
    }

    /// As [`NativeEngine::of_module`], ahead of time: for [`NativeEngine::of_image`] in another process.
    ///
    /// # Errors
    /// As there, and if the code cannot be linked.
    pub fn build_module(
        module: Module,
        entry: Func,
        options: &NativeOptions,
    ) -> Result<NativeImage, NativeError> {
        let (entries, place) = (EntryPoints::Batch(entry), &mut AddressAllocator::fixed(0));
        let CompiledCode { shapes: maps, initial, templates, layout, generated, .. } =
            make_code(module, entries, options, place, None)?;
        let GeneratedCode { object, symbols, loops, names, schedule, .. } = generated;
        let image = NativeImage::link(&object, &symbols, loops, options.cpu)?;
        let (seed, workers) = (options.seed, options.workers);
        Ok(NativeImage { maps, initial, names, templates, schedule, layout, seed, workers, ..image })
    }

    /// As [`NativeEngine::of_module`], as an object file for any linker, with one public symbol: the table
    /// that [`LinkedCode::open`] takes. It contains the result of `describe` for the image; that must include
    /// the image, for [`NativeEngine::of_linked`]. Returns the file, and the image without code.
    ///
    /// # Errors
    /// As there.
    pub fn link_module(
        module: Module,
        entry: Func,
        options: &NativeOptions,
        linkage: &ExportOptions<'_>,
    ) -> Result<(Vec<u8>, NativeImage), NativeError> {
        NativeEngine::linkable(module, entry, options, linkage, Vec::new())
    }

    /// As [`NativeEngine::link_module`], for a program of an object.
    ///
    /// # Errors
    /// As there.
    pub fn link_object(
        object: &Object,
        program: Option<&str>,
        options: &NativeOptions,
        linkage: &ExportOptions<'_>,
    ) -> Result<(Vec<u8>, NativeImage), NativeError> {
        let entry = choose(object, program)?;
        let initial = image::initial(object, &reached_order(object));
        NativeEngine::linkable(lift_program(object, entry)?.module, entry, options, linkage, initial)
    }

    fn linkable(
        module: Module,
        entry: Func,
        options: &NativeOptions,
        linkage: &ExportOptions<'_>,
        initial: Vec<InitialMapEntry>,
    ) -> Result<(Vec<u8>, NativeImage), NativeError> {
        let (area, workers) = (linkage.area(), options.workers);
        let image = NativeImage {
            initial,
            seed: options.seed,
            workers,
            area,
            ..NativeImage::without_code(options.cpu)
        };
        let with = |maps: &[ImageMapSpec], made: &[InitialMapEntry], layout| {
            let initial = [made, &image.initial].concat();
            NativeImage { maps: maps.to_vec(), initial, layout, ..image.clone() }
        };
        let described = |maps: &[ImageMapSpec], made: &[InitialMapEntry], layout| {
            let description = (linkage.describe)(&with(maps, made, layout));
            ProgramExport { symbol: linkage.symbol.to_owned(), description }
        };
        let made = make_code(
            module,
            EntryPoints::Batch(entry),
            options,
            &mut AddressAllocator::fixed(area),
            Some(&described),
        )?;
        Ok((made.generated.object.bytes, with(&made.shapes, &made.initial, made.layout)))
    }

    /// A program whose code was linked into this process, with its maps.
    ///
    /// # Errors
    /// If this machine or this process cannot run it.
    pub fn of_linked(image: &NativeImage, linked: &LinkedCode) -> Result<NativeEngine, NativeError> {
        image.check_cpu_features()?;
        let epochs = Arc::new(WorkerEpochs::new(image.workers));
        let maps = make_maps(&image.maps, image.seed, &epochs, &mut AddressAllocator::fixed(image.area))?;
        let program = NativeProgram::new(&linked.functions, linked.loops, CodeOwner::Own);
        let mut engine = NativeEngine::new(program, maps, epochs, image.seed, image.layout);
        engine.fill(&image.initial)?;
        Ok(engine)
    }

    /// A program that was compiled ahead of time, with its maps.
    ///
    /// # Errors
    /// If this machine or this process cannot run it.
    pub fn of_image(image: &NativeImage) -> Result<NativeEngine, NativeError> {
        let start = Instant::now();
        let place = &mut AddressAllocator::fixed(image.area);
        let epochs = Arc::new(WorkerEpochs::new(image.workers));
        let maps = make_maps(&image.maps, image.seed, &epochs, place)?;
        let (addresses, code) = image.load()?;
        if addresses.len() < image.loops.max(1) || image.loops == 0 {
            return Err(ImageLoadError::Import(BATCH.to_owned()).into());
        }
        let described = image.debug_info(code.address());
        let program = NativeProgram::new(&addresses, image.loops, CodeOwner::Mapped { _code: code })
            .with_debug_info(described);
        let mut engine = NativeEngine::new(program, maps, epochs, image.seed, image.layout);
        engine.fill(&image.initial)?;
        engine.timings.link = start.elapsed();
        engine.templates.clone_from(&image.templates);
        engine.schedule.clone_from(&image.schedule);
        Ok(engine)
    }

    fn new(
        program: NativeProgram,
        maps: EngineMaps,
        epochs: Arc<WorkerEpochs>,
        seed: u64,
        layout: DescriptorLayout,
    ) -> NativeEngine {
        let board = Arc::new(WorkerStats::new(epochs.workers()));
        let lane = WorkerState::new(0, seed, layout, &board);
        NativeEngine {
            program,
            maps,
            epochs,
            lane,
            board,
            seed,
            layout,
            listener: None,
            variants: None,
            slot: None,
            sampler: Arc::default(),
            timings: CompileTimings::default(),
            templates: Vec::new(),
            schedule: CompiledSchedule::default(),
            texts: None,
        }
    }

    /// Maximum number of workers that may run it at once.
    pub fn workers(&self) -> u32 {
        self.epochs.workers()
    }

    /// State of a worker with a number below [`NativeEngine::workers`].
    pub fn worker_state(&self, number: u32) -> WorkerState {
        let mut lane = WorkerState::new(number, self.seed, self.layout, &self.board);
        lane.worker.clock = self.lane.worker.clock;
        lane.worker.stream.listener.clone_from(&self.listener);
        lane
    }

    /// Does something as the first worker.
    pub fn with_own_state<R>(&mut self, act: impl FnOnce(&NativeEngine, &mut WorkerState) -> R) -> R {
        let mut lane =
            std::mem::replace(&mut self.lane, WorkerState::new(0, self.seed, self.layout, &self.board));
        let result = act(self, &mut lane);
        self.lane = lane;
        result
    }

    /// Sets the initial contents of maps.
    fn fill(&mut self, initial: &[InitialMapEntry]) -> Result<(), NativeError> {
        for InitialMapEntry { map, key, value } in initial {
            let address = match value {
                InitialMapValue::Bytes(bytes) => {
                    self.put(*map, key, bytes)?;
                    continue;
                }
                InitialMapValue::Map(inner) => {
                    self.maps.get(*inner).and_then(Option::as_ref).map(FixedAddressBox::address)
                }
                InitialMapValue::Program(at) => self.program.programs.get(*at).copied(),
            };
            if let Some(address) = address {
                self.put(*map, key, &address.to_ne_bytes())?;
            }
        }
        Ok(())
    }

    fn put(&mut self, at: usize, key: &[u8], value: &[u8]) -> Result<(), NativeError> {
        let Some(map) = self.maps.get_mut(at).and_then(Option::as_mut) else { return Ok(()) };
        let map = map.get_mut();
        if map.is_external() {
            return Ok(());
        }
        match map.update(key, value, 0, None) {
            0 => Ok(()),
            errno => Err(NativeError::Initial { map: map.name().to_owned(), key: key.to_vec(), errno }),
        }
    }

    /// Registers a listener for the records of a map as workers make them, for this worker and those that
    /// begin from now on.
    pub fn listen(&mut self, listener: RecordListener) {
        self.lane.worker.stream.listener = Some(listener.clone());
        self.listener = Some(listener);
    }

    /// The map with this name.
    pub fn map(&mut self, name: &str) -> Option<&mut NativeMap> {
        self.maps().find(|map| map.name() == name)
    }

    /// Dependent cache lines that a look-up in a map usually reads, if it is code. Walks through tries are assumed to
    /// end in the middle of an address, as those of IPv6 do.
    pub fn lookup_lines(&mut self, name: &str) -> Option<u32> {
        Some(match self.map(name)?.inline()? {
            InlineLookup::Lpm(layout) => 1 + (layout.bits / 2).saturating_sub(layout.root) / 8,
            InlineLookup::Array { .. } => 1,
            InlineLookup::Hash(_) => 2,
        })
    }

    /// The map with this number in the module that was compiled.
    pub fn map_at(&mut self, map: Map) -> Option<&mut NativeMap> {
        self.maps.get_mut(map.as_u32() as usize)?.as_mut().map(|map| map.get_mut())
    }

    /// All maps.
    pub fn maps(&mut self) -> impl Iterator<Item = &mut NativeMap> {
        self.maps.iter_mut().flatten().map(|map| map.get_mut())
    }

    /// Sets the clock that programs read.
    pub fn set_clock(&mut self, clock: ClockSource) {
        self.lane.worker.clock = clock;
    }

    /// The clock that programs read.
    pub fn clock(&self) -> ClockSource {
        self.lane.worker.clock
    }

    /// The time that programs see now, by the coarse clock.
    pub fn now(&mut self) -> u64 {
        helpers::tick(&mut self.lane.worker);
        self.lane.worker.coarse
    }

    /// Copies the contents of another engine's maps, by name: those of the same kind and size that programs
    /// write, except those in `except`.
    pub fn adopt(&mut self, other: &mut NativeEngine, except: &[&str]) {
        for map in self.maps.iter_mut().flatten().map(|map| map.get_mut()) {
            let name = map.name().to_owned();
            let Some(old) = other.map(&name).filter(|_| !except.contains(&name.as_str())) else { continue };
            if map.is_alike(old) && map.is_written() && !map.holds_addresses() {
                for key in old.keys() {
                    // An entry that finds no room is treated as evicted.
                    if let Some(copies) = old.get(&key) {
                        map.put_copies(&key, &copies);
                    }
                }
            }
        }
        let (own, others) = (&mut self.lane.worker, &mut other.lane.worker);
        (own.clock, own.seed) = (others.clock, others.seed);
        own.stream.events.append(&mut others.stream.events);
        self.board = Arc::clone(&other.board);
        self.lane.board = Arc::clone(&other.board);
        self.sampler = Arc::clone(&other.sampler);
    }

    /// Copies of packets that come one behind the other, for other threads.
    pub fn sampler(&self) -> &Arc<PacketSampler> {
        &self.sampler
    }

    /// Runs the program on every packet of the batch; results are left in the batch.
    pub fn run(&mut self, batch: &mut PacketBatch) {
        self.sampler.sample(batch, self.lane.worker.number);
        let code = (&self.program, self.slot.as_deref());
        run(code, &self.maps, &self.epochs, &mut self.lane, batch);
    }

    /// As [`NativeEngine::run`], by one of several workers.
    pub fn run_by(&self, lane: &mut WorkerState, batch: &mut PacketBatch) {
        self.sampler.sample(batch, lane.worker.number);
        run((&self.program, self.slot.as_deref()), &self.maps, &self.epochs, lane, batch);
    }

    /// Runs a graph on every packet of the batch, which has room for copies; the sent packets are left in the
    /// batch.
    pub fn run_graph(&mut self, batch: &mut PacketBatch) {
        self.sampler.sample(batch, self.lane.worker.number);
        let code = (&self.program, self.slot.as_deref());
        run_graph(code, &self.maps, &self.epochs, &mut self.lane, batch);
    }

    /// As [`NativeEngine::run_graph`], by one of several workers.
    pub fn run_graph_by(&self, lane: &mut WorkerState, batch: &mut PacketBatch) {
        self.sampler.sample(batch, lane.worker.number);
        run_graph((&self.program, self.slot.as_deref()), &self.maps, &self.epochs, lane, batch);
    }

    /// Fields of packets' descriptors that its program accesses, and their layout: for
    /// [`PacketBatch::expect`].
    pub fn layout(&self) -> DescriptorLayout {
        self.layout
    }

    /// Maximum number of packets to give it at once.
    pub fn batch(&self) -> u32 {
        self.schedule.schedule.batch
    }

    /// Numbers of its workers, which may be read while they run.
    pub fn stats(&self) -> &Arc<WorkerStats> {
        &self.board
    }

    /// Publishes the first worker's numbers so far.
    pub fn publish_stats(&self, ran: &RunStats) {
        self.lane.publish_worker_stats(ran);
    }

    /// The same for a graph's packets.
    pub fn publish_graph_stats(&self, ran: &GraphRunStats) {
        self.lane.publish_worker_graph_stats(ran);
    }

    /// As [`WorkerState::stamp`], for the first worker.
    pub fn stamp(&mut self) -> Option<Instant> {
        self.lane.stamp()
    }

    /// As [`WorkerState::done`].
    pub fn done(&self, stamp: Option<Instant>, packets: u64) {
        self.lane.done(stamp, packets);
    }

    /// Takes the records that programs have put into rings since the last call.
    pub fn take_events(&mut self) -> Vec<ProgramEvent> {
        self.lane.take_events()
    }
}

/// The program, and the place for specialised code beside it.
type EngineCode<'e> = (&'e NativeProgram, Option<&'e CodeSlot>);

fn run(
    code: EngineCode<'_>,
    maps: &EngineMaps,
    epochs: &WorkerEpochs,
    lane: &mut WorkerState,
    batch: &mut PacketBatch,
) {
    batch.conform(lane.worker.layout);
    lane.worker.ingress = batch.ingress();
    code.1.iter().for_each(|slot| slot.sampler().sample(batch, lane.worker.number));
    run_packets(code, maps, epochs, lane, batch.packets_mut());
    lane.worker.stream.records.clear();
}

fn run_graph(
    code: EngineCode<'_>,
    maps: &EngineMaps,
    epochs: &WorkerEpochs,
    lane: &mut WorkerState,
    batch: &mut PacketBatch,
) {
    batch.conform(lane.worker.layout);
    lane.worker.ingress = batch.ingress();
    lane.worker.buffer = batch.buffer() as u32;
    code.1.iter().for_each(|slot| slot.sampler().sample(batch, lane.worker.number));
    if lane.worker.stream.listener.is_some() {
        lane.worker.stream.arrivals.clear();
        lane.worker.stream.arrivals.extend_from_slice(batch.arrivals());
        lane.worker.stream.capacity = batch.capacity();
    }
    let (packets, (copies, room), sent) = batch.parts();
    lane.worker.stream.first = packets.as_ptr() as usize;
    let room = room as u64;
    (lane.worker.copies.spare, lane.worker.copies.spares) = (copies.as_mut_ptr(), room);
    (lane.worker.sent, lane.worker.sent_len) = (sent.as_mut_ptr(), 0);
    run_packets(code, maps, epochs, lane, packets);
    let copied = room - lane.worker.copies.spares;
    batch.set_done(lane.worker.sent_len as usize, copied as usize);
}

fn run_packets(
    (program, slot): EngineCode<'_>,
    maps: &EngineMaps,
    epochs: &WorkerEpochs,
    lane: &mut WorkerState,
    packets: &mut [u32],
) {
    helpers::tick(&mut lane.worker);
    let (number, several) = (lane.worker.number, epochs.workers() > 1);
    if several {
        epochs.begin(number);
    }
    let table_writes = epochs.table_writes();
    if lane.table_writes != table_writes {
        stamp(maps, number, table_writes);
        lane.table_writes = table_writes;
    }
    let bytes = std::mem::size_of_val(packets);
    let words = lane.worker.layout.words();
    let mut run = |code: &NativeProgram, lane: &mut WorkerState, batch: Option<u32>| {
        let WorkerState { worker, judge, .. } = lane;
        // Code that sorts packets has room for this many.
        let most = batch.unwrap_or(Schedule::MOST_BATCH).max(1) as usize * words;
        packets.chunks_mut(most).for_each(|packets| code.run(worker, judge, packets));
    };
    match slot {
        None => run(program, lane, None),
        Some(slot) => {
            let count = lane.worker.layout.number(bytes);
            slot.run(program, lane, count, run);
        }
    }
    if several {
        epochs.end(number);
    }
    // With several workers only rings need work between batches.
    for map in maps.iter().flatten().filter(|map| !several || map.is_ring()) {
        map.with(NativeMap::quiesce);
    }
}

/// Makes all entries of a worker's caches of traversals invalid: their stamp is an older one from now on.
fn stamp(maps: &EngineMaps, worker: u32, table_writes: u64) {
    let is_stamp = |map: &NativeMap| map.name() == traversal_cache::STAMP;
    for map in maps.iter().flatten() {
        map.with(|map| {
            if is_stamp(map) {
                map.update(&[0; 4], &table_writes.to_ne_bytes(), 0, Some(worker));
            }
        });
    }
}

#[cfg(all(test, target_arch = "x86_64"))]
mod interleavings;

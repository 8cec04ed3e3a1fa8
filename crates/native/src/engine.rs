//! An XDP object as native code: maps, code, a worker; in this process, or ahead of time for another
//! ([`crate::image`]).

use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use millstream_bpf::lift::LiftError;
use millstream_bpf::module::lift_program;
use millstream_ir::{Func, Module};
use millstream_object::Object;
use millstream_passes::PassError;

use crate::ahead::Judge;
use crate::classifier::Classifier;
use crate::crash;
use crate::emit::{BATCH, EmitError, Table};
use crate::image::table::Linked;
use crate::image::{self, Cpu, First, Image, Initial, Lines, Shape, Unlinkable, Unloadable};
use crate::io::Ran;
use crate::io::board::{Board, Sampler};
use crate::io::graph::GraphRan;
use crate::llvm;
use crate::program::{Kept, Program};
use crate::runtime::helpers;
use crate::runtime::index::Template;
use crate::runtime::lpm::Trie;
use crate::runtime::lpm::fitting::Prefixes;
use crate::runtime::maps::Map;
use crate::runtime::packet::{Batch, Descriptors, Layout};
use crate::runtime::region::{AREAS, Lent, Place, Placed};
use crate::runtime::sharing::{Epochs, Guarded};
use crate::runtime::worker::{Clock, Event, Listener, Worker};
use crate::schedule::{InForce, Schedule};
use crate::templates::Chosen;

mod code;

use code::{Made, choose, layout, make_code, make_maps, places, reached_order};

/// LLVM's default passes: those that still pay after ours, in half of the time that `default<O2>` takes.
const PASSES: &str = "always-inline,inline,globaldce,function(sroa,early-cse<memssa>,simplifycfg,\
    instcombine<no-verify-fixpoint>,jump-threading,simplifycfg,gvn,instcombine<no-verify-fixpoint>,\
    loop-mssa(licm),dse,simplifycfg)";

/// Reason why an object cannot be run natively.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// No such program, or several programs and no name.
    #[error("{0}")]
    Choose(String),
    /// Bytecode that no verifier would accept.
    #[error(transparent)]
    Lift(#[from] LiftError),
    /// A pass failed.
    #[error(transparent)]
    Pass(#[from] PassError),
    /// Unsupported construct.
    #[error(transparent)]
    Emit(#[from] EmitError),
    /// LLVM is missing or refuses the code.
    #[error(transparent)]
    Llvm(#[from] llvm::Error),
    /// No memory for a map.
    #[error("map {map:?}: {source}")]
    Memory {
        /// The map.
        map: String,
        /// The system's error.
        source: io::Error,
    },
    /// The code cannot be linked ahead of time.
    #[error(transparent)]
    Unlinkable(#[from] Unlinkable),
    /// Code that was compiled ahead of time cannot run here.
    #[error(transparent)]
    Unloadable(#[from] Unloadable),
    /// Initial contents of a map cannot be set.
    #[error("map {map:?}: entry {key:02x?} cannot be set: error {errno}")]
    Initial {
        /// The map.
        map: String,
        /// Its key.
        key: Vec<u8>,
        /// The kernel's error number.
        errno: i64,
    },
}

/// Options of compilation.
#[derive(Clone, Debug)]
pub struct Options {
    /// Passes on the IR before LLVM sees it.
    pub passes: bool,
    /// Names of passes to skip.
    pub left_out: Vec<String>,
    /// Look-ups are inlined if possible; otherwise they are calls.
    pub inline_lookups: bool,
    /// LLVM's passes, as `opt -passes=` takes them.
    pub llvm_passes: String,
    /// Order of packets and stages, and fetching ahead.
    pub schedule: Schedule,
    /// Keeps the text of LLVM's IR, before and after its passes.
    pub keep_text: bool,
    /// Pinned templates of hash tables, by name.
    pub tables: Vec<(String, Template)>,
    /// Pinned templates of tries, by name.
    pub tries: Vec<(String, Trie)>,
    /// Pinned templates of classifiers (match tables), by name.
    pub classifiers: Vec<(String, Classifier)>,
    /// Prefixes that tries will hold, by name, if known.
    pub prefixes: Vec<(String, Prefixes)>,
    /// Arrays, by name, whose values are in shared memory. They do not get their initial contents.
    pub lent: Vec<(String, Lent)>,
    /// Layout of packets' descriptors.
    pub descriptors: Descriptors,
    /// Number of workers that run the code at once, each on packets of its own.
    pub workers: u32,
    /// Seed of hash functions and `bpf_get_prandom_u32`.
    pub seed: u64,
    /// Target processor.
    pub cpu: Cpu,
    /// Maximum number of copies that a packet of a graph becomes, for which room is reserved; 0 if unknown.
    pub copies: u32,
    /// Names of the source places in instructions' line records, for crash reports; those of objects are
    /// known without this.
    pub places: Vec<String>,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            passes: true,
            left_out: Vec::new(),
            inline_lookups: true,
            llvm_passes: PASSES.into(),
            schedule: Schedule::default(),
            keep_text: false,
            tables: Vec::new(),
            tries: Vec::new(),
            classifiers: Vec::new(),
            prefixes: Vec::new(),
            lent: Vec::new(),
            descriptors: Descriptors::default(),
            workers: 1,
            seed: 1,
            cpu: Cpu::default(),
            copies: 0,
            places: Vec::new(),
        }
    }
}

/// Options of code that others link.
#[derive(Clone, Copy)]
pub struct Linkable<'l> {
    /// The public symbol.
    pub symbol: &'l str,
    /// Makes the description that is stored with the code.
    pub describe: &'l dyn Fn(&Image) -> Vec<u8>,
}

impl Linkable<'_> {
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
pub struct Timings {
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
pub struct Texts {
    /// Input of LLVM's passes.
    pub before: String,
    /// Output of LLVM's passes.
    pub after: String,
}

/// A program with its maps, ready to run.
pub struct Engine {
    program: Program,
    maps: Maps,
    epochs: Arc<Epochs>,
    /// State of the first worker.
    lane: Lane,
    board: Arc<Board>,
    seed: u64,
    layout: Layout,
    listener: Option<Listener>,
    /// Times of its compilation.
    pub timings: Timings,
    /// Templates of its hash tables, tries and classifiers.
    pub templates: Vec<Chosen>,
    /// Order of packets and stages.
    pub schedule: InForce,
    /// LLVM's IR, if asked for.
    pub texts: Option<Texts>,
}

/// State of one worker.
pub(crate) struct Lane {
    pub(crate) worker: Box<Worker>,
    /// Chooses between the loops over a batch.
    pub(crate) judge: Judge,
    /// Board on which it publishes its numbers.
    board: Arc<Board>,
    sampler: Sampler,
}

impl Lane {
    fn new(number: u32, seed: u64, layout: Layout, board: &Arc<Board>) -> Lane {
        let seed = seed.wrapping_add(u64::from(number));
        let (worker, judge) = (Box::new(Worker::new(number, seed, layout)), Judge::default());
        Lane { worker, judge, board: Arc::clone(board), sampler: Sampler::default() }
    }

    /// Publishes the worker's numbers so far.
    pub(crate) fn show(&self, ran: &Ran) {
        self.board.show(self.worker.number, &ran.account, ran.busy);
    }

    /// The same for a graph's packets.
    pub(crate) fn show_graph(&self, ran: &GraphRan) {
        self.board.show(self.worker.number, &ran.account(), ran.busy);
    }

    /// The current time, if the latency of this batch is sampled.
    pub(crate) fn stamp(&mut self) -> Option<Instant> {
        self.sampler.next().then(Instant::now)
    }

    /// Records that all packets of a batch that began at `stamp` are done.
    pub(crate) fn done(&self, stamp: Option<Instant>, packets: u64) {
        if let Some(begun) = stamp {
            self.board.took(self.worker.number, packets, begun.elapsed());
        }
    }

    /// Takes the records that programs have put into rings since the last call.
    pub(crate) fn take_events(&mut self) -> Vec<Event> {
        std::mem::take(&mut self.worker.events)
    }
}

/// Maps by number; `None` for those of unsupported types.
type Maps = Vec<Option<Placed<Guarded>>>;

impl Engine {
    /// Compiles an XDP program of an object, by name or the only one, with the programs that tail calls can reach.
    ///
    /// # Errors
    /// [`Error`] if something is missing or unsupported.
    pub fn of_object(object: &Object, program: Option<&str>, options: &Options) -> Result<Engine, Error> {
        let start = Instant::now();
        let entry = choose(object, program)?;
        let lifted = lift_program(object, entry)?;
        let lift = start.elapsed();
        let options = &Options { places: places(object, &lifted), ..options.clone() };
        let mut engine = Engine::of_module(lifted.module, entry, options)?;
        engine.timings.lift = lift;
        engine.fill(&image::initial(object, &reached_order(object)))?;
        Ok(engine)
    }

    /// As [`Engine::of_object`], ahead of time: for [`Engine::of_image`] in another process.
    ///
    /// # Errors
    /// As there, and if the code cannot be linked.
    pub fn build_object(object: &Object, program: Option<&str>, options: &Options) -> Result<Image, Error> {
        let entry = choose(object, program)?;
        let lifted = lift_program(object, entry)?;
        let options = &Options { places: places(object, &lifted), ..options.clone() };
        let mut image = Engine::build_module(lifted.module, entry, options)?;
        image.initial.extend(image::initial(object, &reached_order(object)));
        Ok(image)
    }

    /// Compiles a function of a module that takes a context and returns a verdict.
    ///
    /// # Errors
    /// As for [`Engine::of_object`].
    pub fn of_module(module: Module, entry: Func, options: &Options) -> Result<Engine, Error> {
        let made = make_code(module, entry, options, &mut Place::Anywhere, None)?;
        let start = Instant::now();
        let names: Vec<&str> = made.symbols.iter().map(String::as_str).collect();
        let (code, addresses) = made.compiler.link(&made.object, &names)?;
        let (lines, first) = Lines::of_object(&made.object.bytes, names[0])?;
        let described =
            crash::Code { start: (addresses[0] as u64).wrapping_sub(first), lines, names: made.names };
        let program = Program::new(&addresses, made.loops, Kept::Linked { _code: code }).described(described);
        let timings = Timings { link: start.elapsed(), ..made.timings };
        let mut engine = Engine::new(program, made.maps, made.epochs, options.seed, made.layout);
        engine.fill(&made.initial)?;
        let Made { texts, templates, schedule, .. } = made;
        Ok(Engine { timings, texts, templates, schedule, ..engine })
    }

    /// Layout of packets' descriptors, as [`Engine::layout`], without compiling the program.
    ///
    /// # Errors
    /// If a pass fails, or there is no memory for a map.
    pub fn layout_of_module(module: Module, entry: Func, options: &Options) -> Result<Layout, Error> {
        layout(module, entry, options)
    }

    /// As [`Engine::of_module`], ahead of time: for [`Engine::of_image`] in another process.
    ///
    /// # Errors
    /// As there, and if the code cannot be linked.
    pub fn build_module(module: Module, entry: Func, options: &Options) -> Result<Image, Error> {
        let made = make_code(module, entry, options, &mut Place::fixed(0), None)?;
        let image = Image::link(&made.object, &made.symbols, made.loops, options.cpu)?;
        let Made { shapes: maps, initial, names, templates, schedule, layout, .. } = made;
        let (seed, workers) = (options.seed, options.workers);
        Ok(Image { maps, initial, names, templates, schedule, layout, seed, workers, ..image })
    }

    /// As [`Engine::of_module`], as an object file for any linker, with one public symbol: the table that
    /// [`Linked::open`] takes. It contains the result of `describe` for the image; that must include the
    /// image, for [`Engine::of_linked`]. Returns the file, and the image without code.
    ///
    /// # Errors
    /// As there.
    pub fn link_module(
        module: Module,
        entry: Func,
        options: &Options,
        linkage: &Linkable<'_>,
    ) -> Result<(Vec<u8>, Image), Error> {
        Engine::linkable(module, entry, options, linkage, Vec::new())
    }

    /// As [`Engine::link_module`], for a program of an object.
    ///
    /// # Errors
    /// As there.
    pub fn link_object(
        object: &Object,
        program: Option<&str>,
        options: &Options,
        linkage: &Linkable<'_>,
    ) -> Result<(Vec<u8>, Image), Error> {
        let entry = choose(object, program)?;
        let initial = image::initial(object, &reached_order(object));
        Engine::linkable(lift_program(object, entry)?.module, entry, options, linkage, initial)
    }

    fn linkable(
        module: Module,
        entry: Func,
        options: &Options,
        linkage: &Linkable<'_>,
        initial: Vec<Initial>,
    ) -> Result<(Vec<u8>, Image), Error> {
        let (area, workers) = (linkage.area(), options.workers);
        let image = Image { initial, seed: options.seed, workers, area, ..Image::without_code(options.cpu) };
        let with = |maps: &[Shape], made: &[Initial], layout| {
            let initial = [made, &image.initial].concat();
            Image { maps: maps.to_vec(), initial, layout, ..image.clone() }
        };
        let described = |maps: &[Shape], made: &[Initial], layout| {
            let description = (linkage.describe)(&with(maps, made, layout));
            Table { symbol: linkage.symbol.to_owned(), description }
        };
        let made = make_code(module, entry, options, &mut Place::fixed(area), Some(&described))?;
        Ok((made.object.bytes, with(&made.shapes, &made.initial, made.layout)))
    }

    /// A program whose code was linked into this process, with its maps.
    ///
    /// # Errors
    /// If this machine or this process cannot run it.
    pub fn of_linked(image: &Image, linked: &Linked) -> Result<Engine, Error> {
        image.fits()?;
        let epochs = Arc::new(Epochs::new(image.workers));
        let maps = make_maps(&image.maps, image.seed, &epochs, &mut Place::fixed(image.area))?;
        let program = Program::new(&linked.functions, linked.loops, Kept::Own);
        let mut engine = Engine::new(program, maps, epochs, image.seed, image.layout);
        engine.fill(&image.initial)?;
        Ok(engine)
    }

    /// A program that was compiled ahead of time, with its maps.
    ///
    /// # Errors
    /// If this machine or this process cannot run it.
    pub fn of_image(image: &Image) -> Result<Engine, Error> {
        let start = Instant::now();
        let place = &mut Place::fixed(image.area);
        let epochs = Arc::new(Epochs::new(image.workers));
        let maps = make_maps(&image.maps, image.seed, &epochs, place)?;
        let (addresses, code) = image.load()?;
        if addresses.len() < image.loops.max(1) || image.loops == 0 {
            return Err(Unloadable::Import(BATCH.to_owned()).into());
        }
        let described = image.described(code.address());
        let program =
            Program::new(&addresses, image.loops, Kept::Mapped { _code: code }).described(described);
        let mut engine = Engine::new(program, maps, epochs, image.seed, image.layout);
        engine.fill(&image.initial)?;
        engine.timings.link = start.elapsed();
        engine.templates.clone_from(&image.templates);
        engine.schedule.clone_from(&image.schedule);
        Ok(engine)
    }

    fn new(program: Program, maps: Maps, epochs: Arc<Epochs>, seed: u64, layout: Layout) -> Engine {
        let board = Arc::new(Board::new(epochs.workers()));
        let lane = Lane::new(0, seed, layout, &board);
        Engine {
            program,
            maps,
            epochs,
            lane,
            board,
            seed,
            layout,
            listener: None,
            timings: Timings::default(),
            templates: Vec::new(),
            schedule: InForce::default(),
            texts: None,
        }
    }

    /// Maximum number of workers that may run it at once.
    pub fn workers(&self) -> u32 {
        self.epochs.workers()
    }

    /// State of a worker with a number below [`Engine::workers`].
    pub(crate) fn lane(&self, number: u32) -> Lane {
        let mut lane = Lane::new(number, self.seed, self.layout, &self.board);
        lane.worker.clock = self.lane.worker.clock;
        lane.worker.listener.clone_from(&self.listener);
        lane
    }

    /// Does something as the first worker.
    pub(crate) fn with_own_lane<R>(&mut self, act: impl FnOnce(&Engine, &mut Lane) -> R) -> R {
        let mut lane = std::mem::replace(&mut self.lane, Lane::new(0, self.seed, self.layout, &self.board));
        let result = act(self, &mut lane);
        self.lane = lane;
        result
    }

    /// Sets the initial contents of maps.
    fn fill(&mut self, initial: &[Initial]) -> Result<(), Error> {
        for Initial { map, key, value } in initial {
            let address = match value {
                First::Bytes(bytes) => {
                    self.put(*map, key, bytes)?;
                    continue;
                }
                First::Map(inner) => self.maps.get(*inner).and_then(Option::as_ref).map(Placed::address),
                First::Program(at) => self.program.programs.get(*at).copied(),
            };
            if let Some(address) = address {
                self.put(*map, key, &address.to_ne_bytes())?;
            }
        }
        Ok(())
    }

    fn put(&mut self, at: usize, key: &[u8], value: &[u8]) -> Result<(), Error> {
        let Some(map) = self.maps.get_mut(at).and_then(Option::as_mut) else { return Ok(()) };
        let map = map.get_mut();
        if map.is_lent() {
            return Ok(());
        }
        match map.update(key, value, 0, None) {
            0 => Ok(()),
            errno => Err(Error::Initial { map: map.name().to_owned(), key: key.to_vec(), errno }),
        }
    }

    /// Registers a listener for the records of a map as workers make them, for this worker and those that
    /// begin from now on.
    pub fn listen(&mut self, listener: Listener) {
        self.lane.worker.listener = Some(listener.clone());
        self.listener = Some(listener);
    }

    /// The map with this name.
    pub fn map(&mut self, name: &str) -> Option<&mut Map> {
        self.maps().find(|map| map.name() == name)
    }

    /// All maps.
    pub fn maps(&mut self) -> impl Iterator<Item = &mut Map> {
        self.maps.iter_mut().flatten().map(|map| map.get_mut())
    }

    /// Sets the clock that programs read.
    pub fn set_clock(&mut self, clock: Clock) {
        self.lane.worker.clock = clock;
    }

    /// The clock that programs read.
    pub fn clock(&self) -> Clock {
        self.lane.worker.clock
    }

    /// The time that programs see now, by the coarse clock.
    pub fn now(&mut self) -> u64 {
        helpers::tick(&mut self.lane.worker);
        self.lane.worker.coarse
    }

    /// Copies the contents of another engine's maps, by name: those of the same kind and size that programs
    /// write, except those in `except`.
    pub fn adopt(&mut self, other: &mut Engine, except: &[&str]) {
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
        own.events.append(&mut others.events);
        self.board = Arc::clone(&other.board);
        self.lane.board = Arc::clone(&other.board);
    }

    /// Runs the program on every packet of the batch; results are left in the batch.
    pub fn run(&mut self, batch: &mut Batch) {
        run(&self.program, &self.maps, &self.epochs, &mut self.lane, batch);
    }

    /// As [`Engine::run`], by one of several workers.
    pub(crate) fn run_by(&self, lane: &mut Lane, batch: &mut Batch) {
        run(&self.program, &self.maps, &self.epochs, lane, batch);
    }

    /// Runs a graph on every packet of the batch, which has room for copies; the sent packets are left in the
    /// batch.
    pub fn run_graph(&mut self, batch: &mut Batch) {
        run_graph(&self.program, &self.maps, &self.epochs, &mut self.lane, batch);
    }

    /// As [`Engine::run_graph`], by one of several workers.
    pub(crate) fn run_graph_by(&self, lane: &mut Lane, batch: &mut Batch) {
        run_graph(&self.program, &self.maps, &self.epochs, lane, batch);
    }

    /// Fields of packets' descriptors that its program accesses, and their layout: for [`Batch::expect`].
    pub fn layout(&self) -> Layout {
        self.layout
    }

    /// Maximum number of packets to give it at once.
    pub fn batch(&self) -> u32 {
        self.schedule.schedule.batch
    }

    /// Numbers of its workers, which may be read while they run.
    pub fn board(&self) -> &Arc<Board> {
        &self.board
    }

    /// Publishes the first worker's numbers so far.
    pub(crate) fn show(&self, ran: &Ran) {
        self.lane.show(ran);
    }

    /// The same for a graph's packets.
    pub(crate) fn show_graph(&self, ran: &GraphRan) {
        self.lane.show_graph(ran);
    }

    /// As [`Lane::stamp`], for the first worker.
    pub(crate) fn stamp(&mut self) -> Option<Instant> {
        self.lane.stamp()
    }

    /// As [`Lane::done`].
    pub(crate) fn done(&self, stamp: Option<Instant>, packets: u64) {
        self.lane.done(stamp, packets);
    }

    /// Takes the records that programs have put into rings since the last call.
    pub fn take_events(&mut self) -> Vec<Event> {
        self.lane.take_events()
    }
}

fn run(program: &Program, maps: &Maps, epochs: &Epochs, lane: &mut Lane, batch: &mut Batch) {
    batch.conform(lane.worker.layout);
    lane.worker.ingress = batch.ingress();
    run_packets(program, maps, epochs, lane, batch.packets_mut());
    lane.worker.records.clear();
}

fn run_graph(program: &Program, maps: &Maps, epochs: &Epochs, lane: &mut Lane, batch: &mut Batch) {
    batch.conform(lane.worker.layout);
    lane.worker.ingress = batch.ingress();
    lane.worker.buffer = batch.buffer() as u32;
    if lane.worker.listener.is_some() {
        lane.worker.arrivals.clear();
        lane.worker.arrivals.extend_from_slice(batch.arrivals());
        lane.worker.capacity = batch.capacity();
    }
    let (packets, (copies, room), sent) = batch.parts();
    lane.worker.first = packets.as_ptr() as usize;
    let room = room as u64;
    (lane.worker.spare, lane.worker.spares) = (copies.as_mut_ptr(), room);
    (lane.worker.sent, lane.worker.sent_len) = (sent.as_mut_ptr(), 0);
    run_packets(program, maps, epochs, lane, packets);
    let copied = room - lane.worker.spares;
    batch.set_done(lane.worker.sent_len as usize, copied as usize);
}

fn run_packets(program: &Program, maps: &Maps, epochs: &Epochs, lane: &mut Lane, packets: &mut [u32]) {
    helpers::tick(&mut lane.worker);
    let (number, several) = (lane.worker.number, epochs.workers() > 1);
    if several {
        epochs.begin(number);
    }
    // Code that sorts packets has room for this many.
    let most = Schedule::MOST_BATCH as usize * lane.worker.layout.words();
    packets.chunks_mut(most).for_each(|packets| program.run(lane, packets));
    if several {
        epochs.end(number);
    }
    // With several workers only rings need work between batches.
    for map in maps.iter().flatten().filter(|map| !several || map.is_ring()) {
        map.with(Map::quiesce);
    }
}

#[cfg(all(test, target_arch = "x86_64"))]
mod interleavings;

//! The whole graph as one function of the IR.
//!
//! An element's input is a block whose parameters are the packet; a connection is a jump. So the graph is
//! static: no calls, no ports at run time, annotations as values. Code is generated only for inputs that
//! packets can reach. Where a packet becomes two, the copy is held and processed when the original is done
//! with, innermost first, which is the order in which calls would do it.
//!
//! Pull ports: a queue hands a packet on at once, and a puller takes every packet that arrives. Every packet
//! is run to completion, so that a queue is empty whenever its puller would look.

use std::borrow::Cow;
use std::collections::BTreeMap;

use millstream_ir::{
    Block, BlockCall, Cond, Func, Function, GlobalData, Linkage, Map, MapDecl, Module, Op, Prov, Size, Type,
    Value, Width,
};
use millstream_isa::MapType;
use rustc_hash::{FxHashMap, FxHashSet};
use serde::{Deserialize, Serialize};

use crate::ablation::{AblationConstants, Ablations};
use crate::arguments::{AddressNames, ElementArguments, NameTable};
use crate::bpf_program::ReadObject;
use crate::build::ElementBuilder;
use crate::class::{ElementClass, ElementCodegen, ElementLibrary};
use crate::copy_bound::CopyGraph;
use crate::default_handlers;
use crate::error::{ConfigSpan, Error, ErrorStage};
use crate::graph::{Element, ElementPort, Graph};
use crate::handlers::{Handler, HandlerAccess, HandlerWriters, SETTINGS};
use crate::layout::{self, HeldPacket, MetadataLayout, MetadataUsage};
use crate::packet::{HOST, NOTES, PacketValues, TYPES, USUAL_NOTES};
use crate::printing::PacketPrinter;
use crate::queueing::{self, ByteRange, ElementQueue, QueueingNetwork};
use crate::resolve::{self, PushPullResolver};
use crate::script::{Script, ScriptCall, ScriptKind, ScriptStep};
use crate::summary::SummarySource;

mod published;
mod setup;

use published::PublishedValues;
pub use setup::ElementSetup;
pub(crate) use setup::SharedSetup;

/// The queue of packets that wait for the one at hand.
pub const QUEUE: i64 = 0;

/// Port at which packets of a source begin if the element has inputs of its own.
pub const NO_INPUT: u32 = u32::MAX;

/// `BPF_F_RDONLY_PROG`: no element writes it.
pub(crate) const RDONLY_PROG: u32 = 1 << 7;
/// `BPF_PROG_TYPE_XDP`: its argument is a packet with its bounds.
const XDP: u32 = 6;

/// Origin of the packets of a program.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum GraphSource {
    /// A device, by name.
    Device(String),
    /// A capture file.
    File(String),
    /// Packets that lines describe.
    Summary(SummarySource),
    /// This packet, again and again: so often, or without end.
    Constant(Vec<u8>, Option<u64>),
    /// These packets, from the first again behind the last: so many, or without end.
    Frames(Vec<Vec<u8>>, Option<u64>),
}

impl GraphSource {
    /// Maximum number of packets, if it is known.
    pub fn limit(&self) -> Option<u64> {
        match self {
            GraphSource::Constant(_, limit) | GraphSource::Frames(_, limit) => *limit,
            GraphSource::Device(_) | GraphSource::File(_) | GraphSource::Summary(_) => None,
        }
    }

    /// The same, or no packets of it.
    pub fn active(self, active: bool) -> GraphSource {
        match self {
            GraphSource::Constant(bytes, _) if !active => GraphSource::Constant(bytes, Some(0)),
            GraphSource::Frames(frames, _) if !active => GraphSource::Frames(frames, Some(0)),
            GraphSource::Summary(_) if !active => GraphSource::Frames(Vec::new(), Some(0)),
            other => other,
        }
    }
}

/// Destination of the packets of a program.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum GraphSink {
    /// A device, by name.
    Device(String),
    /// A capture file, and the parts of packets that it keeps.
    File(String, CaptureOptions),
}

/// Parts of packets that a capture file keeps.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct CaptureOptions {
    /// Bytes of each.
    pub most: u32,
    /// Their link type.
    pub link: u32,
    /// True if the recorded length includes bytes that were cut off before the packet came.
    pub whole: bool,
}

/// Settings that tell a source when to send. Each is the offset of a 64-bit number in the array of settings.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct SourceControl {
    /// The source's place in [`ClickProgram::sources`].
    pub source: usize,
    /// Packets it sends from its beginning on; negative for no limit.
    pub limit: u32,
    /// 0 while it sends none.
    pub active: u32,
    /// Packets it had sent before it began again.
    pub base: u32,
    /// Packets a second, if somebody may set that.
    pub rate: Option<u32>,
}

/// Action when a source has sent all its packets.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct SourceEnd {
    /// The source's place in [`ClickProgram::sources`].
    pub source: usize,
    /// The script to run, by its place in [`ClickProgram::scripts`]; else the run is asked to end.
    pub script: Option<usize>,
}

/// An entry that a table holds at first.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct InitialEntry {
    /// The map's name.
    pub map: String,
    /// Its key.
    pub key: Vec<u8>,
    /// Its value.
    pub value: Vec<u8>,
}

/// Why an element drops packets, and where they are counted.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct DropCounter {
    /// The element's name.
    pub element: String,
    /// The reason.
    pub reason: Cow<'static, str>,
    /// The byte of the state that the count begins at.
    pub offset: u32,
}

/// A compiled configuration. In the form that `serde` writes, it describes a program whose code exists
/// already: without the IR, entries of tables, and warnings.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ClickProgram {
    /// The IR.
    #[serde(skip)]
    pub module: Module,
    /// Its function. The argument is a packet's descriptor, in which the ingress is the number of the input.
    #[serde(skip, default = "first")]
    pub entry: Func,
    /// Sources of packets; ingress 1 is the first.
    pub sources: Vec<GraphSource>,
    /// Destinations of packets; output 0 is the first.
    pub targets: Vec<GraphSink>,
    /// Stages that it may be run in. More than 1 if packets leave by a further output, behind these, for the
    /// stage behind a queue; they come in again by a source behind all others. The number is one more than
    /// that of such queues one behind another.
    pub stages: u32,
    /// Which of the sources handlers tell when to send.
    pub gates: Vec<SourceControl>,
    /// Reasons to drop.
    pub drops: Vec<DropCounter>,
    /// Handlers.
    pub handlers: Vec<Handler>,
    /// Initial entries of tables.
    #[serde(skip)]
    pub entries: Vec<InitialEntry>,
    /// Scripts that run between batches.
    pub scripts: Vec<Script>,
    /// Actions when sources have sent all their packets.
    pub ends: Vec<SourceEnd>,
    /// Elements that print: records of packets name them by number.
    pub printers: Vec<PacketPrinter>,
    /// Which of them run when code says so.
    pub calls: Vec<ScriptCall>,
    /// Copies that a packet becomes, at most; but for packets that go round.
    pub copies: u32,
    /// Devices whose packets have no Ethernet header.
    pub unframed: Vec<String>,
    /// Numbers of the state that several elements have in common, by name.
    pub common: Vec<(String, u32)>,
    /// Offset of the count of copies that failed.
    pub uncloned: u32,
    /// Warnings: arguments that are read but have no effect.
    #[serde(skip)]
    pub warnings: Vec<Error>,
    /// Data that it keeps of a packet beside its bytes.
    #[serde(skip)]
    pub layout: MetadataUsage,
    /// Packets that wait for their time: the outputs behind all others lead to lanes, and packets that are
    /// due come in by a source behind all others.
    pub waits: QueueingNetwork,
    /// Why one worker must run it all.
    #[serde(skip)]
    pub alone: Vec<Error>,
    /// The elements; instructions name them as their source lines.
    #[serde(skip)]
    pub elements: Vec<ElementInfo>,
}

/// An element that code stems from.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ElementInfo {
    /// Its name and class.
    pub name: String,
    /// Position of its declaration.
    pub span: ConfigSpan,
}

impl ClickProgram {
    /// The same program for several workers. Each counts for itself, in sketches, too, and has its own
    /// numbers that elements continue from (the next port of a pattern, the next identification). Tables are
    /// shared.
    ///
    /// # Errors
    /// If an element is for one worker only.
    pub fn for_workers(mut self) -> Result<ClickProgram, Vec<Error>> {
        if !self.alone.is_empty() {
            return Err(self.alone);
        }
        let sketches = self.handlers.iter().filter_map(|handler| match &handler.access {
            HandlerAccess::Estimate(sketch) => Some([&sketch.counters, &sketch.candidates]),
            _ => None,
        });
        let own: Vec<&str> = sketches.flatten().map(String::as_str).chain([STATE]).collect();
        for map in self.module.maps.values_mut().filter(|map| own.contains(&map.name.as_str())) {
            map.kind = MapType::PERCPU_ARRAY.0;
        }
        Ok(self)
    }
}

/// The function of a module that has one.
fn first() -> Func {
    Func::from_u32(0)
}

/// The name of the map with the state of all elements.
pub const STATE: &str = "click.state";

/// Declarations of elements, by the name of the element they are about.
type ByName<T> = FxHashMap<String, T>;

/// State of the compilation.
pub(crate) struct GraphCompiler<'g> {
    pub(crate) graph: &'g Graph,
    behaviours: Vec<Option<Box<dyn ElementCodegen>>>,
    /// Inputs that outputs are connected to: several only where these pull.
    outputs: FxHashMap<ElementPort, Vec<ElementPort>>,
    /// Offsets in the state of the turns of pullers.
    turns: FxHashMap<ElementPort, u32>,
    /// Outputs that lead back to an element on the way to them.
    returns: FxHashSet<ElementPort>,
    pub(crate) func: Function,
    pub(crate) module: Module,
    pub(crate) state: Map,
    /// The array of settings, if any may be written.
    pub(crate) settings: Option<Map>,
    pub(crate) uncloned: u32,
    /// Block at which the processing of a packet ends.
    pub(crate) finish: Block,
    state_bytes: u32,
    blocks: FxHashMap<ElementPort, Block>,
    open: Vec<ElementPort>,
    drops: BTreeMap<(usize, &'static str), u32>,
    /// Inputs at which held packets go on, by number.
    resumptions: Vec<ElementPort>,
    /// Annotations that are kept while a packet waits.
    pub(crate) kept: MetadataLayout,
    /// Held packets: the input each goes on at, and its annotations.
    pub(crate) held: Vec<HeldPacket>,
    /// Values that elements publish.
    pub(crate) values: PublishedValues,
    pub(crate) general: Ablations,
    /// The output that leads queued packets to the next stage, if there are stages; and the elements that
    /// pass packets on there.
    pub(crate) queues: u32,
    pub(crate) passing_on: FxHashSet<usize>,
    /// Block at which these packets come in again.
    passed_on: Option<Block>,
    /// Inputs that packets wait at, in the order of the outputs that they wait behind.
    lanes: Vec<ElementPort>,
    /// Numbers that general code reads from memory.
    pub(crate) numbers: AblationConstants,
    /// Inputs to which packets of each input are copied.
    pub(crate) flow: CopyGraph,
    /// Handlers that code writes by itself, by their whole names: settings, and numbers of the state that
    /// become zero.
    pub(crate) writable: ByName<HandlerAccess>,
}

/// Handlers that code may write, by their whole names; none if no code writes any.
fn writable(handlers: &[Handler], calls: &[ScriptCall]) -> ByName<HandlerAccess> {
    let is_simple = |handler: &&Handler| match &handler.access {
        HandlerAccess::Setting(..) | HandlerAccess::Sets(_) => true,
        HandlerAccess::Zero { arrays, .. } => arrays.is_empty(),
        _ => false,
    };
    let simple = handlers.iter().filter(|_| !calls.is_empty()).filter(is_simple);
    simple.map(|handler| (format!("{}.{}", handler.element, handler.name), handler.access.clone())).collect()
}

/// Compiles a graph of elements of a library. `objects` reads the object files that elements name, `writers`
/// tells who may write handlers, and the code does not rely on the facts that `general` names.
///
/// # Errors
/// All that is wrong with elements, their arguments and their connections.
pub fn compile(
    library: &ElementLibrary,
    graph: &Graph,
    objects: &ReadObject<'_>,
    writers: HandlerWriters,
    general: Ablations,
) -> Result<ClickProgram, Vec<Error>> {
    let classes = resolve::classes(library, graph)?;
    let connecting = |error: Error| error.at_stage(ErrorStage::Connecting);
    resolve::ports(graph, &classes)
        .map_err(|errors| errors.into_iter().map(connecting).collect::<Vec<_>>())?;
    let mut shared = SharedSetup { timed: general.time, ..SharedSetup::default() };
    shared.declared.timed = general.time;
    let mut ways = PushPullResolver::new(graph, &classes);
    shared.pulled =
        (0..classes.len()).map(|element| ways.pulls(false, ElementPort { element, port: 0 })).collect();
    let behaviours = behaviours(graph, &classes, (objects, writers), &mut shared)?;
    let mut default = default_handlers::handlers(library, graph, &classes);
    let own: FxHashSet<(&str, &str)> =
        shared.handlers.iter().map(|handler| (handler.element.as_str(), &*handler.name)).collect();
    default.retain(|handler| !own.contains(&(handler.element.as_str(), &*handler.name)));
    shared.handlers.extend(default);
    known_calls(graph, &shared)?;
    shared.emit_settings_map();
    let SharedSetup {
        module,
        state_bytes,
        sources,
        gates,
        targets,
        handlers,
        mut entries,
        warnings,
        common,
        unframed,
        scripts,
        printers,
        ends,
        calls,
        values,
        declared,
        mut alone,
        ..
    } = shared;
    let places: Vec<usize> = sources.iter().map(|(port, _)| port.element).collect();
    let (mut waits, inputs) = queueing::find(graph, &classes, &declared, &places);
    if let Some(first) = graph.elements.first().filter(|_| !waits.pulls.is_empty()) {
        alone.push(Error::new(first.span, "sources that are pulled by turns are for one worker"));
    }
    let mut compiler = GraphCompiler::written(
        graph,
        behaviours,
        (module, state_bytes),
        (values, general, writable(&handlers, &calls)),
        (&sources, targets.len(), inputs),
    );
    if compiler.kept.bytes > layout::RESERVED {
        let bytes = compiler.kept.bytes;
        let message = format!(
            "packets that wait would keep {bytes} bytes of annotations, of {} at most",
            layout::RESERVED
        );
        let span = graph.elements.first().map_or(ConfigSpan::default(), |element| element.span);
        return Err(vec![Error::new(span, message)]);
    }
    compiler.number(&mut waits);
    entries.extend(compiler.numbers());
    let layout = compiler.layout();
    let drops = std::mem::take(&mut compiler.drops);
    let drop = |((element, reason), offset): ((usize, _), _)| DropCounter {
        element: graph.elements.get(element).map_or_else(String::new, |e| e.name.clone()),
        reason: Cow::Borrowed(reason),
        offset,
    };
    let uncloned = compiler.uncloned;
    let copies = compiler.flow.copy_bound(&compiler.outputs, sources.iter().map(|(port, _)| *port));
    let stages = 1 + resolve::longest_chain(graph, &compiler.returns, &compiler.passing_on);
    let (module, entry) = compiler.finish();
    Ok(ClickProgram {
        module,
        entry,
        sources: sources.into_iter().map(|(_, source)| source).collect(),
        targets,
        gates,
        drops: drops.into_iter().map(drop).chain(waits.lanes.iter().filter_map(overflow)).collect(),
        waits,
        handlers,
        entries,
        scripts,
        printers,
        ends,
        calls,
        copies,
        unframed,
        common,
        uncloned,
        stages,
        warnings,
        layout,
        alone,
        elements: graph.elements.iter().map(named).collect(),
    })
}

/// Checks that the handlers that code writes exist.
fn known_calls(graph: &Graph, shared: &SharedSetup) -> Result<(), Vec<Error>> {
    let mut errors = Vec::new();
    for call in &shared.calls {
        let Some(script) = shared.scripts.get(call.script) else { continue };
        let first = script.steps.first().filter(|_| script.kind != ScriptKind::Packet);
        let Some(ScriptStep::Write(text, _)) = first else { continue };
        let name = text.split_whitespace().next().unwrap_or_default();
        let (element, own) = name.rsplit_once('.').unwrap_or(("", name));
        let is_of = |whole: &str| whole == element || whole.ends_with(&format!("/{element}"));
        let runs = |of: &Element| is_of(&of.name) && ["Script", "DriverManager"].contains(&of.class.as_str());
        let writes = |handler: &Handler| {
            handler.name == own && is_of(&handler.element) && handler.access.access_modes().1
        };
        let known = name == "stop" || graph.elements.iter().any(runs) || shared.handlers.iter().any(writes);
        if !known {
            let span = graph.elements.iter().find(|of| of.name == script.element).map(|of| of.span);
            let message = format!("there is no handler `{name}` to write");
            errors.push(Error::new(span.unwrap_or_default(), message));
        }
    }
    if errors.is_empty() { Ok(()) } else { Err(errors) }
}

/// The counter of packets that a full queue drops.
fn overflow(lane: &ElementQueue) -> Option<DropCounter> {
    let offset = lane.queue?.dropped;
    Some(DropCounter { element: lane.element.clone(), reason: Cow::Borrowed("queue_full"), offset })
}

fn named(element: &Element) -> ElementInfo {
    ElementInfo { name: format!("`{}`", element.declaration()), span: element.span }
}

fn behaviours(
    graph: &Graph,
    classes: &[&'static ElementClass],
    (objects, writers): (&ReadObject<'_>, HandlerWriters),
    shared: &mut SharedSetup,
) -> Result<Vec<Option<Box<dyn ElementCodegen>>>, Vec<Error>> {
    let names = AddressNames { said: said_by(graph, "AddressInfo"), interfaces: graph.interfaces.clone() };
    let patterns = said_by(graph, "IPRewriterPatterns");
    let (mut all, mut errors) = (Vec::new(), Vec::new());
    let all_ports = graph.ports();
    for (at, (element, class)) in graph.elements.iter().zip(classes).enumerate() {
        shared.element = at;
        let (inputs, outputs) = all_ports[at];
        let arguments = ElementArguments::new(element, class, &names);
        let mut setup = ElementSetup {
            arguments,
            inputs,
            outputs,
            element,
            patterns: &patterns,
            graph,
            objects,
            writers,
            shared,
        };
        let made = setup.arguments.check().and_then(|()| (class.make)(&mut setup));
        let ElementSetup { arguments, .. } = setup;
        let made = made.and_then(|behaviour| arguments.finish().map(|()| behaviour));
        match made {
            Ok(behaviour) => all.push(Some(behaviour)),
            Err(e) => errors.push(e.at_stage(ErrorStage::Configuring(element.declaration()))),
        }
    }
    if errors.is_empty() { Ok(all) } else { Err(errors) }
}

/// Declarations of the elements of a class: the first word of each argument is a name, the others are its
/// values.
fn said_by(graph: &Graph, class: &str) -> NameTable {
    let mut names = NameTable::default();
    for element in graph.elements.iter().filter(|e| e.class == class) {
        for argument in &element.arguments {
            let mut all = crate::config::words(argument).into_iter();
            if let Some(name) = all.next() {
                names.insert(name.text, all.collect());
            }
        }
    }
    names
}

impl<'g> GraphCompiler<'g> {
    fn new(
        graph: &'g Graph,
        behaviours: Vec<Option<Box<dyn ElementCodegen>>>,
        mut module: Module,
        state_bytes: u32,
    ) -> Self {
        let state = module.maps.push(MapDecl {
            name: STATE.to_owned(),
            kind: MapType::ARRAY.0,
            key_size: 4,
            value_size: 0,
            max_entries: 1,
            flags: 0,
            global: Some(GlobalData::Bss),
            inner: None,
        });
        let mut func = Function::new("click", Linkage::Program { prog_type: XDP });
        let entry = func.add_block();
        func.add_param(entry, Type::Ptr(Prov::Ctx));
        let finish = func.add_block();
        let mut outputs: FxHashMap<ElementPort, Vec<ElementPort>> = FxHashMap::default();
        graph.connections.iter().for_each(|c| outputs.entry(c.from).or_default().push(c.to));
        let settings = module.maps.iter().find(|(_, map)| map.name == SETTINGS).map(|(map, _)| map);
        GraphCompiler {
            graph,
            behaviours,
            outputs,
            turns: FxHashMap::default(),
            returns: resolve::back_edges(graph),
            func,
            module,
            state,
            settings,
            uncloned: state_bytes,
            finish,
            state_bytes: state_bytes + 8,
            blocks: FxHashMap::default(),
            open: Vec::new(),
            drops: BTreeMap::new(),
            resumptions: Vec::new(),
            kept: MetadataLayout::nothing(),
            held: Vec::new(),
            values: PublishedValues::default(),
            general: Ablations::default(),
            queues: 0,
            passing_on: FxHashSet::default(),
            passed_on: None,
            lanes: Vec::new(),
            numbers: AblationConstants::default(),
            writable: FxHashMap::default(),
            flow: CopyGraph::default(),
        }
    }

    /// Generates the function: first without annotations of packets that wait, to see which of these are
    /// read, then with them.
    fn written(
        graph: &'g Graph,
        behaviours: Vec<Option<Box<dyn ElementCodegen>>>,
        (module, state_bytes): (Module, u32),
        (values, general, writable): (PublishedValues, Ablations, ByName<HandlerAccess>),
        (sources, targets, lanes): (&[(ElementPort, GraphSource)], usize, Vec<ElementPort>),
    ) -> Self {
        let mut first =
            GraphCompiler::new(graph, behaviours, module.clone(), state_bytes).with_ablations(general);
        (first.values, first.queues) = (values, targets as u32);
        (first.lanes, first.writable) = (lanes, writable);
        first.function(sources);
        let resumed: Vec<(ElementPort, Block)> =
            first.resumptions.iter().map(|port| (*port, first.blocks[port])).collect();
        let mut kept = layout::live_annotations(&first.func, &resumed, &first.held);
        if general.annotations {
            let is_live = |note: &usize| kept.notes.iter().any(|(live, ..)| live == note);
            let all: Vec<usize> = (0..NOTES).filter(|note| *note < USUAL_NOTES || is_live(note)).collect();
            kept = MetadataLayout::packed(&all, resumed.len(), FxHashMap::default());
        }
        if kept.notes.is_empty() {
            return first;
        }
        let mut second =
            GraphCompiler::new(graph, first.behaviours, module, state_bytes).with_ablations(general);
        (second.kept, second.values) = (kept, first.values);
        (second.queues, second.lanes) = (first.queues, first.lanes);
        second.writable = first.writable;
        second.function(sources);
        second
    }

    fn layout(&self) -> MetadataUsage {
        let mut inputs: Vec<(&ElementPort, &Block)> = self.blocks.iter().collect();
        inputs.sort_unstable();
        let inputs: Vec<Block> = inputs.into_iter().map(|(_, block)| *block).collect();
        layout::layout(&self.func, &inputs, &self.kept, &self.resumptions)
    }

    /// Names the places of lanes in the code, and the annotations it keeps of packets that wait there. (A
    /// place that no packet reaches has no name.)
    fn number(&self, waits: &mut QueueingNetwork) {
        let part = |(size, at): (Size, i32)| ByteRange { at: at as u32, bytes: size.bytes() };
        for (lane, input) in waits.lanes.iter_mut().zip(&self.lanes) {
            let known = self.resumptions.iter().position(|port| port == input);
            lane.number = known.unwrap_or_default() as u32;
            lane.numbered = part(self.kept.number);
            let notes = self.kept.notes.iter().filter(|(note, ..)| self.kept.is_live_at(*input, *note));
            lane.notes = notes.map(|&(note, size, at)| (note, part((size, at)))).collect();
        }
        waits.kept = self.kept.bytes;
    }

    /// The output behind which packets wait at an input, if they do.
    pub(crate) fn lane(&self, input: ElementPort) -> Option<u32> {
        let lane = self.lanes.iter().position(|port| *port == input)?;
        Some(self.queues + lane as u32)
    }

    /// Returns true if packets that have left come in again.
    fn goes_on(&self) -> bool {
        self.general.stages || !self.lanes.is_empty()
    }

    /// An element's name.
    pub(crate) fn element_name(&self, element: usize) -> String {
        self.graph.elements.get(element).map_or_else(String::new, |e| e.name.clone())
    }

    /// The input that an output is connected to, or the first of several that pull from it.
    pub(crate) fn target(&self, from: ElementPort) -> Option<ElementPort> {
        self.outputs.get(&from)?.first().copied()
    }

    /// The inputs that pull from an output, and the offset of their turn; none if there is only one.
    pub(crate) fn pullers(&mut self, from: ElementPort) -> Option<(Vec<ElementPort>, u32)> {
        let pullers = self.outputs.get(&from).filter(|all| all.len() > 1)?.clone();
        let state_bytes = &mut self.state_bytes;
        let turn = *self.turns.entry(from).or_insert_with(|| {
            *state_bytes += 8;
            *state_bytes - 8
        });
        Some((pullers, turn))
    }

    /// Returns true if an output leads back to an element on the way to it.
    pub(crate) fn is_back_edge(&self, from: ElementPort) -> bool {
        self.returns.contains(&from)
    }

    /// The block of an element's input.
    pub(crate) fn block_of(&mut self, port: ElementPort) -> Block {
        if let Some(block) = self.blocks.get(&port) {
            return *block;
        }
        let block = self.func.add_block();
        for ty in TYPES {
            self.func.add_param(block, ty);
        }
        self.blocks.insert(port, block);
        self.open.push(port);
        block
    }

    /// Offset of the counter of an element's drops for a reason.
    pub(crate) fn drop_counter(&mut self, element: usize, reason: &'static str) -> u32 {
        *self.drops.entry((element, reason)).or_insert_with(|| {
            self.state_bytes += 8;
            self.state_bytes - 8
        })
    }

    /// The number of the place where a held packet goes on.
    pub(crate) fn resume_point(&mut self, port: ElementPort) -> u32 {
        let known = self.resumptions.iter().position(|p| *p == port);
        let at = known.unwrap_or_else(|| {
            self.resumptions.push(port);
            self.resumptions.len() - 1
        });
        at as u32
    }

    fn function(&mut self, sources: &[(ElementPort, GraphSource)]) {
        let entry = self.func.entry();
        let handle = self.func.blocks[entry].params[0];
        let none = self.graph.elements.len();
        let mut code = ElementBuilder::new(self, none, entry);
        let data = code.bound(handle, 0, Type::Ptr(Prov::Packet));
        let end = code.bound(handle, 4, Type::Ptr(Prov::PacketEnd));
        let (zero, no, host) = (code.int(0), code.truth(false), code.int(HOST));
        let packet = PacketValues::of(&[
            handle, data, end, data, no, zero, zero, no, host, zero, zero, zero, zero, zero, zero, zero,
            zero, zero, zero,
        ]);
        match sources {
            // All packets go on at this input: no test is needed.
            [(port, _)] if !code.compiler.goes_on() => {
                let only = code.compiler.block_of(*port);
                code.jump(only, &packet.values());
            }
            _ => {
                let ingress = code.bound(handle, 12, Type::I64);
                for (at, (port, _)) in sources.iter().enumerate() {
                    let number = code.int(at as i64 + 1);
                    let (here, next) = (code.compiler.block_of(*port), code.block());
                    code.branch_to(ingress, number, (here, &packet.values()), next);
                    code.switch_to_block(next);
                }
                if code.compiler.goes_on() {
                    let number = code.int(sources.len() as i64 + 1);
                    let (here, next) = (code.block(), code.block());
                    code.compiler.passed_on = Some(here);
                    code.branch(Cond::Eq, ingress, number, here, next);
                    code.switch_to_block(next);
                }
                code.drop(packet, "no_source");
            }
        }
        let mut resumable = 0;
        loop {
            while let Some(port) = self.open.pop() {
                self.element(port);
            }
            let Some(port) = self.resumptions.get(resumable).copied() else { break };
            self.block_of(port);
            resumable += 1;
        }
        self.finishing();
        self.emit_dispatch();
    }

    fn element(&mut self, port: ElementPort) {
        let block = self.blocks[&port];
        let packet = PacketValues::of(&self.func.blocks[block].params.clone());
        let Some(behaviour) = self.behaviours[port.element].take() else { return };
        let before = self.func.insts.len();
        self.flow.at(port);
        behaviour.build(&mut ElementBuilder::new(self, port.element, block), port.port, packet);
        self.func.insts.values_mut().skip(before).for_each(|data| data.loc = port.element as u32);
        self.behaviours[port.element] = Some(behaviour);
    }

    /// Generates the block at which a packet is done with: the next one that waits goes on.
    fn finishing(&mut self) {
        let finish = self.finish;
        let none = self.graph.elements.len();
        if let Some(block) = self.passed_on {
            let handle = self.func.blocks[self.func.entry()].params[0];
            ElementBuilder::new(self, none, block).resume(handle);
        }
        if self.resumptions.is_empty() {
            ElementBuilder::new(self, none, finish).emit_return();
            return;
        }
        let leave = self.func.add_block();
        ElementBuilder::new(self, none, leave).emit_return();
        let mut code = ElementBuilder::new(self, none, finish);
        let handle = code.pull(leave);
        code.resume(handle);
    }

    fn finish(mut self) -> (Module, Func) {
        self.module.maps[self.state].value_size = self.state_bytes;
        let entry = self.module.funcs.push(self.func);
        (self.module, entry)
    }
}

impl ElementBuilder<'_, '_> {
    /// Ends with a packet that was held or passed on where it goes on.
    fn resume(&mut self, handle: Value) {
        let (number, packet) = self.resumed(handle);
        let all = self.compiler.resumptions.clone();
        for (at, port) in all.iter().enumerate() {
            let block = self.compiler.block_of(*port);
            let at = self.int(at as i64);
            let next = self.block();
            self.branch_to(number, at, (block, &packet.values()), next);
            self.switch_to_block(next);
        }
        self.emit_return();
    }

    /// Ends the block with a branch that carries a packet where two numbers are equal.
    pub(crate) fn branch_to(&mut self, a: Value, b: Value, yes: (Block, &[Value]), no: Block) {
        let at = self.current_block();
        let targets = [BlockCall::with(yes.0, yes.1.iter().copied()), BlockCall::new(no)];
        let op = Op::Branch { cond: Cond::Eq, width: Width::W64 };
        self.compiler.func.at_end(at).effect(op, [a, b], targets);
    }
}

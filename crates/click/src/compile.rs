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

use millstream_ir::{Block, BlockCall, Cond, Module, Op, Prov, Type, Value, Width};
use rustc_hash::FxHashMap;

use crate::ablation::Ablations;
use crate::arguments::{AddressNames, ElementArguments, NameTable};
use crate::bpf_program::ReadObject;
use crate::build::ElementBuilder;
use crate::class::{ElementClass, ElementCodegen, ElementLibrary};
use crate::error::{ConfigSpan, Error, ErrorStage};
use crate::graph::{Element, ElementPort, Graph};
use crate::graph_compiler::{ByName, GraphCompiler};
use crate::handlers::{Handler, HandlerAccess, HandlerWriters, SettingValue, SourceReadiness};
use crate::layout::{self, MetadataLayout};
use crate::packet::{HOST, NOTES, PacketValues, TYPES, USUAL_NOTES};
use crate::program::{ClickCode, ClickProgram, DropCounter, ElementInfo, GraphSource};
use crate::queueing::{ElementQueue, QueueServer, QueueingNetwork, ShapingPolicy, TimingParameter};
use crate::resolve::{self, PushPullResolver};
use crate::script::{ScriptCall, ScriptKind, ScriptStep};
use crate::{default_handlers, queue_search};

pub(crate) mod published;
pub(crate) mod setup;

use published::PublishedValues;
use setup::{PortSetup, ScriptSetup, SharedSetup};

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
    let default = default_handlers::handlers(library, graph, &classes);
    shared.add_missing_handlers(default);
    known_calls(graph, &shared)?;
    shared.emit_settings_map();
    let SharedSetup {
        module,
        state_bytes,
        ports: PortSetup { gates, sources, targets, devices },
        mut handlers,
        mut entries,
        warnings,
        common,
        scripting: ScriptSetup { scripts, printers, ends, calls },
        values,
        declared,
        mut alone,
        ..
    } = shared;
    let places: Vec<usize> = sources.iter().map(|(port, _)| port.element).collect();
    let (mut waits, inputs) = queue_search::find(graph, &classes, &declared, &places);
    if let Some(first) = graph.elements.first().filter(|_| !waits.pulls.is_empty()) {
        alone.push(Error::new(first.span, "sources that are pulled by turns are for one worker"));
    }
    let ready = readiness(graph, &handlers, &places, &waits);
    handlers.extend(ready);
    let mut compiler = written(
        graph,
        &behaviours,
        (module, state_bytes),
        (values, general, writable(&handlers, &calls)),
        (&sources, targets.len(), inputs),
    );
    known_room(graph, &compiler)?;
    compiler.number(&mut waits);
    entries.extend(compiler.numbers());
    let layout = compiler.layout();
    let drops = std::mem::take(&mut compiler.state_layout.drops);
    let drop = |((element, reason), offset): ((usize, _), _)| DropCounter {
        element: graph.elements.get(element).map_or_else(String::new, |e| e.name.clone()),
        reason: Cow::Borrowed(reason),
        offset,
    };
    let uncloned = compiler.state_layout.uncloned;
    let copies =
        compiler.wiring.flow.copy_bound(&compiler.wiring.outputs, sources.iter().map(|(port, _)| *port));
    let stages = 1 + resolve::longest_chain(graph, &compiler.wiring.returns, &compiler.boundary.passing_on);
    let (module, entry) = compiler.finish();
    Ok(ClickProgram {
        code: ClickCode {
            module,
            entry,
            entries,
            warnings,
            layout,
            alone,
            elements: graph.elements.iter().map(named).collect(),
        },
        sources: sources.into_iter().map(|(_, source)| source).collect(),
        targets,
        gates,
        drops: drops.into_iter().map(drop).chain(waiting_drops(&waits)).collect(),
        waits,
        handlers,
        scripts,
        printers,
        ends,
        calls,
        copies,
        devices,
        common,
        uncloned,
        stages,
    })
}

/// Handlers of sources about their readiness, made of the numbers behind other handlers.
fn readiness(graph: &Graph, handlers: &[Handler], places: &[usize], waits: &QueueingNetwork) -> Vec<Handler> {
    let queue = |lane: &usize| {
        let queue = waits.lanes.get(*lane)?.queue?;
        let capacity = match queue.capacity {
            TimingParameter::Fixed(capacity) => SettingValue::Fixed(capacity),
            TimingParameter::Setting(at) => SettingValue::Live(at),
            TimingParameter::Equals(..) => return None,
        };
        Some((queue.length, capacity))
    };
    let handler = |(source, element): (usize, &usize)| {
        let element = &graph.elements.get(*element)?.name;
        let access = |name: &str| {
            handlers
                .iter()
                .find(|handler| handler.element == *element && handler.name == name)
                .map(|h| &h.access)
        };
        let number = |name: &str| match access(name)? {
            HandlerAccess::Setting(at, _) => Some(SettingValue::Live(*at)),
            HandlerAccess::Constant(text) if text == "true" => Some(SettingValue::Fixed(1)),
            HandlerAccess::Constant(text) if text == "false" => Some(SettingValue::Fixed(0)),
            HandlerAccess::Constant(text) => text.parse().ok().map(SettingValue::Fixed),
            _ => None,
        };
        let HandlerAccess::Number(count) = *access("count")? else { return None };
        let hold = waits.holds.iter().find(|hold| hold.source == source);
        let queues = hold.map_or_else(Vec::new, |hold| hold.lanes.iter().filter_map(queue).collect());
        let source = SourceReadiness { count, limit: number("limit")?, active: number("active")?, queues };
        let access = HandlerAccess::Ready(source);
        Some(Handler { element: element.clone(), name: "scheduled".into(), access })
    };
    places.iter().enumerate().filter_map(handler).collect()
}

/// Checks that the annotations of queued packets have room in their buffers.
fn known_room(graph: &Graph, compiler: &GraphCompiler<'_>) -> Result<(), Vec<Error>> {
    let (bytes, most) = (compiler.waiting.kept.bytes, layout::RESERVED);
    if bytes <= most {
        return Ok(());
    }
    let span = graph.elements.first().map_or(ConfigSpan::default(), |element| element.span);
    let message = format!("queued packets would keep {bytes} bytes of annotations, of {most} at most");
    Err(vec![Error::new(span, message)])
}

/// Checks that the handlers that code writes exist.
fn known_calls(graph: &Graph, shared: &SharedSetup) -> Result<(), Vec<Error>> {
    let mut errors = Vec::new();
    for call in &shared.scripting.calls {
        let Some(script) = shared.scripting.scripts.get(call.script) else { continue };
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

/// Counters of packets that are dropped where they wait.
fn waiting_drops(waits: &QueueingNetwork) -> Vec<DropCounter> {
    waits.lanes.iter().filter_map(overflow).chain(waits.servers.iter().filter_map(forgotten)).collect()
}

/// The counter of packets that a full queue drops.
fn overflow(lane: &ElementQueue) -> Option<DropCounter> {
    let offset = lane.queue?.dropped;
    Some(DropCounter { element: lane.element.clone(), reason: Cow::Borrowed("queue_full"), offset })
}

/// The counter of packets that an element drops before it has sent a copy of them.
fn forgotten(server: &QueueServer) -> Option<DropCounter> {
    let ShapingPolicy::Replay(of) = server.pace else { return None };
    Some(DropCounter { element: server.element.clone(), reason: Cow::Borrowed("reset"), offset: of.dropped })
}

fn named(element: &Element) -> ElementInfo {
    ElementInfo { name: format!("`{}`", element.declaration()), span: element.span }
}

fn behaviours(
    graph: &Graph,
    classes: &[&'static ElementClass],
    (objects, writers): (&ReadObject<'_>, HandlerWriters),
    shared: &mut SharedSetup,
) -> Result<Vec<Box<dyn ElementCodegen>>, Vec<Error>> {
    let names = AddressNames { said: said_by(graph, "AddressInfo"), interfaces: graph.interfaces.clone() };
    let patterns = said_by(graph, "IPRewriterPatterns");
    let (mut all, mut errors) = (Vec::new(), Vec::new());
    let all_ports = graph.ports();
    for (at, (element, class)) in graph.elements.iter().zip(classes).enumerate() {
        shared.element = at;
        let (inputs, outputs) = all_ports[at];
        let arguments = ElementArguments::new(element, (class.arguments, class.rest.as_ref()), &names);
        let mut setup = setup::ElementSetup {
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
        let setup::ElementSetup { arguments, .. } = setup;
        let made = made.and_then(|behaviour| arguments.finish().map(|()| behaviour));
        match made {
            Ok(behaviour) => all.push(behaviour),
            Err(e) => errors.push(e.at_stage(ErrorStage::Configuring(element.declaration().into()))),
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

/// Generates the function: first without annotations of packets that wait, to see which of these are read, then
/// with them.
fn written<'g>(
    graph: &'g Graph,
    behaviours: &[Box<dyn ElementCodegen>],
    (module, state_bytes): (Module, u32),
    (values, general, writable): (PublishedValues, Ablations, ByName<HandlerAccess>),
    (sources, targets, lanes): (&[(ElementPort, GraphSource)], usize, Vec<ElementPort>),
) -> GraphCompiler<'g> {
    let returns = resolve::back_edges(graph);
    let mut first =
        GraphCompiler::new(graph, returns.clone(), module.clone(), state_bytes).with_ablations(general);
    (first.values, first.boundary.queues) = (values, targets as u32);
    (first.waiting.lanes, first.writable) = (lanes, writable);
    write_function(&mut first, behaviours, sources);
    let resumed: Vec<(ElementPort, Block)> =
        first.waiting.resumptions.iter().map(|port| (*port, first.blocks[port])).collect();
    let mut kept = layout::live_annotations(&first.func, &resumed, &first.waiting.held);
    if general.annotations {
        let is_live = |note: &usize| kept.notes.iter().any(|(live, ..)| live == note);
        let all: Vec<usize> = (0..NOTES).filter(|note| *note < USUAL_NOTES || is_live(note)).collect();
        kept = MetadataLayout::packed(&all, resumed.len(), FxHashMap::default());
    }
    if kept.notes.is_empty() {
        return first;
    }
    let mut second = GraphCompiler::new(graph, returns, module, state_bytes).with_ablations(general);
    (second.waiting.kept, second.values) = (kept, first.values);
    (second.boundary.queues, second.waiting.lanes) = (first.boundary.queues, first.waiting.lanes);
    second.writable = first.writable;
    write_function(&mut second, behaviours, sources);
    second
}

fn write_function(
    compiler: &mut GraphCompiler<'_>,
    behaviours: &[Box<dyn ElementCodegen>],
    sources: &[(ElementPort, GraphSource)],
) {
    write_entry(compiler, sources);
    let mut resumable = 0;
    loop {
        while let Some(port) = compiler.open.pop() {
            write_element(compiler, behaviours[port.element].as_ref(), port);
        }
        let Some(port) = compiler.waiting.resumptions.get(resumable).copied() else { break };
        compiler.block_of(port);
        resumable += 1;
    }
    write_finish(compiler);
    write_dispatch(compiler);
}

/// Generates the first block: a packet goes to the input of its source.
fn write_entry(compiler: &mut GraphCompiler<'_>, sources: &[(ElementPort, GraphSource)]) {
    let entry = compiler.func.entry();
    let handle = compiler.func.blocks[entry].params[0];
    let none = compiler.graph.elements.len();
    let mut code = ElementBuilder::new(compiler, none, entry);
    let data = code.bound(handle, 0, Type::Ptr(Prov::Packet));
    let end = code.bound(handle, 4, Type::Ptr(Prov::PacketEnd));
    let (zero, no, host) = (code.int(0), code.truth(false), code.int(HOST));
    let packet = PacketValues::of(&[
        handle, data, end, data, no, zero, zero, no, host, zero, zero, zero, zero, zero, zero, zero, zero,
        zero, zero,
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
                code.compiler.boundary.passed_on = Some(here);
                code.branch(Cond::Eq, ingress, number, here, next);
                code.switch_to_block(next);
            }
            code.drop(packet, "no_source");
        }
    }
}

fn write_element(compiler: &mut GraphCompiler<'_>, behaviour: &dyn ElementCodegen, port: ElementPort) {
    let block = compiler.blocks[&port];
    let packet = PacketValues::of(&compiler.func.blocks[block].params.clone());
    let before = compiler.func.insts.len();
    compiler.wiring.flow.at(port);
    behaviour.build(&mut ElementBuilder::new(compiler, port.element, block), port.port, packet);
    compiler.func.insts.values_mut().skip(before).for_each(|data| data.loc = port.element as u32);
}

/// Generates the block at which a packet is done with: the next one that waits goes on.
fn write_finish(compiler: &mut GraphCompiler<'_>) {
    let finish = compiler.finish;
    let none = compiler.graph.elements.len();
    if let Some(block) = compiler.boundary.passed_on {
        let handle = compiler.func.blocks[compiler.func.entry()].params[0];
        ElementBuilder::new(compiler, none, block).resume(handle);
    }
    if compiler.waiting.resumptions.is_empty() {
        ElementBuilder::new(compiler, none, finish).emit_return();
        return;
    }
    let leave = compiler.func.add_block();
    ElementBuilder::new(compiler, none, leave).emit_return();
    let mut code = ElementBuilder::new(compiler, none, finish);
    let handle = code.pull(leave);
    code.resume(handle);
}

/// Writes where packets go by the numbers of inputs.
fn write_dispatch(compiler: &mut GraphCompiler<'_>) {
    let Some(dispatch) = compiler.numbers.dispatch else { return };
    let none = compiler.graph.elements.len();
    let params = compiler.func.blocks[dispatch].params.clone();
    let (values, number) = (&params[..TYPES.len()], params[TYPES.len()]);
    let mut code = ElementBuilder::new(compiler, none, dispatch);
    for (at, port) in code.compiler.numbers.inputs.clone().into_iter().enumerate() {
        let block = code.compiler.block_of(port);
        let (at, next) = (code.int(at as i64), code.block());
        code.branch_to(number, at, (block, values), next);
        code.switch_to_block(next);
    }
    code.emit_return();
}

impl ElementBuilder<'_, '_> {
    /// Ends with a packet that was held or passed on where it goes on.
    fn resume(&mut self, handle: Value) {
        let (number, packet) = self.resumed(handle);
        let all = self.compiler.waiting.resumptions.clone();
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

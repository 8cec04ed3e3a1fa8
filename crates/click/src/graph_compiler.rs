//! The function of the whole graph while it is written: blocks of inputs, counters, places at which packets go on,
//! and numbers that code reads from memory.

use std::collections::BTreeMap;

use millstream_ir::{Block, Func, Function, GlobalData, Linkage, Map, MapDecl, Module, Prov, Size, Type};
use millstream_isa::MapType;
use rustc_hash::{FxHashMap, FxHashSet};

use crate::ablation::{AblationConstants, Ablations, said};
use crate::compile::published::PublishedValues;
use crate::copy_bound::CopyGraph;
use crate::graph::{ElementPort, Graph};
use crate::handlers::{HandlerAccess, SETTINGS};
use crate::layout::{self, HeldPacket, MetadataLayout, MetadataUsage};
use crate::packet::TYPES;
use crate::program::{InitialEntry, STATE};
use crate::queueing::{ByteRange, QueueingNetwork};

/// `BPF_PROG_TYPE_XDP`: its argument is a packet with its bounds.
const XDP: u32 = 6;

/// The name of the map with numbers that are read from memory and known beforehand.
const REMEMBERED: &str = "click.numbers";

/// Declarations of elements, by the name of the element they are about.
pub(crate) type ByName<T> = FxHashMap<String, T>;

/// Packets that wait, and the inputs at which they go on.
pub(crate) struct WaitingPackets {
    /// Inputs at which held packets go on, by number.
    pub(crate) resumptions: Vec<ElementPort>,
    /// Annotations that are kept while a packet waits.
    pub(crate) kept: MetadataLayout,
    /// Held packets: the input each goes on at, and its annotations.
    pub(crate) held: Vec<HeldPacket>,
    /// Inputs that packets wait at, in the order of the outputs that they wait behind.
    pub(crate) lanes: Vec<ElementPort>,
}

/// Passing of packets from one stage to the next.
pub(crate) struct StageBoundary {
    /// The output that leads queued packets to the next stage, if there are stages; and the elements that
    /// pass packets on there.
    pub(crate) queues: u32,
    pub(crate) passing_on: FxHashSet<usize>,
    /// Block at which these packets come in again.
    pub(crate) passed_on: Option<Block>,
}

/// The state of the elements, and where in it the counts are.
pub(crate) struct StateLayout {
    pub(crate) map: Map,
    pub(crate) bytes: u32,
    pub(crate) uncloned: u32,
    pub(crate) drops: BTreeMap<(usize, &'static str), u32>,
}

/// Connections of elements.
pub(crate) struct GraphWiring {
    /// Inputs that outputs are connected to: several only where these pull.
    pub(crate) outputs: FxHashMap<ElementPort, Vec<ElementPort>>,
    /// Outputs that lead back to an element on the way to them.
    pub(crate) returns: FxHashSet<ElementPort>,
    /// Inputs to which packets of each input are copied.
    pub(crate) flow: CopyGraph,
}

/// State of the compilation.
pub(crate) struct GraphCompiler<'g> {
    pub(crate) graph: &'g Graph,
    pub(crate) wiring: GraphWiring,
    /// Offsets in the state of the turns of pullers.
    pub(crate) turns: FxHashMap<ElementPort, u32>,
    pub(crate) func: Function,
    pub(crate) module: Module,
    pub(crate) state_layout: StateLayout,
    /// The array of settings, if any may be written.
    pub(crate) settings: Option<Map>,
    /// Block at which the processing of a packet ends.
    pub(crate) finish: Block,
    pub(crate) blocks: FxHashMap<ElementPort, Block>,
    pub(crate) open: Vec<ElementPort>,
    pub(crate) waiting: WaitingPackets,
    /// Values that elements publish.
    pub(crate) values: PublishedValues,
    pub(crate) general: Ablations,
    pub(crate) boundary: StageBoundary,
    /// Numbers that general code reads from memory.
    pub(crate) numbers: AblationConstants,
    /// Handlers that code writes by itself, by their whole names: settings, and numbers of the state that
    /// become zero.
    pub(crate) writable: ByName<HandlerAccess>,
}

impl<'g> GraphCompiler<'g> {
    /// A function without code. `returns` are the outputs that lead back to an element on the way to them.
    pub(crate) fn new(
        graph: &'g Graph,
        returns: FxHashSet<ElementPort>,
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
            wiring: GraphWiring { outputs, returns, flow: CopyGraph::default() },
            turns: FxHashMap::default(),
            func,
            module,
            state_layout: StateLayout {
                map: state,
                bytes: state_bytes + 8,
                uncloned: state_bytes,
                drops: BTreeMap::new(),
            },
            settings,
            finish,
            blocks: FxHashMap::default(),
            open: Vec::new(),
            waiting: WaitingPackets {
                resumptions: Vec::new(),
                kept: MetadataLayout::nothing(),
                held: Vec::new(),
                lanes: Vec::new(),
            },
            values: PublishedValues::default(),
            general: Ablations::default(),
            boundary: StageBoundary { queues: 0, passing_on: FxHashSet::default(), passed_on: None },
            numbers: AblationConstants::default(),
            writable: FxHashMap::default(),
        }
    }

    /// Data that the code keeps of a packet beside its bytes.
    pub(crate) fn layout(&self) -> MetadataUsage {
        let mut inputs: Vec<(&ElementPort, &Block)> = self.blocks.iter().collect();
        inputs.sort_unstable();
        let inputs: Vec<Block> = inputs.into_iter().map(|(_, block)| *block).collect();
        layout::layout(&self.func, &inputs, &self.waiting.kept, &self.waiting.resumptions)
    }

    /// Names the places of lanes in the code, and the annotations it keeps of packets that wait there. (A
    /// place that no packet reaches has no name.)
    pub(crate) fn number(&self, waits: &mut QueueingNetwork) {
        let part = |(size, at): (Size, i32)| ByteRange { at: at as u32, bytes: size.bytes() };
        for (lane, input) in waits.lanes.iter_mut().zip(&self.waiting.lanes) {
            let known = self.waiting.resumptions.iter().position(|port| port == input);
            lane.number = known.unwrap_or_default() as u32;
            lane.numbered = part(self.waiting.kept.number);
            let notes = self
                .waiting
                .kept
                .notes
                .iter()
                .filter(|(note, ..)| self.waiting.kept.is_live_at(*input, *note));
            lane.notes = notes.map(|&(note, size, at)| (note, part((size, at)))).collect();
        }
        waits.kept = self.waiting.kept.bytes;
    }

    /// The output behind which packets wait at an input, if they do.
    pub(crate) fn lane(&self, input: ElementPort) -> Option<u32> {
        let lane = self.waiting.lanes.iter().position(|port| *port == input)?;
        Some(self.boundary.queues + lane as u32)
    }

    /// Returns true if packets that have left come in again.
    pub(crate) fn goes_on(&self) -> bool {
        self.general.stages || !self.waiting.lanes.is_empty()
    }

    /// An element's name.
    pub(crate) fn element_name(&self, element: usize) -> String {
        self.graph.elements.get(element).map_or_else(String::new, |e| e.name.clone())
    }

    /// The input that an output is connected to, or the first of several that pull from it.
    pub(crate) fn target(&self, from: ElementPort) -> Option<ElementPort> {
        self.wiring.outputs.get(&from)?.first().copied()
    }

    /// The inputs that pull from an output, and the offset of their turn; none if there is only one.
    pub(crate) fn pullers(&mut self, from: ElementPort) -> Option<(Vec<ElementPort>, u32)> {
        let pullers = self.wiring.outputs.get(&from).filter(|all| all.len() > 1)?.clone();
        let state_bytes = &mut self.state_layout.bytes;
        let turn = *self.turns.entry(from).or_insert_with(|| {
            *state_bytes += 8;
            *state_bytes - 8
        });
        Some((pullers, turn))
    }

    /// Returns true if an output leads back to an element on the way to it.
    pub(crate) fn is_back_edge(&self, from: ElementPort) -> bool {
        self.wiring.returns.contains(&from)
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
        *self.state_layout.drops.entry((element, reason)).or_insert_with(|| {
            self.state_layout.bytes += 8;
            self.state_layout.bytes - 8
        })
    }

    /// The number of the place where a held packet goes on.
    pub(crate) fn resume_point(&mut self, port: ElementPort) -> u32 {
        let known = self.waiting.resumptions.iter().position(|p| *p == port);
        let at = known.unwrap_or_else(|| {
            self.waiting.resumptions.push(port);
            self.waiting.resumptions.len() - 1
        });
        at as u32
    }

    /// Makes code general as requested.
    pub(crate) fn with_ablations(mut self, general: Ablations) -> Self {
        self.general = general;
        if general.arguments {
            self.numbers.said = self.graph.elements.iter().map(said).collect();
        }
        if general.graph {
            let block = self.func.add_block();
            for ty in TYPES.into_iter().chain([Type::I64]) {
                self.func.add_param(block, ty);
            }
            self.numbers.dispatch = Some(block);
        }
        if general.arguments || general.graph {
            let map =
                MapDecl { name: REMEMBERED.to_owned(), ..self.module.maps[self.state_layout.map].clone() };
            self.numbers.remembered = Some(self.module.maps.push(map));
        }
        self
    }

    /// Place in memory of a number that an element needs, if it is one of its arguments' and these are read
    /// from memory.
    pub(crate) fn argument(&mut self, element: usize, number: i64) -> Option<(Map, u32)> {
        match self.numbers.said.get(element)?.contains(&number) {
            true => Some(self.remember(number, self.numbers.remembered?)),
            false => None,
        }
    }

    fn remember(&mut self, number: i64, map: Map) -> (Map, u32) {
        self.numbers.read.push(number);
        (map, 8 * (self.numbers.read.len() as u32 - 1))
    }

    /// Place of the number of an input, and the block that dispatches packets by it; `None` if connections
    /// are jumps.
    pub(crate) fn connection(&mut self, to: ElementPort) -> Option<((Map, u32), Block)> {
        let (map, dispatch) = (self.numbers.remembered?, self.numbers.dispatch?);
        let known = self.numbers.inputs.iter().position(|port| *port == to);
        let number = known.unwrap_or_else(|| {
            self.numbers.inputs.push(to);
            self.numbers.inputs.len() - 1
        });
        self.block_of(to);
        Some((self.remember(number as i64, map), dispatch))
    }

    /// Values of the numbers that are read from memory.
    pub(crate) fn numbers(&mut self) -> Option<InitialEntry> {
        let map = self.numbers.remembered?;
        let numbers = if self.numbers.read.is_empty() { &[0][..] } else { &self.numbers.read };
        let value: Vec<u8> = numbers.iter().flat_map(|number| number.to_le_bytes()).collect();
        self.module.maps[map].value_size = value.len() as u32;
        Some(InitialEntry { map: REMEMBERED.to_owned(), key: vec![0; 4], value })
    }

    /// The module with the function.
    pub(crate) fn finish(mut self) -> (Module, Func) {
        self.module.maps[self.state_layout.map].value_size = self.state_layout.bytes;
        let entry = self.module.funcs.push(self.func);
        (self.module, entry)
    }
}

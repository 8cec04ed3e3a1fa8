//! Compiled configurations: what the code is, where its packets come from and go to, and what may be read and
//! written while it runs.

use std::borrow::Cow;

use millstream_ir::{Func, Module};
use millstream_isa::MapType;
use serde::{Deserialize, Serialize};

use crate::error::{ConfigSpan, Error};
use crate::handlers::{Handler, HandlerAccess};
use crate::layout::MetadataUsage;
use crate::printing::PacketPrinter;
use crate::queueing::QueueingNetwork;
use crate::script::{Script, ScriptCall};
use crate::summary::SummarySource;

/// The queue of packets that wait for the one at hand.
pub const QUEUE: i64 = 0;

/// Port at which packets of a source begin if the element has inputs of its own.
pub const NO_INPUT: u32 = u32::MAX;

/// `BPF_F_RDONLY_PROG`: no element writes it.
pub(crate) const RDONLY_PROG: u32 = 1 << 7;
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

/// Code of a program, and what is known of it only while it is compiled.
#[derive(Clone, Debug)]
pub struct ClickCode {
    /// The IR.
    pub module: Module,
    /// Its function. The argument is a packet's descriptor, in which the ingress is the number of the input.
    pub entry: Func,
    /// Initial entries of tables.
    pub entries: Vec<InitialEntry>,
    /// Warnings: arguments that are read but have no effect.
    pub warnings: Vec<Error>,
    /// Data that it keeps of a packet beside its bytes.
    pub layout: MetadataUsage,
    /// Why one worker must run it all.
    pub alone: Vec<Error>,
    /// The elements; instructions name them as their source lines.
    pub elements: Vec<ElementInfo>,
}

impl Default for ClickCode {
    /// Code that exists already.
    fn default() -> ClickCode {
        ClickCode {
            module: Module::default(),
            entry: first(),
            entries: Vec::new(),
            warnings: Vec::new(),
            layout: MetadataUsage::default(),
            alone: Vec::new(),
            elements: Vec::new(),
        }
    }
}

/// Properties of devices that elements ask for.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct DeviceProperties {
    /// Devices whose packets have no Ethernet header.
    pub unframed: Vec<String>,
    /// Ethernet addresses that cards get for the run, by device.
    pub addresses: Vec<(String, [u8; 6])>,
}

/// A compiled configuration. In the form that `serde` writes, it describes a program whose code exists
/// already: without the IR, entries of tables, and warnings.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ClickProgram {
    /// The code, which exists already where `serde` has written the program.
    #[serde(skip)]
    pub code: ClickCode,
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
    /// Properties of devices.
    pub devices: DeviceProperties,
    /// Numbers of the state that several elements have in common, by name.
    pub common: Vec<(String, u32)>,
    /// Offset of the count of copies that failed.
    pub uncloned: u32,
    /// Packets that wait for their time: the outputs behind all others lead to lanes, and packets that are
    /// due come in by a source behind all others.
    pub waits: QueueingNetwork,
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
        if !self.code.alone.is_empty() {
            return Err(self.code.alone);
        }
        let sketches = self.handlers.iter().filter_map(|handler| match &handler.access {
            HandlerAccess::Estimate(sketch) => Some([&sketch.counters, &sketch.candidates]),
            _ => None,
        });
        let own: Vec<&str> = sketches.flatten().map(String::as_str).chain([STATE]).collect();
        for map in self.code.module.maps.values_mut().filter(|map| own.contains(&map.name.as_str())) {
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

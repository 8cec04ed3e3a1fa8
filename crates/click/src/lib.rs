//! The Click front end: configurations to one function of the IR.
//!
//! [`parse()`] reads the language, [`flatten()`] takes compound elements apart, [`compile()`] makes the graph
//! a function: elements are blocks, connections are jumps, annotations are values ([`ClickProgram`]).
//!
//! The elements are in a library that is passed in ([`class::ElementLibrary`]): Click's own are those of
//! `millstream-click-elements`.
//!
//! Architecture Invariant: no I/O and no back end here. Files and devices are names, which the command line
//! maps; the caller of [`compile()`] reads object files, and the graph gives the addresses of
//! interfaces.
//!
//! Architecture Invariant: configurations are hostile until read: memory is bounded by limits on elements and
//! connections, nothing panics, and the generated code accesses no byte outside of a packet, whatever the
//! packet.

mod ablation;
mod alignment;
pub mod arguments;
pub mod ast;
mod bpf_program;
pub mod build;
pub mod class;
mod compile;
mod config;
mod copy_bound;
mod dead_elements;
pub mod decision_program;
mod default_handlers;
mod error;
mod flatten;
mod graph;
mod graph_compiler;
mod handlers;
mod hash_table;
mod hot_swap;
pub mod keyword;
mod layout;
mod lex;
pub mod packet;
mod parse;
mod printing;
mod program;
mod queue_search;
mod queueing;
mod reference;
mod resolve;
mod script;
mod sketch;
mod summary;
pub mod tables;
pub mod token_rates;

pub use ablation::Ablations;
pub use alignment::with_alignment;
pub use bpf_program::{BpfElementProgram, ProgramHook, ReadObject};
pub use compile::compile;
pub use compile::setup::ElementSetup;
pub use config::{SpannedText, decoded, unquote, words};
pub use dead_elements::without_dead_elements;
pub use error::{ConfigSpan, Error, ErrorStage, driver_lines, nearest};
pub use flatten::flatten;
pub use graph::{CaptureInfo, Element, ElementConnection, ElementPort, Graph, HostInterface};
pub use handlers::{
    Handler, HandlerAccess, HandlerWriters, RangeEdge, SETTINGS, SampleSeries, SampleStatistic, SettingBits,
    SettingType, SettingValue, SourceReadiness, StateRatio, TableFormat, TableOperation, TimeRange,
    TimeRangePart, ether_number,
};
pub use layout::{AnnotationUsage, ContextField, MetadataUsage};
pub use parse::parse;
pub use printing::{
    IpForm, NO_NETWORK, PRINTS, PacketPrinter, PayloadFormat, PrintForm, WORDS, chatter, printed,
};
pub use program::{
    CaptureOptions, ClickCode, ClickProgram, DeviceProperties, DropCounter, ElementInfo, GraphSink,
    GraphSource, InitialEntry, NO_INPUT, QUEUE, STATE, SourceControl, SourceEnd,
};
pub use queueing::{
    ByteRange, ElementQueue, PullScheduler, QueueProperties, QueueServer, QueueingNetwork, RESUMED,
    ReplayNumbers, ShapingPolicy, SourceHold, SourceSchedule, SourceTiming, TimingParameter, TokenBucketSize,
};
pub use reference::reference;
pub use script::{
    JumpTarget, Script, ScriptCall, ScriptKind, ScriptStep, script as read_script, signal_number, unquoted,
};
pub use sketch::{FlowKey, FlowSketch, MIX, MOST_ROWS, multiplier};
pub use summary::{
    SUMMARY_PREFIX, SummaryField, SummaryFlow, SummaryInput, SummaryPacket, SummaryReader, SummarySource,
    seconds_text, summary_header,
};

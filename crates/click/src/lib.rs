//! The Click front end: configurations to one function of the IR.
//!
//! [`parse()`] reads the language, [`flatten()`] takes compound elements apart, [`compile()`] makes the graph
//! a function: elements are blocks, connections are jumps, annotations are values ([`ClickProgram`]).
//! `docs/click.md` lists the elements.
//!
//! Architecture Invariant: no I/O and no back end here. Files and devices are names, which the command line
//! maps; the caller of [`compile_with()`] reads object files, and the graph gives the addresses of
//! interfaces.
//!
//! Architecture Invariant: configurations are hostile until read: memory is bounded by limits on elements and
//! connections, nothing panics, and the generated code accesses no byte outside of a packet, whatever the
//! packet.

mod ablation;
mod arguments;
pub mod ast;
mod bpf_program;
mod build;
mod class;
mod compile;
mod config;
mod copy_bound;
mod default_handlers;
mod elements;
mod error;
mod flatten;
mod graph;
mod handlers;
mod hot_swap;
mod keyword;
mod layout;
mod lex;
mod packet;
mod parse;
mod printing;
mod queueing;
mod reference;
mod resolve;
mod script;
mod sketch;
mod tables;
mod unsupported;

pub use ablation::Ablations;
pub use arguments::{ether_text, ip_text, ip6_text, prefix_text, prefix6_text};
pub use bpf_program::{BpfElementProgram, ReadObject};
pub use compile::{
    CaptureOptions, ClickProgram, DropCounter, ElementInfo, GraphSink, GraphSource, InitialEntry, QUEUE,
    STATE, SourceControl, SourceEnd, compile, compile_for, compile_with,
};
pub use config::{SpannedText, decoded};
pub use elements::{bridge_text, capture_files, time};
pub use error::{ConfigSpan, Error, nearest};
pub use flatten::flatten;
pub use graph::{CaptureInfo, Element, ElementConnection, ElementPort, Graph, HostInterface};
pub use handlers::{
    Handler, HandlerAccess, HandlerWriters, SETTINGS, SettingBits, SettingType, StateRatio, TableFormat,
    TableOperation,
};
pub use layout::{AnnotationUsage, ContextField, MetadataUsage};
pub use parse::parse;
pub use printing::{IpForm, PRINTS, PacketPrinter, PayloadFormat, PrintForm, chatter, printed};
pub use queueing::{
    ByteRange, ElementQueue, PullScheduler, QueueProperties, QueueServer, QueueingNetwork, ShapingPolicy,
    SourceSchedule, SourceTiming, TimingParameter, TokenBucketSize,
};
pub use reference::reference;
pub use script::{JumpTarget, Script, ScriptCall, ScriptKind, ScriptStep, signal_number, unquoted};
pub use sketch::{FlowKey, FlowSketch};

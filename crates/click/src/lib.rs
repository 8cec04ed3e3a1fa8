//! The Click front end: configurations to one function of the IR.
//!
//! [`parse()`] reads the language, [`flatten()`] takes compound elements apart, [`compile()`] makes the graph
//! a function: elements are blocks, connections are jumps, annotations are values ([`Program`]).
//! `docs/click.md` lists the elements.
//!
//! Architecture Invariant: no I/O and no back end here. Files and devices are names, which the command line
//! maps; the caller of [`compile_with()`] reads object files, and the graph gives the addresses of
//! interfaces.
//!
//! Architecture Invariant: configurations are hostile until read: memory is bounded by limits on elements and
//! connections, nothing panics, and the generated code accesses no byte outside of a packet, whatever the
//! packet.

mod default_handlers;
mod arguments;
pub mod ast;
mod build;
mod hot_swap;
mod class;
mod compile;
mod config;
mod copy_bound;
mod elements;
mod error;
mod flatten;
mod bpf_program;
mod ablation;
mod graph;
mod handlers;
mod keyword;
mod layout;
mod lex;
mod packet;
mod parse;
mod printing;
mod reference;
mod unsupported;
mod resolve;
mod script;
mod sketch;
mod tables;
mod queueing;

pub use arguments::{ether_text, ip_text, ip6_text, prefix_text, prefix6_text};
pub use compile::{
    DropCounter, InitialEntry, SourceControl, ElementInfo, ClickProgram, QUEUE, CaptureOptions, STATE, GraphSource, SourceEnd, GraphSink, compile,
    compile_for, compile_with,
};
pub use config::{SpannedText, decoded};
pub use elements::{bridge_text, capture_files, time};
pub use error::{Error, ConfigSpan, nearest};
pub use flatten::flatten;
pub use bpf_program::{BpfElementProgram, ReadObject};
pub use ablation::Ablations;
pub use graph::{CaptureInfo, ElementConnection, Element, Graph, HostInterface, ElementPort};
pub use handlers::{HandlerAccess, SettingBits, TableFormat, Handler, StateRatio, SETTINGS, SettingType, TableOperation, HandlerWriters};
pub use layout::{AnnotationUsage, ContextField, MetadataUsage};
pub use parse::parse;
pub use printing::{PayloadFormat, IpForm, PRINTS, PrintForm, PacketPrinter, chatter, printed};
pub use reference::reference;
pub use script::{ScriptCall, JumpTarget, Script, ScriptKind, ScriptStep, unquoted};
pub use sketch::{FlowKey, FlowSketch};
pub use queueing::{SourceSchedule, TokenBucketSize, ElementQueue, TimingParameter, ShapingPolicy, ByteRange, QueueProperties, SourceTiming, QueueServer, PullScheduler, QueueingNetwork};

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

mod about;
mod arguments;
pub mod ast;
mod build;
mod carry;
mod class;
mod compile;
mod config;
mod copies;
mod elements;
mod error;
mod flatten;
mod foreign;
mod general;
mod graph;
mod handlers;
mod keyword;
mod layout;
mod lex;
mod packet;
mod parse;
mod printing;
mod reference;
mod refused;
mod resolve;
mod script;
mod sketch;
mod tables;
mod waits;

pub use arguments::{ether_text, ip_text, ip6_text, prefix_text, prefix6_text};
pub use compile::{
    Drop, Entry, Gate, Named, Program, QUEUE, Recording, STATE, Source, SourceEnd, Target, compile,
    compile_for, compile_with,
};
pub use config::{Text, decoded};
pub use elements::{bridge_text, capture_files, time};
pub use error::{Error, Span, nearest};
pub use flatten::flatten;
pub use foreign::{Foreign, ReadObject};
pub use general::General;
pub use graph::{Capture, Connection, Element, Graph, Interface, Port};
pub use handlers::{Access, Bits, Form, Handler, Ratio, SETTINGS, Takes, Verb, Writers};
pub use layout::{Annotation, Field, Layout};
pub use parse::parse;
pub use printing::{Contents, IpForm, PRINTS, PrintForm, Printer, chatter, printed};
pub use reference::reference;
pub use script::{Call, Goal, Script, ScriptKind, Step, unquoted};
pub use sketch::{Flow, Sketch};
pub use waits::{Beat, Burst, Lane, Number, Pace, Part, Queued, Sender, Server, Turns, Waits};

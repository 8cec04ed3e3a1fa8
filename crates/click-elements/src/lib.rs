//! The elements of Click: each is a class, the arguments it takes, and the code for a packet.
//!
//! Behaviour is that of Click's documentation, held against FastClick (`bench/click.py`). [`LIBRARY`] holds all
//! classes; [`compile()`] and its like compile configurations of these.
//!
//! Architecture Invariant: no I/O and no back end. Elements use the public interface of `millstream-click`, as
//! anybody's own elements would.

mod aggregate_counter;
mod aggregates;
mod basic;
mod bpf;
mod capture_filter;
mod classify;
mod clipboard;
mod counters;
mod devices;
mod ether;
mod ether_vlan;
mod flows;
mod fragment;
mod generators;
mod headers;
mod hub;
mod icmp;
mod input_switch;
mod ip;
mod ip6;
mod ip6_error;
mod ip6_neighbours;
mod ip_check;
mod ip_filter;
mod ip_marks;
mod ip_options;
mod latency;
mod lengths;
mod link_types;
mod lookup;
mod match_table;
mod meter;
mod output_switches;
mod packet_script;
mod paint;
mod ping;
mod port_names;
mod print;
mod querier;
mod random_sample;
mod reassemble;
mod red;
mod resize;
mod rewrite;
mod sketch;
mod span_tree;
mod store_address;
mod strips;
mod summaries;
mod switch;
mod time_filter;
mod timed;
mod timestamps;
mod translate;
mod translate_address;
mod transport;
mod unsupported;
mod vlan;
mod web_clients;
mod work_package;

use millstream_click::class::{ElementClass, ElementLibrary};
use millstream_click::{Ablations, ClickProgram, Error, Graph, HandlerWriters, ReadObject};

pub use link_types::capture_files;
pub use span_tree::bridge_text;

/// All classes, by topic.
const TABLES: &[&[ElementClass]] = &[
    aggregate_counter::CLASSES,
    aggregates::CLASSES,
    basic::CLASSES,
    bpf::CLASSES,
    classify::CLASSES,
    clipboard::CLASSES,
    counters::CLASSES,
    devices::CLASSES,
    ether::CLASSES,
    ether_vlan::CLASSES,
    flows::CLASSES,
    fragment::CLASSES,
    generators::CLASSES,
    headers::CLASSES,
    hub::CLASSES,
    icmp::CLASSES,
    input_switch::CLASSES,
    ip::CLASSES,
    ip6::CLASSES,
    ip6_error::CLASSES,
    ip6_neighbours::CLASSES,
    ip_check::CLASSES,
    ip_filter::CLASSES,
    ip_marks::CLASSES,
    ip_options::CLASSES,
    latency::CLASSES,
    lengths::CLASSES,
    lookup::CLASSES,
    meter::CLASSES,
    output_switches::CLASSES,
    packet_script::CLASSES,
    paint::CLASSES,
    ping::CLASSES,
    port_names::CLASSES,
    print::CLASSES,
    querier::CLASSES,
    random_sample::CLASSES,
    reassemble::CLASSES,
    red::CLASSES,
    resize::CLASSES,
    rewrite::CLASSES,
    sketch::CLASSES,
    span_tree::CLASSES,
    store_address::CLASSES,
    strips::CLASSES,
    summaries::CLASSES,
    switch::CLASSES,
    time_filter::CLASSES,
    timed::CLASSES,
    timestamps::CLASSES,
    translate::CLASSES,
    translate_address::CLASSES,
    transport::CLASSES,
    vlan::CLASSES,
    web_clients::CLASSES,
    work_package::CLASSES,
];

/// All classes, and the reasons why others of Click are not there.
pub static LIBRARY: ElementLibrary =
    ElementLibrary { tables: TABLES, unsupported_reason: unsupported::unsupported_reason };

/// Compiles a graph without elements that name object files; only its own scripts write its handlers.
///
/// # Errors
/// As for [`compile_with`].
pub fn compile(graph: &Graph) -> Result<ClickProgram, Vec<Error>> {
    compile_with(graph, &|_, _| Err("object files are not read here".into()))
}

/// Compiles a graph; only its own scripts write its handlers. `objects` reads the object files that elements
/// name.
///
/// # Errors
/// As for [`compile_for`].
pub fn compile_with(graph: &Graph, objects: &ReadObject<'_>) -> Result<ClickProgram, Vec<Error>> {
    compile_for(graph, objects, HandlerWriters::Scripts, Ablations::default())
}

/// Compiles a graph of elements of [`LIBRARY`], as [`millstream_click::compile()`] does.
///
/// # Errors
/// All that is wrong with elements, their arguments and their connections.
pub fn compile_for(
    graph: &Graph,
    objects: &ReadObject<'_>,
    writers: HandlerWriters,
    general: Ablations,
) -> Result<ClickProgram, Vec<Error>> {
    millstream_click::compile(&LIBRARY, graph, objects, writers, general)
}

/// The page of the documentation about all classes, in Markdown.
pub fn reference() -> String {
    millstream_click::reference(&LIBRARY)
}

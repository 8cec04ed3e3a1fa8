//! Classes of rewriters, and their arguments.

use millstream_click::ElementSetup;
use millstream_click::class::{ElementClass, ElementResult};
use millstream_click::keyword::{ArgumentSpec, IgnoredValueKind as Values, at, key, moot, refused_but};

use super::{FlowKeyKind, errors, ftp, mapper, rewriter, translator};
use crate::transport::{TCP, UDP};

const ARGUMENTS: &[ArgumentSpec] = &[
    key("TIMEOUT"),
    key("UDP_TIMEOUT"),
    key("TCP_TIMEOUT"),
    key("TCP_DONE_TIMEOUT"),
    key("MAPPING_CAPACITY"),
    key("CAPACITY"),
    key("DST_ANNO"),
    key("TCP_NODATA_TIMEOUT"),
    key("UDP_STREAMING_TIMEOUT"),
    key("STREAMING_TIMEOUT"),
    key("GUARANTEE"),
    key("TCP_GUARANTEE"),
    key("UDP_GUARANTEE"),
    REAP_INTERVAL,
    REAP_TIME,
    REPLY_ANNO,
    USE_CACHE,
    SET_AGGREGATE,
    HANDLE_MIGRATION,
];
const NONE: &[&str] = &["0", "0s"];
const NO_GUARANTEE: &str = "a full table evicts the flow that was not used for longest, however young it is";
const REAP_INTERVAL: ArgumentSpec = moot("REAP_INTERVAL", Values::Time, NOT_REAPED);
const REAP_TIME: ArgumentSpec = moot("REAP_TIME", Values::Time, NOT_REAPED);
const NOT_REAPED: &str = "a flow ends when its time has run out, not when somebody tidies up";
pub(super) const REPLY_ANNO: ArgumentSpec = key("REPLY_ANNO");
const USE_CACHE: ArgumentSpec =
    moot("USE_CACHE", Values::Truth, "the table is looked up for each packet, which gives the same");
const SET_AGGREGATE: ArgumentSpec = refused_but("SET_AGGREGATE", &["false"], "there is no such annotation");
const HANDLE_MIGRATION: ArgumentSpec = moot(
    "HANDLE_MIGRATION",
    Values::Truth,
    "all workers have one table, so that flows may move between them",
);

const TRANSLATED: &[ArgumentSpec] = &[
    at("SIP"),
    refused_but("ACCEPT_NONSYN", &["true"], "a flow may begin with any segment"),
    refused_but("STATE", &["false"], "the states of TCP are not followed"),
];
const fn class(
    name: &'static str,
    about: &'static str,
    make: fn(&mut ElementSetup<'_>) -> ElementResult,
) -> ElementClass {
    ElementClass { ports: "1-/1-", processing: "h/h", ..ElementClass::filter(name, about, ARGUMENTS, make) }
        .and(at("SPECIFICATION"))
}

/// Rewriters of addresses alone, and of echoes: flows have one timeout.
const OTHER_ARGUMENTS: &[ArgumentSpec] = &[
    key("TIMEOUT"),
    key("MAPPING_CAPACITY"),
    key("CAPACITY"),
    key("DST_ANNO"),
    refused_but("GUARANTEE", NONE, NO_GUARANTEE),
    REAP_INTERVAL,
    REAP_TIME,
    REPLY_ANNO,
    USE_CACHE,
    SET_AGGREGATE,
    HANDLE_MIGRATION,
];

const fn other(
    name: &'static str,
    about: &'static str,
    make: fn(&mut ElementSetup<'_>) -> ElementResult,
) -> ElementClass {
    ElementClass { arguments: OTHER_ARGUMENTS, ..class(name, about, make) }
}

const REWRITES: &str = "Exchanges addresses and ports of flows.";
const REWRITES_ADDRESSES: &str = "Exchanges addresses of flows.";

pub(in super::super) const CLASSES: &[ElementClass] = &[
    class("IPRewriter", REWRITES, |setup| rewriter(setup, FlowKeyKind::Ports, &[TCP, UDP])),
    class("TCPRewriter", REWRITES, |setup| rewriter(setup, FlowKeyKind::Ports, &[TCP])),
    class("UDPRewriter", REWRITES, |setup| rewriter(setup, FlowKeyKind::Ports, &[TCP, UDP])),
    other("ICMPPingRewriter", "Exchanges addresses and identifiers of echoes.", |setup| {
        rewriter(setup, FlowKeyKind::Echoes, &[])
    }),
    other("IPAddrPairRewriter", REWRITES_ADDRESSES, |setup| rewriter(setup, FlowKeyKind::Pairs, &[])),
    other("IPAddrRewriter", REWRITES_ADDRESSES, |setup| rewriter(setup, FlowKeyKind::Hosts, &[])),
    ElementClass {
        processing: "h/h",
        ..ElementClass::filter("FlowIPNAT", "Gives each flow a port of one address.", TRANSLATED, translator)
    },
    errors::CLASS,
    ftp::CLASS,
    mapper::ROUND_ROBIN,
    mapper::SOURCE_HASH,
];

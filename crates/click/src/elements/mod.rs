//! The elements: each a class, what it takes as arguments, and the code for a packet.
//!
//! Behaviour is that of Click's documentation, held against FastClick (`bench/click.py`).

mod basic;
mod classify;
mod devices;
mod ether;
mod fragment;
mod icmp;
mod ip;
mod ip_check;
mod ip_filter;
mod ip_options;
mod lookup;
mod paint;
mod rewrite;
mod transport;
mod vlan;

use crate::class::Class;

/// Bytes of a route: gateway and output.
pub(crate) const ROUTE_BYTES: u32 = 8;

/// All classes, by topic.
pub(crate) const TABLES: &[&[Class]] = &[
    basic::CLASSES,
    classify::CLASSES,
    devices::CLASSES,
    ether::CLASSES,
    fragment::CLASSES,
    icmp::CLASSES,
    ip::CLASSES,
    ip_filter::CLASSES,
    ip_options::CLASSES,
    ip_check::CLASSES,
    lookup::CLASSES,
    paint::CLASSES,
    rewrite::CLASSES,
    transport::CLASSES,
    vlan::CLASSES,
];

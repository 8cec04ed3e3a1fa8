//! The elements: each a class, what it takes as arguments, and the code for a packet.
//!
//! Behaviour is that of Click's documentation, held against FastClick (`bench/click.py`).

mod basic;
mod bpf;
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
mod querier;
mod rewrite;
mod switch;
mod transport;
mod vlan;

use crate::arguments::unsigned;
use crate::class::Class;
use crate::config::Text;
use crate::error::Error;

/// Bytes of a route: gateway and output.
pub(crate) const ROUTE_BYTES: u32 = 8;

/// All classes, by topic.
pub(crate) const TABLES: &[&[Class]] = &[
    basic::CLASSES,
    bpf::CLASSES,
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
    querier::CLASSES,
    rewrite::CLASSES,
    switch::CLASSES,
    transport::CLASSES,
    vlan::CLASSES,
];

/// Seconds in nanoseconds.
const SECOND: u64 = 1_000_000_000;

/// A time in nanoseconds: seconds, or a number with `s` or `min` behind it.
fn seconds(text: &Text) -> Result<u64, Error> {
    let (number, unit) = match (text.text.strip_suffix("min"), text.text.strip_suffix('s')) {
        (Some(minutes), _) => (minutes, 60),
        (None, seconds) => (seconds.unwrap_or(&text.text), 1),
    };
    let number = unsigned(&Text { text: number.trim().to_owned(), span: text.span }, 1 << 30)?;
    Ok(number * unit * SECOND)
}

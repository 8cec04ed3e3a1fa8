//! The elements: each is a class, the arguments it takes, and the code for a packet.
//!
//! Behaviour is that of Click's documentation, held against FastClick (`bench/click.py`).

mod basic;
mod bpf;
mod capture_filter;
mod classify;
mod devices;
mod ether;
mod flows;
mod fragment;
mod generators;
mod headers;
mod icmp;
mod ip;
mod ip6;
mod ip6_error;
mod ip6_neighbours;
mod ip_check;
mod ip_filter;
mod ip_options;
mod latency;
mod lengths;
mod link_types;
mod lookup;
mod match_table;
mod meter;
mod output_switches;
mod paint;
mod print;
mod querier;
pub(crate) mod rewrite;
mod sketch;
pub(crate) mod span_tree;
mod switch;
mod timed;
mod translate;
mod translate_address;
mod transport;
mod vlan;
mod work_package;

use crate::class::ElementClass;
use crate::config::SpannedText;
use crate::error::Error;

pub use link_types::capture_files;
pub use span_tree::bridge_text;

/// All classes, by topic.
pub(crate) const TABLES: &[&[ElementClass]] = &[
    basic::CLASSES,
    bpf::CLASSES,
    classify::CLASSES,
    devices::CLASSES,
    ether::CLASSES,
    flows::CLASSES,
    fragment::CLASSES,
    generators::CLASSES,
    headers::CLASSES,
    icmp::CLASSES,
    ip::CLASSES,
    ip6::CLASSES,
    ip6_error::CLASSES,
    ip6_neighbours::CLASSES,
    ip_filter::CLASSES,
    ip_options::CLASSES,
    ip_check::CLASSES,
    latency::CLASSES,
    lengths::CLASSES,
    lookup::CLASSES,
    meter::CLASSES,
    paint::CLASSES,
    print::CLASSES,
    querier::CLASSES,
    rewrite::CLASSES,
    sketch::CLASSES,
    span_tree::CLASSES,
    output_switches::CLASSES,
    switch::CLASSES,
    timed::CLASSES,
    translate::CLASSES,
    translate_address::CLASSES,
    transport::CLASSES,
    vlan::CLASSES,
    work_package::CLASSES,
];

/// Seconds in nanoseconds.
const SECOND: u64 = 1_000_000_000;
/// Units of time, by their names, in nanoseconds; the first that fits.
const UNITS: &[(&str, u64)] = &[
    ("min", 60 * SECOND),
    ("msec", SECOND / 1_000),
    ("usec", SECOND / 1_000_000),
    ("nsec", 1),
    ("sec", SECOND),
    ("ms", SECOND / 1_000),
    ("us", SECOND / 1_000_000),
    ("ns", 1),
    ("s", SECOND),
    ("m", 60 * SECOND),
    ("hr", 3600 * SECOND),
    ("h", 3600 * SECOND),
    ("day", 24 * 3600 * SECOND),
    ("d", 24 * 3600 * SECOND),
    ("", SECOND),
];
/// The longest time, in seconds.
const LONGEST: f64 = (1u64 << 30) as f64;

/// A time in nanoseconds, from a number with a unit; the default unit is the second.
pub(crate) fn seconds(text: &SpannedText) -> Result<u64, Error> {
    time(&text.text)
        .ok_or_else(|| Error::new(text.span, format!("`{}` is not a time like 5, 0.5s or 10ms", text.text)))
}

/// A time in nanoseconds, from a number with a unit; the default unit is the second.
pub fn time(text: &str) -> Option<u64> {
    let (number, unit) =
        UNITS.iter().find_map(|(name, unit)| Some((text.strip_suffix(name)?.trim(), *unit)))?;
    let digits = number.bytes().all(|b| b.is_ascii_digit() || b == b'.');
    let number: f64 = number.parse().ok().filter(|_| digits)?;
    let whole = number * unit as f64;
    (whole <= LONGEST * SECOND as f64).then_some(whole as u64)
}

#[cfg(test)]
mod tests {
    use super::time;

    #[test]
    fn times_have_units_and_fractions() {
        for (text, nanoseconds) in [
            ("5", 5_000_000_000),
            (".05", 50_000_000),
            ("10ms", 10_000_000),
            ("2 min", 120_000_000_000),
            ("7ns", 7),
            ("3 msec", 3_000_000),
            ("2sec", 2_000_000_000),
            ("1hr", 3_600_000_000_000),
            ("0.5day", 43_200_000_000_000),
        ] {
            assert_eq!(time(text), Some(nanoseconds), "{text}");
        }
        for wrong in ["", "s", "-1", "1e3", "inf", "1.2.3", "99999999999"] {
            assert_eq!(time(wrong), None, "{wrong}");
        }
    }
}

//! Knowledge that a program may be compiled without, to measure its value: the three things that a compiler
//! knows of a configuration and a framework that reads it at run time does not (PacketMill, ASPLOS'21,
//! section 3.2).
//!
//! A program has the same effect without them.

use millstream_ir::{Block, Map};
use rustc_hash::FxHashSet;

use crate::graph::{Element, ElementPort};

/// Deviations from the usual compilation of a program.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Ablations {
    /// The number of the next input is read from memory when an element is done with a packet: no connection
    /// is a jump to one place.
    pub graph: bool,
    /// Values of arguments are read from memory whenever an element needs them.
    pub arguments: bool,
    /// Annotations are written to memory at each connection, even if they are never read.
    pub annotations: bool,
    /// Elements behind a queue belong to another stage, which other workers run: queues end the way of a
    /// packet.
    pub stages: bool,
    /// Runs have a clock: packets wait for elements of time, and whoever runs the program keeps them until
    /// they are due.
    pub time: bool,
}

/// Numbers that the arguments of an element say: decimal, hexadecimal, IPv4 addresses.
pub(crate) fn said(element: &Element) -> FxHashSet<i64> {
    let words = |text: &str| {
        let word = |c: char| !c.is_ascii_alphanumeric() && c != '.';
        let number = |word: &str| {
            let hexadecimal = word.strip_prefix("0x").and_then(|digits| i64::from_str_radix(digits, 16).ok());
            let address = || word.parse::<std::net::Ipv4Addr>().ok().map(|a| i64::from(u32::from(a)));
            hexadecimal.or_else(|| word.parse().ok()).or_else(address)
        };
        text.split(word).filter_map(number).collect::<Vec<i64>>()
    };
    element.arguments.iter().flat_map(|argument| words(&argument.text)).collect()
}

/// Numbers that code reads from memory where it is kept general.
#[derive(Debug, Default)]
pub(crate) struct AblationConstants {
    /// The map that holds them, if any are read.
    pub(crate) remembered: Option<Map>,
    /// Their values.
    pub(crate) read: Vec<i64>,
    /// Those of each element's arguments.
    pub(crate) said: Vec<FxHashSet<i64>>,
    /// Inputs by number, and where packets go there by these.
    pub(crate) inputs: Vec<ElementPort>,
    pub(crate) dispatch: Option<Block>,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{flatten, parse};

    #[test]
    fn numbers_are_found_in_arguments() {
        let text = "FromDevice(in) -> Classifier(12/0800 20/0x0001, -) -> Strip(14) \
            -> StoreIPAddress(10.0.0.1, src) -> Discard";
        let graph = flatten(&parse(text).unwrap(), &[]).unwrap();
        let of = |class: &str| said(graph.elements.iter().find(|e| e.class == class).unwrap());
        assert_eq!(of("Strip"), FxHashSet::from_iter([14]));
        assert_eq!(of("StoreIPAddress"), FxHashSet::from_iter([0x0a00_0001]));
        assert!(of("Classifier").is_superset(&FxHashSet::from_iter([12, 20, 1])));
        assert!(of("Discard").is_empty());
    }
}

//! Knowledge that a program may be compiled without, to measure its value: the three things that a compiler
//! knows of a configuration and a framework that reads it at run time does not (PacketMill, ASPLOS'21,
//! section 3.2).
//!
//! A program has the same effect without them.

use millstream_ir::{Block, Map, MapDecl, Type};
use rustc_hash::FxHashSet;

use crate::build::Code;
use crate::compile::{Compiler, Entry};
use crate::graph::{Element, Port};
use crate::packet::TYPES;

/// Deviations from the usual compilation of a program.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct General {
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
fn said(element: &Element) -> FxHashSet<i64> {
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

/// The name of the map with numbers that are read from memory and known beforehand.
const REMEMBERED: &str = "click.numbers";

/// Numbers that code reads from memory where it is kept general.
#[derive(Debug, Default)]
pub(crate) struct Numbers {
    /// The map that holds them, if any are read.
    remembered: Option<Map>,
    /// Their values.
    read: Vec<i64>,
    /// Those of each element's arguments.
    said: Vec<FxHashSet<i64>>,
    /// Inputs by number, and where packets go there by these.
    inputs: Vec<Port>,
    dispatch: Option<Block>,
}

impl Compiler<'_> {
    /// Makes code general as requested.
    pub(crate) fn generally(mut self, general: General) -> Self {
        self.general = general;
        if general.arguments {
            self.numbers.said = self.graph.elements.iter().map(said).collect();
        }
        if general.graph {
            let block = self.func.add_block();
            for ty in TYPES.into_iter().chain([Type::I64]) {
                self.func.add_param(block, ty);
            }
            self.numbers.dispatch = Some(block);
        }
        if general.arguments || general.graph {
            let map = MapDecl { name: REMEMBERED.to_owned(), ..self.module.maps[self.state].clone() };
            self.numbers.remembered = Some(self.module.maps.push(map));
        }
        self
    }

    /// Place in memory of a number that an element needs, if it is one of its arguments' and these are read
    /// from memory.
    pub(crate) fn argument(&mut self, element: usize, number: i64) -> Option<(Map, u32)> {
        match self.numbers.said.get(element)?.contains(&number) {
            true => Some(self.remember(number, self.numbers.remembered?)),
            false => None,
        }
    }

    fn remember(&mut self, number: i64, map: Map) -> (Map, u32) {
        self.numbers.read.push(number);
        (map, 8 * (self.numbers.read.len() as u32 - 1))
    }

    /// Place of the number of an input, and the block that dispatches packets by it; `None` if connections
    /// are jumps.
    pub(crate) fn connection(&mut self, to: Port) -> Option<((Map, u32), Block)> {
        let (map, dispatch) = (self.numbers.remembered?, self.numbers.dispatch?);
        let known = self.numbers.inputs.iter().position(|port| *port == to);
        let number = known.unwrap_or_else(|| {
            self.numbers.inputs.push(to);
            self.numbers.inputs.len() - 1
        });
        self.block_of(to);
        Some((self.remember(number as i64, map), dispatch))
    }

    /// Writes where packets go by the numbers of inputs.
    pub(crate) fn dispatching(&mut self) {
        let Some(dispatch) = self.numbers.dispatch else { return };
        let none = self.graph.elements.len();
        let params = self.func.blocks[dispatch].params.clone();
        let (values, number) = (&params[..TYPES.len()], params[TYPES.len()]);
        let mut code = Code::new(self, none, dispatch);
        for (at, port) in code.compiler.numbers.inputs.clone().into_iter().enumerate() {
            let block = code.compiler.block_of(port);
            let (at, next) = (code.int(at as i64), code.block());
            code.branch_to(number, at, (block, values), next);
            code.go(next);
        }
        code.leave();
    }

    /// Values of the numbers that are read from memory.
    pub(crate) fn numbers(&mut self) -> Option<Entry> {
        let map = self.numbers.remembered?;
        let numbers = if self.numbers.read.is_empty() { &[0][..] } else { &self.numbers.read };
        let value: Vec<u8> = numbers.iter().flat_map(|number| number.to_le_bytes()).collect();
        self.module.maps[map].value_size = value.len() as u32;
        Some(Entry { map: REMEMBERED.to_owned(), key: vec![0; 4], value })
    }
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

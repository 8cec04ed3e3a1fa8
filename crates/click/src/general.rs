//! What a program may be made without, to see what it is worth: the three things that a compiler knows of a configuration and a framework
//! that reads it at run time does not (PacketMill, ASPLOS'21, section 3.2).
//!
//! Whatever is left out, a program does the same.

use rustc_hash::FxHashSet;

use crate::graph::Element;

/// What is kept general.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct General {
    /// Where a packet goes on is a number that is read from memory when its element is done with it: no connection is a jump to one
    /// place.
    pub graph: bool,
    /// What arguments say is read from memory whenever an element needs it.
    pub arguments: bool,
    /// Annotations are written to memory at each connection, whether anybody looks at them or not.
    pub annotations: bool,
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{flatten, parse};

    #[test]
    fn numbers_are_found_in_arguments() {
        let text = "FromDevice(in) -> Classifier(12/0800 20/0x0001, -) -> Strip(14) -> StoreIPAddress(10.0.0.1, src) -> Discard";
        let graph = flatten(&parse(text).unwrap(), &[]).unwrap();
        let of = |class: &str| said(graph.elements.iter().find(|e| e.class == class).unwrap());
        assert_eq!(of("Strip"), FxHashSet::from_iter([14]));
        assert_eq!(of("StoreIPAddress"), FxHashSet::from_iter([0x0a00_0001]));
        assert!(of("Classifier").is_superset(&FxHashSet::from_iter([12, 20, 1])));
        assert!(of("Discard").is_empty());
    }
}

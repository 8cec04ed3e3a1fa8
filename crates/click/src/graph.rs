//! The graph of a configuration: primitive elements and the connections between their ports.

use rustc_hash::FxHashMap;

use crate::config::SpannedText;
use crate::error::ConfigSpan;

/// An element.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Element {
    /// Its name, with those of the compound elements around it.
    pub name: String,
    /// Its class.
    pub class: String,
    /// Its arguments.
    pub arguments: Vec<SpannedText>,
    /// Position of its declaration.
    pub span: ConfigSpan,
}

impl Element {
    /// Its name and class, as `NAME :: CLASS`.
    pub fn declaration(&self) -> String {
        format!("{} :: {}", self.name, self.class)
    }
}

/// A port of an element, by the element's place in [`Graph::elements`].
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct ElementPort {
    /// The element.
    pub element: usize,
    /// The port.
    pub port: u32,
}

/// A connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ElementConnection {
    /// An output.
    pub from: ElementPort,
    /// An input.
    pub to: ElementPort,
    /// Position in the configuration.
    pub span: ConfigSpan,
}

/// An interface of the machine that runs the configuration: its name may be used for its addresses.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct HostInterface {
    /// Its name.
    pub name: String,
    /// Its Ethernet address.
    pub ether: Option<[u8; 6]>,
    /// Its first address of IPv4, and the mask of its network.
    pub ip: Option<(u32, u32)>,
    /// Gateway of its default route.
    pub gateway: Option<u32>,
}

/// A capture file that the configuration names.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct CaptureInfo {
    /// Its name, as the configuration says it.
    pub name: String,
    /// Link type of its packets.
    pub link: u32,
}

/// A configuration without compound elements.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Graph {
    /// In the order of declaration.
    pub elements: Vec<Element>,
    /// Each once, in order.
    pub connections: Vec<ElementConnection>,
    /// Capture files that are there when it is read.
    pub captures: Vec<CaptureInfo>,
    /// Requirements of the configuration.
    pub requirements: Vec<SpannedText>,
    /// Interfaces whose names arguments may use for addresses: none, unless whoever has the graph knows the
    /// machine.
    pub interfaces: Vec<HostInterface>,
}

impl Graph {
    /// Numbers of inputs and outputs of each element that are used: the highest number and one.
    pub fn ports(&self) -> Vec<(u32, u32)> {
        let mut ports = vec![(0, 0); self.elements.len()];
        for c in &self.connections {
            let inputs = &mut ports[c.to.element].0;
            *inputs = (*inputs).max(c.to.port + 1);
            let outputs = &mut ports[c.from.element].1;
            *outputs = (*outputs).max(c.from.port + 1);
        }
        ports
    }
}

impl Graph {
    /// Chains of connections, each from the first connection to the last: the second begins at output 0 of
    /// the element at whose input 0 the first ends, and so on.
    fn chains(&self) -> Vec<Vec<usize>> {
        let mut first = FxHashMap::default();
        for (at, c) in self.connections.iter().enumerate().filter(|(_, c)| c.from.port == 0) {
            first.entry(c.from.element).or_insert(at);
        }
        let mut next = vec![None; self.connections.len()];
        let mut is_continued = vec![false; self.connections.len()];
        for (at, c) in self.connections.iter().enumerate().filter(|(_, c)| c.to.port == 0) {
            next[at] = first.get(&c.to.element).copied().filter(|to| !is_continued[*to]);
            if let Some(to) = next[at] {
                is_continued[to] = true;
            }
        }
        let (heads, rings): (Vec<usize>, Vec<usize>) =
            (0..self.connections.len()).partition(|at| !is_continued[*at]);
        let mut printed = vec![false; self.connections.len()];
        let mut chains = Vec::new();
        for head in heads.into_iter().chain(rings) {
            let mut chain = Vec::new();
            let mut at = Some(head);
            while let Some(one) = at.filter(|one| !std::mem::replace(&mut printed[*one], true)) {
                chain.push(one);
                at = next[one];
            }
            chains.extend((!chain.is_empty()).then_some(chain));
        }
        chains
    }
}

/// The form that Click's tools print: requirements, elements, and chains of connections.
impl std::fmt::Display for Graph {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let is_library = |text: &str| text.split_whitespace().next() == Some("library");
        let requirements = self.requirements.iter().map(|r| r.text.as_str()).filter(|text| !is_library(text));
        let requirements: Vec<&str> = requirements.collect();
        if !requirements.is_empty() {
            writeln!(f, "require({});\n", requirements.join(", "))?;
        }
        for e in &self.elements {
            let arguments: Vec<&str> = e.arguments.iter().map(|a| a.text.as_str()).collect();
            match arguments.is_empty() {
                true => writeln!(f, "{} :: {};", e.name, e.class)?,
                false => writeln!(f, "{} :: {}({});", e.name, e.class, arguments.join(", "))?,
            }
        }
        let chains = self.chains();
        if !chains.is_empty() {
            writeln!(f)?;
        }
        for chain in chains {
            for (place, at) in chain.into_iter().enumerate() {
                let c = &self.connections[at];
                if place == 0 {
                    f.write_str(&self.elements[c.from.element].name)?;
                }
                if c.from.port > 0 {
                    write!(f, " [{}]", c.from.port)?;
                }
                f.write_str(if place == 0 { " -> " } else { "\n    -> " })?;
                if c.to.port > 0 {
                    write!(f, "[{}] ", c.to.port)?;
                }
                f.write_str(&self.elements[c.to.element].name)?;
            }
            writeln!(f, ";")?;
        }
        Ok(())
    }
}

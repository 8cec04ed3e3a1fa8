//! The graph of a configuration: primitive elements and the connections between their ports.

use crate::config::Text;
use crate::error::Span;

/// An element.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Element {
    /// Its name, with those of the compound elements around it.
    pub name: String,
    /// Its class.
    pub class: String,
    /// Its arguments.
    pub arguments: Vec<Text>,
    /// Position of its declaration.
    pub span: Span,
}

/// A port of an element, by the element's place in [`Graph::elements`].
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct Port {
    /// The element.
    pub element: usize,
    /// The port.
    pub port: u32,
}

/// A connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Connection {
    /// An output.
    pub from: Port,
    /// An input.
    pub to: Port,
    /// Position in the configuration.
    pub span: Span,
}

/// An interface of the machine that runs the configuration: its name may be used for its addresses.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Interface {
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
pub struct Capture {
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
    pub connections: Vec<Connection>,
    /// Capture files that are there when it is read.
    pub captures: Vec<Capture>,
    /// Requirements of the configuration.
    pub requirements: Vec<Text>,
    /// Interfaces whose names arguments may use for addresses: none, unless whoever has the graph knows the
    /// machine.
    pub interfaces: Vec<Interface>,
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

impl std::fmt::Display for Graph {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        for e in &self.elements {
            let arguments: Vec<&str> = e.arguments.iter().map(|a| a.text.as_str()).collect();
            writeln!(f, "{} :: {}({});", e.name, e.class, arguments.join(", "))?;
        }
        for c in &self.connections {
            let (from, to) = (&self.elements[c.from.element].name, &self.elements[c.to.element].name);
            writeln!(f, "{from} [{}] -> [{}] {to};", c.from.port, c.to.port)?;
        }
        Ok(())
    }
}

//! The graph of a configuration: primitive elements and the connections between their ports.

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

//! Descriptions of element classes, and libraries of them.

use crate::build::ElementBuilder;
use crate::compile::setup::ElementSetup;
use crate::error::Error;
use crate::keyword::ArgumentSpec;
use crate::packet::PacketValues;

/// Code generation for an element.
pub trait ElementCodegen {
    /// Writes the code for a packet that arrives at input `port`. The code must end: in outputs or drops.
    fn build(&self, code: &mut ElementBuilder<'_, '_>, port: u32, packet: PacketValues);
}

/// The result of reading an element's arguments: its behaviour.
pub type ElementResult = Result<Box<dyn ElementCodegen>, Error>;

/// A class of elements.
pub struct ElementClass {
    /// Its name.
    pub name: &'static str,
    /// A line for readers who look for a class.
    pub about: &'static str,
    /// Inputs and outputs, as Click's documentation writes them: `1/1-2`.
    pub ports: &'static str,
    /// Push, pull or agnostic, a letter a port, the last one of all further ports: `a/ah`.
    pub processing: &'static str,
    /// Its arguments, those by position in their order.
    pub arguments: &'static [ArgumentSpec],
    /// Arguments by position behind those, any number of them.
    pub rest: Option<ArgumentSpec>,
    /// True if packets of some kind always leave by an output, so that they never stop in a cycle of such
    /// classes.
    pub passes_all: bool,
    /// Reads the arguments of an element, and makes its behaviour.
    pub make: fn(&mut ElementSetup<'_>) -> ElementResult,
}

impl ElementClass {
    /// A class with one input and one output, push or pull, that may drop packets.
    pub const fn filter(
        name: &'static str,
        about: &'static str,
        arguments: &'static [ArgumentSpec],
        make: fn(&mut ElementSetup<'_>) -> ElementResult,
    ) -> ElementClass {
        ElementClass {
            name,
            about,
            ports: "1/1",
            processing: "a/a",
            arguments,
            rest: None,
            passes_all: false,
            make,
        }
    }

    /// As [`ElementClass::filter`], with a second output for packets that are not in order.
    pub const fn check(
        name: &'static str,
        about: &'static str,
        arguments: &'static [ArgumentSpec],
        make: fn(&mut ElementSetup<'_>) -> ElementResult,
    ) -> ElementClass {
        ElementClass {
            ports: "1/1-2",
            processing: "a/ah",
            ..ElementClass::filter(name, about, arguments, make)
        }
    }

    /// A class that takes any number of further arguments by position.
    pub const fn and(self, rest: ArgumentSpec) -> ElementClass {
        ElementClass { rest: Some(rest), ..self }
    }

    /// A class whose packets never stop if its output leads back to its input.
    pub const fn passing(self) -> ElementClass {
        ElementClass { passes_all: true, ..self }
    }
}

/// The classes that configurations may use. The compiler itself knows none.
#[derive(Clone, Copy)]
pub struct ElementLibrary {
    /// All classes, by topic.
    pub tables: &'static [&'static [ElementClass]],
    /// Gives the reason why a class of Click that the library lacks is not supported, if that is known.
    pub unsupported_reason: fn(&str) -> Option<&'static str>,
}

impl ElementLibrary {
    /// All classes.
    pub fn all(&self) -> impl Iterator<Item = &'static ElementClass> + use<> {
        self.tables.iter().flat_map(|table| table.iter())
    }

    /// The class of this name.
    pub fn find(&self, name: &str) -> Option<&'static ElementClass> {
        self.all().find(|class| class.name == name)
    }
}

/// Numbers of ports that a class may have: minimum and maximum of inputs, then of outputs.
pub(crate) fn port_range(class: &ElementClass) -> [(u32, u32); 2] {
    let (inputs, outputs) = class.ports.split_once('/').unwrap_or((class.ports, class.ports));
    [inputs, outputs].map(|text| match text.split_once('-') {
        _ if text == "-" => (0, u32::MAX),
        Some((least, "")) => (least.parse().unwrap_or(0), u32::MAX),
        Some((least, most)) => (least.parse().unwrap_or(0), most.parse().unwrap_or(0)),
        None => (text.parse().unwrap_or(0), text.parse().unwrap_or(0)),
    })
}

/// Direction in which a port passes packets.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum PortProcessing {
    Push,
    Pull,
    Agnostic,
}

/// Direction in which port `port` of a class passes packets.
pub(crate) fn processing(class: &ElementClass, output: bool, port: u32) -> PortProcessing {
    let (inputs, outputs) = class.processing.split_once('/').unwrap_or((class.processing, class.processing));
    let letters = if output { outputs } else { inputs }.as_bytes();
    let at = (port as usize).min(letters.len().saturating_sub(1));
    match letters.get(at) {
        Some(b'h') => PortProcessing::Push,
        Some(b'l') => PortProcessing::Pull,
        _ => PortProcessing::Agnostic,
    }
}

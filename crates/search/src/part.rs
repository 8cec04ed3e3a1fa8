//! The parts of the search, by name, so that each can be switched off to measure its worth. Results found
//! without one are as correct as results found with it.

use crate::engines::Engine;

/// A part of the search.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Part {
    /// The static forms: without them, the search begins with the original.
    Static,
    /// An engine.
    Engine(Engine),
    /// A proposal rule of the chains, in the order of [`Part::RULES`].
    Rule(usize),
}

impl Part {
    /// Names of the chains' proposal rules (K2, section 3.1).
    pub const RULES: [&str; 6] = [
        "replace-instruction",
        "replace-operand",
        "replace-by-nothing",
        "exchange-memory-1",
        "exchange-memory-2",
        "replace-two",
    ];

    /// All of them.
    pub fn all() -> impl Iterator<Item = Part> {
        let engines = Engine::ALL.into_iter().map(Part::Engine);
        std::iter::once(Part::Static).chain(engines).chain((0..Part::RULES.len()).map(Part::Rule))
    }

    /// Its name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Part::Static => "static",
            Part::Engine(Engine::Rules) => "rules",
            Part::Engine(Engine::Store) => "store",
            Part::Engine(Engine::Neighbourhood) => "neighbourhood",
            Part::Engine(Engine::Enumeration) => "enumeration",
            Part::Engine(Engine::Cegis) => "cegis",
            Part::Engine(Engine::Chain) => "chains",
            Part::Rule(n) => Part::RULES[n],
        }
    }
}

impl std::str::FromStr for Part {
    type Err = String;

    fn from_str(name: &str) -> Result<Part, String> {
        Part::all().find(|p| p.name() == name).ok_or_else(|| {
            let names: Vec<&str> = Part::all().map(Part::name).collect();
            format!("there are: {}", names.join(", "))
        })
    }
}

//! Techniques that make proofs fast, by name, so that each can be switched off to measure its worth. A proof
//! found without one is still a proof.

use crate::Limits;

/// An acceleration.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Acceleration {
    /// Packet, maps and records are separate memories (memory type concretisation in K2's words).
    Spaces,
    /// Each map's values are a separate memory (map type concretisation).
    Maps,
    /// Offsets that differ by a constant are known to be distinct (offset concretisation).
    Offsets,
    /// Large programs are compared region by region (modular verification).
    Regions,
    /// Programs are compared as a whole, or in large regions, before they are compared step by step.
    Whole,
    /// Programs are compared step by step if a comparison as a whole fails.
    Steps,
    /// Answers of solvers are cached.
    Cache,
    /// Terms have a normal form.
    NormalForm,
    /// Operations are carried into choices.
    Choices,
    /// Equal terms are merged from the leaves up before the solver is asked about a claim.
    Sweep,
}

impl Acceleration {
    /// All of them.
    pub const ALL: [Acceleration; 10] = [
        Acceleration::Spaces,
        Acceleration::Maps,
        Acceleration::Offsets,
        Acceleration::Regions,
        Acceleration::Whole,
        Acceleration::Steps,
        Acceleration::Cache,
        Acceleration::NormalForm,
        Acceleration::Choices,
        Acceleration::Sweep,
    ];

    /// Its name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Acceleration::Spaces => "spaces",
            Acceleration::Maps => "maps",
            Acceleration::Offsets => "offsets",
            Acceleration::Regions => "regions",
            Acceleration::Whole => "whole",
            Acceleration::Steps => "steps",
            Acceleration::Cache => "cache",
            Acceleration::NormalForm => "normal-form",
            Acceleration::Choices => "choices",
            Acceleration::Sweep => "sweep",
        }
    }
}

impl std::str::FromStr for Acceleration {
    type Err = String;

    fn from_str(name: &str) -> Result<Acceleration, String> {
        let found = Acceleration::ALL.into_iter().find(|a| a.name() == name);
        found.ok_or_else(|| {
            let names: Vec<&str> = Acceleration::ALL.iter().map(|a| a.name()).collect();
            format!("there are: {}", names.join(", "))
        })
    }
}

impl Limits {
    /// Returns true if an acceleration is used.
    pub(crate) fn uses(&self, what: Acceleration) -> bool {
        !self.without.contains(&what)
    }
}

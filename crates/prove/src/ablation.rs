//! Techniques that make proofs fast, by name, so that each can be switched off to measure its worth. A proof
//! found without one is still a proof.

use crate::ProofLimits;

/// An acceleration.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum ProofAblation {
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

impl ProofAblation {
    /// All of them.
    pub const ALL: [ProofAblation; 10] = [
        ProofAblation::Spaces,
        ProofAblation::Maps,
        ProofAblation::Offsets,
        ProofAblation::Regions,
        ProofAblation::Whole,
        ProofAblation::Steps,
        ProofAblation::Cache,
        ProofAblation::NormalForm,
        ProofAblation::Choices,
        ProofAblation::Sweep,
    ];

    /// Its name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            ProofAblation::Spaces => "spaces",
            ProofAblation::Maps => "maps",
            ProofAblation::Offsets => "offsets",
            ProofAblation::Regions => "regions",
            ProofAblation::Whole => "whole",
            ProofAblation::Steps => "steps",
            ProofAblation::Cache => "cache",
            ProofAblation::NormalForm => "normal-form",
            ProofAblation::Choices => "choices",
            ProofAblation::Sweep => "sweep",
        }
    }
}

impl std::str::FromStr for ProofAblation {
    type Err = String;

    fn from_str(name: &str) -> Result<ProofAblation, String> {
        let found = ProofAblation::ALL.into_iter().find(|a| a.name() == name);
        found.ok_or_else(|| {
            let names: Vec<&str> = ProofAblation::ALL.iter().map(|a| a.name()).collect();
            format!("there are: {}", names.join(", "))
        })
    }
}

impl ProofLimits {
    /// Returns true if an acceleration is used.
    pub(crate) fn uses(&self, what: ProofAblation) -> bool {
        !self.without.contains(&what)
    }
}

//! The parts of the search, by name, so that each can be switched off to measure its worth. Results found
//! without one are as correct as results found with it.

use serde::Serialize;

/// Engine that finds replacements.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum SearchEngine {
    /// A rule of windows.
    Rules,
    /// The store: the same window was improved before.
    Store,
    /// The neighbourhood of the window.
    Neighbourhood,
    /// All short sequences.
    Enumeration,
    /// Sketches that a solver completes.
    Cegis,
    /// Metropolis-Hastings.
    Chain,
}

impl SearchEngine {
    /// All of them.
    pub const ALL: [SearchEngine; 6] = [
        SearchEngine::Rules,
        SearchEngine::Store,
        SearchEngine::Neighbourhood,
        SearchEngine::Enumeration,
        SearchEngine::Cegis,
        SearchEngine::Chain,
    ];
}

/// A part of the search.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum SearchAblation {
    /// The static forms: without them, the search begins with the original.
    Static,
    /// An engine.
    Engine(SearchEngine),
    /// A proposal rule of the chains, in the order of [`SearchAblation::RULES`].
    Rule(usize),
}

impl SearchAblation {
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
    pub fn all() -> impl Iterator<Item = SearchAblation> {
        let engines = SearchEngine::ALL.into_iter().map(SearchAblation::Engine);
        std::iter::once(SearchAblation::Static)
            .chain(engines)
            .chain((0..SearchAblation::RULES.len()).map(SearchAblation::Rule))
    }

    /// Its name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            SearchAblation::Static => "static",
            SearchAblation::Engine(SearchEngine::Rules) => "rules",
            SearchAblation::Engine(SearchEngine::Store) => "store",
            SearchAblation::Engine(SearchEngine::Neighbourhood) => "neighbourhood",
            SearchAblation::Engine(SearchEngine::Enumeration) => "enumeration",
            SearchAblation::Engine(SearchEngine::Cegis) => "cegis",
            SearchAblation::Engine(SearchEngine::Chain) => "chains",
            SearchAblation::Rule(n) => SearchAblation::RULES[n],
        }
    }
}

impl std::str::FromStr for SearchAblation {
    type Err = String;

    fn from_str(name: &str) -> Result<SearchAblation, String> {
        SearchAblation::all().find(|p| p.name() == name).ok_or_else(|| {
            let names: Vec<&str> = SearchAblation::all().map(SearchAblation::name).collect();
            format!("there are: {}", names.join(", "))
        })
    }
}

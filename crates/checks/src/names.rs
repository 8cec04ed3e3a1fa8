//! Names of types: how often each is defined, and of how many words it is.
//!
//! Types are structs, enums, unions, traits and type aliases, wherever they are defined. Of those that macros
//! define, the ones count whose name stands behind its keyword.

use std::collections::{BTreeMap, BTreeSet};

use crate::figure::{FigurePlace, FigureValue, MeasuredFigure};
use crate::repository::SourceRepository;

/// A type of the workspace.
struct TypeName<'r> {
    package: &'r str,
    name: &'r str,
    path: &'r str,
    line: usize,
}

impl TypeName<'_> {
    fn finding(&self, weight: f64, text: String) -> FigurePlace {
        FigurePlace { path: self.path.to_owned(), line: self.line, weight, text }
    }
}

pub(crate) fn measure(repository: &SourceRepository) -> Vec<MeasuredFigure> {
    let types = types(repository);
    let mut by_crate: BTreeMap<(&str, &str), Vec<&TypeName<'_>>> = BTreeMap::new();
    let mut by_name: BTreeMap<&str, Vec<&TypeName<'_>>> = BTreeMap::new();
    for definition in &types {
        by_crate.entry((definition.package, definition.name)).or_default().push(definition);
        by_name.entry(definition.name).or_default().push(definition);
    }
    let thrice = findings(by_crate.values(), "in this crate");
    let shared = findings(by_name.values(), "in the workspace");
    let sharing: usize = by_name.values().map(Vec::len).filter(|count| *count >= 3).sum();
    let short: Vec<FigurePlace> = types
        .iter()
        .filter(|definition| words(definition.name) == 1)
        .map(|definition| definition.finding(1.0, format!("`{}` is one word", definition.name)))
        .collect();
    let share = |count: usize| FigureValue::Whole(100.0 * count as f64 / types.len().max(1) as f64);
    vec![
        MeasuredFigure::count("type_names_thrice_in_a_crate", thrice),
        MeasuredFigure::new("type_names_shared", share(sharing), shared),
        MeasuredFigure::new("type_names_of_one_word", share(short.len()), short),
    ]
}

fn types(repository: &SourceRepository) -> Vec<TypeName<'_>> {
    let mut found = Vec::new();
    // A file that two targets have is counted once.
    let mut seen = BTreeSet::new();
    for package in &repository.packages {
        for node in package.trees.iter().flat_map(|tree| &tree.nodes) {
            let file = &repository.files[node.file];
            for definition in node.facts.types.iter().filter(|_| !file.is_test) {
                if seen.insert((node.file, definition.line, &definition.name)) {
                    let (package, path) = (package.name.as_str(), file.path.as_str());
                    found.push(TypeName { package, name: &definition.name, path, line: definition.line });
                }
            }
        }
    }
    found
}

/// Makes a finding for each name that three or more types have.
fn findings<'t>(groups: impl Iterator<Item = &'t Vec<&'t TypeName<'t>>>, scope: &str) -> Vec<FigurePlace> {
    let shared = groups.filter(|group| group.len() >= 3);
    shared
        .map(|group| {
            let places: Vec<String> = group[1..].iter().map(|t| format!("{}:{}", t.path, t.line)).collect();
            let text = format!(
                "`{}` is the name of {} types {scope}: also {}",
                group[0].name,
                group.len(),
                places.join(", ")
            );
            group[0].finding(group.len() as f64, text)
        })
        .collect()
}

/// Counts the words of a name in camel case; a run of capitals is one word: `TcpPort` 2, `LLVMType` 2, `Utf8`
/// 1.
fn words(name: &str) -> usize {
    let letters: Vec<char> = name.chars().collect();
    let is = |at: Option<usize>, test: fn(&char) -> bool| at.and_then(|at| letters.get(at)).is_some_and(test);
    let starts = (0..letters.len()).filter(|&at| {
        let is_first = !is(at.checked_sub(1), |c| c.is_alphanumeric());
        let after_capital = is(at.checked_sub(1), |c| c.is_uppercase());
        let before_small = is(Some(at + 1), |c| c.is_lowercase());
        is(Some(at), |c| c.is_alphanumeric())
            && (is_first || is(Some(at), |c| c.is_uppercase()) && (!after_capital || before_small))
    });
    starts.count()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::repository::sample;

    #[test]
    fn words_of_names_are_counted() {
        for (name, count) in [
            ("Place", 1),
            ("Utf8", 1),
            ("IR", 1),
            ("TcpPort", 2),
            ("LLVMType", 2),
            ("raw_type", 2),
            ("IpMapKey", 3),
        ] {
            assert_eq!(words(name), count, "{name}");
        }
    }

    #[test]
    fn shared_names_are_found() {
        let repository = sample(&[
            (
                "crates/a/src/lib.rs",
                "struct Line;\nmod b { enum Line {} }\nmod c { trait Line {} }\nstruct FullName;\n",
            ),
            ("crates/b/src/lib.rs", "type Line = u8;\nstruct Twice;\nmod c { struct Twice; }\n"),
            ("crates/b/tests/t.rs", "struct Twice;\n"),
        ]);
        let figures = measure(&repository);
        let values: Vec<f64> = figures.iter().map(MeasuredFigure::highest).collect();
        // Seven types: four are `Line`, and six have a name of one word.
        assert_eq!(values, [1.0, 400.0 / 7.0, 600.0 / 7.0]);
        let text = figures[0].findings[0].to_string();
        assert_eq!(
            text,
            "crates/a/src/lib.rs:1: `Line` is the name of 3 types in this crate: also crates/a/src/lib.rs:2, \
             crates/a/src/lib.rs:3"
        );
        assert_eq!(figures[1].findings.len(), 1);
        assert_eq!(figures[2].findings.len(), 6);
    }
}

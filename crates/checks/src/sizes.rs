//! Sizes: lines of crates, fields of structs, files over which the `impl` blocks of a type are spread, lines
//! of functions.
//!
//! Lines are all lines of a crate's Rust files, comments and empty ones included, but for test code. Of
//! `impl` blocks only inherent ones count: an implementation of a trait may well stand where the trait is.
//! Fields of tuples count, fields of enum variants do not. A function's lines are those from `fn` to its
//! closing brace.

use std::collections::{BTreeMap, BTreeSet};

use crate::figure::{FigurePlace, MeasuredFigure};
use crate::files::RustFile;
use crate::modules::{ModuleNode, ModuleTree};
use crate::repository::SourceRepository;

/// Number of places that are kept of figures that have one for each item of the workspace.
const KEPT: usize = 30;

pub(crate) fn measure(repository: &SourceRepository) -> Vec<MeasuredFigure> {
    let mut figures = vec![
        MeasuredFigure::maximum("crate_lines", crates(repository)),
        MeasuredFigure::maximum("struct_fields", structs(repository)),
        MeasuredFigure::maximum("impl_files", impls(repository)),
        MeasuredFigure::maximum("function_lines", functions(repository)),
    ];
    for figure in &mut figures {
        figure.findings.truncate(KEPT);
    }
    figures
}

fn crates(repository: &SourceRepository) -> Vec<FigurePlace> {
    let of_package = |name: &str| {
        let folder = format!("crates/{name}/");
        let files = repository.files.iter().filter(|file| file.path.starts_with(&folder));
        let lines: usize = files.map(source_lines).sum();
        FigurePlace {
            path: format!("crates/{name}"),
            line: 0,
            weight: lines as f64,
            text: format!("{lines} lines"),
        }
    };
    let packages = repository.packages.iter().filter(|package| package.name != "fuzz");
    packages.map(|package| of_package(&package.name)).collect()
}

fn source_lines(file: &RustFile) -> usize {
    (1..=file.text.lines().count()).filter(|line| !file.is_test_line(*line)).count()
}

/// Returns all modules with their trees, without those in files of tests.
fn modules(
    repository: &SourceRepository,
) -> impl Iterator<Item = (&ModuleTree, usize, &ModuleNode, &RustFile)> {
    let trees = repository.packages.iter().flat_map(|package| &package.trees);
    trees
        .flat_map(|tree| tree.nodes.iter().enumerate().map(move |(at, node)| (tree, at, node)))
        .map(|(tree, at, node)| (tree, at, node, &repository.files[node.file]))
        .filter(|(.., file)| !file.is_test)
}

fn structs(repository: &SourceRepository) -> Vec<FigurePlace> {
    let types =
        modules(repository).flat_map(|(.., node, file)| node.facts.types.iter().map(move |t| (t, file)));
    types
        .filter(|(definition, _)| definition.fields > 0)
        .map(|(definition, file)| {
            let text = format!("`{}` has {} fields", definition.name, definition.fields);
            FigurePlace {
                path: file.path.clone(),
                line: definition.line,
                weight: definition.fields as f64,
                text,
            }
        })
        .collect()
}

fn impls(repository: &SourceRepository) -> Vec<FigurePlace> {
    // By the module that defines the type and its name: the files, and the first place.
    let mut spread: BTreeMap<(&str, String), (BTreeSet<&str>, usize)> = BTreeMap::new();
    for (tree, at, node, file) in modules(repository) {
        for block in &node.facts.impls {
            let Some(name) = block.path.last() else { continue };
            let module = tree.resolve(at, &block.path).map_or(at, |target| target.module());
            let key = (tree.nodes[module].name.as_str(), name.clone());
            let (files, line) = spread.entry(key).or_insert_with(|| (BTreeSet::new(), block.line));
            if files.first().is_none_or(|first| file.path.as_str() < *first) {
                *line = block.line;
            }
            files.insert(&file.path);
        }
    }
    let finding = |((module, name), (files, line)): (_, (BTreeSet<&str>, usize))| -> FigurePlace {
        let (module, name): (&str, String) = (module, name);
        let paths: Vec<&str> = files.iter().copied().collect();
        let text =
            format!("`impl` blocks of `{module}::{name}` in {} files: {}", files.len(), paths.join(", "));
        FigurePlace { path: paths[0].to_owned(), line, weight: files.len() as f64, text }
    };
    spread.into_iter().map(finding).collect()
}

fn functions(repository: &SourceRepository) -> Vec<FigurePlace> {
    let all =
        modules(repository).flat_map(|(.., node, file)| node.facts.functions.iter().map(move |f| (f, file)));
    all.map(|(function, file)| {
        let text = format!("`{}` has {} lines", function.name, function.lines);
        FigurePlace { path: file.path.clone(), line: function.line, weight: function.lines as f64, text }
    })
    .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::repository::sample;

    #[test]
    fn sizes_are_measured_without_tests() {
        let repository = sample(&[
            (
                "crates/a/src/lib.rs",
                "mod b;\npub struct Big { x: u8, y: u8 }\nimpl Big {\n    fn f() {\n    }\n}\n\
                 #[cfg(test)]\nmod tests {\n    struct Huge(u8, u8, u8);\n    fn g() {\n\n\n    }\n}\n",
            ),
            (
                "crates/a/src/b.rs",
                "use crate::Big;\nimpl Big {}\nimpl Clone for Big {}\nstruct Other;\nimpl Other {}\n",
            ),
            ("crates/a/tests/t.rs", "struct Huge(u8, u8, u8);\nimpl Huge {}\n"),
            ("crates/b/src/lib.rs", "struct Big;\nimpl Big {}\n"),
        ]);
        let figures = measure(&repository);
        let first: Vec<String> = figures.iter().map(|figure| figure.findings[0].to_string()).collect();
        assert_eq!(
            first,
            [
                "crates/a: 11 lines",
                "crates/a/src/lib.rs:2: `Big` has 2 fields",
                "crates/a/src/b.rs:2: `impl` blocks of `a::Big` in 2 files: crates/a/src/b.rs, crates/a/src/lib.rs",
                "crates/a/src/lib.rs:4: `f` has 2 lines",
            ]
        );
        assert_eq!(figures.iter().map(MeasuredFigure::highest).collect::<Vec<_>>(), [11.0, 2.0, 2.0, 2.0]);
        assert_eq!(figures[2].findings.len(), 3);
    }
}

//! Figures of this repository are not above their limits.

use std::path::Path;
use std::sync::OnceLock;

use millstream_checks::{FIGURES, FigureLimits, MeasuredFigure, SourceRepository, failure, measure};

fn root() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."))
}

/// Returns all figures, measured once.
fn figures() -> &'static [MeasuredFigure] {
    static FIGURES: OnceLock<Vec<MeasuredFigure>> = OnceLock::new();
    FIGURES.get_or_init(|| measure(&SourceRepository::read(root()).unwrap_or_else(|error| panic!("{error}"))))
}

fn limits() -> FigureLimits {
    FigureLimits::read(root()).unwrap_or_else(|error| panic!("{error}"))
}

/// Fails if a figure is above its limit.
fn check(name: &str) {
    let figure = figures().iter().find(|figure| figure.kind.name == name);
    let figure = figure.unwrap_or_else(|| panic!("`{name}` is not measured"));
    let excesses = limits().excesses(figure).unwrap_or_else(|error| panic!("{error}"));
    assert!(excesses.is_empty(), "\n{}", failure(figure, &excesses));
}

/// Makes a test for each figure, and the list of their names.
macro_rules! checks {
    ($($name:ident),* $(,)?) => {
        $(
            #[test]
            fn $name() {
                check(stringify!($name));
            }
        )*

        const CHECKED: &[&str] = &[$(stringify!($name)),*];
    };
}

checks! {
    type_names_thrice_in_a_crate,
    type_names_shared,
    type_names_of_one_word,
    interrogative_comments,
    interrogative_comments_in_tests,
    long_lines_of_sources,
    long_lines_of_tests,
    long_lines_of_pages,
    page_sentence_mean,
    page_sentence_p90,
    page_longest_paragraph,
    page_words_per_heading,
    import_cycles,
    import_cycle_modules,
    crate_lines,
    struct_fields,
    impl_files,
    function_lines,
}

#[test]
fn every_figure_is_measured_and_checked() {
    let names: Vec<&str> = FIGURES.iter().map(|kind| kind.name).collect();
    assert_eq!(CHECKED, names);
    let measured: Vec<&str> = figures().iter().map(|figure| figure.kind.name).collect();
    assert_eq!(measured, names);
}

#[test]
fn the_repository_is_read() {
    let repository = SourceRepository::read(root()).unwrap_or_else(|error| panic!("{error}"));
    let (files, packages) = (repository.rust_files(), repository.package_count());
    assert!(files > 500 && packages > 20, "{files} files of {packages} packages");
}

/// To look for examples in a crate without any takes a second: such a crate says `doctest = false`, and one
/// with examples does not.
#[test]
fn examples_in_documentation_are_run_where_there_are_any() {
    let crates = std::fs::read_dir(root().join("crates")).expect("the folder of the crates");
    for folder in crates.map(|entry| entry.expect("a folder").path()) {
        let Ok(manifest) = std::fs::read_to_string(folder.join("Cargo.toml")) else { continue };
        if !folder.join("src/lib.rs").exists() {
            continue;
        }
        let skipped = manifest.lines().any(|line| line == "doctest = false");
        assert_eq!(skipped, !has_examples(&folder.join("src")), "{}: `doctest`", folder.display());
    }
}

/// Returns true if a doc comment below this folder has a block of code that rustdoc would run.
fn has_examples(folder: &Path) -> bool {
    std::fs::read_dir(folder).expect("a folder").any(|entry| {
        let path = entry.expect("a file").path();
        if path.is_dir() {
            return has_examples(&path);
        }
        let text = std::fs::read_to_string(&path).unwrap_or_default();
        let comments = text.lines().filter_map(|line| {
            let line = line.trim_start();
            line.strip_prefix("///").or_else(|| line.strip_prefix("//!"))
        });
        let fences: Vec<&str> = comments.filter_map(|line| line.trim().strip_prefix("```")).collect();
        // Each second fence closes a block.
        fences.iter().step_by(2).any(|kind| !matches!(*kind, "text" | "ignore"))
    })
}

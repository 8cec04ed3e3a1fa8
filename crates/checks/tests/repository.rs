//! Figures of this repository are not above their limits.

use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use millstream_checks::{FIGURES, FigureLimits, MeasuredFigure, SourceRepository, failure, measure};

fn root() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."))
}

/// Size and figures of the repository.
struct Measurements {
    rust_files: usize,
    packages: usize,
    figures: Vec<MeasuredFigure>,
}

/// Reads the repository and measures all figures, once.
fn measurements() -> &'static Measurements {
    static MEASUREMENTS: OnceLock<Measurements> = OnceLock::new();
    MEASUREMENTS.get_or_init(|| {
        let repository = SourceRepository::read(root()).unwrap_or_else(|error| panic!("{error}"));
        let (rust_files, packages) = (repository.rust_files(), repository.package_count());
        Measurements { rust_files, packages, figures: measure(&repository) }
    })
}

fn figures() -> &'static [MeasuredFigure] {
    &measurements().figures
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
    let Measurements { rust_files, packages, .. } = measurements();
    assert!(*rust_files > 500 && *packages > 20, "{rust_files} files of {packages} packages");
}

/// Returns the folders of all crates, with their manifests.
fn crates() -> impl Iterator<Item = (PathBuf, String)> {
    let crates = std::fs::read_dir(root().join("crates")).expect("the folder of the crates");
    crates.map(|entry| entry.expect("a folder").path()).filter_map(|folder| {
        let manifest = std::fs::read_to_string(folder.join("Cargo.toml")).ok()?;
        Some((folder, manifest))
    })
}

/// To look for examples in a crate without any takes a second: such a crate says `doctest = false`, and one
/// with examples does not.
#[test]
fn examples_in_documentation_are_run_where_there_are_any() {
    for (folder, manifest) in crates().filter(|(folder, _)| folder.join("src/lib.rs").exists()) {
        let skipped = manifest.lines().any(|line| line == "doctest = false");
        assert_eq!(skipped, !any_file(&folder.join("src"), &has_examples), "{}: `doctest`", folder.display());
    }
}

/// Executables are not compiled and linked a second time for unit tests: they have none, and say `test = false`.
#[test]
fn executables_are_not_built_for_unit_tests() {
    for (folder, manifest) in crates().filter(|(folder, _)| folder.join("src/bin").exists()) {
        assert!(!any_file(&folder.join("src/bin"), &|_, text| has_tests(text)), "{}", folder.display());
        let sections = manifest.split("[[bin]]").skip(1);
        let is_skipped = |section: &str| section.lines().any(|line| line == "test = false");
        assert!(sections.map(is_skipped).eq([true]), "{}: `test` of `[[bin]]`", folder.display());
    }
}

fn has_tests(text: &str) -> bool {
    text.lines().any(|line| line.trim_start().starts_with("#[test]"))
}

/// Returns true if the path and text of any file below this folder satisfy a condition.
fn any_file(folder: &Path, condition: &impl Fn(&Path, &str) -> bool) -> bool {
    std::fs::read_dir(folder).expect("a folder").any(|entry| {
        let path = entry.expect("a file").path();
        match path.is_dir() {
            true => any_file(&path, condition),
            false => condition(&path, &std::fs::read_to_string(&path).unwrap_or_default()),
        }
    })
}

/// Returns true if a doc comment of this file has a block of code that rustdoc would run.
fn has_examples(_: &Path, text: &str) -> bool {
    let comments = text.lines().filter_map(|line| {
        let line = line.trim_start();
        line.strip_prefix("///").or_else(|| line.strip_prefix("//!"))
    });
    let fences: Vec<&str> = comments.filter_map(|line| line.trim().strip_prefix("```")).collect();
    // Each second fence closes a block.
    fences.iter().step_by(2).any(|kind| !matches!(*kind, "text" | "ignore"))
}

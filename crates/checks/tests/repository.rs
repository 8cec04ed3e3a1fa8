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

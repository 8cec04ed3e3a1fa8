//! Figures of this repository's own source and pages: names, comments, line widths, readability, import
//! cycles, sizes.
//!
//! [`SourceRepository`] reads the files once. [`measure`] turns them into [`MeasuredFigure`]s, each with the
//! places behind it. [`FigureLimits`] is the file `limits.toml`: a ceiling for each figure. The tests of this
//! crate fail if a figure is above its ceiling, so nothing gets worse unnoticed.
//!
//! ```text
//! cargo run -p millstream-checks                       the table
//! cargo run -p millstream-checks -- --json             all figures with all places
//! cargo run -p millstream-checks -- --list FIGURE      the places behind one figure
//! cargo run -p millstream-checks -- --bless            lower the ceilings to today's figures
//! ```
//!
//! Test code is counted apart: the folders `tests/` and `benches/` of a package, items under `#[cfg(test)]`
//! or `#[test]`, and files that only such items reach.
//!
//! Architecture Invariant: this crate depends on no other crate of the workspace, and writes no file but
//! `limits.toml`.

mod comments;
mod cycles;
mod error;
mod facts;
mod figure;
mod files;
mod limits;
mod lines;
mod modules;
mod names;
mod pages;
mod report;
mod repository;
mod sizes;
mod tokens;

pub use error::CheckError;
pub use figure::{FIGURES, FigureKind, FigurePlace, FigureValue, MeasuredFigure};
pub use limits::{FigureLimits, LimitExcess};
pub use report::{failure, json, list, table};
pub use repository::SourceRepository;

/// Measures every figure of [`FIGURES`], in their order.
pub fn measure(repository: &SourceRepository) -> Vec<MeasuredFigure> {
    let mut figures = names::measure(repository);
    figures.extend(comments::measure(repository));
    figures.extend(lines::measure(repository));
    figures.extend(pages::measure(repository));
    figures.extend(cycles::measure(repository));
    figures.extend(sizes::measure(repository));
    figures
}

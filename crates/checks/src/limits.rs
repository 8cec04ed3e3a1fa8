//! The file of limits: a ceiling for each figure, and, of figures with a value per page, for each page above
//! the goal.
//!
//! A page that the file does not name must meet the goal. Blessing never raises a limit.

use std::collections::BTreeMap;
use std::path::Path;
use std::{fs, io};

use crate::error::CheckError;
use crate::figure::{FIGURES, FigureKind, FigureValue, MeasuredFigure};

const HEAD: &str = "\
# Ceilings of the figures that `cargo run -p millstream-checks` prints. The tests of the crate fail above them.
#
# `cargo run -p millstream-checks -- --bless` lowers them to today's figures. It never raises one: what must be
# raised is raised by hand, with the reason in the commit. A figure whose line or table is removed gets a new one.
# A page that is not named must meet the goal.
";

/// Ceilings of figures, by name.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct FigureLimits {
    ceilings: BTreeMap<String, FigureValue>,
}

/// A value above its limit.
#[derive(Clone, PartialEq, Debug)]
pub struct LimitExcess {
    /// Page, for a figure with a value per page.
    pub page: Option<String>,
    /// Measured value.
    pub value: f64,
    /// Limit that it exceeds.
    pub limit: f64,
}

impl FigureLimits {
    /// Path of the file from the root of the repository.
    pub const PATH: &str = "crates/checks/limits.toml";

    /// Reads the file below the root of a repository. Without a file there are no limits.
    ///
    /// # Errors
    /// If the file cannot be read or is malformed.
    pub fn read(root: &Path) -> Result<FigureLimits, CheckError> {
        match fs::read_to_string(root.join(FigureLimits::PATH)) {
            Ok(text) => FigureLimits::parse(&text),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(FigureLimits::default()),
            Err(source) => Err(CheckError::File { path: FigureLimits::PATH.to_owned(), source }),
        }
    }

    /// Writes the file below the root of a repository.
    ///
    /// # Errors
    /// If the file cannot be written.
    pub fn write(&self, root: &Path) -> Result<(), CheckError> {
        let written = fs::write(root.join(FigureLimits::PATH), self.text());
        written.map_err(|source| CheckError::File { path: FigureLimits::PATH.to_owned(), source })
    }

    fn parse(text: &str) -> Result<FigureLimits, CheckError> {
        let malformed = |message: String| CheckError::Limits(message);
        let table: toml::Table = text.parse().map_err(|e: toml::de::Error| malformed(e.to_string()))?;
        let number = |name: &str, value: &toml::Value| match value {
            toml::Value::Integer(number) => Ok(*number as f64),
            toml::Value::Float(number) => Ok(*number),
            _ => Err(malformed(format!("`{name}` is no number"))),
        };
        let mut ceilings = BTreeMap::new();
        for (name, value) in &table {
            let kind =
                FigureKind::find(name).ok_or_else(|| malformed(format!("there is no figure `{name}`")))?;
            let ceiling = match value {
                toml::Value::Table(pages) => {
                    let page = |(page, value): (&String, _)| Ok((page.clone(), number(page, value)?));
                    FigureValue::PerPage(pages.iter().map(page).collect::<Result<_, CheckError>>()?)
                }
                value => FigureValue::Whole(number(name, value)?),
            };
            if matches!(ceiling, FigureValue::PerPage(_)) != is_per_page(kind) {
                return Err(malformed(format!("`{name}` is not of the right kind")));
            }
            ceilings.insert(name.clone(), ceiling);
        }
        Ok(FigureLimits { ceilings })
    }

    /// Returns the text of the file: single figures first, as TOML wants it, in the order of [`FIGURES`].
    fn text(&self) -> String {
        let mut text = HEAD.to_owned();
        let goal = |kind: &FigureKind| match kind.goal {
            Some(goal) => format!("goal {goal}"),
            None => "no goal is set".to_owned(),
        };
        let number = |kind: &FigureKind, value: f64| match kind.step < 1.0 {
            true => format!("{value:.1}"),
            false => format!("{value:.0}"),
        };
        for kind in FIGURES {
            if let Some(FigureValue::Whole(limit)) = self.ceilings.get(kind.name) {
                let (name, title) = (kind.name, kind.title);
                text += &format!("\n# {title}; {}\n{name} = {}\n", goal(kind), number(kind, *limit));
            }
        }
        for kind in FIGURES {
            if let Some(FigureValue::PerPage(limits)) = self.ceilings.get(kind.name) {
                text += &format!("\n# {}; {}\n[{}]\n", kind.title, goal(kind), kind.name);
                for (page, limit) in limits {
                    text += &format!("\"{page}\" = {}\n", number(kind, *limit));
                }
            }
        }
        text
    }

    /// Returns the limit of a figure without pages.
    pub fn of(&self, kind: &FigureKind) -> Option<f64> {
        match self.ceilings.get(kind.name) {
            Some(FigureValue::Whole(limit)) => Some(*limit),
            _ => None,
        }
    }

    /// Finds the values of a figure that are above their limits.
    ///
    /// # Errors
    /// If a figure without pages has no limit.
    pub fn excesses(&self, figure: &MeasuredFigure) -> Result<Vec<LimitExcess>, CheckError> {
        let kind = figure.kind;
        match &figure.value {
            FigureValue::Whole(value) => {
                let none = || {
                    CheckError::Limits(format!("`{}` has no limit: `checks --bless` writes one", kind.name))
                };
                let limit = self.of(kind).ok_or_else(none)?;
                Ok(excess(kind, None, *value, limit).into_iter().collect())
            }
            FigureValue::PerPage(values) => {
                let goal = kind.goal.unwrap_or(f64::INFINITY);
                let limit = |page: &String| {
                    self.pages(kind).and_then(|limits| limits.get(page)).copied().unwrap_or(goal)
                };
                let of_page = |(page, value): (&String, &f64)| excess(kind, Some(page), *value, limit(page));
                Ok(values.iter().filter_map(of_page).collect())
            }
        }
    }

    fn pages(&self, kind: &FigureKind) -> Option<&BTreeMap<String, f64>> {
        match self.ceilings.get(kind.name) {
            Some(FigureValue::PerPage(limits)) => Some(limits),
            _ => None,
        }
    }

    /// Lowers limits to figures, but not below goals. A figure without a limit gets one; pages that meet the
    /// goal, or are gone, are no longer named.
    pub fn bless(&mut self, figures: &[MeasuredFigure]) {
        for figure in figures {
            let kind = figure.kind;
            let wanted = |value: f64| kind.round_up(value).max(kind.goal.unwrap_or(0.0));
            let lowered = match &figure.value {
                FigureValue::Whole(value) => FigureValue::Whole(
                    self.of(kind).map_or(wanted(*value), |limit| limit.min(wanted(*value))),
                ),
                FigureValue::PerPage(values) => {
                    let goal = kind.goal.unwrap_or(0.0);
                    let old = self.pages(kind);
                    let limit = |page: &String, value: f64| match old {
                        Some(limits) => limits.get(page).map_or(goal, |limit| limit.min(wanted(value))),
                        None => wanted(value),
                    };
                    let limits = values.iter().map(|(page, value)| (page.clone(), limit(page, *value)));
                    FigureValue::PerPage(limits.filter(|(_, limit)| *limit > goal).collect())
                }
            };
            self.ceilings.insert(kind.name.to_owned(), lowered);
        }
    }
}

/// Reports whether a figure has a value per page.
fn is_per_page(kind: &FigureKind) -> bool {
    kind.name.starts_with("page_")
}

fn excess(kind: &FigureKind, page: Option<&String>, value: f64, limit: f64) -> Option<LimitExcess> {
    // Limits have as many decimals as the step.
    let is_above = kind.round_up(value) > limit && value > limit;
    is_above.then(|| LimitExcess { page: page.cloned(), value, limit })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn whole(name: &str, value: f64) -> MeasuredFigure {
        MeasuredFigure::new(name, FigureValue::Whole(value), Vec::new())
    }

    fn pages(values: &[(&str, f64)]) -> MeasuredFigure {
        let values = values.iter().map(|(page, value)| ((*page).to_owned(), *value)).collect();
        MeasuredFigure::new("page_sentence_mean", FigureValue::PerPage(values), Vec::new())
    }

    fn parse(text: &str) -> FigureLimits {
        FigureLimits::parse(text).unwrap()
    }

    #[test]
    fn what_is_written_is_read_again() {
        let mut limits = FigureLimits::default();
        let figures =
            [whole("type_names_shared", 20.01), whole("function_lines", 43.2), pages(&[("a.md", 21.0)])];
        limits.bless(&figures);
        let text = limits.text();
        assert!(text.contains("%; goal 10\ntype_names_shared = 21\n"), "{text}");
        assert!(text.contains("no goal is set\nfunction_lines = 44\n"), "{text}");
        assert!(text.contains("goal 18\n[page_sentence_mean]\n\"a.md\" = 21.0\n"), "{text}");
        assert_eq!(parse(&text), limits);
    }

    #[test]
    fn a_value_above_its_limit_is_found() {
        let limits = parse("struct_fields = 7\n[page_sentence_mean]\n\"a.md\" = 20.5\n");
        assert_eq!(limits.excesses(&whole("struct_fields", 7.0)).unwrap(), []);
        let excess = limits.excesses(&whole("struct_fields", 8.0)).unwrap();
        assert_eq!(excess, [LimitExcess { page: None, value: 8.0, limit: 7.0 }]);
        assert!(limits.excesses(&whole("impl_files", 1.0)).is_err());
        let excess = limits.excesses(&pages(&[("a.md", 20.5), ("b.md", 18.0), ("c.md", 18.1)])).unwrap();
        assert_eq!(excess, [LimitExcess { page: Some("c.md".into()), value: 18.1, limit: 18.0 }]);
        assert_eq!(limits.excesses(&pages(&[("a.md", 20.6)])).unwrap().len(), 1);
    }

    #[test]
    fn blessing_lowers_limits_to_the_goal_at_most() {
        let mut limits = parse("import_cycles = 20\nstruct_fields = 7\n");
        limits.bless(&[whole("import_cycles", 12.0), whole("struct_fields", 9.0)]);
        assert_eq!(limits, parse("import_cycles = 12\nstruct_fields = 7\n"));
        limits.bless(&[whole("import_cycles", 3.0)]);
        assert_eq!(limits, parse("import_cycles = 8\nstruct_fields = 7\n"));
    }

    #[test]
    fn blessing_names_only_pages_above_the_goal() {
        let mut limits = FigureLimits::default();
        limits.bless(&[pages(&[("a.md", 25.0), ("b.md", 17.0), ("c.md", 20.0)])]);
        assert_eq!(limits, parse("[page_sentence_mean]\n\"a.md\" = 25.0\n\"c.md\" = 20.0\n"));
        // `a` is better, `b` is worse, `c` is gone, `d` is new.
        limits.bless(&[pages(&[("a.md", 22.0), ("b.md", 30.0), ("d.md", 30.0)])]);
        assert_eq!(limits, parse("[page_sentence_mean]\n\"a.md\" = 22.0\n"));
        limits.bless(&[pages(&[("a.md", 10.0)])]);
        assert_eq!(limits, parse("[page_sentence_mean]\n"));
    }

    #[test]
    fn malformed_files_are_refused() {
        for text in [
            "no_such_figure = 1",
            "struct_fields = \"x\"",
            "[struct_fields]",
            "page_sentence_mean = 1",
            "=",
            "",
        ] {
            assert_eq!(FigureLimits::parse(text).is_err(), !text.is_empty(), "{text}");
        }
    }
}

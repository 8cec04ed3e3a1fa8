//! Figures: their names, goals and values, and the places behind them.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::fmt;

/// Description of a figure.
#[derive(Debug)]
pub struct FigureKind {
    /// Key in `limits.toml` and argument of `checks --list`.
    pub name: &'static str,
    /// One line for tables, with the unit.
    pub title: &'static str,
    /// Value at which no more work is wanted; [`None`] where nobody has set one.
    pub goal: Option<f64>,
    /// Limits are multiples of this.
    pub step: f64,
    /// Remedy, for the message of a failed test.
    pub advice: &'static str,
}

const PAGE_ADVICE: &str = "Split long sentences at conjunctions and brackets, turn lists of facts into \
     lists or tables, and put a heading over each topic.";
const SPLIT_ADVICE: &str =
    "Split it by responsibility: group what belongs together into a type or function of its own.";
const WRAP_ADVICE: &str =
    "Wrap comments and prose at 110 columns; split string literals with `\\` at the end of a line.";
const COMMENT_ADVICE: &str = "Begin with a noun phrase (\"Offset of the header, in bytes.\") or a verb \
     (\"Returns ...\", \"True if ...\").";
const CYCLE_ADVICE: &str = "Move what both sides use into a module below them, or pass it as an argument.";

/// All figures, in the order of reports.
pub const FIGURES: &[FigureKind] = &[
    FigureKind {
        name: "type_names_thrice_in_a_crate",
        title: "type names defined more than twice in one crate",
        goal: Some(0.0),
        step: 1.0,
        advice: "Give each type a name of two or three words that says what it is without its module.",
    },
    FigureKind {
        name: "type_names_shared",
        title: "types that share their name with two or more others, %",
        goal: Some(10.0),
        step: 1.0,
        advice: "Give each type a name of two or three words that says what it is without its module.",
    },
    FigureKind {
        name: "type_names_of_one_word",
        title: "types with a name of one word, %",
        goal: Some(16.0),
        step: 1.0,
        advice: "Say what the type is a part of, or of what kind: `QueueLimit`, not `Limit`.",
    },
    FigureKind {
        name: "interrogative_comments",
        title: "paragraphs of doc comments that begin with What, Whether, Where, Who, How",
        goal: Some(0.0),
        step: 1.0,
        advice: COMMENT_ADVICE,
    },
    FigureKind {
        name: "interrogative_comments_in_tests",
        title: "such paragraphs in test code",
        goal: Some(0.0),
        step: 1.0,
        advice: COMMENT_ADVICE,
    },
    FigureKind {
        name: "long_lines_of_sources",
        title: "lines of Rust over 120 columns",
        goal: Some(0.0),
        step: 1.0,
        advice: WRAP_ADVICE,
    },
    FigureKind {
        name: "long_lines_of_tests",
        title: "lines of Rust over 120 columns in test code",
        goal: Some(0.0),
        step: 1.0,
        advice: WRAP_ADVICE,
    },
    FigureKind {
        name: "long_lines_of_pages",
        title: "lines of Markdown over 120 columns",
        goal: Some(0.0),
        step: 1.0,
        advice: WRAP_ADVICE,
    },
    FigureKind {
        name: "page_sentence_mean",
        title: "mean sentence of a page, words",
        goal: Some(18.0),
        step: 0.1,
        advice: PAGE_ADVICE,
    },
    FigureKind {
        name: "page_sentence_p90",
        title: "90th percentile of a page's sentences, words",
        goal: Some(30.0),
        step: 1.0,
        advice: PAGE_ADVICE,
    },
    FigureKind {
        name: "page_longest_paragraph",
        title: "longest paragraph of a page, words",
        goal: Some(110.0),
        step: 1.0,
        advice: PAGE_ADVICE,
    },
    FigureKind {
        name: "page_words_per_heading",
        title: "words per heading of a page",
        goal: Some(200.0),
        step: 1.0,
        advice: PAGE_ADVICE,
    },
    FigureKind {
        name: "import_cycles",
        title: "import cycles inside crates",
        goal: Some(8.0),
        step: 1.0,
        advice: CYCLE_ADVICE,
    },
    FigureKind {
        name: "import_cycle_modules",
        title: "modules of the largest import cycle",
        goal: Some(3.0),
        step: 1.0,
        advice: CYCLE_ADVICE,
    },
    FigureKind {
        name: "crate_lines",
        title: "lines of the largest crate, without tests",
        goal: Some(14000.0),
        step: 1000.0,
        advice: "A crate has one responsibility: move one of its parts to a crate below it.",
    },
    FigureKind {
        name: "struct_fields",
        title: "fields of the largest struct",
        goal: Some(16.0),
        step: 1.0,
        advice: SPLIT_ADVICE,
    },
    FigureKind {
        name: "impl_files",
        title: "files that hold inherent `impl` blocks of one type, at most",
        goal: Some(4.0),
        step: 1.0,
        advice: SPLIT_ADVICE,
    },
    FigureKind {
        name: "function_lines",
        title: "lines of the longest function",
        goal: None,
        step: 1.0,
        advice: SPLIT_ADVICE,
    },
];

impl FigureKind {
    /// Finds a figure by its name.
    pub fn find(name: &str) -> Option<&'static FigureKind> {
        FIGURES.iter().find(|kind| kind.name == name)
    }

    /// Returns the lowest permitted limit that is not below a value.
    pub(crate) fn round_up(&self, value: f64) -> f64 {
        let steps = value / self.step;
        // A quotient that is whole but for the rounding of binary fractions counts as whole.
        let whole = if (steps - steps.round()).abs() < 1e-6 { steps.round() } else { steps.ceil() };
        // Division by the inverse, since 0.1 has no exact form: 201 / 10 is the number nearest to 20.1.
        if self.step < 1.0 { whole / (1.0 / self.step).round() } else { whole * self.step }
    }
}

/// Measured value of a figure.
#[derive(Clone, PartialEq, Debug)]
pub enum FigureValue {
    /// One number for the repository.
    Whole(f64),
    /// A number for each page, by its path.
    PerPage(BTreeMap<String, f64>),
}

/// A place that contributes to a figure.
#[derive(Clone, PartialEq, Debug)]
pub struct FigurePlace {
    /// Path of the file from the root of the repository.
    pub path: String,
    /// Line, from 1; 0 for the whole file.
    pub line: usize,
    /// Contribution to the figure; places are sorted by it.
    pub weight: f64,
    /// Remark for the reader.
    pub text: String,
}

impl fmt::Display for FigurePlace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.line {
            0 => write!(f, "{}: {}", self.path, self.text),
            line => write!(f, "{}:{line}: {}", self.path, self.text),
        }
    }
}

/// A figure as measured.
#[derive(Debug)]
pub struct MeasuredFigure {
    /// Its description.
    pub kind: &'static FigureKind,
    /// Its value.
    pub value: FigureValue,
    /// Places behind it, the heaviest first.
    pub findings: Vec<FigurePlace>,
}

impl MeasuredFigure {
    /// Makes the figure of a name that is in [`FIGURES`].
    pub(crate) fn new(name: &str, value: FigureValue, mut findings: Vec<FigurePlace>) -> MeasuredFigure {
        let kind = FigureKind::find(name).unwrap_or_else(|| panic!("`{name}` is not in FIGURES"));
        findings.sort_by(|a, b| {
            let by_weight = Reverse(a.weight.max(0.0) as u64).cmp(&Reverse(b.weight.max(0.0) as u64));
            by_weight.then_with(|| (&a.path, a.line).cmp(&(&b.path, b.line)))
        });
        MeasuredFigure { kind, value, findings }
    }

    /// Makes a figure whose value is the number of its places.
    pub(crate) fn count(name: &str, findings: Vec<FigurePlace>) -> MeasuredFigure {
        MeasuredFigure::new(name, FigureValue::Whole(findings.len() as f64), findings)
    }

    /// Makes a figure whose value is the weight of its heaviest place.
    pub(crate) fn maximum(name: &str, findings: Vec<FigurePlace>) -> MeasuredFigure {
        let most = findings.iter().map(|finding| finding.weight).fold(0.0, f64::max);
        MeasuredFigure::new(name, FigureValue::Whole(most), findings)
    }

    /// Returns the value for tables: of figures with a value per page, the highest.
    pub fn highest(&self) -> f64 {
        match &self.value {
            FigureValue::Whole(value) => *value,
            FigureValue::PerPage(values) => values.values().copied().fold(0.0, f64::max),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_figures_are_unique() {
        for (at, kind) in FIGURES.iter().enumerate() {
            assert!(!FIGURES[..at].iter().any(|other| other.name == kind.name), "{}", kind.name);
        }
    }

    #[test]
    fn limits_are_rounded_up_to_a_step() {
        let round = |name: &str, value| FigureKind::find(name).unwrap().round_up(value);
        assert_eq!(round("page_sentence_mean", 20.01), 20.1);
        assert_eq!(round("page_sentence_mean", 20.1), 20.1);
        assert_eq!(round("crate_lines", 12_001.0), 13_000.0);
        assert_eq!(round("crate_lines", 12_000.0), 12_000.0);
        assert_eq!(round("struct_fields", 7.0), 7.0);
    }

    #[test]
    fn heavy_places_come_first() {
        let finding =
            |path: &str, weight| FigurePlace { path: path.into(), line: 1, weight, text: String::new() };
        let figure = MeasuredFigure::maximum(
            "struct_fields",
            vec![finding("b", 1.0), finding("c", 3.0), finding("a", 1.0)],
        );
        let paths: Vec<&str> = figure.findings.iter().map(|f| f.path.as_str()).collect();
        assert_eq!(paths, ["c", "a", "b"]);
        assert_eq!(figure.highest(), 3.0);
    }
}

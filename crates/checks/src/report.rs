//! Texts: the table of figures, their places, JSON, and messages of failed tests.

use serde_json::{Value, json};

use crate::error::CheckError;
use crate::figure::{FigurePlace, FigureValue, MeasuredFigure};
use crate::limits::{FigureLimits, LimitExcess};

/// Number of places in the message of a failed test, and of lines of each.
const SHOWN: usize = 20;

/// Number of places of each figure about sizes and cycles below the table.
const SHOWN_BELOW: usize = 10;

/// Figures whose places are shown below the table.
const DETAILED: [&str; 5] = ["import_cycles", "struct_fields", "impl_files", "function_lines", "crate_lines"];

/// Formats all figures as a table, with the places of sizes and cycles below it.
///
/// # Errors
/// If a figure has no limit.
pub fn table(figures: &[MeasuredFigure], limits: &FigureLimits) -> Result<String, CheckError> {
    let mut rows = vec![["figure", "value", "limit", "goal", "", "meaning"].map(str::to_owned)];
    for figure in figures {
        let excesses = limits.excesses(figure)?;
        let limit = match &figure.value {
            FigureValue::Whole(_) => {
                limits.of(figure.kind).map_or_else(String::new, |limit| number(figure, limit))
            }
            FigureValue::PerPage(_) => "by page".to_owned(),
        };
        let state = if excesses.is_empty() { "" } else { "ABOVE" };
        rows.push([
            figure.kind.name.to_owned(),
            number(figure, figure.highest()),
            limit,
            figure.kind.goal.map_or_else(|| "-".to_owned(), |goal| format!("{goal}")),
            state.to_owned(),
            format!("{}{}", figure.kind.title, above_goal(figure)),
        ]);
    }
    let mut text = columns(&rows);
    let pages: Vec<&MeasuredFigure> =
        figures.iter().filter(|figure| matches!(figure.value, FigureValue::PerPage(_))).collect();
    text += &format!("\n{}", columns(&page_rows(&pages)));
    for figure in figures.iter().filter(|figure| DETAILED.contains(&figure.kind.name)) {
        let all = figure.kind.name == "crate_lines" || figure.kind.name == "import_cycles";
        let shown = if all { figure.findings.len() } else { SHOWN_BELOW };
        text += &format!("\n{} ({}):\n", figure.kind.title, figure.kind.name);
        for finding in figure.findings.iter().take(shown) {
            let first_line = finding.to_string().lines().next().unwrap_or_default().to_owned();
            text += &format!("  {first_line}\n");
        }
    }
    Ok(text)
}

/// Says how many pages are above the goal.
fn above_goal(figure: &MeasuredFigure) -> String {
    match (&figure.value, figure.kind.goal) {
        (FigureValue::PerPage(values), Some(goal)) => {
            let above = values.values().filter(|value| **value > goal).count();
            format!("; {above} of {} pages are above the goal", values.len())
        }
        _ => String::new(),
    }
}

fn page_rows(figures: &[&MeasuredFigure]) -> Vec<[String; 5]> {
    let mut rows = vec![["page", "sentence mean", "p90", "paragraph", "per heading"].map(str::to_owned)];
    let Some(FigureValue::PerPage(first)) = figures.first().map(|figure| &figure.value) else { return rows };
    for page in first.keys() {
        let mut row: [String; 5] = Default::default();
        row[0].clone_from(page);
        for (cell, figure) in row[1..].iter_mut().zip(figures) {
            if let FigureValue::PerPage(values) = &figure.value {
                *cell = values.get(page).map_or_else(String::new, |value| number(figure, *value));
            }
        }
        rows.push(row);
    }
    rows
}

/// Formats rows with aligned columns; the first and the last column are text, the others numbers.
fn columns<const N: usize>(rows: &[[String; N]]) -> String {
    let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0);
    let widths: [usize; N] = std::array::from_fn(width);
    let is_text = |column: usize| column == 0 || N == 6 && column == N - 1;
    let mut text = String::new();
    for row in rows {
        let cells = row.iter().zip(widths).enumerate().map(|(column, (cell, width))| match is_text(column) {
            true => format!("{cell:width$}"),
            false => format!("{cell:>width$}"),
        });
        text += cells.collect::<Vec<_>>().join("  ").trim_end();
        text.push('\n');
    }
    text
}

fn number(figure: &MeasuredFigure, value: f64) -> String {
    let rounded = if figure.kind.step < 1.0 { figure.kind.round_up(value) } else { value };
    if figure.kind.step < 1.0 { format!("{rounded:.1}") } else { format!("{rounded:.0}") }
}

/// Lists all places behind a figure, one a line.
///
/// # Errors
/// If there is no figure of this name.
pub fn list(figures: &[MeasuredFigure], name: &str) -> Result<String, CheckError> {
    let figure = figures.iter().find(|figure| figure.kind.name == name);
    let figure = figure.ok_or_else(|| CheckError::UnknownFigure(name.to_owned()))?;
    Ok(figure.findings.iter().map(|finding| format!("{finding}\n")).collect())
}

/// Formats all figures with all their places as JSON.
pub fn json(figures: &[MeasuredFigure], limits: &FigureLimits) -> String {
    let place = |finding: &FigurePlace| {
        let FigurePlace { path, line, weight, text } = finding;
        json!({ "path": path, "line": line, "weight": weight, "text": text })
    };
    let figure = |figure: &MeasuredFigure| {
        let value = match &figure.value {
            FigureValue::Whole(value) => json!(value),
            FigureValue::PerPage(values) => json!(values),
        };
        json!({
            "name": figure.kind.name,
            "title": figure.kind.title,
            "goal": figure.kind.goal,
            "limit": limits.of(figure.kind),
            "value": value,
            "places": figure.findings.iter().map(place).collect::<Vec<Value>>(),
        })
    };
    let all: Vec<Value> = figures.iter().map(figure).collect();
    format!("{:#}\n", json!({ "schema": 1, "figures": all }))
}

/// Formats the message of a failed test: the values above their limits, the heaviest places, and the remedy.
pub fn failure(figure: &MeasuredFigure, excesses: &[LimitExcess]) -> String {
    let kind = figure.kind;
    let mut text = format!("{} ({}):\n", kind.title, kind.name);
    for excess in excesses {
        let page = excess.page.as_ref().map_or_else(String::new, |page| format!("{page}: "));
        let (value, limit) = (number(figure, excess.value), number(figure, excess.limit));
        text += &format!("  {page}{value}, the limit is {limit}\n");
    }
    let pages: Vec<&String> = excesses.iter().filter_map(|excess| excess.page.as_ref()).collect();
    let places: Vec<&FigurePlace> =
        figure.findings.iter().filter(|place| pages.is_empty() || pages.contains(&&place.path)).collect();
    text += "Places, the heaviest first:\n";
    for place in places.iter().take(SHOWN) {
        let place = place.to_string();
        for line in place.lines().take(SHOWN) {
            text += &format!("  {line}\n");
        }
        if place.lines().count() > SHOWN {
            text += "      ...\n";
        }
    }
    if let Some(more) = places.len().checked_sub(SHOWN + 1) {
        text += &format!("  and {} more: cargo run -p millstream-checks -- --list {}\n", more + 1, kind.name);
    }
    text += &format!("{}\nLimits are in {}.\n", kind.advice, FigureLimits::PATH);
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place(path: &str, line: usize) -> FigurePlace {
        FigurePlace { path: path.into(), line, weight: 1.0, text: "a remark".into() }
    }

    #[test]
    fn a_failure_names_places_and_remedy() {
        let figure = MeasuredFigure::count(
            "interrogative_comments",
            (1..=25).map(|line| place("a.rs", line)).collect(),
        );
        let text = failure(&figure, &[LimitExcess { page: None, value: 25.0, limit: 24.0 }]);
        assert!(text.contains("25, the limit is 24\n"), "{text}");
        assert!(
            text.contains("  a.rs:1: a remark\n")
                && text.contains("  a.rs:20: ")
                && !text.contains("a.rs:21"),
            "{text}"
        );
        assert!(
            text.contains("and 5 more: cargo run -p millstream-checks -- --list interrogative_comments\n"),
            "{text}"
        );
        assert!(text.contains("Begin with a noun phrase"), "{text}");
    }

    #[test]
    fn a_long_place_is_cut() {
        let long = FigurePlace { text: "first\n".to_owned() + &"arrow\n".repeat(30), ..place("a.rs", 0) };
        let figure = MeasuredFigure::count("import_cycles", vec![long]);
        let text = failure(&figure, &[LimitExcess { page: None, value: 1.0, limit: 0.0 }]);
        assert!(text.contains("a.rs: first\n") && text.contains("  ...\n"), "{text}");
        assert_eq!(text.matches("arrow").count(), SHOWN - 1);
    }

    #[test]
    fn a_failure_of_a_page_names_its_places_only() {
        let values = [("a.md".to_owned(), 40.0), ("b.md".to_owned(), 41.0)].into();
        let places = vec![place("a.md", 3), place("b.md", 4)];
        let figure = MeasuredFigure::new("page_sentence_p90", FigureValue::PerPage(values), places);
        let text = failure(&figure, &[LimitExcess { page: Some("b.md".into()), value: 41.0, limit: 30.0 }]);
        assert!(text.contains("b.md: 41, the limit is 30\n"), "{text}");
        assert!(text.contains("b.md:4") && !text.contains("a.md"), "{text}");
    }

    #[test]
    fn the_table_has_value_limit_and_goal() {
        let figures = [
            MeasuredFigure::count("import_cycles", vec![place("a.rs", 0), place("b.rs", 0)]),
            MeasuredFigure::new(
                "page_sentence_mean",
                FigureValue::PerPage([("a.md".to_owned(), 20.0)].into()),
                Vec::new(),
            ),
        ];
        let mut limits = FigureLimits::default();
        assert!(table(&figures, &limits).is_err());
        limits.bless(&figures);
        let text = table(&figures, &limits).unwrap();
        assert!(
            text.contains("import_cycles           2        8     8    import cycles inside crates\n"),
            "{text}"
        );
        assert!(text.contains("mean sentence of a page, words; 1 of 1 pages are above the goal\n"), "{text}");
        assert!(text.contains("a.md           20.0\n"), "{text}");
        assert!(
            text.contains(
                "import cycles inside crates (import_cycles):\n  a.rs: a remark\n  b.rs: a remark\n"
            ),
            "{text}"
        );
    }

    #[test]
    fn places_are_listed_and_in_json() {
        let figures = [MeasuredFigure::count("import_cycles", vec![place("a.rs", 7)])];
        assert_eq!(list(&figures, "import_cycles").unwrap(), "a.rs:7: a remark\n");
        assert!(matches!(list(&figures, "nothing"), Err(CheckError::UnknownFigure(_))));
        let value: Value = serde_json::from_str(&json(&figures, &FigureLimits::default())).unwrap();
        assert_eq!(value["figures"][0]["places"][0]["line"], 7);
        assert_eq!(value["figures"][0]["value"], 1.0);
    }
}

//! The report as text: two columns, with the mark of each row between them.

use std::fmt::Write as _;

use super::diff::{DiffHunk, DiffInstruction, DiffKind, DiffRow, FunctionDiff};
use super::{ExplainReport, ProgramProof};

/// Layout of the text.
#[derive(Clone, Copy, Debug)]
pub(super) struct DiffStyle {
    /// True to use colours.
    pub(super) colour: bool,
    /// True to show unchanged rows, too.
    pub(super) all: bool,
    /// Width in columns.
    pub(super) width: usize,
}

impl Default for DiffStyle {
    fn default() -> DiffStyle {
        let said = std::env::var("COLUMNS").ok().and_then(|w| w.parse().ok());
        DiffStyle { colour: false, all: false, width: said.unwrap_or(120).clamp(60, 400) }
    }
}

/// Unchanged rows that are shown before and behind a change.
const CONTEXT: usize = 2;

/// Colours of terminals.
const DIM: &str = "\x1b[2m";
const RED: &str = "\x1b[31m";
const GREEN: &str = "\x1b[32m";
const BLUE: &str = "\x1b[34m";
const YELLOW: &str = "\x1b[33m";
const BOLD: &str = "\x1b[1m";
const PLAIN: &str = "\x1b[0m";

impl DiffStyle {
    fn paint(self, colour: &str, text: &str) -> String {
        if self.colour && !text.is_empty() { format!("{colour}{text}{PLAIN}") } else { text.to_owned() }
    }

    /// Columns of one side.
    fn side(self) -> usize {
        (self.width - 3) / 2
    }
}

/// The whole report.
pub(super) fn text(report: &ExplainReport, style: &DiffStyle) -> String {
    let mut out = summary(report);
    if !report.causes_known && report.b.is_none() {
        out.push_str("causes are not known: with lines of its own the compiler decides otherwise\n");
    }
    for both in &report.functions {
        function(&mut out, both, *style);
    }
    if !report.windows.is_empty() {
        out.push_str("\nreplaced by the search, and again by something else:\n");
    }
    for w in &report.windows {
        let _ = writeln!(out, "  {} {}", w.cause.name, w.cause.description);
    }
    out
}

/// Proofs, and slots of each function.
pub(super) fn summary(report: &ExplainReport) -> String {
    let mut out = String::new();
    for p in &report.proofs {
        let _ = writeln!(out, "{}: {}", p.program, proof(p));
    }
    for f in &report.functions {
        let (before, after) = f.slots;
        let _ = writeln!(out, "{}: {before} slots, then {after}; {} changes", f.name, f.changes.len());
    }
    for name in &report.removed {
        let _ = writeln!(out, "{name}: removed, inlined or not called");
    }
    out
}

/// Description of the prover's result.
pub(super) fn proof(p: &ProgramProof) -> String {
    match (p.verdict, &p.reason) {
        ("unchanged", _) => "unchanged".into(),
        ("equivalent", _) if p.same == 0 => "proven equivalent, as a whole".into(),
        ("composed" | "refuted", Some(how)) => how.clone(),
        ("equivalent", _) if p.queries == 0 => {
            format!("proven equivalent: {} observables are the same term", p.same)
        }
        ("equivalent", _) => {
            format!(
                "proven equivalent: {} observables are the same term, {} questions to a solver",
                p.same, p.queries
            )
        }
        ("differs", Some(why)) => format!("NOT EQUIVALENT: {why}"),
        (_, why) => format!("not known to be equivalent: {}", why.as_deref().unwrap_or_default()),
    }
}

fn function(out: &mut String, both: &FunctionDiff, style: DiffStyle) {
    let (before, after) = both.slots;
    let _ = writeln!(out, "\n{}", style.paint(BOLD, &format!("{}: {before} slots, then {after}", both.name)));
    let mut line = None;
    let mut hidden = 0;
    for (n, row) in both.rows.iter().enumerate() {
        if !style.all && !near_change(&both.changes, n) {
            hidden += 1;
            continue;
        }
        elided(out, &mut hidden, style);
        let here = row.before.as_ref().or(row.after.as_ref()).and_then(|i| i.line);
        if here != line {
            line = here;
            if let Some(l) = here.map(|l| &both.lines[l]) {
                let place = format!("      {}:{}  {}", l.file, l.number, l.text);
                let _ = writeln!(out, "{}", style.paint(DIM, &clipped(&place, style.width)));
            }
        }
        self::row(out, row, style);
        if let Some(change) = both.changes.iter().find(|c| c.rows.1 == n + 1) {
            causes(out, change, style);
        }
    }
    elided(out, &mut hidden, style);
}

fn near_change(changes: &[DiffHunk], row: usize) -> bool {
    let next = changes.partition_point(|c| c.rows.1 + CONTEXT <= row);
    changes.get(next).is_some_and(|c| row + CONTEXT >= c.rows.0)
}

fn elided(out: &mut String, hidden: &mut usize, style: DiffStyle) {
    if *hidden > 0 {
        let instructions = if *hidden == 1 { "instruction" } else { "instructions" };
        let text = format!("      ... {hidden} {instructions} as before");
        let _ = writeln!(out, "{}", style.paint(DIM, &text));
    }
    *hidden = 0;
}

/// The mark of a row, and its colour.
fn mark(kind: DiffKind) -> (char, &'static str) {
    match kind {
        DiffKind::Same => (' ', ""),
        DiffKind::Registers => ('~', DIM),
        DiffKind::Changed => ('!', YELLOW),
        DiffKind::Removed => ('-', RED),
        DiffKind::Added => ('+', GREEN),
        DiffKind::Moved => ('>', BLUE),
    }
}

fn row(out: &mut String, row: &DiffRow, style: DiffStyle) {
    let cell = |insn: &Option<DiffInstruction>| {
        insn.as_ref().map_or(String::new(), |i| format!("{:5}: {}", i.slot, i.text))
    };
    let (mark, colour) = mark(row.kind);
    let width = style.side();
    let (left, right) = (clipped(&cell(&row.before), width), clipped(&cell(&row.after), width));
    let text = format!("{left:width$} {mark} {right}");
    let _ = writeln!(out, "{}", style.paint(colour, text.trim_end()));
}

fn causes(out: &mut String, change: &DiffHunk, style: DiffStyle) {
    if change.causes.is_empty() {
        return;
    }
    let (before, after) = change.slots;
    let names: Vec<String> =
        change.causes.iter().map(|c| format!("{} ({})", c.name, c.description)).collect();
    let slots = if before == 1 { "slot" } else { "slots" };
    let text = format!("      {before} {slots}, then {after}: {}", names.join("; "));
    for line in wrapped(&text, style.width) {
        let _ = writeln!(out, "{}", style.paint(BOLD, &line));
    }
}

/// At most `width` characters; an ellipsis marks a cut.
fn clipped(text: &str, width: usize) -> String {
    if text.chars().count() <= width {
        return text.to_owned();
    }
    let kept: String = text.chars().take(width - 1).collect();
    kept + "…"
}

/// Lines of at most `width` characters where words allow it, all but the first indented.
fn wrapped(text: &str, width: usize) -> Vec<String> {
    const INDENT: &str = "        ";
    let mut lines: Vec<String> = Vec::new();
    let start = text.len() - text.trim_start().len();
    let mut line = text[..start].to_owned();
    let mut empty = true;
    for word in text.split_whitespace() {
        if !empty && line.chars().count() + 1 + word.chars().count() > width {
            lines.push(std::mem::replace(&mut line, INDENT.to_owned()));
            empty = true;
        }
        if !empty {
            line.push(' ');
        }
        line.push_str(word);
        empty = false;
    }
    lines.push(line);
    lines
}

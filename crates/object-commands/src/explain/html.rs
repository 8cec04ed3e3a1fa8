//! The report as a self-contained page: no script, no font, no picture.

use std::fmt::Write as _;

use super::diff::{DiffHunk, DiffInstruction, DiffKind, DiffRow, FunctionDiff};
use super::{ExplainReport, text};

/// Minimum length of a run of unchanged rows that is folded.
const FOLDED: usize = 8;

const STYLE: &str = "
:root { color-scheme: light dark; --back: #fff; --text: #1f2328; --dim: #6e7781; --line: #d0d7de; --removed: #ffebe9;
  --added: #dafbe1; --changed: #fff8c5; --cause: #ddf4ff; }
@media (prefers-color-scheme: dark) { :root { --back: #0d1117; --text: #e6edf3; --dim: #8b949e; --line: #30363d;
  --removed: #4b1c1f; --added: #173a22; --changed: #453a10; --cause: #0f2f4d; } }
body { background: var(--back); color: var(--text); font: 15px/1.45 system-ui, sans-serif; \
margin: 2rem auto; max-width: 90rem;
  padding: 0 1rem; }
h1 { font-size: 1.4rem; } h2 { font-size: 1.15rem; margin-top: 2.5rem; }
table { border-collapse: collapse; width: 100%; } \
td, th { padding: .1rem .5rem; text-align: left; vertical-align: top; }
.code { table-layout: fixed; font: 13px/1.4 ui-monospace, monospace; }
.code td { overflow-wrap: anywhere; white-space: pre-wrap; } \
.code .slot { color: var(--dim); text-align: right; width: 4rem; }
.summary td { border-bottom: 1px solid var(--line); } .summary .number { text-align: right; }
.legend { color: var(--dim); } .legend span { color: var(--text); padding: 0 .4rem; } \
.legend .out { background: var(--removed); }
.legend .in { background: var(--added); } .legend .other { background: var(--changed); } \
.legend .why { background: var(--cause); }
.legend .elsewhere { color: #0969da; } .legend .only { color: var(--dim); }
.source td { color: var(--dim); font-style: italic; padding-top: .5rem; }
.removed .before, .changed .before { background: var(--removed); } \
.added .after, .changed .after { background: var(--added); }
.registers td { color: var(--dim); } .moved td { color: #0969da; }
.cause td { background: var(--cause); font: 14px/1.4 system-ui, sans-serif; }
details { border: 1px solid var(--line); margin: .2rem 0; } \
summary { color: var(--dim); cursor: pointer; padding: .1rem .5rem; }
.refuted { color: #cf222e; font-weight: bold; }
";

/// Legend of the colours, which stand for the marks of the text report.
const LEGEND: &str = "<p class=\"legend\">Left the first form, right the second: <span class=\"out\">removed</span> \
<span class=\"in\">new</span> <span class=\"other\">does something else</span> \
<span class=\"only\">other registers only</span> <span class=\"elsewhere\">stands elsewhere</span> \
<span class=\"why\">what made the change</span></p>\n";

/// Columns: slot and instruction of each form. Without this the first row decides, which may be a source line
/// across all of them.
const COLUMNS: &str = "<colgroup><col class=\"slot\"><col><col class=\"slot\"><col></colgroup>\n";

/// The page.
pub(super) fn page(report: &ExplainReport) -> String {
    let title = match &report.b {
        Some(b) => format!("{} and {}", name(&report.a), name(b)),
        None => format!("What millstream opt made of {}", name(&report.a)),
    };
    let mut out = format!(
        "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width\">\n<title>{0}</title>\n<style>{STYLE}</style>\n\
         </head>\n<body>\n<h1>{0}</h1>\n",
        escaped(&title)
    );
    summary(&mut out, report);
    for (n, both) in report.functions.iter().enumerate() {
        function(&mut out, n, both);
    }
    if !report.windows.is_empty() {
        out.push_str("<h2>Replaced by the search, and again by something else</h2>\n<ul>\n");
        for w in &report.windows {
            let _ =
                writeln!(out, "<li><b>{}</b> {}</li>", escaped(&w.cause.name), escaped(&w.cause.description));
        }
        out.push_str("</ul>\n");
    }
    out.push_str("</body>\n</html>\n");
    out
}

fn name(path: &str) -> &str {
    path.rsplit('/').next().unwrap_or(path)
}

fn summary(out: &mut String, report: &ExplainReport) {
    out.push_str(
        "<table class=\"summary\">\n<tr><th>function</th><th class=\"number\">slots</th>\
         <th class=\"number\">changes</th><th>proof</th></tr>\n",
    );
    for (n, f) in report.functions.iter().enumerate() {
        let proof = report.proofs.iter().find(|p| p.program == f.name);
        let class = if proof.is_some_and(|p| matches!(p.verdict, "differs" | "refuted")) {
            " class=\"refuted\""
        } else {
            ""
        };
        let (before, after) = f.slots;
        let _ = writeln!(
            out,
            "<tr><td><a href=\"#f{n}\">{}</a></td><td class=\"number\">{before} → {after}</td>\
             <td class=\"number\">{}</td><td{class}>{}</td></tr>",
            escaped(&f.name),
            f.changes.len(),
            escaped(&proof.map(text::proof).unwrap_or_default())
        );
    }
    for name in &report.removed {
        let _ = writeln!(
            out,
            "<tr><td>{}</td><td colspan=\"3\">removed: inlined or not called</td></tr>",
            escaped(name)
        );
    }
    out.push_str("</table>\n");
    out.push_str(LEGEND);
}

fn function(out: &mut String, n: usize, both: &FunctionDiff) {
    let (before, after) = both.slots;
    let _ = writeln!(out, "<h2 id=\"f{n}\">{}: {before} slots, then {after}</h2>", escaped(&both.name));
    let mut at = 0;
    for change in both.changes.iter().map(Some).chain([None]) {
        let next = change.map_or(both.rows.len(), |c| c.rows.0);
        unchanged(out, both, at..next);
        if let Some(change) = change {
            table(out, both, change.rows.0..change.rows.1, Some(change));
            at = change.rows.1;
        }
    }
}

/// Unchanged rows, folded if they are many.
fn unchanged(out: &mut String, both: &FunctionDiff, range: std::ops::Range<usize>) {
    let many = range.len() >= FOLDED;
    if many {
        let _ = writeln!(out, "<details><summary>{} instructions as before</summary>", range.len());
    }
    if !range.is_empty() {
        table(out, both, range, None);
    }
    if many {
        out.push_str("</details>\n");
    }
}

fn table(out: &mut String, both: &FunctionDiff, range: std::ops::Range<usize>, change: Option<&DiffHunk>) {
    let _ = write!(out, "<table class=\"code\">\n{COLUMNS}");
    let mut line = None;
    for row in &both.rows[range] {
        let here = row.before.as_ref().or(row.after.as_ref()).and_then(|i| i.line);
        if let Some(l) = here.filter(|_| here != line).map(|l| &both.lines[l]) {
            let place = format!("{}:{}  {}", l.file, l.number, l.text);
            let _ = writeln!(
                out,
                "<tr class=\"source\"><td class=\"slot\"></td><td colspan=\"3\">{}</td></tr>",
                escaped(&place)
            );
        }
        line = here;
        self::row(out, row);
    }
    if let Some(change) = change.filter(|c| !c.causes.is_empty()) {
        let causes: Vec<String> = change
            .causes
            .iter()
            .map(|c| format!("<b>{}</b>: {}", escaped(&c.name), escaped(&c.description)))
            .collect();
        let (before, after) = change.slots;
        let _ = writeln!(
            out,
            "<tr class=\"cause\"><td class=\"slot\"></td><td colspan=\"3\">{before} slots → {after}<br>{}</td></tr>",
            causes.join("<br>")
        );
    }
    out.push_str("</table>\n");
}

fn row(out: &mut String, row: &DiffRow) {
    let class = match row.kind {
        DiffKind::Same => "same",
        DiffKind::Registers => "registers",
        DiffKind::Changed => "changed",
        DiffKind::Removed => "removed",
        DiffKind::Added => "added",
        DiffKind::Moved => "moved",
    };
    let cell = |insn: &Option<DiffInstruction>, side: &str| {
        let (slot, text) =
            insn.as_ref().map_or_else(Default::default, |i| (i.slot.to_string(), escaped(&i.text)));
        format!("<td class=\"slot\">{slot}</td><td class=\"{side}\">{text}</td>")
    };
    let (before, after) = (cell(&row.before, "before"), cell(&row.after, "after"));
    let _ = writeln!(out, "<tr class=\"{class}\">{before}{after}</tr>");
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

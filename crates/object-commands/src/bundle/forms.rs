//! Reports about optimized forms as text, and their exit codes.

use std::fmt::Write as _;

use millstream_bundle::{FormReport, FormVerdict};

use crate::exit::Exit;

/// A word for a verdict.
fn word(verdict: FormVerdict) -> &'static str {
    match verdict {
        FormVerdict::Proven => "proven",
        FormVerdict::Trusted => "trusted",
        FormVerdict::Unknown => "unknown",
        FormVerdict::Refuted => "refuted",
    }
}

/// A line for the form, and one for each program that was not proven.
pub(super) fn text(form: &FormReport) -> String {
    let mut out = format!("{:>5}  {:8}", form.kernel, word(form.verdict));
    if let Some(reason) = &form.reason {
        let _ = write!(out, "  {reason}");
    }
    let count = |by| form.programs.iter().filter(|program| program.by == Some(by)).count();
    let ways = [
        ("instructions", "with the same instructions"),
        ("terms", "by equal terms"),
        ("solver", "by a solver"),
    ];
    let ways = ways.map(|(by, words)| (count(by), words)).into_iter().filter(|(count, _)| *count > 0);
    let ways: Vec<String> = ways.map(|(count, words)| format!("{count} {words}")).collect();
    if !ways.is_empty() {
        let slots = [0, 1].map(|side| form.programs.iter().map(|p| p.slots[side]).sum::<usize>());
        let _ = write!(out, "  programs: {}; slots: {} to {}", ways.join(", "), slots[0], slots[1]);
    }
    out.push('\n');
    for program in form.programs.iter().filter(|program| program.by.is_none()) {
        let reason = program.reason.as_deref().unwrap_or_default();
        let _ = writeln!(out, "       {}: {}: {reason}", program.name, program.verdict);
    }
    if let Some(words) = crate::prove::rests_on(form.programs.iter().map(|p| p.trusted as u64).sum()) {
        let _ = writeln!(out, "       {words}");
    }
    out
}

/// Exit code for some forms; `has_solver` is false if there was no solver to ask.
pub(super) fn exit(forms: &[FormReport], has_solver: bool) -> Exit {
    let any = |verdict| forms.iter().any(|form| form.verdict == verdict);
    match () {
        () if any(FormVerdict::Refuted) => Exit::Negative,
        () if any(FormVerdict::Unknown) && !has_solver => Exit::NotPermitted,
        () if any(FormVerdict::Unknown) => Exit::Unknown,
        () => Exit::Done,
    }
}

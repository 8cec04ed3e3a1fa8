//! Windows that the search replaced, as causes of the changes in which they appear.
//!
//! The search reports each replacement at its place in the function at that moment; later rewrites moved it.
//! So this module looks for a replacement by its instructions, in the result.

use millstream_opt::WindowReplacement;
use serde::Serialize;

use super::diff::{ChangeCause, FunctionDiff};
use crate::superopt::engine;

/// A window that was replaced.
#[derive(Clone, Debug, Serialize)]
pub(super) struct ReplacedWindow {
    pub(super) before: Vec<String>,
    pub(super) after: Vec<String>,
    pub(super) cause: ChangeCause,
}

/// Assigns each window to the change that shows its replacement; returns the others.
pub(super) fn place<'a>(
    found: impl Iterator<Item = &'a WindowReplacement>,
    functions: &mut [FunctionDiff],
) -> Vec<ReplacedWindow> {
    let mut left = Vec::new();
    for f in found {
        let window = ReplacedWindow { before: f.before.clone(), after: f.after.clone(), cause: cause(f) };
        if !functions.iter_mut().any(|both| seen(&window, both)) {
            left.push(window);
        }
    }
    left
}

fn cause(f: &WindowReplacement) -> ChangeCause {
    let text = |lines: &[String]| if lines.is_empty() { "nothing".to_owned() } else { lines.join("; ") };
    let rule = f.rule.as_ref().map_or_else(String::new, |rule| format!("; the rule: {rule}"));
    let proof = if f.solver { "proven by a solver" } else { "proven: the same terms" };
    ChangeCause {
        name: format!("search, {}", engine(f.engine)),
        description: format!("{} for {}, {proof}{rule}", text(&f.after), text(&f.before)),
    }
}

/// Returns true if a change of the function shows the replacement; adds the window to its causes.
fn seen(window: &ReplacedWindow, both: &mut FunctionDiff) -> bool {
    if window.after.is_empty() {
        return false;
    }
    let after: Vec<(usize, &str)> = both
        .rows
        .iter()
        .enumerate()
        .filter_map(|(n, r)| r.after.as_ref().map(|i| (n, i.text.as_str())))
        .collect();
    let places = after.windows(window.after.len()).filter(|w| w.iter().map(|i| i.1).eq(window.after.iter()));
    for rows in places.map(|w| (w[0].0, w[w.len() - 1].0)) {
        let change = both.changes.iter_mut().find(|c| c.rows.0 <= rows.1 && rows.0 < c.rows.1);
        if let Some(change) = change {
            change.causes.retain(|c| c.name != "lower");
            change.causes.push(window.cause.clone());
            return true;
        }
    }
    false
}

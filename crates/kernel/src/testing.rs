//! For tests that need the kernel.

use crate::probe;

/// Returns true if BPF is permitted here, so that the test may go on. If not, prints why and returns false.
///
/// # Panics
/// If it is not permitted and the environment says `CI=true`: there, a skipped test is a failed one.
pub fn require() -> bool {
    permitted("BPF", &probe::bpf())
}

/// As [`require`], for a feature that was probed.
///
/// # Panics
/// As for [`require`].
pub fn permitted(what: &str, outcome: &probe::ProbeOutcome) -> bool {
    let probe::ProbeOutcome::No(reason) = outcome else { return true };
    let ci = std::env::var("CI").is_ok_and(|v| v == "true");
    assert!(!ci, "{what} is not permitted here, and CI=true: {reason}");
    eprintln!("skipped: {what} is not permitted here: {reason}");
    false
}

//! Durations in flags, limited so that a clock can represent their end.

use clap::builder::RangedU64ValueParser;

/// Maximum duration in seconds: some four months.
const MOST_SECONDS: u64 = 10_000_000;

/// Reads whole seconds.
pub fn seconds() -> RangedU64ValueParser {
    clap::value_parser!(u64).range(..=MOST_SECONDS)
}

/// Reads whole milliseconds.
pub fn milliseconds() -> RangedU64ValueParser {
    clap::value_parser!(u64).range(..=1000 * MOST_SECONDS)
}

/// Reads a positive number of seconds.
pub fn positive_seconds(text: &str) -> Result<f64, String> {
    text.parse()
        .ok()
        .filter(|s| *s > 0.0 && *s < 1e7)
        .ok_or_else(|| format!("`{text}` is no number of seconds"))
}

//! Rates and bursts in arguments, of elements that have a token bucket.

use crate::{ElementSetup, Error, SpannedText};

/// Two arguments that say the same.
pub const BURST_TWICE: &str = "what a bucket holds is said by a duration or by a size, not by both";

/// Packets or bytes per second, at most.
pub const MOST_RATE: u64 = 1 << 40;
/// Units of bandwidth, by their names, in bytes per second, the first that fits; and the prefixes in front of
/// them.
const UNITS: &[(&str, f64)] =
    &[("Bps", 1.0), ("B/s", 1.0), ("bps", 0.125), ("b/s", 0.125), ("baud", 0.125), ("", 1.0)];
const PREFIXES: &[(&str, f64)] = &[("k", 1e3), ("K", 1e3), ("M", 1e6), ("G", 1e9), ("", 1.0)];

/// A rate in bytes per second: a number of these, or with a unit.
///
/// # Errors
/// If the text is no such number.
pub fn bandwidth(text: &SpannedText) -> Result<u64, Error> {
    let read = || {
        let (text, unit) =
            UNITS.iter().find_map(|(name, unit)| Some((text.text.strip_suffix(name)?, *unit)))?;
        let (number, times) =
            PREFIXES.iter().find_map(|(name, times)| Some((text.strip_suffix(name)?.trim(), *times)))?;
        let digits = number.bytes().all(|b| b.is_ascii_digit() || b == b'.');
        number.parse::<f64>().ok().filter(|_| digits).map(|number| number * times * unit)
    };
    let rate: Option<f64> = read();
    rate.filter(|rate| *rate <= MOST_RATE as f64).map(|rate| rate as u64).ok_or_else(|| {
        Error::new(
            text.span,
            format!("`{}` is no bandwidth like 125000 (bytes per second), 1MBps or 8Mbps", text.text),
        )
    })
}

/// Size of a bucket, if it is given in tokens.
pub fn burst_size(setup: &mut ElementSetup<'_>, bytes: bool) -> Option<SpannedText> {
    let bytes = if bytes { setup.arguments.keyword("BURST_BYTES") } else { None };
    bytes.or_else(|| setup.arguments.keyword("BURST_SIZE"))
}

#[cfg(test)]
mod tests {
    use super::bandwidth;
    use crate::{ConfigSpan, SpannedText};

    #[test]
    fn bandwidths_have_units() {
        let read = |text: &str| {
            bandwidth(&SpannedText { text: text.into(), span: ConfigSpan { start: 0, end: 0 } }).ok()
        };
        for (text, bytes) in [
            ("125000", 125_000),
            ("131072B/s", 131_072),
            ("1.5MBps", 1_500_000),
            ("8 Mbps", 1_000_000),
            ("64kb/s", 8_000),
            ("800baud", 100),
        ] {
            assert_eq!(read(text), Some(bytes), "{text}");
        }
        for wrong in ["", "k", "fast", "-1", "1e3", "5s", "9999999999999"] {
            assert_eq!(read(wrong), None, "{wrong}");
        }
    }
}

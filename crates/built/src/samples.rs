//! Figures about numbers that elements keep, such as percentiles of times.

use millstream_click::{SampleSeries, SampleStatistic};
use millstream_native::NativeEngine;

use crate::values::{number, state};

/// Reads a handler of a series: its value, or an error in the argument.
pub(crate) fn read(
    engine: &mut NativeEngine,
    series: &SampleSeries,
    statistic: SampleStatistic,
    argument: &str,
) -> Result<String, String> {
    let mut words = argument.split_whitespace();
    let percent = match statistic {
        SampleStatistic::AnyPercentile => {
            let percent = words.next().and_then(|word| word.parse::<f64>().ok());
            let percent = percent.filter(|percent| (0.0..=100.0).contains(percent));
            percent.ok_or("it takes a number from 0 to 100")?
        }
        SampleStatistic::Percentile(percent) => f64::from(percent),
        _ => 0.0,
    };
    let begin = match words.next() {
        Some(word) => word.parse().map_err(|_| "it takes the place of a number in the series".to_owned())?,
        None => 0,
    };
    let count = number(&state(engine), series.count);
    let first = count.saturating_sub(u64::from(series.entries)).max(begin);
    let all = values(engine, series, first..count);
    let text = |value: u64| match series.divisor {
        0 | 1 => value.to_string(),
        divisor => format!("{:.3}", value as f64 / f64::from(divisor)),
    };
    let lines = (first..).zip(&all);
    Ok(match statistic {
        SampleStatistic::Percentile(_) | SampleStatistic::AnyPercentile => text(percentile(all, percent)),
        SampleStatistic::Deviation => {
            format!("{:.3}", deviation(&all) / f64::from(series.divisor.max(1)))
        }
        SampleStatistic::Index => (count as i64 - 1).to_string(),
        SampleStatistic::Last => text(all.last().copied().unwrap_or_default()),
        SampleStatistic::List => lines.map(|(_, value)| text(*value) + "\n").collect(),
        SampleStatistic::NumberedList => {
            lines.map(|(at, value)| format!("{at}: {}\n", text(*value))).collect()
        }
    })
}

/// Numbers of a series, by their places in it.
fn values(engine: &mut NativeEngine, series: &SampleSeries, places: std::ops::Range<u64>) -> Vec<u64> {
    let Some(map) = engine.map(&series.array) else { return Vec::new() };
    let value = |place: u64| {
        let at = (place % u64::from(series.entries.max(1))) as u32;
        map.get(&at.to_ne_bytes()).map_or(0, |bytes| number(&bytes, 0))
    };
    places.map(value).collect()
}

/// The number that so many of 100 are less than; 0 of none.
fn percentile(mut all: Vec<u64>, percent: f64) -> u64 {
    let Some(last) = all.len().checked_sub(1) else { return 0 };
    let at = (percent * all.len() as f64 / 100.0) as usize;
    *all.select_nth_unstable(at.min(last)).1
}

/// The standard deviation; 0 of none.
fn deviation(all: &[u64]) -> f64 {
    let count = all.len().max(1) as f64;
    let mean = all.iter().map(|value| *value as f64).sum::<f64>() / count;
    (all.iter().map(|value| (*value as f64 - mean).powi(2)).sum::<f64>() / count).sqrt()
}

#[cfg(test)]
mod tests {
    use super::{deviation, percentile};

    #[test]
    fn percentiles_are_numbers_of_the_series() {
        let all: Vec<u64> = (1..=10).rev().collect();
        let at = |percent| percentile(all.clone(), percent);
        assert_eq!([0.0, 5.0, 10.0, 50.0, 99.0, 100.0].map(at), [1, 1, 2, 6, 10, 10]);
        assert_eq!(percentile(Vec::new(), 50.0), 0);
    }

    #[test]
    fn deviations_are_from_the_mean() {
        assert_eq!(deviation(&[2, 4, 4, 4, 5, 5, 7, 9]), 2.0);
        assert_eq!(deviation(&[]), 0.0);
    }
}

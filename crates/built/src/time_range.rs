//! Handlers of a range of times, which packets of a time are in or not.

use millstream_click::arguments::time;
use millstream_click::{RangeEdge, SettingValue, TimeRange, TimeRangePart, seconds_text};
use millstream_native::NativeEngine;

use crate::values::{number, set_setting, setting_value, state};

/// Edges of a range, in nanoseconds: the start, and the end. Those that depend on the first packet are relative
/// to it until it is there.
fn edges(engine: &mut NativeEngine, range: &TimeRange, first: Option<i64>) -> [i64; 2] {
    let [start, start_kind] = range.start.map(|of| setting_value(engine, of));
    let [end, end_kind] = range.end.map(|of| setting_value(engine, of));
    let after = |kind: i64, start: i64| match kind {
        kind if kind == RangeEdge::AfterFirst.number() => first.unwrap_or(0),
        kind if kind == RangeEdge::AfterStart.number() => start,
        _ => 0,
    };
    let start = start.saturating_add(after(start_kind, 0));
    [start, end.saturating_add(after(end_kind, start))]
}

/// The time of the first packet, if it is there.
fn first(engine: &mut NativeEngine, range: &TimeRange) -> Option<i64> {
    (number(&state(engine), range.first) as i64).checked_sub(1).filter(|first| *first != -1)
}

/// Value of a part of a range, if it has one.
pub(crate) fn read(engine: &mut NativeEngine, range: &TimeRange, part: TimeRangePart) -> Option<String> {
    let first = first(engine, range);
    let [start, end] = edges(engine, range, first);
    match part {
        TimeRangePart::Start => Some(seconds_text(start)),
        TimeRangePart::End => Some(seconds_text(end)),
        TimeRangePart::Interval => Some(seconds_text(end.saturating_sub(start))),
        TimeRangePart::Extension => None,
    }
}

/// Sets a setting that may be written.
fn set(engine: &mut NativeEngine, of: SettingValue, value: i64) {
    if let SettingValue::Live(at) = of {
        set_setting(engine, at, value);
    }
}

/// Sets an edge of a range.
fn set_edge(engine: &mut NativeEngine, of: [SettingValue; 2], (time, edge): (i64, RangeEdge)) {
    set(engine, of[0], time);
    set(engine, of[1], edge.number());
}

/// Changes a part of a range.
pub(crate) fn write(
    engine: &mut NativeEngine,
    range: &TimeRange,
    part: TimeRangePart,
    text: &str,
) -> Result<(), String> {
    let new = time(text.trim()).and_then(|time| i64::try_from(time).ok());
    let new = new.ok_or_else(|| format!("{text:?} is no time like 5 or 0.5s"))?;
    let first = first(engine, range);
    // A start that is written is the time of the first packet, if there was none.
    let first = if part == TimeRangePart::Start { first.or(Some(new)) } else { first };
    let [start, end] = edges(engine, range, first);
    let edge = |time: i64| (time, RangeEdge::Absolute);
    match (part, first) {
        (TimeRangePart::Start, _) => {
            set_edge(engine, range.start, edge(new));
            set_edge(engine, range.end, edge(end));
        }
        (TimeRangePart::End, _) => set_edge(engine, range.end, edge(new)),
        (TimeRangePart::Interval, Some(_)) => {
            set_edge(engine, range.start, edge(start));
            set_edge(engine, range.end, edge(start.saturating_add(new)));
        }
        (TimeRangePart::Interval, None) => set_edge(engine, range.end, (new, RangeEdge::AfterStart)),
        (TimeRangePart::Extension, _) => {
            let before = setting_value(engine, range.end[0]);
            set(engine, range.end[0], before.saturating_add(new));
        }
    }
    if part != TimeRangePart::Start {
        let changes = setting_value(engine, range.changes);
        set(engine, range.changes, changes + 1);
    }
    Ok(())
}

//! `TimeFilter`: passes packets of a range of times.
//!
//! The range is in the settings if somebody may change it. A packet that is the first one behind the range may
//! have a handler written, which may extend the range: the packet waits for that at [`RESUMED`].

use millstream_ir::Value;
use millstream_isa::{AluOp, Cond};

use super::timestamps::{SHIFT, stamp_of};
use millstream_click::arguments::{boolean, time};
use millstream_click::build::ElementBuilder;
use millstream_click::class::{ElementClass, ElementCodegen, ElementResult};
use millstream_click::keyword::{at, key, refused};
use millstream_click::packet::PacketValues;
use millstream_click::{
    ElementSetup, Error, HandlerAccess, RESUMED, RangeEdge, SettingValue, SpannedText, TimeRange,
    TimeRangePart,
};

const NO_START: &str = "a run begins with its first packet: START_AFTER and END_AFTER count from there";

pub(super) const CLASSES: &[ElementClass] = &[ElementClass::check(
    "TimeFilter",
    "Passes packets of a range of times.",
    &[
        at("START"),
        at("END"),
        key("START_AFTER"),
        refused("START_DELAY", NO_START),
        key("END_AFTER"),
        refused("END_DELAY", NO_START),
        key("INTERVAL"),
        key("STOP"),
        key("END_CALL"),
    ],
    filter,
)];

/// Handlers that change the range.
const WRITES: &[&str] = &["start", "end", "interval", "extend_interval"];

/// Text of the handler write that ends the run.
const STOP: &str = "stop";

struct TimeFilter {
    range: TimeRange,
    call: Option<EndCall>,
}

/// The handler that is written for the first packet behind the range.
struct EndCall {
    /// Number of writes that are due.
    due: u32,
    /// The packet's time.
    time: u32,
    /// One more than the number of changes of the range at the last call.
    called: u32,
    /// End of the range at the last call.
    end: u32,
}

/// The one of several arguments that is given, with its number.
fn only_one(
    setup: &mut ElementSetup<'_>,
    positional: &str,
    keys: &[&'static str],
) -> Result<Option<(usize, u64)>, Error> {
    let mut found = setup.arguments.next(positional).map(|text| (0, text));
    for (number, name) in (1..).zip(keys) {
        let Some(text) = setup.arguments.keyword(name) else { continue };
        if found.is_some() {
            let all = keys.iter().fold(positional.to_owned(), |all, name| format!("{all}, {name}"));
            return Err(Error::new(text.span, format!("{all} exclude each other")));
        }
        found = Some((number, text));
    }
    found.map(|(number, text)| Ok((number, point(&text)?))).transpose()
}

/// A time in nanoseconds, which fits the annotation.
fn point(text: &SpannedText) -> Result<u64, Error> {
    let found = time(&text.text).filter(|time| *time < i64::MAX as u64);
    found.ok_or_else(|| Error::new(text.span, format!("`{}` is no time like 5 or 0.5s", text.text)))
}

fn filter(setup: &mut ElementSetup<'_>) -> ElementResult {
    let start = only_one(setup, "START", &["START_AFTER"])?;
    let end = only_one(setup, "END", &["END_AFTER", "INTERVAL"])?;
    // Without a start, everything since the first packet is in the range.
    let (start_edge, start) = match start {
        Some((0, time)) if time > 0 => (RangeEdge::Absolute, time),
        start => (RangeEdge::AfterFirst, start.map_or(0, |(_, time)| time)),
    };
    let (end_edge, end) = match end {
        Some((0, time)) if time > 0 => (RangeEdge::Absolute, time),
        Some((1, time)) if time > 0 => (RangeEdge::AfterFirst, time),
        Some((2, time)) if time > 0 => (RangeEdge::AfterStart, time),
        _ => (RangeEdge::Absolute, i64::MAX as u64),
    };
    let is_changed = setup.written(WRITES);
    let setting = |setup: &mut ElementSetup<'_>, value: i64| match is_changed {
        true => SettingValue::Live(setup.hidden_setting(value)),
        false => SettingValue::Fixed(value),
    };
    let mut edge = |edge: RangeEdge, time: u64| [setting(setup, time as i64), setting(setup, edge.number())];
    let (start, end) = (edge(start_edge, start), edge(end_edge, end));
    let changes = setting(setup, 0);
    setup.require_clock();
    setup.require_single_worker("the first packet is the first of all");
    let range = TimeRange { start, end, first: setup.number(), changes };
    for (name, part) in
        [("start", TimeRangePart::Start), ("end", TimeRangePart::End), ("interval", TimeRangePart::Interval)]
    {
        setup.handler(name, HandlerAccess::Times(range.clone(), part));
    }
    if is_changed {
        setup.handler("extend_interval", HandlerAccess::Times(range.clone(), TimeRangePart::Extension));
    }
    let call = end_call(setup)?;
    Ok(Box::new(TimeFilter { range, call }))
}

/// The handler that is written at the end of the range, if there is one.
fn end_call(setup: &mut ElementSetup<'_>) -> Result<Option<EndCall>, Error> {
    let stops = setup.arguments.keyword_or("STOP", false, boolean)?;
    let text = match setup.arguments.keyword("END_CALL") {
        Some(text) if stops => return Err(Error::new(text.span, "END_CALL and STOP exclude each other")),
        Some(text) => text,
        None if stops => SpannedText { text: STOP.to_owned(), span: setup.element.span },
        None => return Ok(None),
    };
    let [time, called, end] = [0; 3].map(|_| setup.number());
    let due = setup.calls_with_time(&text, time)?;
    Ok(Some(EndCall { due, time, called, end }))
}

impl TimeFilter {
    /// An edge of the range, by the time of the first packet and the start of the range.
    fn edge(code: &mut ElementBuilder<'_, '_>, edge: [SettingValue; 2], [first, start]: [Value; 2]) -> Value {
        let [time, kind] = edge.map(|setting| code.setting(setting));
        let zero = code.number_of(0);
        let after = |code: &mut ElementBuilder<'_, '_>, of: RangeEdge, base: Value| {
            let number = code.number_of(of.number());
            let is_of = code.compare(Cond::Eq, kind, number);
            code.select(is_of, base, zero)
        };
        let of_first = after(code, RangeEdge::AfterFirst, first);
        let of_start = after(code, RangeEdge::AfterStart, start);
        let sum = code.add(time, of_first);
        code.add(sum, of_start)
    }
}

impl ElementCodegen for TimeFilter {
    fn build(&self, code: &mut ElementBuilder<'_, '_>, port: u32, packet: PacketValues) {
        let stamp = stamp_of(code, packet);
        let time = code.with(AluOp::Sub, stamp, SHIFT);
        let (known, unset) = (code.get(self.range.first), code.number_of(0));
        let is_known = code.compare(Cond::Ne, known, unset);
        let first = code.select(is_known, known, stamp);
        code.set(self.range.first, first);
        let first = code.with(AluOp::Sub, first, SHIFT);
        let start = Self::edge(code, self.range.start, [first, unset]);
        let end = Self::edge(code, self.range.end, [first, start]);
        let outside = |code: &mut ElementBuilder<'_, '_>| match code.connected(1) {
            true => code.out(1, packet),
            false => code.drop(packet, "outside_of_time"),
        };
        code.check(Cond::Sge, time, start, outside);
        code.check(Cond::Slt, time, end, |code| {
            if let Some(call) = &self.call {
                let changes = code.setting(self.range.changes);
                let (now, before) = (code.with(AluOp::Add, changes, 1), code.get(call.called));
                let (may, waits, gone) = (code.block(), code.block(), code.block());
                code.branch(Cond::Ne, now, before, may, gone);
                code.switch_to_block(may);
                // A packet that has waited waits again only if the range has become longer.
                let last = code.get(call.end);
                match port {
                    RESUMED => code.branch(Cond::Sgt, end, last, waits, gone),
                    _ => code.jump(waits, &[]),
                }
                code.switch_to_block(waits);
                code.set(call.called, now);
                code.set(call.end, end);
                code.set(call.time, time);
                code.count_by_one(call.due);
                code.wait_at(RESUMED, packet);
                code.switch_to_block(gone);
            }
            outside(code);
        });
        code.out(0, packet);
    }
}

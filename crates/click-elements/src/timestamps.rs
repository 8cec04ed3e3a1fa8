//! Elements that change or compare the times of packets: `SetTimestamp`, `AdjustTimestamp`,
//! `SetTimestampDelta`, `TimeSortedSched`.
//!
//! A packet has the time at which it came, or one that an element has set ([`Annotation::Time`]). Programs do
//! not see the first kind: elements that compute with times need sources that set them.

use millstream_ir::Value;
use millstream_isa::{AluOp, Cond};

use millstream_click::arguments::{boolean, time, unsigned};
use millstream_click::build::ElementBuilder;
use millstream_click::class::{ElementClass, ElementCodegen, ElementResult};
use millstream_click::keyword::{IgnoredValueKind, at, key, moot, refused_but};
use millstream_click::packet::{Annotation, PacketValues};
use millstream_click::{ElementSetup, Error, HandlerAccess, SpannedText};

const NO_FIRST: &str = "packets have one time: there is no first time besides it";

pub(super) const CLASSES: &[ElementClass] = &[
    ElementClass::filter(
        "SetTimestamp",
        "Sets the time of packets; without one, to the time at which they are here.",
        &[
            at("TIMESTAMP"),
            moot("FIRST", IgnoredValueKind::Truth, "no element looks at the first time of a packet"),
            refused_but("DELTA", &["false"], "Click refuses it, too"),
            moot("PER_BATCH", IgnoredValueKind::Truth, "packets are handled one by one"),
        ],
        set,
    )
    .passing(),
    ElementClass::filter(
        "AdjustTimestamp",
        "Adds to the time of packets.",
        &[at("TIME"), refused_but("FIRST", &["false"], NO_FIRST), key("ALL")],
        adjust,
    )
    .passing(),
    ElementClass::filter(
        "SetTimestampDelta",
        "Makes the time of packets relative to that of the first one.",
        &[refused_but("TYPE", &["RANGE"], NO_FIRST)],
        delta,
    )
    .passing(),
    ElementClass {
        ports: "-/1",
        processing: "l/l",
        ..ElementClass::filter(
            "TimeSortedSched",
            "Pulls packets of several sources in the order of their times.",
            &[moot("STOP", IgnoredValueKind::Truth, "the run ends with the last packet"), key("BUFFER")],
            sorted,
        )
    }
    .passing(),
];

/// The annotation for a time, which may be negative.
pub(super) const SHIFT: i64 = 1;

fn set(setup: &mut ElementSetup<'_>) -> ElementResult {
    let time = setup.arguments.next("TIMESTAMP").map(|text| signed_time(&text)).transpose()?;
    Ok(Box::new(SetTime { time }))
}

/// A time in nanoseconds, which may be negative.
fn signed_time(text: &SpannedText) -> Result<i64, Error> {
    let (sign, digits) = match text.text.strip_prefix('-') {
        Some(digits) => (-1, digits),
        None => (1, text.text.strip_prefix('+').unwrap_or(&text.text)),
    };
    let time = time(digits).and_then(|time| i64::try_from(time).ok());
    let time =
        time.ok_or_else(|| Error::new(text.span, format!("`{}` is no time like 5 or -0.5s", text.text)))?;
    Ok(sign * time)
}

/// Sets the time; without one, packets have the time at which they came.
struct SetTime {
    time: Option<i64>,
}

impl ElementCodegen for SetTime {
    fn build(&self, code: &mut ElementBuilder<'_, '_>, _: u32, packet: PacketValues) {
        let stamp = code.number_of(self.time.map_or(0, |time| time + SHIFT));
        code.out(0, packet.with(Annotation::Time, stamp));
    }
}

/// Refuses an element that computes with times if a source does not set them.
fn need_times(setup: &ElementSetup<'_>) -> Result<(), Error> {
    let untimed = ["FromDump", "FromDevice", "FromDPDKDevice", "PollDevice", "FromHost"];
    match setup.elements().iter().find(|element| untimed.contains(&element.class.as_str())) {
        Some(source) => {
            let message = format!(
                "`{}` computes with the times of packets, which those of `{}` have outside of the program only",
                setup.element.class, source.name
            );
            Err(Error::new(setup.element.span, message).help("times of `FromIPSummaryDump` are known"))
        }
        None => Ok(()),
    }
}

/// Adds a time; packets at the time zero keep it, unless all are adjusted.
struct AdjustTime {
    by: i64,
    all: bool,
}

fn adjust(setup: &mut ElementSetup<'_>) -> ElementResult {
    let text = setup.arguments.need("TIME")?;
    let by = signed_time(&text)?;
    let all = setup.arguments.keyword_or("ALL", false, boolean)?;
    need_times(setup)?;
    setup.handler("time", HandlerAccess::Constant(text.text));
    Ok(Box::new(AdjustTime { by, all }))
}

impl ElementCodegen for AdjustTime {
    fn build(&self, code: &mut ElementBuilder<'_, '_>, _: u32, packet: PacketValues) {
        let stamp = packet.note(Annotation::Time);
        let (zero, unset) = (code.number_of(SHIFT), code.number_of(0));
        // A time that is not set is zero, too.
        let is_set = code.compare(Cond::Ne, stamp, unset);
        let stamp = code.select(is_set, stamp, zero);
        let adjusted = code.with(AluOp::Add, stamp, self.by);
        let is_zero = code.compare(Cond::Eq, stamp, zero);
        let new = if self.all { adjusted } else { code.select(is_zero, stamp, adjusted) };
        code.out(0, packet.with(Annotation::Time, new));
    }
}

/// The time of a packet with the annotation's shift: by the clock if it is not set.
pub(super) fn stamp_of(code: &mut ElementBuilder<'_, '_>, packet: PacketValues) -> Value {
    let (stamp, unset, now) = (packet.note(Annotation::Time), code.number_of(0), code.fine_time());
    let is_set = code.compare(Cond::Ne, stamp, unset);
    code.select(is_set, stamp, now)
}

/// Subtracts the time of the first packet.
struct RelativeTime {
    /// The first packet's time.
    first: u32,
}

fn delta(setup: &mut ElementSetup<'_>) -> ElementResult {
    need_times(setup)?;
    setup.require_clock();
    let first = setup.number();
    setup.resets("reset", vec![first]);
    setup.require_single_worker("the first packet is the first of all");
    Ok(Box::new(RelativeTime { first }))
}

impl ElementCodegen for RelativeTime {
    fn build(&self, code: &mut ElementBuilder<'_, '_>, _: u32, packet: PacketValues) {
        let (stamp, first, unset) = (stamp_of(code, packet), code.get(self.first), code.number_of(0));
        let is_known = code.compare(Cond::Ne, first, unset);
        let first = code.select(is_known, first, stamp);
        code.set(self.first, first);
        let passed = code.sub(stamp, first);
        let passed = code.with(AluOp::Add, passed, SHIFT);
        code.out(0, packet.with(Annotation::Time, passed));
    }
}

/// Passes packets, which come in the order of their times, and notes if some do not.
struct SortedTimes {
    last: u32,
    /// Number of packets that came behind a later one.
    unordered: u32,
}

/// Packets of a source that `TimeSortedSched` looks at, at most.
const MOST_SORTED: u64 = 1 << 16;
/// Class of sources whose packets are known before they come.
const SUMMARIES: &str = "FromIPSummaryDump";

/// Number of packets of a source of which the earliest one comes next: the BUFFER of a `TimeSortedSched` right
/// behind it.
pub(super) fn sorting_window(setup: &ElementSetup<'_>) -> Result<usize, Error> {
    let behind = setup.neighbours(&setup.element.name, true);
    let mut sorted = behind.into_iter().filter(|element| element.class == "TimeSortedSched");
    let texts = sorted.next().map_or(&[][..], |element| &element.arguments);
    let said = |text: &SpannedText| {
        let value = text.text.strip_prefix("BUFFER").filter(|rest| rest.starts_with(char::is_whitespace))?;
        Some(SpannedText { text: value.trim().to_owned(), span: text.span })
    };
    match texts.iter().find_map(said) {
        Some(value) => Ok(unsigned(&value, MOST_SORTED)?.max(1) as usize),
        None => Ok(1),
    }
}

/// Sources are replayed by their times, so that the next packet is the earliest of all heads.
fn sorted(setup: &mut ElementSetup<'_>) -> ElementResult {
    if let Some(text) = setup.arguments.keyword("BUFFER") {
        let sources = setup.neighbours(&setup.element.name, false);
        let other = sources.iter().find(|element| element.class != SUMMARIES);
        if let (2.., Some(other)) = (unsigned(&text, MOST_SORTED)?, other) {
            let message = format!(
                "BUFFER {} is for packets of `{SUMMARIES}`, right in front of it: no packet behind the next one of \
                 `{}` is known",
                text.text, other.name
            );
            return Err(Error::new(text.span, message));
        }
    }
    setup.require_clock();
    setup.require_single_worker("packets come in the order of their times");
    let (last, unordered) = (setup.number(), setup.number());
    setup.handler("well_ordered", HandlerAccess::IsZero(unordered));
    Ok(Box::new(SortedTimes { last, unordered }))
}

impl ElementCodegen for SortedTimes {
    fn build(&self, code: &mut ElementBuilder<'_, '_>, _: u32, packet: PacketValues) {
        let (stamp, last) = (stamp_of(code, packet), code.get(self.last));
        code.when(Cond::Lt, stamp, last, &[], |code| {
            let one = code.int(1);
            code.count(self.unordered, one);
            Vec::new()
        });
        code.set(self.last, stamp);
        code.out(0, packet);
    }
}

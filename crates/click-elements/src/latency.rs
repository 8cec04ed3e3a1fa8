//! Round-trip times of packets: `NumberPacket` writes a number into each, `RecordTimestamp` records when it
//! left, and `TimestampDiff` the time since then. Times are those of the system's fine clock, in nanoseconds;
//! handlers give microseconds, or with NANO nanoseconds. The latest N times of a `TimestampDiff` are kept for
//! its percentiles; its sums are those of all.

use millstream_ir::{Size, Value};
use millstream_isa::{AluOp, Cond};

use millstream_click::arguments::{boolean, unsigned};
use millstream_click::build::{ElementBuilder, ElementHashTable};
use millstream_click::class::{ElementClass, ElementCodegen, ElementResult};
use millstream_click::keyword::{ArgumentSpec, IgnoredValueKind, at, key, moot, refused, refused_but};
use millstream_click::packet::{Annotation, PacketValues};
use millstream_click::{
    ElementSetup, Error, HandlerAccess, SampleSeries, SampleStatistic, SpannedText, StateRatio,
};

const NUMBER: &[ArgumentSpec] = &[at("OFFSET"), key("NET_ORDER")];
const RECORD: &[ArgumentSpec] = &[
    refused("COUNTER", "OFFSET and NET_ORDER say where numbers are, whoever wrote them"),
    at("N"),
    key("OFFSET"),
    key("NET_ORDER"),
    refused_but("DYNAMIC", &["false"], "the table of times does not grow: N says how many it has"),
    key("SAMPLE"),
    refused("TXDEV", "no card is asked for times"),
    refused("TXDEV_QID", "no card is asked for times"),
];
const DIFFERENCE: &[ArgumentSpec] = &[
    at("RECORDER"),
    at("OFFSET"),
    key("N"),
    key("MAXDELAY"),
    key("SAMPLE"),
    key("NET_ORDER"),
    key("NANO"),
    moot("VERBOSE", IgnoredValueKind::Truth, "nothing is said of packets without a time"),
    refused_but("TC_OFFSET", &["-1"], "times are not told apart by class"),
    refused_but("TC_MASK", &["0xff"], "times are not told apart by class"),
];

/// The class of recorders, whose arguments other elements read.
const RECORDS: ElementClass = ElementClass {
    processing: "h/h",
    ..ElementClass::filter("RecordTimestamp", "Notes the time of each packet.", RECORD, record)
};

pub(super) const CLASSES: &[ElementClass] = &[
    ElementClass::filter("NumberPacket", "Writes the number of each packet into it.", NUMBER, number),
    RECORDS,
    ElementClass {
        ports: "1/1-2",
        processing: "h/h",
        ..ElementClass::filter(
            "TimestampDiff",
            "Sums up how long packets took since their time was noted.",
            DIFFERENCE,
            difference,
        )
    },
];

/// Bytes of a number.
const BYTES: i64 = 8;
/// Default offset of the number.
const USUAL_OFFSET: u64 = 40;
/// Times that are noted, unless said otherwise, and at most.
const USUAL_TIMES: u64 = 65_536;
const MOST_TIMES: u64 = 1 << 24;
/// Times that are kept for percentiles, unless said otherwise.
const USUAL_KEPT: u64 = 65_536;
/// Handlers of percentiles, with what each gives.
const PERCENTILES: &[(&str, u8)] = &[
    ("perc00", 0),
    ("perc01", 1),
    ("perc05", 5),
    ("perc10", 10),
    ("perc25", 25),
    ("median", 50),
    ("perc75", 75),
    ("perc90", 90),
    ("perc95", 95),
    ("perc99", 99),
    ("perc100", 100),
];
/// Milliseconds after which a packet counts as one that was lost.
const USUAL_DELAY: u64 = 1000;
const MILLISECOND: i64 = 1_000_000;

/// Position and byte order of a number in a packet.
#[derive(Clone, Copy)]
struct NumberField {
    offset: u64,
    network: bool,
}

fn place(setup: &mut ElementSetup<'_>) -> Result<NumberField, Error> {
    let offset = setup.arguments.or("OFFSET", USUAL_OFFSET, |text| unsigned(text, 1500))?;
    Ok(NumberField { offset, network: setup.arguments.keyword_or("NET_ORDER", false, boolean)? })
}

impl NumberField {
    /// The number, in a packet that is long enough.
    fn read(self, code: &mut ElementBuilder<'_, '_>, packet: PacketValues) -> Value {
        let raw = code.raw(BYTES as usize, packet.data, self.offset as i32);
        if self.network { code.swapped(64, raw) } else { raw }
    }
}

/// Writes a number into each packet, which is made long enough for it.
struct NumberPacket {
    place: NumberField,
    count: u32,
}

fn number(setup: &mut ElementSetup<'_>) -> ElementResult {
    Ok(Box::new(NumberPacket { place: place(setup)?, count: setup.counter("count") }))
}

impl ElementCodegen for NumberPacket {
    fn build(&self, code: &mut ElementBuilder<'_, '_>, _: u32, packet: PacketValues) {
        let least = self.place.offset as i64 + BYTES;
        let (length, write, least_value) = (code.length(packet), code.block(), code.int(least));
        let types = millstream_click::packet::TYPES;
        let params: Vec<Value> = types.iter().map(|ty| code.param(write, *ty)).collect();
        code.check(Cond::Lt, length, least_value, |code| code.jump(write, &packet.values()));
        let missing = code.sub(least_value, length);
        let longer = code.lengthened(packet, missing);
        // Its IP header says so, if it has one.
        let (header, on) = (longer.note(Annotation::Network), code.block());
        let first = code.at(header, 4);
        code.check_int(Cond::Ne, longer.note(Annotation::HasNetwork), 0, |code| code.jump(on, &[]));
        code.check(Cond::Le, first, longer.end, |code| code.jump(on, &[]));
        code.set_half(header, 2, least_value);
        code.jump(on, &[]);
        code.switch_to_block(on);
        code.jump(write, &longer.values());
        code.switch_to_block(write);
        let packet = PacketValues::of(&params);
        let (number, one) = (code.get(self.count), code.int(1));
        code.count(self.count, one);
        let raw = if self.place.network { code.swapped(64, number) } else { number };
        code.set_raw(BYTES as usize, packet.data, self.place.offset as i32, raw);
        code.out(0, packet);
    }
}

/// The distance of the numbers whose packets an element looks at: `false` and 0 are every number, as 1.
fn sampling(text: &SpannedText) -> Result<i64, Error> {
    match &text.text[..] {
        "false" => Ok(1),
        _ => Ok(unsigned(text, u64::from(u32::MAX))?.max(1) as i64),
    }
}

/// Runs `other`, which ends, for packets whose number is not a multiple of a distance.
fn check_sampled(
    code: &mut ElementBuilder<'_, '_>,
    number: Value,
    distance: i64,
    other: impl FnOnce(&mut ElementBuilder<'_, '_>),
) {
    if distance > 1 {
        let rest = code.with(AluOp::Mod, number, distance);
        code.check_int(Cond::Eq, rest, 0, other);
    }
}

/// Notes the time of each packet, by the number in it or one behind the other.
struct RecordTimestamp {
    times: ElementHashTable,
    entries: u64,
    /// The distance of the numbers whose packets have their times noted.
    sample: i64,
    place: Option<NumberField>,
    next: u32,
}

/// The table of a recorder's times.
const TIMES: &str = "times";

fn record(setup: &mut ElementSetup<'_>) -> ElementResult {
    let entries = setup.arguments.or("N", USUAL_TIMES, |text| unsigned(text, MOST_TIMES))?.max(1);
    let offset = setup.arguments.keyword("OFFSET").filter(|text| !text.text.starts_with('-'));
    let offset = offset.map(|text| unsigned(&text, 1500)).transpose()?;
    let network = setup.arguments.keyword_or("NET_ORDER", false, boolean)?;
    let sample = setup.arguments.keyword_or("SAMPLE", 1, sampling)?;
    let owner = setup.element.name.clone();
    let times = setup.shared_array(&owner, TIMES, &[Size::W], &[Size::Dw], entries as u32);
    let place = offset.map(|offset| NumberField { offset, network });
    Ok(Box::new(RecordTimestamp { times, entries, sample, place, next: setup.number() }))
}

impl ElementCodegen for RecordTimestamp {
    fn build(&self, code: &mut ElementBuilder<'_, '_>, _: u32, packet: PacketValues) {
        let number = match self.place {
            Some(place) => {
                let beyond = code.at(packet.data, place.offset as i64 + BYTES);
                code.check(Cond::Le, beyond, packet.end, |code| code.out(0, packet));
                let number = place.read(code, packet);
                check_sampled(code, number, self.sample, |code| code.out(0, packet));
                if self.sample > 1 { code.with(AluOp::Div, number, self.sample) } else { number }
            }
            None => {
                let (number, one) = (code.get(self.next), code.int(1));
                code.count(self.next, one);
                number
            }
        };
        let at = code.with(AluOp::Mod, number, self.entries as i64);
        let noted = code.find(&self.times, &[at]);
        code.check_int(Cond::Ne, noted, 0, |code| code.out(0, packet));
        let now = code.fine_time();
        code.set_wide(noted, 0, now);
        code.out(0, packet);
    }
}

/// Sums up how long packets took.
struct TimestampDiff {
    recorder: TimestampTable,
    place: NumberField,
    /// The distance of the numbers whose packets are looked at.
    sample: i64,
    /// The latest times, so many.
    kept: ElementHashTable,
    most_kept: u64,
    /// Nanoseconds beyond which a packet does not count.
    most: i64,
    count: u32,
    sum: u32,
    least: u32,
    greatest: u32,
}

/// The times that a recorder has noted.
struct TimestampTable {
    times: ElementHashTable,
    entries: u64,
    /// The distance of the numbers whose packets have their times noted.
    sample: i64,
}

/// The times of the recorder that an argument names.
fn recorder(setup: &mut ElementSetup<'_>, text: &SpannedText) -> Result<TimestampTable, Error> {
    let element = setup.needed(text, "`RecordTimestamp`", &["RecordTimestamp"])?;
    let names = setup.arguments.names;
    let mut arguments = millstream_click::arguments::ElementArguments::new(element, (RECORD, None), names);
    let entries = arguments.or("N", USUAL_TIMES, |text| unsigned(text, MOST_TIMES))?.max(1);
    let sample = arguments.keyword_or("SAMPLE", 1, sampling)?;
    let owner = element.name.clone();
    let times = setup.shared_array(&owner, TIMES, &[Size::W], &[Size::Dw], entries as u32);
    Ok(TimestampTable { times, entries, sample })
}

/// Handlers of the sums and of the times that are kept.
fn declare_statistics(setup: &mut ElementSetup<'_>, [sum, least, greatest]: [u32; 3], series: &SampleSeries) {
    let divisor = series.divisor;
    let average = StateRatio { of: sum, by: Some(series.count), divisor };
    setup.handler("average", HandlerAccess::Ratio(average));
    setup.handler("avg", HandlerAccess::Ratio(average));
    setup.handler("min", HandlerAccess::Ratio(StateRatio { of: least, by: None, divisor }));
    setup.handler("max", HandlerAccess::Ratio(StateRatio { of: greatest, by: None, divisor }));
    let percentiles = PERCENTILES.iter().map(|(name, of)| (*name, SampleStatistic::Percentile(*of)));
    let others = [
        ("perc", SampleStatistic::AnyPercentile),
        ("stddev", SampleStatistic::Deviation),
        ("index", SampleStatistic::Index),
        ("last", SampleStatistic::Last),
        ("dump", SampleStatistic::NumberedList),
        ("dump_list", SampleStatistic::List),
    ];
    for (name, statistic) in percentiles.chain(others) {
        setup.handler(name, HandlerAccess::Samples(series.clone(), statistic));
    }
}

fn difference(setup: &mut ElementSetup<'_>) -> ElementResult {
    let text = setup.arguments.need("RECORDER")?;
    let recorder = recorder(setup, &text)?;
    let place = place(setup)?;
    let delay = setup.arguments.keyword_or("MAXDELAY", USUAL_DELAY, |text| unsigned(text, 1 << 32))?;
    let sample = setup.arguments.keyword_or("SAMPLE", 1, sampling)?;
    let most_kept = setup.arguments.keyword_or("N", 0, |text| unsigned(text, MOST_TIMES))?;
    let most_kept = if most_kept == 0 { USUAL_KEPT } else { most_kept };
    let nanoseconds = setup.arguments.keyword_or("NANO", false, boolean)?;
    let kept = setup.array("delays", &[Size::W], &[Size::Dw], most_kept as u32);
    let count = setup.counter("count");
    let [sum, least, greatest] = [setup.number(), setup.number(), setup.number()];
    let array = setup.map_name(&kept);
    let divisor = if nanoseconds { 1 } else { 1000 };
    let series = SampleSeries { array, entries: most_kept as u32, count, divisor };
    declare_statistics(setup, [sum, least, greatest], &series);
    setup.resets("reset", vec![count, sum, least, greatest]);
    // Each worker would have its own minimum, and handlers would give their sum.
    setup.require_single_worker("the least and the largest time are no sums over workers");
    let most = delay as i64 * MILLISECOND;
    Ok(Box::new(TimestampDiff {
        recorder,
        place,
        sample,
        kept,
        most_kept,
        most,
        count,
        sum,
        least,
        greatest,
    }))
}

impl ElementCodegen for TimestampDiff {
    fn build(&self, code: &mut ElementBuilder<'_, '_>, _: u32, packet: PacketValues) {
        let unknown = |code: &mut ElementBuilder<'_, '_>| {
            if code.connected(1) { code.out(1, packet) } else { code.drop(packet, "no_timestamp") }
        };
        let beyond = code.at(packet.data, self.place.offset as i64 + BYTES);
        code.check(Cond::Le, beyond, packet.end, unknown);
        let number = self.place.read(code, packet);
        check_sampled(code, number, self.sample, |code| code.out(0, packet));
        // The recorder has noted no time for other numbers.
        check_sampled(code, number, self.recorder.sample, unknown);
        let noted_as = match self.recorder.sample {
            1 => number,
            distance => code.with(AluOp::Div, number, distance),
        };
        let at = code.with(AluOp::Mod, noted_as, self.recorder.entries as i64);
        let noted = code.find(&self.recorder.times, &[at]);
        code.check_int(Cond::Ne, noted, 0, unknown);
        let then = code.wide(noted, 0);
        code.check_int(Cond::Ne, then, 0, unknown);
        let now = code.fine_time();
        let took = code.sub(now, then);
        code.check_int(Cond::Le, took, self.most, unknown);
        let (before, one) = (code.get(self.count), code.int(1));
        code.count(self.count, one);
        code.count(self.sum, took);
        self.keep(code, before, took);
        let (zero, least, greatest) = (code.int(0), code.get(self.least), code.get(self.greatest));
        let (first, less) = (code.compare(Cond::Eq, before, zero), code.compare(Cond::Lt, took, least));
        let lower = code.select(less, took, least);
        let lower = code.select(first, took, lower);
        code.set(self.least, lower);
        let more = code.compare(Cond::Gt, took, greatest);
        let upper = code.select(more, took, greatest);
        code.set(self.greatest, upper);
        code.out(0, packet);
    }
}

impl TimestampDiff {
    /// Stores a time as that of its number, in place of the oldest one that is kept.
    fn keep(&self, code: &mut ElementBuilder<'_, '_>, number: Value, took: Value) {
        let at = code.with(AluOp::Mod, number, self.most_kept as i64);
        let (place, on) = (code.find(&self.kept, &[at]), code.block());
        code.check_int(Cond::Ne, place, 0, |code| code.jump(on, &[]));
        code.set_wide(place, 0, took);
        code.jump(on, &[]);
        code.switch_to_block(on);
    }
}

//! Elements that count packets and bytes, and call handlers at certain counts.

use millstream_isa::Cond;

use millstream_click::arguments::{seconds, string, unsigned};
use millstream_click::build::ElementBuilder;
use millstream_click::class::{ElementClass, ElementCodegen, ElementResult};
use millstream_click::keyword::{ArgumentSpec, IgnoredValueKind, at, key, moot, refused, refused_but};
use millstream_click::packet::PacketValues;
use millstream_click::{ElementSetup, Error, SpannedText, words};

const NO_RATE: &str = "rates are not computed: whoever reads the counts knows the time";
const COUNTED: &[ArgumentSpec] = &[
    moot("NO_RATE", IgnoredValueKind::Truth, NO_RATE),
    key("COUNT_CALL"),
    key("BYTE_COUNT_CALL"),
    moot("BATCH_PRECISE", IgnoredValueKind::Truth, "packets are counted one by one"),
    moot(
        "ATOMIC",
        IgnoredValueKind::Number(0, 2),
        "each worker counts for itself, and what is read is the sum",
    ),
];
const AVERAGED: &[ArgumentSpec] = &[
    at("IGNORE"),
    moot("LINK_FCS", IgnoredValueKind::Truth, NO_RATE).or_at(),
    key("MAX"),
    refused_but("THRESHOLD", &["0"], "counting does not begin anew once a rate is reached"),
];

const fn counting(name: &'static str, about: &'static str) -> ElementClass {
    ElementClass { passes_all: true, ..ElementClass::filter(name, about, COUNTED, counter) }
}

const fn averaging(name: &'static str) -> ElementClass {
    let about = "Counts packets and bytes, on request only those of some seconds.";
    ElementClass { passes_all: true, ..ElementClass::filter(name, about, AVERAGED, average) }
}

const COUNTED_MP: &[ArgumentSpec] = &[
    moot("NO_RATE", IgnoredValueKind::Truth, NO_RATE),
    refused("COUNT_CALL", "Click refuses it, too: `Counter` calls handlers"),
    refused("BYTE_COUNT_CALL", "Click refuses it, too: `Counter` calls handlers"),
    moot("BATCH_PRECISE", IgnoredValueKind::Truth, "packets are counted one by one"),
    moot(
        "ATOMIC",
        IgnoredValueKind::Number(0, 2),
        "each worker counts for itself, and what is read is the sum",
    ),
];
pub(super) const CLASSES: &[ElementClass] = &[
    counting("Counter", "Counts packets and bytes; calls a handler when there are so many."),
    ElementClass {
        arguments: COUNTED_MP,
        ..counting("CounterMP", "Counts packets and bytes of several threads.")
    },
    averaging("AverageCounter"),
    averaging("AverageCounterMP"),
    averaging("AverageCounterIMP"),
];

/// A handler that is written at a certain count.
struct CounterTrigger {
    at: u64,
    /// True if bytes are counted.
    bytes: bool,
    /// The handler's whole name, and the value.
    handler: String,
    value: String,
    /// Offset of the count of writes that are left to whoever runs the program.
    due: u32,
    /// True if the handler is that of an element that pulls: what that does with the packet was decided when
    /// the packet was pulled, so the handler is written behind it.
    is_late: bool,
}

impl CounterTrigger {
    /// Writes the handler, or says that it is to be written.
    fn pull(&self, code: &mut ElementBuilder<'_, '_>) {
        if self.is_late || !code.write_handler(&self.handler, &self.value) {
            let one = code.int(1);
            code.count(self.due, one);
        }
    }
}

/// A trigger, from its argument: the count, the handler, and its value.
fn trigger(
    setup: &mut ElementSetup<'_>,
    name: &'static str,
    bytes: bool,
) -> Result<Option<CounterTrigger>, Error> {
    let Some(text) = setup.arguments.keyword(name) else { return Ok(None) };
    let all = words(&text);
    let [number, handler, ..] = &all[..] else {
        return Err(Error::new(
            text.span,
            format!("{name} is a number, a handler, and what is written to it"),
        ));
    };
    let at = unsigned(number, i64::MAX as u64)?;
    let call = text.text[number.text.len()..].trim().to_owned();
    let value = string(&SpannedText { text: call[handler.text.len()..].trim().to_owned(), span: text.span });
    let mut is_late = false;
    let whole = match handler.text.rsplit_once('.') {
        Some((element, own)) => match setup.named(element) {
            Some(found) => {
                is_late = setup.is_pulled() && setup.pulls(found);
                format!("{}.{own}", found.name)
            }
            None => return Err(Error::new(handler.span, format!("there is no element `{element}`"))),
        },
        None if handler.text == "stop" => String::new(),
        None => return Err(Error::new(handler.span, "a handler is ELEMENT.NAME, or stop")),
    };
    let due = setup.calls(&SpannedText { text: call, span: text.span })?;
    Ok(Some(CounterTrigger { at, bytes, handler: whole, value, due, is_late }))
}

/// Counts packets and bytes.
struct PacketCounter {
    packets: u32,
    bytes: u32,
    triggers: Vec<CounterTrigger>,
}

impl ElementCodegen for PacketCounter {
    fn build(&self, code: &mut ElementBuilder<'_, '_>, _: u32, packet: PacketValues) {
        let (one, length) = (code.int(1), code.length(packet));
        code.count(self.packets, one);
        code.count(self.bytes, length);
        for trigger in &self.triggers {
            let (counter, step) = if trigger.bytes { (self.bytes, length) } else { (self.packets, one) };
            let after = code.get(counter);
            let before = code.sub(after, step);
            // Once, when the number is reached.
            let (pulled, beyond, on) = (code.block(), code.block(), code.block());
            let at = code.int(trigger.at as i64);
            code.branch(Cond::Ge, after, at, beyond, on);
            code.switch_to_block(beyond);
            code.branch(Cond::Lt, before, at, pulled, on);
            code.switch_to_block(pulled);
            trigger.pull(code);
            code.jump(on, &[]);
            code.switch_to_block(on);
        }
        code.out(0, packet);
    }
}

/// Counts those packets that come in some seconds, from the first packet on.
struct AverageCounter {
    counter: PacketCounter,
    /// Nanoseconds since the first packet, from which on and up to which packets count.
    from: u64,
    until: Option<u64>,
    /// When the first packet came.
    first: u32,
}

impl ElementCodegen for AverageCounter {
    fn build(&self, code: &mut ElementBuilder<'_, '_>, port: u32, packet: PacketValues) {
        if self.from == 0 && self.until.is_none() {
            return self.counter.build(code, port, packet);
        }
        let (now, first, zero) = (code.time(), code.get(self.first), code.int(0));
        let begun = code.compare(Cond::Ne, first, zero);
        let first = code.select(begun, first, now);
        code.set(self.first, first);
        let passed = code.sub(now, first);
        code.check_int(Cond::Ge, passed, self.from as i64, |code| code.out(0, packet));
        if let Some(until) = self.until {
            code.check_int(Cond::Lt, passed, until as i64, |code| code.out(0, packet));
        }
        self.counter.build(code, port, packet);
    }
}

fn average(setup: &mut ElementSetup<'_>) -> ElementResult {
    let from = setup.arguments.or("IGNORE", 0, seconds)?;
    let until = setup.arguments.keyword_or("MAX", 0, seconds)?;
    let (packets, bytes, first) = (setup.counter("count"), setup.counter("byte_count"), setup.number());
    for name in ["reset_counts", "reset"] {
        setup.resets(name, vec![packets, bytes, first]);
    }
    if from > 0 || until > 0 {
        setup.require_clock();
    }
    let until = Some(until).filter(|until| *until > 0);
    Ok(Box::new(AverageCounter {
        counter: PacketCounter { packets, bytes, triggers: Vec::new() },
        from,
        until,
        first,
    }))
}

fn counter(setup: &mut ElementSetup<'_>) -> ElementResult {
    let (packets, bytes) = (setup.counter("count"), setup.counter("byte_count"));
    for name in ["reset_counts", "reset"] {
        setup.resets(name, vec![packets, bytes]);
    }
    let mut triggers = Vec::new();
    for (name, bytes) in [("COUNT_CALL", false), ("BYTE_COUNT_CALL", true)] {
        triggers.extend(trigger(setup, name, bytes)?);
    }
    Ok(Box::new(PacketCounter { packets, bytes, triggers }))
}

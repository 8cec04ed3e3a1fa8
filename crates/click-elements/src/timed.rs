//! Elements of time: they pull at a rate, after a delay, or now and then. They only declare their pace
//! ([`ShapingPolicy`]): whoever runs the program keeps packets until they are due, and only packets that
//! are due reach these elements. In programs whose runs have no clock they pass packets at once.

use millstream_isa::AluOp;

use super::output_switches::splitter;
use millstream_click::arguments::{SECOND, seconds, unsigned};
use millstream_click::build::ElementBuilder;
use millstream_click::class::{ElementClass, ElementCodegen, ElementResult};
use millstream_click::keyword::{ArgumentSpec, COUNT, NUMBER, at, key, moot, refused_but};
use millstream_click::packet::{Annotation, PacketValues};
use millstream_click::token_rates::{BURST_TWICE, MOST_RATE, bandwidth, burst_size};
use millstream_click::{
    ElementSetup, Error, HandlerAccess, SettingType, ShapingPolicy, SpannedText, TokenBucketSize,
};

const TOGETHER: &str = "all packets that are due go together";
const RATED: &[ArgumentSpec] = &[
    at("RATE"),
    key("BURST_DURATION"),
    key("BURST_SIZE"),
    moot("BURST", NUMBER, TOGETHER),
    refused_but("ACTIVE", &["true"], "packets are pulled from the beginning; its handler `rate` can be 0"),
];
const RATED_BYTES: &[ArgumentSpec] = &[
    at("RATE"),
    key("BURST_DURATION"),
    key("BURST_BYTES"),
    key("BURST_SIZE"),
    moot("BURST", NUMBER, TOGETHER),
    refused_but("ACTIVE", &["true"], "packets are pulled from the beginning; its handler `rate` can be 0"),
    refused_but("EXTRA_LENGTH", &["false"], "packets have no extra length"),
    refused_but("LINK_RATE", &["false"], "what a link adds to a packet is not counted"),
];
const SHAPED: &[ArgumentSpec] = &[at("RATE"), key("BURST_DURATION"), key("BURST_SIZE")];
const SHAPED_BYTES: &[ArgumentSpec] =
    &[at("RATE"), key("BURST_DURATION"), key("BURST_BYTES"), key("BURST_SIZE")];

const fn timed(
    name: &'static str,
    about: &'static str,
    processing: &'static str,
    arguments: &'static [ArgumentSpec],
    make: fn(&mut ElementSetup<'_>) -> ElementResult,
) -> ElementClass {
    ElementClass { processing, ..ElementClass::filter(name, about, arguments, make) }.passing()
}

pub(super) const CLASSES: &[ElementClass] = &[
    timed("RatedUnqueue", "Pulls packets at a rate.", "l/h", RATED, packets),
    timed("BandwidthRatedUnqueue", "Pulls packets at a bandwidth.", "l/h", RATED_BYTES, bytes),
    ElementClass {
        ports: "1/1-2",
        passes_all: false,
        ..timed("Shaper", "Lets packets be pulled at a rate.", "l/l", SHAPED, packets)
    },
    ElementClass {
        ports: "1/1-2",
        passes_all: false,
        ..timed("BandwidthShaper", "Lets packets be pulled at a bandwidth.", "l/l", SHAPED_BYTES, bytes)
    },
    timed("DelayUnqueue", "Pulls packets, each after a delay.", "l/h", &[at("DELAY")], delay),
    timed(
        "DelayShaper",
        "Lets packets be pulled, each after a delay.",
        "l/l",
        &[at("DELAY"), moot("BURST", COUNT, TOGETHER).or_at()],
        delay,
    ),
    timed(
        "LinkUnqueue",
        "Pulls packets as a line takes them.",
        "l/h",
        &[at("LATENCY"), at("BANDWIDTH")],
        link,
    ),
    timed("TimedUnqueue", "Pulls packets after equal times.", "l/h", &[at("INTERVAL"), at("BURST")], every),
    timed("Burster", "Pulls packets after equal times.", "l/h", &[at("INTERVAL"), at("BURST")], every),
    ElementClass {
        ports: "1/0",
        passes_all: false,
        ..timed("TimedSink", "Pulls a packet after equal times, and drops it.", "l", &[at("INTERVAL")], sink)
    },
];

/// A bucket holds the tokens of so many nanoseconds, unless said otherwise.
const USUAL_BURST: u64 = SECOND / 50;
/// Nanoseconds between the packets of a sink, unless said otherwise.
const USUAL_INTERVAL: u64 = SECOND / 2;
/// Passes packets that are due.
struct PacedUnqueue;

impl ElementCodegen for PacedUnqueue {
    fn build(&self, code: &mut ElementBuilder<'_, '_>, _: u32, packet: PacketValues) {
        code.out(0, packet);
    }
}

/// Drops packets that are due.
struct TimedSink {
    counter: u32,
}

impl ElementCodegen for TimedSink {
    fn build(&self, code: &mut ElementBuilder<'_, '_>, _: u32, packet: PacketValues) {
        let one = code.int(1);
        code.count(self.counter, one);
        code.drop(packet, "discarded");
    }
}

/// Declares the pace that packets wait for, if there is a clock.
fn waits(setup: &mut ElementSetup<'_>, pace: ShapingPolicy) {
    if setup.is_timed() {
        setup.declare_pacing(pace);
        setup.require_single_worker("packets wait for their time in one order");
    } else {
        let message =
            format!("`{}` passes packets at once: there is no time between them", setup.element.class);
        setup.warn(Error::new(setup.element.span, message));
    }
}

fn packets(setup: &mut ElementSetup<'_>) -> ElementResult {
    shaper(setup, false)
}

fn bytes(setup: &mut ElementSetup<'_>) -> ElementResult {
    shaper(setup, true)
}

/// Schedulers that both outputs of a shaper may lead to.
const SCHEDULERS: &[&str] = &["RoundRobinSched", "PrioSched", "StrideSched"];

/// The scheduler that an element behind an output of a shaper is or leads to, by elements that only pass
/// packets on.
fn scheduler(setup: &ElementSetup<'_>, element: &str) -> Option<String> {
    let mut name = element.to_owned();
    for _ in 0..setup.elements().len() {
        let own = setup.elements().iter().find(|element| element.name == name)?;
        if SCHEDULERS.contains(&own.class.as_str()) {
            return Some(name);
        }
        name = match setup.neighbours(&name, true).as_slice() {
            [next] => next.name.clone(),
            _ => return None,
        };
    }
    None
}

/// A shaper whose output 1 has the packets that are beyond the rate. Both outputs lead to one scheduler, which
/// gets every packet that it pulls, by either: so the rate only chooses the output.
fn two_outputs(setup: &mut ElementSetup<'_>, bytes: bool) -> ElementResult {
    let name = setup.element.name.clone();
    let behind: Vec<String> = setup.neighbours(&name, true).into_iter().map(|e| e.name.clone()).collect();
    let found: Vec<Option<String>> = behind.iter().map(|name| scheduler(setup, name)).collect();
    match &found[..] {
        [Some(one), Some(other)] if one == other => splitter(setup, bytes),
        _ => {
            let message = "packets of output 1 are those that are pulled when none is due at output 0: both \
                outputs must lead to one scheduler";
            Err(Error::new(setup.element.span, message))
        }
    }
}

fn shaper(setup: &mut ElementSetup<'_>, bytes: bool) -> ElementResult {
    if setup.outputs > 1 {
        return two_outputs(setup, bytes);
    }
    let text = setup.arguments.need("RATE")?;
    let rate = if bytes { bandwidth(&text)? } else { unsigned(&text, MOST_RATE)? };
    let duration = setup.arguments.keyword("BURST_DURATION");
    let tokens = burst_size(setup, bytes);
    if let (Some(_), Some(text)) = (&duration, &tokens) {
        return Err(Error::new(text.span, BURST_TWICE));
    }
    let duration = duration.map_or(Ok(USUAL_BURST), |text| seconds(&text))?;
    let burst = match tokens {
        Some(text) => TokenBucketSize::Tokens(unsigned(&text, MOST_RATE)?),
        None => TokenBucketSize::Nanoseconds(duration),
    };
    let rate = setup.setting("rate", SettingType::Number(0, MOST_RATE as i64), rate as i64);
    waits(setup, ShapingPolicy::Rate { rate: rate.into(), burst, bytes });
    Ok(Box::new(PacedUnqueue))
}

fn delay(setup: &mut ElementSetup<'_>) -> ElementResult {
    let text = setup.arguments.need("DELAY")?;
    let delay = seconds(&text)?;
    setup.handler("delay", HandlerAccess::Text(text.text));
    waits(setup, ShapingPolicy::Delay(delay));
    Ok(Box::new(PacedUnqueue))
}

fn link(setup: &mut ElementSetup<'_>) -> ElementResult {
    let latency = setup.arguments.need("LATENCY")?;
    let said = setup.arguments.need("BANDWIDTH")?;
    let pace = ShapingPolicy::Link { latency: seconds(&latency)?, bandwidth: bandwidth(&said)? };
    if matches!(pace, ShapingPolicy::Link { bandwidth: 0, .. }) {
        return Err(Error::new(said.span, "nothing passes a line without bandwidth"));
    }
    setup.handler("latency", HandlerAccess::Text(latency.text));
    setup.handler("bandwidth", HandlerAccess::Text(said.text));
    waits(setup, pace);
    Ok(Box::new(LinkEnd))
}

/// Passes packets that have come over a link, whose time is now.
struct LinkEnd;

impl ElementCodegen for LinkEnd {
    fn build(&self, code: &mut ElementBuilder<'_, '_>, _: u32, packet: PacketValues) {
        let now = code.fine_time();
        let stamp = code.with(AluOp::Add, now, 1);
        code.out(0, packet.with(Annotation::Time, stamp));
    }
}

/// INTERVAL, which is some time.
fn interval(text: &SpannedText) -> Result<u64, Error> {
    match seconds(text)? {
        0 => Err(Error::new(text.span, "there is no time between packets: `Unqueue` has none")),
        interval => Ok(interval),
    }
}

fn every(setup: &mut ElementSetup<'_>) -> ElementResult {
    let interval = interval(&setup.arguments.need("INTERVAL")?)?;
    let usual = if setup.element.class == "Burster" { 8 } else { 1 };
    let burst = setup.arguments.or("BURST", usual, |text| unsigned(text, u64::from(u32::MAX)))?;
    waits(setup, ShapingPolicy::Every { interval, burst: burst.max(1) });
    Ok(Box::new(PacedUnqueue))
}

fn sink(setup: &mut ElementSetup<'_>) -> ElementResult {
    let interval = setup.arguments.or("INTERVAL", USUAL_INTERVAL, interval)?;
    waits(setup, ShapingPolicy::Every { interval, burst: 1 });
    let counter = setup.counter("count");
    setup.resets("reset_counts", vec![counter]);
    Ok(Box::new(TimedSink { counter }))
}

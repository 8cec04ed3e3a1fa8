//! Elements that count, pass, drop and copy, and those that say something about the configuration.

use millstream_isa::{AluOp, Cond};

use crate::arguments::{boolean, unsigned};
use crate::build::Code;
use crate::class::{Behaviour, Class, Made};
use crate::compile::Setup;
use crate::config::{Text, unquote};
use crate::error::Error;
use crate::handlers::{Access, Setting, Takes};
use crate::packet::Packet;
use crate::script::{ScriptKind, script as read_script};
use crate::waits::Queued;

/// A class with these ports that passes all packets and takes no notice of its arguments.
const fn passing(
    name: &'static str,
    ports: &'static str,
    processing: &'static str,
    ignored: &'static [&'static str],
) -> Class {
    Class { name, ports, processing, arguments: ignored, ignored, passes_all: true, make: pass }
}

/// A class that says something about others.
const fn information(name: &'static str) -> Class {
    Class {
        name,
        ports: "0/0",
        processing: "a",
        arguments: &[],
        ignored: &[],
        passes_all: false,
        make: nothing,
    }
}

/// How rates are computed, which are not: whoever reads the counts knows the time.
const RATES: &[&str] = &["IGNORE", "LINK_FCS", "MAX", "THRESHOLD"];
const COUNTED: &[&str] = &["COUNT_CALL", "BYTE_COUNT_CALL", "NO_RATE"];

const fn counting(name: &'static str, ignored: &'static [&'static str]) -> Class {
    Class { make: counter, ..passing(name, "1/1", "a/a", ignored) }
}

const fn queue(name: &'static str) -> Class {
    Class { make: passes_queue, ..passing(name, "1/1", "h/l", &["CAPACITY"]) }
}

/// What a queue holds at most, unless it says so.
const USUAL_CAPACITY: i64 = 1000;
/// And at most, whatever it says.
const MOST_CAPACITY: u64 = 1 << 30;
const PUSHING: &[&str] = &["ACTIVE", "LIMIT", "BURST"];
const TABLE: &[&str] =
    &["CAPACITY", "ENTRY_CAPACITY", "ENTRY_PACKET_CAPACITY", "CAPACITY_SLIM_FACTOR", "TIMEOUT"];
const REPLAYED: &[&str] = &[
    "STOP",
    "ACTIVE",
    "QUICK_CLONE",
    "VERBOSE",
    "LIMIT",
    "TIMING",
    "STOP_TIME",
    "FREEONTERMINATE",
    "USE_SIGNAL",
];

pub(super) const CLASSES: &[Class] = &[
    Class {
        name: "Discard",
        ports: "1/0",
        processing: "a",
        arguments: &["ACTIVE", "BURST"],
        ignored: &["ACTIVE", "BURST"],
        passes_all: false,
        make: discard,
    },
    Class {
        name: "Idle",
        ports: "-/-",
        processing: "a/a",
        arguments: &[],
        ignored: &[],
        passes_all: false,
        make: idle,
    },
    counting("Counter", COUNTED),
    counting("CounterMP", COUNTED),
    counting("AverageCounter", RATES),
    counting("AverageCounterMP", RATES),
    counting("AverageCounterIMP", RATES),
    Class {
        name: "Tee",
        ports: "1/1-",
        processing: "h/h",
        arguments: &["N"],
        ignored: &[],
        passes_all: true,
        make: tee,
    },
    Class {
        name: "PullTee",
        ports: "1/1-",
        processing: "l/lh",
        arguments: &["N"],
        ignored: &[],
        passes_all: true,
        make: tee,
    },
    Class {
        name: "Switch",
        ports: "1/-",
        processing: "h/h",
        arguments: &["OUTPUT"],
        ignored: &[],
        passes_all: false,
        make: switch,
    },
    Class {
        name: "StoreData",
        ports: "1/1",
        processing: "a/a",
        arguments: &["OFFSET", "DATA", "MASK", "GROW"],
        ignored: &[],
        passes_all: true,
        make: store,
    },
    queue("Queue"),
    queue("SimpleQueue"),
    queue("ThreadSafeQueue"),
    queue("FullNoteQueue"),
    queue("FrontDropQueue"),
    passing("Unqueue", "1/1", "l/h", PUSHING),
    passing("RoundRobinSched", "1-/1", "l/l", &[]),
    passing("PrioSched", "1-/1", "l/l", &[]),
    Class { make: tickets, ..passing("StrideSched", "1-/1", "l/l", &[]) },
    passing("Null", "1/1", "a/a", &[]),
    // Nobody here looks at Ethernet headers by annotation, at times, or at whether headers are aligned.
    passing("MarkMACHeader", "1/1", "a/a", &["OFFSET", "LENGTH"]),
    passing("SetTimestamp", "1/1", "a/a", &["TIMESTAMP", "FIRST", "DELTA", "PER_BATCH"]),
    passing("Align", "1/1", "a/a", &["MODULUS", "OFFSET"]),
    // Our buffers are those that devices take.
    passing("EnsureDPDKBuffer", "1/1", "a/a", &["FORCE", "EXTRA_LENGTH"]),
    // Without elements of time no queue ever holds a packet: none is dropped early; and threads need no pipeline between them.
    Class {
        make: red,
        ..passing(
            "RED",
            "1/1-2",
            "a/ah",
            &["MIN_THRESH", "MAX_THRESH", "MAX_P", "QUEUES", "STABILITY", "GENTLE"],
        )
    },
    passing("Pipeliner", "1/1", "h/h", &["CAPACITY", "BLOCKING", "ALWAYS_UP", "PREFETCH"]),
    Class { ports: "1-/1-", make: replay, ..passing("ReplayUnqueue", "1/1", "l/h", REPLAYED) },
    Class { ports: "1-/1-", make: replay, ..passing("MultiReplayUnqueue", "1/1", "l/h", REPLAYED) },
    Class {
        ports: "1/1-",
        processing: "h/h",
        make: round_robin,
        ..passing("RoundRobinSwitch", "1/1-", "h/h", &["SPLITBATCH", "MAX"])
    },
    // Paths are run to completion by one worker at a time.
    Class { make: through, ..passing("PathSpinlock", "1-/1-", "a/a", &["LOCK"]) },
    // Whoever reads handlers adds them up.
    information("HandlerAggregate"),
    information("AddressInfo"),
    information("IPRewriterPatterns"),
    information("ScheduleInfo"),
    information("StaticThreadSched"),
    information("BalancedThreadSched"),
    Class { arguments: &["TYPE"], make: script, ..information("Script") },
    Class { make: driver, ..information("DriverManager") },
    information("Message"),
    information("ControlSocket"),
    information("ChatterSocket"),
    information("DPDKInfo"),
    information("ClickyInfo"),
    information("JiffieClock"),
    information("TSCClock"),
    // Queriers that name it have its table together.
    Class { arguments: TABLE, ignored: TABLE, ..information("ARPTable") },
    // Random numbers are those of a seed that every run begins with.
    Class { arguments: &["SEED"], ignored: &["SEED"], ..information("RandomSeed") },
    information("AlignmentInfo"),
];

/// Passes packets to output 0.
struct Pass;

impl Behaviour for Pass {
    fn build(&self, code: &mut Code<'_, '_>, _: u32, packet: Packet) {
        code.out(0, packet);
    }
}

/// The same, or where stages are different workers' packets to the next one: but where several pull, whose turns are counted in front.
struct Queue;

impl Behaviour for Queue {
    fn build(&self, code: &mut Code<'_, '_>, _: u32, packet: Packet) {
        match code.next_stage() {
            Some(target) => code.pass_on(target, packet),
            None => code.out(0, packet),
        }
    }
}

fn pass(setup: &mut Setup<'_>) -> Made {
    setup.arguments.rest();
    Ok(Box::new(Pass))
}

/// A queue hands on at once, but to elements of time: else it is empty whenever somebody asks.
fn passes_queue(setup: &mut Setup<'_>) -> Made {
    let said = setup.arguments.next("CAPACITY");
    setup.arguments.rest();
    if setup.is_timed() {
        let usual = Text { text: USUAL_CAPACITY.to_string(), span: setup.element.span };
        let capacity = unsigned(&said.unwrap_or(usual), MOST_CAPACITY)? as i64;
        let capacity = setup.setting("capacity", Takes::Number(0, MOST_CAPACITY as i64), capacity);
        let [length, highest] = ["length", "highwater_length"].map(|name| setup.counter(name));
        let dropped = setup.number();
        for name in ["reset", "reset_counts"] {
            setup.resets(name, vec![highest, dropped]);
        }
        let front = setup.element.class == "FrontDropQueue";
        setup.queue(Queued { capacity: capacity.into(), front, length, highest, dropped });
        return Ok(Box::new(Queue));
    }
    remembered(setup, "capacity", said, USUAL_CAPACITY);
    for name in ["length", "highwater_length"] {
        setup.handler(name, Access::Text("0".to_owned()));
    }
    setup.resets("reset", Vec::new());
    setup.resets("reset_counts", Vec::new());
    Ok(Box::new(Queue))
}

/// A number that makes no difference here, and that a handler reads and, where somebody may, writes all the same: scripts that tune it go on. What is no number is
/// only read.
fn remembered(setup: &mut Setup<'_>, name: &'static str, said: Option<Text>, usual: i64) {
    match said.map_or(Ok(usual as u64), |text| unsigned(&text, i64::MAX as u64).map_err(|_| text)) {
        Ok(number) => drop(setup.setting(name, Takes::Number(0, i64::MAX), number as i64)),
        Err(text) => setup.handler(name, Access::Text(text.text)),
    }
}

fn red(setup: &mut Setup<'_>) -> Made {
    for (argument, handler) in [("MIN_THRESH", "min_thresh"), ("MAX_THRESH", "max_thresh")] {
        let said = setup.arguments.next(argument);
        remembered(setup, handler, said, 0);
    }
    if let Some(text) = setup.arguments.next("MAX_P") {
        setup.handler("max_p", Access::Text(text.text));
    }
    setup.handler("avg_queue_size", Access::Text("0".to_owned()));
    pass(setup)
}

/// Shares of the turns of what there is to pull; but in front of elements of time there is never more than one packet.
fn tickets(setup: &mut Setup<'_>) -> Made {
    let mut all = Vec::new();
    for (input, text) in setup.arguments.rest().into_iter().enumerate() {
        let tickets = unsigned(&text, i64::MAX as u64)?;
        all.push(tickets);
        setup.setting(format!("tickets{input}"), Takes::Number(0, i64::MAX), tickets as i64);
    }
    setup.tickets(all);
    pass(setup)
}

/// Passes packets from each input to the output of the same number.
struct Through;

impl Behaviour for Through {
    fn build(&self, code: &mut Code<'_, '_>, port: u32, packet: Packet) {
        code.out(port, packet);
    }
}

fn through(setup: &mut Setup<'_>) -> Made {
    setup.arguments.rest();
    Ok(Box::new(Through))
}

fn replay(setup: &mut Setup<'_>) -> Made {
    let message = format!("`{}` passes packets once, and replays none", setup.element.class);
    setup.warn(Error::new(setup.element.span, message));
    through(setup)
}

/// Sends one packet to each output by turns.
struct RoundRobin {
    outputs: u32,
    next: u32,
}

impl Behaviour for RoundRobin {
    fn build(&self, code: &mut Code<'_, '_>, _: u32, packet: Packet) {
        let (turn, one, zero) = (code.get(self.next), code.int(1), code.int(0));
        let following = code.add(turn, one);
        let last = code.int(i64::from(self.outputs.max(1) - 1));
        let over = code.compare(Cond::Ge, turn, last);
        let following = code.select(over, zero, following);
        code.set(self.next, following);
        for port in 1..self.outputs {
            code.check_int(Cond::Ne, turn, i64::from(port), |code| code.out(port, packet));
        }
        code.out(0, packet);
    }
}

fn round_robin(setup: &mut Setup<'_>) -> Made {
    Ok(Box::new(RoundRobin { outputs: setup.outputs, next: setup.number() }))
}

/// Drops, for a reason.
struct Drop {
    reason: &'static str,
    counter: u32,
}

impl Behaviour for Drop {
    fn build(&self, code: &mut Code<'_, '_>, _: u32, packet: Packet) {
        let one = code.int(1);
        code.count(self.counter, one);
        code.drop(packet, self.reason);
    }
}

fn discard(setup: &mut Setup<'_>) -> Made {
    let counter = setup.counter("count");
    setup.resets("reset_counts", vec![counter]);
    Ok(Box::new(Drop { reason: "discarded", counter }))
}

fn idle(setup: &mut Setup<'_>) -> Made {
    let counter = setup.number();
    Ok(Box::new(Drop { reason: "idle", counter }))
}

fn nothing(setup: &mut Setup<'_>) -> Made {
    setup.arguments.rest();
    Ok(Box::new(Pass))
}

fn script(setup: &mut Setup<'_>) -> Made {
    let script = read_script(setup, ScriptKind::Active)?;
    setup.script(script);
    Ok(Box::new(Pass))
}

fn driver(setup: &mut Setup<'_>) -> Made {
    let script = read_script(setup, ScriptKind::Driver)?;
    setup.script(script);
    Ok(Box::new(Pass))
}

/// Counts packets and bytes.
struct Counter {
    packets: u32,
    bytes: u32,
}

impl Behaviour for Counter {
    fn build(&self, code: &mut Code<'_, '_>, _: u32, packet: Packet) {
        let (one, length) = (code.int(1), code.length(packet));
        code.count(self.packets, one);
        code.count(self.bytes, length);
        code.out(0, packet);
    }
}

fn counter(setup: &mut Setup<'_>) -> Made {
    setup.arguments.rest();
    let (packets, bytes) = (setup.counter("count"), setup.counter("byte_count"));
    for name in ["reset_counts", "reset"] {
        setup.resets(name, vec![packets, bytes]);
    }
    Ok(Box::new(Counter { packets, bytes }))
}

/// Bytes written over a part of packets; what is behind a packet's end is left out, or the packet grows.
struct Store {
    offset: i64,
    data: Vec<u8>,
    /// Bits that are written, of each byte.
    mask: Vec<u8>,
    grow: bool,
}

impl Store {
    /// Bytes from `from` to `to` of the data.
    fn put(&self, code: &mut Code<'_, '_>, packet: Packet, from: usize, to: usize) {
        let at = |i: usize| (self.offset + i as i64) as i32;
        if self.mask[from..to].iter().all(|mask| *mask == 0xff) {
            return code.write(packet.data, at(from), &self.data[from..to]);
        }
        for i in from..to {
            let (data, mask) = (i64::from(self.data[i]), i64::from(self.mask[i]));
            let old = code.byte(packet.data, at(i));
            let kept = code.with(AluOp::And, old, 0xff & !mask);
            let byte = code.with(AluOp::Or, kept, data & mask);
            code.set_byte(packet.data, at(i), byte);
        }
    }

    /// A packet that ends in front of the last byte of the data.
    fn short(&self, code: &mut Code<'_, '_>, packet: Packet) {
        let len = self.data.len();
        if self.grow {
            let length = code.length(packet);
            code.check_int(Cond::Gt, length, self.offset, |code| code.out(0, packet));
            let whole = code.int(self.offset + len as i64);
            let missing = code.sub(whole, length);
            let packet = code.lengthened(packet, missing);
            self.put(code, packet, 0, len);
            return code.out(0, packet);
        }
        for i in 0..len.saturating_sub(1) {
            let beyond = code.at(packet.data, self.offset + i as i64 + 1);
            code.check(Cond::Le, beyond, packet.end, |code| code.out(0, packet));
            self.put(code, packet, i, i + 1);
        }
        code.out(0, packet);
    }
}

impl Behaviour for Store {
    fn build(&self, code: &mut Code<'_, '_>, _: u32, packet: Packet) {
        let beyond = code.at(packet.data, self.offset + self.data.len() as i64);
        code.check(Cond::Le, beyond, packet.end, |code| self.short(code, packet));
        self.put(code, packet, 0, self.data.len());
        code.out(0, packet);
    }
}

/// Bytes of data at most: each is a test of its own where packets end within them.
const LONGEST_DATA: usize = 1500;

fn store(setup: &mut Setup<'_>) -> Made {
    let offset = unsigned(&setup.arguments.need("OFFSET")?, 65_535)? as i64;
    let text = setup.arguments.need("DATA")?;
    let data = unquote(&text.text);
    if data.len() > LONGEST_DATA {
        return Err(Error::new(text.span, format!("DATA is longer than {LONGEST_DATA} bytes")));
    }
    let mut mask = vec![0xff; data.len()];
    if let Some(text) = setup.arguments.next("MASK") {
        let said = unquote(&text.text);
        if said.len() > data.len() {
            return Err(Error::new(text.span, "MASK is longer than DATA"));
        }
        mask[..said.len()].copy_from_slice(&said);
    }
    let grow = setup.arguments.keyword_or("GROW", false, boolean)?;
    Ok(Box::new(Store { offset, data, mask, grow }))
}

/// Sends a copy to each output.
struct Tee {
    outputs: u32,
}

impl Behaviour for Tee {
    fn build(&self, code: &mut Code<'_, '_>, _: u32, packet: Packet) {
        for port in (1..self.outputs).rev() {
            code.fork(port, packet);
        }
        code.out(0, packet);
    }
}

fn tee(setup: &mut Setup<'_>) -> Made {
    let outputs = setup.outputs;
    if let Some(text) = setup.arguments.next("N") {
        let said = unsigned(&text, u64::from(u32::MAX))?;
        if said != u64::from(outputs) {
            let message = format!("{said} outputs are announced, {outputs} are connected");
            return Err(Error::new(text.span, message));
        }
    }
    Ok(Box::new(Tee { outputs }))
}

/// Sends all packets to one output.
struct Switch {
    /// Negative to drop them.
    output: Setting,
    outputs: u32,
}

impl Behaviour for Switch {
    fn build(&self, code: &mut Code<'_, '_>, _: u32, packet: Packet) {
        match self.output {
            Setting::Fixed(port) => match u32::try_from(port) {
                Ok(port) => code.out(port, packet),
                Err(_) => code.drop(packet, "switched_off"),
            },
            Setting::Live(_) => {
                let output = code.setting(self.output);
                for port in 0..self.outputs {
                    code.check_int(Cond::Ne, output, i64::from(port), |code| code.out(port, packet));
                }
                code.drop(packet, "switched_off");
            }
        }
    }
}

fn switch(setup: &mut Setup<'_>) -> Made {
    let last = i64::from(setup.outputs.max(1) - 1);
    let output = match setup.arguments.next("OUTPUT") {
        Some(text) if text.text == "-1" => -1,
        Some(text) => unsigned(&text, last as u64)? as i64,
        None => 0,
    };
    let output = setup.setting("switch", Takes::Number(-1, last), output);
    Ok(Box::new(Switch { output, outputs: setup.outputs }))
}

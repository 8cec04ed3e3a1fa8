//! Elements that count, pass, drop and copy, and those that say something about the configuration.

use millstream_isa::{AluOp, Cond};

use super::generators::limit;
use millstream_click::arguments::{SECOND, boolean, string, unsigned};
use millstream_click::build::ElementBuilder;
use millstream_click::class::{ElementClass, ElementCodegen, ElementResult};
use millstream_click::keyword::{
    ArgumentSpec, COUNT, IgnoredValueKind, NUMBER, at, key, moot, refused, refused_but,
};
use millstream_click::packet::PacketValues;
use millstream_click::{
    ElementSetup, Error, ErrorStage, HandlerAccess, QueueProperties, ReplayNumbers, ScriptKind, SettingType,
    SettingValue, ShapingPolicy, SpannedText, TimingParameter, read_script, unquote,
};

/// A class with these ports that passes all packets.
const fn passing(
    name: &'static str,
    about: &'static str,
    ports: &'static str,
    processing: &'static str,
    arguments: &'static [ArgumentSpec],
) -> ElementClass {
    ElementClass { name, about, ports, processing, arguments, rest: None, passes_all: true, make: pass }
}

/// A class that says something about others.
const fn information(
    name: &'static str,
    about: &'static str,
    arguments: &'static [ArgumentSpec],
) -> ElementClass {
    ElementClass { passes_all: false, make: nothing, ..passing(name, about, "0/0", "a", arguments) }
}

const QUEUED: &[ArgumentSpec] = &[
    at("CAPACITY"),
    refused_but("BLOCKING", &["false"], "a full queue drops what comes, nobody spins until there is room"),
    moot("NOUSELESS", IgnoredValueKind::Truth, NO_TASKS),
];

const fn queue(name: &'static str, about: &'static str) -> ElementClass {
    ElementClass { make: passes_queue, ..passing(name, about, "1/1", "h/l", QUEUED) }
}

/// Default capacity of a queue, in packets.
const USUAL_CAPACITY: i64 = 1000;
/// Maximum capacity, in packets.
const MOST_CAPACITY: u64 = 1 << 30;

const NO_TASKS: &str = "there are no tasks and no notifiers: packets are handed on when they are there";
const NO_DPDK_POOL: &str = "buffers are those that devices take, whatever device that is";
const ONE_WORKER_EACH: &str = "a path is run to completion by one worker at a time";
const NO_THREADS: &str = "workers are chosen by --workers, and packets go to them by their flows";
const NOT_WATCHED: &str = "reading of a clock makes no difference to the time that elements see";
const SOCKET: &str = "packets are not touched by it; `--control SOCKET` is what answers READ and WRITE";

const REPLAYS: &[ArgumentSpec] = &[
    key("STOP"),
    key("ACTIVE"),
    moot("QUICK_CLONE", IgnoredValueKind::Truth, "each copy has its own bytes"),
    moot("BURST", COUNT, NO_TASKS),
    moot("VERBOSE", IgnoredValueKind::Truth, "nothing is said of progress: the report has all counts"),
    key("LIMIT"),
    key("TIMING"),
    refused_but("TIMING_FNT", &[""], "the speed of a replay does not change by a formula"),
    key("STOP_TIME"),
    moot("FREEONTERMINATE", IgnoredValueKind::Truth, "memory is freed at the end of the run"),
    moot("USE_SIGNAL", IgnoredValueKind::Truth, NO_TASKS),
    moot("QUEUE", COUNT, "copies are sent at once").or_at(),
];

const CLOCK: &[ArgumentSpec] = &[
    moot("VERBOSE", IgnoredValueKind::Any, NOT_WATCHED).or_at(),
    moot("MINPRECISION", COUNT, NOT_WATCHED).or_at(),
];
const TSC_CLOCK: &[ArgumentSpec] = &[
    moot("VERBOSE", IgnoredValueKind::Any, NOT_WATCHED),
    moot("INSTALL", IgnoredValueKind::Truth, NOT_WATCHED),
    moot("NOWAIT", IgnoredValueKind::Truth, NOT_WATCHED),
    moot("BASE", IgnoredValueKind::Any, NOT_WATCHED),
    moot("SOURCE", IgnoredValueKind::Any, NOT_WATCHED),
    moot("CONVERT_STEADY", IgnoredValueKind::Truth, NOT_WATCHED),
    refused("READY_CALL", "there is no clock that would have to become ready"),
];
const POOL: &str = "no memory of DPDK's is set up for a configuration: flags of the command say how it is";
const DPDK_INFO: &[ArgumentSpec] = &[
    moot("NB_MBUF", COUNT, POOL).or_at(),
    moot("NB_SOCKET_MBUF", COUNT, POOL),
    moot("MBUF_SIZE", COUNT, POOL),
    moot("MBUF_CACHE_SIZE", COUNT, POOL),
    moot("RX_PTHRESH", COUNT, POOL),
    moot("RX_HTHRESH", COUNT, POOL),
    moot("RX_WTHRESH", COUNT, POOL),
    moot("TX_PTHRESH", COUNT, POOL),
    moot("TX_HTHRESH", COUNT, POOL),
    moot("TX_WTHRESH", COUNT, POOL),
    moot("MEMPOOL_PREFIX", IgnoredValueKind::Any, POOL),
    moot("DEF_RING_NDESC", COUNT, POOL),
    moot("DEF_BURST_SIZE", COUNT, POOL),
    moot("RING_SIZE", COUNT, POOL),
    moot("RING_POOL_CACHE_SIZE", COUNT, POOL),
    moot("RING_PRIV_DATA_SIZE", COUNT, POOL),
];
pub(super) const CLASSES: &[ElementClass] = &[
    ElementClass {
        passes_all: false,
        make: discard,
        ..passing(
            "Discard",
            "Drops all packets, and counts them.",
            "1/0",
            "a",
            &[key("ACTIVE"), moot("BURST", COUNT, NO_TASKS)],
        )
    },
    ElementClass {
        passes_all: false,
        make: idle,
        ..passing("Idle", "Sends no packet, pulls none, and drops those that are pushed.", "-/-", "a/a", &[])
    },
    ElementClass {
        make: tee,
        ..passing("Tee", "Sends a copy of each packet to each output.", "1/1-", "h/h", &[at("N")])
    },
    ElementClass {
        make: tee,
        ..passing(
            "PullTee",
            "Sends a copy of each packet that is pulled to the other outputs.",
            "1/1-",
            "l/lh",
            &[at("N")],
        )
    },
    ElementClass {
        passes_all: false,
        make: switch,
        ..passing(
            "Switch",
            "Sends all packets to one output, which a handler sets.",
            "1/-",
            "h/h",
            &[at("OUTPUT")],
        )
    },
    ElementClass {
        make: store,
        ..passing(
            "StoreData",
            "Writes bytes into packets.",
            "1/1",
            "a/a",
            &[at("OFFSET"), at("DATA"), at("MASK"), key("GROW")],
        )
    },
    queue("Queue", "Holds packets until they are pulled."),
    queue("SimpleQueue", "Holds packets until they are pulled."),
    queue("ThreadSafeQueue", "Holds packets of several threads until they are pulled."),
    queue("FullNoteQueue", "Holds packets until they are pulled."),
    queue("NotifierQueue", "Holds packets until they are pulled."),
    queue("QuickNoteQueue", "Holds packets until they are pulled."),
    ElementClass {
        ports: "1-2/1",
        ..queue("MixedQueue", "Holds packets until they are pulled; those of input 1 become the first.")
    },
    queue("FrontDropQueue", "Holds packets until they are pulled; a full one drops the first."),
    ElementClass {
        make: unqueue,
        ..passing(
            "Unqueue",
            "Pulls packets, and pushes them on.",
            "1/1",
            "l/h",
            &[
                moot("BURST", NUMBER, NO_TASKS).or_at(),
                key("ACTIVE"),
                moot("SIGNAL", IgnoredValueKind::Truth, NO_TASKS),
                key("LIMIT"),
            ],
        )
    },
    ElementClass {
        make: round_robin_sched,
        ..passing("RoundRobinSched", "Pulls from each input by turns.", "1-/1", "l/l", &[at("MAX")])
    },
    passing("PrioSched", "Pulls from the first input that has a packet.", "1-/1", "l/l", &[]),
    ElementClass {
        make: tickets,
        ..passing("StrideSched", "Pulls from its inputs as often as each has tickets.", "1-/1", "l/l", &[])
    }
    .and(at("TICKETS")),
    passing("Null", "Passes packets on.", "1/1", "a/a", &[]),
    passing("PushNull", "Passes packets on that are pushed.", "1/1", "h/h", &[]),
    passing("PullNull", "Passes packets on that are pulled.", "1/1", "l/l", &[]),
    passing(
        "MarkMACHeader",
        "Passes packets on: where their Ethernet header is nobody asks.",
        "1/1",
        "a/a",
        &[moot("OFFSET", COUNT, NO_MAC).or_at(), moot("LENGTH", COUNT, NO_MAC).or_at()],
    ),
    passing(
        "Align",
        "Passes packets on: headers may lie anywhere.",
        "1/1",
        "a/a",
        &[moot("MODULUS", COUNT, ANYWHERE).or_at(), moot("OFFSET", COUNT, ANYWHERE).or_at()],
    ),
    passing(
        "EnsureDPDKBuffer",
        "Passes packets on: buffers are those that devices take.",
        "1/1",
        "a/a",
        &[
            moot("FORCE_COPY", IgnoredValueKind::Truth, NO_DPDK_POOL).or_at(),
            moot("EXTRA_HEADROOM", COUNT, NO_DPDK_POOL).or_at(),
            moot("FAIL", IgnoredValueKind::Truth, NO_DPDK_POOL),
        ],
    ),
    passing(
        "Pipeliner",
        "Passes packets on: workers need no queue between them.",
        "1/1",
        "h/h",
        &[
            moot("CAPACITY", COUNT, NO_THREADS).or_at(),
            moot("BURST", NUMBER, NO_THREADS).or_at(),
            moot("BLOCKING", IgnoredValueKind::Truth, NO_THREADS).or_at(),
            refused_but("ACTIVE", &["true"], "packets that nobody takes would be lost"),
            moot("ALWAYS_UP", IgnoredValueKind::Truth, NO_THREADS),
            moot("DIRECT_TRAVERSAL", IgnoredValueKind::Truth, NO_THREADS),
            moot("NOUSELESS", IgnoredValueKind::Truth, NO_THREADS),
            moot("VERBOSE", IgnoredValueKind::Any, NO_THREADS),
            moot("PREFETCH", IgnoredValueKind::Truth, NO_THREADS),
        ],
    ),
    ElementClass {
        make: replay,
        ..passing(
            "ReplayUnqueue",
            "Keeps packets, and sends them round after round.",
            "1-/1-",
            "l/h",
            REPLAYS,
        )
    },
    ElementClass {
        make: replay,
        ..passing(
            "MultiReplayUnqueue",
            "Keeps packets, and sends them round after round.",
            "1-/1-",
            "l/h",
            REPLAYS,
        )
    },
    ElementClass {
        make: round_robin,
        ..passing(
            "RoundRobinSwitch",
            "Sends a packet to each output by turns.",
            "1/1-",
            "h/h",
            &[at("MAX"), moot("SPLITBATCH", IgnoredValueKind::Truth, "a batch is one packet")],
        )
    },
    ElementClass {
        make: through,
        ..passing(
            "PathSpinlock",
            "Passes packets on, from each input to its output.",
            "1-/1-",
            "a/a",
            &[moot("LOCK", IgnoredValueKind::Any, ONE_WORKER_EACH).or_at()],
        )
    },
    information(
        "HandlerAggregate",
        "Says which elements' handlers belong together.",
        &[moot(
            "ELEMENT",
            IgnoredValueKind::Any,
            "it has no handlers here; those of the elements are read one by one",
        )],
    )
    .and(moot(
        "ELEMENT",
        IgnoredValueKind::Any,
        "it has no handlers here; those of the elements are read one by one",
    )),
    information("AddressInfo", "Names addresses.", &[]).and(at("NAME ADDRESS...")),
    information("IPRewriterPatterns", "Names patterns of rewriters.", &[]).and(at("NAME PATTERN")),
    information("ScheduleInfo", "Says how often tasks are run.", &[]).and(moot(
        "ELEMENT PARAM",
        IgnoredValueKind::Any,
        NO_TASKS,
    )),
    information("StaticThreadSched", "Says which thread runs which element.", &[]).and(moot(
        "ELEMENT THREAD",
        IgnoredValueKind::Any,
        NO_THREADS,
    )),
    information(
        "BalancedThreadSched",
        "Moves tasks between threads.",
        &[
            moot("INTERVAL", COUNT, NO_THREADS).or_at(),
            moot("INCREASING", IgnoredValueKind::Truth, NO_THREADS).or_at(),
        ],
    ),
    ElementClass {
        make: driver,
        ..information("DriverManager", "Carries out instructions, and ends the run with them.", &[])
    }
    .and(at("INSTRUCTION")),
    ElementClass {
        make: message,
        ..information(
            "Message",
            "Prints a message when the configuration is read.",
            &[at("MESSAGE"), at("TYPE")],
        )
    },
    information(
        "ControlSocket",
        "Names a socket for READ and WRITE.",
        &[
            moot("READONLY", IgnoredValueKind::Truth, SOCKET),
            refused("PROXY", "handlers are those of the configuration alone"),
            moot("VERBOSE", IgnoredValueKind::Truth, SOCKET),
            moot("RETRIES", NUMBER, SOCKET),
            moot("RETRY_WARNINGS", IgnoredValueKind::Truth, SOCKET),
            moot("LOCALHOST", IgnoredValueKind::Truth, SOCKET),
            moot("TYPE", IgnoredValueKind::Any, SOCKET).or_at(),
            moot("PORT", IgnoredValueKind::Any, SOCKET).or_at(),
            moot("FILENAME", IgnoredValueKind::Any, SOCKET),
            moot("FD", COUNT, SOCKET),
        ],
    ),
    information(
        "ChatterSocket",
        "Names a socket for messages.",
        &[
            moot("TYPE", IgnoredValueKind::Any, MESSAGES).or_at(),
            moot("PORT", IgnoredValueKind::Any, MESSAGES).or_at(),
            moot("FILENAME", IgnoredValueKind::Any, MESSAGES),
            moot("CHANNEL", IgnoredValueKind::Any, MESSAGES),
            moot("QUIET_CHANNEL", IgnoredValueKind::Truth, MESSAGES),
            moot("GREETING", IgnoredValueKind::Truth, MESSAGES),
            moot("RETRIES", NUMBER, MESSAGES),
            moot("RETRY_WARNINGS", IgnoredValueKind::Truth, MESSAGES),
        ],
    ),
    information("DPDKInfo", "Says how much memory DPDK takes.", DPDK_INFO),
    information("ClickyInfo", "Says how a configuration is drawn.", &[]).and(moot(
        "TEXT",
        IgnoredValueKind::Any,
        "it is for programs that draw configurations",
    )),
    information("JiffieClock", "Says how the clock is read.", CLOCK),
    information("TSCClock", "Says how the clock is read.", TSC_CLOCK),
    information(
        "RandomSeed",
        "Says where random numbers begin.",
        &[moot(
            "SEED",
            IgnoredValueKind::Any,
            "random numbers are those of a seed that every run begins with",
        )
        .or_at()],
    ),
    information("AlignmentInfo", "Says where headers lie.", &[]).and(moot(
        "ELEMENT MODULUS OFFSET",
        IgnoredValueKind::Any,
        ANYWHERE,
    )),
];

const NO_MAC: &str = "no element looks at the Ethernet header by its annotation";
const ANYWHERE: &str = "no element needs headers to be aligned";
const MESSAGES: &str = "messages go to standard error";

/// Passes packets to output 0.
struct PassThrough;

impl ElementCodegen for PassThrough {
    fn build(&self, code: &mut ElementBuilder<'_, '_>, _: u32, packet: PacketValues) {
        code.out(0, packet);
    }
}

/// The same; but if stages run on different workers, passes packets on to the next stage, unless several
/// elements pull from it: their turns are counted in front.
struct StageQueue;

impl ElementCodegen for StageQueue {
    fn build(&self, code: &mut ElementBuilder<'_, '_>, port: u32, packet: PacketValues) {
        // Input 1 is that of a `MixedQueue`, whose packets go in front of all others.
        if port == 1 {
            return code.out_in_front(packet);
        }
        match code.next_stage() {
            Some(target) => code.send_to_stage(target, packet),
            None => code.out(0, packet),
        }
    }
}

fn pass(_: &mut ElementSetup<'_>) -> ElementResult {
    Ok(Box::new(PassThrough))
}

/// Offset in the state of the number of packets in a queue, which the queue publishes.
#[derive(Clone, Copy)]
pub(super) struct QueueLength(pub(super) u32);

/// Queues that sources look at before they send.
const FULL_NOTIFIERS: &[&str] = &["Queue", "ThreadSafeQueue", "FullNoteQueue", "QuickNoteQueue"];

/// Classes of queues.
pub(super) const QUEUES: &[&str] = &[
    "Queue",
    "SimpleQueue",
    "ThreadSafeQueue",
    "FullNoteQueue",
    "NotifierQueue",
    "QuickNoteQueue",
    "MixedQueue",
    "FrontDropQueue",
];

/// A queue hands on at once, but to elements of time: else it is empty whenever somebody asks.
fn passes_queue(setup: &mut ElementSetup<'_>) -> ElementResult {
    let said = setup.arguments.next("CAPACITY");
    if setup.is_timed() {
        let usual = SpannedText { text: USUAL_CAPACITY.to_string(), span: setup.element.span };
        let capacity = unsigned(&said.unwrap_or(usual), MOST_CAPACITY)? as i64;
        let capacity = setup.setting("capacity", SettingType::Number(0, MOST_CAPACITY as i64), capacity);
        let [length, highest] = ["length", "highwater_length"].map(|name| setup.counter(name));
        let dropped = setup.number();
        setup.publish(QueueLength(length));
        for name in ["reset", "reset_counts"] {
            setup.resets(name, vec![highest, dropped]);
        }
        if let SettingValue::Live(at) = capacity {
            setup.handler("config", HandlerAccess::Argument("CAPACITY".to_owned(), at));
        }
        let front = setup.element.class == "FrontDropQueue";
        let notifies = FULL_NOTIFIERS.contains(&setup.element.class.as_str());
        let capacity = capacity.into();
        let mixed = setup.element.class == "MixedQueue";
        setup.queue(QueueProperties { capacity, front, notifies, mixed, length, highest, dropped });
        return Ok(Box::new(StageQueue));
    }
    remembered(setup, "capacity", said, USUAL_CAPACITY);
    for name in ["length", "highwater_length"] {
        setup.handler(name, HandlerAccess::Text("0".to_owned()));
    }
    setup.resets("reset", Vec::new());
    setup.resets("reset_counts", Vec::new());
    Ok(Box::new(StageQueue))
}

/// A number that has no effect here, but that a handler reads and, if it may be written, writes: scripts that
/// tune it still run. Text that is not a number is only read.
fn remembered(setup: &mut ElementSetup<'_>, name: &'static str, said: Option<SpannedText>, usual: i64) {
    match said.map_or(Ok(usual as u64), |text| unsigned(&text, i64::MAX as u64).map_err(|_| text)) {
        Ok(number) => drop(setup.setting(name, SettingType::Number(0, i64::MAX), number as i64)),
        Err(text) => setup.handler(name, HandlerAccess::Text(text.text)),
    }
}

/// Passes packets that were pulled, and counts them.
struct UnqueueCounter {
    counter: u32,
}

impl ElementCodegen for UnqueueCounter {
    fn build(&self, code: &mut ElementBuilder<'_, '_>, _: u32, packet: PacketValues) {
        let one = code.int(1);
        code.count(self.counter, one);
        code.out(0, packet);
    }
}

/// Pulls every packet there is; the element has an effect only if it stops pulling.
fn unqueue(setup: &mut ElementSetup<'_>) -> ElementResult {
    let limit = setup.arguments.keyword_or("LIMIT", None, limit)?;
    let active = setup.arguments.keyword_or("ACTIVE", true, boolean)?;
    let limit = limit.map_or(-1, |limit| i64::try_from(limit).unwrap_or(i64::MAX));
    puller(setup, limit, active)
}

/// Pulls up to so many packets (-1: all) while it is active.
fn puller(setup: &mut ElementSetup<'_>, limit: i64, active: bool) -> ElementResult {
    let counter = setup.counter("count");
    if limit < 0 && active && !setup.scripted(&["active", "limit"]) {
        setup.resets("reset", vec![counter]);
        setup.constant("limit", SettingType::Limit, limit);
        setup.constant("active", SettingType::Truth, 1);
        return Ok(Box::new(UnqueueCounter { counter }));
    }
    if !setup.is_timed() {
        return Err(Error::new(setup.element.span, NO_QUEUES));
    }
    let limit = setup.setting("limit", SettingType::Limit, limit);
    let active = setup.setting("active", SettingType::Truth, i64::from(active));
    let base = setup.hidden_setting(0);
    setup.handler("reset", HandlerAccess::Restart { count: counter, base });
    setup.declare_pacing(ShapingPolicy::Upto {
        limit: limit.into(),
        base: TimingParameter::Setting(base),
        active: active.into(),
    });
    setup.require_single_worker("packets that it does not pull wait in one order");
    Ok(Box::new(UnqueueCounter { counter }))
}

/// Shares of the turns among its inputs.
fn tickets(setup: &mut ElementSetup<'_>) -> ElementResult {
    let texts = setup.arguments.rest();
    if texts.len() != setup.inputs as usize {
        let message =
            format!("{} numbers of tickets and {} inputs: there must be one each", texts.len(), setup.inputs);
        return Err(Error::new(setup.element.span, message));
    }
    let mut all = Vec::new();
    for (input, text) in texts.into_iter().enumerate() {
        let tickets = unsigned(&text, i64::MAX as u64)?.min(MOST_TICKETS);
        if tickets == 0 {
            return Err(Error::new(text.span, "nobody would ever pull from an input without tickets"));
        }
        all.push(tickets);
        setup.constant(format!("tickets{input}"), SettingType::Number(0, i64::MAX), tickets as i64);
    }
    setup.tickets(all);
    pass(setup)
}

/// Tickets of an input, at most, as in Click.
const MOST_TICKETS: u64 = 1 << 15;

/// Turns of inputs, of all of them.
fn round_robin_sched(setup: &mut ElementSetup<'_>) -> ElementResult {
    if let Some(text) = setup.arguments.next("MAX")
        && unsigned(&text, u64::from(u32::MAX))? != u64::from(setup.inputs)
    {
        let message =
            format!("nobody would pull from some of {} inputs, or from more than these", setup.inputs);
        return Err(Error::new(text.span, message));
    }
    pass(setup)
}

/// Passes packets from each input to the output of the same number.
struct PortPassThrough;

impl ElementCodegen for PortPassThrough {
    fn build(&self, code: &mut ElementBuilder<'_, '_>, port: u32, packet: PacketValues) {
        code.out(port, packet);
    }
}

fn through(_: &mut ElementSetup<'_>) -> ElementResult {
    Ok(Box::new(PortPassThrough))
}

/// Handlers that make a replay of one round another one.
const REPLAY_WRITES: &[&str] = &["stop", "reset"];

/// Keeps packets, and sends copies of them round after round; a single round needs no copies.
fn replay(setup: &mut ElementSetup<'_>) -> ElementResult {
    let rounds = setup.arguments.keyword_or("STOP", -1, rounds)?;
    let limit = setup.arguments.keyword_or("LIMIT", None, limit)?;
    let percent = setup.arguments.keyword_or("TIMING", 0, speed)?;
    let most_time = setup.arguments.keyword_or("STOP_TIME", 0, round_time)?;
    let active = setup.arguments.keyword_or("ACTIVE", true, boolean)?;
    let is_plain = rounds == 1 && limit.is_none() && percent == 0 && !setup.scripted(REPLAY_WRITES);
    match is_plain {
        true if active && (setup.inputs > 1 || !setup.scripted(&["active"])) => return through(setup),
        true if setup.inputs == 1 => return puller(setup, -1, active),
        _ => {}
    }
    let span = setup.element.span;
    if setup.inputs > 1 {
        return Err(Error::new(
            span,
            "packets of several inputs are not held: give each one a `ReplayUnqueue`",
        ));
    }
    if !setup.is_timed() {
        return Err(Error::new(span, NO_QUEUES));
    }
    let settings = [rounds, i64::from(active), 0].map(|value| setup.hidden_setting(value));
    let [rounds, active, reset] = settings;
    let [loading, dropped] = [0; 2].map(|_| setup.number());
    let ended = setup.calls(&SpannedText { text: "stop".to_owned(), span })?;
    setup.handler("stop", HandlerAccess::Setting(rounds, SettingType::Number(-1, i64::from(i32::MAX))));
    setup.handler("active", HandlerAccess::Setting(active, SettingType::Truth));
    setup.handler("reset", HandlerAccess::Sets(vec![(reset, 1)]));
    setup.handler("loaded", HandlerAccess::IsZero(loading));
    let limit = limit.unwrap_or(u64::MAX);
    setup.declare_pacing(ShapingPolicy::Replay(ReplayNumbers {
        rounds,
        active,
        reset,
        limit,
        percent,
        most_time,
        loading,
        ended,
        dropped,
    }));
    setup.require_single_worker("packets that it keeps are sent in one order");
    Ok(Box::new(PassThrough))
}

/// Nanoseconds of a number of seconds; 0 for any time.
fn round_time(text: &SpannedText) -> Result<u64, Error> {
    match text.text.trim().starts_with('-') {
        true => Ok(0),
        false => Ok(unsigned(text, i32::MAX as u64)? * SECOND),
    }
}

/// Number of rounds; -1 for any number.
fn rounds(text: &SpannedText) -> Result<i64, Error> {
    match text.text.trim() {
        "-1" => Ok(-1),
        _ => Ok(unsigned(text, i32::MAX as u64)? as i64),
    }
}

/// Percent of the packets' own speed; 0, or `false`, is as fast as possible.
fn speed(text: &SpannedText) -> Result<u64, Error> {
    match text.text.trim() {
        "false" => Ok(0),
        _ => unsigned(text, u64::from(u32::MAX)),
    }
}

/// Sends one packet to each output by turns, of the first so many.
struct RoundRobin {
    outputs: u32,
    next: u32,
}

impl ElementCodegen for RoundRobin {
    fn build(&self, code: &mut ElementBuilder<'_, '_>, _: u32, packet: PacketValues) {
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

fn round_robin(setup: &mut ElementSetup<'_>) -> ElementResult {
    let most = u64::from(setup.outputs);
    let outputs = setup.arguments.next("MAX").filter(|text| !text.text.starts_with('-'));
    let outputs = outputs.map_or(Ok(most), |text| unsigned(&text, most))?;
    setup.constant("max", SettingType::Number(0, i64::MAX), outputs as i64);
    Ok(Box::new(RoundRobin { outputs: outputs.max(1) as u32, next: setup.number() }))
}

/// Drops, for a reason.
struct DropPacket {
    reason: &'static str,
    counter: u32,
}

impl ElementCodegen for DropPacket {
    fn build(&self, code: &mut ElementBuilder<'_, '_>, _: u32, packet: PacketValues) {
        let one = code.int(1);
        code.count(self.counter, one);
        code.drop(packet, self.reason);
    }
}

fn discard(setup: &mut ElementSetup<'_>) -> ElementResult {
    let counter = setup.counter("count");
    setup.resets("reset_counts", vec![counter]);
    let active = setup.arguments.keyword_or("ACTIVE", true, boolean)?;
    // Packets that are pushed are dropped in any case.
    if setup.is_pulled() && (!active || setup.scripted(&["active"])) {
        if !setup.is_timed() {
            return Err(Error::new(setup.element.span, NO_QUEUES));
        }
        let active = setup.setting("active", SettingType::Truth, i64::from(active)).into();
        let (limit, base) = (TimingParameter::Fixed(-1), TimingParameter::Fixed(0));
        setup.declare_pacing(ShapingPolicy::Upto { limit, base, active });
        setup.require_single_worker("packets that it does not pull wait in one order");
    } else if setup.is_pulled() {
        setup.constant("active", SettingType::Truth, 1);
    }
    Ok(Box::new(DropPacket { reason: "discarded", counter }))
}

const NO_QUEUES: &str = "what is not pulled waits in a queue, of which there is none in stages and in code for \
    other programs";

fn idle(setup: &mut ElementSetup<'_>) -> ElementResult {
    let counter = setup.number();
    let from = setup.neighbours(&setup.element.name, false);
    let is_behind_queue = from.iter().any(|element| QUEUES.contains(&element.class.as_str()));
    if setup.is_pulled() && setup.is_timed() && is_behind_queue {
        let [limit, base, active] = [TimingParameter::Fixed(0); 3];
        setup.declare_pacing(ShapingPolicy::Upto { limit, base, active });
        setup.require_single_worker("packets that it does not pull wait in one order");
    }
    Ok(Box::new(DropPacket { reason: "idle", counter }))
}

pub(super) fn nothing(setup: &mut ElementSetup<'_>) -> ElementResult {
    // Declarations about other elements are read when these are made.
    setup.arguments.rest();
    Ok(Box::new(PassThrough))
}

/// Says something of the configuration when it is read.
fn message(setup: &mut ElementSetup<'_>) -> ElementResult {
    let text = setup.arguments.need("MESSAGE")?;
    let said = Error::new(setup.element.span, string(&text));
    match setup.arguments.next("TYPE") {
        Some(kind) if kind.text == "ERROR" => return Err(said),
        Some(kind) if kind.text == "WARNING" => setup.warn(said),
        Some(kind) if kind.text != "MESSAGE" => {
            return Err(Error::new(kind.span, "the type of a message is MESSAGE, WARNING or ERROR"));
        }
        _ => setup.warn(said.at_stage(ErrorStage::Configuring(setup.element.declaration().into()))),
    }
    pass(setup)
}

fn driver(setup: &mut ElementSetup<'_>) -> ElementResult {
    let script = read_script(&mut setup.arguments, &setup.element.name, ScriptKind::Driver)?;
    setup.script(script);
    Ok(Box::new(PassThrough))
}

/// Bytes written over a part of packets; bytes behind a packet's end are left out, or the packet grows.
struct StoreData {
    offset: i64,
    data: Vec<u8>,
    /// Bits that are written, of each byte.
    mask: Vec<u8>,
    grow: bool,
}

impl StoreData {
    /// Bytes from `from` to `to` of the data.
    fn put(&self, code: &mut ElementBuilder<'_, '_>, packet: PacketValues, from: usize, to: usize) {
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
    fn short(&self, code: &mut ElementBuilder<'_, '_>, packet: PacketValues) {
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

impl ElementCodegen for StoreData {
    fn build(&self, code: &mut ElementBuilder<'_, '_>, _: u32, packet: PacketValues) {
        let beyond = code.at(packet.data, self.offset + self.data.len() as i64);
        code.check(Cond::Le, beyond, packet.end, |code| self.short(code, packet));
        self.put(code, packet, 0, self.data.len());
        code.out(0, packet);
    }
}

/// Maximum number of bytes of data: each is a separate test if packets may end within them.
const LONGEST_DATA: usize = 1500;

fn store(setup: &mut ElementSetup<'_>) -> ElementResult {
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
    Ok(Box::new(StoreData { offset, data, mask, grow }))
}

/// Sends a copy to each output.
struct Tee {
    outputs: u32,
}

impl ElementCodegen for Tee {
    fn build(&self, code: &mut ElementBuilder<'_, '_>, _: u32, packet: PacketValues) {
        for port in (1..self.outputs).rev() {
            code.fork(port, packet);
        }
        code.out(0, packet);
    }
}

fn tee(setup: &mut ElementSetup<'_>) -> ElementResult {
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
struct OutputSwitch {
    /// Negative to drop them.
    output: SettingValue,
    outputs: u32,
}

impl ElementCodegen for OutputSwitch {
    fn build(&self, code: &mut ElementBuilder<'_, '_>, _: u32, packet: PacketValues) {
        match self.output {
            SettingValue::Fixed(port) => match u32::try_from(port) {
                Ok(port) => code.out(port, packet),
                Err(_) => code.drop(packet, "switched_off"),
            },
            SettingValue::Live(_) => {
                let output = code.setting(self.output);
                for port in 0..self.outputs {
                    code.check_int(Cond::Ne, output, i64::from(port), |code| code.out(port, packet));
                }
                code.drop(packet, "switched_off");
            }
        }
    }
}

fn switch(setup: &mut ElementSetup<'_>) -> ElementResult {
    let last = i64::from(setup.outputs.max(1) - 1);
    let output = match setup.arguments.next("OUTPUT") {
        Some(text) if text.text == "-1" => -1,
        Some(text) => unsigned(&text, last as u64)? as i64,
        None => 0,
    };
    let output = setup.setting("switch", SettingType::Number(-1, last), output);
    Ok(Box::new(OutputSwitch { output, outputs: setup.outputs }))
}

//! Elements that choose an output without looking into headers: at random, by turns, by a hash of bytes, at a
//! rate, or as handlers say.

use millstream_ir::Value;
use millstream_isa::{AluOp, Cond};

use super::span_tree::SpanTreeState;
use millstream_click::arguments::{SECOND, boolean, seconds, unsigned};
use millstream_click::build::ElementBuilder;
use millstream_click::class::{ElementClass, ElementCodegen, ElementResult};
use millstream_click::keyword::{ArgumentSpec, IgnoredValueKind, at, key, moot};
use millstream_click::packet::PacketValues;
use millstream_click::token_rates::{BURST_TWICE, bandwidth, burst_size};
use millstream_click::{ElementSetup, Error, HandlerAccess, SettingType, SettingValue};

const fn switch(
    name: &'static str,
    about: &'static str,
    arguments: &'static [ArgumentSpec],
    make: fn(&mut ElementSetup<'_>) -> ElementResult,
) -> ElementClass {
    ElementClass { ports: "1/1-", processing: "h/h", ..ElementClass::filter(name, about, arguments, make) }
        .passing()
}

const fn splitting(
    name: &'static str,
    about: &'static str,
    arguments: &'static [ArgumentSpec],
    make: fn(&mut ElementSetup<'_>) -> ElementResult,
) -> ElementClass {
    ElementClass { ports: "1/1-2", passes_all: false, ..switch(name, about, arguments, make) }
}

/// Rate and size of a token bucket.
const RATED: &[ArgumentSpec] = &[at("RATE"), key("BURST_DURATION"), key("BURST_SIZE")];
const RATED_BYTES: &[ArgumentSpec] =
    &[at("RATE"), key("BURST_DURATION"), key("BURST_BYTES"), key("BURST_SIZE")];

pub(super) const CLASSES: &[ElementClass] = &[
    switch("RandomSwitch", "Sends packets to outputs by random.", &[], |setup| {
        Ok(Box::new(AtRandom { outputs: setup.outputs }))
    }),
    switch(
        "HashSwitch",
        "Sends packets to outputs by a hash of their bytes.",
        &[at("OFFSET"), at("LENGTH"), key("MAX")],
        hash,
    ),
    switch("StrideSwitch", "Sends packets to outputs as often as each has tickets.", &[], stride)
        .and(at("TICKETS")),
    ElementClass {
        ports: "1-/1-",
        processing: "a/a",
        passes_all: false,
        ..switch("Suppressor", "Passes packets of those inputs that are active.", &[], suppressor)
    },
    ElementClass {
        ports: "1-2/1-2",
        processing: "a/a",
        ..switch(
            "Bypass",
            "Sends packets the other way round while it is active.",
            &[
                at("ACTIVE"),
                moot("INLINE", IgnoredValueKind::Truth, "connections are jumps, with or without it"),
            ],
            bypass,
        )
    },
    splitting("RatedSplitter", "Sends packets beyond a rate to output 1.", RATED, |setup| {
        splitter(setup, false)
    }),
    splitting(
        "BandwidthRatedSplitter",
        "Sends packets beyond a bandwidth to output 1.",
        RATED_BYTES,
        |setup| splitter(setup, true),
    ),
];

/// Bytes that are hashed at most.
const MOST_HASHED: u64 = 256;
/// Stride of one ticket.
const STRIDE: u64 = 1 << 16;
/// Tickets at most.
const MOST_TICKETS: u64 = 1 << 15;
/// A bucket holds the tokens of so many nanoseconds, unless said otherwise.
const USUAL_BURST: u64 = SECOND / 50;
/// Maximum rate in packets or bytes per second, and time whose tokens a bucket holds: these tokens, in
/// microseconds, must fit into a number.
const MOST_RATE: u64 = 1 << 36;
const LONGEST_BURST: u64 = 100 * SECOND;

/// Ends with the packet on the output of this number, or on the first one if it does not exist.
fn out_by(code: &mut ElementBuilder<'_, '_>, packet: PacketValues, number: Value, outputs: u32) {
    for port in 1..outputs {
        code.check_int(Cond::Ne, number, i64::from(port), |code| code.out(port, packet));
    }
    code.out(0, packet);
}

/// Sends packets of input 0 to output 1, if there is one, while it is active; those that come back there go on.
struct BypassSwitch(SettingValue);

fn bypass(setup: &mut ElementSetup<'_>) -> ElementResult {
    let active = setup.arguments.or("ACTIVE", false, boolean)?;
    let active = setup.setting("active", SettingType::Truth, i64::from(active));
    Ok(Box::new(BypassSwitch(active)))
}

impl ElementCodegen for BypassSwitch {
    fn build(&self, code: &mut ElementBuilder<'_, '_>, port: u32, packet: PacketValues) {
        if port == 0 && code.connected(1) {
            let active = code.setting(self.0);
            code.check_int(Cond::Eq, active, 0, |code| code.out(1, packet));
        }
        code.out(0, packet);
    }
}

struct AtRandom {
    outputs: u32,
}

impl ElementCodegen for AtRandom {
    fn build(&self, code: &mut ElementBuilder<'_, '_>, _: u32, packet: PacketValues) {
        let random = code.random();
        let number = code.with(AluOp::Mod, random, i64::from(self.outputs.max(1)));
        out_by(code, packet, number, self.outputs);
    }
}

/// By the sum of bytes, as the peer has it. Packets that are too short leave by output 0.
struct HashSwitch {
    offset: u64,
    length: u64,
    outputs: u32,
}

fn hash(setup: &mut ElementSetup<'_>) -> ElementResult {
    let offset = unsigned(&setup.arguments.need("OFFSET")?, 65_535)?;
    let text = setup.arguments.need("LENGTH")?;
    match unsigned(&text, MOST_HASHED)? {
        0 => Err(Error::new(text.span, "there must be a byte to hash at least")),
        length => {
            let most = u64::from(setup.outputs);
            let outputs = setup.arguments.keyword_or("MAX", most, |text| unsigned(text, most))?;
            Ok(Box::new(HashSwitch { offset, length, outputs: outputs.max(1) as u32 }))
        }
    }
}

impl ElementCodegen for HashSwitch {
    fn build(&self, code: &mut ElementBuilder<'_, '_>, _: u32, packet: PacketValues) {
        let beyond = code.at(packet.data, (self.offset + self.length) as i64);
        code.check(Cond::Le, beyond, packet.end, |code| code.out(0, packet));
        let mut sum = code.int(0);
        for at in self.offset..self.offset + self.length {
            let byte = code.byte(packet.data, at as i32);
            sum = code.add(sum, byte);
        }
        let outputs = i64::from(self.outputs);
        let number = match outputs {
            2 | 4 | 8 => {
                let high = code.with(AluOp::Rsh, sum, 4);
                let mixed = code.alu(AluOp::Xor, sum, high);
                code.with(AluOp::And, mixed, outputs - 1)
            }
            _ => code.with(AluOp::Mod, sum, outputs.max(1)),
        };
        out_by(code, packet, number, self.outputs);
    }
}

/// By turns, in proportion to tickets: the output with the least progress is next; of several, the one that
/// reached it last (stride scheduling: Waldspurger and Weihl, 1995).
struct StrideSwitch {
    clients: Vec<StrideClient>,
    turn: u32,
}

struct StrideClient {
    output: u32,
    tickets: SettingValue,
    /// Offsets of its progress and of the time it reached that.
    noted: [u32; 2],
}

/// Progress of an output without tickets.
const NEVER: i64 = i64::MAX;

fn stride(setup: &mut ElementSetup<'_>) -> ElementResult {
    let all = setup.arguments.rest();
    if all.len() != setup.outputs as usize {
        let message =
            format!("{} numbers of tickets and {} outputs: there must be one each", all.len(), setup.outputs);
        return Err(Error::new(setup.element.span, message));
    }
    let mut clients = Vec::new();
    for (output, text) in (0..).zip(&all) {
        let tickets = unsigned(text, MOST_TICKETS)?;
        let takes = SettingType::Number(0, MOST_TICKETS as i64);
        let tickets = setup.setting(format!("tickets{output}"), takes, tickets as i64);
        if tickets != SettingValue::Fixed(0) {
            clients.push(StrideClient { output, tickets, noted: [setup.number(), setup.number()] });
        }
    }
    Ok(Box::new(StrideSwitch { clients, turn: setup.number() }))
}

impl ElementCodegen for StrideSwitch {
    fn build(&self, code: &mut ElementBuilder<'_, '_>, _: u32, packet: PacketValues) {
        let Some((first, rest)) = self.clients.split_first() else { return code.drop(packet, "no_tickets") };
        let turn = code.get(self.turn);
        let next = code.with(AluOp::Add, turn, 1);
        code.set(self.turn, next);
        let along = |code: &mut ElementBuilder<'_, '_>, client: &StrideClient| {
            let strides = code.get(client.noted[0]);
            // Each begins a stride along.
            let along = match client.tickets {
                SettingValue::Fixed(tickets) => {
                    code.with(AluOp::Add, strides, STRIDE as i64 / tickets.max(1))
                }
                SettingValue::Live(_) => {
                    let (tickets, zero, one) = (code.setting(client.tickets), code.int(0), code.int(1));
                    let none = code.compare(Cond::Eq, tickets, zero);
                    let (divisor, stride) = (code.select(none, one, tickets), code.int(STRIDE as i64));
                    let stride = code.alu(AluOp::Div, stride, divisor);
                    let (along, never) = (code.add(strides, stride), code.int(NEVER));
                    code.select(none, never, along)
                }
            };
            [along, code.get(client.noted[1]), code.int(i64::from(client.output))]
        };
        let mut best = along(code, first);
        for client in rest {
            let other = along(code, client);
            let (less, same, later) = (
                code.compare(Cond::Lt, other[0], best[0]),
                code.compare(Cond::Eq, other[0], best[0]),
                code.compare(Cond::Gt, other[1], best[1]),
            );
            let later = [0, 1, 2].map(|at| code.select(later, other[at], best[at]));
            let same = [0, 1, 2].map(|at| code.select(same, later[at], best[at]));
            best = [0, 1, 2].map(|at| code.select(less, other[at], same[at]));
        }
        if self.clients.iter().any(|client| matches!(client.tickets, SettingValue::Live(_))) {
            code.check_int(Cond::Ne, best[0], NEVER, |code| code.drop(packet, "no_tickets"));
        }
        for StrideClient { output, noted, .. } in &self.clients {
            code.check_int(Cond::Ne, best[2], i64::from(*output), |code| {
                code.set(noted[0], best[0]);
                code.set(noted[1], next);
                code.out(*output, packet);
            });
        }
        code.drop(packet, "no_tickets");
    }
}

/// Passes packets from each input to the output of the same number, unless it is told not to.
struct PacketSuppressor {
    active: Vec<SettingValue>,
}

fn suppressor(setup: &mut ElementSetup<'_>) -> ElementResult {
    let name = |port: u32| format!("active{port}");
    let active: Vec<SettingValue> =
        (0..setup.inputs).map(|port| setup.setting(name(port), SettingType::Truth, 1)).collect();
    let live = active.iter().filter_map(|setting| match setting {
        SettingValue::Live(at) => Some((*at, 1)),
        SettingValue::Fixed(_) => None,
    });
    let live: Vec<(u32, i64)> = live.collect();
    setup.handler("reset", HandlerAccess::Sets(live));
    Ok(Box::new(PacketSuppressor { active }))
}

impl ElementCodegen for PacketSuppressor {
    fn build(&self, code: &mut ElementBuilder<'_, '_>, port: u32, packet: PacketValues) {
        if let Some(active) = self.active.get(port as usize) {
            let active = code.setting(*active);
            code.check_int(Cond::Ne, active, 0, |code| code.drop(packet, "suppressed"));
        }
        if let Some(tree) = code.published::<SpanTreeState>() {
            tree.suppress(code, port, packet);
        }
        code.out(port, packet);
    }
}

/// Passes so many packets or bytes per second to output 0, by a token bucket, and the others to output 1.
struct RatedSplitter {
    /// Tokens a second: a token is a packet or a byte. The bucket counts nanoseconds of these.
    rate: SettingValue,
    /// Nanoseconds that the bucket holds, if it is by time; else tokens.
    burst: BucketCapacity,
    bytes: bool,
    /// Tokens times nanoseconds that are left, and when that was so.
    left: u32,
    since: u32,
    /// Number of packets since the handler `reset` was written, if there is one: that empties the bucket.
    packets: Option<u32>,
}

#[derive(Clone, Copy)]
enum BucketCapacity {
    Nanoseconds(u64),
    Tokens(u64),
}

pub(super) fn splitter(setup: &mut ElementSetup<'_>, bytes: bool) -> ElementResult {
    let text = setup.arguments.need("RATE")?;
    let rate = if bytes { bandwidth(&text)? } else { unsigned(&text, MOST_RATE)? } as i64;
    let duration = setup.arguments.keyword("BURST_DURATION");
    let tokens = burst_size(setup, bytes);
    if let (Some(_), Some(text)) = (&duration, &tokens) {
        return Err(Error::new(text.span, BURST_TWICE));
    }
    let duration = duration.map_or(Ok(USUAL_BURST), |text| seconds(&text))?;
    let burst = match tokens {
        Some(text) => BucketCapacity::Tokens(unsigned(&text, 1 << 32)?),
        None => BucketCapacity::Nanoseconds(duration),
    };
    if let BucketCapacity::Nanoseconds(duration) = burst
        && duration > LONGEST_BURST
    {
        let most = LONGEST_BURST / SECOND;
        return Err(Error::new(setup.element.span, format!("a bucket holds the tokens of {most} s at most")));
    }
    let rate = setup.setting("rate", SettingType::Number(0, MOST_RATE as i64), rate);
    let [left, since] = [setup.number(), setup.number()];
    let packets = setup.is_pulled().then(|| setup.number());
    if let Some(packets) = packets {
        setup.resets("reset", vec![packets]);
    }
    setup.require_clock();
    Ok(Box::new(RatedSplitter { rate, burst, bytes, left, since, packets }))
}

impl ElementCodegen for RatedSplitter {
    fn build(&self, code: &mut ElementBuilder<'_, '_>, _: u32, packet: PacketValues) {
        let second = SECOND as i64;
        let (rate, now, since) = (code.setting(self.rate), code.time(), code.get(self.since));
        // A token takes a second's microseconds by the rate; a bucket that was not looked at for so long is
        // full.
        let passed = code.sub(now, since);
        let most = code.int(LONGEST_BURST as i64);
        let short = code.compare(Cond::Lt, passed, most);
        let passed = code.select(short, passed, most);
        let micros = code.with(AluOp::Div, passed, 1000);
        let came = code.alu(AluOp::Mul, micros, rate);
        let had = code.get(self.left);
        let has = code.add(had, came);
        let room = match self.burst {
            BucketCapacity::Nanoseconds(duration) => {
                let room = code.with(AluOp::Mul, rate, (duration / 1000) as i64);
                // The bucket has room for at least one packet, or none would ever pass.
                let least = code.int(second / 1000);
                let enough = code.compare(Cond::Gt, room, least);
                code.select(enough, room, least)
            }
            BucketCapacity::Tokens(tokens) => code.int(tokens as i64 * (second / 1000)),
        };
        let fits = code.compare(Cond::Slt, has, room);
        let has = code.select(fits, has, room);
        // The bucket is full at first.
        let zero = code.int(0);
        let begins = code.compare(Cond::Eq, since, zero);
        let mut has = code.select(begins, room, has);
        if let Some(packets) = self.packets {
            let (number, one) = (code.get(packets), code.int(1));
            code.count(packets, one);
            let begins = code.select(begins, one, number);
            let is_emptied = code.compare(Cond::Eq, begins, zero);
            has = code.select(is_emptied, zero, has);
        }
        code.set(self.since, now);
        let tokens = if self.bytes { code.length(packet) } else { code.int(1) };
        let cost = code.with(AluOp::Mul, tokens, second / 1000);
        // A packet longer than the bucket passes when that is full, and the rest is owed.
        let is_longer = code.compare(Cond::Gt, cost, room);
        let needed = code.select(is_longer, room, cost);
        code.check(Cond::Sge, has, needed, |code| {
            code.set(self.left, has);
            if code.connected(1) { code.out(1, packet) } else { code.drop(packet, "over_rate") }
        });
        let left = code.sub(has, cost);
        code.set(self.left, left);
        code.out(0, packet);
    }
}

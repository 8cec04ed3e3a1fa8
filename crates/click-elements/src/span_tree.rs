//! `EtherSpanTree`: a bridge's part of the spanning tree. Source: IEEE 802.1D-1998, clauses 8 and 9.
//!
//! The state of ports is the one value of a map. Suppressors and the switch that the element names read it:
//! they stop packets of ports that do not forward, and forget stations when the topology changes. A source
//! that sends every second is the clock; it and every message that is taken end in the same code, which
//! recomputes everything: entries that are too old, the root, the states of ports, messages to send.
//!
//! A port whose message is another bridge's is the root port or blocked; every other port is designated. So a
//! message that ours beats is forgotten at once. Invariant: a map of zeros is a bridge that has just begun,
//! all of whose ports are blocked.

use millstream_ir::{Map, Value};
use millstream_isa::{AluOp, Cond};

use millstream_click::arguments::{SECOND, ether};
use millstream_click::build::ElementBuilder;
use millstream_click::class::{ElementClass, ElementCodegen, ElementResult};
use millstream_click::keyword::at;
use millstream_click::packet::PacketValues;
use millstream_click::{
    ElementSetup, Error, GraphSource, NO_INPUT, SourceSchedule, TableFormat, TableOperation, ether_number,
};

pub(super) const CLASSES: &[ElementClass] = &[ElementClass {
    ports: "1-/1-",
    processing: "h/h",
    ..ElementClass::filter(
        "EtherSpanTree",
        "Is a bridge's part of a spanning tree.",
        &[at("ADDR"), at("INPUT_SUPPRESSOR"), at("OUTPUT_SUPPRESSOR"), at("SWITCH")],
        span_tree,
    )
}];

/// Maximum number of ports: code is generated for each.
const MOST_PORTS: u32 = 16;
/// Priority of the bridge: another one becomes the root, if there is any.
const PRIORITY: i64 = 0xdead;
/// Priority of ports; their numbers count from 1.
const PORT_PRIORITY: i64 = 0x8000;
/// Cost that a port adds to a path.
const PATH_COST: i64 = 1;

/// Bytes of a frame that are looked at: up to the type, and of a whole configuration message; and of one that
/// is sent.
const SHORTEST: i64 = 21;
const WHOLE: i64 = 52;
const FRAME: i64 = 60;
/// Destination, source and 802.3 length; LLC, protocol and version are the same in all.
const ALL_BRIDGES: [u8; 6] = [0x01, 0x80, 0xc2, 0, 0, 0];
const HEAD: [u8; 6] = [0x42, 0x42, 0x03, 0, 0, 0];
const CONFIGURATION: i64 = 0;
const TOPOLOGY_CHANGE: i64 = 0x80;
/// 802.3 lengths of both.
const LENGTHS: [i64; 2] = [38, 7];

/// Nanoseconds of a unit of time in messages, a 256th of a second.
const UNIT: i64 = SECOND as i64 / 256;
/// Maximum age, hello time and forward delay of this bridge, in such units.
const OWN_TIMES: [i64; 3] = [20 * 256, 2 * 256, 15 * 256];
/// No root makes ports forward faster than the standard's least forward delay.
const LEAST_DELAY: i64 = 4 * 256;
/// Between messages out of one port.
const HOLD: i64 = SECOND as i64;
/// Time between hellos, less the possible delay of the clock: a hello is due at the second beat after one.
const HELLO: i64 = 3 * SECOND as i64 / 2;

/// States of ports.
const LEARNING: i64 = 2;
const FORWARDING: i64 = 3;

/// Offsets of the bridge's numbers in the map, 64 bits each: the root port (counted from 1; 0 at the root),
/// the time of the next hello, the time until which the root announces a change, a flag for announcing one to
/// the root and the time to repeat that, a flag for an announcement by another bridge, the port whose message
/// was just taken (from 1), and the time before which the switch forgets stations. Then the root, and the
/// cost of the path to it.
const ROOT_PORT: u32 = 0;
const HELLO_DUE: u32 = 8;
const CHANGING: u32 = 16;
const TELLS: u32 = 24;
const TELL_DUE: u32 = 32;
const TOLD: u32 = 40;
const HEARD: u32 = 48;
const FORGOTTEN: u32 = 56;
const ROOT: u32 = 64;
const COST: u32 = 72;
/// Offset of the first port, and bytes of each.
const PORTS: u32 = 128;
const STRIDE: u32 = 128;
/// Offsets of a port's numbers: its state and since when, a flag for a message of another bridge and this
/// message's priority (root, cost, bridge, port), the time at which the root made it, its times, its flag for
/// a change; a flag for a message to send, the time of the last one sent, and the flag by which it
/// acknowledges a change.
const STATE: u32 = 0;
const SINCE: u32 = 8;
const KNOWN: u32 = 16;
const PRIORITIES: [u32; 4] = [24, 32, 40, 48];
const MADE: u32 = 56;
const TIMES: [u32; 3] = [64, 72, 80];
const CHANGE: u32 = 88;
const SEND: u32 = 96;
const SENT: u32 = 104;
const ACKNOWLEDGE: u32 = 112;

/// State of a spanning tree, as a suppressor or switch that the tree names reads it.
#[derive(Clone, Copy)]
pub(crate) struct SpanTreeState {
    map: Map,
    ports: u32,
    /// Lowest state whose packets a suppressor passes.
    least: i64,
}

impl SpanTreeState {
    /// Drops packets of a port that its state blocks.
    pub(crate) fn suppress(self, code: &mut ElementBuilder<'_, '_>, port: u32, packet: PacketValues) {
        if port < self.ports {
            let state = code.cell(self.map, PORTS + port * STRIDE + STATE);
            let state = code.wide(state, 0);
            code.check_int(Cond::Ge, state, self.least, |code| code.drop(packet, "suppressed"));
        }
    }

    /// Stations that were last seen before this are forgotten.
    pub(crate) fn forgotten(self, code: &mut ElementBuilder<'_, '_>) -> Value {
        let cell = code.cell(self.map, FORGOTTEN);
        code.wide(cell, 0)
    }
}

struct SpanTree {
    map: Map,
    ports: u32,
    address: [u8; 6],
    /// The bridge's identifier.
    own: i64,
}

fn span_tree(setup: &mut ElementSetup<'_>) -> ElementResult {
    let address = ether(&setup.arguments.need("ADDR")?, setup.arguments.names)?;
    let span = setup.element.span;
    let ports = setup.inputs;
    if ports != setup.outputs {
        let message = format!(
            "`EtherSpanTree` has {ports} inputs and {} outputs: a port is one of each",
            setup.outputs
        );
        return Err(Error::new(span, message));
    }
    if ports > MOST_PORTS {
        let message = format!("`EtherSpanTree` has {ports} ports: there may be {MOST_PORTS}");
        return Err(Error::new(span, message));
    }
    let map = setup.cells("tree", PORTS + ports * STRIDE);
    for (argument, class, least) in [
        ("INPUT_SUPPRESSOR", "Suppressor", LEARNING),
        ("OUTPUT_SUPPRESSOR", "Suppressor", FORWARDING),
        ("SWITCH", "EtherSwitch", FORWARDING),
    ] {
        follow(setup, argument, class, SpanTreeState { map, ports, least })?;
    }
    let form = TableFormat::Bridge { ports };
    let name = setup.element.name.clone() + ".tree";
    setup.table_handlers(&name, form, &[("msgs", TableOperation::List)]);
    setup.require_single_worker("it keeps the state of all ports together");
    let limit = match setup.is_timed() {
        true => {
            setup.declare_schedule(SourceSchedule::Rate(1));
            None
        }
        false => {
            let message =
                "`EtherSpanTree` has no time to go by: it sends nothing, and its ports stay blocked";
            setup.warn(Error::new(span, message));
            Some(0)
        }
    };
    setup.source_at(NO_INPUT, GraphSource::Constant(vec![0; FRAME as usize], limit));
    Ok(Box::new(SpanTree { map, ports, address, own: PRIORITY << 48 | ether_number(address) }))
}

/// Lets an element go by the tree.
fn follow(
    setup: &mut ElementSetup<'_>,
    argument: &str,
    class: &str,
    tree: SpanTreeState,
) -> Result<(), Error> {
    let text = setup.arguments.need(argument)?;
    let name = setup.needed(&text, &format!("`{class}`"), &[class])?.name.clone();
    match setup.publish_for(&name, tree) {
        true => Ok(()),
        false => Err(Error::new(text.span, format!("`{name}` goes by a spanning tree already"))),
    }
}

/// Truths as numbers: 64 bits wide, 0 or 1.
trait TruthNumbers {
    /// The truth of a comparison.
    fn bit(&mut self, cond: Cond, a: Value, b: Value) -> Value;
    /// As [`Self::bit`], with a constant.
    fn is(&mut self, cond: Cond, a: Value, b: i64) -> Value;
    /// The opposite.
    fn not(&mut self, a: Value) -> Value;
    /// 1 if both are.
    fn both(&mut self, a: Value, b: Value) -> Value;
    /// 1 if one is.
    fn either(&mut self, a: Value, b: Value) -> Value;
    /// One of two numbers.
    fn pick(&mut self, bit: Value, yes: Value, no: Value) -> Value;
    /// Returns 1 if the numbers come before the others; the first that differs decides.
    fn before(&mut self, a: [Value; 4], b: [Value; 4]) -> Value;
    /// 64 bits of the packet.
    fn identifier(&mut self, base: Value, offset: i32) -> Value;
    /// Writes 64 bits of the packet.
    fn set_identifier(&mut self, base: Value, offset: i32, value: Value);
}

impl TruthNumbers for ElementBuilder<'_, '_> {
    fn bit(&mut self, cond: Cond, a: Value, b: Value) -> Value {
        let (truth, one, zero) = (self.compare(cond, a, b), self.int(1), self.int(0));
        self.select(truth, one, zero)
    }

    fn is(&mut self, cond: Cond, a: Value, b: i64) -> Value {
        let b = self.int(b);
        self.bit(cond, a, b)
    }

    fn not(&mut self, a: Value) -> Value {
        self.with(AluOp::Xor, a, 1)
    }

    fn both(&mut self, a: Value, b: Value) -> Value {
        self.alu(AluOp::And, a, b)
    }

    fn either(&mut self, a: Value, b: Value) -> Value {
        self.alu(AluOp::Or, a, b)
    }

    fn pick(&mut self, bit: Value, yes: Value, no: Value) -> Value {
        let zero = self.int(0);
        let truth = self.compare(Cond::Ne, bit, zero);
        self.select(truth, yes, no)
    }

    fn before(&mut self, a: [Value; 4], b: [Value; 4]) -> Value {
        let mut less = self.int(0);
        for (a, b) in a.into_iter().zip(b).rev() {
            let (lower, equal) = (self.bit(Cond::Lt, a, b), self.bit(Cond::Eq, a, b));
            less = self.pick(equal, less, lower);
        }
        less
    }

    fn identifier(&mut self, base: Value, offset: i32) -> Value {
        let (high, low) = (self.word(base, offset), self.word(base, offset + 4));
        let high = self.with(AluOp::Lsh, high, 32);
        self.alu(AluOp::Or, high, low)
    }

    fn set_identifier(&mut self, base: Value, offset: i32, value: Value) {
        let high = self.with(AluOp::Rsh, value, 32);
        self.set_word(base, offset, high);
        self.set_word(base, offset + 4, value);
    }
}

/// Result of the election by the messages of the ports.
struct RootElection {
    root: Value,
    cost: Value,
    /// The root port, counted from 1; 0 if this is the root.
    port: Value,
    /// When the root made the message.
    made: Value,
    /// The root's maximum age, hello time and forward delay.
    times: [Value; 3],
    /// True if the root announces a change.
    change: Value,
}

impl SpanTree {
    fn get(&self, code: &mut ElementBuilder<'_, '_>, at: u32) -> Value {
        let cell = code.cell(self.map, at);
        code.wide(cell, 0)
    }

    fn set(&self, code: &mut ElementBuilder<'_, '_>, at: u32, value: Value) {
        let cell = code.cell(self.map, at);
        code.set_wide(cell, 0, value);
    }

    /// A port's identifier.
    fn identifier(port: u32) -> i64 {
        PORT_PRIORITY | i64::from(port + 1)
    }

    /// Takes a message that arrives at a port.
    fn take(&self, code: &mut ElementBuilder<'_, '_>, port: u32, packet: PacketValues) {
        let (at, data) = (PORTS + port * STRIDE, packet.data);
        code.need(packet, data, SHORTEST, "too_short");
        let (link, control, protocol) = (code.half(data, 14), code.byte(data, 16), code.half(data, 17));
        code.check_int(Cond::Eq, link, 0x4242, |code| code.drop(packet, "not_bpdu"));
        code.check_int(Cond::Eq, control, 3, |code| code.drop(packet, "not_bpdu"));
        code.check_int(Cond::Eq, protocol, 0, |code| code.drop(packet, "not_bpdu"));
        let (kind, length) = (code.byte(data, 20), code.half(data, 12));
        let known = self.get(code, at + KNOWN);
        code.check_int(Cond::Eq, kind, CONFIGURATION, |code| {
            code.check_int(Cond::Eq, kind, TOPOLOGY_CHANGE, |code| code.drop(packet, "unknown_type"));
            code.check_int(Cond::Ge, length, LENGTHS[1], |code| code.drop(packet, "too_short"));
            // It is for the designated bridge.
            code.check_int(Cond::Eq, known, 0, |code| code.drop(packet, "not_designated"));
            let one = code.int(1);
            self.set(code, TOLD, one);
            self.set(code, at + ACKNOWLEDGE, one);
            self.set(code, at + SEND, one);
            self.settled(code, packet);
        });
        code.check_int(Cond::Ge, length, LENGTHS[0], |code| code.drop(packet, "too_short"));
        code.need(packet, data, WHOLE, "too_short");
        let priorities =
            [code.identifier(data, 22), code.word(data, 30), code.identifier(data, 34), code.half(data, 42)];
        let (age, times) = (code.half(data, 44), [46, 48, 50].map(|offset| code.half(data, offset)));
        code.check(Cond::Lt, age, times[0], |code| code.drop(packet, "stale"));
        // No path adds to such a cost.
        code.check_int(Cond::Lt, priorities[1], 0xffff_ffff, |code| code.drop(packet, "bad_cost"));
        let own = code.is(Cond::Eq, priorities[2], self.own);
        let same = code.is(Cond::Eq, priorities[3], Self::identifier(port));
        let looped = code.both(own, same);
        code.check_int(Cond::Eq, looped, 0, |code| code.drop(packet, "own"));
        // As good a message is a newer one, and so is one from another port of that bridge.
        let had = PRIORITIES.map(|field| self.get(code, at + field));
        let zero = code.int(0);
        let compared = |code: &mut ElementBuilder<'_, '_>, [root, cost, bridge, id]: [Value; 4]| {
            [root, cost, bridge, code.pick(own, id, zero)]
        };
        let (new, old) = (compared(code, priorities), compared(code, had));
        let inferior = code.before(old, new);
        let inferior = code.both(inferior, known);
        code.check_int(Cond::Eq, inferior, 0, |code| code.drop(packet, "inferior"));
        self.record(code, port, packet, (priorities, age, times));
        self.settled(code, packet);
    }

    /// Notes a port's message.
    fn record(
        &self,
        code: &mut ElementBuilder<'_, '_>,
        port: u32,
        packet: PacketValues,
        (priorities, age, times): ([Value; 4], Value, [Value; 3]),
    ) {
        let at = PORTS + port * STRIDE;
        for (field, value) in PRIORITIES.into_iter().zip(priorities).chain(TIMES.into_iter().zip(times)) {
            self.set(code, at + field, value);
        }
        let (now, age, flags) = (code.time(), code.with(AluOp::Mul, age, UNIT), code.byte(packet.data, 21));
        let (made, change) = (code.sub(now, age), code.with(AluOp::And, flags, 1));
        let acknowledged = code.with(AluOp::Rsh, flags, 7);
        let (one, number) = (code.int(1), code.int(i64::from(port + 1)));
        self.set(code, at + MADE, made);
        self.set(code, at + CHANGE, change);
        self.set(code, at + KNOWN, one);
        self.set(code, HEARD, number);
        let root_port = self.get(code, ROOT_PORT);
        let from_root = code.bit(Cond::Eq, root_port, number);
        let acknowledged = code.both(acknowledged, from_root);
        let (tells, zero) = (self.get(code, TELLS), code.int(0));
        let tells = code.pick(acknowledged, zero, tells);
        self.set(code, TELLS, tells);
    }

    /// Ends with a packet that has a frame's length and from which copies are sent.
    fn settled(&self, code: &mut ElementBuilder<'_, '_>, packet: PacketValues) {
        let end = code.int(SHORTEST);
        let end = code.end(packet.data, end);
        let more = code.int(FRAME - SHORTEST);
        let packet = code.lengthened(packet.bounded(packet.data, end), more);
        let block = code.input_block(NO_INPUT);
        code.jump(block, &packet.values());
    }

    fn settle(&self, code: &mut ElementBuilder<'_, '_>, packet: PacketValues) {
        code.need(packet, packet.data, FRAME, "too_short");
        let now = code.time();
        self.expire(code, now);
        let elected = self.elect(code);
        let delay = self.delay(code, &elected);
        let mut changed = code.int(0);
        for port in 0..self.ports {
            let moved = self.decide(code, port, (&elected, now, delay));
            changed = code.either(changed, moved);
        }
        let tells_change = self.tell(code, &elected, changed, (now, delay));
        self.send(code, packet, (&elected, now, tells_change));
        code.drop(packet, "processed");
    }

    /// Forgets messages that are too old.
    fn expire(&self, code: &mut ElementBuilder<'_, '_>, now: Value) {
        for at in (0..self.ports).map(|port| PORTS + port * STRIDE) {
            let (known, made, most) =
                (self.get(code, at + KNOWN), self.get(code, at + MADE), self.get(code, at + TIMES[0]));
            let (age, most) = (code.sub(now, made), code.with(AluOp::Mul, most, UNIT));
            let young = code.bit(Cond::Lt, age, most);
            let known = code.both(known, young);
            self.set(code, at + KNOWN, known);
        }
    }

    /// The best way to the best root: 8.6.8.
    fn elect(&self, code: &mut ElementBuilder<'_, '_>) -> RootElection {
        let (own, zero) = (code.int(self.own), code.int(0));
        let mut best = [own, zero, own, zero];
        let times = OWN_TIMES.map(|time| code.int(time));
        let mut elected = RootElection { root: own, cost: zero, port: zero, made: zero, times, change: zero };
        for port in 0..self.ports {
            let at = PORTS + port * STRIDE;
            let mut offered = PRIORITIES.map(|field| self.get(code, at + field));
            offered[1] = code.with(AluOp::Add, offered[1], PATH_COST);
            // A message of another port of this bridge leads to no root.
            let (known, other) = (self.get(code, at + KNOWN), code.bit(Cond::Ne, offered[2], own));
            let better = code.before(offered, best);
            let better = code.both(better, known);
            let better = code.both(better, other);
            best = std::array::from_fn(|at| code.pick(better, offered[at], best[at]));
            let number = code.int(i64::from(port + 1));
            elected.port = code.pick(better, number, elected.port);
            for (elected, field) in [(&mut elected.made, MADE), (&mut elected.change, CHANGE)]
                .into_iter()
                .chain(elected.times.iter_mut().zip(TIMES))
            {
                let new = self.get(code, at + field);
                *elected = code.pick(better, new, *elected);
            }
        }
        (elected.root, elected.cost) = (best[0], best[1]);
        self.set(code, ROOT, best[0]);
        self.set(code, COST, best[1]);
        elected
    }

    /// Nanoseconds that a port listens, and then learns.
    fn delay(&self, code: &mut ElementBuilder<'_, '_>, elected: &RootElection) -> Value {
        let least = code.int(LEAST_DELAY);
        let enough = code.bit(Cond::Gt, elected.times[2], least);
        let delay = code.pick(enough, elected.times[2], least);
        code.with(AluOp::Mul, delay, UNIT)
    }

    /// New role of a port: 8.6.9 and 8.6.11. Reports whether that changes the topology.
    fn decide(
        &self,
        code: &mut ElementBuilder<'_, '_>,
        port: u32,
        (elected, now, delay): (&RootElection, Value, Value),
    ) -> Value {
        let at = PORTS + port * STRIDE;
        let heard = PRIORITIES.map(|field| self.get(code, at + field));
        let (own, id) = (code.int(self.own), code.int(Self::identifier(port)));
        let beaten = code.before([elected.root, elected.cost, own, id], heard);
        let (known, send) = (self.get(code, at + KNOWN), self.get(code, at + SEND));
        // A sender whose message ours beats is to hear ours.
        let beaten = code.both(beaten, known);
        let send = code.either(send, beaten);
        self.set(code, at + SEND, send);
        let known = code.alu(AluOp::Xor, known, beaten);
        self.set(code, at + KNOWN, known);
        let (designated, root) = (code.not(known), code.is(Cond::Eq, elected.port, i64::from(port + 1)));
        let wanted = code.either(designated, root);
        let (state, since) = (self.get(code, at + STATE), self.get(code, at + SINCE));
        let passed = code.sub(now, since);
        let (long, early) = (code.bit(Cond::Ge, passed, delay), code.is(Cond::Lt, state, FORWARDING));
        let blocked = code.is(Cond::Eq, state, 0);
        let step = code.both(long, early);
        let step = code.either(step, blocked);
        let (next, zero) = (code.add(state, step), code.int(0));
        let next = code.pick(wanted, next, zero);
        let moved = code.bit(Cond::Ne, next, state);
        let since = code.pick(moved, now, since);
        self.set(code, at + STATE, next);
        self.set(code, at + SINCE, since);
        let forwards = code.is(Cond::Eq, next, FORWARDING);
        let begins = code.both(moved, forwards);
        let (ends, learnt) = (code.not(wanted), code.is(Cond::Ge, state, LEARNING));
        let ends = code.both(ends, learnt);
        code.either(begins, ends)
    }

    /// Changes of the topology: 8.6.12 to 8.6.16. Reports whether messages announce one.
    fn tell(
        &self,
        code: &mut ElementBuilder<'_, '_>,
        elected: &RootElection,
        changed: Value,
        (now, delay): (Value, Value),
    ) -> Value {
        let (zero, before, told) = (code.int(0), self.get(code, ROOT_PORT), self.get(code, TOLD));
        let (root, was_root) = (code.is(Cond::Eq, elected.port, 0), code.is(Cond::Eq, before, 0));
        self.set(code, ROOT_PORT, elected.port);
        self.set(code, TOLD, zero);
        let until = self.get(code, CHANGING);
        let running = code.bit(Cond::Lt, now, until);
        let (lost, became) = (code.both(was_root, running), code.not(was_root));
        let turned = code.pick(root, became, lost);
        let changed = code.either(changed, told);
        let changed = code.either(changed, turned);
        // The root tells everybody for a while.
        let long = code.with(AluOp::Add, now, (OWN_TIMES[0] + OWN_TIMES[2]) * UNIT);
        let until = code.pick(changed, long, until);
        let until = code.pick(root, until, zero);
        self.set(code, CHANGING, until);
        // Others tell the root until that is acknowledged.
        let (told_before, other) = (self.get(code, TELLS), code.not(root));
        let tells = code.either(told_before, changed);
        let tells = code.both(tells, other);
        let due = self.get(code, TELL_DUE);
        let due = code.pick(told_before, due, zero);
        self.set(code, TELLS, tells);
        self.set(code, TELL_DUE, due);
        // At once where it has become the root.
        let (hello, at_once) = (self.get(code, HELLO_DUE), code.both(root, became));
        let hello = code.pick(at_once, zero, hello);
        self.set(code, HELLO_DUE, hello);
        let own = code.bit(Cond::Lt, now, until);
        let tells_change = code.pick(root, own, elected.change);
        // During a change, stations are known for no longer than the forward delay.
        let (forgotten, old) = (self.get(code, FORGOTTEN), code.sub(now, delay));
        let positive = code.bit(Cond::Gt, now, delay);
        let later = code.bit(Cond::Gt, old, forgotten);
        let forgets = code.both(positive, later);
        let forgets = code.both(forgets, tells_change);
        let forgotten = code.pick(forgets, old, forgotten);
        self.set(code, FORGOTTEN, forgotten);
        tells_change
    }

    /// Sends the messages that are due: 8.6.1, 8.6.4 and 8.6.6.
    fn send(
        &self,
        code: &mut ElementBuilder<'_, '_>,
        packet: PacketValues,
        (elected, now, tells_change): (&RootElection, Value, Value),
    ) {
        let (zero, next) = (code.int(0), code.with(AluOp::Add, now, HELLO));
        let (root, hello) = (code.is(Cond::Eq, elected.port, 0), self.get(code, HELLO_DUE));
        let due = code.bit(Cond::Ge, now, hello);
        let due = code.both(due, root);
        let hello = code.pick(due, next, hello);
        self.set(code, HELLO_DUE, hello);
        // Messages from the root go on.
        let heard = self.get(code, HEARD);
        let (any, from_root) = (code.not(root), code.bit(Cond::Eq, heard, elected.port));
        let relayed = code.both(any, from_root);
        self.set(code, HEARD, zero);
        let all = code.either(due, relayed);
        // A message that goes on is older by some time at least.
        let age = code.sub(now, elected.made);
        let age = code.with(AluOp::Div, age, UNIT);
        let age = code.with(AluOp::Add, age, 1);
        let age = code.pick(root, zero, age);
        let young = code.bit(Cond::Lt, age, elected.times[0]);
        for port in 0..self.ports {
            let at = PORTS + port * STRIDE;
            let (known, wanted) = (self.get(code, at + KNOWN), self.get(code, at + SEND));
            let designated = code.not(known);
            let wanted = code.either(wanted, all);
            let wanted = code.both(wanted, designated);
            let wanted = code.both(wanted, young);
            let sent = self.get(code, at + SENT);
            let rest = code.sub(now, sent);
            let rested = code.is(Cond::Ge, rest, HOLD);
            let goes = code.both(wanted, rested);
            let waits = code.alu(AluOp::Xor, wanted, goes);
            let sent = code.pick(goes, now, sent);
            self.set(code, at + SEND, waits);
            self.set(code, at + SENT, sent);
            code.when(Cond::Ne, goes, zero, &[], |code| {
                self.configuration(code, port, packet, (elected, age, tells_change));
                self.set(code, at + ACKNOWLEDGE, zero);
                Vec::new()
            });
        }
        let (tells, due) = (self.get(code, TELLS), self.get(code, TELL_DUE));
        let is_due = code.bit(Cond::Ge, now, due);
        let goes = code.both(tells, is_due);
        let due = code.pick(goes, next, due);
        self.set(code, TELL_DUE, due);
        for port in 0..self.ports {
            let own = code.is(Cond::Eq, elected.port, i64::from(port + 1));
            let goes = code.both(goes, own);
            code.when(Cond::Ne, goes, zero, &[], |code| {
                self.frame(code, port, packet, TOPOLOGY_CHANGE, |_, _| {});
                Vec::new()
            });
        }
    }

    /// Sends a configuration message out of a port.
    fn configuration(
        &self,
        code: &mut ElementBuilder<'_, '_>,
        port: u32,
        packet: PacketValues,
        (elected, age, change): (&RootElection, Value, Value),
    ) {
        let acknowledges = self.get(code, PORTS + port * STRIDE + ACKNOWLEDGE);
        let acknowledges = code.with(AluOp::Lsh, acknowledges, 7);
        let flags = code.either(acknowledges, change);
        let (own, id) = (code.int(self.own), code.int(Self::identifier(port)));
        self.frame(code, port, packet, CONFIGURATION, |code, data| {
            code.set_byte(data, 21, flags);
            code.set_identifier(data, 22, elected.root);
            code.set_word(data, 30, elected.cost);
            code.set_identifier(data, 34, own);
            for (value, offset) in [id, age].into_iter().chain(elected.times).zip([42, 44, 46, 48, 50]) {
                code.set_half(data, offset, value);
            }
        });
    }

    /// Sends a frame of this type out of a port, which `fill` writes the rest of.
    fn frame(
        &self,
        code: &mut ElementBuilder<'_, '_>,
        port: u32,
        packet: PacketValues,
        kind: i64,
        fill: impl FnOnce(&mut ElementBuilder<'_, '_>, Value),
    ) {
        let Some(target) = code.target(port) else { return };
        let length = LENGTHS[usize::from(kind == TOPOLOGY_CHANGE)] as u16;
        let mut bytes =
            [&ALL_BRIDGES[..], &self.address, &length.to_be_bytes(), &HEAD, &[kind as u8]].concat();
        bytes.resize(FRAME as usize, 0);
        code.fork_to(target, packet, |code, copy| {
            code.write(copy.data, 0, &bytes);
            fill(code, copy.data);
            copy
        });
    }
}

/// State of a bridge with so many ports, from its map's value: a line per port, with the message that decides
/// its role if that is another bridge's (bridge and port, flag for a change, cost and root, maximum age,
/// hello time and forward delay in seconds); then the root, the cost of the path to it, and the root port.
pub fn bridge_text(value: &[u8], ports: u32) -> String {
    let number = |at: u32| {
        let bytes = value.get(at as usize..).and_then(|rest| rest.first_chunk());
        bytes.map_or(0, |bytes| u64::from_le_bytes(*bytes))
    };
    let mut text = String::new();
    for port in 0..ports {
        let field = |field: u32| number(PORTS + port * STRIDE + field);
        let state = ["blocked", "listening", "learning", "forwarding"].get(field(STATE) as usize);
        let message = match field(KNOWN) {
            0 => "designated".to_owned(),
            _ => {
                let [root, cost, bridge, id] = PRIORITIES.map(field);
                let [age, hello, delay] = TIMES.map(|time| field(time) as f64 / 256.0);
                let change = if field(CHANGE) == 0 { "tc" } else { "TC" };
                format!("{bridge:016x}:{id:04x} {change} {cost} -> {root:016x} {age}/{hello}/{delay}")
            }
        };
        text += &format!("{port} {} {message}\n", state.copied().unwrap_or_default());
    }
    let port = number(ROOT_PORT).checked_sub(1).map_or("-".to_owned(), |port| port.to_string());
    text + &format!("root {:016x} cost {} port {port}", number(ROOT), number(COST))
}

impl ElementCodegen for SpanTree {
    fn build(&self, code: &mut ElementBuilder<'_, '_>, port: u32, packet: PacketValues) {
        match port {
            NO_INPUT => self.settle(code, packet),
            _ => self.take(code, port, packet),
        }
    }
}

//! Address and port translation: `IPRewriter` and its kin. Source: RFC 2663, RFC 1624.
//!
//! A flow has two entries in a table, one a direction, by addresses, ports and protocol as they arrive: what they become, what that adds
//! to the checksums, where the packet leaves, and when the last one came. Time is looked at when a packet comes: an entry whose
//! time has run out, and whose other direction's has, too, is as if it were not there. The table is one that evicts what was not
//! used lately, so that it is never full.
//!
//! Addresses and ports are handled as they lie in memory.

mod spec;

use millstream_ir::{Block, Size, Value};
use millstream_isa::{AluOp, Cond};

use self::spec::{Choice, Pattern, Spec, spec};
use super::ip::{header, header_length};
use super::{SECOND, seconds};
use crate::arguments::{ip, unsigned};
use crate::build::{Code, EEXIST, Table};
use crate::class::{Behaviour, Class, Made};
use crate::compile::Setup;
use crate::error::Error;
use crate::packet::{Note, Packet};

const TCP: i64 = 6;
const UDP: i64 = 17;
/// Entries unless said otherwise: 65,536 flows.
const USUAL_ENTRIES: u64 = 1 << 17;
/// When entries are old, in seconds: of UDP, of TCP, of TCP that has ended.
const USUAL_TIMEOUTS: [(&str, u64); 3] =
    [("UDP_TIMEOUT", 300), ("TCP_TIMEOUT", 86_400), ("TCP_DONE_TIMEOUT", 240)];
/// Addresses, ports, protocol.
const KEY: [Size; 3] = [Size::Dw, Size::W, Size::W];
/// What an entry says ([`Entry`]), flags, when the last packet came.
const FLOW: [Size; 7] = [Size::Dw, Size::W, Size::W, Size::W, Size::H, Size::H, Size::Dw];
/// In an entry's flags: this direction has ended.
const DONE: i64 = 1;

const ARGUMENTS: &[&str] = &[
    "TIMEOUT",
    "UDP_TIMEOUT",
    "TCP_TIMEOUT",
    "TCP_DONE_TIMEOUT",
    "MAPPING_CAPACITY",
    "CAPACITY",
    "TCP_NODATA_TIMEOUT",
    "UDP_STREAMING_TIMEOUT",
    "GUARANTEE",
    "TCP_GUARANTEE",
    "UDP_GUARANTEE",
    "REAP_INTERVAL",
    "REAP_TIME",
    "DST_ANNO",
    "REPLY_ANNO",
    "USE_CACHE",
    "SET_AGGREGATE",
    "HANDLE_MIGRATION",
];
/// Guarantees, streams, how often is tidied up: they make no difference here.
const IGNORED: &[&str] = ARGUMENTS.split_at(6).1;

/// Of `FlowIPNAT`: the address; whether TCP may begin without a SYN, whether it follows TCP's states.
const TRANSLATED: &[&str] = &["SIP", "ACCEPT_NONSYN", "STATE"];
/// The ports that it gives out, the first and how many more.
const TRANSLATED_PORTS: (u16, u16) = (1024, 64_511);

const fn class(name: &'static str, make: fn(&mut Setup<'_>) -> Made) -> Class {
    Class {
        name,
        ports: "1-/1-",
        processing: "h/h",
        arguments: ARGUMENTS,
        ignored: IGNORED,
        passes_all: false,
        make,
    }
}

pub(super) const CLASSES: &[Class] = &[
    class("IPRewriter", |setup| rewriter(setup, &[TCP, UDP])),
    class("TCPRewriter", |setup| rewriter(setup, &[TCP])),
    class("UDPRewriter", |setup| rewriter(setup, &[TCP, UDP])),
    Class {
        processing: "h/h",
        ..Class::filter("FlowIPNAT", TRANSLATED, translator).ignoring(TRANSLATED.split_at(1).1)
    },
];

struct Rewriter {
    flows: Table,
    protocols: &'static [i64],
    inputs: Vec<Spec>,
    outputs: u32,
    /// Nanoseconds after which entries are old: of UDP, of TCP, of TCP that has ended.
    timeouts: [u64; 3],
}

fn rewriter(setup: &mut Setup<'_>, protocols: &'static [i64]) -> Made {
    let all = setup.arguments.keyword("TIMEOUT").map(|text| seconds(&text)).transpose()?;
    let mut timeouts = [0; 3];
    for (timeout, (name, usual)) in timeouts.iter_mut().zip(USUAL_TIMEOUTS) {
        *timeout = setup.arguments.keyword_or(name, all.unwrap_or(usual * SECOND), seconds)?;
    }
    let mut entries = USUAL_ENTRIES;
    for name in ["CAPACITY", "MAPPING_CAPACITY"] {
        let flows = setup.arguments.keyword_or(name, entries / 2, |text| unsigned(text, 1 << 28))?;
        entries = (2 * flows).max(2);
    }
    let specs = setup.arguments.rest();
    if specs.len() != setup.inputs as usize {
        let message =
            format!("{} specifications and {} inputs: there must be one each", specs.len(), setup.inputs);
        return Err(Error::new(setup.arguments.span(), message));
    }
    let inputs =
        specs.iter().enumerate().map(|(at, text)| spec(setup, at, text)).collect::<Result<_, _>>()?;
    let flows = setup.evicting_table("flows", &KEY, &FLOW, 0, entries as u32);
    Ok(Box::new(Rewriter { flows, protocols, inputs, outputs: setup.outputs, timeouts }))
}

/// Each flow from one address, its port the one behind the last that was given out.
fn translator(setup: &mut Setup<'_>) -> Made {
    let source = ip(&setup.arguments.need("SIP")?, setup.arguments.names)?;
    let next = setup.number();
    let source_port = Some(TRANSLATED_PORTS);
    let pattern =
        Pattern { source: Some(source), source_port, choice: Choice::Next, next, ..Pattern::default() };
    let flows = setup.evicting_table("flows", &KEY, &FLOW, 0, USUAL_ENTRIES as u32);
    let inputs = vec![Spec::Flow { pattern, outputs: [0, 0] }];
    let timeouts = USUAL_TIMEOUTS.map(|(_, seconds)| seconds * SECOND);
    Ok(Box::new(Rewriter { flows, protocols: &[TCP, UDP], inputs, outputs: setup.outputs, timeouts }))
}

/// Addresses and ports of a flow, each pair as it lies in memory.
#[derive(Clone, Copy)]
struct Flow {
    addresses: Value,
    ports: Value,
}

/// Halves exchanged: the flow of the answers.
fn reversed(code: &mut Code<'_, '_>, flow: Flow) -> Flow {
    let half = |code: &mut Code<'_, '_>, pair, bits: i64| {
        let (high, low) = (code.with(AluOp::Rsh, pair, bits), code.with(AluOp::And, pair, (1 << bits) - 1));
        let low = code.with(AluOp::Lsh, low, bits);
        code.alu(AluOp::Or, high, low)
    };
    Flow { addresses: half(code, flow.addresses, 32), ports: half(code, flow.ports, 16) }
}

/// A packet on its way through the element.
struct Passage {
    packet: Packet,
    header: Value,
    transport: Value,
    protocol: Value,
    now: Value,
    /// Where packets are changed; its parameters are [`Entry`]'s.
    apply: Block,
}

/// What an entry says.
struct Entry {
    to: Flow,
    /// What is added to the checksums of IP, and of TCP or UDP.
    sums: [Value; 2],
    output: Value,
}

impl Entry {
    fn values(&self) -> [Value; 5] {
        [self.to.addresses, self.to.ports, self.sums[0], self.sums[1], self.output]
    }

    fn of(values: &[Value]) -> Entry {
        let to = Flow { addresses: values[0], ports: values[1] };
        Entry { to, sums: [values[2], values[3]], output: values[4] }
    }
}

impl Behaviour for Rewriter {
    fn build(&self, code: &mut Code<'_, '_>, port: u32, packet: Packet) {
        let spec = self.inputs.get(port as usize).copied().unwrap_or(Spec::Drop);
        let header = header(code, packet);
        let protocol = code.byte(header, 9);
        let foreign = code.block();
        self.ours(code, packet, header, protocol, foreign);
        let length = header_length(code, header);
        let transport = code.plus(header, length);
        let apply = code.block();
        let now = code.time();
        let passage = Passage { packet, header, transport, protocol, now, apply };
        let flow = Flow { addresses: code.raw(8, header, 12), ports: code.raw(4, transport, 0) };
        let missing = code.block();
        self.known(code, &passage, flow, missing);
        code.go(missing);
        match spec {
            Spec::Drop => code.drop(packet, "no_mapping"),
            Spec::Pass(output) => code.out(output, packet),
            Spec::Flow { pattern, outputs } => self.begin(code, &passage, flow, pattern, outputs),
        }
        code.go(apply);
        self.apply(code, &passage);
        code.go(foreign);
        match spec {
            Spec::Pass(output) => code.out(output, packet),
            _ => code.drop(packet, "not_tcp_or_udp"),
        }
    }
}

impl Rewriter {
    /// Goes on with packets that have ports of a protocol that is handled here, and to `foreign` with all others.
    fn ours(&self, code: &mut Code<'_, '_>, packet: Packet, header: Value, protocol: Value, foreign: Block) {
        let handled = code.block();
        for number in self.protocols {
            let (number, next) = (code.int(*number), code.block());
            code.branch(Cond::Eq, protocol, number, handled, next);
            code.go(next);
        }
        code.jump(foreign, &[]);
        code.go(handled);
        let fragment = code.half(header, 6);
        let offset = code.with(AluOp::And, fragment, 0x1fff);
        code.check_int(Cond::Eq, offset, 0, |code| code.jump(foreign, &[]));
        let length = header_length(code, header);
        let ports = code.plus(header, length);
        let beyond = code.at(ports, 8);
        code.check(Cond::Le, beyond, packet.end, |code| code.jump(foreign, &[]));
    }

    fn key(&self, passage: &Passage, flow: Flow) -> [Value; 3] {
        [flow.addresses, flow.ports, passage.protocol]
    }

    /// Looks the flow up, and has the packet changed if it is known and not too old.
    fn known(&self, code: &mut Code<'_, '_>, passage: &Passage, flow: Flow, missing: Block) {
        let key = self.key(passage, flow);
        let entry = code.find(&self.flows, &key);
        code.check_int(Cond::Ne, entry, 0, |code| code.jump(missing, &[]));
        let fresh = code.block();
        let old = code.block();
        self.branch_on_age(code, passage, entry, fresh, old);
        code.go(old);
        // Its answers may keep it alive.
        let to = Flow { addresses: code.wide(entry, 0), ports: code.field(entry, 8) };
        let back = reversed(code, to);
        let back_key = self.key(passage, back);
        let answer = code.find(&self.flows, &back_key);
        let gone = code.block();
        let zero = code.int(0);
        let there = code.block();
        code.branch(Cond::Eq, answer, zero, gone, there);
        code.go(there);
        self.branch_on_age(code, passage, answer, fresh, gone);
        code.go(gone);
        code.forget(&self.flows, &key);
        code.forget(&self.flows, &back_key);
        code.jump(missing, &[]);
        code.go(fresh);
        code.set_wide(entry, 24, passage.now);
        self.note_end(code, passage, entry);
        let found = Entry {
            to: Flow { addresses: code.wide(entry, 0), ports: code.field(entry, 8) },
            sums: [code.field(entry, 12), code.field(entry, 16)],
            output: code.short(entry, 20),
        };
        code.jump(passage.apply, &found.values());
    }

    /// Branches on whether an entry's time has run out.
    fn branch_on_age(
        &self,
        code: &mut Code<'_, '_>,
        passage: &Passage,
        entry: Value,
        fresh: Block,
        old: Block,
    ) {
        let last = code.wide(entry, 24);
        let age = code.sub(passage.now, last);
        let [udp, tcp, done] = self.timeouts.map(|t| code.int(t as i64));
        let flags = code.short(entry, 22);
        let zero = code.int(0);
        let ended = code.compare(Cond::Ne, flags, zero);
        let limit = code.select(ended, done, tcp);
        let number = code.int(UDP);
        let is_udp = code.compare(Cond::Eq, passage.protocol, number);
        let limit = code.select(is_udp, udp, limit);
        code.branch(Cond::Le, age, limit, fresh, old);
    }

    /// Notes whether a TCP segment ends its direction or begins it again.
    fn note_end(&self, code: &mut Code<'_, '_>, passage: &Passage, entry: Value) {
        let (on, tcp, flags) = (code.block(), code.block(), code.block());
        let number = code.int(TCP);
        code.branch(Cond::Eq, passage.protocol, number, tcp, on);
        code.go(tcp);
        let beyond = code.at(passage.transport, 14);
        code.branch(Cond::Le, beyond, passage.packet.end, flags, on);
        code.go(flags);
        let bits = code.byte(passage.transport, 13);
        // FIN or RST, SYN.
        let (end, begin) = (code.with(AluOp::And, bits, 5), code.with(AluOp::And, bits, 2));
        let (set, other, clear) = (code.block(), code.block(), code.block());
        let zero = code.int(0);
        code.branch(Cond::Ne, end, zero, set, other);
        code.go(set);
        let done = code.int(DONE);
        code.set_short(entry, 22, done);
        code.jump(on, &[]);
        code.go(other);
        code.branch(Cond::Ne, begin, zero, clear, on);
        code.go(clear);
        code.set_short(entry, 22, zero);
        code.jump(on, &[]);
        code.go(on);
    }

    /// Begins a flow: chooses what it becomes, and writes down both directions.
    fn begin(
        &self,
        code: &mut Code<'_, '_>,
        passage: &Passage,
        flow: Flow,
        pattern: Pattern,
        outputs: [u32; 2],
    ) {
        let choose = code.block();
        code.jump(choose, &[]);
        code.go(choose);
        let to = self.become_by(code, passage, flow, pattern);
        let [ip, transport] = differences(code, flow, to);
        let zero = code.int(0);
        let sums = |code: &mut Code<'_, '_>, forward: bool| {
            [ip, transport].map(|difference| {
                let value = if forward { code.with(AluOp::Xor, difference, 0xffff) } else { difference };
                let added = code.with(AluOp::Add, value, 0xffff);
                let same = code.compare(Cond::Eq, difference, zero);
                code.select(same, zero, added)
            })
        };
        let (there, back) = (sums(code, true), sums(code, false));
        let (answers, answered) = (reversed(code, to), reversed(code, flow));
        let [output, reply] = outputs.map(|port| code.int(i64::from(port)));
        let forward = Entry { to, sums: there, output };
        let reply = Entry { to: answered, sums: back, output: reply };
        let chosen = pattern.source_port.is_some_and(|(_, more)| more > 0);
        // Whoever has the answers has the port: of workers that chose the same one, the others choose again.
        self.note(code, passage, answers, &reply, chosen.then_some(choose));
        self.note(code, passage, flow, &forward, None);
        code.jump(passage.apply, &forward.values());
    }

    /// Writes a direction down, or goes to `again` if it is there by now.
    fn note(
        &self,
        code: &mut Code<'_, '_>,
        passage: &Passage,
        flow: Flow,
        entry: &Entry,
        again: Option<Block>,
    ) {
        let (key, zero) = (self.key(passage, flow), code.int(0));
        let [addresses, ports, ip, transport, output] = entry.values();
        let value = [addresses, ports, ip, transport, output, zero, passage.now];
        let error = match again {
            Some(_) => code.claim(&self.flows, &key, &value),
            None => code.remember(&self.flows, &key, &value),
        };
        code.check_int(Cond::Eq, error, 0, |code| {
            if let Some(again) = again {
                code.check_int(Cond::Ne, error, EEXIST, |code| code.jump(again, &[]));
            }
            code.drop(passage.packet, "no_room_for_flow");
        });
    }

    /// What a flow becomes by a pattern; ends with the packet dropped if no port is free.
    fn become_by(&self, code: &mut Code<'_, '_>, passage: &Passage, flow: Flow, pattern: Pattern) -> Flow {
        let mut to = flow;
        let raw = |address: u32| i64::from(address.swap_bytes());
        if let Some(source) = pattern.source {
            let rest = code.with(AluOp::Rsh, to.addresses, 32);
            let rest = code.with(AluOp::Lsh, rest, 32);
            to.addresses = code.with(AluOp::Or, rest, raw(source));
        }
        if let Some(destination) = pattern.destination {
            let rest = code.with(AluOp::And, to.addresses, 0xffff_ffff);
            to.addresses = code.with(AluOp::Or, rest, raw(destination) << 32);
        }
        if let Some(port) = pattern.destination_port {
            let rest = code.with(AluOp::And, to.ports, 0xffff);
            to.ports = code.with(AluOp::Or, rest, i64::from(port.swap_bytes()) << 16);
        }
        match pattern.source_port {
            None => to,
            Some((first, 0)) => {
                let first = code.int(i64::from(first));
                Flow { ports: with_source_port(code, to.ports, first), ..to }
            }
            Some((first, more)) => self.free_port(code, passage, to, (first, more), pattern),
        }
    }

    /// The flow with a source port of a range that no other has.
    fn free_port(
        &self,
        code: &mut Code<'_, '_>,
        passage: &Passage,
        to: Flow,
        (first, more): (u16, u16),
        pattern: Pattern,
    ) -> Flow {
        let (more, ports) = (i64::from(more), i64::from(more) + 1);
        let (search, found) = (code.block(), code.block());
        let (tried, at) = (code.number_param(search), code.number_param(search));
        let chosen = code.number_param(found);
        let zero = code.int(0);
        if pattern.choice == Choice::Own {
            let own = code.with(AluOp::And, to.ports, 0xffff);
            let own = code.swapped(16, own);
            let place = code.with(AluOp::Sub, own, i64::from(first));
            let (inside, outside) = (code.block(), code.block());
            let last = code.int(more);
            code.branch(Cond::Le, place, last, inside, outside);
            code.go(inside);
            let other = self.answered(code, passage, to, first, place);
            code.check_int(Cond::Ne, other, 0, |code| code.jump(found, &[place]));
            code.jump(outside, &[]);
            code.go(outside);
        }
        let start = match pattern.choice {
            Choice::Next => {
                let next = code.get(pattern.next);
                let last = code.int(more);
                let beyond = code.compare(Cond::Gt, next, last);
                code.select(beyond, zero, next)
            }
            _ => {
                let random = code.random();
                code.with(AluOp::Mod, random, ports)
            }
        };
        code.jump(search, &[zero, start]);
        code.go(search);
        code.check_int(Cond::Lt, tried, ports, |code| code.drop(passage.packet, "no_free_port"));
        let other = self.answered(code, passage, to, first, at);
        code.check_int(Cond::Ne, other, 0, |code| code.jump(found, &[at]));
        let (again, on) = (code.with(AluOp::Add, tried, 1), code.with(AluOp::Add, at, 1));
        let last = code.int(more);
        let beyond = code.compare(Cond::Gt, on, last);
        let on = code.select(beyond, zero, on);
        code.jump(search, &[again, on]);
        code.go(found);
        let next = code.with(AluOp::Add, chosen, 1);
        code.set(pattern.next, next);
        let port = code.with(AluOp::Add, chosen, i64::from(first));
        Flow { ports: with_source_port(code, to.ports, port), ..to }
    }

    /// The entry that answers would find if the flow had port number `place` of those from `first` on.
    fn answered(
        &self,
        code: &mut Code<'_, '_>,
        passage: &Passage,
        to: Flow,
        first: u16,
        place: Value,
    ) -> Value {
        let port = code.with(AluOp::Add, place, i64::from(first));
        let to = Flow { ports: with_source_port(code, to.ports, port), ..to };
        let back = reversed(code, to);
        let key = self.key(passage, back);
        code.find(&self.flows, &key)
    }

    /// Changes the packet as the entry says, and sends it on.
    fn apply(&self, code: &mut Code<'_, '_>, passage: &Passage) {
        let params: Vec<Value> = (0..5).map(|_| code.number_param(passage.apply)).collect();
        let entry = Entry::of(&params);
        let Passage { packet, header, transport, protocol, .. } = *passage;
        code.set_raw(8, header, 12, entry.to.addresses);
        adjust(code, header, 10, entry.sums[0]);
        let destination = code.with(AluOp::Rsh, entry.to.addresses, 32);
        let destination = code.swapped(32, destination);
        let packet = packet.with(Note::Destination, destination);
        let (tcp, udp, on) = (code.block(), code.block(), code.block());
        let number = code.int(TCP);
        code.branch(Cond::Eq, protocol, number, tcp, udp);
        code.go(tcp);
        // A segment that is cut off before its checksum keeps its ports: it could not be made right, and the peer leaves it alone, too.
        let (whole, beyond) = (code.block(), code.at(transport, 18));
        code.branch(Cond::Le, beyond, packet.end, whole, on);
        code.go(whole);
        code.set_raw(4, transport, 0, entry.to.ports);
        adjust(code, transport, 16, entry.sums[1]);
        code.jump(on, &[]);
        code.go(udp);
        code.set_raw(4, transport, 0, entry.to.ports);
        let (sum, zero, summed) = (code.raw(2, transport, 6), code.int(0), code.block());
        code.branch(Cond::Ne, sum, zero, summed, on);
        code.go(summed);
        adjust(code, transport, 6, entry.sums[1]);
        code.jump(on, &[]);
        code.go(on);
        for port in 1..self.outputs {
            code.check_int(Cond::Ne, entry.output, i64::from(port), |code| code.out(port, packet));
        }
        code.out(0, packet);
    }
}

/// Ports with another source port, which is a number.
fn with_source_port(code: &mut Code<'_, '_>, ports: Value, port: Value) -> Value {
    let rest = code.with(AluOp::And, ports, 0xffff_0000);
    let port = code.swapped(16, port);
    code.alu(AluOp::Or, rest, port)
}

/// How the checksums of IP, and of TCP or UDP, differ for two flows: RFC 1624's equation 3, word by word, on zero.
fn differences(code: &mut Code<'_, '_>, from: Flow, to: Flow) -> [Value; 2] {
    let mut sum = code.int(0);
    let mut both = [sum; 2];
    for (at, (from, to, words)) in
        [(from.addresses, to.addresses, 4), (from.ports, to.ports, 2)].into_iter().enumerate()
    {
        for word in 0..words {
            let [old, new] = [from, to].map(|pair| {
                let pair = code.with(AluOp::Rsh, pair, 16 * word);
                code.with(AluOp::And, pair, 0xffff)
            });
            let (kept, gone) = (code.with(AluOp::Xor, sum, 0xffff), code.with(AluOp::Xor, old, 0xffff));
            let total = code.add(kept, gone);
            let total = code.add(total, new);
            sum = folded(code, total);
        }
        both[at] = sum;
    }
    both
}

/// The complement of a sum of a few 16-bit words, with its carries.
fn folded(code: &mut Code<'_, '_>, sum: Value) -> Value {
    let (low, high) = (code.with(AluOp::And, sum, 0xffff), code.with(AluOp::Rsh, sum, 16));
    let sum = code.add(low, high);
    let carry = code.with(AluOp::Rsh, sum, 16);
    let sum = code.add(sum, carry);
    let sum = code.with(AluOp::Xor, sum, 0xffff);
    code.with(AluOp::And, sum, 0xffff)
}

/// Adds to a checksum what an entry says.
fn adjust(code: &mut Code<'_, '_>, base: Value, offset: i32, added: Value) {
    let sum = code.raw(2, base, offset);
    let sum = code.with(AluOp::Xor, sum, 0xffff);
    let sum = code.add(sum, added);
    let sum = folded(code, sum);
    code.set_raw(2, base, offset, sum);
}

//! Aggregates: numbers of flows, and elements that go by them.
//!
//! A flow has one entry in a table, under the direction of its first packet; packets are looked up both ways.

use millstream_ir::{Block, Size, Value};
use millstream_isa::{AluOp, Cond};

use super::ip::{HEADER, header_length};
use super::transport::{TCP, UDP};
use millstream_click::arguments::{SECOND, boolean, seconds};
use millstream_click::build::{ElementBuilder, ElementHashTable};
use millstream_click::class::{ElementClass, ElementCodegen, ElementResult};
use millstream_click::keyword::{ArgumentSpec, IgnoredValueKind, key, moot, refused, refused_but};
use millstream_click::packet::{Annotation, PacketValues};
use millstream_click::{ElementSetup, Error, TableFormat, TableOperation};

const FLOWS: &[ArgumentSpec] = &[
    refused(
        "TRACEINFO",
        "no file about flows is written: `ToIPSummaryDump` writes the aggregate of each packet",
    ),
    refused("SOURCE", "it is about the file of TRACEINFO"),
    key("TCP_TIMEOUT"),
    key("TCP_DONE_TIMEOUT"),
    key("UDP_TIMEOUT"),
    key("FRAGMENT_TIMEOUT"),
    moot(
        "REAP",
        IgnoredValueKind::Time,
        "a flow ends when its time has run out, not when somebody tidies up",
    ),
    refused_but("ICMP", &["false"], "ICMP errors are not looked into"),
    key("FRAGMENTS"),
];

pub(super) const CLASSES: &[ElementClass] = &[
    ElementClass::check(
        "AggregateIPFlows",
        "Numbers flows, and marks packets with the number.",
        FLOWS,
        flows,
    ),
    ElementClass::check(
        "AggregateFirst",
        "Lets the first packet of each aggregate pass.",
        &[moot(
            "NOTIFIER",
            IgnoredValueKind::Any,
            "aggregates that are long unused are forgotten in any case",
        )],
        first,
    ),
];

/// Flows, and aggregates, that are remembered.
const MOST_FLOWS: u32 = 1 << 18;
const MOST_FRAGMENTS: u32 = 1 << 14;
/// Addresses, ports, protocol.
const FLOW_KEY: [Size; 3] = [Size::Dw, Size::W, Size::W];
/// Aggregate, the directions that have ended, and the time of the last packet.
const FLOW_VALUE: [Size; 3] = [Size::W, Size::W, Size::Dw];
/// Addresses, identification, protocol.
const FRAGMENT_KEY: [Size; 3] = [Size::Dw, Size::W, Size::W];
/// Aggregate, direction, and the time of the first fragment.
const FRAGMENT_VALUE: [Size; 3] = [Size::W, Size::W, Size::Dw];

struct AggregateFlows {
    flows: ElementHashTable,
    /// Of packets in fragments, if these are handled.
    fragments: Option<ElementHashTable>,
    /// Number of flows so far.
    count: u32,
    /// Nanoseconds after which flows have ended: TCP, TCP that was closed by both, UDP; and fragments.
    timeouts: [u64; 4],
}

fn flows(setup: &mut ElementSetup<'_>) -> ElementResult {
    let mut timeouts = [0; 4];
    let usual =
        [("TCP_TIMEOUT", 24 * 3600), ("TCP_DONE_TIMEOUT", 30), ("UDP_TIMEOUT", 60), ("FRAGMENT_TIMEOUT", 30)];
    for (timeout, (name, usual)) in timeouts.iter_mut().zip(usual) {
        *timeout = setup.arguments.keyword_or(name, usual * SECOND, seconds)?;
    }
    let fragments = setup.arguments.keyword_or("FRAGMENTS", true, boolean)?;
    let table = setup.evicting_table("flows", &FLOW_KEY, &FLOW_VALUE, 0, MOST_FLOWS);
    let fragments = fragments
        .then(|| setup.evicting_table("fragments", &FRAGMENT_KEY, &FRAGMENT_VALUE, 0, MOST_FRAGMENTS));
    let map = setup.map_name(&table);
    setup.table_handlers(&map, TableFormat::Flows, &[("clear", TableOperation::Clear)]);
    if fragments.is_some() {
        let message = "fragments that come before the first one of their packet are not held: they belong to no \
            flow";
        setup.warn(
            Error::new(setup.element.span, message).help("with `FRAGMENTS false`, that is so in Click"),
        );
    }
    setup.require_single_worker("flows are numbered in one order");
    Ok(Box::new(AggregateFlows { flows: table, fragments, count: setup.number(), timeouts }))
}

/// A packet that may belong to a flow.
#[derive(Clone, Copy)]
struct FlowPacket {
    packet: PacketValues,
    header: Value,
    addresses: Value,
    protocol: Value,
    now: Value,
}

/// Ends with a packet that belongs to no flow.
fn none(code: &mut ElementBuilder<'_, '_>, packet: PacketValues) {
    if code.connected(1) { code.out(1, packet) } else { code.drop(packet, "no_flow") }
}

/// A pair of 32-bit values, or of 16-bit values with `half`, the other way round.
fn reversed(code: &mut ElementBuilder<'_, '_>, pair: Value, bits: i64) -> Value {
    let (low, high) = (code.with(AluOp::Lsh, pair, bits), code.with(AluOp::Rsh, pair, bits));
    let all = code.alu(AluOp::Or, low, high);
    if bits == 32 { all } else { code.with(AluOp::And, all, (1 << (2 * bits)) - 1) }
}

impl ElementCodegen for AggregateFlows {
    fn build(&self, code: &mut ElementBuilder<'_, '_>, _: u32, packet: PacketValues) {
        code.check_int(Cond::Ne, packet.note(Annotation::HasNetwork), 0, |code| none(code, packet));
        let header = packet.note(Annotation::Network);
        let beyond = code.at(header, HEADER);
        code.check(Cond::Le, beyond, packet.end, |code| none(code, packet));
        let protocol = code.byte(header, 9);
        let (known, next, udp) = (code.block(), code.block(), code.int(UDP));
        code.branch(Cond::Eq, protocol, udp, known, next);
        code.switch_to_block(next);
        code.check_int(Cond::Eq, protocol, TCP, |code| none(code, packet));
        code.jump(known, &[]);
        code.switch_to_block(known);
        let (addresses, now) = (code.raw(8, header, 12), code.time());
        let flow = FlowPacket { packet, header, addresses, protocol, now };
        let fragment = code.half(header, 6);
        let offset = code.with(AluOp::And, fragment, 0x1fff);
        code.check_int(Cond::Eq, offset, 0, |code| self.later_fragment(code, &flow));
        let length = header_length(code, header);
        let transport = code.plus(header, length);
        let beyond = code.at(transport, 8);
        code.check(Cond::Le, beyond, packet.end, |code| none(code, packet));
        let ports = code.raw(4, transport, 0);
        self.first_fragment(code, &flow, fragment, (transport, ports));
    }
}

impl AggregateFlows {
    /// Marks a packet that has ports.
    fn first_fragment(
        &self,
        code: &mut ElementBuilder<'_, '_>,
        flow: &FlowPacket,
        fragment: Value,
        (transport, ports): (Value, Value),
    ) {
        let (one, zero) = (code.int(1), code.int(0));
        let mark = code.block();
        let [aggregate, paint] = [0; 2].map(|_| code.number_param(mark));
        let forward = [flow.addresses, ports, flow.protocol];
        let back = [reversed(code, flow.addresses, 32), reversed(code, ports, 16), flow.protocol];
        for (direction, key) in [(0, forward), (1, back)] {
            let missing = code.block();
            self.known(code, flow, &key, (transport, direction), (mark, missing));
            code.switch_to_block(missing);
        }
        code.count(self.count, one);
        let number = code.get(self.count);
        let ended = self.ends(code, flow, transport, 0, zero);
        let error = code.update_entry(&self.flows, &forward, &[number, ended, flow.now]);
        code.check_int(Cond::Eq, error, 0, |code| code.drop(flow.packet, "no_room_for_flow"));
        code.jump(mark, &[number, zero]);
        code.switch_to_block(mark);
        if let Some(table) = &self.fragments {
            let more = code.with(AluOp::And, fragment, 0x2000);
            let (split, on) = (code.block(), code.block());
            code.branch(Cond::Ne, more, zero, split, on);
            code.switch_to_block(split);
            let key = self.fragment_key(code, flow);
            code.update_entry(table, &key, &[aggregate, paint, flow.now]);
            code.jump(on, &[]);
            code.switch_to_block(on);
        }
        let packet = flow.packet.with(Annotation::Aggregate, aggregate).with(Annotation::Paint, paint);
        code.out(0, packet);
    }

    /// Goes on at `mark` with aggregate and direction if there is such a flow that has not ended, else at
    /// `missing`.
    fn known(
        &self,
        code: &mut ElementBuilder<'_, '_>,
        flow: &FlowPacket,
        key: &[Value],
        (transport, direction): (Value, i64),
        (mark, missing): (Block, Block),
    ) {
        let entry = code.find(&self.flows, key);
        code.check_int(Cond::Ne, entry, 0, |code| code.jump(missing, &[]));
        let (ended, last) = (code.field(entry, 4), code.wide(entry, 8));
        let [active, done, udp] = [0, 1, 2].map(|at| code.int(self.timeouts[at] as i64));
        let (both, number) = (code.int(3), code.int(UDP));
        let is_done = code.compare(Cond::Eq, ended, both);
        let timeout = code.select(is_done, done, active);
        let is_udp = code.compare(Cond::Eq, flow.protocol, number);
        let timeout = code.select(is_udp, udp, timeout);
        let age = code.sub(flow.now, last);
        code.check(Cond::Le, age, timeout, |code| {
            code.delete_entry(&self.flows, key);
            code.jump(missing, &[]);
        });
        let aggregate = code.field(entry, 0);
        let ended = self.ends(code, flow, transport, direction, ended);
        code.update_entry(&self.flows, key, &[aggregate, ended, flow.now]);
        let direction = code.int(direction);
        code.jump(mark, &[aggregate, direction]);
    }

    /// The directions that have ended, with that of the packet if it is a segment with FIN.
    fn ends(
        &self,
        code: &mut ElementBuilder<'_, '_>,
        flow: &FlowPacket,
        transport: Value,
        direction: i64,
        ended: Value,
    ) -> Value {
        let tcp = code.int(TCP);
        let ended = code.when(Cond::Eq, flow.protocol, tcp, &[ended], |code| {
            let beyond = code.at(transport, 14);
            code.when(Cond::Le, beyond, flow.packet.end, &[ended], |code| {
                let flags = code.byte(transport, 13);
                let fin = code.with(AluOp::And, flags, 1);
                let bit = code.with(AluOp::Lsh, fin, direction);
                vec![code.alu(AluOp::Or, ended, bit)]
            })
        });
        ended[0]
    }

    fn fragment_key(&self, code: &mut ElementBuilder<'_, '_>, flow: &FlowPacket) -> [Value; 3] {
        [flow.addresses, code.half(flow.header, 4), flow.protocol]
    }

    /// Ends with a packet that has no ports, which those of the first fragment tell.
    fn later_fragment(&self, code: &mut ElementBuilder<'_, '_>, flow: &FlowPacket) {
        let Some(table) = &self.fragments else { return none(code, flow.packet) };
        let key = self.fragment_key(code, flow);
        let entry = code.find(table, &key);
        code.check_int(Cond::Ne, entry, 0, |code| none(code, flow.packet));
        let [aggregate, paint] = [0, 4].map(|at| code.field(entry, at));
        let then = code.wide(entry, 8);
        let age = code.sub(flow.now, then);
        code.check_int(Cond::Le, age, self.timeouts[3] as i64, |code| none(code, flow.packet));
        let packet = flow.packet.with(Annotation::Aggregate, aggregate).with(Annotation::Paint, paint);
        code.out(0, packet);
    }
}

struct FirstOfAggregate(ElementHashTable);

fn first(setup: &mut ElementSetup<'_>) -> ElementResult {
    Ok(Box::new(FirstOfAggregate(setup.evicting_table("seen", &[Size::W], &[Size::W], 0, MOST_FLOWS))))
}

impl ElementCodegen for FirstOfAggregate {
    fn build(&self, code: &mut ElementBuilder<'_, '_>, _: u32, packet: PacketValues) {
        let (key, one) = ([packet.note(Annotation::Aggregate)], code.int(1));
        // Of several workers, one is the first.
        let error = code.insert_if_absent(&self.0, &key, &[one]);
        code.check_int(Cond::Eq, error, 0, |code| {
            if code.connected(1) { code.out(1, packet) } else { code.drop(packet, "not_first") }
        });
        code.out(0, packet);
    }
}

//! `ICMPRewriter`: errors about packets that a rewriter has changed, back to whoever sent those. Source: RFC
//! 5508, 4; RFC 792.
//!
//! An error carries the header of the packet that it is about, as it left the rewriter. The entry of the
//! answers to that packet holds its original addresses and ports.

use millstream_ir::{Block, Value};
use millstream_isa::{AluOp, Cond};

use super::{
    ECHO, FlowKeyKind, FlowTuple, ICMP, LOW, MappedAddresses, MappingEntry, RewriterFlows, TCP, UDP, changes,
    exchanged, reply_annotation, reply_paint, reversed, with_identifier,
};
use crate::ip::{header, header_length};
use millstream_click::arguments::{boolean, unsigned};
use millstream_click::build::ElementBuilder;
use millstream_click::class::{ElementClass, ElementCodegen, ElementResult};
use millstream_click::keyword::{at, key};
use millstream_click::packet::{Annotation, PacketValues};
use millstream_click::{ElementSetup, Error, SpannedText, words};

pub(super) const CLASS: ElementClass = ElementClass {
    ports: "1/1-",
    processing: "h/h",
    ..ElementClass::filter(
        "ICMPRewriter",
        "Takes errors back to those whose packets rewriters have changed.",
        &[at("MAPS"), key("DST_ANNO"), super::classes::REPLY_ANNO],
        errors,
    )
};

/// Unreachable, source quench, redirect, time exceeded, parameter problem.
const ERRORS: [i64; 5] = [3, 4, 5, 11, 12];
/// Bytes of an error's header, and with the shortest header behind it.
const MESSAGE: i64 = 8;
const WITH_HEADER: i64 = MESSAGE + 20;
/// Parts that are known behind the header in the error: nothing, ports, or the identifier of an echo request.
const NOTHING: i64 = 0;
const PORTS: i64 = 1;
const IDENTIFIER: i64 = 2;

struct IcmpRewriter {
    /// Names of rewriters, and the output that is the first of each, if errors leave as the flow's answers
    /// do.
    rewriters: Vec<(String, Option<u32>)>,
    annotates: bool,
    /// True if errors get the paint that answers of the flow have.
    paints: bool,
    outputs: u32,
}

fn errors(setup: &mut ElementSetup<'_>) -> ElementResult {
    let annotates = setup.arguments.keyword_or("DST_ANNO", true, boolean)?;
    let paints = reply_annotation(setup)?;
    let text = setup.arguments.need("MAPS")?;
    let rewriters: Vec<_> = words(&text).iter().map(|word| named(setup, word)).collect::<Result<_, _>>()?;
    if rewriters.is_empty() {
        return Err(Error::new(text.span, "no rewriter is named"));
    }
    Ok(Box::new(IcmpRewriter { rewriters, annotates, paints, outputs: setup.outputs }))
}

/// `ELEMENT` or `ELEMENT:OUTPUT`.
fn named(setup: &ElementSetup<'_>, word: &SpannedText) -> Result<(String, Option<u32>), Error> {
    let (name, first) = match word.text.split_once(':') {
        Some((name, first)) => {
            let first = SpannedText { text: first.to_owned(), span: word.span };
            (name, Some(unsigned(&first, u64::from(setup.outputs.max(1) - 1))? as u32))
        }
        None => (word.text.as_str(), None),
    };
    let is_rewriter = |class: &str| class != CLASS.name && super::CLASSES.iter().any(|c| c.name == class);
    match setup.named(name) {
        Some(element) if is_rewriter(&element.class) => Ok((element.name.clone(), first)),
        Some(element) => {
            let message = format!("`{name}` is of class `{}`, which rewrites no flows", element.class);
            Err(Error::new(word.span, message))
        }
        None => {
            let rewriters =
                setup.elements().iter().filter(|e| is_rewriter(&e.class)).map(|e| e.name.as_str());
            Err(Error::new(word.span, format!("there is no element `{name}`")).nearest(name, rewriters))
        }
    }
}

/// Packet that an error carries.
struct QuotedPacket {
    /// Its header.
    header: Value,
    transport: Value,
    protocol: Value,
    /// Addresses and ports of its answers, and the kind of the latter.
    answers: FlowTuple,
    depth: Value,
}

impl IcmpRewriter {
    /// Output for errors that are not about a packet of a flow, and for packets that are not errors.
    fn unmapped(&self, code: &mut ElementBuilder<'_, '_>, packet: PacketValues, reason: &'static str) {
        let spread = self.rewriters.iter().any(|(_, first)| first.is_some());
        if code.connected(1) && !spread { code.out(1, packet) } else { code.drop(packet, reason) }
    }

    /// The packet in an error.
    fn carried(
        &self,
        code: &mut ElementBuilder<'_, '_>,
        packet: PacketValues,
        message: Value,
    ) -> QuotedPacket {
        let header = code.at(message, MESSAGE);
        let first = code.byte(header, 0);
        let version = code.with(AluOp::Rsh, first, 4);
        code.check_int(Cond::Eq, version, 4, |code| self.unmapped(code, packet, "bad_error"));
        let length = header_length(code, header);
        code.check_int(Cond::Ge, length, 20, |code| self.unmapped(code, packet, "bad_error"));
        let transport = code.plus(header, length);
        let protocol = code.byte(header, 9);
        let known = code.block();
        let (ports, depth) = (code.number_param(known), code.number_param(known));
        let [zero, nothing, has_ports, has_identifier] =
            [0, NOTHING, PORTS, IDENTIFIER].map(|number| code.int(number));
        let nothing_known = |code: &mut ElementBuilder<'_, '_>| code.jump(known, &[zero, nothing]);
        let fragment = code.half(header, 6);
        let offset = code.with(AluOp::And, fragment, 0x1fff);
        code.check_int(Cond::Eq, offset, 0, nothing_known);
        let (echo, segment) = (code.block(), code.block());
        for (number, block) in [(TCP, segment), (UDP, segment), (ICMP, echo)] {
            let (number, next) = (code.int(number), code.block());
            code.branch(Cond::Eq, protocol, number, block, next);
            code.switch_to_block(next);
        }
        code.jump(known, &[zero, nothing]);
        code.switch_to_block(segment);
        let beyond = code.at(transport, 8);
        code.check(Cond::Le, beyond, packet.end, nothing_known);
        let ports_there = code.raw(4, transport, 0);
        let back = reversed(code, FlowTuple { addresses: ports_there, ports: ports_there }).ports;
        code.jump(known, &[back, has_ports]);
        code.switch_to_block(echo);
        let beyond = code.at(transport, 6);
        code.check(Cond::Le, beyond, packet.end, nothing_known);
        let kind = code.byte(transport, 0);
        code.check_int(Cond::Eq, kind, ECHO, nothing_known);
        let identifier = code.raw(2, transport, 4);
        let request = with_identifier(code, identifier);
        let back = reversed(code, FlowTuple { addresses: request, ports: request }).ports;
        code.jump(known, &[back, has_identifier]);
        code.switch_to_block(known);
        let addresses = code.raw(8, header, 12);
        let answers = reversed(code, FlowTuple { addresses, ports });
        QuotedPacket { header, transport, protocol, answers: FlowTuple { ports, ..answers }, depth }
    }

    /// Looks the answers up in a rewriter's flows; goes to `found` with the original addresses and ports, the
    /// output and the paint, or to `missing`.
    fn look_up(
        &self,
        code: &mut ElementBuilder<'_, '_>,
        (flows, first): (RewriterFlows, Option<u32>),
        (carried, own): (&QuotedPacket, Value),
        (found, missing): (Block, Block),
    ) {
        let QuotedPacket { answers, protocol, depth, .. } = *carried;
        let zero = code.int(0);
        let (needs, key_protocol) = match flows.kind {
            FlowKeyKind::Ports => (Some(PORTS), flows.key_protocol(code, protocol)),
            FlowKeyKind::Echoes => (Some(IDENTIFIER), code.int(ICMP)),
            FlowKeyKind::Pairs | FlowKeyKind::Hosts => (None, zero),
        };
        if let Some(needs) = needs {
            code.check_int(Cond::Eq, depth, needs, |code| code.jump(missing, &[]));
        }
        let now = code.time();
        for side in flows.sides() {
            let ports = if needs.is_some() { answers.ports } else { zero };
            let flow = FlowTuple { addresses: side.of(code, answers.addresses), ports };
            let next = code.block();
            let entry = flows.current(code, flow, (key_protocol, now), next, next);
            let paint = if self.paints { reply_paint(code, entry, own) } else { own };
            let entry = MappingEntry::read(code, entry);
            let addresses = side.whole(code, entry.to.addresses, answers.addresses);
            let ports = if needs.is_some() { entry.to.ports } else { answers.ports };
            let output = match first {
                Some(first) => code.with(AluOp::Add, entry.output, i64::from(first)),
                None => zero,
            };
            code.jump(found, &[addresses, ports, output, paint]);
            code.switch_to_block(next);
        }
        code.jump(missing, &[]);
    }

    /// Changes the error's own addresses if they are those of the packet it carries: the destination, and the
    /// source if the other end itself has sent the error. Gives the destination annotation.
    fn readdress(
        &self,
        code: &mut ElementBuilder<'_, '_>,
        packet: PacketValues,
        outer: Value,
        (was, is): (Value, Value),
    ) -> Value {
        let mut destination = packet.note(Annotation::Destination);
        for (side, offset) in [(MappedAddresses::Source, 12), (MappedAddresses::Destination, 16)] {
            let own = code.raw(4, outer, offset);
            let half = |code: &mut ElementBuilder<'_, '_>, pair: Value| match side {
                MappedAddresses::Destination => code.with(AluOp::Rsh, pair, 32),
                MappedAddresses::Source | MappedAddresses::Both => code.with(AluOp::And, pair, LOW),
            };
            let (old, new) = (half(code, was), half(code, is));
            destination = code.when(Cond::Eq, own, old, &[destination], |code| {
                code.set_raw(4, outer, offset, new);
                let changes = changes(code, old, new, 2);
                correct(code, outer, 10, &changes);
                let annotated = side == MappedAddresses::Destination && self.annotates;
                vec![if annotated { code.swapped(32, new) } else { destination }]
            })[0];
        }
        destination
    }
}

/// Corrects a checksum in the packet after words that it covers were exchanged; gives its old and new value.
fn correct(
    code: &mut ElementBuilder<'_, '_>,
    base: Value,
    offset: i32,
    changes: &[[Value; 2]],
) -> [Value; 2] {
    let before = code.raw(2, base, offset);
    let after = exchanged(code, before, changes);
    code.set_raw(2, base, offset, after);
    [before, after]
}

/// Changes ports or the identifier behind the header that an error carries, with their checksums, and goes
/// `on`. `all` are the changes of that header.
fn change_behind(
    code: &mut ElementBuilder<'_, '_>,
    packet: PacketValues,
    (message, carried): (Value, &QuotedPacket),
    (all, ports): (Vec<[Value; 2]>, Value),
    on: Block,
) {
    let transport = carried.transport;
    let (segment, echo, next) = (code.block(), code.block(), code.block());
    let [has_ports, has_identifier, tcp] = [PORTS, IDENTIFIER, TCP].map(|number| code.int(number));
    code.branch(Cond::Eq, carried.depth, has_ports, segment, next);
    code.switch_to_block(next);
    code.branch(Cond::Eq, carried.depth, has_identifier, echo, on);
    code.switch_to_block(segment);
    let old = code.raw(4, transport, 0);
    let new = reversed(code, FlowTuple { addresses: ports, ports }).ports;
    code.set_raw(4, transport, 0, new);
    let of_ports = changes(code, old, new, 2);
    correct(code, message, 2, &of_ports);
    // The sum is of addresses and ports, and may be cut off or not be there.
    let whole = [all, of_ports].concat();
    let (of_tcp, of_udp, there) = (code.block(), code.block(), code.block());
    code.branch(Cond::Eq, carried.protocol, tcp, of_tcp, of_udp);
    code.switch_to_block(of_tcp);
    let beyond = code.at(transport, 18);
    code.branch(Cond::Le, beyond, packet.end, there, on);
    code.switch_to_block(there);
    let sum = correct(code, transport, 16, &whole);
    correct(code, message, 2, &[sum]);
    code.jump(on, &[]);
    code.switch_to_block(of_udp);
    let (sum, zero, summed) = (code.raw(2, transport, 6), code.int(0), code.block());
    code.branch(Cond::Ne, sum, zero, summed, on);
    code.switch_to_block(summed);
    let sum = correct(code, transport, 6, &whole);
    correct(code, message, 2, &[sum]);
    code.jump(on, &[]);
    code.switch_to_block(echo);
    let old = code.raw(2, transport, 4);
    let new = code.with(AluOp::Rsh, ports, 16);
    code.set_raw(2, transport, 4, new);
    let sum = correct(code, transport, 2, &[[old, new]]);
    correct(code, message, 2, &[[old, new], sum]);
    code.jump(on, &[]);
}

impl ElementCodegen for IcmpRewriter {
    fn build(&self, code: &mut ElementBuilder<'_, '_>, _: u32, packet: PacketValues) {
        let outer = header(code, packet);
        let protocol = code.byte(outer, 9);
        code.check_int(Cond::Eq, protocol, ICMP, |code| code.drop(packet, "no_icmp"));
        let length = header_length(code, outer);
        code.check_int(Cond::Ge, length, 20, |code| self.unmapped(code, packet, "bad_header_length"));
        let fragment = code.half(outer, 6);
        let offset = code.with(AluOp::And, fragment, 0x1fff);
        code.check_int(Cond::Eq, offset, 0, |code| self.unmapped(code, packet, "fragment"));
        let message = code.plus(outer, length);
        let beyond = code.at(message, WITH_HEADER);
        code.check(Cond::Le, beyond, packet.end, |code| self.unmapped(code, packet, "bad_error"));
        let (kind, error) = (code.byte(message, 0), code.block());
        for number in ERRORS {
            let (number, next) = (code.int(number), code.block());
            code.branch(Cond::Eq, kind, number, error, next);
            code.switch_to_block(next);
        }
        self.unmapped(code, packet, "no_error");
        code.switch_to_block(error);
        let carried = self.carried(code, packet, message);
        let found = code.block();
        let [addresses, ports, output, paint] = [0; 4].map(|_| code.number_param(found));
        let own = packet.note(Annotation::Paint);
        for (name, first) in &self.rewriters {
            // `errors` has checked that the element exists and is a rewriter.
            let Some(flows) = code.published_by::<RewriterFlows>(name) else { continue };
            let missing = code.block();
            self.look_up(code, (flows, *first), (&carried, own), (found, missing));
            code.switch_to_block(missing);
        }
        self.unmapped(code, packet, "no_mapping");
        code.switch_to_block(found);
        let old = code.raw(8, carried.header, 12);
        let new = reversed(code, FlowTuple { addresses, ports }).addresses;
        let was = reversed(code, FlowTuple { addresses: old, ports }).addresses;
        let destination = self.readdress(code, packet, outer, (was, addresses));
        code.set_raw(8, carried.header, 12, new);
        let of_addresses = changes(code, old, new, 4);
        let sum = correct(code, carried.header, 10, &of_addresses);
        correct(code, message, 2, &[&[sum][..], &of_addresses[..]].concat());
        let on = code.block();
        change_behind(code, packet, (message, &carried), (of_addresses, ports), on);
        code.switch_to_block(on);
        let packet = packet.with(Annotation::Destination, destination).with(Annotation::Paint, paint);
        for port in 1..self.outputs {
            code.check_int(Cond::Ne, output, i64::from(port), |code| code.out(port, packet));
        }
        code.out(0, packet);
    }
}

//! `AddressTranslator`: addresses, and ports on request, of hosts behind it, by fixed pairs or from free
//! ones. Source: RFC 2766; RFC 1624.
//!
//! Packets of input 0 leave the inside and get another source, those of input 1 come in and get their
//! destination back. The choice for a host is kept until the table evicts it as the least recently used; each
//! address is given out once. Ports are those of TCP and UDP, and identifiers of echoes. Checksums change by
//! the fields they cover.

use millstream_ir::{Size, Value};
use millstream_isa::{AluOp, Cond};

use super::ip::{fold, header};
use super::ip6::{DESTINATION, HEADER, SOURCE, differs};
use super::ip6_error::{ICMP6, set_words};
use super::transport::{TCP, UDP};
use millstream_click::arguments::{boolean, ip6, unsigned};
use millstream_click::build::{ElementBuilder, ElementHashTable};
use millstream_click::class::{ElementClass, ElementCodegen, ElementResult};
use millstream_click::keyword::at;
use millstream_click::packet::PacketValues;
use millstream_click::{ElementSetup, Error, HandlerAccess, SpannedText, TableFormat, TableOperation, words};

pub(super) const CLASSES: &[ElementClass] = &[ElementClass {
    ports: "1-2/1-2",
    processing: "h/h",
    ..ElementClass::filter("AddressTranslator", "Exchanges addresses of IPv6 for others.", &[], translator)
}
.and(at("NUMBER, ..."))];

/// Hosts with an address of a pool, and flows with a port of a range, that are known at a time.
const HOSTS: u32 = 1 << 16;
const FLOWS: u32 = 1 << 17;
/// An address inside, with the number of its entry in the pool, and the other way round.
const HOST: [Size; 4] = [Size::W; 4];
/// Of a flow that leaves: the address inside, the other end's, both ports, and the protocol; it has a port.
const OUTWARD: [Size; 10] = [Size::W; 10];
/// Of one that comes in: the other end's address, both ports, the protocol; it has an address and a port.
const INWARD: [Size; 6] = [Size::W; 6];
const INSIDE: [Size; 6] = [Size::W, Size::W, Size::W, Size::W, Size::W, Size::W];
/// Why one worker only.
const CHOOSING: &str = "what it gives out next is one number, and two workers would give it to two hosts";

/// An address and, where ports are translated, a port: inside and outside.
struct StaticMapping {
    inside: (u128, Option<u16>),
    outside: (u128, Option<u16>),
}

/// Treatment of hosts that no pair names.
enum DynamicMapping {
    Nothing,
    /// Each gets one of these addresses.
    Addresses {
        pool: Vec<u128>,
        taken: ElementHashTable,
        given: ElementHashTable,
        next: u32,
    },
    /// Each flow gets a port of this address, from the first one to the last.
    Ports {
        address: u128,
        ports: (u16, u16),
        outward: ElementHashTable,
        inward: ElementHashTable,
        next: u32,
    },
}

struct AddressTranslator {
    pairs: Vec<StaticMapping>,
    free: DynamicMapping,
}

fn translator(setup: &mut ElementSetup<'_>) -> ElementResult {
    let mut arguments = setup.arguments.rest().into_iter();
    let span = setup.element.span;
    let mut need = move |what: &str| {
        let lacks = || Error::new(span, format!("`AddressTranslator` lacks {what}"));
        arguments.next().ok_or_else(lacks)
    };
    let count = unsigned(&need("the number of pairs")?, 256)?;
    let mut pairs = Vec::new();
    if count > 0 {
        let with_ports = boolean(&need("whether pairs have ports")?)?;
        for _ in 0..count {
            pairs.push(pair(setup, &need("a pair of addresses")?, with_ports)?);
        }
    }
    let mut free = DynamicMapping::Nothing;
    if boolean(&need("whether there are other mappings")?)? {
        let with_ports = boolean(&need("whether ports are translated")?)?;
        let direction = need("the direction that begins a mapping")?;
        if boolean(&direction)? {
            return Err(Error::new(
                direction.span,
                "mappings begin with packets of input 0 (direction 0) here",
            ));
        }
        let first = need("an address to give out")?;
        free = if with_ports {
            ports(setup, &first)?
        } else {
            let mut pool = vec![first];
            while let Ok(text) = need("") {
                pool.push(text);
            }
            addresses(setup, &pool)?
        };
    }
    match need("") {
        Ok(extra) => Err(Error::new(extra.span, "`AddressTranslator` has no further argument")),
        Err(_) => Ok(Box::new(AddressTranslator { pairs, free })),
    }
}

fn port(text: &SpannedText) -> Result<u16, Error> {
    Ok(unsigned(text, 0xffff)? as u16)
}

fn pair(setup: &ElementSetup<'_>, argument: &SpannedText, with_ports: bool) -> Result<StaticMapping, Error> {
    let names = setup.arguments.names;
    match (&words(argument)[..], with_ports) {
        ([inside, outside], false) => {
            Ok(StaticMapping { inside: (ip6(inside, names)?, None), outside: (ip6(outside, names)?, None) })
        }
        ([inside, from, outside, to], true) => Ok(StaticMapping {
            inside: (ip6(inside, names)?, Some(port(from)?)),
            outside: (ip6(outside, names)?, Some(port(to)?)),
        }),
        (_, false) => Err(Error::new(argument.span, "expected two addresses: inside and outside")),
        (_, true) => Err(Error::new(argument.span, "expected ADDRESS PORT ADDRESS PORT: inside and outside")),
    }
}

fn addresses(setup: &mut ElementSetup<'_>, texts: &[SpannedText]) -> Result<DynamicMapping, Error> {
    let names = setup.arguments.names;
    let pool = texts.iter().map(|text| ip6(text, names)).collect::<Result<Vec<_>, _>>()?;
    let taken = setup.evicting_table("hosts", &HOST, &[Size::Dw], 0, HOSTS);
    let given = setup.array("given", &[Size::W], &INSIDE, pool.len() as u32);
    setup.require_single_worker(CHOOSING);
    let next = setup.number();
    setup.handler("nmappings", HandlerAccess::Number(next));
    Ok(DynamicMapping::Addresses { pool, taken, given, next })
}

fn ports(setup: &mut ElementSetup<'_>, argument: &SpannedText) -> Result<DynamicMapping, Error> {
    let all = words(argument);
    let [address, first, last] = &all[..] else {
        return Err(Error::new(argument.span, "expected ADDRESS FIRST_PORT LAST_PORT"));
    };
    let (address, ports) = (ip6(address, setup.arguments.names)?, (port(first)?, port(last)?));
    if ports.0 > ports.1 {
        return Err(Error::new(argument.span, "the last port is before the first one"));
    }
    let outward = setup.evicting_table("outward", &OUTWARD, &[Size::Dw], 0, FLOWS);
    let inward = setup.evicting_table("inward", &INWARD, &INSIDE, 0, FLOWS);
    setup.require_single_worker(CHOOSING);
    let map = setup.map_name(&inward);
    // (No handler reads the entries.)
    setup.table_handlers(&map, TableFormat::Flows, &[("nmappings", TableOperation::Count)]);
    Ok(DynamicMapping::Ports { address, ports, outward, inward, next: setup.number() })
}

/// Fields of a packet that are translated.
struct TranslatedFields {
    header: Value,
    source: [Value; 4],
    destination: [Value; 4],
    /// Protocol, which determines the position of ports (or the identifier of an echo) and of the checksum.
    protocol: Value,
    from: Value,
    to: Value,
}

impl ElementCodegen for AddressTranslator {
    fn build(&self, code: &mut ElementBuilder<'_, '_>, port: u32, packet: PacketValues) {
        let header = header(code, packet);
        code.need(packet, header, HEADER, "too_short");
        let ends = TranslatedFields::read(code, packet, header);
        match port {
            0 => self.outward(code, packet, &ends),
            _ => self.inward(code, packet, &ends),
        }
    }
}

/// Reads or writes fields that differ by protocol: a block each for TCP, UDP, echoes, and one for all others.
fn by_protocol(
    code: &mut ElementBuilder<'_, '_>,
    packet: PacketValues,
    (header, protocol): (Value, Value),
    mut act: impl FnMut(&mut ElementBuilder<'_, '_>, i64, Value),
    other: impl FnOnce(&mut ElementBuilder<'_, '_>),
) {
    let payload = code.at(header, HEADER);
    let none = code.block();
    for (number, bytes) in [(TCP, 20), (UDP, 8), (i64::from(ICMP6), 8)] {
        let (here, next, wanted) = (code.block(), code.block(), code.int(number));
        code.branch(Cond::Eq, protocol, wanted, here, next);
        code.switch_to_block(here);
        let beyond = code.at(payload, bytes);
        code.check(Cond::Le, beyond, packet.end, |code| code.jump(none, &[]));
        act(code, number, payload);
        code.switch_to_block(next);
    }
    code.jump(none, &[]);
    code.switch_to_block(none);
    other(code);
}

impl TranslatedFields {
    fn read(code: &mut ElementBuilder<'_, '_>, packet: PacketValues, header: Value) -> TranslatedFields {
        let (source, destination) = (code.words(header, SOURCE), code.words(header, DESTINATION));
        let (protocol, zero) = (code.byte(header, 6), code.int(0));
        let on = code.block();
        let (from, to) = (code.number_param(on), code.number_param(on));
        let read = |code: &mut ElementBuilder<'_, '_>, number: i64, payload: Value| {
            if number != i64::from(ICMP6) {
                let ports = [code.half(payload, 0), code.half(payload, 2)];
                return code.jump(on, &ports);
            }
            // An echo's identifier is the port of both ends; other messages have none.
            let kind = code.byte(payload, 0);
            let kind = code.with(AluOp::And, kind, 0xfe);
            code.check_int(Cond::Eq, kind, 128, |code| code.jump(on, &[zero, zero]));
            let identifier = code.half(payload, 4);
            code.jump(on, &[identifier, identifier]);
        };
        by_protocol(code, packet, (header, protocol), read, |code| code.jump(on, &[zero, zero]));
        code.switch_to_block(on);
        TranslatedFields { header, source, destination, protocol, from, to }
    }

    /// The other end's port in a flow's key: an echo has none of its own.
    fn other_port(&self, code: &mut ElementBuilder<'_, '_>, port: Value) -> Value {
        let (icmp, zero) = (code.int(i64::from(ICMP6)), code.int(0));
        let echo = code.compare(Cond::Eq, self.protocol, icmp);
        code.select(echo, zero, port)
    }
}

/// The sum of the words of an address and of a port, folded, in the order of numbers.
fn sum(code: &mut ElementBuilder<'_, '_>, address: [Value; 4], port: Value) -> Value {
    let total = address.into_iter().fold(port, |total, word| code.add(total, word));
    fold(code, total)
}

impl AddressTranslator {
    /// Ends with the packet after its source or destination has changed, with another port or identifier.
    fn leave(
        &self,
        code: &mut ElementBuilder<'_, '_>,
        packet: PacketValues,
        ends: &TranslatedFields,
        outward: bool,
        address: [Value; 4],
        port: Value,
    ) {
        let (place, old, old_port) =
            if outward { (SOURCE, ends.source, ends.from) } else { (DESTINATION, ends.destination, ends.to) };
        let (gone, come) = (sum(code, old, old_port), sum(code, address, port));
        set_words(code, ends.header, place, address);
        let output = u32::from(!outward);
        let packet = if outward { packet } else { packet.bound_for(address) };
        let write = |code: &mut ElementBuilder<'_, '_>, number: i64, payload: Value| {
            let offset = match number {
                TCP => 16,
                UDP => 6,
                _ => 2,
            };
            let before = code.half(payload, offset);
            let (kept, gone) = (code.with(AluOp::Xor, before, 0xffff), code.with(AluOp::Xor, gone, 0xffff));
            let total = code.add(kept, gone);
            let total = code.add(total, come);
            let total = fold(code, total);
            let mut after = code.with(AluOp::Xor, total, 0xffff);
            if number == UDP {
                let (zero, ones) = (code.int(0), code.int(0xffff));
                let none = code.compare(Cond::Eq, after, zero);
                after = code.select(none, ones, after);
            }
            code.set_half(payload, offset, after);
            if number == i64::from(ICMP6) {
                let kind = code.byte(payload, 0);
                let kind = code.with(AluOp::And, kind, 0xfe);
                code.check_int(Cond::Eq, kind, 128, |code| code.out(output, packet));
                code.set_half(payload, 4, port);
            } else {
                code.set_half(payload, if outward { 0 } else { 2 }, port);
            }
            code.out(output, packet);
        };
        by_protocol(code, packet, (ends.header, ends.protocol), write, |code| code.out(output, packet));
    }

    /// Ends with packets of pairs, whose own side is the first one given, and goes on with all others.
    fn paired(
        &self,
        code: &mut ElementBuilder<'_, '_>,
        packet: PacketValues,
        ends: &TranslatedFields,
        outward: bool,
    ) {
        let (own, own_port) = if outward { (ends.source, ends.from) } else { (ends.destination, ends.to) };
        for pair in &self.pairs {
            let (from, to) =
                if outward { (&pair.inside, &pair.outside) } else { (&pair.outside, &pair.inside) };
            let next = code.block();
            let other = differs(code, own, from.0, u128::MAX);
            code.check_int(Cond::Eq, other, 0, |code| code.jump(next, &[]));
            if let Some(port) = from.1 {
                code.check_int(Cond::Eq, own_port, i64::from(port), |code| code.jump(next, &[]));
            }
            let port = to.1.map_or(own_port, |port| code.int(i64::from(port)));
            let address = constant(code, to.0);
            self.leave(code, packet, ends, outward, address, port);
            code.switch_to_block(next);
        }
    }

    fn outward(&self, code: &mut ElementBuilder<'_, '_>, packet: PacketValues, ends: &TranslatedFields) {
        self.paired(code, packet, ends, true);
        match &self.free {
            DynamicMapping::Nothing => code.drop(packet, "no_mapping"),
            DynamicMapping::Addresses { pool, taken, given, next } => {
                let number = number_of(code, packet, (*taken, *given, *next), ends.source, pool.len());
                let zero = code.int(0);
                let mut address = [zero; 4];
                for (at, one) in pool.iter().enumerate() {
                    let at = code.int(at as i64);
                    let is = code.compare(Cond::Eq, number, at);
                    let words = constant(code, *one);
                    address = [0, 1, 2, 3].map(|word| code.select(is, words[word], address[word]));
                }
                self.leave(code, packet, ends, true, address, ends.from);
            }
            DynamicMapping::Ports { address, ports, outward, inward, next } => {
                let port = port_of(code, packet, (*outward, *inward, *next), ends, *ports);
                let address = constant(code, *address);
                self.leave(code, packet, ends, true, address, port);
            }
        }
    }

    fn inward(&self, code: &mut ElementBuilder<'_, '_>, packet: PacketValues, ends: &TranslatedFields) {
        self.paired(code, packet, ends, false);
        match &self.free {
            DynamicMapping::Nothing => {}
            DynamicMapping::Addresses { pool, given, .. } => {
                for (at, one) in pool.iter().enumerate() {
                    let next = code.block();
                    let other = differs(code, ends.destination, *one, u128::MAX);
                    code.check_int(Cond::Eq, other, 0, |code| code.jump(next, &[]));
                    let at = code.int(at as i64);
                    let entry = code.find(given, &[at]);
                    code.check_int(Cond::Ne, entry, 0, |code| code.jump(next, &[]));
                    let known = code.field(entry, 20);
                    code.check_int(Cond::Ne, known, 0, |code| code.jump(next, &[]));
                    let inside = [0, 4, 8, 12].map(|offset| code.field(entry, offset));
                    self.leave(code, packet, ends, false, inside, ends.to);
                    code.switch_to_block(next);
                }
            }
            DynamicMapping::Ports { address, inward, .. } => {
                let other = differs(code, ends.destination, *address, u128::MAX);
                code.check_int(Cond::Eq, other, 0, |code| code.drop(packet, "no_mapping"));
                let key = inward_key(code, ends, ends.source, ends.from, ends.to);
                let entry = code.find(inward, &key);
                code.check_int(Cond::Ne, entry, 0, |code| code.drop(packet, "no_mapping"));
                let inside = [0, 4, 8, 12].map(|offset| code.field(entry, offset));
                let port = code.field(entry, 16);
                self.leave(code, packet, ends, false, inside, port);
                return;
            }
        }
        code.drop(packet, "no_mapping");
    }
}

/// An address as words of the code.
fn constant(code: &mut ElementBuilder<'_, '_>, address: u128) -> [Value; 4] {
    super::ip6::address_words(address).map(|word| code.int(word))
}

/// Which address of the pool a host has; it gets the next one if it has none.
fn number_of(
    code: &mut ElementBuilder<'_, '_>,
    packet: PacketValues,
    (taken, given, next): (ElementHashTable, ElementHashTable, u32),
    host: [Value; 4],
    pool: usize,
) -> Value {
    let (known, new, on, zero) = (code.block(), code.block(), code.block(), code.int(0));
    let number = code.number_param(on);
    let entry = code.find(&taken, &host);
    code.branch(Cond::Ne, entry, zero, known, new);
    code.switch_to_block(known);
    let has = code.wide(entry, 0);
    code.jump(on, &[has]);
    code.switch_to_block(new);
    let fresh = code.get(next);
    code.check_int(Cond::Lt, fresh, pool as i64, |code| code.drop(packet, "no_free_address"));
    let error = code.update_entry(&taken, &host, &[fresh]);
    code.check_int(Cond::Eq, error, 0, |code| code.drop(packet, "no_free_address"));
    let [a, b, c, d] = host;
    let one = code.int(1);
    code.update_entry(&given, &[fresh], &[a, b, c, d, zero, one]);
    let following = code.with(AluOp::Add, fresh, 1);
    code.set(next, following);
    code.jump(on, &[fresh]);
    code.switch_to_block(on);
    number
}

/// The key of a flow that comes in to a port.
fn inward_key(
    code: &mut ElementBuilder<'_, '_>,
    ends: &TranslatedFields,
    other: [Value; 4],
    from: Value,
    port: Value,
) -> Vec<Value> {
    let from = ends.other_port(code, from);
    let high = code.with(AluOp::Lsh, from, 16);
    let ports = code.alu(AluOp::Or, high, port);
    let [a, b, c, d] = other;
    vec![a, b, c, d, ports, ends.protocol]
}

/// The port of a flow that leaves; it gets the next free one if it has none.
fn port_of(
    code: &mut ElementBuilder<'_, '_>,
    packet: PacketValues,
    (outward, inward, next): (ElementHashTable, ElementHashTable, u32),
    ends: &TranslatedFields,
    (first, last): (u16, u16),
) -> Value {
    // Packets without ports have none to translate.
    code.check_int(Cond::Ne, ends.from, 0, |code| code.drop(packet, "no_port"));
    let to = ends.other_port(code, ends.to);
    let high = code.with(AluOp::Lsh, ends.from, 16);
    let both = code.alu(AluOp::Or, high, to);
    let key: Vec<Value> =
        ends.source.into_iter().chain(ends.destination).chain([both, ends.protocol]).collect();
    let (known, new, on, zero) = (code.block(), code.block(), code.block(), code.int(0));
    let port = code.number_param(on);
    let entry = code.find(&outward, &key);
    code.branch(Cond::Ne, entry, zero, known, new);
    code.switch_to_block(known);
    let has = code.wide(entry, 0);
    code.jump(on, &[has]);

    code.switch_to_block(new);
    let all = i64::from(last) - i64::from(first) + 1;
    let (search, free, taken) = (code.block(), code.block(), code.block());
    let tried = code.number_param(search);
    code.jump(search, &[zero]);
    code.switch_to_block(search);
    code.check_int(Cond::Lt, tried, all, |code| code.drop(packet, "no_free_port"));
    let turn = code.get(next);
    let following = code.with(AluOp::Add, turn, 1);
    code.set(next, following);
    let place = code.with(AluOp::Mod, turn, all);
    let fresh = code.with(AluOp::Add, place, i64::from(first));
    let answers = inward_key(code, ends, ends.destination, ends.to, fresh);
    let entry = code.find(&inward, &answers);
    code.branch(Cond::Eq, entry, zero, free, taken);
    code.switch_to_block(taken);
    let again = code.with(AluOp::Add, tried, 1);
    code.jump(search, &[again]);
    code.switch_to_block(free);
    let [a, b, c, d] = ends.source;
    for (table, key, value) in
        [(inward, answers, vec![a, b, c, d, ends.from, zero]), (outward, key, vec![fresh])]
    {
        let error = code.update_entry(&table, &key, &value);
        code.check_int(Cond::Eq, error, 0, |code| code.drop(packet, "no_room_for_flow"));
    }
    code.jump(on, &[fresh]);
    code.switch_to_block(on);
    port
}

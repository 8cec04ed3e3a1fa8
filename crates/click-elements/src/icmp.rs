//! `ICMPError`. Source: RFC 792; RFC 1812, 4.3.2.
//!
//! The error is made in place: the packet that it speaks of is its payload already, and gets two headers in
//! front.

use millstream_ir::Value;
use millstream_isa::{AluOp, Cond};

use super::ip::{fold, header, header_length};
use super::transport::sum_bytes;
use millstream_click::arguments::{boolean, ip, unsigned};
use millstream_click::build::ElementBuilder;
use millstream_click::class::{ElementClass, ElementCodegen, ElementResult};
use millstream_click::keyword::{ArgumentSpec, at, key};
use millstream_click::packet::{Annotation, HOST, PacketValues};
use millstream_click::{ElementSetup, Error, SpannedText, words};

const ARGUMENTS: &[ArgumentSpec] = &[
    at("SRC"),
    at("TYPE"),
    at("CODE"),
    at("BADADDRS"),
    key("MTU"),
    key("PMTU"),
    key("USE_FIX_ANNO"),
    key("SET_FIX_ANNO"),
];

pub(super) const CLASSES: &[ElementClass] =
    &[ElementClass::filter("ICMPError", "Makes errors about packets, in their place.", ARGUMENTS, error)];

const UNREACHABLE: i64 = 3;
const REDIRECT: i64 = 5;
const PARAMETER_PROBLEM: i64 = 12;
const TYPES: &[(&str, i64)] = &[
    ("unreachable", UNREACHABLE),
    ("sourcequench", 4),
    ("redirect", REDIRECT),
    ("timeexceeded", 11),
    ("parameterproblem", PARAMETER_PROBLEM),
];
const NEED_FRAGMENTATION: i64 = 4;
const CODES: &[(i64, &str, i64)] = &[
    (UNREACHABLE, "net", 0),
    (UNREACHABLE, "host", 1),
    (UNREACHABLE, "protocol", 2),
    (UNREACHABLE, "port", 3),
    (UNREACHABLE, "needfrag", NEED_FRAGMENTATION),
    (REDIRECT, "net", 0),
    (REDIRECT, "host", 1),
    (11, "transit", 0),
    (11, "reassembly", 1),
    (PARAMETER_PROBLEM, "erroratptr", 0),
    (PARAMETER_PROBLEM, "missingopt", 1),
    (PARAMETER_PROBLEM, "length", 2),
];

/// Bytes of the two headers.
const HEADERS: i64 = 28;
const ICMP: i64 = 1;
/// The upper four bits of group addresses.
const CLASS_D: i64 = 14;
/// Time to live of an error, as the peer has it.
const TTL: u8 = 200;

struct IcmpError {
    source: i64,
    kind: i64,
    code: i64,
    bad: Vec<u32>,
    most: i64,
    path_mtu: i64,
    fix: bool,
    /// The identification of the last error, of whichever element.
    id: u32,
}

fn named(text: &SpannedText, names: &[(&str, i64)]) -> Result<i64, Error> {
    match names.iter().find(|(name, _)| *name == text.text) {
        Some((_, number)) => Ok(*number),
        None => unsigned(text, 255)
            .map(|n| n as i64)
            .map_err(|e| e.nearest(&text.text, names.iter().map(|(name, _)| *name))),
    }
}

fn error(setup: &mut ElementSetup<'_>) -> ElementResult {
    let names = setup.arguments.names;
    let source = i64::from(ip(&setup.arguments.need("SRC")?, names)?);
    let kind = named(&setup.arguments.need("TYPE")?, TYPES)?;
    let codes: Vec<(&str, i64)> =
        CODES.iter().filter(|(of, ..)| *of == kind).map(|(_, name, code)| (*name, *code)).collect();
    let code = setup.arguments.or("CODE", 0, |text| named(text, &codes))?;
    let bad = match setup.arguments.next("BADADDRS") {
        Some(text) => words(&text).iter().map(|word| ip(word, names)).collect::<Result<_, _>>()?,
        None => Vec::new(),
    };
    let number = |text: &SpannedText| unsigned(text, 0xffff).map(|n| n as i64);
    let most = setup.arguments.keyword_or("MTU", 576, number)?;
    let path_mtu = setup.arguments.keyword_or("PMTU", 0, number)?;
    let fix = setup.arguments.keyword_or("USE_FIX_ANNO", true, boolean)?;
    let fix = setup.arguments.keyword_or("SET_FIX_ANNO", fix, boolean)?;
    let id = setup.shared_number("icmp.id");
    Ok(Box::new(IcmpError { source, kind, code, bad, most, path_mtu, fix, id }))
}

impl ElementCodegen for IcmpError {
    fn build(&self, code: &mut ElementBuilder<'_, '_>, _: u32, packet: PacketValues) {
        let header = header(code, packet);
        let length = header_length(code, header);
        let payload = code.plus(header, length);
        code.check(Cond::Le, payload, packet.end, |code| code.drop(packet, "too_short"));
        self.refuse(code, packet, header, payload);
        self.answer(code, packet, header);
    }
}

impl IcmpError {
    /// Drops packets that no error may be sent about (RFC 1812, 4.3.2.7).
    fn refuse(&self, code: &mut ElementBuilder<'_, '_>, packet: PacketValues, header: Value, payload: Value) {
        code.check_int(Cond::Eq, packet.note(Annotation::Cast), HOST, |code| code.drop(packet, "broadcast"));
        let fragment = code.half(header, 6);
        let offset = code.with(AluOp::And, fragment, 0x1fff);
        code.check_int(Cond::Eq, offset, 0, |code| code.drop(packet, "fragment"));
        let (source, destination) = (code.word(header, 12), code.word(header, 16));
        let class = code.with(AluOp::Rsh, source, 28);
        code.check_int(Cond::Lt, class, CLASS_D, |code| code.drop(packet, "bad_source"));
        let class = code.with(AluOp::Rsh, destination, 28);
        code.check_int(Cond::Ne, class, CLASS_D, |code| code.drop(packet, "bad_destination"));
        code.check_int(Cond::Ne, destination, 0xffff_ffff, |code| code.drop(packet, "bad_destination"));
        let network = code.with(AluOp::Rsh, source, 24);
        for refused in [0, 127] {
            code.check_int(Cond::Ne, network, refused, |code| code.drop(packet, "bad_source"));
        }
        for bad in &self.bad {
            for (address, reason) in [(source, "bad_source"), (destination, "bad_destination")] {
                code.check_int(Cond::Ne, address, i64::from(*bad), |code| code.drop(packet, reason));
            }
        }
        // An ICMP packet that is no error may be answered: 3, 4, 5, 11 and 12 are.
        let (on, icmp) = (code.block(), code.block());
        let protocol = code.byte(header, 9);
        let number = code.int(ICMP);
        code.branch(Cond::Eq, protocol, number, icmp, on);
        code.switch_to_block(icmp);
        let beyond = code.at(payload, 1);
        code.check(Cond::Le, beyond, packet.end, |code| code.drop(packet, "too_short"));
        let kind = code.byte(payload, 0);
        for (_, error) in TYPES {
            code.check_int(Cond::Ne, kind, *error, |code| code.drop(packet, "icmp_error"));
        }
        code.jump(on, &[]);
        code.switch_to_block(on);
    }

    fn answer(&self, code: &mut ElementBuilder<'_, '_>, packet: PacketValues, header: Value) {
        let source = code.word(header, 12);
        let data = code.push(packet, header, HEADERS);
        // Number of bytes of the packet that the error carries, at most.
        let (all, most) = (code.sub(packet.end, header), code.int(self.most - HEADERS));
        let long = code.compare(Cond::Gt, all, most);
        let carried = code.select(long, most, all);
        let end = code.end(header, carried);
        let total = code.with(AluOp::Add, carried, HEADERS);
        let one = code.int(1);
        code.count(self.id, one);
        let id = code.get(self.id);
        code.write(data, 0, &[0x45, 0]);
        code.set_half(data, 2, total);
        code.set_half(data, 4, id);
        code.write(data, 6, &[0, 0, TTL, ICMP as u8, 0, 0]);
        let own = code.int(self.source);
        code.set_word(data, 12, own);
        code.set_word(data, 16, source);
        let length = code.int(20);
        super::ip::set_checksum(code, data, length);
        self.message(code, packet, data);
        self.checksum(code, data, end);
        let (fix, yes, zero) = (code.truth(self.fix), code.truth(true), code.int(0));
        let answer = packet
            .bounded(data, end)
            .with(Annotation::Network, data)
            .with(Annotation::HasNetwork, yes)
            .with(Annotation::Destination, source)
            .with(Annotation::FixSource, fix)
            .with(Annotation::Paint, zero)
            .with(Annotation::Parameter, zero);
        code.out(0, answer);
    }

    /// Type, code and the four bytes that depend on them.
    fn message(&self, code: &mut ElementBuilder<'_, '_>, packet: PacketValues, data: Value) {
        code.write(data, 20, &[self.kind as u8, self.code as u8, 0, 0, 0, 0, 0, 0]);
        match (self.kind, self.code) {
            (REDIRECT, _) => code.set_word(data, 24, packet.note(Annotation::Destination)),
            (PARAMETER_PROBLEM, 0) => code.set_byte(data, 24, packet.note(Annotation::Parameter)),
            (UNREACHABLE, NEED_FRAGMENTATION) => {
                let mtu = code.int(self.path_mtu);
                code.set_half(data, 26, mtu);
            }
            _ => {}
        }
    }

    /// Of all from the ICMP header on.
    fn checksum(&self, code: &mut ElementBuilder<'_, '_>, data: Value, end: Value) {
        let from = code.at(data, 20);
        let (bytes, zero) = (code.sub(end, from), code.int(0));
        let sum = sum_bytes(code, from, bytes, zero);
        let sum = fold(code, sum);
        let sum = code.with(AluOp::Xor, sum, 0xffff);
        code.set_raw(2, data, 22, sum);
    }
}

//! Header operations of hosts: they put headers in front, swap them, answer echo requests, and write the
//! checksum of the bytes behind them. Source: RFC 768, 791, 792, 793, 1071, 1624.

use millstream_ir::Value;
use millstream_isa::{AluOp, Cond};

use super::ip::{HEADER, checked_and_set, fold, header, header_length, set_checksum};
use super::ip_filter::NUMBERED;
use super::port_names::named_port;
use super::transport::{ICMP, TCP, UDP, bad, pseudo_sum, sum_bytes};
use millstream_click::arguments::{boolean, byte, ip, unsigned};
use millstream_click::build::ElementBuilder;
use millstream_click::class::{ElementClass, ElementCodegen, ElementResult};
use millstream_click::keyword::{at, key};
use millstream_click::packet::{Annotation, PacketValues};
use millstream_click::{ElementSetup, Error, SettingType, SettingValue};

pub(super) const CLASSES: &[ElementClass] = &[
    ElementClass::filter("SetTCPChecksum", "Sets the checksum of TCP.", &[at("FIXOFF")], set_tcp),
    ElementClass::check("SetUDPChecksum", "Sets the checksum of UDP.", &[], |_| {
        Ok(Box::new(SetSum { protocol: UDP, fix_offset: false }))
    }),
    ElementClass::filter("IPMirror", "Exchanges addresses and ports.", &[at("DST_ANNO")], mirror),
    ElementClass::filter(
        "UDPIPEncap",
        "Puts headers of IP and UDP in front.",
        &[at("SRC"), at("SPORT"), at("DST"), at("DPORT"), at("CHECKSUM")],
        encap,
    ),
    ElementClass::check("ICMPPingResponder", "Answers echo requests.", &[], |_| Ok(Box::new(PingResponder))),
    ElementClass::filter(
        "IPEncap",
        "Puts an IP header in front.",
        &[
            at("PROTO"),
            at("SRC"),
            at("DST"),
            key("TTL"),
            key("TOS"),
            key("DSCP"),
            key("DF"),
            key("ECT"),
            key("CE"),
        ],
        encap_ip,
    )
    .passing(),
    ElementClass::filter("ResetIPChecksum", "Sets checksums as a card would.", &[at("L4")], reset),
];

/// Bytes of the headers of TCP, UDP and an echo.
const TCP_HEADER: i64 = 20;
const UDP_HEADER: i64 = 8;
const ECHO: i64 = 8;
/// In the half with a fragment's offset: more fragments or an offset; the offset alone.
const FRAGMENT: i64 = 0x3fff;
const OFFSET: i64 = 0x1fff;
/// Time to live of packets that are made here.
const HOPS: u8 = 250;

/// The header behind that of IP, with at least `bytes` bytes; `wrong` handles all other packets.
fn transport(
    code: &mut ElementBuilder<'_, '_>,
    packet: PacketValues,
    header: Value,
    bytes: i64,
    wrong: &dyn Fn(&mut ElementBuilder<'_, '_>, &'static str),
) -> Value {
    let length = header_length(code, header);
    code.check_int(Cond::Ge, length, HEADER, |code| wrong(code, "bad_header_length"));
    let transport = code.plus(header, length);
    let beyond = code.at(transport, bytes);
    code.check(Cond::Le, beyond, packet.end, |code| wrong(code, "too_short"));
    transport
}

/// Sets the checksum of TCP or UDP.
struct SetSum {
    protocol: i64,
    /// True if an invalid data offset is replaced by a valid one.
    fix_offset: bool,
}

fn set_tcp(setup: &mut ElementSetup<'_>) -> ElementResult {
    let fix_offset = setup.arguments.or("FIXOFF", false, boolean)?;
    Ok(Box::new(SetSum { protocol: TCP, fix_offset }))
}

impl ElementCodegen for SetSum {
    fn build(&self, code: &mut ElementBuilder<'_, '_>, _: u32, packet: PacketValues) {
        let header = header(code, packet);
        self.sum(code, packet, header, &|code, reason| bad(code, packet, reason));
        code.out(0, packet);
    }
}

impl SetSum {
    /// Sets the sum; if that is impossible, does what `wrong` does, which must end the block.
    fn sum(
        &self,
        code: &mut ElementBuilder<'_, '_>,
        packet: PacketValues,
        header: Value,
        wrong: &dyn Fn(&mut ElementBuilder<'_, '_>, &'static str),
    ) {
        let (least, place) = if self.protocol == TCP { (TCP_HEADER, 16) } else { (UDP_HEADER, 6) };
        let transport = transport(code, packet, header, least, wrong);
        let bytes = if self.protocol == TCP {
            let (total, length) = (code.half(header, 2), header_length(code, header));
            let bytes = code.sub(total, length);
            code.check_int(Cond::Sge, bytes, least, |code| wrong(code, "bad_length"));
            bytes
        } else {
            let fragment = code.half(header, 6);
            let fragment = code.with(AluOp::And, fragment, FRAGMENT);
            code.check_int(Cond::Eq, fragment, 0, |code| wrong(code, "fragment"));
            let bytes = code.half(transport, 4);
            code.check_int(Cond::Ge, bytes, least, |code| wrong(code, "bad_length"));
            bytes
        };
        let beyond = code.plus(transport, bytes);
        code.check(Cond::Le, beyond, packet.end, |code| wrong(code, "bad_length"));
        if self.fix_offset {
            fix_offset(code, transport, bytes);
        }
        code.write(transport, place, &[0, 0]);
        let sum = pseudo_sum(code, header, bytes, self.protocol);
        let sum = sum_bytes(code, transport, bytes, sum);
        let sum = fold(code, sum);
        let sum = code.with(AluOp::Xor, sum, 0xffff);
        code.set_raw(2, transport, place, sum);
    }
}

/// Sets the checksums that a card would: of IP, and of TCP and UDP if it is asked to.
struct ResetChecksum {
    transport: bool,
}

fn reset(setup: &mut ElementSetup<'_>) -> ElementResult {
    Ok(Box::new(ResetChecksum { transport: setup.arguments.or("L4", false, boolean)? }))
}

impl ElementCodegen for ResetChecksum {
    fn build(&self, code: &mut ElementBuilder<'_, '_>, _: u32, packet: PacketValues) {
        let header = checked_and_set(code, packet);
        if !self.transport {
            return code.out(0, packet);
        }
        let (out, protocol) = (code.block(), code.byte(header, 9));
        let fragment = code.half(header, 6);
        let fragment = code.with(AluOp::And, fragment, FRAGMENT);
        code.check_int(Cond::Eq, fragment, 0, |code| code.jump(out, &[]));
        for number in [TCP, UDP] {
            let (this, next, known) = (code.block(), code.block(), code.int(number));
            code.branch(Cond::Eq, protocol, known, this, next);
            code.switch_to_block(this);
            let set = SetSum { protocol: number, fix_offset: false };
            set.sum(code, packet, header, &|code, _| code.jump(out, &[]));
            code.jump(out, &[]);
            code.switch_to_block(next);
        }
        code.jump(out, &[]);
        code.switch_to_block(out);
        code.out(0, packet);
    }
}

/// Limits TCP's data offset: at least a header without options, at most the bytes that exist.
fn fix_offset(code: &mut ElementBuilder<'_, '_>, transport: Value, bytes: Value) {
    let byte = code.byte(transport, 12);
    let words = code.with(AluOp::Rsh, byte, 4);
    let own = code.with(AluOp::Lsh, words, 2);
    let (least, flags) = (code.int(TCP_HEADER), code.with(AluOp::And, byte, 15));
    let low = code.compare(Cond::Lt, own, least);
    let high = code.compare(Cond::Gt, own, bytes);
    let whole = code.with(AluOp::And, bytes, !3);
    let own = code.select(high, whole, own);
    let own = code.select(low, least, own);
    let words = code.with(AluOp::Lsh, own, 2);
    let byte = code.alu(AluOp::Or, words, flags);
    code.set_byte(transport, 12, byte);
}

/// Swaps source and destination, addresses and ports.
struct IpMirror {
    annotation: bool,
}

fn mirror(setup: &mut ElementSetup<'_>) -> ElementResult {
    Ok(Box::new(IpMirror { annotation: setup.arguments.or("DST_ANNO", true, boolean)? }))
}

impl ElementCodegen for IpMirror {
    fn build(&self, code: &mut ElementBuilder<'_, '_>, _: u32, mut packet: PacketValues) {
        let header = header(code, packet);
        code.exchange(header, 12, 16, 4);
        if self.annotation {
            let destination = code.word(header, 16);
            packet = packet.with(Annotation::Destination, destination);
        }
        let out = code.block();
        let fragment = code.half(header, 6);
        let offset = code.with(AluOp::And, fragment, OFFSET);
        code.check_int(Cond::Eq, offset, 0, |code| code.jump(out, &[]));
        let length = header_length(code, header);
        let transport = code.plus(header, length);
        let beyond = code.at(transport, UDP_HEADER);
        code.check(Cond::Le, beyond, packet.end, |code| code.jump(out, &[]));
        let (protocol, tcp, other) = (code.byte(header, 9), code.block(), code.block());
        let number = code.int(TCP);
        code.branch(Cond::Eq, protocol, number, tcp, other);
        code.switch_to_block(other);
        code.check_int(Cond::Eq, protocol, UDP, |code| code.jump(out, &[]));
        code.exchange(transport, 0, 2, 2);
        code.jump(out, &[]);
        code.switch_to_block(tcp);
        code.exchange(transport, 0, 2, 2);
        // The acknowledgement number, if that exists, too.
        let beyond = code.at(transport, 12);
        code.check(Cond::Le, beyond, packet.end, |code| code.jump(out, &[]));
        code.exchange(transport, 4, 8, 4);
        code.jump(out, &[]);
        code.switch_to_block(out);
        code.out(0, packet);
    }
}

/// Puts headers of IP and UDP in front.
struct UdpIpEncap {
    source: SettingValue,
    /// None for the annotation.
    destination: Option<SettingValue>,
    ports: [SettingValue; 2],
    checksum: bool,
    /// The identification of the next packet.
    id: u32,
}

/// Addresses that handlers read and, where somebody may, write; the destination unless it is that of the
/// annotation.
fn ends(
    setup: &mut ElementSetup<'_>,
    source: u32,
    destination: Option<u32>,
) -> (SettingValue, Option<SettingValue>) {
    let source = setup.setting("src", SettingType::Address, i64::from(source));
    (source, destination.map(|address| setup.setting("dst", SettingType::Address, i64::from(address))))
}

fn encap(setup: &mut ElementSetup<'_>) -> ElementResult {
    let names = setup.arguments.names;
    let source = ip(&setup.arguments.need("SRC")?, names)?;
    let text = setup.arguments.need("SPORT")?;
    let from = named_port(setup, &text, "udp")?;
    let text = setup.arguments.need("DST")?;
    let destination = if text.text == "DST_ANNO" { None } else { Some(ip(&text, names)?) };
    let text = setup.arguments.need("DPORT")?;
    let to = named_port(setup, &text, "udp")?;
    let checksum = setup.arguments.or("CHECKSUM", true, boolean)?;
    let (source, destination) = ends(setup, source, destination);
    let port = SettingType::Number(0, 0xffff);
    let ports =
        [("sport", from), ("dport", to)].map(|(name, value)| setup.setting(name, port, i64::from(value)));
    Ok(Box::new(UdpIpEncap { source, destination, ports, checksum, id: setup.number() }))
}

impl ElementCodegen for UdpIpEncap {
    fn build(&self, code: &mut ElementBuilder<'_, '_>, _: u32, mut packet: PacketValues) {
        packet.data = code.push(packet, packet.data, HEADER + UDP_HEADER);
        let data = packet.data;
        let destination = match self.destination {
            Some(address) => code.setting(address),
            None => packet.note(Annotation::Destination),
        };
        let (total, id, one) = (code.length(packet), code.get(self.id), code.int(1));
        code.check_int(Cond::Le, total, 0xffff, |code| code.drop(packet, "too_long"));
        code.count(self.id, one);
        code.write(data, 0, &[0x45, 0]);
        code.set_half(data, 2, total);
        code.set_half(data, 4, id);
        code.write(data, 6, &[0, 0, HOPS, UDP as u8, 0, 0]);
        let source = code.setting(self.source);
        code.set_word(data, 12, source);
        code.set_word(data, 16, destination);
        let length = code.int(HEADER);
        set_checksum(code, data, length);
        let (transport, bytes) = (code.at(data, HEADER), code.with(AluOp::Sub, total, HEADER));
        for (port, offset) in self.ports.into_iter().zip([0, 2]) {
            let port = code.setting(port);
            code.set_half(transport, offset, port);
        }
        code.set_half(transport, 4, bytes);
        code.write(transport, 6, &[0, 0]);
        if self.checksum {
            let sum = pseudo_sum(code, data, bytes, UDP);
            let sum = sum_bytes(code, transport, bytes, sum);
            let sum = fold(code, sum);
            let sum = code.with(AluOp::Xor, sum, 0xffff);
            code.set_raw(2, transport, 6, sum);
        }
        let yes = code.truth(true);
        let packet = packet.with(Annotation::Network, data).with(Annotation::HasNetwork, yes);
        code.out(0, packet.with(Annotation::Destination, destination));
    }
}

/// Puts a header of IP in front.
struct EncapIp {
    /// Constant part of all headers: the header without length, identification and checksum.
    header: [u8; HEADER as usize],
    source: SettingValue,
    /// If none is given, the annotation's.
    destination: Option<SettingValue>,
    /// The identification of the next packet.
    id: u32,
}

fn encap_ip(setup: &mut ElementSetup<'_>) -> ElementResult {
    let names = setup.arguments.names;
    let text = setup.arguments.need("PROTO")?;
    let known = NUMBERED.iter().find(|(name, _)| *name == text.text).map(|(_, number)| u64::from(*number));
    let protocol = known.map_or_else(|| byte(&text), Ok);
    let protocol = protocol.map_err(|e| e.nearest(&text.text, NUMBERED.iter().map(|(name, _)| *name)))?;
    let source = ip(&setup.arguments.need("SRC")?, names)?;
    let text = setup.arguments.need("DST")?;
    let destination = if text.text == "DST_ANNO" { None } else { Some(ip(&text, names)?) };
    let hops = setup.arguments.keyword_or("TTL", u64::from(HOPS), byte)?;
    let class = setup.arguments.keyword("TOS").map(|text| byte(&text)).transpose()?;
    let code_point = setup.arguments.keyword("DSCP").map(|text| unsigned(&text, 62)).transpose()?;
    let capable = setup.arguments.keyword("ECT");
    let capable = capable.map(|text| if text.text == "2" { Ok(2) } else { boolean(&text).map(u64::from) });
    let congested = setup.arguments.keyword_or("CE", false, boolean)?;
    let notified = match (capable.transpose()?.unwrap_or(0), congested) {
        (0, true) => 3,
        // ECT(1) is 1, ECT(0) is 2 (RFC 3168).
        (bits, false) => bits,
        _ => return Err(Error::new(setup.element.span, "ECT and CE exclude each other")),
    };
    if class.is_some() && (code_point.is_some() || notified > 0) {
        return Err(Error::new(setup.element.span, "TOS excludes DSCP, ECT and CE"));
    }
    let class = class.unwrap_or(code_point.unwrap_or(0) << 2 | notified);
    let kept_whole = if setup.arguments.keyword_or("DF", false, boolean)? { 0x40 } else { 0 };
    let mut header = [0; HEADER as usize];
    header[..10].copy_from_slice(&[0x45, class as u8, 0, 0, 0, 0, kept_whole, 0, hops as u8, protocol as u8]);
    let (source, destination) = ends(setup, source, destination);
    for (at, address) in [(12, Some(source)), (16, destination)] {
        if let Some(SettingValue::Fixed(address)) = address {
            header[at..at + 4].copy_from_slice(&(address as u32).to_be_bytes());
        }
    }
    Ok(Box::new(EncapIp { header, source, destination, id: setup.number() }))
}

impl ElementCodegen for EncapIp {
    fn build(&self, code: &mut ElementBuilder<'_, '_>, _: u32, mut packet: PacketValues) {
        packet.data = code.push(packet, packet.data, HEADER);
        let (data, total) = (packet.data, code.length(packet));
        code.check_int(Cond::Le, total, 0xffff, |code| code.drop(packet, "too_long"));
        code.write(data, 0, &self.header);
        let (id, one) = (code.get(self.id), code.int(1));
        code.count(self.id, one);
        code.set_half(data, 2, total);
        code.set_half(data, 4, id);
        for (address, offset) in [(Some(self.source), 12), (self.destination, 16)] {
            match address {
                // It is in the header.
                Some(SettingValue::Fixed(_)) => {}
                Some(live) => {
                    let address = code.setting(live);
                    code.set_word(data, offset, address);
                }
                None => code.set_word(data, offset, packet.note(Annotation::Destination)),
            }
        }
        let length = code.int(HEADER);
        set_checksum(code, data, length);
        let (destination, yes) = (code.word(data, 16), code.truth(true));
        let packet = packet.with(Annotation::Network, data).with(Annotation::HasNetwork, yes);
        code.out(0, packet.with(Annotation::Destination, destination));
    }
}

/// Makes echo requests their answers.
struct PingResponder;

impl ElementCodegen for PingResponder {
    fn build(&self, code: &mut ElementBuilder<'_, '_>, _: u32, packet: PacketValues) {
        let header = header(code, packet);
        let transport = transport(code, packet, header, ECHO, &|code, reason| bad(code, packet, reason));
        let other = |code: &mut ElementBuilder<'_, '_>| bad(code, packet, "no_echo_request");
        let (protocol, kind) = (code.byte(header, 9), code.byte(transport, 0));
        code.check_int(Cond::Eq, protocol, ICMP, other);
        code.check_int(Cond::Eq, kind, 8, other);
        code.exchange(header, 12, 16, 4);
        // No flags, no fragment, all hops left.
        let (flags, hops) = (code.raw(2, header, 6), code.raw(2, header, 8));
        code.write(header, 6, &[0, 0, u8::MAX]);
        let zero = code.int(0);
        update(code, header, 10, flags, zero);
        let new = code.raw(2, header, 8);
        update(code, header, 10, hops, new);
        let old = code.raw(2, transport, 0);
        code.write(transport, 0, &[0, 0]);
        update(code, transport, 2, old, zero);
        let destination = code.word(header, 16);
        let packet = packet.with(Annotation::Destination, destination);
        code.out(0, packet.with(Annotation::Paint, zero));
    }
}

/// Updates a checksum after a half-word that it covers has changed (RFC 1624, equation 3), in the order of
/// memory.
pub(super) fn update(code: &mut ElementBuilder<'_, '_>, base: Value, place: i32, old: Value, new: Value) {
    let sum = code.raw(2, base, place);
    let [sum, old] = [sum, old].map(|half| code.with(AluOp::Xor, half, 0xffff));
    let sum = code.add(sum, old);
    let sum = code.add(sum, new);
    let sum = fold(code, sum);
    let sum = code.with(AluOp::Xor, sum, 0xffff);
    code.set_raw(2, base, place, sum);
}

//! Ethernet headers, and answers to ARP requests.

use std::net::Ipv4Addr;

use millstream_ir::{Map, Value};
use millstream_isa::{AluOp, Cond};

use crate::devices::cast;
use millstream_click::arguments::{boolean, ether, prefix, unsigned};
use millstream_click::build::ElementBuilder;
use millstream_click::class::{ElementClass, ElementCodegen, ElementResult};
use millstream_click::keyword::{at, key};
use millstream_click::packet::{Annotation, HOST, PacketValues};
use millstream_click::{ElementSetup, Error, HandlerAccess, SettingType, SettingValue, ether_number, words};

/// Bytes of an Ethernet header.
const HEADER: i64 = 14;
/// Bytes of an ARP packet for IP over Ethernet, with its header.
const ARP: i64 = 42;

pub(super) const CLASSES: &[ElementClass] = &[
    ElementClass::filter(
        "EtherEncap",
        "Puts an Ethernet header in front.",
        &[at("ETHERTYPE"), at("SRC"), at("DST")],
        encap,
    )
    .passing(),
    ElementClass::filter("EtherRewrite", "Writes Ethernet addresses.", &[at("SRC"), at("DST")], rewrite)
        .passing(),
    ElementClass::filter("EtherMirror", "Exchanges the Ethernet addresses.", &[], |_| {
        Ok(Box::new(EtherMirror))
    })
    .passing(),
    ElementClass::check("ARPResponder", "Answers questions for addresses.", &[], responder)
        .and(at("PREFIX... ETHER")),
    ElementClass::check(
        "HostEtherFilter",
        "Drops frames that are not for this host.",
        &[at("ETHER"), at("DROP_OWN"), at("DROP_OTHER"), key("OFFSET")],
        host_filter,
    ),
];

fn addresses(setup: &mut ElementSetup<'_>) -> Result<[[u8; 6]; 2], Error> {
    let (source, destination) = (setup.arguments.need("SRC")?, setup.arguments.need("DST")?);
    let names = setup.arguments.names;
    Ok([ether(&destination, names)?, ether(&source, names)?])
}

/// Both addresses of a header, and its type, if that is written, too.
pub(super) struct EtherHeader {
    destination: SettingValue,
    source: SettingValue,
    kind: Option<SettingValue>,
}

impl EtherHeader {
    pub(super) fn new(setup: &mut ElementSetup<'_>, kind: Option<u16>) -> Result<EtherHeader, Error> {
        let [destination, source] = addresses(setup)?.map(ether_number);
        Ok(EtherHeader {
            destination: setup.setting("dst", SettingType::Ether, destination),
            source: setup.setting("src", SettingType::Ether, source),
            kind: kind
                .map(|kind| setup.setting("ethertype", SettingType::Number(0, 0xffff), i64::from(kind))),
        })
    }

    pub(super) fn write(&self, code: &mut ElementBuilder<'_, '_>, at: Value) {
        let fixed = |setting| if let SettingValue::Fixed(value) = setting { Some(value) } else { None };
        let kind = self.kind.map_or(Some(0), fixed);
        if let (Some(destination), Some(source), Some(kind)) =
            (fixed(self.destination), fixed(self.source), kind)
        {
            let six = |address: i64| <[u8; 6]>::try_from(&address.to_be_bytes()[2..]).unwrap_or_default();
            let kind = (kind as u16).to_be_bytes();
            let bytes = [&six(destination)[..], &six(source), &kind].concat();
            return code.write(at, 0, if self.kind.is_some() { &bytes } else { &bytes[..12] });
        }
        for (address, offset) in [(self.destination, 0), (self.source, 6)] {
            let address = code.setting(address);
            code.set_ether(at, offset, address);
        }
        if let Some(kind) = self.kind {
            let kind = code.setting(kind);
            code.set_half(at, 12, kind);
        }
    }
}

/// Puts a header in front.
struct EtherEncap(EtherHeader);

impl ElementCodegen for EtherEncap {
    fn build(&self, code: &mut ElementBuilder<'_, '_>, _: u32, mut packet: PacketValues) {
        packet.data = code.push(packet, packet.data, HEADER);
        self.0.write(code, packet.data);
        code.out(0, packet);
    }
}

fn encap(setup: &mut ElementSetup<'_>) -> ElementResult {
    let kind = unsigned(&setup.arguments.need("ETHERTYPE")?, 0xffff)? as u16;
    Ok(Box::new(EtherEncap(EtherHeader::new(setup, Some(kind))?)))
}

/// Overwrites both addresses.
struct EtherRewrite(EtherHeader);

impl ElementCodegen for EtherRewrite {
    fn build(&self, code: &mut ElementBuilder<'_, '_>, _: u32, packet: PacketValues) {
        code.need(packet, packet.data, 12, "too_short");
        self.0.write(code, packet.data);
        code.out(0, packet);
    }
}

fn rewrite(setup: &mut ElementSetup<'_>) -> ElementResult {
    Ok(Box::new(EtherRewrite(EtherHeader::new(setup, None)?)))
}

/// Swaps both addresses.
struct EtherMirror;

impl ElementCodegen for EtherMirror {
    fn build(&self, code: &mut ElementBuilder<'_, '_>, _: u32, packet: PacketValues) {
        code.need(packet, packet.data, 12, "too_short");
        code.exchange(packet.data, 0, 6, 6);
        code.out(0, packet);
    }
}

/// Passes packets that an Ethernet device with this address would receive.
struct HostFilter {
    address: [u8; 6],
    drop_own: bool,
    drop_other: bool,
    offset: i32,
}

impl HostFilter {
    fn refuse(code: &mut ElementBuilder<'_, '_>, packet: PacketValues, reason: &'static str) {
        if code.connected(1) { code.out(1, packet) } else { code.drop(packet, reason) }
    }

    /// A number that is 0 if the address at an offset is the device's.
    fn differs(&self, code: &mut ElementBuilder<'_, '_>, packet: PacketValues, offset: i32) -> Value {
        let [a, b, c, d, e, f] = self.address;
        let (first, rest) = (code.word(packet.data, offset), code.half(packet.data, offset + 4));
        let first = code.with(AluOp::Xor, first, i64::from(u32::from_be_bytes([a, b, c, d])));
        let rest = code.with(AluOp::Xor, rest, i64::from(u16::from_be_bytes([e, f])));
        code.alu(AluOp::Or, first, rest)
    }
}

impl ElementCodegen for HostFilter {
    fn build(&self, code: &mut ElementBuilder<'_, '_>, _: u32, packet: PacketValues) {
        code.need(packet, packet.data, i64::from(self.offset) + HEADER, "too_short");
        let cast = cast(code, packet, self.offset);
        let packet = packet.with(Annotation::Cast, cast);
        if self.drop_own {
            let differs = self.differs(code, packet, self.offset + 6);
            code.check_int(Cond::Ne, differs, 0, |code| HostFilter::refuse(code, packet, "own"));
        }
        if self.drop_other {
            let fine = code.block();
            let differs = self.differs(code, packet, self.offset);
            code.check_int(Cond::Ne, differs, 0, |code| code.jump(fine, &[]));
            code.check_int(Cond::Ne, cast, HOST, |code| HostFilter::refuse(code, packet, "other_host"));
            code.jump(fine, &[]);
            code.switch_to_block(fine);
        }
        code.out(0, packet);
    }
}

fn host_filter(setup: &mut ElementSetup<'_>) -> ElementResult {
    let names = setup.arguments.names;
    let address = ether(&setup.arguments.need("ETHER")?, names)?;
    let drop_own = setup.arguments.or("DROP_OWN", false, boolean)?;
    let drop_other = setup.arguments.or("DROP_OTHER", true, boolean)?;
    let offset = setup.arguments.keyword_or("OFFSET", 0, |text| unsigned(text, 1500))? as i32;
    Ok(Box::new(HostFilter { address, drop_own, drop_other, offset }))
}

/// Answers requests for addresses.
enum ArpResponder {
    /// Address, mask and answer; the first that matches answers.
    Fixed(Vec<(u32, u32, [u8; 6])>),
    /// A table that handlers write.
    Live(Map),
}

fn responder(setup: &mut ElementSetup<'_>) -> ElementResult {
    let mut entries = Vec::new();
    for argument in setup.arguments.rest() {
        let mut prefixes = Vec::new();
        let mut answer = None;
        for word in words(&argument) {
            let names = setup.arguments.names;
            // A name may have values of both kinds.
            let (found, own) = (prefix(&word, names), ether(&word, names).ok());
            if found.is_err() && (answer.is_some() || own.is_none()) {
                return Err(Error::new(
                    word.span,
                    format!("`{}` is neither an IP prefix nor an Ethernet address", word.text),
                ));
            }
            prefixes.extend(found);
            answer = answer.or(own);
        }
        let answer = answer.filter(|_| !prefixes.is_empty());
        let answer = answer.ok_or_else(|| {
            Error::new(argument.span, "expected IP prefixes and the Ethernet address to answer with")
        })?;
        entries.extend(prefixes.into_iter().map(|(address, mask)| (address & mask, mask, answer)));
    }
    answering(setup, entries)
}

/// Prefixes that are answered for, by address and mask: the first one that matches answers. Entries that lie
/// within an earlier one never match and are removed; then the longest prefix is the first.
fn answering(setup: &mut ElementSetup<'_>, all: Vec<(u32, u32, [u8; 6])>) -> ElementResult {
    let mut entries: Vec<(u32, u32, [u8; 6])> = Vec::new();
    for entry @ (address, mask, _) in all {
        let within = |&(first, wider, _): &(u32, u32, _)| mask & wider == wider && address & wider == first;
        if !entries.iter().any(within) {
            entries.push(entry);
        }
    }
    if !setup.written(&["add", "remove"]) {
        let line = |(address, mask, ether): &(u32, u32, [u8; 6])| {
            let ether = ether.map(|byte| format!("{byte:02X}")).join("-");
            format!("{}/{} {ether}\n", Ipv4Addr::from(*address), mask.count_ones())
        };
        setup.handler("table", HandlerAccess::Text(entries.iter().map(line).collect()));
        return Ok(Box::new(ArpResponder::Fixed(entries)));
    }
    let prefix = |&(address, mask, ether): &(u32, u32, [u8; 6])| match mask.leading_ones() {
        bits if bits == mask.count_ones() => Ok((address, bits, ether)),
        _ => Err(Error::new(
            setup.element.span,
            "a mask is no prefix, which it must be where handlers write the table",
        )),
    };
    let prefixes = entries.iter().map(prefix).collect::<Result<Vec<_>, _>>()?;
    Ok(Box::new(ArpResponder::Live(setup.answers(&prefixes))))
}

impl ElementCodegen for ArpResponder {
    fn build(&self, code: &mut ElementBuilder<'_, '_>, _: u32, packet: PacketValues) {
        let other = |code: &mut ElementBuilder<'_, '_>| {
            if code.connected(1) { code.out(1, packet) } else { code.drop(packet, "not_answered") }
        };
        let beyond = code.at(packet.data, ARP);
        code.check(Cond::Le, beyond, packet.end, other);
        // Ethernet and IP, a request. RFC 826 leaves it open to check the lengths of addresses.
        let kind = code.word(packet.data, 14);
        code.check_int(Cond::Eq, kind, 0x0001_0800, other);
        let operation = code.half(packet.data, 20);
        code.check_int(Cond::Eq, operation, 1, other);
        let wanted = code.word(packet.data, 38);
        match self {
            ArpResponder::Fixed(entries) => {
                for (address, mask, answer) in entries {
                    let masked = code.with(AluOp::And, wanted, i64::from(*mask));
                    code.check_int(Cond::Ne, masked, i64::from(*address), |code| {
                        let [low, high] = halves(answer);
                        let answer = [code.int(low), code.int(high)];
                        reply(code, packet, answer);
                    });
                }
                other(code);
            }
            ArpResponder::Live(map) => {
                let found = code.longest(*map, wanted);
                code.check_int(Cond::Ne, found, 0, other);
                let answer = [code.field(found, 0), code.short(found, 4)];
                reply(code, packet, answer);
            }
        }
    }
}

/// The first four bytes of an Ethernet address and the others, as they lie in memory.
fn halves(address: &[u8; 6]) -> [i64; 2] {
    let [a, b, c, d, e, f] = *address;
    [i64::from(u32::from_le_bytes([a, b, c, d])), i64::from(u16::from_le_bytes([e, f]))]
}

/// Makes the request its answer.
fn reply(code: &mut ElementBuilder<'_, '_>, mut packet: PacketValues, answer: [Value; 2]) {
    let data = packet.data;
    // Back to the sender; the sender's addresses become the target's, and the address that was asked for
    // becomes the sender's.
    let wanted = code.word(data, 38);
    code.copy(data, 0, data, 22, 6);
    code.write(data, 12, &[8, 6, 0, 1, 8, 0, 6, 4, 0, 2]);
    code.copy(data, 32, data, 22, 10);
    for at in [6, 22] {
        code.set_raw(4, data, at, answer[0]);
        code.set_raw(2, data, at + 4, answer[1]);
    }
    code.set_word(data, 28, wanted);
    let length = code.int(ARP);
    packet.end = code.end(data, length);
    // The answer is a new packet, whose time is zero.
    let (network, yes, never) = (code.at(data, HEADER), code.truth(true), code.int(1));
    let packet = packet.with(Annotation::Network, network).with(Annotation::HasNetwork, yes);
    code.out(0, packet.with(Annotation::Time, never));
}

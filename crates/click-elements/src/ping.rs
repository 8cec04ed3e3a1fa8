//! `ICMPPingEncap` and `ICMPIPEncap`: packets become the data of ICMP messages. Source: RFC 792.

use millstream_isa::{AluOp, Cond};

use super::ip::{HEADER, fold, set_checksum};
use super::transport::{ICMP, sum_bytes};
use millstream_click::arguments::{ip, unsigned};
use millstream_click::build::ElementBuilder;
use millstream_click::class::{ElementClass, ElementCodegen, ElementResult};
use millstream_click::keyword::{at, key};
use millstream_click::packet::{Annotation, PacketValues};
use millstream_click::{ElementSetup, Error, SettingType, SettingValue, SpannedText};

pub(super) const CLASSES: &[ElementClass] = &[
    ElementClass::filter(
        "ICMPPingEncap",
        "Makes packets the data of echo requests.",
        &[at("SRC"), at("DST"), key("IDENTIFIER")],
        ping,
    )
    .passing(),
    ElementClass::filter(
        "ICMPIPEncap",
        "Makes packets the data of ICMP messages.",
        &[at("SRC"), at("DST"), at("TYPE"), at("CODE"), key("IDENTIFIER")],
        encap,
    )
    .passing(),
];

/// Time to live, as in Click.
const HOPS: u8 = 255;
const ECHO_REPLY: u8 = 0;
const ECHO: u8 = 8;
const TIMESTAMP: u8 = 13;
const TIMESTAMP_REPLY: u8 = 14;
const INFORMATION: u8 = 15;
const INFORMATION_REPLY: u8 = 16;
/// Types that have an identifier and a sequence number.
const NUMBERED: [u8; 6] = [ECHO_REPLY, ECHO, TIMESTAMP, TIMESTAMP_REPLY, INFORMATION, INFORMATION_REPLY];
/// Types by the names that Click has for them.
const TYPES: &[(&str, u8)] = &[
    ("echo-reply", ECHO_REPLY),
    ("unreachable", 3),
    ("sourcequench", 4),
    ("redirect", 5),
    ("echo", ECHO),
    ("routeradvert", 9),
    ("routersolicit", 10),
    ("timeexceeded", 11),
    ("parameterproblem", 12),
    ("timestamp", TIMESTAMP),
    ("timestamp-reply", TIMESTAMP_REPLY),
    ("inforeq", INFORMATION),
    ("inforeq-reply", INFORMATION_REPLY),
    ("maskreq", 17),
    ("maskreq-reply", 18),
];

/// Puts the headers of IP and ICMP in front.
struct IcmpEncap {
    addresses: [SettingValue; 2],
    kind: u8,
    code: u8,
    identifier: i64,
    /// Messages that were made: the identification of the packet, and the sequence number.
    next: u32,
}

impl IcmpEncap {
    fn new(setup: &mut ElementSetup<'_>, kind: u8, code: u8) -> Result<IcmpEncap, Error> {
        let mut address = |argument, handler| {
            let text = setup.arguments.need(argument)?;
            let address = ip(&text, setup.arguments.names)?;
            Ok::<_, Error>(setup.setting(handler, SettingType::Address, i64::from(address)))
        };
        let addresses = [address("SRC", "src")?, address("DST", "dst")?];
        let identifier = setup.arguments.keyword_or("IDENTIFIER", 0, |text| unsigned(text, 65_535))? as i64;
        Ok(IcmpEncap { addresses, kind, code, identifier, next: setup.number() })
    }

    /// Bytes of the ICMP header: messages about time have three times behind the sequence number.
    fn header_bytes(&self) -> usize {
        if [TIMESTAMP, TIMESTAMP_REPLY].contains(&self.kind) { 20 } else { 8 }
    }
}

fn ping(setup: &mut ElementSetup<'_>) -> ElementResult {
    Ok(Box::new(IcmpEncap::new(setup, ECHO, 0)?))
}

fn encap(setup: &mut ElementSetup<'_>) -> ElementResult {
    let mut encap = IcmpEncap::new(setup, ECHO, 0)?;
    encap.kind = icmp_type(&setup.arguments.need("TYPE")?)?;
    encap.code = setup.arguments.or("CODE", 0, |text| unsigned(text, 255))? as u8;
    Ok(Box::new(encap))
}

/// A type of messages, by number or name.
fn icmp_type(text: &SpannedText) -> Result<u8, Error> {
    match TYPES.iter().find(|(name, _)| *name == text.text) {
        Some((_, kind)) => Ok(*kind),
        None => unsigned(text, 255)
            .map(|kind| kind as u8)
            .map_err(|error| error.nearest(&text.text, TYPES.iter().map(|(name, _)| *name))),
    }
}

impl ElementCodegen for IcmpEncap {
    fn build(&self, code: &mut ElementBuilder<'_, '_>, _: u32, packet: PacketValues) {
        let bytes = self.header_bytes();
        let data = code.push(packet, packet.data, HEADER + bytes as i64);
        // A message with the number 0 comes once, as in Click: 1 follows on 65,535.
        let last = code.get(self.next);
        let over = code.with(AluOp::Rsh, last, 16);
        let number = code.add(last, over);
        let number = code.with(AluOp::And, number, 0xffff);
        let next = code.with(AluOp::Add, number, 1);
        code.set(self.next, next);
        let length = code.sub(packet.end, data);
        code.write(data, 0, &[0x45, 0]);
        code.set_half(data, 2, length);
        code.set_half(data, 4, number);
        code.write(data, 6, &[0, 0, HOPS, ICMP as u8, 0, 0]);
        let [source, destination] = self.addresses.map(|address| code.setting(address));
        code.set_word(data, 12, source);
        code.set_word(data, 16, destination);
        let header = code.int(HEADER);
        set_checksum(code, data, header);
        let mut message = vec![0; bytes];
        message[..2].copy_from_slice(&[self.kind, self.code]);
        code.write(data, 20, &message);
        if NUMBERED.contains(&self.kind) {
            let identifier = code.int(self.identifier);
            code.set_half(data, 24, identifier);
            code.set_half(data, 26, number);
        }
        let message = code.at(data, HEADER);
        let (bytes, zero) = (code.sub(packet.end, message), code.int(0));
        let sum = sum_bytes(code, message, bytes, zero);
        let sum = fold(code, sum);
        let sum = code.with(AluOp::Xor, sum, 0xffff);
        code.set_raw(2, data, 22, sum);
        let yes = code.truth(true);
        let packet = packet.bounded(data, packet.end).with(Annotation::Network, data);
        let packet = packet.with(Annotation::HasNetwork, yes).with(Annotation::Destination, destination);
        let long = code.int(65_535);
        code.check(Cond::Le, length, long, |code| code.drop(packet, "too_long"));
        code.out(0, packet);
    }
}

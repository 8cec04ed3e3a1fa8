//! `ICMPPingEncap`. Source: RFC 792.

use millstream_isa::{AluOp, Cond};

use super::ip::{HEADER, fold, set_checksum};
use super::transport::{ICMP, sum_bytes};
use millstream_click::arguments::{ip, unsigned};
use millstream_click::build::ElementBuilder;
use millstream_click::class::{ElementClass, ElementCodegen, ElementResult};
use millstream_click::keyword::{at, key};
use millstream_click::packet::{Annotation, PacketValues};
use millstream_click::{ElementSetup, SettingType, SettingValue};

pub(super) const CLASSES: &[ElementClass] = &[ElementClass::filter(
    "ICMPPingEncap",
    "Makes packets the data of echo requests.",
    &[at("SRC"), at("DST"), key("IDENTIFIER")],
    encap,
)
.passing()];

/// Bytes of both headers.
const HEADERS: i64 = 28;
/// Type of an echo request.
const ECHO: u8 = 8;
/// Time to live, as in Click.
const HOPS: u8 = 255;

struct PingEncap {
    addresses: [SettingValue; 2],
    identifier: i64,
    /// Requests that were made: the sequence number, and the identification of the packet.
    next: u32,
}

fn encap(setup: &mut ElementSetup<'_>) -> ElementResult {
    let mut address = |argument, handler| {
        let text = setup.arguments.need(argument)?;
        let address = ip(&text, setup.arguments.names)?;
        Ok::<_, millstream_click::Error>(setup.setting(handler, SettingType::Address, i64::from(address)))
    };
    let addresses = [address("SRC", "src")?, address("DST", "dst")?];
    let identifier = setup.arguments.keyword_or("IDENTIFIER", 0, |text| unsigned(text, 65_535))? as i64;
    Ok(Box::new(PingEncap { addresses, identifier, next: setup.number() }))
}

impl ElementCodegen for PingEncap {
    fn build(&self, code: &mut ElementBuilder<'_, '_>, _: u32, packet: PacketValues) {
        let data = code.push(packet, packet.data, HEADERS);
        // A request with the number 0 comes once, as in Click: 1 follows on 65,535.
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
        code.write(data, 20, &[ECHO, 0, 0, 0]);
        let identifier = code.int(self.identifier);
        code.set_half(data, 24, identifier);
        code.set_half(data, 26, number);
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

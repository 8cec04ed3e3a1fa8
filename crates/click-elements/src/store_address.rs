//! `StoreIPAddress`: writes an address into packets. Source: RFC 1624.

use millstream_ir::Value;
use millstream_isa::{AluOp, Cond};

use super::headers::update;
use super::ip::{header, header_length};
use super::transport::{TCP, UDP, bad};
use millstream_click::ElementSetup;
use millstream_click::arguments::{ip, unsigned};
use millstream_click::build::ElementBuilder;
use millstream_click::class::{ElementClass, ElementCodegen, ElementResult};
use millstream_click::keyword::{at, key};
use millstream_click::packet::{Annotation, PacketValues};

pub(super) const CLASSES: &[ElementClass] = &[ElementClass::check(
    "StoreIPAddress",
    "Writes an address into packets.",
    &[key("ADDR"), key("OFFSET")],
    store,
)
.and(at("[ADDR,] OFFSET"))];

/// In the half with a fragment's offset.
const OFFSET: i64 = 0x1fff;
const SOURCE: i32 = 12;
const DESTINATION: i32 = 16;

/// Place of the address.
enum AddressPlace {
    /// So many bytes behind the first one.
    Offset(i64),
    /// In the IP header, whose checksum is corrected, as that of TCP or UDP is.
    Header(i32),
}

struct StoreIpAddress {
    /// None for the annotation, unless that is zero.
    address: Option<u32>,
    place: AddressPlace,
}

fn store(setup: &mut ElementSetup<'_>) -> ElementResult {
    let names = setup.arguments.names;
    let first = setup.arguments.need("OFFSET")?;
    let (address, text) = match setup.arguments.next("OFFSET") {
        Some(second) => (Some(ip(&first, names)?), second),
        None => (None, first),
    };
    let place = match text.text.as_str() {
        "src" => AddressPlace::Header(SOURCE),
        "dst" => AddressPlace::Header(DESTINATION),
        _ => AddressPlace::Offset(unsigned(&text, 65_535)? as i64),
    };
    Ok(Box::new(StoreIpAddress { address, place }))
}

impl ElementCodegen for StoreIpAddress {
    fn build(&self, code: &mut ElementBuilder<'_, '_>, _: u32, packet: PacketValues) {
        let address = match self.address {
            Some(address) => code.int(i64::from(address)),
            None => {
                let address = packet.note(Annotation::Destination);
                code.check_int(Cond::Ne, address, 0, |code| code.out(0, packet));
                address
            }
        };
        match self.place {
            AddressPlace::Offset(offset) => {
                let beyond = code.at(packet.data, offset + 4);
                code.check(Cond::Le, beyond, packet.end, |code| bad(code, packet, "too_short"));
                code.set_word(packet.data, offset as i32, address);
                code.out(0, packet);
            }
            AddressPlace::Header(place) => store_in_header(code, packet, place, address),
        }
    }
}

/// Writes an address of the IP header, and corrects checksums.
fn store_in_header(code: &mut ElementBuilder<'_, '_>, packet: PacketValues, place: i32, address: Value) {
    let header = header(code, packet);
    let halves = |code: &mut ElementBuilder<'_, '_>| [0, 2].map(|at| code.raw(2, header, place + at));
    let old = halves(code);
    code.set_word(header, place, address);
    let new = halves(code);
    let correct = |code: &mut ElementBuilder<'_, '_>, base: Value, sum: i32| {
        old.into_iter().zip(new).for_each(|(old, new)| update(code, base, sum, old, new));
    };
    correct(code, header, 10);
    let fragment = code.half(header, 6);
    let offset = code.with(AluOp::And, fragment, OFFSET);
    code.check_int(Cond::Eq, offset, 0, |code| code.out(0, packet));
    let (protocol, length) = (code.byte(header, 9), header_length(code, header));
    let transport = code.plus(header, length);
    for (number, sum) in [(TCP, 16), (UDP, 6)] {
        let (this, next, number) = (code.block(), code.block(), code.int(number));
        code.branch(Cond::Eq, protocol, number, this, next);
        code.switch_to_block(this);
        let beyond = code.at(transport, i64::from(sum) + 2);
        code.check(Cond::Le, beyond, packet.end, |code| code.out(0, packet));
        if sum == 6 {
            // A datagram with the sum 0 has none.
            let there = code.raw(2, transport, sum);
            code.check_int(Cond::Ne, there, 0, |code| code.out(0, packet));
        }
        correct(code, transport, sum);
        code.out(0, packet);
        code.switch_to_block(next);
    }
    code.out(0, packet);
}

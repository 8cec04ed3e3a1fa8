//! `IPGWOptions`: the options that every router processes. Source: RFC 791, 3.1; RFC 1812, 5.2.4.
//!
//! Record Route gets this router's address. Only the form of Timestamp is checked: no time is written.

use millstream_ir::{Block, Prov, Type, Value};
use millstream_isa::{AluOp, Cond};

use super::ip::{HEADER, header, header_length, set_checksum};
use millstream_click::ElementSetup;
use millstream_click::arguments::ip;
use millstream_click::build::ElementBuilder;
use millstream_click::class::{ElementClass, ElementCodegen, ElementResult};
use millstream_click::keyword::at;
use millstream_click::packet::{Annotation, PacketValues};

pub(super) const CLASSES: &[ElementClass] = &[ElementClass::check(
    "IPGWOptions",
    "Carries out the options of IP that concern a router.",
    &[at("MYADDR"), at("OTHERADDRS")],
    options,
)];

const END: i64 = 0;
const NOP: i64 = 1;
const RECORD_ROUTE: i64 = 7;
const TIMESTAMP: i64 = 68;

struct IpGatewayOptions {
    address: i64,
}

fn options(setup: &mut ElementSetup<'_>) -> ElementResult {
    let text = setup.arguments.need("MYADDR")?;
    let address = i64::from(ip(&text, setup.arguments.names)?);
    if let Some(text) = setup.arguments.next("OTHERADDRS") {
        for word in millstream_click::words(&text) {
            ip(&word, setup.arguments.names)?;
        }
    }
    Ok(Box::new(IpGatewayOptions { address }))
}

impl ElementCodegen for IpGatewayOptions {
    fn build(&self, code: &mut ElementBuilder<'_, '_>, _: u32, packet: PacketValues) {
        let header = header(code, packet);
        let length = header_length(code, header);
        code.check_int(Cond::Gt, length, HEADER, |code| code.out(0, packet));
        let end = code.plus(header, length);
        code.check(Cond::Le, end, packet.end, |code| code.drop(packet, "too_short"));
        // One option after the other; `changed` is true if any was written to.
        let head = code.block();
        let at = code.param(head, Type::Ptr(Prov::Packet));
        let changed = code.param(head, Type::I64);
        let (first, zero) = (code.at(header, HEADER), code.int(0));
        code.jump(head, &[first, zero]);
        code.switch_to_block(head);
        let walk = OptionWalk { packet, header, length, head, changed };
        code.check(Cond::Lt, at, end, |code| walk.leave(code));
        let kind = code.byte(at, 0);
        code.check_int(Cond::Ne, kind, END, |code| walk.leave(code));
        code.check_int(Cond::Ne, kind, NOP, |code| {
            let next = code.at(at, 1);
            code.jump(walk.head, &[next, changed]);
        });
        // Kind and length are there, and so is all that the length says.
        let second = code.at(at, 2);
        code.check(Cond::Le, second, end, |code| walk.bad(code, at, 1));
        let bytes = code.byte(at, 1);
        code.check_int(Cond::Ge, bytes, 2, |code| walk.bad(code, at, 1));
        let next = code.plus(at, bytes);
        code.check(Cond::Le, next, end, |code| walk.bad(code, at, 1));
        code.check_int(Cond::Ne, kind, RECORD_ROUTE, |code| self.record(code, &walk, at, bytes, next));
        code.check_int(Cond::Ne, kind, TIMESTAMP, |code| {
            code.check_int(Cond::Ge, bytes, 4, |code| walk.bad(code, at, 1));
            code.jump(walk.head, &[next, changed]);
        });
        code.jump(walk.head, &[next, changed]);
    }
}

/// The walk over the options of a packet.
struct OptionWalk {
    packet: PacketValues,
    header: Value,
    length: Value,
    head: Block,
    changed: Value,
}

impl OptionWalk {
    /// The last option was seen.
    fn leave(&self, code: &mut ElementBuilder<'_, '_>) {
        code.check_int(Cond::Ne, self.changed, 0, |code| code.out(0, self.packet));
        set_checksum(code, self.header, self.length);
        code.out(0, self.packet);
    }

    /// A malformed option: where it is, counted from the header.
    fn bad(&self, code: &mut ElementBuilder<'_, '_>, at: Value, further: i64) {
        let place = code.sub(at, self.header);
        let place = code.with(AluOp::Add, place, further);
        let packet = self.packet.with(Annotation::Parameter, place);
        if code.connected(1) { code.out(1, packet) } else { code.drop(packet, "bad_option") }
    }
}

impl IpGatewayOptions {
    /// Writes the address at the option's pointer, if there is room.
    fn record(
        &self,
        code: &mut ElementBuilder<'_, '_>,
        walk: &OptionWalk,
        at: Value,
        bytes: Value,
        next: Value,
    ) {
        code.check_int(Cond::Ge, bytes, 3, |code| walk.bad(code, at, 1));
        let pointer = code.byte(at, 2);
        code.check_int(Cond::Ge, pointer, 4, |code| walk.bad(code, at, 2));
        // A pointer behind the option says that it is full.
        code.check(Cond::Le, pointer, bytes, |code| code.jump(walk.head, &[next, walk.changed]));
        let last = code.with(AluOp::Add, pointer, 3);
        code.check(Cond::Le, last, bytes, |code| walk.bad(code, at, 2));
        let place = code.plus(at, pointer);
        let own = code.int(self.address);
        code.set_word(place, -1, own);
        let moved = code.with(AluOp::Add, pointer, 4);
        code.set_byte(at, 2, moved);
        let one = code.int(1);
        code.jump(walk.head, &[next, one]);
    }
}

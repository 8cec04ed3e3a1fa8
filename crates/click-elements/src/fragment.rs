//! `IPFragmenter`. Source: RFC 791, 3.2.
//!
//! The first fragment goes on; the rest becomes a packet of its own, which comes back when the first is done
//! with, and is cut again if it is still too long.

use millstream_ir::Value;
use millstream_isa::{AluOp, Cond};

use super::ip::{HEADER, header, header_length, set_checksum};
use millstream_click::arguments::{boolean, unsigned};
use millstream_click::build::ElementBuilder;
use millstream_click::class::{ElementClass, ElementCodegen, ElementResult};
use millstream_click::keyword::{COUNT, IgnoredValueKind, at, moot};
use millstream_click::packet::{Annotation, PacketValues};
use millstream_click::{ElementSetup, Error};

pub(super) const CLASSES: &[ElementClass] = &[ElementClass {
    ports: "1/1-2",
    processing: "h/h",
    ..ElementClass::filter(
        "IPFragmenter",
        "Cuts packets that are longer than a link takes into fragments.",
        &[
            at("MTU"),
            at("HONOR_DF"),
            moot("VERBOSE", IgnoredValueKind::Truth, "drops are in the report by their reasons").or_at(),
            moot("HEADROOM", COUNT, "every fragment has the room of a packet in front"),
        ],
        fragmenter,
    )
}];

/// The input, not part of the graph, at which the rest of a packet comes back.
const REST: u32 = u32::MAX;
/// A header and eight bytes; RFC 791 demands more of a link, but a configuration need not be about one.
const LEAST_MTU: i64 = HEADER + 8;
const DONT_FRAGMENT: i64 = 0x4000;
const MORE_FRAGMENTS: i64 = 0x2000;
/// Bytes that offsets count in.
const UNIT: i64 = 8;
/// In the kind of an option: all fragments must have it.
const COPIED: i64 = 0x80;

struct IpFragmenter {
    mtu: i64,
    honor: bool,
}

fn fragmenter(setup: &mut ElementSetup<'_>) -> ElementResult {
    let text = setup.arguments.need("MTU")?;
    let mtu = unsigned(&text, 65_535)? as i64;
    if mtu < LEAST_MTU {
        let message = format!("with an MTU below {LEAST_MTU} bytes, a fragment would have no room for data");
        return Err(Error::new(text.span, message));
    }
    let honor = setup.arguments.or("HONOR_DF", true, boolean)?;
    Ok(Box::new(IpFragmenter { mtu, honor }))
}

impl ElementCodegen for IpFragmenter {
    fn build(&self, code: &mut ElementBuilder<'_, '_>, port: u32, packet: PacketValues) {
        let header = header(code, packet);
        let total = code.half(header, 2);
        // The rest of a packet is cut as the packet was, at multiples of what the first fragment carries.
        let carried = (self.mtu - HEADER) & -8;
        let most = if port == REST { HEADER + carried } else { self.mtu };
        code.check_int(Cond::Gt, total, most, |code| code.out(0, packet));
        let end = code.end(header, total);
        code.check(Cond::Le, end, packet.end, |code| code.drop(packet, "too_short"));
        let flags = code.half(header, 6);
        if self.honor {
            let whole = code.with(AluOp::And, flags, DONT_FRAGMENT);
            code.check_int(Cond::Eq, whole, 0, |code| {
                if code.connected(1) { code.out(1, packet) } else { code.drop(packet, "dont_fragment") }
            });
        }
        let flags = code.with(AluOp::And, flags, !DONT_FRAGMENT & 0xffff);
        let first_byte = code.byte(header, 0);
        code.check_int(Cond::Eq, first_byte, 0x45, |code| self.cut_options(code, packet, header, flags));
        // As much as fits, in units of eight bytes.
        let (carried, length) = (code.int(carried), code.int(HEADER));
        cut(code, packet, (header, length), carried, flags);
    }
}

impl IpFragmenter {
    /// Cuts a packet with options, which only the first fragment has; those that all fragments must have are
    /// not handled. Ends.
    fn cut_options(
        &self,
        code: &mut ElementBuilder<'_, '_>,
        packet: PacketValues,
        header: Value,
        flags: Value,
    ) {
        let length = header_length(code, header);
        code.check_int(Cond::Gt, length, HEADER, |code| code.drop(packet, "bad_header_length"));
        let beyond = code.plus(header, length);
        code.check(Cond::Le, beyond, packet.end, |code| code.drop(packet, "too_short"));
        check_options(code, packet, header, beyond);
        let mtu = code.int(self.mtu);
        let least = code.with(AluOp::Add, length, UNIT);
        code.check(Cond::Le, least, mtu, |code| code.drop(packet, "options_not_fragmented"));
        let carried = code.sub(mtu, length);
        let carried = code.with(AluOp::And, carried, -UNIT);
        cut(code, packet, (header, length), carried, flags);
    }
}

/// Goes on with packets of whose options none is for all fragments.
fn check_options(code: &mut ElementBuilder<'_, '_>, packet: PacketValues, header: Value, end: Value) {
    let (head, done) = (code.block(), code.block());
    let at = code.packet_param(head);
    let first = code.at(header, HEADER);
    code.jump(head, &[first]);
    code.switch_to_block(head);
    code.check(Cond::Lt, at, end, |code| code.jump(done, &[]));
    let kind = code.byte(at, 0);
    let copied = code.with(AluOp::And, kind, COPIED);
    code.check_int(Cond::Eq, copied, 0, |code| code.drop(packet, "options_not_fragmented"));
    code.check_int(Cond::Ne, kind, 0, |code| code.jump(done, &[]));
    let next = code.at(at, 1);
    code.check_int(Cond::Ne, kind, 1, |code| code.jump(head, &[next]));
    code.check(Cond::Lt, next, end, |code| code.jump(done, &[]));
    let bytes = code.byte(at, 1);
    // An option with a wrong length is the last one.
    code.check_int(Cond::Ge, bytes, 2, |code| code.jump(done, &[]));
    let next = code.plus(at, bytes);
    code.jump(head, &[next]);
    code.switch_to_block(done);
}

/// Makes a packet two: the first fragment, and the rest, which comes back. Ends.
fn cut(
    code: &mut ElementBuilder<'_, '_>,
    packet: PacketValues,
    (header, length): (Value, Value),
    carried: Value,
    flags: Value,
) {
    rest(code, packet, (header, length), carried, flags);
    first(code, packet, (header, length), carried, flags);
}

/// The first fragment: the packet up to the cut.
fn first(
    code: &mut ElementBuilder<'_, '_>,
    packet: PacketValues,
    (header, length): (Value, Value),
    carried: Value,
    flags: Value,
) {
    let total = code.add(carried, length);
    code.set_half(header, 2, total);
    let flags = code.with(AluOp::Or, flags, MORE_FRAGMENTS);
    code.set_half(header, 6, flags);
    set_checksum(code, header, length);
    let end = code.end(header, total);
    code.out(0, packet.bounded(packet.data, end));
}

/// Makes the bytes behind the cut a packet of its own: header without options, and data.
fn rest(
    code: &mut ElementBuilder<'_, '_>,
    packet: PacketValues,
    (header, length): (Value, Value),
    carried: Value,
    flags: Value,
) {
    let to = code.input(REST);
    code.fork_to(to, packet, |code, copy| {
        // In the copy everything lies as far from its beginning as in the original.
        let distance = code.sub(header, packet.data);
        let old = code.plus(copy.data, distance);
        let options = code.with(AluOp::Sub, length, HEADER);
        let gone = code.add(carried, options);
        let new = code.plus(old, gone);
        code.copy(new, 0, old, 0, HEADER as i32);
        code.write(new, 0, &[0x45]);
        let total = code.half(new, 2);
        let total = code.sub(total, gone);
        code.set_half(new, 2, total);
        // The offset is that of the first fragment and all that it carries; the flags stay.
        let units = code.with(AluOp::Rsh, carried, 3);
        let flags = code.add(flags, units);
        code.set_half(new, 6, flags);
        let length = code.int(HEADER);
        set_checksum(code, new, length);
        let end = code.end(new, total);
        copy.bounded(new, end).with(Annotation::Network, new)
    });
}

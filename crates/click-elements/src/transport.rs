//! `CheckTCPHeader`, `CheckUDPHeader`, `CheckICMPHeader`: validity of headers. Source: RFC 793, 768, 792,
//! 1071.

use millstream_ir::Value;
use millstream_isa::{AluOp, Cond};

use super::ip::{fold, header, header_length, sum_words};
use millstream_click::ElementSetup;
use millstream_click::arguments::boolean;
use millstream_click::build::ElementBuilder;
use millstream_click::class::{ElementClass, ElementCodegen, ElementResult};
use millstream_click::keyword::{ArgumentSpec, IgnoredValueKind, key, moot};
use millstream_click::packet::PacketValues;

pub(super) const ICMP: i64 = 1;
pub(super) const TCP: i64 = 6;
pub(super) const UDP: i64 = 17;

/// Reason why arguments about messages on bad packets have no effect.
pub(super) const TOLD: &str =
    "drops are counted by their reasons in any case, and no line is printed for each";

const CHECKED: &[ArgumentSpec] =
    &[moot("VERBOSE", IgnoredValueKind::Truth, TOLD), moot("DETAILS", IgnoredValueKind::Truth, TOLD)];
const SUMMED: &[ArgumentSpec] = &[
    moot("VERBOSE", IgnoredValueKind::Truth, TOLD),
    moot("DETAILS", IgnoredValueKind::Truth, TOLD),
    key("CHECKSUM"),
];

pub(super) const CLASSES: &[ElementClass] = &[
    ElementClass::check("CheckTCPHeader", "Checks the TCP header.", SUMMED, |setup| check(setup, TCP)),
    ElementClass::check("CheckUDPHeader", "Checks the UDP header.", SUMMED, |setup| check(setup, UDP)),
    ElementClass::check("CheckICMPHeader", "Checks the ICMP header.", CHECKED, |setup| check(setup, ICMP)),
];

struct CheckTransportHeader {
    protocol: i64,
    checksum: bool,
    counter: u32,
}

fn check(setup: &mut ElementSetup<'_>, protocol: i64) -> ElementResult {
    let checksum = match protocol {
        ICMP => true,
        _ => setup.arguments.keyword_or("CHECKSUM", true, boolean)?,
    };
    Ok(Box::new(CheckTransportHeader { protocol, checksum, counter: setup.counter("count") }))
}

/// Sends invalid packets to output 1, or drops them.
pub(super) fn bad(code: &mut ElementBuilder<'_, '_>, packet: PacketValues, reason: &'static str) {
    if code.connected(1) { code.out(1, packet) } else { code.drop(packet, reason) }
}

/// Bytes that the checksum covers: from the transport header on, with the pseudo header's own length or
/// without one.
struct ChecksumRange {
    bytes: Value,
    pseudo: bool,
}

impl ElementCodegen for CheckTransportHeader {
    fn build(&self, code: &mut ElementBuilder<'_, '_>, _: u32, packet: PacketValues) {
        let header = header(code, packet);
        let protocol = code.byte(header, 9);
        code.check_int(Cond::Eq, protocol, self.protocol, |code| bad(code, packet, "other_protocol"));
        let length = header_length(code, header);
        let transport = code.plus(header, length);
        let covered = match self.protocol {
            TCP => tcp(code, packet, header, length, transport),
            UDP => udp(code, packet, transport),
            _ => icmp(code, packet, transport),
        };
        if self.checksum {
            self.sum(code, packet, header, transport, &covered);
        }
        let one = code.int(1);
        code.count(self.counter, one);
        code.out(0, packet);
    }
}

/// Drops packets that have not `bytes` bytes from the transport header on.
fn need(code: &mut ElementBuilder<'_, '_>, packet: PacketValues, transport: Value, bytes: i64) {
    let beyond = code.at(transport, bytes);
    code.check(Cond::Le, beyond, packet.end, |code| bad(code, packet, "bad_length"));
}

fn tcp(
    code: &mut ElementBuilder<'_, '_>,
    packet: PacketValues,
    header: Value,
    length: Value,
    transport: Value,
) -> ChecksumRange {
    need(code, packet, transport, 20);
    let offset = code.byte(transport, 12);
    let words = code.with(AluOp::Rsh, offset, 4);
    let own = code.with(AluOp::Lsh, words, 2);
    code.check_int(Cond::Ge, own, 20, |code| bad(code, packet, "bad_length"));
    let total = code.half(header, 2);
    let bytes = code.sub(total, length);
    code.check(Cond::Sge, bytes, own, |code| bad(code, packet, "bad_length"));
    let beyond = code.plus(transport, bytes);
    code.check(Cond::Le, beyond, packet.end, |code| bad(code, packet, "bad_length"));
    ChecksumRange { bytes, pseudo: true }
}

fn udp(code: &mut ElementBuilder<'_, '_>, packet: PacketValues, transport: Value) -> ChecksumRange {
    need(code, packet, transport, 8);
    let bytes = code.half(transport, 4);
    code.check_int(Cond::Ge, bytes, 8, |code| bad(code, packet, "bad_length"));
    let beyond = code.plus(transport, bytes);
    code.check(Cond::Le, beyond, packet.end, |code| bad(code, packet, "bad_length"));
    ChecksumRange { bytes, pseudo: true }
}

fn icmp(code: &mut ElementBuilder<'_, '_>, packet: PacketValues, transport: Value) -> ChecksumRange {
    need(code, packet, transport, 8);
    let bytes = code.sub(packet.end, transport);
    let kind = code.byte(transport, 0);
    let fine = code.block();
    // Errors quote a header and eight bytes; timestamps and information requests have one length each.
    for (kinds, cond, wanted) in
        [(&[3, 4, 5, 11, 12][..], Cond::Ge, 36), (&[13, 14][..], Cond::Eq, 20), (&[15, 16][..], Cond::Eq, 8)]
    {
        let (these, others) = (code.block(), code.block());
        for number in kinds {
            let (number, next) = (code.int(*number), code.block());
            code.branch(Cond::Eq, kind, number, these, next);
            code.switch_to_block(next);
        }
        code.jump(others, &[]);
        code.switch_to_block(these);
        code.check_int(cond, bytes, wanted, |code| bad(code, packet, "bad_length"));
        code.jump(fine, &[]);
        code.switch_to_block(others);
    }
    code.jump(fine, &[]);
    code.switch_to_block(fine);
    ChecksumRange { bytes, pseudo: false }
}

impl CheckTransportHeader {
    /// Drops packets whose sum is wrong. A UDP sum of zero means that there is none.
    fn sum(
        &self,
        code: &mut ElementBuilder<'_, '_>,
        packet: PacketValues,
        header: Value,
        transport: Value,
        covered: &ChecksumRange,
    ) {
        let fine = code.block();
        if self.protocol == UDP {
            let (sum, zero, summed) = (code.raw(2, transport, 6), code.int(0), code.block());
            code.branch(Cond::Eq, sum, zero, fine, summed);
            code.switch_to_block(summed);
        }
        let sum = match covered.pseudo {
            true => pseudo_sum(code, header, covered.bytes, self.protocol),
            false => code.int(0),
        };
        let sum = sum_bytes(code, transport, covered.bytes, sum);
        let sum = fold(code, sum);
        code.check_int(Cond::Eq, sum, 0xffff, |code| bad(code, packet, "bad_checksum"));
        code.jump(fine, &[]);
        code.switch_to_block(fine);
    }
}

/// The sum of the pseudo header: addresses, protocol and length, in the order of memory, not folded.
pub(super) fn pseudo_sum(
    code: &mut ElementBuilder<'_, '_>,
    header: Value,
    bytes: Value,
    protocol: i64,
) -> Value {
    let (source, destination) = (code.raw(4, header, 12), code.raw(4, header, 16));
    let (addresses, length) = (code.add(source, destination), code.swapped(16, bytes));
    let sum = code.add(addresses, length);
    code.with(AluOp::Add, sum, protocol << 8)
}

/// The sum of `bytes` bytes from an address on, on top of `sum`, not folded.
pub(super) fn sum_bytes(code: &mut ElementBuilder<'_, '_>, from: Value, bytes: Value, sum: Value) -> Value {
    let whole = code.with(AluOp::And, bytes, !3);
    let mut at = code.plus(from, whole);
    let mut sum = sum_words(code, from, at, sum);
    for width in [2, 1] {
        let (here, zero) = (code.with(AluOp::And, bytes, width), code.int(0));
        let with = code.when(Cond::Ne, here, zero, &[sum, at], |code| {
            let part = code.raw(width as usize, at, 0);
            vec![code.add(sum, part), code.at(at, width)]
        });
        (sum, at) = (with[0], with[1]);
    }
    sum
}

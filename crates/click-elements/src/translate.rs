//! `ProtocolTranslator64`, `ProtocolTranslator46`: packets of IPv6 as packets of IPv4, and back. Source: RFC
//! 7915.
//!
//! An address of IPv4 is the last word of one of IPv6 whose other words are zero, or that is mapped
//! (`::ffff:a.b.c.d`). Headers are written anew in front of the bytes behind them, which stay where they are;
//! an ICMP error has the header that it quotes translated, too. Checksums change by the difference of the
//! fields that they cover, so that a wrong one stays wrong.

use millstream_ir::{Block, Value};
use millstream_isa::{AluOp, Cond};

use super::ip::{HEADER as HEADER4, fold, header, header_length, set_checksum};
use super::ip6::{DESTINATION, HEADER as HEADER6, SOURCE};
use super::ip6_error::{ICMP6, set_sum, set_words};
use super::transport::{ICMP, TCP, UDP, sum_bytes};
use millstream_click::build::ElementBuilder;
use millstream_click::class::{ElementClass, ElementCodegen};
use millstream_click::packet::{Annotation, PacketValues};

pub(super) const CLASSES: &[ElementClass] = &[
    ElementClass::filter("ProtocolTranslator64", "Makes packets of IPv4 of those of IPv6.", &[], |_| {
        Ok(Box::new(SixToFour))
    }),
    ElementClass::filter("ProtocolTranslator46", "Makes packets of IPv6 of those of IPv4.", &[], |_| {
        Ok(Box::new(FourToSix))
    }),
];

/// Bytes of the header of a message of ICMP; those that quoted bytes of transport headers are at least.
const MESSAGE: i64 = 8;
/// Next headers that are extensions: hop by hop, routing, fragment, authentication, destination.
const EXTENSIONS: [i64; 5] = [0, 43, 44, 51, 60];
/// In the half with a fragment's offset: more fragments or an offset. And the flag that forbids to make some.
const FRAGMENT: i64 = 0x3fff;
const WHOLE: i64 = 0x4000;
/// Types of echoes.
const ECHO4: i64 = 8;
const REPLY4: i64 = 0;
const ECHO6: i64 = 128;
const REPLY6: i64 = 129;
/// Difference in length of the headers.
const LONGER: i64 = HEADER6 - HEADER4;
/// The largest number of 16 bits.
const HALF: i64 = 0xffff;

/// Fields that headers of both versions have.
#[derive(Clone, Copy)]
struct HeaderFields {
    class: Value,
    /// Bytes behind the header.
    payload: Value,
    hops: Value,
    protocol: Value,
    source: Value,
    destination: Value,
}

/// The words of the IPv6 address for one of IPv4: it is mapped.
fn mapped(code: &mut ElementBuilder<'_, '_>, address: Value) -> [Value; 4] {
    let (zero, ones) = (code.int(0), code.int(HALF));
    [zero, zero, ones, address]
}

/// The address of IPv4 at an offset of a header of IPv6. Others have the packet dropped.
fn embedded(code: &mut ElementBuilder<'_, '_>, packet: PacketValues, header: Value, offset: i32) -> Value {
    let [a, b, c, address] = code.words(header, offset);
    let high = code.alu(AluOp::Or, a, b);
    code.check_int(Cond::Eq, high, 0, |code| code.drop(packet, "no_ipv4_address"));
    let fine = code.block();
    code.check_int(Cond::Ne, c, 0, |code| code.jump(fine, &[]));
    code.check_int(Cond::Eq, c, HALF, |code| code.drop(packet, "no_ipv4_address"));
    code.jump(fine, &[]);
    code.switch_to_block(fine);
    address
}

/// Reads a header of IPv6. Drops packets with extensions, and those without addresses of IPv4.
fn read6(code: &mut ElementBuilder<'_, '_>, packet: PacketValues, at: Value) -> HeaderFields {
    let first = code.word(at, 0);
    let class = code.with(AluOp::Rsh, first, 20);
    let class = code.with(AluOp::And, class, 0xff);
    let protocol = code.byte(at, 6);
    for extension in EXTENSIONS {
        code.check_int(Cond::Ne, protocol, extension, |code| code.drop(packet, "extension_header"));
    }
    let source = embedded(code, packet, at, SOURCE);
    let destination = embedded(code, packet, at, DESTINATION);
    HeaderFields { class, payload: code.half(at, 4), hops: code.byte(at, 7), protocol, source, destination }
}

/// Reads a header of IPv4 with so many bytes.
fn read4(code: &mut ElementBuilder<'_, '_>, at: Value, length: Value) -> HeaderFields {
    let total = code.half(at, 2);
    HeaderFields {
        class: code.byte(at, 1),
        payload: code.sub(total, length),
        hops: code.byte(at, 8),
        protocol: code.byte(at, 9),
        source: code.word(at, 12),
        destination: code.word(at, 16),
    }
}

/// Writes a header of IPv4, with its checksum.
fn write4(code: &mut ElementBuilder<'_, '_>, at: Value, head: HeaderFields) {
    let total = code.with(AluOp::Add, head.payload, HEADER4);
    code.write(at, 0, &[0x45]);
    code.set_byte(at, 1, head.class);
    code.set_half(at, 2, total);
    code.write(at, 4, &[0, 0, (WHOLE >> 8) as u8, 0]);
    code.set_byte(at, 8, head.hops);
    code.set_byte(at, 9, head.protocol);
    code.set_word(at, 12, head.source);
    code.set_word(at, 16, head.destination);
    let length = code.int(HEADER4);
    set_checksum(code, at, length);
}

/// Writes a header of IPv6.
fn write6(code: &mut ElementBuilder<'_, '_>, at: Value, head: HeaderFields) {
    let class = code.with(AluOp::Lsh, head.class, 20);
    let first = code.with(AluOp::Or, class, 6 << 28);
    code.set_word(at, 0, first);
    code.set_half(at, 4, head.payload);
    code.set_byte(at, 6, head.protocol);
    code.set_byte(at, 7, head.hops);
    for (offset, address) in [(SOURCE, head.source), (DESTINATION, head.destination)] {
        let words = mapped(code, address);
        set_words(code, at, offset, words);
    }
}

/// The folded sum of both addresses of a header of IPv6, in the order of memory; of one of IPv4.
fn addresses6(code: &mut ElementBuilder<'_, '_>, at: Value) -> Value {
    let bytes = code.int(i64::from(2 * (DESTINATION - SOURCE)));
    let (from, zero) = (code.at(at, i64::from(SOURCE)), code.int(0));
    let sum = sum_bytes(code, from, bytes, zero);
    fold(code, sum)
}

fn addresses4(code: &mut ElementBuilder<'_, '_>, head: HeaderFields) -> Value {
    let [source, destination] = [head.source, head.destination].map(|address| code.swapped(32, address));
    let sum = code.add(source, destination);
    fold(code, sum)
}

/// Changes a checksum that no longer covers one sum but another one (RFC 1624, equation 3). Both are folded.
fn exchange(code: &mut ElementBuilder<'_, '_>, at: Value, offset: i32, gone: Value, come: Value) -> Value {
    let sum = code.raw(2, at, offset);
    let (sum, gone) = (code.with(AluOp::Xor, sum, HALF), code.with(AluOp::Xor, gone, HALF));
    let total = code.add(sum, gone);
    let total = code.add(total, come);
    let total = fold(code, total);
    let sum = code.with(AluOp::Xor, total, HALF);
    code.set_raw(2, at, offset, sum);
    sum
}

/// A UDP sum of zero means that there is none: the other zero is written.
fn never_zero(code: &mut ElementBuilder<'_, '_>, at: Value, sum: Value) {
    let (zero, ones) = (code.int(0), code.int(HALF));
    let none = code.compare(Cond::Eq, sum, zero);
    let sum = code.select(none, ones, sum);
    code.set_raw(2, at, 6, sum);
}

/// Sends segments and datagrams to `done` with a checksum that covers other addresses, and goes on with all
/// others. `summed` comes before, for datagrams.
fn transports(
    code: &mut ElementBuilder<'_, '_>,
    packet: PacketValues,
    (payload, head): (Value, HeaderFields),
    (gone, come): (Value, Value),
    done: Block,
    summed: impl Fn(&mut ElementBuilder<'_, '_>),
) {
    for (number, bytes, offset) in [(TCP, 20, 16), (UDP, 8, 6)] {
        let next = only(code, head.protocol, number);
        need(code, packet, head, bytes);
        if number == UDP {
            summed(code);
        }
        let sum = exchange(code, payload, offset, gone, come);
        if number == UDP {
            never_zero(code, payload, sum);
        }
        code.jump(done, &[head.protocol]);
        code.switch_to_block(next);
    }
}

/// The folded sum of an ICMPv6 message whose first half-word is this: with the pseudo header, which its
/// checksum covers.
fn covered(code: &mut ElementBuilder<'_, '_>, addresses: Value, payload: Value, first: Value) -> Value {
    let length = code.swapped(16, payload);
    let sum = code.add(addresses, length);
    let sum = code.with(AluOp::Add, sum, i64::from(ICMP6) << 8);
    let sum = code.add(sum, first);
    fold(code, sum)
}

/// Writes the header of a message, without its checksum: type and code, and the word behind them.
fn write_message(code: &mut ElementBuilder<'_, '_>, message: Value, both: Value, word: Value) {
    code.set_half(message, 0, both);
    code.write(message, 2, &[0, 0]);
    code.set_word(message, 4, word);
}

/// Drops packets with fewer bytes behind the header.
fn need(code: &mut ElementBuilder<'_, '_>, packet: PacketValues, head: HeaderFields, bytes: i64) {
    code.check_int(Cond::Ge, head.payload, bytes, |code| code.drop(packet, "too_short"));
}

/// Goes on where a number is this one, and gives the block of all others.
fn only(code: &mut ElementBuilder<'_, '_>, number: Value, wanted: i64) -> Block {
    let (here, others, wanted) = (code.block(), code.block(), code.int(wanted));
    code.branch(Cond::Eq, number, wanted, here, others);
    code.switch_to_block(here);
    others
}

/// The same for one of two numbers.
fn either(code: &mut ElementBuilder<'_, '_>, number: Value, wanted: [i64; 2]) -> Block {
    let (here, others) = (code.block(), code.block());
    for wanted in wanted {
        let next = only(code, number, wanted);
        code.jump(here, &[]);
        code.switch_to_block(next);
    }
    code.jump(others, &[]);
    code.switch_to_block(here);
    others
}

/// Translation of messages: the new type and code for messages of this type and one of these codes.
type IcmpTypeMap = (i64, &'static [(i64, i64, i64)]);

/// Errors of IPv6 whose word behind the checksum is unused: RFC 7915, 5.2.
const ERRORS6: &[IcmpTypeMap] = &[
    (1, &[(0, 3, 1), (1, 3, 10), (2, 3, 1), (3, 3, 1), (4, 3, 3)]),
    (3, &[(0, 11, 0), (1, 11, 1)]),
    (4, &[(1, 3, 2)]),
];
/// Errors of IPv4: 4.2.
const ERRORS4: &[IcmpTypeMap] = &[
    (3, &[(0, 1, 0), (1, 1, 0), (5, 1, 0), (6, 1, 0), (7, 1, 0), (8, 1, 0), (11, 1, 0), (12, 1, 0)]),
    (3, &[(3, 1, 4), (9, 1, 1), (10, 1, 1), (13, 1, 1), (15, 1, 1)]),
    (11, &[(0, 3, 0), (1, 3, 1)]),
];
/// Offsets of fields, in one header and the other, for messages about a parameter: the first byte of each
/// range.
const POINTERS6: &[(i64, i64)] = &[(0, 0), (1, 1), (4, 2), (6, 9), (7, 8), (8, 12), (24, 16)];
const POINTERS4: &[(i64, i64)] = &[(0, 0), (1, 1), (2, 4), (8, 7), (9, 6), (12, 8), (16, 24)];
/// Bytes that have no field in the other header.
const NOWHERE6: &[i64] = &[2, 3];
const NOWHERE4: &[i64] = &[4, 5, 6, 7, 10, 11];

/// Sends messages to `made` with their new form: type and code, and the word behind these and the checksum.
/// Drops all others.
fn errors(
    code: &mut ElementBuilder<'_, '_>,
    packet: PacketValues,
    [kind, number, rest]: [Value; 3],
    tables: (&[IcmpTypeMap], &[(i64, i64)], &[i64]),
    (too_big, unit, problem): ((i64, i64), i64, (i64, i64)),
    made: Block,
) {
    let zero = code.int(0);
    for (from, codes) in tables.0 {
        let next = only(code, kind, *from);
        for (here, to, becomes) in *codes {
            let other = only(code, number, *here);
            let both = code.int(to << 8 | becomes);
            code.jump(made, &[both, zero]);
            code.switch_to_block(other);
        }
        code.jump(next, &[]);
        code.switch_to_block(next);
    }
    // Too big: the maximum size changes by the difference of the headers' lengths.
    let next = only(code, kind, too_big.0 >> 8);
    let next_code = only(code, number, too_big.0 & 0xff);
    let low = code.with(AluOp::And, rest, HALF);
    let most = code.int(HALF);
    let changed = code.with(AluOp::Add, low, unit);
    let (small, large) = (code.compare(Cond::Slt, changed, zero), code.compare(Cond::Sgt, changed, most));
    let changed = code.select(small, zero, changed);
    let changed = code.select(large, most, changed);
    let both = code.int(too_big.1);
    code.jump(made, &[both, changed]);
    code.switch_to_block(next_code);
    code.jump(next, &[]);
    code.switch_to_block(next);
    let other = only(code, kind, problem.0 >> 8);
    let other_code = only(code, number, problem.0 & 0xff);
    // IPv4 has the pointer in the first byte of the word, IPv6 has the word.
    let is_four = unit > 0;
    let pointer = if is_four { code.with(AluOp::Rsh, rest, 24) } else { rest };
    for nowhere in tables.2 {
        code.check_int(Cond::Ne, pointer, *nowhere, |code| code.drop(packet, "not_translated"));
    }
    code.check_int(Cond::Lt, pointer, if is_four { HEADER4 } else { HEADER6 }, |code| {
        code.drop(packet, "not_translated")
    });
    let mut place = zero;
    for (first, becomes) in tables.1 {
        let (first, becomes) = (code.int(*first), code.int(*becomes));
        let behind = code.compare(Cond::Ge, pointer, first);
        place = code.select(behind, becomes, place);
    }
    let word = if is_four { place } else { code.with(AluOp::Lsh, place, 24) };
    let both = code.int(problem.1);
    code.jump(made, &[both, word]);
    code.switch_to_block(other_code);
    code.jump(other, &[]);
    code.switch_to_block(other);
    code.drop(packet, "not_translated");
}

/// The corresponding number in the other version; those that are not named stay.
fn becomes(code: &mut ElementBuilder<'_, '_>, kind: Value, becomes: &[(i64, i64)]) -> Value {
    let mut new = kind;
    for (from, to) in becomes {
        let (from, to) = (code.int(*from), code.int(*to));
        let is = code.compare(Cond::Eq, kind, from);
        new = code.select(is, to, new);
    }
    new
}

/// Types of echoes in the other version.
const TO_FOUR: &[(i64, i64)] = &[(ECHO6, ECHO4), (REPLY6, REPLY4)];
const TO_SIX: &[(i64, i64)] = &[(ECHO4, ECHO6), (REPLY4, REPLY6)];

/// Translates the type of an echo that an error quotes, as far as it does.
fn quoted_echo(
    code: &mut ElementBuilder<'_, '_>,
    packet: PacketValues,
    rest: Value,
    protocol: (Value, i64),
    types: &[(i64, i64)],
) {
    let (is, on) = (code.block(), code.block());
    let (beyond, number) = (code.at(rest, 1), code.int(protocol.1));
    let there = code.block();
    code.branch(Cond::Eq, protocol.0, number, there, on);
    code.switch_to_block(there);
    code.branch(Cond::Le, beyond, packet.end, is, on);
    code.switch_to_block(is);
    let kind = code.byte(rest, 0);
    let kind = becomes(code, kind, types);
    code.set_byte(rest, 0, kind);
    code.jump(on, &[]);
    code.switch_to_block(on);
}

/// Ends with the packet from a header on, bound for an address.
fn leave(
    code: &mut ElementBuilder<'_, '_>,
    packet: PacketValues,
    header: Value,
    end: Value,
    words: [Value; 4],
) {
    let yes = code.truth(true);
    let packet =
        packet.bounded(header, end).with(Annotation::Network, header).with(Annotation::HasNetwork, yes);
    code.out(0, packet.bound_for(words));
}

/// The destination annotation with an address of IPv4: its other words stay.
fn short(packet: PacketValues, head: HeaderFields) -> [Value; 4] {
    let of = |note| packet.note(note);
    [
        head.destination,
        of(Annotation::Destination2),
        of(Annotation::Destination3),
        of(Annotation::Destination4),
    ]
}

struct SixToFour;

impl ElementCodegen for SixToFour {
    fn build(&self, code: &mut ElementBuilder<'_, '_>, _: u32, packet: PacketValues) {
        let old = header(code, packet);
        code.need(packet, old, HEADER6, "too_short");
        let version = code.byte(old, 0);
        let version = code.with(AluOp::Rsh, version, 4);
        code.check_int(Cond::Eq, version, 6, |code| code.drop(packet, "bad_version"));
        let head = read6(code, packet, old);
        let payload = code.at(old, HEADER6);
        let end = code.end(payload, head.payload);
        code.check(Cond::Le, end, packet.end, |code| code.drop(packet, "bad_length"));
        let packet = packet.bounded(packet.data, end);
        let done = code.block();
        let protocol = code.number_param(done);
        let (gone, come) = (addresses6(code, old), addresses4(code, head));
        transports(code, packet, (payload, head), (gone, come), done, |_| {});
        let next = only(code, head.protocol, i64::from(ICMP6));
        need(code, packet, head, MESSAGE);
        self.message(code, packet, (old, payload), head, done);
        code.switch_to_block(next);
        code.jump(done, &[head.protocol]);
        code.switch_to_block(done);
        let new = code.at(payload, -HEADER4);
        write4(code, new, HeaderFields { protocol, ..head });
        leave(code, packet, new, end, short(packet, head));
    }
}

impl SixToFour {
    /// Translates a message of ICMP, and ends: an echo in `done`.
    fn message(
        &self,
        code: &mut ElementBuilder<'_, '_>,
        packet: PacketValues,
        (old, payload): (Value, Value),
        head: HeaderFields,
        done: Block,
    ) {
        let icmp = code.int(ICMP);
        let (kind, number) = (code.byte(payload, 0), code.byte(payload, 1));
        let other = either(code, kind, [ECHO6, REPLY6]);
        // The pseudo header is no longer covered.
        let (addresses, before) = (addresses6(code, old), code.raw(2, payload, 0));
        let gone = covered(code, addresses, head.payload, before);
        let new = becomes(code, kind, TO_FOUR);
        code.set_byte(payload, 0, new);
        let come = code.raw(2, payload, 0);
        exchange(code, payload, 2, gone, come);
        code.jump(done, &[icmp]);

        code.switch_to_block(other);
        need(code, packet, head, MESSAGE + HEADER6);
        let made = code.block();
        let (both, word) = (code.number_param(made), code.number_param(made));
        let rest = code.word(payload, 4);
        errors(
            code,
            packet,
            [kind, number, rest],
            (ERRORS6, POINTERS6, NOWHERE6),
            ((2 << 8, 3 << 8 | 4), -LONGER, (4 << 8, 12 << 8)),
            made,
        );
        code.switch_to_block(made);
        let quoted = code.at(payload, MESSAGE);
        let inner = read6(code, packet, quoted);
        let behind = code.at(quoted, HEADER6);
        let protocol = becomes(code, inner.protocol, &[(i64::from(ICMP6), ICMP)]);
        quoted_echo(code, packet, behind, (inner.protocol, i64::from(ICMP6)), TO_FOUR);
        let at = code.at(behind, -HEADER4);
        write4(code, at, HeaderFields { protocol, ..inner });
        let message = code.at(at, -MESSAGE);
        write_message(code, message, both, word);
        let (bytes, zero) = (code.sub(packet.end, message), code.int(0));
        let sum = sum_bytes(code, message, bytes, zero);
        let sum = fold(code, sum);
        let sum = code.with(AluOp::Xor, sum, HALF);
        code.set_raw(2, message, 2, sum);
        let new = code.at(message, -HEADER4);
        write4(code, new, HeaderFields { protocol: icmp, payload: bytes, ..head });
        leave(code, packet, new, packet.end, short(packet, head));
    }
}

struct FourToSix;

impl ElementCodegen for FourToSix {
    fn build(&self, code: &mut ElementBuilder<'_, '_>, _: u32, packet: PacketValues) {
        let old = header(code, packet);
        let (version, length) = (code.byte(old, 0), header_length(code, old));
        let version = code.with(AluOp::Rsh, version, 4);
        code.check_int(Cond::Eq, version, 4, |code| code.drop(packet, "bad_version"));
        code.check_int(Cond::Ge, length, HEADER4, |code| code.drop(packet, "bad_header_length"));
        let total = code.half(old, 2);
        code.check(Cond::Ge, total, length, |code| code.drop(packet, "bad_length"));
        let end = code.end(old, total);
        code.check(Cond::Le, end, packet.end, |code| code.drop(packet, "bad_length"));
        let fragment = code.half(old, 6);
        let fragment = code.with(AluOp::And, fragment, FRAGMENT);
        code.check_int(Cond::Eq, fragment, 0, |code| code.drop(packet, "fragment"));
        let (head, payload) = (read4(code, old, length), code.plus(old, length));
        let packet = packet.bounded(packet.data, end);
        let done = code.block();
        let protocol = code.number_param(done);
        // The words in front of an address of IPv4 are zero or the other zero: they add nothing.
        let both = addresses4(code, head);
        transports(code, packet, (payload, head), (both, both), done, |code| summed(code, payload, head));
        let next = only(code, head.protocol, ICMP);
        need(code, packet, head, MESSAGE);
        self.message(code, packet, payload, head, done);
        code.switch_to_block(next);
        // Extension headers of IPv6 do not exist in IPv4.
        for extension in EXTENSIONS.into_iter().chain([i64::from(ICMP6)]) {
            code.check_int(Cond::Ne, head.protocol, extension, |code| code.drop(packet, "not_translated"));
        }
        code.jump(done, &[head.protocol]);
        code.switch_to_block(done);
        let new = code.push(packet, payload, HEADER6);
        write6(code, new, HeaderFields { protocol, ..head });
        let words = mapped(code, head.destination);
        leave(code, packet, new, end, words);
    }
}

/// Gives a datagram without a checksum one, as IPv6 must have.
fn summed(code: &mut ElementBuilder<'_, '_>, payload: Value, head: HeaderFields) {
    let (sum, on) = (code.raw(2, payload, 6), code.block());
    code.check_int(Cond::Eq, sum, 0, |code| code.jump(on, &[]));
    let (addresses, length) = (addresses4(code, head), code.swapped(16, head.payload));
    let pseudo = code.add(addresses, length);
    let pseudo = code.with(AluOp::Add, pseudo, UDP << 8);
    let sum = sum_bytes(code, payload, head.payload, pseudo);
    let sum = fold(code, sum);
    let sum = code.with(AluOp::Xor, sum, HALF);
    code.set_raw(2, payload, 6, sum);
    code.jump(on, &[]);
    code.switch_to_block(on);
}

impl FourToSix {
    /// Translates a message of ICMP, and ends: an echo in `done`.
    fn message(
        &self,
        code: &mut ElementBuilder<'_, '_>,
        packet: PacketValues,
        payload: Value,
        head: HeaderFields,
        done: Block,
    ) {
        let icmp = code.int(i64::from(ICMP6));
        let (kind, number) = (code.byte(payload, 0), code.byte(payload, 1));
        let other = either(code, kind, [ECHO4, REPLY4]);
        let gone = code.raw(2, payload, 0);
        let new = becomes(code, kind, TO_SIX);
        code.set_byte(payload, 0, new);
        let (addresses, after) = (addresses4(code, head), code.raw(2, payload, 0));
        let come = covered(code, addresses, head.payload, after);
        exchange(code, payload, 2, gone, come);
        code.jump(done, &[icmp]);

        code.switch_to_block(other);
        need(code, packet, head, MESSAGE + HEADER4);
        let made = code.block();
        let (both, word) = (code.number_param(made), code.number_param(made));
        let rest = code.word(payload, 4);
        errors(
            code,
            packet,
            [kind, number, rest],
            (ERRORS4, POINTERS4, NOWHERE4),
            ((3 << 8 | 4, 2 << 8), LONGER, (12 << 8, 4 << 8)),
            made,
        );
        code.switch_to_block(made);
        let quoted = code.at(payload, MESSAGE);
        let length = header_length(code, quoted);
        code.check_int(Cond::Ge, length, HEADER4, |code| code.drop(packet, "bad_header_length"));
        let behind = code.plus(quoted, length);
        code.check(Cond::Le, behind, packet.end, |code| code.drop(packet, "too_short"));
        let inner = read4(code, quoted, length);
        let protocol = becomes(code, inner.protocol, &[(ICMP, i64::from(ICMP6))]);
        quoted_echo(code, packet, behind, (inner.protocol, ICMP), TO_SIX);
        let new = code.push(packet, behind, 2 * HEADER6 + MESSAGE);
        let message = code.at(new, HEADER6);
        let at = code.at(message, MESSAGE);
        write6(code, at, HeaderFields { protocol, ..inner });
        write_message(code, message, both, word);
        let bytes = code.sub(packet.end, message);
        write6(code, new, HeaderFields { protocol: icmp, payload: bytes, ..head });
        set_sum(code, new, bytes);
        let words = mapped(code, head.destination);
        leave(code, packet, new, packet.end, words);
    }
}

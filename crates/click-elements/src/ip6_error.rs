//! `ICMP6Error`. Source: RFC 4443, sections 2.4 and 3; RFC 4861, 4.5 and 8.2.
//!
//! As `ICMPError`, the error is made in place: the packet that it speaks of is its payload already.

use millstream_ir::Value;
use millstream_isa::{AluOp, Cond};

use super::ip::{fold, header};
use super::ip6::{DESTINATION, HEADER, SOURCE};
use super::transport::sum_bytes;
use millstream_click::arguments::{byte, ip6};
use millstream_click::build::ElementBuilder;
use millstream_click::class::{ElementClass, ElementCodegen, ElementResult};
use millstream_click::keyword::at;
use millstream_click::packet::{Annotation, HOST, PacketValues};
use millstream_click::{ElementSetup, Error};

pub(super) const CLASSES: &[ElementClass] = &[ElementClass::filter(
    "ICMP6Error",
    "Makes errors about packets, in their place.",
    &[at("SRC"), at("TYPE"), at("CODE")],
    error,
)];

/// Numbers of next headers.
pub(super) const ICMP6: u8 = 58;
const FRAGMENT: i64 = 44;
/// Types: errors are below that of an echo.
const TOO_BIG: u64 = 2;
const PARAMETER_PROBLEM: u64 = 4;
const ERRORS: std::ops::RangeInclusive<u64> = 1..=4;
const FIRST_INFORMATIONAL: i64 = 128;
const REDIRECT: u64 = 137;

/// Bytes of the message's header, and of the addresses that a redirect has in addition: the better hop and
/// the destination.
const MESSAGE: i64 = 8;
const REDIRECTED: i64 = 32;
/// Bytes of the packet that are sent back at most, so that the message has at most 576.
const MOST: i64 = 568;
/// The unit that `Packet Too Big` speaks of.
const UNIT: u32 = 1500;
/// The low bits of the first half of a fragment's offset: flags.
const FLAGS: i64 = 3;

struct Icmp6Error {
    source: u128,
    kind: u8,
    code: u8,
}

fn error(setup: &mut ElementSetup<'_>) -> ElementResult {
    let source = ip6(&setup.arguments.need("SRC")?, setup.arguments.names)?;
    let text = setup.arguments.need("TYPE")?;
    let kind = byte(&text)?;
    if !ERRORS.contains(&kind) && kind != REDIRECT {
        let message = format!("{kind} is no type of errors or redirects");
        return Err(Error::new(text.span, message).help("errors are 1 to 4, a redirect is 137"));
    }
    let code = byte(&setup.arguments.need("CODE")?)?;
    Ok(Box::new(Icmp6Error { source, kind: kind as u8, code: code as u8 }))
}

impl ElementCodegen for Icmp6Error {
    fn build(&self, code: &mut ElementBuilder<'_, '_>, _: u32, packet: PacketValues) {
        let header = header(code, packet);
        code.need(packet, header, HEADER, "too_short");
        self.refuse(code, packet, header);
        self.answer(code, packet, header);
    }
}

impl Icmp6Error {
    /// Drops packets that no error may be sent about.
    fn refuse(&self, code: &mut ElementBuilder<'_, '_>, packet: PacketValues, header: Value) {
        code.check_int(Cond::Eq, packet.note(Annotation::Cast), HOST, |code| code.drop(packet, "broadcast"));
        let first = code.byte(header, DESTINATION);
        code.check_int(Cond::Ne, first, 0xff, |code| code.drop(packet, "broadcast"));
        let (next, icmp, fragment) = (code.byte(header, 6), code.int(i64::from(ICMP6)), code.int(FRAGMENT));
        let (message, no_message, piece, fine) = (code.block(), code.block(), code.block(), code.block());
        code.branch(Cond::Eq, next, icmp, message, no_message);
        code.switch_to_block(message);
        code.need(packet, header, HEADER + 1, "too_short");
        let kind = code.byte(header, HEADER as i32);
        code.check_int(Cond::Ge, kind, FIRST_INFORMATIONAL, |code| code.drop(packet, "about_an_error"));
        code.check_int(Cond::Ne, kind, REDIRECT as i64, |code| code.drop(packet, "about_an_error"));
        code.jump(fine, &[]);
        code.switch_to_block(no_message);
        code.branch(Cond::Eq, next, fragment, piece, fine);
        code.switch_to_block(piece);
        code.need(packet, header, HEADER + 4, "too_short");
        let offset = code.half(header, HEADER as i32 + 2);
        let offset = code.with(AluOp::Rsh, offset, FLAGS);
        code.check_int(Cond::Eq, offset, 0, |code| code.drop(packet, "fragment"));
        code.jump(fine, &[]);
        code.switch_to_block(fine);
    }

    /// Puts the headers in front, and ends.
    fn answer(&self, code: &mut ElementBuilder<'_, '_>, mut packet: PacketValues, header: Value) {
        let redirect = u64::from(self.kind) == REDIRECT;
        let back = code.words(header, SOURCE);
        let destination = code.words(header, DESTINATION);
        let length = code.length(packet);
        let most = code.int(MOST);
        let short = code.compare(Cond::Le, length, most);
        let length = code.select(short, length, most);
        packet.end = code.end(packet.data, length);
        let message = MESSAGE + if redirect { REDIRECTED } else { 0 };
        packet.data = code.push(packet, packet.data, HEADER + message);
        let data = packet.data;
        let payload = code.with(AluOp::Add, length, message);
        code.write(data, 0, &[0x60, 0, 0, 0]);
        code.set_half(data, 4, payload);
        code.write(data, 6, &[ICMP6, u8::MAX]);
        code.write(data, SOURCE, &self.source.to_be_bytes());
        set_words(code, data, DESTINATION, back);
        let at = HEADER as i32;
        code.write(data, at, &[self.kind, self.code, 0, 0, 0, 0, 0, 0]);
        match u64::from(self.kind) {
            TOO_BIG => code.write(data, at + 4, &UNIT.to_be_bytes()),
            PARAMETER_PROBLEM => code.set_word(data, at + 4, packet.note(Annotation::Parameter)),
            REDIRECT => {
                set_words(code, data, at + 8, packet.destination6());
                set_words(code, data, at + 24, destination);
            }
            _ => {}
        }
        set_sum(code, data, payload);
        let yes = code.truth(true);
        let packet = packet.with(Annotation::Network, data).with(Annotation::HasNetwork, yes).bound_for(back);
        code.out(0, packet.with(Annotation::FixSource, yes));
    }
}

/// Writes four words, one behind the other.
pub(super) fn set_words(code: &mut ElementBuilder<'_, '_>, base: Value, offset: i32, words: [Value; 4]) {
    for (at, word) in (offset..).step_by(4).zip(words) {
        code.set_word(base, at, word);
    }
}

/// Computes the checksum of a message of `bytes` bytes behind the header at `base`, where it is zero as yet.
pub(super) fn set_sum(code: &mut ElementBuilder<'_, '_>, base: Value, bytes: Value) {
    let sum = message_sum(code, base, bytes);
    let sum = code.with(AluOp::Xor, sum, 0xffff);
    code.set_raw(2, base, HEADER as i32 + 2, sum);
}

/// The folded sum of a message of `bytes` bytes behind the header at `base`, in the order of memory, with the
/// pseudo header (RFC 8200, 8.1).
pub(super) fn message_sum(code: &mut ElementBuilder<'_, '_>, base: Value, bytes: Value) -> Value {
    // The payload's length from the header, and the next header.
    let (length, next) = (code.raw(2, base, 4), code.byte(base, 6));
    let next = code.with(AluOp::Lsh, next, 8);
    let pseudo = code.add(length, next);
    let addresses = code.at(base, i64::from(SOURCE));
    let covered = code.with(AluOp::Add, bytes, HEADER - i64::from(SOURCE));
    let sum = sum_bytes(code, addresses, covered, pseudo);
    fold(code, sum)
}

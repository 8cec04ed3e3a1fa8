//! `IP6NDAdvertiser`: answers to neighbour solicitations. Source: RFC 4861, 4.3, 4.4 and 7.2.

use millstream_isa::Cond;

use super::ip6::{HEADER, differs};
use super::ip6_error::{ICMP6, message_sum, set_sum};
use millstream_click::arguments::{ether, mask6, prefix6};
use millstream_click::build::ElementBuilder;
use millstream_click::class::{ElementClass, ElementCodegen, ElementResult};
use millstream_click::keyword::at;
use millstream_click::packet::{Annotation, PacketValues};
use millstream_click::{ElementSetup, Error, SpannedText, words};

pub(super) const CLASSES: &[ElementClass] =
    &[ElementClass::filter("IP6NDAdvertiser", "Answers solicitations for addresses.", &[], advertiser)
        .and(at("PREFIX ETHER"))];

/// Bytes of an Ethernet header; with a message about a neighbour behind it that has one option.
pub(super) const ETHER: i64 = 14;
pub(super) const MESSAGE: i64 = 32;
pub(super) const WHOLE: i64 = ETHER + HEADER + MESSAGE;
/// Offsets in a frame: the IPv6 header's addresses, the message, its target, and the option.
pub(super) const SOURCE: i32 = 22;
pub(super) const DESTINATION: i32 = 38;
pub(super) const KIND: i32 = 54;
pub(super) const TARGET: i32 = 62;
pub(super) const OPTION: i32 = 78;
/// Types and codes, both bytes at once.
const SOLICITATION: i64 = 135 << 8;
/// The beginning of an IPv6 header with such a message behind it: version, length, next header, and the full
/// hop limit.
pub(super) const HEAD: [u8; 8] = [0x60, 0, 0, 0, 0, MESSAGE as u8, ICMP6, u8::MAX];
/// An advertisement by a router that was asked.
const ADVERTISEMENT: [u8; 8] = [136, 0, 0, 0, 0xc0, 0, 0, 0];

struct NeighborAdvertiser {
    /// Address, length of the prefix and answer, longest first.
    entries: Vec<(u128, u32, [u8; 6])>,
}

fn advertiser(setup: &mut ElementSetup<'_>) -> ElementResult {
    let mut entries = Vec::new();
    for argument in setup.arguments.rest() {
        entries.extend(said(setup, &argument)?);
    }
    // Of equal ones the last counts.
    entries.reverse();
    entries.sort_by_key(|(_, bits, _)| std::cmp::Reverse(*bits));
    Ok(Box::new(NeighborAdvertiser { entries }))
}

/// The contents of an argument: prefixes and the address to answer with.
fn said(setup: &ElementSetup<'_>, argument: &SpannedText) -> Result<Vec<(u128, u32, [u8; 6])>, Error> {
    let names = setup.arguments.names;
    let (mut prefixes, mut answer) = (Vec::new(), None);
    for word in words(argument) {
        // A name may have values of both kinds.
        let own = ether(&word, names).ok();
        match prefix6(&word, names) {
            Ok(prefix) => prefixes.push(prefix),
            Err(_) if answer.is_none() && own.is_some() => {}
            Err(_) => {
                let message = format!("`{}` is neither an IPv6 prefix nor an Ethernet address", word.text);
                return Err(Error::new(word.span, message));
            }
        }
        answer = answer.or(own);
    }
    let expected =
        || Error::new(argument.span, "expected IPv6 prefixes and the Ethernet address to answer with");
    let answer = answer.filter(|_| !prefixes.is_empty()).ok_or_else(expected)?;
    Ok(prefixes.into_iter().map(|(address, bits)| (address, bits, answer)).collect())
}

impl ElementCodegen for NeighborAdvertiser {
    fn build(&self, code: &mut ElementBuilder<'_, '_>, _: u32, packet: PacketValues) {
        code.need(packet, packet.data, WHOLE, "too_short");
        let other = |code: &mut ElementBuilder<'_, '_>| code.drop(packet, "no_solicitation");
        for (offset, wanted) in [(12, 0x86dd), (KIND, SOLICITATION)] {
            let found = code.half(packet.data, offset);
            code.check_int(Cond::Eq, found, wanted, other);
        }
        // The message was not forwarded.
        let hops = code.byte(packet.data, 21);
        code.check_int(Cond::Eq, hops, i64::from(u8::MAX), other);
        let (header, bytes) = (code.at(packet.data, ETHER), code.int(MESSAGE));
        let sum = message_sum(code, header, bytes);
        code.check_int(Cond::Eq, sum, 0xffff, |code| code.drop(packet, "bad_checksum"));
        let wanted = code.words(packet.data, TARGET);
        for (address, bits, answer) in &self.entries {
            let differs = differs(code, wanted, *address, mask6(*bits));
            code.check_int(Cond::Ne, differs, 0, |code| advertise(code, packet, answer));
        }
        code.drop(packet, "not_answered");
    }
}

/// Makes the solicitation its answer, and ends.
fn advertise(code: &mut ElementBuilder<'_, '_>, mut packet: PacketValues, answer: &[u8; 6]) {
    let data = packet.data;
    code.copy(data, 0, data, 6, 6);
    code.copy(data, DESTINATION, data, SOURCE, 16);
    code.copy(data, SOURCE, data, TARGET, 16);
    code.write(data, 6, &[&answer[..], &[0x86, 0xdd], &HEAD].concat());
    code.write(data, KIND, &ADVERTISEMENT);
    code.write(data, OPTION, &[&[2, 1], &answer[..]].concat());
    let (header, bytes) = (code.at(data, ETHER), code.int(MESSAGE));
    set_sum(code, header, bytes);
    let whole = code.int(WHOLE);
    packet.end = code.end(data, whole);
    let none = code.truth(false);
    code.out(0, packet.with(Annotation::HasNetwork, none));
}

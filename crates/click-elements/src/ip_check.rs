//! `CheckIPHeader`: checks headers by RFC 1812, 5.2.2.

use millstream_ir::Value;
use millstream_isa::{AluOp, Cond};

use super::ip::{HEADER, header_length, header_sum};
use super::transport::{TOLD, bad};
use millstream_click::arguments::{boolean, ip, prefix, unsigned};
use millstream_click::build::ElementBuilder;
use millstream_click::class::{ElementClass, ElementCodegen, ElementResult};
use millstream_click::keyword::{ArgumentSpec, IgnoredValueKind, at, key, moot};
use millstream_click::packet::{Annotation, PacketValues};
use millstream_click::{ElementSetup, Error, SpannedText, words};

const ARGUMENTS: &[ArgumentSpec] = &[
    key("OFFSET"),
    key("INTERFACES"),
    key("BADSRC"),
    key("GOODDST"),
    key("CHECKSUM"),
    moot("VERBOSE", IgnoredValueKind::Truth, TOLD),
    moot("DETAILS", IgnoredValueKind::Truth, TOLD),
];

const fn class(name: &'static str, make: fn(&mut ElementSetup<'_>) -> ElementResult) -> ElementClass {
    ElementClass::check(name, "Checks the IP header.", ARGUMENTS, make).and(at("[BADSRC,] OFFSET"))
}

pub(super) const CLASSES: &[ElementClass] = &[
    class("CheckIPHeader", |setup| check(setup, true)),
    class("CheckIPHeader2", |setup| check(setup, false)),
];

struct CheckIpHeader {
    offset: i64,
    checksum: bool,
    /// Sources that are refused, unless the destination is one of the good ones.
    bad_sources: Vec<u32>,
    good_destinations: Vec<u32>,
    counter: u32,
}

fn check(setup: &mut ElementSetup<'_>, checksum: bool) -> ElementResult {
    let mut check = CheckIpHeader {
        offset: 0,
        checksum: setup.arguments.keyword_or("CHECKSUM", checksum, boolean)?,
        bad_sources: Vec::new(),
        good_destinations: Vec::new(),
        counter: setup.counter("count"),
    };
    let number = |text: &SpannedText| unsigned(text, 65_535);
    if let Some(text) = setup.arguments.next("OFFSET") {
        match number(&text) {
            Ok(offset) => check.offset = offset as i64,
            // The old form: bad sources, then the offset.
            Err(_) => {
                check.bad_sources = addresses(setup, &text)?;
                check.bad_sources.extend([0, u32::MAX]);
                check.offset = setup.arguments.or("OFFSET", 0, number)? as i64;
            }
        }
    }
    if let Some(text) = setup.arguments.keyword("INTERFACES") {
        for word in words(&text) {
            let (address, mask) = prefix(&word, setup.arguments.names)?;
            check.bad_sources.push(address | !mask);
            check.good_destinations.push(address);
        }
        check.bad_sources.extend([0, u32::MAX]);
    }
    for (name, list) in [("BADSRC", true), ("GOODDST", false)] {
        if let Some(text) = setup.arguments.keyword(name) {
            let all = addresses(setup, &text)?;
            if list { check.bad_sources.extend(all) } else { check.good_destinations.extend(all) }
        }
    }
    check.bad_sources.sort_unstable();
    check.bad_sources.dedup();
    Ok(Box::new(check))
}

fn addresses(setup: &ElementSetup<'_>, text: &SpannedText) -> Result<Vec<u32>, Error> {
    words(text).iter().map(|word| ip(word, setup.arguments.names)).collect()
}

/// The header at an offset, which has so many bytes and this version.
pub(super) fn versioned(
    code: &mut ElementBuilder<'_, '_>,
    packet: PacketValues,
    offset: i64,
    (bytes, version): (i64, i64),
) -> Value {
    let least = code.at(packet.data, offset + bytes);
    code.check(Cond::Le, least, packet.end, |code| bad(code, packet, "too_short"));
    let header = code.at(packet.data, offset);
    let first = code.byte(header, 0);
    let found = code.with(AluOp::Rsh, first, 4);
    code.check_int(Cond::Eq, found, version, |code| bad(code, packet, "bad_version"));
    header
}

impl ElementCodegen for CheckIpHeader {
    fn build(&self, code: &mut ElementBuilder<'_, '_>, _: u32, mut packet: PacketValues) {
        let header = versioned(code, packet, self.offset, (HEADER, 4));
        let length = header_length(code, header);
        code.check_int(Cond::Ge, length, HEADER, |code| bad(code, packet, "bad_header_length"));
        let total = code.half(header, 2);
        code.check(Cond::Ge, total, length, |code| bad(code, packet, "bad_length"));
        let end = code.end(header, total);
        code.check(Cond::Le, end, packet.end, |code| bad(code, packet, "bad_length"));
        if self.checksum {
            let sum = header_sum(code, header, length);
            code.check_int(Cond::Eq, sum, 0xffff, |code| bad(code, packet, "bad_checksum"));
        }
        self.sources(code, packet, header);
        packet.end = end;
        let one = code.int(1);
        code.count(self.counter, one);
        let (yes, destination) = (code.truth(true), code.word(header, 16));
        let packet = packet.with(Annotation::Network, header).with(Annotation::HasNetwork, yes);
        code.out(0, packet.with(Annotation::Destination, destination));
    }
}

impl CheckIpHeader {
    /// Refuses bad sources, unless the packet is for one of the good destinations.
    fn sources(&self, code: &mut ElementBuilder<'_, '_>, packet: PacketValues, header: Value) {
        if self.bad_sources.is_empty() {
            return;
        }
        let (suspect, fine) = (code.block(), code.block());
        let source = code.word(header, 12);
        for address in &self.bad_sources {
            let (address, next) = (code.int(i64::from(*address)), code.block());
            code.branch(Cond::Eq, source, address, suspect, next);
            code.switch_to_block(next);
        }
        code.jump(fine, &[]);
        code.switch_to_block(suspect);
        let destination = code.word(header, 16);
        for address in &self.good_destinations {
            let (address, next) = (code.int(i64::from(*address)), code.block());
            code.branch(Cond::Eq, destination, address, fine, next);
            code.switch_to_block(next);
        }
        bad(code, packet, "bad_source");
        code.switch_to_block(fine);
    }
}

//! Elements that move the ends of packets: to headers, to a pattern, or to a length.

use millstream_ir::Value;
use millstream_isa::{AluOp, Cond};

use super::ip::{HEADER, header, header_length};
use super::transport::{ICMP, TCP, UDP};
use millstream_click::arguments::{boolean, unsigned};
use millstream_click::build::ElementBuilder;
use millstream_click::class::{ElementClass, ElementCodegen, ElementResult};
use millstream_click::keyword::{ArgumentSpec, at, key, refused_but};
use millstream_click::packet::{Annotation, PacketValues};
use millstream_click::{
    Element, ElementSetup, Error, SettingType, SettingValue, SpannedText, unquote, words,
};

/// The annotation for a number of bytes, in the names of Click.
const BYTES_ANNOTATION: ArgumentSpec =
    refused_but("ANNO", &["PAINT2", "22"], "numbers of bytes are kept in the annotation PAINT2 alone");

const fn strip_transport(name: &'static str, about: &'static str) -> ElementClass {
    ElementClass::filter(name, about, &[], |_| Ok(Box::new(StripTransportHeader)))
}

pub(super) const CLASSES: &[ElementClass] = &[
    strip_transport("StripTransportHeader", "Takes all in front of the payload of TCP, UDP or ICMP away."),
    strip_transport("StripTCPHeader", "Takes all in front of the payload of TCP, UDP or ICMP away."),
    strip_transport("StripUDPHeader", "Takes all in front of the payload of TCP, UDP or ICMP away."),
    ElementClass::filter("StripToNetworkHeader", "Lets packets begin with their IP header.", &[], |_| {
        Ok(Box::new(BeginAtHeader { transport: false, forward: true }))
    }),
    ElementClass::filter("UnstripIPHeader", "Gives an IP header back that was taken away.", &[], |_| {
        Ok(Box::new(BeginAtHeader { transport: false, forward: false }))
    }),
    ElementClass::filter(
        "UnstripTCPHeader",
        "Gives a transport header back that was taken away.",
        &[],
        |_| Ok(Box::new(BeginAtHeader { transport: true, forward: false })),
    ),
    ElementClass::filter(
        "UnstripTransportHeader",
        "Gives a transport header back that was taken away.",
        &[],
        |_| Ok(Box::new(BeginAtHeader { transport: true, forward: false })),
    ),
    ElementClass::filter(
        "UnstripAnno",
        "Gives bytes back: as many as `Search` took away.",
        &[BYTES_ANNOTATION.or_at()],
        |_| Ok(Box::new(UnstripAnnotated)),
    ),
    ElementClass {
        ports: "1/2",
        processing: "h/h",
        ..ElementClass::filter(
            "Search",
            "Takes away all in front of a pattern, and the pattern.",
            &[at("PATTERN"), key("STRIP_AFTER"), BYTES_ANNOTATION, key("SET_ANNO")],
            search,
        )
    },
    ElementClass::filter(
        "Truncate",
        "Shortens packets to a length.",
        &[at("LENGTH"), key("EXTRA_LENGTH")],
        truncate,
    )
    .passing(),
];

/// The first byte behind the IP header, which has at least 20 bytes.
fn behind_header(code: &mut ElementBuilder<'_, '_>, packet: PacketValues, header: Value) -> Value {
    let length = header_length(code, header);
    code.check_int(Cond::Ge, length, HEADER, |code| code.drop(packet, "bad_header_length"));
    code.plus(header, length)
}

/// Takes the transport header away, with all in front of it. Of other protocols than TCP, UDP and ICMP all in
/// front of their header goes.
struct StripTransportHeader;

impl ElementCodegen for StripTransportHeader {
    fn build(&self, code: &mut ElementBuilder<'_, '_>, _: u32, packet: PacketValues) {
        let header = header(code, packet);
        let transport = behind_header(code, packet, header);
        let (protocol, strip) = (code.byte(header, 9), code.block());
        let bytes = code.number_param(strip);
        for (number, fixed) in [(TCP, None), (UDP, Some(8)), (ICMP, Some(8))] {
            let (this, next, number) = (code.block(), code.block(), code.int(number));
            code.branch(Cond::Eq, protocol, number, this, next);
            code.switch_to_block(this);
            let bytes = match fixed {
                Some(bytes) => code.int(bytes),
                None => {
                    code.need(packet, transport, 13, "too_short");
                    let offset = code.byte(transport, 12);
                    let words = code.with(AluOp::Rsh, offset, 4);
                    code.with(AluOp::Lsh, words, 2)
                }
            };
            code.jump(strip, &[bytes]);
            code.switch_to_block(next);
        }
        let none = code.int(0);
        code.jump(strip, &[none]);
        code.switch_to_block(strip);
        let data = code.plus(transport, bytes);
        code.check(Cond::Le, data, packet.end, |code| code.drop(packet, "too_short"));
        code.out(0, packet.bounded(data, packet.end));
    }
}

/// Lets packets begin with a header that may lie in front of them.
struct BeginAtHeader {
    /// The header is that behind the IP header.
    transport: bool,
    /// Bytes in front of it are taken away, too.
    forward: bool,
}

impl ElementCodegen for BeginAtHeader {
    fn build(&self, code: &mut ElementBuilder<'_, '_>, _: u32, packet: PacketValues) {
        let mut begin = header(code, packet);
        if self.transport {
            begin = behind_header(code, packet, begin);
        }
        if !self.forward {
            code.check(Cond::Lt, begin, packet.data, |code| code.out(0, packet));
        }
        code.check(Cond::Le, begin, packet.end, |code| code.drop(packet, "too_short"));
        let room = code.push(packet, begin, 0);
        code.out(0, packet.bounded(room, packet.end));
    }
}

struct UnstripAnnotated;

impl ElementCodegen for UnstripAnnotated {
    fn build(&self, code: &mut ElementBuilder<'_, '_>, _: u32, packet: PacketValues) {
        let zero = code.int(0);
        let back = code.sub(zero, packet.note(Annotation::Skipped));
        let data = code.plus(packet.data, back);
        let data = code.push(packet, data, 0);
        code.out(0, packet.bounded(data, packet.end));
    }
}

/// Lets packets begin behind a pattern, or with it. Packets without it leave by output 1.
struct SearchPattern {
    pattern: Vec<u8>,
    after: bool,
    annotates: bool,
}

/// Bytes of a pattern, at most.
const MOST_PATTERN: usize = 1024;

fn search(setup: &mut ElementSetup<'_>) -> ElementResult {
    let text = setup.arguments.need("PATTERN")?;
    let pattern = unquote(&text.text);
    if pattern.is_empty() || pattern.len() > MOST_PATTERN {
        return Err(Error::new(text.span, format!("expected a pattern of 1 to {MOST_PATTERN} bytes")));
    }
    let after = setup.arguments.keyword_or("STRIP_AFTER", true, boolean)?;
    let annotates = setup.arguments.keyword_or("SET_ANNO", true, boolean)?;
    Ok(Box::new(SearchPattern { pattern, after, annotates }))
}

impl ElementCodegen for SearchPattern {
    fn build(&self, code: &mut ElementBuilder<'_, '_>, _: u32, packet: PacketValues) {
        let length = self.pattern.len() as i64;
        let (head, next, found) = (code.block(), code.block(), code.block());
        let at = code.packet_param(head);
        code.jump(head, &[packet.data]);
        code.switch_to_block(head);
        let beyond = code.at(at, length);
        code.check(Cond::Le, beyond, packet.end, |code| code.out(1, packet));
        for (place, piece) in self.pattern.chunks(4).enumerate() {
            // Pieces of one, two and four bytes, as they lie in memory.
            let mut offset = 4 * place as i32;
            let sizes: &[usize] = match piece.len() {
                4 => &[4],
                3 => &[2, 1],
                2 => &[2],
                _ => &[1],
            };
            let mut rest = piece;
            for size in sizes {
                let (bytes, more) = rest.split_at(*size);
                let mut raw = [0; 8];
                raw[..*size].copy_from_slice(bytes);
                let value = code.raw(*size, at, offset);
                code.check_int(Cond::Eq, value, i64::from_le_bytes(raw), |code| code.jump(next, &[]));
                (offset, rest) = (offset + *size as i32, more);
            }
        }
        code.jump(found, &[]);
        code.switch_to_block(next);
        let on = code.at(at, 1);
        code.jump(head, &[on]);
        code.switch_to_block(found);
        let data = code.at(at, if self.after { length } else { 0 });
        let mut packet_now = packet.bounded(data, packet.end);
        if self.annotates {
            let bytes = code.sub(data, packet.data);
            let all = code.add(packet.note(Annotation::Skipped), bytes);
            let all = code.with(AluOp::And, all, 0xffff);
            packet_now = packet_now.with(Annotation::Skipped, all);
        }
        code.out(0, packet_now);
    }
}

/// Shortens packets.
struct TruncatePacket {
    most: SettingValue,
    /// True if the number of bytes that are gone is noted.
    notes: bool,
}

/// Truncates packets. Captures do not add the bytes that are gone to lengths.
fn truncate(setup: &mut ElementSetup<'_>) -> ElementResult {
    let length = unsigned(&setup.arguments.need("LENGTH")?, u64::from(u32::MAX))? as i64;
    let notes = setup.arguments.keyword_or("EXTRA_LENGTH", true, boolean)?;
    let adds_lengths = |element: &&Element| {
        let is_false = |argument: &SpannedText| {
            let all: Vec<String> = words(argument).into_iter().map(|word| word.text).collect();
            matches!(&all[..], [name, value] if name == "EXTRA_LENGTH" && value == "false")
        };
        element.class == "ToDump" && !element.arguments.iter().any(is_false)
    };
    if notes && let Some(reader) = setup.elements().iter().find(adds_lengths) {
        let message =
            format!("`{}` would write the lengths that packets had, which it does not know", reader.name);
        let help = "with `EXTRA_LENGTH false`, the bytes that `Truncate` cuts off are forgotten";
        return Err(Error::new(setup.element.span, message).help(help));
    }
    let takes = SettingType::Number(0, i64::from(u32::MAX));
    Ok(Box::new(TruncatePacket { most: setup.setting("nbytes", takes, length), notes }))
}

impl ElementCodegen for TruncatePacket {
    fn build(&self, code: &mut ElementBuilder<'_, '_>, _: u32, packet: PacketValues) {
        let (length, most) = (code.length(packet), code.setting(self.most));
        let long = code.compare(Cond::Gt, length, most);
        let bytes = code.select(long, most, length);
        let end = code.end(packet.data, bytes);
        let mut packet_now = packet.bounded(packet.data, end);
        if self.notes {
            let gone = code.sub(length, bytes);
            let cut = code.add(packet.note(Annotation::Cut), gone);
            packet_now = packet_now.with(Annotation::Cut, cut);
        }
        code.out(0, packet_now);
    }
}

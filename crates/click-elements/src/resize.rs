//! `Resize`: packets get longer or shorter at either end.

use millstream_ir::Value;
use millstream_isa::Cond;

use millstream_click::arguments::unsigned;
use millstream_click::build::ElementBuilder;
use millstream_click::class::{ElementClass, ElementCodegen, ElementResult};
use millstream_click::keyword::at;
use millstream_click::packet::PacketValues;
use millstream_click::{ElementSetup, Error, SpannedText};

pub(super) const CLASSES: &[ElementClass] = &[ElementClass::filter(
    "Resize",
    "Adds bytes at the ends of packets, or removes them.",
    &[at("HEAD"), at("TAIL")],
    resize,
)];

/// Bytes at an end, at most.
const MOST: u64 = 65_535;

/// Bytes that are added; negative to remove them.
struct ResizePacket {
    head: i64,
    tail: i64,
}

fn resize(setup: &mut ElementSetup<'_>) -> ElementResult {
    let head = setup.arguments.or("HEAD", 0, signed)?;
    let tail = setup.arguments.or("TAIL", 0, signed)?;
    Ok(Box::new(ResizePacket { head, tail }))
}

/// A number of bytes, which may be negative.
fn signed(text: &SpannedText) -> Result<i64, Error> {
    match text.text.strip_prefix('-') {
        Some(digits) => {
            let positive = SpannedText { text: digits.to_owned(), span: text.span };
            unsigned(&positive, MOST).map(|bytes| -(bytes as i64))
        }
        None => unsigned(text, MOST).map(|bytes| bytes as i64),
    }
}

/// So many bytes, or all that the packet has.
fn at_most(code: &mut ElementBuilder<'_, '_>, packet: PacketValues, bytes: i64) -> Value {
    let (length, bytes) = (code.length(packet), code.int(bytes));
    let is_short = code.compare(Cond::Lt, length, bytes);
    code.select(is_short, length, bytes)
}

impl ElementCodegen for ResizePacket {
    fn build(&self, code: &mut ElementBuilder<'_, '_>, _: u32, packet: PacketValues) {
        let data = match self.head {
            head @ ..0 => {
                let removed = at_most(code, packet, -head);
                code.plus(packet.data, removed)
            }
            head => code.push(packet, packet.data, head),
        };
        let packet = packet.bounded(data, packet.end);
        let packet = match self.tail {
            0 => packet,
            tail @ ..0 => {
                let removed = at_most(code, packet, -tail);
                let length = code.length(packet);
                let rest = code.sub(length, removed);
                let end = code.end(packet.data, rest);
                packet.bounded(packet.data, end)
            }
            tail => {
                let bytes = code.int(tail);
                code.lengthened(packet, bytes)
            }
        };
        code.out(0, packet);
    }
}

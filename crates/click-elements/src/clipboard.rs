//! `Clipboard`: copies bytes of one packet into others.

use millstream_ir::Map;
use millstream_isa::Cond;

use millstream_click::arguments::unsigned;
use millstream_click::build::ElementBuilder;
use millstream_click::class::{ElementClass, ElementCodegen, ElementResult};
use millstream_click::keyword::at;
use millstream_click::packet::PacketValues;
use millstream_click::{ElementSetup, Error, SpannedText};

pub(super) const CLASSES: &[ElementClass] = &[ElementClass {
    ports: "2/2",
    passes_all: true,
    ..ElementClass::filter(
        "Clipboard",
        "Copies bytes of packets of input 0 into those of input 1.",
        &[],
        clipboard,
    )
}
.and(at("RANGE"))];

/// Bytes of all ranges, at most.
const MOST_BYTES: u64 = 1024;
/// Offset of a range, at most.
const MOST_OFFSET: u64 = 65_535;

/// Bytes of a packet, and where they are kept.
struct CopiedRange {
    offset: i64,
    bytes: i64,
    kept: u32,
}

struct PacketClipboard {
    ranges: Vec<CopiedRange>,
    /// Bytes that a packet needs to have all ranges.
    least: i64,
    map: Map,
}

fn clipboard(setup: &mut ElementSetup<'_>) -> ElementResult {
    let mut kept = 0;
    let mut ranges = Vec::new();
    for text in setup.arguments.rest() {
        let (offset, bytes) = range(&text)?;
        ranges.push(CopiedRange { offset: offset as i64, bytes: bytes as i64, kept: kept as u32 });
        kept += bytes;
        if kept > MOST_BYTES {
            return Err(Error::new(
                text.span,
                format!("all ranges together have {MOST_BYTES} bytes at most"),
            ));
        }
    }
    if ranges.is_empty() {
        return Err(Error::new(setup.element.span, "`Clipboard` lacks its argument RANGE"));
    }
    let least = ranges.iter().map(|range| range.offset + range.bytes).max().unwrap_or(0);
    let map = setup.cells("clipboard", kept as u32);
    setup.require_single_worker("the packet whose bytes are copied is the one before");
    Ok(Box::new(PacketClipboard { ranges, least, map }))
}

/// Offset and number of bytes: `OFFSET/LENGTH`.
fn range(text: &SpannedText) -> Result<(u64, u64), Error> {
    let wrong = || Error::new(text.span, format!("`{}` is no range like 12/4", text.text));
    let (offset, bytes) = text.text.split_once('/').ok_or_else(wrong)?;
    let part = |part: &str| SpannedText { text: part.trim().to_owned(), span: text.span };
    let (offset, bytes) = (unsigned(&part(offset), MOST_OFFSET)?, unsigned(&part(bytes), MOST_BYTES)?);
    if bytes == 0 { Err(wrong()) } else { Ok((offset, bytes)) }
}

impl ElementCodegen for PacketClipboard {
    fn build(&self, code: &mut ElementBuilder<'_, '_>, port: u32, packet: PacketValues) {
        let beyond = code.at(packet.data, self.least);
        code.check(Cond::Le, beyond, packet.end, |code| code.out(port, packet));
        for range in &self.ranges {
            let kept = code.cell(self.map, range.kept);
            let (offset, bytes) = (range.offset as i32, range.bytes as i32);
            match port {
                0 => code.copy(kept, 0, packet.data, offset, bytes),
                _ => code.copy(packet.data, offset, kept, 0, bytes),
            }
        }
        code.out(port, packet);
    }
}

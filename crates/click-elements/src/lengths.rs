//! `Pad`: packets that are at least, and at most, so long.

use millstream_isa::{AluOp, Cond};

use millstream_click::ElementSetup;
use millstream_click::arguments::unsigned;
use millstream_click::build::ElementBuilder;
use millstream_click::class::{ElementClass, ElementCodegen, ElementResult};
use millstream_click::keyword::{IgnoredValueKind, at, key, moot, refused_but};
use millstream_click::packet::PacketValues;

pub(super) const CLASSES: &[ElementClass] = &[ElementClass::filter(
    "Pad",
    "Makes packets as long as is said, with zeros.",
    &[
        at("LENGTH"),
        key("MAXLENGTH"),
        moot("ZERO", IgnoredValueKind::Truth, "what is added is zero, as it may be without"),
        refused_but("RANDOM", &["false"], "zeros are added"),
        moot("VERBOSE", IgnoredValueKind::Truth, "nothing is said of packets that would be too long"),
    ],
    pad,
)];

/// Bytes of the longest packet that is asked for.
const LONGEST: u64 = 3500;

struct PadPacket {
    least: i64,
    /// 0 for any.
    most: i64,
}

fn pad(setup: &mut ElementSetup<'_>) -> ElementResult {
    // Without a length, the extra length is read, which no packet has here.
    let least = setup.arguments.or("LENGTH", 0, |text| unsigned(text, LONGEST))? as i64;
    let most = setup.arguments.keyword_or("MAXLENGTH", 0, |text| unsigned(text, LONGEST))? as i64;
    Ok(Box::new(PadPacket { least: if most == 0 { least } else { least.min(most) }, most }))
}

impl ElementCodegen for PadPacket {
    fn build(&self, code: &mut ElementBuilder<'_, '_>, _: u32, packet: PacketValues) {
        let length = code.length(packet);
        if self.most > 0 {
            code.check_int(Cond::Le, length, self.most, |code| {
                let most = code.int(self.most);
                let end = code.end(packet.data, most);
                code.out(0, packet.bounded(packet.data, end));
            });
        }
        if self.least > 0 {
            code.check_int(Cond::Lt, length, self.least, |code| code.out(0, packet));
            let least = code.int(self.least);
            let missing = code.alu(AluOp::Sub, least, length);
            let packet = code.lengthened(packet, missing);
            return code.out(0, packet);
        }
        code.out(0, packet);
    }
}

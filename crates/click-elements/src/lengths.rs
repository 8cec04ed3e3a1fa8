//! `Pad`: packets that are at least, and at most, so long.

use millstream_isa::Cond;

use millstream_click::ElementSetup;
use millstream_click::arguments::unsigned;
use millstream_click::build::ElementBuilder;
use millstream_click::class::{ElementClass, ElementCodegen, ElementResult};
use millstream_click::keyword::{IgnoredValueKind, at, key, moot, refused_but};
use millstream_click::packet::{Annotation, PacketValues};

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
    /// Without one, packets get the length that they had.
    least: Option<i64>,
    /// 0 for any.
    most: i64,
}

fn pad(setup: &mut ElementSetup<'_>) -> ElementResult {
    let least = setup.arguments.next("LENGTH").map(|text| unsigned(&text, LONGEST)).transpose()?;
    let most = setup.arguments.keyword_or("MAXLENGTH", 0, |text| unsigned(text, LONGEST))? as i64;
    let least = least.map(|least| if most == 0 { least as i64 } else { most.min(least as i64) });
    Ok(Box::new(PadPacket { least, most }))
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
        let (missing, none) = match self.least {
            Some(0) => return code.out(0, packet),
            Some(least) => {
                code.check_int(Cond::Lt, length, least, |code| code.out(0, packet));
                let least = code.int(least);
                (code.sub(least, length), code.int(0))
            }
            None => (packet.note(Annotation::Cut), code.int(0)),
        };
        code.check(Cond::Ne, missing, none, |code| code.out(0, packet));
        let packet = code.lengthened(packet, missing);
        code.out(0, packet.with(Annotation::Cut, none));
    }
}

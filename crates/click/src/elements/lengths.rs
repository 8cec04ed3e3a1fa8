//! `Pad`: packets that are at least, and at most, so long.

use millstream_isa::{AluOp, Cond};

use crate::arguments::unsigned;
use crate::build::Code;
use crate::class::{Behaviour, Class, Made};
use crate::compile::Setup;
use crate::keyword::{Kind, at, key, moot, refused_but};
use crate::packet::Packet;

pub(super) const CLASSES: &[Class] = &[Class::filter(
    "Pad",
    "Makes packets as long as is said, with zeros.",
    &[
        at("LENGTH"),
        key("MAXLENGTH"),
        moot("ZERO", Kind::Truth, "what is added is zero, as it may be without"),
        refused_but("RANDOM", &["false"], "zeros are added"),
        moot("VERBOSE", Kind::Truth, "nothing is said of packets that would be too long"),
    ],
    pad,
)];

/// Bytes of the longest packet that is asked for.
const LONGEST: u64 = 3500;

struct Pad {
    least: i64,
    /// 0 for any.
    most: i64,
}

fn pad(setup: &mut Setup<'_>) -> Made {
    // Without a length, the extra length is read, which no packet has here.
    let least = setup.arguments.or("LENGTH", 0, |text| unsigned(text, LONGEST))? as i64;
    let most = setup.arguments.keyword_or("MAXLENGTH", 0, |text| unsigned(text, LONGEST))? as i64;
    Ok(Box::new(Pad { least: if most == 0 { least } else { least.min(most) }, most }))
}

impl Behaviour for Pad {
    fn build(&self, code: &mut Code<'_, '_>, _: u32, packet: Packet) {
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

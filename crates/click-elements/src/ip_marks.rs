//! Type of service: codepoints of differentiated services and of congestion. Source: RFC 2474, RFC 3168.

use millstream_ir::Value;
use millstream_isa::{AluOp, Cond};

use super::ip::header;
use millstream_click::arguments::{boolean, unsigned};
use millstream_click::build::ElementBuilder;
use millstream_click::class::{ElementClass, ElementCodegen, ElementResult};
use millstream_click::keyword::at;
use millstream_click::packet::PacketValues;
use millstream_click::{ElementSetup, SettingType, SettingValue};

pub(super) const CLASSES: &[ElementClass] = &[
    ElementClass::filter("SetIPDSCP", "Sets the codepoint of differentiated services.", &[at("DSCP")], dscp),
    ElementClass::filter("MarkIPCE", "Marks packets as having met congestion.", &[at("FORCE")], congestion),
];

/// Bits of the type of service that tell of congestion.
const CONGESTION: i64 = 3;

/// Writes the type of service, and changes the header's checksum by as much: RFC 1624, equation 3.
fn set_service(code: &mut ElementBuilder<'_, '_>, header: Value, old: Value, new: Value) {
    code.set_byte(header, 1, new);
    let sum = code.half(header, 10);
    let sum = code.with(AluOp::Xor, sum, 0xffff);
    // The other byte of the word stays: it takes no part in the difference.
    let gone = code.with(AluOp::Xor, old, 0xffff);
    let sum = code.add(sum, gone);
    let sum = code.add(sum, new);
    let (low, high) = (code.with(AluOp::And, sum, 0xffff), code.with(AluOp::Rsh, sum, 16));
    let sum = code.add(low, high);
    let (low, high) = (code.with(AluOp::And, sum, 0xffff), code.with(AluOp::Rsh, sum, 16));
    let sum = code.add(low, high);
    let sum = code.with(AluOp::Xor, sum, 0xffff);
    code.set_half(header, 10, sum);
}

struct SetCodepoint(SettingValue);

fn dscp(setup: &mut ElementSetup<'_>) -> ElementResult {
    let codepoint = unsigned(&setup.arguments.need("DSCP")?, 63)? as i64;
    Ok(Box::new(SetCodepoint(setup.setting("dscp", SettingType::Number(0, 63), codepoint))))
}

impl ElementCodegen for SetCodepoint {
    fn build(&self, code: &mut ElementBuilder<'_, '_>, _: u32, packet: PacketValues) {
        let header = header(code, packet);
        let (old, codepoint) = (code.byte(header, 1), code.setting(self.0));
        let (kept, set) = (code.with(AluOp::And, old, CONGESTION), code.with(AluOp::Lsh, codepoint, 2));
        let new = code.alu(AluOp::Or, kept, set);
        set_service(code, header, old, new);
        code.out(0, packet);
    }
}

struct MarkCongestion {
    force: bool,
    drops: u32,
}

fn congestion(setup: &mut ElementSetup<'_>) -> ElementResult {
    let force = setup.arguments.or("FORCE", false, boolean)?;
    Ok(Box::new(MarkCongestion { force, drops: setup.counter("drops") }))
}

impl ElementCodegen for MarkCongestion {
    fn build(&self, code: &mut ElementBuilder<'_, '_>, _: u32, packet: PacketValues) {
        let header = header(code, packet);
        let old = code.byte(header, 1);
        let bits = code.with(AluOp::And, old, CONGESTION);
        if !self.force {
            code.check_int(Cond::Ne, bits, 0, |code| {
                let one = code.int(1);
                code.count(self.drops, one);
                code.drop(packet, "no_ecn");
            });
        }
        code.check_int(Cond::Ne, bits, CONGESTION, |code| code.out(0, packet));
        let new = code.with(AluOp::Or, old, CONGESTION);
        set_service(code, header, old, new);
        code.out(0, packet);
    }
}

//! VLAN tags. Source: IEEE 802.1Q.

use millstream_isa::Cond;

use crate::arguments::{boolean, unsigned};
use crate::build::Code;
use crate::class::{Behaviour, Class, Made};
use crate::compile::Setup;
use crate::error::Error;
use crate::packet::Packet;

pub(super) const CLASSES: &[Class] = &[
    Class::filter("VLANEncap", &["VLAN_TCI", "VLAN_PCP", "VLAN_ID", "NATIVE_VLAN", "ETHERTYPE"], encap)
        .passing(),
    Class::filter("VLANDecap", &["ANNO", "ETHERTYPE"], decap).passing(),
];

/// The usual type of tags.
const TAG: u64 = 0x8100;

fn ethertype(setup: &mut Setup<'_>) -> Result<u16, Error> {
    Ok(setup.arguments.keyword_or("ETHERTYPE", TAG, |text| unsigned(text, 0xffff))? as u16)
}

/// Puts a tag behind the addresses.
struct Encap {
    /// Type and tag; none for packets of the native VLAN, which have no tag.
    tag: Option<[u16; 2]>,
}

impl Behaviour for Encap {
    fn build(&self, code: &mut Code<'_, '_>, _: u32, mut packet: Packet) {
        if let Some(tag) = self.tag {
            code.need(packet, packet.data, 12, "too_short");
            let old = packet.data;
            packet.data = code.push(packet, old, 4);
            code.copy(packet.data, 0, old, 0, 12);
            code.write(packet.data, 12, tag.map(u16::to_be_bytes).as_flattened());
        }
        code.out(0, packet);
    }
}

fn encap(setup: &mut Setup<'_>) -> Made {
    let whole = setup.arguments.next("VLAN_TCI");
    if let Some(text) = whole.as_ref().filter(|text| text.text == "ANNO") {
        return Err(Error::new(text.span, "there is no annotation for tags"));
    }
    let whole = whole.map(|text| unsigned(&text, 0xffff)).transpose()?;
    let priority = setup.arguments.or("VLAN_PCP", 0, |text| unsigned(text, 7))?;
    let id = setup.arguments.keyword_or("VLAN_ID", 0, |text| unsigned(text, 0xfff))?;
    let native = match setup.arguments.keyword("NATIVE_VLAN") {
        Some(text) if text.text == "-1" => None,
        Some(text) => Some(unsigned(&text, 0xfff)?),
        None => Some(0),
    };
    let kind = ethertype(setup)?;
    let tag = (whole.unwrap_or(id) | priority << 13) as u16;
    let tagged = Some(u64::from(tag & 0xfff)) != native;
    Ok(Box::new(Encap { tag: tagged.then_some([kind, tag]) }))
}

/// Takes a tag away, if there is one.
struct Decap {
    kind: u16,
}

impl Behaviour for Decap {
    fn build(&self, code: &mut Code<'_, '_>, _: u32, packet: Packet) {
        let beyond = code.at(packet.data, 16);
        code.check(Cond::Le, beyond, packet.end, |code| code.out(0, packet));
        let kind = code.half(packet.data, 12);
        code.check_int(Cond::Eq, kind, i64::from(self.kind), |code| code.out(0, packet));
        let old = packet.data;
        let four = code.int(4);
        let data = code.plus(old, four);
        code.copy(data, 0, old, 0, 12);
        code.out(0, packet.bounded(data, packet.end));
    }
}

fn decap(setup: &mut Setup<'_>) -> Made {
    setup.arguments.or("ANNO", true, boolean)?;
    Ok(Box::new(Decap { kind: ethertype(setup)? }))
}

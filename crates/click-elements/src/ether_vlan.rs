//! Ethernet headers with a VLAN tag: `EtherVLANEncap` and `StripEtherVLANHeader`. Source: IEEE 802.1Q.

use millstream_isa::{AluOp, Cond};

use super::ether::EtherHeader;
use super::transport::bad;
use super::vlan::{TAG, TagSource, native_vlan, tag_source};
use millstream_click::arguments::unsigned;
use millstream_click::build::ElementBuilder;
use millstream_click::class::{ElementClass, ElementCodegen, ElementResult};
use millstream_click::keyword::{at, key};
use millstream_click::packet::{Annotation, PacketValues};
use millstream_click::{ElementSetup, SettingType, SettingValue};

pub(super) const CLASSES: &[ElementClass] = &[
    ElementClass::filter(
        "EtherVLANEncap",
        "Puts an Ethernet header with a VLAN tag in front.",
        &[
            at("ETHERTYPE"),
            at("SRC"),
            at("DST"),
            at("VLAN_TCI"),
            at("VLAN_PCP"),
            key("VLAN_ID"),
            key("NATIVE_VLAN"),
        ],
        encap,
    )
    .passing(),
    ElementClass::check(
        "StripEtherVLANHeader",
        "Takes an Ethernet header away, with its VLAN tag if it has one.",
        &[at("NATIVE_VLAN")],
        strip,
    ),
];

/// Bytes of an Ethernet header, and of one with a tag.
const PLAIN: i64 = 14;
const TAGGED: i64 = 18;

struct VlanHeader {
    addresses: EtherHeader,
    kind: SettingValue,
    tag: TagSource,
    /// Packets of this VLAN have no tag.
    native: Option<i64>,
}

fn encap(setup: &mut ElementSetup<'_>) -> ElementResult {
    let kind = unsigned(&setup.arguments.need("ETHERTYPE")?, 0xffff)? as i64;
    let addresses = EtherHeader::new(setup, None)?;
    let kind = setup.setting("ethertype", SettingType::Number(0, 0xffff), kind);
    let tag = tag_source(setup)?;
    let native = native_vlan(setup.arguments.keyword("NATIVE_VLAN"))?;
    Ok(Box::new(VlanHeader { addresses, kind, tag, native }))
}

impl VlanHeader {
    /// Ends with a header without a tag in front of the packet.
    fn put_plain(&self, code: &mut ElementBuilder<'_, '_>, packet: PacketValues) {
        let data = code.push(packet, packet.data, PLAIN);
        self.addresses.write(code, data);
        let kind = code.setting(self.kind);
        code.set_half(data, 12, kind);
        code.out(0, packet.bounded(data, packet.end));
    }
}

impl ElementCodegen for VlanHeader {
    fn build(&self, code: &mut ElementBuilder<'_, '_>, _: u32, packet: PacketValues) {
        let tag = self.tag.value(code, packet);
        if let Some(native) = self.native {
            let id = code.with(AluOp::And, tag, 0xfff);
            code.check_int(Cond::Ne, id, native, |code| self.put_plain(code, packet));
        }
        let data = code.push(packet, packet.data, TAGGED);
        self.addresses.write(code, data);
        code.write(data, 12, &(TAG as u16).to_be_bytes());
        code.set_half(data, 14, tag);
        let kind = code.setting(self.kind);
        code.set_half(data, 16, kind);
        code.out(0, packet.bounded(data, packet.end));
    }
}

/// Strips headers; packets without a tag belong to the native VLAN, if there is one.
struct StripVlanHeader {
    native: Option<i64>,
}

fn strip(setup: &mut ElementSetup<'_>) -> ElementResult {
    Ok(Box::new(StripVlanHeader { native: native_vlan(setup.arguments.next("NATIVE_VLAN"))? }))
}

impl ElementCodegen for StripVlanHeader {
    fn build(&self, code: &mut ElementBuilder<'_, '_>, _: u32, packet: PacketValues) {
        code.need(packet, packet.data, PLAIN, "too_short");
        let kind = code.half(packet.data, 12);
        code.check_int(Cond::Ne, kind, TAG as i64, |code| {
            code.need(packet, packet.data, TAGGED, "too_short");
            let (tag, data) = (code.half(packet.data, 14), code.at(packet.data, TAGGED));
            code.out(0, packet.bounded(data, packet.end).with(Annotation::Tag, tag));
        });
        let Some(native) = self.native else { return bad(code, packet, "untagged") };
        let (tag, data) = (code.int(native), code.at(packet.data, PLAIN));
        code.out(0, packet.bounded(data, packet.end).with(Annotation::Tag, tag));
    }
}

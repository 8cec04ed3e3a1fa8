//! VLAN tags. Source: IEEE 802.1Q.

use millstream_ir::Value;
use millstream_isa::{AluOp, Cond};

use millstream_click::arguments::{boolean, unsigned};
use millstream_click::build::ElementBuilder;
use millstream_click::class::{ElementClass, ElementCodegen, ElementResult};
use millstream_click::keyword::{at, key};
use millstream_click::packet::{Annotation, PacketValues};
use millstream_click::{
    ElementSetup, Error, HandlerAccess, SettingBits, SettingType, SettingValue, SpannedText,
};

pub(super) const CLASSES: &[ElementClass] = &[
    ElementClass::filter(
        "VLANEncap",
        "Puts a tag of a VLAN into frames.",
        &[at("VLAN_TCI"), at("VLAN_PCP"), key("VLAN_ID"), key("NATIVE_VLAN"), key("ETHERTYPE")],
        encap,
    )
    .passing(),
    ElementClass::filter(
        "VLANDecap",
        "Takes the tag of a VLAN away.",
        &[at("ANNO"), key("ETHERTYPE")],
        decap,
    )
    .passing(),
    ElementClass::filter(
        "SetVLANAnno",
        "Sets the annotation of a VLAN.",
        &[at("VLAN_TCI"), at("VLAN_PCP"), key("VLAN_ID")],
        set,
    )
    .passing(),
];

/// The usual type of tags.
pub(super) const TAG: u64 = 0x8100;

fn ethertype(setup: &mut ElementSetup<'_>) -> Result<u16, Error> {
    Ok(setup.arguments.keyword_or("ETHERTYPE", TAG, |text| unsigned(text, 0xffff))? as u16)
}

/// Source of a tag.
#[derive(Clone, Copy)]
pub(super) enum TagSource {
    /// The annotation.
    Annotation,
    Always(SettingValue),
}

impl TagSource {
    /// The tag for a packet.
    pub(super) fn value(self, code: &mut ElementBuilder<'_, '_>, packet: PacketValues) -> Value {
        match self {
            TagSource::Annotation => packet.note(Annotation::Tag),
            TagSource::Always(tag) => code.setting(tag),
        }
    }
}

/// Puts a tag behind the addresses.
struct VlanEncap {
    kind: u16,
    tag: TagSource,
    /// Packets of this VLAN have no tag.
    native: Option<i64>,
}

impl ElementCodegen for VlanEncap {
    fn build(&self, code: &mut ElementBuilder<'_, '_>, _: u32, mut packet: PacketValues) {
        let tag = self.tag.value(code, packet);
        if let Some(native) = self.native {
            let id = code.with(AluOp::And, tag, 0xfff);
            code.check_int(Cond::Ne, id, native, |code| code.out(0, packet));
        }
        code.need(packet, packet.data, 12, "too_short");
        let old = packet.data;
        packet.data = code.push(packet, old, 4);
        code.copy(packet.data, 0, old, 0, 12);
        code.write(packet.data, 12, &self.kind.to_be_bytes());
        code.set_half(packet.data, 14, tag);
        code.out(0, packet);
    }
}

/// A tag as arguments say it: as a whole, or by identifier and priority.
fn tag(setup: &mut ElementSetup<'_>, whole: Option<SpannedText>) -> Result<u16, Error> {
    let whole = whole.map(|text| unsigned(&text, 0xffff)).transpose()?;
    let priority = setup.arguments.or("VLAN_PCP", 0, |text| unsigned(text, 7))?;
    let id = setup.arguments.keyword_or("VLAN_ID", 0, |text| unsigned(text, 0xfff))?;
    Ok((whole.unwrap_or(id) | priority << 13) as u16)
}

/// A tag that the handlers of its parts read and, where somebody may, write.
fn settable(setup: &mut ElementSetup<'_>, tag: u16) -> SettingValue {
    let parts = [("vlan_id", 0, 12), ("vlan_pcp", 13, 3)];
    // Whoever writes a part needs the whole to be a setting, too.
    let names = ["vlan_tci", "vlan_id", "vlan_pcp"];
    if !setup.written(&names) {
        let whole = setup.constant("vlan_tci", SettingType::Number(0, 0xffff), i64::from(tag));
        for (name, first, count) in parts {
            let bits = SettingBits { of: 0, first, count };
            setup.constant(name, bits.takes(), bits.get(i64::from(tag)));
        }
        return whole;
    }
    let of = setup.hidden_setting(i64::from(tag));
    setup.handler("vlan_tci", HandlerAccess::Setting(of, SettingType::Number(0, 0xffff)));
    for (name, first, count) in parts {
        setup.handler(name, HandlerAccess::Bits(SettingBits { of, first, count }));
    }
    SettingValue::Live(of)
}

/// The source of the tag that the arguments VLAN_TCI, VLAN_PCP and VLAN_ID name.
pub(super) fn tag_source(setup: &mut ElementSetup<'_>) -> Result<TagSource, Error> {
    let whole = setup.arguments.next("VLAN_TCI");
    let annotated = whole.as_ref().is_some_and(|text| text.text == "ANNO");
    let always = tag(setup, whole.filter(|_| !annotated))?;
    Ok(if annotated { TagSource::Annotation } else { TagSource::Always(settable(setup, always)) })
}

/// The VLAN whose packets have no tag: 0 unless a text says otherwise; none for -1.
pub(super) fn native_vlan(text: Option<SpannedText>) -> Result<Option<i64>, Error> {
    match text {
        Some(text) if text.text == "-1" => Ok(None),
        Some(text) => Ok(Some(unsigned(&text, 0xfff)? as i64)),
        None => Ok(Some(0)),
    }
}

fn encap(setup: &mut ElementSetup<'_>) -> ElementResult {
    let tag = tag_source(setup)?;
    let native = native_vlan(setup.arguments.keyword("NATIVE_VLAN"))?;
    let kind = ethertype(setup)?;
    Ok(Box::new(VlanEncap { kind, tag, native }))
}

/// Sets the annotation.
struct SetVlanTag(SettingValue);

impl ElementCodegen for SetVlanTag {
    fn build(&self, code: &mut ElementBuilder<'_, '_>, _: u32, packet: PacketValues) {
        let tag = code.setting(self.0);
        code.out(0, packet.with(Annotation::Tag, tag));
    }
}

fn set(setup: &mut ElementSetup<'_>) -> ElementResult {
    let whole = setup.arguments.next("VLAN_TCI");
    let tag = tag(setup, whole)?;
    Ok(Box::new(SetVlanTag(settable(setup, tag))))
}

/// Removes a tag, if there is one.
struct VlanDecap {
    kind: u16,
    /// True if the tag that was removed becomes the annotation.
    annotates: bool,
}

impl ElementCodegen for VlanDecap {
    fn build(&self, code: &mut ElementBuilder<'_, '_>, _: u32, packet: PacketValues) {
        let none = code.int(0);
        let annotated = |packet: PacketValues, tag| {
            if self.annotates { packet.with(Annotation::Tag, tag) } else { packet }
        };
        let beyond = code.at(packet.data, 16);
        code.check(Cond::Le, beyond, packet.end, |code| code.out(0, annotated(packet, none)));
        let kind = code.half(packet.data, 12);
        code.check_int(Cond::Eq, kind, i64::from(self.kind), |code| code.out(0, annotated(packet, none)));
        let old = packet.data;
        let tag = code.half(old, 14);
        let four = code.int(4);
        let data = code.plus(old, four);
        code.copy(data, 0, old, 0, 12);
        code.out(0, annotated(packet.bounded(data, packet.end), tag));
    }
}

fn decap(setup: &mut ElementSetup<'_>) -> ElementResult {
    let annotates = setup.arguments.or("ANNO", true, boolean)?;
    Ok(Box::new(VlanDecap { kind: ethertype(setup)?, annotates }))
}

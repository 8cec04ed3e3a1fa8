//! `AggregateCounter`: packets or bytes of each aggregate.

use millstream_ir::{Size, Value};
use millstream_isa::{AluOp, Cond};

use millstream_click::arguments::boolean;
use millstream_click::build::{ElementBuilder, ElementHashTable};
use millstream_click::class::{ElementClass, ElementCodegen, ElementResult};
use millstream_click::keyword::{ArgumentSpec, IgnoredValueKind, key, moot, refused};
use millstream_click::packet::{Annotation, PacketValues};
use millstream_click::{ElementSetup, SettingType, SettingValue, TableFormat, TableOperation};

const LIMITED: &str = "counting does not end by itself: `freeze` and `clear` are handlers";

const ARGUMENTS: &[ArgumentSpec] = &[
    key("BYTES"),
    key("IP_BYTES"),
    moot("MULTIPACKET", IgnoredValueKind::Truth, "no packet stands for several"),
    key("EXTRA_LENGTH"),
    refused("BANNER", "counts are written without a text in front"),
    refused("AGGREGATE_STOP", LIMITED),
    refused("AGGREGATE_FREEZE", LIMITED),
    refused("AGGREGATE_CALL", LIMITED),
    refused("COUNT_STOP", LIMITED),
    refused("COUNT_FREEZE", LIMITED),
    refused("COUNT_CALL", LIMITED),
];

pub(super) const CLASSES: &[ElementClass] = &[ElementClass {
    ports: "1-2/1-2",
    ..ElementClass::filter(
        "AggregateCounter",
        "Counts packets or bytes of each aggregate.",
        ARGUMENTS,
        counter,
    )
}];

/// Aggregates that are counted at a time.
const MOST_AGGREGATES: u32 = 1 << 18;

struct AggregateCounter {
    counts: ElementHashTable,
    /// True if bytes are counted, from the IP header on, and with those that were cut off.
    bytes: bool,
    from_header: bool,
    cut: bool,
    /// True while no aggregate is added.
    frozen: SettingValue,
    active: SettingValue,
}

fn counter(setup: &mut ElementSetup<'_>) -> ElementResult {
    let mut flag = |name, usual| setup.arguments.keyword_or(name, usual, boolean);
    let (bytes, from_header, cut) =
        (flag("BYTES", false)?, flag("IP_BYTES", false)?, flag("EXTRA_LENGTH", true)?);
    let counts = setup.evicting_table("counts", &[Size::W], &[Size::Dw], 0, MOST_AGGREGATES);
    let map = setup.map_name(&counts);
    let verbs = [
        ("write_text_file", TableOperation::Save),
        ("nagg", TableOperation::Count),
        ("clear", TableOperation::Clear),
    ];
    setup.table_handlers(&map, TableFormat::Aggregates, &verbs);
    let frozen = setup.setting("freeze", SettingType::Truth, 0);
    let active = setup.setting("active", SettingType::Truth, 1);
    Ok(Box::new(AggregateCounter { counts, bytes, from_header, cut, frozen, active }))
}

impl AggregateCounter {
    /// The number that a packet counts for.
    fn amount(&self, code: &mut ElementBuilder<'_, '_>, packet: PacketValues) -> Value {
        if !self.bytes {
            return code.int(1);
        }
        let whole = code.length(packet);
        let mut length = whole;
        if self.from_header {
            let behind = code.sub(packet.end, packet.note(Annotation::Network));
            let zero = code.int(0);
            let has = code.compare(Cond::Ne, packet.note(Annotation::HasNetwork), zero);
            length = code.select(has, behind, whole);
        }
        if self.cut { code.add(length, packet.note(Annotation::Cut)) } else { length }
    }
}

impl ElementCodegen for AggregateCounter {
    fn build(&self, code: &mut ElementBuilder<'_, '_>, port: u32, packet: PacketValues) {
        let other = |code: &mut ElementBuilder<'_, '_>| {
            let output = if code.connected(1) { 1 } else { 0 };
            code.out(output, packet);
        };
        let active = code.setting(self.active);
        code.check_int(Cond::Ne, active, 0, other);
        let key = code.with(AluOp::And, packet.note(Annotation::Aggregate), 0xffff_ffff);
        let amount = self.amount(code, packet);
        let (entry, known, new) = (code.find(&self.counts, &[key]), code.block(), code.block());
        let zero = code.int(0);
        code.branch(Cond::Ne, entry, zero, known, new);
        code.switch_to_block(known);
        let before = code.wide(entry, 0);
        let after = code.add(before, amount);
        code.set_wide(entry, 0, after);
        code.out(0, packet);
        code.switch_to_block(new);
        // Packets of input 1 add no aggregate.
        if port == 1 {
            return other(code);
        }
        let frozen = code.setting(self.frozen);
        code.check_int(Cond::Eq, frozen, 0, other);
        code.update_entry(&self.counts, &[key], &[amount]);
        code.out(0, packet);
    }
}

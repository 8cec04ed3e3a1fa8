//! Summaries of packets as lines of text: `FromIPSummaryDump` and `ToIPSummaryDump`.
//!
//! A source's packets have their paint and aggregate in front, which become annotations here.

use millstream_isa::AluOp;

use super::generators::{SourcePacing, generator};
use super::print::{PrintOptions, printing_element};
use super::timestamps::sorting_window;
use millstream_click::arguments::{boolean, byte, string};
use millstream_click::build::ElementBuilder;
use millstream_click::class::{ElementClass, ElementCodegen, ElementResult};
use millstream_click::keyword::{ArgumentSpec, IgnoredValueKind, at, key, moot, refused, refused_but};
use millstream_click::packet::{Annotation, PacketValues};
use millstream_click::{
    ElementSetup, Error, GraphSource, HandlerAccess, PrintForm, SUMMARY_PREFIX, SpannedText, SummaryField,
    SummaryFlow, SummaryInput, SummarySource, summary_header, words,
};

const FROM: &[ArgumentSpec] = &[
    at("FILENAME"),
    key("STOP"),
    key("END_CALL"),
    key("ACTIVE"),
    key("TIMING"),
    moot("ZERO", IgnoredValueKind::Truth, "bytes that are not said are zero, which random ones may be"),
    key("CHECKSUM"),
    key("PROTO"),
    key("MULTIPACKET"),
    refused_but("SAMPLE", &["1", "1.0"], "all packets are taken: `RandomSample` drops some"),
    key("FIELDS"),
    refused("CONTENTS", "FIELDS is its name today"),
    key("FLOWID"),
    refused_but("ALLOW_NONEXISTENT", &["false"], "a file that does not exist is an error"),
    key("DATA"),
];

const TO: &[ArgumentSpec] = &[
    at("FILENAME"),
    key("FIELDS"),
    key("CONTENTS"),
    key("HEADER"),
    refused_but("VERBOSE", &["false"], "host and time of a run are not written: outputs can be compared"),
    key("BANNER"),
    refused_but("BINARY", &["false"], "lines are written as text"),
    moot("MULTIPACKET", IgnoredValueKind::Truth, "no packet stands for several"),
    key("BAD_PACKETS"),
    key("CAREFUL_TRUNC"),
    moot("EXTRA_LENGTH", IgnoredValueKind::Truth, "no packet has an extra length"),
];

pub(super) const CLASSES: &[ElementClass] = &[
    ElementClass {
        ports: "0/1",
        processing: "a/a",
        ..ElementClass::filter("FromIPSummaryDump", "Makes packets of lines that describe them.", FROM, from)
    },
    ElementClass {
        ports: "1/0-1",
        processing: "a/h",
        ..ElementClass::filter("ToIPSummaryDump", "Writes a line about each packet.", TO, to)
    },
];

/// Fields by their names, as an argument has them; names with blanks are in quotes.
fn fields(text: &SpannedText) -> Result<Vec<SummaryField>, Error> {
    let all = match words(text).as_slice() {
        // A quoted list is one word.
        [one] if one.text.starts_with('"') => words(&SpannedText { text: string(one), span: text.span }),
        all => all.to_vec(),
    };
    let field = |word: &SpannedText| {
        let name = string(word);
        SummaryField::of_name(&name).ok_or_else(|| {
            let message = format!("the field `{name}` of packets is not supported");
            Error::new(text.span, message).nearest(&name, SummaryField::names())
        })
    };
    all.iter().map(field).collect()
}

/// TCP, as in Click.
const USUAL_PROTOCOL: u8 = 6;

fn from(setup: &mut ElementSetup<'_>) -> ElementResult {
    let data = setup.arguments.keyword("DATA").map(|text| string(&text));
    let input = match data {
        Some(text) => SummaryInput::Text(text),
        None => SummaryInput::File(string(&setup.arguments.need("FILENAME")?)),
    };
    let protocol = setup.arguments.keyword_or("PROTO", USUAL_PROTOCOL.into(), byte)? as u8;
    let flow = SummaryFlow { protocol, ..SummaryFlow::default() };
    let flow = setup.arguments.keyword_or("FLOWID", flow, |text| {
        let wrong = || Error::new(text.span, "expected SRC SPORT DST DPORT [PROTO]");
        flow.parse(&string(text)).ok_or_else(wrong)
    })?;
    let multiple = setup.arguments.keyword_or("MULTIPACKET", false, boolean)?;
    let fields = setup.arguments.keyword_or("FIELDS", Vec::new(), fields)?;
    // A line takes as long for bytes that are left out as for others.
    let is_sent = setup.elements().iter().any(|element| element.class == "LinkUnqueue");
    let whole = setup.arguments.keyword_or("CHECKSUM", false, boolean)? || is_sent;
    let active = setup.arguments.keyword_or("ACTIVE", true, boolean)?;
    let timing = setup.arguments.keyword_or("TIMING", false, boolean)?;
    if timing {
        if !setup.is_timed() {
            let message = "TIMING is for runs with a clock: not for stages, and not for other programs";
            return Err(Error::new(setup.element.span, message));
        }
        setup.require_clock();
        setup.require_single_worker("its packets come one after the other at their times");
    }
    setup.handler("encap", HandlerAccess::Text("IP".to_owned()));
    let window = sorting_window(setup)?;
    let source = GraphSource::Summary(SummarySource { input, fields, flow, timing, multiple, whole, window });
    generator(setup, 0, source, (active, SourcePacing::default()), SummaryPrefix)
}

/// Takes the annotations that are in front of packets.
struct SummaryPrefix;

impl ElementCodegen for SummaryPrefix {
    fn build(&self, code: &mut ElementBuilder<'_, '_>, _: u32, packet: PacketValues) {
        let prefix = SUMMARY_PREFIX as i64;
        code.need(packet, packet.data, prefix + 20, "too_short");
        let [paint, aggregate, cut, high, low] = [0, 4, 8, 12, 16].map(|at| code.word(packet.data, at));
        let high = code.with(AluOp::Lsh, high, 32);
        let time = code.alu(AluOp::Or, high, low);
        let (data, yes) = (code.at(packet.data, prefix), code.truth(true));
        let destination = code.word(data, 16);
        let packet = packet
            .bounded(data, packet.end)
            .with(Annotation::Network, data)
            .with(Annotation::HasNetwork, yes)
            .with(Annotation::Destination, destination)
            .with(Annotation::Paint, paint)
            .with(Annotation::Aggregate, aggregate)
            .with(Annotation::Cut, cut)
            .with(Annotation::Time, time);
        code.out(0, packet);
    }
}

fn to(setup: &mut ElementSetup<'_>) -> ElementResult {
    let name = string(&setup.arguments.need("FILENAME")?);
    let said = setup.arguments.keyword("FIELDS");
    let said = said.or_else(|| setup.arguments.keyword("CONTENTS"));
    let usual = vec![SummaryField::Source, SummaryField::Destination];
    let fields = said.map_or(Ok(usual), |text| fields(&text))?;
    let header = setup.arguments.keyword_or("HEADER", true, boolean)?;
    let banner = setup.arguments.keyword("BANNER").map(|text| string(&text));
    let careful = setup.arguments.keyword_or("CAREFUL_TRUNC", true, boolean)?;
    let header = if header { summary_header(&fields, banner.as_deref()) } else { String::new() };
    let bad = setup.arguments.keyword_or("BAD_PACKETS", false, boolean)?;
    let form = PrintForm::Summary { fields, careful, bad };
    printing_element(setup, PrintOptions { form, file: Some(name), header, ..PrintOptions::default() })
}

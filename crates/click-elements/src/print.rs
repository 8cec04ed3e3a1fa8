//! Elements that print packets and pass them on ([`PrintForm`]).

use millstream_ir::{Map, MapDecl, Value};
use millstream_isa::Cond;

use millstream_click::arguments::{boolean, string, unsigned};
use millstream_click::build::ElementBuilder;
use millstream_click::class::{ElementClass, ElementCodegen, ElementResult};
use millstream_click::keyword::{ArgumentSpec, at, key};
use millstream_click::packet::{Annotation, PacketValues};
use millstream_click::{
    ElementSetup, Error, IpForm, NO_NETWORK, PRINTS, PacketPrinter, PayloadFormat, PrintForm, SettingType,
    SettingValue, SpannedText, WORDS, unquote,
};

/// `BPF_MAP_TYPE_PERF_EVENT_ARRAY`.
const EVENTS: u32 = 4;

/// Bytes of packets that are printed unless it is said how many.
const PRINTED: i64 = 24;
const IP_PRINTED: i64 = 1500;

const PRINT: &[ArgumentSpec] = &[
    at("LABEL"),
    at("MAXLENGTH"),
    key("LENGTH"),
    key("NBYTES"),
    key("CONTENTS"),
    key("TIMESTAMP"),
    key("PRINTANNO"),
    key("ACTIVE"),
    key("HEADROOM"),
    key("CPU"),
];
const IP_PRINT: &[ArgumentSpec] = &[
    at("LABEL"),
    key("CONTENTS"),
    key("PAYLOAD"),
    key("MAXLENGTH"),
    key("NBYTES"),
    key("ETHER"),
    key("ID"),
    key("TIMESTAMP"),
    key("PAINT"),
    key("TOS"),
    key("TTL"),
    key("SWAP"),
    key("LENGTH"),
    key("AGGREGATE"),
    key("VLAN"),
    key("ACTIVE"),
    key("OUTFILE"),
    key("CHANNEL"),
];
const IP6_PRINT: &[ArgumentSpec] = &[at("LABEL"), key("NBYTES"), key("CONTENTS"), key("ACTIVE")];
const ARP_PRINT: &[ArgumentSpec] =
    &[at("LABEL"), key("TIMESTAMP"), key("ETHER"), key("ACTIVE"), key("OUTFILE")];

const fn printing(
    name: &'static str,
    about: &'static str,
    arguments: &'static [ArgumentSpec],
    make: fn(&mut ElementSetup<'_>) -> ElementResult,
) -> ElementClass {
    ElementClass::filter(name, about, arguments, make).passing()
}

pub(super) const CLASSES: &[ElementClass] = &[
    printing("Print", "Prints bytes of packets.", PRINT, print),
    printing("IPPrint", "Prints what IP packets say.", IP_PRINT, ip_print),
    printing("IP6Print", "Prints what packets of IPv6 say.", IP6_PRINT, ip6_print),
    printing("ARPPrint", "Prints what packets of ARP say.", ARP_PRINT, arp_print),
];

/// Writes a record of each packet while it is active.
struct PrintPacket {
    printer: i64,
    map: Map,
    /// Offset in the state at which the numbers of a record are put together.
    scratch: u32,
    active: SettingValue,
    /// Bytes that a record has at most; all of them, and those in front back to the network header, if none
    /// is said.
    most: Option<i64>,
    cpu: bool,
    /// True if packets may end here.
    ends: bool,
}

impl ElementCodegen for PrintPacket {
    fn build(&self, code: &mut ElementBuilder<'_, '_>, _: u32, packet: PacketValues) {
        match self.active {
            SettingValue::Fixed(0) => {}
            SettingValue::Fixed(_) => self.write(code, packet),
            live => {
                let (active, zero) = (code.setting(live), code.int(0));
                code.when(Cond::Ne, active, zero, &[], |code| {
                    self.write(code, packet);
                    Vec::new()
                });
            }
        }
        if self.ends && !code.connected(0) {
            return code.drop(packet, "written");
        }
        code.out(0, packet);
    }
}

impl PrintPacket {
    fn write(&self, code: &mut ElementBuilder<'_, '_>, packet: PacketValues) {
        let zero = code.int(0);
        let length = code.length(packet);
        let own = code.sub(packet.note(Annotation::Network), packet.data);
        let none = code.number_of(NO_NETWORK);
        let network = code.select(packet.note(Annotation::HasNetwork), own, none);
        let (in_front, from, bytes) = match self.most {
            Some(most) => {
                let most = code.int(most);
                let is_long = code.compare(Cond::Gt, length, most);
                (zero, packet.data, code.select(is_long, most, length))
            }
            None => {
                let back = code.sub(zero, own);
                let stripped = code.compare(Cond::Sgt, back, zero);
                let back = code.select(stripped, back, zero);
                let back = code.select(packet.note(Annotation::HasNetwork), back, zero);
                let negative = code.sub(zero, back);
                let from = code.plus(packet.data, negative);
                (back, from, code.add(length, back))
            }
        };
        let cpu = if self.cpu { code.worker() } else { zero };
        let printer = code.number_of(self.printer);
        let notes =
            [Annotation::Paint, Annotation::Tag, Annotation::Aggregate, Annotation::Cut, Annotation::Time];
        let [paint, tag, aggregate, cut, time] = notes.map(|note| packet.note(note));
        let words: [Value; WORDS] =
            [printer, cpu, network, length, in_front, paint, tag, aggregate, cut, time];
        code.record(self.map, (self.scratch, &words), packet, (from, bytes));
    }
}

/// The array that records of all elements go to.
fn events(setup: &mut ElementSetup<'_>) -> Map {
    setup.shared_map(MapDecl {
        name: PRINTS.to_owned(),
        kind: EVENTS,
        key_size: 4,
        value_size: 4,
        max_entries: 1,
        flags: 0,
        global: None,
        inner: None,
    })
}

/// The element with the arguments common to all of them; it needs `most` bytes of packets.
fn made(
    setup: &mut ElementSetup<'_>,
    label: Option<SpannedText>,
    form: PrintForm,
    most: Option<i64>,
) -> ElementResult {
    let file = setup.arguments.keyword("OUTFILE").map(|text| string(&text));
    let label = label.map_or_else(Vec::new, |text| unquote(&text.text));
    printing_element(setup, PrintOptions { label, form, most, file, header: String::new() })
}

/// Properties of an element that prints.
pub(super) struct PrintOptions {
    pub(super) label: Vec<u8>,
    pub(super) form: PrintForm,
    /// Bytes of packets that it needs, if not all from the network header on.
    pub(super) most: Option<i64>,
    pub(super) file: Option<String>,
    pub(super) header: String,
}

impl Default for PrintOptions {
    fn default() -> Self {
        PrintOptions {
            label: Vec::new(),
            form: PrintForm::Ip6(None),
            most: None,
            file: None,
            header: String::new(),
        }
    }
}

/// An element that prints, and may have an argument ACTIVE.
pub(super) fn printing_element(setup: &mut ElementSetup<'_>, options: PrintOptions) -> ElementResult {
    let active = setup.arguments.keyword_or("ACTIVE", true, boolean)?;
    let active = setup.setting("active", SettingType::Truth, i64::from(active));
    let PrintOptions { label, form, most, file, header } = options;
    let map = events(setup);
    let scratch = setup.number();
    for _ in 1..WORDS {
        setup.number();
    }
    let cpu = matches!(form, PrintForm::Packet { cpu: true, .. });
    let ends = matches!(form, PrintForm::Summary { .. });
    let printer = setup.printer(PacketPrinter { label, form, file, header }) as i64;
    Ok(Box::new(PrintPacket { printer, map, scratch, active, most, cpu, ends }))
}

/// Refuses an argument about a property of packets that is not known here, unless it is false.
fn refuse(setup: &mut ElementSetup<'_>, name: &str, why: &str) -> Result<(), Error> {
    match setup.arguments.keyword(name) {
        Some(text) if boolean(&text)? => {
            let message = format!("{name} of `{}` is not supported: {why}", setup.element.class);
            Err(Error::new(text.span, message))
        }
        _ => Ok(()),
    }
}

/// A number of bytes; without a limit if negative.
fn bytes(text: &SpannedText) -> Result<i64, Error> {
    match text.text.strip_prefix('-') {
        Some(digits) => {
            let positive = SpannedText { text: digits.to_owned(), span: text.span };
            unsigned(&positive, i32::MAX as u64).map(|number| if number == 0 { 0 } else { -1 })
        }
        None => unsigned(text, i32::MAX as u64).map(|number| number as i64),
    }
}

fn contents(text: &SpannedText) -> Result<PayloadFormat, Error> {
    if let Ok(shown) = boolean(text) {
        return Ok(if shown { PayloadFormat::Hex } else { PayloadFormat::None });
    }
    match string(text).to_ascii_uppercase().as_str() {
        "NONE" => Ok(PayloadFormat::None),
        "HEX" => Ok(PayloadFormat::Hex),
        "ASCII" => Ok(PayloadFormat::Ascii),
        _ => Err(Error::new(text.span, format!("`{}` is none of NONE, HEX and ASCII", text.text))),
    }
}

fn flag(setup: &mut ElementSetup<'_>, name: &str, usual: bool) -> Result<bool, Error> {
    setup.arguments.keyword_or(name, usual, boolean)
}

/// A number of bytes by either of its names.
fn most(setup: &mut ElementSetup<'_>, names: &[&str], usual: i64) -> Result<i64, Error> {
    let mut most = usual;
    for name in names {
        most = setup.arguments.keyword_or(name, most, bytes)?;
    }
    Ok(most)
}

fn print(setup: &mut ElementSetup<'_>) -> ElementResult {
    let label = setup.arguments.next("LABEL");
    let by_position = setup.arguments.or("MAXLENGTH", PRINTED, bytes)?;
    let most = most(setup, &["LENGTH", "NBYTES"], by_position)?;
    let shown = setup.arguments.keyword_or("CONTENTS", PayloadFormat::Hex, contents)?;
    let timestamp = flag(setup, "TIMESTAMP", false)?;
    let cpu = flag(setup, "CPU", false)?;
    refuse(setup, "PRINTANNO", "annotations are no bytes here")?;
    refuse(setup, "HEADROOM", "packets lie in buffers of another kind here")?;
    let form = PrintForm::Packet { contents: shown, most, timestamp, cpu };
    let needed = match shown {
        PayloadFormat::None => 0,
        _ if most < 0 => i64::from(i32::MAX),
        _ => most,
    };
    made(setup, label, form, Some(needed))
}

fn ip_print(setup: &mut ElementSetup<'_>) -> ElementResult {
    let label = setup.arguments.next("LABEL");
    let shown = setup.arguments.keyword_or("CONTENTS", PayloadFormat::None, contents)?;
    let span = setup.arguments.span();
    let payload = match setup.arguments.keyword("PAYLOAD") {
        None => PayloadFormat::None,
        Some(text) => match string(&text).to_ascii_uppercase().as_str() {
            "NO" | "FALSE" => PayloadFormat::None,
            "YES" | "TRUE" | "HEX" => PayloadFormat::Hex,
            "ASCII" => PayloadFormat::Ascii,
            _ => {
                return Err(Error::new(
                    text.span,
                    format!("`{}` is none of false, hex and ascii", text.text),
                ));
            }
        },
    };
    if shown != PayloadFormat::None && payload != PayloadFormat::None {
        return Err(Error::new(span, "CONTENTS and PAYLOAD exclude each other"));
    }
    refuse(setup, "ETHER", "where a packet's Ethernet header is, is not noted here")?;
    if let Some(text) = setup.arguments.keyword("CHANNEL")
        && string(&text) != "default"
    {
        return Err(Error::new(
            text.span,
            "CHANNEL of `IPPrint` is not supported: there is none but `default`",
        ));
    }
    let form = IpForm {
        contents: if shown == PayloadFormat::None { payload } else { shown },
        payload: payload != PayloadFormat::None,
        most: most(setup, &["MAXLENGTH", "NBYTES"], IP_PRINTED)?,
        timestamp: flag(setup, "TIMESTAMP", true)?,
        id: flag(setup, "ID", false)?,
        ttl: flag(setup, "TTL", false)?,
        tos: flag(setup, "TOS", false)?,
        length: flag(setup, "LENGTH", false)?,
        paint: flag(setup, "PAINT", false)?,
        aggregate: flag(setup, "AGGREGATE", false)?,
        vlan: flag(setup, "VLAN", false)?,
        swap: flag(setup, "SWAP", true)?,
    };
    made(setup, label, PrintForm::Ip(form), None)
}

fn ip6_print(setup: &mut ElementSetup<'_>) -> ElementResult {
    let label = setup.arguments.next("LABEL");
    let most =
        setup.arguments.keyword_or("NBYTES", IP_PRINTED as u64, |text| unsigned(text, i32::MAX as u64))?;
    let shown = flag(setup, "CONTENTS", false)?;
    made(setup, label, PrintForm::Ip6(shown.then_some(most as usize)), None)
}

fn arp_print(setup: &mut ElementSetup<'_>) -> ElementResult {
    let label = setup.arguments.next("LABEL");
    let timestamp = flag(setup, "TIMESTAMP", true)?;
    let ether = flag(setup, "ETHER", false)?;
    made(setup, label, PrintForm::Arp { timestamp, ether }, None)
}

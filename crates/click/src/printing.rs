//! Records of `Print` and its like: the data that code puts into a record for a packet, and the lines that it
//! becomes.
//!
//! Code puts a record into an event array for each packet that is to be printed: [`WORDS`] numbers, then
//! bytes of the packet. Whoever runs it makes lines of records (`PacketPrinter::text`): code need not know
//! the form of lines. The form is Click's, byte for byte.

use serde::{Deserialize, Serialize};

use crate::summary::{PacketNotes, SummaryField, bad_header, seconds_text, summary_line};

/// The event array with the records of all elements.
pub const PRINTS: &str = "click.prints";

/// Numbers in front of the bytes, 64 bits each, in the machine's order: see `PrintRecord`.
pub const WORDS: usize = 10;
/// Value for the network header if there is none.
pub const NO_NETWORK: i64 = i64::MIN;

/// Bytes of an IPv4 header without options, of one of IPv6, and of an ARP message about addresses of IPv4.
const IP: usize = 20;
const IP6: usize = 40;
const ARP: usize = 8;
const ETHER: usize = 14;
const ETHER_ARP: usize = 28;

/// Form in which the bytes of packets are printed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub enum PayloadFormat {
    /// Not at all.
    #[default]
    None,
    /// In hexadecimal.
    Hex,
    /// As text, with dots for other bytes.
    Ascii,
}

/// Fields that `IPPrint` prints beside addresses and ports.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct IpForm {
    /// The bytes.
    pub contents: PayloadFormat,
    /// These from behind the transport header on.
    pub payload: bool,
    /// Number of bytes; without a limit if negative.
    pub most: i64,
    /// When the packet came.
    pub timestamp: bool,
    /// Identification.
    pub id: bool,
    /// Time to live.
    pub ttl: bool,
    /// Type of service.
    pub tos: bool,
    /// Length.
    pub length: bool,
    /// The paint.
    pub paint: bool,
    /// The aggregate.
    pub aggregate: bool,
    /// The tag of a VLAN.
    pub vlan: bool,
    /// Identifiers of echoes in the order of bytes that they are sent in.
    pub swap: bool,
}

/// Parts of a packet that an element prints.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum PrintForm {
    /// `Print`: length and bytes.
    Packet {
        /// The bytes.
        contents: PayloadFormat,
        /// Number of bytes; without a limit if negative.
        most: i64,
        /// When the packet came.
        timestamp: bool,
        /// The worker that has it.
        cpu: bool,
    },
    /// `IPPrint`.
    Ip(IpForm),
    /// `IP6Print`: the header and, if any, so many bytes.
    Ip6(Option<usize>),
    /// `ARPPrint`.
    Arp {
        /// When the packet came.
        timestamp: bool,
        /// The Ethernet addresses in front of the message.
        ether: bool,
    },
    /// `ToIPSummaryDump`.
    Summary {
        /// The fields of each line.
        fields: Vec<SummaryField>,
        /// True if packets that are cut off have a line in front that says so.
        careful: bool,
        /// True if packets whose headers are wrong have a line in front that says what is.
        bad: bool,
    },
}

/// An element that prints.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct PacketPrinter {
    /// Text in front, if any.
    pub label: Vec<u8>,
    /// Parts of the packet that it prints.
    pub form: PrintForm,
    /// The file that it prints to, or `-` for standard output; else standard error.
    pub file: Option<String>,
    /// Text at the beginning of the file.
    pub header: String,
}

/// A packet as code has written it down.
struct PrintRecord<'r> {
    cpu: u64,
    /// Offset of the network header in `bytes`.
    network: Option<usize>,
    /// Length of the packet.
    length: usize,
    paint: u64,
    tag: u64,
    aggregate: u32,
    /// Bytes that were cut off before.
    cut: usize,
    /// Its time in nanoseconds, if it is not that of the record.
    time: Option<i64>,
    /// Offset of the packet in `bytes`.
    data: usize,
    /// Bytes of the packet and, if its network header is in front of it, from that on.
    bytes: &'r [u8],
}

/// The number of the printer that a record is for, and the record.
fn parsed(record: &[u8]) -> Option<(usize, PrintRecord<'_>)> {
    let (words, bytes) = record.split_at_checked(8 * WORDS)?;
    let word = |at: usize| words[8 * at..].first_chunk().map_or(0, |word| i64::from_ne_bytes(*word));
    let [number, cpu, distance, length, data, paint, tag, aggregate] = [0, 1, 2, 3, 4, 5, 6, 7].map(word);
    let (cut, stamp) = (usize::try_from(word(8)).ok()?, word(9));
    let time = (stamp != 0).then(|| stamp.wrapping_sub(1));
    let data = usize::try_from(data).ok()?;
    let network = if distance == NO_NETWORK { None } else { data.checked_add_signed(distance as isize) };
    let length = usize::try_from(length).ok()?;
    let (cpu, paint, tag, aggregate) = (cpu as u64, paint as u64, tag as u64, aggregate as u32);
    let record = PrintRecord { cpu, network, length, paint, tag, aggregate, cut, time, data, bytes };
    Some((usize::try_from(number).ok()?, record))
}

/// The text that the printer of a record prints at a time in nanoseconds, and which printer that is.
pub fn printed<'p>(
    printers: &'p [PacketPrinter],
    record: &[u8],
    time: u64,
) -> Option<(&'p PacketPrinter, Vec<u8>)> {
    let (number, record) = parsed(record)?;
    let printer = printers.get(number)?;
    let time = record.time.unwrap_or(i64::try_from(time).unwrap_or(i64::MAX));
    Some((printer, printer.text(&record, time)?))
}

impl PacketPrinter {
    fn text(&self, record: &PrintRecord<'_>, time: i64) -> Option<Vec<u8>> {
        let labelled = |separator: &str| {
            let mut text = self.label.clone();
            if !text.is_empty() {
                text.extend_from_slice(separator.as_bytes());
            }
            text
        };
        match &self.form {
            &PrintForm::Packet { contents, most, timestamp, cpu } => {
                let mut text = labelled("");
                let mut separator = if text.is_empty() { "" } else { ": " };
                if cpu {
                    text.extend(format!("({})", record.cpu).bytes());
                    separator = ": ";
                }
                if timestamp {
                    text.extend(format!("{separator}{}", seconds_text(time)).bytes());
                    separator = ": ";
                }
                text.extend(format!("{separator}{:4}", record.length).bytes());
                let shown = first(record.packet(), most);
                if contents != PayloadFormat::None && !shown.is_empty() {
                    text.extend(b" | ");
                    text.extend(plain(contents, shown));
                }
                Some(text)
            }
            PrintForm::Ip(form) => {
                let network = record.network?;
                let mut text = labelled(": ");
                text.extend(ip(form, record, network, time));
                Some(text)
            }
            PrintForm::Ip6(shown) => {
                let header = record.bytes.get(record.network?..)?.get(..IP6)?;
                let mut text = labelled(": ");
                let (from, to) = (ip6_address(&header[8..24]), ip6_address(&header[24..40]));
                let (length, next, hops) = (half(header, 4), header[6], header[7]);
                text.extend(format!("{from} -> {to} plen {length}, next {next}, hlim {hops}\n").bytes());
                if let Some(most) = *shown {
                    text.extend(b"  ");
                    let packet = record.packet();
                    for (at, byte) in packet[..packet.len().min(most)].iter().enumerate() {
                        let behind = if at % 24 == 23 {
                            "\n  "
                        } else if at % 4 == 3 {
                            " "
                        } else {
                            ""
                        };
                        text.extend(format!("{byte:02x}{behind}").bytes());
                    }
                }
                Some(text)
            }
            &PrintForm::Arp { timestamp, ether: shown } => {
                let network = record.network?;
                let mut text = labelled(": ");
                if timestamp {
                    text.extend(format!("{}: ", seconds_text(time)).bytes());
                }
                let header = network.checked_sub(ETHER).and_then(|start| record.bytes.get(start..));
                if let Some(header) = header.filter(|header| shown && header.len() >= ETHER) {
                    text.extend(format!("{} > {}: ", ether(&header[6..12]), ether(&header[..6])).bytes());
                }
                text.extend(arp(record.bytes.get(network..).unwrap_or_default())?.bytes());
                Some(text)
            }
            PrintForm::Summary { fields, careful, bad } => {
                Some(record.summary(fields, (*careful, *bad), time))
            }
        }
    }
}

impl<'r> PrintRecord<'r> {
    /// A line of a summary, or two.
    fn summary(&self, fields: &[SummaryField], (careful, bad): (bool, bool), time: i64) -> Vec<u8> {
        let packet = self.network.and_then(|network| self.bytes.get(network..));
        let is_cut = packet.is_some_and(|packet| {
            packet.first().is_some_and(|first| first >> 4 == 4)
                && packet.len() + self.cut < usize::from(half(packet, 2))
        });
        let mut text = if careful && is_cut { b"!bad truncated IP length\n".to_vec() } else { Vec::new() };
        if bad && let Some(what) = bad_header(packet) {
            text.extend(format!("!bad {what}\n").bytes());
        }
        let about = PacketNotes { time, paint: self.paint as u8, aggregate: self.aggregate };
        text.extend(summary_line(fields, packet, &about));
        text
    }

    fn packet(&self) -> &'r [u8] {
        self.bytes.get(self.data..).unwrap_or_default()
    }
}

/// At most so many bytes, all of them if that is negative.
fn first(bytes: &[u8], most: i64) -> &[u8] {
    &bytes[..usize::try_from(most).map_or(bytes.len(), |most| most.min(bytes.len()))]
}

/// Bytes in groups, on one line.
fn plain(contents: PayloadFormat, bytes: &[u8]) -> Vec<u8> {
    let mut text = Vec::with_capacity(3 * bytes.len());
    for (at, byte) in bytes.iter().enumerate() {
        match contents {
            PayloadFormat::Ascii => {
                text.extend((at % 8 == 0).then_some(b' '));
                text.push(readable(*byte));
            }
            _ => {
                text.extend((at > 0 && at % 4 == 0).then_some(b' '));
                text.extend(format!("{byte:02x}").bytes());
            }
        }
    }
    text
}

/// Bytes in groups, on lines of their own.
fn lines(contents: PayloadFormat, bytes: &[u8]) -> Vec<u8> {
    let mut text = Vec::with_capacity(4 * bytes.len());
    let (line, group) = if contents == PayloadFormat::Ascii { (48, 8) } else { (24, 4) };
    for (at, byte) in bytes.iter().enumerate() {
        match at {
            at if at % line == 0 => text.extend(b"\n  "),
            at if at % group == 0 => text.push(b' '),
            _ => {}
        }
        match contents {
            PayloadFormat::Ascii => text.push(readable(*byte)),
            _ => text.extend(format!("{byte:02x}").bytes()),
        }
    }
    text
}

fn readable(byte: u8) -> u8 {
    if (32..=126).contains(&byte) { byte } else { b'.' }
}

/// 16 and 32 bits of a header; zero where it is too short.
fn half(bytes: &[u8], at: usize) -> u16 {
    bytes.get(at..).and_then(|rest| rest.first_chunk()).map_or(0, |bytes| u16::from_be_bytes(*bytes))
}

fn word(bytes: &[u8], at: usize) -> u32 {
    bytes.get(at..).and_then(|rest| rest.first_chunk()).map_or(0, |bytes| u32::from_be_bytes(*bytes))
}

fn address(bytes: &[u8], at: usize) -> String {
    std::net::Ipv4Addr::from(word(bytes, at)).to_string()
}

fn ether(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02X}")).collect::<Vec<_>>().join("-")
}

/// As RFC 5952 has it, but for addresses that are those of IPv4 in part.
fn ip6_address(bytes: &[u8]) -> String {
    let all: Vec<u16> = bytes.chunks_exact(2).map(|pair| half(pair, 0)).collect();
    let zero = |range: std::ops::Range<usize>| all[range].iter().all(|part| *part == 0);
    match (zero(0..4), zero(4..6), zero(6..8)) {
        (true, true, true) => return "::".to_owned(),
        (true, true, false) => return format!("::{}", address(bytes, 12)),
        (true, false, _) if all[4] == 0 && all[5] == 0xffff => {
            return format!("::ffff:{}", address(bytes, 12));
        }
        _ => {}
    }
    // The longest run of zeros, the first of several.
    let (mut place, mut length, mut begin) = (0, 0, 0);
    for (at, part) in all.iter().enumerate() {
        if *part != 0 {
            begin = at + 1;
        } else if at + 1 - begin > length {
            (place, length) = (begin, at + 1 - begin);
        }
    }
    let (mut text, mut at) = (String::new(), 0);
    while at < 8 {
        if at == place && length > 1 {
            at += length;
            text.push_str(if at == 8 { "::" } else { ":" });
            continue;
        }
        text.push_str(&if at == 0 { format!("{:x}", all[at]) } else { format!(":{:x}", all[at]) });
        at += 1;
    }
    text
}

/// An IPv4 header in a record, and the bytes behind it.
struct IpPacket<'p> {
    header: &'p [u8],
    /// From the transport header on.
    rest: &'p [u8],
    /// As the header says.
    length: i64,
    header_bytes: i64,
    /// Number of bytes of the packet from the transport header on, according to the header: negative if that
    /// gives a length shorter than itself.
    transport: i64,
    /// Length of the packet, with the bytes in front of the header.
    whole: usize,
}

impl IpPacket<'_> {
    fn is_first(&self) -> bool {
        half(self.header, 6) & 0x1fff == 0
    }

    fn pair(&self) -> String {
        format!("{} > {}", address(self.header, 12), address(self.header, 16))
    }

    /// Both ends with the ports that the transport header begins with.
    fn ends(&self) -> String {
        let [from, to] = [0, 2].map(|at| half(self.rest, at));
        format!("{}.{from} > {}.{to}: ", address(self.header, 12), address(self.header, 16))
    }
}

fn ip(form: &IpForm, record: &PrintRecord<'_>, network: usize, time: i64) -> Vec<u8> {
    let mut text = String::new();
    if form.timestamp {
        text += &format!("{}: ", seconds_text(time));
    }
    if form.aggregate {
        text += &format!("#{}", record.aggregate);
    }
    if form.vlan {
        text += &format!(" VLAN:{}", (record.tag as u16).swap_bytes());
    }
    if form.paint {
        text += &format!("{}{}", if form.aggregate { "." } else { "paint " }, record.paint as u8);
    }
    if form.aggregate || form.paint {
        text += ": ";
    }
    let Some(header) = record.bytes.get(network..).filter(|rest| rest.len() >= IP) else {
        return (text + "truncated-ip").into_bytes();
    };
    let header_bytes = usize::from(header[0] & 15) * 4;
    let rest = header.get(header_bytes..).unwrap_or_default();
    let (length, header_bytes) = (i64::from(half(header, 2)), header_bytes as i64);
    let there = header.len() as i64 - header_bytes;
    let transport = there.min(length - header_bytes);
    let packet = IpPacket { header, rest, length, header_bytes, transport, whole: record.length };
    let fields = [(form.id, "id", u32::from(half(header, 4))), (form.ttl, "ttl", header[8].into())];
    let more = [(form.tos, "tos", u32::from(header[1])), (form.length, "length", length as u32)];
    for (_, name, value) in fields.into_iter().chain(more).filter(|(shown, ..)| *shown) {
        text += &format!("{name} {value} ");
    }
    text += &match header[9] {
        6 => tcp(&packet),
        17 => udp(&packet),
        1 => icmp(&packet, form.swap),
        other => format!("{}: ip-proto-{other}", packet.pair()),
    };
    let fragment = half(header, 6);
    if fragment & 0x3fff != 0 {
        let more = if fragment & 0x2000 != 0 { "+" } else { "" };
        let (id, bytes, offset) = (half(header, 4), length - header_bytes, u32::from(fragment & 0x1fff) << 3);
        text += &format!(" (frag {id}:{bytes}@{offset}{more})");
    }
    let mut text = text.into_bytes();
    if form.contents != PayloadFormat::None {
        text.extend(lines(form.contents, first(shown(form, record, &packet), form.most)));
    }
    text
}

/// The bytes that `IPPrint` may show.
fn shown<'r>(form: &IpForm, record: &PrintRecord<'r>, packet: &IpPacket<'r>) -> &'r [u8] {
    if !form.payload {
        return record.packet();
    }
    let behind = match (packet.header[9], packet.is_first()) {
        (6, true) => match packet.rest.get(12) {
            Some(offset) => usize::from(offset >> 4) * 4,
            None => packet.rest.len(),
        },
        (17, true) => 8,
        _ => 0,
    };
    packet.rest.get(behind..).unwrap_or_default()
}

fn tcp(packet: &IpPacket<'_>) -> String {
    if packet.transport < 4 || !packet.is_first() {
        return format!("{}: {}", packet.pair(), if packet.is_first() { "truncated-tcp" } else { "tcp" });
    }
    let (mut text, rest) = (packet.ends(), packet.rest);
    if packet.transport < 14 {
        return text + "truncated-tcp";
    }
    let (flags, offset) = (rest[13], i64::from(rest[12] >> 4) * 4);
    let mut length = packet.length - packet.header_bytes - offset;
    for (bit, letter, counts) in [(2, 'S', 1), (1, 'F', 1), (4, 'R', 0), (8, 'P', 0)] {
        if flags & bit != 0 {
            text.push(letter);
            length += counts;
        }
    }
    if flags & 15 == 0 {
        text.push('.');
    }
    let sequence = word(rest, 4);
    let end = sequence.wrapping_add(length as u32);
    text += &format!(" {sequence}:{end}({length},{},{})", packet.whole, packet.length);
    if flags & 16 != 0 {
        text += &format!(" ack {}", word(rest, 8));
    }
    if packet.transport < 16 {
        return text + "truncated-tcp";
    }
    text + &format!(" win {}", half(rest, 14))
}

fn udp(packet: &IpPacket<'_>) -> String {
    if packet.transport < 4 || !packet.is_first() {
        return format!("{}: {}", packet.pair(), if packet.is_first() { "truncated-udp" } else { "udp" });
    }
    match packet.transport < 8 {
        true => packet.ends() + "truncated-udp",
        false => format!("{}udp {}", packet.ends(), half(packet.rest, 4)),
    }
}

fn icmp(packet: &IpPacket<'_>, swap: bool) -> String {
    let text = packet.pair() + ": ";
    if !packet.is_first() {
        return text + "icmp";
    }
    if packet.transport < 2 {
        return text + "truncated-icmp";
    }
    let (rest, kind, code) = (packet.rest, packet.rest[0], packet.rest[1]);
    match kind {
        0 | 8 => {
            let text = text + if kind == 0 { "icmp echo-reply " } else { "icmp echo " };
            if packet.transport < 8 {
                return text + "truncated-icmp";
            }
            let [id, sequence] = [4, 6].map(|at| match half(rest, at) {
                number if swap => number,
                number => number.swap_bytes(),
            });
            text + &format!("({id}, {sequence})")
        }
        3 => text + &unreachable(packet, code),
        _ => {
            let kind_text = named(ICMP_TYPES, kind).map_or_else(|| format!("type {kind}"), str::to_owned);
            let code_text = match icmp_code(kind, code) {
                Some(name) => format!(" {name}"),
                None if code != 0 => format!(" code {code}"),
                None => String::new(),
            };
            text + &format!("icmp {kind_text}{code_text}")
        }
    }
}

/// Text of an error about a packet that did not reach its destination.
fn unreachable(packet: &IpPacket<'_>, code: u8) -> String {
    let name = icmp_code(3, code).map_or_else(|| format!("code {code}"), str::to_owned);
    let quoted = packet.rest.get(8..).unwrap_or_default();
    let there = packet.transport - 8;
    if there < IP as i64 {
        return format!("icmp unreachable {name} truncated-icmp");
    }
    let text = format!("icmp {} unreachable {name}", address(quoted, 16));
    let protocol = quoted[9];
    let known = named(PROTOCOLS, protocol);
    match code {
        2 => text + &format!(" {}", known.map_or_else(|| protocol.to_string(), str::to_owned)),
        3 => {
            let text =
                text + &format!(" {}", known.map_or_else(|| format!("protocol {protocol}"), str::to_owned));
            let header = usize::from(quoted[0] & 15) * 4;
            match there - (header as i64) < 4 {
                true => text + "truncated-icmp",
                false => text + &format!("/{}", half(quoted, header + 2)),
            }
        }
        4 if half(packet.rest, 6) != 0 => text + &format!(" (mtu {})", half(packet.rest, 6)),
        _ => text,
    }
}

/// Names of numbers.
type NumberNames = &'static [(u8, &'static str)];

fn named(names: NumberNames, number: u8) -> Option<&'static str> {
    names.iter().find(|(known, _)| *known == number).map(|(_, name)| *name)
}

const PROTOCOLS: NumberNames = &[
    (1, "icmp"),
    (2, "igmp"),
    (4, "ipip"),
    (6, "tcp"),
    (17, "udp"),
    (33, "dccp"),
    (47, "gre"),
    (132, "sctp"),
];
const ICMP_TYPES: NumberNames = &[
    (0, "echo-reply"),
    (3, "unreachable"),
    (4, "sourcequench"),
    (5, "redirect"),
    (8, "echo"),
    (9, "routeradvert"),
    (10, "routersolicit"),
    (11, "timeexceeded"),
    (12, "parameterproblem"),
    (13, "timestamp"),
    (14, "timestamp-reply"),
    (15, "inforeq"),
    (16, "inforeq-reply"),
    (17, "maskreq"),
    (18, "maskreq-reply"),
];
const UNREACHABLE: NumberNames = &[
    (0, "net"),
    (1, "host"),
    (2, "protocol"),
    (3, "port"),
    (4, "needfrag"),
    (5, "srcroutefail"),
    (6, "netunknown"),
    (7, "hostunknown"),
    (8, "isolated"),
    (9, "netprohibited"),
    (10, "hostprohibited"),
    (11, "tosnet"),
    (12, "toshost"),
    (13, "filterprohibited"),
    (14, "hostprecedence"),
    (15, "precedencecutoff"),
];

fn icmp_code(kind: u8, code: u8) -> Option<&'static str> {
    let names: NumberNames = match kind {
        3 => UNREACHABLE,
        5 => &[(0, "net"), (1, "host"), (2, "tosnet"), (3, "toshost")],
        11 => &[(0, "transit"), (1, "reassembly")],
        12 => &[(0, "erroratptr"), (1, "missingopt"), (2, "length")],
        _ => &[],
    };
    named(names, code)
}

/// A message of ARP; none of one that Click prints nothing of.
fn arp(message: &[u8]) -> Option<String> {
    if message.len() < ARP {
        return Some(format!("truncated-arp ({})", message.len()));
    }
    let [hardware, protocol, operation] = [0, 2, 6].map(|at| half(message, at));
    let (hardware_bytes, protocol_bytes) = (message[4], message[5]);
    let is_ip = [0x0800, 0x1000].contains(&protocol);
    if !is_ip || protocol_bytes != 4 || hardware_bytes == 0 {
        return None;
    }
    let mut whole = [0; ETHER_ARP];
    let there = message.len().min(ETHER_ARP);
    whole[..there].copy_from_slice(&message[..there]);
    let (from, to) = (ether(&whole[8..14]), ether(&whole[18..24]));
    let (own, other) = (address(&whole, 14), address(&whole, 24));
    let trailer = if protocol == 0x1000 { "trailer-" } else { "" };
    let asks = || match whole[18..24].iter().take(hardware_bytes.into()).any(|byte| *byte != 0) {
        true => format!(" ({to})"),
        false => String::new(),
    };
    let text = match operation {
        1 => format!("arp who-has {other}{} tell {own}", asks()),
        2 => format!("arp reply {own} is-at {from}"),
        3 => format!("rarp who-is {to} tell {from}"),
        4 => format!("rarp reply {to} at {other}"),
        8 => format!("invarp who-is {to} tell {from}"),
        9 => format!("invarp reply {to} at {other}"),
        other => format!("arp-#{other}"),
    };
    let hardware = if hardware == 1 { String::new() } else { format!("hardware #{hardware}") };
    Some(format!("{trailer}{text}{hardware}"))
}

/// Text of elements for standard error: each line by itself, as in Click.
pub fn chatter(text: &[u8]) -> Vec<u8> {
    // A text ends where a string of C does.
    let text = text.split(|byte| *byte == 0).next().unwrap_or_default();
    let mut lines = text.to_vec();
    if lines.last().is_some_and(|last| *last != b'\n') {
        lines.push(b'\n');
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A record of a packet whose network header is at this distance.
    fn record(network: Option<i64>, packet: &[u8]) -> Vec<u8> {
        let words = [0, 3, network.unwrap_or(NO_NETWORK), packet.len() as i64, 0, 7, 5, 0, 0, 0];
        words.iter().flat_map(|word: &i64| word.to_ne_bytes()).chain(packet.iter().copied()).collect()
    }

    fn text(form: PrintForm, label: &str, record: &[u8], time: u64) -> Option<String> {
        let printer = PacketPrinter { label: label.into(), form, file: None, header: String::new() };
        let (_, text) = printed(std::slice::from_ref(&printer), record, time)?;
        Some(String::from_utf8(text).expect("text"))
    }

    fn packet(contents: PayloadFormat, most: i64) -> PrintForm {
        PrintForm::Packet { contents, most, timestamp: false, cpu: false }
    }

    #[test]
    fn print_prints_length_and_bytes_in_groups() {
        let bytes: Vec<u8> = (0..30).collect();
        let of =
            |form, label: &str, bytes: &[u8]| text(form, label, &record(None, bytes), 0).expect("printed");
        assert_eq!(of(packet(PayloadFormat::Hex, 24), "", &bytes[..1]), "   1 | 00");
        assert_eq!(
            of(packet(PayloadFormat::Hex, 24), "a", &bytes),
            "a:   30 | 00010203 04050607 08090a0b 0c0d0e0f 10111213 14151617"
        );
        assert_eq!(of(packet(PayloadFormat::Ascii, -1), "a", b"GET /index\r\n"), "a:   12 |  GET /ind ex..");
        assert_eq!(of(packet(PayloadFormat::None, 24), "a", &bytes), "a:   30");
        assert_eq!(of(packet(PayloadFormat::Hex, 0), "a", &bytes), "a:   30");
        assert_eq!(of(packet(PayloadFormat::Hex, 24), "a b", b""), "a b:    0");
        let all = PrintForm::Packet { contents: PayloadFormat::Hex, most: 2, timestamp: true, cpu: true };
        let record = record(None, &[1, 2, 3]);
        assert_eq!(
            text(all.clone(), "a", &record, 1_000_020_000).as_deref(),
            Some("a(3): 1.000020:    3 | 0102")
        );
        assert_eq!(text(all, "", &record, 1_000_020_001).as_deref(), Some("(3): 1.000020001:    3 | 0102"));
    }

    /// A header of IPv4 with so many bytes behind it, of a protocol.
    fn header(protocol: u8, fragment: u16, rest: &[u8]) -> Vec<u8> {
        let mut packet =
            vec![0x45, 8, 0, 20 + rest.len() as u8, 0, 9, 0, 0, 64, protocol, 0, 0, 1, 0, 0, 1, 1, 0, 0, 2];
        packet[6..8].copy_from_slice(&fragment.to_be_bytes());
        packet.extend_from_slice(rest);
        packet
    }

    fn ip_text(form: IpForm, packet: &[u8]) -> String {
        text(PrintForm::Ip(form), "", &record(Some(0), packet), 1_000_020_000).expect("printed")
    }

    #[test]
    fn ipprint_says_what_the_headers_say() {
        let form = IpForm { swap: true, most: 1500, ..IpForm::default() };
        let of = |packet: &[u8]| ip_text(form, packet);
        let mut segment = [0, 10, 0, 20, 0, 0, 0, 5, 0, 0, 0, 6, 0x50, 0x12, 1, 0, 0, 0, 0, 0, 9, 9];
        assert_eq!(of(&header(6, 0, &segment)), "1.0.0.1.10 > 1.0.0.2.20: S 5:8(3,42,42) ack 6 win 256");
        segment[13] = 0;
        assert_eq!(of(&header(6, 0, &segment)), "1.0.0.1.10 > 1.0.0.2.20: . 5:7(2,42,42) win 256");
        assert_eq!(of(&header(6, 0, &segment[..10])), "1.0.0.1.10 > 1.0.0.2.20: truncated-tcp");
        assert_eq!(of(&header(6, 0, &segment[..3])), "1.0.0.1 > 1.0.0.2: truncated-tcp");
        assert_eq!(of(&header(6, 0x2003, &segment)), "1.0.0.1 > 1.0.0.2: tcp (frag 9:22@24+)");
        assert_eq!(of(&header(17, 0, &[0, 1, 0, 2, 0, 8, 0, 0])), "1.0.0.1.1 > 1.0.0.2.2: udp 8");
        assert_eq!(of(&header(17, 0, &[0, 1, 0, 2, 0])), "1.0.0.1.1 > 1.0.0.2.2: truncated-udp");
        assert_eq!(of(&header(1, 0, &[8, 0, 0, 0, 1, 2, 0, 3])), "1.0.0.1 > 1.0.0.2: icmp echo (258, 3)");
        let unswapped = IpForm { swap: false, ..form };
        assert_eq!(
            ip_text(unswapped, &header(1, 0, &[0, 0, 0, 0, 1, 2, 0, 3])),
            "1.0.0.1 > 1.0.0.2: icmp echo-reply (513, 768)"
        );
        assert_eq!(of(&header(1, 0, &[11, 0, 0, 0])), "1.0.0.1 > 1.0.0.2: icmp timeexceeded transit");
        assert_eq!(of(&header(1, 0, &[40, 2, 0, 0])), "1.0.0.1 > 1.0.0.2: icmp type 40 code 2");
        assert_eq!(of(&header(99, 0, &[])), "1.0.0.1 > 1.0.0.2: ip-proto-99");
        assert_eq!(of(&[0x45, 0]), "truncated-ip");
        assert_eq!(text(PrintForm::Ip(form), "", &record(None, &[0; 40]), 0), None, "it has no header");
    }

    #[test]
    fn ipprint_quotes_what_did_not_come_where_it_was_to_go() {
        let form = IpForm { swap: true, ..IpForm::default() };
        let quoted = header(17, 0, &[0, 1, 0, 53, 0, 8, 0, 0]);
        let error = |code: u8, next: u8| {
            let rest = [&[3, code, 0, 0, 0, 0, 0, next][..], &quoted].concat();
            ip_text(form, &header(1, 0, &rest))
        };
        let begin = "1.0.0.1 > 1.0.0.2: icmp 1.0.0.2 unreachable";
        assert_eq!(error(3, 0), format!("{begin} port udp/53"));
        assert_eq!(error(2, 0), format!("{begin} protocol udp"));
        assert_eq!(error(4, 100), format!("{begin} needfrag (mtu 100)"));
        assert_eq!(error(99, 0), format!("{begin} code 99"));
        assert_eq!(
            ip_text(form, &header(1, 0, &[3, 1, 0, 0, 0, 0, 0, 0, 0x45])),
            "1.0.0.1 > 1.0.0.2: icmp unreachable host truncated-icmp"
        );
    }

    #[test]
    fn ipprint_has_fields_and_bytes_where_it_is_asked_for_them() {
        let all = IpForm {
            timestamp: true,
            id: true,
            ttl: true,
            tos: true,
            length: true,
            paint: true,
            aggregate: true,
            vlan: true,
            swap: true,
            payload: true,
            contents: PayloadFormat::Hex,
            most: 26,
        };
        let rest: Vec<u8> = [0, 1, 0, 2, 0, 50, 0, 0].into_iter().chain(0..42).collect();
        assert_eq!(
            ip_text(all, &header(17, 0, &rest)),
            "1.000020: #0 VLAN:1280.7: id 9 ttl 64 tos 8 length 70 1.0.0.1.1 > 1.0.0.2.2: udp 50\n  \
             00010203 04050607 08090a0b 0c0d0e0f 10111213 14151617\n  1819"
        );
        let ascii = IpForm { contents: PayloadFormat::Ascii, most: -1, ..IpForm::default() };
        let packet = header(99, 0, b"some text that is longer than that");
        assert!(ip_text(ascii, &packet).ends_with("\n  n that"), "{}", ip_text(ascii, &packet));
    }

    #[test]
    fn ip6print_and_arpprint_have_forms_of_their_own() {
        let mut header6 = vec![0x60, 0, 0, 0, 0, 8, 17, 64];
        header6.extend([0x20, 1, 0xd, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1]);
        header6.extend([0; 16]);
        let of = |shown| text(PrintForm::Ip6(shown), "six", &record(Some(0), &header6), 0);
        let line = "six: 2001:db8::1 -> :: plen 8, next 17, hlim 64\n";
        assert_eq!(of(None).as_deref(), Some(line));
        assert_eq!(of(Some(9)), Some(format!("{line}  60000000 00081140 20")));
        for (bytes, expected) in [
            ([0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 1, 2, 3, 4], "::ffff:1.2.3.4"),
            ([0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 2, 3, 4], "::1.2.3.4"),
            ([0, 1, 0, 0, 0, 0, 0, 2, 0, 3, 0, 0, 0, 0, 0, 0], "1:0:0:2:3::"),
            ([0, 0, 0, 0, 0, 1, 0, 1, 0, 1, 0, 1, 0, 1, 0, 1], "::1:1:1:1:1:1"),
        ] {
            assert_eq!(ip6_address(&bytes), expected);
        }
        let mut message =
            vec![0, 1, 8, 0, 6, 4, 0, 1, 2, 2, 2, 2, 2, 2, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0, 1, 0, 0, 2];
        let of = |message: &[u8]| {
            text(PrintForm::Arp { timestamp: false, ether: false }, "", &record(Some(0), message), 0)
        };
        assert_eq!(of(&message).as_deref(), Some("arp who-has 1.0.0.2 tell 1.0.0.1"));
        message[7] = 2;
        assert_eq!(of(&message).as_deref(), Some("arp reply 1.0.0.1 is-at 02-02-02-02-02-02"));
        assert_eq!(of(&message[..7]).as_deref(), Some("truncated-arp (7)"));
        message[2] = 9;
        assert_eq!(of(&message), None);
    }

    #[test]
    fn no_record_and_no_cut_of_a_packet_is_too_short() {
        let form = IpForm { contents: PayloadFormat::Hex, payload: true, most: -1, ..IpForm::default() };
        for protocol in [1, 6, 17, 41] {
            for kind in 0..20 {
                let whole = header(
                    protocol,
                    0,
                    &[kind, 3, 0, 1, 0x4f, 0, 0, 8, 0x45, 0, 0, 20, 0xf0, 9, 1, 1, 3, 1, 1, 1, 1],
                );
                for cut in 0..whole.len() {
                    for network in [0, 5, 100, i64::MAX, -1] {
                        let record = record(Some(network), &whole[..cut]);
                        let _ = text(PrintForm::Ip(form), "", &record, 0);
                        let _ = text(PrintForm::Ip6(Some(9)), "", &record, 0);
                        let _ = text(PrintForm::Arp { timestamp: true, ether: true }, "", &record, 0);
                        let _ = text(packet(PayloadFormat::Hex, -1), "", &record[..record.len().min(60)], 0);
                    }
                }
            }
        }
    }

    #[test]
    fn a_text_of_several_lines_is_lines() {
        assert_eq!(chatter(b"a\nb"), b"a\nb\n");
        assert_eq!(chatter(b"a\n"), b"a\n");
        assert_eq!(chatter(b""), b"");
        assert_eq!(chatter(b"a\0b"), b"a\n");
    }
}

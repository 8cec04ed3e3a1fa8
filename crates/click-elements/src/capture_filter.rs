//! Filters of captures, as libpcap has them for frames of Ethernet. Source: pcap-filter(7).
//!
//! If a filter reads a part that a packet does not have, the whole filter fails, also within `not`: so do the
//! loads in the classic BPF code of libpcap. Names of hosts, networks and gateways, and the primitives that
//! move offsets (`vlan`, `mpls`, `pppoes`) or ask a driver (`inbound`), are refused.

use millstream_ir::{Block, Value};
use millstream_isa::{AluOp, Cond};

use millstream_click::arguments::{ether_text, ip_text, ip6_text, mask6};
use millstream_click::build::ElementBuilder;
use millstream_click::packet::PacketValues;
use millstream_click::{Error, SpannedText};

/// Bytes of an Ethernet header.
const ETHER: i32 = 14;
const IP4: u32 = 0x0800;
const ARP: u32 = 0x0806;
const RARP: u32 = 0x8035;
const IP6: u32 = 0x86dd;
/// Offsets in a frame: Ethernet type, protocol, fragment offset, and next header of IPv6.
const TYPE: i32 = 12;
const PROTOCOL: i32 = ETHER + 9;
const FRAGMENT: i32 = ETHER + 6;
const NEXT6: i32 = ETHER + 6;
/// The next header of a fragment of IPv6, and the offset of the next header behind that.
const FRAGMENT6: u32 = 44;
const BEHIND_FRAGMENT6: i32 = ETHER + 40;
/// Protocols above IP, by their names.
const PROTOCOLS: &[(&str, u32)] = &[
    ("icmp", 1),
    ("igmp", 2),
    ("igrp", 9),
    ("tcp", 6),
    ("udp", 17),
    ("esp", 50),
    ("ah", 51),
    ("icmp6", 58),
    ("pim", 103),
    ("vrrp", 112),
    ("sctp", 132),
];
/// Those with ports.
const PORTED: [u32; 3] = [6, 17, 132];
const ETHER_TYPES: &[(&str, u32)] = &[("ip", IP4), ("arp", ARP), ("rarp", RARP), ("ip6", IP6)];
/// Names of services, of those that filters name most.
const SERVICES: &[(&str, u32)] = &[
    ("ftp", 21),
    ("ssh", 22),
    ("telnet", 23),
    ("smtp", 25),
    ("domain", 53),
    ("bootps", 67),
    ("bootpc", 68),
    ("http", 80),
    ("www", 80),
    ("pop3", 110),
    ("ntp", 123),
    ("imap2", 143),
    ("snmp", 161),
    ("bgp", 179),
    ("https", 443),
];
/// Places and bits that have names.
const NAMES: &[(&str, u32)] = &[
    ("icmptype", 0),
    ("icmpcode", 1),
    ("tcpflags", 13),
    ("tcp-fin", 1),
    ("tcp-syn", 2),
    ("tcp-rst", 4),
    ("tcp-push", 8),
    ("tcp-ack", 16),
    ("tcp-urg", 32),
    ("icmp-echoreply", 0),
    ("icmp-unreach", 3),
    ("icmp-redirect", 5),
    ("icmp-echo", 8),
    ("icmp-timxceed", 11),
];
const DEEPEST: u32 = 64;
/// Parts of a filter at most: each becomes code.
const LARGEST: usize = 4096;

/// Position of bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum LoadOffset {
    /// In the frame.
    Frame(i32),
    /// Behind the header of IPv4.
    Transport(i32),
}

/// A number.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum FilterTerm {
    Constant(u32),
    Length,
    Load(LoadOffset, u32),
    Op(AluOp, Box<FilterTerm>, Box<FilterTerm>),
}

/// A filter.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum CaptureFilter {
    All(Vec<CaptureFilter>),
    Any(Vec<CaptureFilter>),
    Not(Box<CaptureFilter>),
    Test(Cond, FilterTerm, FilterTerm),
}

use CaptureFilter::{All, Any, Not};

fn is(place: LoadOffset, bytes: u32, value: u32) -> CaptureFilter {
    CaptureFilter::Test(Cond::Eq, FilterTerm::Load(place, bytes), FilterTerm::Constant(value))
}

fn masked(place: LoadOffset, bytes: u32, mask: u32, value: u32) -> CaptureFilter {
    if mask == 0 {
        return All(Vec::new());
    }
    let load = FilterTerm::Load(place, bytes);
    let term = match mask {
        u32::MAX => load,
        mask => FilterTerm::Op(AluOp::And, Box::new(load), Box::new(FilterTerm::Constant(mask))),
    };
    CaptureFilter::Test(Cond::Eq, term, FilterTerm::Constant(value & mask))
}

fn ethertype(kind: u32) -> CaptureFilter {
    is(LoadOffset::Frame(TYPE), 2, kind)
}

fn protocol4(number: u32) -> CaptureFilter {
    All(vec![ethertype(IP4), is(LoadOffset::Frame(PROTOCOL), 1, number)])
}

fn protocol6(number: u32) -> CaptureFilter {
    let behind = All(vec![
        is(LoadOffset::Frame(NEXT6), 1, FRAGMENT6),
        is(LoadOffset::Frame(BEHIND_FRAGMENT6), 1, number),
    ]);
    All(vec![ethertype(IP6), Any(vec![is(LoadOffset::Frame(NEXT6), 1, number), behind])])
}

fn first_fragment() -> CaptureFilter {
    masked(LoadOffset::Frame(FRAGMENT), 2, 0x1fff, 0)
}

/// Which side of a packet is meant.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum DirQualifier {
    Source,
    Destination,
    Either,
    Both,
}

impl DirQualifier {
    fn of(self, source: CaptureFilter, destination: CaptureFilter) -> CaptureFilter {
        match self {
            DirQualifier::Source => source,
            DirQualifier::Destination => destination,
            DirQualifier::Either => Any(vec![source, destination]),
            DirQualifier::Both => All(vec![source, destination]),
        }
    }
}

/// The qualifiers in front of a primitive's value.
#[derive(Clone, Debug)]
struct PcapQualifiers {
    protocol: Option<String>,
    side: DirQualifier,
    sided: bool,
    kind: Option<String>,
}

struct PcapFilterParser<'t> {
    words: Vec<String>,
    at: usize,
    depth: u32,
    size: usize,
    text: &'t SpannedText,
    last: PcapQualifiers,
}

/// Reads a filter.
pub(super) fn filter(text: &SpannedText, written: &str) -> Result<CaptureFilter, Error> {
    let none = PcapQualifiers { protocol: None, side: DirQualifier::Either, sided: false, kind: None };
    let mut parser = PcapFilterParser { words: split(written), at: 0, depth: 0, size: 0, text, last: none };
    if parser.words.is_empty() {
        return Ok(All(Vec::new()));
    }
    let filter = parser.any()?;
    match parser.words.get(parser.at) {
        Some(word) => Err(parser.wrong(&format!("`{word}` is not expected here"))),
        None => Ok(filter),
    }
}

/// Words, numbers, and signs of one or two characters.
fn split(text: &str) -> Vec<String> {
    let bytes = text.as_bytes();
    let (mut all, mut at) = (Vec::new(), 0);
    let is_word = |byte: u8| byte.is_ascii_alphanumeric() || b"._-/:\\".contains(&byte) || byte >= 0x80;
    while at < bytes.len() {
        let rest = &text.as_bytes()[at..];
        let length = match rest {
            [space, ..] if space.is_ascii_whitespace() => {
                at += 1;
                continue;
            }
            // Within brackets a colon stands between an index and a size.
            [first, ..] if is_word(*first) && !(*first == b':' && in_brackets(&all)) => {
                let inner = in_brackets(&all);
                let end = |byte: &u8| !is_word(*byte) || inner && *byte == b':' || inner && *byte == b'/';
                rest.iter().position(end).unwrap_or(rest.len()).max(1)
            }
            [b'&', b'&', ..] | [b'|', b'|', ..] | [b'<', b'<', ..] | [b'>', b'>', ..] => 2,
            [b'<' | b'>' | b'!' | b'=', b'=', ..] => 2,
            _ => 1,
        };
        all.push(String::from_utf8_lossy(&rest[..length]).into_owned());
        at += length;
    }
    all
}

fn in_brackets(words: &[String]) -> bool {
    let count = |sign: &str| words.iter().filter(|word| *word == sign).count();
    count("[") > count("]")
}

impl PcapFilterParser<'_> {
    fn wrong(&self, what: &str) -> Error {
        Error::new(self.text.span, format!("the filter is not understood: {what}"))
            .help("an `IPClassifier` behind the device filters, too")
    }

    fn peek(&self) -> &str {
        self.words.get(self.at).map_or("", String::as_str)
    }

    fn next(&mut self) -> Result<String, Error> {
        let word = self.words.get(self.at).cloned().ok_or_else(|| self.wrong("it ends too early"))?;
        self.at += 1;
        Ok(word)
    }

    fn take(&mut self, words: &[&str]) -> bool {
        let found = words.contains(&self.peek());
        self.at += usize::from(found);
        found
    }

    fn any(&mut self) -> Result<CaptureFilter, Error> {
        let mut all = vec![self.all()?];
        // Both words bind alike, from the left.
        loop {
            if self.take(&["or", "||"]) {
                all.push(self.all()?);
            } else if self.take(&["and", "&&"]) {
                let left = if all.len() == 1 { all.remove(0) } else { Any(std::mem::take(&mut all)) };
                all = vec![All(vec![left, self.all()?])];
            } else {
                return Ok(if all.len() == 1 { all.remove(0) } else { Any(all) });
            }
        }
    }

    fn all(&mut self) -> Result<CaptureFilter, Error> {
        self.size += 1;
        self.depth += 1;
        if self.depth > DEEPEST || self.size > LARGEST {
            return Err(self.wrong("it is too large"));
        }
        let filter = if self.take(&["not", "!"]) {
            Not(Box::new(self.all()?))
        } else if self.peek() == "(" && !self.is_arithmetic() {
            self.at += 1;
            let inner = self.any()?;
            if !self.take(&[")"]) {
                return Err(self.wrong("a parenthesis is not closed"));
            }
            inner
        } else {
            self.primitive()?
        };
        self.depth -= 1;
        Ok(filter)
    }

    /// Returns true if a comparison of numbers begins here: a bracket, an operator or a number comes before
    /// any word that joins.
    fn is_arithmetic(&self) -> bool {
        let (mut open, mut at) = (0, self.at);
        while let Some(word) = self.words.get(at) {
            match word.as_str() {
                "(" => open += 1,
                ")" if open == 0 => return false,
                ")" => open -= 1,
                "and" | "or" | "not" | "&&" | "||" | "!" => return false,
                "<" | ">" | "<=" | ">=" | "=" | "==" | "!=" => return open == 0,
                _ => {}
            }
            at += 1;
        }
        false
    }

    fn primitive(&mut self) -> Result<CaptureFilter, Error> {
        if self.is_arithmetic() {
            return self.comparison();
        }
        let word = self.peek().to_owned();
        match word.as_str() {
            "vlan" | "mpls" | "pppoed" | "pppoes" | "geneve" | "gateway" | "inbound" | "outbound"
            | "ifname" | "on" | "type" | "wlan" | "link" | "llc" | "decnet" | "iso" | "lat" | "moprc"
            | "mopdl" | "stp" | "ipx" | "netbeui" | "protochain" => {
                return Err(self.wrong(&format!("`{word}` is not supported")));
            }
            "less" | "greater" => {
                self.at += 1;
                let (cond, length) = (if word == "less" { Cond::Le } else { Cond::Ge }, self.number()?);
                return Ok(CaptureFilter::Test(cond, FilterTerm::Length, FilterTerm::Constant(length)));
            }
            "broadcast" | "multicast" => {
                self.at += 1;
                return Ok(cast(&word));
            }
            _ => {}
        }
        let read = self.qualifiers()?;
        let given = read.protocol.is_some() || read.sided || read.kind.is_some();
        // A value alone has the qualifiers of the one before.
        let qualifiers = if given { read } else { self.last.clone() };
        let alone = given && qualifiers.kind.is_none() && !qualifiers.sided && !self.is_value();
        if let Some(protocol) = qualifiers.protocol.as_deref().filter(|_| alone) {
            if protocol == "ether" && self.take(&["broadcast"]) {
                return Ok(cast("broadcast"));
            }
            return if self.take(&["multicast"]) { self.multicast(protocol) } else { self.named(protocol) };
        }
        let filter = self.valued(&qualifiers)?;
        self.last = qualifiers;
        Ok(filter)
    }

    fn qualifiers(&mut self) -> Result<PcapQualifiers, Error> {
        let mut found =
            PcapQualifiers { protocol: None, side: DirQualifier::Either, sided: false, kind: None };
        let known = |word: &str| {
            word == "ether" || ETHER_TYPES.iter().chain(PROTOCOLS).any(|(name, _)| *name == word)
        };
        if known(self.peek()) {
            found.protocol = Some(self.next()?);
        }
        if ["src", "dst"].contains(&self.peek()) {
            let first = self.next()?;
            found.sided = true;
            found.side = if first == "src" { DirQualifier::Source } else { DirQualifier::Destination };
            let other = if first == "src" { "dst" } else { "src" };
            let two = self.words.get(self.at + 1).is_some_and(|word| word == other);
            if two && ["or", "and", "||", "&&"].contains(&self.peek()) {
                found.side = if ["or", "||"].contains(&self.peek()) {
                    DirQualifier::Either
                } else {
                    DirQualifier::Both
                };
                self.at += 2;
            }
        }
        if ["host", "net", "port", "portrange", "proto"].contains(&self.peek()) {
            found.kind = Some(self.next()?);
        }
        Ok(found)
    }

    /// Returns true if a value follows, and not the end or a word that joins.
    fn is_value(&self) -> bool {
        !["", "and", "or", "&&", "||", ")", "broadcast", "multicast"].contains(&self.peek())
    }

    fn number(&mut self) -> Result<u32, Error> {
        let word = self.next()?;
        let number = match word.strip_prefix("0x").or(word.strip_prefix("0X")) {
            Some(digits) => u32::from_str_radix(digits, 16).ok(),
            None if word.len() > 1 && word.starts_with('0') => u32::from_str_radix(&word, 8).ok(),
            None => word.parse().ok(),
        };
        number.ok_or_else(|| self.wrong(&format!("`{word}` is no number")))
    }

    fn multicast(&self, protocol: &str) -> Result<CaptureFilter, Error> {
        match protocol {
            "ether" => Ok(cast("multicast")),
            "ip" => {
                let group = CaptureFilter::Test(
                    Cond::Ge,
                    FilterTerm::Load(LoadOffset::Frame(ETHER + 16), 1),
                    FilterTerm::Constant(224),
                );
                Ok(All(vec![ethertype(IP4), group]))
            }
            "ip6" => Ok(All(vec![ethertype(IP6), is(LoadOffset::Frame(ETHER + 24), 1, 255)])),
            _ => Err(self.wrong(&format!("`{protocol} multicast` is not supported"))),
        }
    }

    /// A protocol alone.
    fn named(&self, protocol: &str) -> Result<CaptureFilter, Error> {
        if let Some((_, kind)) = ETHER_TYPES.iter().find(|(name, _)| *name == protocol) {
            return Ok(ethertype(*kind));
        }
        let number = PROTOCOLS.iter().find(|(name, _)| *name == protocol).map(|(_, number)| *number);
        match (protocol, number) {
            ("icmp" | "igmp" | "igrp" | "vrrp", Some(number)) => Ok(protocol4(number)),
            ("icmp6", Some(number)) => Ok(protocol6(number)),
            (_, Some(number)) => Ok(Any(vec![protocol4(number), protocol6(number)])),
            _ => Err(self.wrong(&format!("`{protocol}` lacks a value"))),
        }
    }

    /// A primitive with a value.
    fn valued(&mut self, qualifiers: &PcapQualifiers) -> Result<CaptureFilter, Error> {
        let protocol = qualifiers.protocol.as_deref();
        match (qualifiers.kind.as_deref(), protocol) {
            (None | Some("host"), Some("ether")) => {
                let word = self.next()?;
                let address =
                    ether_text(&word).ok_or_else(|| self.wrong(&format!("`{word}` is no address")))?;
                let at = |offset: i32| {
                    let [a, b, c, d, e, f] = address.map(u32::from);
                    let high = a << 24 | b << 16 | c << 8 | d;
                    All(vec![
                        is(LoadOffset::Frame(offset), 4, high),
                        is(LoadOffset::Frame(offset + 4), 2, e << 8 | f),
                    ])
                };
                Ok(qualifiers.side.of(at(6), at(0)))
            }
            (Some("proto"), of) => {
                let word = self.next()?;
                let name = word.trim_start_matches('\\');
                let number = |names: &[(&str, u32)], parser: &mut Self| match names
                    .iter()
                    .find(|(known, _)| *known == name)
                {
                    Some((_, number)) => Ok(*number),
                    None => {
                        parser.at -= 1;
                        parser.number()
                    }
                };
                match of {
                    Some("ether") => Ok(ethertype(number(ETHER_TYPES, self)?)),
                    Some("ip") => Ok(protocol4(number(PROTOCOLS, self)?)),
                    Some("ip6") => Ok(protocol6(number(PROTOCOLS, self)?)),
                    None => {
                        let number = number(PROTOCOLS, self)?;
                        Ok(Any(vec![protocol4(number), protocol6(number)]))
                    }
                    Some(other) => Err(self.wrong(&format!("`{other} proto` is not supported"))),
                }
            }
            (Some("port" | "portrange"), of) => self.ports(qualifiers, of),
            (None | Some("host" | "net"), of) => self.addresses(qualifiers, of),
            (Some(kind), of) => {
                Err(self.wrong(&format!("`{} {kind}` is not supported", of.unwrap_or_default())))
            }
        }
    }

    fn ports(&mut self, qualifiers: &PcapQualifiers, of: Option<&str>) -> Result<CaptureFilter, Error> {
        let word = self.next()?;
        let (first, last) =
            match word.split_once('-').filter(|_| qualifiers.kind.as_deref() == Some("portrange")) {
                Some((first, last)) => (first, last),
                None => (word.as_str(), word.as_str()),
            };
        let port = |text: &str| {
            let named = SERVICES.iter().find(|(name, _)| *name == text).map(|(_, port)| *port);
            named.or_else(|| text.parse::<u16>().ok().map(u32::from))
        };
        let (Some(first), Some(last)) = (port(first), port(last)) else {
            return Err(self.wrong(&format!("`{word}` is no port")));
        };
        let (first, last) = (first.min(last), first.max(last));
        let within = |place: LoadOffset| match first == last {
            true => is(place, 2, first),
            false => All(vec![
                CaptureFilter::Test(Cond::Ge, FilterTerm::Load(place, 2), FilterTerm::Constant(first)),
                CaptureFilter::Test(Cond::Le, FilterTerm::Load(place, 2), FilterTerm::Constant(last)),
            ]),
        };
        let number =
            |name: &str| PROTOCOLS.iter().find(|(known, _)| *known == name).map(|(_, number)| *number);
        let (protocols, four, six) = match of {
            None => (PORTED.to_vec(), true, true),
            Some("ip") => (PORTED.to_vec(), true, false),
            Some("ip6") => (PORTED.to_vec(), false, true),
            Some(name) => match number(name).filter(|number| PORTED.contains(number)) {
                Some(number) => (vec![number], true, true),
                None => return Err(self.wrong(&format!("`{name}` has no ports"))),
            },
        };
        let some = |place: LoadOffset| Any(protocols.iter().map(|number| is(place, 1, *number)).collect());
        let side = |place: fn(i32) -> LoadOffset, from: i32| {
            qualifiers.side.of(within(place(from)), within(place(from + 2)))
        };
        let mut all = Vec::new();
        if six {
            all.push(All(vec![
                ethertype(IP6),
                some(LoadOffset::Frame(NEXT6)),
                side(LoadOffset::Frame, BEHIND_FRAGMENT6),
            ]));
        }
        if four {
            all.push(All(vec![
                ethertype(IP4),
                some(LoadOffset::Frame(PROTOCOL)),
                first_fragment(),
                side(LoadOffset::Transport, 0),
            ]));
        }
        Ok(Any(all))
    }

    fn addresses(&mut self, qualifiers: &PcapQualifiers, of: Option<&str>) -> Result<CaptureFilter, Error> {
        let word = self.next()?;
        let is_net = qualifiers.kind.as_deref() == Some("net");
        let (address, length) = match word.split_once('/') {
            Some((address, length)) => (address, Some(length)),
            None => (word.as_str(), None),
        };
        let wrong = |parser: &Self| parser.wrong(&format!("`{word}` is no address of a host or network"));
        if let Some(address) = ip6_text(address) {
            let bits = length.map_or(Ok(128), |bits| bits.parse().map_err(|_| wrong(self)))?;
            if bits > 128 || of.is_some_and(|of| of != "ip6") {
                return Err(wrong(self));
            }
            let mask = mask6(bits);
            let at = |offset: i32| {
                let word = |at: i32| {
                    let part = |value: u128| (value >> (96 - 32 * at)) as u32;
                    masked(LoadOffset::Frame(offset + 4 * at), 4, part(mask), part(address))
                };
                All((0..4).map(word).collect())
            };
            return Ok(All(vec![ethertype(IP6), qualifiers.side.of(at(ETHER + 8), at(ETHER + 24))]));
        }
        let parts = address.split('.').count();
        let whole = match is_net {
            true => format!("{address}{}", ".0".repeat(4usize.saturating_sub(parts))),
            false => address.to_owned(),
        };
        let address = ip_text(&whole).ok_or_else(|| wrong(self))?;
        let mut mask = match (length, is_net) {
            (Some(bits), _) => {
                let bits: u32 = bits.parse().ok().filter(|bits| *bits <= 32).ok_or_else(|| wrong(self))?;
                u32::MAX.checked_shl(32 - bits).unwrap_or(0)
            }
            (None, true) => u32::MAX << (8 * (4 - parts.min(4)) as u32).min(31),
            (None, false) => u32::MAX,
        };
        if is_net && self.take(&["mask"]) {
            let word = self.next()?;
            mask = ip_text(&word).ok_or_else(|| self.wrong(&format!("`{word}` is no mask")))?;
        }
        let of_kind = |kind: u32, source: i32, destination: i32| {
            let at = |offset: i32| masked(LoadOffset::Frame(offset), 4, mask, address);
            All(vec![ethertype(kind), qualifiers.side.of(at(source), at(destination))])
        };
        let ip = of_kind(IP4, ETHER + 12, ETHER + 16);
        let [arp, rarp] = [ARP, RARP].map(|kind| of_kind(kind, ETHER + 14, ETHER + 24));
        match of {
            None => Ok(Any(vec![ip, arp, rarp])),
            Some("ip") => Ok(ip),
            Some("arp") => Ok(arp),
            Some("rarp") => Ok(rarp),
            Some(other) => Err(self.wrong(&format!("`{other}` has no addresses"))),
        }
    }

    /// Compares two numbers. The bytes that they are read from must exist.
    fn comparison(&mut self) -> Result<CaptureFilter, Error> {
        let mut needed = Vec::new();
        let left = self.sum(&mut needed, 0)?;
        let cond = match self.next()?.as_str() {
            "<" => Cond::Lt,
            ">" => Cond::Gt,
            "<=" => Cond::Le,
            ">=" => Cond::Ge,
            "=" | "==" => Cond::Eq,
            "!=" => Cond::Ne,
            other => return Err(self.wrong(&format!("`{other}` compares nothing"))),
        };
        let right = self.sum(&mut needed, 0)?;
        needed.push(CaptureFilter::Test(cond, left, right));
        Ok(All(needed))
    }

    /// Operators from this rank on: C's.
    fn sum(&mut self, needed: &mut Vec<CaptureFilter>, rank: usize) -> Result<FilterTerm, Error> {
        const RANKS: &[&[(&str, AluOp)]] = &[
            &[("|", AluOp::Or)],
            &[("^", AluOp::Xor)],
            &[("&", AluOp::And)],
            &[("<<", AluOp::Lsh), (">>", AluOp::Rsh)],
            &[("+", AluOp::Add), ("-", AluOp::Sub)],
            &[("*", AluOp::Mul), ("/", AluOp::Div), ("%", AluOp::Mod)],
        ];
        let Some(operators) = RANKS.get(rank) else { return self.operand(needed) };
        let mut term = self.sum(needed, rank + 1)?;
        while let Some((_, op)) = operators.iter().find(|(sign, _)| *sign == self.peek()) {
            self.at += 1;
            self.size += 1;
            let right = self.sum(needed, rank + 1)?;
            let bad = matches!((op, &right), (AluOp::Div | AluOp::Mod, FilterTerm::Constant(0)));
            let shifts = matches!(op, AluOp::Lsh | AluOp::Rsh);
            let bad = bad || shifts && matches!(&right, FilterTerm::Constant(32..));
            let varies = (shifts || matches!(op, AluOp::Div | AluOp::Mod))
                && !matches!(right, FilterTerm::Constant(..));
            if bad || varies || self.size > LARGEST {
                return Err(
                    self.wrong("divisors are numbers other than 0, distances of shifts numbers below 32")
                );
            }
            term = FilterTerm::Op(*op, Box::new(term), Box::new(right));
        }
        Ok(term)
    }

    fn operand(&mut self, needed: &mut Vec<CaptureFilter>) -> Result<FilterTerm, Error> {
        self.depth += 1;
        if self.depth > DEEPEST {
            return Err(self.wrong("it is too large"));
        }
        let word = self.peek().to_owned();
        let term = if self.take(&["("]) {
            let inner = self.sum(needed, 0)?;
            if !self.take(&[")"]) {
                return Err(self.wrong("a parenthesis is not closed"));
            }
            inner
        } else if self.take(&["len", "length"]) {
            FilterTerm::Length
        } else if let Some((_, value)) = NAMES.iter().find(|(name, _)| *name == word) {
            self.at += 1;
            FilterTerm::Constant(*value)
        } else if self.words.get(self.at + 1).is_some_and(|next| next == "[") {
            self.load(needed)?
        } else {
            FilterTerm::Constant(self.number()?)
        };
        self.depth -= 1;
        Ok(term)
    }

    /// `PROTOCOL[INDEX:SIZE]`.
    fn load(&mut self, needed: &mut Vec<CaptureFilter>) -> Result<FilterTerm, Error> {
        let protocol = self.next()?;
        self.at += 1;
        let index = match NAMES.iter().find(|(name, _)| *name == self.peek()) {
            Some((_, value)) => {
                self.at += 1;
                *value
            }
            None => self.number()?,
        };
        let size = if self.take(&[":"]) { self.number()? } else { 1 };
        let index = i32::try_from(index).ok().filter(|index| *index <= 65_535);
        let (Some(index), true, true) = (index, [1, 2, 4].contains(&size), self.take(&["]"])) else {
            return Err(self.wrong(&format!("`{protocol}[...]` has a number, and 1, 2 or 4 behind a colon")));
        };
        let number = PROTOCOLS.iter().find(|(name, _)| *name == protocol).map(|(_, number)| *number);
        let place = match (protocol.as_str(), number) {
            ("ether", _) => LoadOffset::Frame(index),
            ("icmp6", Some(number)) => {
                needed.push(All(vec![ethertype(IP6), is(LoadOffset::Frame(NEXT6), 1, number)]));
                LoadOffset::Frame(BEHIND_FRAGMENT6 + index)
            }
            (_, Some(number)) => {
                needed.push(All(vec![protocol4(number), first_fragment()]));
                LoadOffset::Transport(index)
            }
            (name, None) => match ETHER_TYPES.iter().find(|(known, _)| *known == name) {
                Some((_, kind)) => {
                    needed.push(ethertype(*kind));
                    LoadOffset::Frame(ETHER + index)
                }
                None => return Err(self.wrong(&format!("`{name}` is no protocol"))),
            },
        };
        Ok(FilterTerm::Load(place, size))
    }
}

/// Frames to all, or to groups.
fn cast(kind: &str) -> CaptureFilter {
    match kind {
        "broadcast" => All(vec![is(LoadOffset::Frame(0), 4, u32::MAX), is(LoadOffset::Frame(4), 2, 0xffff)]),
        _ => CaptureFilter::Test(
            Cond::Ne,
            FilterTerm::Op(
                AluOp::And,
                Box::new(FilterTerm::Load(LoadOffset::Frame(0), 1)),
                Box::new(FilterTerm::Constant(1)),
            ),
            FilterTerm::Constant(0),
        ),
    }
}

/// Writes a filter: goes to one block or the other, or, where something is not there, to the third.
pub(super) fn write(
    code: &mut ElementBuilder<'_, '_>,
    packet: PacketValues,
    filter: &CaptureFilter,
    [yes, no, without]: [Block; 3],
) {
    match filter {
        All(all) | Any(all) => {
            let every = matches!(filter, All(_));
            for part in all {
                let next = code.block();
                let ways = if every { [next, no, without] } else { [yes, next, without] };
                write(code, packet, part, ways);
                code.switch_to_block(next);
            }
            code.jump(if every { yes } else { no }, &[]);
        }
        Not(inner) => write(code, packet, inner, [no, yes, without]),
        CaptureFilter::Test(cond, left, right) => {
            let left = term(code, packet, left, without);
            let right = term(code, packet, right, without);
            code.branch(*cond, left, right, yes, no);
        }
    }
}

/// A number of 32 bits.
fn term(
    code: &mut ElementBuilder<'_, '_>,
    packet: PacketValues,
    number: &FilterTerm,
    without: Block,
) -> Value {
    match number {
        FilterTerm::Constant(value) => code.int(i64::from(*value)),
        FilterTerm::Length => code.length(packet),
        FilterTerm::Load(place, bytes) => load(code, packet, *place, *bytes, without),
        FilterTerm::Op(op, left, right) => {
            let left = term(code, packet, left, without);
            let right = term(code, packet, right, without);
            let whole = code.alu(*op, left, right);
            code.with(AluOp::And, whole, i64::from(u32::MAX))
        }
    }
}

fn load(
    code: &mut ElementBuilder<'_, '_>,
    packet: PacketValues,
    place: LoadOffset,
    bytes: u32,
    without: Block,
) -> Value {
    let needed = |code: &mut ElementBuilder<'_, '_>, base: Value, offset: i32, bytes: u32| {
        let beyond = code.at(base, i64::from(offset) + i64::from(bytes));
        code.check(Cond::Le, beyond, packet.end, |code| code.jump(without, &[]));
    };
    match place {
        LoadOffset::Frame(offset) => {
            needed(code, packet.data, offset, bytes);
            code.number(bytes, packet.data, offset)
        }
        LoadOffset::Transport(offset) => {
            needed(code, packet.data, ETHER, 1);
            let first = code.byte(packet.data, ETHER);
            let words = code.with(AluOp::And, first, 15);
            let length = code.with(AluOp::Lsh, words, 2);
            let header = code.at(packet.data, i64::from(ETHER));
            let base = code.plus(header, length);
            needed(code, base, offset, bytes);
            code.number(bytes, base, offset)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<CaptureFilter, Error> {
        filter(&SpannedText::default(), text)
    }

    #[test]
    fn filters_are_understood_or_refused() {
        for text in [
            "",
            "tcp port 80",
            "ip",
            "not arp and not (udp port 53 or icmp)",
            "src host 10.0.0.1 and dst net 192.168.0.0/16",
            "net 10",
            "host 10.0.0.1 or 10.0.0.2",
            "ether host 00:11:22:33:44:55",
            "ether proto 0x0806",
            "ip proto \\tcp",
            "tcp[tcpflags] & (tcp-syn|tcp-fin) != 0",
            "ip[0] & 0xf != 5 || len > 100",
            "(ip[2:2] - 20) > 40",
            "ip6 and portrange 1000-2000",
            "src or dst port http",
            "ether[0] & 1 = 0 and ip[16] >= 224",
            "less 100",
            "broadcast or ether multicast",
            "host 2001:db8::1",
        ] {
            assert!(read(text).is_ok(), "{text}: {:?}", read(text));
        }
        for text in [
            "vlan 5",
            "tcp port",
            "port eighty",
            "host example.org",
            "(tcp",
            "tcp and",
            "gateway a",
            "ip[",
            "1 = 2 = 3",
            "ip[0:3] = 1",
            "tcp )",
        ] {
            assert!(read(text).is_err(), "{text}");
        }
        let deep = format!("{}tcp{}", "(".repeat(1000), ")".repeat(1000));
        assert!(read(&deep).is_err());
    }

    #[test]
    fn both_words_that_join_bind_alike_from_the_left() {
        let [a, b, c] = ["ip", "arp", "ip6"].map(|text| read(text).expect("a filter"));
        assert_eq!(read("ip or arp and ip6"), Ok(All(vec![Any(vec![a.clone(), b.clone()]), c.clone()])));
        assert_eq!(read("ip and arp or ip6"), Ok(Any(vec![All(vec![a, b]), c])));
    }
}

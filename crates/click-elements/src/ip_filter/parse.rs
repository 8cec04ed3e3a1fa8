//! Reads expressions. Source: the documentation of Click's `IPClassifier`.

use millstream_isa::Cond;

use millstream_click::arguments::{AddressNames, ether, ip, net, unsigned};
use millstream_click::{Error, SpannedText};

/// A field that a test reads.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) enum FilterField {
    /// 2 or 4 bytes of the Ethernet header, which is in front of the IP header.
    Link { offset: i32, bytes: u32 },
    /// 1, 2 or 4 bytes of the IP header.
    Header { offset: i32, bytes: u32 },
    /// 1, 2 or 4 bytes behind the IP header, in a first fragment.
    Transport { offset: i32, bytes: u32 },
}

/// A comparison under a mask.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct FieldTest {
    pub(super) field: FilterField,
    pub(super) mask: u32,
    pub(super) cond: Cond,
    pub(super) value: u32,
}

/// An expression.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum FilterExpression {
    Constant(bool),
    Test(FieldTest),
    Not(Box<FilterExpression>),
    All(Vec<FilterExpression>),
    Any(Vec<FilterExpression>),
}

const DEEPEST: u32 = 64;
pub(crate) const PROTOCOLS: &[(&str, u32)] =
    &[("icmp", 1), ("igmp", 2), ("ipip", 4), ("tcp", 6), ("udp", 17)];
/// Words that may follow `ip proto`: those, and IANA's names of others.
pub(crate) const NUMBERED: &[(&str, u32)] = &[
    ("icmp", 1),
    ("igmp", 2),
    ("ggp", 3),
    ("ipip", 4),
    ("tcp", 6),
    ("egp", 8),
    ("udp", 17),
    ("dccp", 33),
    ("ipv6", 41),
    ("ip6", 41),
    ("rsvp", 46),
    ("gre", 47),
    ("esp", 50),
    ("ah", 51),
    ("icmp6", 58),
    ("ipv6-icmp", 58),
    ("ospf", 89),
    ("pim", 103),
    ("vrrp", 112),
    ("l2tp", 115),
    ("sctp", 132),
    ("udplite", 136),
];
const TCP: u32 = 6;
const UDP: u32 = 17;
const ICMP: u32 = 1;
pub(crate) const PORTS: &[(&str, u32)] = &[
    ("echo", 7),
    ("discard", 9),
    ("daytime", 13),
    ("chargen", 19),
    ("ftp-data", 20),
    ("ftp", 21),
    ("ssh", 22),
    ("telnet", 23),
    ("smtp", 25),
    ("domain", 53),
    ("dns", 53),
    ("bootps", 67),
    ("bootpc", 68),
    ("tftp", 69),
    ("finger", 79),
    ("www", 80),
    ("http", 80),
    ("pop3", 110),
    ("sunrpc", 111),
    ("auth", 113),
    ("nntp", 119),
    ("ntp", 123),
    ("netbios-ns", 137),
    ("netbios-dgm", 138),
    ("netbios-ssn", 139),
    ("snmp", 161),
    ("snmp-trap", 162),
    ("irc", 194),
    ("imap3", 220),
    ("https", 443),
    ("rip", 520),
    ("route", 520),
    ("imaps", 993),
    ("pop3s", 995),
    ("pptp", 1723),
];
const ICMP_TYPES: &[(&str, u32)] = &[
    ("echo-reply", 0),
    ("unreachable", 3),
    ("sourcequench", 4),
    ("redirect", 5),
    ("echo", 8),
    ("routeradvert", 9),
    ("routersolicit", 10),
    ("timeexceeded", 11),
    ("parameterproblem", 12),
    ("timestamp", 13),
    ("timestamp-reply", 14),
    ("inforeq", 15),
    ("inforeq-reply", 16),
    ("maskreq", 17),
    ("maskreq-reply", 18),
];
const FLAGS: &[(&str, u32)] = &[("fin", 1), ("syn", 2), ("rst", 4), ("psh", 8), ("ack", 16), ("urg", 32)];

/// Which addresses or ports are meant.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
enum DirectionQualifier {
    Source,
    Destination,
    #[default]
    Either,
    Both,
}

/// Qualifiers in front of a value.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
struct ValueQualifier {
    side: DirectionQualifier,
    protocol: Option<u32>,
    kind: Option<&'static str>,
}

/// Kind of values that are Ethernet addresses.
const ETHER: &str = "ether";
const KINDS: &[&str] =
    &["host", "net", "port", "proto", "type", "opt", "vers", "hl", "id", "tos", "dscp", "ttl", "len", "win"];

struct IpFilterParser<'t> {
    tokens: Vec<SpannedText>,
    at: usize,
    whole: &'t SpannedText,
    names: &'t AddressNames,
    /// Qualifiers of the last value, for values that leave them out.
    last: ValueQualifier,
    depth: u32,
}

/// Reads an expression of these words.
pub(super) fn expression(
    words: &[SpannedText],
    whole: &SpannedText,
    names: &AddressNames,
) -> Result<FilterExpression, Error> {
    let tokens: Vec<SpannedText> = words.iter().flat_map(tokens).collect();
    if let [only] = &tokens[..]
        && matches!(only.text.as_str(), "-" | "any" | "all")
    {
        return Ok(FilterExpression::Constant(true));
    }
    let mut parser =
        IpFilterParser { tokens, at: 0, whole, names, last: ValueQualifier::default(), depth: 0 };
    let found = parser.any()?;
    match parser.peek() {
        "" => Ok(found),
        _ => Err(parser.error("there is more behind the expression")),
    }
}

/// Splits a word at marks.
fn tokens(word: &SpannedText) -> Vec<SpannedText> {
    const MARKS: [&str; 13] = ["&&", "||", "==", "!=", "<=", ">=", "(", ")", "!", "<", ">", "&", "="];
    let (mut all, mut from, mut at) = (Vec::new(), 0, 0);
    let text = &word.text;
    let mut push = |from: usize, to: usize| {
        if from < to {
            all.push(SpannedText { text: text[from..to].to_owned(), span: word.span });
        }
    };
    while at < text.len() {
        let Some(rest) = text.get(at..) else {
            at += 1;
            continue;
        };
        match MARKS.iter().find(|mark| rest.starts_with(**mark)) {
            Some(mark) => {
                push(from, at);
                push(at, at + mark.len());
                at += mark.len();
                from = at;
            }
            None => at += 1,
        }
    }
    push(from, text.len());
    all
}

fn known(names: &[(&str, u32)], word: &str) -> Option<u32> {
    names.iter().find(|(name, _)| *name == word).map(|(_, value)| *value)
}

fn test(field: FilterField, mask: u32, cond: Cond, value: u32) -> FilterExpression {
    FilterExpression::Test(FieldTest { field, mask, cond, value })
}

fn protocol_is(protocol: u32) -> FilterExpression {
    test(FilterField::Header { offset: 9, bytes: 1 }, u32::MAX, Cond::Eq, protocol)
}

impl IpFilterParser<'_> {
    fn peek(&self) -> &str {
        self.tokens.get(self.at).map_or("", |t| t.text.as_str())
    }

    fn ahead(&self, n: usize) -> &str {
        self.tokens.get(self.at + n).map_or("", |t| t.text.as_str())
    }

    fn error(&self, message: &str) -> Error {
        let place = self.tokens.get(self.at);
        let found = place.map_or("the end".to_owned(), |t| format!("`{}`", t.text));
        let error =
            Error::new(place.map_or(self.whole.span, |t| t.span), format!("{message}; found {found}"));
        let known = [PROTOCOLS, FLAGS, PORTS].concat();
        error.nearest(self.peek(), known.iter().map(|(name, _)| *name).chain(KINDS.iter().copied()))
    }

    fn take(&mut self, words: &[&str]) -> bool {
        let found = words.contains(&self.peek());
        self.at += usize::from(found);
        found
    }

    fn any(&mut self) -> Result<FilterExpression, Error> {
        let mut parts = vec![self.all()?];
        while self.take(&["or", "||"]) {
            parts.push(self.all()?);
        }
        if self.take(&["?"]) {
            let condition = one(parts, FilterExpression::Any);
            let yes = self.any()?;
            if !self.take(&[":"]) {
                return Err(self.error("expected ` : `"));
            }
            let no = self.any()?;
            let not = FilterExpression::Not(Box::new(condition.clone()));
            return Ok(FilterExpression::Any(vec![
                FilterExpression::All(vec![condition, yes]),
                FilterExpression::All(vec![not, no]),
            ]));
        }
        Ok(one(parts, FilterExpression::Any))
    }

    fn all(&mut self) -> Result<FilterExpression, Error> {
        let mut parts = vec![self.unary()?];
        loop {
            let explicit = self.take(&["and", "&&"]);
            if !explicit && matches!(self.peek(), "" | "or" | "||" | ")" | "?" | ":") {
                return Ok(one(parts, FilterExpression::All));
            }
            parts.push(self.unary()?);
        }
    }

    fn unary(&mut self) -> Result<FilterExpression, Error> {
        if self.depth == DEEPEST {
            return Err(self.error("too many parentheses"));
        }
        self.depth += 1;
        let found = if self.take(&["not", "!"]) {
            FilterExpression::Not(Box::new(self.unary()?))
        } else if self.take(&["("]) {
            let inner = self.any()?;
            if !self.take(&[")"]) {
                return Err(self.error("expected `)`"));
            }
            inner
        } else {
            self.primitive()?
        };
        self.depth -= 1;
        Ok(found)
    }

    fn primitive(&mut self) -> Result<FilterExpression, Error> {
        if self.take(&["true"]) {
            return Ok(FilterExpression::Constant(true));
        }
        if self.take(&["false"]) {
            return Ok(FilterExpression::Constant(false));
        }
        let begin = self.at;
        let (mut side, mut has_side) = self.side();
        if self.take(&["ip"]) {
            if let Some(found) = self.flag() {
                return Ok(found);
            }
            // `ip src` is the same as `src ip`.
            if !has_side {
                (side, has_side) = self.side();
            }
        }
        if self.take(&["ether"]) {
            if !has_side {
                side = self.side().0;
            }
            self.take(&["host"]);
            self.last = ValueQualifier { side, protocol: None, kind: Some(ETHER) };
            return self.valued(self.last);
        }
        if self.take(&["tcpudp"]) {
            let (own, has_own) = self.side();
            if !self.take(&["port"]) && known(PORTS, self.peek()).is_none() {
                return Ok(FilterExpression::Any(vec![protocol_is(TCP), protocol_is(UDP)]));
            }
            let side = if has_own { own } else { side };
            self.last = ValueQualifier { side, protocol: None, kind: Some("port") };
            return self.valued(self.last);
        }
        let mut q = ValueQualifier { side, ..ValueQualifier::default() };
        let named = self.protocol(&mut q)?;
        if let Some(found) = named {
            return Ok(found);
        }
        if let Some(kind) = KINDS.iter().find(|k| **k == self.peek()) {
            q.kind = Some(kind);
            self.at += 1;
        } else if q.protocol == Some(ICMP) && known(ICMP_TYPES, self.peek()).is_some() {
            q.kind = Some("type");
        } else if matches!(q.protocol, Some(TCP | UDP)) && known(PORTS, self.peek()).is_some() {
            q.kind = Some("port");
        } else if q.protocol.is_none() {
            let is_bare = self.at == begin;
            if let Some(found) = self.bare(has_side.then_some(side), is_bare)? {
                return Ok(found);
            }
            // Qualifiers that are left out are those of the value before.
            let side = if has_side { q.side } else { self.last.side };
            q = ValueQualifier { side, ..self.last };
        } else if let (Some(protocol), false) = (q.protocol, has_side) {
            return Ok(protocol_is(protocol));
        }
        self.last = q;
        self.valued(q)
    }

    /// `src`, `dst`, `src or dst`, `src and dst`; and true if one of these is there.
    fn side(&mut self) -> (DirectionQualifier, bool) {
        let (first, second, third) = (self.peek(), self.ahead(1), self.ahead(2));
        let both = matches!((first, third), ("src", "dst" | "dest") | ("dst" | "dest", "src"));
        let (side, len) = match (first, second) {
            (_, "or" | "||") if both => (DirectionQualifier::Either, 3),
            (_, "and" | "&&") if both => (DirectionQualifier::Both, 3),
            ("src", _) => (DirectionQualifier::Source, 1),
            ("dst" | "dest", _) => (DirectionQualifier::Destination, 1),
            _ => (DirectionQualifier::Either, 0),
        };
        self.at += len;
        (side, len > 0)
    }

    /// A protocol in front of something, `frag` and its like, or bytes at an offset.
    fn protocol(&mut self, q: &mut ValueQualifier) -> Result<Option<FilterExpression>, Error> {
        let word = self.peek().to_owned();
        if let Some((base, range)) = word.split_once('[') {
            return self.bytes_at(base, range).map(Some);
        }
        match known(PROTOCOLS, &word) {
            Some(protocol) => q.protocol = Some(protocol),
            None => return Ok(self.flag()),
        }
        self.at += 1;
        Ok(None)
    }

    /// Words that are tests by themselves.
    fn flag(&mut self) -> Option<FilterExpression> {
        let tos = FilterField::Header { offset: 1, bytes: 1 };
        let fragment = FilterField::Header { offset: 6, bytes: 2 };
        let found = match self.peek() {
            "frag" => test(fragment, 0x3fff, Cond::Ne, 0),
            "unfrag" => test(fragment, 0x3fff, Cond::Eq, 0),
            // Packets that have met congestion, too.
            "ect" => test(tos, 3, Cond::Ne, 0),
            "ce" => test(tos, 3, Cond::Eq, 3),
            _ => return None,
        };
        self.at += 1;
        Some(found)
    }

    /// A value or name alone, or behind a side; its form determines the kind. `None` for a value whose
    /// qualifiers are those of the one before.
    fn bare(
        &mut self,
        said: Option<DirectionQualifier>,
        is_bare: bool,
    ) -> Result<Option<FilterExpression>, Error> {
        let word = self.peek().to_owned();
        if let Some(flag) = known(FLAGS, &word) {
            self.at += 1;
            return Ok(Some(option(flag)));
        }
        // The form of a value counts, also behind an operator.
        let value = self.at + usize::from(["==", "=", "!="].contains(&word.as_str()));
        let end = SpannedText { text: String::new(), span: self.whole.span };
        let token = self.tokens.get(value).cloned().unwrap_or(end);
        let kind = if ip(&token, self.names).is_ok() && !token.text.contains('/') {
            "host"
        } else if net(&token, self.names).is_ok() {
            "net"
        } else if known(PORTS, &word).is_some() {
            "port"
        } else if ether(&token, self.names).is_ok() {
            ETHER
        } else if self.last.kind.is_some()
            && (said.is_some()
                || is_bare && word.starts_with(|c: char| c.is_ascii_digit() || "<>=!&".contains(c)))
        {
            return Ok(None);
        } else {
            return Err(self.error("expected a test like `src host 10.0.0.1`, `tcp` or `dst port 80`"));
        };
        let side = if let Some(side) = said {
            side
        } else if is_bare && self.last.kind == Some(kind) {
            self.last.side
        } else {
            DirectionQualifier::Either
        };
        let protocol =
            if self.last.kind == Some("port") && kind == "port" { self.last.protocol } else { None };
        let q = ValueQualifier { side, kind: Some(kind), protocol };
        self.last = q;
        self.valued(q).map(Some)
    }

    /// Comparison and value behind a qualifier.
    fn valued(&mut self, q: ValueQualifier) -> Result<FilterExpression, Error> {
        let kind = q.kind.unwrap_or_default();
        let (mask, cond) = self.comparison(kind)?;
        if cond.is_none() && mask != u32::MAX && self.ends() {
            return self.compare(q, mask, Cond::Ne, 0);
        }
        let cond = cond.unwrap_or(Cond::Eq);
        match kind {
            "net" => {
                let text = self.token()?;
                let (address, mut of_net) = net(&text, self.names)?;
                if self.take(&["mask"]) {
                    let text = self.token()?;
                    of_net = ip(&text, self.names)?;
                }
                self.compare(q, mask & of_net, cond, address & of_net)
            }
            "host" => {
                let text = self.token()?;
                match (ip(&text, self.names), ether(&text, self.names)) {
                    (Err(_), Ok(address)) if mask == u32::MAX => self.link(q.side, cond, address),
                    (address, _) => self.compare(q, mask, cond, address?),
                }
            }
            ETHER if mask != u32::MAX => Err(self.error("an Ethernet address has no mask")),
            ETHER => {
                let text = self.token()?;
                let address = ether(&text, self.names)?;
                self.link(q.side, cond, address)
            }
            "opt" => {
                let text = self.token()?;
                let flag = known(FLAGS, &text.text);
                flag.map(option)
                    .ok_or_else(|| Error::new(text.span, format!("`{}` is no TCP option", text.text)))
            }
            _ => {
                let value = self.number(kind)?;
                self.compare(q, mask, cond, value)
            }
        }
    }

    /// `& MASK`, all bits where it is not there, and the operator in front of a value.
    fn comparison(&mut self, kind: &str) -> Result<(u32, Option<Cond>), Error> {
        let mask = match (self.take(&["&"]), kind) {
            (false, _) => u32::MAX,
            (true, "host" | "net") => {
                let text = self.token()?;
                ip(&text, self.names)?
            }
            (true, _) => self.number(kind)?,
        };
        let cond = match self.peek() {
            "==" | "=" => Some(Cond::Eq),
            "!=" => Some(Cond::Ne),
            "<" => Some(Cond::Lt),
            ">" => Some(Cond::Gt),
            "<=" => Some(Cond::Le),
            ">=" => Some(Cond::Ge),
            _ => None,
        };
        self.at += usize::from(cond.is_some());
        Ok((mask, cond))
    }

    /// No value comes here: `tos & 3` by itself means that one of these bits is set.
    fn ends(&self) -> bool {
        matches!(self.peek(), "" | "or" | "||" | "and" | "&&" | ")" | "?" | ":")
    }

    fn token(&mut self) -> Result<SpannedText, Error> {
        let Some(token) = self.tokens.get(self.at).cloned() else {
            return Err(self.error("a value is missing"));
        };
        self.at += 1;
        Ok(token)
    }

    fn number(&mut self, kind: &str) -> Result<u32, Error> {
        let text = self.token()?;
        let names: &[(&str, u32)] = match kind {
            "port" => PORTS,
            "type" => ICMP_TYPES,
            "proto" => NUMBERED,
            _ => &[],
        };
        match known(names, &text.text) {
            Some(value) => Ok(value),
            None => unsigned(&text, u64::from(u32::MAX))
                .map(|value| value as u32)
                .map_err(|e| e.nearest(&text.text, names.iter().map(|(name, _)| *name))),
        }
    }

    /// Comparison of Ethernet addresses.
    fn link(
        &mut self,
        side: DirectionQualifier,
        cond: Cond,
        address: [u8; 6],
    ) -> Result<FilterExpression, Error> {
        let field = |offset: i32, bytes: &[u8]| {
            let value = bytes.iter().fold(0, |value, byte| value << 8 | u32::from(*byte));
            test(FilterField::Link { offset, bytes: bytes.len() as u32 }, u32::MAX, Cond::Eq, value)
        };
        // Words of the header begin two bytes in front of it.
        let destination = FilterExpression::All(vec![field(0, &address[..2]), field(2, &address[2..])]);
        let source = FilterExpression::All(vec![field(6, &address[..4]), field(10, &address[4..])]);
        let found = match side {
            DirectionQualifier::Source => source,
            DirectionQualifier::Destination => destination,
            DirectionQualifier::Either => FilterExpression::Any(vec![source, destination]),
            DirectionQualifier::Both => FilterExpression::All(vec![source, destination]),
        };
        match cond {
            Cond::Eq => Ok(found),
            Cond::Ne => Ok(FilterExpression::Not(Box::new(found))),
            _ => Err(self.error("Ethernet addresses are equal or not")),
        }
    }

    fn compare(
        &mut self,
        q: ValueQualifier,
        mask: u32,
        cond: Cond,
        value: u32,
    ) -> Result<FilterExpression, Error> {
        let value = if matches!(cond, Cond::Eq | Cond::Ne) { value & mask } else { value };
        let header = |offset, bytes| FilterField::Header { offset, bytes };
        // Click has `==` and `>`; their opposites negate the whole: `src or dst port < 80` is true if both
        // ports are below 80, not if only one is.
        let contrary = matches!(cond, Cond::Ne | Cond::Lt | Cond::Le);
        let sides = |source: FilterField, destination: FilterField, mask: u32, value: u32| {
            let (a, b) = (test(source, mask, cond, value), test(destination, mask, cond, value));
            match q.side {
                DirectionQualifier::Source => a,
                DirectionQualifier::Destination => b,
                DirectionQualifier::Either | DirectionQualifier::Both
                    if contrary == (q.side == DirectionQualifier::Either) =>
                {
                    FilterExpression::All(vec![a, b])
                }
                DirectionQualifier::Either | DirectionQualifier::Both => FilterExpression::Any(vec![a, b]),
            }
        };
        let simple = |field, scale: u32, own: u32| {
            test(field, own & mask.wrapping_mul(scale), cond, value.wrapping_mul(scale))
        };
        let of = |protocol, inner| FilterExpression::All(vec![protocol_is(protocol), inner]);
        Ok(match q.kind.unwrap_or_default() {
            "host" | "net" => sides(header(12, 4), header(16, 4), mask, value),
            "port" => {
                let port = |offset| FilterField::Transport { offset, bytes: 2 };
                let ports = sides(port(0), port(2), mask, value);
                match q.protocol {
                    Some(protocol @ (TCP | UDP)) => of(protocol, ports),
                    Some(_) => return Err(self.error("only TCP and UDP have ports")),
                    None => FilterExpression::All(vec![
                        FilterExpression::Any(vec![protocol_is(TCP), protocol_is(UDP)]),
                        ports,
                    ]),
                }
            }
            "proto" => simple(header(9, 1), 1, u32::MAX),
            "type" => of(ICMP, test(FilterField::Transport { offset: 0, bytes: 1 }, mask, cond, value)),
            "win" => of(TCP, test(FilterField::Transport { offset: 14, bytes: 2 }, mask, cond, value)),
            "vers" => simple(header(0, 1), 16, 0xf0),
            "hl" => simple(header(0, 1), 1, 0x0f),
            "id" => simple(header(4, 2), 1, u32::MAX),
            "tos" => simple(header(1, 1), 1, u32::MAX),
            "dscp" => simple(header(1, 1), 4, 0xfc),
            "ttl" => simple(header(8, 1), 1, u32::MAX),
            "len" => simple(header(2, 2), 1, u32::MAX),
            _ => return Err(self.error("expected what the value is of")),
        })
    }

    /// `ip[POS:LEN] VALUE` and its like.
    fn bytes_at(&mut self, base: &str, range: &str) -> Result<FilterExpression, Error> {
        let parsed = range.strip_suffix(']').and_then(|r| {
            let (from, len) = r.split_once(':').unwrap_or((r, "1"));
            Some((from.parse::<i32>().ok().filter(|o| *o < 60)?, len.parse::<u32>().ok()?))
        });
        let Some((offset, bytes @ (1 | 2 | 4))) = parsed else {
            return Err(self.error("expected a place like ip[9:1], of 1, 2 or 4 bytes"));
        };
        let field = match base {
            "ip" if offset + bytes as i32 <= 20 => FilterField::Header { offset, bytes },
            "transp" => FilterField::Transport { offset, bytes },
            _ if known(PROTOCOLS, base).is_some() => FilterField::Transport { offset, bytes },
            _ => return Err(self.error("expected bytes of ip (its first 20), transp, tcp, udp or icmp")),
        };
        self.at += 1;
        let (mask, cond) = self.comparison("")?;
        let (cond, value) = match cond {
            None if mask != u32::MAX && self.ends() => (Cond::Ne, 0),
            _ => (cond.unwrap_or(Cond::Eq), self.number("")?),
        };
        let value = if matches!(cond, Cond::Eq | Cond::Ne) { value & mask } else { value };
        let found = test(field, mask, cond, value);
        Ok(match known(PROTOCOLS, base) {
            Some(protocol) => FilterExpression::All(vec![protocol_is(protocol), found]),
            None => found,
        })
    }
}

/// A TCP flag is set.
fn option(flag: u32) -> FilterExpression {
    let flags = FilterField::Transport { offset: 13, bytes: 1 };
    FilterExpression::All(vec![protocol_is(TCP), test(flags, flag, Cond::Ne, 0)])
}

fn one(
    mut parts: Vec<FilterExpression>,
    many: fn(Vec<FilterExpression>) -> FilterExpression,
) -> FilterExpression {
    if parts.len() == 1 { parts.remove(0) } else { many(parts) }
}

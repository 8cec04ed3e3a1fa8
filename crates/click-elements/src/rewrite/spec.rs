//! Patterns of rewriters: the new form of a flow.

use std::fmt;
use std::net::Ipv4Addr;

use super::FlowKeyKind;
use millstream_click::arguments::{ip, prefix, unsigned};
use millstream_click::{ElementSetup, Error, SpannedText};

/// New form of a flow; fields that are not given stay.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct RewritePattern {
    pub(super) source: Option<u32>,
    /// Number of further addresses behind that one to choose from.
    pub(super) more_sources: u32,
    pub(super) destination: Option<u32>,
    /// The first source port, and the number of further ones to choose from.
    pub(super) source_port: Option<(u16, u16)>,
    pub(super) destination_port: Option<u16>,
    /// True if it is written with ports, be they given or not.
    pub(super) has_ports: bool,
    pub(super) choice: AllocationOrder,
    /// Offset of the next port to be tried.
    pub(super) next: u32,
}

/// Range to choose from: the first value, and the number of further ones.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum AllocationRange {
    /// Source ports or identifiers.
    Port(u16, u16),
    /// Source addresses.
    Address(u32, u32),
}

impl AllocationRange {
    pub(super) fn more(self) -> i64 {
        match self {
            AllocationRange::Port(_, more) => i64::from(more),
            AllocationRange::Address(_, more) => i64::from(more),
        }
    }
}

impl RewritePattern {
    /// The range from which a flow gets a value that no other has.
    pub(super) fn varied(&self) -> Option<AllocationRange> {
        match (self.source, self.source_port) {
            (Some(first), None) if self.more_sources > 0 => {
                Some(AllocationRange::Address(first, self.more_sources))
            }
            (_, Some((first, more))) if more > 0 => Some(AllocationRange::Port(first, more)),
            _ => None,
        }
    }
}

/// Which of several is tried first.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) enum AllocationOrder {
    /// The packet's own port, then any.
    #[default]
    Own,
    Any,
    /// The one behind the last that was given out.
    Next,
}

/// Reads a pattern, which may be a name, and the outputs of a flow and of its answers behind it. `own` is the
/// name of a pattern without one.
pub(super) fn flow_spec(
    setup: &mut ElementSetup<'_>,
    own: &str,
    argument: &SpannedText,
    all: &[SpannedText],
) -> Result<(RewritePattern, [u32; 2]), Error> {
    let most = u64::from(setup.outputs.max(1) - 1);
    let output = |text: &SpannedText| Ok::<u32, Error>(unsigned(text, most)? as u32);
    let [pattern @ .., forward, reply] = all else {
        return Err(Error::new(argument.span, "expected a pattern, OUTPUT and REPLY_OUTPUT"));
    };
    let [first, ..] = pattern else {
        return Err(Error::new(argument.span, "expected a pattern in front of OUTPUT and REPLY_OUTPUT"));
    };
    let known = setup.patterns.get(&first.text).filter(|_| pattern.len() == 1).cloned();
    let (words, name) = match &known {
        Some(words) => (&words[..], first.text.as_str()),
        None => (pattern, own),
    };
    let next = setup.shared_number(&format!("pattern {name}"));
    let pattern = RewritePattern { next, ..self::pattern(setup, argument, words)? };
    Ok((pattern, [output(forward)?, output(reply)?]))
}

/// `SADDR SPORT DADDR DPORT`, `SADDR DADDR SPORT` or `SADDR DADDR`; a minus keeps the packet's value.
fn pattern(
    setup: &ElementSetup<'_>,
    argument: &SpannedText,
    words: &[SpannedText],
) -> Result<RewritePattern, Error> {
    let (source, source_port, destination, destination_port) = match words {
        [s, d] => (s, None, d, None),
        [s, d, p] => (s, Some(p), d, None),
        [s, p, d, q] => (s, Some(p), d, Some(q)),
        _ => {
            return Err(Error::new(argument.span, "no such pattern, and none of SADDR SPORT DADDR DPORT")
                .help("patterns have names by IPRewriterPatterns(NAME SADDR SPORT DADDR DPORT)"));
        }
    };
    let given = |text: &SpannedText| text.text != "-";
    let mut found = RewritePattern { has_ports: words.len() > 2, ..RewritePattern::default() };
    if given(source) {
        let bad = |error: Error| worded("bad source address", error);
        let (first, more, choice) = sources(setup, source).map_err(bad)?;
        if more > 0 && source_port.is_some() {
            return Err(Error::new(source.span, "a pattern with ports has one source address")
                .help("several addresses to choose from are SADDR DADDR: `1.0.0.1-1.0.0.9 -`"));
        }
        (found.source, found.more_sources, found.choice) = (Some(first), more, choice);
    }
    if given(destination) {
        let address = ip(destination, setup.arguments.names);
        found.destination = Some(address.map_err(|error| worded("bad destination address", error))?);
    }
    let port = |text: &SpannedText| Ok::<u16, Error>(unsigned(text, 65_535)? as u16);
    if let Some(text) = source_port.filter(|text| given(text)) {
        let (range, choice) = chosen(&text.text);
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        let bad = |error: Error| worded("bad source port", error);
        let part = |part: &str| port(&SpannedText { text: part.to_owned(), span: text.span }).map_err(bad);
        let (first, last) = (part(first)?, part(last)?);
        let more = last.checked_sub(first);
        let more = more.ok_or_else(|| bad(Error::new(text.span, "the range of ports goes backwards")))?;
        (found.source_port, found.choice) = (Some((first, more)), choice);
    }
    let port = destination_port.filter(|text| given(text)).map(port).transpose();
    found.destination_port = port.map_err(|error| worded("bad destination port", error))?;
    Ok(found)
}

/// An error in Click's words; its own are the help.
fn worded(message: &str, error: Error) -> Error {
    let help = match &error.help {
        Some(help) => format!("{}: {help}", error.message),
        None => error.message.clone(),
    };
    Error { message: message.to_owned(), help: Some(help.into()), ..error }
}

impl fmt::Display for RewritePattern {
    /// The pattern as the handler `patterns` has it: `SADDR SPORT DADDR DPORT`, or without ports.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let address = |address: Option<u32>| {
            address.map_or_else(|| "-".to_owned(), |address| Ipv4Addr::from(address).to_string())
        };
        let source = match (self.source, self.more_sources) {
            (Some(first), more @ 1..) => {
                format!("{}-{}", Ipv4Addr::from(first), Ipv4Addr::from(first.saturating_add(more)))
            }
            (source, _) => address(source),
        };
        let destination = address(self.destination);
        if !self.has_ports {
            return write!(f, "{source} {destination}");
        }
        let port = match self.source_port {
            None => "-".to_owned(),
            Some((first, 0)) => first.to_string(),
            Some((first, more)) => format!("{first}-{}", u32::from(first) + u32::from(more)),
        };
        let other = self.destination_port.map_or_else(|| "-".to_owned(), |port| port.to_string());
        write!(f, "{source} {port} {destination} {other}")
    }
}

/// A range, and the choice by the letter behind it.
fn chosen(text: &str) -> (&str, AllocationOrder) {
    match (text.strip_suffix('#'), text.strip_suffix('?')) {
        (Some(range), _) => (range, AllocationOrder::Next),
        (None, Some(range)) => (range, AllocationOrder::Any),
        (None, None) => (text, AllocationOrder::Own),
    }
}

/// The first source address, the number of further ones, and the choice of the first to try: `ADDR`,
/// `ADDR-ADDR2` or `ADDR/PREFIX`.
fn sources(setup: &ElementSetup<'_>, text: &SpannedText) -> Result<(u32, u32, AllocationOrder), Error> {
    let names = setup.arguments.names;
    let (range, choice) = chosen(&text.text);
    let part = |part: &str| SpannedText { text: part.to_owned(), span: text.span };
    let whole = part(range);
    // Names may have a minus in them.
    if let Ok(one) = ip(&whole, names) {
        return Ok((one, 0, choice));
    }
    if let Some((first, last)) = range.split_once('-') {
        let (first, last) = (ip(&part(first), names)?, ip(&part(last), names)?);
        let more = last.checked_sub(first);
        let more = more.ok_or_else(|| Error::new(text.span, "the range of addresses goes backwards"))?;
        return Ok((first, more, choice));
    }
    let (address, mask) = prefix(&whole, names)
        .map_err(|e| e.help("an address, a range `ADDR-ADDR2`, a prefix, or `-` for what the packet has"))?;
    Ok(match !mask {
        0 => (address, 0, choice),
        1 => (address & mask, 1, choice),
        // The first and the last address of a prefix are no host's.
        hosts => ((address & mask) | 1, hosts - 2, choice),
    })
}

impl RewritePattern {
    /// Checks that a rewriter of this kind can do it.
    pub(super) fn fits(
        &self,
        kind: FlowKeyKind,
        setup: &ElementSetup<'_>,
        argument: &SpannedText,
    ) -> Result<(), Error> {
        let class = &setup.element.class;
        let wrong = |what: &str| Err(Error::new(argument.span, format!("`{class}` {what}")));
        let has_ports = self.source_port.is_some() || self.destination_port.is_some();
        match kind {
            FlowKeyKind::Pairs | FlowKeyKind::Hosts if has_ports => wrong("knows no ports: SADDR DADDR"),
            FlowKeyKind::Hosts if self.destination.is_some() => {
                wrong("changes the addresses of sources only: SADDR -")
            }
            _ => Ok(()),
        }
    }
}

//! Names of ports: those that `PortInfo` declares, and well-known ones. Source: PortInfo(n), RFC 6335.

use super::basic::nothing;
use super::ip_filter::PORTS;
use millstream_click::arguments::unsigned;
use millstream_click::class::ElementClass;
use millstream_click::keyword::at;
use millstream_click::{Element, ElementSetup, Error, SpannedText};

pub(super) const CLASSES: &[ElementClass] = &[ElementClass {
    ports: "0/0",
    processing: "a",
    ..ElementClass::filter("PortInfo", "Names ports of TCP and UDP.", &[], nothing)
}
.and(at("NAME PORT[/PROTOCOL] ALIAS..."))];

/// A port, by number or name: of the innermost `PortInfo` that declares the name for this protocol, or else a
/// well-known one.
pub(super) fn named_port(setup: &ElementSetup<'_>, text: &SpannedText, protocol: &str) -> Result<u16, Error> {
    let known = || PORTS.iter().find(|(name, _)| *name == text.text).map(|(_, port)| *port as u16);
    if let Some(port) = declared_port(setup, &text.text, protocol).or_else(known) {
        return Ok(port);
    }
    let names = PORTS.iter().map(|(name, _)| *name);
    unsigned(text, 0xffff).map(|port| port as u16).map_err(|error| error.nearest(&text.text, names))
}

/// The port that a `PortInfo` of the element's compound element, or of one around it, declares.
fn declared_port(setup: &ElementSetup<'_>, name: &str, protocol: &str) -> Option<u16> {
    let mut scope = setup.element.name.as_str();
    loop {
        scope = scope.rsplit_once('/').map_or("", |(outer, _)| outer);
        let is_here = |element: &&Element| {
            element.class == "PortInfo"
                && element.name.rsplit_once('/').map_or("", |(outer, _)| outer) == scope
        };
        let mut arguments = setup.elements().iter().filter(is_here).flat_map(|element| &element.arguments);
        let found = arguments.find_map(|argument| port_of(&argument.text, name, protocol));
        if found.is_some() || scope.is_empty() {
            return found;
        }
    }
}

/// The port that `NAME PORT[/PROTOCOL] ALIAS... # REMARK` gives a name.
fn port_of(text: &str, wanted: &str, protocol: &str) -> Option<u16> {
    let said = text.split('#').next().unwrap_or_default();
    let mut words = said.split_whitespace();
    let (name, number) = (words.next()?, words.next()?);
    let (number, of) = number.split_once('/').unwrap_or((number, protocol));
    let is_named = name == wanted || words.any(|alias| alias == wanted);
    if is_named && of.eq_ignore_ascii_case(protocol) { number.parse().ok() } else { None }
}

#[cfg(test)]
mod tests {
    use super::port_of;

    #[test]
    fn names_and_aliases_have_ports_by_protocol() {
        let cases = [
            ("foo 79/udp", "foo", Some(79)),
            ("foo 80/udp ssh", "ssh", Some(80)),
            ("foo 79/tcp", "foo", None),
            ("foo 79", "foo", Some(79)),
            ("foo 79/udp # ssh 25/udp remark", "ssh", None),
            ("# ssh 26/udp remark", "ssh", None),
            ("", "foo", None),
        ];
        for (text, name, port) in cases {
            assert_eq!(port_of(text, name, "udp"), port, "{text}");
        }
    }
}

//! Properties of the packets in capture files: their link type.
//!
//! A file that packets come from is looked at when the configuration is read ([`Graph::captures`]), as
//! interfaces are. A file that does not exist then is assumed to have Ethernet frames. Numbers are those of
//! draft-ietf-opsawg-pcaplinktype.

use millstream_click::arguments::{string, unsigned};
use millstream_click::build::ElementBuilder;
use millstream_click::class::ElementCodegen;
use millstream_click::packet::{Annotation, PacketValues};
use millstream_click::{Element, ElementSetup, Error, Graph, SpannedText, words};

/// Link types of frames of Ethernet and of packets of IP without a header in front.
pub(super) const ETHERNET: u32 = 1;
pub(super) const RAW_IP: u32 = 101;
/// Bytes of a packet that `ToDump` keeps unless it is told otherwise.
pub(super) const USUAL_SNAP: u64 = 2000;

/// Names of link types. If a number has several, handlers give the first.
const NAMES: [(&str, u32); 18] = [
    ("NULL", 0),
    ("IP", RAW_IP),
    ("ETHER", ETHERNET),
    ("FDDI", 10),
    ("ATM", 100),
    ("RFC1483", 100),
    ("ATM_RFC1483", 100),
    ("802_11", 105),
    ("802.11", 105),
    ("802_11_RADIO", 127),
    ("802.11_RADIO", 127),
    ("SLL", 113),
    ("AIRONET", 120),
    ("HDLC", 104),
    ("PPP_HDLC", 50),
    ("PPP", 9),
    ("SUNATM", 123),
    ("PRISM", 119),
];

/// The name of a link type.
pub(super) fn encapsulation(link: u32) -> String {
    let known = NAMES.iter().find(|(_, number)| *number == link);
    known.map_or_else(|| format!("#{link}"), |(name, _)| (*name).to_owned())
}

/// The link type of a name, or of a number behind `#`.
fn parsed(text: &SpannedText) -> Result<u32, Error> {
    let written = string(text);
    if let Some((_, link)) = NAMES.iter().find(|(name, _)| *name == written) {
        return Ok(*link);
    }
    let number =
        written.strip_prefix('#').map(|number| SpannedText { text: number.to_owned(), span: text.span });
    if let Some(link) = number.and_then(|number| unsigned(&number, 0xffff).ok()) {
        return Ok(link as u32);
    }
    let message = format!("`{written}` is no link type of captures");
    Err(Error::new(text.span, message).nearest(&written, NAMES.iter().map(|(name, _)| *name)))
}

/// The file that an element reads, as its arguments say it.
fn file_of(element: &Element) -> Option<String> {
    let named = |argument: &&SpannedText| argument.text.starts_with("FILENAME ");
    let argument = element.arguments.iter().find(named).or_else(|| element.arguments.first())?;
    let text = argument.text.strip_prefix("FILENAME ").unwrap_or(&argument.text).trim().to_owned();
    Some(string(&SpannedText { text, span: argument.span }))
}

/// The capture files that packets of a configuration come from.
pub fn capture_files(graph: &Graph) -> Vec<String> {
    graph.elements.iter().filter(|element| element.class == "FromDump").filter_map(file_of).collect()
}

/// Link type of a capture file.
pub(super) fn link_of(setup: &ElementSetup<'_>, name: &str) -> u32 {
    setup.captures().iter().find(|capture| capture.name == name).map_or(ETHERNET, |capture| capture.link)
}

/// The link type that a file is to have, by ENCAP, or by the sources that USE_ENCAP_FROM names.
pub(super) fn encap(setup: &mut ElementSetup<'_>) -> Result<u32, Error> {
    let said = setup.arguments.next("ENCAP");
    match (said, setup.arguments.keyword("USE_ENCAP_FROM")) {
        (Some(_), Some(text)) => Err(Error::new(text.span, "ENCAP and USE_ENCAP_FROM exclude each other")),
        (Some(text), None) => parsed(&text),
        (None, Some(text)) => from_sources(setup, &text),
        (None, None) => Ok(ETHERNET),
    }
}

fn from_sources(setup: &ElementSetup<'_>, text: &SpannedText) -> Result<u32, Error> {
    let mut found = None;
    for name in words(text) {
        let element = setup.named(&name.text).ok_or_else(|| {
            let all = setup.elements().iter().map(|element| element.name.as_str());
            Error::new(name.span, format!("there is no element `{}`", name.text)).nearest(&name.text, all)
        })?;
        let link = match element.class.as_str() {
            "FromDump" => link_of(setup, &file_of(element).unwrap_or_default()),
            "FromDevice" | "PollDevice" => ETHERNET,
            class => {
                let message = format!("`{class}` does not say what its packets are encapsulated in");
                return Err(Error::new(name.span, message).help("FromDump and FromDevice do"));
            }
        };
        if *found.get_or_insert(link) != link {
            return Err(Error::new(name.span, "these sources have packets of different link types"));
        }
    }
    found.ok_or_else(|| Error::new(text.span, "USE_ENCAP_FROM lacks the names of elements"))
}

/// Notes that packets of IP begin with their header.
pub(super) struct RawIpSource;

impl ElementCodegen for RawIpSource {
    fn build(&self, code: &mut ElementBuilder<'_, '_>, _: u32, packet: PacketValues) {
        let (network, yes) = (code.at(packet.data, 0), code.truth(true));
        code.out(0, packet.with(Annotation::Network, network).with(Annotation::HasNetwork, yes));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn link_types_have_names_and_numbers() {
        let link = |text: &str| parsed(&SpannedText { text: text.into(), ..SpannedText::default() }).ok();
        assert_eq!([link("IP"), link("ETHER"), link("802.11"), link("#147")], [101, 1, 105, 147].map(Some));
        assert_eq!([link("ip"), link("#"), link("#x"), link("7")], [None; 4]);
        assert_eq!(
            ["101", "1", "105", "147"].map(|n| encapsulation(n.parse().unwrap())),
            ["IP", "ETHER", "802_11", "#147"]
        );
    }
}

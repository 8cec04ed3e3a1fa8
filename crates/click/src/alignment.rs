//! Alignment of packets, for readers of configurations: what Click's `click-align` does for machines that read
//! words at multiples of their size only. The compiler itself needs no aligned packets.
//!
//! Elements that read headers want them at a multiple of four bytes. Wants are passed on to the elements in front;
//! `Align` elements are put where packets do not come as they are wanted, and those that make no difference are left
//! out.

use crate::config::SpannedText;
use crate::graph::{Element, ElementConnection, ElementPort, Graph};

/// Position of packets in memory: an offset from the multiples of a number.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct PacketAlignment {
    modulus: i64,
    offset: i64,
}

/// Nothing is known or wanted.
const ANY: PacketAlignment = PacketAlignment { modulus: 1, offset: 0 };
/// `Align` elements in front of each other that are looked at, at most: those of a ring never end.
const MOST_ROUNDS: usize = 1 << 12;
/// Alignment of words.
const WORD: i64 = 4;
/// An IP header behind the Ethernet header at a multiple of four.
const FRAME: PacketAlignment = PacketAlignment { modulus: WORD, offset: 2 };

/// Sources whose frames have aligned IP headers.
const DEVICES: &[&str] = &["FromDevice", "PollDevice", "FromHost", "FromLinux"];
/// Destinations that take such frames only.
const HOSTS: &[&str] = &["ToHost", "ToLinux", "ToHostSniffers"];
/// Elements that read an IP header at an offset.
const HEADER_CHECKS: &[&str] = &["CheckIPHeader", "CheckIPHeader2"];
/// Elements that look their alignment up in `AlignmentInfo`.
const INFORMED: &[&str] =
    &["Classifier", "CheckIPHeader", "CheckIPHeader2", "ICMPIPEncap", "ICMPPingEncap", "UDPIPEncap"];
/// Elements whose outputs have packets as they come, beside those that move their beginnings.
const PASSING: &[&str] = &[
    "Classifier",
    "IPClassifier",
    "IPFilter",
    "MarkIPHeader",
    "CheckIPHeader",
    "CheckIPHeader2",
    "CheckTCPHeader",
    "CheckUDPHeader",
    "CheckICMPHeader",
    "CheckLength",
    "Counter",
    "AverageCounter",
    "DecIPTTL",
    "DropBroadcasts",
    "FixIPSrc",
    "GetIPAddress",
    "HostEtherFilter",
    "IPPrint",
    "Null",
    "Paint",
    "PaintSwitch",
    "PaintTee",
    "Print",
    "Queue",
    "SetIPAddress",
    "SetTimestamp",
    "Shaper",
    "Switch",
    "Tee",
    "ThreadSafeQueue",
    "Unqueue",
];

impl PacketAlignment {
    fn new(modulus: i64, offset: i64) -> PacketAlignment {
        PacketAlignment { modulus, offset: offset.rem_euclid(modulus) }
    }

    /// The same packets with their beginning so many bytes behind.
    fn moved(self, bytes: i64) -> PacketAlignment {
        PacketAlignment::new(self.modulus, self.offset + bytes)
    }

    /// Returns true if packets that are aligned like this are aligned like the other one, too.
    fn implies(self, other: PacketAlignment) -> bool {
        self.modulus % other.modulus == 0 && self.offset % other.modulus == other.offset
    }

    /// The alignment of packets of both.
    fn joined(self, other: PacketAlignment) -> PacketAlignment {
        let difference = (self.offset - other.offset).abs();
        PacketAlignment::new(divisor(divisor(self.modulus, other.modulus), difference), self.offset)
    }
}

/// The greatest common divisor.
fn divisor(a: i64, b: i64) -> i64 {
    if b == 0 { a } else { divisor(b, a % b) }
}

/// Numbers of bytes, at most.
const MOST_BYTES: i64 = 1 << 16;

/// A text as a number of bytes.
fn bytes(text: &str) -> Option<i64> {
    text.trim().parse().ok().filter(|bytes| (0..=MOST_BYTES).contains(bytes))
}

/// An argument as a number of bytes: the one of this name, or the first one by position.
fn number(element: &Element, name: &str) -> Option<i64> {
    let named = element.arguments.iter().find_map(|text| bytes(text.text.strip_prefix(name)?));
    named.or_else(|| bytes(&element.arguments.first()?.text))
}

/// Bytes by which an element moves the beginning of packets; `None` if its packets have nothing to do with those
/// that come.
fn movement(element: &Element) -> Option<i64> {
    match element.class.as_str() {
        "Strip" => number(element, "LENGTH"),
        "Unstrip" => number(element, "LENGTH").map(|bytes| -bytes),
        "EtherEncap" | "ARPQuerier" => Some(-14),
        class => PASSING.contains(&class).then_some(0),
    }
}

/// Alignment that an `Align` gives.
fn given(element: &Element) -> Option<PacketAlignment> {
    let numbers: Vec<i64> = element.arguments.iter().filter_map(|text| bytes(&text.text)).collect();
    match numbers[..] {
        [modulus, offset] if modulus > 0 && element.class == "Align" => {
            Some(PacketAlignment::new(modulus, offset))
        }
        _ => None,
    }
}

/// Alignment that an element itself wants.
fn own_want(element: &Element) -> Option<PacketAlignment> {
    match element.class.as_str() {
        class if HEADER_CHECKS.contains(&class) => {
            Some(PacketAlignment::new(WORD, -number(element, "OFFSET").unwrap_or(0)))
        }
        class if HOSTS.contains(&class) => Some(FRAME),
        _ => None,
    }
}

/// The graph with `Align` elements wherever packets are to be aligned, without those that change nothing, and with
/// an `AlignmentInfo` of the elements that look their alignment up.
pub fn with_alignment(mut graph: Graph) -> Graph {
    // As they are written, beside those that are added.
    graph.connections.sort_by_key(|c| c.span.start);
    align(&mut graph);
    for _ in 0..MOST_ROUNDS {
        let Some(at) = graph.connections.iter().position(|c| is_between_aligns(&graph, c)) else { break };
        bypass(&mut graph, at);
    }
    let have = alignments(&graph);
    let is_needless = |graph: &Graph, at: usize| {
        let inputs = graph.connections.iter().filter(|c| c.to.element == at);
        let comes = inputs.map(|c| output(graph, &have, c.from.element)).reduce(PacketAlignment::joined);
        given(&graph.elements[at]).zip(comes).is_some_and(|(given, comes)| comes.implies(given))
    };
    for at in 0..graph.elements.len() {
        if is_needless(&graph, at) {
            while let Some(own) = graph.connections.iter().position(|c| c.from.element == at) {
                redirect_output(&mut graph, own, at);
            }
        }
    }
    let graph = without_unused_aligns(graph);
    with_information(graph)
}

/// Alignment of packets at the inputs of each element; `None` where nothing comes.
fn alignments(graph: &Graph) -> Vec<Option<PacketAlignment>> {
    let mut have = vec![None; graph.elements.len()];
    // Each round makes an alignment weaker, which ends: its modulus has few divisors.
    loop {
        let mut next: Vec<Option<PacketAlignment>> = vec![None; graph.elements.len()];
        for c in &graph.connections {
            let is_known = have[c.from.element].is_some() || is_source(graph, c.from.element);
            if is_known {
                let comes = output(graph, &have, c.from.element);
                let known = &mut next[c.to.element];
                *known = Some(known.map_or(comes, |known| known.joined(comes)));
            }
        }
        if next == have {
            return have;
        }
        have = next;
    }
}

/// Returns true if an element's packets do not depend on those that come.
fn is_source(graph: &Graph, at: usize) -> bool {
    let element = &graph.elements[at];
    let has_inputs = graph.connections.iter().any(|c| c.to.element == at);
    !has_inputs || given(element).is_some() || movement(element).is_none()
}

/// Alignment of the packets that an element sends.
fn output(graph: &Graph, have: &[Option<PacketAlignment>], at: usize) -> PacketAlignment {
    let element = &graph.elements[at];
    if let Some(given) = given(element) {
        return given;
    }
    if DEVICES.contains(&element.class.as_str()) {
        return FRAME;
    }
    match (have[at], movement(element)) {
        (Some(comes), Some(bytes)) => comes.moved(bytes),
        _ => ANY,
    }
}

/// Alignment that each element wants, for itself and the elements behind it: of several, the first.
fn wants(graph: &Graph) -> Vec<Option<PacketAlignment>> {
    let mut wants: Vec<Option<PacketAlignment>> = graph.elements.iter().map(own_want).collect();
    for _ in 0..graph.elements.len() {
        let mut changed = false;
        for c in graph.connections.iter().rev() {
            let element = &graph.elements[c.from.element];
            if let (None, Some(want), Some(bytes)) =
                (wants[c.from.element], wants[c.to.element], movement(element))
            {
                wants[c.from.element] = Some(want.moved(-bytes));
                changed = true;
            }
        }
        if !changed {
            break;
        }
    }
    wants
}

/// Puts an `Align` into each connection whose packets do not come as they are wanted.
fn align(graph: &mut Graph) {
    let wants = wants(graph);
    let mut number = graph.elements.len();
    // Those in front come first: what they align needs no second one behind.
    loop {
        let have = alignments(graph);
        let is_missed = |c: &ElementConnection| {
            let want = *wants.get(c.to.element)?;
            want.filter(|want| !output(graph, &have, c.from.element).implies(*want))
        };
        let is_first = |c: &ElementConnection| {
            let front = wants.get(c.from.element).copied().flatten();
            front.is_none_or(|want| have[c.from.element].is_some_and(|have| have.implies(want)))
        };
        let missed = |(at, c): (usize, &ElementConnection)| is_missed(c).map(|want| (at, want, is_first(c)));
        let mut found = graph.connections.iter().enumerate().filter_map(missed);
        let first = found.clone().find(|(.., is_first)| *is_first).or_else(|| found.next());
        let Some((at, want, _)) = first else { return };
        number += 1;
        let (connection, element) = (graph.connections[at], graph.elements.len());
        let span = connection.span;
        let text = |number: i64| SpannedText { text: number.to_string(), span };
        graph.elements.push(Element {
            name: format!("Align@click_align@{number}"),
            class: "Align".to_owned(),
            arguments: vec![text(want.modulus), text(want.offset)],
            span,
        });
        let port = ElementPort { element, port: 0 };
        graph.connections[at].to = port;
        graph.connections.push(ElementConnection { from: port, ..connection });
    }
}

fn is_between_aligns(graph: &Graph, c: &ElementConnection) -> bool {
    let is_align = |port: ElementPort| given(&graph.elements[port.element]).is_some();
    is_align(c.from) && is_align(c.to) && c.from.element != c.to.element
}

/// Leaves one of two `Align` elements out of a connection between them: the second one if it changes nothing, or
/// else the first one, whose work it undoes.
fn bypass(graph: &mut Graph, at: usize) {
    let c = graph.connections[at];
    let [first, second] = [c.from, c.to].map(|port| given(&graph.elements[port.element]).unwrap_or(ANY));
    match first.implies(second) {
        true => redirect_output(graph, at, c.to.element),
        false => redirect_input(graph, at, c.from.element),
    }
    *graph = without_unused_aligns(std::mem::take(graph));
}

/// Replaces a connection to an element, or from it, by those to all that the element leads to.
fn redirect_output(graph: &mut Graph, at: usize, past: usize) {
    let c = graph.connections[at];
    if c.from.element == past {
        // The element itself is left out: all that leads to it leads to the end of this connection.
        return redirect_input(graph, at, past);
    }
    let behind: Vec<ElementPort> =
        graph.connections.iter().filter(|next| next.from.element == past).map(|next| next.to).collect();
    let behind = behind.into_iter().filter(|to| to.element != past);
    graph.connections.remove(at);
    graph.connections.extend(behind.rev().map(|to| ElementConnection { to, ..c }));
}

/// Replaces a connection from an element by those from all that leads to it.
fn redirect_input(graph: &mut Graph, at: usize, past: usize) {
    let c = graph.connections[at];
    let before: Vec<ElementPort> =
        graph.connections.iter().filter(|last| last.to.element == past).map(|last| last.from).collect();
    let before = before.into_iter().filter(|from| from.element != past);
    let new = before.map(|from| ElementConnection { from, ..c });
    graph.connections.splice(at..=at, new);
}

/// The graph without `Align` elements that have lost their inputs or their outputs.
fn without_unused_aligns(mut graph: Graph) -> Graph {
    let is_used = |graph: &Graph, at: usize| {
        graph.connections.iter().any(|c| c.from.element == at)
            && graph.connections.iter().any(|c| c.to.element == at)
    };
    let find = |graph: &Graph| {
        (0..graph.elements.len()).find(|at| given(&graph.elements[*at]).is_some() && !is_used(graph, *at))
    };
    while let Some(gone) = find(&graph) {
        graph.elements.remove(gone);
        graph.connections.retain(|c| c.from.element != gone && c.to.element != gone);
        for c in &mut graph.connections {
            for port in [&mut c.from, &mut c.to] {
                port.element -= usize::from(port.element > gone);
            }
        }
    }
    graph
}

/// Adds an `AlignmentInfo` for the elements that look their alignment up.
fn with_information(mut graph: Graph) -> Graph {
    let have = alignments(&graph);
    let line = |(element, have): (&Element, &Option<PacketAlignment>)| {
        let have = (*have)?;
        let is_told = INFORMED.contains(&element.class.as_str()) && have != ANY;
        is_told.then(|| format!("{}  {} {}", element.name, have.modulus, have.offset))
    };
    let lines: Vec<String> = graph.elements.iter().zip(&have).filter_map(line).collect();
    if let (Some(last), false) = (graph.elements.last(), lines.is_empty()) {
        let (span, number) = (last.span, graph.elements.len() + 1);
        graph.elements.push(Element {
            name: format!("AlignmentInfo@click_align@{number}"),
            class: "AlignmentInfo".to_owned(),
            arguments: vec![SpannedText { text: lines.join(",\n  "), span }],
            span,
        });
    }
    graph
}

#[cfg(test)]
mod tests {
    use super::with_alignment;
    use crate::{flatten, parse};

    fn aligned(text: &str) -> String {
        with_alignment(flatten(&parse(text).expect("parsed"), &[]).expect("flattened")).to_string()
    }

    #[test]
    fn headers_are_aligned_in_front_of_the_elements_that_move_them() {
        let text =
            aligned("s :: Source -> q :: Queue -> t :: Strip(14) -> c :: CheckIPHeader -> d :: Discard");
        let end = "Align@click_align@6 :: Align(4, 2);\n\
            AlignmentInfo@click_align@7 :: AlignmentInfo(c  4 0);\n\n\
            s -> Align@click_align@6\n    -> q\n    -> t\n    -> c\n    -> d;\n";
        assert!(text.ends_with(end), "{text}");
        let devices = aligned("f :: FromDevice(a) -> c :: CheckIPHeader(14) -> h :: ToHost");
        assert!(!devices.contains("Align(") && devices.contains("AlignmentInfo(c  4 2)"), "{devices}");
        let encapsulated = aligned("f :: FromDevice(a) -> s :: Strip(14) -> u :: Unstrip(14) -> h :: ToHost");
        assert!(!encapsulated.contains("Align"), "{encapsulated}");
    }

    #[test]
    fn the_weaker_of_two_and_one_that_is_undone_are_left_out() {
        let text = aligned("x :: X -> a :: Align(4, 0) -> b :: Align(8, 4) -> c :: Align(2, 0) -> y :: Y");
        assert_eq!(text, "x :: X;\nb :: Align(8, 4);\ny :: Y;\n\nx -> b\n    -> y;\n");
        let both =
            aligned("x :: X -> a :: Align(8, 2) -> b :: Align(4, 2) -> y :: Y; w :: W -> b; b -> v :: V");
        assert!(both.ends_with("\nx -> a\n    -> v;\nw -> b\n    -> y;\nb -> v;\na -> y;\n"), "{both}");
        let split = aligned("x :: X -> a :: Align(4, 1) -> b :: Align(4, 2) -> y :: Y; a -> z :: Z");
        assert!(split.ends_with("\nx -> a\n    -> z;\nx -> b\n    -> y;\n"), "{split}");
    }
}

//! Handlers that every element has, and those of the configuration itself.

use std::borrow::Cow;
use std::fmt::Write as _;

use crate::class::{self, ElementClass, ElementLibrary};
use crate::graph::{ElementPort, Graph};
use crate::handlers::{Handler, HandlerAccess};
use crate::resolve::PushPullResolver;

/// Handlers of all elements, and behind them those of the configuration, which belong to the element without
/// a name.
pub(crate) fn handlers(
    library: &ElementLibrary,
    graph: &Graph,
    classes: &[&'static ElementClass],
) -> Vec<Handler> {
    let mut ways = PushPullResolver::new(graph, classes);
    let handler = |element: &str, name: &'static str, access: HandlerAccess| Handler {
        element: element.to_owned(),
        name: Cow::Borrowed(name),
        access,
    };
    let mut all = Vec::new();
    for (at, (element, class)) in graph.elements.iter().zip(classes).enumerate() {
        let config: Vec<&str> = element.arguments.iter().map(|a| a.text.as_str()).collect();
        for (name, access) in [
            ("class", HandlerAccess::Text(class.name.to_owned())),
            ("name", HandlerAccess::Text(element.name.clone())),
            ("config", HandlerAccess::Text(config.join(", "))),
            ("ports", HandlerAccess::Text(ports(graph, classes, &mut ways, at))),
            ("handlers", HandlerAccess::Listing),
            ("drops", HandlerAccess::Drops),
            ("drop_details", HandlerAccess::DropsByReason),
        ] {
            all.push(handler(&element.name, name, access));
        }
    }
    let lines = |texts: Vec<&str>| texts.iter().map(|text| format!("{text}\n")).collect::<String>();
    let elements = lines(graph.elements.iter().map(|e| e.name.as_str()).collect());
    for (name, text) in [
        ("list", format!("{}\n{elements}", graph.elements.len())),
        ("flatconfig", graph.to_string()),
        ("requirements", lines(graph.requirements.iter().map(|r| r.text.as_str()).collect())),
        ("classes", lines(library.all().map(|class| class.name).collect())),
        ("version", env!("CARGO_PKG_VERSION").to_owned()),
    ] {
        all.push(handler("", name, HandlerAccess::Text(text)));
    }
    all.push(handler("", "handlers", HandlerAccess::Listing));
    all
}

/// The ports of an element, one per line: how each passes packets (`~` if its neighbours decide that), `-`
/// for the packets, which are not counted, and the elements it is connected to.
fn ports(
    graph: &Graph,
    classes: &[&'static ElementClass],
    ways: &mut PushPullResolver,
    element: usize,
) -> String {
    let (inputs, outputs) = graph.ports()[element];
    let mut out = String::new();
    for (output, count, side) in [(false, inputs, "input"), (true, outputs, "output")] {
        // Writing to a string does not fail.
        let _ = writeln!(out, "{count} {side}{}", if count == 1 { "" } else { "s" });
        for port in 0..count {
            let at = ElementPort { element, port };
            let way = if ways.pulls(output, at) { "pull" } else { "push" };
            let open = class::processing(classes[element], output, port) == class::PortProcessing::Agnostic;
            let others = graph.connections.iter().filter_map(|c| match output {
                true => (c.from == at).then_some(c.to),
                false => (c.to == at).then_some(c.from),
            });
            let others: Vec<String> =
                others.map(|port| format!("{} [{}]", graph.elements[port.element].name, port.port)).collect();
            let _ = writeln!(out, "{way}{}\t-\t{}", if open { "~" } else { "" }, others.join(", "));
        }
    }
    out
}

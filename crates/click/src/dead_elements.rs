//! Removal of elements that no packet passes, for readers of configurations: what Click's `click-undead` does.
//! The compiler itself generates no code for such elements.

use rustc_hash::FxHashSet;

use crate::graph::{Element, ElementConnection, ElementPort, Graph};

/// Classes that pass packets on.
const PASSING: &[&str] = &["Null", "PushNull", "PullNull"];
/// Classes that choose among inputs, of which those that no packet comes to are left out.
const SCHEDULERS: &[&str] = &["RoundRobinSched", "PrioSched"];

/// The graph without elements that packets cannot reach from a source, or from which none can reach the end of
/// a path; without switches that do not change, and without elements that have nothing to choose.
pub fn without_dead_elements(mut graph: Graph) -> Graph {
    let mut gone = FxHashSet::default();
    let connected: Vec<bool> = graph.ports().into_iter().map(|ports| ports != (0, 0)).collect();
    for element in 0..graph.elements.len() {
        resolve_switch(&mut graph, element, &mut gone);
    }
    loop {
        let before = (gone.len(), graph.connections.len());
        remove_unreached(&mut graph, &connected, &mut gone);
        for element in 0..graph.elements.len() {
            if !gone.contains(&element) && is_passing(&graph, element) {
                splice(&mut graph, element);
                gone.insert(element);
            }
        }
        if (gone.len(), graph.connections.len()) == before {
            break;
        }
    }
    compact(graph, &gone)
}

/// Connects a switch without handlers past itself: its other ports are connected no more.
fn resolve_switch(graph: &mut Graph, element: usize, gone: &mut FxHashSet<usize>) {
    let Some(Element { class, arguments, .. }) = graph.elements.get(element) else { return };
    let has_outputs = match class.as_str() {
        "StaticSwitch" => true,
        "StaticPullSwitch" => false,
        _ => return,
    };
    let chosen: i64 = arguments.first().and_then(|text| text.text.parse().ok()).unwrap_or(-1);
    let is_other = |port: ElementPort| port.element == element && i64::from(port.port) != chosen;
    match has_outputs {
        true => graph.connections.retain(|c| !is_other(c.from)),
        false => graph.connections.retain(|c| !is_other(c.to)),
    }
    splice(graph, element);
    gone.insert(element);
}

/// Connects all that leads to an element with all that it leads to.
fn splice(graph: &mut Graph, element: usize) {
    let of = |port: fn(&ElementConnection) -> ElementPort| {
        let own = graph.connections.iter().filter(move |c| port(c).element == element);
        own.copied().collect::<Vec<ElementConnection>>()
    };
    let (before, behind) = (of(|c| c.to), of(|c| c.from));
    let mut all = Vec::new();
    for c in &graph.connections {
        if c.to.element == element {
            all.extend(behind.iter().map(|next| ElementConnection { to: next.to, ..*c }));
        } else if c.from.element != element {
            all.push(*c);
        }
    }
    // A ring around the element alone leads nowhere.
    let is_ring = !before.is_empty() && before.iter().all(|c| c.from.element == element);
    graph.connections =
        if is_ring { all.into_iter().filter(|c| c.to.element != element).collect() } else { all };
}

/// Returns true if an element has one way through it left.
fn is_passing(graph: &Graph, element: usize) -> bool {
    let count = |port: fn(&ElementConnection) -> ElementPort| {
        graph.connections.iter().filter(|c| port(c).element == element).count()
    };
    let (inputs, outputs) = (count(|c| c.to), count(|c| c.from));
    let class = graph.elements[element].class.as_str();
    match class {
        _ if PASSING.contains(&class) => inputs > 0 && outputs > 0,
        _ if SCHEDULERS.contains(&class) => inputs == 1 && outputs > 0,
        "Tee" => inputs > 0 && outputs == 1,
        _ => false,
    }
}

/// Removes elements that no source reaches, and those that do not reach an element without outputs. Ports of
/// others that were connected to them are connected to an `Idle`, unless the element has as many as are
/// connected.
fn remove_unreached(graph: &mut Graph, connected: &[bool], gone: &mut FxHashSet<usize>) {
    let ports = graph.ports();
    let is_idle = |element: usize| graph.elements[element].class == "Idle";
    let ends = |has_ports: fn(&(u32, u32)) -> bool| {
        let all = (0..graph.elements.len()).filter(|at| has_ports(&ports[*at]) && !is_idle(*at));
        all.collect::<Vec<usize>>()
    };
    let live_from =
        reached(graph, ends(|(inputs, outputs)| *inputs == 0 && *outputs > 0), |c| (c.from, c.to));
    let live_to = reached(graph, ends(|(inputs, outputs)| *outputs == 0 && *inputs > 0), |c| (c.to, c.from));
    let is_live = |element: usize| live_from.contains(&element) && live_to.contains(&element);
    let all = 0..graph.elements.len();
    // Elements that never had a connection say something about others.
    let dead: FxHashSet<usize> =
        all.filter(|at| connected[*at] && !is_live(*at) && !gone.contains(at)).collect();
    let renumbered = |graph: &Graph, element: usize| {
        let class = graph.elements[element].class.as_str();
        SCHEDULERS.contains(&class) || class == "Tee"
    };
    let mut kept: Vec<ElementConnection> = Vec::new();
    let mut idle = None;
    for c in &graph.connections {
        match (dead.contains(&c.from.element), dead.contains(&c.to.element)) {
            (false, false) => kept.push(*c),
            (true, true) => {}
            (true, false) if renumbered(graph, c.to.element) => {}
            (false, true) if renumbered(graph, c.from.element) => {}
            (from_dead, _) => {
                let element = *idle.get_or_insert(if from_dead { c.from.element } else { c.to.element });
                let port = kept.iter().flat_map(|c| [c.from, c.to]).filter(|p| p.element == element).count();
                let own = ElementPort { element, port: port as u32 };
                let ends = if from_dead { (own, c.to) } else { (c.from, own) };
                kept.push(ElementConnection { from: ends.0, to: ends.1, ..*c });
            }
        }
    }
    graph.connections = kept;
    renumber(graph, &renumbered);
    if let Some(idle) = idle {
        graph.elements[idle].class = "Idle".to_owned();
        graph.elements[idle].arguments.clear();
    }
    gone.extend(dead.into_iter().filter(|element| Some(*element) != idle));
}

/// Numbers the ports of elements anew that have as many as are connected.
fn renumber(graph: &mut Graph, has_any_number: &dyn Fn(&Graph, usize) -> bool) {
    let chosen: Vec<bool> = (0..graph.elements.len()).map(|at| has_any_number(graph, at)).collect();
    for (element, _) in chosen.iter().enumerate().filter(|(_, chosen)| **chosen) {
        let mut inputs: Vec<u32> =
            graph.connections.iter().filter(|c| c.to.element == element).map(|c| c.to.port).collect();
        let mut outputs: Vec<u32> =
            graph.connections.iter().filter(|c| c.from.element == element).map(|c| c.from.port).collect();
        for ports in [&mut inputs, &mut outputs] {
            ports.sort_unstable();
            ports.dedup();
        }
        let place = |ports: &[u32], port: u32| ports.iter().position(|p| *p == port).unwrap_or(0) as u32;
        for c in &mut graph.connections {
            if c.to.element == element {
                c.to.port = place(&inputs, c.to.port);
            }
            if c.from.element == element {
                c.from.port = place(&outputs, c.from.port);
            }
        }
    }
}

/// Elements that connections lead to from these, in the direction of `ends`.
fn reached(
    graph: &Graph,
    mut open: Vec<usize>,
    ends: fn(&ElementConnection) -> (ElementPort, ElementPort),
) -> FxHashSet<usize> {
    let mut seen = FxHashSet::default();
    while let Some(element) = open.pop() {
        if seen.insert(element) {
            let next = graph.connections.iter().map(ends).filter(|(from, _)| from.element == element);
            open.extend(next.map(|(_, to)| to.element).filter(|to| graph.elements[*to].class != "Idle"));
        }
    }
    seen
}

/// The graph without elements that are gone.
fn compact(mut graph: Graph, gone: &FxHashSet<usize>) -> Graph {
    let mut places = Vec::new();
    let mut elements = Vec::new();
    for (at, element) in graph.elements.into_iter().enumerate() {
        places.push(elements.len());
        if !gone.contains(&at) {
            elements.push(element);
        }
    }
    graph.elements = elements;
    for c in &mut graph.connections {
        c.from.element = places[c.from.element];
        c.to.element = places[c.to.element];
    }
    graph
}

#[cfg(test)]
mod tests {
    use super::without_dead_elements;
    use crate::{flatten, parse};

    fn left(text: &str) -> String {
        let graph = flatten(&parse(text).expect("parsed"), &[]).expect("flattened");
        without_dead_elements(graph).to_string()
    }

    #[test]
    fn only_elements_between_sources_and_ends_are_left() {
        let text = "s :: FromDevice(a) -> c :: Counter -> d :: ToDevice(b); Idle -> Print -> Discard;
            x :: FromDevice(c) -> Null -> t :: Tee; t -> e :: Discard; t[1] -> Counter -> Idle; ScheduleInfo(s 1)";
        let expected = "s :: FromDevice(a);\nc :: Counter;\nd :: ToDevice(b);\nx :: FromDevice(c);\n\
            e :: Discard;\nScheduleInfo@13 :: ScheduleInfo(s 1);\n\ns -> c\n    -> d;\nx -> e;\n";
        assert_eq!(left(text), expected);
    }

    #[test]
    fn switches_that_do_not_change_choose_what_is_left() {
        let text =
            "s :: Source -> w :: StaticSwitch(1); w -> Discard; w[1] -> q :: Queue -> r :: RoundRobinSched;
            Idle -> [1]r; r -> d :: Sink;";
        assert_eq!(left(text), "s :: Source;\nq :: Queue;\nd :: Sink;\n\ns -> q\n    -> d;\n");
        let text = "s :: Source -> c :: Choice; c -> d :: Sink; c[1] -> Counter -> Idle";
        let left = left(text);
        assert!(
            left.contains(":: Idle") && left.contains("c [1] -> ") && !left.contains(":: Counter"),
            "{left}"
        );
    }
}

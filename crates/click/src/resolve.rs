//! Validity of a graph: classes that exist, ports that are connected once, push and pull.

use rustc_hash::{FxHashMap, FxHashSet};

use crate::class::{ElementClass, ElementLibrary, PortProcessing, port_range, processing};
use crate::error::Error;
use crate::graph::{Element, ElementPort, Graph};

/// The class of each element.
///
/// # Errors
/// An error for each element whose class is not there.
pub(crate) fn classes(
    library: &ElementLibrary,
    graph: &Graph,
) -> Result<Vec<&'static ElementClass>, Vec<Error>> {
    let (mut all, mut errors) = (Vec::new(), Vec::new());
    for element in &graph.elements {
        match library.find(&element.class) {
            Some(class) => all.push(class),
            None => {
                let names =
                    library.all().map(|c| c.name).chain(graph.elements.iter().map(|e| e.name.as_str()));
                let names = names.filter(|n| *n != element.name && *n != element.class);
                errors.push(match (library.unsupported_reason)(&element.class) {
                    Some(why) => {
                        Error::new(element.span, format!("`{}` is not supported: {why}", element.class))
                    }
                    // A word alone may have been meant as either.
                    None if is_alone(graph, element) => {
                        let message = format!(
                            "undeclared element `{0}`: there is no element class `{0}`, either",
                            element.class
                        );
                        Error::new(element.span, message).nearest(&element.class, names)
                    }
                    None => {
                        let message = format!("there is no element class `{}`", element.class);
                        Error::new(element.span, message).nearest(&element.class, names)
                    }
                });
            }
        }
    }
    if errors.is_empty() { Ok(all) } else { Err(errors) }
}

/// Returns true if an element has no name, arguments or connections: it is a word.
fn is_alone(graph: &Graph, element: &Element) -> bool {
    let is_word = element.arguments.is_empty() && element.name.starts_with(&format!("{}@", element.class));
    let of = |port: ElementPort| graph.elements.get(port.element).map(|element| &element.name);
    let own = Some(&element.name);
    is_word && !graph.connections.iter().any(|c| of(c.from) == own || of(c.to) == own)
}

/// Checks all ports.
///
/// # Errors
/// An error for each that is wrong.
pub(crate) fn ports(graph: &Graph, classes: &[&'static ElementClass]) -> Result<(), Vec<Error>> {
    let mut errors = counts(graph, classes);
    if errors.is_empty() {
        let ways = PushPullResolver::new(graph, classes);
        errors.extend(ways.conflicts(graph));
        if errors.is_empty() {
            errors.extend(ways.doubled(graph));
            errors.extend(endless(graph, classes));
        }
    }
    if errors.is_empty() { Ok(()) } else { Err(errors) }
}

/// Elements with too few or too many ports, or with gaps between those that are connected.
fn counts(graph: &Graph, classes: &[&'static ElementClass]) -> Vec<Error> {
    let mut used = vec![[Vec::new(), Vec::new()]; graph.elements.len()];
    for c in &graph.connections {
        used[c.to.element][0].push(c.to.port);
        used[c.from.element][1].push(c.from.port);
    }
    let mut errors = Vec::new();
    for ((element, class), used) in graph.elements.iter().zip(classes).zip(&used) {
        for ((side, used), (least, most)) in ["input", "output"].into_iter().zip(used).zip(port_range(class))
        {
            let count = used.iter().max().map_or(0, |p| p + 1);
            let name = &element.name;
            if count > most {
                let message = format!("`{name}` has no {side} {}", count - 1);
                let range = match most {
                    0 => format!("`{}` has no {side}s", class.name),
                    1 => format!("`{}` has one {side}, [0]", class.name),
                    _ => format!("`{}` has {most} {side}s, the last is [{}]", class.name, most - 1),
                };
                errors.push(Error::new(element.span, message).help(range));
                continue;
            }
            if let Some(free) = (0..count.max(least)).find(|port| !used.contains(port)) {
                let message = format!("'{}' {side} {free} unused", element.declaration());
                errors.push(Error::new(element.span, message));
            }
        }
    }
    errors
}

/// Which way ports pass packets, agnostic ones as their neighbours say.
pub(crate) struct PushPullResolver {
    /// By input or output and port: the set that it belongs to.
    sets: FxHashMap<(bool, ElementPort), usize>,
    parents: Vec<usize>,
    ways: Vec<Option<(PortProcessing, ElementPort)>>,
    conflicts: Vec<(ElementPort, ElementPort)>,
}

impl PushPullResolver {
    pub(crate) fn new(graph: &Graph, classes: &[&'static ElementClass]) -> PushPullResolver {
        let mut this = PushPullResolver {
            sets: FxHashMap::default(),
            parents: Vec::new(),
            ways: Vec::new(),
            conflicts: Vec::new(),
        };
        for (element, (class, (inputs, outputs))) in classes.iter().zip(graph.ports()).enumerate() {
            let mut agnostic = None;
            for (output, count) in [(false, inputs), (true, outputs)] {
                for port in 0..count {
                    let at = ElementPort { element, port };
                    let set = this.fresh();
                    this.sets.insert((output, at), set);
                    match processing(class, output, port) {
                        // No packet passes it from an input to an output.
                        PortProcessing::Agnostic if class.name == "Idle" => {}
                        PortProcessing::Agnostic => {
                            let with = *agnostic.get_or_insert(set);
                            this.join(set, with);
                        }
                        way => this.ways[set] = Some((way, at)),
                    }
                }
            }
        }
        for c in &graph.connections {
            let (from, to) = (this.sets[&(true, c.from)], this.sets[&(false, c.to)]);
            this.join(from, to);
        }
        this
    }

    fn fresh(&mut self) -> usize {
        self.parents.push(self.parents.len());
        self.ways.push(None);
        self.parents.len() - 1
    }

    fn root(&mut self, mut set: usize) -> usize {
        while self.parents[set] != set {
            self.parents[set] = self.parents[self.parents[set]];
            set = self.parents[set];
        }
        set
    }

    fn join(&mut self, a: usize, b: usize) {
        let (a, b) = (self.root(a), self.root(b));
        if let (Some((x, p)), Some((y, q))) = (self.ways[a], self.ways[b])
            && x != y
        {
            self.conflicts.push(if x == PortProcessing::Push { (p, q) } else { (q, p) });
        }
        self.parents[a] = b;
        self.ways[b] = self.ways[b].or(self.ways[a]);
    }

    /// Returns true if packets are pulled at a port. (If no element decides, they are pushed.)
    pub(crate) fn pulls(&mut self, output: bool, port: ElementPort) -> bool {
        let Some(set) = self.sets.get(&(output, port)).copied() else { return false };
        let root = self.root(set);
        matches!(self.ways[root], Some((PortProcessing::Pull, _)))
    }

    /// Push ports that meet pull ports.
    fn conflicts(&self, graph: &Graph) -> Vec<Error> {
        let name = |port: &ElementPort| &graph.elements[port.element].name;
        let error = |(push, pull): &(ElementPort, ElementPort)| {
            let direct = graph
                .connections
                .iter()
                .find(|c| (c.from, c.to) == (*push, *pull) || (c.from, c.to) == (*pull, *push));
            let span = direct.map_or(graph.elements[pull.element].span, |c| c.span);
            let message = format!(
                "`{}` [{}] pushes packets, `{}` [{}] pulls them, and they are connected",
                name(push),
                push.port,
                name(pull),
                pull.port
            );
            Error::new(span, message).help(
                "put a `Queue` where packets are to be pulled, an `Unqueue` where they are to be pushed",
            )
        };
        self.conflicts.iter().map(error).collect()
    }

    /// Push outputs and pull inputs with more than one connection. (Inputs that pull from one output take
    /// turns.)
    fn doubled(mut self, graph: &Graph) -> Vec<Error> {
        let mut errors = Vec::new();
        let (mut outputs, mut inputs) = (FxHashMap::default(), FxHashMap::default());
        for c in &graph.connections {
            let set = self.sets[&(true, c.from)];
            let root = self.root(set);
            let pull = matches!(self.ways[root], Some((PortProcessing::Pull, _)));
            let element = |port: ElementPort| &graph.elements[port.element];
            let name = |port: ElementPort| element(port).declaration();
            if !pull && outputs.insert(c.from, c.to).is_some() {
                let message = format!("illegal reuse of '{}' push output {}", name(c.from), c.from.port);
                let error = Error::new(c.span, message).about(element(c.from).span);
                errors.push(error.help("a `Tee` sends copies to several elements"));
            }
            if pull && inputs.insert(c.to, c.from).is_some() {
                let message = format!("illegal reuse of '{}' pull input {}", name(c.to), c.to.port);
                errors.push(
                    Error::new(c.span, message)
                        .about(element(c.to).span)
                        .help("a scheduler such as `RoundRobinSched` pulls from several"),
                );
            }
        }
        errors
    }
}

/// Outputs that lead back to an element on the way to them: without these the graph has no cycle.
pub(crate) fn back_edges(graph: &Graph) -> FxHashSet<ElementPort> {
    let mut next = vec![Vec::new(); graph.elements.len()];
    for c in &graph.connections {
        next[c.from.element].push((c.from, c.to.element));
    }
    // Of each element: not seen, on the way, done with.
    let mut state = vec![0u8; graph.elements.len()];
    let mut found = FxHashSet::default();
    for start in 0..graph.elements.len() {
        let mut open = vec![(start, 0)];
        while let Some((element, at)) = open.pop() {
            if at == 0 && std::mem::replace(&mut state[element], 1) != 0 {
                continue;
            }
            let Some(&(from, to)) = next[element].get(at) else {
                state[element] = 2;
                continue;
            };
            open.push((element, at + 1));
            match state[to] {
                0 => open.push((to, 0)),
                1 => drop(found.insert(from)),
                _ => {}
            }
        }
    }
    found
}

/// Maximum number of these elements, one behind another, on a path that takes none of the outputs in
/// `returns`; every cycle has at least one of these outputs.
pub(crate) fn longest_chain(
    graph: &Graph,
    returns: &FxHashSet<ElementPort>,
    elements: &FxHashSet<usize>,
) -> u32 {
    let mut ranks = vec![0; graph.elements.len()];
    loop {
        let before = ranks.clone();
        for c in graph.connections.iter().filter(|c| !returns.contains(&c.from)) {
            let rank = ranks[c.from.element] + u32::from(elements.contains(&c.from.element));
            ranks[c.to.element] = rank.max(ranks[c.to.element]);
        }
        if ranks == before {
            return ranks.into_iter().max().unwrap_or(0);
        }
    }
}

/// Cycles that a packet cannot leave: every element on it has one output at most.
fn endless(graph: &Graph, classes: &[&'static ElementClass]) -> Vec<Error> {
    let mut next = vec![None; graph.elements.len()];
    let ports = graph.ports();
    for c in &graph.connections {
        let (_, outputs) = ports[c.from.element];
        let passes_all = outputs == 1 && classes[c.from.element].passes_all;
        if passes_all {
            next[c.from.element] = Some(c.to.element);
        }
    }
    let mut seen = vec![0; graph.elements.len()];
    let mut errors = Vec::new();
    for start in 0..graph.elements.len() {
        let mut at = start;
        while seen[at] == 0 {
            seen[at] = start + 1;
            let Some(to) = next[at] else { break };
            at = to;
            if seen[at] == start + 1 {
                let element = &graph.elements[at];
                let message = format!("packets go round through `{}` without end", element.name);
                errors.push(
                    Error::new(element.span, message)
                        .help("no element on the way drops them or has another output"),
                );
            }
        }
    }
    errors
}

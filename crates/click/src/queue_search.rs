//! Search for the places where packets of a graph wait, and for the elements that they wait for.
//!
//! Invariant: lanes are inputs that pull, and so have one connection each.

use rustc_hash::{FxHashMap, FxHashSet};

use crate::class::ElementClass;
use crate::graph::{ElementPort, Graph};
use crate::handlers::SettingValue;
use crate::queueing::{
    ByteRange, ElementQueue, PullScheduler, QueueProperties, QueueServer, QueueingDeclarations,
    QueueingNetwork, RESUMED, ShapingPolicy, SourceHold, TimingParameter,
};
use crate::resolve::PushPullResolver;

/// Finds lanes and servers. Also gives the inputs that are lanes, in order. `sources` are the elements of the
/// program's sources.
pub(crate) fn find(
    graph: &Graph,
    classes: &[&'static ElementClass],
    declared: &QueueingDeclarations,
    sources: &[usize],
) -> (QueueingNetwork, Vec<ElementPort>) {
    let mut search = QueueSearch {
        graph,
        classes,
        declared,
        ports: graph.ports(),
        from: graph.connections.iter().map(|c| (c.to, c.from)).collect(),
        pullers: FxHashMap::default(),
        ways: PushPullResolver::new(graph, classes),
        lanes: Vec::new(),
        inputs: FxHashMap::default(),
        fronts: Vec::new(),
        seen: FxHashSet::default(),
        fed: Vec::new(),
        places: Vec::new(),
        stores: Vec::new(),
    };
    graph.connections.iter().for_each(|c| *search.pullers.entry(c.from).or_default() += 1);
    let mut elements: Vec<usize> = declared.paces.keys().copied().collect();
    elements.sort_unstable();
    let turns: Vec<PullScheduler> = elements.iter().map(|&element| search.served(element)).collect();
    let server = |(&element, turns): (&usize, PullScheduler)| QueueServer {
        element: graph.elements[element].name.clone(),
        pace: declared.paces[&element],
        turns,
        feeds: search.fed.iter().find(|(from, _)| *from == element).map(|(_, lane)| *lane),
        sources: Vec::new(),
    };
    let mut servers: Vec<QueueServer> = elements.iter().zip(turns).map(server).collect();
    servers.iter_mut().for_each(|server| server.sources = search.replayed(server, sources));
    for &element in &declared.detours {
        let turns = search.lane(ElementPort { element, port: RESUMED }, element, None);
        let (limit, base) = (TimingParameter::Fixed(-1), TimingParameter::Fixed(0));
        let pace = ShapingPolicy::Upto { limit, base, active: TimingParameter::Fixed(1) };
        let element = graph.elements[element].name.clone();
        servers.push(QueueServer { element, pace, turns, feeds: None, sources: Vec::new() });
    }
    servers.extend(search.switched());
    let senders = declared.senders.clone();
    let pulls = if declared.timed { search.pulls(sources) } else { Vec::new() };
    let holds = search.holds(sources);
    let (lanes, clocked) = (search.lanes, declared.clocked);
    let waits = QueueingNetwork { servers, lanes, senders, pulls, holds, kept: 0, clocked };
    let mut inputs: Vec<(usize, ElementPort)> =
        search.inputs.into_iter().map(|(input, lane)| (lane, input)).chain(search.fronts).collect();
    inputs.sort_unstable();
    (waits, inputs.into_iter().map(|(_, input)| input).collect())
}

/// Schedulers behind one another, at most: behind more, packets wait in front of these.
const DEEPEST: u32 = 32;

/// Returns true if a class chooses an input to pull from.
fn is_scheduler(class: &ElementClass) -> bool {
    ["RoundRobinSched", "PrioSched", "StrideSched"].contains(&class.name)
}

struct QueueSearch<'s> {
    graph: &'s Graph,
    classes: &'s [&'static ElementClass],
    declared: &'s QueueingDeclarations,
    ports: Vec<(u32, u32)>,
    /// The output that each input is connected to (one, where it pulls), and how many inputs each output.
    from: FxHashMap<ElementPort, ElementPort>,
    pullers: FxHashMap<ElementPort, usize>,
    ways: PushPullResolver,
    lanes: Vec<ElementQueue>,
    inputs: FxHashMap<ElementPort, usize>,
    /// Lanes that are the fronts of others, with their inputs.
    fronts: Vec<(usize, ElementPort)>,
    /// Schedulers that were looked into: each has its place once.
    seen: FxHashSet<usize>,
    /// Elements of time that another one pulls from, by which lane.
    fed: Vec<(usize, usize)>,
    /// Lanes of one packet, with their inputs.
    places: Vec<(usize, ElementPort)>,
    /// Sources from which packets are taken to be sent round after round, with the lanes.
    stores: Vec<(usize, usize)>,
}

impl QueueSearch<'_> {
    /// Turns that an element of time pulls from: one input, or several that it pulls nothing from.
    fn served(&mut self, element: usize) -> PullScheduler {
        match self.ports[element].0 {
            0 | 1 => self.turns(ElementPort { element, port: 0 }, element, 0),
            inputs => {
                let turns = (0..inputs).map(|port| self.turns(ElementPort { element, port }, element, 0));
                PullScheduler::First(turns.collect())
            }
        }
    }

    /// Sources that look at queues, with the lanes that their packets go to. Source: Click's
    /// `Notifier::downstream_full_signal`.
    fn holds(&self, sources: &[usize]) -> Vec<SourceHold> {
        let looks = |element: usize| self.classes[element].name == "InfiniteSource";
        let lanes = |(source, element): (usize, &usize)| {
            let stores: Vec<usize> =
                self.stores.iter().filter(|(from, _)| *from == source).map(|(_, lane)| *lane).collect();
            let lanes = match self.pulled_lane(*element) {
                Some(lane) => vec![lane],
                None if !stores.is_empty() => stores,
                None => self.full_lanes(*element).filter(|_| looks(*element))?,
            };
            (!lanes.is_empty()).then_some(SourceHold { source, lanes })
        };
        sources.iter().enumerate().filter_map(lanes).collect()
    }

    /// Sources that a server pulls from without a queue between, if it sends packets round after round.
    fn replayed(&mut self, server: &QueueServer, sources: &[usize]) -> Vec<usize> {
        if !matches!(server.pace, ShapingPolicy::Replay(_)) {
            return Vec::new();
        }
        let mut found = Vec::new();
        for lane in server.turns.lanes().into_iter().filter(|lane| self.lanes[*lane].queue.is_none()) {
            let input = self.inputs.iter().find(|(_, known)| **known == lane).map(|(input, _)| *input);
            let from = input.and_then(|input| self.begins(input));
            let source = from.and_then(|from| sources.iter().position(|source| *source == from));
            if let Some(source) = source {
                self.stores.push((source, lane));
                found.push(source);
            }
        }
        found
    }

    /// The place in front of an element that chooses an input, if it pulls from a source there.
    fn pulled_lane(&self, source: usize) -> Option<usize> {
        self.places.iter().find(|(_, input)| self.begins(*input) == Some(source)).map(|(lane, _)| *lane)
    }

    /// Lanes of the queues that packets of an element are pushed to; `None` if they may go elsewhere.
    fn full_lanes(&self, element: usize) -> Option<Vec<usize>> {
        let (mut lanes, mut open, mut seen) = (Vec::new(), vec![element], FxHashSet::default());
        while let Some(element) = open.pop() {
            if !seen.insert(element) {
                continue;
            }
            let next: Vec<ElementPort> = self
                .graph
                .connections
                .iter()
                .filter_map(|c| (c.from.element == element).then_some(c.to))
                .collect();
            match self.declared.queues.get(&element) {
                Some(queue) if !queue.notifies => return None,
                Some(_) => {
                    let name = &self.graph.elements[element].name;
                    let own = (0..self.lanes.len()).filter(|lane| self.lanes[*lane].element == *name);
                    let before = lanes.len();
                    lanes.extend(own);
                    // A queue without a lane is never full.
                    if lanes.len() == before {
                        return None;
                    }
                }
                None if next.is_empty() => return None,
                None => open.extend(next.iter().map(|port| port.element)),
            }
        }
        Some(lanes)
    }

    /// Turns that an input pulls from, for the element `of`.
    fn turns(&mut self, mut input: ElementPort, of: usize, depth: u32) -> PullScheduler {
        // A way that leads back to itself has no end.
        for _ in 0..self.graph.elements.len() {
            let Some(from) = self.from.get(&input).copied() else { break };
            let (element, inputs) = (from.element, self.ports[from.element].0);
            // An output that several inputs pull from has no lane: the puller is chosen in front of it.
            if self.pullers.get(&from).is_some_and(|pullers| *pullers > 1) {
                break;
            }
            if let Some(queued) = self.declared.queues.get(&element) {
                return self.lane(input, element, Some(*queued));
            }
            if self.waits_for(element) {
                let turns = self.lane(input, of, None);
                if let PullScheduler::Lane(lane) = turns {
                    self.fed.push((element, lane));
                }
                return turns;
            }
            let behind = ElementPort { element, port: 0 };
            if inputs == 1 && self.ways.pulls(false, behind) {
                input = behind;
                continue;
            }
            match self.scheduled(element, inputs, of, depth) {
                Some(turns) => return turns,
                None => break,
            }
        }
        // In front of an element that chooses an input, a source makes one packet at a time.
        let place = self.declared.switches.get(&of).map(|(_, place)| *place);
        let turns = self.lane(input, of, place);
        if let (Some(_), PullScheduler::Lane(lane)) = (place, &turns) {
            self.places.push((*lane, input));
        }
        turns
    }

    /// Returns true if packets wait for an element that pulls them.
    fn waits_for(&self, element: usize) -> bool {
        self.declared.paces.contains_key(&element) || self.declared.switches.contains_key(&element)
    }

    /// For each input of elements that pull from one input, the server that pulls there.
    fn switched(&mut self) -> Vec<QueueServer> {
        let mut elements: Vec<usize> = self.declared.switches.keys().copied().collect();
        elements.sort_unstable();
        let mut all = Vec::new();
        for element in elements {
            let Some((input, _)) = self.declared.switches.get(&element) else { continue };
            let input = *input;
            for port in 0..self.ports[element].0 {
                let turns = self.turns(ElementPort { element, port }, element, 0);
                let active = match input {
                    SettingValue::Fixed(input) => TimingParameter::Fixed(i64::from(input == i64::from(port))),
                    SettingValue::Live(at) => TimingParameter::Equals(at, port.into()),
                };
                let (limit, base) = (TimingParameter::Fixed(-1), TimingParameter::Fixed(0));
                let name = format!("{} [{port}]", self.graph.elements[element].name);
                let pace = ShapingPolicy::Upto { limit, base, active };
                all.push((
                    element,
                    QueueServer { element: name, pace, turns, feeds: None, sources: Vec::new() },
                ));
            }
        }
        let fed = |of: usize| self.fed.iter().find(|(from, _)| *from == of).map(|(_, lane)| *lane);
        all.into_iter().map(|(of, server)| QueueServer { feeds: fed(of), ..server }).collect()
    }

    /// Turns that a scheduler pulls from.
    fn scheduled(&mut self, element: usize, inputs: u32, of: usize, depth: u32) -> Option<PullScheduler> {
        if depth == DEEPEST || !is_scheduler(self.classes[element]) || !self.seen.insert(element) {
            return None;
        }
        let all: Vec<Option<PullScheduler>> =
            (0..inputs).map(|port| Some(self.turns(ElementPort { element, port }, of, depth + 1))).collect();
        Some(self.of_class(element, all))
    }

    /// Turns of a scheduler's inputs, by its class; those of some inputs are not known.
    fn of_class(&self, element: usize, all: Vec<Option<PullScheduler>>) -> PullScheduler {
        match self.classes[element].name {
            "RoundRobinSched" => PullScheduler::RoundRobin(all.into_iter().flatten().collect()),
            "PrioSched" => PullScheduler::First(all.into_iter().flatten().collect()),
            _ => {
                let tickets = self.declared.tickets.get(&element).cloned().unwrap_or_default();
                let clients = tickets.into_iter().chain(std::iter::repeat(1)).zip(all);
                PullScheduler::Strides(
                    clients.filter_map(|(tickets, turns)| Some((tickets, turns?))).collect(),
                )
            }
        }
    }

    /// Turns of sources that schedulers pull from, but for those that elements of time pull from.
    fn pulls(&mut self, sources: &[usize]) -> Vec<PullScheduler> {
        let mut outermost: Vec<(usize, PullScheduler)> = Vec::new();
        for element in 0..self.graph.elements.len() {
            if let Some((inner, turns)) = self.pulled(element, sources, 0) {
                outermost.retain(|(known, _)| !inner.contains(known));
                let known = outermost.iter().any(|(_, other)| other.has(&turns));
                if !known {
                    outermost.push((element, turns));
                }
            }
        }
        outermost.into_iter().map(|(_, turns)| turns).filter(|turns| turns.lanes().len() > 1).collect()
    }

    /// Turns of the sources that a scheduler pulls from, and the schedulers among these.
    fn pulled(&self, element: usize, sources: &[usize], depth: u32) -> Option<(Vec<usize>, PullScheduler)> {
        if depth == DEEPEST || self.seen.contains(&element) || !is_scheduler(self.classes[element]) {
            return None;
        }
        let (mut all, mut inner) = (Vec::new(), Vec::new());
        for port in 0..self.ports[element].0 {
            let turns = match self.begins(ElementPort { element, port })? {
                from if sources.contains(&from) => {
                    sources.iter().position(|source| *source == from).map(PullScheduler::Lane)
                }
                from => self.pulled(from, sources, depth + 1).map(|(more, turns)| {
                    inner.extend(more.into_iter().chain([from]));
                    turns
                }),
            };
            all.push(turns);
        }
        Some((inner, self.of_class(element, all)))
    }

    /// The element that an input pulls from, behind elements that only pass packets on.
    fn begins(&self, mut input: ElementPort) -> Option<usize> {
        for _ in 0..self.graph.elements.len() {
            let from = *self.from.get(&input)?;
            let waits = self.declared.queues.contains_key(&from.element) || self.waits_for(from.element);
            if waits || self.ports[from.element].0 != 1 || is_scheduler(self.classes[from.element]) {
                return Some(from.element);
            }
            input = ElementPort { element: from.element, port: 0 };
        }
        None
    }

    fn lane(&mut self, input: ElementPort, element: usize, queue: Option<QueueProperties>) -> PullScheduler {
        let lane = *self.inputs.entry(input).or_insert_with(|| {
            let element = self.graph.elements[element].name.clone();
            // Positions are known when the code is generated.
            let (numbered, notes) = (ByteRange::default(), Vec::new());
            let lane = ElementQueue { element, queue, front_of: None, number: 0, numbered, notes };
            self.lanes.push(lane.clone());
            let own = self.lanes.len() - 1;
            if queue.is_some_and(|queue| queue.mixed) {
                self.lanes.push(ElementQueue { queue: None, front_of: Some(own), ..lane });
                self.fronts.push((own + 1, input));
            }
            own
        });
        PullScheduler::Lane(lane)
    }
}

//! Places where packets wait for their time, and the elements they wait for.
//!
//! Elements of time pull: from queues, through schedulers and any elements between them. So packets wait at
//! the end of queues, or, without a queue, in front of the element itself: that is a lane. The program ends
//! the way of a packet there, at a separate output behind all others; whoever runs it keeps the packet, and
//! lets it come in again when it is due. Elements between a queue and the element see packets when they
//! leave.
//!
//! Invariant: lanes are inputs that pull, and so have one connection each.

use rustc_hash::{FxHashMap, FxHashSet};
use serde::{Deserialize, Serialize};

use crate::class::ElementClass;
use crate::graph::{ElementPort, Graph};
use crate::handlers::SettingValue;
use crate::resolve::PushPullResolver;

/// A number that elements of time go by.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum TimingParameter {
    /// Always this.
    Fixed(i64),
    /// 64 bits of the settings, at this byte.
    Setting(u32),
}

impl From<SettingValue> for TimingParameter {
    fn from(setting: SettingValue) -> TimingParameter {
        match setting {
            SettingValue::Fixed(value) => TimingParameter::Fixed(value),
            SettingValue::Live(at) => TimingParameter::Setting(at),
        }
    }
}

/// When packets go. Times are nanoseconds.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum ShapingPolicy {
    /// So many packets, or bytes, a second, by a token bucket.
    Rate {
        /// Tokens a second.
        rate: TimingParameter,
        /// Size of the bucket: so many tokens, or those of a time.
        burst: TokenBucketSize,
        /// True if a token is a byte.
        bytes: bool,
    },
    /// So long behind their arrival.
    Delay(u64),
    /// As over a line.
    Link {
        /// Latency of the line.
        latency: u64,
        /// Bytes a second.
        bandwidth: u64,
    },
    /// As soon as they are there, until so many have gone.
    Upto {
        /// Number of packets since `base`; unlimited if negative.
        limit: TimingParameter,
        /// Number of packets that had gone before the count began again.
        base: TimingParameter,
        /// 0 if none goes.
        active: TimingParameter,
    },
    /// So many at once, at multiples of a time.
    Every {
        /// The time.
        interval: u64,
        /// Packets at a time.
        burst: u64,
    },
}

/// When a source sends that makes its packets up.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct SourceTiming {
    /// Its place in [`crate::ClickProgram::sources`].
    pub source: usize,
    /// The times.
    pub beat: SourceSchedule,
}

/// Times between packets.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum SourceSchedule {
    /// So many packets per second at first, which its gate may change; 0 is never.
    Rate(u64),
    /// One after each of so many nanoseconds.
    Every(u64),
}

/// Size of a token bucket.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum TokenBucketSize {
    /// The tokens of so many nanoseconds.
    Nanoseconds(u64),
    /// So many tokens.
    Tokens(u64),
}

/// Place where packets wait in order.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct ElementQueue {
    /// The queue, or the element that they wait for.
    pub element: String,
    /// Properties that only queues have.
    pub queue: Option<QueueProperties>,
    /// The lane whose first packets its packets become, if it holds none itself.
    pub front_of: Option<usize>,
    /// Number in the code of the place where its packets go on.
    pub number: u32,
    /// Position of that number in the data that is kept of a packet.
    pub numbered: ByteRange,
    /// The annotations that are kept, by number, and where they are.
    pub notes: Vec<(usize, ByteRange)>,
}

/// Bytes of the data that is kept of a packet that waits.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct ByteRange {
    /// Offset of the first.
    pub at: u32,
    /// Number of bytes.
    pub bytes: u32,
}

/// A queue. The packets that it holds, the most there were, and those that were dropped since it was full,
/// are numbers of the state, which whoever keeps the packets writes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct QueueProperties {
    /// Maximum number of packets.
    pub capacity: TimingParameter,
    /// True if a full one drops its first packet.
    pub front: bool,
    /// True if sources that look at it wait while it is full.
    pub notifies: bool,
    /// True if packets may be put in front of its first one.
    pub mixed: bool,
    /// Offset in the state.
    pub length: u32,
    /// Offset in the state.
    pub highest: u32,
    /// Offset in the state.
    pub dropped: u32,
}

/// Order of turns among lanes, which are numbers.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum PullScheduler {
    /// A lane.
    Lane(usize),
    /// One after the other.
    RoundRobin(Vec<PullScheduler>),
    /// The first that has anything.
    First(Vec<PullScheduler>),
    /// As often as each has tickets.
    Strides(Vec<(u64, PullScheduler)>),
}

/// An element that packets wait for.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct QueueServer {
    /// Its name.
    pub element: String,
    /// When they go.
    pub pace: ShapingPolicy,
    /// Which goes.
    pub turns: PullScheduler,
    /// The lane that they go to, which another one pulls from.
    pub feeds: Option<usize>,
}

/// A source that sends nothing while all queues are full that its packets go to.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct SourceHold {
    /// Its place in [`crate::ClickProgram::sources`].
    pub source: usize,
    /// The lanes.
    pub lanes: Vec<usize>,
}

/// Places where packets of a program wait.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct QueueingNetwork {
    /// In the order of their outputs.
    pub lanes: Vec<ElementQueue>,
    /// Elements that they wait for.
    pub servers: Vec<QueueServer>,
    /// Sources that send at times of their own.
    pub senders: Vec<SourceTiming>,
    /// Sources that are pulled by turns; a lane of [`PullScheduler`] is an index of
    /// [`crate::ClickProgram::sources`] here.
    pub pulls: Vec<PullScheduler>,
    /// Sources that wait for queues.
    pub holds: Vec<SourceHold>,
    /// Bytes that are kept of a packet.
    pub kept: u32,
    /// True if elements that hold no packets use the clock.
    pub clocked: bool,
}

impl QueueingNetwork {
    /// Returns true if the run must have a clock.
    pub fn is_timed(&self) -> bool {
        self.clocked || !self.servers.is_empty() || !self.senders.is_empty() || !self.pulls.is_empty()
    }
}

/// Declarations of elements, by their numbers.
#[derive(Debug, Default)]
pub(crate) struct QueueingDeclarations {
    pub(crate) queues: FxHashMap<usize, QueueProperties>,
    pub(crate) paces: FxHashMap<usize, ShapingPolicy>,
    /// Of schedulers with tickets.
    pub(crate) tickets: FxHashMap<usize, Vec<u64>>,
    pub(crate) senders: Vec<SourceTiming>,
    /// Elements whose packets wait at their input [`RESUMED`].
    pub(crate) detours: Vec<usize>,
    pub(crate) clocked: bool,
    /// True if runs have a clock.
    pub(crate) timed: bool,
}

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
    };
    let mut servers: Vec<QueueServer> = elements.iter().zip(turns).map(server).collect();
    for &element in &declared.detours {
        let turns = search.lane(ElementPort { element, port: RESUMED }, element, None);
        let (limit, base) = (TimingParameter::Fixed(-1), TimingParameter::Fixed(0));
        let pace = ShapingPolicy::Upto { limit, base, active: TimingParameter::Fixed(1) };
        servers.push(QueueServer { element: graph.elements[element].name.clone(), pace, turns, feeds: None });
    }
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

/// The input, not part of the graph, at which packets go on that have waited for a script.
pub const RESUMED: u32 = u32::MAX - 1;

/// Schedulers behind one another, at most: behind more, packets wait in front of these.
const DEEPEST: u32 = 32;

/// Returns true if a class chooses an input to pull from.
fn is_scheduler(class: &ElementClass) -> bool {
    ["RoundRobinSched", "PrioSched", "StrideSched"].contains(&class.name)
}

impl PullScheduler {
    /// All lanes.
    fn lanes(&self) -> Vec<usize> {
        match self {
            PullScheduler::Lane(lane) => vec![*lane],
            PullScheduler::RoundRobin(all) | PullScheduler::First(all) => {
                all.iter().flat_map(PullScheduler::lanes).collect()
            }
            PullScheduler::Strides(all) => all.iter().flat_map(|(_, turns)| turns.lanes()).collect(),
        }
    }

    /// Returns true if a lane of the others is among these.
    fn has(&self, others: &PullScheduler) -> bool {
        let own = self.lanes();
        others.lanes().iter().any(|lane| own.contains(lane))
    }
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
        let looks = |(_, element): &(usize, &usize)| self.classes[**element].name == "InfiniteSource";
        let lanes = |(source, element): (usize, &usize)| {
            let lanes = self.full_lanes(*element)?;
            (!lanes.is_empty()).then_some(SourceHold { source, lanes })
        };
        sources.iter().enumerate().filter(looks).filter_map(lanes).collect()
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
            if self.declared.paces.contains_key(&element) {
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
        self.lane(input, of, None)
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
            let waits = self.declared.queues.contains_key(&from.element)
                || self.declared.paces.contains_key(&from.element);
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

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

use crate::class::Class;
use crate::graph::{Graph, Port};
use crate::handlers::Setting;
use crate::resolve::Ways;

/// A number that elements of time go by.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Number {
    /// Always this.
    Fixed(i64),
    /// 64 bits of the settings, at this byte.
    Setting(u32),
}

impl From<Setting> for Number {
    fn from(setting: Setting) -> Number {
        match setting {
            Setting::Fixed(value) => Number::Fixed(value),
            Setting::Live(at) => Number::Setting(at),
        }
    }
}

/// When packets go. Times are nanoseconds.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Pace {
    /// So many packets, or bytes, a second, by a token bucket.
    Rate {
        /// Tokens a second.
        rate: Number,
        /// Size of the bucket: so many tokens, or those of a time.
        burst: Burst,
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
        limit: Number,
        /// Number of packets that had gone before the count began again.
        base: Number,
        /// 0 if none goes.
        active: Number,
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
pub struct Sender {
    /// Its place in [`crate::Program::sources`].
    pub source: usize,
    /// The times.
    pub beat: Beat,
}

/// Times between packets.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Beat {
    /// So many packets per second at first, which its gate may change; 0 is never.
    Rate(u64),
    /// One after each of so many nanoseconds.
    Every(u64),
}

/// Size of a token bucket.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Burst {
    /// The tokens of so many nanoseconds.
    Nanoseconds(u64),
    /// So many tokens.
    Tokens(u64),
}

/// Place where packets wait in order.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Lane {
    /// The queue, or the element that they wait for.
    pub element: String,
    /// Properties that only queues have.
    pub queue: Option<Queued>,
    /// Number in the code of the place where its packets go on.
    pub number: u32,
    /// Position of that number in the data that is kept of a packet.
    pub numbered: Part,
    /// The annotations that are kept, by number, and where they are.
    pub notes: Vec<(usize, Part)>,
}

/// Bytes of the data that is kept of a packet that waits.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Part {
    /// Offset of the first.
    pub at: u32,
    /// Number of bytes.
    pub bytes: u32,
}

/// A queue. The packets that it holds, the most there were, and those that were dropped since it was full,
/// are numbers of the state, which whoever keeps the packets writes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Queued {
    /// Maximum number of packets.
    pub capacity: Number,
    /// True if a full one drops its first packet.
    pub front: bool,
    /// Offset in the state.
    pub length: u32,
    /// Offset in the state.
    pub highest: u32,
    /// Offset in the state.
    pub dropped: u32,
}

/// Order of turns among lanes, which are numbers.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Turns {
    /// A lane.
    Lane(usize),
    /// One after the other.
    RoundRobin(Vec<Turns>),
    /// The first that has anything.
    First(Vec<Turns>),
    /// As often as each has tickets.
    Strides(Vec<(u64, Turns)>),
}

/// An element that packets wait for.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Server {
    /// Its name.
    pub element: String,
    /// When they go.
    pub pace: Pace,
    /// Which goes.
    pub turns: Turns,
    /// The lane that they go to, which another one pulls from.
    pub feeds: Option<usize>,
}

/// Places where packets of a program wait.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Waits {
    /// In the order of their outputs.
    pub lanes: Vec<Lane>,
    /// Elements that they wait for.
    pub servers: Vec<Server>,
    /// Sources that send at times of their own.
    pub senders: Vec<Sender>,
    /// Sources that are pulled by turns; a lane of [`Turns`] is an index of [`crate::Program::sources`] here.
    pub pulls: Vec<Turns>,
    /// Bytes that are kept of a packet.
    pub kept: u32,
    /// True if elements that hold no packets use the clock.
    pub clocked: bool,
}

impl Waits {
    /// Returns true if the run must have a clock.
    pub fn is_timed(&self) -> bool {
        self.clocked || !self.servers.is_empty() || !self.senders.is_empty() || !self.pulls.is_empty()
    }
}

/// Declarations of elements, by their numbers.
#[derive(Debug, Default)]
pub(crate) struct Declared {
    pub(crate) queues: FxHashMap<usize, Queued>,
    pub(crate) paces: FxHashMap<usize, Pace>,
    /// Of schedulers with tickets.
    pub(crate) tickets: FxHashMap<usize, Vec<u64>>,
    pub(crate) senders: Vec<Sender>,
    pub(crate) clocked: bool,
    /// True if runs have a clock.
    pub(crate) timed: bool,
}

/// Finds lanes and servers. Also gives the inputs that are lanes, in order. `sources` are the elements of the
/// program's sources.
pub(crate) fn find(
    graph: &Graph,
    classes: &[&'static Class],
    declared: &Declared,
    sources: &[usize],
) -> (Waits, Vec<Port>) {
    let mut search = Search {
        graph,
        classes,
        declared,
        ports: graph.ports(),
        from: graph.connections.iter().map(|c| (c.to, c.from)).collect(),
        pullers: FxHashMap::default(),
        ways: Ways::new(graph, classes),
        lanes: Vec::new(),
        inputs: FxHashMap::default(),
        seen: FxHashSet::default(),
        fed: Vec::new(),
    };
    graph.connections.iter().for_each(|c| *search.pullers.entry(c.from).or_default() += 1);
    let mut elements: Vec<usize> = declared.paces.keys().copied().collect();
    elements.sort_unstable();
    let turns: Vec<Turns> =
        elements.iter().map(|&element| search.turns(Port { element, port: 0 }, element, 0)).collect();
    let server = |(&element, turns): (&usize, Turns)| Server {
        element: graph.elements[element].name.clone(),
        pace: declared.paces[&element],
        turns,
        feeds: search.fed.iter().find(|(from, _)| *from == element).map(|(_, lane)| *lane),
    };
    let servers = elements.iter().zip(turns).map(server).collect();
    let senders = declared.senders.clone();
    let pulls = if declared.timed { search.pulls(sources) } else { Vec::new() };
    let waits = Waits { servers, lanes: search.lanes, senders, pulls, kept: 0, clocked: declared.clocked };
    let mut inputs: Vec<(usize, Port)> =
        search.inputs.into_iter().map(|(input, lane)| (lane, input)).collect();
    inputs.sort_unstable();
    (waits, inputs.into_iter().map(|(_, input)| input).collect())
}

/// Schedulers behind one another, at most: behind more, packets wait in front of these.
const DEEPEST: u32 = 32;

/// Returns true if a class chooses an input to pull from.
fn is_scheduler(class: &Class) -> bool {
    ["RoundRobinSched", "PrioSched", "StrideSched"].contains(&class.name)
}

impl Turns {
    /// All lanes.
    fn lanes(&self) -> Vec<usize> {
        match self {
            Turns::Lane(lane) => vec![*lane],
            Turns::RoundRobin(all) | Turns::First(all) => all.iter().flat_map(Turns::lanes).collect(),
            Turns::Strides(all) => all.iter().flat_map(|(_, turns)| turns.lanes()).collect(),
        }
    }

    /// Returns true if a lane of the others is among these.
    fn has(&self, others: &Turns) -> bool {
        let own = self.lanes();
        others.lanes().iter().any(|lane| own.contains(lane))
    }
}

struct Search<'s> {
    graph: &'s Graph,
    classes: &'s [&'static Class],
    declared: &'s Declared,
    ports: Vec<(u32, u32)>,
    /// The output that each input is connected to (one, where it pulls), and how many inputs each output.
    from: FxHashMap<Port, Port>,
    pullers: FxHashMap<Port, usize>,
    ways: Ways,
    lanes: Vec<Lane>,
    inputs: FxHashMap<Port, usize>,
    /// Schedulers that were looked into: each has its place once.
    seen: FxHashSet<usize>,
    /// Elements of time that another one pulls from, by which lane.
    fed: Vec<(usize, usize)>,
}

impl Search<'_> {
    /// Turns that an input pulls from, for the element `of`.
    fn turns(&mut self, mut input: Port, of: usize, depth: u32) -> Turns {
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
                if let Turns::Lane(lane) = turns {
                    self.fed.push((element, lane));
                }
                return turns;
            }
            let behind = Port { element, port: 0 };
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
    fn scheduled(&mut self, element: usize, inputs: u32, of: usize, depth: u32) -> Option<Turns> {
        if depth == DEEPEST || !is_scheduler(self.classes[element]) || !self.seen.insert(element) {
            return None;
        }
        let all: Vec<Option<Turns>> =
            (0..inputs).map(|port| Some(self.turns(Port { element, port }, of, depth + 1))).collect();
        Some(self.of_class(element, all))
    }

    /// Turns of a scheduler's inputs, by its class; those of some inputs are not known.
    fn of_class(&self, element: usize, all: Vec<Option<Turns>>) -> Turns {
        match self.classes[element].name {
            "RoundRobinSched" => Turns::RoundRobin(all.into_iter().flatten().collect()),
            "PrioSched" => Turns::First(all.into_iter().flatten().collect()),
            _ => {
                let tickets = self.declared.tickets.get(&element).cloned().unwrap_or_default();
                let clients = tickets.into_iter().chain(std::iter::repeat(1)).zip(all);
                Turns::Strides(clients.filter_map(|(tickets, turns)| Some((tickets, turns?))).collect())
            }
        }
    }

    /// Turns of sources that schedulers pull from, but for those that elements of time pull from.
    fn pulls(&mut self, sources: &[usize]) -> Vec<Turns> {
        let mut outermost: Vec<(usize, Turns)> = Vec::new();
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
    fn pulled(&self, element: usize, sources: &[usize], depth: u32) -> Option<(Vec<usize>, Turns)> {
        if depth == DEEPEST || self.seen.contains(&element) || !is_scheduler(self.classes[element]) {
            return None;
        }
        let (mut all, mut inner) = (Vec::new(), Vec::new());
        for port in 0..self.ports[element].0 {
            let turns = match self.begins(Port { element, port })? {
                from if sources.contains(&from) => {
                    sources.iter().position(|source| *source == from).map(Turns::Lane)
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
    fn begins(&self, mut input: Port) -> Option<usize> {
        for _ in 0..self.graph.elements.len() {
            let from = *self.from.get(&input)?;
            let waits = self.declared.queues.contains_key(&from.element)
                || self.declared.paces.contains_key(&from.element);
            if waits || self.ports[from.element].0 != 1 || is_scheduler(self.classes[from.element]) {
                return Some(from.element);
            }
            input = Port { element: from.element, port: 0 };
        }
        None
    }

    fn lane(&mut self, input: Port, element: usize, queue: Option<Queued>) -> Turns {
        let lane = *self.inputs.entry(input).or_insert_with(|| {
            let element = self.graph.elements[element].name.clone();
            // Positions are known when the code is generated.
            let (numbered, notes) = (Part::default(), Vec::new());
            self.lanes.push(Lane { element, queue, number: 0, numbered, notes });
            self.lanes.len() - 1
        });
        Turns::Lane(lane)
    }
}

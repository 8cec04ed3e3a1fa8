//! Sources that make their packets up: datagrams of many flows, echo requests, one packet at a rate.
//!
//! Their packets are made when the configuration is read, and are the same in every run. Sources declare
//! their times ([`SourceSchedule`]): evenly, at a rate, or after equal intervals; without either, or if runs
//! have no clock, packets are sent as fast as they are taken.

use std::net::Ipv4Addr;

use super::ip::HEADER as IP;
use millstream_click::arguments::{SECOND, boolean, ether, ip, seconds, string, unsigned};
use millstream_click::build::ElementBuilder;
use millstream_click::class::{ElementClass, ElementCodegen, ElementResult};
use millstream_click::keyword::{ArgumentSpec, COUNT, IgnoredValueKind, at, key, moot, refused_but};
use millstream_click::packet::{Annotation, PacketValues};
use millstream_click::token_rates::bandwidth;
use millstream_click::{
    ElementSetup, Error, GraphSource, HandlerAccess, NO_INPUT, SettingType, SettingValue, SourceSchedule,
    SpannedText, unquote,
};

/// Room in front of packets.
pub(super) const HEADROOM: ArgumentSpec = moot("HEADROOM", IgnoredValueKind::Number(0, 216), ROOM);
const ROOM: &str = "every packet has 216 bytes in front of it, for which more is refused";
/// Default data of packets of sources.
const DEFAULT_DATA: &str = "Random bullshit in a packet, at least 64 bytes long. Well, now it is.";
const SENT: &str = "packets are sent one by one, at their times";
const FLOWS: &[ArgumentSpec] = &[
    at("RATE"),
    at("LIMIT"),
    at("LENGTH"),
    at("SRCETH"),
    at("SRCIP"),
    at("DSTETH"),
    at("DSTIP"),
    at("FLOWS"),
    at("FLOWSIZE"),
    moot("BURST", COUNT, SENT),
    key("FLOWBURST"),
    key("CHECKSUM"),
    key("SEQUENTIAL"),
    moot("DUPLICATE", IgnoredValueKind::Truth, "a packet is the same whether its bytes are copied or not"),
    key("ACTIVE"),
    key("STOP"),
];
const DATAGRAMS: &[ArgumentSpec] = &[
    at("RATE"),
    at("LIMIT"),
    at("LENGTH"),
    at("SRCETH"),
    at("SRCIP"),
    at("SPORT"),
    at("DSTETH"),
    at("DSTIP"),
    at("DPORT"),
    at("CHECKSUM"),
    refused_but("INTERVAL", &["0"], "packets are sent at a rate").or_at(),
    at("ACTIVE"),
    key("STOP"),
];
const RATED: &[ArgumentSpec] = &[
    at("DATA"),
    at("RATE"),
    at("LIMIT"),
    at("ACTIVE"),
    HEADROOM,
    key("LENGTH"),
    key("DATASIZE"),
    key("STOP"),
    key("BANDWIDTH"),
    key("END_CALL"),
];
const TIMED: &[ArgumentSpec] =
    &[at("INTERVAL"), at("DATA"), key("LIMIT"), key("ACTIVE"), key("STOP"), HEADROOM];
const PINGS: &[ArgumentSpec] = &[
    at("SRC"),
    at("DST"),
    key("INTERVAL"),
    key("IDENTIFIER"),
    key("DATA"),
    key("LIMIT"),
    key("ACTIVE"),
    moot("VERBOSE", IgnoredValueKind::Truth, "no line is printed for an answer"),
    key("STOP"),
    refused_but("MIRROR", &["false"], "answers are not sent back as they came"),
];

const fn source(
    name: &'static str,
    about: &'static str,
    processing: &'static str,
    arguments: &'static [ArgumentSpec],
    make: fn(&mut ElementSetup<'_>) -> ElementResult,
) -> ElementClass {
    ElementClass { ports: "0/1", processing, ..ElementClass::filter(name, about, arguments, make) }.passing()
}

pub(super) const CLASSES: &[ElementClass] = &[
    source("FastUDPFlows", "Sends datagrams of many flows.", "/a", FLOWS, flows),
    source("FastUDPSource", "Sends datagrams of one flow.", "/a", DATAGRAMS, datagrams),
    source("RatedSource", "Sends a packet at a rate.", "/a", RATED, rated),
    source("TimedSource", "Sends a packet after equal times.", "/h", TIMED, timed),
    ElementClass {
        ports: "0-1/1",
        ..source("ICMPPingSource", "Sends echo requests, and takes the answers.", "h/a", PINGS, pings)
    },
];

/// Packets that are made, at most: then they are sent again from the first on.
const MOST: u64 = 1 << 14;
/// Bytes of a frame, at least and at most.
const SHORTEST: u64 = 60;
const LONGEST: u64 = 1514;
/// Bytes of data, at most.
const LONGEST_DATA: u64 = 65_535;
/// Bytes of an Ethernet header, and of those of IP and UDP.
const ETHER: usize = 14;
const HEADERS: usize = 28;
/// Time to live.
const HOPS: u8 = 250;
const PING_HOPS: u8 = 200;
const UDP: u8 = 17;
const ICMP: u8 = 1;

/// Notes where the IP header is and where the packet is to go.
struct DatagramSource {
    header: i64,
    destination: u32,
}

impl ElementCodegen for DatagramSource {
    fn build(&self, code: &mut ElementBuilder<'_, '_>, _: u32, packet: PacketValues) {
        let (network, yes) = (code.at(packet.data, self.header), code.truth(true));
        let destination = code.int(i64::from(self.destination));
        let packet = packet.with(Annotation::Network, network).with(Annotation::HasNetwork, yes);
        code.out(0, packet.with(Annotation::Destination, destination));
    }
}

/// Makes echo requests, and takes the answers.
struct PingSource(DatagramSource);

impl ElementCodegen for PingSource {
    fn build(&self, code: &mut ElementBuilder<'_, '_>, port: u32, packet: PacketValues) {
        match port {
            NO_INPUT => self.0.build(code, port, packet),
            _ => code.drop(packet, "answer"),
        }
    }
}

/// Passes packets without a header that is known.
struct ConstantSource;

impl ElementCodegen for ConstantSource {
    fn build(&self, code: &mut ElementBuilder<'_, '_>, _: u32, packet: PacketValues) {
        code.out(0, packet);
    }
}

/// Counts the packets that a source makes.
struct CountedSource {
    counter: u32,
    /// Input at which packets begin.
    port: u32,
    source: Box<dyn ElementCodegen>,
}

impl ElementCodegen for CountedSource {
    fn build(&self, code: &mut ElementBuilder<'_, '_>, port: u32, packet: PacketValues) {
        if port == self.port {
            let one = code.int(1);
            code.count(self.counter, one);
        }
        self.source.build(code, port, packet);
    }
}

/// When a source sends: as fast as it can, unless it says otherwise.
#[derive(Clone, Copy, Default)]
pub(super) struct SourcePacing {
    beat: Option<SourceSchedule>,
    /// The setting that has its rate, if somebody may write that.
    rate: Option<u32>,
}

impl SourcePacing {
    /// One packet after each of so many nanoseconds.
    fn every(time: u64) -> SourcePacing {
        SourcePacing { beat: (time > 0).then_some(SourceSchedule::Every(time)), rate: None }
    }
}

/// The element as a source of these packets, which it sends only if it is active: with the handlers `count`,
/// `limit`, `active` and `reset`.
pub(super) fn generator(
    setup: &mut ElementSetup<'_>,
    port: u32,
    packets: GraphSource,
    (active, pacing): (bool, SourcePacing),
    source: impl ElementCodegen + 'static,
) -> ElementResult {
    if let Some(beat) = pacing.beat {
        match setup.is_timed() {
            true => {
                setup.declare_schedule(beat);
                setup.require_single_worker("it sends at times of its own");
            }
            false => at_once(setup),
        }
    }
    let limit = packets.limit().map_or(-1, |limit| i64::try_from(limit).unwrap_or(i64::MAX));
    let counter = setup.counter("count");
    setup.at_end()?;
    if pacing.rate.is_some() || setup.written(&["active", "limit", "reset"]) {
        setup.add_controlled_source(port, packets, (counter, pacing.rate), [limit, i64::from(active)]);
    } else {
        setup.handler("limit", HandlerAccess::Constant(limit.to_string()));
        setup.handler("active", HandlerAccess::Constant(active.to_string()));
        setup.source_at(port, packets.active(active));
    }
    Ok(Box::new(CountedSource { counter, port, source: Box::new(source) }))
}

/// Numbers that look random and are the same in every run (splitmix64).
struct SplitMix(u64);

impl SplitMix {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    fn port(&mut self) -> u16 {
        (self.next() % 0xffff) as u16
    }
}

/// The checksum of bytes, on top of a sum of 16-bit words.
fn checksum(bytes: &[u8], sum: u32) -> u16 {
    let word = |pair: &[u8]| u32::from(pair[0]) << 8 | u32::from(pair.get(1).copied().unwrap_or(0));
    let mut sum = sum + bytes.chunks(2).map(word).sum::<u32>();
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    !(sum as u16)
}

/// An IP header, with its checksum.
fn ip_header(length: usize, id: u16, hops: u8, protocol: u8, [from, to]: [u32; 2]) -> Vec<u8> {
    let mut header = [&[0x45, 0][..], &(length as u16).to_be_bytes(), &id.to_be_bytes(), &[0, 0]].concat();
    header.extend([hops, protocol, 0, 0]);
    header.extend([from.to_be_bytes(), to.to_be_bytes()].as_flattened());
    let sum = checksum(&header, 0);
    header[10..12].copy_from_slice(&sum.to_be_bytes());
    header
}

/// Fields that all datagrams of a source have in common.
struct DatagramTemplate {
    ethers: [[u8; 6]; 2],
    addresses: [u32; 2],
    length: usize,
    checksum: bool,
}

impl DatagramTemplate {
    /// With these ports.
    fn frame(&self, ports: [u16; 2]) -> Vec<u8> {
        let bytes = self.length - ETHER - IP as usize;
        let mut datagram =
            [ports[0], ports[1], bytes as u16, 0].map(u16::to_be_bytes).as_flattened().to_vec();
        datagram.resize(bytes, 0);
        if self.checksum {
            let halves = self.addresses.map(|address| (address >> 16) + (address & 0xffff));
            let sum = checksum(&datagram, halves[0] + halves[1] + u32::from(UDP) + bytes as u32);
            // A sum of zero would mean that the datagram has none.
            let sum = if sum == 0 { u16::MAX } else { sum };
            datagram[6..8].copy_from_slice(&sum.to_be_bytes());
        }
        let [source, destination] = self.ethers;
        let header = ip_header(self.length - ETHER, 0, HOPS, UDP, self.addresses);
        [&destination[..], &source, &[8, 0], &header, &datagram].concat()
    }
}

/// A limit; `None` without one.
pub(super) fn limit(text: &SpannedText) -> Result<Option<u64>, Error> {
    match text.text.starts_with('-') {
        true => Ok(None),
        false => unsigned(text, u64::MAX).map(Some),
    }
}

/// Says that packets come as fast as they are taken, in runs without a clock.
fn at_once(setup: &mut ElementSetup<'_>) {
    let message =
        format!("`{}` sends as fast as it can: there is no time between packets", setup.element.class);
    setup.warn(Error::new(setup.element.span, message));
}

/// At this rate.
fn at_rate(setup: &mut ElementSetup<'_>, rate: u64) -> SourcePacing {
    let live = match setup.setting("rate", SettingType::Number(0, i64::MAX), rate as i64) {
        SettingValue::Live(at) => Some(at),
        SettingValue::Fixed(_) => None,
    };
    SourcePacing { beat: Some(SourceSchedule::Rate(rate)), rate: live }
}

/// At the rate that is said; without one, or at 0, as fast as it can.
fn rate(setup: &mut ElementSetup<'_>) -> Result<SourcePacing, Error> {
    let rate = setup.arguments.or("RATE", 0, |text| unsigned(text, i64::MAX as u64))?;
    let pacing = at_rate(setup, rate);
    Ok(if rate == 0 { SourcePacing::default() } else { pacing })
}

/// A frame's length, at least the minimum.
fn frame_length(text: &SpannedText) -> Result<usize, Error> {
    unsigned(text, LONGEST).map(|length| length.max(SHORTEST) as usize)
}

fn flows(setup: &mut ElementSetup<'_>) -> ElementResult {
    let names = setup.arguments.names;
    let pacing = rate(setup)?;
    let limit = limit(&setup.arguments.need("LIMIT")?)?;
    let length = frame_length(&setup.arguments.need("LENGTH")?)?;
    let (from, from_ip) = (setup.arguments.need("SRCETH")?, setup.arguments.need("SRCIP")?);
    let (to, to_ip) = (setup.arguments.need("DSTETH")?, setup.arguments.need("DSTIP")?);
    let ethers = [ether(&from, names)?, ether(&to, names)?];
    let addresses = [ip(&from_ip, names)?, ip(&to_ip, names)?];
    let count = setup.arguments.need("FLOWS")?;
    let count = match unsigned(&count, MOST)? {
        0 => return Err(Error::new(count.span, "there must be a flow at least")),
        count => count,
    };
    let size = unsigned(&setup.arguments.need("FLOWSIZE")?, u64::MAX)?;
    let burst = setup.arguments.keyword_or("FLOWBURST", 1, |text| unsigned(text, u64::MAX))?;
    let checksum = setup.arguments.keyword_or("CHECKSUM", true, boolean)?;
    let sequential = setup.arguments.keyword_or("SEQUENTIAL", false, boolean)?;
    let active = setup.arguments.keyword_or("ACTIVE", true, boolean)?;
    let datagram = DatagramTemplate { ethers, addresses, length, checksum };
    let plan = FlowPlan { flows: count as usize, size, burst, sequential };
    let number = limit.unwrap_or(MOST).min(MOST);
    let frames = plan.ports(number, setup.sources() as u64).into_iter().map(|ports| datagram.frame(ports));
    let generated = DatagramSource { header: ETHER as i64, destination: addresses[1] };
    generator(setup, 0, GraphSource::Frames(frames.collect(), limit), (active, pacing), generated)
}

/// Which flows packets are of.
struct FlowPlan {
    flows: usize,
    /// Packets until a flow gets other ports.
    size: u64,
    /// Packets of a flow, one behind the other.
    burst: u64,
    sequential: bool,
}

impl FlowPlan {
    /// The ports of so many packets.
    fn ports(&self, number: u64, seed: u64) -> Vec<[u16; 2]> {
        let mut random = SplitMix(seed);
        let mut flows: Vec<([u16; 2], u64)> =
            (0..self.flows).map(|_| ([random.port(), random.port()], 0)).collect();
        let (mut at, mut next, mut left) = (0, 0, 0);
        let packet = |_| {
            if left == 0 {
                at = if self.sequential { next % self.flows } else { random.next() as usize % self.flows };
                next += 1;
                left = self.burst.max(1);
            }
            left -= 1;
            let (ports, sent) = &mut flows[at];
            if *sent >= self.size {
                *ports = match self.sequential {
                    true => ports.map(|port| port.wrapping_add(1)),
                    false => [random.port(), random.port()],
                };
                *sent = 0;
            }
            *sent += 1;
            *ports
        };
        (0..number).map(packet).collect()
    }
}

fn datagrams(setup: &mut ElementSetup<'_>) -> ElementResult {
    let names = setup.arguments.names;
    let pacing = rate(setup)?;
    let port = |text: &SpannedText| unsigned(text, 0xffff).map(|port| port as u16);
    let limit = setup.arguments.or("LIMIT", None, limit)?;
    let length = setup.arguments.or("LENGTH", SHORTEST as usize, frame_length)?;
    let local = u32::from(Ipv4Addr::LOCALHOST);
    let from = setup.arguments.or("SRCETH", [0; 6], |text| ether(text, names))?;
    let from_ip = setup.arguments.or("SRCIP", local, |text| ip(text, names))?;
    let from_port = setup.arguments.or("SPORT", 1000, port)?;
    let to = setup.arguments.or("DSTETH", [0; 6], |text| ether(text, names))?;
    let to_ip = setup.arguments.or("DSTIP", local, |text| ip(text, names))?;
    let to_port = setup.arguments.or("DPORT", 1000, port)?;
    let checksum = setup.arguments.or("CHECKSUM", true, boolean)?;
    let active = setup.arguments.or("ACTIVE", true, boolean)?;
    let datagram = DatagramTemplate { ethers: [from, to], addresses: [from_ip, to_ip], length, checksum };
    let frame = datagram.frame([from_port, to_port]);
    let generated = DatagramSource { header: ETHER as i64, destination: to_ip };
    generator(setup, 0, GraphSource::Constant(frame, limit), (active, pacing), generated)
}

/// So many bytes, which are these again and again.
pub(super) fn repeated(data: &[u8], length: u64) -> Vec<u8> {
    data.iter().copied().cycle().take(length as usize).collect()
}

/// DATA, or Click's default, extended or cut to LENGTH.
pub(super) fn data(setup: &mut ElementSetup<'_>) -> Result<Vec<u8>, Error> {
    let data = setup.arguments.next("DATA").map(|text| unquote(&text.text));
    let data = data.unwrap_or_else(|| DEFAULT_DATA.as_bytes().to_vec());
    let length = setup.arguments.keyword("DATASIZE");
    let Some(text) = setup.arguments.keyword("LENGTH").or(length).filter(|text| !text.text.starts_with('-'))
    else {
        return Ok(data);
    };
    let length = unsigned(&text, LONGEST_DATA)?;
    if data.is_empty() && length > 0 {
        return Err(Error::new(text.span, "no number of bytes is made of DATA that has none"));
    }
    Ok(repeated(&data, length))
}

fn rated(setup: &mut ElementSetup<'_>) -> ElementResult {
    let data = data(setup)?;
    let rate = setup.arguments.or("RATE", 10, |text| unsigned(text, i64::MAX as u64))?;
    let limit = setup.arguments.or("LIMIT", None, limit)?;
    let active = setup.arguments.or("ACTIVE", true, boolean)?;
    let bytes = setup.arguments.keyword_or("BANDWIDTH", 0, bandwidth)?;
    let rate = if bytes > 0 { bytes / (data.len() as u64).max(1) } else { rate };
    let pacing = at_rate(setup, rate);
    generator(setup, 0, GraphSource::Constant(data, limit), (active, pacing), ConstantSource)
}

fn timed(setup: &mut ElementSetup<'_>) -> ElementResult {
    let interval = setup.arguments.or("INTERVAL", SECOND / 2, seconds)?;
    let data = data(setup)?;
    let limit = setup.arguments.keyword_or("LIMIT", None, limit)?;
    let active = setup.arguments.keyword_or("ACTIVE", true, boolean)?;
    generator(
        setup,
        0,
        GraphSource::Constant(data, limit),
        (active, SourcePacing::every(interval)),
        ConstantSource,
    )
}

fn pings(setup: &mut ElementSetup<'_>) -> ElementResult {
    let names = setup.arguments.names;
    let from = ip(&setup.arguments.need("SRC")?, names)?;
    let to = ip(&setup.arguments.need("DST")?, names)?;
    let interval = setup.arguments.keyword_or("INTERVAL", SECOND, seconds)?;
    let identifier = setup.arguments.keyword_or("IDENTIFIER", 0, |text| unsigned(text, 0xffff))? as u16;
    let data = setup.arguments.keyword("DATA").map_or(Vec::new(), |text| string(&text).into_bytes());
    let limit = setup.arguments.keyword_or("LIMIT", None, limit)?;
    let active = setup.arguments.keyword_or("ACTIVE", true, boolean)?;
    let request = |number: u64| {
        let number = (number % 0xffff) as u16 + 1;
        // The peer writes the identifier in the order of the machine.
        let head = [&[8, 0, 0, 0][..], &identifier.to_le_bytes(), &number.to_be_bytes()];
        let mut message = [&head.concat()[..], &data].concat();
        let sum = checksum(&message, 0);
        message[2..4].copy_from_slice(&sum.to_be_bytes());
        [ip_header(IP as usize + message.len(), number, PING_HOPS, ICMP, [from, to]), message].concat()
    };
    let frames = (0..limit.unwrap_or(MOST).min(MOST)).map(request).collect();
    let pings = PingSource(DatagramSource { header: 0, destination: to });
    generator(
        setup,
        NO_INPUT,
        GraphSource::Frames(frames, limit),
        (active, SourcePacing::every(interval)),
        pings,
    )
}

const _: () = assert!(HEADERS as u64 + ETHER as u64 <= SHORTEST);

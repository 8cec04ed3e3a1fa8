//! Sources and destinations of packets.

use millstream_ir::{Map, Type, Value};
use millstream_isa::{AluOp, Cond};

use crate::capture_filter::{CaptureFilter, filter, write};
use crate::generators::{HEADROOM, SourcePacing, data, generator, repeated};
use crate::link_types;
use millstream_click::arguments::{boolean, ether, string, unsigned};
use millstream_click::build::ElementBuilder;
use millstream_click::class::{ElementClass, ElementCodegen, ElementResult};
use millstream_click::keyword::{
    ArgumentSpec, COUNT, IgnoredValueKind, NUMBER, at, key, moot, refused, refused_but,
};
use millstream_click::packet::{Annotation, BROADCAST, HOST, MULTICAST, PacketValues};
use millstream_click::{
    CaptureOptions, Element, ElementSetup, Error, GraphSink, GraphSource, HandlerAccess, NO_INPUT,
    SettingType, SettingValue, SpannedText, ether_number,
};

const DRIVEN: &str = "`--io` says how a device is driven, and which packets it has";
const WORKERS: &str = "`--workers` says how many there are; each has its packets by their flows";
const STAMPED: &str = "every packet has the time at which it came";
const NO_TASKS: &str = "there are no tasks: packets are taken as they come, a batch at once";
const CARD: &str = "a card is left as the system has it: `ethtool` and `ip link` set it";
const OFFLOADED: &str = "checksums are set by elements, whatever a card could do";
const ACTIVE: ArgumentSpec =
    refused_but("ACTIVE", &["true"], "a device gives its packets from the beginning");
const TOLD: &str = "the report has all counts";
const NO_FLAG: &[&str] = &["false"];
const INTERFACE: &str =
    "an interface has the addresses that the machine gives it (`ip address`), which no packet here sees";

/// An interface, by raw sockets or by libpcap.
const FROM_DEVICE: &[ArgumentSpec] = &[
    at("DEVNAME"),
    moot("PROMISC", IgnoredValueKind::Truth, "what an interface lets in is set by `ip link set promisc`")
        .or_at(),
    at("SNAPLEN"),
    moot(
        "SNIFFER",
        IgnoredValueKind::Truth,
        "the packets here are the same: by `--io xdp` the kernel has none of them, else all",
    ),
    key("FORCE_IP"),
    key("METHOD"),
    key("CAPTURE"),
    key("BPF_FILTER"),
    key("PROTOCOL"),
    refused_but("OUTBOUND", NO_FLAG, "what this machine sends is not among what an interface receives"),
    HEADROOM,
    refused_but("ENCAP", &["ETHER"], "interfaces have Ethernet frames, but for those of `KernelTun`"),
    moot("BURST", IgnoredValueKind::Number(1, u64::MAX), NO_TASKS),
    moot("TIMESTAMP", IgnoredValueKind::Truth, STAMPED),
    ACTIVE,
];
/// As in Click, whose kernel module takes other arguments.
const POLL_DEVICE: &[ArgumentSpec] = &[
    at("DEVNAME"),
    moot("BURST", COUNT, NO_TASKS).or_at(),
    moot("PROMISC", IgnoredValueKind::Truth, "what an interface lets in is set by `ip link set promisc`"),
    moot("TIMESTAMP", IgnoredValueKind::Truth, STAMPED),
    moot("QUIET", IgnoredValueKind::Truth, TOLD),
    moot("ALLOW_NONEXISTENT", IgnoredValueKind::Truth, DRIVEN),
    HEADROOM,
    moot("LENGTH", COUNT, DRIVEN),
];
const FROM_DPDK: &[ArgumentSpec] = &[
    at("PORT"),
    refused_but("QUEUE", &["0", "-1"], "a device gives the packets of all its queues").or_at(),
    moot("PROMISC", IgnoredValueKind::Truth, "a device gives all packets that reach it").or_at(),
    refused_but("VLAN_FILTER", NO_FLAG, "tags are left to elements").or_at(),
    refused_but("VLAN_STRIP", NO_FLAG, "tags are left to elements").or_at(),
    refused_but("VLAN_EXTEND", NO_FLAG, "tags are left to elements").or_at(),
    refused_but("LRO", NO_FLAG, "segments stay as they come").or_at(),
    moot("JUMBO", IgnoredValueKind::Truth, CARD).or_at(),
    moot("N_QUEUES", NUMBER, WORKERS),
    moot("MAXTHREADS", NUMBER, WORKERS),
    moot("MINTHREADS", NUMBER, WORKERS),
    moot("THREADOFFSET", NUMBER, WORKERS),
    moot("NUMA", IgnoredValueKind::Truth, WORKERS),
    moot("NUMA_NODE", NUMBER, WORKERS),
    moot("SCALE", IgnoredValueKind::Any, WORKERS),
    moot("VERBOSE", IgnoredValueKind::Any, TOLD),
    ACTIVE,
    moot("ALLOW_NONEXISTENT", IgnoredValueKind::Truth, DRIVEN),
    moot("NDESC", NUMBER, CARD),
    key("MAC"),
    moot("MTU", COUNT, CARD),
    refused_but("MODE", &["none", "rss"], "no rules are given to a card, whose packets come here all"),
    refused("FLOW_RULES_FILE", "no rules are given to a card, whose packets come here all"),
    refused_but("FLOW_ISOLATE", NO_FLAG, "no rules are given to a card, whose packets come here all"),
    refused_but("VF_POOLS", &["0"], "a card is not split into virtual functions"),
    refused("VF_VLAN", "a card is not split into virtual functions"),
    moot("MINQUEUES", NUMBER, WORKERS),
    moot("MAXQUEUES", NUMBER, WORKERS),
    moot("RX_INTR", NUMBER, DRIVEN),
    moot("MAX_RSS", NUMBER, WORKERS),
    moot("RETA_SIZE", NUMBER, WORKERS),
    moot("TIMESTAMP", IgnoredValueKind::Truth, STAMPED),
    key("RSS_AGGREGATE"),
    refused_but("PAINT_QUEUE", NO_FLAG, "packets are not painted by their queues"),
    moot("BURST", NUMBER, NO_TASKS),
    moot("CLEAR", IgnoredValueKind::Truth, "packets come without annotations"),
    moot("PAUSE", IgnoredValueKind::Any, CARD),
    moot("IPCO", IgnoredValueKind::Truth, OFFLOADED),
    moot("TCO", IgnoredValueKind::Truth, OFFLOADED),
    moot("UCO", IgnoredValueKind::Truth, OFFLOADED),
    moot("POWER_MGMT", IgnoredValueKind::Any, DRIVEN),
];
const FROM_NETMAP: &[ArgumentSpec] = &[
    at("DEVNAME"),
    refused_but("QUEUE", &["0", "-1"], "a device gives the packets of all its queues").or_at(),
    moot("PROMISC", IgnoredValueKind::Truth, "a device gives all packets that reach it").or_at(),
    moot("N_QUEUES", NUMBER, WORKERS),
    moot("MAXTHREADS", NUMBER, WORKERS),
    moot("THREADOFFSET", NUMBER, WORKERS),
    moot("NUMA", IgnoredValueKind::Truth, WORKERS),
    moot("VERBOSE", IgnoredValueKind::Any, TOLD),
    ACTIVE,
    moot("ALLOW_NONEXISTENT", IgnoredValueKind::Truth, DRIVEN),
    moot("BURST", NUMBER, NO_TASKS),
    moot("KEEPHAND", IgnoredValueKind::Truth, DRIVEN),
];
const FULL: &str = "what a device does not take is lost, and the report says how many";
const SENT_AT_ONCE: &str = "what is sent is handed to the device when its batch is done with";
const TO_DEVICE: &[ArgumentSpec] = &[
    at("DEVNAME"),
    moot("BURST", COUNT, SENT_AT_ONCE),
    refused_but("METHOD", &["LINUX", "PCAP"], "`--io` says how packets are sent"),
    moot("DEBUG", IgnoredValueKind::Truth, TOLD),
    moot("NO_PAD", IgnoredValueKind::Truth, "frames are sent as they are"),
    moot("QUEUE", COUNT, SENT_AT_ONCE),
];
const TO_DPDK: &[ArgumentSpec] = &[
    at("PORT"),
    moot("QUEUE", NUMBER, SENT_AT_ONCE).or_at(),
    moot("N_QUEUES", NUMBER, WORKERS),
    moot("MAXTHREADS", NUMBER, WORKERS),
    moot("THREADOFFSET", NUMBER, WORKERS),
    moot("NUMA", IgnoredValueKind::Truth, WORKERS),
    moot("VERBOSE", IgnoredValueKind::Any, TOLD),
    ACTIVE,
    moot("ALLOW_NONEXISTENT", IgnoredValueKind::Truth, DRIVEN),
    moot("IQUEUE", NUMBER, SENT_AT_ONCE),
    moot("BLOCKING", IgnoredValueKind::Truth, FULL),
    moot("TIMEOUT", NUMBER, SENT_AT_ONCE),
    moot("NDESC", NUMBER, CARD),
    moot("MAXQUEUES", NUMBER, WORKERS),
    moot("ALLOC", IgnoredValueKind::Truth, "packets are copied where a device needs buffers of its own"),
    moot("BURST", NUMBER, SENT_AT_ONCE),
    refused_but("TSO", NO_FLAG, "segments are sent as they are"),
    moot("IPCO", IgnoredValueKind::Truth, OFFLOADED),
    moot("TCO", IgnoredValueKind::Truth, OFFLOADED),
    moot("UCO", IgnoredValueKind::Truth, OFFLOADED),
];
const TO_NETMAP: &[ArgumentSpec] = &[
    at("DEVNAME"),
    moot("QUEUE", NUMBER, SENT_AT_ONCE).or_at(),
    moot("N_QUEUES", NUMBER, WORKERS),
    moot("MAXTHREADS", NUMBER, WORKERS),
    moot("THREADOFFSET", NUMBER, WORKERS),
    moot("NUMA", IgnoredValueKind::Truth, WORKERS),
    moot("VERBOSE", IgnoredValueKind::Any, TOLD),
    ACTIVE,
    moot("ALLOW_NONEXISTENT", IgnoredValueKind::Truth, DRIVEN),
    moot("IQUEUE", NUMBER, SENT_AT_ONCE),
    moot("BLOCKING", IgnoredValueKind::Truth, FULL),
    moot("BURST", NUMBER, SENT_AT_ONCE),
];
const FROM_HOST: &[ArgumentSpec] = &[
    at("DEVNAME"),
    moot("DST", IgnoredValueKind::Any, INTERFACE).or_at(),
    moot("GATEWAY", IgnoredValueKind::Any, INTERFACE),
    moot("ETHER", IgnoredValueKind::Any, INTERFACE),
    HEADROOM,
    moot("MTU", COUNT, INTERFACE),
];
const TO_HOST: &[ArgumentSpec] = &[at("DEVNAME")];
const FROM_RING: &[ArgumentSpec] = &[
    moot("MEM_POOL", IgnoredValueKind::Any, "the ring is a device, whose memory is its own").or_at(),
    at("FROM_PROC"),
    at("TO_PROC"),
    moot("BURST", COUNT, NO_TASKS),
    moot("NDESC", COUNT, CARD),
    moot("FORCE_CREATE", IgnoredValueKind::Truth, DRIVEN),
    moot("FORCE_LOOKUP", IgnoredValueKind::Truth, DRIVEN),
    moot("NUMA_ZONE", NUMBER, DRIVEN),
    moot("SC_DEQ", IgnoredValueKind::Truth, DRIVEN),
    moot("SP_ENQ", IgnoredValueKind::Truth, DRIVEN),
];
const TO_RING: &[ArgumentSpec] = &[
    moot("MEM_POOL", IgnoredValueKind::Any, "the ring is a device, whose memory is its own").or_at(),
    at("FROM_PROC"),
    at("TO_PROC"),
    moot("IQUEUE", COUNT, SENT_AT_ONCE),
    moot("BLOCKING", IgnoredValueKind::Truth, FULL),
    moot("TIMEOUT", NUMBER, SENT_AT_ONCE),
    moot("BURST", COUNT, NO_TASKS),
    moot("NDESC", COUNT, CARD),
    moot("FORCE_CREATE", IgnoredValueKind::Truth, DRIVEN),
    moot("FORCE_LOOKUP", IgnoredValueKind::Truth, DRIVEN),
    moot("NUMA_ZONE", NUMBER, DRIVEN),
    moot("SC_DEQ", IgnoredValueKind::Truth, DRIVEN),
    moot("SP_ENQ", IgnoredValueKind::Truth, DRIVEN),
];

/// Interfaces that Click makes.
const TUNNEL: &[ArgumentSpec] = &[
    moot("ADDR", IgnoredValueKind::Any, INTERFACE).or_at(),
    moot("GATEWAY", IgnoredValueKind::Any, INTERFACE).or_at(),
    refused_but("TAP", NO_FLAG, "`KernelTap` has Ethernet frames"),
    HEADROOM,
    moot("BURST", COUNT, NO_TASKS),
    moot("ETHER", IgnoredValueKind::Any, INTERFACE),
    moot("IGNORE_QUEUE_OVERFLOWS", IgnoredValueKind::Truth, FULL),
    moot("MTU", COUNT, INTERFACE),
    key("DEVNAME"),
    key("DEV_NAME"),
    moot("THREADS", NUMBER, WORKERS),
];

const fn tunnel(name: &'static str, about: &'static str) -> ElementClass {
    ElementClass {
        ports: "0-1/1-2",
        processing: "a/h",
        ..ElementClass::filter(name, about, TUNNEL, to_and_from)
    }
}

const fn source(
    name: &'static str,
    about: &'static str,
    arguments: &'static [ArgumentSpec],
    make: fn(&mut ElementSetup<'_>) -> ElementResult,
) -> ElementClass {
    ElementClass { ports: "0/1", processing: "/h", ..ElementClass::filter(name, about, arguments, make) }
        .passing()
}

const fn sink(
    name: &'static str,
    about: &'static str,
    processing: &'static str,
    arguments: &'static [ArgumentSpec],
) -> ElementClass {
    ElementClass { ports: "1/0", processing, ..ElementClass::filter(name, about, arguments, to_device) }
}

const RECEIVES: &str = "Is where packets of a device come from.";
const SENDS: &str = "Is where packets of a device go to.";

pub(super) const CLASSES: &[ElementClass] = &[
    ElementClass {
        ports: "0/1-2",
        passes_all: false,
        ..source("FromDevice", "Is where packets of an interface come from.", FROM_DEVICE, from_interface)
    },
    source("PollDevice", "Is where packets of an interface come from.", POLL_DEVICE, from_device),
    source("FromDPDKDevice", RECEIVES, FROM_DPDK, from_device),
    // PacketMill's: descriptors of packets are our own with every device.
    source("FromDPDKDeviceXCHG", RECEIVES, FROM_DPDK, from_device),
    source("FromNetmapDevice", RECEIVES, FROM_NETMAP, from_device),
    source("FromHost", "Is where packets of the host come from.", FROM_HOST, from_device),
    source("FromDPDKRing", "Is where packets of another process come from.", FROM_RING, from_ring),
    sink("ToDevice", "Is where packets of an interface go to.", "l", TO_DEVICE),
    sink("ToDPDKDevice", SENDS, "a", TO_DPDK),
    sink("ToDPDKDeviceXCHG", SENDS, "a", TO_DPDK),
    sink("ToNetmapDevice", SENDS, "a", TO_NETMAP),
    ElementClass {
        make: to_ring,
        ..sink("ToDPDKRing", "Is where packets to another process go.", "a", TO_RING)
    },
    tunnel("KernelTap", "Is an interface of the host, of Ethernet frames."),
    tunnel("KernelTun", "Is an interface of the host, of IP packets."),
    sink("ToHost", "Is where packets to the host go.", "a", TO_HOST),
    sink("ToHostSniffers", "Is where packets to those who listen on the host go.", "a", TO_HOST),
    ElementClass {
        ports: "0/1-2",
        processing: "/ah",
        passes_all: false,
        ..source("FromDump", "Reads packets from a capture.", FROM_DUMP, from_dump)
    },
    ElementClass {
        ports: "1/0-1",
        processing: "a/h",
        ..ElementClass::filter("ToDump", "Writes packets to a capture.", TO_DUMP, to_dump)
    },
    ElementClass {
        processing: "/a",
        ..source("InfiniteSource", "Sends a packet again and again.", CONSTANT, infinite)
    },
];

/// A whole capture, once.
const WHOLE: &str = "a capture is read from its beginning to its end";
const FROM_DUMP: &[ArgumentSpec] = &[
    at("FILENAME"),
    moot(
        "TIMING",
        IgnoredValueKind::Truth,
        "packets come at the times of the capture wherever something here goes by time",
    )
    .or_at(),
    key("STOP"),
    refused_but("ACTIVE", &["true"], WHOLE),
    refused_but("SAMPLE", &["1"], WHOLE),
    key("FORCE_IP"),
    refused_but("FORCE_LEN", &["-1"], "packets are as long as the capture has them"),
    refused("START", WHOLE),
    refused_but("START_AFTER", &["0"], WHOLE),
    refused("END", WHOLE),
    refused_but("END_AFTER", &["0"], WHOLE),
    refused("INTERVAL", WHOLE),
    key("END_CALL"),
    refused_but("FILEPOS", &["0"], WHOLE),
    moot("PRELOAD", NUMBER, "when a capture is read makes no difference to its packets"),
    refused_but("ACCELERATION", &["100"], "packets come at the times of the capture"),
    refused_but("TIMING_FNT", &["", "\"\"", "100", "\"100\""], "packets come at the times of the capture"),
    moot("BURST", COUNT, NO_TASKS),
    moot("MMAP", IgnoredValueKind::Truth, "how a capture is read makes no difference to its packets"),
    moot("DPDK", IgnoredValueKind::Truth, "how a capture is read makes no difference to its packets"),
];
const TO_DUMP: &[ArgumentSpec] = &[
    at("FILENAME"),
    at("SNAPLEN"),
    at("ENCAP"),
    key("USE_ENCAP_FROM"),
    key("EXTRA_LENGTH"),
    moot("UNBUFFERED", IgnoredValueKind::Truth, "the file is whole at the end of the run in any case"),
    moot("NANO", IgnoredValueKind::Truth, "times are written as exactly as they are known"),
    moot("FORCE_TS", IgnoredValueKind::Truth, "packets are written with the times at which they leave"),
];
const CONSTANT: &[ArgumentSpec] = &[
    at("DATA"),
    at("LIMIT"),
    moot("BURST", IgnoredValueKind::Number(1, u64::MAX), NO_TASKS).or_at(),
    at("ACTIVE"),
    moot("TIMESTAMP", IgnoredValueKind::Truth, STAMPED),
    HEADROOM,
    key("LENGTH"),
    key("DATASIZE"),
    key("STOP"),
    key("END_CALL"),
];

/// Notes how the link layer addressed the packet.
struct DeviceSource;

/// Bytes of an Ethernet address.
const ADDRESS: i64 = 6;

impl ElementCodegen for DeviceSource {
    fn build(&self, code: &mut ElementBuilder<'_, '_>, _: u32, packet: PacketValues) {
        // A packet without an address in front of it is for this host.
        let (beyond, host) = (code.at(packet.data, ADDRESS), code.int(HOST));
        let cast = code.when(Cond::Le, beyond, packet.end, &[host], |code| vec![cast(code, packet, 0)]);
        code.out(0, packet.with(Annotation::Cast, cast[0]));
    }
}

/// The packet type that the link layer gave a packet (this host, multicast or broadcast), from the Ethernet
/// header at an offset.
pub(super) fn cast(code: &mut ElementBuilder<'_, '_>, packet: PacketValues, offset: i32) -> Value {
    let (first, rest) = (code.word(packet.data, offset), code.half(packet.data, offset + 4));
    let group = code.with(AluOp::And, first, 0x0100_0000);
    let [host, multicast, broadcast] = [HOST, MULTICAST, BROADCAST].map(|n| code.int(n));
    let zero = code.int(0);
    let is_group = code.compare(Cond::Ne, group, zero);
    let high = code.with(AluOp::Lsh, first, 16);
    let address = code.alu(AluOp::Or, high, rest);
    let all = code.int(0xffff_ffff_ffff);
    let is_all = code.compare(Cond::Eq, address, all);
    let cast = code.select(is_group, multicast, host);
    code.select(is_all, broadcast, cast)
}

/// Refuses the hash of a card as the aggregate of packets, if an element may look at it. Others do not differ.
fn refuse_aggregate(setup: &mut ElementSetup<'_>) -> Result<(), Error> {
    let Some(text) = setup.arguments.keyword("RSS_AGGREGATE") else { return Ok(()) };
    let reads = |element: &&Element| {
        let said = |argument: &SpannedText| argument.text.to_ascii_lowercase().contains("aggregate");
        let prints = ["IPPrint", "ToIPSummaryDump"].contains(&element.class.as_str());
        element.class == "AggregateFirst" || prints && element.arguments.iter().any(said)
    };
    if boolean(&text)?
        && let Some(reader) = setup.elements().iter().find(reads)
    {
        let message = format!("`{}` would see what a card has hashed, which is not known here", reader.name);
        return Err(Error::new(text.span, message));
    }
    Ok(())
}

fn from_device(setup: &mut ElementSetup<'_>) -> ElementResult {
    refuse_aggregate(setup)?;
    let name = device(setup)?;
    if let Some(text) = setup.arguments.keyword("MAC") {
        let address = ether(&text, setup.arguments.names)?;
        setup.card_address(&name, address);
        setup.handler("mac", HandlerAccess::Text(SettingType::Ether.text(ether_number(address))));
    }
    setup.source(GraphSource::Device(name));
    Ok(Box::new(DeviceSource))
}

/// An interface that may leave some packets out and cut others.
struct FilteredDevice {
    /// Filter that packets must match to be let in.
    filter: Option<CaptureFilter>,
    /// Bytes that are kept of a packet.
    kept: Option<i64>,
    /// The Ethernet type of all packets that are let in.
    protocol: Option<i64>,
    force: bool,
}

impl ElementCodegen for FilteredDevice {
    fn build(&self, code: &mut ElementBuilder<'_, '_>, port: u32, mut packet: PacketValues) {
        if let Some(filter) = &self.filter {
            let (yes, no) = (code.block(), code.block());
            write(code, packet, filter, [yes, no, no]);
            code.switch_to_block(no);
            code.drop(packet, "filtered");
            code.switch_to_block(yes);
        }
        if let Some(protocol) = self.protocol {
            code.need(packet, packet.data, ETHER, "other_protocol");
            let found = code.half(packet.data, ETHERTYPE);
            code.check_int(Cond::Eq, found, protocol, |code| code.drop(packet, "other_protocol"));
        }
        if let Some(kept) = self.kept {
            let (length, most) = (code.length(packet), code.int(kept));
            let longer = code.compare(Cond::Gt, length, most);
            let length = code.select(longer, most, length);
            let end = code.end(packet.data, length);
            packet = packet.bounded(packet.data, end);
        }
        if self.force {
            packet = forced(code, packet);
        }
        DeviceSource.build(code, port, packet);
    }
}

/// Bytes of an Ethernet header, and where it has its type.
const ETHER: i64 = 14;
const ETHERTYPE: i32 = 12;
const TAGGED: i64 = 0x8100;
const IP4: i64 = 0x0800;
const IP6: i64 = 0x86dd;

/// Marks the IP header of frames of IP, and sets the destination annotation for IPv4. Other frames leave by
/// output 1, if that is connected.
fn forced(code: &mut ElementBuilder<'_, '_>, packet: PacketValues) -> PacketValues {
    let not_ip = |code: &mut ElementBuilder<'_, '_>| match code.connected(1) {
        true => code.out(1, packet),
        false => code.drop(packet, "not_ip"),
    };
    let beyond = code.at(packet.data, ETHER);
    code.check(Cond::Le, beyond, packet.end, not_ip);
    let kind = code.half(packet.data, ETHERTYPE);
    let (tagged, plain) = (code.int(TAGGED), code.int(ETHER));
    // One tag is looked behind.
    let inner = code.when(Cond::Eq, kind, tagged, &[kind, plain], |code| {
        let beyond = code.at(packet.data, ETHER + 4);
        code.check(Cond::Le, beyond, packet.end, not_ip);
        vec![code.half(packet.data, ETHERTYPE + 4), code.int(ETHER + 4)]
    });
    let (kind, offset) = (inner[0], inner[1]);
    let network = code.plus(packet.data, offset);
    let (other, on) = (code.block(), code.block());
    let destination = code.param(on, Type::I64);
    code.check_int(Cond::Eq, kind, IP4, |code| code.jump(other, &[]));
    let address = version4(code, packet, network, not_ip);
    code.jump(on, &[address]);
    code.switch_to_block(other);
    code.check_int(Cond::Eq, kind, IP6, not_ip);
    let (beyond, zero) = (code.at(network, 40), code.int(0));
    code.check(Cond::Le, beyond, packet.end, not_ip);
    let first = code.byte(network, 0);
    let version = code.with(AluOp::Rsh, first, 4);
    code.check_int(Cond::Eq, version, 6, not_ip);
    code.jump(on, &[zero]);
    code.switch_to_block(on);
    let yes = code.truth(true);
    packet
        .with(Annotation::Network, network)
        .with(Annotation::HasNetwork, yes)
        .with(Annotation::Destination, destination)
}

/// The destination of an IPv4 header, which is whole.
fn version4(
    code: &mut ElementBuilder<'_, '_>,
    packet: PacketValues,
    network: Value,
    not_ip: impl Fn(&mut ElementBuilder<'_, '_>),
) -> Value {
    let beyond = code.at(network, 20);
    code.check(Cond::Le, beyond, packet.end, &not_ip);
    let first = code.byte(network, 0);
    let version = code.with(AluOp::Rsh, first, 4);
    code.check_int(Cond::Eq, version, 4, &not_ip);
    let words = code.with(AluOp::And, first, 15);
    code.check_int(Cond::Ge, words, 5, &not_ip);
    let length = code.with(AluOp::Lsh, words, 2);
    let beyond = code.plus(network, length);
    code.check(Cond::Le, beyond, packet.end, &not_ip);
    code.word(network, 16)
}

fn from_interface(setup: &mut ElementSetup<'_>) -> ElementResult {
    let name = device(setup)?;
    let kept = setup.arguments.next("SNAPLEN").map(|text| match unsigned(&text, 65_535)? {
        ..14 => Err(Error::new(text.span, "SNAPLEN is a number from 14 to 65535")),
        kept => Ok(kept as i64),
    });
    let protocol = setup.arguments.keyword("PROTOCOL").map(|text| unsigned(&text, 0xffff)).transpose()?;
    let protocol = protocol.filter(|protocol| *protocol != 0).map(|protocol| protocol as i64);
    let force = setup.arguments.keyword_or("FORCE_IP", false, boolean)?;
    let method = setup.arguments.keyword("CAPTURE");
    let method = setup.arguments.keyword("METHOD").or(method);
    let filter =
        setup.arguments.keyword("BPF_FILTER").map(|text| filter(&text, &string(&text))).transpose()?;
    if let (Some(_), Some(method)) = (&filter, method.filter(|method| method.text != "PCAP")) {
        return Err(Error::new(method.span, "BPF_FILTER goes with METHOD PCAP, or without any"));
    }
    setup.source(GraphSource::Device(name));
    Ok(Box::new(FilteredDevice { filter, kept: kept.transpose()?, protocol, force }))
}

/// The device's name.
fn device(setup: &mut ElementSetup<'_>) -> Result<String, Error> {
    if setup.element.class.starts_with("ToHost") && setup.element.arguments.is_empty() {
        return Ok("host".to_owned());
    }
    let by_port = setup.arguments.specs().iter().any(|argument| argument.name == "PORT");
    let name = setup.arguments.need(if by_port { "PORT" } else { "DEVNAME" })?;
    Ok(string(&name))
}

/// A ring between two processes, by its name.
fn ring(setup: &mut ElementSetup<'_>) -> Result<String, Error> {
    let [from, to] = ["FROM_PROC", "TO_PROC"].map(|name| setup.arguments.keyword(name));
    match (from, to) {
        (Some(from), Some(to)) => Ok(format!("{}-{}", string(&from), string(&to))),
        _ => Err(Error::new(setup.element.span, "a ring needs FROM_PROC and TO_PROC")),
    }
}

fn from_ring(setup: &mut ElementSetup<'_>) -> ElementResult {
    let name = ring(setup)?;
    setup.source(GraphSource::Device(name));
    Ok(Box::new(DeviceSource))
}

fn to_ring(setup: &mut ElementSetup<'_>) -> ElementResult {
    let name = ring(setup)?;
    Ok(Box::new(OutputSink { output: setup.target(GraphSink::Device(name)) }))
}

/// An interface of the host: packets that arrive are sent there, and packets from there begin here.
struct HostTunnel {
    output: u32,
    /// True if its packets have Ethernet headers.
    framed: bool,
}

impl ElementCodegen for HostTunnel {
    fn build(&self, code: &mut ElementBuilder<'_, '_>, port: u32, packet: PacketValues) {
        match (port, self.framed) {
            (NO_INPUT, true) => DeviceSource.build(code, 0, packet),
            (NO_INPUT, false) => {
                let (network, yes) = (code.at(packet.data, 0), code.truth(true));
                code.out(0, packet.with(Annotation::Network, network).with(Annotation::HasNetwork, yes));
            }
            _ => code.send(self.output, packet),
        }
    }
}

fn to_and_from(setup: &mut ElementSetup<'_>) -> ElementResult {
    let named = setup.arguments.keyword("DEVNAME").or_else(|| setup.arguments.keyword("DEV_NAME"));
    let name = named.map_or_else(|| setup.element.name.clone(), |text| string(&text));
    let output = setup.target(GraphSink::Device(name.clone()));
    let framed = setup.element.class == "KernelTap";
    if !framed {
        setup.unframed(&name);
    }
    setup.source_at(NO_INPUT, GraphSource::Device(name));
    Ok(Box::new(HostTunnel { output, framed }))
}

/// A capture; if `force` is set, only frames of IP go on by output 0.
struct DumpSource {
    force: bool,
}

impl ElementCodegen for DumpSource {
    fn build(&self, code: &mut ElementBuilder<'_, '_>, _: u32, packet: PacketValues) {
        let packet = if self.force { forced(code, packet) } else { packet };
        code.out(0, packet);
    }
}

/// Bytes that a handler `data` takes, at least.
const MOST_WRITTEN: u32 = 2048;

struct InfiniteSource {
    /// Bytes of its packets, and how many of them it sends.
    whole: i64,
    length: SettingValue,
    /// The map with the bytes, if somebody writes them.
    data: Option<Map>,
}

impl ElementCodegen for InfiniteSource {
    fn build(&self, code: &mut ElementBuilder<'_, '_>, _: u32, packet: PacketValues) {
        if self.length == SettingValue::Fixed(self.whole) {
            return code.out(0, packet);
        }
        let length = code.setting(self.length);
        let end = code.end(packet.data, length);
        if let Some(map) = self.data {
            let bytes = code.cell(map, 0);
            code.copy_bytes(packet.data, bytes, length);
        }
        code.out(0, packet.bounded(packet.data, end));
    }
}

fn from_dump(setup: &mut ElementSetup<'_>) -> ElementResult {
    let name = setup.arguments.need("FILENAME")?;
    let name = string(&name);
    let force = setup.arguments.keyword_or("FORCE_IP", false, boolean)?;
    setup.handler("filename", HandlerAccess::Text(name.clone()));
    let link = link_types::link_of(setup, &name);
    if force && ![link_types::ETHERNET, link_types::RAW_IP].contains(&link) {
        let message = format!(
            "FORCE_IP is for captures of Ethernet frames and of IP packets, this one has link type {link}"
        );
        return Err(Error::new(setup.element.span, message));
    }
    setup.handler("encap", HandlerAccess::Text(link_types::encapsulation(link)));
    setup.at_end()?;
    setup.source(GraphSource::File(name));
    Ok(if link == link_types::RAW_IP {
        Box::new(link_types::RawIpSource)
    } else {
        Box::new(DumpSource { force })
    })
}

fn infinite(setup: &mut ElementSetup<'_>) -> ElementResult {
    let data = data(setup)?;
    let limit = setup.arguments.next("LIMIT").filter(|text| text.text != "-1");
    let limit = limit.map(|text| unsigned(&text, u64::MAX)).transpose()?;
    let active = setup.arguments.or("ACTIVE", true, boolean)?;
    let whole = data.len() as i64;
    let (data, source) = if setup.scripted(&["data"]) {
        let (data, length, map) = written_data(setup, &data);
        (data, InfiniteSource { whole, length, data: Some(map) })
    } else {
        setup.handler("data", HandlerAccess::Constant(String::from_utf8_lossy(&data).into_owned()));
        let length = setup.setting("length", SettingType::Number(0, whole), whole);
        (data, InfiniteSource { whole, length, data: None })
    };
    generator(setup, 0, GraphSource::Constant(data, limit), (active, SourcePacing::default()), source)
}

/// Data that a script writes: the longest packet, its length at first, and the map with the bytes.
fn written_data(setup: &mut ElementSetup<'_>, data: &[u8]) -> (Vec<u8>, SettingValue, Map) {
    let most = MOST_WRITTEN.max(data.len() as u32);
    let longest = if data.is_empty() { vec![0; most as usize] } else { repeated(data, u64::from(most)) };
    let length = setup.hidden_setting(data.len() as i64);
    setup.handler("length", HandlerAccess::Setting(length, SettingType::Number(0, i64::from(most))));
    let (name, map) = setup.filled_cells("data", &longest);
    setup.handler("data", HandlerAccess::Data { map: name, length, most });
    (longest, SettingValue::Live(length), map)
}

struct OutputSink {
    output: u32,
}

impl ElementCodegen for OutputSink {
    fn build(&self, code: &mut ElementBuilder<'_, '_>, _: u32, packet: PacketValues) {
        if code.connected(0) {
            code.fork(0, packet);
        }
        code.send(self.output, packet);
    }
}

fn to_device(setup: &mut ElementSetup<'_>) -> ElementResult {
    let name = device(setup)?;
    let output = setup.target(GraphSink::Device(name));
    Ok(Box::new(OutputSink { output }))
}

fn to_dump(setup: &mut ElementSetup<'_>) -> ElementResult {
    let name = string(&setup.arguments.need("FILENAME")?);
    let most =
        setup.arguments.or("SNAPLEN", link_types::USUAL_SNAP, |text| unsigned(text, u64::from(u32::MAX)))?;
    let link = link_types::encap(setup)?;
    let whole = setup.arguments.keyword_or("EXTRA_LENGTH", true, boolean)?;
    let most = if most == 0 { u32::MAX } else { most as u32 };
    setup.handler("filename", HandlerAccess::Text(name.clone()));
    let output = setup.target(GraphSink::File(name, CaptureOptions { most, link, whole }));
    Ok(Box::new(OutputSink { output }))
}

//! Sources and destinations of packets.

use millstream_ir::{Type, Value};
use millstream_isa::{AluOp, Cond};

use crate::arguments::{boolean, string, unsigned};
use crate::build::Code;
use crate::class::{Behaviour, Class, Made};
use crate::compile::{NO_INPUT, Recording, Setup, Source, Target};
use crate::elements::capture_filter::{Filter, filter, write};
use crate::elements::captures;
use crate::elements::generators::{Pacing, data, generator};
use crate::error::Error;
use crate::handlers::Access;
use crate::keyword::{Argument, COUNT, Kind, NUMBER, at, key, moot, refused, refused_but};
use crate::packet::{BROADCAST, HOST, MULTICAST, Note, Packet};

const DRIVEN: &str = "`--io` says how a device is driven, and which packets it has";
const WORKERS: &str = "`--workers` says how many there are; each has its packets by their flows";
const STAMPED: &str = "every packet has the time at which it came";
const NO_TASKS: &str = "there are no tasks: packets are taken as they come, a batch at once";
const CARD: &str = "a card is left as the system has it: `ethtool` and `ip link` set it";
const OFFLOADED: &str = "checksums are set by elements, whatever a card could do";
const ROOM: &str = "every packet has 216 bytes in front of it, for which more is refused";
pub(super) const HEADROOM: Argument = moot("HEADROOM", Kind::Number(0, 216), ROOM);
const ACTIVE: Argument = refused_but("ACTIVE", &["true"], "a device gives its packets from the beginning");
const TOLD: &str = "the report has all counts";
const NO_FLAG: &[&str] = &["false"];
const INTERFACE: &str =
    "an interface has the addresses that the machine gives it (`ip address`), which no packet here sees";

/// An interface, by raw sockets or by libpcap.
const FROM_DEVICE: &[Argument] = &[
    at("DEVNAME"),
    moot("PROMISC", Kind::Truth, "what an interface lets in is set by `ip link set promisc`").or_at(),
    at("SNAPLEN"),
    moot(
        "SNIFFER",
        Kind::Truth,
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
    moot("BURST", Kind::Number(1, u64::MAX), NO_TASKS),
    moot("TIMESTAMP", Kind::Truth, STAMPED),
    ACTIVE,
];
/// As in Click, whose kernel module takes other arguments.
const POLL_DEVICE: &[Argument] = &[
    at("DEVNAME"),
    moot("BURST", COUNT, NO_TASKS).or_at(),
    moot("PROMISC", Kind::Truth, "what an interface lets in is set by `ip link set promisc`"),
    moot("TIMESTAMP", Kind::Truth, STAMPED),
    moot("QUIET", Kind::Truth, TOLD),
    moot("ALLOW_NONEXISTENT", Kind::Truth, DRIVEN),
    HEADROOM,
    moot("LENGTH", COUNT, DRIVEN),
];
const FROM_DPDK: &[Argument] = &[
    at("PORT"),
    refused_but("QUEUE", &["0", "-1"], "a device gives the packets of all its queues").or_at(),
    moot("PROMISC", Kind::Truth, "a device gives all packets that reach it").or_at(),
    refused_but("VLAN_FILTER", NO_FLAG, "tags are left to elements").or_at(),
    refused_but("VLAN_STRIP", NO_FLAG, "tags are left to elements").or_at(),
    refused_but("VLAN_EXTEND", NO_FLAG, "tags are left to elements").or_at(),
    refused_but("LRO", NO_FLAG, "segments stay as they come").or_at(),
    moot("JUMBO", Kind::Truth, CARD).or_at(),
    moot("N_QUEUES", NUMBER, WORKERS),
    moot("MAXTHREADS", NUMBER, WORKERS),
    moot("MINTHREADS", NUMBER, WORKERS),
    moot("THREADOFFSET", NUMBER, WORKERS),
    moot("NUMA", Kind::Truth, WORKERS),
    moot("NUMA_NODE", NUMBER, WORKERS),
    moot("SCALE", Kind::Any, WORKERS),
    moot("VERBOSE", Kind::Any, TOLD),
    ACTIVE,
    moot("ALLOW_NONEXISTENT", Kind::Truth, DRIVEN),
    moot("NDESC", NUMBER, CARD),
    refused("MAC", "a card keeps its address: `ip link set address` gives it another"),
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
    moot("TIMESTAMP", Kind::Truth, STAMPED),
    refused_but("RSS_AGGREGATE", NO_FLAG, "there is no annotation for what a card has hashed"),
    refused_but("PAINT_QUEUE", NO_FLAG, "packets are not painted by their queues"),
    moot("BURST", NUMBER, NO_TASKS),
    moot("CLEAR", Kind::Truth, "packets come without annotations"),
    moot("PAUSE", Kind::Any, CARD),
    moot("IPCO", Kind::Truth, OFFLOADED),
    moot("TCO", Kind::Truth, OFFLOADED),
    moot("UCO", Kind::Truth, OFFLOADED),
    moot("POWER_MGMT", Kind::Any, DRIVEN),
];
const FROM_NETMAP: &[Argument] = &[
    at("DEVNAME"),
    refused_but("QUEUE", &["0", "-1"], "a device gives the packets of all its queues").or_at(),
    moot("PROMISC", Kind::Truth, "a device gives all packets that reach it").or_at(),
    moot("N_QUEUES", NUMBER, WORKERS),
    moot("MAXTHREADS", NUMBER, WORKERS),
    moot("THREADOFFSET", NUMBER, WORKERS),
    moot("NUMA", Kind::Truth, WORKERS),
    moot("VERBOSE", Kind::Any, TOLD),
    ACTIVE,
    moot("ALLOW_NONEXISTENT", Kind::Truth, DRIVEN),
    moot("BURST", NUMBER, NO_TASKS),
    moot("KEEPHAND", Kind::Truth, DRIVEN),
];
const FULL: &str = "what a device does not take is lost, and the report says how many";
const SENT_AT_ONCE: &str = "what is sent is handed to the device when its batch is done with";
const TO_DEVICE: &[Argument] = &[
    at("DEVNAME"),
    moot("BURST", COUNT, SENT_AT_ONCE),
    refused_but("METHOD", &["LINUX", "PCAP"], "`--io` says how packets are sent"),
    moot("DEBUG", Kind::Truth, TOLD),
    moot("NO_PAD", Kind::Truth, "frames are sent as they are"),
    moot("QUEUE", COUNT, SENT_AT_ONCE),
];
const TO_DPDK: &[Argument] = &[
    at("PORT"),
    moot("QUEUE", NUMBER, SENT_AT_ONCE).or_at(),
    moot("N_QUEUES", NUMBER, WORKERS),
    moot("MAXTHREADS", NUMBER, WORKERS),
    moot("THREADOFFSET", NUMBER, WORKERS),
    moot("NUMA", Kind::Truth, WORKERS),
    moot("VERBOSE", Kind::Any, TOLD),
    ACTIVE,
    moot("ALLOW_NONEXISTENT", Kind::Truth, DRIVEN),
    moot("IQUEUE", NUMBER, SENT_AT_ONCE),
    moot("BLOCKING", Kind::Truth, FULL),
    moot("TIMEOUT", NUMBER, SENT_AT_ONCE),
    moot("NDESC", NUMBER, CARD),
    moot("MAXQUEUES", NUMBER, WORKERS),
    moot("ALLOC", Kind::Truth, "packets are copied where a device needs buffers of its own"),
    moot("BURST", NUMBER, SENT_AT_ONCE),
    refused_but("TSO", NO_FLAG, "segments are sent as they are"),
    moot("IPCO", Kind::Truth, OFFLOADED),
    moot("TCO", Kind::Truth, OFFLOADED),
    moot("UCO", Kind::Truth, OFFLOADED),
];
const TO_NETMAP: &[Argument] = &[
    at("DEVNAME"),
    moot("QUEUE", NUMBER, SENT_AT_ONCE).or_at(),
    moot("N_QUEUES", NUMBER, WORKERS),
    moot("MAXTHREADS", NUMBER, WORKERS),
    moot("THREADOFFSET", NUMBER, WORKERS),
    moot("NUMA", Kind::Truth, WORKERS),
    moot("VERBOSE", Kind::Any, TOLD),
    ACTIVE,
    moot("ALLOW_NONEXISTENT", Kind::Truth, DRIVEN),
    moot("IQUEUE", NUMBER, SENT_AT_ONCE),
    moot("BLOCKING", Kind::Truth, FULL),
    moot("BURST", NUMBER, SENT_AT_ONCE),
];
const FROM_HOST: &[Argument] = &[
    at("DEVNAME"),
    moot("DST", Kind::Any, INTERFACE).or_at(),
    moot("GATEWAY", Kind::Any, INTERFACE),
    moot("ETHER", Kind::Any, INTERFACE),
    HEADROOM,
    moot("MTU", COUNT, INTERFACE),
];
const TO_HOST: &[Argument] = &[at("DEVNAME")];
const FROM_RING: &[Argument] = &[
    moot("MEM_POOL", Kind::Any, "the ring is a device, whose memory is its own").or_at(),
    at("FROM_PROC"),
    at("TO_PROC"),
    moot("BURST", COUNT, NO_TASKS),
    moot("NDESC", COUNT, CARD),
    moot("FORCE_CREATE", Kind::Truth, DRIVEN),
    moot("FORCE_LOOKUP", Kind::Truth, DRIVEN),
    moot("NUMA_ZONE", NUMBER, DRIVEN),
    moot("SC_DEQ", Kind::Truth, DRIVEN),
    moot("SP_ENQ", Kind::Truth, DRIVEN),
];
const TO_RING: &[Argument] = &[
    moot("MEM_POOL", Kind::Any, "the ring is a device, whose memory is its own").or_at(),
    at("FROM_PROC"),
    at("TO_PROC"),
    moot("IQUEUE", COUNT, SENT_AT_ONCE),
    moot("BLOCKING", Kind::Truth, FULL),
    moot("TIMEOUT", NUMBER, SENT_AT_ONCE),
    moot("BURST", COUNT, NO_TASKS),
    moot("NDESC", COUNT, CARD),
    moot("FORCE_CREATE", Kind::Truth, DRIVEN),
    moot("FORCE_LOOKUP", Kind::Truth, DRIVEN),
    moot("NUMA_ZONE", NUMBER, DRIVEN),
    moot("SC_DEQ", Kind::Truth, DRIVEN),
    moot("SP_ENQ", Kind::Truth, DRIVEN),
];

/// Interfaces that Click makes.
const TUNNEL: &[Argument] = &[
    moot("ADDR", Kind::Any, INTERFACE).or_at(),
    moot("GATEWAY", Kind::Any, INTERFACE).or_at(),
    refused_but("TAP", NO_FLAG, "`KernelTap` has Ethernet frames"),
    HEADROOM,
    moot("BURST", COUNT, NO_TASKS),
    moot("ETHER", Kind::Any, INTERFACE),
    moot("IGNORE_QUEUE_OVERFLOWS", Kind::Truth, FULL),
    moot("MTU", COUNT, INTERFACE),
    key("DEVNAME"),
    key("DEV_NAME"),
    moot("THREADS", NUMBER, WORKERS),
];

const fn tunnel(name: &'static str, about: &'static str) -> Class {
    Class { ports: "0-1/1-2", processing: "a/h", ..Class::filter(name, about, TUNNEL, to_and_from) }
}

const fn source(
    name: &'static str,
    about: &'static str,
    arguments: &'static [Argument],
    make: fn(&mut Setup<'_>) -> Made,
) -> Class {
    Class { ports: "0/1", processing: "/h", ..Class::filter(name, about, arguments, make) }.passing()
}

const fn sink(
    name: &'static str,
    about: &'static str,
    processing: &'static str,
    arguments: &'static [Argument],
) -> Class {
    Class { ports: "1/0", processing, ..Class::filter(name, about, arguments, to_device) }
}

const RECEIVES: &str = "Is where packets of a device come from.";
const SENDS: &str = "Is where packets of a device go to.";

/// Default data of packets of sources.
pub(super) const DEFAULT_DATA: &str = "Random bullshit in a packet, at least 64 bytes long. Well, now it is.";

pub(super) const CLASSES: &[Class] = &[
    Class {
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
    Class { make: to_ring, ..sink("ToDPDKRing", "Is where packets to another process go.", "a", TO_RING) },
    tunnel("KernelTap", "Is an interface of the host, of Ethernet frames."),
    tunnel("KernelTun", "Is an interface of the host, of IP packets."),
    sink("ToHost", "Is where packets to the host go.", "a", TO_HOST),
    sink("ToHostSniffers", "Is where packets to those who listen on the host go.", "a", TO_HOST),
    Class {
        ports: "0/1-2",
        processing: "/ah",
        passes_all: false,
        ..source("FromDump", "Reads packets from a capture.", FROM_DUMP, from_dump)
    },
    Class {
        ports: "1/0-1",
        processing: "a/h",
        ..Class::filter("ToDump", "Writes packets to a capture.", TO_DUMP, to_dump)
    },
    Class {
        processing: "/a",
        ..source("InfiniteSource", "Sends a packet again and again.", CONSTANT, infinite)
    },
];

/// A whole capture, once.
const WHOLE: &str = "a capture is read from its beginning to its end";
const FROM_DUMP: &[Argument] = &[
    at("FILENAME"),
    moot(
        "TIMING",
        Kind::Truth,
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
    moot("MMAP", Kind::Truth, "how a capture is read makes no difference to its packets"),
    moot("DPDK", Kind::Truth, "how a capture is read makes no difference to its packets"),
];
const TO_DUMP: &[Argument] = &[
    at("FILENAME"),
    at("SNAPLEN"),
    at("ENCAP"),
    key("USE_ENCAP_FROM"),
    key("EXTRA_LENGTH"),
    moot("UNBUFFERED", Kind::Truth, "the file is whole at the end of the run in any case"),
    moot("NANO", Kind::Truth, "times are written as exactly as they are known"),
    moot("FORCE_TS", Kind::Truth, "packets are written with the times at which they leave"),
];
const CONSTANT: &[Argument] = &[
    at("DATA"),
    at("LIMIT"),
    moot("BURST", Kind::Number(1, u64::MAX), NO_TASKS).or_at(),
    at("ACTIVE"),
    moot("TIMESTAMP", Kind::Truth, STAMPED),
    HEADROOM,
    key("LENGTH"),
    key("DATASIZE"),
    key("STOP"),
    key("END_CALL"),
];

/// Notes how the link layer addressed the packet.
struct Device;

/// Bytes of an Ethernet address.
const ADDRESS: i64 = 6;

impl Behaviour for Device {
    fn build(&self, code: &mut Code<'_, '_>, _: u32, packet: Packet) {
        // A packet without an address in front of it is for this host.
        let (beyond, host) = (code.at(packet.data, ADDRESS), code.int(HOST));
        let cast = code.when(Cond::Le, beyond, packet.end, &[host], |code| vec![cast(code, packet, 0)]);
        code.out(0, packet.with(Note::Cast, cast[0]));
    }
}

/// The packet type that the link layer gave a packet (this host, multicast or broadcast), from the Ethernet
/// header at an offset.
pub(super) fn cast(code: &mut Code<'_, '_>, packet: Packet, offset: i32) -> Value {
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

fn from_device(setup: &mut Setup<'_>) -> Made {
    let name = device(setup)?;
    setup.source(Source::Device(name));
    Ok(Box::new(Device))
}

/// An interface that may leave some packets out and cut others.
struct Interface {
    /// Filter that packets must match to be let in.
    filter: Option<Filter>,
    /// Bytes that are kept of a packet.
    kept: Option<i64>,
    /// The Ethernet type of all packets that are let in.
    protocol: Option<i64>,
    force: bool,
}

impl Behaviour for Interface {
    fn build(&self, code: &mut Code<'_, '_>, port: u32, mut packet: Packet) {
        if let Some(filter) = &self.filter {
            let (yes, no) = (code.block(), code.block());
            write(code, packet, filter, [yes, no, no]);
            code.go(no);
            code.drop(packet, "filtered");
            code.go(yes);
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
        Device.build(code, port, packet);
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
fn forced(code: &mut Code<'_, '_>, packet: Packet) -> Packet {
    let not_ip = |code: &mut Code<'_, '_>| match code.connected(1) {
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
    code.go(other);
    code.check_int(Cond::Eq, kind, IP6, not_ip);
    let (beyond, zero) = (code.at(network, 40), code.int(0));
    code.check(Cond::Le, beyond, packet.end, not_ip);
    let first = code.byte(network, 0);
    let version = code.with(AluOp::Rsh, first, 4);
    code.check_int(Cond::Eq, version, 6, not_ip);
    code.jump(on, &[zero]);
    code.go(on);
    let yes = code.truth(true);
    packet.with(Note::Network, network).with(Note::HasNetwork, yes).with(Note::Destination, destination)
}

/// The destination of an IPv4 header, which is whole.
fn version4(
    code: &mut Code<'_, '_>,
    packet: Packet,
    network: Value,
    not_ip: impl Fn(&mut Code<'_, '_>),
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

fn from_interface(setup: &mut Setup<'_>) -> Made {
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
    setup.source(Source::Device(name));
    Ok(Box::new(Interface { filter, kept: kept.transpose()?, protocol, force }))
}

/// The device's name.
fn device(setup: &mut Setup<'_>) -> Result<String, Error> {
    if setup.element.class.starts_with("ToHost") && setup.element.arguments.is_empty() {
        return Ok("host".to_owned());
    }
    let by_port = setup.arguments.class().arguments.iter().any(|argument| argument.name == "PORT");
    let name = setup.arguments.need(if by_port { "PORT" } else { "DEVNAME" })?;
    Ok(string(&name))
}

/// A ring between two processes, by its name.
fn ring(setup: &mut Setup<'_>) -> Result<String, Error> {
    let [from, to] = ["FROM_PROC", "TO_PROC"].map(|name| setup.arguments.keyword(name));
    match (from, to) {
        (Some(from), Some(to)) => Ok(format!("{}-{}", string(&from), string(&to))),
        _ => Err(Error::new(setup.element.span, "a ring needs FROM_PROC and TO_PROC")),
    }
}

fn from_ring(setup: &mut Setup<'_>) -> Made {
    let name = ring(setup)?;
    setup.source(Source::Device(name));
    Ok(Box::new(Device))
}

fn to_ring(setup: &mut Setup<'_>) -> Made {
    let name = ring(setup)?;
    Ok(Box::new(Sink { output: setup.target(Target::Device(name)) }))
}

/// An interface of the host: packets that arrive are sent there, and packets from there begin here.
struct Tunnel {
    output: u32,
    /// True if its packets have Ethernet headers.
    framed: bool,
}

impl Behaviour for Tunnel {
    fn build(&self, code: &mut Code<'_, '_>, port: u32, packet: Packet) {
        match (port, self.framed) {
            (NO_INPUT, true) => Device.build(code, 0, packet),
            (NO_INPUT, false) => {
                let (network, yes) = (code.at(packet.data, 0), code.truth(true));
                code.out(0, packet.with(Note::Network, network).with(Note::HasNetwork, yes));
            }
            _ => code.send(self.output, packet),
        }
    }
}

fn to_and_from(setup: &mut Setup<'_>) -> Made {
    let named = setup.arguments.keyword("DEVNAME").or_else(|| setup.arguments.keyword("DEV_NAME"));
    let name = named.map_or_else(|| setup.element.name.clone(), |text| string(&text));
    let output = setup.target(Target::Device(name.clone()));
    let framed = setup.element.class == "KernelTap";
    if !framed {
        setup.unframed(&name);
    }
    setup.source_at(NO_INPUT, Source::Device(name));
    Ok(Box::new(Tunnel { output, framed }))
}

/// A capture; if `force` is set, only frames of IP go on by output 0.
struct Capture {
    force: bool,
}

impl Behaviour for Capture {
    fn build(&self, code: &mut Code<'_, '_>, _: u32, packet: Packet) {
        let packet = if self.force { forced(code, packet) } else { packet };
        code.out(0, packet);
    }
}

struct Plain;

impl Behaviour for Plain {
    fn build(&self, code: &mut Code<'_, '_>, _: u32, packet: Packet) {
        code.out(0, packet);
    }
}

fn from_dump(setup: &mut Setup<'_>) -> Made {
    let name = setup.arguments.need("FILENAME")?;
    let name = string(&name);
    let force = setup.arguments.keyword_or("FORCE_IP", false, boolean)?;
    setup.handler("filename", Access::Text(name.clone()));
    let link = captures::link_of(setup, &name);
    if force && ![captures::ETHERNET, captures::RAW_IP].contains(&link) {
        let message = format!(
            "FORCE_IP is for captures of Ethernet frames and of IP packets, this one has link type {link}"
        );
        return Err(Error::new(setup.element.span, message));
    }
    setup.handler("encap", Access::Text(captures::encapsulation(link)));
    setup.at_end()?;
    setup.source(Source::File(name));
    Ok(if link == captures::RAW_IP { Box::new(captures::Bare) } else { Box::new(Capture { force }) })
}

fn infinite(setup: &mut Setup<'_>) -> Made {
    let data = data(setup)?;
    let limit = setup.arguments.next("LIMIT").filter(|text| text.text != "-1");
    let limit = limit.map(|text| unsigned(&text, u64::MAX)).transpose()?;
    let active = setup.arguments.or("ACTIVE", true, boolean)?;
    generator(setup, 0, Source::Constant(data, limit), (active, Pacing::default()), Plain)
}

struct Sink {
    output: u32,
}

impl Behaviour for Sink {
    fn build(&self, code: &mut Code<'_, '_>, _: u32, packet: Packet) {
        if code.connected(0) {
            code.fork(0, packet);
        }
        code.send(self.output, packet);
    }
}

fn to_device(setup: &mut Setup<'_>) -> Made {
    let name = device(setup)?;
    let output = setup.target(Target::Device(name));
    Ok(Box::new(Sink { output }))
}

fn to_dump(setup: &mut Setup<'_>) -> Made {
    let name = string(&setup.arguments.need("FILENAME")?);
    let most =
        setup.arguments.or("SNAPLEN", captures::USUAL_SNAP, |text| unsigned(text, u64::from(u32::MAX)))?;
    let link = captures::encap(setup)?;
    let whole = setup.arguments.keyword_or("EXTRA_LENGTH", true, boolean)?;
    let most = if most == 0 { u32::MAX } else { most as u32 };
    setup.handler("filename", Access::Text(name.clone()));
    let output = setup.target(Target::File(name, Recording { most, link, whole }));
    Ok(Box::new(Sink { output }))
}

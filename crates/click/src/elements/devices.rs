//! Where packets come from and go to.

use millstream_ir::Value;
use millstream_isa::{AluOp, Cond};

use crate::arguments::{boolean, string, unsigned};
use crate::build::Code;
use crate::class::{Behaviour, Class, Made};
use crate::compile::{NO_INPUT, Recording, Setup, Source, Target};
use crate::config::unquote;
use crate::elements::captures;
use crate::elements::generators::{Pacing, generator, repeated};
use crate::error::Error;
use crate::handlers::Access;
use crate::packet::{BROADCAST, HOST, MULTICAST, Note, Packet};

/// The device, by either of its names, first.
const DEVICE: &[&str] = &[
    "DEVNAME",
    "PORT",
    "FLOW_RULES_FILE",
    "SNIFFER",
    "PROMISC",
    "SNAPLEN",
    "FORCE_IP",
    "METHOD",
    "CAPTURE",
    "BPF_FILTER",
    "OUTBOUND",
    "PROTOCOL",
    "HEADROOM",
    "BURST",
    "TIMESTAMP",
    "QUEUE",
    "N_QUEUES",
    "MAXTHREADS",
    "NUMA",
    "VERBOSE",
    "NDESC",
    "MODE",
    "PAUSE",
    "THREADOFFSET",
    "ACTIVE",
    "IQUEUE",
    "BLOCKING",
    "NO_PAD",
    "DEBUG",
    "TIMEOUT",
    "ALLOC",
    "DST",
    "GATEWAY",
    "ETHER",
    "TYPE",
    "MTU",
    "MEM_POOL",
    "FROM_PROC",
    "TO_PROC",
    "CLEAR",
    "MAC",
    "MINQUEUES",
    "MAXQUEUES",
    "MAX_RSS",
    "RETA_SIZE",
    "RX_INTR",
    "IPCO",
    "TCO",
    "UCO",
    "TSO",
    "POWER_MGMT",
    "RSS_AGGREGATE",
    "RSS",
    "PAINT_QUEUE",
    "MINTHREADS",
    "SCALE",
];
/// All but the device: how it is driven makes no difference here.
const IGNORED: &[&str] = DEVICE.split_at(3).1;

/// Interfaces that Click makes: by which name, and what does not matter of them.
const TUNNEL: &[&str] = &[
    "DEVNAME",
    "DEV_NAME",
    "ADDR",
    "GATEWAY",
    "ETHER",
    "MTU",
    "HEADROOM",
    "BURST",
    "IGNORE_QUEUE_OVERFLOWS",
    "TAP",
];

const fn tunnel(name: &'static str) -> Class {
    let (arguments, ignored) = (TUNNEL, TUNNEL.split_at(2).1);
    Class {
        name,
        ports: "0-1/1-2",
        processing: "a/h",
        arguments,
        ignored,
        passes_all: false,
        make: to_and_from,
    }
}

const fn source(name: &'static str, make: fn(&mut Setup<'_>) -> Made) -> Class {
    let processing = "/h";
    Class { name, ports: "0/1", processing, arguments: DEVICE, ignored: IGNORED, passes_all: true, make }
}

const fn sink(name: &'static str, processing: &'static str) -> Class {
    Class {
        name,
        ports: "1/0",
        processing,
        arguments: DEVICE,
        ignored: IGNORED,
        passes_all: false,
        make: to_device,
    }
}

/// What sources send that are not told what.
pub(super) const DEFAULT_DATA: &str = "Random bullshit in a packet, at least 64 bytes long. Well, now it is.";

pub(super) const CLASSES: &[Class] = &[
    source("FromDevice", from_device),
    source("PollDevice", from_device),
    source("FromDPDKDevice", from_device),
    // PacketMill's: descriptors of packets are our own with every device.
    source("FromDPDKDeviceXCHG", from_device),
    source("FromNetmapDevice", from_device),
    source("FromHost", from_device),
    source("FromDPDKRing", from_ring),
    sink("ToDevice", "l"),
    sink("ToDPDKDevice", "a"),
    sink("ToDPDKDeviceXCHG", "a"),
    sink("ToNetmapDevice", "a"),
    Class { make: to_ring, ..sink("ToDPDKRing", "a") },
    tunnel("KernelTap"),
    tunnel("KernelTun"),
    sink("ToHost", "a"),
    sink("ToHostSniffers", "a"),
    Class {
        name: "FromDump",
        ports: "0/1",
        processing: "/a",
        arguments: &[
            "FILENAME",
            "STOP",
            "TIMING",
            "TIMING_FNT",
            "SAMPLE",
            "FORCE_IP",
            "START",
            "START_AFTER",
            "END",
            "END_AFTER",
            "INTERVAL",
            "END_CALL",
            "FILEPOS",
            "MMAP",
            "ACTIVE",
            "BURST",
        ],
        ignored: &["TIMING", "TIMING_FNT", "MMAP", "FORCE_IP", "BURST"],
        passes_all: true,
        make: from_dump,
    },
    Class {
        name: "ToDump",
        ports: "1/0-1",
        processing: "a/h",
        arguments: &["FILENAME", "SNAPLEN", "ENCAP", "USE_ENCAP_FROM", "EXTRA_LENGTH", "UNBUFFERED", "NANO"],
        // When bytes get to the file makes no difference to what is in it, and files have nanoseconds.
        ignored: &["UNBUFFERED", "NANO"],
        passes_all: false,
        make: to_dump,
    },
    Class {
        name: "InfiniteSource",
        ports: "0/1",
        processing: "/a",
        arguments: &[
            "DATA",
            "LIMIT",
            "BURST",
            "ACTIVE",
            "LENGTH",
            "TIMESTAMP",
            "STOP",
            "END_CALL",
            "HEADROOM",
        ],
        ignored: &["BURST", "TIMESTAMP", "HEADROOM"],
        passes_all: true,
        make: infinite,
    },
];

/// Notes how the link layer addressed the packet.
struct Device;

/// Bytes of an Ethernet address.
const ADDRESS: i64 = 6;

impl Behaviour for Device {
    fn build(&self, code: &mut Code<'_, '_>, _: u32, packet: Packet) {
        // What has no address in front of it is for this host.
        let (beyond, host) = (code.at(packet.data, ADDRESS), code.int(HOST));
        let cast = code.when(Cond::Le, beyond, packet.end, &[host], |code| vec![cast(code, packet, 0)]);
        code.out(0, packet.with(Note::Cast, cast[0]));
    }
}

/// How the link layer addressed a packet whose Ethernet header is at an offset.
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

/// The device's name. Further arguments by position say how it is driven.
fn device(setup: &mut Setup<'_>) -> Result<String, Error> {
    if setup.element.class.starts_with("ToHost") && setup.element.arguments.is_empty() {
        return Ok("host".to_owned());
    }
    let name = match setup.arguments.keyword("PORT") {
        Some(text) => text,
        None => setup.arguments.need("DEVNAME")?,
    };
    if let Some(text) = setup.arguments.keyword("FLOW_RULES_FILE") {
        let message =
            "FLOW_RULES_FILE is not supported: no rules are given to a card, whose packets come here all";
        return Err(Error::new(text.span, message));
    }
    setup.arguments.rest();
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

/// An interface of the host: what arrives is sent there, and what comes from there begins here.
struct Tunnel {
    output: u32,
    /// Whether its packets have Ethernet headers.
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
    setup.arguments.rest();
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

struct Plain;

impl Behaviour for Plain {
    fn build(&self, code: &mut Code<'_, '_>, _: u32, packet: Packet) {
        code.out(0, packet);
    }
}

/// Refuses an argument that would change what packets there are, which its usual value does not.
fn refuse(setup: &mut Setup<'_>, names: &[(&str, &str)]) -> Result<(), Error> {
    let class = &setup.element.class;
    for (name, usual) in names {
        if let Some(text) = setup.arguments.keyword(name).filter(|text| text.text != *usual) {
            return Err(Error::new(text.span, format!("{name} of `{class}` is not supported")));
        }
    }
    Ok(())
}

fn from_dump(setup: &mut Setup<'_>) -> Made {
    let name = setup.arguments.need("FILENAME")?;
    refuse(
        setup,
        &[
            ("SAMPLE", "1"),
            ("START", ""),
            ("START_AFTER", "0"),
            ("END", ""),
            ("END_AFTER", "0"),
            ("INTERVAL", ""),
            ("FILEPOS", "0"),
            ("ACTIVE", "true"),
        ],
    )?;
    let name = string(&name);
    setup.handler("filename", Access::Text(name.clone()));
    let link = captures::link_of(setup, &name);
    setup.handler("encap", Access::Text(captures::encapsulation(link)));
    setup.at_end()?;
    setup.source(Source::File(name));
    Ok(if link == captures::RAW_IP { Box::new(captures::Bare) } else { Box::new(Plain) })
}

fn infinite(setup: &mut Setup<'_>) -> Made {
    let data = setup.arguments.next("DATA").map(|text| unquote(&text.text));
    let mut data = data.filter(|d| !d.is_empty()).unwrap_or_else(|| DEFAULT_DATA.as_bytes().to_vec());
    let limit = setup.arguments.next("LIMIT").filter(|text| text.text != "-1");
    let limit = limit.map(|text| unsigned(&text, u64::MAX)).transpose()?;
    // The third argument by position is the burst.
    setup.arguments.next("BURST");
    let active = setup.arguments.or("ACTIVE", true, boolean)?;
    if let Some(text) = setup.arguments.keyword("LENGTH") {
        data = repeated(&data, unsigned(&text, 65_535)?);
    }
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

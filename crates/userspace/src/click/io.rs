//! Devices and files as packets, and sinks for sent packets.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, BufWriter};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};

use miette::{IntoDiagnostic, Result, WrapErr, miette};
use millstream_click::{CaptureOptions, ClickProgram, GraphSink, GraphSource};
use millstream_native_io::graph::{SentPacket, SourceFrames, SourceGate};
use millstream_native_io::packet_source::{PacketStream, PacketStreamSource};
use millstream_native_io::pcap::{PcapHeader, PcapWriter};
use millstream_native_io::timed::{ArrivalTimes, SendSchedule};
use millstream_programs::packet::EthernetFrame;
use millstream_rng::Rng;

use super::device_ports::devices;
use super::gates::SourceGates;
use super::summary::{PacketFile, SummaryFile};
use crate::capture::CaptureFile;
use crate::output;

/// Packets of a run from memory, unless said otherwise.
const USUAL_PACKETS: u64 = 10_000_000;
/// Frames of a capture file, at most.
const MOST_FRAMES: usize = 1 << 24;
/// Default times of generated packets that have none of their own, where time is that of packets.
const USUAL_BEAT: SendSchedule = SendSchedule::Rate(1_000_000);
/// Number of generated flows.
const FLOWS: usize = 1024;

/// Packets of a source.
pub struct SourcePackets {
    frames: Vec<Vec<u8>>,
    /// File to read them from instead, and the read position if they are read here.
    file: Option<PacketFile>,
    reading: Option<Box<dyn PacketStream>>,
    count: u64,
    /// Origin of the packets, in words.
    pub description: String,
    /// File for sent packets, each with its device.
    out: Vec<(Option<String>, String)>,
    /// Gate that starts and stops the source.
    gate: Option<Arc<SourceGate>>,
    /// Times at which it sends, if it has its own.
    pub(super) beat: Option<SendSchedule>,
}

impl SourcePackets {
    /// The packets, for a run from memory.
    pub fn feed(&self) -> SourceFrames<'_> {
        SourceFrames { frames: &self.frames, count: self.count }
    }

    /// The same packets, sent at these times.
    pub(super) fn sending(self, beat: Option<SendSchedule>) -> SourcePackets {
        SourcePackets { beat, ..self }
    }

    /// Number of the first packet that may not be sent yet.
    pub(super) fn until(&self) -> u64 {
        self.gate.as_ref().map_or(u64::MAX, |gate| match gate.paused.load(Ordering::Relaxed) {
            true => 0,
            false => gate.until.load(Ordering::Relaxed),
        })
    }

    /// Packets per second, if the gate sets a rate.
    pub(super) fn rate(&self) -> Option<u64> {
        self.gate.as_ref().and_then(|gate| gate.rate())
    }

    /// File that they are read from, if they are not in memory.
    pub(super) fn origin(&self) -> Option<&dyn PacketStreamSource> {
        self.file.as_ref().map(PacketFile::stream)
    }

    /// The same packets in memory, at most `MOST_FRAMES` of a file.
    pub fn in_memory(self) -> Result<SourcePackets> {
        let Some(file) = &self.file else { return Ok(self) };
        let frames = file.in_memory(MOST_FRAMES)?;
        Ok(SourcePackets { frames, file: None, ..self })
    }

    /// Number of packets in all; reads a file to its end.
    pub(super) fn total(&self) -> Result<u64> {
        self.file.as_ref().map_or(Ok(self.count), |file| Ok(file.count()?.min(self.count)))
    }

    /// Hands over at most so many packets, from number `next` on, none from `until` on, and returns their
    /// number.
    pub(super) fn hand_over(
        &mut self,
        next: &mut u64,
        until: u64,
        most: usize,
        take: &mut dyn FnMut(&[u8]),
    ) -> io::Result<usize> {
        let (begin, end) = (*next, self.count.min(until));
        if let Some(file) = &self.file {
            let stream = match &mut self.reading {
                Some(stream) => stream,
                none => none.insert(file.stream().open()?),
            };
            while *next < end && *next - begin < most as u64 {
                let Some(record) = stream.next()? else { break };
                take(record.bytes);
                *next += 1;
            }
            return Ok((*next - begin) as usize);
        }
        if self.frames.is_empty() {
            return Ok(0);
        }
        while *next < end && *next - begin < most as u64 {
            take(&self.frames[(*next % self.frames.len() as u64) as usize]);
            *next += 1;
        }
        Ok((*next - begin) as usize)
    }
}

/// `--io` for one device, or for all.
struct DeviceIoSpec {
    device: Option<String>,
    /// Input and output files; `None` for packets from memory.
    files: Option<(String, Option<String>)>,
}

fn spec(text: &str) -> Result<DeviceIoSpec> {
    let wrong = || {
        miette!("--io {text:?} is none of mem, [DEVICE=]pcap:IN[,OUT], [DEVICE=]xdp, raw or tap[:INTERFACE]")
    };
    let (device, what) = match text.split_once('=') {
        Some((device, what)) => (Some(device.to_owned()), what),
        None => (None, text),
    };
    if what == "mem" {
        return Ok(DeviceIoSpec { device, files: None });
    }
    let files = what.strip_prefix("pcap:").ok_or_else(wrong)?;
    let (from, to) = match files.split_once(',') {
        Some((from, to)) => (from, Some(to.to_owned())),
        None => (files, None),
    };
    Ok(DeviceIoSpec { device, files: Some((from.to_owned(), to)) })
}

/// Packets of all sources of a program.
pub(super) fn open(
    specs: &[String],
    program: &ClickProgram,
    (count, is_driver): (Option<u64>, bool),
    gates: &SourceGates,
) -> Result<Vec<SourcePackets>> {
    let specs = specs.iter().map(|text| spec(text)).collect::<Result<Vec<_>>>()?;
    check(&specs, program)?;
    let mut first = true;
    let mut all = Vec::new();
    for (at, source) in program.sources.iter().enumerate() {
        all.push(match source {
            GraphSource::Device(name) => {
                let own = specs.iter().find(|s| s.device.as_deref() == Some(name));
                // A file that is for no particular device is the first device's.
                let common = specs.iter().find(|s| s.device.is_none() && (first || s.files.is_none()));
                first = false;
                match own.or(common).map(|s| &s.files) {
                    Some(Some((from, _))) if !from.is_empty() => file(from, count, true)?,
                    Some(None) => memory(all.len() as u64, count),
                    _ => nothing(),
                }
            }
            other => source_packets(other, count, gates.of(at))?.sending(send_schedule(program, at)),
        });
    }
    match all.first_mut() {
        Some(first) => first.out = specs.into_iter().filter_map(|s| Some((s.device, s.files?.1?))).collect(),
        None if program.scripts.is_empty() && !is_driver => {
            return Err(miette!(
                "the configuration has no source of packets: no FromDevice, FromDump or InfiniteSource"
            ));
        }
        None => {}
    }
    Ok(all)
}

/// Number of packets of a source without a limit.
pub(super) fn default_count(count: Option<u64>) -> u64 {
    count.unwrap_or(USUAL_PACKETS)
}

/// Packets of a source that is not a device: so many, unless it has a limit itself, or a gate with one.
pub fn source_packets(
    source: &GraphSource,
    count: Option<u64>,
    gate: Option<Arc<SourceGate>>,
) -> Result<SourcePackets> {
    let limited = |limit: &Option<u64>| match gate {
        Some(_) => u64::MAX,
        None => limit.unwrap_or(default_count(count)),
    };
    let packets = match source {
        GraphSource::Device(_) => nothing(),
        GraphSource::File(path) => file(path, None, false)?,
        GraphSource::Summary(summary) => {
            let file = Some(PacketFile::Summary(SummaryFile::open(summary)?));
            let count = if gate.is_some() || count.is_none() { u64::MAX } else { default_count(count) };
            SourcePackets { file, count, description: "a summary".into(), ..nothing() }
        }
        GraphSource::Constant(bytes, limit) => {
            let (frames, count) = (vec![bytes.clone()], limited(limit));
            SourcePackets { frames, count, description: "one packet".into(), ..nothing() }
        }
        GraphSource::Frames(frames, limit) => {
            let description = format!("{} packets, over and over", frames.len());
            SourcePackets { frames: frames.clone(), count: limited(limit), description, ..nothing() }
        }
    };
    Ok(SourcePackets { gate, ..packets })
}

/// Times at which a source of a program sends, if it has its own.
pub(super) fn send_schedule(program: &ClickProgram, source: usize) -> Option<SendSchedule> {
    let sender = program.waits.senders.iter().find(|sender| sender.source == source)?;
    Some(match sender.beat {
        millstream_click::SourceSchedule::Rate(rate) => SendSchedule::Rate(rate),
        millstream_click::SourceSchedule::Every(time) => SendSchedule::Every(time),
    })
}

/// Placeholders for packets of ports, which come later.
pub(super) fn of_ports(descriptions: Vec<String>) -> Vec<SourcePackets> {
    descriptions.into_iter().map(|description| SourcePackets { description, ..nothing() }).collect()
}

/// Checks that the named devices exist.
fn check(specs: &[DeviceIoSpec], program: &ClickProgram) -> Result<()> {
    let devices = devices(program);
    for name in specs.iter().filter_map(|s| s.device.as_ref()) {
        if !devices.contains(&name.as_str()) {
            return Err(miette!("--io: the configuration has no device {name:?}; there are {devices:?}"));
        }
    }
    Ok(())
}

fn nothing() -> SourcePackets {
    SourcePackets {
        frames: Vec::new(),
        file: None,
        reading: None,
        count: 0,
        description: "nothing".into(),
        out: Vec::new(),
        gate: None,
        beat: None,
    }
}

/// Packets of a file: Ethernet frames for a device.
fn file(path: &str, count: Option<u64>, of_device: bool) -> Result<SourcePackets> {
    let file = if of_device { CaptureFile::of_ethernet(path)? } else { CaptureFile::open(path)? };
    let count = count.unwrap_or(u64::MAX);
    let description = if of_device { path.to_owned() } else { "a capture".to_owned() };
    Ok(SourcePackets { file: Some(PacketFile::Capture(file)), count, description, ..nothing() })
}

/// 64-byte packets of so many flows between random addresses.
pub fn random_frames(seed: u64, flows: usize) -> Vec<Vec<u8>> {
    let mut rng = Rng::new(seed);
    let frame = |_| {
        let mut address = || (0x0100_0000 + rng.below(0xdeff_ffff - 0x0100_0000)) as u32;
        let (source, destination) = (address(), address());
        EthernetFrame { src: source.into(), dst: destination.into(), ..EthernetFrame::default() }.to_bytes()
    };
    (0..flows).map(frame).collect()
}

fn memory(seed: u64, count: Option<u64>) -> SourcePackets {
    SourcePackets {
        frames: random_frames(seed + 1, FLOWS),
        count: count.unwrap_or(USUAL_PACKETS),
        description: format!("{FLOWS} flows of 64-byte packets"),
        ..nothing()
    }
}

/// Sinks for sent packets.
pub(super) struct CaptureSinks {
    writers: BTreeMap<String, Mutex<PcapWriter<BufWriter<File>>>>,
    /// The file of each output.
    files: Vec<Option<String>>,
}

/// Timetable of each source's packets.
pub(super) fn timetables(packets: &[SourcePackets]) -> Vec<ArrivalTimes<'_>> {
    packets
        .iter()
        .map(|p| ArrivalTimes { stamps: &[], beat: p.beat.unwrap_or(USUAL_BEAT), paced: p.beat.is_some() })
        .collect()
}

/// Format of a recording.
pub(super) fn form(recording: &CaptureOptions) -> PcapHeader {
    PcapHeader { link: recording.link, most: recording.most as usize, whole: recording.whole }
}

impl CaptureSinks {
    /// Sinks that write nothing.
    pub(super) fn none() -> CaptureSinks {
        CaptureSinks { writers: BTreeMap::new(), files: Vec::new() }
    }

    pub(super) fn open(packets: &[SourcePackets], program: &ClickProgram) -> Result<CaptureSinks> {
        let out = packets.first().map_or(&[][..], |p| &p.out);
        let mut sinks = CaptureSinks::none();
        for target in &program.targets {
            let (path, form) = match target {
                GraphSink::File(path, recording) => (Some(path), form(recording)),
                GraphSink::Device(name) => {
                    let own = out.iter().find(|(device, _)| device.as_ref() == Some(name));
                    let common = out.iter().find(|(device, _)| device.is_none());
                    (own.or(common).map(|(_, path)| path), PcapHeader::default())
                }
            };
            if let Some(path) = path
                && !sinks.writers.contains_key(path)
            {
                let file = File::create(path).into_diagnostic().wrap_err_with(|| path.clone())?;
                let writer = PcapWriter::new(BufWriter::new(file), form)
                    .into_diagnostic()
                    .wrap_err_with(|| path.clone())?;
                sinks.writers.insert(path.clone(), Mutex::new(writer));
            }
            sinks.files.push(path.cloned());
        }
        Ok(sinks)
    }

    /// Takes a packet that is sent at a time, in nanoseconds.
    pub(super) fn take_at(&self, packet: &SentPacket<'_>, time: u64) -> io::Result<()> {
        self.written(packet.output, |writer| writer.write(packet.bytes, time, packet.arrival.cut))
    }

    #[inline]
    fn written(
        &self,
        output: usize,
        write: impl FnOnce(&mut PcapWriter<BufWriter<File>>) -> io::Result<()>,
    ) -> io::Result<()> {
        let Some(Some(path)) = self.files.get(output) else { return Ok(()) };
        let Some(writer) = self.writers.get(path) else { return Ok(()) };
        let mut writer = writer.lock().map_err(|_| io::Error::other("another worker has failed"))?;
        write(&mut writer)
    }

    /// Takes a packet that is sent; its time is 0 if the source has no times.
    #[inline]
    pub(super) fn take(&self, packet: &SentPacket<'_>) -> io::Result<()> {
        self.take_at(packet, packet.arrival.time.unwrap_or(0))
    }

    pub(super) fn finish(self) -> Result<()> {
        for (path, writer) in self.writers {
            let writer = writer.into_inner().map_err(|_| miette!("{path}: a worker has failed"))?;
            writer.finish().into_diagnostic().wrap_err(path)?;
        }
        output::flush();
        Ok(())
    }
}

//! Threads that bring packets to a switch: one for each interface, and one for all capture files.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use miette::{IntoDiagnostic, Result};
use millstream_kernel::{LONGEST_FRAME, PacketSocket};
use millstream_lab::os;
use millstream_lab::pcap::CaptureReader;
use millstream_p4_switch::TraceCondition;
use millstream_p4runtime_server::{MovedPackets, SwitchHandle};

use super::ports::{OpenDevice, SwitchPort, SwitchPorts, open_interface};
use crate::adaptation::SwitchAdaptation;

/// Longest wait for a packet, after which the end of the run is looked for.
const WAIT: Duration = Duration::from_millis(50);
/// Interval between tries to open an interface that vanished.
const RETRY: Duration = Duration::from_millis(500);
/// Packets that are moved before controllers are let in.
pub(super) const BATCH: usize = 64;

/// Runs of the program that failed.
pub(super) type FaultCounter = AtomicU64;

/// State that the threads share.
pub(super) struct PacketMover {
    pub(super) handle: SwitchHandle,
    pub(super) ports: Arc<SwitchPorts>,
    pub(super) faults: FaultCounter,
    pub(super) ends: AtomicBool,
    /// Interval of packets that are traced; none are without it.
    pub(super) trace: Option<u64>,
    /// Conditions that a traced packet has to meet.
    pub(super) conditions: Vec<TraceCondition>,
    /// Packets so far.
    pub(super) moved: AtomicU64,
    /// Adaptation of the program, if it is wanted.
    pub(super) adaptation: Option<Arc<SwitchAdaptation>>,
}

/// A packet that came in at a port, at this time in nanoseconds.
struct ArrivedPacket<'p> {
    port: &'p SwitchPort,
    data: Vec<u8>,
    time: u64,
}

impl PacketMover {
    /// Packets that are moved at once; 1 if they are traced, or the program has no code for several.
    fn batch_size(&self) -> usize {
        let size = self.handle.move_packets(|switch| switch.batch_size()).flatten();
        size.filter(|_| self.trace.is_none()).map_or(1, |size| size.clamp(1, BATCH))
    }

    /// Moves packets through the switch in the order in which they came, and sends what leaves.
    fn move_all(&self, packets: &[ArrivedPacket<'_>], batch: usize) {
        if batch == 1 {
            return packets.iter().for_each(|packet| self.move_one(packet.port, &packet.data, packet.time));
        }
        for packets in packets.chunks(batch) {
            packets.iter().for_each(|packet| packet.port.note_received(&packet.data, packet.time));
            self.moved.fetch_add(packets.len() as u64, Ordering::Relaxed);
            let given: Vec<(u64, &[u8])> =
                packets.iter().map(|packet| (packet.port.number, &packet.data[..])).collect();
            match self.handle.move_packets(|switch| switch.receive_batch(&given)) {
                Some(Ok(moved)) => {
                    let moved = packets.iter().zip(moved);
                    moved.for_each(|(packet, moved)| self.send(moved, packet.time));
                }
                Some(Err(error)) => {
                    self.faults.fetch_add(packets.len() as u64, Ordering::Relaxed);
                    tracing::warn!("{} packets: {error}", packets.len());
                }
                // Without a program, packets are dropped.
                None => {}
            }
        }
    }

    /// Sends what a packet caused.
    fn send(&self, moved: MovedPackets, time: u64) {
        moved.messages.iter().for_each(|message| tracing::info!(target: "p4", "{message}"));
        self.ports.send(&moved.sent, time);
        self.handle.send_to_controllers(moved.for_controllers);
    }

    /// Moves a packet through the switch, and sends what leaves.
    fn move_one(&self, port: &SwitchPort, data: &[u8], time: u64) {
        port.note_received(data, time);
        let number = self.moved.fetch_add(1, Ordering::Relaxed);
        let is_traced = self.trace.is_some_and(|interval| number.is_multiple_of(interval));
        let moved = self.handle.move_packets(|switch| match is_traced {
            true => switch.receive_traced(port.number, data),
            false => (switch.receive(port.number, data), Vec::new()),
        });
        let (moved, events) = moved.map_or((None, Vec::new()), |(moved, events)| (Some(moved), events));
        if self.conditions.iter().all(|condition| condition.is_met(&events)) {
            events.iter().for_each(|event| outln!("packet {number}: {event}"));
        }
        match moved {
            Some(Ok(moved)) => self.send(moved, time),
            Some(Err(error)) => {
                self.faults.fetch_add(1, Ordering::Relaxed);
                tracing::warn!("port {}: {error}", port.number);
            }
            // Without a program, packets are dropped.
            None => {}
        }
    }

    /// Moves the packets of an interface until the run ends. An interface that vanishes or goes down is opened
    /// again when it is back.
    pub(super) fn serve_interface(&self, at: usize) {
        let Some(port) = self.ports.all.get(at) else { return };
        let OpenDevice::Interface { name, socket } = &port.device else { return };
        let mut frame = vec![0; LONGEST_FRAME];
        let mut is_up = true;
        while !self.ends.load(Ordering::Relaxed) {
            let current = socket.read().unwrap_or_else(PoisonError::into_inner).clone();
            let Some(current) = current else {
                std::thread::sleep(RETRY);
                *socket.write().unwrap_or_else(PoisonError::into_inner) = open_interface(name).ok();
                continue;
            };
            match self.serve_some(port, &current, &mut frame) {
                // A socket can be opened on an interface that is down; the first receive says so.
                Ok(()) if !is_up => {
                    is_up = true;
                    tracing::info!("port {}: {name} is back", port.number);
                }
                Ok(()) => {}
                Err(error) => {
                    if is_up {
                        tracing::warn!("port {}: {name}: {error}", port.number);
                    }
                    is_up = false;
                    *socket.write().unwrap_or_else(PoisonError::into_inner) = None;
                }
            }
        }
    }

    fn serve_some(
        &self,
        port: &SwitchPort,
        socket: &Arc<PacketSocket>,
        frame: &mut [u8],
    ) -> millstream_kernel::Result<()> {
        PacketSocket::wait(std::slice::from_ref(&**socket), WAIT)?;
        let batch = self.batch_size();
        let mut arrived = Vec::new();
        let mut end = Ok(());
        for _ in 0..BATCH {
            match socket.receive_into(frame) {
                Ok(None) => break,
                Ok(Some(length)) => {
                    let data = frame.get(..length).unwrap_or_default();
                    match batch {
                        1 => self.move_one(port, data, os::now_ns()),
                        _ => arrived.push(ArrivedPacket { port, data: data.to_vec(), time: os::now_ns() }),
                    }
                }
                Err(error) => {
                    end = Err(error);
                    break;
                }
            }
        }
        self.move_all(&arrived, batch);
        end
    }

    /// Moves the packets of all capture files in the order of their times.
    ///
    /// # Errors
    /// If a file cannot be read.
    pub(super) fn serve_captures(&self) -> Result<()> {
        let mut readers = Vec::new();
        for port in &self.ports.all {
            if let OpenDevice::Captures { input: Some(path), .. } = &port.device {
                readers.push((port, CaptureReader::open(path).into_diagnostic()?, None));
            }
        }
        let batch = self.batch_size();
        let mut arrived = Vec::with_capacity(batch);
        while !self.ends.load(Ordering::Relaxed) {
            for (_, reader, next) in &mut readers {
                if next.is_none() {
                    *next = reader.next_record().map(|r| (r.time.unwrap_or(0), r.bytes.to_vec()));
                }
            }
            let waiting = readers.iter_mut().filter(|(_, _, next)| next.is_some());
            let first = waiting.min_by_key(|(_, _, next)| next.as_ref().map_or(0, |(time, _)| *time));
            let Some((port, (time, data))) = first.and_then(|(port, _, next)| Some((*port, next.take()?)))
            else {
                break;
            };
            arrived.push(ArrivedPacket { port, data, time });
            if arrived.len() >= batch {
                self.move_all(&arrived, batch);
                arrived.clear();
            }
        }
        self.move_all(&arrived, batch);
        Ok(())
    }
}

//! Threads that bring packets to a switch: one for each interface, and one for all capture files.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use miette::{IntoDiagnostic, Result};
use millstream_kernel::{LONGEST_FRAME, PacketSocket};
use millstream_lab::os;
use millstream_lab::pcap::CaptureReader;
use millstream_p4_switch::TraceCondition;
use millstream_p4runtime_server::SwitchHandle;

use super::ports::{OpenDevice, SwitchPort, SwitchPorts, open_interface};

/// Longest wait for a packet, after which the end of the run is looked for.
const WAIT: Duration = Duration::from_millis(50);
/// Interval between tries to open an interface that vanished.
const RETRY: Duration = Duration::from_millis(500);
/// Packets that are moved before controllers are let in.
const BATCH: usize = 32;

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
}

impl PacketMover {
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
            Some(Ok(moved)) => {
                moved.messages.iter().for_each(|message| tracing::info!(target: "p4", "{message}"));
                self.ports.send(&moved.sent, time);
                self.handle.send_to_controllers(moved.for_controllers);
            }
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
        for _ in 0..BATCH {
            let Some(length) = socket.receive_into(frame)? else { break };
            self.move_one(port, frame.get(..length).unwrap_or_default(), os::now_ns());
        }
        Ok(())
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
                return Ok(());
            };
            self.move_one(port, &data, time);
        }
        Ok(())
    }
}

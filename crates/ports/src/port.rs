//! One interface with all of its queues, for callers that have buffers of their own.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use crate::socket::AnonymousMemory;
use crate::{
    FrameMemory, PortDropCounts, PortError, ReceivedPart, XdpInterface, XdpInterfaces, XskOptions, XskQueues,
    XskQueuesConfig,
};

/// An interface.
pub struct XdpPort {
    interfaces: XdpInterfaces,
    /// Queue to send on: one, until it has no room, so that packets leave in the order in which they were
    /// given.
    turn: usize,
    /// Packets that were received and not handed over yet, for the duration of a call.
    came: Vec<ReceivedPart>,
    /// Bytes of a packet that came in several frames.
    whole: Vec<u8>,
}

/// Frames that are out of the queues at once, at most.
const HAND: usize = 64;

impl XdpPort {
    /// Takes an interface of this network namespace.
    ///
    /// # Errors
    /// As for [`XdpInterfaces::open`].
    pub fn open(name: &str, options: &XskOptions) -> Result<XdpPort, PortError> {
        let own = &mut |length| AnonymousMemory::new(length).map(|own| Arc::new(own) as Arc<dyn FrameMemory>);
        let interfaces =
            XdpInterfaces::open(&[name], XskQueuesConfig { workers: 1, at_hand: HAND }, options, own)?;
        Ok(XdpPort { interfaces, turn: 0, came: Vec::with_capacity(HAND), whole: Vec::new() })
    }

    /// The interface.
    pub fn interface(&self) -> &XdpInterface {
        &self.interfaces.all()[0]
    }

    fn line(&mut self) -> &mut XskQueues {
        &mut self.interfaces.parts().1[0]
    }

    fn failed(&self, source: io::Error) -> PortError {
        PortError::Io { interface: self.interface().name().to_owned(), source }
    }

    /// Hands over at most so many received packets, and returns their number.
    ///
    /// # Errors
    /// If the interface no longer exists.
    pub fn receive(&mut self, most: usize, take: &mut dyn FnMut(&[u8])) -> Result<usize, PortError> {
        let (mut taken, queues) = (0, self.line().queues());
        // Each queue gets its share of the room first, then the rest.
        for share in [most.div_ceil(queues), most] {
            for at in 0..queues {
                let mut room = share.min(most - taken);
                while room > 0 {
                    let got = self.some(at, room.min(HAND), take)?;
                    if got == 0 {
                        break;
                    }
                    (taken, room) = (taken + got, room - got);
                }
            }
        }
        Ok(taken)
    }

    /// Hands over at most so many packets of a queue, no more than [`HAND`].
    fn some(&mut self, at: usize, most: usize, take: &mut dyn FnMut(&[u8])) -> Result<usize, PortError> {
        let (mut came, mut whole) = (std::mem::take(&mut self.came), std::mem::take(&mut self.whole));
        let line = self.line();
        let got = line.receive(at, most, |part| came.push(part));
        whole.clear();
        for ReceivedPart { frame, place, is_last } in came.drain(..) {
            let start = frame.offset();
            let (from, to) = ((place.start - start) as usize, (place.end - start) as usize);
            let bytes = line.bytes(&frame).get(from..to).unwrap_or_default();
            if is_last && whole.is_empty() {
                take(bytes);
            } else {
                whole.extend_from_slice(bytes);
                if is_last {
                    take(&whole);
                    whole.clear();
                }
            }
            line.give_back(frame);
        }
        (self.came, self.whole) = (came, whole);
        got.map_err(|e| self.failed(e))
    }

    /// Puts a packet into a queue to be sent with the next [`XdpPort::flush`]; `false` if there is no room,
    /// or it is longer than packets may be ([`XskQueues::longest`]).
    pub fn send(&mut self, packet: &[u8]) -> bool {
        let queues = self.line().queues();
        for _ in 0..queues {
            let turn = self.turn;
            if self.line().send_copy(turn, packet) {
                return true;
            }
            self.turn = (turn + 1) % queues;
        }
        false
    }

    /// Sends the packets in the queues, and takes back the frames of packets that were sent.
    ///
    /// # Errors
    /// If the interface no longer exists.
    pub fn flush(&mut self) -> Result<(), PortError> {
        for at in 0..self.line().queues() {
            self.line().flush(at).map_err(|e| self.failed(e))?;
        }
        Ok(())
    }

    /// Packets that were given to the kernel to be sent, and are not sent yet.
    pub fn unsent(&mut self) -> usize {
        self.line().unsent()
    }

    /// Waits until a packet is received, for at most so long.
    ///
    /// # Errors
    /// If the interface no longer exists.
    pub fn wait(&mut self, at_most: Duration) -> Result<(), PortError> {
        self.line().wait(at_most).map_err(|e| self.failed(e))
    }

    /// Packets that the kernel has dropped.
    pub fn lost(&self) -> PortDropCounts {
        self.interfaces.lost()
    }
}

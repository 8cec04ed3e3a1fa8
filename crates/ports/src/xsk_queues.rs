//! Queues of one worker, over one memory: a frame that was received on one of them is sent on any other as it
//! is.
//!
//! The memory has as many frames as the queues can hold, and those that the worker has at hand. A frame is in
//! one place at a time: free, with the kernel to be filled, in the ring of received packets, with the worker,
//! or with the kernel to be sent. So there is always a frame to be filled in place of a received one.
//!
//! If queues exchange packets in several buffers (scatter-gather, Linux 6.6), a packet longer than a frame is
//! a sequence of frames, each of which but the last has `XDP_PKT_CONTD`.

use std::io;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use crate::frames::{UmemFrame, UmemFramePool};
use crate::socket::{FRAME, FrameMemory, RingKind, XdpDesc, XskRing, XskSocket};
use crate::{PortDropCounts, ScatterMode};

/// Entries of each ring.
pub(crate) const RING: u32 = 2048;
/// Most frames of a packet: `MAX_SKB_FRAGS` and one.
pub(crate) const MOST_PARTS: usize = 18;

/// A queue of an interface. Fields are dropped in order.
pub(crate) struct XskQueue {
    fill: XskRing<u64>,
    completion: XskRing<u64>,
    receive: XskRing<XdpDesc>,
    send: XskRing<XdpDesc>,
    pub(crate) socket: XskSocket,
    /// Its interface's place among those of the line, and its number there.
    interface: usize,
    number: u32,
    /// Frames that the kernel has to fill, or has filled.
    filling: u32,
    /// Frames of packets to be sent that have not come back.
    unsent: u32,
}

impl XskQueue {
    /// A queue whose socket is not bound yet; the first one of a line has been given the memory.
    pub(crate) fn new(socket: XskSocket, interface: usize, number: u32) -> io::Result<XskQueue> {
        Ok(XskQueue {
            fill: socket.ring(RingKind::Fill, RING)?,
            completion: socket.ring(RingKind::Completion, RING)?,
            receive: socket.ring(RingKind::Receive, RING)?,
            send: socket.ring(RingKind::Send, RING)?,
            socket,
            interface,
            number,
            filling: 0,
            unsent: 0,
        })
    }

    /// Gives the kernel frames to fill, as many as the ring has room for.
    fn refill(&mut self, frames: &mut UmemFramePool) {
        while self.filling < RING {
            let Some(frame) = frames.take() else { break };
            let whole = frame.offset()..frame.offset() + FRAME as u32;
            let Ok(address) = frames.given(frame, &whole) else { break };
            if !self.fill.put(address) {
                frames.give_back(frames.returned(address));
                break;
            }
            self.filling += 1;
        }
        self.fill.publish();
    }

    /// Takes back the frames of packets that were sent.
    fn complete(&mut self, frames: &mut UmemFramePool) {
        while let Some(address) = self.completion.take() {
            let frame = frames.returned(address);
            frames.give_back(frame);
            self.unsent -= 1;
        }
        self.completion.release();
    }
}

/// Addresses of the bytes of a received packet in the memory.
pub type FrameRange = Range<u32>;

/// A received packet, or a part of one that is in several frames. Parts of a packet follow one another.
#[derive(Debug)]
pub struct ReceivedPart {
    /// The frame.
    pub frame: UmemFrame,
    /// Addresses of the bytes in the memory.
    pub place: FrameRange,
    /// True for the last part of a packet.
    pub is_last: bool,
}

/// Queues of one worker.
pub struct XskQueues {
    queues: Vec<XskQueue>,
    frames: UmemFramePool,
    /// True if drivers work only when they are asked.
    busy: bool,
    /// Packets in several frames.
    scatter: ScatterMode,
}

impl XskQueues {
    pub(crate) fn new(frames: UmemFramePool, busy: bool, scatter: ScatterMode) -> XskQueues {
        XskQueues { queues: Vec::new(), frames, busy, scatter }
    }

    /// Bytes of memory for so many queues, and a worker that has so many frames at hand, and the rest of a
    /// packet.
    pub(crate) fn memory_of(queues: usize, at_hand: usize) -> usize {
        (2 * RING as usize * queues + at_hand + MOST_PARTS) * FRAME
    }

    /// Packets in several frames.
    pub(crate) fn scatter(&self) -> ScatterMode {
        self.scatter
    }

    /// Notes that kernel or driver have no packets in several frames.
    pub(crate) fn refuse_scatter(&mut self, why: ScatterMode) {
        self.scatter = why;
    }

    /// Length of the longest packet that can be sent.
    pub fn longest(&self) -> usize {
        if self.scatter == ScatterMode::On { MOST_PARTS * FRAME } else { FRAME }
    }

    pub(crate) fn frames(&self) -> &UmemFramePool {
        &self.frames
    }

    /// The socket that the memory was given to, if there is one.
    pub(crate) fn first(&self) -> Option<&XskSocket> {
        self.queues.first().map(|queue| &queue.socket)
    }

    /// Adds another queue, whose socket is bound.
    pub(crate) fn add(&mut self, mut queue: XskQueue) {
        queue.refill(&mut self.frames);
        self.queues.push(queue);
    }

    /// Number of queues.
    pub fn queues(&self) -> usize {
        self.queues.len()
    }

    /// The interface of a queue, by its index among all, and the queue's number there.
    pub fn queue(&self, at: usize) -> (usize, u32) {
        (self.queues[at].interface, self.queues[at].number)
    }

    pub(crate) fn socket(&self, at: usize) -> &XskSocket {
        &self.queues[at].socket
    }

    /// Hands over packets that were received on a queue: each as one frame or several, and at most so many
    /// frames and the rest of the last packet. Returns the number of packets.
    ///
    /// # Errors
    /// If the interface no longer exists.
    #[inline]
    pub fn receive(
        &mut self,
        at: usize,
        most: usize,
        mut take: impl FnMut(ReceivedPart),
    ) -> io::Result<usize> {
        let XskQueues { queues, frames, busy, .. } = self;
        let queue = &mut queues[at];
        let (mut taken, mut packets, mut is_last) = (0, 0, true);
        // The kernel publishes all frames of a packet at once.
        while taken < most || !is_last {
            let Some(XdpDesc { address, length, options }) = queue.receive.take() else { break };
            let (frame, start) = (frames.returned(address), address as u32);
            is_last = options & XdpDesc::CONTINUED == 0;
            take(ReceivedPart { frame, place: start..start + length, is_last });
            taken += 1;
            packets += usize::from(is_last);
        }
        if taken == 0 {
            if *busy || queue.fill.needs_wakeup() {
                queue.socket.wake_receiver()?;
            }
            return Ok(0);
        }
        queue.receive.release();
        queue.filling -= taken as u32;
        queue.refill(frames);
        Ok(packets)
    }

    /// Takes a free frame.
    #[inline]
    pub fn take(&mut self) -> Option<UmemFrame> {
        self.frames.take()
    }

    /// Takes back a frame that is not sent.
    #[inline]
    pub fn give_back(&mut self, frame: UmemFrame) {
        self.frames.give_back(frame);
    }

    /// The bytes of a frame.
    pub fn bytes<'f>(&'f self, frame: &'f UmemFrame) -> &'f [u8] {
        self.frames.bytes(frame)
    }

    /// The bytes of a frame, to be written.
    pub fn bytes_mut<'f>(&'f mut self, frame: &'f mut UmemFrame) -> &'f mut [u8] {
        self.frames.bytes_mut(frame)
    }

    /// Adds a packet in this line's memory to those that a queue sends with the next [`XskQueues::flush`].
    ///
    /// # Errors
    /// Returns the frame, if there is no room, or the packet does not lie in it.
    #[inline]
    pub fn send(&mut self, at: usize, frame: UmemFrame, place: FrameRange) -> Result<(), UmemFrame> {
        let XskQueues { queues, frames, .. } = self;
        let queue = &mut queues[at];
        if queue.unsent >= RING {
            queue.complete(frames);
            if queue.unsent >= RING {
                return Err(frame);
            }
        }
        let address = frames.given(frame, &place)?;
        let packet = XdpDesc { address, length: place.end - place.start, options: 0 };
        if !queue.send.put(packet) {
            return Err(frames.returned(address));
        }
        queue.unsent += 1;
        Ok(())
    }

    /// Copies a packet into frames, and sends it as [`XskQueues::send`] does; `false` if there is no room, or
    /// it is longer than [`XskQueues::longest`].
    pub fn send_copy(&mut self, at: usize, bytes: &[u8]) -> bool {
        let parts = bytes.len().div_ceil(FRAME).max(1);
        if bytes.len() > self.longest() || !self.has_room(at, parts) {
            return false;
        }
        for number in 0..parts {
            let part = &bytes[number * FRAME..bytes.len().min((number + 1) * FRAME)];
            // There is room for all of them, by the check above.
            let Some(mut frame) = self.take() else { return false };
            if let Some(room) = self.bytes_mut(&mut frame).get_mut(..part.len()) {
                room.copy_from_slice(part);
            }
            let queue = &mut self.queues[at];
            let options = if number + 1 < parts { XdpDesc::CONTINUED } else { 0 };
            let packet = XdpDesc { address: frame.offset().into(), length: part.len() as u32, options };
            if !queue.send.put(packet) {
                self.give_back(frame);
                return false;
            }
            queue.unsent += 1;
        }
        true
    }

    /// Returns true if there are so many free frames, and entries in the ring of a queue.
    fn has_room(&mut self, at: usize, parts: usize) -> bool {
        let XskQueues { queues, frames, .. } = self;
        let queue = &mut queues[at];
        if queue.unsent + parts as u32 > RING {
            queue.complete(frames);
        }
        queue.unsent + parts as u32 <= RING
            && frames.free_count() >= parts
            && queue.send.has_room(parts as u32)
    }

    /// Makes the kernel send the packets that were added to a queue, and takes back the frames of those that
    /// it has sent.
    ///
    /// # Errors
    /// If the interface no longer exists.
    pub fn flush(&mut self, at: usize) -> io::Result<()> {
        let XskQueues { queues, frames, .. } = self;
        let queue = &mut queues[at];
        if queue.unsent == 0 {
            return Ok(());
        }
        queue.send.publish();
        // If the kernel copies, it sends a few dozen packets per call.
        let mut pending = queue.send.pending();
        while pending > 0 && queue.send.needs_wakeup() {
            let more = queue.socket.wake_sender()?;
            queue.complete(frames);
            let left = queue.send.pending();
            if !more || left == pending {
                break;
            }
            pending = left;
        }
        queue.complete(frames);
        Ok(())
    }

    /// Packets that were given to the kernel to be sent, and are not sent yet.
    pub fn unsent(&self) -> usize {
        self.queues.iter().map(|queue| queue.unsent as usize).sum()
    }

    /// Waits until a packet is received on any queue, for at most so long.
    ///
    /// # Errors
    /// If an interface no longer exists.
    pub fn wait(&self, at_most: Duration) -> io::Result<()> {
        XskSocket::wait(self.queues.iter().map(|queue| &queue.socket), at_most)
    }

    /// Packets that the kernel has dropped.
    pub fn lost(&self) -> PortDropCounts {
        let of = |queue: &XskQueue| {
            queue.socket.statistics().map_or_else(
                |_| PortDropCounts::default(),
                |s| {
                    // A packet for which no frame was free is among those dropped, too.
                    let without = s.rx_dropped.min(s.rx_fill_ring_empty_descs);
                    let unfit = s.rx_dropped - without + s.rx_invalid_descs;
                    PortDropCounts { no_room: s.rx_ring_full + without, unfit }
                },
            )
        };
        self.queues.iter().map(of).sum()
    }
}

/// Makes a line without queues.
pub(crate) fn line(memory: Arc<dyn FrameMemory>, busy: bool, scatter: ScatterMode) -> XskQueues {
    XskQueues::new(UmemFramePool::new(memory), busy, scatter)
}

//! Context of native code beside the packet: the worker that runs it.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use super::packet::{ArrivalMetadata, BUFFER, DescriptorLayout, SentDescriptor};

/// An effect of a program that outlives the packet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ProgramEvent {
    /// A record of a ring buffer or perf event array.
    Record {
        /// Name of the map.
        map: String,
        /// The record.
        data: Vec<u8>,
    },
    /// `bpf_trace_printk`: the format.
    Trace(String),
}

/// Receives a record and the time of the current packet, in nanoseconds. Workers call it at once.
pub type TakeRecord = dyn Fn(&[u8], u64) + Send + Sync;

/// Listener for records of a map as a program makes them, in place of [`ProgramEvent`]s.
#[derive(Clone)]
pub struct RecordListener {
    /// The map's name.
    pub map: String,
    /// Its function.
    pub take: Arc<TakeRecord>,
}

impl std::fmt::Debug for RecordListener {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Listener").field("map", &self.map).finish_non_exhaustive()
    }
}

/// The clocks that programs read.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum ClockSource {
    /// The system's.
    #[default]
    System,
    /// Always this many nanoseconds, until it is set again.
    Fixed(u64),
}

/// Descriptors for copies of packets.
#[derive(Debug)]
pub struct CopyPool {
    /// The next descriptor for a copy.
    pub spare: *mut u32,
    /// Number of descriptors left for copies.
    pub spares: u64,
}

/// Records of programs, and what their listener gets with them.
#[derive(Debug, Default)]
pub struct RecordStream {
    /// Records of the current batch that nobody has taken yet.
    pub events: Vec<ProgramEvent>,
    /// Records reserved in ring buffers and not yet submitted, with the address of their map.
    pub records: Vec<(u64, Box<[u8]>)>,
    /// Called with each record, if there is one.
    pub listener: Option<RecordListener>,
    /// For the listener: metadata of the batch's packets.
    pub arrivals: Vec<ArrivalMetadata>,
    /// For the listener: address of the packets' descriptors.
    pub first: usize,
    /// For the listener: maximum number of packets without copies.
    pub capacity: usize,
}

/// A worker. Native code knows its first fields by offset.
#[repr(C)]
#[derive(Debug)]
pub struct Worker {
    /// The descriptor of the current packet.
    pub current: *mut u32,
    /// Tail calls made for it.
    pub(crate) tail_calls: u32,
    /// Its number: the CPU that programs see.
    pub number: u32,
    /// The coarse clock, which is read once per batch: the kernel's advances once per tick, every 4 ms or so.
    pub coarse: u64,
    /// Packets that a graph sends; there is room for all packets.
    pub sent: *mut SentDescriptor,
    /// Number of packets in [`Worker::sent`].
    pub sent_len: u64,
    /// Number of held packets, in all queues.
    pub(crate) held: u64,
    /// Descriptors for copies.
    pub copies: CopyPool,
    /// Addresses of the first byte of the packet that a pipeline has, and of its end.
    pub bounds: [u64; 2],
    /// The interface or source of all packets of the batch; 0 if there are several.
    pub ingress: u32,
    /// Held packets, by queue.
    pub(crate) queues: BTreeMap<u64, VecDeque<*mut u32>>,
    /// Layout of descriptors.
    pub layout: DescriptorLayout,
    /// Clock that programs read.
    pub clock: ClockSource,
    /// State of the random numbers.
    pub seed: u64,
    /// Records of programs.
    pub stream: RecordStream,
    /// Bytes of a packet's buffer.
    pub buffer: u32,
}

/// Offset of [`Worker::current`].
pub const CURRENT: usize = std::mem::offset_of!(Worker, current);
/// Offset of [`Worker::coarse`].
pub const COARSE: usize = std::mem::offset_of!(Worker, coarse);
/// Offset of [`Worker::number`].
pub const NUMBER: usize = std::mem::offset_of!(Worker, number);
/// Offset of `Worker::tail_calls`.
pub const TAIL_CALLS: usize = std::mem::offset_of!(Worker, tail_calls);
/// Offset of [`Worker::bounds`].
pub const BOUNDS: usize = std::mem::offset_of!(Worker, bounds);

/// Offset of [`Worker::sent`].
pub const SENT: usize = std::mem::offset_of!(Worker, sent);
/// Offset of [`Worker::sent_len`].
pub const SENT_LEN: usize = std::mem::offset_of!(Worker, sent_len);
/// Offset of `Worker::held`.
pub const HELD: usize = std::mem::offset_of!(Worker, held);

impl Worker {
    /// A worker by its number, the seed of its random numbers and the layout of descriptors.
    pub fn new(number: u32, seed: u64, layout: DescriptorLayout) -> Worker {
        Worker {
            current: std::ptr::null_mut(),
            tail_calls: 0,
            number,
            coarse: 0,
            sent: std::ptr::null_mut(),
            sent_len: 0,
            held: 0,
            copies: CopyPool { spare: std::ptr::null_mut(), spares: 0 },
            bounds: [0; 2],
            ingress: 0,
            queues: BTreeMap::new(),
            layout,
            clock: ClockSource::default(),
            seed: seed.max(1),
            stream: RecordStream::default(),
            buffer: BUFFER as u32,
        }
    }

    /// The next random number (xorshift).
    pub(crate) fn random(&mut self) -> u32 {
        let mut x = self.seed;
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        self.seed = x;
        (x >> 32) as u32
    }
}

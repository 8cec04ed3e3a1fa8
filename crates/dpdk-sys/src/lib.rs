//! DPDK, as much of it as Millstream uses.
//!
//! DPDK's interface consists of inline functions, macros and structures that change between releases:
//! `shim.c` makes functions of it, compiled by the system's C compiler against the headers that pkg-config
//! names; here are their declarations. Without feature `dpdk` the crate is empty, and no DPDK is needed to
//! build it.
//!
//! Architecture Invariant: nothing here decides anything. The comment of each function states its
//! preconditions; the caller is `millstream_native_io::dpdk`.
#![cfg(feature = "dpdk")]
#![allow(unsafe_code)] // Declarations of foreign functions are.

use std::ffi::{c_char, c_int, c_uint, c_void};

/// A pool of buffers.
#[repr(C)]
#[derive(Debug)]
pub struct Mempool {
    opaque: [u8; 0],
}

/// The first fields of `struct rte_mbuf`; the shim holds their places against the header's.
#[repr(C)]
#[derive(Debug)]
pub struct Mbuf {
    /// Address of its bytes.
    pub address: *mut u8,
    iova: u64,
    /// Offset of the packet in these.
    pub data: u16,
    references: u16,
    /// Buffers that the packet is spread over.
    pub pieces: u16,
    port: u16,
    flags: u64,
    kind: u32,
    /// Bytes of the packet.
    pub packet_len: u32,
    /// Bytes of it in this buffer.
    pub len: u16,
}

/// Packets that a driver has dropped.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DriverDropCounts {
    /// For want of a descriptor or buffer.
    pub no_room: u64,
    /// Because of an error in the packet.
    pub unfit: u64,
}

unsafe extern "C" {
    /// `DPDK 22.11.11`: a string that stays.
    pub safe fn ms_dpdk_version() -> *const c_char;
    /// Text of an error number, in memory of the calling thread.
    pub safe fn ms_dpdk_reason(error: c_int) -> *const c_char;
    /// Starts EAL: once in a process, with strings that stay and that it may put into another order. 0, or an
    /// error number.
    pub fn ms_dpdk_init(count: c_int, arguments: *mut *mut c_char) -> c_int;
    /// Ends EAL: last of all.
    pub fn ms_dpdk_cleanup();
    /// Bytes that a pool of so many buffers takes.
    pub safe fn ms_dpdk_pool_bytes(buffers: c_uint, front: u16, room: u16) -> usize;
    /// Makes a pool in memory that outlives it and begins at a page; null, and why, if that cannot be.
    pub fn ms_dpdk_pool(
        memory: *mut c_void,
        length: usize,
        buffers: c_uint,
        front: u16,
        room: u16,
        error: *mut c_int,
    ) -> *mut Mempool;
    /// Frees a pool; none of its buffers may be in use.
    pub fn ms_dpdk_pool_free(pool: *mut Mempool);
    /// The port of a device of this name, or -1.
    pub fn ms_dpdk_port(device: *const c_char) -> c_int;
    /// Starts a port with so many queues each way, and buffers of this pool and memory: 0, or an error
    /// number. A port that is not virtual gets this MTU. `chains` becomes 1 if the port sends packets in
    /// several buffers.
    pub fn ms_dpdk_start(
        port: u16,
        queues: u16,
        mtu: u16,
        is_virtual: c_int,
        pool: *mut Mempool,
        memory: *mut c_void,
        length: usize,
        chains: *mut c_int,
    ) -> c_int;
    /// Gives a started port this Ethernet address, of 6 bytes, until it is closed: 0, or an error number.
    pub fn ms_dpdk_set_address(port: u16, address: *const u8) -> c_int;
    /// Stops and closes a port on which no thread receives or sends.
    pub fn ms_dpdk_stop(port: u16);
    /// Reads the numbers of packets that the driver of a port has dropped.
    pub fn ms_dpdk_lost(port: u16, lost: *mut DriverDropCounts);
    /// Registers the calling thread: 0, or an error number.
    pub fn ms_dpdk_enter() -> c_int;
    /// Takes that back, by the same thread.
    pub fn ms_dpdk_leave();
    /// Receives at most so many packets, of a queue that no other thread receives from, and gives them away.
    pub fn ms_dpdk_receive(port: u16, queue: u16, buffers: *mut *mut Mbuf, most: u16) -> u16;
    /// Sends packets, by a queue that no other thread sends by: takes as many buffers as it says.
    pub fn ms_dpdk_send(port: u16, queue: u16, buffers: *mut *mut Mbuf, count: u16) -> u16;
    /// An empty buffer, or null.
    pub fn ms_dpdk_new(pool: *mut Mempool) -> *mut Mbuf;
    /// The buffer behind this one of a packet in several; null if it is the last.
    pub fn ms_dpdk_next(buffer: *const Mbuf) -> *mut Mbuf;
    /// Appends a buffer, which nobody else has, to a packet: 0, or an error number if that has too many; the
    /// caller has the buffer still, then.
    pub fn ms_dpdk_append(packet: *mut Mbuf, buffer: *mut Mbuf) -> c_int;
    /// Takes packets back, with all their buffers; null ones are none.
    pub fn ms_dpdk_free(buffers: *mut *mut Mbuf, count: c_uint);
}

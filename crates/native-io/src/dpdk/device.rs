//! EAL, its ports, and the buffers that drivers fill: all calls of DPDK.
//!
//! Invariants: EAL is started once in a process, and ended when the [`DpdkDevice`] is dropped. A queue of all
//! ports is given to one [`DpdkWorkerQueues`], and so used by one thread. A buffer has one owner: a driver,
//! the pool, or a list of [`MbufList`], which returns the rest when it is dropped. The pool lies in a region
//! that the device holds until EAL has ended; Rust reads its bytes only through buffers that it owns.
#![allow(unsafe_code)]

use std::ffi::{CStr, CString, c_char, c_int};
use std::io;
use std::marker::PhantomData;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use millstream_dpdk_sys as sys;

use super::{DpdkDropCounts, DpdkError};
use millstream_native_runtime::packet::{BUFFER, FRONT, LONGEST, PacketBatch, PacketLocation};
use millstream_native_runtime::region::MemoryRegion;

/// Buffers in addition to those of queues, for packets in flight and for those that a driver keeps
/// (`net_pcap`: a whole file, when it repeats it).
const BUFFERS: u32 = 16 << 10;
/// Buffers per queue of a port, in and out.
const OF_A_QUEUE: u32 = 2 << 10;
/// Room of a buffer behind [`FRONT`]. A packet that begins in front of its buffer may have to be moved back
/// by that much.
const ROOM: u16 = BUFFER as u16;
const PAGE: usize = 4096;

static STARTED: AtomicBool = AtomicBool::new(false);

/// DPDK's version string.
pub(super) fn version() -> String {
    text(sys::ms_dpdk_version())
}

fn text(words: *const c_char) -> String {
    // SAFETY: a string of DPDK's, which stays valid until this thread asks again.
    unsafe { CStr::from_ptr(words) }.to_string_lossy().into_owned()
}

fn reason(error: c_int) -> String {
    text(sys::ms_dpdk_reason(error))
}

/// Started ports.
pub(super) struct DpdkDevice {
    ports: Vec<u16>,
    /// True for each port that sends packets in several buffers.
    chains: Vec<bool>,
    pool: *mut sys::Mempool,
    room: Arc<MemoryRegion>,
    queues: u16,
}

// SAFETY: the pool is thread-safe, and is the only shared state; queues are used by their hands.
unsafe impl Send for DpdkDevice {}
// SAFETY: as above.
unsafe impl Sync for DpdkDevice {}

impl DpdkDevice {
    /// Starts EAL with these arguments, and the ports of devices with these names, with this many queues
    /// each; NICs among them, for which the second value is true, get this MTU.
    pub(super) fn open(
        arguments: &[String],
        names: &[(&str, bool)],
        queues: u16,
        mtu: u16,
    ) -> Result<DpdkDevice, DpdkError> {
        if STARTED.swap(true, Ordering::Relaxed) {
            return Err(DpdkError::Again);
        }
        start(arguments)?;
        let count = BUFFERS + OF_A_QUEUE * names.len() as u32 * u32::from(queues);
        let bytes = sys::ms_dpdk_pool_bytes(count, FRONT, ROOM) + 2 * PAGE;
        let room = MemoryRegion::low(bytes.next_multiple_of(PAGE)).map_err(DpdkError::Memory)?;
        room.prefer_large_pages(bytes);
        let mut device = DpdkDevice {
            ports: Vec::new(),
            chains: Vec::new(),
            pool: std::ptr::null_mut(),
            room: Arc::new(room),
            queues,
        };
        let (memory, mut error) = (device.memory(), 0);
        // SAFETY: the region begins at a page, and `Drop` frees the pool before it.
        device.pool = unsafe { sys::ms_dpdk_pool(memory.0, memory.1, count, FRONT, ROOM, &mut error) };
        if device.pool.is_null() {
            return Err(DpdkError::Pool(reason(error)));
        }
        for (name, is_nic) in names {
            device.start(name, *is_nic, mtu)?;
        }
        Ok(device)
    }

    fn memory(&self) -> (*mut std::ffi::c_void, usize) {
        (self.room.address() as *mut std::ffi::c_void, self.room.bytes().len() / PAGE * PAGE)
    }

    fn start(&mut self, name: &str, is_nic: bool, mtu: u16) -> Result<(), DpdkError> {
        let no_port = || DpdkError::NoPort(name.to_owned());
        let words = CString::new(name).map_err(|_| no_port())?;
        // SAFETY: EAL runs; the name is a string.
        let port = u16::try_from(unsafe { sys::ms_dpdk_port(words.as_ptr()) }).map_err(|_| no_port())?;
        let ((memory, length), mut chains) = (self.memory(), 0);
        let (queues, pool, is_virtual) = (self.queues, self.pool, c_int::from(!is_nic));
        // SAFETY: the port is there; pool and memory stay until it is closed.
        let error =
            unsafe { sys::ms_dpdk_start(port, queues, mtu, is_virtual, pool, memory, length, &mut chains) };
        // Closed by `Drop`, even if it did not start.
        self.ports.push(port);
        self.chains.push(chains != 0);
        match error {
            0 => Ok(()),
            _ => Err(DpdkError::Port { device: name.to_owned(), reason: reason(error) }),
        }
    }

    /// Gives a port, by its place among all, an Ethernet address until it is closed.
    pub(super) fn set_address(&mut self, at: usize, address: [u8; 6]) -> Result<(), String> {
        // SAFETY: the port is open; the address has six bytes, which are read during the call.
        match unsafe { sys::ms_dpdk_set_address(self.ports[at], address.as_ptr()) } {
            0 => Ok(()),
            error => Err(reason(error)),
        }
    }

    /// Packets that drivers have dropped.
    pub(super) fn lost(&self) -> DpdkDropCounts {
        let of = |port: &u16| {
            let mut lost = sys::DriverDropCounts::default();
            // SAFETY: the port is open.
            unsafe { sys::ms_dpdk_lost(*port, &mut lost) };
            lost
        };
        let all = self.ports.iter().map(of);
        all.fold(DpdkDropCounts::default(), |sum, l| DpdkDropCounts {
            no_room: sum.no_room + l.no_room,
            unfit: sum.unfit + l.unfit,
        })
    }

    /// Lines, one per queue.
    pub(super) fn lines(&mut self) -> Vec<DpdkQueues<'_>> {
        let device = &*self;
        (0..device.queues).map(|queue| DpdkQueues { device, queue }).collect()
    }
}

impl Drop for DpdkDevice {
    fn drop(&mut self) {
        // SAFETY: EAL runs. No hand or buffers are left, since these borrow this; drivers return theirs when
        // they are closed, and the pool is freed before its memory.
        unsafe {
            for port in &self.ports {
                sys::ms_dpdk_stop(*port);
            }
            if !self.pool.is_null() {
                sys::ms_dpdk_pool_free(self.pool);
            }
            sys::ms_dpdk_cleanup();
        }
    }
}

/// Starts EAL, on a thread of its own: EAL binds the thread that starts it to a processor.
fn start(arguments: &[String]) -> Result<(), DpdkError> {
    let words = || std::iter::once("millstream").chain(arguments.iter().map(String::as_str));
    let strings: Result<Vec<CString>, _> = words().map(CString::new).collect();
    let strings =
        strings.map_err(|_| DpdkError::Eal { arguments: arguments.join(" "), errno: libc::EINVAL })?;
    let started = std::thread::spawn(move || {
        // EAL keeps the strings, so they live as long as the process.
        let mut pointers: Vec<*mut c_char> = strings.into_iter().map(CString::into_raw).collect();
        let count = pointers.len() as c_int;
        pointers.push(std::ptr::null_mut());
        // SAFETY: strings and list stay valid, and are EAL's alone; it is the first start, by `STARTED`.
        unsafe { sys::ms_dpdk_init(count, pointers.leak().as_mut_ptr()) }
    });
    match started.join() {
        Ok(0) => Ok(()),
        Ok(errno) => Err(DpdkError::Eal { arguments: arguments.join(" "), errno }),
        Err(_) => Err(DpdkError::Eal { arguments: arguments.join(" "), errno: libc::EFAULT }),
    }
}

/// Meaning of an error number of the system or of DPDK.
pub(super) fn meaning(errno: i32) -> String {
    reason(errno)
}

/// A queue of all ports, not yet taken by a thread.
pub(super) struct DpdkQueues<'d> {
    device: &'d DpdkDevice,
    queue: u16,
}

impl<'d> DpdkQueues<'d> {
    /// The region of the packets.
    pub(super) fn room(&self) -> &'d Arc<MemoryRegion> {
        &self.device.room
    }

    /// Takes the queue for this thread.
    pub(super) fn enter(self) -> io::Result<DpdkWorkerQueues<'d>> {
        // SAFETY: EAL runs, since there is a device.
        match unsafe { sys::ms_dpdk_enter() } {
            0 => Ok(DpdkWorkerQueues { device: self.device, queue: self.queue, here: PhantomData }),
            error => Err(io::Error::other(format!("DPDK takes no further thread: {}", reason(error)))),
        }
    }
}

/// A queue of all ports, taken by a thread.
pub(super) struct DpdkWorkerQueues<'d> {
    device: &'d DpdkDevice,
    queue: u16,
    /// Keeps it on its thread.
    here: PhantomData<*mut ()>,
}

impl Drop for DpdkWorkerQueues<'_> {
    fn drop(&mut self) {
        // SAFETY: this thread was registered by `DpdkQueues::enter`.
        unsafe { sys::ms_dpdk_leave() };
    }
}

impl<'d> DpdkWorkerQueues<'d> {
    /// Number of ports.
    pub(super) fn ports(&self) -> usize {
        self.device.ports.len()
    }

    /// The number of the queue.
    pub(super) fn queue(&self) -> u16 {
        self.queue
    }

    /// An empty list with room for this many buffers.
    pub(super) fn buffers(&self, most: usize) -> MbufList<'d> {
        MbufList { list: Vec::with_capacity(most), gone: 0, _pool: PhantomData }
    }

    /// Receives at most this many packets from a port, replacing the contents of the list.
    pub(super) fn receive(&mut self, port: usize, most: usize, into: &mut MbufList<'_>) -> usize {
        into.free();
        let most = most.min(into.list.capacity()).min(usize::from(u16::MAX)) as u16;
        // SAFETY: the port is open and this queue of it ours; the list has room, and owns the packets that
        // were received.
        unsafe {
            let port = self.device.ports[port];
            let count = sys::ms_dpdk_receive(port, self.queue, into.list.as_mut_ptr(), most);
            into.list.set_len(usize::from(count));
        }
        into.list.len()
    }

    /// Sends the contents of the list by a port, and frees the packets that the driver does not take; returns
    /// the number taken.
    pub(super) fn send(&mut self, port: usize, from: &mut MbufList<'_>) -> usize {
        let mut sent = 0;
        for part in from.list.chunks_mut(usize::from(u16::MAX)) {
            let port = self.device.ports[port];
            // SAFETY: the port is open and this queue of it ours; the driver owns the packets that it took,
            // the list no longer does.
            let taken = unsafe { sys::ms_dpdk_send(port, self.queue, part.as_mut_ptr(), part.len() as u16) };
            part[..usize::from(taken)].fill(std::ptr::null_mut());
            sent += usize::from(taken);
        }
        from.gone += sent;
        from.free();
        sent
    }

    /// Appends a copy of a packet to a list that leaves by a port, in as many buffers as it needs; `false` if
    /// there are none, or the port sends no packets in several.
    pub(super) fn copy(&mut self, bytes: &[u8], port: usize, into: &mut MbufList<'_>) -> bool {
        let Some(first) = self.filled(bytes) else { return false };
        into.list.push(first);
        let mut taken = self.taken(first);
        while taken < bytes.len() {
            let part = if self.device.chains[port] { self.filled(&bytes[taken..]) } else { None };
            let Some(mut part) = part else {
                into.remove(into.list.len() - 1);
                return false;
            };
            taken += self.taken(part);
            // SAFETY: both are ours; the packet has the buffer, if it takes it.
            unsafe {
                if sys::ms_dpdk_append(first, part) != 0 {
                    sys::ms_dpdk_free(&mut part, 1);
                    into.remove(into.list.len() - 1);
                    return false;
                }
            }
        }
        true
    }

    /// Bytes in a buffer that this thread owns.
    fn taken(&self, buffer: *mut sys::Mbuf) -> usize {
        // SAFETY: as the caller says.
        unsafe { usize::from((*buffer).len) }
    }

    /// A buffer with as many of these bytes as it has room for.
    fn filled(&mut self, bytes: &[u8]) -> Option<*mut sys::Mbuf> {
        // SAFETY: the pool is alive.
        let buffer = unsafe { sys::ms_dpdk_new(self.device.pool) };
        // SAFETY: a buffer of the pool, or null.
        let fields = unsafe { buffer.as_mut() }?;
        let length = bytes.len().min(usize::from(ROOM - fields.data));
        (fields.len, fields.packet_len) = (length as u16, length as u32);
        // SAFETY: this many bytes of the buffer are behind that address, by the check above.
        unsafe {
            let to = fields.address.add(usize::from(fields.data));
            std::ptr::copy_nonoverlapping(bytes.as_ptr(), to, length);
        }
        Some(buffer)
    }
}

/// List of owned buffers; places whose buffer was moved on are empty.
pub(super) struct MbufList<'d> {
    list: Vec<*mut sys::Mbuf>,
    /// Number of empty places.
    gone: usize,
    _pool: PhantomData<&'d DpdkDevice>,
}

impl MbufList<'_> {
    /// Number of places, including empty ones.
    pub(super) fn len(&self) -> usize {
        self.list.len()
    }

    /// Location of each packet.
    #[inline]
    pub(super) fn packet_locations(&self) -> MbufLocations<'_> {
        MbufLocations(self.list.iter())
    }

    /// Length of a packet, in all its buffers.
    pub(super) fn packet_length(&self, at: usize) -> usize {
        // SAFETY: the list owns the packet, or it is null.
        self.list.get(at).and_then(|buffer| unsafe { buffer.as_ref() }).map_or(0, |p| p.packet_len as usize)
    }

    /// Returns true if a packet cannot be processed where it lies: it is in several buffers, or fills one so
    /// far that there is no room behind it.
    pub(super) fn is_long(&self, at: usize) -> bool {
        self.parts(at).count() > 1 || self.packet_length(at) > LONGEST
    }

    /// The bytes of a packet in each of its buffers.
    pub(super) fn parts(&self, at: usize) -> MbufParts<'_> {
        MbufParts { next: self.list.get(at).copied().unwrap_or(std::ptr::null_mut()), list: PhantomData }
    }

    /// Moves a buffer into another list, as the packet at these addresses: within its original room.
    #[inline]
    pub(super) fn forward(&mut self, at: usize, bounds: Range<u32>, into: &mut MbufList<'_>) {
        self.gone += usize::from(self.list.get_mut(at).is_some_and(|place| moved(place, bounds, into)));
    }

    /// Moves all packets that leave the batch, which has no copies, into the lists of their outputs.
    // A function of its own, so that the loop has the registers.
    #[inline(never)]
    pub(super) fn forward_all(&mut self, batch: &PacketBatch, out: &mut [MbufList<'_>]) {
        let list = &mut self.list[..batch.len()];
        let mut gone = 0;
        for (at, output, bounds) in batch.departures_of_originals() {
            if let (Some(place), Some(into)) = (list.get_mut(at), out.get_mut(output as usize)) {
                gone += usize::from(moved(place, bounds, into));
            }
        }
        self.gone += gone;
    }

    /// Returns a buffer to the pool; those behind it move up.
    pub(super) fn remove(&mut self, at: usize) {
        let mut buffer = self.list.remove(at);
        self.gone -= usize::from(buffer.is_null());
        // SAFETY: the list owned it, or it is null.
        unsafe { sys::ms_dpdk_free(&mut buffer, 1) };
    }

    /// Returns all buffers to the pool.
    pub(super) fn free(&mut self) {
        if self.gone < self.list.len() {
            // SAFETY: the list owns them; empty places are null.
            unsafe { sys::ms_dpdk_free(self.list.as_mut_ptr(), self.list.len() as u32) };
        }
        self.list.clear();
        self.gone = 0;
    }
}

/// The bytes of a packet in each of its buffers.
#[derive(Clone)]
pub(super) struct MbufParts<'b> {
    next: *mut sys::Mbuf,
    /// The list that owns the packet, and does not change meanwhile.
    list: PhantomData<&'b ()>,
}

impl<'b> Iterator for MbufParts<'b> {
    type Item = &'b [u8];

    fn next(&mut self) -> Option<&'b [u8]> {
        // SAFETY: a buffer of a packet that the list owns, or null. The driver guarantees that this many
        // bytes are there.
        unsafe {
            let fields = self.next.as_ref()?;
            self.next = sys::ms_dpdk_next(fields);
            let from = fields.address.add(usize::from(fields.data));
            Some(std::slice::from_raw_parts(from, usize::from(fields.len)))
        }
    }
}

/// Locations of the packets of a list.
// Not an iterator with a closure: loops for many layouts use it, and none of them may call it.
#[derive(Clone)]
pub(super) struct MbufLocations<'b>(std::slice::Iter<'b, *mut sys::Mbuf>);

impl Iterator for MbufLocations<'_> {
    type Item = PacketLocation;

    #[inline(always)]
    fn next(&mut self) -> Option<PacketLocation> {
        // SAFETY: the list owns it, or it is null.
        let fields = unsafe { self.0.next()?.as_ref() };
        Some(fields.filter(|fields| fields.pieces == 1).map_or(PacketLocation::NOWHERE, |fields| {
            let buffer = fields.address as u32;
            let start = buffer.wrapping_sub(u32::from(FRONT));
            PacketLocation {
                start,
                data: buffer.wrapping_add(u32::from(fields.data)),
                len: u32::from(fields.len),
            }
        }))
    }

    #[inline(always)]
    fn size_hint(&self) -> (usize, Option<usize>) {
        self.0.size_hint()
    }
}

impl ExactSizeIterator for MbufLocations<'_> {}

/// Moves the buffer of a place, if it has one, into a list, as the packet at these addresses.
#[inline(always)]
fn moved(place: &mut *mut sys::Mbuf, bounds: Range<u32>, into: &mut MbufList<'_>) -> bool {
    let buffer = std::mem::replace(place, std::ptr::null_mut());
    // SAFETY: the place's list owned it, or it is null.
    let Some(fields) = (unsafe { buffer.as_mut() }) else { return false };
    into.list.push(buffer);
    let begin = fields.address as u32;
    if bounds.start < begin {
        move_up(fields, &bounds);
    }
    fields.data = bounds.start.saturating_sub(begin) as u16;
    assert!(bounds.end <= begin - u32::from(FRONT) + BUFFER as u32, "it ends behind its buffer");
    let len = bounds.end - bounds.start;
    (fields.len, fields.packet_len) = (len as u16, len);
    true
}

/// Moves a packet that begins in front of its driver's headroom up to the beginning of the headroom.
#[cold]
fn move_up(fields: &mut sys::Mbuf, bounds: &Range<u32>) {
    let buffer = fields.address as u32;
    let front = u32::from(FRONT);
    assert!(bounds.start + front >= buffer && bounds.start <= bounds.end, "it begins in front of its buffer");
    assert!(bounds.end <= buffer - front + BUFFER as u32, "it ends behind its buffer");
    // SAFETY: both are in the room of this buffer, by the checks above: it ends `FRONT` bytes behind where
    // packets may end.
    unsafe {
        let from = fields.address.sub((buffer - bounds.start) as usize);
        std::ptr::copy(from, fields.address, (bounds.end - bounds.start) as usize);
    }
}

impl Drop for MbufList<'_> {
    fn drop(&mut self) {
        self.free();
    }
}

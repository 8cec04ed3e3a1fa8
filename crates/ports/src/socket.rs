//! AF_XDP sockets: memory that is shared with the kernel, and the four rings of a queue.
//!
//! A ring has one producer and one consumer, each with an index that only it moves. The entry at an index is
//! written before the index is moved past it (release), and read after that was seen (acquire). The kernel,
//! as the other end, keeps the same order.
//!
//! The kernel pins the pages of the memory, so that its writes never land elsewhere, even after the mapping
//! is gone.
//!
//! Sources: `include/uapi/linux/if_xdp.h`, `net/xdp/{xsk,xsk_queue,xsk_buff_pool}.c` of Linux 6.18.
#![allow(unsafe_code)]

use std::io;
use std::marker::PhantomData;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::ptr::null_mut;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

/// Bytes of a frame.
pub const FRAME: usize = 4096;
/// `SO_PREFER_BUSY_POLL` and `SO_BUSY_POLL_BUDGET`.
const PREFER_BUSY_POLL: libc::c_int = 69;
const BUSY_POLL_BUDGET: libc::c_int = 70;
/// `SIOCETHTOOL` and `ETHTOOL_GCHANNELS`.
const SIOCETHTOOL: libc::c_ulong = 0x8946;
const GET_CHANNELS: u32 = 0x3c;
/// `XDP_USE_SG`.
pub(crate) const USE_SG: u16 = 1 << 4;

/// Memory that frames lie in.
///
/// # Safety
/// From `address` on `length` bytes of this process are mapped, can be read and written, and stay for as long
/// as the value lives. Nobody holds a reference to bytes of a frame that he does not have.
pub unsafe trait FrameMemory: Send + Sync {
    /// Address of its first byte: at a page.
    fn address(&self) -> u64;

    /// Length, in bytes.
    fn length(&self) -> usize;
}

/// Memory of its own, at an address that the system chooses.
pub struct AnonymousMemory(MmapRegion);

impl AnonymousMemory {
    /// Allocates so many bytes.
    ///
    /// # Errors
    /// If the system has none.
    pub fn new(length: usize) -> io::Result<AnonymousMemory> {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        MmapRegion::new(length, flags, -1, 0).map(AnonymousMemory)
    }
}

// SAFETY: a mapping of that length, which goes with the value; nothing here gives out its bytes.
unsafe impl FrameMemory for AnonymousMemory {
    fn address(&self) -> u64 {
        self.0.base as u64
    }

    fn length(&self) -> usize {
        self.0.length
    }
}

/// The values of an array map of the kernel, which its programs and other processes access, too.
pub struct ArrayMapMemory(millstream_kernel::ArrayMapping);

impl ArrayMapMemory {
    /// Takes a mapping that may be written; returns others.
    ///
    /// # Errors
    /// The mapping.
    pub fn new(
        mapping: millstream_kernel::ArrayMapping,
    ) -> Result<ArrayMapMemory, millstream_kernel::ArrayMapping> {
        if mapping.is_writable() { Ok(ArrayMapMemory(mapping)) } else { Err(mapping) }
    }
}

// SAFETY: mapped from that address for as long as the value lives, and writable. It has no frames.
unsafe impl FrameMemory for ArrayMapMemory {
    fn address(&self) -> u64 {
        self.0.address()
    }

    fn length(&self) -> usize {
        self.0.len()
    }
}

/// A mapping of this process.
struct MmapRegion {
    base: *mut u8,
    length: usize,
}

// SAFETY: a mapping is the process's, not a thread's.
unsafe impl Send for MmapRegion {}
// SAFETY: as above; a shared reference gives access to nothing but its address.
unsafe impl Sync for MmapRegion {}

impl MmapRegion {
    fn new(length: usize, flags: libc::c_int, fd: libc::c_int, at: libc::off_t) -> io::Result<MmapRegion> {
        let access = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: a new mapping at a place that the system chooses touches no memory that exists.
        let base = unsafe { libc::mmap(null_mut(), length, access, flags, fd, at) };
        match base == libc::MAP_FAILED {
            true => Err(io::Error::last_os_error()),
            false => Ok(MmapRegion { base: base.cast(), length }),
        }
    }
}

impl Drop for MmapRegion {
    fn drop(&mut self) {
        // SAFETY: our own mapping, of that length; its owner holds no reference into it.
        unsafe { libc::munmap(self.base.cast(), self.length) };
    }
}

/// The four rings of a socket.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum RingKind {
    /// Frames that the kernel is to fill.
    Fill,
    /// Frames whose packets it has sent.
    Completion,
    /// Packets that it has received.
    Receive,
    /// Packets that it is to send.
    Send,
}

impl RingKind {
    /// The option that sets its size, and the offset from which it is mapped.
    fn numbers(self) -> (libc::c_int, libc::off_t) {
        match self {
            RingKind::Fill => (libc::XDP_UMEM_FILL_RING, libc::XDP_UMEM_PGOFF_FILL_RING as libc::off_t),
            RingKind::Completion => {
                (libc::XDP_UMEM_COMPLETION_RING, libc::XDP_UMEM_PGOFF_COMPLETION_RING as libc::off_t)
            }
            RingKind::Receive => (libc::XDP_RX_RING, libc::XDP_PGOFF_RX_RING as libc::off_t),
            RingKind::Send => (libc::XDP_TX_RING, libc::XDP_PGOFF_TX_RING as libc::off_t),
        }
    }

    fn offset(self, all: &libc::xdp_mmap_offsets) -> libc::xdp_ring_offset {
        match self {
            RingKind::Fill => all.fr,
            RingKind::Completion => all.cr,
            RingKind::Receive => all.rx,
            RingKind::Send => all.tx,
        }
    }
}

/// Entry of a ring: plain numbers, any bits of which are a value.
pub(crate) trait RingEntry: Copy {}
impl RingEntry for u64 {}
impl RingEntry for XdpDesc {}

/// `struct xdp_desc`: a packet, by its address in the memory.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct XdpDesc {
    pub(crate) address: u64,
    pub(crate) length: u32,
    pub(crate) options: u32,
}

impl XdpDesc {
    /// `XDP_PKT_CONTD`: the next descriptor belongs to the same packet.
    pub(crate) const CONTINUED: u32 = 1;
}

/// One end of a ring. `own` is the position of this end, `published` the position that the other end knows,
/// `seen` the position of the other end when it was last read.
pub(crate) struct XskRing<T> {
    mapping: MmapRegion,
    offset: [usize; 4],
    size: u32,
    own: u32,
    published: u32,
    seen: u32,
    entries: PhantomData<T>,
}

/// Indices into [`XskRing::offset`].
const PRODUCER: usize = 0;
const CONSUMER: usize = 1;
const FLAGS: usize = 2;
const ENTRIES: usize = 3;

impl<T: RingEntry> XskRing<T> {
    fn word(&self, which: usize) -> &AtomicU32 {
        // SAFETY: the kernel has 32-bit words there, which both ends use as atomic ones; the mapping lives as
        // long as `self`.
        unsafe { AtomicU32::from_ptr(self.mapping.base.add(self.offset[which]).cast()) }
    }

    fn entry(&self, index: u32) -> *mut T {
        let at = (index & (self.size - 1)) as usize;
        // SAFETY: the ring has `size` entries there, a power of two.
        unsafe { self.mapping.base.add(self.offset[ENTRIES]).cast::<T>().add(at) }
    }

    /// As its producer: adds an entry, which the other end sees after [`XskRing::publish`]; `false` if it is
    /// full.
    #[inline]
    pub(crate) fn put(&mut self, entry: T) -> bool {
        if self.own.wrapping_sub(self.seen) == self.size {
            self.seen = self.word(CONSUMER).load(Ordering::Acquire);
            if self.own.wrapping_sub(self.seen) >= self.size {
                return false;
            }
        }
        // SAFETY: the consumer has left this entry, and reads it when the index says so.
        unsafe { self.entry(self.own).write(entry) };
        self.own = self.own.wrapping_add(1);
        true
    }

    /// As its producer: shows the other end the added entries.
    #[inline]
    pub(crate) fn publish(&mut self) {
        if self.published != self.own {
            self.word(PRODUCER).store(self.own, Ordering::Release);
            self.published = self.own;
        }
    }

    /// As its producer: returns true if there is room for so many entries.
    pub(crate) fn has_room(&mut self, entries: u32) -> bool {
        if self.size - self.own.wrapping_sub(self.seen) < entries {
            self.seen = self.word(CONSUMER).load(Ordering::Acquire);
        }
        self.size - self.own.wrapping_sub(self.seen) >= entries
    }

    /// As its producer: entries that the other end has not taken.
    pub(crate) fn pending(&self) -> u32 {
        self.published.wrapping_sub(self.word(CONSUMER).load(Ordering::Acquire))
    }

    /// As its consumer: takes the next entry, which belongs to the other end again after
    /// [`XskRing::release`].
    #[inline]
    pub(crate) fn take(&mut self) -> Option<T> {
        if self.own == self.seen {
            self.seen = self.word(PRODUCER).load(Ordering::Acquire);
            if self.own == self.seen {
                return None;
            }
        }
        // SAFETY: the producer has filled it, and leaves it alone until the index says that it was taken.
        let entry = unsafe { self.entry(self.own).read() };
        self.own = self.own.wrapping_add(1);
        Some(entry)
    }

    /// As its consumer: gives the other end the entries that were taken.
    #[inline]
    pub(crate) fn release(&mut self) {
        if self.published != self.own {
            self.word(CONSUMER).store(self.own, Ordering::Release);
            self.published = self.own;
        }
    }

    /// Returns true if the kernel wants to be woken for it.
    pub(crate) fn needs_wakeup(&self) -> bool {
        self.word(FLAGS).load(Ordering::Relaxed) & libc::XDP_RING_NEED_WAKEUP != 0
    }
}

/// Ways to bind a socket.
#[derive(Clone, Copy)]
pub(crate) enum XskBindMode<'s> {
    /// With memory of its own, `XDP_COPY`, `XDP_ZEROCOPY` or neither, and `XDP_USE_SG` or not.
    First(u16),
    /// With the memory of another socket.
    Sharing(&'s XskSocket),
}

/// An AF_XDP socket.
pub(crate) struct XskSocket {
    fd: OwnedFd,
}

impl AsFd for XskSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl XskSocket {
    pub(crate) fn new() -> io::Result<XskSocket> {
        // SAFETY: passes numbers only.
        let fd = unsafe { libc::socket(libc::AF_XDP, libc::SOCK_RAW | libc::SOCK_CLOEXEC, 0) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the descriptor was just made and belongs to nobody else.
        Ok(XskSocket { fd: unsafe { OwnedFd::from_raw_fd(fd) } })
    }

    /// `T` is the type of the option's value.
    fn set<T>(&self, level: libc::c_int, option: libc::c_int, value: &T) -> io::Result<()> {
        let (fd, length) = (self.fd.as_raw_fd(), size_of::<T>() as libc::socklen_t);
        // SAFETY: the kernel reads one value of the size said.
        let done = unsafe { libc::setsockopt(fd, level, option, std::ptr::from_ref(value).cast(), length) };
        if done == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
    }

    /// `T` is made of integers, for which any bytes are a value.
    fn get<T>(&self, level: libc::c_int, option: libc::c_int) -> io::Result<T> {
        // SAFETY: integers may be zero.
        let mut value: T = unsafe { std::mem::zeroed() };
        let mut length = size_of::<T>() as libc::socklen_t;
        let to = std::ptr::from_mut(&mut value).cast();
        // SAFETY: the kernel writes no more bytes than it is told to have room for.
        let done = unsafe { libc::getsockopt(self.fd.as_raw_fd(), level, option, to, &mut length) };
        if done == 0 { Ok(value) } else { Err(io::Error::last_os_error()) }
    }

    /// Gives the kernel the memory, as frames of [`FRAME`] bytes.
    pub(crate) fn register(&self, memory: &dyn FrameMemory) -> io::Result<()> {
        let area = libc::xdp_umem_reg {
            addr: memory.address(),
            len: (memory.length() / FRAME * FRAME) as u64,
            chunk_size: FRAME as u32,
            headroom: 0,
            flags: 0,
            tx_metadata_len: 0,
        };
        self.set(libc::SOL_XDP, libc::XDP_UMEM_REG, &area)
    }

    /// Makes one of its rings, of a size that is a power of two.
    pub(crate) fn ring<T: RingEntry>(&self, which: RingKind, size: u32) -> io::Result<XskRing<T>> {
        let (option, at) = which.numbers();
        self.set(libc::SOL_XDP, option, &size)?;
        let offsets: libc::xdp_mmap_offsets = self.get(libc::SOL_XDP, libc::XDP_MMAP_OFFSETS)?;
        let offset = which.offset(&offsets);
        let offset = [offset.producer, offset.consumer, offset.flags, offset.desc].map(|at| at as usize);
        let length = offset[ENTRIES] + size as usize * size_of::<T>();
        let flags = libc::MAP_SHARED | libc::MAP_POPULATE;
        let mapping = MmapRegion::new(length, flags, self.fd.as_raw_fd(), at)?;
        Ok(XskRing { mapping, offset, size, own: 0, published: 0, seen: 0, entries: PhantomData })
    }

    /// Binds it to a queue of an interface.
    pub(crate) fn bind(&self, interface: u32, queue: u32, how: XskBindMode<'_>) -> io::Result<()> {
        let (flags, other) = match how {
            XskBindMode::First(flags) => (flags | libc::XDP_USE_NEED_WAKEUP, 0),
            // The first socket has chosen the mode.
            XskBindMode::Sharing(first) => (libc::XDP_SHARED_UMEM, first.fd.as_raw_fd() as u32),
        };
        let address = libc::sockaddr_xdp {
            sxdp_family: libc::AF_XDP as u16,
            sxdp_flags: flags,
            sxdp_ifindex: interface,
            sxdp_queue_id: queue,
            sxdp_shared_umem_fd: other,
        };
        let length = size_of_val(&address) as libc::socklen_t;
        // SAFETY: reads one address of the size said.
        let done = unsafe { libc::bind(self.fd.as_raw_fd(), std::ptr::from_ref(&address).cast(), length) };
        if done == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
    }

    /// Returns true if the driver takes frames as they are.
    pub(crate) fn is_zero_copy(&self) -> bool {
        let options: io::Result<libc::xdp_options> = self.get(libc::SOL_XDP, libc::XDP_OPTIONS);
        options.is_ok_and(|options| options.flags & libc::XDP_OPTIONS_ZEROCOPY != 0)
    }

    /// Makes the receiving thread poll the driver, for up to so many microseconds and packets per call, in
    /// place of interrupts.
    pub(crate) fn poll_busily(&self, microseconds: u32, budget: u32) -> io::Result<()> {
        self.set(libc::SOL_SOCKET, PREFER_BUSY_POLL, &1u32)?;
        self.set(libc::SOL_SOCKET, libc::SO_BUSY_POLL, &microseconds)?;
        self.set(libc::SOL_SOCKET, BUSY_POLL_BUDGET, &budget)
    }

    pub(crate) fn statistics(&self) -> io::Result<libc::xdp_statistics> {
        self.get(libc::SOL_XDP, libc::XDP_STATISTICS)
    }

    /// Reports the error that makes it unusable, if there is one.
    fn fault(&self) -> io::Result<()> {
        match self.get::<libc::c_int>(libc::SOL_SOCKET, libc::SO_ERROR)? {
            0 => Ok(()),
            errno => Err(io::Error::from_raw_os_error(errno)),
        }
    }

    /// Asks the kernel to send; returns true if it says that there is more.
    pub(crate) fn wake_sender(&self) -> io::Result<bool> {
        let (fd, none) = (self.fd.as_raw_fd(), std::ptr::null());
        // SAFETY: no address is passed.
        let done = unsafe { libc::sendto(fd, none, 0, libc::MSG_DONTWAIT, std::ptr::null(), 0) };
        Ok(busy(done)? == Some(libc::EAGAIN))
    }

    /// Tells a driver that went to sleep for want of frames that there are some, or polls it.
    pub(crate) fn wake_receiver(&self) -> io::Result<()> {
        let (fd, none) = (self.fd.as_raw_fd(), null_mut());
        // SAFETY: no address is passed.
        let done = unsafe { libc::recvfrom(fd, none, 0, libc::MSG_DONTWAIT, null_mut(), null_mut()) };
        busy(done).map(|_| ())
    }

    /// Waits until one of these has received something, for at most so long.
    pub(crate) fn wait<'s>(
        sockets: impl Iterator<Item = &'s XskSocket>,
        at_most: Duration,
    ) -> io::Result<()> {
        let sockets: Vec<&XskSocket> = sockets.collect();
        let asked = |s: &&XskSocket| libc::pollfd { fd: s.fd.as_raw_fd(), events: libc::POLLIN, revents: 0 };
        let mut polled: Vec<libc::pollfd> = sockets.iter().map(asked).collect();
        let time = libc::c_int::try_from(at_most.as_millis().max(1)).unwrap_or(libc::c_int::MAX);
        // SAFETY: as many entries as it is told.
        let done = unsafe { libc::poll(polled.as_mut_ptr(), polled.len() as libc::nfds_t, time) };
        if done < 0 {
            let e = io::Error::last_os_error();
            return if e.kind() == io::ErrorKind::Interrupted { Ok(()) } else { Err(e) };
        }
        // A socket whose interface no longer exists has no events, and reports it only when it is asked.
        if done == 0 { sockets.into_iter().try_for_each(XskSocket::fault) } else { Ok(()) }
    }
}

/// Result of a wake-up: nothing, the reason why the kernel sends and receives nothing now (it is busy, or the
/// interface is down), or an error if the interface cannot be used. The kernel says `ENXIO` of one that was
/// removed.
fn busy(done: isize) -> io::Result<Option<i32>> {
    if done >= 0 {
        return Ok(None);
    }
    let e = io::Error::last_os_error();
    match e.raw_os_error() {
        Some(errno @ (libc::EAGAIN | libc::EBUSY | libc::ENOBUFS | libc::EINTR | libc::ENETDOWN)) => {
            Ok(Some(errno))
        }
        _ => Err(e),
    }
}

/// `struct ethtool_channels`.
#[repr(C)]
#[derive(Default)]
struct EthtoolChannels {
    command: u32,
    most: [u32; 4],
    receive: u32,
    send: u32,
    other: u32,
    combined: u32,
}

/// Number of queues of an interface: the combined ones, and the receive or the send queues, whichever are
/// more; 1 if the driver does not say.
pub(crate) fn queues(name: &str) -> u32 {
    let Ok(socket) = std::net::UdpSocket::bind("0.0.0.0:0").map(OwnedFd::from) else { return 1 };
    let mut channels = EthtoolChannels { command: GET_CHANNELS, ..EthtoolChannels::default() };
    // SAFETY: all zero is a value.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    let room = request.ifr_name.len() - 1;
    for (to, byte) in request.ifr_name.iter_mut().take(room).zip(name.bytes()) {
        *to = byte as libc::c_char;
    }
    request.ifr_ifru.ifru_data = std::ptr::from_mut(&mut channels).cast();
    // SAFETY: the request points to the structure that this command fills, both of which live until it
    // returns.
    let done = unsafe { libc::ioctl(socket.as_raw_fd(), SIOCETHTOOL as _, &mut request) };
    match done {
        0 => channels.combined + channels.receive.max(channels.send),
        _ => 1,
    }
    .max(1)
}

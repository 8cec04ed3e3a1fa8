//! Network interfaces in userspace.
//!
//! [`XdpInterfaces`] take all packets that some interfaces receive, on each of their queues, and send packets
//! out of them. They have an XDP program each that redirects to AF_XDP sockets, one a queue, and a
//! [`XskQueues`] for each worker: some queues of every interface, over one memory that the kernel and this
//! process share. A frame that was received on a queue is sent on any queue of its line as it is, whichever
//! interface that belongs to.
//!
//! [`XdpPort`] is one interface with all of its queues, for callers that have buffers of their own: packets
//! are copied between these and the frames.
//!
//! The kernel is woken when something is to be sent, and says when it has to be woken to receive
//! (need-wakeup). If the driver takes frames as they are there is no copy in the kernel (zero copy); it
//! decides by itself, unless it is told.
//!
//! Packets that are longer than a frame come and leave in several frames if an interface has such an MTU and
//! the kernel can ([`ScatterMode`]). Otherwise the programs are as before, since some drivers and their peers
//! behave differently with one that takes such packets: veth's peer goes on leaving segmentation to it.
//!
//! [`SyscallPort`] interfaces are raw sockets and TAP interfaces: slower, and without any requirements.
//!
//! Architecture Invariant: an interface on which another program runs is refused, never taken over; when
//! [`XdpInterfaces`] are dropped, or their process dies, the interfaces are as they were.

mod frames;
mod port;
mod socket;
mod syscall_port;
mod xsk_queues;

use std::io;
use std::iter::Sum;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use millstream_isa::asm::assemble;
use millstream_isa::{MapType, encode_all};
use millstream_kernel::{
    KernelMap, KernelProgram, Link, LoadError, MapSpec, ProgramSpec, ProgramType, XdpMode, prog_flags,
    query_xdp,
};

pub use frames::UmemFrame;
pub use port::XdpPort;
pub use socket::{AnonymousMemory, ArrayMapMemory, FRAME, FrameMemory};
pub use syscall_port::SyscallPort;
pub use xsk_queues::{FrameRange, ReceivedPart, XskQueues};

use socket::{XskBindMode, XskSocket};
use xsk_queues::XskQueue;

/// Most queues of an interface.
const MOST_QUEUES: u32 = 64;
/// Largest MTU whose packets come in one frame: behind `XDP_PACKET_HEADROOM`, with room for
/// `struct skb_shared_info` behind them, and with an Ethernet header and two VLAN tags of their own.
const ONE_FRAME_MTU: u32 = FRAME as u32 - 256 - 320 - 22;
/// Longest time that the kernel may take to release the queues of sockets that were closed.
const RELEASE: Duration = Duration::from_secs(1);

/// Reason why an interface cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum PortError {
    /// The kernel refuses.
    #[error(transparent)]
    Kernel(#[from] millstream_kernel::KernelError),
    /// The kernel does not accept the program that redirects.
    #[error(transparent)]
    Load(#[from] LoadError),
    /// Another process receives the packets of the interface.
    #[error("{interface}: another process receives its packets by AF_XDP")]
    Taken {
        /// The interface.
        interface: String,
    },
    /// It is named twice.
    #[error("{interface} is named twice")]
    Twice {
        /// The interface.
        interface: String,
    },
    /// There are more workers than queues.
    #[error("{interface} has {queues} of the queues of which each of {workers} workers needs one")]
    Queues {
        /// The interface.
        interface: String,
        /// Its queues.
        queues: u32,
        /// Workers.
        workers: u32,
    },
    /// Its driver always copies.
    #[error("{interface}: its driver does not take frames without a copy")]
    NoZeroCopy {
        /// The interface.
        interface: String,
    },
    /// A socket cannot be made or bound.
    #[error("{interface}, queue {queue}: {reason}")]
    Socket {
        /// The interface.
        interface: String,
        /// Its queue.
        queue: u32,
        /// In the kernel's words.
        reason: String,
    },
    /// There is no memory for frames.
    #[error("no memory for frames of {queues} queues: {source}")]
    Memory {
        /// Queues of a worker.
        queues: usize,
        /// In the system's words.
        source: io::Error,
    },
    /// Packets cannot be sent or received any more.
    #[error("{interface}: {source}")]
    Io {
        /// The interface.
        interface: String,
        /// In the kernel's words.
        source: io::Error,
    },
}

impl PortError {
    /// Returns true if another XDP program is on the interface, or another process receives its packets.
    pub fn is_taken(&self) -> bool {
        match self {
            PortError::Kernel(e) => e.errno() == Some(libc::EBUSY),
            PortError::Taken { .. } => true,
            _ => false,
        }
    }

    /// Returns true if this process lacks the rights.
    pub fn is_forbidden(&self) -> bool {
        let errno = match self {
            PortError::Kernel(e) => e.errno(),
            PortError::Io { source, .. } | PortError::Memory { source, .. } => source.raw_os_error(),
            _ => None,
        };
        matches!(errno, Some(libc::EPERM | libc::EACCES))
    }
}

/// Packets that the kernel dropped before they came here.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct PortDropCounts {
    /// Received packets for which there was no room: the ring was full, or no frame free.
    pub no_room: u64,
    /// Received packets that the kernel dropped for other reasons: longer than a frame.
    pub unfit: u64,
}

impl Sum for PortDropCounts {
    fn sum<I: Iterator<Item = PortDropCounts>>(parts: I) -> PortDropCounts {
        parts.fold(PortDropCounts::default(), |sum, part| PortDropCounts {
            no_room: sum.no_room + part.no_room,
            unfit: sum.unfit + part.unfit,
        })
    }
}

/// Zero-copy mode: drivers take frames as they are, or the kernel copies between theirs and the line's.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum ZeroCopy {
    /// They do where all of them can.
    #[default]
    Auto,
    /// They must.
    Always,
    /// The kernel copies.
    Never,
}

/// Busy polling: drivers work when they are asked for packets, in place of interrupts
/// (`SO_PREFER_BUSY_POLL`).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct BusyPoll {
    /// Microseconds for which they look for packets in vain.
    pub microseconds: u32,
    /// Packets that they take at once.
    pub budget: u32,
}

/// Packets in several frames (`XDP_USE_SG`), for interfaces whose MTU is larger than a frame.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum ScatterMode {
    /// No interface has such an MTU.
    #[default]
    Unneeded,
    /// They are received and sent.
    On,
    /// The kernel has none: before Linux 6.6.
    NoKernel,
    /// The driver has none without a copy, which was required.
    NoDriver,
}

impl ScatterMode {
    /// Reason why packets longer than a frame are dropped, if they are.
    pub fn refusal(self) -> Option<&'static str> {
        match self {
            ScatterMode::Unneeded | ScatterMode::On => None,
            ScatterMode::NoKernel => {
                Some("the kernel has no AF_XDP packets in several buffers (Linux 6.6 has)")
            }
            ScatterMode::NoDriver => Some("the driver has no packets in several buffers without a copy"),
        }
    }
}

/// Options for taking interfaces.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct XskOptions {
    /// Zero-copy mode.
    pub zero_copy: ZeroCopy,
    /// Busy polling, if it is wanted.
    pub busy_poll: Option<BusyPoll>,
}

/// Number of lines, and their frames.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct XskQueuesConfig {
    /// Workers, of which each has a line.
    pub workers: u32,
    /// Frames that a worker has at hand, at most.
    pub at_hand: usize,
}

/// Allocates memory of this length.
pub type UmemAllocator<'a> = &'a mut dyn FnMut(usize) -> io::Result<Arc<dyn FrameMemory>>;

/// An interface that was taken.
pub struct XdpInterface {
    name: String,
    index: u32,
    queues: u32,
    zero_copy: bool,
    mode: Option<XdpMode>,
    scatter: ScatterMode,
    _link: Link,
    _sockets: KernelMap,
}

impl XdpInterface {
    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Its number in the namespace.
    pub fn index(&self) -> u32 {
        self.index
    }

    /// Number of its queues.
    pub fn queues(&self) -> u32 {
        self.queues
    }

    /// Returns true if its driver takes frames as they are.
    pub fn is_zero_copy(&self) -> bool {
        self.zero_copy
    }

    /// Place in the receive path where packets are taken, if the kernel says it.
    pub fn mode(&self) -> Option<XdpMode> {
        self.mode
    }

    /// Returns true if it was removed.
    pub fn is_removed(&self) -> bool {
        millstream_kernel::interface_index(&self.name).ok() != Some(self.index)
    }

    /// Packets in several frames: alike for all interfaces that were taken together.
    pub fn scatter(&self) -> ScatterMode {
        self.scatter
    }
}

/// Interfaces. Fields are dropped in order: the programs that take packets from the stack before the queues.
pub struct XdpInterfaces {
    all: Vec<XdpInterface>,
    lines: Vec<XskQueues>,
}

/// An interface that is to be taken.
struct InterfaceRequest<'n> {
    name: &'n str,
    index: u32,
    queues: u32,
    mtu: u32,
}

impl XdpInterfaces {
    /// Takes interfaces of this network namespace. Queue n belongs to worker n modulo their number.
    ///
    /// # Errors
    /// If there is none of a name, another XDP program is on it, it has fewer queues than there are workers,
    /// or this process lacks the rights.
    pub fn open(
        names: &[&str],
        lines: XskQueuesConfig,
        options: &XskOptions,
        memory: UmemAllocator<'_>,
    ) -> Result<XdpInterfaces, PortError> {
        let mut named: Vec<InterfaceRequest<'_>> = Vec::new();
        for &name in names {
            if named.iter().any(|known| known.name == name) {
                return Err(PortError::Twice { interface: name.into() });
            }
            let index = millstream_kernel::interface_index(name)?;
            let queues = socket::queues(name).min(MOST_QUEUES);
            if queues < lines.workers {
                let XskQueuesConfig { workers, .. } = lines;
                return Err(PortError::Queues { interface: name.into(), queues, workers });
            }
            let mtu = millstream_kernel::interface(index)?.mtu;
            named.push(InterfaceRequest { name, index, queues, mtu });
        }
        let lines = match (bound(&named, lines, options, memory), options.zero_copy) {
            // Interfaces that share frames must all do without a copy, or none.
            (Err(PortError::NoZeroCopy { .. }), ZeroCopy::Auto) => {
                let options = XskOptions { zero_copy: ZeroCopy::Never, ..*options };
                bound(&named, lines, &options, memory)?
            }
            (lines, _) => lines?,
        };
        let all = named.iter().enumerate().map(|(at, named)| attached(named, at, &lines));
        Ok(XdpInterfaces { all: all.collect::<Result<_, _>>()?, lines })
    }

    /// The interfaces, in the order in which they were named.
    pub fn all(&self) -> &[XdpInterface] {
        &self.all
    }

    /// The interfaces, and a line for each worker.
    pub fn parts(&mut self) -> (&[XdpInterface], &mut [XskQueues]) {
        (&self.all, &mut self.lines)
    }

    /// Packets that the kernel has dropped.
    pub fn lost(&self) -> PortDropCounts {
        self.lines.iter().map(XskQueues::lost).sum()
    }
}

/// Lines with sockets that are bound to the queues of these interfaces.
fn bound(
    named: &[InterfaceRequest<'_>],
    lines: XskQueuesConfig,
    options: &XskOptions,
    memory: UmemAllocator<'_>,
) -> Result<Vec<XskQueues>, PortError> {
    (0..lines.workers).map(|worker| line_of(worker, named, lines, options, memory)).collect()
}

/// The line of one worker.
fn line_of(
    worker: u32,
    named: &[InterfaceRequest<'_>],
    XskQueuesConfig { workers, at_hand }: XskQueuesConfig,
    options: &XskOptions,
    memory: UmemAllocator<'_>,
) -> Result<XskQueues, PortError> {
    let own = |queues: u32| (worker..queues).step_by(workers.max(1) as usize);
    let count = named.iter().map(|named| own(named.queues).count()).sum();
    let memory = memory(XskQueues::memory_of(count, at_hand));
    let scatter = match named.iter().any(|named| named.mtu > ONE_FRAME_MTU) {
        true => ScatterMode::On,
        false => ScatterMode::Unneeded,
    };
    let mut line = xsk_queues::line(
        memory.map_err(|source| PortError::Memory { queues: count, source })?,
        options.busy_poll.is_some(),
        scatter,
    );
    for (at, named) in named.iter().enumerate() {
        for number in own(named.queues) {
            let queue =
                open(&mut line, (at, number), named.index, options).map_err(|e| refused(e, named, number))?;
            line.add(queue);
        }
    }
    Ok(line)
}

/// A queue of an interface, bound to the memory of a line. The first one tells whether packets may be in
/// several frames.
fn open(
    line: &mut XskQueues,
    (at, number): (usize, u32),
    index: u32,
    options: &XskOptions,
) -> io::Result<XskQueue> {
    let socket = XskSocket::new()?;
    let first = line.first();
    if first.is_none() {
        socket.register(line.frames().memory())?;
    }
    let queue = XskQueue::new(socket, at, number)?;
    if let Some(BusyPoll { microseconds, budget }) = options.busy_poll {
        queue.socket.poll_busily(microseconds, budget)?;
    }
    let copy = match options.zero_copy {
        ZeroCopy::Auto => 0,
        ZeroCopy::Always => libc::XDP_ZEROCOPY,
        ZeroCopy::Never => libc::XDP_COPY,
    };
    let scattered = if line.scatter() == ScatterMode::On { socket::USE_SG } else { 0 };
    let how = first.map_or(XskBindMode::First(copy | scattered), XskBindMode::Sharing);
    let refused = match (bind(&queue.socket, index, number, how), how) {
        (Err(e), XskBindMode::First(flags)) if flags & socket::USE_SG != 0 => e,
        (done, _) => return done.map(|()| queue),
    };
    let refusal = match refused.raw_os_error() {
        Some(libc::EINVAL) => ScatterMode::NoKernel,
        Some(libc::EOPNOTSUPP) => ScatterMode::NoDriver,
        _ => return Err(refused),
    };
    bind(&queue.socket, index, number, XskBindMode::First(copy))?;
    line.refuse_scatter(refusal);
    Ok(queue)
}

/// Binds a socket, as soon as the kernel has released the queue: some time after another socket was closed.
fn bind(socket: &XskSocket, index: u32, queue: u32, how: XskBindMode<'_>) -> io::Result<()> {
    let end = Instant::now() + RELEASE;
    loop {
        match socket.bind(index, queue, how) {
            Err(e) if e.raw_os_error() == Some(libc::EBUSY) && Instant::now() < end => {
                std::thread::sleep(Duration::from_millis(10));
            }
            done => return done,
        }
    }
}

fn refused(e: io::Error, named: &InterfaceRequest<'_>, queue: u32) -> PortError {
    let interface = named.name.to_owned();
    match e.raw_os_error() {
        Some(libc::EBUSY) => PortError::Taken { interface },
        Some(libc::EOPNOTSUPP) => PortError::NoZeroCopy { interface },
        Some(libc::EPERM | libc::EACCES) => PortError::Io { interface, source: e },
        _ => PortError::Socket { interface, queue, reason: e.to_string() },
    }
}

/// Makes an interface redirect its packets to the sockets of its queues.
fn attached(named: &InterfaceRequest<'_>, at: usize, lines: &[XskQueues]) -> Result<XdpInterface, PortError> {
    let sockets = KernelMap::create(&MapSpec {
        name: "ms_sockets",
        map_type: MapType::XSKMAP,
        key_size: 4,
        value_size: 4,
        max_entries: named.queues,
        ..MapSpec::default()
    })?;
    let mut zero_copy = true;
    for line in lines {
        for queue in 0..line.queues() {
            let ((interface, number), socket) = (line.queue(queue), line.socket(queue));
            if interface == at {
                sockets.update_fd(&number.to_ne_bytes(), socket.as_fd())?;
                zero_copy &= socket.is_zero_copy();
            }
        }
    }
    // Workers agree: they take queues of the same interfaces.
    let scatter = lines.first().map(XskQueues::scatter).unwrap_or_default();
    let program = redirect(&sockets, scatter == ScatterMode::On)?;
    let link = match Link::attach_xdp(&program, named.index, XdpMode::Any) {
        Err(e) if !zero_copy && is_mode_refused(e.errno()) => {
            Link::attach_xdp(&program, named.index, XdpMode::Generic).map_err(|_| e)
        }
        done => done,
    }?;
    // A process that may not ask does without.
    let mode = query_xdp(named.index).ok().flatten().map(|state| state.mode);
    let InterfaceRequest { name, index, queues, .. } = *named;
    Ok(XdpInterface {
        name: name.into(),
        index,
        queues,
        zero_copy,
        mode,
        scatter,
        _link: link,
        _sockets: sockets,
    })
}

/// Returns true if a driver takes the program not at this MTU, or with so few queues, in its own receive path;
/// `ENOMEM` is virtio-net's word for queues.
fn is_mode_refused(errno: Option<i32>) -> bool {
    matches!(errno, Some(libc::EOPNOTSUPP | libc::EINVAL | libc::ERANGE | libc::ENOMEM))
}

/// The program that redirects each packet to the socket of its queue; one without a socket goes on to the
/// stack.
fn redirect(sockets: &KernelMap, scattered: bool) -> Result<KernelProgram, PortError> {
    let text = format!(
        "r2 = *(u32 *)(r1 +16)\nr1 = map[fd:{}]\nr3 = 2\ncall redirect_map#51\nexit",
        std::os::fd::AsRawFd::as_raw_fd(&sockets.as_fd())
    );
    let insns = assemble(&text).expect("the text is ours");
    let slots: Vec<u64> =
        encode_all(&insns).into_iter().map(|raw| u64::from_ne_bytes(raw.to_bytes())).collect();
    Ok(KernelProgram::load(&ProgramSpec {
        name: "ms_ports",
        program_type: ProgramType::XDP,
        insns: &slots,
        license: "Dual BSD/GPL",
        flags: if scattered { prog_flags::XDP_HAS_FRAGS } else { 0 },
        ..ProgramSpec::default()
    })?)
}

//! Network interfaces in userspace.
//!
//! A [`Port`] takes all packets that an interface receives, on each of its queues, and sends packets out of it. It is an
//! XDP program that redirects to AF_XDP sockets, one a queue. The kernel and this process share the frames: packets are
//! copied between these and the buffers of whoever processes them.
//!
//! The kernel is woken when something is to be sent, and tells when it has to be woken to receive (need-wakeup). Where the
//! driver takes frames as they are there is no copy in the kernel (zero copy); it decides by itself.
//!
//! [`Plain`] interfaces are raw sockets and TAP interfaces: slower, and without any condition.
//!
//! Architecture Invariant: an interface on which another program runs is refused, never taken over; when a [`Port`] is dropped,
//! or its process dies, the interface is as it was.

mod plain;
mod queue;

use std::iter::Sum;
use std::os::fd::AsFd;
use std::time::Duration;

use millstream_isa::asm::assemble;
use millstream_isa::encode_all;
use millstream_kernel::{Link, LoadError, Map, MapSpec, MapType, Program, ProgramSpec, ProgramType, XdpMode};

pub use plain::Plain;
use queue::{Queue, Refused};

/// Most queues of an interface.
const MOST_QUEUES: u32 = 64;

/// Why an interface cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The kernel refuses.
    #[error(transparent)]
    Kernel(#[from] millstream_kernel::Error),
    /// It does not take the program that redirects.
    #[error(transparent)]
    Load(#[from] LoadError),
    /// Another process receives the packets of the interface.
    #[error("{interface}: another process receives its packets by AF_XDP")]
    Taken {
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
    /// Packets cannot be sent or received any more.
    #[error("{interface}: {source}")]
    Io {
        /// The interface.
        interface: String,
        /// In the kernel's words.
        source: std::io::Error,
    },
}

impl Error {
    /// Whether another XDP program is on the interface, or another process receives its packets.
    pub fn is_taken(&self) -> bool {
        match self {
            Error::Kernel(e) => e.errno() == Some(libc::EBUSY),
            Error::Taken { .. } => true,
            _ => false,
        }
    }
}

/// What the kernel dropped before it came here.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Lost {
    /// Received packets for which there was no room: the ring was full, or no frame free.
    pub no_room: u64,
    /// Received packets that the kernel dropped for other reasons: longer than a frame.
    pub unfit: u64,
}

impl Sum for Lost {
    fn sum<I: Iterator<Item = Lost>>(parts: I) -> Lost {
        parts.fold(Lost::default(), |sum, part| Lost {
            no_room: sum.no_room + part.no_room,
            unfit: sum.unfit + part.unfit,
        })
    }
}

/// An interface.
pub struct Port {
    name: String,
    index: u32,
    queues: Vec<Queue>,
    /// Where the next packet is sent from.
    turn: usize,
    _link: Link,
    _sockets: Map,
}

impl Port {
    /// Takes an interface of this network namespace.
    ///
    /// # Errors
    /// If there is none of that name, another XDP program is on it, or this process may not.
    pub fn open(name: &str) -> Result<Port, Error> {
        let index = millstream_kernel::interface_index(name)?;
        let mut queues = Vec::new();
        for n in 0..MOST_QUEUES {
            match Queue::open(index, n) {
                Ok(queue) => queues.push(queue),
                Err(Refused::NoSuchQueue) if n > 0 => break,
                Err(Refused::Taken) => return Err(Error::Taken { interface: name.into() }),
                Err(refused) => {
                    return Err(Error::Socket {
                        interface: name.into(),
                        queue: n,
                        reason: refused.to_string(),
                    });
                }
            }
        }
        let sockets = Map::create(&MapSpec {
            name: "ms_sockets",
            map_type: MapType::XSKMAP,
            key_size: 4,
            value_size: 4,
            max_entries: queues.len() as u32,
            ..MapSpec::default()
        })?;
        for (n, queue) in queues.iter().enumerate() {
            sockets.update_fd(&(n as u32).to_ne_bytes(), queue.as_fd())?;
        }
        let link = Link::attach_xdp(&redirect(&sockets)?, index, XdpMode::Any)?;
        Ok(Port { name: name.into(), index, queues, turn: 0, _link: link, _sockets: sockets })
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Its number in the namespace.
    pub fn index(&self) -> u32 {
        self.index
    }

    /// How many queues it has.
    pub fn queues(&self) -> usize {
        self.queues.len()
    }

    /// Hands over at most so many packets that have come, and says how many these were.
    ///
    /// # Errors
    /// If the kernel cannot be given frames for more.
    pub fn receive(&mut self, most: usize, take: &mut dyn FnMut(&[u8])) -> Result<usize, Error> {
        let mut taken = 0;
        // Each queue gets its share of the room first, then what is left.
        for share in [most.div_ceil(self.queues.len()), most] {
            for queue in &mut self.queues {
                let room = share.min(most - taken);
                if room > 0 {
                    let got = queue.receive(room, take);
                    taken += got.map_err(|source| Error::Io { interface: self.name.clone(), source })?;
                }
            }
        }
        Ok(taken)
    }

    /// Puts a packet into a queue to be sent with the next [`Port::flush`]; `false` if there is no room, or it is longer than a
    /// frame.
    pub fn send(&mut self, packet: &[u8]) -> bool {
        for _ in 0..self.queues.len() {
            self.turn = (self.turn + 1) % self.queues.len();
            if self.queues[self.turn].send(packet) {
                return true;
            }
        }
        false
    }

    /// Sends what was put into the queues, and takes back the frames of what has been sent.
    ///
    /// # Errors
    /// If the interface has gone.
    pub fn flush(&mut self) -> Result<(), Error> {
        for queue in &mut self.queues {
            queue.flush().map_err(|source| Error::Io { interface: self.name.clone(), source })?;
        }
        Ok(())
    }

    /// Packets that were given to the kernel to be sent, and are not yet.
    pub fn unsent(&self) -> usize {
        self.queues.iter().map(Queue::unsent).sum()
    }

    /// Waits until a packet has come, at most so long.
    ///
    /// # Errors
    /// If the interface has gone.
    pub fn wait(&self, at_most: Duration) -> Result<(), Error> {
        // The first queue is waited for; the others are looked at when the time is over.
        let Some(queue) = self.queues.first() else { return Ok(()) };
        queue.wait(at_most).map_err(|source| Error::Io { interface: self.name.clone(), source })
    }

    /// What the kernel has dropped.
    pub fn lost(&self) -> Lost {
        self.queues.iter().map(Queue::lost).sum()
    }
}

/// The program that gives each packet to the socket of its queue; one without a socket goes on to the stack.
fn redirect(sockets: &Map) -> Result<Program, Error> {
    let text = format!(
        "r2 = *(u32 *)(r1 +16)\nr1 = map[fd:{}]\nr3 = 2\ncall redirect_map#51\nexit",
        std::os::fd::AsRawFd::as_raw_fd(&sockets.as_fd())
    );
    let insns = assemble(&text).expect("the text is ours");
    let slots: Vec<u64> =
        encode_all(&insns).into_iter().map(|raw| u64::from_ne_bytes(raw.to_bytes())).collect();
    Ok(Program::load(&ProgramSpec {
        name: "ms_ports",
        program_type: ProgramType::XDP,
        insns: &slots,
        license: "Dual BSD/GPL",
        ..ProgramSpec::default()
    })?)
}

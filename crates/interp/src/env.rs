//! The environment of a program: time, randomness, CPU, and a record of its external effects.

use std::collections::{BTreeMap, VecDeque};

use crate::{Fault, MapId};

/// An effect of a program that outlives it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SideEffect {
    /// `bpf_ringbuf_output`, or a record reserved and submitted.
    Ringbuf {
        /// The ring buffer.
        map: MapId,
        /// The record.
        data: Vec<u8>,
    },
    /// `bpf_perf_event_output`: the data, followed by the requested part of the packet.
    Perf {
        /// The event array.
        map: MapId,
        /// The low half of the flags: an index, or all ones for the current CPU.
        index: u32,
        /// The sample.
        data: Vec<u8>,
    },
    /// `bpf_trace_printk` and `bpf_trace_vprintk`: the format string.
    Trace(String),
    /// `bpf_clone_redirect`: a copy of the packet at that moment.
    Clone {
        /// Interface.
        ifindex: u32,
        /// The packet.
        data: Vec<u8>,
    },
    /// The IR's `emit`: the packet left by a port.
    Emit {
        /// The port.
        port: u64,
        /// The packet.
        data: Vec<u8>,
    },
    /// A call of a helper that is not modelled, with a made-up answer ([`ExecutionEnv::made_up`]).
    Call {
        /// The helper.
        id: i32,
        /// Its arguments.
        args: Vec<u64>,
    },
    /// A timer was started.
    Timer {
        /// Address of the timer in its map value.
        timer: u64,
        /// Nanoseconds.
        nsecs: u64,
    },
}

/// Target of a redirect, used if the verdict is to redirect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RedirectTarget {
    /// `bpf_redirect`.
    Interface {
        /// Interface.
        ifindex: u32,
        /// Flags.
        flags: u64,
    },
    /// `bpf_redirect_map`.
    Map {
        /// Device, CPU or socket map.
        map: MapId,
        /// Key.
        key: u64,
        /// Flags.
        flags: u64,
    },
    /// `bpf_redirect_peer`.
    Peer {
        /// Interface.
        ifindex: u32,
    },
    /// `bpf_redirect_neigh`.
    Neighbour {
        /// Interface.
        ifindex: u32,
    },
}

/// Answers that a test may supply in place of the defaults.
pub trait EnvHooks: Send {
    /// `bpf_fib_lookup`: fills `params` (`struct bpf_fib_lookup`) and gives the result. By default there is
    /// no route.
    fn fib_lookup(&mut self, params: &mut [u8], flags: u64) -> i64 {
        let _ = (params, flags);
        4 // BPF_FIB_LKUP_RET_NOT_FWDED
    }

    /// A helper that the machine does not model; `None` to fail the run.
    fn helper(&mut self, id: i32, args: [u64; 5]) -> Option<Result<u64, Fault>> {
        let _ = (id, args);
        None
    }

    /// A kernel function; `None` to fail the run.
    fn kfunc(&mut self, btf_id: i32, args: [u64; 5]) -> Option<Result<u64, Fault>> {
        let _ = (btf_id, args);
        None
    }
}

/// The defaults.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoHooks;

impl EnvHooks for NoHooks {}

/// The environment. Public fields may be set before a run and read after it.
pub struct ExecutionEnv {
    /// The CPU that the program runs on; below [`ExecutionEnv::cpus`].
    pub cpu: u32,
    /// Number of CPUs: copies in per-CPU maps made from now on.
    pub cpus: u32,
    /// `bpf_ktime_get_ns` and its kin; each call adds [`ExecutionEnv::tick`].
    pub time: u64,
    /// Advance of the clock at each reading.
    pub tick: u64,
    /// State of the random generator (xorshift; never 0).
    pub seed: u64,
    /// Seed of the answers of helpers that are not modelled, and of the contents of the kernel's memory.
    /// Without it such a helper is a fault, and so is reading there.
    pub made_up: Option<u64>,
    /// `bpf_get_current_pid_tgid`.
    pub pid_tgid: u64,
    /// `bpf_get_current_uid_gid`.
    pub uid_gid: u64,
    /// `bpf_get_current_comm`.
    pub comm: [u8; 16],
    /// Effects of the program, in order.
    pub events: Vec<SideEffect>,
    /// The latest redirect.
    pub redirect: Option<RedirectTarget>,
    /// Packets that the IR's `hold` keeps, by queue, oldest first.
    pub queues: BTreeMap<u64, VecDeque<Vec<u8>>>,
    /// Supplied answers.
    pub hooks: Box<dyn EnvHooks>,
}

impl Default for ExecutionEnv {
    fn default() -> ExecutionEnv {
        ExecutionEnv {
            cpu: 0,
            cpus: 1,
            time: 1_000_000_000,
            tick: 1,
            seed: 0x9e37_79b9_7f4a_7c15,
            made_up: None,
            pid_tgid: 0,
            uid_gid: 0,
            comm: *b"millstream\0\0\0\0\0\0",
            events: Vec::new(),
            redirect: None,
            queues: BTreeMap::new(),
            hooks: Box::new(NoHooks),
        }
    }
}

impl ExecutionEnv {
    /// Reads the time, and advances the clock.
    pub(crate) fn now(&mut self) -> u64 {
        self.time = self.time.wrapping_add(self.tick);
        self.time
    }

    /// The next random number.
    pub(crate) fn random(&mut self) -> u32 {
        let mut x = self.seed.max(1);
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        self.seed = x;
        (x >> 32) as u32
    }
}

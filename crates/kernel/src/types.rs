//! Program, attach and link types: the kernel's numbers with names.
//!
//! Each is a number, not an enumeration: a type that this table does not know stays usable, shown as its
//! number.

use std::fmt;

macro_rules! numbered {
    (
        $(#[$doc:meta])* $name:ident, $what:literal,
        { $($(#[$idoc:meta])* $ident:ident = $value:literal $text:literal),* $(,)? }
    ) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
        pub struct $name(pub u32);

        impl $name {
            $( #[doc = concat!("`", $text, "`")] pub const $ident: $name = $name($value); )*

            /// The kernel's name in lower case, if known.
            pub fn name(self) -> Option<&'static str> {
                match self.0 { $( $value => Some($text), )* _ => None }
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                match self.name() {
                    Some(name) => f.write_str(name),
                    None => write!(f, concat!($what, " {}"), self.0),
                }
            }
        }
    };
}

numbered!(
    /// `enum bpf_prog_type`.
    ProgramType, "program type", {
    UNSPEC = 0 "unspec", SOCKET_FILTER = 1 "socket_filter", KPROBE = 2 "kprobe", SCHED_CLS = 3 "sched_cls",
    SCHED_ACT = 4 "sched_act", TRACEPOINT = 5 "tracepoint", XDP = 6 "xdp", PERF_EVENT = 7 "perf_event",
    CGROUP_SKB = 8 "cgroup_skb", CGROUP_SOCK = 9 "cgroup_sock", LWT_IN = 10 "lwt_in", LWT_OUT = 11 "lwt_out",
    LWT_XMIT = 12 "lwt_xmit", SOCK_OPS = 13 "sock_ops", SK_SKB = 14 "sk_skb", CGROUP_DEVICE = 15 "cgroup_device",
    SK_MSG = 16 "sk_msg", RAW_TRACEPOINT = 17 "raw_tracepoint", CGROUP_SOCK_ADDR = 18 "cgroup_sock_addr",
    LWT_SEG6LOCAL = 19 "lwt_seg6local", LIRC_MODE2 = 20 "lirc_mode2", SK_REUSEPORT = 21 "sk_reuseport",
    FLOW_DISSECTOR = 22 "flow_dissector", CGROUP_SYSCTL = 23 "cgroup_sysctl",
    RAW_TRACEPOINT_WRITABLE = 24 "raw_tracepoint_writable", CGROUP_SOCKOPT = 25 "cgroup_sockopt",
    TRACING = 26 "tracing", STRUCT_OPS = 27 "struct_ops", EXT = 28 "ext", LSM = 29 "lsm",
    SK_LOOKUP = 30 "sk_lookup", SYSCALL = 31 "syscall", NETFILTER = 32 "netfilter",
});

numbered!(
    /// `enum bpf_attach_type`. Only the types that this project attaches or loads with have names.
    AttachType, "attach type", {
    NONE = 0 "none", TRACE_RAW_TP = 23 "trace_raw_tp", TRACE_FENTRY = 24 "trace_fentry",
    TRACE_FEXIT = 25 "trace_fexit", MODIFY_RETURN = 26 "modify_return", LSM_MAC = 27 "lsm_mac",
    TRACE_ITER = 28 "trace_iter", XDP_DEVMAP = 33 "xdp_devmap", XDP_CPUMAP = 35 "xdp_cpumap", XDP = 37 "xdp",
    TCX_INGRESS = 46 "tcx_ingress", TCX_EGRESS = 47 "tcx_egress",
});

numbered!(
    /// `enum bpf_link_type`.
    LinkType, "link type", {
    UNSPEC = 0 "unspec", RAW_TRACEPOINT = 1 "raw_tracepoint", TRACING = 2 "tracing", CGROUP = 3 "cgroup",
    ITER = 4 "iter", NETNS = 5 "netns", XDP = 6 "xdp", PERF_EVENT = 7 "perf_event",
    KPROBE_MULTI = 8 "kprobe_multi", STRUCT_OPS = 9 "struct_ops", NETFILTER = 10 "netfilter", TCX = 11 "tcx",
    UPROBE_MULTI = 12 "uprobe_multi", NETKIT = 13 "netkit", SOCKMAP = 14 "sockmap",
});

/// Flags of map creation (`BPF_F_*`).
pub mod map_flags {
    /// Allocate elements when they are inserted.
    pub const NO_PREALLOC: u32 = libbpf_sys::BPF_F_NO_PREALLOC;
    /// One LRU list per CPU.
    pub const NO_COMMON_LRU: u32 = libbpf_sys::BPF_F_NO_COMMON_LRU;
    /// `numa_node` counts.
    pub const NUMA_NODE: u32 = libbpf_sys::BPF_F_NUMA_NODE;
    /// Read-only to user space through this descriptor.
    pub const RDONLY: u32 = libbpf_sys::BPF_F_RDONLY;
    /// Write-only to user space through this descriptor.
    pub const WRONLY: u32 = libbpf_sys::BPF_F_WRONLY;
    /// Read-only to programs.
    pub const RDONLY_PROG: u32 = libbpf_sys::BPF_F_RDONLY_PROG;
    /// Write-only to programs.
    pub const WRONLY_PROG: u32 = libbpf_sys::BPF_F_WRONLY_PROG;
    /// User space may map the values into memory.
    pub const MMAPABLE: u32 = libbpf_sys::BPF_F_MMAPABLE;
    /// Processes that touch a page of an arena that is not there get SIGSEGV, and not a new page.
    pub const SEGV_ON_FAULT: u32 = libbpf_sys::BPF_F_SEGV_ON_FAULT;
    /// An inner array whose size may differ from the template's.
    pub const INNER_MAP: u32 = libbpf_sys::BPF_F_INNER_MAP;
}

/// Flags of program loading (`BPF_F_*`).
pub mod prog_flags {
    /// Packet and map accesses must be aligned as strict machines want it.
    pub const STRICT_ALIGNMENT: u32 = libbpf_sys::BPF_F_STRICT_ALIGNMENT;
    /// The verifier checkpoints at every chance (for tests).
    pub const TEST_STATE_FREQ: u32 = libbpf_sys::BPF_F_TEST_STATE_FREQ;
    /// The program may sleep.
    pub const SLEEPABLE: u32 = libbpf_sys::BPF_F_SLEEPABLE;
    /// The XDP program takes packets of several buffers.
    pub const XDP_HAS_FRAGS: u32 = libbpf_sys::BPF_F_XDP_HAS_FRAGS;
    /// A broken register bound is an error (for tests).
    pub const TEST_REG_INVARIANTS: u32 = libbpf_sys::BPF_F_TEST_REG_INVARIANTS;
}

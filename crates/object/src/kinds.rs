//! The kernel's numbers for types of programs and attachments, with their names.
//!
//! A number that is not known here is as good as one that is: these are newtypes and not enumerations, so
//! that objects for newer kernels can be read.
//!
//! Source: `include/uapi/linux/bpf.h` of Linux 6.18.

use std::fmt;

macro_rules! numbered {
    ($(#[$doc:meta])* $name:ident { $($constant:ident = $value:literal,)* }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
        pub struct $name(pub u32);

        #[allow(missing_docs)] // the names are the kernel's
        impl $name {
            $(pub const $constant: $name = $name($value);)*
        }

        impl $name {
            /// The kernel's name in small letters, if it is known here.
            pub fn name(self) -> Option<String> {
                let names: &[&str] = &[$(stringify!($constant)),*];
                names.get(self.0 as usize).map(|n| n.to_ascii_lowercase())
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                match self.name() {
                    Some(name) => f.write_str(&name),
                    None => write!(f, "{}", self.0),
                }
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, concat!(stringify!($name), "({})"), self)
            }
        }
    };
}

numbered! {
    /// `enum bpf_prog_type`.
    ProgramType {
        UNSPEC = 0,
        SOCKET_FILTER = 1,
        KPROBE = 2,
        SCHED_CLS = 3,
        SCHED_ACT = 4,
        TRACEPOINT = 5,
        XDP = 6,
        PERF_EVENT = 7,
        CGROUP_SKB = 8,
        CGROUP_SOCK = 9,
        LWT_IN = 10,
        LWT_OUT = 11,
        LWT_XMIT = 12,
        SOCK_OPS = 13,
        SK_SKB = 14,
        CGROUP_DEVICE = 15,
        SK_MSG = 16,
        RAW_TRACEPOINT = 17,
        CGROUP_SOCK_ADDR = 18,
        LWT_SEG6LOCAL = 19,
        LIRC_MODE2 = 20,
        SK_REUSEPORT = 21,
        FLOW_DISSECTOR = 22,
        CGROUP_SYSCTL = 23,
        RAW_TRACEPOINT_WRITABLE = 24,
        CGROUP_SOCKOPT = 25,
        TRACING = 26,
        STRUCT_OPS = 27,
        EXT = 28,
        LSM = 29,
        SK_LOOKUP = 30,
        SYSCALL = 31,
        NETFILTER = 32,
    }
}

numbered! {
    /// `enum bpf_attach_type`.
    AttachType {
        CGROUP_INET_INGRESS = 0,
        CGROUP_INET_EGRESS = 1,
        CGROUP_INET_SOCK_CREATE = 2,
        CGROUP_SOCK_OPS = 3,
        SK_SKB_STREAM_PARSER = 4,
        SK_SKB_STREAM_VERDICT = 5,
        CGROUP_DEVICE = 6,
        SK_MSG_VERDICT = 7,
        CGROUP_INET4_BIND = 8,
        CGROUP_INET6_BIND = 9,
        CGROUP_INET4_CONNECT = 10,
        CGROUP_INET6_CONNECT = 11,
        CGROUP_INET4_POST_BIND = 12,
        CGROUP_INET6_POST_BIND = 13,
        CGROUP_UDP4_SENDMSG = 14,
        CGROUP_UDP6_SENDMSG = 15,
        LIRC_MODE2 = 16,
        FLOW_DISSECTOR = 17,
        CGROUP_SYSCTL = 18,
        CGROUP_UDP4_RECVMSG = 19,
        CGROUP_UDP6_RECVMSG = 20,
        CGROUP_GETSOCKOPT = 21,
        CGROUP_SETSOCKOPT = 22,
        TRACE_RAW_TP = 23,
        TRACE_FENTRY = 24,
        TRACE_FEXIT = 25,
        MODIFY_RETURN = 26,
        LSM_MAC = 27,
        TRACE_ITER = 28,
        CGROUP_INET4_GETPEERNAME = 29,
        CGROUP_INET6_GETPEERNAME = 30,
        CGROUP_INET4_GETSOCKNAME = 31,
        CGROUP_INET6_GETSOCKNAME = 32,
        XDP_DEVMAP = 33,
        CGROUP_INET_SOCK_RELEASE = 34,
        XDP_CPUMAP = 35,
        SK_LOOKUP = 36,
        XDP = 37,
        SK_SKB_VERDICT = 38,
        SK_REUSEPORT_SELECT = 39,
        SK_REUSEPORT_SELECT_OR_MIGRATE = 40,
        PERF_EVENT = 41,
        TRACE_KPROBE_MULTI = 42,
        LSM_CGROUP = 43,
        STRUCT_OPS = 44,
        NETFILTER = 45,
        TCX_INGRESS = 46,
        TCX_EGRESS = 47,
        TRACE_UPROBE_MULTI = 48,
        CGROUP_UNIX_CONNECT = 49,
        CGROUP_UNIX_SENDMSG = 50,
        CGROUP_UNIX_RECVMSG = 51,
        CGROUP_UNIX_GETPEERNAME = 52,
        CGROUP_UNIX_GETSOCKNAME = 53,
        NETKIT_PRIMARY = 54,
        NETKIT_PEER = 55,
        TRACE_KPROBE_SESSION = 56,
        TRACE_UPROBE_SESSION = 57,
        TRACE_FSESSION = 58,
    }
}

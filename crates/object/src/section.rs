//! Type and attachment of a program by the name of its section.
//!
//! The rules are libbpf's (its page "Program Types and ELF Sections"), then, for objects of the years before
//! its version 1.0, its old rule: the longest known name that the section's name begins with.

use crate::kinds::{AttachType as A, ProgramType as P};

/// Type and attachment of a program by its section's name.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SectionKind {
    /// The type of program; [`ProgramType::UNSPEC`](P::UNSPEC) if the name says nothing.
    pub program_type: P,
    /// The attach type to be stated at load.
    pub attach_type: Option<A>,
    /// True if kernels that do not know the attach type may be told none.
    pub attach_type_optional: bool,
    /// Text after the name of the kind and a slash: function, tracepoint, path.
    pub target: Option<String>,
    /// True if the program attaches to a function known by its BTF id (`fentry`, `lsm`, `iter`, ...).
    pub attach_btf: bool,
    /// True if it may sleep (`BPF_F_SLEEPABLE`).
    pub sleepable: bool,
    /// True if it takes packets of several buffers (`BPF_F_XDP_HAS_FRAGS`).
    pub frags: bool,
    /// True if the loader loads it unasked: not if the section's name begins with `?`.
    pub autoload: bool,
}

impl SectionKind {
    /// The `BPF_F_*` flags of program load that follow from the name.
    pub fn load_flags(&self) -> u32 {
        const SLEEPABLE: u32 = 1 << 4;
        const XDP_HAS_FRAGS: u32 = 1 << 5;
        (u32::from(self.sleepable) * SLEEPABLE) | (u32::from(self.frags) * XDP_HAS_FRAGS)
    }

    /// Reads a section's name.
    pub fn parse(section: &str) -> SectionKind {
        let (autoload, name) = match section.strip_prefix('?') {
            Some(rest) => (false, rest),
            None => (true, section),
        };
        let rule = RULES.iter().find(|r| r.fits(name)).or_else(|| old_rule(name));
        let unknown = SectionRule { name: "", target: false, program: P::UNSPEC, attach: None, traits: 0 };
        let rule = rule.unwrap_or(&unknown);
        let target = name.get(rule.name.len()..).and_then(|t| t.strip_prefix('/'));
        SectionKind {
            program_type: rule.program,
            attach_type: rule.attach,
            attach_type_optional: rule.traits & OPTIONAL != 0,
            target: target.filter(|t| !t.is_empty() && rule.program != P::UNSPEC).map(str::to_owned),
            attach_btf: rule.traits & BTF != 0,
            sleepable: rule.traits & SLEEPABLE != 0,
            frags: rule.traits & FRAGS != 0,
            autoload,
        }
    }
}

const OPTIONAL: u8 = 1;
const BTF: u8 = 2;
const SLEEPABLE: u8 = 4;
const FRAGS: u8 = 8;

/// A kind of section.
struct SectionRule {
    name: &'static str,
    /// True if `/` and a target may follow.
    target: bool,
    program: P,
    attach: Option<A>,
    traits: u8,
}

impl SectionRule {
    fn fits(&self, name: &str) -> bool {
        match name.strip_prefix(self.name) {
            Some("") => true,
            Some(rest) => self.target && rest.starts_with('/'),
            None => false,
        }
    }
}

fn old_rule(name: &str) -> Option<&'static SectionRule> {
    RULES.iter().filter(|r| name.starts_with(r.name)).max_by_key(|r| r.name.len())
}

/// A name, a mark if a target may follow it, the types, and traits.
macro_rules! rules {
    ($($name:literal $(+ $target:tt)? $program:ident $(: $attach:ident)? $([$($t:ident)*])?;)*) => {
        &[$(SectionRule {
            name: $name,
            target: rules!(@some $($target)?),
            program: P::$program,
            attach: rules!(@attach $($attach)?),
            traits: 0 $($(| $t)*)?,
        }),*]
    };
    (@some) => { false };
    (@some $t:tt) => { true };
    (@attach) => { None };
    (@attach $a:ident) => { Some(A::$a) };
}

const RULES: &[SectionRule] = rules! {
    "socket" SOCKET_FILTER;
    "sk_reuseport/migrate" SK_REUSEPORT: SK_REUSEPORT_SELECT_OR_MIGRATE;
    "sk_reuseport" SK_REUSEPORT: SK_REUSEPORT_SELECT;
    "kprobe" +T KPROBE;
    "uprobe" +T KPROBE;
    "uprobe.s" +T KPROBE [SLEEPABLE];
    "kretprobe" +T KPROBE;
    "uretprobe" +T KPROBE;
    "uretprobe.s" +T KPROBE [SLEEPABLE];
    "kprobe.multi" +T KPROBE: TRACE_KPROBE_MULTI;
    "kretprobe.multi" +T KPROBE: TRACE_KPROBE_MULTI;
    "kprobe.session" +T KPROBE: TRACE_KPROBE_SESSION;
    "uprobe.multi" +T KPROBE: TRACE_UPROBE_MULTI;
    "uretprobe.multi" +T KPROBE: TRACE_UPROBE_MULTI;
    "uprobe.session" +T KPROBE: TRACE_UPROBE_SESSION;
    "uprobe.multi.s" +T KPROBE: TRACE_UPROBE_MULTI [SLEEPABLE];
    "uretprobe.multi.s" +T KPROBE: TRACE_UPROBE_MULTI [SLEEPABLE];
    "uprobe.session.s" +T KPROBE: TRACE_UPROBE_SESSION [SLEEPABLE];
    "ksyscall" +T KPROBE;
    "kretsyscall" +T KPROBE;
    "usdt" +T KPROBE;
    "usdt.s" +T KPROBE [SLEEPABLE];
    "tc/ingress" SCHED_CLS: TCX_INGRESS;
    "tc/egress" SCHED_CLS: TCX_EGRESS;
    "tcx/ingress" SCHED_CLS: TCX_INGRESS;
    "tcx/egress" SCHED_CLS: TCX_EGRESS;
    "tc" SCHED_CLS;
    "classifier" SCHED_CLS;
    "action" SCHED_ACT;
    "netkit/primary" SCHED_CLS: NETKIT_PRIMARY;
    "netkit/peer" SCHED_CLS: NETKIT_PEER;
    "tracepoint" +T TRACEPOINT;
    "tp" +T TRACEPOINT;
    "tracepoint.s" +T TRACEPOINT [SLEEPABLE];
    "tp.s" +T TRACEPOINT [SLEEPABLE];
    "raw_tracepoint" +T RAW_TRACEPOINT;
    "raw_tp" +T RAW_TRACEPOINT;
    "raw_tracepoint.s" +T RAW_TRACEPOINT [SLEEPABLE];
    "raw_tp.s" +T RAW_TRACEPOINT [SLEEPABLE];
    "raw_tracepoint.w" +T RAW_TRACEPOINT_WRITABLE;
    "raw_tp.w" +T RAW_TRACEPOINT_WRITABLE;
    "tp_btf" +T TRACING: TRACE_RAW_TP [BTF];
    "tp_btf.s" +T TRACING: TRACE_RAW_TP [BTF SLEEPABLE];
    "fentry" +T TRACING: TRACE_FENTRY [BTF];
    "fmod_ret" +T TRACING: MODIFY_RETURN [BTF];
    "fexit" +T TRACING: TRACE_FEXIT [BTF];
    "fentry.s" +T TRACING: TRACE_FENTRY [BTF SLEEPABLE];
    "fmod_ret.s" +T TRACING: MODIFY_RETURN [BTF SLEEPABLE];
    "fexit.s" +T TRACING: TRACE_FEXIT [BTF SLEEPABLE];
    "freplace" +T EXT [BTF];
    "lsm" +T LSM: LSM_MAC [BTF];
    "lsm.s" +T LSM: LSM_MAC [BTF SLEEPABLE];
    "lsm_cgroup" +T LSM: LSM_CGROUP [BTF];
    "iter" +T TRACING: TRACE_ITER [BTF];
    "iter.s" +T TRACING: TRACE_ITER [BTF SLEEPABLE];
    "syscall" SYSCALL [SLEEPABLE];
    "xdp.frags/devmap" XDP: XDP_DEVMAP [FRAGS];
    "xdp/devmap" XDP: XDP_DEVMAP;
    "xdp.frags/cpumap" XDP: XDP_CPUMAP [FRAGS];
    "xdp/cpumap" XDP: XDP_CPUMAP;
    "xdp.frags" XDP: XDP [FRAGS];
    "xdp" XDP: XDP [OPTIONAL];
    "perf_event" PERF_EVENT;
    "lwt_in" LWT_IN;
    "lwt_out" LWT_OUT;
    "lwt_xmit" LWT_XMIT;
    "lwt_seg6local" LWT_SEG6LOCAL;
    "sockops" SOCK_OPS: CGROUP_SOCK_OPS [OPTIONAL];
    "sk_skb/stream_parser" SK_SKB: SK_SKB_STREAM_PARSER [OPTIONAL];
    "sk_skb/stream_verdict" SK_SKB: SK_SKB_STREAM_VERDICT [OPTIONAL];
    "sk_skb/verdict" SK_SKB: SK_SKB_VERDICT [OPTIONAL];
    "sk_skb" SK_SKB;
    "sk_msg" SK_MSG: SK_MSG_VERDICT [OPTIONAL];
    "lirc_mode2" LIRC_MODE2: LIRC_MODE2 [OPTIONAL];
    "flow_dissector" FLOW_DISSECTOR: FLOW_DISSECTOR [OPTIONAL];
    "cgroup_skb/ingress" CGROUP_SKB: CGROUP_INET_INGRESS [OPTIONAL];
    "cgroup_skb/egress" CGROUP_SKB: CGROUP_INET_EGRESS [OPTIONAL];
    "cgroup/skb" CGROUP_SKB;
    "cgroup/sock_create" CGROUP_SOCK: CGROUP_INET_SOCK_CREATE;
    "cgroup/sock_release" CGROUP_SOCK: CGROUP_INET_SOCK_RELEASE;
    "cgroup/sock" CGROUP_SOCK: CGROUP_INET_SOCK_CREATE [OPTIONAL];
    "cgroup/post_bind4" CGROUP_SOCK: CGROUP_INET4_POST_BIND;
    "cgroup/post_bind6" CGROUP_SOCK: CGROUP_INET6_POST_BIND;
    "cgroup/bind4" CGROUP_SOCK_ADDR: CGROUP_INET4_BIND;
    "cgroup/bind6" CGROUP_SOCK_ADDR: CGROUP_INET6_BIND;
    "cgroup/connect4" CGROUP_SOCK_ADDR: CGROUP_INET4_CONNECT;
    "cgroup/connect6" CGROUP_SOCK_ADDR: CGROUP_INET6_CONNECT;
    "cgroup/connect_unix" CGROUP_SOCK_ADDR: CGROUP_UNIX_CONNECT;
    "cgroup/sendmsg4" CGROUP_SOCK_ADDR: CGROUP_UDP4_SENDMSG;
    "cgroup/sendmsg6" CGROUP_SOCK_ADDR: CGROUP_UDP6_SENDMSG;
    "cgroup/sendmsg_unix" CGROUP_SOCK_ADDR: CGROUP_UNIX_SENDMSG;
    "cgroup/recvmsg4" CGROUP_SOCK_ADDR: CGROUP_UDP4_RECVMSG;
    "cgroup/recvmsg6" CGROUP_SOCK_ADDR: CGROUP_UDP6_RECVMSG;
    "cgroup/recvmsg_unix" CGROUP_SOCK_ADDR: CGROUP_UNIX_RECVMSG;
    "cgroup/getpeername4" CGROUP_SOCK_ADDR: CGROUP_INET4_GETPEERNAME;
    "cgroup/getpeername6" CGROUP_SOCK_ADDR: CGROUP_INET6_GETPEERNAME;
    "cgroup/getpeername_unix" CGROUP_SOCK_ADDR: CGROUP_UNIX_GETPEERNAME;
    "cgroup/getsockname4" CGROUP_SOCK_ADDR: CGROUP_INET4_GETSOCKNAME;
    "cgroup/getsockname6" CGROUP_SOCK_ADDR: CGROUP_INET6_GETSOCKNAME;
    "cgroup/getsockname_unix" CGROUP_SOCK_ADDR: CGROUP_UNIX_GETSOCKNAME;
    "cgroup/sysctl" CGROUP_SYSCTL: CGROUP_SYSCTL;
    "cgroup/getsockopt" CGROUP_SOCKOPT: CGROUP_GETSOCKOPT;
    "cgroup/setsockopt" CGROUP_SOCKOPT: CGROUP_SETSOCKOPT;
    "cgroup/dev" CGROUP_DEVICE: CGROUP_DEVICE [OPTIONAL];
    "struct_ops" +T STRUCT_OPS;
    "struct_ops.s" +T STRUCT_OPS [SLEEPABLE];
    "sk_lookup" SK_LOOKUP: SK_LOOKUP;
    "netfilter" NETFILTER: NETFILTER;
};

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_say_type_attachment_and_target() {
        let k = SectionKind::parse("xdp.frags/devmap");
        assert_eq!((k.program_type, k.attach_type, k.frags), (P::XDP, Some(A::XDP_DEVMAP), true));
        let k = SectionKind::parse("?fentry.s/tcp_connect");
        assert_eq!((k.program_type, k.attach_type), (P::TRACING, Some(A::TRACE_FENTRY)));
        assert_eq!(
            (k.target.as_deref(), k.sleepable, k.autoload, k.attach_btf),
            (Some("tcp_connect"), true, false, true)
        );
        assert_eq!(k.load_flags(), 1 << 4);
        let k = SectionKind::parse("tc");
        assert_eq!((k.program_type, k.attach_type), (P::SCHED_CLS, None));
        assert_eq!(SectionKind::parse("tc/ingress").attach_type, Some(A::TCX_INGRESS));
    }

    #[test]
    fn names_of_old_objects_go_by_their_beginning() {
        assert_eq!(SectionKind::parse("xdp_drop").program_type, P::XDP);
        assert_eq!(SectionKind::parse("classifier/ingress").program_type, P::SCHED_CLS);
        assert_eq!(SectionKind::parse("socket1").program_type, P::SOCKET_FILTER);
        assert_eq!(SectionKind::parse("cgroup/bind4_custom").attach_type, Some(A::CGROUP_INET4_BIND));
        assert_eq!(SectionKind::parse("kprobe/sys_write").target.as_deref(), Some("sys_write"));
    }

    #[test]
    fn unknown_names_say_nothing() {
        let k = SectionKind::parse("from-container");
        assert_eq!((k.program_type, k.attach_type, k.target), (P::UNSPEC, None, None));
    }
}

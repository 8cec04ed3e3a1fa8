//! Contexts of program types: which fields hold packet pointers.

use crate::{Prov, Size};

/// `enum bpf_prog_type`: the types whose context has packet pointers.
mod prog_type {
    pub(super) const SOCKET_FILTER: u32 = 1;
    pub(super) const SCHED_CLS: u32 = 3;
    pub(super) const SCHED_ACT: u32 = 4;
    pub(super) const XDP: u32 = 6;
    pub(super) const CGROUP_SKB: u32 = 8;
    pub(super) const LWT_IN: u32 = 10;
    pub(super) const LWT_OUT: u32 = 11;
    pub(super) const LWT_XMIT: u32 = 12;
    pub(super) const SK_SKB: u32 = 14;
    pub(super) const SK_MSG: u32 = 16;
    pub(super) const LWT_SEG6LOCAL: u32 = 19;
    pub(super) const SK_REUSEPORT: u32 = 21;
    pub(super) const FLOW_DISSECTOR: u32 = 22;
}

/// The provenance of the packet pointer that a context field holds, if it holds one. `prog_type` is
/// `enum bpf_prog_type`. Source: `include/uapi/linux/bpf.h`, `struct xdp_md`, `__sk_buff`, `sk_msg_md`,
/// `sk_reuseport_md`.
pub fn field(prog_type: u32, offset: i32, size: Size) -> Option<Prov> {
    use prog_type::*;
    match (prog_type, offset, size) {
        (XDP, 0, Size::W) => Some(Prov::Packet),
        (XDP, 4, Size::W) => Some(Prov::PacketEnd),
        (XDP, 8, Size::W) => Some(Prov::PacketMeta),
        (
            SOCKET_FILTER | SCHED_CLS | SCHED_ACT | CGROUP_SKB | LWT_IN | LWT_OUT | LWT_XMIT | SK_SKB
            | LWT_SEG6LOCAL | FLOW_DISSECTOR,
            at,
            Size::W,
        ) => match at {
            76 => Some(Prov::Packet),
            80 => Some(Prov::PacketEnd),
            140 => Some(Prov::PacketMeta),
            _ => None,
        },
        (SK_MSG | SK_REUSEPORT, 0, Size::Dw) => Some(Prov::Packet),
        (SK_MSG | SK_REUSEPORT, 8, Size::Dw) => Some(Prov::PacketEnd),
        _ => None,
    }
}

/// Returns true if a load at this place gives a packet pointer, provided its base is the context of a program
/// of this type; of any type where that is not known.
pub fn may_be_pointer(prog_type: Option<u32>, offset: i32, size: Size) -> bool {
    let kinds = [prog_type::XDP, prog_type::SCHED_CLS, prog_type::SK_MSG];
    match prog_type {
        Some(own) => field(own, offset, size).is_some(),
        None => kinds.iter().any(|&kind| field(kind, offset, size).is_some()),
    }
}

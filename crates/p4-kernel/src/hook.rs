//! Hooks of the kernel that a program is made for.

use millstream_ir::PacketVerdict;
use millstream_kernel::ProgramType;

/// Hook of the kernel.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum KernelHook {
    /// XDP: a frame as the driver received it.
    Xdp,
    /// Traffic control, or `tcx`: a socket buffer.
    Tc,
}

/// Offsets of fields of the context, in bytes (`struct xdp_md`, `struct __sk_buff`).
pub(crate) struct ContextLayout {
    pub(crate) data: i32,
    pub(crate) data_end: i32,
    pub(crate) ingress_ifindex: i32,
}

/// `len` of `struct __sk_buff`.
pub(crate) const SKB_LENGTH: i32 = 0;

impl KernelHook {
    pub(crate) const fn context(self) -> ContextLayout {
        match self {
            KernelHook::Xdp => ContextLayout { data: 0, data_end: 4, ingress_ifindex: 12 },
            KernelHook::Tc => ContextLayout { data: 76, data_end: 80, ingress_ifindex: 36 },
        }
    }

    /// Section of the entry program.
    pub const fn section(self) -> &'static str {
        match self {
            KernelHook::Xdp => "xdp",
            KernelHook::Tc => "tc",
        }
    }

    pub(crate) const fn program_type(self) -> ProgramType {
        match self {
            KernelHook::Xdp => ProgramType::XDP,
            KernelHook::Tc => ProgramType::SCHED_CLS,
        }
    }

    /// `enum xdp_action`, or `TC_ACT_*`: TC drops where XDP aborts.
    pub(crate) const fn verdict(self, verdict: PacketVerdict) -> u64 {
        match (self, verdict) {
            (KernelHook::Xdp, PacketVerdict::Aborted) => 0,
            (KernelHook::Xdp, PacketVerdict::Drop) => 1,
            (KernelHook::Xdp, PacketVerdict::Pass) => 2,
            (KernelHook::Xdp, PacketVerdict::Tx) => 3,
            (KernelHook::Xdp, PacketVerdict::Redirect) => 4,
            (KernelHook::Tc, PacketVerdict::Aborted | PacketVerdict::Drop) => 2,
            (KernelHook::Tc, PacketVerdict::Pass) => 0,
            (KernelHook::Tc, PacketVerdict::Tx | PacketVerdict::Redirect) => 7,
        }
    }
}

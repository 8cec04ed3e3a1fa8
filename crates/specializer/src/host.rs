//! Properties of the machine on which variants run, as plain data.

use millstream_isa::generation::KernelRange;
use millstream_passes::TargetInfo;

/// The kernel and the CPUs that variants are made for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct VariantHost {
    /// The generation of the kernel's verifier.
    pub kernels: KernelRange,
    /// Number of CPUs that may come online; at least 1.
    pub possible_cpus: usize,
    /// One more than the highest number of a CPU; `None` if it is unknown, and then no map has a cache.
    pub cpu_numbers: Option<usize>,
}

impl VariantHost {
    /// The target of variants of a program that needs this version of the instruction set.
    pub(crate) fn target(self, isa: u8) -> TargetInfo {
        TargetInfo::bpf(isa).on(self.kernels)
    }
}

//! Features of this machine's kernel beyond those that an object's own instructions imply.

use millstream_isa::generation::{KernelRange, VerifierGeneration};
use millstream_kernel::probe;
use millstream_passes::TargetInfo;

/// Features of a kernel that programs are made for. Each was found out by loading a program that needs it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct KernelFeatures {
    /// The kernels that have its verifier: [`running_kernels`].
    pub kernels: KernelRange,
    /// The instructions of version 4.
    pub isa_v4: bool,
    /// The verifier knows that constant indices below the size of an array are found.
    pub elides_null_checks: bool,
}

/// The kernels that programs for this machine are made for: the generation of the running kernel, by the
/// version that it says it is; all supported ones if that is not known.
pub fn running_kernels() -> KernelRange {
    let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    VerifierGeneration::of_release(&release).map_or(KernelRange::ALL, KernelRange::only)
}

impl KernelFeatures {
    /// Asks the kernel of this machine. Features that this process may not probe count as absent.
    pub fn probe() -> KernelFeatures {
        KernelFeatures {
            kernels: running_kernels(),
            isa_v4: probe::instruction_set_v4().is_yes(),
            elides_null_checks: probe::elided_null_checks().is_yes(),
        }
    }

    /// The target of objects that need instruction set `isa`, and that are loaded as they are.
    pub(crate) fn target(self, isa: u8) -> TargetInfo {
        let isa = if self.isa_v4 { 4 } else { isa };
        TargetInfo {
            map_sizes_hold: true,
            elides_null_checks: self.elides_null_checks,
            ..TargetInfo::bpf(isa)
        }
    }
}

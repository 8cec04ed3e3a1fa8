//! This machine, as the compiler of variants sees it.

use millstream_kernel::{cpu_numbers, possible_cpus};
use millstream_object::Object;
use millstream_opt::running_kernels;
use millstream_specializer::VariantHost;
use millstream_specializer::variant::{VariantCompiler, VariantError};

/// Describes this machine.
fn this_host() -> VariantHost {
    VariantHost {
        kernels: running_kernels(),
        possible_cpus: possible_cpus().unwrap_or(1),
        cpu_numbers: cpu_numbers().ok(),
    }
}

/// Prepares a program, the one named or the only one, for this machine.
///
/// # Errors
/// If there is no such program, or it cannot be lifted.
pub fn variant_compiler(object: &Object, program: Option<&str>) -> Result<VariantCompiler, VariantError> {
    VariantCompiler::new(object, program, this_host())
}

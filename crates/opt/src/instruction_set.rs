//! The instruction set version that programs are made for, and the choice of it by trial.

use std::str::FromStr;

use millstream_object::Object;

use crate::{OptError, OptimizeOptions, oldest_kernel, optimize};

/// Instruction set version, as a user names it: `v1` to `v4`, 1 to 4, or `auto`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum InstructionSet {
    /// The one in which the object is smallest.
    Auto,
    /// This one.
    Version(u8),
}

/// A text that is no instruction set version.
#[derive(Debug, thiserror::Error)]
#[error("there are v1, v2, v3 and v4 (or 1 to 4), and auto")]
pub struct UnknownInstructionSet;

impl FromStr for InstructionSet {
    type Err = UnknownInstructionSet;

    fn from_str(text: &str) -> Result<InstructionSet, UnknownInstructionSet> {
        let number = || text.strip_prefix('v').unwrap_or(text).parse().ok().filter(|n| (1..=4).contains(n));
        match text {
            "auto" => Ok(InstructionSet::Auto),
            _ => number().map(InstructionSet::Version).ok_or(UnknownInstructionSet),
        }
    }
}

impl InstructionSet {
    /// The number; 0 if it is not chosen yet.
    pub fn version(self) -> u8 {
        match self {
            InstructionSet::Auto => 0,
            InstructionSet::Version(n) => n,
        }
    }
}

/// The instruction set version, of those that all target kernels have, in which the optimized object has the
/// fewest slots; the oldest of several.
///
/// # Errors
/// As [`optimize`].
pub fn smallest_instruction_set(object: &Object, options: &OptimizeOptions) -> Result<u8, OptError> {
    let newest = match (options.kernels, options.host) {
        (Some(kernels), _) => kernels.oldest().isa(),
        (None, Some(host)) if host.isa_v4 => 4,
        _ => oldest_kernel(object).isa(),
    };
    let mut best = None;
    for isa in 1..=newest {
        let options = OptimizeOptions { isa, dump_after: None, ..options.clone() };
        let slots = optimize(object, &options)?.slots();
        if best.is_none_or(|(fewest, _)| slots < fewest) {
            best = Some((slots, isa));
        }
    }
    Ok(best.map_or(0, |(_, isa)| isa))
}

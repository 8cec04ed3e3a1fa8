//! Rules of the walk that differ between generations of the verifier.

use millstream_isa::absint::AbstractDomain;
use millstream_isa::generation::VerifierGeneration;

/// Rules of one generation's walk.
#[derive(Clone, Copy, Debug)]
pub(super) struct WalkRules {
    /// Its knowledge of numbers.
    pub(super) domain: AbstractDomain,
    /// Needs for exact numbers are followed through calls of functions (Linux 6.5), through slots at any
    /// address and through registers that a branch refined together (6.11). Without it, all numbers of the
    /// states before a call count, and a slot is followed only where R10 is the base.
    pub(super) follows_needs: bool,
    /// Every number that is spilled stays a number, and one of which nothing is known is the same as bytes of
    /// which nothing is known (Linux 6.9). Without it, these are different, and zero is eight zero bytes.
    pub(super) spills_all_numbers: bool,
    /// Sums, narrow copies and spilled numbers share names, which are compared (Linux 6.5 to 6.11).
    pub(super) names_numbers: bool,
    /// Callbacks are verified until their states are equal (Linux 6.7); without it, once.
    pub(super) repeats_callbacks: bool,
    /// A lookup in an array by a constant on the stack gives no null (Linux 6.16).
    pub(super) finds_constant_keys: bool,
    /// States are kept where the verifier remembers many steps (Linux 6.11).
    pub(super) bounds_history: bool,
}

impl WalkRules {
    /// The rules of a generation; Linux 6.12 and 7.2 walk as 6.18 does, but for their knowledge of numbers.
    pub(super) fn of(generation: VerifierGeneration) -> WalkRules {
        let new = generation >= VerifierGeneration::V6_12;
        WalkRules {
            domain: AbstractDomain::new(generation.knowledge()),
            follows_needs: new,
            spills_all_numbers: new,
            names_numbers: new,
            repeats_callbacks: new,
            finds_constant_keys: generation >= VerifierGeneration::V6_18,
            bounds_history: new,
        }
    }
}

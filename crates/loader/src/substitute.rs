//! Helpers that a kernel lacks, and others that do as well in their place.
//!
//! The coarse clock (Linux 5.11) is the monotonic clock, read at the last tick; a program that asks for it
//! gets a time that is late by up to a tick. On older kernels, the same program gets the exact time, which
//! costs more and is never later.

use std::sync::OnceLock;

use millstream_isa::helpers::id;
use millstream_kernel::probe;

/// The code of a call, with no register as its source: a call of a helper.
const CALL: u64 = 0x85;
const EXACT: u64 = id::KTIME_GET_NS as u64;
const COARSE: u64 = id::KTIME_GET_COARSE_NS as u64;

fn call(helper: u64) -> u64 {
    CALL | helper << 32
}

/// Replaces calls of helpers that this kernel lacks. The kernel is asked once, by the first program that has
/// such a call.
pub(crate) fn missing_helpers(slots: &mut [u64]) {
    static LACKS_COARSE: OnceLock<bool> = OnceLock::new();
    if slots.contains(&call(COARSE))
        && *LACKS_COARSE.get_or_init(|| matches!(probe::coarse_clock(), probe::ProbeOutcome::No(_)))
    {
        exact_clock(slots);
    }
}

/// Replaces reads of the coarse clock by reads of the exact one. The second half of a wide instruction has no
/// code, so it is never taken for a call.
fn exact_clock(slots: &mut [u64]) {
    slots.iter_mut().filter(|slot| **slot == call(COARSE)).for_each(|slot| *slot = call(EXACT));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_calls_of_the_coarse_clock_are_replaced() {
        // A call of a function of the program has 1 as its source register.
        let function = call(COARSE) | 1 << 12;
        let mut slots = [call(COARSE), call(1), function, COARSE << 32, call(EXACT)];
        exact_clock(&mut slots);
        assert_eq!(slots, [call(EXACT), call(1), function, COARSE << 32, call(EXACT)]);
    }
}

//! Shifts of the traffic, seen by the fall of the hit rate of the keys in code.
//!
//! Variants count lookups whose key is none of the hot ones
//! ([`GuardCheck::misses`](millstream_specializer::transform::GuardCheck)): on that side a real lookup
//! follows, beside which a per-CPU addition costs little, and the fast side pays nothing. The first windows
//! after a generation was installed give the usual rate.

use std::time::{Duration, Instant};

use millstream_kernel::KernelMap;

use super::LiveError;
use super::generations::LoadedVariant;
use super::guarded_program::GuardedProgram;
use crate::report::SessionReport;

/// Interval between two readings of the counts.
const WINDOW: Duration = Duration::from_millis(100);
/// Packets below which a window is too short; it then goes on.
const FEWEST: u64 = 500;
/// Increase of the misses a packet, over the usual rate, that counts as a shift.
const MORE: f64 = 0.1;
/// Consecutive windows that must show the increase.
const SURE: u32 = 2;

/// Misses of the hot keys.
#[derive(Debug, Default)]
pub(super) struct HotKeyMisses {
    /// Generation whose lookups are counted, and its usual misses a packet.
    usual: Option<(u32, f64)>,
    /// Counts at the beginning of the window.
    window: Option<MissCounts>,
    /// Consecutive windows with more misses.
    more: u32,
}

#[derive(Clone, Copy, Debug)]
struct MissCounts {
    at: Instant,
    token: u64,
    misses: u64,
    packets: u64,
}

/// Result of a window.
#[derive(Clone, Copy, PartialEq, Debug)]
enum ShiftResult {
    Nothing,
    /// The traffic has shifted; has the usual misses a packet.
    Shifted(f64),
}

impl HotKeyMisses {
    /// Adds the misses a packet of one more window of a generation.
    fn take(&mut self, generation: u32, rate: f64) -> ShiftResult {
        let usual = match self.usual {
            Some((of, usual)) if of == generation => usual.min(rate),
            _ => {
                self.more = 0;
                rate
            }
        };
        self.usual = Some((generation, usual));
        self.more = if rate > usual + MORE { self.more + 1 } else { 0 };
        if self.more < SURE {
            return ShiftResult::Nothing;
        }
        // Until there is another generation, the next windows are taken as usual.
        *self = HotKeyMisses { usual: Some((generation, rate)), ..HotKeyMisses::default() };
        ShiftResult::Shifted(usual)
    }

    /// Returns true if the hot keys in code have become less hot.
    pub(super) fn has_shifted(
        &mut self,
        guarded: &mut GuardedProgram<'_>,
        tell: &mut dyn FnMut(&SessionReport),
    ) -> Result<bool, LiveError> {
        let hot = |a: &LoadedVariant| a.keys.values().any(|put| put.hot_keys().is_some());
        let Some(active) = guarded.generations.active.as_ref().filter(|a| hot(a)) else { return Ok(false) };
        let (generation, token) = (active.generation, active.token());
        // Packets that the guard turns away miss nothing.
        if !guarded.variant_runs() {
            self.window = None;
            return Ok(false);
        }
        let before = self.window.filter(|w| w.token == token);
        if before.is_some_and(|w| w.at.elapsed() < WINDOW) {
            return Ok(false);
        }
        let Some(map) = guarded.programs.loader.map(guarded.programs.compiler.misses()) else {
            return Ok(false);
        };
        let now = MissCounts {
            at: Instant::now(),
            token,
            misses: misses(map)?,
            packets: guarded.hook.received.count(),
        };
        let Some(before) = before else {
            self.window = Some(now);
            return Ok(false);
        };
        let packets = now.packets.saturating_sub(before.packets);
        if packets < FEWEST {
            return Ok(false);
        }
        self.window = Some(now);
        let rate = now.misses.saturating_sub(before.misses) as f64 / packets as f64;
        let ShiftResult::Shifted(usual) = self.take(generation, rate) else { return Ok(false) };
        tell(&SessionReport::Shifted { generation, usual, now: rate });
        guarded.schedule.fruitless = 0;
        Ok(true)
    }
}

/// Reads the sum of the counts of all CPUs.
fn misses(map: &KernelMap) -> Result<u64, LiveError> {
    let entries = map.entries()?;
    let words = entries.iter().flat_map(|(_, all)| all.chunks_exact(8));
    Ok(words.filter_map(|w| w.try_into().ok()).map(u64::from_ne_bytes).fold(0, u64::wrapping_add))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fall_of_the_hit_rate_is_seen_once_it_lasts() {
        let mut hits = HotKeyMisses::default();
        for rate in [0.30, 0.28, 0.31, 0.45, 0.30, 0.36] {
            assert_eq!(hits.take(1, rate), ShiftResult::Nothing, "one window may be an accident");
        }
        assert_eq!(hits.take(1, 0.9), ShiftResult::Nothing);
        assert_eq!(hits.take(1, 0.9), ShiftResult::Shifted(0.28));
        assert_eq!(hits.take(1, 0.9), ShiftResult::Nothing, "that is known now");
        assert_eq!(hits.take(2, 0.2), ShiftResult::Nothing, "another generation has its own");
        assert_eq!(hits.take(2, 0.5), ShiftResult::Nothing);
        assert_eq!(hits.take(2, 0.5), ShiftResult::Shifted(0.2));
    }
}

//! Maps that change too often to be in code.
//!
//! A map is put into code until it proves to change: making code again and again costs more than it saves. A
//! map that changes twice within a while is treated as data for a while, which gets longer each time: a twin
//! that follows, or a lookup.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use millstream_ir::Map;

/// Changes that are farther apart than this do not count together.
const APART: Duration = Duration::from_secs(20);
/// Time for which a map is in no code after it has changed too often: the first time, and at most.
const SHORTEST: Duration = Duration::from_secs(20);
const LONGEST: Duration = Duration::from_secs(1_200);

/// The maps that were in code and changed.
#[derive(Debug, Default)]
pub(super) struct ChurnTracker(BTreeMap<Map, ChurnBackoff>);

#[derive(Debug)]
struct ChurnBackoff {
    last: Instant,
    /// End of the time for which it is in no code.
    until: Option<Instant>,
    /// Length of the next such time.
    next: Duration,
}

impl ChurnTracker {
    /// Records a change of a map that was in code.
    pub(super) fn note(&mut self, map: Map, now: Instant) {
        let is_again = |last| now.saturating_duration_since(last) < APART;
        match self.0.get_mut(&map) {
            None => drop(self.0.insert(map, ChurnBackoff { last: now, until: None, next: SHORTEST })),
            Some(changes) => {
                if is_again(changes.last) && changes.until.is_none() {
                    changes.until = Some(now + changes.next);
                    changes.next = (2 * changes.next).min(LONGEST);
                }
                changes.last = now;
            }
        }
    }

    /// The maps that are in no code.
    pub(super) fn maps(&self) -> BTreeSet<Map> {
        self.0.iter().filter(|(_, changes)| changes.until.is_some()).map(|(map, _)| *map).collect()
    }

    /// Returns true if some maps may be in code from now on that were not before.
    pub(super) fn is_over(&mut self, now: Instant) -> bool {
        let over = |changes: &mut ChurnBackoff| changes.until.take_if(|until| *until <= now).is_some();
        self.0.values_mut().filter_map(|changes| over(changes).then_some(())).count() > 0
    }
}

#[cfg(test)]
mod tests {
    use cranelift_entity::EntityRef;

    use super::*;

    #[test]
    fn what_changes_twice_within_a_while_is_in_no_code_for_longer_each_time() {
        let (map, mut now, mut restless) = (Map::new(3), Instant::now(), ChurnTracker::default());
        let mut lengths = Vec::new();
        for _ in 0..3 {
            restless.note(map, now);
            assert!(restless.maps().is_empty(), "once is not often");
            restless.note(map, now + APART / 2);
            assert_eq!(restless.maps(), BTreeSet::from([map]));
            let start = now;
            while !restless.is_over(now) {
                now += Duration::from_secs(1);
            }
            lengths.push((now - start).as_secs());
            now += APART;
        }
        assert_eq!(lengths, [30, 50, 90]);
    }

    #[test]
    fn what_changes_now_and_then_stays_in_code() {
        let (map, start, mut restless) = (Map::new(3), Instant::now(), ChurnTracker::default());
        (0..9).for_each(|n| restless.note(map, start + n * APART));
        assert!(restless.maps().is_empty());
    }
}

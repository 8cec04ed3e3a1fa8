//! Schedules to try for a program: order of packets and stages, and which look-ups are prefetched for.
//!
//! Sampled packets say nothing of schedules, since the same few lines of tables are in the caches after the first
//! turn. So each schedule runs for a while on live packets, in turns with the program.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Instant;

use millstream_native::{
    CompiledSchedule, PrefetchPolicy, Schedule, SchedulePattern, TraversalCaching, VariantCode,
};
use millstream_tune::{MachineCurves, ProgramDemand};

/// Sub-batches to try.
const SUB_BATCHES: [u32; 2] = [8, 16];
/// Distances to try between the packets of two stages.
const DISTANCE: u32 = 8;
/// Schedules that are tried if a model predicts them.
const PROMISING: usize = 3;
/// Smallest batch to try.
const LEAST_BATCH: u32 = 16;

/// The schedules to try for a program with this one: none if it has no look-ups that can be prefetched for, or whose
/// results can be kept.
pub(crate) fn candidates(current: &CompiledSchedule, has_traversals: bool) -> VecDeque<Schedule> {
    let mut all = VecDeque::new();
    if has_traversals && !current.lookups.cached.is_empty() {
        let kinds = [TraversalCaching::Off, TraversalCaching::Whole, TraversalCaching::Split];
        let other = kinds.into_iter().filter(|traversals| *traversals != current.schedule.traversals);
        all.extend(other.map(|traversals| Schedule { traversals, ..current.schedule.clone() }));
    }
    if !current.tables.is_empty() {
        all.extend(prefetching(current));
    }
    all
}

/// Schedules that prefetch in another way.
fn prefetching(current: &CompiledSchedule) -> Vec<Schedule> {
    let own = &current.schedule;
    let without =
        Schedule { pattern: SchedulePattern::Packets, fetch: PrefetchPolicy::Nothing, ..own.clone() };
    // The program itself decides by timing whether it prefetches; a variant does, too.
    let ahead = Schedule { fetch: PrefetchPolicy::Large, from: 0, trials: false, ..own.clone() };
    let packets = Schedule { pattern: SchedulePattern::Packets, distance: DISTANCE, ..ahead.clone() };
    let grouped = SUB_BATCHES.map(|sub_batch| Schedule {
        pattern: SchedulePattern::PipelinedGroups,
        sub_batch,
        ..ahead.clone()
    });
    let smaller = Schedule { batch: (own.batch / 2).max(LEAST_BATCH), ..grouped[0].clone() };
    let all = [packets].into_iter().chain(grouped).chain([smaller, without]);
    all.filter(|schedule| schedule != own && schedule.batch <= own.batch).collect()
}

/// The schedules with other caches than a program's own, and those that the model predicts to be the fastest ones, in
/// this order.
pub(crate) fn promising(
    schedules: VecDeque<Schedule>,
    own: TraversalCaching,
    demand: &ProgramDemand,
    curves: &MachineCurves,
) -> VecDeque<Schedule> {
    let time = |schedule: &Schedule| {
        let in_flight = match (&schedule.fetch, schedule.pattern) {
            (PrefetchPolicy::Nothing, _) => 1,
            (_, SchedulePattern::Packets) => schedule.distance,
            _ => schedule.sub_batch,
        };
        demand.predict(curves, schedule.batch, in_flight).ns
    };
    // The model knows nothing of the flows on which caches depend.
    let (mut chosen, others): (VecDeque<Schedule>, VecDeque<Schedule>) =
        schedules.into_iter().partition(|schedule| schedule.traversals != own);
    let mut others: Vec<(f64, Schedule)> =
        others.into_iter().map(|schedule| (time(&schedule), schedule)).collect();
    others.sort_by(|a, b| a.0.total_cmp(&b.0));
    chosen.extend(others.into_iter().take(PROMISING).map(|(_, schedule)| schedule));
    chosen
}

/// A schedule's code, and its time on live packets as a share of the program's.
#[derive(Debug)]
pub(crate) struct TimedSchedule {
    pub(crate) code: Arc<VariantCode>,
    pub(crate) schedule: Schedule,
    pub(crate) time: f64,
}

/// Trials of schedules on live packets.
#[derive(Debug)]
pub(crate) struct ScheduleTrials {
    /// Those that were not tried yet.
    pub(crate) left: VecDeque<Schedule>,
    /// Caches that the program has by itself.
    own: TraversalCaching,
    /// The one that runs, and the time when it began.
    pub(crate) running: Option<(Schedule, Arc<VariantCode>, Instant)>,
    pub(crate) best: Option<TimedSchedule>,
}

impl ScheduleTrials {
    /// Trials of all schedules of a program.
    pub(crate) fn new(current: &CompiledSchedule, has_traversals: bool) -> ScheduleTrials {
        let (left, own) = (candidates(current, has_traversals), current.schedule.traversals);
        ScheduleTrials { left, own, running: None, best: None }
    }

    /// Leaves out the schedules that the model predicts to be slow.
    pub(crate) fn choose(&mut self, demand: &ProgramDemand, curves: &MachineCurves) {
        self.left = promising(std::mem::take(&mut self.left), self.own, demand, curves);
    }

    /// Returns true if all were tried.
    pub(crate) fn are_over(&self) -> bool {
        self.left.is_empty() && self.running.is_none()
    }

    /// Ends the trial that runs, with its time if it is known.
    pub(crate) fn end(&mut self, time: Option<f64>) {
        let (Some((schedule, code, _)), Some(time)) = (self.running.take(), time) else { return };
        if self.best.as_ref().is_none_or(|best| time < best.time) {
            self.best = Some(TimedSchedule { code, schedule, time });
        }
    }

    /// Ends all trials.
    pub(crate) fn abandon(&mut self) {
        self.left.clear();
        self.running = None;
    }
}

#[cfg(test)]
mod tests {
    use millstream_native::PrefetchDecision;
    use millstream_tune::{IoKind, LookupDemand, MemoryCurvePoint};

    use super::*;

    #[test]
    fn only_programs_with_lookups_that_can_be_prefetched_for_have_schedules_to_try() {
        let mut current = CompiledSchedule::default();
        assert!(candidates(&current, true).is_empty());
        let (table, why) = ("t".to_owned(), String::new());
        current.tables.push(PrefetchDecision { table, fetched: false, why });
        let tried = candidates(&current, true);
        assert!(tried.len() > 2 && !tried.contains(&current.schedule));
        assert!(tried.iter().all(|schedule| schedule.batch <= current.schedule.batch));
    }

    #[test]
    fn schedules_that_are_predicted_to_be_slow_are_not_tried() {
        let mut current = CompiledSchedule::default();
        let (table, why) = ("t".to_owned(), String::new());
        current.tables.push(PrefetchDecision { table: table.clone(), fetched: false, why });
        let line = |bytes, sub_batch, ns| MemoryCurvePoint { bytes, sub_batch, ns };
        let curves = MachineCurves {
            memory: vec![
                line(1 << 10, 1, 1.0),
                line(1 << 30, 1, 100.0),
                line(1 << 10, 16, 1.0),
                line(1 << 30, 16, 5.0),
            ],
            ..MachineCurves::default()
        };
        let demand = |bytes| ProgramDemand {
            compute_ns: 20.0,
            ahead_ns: None,
            lookups: vec![LookupDemand { table: table.clone(), bytes, lines: 2.0 }],
            packet_bytes: 64,
            io: IoKind::Memory,
        };
        let first = |bytes| {
            promising(candidates(&current, true), TraversalCaching::Off, &demand(bytes), &curves)
                .into_iter()
                .next()
                .expect("one")
        };
        assert_eq!(first(1 << 10).fetch, PrefetchPolicy::Nothing);
        // Any number of lines in flight that covers the latency of one is as good as more.
        assert_ne!(first(1 << 30).fetch, PrefetchPolicy::Nothing);
        assert!(first(1 << 30).sub_batch >= 4);
        assert_eq!(
            promising(candidates(&current, true), TraversalCaching::Off, &demand(1 << 30), &curves).len(),
            PROMISING
        );
    }

    #[test]
    fn small_batches_are_not_made_larger() {
        let mut current = CompiledSchedule::default();
        current.schedule.batch = 4;
        let (table, why) = ("t".to_owned(), String::new());
        current.tables.push(PrefetchDecision { table, fetched: true, why });
        assert!(candidates(&current, true).iter().all(|schedule| schedule.batch <= 4));
    }
}

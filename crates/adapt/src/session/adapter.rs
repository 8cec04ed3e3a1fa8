//! Decisions of a session: when to look, when to try, when to withdraw.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use millstream_native::{CodeSlot, SampledPacket};
use millstream_specializer::profile::SiteProfile;

use super::lock;
use crate::plans::{HotKeys, hot_share};
use crate::program::AdaptableProgram;
use crate::replicas::Replicas;
use crate::schedules::{ScheduleTrials, TimedSchedule};
use crate::settings::{AdaptMode, AdaptSettings};
use crate::status::{AdaptState, AdaptStatus, WithdrawalReason};
use crate::watch::{GainWatch, SwapLimit, live_gain};

/// Packets that are kept, the latest ones.
const KEPT: usize = 512;
/// Packets without which nothing is judged.
const LEAST: usize = 256;
/// Packets that are copied at each look.
const COPIED: u32 = 64;
/// Share of the hot keys' former share of the traffic below which traffic has shifted. Few samples overstate the
/// former share, since the keys were chosen by them.
const SHIFTED: f64 = 0.4;
/// Longest time for which a table that is written again and again is in no code.
const LONGEST_QUIET: Duration = Duration::from_secs(60);
/// Time until the next attempt if nothing paid: at first, and at last.
const FIRST_PAUSE: Duration = Duration::from_secs(1);
const LONGEST_PAUSE: Duration = Duration::from_secs(30);
/// Looks from one check of gain and traffic to the next.
const CHECKED: u32 = 10;

/// Code that is installed, or would be.
#[derive(Debug)]
pub(super) struct ActiveForm {
    /// Its hot keys, and their share of the look-ups.
    pub(super) hot: HotKeys,
    pub(super) share: Option<f64>,
    /// Numbers of the tables that it assumes.
    pub(super) tables: BTreeSet<usize>,
}

/// State of the session's thread.
pub(super) struct Adapter {
    pub(super) program: AdaptableProgram,
    pub(super) slot: Arc<CodeSlot>,
    pub(super) settings: AdaptSettings,
    pub(super) replicas: Replicas,
    pub(super) samples: Vec<SampledPacket>,
    pub(super) active: Option<ActiveForm>,
    pub(super) limit: SwapLimit,
    /// Trials of schedules, until they are over.
    pub(super) trials: Option<ScheduleTrials>,
    /// The schedule that won.
    pub(super) base: Option<TimedSchedule>,
    pub(super) base_gain: GainWatch,
    gain: GainWatch,
    /// Time for which a table must not have been written, where that is longer than usual.
    quiet: BTreeMap<usize, Duration>,
    pub(super) next_round: Instant,
    pause: Duration,
    looks: u32,
    is_over: bool,
}

impl Adapter {
    pub(super) fn new(
        program: AdaptableProgram,
        slot: Arc<CodeSlot>,
        settings: AdaptSettings,
        (replicas, trials): (Replicas, Option<ScheduleTrials>),
    ) -> Adapter {
        Adapter {
            limit: SwapLimit::new(settings.swaps_per_minute),
            program,
            slot,
            settings,
            replicas,
            samples: Vec::new(),
            active: None,
            trials,
            base: None,
            base_gain: GainWatch::default(),
            gain: GainWatch::default(),
            quiet: BTreeMap::new(),
            next_round: Instant::now(),
            pause: FIRST_PAUSE,
            looks: 0,
            is_over: false,
        }
    }

    pub(super) fn interval(&self) -> Duration {
        self.settings.interval
    }

    /// Returns true if the session cannot go on.
    pub(super) fn is_over(&self) -> bool {
        self.is_over
    }

    /// Looks at tables, traffic and gain, and acts.
    pub(super) fn step(&mut self, status: &Mutex<AdaptStatus>) {
        self.replicas.follow(&self.slot);
        self.take_samples();
        self.check_active(status);
        let now = Instant::now();
        if self.samples.len() < LEAST {
            lock(status).state = AdaptState::WaitingForPackets;
            return;
        }
        if self.settings.mode == AdaptMode::Install && self.try_schedules(status) || self.is_over {
            lock(status).state = AdaptState::Watching;
            return;
        }
        if self.active.is_none() && now >= self.next_round && self.limit.permits(now) {
            self.attempt(status);
        }
        let mut status = lock(status);
        status.state = if self.active.is_some() { AdaptState::Specialized } else { AdaptState::Watching };
    }

    fn take_samples(&mut self) {
        let mut fresh = self.slot.sampler().take();
        self.slot.sampler().request(COPIED);
        self.samples.append(&mut fresh);
        let old = self.samples.len().saturating_sub(KEPT);
        self.samples.drain(..old);
    }

    /// Withdraws the active form if it must not or should not run.
    fn check_active(&mut self, status: &Mutex<AdaptStatus>) {
        self.looks = self.looks.wrapping_add(1);
        let is_check = self.looks.is_multiple_of(CHECKED);
        if is_check {
            self.check_base(status);
        }
        let Some(active) = &self.active else { return };
        let versions_moved = self.settings.mode == AdaptMode::Suggest && self.is_written(active);
        let reason = if self.slot.is_stale() || versions_moved {
            Some(WithdrawalReason::TableWritten)
        } else if is_check {
            let live = live_gain(&self.slot.trial_times());
            lock(status).live = live;
            match self.gain.ends(live, self.settings.most_live_time) {
                true => Some(WithdrawalReason::NoGain),
                false => self.has_shifted().then_some(WithdrawalReason::TrafficShifted),
            }
        } else {
            None
        };
        if let Some(reason) = reason {
            self.withdraw(reason, status);
        }
    }

    /// Returns true if a table of a form that is advice only was written within an interval.
    fn is_written(&self, active: &ActiveForm) -> bool {
        let recent = |at: &Instant| at.elapsed() <= self.settings.interval;
        active.tables.iter().any(|map| self.replicas.written().get(map).is_some_and(recent))
    }

    /// Returns true if the latest packets have other hot keys.
    fn has_shifted(&mut self) -> bool {
        let Some(ActiveForm { share: Some(before), .. }) = self.active else { return false };
        let profiles = self.replicas.profile(&self.program, &self.samples);
        let Some(active) = &self.active else { return false };
        hot_share(&active.hot, &profiles).is_some_and(|share| share < SHIFTED * before)
    }

    fn withdraw(&mut self, reason: WithdrawalReason, status: &Mutex<AdaptStatus>) {
        self.slot.withdraw();
        self.install_base();
        let Some(active) = self.active.take() else { return };
        let now = Instant::now();
        match reason {
            // A table that is written again waits longer.
            WithdrawalReason::TableWritten => {
                for map in active.tables {
                    let is_recent = self
                        .replicas
                        .written()
                        .get(&map)
                        .is_some_and(|at| at.elapsed() < self.settings.quiet + self.settings.interval);
                    if is_recent {
                        let quiet = self.quiet.entry(map).or_insert(self.settings.quiet);
                        *quiet = (*quiet * 2).min(LONGEST_QUIET);
                    }
                }
                self.next_round = now;
            }
            WithdrawalReason::NoGain => self.wait_longer(now),
            WithdrawalReason::TrafficShifted => self.next_round = now,
        }
        let mut status = lock(status);
        status.withdrawals.count(reason);
        (status.live, status.judged) = (None, None);
        status.tables.clear();
    }

    /// Has the next attempt wait, each time twice as long.
    pub(super) fn wait_longer(&mut self, now: Instant) {
        self.next_round = self.next_round.max(now + self.pause);
        self.pause = (self.pause * 2).min(LONGEST_PAUSE);
    }

    /// Begins anew after a success.
    pub(super) fn start_watching(&mut self, active: ActiveForm) {
        (self.active, self.gain, self.pause) = (Some(active), GainWatch::default(), FIRST_PAUSE);
    }

    /// Ends the session.
    pub(super) fn give_up(&mut self) {
        self.slot.withdraw();
        (self.active, self.is_over) = (None, true);
    }

    /// Has no attempt before compiling and judging, which took this long, is within its share of the processor.
    pub(super) fn rest(&mut self, took: Duration) {
        let share = self.settings.processor_share.clamp(0.01, 1.0);
        self.next_round = Instant::now() + took.mul_f64(1.0 / share - 1.0);
    }

    /// Tables that must be in no code: they were written a short time ago, or their contents are unknown.
    pub(super) fn excluded(&self) -> BTreeSet<usize> {
        let quiet = |map: &usize| self.quiet.get(map).copied().unwrap_or(self.settings.quiet);
        let recent = self.replicas.written().iter().filter(|(map, at)| at.elapsed() < quiet(map));
        recent.map(|(map, _)| *map).chain(self.replicas.lost().iter().copied()).collect()
    }

    /// Share of the look-ups that hot keys have now.
    pub(super) fn share(hot: &HotKeys, profiles: &[SiteProfile]) -> Option<f64> {
        hot_share(hot, profiles)
    }
}

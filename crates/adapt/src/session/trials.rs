//! Trials of schedules on live packets, and the code of the schedule that won.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use millstream_native::VariantOptions;

use super::adapter::Adapter;
use super::lock;
use crate::judge::judge;
use crate::schedules::TimedSchedule;
use crate::settings::AdaptMode;
use crate::status::{AdaptStatus, WithdrawalReason};
use crate::watch::live_gain;

impl Adapter {
    /// Goes on with the trials of schedules; returns true if they are not over.
    pub(super) fn try_schedules(&mut self, status: &Mutex<AdaptStatus>) -> bool {
        let Some(trials) = &mut self.trials else { return false };
        if let Some((_, _, begun)) = &trials.running {
            let gain = live_gain(&self.slot.trial_times());
            match gain {
                Some(gain) => trials.end(Some(gain.specialized_ns / gain.program_ns)),
                None if begun.elapsed() > self.settings.trial_time => trials.abandon(),
                None => return true,
            }
            self.slot.withdraw();
        }
        if let Some(curves) = self.settings.curves.take() {
            let demand = self.replicas.demand(&self.samples);
            trials.choose(&demand, &curves);
        }
        if trials.are_over() {
            let best = trials.best.take();
            self.trials = None;
            self.choose_schedule(best, status);
            return false;
        }
        if Instant::now() >= self.next_round && self.limit.permits(Instant::now()) {
            self.start_trial(status);
        }
        true
    }

    /// Compiles the next schedule, compares it with the program, and lets it run.
    fn start_trial(&mut self, status: &Mutex<AdaptStatus>) {
        let Some(schedule) = self.trials.as_mut().and_then(|trials| trials.left.pop_front()) else { return };
        let start = Instant::now();
        let options = VariantOptions {
            schedule: Some(schedule.clone()),
            llvm_passes: self.settings.llvm_passes.clone(),
        };
        let builder = self.slot.builder();
        let on_replica = self.replicas.candidate_builder();
        let compiled = on_replica.map(|own| own.compile(own_module(own), &options)).transpose();
        let compiled = compiled
            .and_then(|judged| Ok((judged, Arc::new(builder.compile(own_module(builder), &options)?))));
        let (judged, code) = match compiled {
            Ok((Some(judged), code)) => (judged, code),
            Ok((None, _)) => return,
            Err(error) => {
                let mut status = lock(status);
                status.compilation.compile_failures += 1;
                status.failure = Some(error.to_string());
                return;
            }
        };
        let judgement = judge(&mut self.replicas, &judged, &self.samples);
        let took = start.elapsed();
        self.rest(took);
        self.note_trial(took, judgement.compared, judgement.differences, status);
        if judgement.differences > 0 {
            return self.give_up();
        }
        if self.slot.install(Arc::clone(&code), &[]).is_ok() {
            self.limit.record(Instant::now());
            if let Some(trials) = &mut self.trials {
                trials.running = Some((schedule, code, Instant::now()));
            }
        }
    }

    fn note_trial(&self, took: Duration, compared: u64, differences: u64, status: &Mutex<AdaptStatus>) {
        let mut status = lock(status);
        status.compilation.compiled += 2;
        status.compilation.compile_ms += took.as_secs_f64() * 1e3;
        status.schedules_tried += 1;
        status.compared += compared;
        status.differences += differences;
        if differences > 0 {
            status.failure = Some("another schedule gave other results: nothing is installed".to_owned());
        }
    }

    /// Takes the schedule that won if it pays.
    fn choose_schedule(&mut self, best: Option<TimedSchedule>, status: &Mutex<AdaptStatus>) {
        let Some(best) = best.filter(|best| best.time <= self.settings.most_time) else { return };
        lock(status).schedule = Some(best.schedule.to_string());
        self.base = Some(best);
        self.install_base();
    }

    /// Has the chosen schedule run, if there is one, while no specialised code does.
    pub(super) fn install_base(&mut self) {
        let Some(base) = self.base.as_ref().filter(|_| self.settings.mode == AdaptMode::Install) else {
            return;
        };
        if let Err(error) = self.slot.install(Arc::clone(&base.code), &[]) {
            tracing::debug!("the schedule is not installed: {error}");
        }
    }

    /// Gives the chosen schedule up if it does not pay any more. Looks at it only while no specialised code runs.
    pub(super) fn check_base(&mut self, status: &Mutex<AdaptStatus>) {
        if self.base.is_none() || self.active.is_some() {
            return;
        }
        let live = live_gain(&self.slot.trial_times());
        lock(status).live = live;
        if self.base_gain.ends(live, self.settings.most_live_time) {
            self.base = None;
            self.slot.withdraw();
            let mut status = lock(status);
            (status.schedule, status.live) = (None, None);
            status.withdrawals.count(WithdrawalReason::NoGain);
        }
    }

    /// Differences of specialised code from the program.
    pub(super) fn variant_options(&self) -> VariantOptions {
        VariantOptions {
            schedule: self.base.as_ref().map(|base| base.schedule.clone()),
            llvm_passes: self.settings.llvm_passes.clone(),
        }
    }
}

fn own_module(builder: &millstream_native::VariantBuilder) -> millstream_ir::Module {
    builder.module().clone()
}

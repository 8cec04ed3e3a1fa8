//! Making variants: compiled, approved, put onto the hook, judged.

use std::time::{Duration, Instant};

use millstream_specializer::changes::DirtyKeys;
use millstream_specializer::guard_state::{DeoptMask, token};
use millstream_specializer::policy::Tier;
use millstream_specializer::profile::SiteProfile;
use millstream_specializer::transform::SpecializationPlan;

use super::admission::{AdmissionDecision, VariantShape};
use super::background::{PendingCompile, WriteHandling};
use super::compile_job::{CompileRequest, CompileResult};
use super::deopt_maps::DeoptMaps;
use super::step::SessionStep;
use super::traffic::VariantTiming;
use super::{ATTEMPTS, LiveError, LiveSession, LoadedVariant, PATIENCE, PendingWrites, QUIET, micros};
use crate::guard::GuardSnapshot;
use crate::report::{CompileReason, SessionReport};
use crate::snapshot::Revalidation;

/// A variant that could be put onto the hook.
pub(super) struct VariantCandidate {
    pub(super) shape: VariantShape,
    pub(super) plan: SpecializationPlan,
    pub(super) active: LoadedVariant,
    pub(super) making: CompileStats,
    /// True if there would be copies of the code after lookups if there were more time.
    pub(super) is_short: bool,
}

/// Cost of making a variant, and the entries of tables in it.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct CompileStats {
    pub(super) compile: Duration,
    pub(super) load: Duration,
    pub(super) entries: u32,
}

/// Reason for making a generation.
#[derive(Clone, Copy)]
pub(super) struct CompileCause {
    pub(super) reason: CompileReason,
    /// The write that it answers.
    pub(super) write: Option<u64>,
}

/// Reasons why an inactive variant cannot become active at once.
pub(super) enum ActivationError {
    /// A writer stays inside, others come all the time, or somebody has come who is not known yet.
    Busy,
    /// Its code depends on tables that have changed, and cannot follow.
    Other,
}

impl VariantCandidate {
    /// Report that it stands by.
    pub(super) fn fallback_report(&self) -> SessionReport {
        let (CompileStats { compile, load, .. }, active) = (self.making, &self.active);
        SessionReport::StandsBy {
            generation: active.generation,
            compile_us: micros(compile),
            load_us: micros(load),
            slots: active.linked.insns.len(),
        }
    }
}

/// Least gain for a variant to be kept, in nanoseconds and as a part of the original's time: the kernel's
/// clock cannot resolve less.
const LEAST_GAIN: (f64, f64) = (2.0, 0.03);

/// Looks at a variant that seems to be no faster before it is taken back.
const LOOKS: u32 = 6;
/// Attempts to bring a candidate up to date before it is made anew.
const CATCHING_UP: u32 = 10;
/// Time without caches, or without copies of the code after lookups, after some did not pay.
const GIVEN_UP: Duration = Duration::from_secs(20);
/// Time that must pass without a write after writes came again and again while code was made.
const LONG_QUIET: Duration = Duration::from_secs(8);
/// Consecutive looks at the traffic for which a variant may stay without a result.
const UNJUDGED: u32 = 5;

/// Returns true if a program that takes `now` is worth having in place of an original that takes `before`.
fn worth(before: f64, now: f64) -> bool {
    before - now >= LEAST_GAIN.0.max(LEAST_GAIN.1 * before)
}

impl LiveSession<'_> {
    /// Makes a generation for this traffic and the current maps, and puts it onto the hook.
    pub(super) fn respecialise(
        &mut self,
        profiles: Vec<SiteProfile>,
        tier: Tier,
        reason: CompileReason,
        write: Option<u64>,
        tell: &mut dyn FnMut(&SessionReport),
    ) -> Result<(), LiveError> {
        let mut order = CompileRequest { generation: 0, tier, profiles };
        for attempt in 1..=ATTEMPTS {
            order.generation = self.generation + 1;
            // Begins before anything is read.
            self.seen.making = DirtyKeys::default();
            let Some(snapshot) = self.begin(&DeoptMaps::default(), tell)? else {
                tell(&SessionReport::Dropped { reason: "a writer stays inside bpf(2)".into() });
                return Ok(());
            };
            let task = PendingCompile::new(tier, reason);
            let CompileResult { candidate, judged, .. } = self.make(&order, &task, tell)?;
            if task.is_called_off() {
                match tier {
                    Tier::Quick if self.unanswered.is_none() => continue,
                    Tier::Quick => {}
                    Tier::Standby | Tier::Thorough => self.interrupted(),
                }
                return Ok(());
            }
            let mut candidate = match candidate {
                Ok(Some(candidate)) => candidate,
                other => {
                    self.not_made(other.err(), tell);
                    return Ok(());
                }
            };
            match self.admits(&mut candidate, judged, &snapshot, tell) {
                AdmissionDecision::Granted => {}
                // If writes never cease, live traffic decides as far as it can.
                AdmissionDecision::Void if attempt == ATTEMPTS && tier == Tier::Quick => {}
                AdmissionDecision::Void if tier == Tier::Thorough => {
                    self.interrupted();
                    return Ok(());
                }
                AdmissionDecision::Void => continue,
                // The copies may be what pays.
                AdmissionDecision::Refused if candidate.is_short => {
                    self.is_patient = true;
                    continue;
                }
                AdmissionDecision::Refused => {
                    if self.give_up(!candidate.active.caches.is_empty(), candidate.active.is_bulky) {
                        continue;
                    }
                    // One look at the traffic, however many forms were tried. It says nothing about copies
                    // for other traffic.
                    self.fruitless += 1;
                    self.uncopied = None;
                    return Ok(());
                }
            }
            self.guard.clear_first_packet(order.generation);
            self.settings.steps.at(SessionStep::Made(tier));
            if let Some(dirty) = self.approve(snapshot, &mut candidate.active) {
                let VariantCandidate { active, making, .. } = candidate;
                return self.install(active, making, CompileCause { reason, write }, dirty, tell);
            }
        }
        tell(&SessionReport::Dropped { reason: "the maps change faster than code can be made".into() });
        Ok(())
    }

    /// Makes a variant, and judges it if its shape is new, while writes are attended to.
    pub(super) fn make(
        &mut self,
        order: &CompileRequest,
        task: &PendingCompile,
        tell: &mut dyn FnMut(&SessionReport),
    ) -> Result<CompileResult, LiveError> {
        let workshop = self.workshop(&order.profiles, order.tier)?;
        let made = self.run_in_background(WriteHandling::Serve(task), || workshop.make(order, task), tell)?;
        self.take_over(&made.learnt);
        Ok(made)
    }

    /// Postpones optional work that a write has interrupted. The next quiet moment will do, and after that a
    /// longer one: packets have waited for the answer.
    pub(super) fn interrupted(&mut self) {
        self.quiet = (2 * self.quiet).min(LONG_QUIET);
        self.thorough_at = Some(Instant::now() + self.quiet);
    }

    /// Reports why there is no candidate: an error, or nothing to be done.
    fn not_made(&mut self, error: Option<String>, tell: &mut dyn FnMut(&SessionReport)) {
        let reason = error.unwrap_or_else(|| "nothing to specialise on".into());
        tell(&SessionReport::Dropped { reason });
        self.fruitless += 1;
    }

    /// Lets a new variant run, if the maps still hold what it was made from, or it can follow them. Returns
    /// the contents that may have changed since they were last compared with the running variant.
    fn approve(&mut self, snapshot: GuardSnapshot, active: &mut LoadedVariant) -> Option<DirtyKeys> {
        let spared = active.spared.slots();
        match self.guard.approve(snapshot, active.token(), spared, DeoptMask::NONE) {
            Some(behind) => {
                let dirty = std::mem::take(&mut self.seen.making);
                Some(self.approved(active, behind, &dirty))
            }
            None => self.catch_up(active, |seen| &mut seen.making).ok(),
        }
    }

    /// Lets an inactive variant run, if it can follow the contents that may have changed since its tables
    /// were read (`since`): it does not depend on them, or its twins can take them over. Returns the contents
    /// that may have changed since they were last compared with the running variant.
    pub(super) fn catch_up(
        &mut self,
        active: &mut LoadedVariant,
        since: impl Fn(&mut PendingWrites) -> &mut DirtyKeys,
    ) -> Result<DirtyKeys, ActivationError> {
        let spared = active.spared.slots();
        for _ in 0..CATCHING_UP {
            let again = self.guard.begin(PATIENCE, &[]).ok_or(ActivationError::Busy)?;
            self.take_note();
            if self.seen.foreign {
                return Err(ActivationError::Busy);
            }
            // If it is not approved, the same contents are looked at once more. A writer that was noted
            // before the tables were read may have written afterwards.
            let dirty = since(&mut self.seen).clone();
            if !self.keeps_up(&mut active.chain, &dirty) {
                return Err(ActivationError::Other);
            }
            let side = match active.record.present(&self.sources, &dirty) {
                Revalidation::Same => None,
                Revalidation::Other => return Err(ActivationError::Other),
                Revalidation::Twinned(changes) => {
                    Some(active.twins.write(changes).map_err(|_| ActivationError::Other)?.0)
                }
            };
            self.settings.steps.at(SessionStep::CaughtUp);
            let new = token(active.generation, side.unwrap_or(active.twins.side()));
            if let Some(behind) = self.guard.approve(again, new, spared, DeoptMask::NONE) {
                active.twins.switch_side(side.unwrap_or(active.twins.side()));
                *since(&mut self.seen) = DirtyKeys::default();
                return Ok(self.approved(active, behind, &dirty));
            }
        }
        Err(ActivationError::Busy)
    }

    /// Marks a variant as approved, with maps behind whose contents in `dirty` may have changed: from now on
    /// writes to maps that it can do without stop nothing else. Returns the contents that may have changed
    /// since they were last compared with the variant that ran before.
    fn approved(&mut self, active: &LoadedVariant, behind: DeoptMask, dirty: &DirtyKeys) -> DirtyKeys {
        self.guard.mark(active.generation, &active.spared.places());
        let before = std::mem::take(&mut self.seen.dirty);
        self.left(&active.spared, behind, dirty, None);
        before
    }

    /// Notes that nobody comes any more who writes maps without counting himself in their caches.
    pub(super) fn settle(&mut self) {
        if let Some(active) = &mut self.active {
            active.caches.settle();
        }
    }

    /// Gives up the parts of a variant that did not pay and that may have cost more than they gained; returns
    /// true if there are any.
    fn give_up(&mut self, caches: bool, copies: bool) -> bool {
        // The standby variant would have the parts that are given up.
        self.drop_fallback();
        if caches {
            self.uncached = Some(Instant::now());
        } else if copies {
            self.uncopied = Some(Instant::now());
        }
        caches || copies
    }

    /// Returns true if something that was given up because it did not pay may be tried again from now on.
    pub(super) fn may_try_again(&mut self) -> bool {
        let over = |since: &mut Instant| since.elapsed() >= GIVEN_UP;
        let tries = [self.uncached.take_if(over), self.uncopied.take_if(over)];
        tries.iter().any(Option::is_some)
    }

    /// Puts an approved variant onto the hook. `dirty` has the contents that may have changed since they were
    /// last compared with the variant before.
    pub(super) fn install(
        &mut self,
        active: LoadedVariant,
        making: CompileStats,
        cause: CompileCause,
        dirty: DirtyKeys,
        tell: &mut dyn FnMut(&SessionReport),
    ) -> Result<(), LiveError> {
        let CompileStats { compile, load, entries } = making;
        let (generation, slots, tier) = (active.generation, active.linked.insns.len(), active.tier);
        self.generation = self.generation.max(generation);
        self.open();
        // The guard has its token: from here on this variant follows writes.
        let before = self.active.replace(active);
        self.is_ahead = false;
        let gone = self.keep_as_fallback(before, cause.reason, dirty);
        self.settings.steps.at(SessionStep::Approved);
        // A write is answered as fast as possible; the result is judged at the next look at the traffic.
        let judged = self.settings.measure && cause.reason != CompileReason::Write;
        if judged {
            // The program on the hook is the original, or turns every packet away to it.
            self.before_ns = self.measured(tell)?;
        }
        if cause.reason != CompileReason::Write && self.activate_fallback_now(tell)? {
            if cause.reason == CompileReason::Quiet {
                self.interrupted();
            }
            tell(&SessionReport::Dropped { reason: "a write came before it was at work".into() });
            return Ok(());
        }
        let start = Instant::now();
        self.come_onto_hook(tell)?;
        let swap = start.elapsed();
        // Its own arrays are emptied only now that no packet begins there any more.
        drop(gone);
        self.as_active()?;
        if matches!(cause.reason, CompileReason::Start | CompileReason::Traffic) {
            self.fruitless = 0;
        }
        let is_last = tier == Tier::Thorough && !self.needs_fallback();
        if cause.reason == CompileReason::Quiet {
            self.quiet = QUIET;
        }
        self.thorough_at = (!is_last).then(|| Instant::now() + self.quiet);
        // Measurements of the variant before say nothing about this one.
        (self.before_ns, self.now_ns) =
            if judged { (self.before_ns, self.variant_ns(tell)?) } else { (None, None) };
        let first = self.guard.first_packet(generation);
        tell(&SessionReport::Specialised {
            generation,
            reason: cause.reason,
            write_ns: cause.write,
            latency_us: cause.write.zip(first).map(|(w, f)| f.saturating_sub(w) / 1000),
            compile_us: micros(compile),
            load_us: micros(load),
            swap_us: micros(swap),
            entries,
            slots,
            ns: self.now_ns,
        });
        if judged { self.judge(tell) } else { Ok(()) }
    }

    /// Puts the variant that was just approved onto the hook.
    fn come_onto_hook(&mut self, tell: &mut dyn FnMut(&SessionReport)) -> Result<(), LiveError> {
        let Some(active) = &self.active else { return Ok(()) };
        let program = active.program.try_clone()?;
        // A variant that answers a write while something is made beside must be swapped in by this thread.
        let done = if self.is_busy { self.swap(program, true) } else { self.change(program, true, tell) };
        if done.is_err() {
            self.guard.revoke();
            self.active = None;
            self.drop_fallback();
        }
        done?;
        if self.is_busy {
            self.settle();
            return Ok(());
        }
        if self.unanswered.is_some() {
            // It will hardly stay; if it does, the next look at the traffic makes up for it.
            return Ok(());
        }
        self.settle_beside(tell)
    }

    fn is_on_trial(&self) -> bool {
        self.active.as_ref().is_some_and(|active| active.on_trial)
    }

    /// Takes back a variant that is not measurably faster than the original. A single look may have been
    /// disturbed, so the least of several counts before that is done.
    pub(super) fn judge(&mut self, tell: &mut dyn FnMut(&SessionReport)) -> Result<(), LiveError> {
        let (mut least_before, mut least_now) = (self.before_ns, self.now_ns);
        for _ in 0..LOOKS {
            if let (Some(before), Some(now)) = (least_before, least_now)
                && worth(before, now)
            {
                (self.fruitless, self.unjudged) = (0, 0);
                return Ok(());
            }
            match self.time_both_programs(tell)? {
                VariantTiming::Told { original, variant } => {
                    let least = |a: Option<f64>, b: f64| Some(a.map_or(b, |a| a.min(b)));
                    (least_before, least_now) = (least(least_before, original), least(least_now, variant));
                    // Both reported times are from one look: the same moment, the same traffic.
                    (self.before_ns, self.now_ns) = (Some(original), Some(variant));
                }
                // The next look at the traffic will tell.
                VariantTiming::Disturbed => return Ok(()),
                VariantTiming::Untold => {}
            }
        }
        let why = match (least_before, least_now) {
            (Some(before), Some(now)) => {
                format!("{now:.1} ns per packet, where the original takes {before:.1}")
            }
            _ if self.unjudged < UNJUDGED && !self.is_on_trial() => {
                self.unjudged += 1;
                return Ok(());
            }
            _ => "too few packets to tell whether it is faster".to_owned(),
        };
        self.unjudged = 0;
        self.fruitless += 1;
        let had = self.active.as_ref().map(|a| (!a.caches.is_empty(), a.is_bulky));
        if let Some((caches, copies)) = had {
            self.give_up(caches, copies);
        }
        self.withdraw(why, tell)
    }
}

#[cfg(test)]
mod tests {
    use super::worth;

    #[test]
    fn gains_must_be_more_than_noise() {
        assert!(worth(118.0, 30.0) && worth(20.0, 17.9));
        assert!(!worth(20.0, 18.5), "less than the clock tells");
        assert!(!worth(200.0, 195.0), "less than three in a hundred");
        assert!(!worth(50.0, 60.0));
    }
}

//! Looks at the traffic: finds the hot keys, and checks that the running variant is still the faster.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use millstream_kernel::KernelMap;
use millstream_specializer::policy::{self, LookupStrategy, Tier};
use millstream_specializer::profile::SiteProfile;
use millstream_specializer::saved_profile::SavedProfile;
use millstream_specializer::transform::{LookupSite, SiteId};

use super::generations::LoadedVariant;
use super::guarded_program::MEASURE;
use super::loaded_programs::ProfilingVariant;
use super::profile_keeper::{self, ProfileKeeper};
use super::state_machine::SessionEvent;
use super::step::SessionStep;
use super::traffic_shift::HotKeyMisses;
use super::write_handling::{PendingCompile, WriteHandling};
use super::{LiveError, LiveSession};
use crate::guard::GuardError;
use crate::profile;
use crate::replay::sample::{self, PacketSample};
use crate::report::{CompileReason, SessionReport};

/// Packets that a burst must have seen for its hot keys to mean anything.
const FEWEST: u64 = 100;
/// Packets with which a burst ends: a key of one lookup in five hundred has had more than ten.
const ENOUGH: u64 = 8192;
/// Interval at which the packets that a burst has seen are counted.
const STEP: Duration = Duration::from_millis(1);
/// Number of the hottest keys that are compared if a whole map is in code.
const HOT_SET: usize = 16;

/// Longest wait for a writer before profiling goes on without the programs that are called.
const SHORT: Duration = Duration::from_millis(1);

/// Least gain for a variant to be kept, in nanoseconds and as a part of the original's time: the kernel's
/// clock cannot resolve less.
const LEAST_GAIN: (f64, f64) = (2.0, 0.03);

/// Looks at a variant that seems to be no faster before it is taken back.
const LOOKS: u32 = 6;
/// Consecutive looks at the traffic for which a variant may stay without a result.
const UNJUDGED: u32 = 5;
/// Comparisons with the original that writes may end, one after the other.
const DISTURBED: u32 = 8;

/// Times of variant and original.
#[derive(Clone, Copy, PartialEq, Debug)]
enum VariantTiming {
    /// Nanoseconds a packet.
    Told { original: f64, variant: f64 },
    /// Too few packets came.
    Untold,
    /// A write came between.
    Disturbed,
}

/// Returns true if a program that takes `now` is worth having in place of an original that takes `before`.
fn worth(before: f64, now: f64) -> bool {
    before - now >= LEAST_GAIN.0.max(LEAST_GAIN.1 * before)
}

/// Traffic as last seen.
#[derive(Debug, Default)]
pub(super) struct TrafficProfile {
    /// Packets that were sampled last.
    pub(super) samples: Arc<Vec<PacketSample>>,
    /// Number of packets when lookups were last counted.
    pub(super) packets: u64,
    /// Lookups that hot keys do not answer.
    pub(super) misses: HotKeyMisses,
    /// Profiles of other sessions, and for them.
    pub(super) profile: ProfileKeeper,
}

impl LiveSession<'_> {
    /// Judges the running variant, profiles where hot keys matter, and specialises anew if the traffic is no
    /// longer that for which the code was made. Without packets, nothing is touched.
    pub(super) fn look_at_traffic(
        &mut self,
        stop: &AtomicBool,
        tell: &mut dyn FnMut(&SessionReport),
    ) -> Result<(), LiveError> {
        if !self.guarded.hook.has_new_packets() {
            return Ok(());
        }
        self.guarded.reconsider();
        self.guarded.settle_beside(tell)?;
        self.judge_again(tell)?;
        if self.guarded.writes.is_urgent() {
            return Ok(());
        }
        if self.guarded.generations.active.is_some() && !self.traffic_matters() {
            self.guarded.schedule.fruitless += 1;
            return Ok(());
        }
        let Some((profiles, packets)) = self.profile(stop, tell)? else { return Ok(()) };
        let tries_again = self.limits.may_try_again();
        self.guarded.hook.note_look();
        if packets < FEWEST || self.guarded.writes.is_urgent() {
            return Ok(());
        }
        self.traffic.packets = packets;
        if let Some(share) = self.traffic.profile.fit(&profiles) {
            tell(&SessionReport::ProfileFit { share });
        }
        self.keep_profile(&profiles, packets, tell)?;
        let reason = match &self.guarded.generations.active {
            None => CompileReason::Start,
            Some(active) if tries_again || changed(active, &profiles, |site| self.has_hot_keys(site)) => {
                CompileReason::Traffic
            }
            Some(_) => {
                // The traffic is still that for which the code was made.
                self.traffic.misses = HotKeyMisses::default();
                self.guarded.schedule.fruitless += 1;
                return Ok(());
            }
        };
        self.respecialise(profiles, Tier::Quick, reason, None, tell)
    }

    /// Makes the first variant for the traffic that another session has seen.
    pub(super) fn start_from(
        &mut self,
        saved: &SavedProfile,
        tell: &mut dyn FnMut(&SessionReport),
    ) -> Result<(), LiveError> {
        if self.guarded.generations.active.is_some() {
            return Ok(());
        }
        let held = self.guarded.programs.arrays.read()?;
        self.guarded.programs.note_reached(&held);
        let (profiles, known) = saved.profiles(self.guarded.programs.compiler, self.eligible());
        tell(&SessionReport::ProfileLoaded {
            program: saved.program.clone(),
            age_s: profile_keeper::now().saturating_sub(saved.learnt_at),
            lookups: profiles.len(),
            known,
        });
        if known == 0 {
            return Ok(());
        }
        self.traffic.profile.expect(profiles.clone());
        self.respecialise(profiles, Tier::Quick, CompileReason::Profile, None, tell)
    }

    /// Keeps a profile for other sessions, if it is to be kept.
    fn keep_profile(
        &mut self,
        profiles: &[SiteProfile],
        packets: u64,
        tell: &mut dyn FnMut(&SessionReport),
    ) -> Result<(), LiveError> {
        let Some(file) = self.guarded.settings.profile.file.clone() else { return Ok(()) };
        let (compiler, program) = (self.guarded.programs.compiler, self.guarded.programs.original.name());
        let saved = SavedProfile::of(compiler, program, profiles, (packets, profile_keeper::now()));
        if let Some(due) = self.traffic.profile.take_if_due(saved) {
            self.guarded.run_in_background(
                WriteHandling::Follow,
                || profile_keeper::save(&due, &file),
                tell,
            )?;
        }
        Ok(())
    }

    /// Lookups whose keys are profiled: not those that a twin answers for all keys alike, and not those that
    /// the operator has excluded.
    fn profiled(&self) -> Vec<SiteId> {
        let twinned = |s: &LookupSite| {
            policy::may_have_shadow_table(self.guarded.programs.compiler, s, &self.limits.unfit)
        };
        let excluded = |s: &LookupSite| {
            self.guarded.settings.unprofiled.contains(&self.guarded.programs.compiler.declaration(s.map).name)
        };
        self.eligible().filter(|s| !twinned(s) && !excluded(s)).map(|s| s.id).collect()
    }

    /// The lookups that could be specialised, or have a cache.
    fn eligible(&self) -> impl Iterator<Item = &LookupSite> {
        self.guarded.tables.eligible(&self.guarded.programs)
    }

    /// Returns true if the keys of a lookup matter, and not only the words in them.
    fn has_hot_keys(&self, id: SiteId) -> bool {
        self.guarded.tables.has_hot_keys(self.guarded.programs.compiler, id)
    }

    /// Returns true if some lookups are specialised on hot keys, or could be.
    fn traffic_matters(&self) -> bool {
        !self.profiled().is_empty()
    }

    /// Runs the instrumented variant until it has seen enough, or its time is over. Returns a profile of each
    /// lookup that may be specialised, empty for those whose keys do not matter, and the number of packets
    /// that were seen.
    fn profile(
        &mut self,
        stop: &AtomicBool,
        tell: &mut dyn FnMut(&SessionReport),
    ) -> Result<Option<(Vec<SiteProfile>, u64)>, LiveError> {
        let held = self.guarded.programs.arrays.read()?;
        self.guarded.programs.note_reached(&held);
        let (wanted, compiler) = (self.profiled(), self.guarded.programs.compiler);
        let keeps_up =
            |made: &mut ProfilingVariant| made.sites == wanted && made.chain.refill(compiler, held);
        if !self.guarded.programs.profiling.as_mut().is_some_and(keeps_up) {
            self.guarded.programs.profiling = self.instrument(wanted, tell)?;
            if self.guarded.writes.is_urgent() {
                return Ok(None);
            }
        }
        // If the kernel refused loops, it is another compiler now.
        let compiler = self.guarded.programs.compiler;
        let Some(ProfilingVariant { program, sites, .. }) = &self.guarded.programs.profiling else {
            return Ok(None);
        };
        let (program, chosen) = (program.try_clone()?, sites.clone());
        let Some(sketch) = self.guarded.programs.loader.map(self.guarded.programs.compiler.sketch()) else {
            return Ok(None);
        };
        let (sketch, samples) =
            (sketch.try_clone()?, self.guarded.programs.loader.map(self.guarded.programs.compiler.samples()));
        let samples = samples.map(KernelMap::try_clone).transpose()?;
        let clear = || profile::clear(&sketch).and_then(|()| samples.as_ref().map_or(Ok(()), sample::clear));
        self.guarded.run_in_background(WriteHandling::Follow, clear, tell)??;
        let (back, specialised) =
            (self.guarded.current().try_clone()?, self.guarded.generations.active.is_some());
        let start = Instant::now();
        self.guarded.change(program, false, tell)?;
        let gathered = self.gather(start, stop, tell);
        if self.guarded.activate_fallback_now(tell)? {
            return Ok(None);
        }
        self.guarded.change(back, specialised, tell)?;
        self.guarded.settle_beside(tell)?;
        let packets = gathered?;
        let find = |id: &SiteId| compiler.sites().iter().find(|s| s.id == *id);
        let sites: Vec<&LookupSite> = chosen.iter().filter_map(find).collect();
        let read = || profile::read(&sketch, &sites, compiler.slots());
        let mut profiles = self.guarded.run_in_background(WriteHandling::Follow, read, tell)??;
        self.keep_samples()?;
        profiles.extend(self.eligible().filter(|s| !chosen.contains(&s.id)).map(|s| SiteProfile {
            site: s.id,
            total: 0,
            keys: Vec::new(),
        }));
        profiles.sort_by_key(|p| p.site);
        Ok(Some((profiles, packets)))
    }

    /// Takes the packets that the instrumented variant has kept, now that it has left the hook. If there are
    /// none, the earlier ones stay.
    fn keep_samples(&mut self) -> Result<(), LiveError> {
        let (Some(map), Some(kind)) = (
            self.guarded.programs.loader.map(self.guarded.programs.compiler.samples()),
            self.guarded.programs.compiler.packet_kind(),
        ) else {
            return Ok(());
        };
        let kept = sample::read(map, kind)?;
        if !kept.is_empty() {
            self.traffic.samples = Arc::new(kept);
        }
        Ok(())
    }

    /// Waits for enough packets, and counts them.
    fn gather(
        &mut self,
        start: Instant,
        stop: &AtomicBool,
        tell: &mut dyn FnMut(&SessionReport),
    ) -> Result<u64, LiveError> {
        loop {
            self.let_call();
            let Some(samples) = self.guarded.programs.loader.map(self.guarded.programs.compiler.samples())
            else {
                return Ok(0);
            };
            let packets = sample::seen(samples)?;
            let over = start.elapsed() >= self.guarded.settings.pace.patience || stop.load(Ordering::Relaxed);
            if packets >= ENOUGH || over || !self.guarded.pass(STEP, tell)? {
                return Ok(packets);
            }
        }
    }

    /// Lets the profiling variant make its calls, until the next write, if its arrays match the user's.
    fn let_call(&mut self) {
        let version = self.guarded.writes.guard.version();
        // An earlier reading proves nothing: the arrays may have held something else since, and hold the same
        // again.
        let Some(ProfilingVariant { chain, .. }) = &self.guarded.programs.profiling else { return };
        if !self.guarded.programs.arrays.is_empty()
            && self.guarded.writes.guard.begin(SHORT, &[]).is_some()
            && self.guarded.programs.arrays.read().is_ok_and(|now| chain.is_filled_by(&now))
        {
            self.guarded.settings.steps.at(SessionStep::Called);
            self.guarded.writes.guard.chain(version);
        }
    }

    /// Makes the instrumented variant, if there is anything to record.
    fn instrument(
        &mut self,
        sites: Vec<SiteId>,
        tell: &mut dyn FnMut(&SessionReport),
    ) -> Result<Option<ProfilingVariant>, LiveError> {
        if self.eligible().next().is_none() {
            return Ok(None);
        }
        let job = self.compile_job(&[], Tier::Quick)?;
        let (task, compiler) =
            (PendingCompile::new(Tier::Quick, CompileReason::Traffic), self.guarded.programs.compiler);
        let (made, learnt) =
            self.guarded.run_in_background(WriteHandling::Serve(&task), || job.instrumented(&sites), tell)?;
        self.take_over(&learnt);
        match made {
            Ok((program, chain)) => Ok(Some(ProfilingVariant { program, sites, chain })),
            Err(reason) if !std::ptr::eq(compiler, self.guarded.programs.compiler) => {
                tracing::debug!("instrumented variant: {reason}");
                let sites = self.profiled();
                self.instrument(sites, tell)
            }
            Err(reason) => {
                tell(&SessionReport::Dropped { reason: format!("instrumented variant: {reason}") });
                Ok(None)
            }
        }
    }

    /// Takes the variant back if it has stopped being faster than the original. One that was turned off
    /// meanwhile, by a write whose event was lost or by measurements, is turned on again.
    pub(super) fn judge_again(&mut self, tell: &mut dyn FnMut(&SessionReport)) -> Result<(), LiveError> {
        if self.guarded.settings.measure && self.guarded.variant_runs() {
            match self.time_both_programs(tell)? {
                VariantTiming::Told { original, variant } => {
                    (self.guarded.times.before_ns, self.guarded.times.now_ns) =
                        (Some(original), Some(variant));
                }
                VariantTiming::Untold => {
                    (self.guarded.times.before_ns, self.guarded.times.now_ns) = (None, None)
                }
                VariantTiming::Disturbed => {}
            }
            if self.guarded.variant_runs() {
                self.judge(tell)?;
            }
        }
        if self.guarded.writes.is_urgent() {
            return Ok(());
        }
        self.respond(SessionEvent::Inspection, None, tell)
    }

    /// Measures the nanoseconds per packet of the original and of the variant on the current traffic.
    /// Meanwhile the guard turns packets away from the variant for a moment, so that they take the original
    /// in it.
    fn time_both_programs(
        &mut self,
        tell: &mut dyn FnMut(&SessionReport),
    ) -> Result<VariantTiming, LiveError> {
        let now = self.guarded.variant_ns(tell)?;
        if !self.guarded.variant_runs() {
            return Ok(VariantTiming::Disturbed);
        }
        self.guarded.writes.guard.revoke();
        // A write ends it, but not for ever: a slower variant must be found out even if writes never cease.
        let is_patient = self.judge.disturbed >= DISTURBED;
        let mut wrote = false;
        let before = self.guarded.times.clock.measure(self.guarded.accounted(), MEASURE, |time| {
            if is_patient {
                std::thread::sleep(time);
            } else {
                wrote = self.guarded.writes.guard.wait(time)?;
            }
            Ok::<bool, GuardError>(!wrote)
        })?;
        let runs_again = self.guarded.follow(None, tell)?;
        self.judge.disturbed = if wrote { self.judge.disturbed + 1 } else { 0 };
        Ok(match before.zip(now) {
            _ if wrote || !runs_again => VariantTiming::Disturbed,
            Some((original, variant)) => VariantTiming::Told { original, variant },
            None => VariantTiming::Untold,
        })
    }

    /// Takes back a variant that is not measurably faster than the original. A single look may have been
    /// disturbed, so the least of several counts before that is done.
    pub(super) fn judge(&mut self, tell: &mut dyn FnMut(&SessionReport)) -> Result<(), LiveError> {
        let (mut least_before, mut least_now) = (self.guarded.times.before_ns, self.guarded.times.now_ns);
        for _ in 0..LOOKS {
            if let (Some(before), Some(now)) = (least_before, least_now)
                && worth(before, now)
            {
                (self.guarded.schedule.fruitless, self.judge.unjudged) = (0, 0);
                return Ok(());
            }
            match self.time_both_programs(tell)? {
                VariantTiming::Told { original, variant } => {
                    let least = |a: Option<f64>, b: f64| Some(a.map_or(b, |a| a.min(b)));
                    (least_before, least_now) = (least(least_before, original), least(least_now, variant));
                    // Both reported times are from one look: the same moment, the same traffic.
                    (self.guarded.times.before_ns, self.guarded.times.now_ns) =
                        (Some(original), Some(variant));
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
            _ if self.judge.unjudged < UNJUDGED && !self.guarded.generations.is_on_trial() => {
                self.judge.unjudged += 1;
                return Ok(());
            }
            _ => "too few packets to tell whether it is faster".to_owned(),
        };
        self.judge.unjudged = 0;
        self.guarded.schedule.fruitless += 1;
        let had = self.guarded.generations.active.as_ref().map(|a| (!a.caches.is_empty(), a.is_bulky));
        if let Some((caches, copies)) = had {
            self.give_up(caches, copies);
        }
        self.guarded.withdraw(why, tell)
    }
}

/// Returns true if the keys in code have much less of the traffic than other keys would, or if other words of
/// keys are worth a test.
fn changed(active: &LoadedVariant, profiles: &[SiteProfile], has_hot_keys: impl Fn(SiteId) -> bool) -> bool {
    let now_of = |site| profiles.iter().find(|p| p.site == site);
    if active.tried.iter().any(|t| now_of(t.site).is_some_and(|now| t.has_turned(now))) {
        return true;
    }
    profiles.iter().filter(|now| has_hot_keys(now.site)).any(|now| {
        let put = active.keys.get(&now.site);
        if put.is_some_and(LookupStrategy::is_even) {
            return false;
        }
        let size = put.and_then(LookupStrategy::hot_keys).map_or(HOT_SET, <[_]>::len);
        let Some(then) = active.profiles.iter().find(|p| p.site == now.site) else { return true };
        let held = now.share(then.keys.iter().take(size).map(|(k, _)| k.as_slice()));
        let best = now.share(now.keys.iter().take(size).map(|(k, _)| k.as_slice()));
        held < 0.8 * best
    })
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

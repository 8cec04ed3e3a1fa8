//! Looks at the traffic: finds the hot keys, and checks that the running variant is still the faster.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use millstream_kernel::{KernelMap, grace_period};
use millstream_specializer::policy::{self, LookupStrategy, Tier};
use millstream_specializer::profile::SiteProfile;
use millstream_specializer::transform::{LookupSite, SiteId};

use super::background::{PendingCompile, WriteHandling};
use super::traffic_shift::HotKeyMisses;
use super::{LiveError, LiveSession, LoadedVariant, MEASURE, ProfilingVariant};
use crate::guard::GuardError;
use crate::profile;
use crate::replay::sample;
use crate::report::{CompileReason, SessionReport};
use crate::snapshot::SpecializableMap;
use crate::watched_inner_maps::WatchedInnerMaps;

/// Packets that a burst must have seen for its hot keys to mean anything.
const FEWEST: u64 = 100;
/// Packets with which a burst ends: a key of one lookup in five hundred has had more than ten.
const ENOUGH: u64 = 8192;
/// Interval at which the packets that a burst has seen are counted.
const STEP: Duration = Duration::from_millis(1);
/// Comparisons with the original that writes may end, one after the other.
const DISTURBED: u32 = 8;
/// Number of the hottest keys that are compared if a whole map is in code.
const HOT_SET: usize = 16;

/// Times of variant and original.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) enum VariantTiming {
    /// Nanoseconds a packet.
    Told { original: f64, variant: f64 },
    /// Too few packets came.
    Untold,
    /// A write came between.
    Disturbed,
}

impl LiveSession<'_> {
    /// Judges the running variant, profiles where hot keys matter, and specialises anew if the traffic is no
    /// longer that for which the code was made. Without packets, nothing is touched.
    pub(super) fn look_at_traffic(
        &mut self,
        stop: &AtomicBool,
        tell: &mut dyn FnMut(&SessionReport),
    ) -> Result<(), LiveError> {
        let count = self.received.count();
        if self.received.known() && count == std::mem::replace(&mut self.looked_at, count) {
            return Ok(());
        }
        self.reconsider();
        self.settle_beside(tell)?;
        self.judge_again(tell)?;
        if self.is_wanted() {
            return Ok(());
        }
        if self.active.is_some() && !self.traffic_matters() {
            self.fruitless += 1;
            return Ok(());
        }
        let Some((profiles, packets)) = self.profile(stop, tell)? else { return Ok(()) };
        let tries_again = self.may_try_again();
        self.looked_at = self.received.count();
        if packets < FEWEST || self.is_wanted() {
            return Ok(());
        }
        self.profiled = packets;
        let reason = match &self.active {
            None => CompileReason::Start,
            Some(active) if tries_again || changed(active, &profiles, |site| self.has_hot_keys(site)) => {
                CompileReason::Traffic
            }
            Some(_) => {
                // The traffic is still that for which the code was made.
                self.hits = HotKeyMisses::default();
                self.fruitless += 1;
                return Ok(());
            }
        };
        self.respecialise(profiles, Tier::Quick, reason, None, tell)
    }

    /// Takes the variant back if it has stopped being faster than the original. One that was turned off
    /// meanwhile, by a write whose event was lost or by measurements, is turned on again.
    fn judge_again(&mut self, tell: &mut dyn FnMut(&SessionReport)) -> Result<(), LiveError> {
        if self.settings.measure && self.variant_runs() {
            match self.time_both_programs(tell)? {
                VariantTiming::Told { original, variant } => {
                    (self.before_ns, self.now_ns) = (Some(original), Some(variant));
                }
                VariantTiming::Untold => (self.before_ns, self.now_ns) = (None, None),
                VariantTiming::Disturbed => {}
            }
            if self.variant_runs() {
                self.judge(tell)?;
            }
        }
        if self.is_wanted() {
            return Ok(());
        }
        let Some(active) = &self.active else { return Ok(()) };
        let profiles = active.profiles.clone();
        if self.variant_runs() || self.follow(None, tell)? || self.activate_fallback(None, tell)? {
            return Ok(());
        }
        self.respecialise(profiles, Tier::Quick, CompileReason::Write, None, tell)
    }

    pub(super) fn variant_runs(&self) -> bool {
        self.active.as_ref().is_some_and(|a| self.guard.approved() == Some(a.token()))
    }

    /// Measures the nanoseconds per packet of the original and of the variant on the current traffic.
    /// Meanwhile the guard turns packets away from the variant for a moment, so that they take the original
    /// in it.
    pub(super) fn time_both_programs(
        &mut self,
        tell: &mut dyn FnMut(&SessionReport),
    ) -> Result<VariantTiming, LiveError> {
        let now = self.variant_ns(tell)?;
        if !self.variant_runs() {
            return Ok(VariantTiming::Disturbed);
        }
        self.guard.revoke();
        // A write ends it, but not for ever: a slower variant must be found out even if writes never cease.
        let is_patient = self.disturbed >= DISTURBED;
        let mut wrote = false;
        let before = self.clock.measure(self.current(), MEASURE, |time| {
            if is_patient {
                std::thread::sleep(time);
            } else {
                wrote = self.guard.wait(time)?;
            }
            Ok::<bool, GuardError>(!wrote)
        })?;
        let runs_again = self.follow(None, tell)?;
        self.disturbed = if wrote { self.disturbed + 1 } else { 0 };
        Ok(match before.zip(now) {
            _ if wrote || !runs_again => VariantTiming::Disturbed,
            Some((original, variant)) => VariantTiming::Told { original, variant },
            None => VariantTiming::Untold,
        })
    }

    /// Measures the nanoseconds per packet of the program on the hook, with its caches as full as they are in
    /// use: each write and each measurement empties them.
    pub(super) fn variant_ns(
        &mut self,
        tell: &mut dyn FnMut(&SessionReport),
    ) -> Result<Option<f64>, LiveError> {
        let cold = self.active.as_ref().map_or(Duration::ZERO, |active| active.caches.cold());
        if !self.pass(cold, tell)? {
            return Ok(None);
        }
        self.measured(tell)
    }

    /// Measures the nanoseconds per packet of the program on the hook. `None` if too few packets came, or a
    /// write must be answered first.
    pub(super) fn measured(
        &mut self,
        tell: &mut dyn FnMut(&SessionReport),
    ) -> Result<Option<f64>, LiveError> {
        let (clock, program) = (self.clock, self.current().try_clone()?);
        clock.measure(&program, MEASURE, |time| self.pass(time, tell))
    }

    /// Lookups whose keys are profiled: not those that a twin answers for all keys alike, and not those that
    /// the operator has excluded.
    fn profiled(&self) -> Vec<SiteId> {
        let twinned = |s: &LookupSite| policy::may_have_shadow_table(self.compiler, s, &self.unfit);
        let excluded =
            |s: &LookupSite| self.settings.unprofiled.contains(&self.compiler.declaration(s.map).name);
        self.eligible().filter(|s| !twinned(s) && !excluded(s)).map(|s| s.id).collect()
    }

    /// The lookups that could be specialised, or have a cache.
    pub(super) fn eligible(&self) -> impl Iterator<Item = &LookupSite> {
        let nested =
            |s: &LookupSite, is: &dyn Fn(&WatchedInnerMaps) -> bool| self.nested.get(&s.map).is_some_and(is);
        let may_have =
            move |s: &LookupSite| self.stateful.contains_key(&s.map) || nested(s, &|n| n.has_caches);
        let cached = move |s: &LookupSite| may_have(s) && s.is_comparable() && self.compiler.may_cache(s);
        let known = move |s: &LookupSite| nested(s, &|n| n.is_known) && s.is_comparable();
        let may = move |s: &&LookupSite| policy::eligible(s, &self.sources) || cached(s) || known(s);
        self.compiler.sites().iter().filter(move |s| self.is_reached(s)).filter(may)
    }

    /// Returns true if the keys of a lookup matter, and not only the words in them: if nothing is known of
    /// its map but absent keys, they do not.
    fn has_hot_keys(&self, id: SiteId) -> bool {
        let site = self.compiler.sites().iter().find(|site| site.id == id);
        site.and_then(|site| self.sources.get(&site.map)).is_none_or(SpecializableMap::is_known)
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
        let held = self.links.read()?;
        self.note_reached(&held);
        let (wanted, compiler) = (self.profiled(), self.compiler);
        let keeps_up =
            |made: &mut ProfilingVariant| made.sites == wanted && made.chain.refill(compiler, held);
        if !self.instrumented.as_mut().is_some_and(keeps_up) {
            self.instrumented = self.instrument(wanted, tell)?;
            if self.is_wanted() {
                return Ok(None);
            }
        }
        // If the kernel refused loops, it is another compiler now.
        let compiler = self.compiler;
        let Some(ProfilingVariant { program, sites, .. }) = &self.instrumented else { return Ok(None) };
        let (program, chosen) = (program.try_clone()?, sites.clone());
        let Some(sketch) = self.session.map(self.compiler.sketch()) else { return Ok(None) };
        let (sketch, samples) = (sketch.try_clone()?, self.session.map(self.compiler.samples()));
        let samples = samples.map(KernelMap::try_clone).transpose()?;
        let clear = || profile::clear(&sketch).and_then(|()| samples.as_ref().map_or(Ok(()), sample::clear));
        self.run_in_background(WriteHandling::Follow, clear, tell)??;
        let (back, specialised) = (self.current().try_clone()?, self.active.is_some());
        let start = Instant::now();
        self.change(program, false, tell)?;
        let gathered = self.gather(start, stop, tell);
        if self.activate_fallback_now(tell)? {
            return Ok(None);
        }
        self.change(back, specialised, tell)?;
        self.settle_beside(tell)?;
        let packets = gathered?;
        let find = |id: &SiteId| compiler.sites().iter().find(|s| s.id == *id);
        let sites: Vec<&LookupSite> = chosen.iter().filter_map(find).collect();
        let read = || profile::read(&sketch, &sites, compiler.slots());
        let mut profiles = self.run_in_background(WriteHandling::Follow, read, tell)??;
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
        let (Some(map), Some(kind)) =
            (self.session.map(self.compiler.samples()), self.compiler.packet_kind())
        else {
            return Ok(());
        };
        let kept = sample::read(map, kind)?;
        if !kept.is_empty() {
            self.samples = Arc::new(kept);
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
            let Some(samples) = self.session.map(self.compiler.samples()) else { return Ok(0) };
            let packets = sample::seen(samples)?;
            let over = start.elapsed() >= self.settings.patience || stop.load(Ordering::Relaxed);
            if packets >= ENOUGH || over || !self.pass(STEP, tell)? {
                return Ok(packets);
            }
        }
    }

    /// Makes the variant's caches usable again, after a grace period.
    pub(super) fn settle_beside(&mut self, tell: &mut dyn FnMut(&SessionReport)) -> Result<(), LiveError> {
        if self.active.as_ref().is_some_and(|active| active.caches.is_open()) {
            let has_passed =
                self.run_in_background(WriteHandling::Follow, || grace_period().is_ok(), tell)?;
            if let Some(active) = self.active.as_mut().filter(|_| has_passed && !self.is_ahead) {
                active.caches.close();
            }
        }
        Ok(())
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
        let workshop = self.workshop(&[], Tier::Quick)?;
        let (task, compiler) = (PendingCompile::new(Tier::Quick, CompileReason::Traffic), self.compiler);
        let (made, learnt) =
            self.run_in_background(WriteHandling::Serve(&task), || workshop.instrumented(&sites), tell)?;
        self.take_over(&learnt);
        match made {
            Ok((program, chain)) => Ok(Some(ProfilingVariant { program, sites, chain })),
            Err(reason) if !std::ptr::eq(compiler, self.compiler) => {
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
}

/// Returns true if the keys in code have much less of the traffic than other keys would, or if other words of
/// keys are worth a test.
fn changed(active: &LoadedVariant, profiles: &[SiteProfile], has_hot_keys: impl Fn(SiteId) -> bool) -> bool {
    let now_of = |site| profiles.iter().find(|p| p.site == site);
    if active.tried.iter().any(|t| now_of(t.site).is_some_and(|now| t.has_turned(now))) {
        return true;
    }
    profiles.iter().filter(|now| has_hot_keys(now.site)).any(|now| {
        let size = match active.keys.get(&now.site) {
            Some(LookupStrategy::Twin | LookupStrategy::Cached) => return false,
            Some(LookupStrategy::Hot(keys)) => keys.len(),
            Some(LookupStrategy::Whole) | None => HOT_SET,
        };
        let Some(then) = active.profiles.iter().find(|p| p.site == now.site) else { return true };
        let held = now.share(then.keys.iter().take(size).map(|(k, _)| k.as_slice()));
        let best = now.share(now.keys.iter().take(size).map(|(k, _)| k.as_slice()));
        held < 0.8 * best
    })
}

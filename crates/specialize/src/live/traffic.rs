//! Looks at the traffic: which keys are hot, and whether what runs is still the faster.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use millstream_object::FuncId;

use super::chain::Held;
use super::shift::Hits;
use super::{Active, Instrumented, Live, LiveError, MEASURE, explain};
use crate::judge::sample;
use crate::policy::{self, Put, Tier};
use crate::profile::{self, SiteProfile};
use crate::report::{Reason, Report};
use crate::transform::{Keep, Site, SiteId};

/// Packets that a burst must have seen for its hot keys to mean anything.
const FEWEST: u64 = 100;
/// Packets with which a burst ends: whoever has one lookup in five hundred has had more than ten.
const ENOUGH: u64 = 8192;
/// From one look at how many packets a burst has seen to the next.
const STEP: Duration = Duration::from_millis(1);
/// How many of the hottest keys are compared where a whole map is in code.
const HOT_SET: usize = 16;

impl Live<'_> {
    /// Judges what runs, profiles where hot keys matter, and specialises anew if the traffic is no longer what the code was
    /// made for. Without packets, nothing is touched.
    pub(super) fn look_at_traffic(
        &mut self,
        stop: &AtomicBool,
        tell: &mut dyn FnMut(&Report),
    ) -> Result<(), LiveError> {
        let count = self.received.count();
        if self.received.known() && count == std::mem::replace(&mut self.looked_at, count) {
            return Ok(());
        }
        self.reconsider();
        self.judge_again(tell)?;
        if self.active.is_some() && !self.traffic_matters() {
            self.fruitless += 1;
            return Ok(());
        }
        let Some((profiles, packets)) = self.profile(stop, tell)? else { return Ok(()) };
        let tries_again = self.may_try_again();
        self.looked_at = self.received.count();
        if packets < FEWEST {
            return Ok(());
        }
        self.profiled = packets;
        let reason = match &self.active {
            None => Reason::Start,
            Some(active) if tries_again || changed(active, &profiles) => Reason::Traffic,
            Some(_) => {
                // It is the traffic that the code was made for.
                self.hits = Hits::default();
                self.fruitless += 1;
                return Ok(());
            }
        };
        self.respecialise(profiles, Tier::Quick, reason, None, tell)
    }

    /// Takes the variant back if it has stopped being faster than the original. One that was turned off meanwhile, by a
    /// write whose event was lost or by measurements, is turned on again.
    fn judge_again(&mut self, tell: &mut dyn FnMut(&Report)) -> Result<(), LiveError> {
        if self.settings.measure && self.variant_runs() {
            (self.before_ns, self.now_ns) = self.weigh(tell)?.unzip();
            if self.variant_runs() {
                self.judge(tell)?;
            }
        }
        let Some(active) = &self.active else { return Ok(()) };
        let profiles = active.profiles.clone();
        if self.variant_runs() || self.follow(None, tell)? || self.stand_in(None, tell)? {
            return Ok(());
        }
        self.respecialise(profiles, Tier::Quick, Reason::Write, None, tell)
    }

    pub(super) fn variant_runs(&self) -> bool {
        self.active.as_ref().is_some_and(|a| self.guard.approved() == Some(a.token()))
    }

    /// Nanoseconds a packet of the original and of the variant on the traffic of now. The guard turns packets away from the
    /// variant for a moment, so that they take the original in it. `None` if they cannot be told, or a write came between.
    pub(super) fn weigh(&mut self, tell: &mut dyn FnMut(&Report)) -> Result<Option<(f64, f64)>, LiveError> {
        let now = self.variant_ns();
        if !self.variant_runs() {
            return Ok(None);
        }
        self.guard.revoke();
        let before = self.clock.measure(self.current(), MEASURE);
        let runs_again = self.follow(None, tell)?;
        Ok(before.zip(now).filter(|_| runs_again))
    }

    /// Nanoseconds a packet of what is on the hook, its caches as full as they are at work: each write and each measurement empties them.
    pub(super) fn variant_ns(&mut self) -> Option<f64> {
        let cold = self.active.as_ref().map_or(Duration::ZERO, |active| active.caches.cold());
        std::thread::sleep(cold);
        self.clock.measure(self.current(), MEASURE)
    }

    /// The lookups of which it matters for whom they are: not those that a twin answers for all keys alike, and not those
    /// that the operator has excluded.
    fn profiled(&self) -> Vec<SiteId> {
        let twinned = |s: &Site| policy::alike(self.compiler, s, &self.unfit);
        let excluded = |s: &Site| self.settings.unprofiled.contains(&self.compiler.declaration(s.map).name);
        self.eligible().filter(|s| !twinned(s) && !excluded(s)).map(|s| s.id).collect()
    }

    /// The lookups that could be specialised, or have a cache.
    pub(super) fn eligible(&self) -> impl Iterator<Item = &Site> {
        let may_have = |s: &Site| self.stateful.contains_key(&s.map) || self.nested.contains_key(&s.map);
        let cached = move |s: &Site| may_have(s) && s.is_comparable() && self.compiler.may_cache(s);
        let may = move |s: &&Site| policy::eligible(s, &self.sources) || cached(s);
        self.compiler.sites().iter().filter(move |s| self.is_reached(s)).filter(may)
    }

    /// Whether some lookups are specialised on hot keys, or could be.
    fn traffic_matters(&self) -> bool {
        !self.profiled().is_empty()
    }

    /// Runs the instrumented variant until it has seen enough, or for as long as there is patience. Gives a profile of each
    /// lookup that may be specialised, empty of those whose keys do not matter, and the number of packets that were seen.
    fn profile(
        &mut self,
        stop: &AtomicBool,
        tell: &mut dyn FnMut(&Report),
    ) -> Result<Option<(Vec<SiteProfile>, u64)>, LiveError> {
        let held = self.links.read()?;
        self.note_reached(&held);
        let (wanted, compiler) = (self.profiled(), self.compiler);
        let keeps_up =
            |made: &mut Instrumented| made.sites == wanted && made.chain.refill(compiler, held.clone());
        if !self.instrumented.as_mut().is_some_and(keeps_up) {
            self.instrumented = self.instrument(wanted, &held, tell)?;
        }
        let Some(Instrumented { program, sites, .. }) = &self.instrumented else { return Ok(None) };
        let (program, chosen) = (program.try_clone()?, sites.clone());
        let Some(sketch) = self.session.map(self.compiler.sketch()) else { return Ok(None) };
        profile::clear(sketch)?;
        if let Some(samples) = self.session.map(self.compiler.samples()) {
            sample::clear(samples)?;
        }
        let (back, specialised) = (self.current().try_clone()?, self.active.is_some());
        let start = Instant::now();
        self.swap(program, false)?;
        let gathered = self.gather(&chosen, &held, start, stop);
        self.swap(back, specialised)?;
        self.settle();
        let (mut profiles, packets) = gathered?;
        self.keep_samples()?;
        profiles.extend(self.eligible().filter(|s| !chosen.contains(&s.id)).map(|s| SiteProfile {
            site: s.id,
            total: 0,
            keys: Vec::new(),
        }));
        profiles.sort_by_key(|p| p.site);
        Ok(Some((profiles, packets)))
    }

    /// Takes the packets that the instrumented variant has kept, now that it has left the hook. None: those of before stay.
    fn keep_samples(&mut self) -> Result<(), LiveError> {
        let (Some(map), Some(kind)) =
            (self.session.map(self.compiler.samples()), self.compiler.packet_kind())
        else {
            return Ok(());
        };
        let kept = sample::read(map, kind)?;
        if !kept.is_empty() {
            self.samples = kept;
        }
        Ok(())
    }

    /// Waits for enough packets. The sketch is read once, in the end: reading it takes longer than seeing them.
    fn gather(
        &mut self,
        chosen: &[SiteId],
        held: &Held,
        start: Instant,
        stop: &AtomicBool,
    ) -> Result<(Vec<SiteProfile>, u64), LiveError> {
        let compiler = self.compiler;
        let find = |id: &SiteId| compiler.sites().iter().find(|s| s.id == *id);
        let sites: Vec<&Site> = chosen.iter().filter_map(find).collect();
        loop {
            self.let_call(held);
            let map = |id| self.session.map(id);
            let (Some(sketch), Some(samples)) = (map(compiler.sketch()), map(compiler.samples())) else {
                return Ok((Vec::new(), 0));
            };
            let packets = sample::seen(samples)?;
            let over = start.elapsed() >= self.settings.patience || stop.load(Ordering::Relaxed);
            if packets >= ENOUGH || over {
                return Ok((profile::read(sketch, &sites, self.compiler.slots())?, packets));
            }
            std::thread::sleep(STEP);
        }
    }

    /// The instrumented variant, if there is anything to write down.
    fn instrument(
        &mut self,
        sites: Vec<SiteId>,
        held: &Held,
        tell: &mut dyn FnMut(&Report),
    ) -> Result<Option<Instrumented>, LiveError> {
        if self.eligible().next().is_none() {
            return Ok(None);
        }
        let mut callees = self.reached.clone();
        callees.remove(&self.compiler.program());
        let callees: Vec<FuncId> = callees.into_iter().collect();
        let mut make = |keep| {
            let made = self.compiler.instrumented(&sites, keep, &callees).map_err(|e| e.to_string());
            made.and_then(|v| self.load_chain(v, held).map_err(|e| explain(&e)))
        };
        // Older kernels have no way to keep packets.
        let loaded = make(Keep::Packets).or_else(|why| {
            tracing::debug!("keeping no packets: {why}");
            make(Keep::Count)
        });
        self.call_as_before()?;
        match loaded {
            Ok((program, _, chain)) => {
                self.ours.insert(&program)?;
                Ok(Some(Instrumented { program, sites, chain }))
            }
            Err(reason) => {
                tell(&Report::Dropped { reason: format!("instrumented variant: {reason}") });
                Ok(None)
            }
        }
    }
}

/// Whether the keys in code have much less of the traffic than other keys would, or other words of keys are worth a test.
fn changed(active: &Active, profiles: &[SiteProfile]) -> bool {
    let now_of = |site| profiles.iter().find(|p| p.site == site);
    if active.tried.iter().any(|t| now_of(t.site).is_some_and(|now| t.has_turned(now))) {
        return true;
    }
    profiles.iter().any(|now| {
        let size = match active.keys.get(&now.site) {
            Some(Put::Twin | Put::Cached) => return false,
            Some(Put::Hot(keys)) => keys.len(),
            Some(Put::Whole) | None => HOT_SET,
        };
        let Some(then) = active.profiles.iter().find(|p| p.site == now.site) else { return true };
        let held = now.share(then.keys.iter().take(size).map(|(k, _)| k.as_slice()));
        let best = now.share(now.keys.iter().take(size).map(|(k, _)| k.as_slice()));
        held < 0.8 * best
    })
}

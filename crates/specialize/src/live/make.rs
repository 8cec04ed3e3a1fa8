//! Variants: made, approved, put onto the hook, judged.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use millstream_ir::Map;
use millstream_kernel::Program;
use rustc_hash::FxHashMap;

use super::admit::{Admission, Shape};
use super::chain::Held;
use super::spared::Spared;
use super::{ATTEMPTS, Active, Live, LiveError, MEASURE, PATIENCE, QUIET, explain, micros};
use crate::caches::Caches;
use crate::contents::{Dirty, Observed, Present, Record};
use crate::guard::{Slots, Snapshot};
use crate::policy::{self, Known, Planned, Tier};
use crate::profile::SiteProfile;
use crate::report::{Reason, Report};
use crate::transform::{Lookup, Plan};
use crate::twins::Twins;
use crate::variant::{Variant, VariantError, Wanted, token};

/// A variant that could be put onto the hook.
pub(super) struct Candidate {
    pub(super) shape: Shape,
    pub(super) plan: Plan,
    pub(super) active: Active,
    pub(super) making: Making,
    /// Whether there would be copies of what follows lookups if there were more time.
    is_short: bool,
}

/// The code of a variant, and what it was made of.
struct Code {
    planned: Planned,
    variant: Variant,
    twins: Twins,
    record: Record,
    /// What program arrays held.
    held: Held,
    is_short: bool,
    compile: Duration,
}

/// What making a variant took, and how much of tables is in it.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Making {
    compile: Duration,
    load: Duration,
    entries: u32,
}

/// Why a generation is made.
#[derive(Clone, Copy)]
pub(super) struct Cause {
    pub(super) reason: Reason,
    /// The write that it answers.
    pub(super) write: Option<u64>,
}

impl Candidate {
    /// That it stands by.
    pub(super) fn stands_by(&self) -> Report {
        let (Making { compile, load, .. }, active) = (self.making, &self.active);
        Report::StandsBy {
            generation: active.generation,
            compile_us: micros(compile),
            load_us: micros(load),
            slots: active.linked.insns.len(),
        }
    }
}

/// Nanoseconds, and the part of the original's time, by which a variant must be faster to be kept: less cannot be told
/// from nothing by the kernel's clock.
const LEAST_GAIN: (f64, f64) = (2.0, 0.03);

/// How often a variant that seems to be no faster is looked at before it is taken back.
const LOOKS: u32 = 6;
/// How often a candidate is brought up to date before it is made anew.
const CATCHING_UP: u32 = 10;
/// Machine code, by the original's, from which on copies of what follows lookups may cost more than they gain. A variant has the
/// original in it.
const GROWN: u32 = 3;
/// Slots from which on code with copies of what follows lookups is not made where packets wait: the kernel follows all ways through
/// them, each time it is loaded, and it is loaded several times to be judged.
const LONG: usize = 6_000;
/// Instructions of copies of what follows lookups below which there are none, where the kernel refuses more.
const FEWEST_COPIES: usize = 1_000;
/// For how long there are no caches, or copies of what follows lookups, after some did not pay.
const GIVEN_UP: Duration = Duration::from_secs(20);
/// For how long it must be quiet after writes came again and again while code was made.
const LONG_QUIET: Duration = Duration::from_secs(8);
/// For how many looks at the traffic, one after the other, a variant may stay of which nothing can be told.
const UNJUDGED: u32 = 5;

/// Whether a program that takes `now` is worth having where the original takes `before`.
fn worth(before: f64, now: f64) -> bool {
    before - now >= LEAST_GAIN.0.max(LEAST_GAIN.1 * before)
}

impl Live<'_> {
    /// Makes a generation for this traffic and the maps as they are, and puts it onto the hook.
    pub(super) fn respecialise(
        &mut self,
        profiles: Vec<SiteProfile>,
        tier: Tier,
        reason: Reason,
        write: Option<u64>,
        tell: &mut dyn FnMut(&Report),
    ) -> Result<(), LiveError> {
        for attempt in 1..=ATTEMPTS {
            let generation = self.generation + 1;
            let Some(snapshot) = self.begin(&Spared::default(), tell)? else {
                tell(&Report::Dropped { reason: "a writer stays inside bpf(2)".into() });
                return Ok(());
            };
            // What is made now is made of the maps as they are now: only what runs already is behind.
            let unanswered = std::mem::take(&mut self.seen.dirty);
            let mut candidate = match self.candidate(generation, &profiles, tier, &snapshot) {
                Ok(Some(candidate)) => candidate,
                other => {
                    self.seen.dirty.merge(unanswered);
                    self.not_made(other.err(), tier, tell);
                    return Ok(());
                }
            };
            match self.admits(&candidate, tier, &profiles, &snapshot, tell) {
                Admission::Granted => {}
                // Where writes never cease, what can be told is told by live traffic.
                Admission::Void if attempt == ATTEMPTS && tier == Tier::Quick => {}
                Admission::Void => {
                    self.seen.dirty.merge(unanswered);
                    if tier == Tier::Thorough {
                        self.interrupted();
                        return Ok(());
                    }
                    continue;
                }
                Admission::Refused => {
                    self.seen.dirty.merge(unanswered);
                    // It may be the copies that pay.
                    if candidate.is_short {
                        self.is_patient = true;
                        continue;
                    }
                    if self.give_up(!candidate.active.caches.is_empty(), candidate.active.is_bulky) {
                        continue;
                    }
                    // One look at the traffic, however many forms were tried. It says nothing of copies for other traffic.
                    self.fruitless += 1;
                    self.uncopied = None;
                    return Ok(());
                }
            }
            self.guard.clear_first_packet(generation);
            if let Some(dirty) = self.approve(snapshot, &mut candidate.active, &unanswered) {
                let Candidate { active, making, .. } = candidate;
                return self.install(active, making, Cause { reason, write }, dirty, tell);
            }
            self.seen.dirty.merge(unanswered);
        }
        tell(&Report::Dropped { reason: "the maps change faster than code can be made".into() });
        Ok(())
    }

    /// A write came while something was made for which there is time. The next quiet moment will do, and after that a longer one: packets have
    /// waited for the answer.
    pub(super) fn interrupted(&mut self) {
        self.quiet = (2 * self.quiet).min(LONG_QUIET);
        self.thorough_at = Some(Instant::now() + self.quiet);
    }

    /// Tells why there is no candidate: an error, or nothing to be done.
    fn not_made(&mut self, error: Option<String>, tier: Tier, tell: &mut dyn FnMut(&Report)) {
        if error.is_none() && tier == Tier::Thorough {
            self.interrupted();
            return;
        }
        let reason = error.unwrap_or_else(|| "nothing to specialise on".into());
        tell(&Report::Dropped { reason });
        self.fruitless += 1;
    }

    /// Lets a variant run that was just made, if the maps are what it was made of, or it can follow them. `unanswered` is what may have changed
    /// since what runs was found to hold, and what came with it is given.
    fn approve(&mut self, snapshot: Snapshot, active: &mut Active, unanswered: &Dirty) -> Option<Dirty> {
        let spared = active.spared.slots();
        match self.guard.approve(snapshot, active.token(), spared, Slots::NONE) {
            Some(behind) => {
                self.approved(active, behind, unanswered);
                Some(unanswered.clone())
            }
            None => self.catch_up(active, unanswered),
        }
    }

    /// Lets a variant run that is not at work, if it can follow what may have changed. Writes may have changed other things than it was made
    /// of, or what its twins can take over. Gives what may have changed.
    pub(super) fn catch_up(&mut self, active: &mut Active, unanswered: &Dirty) -> Option<Dirty> {
        let spared = active.spared.slots();
        for _ in 0..CATCHING_UP {
            let again = self.guard.begin(PATIENCE, &[])?;
            self.take_note();
            if self.seen.foreign {
                return None;
            }
            // What is not approved is looked at once more. Who was noted before the tables were read may have written after.
            let mut dirty = self.seen.dirty.clone();
            dirty.merge(unanswered.clone());
            if !self.keeps_up(&mut active.chain, &dirty) {
                return None;
            }
            let side = match active.record.present(&self.sources, &dirty) {
                Present::Same => None,
                Present::Other => return None,
                Present::Twinned(changes) => Some(active.twins.write(changes).ok()?.0),
            };
            let new = token(active.generation, side.unwrap_or(active.twins.side()));
            if let Some(behind) = self.guard.approve(again, new, spared, Slots::NONE) {
                if side.is_some() {
                    active.twins.turn();
                }
                self.seen.dirty = Dirty::default();
                self.approved(active, behind, &dirty);
                return Some(dirty);
            }
        }
        None
    }

    /// A variant may run: from now on writes to what it can do without stop nothing else.
    fn approved(&mut self, active: &Active, behind: Slots, dirty: &Dirty) {
        self.guard.mark(active.generation, &active.spared.places());
        self.left(&active.spared, behind, dirty, None);
    }

    /// Nobody comes any more who writes maps without counting himself in their caches.
    pub(super) fn settle(&mut self) {
        if let Some(active) = &mut self.active {
            active.caches.settle();
        }
    }

    /// The maps that may have caches now.
    fn cached_now(&self) -> BTreeSet<Map> {
        let all = self.stateful.keys().chain(self.nested.keys());
        // Who is called by others may be called in the form in which he does not count what he writes.
        if self.uncached.is_some() || self.reached.contains(&self.compiler.program()) {
            BTreeSet::new()
        } else {
            all.copied().collect()
        }
    }

    /// Of a variant that did not pay, gives up what may have cost more than it gained; whether there is anything.
    fn give_up(&mut self, caches: bool, copies: bool) -> bool {
        // It would have what is given up.
        self.stand_down();
        if caches {
            self.uncached = Some(Instant::now());
        } else if copies {
            self.uncopied = Some(Instant::now());
        }
        caches || copies
    }

    /// Whether what was given up because it did not pay is to be tried again from now on.
    pub(super) fn may_try_again(&mut self) -> bool {
        let over = |since: &mut Instant| since.elapsed() >= GIVEN_UP;
        let tries = [self.uncached.take_if(over), self.uncopied.take_if(over)];
        tries.iter().any(Option::is_some)
    }

    /// The code of a variant, of the maps as they are. `None` if there is nothing to specialise.
    fn code(
        &mut self,
        generation: u32,
        profiles: &[SiteProfile],
        tier: Tier,
    ) -> Result<Option<Code>, String> {
        let start = Instant::now();
        let held = self.links.read().map_err(|e| e.to_string())?;
        self.note_reached(&held);
        let given = profiles;
        let profiles = &self.profiles_of_reached(given);
        let restless = self.restless_in(tier);
        let is_left_out = !restless.is_empty() && tier != Tier::Standby;
        let mut observed = Observed::without(&self.sources, restless);
        let guard = self.compiler.guard(generation, self.settings.count);
        let cached = self.cached_now();
        let mut is_short = false;
        let (planned, variant, twins) = loop {
            let unfit = &self.unfit;
            let known =
                Known { compiler: self.compiler, profiles, observed: &observed, unfit, cached: &cached };
            let mut planned = policy::plan(&known, guard, tier);
            self.unfit.append(&mut planned.untwinned);
            planned.plan.budget.code = if self.uncopied.is_some() || is_short { 0 } else { self.room };
            planned.complete &= !is_short;
            if planned.plan.is_empty() {
                if !is_left_out || !observed.leave_nothing_out() {
                    return Ok(None);
                }
                // Better code that has to be made again than none.
                continue;
            }
            let twins = Twins::new(std::mem::take(&mut planned.twins)).map_err(|e| e.to_string())?;
            let rooms: FxHashMap<_, _> = twins.rooms().collect();
            let callees = &self.callees(&planned.plan);
            let joinable = if self.apart { Vec::new() } else { held.joinable(self.compiler) };
            // Slots that are written often are better called through: then no code depends on what they hold.
            let is_quiet = tier == Tier::Thorough;
            planned.complete &= is_quiet || callees.is_empty() || joinable.is_empty();
            let joins = if is_quiet { &joinable[..] } else { &[] };
            let wanted = Wanted { plan: &planned.plan, contents: &observed, rooms: &rooms, callees, joins };
            let variant = match self.compiler.specialised(&wanted) {
                Err(why) if !joins.is_empty() => {
                    tracing::debug!("nothing is joined: {why}");
                    self.apart = true;
                    return self.code(generation, given, tier);
                }
                Err(VariantError::Lower(why)) if planned.plan.budget.code > 0 => {
                    tracing::debug!("fewer copies: {why}");
                    self.fewer_copies();
                    return self.code(generation, given, tier);
                }
                made => made.map_err(|e| e.to_string())?,
            };
            let slots = variant.linked.insns.len();
            if tier == Tier::Quick && !self.is_patient && variant.report.has_copies() && slots > LONG {
                is_short = true;
                continue;
            }
            let unfit = unanswered(&planned, &variant);
            if unfit.is_empty() {
                break (planned, variant, twins);
            }
            self.unfit.extend(unfit);
        };
        let record = observed.into_record();
        Ok(Some(Code { planned, variant, twins, record, held, is_short, compile: start.elapsed() }))
    }

    /// A variant, not yet approved. `None` if there is nothing to specialise, or, when there is no hurry, a write came while the
    /// code was made.
    pub(super) fn candidate(
        &mut self,
        generation: u32,
        profiles: &[SiteProfile],
        tier: Tier,
        snapshot: &Snapshot,
    ) -> Result<Option<Candidate>, String> {
        let Some(Code { planned, variant, twins, record, held, is_short, compile }) =
            self.code(generation, profiles, tier)?
        else {
            return Ok(None);
        };
        if tier == Tier::Thorough && !self.guard.holds(snapshot) {
            return Ok(None);
        }
        let start = Instant::now();
        let caches =
            Caches::new(planned.plan.caches.iter().map(|c| (c.of, c.shape))).map_err(|e| e.to_string())?;
        self.put_beside(&twins, &caches).map_err(|e| e.to_string())?;
        let (shape, report) = (Shape::new(&planned.plan, &variant.report), variant.report.clone());
        let is_joined = !variant.joined.is_empty();
        let (program, linked, chain) = match self.load_chain(variant, &held) {
            Err(refused) if is_joined => {
                tracing::debug!("nothing is joined: {}", explain(&refused));
                self.apart = true;
                return self.candidate(generation, profiles, tier, snapshot);
            }
            Err(refused) if !caches.is_empty() => {
                tracing::debug!("no caches: {}", explain(&refused));
                // Most often there is no room on the stack, and will be none.
                self.stateful.clear();
                self.nested.clear();
                return self.candidate(generation, profiles, tier, snapshot);
            }
            Err(refused) if report.has_copies() => {
                tracing::debug!("fewer copies: {}", explain(&refused));
                // Often it is the ways through them that are too many for the kernel to follow.
                self.fewer_copies();
                return self.candidate(generation, profiles, tier, snapshot);
            }
            loaded => loaded.map_err(|e| explain(&e))?,
        };
        self.ours.insert(&program).map_err(|e| e.to_string())?;
        let bytes = |program: &Program| program.info().map_or(0, |info| info.jited_len);
        let grown = bytes(&program) > GROWN * bytes(&self.original);
        let is_complete = planned.complete && tier != Tier::Standby;
        let active = Active {
            generation,
            program,
            spared: Spared::new(self.compiler, &self.sources, &record, (&planned.plan.spared, &report)),
            tier: if is_complete { Tier::Thorough } else { tier },
            record,
            twins,
            caches,
            chain,
            keys: planned.keys,
            tried: planned.tried,
            profiles: profiles.to_vec(),
            is_bulky: report.has_copies() && grown,
            linked,
        };
        let entries = report.sites.iter().map(|(_, s)| s.entries).sum();
        let making = Making { compile, load: start.elapsed(), entries };
        Ok(Some(Candidate { shape, plan: planned.plan, active, making, is_short }))
    }

    /// The maps of which nothing may be in code.
    fn restless_in(&self, tier: Tier) -> BTreeSet<Map> {
        match tier {
            Tier::Standby => self.sources.iter().filter(|(_, s)| !s.is_constant).map(|(m, _)| *m).collect(),
            Tier::Quick | Tier::Thorough => self.restless.maps(),
        }
    }

    /// There is less room for copies of what follows lookups, since with as many the result is no program that can be loaded.
    fn fewer_copies(&mut self) {
        self.room = if self.room > FEWEST_COPIES { self.room / 4 } else { 0 };
    }

    /// Programs that are loaded from now on have these twins and caches.
    pub(super) fn put_beside(
        &mut self,
        twins: &Twins,
        caches: &Caches,
    ) -> Result<(), millstream_kernel::Error> {
        let twins = twins.maps().map(|(of, map)| (self.compiler.twin(of), map));
        for (place, map) in twins.chain(caches.maps().map(|(of, map)| (self.compiler.cache(of), map))) {
            if let Some(place) = place {
                self.session.replace_map(place, map.try_clone()?);
            }
        }
        Ok(())
    }

    /// Puts a variant that was approved onto the hook. `dirty` is what may have changed since what was there was found to hold.
    pub(super) fn install(
        &mut self,
        active: Active,
        making: Making,
        cause: Cause,
        dirty: Dirty,
        tell: &mut dyn FnMut(&Report),
    ) -> Result<(), LiveError> {
        let Making { compile, load, entries } = making;
        // A write is answered as fast as can be; what it leads to is judged at the next look at the traffic.
        let judged = self.settings.measure && cause.reason != Reason::Write;
        if judged {
            // What is on the hook is the original, or turns every packet away to it: the guard has another token now.
            self.before_ns = self.clock.measure(self.current(), MEASURE);
        }
        let start = Instant::now();
        self.swap(active.program.try_clone()?, true)?;
        let swap = start.elapsed();
        let (generation, slots, tier) = (active.generation, active.linked.insns.len(), active.tier);
        self.generation = self.generation.max(generation);
        let before = self.active.replace(active);
        self.put_aside(before, cause.reason, dirty);
        self.settle();
        if matches!(cause.reason, Reason::Start | Reason::Traffic) {
            self.fruitless = 0;
        }
        let is_last = tier == Tier::Thorough && !self.wants_standby();
        if cause.reason == Reason::Quiet {
            self.quiet = QUIET;
        }
        self.thorough_at = (!is_last).then(|| Instant::now() + self.quiet);
        if judged {
            self.now_ns = self.variant_ns();
        }
        let first = self.guard.first_packet(generation);
        tell(&Report::Specialised {
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

    /// Takes back what is not measurably faster than the original. A single look may have been disturbed, so the least of
    /// several counts before that is done.
    pub(super) fn judge(&mut self, tell: &mut dyn FnMut(&Report)) -> Result<(), LiveError> {
        for _ in 0..LOOKS {
            if let (Some(before), Some(now)) = (self.before_ns, self.now_ns)
                && worth(before, now)
            {
                (self.fruitless, self.unjudged) = (0, 0);
                return Ok(());
            }
            if let Some((original, variant)) = self.weigh(tell)? {
                let least = |a: Option<f64>, b: f64| Some(a.map_or(b, |a| a.min(b)));
                (self.before_ns, self.now_ns) =
                    (least(self.before_ns, original), least(self.now_ns, variant));
            } else if !self.variant_runs() {
                // A write came between: the next look at the traffic will tell.
                return Ok(());
            }
        }
        let why = match (self.before_ns, self.now_ns) {
            (Some(before), Some(now)) => {
                format!("{now:.1} ns a packet, where the original takes {before:.1}")
            }
            _ if self.unjudged < UNJUDGED => {
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

/// Sites that were to be answered by a twin and were not: their keys or the use of their values are of another form.
fn unanswered(planned: &Planned, variant: &Variant) -> Vec<crate::transform::SiteId> {
    let twinned = planned
        .plan
        .sites
        .iter()
        .filter(|s| matches!(s.lookup, Lookup::Twin { .. } | Lookup::OneLength { .. }));
    let answered = |site| variant.report.sites.iter().any(|(id, _)| *id == site);
    twinned.map(|s| s.site).filter(|site| !answered(*site)).collect()
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

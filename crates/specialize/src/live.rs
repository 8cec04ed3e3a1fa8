//! A program on an interface, kept fast while it runs.
//!
//! [`Live::load`] loads the object and the guard, [`Live::attach`] puts the unchanged program onto the interface,
//! [`Live::run`] profiles, specialises and swaps until it is told to stop. What runs at any moment is the original or
//! a variant that equals it as long as the guard lets it; a variant that cannot be made, is rejected, or is not faster
//! is dropped, and what runs goes on running.
//!
//! Invariant: a variant is put onto the hook only after a snapshot has approved it. How the hook is held, and what is
//! there when a session is killed, is the business of `place`.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use millstream_ir::Map as IrMap;
use millstream_ir::usage::Access;
use millstream_kernel::{Map, Program, ProgramType, XdpMode};
use millstream_loader::{Loader, ProgramError, Session};
use millstream_object::FuncId;
use rustc_hash::FxHashMap;

use crate::clock::monotonic_ns;
use crate::contents::{Observed, Record, Source};
use crate::guard::{Event, EventKind, Guard, GuardError, Snapshot};
use crate::holders::{self, Holders, Ours};
use crate::lent::Lent;
use crate::pins::{Claim, PinError, Pins};
use crate::place::{Place, Target, Tenant};
use crate::policy::{self, Keys, Tier};
use crate::profile::{self, SiteProfile};
use crate::report::{GuardState, Reason, Report};
use crate::stats::Clock;
use crate::transform::{Site, SiteId};
use crate::variant::{Compiler, VariantError, object_map};

/// How a session is to be.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Where links and maps are pinned.
    pub pins: PathBuf,
    /// Native, generic, or what the driver has.
    pub mode: XdpMode,
    /// Of a TC program: attach it to the way out instead of the way in.
    pub egress: bool,
    /// Take the place of the program on this interface, with its maps, and give it back at the end.
    pub adopt: Option<u32>,
    /// How long the original runs before the first look at the traffic.
    pub first: Duration,
    /// How long the instrumented variant runs, where that is long enough to see packets.
    pub burst: Duration,
    /// From one burst to the next.
    pub interval: Duration,
    /// From one status report to the next.
    pub status: Duration,
    /// Measure what is installed, and take it back if it is not faster.
    pub measure: bool,
}

/// Packets that a burst must have seen for its hot keys to mean anything.
const FEWEST_PACKETS: u64 = 100;
/// A burst that saw fewer is followed by one twice as long, up to this.
const LONGEST_BURST: Duration = Duration::from_millis(250);

impl Settings {
    /// The defaults, with this directory for pins.
    pub fn new(pins: impl Into<PathBuf>) -> Self {
        Settings {
            pins: pins.into(),
            mode: XdpMode::Any,
            egress: false,
            adopt: None,
            first: Duration::ZERO,
            burst: Duration::from_millis(4),
            interval: Duration::from_secs(2),
            status: Duration::from_secs(1),
            measure: true,
        }
    }
}

/// What is left on the interface at the end.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Leave {
    /// What was there before: nothing, or the program that was adopted.
    Restored,
    /// The original program, pinned.
    Original,
}

/// Why a session cannot start, or must end.
#[derive(Debug, thiserror::Error)]
pub enum LiveError {
    /// The guard.
    #[error(transparent)]
    Guard(#[from] GuardError),
    /// The object.
    #[error(transparent)]
    Load(#[from] millstream_loader::Error),
    /// The program in its original form.
    #[error(transparent)]
    Program(#[from] ProgramError),
    /// The kernel, or who else holds the hook.
    #[error(transparent)]
    Kernel(#[from] millstream_kernel::Error),
    /// The pins.
    #[error(transparent)]
    Pin(#[from] PinError),
    /// It is not attached.
    #[error("the program is not attached")]
    NotAttached,
    /// It is attached to something else than an interface.
    #[error("program {0:?} is of type {1}; XDP and TC programs are attached to interfaces")]
    Kind(String, ProgramType),
    /// A setting is not one for such a program.
    #[error("{0}")]
    Setting(&'static str),
    /// There is no program to be adopted.
    #[error("no program is on interface {0} that could be adopted")]
    NothingToAdopt(u32),
    /// Its original was not among what was loaded.
    #[error("the loader left the program out")]
    LeftOut,
}

/// A variant on the hook.
#[derive(Debug)]
struct Active {
    generation: u32,
    record: Record,
    keys: Keys,
    profiles: Vec<SiteProfile>,
    tier: Tier,
}

/// A variant that could be put there.
struct Candidate {
    program: Program,
    record: Record,
    keys: Keys,
    compile: Duration,
    load: Duration,
    entries: u32,
    slots: usize,
    tier: Tier,
}

/// A session.
#[derive(Debug)]
pub struct Live<'c> {
    compiler: &'c Compiler,
    settings: Settings,
    pins: Pins,
    session: Session<'c>,
    /// The other programs of the object, which tail calls reach.
    _others: Vec<(FuncId, Program)>,
    original: Program,
    instrumented: Option<(Program, Vec<SiteId>)>,
    guard: Guard,
    sources: FxHashMap<IrMap, Source>,
    watched: Vec<String>,
    refused: Vec<(String, String)>,
    ours: Ours,
    ifindex: u32,
    /// Names of the maps that outlive the session.
    kept: BTreeSet<String>,
    place: Option<Place>,
    _claim: Claim,
    active: Option<Active>,
    generation: u32,
    clock: Clock,
    before_ns: Option<f64>,
    now_ns: Option<f64>,
    /// When there will have been no write for long enough to put whole tables into code.
    thorough_at: Option<Instant>,
    /// Generations that were not faster, one after the other.
    fruitless: u32,
}

impl<'c> Live<'c> {
    /// Loads object and guard. Maps that an earlier session left in the directory are taken over with their contents.
    ///
    /// # Errors
    /// [`LiveError`].
    pub fn load(compiler: &'c Compiler, settings: Settings) -> Result<Live<'c>, LiveError> {
        let mut guard = Guard::attach()?;
        let pins = Pins::new(&settings.pins);
        let claim = pins.claim()?;
        let lent = Lent::find(compiler, &pins, settings.adopt)?;
        let mut loader = Loader::new(compiler.object());
        for (name, map) in &lent.maps {
            loader = loader.reuse_map(name, map.try_clone()?)?;
        }
        let loaded = loader.reuse_map(compiler.guard_name(), guard.state().try_clone()?)?.load()?;
        let (mut programs, session) = (loaded.programs, loaded.session);
        let at = programs.iter().position(|(f, _)| *f == compiler.program()).ok_or(LiveError::LeftOut)?;
        let mut ours = Ours::new(guard.programs());
        for (_, program) in &programs {
            ours.insert_original(program)?;
        }
        let original = programs.remove(at).1;
        check(&original, &settings)?;
        let (sources, refused) = sources(compiler, &session);
        let mut watched = Vec::new();
        for source in sources.values() {
            guard.watch(&source.map)?;
            watched.push(source.map.info().name.clone());
        }
        watched.sort_unstable();
        Ok(Live {
            compiler,
            pins,
            session,
            _others: programs,
            original,
            instrumented: None,
            guard,
            sources,
            watched,
            refused,
            ours,
            ifindex: 0,
            kept: lent.keep,
            place: None,
            _claim: claim,
            active: None,
            generation: 0,
            clock: if settings.measure { Clock::calibrate() } else { Clock::default() },
            before_ns: None,
            now_ns: None,
            thorough_at: None,
            fruitless: 0,
            settings,
        })
    }

    /// A map of the object, by its name.
    pub fn map(&self, name: &str) -> Option<&Map> {
        self.session.map_by_name(name)
    }

    /// The guard.
    pub fn guard(&self) -> &Guard {
        &self.guard
    }

    /// The program as clang made it.
    pub fn original(&self) -> &Program {
        &self.original
    }

    /// What is on the hook now.
    pub fn current(&self) -> &Program {
        self.place.as_ref().map_or(&self.original, Place::current)
    }

    /// Puts the unchanged program onto an interface of this thread's namespace, into the place of an earlier session
    /// that was killed, or into that of the program that is to be adopted.
    ///
    /// # Errors
    /// `EBUSY` if somebody else's program is there; nothing is changed then.
    pub fn attach(&mut self, ifindex: u32) -> Result<Report, LiveError> {
        let target = Target {
            ifindex,
            mode: self.settings.mode,
            egress: self.settings.egress,
            adopt: self.settings.adopt == Some(ifindex),
        };
        let named = self.kept.iter().filter_map(|n| Some((n.as_str(), self.session.map_by_name(n)?)));
        let tenant = Tenant { original: &self.original, guard: &self.guard, maps: named.collect() };
        let place = Place::take(&self.pins, &tenant, &target)?;
        let (mode, took_over) = (place.mode(), place.took_over());
        self.place = Some(place);
        self.ifindex = ifindex;
        self.first_review()?;
        Ok(Report::Attached {
            program: self.original.name().to_owned(),
            ifindex,
            mode: mode.map(|m| m.to_string()),
            took_over,
            watched: self.watched.clone(),
            refused: self.refused.clone(),
        })
    }

    /// Looks who may write the maps. A process that was killed a moment ago may still be letting go of its programs.
    fn first_review(&mut self) -> Result<(), LiveError> {
        let end = Instant::now() + PATIENCE;
        loop {
            let holders = Holders::look()?;
            let held = self.sources.values().any(|s| holders.foreign(s.map.id(), &self.ours).is_some());
            if !held || Instant::now() > end {
                return self.review(&mut |_| {});
            }
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// Keeps the program fast until `stop`.
    ///
    /// # Errors
    /// If somebody else takes the hook, or the kernel no longer answers. What is attached then stays.
    pub fn run(&mut self, stop: &AtomicBool, tell: &mut dyn FnMut(&Report)) -> Result<(), LiveError> {
        let now = Instant::now();
        let (mut next_profile, mut next_status) = (now + self.settings.first, now + self.settings.status);
        let mut packets = Packets::start(self.ifindex);
        if self.settings.measure {
            self.before_ns = self.clock.measure(&self.original, Duration::from_millis(10));
        }
        while !stop.load(Ordering::Relaxed) {
            let until = self.thorough_at.unwrap_or(next_profile).min(next_profile).min(next_status);
            let wait = until.saturating_duration_since(Instant::now()).min(Duration::from_millis(50));
            self.guard.wait(wait)?;
            self.answer(tell)?;
            if self.thorough_at.is_some_and(|at| Instant::now() >= at) {
                self.thorough_at = None;
                self.be_thorough(tell)?;
            }
            if Instant::now() >= next_profile {
                self.look_at_traffic(tell)?;
                next_profile = Instant::now() + self.settings.interval * (1 << self.fruitless.min(5));
            }
            if Instant::now() >= next_status {
                tell(&self.status(&mut packets));
                next_status = Instant::now() + self.settings.status;
            }
        }
        Ok(())
    }

    /// How things stand.
    fn status(&self, packets: &mut Packets) -> Report {
        let valid = |a: &Active| self.guard.approved() == Some(a.generation);
        Report::Status {
            pps: packets.rate(),
            before_ns: self.before_ns,
            now_ns: self.now_ns.or(self.before_ns),
            generation: self.active.as_ref().map_or(0, |a| a.generation),
            guard: match &self.active {
                None => GuardState::Off,
                Some(a) if valid(a) => GuardState::Valid,
                Some(_) => GuardState::Revoked,
            },
            writes: self.guard.version(),
            swaps: self.place.as_ref().map_or(0, Place::swaps),
        }
    }

    /// Answers what the guard has seen since the last time.
    fn answer(&mut self, tell: &mut dyn FnMut(&Report)) -> Result<(), LiveError> {
        let events: Vec<Event> = self.guard.events();
        if events.is_empty() {
            return Ok(());
        }
        if events.iter().any(|e| e.kind == EventKind::Foreign) {
            self.review(tell)?;
        }
        let first = events.iter().map(|e| e.time).min();
        if self.thorough_at.is_some() {
            self.thorough_at = Some(Instant::now() + QUIET);
        }
        let Some(active) = &self.active else { return Ok(()) };
        if self.guard.approved() == Some(active.generation) {
            return Ok(());
        }
        let generation = active.generation;
        // Most writes change nothing that the code was made of.
        if let Some(snapshot) = self.guard.begin(PATIENCE)
            && active.record.holds(&self.sources)
            && self.guard.approve(snapshot, generation)
        {
            let write_ns = first.unwrap_or_default();
            let latency_us = monotonic_ns().saturating_sub(write_ns) / 1000;
            tell(&Report::Confirmed { generation, write_ns, latency_us });
            return Ok(());
        }
        let profiles = active.profiles.clone();
        self.respecialise(profiles, Tier::Quick, Reason::Write, first, tell)
    }

    /// Puts whole tables into code, now that there is time.
    fn be_thorough(&mut self, tell: &mut dyn FnMut(&Report)) -> Result<(), LiveError> {
        let Some(active) = self.active.as_ref().filter(|a| a.tier == Tier::Quick) else { return Ok(()) };
        let profiles = active.profiles.clone();
        self.respecialise(profiles, Tier::Thorough, Reason::Quiet, None, tell)
    }

    /// Looks again who may write the maps, and gives up those that others may write.
    fn review(&mut self, tell: &mut dyn FnMut(&Report)) -> Result<(), LiveError> {
        let holders = Holders::look()?;
        let mut lost = Vec::new();
        self.sources.retain(|_, source| match holders.foreign(source.map.id(), &self.ours) {
            Some(why) => {
                lost.push((source.map.info().name.clone(), why.to_string()));
                false
            }
            None => true,
        });
        if lost.is_empty() {
            return Ok(());
        }
        self.watched.retain(|name| !lost.iter().any(|(l, _)| l == name));
        self.instrumented = None;
        let reason =
            lost.iter().map(|(name, why)| format!("map {name:?}: {why}")).collect::<Vec<_>>().join("; ");
        self.refused.extend(lost);
        self.withdraw(reason, tell)
    }

    /// Puts the original back.
    fn withdraw(&mut self, reason: String, tell: &mut dyn FnMut(&Report)) -> Result<(), LiveError> {
        let Some(active) = self.active.take() else { return Ok(()) };
        self.guard.revoke();
        let original = self.original.try_clone()?;
        self.swap(original)?;
        self.now_ns = None;
        tell(&Report::Withdrawn { generation: active.generation, reason });
        Ok(())
    }

    /// Puts a program onto the hook in the place of the present one.
    fn swap(&mut self, new: Program) -> Result<(), LiveError> {
        self.place.as_mut().ok_or(LiveError::NotAttached)?.swap(new)
    }

    /// Profiles, and specialises anew if the traffic is no longer what the code was made for.
    fn look_at_traffic(&mut self, tell: &mut dyn FnMut(&Report)) -> Result<(), LiveError> {
        let Some(profiles) = self.profile(tell)? else { return Ok(()) };
        let packets: u64 = profiles.iter().map(|p| p.total).sum();
        if packets < FEWEST_PACKETS {
            self.settings.burst = (self.settings.burst * 2).min(LONGEST_BURST);
            return Ok(());
        }
        let reason = match &self.active {
            None => Reason::Start,
            Some(active) if changed(active, &profiles) => Reason::Traffic,
            Some(_) => return Ok(()),
        };
        self.respecialise(profiles, Tier::Quick, reason, None, tell)
    }

    /// Runs the instrumented variant for a moment.
    fn profile(&mut self, tell: &mut dyn FnMut(&Report)) -> Result<Option<Vec<SiteProfile>>, LiveError> {
        if self.instrumented.is_none() {
            self.instrumented = self.instrument(tell)?;
        }
        let Some((program, sites)) = &self.instrumented else { return Ok(None) };
        let (program, chosen) = (program.try_clone()?, sites.clone());
        let Some(sketch) = self.session.map(self.compiler.sketch()) else { return Ok(None) };
        profile::clear(sketch)?;
        let back = self.current().try_clone()?;
        let start = Instant::now();
        self.swap(program)?;
        // The swap has waited for a grace period already.
        std::thread::sleep(self.settings.burst.saturating_sub(start.elapsed()));
        self.swap(back)?;
        let find = |id: &SiteId| self.compiler.sites().iter().find(|s| s.id == *id);
        let sites: Vec<&Site> = chosen.iter().filter_map(find).collect();
        let Some(sketch) = self.session.map(self.compiler.sketch()) else { return Ok(None) };
        Ok(Some(profile::read(sketch, &sites, self.compiler.slots())?))
    }

    /// The instrumented variant, if there is anything to write down.
    fn instrument(
        &mut self,
        tell: &mut dyn FnMut(&Report),
    ) -> Result<Option<(Program, Vec<SiteId>)>, LiveError> {
        let wanted = self.compiler.sites().iter().filter(|s| policy::eligible(s, &self.sources));
        let sites: Vec<SiteId> = wanted.map(|s| s.id).collect();
        if sites.is_empty() {
            return Ok(None);
        }
        let made = self.compiler.instrumented(&sites).map_err(|e| e.to_string());
        let id = self.compiler.program();
        let loaded = made.and_then(|v| self.session.load(id, &v.linked).map_err(|e| explain(&e)));
        match loaded {
            Ok(program) => {
                self.ours.insert(&program)?;
                Ok(Some((program, sites)))
            }
            Err(reason) => {
                tell(&Report::Dropped { reason: format!("instrumented variant: {reason}") });
                Ok(None)
            }
        }
    }

    /// Makes a generation for this traffic and the maps as they are, and puts it onto the hook.
    fn respecialise(
        &mut self,
        profiles: Vec<SiteProfile>,
        tier: Tier,
        reason: Reason,
        write: Option<u64>,
        tell: &mut dyn FnMut(&Report),
    ) -> Result<(), LiveError> {
        for _ in 0..ATTEMPTS {
            let generation = self.generation + 1;
            let Some(snapshot) = self.guard.begin(PATIENCE) else {
                tell(&Report::Dropped { reason: "a writer stays inside bpf(2)".into() });
                return Ok(());
            };
            let candidate = match self.candidate(generation, &profiles, tier, &snapshot) {
                Ok(Some(candidate)) => candidate,
                // The next quiet moment will do.
                Ok(None) if tier == Tier::Thorough => {
                    self.thorough_at = Some(Instant::now() + QUIET);
                    return Ok(());
                }
                Ok(None) => continue,
                Err(reason) => {
                    tell(&Report::Dropped { reason });
                    self.fruitless += 1;
                    return Ok(());
                }
            };
            self.guard.clear_first_packet(generation);
            // Writes that came meanwhile may have changed other things.
            let approved = self.guard.approve(snapshot, generation)
                || self.guard.begin(PATIENCE).is_some_and(|again| {
                    candidate.record.holds(&self.sources) && self.guard.approve(again, generation)
                });
            if approved {
                return self.install(generation, candidate, profiles, reason, write, tell);
            }
        }
        tell(&Report::Dropped { reason: "the maps change faster than code can be made".into() });
        Ok(())
    }

    /// A variant, not yet approved. `None` if a write came while the code was made and there is no hurry.
    fn candidate(
        &mut self,
        generation: u32,
        profiles: &[SiteProfile],
        tier: Tier,
        snapshot: &Snapshot,
    ) -> Result<Option<Candidate>, String> {
        let start = Instant::now();
        let observed = Observed::new(&self.sources);
        let declaration = |map| self.compiler.declaration(map).clone();
        let guard = self.compiler.guard(generation);
        let (plan, keys) = policy::plan(self.compiler.sites(), profiles, declaration, &observed, guard, tier);
        let made = self.compiler.specialised(generation, &plan, &observed);
        let variant = made.map_err(|e: VariantError| e.to_string())?;
        let record = observed.into_record();
        let compile = start.elapsed();
        if tier == Tier::Thorough && !self.guard.holds(snapshot) {
            return Ok(None);
        }
        let start = Instant::now();
        let program = self.session.load(self.compiler.program(), &variant.linked).map_err(|e| explain(&e))?;
        self.ours.insert(&program).map_err(|e| e.to_string())?;
        Ok(Some(Candidate {
            program,
            tier,
            record,
            keys,
            compile,
            load: start.elapsed(),
            entries: variant.report.sites.iter().map(|(_, s)| s.entries).sum(),
            slots: variant.linked.insns.len(),
        }))
    }

    fn install(
        &mut self,
        generation: u32,
        candidate: Candidate,
        profiles: Vec<SiteProfile>,
        reason: Reason,
        write: Option<u64>,
        tell: &mut dyn FnMut(&Report),
    ) -> Result<(), LiveError> {
        let Candidate { program, record, keys, compile, load, entries, slots, tier } = candidate;
        let start = Instant::now();
        self.swap(program)?;
        let swap = start.elapsed();
        self.generation = generation;
        self.active = Some(Active { generation, record, keys, profiles, tier });
        self.thorough_at = (tier == Tier::Quick).then(|| Instant::now() + QUIET);
        if self.settings.measure && reason != Reason::Write {
            self.now_ns = self.clock.measure(self.current(), Duration::from_millis(5));
        }
        let first = self.guard.first_packet(generation);
        tell(&Report::Specialised {
            generation,
            reason,
            write_ns: write,
            latency_us: write.zip(first).map(|(w, f)| f.saturating_sub(w) / 1000),
            compile_us: micros(compile),
            load_us: micros(load),
            swap_us: micros(swap),
            entries,
            slots,
            ns: self.now_ns,
        });
        match (self.before_ns, self.now_ns) {
            (Some(before), Some(now)) if now > before => {
                self.fruitless += 1;
                self.withdraw(format!("{now:.1} ns a packet, where the original takes {before:.1}"), tell)
            }
            _ => {
                self.fruitless = 0;
                Ok(())
            }
        }
    }

    /// Ends the session. Nothing of it is left but what `leave` says.
    ///
    /// # Errors
    /// If the original cannot be put back; what is attached and guards it then stays.
    pub fn finish(mut self, leave: Leave) -> Result<Report, LiveError> {
        let left = self.end(leave)?;
        Ok(Report::Stopped { left: left.unwrap_or_else(|| "what was there".to_owned()) })
    }

    fn end(&mut self, leave: Leave) -> Result<Option<String>, LiveError> {
        self.guard.revoke();
        self.place.take().map(|place| place.leave(&self.original, leave)).transpose()
    }
}

/// A session that ends by an error leaves its original, so that packets go on being handled.
impl Drop for Live<'_> {
    fn drop(&mut self) {
        if let Err(error) = self.end(Leave::Original) {
            tracing::warn!("putting the original back: {error}");
        }
    }
}

/// Whether the program is of a kind that is attached to an interface, and the settings are such a program's.
fn check(program: &Program, settings: &Settings) -> Result<(), LiveError> {
    match program.info()?.program_type {
        ProgramType::XDP if settings.egress => {
            Err(LiveError::Setting("an XDP program has no way out to be attached to"))
        }
        ProgramType::SCHED_CLS if settings.adopt.is_some() => {
            Err(LiveError::Setting("a TC program runs beside those that are there, and takes no place"))
        }
        ProgramType::XDP | ProgramType::SCHED_CLS => Ok(()),
        other => Err(LiveError::Kind(program.name().to_owned(), other)),
    }
}

/// How long a writer inside bpf(2) is waited for.
const PATIENCE: Duration = Duration::from_millis(200);
/// Without a write for so long, whole tables are put into code.
const QUIET: Duration = Duration::from_millis(500);
/// How often a generation is made anew because the maps have changed meanwhile.
const ATTEMPTS: u32 = 3;

/// The maps that lookups of the program may be specialised on, and why others may not.
fn sources(compiler: &Compiler, session: &Session<'_>) -> (FxHashMap<IrMap, Source>, Vec<(String, String)>) {
    let mut sources = FxHashMap::default();
    let mut refused = Vec::new();
    let maps: BTreeSet<IrMap> = compiler.sites().iter().map(|s| s.map).collect();
    for map in maps {
        let name = compiler.declaration(map).name.clone();
        let access = compiler.access(map);
        let made = session.map(object_map(map)).and_then(|m| m.try_clone().ok());
        let why = match &made {
            None => Some("it is not made by the loader".to_owned()),
            _ if access == Access::Written => Some("programs write it".to_owned()),
            Some(m) => holders::by_kind(m).map(|w| w.to_string()),
        };
        match (why, made) {
            (None, Some(made)) => drop(sources.insert(map, Source { map: made, access })),
            (why, _) => refused.push((name, why.unwrap_or_default())),
        }
    }
    (sources, refused)
}

/// Whether the keys in code have much less of the traffic than other keys would.
fn changed(active: &Active, profiles: &[SiteProfile]) -> bool {
    profiles.iter().any(|now| {
        let Some(then) = active.profiles.iter().find(|p| p.site == now.site) else { return true };
        let size = active.keys.get(&now.site).and_then(Option::as_ref).map_or(HOT_SET, Vec::len);
        let held = now.share(then.keys.iter().take(size).map(|(k, _)| k.as_slice()));
        let best = now.share(now.keys.iter().take(size).map(|(k, _)| k.as_slice()));
        held < 0.8 * best
    })
}

/// How many of the hottest keys are compared where a whole map is in code.
const HOT_SET: usize = 16;

/// A rejection, with the verifier's last word.
fn explain(error: &ProgramError) -> String {
    match error.rejection() {
        Some(r) => format!("{} ({})", r.reason(), r.telling(3).join(" | ")),
        None => error.to_string(),
    }
}

fn micros(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}

/// Packets received at an interface.
struct Packets {
    name: Option<String>,
    at: Instant,
    count: u64,
}

impl Packets {
    fn start(ifindex: u32) -> Self {
        let name = millstream_kernel::interface(ifindex).ok().map(|i| i.name);
        let mut packets = Packets { name, at: Instant::now(), count: 0 };
        packets.count = packets.now();
        packets
    }

    fn now(&self) -> u64 {
        let Some(name) = &self.name else { return 0 };
        let text = std::fs::read_to_string("/proc/thread-self/net/dev").unwrap_or_default();
        let line = text.lines().find_map(|l| l.trim_start().strip_prefix(name.as_str())?.strip_prefix(':'));
        line.and_then(|l| l.split_whitespace().nth(1)?.parse().ok()).unwrap_or(0)
    }

    /// Packets a second since the last call.
    fn rate(&mut self) -> f64 {
        let (count, at) = (self.now(), Instant::now());
        let rate =
            count.saturating_sub(self.count) as f64 / at.duration_since(self.at).as_secs_f64().max(1e-9);
        (self.count, self.at) = (count, at);
        rate
    }
}

//! A program on an interface, kept fast while it runs.
//!
//! [`LiveSession::load`] loads the object and the guard, [`LiveSession::attach`] puts the unchanged program
//! onto the interface, [`LiveSession::run`] profiles, specialises and swaps until it is told to stop. At any
//! moment the program that runs is the original, or a variant that equals it as long as the guard lets it; a
//! variant that cannot be made, is rejected, or is not faster is dropped, and the program that runs goes on
//! running. The parts: `write_response` follows writes, `traffic` looks at packets, `make` has variants made
//! (in a `compile_job`) while writes are attended to (`background`), `fallback_variant` has one that can
//! follow any write, `churn` tracks maps that are written too often to be in code, `admission` has new shapes
//! of variants judged by replay before they come onto the hook, `traffic_shift` detects when their hot keys
//! are no longer hot; `copies` and `speed` are for measurements.
//!
//! Invariant: a variant is put onto the hook only after a snapshot has approved it. `attachment` is
//! responsible for how the hook is held, and for what remains there when a session is killed.

mod admission;
mod background;
mod churn;
mod compile_job;
mod copies;
mod deopt_maps;
pub mod details;
mod error;
mod fallback_variant;
mod key_text;
mod make;
mod packet_counters;
mod settings;
mod speed;
pub mod step;
mod tail_calls;
mod traffic;
mod traffic_shift;
mod write_response;

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use millstream_ir::Map as IrMap;
use millstream_kernel::{KernelMap, KernelProgram, ProgramType};
use millstream_loader::{ObjectLoader, ProgramError, Session};
use millstream_object::{FuncId, LinkedProgram};
use rustc_hash::FxHashMap;

use crate::adopt::{self, AdoptionScope};
use crate::attachment::{AttachRequest, AttachTarget, HookAttachments, HookInfo};
use crate::caches::EntryCaches;
use crate::guard::Guard;
use crate::inherited_maps::InheritedMaps;
use crate::inner_maps::InnerMaps;
use crate::map_users::{MapUsers, OwnPrograms};
use crate::pins::{PinDir, PinDirLock};
use crate::replay::sample::PacketSample;
use crate::report::{AttachedInterface, GuardState, SessionReport};
use crate::shadow_tables::ShadowTables;
use crate::snapshot::{Assumptions, SpecializableMap, cacheable, nested, sources};
use crate::stats::ProgramTimer;
use crate::watched_inner_maps::WatchedInnerMaps;
use admission::{ShapeVerdict, VariantShape};
use background::WriteHandling;
use churn::ChurnTracker;
use deopt_maps::DeoptMaps;
pub use error::LiveError;
use fallback_variant::FallbackVariant;
use millstream_specializer::changes::DirtyKeys;
use millstream_specializer::guard_state::{DeoptMask, token};
use millstream_specializer::policy::{KeyTestCandidate, StrategyBySite, Tier};
use millstream_specializer::profile::SiteProfile;
use millstream_specializer::transform::{CodeBudget, SiteId};
use millstream_specializer::variant::{VariantCompiler, is_alike};
use packet_counters::PacketCounters;
pub use settings::SessionSettings;
pub use speed::SpeedComparison;
use step::SessionStep;
use tail_calls::{ProgArrays, TailCallChain};
use traffic_shift::HotKeyMisses;

/// Program to leave on the interface at the end.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum DetachPolicy {
    /// The state before: nothing, or the program that was adopted.
    Restored,
    /// The original program, pinned.
    Original,
    /// A program that handles packets unattended: the original, pinned, if it has replaced no other program,
    /// and otherwise the program that was adopted.
    Unattended,
}

/// A variant on the hook.
#[derive(Debug)]
struct LoadedVariant {
    generation: u32,
    program: KernelProgram,
    linked: LinkedProgram,
    record: Assumptions,
    twins: ShadowTables,
    spared: DeoptMaps,
    caches: EntryCaches,
    /// The maps inside maps of maps that it names.
    insides: InnerMaps,
    /// The programs that it calls.
    chain: TailCallChain,
    keys: StrategyBySite,
    /// Tests that could precede lookups, and those that do.
    tried: Vec<KeyTestCandidate>,
    profiles: Vec<SiteProfile>,
    tier: Tier,
    /// True if it is large because it has several copies of the code after a lookup.
    is_bulky: bool,
    /// True if it is taken back unless live traffic shows it to be faster.
    on_trial: bool,
}

impl LoadedVariant {
    /// Value of the guard's token while it may run.
    fn token(&self) -> u64 {
        token(self.generation, self.twins.side())
    }
}

/// The variant that profiles.
#[derive(Debug)]
struct ProfilingVariant {
    program: KernelProgram,
    /// The lookups whose keys it records.
    sites: Vec<SiteId>,
    chain: TailCallChain,
}

/// Events of the guard that nobody has answered yet.
#[derive(Debug, Default)]
struct PendingWrites {
    /// Time of the first of them.
    first: Option<u64>,
    /// True if somebody new may write maps, once the call that brings him has returned.
    foreign: bool,
    /// Number of times that happened, so far.
    strangers: u64,
    /// Contents that may have changed since they were last compared with the running variant.
    dirty: DirtyKeys,
    /// Contents that may have changed since the tables of the standby variant were read, or its twins brought
    /// up to date.
    aside: DirtyKeys,
    /// Contents that may have changed since the tables of the variant that is being made were read.
    making: DirtyKeys,
    /// Events lost, so far.
    unsent: u64,
}

impl PendingWrites {
    /// Records that anything may have changed.
    fn anything(&mut self) {
        for dirty in [&mut self.dirty, &mut self.aside, &mut self.making] {
            *dirty = DirtyKeys::everything();
        }
    }

    /// Records that this key of a map may have changed; `None` if the key is unknown.
    fn note(&mut self, map: IrMap, key: Option<Vec<u8>>) {
        for dirty in [&mut self.dirty, &mut self.aside, &mut self.making] {
            dirty.note(map, key.clone());
        }
    }
}

/// A session.
#[derive(Debug)]
pub struct LiveSession<'c> {
    compiler: &'c VariantCompiler,
    settings: SessionSettings,
    pins: PinDir,
    session: Session<'c>,
    /// The other programs of the object, which tail calls reach.
    others: Vec<(FuncId, KernelProgram)>,
    original: KernelProgram,
    instrumented: Option<ProfilingVariant>,
    guard: Guard,
    /// Program arrays.
    links: ProgArrays,
    /// Programs of the object that tail calls were found to reach, now or before: whoever exchanges them may
    /// put them back.
    reached: BTreeSet<FuncId>,
    /// True if the kernel has refused inlined programs.
    apart: bool,
    sources: Arc<FxHashMap<IrMap, SpecializableMap>>,
    /// Maps that the program writes, and that may have caches.
    stateful: FxHashMap<IrMap, SpecializableMap>,
    /// The inner maps that may have caches, or be known, by the templates that stand for them.
    nested: FxHashMap<IrMap, WatchedInnerMaps>,
    /// Time at which caches were given up because they did not pay.
    uncached: Option<Instant>,
    /// Time at which copies of the code after lookups, one for each value, were given up because they did not
    /// pay.
    uncopied: Option<Instant>,
    /// True if such copies are made even if packets wait and the copies are long: a variant without any did
    /// not pay.
    is_patient: bool,
    /// Instructions in copies of the code after lookups, at most: as many as the kernel takes.
    room: usize,
    watched: Vec<String>,
    refused: Vec<(String, String)>,
    ours: OwnPrograms,
    /// Programs with the session's code that somebody else has loaded, and that may write maps that have
    /// caches.
    copies: BTreeSet<u32>,
    seen: PendingWrites,
    /// Time of the first write that the running variant could not follow, while something else was under way.
    unanswered: Option<u64>,
    /// True if something else is under way.
    is_busy: bool,
    /// Names of the maps that outlive the session.
    kept: BTreeSet<String>,
    place: Option<HookAttachments>,
    _claim: Option<PinDirLock>,
    active: Option<LoadedVariant>,
    /// Variant for writes that the active one cannot follow.
    standby: Option<FallbackVariant>,
    /// True if the standby variant handles packets from its slot, in place of the active one.
    is_ahead: bool,
    /// True if no standby variant is possible.
    alone: bool,
    /// The maps that somebody may write and that were in code, in the last variant that had any.
    risked: BTreeSet<IrMap>,
    /// Maps that change too often to be in code.
    restless: ChurnTracker,
    /// Number of the last variant that could come onto the hook.
    generation: u32,
    clock: ProgramTimer,
    before_ns: Option<f64>,
    now_ns: Option<f64>,
    received: PacketCounters,
    /// Packets that variants had passed on to the original before the program was attached.
    missed_before: u64,
    /// Packets received when the traffic was last looked at.
    looked_at: u64,
    /// Time of the next look at the traffic, if there was one before.
    next_look: Option<Instant>,
    /// Time at which there will have been no write for long enough to put whole tables into code.
    thorough_at: Option<Instant>,
    /// Length of that time without a write.
    quiet: Duration,
    /// Consecutive looks at the traffic that led to nothing.
    fruitless: u32,
    /// Lookups that hot keys do not answer.
    hits: HotKeyMisses,
    /// Looks at which too few packets came to judge the variant.
    unjudged: u32,
    /// Consecutive comparisons with the original that a write ended.
    disturbed: u32,
    /// Packets that were sampled last, and the number of packets when lookups were last counted.
    samples: Arc<Vec<PacketSample>>,
    profiled: u64,
    /// Verdicts of the judge on shapes of variants.
    judged: HashMap<VariantShape, ShapeVerdict>,
    /// Sites that get no twins: twins cannot answer lookups of their form, or none are wanted.
    unfit: BTreeSet<SiteId>,
}

impl<'c> LiveSession<'c> {
    /// Loads object and guard. Maps that an earlier session left in the directory are taken over with their
    /// contents.
    ///
    /// # Errors
    /// [`LiveError`].
    pub fn load(
        compiler: &'c VariantCompiler,
        settings: SessionSettings,
    ) -> Result<LiveSession<'c>, LiveError> {
        let mut guard = Guard::attach()?;
        let pins = PinDir::new(&settings.pins);
        let claim = pins.claim()?;
        let lent = InheritedMaps::find(compiler, &pins, &settings)?;
        let mut loader = ObjectLoader::new(compiler.object());
        for (name, map) in &lent.maps {
            loader = loader.reuse_map(name, map.try_clone()?)?;
        }
        // The object's other programs may be for other kernels; those that can be called are loaded, too.
        let name = &compiler.object().functions[compiler.program().index()].name;
        let loader = loader.reuse_map(compiler.guard_name(), guard.state().try_clone()?)?;
        let loader = loader.only(name)?.with_program_arrays();
        let (chosen, session) = (loader.chosen(), loader.prepare()?);
        let mut programs = load_all(compiler, &session, &chosen)?;
        // Arrays that existed before belong to their owner, so they are not filled.
        let is_new = |name: &str| !lent.maps.iter().any(|(there, _)| there == name);
        tail_calls::fill_new(compiler, &session, &programs, is_new)?;
        let at = programs.iter().position(|(f, _)| *f == compiler.program()).ok_or(LiveError::LeftOut)?;
        let mut ours = OwnPrograms::new(guard.programs());
        for (_, program) in &programs {
            ours.insert_original(program)?;
        }
        let original = programs.remove(at).1;
        check(&original, &settings)?;
        if settings.which == AdoptionScope::Same {
            lent.adopted
                .iter()
                .try_for_each(|(ifindex, present)| adopt::same(&original, present, *ifindex))?;
        }
        let (mut sources, mut refused) = sources(compiler, &session, &settings.approximate);
        let mut stateful = cacheable(compiler, &session);
        refused.retain(|(name, _)| !stateful.keys().any(|m| compiler.declaration(*m).name == *name));
        for sources in [&mut sources, &mut stateful] {
            exclude(&settings.exclude, compiler, sources, &mut refused);
        }
        let mut watched = watch(&mut guard, sources.values_mut().chain(stateful.values_mut()))?;
        let all: Vec<(FuncId, &KernelProgram)> =
            programs.iter().map(|(f, p)| (*f, p)).chain([(compiler.program(), &original)]).collect();
        let links = ProgArrays::new(compiler, &session, &settings.exclude, &all, &mut guard)?;
        let nested = nested(compiler, &session, &settings.exclude, &mut guard)?;
        let outer = |template: &_| compiler.inner(*template).0;
        let outer = nested.keys().flat_map(outer).map(|map| compiler.object().maps[map.index()].name.clone());
        also_watched(links.names().chain(outer), &mut watched, &mut refused);
        Ok(LiveSession {
            compiler,
            pins,
            session,
            others: programs,
            original,
            instrumented: None,
            guard,
            links,
            reached: BTreeSet::new(),
            apart: false,
            sources: Arc::new(sources),
            stateful,
            nested,
            uncached: None,
            uncopied: None,
            is_patient: false,
            room: CodeBudget::default().code,
            watched,
            refused,
            ours,
            copies: BTreeSet::new(),
            seen: PendingWrites::default(),
            unanswered: None,
            is_busy: false,
            kept: lent.keep,
            place: None,
            _claim: Some(claim),
            active: None,
            standby: None,
            is_ahead: false,
            alone: false,
            risked: BTreeSet::new(),
            restless: ChurnTracker::default(),
            generation: 0,
            clock: if settings.measure { ProgramTimer::calibrate() } else { ProgramTimer::default() },
            before_ns: None,
            now_ns: None,
            received: PacketCounters::default(),
            missed_before: 0,
            looked_at: 0,
            next_look: None,
            thorough_at: None,
            quiet: QUIET,
            fruitless: 0,
            hits: HotKeyMisses::default(),
            unjudged: 0,
            disturbed: 0,
            samples: Arc::default(),
            profiled: 0,
            judged: HashMap::new(),
            unfit: if settings.twins { BTreeSet::new() } else { all_sites(compiler) },
            settings,
        })
    }

    /// A map of the object, by its name.
    pub fn map(&self, name: &str) -> Option<&KernelMap> {
        self.session.map_by_name(name)
    }

    /// The compiler that makes the variants.
    pub fn compiler(&self) -> &VariantCompiler {
        self.compiler
    }

    /// The guard.
    pub fn guard(&self) -> &Guard {
        &self.guard
    }

    /// Packets received since the program was attached, and of these, those that specialised code took (which
    /// needs [`SessionSettings::count`]).
    pub fn packets(&self) -> (u64, u64) {
        let all = self.received.since_start();
        let missed = self.guard.missed() - self.missed_before;
        (all, all.saturating_sub(self.received.elsewhere() + missed))
    }

    /// A program of the object as clang compiled it: the one that is attached, or one that tail calls may
    /// reach.
    pub fn program(&self, name: &str) -> Option<KernelProgram> {
        let object = self.compiler.object();
        let func = object.programs.iter().find(|p| p.name == name)?.func;
        let other = self.others.iter().find(|(f, _)| *f == func).map(|(_, program)| program);
        other.or((func == self.compiler.program()).then_some(&self.original))?.try_clone().ok()
    }

    /// The program as clang compiled it.
    pub fn original(&self) -> &KernelProgram {
        &self.original
    }

    /// The program on the hook now.
    pub fn current(&self) -> &KernelProgram {
        self.place.as_ref().map_or(&self.original, HookAttachments::current)
    }

    /// Puts the unchanged program onto interfaces of this thread's namespace, into the places of an earlier
    /// session that was killed, or into those of the programs that are to be adopted.
    ///
    /// # Errors
    /// `EBUSY` if somebody else's program is there; nothing is changed then.
    pub fn attach(&mut self, interfaces: &[u32]) -> Result<SessionReport, LiveError> {
        self.open();
        let targets: Vec<AttachTarget> = interfaces.iter().map(|i| self.target(*i)).collect();
        let named = self.kept.iter().filter_map(|n| Some((n.as_str(), self.session.map_by_name(n)?)));
        let tenant = AttachRequest { original: &self.original, guard: &self.guard, maps: named.collect() };
        let place = HookAttachments::take(&self.pins, &tenant, &targets)?;
        let took_over = place.took_over();
        self.place = Some(place);
        let names = self.held().into_iter().map(|h| h.interface).collect();
        self.received = PacketCounters::at(names, self.settings.egress);
        self.looked_at = self.received.count();
        self.missed_before = self.guard.missed();
        self.first_review()?;
        if let Some(active) = &self.active {
            let program = active.program.try_clone()?;
            self.swap(program, true)?;
            self.settle();
        }
        Ok(SessionReport::Attached {
            program: self.original.name().to_owned(),
            interfaces: self.interfaces(),
            took_over,
            watched: self.watched.clone(),
            refused: self.refused.clone(),
        })
    }

    /// Puts the program onto one more interface: one that was gone, and came back.
    ///
    /// # Errors
    /// As for [`LiveSession::attach`].
    pub fn join(&mut self, ifindex: u32, tell: &mut dyn FnMut(&SessionReport)) -> Result<(), LiveError> {
        let target = self.target(ifindex);
        self.open();
        self.place.as_mut().ok_or(LiveError::NotAttached)?.join(&self.original, &target)?;
        self.settle();
        self.moved(tell);
        Ok(())
    }

    fn moved(&mut self, tell: &mut dyn FnMut(&SessionReport)) {
        let interfaces = self.interfaces();
        self.received.follow(interfaces.iter().map(|i| i.interface.clone()).collect());
        tell(&SessionReport::Moved { interfaces });
    }

    fn target(&self, ifindex: u32) -> AttachTarget {
        let SessionSettings { mode, egress, ref adopt, .. } = self.settings;
        AttachTarget { ifindex, mode, egress, adopt: adopt.contains(&ifindex) }
    }

    fn held(&self) -> Vec<HookInfo> {
        self.place.as_ref().map_or_else(Vec::new, HookAttachments::held)
    }

    fn interfaces(&self) -> Vec<AttachedInterface> {
        self.held().into_iter().map(AttachedInterface::from).collect()
    }

    /// Checks who may write the maps. A process that was killed a moment ago may still be releasing its
    /// programs.
    fn first_review(&mut self) -> Result<(), LiveError> {
        let end = Instant::now() + PATIENCE;
        loop {
            let holders = MapUsers::look()?;
            let sources = self.sources.values().map(|s| s.foreign(&holders, &self.ours));
            let uncounted = |s: &SpecializableMap| holders.uncounted(s.map.id(), &self.ours);
            let written =
                self.stateful.values().map(|s| s.foreign(&holders, &self.ours).or_else(|| uncounted(s)));
            let inside = self.nested.values().map(|n| n.foreign(&holders, &self.ours));
            let held = sources.chain(written).chain(inside).any(|why| why.is_some());
            if !held || Instant::now() > end {
                return self.review(&mut |_| {});
            }
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// Takes the program off the interface, for now: the specialised code comes back with the next
    /// [`attach`](LiveSession::attach).
    ///
    /// # Errors
    /// If the state before cannot be restored.
    pub fn detach(&mut self) -> Result<(), LiveError> {
        self.open();
        if let Some(place) = self.place.take() {
            place.leave(&self.original, DetachPolicy::Restored)?;
            // The directory went with the pins. Giving up the claim removes it as well, so the new one comes
            // after.
            self._claim = None;
            self._claim = Some(self.pins.claim()?);
        }
        // Copies of the variant may be measured now; nobody counts what the original writes beside them,
        // until it is attached again.
        self.settle();
        Ok(())
    }

    /// Takes the active variant back, if there is one. A later [`run`](LiveSession::run) makes another.
    ///
    /// # Errors
    /// If the original cannot be put into its place.
    pub fn roll_back(&mut self, reason: &str, tell: &mut dyn FnMut(&SessionReport)) -> Result<(), LiveError> {
        self.next_look = None;
        self.withdraw(reason.to_owned(), tell)
    }

    /// Keeps the program fast until `stop`. May be called again.
    ///
    /// # Errors
    /// If the interface vanishes, somebody else takes the hook, or the kernel no longer answers. The attached
    /// program then stays.
    pub fn run(&mut self, stop: &AtomicBool, tell: &mut dyn FnMut(&SessionReport)) -> Result<(), LiveError> {
        self.guard.belong_to_this_thread()?;
        let now = Instant::now();
        let mut next_look = self.next_look.unwrap_or(now + self.settings.first);
        let mut next_status = now + self.settings.status;
        if self.settings.measure && self.active.is_none() && self.before_ns.is_none() {
            self.before_ns = self.measured(tell)?;
        }
        self.received.rate();
        while !stop.load(Ordering::Relaxed) {
            let until = self.thorough_at.unwrap_or(next_look).min(next_look).min(next_status);
            let most = match self.seen.first {
                _ if self.unanswered.is_some() => Duration::ZERO,
                Some(_) => AGAIN,
                None => Duration::from_millis(50),
            };
            let wait = until.saturating_duration_since(Instant::now()).min(most);
            self.guard.wait(wait)?;
            self.answer(tell)?;
            if self.thorough_at.is_some_and(|at| Instant::now() >= at) {
                self.thorough_at = None;
                self.be_thorough(tell)?;
            }
            if self.has_shifted(tell)? || Instant::now() >= next_look {
                self.look_at_traffic(stop, tell)?;
                next_look =
                    Instant::now() + self.settings.interval * (1 << self.fruitless.min(self.settings.calm));
                self.next_look = Some(next_look);
            }
            if Instant::now() >= next_status {
                self.check_place(tell)?;
                tell(&self.status());
                next_status = Instant::now() + self.settings.status;
            }
        }
        Ok(())
    }

    /// Checks that the program is still where it was put. One interface of several that no longer exists is
    /// given up.
    ///
    /// # Errors
    /// [`LiveError::Gone`] if none is left, [`LiveError::Replaced`].
    pub fn check_place(&mut self, tell: &mut dyn FnMut(&SessionReport)) -> Result<(), LiveError> {
        let before = self.held();
        self.place.as_mut().ok_or(LiveError::NotAttached)?.check()?;
        if self.held() != before {
            self.moved(tell);
        }
        self.review_copies(tell)
    }

    /// Reports the state of the session.
    pub fn status(&mut self) -> SessionReport {
        let pps = self.received.rate();
        let (packets, specialised) = self.packets();
        let approved = self.guard.approved();
        let of_it = |a: &LoadedVariant, token: u64| token & !DeoptMask::ALL.behind() == a.token();
        SessionReport::Status {
            pps,
            packets,
            received: self.received.each_since_start(),
            specialised: self.settings.count.then_some(specialised),
            before_ns: self.before_ns,
            // No time is given for a variant that was not measured yet: the original's time is not the
            // variant's.
            now_ns: if self.active.is_some() { self.now_ns } else { self.before_ns },
            generation: self.active.as_ref().map_or(0, |a| a.generation),
            guard: match &self.active {
                None => GuardState::Off,
                Some(a) if approved == Some(a.token()) => GuardState::Valid,
                Some(a) if approved.is_some_and(|token| of_it(a, token)) => GuardState::Behind,
                Some(_) => GuardState::Revoked,
            },
            writes: self.guard.version(),
            swaps: self.place.as_ref().map_or(0, HookAttachments::swaps),
            // Somebody may have removed the program that a slot has just named.
            chain: self.slots().unwrap_or_default(),
        }
    }

    /// Notes that from now on programs may run that write maps without counting themselves in the caches of
    /// these.
    pub(super) fn open(&mut self) {
        if let Some(active) = &mut self.active {
            active.caches.open();
        }
    }

    /// Puts a program onto the hook in the place of the present one.
    fn swap(&mut self, new: KernelProgram, specialised: bool) -> Result<(), LiveError> {
        self.open();
        self.place.as_mut().ok_or(LiveError::NotAttached)?.swap(new)?;
        self.received.turn(specialised);
        Ok(())
    }

    /// As [`LiveSession::swap`], while writes are attended to: the kernel waits for a grace period.
    fn change(
        &mut self,
        new: KernelProgram,
        specialised: bool,
        tell: &mut dyn FnMut(&SessionReport),
    ) -> Result<(), LiveError> {
        self.open();
        let mut place = self.place.take().ok_or(LiveError::NotAttached)?;
        let steps = self.settings.steps.clone();
        let swap = || {
            steps.at(SessionStep::Swapping);
            place.swap(new)
        };
        let changed = self.run_in_background(WriteHandling::Follow, swap, tell);
        self.place = Some(place);
        changed??;
        self.received.turn(specialised);
        Ok(())
    }

    /// Ends the session. Nothing of it is left except for `leave`.
    ///
    /// # Errors
    /// If the original cannot be put back; the attached program and its guard then stay.
    pub fn finish(mut self, leave: DetachPolicy) -> Result<SessionReport, LiveError> {
        let left = self.end(leave)?;
        Ok(SessionReport::Stopped { left: left.unwrap_or_else(|| "what was there".to_owned()) })
    }

    fn end(&mut self, leave: DetachPolicy) -> Result<Option<String>, LiveError> {
        self.guard.revoke();
        self.place.take().map(|place| place.leave(&self.original, leave)).transpose()
    }
}

/// A session that ends by an error leaves a program that handles packets unattended.
impl Drop for LiveSession<'_> {
    fn drop(&mut self) {
        if let Err(error) = self.end(DetachPolicy::Unattended) {
            tracing::warn!("putting the original back: {error}");
        }
    }
}

/// Loads these programs, and those that somebody may put into program arrays, as far as this kernel accepts
/// them.
fn load_all(
    compiler: &VariantCompiler,
    session: &Session<'_>,
    chosen: &[FuncId],
) -> Result<Vec<(FuncId, KernelProgram)>, millstream_loader::Error> {
    let (object, mut loaded) = (compiler.object(), Vec::new());
    for &func in chosen {
        let program =
            session.load(func, &object.link(func)?).map_err(|e| millstream_loader::Error::Program {
                name: object.functions[func.index()].name.clone(),
                source: Box::new(e),
            })?;
        loaded.push((func, program));
    }
    let kind = &compiler.described().kind;
    let callable =
        object.programs.iter().filter(|p| !compiler.arrays().is_empty() && is_alike(&p.kind, kind));
    for func in callable.map(|p| p.func) {
        if loaded.iter().any(|(f, _)| *f == func) {
            continue;
        }
        let Ok(linked) = object.link(func) else { continue };
        match session.load(func, &linked) {
            Ok(program) => loaded.push((func, program)),
            Err(e) => tracing::debug!("a program beside it is left out: {}", explain(&e)),
        }
    }
    Ok(loaded)
}

/// Checks that the program is of a kind that is attached to an interface, and that the settings fit such a
/// program.
fn check(program: &KernelProgram, settings: &SessionSettings) -> Result<(), LiveError> {
    match program.info()?.program_type {
        ProgramType::XDP if settings.egress => {
            Err(LiveError::Setting("an XDP program has no way out to be attached to"))
        }
        ProgramType::XDP | ProgramType::SCHED_CLS => Ok(()),
        other => Err(LiveError::Kind(program.name().to_owned(), other)),
    }
}

/// Longest wait for a writer inside bpf(2).
const PATIENCE: Duration = Duration::from_millis(200);
/// Delay before maps that were left behind are looked at again.
const AGAIN: Duration = Duration::from_micros(200);
/// Time without a write after which whole tables are put into code.
const QUIET: Duration = Duration::from_millis(500);
/// Attempts to make a generation whose maps change meanwhile.
const ATTEMPTS: u32 = 3;
/// Time for which a program is measured, if enough packets come.
const MEASURE: Duration = Duration::from_millis(5);

/// Removes the maps that the operator has excluded.
fn exclude(
    names: &[String],
    compiler: &VariantCompiler,
    sources: &mut FxHashMap<IrMap, SpecializableMap>,
    refused: &mut Vec<(String, String)>,
) {
    sources.retain(|map, _| {
        let name = &compiler.declaration(*map).name;
        let stays = !names.contains(name);
        if !stays && !refused.iter().any(|(of, _)| of == name) {
            refused.push((name.clone(), "it is excluded".to_owned()));
        }
        stays
    });
}

/// Makes the guard watch all maps that may be written; returns their names.
fn watch<'s>(
    guard: &mut Guard,
    sources: impl Iterator<Item = &'s mut SpecializableMap>,
) -> Result<Vec<String>, LiveError> {
    let mut watched = Vec::new();
    for source in sources.filter(|s| !s.is_constant) {
        source.index = guard.watch(&source.map)?;
        watched.push(source.map.info().name.clone());
    }
    watched.sort_unstable();
    // A map can have caches and key tests as well.
    watched.dedup();
    Ok(watched)
}

/// Adds the names of maps that are watched for other reasons than their contents.
fn also_watched(
    names: impl Iterator<Item = String>,
    watched: &mut Vec<String>,
    refused: &mut Vec<(String, String)>,
) {
    for name in names {
        refused.retain(|(map, _)| *map != name);
        if !watched.contains(&name) {
            watched.push(name);
        }
    }
}

fn all_sites(compiler: &VariantCompiler) -> BTreeSet<SiteId> {
    compiler.sites().iter().map(|s| s.id).collect()
}

/// A rejection, with the verifier's last word.
fn explain(error: &ProgramError) -> String {
    match error.rejection() {
        Some(r) => format!("{} ({})", r.reason(), r.log_tail(3).join(" | ")),
        None => error.to_string(),
    }
}

fn micros(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}

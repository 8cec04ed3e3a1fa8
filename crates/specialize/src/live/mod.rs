//! A program on an interface, kept fast while it runs.
//!
//! [`LiveSession::load`] loads the object and the guard, [`LiveSession::attach`] puts the unchanged program
//! onto the interface, [`LiveSession::run`] profiles, specialises and swaps until it is told to stop. At any
//! moment the program that runs is the original, or a variant that equals it as long as the guard lets it; a
//! variant that cannot be made, is rejected, or is not faster is dropped, and the program that runs goes on
//! running.
//!
//! A session has two halves. [`LiveSession`] makes code: `traffic` looks at packets and takes slow variants
//! back, `make` has variants made (in a `compile_job`), `admission` has new shapes judged by replay before they
//! come onto the hook, `traffic_shift` detects when their hot keys are no longer hot; `speed` is for
//! measurements. `guarded_program` makes none, and answers writes: `write_response` brings variants up to
//! date, `activation` puts them onto the hook, `background` attends to writes while something takes long,
//! `fallback_variant` keeps one that can follow any write, `churn` tracks maps that are written too often to
//! be in code. `state_machine` has the answers of both to each event.
//!
//! Invariant: a variant is put onto the hook only after a snapshot has approved it. `attachment` is
//! responsible for how the hook is held, and for what remains there when a session is killed.

mod activation;
mod admission;
mod background;
mod candidate;
mod candidate_replay;
mod churn;
pub mod code_listing;
mod compile_job;
mod compile_limits;
mod deopt_maps;
pub mod details;
mod error;
mod fallback_variant;
mod generations;
mod guarded_program;
mod inspection;
mod key_text;
mod load;
mod loaded_programs;
mod make;
mod packet_counters;
mod profile_keeper;
mod schedule;
mod session_hook;
mod session_tables;
mod settings;
mod speed;
mod state_machine;
pub mod step;
mod tail_calls;
mod traffic;
mod traffic_shift;
mod write_handling;
mod write_response;
mod write_tracker;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use millstream_kernel::{KernelMap, KernelProgram};
use millstream_specializer::guard_state::DeoptMask;
use millstream_specializer::policy::Tier;
use millstream_specializer::profile::SiteProfile;
use millstream_specializer::variant::VariantCompiler;

use crate::attachment::{AttachRequest, AttachTarget, DetachPolicy, HookAttachments};
use crate::guard::Guard;
use crate::report::{CompileReason, GuardState, SessionReport};
use admission::VariantJudge;
use code_listing::CodeListing;
use compile_limits::CompileLimits;
use deopt_maps::DeoptMaps;
use details::SessionDetails;
pub use error::LiveError;
use generations::LoadedVariant;
use guarded_program::GuardedProgram;
use inspection::ProgramInspection;
pub use settings::{ProfileSettings, SessionPace, SessionSettings};
pub use speed::SpeedComparison;
use state_machine::{SessionEvent, SessionResponse, responses};
use traffic::TrafficProfile;

/// A session.
#[derive(Debug)]
pub struct LiveSession<'c> {
    guarded: GuardedProgram<'c>,
    limits: CompileLimits,
    judge: VariantJudge,
    traffic: TrafficProfile,
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
        let limits = CompileLimits::new(compiler, settings.twins);
        Ok(LiveSession {
            guarded: load::load(compiler, settings)?,
            limits,
            judge: VariantJudge::default(),
            traffic: TrafficProfile::default(),
        })
    }

    /// A map of the object, by its name.
    pub fn map(&self, name: &str) -> Option<&KernelMap> {
        self.guarded.programs.loader.map_by_name(name)
    }

    /// The compiler that makes the variants.
    pub fn compiler(&self) -> &VariantCompiler {
        self.guarded.programs.compiler
    }

    /// The guard.
    pub fn guard(&self) -> &Guard {
        &self.guarded.writes.guard
    }

    /// Packets received since the program was attached, and of these, those that specialised code took (which
    /// needs [`SessionSettings::count`]).
    pub fn packets(&self) -> (u64, u64) {
        self.guarded.packets()
    }

    /// A program of the object as clang compiled it: the one that is attached, or one that tail calls may
    /// reach.
    pub fn program(&self, name: &str) -> Option<KernelProgram> {
        self.guarded.programs.program(name)
    }

    /// The program as clang compiled it.
    pub fn original(&self) -> &KernelProgram {
        &self.guarded.programs.original
    }

    /// The program on the hook now.
    pub fn current(&self) -> &KernelProgram {
        self.guarded.current()
    }

    /// Describes the way in which each lookup is answered, and the keys, by the last look at the traffic.
    ///
    /// # Errors
    /// Errors of the kernel.
    pub fn details(&self) -> Result<SessionDetails, LiveError> {
        ProgramInspection(&self.guarded).details()
    }

    /// The instructions of the original and of the active variant, by source line.
    ///
    /// # Errors
    /// If the program cannot be linked.
    pub fn code(&self) -> Result<CodeListing, LiveError> {
        ProgramInspection(&self.guarded).code()
    }

    /// Puts the unchanged program onto interfaces of this thread's namespace, into the places of an earlier
    /// session that was killed, or into those of the programs that are to be adopted.
    ///
    /// # Errors
    /// `EBUSY` if somebody else's program is there; nothing is changed then.
    pub fn attach(&mut self, interfaces: &[u32]) -> Result<SessionReport, LiveError> {
        self.guarded.generations.open_caches();
        let targets: Vec<AttachTarget> = interfaces.iter().map(|i| self.target(*i)).collect();
        let GuardedProgram { programs, hook, writes, .. } = &self.guarded;
        let named = hook.kept.iter().filter_map(|n| Some((n.as_str(), programs.loader.map_by_name(n)?)));
        let (original, maps) = (&programs.original, named.collect());
        let tenant = AttachRequest { original, guard: &writes.guard, maps };
        let place = HookAttachments::take(&hook.pins, &tenant, &targets)?;
        let took_over = place.took_over();
        let missed = self.guarded.writes.guard.missed();
        self.guarded.hook.hold(place, self.guarded.settings.egress, missed);
        self.guarded.first_review()?;
        if let Some(active) = &self.guarded.generations.active {
            let program = active.program.try_clone()?;
            self.guarded.swap(program, true)?;
            self.guarded.generations.settle_caches();
        }
        Ok(SessionReport::Attached {
            program: self.guarded.programs.original.name().to_owned(),
            interfaces: self.guarded.hook.interfaces(),
            took_over,
            watched: self.guarded.tables.watched.clone(),
            refused: self.guarded.tables.refused.clone(),
        })
    }

    /// Puts the program onto one more interface: one that was gone, and came back.
    ///
    /// # Errors
    /// As for [`LiveSession::attach`].
    pub fn join(&mut self, ifindex: u32, tell: &mut dyn FnMut(&SessionReport)) -> Result<(), LiveError> {
        let target = self.target(ifindex);
        self.guarded.generations.open_caches();
        self.guarded.hook.attached()?.join(&self.guarded.programs.original, &target)?;
        self.guarded.generations.settle_caches();
        self.guarded.moved(tell);
        Ok(())
    }

    fn target(&self, ifindex: u32) -> AttachTarget {
        let SessionSettings { mode, egress, ref adopt, ref chain, .. } = self.guarded.settings;
        let extends = chain.as_ref().map(|chain| Arc::clone(&chain.place));
        AttachTarget { ifindex, mode, egress, adopt: adopt.contains(&ifindex), extends }
    }

    /// Takes the program off the interface, for now: the specialised code comes back with the next
    /// [`attach`](LiveSession::attach).
    ///
    /// # Errors
    /// If the state before cannot be restored.
    pub fn detach(&mut self) -> Result<(), LiveError> {
        self.guarded.generations.open_caches();
        if let Some(place) = self.guarded.hook.attachments.take() {
            place.leave(&self.guarded.programs.original, DetachPolicy::Restored)?;
            // The directory went with the pins. Giving up the claim removes it as well, so the new one comes
            // after.
            self.guarded.hook.claim = None;
            self.guarded.hook.claim = Some(self.guarded.hook.pins.claim()?);
        }
        // Copies of the variant may be measured now; nobody counts what the original writes beside them,
        // until it is attached again.
        self.guarded.generations.settle_caches();
        Ok(())
    }

    /// Takes the active variant back, if there is one. A later [`run`](LiveSession::run) makes another.
    ///
    /// # Errors
    /// If the original cannot be put into its place.
    pub fn roll_back(&mut self, reason: &str, tell: &mut dyn FnMut(&SessionReport)) -> Result<(), LiveError> {
        self.guarded.schedule.next_look = None;
        self.guarded.withdraw(reason.to_owned(), tell)
    }

    /// Keeps the program fast until `stop`. May be called again.
    ///
    /// # Errors
    /// If the interface vanishes, somebody else takes the hook, or the kernel no longer answers. The attached
    /// program then stays.
    pub fn run(&mut self, stop: &AtomicBool, tell: &mut dyn FnMut(&SessionReport)) -> Result<(), LiveError> {
        self.guarded.writes.guard.belong_to_this_thread()?;
        let now = Instant::now();
        let mut next_look = self.guarded.schedule.next_look.unwrap_or(now + self.guarded.settings.pace.first);
        let mut next_status = now + self.guarded.settings.pace.status;
        if let Some(profile) = self.guarded.settings.profile.start.take() {
            self.start_from(&profile, tell)?;
        }
        if self.guarded.settings.measure
            && self.guarded.generations.active.is_none()
            && self.guarded.times.before_ns.is_none()
        {
            self.guarded.times.before_ns = self.guarded.measured(tell)?;
        }
        self.guarded.hook.received.rate();
        while !stop.load(Ordering::Relaxed) {
            let until =
                self.guarded.schedule.thorough_at.unwrap_or(next_look).min(next_look).min(next_status);
            let most = self.guarded.writes.longest_wait();
            let wait = until.saturating_duration_since(Instant::now()).min(most);
            self.guarded.writes.guard.wait(wait)?;
            self.answer(tell)?;
            if self.guarded.schedule.take_due_quiet() {
                self.respond(SessionEvent::Quiet, None, tell)?;
            }
            if self.traffic.misses.has_shifted(&mut self.guarded, tell)? || Instant::now() >= next_look {
                self.look_at_traffic(stop, tell)?;
                let SessionPace { interval, calm, .. } = self.guarded.settings.pace;
                next_look = Instant::now() + self.guarded.schedule.look_interval(interval, calm);
                self.guarded.schedule.next_look = Some(next_look);
            }
            if Instant::now() >= next_status {
                self.guarded.check_place(tell)?;
                tell(&self.status());
                next_status = Instant::now() + self.guarded.settings.pace.status;
            }
        }
        Ok(())
    }

    /// Answers what the guard has seen since the last time.
    fn answer(&mut self, tell: &mut dyn FnMut(&SessionReport)) -> Result<(), LiveError> {
        self.guarded.take_note();
        // New holders can be seen only when the call that brings them has returned.
        if self.guarded.writes.seen.foreign && self.guarded.begin(&DeoptMaps::default(), tell)?.is_none() {
            return Ok(());
        }
        // The running variant could not follow some writes, when that was tried while something else was
        // under way.
        let (tried, new) = (self.guarded.writes.unanswered.take(), self.guarded.writes.seen.first.take());
        let Some(first) = tried.or(new) else { return Ok(()) };
        self.guarded.schedule.put_off_thoroughness();
        let event = if new.is_some() { SessionEvent::Write } else { SessionEvent::UnansweredWrite };
        self.respond(event, Some(first), tell)
    }

    /// Answers an event as the state machine says: the responses are tried until one has dealt with it.
    fn respond(
        &mut self,
        event: SessionEvent,
        write: Option<u64>,
        tell: &mut dyn FnMut(&SessionReport),
    ) -> Result<(), LiveError> {
        // An inspection makes code even if the variant is taken back meanwhile.
        let mut inspected = if event == SessionEvent::Inspection { self.active_profiles() } else { None };
        for response in responses(self.guarded.state(), event) {
            let is_answered = match response {
                SessionResponse::Follow => self.guarded.follow(write, tell)?,
                SessionResponse::ActivateFallback => self.guarded.activate_fallback(write, tell)?,
                SessionResponse::RedirectToFallback => {
                    self.guarded.redirect_to_fallback();
                    true
                }
                SessionResponse::Recompile => {
                    let Some(profiles) = inspected.take().or_else(|| self.active_profiles()) else { break };
                    self.respecialise(profiles, Tier::Quick, CompileReason::Write, write, tell)?;
                    true
                }
                SessionResponse::MakeFallback => self.make_missing_fallback(tell)?,
                SessionResponse::AwaitStableMaps => {
                    let waits = self.guarded.generations.is_fully_churning(&self.guarded.tables.churn);
                    if waits {
                        self.guarded.schedule.await_quiet();
                    }
                    waits
                }
                SessionResponse::RecompileThoroughly => {
                    let is_thorough = |active: &LoadedVariant| active.tier == Tier::Thorough;
                    let active = self.guarded.generations.active.as_ref();
                    let Some(active) = active.filter(|active| !is_thorough(active)) else { break };
                    let profiles = active.profiles.clone();
                    self.respecialise(profiles, Tier::Thorough, CompileReason::Quiet, None, tell)?;
                    true
                }
            };
            if is_answered {
                break;
            }
        }
        Ok(())
    }

    /// Profiles of the traffic for which the active variant was made.
    fn active_profiles(&self) -> Option<Vec<SiteProfile>> {
        self.guarded.generations.active.as_ref().map(|active| active.profiles.clone())
    }

    /// Makes a standby variant, if one is to be made.
    fn make_missing_fallback(&mut self, tell: &mut dyn FnMut(&SessionReport)) -> Result<bool, LiveError> {
        if !self.guarded.generations.needs_fallback(&self.guarded.tables) {
            return Ok(false);
        }
        // Writes that come meanwhile are answered first.
        self.guarded.schedule.thorough_at = Some(Instant::now());
        self.make_fallback(tell)?;
        Ok(true)
    }

    /// Checks that the program is still where it was put. One interface of several that no longer exists is
    /// given up.
    ///
    /// # Errors
    /// [`LiveError::Gone`] if none is left, [`LiveError::Replaced`].
    pub fn check_place(&mut self, tell: &mut dyn FnMut(&SessionReport)) -> Result<(), LiveError> {
        self.guarded.check_place(tell)
    }

    /// Reports the state of the session.
    pub fn status(&mut self) -> SessionReport {
        let pps = self.guarded.hook.received.rate();
        let (packets, specialised) = self.packets();
        let approved = self.guarded.writes.guard.approved();
        let of_it = |a: &LoadedVariant, token: u64| token & !DeoptMask::ALL.behind() == a.token();
        SessionReport::Status {
            pps,
            packets,
            received: self.guarded.hook.received.each_since_start(),
            specialised: self.guarded.settings.count.then_some(specialised),
            before_ns: self.guarded.times.before_ns,
            // No time is given for a variant that was not measured yet: the original's time is not the
            // variant's.
            now_ns: if self.guarded.generations.active.is_some() {
                self.guarded.times.now_ns
            } else {
                self.guarded.times.before_ns
            },
            generation: self.guarded.generations.active.as_ref().map_or(0, |a| a.generation),
            guard: match &self.guarded.generations.active {
                None => GuardState::Off,
                Some(a) if approved == Some(a.token()) => GuardState::Valid,
                Some(a) if approved.is_some_and(|token| of_it(a, token)) => GuardState::Behind,
                Some(_) => GuardState::Revoked,
            },
            writes: self.guarded.writes.guard.version(),
            swaps: self.guarded.hook.swaps(),
            // Somebody may have removed the program that a slot has just named.
            chain: ProgramInspection(&self.guarded).slots().unwrap_or_default(),
        }
    }

    /// Ends the session. Nothing of it is left except for `leave`.
    ///
    /// # Errors
    /// If the original cannot be put back; the attached program and its guard then stay.
    pub fn finish(mut self, leave: DetachPolicy) -> Result<SessionReport, LiveError> {
        let left = self.guarded.end(leave)?;
        self.traffic.profile.save_rest(&self.guarded.settings.profile);
        Ok(SessionReport::Stopped { left: left.unwrap_or_else(|| "what was there".to_owned()) })
    }
}

//! Making variants: compiled, admitted, approved, put onto the hook.

use std::collections::BTreeSet;
use std::sync::Arc;

use millstream_specializer::changes::DirtyKeys;
use millstream_specializer::guard_state::DeoptMask;
use millstream_specializer::policy::Tier;
use millstream_specializer::profile::SiteProfile;
use millstream_specializer::variant::VariantCompiler;

use super::activation::CompileCause;
use super::admission::{AdmissionDecision, CandidateReplay};
use super::candidate::VariantCandidate;
use super::compile_job::{
    CompileFindings, CompileJob, CompileModes, CompileRequest, CompileResult, ProgramSize,
};
use super::deopt_maps::DeoptMaps;
use super::fallback_variant::FallbackSlot;
use super::generations::LoadedVariant;
use super::guarded_program::ATTEMPTS;
use super::step::SessionStep;
use super::traffic_shift::HotKeyMisses;
use super::write_handling::{PendingCompile, WriteHandling};
use super::{LiveError, LiveSession};
use crate::guard::GuardSnapshot;
use crate::report::{CompileReason, SessionReport};

impl<'c> LiveSession<'c> {
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
            order.generation = self.guarded.generations.last + 1;
            // Begins before anything is read.
            self.guarded.writes.seen.making = DirtyKeys::default();
            let Some(snapshot) = self.guarded.begin(&DeoptMaps::default(), tell)? else {
                tell(&SessionReport::Dropped { reason: "a writer stays inside bpf(2)".into() });
                return Ok(());
            };
            let task = PendingCompile::new(tier, reason);
            let CompileResult { candidate, judged, .. } = self.make(&order, &task, tell)?;
            if task.is_called_off() {
                match tier {
                    Tier::Quick if self.guarded.writes.unanswered.is_none() => continue,
                    Tier::Quick => {}
                    Tier::Standby | Tier::Thorough => self.guarded.schedule.interrupted(),
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
                    self.guarded.schedule.interrupted();
                    return Ok(());
                }
                AdmissionDecision::Void => continue,
                // The copies may be what pays.
                AdmissionDecision::Refused if candidate.is_short => {
                    self.limits.is_patient = true;
                    continue;
                }
                AdmissionDecision::Refused => {
                    if self.give_up(!candidate.active.caches.is_empty(), candidate.active.is_bulky) {
                        continue;
                    }
                    // One look at the traffic, however many forms were tried. It says nothing about copies
                    // for other traffic.
                    self.guarded.schedule.fruitless += 1;
                    self.limits.uncopied = None;
                    return Ok(());
                }
            }
            self.guarded.writes.guard.clear_first_packet(order.generation);
            self.guarded.settings.steps.at(SessionStep::Made(tier));
            if let Some(dirty) = self.approve(snapshot, &mut candidate.active) {
                let VariantCandidate { active, making, .. } = candidate;
                let cause = CompileCause { reason, write };
                if self.guarded.install(active, making, cause, dirty, tell)? {
                    self.judge(tell)?;
                }
                return Ok(());
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
        let job = self.compile_job(&order.profiles, order.tier)?;
        let made =
            self.guarded.run_in_background(WriteHandling::Serve(task), || job.make(order, task), tell)?;
        self.take_over(&made.learnt);
        Ok(made)
    }

    /// Collects everything needed to make variants for this traffic.
    pub(super) fn compile_job(
        &mut self,
        profiles: &[SiteProfile],
        tier: Tier,
    ) -> Result<CompileJob<'c>, LiveError> {
        let held = self.guarded.programs.arrays.read()?;
        self.guarded.programs.note_reached(&held);
        let cached = if self.limits.uncached.is_some() {
            BTreeSet::new()
        } else {
            self.guarded.tables.cached_now(&self.guarded.programs)
        };
        let mut programs = Vec::new();
        let all = self.guarded.programs.others.iter().map(|(func, program)| (*func, program));
        for (func, program) in
            all.chain([(self.guarded.programs.compiler.program(), &self.guarded.programs.original)])
        {
            programs.push((func, program.id()?));
        }
        let info = self.guarded.programs.original.info()?;
        Ok(CompileJob {
            compiler: self.guarded.programs.compiler,
            session: self.guarded.programs.loader.try_clone()?,
            sources: Arc::clone(&self.guarded.tables.sources),
            arrays: self.guarded.programs.arrays.rooms(),
            held,
            reached: self.guarded.programs.reached.clone(),
            programs,
            known: self.guarded.tables.profiles_of_reached(&self.guarded.programs, profiles),
            restless: self.guarded.tables.restless_in(tier),
            original: ProgramSize { bytes: info.jited_len, walked: info.verified_insns },
            modes: CompileModes {
                counts: self.guarded.settings.count,
                measures: self.guarded.settings.measure,
                is_patient: self.limits.is_patient,
                copies: self.limits.uncopied.is_none(),
            },
            samples: Arc::clone(&self.traffic.samples),
            profiled: self.traffic.packets,
            fates: self.judge.verdicts.clone(),
            learnt: CompileFindings {
                unfit: self.limits.unfit.clone(),
                apart: self.limits.apart,
                room: self.limits.room,
                cached,
                is_uncacheable: false,
                is_refused_unfolded: false,
                loaded: BTreeSet::new(),
            },
            steps: self.guarded.settings.steps.clone(),
        })
    }

    /// Takes over the findings of a compile job.
    pub(super) fn take_over(&mut self, learnt: &CompileFindings) {
        (self.limits.unfit, self.limits.apart, self.limits.room) =
            (learnt.unfit.clone(), learnt.apart, learnt.room);
        learnt.loaded.iter().for_each(|id| self.guarded.programs.ours.insert_id(*id));
        // A running variant may be code that is better for its loops.
        let may_call = learnt.is_refused_unfolded && self.guarded.generations.active.is_none();
        if let Some(calling) = self.guarded.programs.compiler.calling().filter(|_| may_call) {
            self.call_callbacks(calling);
        } else if learnt.is_uncacheable {
            // Most often there is no room on the stack, and will be none.
            self.guarded.tables.give_up_caches();
        }
    }

    /// Calls callbacks from now on that were loops. Findings about lookups by number, and about the kernel's
    /// limits, no longer hold.
    fn call_callbacks(&mut self, calling: &'c VariantCompiler) {
        tracing::debug!("callbacks are called from now on");
        self.guarded.programs.compiler = calling;
        self.guarded.drop_fallback();
        self.limits.restart(calling, self.guarded.settings.twins);
        self.guarded.tables.keep_caches_of(calling);
        self.judge.verdicts.clear();
        (self.guarded.programs.profiling, self.traffic.misses) = (None, HotKeyMisses::default());
    }

    fn admits(
        &mut self,
        candidate: &mut VariantCandidate,
        judged: Option<CandidateReplay>,
        snapshot: &GuardSnapshot,
        tell: &mut dyn FnMut(&SessionReport),
    ) -> AdmissionDecision {
        let guarded = (&self.guarded.writes.guard, snapshot);
        self.judge.admits(candidate, judged, guarded, &self.guarded.settings, tell)
    }

    /// Lets a new variant run, if the maps still hold what it was made from, or it can follow them. Returns
    /// the contents that may have changed since they were last compared with the running variant.
    fn approve(&mut self, snapshot: GuardSnapshot, active: &mut LoadedVariant) -> Option<DirtyKeys> {
        let spared = active.spared.slots();
        match self.guarded.writes.guard.approve(snapshot, active.token(), spared, DeoptMask::NONE) {
            Some(behind) => {
                let dirty = std::mem::take(&mut self.guarded.writes.seen.making);
                Some(self.guarded.approved(active, behind, &dirty))
            }
            None => self.guarded.catch_up(active, |seen| &mut seen.making).ok(),
        }
    }

    /// Reports why there is no candidate: an error, or nothing to be done.
    fn not_made(&mut self, error: Option<String>, tell: &mut dyn FnMut(&SessionReport)) {
        let reason = error.unwrap_or_else(|| "nothing to specialise on".into());
        tell(&SessionReport::Dropped { reason });
        self.guarded.schedule.fruitless += 1;
    }

    /// Gives up the parts of a variant that did not pay and that may have cost more than they gained; returns
    /// true if there are any.
    pub(super) fn give_up(&mut self, caches: bool, copies: bool) -> bool {
        // The standby variant would have the parts that are given up.
        self.guarded.drop_fallback();
        self.limits.give_up(caches, copies)
    }

    /// Makes a standby variant, and compares it with the original. If none is possible, that is remembered.
    pub(super) fn make_fallback(&mut self, tell: &mut dyn FnMut(&SessionReport)) -> Result<(), LiveError> {
        let Some(active) = &self.guarded.generations.active else { return Ok(()) };
        let profiles = active.profiles.clone();
        // Begins before anything is read.
        self.guarded.writes.seen.aside = DirtyKeys::default();
        let Some(snapshot) = self.guarded.begin(&DeoptMaps::default(), tell)? else {
            self.guarded.schedule.interrupted();
            return Ok(());
        };
        let order =
            CompileRequest { generation: self.guarded.generations.last + 1, tier: Tier::Standby, profiles };
        let task = PendingCompile::new(Tier::Standby, CompileReason::Quiet);
        let CompileResult { candidate, judged, .. } = self.make(&order, &task, tell)?;
        if task.is_called_off() {
            self.guarded.schedule.interrupted();
            return Ok(());
        }
        let mut candidate = match candidate {
            Ok(Some(candidate)) => candidate,
            nothing => {
                tracing::debug!("nothing stands by: {:?}", nothing.err());
                self.guarded.generations.alone = true;
                return Ok(());
            }
        };
        let admission = self.admits(&mut candidate, judged, &snapshot, tell);
        self.guarded.generations.alone = admission == AdmissionDecision::Refused;
        if admission == AdmissionDecision::Void {
            self.guarded.schedule.interrupted();
        }
        if admission != AdmissionDecision::Granted || self.guarded.generations.active.is_none() {
            return Ok(());
        }
        self.guarded.generations.last = order.generation;
        tell(&candidate.fallback_report());
        let slot = FallbackSlot::new(&self.guarded.programs, &self.guarded.writes.guard);
        self.guarded.generations.stand_by(candidate.active, slot);
        Ok(())
    }
}

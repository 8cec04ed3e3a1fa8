//! Replay of candidates beside the original, on the thread that makes them.

use std::time::{Duration, Instant};

use millstream_specializer::gain::gain_ns;
use millstream_specializer::profile::SiteProfile;
use millstream_specializer::transform::SpecializationPlan;
use millstream_specializer::variant::object_map;
use rustc_hash::{FxHashMap, FxHashSet};

use super::admission::CandidateReplay;
use super::candidate::{VariantCandidate, VariantShape};
use super::compile_job::{CompileJob, CompileRequest};
use super::step::SessionStep;
use super::write_handling::PendingCompile;
use crate::predict;
use crate::replay::{self, ContinueCheck, ReplayCase, ReplayError, ReplayResult, sample};

impl CompileJob<'_> {
    /// Returns true if a variant must be judged before it may come onto the hook.
    pub(super) fn is_new(&self, shape: &VariantShape) -> bool {
        self.modes.measures && !self.fates.contains_key(shape)
    }

    /// Compares a variant with the original, unless the task is called off.
    pub(super) fn judge(
        &mut self,
        candidate: &VariantCandidate,
        order: &CompileRequest,
        task: &PendingCompile,
    ) -> CandidateReplay {
        let (start, mut ids) = (Instant::now(), FxHashSet::default());
        let goes_on = || {
            self.steps.at(SessionStep::Judging(order.tier));
            !task.is_called_off()
        };
        let mut ours = |id| {
            ids.insert(id);
        };
        let judgement = self.judgement(candidate, ContinueCheck(&goes_on), &mut ours);
        let mut judged = CandidateReplay { judgement, predicted: None, time: Duration::ZERO };
        if judged.gained().is_some() {
            judged.predicted = Some(self.predicted(&candidate.plan, &order.profiles, &mut ours));
        }
        self.learnt.loaded.extend(ids);
        judged.time = start.elapsed();
        judged
    }

    /// Predicts the gain of a plan, in nanoseconds per packet, from the cost of lookups in the maps as they
    /// are.
    fn predicted(
        &self,
        plan: &SpecializationPlan,
        profiles: &[SiteProfile],
        ours: &mut dyn FnMut(u32),
    ) -> f64 {
        let mut lookups = FxHashMap::default();
        for profile in profiles {
            let site = self.compiler.sites().iter().find(|s| s.id == profile.site);
            let Some(source) = site.and_then(|s| self.sources.get(&s.map)) else { continue };
            let Some(map) = site.map(|s| s.map).filter(|map| !lookups.contains_key(map)) else { continue };
            let keys = predict::keys(&source.map, profile).unwrap_or_default();
            match predict::lookup_ns(&source.map, &keys, ours) {
                Ok(ns) => drop(lookups.insert(map, ns)),
                Err(why) => tracing::debug!("a lookup in {:?} is not timed: {why}", source.map.info().name),
            }
        }
        gain_ns(plan, self.compiler, profiles, self.profiled, &lookups)
    }

    fn judgement(
        &self,
        candidate: &VariantCandidate,
        goes_on: ContinueCheck<'_>,
        ours: &mut dyn FnMut(u32),
    ) -> Result<ReplayResult, ReplayError> {
        let mut programs = self.programs.clone();
        for (func, id) in candidate.active.chain.known() {
            if !programs.iter().any(|(_, known)| *known == id) {
                programs.push((func, id));
            }
        }
        let twins =
            candidate.active.twins.maps().filter_map(|(of, map)| Some((self.compiler.twin(of)?, map)));
        let case = ReplayCase {
            compiler: self.compiler,
            session: &self.session,
            programs: &programs,
            specialised: self.sources.iter().filter(|(_, s)| s.is_known()).map(|(map, _)| *map).collect(),
            candidate: &candidate.active.linked,
            callees: candidate.active.chain.linked(),
            arrays: self.arrays.iter().map(|&(of, place, _)| (object_map(of), place)).collect(),
            twins: twins.collect(),
            insides: candidate.active.insides.maps().collect(),
            caches: candidate.plan.caches.clone(),
            token: candidate.active.token(),
            samples: &self.samples,
            cpu: self.idlest()?,
            goes_on,
        };
        replay::judge(&case, ours)
    }

    /// The CPU with the fewest packets when they were counted last.
    fn idlest(&self) -> Result<usize, millstream_kernel::KernelError> {
        let samples = self.session.map(self.compiler.samples());
        Ok(samples.map(sample::idlest).transpose()?.flatten().unwrap_or(0))
    }
}

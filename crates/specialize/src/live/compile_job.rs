//! Workshop for variants: everything needed to make a variant, load it and compare it with the original, so
//! that another thread can do that while the session answers writes (`background`).
//!
//! Invariant: it changes nothing in the session. The session takes over its findings, and the programs that
//! it has loaded, when it is done (`LiveSession::take_over`).

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::time::{Duration, Instant};

use millstream_ir::Map;
use millstream_isa::MapType;
use millstream_kernel::{KernelError, KernelMap, KernelProgram, MapSpec};
use millstream_loader::{ProgramError, Session};
use millstream_object::{FuncId, LinkedProgram, MapId};
use millstream_specializer::policy::{self, PlanInputs, PlanResult, Tier};
use millstream_specializer::profile::SiteProfile;
use millstream_specializer::transform::{SampleMode, SiteId, SpecializationPlan};
use millstream_specializer::variant::{Variant, VariantCompiler, VariantError, VariantRequest};
use rustc_hash::FxHashMap;

use super::admission::{CandidateReplay, ShapeVerdict};
use super::candidate::{CompileStats, VariantCandidate, VariantShape};
use super::deopt_maps::DeoptMaps;
use super::error::explain;
use super::generations::LoadedVariant;
use super::loaded_programs::put_beside;
use super::step::{SessionStep, StepCallback};
use super::tail_calls::{ProgArrayContents, TailCallChain, callees};
use super::write_handling::PendingCompile;
use crate::caches::EntryCaches;
use crate::inner_maps::InnerMaps;
use crate::replay::sample::PacketSample;
use crate::shadow_tables::ShadowTables;
use crate::snapshot::{Assumptions, MapSnapshot, SpecializableMap};

/// Growth of the machine code, relative to the original's, from which copies of the code after lookups may
/// cost more than they gain. A variant has the original in it.
const GROWN: u32 = 3;
/// Slots from which code with copies of the code after lookups is not made while packets wait: the kernel
/// follows all paths through them, each time it is loaded, and it is loaded several times to be judged.
const LONG: usize = 6_000;
/// Instructions that the kernel may follow to verify a variant with copies, as estimated from its loops:
/// loading takes some 0.7 us for each.
const MOST_WALKED: u64 = 200_000;
/// Instructions of copies of the code after lookups below which there are none, if the kernel refuses more.
const FEWEST_COPIES: usize = 1_000;

/// Findings from making variants.
#[derive(Clone, Debug)]
pub(super) struct CompileFindings {
    /// Sites that get no twins.
    pub(super) unfit: BTreeSet<SiteId>,
    /// True if the kernel has refused inlined programs.
    pub(super) apart: bool,
    /// Instructions in copies of the code after lookups, at most.
    pub(super) room: usize,
    /// The maps that may have caches; none, once the kernel has refused them.
    pub(super) cached: BTreeSet<Map>,
    pub(super) is_uncacheable: bool,
    /// True if the kernel has refused a program in which callbacks are loops, even without all other options.
    pub(super) is_refused_unfolded: bool,
    /// Programs that were loaded.
    pub(super) loaded: BTreeSet<u32>,
}

/// Size of the original.
#[derive(Clone, Copy, Debug)]
pub(super) struct ProgramSize {
    /// Bytes of machine code.
    pub(super) bytes: u32,
    /// Instructions that the kernel followed to verify it; 0 if it does not say.
    pub(super) walked: u32,
}

/// Purpose of a variant.
#[derive(Clone, Debug)]
pub(super) struct CompileRequest {
    pub(super) generation: u32,
    pub(super) tier: Tier,
    /// Profiles of the traffic.
    pub(super) profiles: Vec<SiteProfile>,
}

/// Choices that hold for all variants of a job.
#[derive(Clone, Copy, Debug)]
pub(super) struct CompileModes {
    pub(super) counts: bool,
    pub(super) measures: bool,
    pub(super) is_patient: bool,
    pub(super) copies: bool,
}

/// Everything needed to make variants.
pub(super) struct CompileJob<'c> {
    pub(super) compiler: &'c VariantCompiler,
    pub(super) session: Session<'c>,
    pub(super) sources: Arc<FxHashMap<Map, SpecializableMap>>,
    /// Program arrays, the placeholders of the session's own, and their numbers of slots.
    pub(super) arrays: Vec<(Map, MapId, u32)>,
    /// Contents of the program arrays.
    pub(super) held: ProgArrayContents,
    pub(super) reached: BTreeSet<FuncId>,
    /// The object's programs, with their ids.
    pub(super) programs: Vec<(FuncId, u32)>,
    /// Profiles of the lookups that can be reached.
    pub(super) known: Vec<SiteProfile>,
    /// Maps of which nothing may be in code.
    pub(super) restless: BTreeSet<Map>,
    pub(super) original: ProgramSize,
    pub(super) modes: CompileModes,
    pub(super) samples: Arc<Vec<PacketSample>>,
    /// Packets from which the profiles were made.
    pub(super) profiled: u64,
    /// Verdicts on shapes.
    pub(super) fates: HashMap<VariantShape, ShapeVerdict>,
    pub(super) learnt: CompileFindings,
    pub(super) steps: StepCallback,
}

/// Result of making a variant.
pub(super) struct CompileResult {
    /// `None` if there is nothing to specialise, an error if it cannot be done.
    pub(super) candidate: Result<Option<VariantCandidate>, String>,
    /// Present if it was to be judged.
    pub(super) judged: Option<CandidateReplay>,
    pub(super) learnt: CompileFindings,
}

/// The code of a variant, and the contents from which it was made.
struct CompiledVariant {
    planned: PlanResult,
    variant: Variant,
    twins: ShadowTables,
    record: Assumptions,
    is_short: bool,
    compile: Duration,
}

impl CompileJob<'_> {
    /// Makes a variant, and judges it, if its shape is new.
    pub(super) fn make(mut self, order: &CompileRequest, task: &PendingCompile) -> CompileResult {
        self.steps.at(SessionStep::Begun(order.tier));
        let candidate = self.candidate(order);
        self.steps.at(SessionStep::Loaded(order.tier));
        let judged = match &candidate {
            Ok(Some(candidate)) if !task.is_called_off() && self.is_new(&candidate.shape) => {
                Some(self.judge(candidate, order, task))
            }
            _ => None,
        };
        CompileResult { candidate, judged, learnt: self.learnt }
    }

    /// Makes the instrumented variant; it keeps packets if that is possible.
    pub(super) fn instrumented(
        mut self,
        sites: &[SiteId],
    ) -> (Result<(KernelProgram, TailCallChain), String>, CompileFindings) {
        let mut callees = self.reached.clone();
        callees.remove(&self.compiler.program());
        let callees: Vec<FuncId> = callees.into_iter().collect();
        let mut make = |keep| {
            let made = self.compiler.instrumented(sites, keep, &callees);
            let made = made.map_err(|e| (matches!(e, VariantError::Lower(_)), e.to_string()));
            made.and_then(|variant| {
                self.load_chain(variant).map_err(|e| (e.rejection().is_some(), explain(&e)))
            })
        };
        // Older kernels have no way to keep packets.
        let made = make(SampleMode::Packets).or_else(|(_, why)| {
            tracing::debug!("keeping no packets: {why}");
            make(SampleMode::Count)
        });
        self.learnt.is_refused_unfolded = matches!(made, Err((true, _)));
        (made.map(|(program, _, chain)| (program, chain)).map_err(|(_, why)| why), self.learnt)
    }

    /// Records a program as one of the session's own.
    pub(super) fn note_loaded(&mut self, program: &KernelProgram) -> Result<(), KernelError> {
        self.learnt.loaded.extend(program.ids()?);
        Ok(())
    }

    /// Makes the code of a variant from the current maps. `None` if there is nothing to specialise.
    fn code(&mut self, order: &CompileRequest) -> Result<Option<CompiledVariant>, String> {
        let (start, tier) = (Instant::now(), order.tier);
        let is_left_out = !self.restless.is_empty() && tier != Tier::Standby;
        let sources = Arc::clone(&self.sources);
        let mut observed = MapSnapshot::without(&sources, self.restless.clone());
        let guard = self.compiler.guard(order.generation, self.modes.counts);
        let mut is_short = false;
        let (planned, variant, twins) = loop {
            let CompileFindings { unfit, cached, .. } = &self.learnt;
            let (compiler, profiles) = (self.compiler, &self.known);
            let mut planned = policy::plan(
                &PlanInputs { compiler, profiles, observed: &observed, unfit, cached },
                guard,
                tier,
            );
            self.learnt.unfit.append(&mut planned.untwinned);
            planned.plan.budget.code = if !self.modes.copies || is_short { 0 } else { self.learnt.room };
            planned.complete &= !is_short;
            if planned.plan.is_empty() {
                if !is_left_out || !observed.leave_nothing_out() {
                    return Ok(None);
                }
                // Code that has to be made again is better than none.
                continue;
            }
            let twins = ShadowTables::new(std::mem::take(&mut planned.twins)).map_err(|e| e.to_string())?;
            let rooms: FxHashMap<_, _> = twins.rooms().collect();
            let callees = &callees(compiler, &self.reached, &planned.plan);
            let joinable = if self.learnt.apart { Vec::new() } else { self.held.joinable(compiler) };
            // Slots that are written often are better called through: then no code depends on their contents.
            let is_quiet = tier == Tier::Thorough;
            planned.complete &= is_quiet || callees.is_empty() || joinable.is_empty();
            let joins = if is_quiet { &joinable[..] } else { &[] };
            let wanted =
                VariantRequest { plan: &planned.plan, contents: &observed, rooms: &rooms, callees, joins };
            let variant = match compiler.specialised(&wanted) {
                Err(why) if !joins.is_empty() => {
                    tracing::debug!("nothing is joined: {why}");
                    self.learnt.apart = true;
                    return self.code(order);
                }
                Err(VariantError::Lower(why)) if planned.plan.budget.code > 0 => {
                    tracing::debug!("fewer copies: {why}");
                    self.fewer_copies();
                    return self.code(order);
                }
                made => made.map_err(|e| {
                    self.learnt.is_refused_unfolded =
                        tier != Tier::Standby && matches!(e, VariantError::Lower(_));
                    e.to_string()
                })?,
            };
            let slots = variant.linked.insns.len();
            if tier == Tier::Quick && !self.modes.is_patient && variant.report.has_copies() && slots > LONG {
                is_short = true;
                continue;
            }
            if planned.plan.budget.code > 0 && self.is_walked_for_long(&variant) {
                self.fewer_copies();
                return self.code(order);
            }
            let unfit = unanswered(&planned, &variant);
            if unfit.is_empty() {
                break (planned, variant, twins);
            }
            self.learnt.unfit.extend(unfit);
        };
        let record = observed.into_record();
        Ok(Some(CompiledVariant { planned, variant, twins, record, is_short, compile: start.elapsed() }))
    }

    /// Makes a variant, not yet approved. `None` if there is nothing to specialise.
    fn candidate(&mut self, order: &CompileRequest) -> Result<Option<VariantCandidate>, String> {
        let Some(CompiledVariant { planned, variant, twins, record, is_short, compile }) =
            self.code(order)?
        else {
            return Ok(None);
        };
        self.steps.at(SessionStep::Coded(order.tier));
        let start = Instant::now();
        let caches = EntryCaches::new(planned.plan.caches.iter().map(|c| (c.of, c.shape)))
            .map_err(|e| e.to_string())?;
        let insides = InnerMaps::open(self.compiler, &planned.plan).map_err(|e| e.to_string())?;
        put_beside(&mut self.session, self.compiler, &twins, &caches, &insides).map_err(|e| e.to_string())?;
        let (shape, report) = (VariantShape::new(&planned.plan, &variant.report), variant.report.clone());
        let is_joined = !variant.joined.is_empty();
        let (program, linked, chain) = match self.load_chain(variant) {
            Err(refused) if is_joined => {
                tracing::debug!("nothing is joined: {}", explain(&refused));
                self.learnt.apart = true;
                return self.candidate(order);
            }
            Err(refused) if !caches.is_empty() => {
                tracing::debug!("no caches: {}", explain(&refused));
                self.learnt.cached.clear();
                self.learnt.is_uncacheable = true;
                return self.candidate(order);
            }
            Err(refused) if report.has_copies() => {
                tracing::debug!("fewer copies: {}", explain(&refused));
                // Often the kernel cannot follow all paths through the copies.
                self.fewer_copies();
                return self.candidate(order);
            }
            Err(refused) => {
                // The standby variant has no tables in code: others may have less of a loop.
                self.learnt.is_refused_unfolded =
                    order.tier != Tier::Standby && refused.rejection().is_some();
                return Err(explain(&refused));
            }
            Ok(loaded) => loaded,
        };
        let bytes = program.info().map_or(0, |info| info.jited_len);
        let grown = bytes > GROWN * self.original.bytes;
        let is_complete = planned.complete && order.tier != Tier::Standby;
        let active = LoadedVariant {
            generation: order.generation,
            program,
            spared: DeoptMaps::new(self.compiler, &self.sources, &record, (&planned.plan.spared, &report)),
            tier: if is_complete { Tier::Thorough } else { order.tier },
            record,
            twins,
            caches,
            insides,
            chain,
            keys: planned.keys,
            tried: planned.tried,
            profiles: order.profiles.clone(),
            is_bulky: report.has_copies() && grown,
            on_trial: false,
            linked,
        };
        let entries = report.sites.iter().map(|(_, s)| s.entries).sum();
        let making = CompileStats { compile, load: start.elapsed(), entries };
        Ok(Some(VariantCandidate { shape, plan: planned.plan, active, making, is_short }))
    }

    /// Returns true if the kernel would follow so many instructions through a variant with copies that
    /// loading takes too long. A loop is copied with the code after a lookup, and the kernel follows each
    /// copy for as many iterations as the original's.
    fn is_walked_for_long(&self, variant: &Variant) -> bool {
        let loops = self.compiler.in_loops().max(1) as u64;
        let walked = u64::from(self.original.walked) * variant.in_loops as u64 / loops;
        variant.report.has_copies() && walked > MOST_WALKED
    }

    /// Reduces the room for copies of the code after lookups: with so many, the program cannot be loaded.
    fn fewer_copies(&mut self) {
        let room = &mut self.learnt.room;
        *room = if *room > FEWEST_COPIES { *room / 4 } else { 0 };
    }

    /// Loads a variant with the programs that it calls. If the kernel refuses some of these, their originals
    /// are called.
    fn load_chain(
        &mut self,
        variant: Variant,
    ) -> Result<(KernelProgram, LinkedProgram, TailCallChain), ProgramError> {
        let (function, refused) = (self.compiler.program(), millstream_loader::Error::from);
        let mut chain = TailCallChain::new(self.reached.clone(), variant.joined);
        let is_chained = !variant.callees.is_empty();
        for &(of, at, max_entries) in self.arrays.iter().filter(|_| is_chained) {
            let name = &self.compiler.object().maps[at.index()].name;
            let map_type = MapType::PROG_ARRAY;
            let spec =
                MapSpec { name, map_type, key_size: 4, value_size: 4, max_entries, ..MapSpec::default() };
            let place = KernelMap::create(&spec).map_err(refused)?;
            self.session.replace_map(at, place.try_clone().map_err(refused)?);
            chain.call_through(of, place);
        }
        for (func, linked) in variant.callees {
            match self.session.load(func, &linked) {
                Ok(program) => {
                    self.note_loaded(&program).map_err(refused)?;
                    chain.add(func, program, linked);
                }
                Err(e) => tracing::debug!("a program that is called stays as it is: {}", explain(&e)),
            }
        }
        let program = self.session.load(function, &variant.linked)?;
        self.note_loaded(&program).map_err(refused)?;
        chain.begin_with(function, program.try_clone().map_err(refused)?);
        chain.fill(self.held.clone()).map_err(refused)?;
        Ok((program, variant.linked, chain))
    }
}

/// Sites that were to be answered by a twin and were not: their keys, or the uses of their values, have
/// another form.
fn unanswered(planned: &PlanResult, variant: &Variant) -> Vec<SiteId> {
    let plan: &SpecializationPlan = &planned.plan;
    let twinned = plan.sites.iter().filter(|s| s.lookup.shadow_map().is_some());
    let answered = |site| variant.report.sites.iter().any(|(id, _)| *id == site);
    twinned.map(|s| s.site).filter(|site| !answered(*site)).collect()
}

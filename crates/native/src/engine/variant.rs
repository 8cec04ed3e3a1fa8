//! More code for the maps of an engine: other forms of its program, or the same by another schedule, compiled on
//! any thread while it runs.
//!
//! A variant has the addresses of the engine's maps in it. Maps do not move, and the engine's own code has the same
//! addresses, so a variant needs nothing of the engine to be compiled. A worker can run one batch by the program
//! and the next one by the variant ([`super::CodeSlot`]) if both have the same layout of packets, which
//! [`VariantSupport::Installed`] guarantees. [`NativeEngine::exchange`] takes any variant.
//!
//! Invariant: a variant is run only by workers of the engine for which it was made ([`VariantCode::is_of`]).

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use millstream_ir::{Func, MapDecl, Module};
use millstream_plan::{CompiledSchedule, Schedule};

use super::code::{VariantSource, fetched, lay_out, reached_by_tail_calls, run_passes};
use super::generate::{CodeSource, CodeTarget, EntryPoints, VariantSupport, generate, way};
use super::{CompileTimings, NativeEngine, NativeError, NativeOptions};
use crate::image::InitialMapEntry;
use crate::prefetch::PrefetchTuner;
use crate::program::NativeProgram;
use crate::traversal_cache::TraversalMaps;
use millstream_native_runtime::fields::DescriptorFieldSet;
use millstream_native_runtime::packet::DescriptorLayout;

/// Differences of a variant from the engine's own code, beside its module.
#[derive(Clone, Debug, Default)]
pub struct VariantOptions {
    /// Its schedule, if it has one of its own.
    pub schedule: Option<Schedule>,
    /// LLVM's passes for it, if they are not the program's.
    pub llvm_passes: Option<String>,
}

/// Reason why code is not installed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InstallError {
    /// The code was made for another engine.
    #[error("the code was made for another engine")]
    Foreign,
    /// A table was written after its contents were read.
    #[error("table {0} was written meanwhile")]
    Stale(usize),
}

/// Identity of an engine's maps.
#[derive(Debug)]
struct MapSetIdentity;

/// Compiles variants of an engine's program.
pub struct VariantBuilder {
    source: VariantSource,
    entry: Func,
    options: NativeOptions,
    identity: Arc<MapSetIdentity>,
    /// Variants so far.
    made: AtomicU64,
}

impl VariantBuilder {
    pub(super) fn new(source: VariantSource, entry: Func, options: NativeOptions) -> VariantBuilder {
        VariantBuilder { source, entry, options, identity: Arc::new(MapSetIdentity), made: AtomicU64::new(0) }
    }

    /// Adds initial contents of maps, which an engine with maps of its own gets, too.
    pub(super) fn add_initial(&mut self, initial: &[InitialMapEntry]) {
        self.source.initial.extend_from_slice(initial);
    }

    /// Returns true if its variants may have caches of traversals.
    pub fn has_traversals(&self) -> bool {
        TraversalMaps::of(&self.source.module).is_some()
    }

    /// Returns true if workers may take up its variants while they run.
    pub(super) fn is_for_installation(&self) -> bool {
        self.options.variants == VariantSupport::Installed
    }

    /// The program before the passes, with its match tables replaced.
    pub fn module(&self) -> &Module {
        &self.source.module
    }

    /// The program that batches run.
    pub fn entry(&self) -> Func {
        self.entry
    }

    /// LLVM's passes for the program.
    pub fn llvm_passes(&self) -> &str {
        &self.options.llvm_passes
    }

    /// Schedule of the program.
    pub fn schedule(&self) -> &Schedule {
        &self.options.schedule
    }

    /// Names of the arrays whose values are in shared memory, which others write.
    pub fn external_maps(&self) -> impl Iterator<Item = &str> {
        self.options.lent.iter().map(|(name, _)| name.as_str())
    }

    /// Compiles the same program for maps of its own, beside which it has `added` ones, for one worker, by these
    /// passes of LLVM or by those of the program. The maps hold what they held at first.
    ///
    /// # Errors
    /// As for [`NativeEngine::of_module`].
    pub fn build_replica(
        &self,
        added: Vec<MapDecl>,
        llvm_passes: Option<&str>,
    ) -> Result<NativeEngine, NativeError> {
        let mut module = self.source.module.clone();
        for map in added {
            module.maps.push(map);
        }
        let llvm_passes = llvm_passes.unwrap_or(&self.options.llvm_passes).to_owned();
        let options = NativeOptions {
            workers: 1,
            lent: Vec::new(),
            keep_text: false,
            llvm_passes,
            ..self.options.clone()
        };
        let mut engine = NativeEngine::of_module(module, self.entry, &options)?;
        engine.fill(&self.source.initial)?;
        Ok(engine)
    }

    /// Compiles a form of the program, made of [`VariantBuilder::module`] with the same maps in the same order.
    ///
    /// # Errors
    /// [`NativeError`] if it has no native form.
    pub fn compile(
        &self,
        mut module: Module,
        differing: &VariantOptions,
    ) -> Result<VariantCode, NativeError> {
        let mut options = NativeOptions { keep_text: false, ..self.options.clone() };
        if let Some(schedule) = &differing.schedule {
            options.schedule.clone_from(schedule);
        }
        if let Some(passes) = &differing.llvm_passes {
            options.llvm_passes.clone_from(passes);
        }
        let start = Instant::now();
        run_passes(&mut module, &options)?;
        let passes = start.elapsed();
        let (target, own) = (&self.source.target, self.source.target.layout.fields());
        let others = reached_by_tail_calls(&module);
        if !own.has(DescriptorFieldSet::of(&module, others.iter().copied().chain([self.entry]))) {
            return Err(NativeError::Choose(
                "the variant accesses more of a packet than the program".to_owned(),
            ));
        }
        let known = fetched(&target.known, &module, &options.schedule)?;
        let mut slice = way(&module, self.entry, &known);
        let layout = match self.is_for_installation() {
            true => target.layout,
            false => lay_out(own, &known, slice.is_some(), &options),
        };
        if layout.notes().1 == 0 {
            slice = None;
        }
        let entries = EntryPoints::Batch(self.entry);
        let source = CodeSource { module: &module, entries, others: &others, slice: slice.as_ref() };
        let (matches, stability) = (Arc::clone(&target.matches), Arc::clone(&target.stability));
        let number = self.made.fetch_add(1, Ordering::Relaxed) + 1;
        let target = CodeTarget { known, layout, matches, stability, number };
        let mut generated = generate(&source, &target, &options, None)?;
        generated
            .names
            .iter_mut()
            .take(module.funcs.len())
            .for_each(|name| name.insert_str(0, "variant of "));
        let program = generated.link_program()?;
        Ok(VariantCode {
            program,
            layout,
            batch: differing.schedule.as_ref().map(|schedule| schedule.batch),
            schedule: generated.schedule,
            tuner: PrefetchTuner::default(),
            identity: Arc::clone(&self.identity),
            timings: CompileTimings { passes, ..generated.timings },
        })
    }
}

impl std::fmt::Debug for VariantBuilder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("VariantBuilder").field("entry", &self.entry).finish_non_exhaustive()
    }
}

/// Machine code of a form of a program, for the maps of one engine.
pub struct VariantCode {
    pub(super) program: NativeProgram,
    pub(super) layout: DescriptorLayout,
    /// Packets of one batch, if it has a schedule of its own.
    pub(super) batch: Option<u32>,
    schedule: CompiledSchedule,
    /// Choice between its loops, while it is not the engine's own code.
    tuner: PrefetchTuner,
    identity: Arc<MapSetIdentity>,
    /// Times of its compilation.
    pub timings: CompileTimings,
}

impl VariantCode {
    /// Returns true if it was made for the maps of the engine that has this builder.
    pub(super) fn is_of(&self, builder: &VariantBuilder) -> bool {
        Arc::ptr_eq(&self.identity, &builder.identity)
    }

    /// Its schedule.
    pub fn schedule(&self) -> &CompiledSchedule {
        &self.schedule
    }
}

impl std::fmt::Debug for VariantCode {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("VariantCode").field("timings", &self.timings).finish_non_exhaustive()
    }
}

impl NativeEngine {
    /// Compiler of more code for this engine, if it was compiled with [`NativeOptions::variants`].
    pub fn variant_builder(&self) -> Option<&Arc<VariantBuilder>> {
        self.variants.as_ref()
    }

    /// Takes a variant as its own code, and gives back the code that ran before; maps stay.
    ///
    /// # Errors
    /// If the code is another engine's; this engine is then as before.
    pub fn exchange(&mut self, code: VariantCode) -> Result<VariantCode, InstallError> {
        if !self.variants.as_ref().is_some_and(|own| code.is_of(own)) {
            return Err(InstallError::Foreign);
        }
        let VariantCode { program, layout, schedule, tuner, identity, timings, .. } = code;
        self.lane.worker.layout = layout;
        Ok(VariantCode {
            program: std::mem::replace(&mut self.program, program),
            layout: std::mem::replace(&mut self.layout, layout),
            batch: None,
            schedule: std::mem::replace(&mut self.schedule, schedule),
            tuner: std::mem::replace(&mut self.lane.judge, tuner),
            identity,
            timings: std::mem::replace(&mut self.timings, timings),
        })
    }
}

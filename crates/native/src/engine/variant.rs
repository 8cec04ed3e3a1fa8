//! More code for the maps of an engine: other forms of its program, compiled on any thread while it runs.
//!
//! A variant has the addresses of the engine's maps in it, and the layout of its packets, so that a worker can
//! run one batch by the program and the next one by the variant. Maps do not move, and the engine's own code
//! has the same addresses, so a variant needs nothing of the engine to be compiled.
//!
//! Invariant: a variant is run only by workers of the engine for which it was made ([`VariantCode::is_of`]).

use std::sync::Arc;
use std::time::Instant;

use cranelift_entity::SecondaryMap;
use millstream_ir::{Func, Map, MapDecl, Module, Table};

use super::code::{reached_by_tail_calls, run_passes, way};
use super::{CompileTimings, NativeEngine, NativeError, NativeOptions};
use crate::batch_reordering;
use crate::crash::CodeDebugInfo;
use crate::emit::{CodegenUnit, MapCodegenInfo, TableSearch, emit, reachable};
use crate::fields::DescriptorFieldSet;
use crate::image::{InitialMapEntry, LineTable};
use crate::llvm::LlvmCompiler;
use crate::program::{CodeOwner, NativeProgram};
use crate::runtime::helpers;
use crate::runtime::packet::DescriptorLayout;

/// Properties of an engine that its code depends on.
pub(super) struct VariantTarget {
    pub(super) known: SecondaryMap<Map, Option<MapCodegenInfo>>,
    pub(super) layout: DescriptorLayout,
    pub(super) matches: Vec<(Table, TableSearch)>,
    /// Initial contents of its maps.
    pub(super) initial: Vec<InitialMapEntry>,
}

/// Identity of an engine's maps.
#[derive(Debug)]
struct MapSetIdentity;

/// Compiles variants of an engine's program.
pub struct VariantBuilder {
    module: Module,
    entry: Func,
    options: NativeOptions,
    target: VariantTarget,
    identity: Arc<MapSetIdentity>,
}

impl VariantBuilder {
    pub(super) fn new(
        module: Module,
        entry: Func,
        options: NativeOptions,
        target: VariantTarget,
    ) -> VariantBuilder {
        VariantBuilder { module, entry, options, target, identity: Arc::new(MapSetIdentity) }
    }

    /// Adds initial contents of maps, which an engine with maps of its own gets, too.
    pub(super) fn add_initial(&mut self, initial: &[InitialMapEntry]) {
        self.target.initial.extend_from_slice(initial);
    }

    /// The program before the passes, with its match tables replaced.
    pub fn module(&self) -> &Module {
        &self.module
    }

    /// The program that batches run.
    pub fn entry(&self) -> Func {
        self.entry
    }

    /// LLVM's passes for the program.
    pub fn llvm_passes(&self) -> &str {
        &self.options.llvm_passes
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
        let mut module = self.module.clone();
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
        engine.fill(&self.target.initial)?;
        Ok(engine)
    }

    /// Compiles a form of the program, made of [`VariantBuilder::module`] with the same maps in the same order,
    /// by these passes of LLVM, or by those of the program itself.
    ///
    /// # Errors
    /// [`NativeError`] if it has no native form.
    pub fn compile(&self, mut module: Module, llvm_passes: Option<&str>) -> Result<VariantCode, NativeError> {
        let mut timings = CompileTimings::default();
        let start = Instant::now();
        run_passes(&mut module, &self.options)?;
        timings.passes = start.elapsed();
        let start = Instant::now();
        let VariantTarget { known, layout, matches, .. } = &self.target;
        let others = reached_by_tail_calls(&module);
        let fields = DescriptorFieldSet::of(&module, others.iter().copied().chain([self.entry]));
        if !layout.fields().has(fields) {
            return Err(NativeError::Choose(
                "the variant accesses more of a packet than the program".to_owned(),
            ));
        }
        // Notes of fetching have places in descriptors, which are laid out already.
        let slice = way(&module, self.entry, known).filter(|_| layout.notes().1 > 0);
        let reads = |map| known[map].as_ref().is_some_and(|info: &MapCodegenInfo| info.only_reads);
        let independent =
            &batch_reordering::independent(&module, reachable(&module, self.entry, &others), &reads);
        let unit = CodegenUnit {
            module: &module,
            maps: known,
            entry: self.entry,
            stages: &[],
            others: &others,
            schedule: &self.options.schedule,
            layout: *layout,
            independent,
            shared: self.options.workers > 1 || !self.options.lent.is_empty(),
            slice: slice.as_ref(),
            matches,
            table: None,
            located: true,
        };
        let text = emit(&unit)?;
        timings.emit = start.elapsed();
        let compiler = LlvmCompiler::new(&helpers::symbols(), self.options.cpu.name())?;
        let start = Instant::now();
        let passes = llvm_passes.unwrap_or(&self.options.llvm_passes);
        let object = compiler.compile(&text, passes, false)?;
        timings.llvm = start.elapsed();
        timings.bytes = object.bytes.len();
        let start = Instant::now();
        let (symbols, loops) = (unit.symbols(), unit.loops().len());
        let symbols: Vec<&str> = symbols.iter().map(String::as_str).collect();
        let (code, addresses) = compiler.link(&object, &symbols)?;
        let (lines, first) = LineTable::of_object(&object.bytes, symbols[0])?;
        let functions = module.funcs.values().map(|func| format!("variant of function `{}`", func.name));
        let names = functions.chain(self.options.places.iter().cloned()).collect();
        let start_of_code = (addresses[0] as u64).wrapping_sub(first);
        let program = NativeProgram::new(&addresses, loops, CodeOwner::Linked { _code: code })
            .with_debug_info(CodeDebugInfo { start: start_of_code, lines, names });
        timings.link = start.elapsed();
        Ok(VariantCode { program, identity: Arc::clone(&self.identity), timings })
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
    identity: Arc<MapSetIdentity>,
    /// Times of its compilation.
    pub timings: CompileTimings,
}

impl VariantCode {
    /// Returns true if it was made for the maps of the engine that has this builder.
    pub(super) fn is_of(&self, builder: &VariantBuilder) -> bool {
        Arc::ptr_eq(&self.identity, &builder.identity)
    }
}

impl std::fmt::Debug for VariantCode {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("VariantCode").field("timings", &self.timings).finish_non_exhaustive()
    }
}
